"""Numbers for a run of more or fewer tokens: published rules, side by side. None of them is a default.

A change of batch size keeps a run. Another number of tokens makes another run, and no symmetry says what is best for
it: that has been fitted, in other places to other models. With ``kappa`` times the batch and ``delta`` times the tokens
a rule multiplies the learning rate, decoupled decay and so on by powers of both. What a source does not say is
converted to the batch size by the optimizer's own rule, and left alone for the tokens. The schedule is stretched:
warm-up and decay keep their shares of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rootscale.format import few_digits, listed, show
from rootscale.sizes import Count, read_amount, samples_of

if TYPE_CHECKING:
    from rootscale.batch_size import BatchSize
    from rootscale.plan import Plan
    from rootscale.units import Number

__all__ = ["horizons"]

#: The status of every row: somebody else's, and not derived or measured here.
STATUS = "published"


@dataclass(frozen=True)
class HorizonRule:
    """A published rule for another number of tokens.

    Args:
        source: where it is from.
        why: what it rests on, in a sentence.
        powers: of ``kappa`` and of ``delta`` that each field is multiplied by; of a beta, ``1 - beta``.
        batch: the power of ``delta`` by which the batch size itself is to grow; None where the source does not say.
        optimizers: that it was made for.
    """

    source: str
    why: str
    powers: Mapping[str, tuple[float, float]]
    batch: float | None = None
    optimizers: tuple[str, ...] = ("adam", "adamw")


#: The exponent of the best timescale over tokens per parameter in arXiv 2505.13738.
_POWER_LINES = -0.527
#: Every rule by its name.
HORIZONS: Mapping[str, HorizonRule] = MappingProxyType(
    {
        "timescale": HorizonRule(
            "arXiv 2405.13698",
            "the average of updates that decay makes, B / (lr decay D) of the run, keeps its length",
            {"eta": (0, 0), "weight_decay": (1, -1)},
        ),
        "power-lines": HorizonRule(
            "arXiv 2505.13738",
            f"that length, as fitted, is best at (D / parameters)^{_POWER_LINES}; the best batch at D^0.383",
            {"eta": (0, 0), "weight_decay": (1, -1 - _POWER_LINES)},
            0.383,
        ),
        "nanochat": HorizonRule(
            "karpathy/nanochat, scripts/base_train.py",
            "the learning rate by the batch alone, and the timescale kept; the best batch of arXiv 2505.13738",
            {"eta": (0.5, 0), "weight_decay": (0.5, -1)},
            0.383,
            ("adam", "adamw", "muon"),
        ),
        "marin": HorizonRule(
            "marin-community/marin, experiments/grug",
            "fitted learning rates of sweeps over tokens; says nothing of decay",
            {"eta": (0.5, -0.3), "eps": (-0.5, 0.5)},
        ),
        "completed-p": HorizonRule(
            "arXiv 2512.22382",
            "a longer run is taken as a smaller batch: the square root rule at kappa / delta",
            {
                "eta": (0.5, -0.5), "weight_decay": (0.5, -0.5), "eps": (-0.5, 0.5), "beta1": (1, -1), "beta2": (1, -1),
            },
        ),
    }
)  # fmt: skip


@dataclass(frozen=True)
class Horizon:
    """What one rule makes of a plan.

    Args:
        name: of the rule.
        rule: itself.
        plan: at the other batch size and number of tokens.
        batch_size: the one that the rule would choose for so many tokens, in samples; None where it does not say.
    """

    name: str
    rule: HorizonRule
    plan: Plan
    batch_size: Count | float | None

    def to_dict(self) -> dict[str, Any]:
        """Return it in JSON's types."""
        size = None if self.batch_size is None else float(self.batch_size)
        return {
            "rule": self.name, "source": self.rule.source, "status": STATUS, "why": self.rule.why,
            "batch_size_of_the_rule": size, "plan": self.plan.to_dict(),
        }  # fmt: skip


@dataclass(frozen=True)
class Horizons:
    """A plan at another number of tokens by every published rule for its optimizer.

    Args:
        before: the plan.
        delta: how many times the tokens.
        rows: a rule each.
    """

    before: Plan
    delta: Fraction
    rows: tuple[Horizon, ...]

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """The least and the largest value that the rules give to each number that they disagree on."""
        names = [f.name for f in fields(self.before.optimizer)]
        values = {name: [getattr(row.plan.optimizer, name) for row in self.rows] for name in names}
        numbers = {name: found for name, found in values.items() if all(_is_number(value) for value in found)}
        return {name: (min(found), max(found)) for name, found in numbers.items() if min(found) < max(found)}

    def __str__(self) -> str:
        ranges = [f"{name} {few_digits(low, 5)} to {few_digits(high, 5)}" for name, (low, high) in self.ranges.items()]
        disagree = f"they disagree: {listed(ranges)}" if ranges else "they agree"
        return f"{show(self.delta)} times the tokens, by {listed([row.name for row in self.rows])}; {disagree}"

    def to_dict(self) -> dict[str, Any]:
        """Return it in JSON's types."""
        return {
            "delta": float(self.delta),
            "ranges": {name: list(ends) for name, ends in self.ranges.items()},
            "rows": [row.to_dict() for row in self.rows],
        }


