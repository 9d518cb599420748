"""The state of an optimizer at another batch size: every tensor times a factor, in place, all of them or none.

A multiplication cannot be taken back exactly, and copies of a whole state cost too much memory. So every tensor is
checked for what could make its multiplication fail, the state comes last of all changes, and within it the tensors that
can still fail come first:

1. Tensors of other classes than torch's own run code that nobody can foresee. Each is copied before it is multiplied,
   and a failure puts the copies back.
2. The others, DTensors by their local part, are multiplied without a copy. They have been checked; only a device that
   breaks can stop them, and then the error says so. Ctrl-C waits until the last of them is done.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rootscale.changes import Change
from rootscale.optimizers import Family
from rootscale.rules import Rule
from rootscale.training.edits import Edit, group_averages, is_frozen, plural, whole_number, with_kappa
from rootscale.training.shards import local

__all__ = ["Scaled", "StateScaling", "centered_edits", "number_edits", "scaled_state"]


@dataclass(frozen=True)
class Scaled:
    """A piece of an optimizer's state, such as ``exp_avg_sq``, and the factor that it is multiplied by.

    Args:
        name: of the piece in the optimizer's state.
        tensors: one for each parameter that has it.
        factor: by which all of them are multiplied.
        change: the row to report.
    """

    name: str
    tensors: tuple[Tensor, ...]
    factor: float
    change: Change


def scaled_state(optimizer: Any, family: Family, rule: Rule, kappa: float) -> Iterator[Scaled]:
    """Yield the pieces of the optimizer's state that have a unit and are tensors.

    Raises:
        TypeError: a piece is not a floating-point tensor that can be changed in place.
    """
    owners = {parameter: i for i, group in enumerate(optimizer.param_groups) for parameter in group["params"]}
    groups = optimizer.param_groups
    averages = [group_averages(with_kappa(group, groups), family, rule, kappa) for group in groups]
    _check_known(optimizer, family, averages)
    for name, unit in family.torch_state_units().items():
        held: dict[float, tuple[list[Tensor], list[int]]] = {}
        for parameter, state in optimizer.state.items():
            for tensor in _pieces(state, name, family):
                _check(name, tensor)
                owner = owners.get(parameter, 0)  # what belongs to no group is never stepped
                tensors, numbers = held.setdefault(rule.factor(unit, kappa, *averages[owner]), ([], []))
                tensors.append(tensor)
                numbers.append(owner)
        for factor, (tensors, numbers) in held.items():
            which = f" (groups {', '.join(map(str, dict.fromkeys(numbers)))})" if len(held) > 1 else ""
            row = rule.units.get(unit)
            if row is not None and row.form.follows and factor != 1:
                row = replace(row, status="measured", source="results/floors")
            change = Change(f"factor of {name}{which}", 1.0, factor, row, note=plural(tensors, "tensor"))
            if not (family.name == "rmsprop-centered" and unit == "v"):  # `centered_edits` has those
                yield Scaled(name, tuple(tensors), factor, change)


def _check_known(optimizer: Any, family: Family, averages: Sequence[Sequence[dict[str, float]]]) -> None:
    """Refuse state of which something is not known, or that belongs to another family."""
    for state in optimizer.state.values():
        for name in family.torch.foreign:
            if name in state:
                raise TypeError(
                    f"a group of {family.name} has parameters with {name}, which are another optimizer's; give those a "
                    "group or an optimizer of their own"
                )
    unknown = family.unknown_state(optimizer.state.values())
    if unknown:
        units = ", ".join(dict.fromkeys(family.torch_state_units().values())) or "none"
        row = ", ".join(f"{name!r}: ..." for name in unknown)
        raise ValueError(
            f"the optimizer's state has {', '.join(unknown)}, which {family.name} has not, so that it would stay in "
            f"the units of the old batch size. Give the class a row of its own, register(cls, values=..., "
            f"state={{{row}}}), with the unit of each piece ({family.name}'s are {units}; `rootscale units` lists "
            "them all), or 0 for one that stays; or leave all state as it is with state=False"
        )
    changes = any(before.get("mu") != after.get("mu") for before, after in averages)
    if family.torch.unsure and changes and optimizer.state:
        raise ValueError(family.torch.unsure)


_INDEXED = re.compile(r"(?P<name>.+)\[(?P<index>\d+)\]")


def _held(state: Any, name: str) -> Any:
    """Return a piece of a parameter's state, None where there is none; ``state1[0]`` is the first part of a tensor."""
    match = _INDEXED.fullmatch(name)
    if match is None:
        return state.get(name)
    whole = state.get(match["name"])
    return None if whole is None or int(match["index"]) >= len(whole) else whole[int(match["index"])]


