"""Find optimizers, schedulers and averages in what `torch.save` wrote, wherever people put them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rootscale.checkpoints.optimizers import SavedOptimizer, is_optimizer
from rootscale.checkpoints.pickled import Kept, name_of
from rootscale.checkpoints.rebase import Contents
from rootscale.checkpoints.schedulers import SavedScheduler, is_scheduler

#: Words that people name a scheduler and a number of epochs by.
_SCHEDULERS = ("scheduler", "lr_scheduler", "lr_schedulers", "schedulers", "scheduler_state_dict", "lr_sched", "sched")
_EPOCHS = ("epoch", "last_epoch", "epochs", "current_epoch")
_DEPTH = 4
#: Names of a counter of steps, and of what holds a run's settings, whose numbers a resumed run takes from its script.
_STEPS = re.compile(r"(?:.*_)?(?:steps?|it|iters?|iterations?|updates)(?:_.*)?", re.IGNORECASE)
_SETTINGS = re.compile(r".*(?:config|args|params|parameters).*", re.IGNORECASE)


@dataclass(frozen=True)
class Keys:
    """What a user says about where things are.

    Args:
        optimizer: keys of the optimizers, dotted where nested; none are found.
        scheduler: keys of the schedulers; none are found.
        kind: the family of the optimizers; None is found.
        interval: of the schedulers, ``step`` or ``epoch``; None is found.
        counters: keys of numbers that count steps, such as ``iter_num``.
    """

    optimizer: Sequence[str] = ()
    scheduler: Sequence[str] = ()
    kind: str | None = None
    interval: str | None = None
    counters: Sequence[str] = ()


def _walk(thing: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield every dictionary of what was read by its path; those of optimizers and schedulers are not walked into."""
    if isinstance(thing, dict):
        yield path, thing
    if depth >= _DEPTH or is_optimizer(thing) or is_scheduler(thing):
        return
    if isinstance(thing, dict):
        for key, value in thing.items():
            yield from _walk(value, f"{path}.{key}" if path else str(key), depth + 1)
    elif isinstance(thing, list | tuple):
        for i, value in enumerate(thing):
            yield from _walk(value, f"{path}.{i}", depth + 1)


def find_contents(root: Any, tensor: Callable[[Any], Tensor | None], keys: Keys, name: str) -> Contents:
    """Return what a saved dictionary holds of a run.

    Args:
        root: the dictionary, as it was read.
        tensor: returns a tensor of the file.
        keys: what the user says.
        name: of the file.

    Raises:
        ValueError: there is no optimizer, or something whose meaning is not known.
    """
    found = dict(_walk(root))
    optimizers = {path: one for path, one in found.items() if is_optimizer(one)}
    schedulers = {path: one for path, one in found.items() if is_scheduler(one)}
    if keys.optimizer:
        optimizers = {path: _at(root, path, is_optimizer, "--optimizer-key") for path in keys.optimizer}
    if keys.scheduler:
        schedulers = {path: _at(root, path, is_scheduler, "--scheduler-key") for path in keys.scheduler}
    if not optimizers:
        raise ValueError(_no_optimizer(root, name))
    if not keys.scheduler:
        check_schedulers(root, list(schedulers))
    top = root if isinstance(root, dict) and not is_optimizer(root) else {}
    return Contents(
        [
            SavedOptimizer(path or "the optimizer", one["param_groups"], one["state"], tensor, keys.kind)
            for path, one in optimizers.items()
        ],
        [SavedScheduler(path or "the scheduler", one, tensor, keys.interval) for path, one in schedulers.items()],
        {path: one for path, one in found.items() if _has_decay(path, one)},
        next((top[key] for key in _EPOCHS if isinstance(top.get(key), int)), None),
        any(has_norms(one) for one in found.values()),
        any(_is_average(path, one) for path, one in found.items()),
        _counters({path: one for path, one in found.items() if not (is_optimizer(one) or is_scheduler(one))}),
        named={path: _counter(root, path) for path in keys.counters},
    )


