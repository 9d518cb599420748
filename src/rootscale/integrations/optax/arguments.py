"""The arguments of optax's optimizers at another batch size."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from rootscale.changes import ScalingWarning
from rootscale.format import show
from rootscale.hparams import Optimizer, positive
from rootscale.integrations.optax.schedules import scale_schedule
from rootscale.integrations.optax.spelling import MAKERS, Maker, Quantity, Rules, find_maker, rule_of
from rootscale.rules import Rule

__all__ = ["scale"]


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
        maker, arguments = _from_record(optimizer)
    else:
        maker = find_maker(optimizer)
    bound = inspect.signature(maker.function()).bind(**arguments)
    bound.apply_defaults()
    values = dict(bound.arguments)
    _check(maker, values)
    values |= {name: values[other] for name, other in maker.same_as.items() if values[name] is None}
    held = [one for one in maker.quantities(values) if values.get(one[0]) is not None]
    chosen = {family: rule_of(rule, family) for _, family, _ in held}
    new = _converted(maker, values, held, chosen, kappa)
    for option in maker.spelling.options:  # such as a schedule of what has no unit
        if callable(values[option]):
            new[option] = scale_schedule(values[option], kappa, option, rule=chosen[maker.family_of(values)])
    for message in _messages(values, held, chosen, kappa):
        warnings.warn(message, ScalingWarning, stacklevel=2)
    return {**values, **new}


def _check(maker: Maker, values: dict[str, Any]) -> None:
    """Refuse arguments with which the update is another one."""
    for key, allowed in maker.must_be.items():
        if values[key] not in allowed:
            raise ValueError(
                f"{maker.name} with {key}={values[key]!r}: {maker.why}; it has to be {' or '.join(map(repr, allowed))}"
            )
    if values["learning_rate"] is None:
        raise ValueError(f"{maker.name} without a learning_rate has none to convert; give one")


def _converted(
    maker: Maker, values: dict[str, Any], held: list[Quantity], chosen: dict[str, Rule], kappa: float
) -> dict[str, Any]:
    new: dict[str, Any] = {}
    for name, family, unit in held:
        after = _convert_argument(name, values[name], unit, kappa, chosen[family])
        if name in new and not math.isclose(new[name], after, rel_tol=1e-9):
            raise ValueError(
                f"{maker.name} has one {name} for two optimizers, which becomes {show(new[name])} for one of them and "
                f"{show(after)} for the other under {' and '.join(one.name for one in chosen.values())}; take rules "
                f"that agree on it, such as each one's own, or {name}=0"
            )
        new[name] = after
    return new


def _messages(values: dict[str, Any], held: list[Quantity], chosen: dict[str, Rule], kappa: float) -> Iterator[str]:
    """Yield what each rule warns of."""
    for family, rule in chosen.items():
        yield from rule.check(family)
        weights = {unit: values[name] for name, own, unit in held if own == family}
        yield from rule.check_averages(kappa, weights.get("beta1", 0.0), weights.get("beta2"))


def _from_record(record: Optimizer) -> tuple[Maker, dict[str, Any]]:
    """Return the row and the arguments of optax for a record."""
    known = [one for one in MAKERS.values() if one.family == record.name]
    if not known:
        names = dict.fromkeys(one.family for one in MAKERS.values() if one.takes_record)
        raise ValueError(f"optimizer must be one of {', '.join(names)}; got a record of {record.name}")
    maker = known[0]
    function = find_maker(maker.spelling.name).function()
    if not maker.takes_record:
        raise ValueError(
            f"{maker.name} has arguments that a record of {record.name} does not tell; call "
            f"scale({maker.spelling.name!r}, kappa, learning_rate=..., ...)"
        )
    defaults = inspect.signature(function).parameters
    for switched in (False, True):
        fields = {**maker.fields(switched), **maker.spelling.options}
        lacking = [name for name, value in vars(record).items() if value and name not in fields.values()]
        if not lacking:
            # optax says None, not 0, where there is nothing.
            named = {
                name: getattr(record, one, None) or (0.0 if defaults[name].default is not None else None)
                for name, one in fields.items()
            }
            return maker, named | ({maker.switch[0]: maker.switch[1]} if switched and maker.switch else {})
    if "weight_decay" in lacking:
        decay = vars(record)["weight_decay"]
        raise ValueError(
            f"{maker.name} has no L2 term (weight_decay={show(decay)} of the record); put "
            "optax.add_decayed_weights before it in a chain: it is part of the loss, and no rule changes it"
        )
    if lacking == ["eps"] or lacking == ["eps_root"]:
        raise ValueError(f"{maker.name} has one eps, inside the root or outside; the record has both")
    raise ValueError(f"{maker.name} has no argument for {', '.join(lacking)} of the record")


def _convert_argument(name: str, value: Any, unit: str, kappa: float, rule: Rule) -> Any:
    if callable(value):
        return scale_schedule(value, kappa, unit, rule=rule)
    after = float(rule.convert(unit, float(value), kappa, name))
    return int(after) if isinstance(value, int) and after.is_integer() else after
