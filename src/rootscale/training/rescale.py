"""Change the batch size of a running PyTorch job: convert its live objects in place."""

from __future__ import annotations

import inspect
import math
import warnings as python_warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

from rootscale.changes import Change, Changes, ScalingWarning
from rootscale.format import show
from rootscale.hparams import DOMAINS, positive
from rootscale.optimizers import Family
from rootscale.rules import Rule, get_rule
from rootscale.training import schedulers
from rootscale.training.adapters import family_of
from rootscale.units import UNITS


@dataclass(frozen=True)
class _Target:
    """An optimizer, its family and its rule; the prefix names it where there are several, and is empty for one."""

    optimizer: torch.optim.Optimizer
    family: Family
    rule: Rule
    prefix: str


@dataclass(frozen=True)
class _Edit:
    """Something that has been found possible to change: what to report, and what makes the change."""

    changes: tuple[Change, ...]
    commit: Callable[[], None]


Interval = Literal["step", "epoch"]


def rescale_(
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    kappa: float,
    *,
    scheduler: LRScheduler | Sequence[LRScheduler] | None = None,
    model: torch.nn.Module | Sequence[torch.nn.Module] | None = None,
    ema: Any = None,
    rule: str | Rule | None = None,
    state: bool = True,
    interval: Interval | Sequence[Interval] = "step",
    forward_kappa: float | None = None,
    dry_run: bool = False,
) -> Changes:
    """Convert a run, fresh or under way, to ``kappa`` times its batch size, in place.

    Everything is checked first: if anything is refused, nothing has changed. The caller changes what this function
    cannot see: the batch size itself, the number of steps left and every interval in steps (``/ kappa``), and the
    gradient clip (``* kappa^(-1/2)``).

    Args:
        optimizer: `torch.optim.Adam`, ``AdamW``, ``RMSprop`` or ``SGD``, in any of their variants; a list or tuple of
            several is converted as a whole or not at all.
        kappa: new batch size over old one; any positive number.
        scheduler: the learning-rate scheduler (or several) that drives the optimizer (or one of them).
        model: the model (or several) whose BatchNorm layers' momentum is to be converted.
        ema: a `torch.optim.swa_utils.AveragedModel` with torch's exponential averages, or any object with a ``decay``
            attribute, or several of them.
        rule: a rule or its text, for every optimizer: ``"sqrt"``, ``"with power"`` (``beta^kappa`` for the betas),
            ``"sqrt without v"``; None is each optimizer's own, ``sqrt`` for Adam, AdamW and RMSprop.
        state: whether the optimizer's state is converted too; without it the run is disturbed until the averages
            have forgotten the old batch size.
        interval: whether the scheduler is stepped with every optimizer ``step`` or once an ``epoch``; one for all
            schedulers, or one for each.
        forward_kappa: the same as ``kappa`` for the samples of one forward pass, which BatchNorm averages over; None is
            ``kappa``, 1 is a change by gradient accumulation alone.
        dry_run: only check, and return what would be changed.

    Returns:
        What was changed; print it. Of several optimizers, ``changes["optimizer 1: lr"]`` is that of the second one.

    Raises:
        TypeError: an object of a kind that cannot be converted; the message names those that can.
        ValueError: there is no valid value; the message has the largest kappa that has one.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.98, 0.999))
    >>> changes = rescale_(optimizer, 4)
    >>> changes["lr"].after, optimizer.param_groups[0]["lr"]
    (0.002, 0.002)
    """
    prepared = prepare(
        optimizer, kappa, scheduler=scheduler, model=model, ema=ema, rule=rule, state=state, interval=interval,
        forward_kappa=forward_kappa,
    )  # fmt: skip
    for message in prepared.changes.warnings:  # before anything is changed, for those who turn warnings into errors
        python_warnings.warn(message, ScalingWarning, stacklevel=2)
    if not dry_run:
        prepared.commit()
    return prepared.changes


