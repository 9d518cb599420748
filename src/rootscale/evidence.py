"""What was measured: how far runs of each optimizer were off when their batch size changed, and what follows from it.

``evidence.csv`` beside this module has a row for each run that was compared with the run it should be. It is written
from the stored studies by ``experiments/evidence.py`` and by nothing else, and every statement about how far a rule
holds is made from it: warnings, the last line of a table, the calculator, the table in docs/how-far.md.

A *case* is a net, an optimizer with its betas and a kappa; where several studies have one, it counts once.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from rootscale.format import few_digits, listed, show
from rootscale.messages import say
from rootscale.optimizers import FAMILIES

What = Literal["everything", "learning rate", "nothing", "null", "other"]

#: Families whose runs are evidence for each other: the update is the same but for the decay.
_KIN: Mapping[str, tuple[str, ...]] = {"adam": ("adam", "adamw"), "adamw": ("adam", "adamw")}
#: What is said of a large change where a family has no runs of its own.
USUAL = "adamw"
_VERDICTS = ("same", "undecided", "different")


@dataclass(frozen=True)
class Row:
    """One arm of a study, compared with its base.

    Args:
        study: its name in ``results``.
        net: what is trained, in words.
        family: of the optimizer.
        beta1, beta2: at the batch size before; Lion's and Muon's too, NaN where there is none.
        kappa: new batch size over old one, at the end of a ramp.
        batch: the old batch size.
        switched: whether the batch changed in mid-run; otherwise runs from scratch are compared.
        stages: how many times it changed; 1 is at once.
        late: whether it stayed for some time after the switch.
        batchnorm, ema: whether the net has BatchNorm, and whether its weights are averaged.
        what: whether everything was converted by the family's own rule, the learning rate alone, or nothing; ``null``
            is the same run with other samples.
        rule: as text.
        steps: made after the change.
        where: on the ``curve`` or at its ``end`` the gap is.
        gap: the largest distance of the two loss curves, or that at their end, as a share of how far the loss falls;
            infinite where a run diverged.
        se: its standard error; NaN for one seed.
        n: seeds.
        verdict: of the judge; empty for one seed.
        noise: new batch size over the noise scale at the switch; NaN where that is not known.
        edge: ``kappa eta h`` over its bound at the beta1 after the change, likewise (`rootscale.training.stability`).
    """

    study: str
    net: str
    family: str
    beta1: float
    beta2: float
    kappa: float
    batch: float
    switched: bool
    stages: int
    late: bool
    batchnorm: bool
    ema: bool
    what: What
    rule: str
    steps: float
    where: str
    gap: float
    se: float
    n: int
    verdict: str
    noise: float = math.nan
    edge: float = math.nan

    @property
    def case(self) -> tuple[Any, ...]:
        """What is measured, by whichever study."""
        betas = tuple(None if math.isnan(beta) else beta for beta in (self.beta1, self.beta2))
        way = self.switched, self.stages, self.late, self.batchnorm, self.ema, self.what
        return self.net, self.family, betas, self.kappa, *way, "" if self.what != "other" else self.rule


def _read() -> Iterator[Row]:
    text = files("rootscale").joinpath("evidence.csv").read_text(encoding="utf-8")
    kinds: dict[str, Any] = {"bool": lambda cell: cell == "yes", "float": lambda cell: float(cell or "nan"), "int": int}
    for record in csv.DictReader(text.splitlines()):
        values = {name: kinds.get(Row.__annotations__[name], str)(cell) for name, cell in record.items()}
        yield Row(**values)


@cache
def _rows() -> tuple[Row, ...]:
    return tuple(_read())


def cases(rows: Iterable[Row]) -> list[Row]:
    """Return one row for each case: that of the most seeds, and of those the first."""
    best: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if row.case not in best or row.n > best[row.case].n:
            best[row.case] = row
    return list(best.values())


def cases_of(family: str | None = None, **fields: Any) -> list[Row]:
    """Return the cases of a family, or of all, that have these fields.

    >>> {row.verdict for row in cases_of("muon", what="everything", kappa=16)}
    {'different'}
    """
    kin = _KIN.get(family or "", (family,))
    return cases(
        row
        for row in _rows()
        if (family is None or row.family in kin) and all(getattr(row, name) == value for name, value in fields.items())
    )


@dataclass(frozen=True)
class Seen:
    """Says in words what came out of some cases.

    Args:
        rows: of the cases; one at least.
    """

    rows: tuple[Row, ...]

    def __len__(self) -> int:
        """Return how many cases there are."""
        return len(self.rows)

    def count(self, verdict: str) -> int:
        """Return how many cases have a verdict."""
        return sum(row.verdict == verdict for row in self.rows)

    @property
    def lost(self) -> bool:
        """Whether most of the cases became another run."""
        return self.count("different") > len(self) / 2

    @property
    def gaps(self) -> str:
        """The smallest and the largest gap, in percent of how far the loss falls."""
        low, high = (_percent(f(abs(row.gap) for row in self.rows)) for f in (min, max))
        return f"{low} to {high} %" if low != high else f"{high} %"

    @property
    def families(self) -> str:
        """Whose cases they are."""
        return listed([FAMILIES[name].record.__name__ for name in sorted({row.family for row in self.rows})])

    @property
    def what(self) -> str:
        """How many cases, of which optimizers and nets, with how many seeds."""
        nets = ", ".join(dict.fromkeys(row.net for row in self.rows))
        seeds = sorted({row.n for row in self.rows})
        n = f"n = {seeds[0]}" + (f" to {seeds[-1]}" if len(seeds) > 1 else "")
        return f"{len(self)} {'case' if len(self) == 1 else 'cases'} of {self.families} ({nets}; {n})"

    @property
    def verdicts(self) -> str:
        """How many cases have each verdict."""
        return ", ".join(f"{self.count(verdict)} {verdict}" for verdict in _VERDICTS if self.count(verdict))


def _percent(share: float) -> str:
    return f"{100 * share:.0f}" if share >= 0.1 else few_digits(100 * share, 2)


@dataclass(frozen=True)
class Answer:
    """What is known of changes of the batch size up to a kappa.

    Args:
        kappa: up to which; infinite for the last one.
        promise: what was measured, for the last line of a table.
        doubt: a warning, in which ``{kappa}`` stands for that of the change; empty where there is none.
    """

    kappa: float
    promise: str
    doubt: str = ""


@cache
def answers(family: str, rule: str, batchnorm: bool = False) -> tuple[Answer, ...]:
    """Return what is known of a family under a rule: the first for smaller batches, then by kappa.

    Args:
        family: of the optimizer.
        rule: its name. For the family's own rule, evidence are the runs that were converted as that rule does now.
        batchnorm: whether only nets with BatchNorm count.
    """
    row, rows = FAMILIES[family], _rows_of(family, rule)
    rows = [one for one in rows if one.batchnorm] or rows if batchnorm else rows
    bins, missing = _bins(rows), say("not measured", family=row.record.__name__, rule=rule)
    smaller = say("smaller") + _from_scratch(rows, lambda kappa: kappa < 1)
    if not bins:
        found = [Answer(1.0, missing), Answer(math.inf, missing)]
        own = FAMILIES[USUAL].rules[0]
        if not _keeps(family, rule) or (family, rule) == (USUAL, own):
            return tuple(found)
        usual = answers(USUAL, own, batchnorm)
        return found[0], *(Answer(one.kappa, missing, one.doubt) for one in usual[1:])
    found = [
        Answer(
            kappa,
            say("seen", kappa=show(kappa), what=seen.what, gaps=seen.gaps, verdicts=seen.verdicts)
            + _from_scratch(rows, lambda other, kappa=kappa: other == kappa),  # type: ignore[misc]
            _doubt(family, rule, bins, kappa),
        )
        for kappa, seen in bins.items()
    ]
    last = found[-1]
    beyond = Answer(math.inf, last.promise, last.doubt or _doubt(family, rule, bins, math.inf))
    return Answer(1.0, smaller), *found, beyond


def _rows_of(family: str, rule: str) -> list[Row]:
    """Return the judged cases of a family under a rule; for its own, those that were converted as it does now."""
    own = rule == FAMILIES[family].rules[0]
    rows = [row for row in cases_of(family) if (own and row.what == "everything") or row.rule == rule]
    return [row for row in rows if row.verdict]


def _bins(rows: Iterable[Row]) -> dict[float, Seen]:
    """Return the cases that changed at once in mid-run, by kappa."""
    at_once = [row for row in rows if row.switched and row.stages == 1 and not row.late and row.kappa > 1]
    kappas = sorted({row.kappa for row in at_once})
    return {kappa: Seen(tuple(row for row in at_once if row.kappa == kappa)) for kappa in kappas}


def _from_scratch(rows: Iterable[Row], at: Callable[[float], bool]) -> str:
    seen = Seen(tuple(row for row in rows if not row.switched and at(row.kappa)))
    return " " + say("from scratch", gaps=seen.gaps, verdicts=seen.verdicts) if seen.rows else ""


def _keeps(family: str, rule: str) -> bool:
    """Return whether a rule is to keep the run, under whichever averaging."""
    return rule.partition(" ")[0] in FAMILIES[family].rules and " without " not in rule


def _doubt(family: str, rule: str, bins: Mapping[float, Seen], kappa: float) -> str:
    """Return the warning at a kappa: where most measured switches were lost, and beyond all that were measured."""
    if not _keeps(family, rule):
        return ""  # it promises nothing, and says so by itself
    largest = max((one for one, seen in bins.items() if not seen.lost), default=0.0)
    advice = say("smaller steps", largest=show(largest)) if largest else say("not this rule")
    if math.isinf(kappa):
        return say("unmeasured kappa", largest=show(max(bins)), kappa="{kappa}") + "; " + advice
    seen = bins[kappa]
    if not seen.lost:
        return ""
    words = {"lost": seen.count("different"), "count": len(seen), "families": seen.families, "gaps": seen.gaps}
    text = say("lost", kappa="{kappa}", measured=show(kappa), **words)
    nearer = _nearer(family, rule, seen) if not largest else ""
    return f"{text}; {nearer or advice}"


def _nearer(family: str, rule: str, seen: Seen) -> str:
    """Return which other rule of the family was nearest in most of these cases, if one was nearer in most."""
    best = ("", 0)
    for other in FAMILIES[family].rules:
        rows = {(row.study, row.kappa): abs(row.gap) for row in cases_of(family) if row.rule == other}
        nearer = sum(rows.get((row.study, row.kappa), math.inf) < abs(row.gap) for row in seen.rows)
        best = max(best, (other, nearer), key=lambda one: one[1]) if other != rule else best
    return say("nearer", rule=best[0], nearer=best[1], count=len(seen)) if best[1] > len(seen) / 2 else ""


def _answer(family: str, rule: str, kappa: float, batchnorm: bool) -> Answer:
    first, *rest = answers(family, rule, batchnorm)
    return first if kappa < 1 else next(one for one in rest if kappa <= one.kappa)


def promise(family: str, rule: str, kappa: float, batchnorm: bool = False) -> str:
    """Return what was measured of such a change, in a sentence or two; nothing for no change.

    >>> promise("soap", "sqrt", 4)
    'No switch of SOAP by the rule sqrt was measured in training; `rootscale check` measures yours.'
    """
    return "" if kappa == 1 else _answer(family, rule, kappa, batchnorm).promise


def summary(family: str) -> str:
    """Return how many switches of a family's own runs were measured under its own rule, and what came out.

    >>> summary("soap"), summary("muon")
    ('', '8 switches, 1 undecided, 7 different')
    """
    rows = [row for row in cases_of(family, what="everything", switched=True) if row.verdict and row.family == family]
    seen = Seen(tuple(rows))
    return f"{len(seen)} switches, {seen.verdicts}" if rows else ""


def doubts(family: str, rule: str, kappa: float, batchnorm: bool = False) -> list[str]:
    """Return the warning where a change is beyond what was measured to keep a run."""
    doubt = _answer(family, rule, kappa, batchnorm).doubt if kappa > 1 else ""
    return [doubt.format(kappa=show(kappa))] if doubt else []


def from_scratch(family: str, rule: str, kappa: float) -> list[str]:
    """Return the warning where runs that began at a larger batch became another run than those at the tuned one."""
    found = [row for row in _rows_of(family, rule) if not row.switched and row.kappa > 1 and row.where == "curve"]
    kappas = sorted({row.kappa for row in found})
    if not kappas or kappa <= 1:
        return []
    measured = next((one for one in kappas if kappa <= one), kappas[-1])
    seen = Seen(tuple(row for row in found if row.kappa == measured))
    words = {"lost": seen.count("different"), "count": len(seen), "families": seen.families, "gaps": seen.gaps}
    return [say("scratch", kappa=show(kappa), measured=show(measured), **words)] if seen.lost else []


@cache
def beyond_noise() -> str:
    """Return what came out of the switches that went beyond the noise scale of their run."""
    rows = [row for row in cases_of(what="everything", switched=True, stages=1, late=False) if row.noise > 1]
    seen = Seen(tuple(row for row in rows if row.verdict))
    return f"{seen.what}, {seen.gaps} off: {seen.verdicts}" if seen.rows else "nothing"


@cache
def fewest_steps() -> int:
    """Return the fewest steps after a switch, of the runs that did not become another one."""
    rows = [row for row in cases_of(what="everything") if row.switched and row.verdict in ("same", "undecided")]
    return math.floor(min(row.steps for row in rows))


def few_steps(steps: float, kappa: float) -> list[str]:
    """Return the warning where fewer steps are left than any run had that did not become another one."""
    if kappa <= 1 or steps >= fewest_steps():
        return []
    return [say("few steps", steps=show(math.ceil(steps)), least=fewest_steps())]
