"""optax: the rule as pure functions, on the arguments of its optimizers, on schedules and on a live ``opt_state``.

A run goes on at ``kappa`` times its batch size when its transformation is made anew with converted arguments (`scale`)
and its state is converted (`rescale`). Both sides together are the change of units: neither is right alone.

Counters: optax counts steps in int32, and a counter in the new units is ``count / kappa``, which need not be whole.
Where it is, it stays an integer. Where not, it becomes a floating-point number, which optax's own transformations and
schedules take as they are (``count + 1``, ``1 - b**count``): the conversion is exact, at the price of one more
compilation of a jitted step. Switch after a multiple of ``kappa`` steps, and no type changes.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from rootscale.changes import ScalingWarning
from rootscale.format import show
from rootscale.hparams import SGD, AdamW, Optimizer, RMSprop, positive
from rootscale.rules import Rule, get_rule

try:
    import jax
    import jax.numpy as jnp
    import optax
except ImportError as error:
    raise ImportError("rootscale.integrations.optax needs optax: pip install 'rootscale[optax]'") from error

__all__ = ["rescale", "scale", "scale_schedule"]

Schedule = Callable[[Any], Any]


@dataclass(frozen=True)
class _Maker:
    """How one of optax's optimizers names its quantities.

    Args:
        name: of the record in `rootscale.hparams` whose rule it follows.
        make: the function of optax.
        values: its arguments, with their units.
        must_be: arguments that have to have these values, or the SDE is another one.
    """

    name: str
    make: Callable[..., Any]
    values: Mapping[str, str]
    must_be: Mapping[str, object]


_ADAM = {"learning_rate": "eta", "b1": "beta1", "b2": "beta2", "eps": "eps", "eps_root": "eps_root"}
_RMSPROP = {"learning_rate": "eta", "decay": "beta2", "eps": "eps_root", "initial_scale": "v"}  # eps_in_sqrt=True
#: optax's optimizers by name.
MAKERS: Mapping[str, _Maker] = MappingProxyType(
    {
        "adam": _Maker("adam", optax.adam, _ADAM, {"nesterov": False}),
        "adamw": _Maker("adamw", optax.adamw, {**_ADAM, "weight_decay": "decoupled_decay"}, {"nesterov": False}),
        "amsgrad": _Maker("adam", optax.amsgrad, _ADAM, {}),
        "rmsprop": _Maker("rmsprop", optax.rmsprop, _RMSPROP, {"momentum": None, "centered": False}),
        "sgd": _Maker("sgd", optax.sgd, {"learning_rate": "eta", "momentum": "momentum"}, {}),
    }
)


def scale(
    optimizer: str | Optimizer | Callable[..., Any],
    kappa: float,
    *,
    rule: str | Rule | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """The arguments of an optax optimizer at ``kappa`` times the batch size, defaults included.

    ``learning_rate`` and ``weight_decay`` may be schedules (`scale_schedule`). ``eps`` of Adam is added to ``sqrt(v)``
    and becomes ``eps * kappa^(-1/2)``; ``eps_root``, and ``eps`` of RMSprop unless ``eps_in_sqrt=False``, are added to
    ``v`` and become ``eps / kappa``. ``weight_decay`` of ``optax.adamw`` is decoupled: ``* kappa^(1/2)``.

    Args:
        optimizer: ``"adam"``, ``"adamw"``, ``"amsgrad"``, ``"rmsprop"``, ``"sgd"``, that function of optax, or a record
            such as `rootscale.AdamW`, which has the arguments in it.
        kappa: new batch size over old one.
        rule: a name from `rootscale.RULES`, or a rule; None is the optimizer's own.
        arguments: of the optimizer, as the run has them now.

    >>> import optax
    >>> new = scale(optax.adamw, 4, learning_rate=3e-4, b1=0.9, b2=0.95, weight_decay=0.1)
    >>> [float(f"{new[name]:.6g}") for name in ("learning_rate", "b1", "b2", "eps", "weight_decay")]
    [0.0006, 0.6, 0.8, 5e-09, 0.2]
    >>> transformation = optax.adamw(**new)
    """
    kappa = positive("kappa", kappa)
    if isinstance(optimizer, Optimizer):
        if arguments:
            raise ValueError(f"the record holds the arguments; got {', '.join(arguments)} besides")
        optimizer, arguments = _from_record(optimizer)
    maker = _maker(optimizer)
    signature = inspect.signature(maker.make)
    bound = signature.bind(**arguments)
    bound.apply_defaults()
    values = dict(bound.arguments)
    for key, value in maker.must_be.items():
        if values[key] != value:
            raise ValueError(
                f"optax.{maker.make.__name__} with {key}={values[key]!r} follows no known SDE, so no rule keeps its "
                f"dynamics; it has to be {value!r}"
            )
    units = dict(maker.values)
    if values.get("eps_in_sqrt") is False:
        units["eps"] = "eps"
    chosen = get_rule(rule, maker.name)
    messages = chosen.check(maker.name)
    new = {
        name: _convert_argument(name, values[name], unit, kappa, chosen)
        for name, unit in units.items()
        if values[name] is not None
    }
    messages += chosen.check_averages(kappa, values.get("b1", 0.0), values.get("b2", values.get("decay")))
    for message in messages:
        warnings.warn(message, ScalingWarning, stacklevel=2)
    return {**values, **new}


def _maker(optimizer: str | Callable[..., Any]) -> _Maker:
    for name, maker in MAKERS.items():
        if optimizer == name or optimizer is maker.make:
            return maker
    got = optimizer if isinstance(optimizer, str) else getattr(optimizer, "__name__", repr(optimizer))
    raise ValueError(f"optimizer must be one of {', '.join(MAKERS)}, or a record of rootscale; got {got!r}")


def _from_record(record: Optimizer) -> tuple[str, dict[str, Any]]:
    """The name and arguments of optax for a record."""
    if isinstance(record, SGD):
        named: dict[str, Any] = {"learning_rate": record.eta, "momentum": record.momentum or None}
    elif isinstance(record, RMSprop):
        if record.eps and record.eps_root:
            raise ValueError("optax.rmsprop has one eps, inside the root or outside; the record has both")
        named = {"learning_rate": record.eta, "decay": record.beta, "eps": record.eps or record.eps_root}
        named["eps_in_sqrt"] = not record.eps
    else:
        named = {"learning_rate": record.eta, "b1": record.beta1, "b2": record.beta2}
        named |= {"eps": record.eps, "eps_root": record.eps_root}
    if isinstance(record, AdamW):
        named["weight_decay"] = record.weight_decay
    elif record.weight_decay:
        raise ValueError(
            f"optax.{record.name} has no L2 term (weight_decay={show(record.weight_decay)} of the record); put "
            "optax.add_decayed_weights before it in a chain: it is part of the loss, and no rule changes it"
        )
    return record.name, named


def _convert_argument(name: str, value: Any, unit: str, kappa: float, rule: Rule) -> Any:
    if callable(value):
        return scale_schedule(value, kappa, unit, rule=rule)
    return float(rule.convert(unit, float(value), kappa, name))


def scale_schedule(
    schedule: Schedule,
    kappa: float,
    unit: str = "eta",
    *,
    rule: str | Rule | None = None,
) -> Schedule:
    """A schedule at ``kappa`` times the batch size: at equal samples, the converted value of the original one.

        new(k) = sqrt(kappa) * old(k * kappa)

    for a learning rate under the square root rule. The new schedule takes integers, and the fractional counts that
    `rescale` may leave.

    Args:
        schedule: a function of the count of steps.
        kappa: new batch size over old one.
        unit: a row of the table of units; ``eta`` for a learning rate, ``decoupled_decay`` for AdamW's decay.
        rule: a name from `rootscale.RULES`, or a rule; None is that of Adam.

    >>> import optax
    >>> warmup = optax.linear_schedule(0.0, 0.1, transition_steps=100)
    >>> round(float(warmup(20)), 6), round(float(scale_schedule(warmup, 4)(5)), 6)
    (0.02, 0.04)
    """
    kappa = positive("kappa", kappa)
    if unit in ("beta1", "beta2", "ema", "batchnorm"):
        raise ValueError(f"a schedule of {unit} cannot be checked at every step; give a number, or convert it yourself")
    chosen = get_rule(rule, "adam")
    if kappa == 1:
        return schedule
    exact = Fraction(kappa).limit_denominator(10**6)
    factor = float(chosen.convert(unit, 1.0, kappa))
    return lambda count: factor * schedule(_old_count(count, exact))


def _old_count(count: Any, kappa: Fraction) -> Any:
    """``count * kappa``: an integer where it can be, and free of rounding where it is nearly one."""
    if kappa.denominator == 1 and not _floating(count):
        return count * kappa.numerator
    old = count * float(kappa)
    whole = jnp.round(old)
    return jnp.where(jnp.abs(old - whole) < 1e-3, whole, old)


def _floating(count: Any) -> bool:
    return bool(jnp.issubdtype(jnp.asarray(count).dtype, jnp.floating))


# The live state.

_WALK, _KEPT, _RATES = "walk", "kept", "hyperparameters"
_ADAM_STATE = {"count": "step_counter", "mu": "m", "nu": "v"}
#: optax's states: their fields with their units, or what else to do with them.
STATES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "EmptyState": {},
        "MaskedNode": {},
        "ScaleByAdamState": _ADAM_STATE,
        "ScaleByAmsgradState": {**_ADAM_STATE, "nu_max": "v"},
        "ScaleByRmsState": {"nu": "v"},
        "ScaleByRmsWithCountState": {"count": "step_counter", "nu": "v"},
        "ScaleByScheduleState": {"count": "steps"},
        "WeightDecaySchedule": {"count": "steps"},
        "WrappedScheduleState": {"count": "steps"},
        "EmaState": {"count": "step_counter", "ema": "m"},
        "TraceState": {"trace": "m"},
        "MaskedState": {"inner_state": _WALK},
        "PartitionState": {"inner_states": _WALK},
        "ApplyIfFiniteState": {
            "notfinite_count": _KEPT, "last_finite": _KEPT, "total_notfinite": _KEPT, "inner_state": _WALK,
        },
        "MultiStepsState": {
            "mini_step": _KEPT, "gradient_step": "steps", "inner_opt_state": _WALK, "acc_grads": _KEPT,
            "skip_state": _KEPT,
        },
        "ZeroNansState": {"found_nan": _KEPT},
        "InjectHyperparamsState": {"count": "steps", "hyperparams": _RATES, "inner_state": _WALK},
        "InjectStatefulHyperparamsState": {
            "count": "steps", "hyperparams": _RATES, "hyperparams_states": _WALK, "inner_state": _WALK,
        },
    }
)  # fmt: skip
_SECOND_MOMENTS = {name for name, fields_ in STATES.items() if "v" in fields_.values()}
#: The hyperparameters that ``inject_hyperparams`` holds, where their name leaves no doubt.
_INJECTED: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "ScaleByAdamState": _ADAM,
        "ScaleByAmsgradState": _ADAM,
        "ScaleByRmsState": {name: unit for name, unit in _RMSPROP.items() if name != "eps"},
        "ScaleByRmsWithCountState": {name: unit for name, unit in _RMSPROP.items() if name != "eps"},
    }
)


def rescale(
    opt_state: Any,
    kappa: float,
    *,
    optimizer: str | None = None,
    units: Mapping[str, str] = MappingProxyType({}),
    rule: str | Rule | None = None,
) -> Any:
    """A live optimizer state at ``kappa`` times the batch size; nothing is changed in place.

    ``nu`` (and AMSGrad's maximum) becomes ``nu / kappa``, counters ``count / kappa``; ``mu`` and a trace of gradients
    stay. Chains, ``masked``, ``partition``/``multi_transform``, ``MultiSteps``, ``apply_if_finite`` and
    ``inject_hyperparams`` are walked; the numbers that ``inject_hyperparams`` holds are converted too. A state of any
    other kind is refused by name. Make the transformation anew with `scale`; with ``inject_hyperparams``, only if it
    holds a schedule.

    Args:
        opt_state: what ``init`` or ``update`` of an optax transformation returned; concrete, not inside ``jit``.
        kappa: new batch size over old one.
        optimizer: ``"sgd"``, where the state has no second moment to tell that it is Adam's or RMSprop's.
        units: for ``inject_hyperparams``: rows of the table of units for arguments whose name does not tell, as those
            of your own function, or ``eps`` of RMSprop: ``{"eps": "eps_root"}``, or ``"eps"`` if ``eps_in_sqrt=False``.
        rule: as in `scale`.

    Raises:
        TypeError: a state that cannot be converted; the message names it and those that can.
        ValueError: a number for which there is no valid value, or whose unit is unknown.

    >>> import jax.numpy as jnp, optax
    >>> adam = optax.adam(1e-3)
    >>> params = jnp.ones(2)
    >>> state = adam.init(params)
    >>> for _ in range(8):
    ...     updates, state = adam.update(params, state)
    >>> new = rescale(state, 4)
    >>> int(new[0].count), bool(jnp.allclose(new[0].nu, state[0].nu / 4))
    (2, True)
    """
    kappa = positive("kappa", kappa)
    if optimizer not in (None, "sgd"):
        raise ValueError(f"optimizer must be 'sgd' or None: the state tells the others; got {optimizer!r}")
    states = list(_states(opt_state, "opt_state"))  # all of it, before anything is made
    for _, state in states:
        if type(state).__name__ == "MultiStepsState" and int(state.mini_step) != 0:
            raise ValueError(
                f"MultiSteps is in the middle of a step (mini_step={int(state.mini_step)}); call rescale after an "
                "update at which mini_step is 0"
            )
    for name, kinds in _groups(opt_state, "opt_state"):
        if "TraceState" in kinds and kinds & _SECOND_MOMENTS:
            raise ValueError(
                f"{name} has a trace (momentum) besides a second moment; that follows no known SDE, so no rule keeps "
                "its dynamics"
            )
    converter = _Converter(Fraction(kappa).limit_denominator(10**6), kappa, optimizer, units, rule)
    return opt_state if kappa == 1 else converter.walk(opt_state, "opt_state")


def _kind(state: Any) -> str:
    return type(state).__name__


def _children(state: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The states within a state or container, with their places."""
    if isinstance(state, Mapping):
        yield from ((f"{path}[{key!r}]", value) for key, value in state.items())
    elif hasattr(state, "_fields"):
        rows = STATES[_kind(state)]
        yield from ((f"{path}.{name}", getattr(state, name)) for name in state._fields if rows.get(name) == _WALK)
    elif isinstance(state, tuple | list):
        yield from ((f"{path}[{i}]", value) for i, value in enumerate(state))


def _states(state: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every optax state in the tree; anything else in it is refused."""
    if hasattr(state, "_fields"):
        # By name and home: users' classes may be called the same.
        if _kind(state) not in STATES or not type(state).__module__.startswith("optax."):
            if not jax.tree.leaves(state):
                return
            known = ", ".join(name for name, rows in STATES.items() if rows)
            raise TypeError(f"{path} is a {_kind(state)}, whose clock and units are unknown; known are {known}")
        yield path, state
    elif state is not None and not isinstance(state, Mapping | tuple | list):
        if not jax.tree.leaves(state):
            return
        raise TypeError(f"{path} is a {type(state).__name__}, where a state of optax was expected")
    for where, child in _children(state, path) if state is not None else ():
        yield from _states(child, where)


def _groups(state: Any, path: str) -> Iterator[tuple[str, set[str]]]:
    """The kinds of states that act on the same parameters; each part of a partition is a group of its own."""
    kinds: set[str] = set()
    rest = [(path, state)]
    while rest:
        where, one = rest.pop()
        if one is None or not (hasattr(one, "_fields") or isinstance(one, Mapping | tuple | list)):
            continue
        if hasattr(one, "_fields"):
            if _kind(one) not in STATES:
                continue
            kinds.add(_kind(one))
        if _kind(one) == "PartitionState":
            for label, part in one.inner_states.items():
                yield from _groups(part, f"{where}.inner_states[{label!r}]")
        else:
            rest += _children(one, where)
    yield path, kinds


@dataclass(frozen=True)
class _Converter:
    """The change of units, for every state in a tree."""

    exact: Fraction
    kappa: float
    optimizer: str | None
    units: Mapping[str, str]
    rule: str | Rule | None

    def walk(self, state: Any, path: str) -> Any:
        if not hasattr(state, "_fields"):
            children = {where: self.walk(child, where) for where, child in _children(state, path)}
            if isinstance(state, Mapping):
                return type(state)(zip(state, children.values(), strict=True))  # type: ignore[call-arg]
            return type(state)(children.values()) if isinstance(state, tuple | list) else state
        rows, new = STATES.get(_kind(state), {}), {}
        for name, unit in rows.items():
            value, where = getattr(state, name), f"{path}.{name}"
            if unit == _WALK:
                new[name] = self.walk(value, where)
            elif unit == _RATES:
                new[name] = self._hyperparams(state, where)
            elif unit in ("steps", "step_counter"):
                new[name] = self._count(value, unit)
            elif unit != _KEPT:
                factor = float(self._rule().convert(unit, 1.0, self.kappa))
                new[name] = value if factor == 1 else jax.tree.map(lambda x, f=factor: (x * f).astype(x.dtype), value)
        return state._replace(**new)

    def _rule(self, optimizer: str = "adam") -> Rule:
        return get_rule(self.rule, optimizer)

    def _count(self, count: Any, unit: str) -> Any:
        """``count / kappa``: an integer if it is whole, else a floating-point number."""
        if unit not in self._rule().units:
            return count
        if not _floating(count):
            new = Fraction(int(count)) / self.exact
            if new.denominator == 1:
                return jnp.asarray(int(new), dtype=jnp.asarray(count).dtype)
            return jnp.asarray(float(new), dtype=float)
        new_count = float(count) / float(self.exact)
        whole = round(new_count)
        return jnp.asarray(whole if math.isclose(new_count, whole, rel_tol=1e-6) else new_count, dtype=count.dtype)

    def _hyperparams(self, state: Any, path: str) -> dict[str, Any]:
        kinds = {kind for _, group in _groups(state.inner_state, path) for kind in group}
        known: dict[str, str] = {}
        for kind in kinds & set(_INJECTED):
            known |= _INJECTED[kind]
        first = state.inner_state[0] if isinstance(state.inner_state, tuple) and state.inner_state else None
        if _kind(first) == "ScaleByAdamState":  # optax.adamw; a decay that comes before Adam would be an L2 term
            known["weight_decay"] = "decoupled_decay"
        name = "adam"
        if not known:
            if self.optimizer != "sgd":
                raise ValueError(
                    f"{path}: no second moment tells which optimizer inject_hyperparams was given; if it is SGD, say "
                    "optimizer='sgd'"
                )
            name, known = "sgd", dict(MAKERS["sgd"].values)
        known |= {"max_norm": "clip", **self.units}
        new = dict(state.hyperparams)
        for key, value in state.hyperparams.items():
            if not _floating(value):
                continue
            if key not in known:
                raise ValueError(
                    f"{path}[{key!r}]: its unit is unknown; give units={{{key!r}: ...}} with a row of the table of "
                    "units: 'eta' for a learning rate, 'l2' or 'decoupled_decay' for a weight decay, 'eps_root' or "
                    "'eps' for an eps inside or outside the root"
                )
            converted = float(self._rule(name).convert(known[key], float(value), self.kappa, key))
            new[key] = jnp.asarray(converted, dtype=jnp.asarray(value).dtype)
        return new
