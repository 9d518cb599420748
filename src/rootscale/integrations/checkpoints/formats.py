"""The table of checkpoint formats: how each is recognised and read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from rootscale.integrations.checkpoints.accelerate import AccelerateFolder, is_accelerate_folder
from rootscale.integrations.checkpoints.deepspeed import UniversalFolder, is_deepspeed_folder
from rootscale.integrations.checkpoints.lightning import LightningFile, is_lightning_file
from rootscale.integrations.checkpoints.safetensors import SafetensorsFolder, is_safetensors_folder
from rootscale.integrations.checkpoints.trainer import TrainerFolder, is_trainer_folder
from rootscale.training.checkpoints import Keys, Source, TorchFile
from rootscale.training.checkpoints.dcp import DcpFolder, is_dcp_folder

__all__ = ["FORMATS", "CheckpointFormat", "find_format"]


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


def find_format(path: Path) -> CheckpointFormat:
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