def _pieces(state: Any, name: str, family: Family) -> Iterator[Tensor]:
    """Yield the tensors to multiply: of quantised state the scales, of lists every one; whole numbers are not there."""
    held = _held(state, name)
    for one in held if isinstance(held, list | tuple) else [held]:
        if one is None or isinstance(one, int | float) or (isinstance(one, list) and not one):
            continue
        if isinstance(one, Tensor):
            whole = local(one)
            if hasattr(whole, "codes") and hasattr(whole, "scale"):  # torchao: codes and scales in one tensor
                yield whole.scale
                continue
            if name in family.torch.codes and not one.is_floating_point() and family.torch.codes[name] in state:
                continue
            if not one.is_floating_point() and family.torch_state_units()[name] == "step_counter":
                continue
        yield one


def number_edits(optimizer: Any, family: Family, rule: Rule, kappa: float) -> Iterator[Edit]:
    """Yield the edits of state that is kept as numbers, such as counters; whole numbers are rounded and say so."""
    for name, unit in family.torch_state_units().items():
        holders: dict[float, list[Any]] = {}
        for state in optimizer.state.values():
            held = state.get(name)
            if isinstance(held, bool) or held is None:
                continue
            if isinstance(held, int | float) or (isinstance(held, Tensor) and held.dim() == 0 and _is_counter(held)):
                holders.setdefault(float(held), []).append(state)
        for before, states in holders.items():
            after = float(rule.convert(unit, before, kappa, name)) if before else before
            used, note = whole_number(states[0][name], after)
            change = Change(name, before, after, rule.units.get(unit), used, note)
            values = [after if used is None else used] * len(states)
            yield Edit((change,), partial(_put, states, name, values), partial(_keep, states, name))


def _is_counter(tensor: Tensor) -> bool:
    return not tensor.is_floating_point()


def _put(states: Sequence[Any], name: str, values: Sequence[Any]) -> None:
    for state, value in zip(states, values, strict=True):
        if isinstance(state[name], Tensor):
            state[name].fill_(value)
        else:
            state[name] = value


def _keep(states: Sequence[Any], name: str) -> Callable[[], None]:
    values = [state[name].item() if isinstance(state[name], Tensor) else state[name] for state in states]
    return partial(_put, states, name, values)


def centered_edits(optimizer: Any, family: Family, rule: Rule, kappa: float) -> Iterator[Edit]:
    """Yield the edit of centered RMSprop's second moment: only what exceeds the squared mean is noise."""
    names = [family.torch.state_name(key) for key in ("v", "a")]
    pairs = [
        (_real(state[names[0]]), _real(state[names[1]]))
        for state in optimizer.state.values()
        if family.name == "rmsprop-centered" and names[0] in state and names[1] in state
    ]
    if not pairs:
        return
    factor = rule.factor("v", kappa, {}, {})

    def apply() -> None:
        for v, mean in pairs:
            v.mul_(factor).addcmul_(mean, mean, value=1 - factor)

    def save() -> Callable[[], None]:
        copies = [v.clone() for v, _ in pairs]

        def restore() -> None:
            for (v, _), copy in zip(pairs, copies, strict=True):
                v.copy_(copy)

        return restore

    note = f"of what exceeds the squared mean; {plural(pairs, 'tensor')}"
    yield Edit((Change(f"factor of {names[0]}", 1.0, factor, rule.units.get("v"), note=note),), apply, save)


