"""A live state of optax in the units of another batch size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from rootscale.hparams import average, positive
from rootscale.integrations.optax.schedules import exact_kappa, floating
from rootscale.integrations.optax.spelling import (
    ARGUMENTS,
    HYPERPARAMETERS,
    KEPT,
    MAKERS,
    SECOND_MOMENTS,
    STATES,
    WALK,
)
from rootscale.rules import Rule, get_rule

__all__ = ["rescale"]


def rescale(
    opt_state: Any,
    kappa: float,
    *,
    optimizer: str | None = None,
    units: Mapping[str, str] = MappingProxyType({}),
    remade: bool = False,
    rule: str | Rule | None = None,
    b1: float | None = None,
) -> Any:
    """Return a live optimizer state at ``kappa`` times the batch size; nothing is changed in place.

    ``nu`` (and AMSGrad's maximum) becomes ``nu / kappa``, counters ``count / kappa``; a trace of gradients stays, and
    ``mu`` too where beta1 stays above its floor. Chains, ``masked``, ``partition``/``multi_transform``,
    ``MultiSteps``, ``apply_if_finite`` and ``inject_hyperparams`` are walked; the numbers that ``inject_hyperparams``
    holds are converted too. A state of any other kind is refused by name. Make the transformation anew with `scale`;
    with ``inject_hyperparams``, only if it holds a schedule.

    Args:
        opt_state: what ``init`` or ``update`` of an optax transformation returned; concrete, not inside ``jit``.
        kappa: new batch size over old one.
        optimizer: ``"sgd"``, where the state has no second moment that shows whose it is.
        units: for ``inject_hyperparams``: rows of the table of units for arguments whose name is not enough, as those
            of your own function, or ``eps`` of RMSprop: ``{"eps": "eps_root"}``, or ``"eps"`` if ``eps_in_sqrt=False``.
        remade: for ``inject_hyperparams``: whether its function is made anew for the new batch size, with betas and eps
            converted that it fixes itself or that are ``static_args``. The state does not hold them.
        rule: as in `scale`.
        b1: beta1 as the run has it now. ``mu`` needs it, unless ``inject_hyperparams`` holds it: where beta1 stops at
            its floor, ``mu`` gets the noise level of that average.

    Raises:
        TypeError: a state that cannot be converted; the message names it and those that can.
        ValueError: a number for which there is no valid value, or whose unit is unknown.

    >>> import jax.numpy as jnp, optax
    >>> adam = optax.adam(1e-3)
    >>> params = jnp.ones(2)
    >>> state = adam.init(params)
    >>> for _ in range(8):
    ...     updates, state = adam.update(params, state)
    >>> new = rescale(state, 4, b1=0.9)
    >>> int(new[0].count), bool(jnp.allclose(new[0].nu, state[0].nu / 4))
    (2, True)
    """
    kappa = positive("kappa", kappa)
    if optimizer not in (None, "sgd"):
        raise ValueError(f"optimizer must be 'sgd' or None: the state tells the others; got {optimizer!r}")
    states = list(_states(opt_state, "opt_state"))  # all of it, before anything is made
    for _, state in states:
        if type(state).__name__ == "MultiStepsState" and int(_number(state.mini_step)) != 0:
            raise ValueError(
                f"MultiSteps is in the middle of a step (mini_step={int(_number(state.mini_step))}); call rescale "
                "after an update at which mini_step is 0"
            )
    for name, kinds in _groups(opt_state, "opt_state"):
        if "TraceState" in kinds and kinds & SECOND_MOMENTS:
            raise ValueError(
                f"{name} has a trace (momentum) besides a second moment; that follows no known SDE, so no rule keeps "
                "its dynamics"
            )
    converter = _Converter(exact_kappa(kappa), kappa, optimizer, units, remade, rule, b1)
    return opt_state if kappa == 1 else converter.walk(opt_state, "opt_state")


def _number(value: Any) -> Any:
    """The array of a number in a state, which flax's nnx keeps in a variable."""
    return jax.tree.leaves(value)[0]


def _kind(state: Any) -> str:
    return type(state).__name__


def _children(state: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The states within a state or container, with their places."""
    if isinstance(state, Mapping):
        yield from ((f"{path}[{key!r}]", value) for key, value in state.items())
    elif hasattr(state, "_fields"):
        rows = STATES[_kind(state)]
        yield from ((f"{path}.{name}", getattr(state, name)) for name in state._fields if rows.get(name) == WALK)
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
    remade: bool
    rule: str | Rule | None
    b1: float | None = None

    def walk(self, state: Any, path: str) -> Any:
        if not hasattr(state, "_fields"):
            children = {where: self.walk(child, where) for where, child in _children(state, path)}
            if isinstance(state, Mapping):
                return type(state)(zip(state, children.values(), strict=True))  # type: ignore[call-arg]
            return type(state)(children.values()) if isinstance(state, tuple | list) else state
        rows, new = STATES.get(_kind(state), {}), {}
        if HYPERPARAMETERS in rows.values() and "b1" in state.hyperparams:
            inner = replace(self, b1=float(_number(state.hyperparams["b1"])))
        else:
            inner = self
        for name, unit in rows.items():
            value, where = getattr(state, name), f"{path}.{name}"
            if unit == WALK:
                new[name] = inner.walk(value, where)
            elif unit == HYPERPARAMETERS:
                new[name] = self._hyperparams(state, where)
            elif unit in ("steps", "step_counter"):
                new[name] = jax.tree.map(lambda x, unit=unit: self._count(x, unit), value)
            elif unit != KEPT:
                factor = self._factor(unit, where, moment="v" in rows.values())
                new[name] = value if factor == 1 else jax.tree.map(lambda x, f=factor: (x * f).astype(x.dtype), value)
        return state._replace(**new)

    def _factor(self, unit: str, path: str, moment: bool) -> float:
        """Return what a piece of state is multiplied by; ``moment`` says whether a second moment is beside it."""
        rule = self._rule()
        if not moment or unit not in rule.units or rule.units[unit].form.follows is None:
            return rule.factor(unit, self.kappa, {}, {})
        if self.b1 is None:
            raise ValueError(
                f"{path}: what becomes of it depends on beta1, which the state does not hold; give b1=..., as the run "
                "has it now (optax's default is 0.9), or rule='with paper', which keeps it"
            )
        before = {"beta1": average("b1", self.b1)}
        return rule.factor(unit, self.kappa, before, {"beta1": float(rule.convert("beta1", self.b1, self.kappa, "b1"))})

    def _rule(self, optimizer: str = "adam") -> Rule:
        return get_rule(self.rule, optimizer)

    def _count(self, count: Any, unit: str) -> Any:
        """``count / kappa``: an integer if it is whole, else a floating-point number."""
        if unit not in self._rule().units:
            return count
        if not floating(count):
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
        for kind in kinds & set(ARGUMENTS):
            known |= ARGUMENTS[kind]
        first = state.inner_state[0] if isinstance(state.inner_state, tuple) and state.inner_state else None
        if _kind(first) == "ScaleByAdamState":  # optax.adamw; a decay that comes before Adam would be an L2 term
            known["weight_decay"] = MAKERS["adamw"].units({})["weight_decay"]
        name = "adam"
        if not known:
            if self.optimizer != "sgd":
                raise ValueError(
                    f"{path}: no second moment tells which optimizer inject_hyperparams was given; if it is SGD, say "
                    "optimizer='sgd'"
                )
            name, known = "sgd", MAKERS["sgd"].units({})
        known |= {"max_norm": "clip", **self.units}
        self._check_fixed(kinds, {known[key] for key in state.hyperparams if key in known}, name, path)
        new = dict(state.hyperparams)
        for key, value in state.hyperparams.items():
            if not floating(_number(value)):
                continue
            if key not in known:
                raise ValueError(
                    f"{path}[{key!r}]: its unit is unknown; give units={{{key!r}: ...}} with a row of the table of "
                    "units: 'eta' for a learning rate, 'l2' or 'decoupled_decay' for a weight decay, 'eps_root' or "
                    "'eps' for an eps inside or outside the root"
                )
            converted = float(self._rule(name).convert(known[key], float(_number(value)), self.kappa, key))
            new[key] = jax.tree.map(lambda x, y=converted: jnp.asarray(y, dtype=jnp.asarray(x).dtype), value)
        return new

    def _check_fixed(self, kinds: set[str], held: set[str], name: str, path: str) -> None:
        """Refuse arguments that the state should hold and does not, unless the user has converted them."""
        fixed = [
            key
            for kind in sorted(kinds & set(ARGUMENTS))
            for key, unit in ARGUMENTS[kind].items()
            if unit in ("beta1", "beta2", "eps") and unit in self._rule(name).units and unit not in held
        ]
        if fixed and not self.remade:
            raise ValueError(
                f"{path} does not hold {', '.join(fixed)}: they are static_args or fixed by your function, and the run "
                "would be converted in part. Give them to inject_hyperparams as arguments that it holds; or make its "
                "function anew with scale(...)'s values of them, and say rescale(..., remade=True)"
            )