@dataclass(frozen=True)
class Prepared:
    """A conversion that has been found possible, and not yet made.

    Args:
        changes: what will be changed, with the warnings.
        edits: what makes the changes.
    """

    changes: Changes
    edits: tuple[_Edit, ...]

    def commit(self) -> None:
        """Make the changes."""
        with torch.no_grad():
            for edit in self.edits:
                edit.commit()


def prepare(
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    kappa: float,
    *,
    scheduler: LRScheduler | Sequence[LRScheduler] | None = None,
    model: torch.nn.Module | Sequence[torch.nn.Module] | None = None,
    ema: Any = None,
    rule: str | Rule | None = None,
    state: bool = True,
    interval: Interval | Sequence[Interval] = "step",
    forward_kappa: float | None = None,
) -> Prepared:
    """Check a conversion and return it, not yet made; the arguments are those of `rescale_`."""
    kappa = positive("kappa", kappa)
    forward = kappa if forward_kappa is None else positive("forward_kappa", forward_kappa)
    targets = _targets(optimizer, rule)
    common = _common(targets)
    driving = _driving(targets, _several(scheduler), interval)
    edits: list[_Edit] = []
    messages: list[str] = []
    for target, driven in zip(targets, driving, strict=True):
        with _blaming(target.prefix):
            found, warned = _check(target, driven, kappa, state)
        edits += [replace(edit, changes=tuple(_named(target.prefix, edit.changes))) for edit in found]
        messages += [f"{target.prefix}{message}" for message in warned]
    norms = list(_batchnorm_edits(_several(model), common, forward))
    averages = [_ema_edit(one, common, kappa) for one in _several(ema)]
    rows = tuple(change for edit in (*edits, *norms, *averages) for change in edit.changes)
    made = [*([*edits, *averages] if kappa != 1 else ()), *(norms if forward != 1 else ())]
    return Prepared(Changes(kappa, common, rows, tuple(messages)), tuple(made))


def _targets(optimizer: Any, rule: str | Rule | None) -> list[_Target]:
    several = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
    if not several:
        raise ValueError(
            f"optimizer must be an optimizer or a sequence of them, got an empty {type(optimizer).__name__}"
        )
    targets: list[_Target] = []
    for i, one in enumerate(several):
        for j, other in enumerate(targets):
            if other.optimizer is one:
                raise ValueError(f"optimizer {i} is optimizer {j} again; give each of them once")
        prefix = f"optimizer {i}: " if len(several) > 1 else ""
        with _blaming(prefix):
            family = family_of(one)
        targets.append(_Target(one, family, get_rule(rule, family.name), prefix))
    _check_shared(targets)
    return targets


def _check_shared(targets: Sequence[_Target]) -> None:
    """A tensor that several optimizers have as their learning rate can follow one rule only."""
    holders: dict[int, int] = {}
    for i, target in enumerate(targets):
        for group, key in (
            (group, key) for group in target.optimizer.param_groups for key in target.family.torch.values
        ):
            for value in group[key] if isinstance(group[key], list | tuple) else [group[key]]:
                first = holders.setdefault(id(value), i) if isinstance(value, torch.Tensor) else i
                rules = targets[first].rule.name, target.rule.name
                if rules[0] != rules[1]:
                    raise ValueError(
                        f"optimizers {first} and {i} share a tensor as their {key}, but their rules are {rules[0]!r} "
                        f"and {rules[1]!r}; give each a tensor of its own"
                    )


