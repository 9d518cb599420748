"""The arguments of optax's optimizers at another batch size, and its schedules."""

from __future__ import annotations

import importlib
import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import jax.numpy as jnp

from rootscale.changes import ScalingWarning
from rootscale.documents import Quantity, Values, convert
from rootscale.format import show
from rootscale.hparams import DOMAINS, Optimizer, average, positive
from rootscale.rules import Rule, get_rule
from rootscale.spellings import Options, Spelling
from rootscale.spellings.optax import FUNCTIONS, Argument, quantities

#: A rule for everything, or one for each family by its name; None is each one's own.
Rules = str | Rule | Mapping[str, str | Rule | None] | None
#: The rows of a function of optax, one for each family that it makes.
Rows = tuple[Spelling, ...]
Schedule = Callable[[Any], Any]
#: Families whose functions have arguments that a record does not tell.
_NOT_BY_RECORD = ("nadam", "adagrad", "adafactor", "lars")


def rule_of(rule: Rules, family: str) -> Rule:
    """Return the rule of a family."""
    return get_rule(rule.get(family) if isinstance(rule, Mapping) else rule, family)


def _full_name(row: Spelling) -> str:
    return f"{row.package}.{row.name}"


def _function(row: Spelling) -> Any:
    """Return the function of a row; None where this version of optax has none."""
    return getattr(importlib.import_module(row.package), row.name, None)


def find_rows(optimizer: Any) -> Rows:
    """Return the rows of a function of optax, given by its name or itself."""
    for name, rows in FUNCTIONS.items():
        function = _function(rows[0])
        if optimizer == name or (function is not None and optimizer is function):
            if function is None:
                raise ValueError(f"this version of optax has no {_full_name(rows[0])}")
            return rows
    got = optimizer if isinstance(optimizer, str) else getattr(optimizer, "__name__", repr(optimizer))
    raise ValueError(f"optimizer must be one of {', '.join(FUNCTIONS)}, or a record of rootscale; got {got!r}")


def scale(
    optimizer: str | Optimizer | Callable[..., Any],
    kappa: float,
    *,
    rule: Rules = None,
    **arguments: Any,
) -> dict[str, Any]:
    """Return the arguments of an optax optimizer at ``kappa`` times the batch size, defaults included.

    ``learning_rate`` and ``weight_decay`` may be schedules (`scale_schedule`). ``eps`` of Adam is added to ``sqrt(v)``
    and becomes ``eps * kappa^(-1/2)``; ``eps_root``, and ``eps`` of RMSprop unless ``eps_in_sqrt=False``, are added to
    ``v`` and become ``eps / kappa``. ``weight_decay`` of ``optax.adamw`` is decoupled: ``* kappa^(1/2)``. The Adam
    beside ``optax.contrib.muon`` follows its own rule.

    Args:
        optimizer: a function of optax such as ``optax.adamw`` or ``optax.contrib.muon``, its name, or a record such as
            `rootscale.AdamW`, which has the arguments in it.
        kappa: new batch size over old one.
        rule: a rule or its text, or one for each family by its name; None is the optimizer's own.
        arguments: of the optimizer, as the run has them now.

    >>> import optax
    >>> new = scale(optax.adamw, 4, learning_rate=3e-4, b1=0.9, b2=0.95, weight_decay=0.1)
    >>> [float(f"{new[name]:.6g}") for name in ("learning_rate", "b1", "b2", "eps", "weight_decay")]
    [0.0006, 0.9, 0.9, 5e-09, 0.2]
    >>> transformation = optax.adamw(**new)
    """
    kappa = positive("kappa", kappa)
    if isinstance(optimizer, Optimizer):
        if arguments:
            raise ValueError(f"the record holds the arguments; got {', '.join(arguments)} besides")
        rows, arguments = _from_record(optimizer)
    else:
        rows = find_rows(optimizer)
    bound = inspect.signature(_function(rows[0])).bind(**arguments)
    bound.apply_defaults()
    values = dict(bound.arguments)
    _check(rows[0], values)
    if values.get("adam_learning_rate", ...) is None:  # of muon, whose Adam then has the same
        values["adam_learning_rate"] = values["learning_rate"]
    held = [quantity for quantity in quantities(rows, values) if values.get(quantity[0]) is not None]
    chosen = {family: rule_of(rule, family) for _, family, _ in held}
    new = _converted(rows[0], values, held, chosen, kappa)
    with_unit = {name for name, _, _ in held}
    for option in rows[0].values.keys() - with_unit:  # such as a schedule of what has no unit
        if callable(values[option]):
            new[option] = scale_schedule(values[option], kappa, option, rule=next(iter(chosen.values())))
    for message in _messages(values, held, chosen, kappa):
        warnings.warn(message, ScalingWarning, stacklevel=2)
    return {**values, **new}


def _check(row: Spelling, values: Options) -> None:
    """Refuse arguments with which the update is another one."""
    if row.check is not None:
        try:
            row.check(values)
        except ValueError as error:
            raise ValueError(f"{_full_name(row)} with {error}") from None
    if values["learning_rate"] is None:
        raise ValueError(f"{_full_name(row)} without a learning_rate has none to convert; give one")


