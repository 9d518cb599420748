"""Checkpoint folders of Hugging Face: of the `Trainer`, and of Accelerate's ``save_state``.

A Trainer's run at the new batch size looks as if it had always had it: its steps are counted in the new unit, and its
scheduler is at the new step of the new arguments' schedule. `rootscale.integrations.transformers` counts them alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from rootscale.batch_size import BatchSize
from rootscale.changes import Change
from rootscale.checkpoints.archive import Archive, MappedFile
from rootscale.checkpoints.contents import Keys, has_norms
from rootscale.checkpoints.dcp import DcpFolder, is_dcp_folder
from rootscale.checkpoints.optimizers import SavedOptimizer, is_optimizer
from rootscale.checkpoints.pickled import Kept
from rootscale.checkpoints.rebase import Contents, Request
from rootscale.checkpoints.safetensors import SafetensorsFile
from rootscale.checkpoints.schedulers import SavedScheduler, is_scheduler
from rootscale.checkpoints.sources import Folder
from rootscale.format import show
from rootscale.rules import Rule
from rootscale.units import UNITS

# ---- the Trainer

_STATE, _ARGUMENTS = "trainer_state.json", "training_args.bin"
_OPTIMIZERS, _SCHEDULER = ("optimizer.pt", "optimizer.bin"), "scheduler.pt"
_SHARDS = "optimizer_0"  # under FSDP, in shards


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

        if not ("lr_lambdas" in held or "num_bad_epochs" in held):
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
        kappa, forward = float(request.kappa), float(request.before.forward_kappa(request.after))
        return [
            "the training arguments: rootscale.integrations.transformers.scale_training_arguments(args, "
            f"to={request.after.to_json()!r}); clip, steps, warm-up and intervals are in them",
            "resume with trainer.train(resume_from_checkpoint=...) and an output_dir of its own, as steps are numbered "
            f"anew ({self.steps:,} is {self.new_steps:,} now)",
            "BatchNorm's momentum and the decay of a parameter average are in no checkpoint: change them in your "
            f"program (.1 becomes {show(float(rule.convert('batchnorm', 0.1, forward, 'BatchNorm momentum')))}, .999 "
            f"becomes {show(float(rule.convert('ema', 0.999, kappa, 'EMA decay')))})",
        ]


def _steps_row(name: str, before: int, kappa: Fraction) -> Change:
    after = Fraction(before) / kappa
    return Change(name, before, after, UNITS["steps"], math.ceil(after))


# ---- the steps of a Trainer in another batch size

#: Entries of ``trainer_state.json`` that are intervals in steps.
INTERVALS = ("logging_steps", "eval_steps", "save_steps")


@dataclass(frozen=True)
class Epochs:
    """The optimizer steps of one epoch, at the old and at the new batch size."""

    old: int
    new: int


def updates(number: int, size: BatchSize, drop_last: bool) -> int:
    """Return the optimizer steps in an epoch, as the Trainer counts them.

    Args:
        number: of samples in the data.
        size: the batch size.
        drop_last: whether a last batch that is not full is left out.
    """
    batch = int(size.forward)
    batches = number // batch if drop_last else math.ceil(number / batch)
    return max(1, math.ceil(batches / size.accumulation))


def counted(step: int, old: BatchSize, new: BatchSize, epochs: Epochs | None) -> tuple[int, int]:
    """Return a number of steps in steps of the new batch size, and how many samples are seen again.

    Args:
        step: steps of the old batch size.
        old: that batch size.
        new: the new one.
        epochs: the steps in an epoch; None is one long epoch, as of a stream.
    """
    if epochs is None:
        return divmod(step * int(old.total), int(new.total))
    epoch, within = divmod(step, epochs.old)
    steps, again = divmod(within * int(old.total), int(new.total))
    return steps + epoch * epochs.new, again


def seen_again(step: int, again: int, old: BatchSize, new: BatchSize) -> str:
    """Return the warning that a new run starts in the middle of one of its steps."""
    return (
        f"{again} samples are seen again: after {step} steps of batch size {show(old.total)} the new run would be in "
        f"the middle of a step of {show(new.total)}"
    )


def layout_at(old: BatchSize, new: BatchSize) -> BatchSize:
    """Return a layout of another total: the workers stay, and the micro-batch too, or the largest below that divides.

    Raises:
        ValueError: the total does not divide among the workers.
    """
    if new.laid_out:
        return new
    each = Fraction(new.total) / old.workers
    if each.denominator != 1:
        below = int(each) * old.workers
        near = f"{below} or {below + old.workers}" if below else f"{old.workers}"
        raise ValueError(f"to={show(new.total)} does not divide among {old.workers} workers; {near} would")
    micro = next(size for size in range(int(old.micro), 0, -1) if each % size == 0)
    return BatchSize(micro, int(each) // micro, old.workers)


def interval_at(value: Any, kappa: Fraction) -> Any:
    """Return an interval in steps at the new batch size; a share of the run stays what it is."""
    return value if not value or value < 1 else max(1, round(value / kappa))


# ---- Accelerate


def is_accelerate_folder(path: Path) -> bool:
    """Return whether a folder is one of ``save_state``."""
    return path.is_dir() and any(path.glob("random_states_*.pkl"))


class AccelerateFolder(Folder):
    """A folder of ``accelerator.save_state``."""

    def __init__(self, path: Path, keys: Keys) -> None:
        super().__init__(path, keys)
        if any(path.glob("pytorch_model/*")) or any(path.glob("global_step*")):
            raise ValueError(
                f"{path.name} was written under DeepSpeed, in a layout of its own: make a universal checkpoint of it "
                "(DeepSpeed's ds_to_universal.py) and convert that"
            )
        self.inner = {
            one.parent.name: DcpFolder(one.parent, keys) for one in sorted(path.glob("optimizer_*/.metadata"))
        }
        self.optimizers = {name: self.open_archive(name) for name in _numbered(path, "optimizer")}
        self.schedulers = {name: self.open_archive(name) for name in _numbered(path, "scheduler")}

    @cached_property
    def contents(self) -> Contents:
        """What the folder holds."""
        for name, archive in self.optimizers.items():
            if not is_optimizer(archive.root):
                raise ValueError(f"{name} of {self.path.name} is not the state_dict of a torch optimizer")
        if not self.optimizers and not self.inner:
            raise ValueError(f"{self.path.name} has no optimizer.bin, so that there is no run to convert")
        for name, archive in self.schedulers.items():
            if not is_scheduler(archive.root):
                raise ValueError(
                    f"{name} of {self.path.name} is of a scheduler that is not known (without last_epoch): make it "
                    "anew for the new batch size (rootscale.Plan.at gives its steps and learning rates)"
                )
        sharded = [one for folder in self.inner.values() for one in folder.contents.optimizers]
        return Contents(
            [
                *sharded,
                *(
                    SavedOptimizer(name, one.root["param_groups"], one.root["state"], one.tensor, self.keys.kind)
                    for name, one in self.optimizers.items()
                ),
            ],
            [
                SavedScheduler(name.partition(".")[0], one.root, one.tensor, self.keys.interval)
                for name, one in self.schedulers.items()
            ],
            batchnorm=has_norms(self._weights()),
            averages=any("n_averaged" in one for one in self._objects()),
        )

    def _weights(self) -> list[str]:
        """Return the names of the models' weights."""
        names = [key for file in self.path.glob("model*.safetensors") for key in SafetensorsFile(file).keys()]  # noqa: SIM118
        for file in self.path.glob("pytorch_model*.bin"):
            names += list(Archive(MappedFile(file)).root)
        return names

    def _objects(self) -> Iterator[dict[str, Any]]:
        """Yield the states of objects that were registered for checkpointing."""
        for file in sorted(self.path.glob("custom_checkpoint_*.pkl")):
            root = Archive(MappedFile(file)).root
            if isinstance(root, dict):
                yield root


def _numbered(path: Path, name: str) -> list[str]:
    """Return the files ``name.bin``, ``name_1.bin``, ... of a folder."""
    found: list[str] = []
    while (path / (one := f"{name}_{len(found)}.bin" if found else f"{name}.bin")).is_file():
        found.append(one)
    return found
