"""Convert a checkpoint on disk to another batch size."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rootscale.batch_size import BatchSize
from rootscale.changes import Changes
from rootscale.files import remove_temporary, whole, whole_folder
from rootscale.integrations.checkpoints.formats import FORMATS, CheckpointFormat, find_format
from rootscale.rules import Rule, get_rule
from rootscale.training.adapters import family_of
from rootscale.training.checkpoints import Keys, Request, Source, convert_contents
from rootscale.units import Number

__all__ = ["ConvertedCheckpoint", "convert_checkpoint"]

#: Is called with what is being done and how far it is, from 0 to 1.
Progress = Callable[[str, float], None]


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

    Nothing in the checkpoint is executed. The new one is written beside its place under a temporary name and takes its
    place when it is complete. Everything that needs no change is copied byte for byte.

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
    row = find_format(path) if format is None else FORMATS[format]
    request = Request(BatchSize.of(start), BatchSize.of(to), rule, dataset_size)
    try:
        source = row.read(path, keys)
        common = _rule(source, request)
        rows = source.convert_counters(request, common)
        converted = convert_contents(source.contents, request, rows)
        source.finish(request, common)
    except TypeError as error:  # of a file, not of a program
        raise ValueError(str(error)) from error
    if target is not None:
        _write(source, target, converted.factors, progress)
    changes = replace(converted.changes, remaining=tuple(source.remaining(request, common)))
    return ConvertedCheckpoint(row, changes, target)


def _rule(source: Source, request: Request) -> Rule:
    """Return the rule for what belongs to no single optimizer."""
    return get_rule(request.rule, family_of(source.contents.optimizers[0].live).name)


def _free(path: Path, output: Path, force: bool) -> Path:
    """Return where to write, if it may be written."""
    old, new = path.resolve(), output.resolve()
    if old == new:
        raise ValueError(f"the output is the checkpoint itself, {output}: give another -o")
    if old in new.parents or new in old.parents:
        raise ValueError(f"{output} and {path} lie in each other: give another -o")
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
