"""Folders of `torch.distributed.checkpoint` (DCP): every tensor, piece of one, and number is an item of a file.

``.metadata`` says what there is and where. A key such as ``optimizer.state.layers.0.weight.exp_avg`` is of the state,
``optimizer.param_groups.0.lr`` of a group, and ``optimizer.param_groups.layers.0.weight.lr`` of the group of one
parameter, where the optimizer's ``state_dict`` was flattened. Items that change are written anew, all others are copied
byte for byte, and the metadata gets their new places. torch's planners would have all tensors of the checkpoint in
memory at once: for a folder of 1 GB they took 1,050 MB, and this module 78 MB (``benchmarks/dcp_memory.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from torch import Tensor

from rootscale.checkpoints.archive import Archive, MappedFile, Tell
from rootscale.checkpoints.contents import Keys, check_schedulers, has_norms
from rootscale.checkpoints.optimizers import SavedOptimizer
from rootscale.checkpoints.pickled import Kept, dump, load
from rootscale.checkpoints.rebase import Contents
from rootscale.checkpoints.schedulers import SavedScheduler, is_scheduler
from rootscale.checkpoints.sources import Folder

_GROUPS = re.compile(r"(?:(?P<prefix>.*?)\.)?param_groups\.(?P<owner>.+)\.(?P<name>[^.]+)")
_STATE = re.compile(r"(?:(?P<prefix>.*?)\.)?state\.(?P<owner>.+)\.(?P<name>[^.]+)")


def is_dcp_folder(path: Path) -> bool:
    """Return whether a folder is one of DCP."""
    return (path / ".metadata").is_file()


class DcpFolder(Folder):
    """A folder of `torch.distributed.checkpoint.save`."""

    def __init__(self, path: Path, keys: Keys) -> None:
        super().__init__(path, keys)
        self.items = Items(path)
        self._groups: dict[str, list[tuple[dict[str, Any], list[str]]]] = {}  # of each optimizer, with their owners
        self._held: dict[str, dict[str, Any]] = {}  # the attributes of each scheduler
        self._values: dict[str, Any] = {}  # of the items that are no tensors, as they were read
        self._counts: dict[str, int] = {}  # the counters that the user named

    def _value(self, key: str) -> Any:
        """Return the value of an item: a mapped tensor, for a tensor, or what was saved."""
        item = self.items[key]
        self._values[key] = root = item.archive.root
        tensor = item.archive.tensor(root)
        return root if tensor is None else tensor

    @cached_property
    def contents(self) -> Contents:
        """What the folder holds."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for key in self.items.keys():  # noqa: SIM118
            if match := _GROUPS.fullmatch(key):
                owners = found.setdefault(match["prefix"] or "", {})
                owners.setdefault(match["owner"], {})[match["name"]] = self._value(key)
        found = {prefix: owners for prefix, owners in found.items() if all("lr" in one for one in owners.values())}
        if self.keys.optimizer:
            found = {prefix: found[prefix] for prefix in self.keys.optimizer if prefix in found}
        if not found:
            raise ValueError(
                f"{self.path.name} has no optimizer (keys such as optimizer.param_groups.0.lr), so that there is no "
                "run to convert: a model alone is the same at every batch size"
            )
        optimizers = []
        for prefix, owners in found.items():
            self._groups[prefix] = list(_merged(owners))
            groups = [group for group, _ in self._groups[prefix]]
            name = prefix or "the optimizer"
            optimizers.append(SavedOptimizer(name, groups, self._state(prefix), _tensor, self.keys.kind))
        schedulers = [
            SavedScheduler(prefix or "the scheduler", held, _tensor, self.keys.interval)
            for prefix, held in self._schedulers()
        ]
        names = self.items.keys()
        if not self.keys.scheduler:
            check_schedulers({key.partition(".")[0]: {"a": key} for key in names}, self._held)
        averaged = any(key.rpartition(".")[2] == "n_averaged" for key in names)
        named = {key: (self._counts, key) for key in self.keys.counters}
        for key in named:
            value = self._value(key) if key in self.items else None
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(
                    f"--counter {key} must be a whole number in the checkpoint; there are {', '.join(names)[:200]}"
                )
            self._counts[key] = value
        return Contents(optimizers, schedulers, batchnorm=has_norms(names), averages=averaged, named=named)

    def _state(self, prefix: str) -> dict[Any, dict[str, Any]]:
        """Return the state of each parameter; of a tensor in pieces the first one stands for all."""
        state: dict[Any, dict[str, Any]] = {}
        for key in self.items.keys():  # noqa: SIM118
            match = _STATE.fullmatch(key)
            if match and (match["prefix"] or "") == prefix:
                state.setdefault(match["owner"], {})[match["name"]] = self._value(key)
        numbered = {int(owner): held for owner, held in state.items() if owner.isdigit()}
        return {**state, **numbered}

    def _schedulers(self) -> Iterator[tuple[str, dict[str, Any]]]:
        wanted = self.keys.scheduler
        for key in self.items.keys():  # noqa: SIM118
            prefix, _, name = key.rpartition(".")
            if name != "last_epoch" or "._schedulers." in f".{key}" or (wanted and prefix not in wanted):
                continue
            start = f"{prefix}." if prefix else ""
            under = [one for one in self.items.keys() if one.startswith(start)]  # noqa: SIM118
            held = nest({self.items.path_of(one)[start.count(".") :]: self._value(one) for one in under})
            if is_scheduler(held):
                self._held[prefix] = held
                yield prefix, held

    def write(self, target: Path, factors: Mapping[int, float], tell: Tell) -> None:
        """Write the files of the items anew, the metadata, and copy what else there is."""
        changed = self._changed()
        scaled = dict(self._scaled(factors))
        for name in self.items.files():
            with open(target / name, "wb") as file:
                self._write_items(file, name, changed, scaled, tell)
        known = {*self.items.files(), ".metadata"}
        for path in self.files():
            if path.as_posix() not in known:
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                self.write_file(path, target / path, factors, tell)
        (target / ".metadata").write_bytes(self.items.metadata())

    def _scaled(self, factors: Mapping[int, float]) -> Iterator[tuple[str, float]]:
        """Yield the tensors that are not copied as they are: those with a factor, and those changed in memory."""
        for key, item in self.items.opened():
            tensor = item.archive.tensor(self._values[key])
            if tensor is None:
                continue
            changed = item.archive.is_changed(tensor)
            if changed and self.items.pieces(key) > 1:
                raise ValueError(f"{key} was saved in pieces, and its change is no factor; save it as a whole")
            if changed or id(tensor) in factors:
                yield key, factors.get(id(tensor), 1.0)

    def _write_items(
        self, file: BinaryIO, name: str, changed: Mapping[str, Any], scaled: Mapping[str, float], tell: Tell
    ) -> None:
        for key, item in self.items.of_file(name):
            start = file.tell()
            if key in changed:
                item.archive.root = changed[key]
                item.archive.write(file, {}, tell)
            elif key in scaled:
                tensor = item.archive.tensor(item.archive.root)
                item.archive.write(file, {id(tensor): scaled[key]}, tell)
            else:
                for chunk in item.file.read(item.start, item.size):
                    file.write(chunk)
                    tell(len(chunk))
            item.place(start, file.tell() - start)

    def _changed(self) -> dict[str, Any]:
        """Return the values of all items that are no tensors and have changed or are new; drop those that ended."""
        now: dict[str, Any] = {}
        for prefix, groups in self._groups.items():
            for group, owners in groups:
                for owner in owners:
                    where = f"{prefix}.param_groups.{owner}" if prefix else f"param_groups.{owner}"
                    now |= {f"{where}.{name}": value for name, value in group.items() if name != "params"}
        for optimizer in self.contents.optimizers:
            start = "" if optimizer.name == "the optimizer" else f"{optimizer.name}."
            for owner, held in optimizer.state.items():
                now |= {f"{start}state.{owner}.{name}": value for name, value in held.items()}
        for prefix, held in self._held.items():
            start = f"{prefix}." if prefix else ""
            now |= {f"{start}{'.'.join(map(str, path))}": value for path, value in unnest(held)}
        now |= self._counts
        params = {key for key in self._values if key.endswith(".params")}
        for key in self._values.keys() - now.keys() - params:
            self.items.drop(key)
        return {
            key: value
            for key, value in now.items()
            if not isinstance(value, Tensor) and (key not in self._values or self._values[key] != value)
        }


