"""The state of an optimizer at another batch size: tensors times a factor, counters as numbers, all of it or nothing.

A multiplication cannot be taken back exactly, and copies of a whole state cost memory. So `StateScaling` looks at every
piece first and refuses what could fail; `StateScaling.finish` then multiplies, the tensors of other libraries first
(the only ones whose code is not torch's own, and each is copied before), and Ctrl-C waits until the last one is done.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rootscale.training.projection import whole_number
from rootscale.training.shards import local

if TYPE_CHECKING:
    from rootscale.optimizers import Family

#: What whole numbers had to be rounded by, so that the way back finds the exact count: by container and name.
Remainders = dict[tuple[int, str], float]
#: Units of state that is never a number.
_TENSORS = frozenset({"m", "v"})
_INDEXED = re.compile(r"(?P<name>.+)\[(?P<index>\d+)\]")


def check_known(family: Family, states: Iterable[Mapping[str, Any]], mu_changes: bool = False) -> None:
    """Refuse state of which something is not known, or that belongs to another family.

    Args:
        family: as its library spells it.
        states: of the parameters.
        mu_changes: whether the weight of momentum changes, where it matters if it averages or sums.
    """
    held = list(states)
    for state in held:
        for name in family.torch.foreign:
            if name in state:
                raise TypeError(
                    f"a group of {family.name} has parameters with {name}, which are another optimizer's; give those a "
                    "group or an optimizer of their own"
                )
    unknown = family.unknown_state(held)
    if unknown:
        units = ", ".join(dict.fromkeys(family.torch_state_units().values())) or "none"
        row = ", ".join(f"{name!r}: ..." for name in unknown)
        raise ValueError(
            f"the optimizer's state has {', '.join(unknown)}, which {family.name} has not, so that it would stay in "
            f"the units of the old batch size. Give the class a row of its own, register(cls, values=..., "
            f"state={{{row}}}), with the unit of each piece ({family.name}'s are {units}; `rootscale units` lists "
            "them all), or 0 for one that stays"
        )
    if family.torch.unsure and mu_changes and held:
        raise ValueError(family.torch.unsure)


def copied(state: Mapping[str, Any], family: Family, factor: Callable[[str], float]) -> dict[str, Any]:
    """Return the state of a parameter with copies of the pieces that a change multiplies."""
    new = dict(state)
    for name, unit in family.torch_state_units().items():
        key = name.partition("[")[0]
        if key not in state or (factor(unit) == 1 and unit != "beta3") or new[key] is not state[key]:
            continue
        held = state[key]
        if isinstance(held, Tensor):
            if not (key in family.torch.codes and not held.is_floating_point()):  # codes stay, their scales change
                new[key] = held.clone()
        elif isinstance(held, list | tuple):
            new[key] = type(held)([one.clone() if isinstance(one, Tensor) else one for one in held])
    return new


def _held(state: Mapping[str, Any], name: str) -> Any:
    """Return a piece of a parameter's state, None where there is none; ``state1[0]`` is the first part of a tensor."""
    match = _INDEXED.fullmatch(name)
    if match is None:
        return state.get(name)
    whole = state.get(match["name"])
    return None if whole is None or int(match["index"]) >= len(whole) else whole[int(match["index"])]


def _is_number(held: Any) -> bool:
    if isinstance(held, Tensor):
        return held.dim() == 0 and not held.is_floating_point()
    return isinstance(held, int | float) and not isinstance(held, bool)


