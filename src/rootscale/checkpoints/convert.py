"""Convert a checkpoint on disk to another batch size, whatever tool wrote it; none of their libraries is needed.

Nothing in the checkpoint is executed. The new one is written under a temporary name and takes its place when it is
complete. Everything that needs no change is copied byte for byte.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rootscale.batch_size import BatchSize
from rootscale.changes import Changes
from rootscale.checkpoints.contents import Keys
from rootscale.checkpoints.dcp import DcpFolder, is_dcp_folder
from rootscale.checkpoints.deepspeed import UniversalFolder, is_deepspeed_folder
from rootscale.checkpoints.huggingface import (
    AccelerateFolder,
    TrainerFolder,
    is_accelerate_folder,
    is_trainer_folder,
)
from rootscale.checkpoints.lightning import LightningFile, is_lightning_file
from rootscale.checkpoints.rebase import Request, convert_contents
from rootscale.checkpoints.safetensors import SafetensorsFolder, is_safetensors_folder
from rootscale.checkpoints.sources import Source, TorchFile
from rootscale.files import remove_temporary, whole, whole_folder
from rootscale.rules import Rule, get_rule
from rootscale.training.adapters import families_of
from rootscale.units import Number

#: Is called with what is being done and how far it is, from 0 to 1.
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class CheckpointFormat:
    """A kind of checkpoint.

    Args:
        name: on the command line.
        title: what it is, in words.
        detect: returns whether a path is one.
        read: returns what is there.
    """

    name: str
    title: str
    detect: Callable[[Path], bool]
    read: Callable[[Path, Keys], Source]


def _rows() -> Iterator[CheckpointFormat]:
    yield CheckpointFormat("dcp", "a folder of torch.distributed.checkpoint", is_dcp_folder, DcpFolder)
    yield CheckpointFormat("trainer", "a checkpoint of the Hugging Face Trainer", is_trainer_folder, TrainerFolder)
    yield CheckpointFormat("accelerate", "a folder of Accelerate's save_state", is_accelerate_folder, AccelerateFolder)
    yield CheckpointFormat("deepspeed", "a universal checkpoint of DeepSpeed", is_deepspeed_folder, UniversalFolder)
    yield CheckpointFormat(
        "safetensors", "a folder with an optimizer's state in safetensors", is_safetensors_folder, SafetensorsFolder
    )
    yield CheckpointFormat("lightning", "a checkpoint of Lightning", is_lightning_file, LightningFile)
    yield CheckpointFormat("torch", "a dictionary written by torch.save", Path.is_file, TorchFile)


#: Every format by its name; one whose sign another one has too stands before that.
FORMATS: Mapping[str, CheckpointFormat] = MappingProxyType({row.name: row for row in _rows()})


@dataclass(frozen=True)
class ConvertedCheckpoint:
    """A checkpoint at another batch size.

    Args:
        format: what kind of checkpoint it is.
        changes: every quantity that changed, with its reason, the warnings, and what is left to the user.
        written: where it was written; None if it was not.
    """

    format: CheckpointFormat
    changes: Changes
    written: Path | None

    def to_dict(self) -> dict[str, Any]:
        """Return the changes in JSON's types."""
        written = None if self.written is None else str(self.written)
        return {"format": self.format.name, **self.changes.to_dict(), "written": written}