def _tensor(value: Any) -> Tensor | None:
    return value if isinstance(value, Tensor) else None


def _merged(owners: Mapping[str, dict[str, Any]]) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yield the groups, each with the owners that it is saved under: one, or all parameters that have these values."""
    if all(owner.isdigit() for owner in owners):
        for owner, group in sorted(owners.items(), key=lambda one: int(one[0])):
            yield {"params": [], **group}, [owner]
        return
    found: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for owner, group in owners.items():
        key = repr(sorted((name, repr(value)) for name, value in group.items()))
        merged, same = found.setdefault(key, ({"params": [], **group}, []))
        merged["params"].append(owner)
        same.append(owner)
    yield from found.values()


# ---- the items and their places


class Item:
    """One thing that was saved: a tensor, a piece of a tensor, or a value.

    Args:
        file: that it is in.
        info: its place there, as the metadata has it.
    """

    def __init__(self, file: MappedFile, info: Kept) -> None:
        self.file, self._info = file, info
        self.start, self.size = int(info.attributes()["offset"]), int(info.attributes()["length"])

    @cached_property
    def archive(self) -> Archive:
        """What was saved; each item is a file of `torch.save` by itself."""
        if self._info.attributes().get("transform_descriptors"):
            raise ValueError(
                f"{self.file.path.name} was written with transforms (compression); load it and save it without them"
            )
        return Archive(self.file, self.start, self.size)

    def place(self, start: int, size: int) -> None:
        """Change the place in the metadata."""
        self._info.attributes().update(offset=start, length=size)


class Items:
    """All items of a folder.

    Args:
        folder: of DCP.
    """

    def __init__(self, folder: Path) -> None:
        self._raw = (folder / ".metadata").read_bytes()
        self._root: Kept = load(self._raw)
        held = self._root.attributes()
        if "storage_data" not in held or not isinstance(held["storage_data"], dict):
            raise ValueError(f"{folder.name} has a .metadata file that is not one of torch.distributed.checkpoint")
        self._storage, self._described = held["storage_data"], held["state_dict_metadata"]
        self._paths = held.get("planner_data") or {}
        files: dict[str, MappedFile] = {}
        self._items: dict[str, list[Item]] = {}
        for index, info in self._storage.items():
            name = info.attributes()["relative_path"]
            if name not in files:
                files[name] = MappedFile(folder / name)
            self._items.setdefault(index.attributes()["fqn"], []).append(Item(files[name], info))
        self._files = sorted(files)
        self._mapped = files

    def __contains__(self, key: str) -> bool:
        return key in self._items

    def __getitem__(self, key: str) -> Item:
        return self._items[key][0]

    def pieces(self, key: str) -> int:
        """Return how many pieces a key was saved in."""
        return len(self._items[key])

    def keys(self) -> list[str]:
        """Return the keys of all items."""
        return list(self._items)

    def files(self) -> list[str]:
        """Return the names of the files that the items are in."""
        return self._files

    def path_of(self, key: str) -> tuple[Any, ...]:
        """Return the path of a key in what was saved."""
        path: tuple[Any, ...] = self._paths.get(key) or tuple(
            int(part) if part.isdigit() else part for part in key.split(".")
        )
        return path

    def opened(self) -> Iterator[tuple[str, Item]]:
        """Yield the items whose value has been read, by key."""
        for key, pieces in self._items.items():
            if "archive" in vars(pieces[0]):
                yield key, pieces[0]

    def of_file(self, name: str) -> list[tuple[str, Item]]:
        """Return the items of a file, in their order, by key."""
        held = [(key, one) for key, pieces in self._items.items() for one in pieces if one.file is self._mapped[name]]
        return sorted(held, key=lambda one: one[1].start)

    def drop(self, key: str) -> None:
        """Leave out an item."""
        del self._items[key], self._described[key]
        for index in [one for one in self._storage if one.attributes()["fqn"] == key]:
            del self._storage[index]
        self._paths.pop(key, None)

    def metadata(self) -> bytes:
        """Return the bytes of the metadata as they are now."""
        return dump(self._root, self._raw)


def nest(flat: Mapping[tuple[Any, ...], Any]) -> dict[str, Any]:
    """Return values by path as nested dictionaries, and lists where a path has numbers.

    >>> nest({("a", "b"): 1, ("c", 0, "d"): 2})
    {'a': {'b': 1}, 'c': [{'d': 2}]}
    """
    made: dict[Any, Any] = {}
    for path, value in flat.items():
        place = made
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = value

    def lists(thing: Any) -> Any:
        if not isinstance(thing, dict):
            return thing
        held = {key: lists(value) for key, value in thing.items()}
        return list(held.values()) if held and all(isinstance(key, int) for key in held) else held

    result: dict[str, Any] = lists(made)
    return result


def unnest(held: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the values of nested dictionaries, and of lists of them, by path, as `nest` takes them."""
    inner = isinstance(held, list) and held and all(isinstance(one, dict) for one in held)
    if isinstance(held, dict) or inner:
        for key, value in held.items() if isinstance(held, dict) else enumerate(held):
            yield from unnest(value, (*path, key))
    else:
        yield path, held
