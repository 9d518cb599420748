"""A configuration file as text with known places: values are replaced where they stand, and nothing else moves.

Every syntax has one function, which finds the values with their places in the text. Writing is the same for all:
put new text at the places, read the result again, and see that just those values have changed.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

Path = tuple[str, ...]


@dataclass(frozen=True)
class Leaf:
    """A value and where it stands.

    Args:
        value: as the syntax reads it.
        start: of its text.
        end: of its text.
        key: its name as it is written.
        head: where the entry (the key and the value) starts; a new entry is written like it.
        tail: where the entry ends; a new entry may be put there. None: not there.
        fixed: why its text must not be changed; empty if it may.
    """

    value: Any
    start: int
    end: int
    key: str = ""
    head: int = 0
    tail: int | None = None
    fixed: str = ""


Found = Iterator[tuple[Path, Leaf]]


@dataclass(frozen=True)
class Syntax:
    """How one kind of file is read and written.

    Args:
        name: as in messages.
        leaves: the values of a text, with their paths and places.
        entry: the text of a new entry, behind an existing one: ``(text, leaf, key, value)``.
        number: a number as text.
    """

    name: str
    leaves: Callable[[str], Found]
    entry: Callable[[str, Leaf, str, str], str]
    number: Callable[[int | float], str] = repr


def _json(text: str) -> Found:
    json.loads(text)  # for its messages; from here on the text is known to be valid
    decode, space = json.JSONDecoder().raw_decode, re.compile(r"[ \t\r\n]*")

    def skip(i: int) -> int:
        return space.match(text, i).end()  # type: ignore[union-attr]

    def walk(i: int, path: Path, key: str, head: int) -> Iterator[tuple[Path, Leaf]]:
        value, end = decode(text, i)
        if path:
            yield path, Leaf(value, i, end, key, head, end if key else None)
        i = skip(i + 1)
        index = 0
        while isinstance(value, dict | list) and text[i] not in "}]":
            start, name = i, str(index)
            if isinstance(value, dict):
                name, i = decode(text, i)
                i = skip(skip(i) + 1)
            for found in walk(i, (*path, name), name if isinstance(value, dict) else "", start):
                yield found
                if found[0] == (*path, name):
                    after = found[1].end
            i = skip(after)
            i = skip(i + 1) if text[i] == "," else i
            index += 1

    yield from walk(skip(0), (), "", 0)


def _json_entry(text: str, leaf: Leaf, key: str, value: str) -> str:
    gap = text[len(text[: leaf.head].rstrip()) : leaf.head]
    return f",{gap or ' '}{json.dumps(key)}: {value}"


_HEADER = re.compile(r"[ \t]*\[([^\[\]\n]+)\][ \t]*(?:#.*)?\r?$", re.MULTILINE)
_TABLES = re.compile(r"[ \t]*\[\[.*", re.MULTILINE)
_PAIR = re.compile(
    r"""^(?P<head>[ \t]*)(?P<key>[A-Za-z0-9_.-]+)[ \t]*=[ \t]*"""
    r"""(?P<value>"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\[[^\[\]\n]*\]|[^\s#,\["']+)[ \t]*(?P<rest>(?:\#[^\r\n]*)?)\r?$""",
    re.MULTILINE,
)


def _toml(text: str) -> Found:
    data = tomllib.loads(text)
    prefix: Path | None = ()
    for line in re.finditer(r".*(?:\n|$)", text):
        if header := _HEADER.match(text, line.start(), line.end()):
            prefix = tuple(part.strip(" \t\"'") for part in header[1].split("."))
        elif _TABLES.match(text, line.start(), line.end()):
            prefix = None  # one of several tables of the same name
        elif (pair := _PAIR.match(text, line.start(), line.end())) and prefix is not None:
            path = (*prefix, *pair["key"].split("."))
            try:
                value = tomllib.loads(f"x = {pair['value']}")["x"]
                meant = data
                for part in path:
                    meant = meant[part]
            except (KeyError, TypeError, tomllib.TOMLDecodeError):
                continue  # the line belongs to a longer string
            if value == meant:
                yield path, Leaf(value, *pair.span("value"), path[-1], pair.start("key"), pair.end("rest"))
                yield from _items(text, path, value, *pair.span("value"))


def _items(text: str, path: Path, value: Any, start: int, end: int) -> Found:
    """The numbers of a list on one line."""
    if isinstance(value, list):
        for i, (item, m) in enumerate(zip(value, re.finditer(r"[^\s,\[\]]+", text[start:end]), strict=False)):
            yield (*path, str(i)), Leaf(item, start + m.start(), start + m.end())


def _line_entry(text: str, leaf: Leaf, key: str, value: str, equals: str) -> str:
    line = text.rfind("\n", 0, leaf.head) + 1
    newline = "\r\n" if "\r\n" in text else "\n"
    return f"{newline}{text[line : leaf.head]}{key}{equals}{value}"


