"""A `Trainer` that resumes a checkpoint of another batch size."""

from __future__ import annotations

import json
import os
import tempfile
import warnings as python_warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

from rootscale.batch_size import BatchSize
from rootscale.changes import ScalingWarning
from rootscale.checkpoints.huggingface import (
    INTERVALS,
    Epochs,
    counted,
    interval_at,
    seen_again,
    updates,
)
from rootscale.integrations.transformers.arguments import global_batch_size
from rootscale.integrations.transformers.callback import RescaleCallback, check_live, started_at

__all__ = ["resume"]


def resume(trainer: Any, checkpoint: str | os.PathLike[str], *, batch_size: BatchSize | int | str | None = None) -> Any:
    """Resume like ``trainer.train(resume_from_checkpoint=checkpoint)``, also if the checkpoint has another batch size.

    The Trainer reads from the checkpoint how many steps are done, and takes its place in the data from that: it gets a
    view of the checkpoint with that number in steps of the new batch size. The rest is converted by `RescaleCallback`,
    which is added if it is missing. The folder of the checkpoint itself is not changed.

    Args:
        trainer: made for the new batch size, with arguments from `scale_training_arguments` and an ``output_dir`` other
            than the old one: its steps are numbered anew.
        checkpoint: the folder.
        batch_size: the global batch size at which the checkpoint was written, where it does not say.
    """
    from transformers import Trainer

    if not isinstance(trainer, Trainer):
        raise TypeError(f"trainer must be a transformers.Trainer, got {type(trainer).__name__}")
    path = Path(checkpoint)
    found = [one for one in trainer.callback_handler.callbacks if isinstance(one, RescaleCallback)]
    callback = found[0] if found else RescaleCallback()
    _check_folder(path)
    state = json.loads((path / "trainer_state.json").read_text())
    attributes = state["stateful_callbacks"].setdefault(type(callback).__name__, callback.state())["attributes"]
    old, new = _written_at(path, attributes, state, callback, batch_size), global_batch_size(trainer.args)
    if old.total != new.total:
        check_live(trainer.args)
        _check_optimizer(path)
        if path.resolve().parent == Path(trainer.args.output_dir).resolve():
            raise ValueError(
                f"output_dir must be another folder than that of {path.name}: steps of the new batch size are numbered "
                "anew, and old and new checkpoints would be taken for each other"
            )
    if not found:
        trainer.add_callback(callback)
    callback._own_optimizer = trainer.optimizer is not None
    attributes |= {
        "batch_size": old.to_json(),
        "steps_at": new.to_json(),
        "started_at": started_at(attributes) or old.to_json(),
        "resumed": True,  # says that this is a checkpoint's, also where it is younger than one step of the new size
    }
    if old.total != new.total:
        state |= _state_at(trainer, state, old, new)
    with tempfile.TemporaryDirectory(prefix="rootscale-") as folder:
        for item in path.resolve().iterdir():
            if item.name != "trainer_state.json":
                os.symlink(item, Path(folder, item.name), target_is_directory=item.is_dir())
        Path(folder, "trainer_state.json").write_text(json.dumps(state))
        return trainer.train(resume_from_checkpoint=folder)


def _check_folder(path: Path) -> None:
    """Check that a folder is a checkpoint, and not that of a run, which has several."""
    if (path / "trainer_state.json").is_file():
        return
    steps = [int(one.name.rpartition("-")[2]) for one in path.glob("checkpoint-*") if one.name[11:].isdigit()]
    if steps:
        raise ValueError(
            f"{path} is the folder of a run, not a checkpoint: give one of its checkpoints, the latest is "
            f"{path / f'checkpoint-{max(steps)}'}"
        )
    reason = "it has no trainer_state.json" if path.is_dir() else "there is no such folder"
    raise ValueError(f"checkpoint must be a folder that the Trainer has saved, got {path}: {reason}")


def _check_optimizer(path: Path) -> None:
    """Check that a checkpoint has the optimizer's state: without one, the Trainer would start with a fresh one."""
    if not any(next(path.glob(pattern), None) for pattern in ("optimizer*", "global_step*", "*optim_states*")):
        raise ValueError(
            f"{path.name} has no state of the optimizer (it was saved with save_only_model=True), so there is nothing "
            "to convert: start a new run from its weights, with arguments from scale_training_arguments"
        )


def _written_at(
    path: Path, attributes: Any, state: Any, callback: RescaleCallback, batch_size: BatchSize | int | str | None
) -> BatchSize:
    """The global batch size at which a checkpoint was written: what it says, or what was given."""
    saved = attributes["batch_size"]
    if saved is None and batch_size is None:
        raise ValueError(
            f"{path.name} does not say at which global batch size it was written (it was saved without "
            "RescaleCallback): give batch_size="
        )
    old = BatchSize.of(saved or batch_size or 0)
    if batch_size is not None and BatchSize.of(batch_size).total != old.total:
        raise ValueError(f"batch_size is {batch_size}, but {path.name} says that it was written at {old}")
    written = state.get("train_batch_size")  # per device, or more where one process has several
    if saved is None and callback.batchnorm and written and not old.laid_out and old.total != written:
        raise ValueError(
            f"batchnorm=True needs the samples per device: {path.name} was written at train_batch_size={written}, so "
            f'batch_size={batch_size} must say its layout, as batch_size="{written}xACCUMULATIONxDEVICES"'
        )
    return old


def _state_at(trainer: Any, state: dict[str, Any], old: BatchSize, new: BatchSize) -> dict[str, Any]:
    """What changes in ``trainer_state.json``: the steps made, counted in the new batch size, and what hangs on them."""
    args, done = trainer.args, state["global_step"]
    try:
        number = len(trainer.train_dataset)
    except TypeError:  # a stream: one long epoch
        epochs = None
    else:
        epochs = Epochs(*(updates(number, size, args.dataloader_drop_last) for size in (old, new)))
        if done % epochs.old and _by_length(args):
            python_warnings.warn(
                "group_by_length orders the data by the batch size: until the end of this epoch, some samples are seen "
                "again and others not at all. A checkpoint from the end of an epoch goes on without that",
                ScalingWarning,
                stacklevel=3,
            )
    steps, again = counted(done, old, new, epochs)
    if again:
        python_warnings.warn(seen_again(done, again, old, new), ScalingWarning, stacklevel=3)
    kappa = new.total / Fraction(old.total)
    changed: dict[str, Any] = {
        "global_step": steps,
        "train_batch_size": args.train_batch_size,
        "best_global_step": None,
    }
    for name in INTERVALS:
        given = getattr(args, name) or 0
        changed[name] = given if given >= 1 else interval_at(state[name], kappa)
    return changed


def _by_length(args: Any) -> bool:
    """Whether samples of similar length are put together: an argument of its own in the first versions of 5."""
    return getattr(args, "train_sampling_strategy", "") == "group_by_length" or getattr(args, "group_by_length", False)