class StateScaling:
    """A change of units of some state, checked piece by piece and then made by `finish`; each place in memory once.

    Args:
        remainders: of whole numbers, which are read and brought up to date; None where the state is a copy.
    """

    def __init__(self, remainders: Remainders | None = None) -> None:
        self.counts: dict[str, dict[float, int]] = {}
        self._remainders: Remainders = {} if remainders is None else remainders
        self._numbers: list[tuple[Any, str, str, float]] = []  # container, name, unit, new exact value
        self._centered: list[tuple[Tensor, Tensor, float]] = []
        self._others: dict[int, tuple[Tensor, float]] = {}
        self._plain: dict[tuple[Any, ...], tuple[str, Tensor, float]] = {}

    def add(
        self, state: Any, family: Family, factor: Callable[[str], float], copies: Mapping[str, float] | None = None
    ) -> None:
        """Add the state of a parameter.

        Args:
            state: a mapping of its pieces.
            family: as its library spells it.
            factor: of each unit.
            copies: the values that hyperparameters have from now on by their units, for state that repeats one of them.

        Raises:
            TypeError: a piece cannot be changed in place.
            ValueError: it shares its memory with another piece that changes by another factor.
        """
        centered = family.torch.state_name("a") if family.name == "rmsprop-centered" else None
        for name, unit in family.torch_state_units().items():
            by = factor(unit)
            if unit == "beta3":
                if copies and unit in copies and name in state:
                    self._numbers.append((state, name, unit, copies[unit]))
                continue
            held = _held(state, name)
            if _is_number(held) and unit not in _TENSORS:
                self._add_number(state, name, unit, by)
                continue
            for tensor in _pieces(held, name, unit, state, family):
                _check(name, tensor)
                tally = self.counts.setdefault(name, {})
                tally[by] = tally.get(by, 0) + 1
                if unit == "v" and centered in state and centered is not None:
                    self._centered.append((_real(local(tensor)), _real(local(state[centered])), by))
                elif by != 1:
                    self._add_tensor(name, local(tensor), by)

    def add_group(self, group: Any, family: Family, factor: Callable[[str], float]) -> None:
        """Add what a library keeps in a parameter group beside the hyperparameters, such as a step counter."""
        for name, key in family.torch.group_state.items():
            held = group.get(name)
            if _is_number(held):
                self._add_number(group, name, family.state[key], factor(family.state[key]))
            elif isinstance(held, Tensor) and factor(family.state[key]) != 1:
                self._add_tensor(name, held, factor(family.state[key]))

    def _add_number(self, container: Any, name: str, unit: str, factor: float) -> None:
        if factor != 1:
            exact = float(container[name]) + self._remainders.get((id(container), name), 0.0)
            self._numbers.append((container, name, unit, exact * factor))

    def _add_tensor(self, name: str, tensor: Tensor, factor: float) -> None:
        if not _is_plain(tensor):
            self._others[id(tensor)] = (tensor, factor)
        elif tensor.numel():
            first, _, other = self._plain.setdefault(_memory(tensor), (name, tensor, factor))
            if other != factor:
                raise ValueError(
                    f"the optimizer's state has tensors that share their memory ({first} and {name}), which cannot be "
                    "converted once each; replace them by their clone()"
                )

    def stream(self, is_whole: Callable[[Tensor], bool]) -> dict[int, float]:
        """Leave tensors of a file to whoever writes it, and return their factors by ``id``.

        Args:
            is_whole: whether a tensor is one of the file, and not made of a number in it.
        """
        whole = {key: (tensor, factor) for key, (_, tensor, factor) in self._plain.items() if is_whole(tensor)}
        for key in whole:
            del self._plain[key]
        return {id(tensor): factor for tensor, factor in whole.values()}

    def numbers(self) -> Iterator[tuple[str, str, Any, float]]:
        """Yield each counter that is a number: its name, its unit, its value before and, exactly, after."""
        for container, name, unit, exact in self._numbers:
            yield name, unit, container[name], exact

    @torch.no_grad()
    def finish(self) -> None:
        """Multiply; an interrupt by the user is raised when all is done."""
        held = [(tensor, tensor.clone()) for tensor, _ in self._others.values()]
        try:
            for tensor, factor in self._others.values():
                tensor.mul_(factor)
        except BaseException:
            for tensor, copy in held:
                tensor.copy_(copy)
            raise
        batches: dict[Any, tuple[list[Tensor], list[float]]] = {}
        for _, tensor, factor in self._plain.values():  # torch multiplies tensors of one device and type at once
            tensors, factors = batches.setdefault((tensor.device, tensor.dtype), ([], []))
            tensors.append(tensor)
            factors.append(factor)
        left = [(tensors, factors, _version(tensors)) for tensors, factors in batches.values()]
        centered = [(v, mean, factor, v._version) for v, mean, factor in self._centered if factor != 1]
        try:
            self._multiply(left, centered)
        except KeyboardInterrupt:
            self._multiply(left, centered)
            raise

    def _multiply(self, batches: Sequence[Any], centered: Sequence[Any]) -> None:
        for tensors, factors, version in batches:
            if version is None or _version(tensors) == version:  # torch counts the changes of a tensor: not done yet
                torch._foreach_mul_(tensors, factors)
        for v, mean, factor, version in centered:
            if v._version == version:  # only what exceeds the squared mean is noise
                v.copy_(v * factor + mean * mean * (1 - factor))
        for container, name, _, exact in self._numbers:
            new = whole_number(container[name], exact)
            if isinstance(container[name], Tensor):
                container[name].fill_(new)
            else:
                container[name] = new
            self._remainders[id(container), name] = exact - float(new)


def _pieces(held: Any, name: str, unit: str, state: Mapping[str, Any], family: Family) -> Iterator[Tensor]:
    """Yield the tensors to multiply: of quantised state the scales, of lists every one."""
    for one in held if isinstance(held, list | tuple) else [held]:
        if one is None or (isinstance(one, list) and not one):
            continue
        if isinstance(one, Tensor):
            whole = local(one)
            if hasattr(whole, "codes") and hasattr(whole, "scale"):  # torchao: codes and scales in one tensor
                yield whole.scale
                continue
            scales = family.torch.codes.get(name)
            if scales is not None and not one.is_floating_point() and scales in state:
                continue
        yield one


def _check(name: str, tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"the optimizer's state {name} must be a tensor, got {type(tensor).__name__}")
    if not tensor.is_floating_point() and not tensor.is_complex():
        raise TypeError(f"the optimizer's state {name} must be a floating-point tensor, got {tensor.dtype}")
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
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


def _real(tensor: Tensor) -> Tensor:
    """Return a complex tensor as torch's optimizers take it: real and imaginary part are numbers of their own."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _version(tensors: Sequence[Tensor]) -> int | None:
    return None if tensors[0].is_inference() else tensors[0]._version


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    """Return which entries of which memory a tensor has; aliases are equal."""
    storage = tensor.untyped_storage()
    place = storage._cdata if tensor.device.type == "meta" else storage.data_ptr()
    return tensor.device, place, tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