def horizons(plan: Plan, batch_size: BatchSize | Number | str | None, tokens: Any) -> Horizons:
    """Return a plan at another number of tokens (and batch size) by every published rule for its optimizer.

    >>> from rootscale import AdamW, Plan
    >>> plan = Plan(AdamW(3e-4, 0.9, 0.95, weight_decay=0.1), 256, steps=1000, sequence_length=2048)
    >>> {row.name: round(row.plan.optimizer.weight_decay, 4) for row in horizons(plan, None, 4 * plan.tokens).rows}
    {'timescale': 0.025, 'power-lines': 0.0519, 'nanochat': 0.025, 'marin': 0.1, 'completed-p': 0.05}
    """
    before = plan.samples
    if before is None:
        raise ValueError(f"tokens={tokens!r} needs the length of the run as it is: give the plan steps")
    samples = _length(plan, tokens)
    size = plan.batch_size if batch_size is None else plan.batch_size.at(batch_size)
    delta, kappa = Fraction(samples) / Fraction(before), plan.kappa(size)
    usable = {name: rule for name, rule in HORIZONS.items() if plan.optimizer.name in rule.optimizers}
    if not usable:
        known = dict.fromkeys(name for rule in HORIZONS.values() for name in rule.optimizers)
        raise ValueError(
            f"there is no published rule for other numbers of tokens with {plan.optimizer.name}, only with "
            f"{listed(list(known))}"
        )
    rows = []
    for name, rule in usable.items():
        best = None if rule.batch is None else float(plan.batch_size.total) * float(delta) ** rule.batch
        rows.append(Horizon(name, rule, _by_rule(plan, rule, size, kappa, delta, samples), best))
    return Horizons(plan, delta, tuple(rows))


def at_horizon(plan: Plan, batch_size: BatchSize | Number | str | None, tokens: Any, rule: str | None) -> Plan:
    """Return a plan at another number of tokens by one published rule, which has to be named."""
    if rule is not None and rule not in HORIZONS:
        raise ValueError(f"horizon must be one of {', '.join(HORIZONS)}, got {rule!r}")
    found = horizons(plan, batch_size, tokens)
    chosen = {row.name: row.plan for row in found.rows}
    if rule is None:
        raise ValueError(
            f"tokens={tokens!r} makes another run, and none of the published rules for it is a default: choose one "
            f"with horizon={' or '.join(map(repr, chosen))}. {found}"
        )
    if rule not in chosen:
        raise ValueError(
            f"horizon={rule!r} is for {listed(list(HORIZONS[rule].optimizers))}, got {plan.optimizer.name}; those for "
            f"it are {', '.join(chosen)}"
        )
    return chosen[rule]


def _length(plan: Plan, tokens: Any) -> Count:
    """Return a length in samples, given in tokens, or as a text with another unit."""
    amount = read_amount(tokens)
    text = tokens if amount.unit else f"{tokens} tokens"
    return samples_of("tokens", text, plan.sequence_length)


def _by_rule(plan: Plan, rule: HorizonRule, size: BatchSize, kappa: Fraction, delta: Fraction, samples: Count) -> Plan:
    converted = plan.convert(size).plan
    optimizer, values = plan.optimizer, dict[str, float]()
    for name, (by_batch, by_tokens) in rule.powers.items():
        value: Any = getattr(optimizer, name, None)
        if not _is_number(value):
            continue
        factor = float(kappa) ** by_batch * float(delta) ** by_tokens
        values[name] = 1 - (1 - float(value)) * factor if name in ("beta1", "beta2") else value * factor
        if name in ("beta1", "beta2") and values[name] < 0:
            values[name] = getattr(converted.optimizer, name)  # the floors of our own rule
    new = replace(converted.optimizer, **values)
    stretched = {
        f.name: _stretched(getattr(converted.schedule, f.name), delta)
        for f in fields(plan.schedule)
        if f.metadata.get("unit") in ("steps", "warmup", "schedule")
    }
    lowest = converted.schedule.min_eta * new.eta / converted.optimizer.eta
    schedule = replace(converted.schedule, **stretched, min_eta=lowest)
    steps = Fraction(samples) / Fraction(size.total)
    return replace(converted, optimizer=new, schedule=schedule, steps=steps, epochs=None)


def _stretched(value: Any, delta: Fraction) -> Any:
    if isinstance(value, tuple):
        return tuple(item * delta for item in value)
    return None if value is None else value * delta


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
