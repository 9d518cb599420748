"""Folders that Accelerate's ``save_state`` writes: each optimizer and scheduler in a file of its own."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from rootscale.training.checkpoints import Contents, Folder, Keys
from rootscale.training.checkpoints.saved import SavedOptimizer, SavedScheduler, is_optimizer, is_scheduler

__all__ = ["AccelerateFolder", "is_accelerate_folder"]


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
        if any(path.glob("optimizer_*/.metadata")):
            raise ValueError(
                f"{path.name} was written under FSDP in shards: convert the folder optimizer_0 in it by itself, and "
                "put the result in its place"
            )
        self.optimizers = {name: self.open_archive(name) for name in _numbered(path, "optimizer")}
        self.schedulers = {name: self.open_archive(name) for name in _numbered(path, "scheduler")}

    @cached_property
    def contents(self) -> Contents:
        """What the folder holds."""
        for name, archive in self.optimizers.items():
            if not is_optimizer(archive.root):
                raise ValueError(f"{name} of {self.path.name} is not the state_dict of a torch optimizer")
        if not self.optimizers:
            raise ValueError(f"{self.path.name} has no optimizer.bin, so that there is no run to convert")
        for name, archive in self.schedulers.items():
            if not is_scheduler(archive.root):
                raise ValueError(
                    f"{name} of {self.path.name} is of a scheduler that is not known (without last_epoch): make it "
                    "anew for the new batch size (rootscale.Plan.at gives its steps and learning rates)"
                )
        return Contents(
            [
                SavedOptimizer(name, one.root["param_groups"], one.root["state"], one.tensor, self.keys.kind)
                for name, one in self.optimizers.items()
            ],
            [
                SavedScheduler(name.partition(".")[0], one.root, one.tensor, self.keys.interval)
                for name, one in self.schedulers.items()
            ],
        )


def _numbered(path: Path, name: str) -> list[str]:
    """Return the files ``name.bin``, ``name_1.bin``, ... of a folder."""
    found: list[str] = []
    while (path / (one := f"{name}_{len(found)}.bin" if found else f"{name}.bin")).is_file():
        found.append(one)
    return found
