"""GPT: the square root rule, SVAG and a switch in mid-run, on WikiText, enwik8 or any folder of text.

The claim. 12-layer GPT on WikiText-103 with Adam, batch sizes 1,024 to 8,192 under the square root rule: "We achieve a
validation log perplexity of 5 ± 0.1 for all the batch sizes under consideration", with aligned trajectories ("except
8192 in the first half of the training") and gradient norms (appendix "Square Root Scaling Experiments", WikiText-103).
"SVAG converges and closely tracks Adam" on it, sequences of 64, betas .9 and .98 (appendix "SVAG Experiments"). The
paper has no switch in mid-run.

The paper's setting (``gpt-wikitext``). The appendix's table: lr 1e-3, betas .9875 and .996, eps 2e-8, weight decay 1e-4
at batch size 1,024, dropout .1, 12,500 steps of which 1,000 are a linear warm-up, then linear decay to 0; sequences of
128, windows of the text drawn with replacement, divided 9:1 at random. The smallest batch size that is asked for is the
base; it has the table's values converted to it by the rule. ``--epochs`` sets the length, and the warm-up keeps its
share; 18 epochs of WikiText-103 are the paper's 12,500 steps. Against the rule, at the largest batch: the learning rate
alone, and linear scaling. It takes WikiText-103, or else WikiText-2 (words; small enough to be learned by heart), or
any text files.

A small copy of it (``gpt-enwik8``, ``gpt-switch``, ``gpt-svag``): the same net on the bytes of enwik8, at batch sizes
128 times smaller and over 1 % of the samples, so that steps, betas and eps at the base are about the paper's: the
table's betas and eps are taken to hold at batch size 8, with lr 2e-4 there (at batch size 8 the paper's 1e-3 is much).

Cost. From 0.4 million tokens a second on one H200, which `rootscale reproduce --list` counts for one seed.

    rootscale reproduce gpt-enwik8 --device cuda --data FOLDER
    rootscale reproduce gpt-wikitext --epochs 18 --device cuda --data FOLDER
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from math import lcm

from rootscale.format import show
from rootscale.lab import Settings, Task, Variant
from rootscale.paper.experiment import Experiment, Line, Options
from rootscale.paper.finals import Final, format_curve, format_end, format_gap
from rootscale.paper.language import gpt, micro_batch
from rootscale.paper.parts import settings_for
from rootscale.paper.text import Tokens, chain, corpus, from_text, tokenise
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
OTHERWISE = ("learning rate only", "linear", "hyperparameters only", "state zeroed")


@lru_cache(maxsize=4)
def tokens_of(folder: str | None, name: str | None, kind: str | None = None, size: int | None = None) -> Tokens:
    """A corpus as numbers, cut up as usual or in another way (`rootscale.paper.text.tokenise`); it is read once."""
    return tokenise(corpus(folder, name), kind, size)


@lru_cache(maxsize=1)
def generated() -> Tokens:
    """A text for smoke tests."""
    return from_text(chain(30, 4000), name="chain")


def size_of(options: Options, size: int) -> int:
    """What a batch size is in this experiment: a smoke test makes all of them smaller."""
    if options.smoke and size % SHRINK:
        raise ValueError(f"batch sizes of a smoke test must be multiples of {SHRINK}, got {size}")
    return size // SHRINK if options.smoke else size


def sizes_of(options: Options) -> list[int]:
    """The batch sizes in order; the first is the base."""
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
        """Of the text."""
        if options.smoke:
            return self.smoke.tokens()
        return tokens_of(options.data, self.name, self.kind, self.vocabulary)

    def model(self, options: Options) -> str:
        """Its name."""
        return self.smoke.model if options.smoke else options.model

    def positions(self, options: Options) -> int:
        """The length of the sequences."""
        return self.smoke.length if options.smoke else self.length

    def task(self, options: Options, batch_size: int) -> Task:
        """At the base batch size."""
        return self.make(
            self.tokens(options),
            model=self.model(options),
            length=self.positions(options),
            epochs=options.epochs,
            batch_size=batch_size,
            recipe=self.recipe,
            eps=options.eps,
            eta=self.smoke.eta if options.smoke else self.eta,
            reference=1024 // SHRINK if options.smoke else self.reference,
        )


def settings_of(setting: Setting, options: Options, task: Task, sizes: Sequence[int], switch_at: int = 0) -> Settings:
    """What the runs have in common: on a GPU no more sequences at once than its memory takes."""
    if options.smoke:
        return settings_for(options, task.plan, sizes, switch_at, eval_samples=32)
    micro = micro_batch(task.train.length, setting.tokens(options).vocabulary.size)
    return settings_for(options, task.plan, sizes, switch_at, eval_samples=EVAL, micro=micro)


def scaling(setting: Setting, options: Options) -> tuple[list[Line], Settings]:
    """The base, each batch size under the rule, and two other rules at the largest."""
    sizes = sizes_of(options)
    task = setting.task(options, sizes[0])
    lines = [Line(f"B = {sizes[0]:,}", task)]
    lines += [Line(f"B = {size:,}", task, Variant(Fraction(size, sizes[0]))) for size in sizes[1:]]
    if len(sizes) > 1:
        to = Fraction(sizes[-1], sizes[0])
        lines.append(Line(f"B = {sizes[-1]:,}, learning rate only", task, Variant(to, rule="sqrt-eta")))
        lines.append(Line(f"B = {sizes[-1]:,}, linear", task, Variant(to, rule="linear")))
    return lines, settings_of(setting, options, task, sizes)


def svag(setting: Setting, options: Options) -> tuple[list[Line], Settings]:
    """The discrete run, and SVAG for each ell."""
    (size,) = sizes_of(options)[:1]
    task = setting.task(options, size)
    made = [Line(f"SVAG, ℓ = {show(ell)}", task, Variant(ell=ell)) for ell in options.ells if ell != 1]
    return [Line("discrete (ℓ = 1)", task), *made], settings_of(setting, options, task, [size])


def switch(setting: Setting, options: Options) -> tuple[list[Line], Settings]:
    """The batch kept, converted, the half-measures, and a ramp through all sizes."""
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
        Line(f"{arrow}, everything converted", task, Variant(to)),
        Line(f"{arrow}, hyperparameters only", task, Variant(to, "without v, step_counter")),
        Line(f"{arrow}, learning rate only", task, Variant(to, rule="sqrt-eta")),
        Line(f"{arrow}, state zeroed", task, Variant(to, zero_state=True)),
        Line(f"{' → '.join(f'{size:,}' for size in sizes)}", task, Variant(kappas[1], ramp=stages)),
    ]
    return lines, settings_of(setting, options, task, sizes, start)


def switch_places(plan: Plan, sizes: Sequence[int]) -> tuple[int, list[int]]:
    """Samples before the switch, and before each further one of the ramp, in whole steps of all batch sizes."""
    samples = plan.samples
    assert samples is not None
    start = int(samples * SWITCHES[0]) // sizes[0] * sizes[0]
    unit = lcm(*sizes)
    shares = [SWITCHES[1] + (SWITCHES[2] - SWITCHES[1]) * i for i in range(len(sizes) - 2)]
    return start, [start + max(i + 1, round((samples * share - start) / unit)) * unit for i, share in enumerate(shares)]


def gaps(finals: Sequence[Final]) -> str:
    """The log-perplexities at the end, the paper's claim on them, and the largest gap of their curves to the base's."""
    parts = [f"{finals[0].label}: {format_end('test loss', finals[0].end('test loss'))}"]
    parts += [
        f"{final.label}: {format_end('test loss', end)} ({format_gap('test loss', end)})"
        for final in finals[1:]
        for end in [final.end("test loss")]
    ]
    text = "validation log-perplexity at the end (less the base's) " + ", ".join(parts) + claim(finals)
    parts = [f"{final.label} {format_curve(final, 'test loss')}" for final in finals[1:]]
    return text + "; largest gap on the way, over the range of the base's curve: " + ", ".join(parts) if parts else text


def claim(finals: Sequence[Final]) -> str:
    """Whether the log-perplexities under the rule are as close to the base's as in the paper; nothing for SVAG."""
    ruled = [
        final for final in finals[1:] if not final.label.endswith(OTHERWISE) and not final.label.startswith("SVAG")
    ]
    if not ruled:
        return ""
    known = [(abs(gap), final.label) for final in ruled if (gap := final.end("test loss").gap) is not None]
    within = len(known) == len(ruled) and max(known)[0] <= CLAIMED and not any(final.diverged for final in ruled)
    return f"; under the rule {'' if within else 'not '}all within the paper's ± {CLAIMED:g} of the base" + (
        f" (largest at {max(known)[1]})" if known else ""
    )


