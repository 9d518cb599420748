"""Let users add optimizers of their own: a class that makes a known update, or a row of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, make_dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any

import torch

from rootscale.degrees import Exponents
from rootscale.hparams import Optimizer
from rootscale.optimizers import Family, add_family, family
from rootscale.rules import RULES, Rule, add_rule
from rootscale.spellings import Fields, Spelling
from rootscale.training.adapters import add_row
from rootscale.training.averages import AverageKind, add_kind
from rootscale.units import KEPT, MOMENT, UNITS, Unit, power

#: A unit of the table by its key, several of them for a tuple such as betas, or a power of kappa.
Quantity = str | tuple[str, ...] | int | float | Fraction
_SOURCE = "registered by the user"
#: What an optimizer cannot be without; decay, eps and the like are absent where it has none.
_NEEDED = frozenset({"eta", "beta1", "beta2", "mu", "momentum_decay", "frequency"})


def register(
    cls: type[Any],
    like: str | None = None,
    *,
    decay: str = "",
    sums: bool = False,
    values: Mapping[str, Quantity] | None = None,
    state: Mapping[str, Quantity] | None = None,
    exponents: Exponents | None = None,
    rule: str = "sqrt",
    name: str | None = None,
    why: str = _SOURCE,
) -> Family | AverageKind:
    """Tell `Run` about a class of your own, an optimizer or an average of the parameters, and return its row.

    Check a row of your own with `rootscale.theory.toys.live_gaps` before you rely on it.

    Args:
        cls: the class; an optimizer counts with the ``step`` that it has now.
        decay: of an average of the parameters (EMA): the attribute with its decay. Nothing else is needed then.
        like: the family whose update it makes, under torch's names. Nothing else is needed then; a state or groups
            with other names are refused.
        sums: with ``like="muon"`` or ``"signum"``: whether its momentum sums gradients, ``b = mu b + g``.
        values: otherwise the hyperparameters of a group, each with its unit (``rootscale units`` lists the keys) or
            with a power of kappa.
        state: what it keeps for a parameter, in the same way.
        exponents: of `rootscale.degrees.count_degrees`: gives ``eta`` and ``decoupled_decay`` their powers, and
            ``state`` may then name its pieces. One that averages gradients over samples, as Adam's ``m``, follows
            ``beta1`` to its floor.
        rule: whose rows hold for everything else, such as schedules and parameter averages.
        name: of the family; None is that of the class in lower case.
        why: the derivation, in a sentence.

    >>> from rootscale.degrees import Piece, count_degrees
    >>> class Halved(torch.optim.Adagrad):
    ...     def step(self, closure=None): ...
    >>> counted = count_degrees({"s": Piece(2, "noise", "sum")}, {"g": 1, "s": Fraction(-1, 2)})
    >>> row = register(Halved, values={"lr": "eta", "eps": counted.eps["s"]}, state={"sum": "s"}, exponents=counted)
    >>> row.name, RULES["halved"].units["eta"].form.text, RULES["halved"].units["halved.sum"].form.text
    ('halved', 'x * kappa^(0)', 'x * kappa^(-2)')
    """
    if decay:
        if not isinstance(cls, type):
            raise TypeError(f"cls must be a class of parameter averages, got {cls!r}")
        kind = AverageKind(cls, decay)
        add_kind(kind)
        return kind
    if torch.optim.Optimizer not in getattr(cls, "__mro__", ()):
        raise TypeError(
            f"cls must be a class of torch optimizers, got {cls!r}; of an average of the parameters, give the name of "
            "its attribute with the decay: register(cls, decay='...')"
        )
    if like is not None:
        if values or state or exponents:
            raise ValueError("like takes a whole row; leave values, state and exponents out, or leave like out")
        row = family(like)
        if sums and "m_sum" not in row.state.values():
            raise ValueError(f"sums is for momentum that is normalised, of muon and signum; got like={like!r}")
        own = Spelling((cls.__name__,), row.name, package=cls.__module__, needs=_needed(row))
        if sums:
            summing = row.torch.summing()
            own = replace(own, values=summing.values, state=summing.state, unchanged=summing.unchanged)
        add_row(cls, own)
        return row
    if sums:
        raise ValueError("sums needs like='muon' or like='signum'")
    if not values or "lr" not in values:
        raise ValueError("register needs like=, or values= with at least {'lr': 'eta'}")
    if rule not in RULES:
        raise ValueError(f"rule must be one of {', '.join(RULES)}, got {rule!r}")
    name = name or cls.__name__.lower()
    custom: dict[str, Unit] = {} if exponents is None else dict(_counted(exponents, why))
    base = RULES[rule]
    pieces = {} if exponents is None else {name: _as_moment(exponents, name, base) for name in exponents.state}
    spelled: dict[str, Fields] = {key: _names(key, given) for key, given in values.items()}
    if not isinstance(values["lr"], str):
        custom |= _rate(values["lr"])
    units = [
        (field_name, _unit(name, field_name, unit, custom, {}, why))
        for key, given in values.items()
        if key != "lr"
        for field_name, unit in zip(_tuple(spelled[key]), _tuple(given), strict=True)
    ]
    record = _record(cls.__name__, name, tuple(units))
    held = {key: _unit(name, key, given, custom, pieces, why) for key, given in (state or {}).items()}
    spelling = Spelling((cls.__name__,), name, spelled, {key: key for key in held}, cls.__module__, needs=tuple(values))
    row = Family(
        name, record, (name if custom else rule,), held, spelling,
        "heuristic", _SOURCE, why,
    )  # fmt: skip
    add_family(row)
    summary = f"for {cls.__name__}, {_SOURCE}; else as {rule}"
    add_rule(Rule(name, summary, {**base.units, **custom}, base.adaptive) if custom else base)
    add_row(cls, spelling)
    return row


def _needed(row: Family) -> tuple[str, ...]:
    """Return the hyperparameters without which an optimizer is none of a family, or has them elsewhere."""
    return tuple(name for name, units in row.torch_units().items() if not _NEEDED.isdisjoint(_tuple(units)))


@cache
def _record(cls: str, name: str, units: tuple[tuple[str, str], ...]) -> type[Optimizer]:
    """Make the record of a class; the same for the same units, so that a cell of a notebook can be run again."""
    fields = [(key, float, field(metadata={"unit": unit}, default=0.0)) for key, unit in units]
    return make_dataclass(cls, fields, bases=(Optimizer,), frozen=True, namespace={"name": name})


def _counted(exponents: Exponents, why: str) -> Iterator[tuple[str, Unit]]:
    """Yield the rows that degree counting gives."""
    for key, exponent in (
        ("eta", exponents.eta),
        ("min_eta", exponents.eta),
        ("decoupled_decay", exponents.decoupled_decay),
    ):
        yield key, replace(UNITS[key], form=power(exponent), status="heuristic", source="degree counting", why=why)


def _rate(exponent: Any) -> dict[str, Unit]:
    """Return the rows of a learning rate with a power of its own."""
    return {
        key: replace(UNITS[key], form=power(Fraction(exponent)), status="heuristic", source=_SOURCE)
        for key in ("eta", "min_eta")
    }


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _names(key: str, given: Quantity) -> Fields:
    """Return the fields of the record that hold a hyperparameter; the learning rate is ``eta``."""
    if isinstance(given, tuple):
        stem = "beta" if key == "betas" else f"{key}_"
        return tuple(f"{stem}{i}" for i in range(1, len(given) + 1))
    return "eta" if key == "lr" else key


def _as_moment(exponents: Exponents, piece: str, rule: Rule) -> str | Fraction:
    """Return the power of a piece; or m's unit, where it averages gradients over the same samples as Adam's m does.

    Its power is 0 then, but where beta1 stops at its floor, it gets the noise level of that average.
    """
    alike = not exponents.state[piece] and exponents.windows[piece] == 1
    return "m" if alike and "m" in rule.units and rule.units["m"].form is MOMENT else exponents.state[piece]


def _unit(
    name: str, key: str, given: Any, custom: dict[str, Unit], pieces: Mapping[str, str | Fraction], why: str
) -> str:
    """Return the key of a unit; a power of kappa becomes a row of the user's own."""
    given = pieces.get(given, given) if isinstance(given, str) else given
    if isinstance(given, str):
        if given not in UNITS:
            raise ValueError(
                f"{key} must have a unit of the table or a power of kappa, got {given!r}; "
                f"the table has {', '.join(UNITS)}"
            )
        return given
    exponent = Fraction(given).limit_denominator(64)
    own = f"{name}.{key}"
    form = power(exponent) if exponent else KEPT
    custom[own] = Unit(own, f"{key} ({name})", form, "heuristic", _SOURCE, why)
    return own