def _real(tensor: Tensor) -> Tensor:
    """Return a complex tensor as torch's optimizers take it: real and imaginary part are numbers of their own."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _check(name: str, tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"the optimizer's state {name} must be a tensor, got {type(tensor).__name__}")
    if not tensor.is_floating_point() and not tensor.is_complex():
        raise TypeError(f"the optimizer's state {name} must be a floating-point tensor, got {tensor.dtype}")
    if is_frozen(tensor):
        raise TypeError(
            f"the optimizer's state {name} is an inference tensor, which cannot be changed in place; "
            "replace it by its clone(), made outside of torch.inference_mode()"
        )
    if _is_plain(tensor) and torch._debug_has_internal_overlap(tensor) == 1:
        raise TypeError(
            f"the optimizer's state {name} is an expanded tensor, whose entries share memory, so that it cannot be "
            "changed in place; replace it by its clone()"
        )


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout == torch.strided


class StateScaling:
    """The multiplication of all state of a conversion; each place in memory is multiplied once.

    Args:
        pieces: of all optimizers.

    Raises:
        ValueError: two tensors of the state share a part of their memory, or all of it with different factors.
    """

    def __init__(self, pieces: Sequence[Scaled]) -> None:
        self._others: dict[int, tuple[Tensor, float]] = {}
        plain: dict[tuple[Any, ...], tuple[str, Tensor, float]] = {}
        with torch.no_grad():
            for piece in pieces:
                for tensor in map(local, piece.tensors if piece.factor != 1 else ()):
                    if not _is_plain(tensor):
                        self._others[id(tensor)] = (tensor, piece.factor)
                    elif tensor.numel():
                        name, _, factor = plain.setdefault(_memory(tensor), (piece.name, tensor, piece.factor))
                        if factor != piece.factor:
                            raise ValueError(_shared(name, piece.name))
        _check_disjoint(plain)
        batches: dict[Any, tuple[list[Tensor], list[float]]] = {}
        for _, tensor, factor in plain.values():  # torch multiplies tensors of one device and type at once
            tensors, factors = batches.setdefault((tensor.device, tensor.dtype), ([], []))
            tensors.append(tensor)
            factors.append(factor)
        self._batches = list(batches.values())

    def pairs(self) -> Iterator[tuple[Tensor, float]]:
        """Yield every tensor with its factor, for who multiplies them elsewhere than in their place."""
        yield from self._others.values()
        for tensors, factors in self._batches:
            yield from zip(tensors, factors, strict=True)

    def apply_others(self) -> None:
        """Multiply the tensors of other classes."""
        for tensor, factor in self._others.values():
            tensor.mul_(factor)

    def save_others(self) -> Callable[[], None]:
        """Return a function that puts the tensors of other classes back, from copies made now."""
        held = [(tensor, tensor.clone()) for tensor, _ in self._others.values()]

        def restore() -> None:
            for tensor, copy in held:
                tensor.copy_(copy)

        return restore

    def finish(self) -> None:
        """Multiply the rest; an interrupt by the user is raised when that is done."""
        left = [(tensors, factors, _version(tensors)) for tensors, factors in self._batches]
        try:
            _multiply_(left)
        except KeyboardInterrupt:
            _multiply_(left)
            raise


def _multiply_(batches: Sequence[tuple[list[Tensor], list[float], int | None]]) -> None:
    for tensors, factors, version in batches:
        if version is None or _version(tensors) == version:  # torch counts the changes of a tensor: not done yet
            torch._foreach_mul_(tensors, factors)


def _version(tensors: Sequence[Tensor]) -> int | None:
    return None if tensors[0].is_inference() else tensors[0]._version


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    """Return which entries of which memory a tensor has; aliases are equal."""
    return (*_storage(tensor), tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())


def _storage(tensor: Tensor) -> tuple[Any, ...]:
    storage = tensor.untyped_storage()
    if tensor.device.type == "meta":
        return tensor.device, storage._cdata
    return tensor.device, storage.data_ptr()


def _check_disjoint(tensors: dict[tuple[Any, ...], tuple[str, Tensor, float]]) -> None:
    """Refuse tensors that share a part of their memory; those that share all of it are one already."""
    storages: dict[tuple[Any, ...], list[tuple[str, Tensor]]] = {}
    for key, (name, tensor, _) in tensors.items():
        storages.setdefault(key[:2], []).append((name, tensor))
    for together in storages.values():
        if len(together) == 1:
            continue
        together.sort(key=lambda one: _extent(one[1]))
        end = -1
        for i, (name, tensor) in enumerate(together):
            first, last = _extent(tensor)
            if first < end and _overlap(tensor, [other for _, other in together[:i]]):
                raise ValueError(_shared(together[i - 1][0], name))
            end = max(end, last)


def _extent(tensor: Tensor) -> tuple[int, int]:
    """Return the first byte of a tensor in its storage, and the one after its last."""
    entries = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    first = tensor.storage_offset() * tensor.element_size()
    return int(first), int(first + entries * tensor.element_size())


def _overlap(tensor: Tensor, others: Sequence[Tensor]) -> bool:
    """Return whether a tensor shares an entry with others of its storage; columns side by side do not."""
    if any(other.dtype != tensor.dtype for other in others):
        return True
    used = torch.zeros(tensor.untyped_storage().nbytes() // tensor.element_size(), dtype=torch.bool)
    for other in others:
        used.as_strided(other.shape, other.stride(), other.storage_offset()).fill_(True)
    return bool(used.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).any())


def _shared(one: str, other: str) -> str:
    return (
        f"the optimizer's state has tensors that share a part of their memory ({one} and {other}), which cannot be "
        "converted once each; replace them by their clone()"
    )
