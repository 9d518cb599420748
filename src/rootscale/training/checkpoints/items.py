"""The items of a DCP folder: where each lies, and the metadata with their places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from rootscale.training.checkpoints.archive import Archive, MappedFile
from rootscale.training.checkpoints.pickled import Kept, dump, load

__all__ = ["Item", "Items", "nest", "unnest"]


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

    def add(self, key: str, path: tuple[Any, ...], file: str, start: int, size: int) -> None:
        """Add a value that has been written to the metadata.

        Args:
            key: of the value.
            path: in what is loaded.
            file: that it is in.
            start: its place there.
            size: its bytes there.
        """
        index, info = next((i, one) for i, one in self._storage.items() if _is_value(self._described, i))
        described = self._described[index.attributes()["fqn"]]
        new_index = _like(index, fqn=key)
        self._storage[new_index] = _like(info, relative_path=file, offset=start, length=size)
        self._described[key] = _like(described)
        if self._paths:
            self._paths[key] = path

    def drop(self, key: str) -> None:
        """Leave out an item."""
        del self._items[key], self._described[key]
        for index in [one for one in self._storage if one.attributes()["fqn"] == key]:
            del self._storage[index]
        self._paths.pop(key, None)

    def metadata(self) -> bytes:
        """Return the bytes of the metadata as they are now."""
        return dump(self._root, self._raw)


def _is_value(described: Mapping[str, Kept], index: Kept) -> bool:
    return type(described[index.attributes()["fqn"]]).name == "BytesStorageMetadata"


def _like(kept: Kept, **values: Any) -> Kept:
    """Return another object of the same class, with some values of its own."""
    made = type(kept).__new__(type(kept), *kept.arguments, **kept.keywords)
    made.called = kept.called
    made.state = {**kept.state, **values} if isinstance(kept.state, dict) else kept.state
    return made


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
