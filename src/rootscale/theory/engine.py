"""Many paths through time: test functions, steps of many paths at once, and statistics on the fly.

Nothing here knows an SDE. `drive` repeats a `System` (one base step of any number of coupled systems: solvers at
several step sizes, discrete chains) and evaluates test functions at requested steps. Steps are taken in blocks with
counter-based normals, with ``torch.compile`` where it works. Paths are taken in chunks that fit the cache; what is kept
of a path is its state, so memory does not grow with the number of steps.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from rootscale.hparams import number, positive
from rootscale.theory import random
from rootscale.theory.random import checked_seed
from rootscale.trajectory import Estimate, Trajectory

Functions = Mapping[str, Callable[[Any], Tensor]]


@dataclass(frozen=True)
class TestFunction:
    """A test function of the state of the SDE.

    Args:
        name: for tables.
        function: of a state of the SDE; ``[P]``.
        needs: which parts of the state it uses.
    """

    __test__: ClassVar[bool] = False  # pytest: not a class of tests
    name: str
    function: Callable[[Any], Tensor]
    needs: frozenset[str] = frozenset({"theta"})


#: The test functions by name, averaged over coordinates.
TESTS: Mapping[str, TestFunction] = MappingProxyType({
    test.name: test
    for test in (
        TestFunction("theta", lambda x: x.theta.mean(1)),
        TestFunction("theta^2", lambda x: x.theta.square().mean(1)),
        TestFunction("cos theta", lambda x: x.theta.cos().mean(1)),
        TestFunction("theta*u", lambda x: (x.theta * x.u).mean(1), frozenset({"theta", "u"})),
        TestFunction("m^2", lambda x: x.m.square().mean(1), frozenset({"m"})),
    )
})  # fmt: skip


def tests_of(state: tuple[Tensor, ...]) -> dict[str, Callable[[Any], Tensor]]:
    """Return the rows of `TESTS` that can be evaluated on this state, by name."""
    parts = set(getattr(state, "_fields", ()))
    return {name: test.function for name, test in TESTS.items() if test.needs <= parts}


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


Observe = Callable[[float, States], Mapping[str, Tensor]]

#: Path-coordinates in a chunk; and, eagerly on a CPU, the bytes of one tensor for each thread: what its cache holds
#: several of, since every operation is a pass over memory.
CHUNK_FUSED, CHUNK_GPU, CACHE = 1 << 20, 1 << 24, 1 << 19
#: From this many normals on a solve is compiled by default: then a plain SDE takes some seconds and a weak error with
#: its controls a minute, as against 5 and 20 seconds for a compilation.
WORTH_COMPILING = 300_000_000
#: Below this many coordinates memory is laid out path by path, because the inner loop should be the long one.
NARROW = 64


@dataclass(frozen=True)
class SaveAt:
    """What to look at, and when.

    Args:
        times: when to evaluate the test functions: increasing, and whole numbers of steps from ``start``.
        functions: of a state of the SDE, one number for each path, ``[P]``; those of
            `rootscale.theory.engine.TESTS` that the state allows unless given.
        start: the time of the initial state; Adam's SDE needs ``start > 0``.
        keep: keep the values of every path, not only mean and standard error.
    """

    times: Sequence[float]
    functions: Functions | None = None
    start: float = 0.0
    keep: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.times, Iterable):
            raise ValueError(f"times must be a list of times, got {self.times!r}; use [{self.times!r}]")
        for name, value in [*(("times", t) for t in self.times), ("start", self.start)]:
            number(name, value, "finite", lambda x: True)

    def functions_of(self, x0: State) -> Functions:
        """Return the test functions for this initial state."""
        functions: Any = tests_of(x0) if self.functions is None else self.functions
        if isinstance(functions, Mapping) and functions:
            return functions
        raise ValueError(
            "functions of SaveAt must be test functions by name, as in SaveAt([1.0], {'theta': lambda x: "
            "x.theta[:, 0]}), got " + (repr(functions) if functions else "none that suits this state")
        )

    def steps(self, h: float) -> list[int]:
        """Return how many steps ``h`` each time is after the start.

        Raises:
            ValueError: a time is between two steps; the message names the nearest time that would do.
        """
        steps, h = [], positive("h", h)
        for t in map(float, self.times):
            step = round((t - self.start) / h)
            if abs(self.start + step * h - t) > 1e-6 * h:
                raise ValueError(
                    f"times must be whole steps h={h:g} after start={self.start:g}; t={t:g} is not, "
                    f"{self.start + step * h:g} is"
                )
            steps.append(step)
        if not steps or steps[0] < 0 or any(b <= a for a, b in itertools.pairwise(steps)):
            raise ValueError(f"times must be increasing, and not before start={self.start:g}; got {list(self.times)}")
        return steps


@dataclass(frozen=True)
class Paths:
    """How many paths to run, and how.

    Args:
        count: how many, if the initial state is one for all (``[1, d]``).
        seed: of the normals; results depend on it and on nothing else here, but for rounding.
        chunk: how many paths to advance at a time; by default what fits the cache.
        compile: take steps with ``torch.compile``; by default if the solve is long enough to pay for it. Without a
            C++ compiler (on a GPU: without triton) steps are taken eagerly, and a warning says so.
        progress: called now and then with the share that is done, from 0 to 1.
        warn: issue a `RuntimeWarning` where paths diverged. Their number is in the trajectory's ``diverged`` anyway.
    """

    count: int | None = None
    seed: int = 0
    chunk: int | None = None
    compile: bool | None = None
    progress: Callable[[float], None] | None = None
    warn: bool = True

    def __post_init__(self) -> None:
        checked_seed(self.seed)
        for name in ("count", "chunk"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, Integral) and int(value) >= 1):
                raise ValueError(f"{name} of Paths must be a whole number of at least 1, got {value!r}")


def drive(
    system: System, x0: States, observe: Observe, save: SaveAt, paths: Paths, meta: Mapping[str, Any] | None = None
) -> Trajectory:
    """Advance all paths and return the test functions at the requested times.

    The normals of a step are a function of ``(seed, path, k * draws + i, coordinate)`` alone: draw ``i`` of step ``k``
    is ``normal(seed, k * draws + i, ...)`` of `rootscale.theory.random`.

    Args:
        system: one base step of everything.
        x0: the initial states, tensors ``[P, d]`` or ``[1, d]``; their device and dtype are those of the solve.
        observe: the test functions of ``(t, states)``, each ``[P]``.
        save: when to observe, and what to keep; its functions are not used.
        paths: how many, and how.
        meta: what to write into the trajectory's ``meta``, beside seed, step and number of paths.

    Warns:
        RuntimeWarning: paths diverged (a state or test function was not finite when observed). They are counted in the
            trajectory's ``diverged`` and left out of its means.
    """
    count, marks, t0 = _path_count(x0, paths.count), save.steps(system.h), save.start
    if system.width < 1 or system.draws < 1:
        raise ValueError(f"width and draws must be at least 1, got width={system.width}, draws={system.draws}")
    sample = x0[0][0]
    coordinates = max(system.width, *(x.shape[-1] for state in x0 for x in state))
    compiled = paths.compile
    if compiled is None:
        compiled = count * system.width * system.draws * marks[-1] > WORTH_COMPILING
    limit = paths.chunk or max(1, _room(sample, compiled) // coordinates)
    # Chunks of one size, the last one filled up: a compiled step is made for one shape.
    size = math.ceil(count / math.ceil(count / limit))
    stepper = Stepper(system, t0, paths.seed, coordinates < NARROW and size > coordinates, compiled)
    record = _Record(len(marks), save.keep)
    whole = math.ceil(count / size) * max(1, marks[-1])
    with torch.no_grad(), stepper.running():
        for index, first in enumerate(range(0, count, size)):
            rows = torch.arange(first, first + size, device=sample.device).clamp_(max=count - 1)
            x = _map(x0, functools.partial(_chunk, rows=rows, by_path=stepper.by_path))
            stepper.start(first, size, sample)
            record.start(min(size, count - first), sample.device)
            done = 0
            for column, mark in enumerate(marks):
                while done < mark:
                    x, done = stepper.run(x, done, mark)
                    if paths.progress is not None:
                        paths.progress((index * marks[-1] + done) / whole)
                record.add(column, x, observe(t0 + mark * system.h, x))
    times = [t0 + mark * system.h for mark in marks]
    if paths.warn:
        _warn(record.diverged, count, times)
    about: dict[str, Any] = {"seed": paths.seed, "h": system.h, "t0": t0, "paths": count}
    about |= {"dtype": str(sample.dtype).removeprefix("torch."), "device": sample.device.type}
    values, estimates = record.results()
    return Trajectory(np.array(times), values, estimates, count, record.diverged, {**about, **(meta or {})})


def _room(x: Tensor, compiled: bool) -> int:
    """Return how many path-coordinates a chunk may have."""
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
        raise ValueError(f"the numbers of paths differ: states have {sorted(sizes)}, Paths has count={paths}")
    return paths if paths is not None else next(iter(sizes), 1)


def _map(x: States, f: Callable[[Tensor], Tensor]) -> States:
    """Apply ``f`` to every tensor; named tuples stay what they are."""
    return tuple(getattr(type(state), "_make", tuple)([f(y) for y in state]) for state in x)


def _chunk(x: Tensor, rows: Tensor, by_path: bool) -> Tensor:
    x = x.expand(len(rows), -1) if x.shape[0] == 1 else x[rows]
    return x.mT.contiguous().mT if by_path else x.contiguous()


def _warn(diverged: np.ndarray[Any, Any], count: int, times: list[float]) -> None:
    if diverged[-1]:
        seen = times[int(np.argmax(diverged > 0))]
        warnings.warn(
            f"{diverged[-1]} of {count} paths diverged (first seen at t={seen:g}); means are over the others. "
            "A smaller h (of a chain: eta) may help, unless the process itself diverges.",
            RuntimeWarning,
            stacklevel=4,
        )


class _Record:
    """Test functions at each requested time, chunk by chunk; paths that left the finite numbers stay lost."""

    def __init__(self, columns: int, keep: bool) -> None:
        self.total = _Statistics(columns)
        self.keep = keep
        self.chunks: dict[str, list[list[Tensor]]] = {}
        self.lost = torch.zeros(0, dtype=torch.bool)

    @property
    def diverged(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """How many paths were lost at each time."""
        return self.total.diverged

    def start(self, paths: int, device: torch.device) -> None:
        """Begin a chunk of so many paths; what is beyond them only fills it up."""
        self.lost = torch.zeros(paths, dtype=torch.bool, device=device)
        for chunks in self.chunks.values():
            chunks.append([])

    def add(self, column: int, x: States, observed: Mapping[str, Any]) -> None:
        """Add what is observed of the chunk at one time."""
        real, paths = len(self.lost), len(x[0][0])
        for name, value in observed.items():
            if getattr(value, "shape", None) != (paths,):
                raise ValueError(
                    f"test function {name!r} must give one number for each path, [{paths}], got "
                    f"{list(value.shape) if torch.is_tensor(value) else value!r}; e.g. lambda x: x.theta.mean(1)"
                )
        values = {name: value.detach()[:real].double() for name, value in observed.items()}
        for tensor in (*(y[:real] for state in x for y in state), *(v[:, None] for v in values.values())):
            self.lost = self.lost | ~torch.isfinite(tensor).all(-1)
        self.total.add(column, values, self.lost)
        if self.keep:
            for name, value in values.items():
                self.chunks.setdefault(name, [[]])[-1].append(torch.where(self.lost, torch.nan, value).cpu())

    def results(self) -> tuple[dict[str, np.ndarray[Any, np.dtype[np.float64]]], dict[str, Estimate]]:
        """Return the values of every path, or mean and standard error where they were not kept."""
        if not self.keep:
            return {}, self.total.estimates()
        return {
            name: torch.cat([torch.stack(chunk, 1) for chunk in chunks]).numpy() for name, chunks in self.chunks.items()
        }, {}


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