def _counter(root: Any, path: str) -> tuple[Any, Any]:
    """Return the dictionary that a counter is in, and its key there."""
    above, _, name = path.rpartition(".")
    holder = _follow(root, above, "--counter") if above else root
    if not isinstance(holder, dict) or name not in holder:
        there = ", ".join(map(str, holder)) if isinstance(holder, dict) else name_of(holder)
        raise ValueError(f"--counter {path}: there is no {name!r}; there are {there[:200]}")
    value = holder[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"--counter {path} must be a whole number of steps, got {name_of(value)} {str(value)[:50]}")
    return holder, name


def _counters(found: Mapping[str, Any]) -> dict[str, int]:
    """Return the numbers in dictionaries, by path, that may count steps by their names."""
    return {
        f"{path}.{key}" if path else key: value
        for path, one in found.items()
        if not _SETTINGS.fullmatch(path)
        for key, value in one.items()
        if isinstance(key, str) and _STEPS.fullmatch(key)
        if isinstance(value, int) and not isinstance(value, bool) and value
    }


def _follow(root: Any, path: str, option: str) -> Any:
    """Return what is at a dotted path."""
    thing = root
    for part in path.split("."):
        if isinstance(thing, dict) and part in thing:
            thing = thing[part]
        elif isinstance(thing, list) and part.isdigit() and int(part) < len(thing):
            thing = thing[int(part)]
        else:
            there = ", ".join(map(str, thing)) if isinstance(thing, dict) else type(thing).__name__
            raise ValueError(f"{option} {path}: there is no {part!r}; there are {there[:200]}")
    return thing


def _at(root: Any, path: str, fits: Callable[[Any], bool], option: str) -> Any:
    thing = _follow(root, path, option)
    if not fits(thing):
        what = "an optimizer's" if option == "--optimizer-key" else "a scheduler's"
        raise ValueError(f"{option} {path} is not {what} state_dict, but a {name_of(thing)}")
    return thing


def _no_optimizer(root: Any, name: str) -> str:
    if isinstance(root, Kept):
        return (
            f"{name} holds a whole {name_of(root)} object, not dictionaries: save the state_dict() of the model, the "
            "optimizer and the scheduler instead"
        )
    objects = [key for key, value in root.items() if isinstance(value, Kept)] if isinstance(root, dict) else []
    for key in objects:
        if ".optim" in name_of(root[key]):
            return f"{key} of {name} is a whole {name_of(root[key])} object: save its state_dict() instead"
    there = ", ".join(map(str, root)) if isinstance(root, dict) else name_of(root)
    return (
        f"{name} has no optimizer's state_dict (a dictionary with 'state' and 'param_groups'), so that there is no run "
        f"to convert: a model alone is the same at every batch size. It has {there[:200]}"
    )


def check_schedulers(root: Any, known: Iterable[str]) -> None:
    """Refuse a scheduler that is not of torch's kind: left as it is, it would go on in the old units.

    Args:
        root: what was saved.
        known: the paths of the schedulers that were found.
    """
    for key in _SCHEDULERS if isinstance(root, dict) else ():
        held = root.get(key)
        inside = any(path == key or path.startswith(f"{key}.") for path in known)
        if held and not inside:
            raise ValueError(
                f"{key} holds a scheduler that is not known (a {name_of(held)} without last_epoch): make it anew for "
                "the new batch size (rootscale.Plan.at gives its steps and learning rates) and save without it"
            )


_AVERAGE = re.compile(r"(^|.*[_.])ema([_.].*|$)", re.IGNORECASE)


def _has_decay(path: str, thing: Any) -> bool:
    """Return whether a dictionary is of a parameter average that saves its decay."""
    decay = thing.get("decay")
    named = _AVERAGE.fullmatch(path) or {"shadow_params", "shadow"} & thing.keys()
    return bool(named) and isinstance(decay, float) and 0 < decay < 1


def _is_average(path: str, thing: Any) -> bool:
    """Return whether a dictionary is of a parameter average whose decay is in the user's program."""
    named = _AVERAGE.fullmatch(path) or "n_averaged" in thing
    return bool(named and thing) and "decay" not in thing


def has_norms(model: Any) -> bool:
    """Return whether the ``state_dict`` of a model has running statistics."""
    return any(str(key).endswith("running_mean") for key in model)
