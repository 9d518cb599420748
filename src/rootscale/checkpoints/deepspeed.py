"""DeepSpeed's universal checkpoints: a folder for every parameter, a file for every piece of its state.

``zero/NAME/exp_avg.pt`` holds ``{"param": tensor, ...}``, ``zero/NAME/step.pt`` a number, ``zero/optimizer_state.pt``
the hyperparameters and ``mp_rank_*_model_states.pt`` what the engine counts. DeepSpeed's own schedulers are functions
of their step and of the configuration. So the policy is: the run at the new batch size looks as if it had always had
it, with a configuration from ``rootscale convert``.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from rootscale.changes import Change
from rootscale.checkpoints.contents import Keys, has_norms
from rootscale.checkpoints.optimizers import SavedOptimizer
from rootscale.checkpoints.rebase import Contents, Request
from rootscale.checkpoints.schedulers import SavedScheduler, is_scheduler
from rootscale.checkpoints.sources import Folder
from rootscale.format import show
from rootscale.rules import Rule
from rootscale.units import UNITS

_GLOBAL = "zero/optimizer_state.pt"


def is_deepspeed_folder(path: Path) -> bool:
    """Return whether a folder is a universal checkpoint, or one of ZeRO's own, which is refused."""
    return (path / _GLOBAL).is_file() or (path.is_dir() and any(path.glob("*zero_pp_rank_*_optim_states.pt")))


class UniversalFolder(Folder):
    """A folder that ``ds_to_universal.py`` wrote."""

    def __init__(self, path: Path, keys: Keys) -> None:
        super().__init__(path, keys)
        if not (path / _GLOBAL).is_file():
            raise ValueError(
                f"{path.name} is in ZeRO's own layout, cut into ranks: make a universal checkpoint of it (DeepSpeed's "
                "ds_to_universal.py) and convert that"
            )
        self.groups = self.open_archive(_GLOBAL).root.get("param_groups")
        if not isinstance(self.groups, list) or not all(isinstance(one, dict) and "lr" in one for one in self.groups):
            raise ValueError(f"{_GLOBAL} of {path.name} has no param_groups with a learning rate")
        names = sorted(one.name for one in path.glob("*_model_states.pt"))
        self.engines = [self.open_archive(name) for name in names]

    @cached_property
    def contents(self) -> Contents:
        """What the folder holds; which parameter is in which group is not known, and must not matter."""
        betas = {repr(group.get("betas")) for group in self.groups}
        if len(betas) > 1:
            raise ValueError(
                f"the groups of {self.path.name} have several betas ({', '.join(sorted(betas))}), and a universal "
                "checkpoint does not say which parameters they are for"
            )
        state = {one.name: dict(self._pieces(one)) for one in sorted((self.path / "zero").iterdir()) if one.is_dir()}
        groups = [{**group, "params": [] if i else list(state)} for i, group in enumerate(self.groups)]
        saved = SavedOptimizer("the optimizer", groups, state, _tensor, self.keys.kind, whole_counters=True)
        schedulers = [
            SavedScheduler("lr_scheduler", engine.root["lr_scheduler"], engine.tensor, self.keys.interval)
            for engine in self.engines
            if is_scheduler(engine.root.get("lr_scheduler"))
        ]
        norms = any(has_norms(engine.root.get("module") or {}) for engine in self.engines)
        return Contents([saved], schedulers, batchnorm=norms)

    def _pieces(self, folder: Path) -> Any:
        for file in sorted(folder.glob("*.pt")):
            if file.stem == "fp32":  # the parameter itself
                continue
            archive = self.open_archive(file.relative_to(self.path).as_posix())
            root = archive.root["param"] if isinstance(archive.root, dict) else archive.root
            tensor = archive.tensor(root)
            yield file.stem, root if tensor is None else tensor

    def convert_counters(self, request: Request, rule: Rule) -> list[Change]:
        """Convert the engine's count of steps and the step of DeepSpeed's own scheduler."""
        rows = []
        for engine in (one.root for one in self.engines):
            size = (engine.get("ds_config") or {}).get("train_batch_size")
            if isinstance(size, int) and size != request.before.total:
                raise ValueError(
                    f"the configuration in {self.path.name} has train_batch_size {size}, but --from is "
                    f"{show(request.before.total)}: give --from {size}"
                )
            held = engine.get("lr_scheduler")
            if held and not is_scheduler(held) and set(held) != {"last_batch_iteration"}:
                raise ValueError(
                    f"{self.path.name} has a scheduler that is not known, with {', '.join(map(str, held))}"
                )
            counted = [(engine, "global_steps")]
            counted += [(held, "last_batch_iteration")] if held and not is_scheduler(held) else []
            rows = [_count(place, name, request.kappa) for place, name in counted if place.get(name) is not None]
        return rows

    def finish(self, request: Request, rule: Rule) -> None:
        """Bring the groups and the counters of the state into the files."""
        saved = self.contents.optimizers[0]
        for group, new in zip(self.groups, saved.groups, strict=True):
            group |= {key: value for key, value in new.items() if key != "params"}
        for name, held in saved.state.items():
            step = held.get("step")
            if isinstance(step, int | float):
                self.archives[f"zero/{name}/step.pt"].root = step

    def remaining(self, request: Request, rule: Rule) -> list[str]:
        """Return what is left to the user: the configuration."""
        return [
            f"the configuration: rootscale convert ds_config.json --to {show(request.after.total)} -o ...; it has the "
            "batch size, the scheduler and the clip",
            *(line for line in self.contents.remaining(request, rule) if line.startswith(("BatchNorm", "the decay"))),
        ]


def _count(place: dict[str, Any], name: str, kappa: Fraction) -> Change:
    before = int(place[name])
    after = Fraction(before) / kappa
    place[name] = int(after)
    return Change(name, before, after, UNITS["steps"], int(after))


def _tensor(value: Any) -> Tensor | None:
    return value if isinstance(value, Tensor) else None
