"""The arguments of optax's optimizers at another batch size."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import optax

from rootscale.changes import ScalingWarning
from rootscale.format import show
from rootscale.hparams import Optimizer, positive
from rootscale.integrations.optax.schedules import scale_schedule
from rootscale.integrations.optax.spelling import MAKERS, Maker
from rootscale.rules import Rule, get_rule

__all__ = ["scale"]


def scale(
    optimizer: str | Optimizer | Callable[..., Any],
    kappa: float,
    *,
    rule: str | Rule | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """Return the arguments of an optax optimizer at ``kappa`` times the batch size, defaults included.

    ``learning_rate`` and ``weight_decay`` may be schedules (`scale_schedule`). ``eps`` of Adam is added to ``sqrt(v)``
    and becomes ``eps * kappa^(-1/2)``; ``eps_root``, and ``eps`` of RMSprop unless ``eps_in_sqrt=False``, are added to
    ``v`` and become ``eps / kappa``. ``weight_decay`` of ``optax.adamw`` is decoupled: ``* kappa^(1/2)``.

    Args:
        optimizer: ``"adam"``, ``"adamw"``, ``"amsgrad"``, ``"rmsprop"``, ``"sgd"``, that function of optax, or a record
            such as `rootscale.AdamW`, which has the arguments in it.
        kappa: new batch size over old one.
        rule: a rule or its text; None is the optimizer's own.
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
        maker = _maker(optimizer)
    bound = inspect.signature(getattr(optax, maker.spelling.name)).bind(**arguments)
    bound.apply_defaults()
    values = dict(bound.arguments)
    for key, value in maker.must_be.items():
        if values[key] != value:
            raise ValueError(
                f"optax.{maker.spelling.name} with {key}={values[key]!r} follows no known SDE, so no rule keeps its "
                f"dynamics; it has to be {value!r}"
            )
    chosen = get_rule(rule, maker.family)
    messages = chosen.check(maker.family)
    new = {
        name: _convert_argument(name, values[name], unit, kappa, chosen)
        for name, unit in maker.units(values).items()
        if name in values and values[name] is not None
    }
    held = {one: values[name] for name, one in maker.fields().items() if name in values}
    messages += chosen.check_averages(kappa, held.get("beta1", 0.0), held.get("beta2", held.get("beta")))
    for message in messages:
        warnings.warn(message, ScalingWarning, stacklevel=2)
    return {**values, **new}


def _maker(optimizer: str | Callable[..., Any]) -> Maker:
    for name, maker in MAKERS.items():
        if optimizer == name or optimizer is getattr(optax, name):
            return maker
    got = optimizer if isinstance(optimizer, str) else getattr(optimizer, "__name__", repr(optimizer))
    raise ValueError(f"optimizer must be one of {', '.join(MAKERS)}, or a record of rootscale; got {got!r}")


def _from_record(record: Optimizer) -> tuple[Maker, dict[str, Any]]:
    """The row and the arguments of optax for a record."""
    if record.name not in MAKERS:
        raise ValueError(f"optimizer must be one of {', '.join(MAKERS)}; got a record of {record.name}")
    maker = MAKERS[record.name]
    defaults = inspect.signature(getattr(optax, record.name)).parameters
    for switched in (False, True):
        fields = maker.fields(switched)
        lacking = [name for name, value in vars(record).items() if value and name not in fields.values()]
        if not lacking:
            # optax says None, not 0, where there is nothing.
            named = {
                name: getattr(record, one) or (0.0 if defaults[name].default is not None else None)
                for name, one in fields.items()
            }
            return maker, named | ({maker.switch[0]: maker.switch[1]} if switched and maker.switch else {})
    if "weight_decay" in lacking:
        decay = vars(record)["weight_decay"]
        raise ValueError(
            f"optax.{record.name} has no L2 term (weight_decay={show(decay)} of the record); put "
            "optax.add_decayed_weights before it in a chain: it is part of the loss, and no rule changes it"
        )
    raise ValueError(f"optax.{record.name} has one eps, inside the root or outside; the record has both")


def _convert_argument(name: str, value: Any, unit: str, kappa: float, rule: Rule) -> Any:
    if callable(value):
        return scale_schedule(value, kappa, unit, rule=rule)
    return float(rule.convert(unit, float(value), kappa, name))
