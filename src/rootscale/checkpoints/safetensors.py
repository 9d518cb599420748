"""Optimizer states in safetensors: tensors in one file, hyperparameters as JSON beside it or in the file's header.

The format has no names for optimizers. Understood is what people write: tensors under ``state/0/exp_avg`` or
``state.0.exp_avg``, the groups in a file ``*param_groups*.json`` beside it (as LeRobot does) or as JSON under
``param_groups`` in the header, and the scheduler in a file ``*scheduler*.json``.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rootscale.checkpoints.archive import MappedFile, Tell, bytes_of
from rootscale.checkpoints.contents import Keys
from rootscale.checkpoints.optimizers import SavedOptimizer
from rootscale.checkpoints.rebase import Contents, Request
from rootscale.checkpoints.schedulers import SavedScheduler, is_scheduler
from rootscale.checkpoints.sources import Folder
from rootscale.rules import Rule

_KEY = re.compile(r"(?:.*[./])?state[./](?P<owner>.+)[./](?P<name>[^./]+)")
_TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


class SafetensorsFile:
    """A safetensors file: eight bytes with the length of a JSON header, the header, the tensors."""

    def __init__(self, path: Path) -> None:
        self.file = MappedFile(path)
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8)) if self.file.size >= 8 else (self.file.size,)
            if length > self.file.size:
                raise ValueError(f"{path.name} is no safetensors file")
            self.header: dict[str, Any] = json.loads(file.read(length))
        self.start, self._raw_length = 8 + length, length
        self._metadata = dict(self.header.get("__metadata__", {}))
        self.tensors: dict[str, Tensor] = {}
        self._versions: dict[str, int] = {}

    def keys(self) -> list[str]:
        """Return the names of the tensors."""
        return [key for key in self.header if key != "__metadata__"]

    def tensor(self, key: str) -> Tensor:
        """Return a tensor, mapped into memory."""
        entry = self.header[key]
        first, last = entry["data_offsets"]
        if entry["dtype"] not in _TYPES:
            raise ValueError(f"{self.file.path.name} has {key} in {entry['dtype']}, which is not known")
        if key not in self.tensors:
            dtype = _TYPES[entry["dtype"]]
            self.tensors[key] = self.file.tensor(self.start + first, last - first, dtype, entry["shape"])
            self._versions[key] = self.tensors[key]._version
        return self.tensors[key]

    def write(self, target: Path, factors: Mapping[int, float], tell: Tell) -> None:
        """Write the file, with tensors times their factors."""
        with open(target, "wb") as file:
            if self.header.get("__metadata__", {}) == self._metadata:
                file.writelines(self.file.read(0, self.start))
            else:
                text = json.dumps(self.header, separators=(",", ":")).encode()
                text += b" " * (-len(text) % 8)
                file.write(struct.pack("<Q", len(text)) + text)
            for key in sorted(self.keys(), key=lambda one: self.header[one]["data_offsets"]):
                first, last = self.header[key]["data_offsets"]
                factor = factors.get(id(self.tensors.get(key)), 1.0)
                parts: Any = self.file.read(self.start + first, last - first)
                tensor = self.tensors.get(key)
                if tensor is not None and tensor._version != self._versions[key]:
                    parts = iter([bytes_of(tensor * factor)])
                elif factor != 1:
                    dtype = self.tensors[key].dtype
                    parts = self.file.multiplied(self.start + first, last - first, dtype, factor)
                for chunk in parts:
                    file.write(chunk)
                    tell(len(chunk))


def _state_file(path: Path) -> Path | None:
    """Return the file with an optimizer's state in a folder, or in its folder ``training_state``."""
    for folder in (path, path / "training_state"):
        found = sorted(folder.glob("*optim*.safetensors")) if folder.is_dir() else []
        if found:
            return found[0]
    return None


def is_safetensors_folder(path: Path) -> bool:
    """Return whether a folder holds an optimizer's state in safetensors."""
    return path.is_dir() and _state_file(path) is not None


class SafetensorsFolder(Folder):
    """A folder with an optimizer's state in safetensors."""

    def __init__(self, path: Path, keys: Keys) -> None:
        super().__init__(path, keys)
        found = _state_file(path)
        if found is None:
            raise ValueError(f"{path.name} has no optimizer's state in safetensors (*optim*.safetensors)")
        self.state_name = found.relative_to(path).as_posix()
        self.file = SafetensorsFile(found)
        beside = sorted(found.parent.glob("*param_groups*.json"))
        schedulers = sorted(found.parent.glob("*scheduler*.json"))
        self.groups: Any = None
        if beside:
            self.groups = self.open_document(beside[0].relative_to(path).as_posix())
        elif "param_groups" in self.file.header.get("__metadata__", {}):
            self.groups = json.loads(self.file.header["__metadata__"]["param_groups"])
        self.in_header = not beside
        self.scheduler = self.open_document(schedulers[0].relative_to(path).as_posix()) if schedulers else None
        counter = found.parent / "training_step.json"
        self.step_name = counter.relative_to(path).as_posix()
        self.step = json.loads(counter.read_text()) if counter.is_file() else None

    @cached_property
    def contents(self) -> Contents:
        """What the folder holds."""
        groups = self.groups.get("param_groups") if isinstance(self.groups, dict) else self.groups
        if not (isinstance(groups, list) and groups and all(isinstance(one, dict) and "lr" in one for one in groups)):
            raise ValueError(
                f"{self.path.name} has no hyperparameters: tensors alone are no run. Write optimizer.state_dict()"
                "['param_groups'] as JSON to optimizer_param_groups.json beside the file"
            )
        state: dict[Any, dict[str, Any]] = {}
        for key in self.file.keys():  # noqa: SIM118
            if match := _KEY.fullmatch(key):
                owner = match["owner"]
                state.setdefault(int(owner) if owner.isdigit() else owner, {})[match["name"]] = self.file.tensor(key)
        if not state:
            raise ValueError(f"{self.state_name} has no keys such as state/0/exp_avg or state.0.exp_avg")
        saved = SavedOptimizer("the optimizer", groups, state, _tensor, self.keys.kind)
        held = self.scheduler
        if held is not None and not is_scheduler(held):
            raise ValueError(f"{self.path.name} has a scheduler that is not known (without last_epoch)")
        schedulers = [SavedScheduler("scheduler", held, _tensor, self.keys.interval)] if held is not None else []
        named: dict[str, tuple[Any, Any]] = {}
        if self.step is not None and "step" in self.keys.counters:
            self.step = self.open_document(self.step_name)
            named = {"step": (self.step, "step")}
        if unknown := set(self.keys.counters) - set(named):
            raise ValueError(f"--counter {min(unknown)}: a folder in safetensors has no counter but step")
        counters = {"step": self.step["step"]} if self.step is not None else {}
        return Contents([saved], schedulers, counters=counters, named=named)

    def finish(self, request: Request, rule: Rule) -> None:
        """Put the groups back into the header, where they are there."""
        if self.in_header:
            self.file.header["__metadata__"]["param_groups"] = json.dumps(self.groups)

    def write_file(self, path: Path, target: Path, factors: Mapping[int, float], tell: Tell) -> None:
        """Write one file."""
        if path.as_posix() == self.state_name:
            self.file.write(target, factors, tell)
        else:
            super().write_file(path, target, factors, tell)


def _tensor(value: Any) -> Tensor | None:
    return value if isinstance(value, Tensor) else None
