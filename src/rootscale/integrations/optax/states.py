"""A live state of optax in the units of another batch size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from rootscale.hparams import average, positive
from rootscale.integrations.optax.arguments import Rows, Rules, exact_kappa, find_rows, floating, rule_of
from rootscale.spellings.optax import (
    CENTERED,
    FROM_1,
    FUNCTIONS,
    HYPERPARAMETERS,
    STATES,
    UNCHANGED,
    WALK,
    Argument,
    families_of,
    quantities,
    units_of_state,
)
from rootscale.units import KEPT


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
    named = None if optimizer is None else find_rows(optimizer)
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
    converter = _Converter(_Request(kappa, rule, named, units, remade), exact_kappa(kappa), b1)
    return opt_state if kappa == 1 else converter.part(opt_state, "opt_state")


def _check_named(named: Rows | None, families: list[str | None], kinds: list[str]) -> None:
    """Refuse a name that no part of the state is of."""
    found = [family for family in families if family]
    able = {*families_of(named), *(family for _, family, _ in quantities(named, {}))} if named else set()
    if named and found and not able & set(found):
        held = ", ".join(kind for kind in kinds if families_of(STATES[kind]))
        raise ValueError(
            f"optimizer={named[0].name!r}, but the state is of {' and '.join(dict.fromkeys(found))} ({held})"
        )


def _kind(state: Any) -> str:
    return type(state).__name__


def _children(state: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The states within a state or container, with their places."""
    if isinstance(state, Mapping):
        yield from ((f"{path}[{key!r}]", value) for key, value in state.items())
    elif hasattr(state, "_fields"):
        fields = STATES[_kind(state)][0].state
        yield from ((f"{path}.{name}", getattr(state, name)) for name in state._fields if fields.get(name) == WALK)
    elif isinstance(state, tuple | list):
        yield from ((f"{path}[{i}]", value) for i, value in enumerate(state))


