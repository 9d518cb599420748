"""A live state of optax in the units of another batch size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from rootscale.hparams import average, positive
from rootscale.integrations.optax.injected import Change, convert_injected, number_in
from rootscale.integrations.optax.kinds import CENTERED, FROM_1, HYPERPARAMETERS, KEPT, KINDS, WALK, family_of_chain
from rootscale.integrations.optax.schedules import exact_kappa, floating
from rootscale.integrations.optax.spelling import Maker, Rules, find_maker, rule_of

__all__ = ["rescale"]


def rescale(
    opt_state: Any,
    kappa: float,
    *,
    optimizer: str | Callable[..., Any] | None = None,
    units: Mapping[str, str] = MappingProxyType({}),
    remade: bool = False,
    rule: Rules = None,
    b1: float | None = None,
) -> Any:
    """Return a live optimizer state at ``kappa`` times the batch size; nothing is changed in place.

    ``nu`` (and AMSGrad's maximum) becomes ``nu / kappa``, counters ``count / kappa``; ``mu`` stays where beta1 stays
    above its floor. Momentum that is normalised (Lion, Muon, Signum) and SGD's trace get the new noise level. Chains,
    ``masked``, ``partition``/``multi_transform``, ``MultiSteps``, ``apply_if_finite`` and ``inject_hyperparams`` are
    walked; the numbers that ``inject_hyperparams`` holds are converted too. A state of any other kind is refused by
    name. Make the transformation anew with `scale`; with ``inject_hyperparams``, only if it holds a schedule.

    Args:
        opt_state: what ``init`` or ``update`` of an optax transformation returned; concrete, not inside ``jit``.
        kappa: new batch size over old one.
        optimizer: a function of optax or its name, where the state does not show whose it is. A ``ScaleByAdamState``
            is Adam's, AdamW's, NAdam's or RAdam's if you do not say ``"adamax"`` or ``"lamb"``, whose are the same; the
            traces of ``"rmsprop"`` and ``"lars"`` and the average of ``"signum"`` are asked for.
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
    named = None if optimizer is None else find_maker(optimizer)
    states = list(_states(opt_state, "opt_state"))  # all of it, before anything is made
    for _, state in states:
        if _kind(state) == "MultiStepsState" and int(number_in(state.mini_step)) != 0:
            raise ValueError(
                f"MultiSteps is in the middle of a step (mini_step={int(number_in(state.mini_step))}); call rescale "
                "after an update at which mini_step is 0"
            )
    families = [family_of_chain(kinds, path, named) for path, kinds in _chains(opt_state, "opt_state")]
    _check_named(named, families, [_kind(state) for _, state in states])
    for family in families:
        if family:
            rule_of(rule, family).check(family)  # refuses what has no such rule
    converter = _Converter(Change(kappa, rule, named, units, remade), exact_kappa(kappa), b1)
    return opt_state if kappa == 1 else converter.part(opt_state, "opt_state")


def _check_named(named: Maker | None, families: list[str | None], kinds: list[str]) -> None:
    """Refuse a name that no part of the state is of."""
    found = [family for family in families if family]
    if named and found and not {*named.families, *(named.beside or ())[:1]} & set(found):
        held = ", ".join(kind for kind in kinds if KINDS[kind].families)
        raise ValueError(
            f"optimizer={named.spelling.name!r}, but the state is of {' and '.join(dict.fromkeys(found))} ({held})"
        )


def _kind(state: Any) -> str:
    return type(state).__name__


def _children(state: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The states within a state or container, with their places."""
    if isinstance(state, Mapping):
        yield from ((f"{path}[{key!r}]", value) for key, value in state.items())
    elif hasattr(state, "_fields"):
        fields = KINDS[_kind(state)].fields
        yield from ((f"{path}.{name}", getattr(state, name)) for name in state._fields if fields.get(name) == WALK)
    elif isinstance(state, tuple | list):
        yield from ((f"{path}[{i}]", value) for i, value in enumerate(state))


def _states(state: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every optax state in the tree; anything else in it is refused."""
    if hasattr(state, "_fields"):
        # By name and home: users' classes may be called the same.
        if _kind(state) not in KINDS or not type(state).__module__.startswith("optax."):
            if not jax.tree.leaves(state):
                return
            known = ", ".join(name for name, kind in KINDS.items() if kind.fields)
            raise TypeError(f"{path} is a {_kind(state)}, whose clock and units are unknown; known are {known}")
        yield path, state
    elif state is not None and not isinstance(state, Mapping | tuple | list):
        if not jax.tree.leaves(state):
            return
        raise TypeError(f"{path} is a {type(state).__name__}, where a state of optax was expected")
    for where, child in _children(state, path) if state is not None else ():
        yield from _states(child, where)


def _parts(state: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The parts of a partition, each of which acts on parameters of its own."""
    yield from ((f"{path}.inner_states[{label!r}]", part) for label, part in state.inner_states.items())


def _chain(state: Any, path: str) -> list[str]:
    """The kinds of states that act on the same parameters, in the order of the chain."""
    if state is None or (hasattr(state, "_fields") and _kind(state) not in KINDS):
        return []
    here = [_kind(state)] if hasattr(state, "_fields") else []
    within = () if here == ["PartitionState"] else _children(state, path)
    return here + [kind for where, child in within for kind in _chain(child, where)]


def _chains(state: Any, path: str) -> Iterator[tuple[str, list[str]]]:
    """Every chain of kinds, with its place; each part of a partition is one of its own."""
    yield path, _chain(state, path)
    for where, one in _states(state, path):
        if _kind(one) == "PartitionState":
            for place, part in _parts(one, where):
                yield place, _chain(part, place)


@dataclass(frozen=True)
class _Converter:
    """The change of units, for every state in a tree."""

    change: Change
    exact: Fraction
    b1: float | None = None
    family: str = "adam"

    def part(self, state: Any, path: str) -> Any:
        """Return states that act on the same parameters, converted."""
        family = family_of_chain(_chain(state, path), path, self.change.named)
        return replace(self, family=family or "adam").walk(state, path)

    def walk(self, state: Any, path: str) -> Any:
        if not hasattr(state, "_fields"):
            children = {where: self.walk(child, where) for where, child in _children(state, path)}
            if isinstance(state, Mapping):
                return type(state)(zip(state, children.values(), strict=True))  # type: ignore[call-arg]
            return type(state)(children.values()) if isinstance(state, tuple | list) else state
        if _kind(state) == "PartitionState":
            parts = [self.part(part, where) for where, part in _parts(state, path)]
            return state._replace(inner_states=type(state.inner_states)(zip(state.inner_states, parts, strict=True)))
        return state._replace(**dict(self._fields(state, path)))

    def _fields(self, state: Any, path: str) -> Iterator[tuple[str, Any]]:
        fields = KINDS[_kind(state)].units(self.family) if _kind(state) in KINDS else {}
        inner = self
        if HYPERPARAMETERS in fields.values() and "b1" in state.hyperparams:
            inner = replace(self, b1=float(number_in(state.hyperparams["b1"])))
        for name, unit in fields.items():
            value, where = getattr(state, name), f"{path}.{name}"
            if unit == WALK:
                yield name, inner.walk(value, where)
            elif unit == HYPERPARAMETERS:
                kinds = _chain(state.inner_state, where)
                yield name, convert_injected(state, kinds, where, self.family, self.change)
            elif unit == FROM_1:
                yield name, jax.tree.map(lambda x: self._count(x - 1, "steps") + 1, value)
            elif unit in ("steps", "step_counter"):
                yield name, jax.tree.map(lambda x, unit=unit: self._count(x, unit), value)
            elif unit == CENTERED:
                yield name, jax.tree.map(self._centered, value, state.mu)
            elif unit != KEPT:
                factor = math.prod(self._factor(one, where) for one in unit.split("*"))
                yield name, (value if factor == 1 else jax.tree.map(lambda x, f=factor: (x * f).astype(x.dtype), value))

    def _factor(self, unit: str, path: str) -> float:
        """Return what a piece of state is multiplied by."""
        rule = rule_of(self.change.rule, self.family)
        if unit not in rule.units or rule.units[unit].form.follows is None:
            return rule.factor(unit, self.change.kappa, {}, {})
        if self.b1 is None:
            raise ValueError(
                f"{path}: what becomes of it depends on beta1, which the state does not hold; give b1=..., as the run "
                "has it now (optax's default is 0.9), or rule='with paper', which keeps it"
            )
        before = {"beta1": average("b1", self.b1)}
        return rule.factor(
            unit, self.change.kappa, before, {"beta1": float(rule.convert("beta1", self.b1, self.change.kappa, "b1"))}
        )

    def _centered(self, moment: Any, mean: Any) -> Any:
        square = mean * mean
        return (square + (moment - square) * self._factor("v", "")).astype(moment.dtype)

    def _count(self, count: Any, unit: str) -> Any:
        """``count / kappa``: an integer if it is whole, else a floating-point number."""
        if unit not in rule_of(self.change.rule, self.family).units:
            return count
        if not floating(count):
            new = Fraction(int(count)) / self.exact
            if new.denominator == 1:
                return jnp.asarray(int(new), dtype=jnp.asarray(count).dtype)
            return jnp.asarray(float(new), dtype=float)
        new_count = float(count) / float(self.exact)
        whole = round(new_count)
        return jnp.asarray(whole if math.isclose(new_count, whole, rel_tol=1e-6) else new_count, dtype=count.dtype)
