"""Checkpoint folders of the Hugging Face `Trainer`.

The policy is that of `rootscale.integrations.transformers`: the run at the new batch size looks as if it had always had
it. Its steps are counted in the new unit, and its scheduler is at the new step of the new arguments' schedule.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from rootscale.batch_size import BatchSize
from rootscale.changes import Change
from rootscale.format import show
from rootscale.integrations.checkpoints.trainer_steps import (
    INTERVALS,
    Epochs,
    counted,
    interval_at,
    layout_at,
    seen_again,
    updates,
)
from rootscale.rules import Rule
from rootscale.training.checkpoints import Contents, Folder, Keys, Request
from rootscale.training.checkpoints.archive import Archive, MappedFile
from rootscale.training.checkpoints.dcp import DcpFolder, is_dcp_folder
from rootscale.training.checkpoints.pickled import Kept
from rootscale.training.checkpoints.saved import SavedOptimizer, is_optimizer
from rootscale.units import UNITS

__all__ = ["TrainerFolder", "is_trainer_folder"]

_STATE, _ARGUMENTS = "trainer_state.json", "training_args.bin"
_OPTIMIZERS, _SCHEDULER = ("optimizer.pt", "optimizer.bin"), "scheduler.pt"
_SHARDS = "optimizer_0"  # under FSDP, in shards
_CALLBACK = "RescaleCallback"


def is_trainer_folder(path: Path) -> bool:
    """Return whether a folder is a checkpoint of the Trainer; its output folder has such a file too, and no weights."""
    return (path / _STATE).is_file() and ((path / _SCHEDULER).is_file() or not any(path.glob("checkpoint-*")))


class TrainerFolder(Folder):
    """A folder ``checkpoint-N``."""

    def __init__(self, path: Path, keys: Keys) -> None:
        super().__init__(path, keys)
        self.state: dict[str, Any] = self.open_document(_STATE)
        if any(path.glob("global_step*")):
            raise ValueError(
                f"{path.name} was written under DeepSpeed, in a layout of its own: make a universal checkpoint of it "
                "(DeepSpeed's ds_to_universal.py) and convert that"
            )
        files = [name for name in _OPTIMIZERS if (path / name).is_file()]
        if is_dcp_folder(path / _SHARDS):
            self.inner[_SHARDS] = DcpFolder(path / _SHARDS, keys)
        elif not files:
            raise ValueError(
                f"{path.name} has no optimizer.pt: it was written with save_only_model=True, so that there is no run "
                "to convert, and a model alone is the same at every batch size"
            )
        self.optimizer = None if self.inner else self.open_archive(files[0])
        self.scheduler = self.open_archive(_SCHEDULER) if (path / _SCHEDULER).is_file() else None
        self.steps = int(self.state["global_step"])

    @cached_property
    def contents(self) -> Contents:
        """What the folder holds; the scheduler is converted with the counters."""
        if self.optimizer is None:
            return self.inner[_SHARDS].contents
        root = self.optimizer.root
        if not is_optimizer(root):
            raise ValueError(f"{self.path.name} has an optimizer.pt that is not the state_dict of a torch optimizer")
        groups, state = root["param_groups"], root["state"]
        return Contents([SavedOptimizer("the optimizer", groups, state, self.optimizer.tensor, self.keys.kind)])

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """The training arguments, read without making any object of them."""
        if not (self.path / _ARGUMENTS).is_file():
            return {}
        root = Archive(MappedFile(self.path / _ARGUMENTS)).root
        return root.attributes() if isinstance(root, Kept) else {}

    def convert_counters(self, request: Request, rule: Rule) -> list[Change]:
        """Convert ``trainer_state.json``; `finish` follows with the scheduler."""
        old = self._laid_out(request.before)
        new = layout_at(old, request.after) if old.laid_out else request.after
        self._check_callback(old)
        steps, again = counted(self.steps, old, new, self._epochs(old, new, request.dataset_size))
        self.new_steps, self.sizes = steps, (old, new)
        kappa, note = request.kappa, seen_again(self.steps, again, old, new) if again else ""
        exact = Fraction(self.steps) / kappa
        rows = [Change("global_step", self.steps, exact, UNITS["steps"], steps, note)]
        self.state |= {"global_step": steps, "best_global_step": None}
        if (self.state.get("max_steps") or 0) > 0:
            rows.append(_steps_row("max_steps", self.state["max_steps"], kappa))
            self.state["max_steps"] = rows[-1].value
        for name in INTERVALS:
            before = self.state.get(name)
            if before and before >= 1:
                self.state[name] = interval_at(before, kappa)
                rows.append(Change(name, before, Fraction(before) / kappa, UNITS["steps"], self.state[name]))
        if self.state.get("train_batch_size") and new.laid_out:
            self.state["train_batch_size"] = int(new.micro)
        entry = self.state.get("stateful_callbacks", {}).get(_CALLBACK)
        if entry is not None:
            held = entry["attributes"]
            started = held.get("started_at", held.get("begun_at")) or held.get("batch_size") or old.to_json()
            held |= {"batch_size": new.to_json(), "steps_at": new.to_json(), "started_at": started, "resumed": True}
        return rows

    def _laid_out(self, size: BatchSize) -> BatchSize:
        """Return the old batch size with the layout that the arguments have, which has to fit."""
        names = ("per_device_train_batch_size", "gradient_accumulation_steps")
        micro, every = (self.arguments.get(name) for name in names)
        if size.laid_out or not (isinstance(micro, int) and isinstance(every, int)):
            return size
        workers = Fraction(size.total) / (micro * every)
        if workers.denominator != 1:
            raise ValueError(
                f"--from {show(size.total)} does not fit {_ARGUMENTS}: {micro} per device x {every} accumulation x "
                f"devices; on one device it is {micro * every}"
            )
        return BatchSize(micro, every, int(workers))

    def _check_callback(self, old: BatchSize) -> None:
        entry = self.state.get("stateful_callbacks", {}).get(_CALLBACK, {})
        saved = entry.get("attributes", {}).get("batch_size") if isinstance(entry, dict) else None
        if saved and BatchSize.of(saved).total != old.total:
            raise ValueError(
                f"{self.path.name} says that it was written at batch size {BatchSize.of(saved)}, but --from is "
                f"{show(old.total)}: give --from {show(BatchSize.of(saved).total)}"
            )

    def _epochs(self, old: BatchSize, new: BatchSize, number: int | None) -> Epochs | None:
        """Return the steps of an epoch, as far as they are needed to count steps."""
        drop = bool(self.arguments.get("dataloader_drop_last"))
        if number is not None:
            return Epochs(updates(number, old, drop), updates(number, new, drop))
        epoch = float(self.state.get("epoch") or 0)
        each = round(self.steps / epoch) if epoch else 0
        if epoch < 1 or not each or self.steps < each:
            return None
        kappa = Fraction(new.total) / Fraction(old.total)
        if (
            kappa.denominator == 1 and not drop
        ):  # whatever n, the size of the data, ceil(ceil(n / a) / k) = ceil(n / ak)
            return Epochs(each, math.ceil(each / kappa))
        raise ValueError(
            f"{self.path.name} is in epoch {epoch:.2f}: how many steps of {show(new.total)} that is depends on the "
            "size of the data; give --dataset-size"
        )

    def finish(self, request: Request, rule: Rule) -> None:
        """Bring the scheduler to the new step of the new arguments' schedule."""
        if self.scheduler is None:
            return
        held, groups = self.scheduler.root, self.contents.optimizers[0].live.param_groups
        kappa = float(request.kappa)

        def convert(value: float) -> float:
            return float(rule.convert("eta", value, kappa))

        if "_rootscale_frames" in held or not ("lr_lambdas" in held or "num_bad_epochs" in held):
            raise ValueError(
                f"{_SCHEDULER} is not of a scheduler that the Trainer makes (lr_scheduler_type): its clock is not known"
            )
        if "num_bad_epochs" in held:  # it counts evaluations
            held |= {"min_lrs": [convert(one) for one in held["min_lrs"]], "eps": convert(held["eps"])}
        else:
            held |= {"base_lrs": [convert(one) for one in held["base_lrs"]]}
            held |= {"last_epoch": self.new_steps, "_step_count": self.new_steps + 1}
        held["_last_lr"] = [float(group["lr"]) for group in groups]

    def remaining(self, request: Request, rule: Rule) -> list[str]:
        """Return what is left to the user: the arguments."""
        return [
            "the training arguments: rootscale.integrations.transformers.scale_training_arguments(args, "
            f"to={request.after.to_json()!r}); clip, steps, warm-up and intervals are in them",
            "resume with trainer.train(resume_from_checkpoint=...) and an output_dir of its own, as steps are numbered "
            f"anew ({self.steps:,} is {self.new_steps:,} now)",
            "BatchNorm's momentum and the decay of a parameter average, if there are any, are in no checkpoint: give "
            "the Trainer RescaleCallback(batchnorm=True, ema=...)",
        ]


def _steps_row(name: str, before: int, kappa: Fraction) -> Change:
    after = Fraction(before) / kappa
    return Change(name, before, after, UNITS["steps"], math.ceil(after))
