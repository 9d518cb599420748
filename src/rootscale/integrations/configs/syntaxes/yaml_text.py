"""YAML with the places of its values."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from rootscale.integrations.configs.syntaxes.leaf import Found, Leaf, Path, Syntax, line_entry, number, stages

__all__ = ["YAML"]


def _leaves(text: str) -> Found:
    try:
        import yaml
    except ImportError:
        raise ValueError("YAML files need PyYAML: pip install 'rootscale[yaml]'") from None
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ValueError(
            f"line {line} has the character U+{error.character:04X}, which YAML does not allow; remove it"
        ) from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    if not isinstance(root, yaml.MappingNode):
        raise ValueError("YAML must have names and values at the top")
    yield from _Walk(yaml, loader, text).leaves(root, (), None, False)
    loader.dispose()


class _Walk:
    """Finds the values below a node of YAML; an anchor's values are yielded once with a place, then without one."""

    def __init__(self, yaml: Any, loader: Any, text: str) -> None:
        self.yaml, self.loader, self.text = yaml, loader, text
        self.seen: set[int] = set()

    def leaves(self, node: Any, path: Path, key: Any, flow: bool) -> Found:
        """The values of a node; ``key`` is the node of its name, ``flow`` whether it stands in braces or brackets."""
        once = id(node) not in self.seen
        self.seen.add(id(node))
        if isinstance(node, self.yaml.MappingNode) and once:
            yield from self._mapping(node, path, flow)
        elif isinstance(node, self.yaml.SequenceNode) and once:
            yield from self._sequence(node, path)
        elif isinstance(node, self.yaml.ScalarNode):
            leaf = self._scalar(node, key, flow)
            items = list(stages(leaf.value, leaf.start + 1)) if node.style in ("'", '"') else []
            if items:
                leaf = replace(leaf, value=[*range(len(items))])
            yield path, leaf
            for i, item in enumerate(items):
                yield (*path, str(i)), item
            if not once:  # an alias: a change here would be a change there
                yield path, Leaf(leaf.value, leaf.start, leaf.end)
        else:
            yield path, Leaf("(an alias)", *_span(node))  # its values are those of another place

    def _mapping(self, node: Any, path: Path, flow: bool) -> Found:
        if not node.value:
            yield path, Leaf({}, *_span(node))
        for name, item in node.value:
            if name.tag == "tag:yaml.org,2002:merge":
                line = name.start_mark.line + 1
                raise ValueError(f"YAML merge keys are not read: write the values out where line {line} has <<")
            yield from self.leaves(item, (*path, str(name.value)), name, flow or bool(node.flow_style))

    def _sequence(self, node: Any, path: Path) -> Found:
        for i, item in enumerate(node.value):
            yield from self.leaves(item, (*path, str(i)), None, True)
        start, end = _span(node)
        yield path, Leaf([*range(len(node.value))], start, end if node.flow_style else start, str(path[-1]))

    def _scalar(self, node: Any, key: Any, flow: bool) -> Leaf:
        start, end = _span(node)
        try:
            value = self.loader.construct_object(node)
        except (self.yaml.YAMLError, ValueError, ArithmeticError, LookupError, AttributeError):
            value = self.text[start:end]  # a tag that only the tool knows, or one that its text does not fit
        if isinstance(value, str) and node.style is None:
            value = number(value)  # YAML 1.1 reads 1e-3 as a word; the tools that read such files do not
        if key is None:
            return Leaf(value, start, end, "", start)
        line = self.text.find("\n", end)
        line = len(self.text) if line < 0 else line - (self.text[line - 1] == "\r")
        single = node.style in (None, "'", '"')
        head, behind = _span(key)
        tail = (end if flow else line) if single else None
        return Leaf(value, start, end, self.text[head:behind], head, tail, inline=flow)


def _span(node: Any) -> tuple[int, int]:
    return node.start_mark.index, node.end_mark.index


def _number(value: int | float) -> str:
    """A number that YAML 1.1 reads as a number: 5.0e-09, not 5e-09."""
    return re.sub(r"^(-?\d+)e", r"\1.0e", repr(value))


YAML = Syntax("YAML", _leaves, lambda text, leaf, key, value: line_entry(text, leaf, key, value, ": "), number=_number)
