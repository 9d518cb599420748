"""What experiments that compare rules for a change of batch size are made of: a base, its null, and a line each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from rootscale.batch_size import BatchSize
from rootscale.lab import Settings, Task, Variant
from rootscale.paper.experiment import Line, Options
from rootscale.paper.experiments.language_runs import generated, sizes_of, tokens_of
from rootscale.paper.finals import Final, format_curve
from rootscale.paper.language.gpt_task import gpt
from rootscale.paper.parts import settings_for
from rootscale.paper.tasks import digits
from rootscale.plan import Plan
from rootscale.schedule import Schedule

__all__ = ["KEEPS", "KEPT", "NULL", "Comparison", "constant", "digits_task", "gpt_task", "rule_of", "words"]

NULL, KEPT = "other samples", "kept"
#: What is stored of so many runs.
KEEPS = ("train loss", "test loss", "test accuracy", "noise scale")
#: Steps of warm-up of a smoke test.
SHORT = 4


@dataclass(frozen=True)
class Comparison:
    """A base, and the rules that are compared with it at larger batch sizes.

    Args:
        rules: texts of rules by name, given kappa; those that the optimizer has not at that kappa are left out.
        before: the share of the run before the switch; 0 compares from scratch.
        eval_samples: of each part of the data that are measured.
        noise: whether the noise is measured, which takes longer than the steps between two points.
    """

    rules: Callable[[int], Mapping[str, str]]
    before: Fraction = Fraction(0)
    eval_samples: int = 2048
    noise: bool = False

    def lines(self, task: Task, options: Options) -> tuple[list[Line], Settings]:
        """Return the batch kept, the same with other samples, and every rule at every batch size."""
        if options.paper_batchnorm:
            raise ValueError("rules are compared here, each with its own row for BatchNorm: drop --paper-batchnorm")
        sizes, samples = sizes_of(options), task.plan.samples
        assert samples is not None
        start = int(samples * self.before) // sizes[-1] * sizes[-1]
        base = f"B = {sizes[0]:,}"
        made = [Line(f"{base} {KEPT}", task), Line(f"{base}, {NULL}", task, Variant(other_samples=True))]
        for size in sizes[1:]:
            kappa = Fraction(size, sizes[0])
            arrow = f"{sizes[0]:,} → {size:,}" if start else f"B = {size:,}"
            variants = _different(task, kappa, self.rules(int(kappa)))
            made += [Line(f"{arrow}, {name}", task, variant) for name, variant in variants]
        settings = settings_for(options, task.plan, sizes, start, eval_samples=self.eval_samples)
        return made, replace(settings, measure=replace(settings.measure, noise=self.noise))


def _different(task: Task, kappa: Fraction, rules: Mapping[str, str]) -> Iterable[tuple[str, Variant]]:
    """Yield the rules that exist at a kappa; of those that come to the same run, the first."""
    seen = set()
    for name, text in rules.items():
        variant = Variant(kappa, text)
        try:
            optimizer = variant.plan(task.plan).optimizer
        except ValueError:  # the paper's form ends before this kappa
            continue
        rule = variant.the_rule(task.plan)
        weights = ({"beta1": getattr(one, "beta1", 0.0)} for one in (task.plan.optimizer, optimizer))
        key = optimizer, rule.factor("m", kappa, *weights), "v" in rule.units
        if key not in seen:
            seen.add(key)
            yield name, variant


def rule_of(final: Final) -> str:
    """Return what was done at the switch, without the batch sizes."""
    return final.label.partition(", ")[2]


def words(told: str, finals: Sequence[Final]) -> str:
    """Return the largest gap of every line, in percent of the base's range."""
    parts: dict[str, list[str]] = {}
    for final in finals[1:]:
        place, _, name = final.label.partition(", ")
        parts.setdefault(place, []).append(f"{name} {format_curve(final, told)}")
    return f"largest gap of the {told} to the kept batch, over that curve's range: " + "; ".join(
        f"{place}: {', '.join(gaps)}" for place, gaps in parts.items()
    )


def constant(optimizer: object, options: Options, samples: int, warmup: int = 0) -> Plan:
    """Return a run at the smallest batch size over the epochs of the options, its learning rate constant."""
    sizes = sizes_of(options)
    total = int(options.epochs * samples) // sizes[-1] * sizes[-1]
    schedule = Schedule(warmup=Fraction(min(warmup, SHORT) if options.smoke else warmup))
    return Plan(optimizer, BatchSize(sizes[0]), steps=Fraction(total, sizes[0]), schedule=schedule)  # type: ignore[arg-type]


def digits_task(name: str, options: Options, plan: Callable[[int], Plan]) -> Task:
    """Return an MLP on digits, as `rootscale.paper.tasks.digits` has it; arguments as for `gpt_task`."""
    made = digits()
    return replace(made, name=name, plan=plan(len(made.train)))


def gpt_task(name: str, options: Options, plan: Callable[[int], Plan], length: int = 128) -> Task:
    """Return a GPT on enwik8, without dropout, as less than a tenth of the text is seen.

    Args:
        name: of the task.
        options: of the experiment.
        plan: of the run, given how many sequences there are.
        length: of the sequences.
    """
    tokens = generated() if options.smoke else tokens_of(options.data, "enwik8")
    model, length = ("gpt-tiny", 16) if options.smoke else (options.model, length)
    made = gpt(tokens, model=model, length=length, dropout=0.0)
    return replace(made, name=name, plan=plan(len(made.train)))
