"""A checkpoint that is to be converted: what it holds, and how it is written again."""

from __future__ import annotations

import json
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from rootscale.changes import Change
from rootscale.checkpoints.archive import CHUNK, Archive, MappedFile, Tell
from rootscale.checkpoints.contents import Keys, find_contents
from rootscale.checkpoints.rebase import Contents, Request
from rootscale.rules import Rule


class Source(ABC):
    """A checkpoint as one format reads it.

    Args:
        path: the file or folder.
        keys: what the user says about where things are.
    """

    def __init__(self, path: Path, keys: Keys) -> None:
        self.path, self.keys = path, keys

    @cached_property
    @abstractmethod
    def contents(self) -> Contents:
        """What it holds."""

    def convert_counters(self, request: Request, rule: Rule) -> list[Change]:
        """Convert what the tool itself counts, and return the rows to report; called before all else is converted."""
        return []

    @property
    def callables(self) -> set[str]:
        """The names in its pickles that a program would call when it loads them, but for those of known libraries."""
        return set()

    def finish(self, request: Request, rule: Rule) -> None:  # noqa: B027
        """Do what has to wait until all else is converted, and before it is written."""

    def remaining(self, request: Request, rule: Rule) -> list[str]:
        """Return what is left to the user."""
        return list(self.contents.remaining(request, rule))

    @property
    @abstractmethod
    def size(self) -> int:
        """The bytes to be written."""

    @abstractmethod
    def write(self, target: Path, factors: Mapping[int, float], tell: Tell) -> None:
        """Write the converted checkpoint to a file that is there, or into an empty folder that is there.

        Args:
            target: the file or folder.
            factors: of tensors, by ``id``.
            tell: is called with the bytes that were written.
        """


class TorchFile(Source):
    """A file of `torch.save`: a dictionary in which optimizers and schedulers are somewhere."""

    def __init__(self, path: Path, keys: Keys) -> None:
        super().__init__(path, keys)
        self.archive = Archive(MappedFile(path))

    @cached_property
    def contents(self) -> Contents:
        """What it holds."""
        return find_contents(self.archive.root, self.archive.tensor, self.keys, self.path.name)

    @property
    def callables(self) -> set[str]:
        """The names that a program would call when it loads the file."""
        return self.archive.callables

    @property
    def size(self) -> int:
        """The bytes to be written."""
        return self.archive.size

    def write(self, target: Path, factors: Mapping[int, float], tell: Tell) -> None:
        """Write the file."""
        with open(target, "wb") as file:
            self.archive.write(file, factors, tell)


class Folder(Source):
    """A folder in which some files change and all others are copied.

    Attributes:
        archives: files of `torch.save` that change, by their path in the folder.
        documents: JSON files that change.
        inner: folders in it that are checkpoints of their own.
    """

    def __init__(self, path: Path, keys: Keys) -> None:
        super().__init__(path, keys)
        self.archives: dict[str, Archive] = {}
        self.documents: dict[str, Any] = {}
        self.inner: dict[str, Folder] = {}

    def open_archive(self, name: str) -> Archive:
        """Return a file of `torch.save` in the folder, which will be written anew."""
        self.archives[name] = Archive(MappedFile(self.path / name))
        return self.archives[name]

    def open_document(self, name: str) -> Any:
        """Return what a JSON file in the folder holds, which will be written anew."""
        self.documents[name] = json.loads((self.path / name).read_text(encoding="utf-8"))
        return self.documents[name]

    @property
    def callables(self) -> set[str]:
        """The names that a program would call when it loads the files that change."""
        inner = (one.callables for one in self.inner.values())
        return set().union(*(one.callables for one in self.archives.values()), *inner)

    def files(self) -> list[Path]:
        """Return the paths of all files in the folder."""
        return sorted(one.relative_to(self.path) for one in self.path.rglob("*") if one.is_file())

    @property
    def size(self) -> int:
        """The bytes to be written."""
        return sum((self.path / one).stat().st_size for one in self.files())

    def write(self, target: Path, factors: Mapping[int, float], tell: Tell) -> None:
        """Write the files that change, and copy the others."""
        for name, folder in self.inner.items():
            (target / name).mkdir()
            folder.write(target / name, factors, tell)
        for path in self.files():
            if path.parts[0] in self.inner:
                continue
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            self.write_file(path, target / path, factors, tell)

    def write_file(self, path: Path, target: Path, factors: Mapping[int, float], tell: Tell) -> None:
        """Write one file.

        Args:
            path: of the old one, in the folder.
            target: the new one.
            factors: of tensors.
            tell: is called with the bytes that were written.
        """
        name = path.as_posix()
        if name in self.archives:
            with open(target, "wb") as file:
                self.archives[name].write(file, factors, tell)
        elif name in self.documents:
            target.write_text(_rewritten(self.path / path, self.documents[name]), encoding="utf-8")
        else:
            with open(self.path / path, "rb") as source, open(target, "wb") as file:
                while chunk := source.read(CHUNK):
                    file.write(chunk)
                    tell(len(chunk))
        shutil.copymode(self.path / path, target)


def _rewritten(path: Path, document: Any) -> str:
    """Return the text of a JSON document, written as the file that it came from."""
    text = path.read_text(encoding="utf-8")
    held, indent = json.loads(text), re.match(r"[\[{]\n( *)", text)
    ordered = isinstance(held, dict) and list(held) == sorted(held)
    new = json.dumps(
        document, indent=len(indent[1]) if indent else None, sort_keys=ordered, ensure_ascii=text.isascii()
    )
    return new + text[len(text.rstrip()) :]