def convert_checkpoint(
    path: str | os.PathLike[str],
    start: BatchSize | Number | str,
    to: BatchSize | Number | str,
    output: str | os.PathLike[str] | None = None,
    *,
    rule: str | Rule | None = None,
    keys: Keys = Keys(),  # noqa: B008
    format: str | None = None,
    dataset_size: int | None = None,
    force: bool = False,
    progress: Progress = lambda what, share: None,
) -> ConvertedCheckpoint:
    """Convert a checkpoint to another batch size: hyperparameters, the optimizer's state, schedulers and counters.

    The new checkpoint is one of a run whose script has the numbers for the new batch size. A `rootscale.training.Run`
    needs none of this: what it saves is in the units of its script, at every batch size.

    Args:
        path: the file or folder.
        start: samples per optimizer step that it was written at, or ``"32x4x8"`` (micro x accumulation x workers).
        to: those that it shall be resumed at.
        output: where to write it; None writes nothing and returns what would change.
        rule: a rule or its text; None is the optimizer's own.
        keys: where optimizers and schedulers are, and which, where that cannot be found.
        format: one of `FORMATS`; None finds it out.
        dataset_size: samples in the training data, where a tool counts epochs in steps.
        force: whether an ``output`` that is there is replaced.
        progress: is told how far it is.

    Raises:
        ValueError: it cannot be converted as a whole, and nothing is written.
    """
    path = Path(path)
    target = None if output is None else _free(path, Path(output), force)
    if format is not None and format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    row = _find_format(path) if format is None else FORMATS[format]
    request = Request(BatchSize.of(start), BatchSize.of(to), rule, dataset_size)
    try:
        source = row.read(path, keys)
        family = families_of(source.contents.optimizers[0].live)[0][0]
        common = get_rule(rule, family.name)  # for what belongs to no single optimizer
        rows = source.convert_counters(request, common)
        converted = convert_contents(source.contents, request, rows)
        source.finish(request, common)
    except TypeError as error:  # of a file, not of a program
        raise ValueError(str(error)) from error
    except (RecursionError, MemoryError):
        raise ValueError(f"{path.name} holds something that is nested too deep, or too large, to be read") from None
    if target is not None:
        _write(source, target, converted.factors, progress)
    names = sorted(source.callables)
    warnings = [
        f"{path.name} names {', '.join(names)}, which torch.load(..., weights_only=False) would call; nothing was "
        "executed, and it is in the new file as it was"
    ] * bool(names)
    left = tuple(source.remaining(request, common))
    changes = replace(converted.changes, remaining=left, warnings=(*converted.changes.warnings, *warnings))
    return ConvertedCheckpoint(row, changes, target)


def _free(path: Path, output: Path, force: bool) -> Path:
    """Return where to write, if it may be written."""
    old, new = path.resolve(), output.parent.resolve() / output.name
    if output.exists() and old == output.resolve():
        new = old
    if old == new:
        raise ValueError(f"the output is the checkpoint itself, {output}: give another -o")
    if old in new.parents or new in old.parents:
        raise ValueError(f"{output} and {path} lie in each other: give another -o")
    if output.is_symlink() and not force:
        raise ValueError(f"{output} is a symbolic link to {output.readlink()}; --force replaces the link")
    if output.exists() and not force:
        raise ValueError(f"{output} is there already; --force replaces it")
    if not new.parent.is_dir():
        raise ValueError(f"there is no folder {new.parent} for the checkpoint; make it, or give another -o")
    if output.exists() and output.is_dir() != path.is_dir():
        raise ValueError(f"{output} is a {'folder' if output.is_dir() else 'file'}, and the checkpoint is not")
    return output


def _write(source: Source, target: Path, factors: Any, progress: Progress) -> None:
    total, done = max(1, source.size), 0

    def tell(size: int) -> None:
        nonlocal done
        done += size
        progress(f"writing {target.name}", min(1.0, done / total))

    remove_temporary(target.parent)
    with (whole_folder if source.path.is_dir() else whole)(target) as temporary:
        source.write(temporary, factors, tell)


def _find_format(path: Path) -> CheckpointFormat:
    """Return the format of a checkpoint.

    Raises:
        ValueError: it is none; the message names a checkpoint inside of it, where there is one.
    """
    if not path.exists():
        raise ValueError(f"there is no {path}")
    if path.is_file() and (path.suffix == ".safetensors" or _is_part(path)):
        raise ValueError(f"{path.name} is a part of a checkpoint: give its folder, {path.parent}")
    for row in FORMATS.values():
        if row.detect(path):
            return row
    inside = _newest(path) if path.is_dir() else None
    if inside is not None:
        raise ValueError(f"{path} is no checkpoint but holds some; the newest is {inside}")
    raise ValueError(f"{path} is no checkpoint of a known kind: {', '.join(row.title for row in FORMATS.values())}")


def _is_part(path: Path) -> bool:
    """Return whether a file is one of several that only together are a run."""
    folders = [row for row in FORMATS.values() if row.name != "torch"]
    return path.stem.startswith(("optimizer", "scheduler")) and any(row.detect(path.parent) for row in folders)


def _newest(folder: Path) -> Path | None:
    """Return the checkpoint with the largest number in its name, or the youngest, at most three folders down."""
    files = (".ckpt", ".pt", ".pth", ".bin")
    for depth in range(1, 4):
        places = [one for one in folder.glob("/".join("*" * depth)) if one.is_dir() or one.suffix in files]
        found = [one for one in places if any(row.detect(one) for row in FORMATS.values())]
        if found:
            return max(found, key=lambda one: (_number(one), one.stat().st_mtime))
    return None


def _number(path: Path) -> int:
    numbers = re.findall(r"\d+", path.name)
    return int(numbers[-1]) if numbers else -1
