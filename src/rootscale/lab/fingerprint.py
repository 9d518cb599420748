"""A fingerprint of what a run computes, by which a stored run is found again or known to be outdated.

Code is not looked at: a helper in another module, a global or an argument of a `functools.partial` all count as far as
they change a number. The fingerprint holds a hash of all data and, for each seed, numbers on a few fixed samples: the
initial parameters, the loss in training and in evaluation mode, its gradient, the first updates of the optimizer, the
metrics and the functions of the task. Hashes are compared exactly, and numbers with a tolerance, so that a run is found
again after an upgrade of torch and on another machine.

It costs about two training steps of `SAMPLES` samples for each seed, always on the CPU, and one pass over the data.
Seeds that were trained in one program were made by the same code: the store looks at the first of them that is wanted,
so that opening it costs what its programs do, and not what its seeds do.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from rootscale.lab.failures import blaming
from rootscale.lab.loop import Loop
from rootscale.lab.replicas import initialized
from rootscale.lab.task import Data, Task, Tensors
from rootscale.training.adapters import make_optimizer

#: The samples on which a task is evaluated; BatchNorm needs more than one.
SAMPLES = 8
#: Numbers agree if they differ by at most this share of the largest of their kind.
TOLERANCE = 1e-4
#: The same for gradients, in which rounding grows from layer to layer: those of VGG-16 with BatchNorm in single
#: precision differed by 5e-4 between two processors.
GRADIENT_TOLERANCE = 1e-2
#: Coordinates of a gradient or of parameters are summed up, with random signs, into so many numbers.
BUCKETS = 8
#: Data are hashed in blocks of so many bytes.
BLOCK = 2**24
#: Steps that the optimizer is tried on.
TRIED_STEPS = 2

#: Lists of numbers by what they are of.
Numbers = dict[str, list[float]]


class Fingerprints:
    """The fingerprints of tasks, computed once for each task and seed.

    Keep it no longer than the tasks stay what they are: a function that is redefined later is not seen.
    """

    def __init__(self) -> None:
        self._data: dict[int, dict[str, str]] = {}
        self._seeds: dict[tuple[int, int], Numbers] = {}
        self._held: dict[int, Task | Loop] = {}  # an id stays with its object while that is held
        self._loops: dict[int, dict[str, Any]] = {}
        self._files: dict[Path, list[float]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave everything behind: where it is unpickled, tasks are other objects."""
        return {"_data": {}, "_seeds": {}, "_held": {}, "_loops": {}, "_files": {}}

    def of(
        self,
        task: Task | Loop,
        seeds: Iterable[int],
        start: Callable[[int], Path | None] = lambda seed: None,
        depends: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return the fingerprint of a task for some seeds, in JSON's types.

        A loop of the user's has its own, and counts what is in the checkpoints from which its runs ``start``. What it
        ``depends`` on besides are files, folders and variables of the environment.
        """
        found = self._of(task, seeds, start)
        return {**found, "depends": {name: self._dependency(name) for name in depends}} if depends else found

    def _of(self, task: Task | Loop, seeds: Iterable[int], start: Callable[[int], Path | None]) -> dict[str, Any]:
        key = id(self._held.setdefault(id(task), task))
        if isinstance(task, Loop):
            if key not in self._loops:
                self._loops[key] = task.fingerprint()
            starts = {str(seed): start(seed) for seed in seeds}
            known = {seed: {"checkpoint": self._file(path)} for seed, path in starts.items() if path is not None}
            return {**self._loops[key], "seeds": known}
        if key not in self._data:
            self._data[key] = {"train data": data_hash(task.train), "test data": data_hash(task.test)}
        return {**self._data[key], "seeds": _Computed(seeds, lambda seed: self._of_seed(task, seed))}

    def _of_seed(self, task: Task, seed: int) -> Numbers:
        key = id(task), seed
        if key not in self._seeds:
            with blaming(f"the task {task.name!r}, tried on {SAMPLES} of its samples,"):
                self._seeds[key] = seed_numbers(task, seed)
        return self._seeds[key]

    def _dependency(self, name: str) -> str:
        """Return a hash of a file, a folder or a variable of the environment."""
        if Path(name).exists():
            return bytes(int(byte) for byte in self._file(Path(name))).hex()
        if name not in os.environ:
            raise ValueError(
                f"runs cannot depend on {name!r}: there is no such file or folder, and no variable of that name is set"
            )
        return _digest(os.environ[name].encode())

    def _file(self, path: Path) -> list[float]:
        """Return a hash of a file or folder, as numbers, which is read once."""
        if path not in self._files:
            found = hashlib.blake2b(digest_size=16)
            for one in sorted(path.rglob("*")) if path.is_dir() else [path]:
                if one.is_file():
                    with one.open("rb") as file:
                        found.update(hashlib.file_digest(file, "blake2b").digest())
            self._files[path] = [float(byte) for byte in found.digest()]
        return self._files[path]


class _Computed(Mapping[str, Numbers]):
    """The numbers of seeds, each computed when it is asked for."""

    def __init__(self, seeds: Iterable[int], compute: Callable[[int], Numbers]) -> None:
        self._seeds, self._compute = {str(seed): seed for seed in seeds}, compute

    def __getitem__(self, seed: str) -> Numbers:
        return self._compute(self._seeds[seed])

    def __contains__(self, seed: object) -> bool:
        return seed in self._seeds

    def __iter__(self) -> Iterator[str]:
        return iter(self._seeds)

    def __len__(self) -> int:
        return len(self._seeds)

    def __reduce__(self) -> tuple[Any, ...]:
        """Take the numbers along, and not the task."""
        return dict, (dict(self),)


def differences(now: Mapping[str, Any], stored: Mapping[str, Any]) -> list[str]:
    """Return what differs between two fingerprints, on the seeds that both have; nothing where they agree.

    >>> one = {"train data": "ab", "test data": "", "seeds": {"0": {"loss": [1.0, 2.0]}}}
    >>> differences(one, {**one, "seeds": {"0": {"loss": [1.0, 2.5]}, "1": {"loss": [3.0, 1.0]}}})
    ['loss']
    """
    found = {name: None for name in ("train data", "test data", "source") if now.get(name) != stored.get(name)}
    for kind, what in (("modules", "module "), ("depends", "")):
        new, old = now.get(kind, {}), stored.get(kind, {})
        found |= {f"{what}{name}": None for name in (*new, *old) if new.get(name) != old.get(name)}
    ours, theirs = now.get("seeds", {}), stored.get("seeds", {})
    for seed in theirs:
        if seed in ours:
            names = dict.fromkeys([*ours[seed], *theirs[seed]])
            for name in names:
                tolerance = GRADIENT_TOLERANCE if name == "gradient" else TOLERANCE
                if not _close(ours[seed].get(name, ()), theirs[seed].get(name, ()), tolerance):
                    found[name] = None
    return list(found)


def _close(a: Sequence[float], b: Sequence[float], tolerance: float) -> bool:
    if len(a) != len(b):
        return False
    scale = max((abs(x) for x in (*a, *b) if math.isfinite(x)), default=0.0)
    return all(
        abs(x - y) <= tolerance * scale if math.isfinite(x) and math.isfinite(y) else repr(x) == repr(y)
        for x, y in zip(a, b, strict=True)
    )


# -- numbers ---------------------------------------------------------------------------------------------------------


def seed_numbers(task: Task, seed: int) -> Numbers:
    """Return the numbers that a task gives for one seed."""
    model = initialized(task, seed)
    found = {"initial parameters": _sketch([*model.parameters(), *model.buffers()])}
    trained = [p for p in model.parameters() if p.requires_grad]
    index = torch.randperm(len(task.train), generator=_generator())[:SAMPLES]
    x, y = (part.cpu() for part in task.train[index])
    x = x if task.prepare is None else task.prepare(x)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        found |= _evaluated(task, model, x, y)
        model.train()
        if task.augment is not None:
            x = task.augment(x, torch.rand(len(x), task.draws, generator=_generator()))
        losses = _per_sample(task.loss, model(x), y)
        found["loss"] = _numbers(losses)
        if trained:
            found["gradient"] = _sketch(torch.autograd.grad(losses.mean(), trained, materialize_grads=True))
            found["optimizer"] = _updates(task, trained)
    return found


def _evaluated(task: Task, model: nn.Module, x: Tensor, y: Tensor) -> Numbers:
    """Return the loss in evaluation mode, the metrics and the functions."""
    model.eval()
    with torch.no_grad():
        outputs = model(x)
        found = {"loss in evaluation mode": _numbers(_per_sample(task.loss, outputs, y))}
        found |= {f"metric {name}": _numbers(_per_sample(f, outputs, y)) for name, f in task.metrics.items()}
    return found | {f"function {name}": _numbers(torch.as_tensor(f(model))) for name, f in task.functions.items()}


def _updates(task: Task, trained: Sequence[nn.Parameter]) -> list[float]:
    """Return what the optimizer makes of gradients that are far from 0, where an update is sensitive to rounding."""
    optimizer = (task.optimizer or make_optimizer)(trained, task.plan.optimizer)
    before = [p.detach().clone() for p in trained]
    for step in range(TRIED_STEPS):
        for p in trained:
            p.grad = (_signs(p.numel()) * (1.0 + step)).view_as(p).to(p.dtype)
        optimizer.step()
    return _sketch([p.detach() - old for p, old in zip(trained, before, strict=True)])


def _sketch(tensors: Iterable[Tensor]) -> list[float]:
    """Return the norm of all coordinates together, and sums of them with random signs."""
    square, sums = 0.0, torch.zeros(BUCKETS, dtype=torch.float64)
    for number, tensor in enumerate(tensors):
        flat = tensor.detach().reshape(-1).double()
        square += float(flat.square().sum())
        signed = nn.functional.pad(flat * _signs(len(flat)), (0, -len(flat) % BUCKETS))
        sums += signed.view(-1, BUCKETS).sum(0).roll(number)
    return _numbers(torch.cat([torch.tensor([math.sqrt(square)], dtype=torch.float64), sums]))


def _signs(n: int) -> Tensor:
    """Return n numbers of 1 and -1, always the same."""
    mixed = torch.arange(1, n + 1) * 0x9E3779B1
    return 1.0 - 2.0 * ((mixed >> 16 ^ mixed >> 21) & 1).double()


def _per_sample(function: Callable[[Any, Tensor], Tensor], outputs: Any, y: Tensor) -> Tensor:
    return function(outputs, y).reshape(len(y), -1).mean(-1)


def _numbers(tensor: Tensor) -> list[float]:
    return [float(f"{value:.9g}") for value in tensor.detach().double().reshape(-1).tolist()]


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


# -- data ------------------------------------------------------------------------------------------------------------


@runtime_checkable
class Digested(Protocol):
    """Data that say what they are without being read, such as millions of image files."""

    def digest(self) -> str:
        """Return a text that is another one for other data."""
        ...


def data_hash(data: Data | None) -> str:
    """Return a hash of all samples, in their order."""
    if data is None:
        return ""
    if isinstance(data, Digested):
        return data.digest()
    blocks, found = _blocks(data), list[str]()
    with ThreadPoolExecutor() as threads:  # hashing releases Python's lock
        while some := list(islice(blocks, 32)):
            found += threads.map(_digest, some)
    return _digest("".join(found).encode())


def _blocks(data: Data) -> Iterator[Any]:
    """Yield shape, type and bytes of the data, block by block."""
    if isinstance(data, Tensors):
        yield from (block for tensor in (data.inputs, data.targets) for block in _bytes(tensor))
        return
    chunk = max(1, min(len(data), 4096))
    for start in range(0, len(data), chunk):
        for tensor in data[torch.arange(start, min(start + chunk, len(data)))]:
            yield from _bytes(tensor)


def _bytes(tensor: Tensor) -> Iterator[Any]:
    yield f"{list(tensor.shape)} {tensor.dtype}".encode()
    rows = max(1, BLOCK // max(1, tensor[:1].numel() * tensor.element_size()))
    for start in range(0, len(tensor), rows):
        part = tensor[start : start + rows].detach()
        if part.numel():
            yield part.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def _digest(raw: Any) -> str:
    return hashlib.blake2b(raw, digest_size=16).hexdigest()
