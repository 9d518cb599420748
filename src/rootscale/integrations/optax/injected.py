"""The numbers that ``optax.inject_hyperparams`` keeps in its state, in the units of another batch size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from rootscale.integrations.optax.kinds import KINDS
from rootscale.integrations.optax.schedules import floating
from rootscale.integrations.optax.spelling import MAKERS, Maker, Quantity, Rules, rule_of
from rootscale.units import KEPT

__all__ = ["Change", "convert_injected", "number_in"]

#: The units of arguments that have to be converted with the state, and that a state does not hold by itself.
_WEIGHTS = ("beta1", "beta2", "beta3", "eps", "mu", "mix", "eps_m")


def number_in(value: Any) -> Any:
    """Return the array of a number in a state, which flax's nnx keeps in a variable."""
    return jax.tree.leaves(value)[0]


@dataclass(frozen=True)
class Change:
    """What is asked of a conversion; `rescale` explains it."""

    kappa: float
    rule: Rules = None
    named: Maker | None = None
    units: Mapping[str, str] = field(default_factory=dict)
    remade: bool = False


def convert_injected(state: Any, kinds: Sequence[str], path: str, family: str, change: Change) -> dict[str, Any]:
    """Return the numbers of ``inject_hyperparams``, converted.

    Args:
        state: of ``inject_hyperparams``.
        kinds: of the states within it, in their order.
        path: of the numbers, for errors.
        family: of the states within it.
        change: what is asked for.
    """
    named, rule = change.named, change.rule
    known = {name: (own, unit) for name, own, unit in _known(state, kinds, path, family, named)}
    known |= {"max_norm": (family, "clip")} | {name: (family, unit) for name, unit in change.units.items()}
    held = {known[key][1] for key in state.hyperparams if key in known}
    fixed = [key for key, (own, unit) in known.items() if unit not in held and _changes(rule, own, unit)]
    if fixed and not change.remade:
        raise ValueError(
            f"{path} does not hold {', '.join(fixed)}: they are static_args or fixed by your function, and the run "
            "would be converted in part. Give them to inject_hyperparams as arguments that it holds; or make its "
            "function anew with scale(...)'s values of them, and say rescale(..., remade=True)"
        )
    new = dict(state.hyperparams)
    for key, value in state.hyperparams.items():
        if not floating(number_in(value)) or key in (named.spelling.options if named else ()):
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


def _known(state: Any, kinds: Sequence[str], path: str, family: str, named: Maker | None) -> Iterator[Quantity]:
    """Yield the arguments whose names tell their units, by the function or by the states that it has made."""
    found = [kind for kind in kinds if KINDS[kind].families]
    if named is None and not found:
        raise ValueError(
            f"{path}: no second moment tells which optimizer inject_hyperparams was given; if it is SGD, say "
            "optimizer='sgd'"
        )
    maker = named or next(one for one in MAKERS.values() if family in one.families)
    doubtful = set(maker.switch[2]) if maker.switch else set()
    if named is None:  # the state of an L2 term, which comes before the optimizer's, and of a decoupled one is the same
        doubtful.add("weight_decay")
    yield from (one for one in maker.quantities({}) if one[0] not in doubtful)
    first = state.inner_state[0] if isinstance(state.inner_state, tuple) and state.inner_state else None
    if named is None and type(first).__name__ == "ScaleByAdamState":  # optax.adamw; an L2 term would come before Adam
        yield "weight_decay", "adamw", "decoupled_decay"
