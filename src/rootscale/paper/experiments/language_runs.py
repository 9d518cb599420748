"""What experiments with language models are made of: a model on a text, and its runs at several batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import lcm

from rootscale.format import show
from rootscale.lab import Settings, Task, Variant
from rootscale.paper.experiment import Line, Options
from rootscale.paper.finals import Final, format_curve, format_end, format_gap
from rootscale.paper.language.gpt_task import gpt
from rootscale.paper.language.recipes import Pretraining, micro_batch
from rootscale.paper.parts import settings_for
from rootscale.paper.shown import Outcome, judge_ends
from rootscale.paper.text.corpora import corpus
from rootscale.paper.text.tokens import Tokens, chain, from_text, tokenise
from rootscale.plan import Plan

#: Batch sizes of a smoke test are this many times smaller.
SHRINK = 256
#: Windows of each part that measure losses, gradient and noise.
EVAL = 512
#: Shares of the run at which the batch size changes.
SWITCHES = (Fraction(40, 100), Fraction(55, 100), Fraction(70, 100))
#: How far the paper's log-perplexities at its batch sizes lie apart at most.
CLAIMED = 0.1
#: Lines that are not under the rule end in one of these, or begin with SVAG.
OFF_RULE = ("learning rate only", "linear", "hyperparameters only", "state zeroed")


@lru_cache(maxsize=4)
def tokens_of(folder: str | None, name: str | None, kind: str | None = None, size: int | None = None) -> Tokens:
    """Return a corpus as numbers, cut up as usual or in another way (`rootscale.paper.text.tokenise`), read once."""
    return tokenise(corpus(folder, name), kind, size)


@lru_cache(maxsize=1)
def generated() -> Tokens:
    """Return a text for smoke tests."""
    return from_text(chain(30, 4000), name="chain")


def size_of(options: Options, size: int) -> int:
    """Return what a batch size is in this experiment: a smoke test makes all of them smaller."""
    if options.smoke and size % SHRINK:
        raise ValueError(f"batch sizes of a smoke test must be multiples of {SHRINK}, got {size}")
    return size // SHRINK if options.smoke else size


def sizes_of(options: Options) -> list[int]:
    """Return the batch sizes in order; the first is the base."""
    return sorted(size_of(options, size) for size in options.batch_sizes)


@dataclass(frozen=True)
class Smoke:
    """What a smoke test has instead: a net, the length of its sequences, a learning rate and a text."""

    model: str
    length: int
    eta: float
    tokens: Callable[[], Tokens]


@dataclass(frozen=True)
class Setting:
    """A language model on a text.

    Args:
        name: of the corpus; None is WikiText or any text.
        recipe: of the hyperparameters.
        length: of the sequences.
        reference: the batch size at which the recipe's values are taken to hold; None is the paper's 1,024.
        eta: the learning rate at that batch size; None is the recipe's.
        kind, vocabulary: how the text is cut up, and into how many tokens; None is as usual for it.
        make: the task, `rootscale.paper.language.gpt` or ``roberta``.
        smoke: of a smoke test.
    """

    name: str | None = None
    recipe: str = "gpt"
    length: int = 128
    reference: int | None = None
    eta: float | None = None
    kind: str | None = None
    vocabulary: int | None = None
    make: Callable[..., Task] = gpt
    smoke: Smoke = Smoke("gpt-tiny", 16, 5e-3, generated)

    def tokens(self, options: Options) -> Tokens:
        """Return the tokens of the text."""
        if options.smoke:
            return self.smoke.tokens()
        return tokens_of(options.data, self.name, self.kind, self.vocabulary)

    def model(self, options: Options) -> str:
        """Return the name of the net."""
        return self.smoke.model if options.smoke else options.model

    def positions(self, options: Options) -> int:
        """Return the length of the sequences."""
        return self.smoke.length if options.smoke else self.length

    def task(self, options: Options, batch_size: int) -> Task:
        """Return the task at the base batch size."""
        return self.make(
            self.tokens(options),
            model=self.model(options),
            length=self.positions(options),
            training=Pretraining(
                self.recipe,
                batch_size,
                options.epochs,
                eps=options.eps,
                eta=self.smoke.eta if options.smoke else self.eta,
                reference=1024 // SHRINK if options.smoke else self.reference,
            ),
        )


def settings_of(setting: Setting, options: Options, task: Task, sizes: Sequence[int], switch_at: int = 0) -> Settings:
    """Return what the runs have in common: on a GPU no more sequences at once than its memory takes."""
    if options.smoke:
        return settings_for(options, task.plan, sizes, switch_at, eval_samples=32)
    micro = micro_batch(task.train.length, setting.tokens(options).vocabulary.size)
    return settings_for(options, task.plan, sizes, switch_at, eval_samples=EVAL, micro=micro)


def scaling(setting: Setting, options: Options) -> tuple[list[Line], Settings]:
    """Return the base, each batch size under the rule, and two other rules at the largest."""
    sizes = sizes_of(options)
    task = setting.task(options, sizes[0])
    lines = [Line(f"B = {sizes[0]:,}", task)]
    lines += [Line(f"B = {size:,}", task, Variant(Fraction(size, sizes[0]), "with paper")) for size in sizes[1:]]
    if len(sizes) > 1:
        to = Fraction(sizes[-1], sizes[0])
        lines.append(Line(f"B = {sizes[-1]:,}, learning rate only", task, Variant(to, rule="sqrt-eta")))
        lines.append(Line(f"B = {sizes[-1]:,}, linear", task, Variant(to, rule="linear")))
    return lines, settings_of(setting, options, task, sizes)


def svag(setting: Setting, options: Options) -> tuple[list[Line], Settings]:
    """Return the discrete run, and SVAG for each ell."""
    (size,) = sizes_of(options)[:1]
    task = setting.task(options, size)
    made = [Line(f"SVAG, ℓ = {show(ell)}", task, Variant(ell=ell)) for ell in options.ells if ell != 1]
    return [Line("discrete (ℓ = 1)", task), *made], settings_of(setting, options, task, [size])


def switch(setting: Setting, options: Options) -> tuple[list[Line], Settings]:
    """Return the batch kept, converted, the half-measures, and a ramp through all sizes."""
    sizes = sizes_of(options)
    if len(sizes) < 3:
        raise ValueError(f"a switch with a ramp needs three or more batch sizes, got {list(options.batch_sizes)}")
    task = setting.task(options, sizes[0])
    start, places = switch_places(task.plan, sizes)
    kappas = [Fraction(size, sizes[0]) for size in sizes]
    stages = tuple(zip(places, kappas[2:], strict=True))
    to, arrow = kappas[-1], f"{sizes[0]:,} → {sizes[-1]:,}"
    lines = [
        Line(f"B = {sizes[0]:,} kept", task),
        Line(f"{arrow}, everything converted", task, Variant(to, "with paper")),
        Line(f"{arrow}, hyperparameters only", task, Variant(to, "with paper without v, step_counter")),
        Line(f"{arrow}, learning rate only", task, Variant(to, rule="sqrt-eta")),
        Line(f"{arrow}, state zeroed", task, Variant(to, "with paper", zero_state=True)),
        Line(f"{' → '.join(f'{size:,}' for size in sizes)}", task, Variant(kappas[1], "with paper", ramp=stages)),
    ]
    return lines, settings_of(setting, options, task, sizes, start)


def switch_places(plan: Plan, sizes: Sequence[int]) -> tuple[int, list[int]]:
    """Return the samples before the switch, and before each further one of the ramp, in steps of all batch sizes."""
    samples = plan.samples
    assert samples is not None
    start = int(samples * SWITCHES[0]) // sizes[0] * sizes[0]
    unit = lcm(*sizes)
    shares = [SWITCHES[1] + (SWITCHES[2] - SWITCHES[1]) * i for i in range(len(sizes) - 2)]
    return start, [start + max(i + 1, round((samples * share - start) / unit)) * unit for i, share in enumerate(shares)]


def gaps(finals: Sequence[Final]) -> str:
    """Return the log-perplexities at the end, the paper's claim on them, and the largest gaps of the curves."""
    parts = [f"{finals[0].label}: {format_end('test loss', finals[0].end('test loss'))}"]
    parts += [
        f"{final.label}: {format_end('test loss', end)} ({format_gap('test loss', end)})"
        for final in finals[1:]
        for end in [final.end("test loss")]
    ]
    text = "validation log-perplexity at the end (less the base's) " + ", ".join(parts) + claim(finals)
    parts = [f"{final.label} {format_curve(final, 'test loss')}" for final in finals[1:]]
    return text + "; largest gap on the way, over the range of the base's curve: " + ", ".join(parts) if parts else text