def _states(state: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every optax state in the tree; anything else in it is refused."""
    if hasattr(state, "_fields"):
        # By name and home: users' classes may be called the same.
        if _kind(state) not in STATES or not type(state).__module__.startswith("optax."):
            if not jax.tree.leaves(state):
                return
            known = ", ".join(name for name, rows in STATES.items() if rows[0].state)
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
    if state is None or (hasattr(state, "_fields") and _kind(state) not in STATES):
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


def family_of_chain(kinds: Sequence[str], path: str, named: Rows | None) -> str | None:
    """Return the family of the states that act on the same parameters, in their order; None where there are none.

    Raises:
        ValueError: no family has them together, or they do not show which of several it is.
    """
    held = [kind for kind in kinds if families_of(STATES[kind])]
    if not held:
        return None
    able = [families_of(STATES[kind]) for kind in held]
    together = [family for family in able[0] if all(family in families for families in able)]
    by_name = [family for family in (families_of(named) if named else ()) if family in together]
    family = (by_name or together or [""])[0]
    if not family:
        raise ValueError(
            f"{path} has {' and '.join(held)} for the same parameters; no known optimizer has them together"
        )
    if "TraceState" in held and len(held) > 1 and not by_name:
        raise ValueError(
            f"{path} has a trace (momentum) besides a second moment; if it is that of optax.rmsprop, which stands "
            "after the learning rate, say optimizer='rmsprop'"
        )
    if held == ["TraceState"] and kinds[-1] == "TraceState" and family == "sgd":
        raise ValueError(
            f"{path} has a trace (momentum) behind everything else, the learning rate too, where its unit is another "
            "one; keep it before, as optax.sgd does, or say optimizer='lars' if it is that of optax.lars"
        )
    if all(STATES[kind][0].unsure for kind in held) and not by_name:
        raise ValueError(f"{path} has {' and '.join(held)}, {STATES[held[0]][0].unsure}")
    return family


def number_in(value: Any) -> Any:
    """Return the array of a number in a state, which flax's nnx keeps in a variable."""
    return jax.tree.leaves(value)[0]


@dataclass(frozen=True)
class _Request:
    """What is asked of a conversion; `rescale` explains it."""

    kappa: float
    rule: Rules
    named: Rows | None
    units: Mapping[str, str]
    remade: bool


@dataclass(frozen=True)
class _Converter:
    """The change of units, for every state in a tree."""

    change: _Request
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
        fields = units_of_state(_kind(state), self.family) if _kind(state) in STATES else {}
        inner = self
        if HYPERPARAMETERS in fields.values() and "b1" in state.hyperparams:
            inner = replace(self, b1=float(number_in(state.hyperparams["b1"])))
        for name, unit in fields.items():
            value, where = getattr(state, name), f"{path}.{name}"
            if unit == WALK:
                yield name, inner.walk(value, where)
            elif unit == HYPERPARAMETERS:
                kinds = _chain(state.inner_state, where)
                yield name, _convert_injected(state, kinds, where, self.family, self.change)
            elif unit == FROM_1:
                yield name, jax.tree.map(lambda x: self._count(x - 1, "steps") + 1, value)
            elif unit in ("steps", "step_counter"):
                yield name, jax.tree.map(lambda x, unit=unit: self._count(x, unit), value)
            elif unit == CENTERED:
                yield name, jax.tree.map(self._centered, value, state.mu)
            elif unit != UNCHANGED:
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


# ---- the numbers that inject_hyperparams holds

#: The units of arguments that have to be converted with the state, and that a state does not hold by itself.
_WEIGHTS = ("beta1", "beta2", "beta3", "eps", "mu", "mix", "eps_m")


def _convert_injected(state: Any, kinds: Sequence[str], path: str, family: str, change: _Request) -> dict[str, Any]:
    """Return the numbers of ``inject_hyperparams``, converted.

    Args:
        state: of ``inject_hyperparams``.
        kinds: of the states within it, in their order.
        path: of the numbers, for errors.
        family: of the states within it.
        change: what is asked for.
    """
    named, rule = change.named, change.rule
    known = {name: (own, unit) for name, own, unit in _known_arguments(state, kinds, path, family, named)}
    known |= {"max_norm": (family, "clip")} | {name: (family, unit) for name, unit in change.units.items()}
    held = {known[key][1] for key in state.hyperparams if key in known}
    fixed = [key for key, (own, unit) in known.items() if unit not in held and _changes(rule, own, unit)]
    if fixed and not change.remade:
        raise ValueError(
            f"{path} does not hold {', '.join(fixed)}: they are static_args or fixed by your function, and the run "
            "would be converted in part. Give them to inject_hyperparams as arguments that it holds; or make its "
            "function anew with scale(...)'s values of them, and say rescale(..., remade=True)"
        )
    without_unit = named[0].values.keys() - known.keys() if named else ()
    new = dict(state.hyperparams)
    for key, value in state.hyperparams.items():
        if not floating(number_in(value)) or key in without_unit:
            continue
        if key not in known:
            raise ValueError(
                f"{path}[{key!r}]: its unit is unknown; give units={{{key!r}: ...}} with a row of the table of "
                "units: 'eta' for a learning rate, 'l2' or 'decoupled_decay' for a weight decay, 'eps_root' or "
                "'eps' for an eps inside or outside the root"
            )
        own, unit = known[key]
        converted = float(rule_of(rule, own).convert(unit, float(number_in(value)), change.kappa, key))
        new[key] = jax.tree.map(lambda x, y=converted: jnp.asarray(y, dtype=jnp.asarray(x).dtype), value)
    return new


def _changes(rule: Rules, family: str, unit: str) -> bool:
    chosen = rule_of(rule, family)
    return unit in _WEIGHTS and unit in chosen.units and chosen.units[unit].form is not KEPT


def _known_arguments(
    state: Any, kinds: Sequence[str], path: str, family: str, named: Rows | None
) -> Iterator[Argument]:
    """Yield the arguments whose names tell their units, by the function or by the states that it has made."""
    found = [kind for kind in kinds if families_of(STATES[kind])]
    if named is None and not found:
        raise ValueError(
            f"{path}: no second moment tells which optimizer inject_hyperparams was given; if it is SGD, say "
            "optimizer='sgd'"
        )
    rows = named or next(rows for rows in FUNCTIONS.values() if family in families_of(rows))
    for quantity in quantities(rows, {}):
        # the state of an L2 term, which comes before the optimizer's, and of a decoupled one is the same
        if named is not None or quantity[0] != "weight_decay":
            yield quantity
    first = state.inner_state[0] if isinstance(state.inner_state, tuple) and state.inner_state else None
    if named is None and type(first).__name__ == "ScaleByAdamState":  # optax.adamw; an L2 term would come before Adam
        yield "weight_decay", "adamw", "decoupled_decay"
