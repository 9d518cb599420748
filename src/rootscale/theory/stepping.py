"""Steps of many paths at once: counter-based normals, blocks of steps, and ``torch.compile`` where it works."""

from __future__ import annotations

import contextlib
import functools
import math
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from rootscale.theory import random

__all__ = ["Advance", "State", "States", "Stepper", "System"]

State = tuple[Tensor, ...]
States = tuple[State, ...]

#: Keys made at a time: at most so many numbers, for at most so many blocks of steps (then progress is reported).
KEYS, BLOCKS = 1 << 18, 256


class Advance(Protocol):
    """One base step of all systems, a pure function of tensors."""

    def __call__(self, k: Tensor, t: Tensor, h: float | Tensor, x: States, w: tuple[Tensor, ...]) -> States:
        """Return the states at ``t + h``.

        Args:
            k: the index of the step, from 0 (float64, no dimensions, so that a compiled step serves all steps).
            t: the time at its start (likewise).
            h: its length.
            x: the states, each a tuple of ``[P, d]``.
            w: ``draws`` independent standard normals ``[P, width]``, which belong to this step alone.
        """


@dataclass(frozen=True)
class System:
    """What is advanced, and what a step of it takes.

    Args:
        advance: one base step; hashable, if compiled steps are to be found again in a later call.
        h: the length of a step.
        width: how many normals a path takes in one draw.
        draws: how many independent draws a step takes.
    """

    advance: Advance
    h: float
    width: int
    draws: int = 1


@dataclass
class Stepper:
    """Takes steps in blocks: two normals come from one hash, so an odd number of draws makes a block of two steps.

    Args:
        system: what is advanced.
        t0: the time of the initial state.
        seed: of the normals.
        by_path: lay memory out path by path.
        compiled: take steps with ``torch.compile``.
    """

    system: System
    t0: float
    seed: int
    by_path: bool
    compiled: bool

    def __post_init__(self) -> None:
        self.span = 1 + self.system.draws % 2
        self.pairs = self.span * self.system.draws // 2
        self.tasks: dict[tuple[int, int], Callable[..., States]] = {}

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Let torch keep as many versions of a compiled step as there are shapes."""
        if not self.compiled:
            yield
            return
        import torch._dynamo.config as config

        with config.patch(recompile_limit=256):
            yield

    def start(self, first: int, size: int, like: Tensor) -> None:
        """Begin a chunk of ``size`` paths from path ``first`` on."""
        path = random.paths(first, size, like.device)
        self.path = path[None, :] if self.by_path else path[:, None]
        self.like = like
        self.length = (
            torch.tensor(self.system.h, dtype=torch.float64, device=like.device) if self.compiled else self.system.h
        )

    def run(self, x: States, start: int, stop: int) -> tuple[States, int]:
        """Take steps from ``start`` as far towards ``stop`` as `KEYS` and `BLOCKS` go; return states and how far."""
        span, device = self.span, self.like.device
        first = start // span
        many = max(1, min(BLOCKS, KEYS // (4 * self.system.width * self.pairs)))
        stop = min(stop, (first + many) * span)
        blocks = math.ceil(stop / span) - first
        shape = (
            (blocks, self.pairs, 4, self.system.width, 1)
            if self.by_path
            else (blocks, self.pairs, 4, 1, self.system.width)
        )
        keys = random.keys(self.seed, first * self.pairs, blocks * self.pairs, self.system.width, device).view(shape)
        ks = torch.arange(first * span, (first + blocks) * span, dtype=torch.float64)
        ts = (self.t0 + ks * self.system.h).to(device).view(blocks, span)
        for i, (key, k, t) in enumerate(zip(keys, ks.to(device).view(blocks, span), ts, strict=True), start=first):
            x = self.block(max(start - i * span, 0), min(stop - i * span, span), key, k, t, x)
        return x, stop

    def block(self, low: int, high: int, key: Tensor, k: Tensor, t: Tensor, x: States) -> States:
        """Take the steps ``low`` to ``high`` of a block, compiled if that works here."""
        arguments = (self.path, key, k, t, self.length, x)
        if (low, high) in self.tasks:
            return self.tasks[low, high](*arguments)
        plain = _Block(self.system.advance, low, high, self.system.draws, self.by_path, self.like.dtype)
        self.tasks[low, high] = _compiled(plain) if self.compiled else plain
        try:
            with warnings.catch_warnings():  # torch's own, on its way to a compiler
                warnings.simplefilter("ignore", DeprecationWarning)
                return self.tasks[low, high](*arguments)
        except Exception as error:
            if not self.compiled:
                raise
            result = plain(*arguments)  # a mistake in the step itself is raised here, without the compiler's frames
            self.compiled, self.length, self.tasks = False, self.system.h, {}
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            warnings.warn(
                f"torch.compile does not work here, steps are taken eagerly: {reason}", RuntimeWarning, stacklevel=2
            )
            return result


@dataclass(frozen=True)
class _Block:
    """The steps ``low`` to ``high`` of a block, normals included, as one function of tensors."""

    advance: Advance
    low: int
    high: int
    draws: int
    by_path: bool
    dtype: torch.dtype

    def __call__(self, path: Tensor, key: Tensor, k: Tensor, t: Tensor, h: float | Tensor, x: States) -> States:
        w = [z.mT if self.by_path else z for row in key.unbind() for z in random.pair(path, row, self.dtype)]
        for i in range(self.low, self.high):
            x = self.advance(k[i], t[i], h, x, tuple(w[i * self.draws : (i + 1) * self.draws]))
        return x


def _compiled(task: _Block) -> Callable[..., States]:
    try:
        hash(task)
    except TypeError:  # compiled for this call only
        return _compile.__wrapped__(task)
    return _compile(task)


@functools.lru_cache(maxsize=64)
def _compile(task: _Block) -> Callable[..., States]:
    # Compiled code is stored with a function's code object, and only so many versions of it are. Hence a copy of it.
    plain = _Block.__call__
    copy = types.FunctionType(plain.__code__.replace(), plain.__globals__, plain.__name__)
    return torch.compile(types.MethodType(copy, task), dynamic=False, fullgraph=True, options=_options())


def _options() -> dict[str, Any]:
    """Let a CPU multiply and add in one instruction, a fifth faster; not all versions of torch have the switch."""
    import torch._inductor.config as config

    switch = "enable_floating_point_contract_flag"
    return {f"cpp.{switch}": "fast"} if isinstance(getattr(config.cpp, switch, None), str) else {}
