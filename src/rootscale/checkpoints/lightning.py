"""Checkpoint files of Lightning.

A run at the new batch size looks as if it had always had it: the Trainer's count of steps is converted too, and the
place in the present epoch.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from rootscale.changes import Change
from rootscale.checkpoints.contents import Keys, has_norms
from rootscale.checkpoints.optimizers import SavedOptimizer, is_optimizer
from rootscale.checkpoints.rebase import Contents, Request
from rootscale.checkpoints.schedulers import SavedScheduler, is_scheduler
from rootscale.checkpoints.sources import TorchFile
from rootscale.format import show
from rootscale.rules import Rule
from rootscale.units import UNITS

_VERSION = "pytorch-lightning_version"


def is_lightning_file(path: Path) -> bool:
    """Return whether a file is a checkpoint of Lightning."""
    if not path.is_file():
        return False
    try:
        root = TorchFile(path, Keys()).archive.root
    except (ValueError, OSError):
        return False
    return isinstance(root, dict) and _VERSION in root


class LightningFile(TorchFile):
    """A file ``.ckpt``."""

    @property
    def root(self) -> dict[str, Any]:
        """What the file holds."""
        held: dict[str, Any] = self.archive.root
        return held

    @cached_property
    def contents(self) -> Contents:
        """What it holds: Lightning has a list of optimizers and one of schedulers."""
        held = self.root.get("optimizer_states")
        if not held or not all(map(is_optimizer, held)):
            raise ValueError(
                f"{self.path.name} has no optimizer_states: it was written with save_weights_only=True, so that there "
                "is no run to convert, and a model alone is the same at every batch size"
            )
        optimizers = [
            SavedOptimizer(f"optimizer {i}", one["param_groups"], one["state"], self.archive.tensor, self.keys.kind)
            for i, one in enumerate(held)
        ]
        for one in self.root.get("lr_schedulers") or []:
            if not is_scheduler(one):
                raise ValueError(
                    f"{self.path.name} has a scheduler that is not known (without last_epoch): make it anew for the "
                    "new batch size (rootscale.Plan.at gives its steps and learning rates)"
                )
        schedulers = [
            SavedScheduler(f"scheduler {i}" if i else "scheduler", one, self.archive.tensor, self.keys.interval)
            for i, one in enumerate(self.root.get("lr_schedulers") or [])
        ]
        epoch = self.root.get("epoch")
        weights = self.root.get("state_dict") or {}
        averaged = "averaging_state" in self.root or any(str(key).endswith("n_averaged") for key in weights)
        return Contents(
            optimizers, schedulers, epoch=epoch if isinstance(epoch, int) else None, batchnorm=has_norms(weights),
            averages=averaged,
        )  # fmt: skip

    def convert_counters(self, request: Request, rule: Rule) -> list[Change]:
        """Convert the counts of steps, and the place in the present epoch."""
        before = request.before.accumulation
        after = request.after.accumulation if request.after.laid_out else before
        return [*self._count_steps(request.kappa), *self._move(request, before, after)]

    def _count_steps(self, kappa: Fraction) -> list[Change]:
        """Convert the numbers of optimizer steps that the Trainer goes by."""
        steps = int(self.root["global_step"])
        used = int(Fraction(steps) / kappa)
        self.root["global_step"] = used
        loop = self.root.get("loops", {}).get("fit_loop", {})
        if "_batches_that_stepped" in loop.get("epoch_loop.state_dict", {}):
            loop["epoch_loop.state_dict"]["_batches_that_stepped"] = used
        for name in ("automatic_optimization.optim_progress", "manual_optimization.optim_step_progress"):
            progress = loop.get(f"epoch_loop.{name}", {})
            for counts in _counts(progress):
                counts |= {key: int(Fraction(value) / kappa) for key, value in counts.items()}
        return [Change("global_step", steps, Fraction(steps) / kappa, UNITS["steps"], used)]

    def _move(self, request: Request, before: int, after: int) -> list[Change]:
        """Convert the number of batches that were taken in the present epoch, where it is not over."""
        progress = self.root.get("loops", {}).get("fit_loop", {}).get("epoch_loop.batch_progress", {})
        now = progress.get("current", {})
        done = int(max(now.get("completed", 0), now.get("processed", 0)))
        if not done or progress.get("is_last_batch"):
            return []
        steps = Fraction(done, before) / request.kappa
        batches = int(steps) * after
        again = (steps - int(steps)) * int(request.after.total)
        note = f"{show(again)} samples are seen again, as the new step begins before them" if again else ""
        # In a hook after a batch, it is processed but not yet completed, and Lightning restarts by that difference.
        now |= {stage: batches - (done - number) for stage, number in now.items()}
        return [Change("batches of this epoch", done, steps * after, UNITS["steps"], batches, note)]


def _counts(progress: Any, depth: int = 4) -> list[dict[str, int]]:
    """Return the dictionaries of counts within the state of a loop; a hostile pickle may nest them without end."""
    if not isinstance(progress, dict) or not depth:
        return []
    if progress and all(isinstance(value, int) and not isinstance(value, bool) for value in progress.values()):
        return [progress]
    return [counts for value in progress.values() for counts in _counts(value, depth - 1)]
