"""What decides the result of a run: a task as digests of its plan, data, model and functions.

Code of one's own counts as it is written, with what it refers to; that of libraries by its name alone, so that a run
stays what it is when torch is upgraded or the runs move to another machine. Values count in full.
"""

from __future__ import annotations

import hashlib
import inspect
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rootscale.lab.task import Task

__all__ = ["describe"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_INSTALLED = ("site-packages", "dist-packages")


@lru_cache(maxsize=4)  # it makes a model, and is asked for by every run
def describe(task: Task) -> dict[str, Any]:
    """What a task is, as far as that can be seen."""
    functions = [
        task.loss,
        task.prepare,
        task.augment,
        task.optimizer,
        *task.metrics.values(),
        *task.functions.values(),
    ]
    return {
        "name": task.name,
        "plan": task.plan.to_dict(),
        "model": _model_digest(task.model),
        "train": _data_digest(task.train),
        "test": _data_digest(task.test),
        "measured": [*task.metrics, *task.functions],
        "functions": _digest(*(text for function in functions for text in _written(function, {}))),
    }


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


# -- data ------------------------------------------------------------------------------------------------------------


def _data_digest(data: Any) -> str:
    if data is None:
        return "none"
    if is_dataclass(data):
        return _digest(*_written(data, {}))
    index = torch.linspace(0, len(data) - 1, min(len(data), 64)).long()  # it may read them from a disk, one by one
    return _digest(str(len(data)), *(text for tensor in data[index] for text in _values(tensor)))


def _values(tensor: Tensor) -> Iterator[str]:
    """Shape, type and a digest of all values."""
    here = tensor.detach().cpu().contiguous()
    raw: Any = here.reshape(-1).view(torch.uint8).numpy() if here.numel() else b""
    yield f"{list(here.shape)} {here.dtype} {hashlib.sha256(raw).hexdigest()}"


# -- models ----------------------------------------------------------------------------------------------------------


def _model_digest(make: Callable[[], nn.Module]) -> str:
    """Of what makes a model, and of its layers; a large one takes seconds, and tasks that differ in data share it."""
    if not isinstance(make, partial):
        return _made_digest.__wrapped__(make, (), (), "")
    given = make.args, tuple(make.keywords.items())
    try:
        return _made_digest(make.func, *given, repr(given))
    except TypeError:  # arguments that cannot be looked up
        return _made_digest.__wrapped__(make.func, *given, "")


@lru_cache(maxsize=64)
def _made_digest(
    make: Callable[..., nn.Module], args: tuple[Any, ...], keywords: tuple[tuple[str, Any], ...], written: str
) -> str:
    """``written`` tells 1 from 1.0, which layers show."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make(*args, **dict(keywords))
    known = getattr(make, "__name__", "<lambda>") != "<lambda>" and not _of_a_library(make)
    return _digest(*(_source(make) if known else ()), *_layers(model))


def _layers(model: nn.Module) -> Iterator[str]:
    """Every layer at its place, with what it was made with, and the code of one's own classes once."""
    kinds: dict[type, None] = {}
    for name, layer in model.named_modules(remove_duplicate=False):
        kinds[type(layer)] = None
        yield f"{name} {type(layer).__qualname__} {' '.join(_settings(layer))}"
    for kind in kinds:
        if not _of_a_library(kind):
            yield from _source(kind)
    for name, p in model.named_parameters(remove_duplicate=False):
        yield f"{name} {list(p.shape)} {p.dtype} {p.requires_grad}"


def _settings(layer: nn.Module) -> Iterator[str]:
    """Attributes of a layer that its class takes as arguments, where they are not the default.

    A newer version of a library may have more of them; those nobody sets change nothing.
    """
    kind: Any = type(layer)
    for name, argument in _arguments(kind).items():
        value = vars(layer).get(name, argument.default)
        if isinstance(value, _PLAIN) or (isinstance(value, tuple | list) and all(isinstance(x, _PLAIN) for x in value)):
            if value is not argument.default and value != argument.default:
                yield f"{name}={value!r}"
        elif callable(value) and not isinstance(value, nn.Module):
            yield f"{name}={getattr(value, '__qualname__', type(value).__qualname__)}"


@lru_cache(maxsize=1024)
def _arguments(kind: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(kind).parameters
    except ValueError:  # one that cannot be told
        return {}


# -- functions and other values --------------------------------------------------------------------------------------


#: Objects by their id, which they keep while they are held here.
Seen = dict[int, Any]


def _written(value: Any, seen: Seen) -> Iterator[str]:
    """A value as text that is the same wherever an equal value is.

    Code counts once. Everything else counts wherever it stands, but not within itself: ``seen`` has the code so far,
    and the objects on the way to this one.
    """
    if isinstance(value, _PLAIN):
        yield f"{type(value).__name__} {value!r}"
        return
    if id(value) in seen:
        return
    seen[id(value)] = value
    yield from _parts(value, seen)
    if not _is_code(value):
        del seen[id(value)]


def _parts(value: Any, seen: Seen) -> Iterator[str]:
    if isinstance(value, Tensor | np.ndarray):
        yield from _values(torch.as_tensor(value))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from (*_written(key, seen), *_written(item, seen))
    elif isinstance(value, tuple | list | set | frozenset):
        yield f"{type(value).__name__} {len(value)}"
        for item in sorted(value, key=repr) if isinstance(value, set | frozenset) else value:
            yield from _written(item, seen)
    elif isinstance(value, partial):
        yield from (*_written(value.func, seen), *_written(value.args, seen), *_written(value.keywords, seen))
    elif isinstance(value, MethodType):
        yield from (*_written(value.__func__, seen), *_written(value.__self__, seen))
    elif isinstance(value, ModuleType):
        yield value.__name__
    elif _is_code(value):
        yield from _code(value, seen)
    elif isinstance(value, nn.Module):
        yield from (*_layers(value), *_written(value.state_dict(), seen))
    else:  # an object: what it is of, and what it holds, unless a library knows that better
        yield from (*_code(type(value), seen), getattr(value, "__name__", ""))
        names = [f.name for f in fields(value)] if is_dataclass(value) else sorted(getattr(value, "__dict__", ()))
        for name in names if is_dataclass(value) or not _of_a_library(type(value)) else ():
            yield name
            yield from _written(getattr(value, name), seen)


def _is_code(value: Any) -> bool:
    """Functions and classes, also wrapped ones and those of C."""
    if isinstance(value, type) or hasattr(value, "__wrapped__"):
        return True
    return inspect.isfunction(value) or inspect.isbuiltin(value) or inspect.ismethoddescriptor(value)


def _code(value: Any, seen: Seen) -> Iterator[str]:
    """A function or class: its name, and, where it is one's own, how it is written and what it refers to."""
    value = inspect.unwrap(value)
    yield getattr(value, "__qualname__", type(value).__qualname__)
    if _of_a_library(value):
        return
    yield from _source(value)
    if isinstance(value, FunctionType):
        found = inspect.getclosurevars(value)
        own = value.__module__.partition(".")[0] != "rootscale"
        for name, other in (*found.nonlocals.items(), *(found.globals.items() if own else ())):
            yield name
            yield from _written(other, seen)


def _source(value: Any) -> Iterator[str]:
    try:
        yield inspect.getsource(value)
    except (OSError, TypeError):  # typed into an interpreter
        code = getattr(value, "__code__", None)
        if code is not None:
            yield f"{code.co_code.hex()} {code.co_names} {[x for x in code.co_consts if isinstance(x, _PLAIN)]}"


def _of_a_library(value: Any) -> bool:
    try:
        place = Path(inspect.getfile(value))
    except TypeError:  # built in
        return True
    except OSError:
        return False
    return any(part in _INSTALLED for part in place.parts) or place.is_relative_to(sysconfig.get_path("stdlib"))
