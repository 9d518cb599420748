"""A configuration file as text with known places: values are replaced where they stand, and nothing else moves.

A syntax finds the values and their places (`rootscale.configs.places`). Writing is the same for all: put
new text at the places, read the result again, and check that only those values have changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any

from rootscale.configs.places import SYNTAXES, Leaf, Path

Place = tuple[int, int]


def _flat(path: Path) -> Path:
    """The bare name of a path: ``--adam-beta1`` in any table is ``adam_beta1``."""
    names = [part for part in path if not part.isdigit()]
    return (names[-1].lstrip("-").replace("-", "_"), *path[len(names) :]) if names else path


@lru_cache(maxsize=4)
def _parsed(text: str, syntax: str) -> tuple[tuple[Path, Leaf], ...]:
    """The values of a text; every format looks at the same ones."""
    try:
        return tuple(SYNTAXES[syntax].leaves(text))
    except RecursionError:
        raise ValueError(f"expected {syntax}, got values that are nested too deep to be read") from None
    except ValueError as error:
        raise ValueError(str(error) if syntax in str(error) else f"expected {syntax}: {error}") from None


class TextDocument:
    """The text of a configuration and the values in it, by dotted path.

    >>> document = TextDocument('{"optimizer": {"betas": [0.9, 0.999]}}', "JSON")
    >>> document["optimizer.betas.1"]
    0.999
    >>> document.set("optimizer.betas.1", 0.996)
    >>> document.edited()
    '{"optimizer": {"betas": [0.9, 0.996]}}'

    Args:
        text: of the file.
        syntax: one of `SYNTAXES`.
        flat: whether values are known by their bare names, in whatever table they stand, with ``_`` for ``-``.
        aliases: other names of values, with the path of each.
        root: a table that is taken for the whole; empty: all of it.
    """

    def __init__(
        self, text: str, syntax: str, flat: bool = False, aliases: tuple[tuple[str, str], ...] = (), root: str = ""
    ) -> None:
        self.text, self.syntax, self.flat, self.aliases, self.root = text, SYNTAXES[syntax], flat, aliases, root
        self.leaves: dict[str, Leaf] = {}
        self.twice: set[str] = set()
        self._edits: dict[str, int | float] = {}
        found = _parsed(text, syntax)
        names = dict(aliases)
        for path, leaf in found:
            if root and path[0] != root:
                continue
            path = path[1:] if root else path
            name = ".".join(_flat(path) if flat else path)
            name = names.get(name, name)
            if name in self.leaves:
                self.twice.add(name)
            self.leaves[name] = leaf

    def __contains__(self, path: object) -> bool:
        return path in self.leaves or path in self._edits

    def paths(self) -> list[str]:
        """Return the paths of all values, and of the tables and lists that hold them."""
        return list(dict.fromkeys([*self.leaves, *self._edits]))

    def set(self, path: str, value: int | float) -> None:
        """Note a new value, which `edited` writes."""
        self._edits[path] = value

    def get(self, path: str, default: Any = None) -> Any:
        """Return the value, or the default where there is none."""
        value = self[path]
        return default if value is None else value

    def __getitem__(self, path: str) -> Any:
        """Return the value, or None where there is none."""
        if path in self.twice:
            raise ValueError(f"{path} is in the file more than once; which one counts is not clear")
        if path in self._edits:
            return self._edits[path]
        return self.leaves[path].value if path in self.leaves else None

    def notes(self, paths: Iterable[str]) -> list[str]:
        """Return what to know about these values."""
        return [note for path in paths if path in self.leaves and (note := self.leaves[path].note)]

    def edited(self) -> str:
        """Return the text with the new values in the places of the old ones; new entries stand next to neighbours.

        Raises:
            ValueError: there is no place for a new value, or it cannot be written without touching something else.
        """
        values = self._edits
        texts, new = self._texts(values)
        edits: dict[Place, str] = {}
        for path, text in texts.items():
            place, text = self._place(path, text)
            if place in edits and place[0] == place[1]:
                # several new entries behind the same neighbour, or in the same new table
                header = f"\n[{path.rpartition('.')[0]}]\n"
                text = edits[place] + (text.partition(header)[2] if header in edits[place] else text)
            elif edits.get(place, text) != text:
                raise ValueError(f"{path} shares its value with another field that needs a different one")
            edits[place] = text
        parts, position = [], 0
        for (start, end), text in sorted(edits.items()):
            parts += [self.text[position:start], text]
            position = end
        result = "".join([*parts, self.text[position:]])
        self._verify(result, values, new)
        return result

    def _texts(self, values: Mapping[str, int | float]) -> tuple[dict[str, str], AbstractSet[str]]:
        """The text of every value by its path, where lists and tables that are missing become one text each."""
        lists: dict[str, list[str]] = {}
        tables: dict[str, list[str]] = {}
        texts = {path: self.syntax.number(value) for path, value in values.items()}
        for path in list(texts):
            parent, _, last = path.rpartition(".")
            if path in self.leaves:
                if fixed := self.leaves[path].fixed:
                    raise ValueError(f"{path} cannot be changed: {fixed}; write its number itself at the option")
            elif last.isdigit():  # a whole list is missing
                lists.setdefault(parent, []).append(texts.pop(path))
        texts |= {path: self.syntax.sequence(items) for path, items in lists.items()}
        for path in list(texts):
            parent, _, last = path.rpartition(".")
            if self.syntax.name in ("JSON", "YAML") and parent and not self._under(parent):  # a whole table is missing
                name = json.dumps(last) if self.syntax.name == "JSON" else last
                tables.setdefault(parent, []).append(f"{name}: {texts.pop(path)}")
        texts |= {path: f"{{{', '.join(items)}}}" for path, items in tables.items()}
        return texts, {*lists, *tables}

    def _under(self, path: str) -> bool:
        """Return whether the text has something in a table."""
        return any(name.startswith(f"{path}.") for name in self.leaves)

    def _place(self, path: str, text: str) -> tuple[Place, str]:
        """Where a text goes, and what is written there."""
        leaf = self.leaves.get(path)
        if leaf is not None:
            return (leaf.start, leaf.end), f" {text}" if leaf.start == leaf.end else text
        parent, _, key = path.rpartition(".")
        neighbours = [  # not one without a value: that may be written too, in the same place
            leaf
            for name, leaf in self.leaves.items()
            if name.rpartition(".")[0] == parent
            and leaf.tail is not None
            and not isinstance(leaf.value, dict | list | None)
        ]
        if neighbours:
            # Behind the learning rate, if there is one: that is where people look.
            near = next((leaf for leaf in neighbours if leaf.key.strip("-") in ("lr", "learning_rate")), neighbours[-1])
            dashes = near.key[: len(near.key) - len(near.key.lstrip("-"))]
            named = self.flat or self.syntax.name == "arguments"
            if named and any("-" in leaf.key.lstrip("-") for leaf in neighbours):
                key = dashes + key.replace("_", "-")
            tail = near.tail or 0
            return (tail, tail), self.syntax.entry(self.text, near, key, text)
        if self.syntax.name == "TOML":
            end = len(self.text)
            return (end, end), f"{'' if self.text.endswith(chr(10)) else chr(10)}\n[{parent}]\n{key} = {text}\n"
        raise ValueError(f"{path} is not in the file, and there is no place for it: write the tool's default there")

    def _verify(self, text: str, values: Mapping[str, int | float], new: AbstractSet[str]) -> None:
        """Check that the new text says what the old one did, but for these values."""

        def plain(document: TextDocument) -> dict[str, str]:
            """The single values; whatever holds others is known by them."""
            return {
                path: repr(leaf.value)  # nan is not equal to itself
                for path, leaf in document.leaves.items()
                if path not in new and not isinstance(leaf.value, dict | list)
            }

        expected = {**plain(self), **{path: repr(value) for path, value in values.items()}}
        try:
            same = plain(TextDocument(text, self.syntax.name, self.flat, self.aliases, self.root)) == expected
        except ValueError:
            same = False
        if not same:
            raise ValueError("the file is written in a way that does not let single values be replaced safely")
