"""Folders that Accelerate's ``save_state`` writes: each optimizer and scheduler in a file of its own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from rootscale.integrations.checkpoints.safetensors import SafetensorsFile
from rootscale.rules import Rule
from rootscale.training.checkpoints import Contents, Folder, Keys, Request
from rootscale.training.checkpoints.archive import Archive, MappedFile
from rootscale.training.checkpoints.dcp import DcpFolder
from rootscale.training.checkpoints.finding import has_norms
from rootscale.training.checkpoints.saved import SavedOptimizer, is_optimizer
from rootscale.training.checkpoints.saved_scheduler import SavedScheduler, is_scheduler

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

    def remaining(self, request: Request, rule: Rule) -> list[str]:
        """Return what is left to the user, for prepared objects."""
        here = ("rootscale.training.restore_(", "rootscale.integrations.accelerate.restore(")
        return [line.replace(*here) for line in super().remaining(request, rule)]

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