def _experiment(
    name: str,
    title: str,
    claim: str,
    source: str,
    minutes: float,
    lines: Callable[[Options], tuple[list[Line], Settings]],
    defaults: Options,
    smoke: dict[str, object],
) -> Experiment:
    models = ("gpt-6", "gpt-4")
    return Experiment(
        name, title, claim, source, minutes, defaults, lines, gaps, models, smoke={"eps": defaults.eps, **smoke},
        measure="test loss",
    )  # fmt: skip


#: The appendix's eps at batch size 1,024.
EPS = 2e-8
SMALL = Setting("enwik8", reference=8, eta=2e-4)
_RULE = (
    "Validation log-perplexity 5 ± 0.1 at all batch sizes (WikiText-103); trajectories and gradient norms "
    "are close, except B = 8192 in the first half of the training"
)
_SVAG = "SVAG converges and closely tracks Adam"
_SWITCH = "Not in the paper: a change of batch size in mid-run, all of it converted, goes on as if nothing had changed"
_SCALING = "Section 5, figure on large scale experiments; appendix, Square Root Scaling Experiments, WikiText-103"

EXPERIMENTS = [
    _experiment(
        "gpt-enwik8",
        "GPT on enwik8",
        _RULE,
        _SCALING,
        4,
        partial(scaling, SMALL),
        Options(epochs=3 / 16, batch_sizes=(8, 32, 128), eps=EPS, model="gpt", points=16),
        {"batch_sizes": (1024, 4096), "epochs": 2},
    ),
    _experiment(
        "gpt-switch",
        "GPT on enwik8, a switch in mid-run",
        _SWITCH,
        "Theorem for Adam, which asks for a warm start",
        3,
        partial(switch, SMALL),
        Options(epochs=3 / 16, batch_sizes=(8, 32, 128), eps=EPS, model="gpt", points=12),
        {"batch_sizes": (1024, 2048, 4096), "epochs": 2},
    ),
    _experiment(
        "gpt-svag",
        "SVAG: GPT on enwik8",
        _SVAG,
        "Appendix, SVAG Experiments, WikiText-103 (GPT)",
        2,
        partial(svag, Setting("enwik8", "gpt-svag", 64, reference=32, eta=5e-4)),
        Options(epochs=1 / 32, batch_sizes=(32,), eps=EPS, model="gpt", ells=(1.0, 2.0), points=12),
        {"batch_sizes": (1024,), "epochs": 1, "ells": (1.0, 2.0)},
    ),
    _experiment(
        "gpt-wikitext",
        "GPT on WikiText",
        _RULE,
        _SCALING,
        400,
        partial(scaling, Setting()),
        Options(epochs=18, batch_sizes=(1024, 2048, 4096, 8192), eps=EPS, model="gpt"),
        {"batch_sizes": (1024, 4096), "epochs": 4},
    ),
]