def _yaml(text: str) -> Found:
    try:
        import yaml
    except ImportError:
        raise ValueError("YAML files need PyYAML: pip install 'rootscale[yaml]'") from None
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    if not isinstance(root, yaml.MappingNode):
        raise ValueError("YAML must have names and values at the top")
    seen: set[int] = set()

    def walk(node: Any, path: Path, key: Any, flow: bool) -> Found:
        start, end = node.start_mark.index, node.end_mark.index
        once = id(node) not in seen
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode) and once:
            if not node.value:
                yield path, Leaf({}, start, end)
            for name, item in node.value:
                if name.tag == "tag:yaml.org,2002:merge":
                    line = name.start_mark.line + 1
                    raise ValueError(f"YAML merge keys are not read: write the values out where line {line} has <<")
                yield from walk(item, (*path, str(name.value)), name, flow or bool(node.flow_style))
            return
        if isinstance(node, yaml.SequenceNode) and once:
            for i, item in enumerate(node.value):
                yield from walk(item, (*path, str(i)), None, True)
            yield path, Leaf([*range(len(node.value))], start, end if node.flow_style else start, str(path[-1]))
            return
        if not isinstance(node, yaml.ScalarNode):
            yield path, Leaf("(an alias)", start, end)  # its values are those of another place
            return
        try:
            value = loader.construct_object(node)
        except (yaml.YAMLError, ValueError):
            value = text[start:end]  # a tag that only the tool knows
        if isinstance(value, str) and node.style is None:
            value = _number(value)  # YAML 1.1 reads 1e-3 as a word; the tools that read such files do not
        line = text.find("\n", end)
        line = len(text) if line < 0 else line - (text[line - 1] == "\r")
        inline = not flow and key is not None and node.style in (None, "'", '"')
        raw = text[key.start_mark.index : key.end_mark.index] if key is not None else ""
        head = key.start_mark.index if key is not None else start
        yield path, Leaf(value, start, end, raw, head, line if inline else None)
        if not once:  # an alias: a change here would be a change there
            yield path, Leaf(value, start, end)

    yield from walk(root, (), None, False)
    loader.dispose()


def _yaml_number(value: int | float) -> str:
    """A number that YAML 1.1 reads as a number: 5.0e-09, not 5e-09."""
    text = repr(value)
    return re.sub(r"^(-?\d+)e", r"\1.0e", text)


def _number(word: str) -> Any:
    try:
        return int(word)
    except ValueError:
        try:
            return float(word)
        except ValueError:
            return word


_FLAG = re.compile(
    r"""(?<![\w$./-])--([A-Za-z][\w-]*)(?![\w:.-])(?:(?:=|[ \t]*(?:\\?\r?\n)?[ \t]*)(["']?)(?![-\\])([^\s"'\\)]+)\2)?"""
)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def _arguments(text: str) -> Found:
    """Options as in a shell script or a file of arguments; ``$NAME`` is looked up where it is set once."""
    code = re.sub(r"(?:^|(?<=\s))#[^\n]*", lambda m: " " * len(m[0]), text)
    flags = list(_FLAG.finditer(code))
    for m in flags:
        path, word = (m[1],), m[3]
        if word is None:
            yield path, Leaf(True, m.end(), m.end(), m[1], m.start(), m.end())
            continue
        span, fixed = m.span(3), ""
        if variable := _VARIABLE.fullmatch(word):
            name = variable[1] or variable[2]
            set_at = list(re.finditer(rf"""^[ \t]*(?:export[ \t]+)?{name}=(["']?)([^\s"';]+)\1""", code, re.MULTILINE))
            if len(set_at) == 1:
                span, word = set_at[0].span(2), set_at[0][2]
                fixed = _other_use(code, name, set_at[0], flags)
        yield path, Leaf(_number(word), *span, m[1], m.start(), m.end(), fixed)


def _other_use(code: str, name: str, set_at: re.Match[str], flags: list[re.Match[str]]) -> str:
    """Where a variable is used but as the whole value of an option, in words; empty if it is not."""
    known = [set_at.span(), *(m.span(1) for m in flags)]
    known += [m.span(3) for m in flags if m[3] is not None and _VARIABLE.fullmatch(m[3])]
    for use in re.finditer(rf"(?<!\w){name}(?!\w)", code):
        if not any(start <= use.start() and use.end() <= end for start, end in known):
            return f"it is the variable {name}, which line {code.count(chr(10), 0, use.start()) + 1} uses too"
    return ""


#: Every syntax by its name.
SYNTAXES: Mapping[str, Syntax] = MappingProxyType(
    {
        "JSON": Syntax("JSON", _json, _json_entry),
        "TOML": Syntax("TOML", _toml, lambda text, leaf, key, value: _line_entry(text, leaf, key, value, " = ")),
        "YAML": Syntax(
            "YAML", _yaml, lambda text, leaf, key, value: _line_entry(text, leaf, key, value, ": "), _yaml_number
        ),
        "arguments": Syntax("arguments", _arguments, lambda text, leaf, key, value: f" --{key} {value}"),
    }
)