def _converted(
    row: Spelling, values: Mapping[str, Any], held: list[Argument], chosen: dict[str, Rule], kappa: float
) -> dict[str, Any]:
    new: dict[str, Any] = {}
    document = Values(values)
    for name, family, unit in held:
        if callable(values[name]):
            new[name] = scale_schedule(values[name], kappa, unit, rule=chosen[family])
            continue
        (change,) = convert(document, [Quantity(name, unit)], chosen[family], kappa)
        after = float(change.after or 0)
        after = int(after) if isinstance(values[name], int) and after.is_integer() else after
        if name in new and not math.isclose(new[name], after, rel_tol=1e-9):
            raise ValueError(
                f"{_full_name(row)} has one {name} for two optimizers, which becomes {show(new[name])} for one of "
                f"them and {show(after)} for the other under {' and '.join(rule.name for rule in chosen.values())}; "
                f"take rules that agree on it, such as each one's own, or {name}=0"
            )
        new[name] = after
    return new


def _messages(values: dict[str, Any], held: list[Argument], chosen: dict[str, Rule], kappa: float) -> Iterator[str]:
    """Yield what each rule warns of."""
    for family, rule in chosen.items():
        yield from rule.check(family)
        weights = {unit: values[name] for name, own, unit in held if own == family}
        yield from rule.check_averages(kappa, weights.get("beta1", 0.0), weights.get("beta2"))


def _from_record(record: Optimizer) -> tuple[Rows, dict[str, Any]]:
    """Return the rows and the arguments of optax for a record."""
    known = [rows for rows in FUNCTIONS.values() if rows[0].family == record.name]
    if not known:
        families = dict.fromkeys(rows[0].family for rows in FUNCTIONS.values())
        names = ", ".join(family for family in families if family not in _NOT_BY_RECORD)
        raise ValueError(f"optimizer must be one of {names}; got a record of {record.name}")
    rows = find_rows(known[0][0].name)
    name = _full_name(rows[0])
    if record.name in _NOT_BY_RECORD:
        raise ValueError(
            f"{name} has arguments that a record of {record.name} does not tell; call "
            f"scale({rows[0].name!r}, kappa, learning_rate=..., ...)"
        )
    defaults = {key: one.default for key, one in inspect.signature(_function(rows[0])).parameters.items()}
    choices: list[dict[str, Any]] = [{}, {"eps_in_sqrt": False}] if "eps_in_sqrt" in defaults else [{}]
    for options in choices:
        arguments = _arguments(record, rows, {**defaults, **options})
        lacking = [key for key, value in vars(record).items() if value and key not in arguments.values()]
        if not lacking:
            # optax says None, not 0, where there is nothing.
            return rows, options | {
                key: getattr(record, held, None) or (0.0 if defaults[key] is not None else None)
                for key, held in arguments.items()
            }
    if "weight_decay" in lacking:
        decay = vars(record)["weight_decay"]
        raise ValueError(
            f"{name} has no L2 term (weight_decay={show(decay)} of the record); put "
            "optax.add_decayed_weights before it in a chain: it is part of the loss, and no rule changes it"
        )
    if lacking == ["eps"] or lacking == ["eps_root"]:
        raise ValueError(f"{name} has one eps, inside the root or outside; the record has both")
    raise ValueError(f"{name} has no argument for {', '.join(lacking)} of the record")


def _arguments(record: Optimizer, rows: Rows, options: Options) -> dict[str, str]:
    """Return the arguments that hold fields of a record, by their names, as far as they are the family's own."""
    row = next(row for row in rows if row.family == record.name)
    units = {name: unit for name, family, unit in quantities(rows, options) if family == record.name}
    beside_values = {name: unit for name, unit in units.items() if name not in row.values and name not in row.state}
    return {**{name: str(held) for name, held in row.values.items()}, **beside_values}


# ---- schedules, functions of the count of steps


def scale_schedule(schedule: Schedule, kappa: float, unit: str = "eta", *, rule: str | Rule | None = None) -> Schedule:
    """Return a schedule at ``kappa`` times the batch size: at equal samples, the converted value of the original one.

        new(k) = sqrt(kappa) * old(k * kappa)

    for a learning rate under the square root rule. The new schedule takes integers, and the fractional counts that
    `rescale` may leave.

    Args:
        schedule: a function of the count of steps.
        kappa: new batch size over old one.
        unit: a row of the table of units; ``eta`` for a learning rate, ``decoupled_decay`` for AdamW's decay.
        rule: a rule or its text; None is that of Adam.

    >>> import optax
    >>> warmup = optax.linear_schedule(0.0, 0.1, transition_steps=100)
    >>> round(float(warmup(20)), 6), round(float(scale_schedule(warmup, 4)(5)), 6)
    (0.02, 0.04)
    """
    kappa = positive("kappa", kappa)
    if DOMAINS.get(unit) is average or unit in ("ema", "batchnorm"):
        raise ValueError(f"a schedule of {unit} cannot be checked at every step; give a number, or convert it yourself")
    chosen = get_rule(rule, "adam")
    if kappa == 1:
        return schedule
    exact = exact_kappa(kappa)
    factor = float(chosen.convert(unit, 1.0, kappa))
    return lambda count: factor * schedule(_old_count(count, exact))


def exact_kappa(kappa: float) -> Fraction:
    """Return the fraction that a kappa stands for: 1/3, not the float next to it."""
    return Fraction(kappa).limit_denominator(10**6)


def floating(value: Any) -> bool:
    """Whether a count or a hyperparameter is a floating-point number."""
    return bool(jnp.issubdtype(jnp.asarray(value).dtype, jnp.floating))


def _old_count(count: Any, kappa: Fraction) -> Any:
    """``count * kappa``: an integer where it can be, and free of rounding where it is nearly one."""
    if kappa.denominator == 1 and not floating(count):
        return count * kappa.numerator
    old = count * float(kappa)
    whole = jnp.round(old)
    return jnp.where(jnp.abs(old - whole) < 1e-3, whole, old)
