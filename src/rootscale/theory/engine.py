"""Many paths through time, driven by counter-based normals: chunks of paths, compiled steps, statistics on the fly.

Nothing here knows an SDE. `drive` repeats ``advance`` (one base step of any number of coupled systems: solvers at
several step sizes, discrete chains) and evaluates test functions at requested steps. Paths are taken in chunks that fit
the cache; what is kept of a path is its state, so memory does not grow with the number of steps.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import time
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from rootscale.hparams import positive
from rootscale.theory import random
from rootscale.trajectory import Estimate, Trajectory

__all__ = ["Advance", "State", "States", "drive"]

State = tuple[Tensor, ...]
States = tuple[State, ...]
Observe = Callable[[float, States], Mapping[str, Tensor]]

#: Path-coordinates in a chunk; and, eagerly on a CPU, the bytes of one tensor for each thread: what its cache holds
#: several of, since every operation is a pass over memory.
CHUNK_FUSED, CHUNK_GPU, CACHE = 1 << 20, 1 << 24, 1 << 19
#: From this many normals on a solve is compiled by default: then a plain SDE takes some seconds and a weak error with
#: its controls a minute, as against 5 and 20 seconds for a compilation.
WORTH_COMPILING = 300_000_000
#: Keys made at a time: at most so many numbers, for at most so many blocks of steps (then the progress bar moves).
KEYS, BLOCKS = 1 << 18, 256
#: Below this many coordinates memory is laid out path by path, because the inner loop should be the long one.
NARROW = 64


class Advance(Protocol):
    """One base step of all systems, a pure function of tensors."""

    def __call__(self, k: Tensor, t: Tensor, h: float | Tensor, x: States, w: tuple[Tensor, ...]) -> States:
        """The states at ``t + h``.

        Args:
            k: the index of the step, from 0 (float64, no dimensions, so that a compiled step serves all steps).
            t: the time at its start (likewise).
            h: its length.
            x: the states, each a tuple of ``[P, d]``.
            w: ``draws`` independent standard normals ``[P, width]``, which belong to this step alone.
        """


def drive(
    advance: Advance,
    x0: States,
    observe: Observe,
    *,
    steps: Sequence[int],
    h: float,
    width: int,
    seed: int,
    draws: int = 1,
    t0: float = 0.0,
    paths: int | None = None,
    keep: bool = False,
    compile: bool | None = None,
    chunk: int | None = None,
    progress: bool | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Trajectory:
    """Advances all paths and returns the test functions at the requested steps.

    The normals of a step are a function of ``(seed, path, k * draws + i, coordinate)`` alone: draw ``i`` of step ``k``
    is ``normal(seed, k * draws + i, ...)`` of `rootscale.theory.random`.

    Args:
        advance: one base step; hashable, if compiled steps are to be found again in a later call.
        x0: the initial states, tensors ``[P, d]`` or ``[1, d]``; their device and dtype are those of the solve.
        observe: the test functions of ``(t, states)``, each ``[P]``.
        steps: after how many steps to observe, increasing; 0 is the initial state.
        h: the length of a step.
        width: how many normals a path takes in one draw.
        seed: of the normals.
        draws: how many independent draws a step takes.
        t0: the time of the initial state.
        paths: how many, if ``x0`` is the same for all.
        keep: keep the values of every path, not only mean and standard error.
        compile: take steps with ``torch.compile``; by default if the solve is long enough to pay for it. Without a
            C++ compiler (on a GPU: without triton) steps are taken eagerly, and a warning says so.
        chunk: how many paths to advance at a time; a change alters results by rounding at most.
        progress: a progress bar, on a terminal: from the second second on by default, at once if True, never if False.
        meta: what to write into the trajectory's ``meta``, beside seed, step and number of paths.

    Warns:
        RuntimeWarning: paths diverged (a state or test function was not finite when observed). They are counted in the
            trajectory's ``diverged`` and left out of its means.
    """
    count, marks, h = _path_count(x0, paths), _checked_steps(steps), positive("h", h)
    if width < 1 or draws < 1:
        raise ValueError(f"width and draws must be at least 1, got width={width}, draws={draws}")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk must be at least 1 path, got {chunk}")
    sample = x0[0][0]
    coordinates = max(width, *(x.shape[-1] for state in x0 for x in state))
    if compile is None:
        compile = count * width * draws * marks[-1] > WORTH_COMPILING
    limit = chunk or max(1, _room(sample, compile) // coordinates)
    # Chunks of one size, the last one filled up: a compiled step is made for one shape.
    size = math.ceil(count / math.ceil(count / limit))
    stepper = _Stepper(advance, h, t0, width, draws, seed, coordinates < NARROW and size > coordinates, compile)
    total = _Statistics(len(marks))
    kept: dict[str, list[Tensor]] = {}
    with torch.no_grad(), _bar(progress, math.ceil(count / size) * marks[-1]) as tick, stepper.running():
        for first in range(0, count, size):
            rows = torch.arange(first, first + size, device=sample.device).clamp_(max=count - 1)
            real = min(size, count - first)
            x = _map(x0, functools.partial(_chunk, rows=rows, by_path=stepper.by_path))
            stepper.start(first, size, sample)
            lost = torch.zeros(real, dtype=torch.bool, device=sample.device)
            columns: dict[str, list[Tensor]] = {}
            done = 0
            for column, mark in enumerate(marks):
                while done < mark:
                    x, done = stepper.run(x, done, mark)
                    tick(done)
                values = {n: v.detach()[:real].double() for n, v in observe(t0 + mark * h, x).items()}
                for tensor in (*(y[:real] for state in x for y in state), *(v[:, None] for v in values.values())):
                    lost = lost | ~torch.isfinite(tensor).all(-1)
                total.add(column, values, lost)
                if keep:
                    for name, value in values.items():
                        columns.setdefault(name, []).append(torch.where(lost, torch.nan, value).cpu())
            for name, rows_of in columns.items():
                kept.setdefault(name, []).append(torch.stack(rows_of, 1))
            tick(None)
    _report(total.diverged, count, [t0 + mark * h for mark in marks])
    about: dict[str, Any] = {"seed": seed, "h": h, "t0": t0, "paths": count}
    about |= {"dtype": str(sample.dtype).removeprefix("torch."), "device": sample.device.type}
    return Trajectory(
        np.array([t0 + mark * h for mark in marks]),
        {name: torch.cat(chunks).numpy() for name, chunks in kept.items()},
        {} if keep else total.estimates(),
        count,
        total.diverged,
        {**about, **(meta or {})},
    )


def _room(x: Tensor, compiled: bool) -> int:
    """Path-coordinates of a chunk."""
    if x.device.type != "cpu":
        return CHUNK_GPU
    return CHUNK_FUSED if compiled else CACHE * torch.get_num_threads() // x.element_size()


def _path_count(x0: States, paths: int | None) -> int:
    tensors = [x for state in x0 for x in state]
    if not tensors or any(x.ndim != 2 for x in tensors):
        shapes = [list(x.shape) for x in tensors]
        raise ValueError(f"initial states must be [P, d], or [1, d] for a common start, got {shapes}")
    kinds = {(x.dtype, x.device) for x in tensors}
    if len(kinds) > 1 or not {dtype for dtype, _ in kinds} <= {torch.float32, torch.float64}:
        raise ValueError(
            "initial states must all be float32 or all float64, on one device, got "
            + ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        )
    sizes = {x.shape[0] for x in tensors} - {1}
    if len(sizes) > 1 or (sizes and paths is not None and sizes != {paths}):
        raise ValueError(f"the numbers of paths differ: states have {sorted(sizes)}, paths={paths}")
    count = paths if paths is not None else next(iter(sizes), 1)
    if count < 1:
        raise ValueError(f"paths must be at least 1, got {count}")
    return count


def _checked_steps(steps: Sequence[int]) -> list[int]:
    marks = [int(step) for step in steps]
    if not marks or marks[0] < 0 or any(b <= a for a, b in itertools.pairwise(marks)):
        raise ValueError(f"steps must be increasing whole numbers, 0 or above, got {list(steps)}")
    return marks


def _map(x: States, f: Callable[[Tensor], Tensor]) -> States:
    """``f`` of every tensor; named tuples stay what they are."""
    return tuple(getattr(type(state), "_make", tuple)([f(y) for y in state]) for state in x)


def _chunk(x: Tensor, rows: Tensor, by_path: bool) -> Tensor:
    x = x.expand(len(rows), -1) if x.shape[0] == 1 else x[rows]
    return x.mT.contiguous().mT if by_path else x.contiguous()


def _report(diverged: np.ndarray[Any, Any], count: int, times: list[float]) -> None:
    if diverged[-1]:
        seen = times[int(np.argmax(diverged > 0))]
        warnings.warn(
            f"{diverged[-1]} of {count} paths diverged (first seen at t={seen:g}); means are over the others. "
            "A smaller h may help, unless the equation itself diverges.",
            RuntimeWarning,
            stacklevel=3,
        )


@dataclass
class _Stepper:
    """Takes steps in blocks: two normals come from one hash, so an odd number of draws makes a block of two steps."""

    advance: Advance
    h: float
    t0: float
    width: int
    draws: int
    seed: int
    by_path: bool
    compiled: bool

    def __post_init__(self) -> None:
        self.span = 1 + self.draws % 2
        self.pairs = self.span * self.draws // 2
        self.tasks: dict[tuple[int, int], Callable[..., States]] = {}

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Lets torch keep as many versions of a compiled step as there are shapes."""
        if not self.compiled:
            yield
            return
        import torch._dynamo.config as config

        with config.patch(recompile_limit=256):
            yield

    def start(self, first: int, size: int, like: Tensor) -> None:
        path = random.paths(first, size, like.device)
        self.path = path[None, :] if self.by_path else path[:, None]
        self.like = like
        self.length = torch.tensor(self.h, dtype=torch.float64, device=like.device) if self.compiled else self.h

    def run(self, x: States, start: int, stop: int) -> tuple[States, int]:
        """Steps from ``start`` towards ``stop``, as far as `KEYS` and `BLOCKS` go; the states, and how far that is."""
        span, device = self.span, self.like.device
        first = start // span
        many = max(1, min(BLOCKS, KEYS // (4 * self.width * self.pairs)))
        stop = min(stop, (first + many) * span)
        blocks = math.ceil(stop / span) - first
        shape = (blocks, self.pairs, 4, self.width, 1) if self.by_path else (blocks, self.pairs, 4, 1, self.width)
        keys = random.keys(self.seed, first * self.pairs, blocks * self.pairs, self.width, device).view(shape)
        ks = torch.arange(first * span, (first + blocks) * span, dtype=torch.float64)
        ts = (self.t0 + ks * self.h).to(device).view(blocks, span)
        for i, (key, k, t) in enumerate(zip(keys, ks.to(device).view(blocks, span), ts, strict=True), start=first):
            x = self.block(max(start - i * span, 0), min(stop - i * span, span), key, k, t, x)
        return x, stop

    def block(self, low: int, high: int, key: Tensor, k: Tensor, t: Tensor, x: States) -> States:
        arguments = (self.path, key, k, t, self.length, x)
        if (low, high) in self.tasks:
            return self.tasks[low, high](*arguments)
        plain = _Block(self.advance, low, high, self.draws, self.by_path, self.like.dtype)
        self.tasks[low, high] = _compiled(plain) if self.compiled else plain
        try:
            with warnings.catch_warnings():  # torch's own, on its way to a compiler
                warnings.simplefilter("ignore", DeprecationWarning)
                return self.tasks[low, high](*arguments)
        except Exception as error:
            if not self.compiled:
                raise
            result = plain(*arguments)  # a mistake in the step itself is raised here, without the compiler's frames
            self.compiled, self.length, self.tasks = False, self.h, {}
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            warnings.warn(f"torch.compile is of no use here, going on eagerly: {reason}", RuntimeWarning, stacklevel=2)
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
    """Lets a CPU multiply and add in one instruction, a fifth faster; not all versions of torch have the switch."""
    import torch._inductor.config as config

    switch = "enable_floating_point_contract_flag"
    return {f"cpp.{switch}": "fast"} if isinstance(getattr(config.cpp, switch, None), str) else {}


class _Statistics:
    """Mean and squared deviations at each requested time, chunk by chunk (Chan, Golub and LeVeque's update)."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.diverged = np.zeros(columns, np.int64)
        self.count = np.zeros(columns)
        self.moments: dict[str, np.ndarray[Any, np.dtype[np.float64]]] = {}

    def add(self, column: int, values: Mapping[str, Tensor], lost: Tensor) -> None:
        gone = int(lost.sum())
        new, old = len(lost) - gone, self.count[column]
        self.diverged[column] += gone
        for name, value in values.items():
            moments = self.moments.setdefault(name, np.zeros((2, self.columns)))
            if not new:
                continue
            value = value[~lost] if gone else value
            mean = value.mean()
            both = torch.stack((mean, (value - mean).square().sum())).cpu().numpy()
            shift = both[0] - moments[0, column]
            moments[0, column] += shift * new / (old + new)
            with np.errstate(over="ignore"):  # a path on its way out, still finite: the standard error is infinite
                moments[1, column] += both[1] + (shift**2 * (old * new / (old + new)) if old else 0.0)
        self.count[column] += new

    def estimates(self) -> dict[str, Estimate]:
        n = self.count
        with np.errstate(divide="ignore", invalid="ignore"):
            return {
                name: Estimate(np.where(n > 0, mean, np.nan), np.where(n > 1, np.sqrt(squares / (n - 1) / n), np.nan))
                for name, (mean, squares) in self.moments.items()
            }


@contextlib.contextmanager
def _bar(show: bool | None, total: int) -> Iterator[Callable[[int | None], None]]:
    """A progress bar that appears after a second; call it with the steps done in a chunk, or None at its end."""
    console = Console(stderr=True)
    if show is False or not console.is_terminal:
        yield lambda done: None
        return
    begun, finished, chunk = time.monotonic(), 0, 0
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("solving", total=total, visible=show is True)

        def tick(done: int | None) -> None:
            nonlocal finished, chunk
            finished, chunk = (finished + chunk, 0) if done is None else (finished, done)
            progress.update(task, completed=finished + chunk, visible=show is True or time.monotonic() > begun + 1)

        yield tick