def under_the_rule(finals: Sequence[Final]) -> list[Final]:
    """Return the lines under the whole rule, without the base and SVAG."""
    return [final for final in finals[1:] if not final.label.endswith(OFF_RULE) and not final.label.startswith("SVAG")]


def judge(finals: Sequence[Final]) -> Outcome:
    """Return whether the log-perplexities under the rule are as close as in the paper; one seed decides nothing."""
    return judge_ends([final.end("test loss") for final in under_the_rule(finals)], CLAIMED)


def headline(net: str, finals: Sequence[Final]) -> str:
    """Return where lines under the rule and the learning rate alone end: of all batch sizes, or of a switch."""
    base = finals[0].batch_size
    if finals[0].label.endswith("kept"):
        told = {"converted, it ends": "everything converted", "with the learning rate alone": OFF_RULE[0]}
        ends = {text: final for text, label in told.items() for final in finals if final.label.endswith(label)}
        return f"{net}, {finals[1].batch_size // base} times the batch in mid-run: {_ends(ends)}"
    ends = {f"{final.batch_size // base} times the batch": final for final in under_the_rule(finals)}
    for final in finals:
        if final.label.endswith(OFF_RULE[0]):
            ends["the learning rate alone"] = final
    return f"{net}, validation loss: {_ends(ends)}"


def _ends(finals: Mapping[str, Final]) -> str:
    """Return how much higher or lower lines end, the unit once."""
    parts = []
    for i, (text, final) in enumerate(finals.items()):
        gap = final.end("test loss").gap
        unit = "" if i else " nats"
        parts.append(
            f"{text} diverges" if gap is None else f"{text} {abs(gap):.3f}{unit} {'higher' if gap > 0 else 'lower'}"
        )
    return ", ".join(parts)


def claim(finals: Sequence[Final]) -> str:
    """Return whether the log-perplexities under the rule are as close as in the paper; nothing for SVAG."""
    ruled = under_the_rule(finals)
    if not ruled:
        return ""
    known = [(abs(gap), final.label) for final in ruled if (gap := final.end("test loss").gap) is not None]
    within = len(known) == len(ruled) and max(known)[0] <= CLAIMED and not any(final.diverged for final in ruled)
    return f"; under the rule {'' if within else 'not '}all within the paper's ± {CLAIMED:g} of the base" + (
        f" (largest at {max(known)[1]})" if known else ""
    )