def guess_syntaxes(text: str) -> tuple[str, ...]:
    """What the text may be written in, the likeliest first."""
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        return ("JSON",)
    try:
        if tomllib.loads(text):
            return ("TOML",)
    except tomllib.TOMLDecodeError:
        pass
    if all(leaf.value is True for _, leaf in _arguments(text)):
        return ("YAML",)
    try:
        import yaml

        node = yaml.compose(text, yaml.SafeLoader)
    except ImportError:
        return ("arguments", "YAML")
    except yaml.YAMLError:
        return ("arguments",)
    # Options may be part of a text in YAML; a script has no names and values at its top.
    return ("YAML", "arguments") if isinstance(node, yaml.MappingNode) else ("arguments",)


def _flat(path: Path) -> Path:
    """The bare name: ``--adam-beta1`` inside whatever is ``adam_beta1``."""
    names = [part for part in path if not part.isdigit()]
    return (names[-1].lstrip("-").replace("-", "_"), *path[len(names) :]) if names else path


class Document:
    """The text of a configuration and the values in it, by dotted path.

    >>> document = Document('{"optimizer": {"betas": [0.9, 0.999]}}', "JSON")
    >>> document["optimizer.betas.1"]
    0.999
    >>> document.write({"optimizer.betas.1": 0.996})
    '{"optimizer": {"betas": [0.9, 0.996]}}'

    Args:
        text: of the file.
        syntax: one of `SYNTAXES`.
        flat: whether values go by their bare names, wherever they are, with ``_`` for ``-``.
    """

    def __init__(self, text: str, syntax: str, flat: bool = False) -> None:
        self.text, self.syntax, self.flat = text, SYNTAXES[syntax], flat
        self.leaves: dict[str, Leaf] = {}
        self.twice: set[str] = set()
        try:
            found = list(self.syntax.leaves(text))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not {syntax}: {error}" if syntax not in str(error) else str(error)) from None
        for path, leaf in found:
            name = ".".join(_flat(path) if flat else path)
            if name in self.leaves:
                self.twice.add(name)
            self.leaves[name] = leaf

    def __contains__(self, path: str) -> bool:
        return path in self.leaves

    def __getitem__(self, path: str) -> Any:
        """The value, or None where there is none."""
        if path in self.twice:
            raise ValueError(f"{path} is in the file more than once; which one counts is not clear")
        return self.leaves[path].value if path in self.leaves else None

    def write(self, values: Mapping[str, int | float]) -> str:
        """The text with these values, put where the old ones stand; new entries go next to their neighbours.

        Raises:
            ValueError: there is no place for a new value, or it cannot be written without touching something else.
        """
        edits: dict[tuple[int, int], str] = {}
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
        texts |= {path: f"[{', '.join(items)}]" for path, items in lists.items()}
        for path in list(texts):
            parent, _, last = path.rpartition(".")
            if self.syntax.name in ("JSON", "YAML") and parent and self._empty(parent):  # a whole table is missing
                name = json.dumps(last) if self.syntax.name == "JSON" else last
                tables.setdefault(parent, []).append(f"{name}: {texts.pop(path)}")
        texts |= {path: f"{{{', '.join(items)}}}" for path, items in tables.items()}
        for path, text in texts.items():
            place, text = self._place(path, text)
            if place in edits and place[0] == place[1]:
                # several new entries behind the same neighbour, or in the same new table
                header = f"\n[{path.rpartition('.')[0]}]\n"
                text = edits[place] + (text.partition(header)[2] if header in edits[place] else text)
            elif edits.get(place, text) != text:
                raise ValueError(f"{path} shares its value with another field that needs a different one")
            edits[place] = text
        new, position = [], 0
        for (start, end), text in sorted(edits.items()):
            new += [self.text[position:start], text]
            position = end
        result = "".join([*new, self.text[position:]])
        self._verify(result, values, {*lists, *tables})
        return result

    def _empty(self, parent: str) -> bool:
        return not any(path.startswith(f"{parent}.") for path in self.leaves)

    def _place(self, path: str, text: str) -> tuple[tuple[int, int], str]:
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
            if self.flat and any("-" in leaf.key.lstrip("-") for leaf in neighbours):
                key = dashes + key.replace("_", "-")
            tail = near.tail or 0
            return (tail, tail), self.syntax.entry(self.text, near, key, text)
        if self.syntax.name == "TOML":
            end = len(self.text)
            return (end, end), f"{'' if self.text.endswith(chr(10)) else chr(10)}\n[{parent}]\n{key} = {text}\n"
        raise ValueError(f"{path} is not in the file, and there is no place for it: write the tool's default there")

    def _verify(self, text: str, values: Mapping[str, int | float], lists: set[str]) -> None:
        """The new text must say what the old one did, but for these values."""

        def plain(document: Document) -> dict[str, str]:
            """The single values; whatever holds others is known by them."""
            return {
                path: repr(leaf.value)  # nan is not equal to itself
                for path, leaf in document.leaves.items()
                if path not in lists and not isinstance(leaf.value, dict | list)
            }

        expected = {**plain(self), **{path: repr(value) for path, value in values.items()}}
        try:
            same = plain(Document(text, self.syntax.name, self.flat)) == expected
        except ValueError:
            same = False
        if not same:
            raise ValueError("the file is written in a way that does not let single values be replaced safely")