@contextmanager
def _blaming(prefix: str) -> Iterator[None]:
    """Errors say which of several optimizers they are about."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if not prefix:
            raise
        raise type(error)(f"{prefix}{error}") from None


def _named(prefix: str, changes: Iterable[Change]) -> Iterator[Change]:
    return (replace(change, name=f"{prefix}{change.name}", field=f"{prefix}{change.field}") for change in changes)


def _common(targets: Sequence[_Target]) -> Rule:
    """What converts that which belongs to no single optimizer: their rule, or the rows in which their rules agree.

    Rules differ only where each optimizer follows its own, and those agree on parameter averages, BatchNorm and clips.
    """
    followers: dict[str, list[int]] = {}
    for i, target in enumerate(targets):
        followers.setdefault(target.rule.name, []).append(i)
    rules = {target.rule.name: target.rule for target in targets}
    first, *others = rules.values()
    if not others:
        return first
    units = {key: unit for key, unit in first.units.items() if all(rule.units.get(key) == unit for rule in others)}
    return replace(
        first,
        key=", ".join(f"{name} ({_some_of(numbers)})" for name, numbers in followers.items()),
        summary="each optimizer by its own rule; the rows are those in which the rules agree",
        units=MappingProxyType(units),
        averaging="paper",  # the key has the names in full
        left_out=(),
        holds_for=tuple(dict.fromkeys(target.family.name for target in targets)),
    )


def _some_of(numbers: Sequence[int]) -> str:
    return f"optimizer{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def _driving(targets: Sequence[_Target], given: list[Any], interval: Any) -> list[list[tuple[Any, str]]]:
    """The schedulers of each optimizer, with their intervals."""
    each = isinstance(interval, list | tuple)
    for one in interval if each else [interval]:
        if one not in ("step", "epoch"):
            raise ValueError(f"interval must be 'step' or 'epoch', got {one!r}")
    intervals = interval if each else [interval] * len(given)
    if len(intervals) != len(given):
        raise ValueError(
            f"interval must be one for all {len(given)} schedulers or one for each of them, got {len(intervals)}"
        )
    driving: list[list[tuple[Any, str]]] = [[] for _ in targets]
    seen: set[int] = set()
    for scheduler, one in zip(given, intervals, strict=True):
        if id(scheduler) in seen:
            raise ValueError(f"{type(scheduler).__name__} was given twice; give each scheduler once")
        seen.add(id(scheduler))
        drives = getattr(scheduler, "optimizer", None)
        owner = next((i for i, target in enumerate(targets) if target.optimizer is drives), None)
        if owner is None:
            if len(targets) == 1 or not isinstance(scheduler, LRScheduler):
                schedulers.check(scheduler, targets[0].optimizer, targets[0].rule, 1)  # says what is wrong with it
            raise ValueError(f"{type(scheduler).__name__} belongs to none of the {len(targets)} optimizers given")
        driving[owner].append((scheduler, one))
    return driving


def _check(
    target: _Target, driven: Sequence[tuple[Any, str]], kappa: float, state: bool
) -> tuple[list[_Edit], list[str]]:
    """All that has to be changed for one optimizer, and the warnings."""
    optimizer, family, rule = target.optimizer, target.family, target.rule
    messages = rule.check(family.name)
    for scheduler, _ in driven:
        schedulers.check(scheduler, optimizer, rule, kappa)
    if not driven and hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        messages.append("a scheduler drives this optimizer but was not given: it will set the old learning rates again")
    edits = [
        *_group_edits(optimizer, family, rule, kappa),
        *(_state_edits(optimizer, family, rule, kappa) if state else ()),
        *(_scheduler_edit(scheduler, rule, kappa, interval) for scheduler, interval in driven),
    ]
    return edits, messages + _guards(optimizer, family, rule, kappa)


def _several(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def _group_edits(optimizer: torch.optim.Optimizer, family: Family, rule: Rule, kappa: float) -> Iterator[_Edit]:
    groups: list[dict[str, Any]] = optimizer.param_groups
    for i, group in enumerate([*groups, optimizer.defaults]):  # groups that are added later start from the defaults
        unused = i == len(groups)
        units = dict(family.torch_units())
        if "decoupled_weight_decay" in group:
            units["weight_decay"] = "decoupled_decay" if group["decoupled_weight_decay"] else "l2"
        for key, unit in units.items():
            before = schedulers.read(group[key])
            try:
                after = schedulers.convert(rule, unit, before, kappa, key)
            except ValueError:
                if unused:  # it has no value there; no parameter follows it
                    continue
                raise
            suffix = f" (group {i})" if len(groups) > 1 else ""
            names = (key,) if isinstance(unit, str) else unit
            each = zip(names, _tuple(unit), _tuple(before), _tuple(after), strict=True)
            rows = tuple(Change(f"{name}{suffix}", old, new, rule.units.get(u)) for name, u, old, new in each)
            yield _Edit(() if unused else rows, partial(schedulers.write, group, key, after))
    for group, key in schedulers.places(optimizer):
        if key not in family.torch.values:  # what schedulers have stored there
            after = schedulers.convert(rule, schedulers.UNITS[key], schedulers.read(group[key]), kappa, key)
            yield _Edit((), partial(schedulers.write, group, key, after))


def _state_edits(optimizer: torch.optim.Optimizer, family: Family, rule: Rule, kappa: float) -> Iterator[_Edit]:
    for key, unit in family.torch_state_units().items():
        held = [state[key] for state in optimizer.state.values() if key in state]
        if not held:
            continue
        for one in held:
            if not isinstance(one, torch.Tensor):
                raise TypeError(f"the optimizer's state {key} must be a tensor, got {type(one).__name__}")
            if not one.is_floating_point():
                raise TypeError(f"the optimizer's state {key} must be a floating-point tensor, got {one.dtype}")
        factor = float(rule.convert(unit, 1.0, kappa))
        change = Change(f"factor of {key}", 1.0, factor, rule.units.get(unit), note=_some(held, "tensor"))
        yield _Edit((change,), partial(_multiply_, held, factor))


def _some(things: Sequence[Any], name: str) -> str:
    return f"{len(things)} {name}{'s' * (len(things) != 1)}"


def _multiply_(tensors: list[torch.Tensor], factor: float) -> None:
    """In place and without a copy; a tensor that several parameters share (a step counter) is changed once."""
    if factor == 1:
        return
    kinds: dict[type, dict[int, torch.Tensor]] = {}  # torch refuses to multiply DTensors and others at once
    for tensor in tensors:
        kinds.setdefault(type(tensor), {})[id(tensor)] = tensor
    for once in kinds.values():
        torch._foreach_mul_(list(once.values()), factor)


def _guards(optimizer: torch.optim.Optimizer, family: Family, rule: Rule, kappa: float) -> list[str]:
    messages: dict[str, None] = {}
    for group in optimizer.param_groups:
        values = {
            unit: value
            for key, units in family.torch_units().items()
            for unit, value in zip(_tuple(units), _tuple(schedulers.read(group[key])), strict=True)
        }
        messages |= dict.fromkeys(rule.check_averages(kappa, values.get("beta1", 0.0), values.get("beta2")))
    return [*messages, *_eps_dominates(optimizer, family)]


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _eps_dominates(optimizer: torch.optim.Optimizer, family: Family) -> list[str]:
    """A warning where eps, not sqrt(v), sets the size of most steps; looks at a sample of the coordinates."""
    key = family.torch.state_name("v")
    held = [
        (optimizer.state[parameter], group)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if key in optimizer.state.get(parameter, {}) and parameter.numel() and group["eps"]
    ]
    ratios = []
    for state, group in held[:: max(1, len(held) // 16)]:  # few tensors and few of each: this must cost nothing
        v = _sample(state[key])
        if family.bias_corrected:
            v = v / (1 - group["betas"][1] ** state["step"])  # v_hat
        ratios.append(v.sqrt() / group["eps"])
    if not ratios:
        return []
    ratio = torch.cat([one.cpu() for one in ratios])
    if not len(ratio):  # the shards of this rank are empty
        return []
    share = (ratio < 1).double().mean().item()
    if share <= 0.5:
        return []
    error = math.sqrt(share * (1 - share) / len(ratio))
    smaller = 1 / max(ratio.median().item(), 1e-30)
    return [
        f"eps is larger than sqrt(v) in {100 * share:.0f} +- {100 * error:.0f} % of the coordinates ({len(ratio)} "
        f"sampled): there the steps are those of SGD with learning rate lr / eps; an eps {show(smaller)} times smaller "
        "would let v set the size of half of them"
    ]


def _sample(tensor: torch.Tensor, size: int = 256) -> torch.Tensor:
    """Some hundreds of a tensor's values, evenly spaced in memory, so that no copy of the tensor is made."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    in_memory = local.detach().permute(sorted(range(local.dim()), key=local.stride, reverse=True))
    return in_memory.reshape(-1)[:: max(1, local.numel() // size)].float()


def _scheduler_edit(scheduler: LRScheduler, rule: Rule, kappa: float, interval: str) -> _Edit:
    before, after = schedulers.ticks(scheduler, 1, interval), schedulers.ticks(scheduler, kappa, interval)
    if before == after:
        note = "its clock is not the optimizer's: it is stepped as before"
    else:
        note = "steps of its own clock in one step of the optimizer"
    change = Change(f"{type(scheduler).__name__} clock", before, after, UNITS["steps"], note=note)
    return _Edit((change,), schedulers.rescale(scheduler, rule, kappa, interval))


def _batchnorm_edits(models: Sequence[Any], rule: Rule, kappa: float) -> Iterator[_Edit]:
    for model in models:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    layers: dict[float, list[Any]] = {}
    for module in torch.nn.ModuleList(models).modules():  # each layer once, however many of the models have it
        # _NormBase: BatchNorm in all its forms, and InstanceNorm that tracks statistics. None is a plain average.
        if isinstance(module, _NormBase) and module.track_running_stats and module.momentum is not None:
            layers.setdefault(float(module.momentum), []).append(module)
    for momentum, modules in layers.items():
        DOMAINS["batchnorm"]("BatchNorm momentum", momentum)
        after = float(rule.convert("batchnorm", momentum, kappa, "BatchNorm momentum"))
        change = Change(
            "BatchNorm momentum", momentum, after, rule.units.get("batchnorm"), note=_some(modules, "layer")
        )
        yield _Edit((change,), partial(_set_all, modules, "momentum", after))


def _set_all(objects: Iterable[Any], name: str, value: Any) -> None:
    for one in objects:
        setattr(one, name, value)


#: torch's makers of exponential averages, by the attribute of AveragedModel that holds what they make.
_EMA_MAKERS: dict[str, Callable[[float], Any]] = {"multi_avg_fn": get_ema_multi_avg_fn, "avg_fn": get_ema_avg_fn}


def _set_average(ema: AveragedModel, attribute: str, maker: Callable[[float], Any], decay: float) -> None:
    setattr(ema, attribute, maker(decay))


def _ema_edit(ema: Any, rule: Rule, kappa: float) -> _Edit:
    if isinstance(ema, AveragedModel):
        for attribute, maker in _EMA_MAKERS.items():
            function: Any = getattr(ema, attribute, None)
            # torch keeps the decay only in the closure of the function that its maker returned.
            if getattr(function, "__qualname__", "").startswith(f"{maker.__name__}.<locals>."):
                before = float(inspect.getclosurevars(inspect.unwrap(function)).nonlocals["decay"])
                return _decay_edit(before, rule, kappa, partial(_set_average, ema, attribute, maker))
        raise TypeError(
            "this AveragedModel has no exponential average of torch's (torch.optim.swa_utils.get_ema_multi_avg_fn or "
            "get_ema_avg_fn): an average of equal weights needs no conversion; convert your own function yourself"
        )
    if not isinstance(getattr(ema, "decay", None), float | int):
        raise TypeError(
            f"ema must be an AveragedModel or have a number as its attribute decay, got {type(ema).__name__}"
        )
    try:
        ema.decay = ema.decay
    except AttributeError as error:
        raise TypeError(f"the decay of {type(ema).__name__} cannot be set ({error}); convert it yourself") from None
    return _decay_edit(float(ema.decay), rule, kappa, partial(setattr, ema, "decay"))


def _decay_edit(before: float, rule: Rule, kappa: float, commit: Callable[[float], None]) -> _Edit:
    DOMAINS["ema"]("EMA decay", before)
    after = float(rule.convert("ema", before, kappa, "EMA decay"))
    return _Edit((Change("EMA decay", before, after, rule.units.get("ema")),), partial(commit, after))
