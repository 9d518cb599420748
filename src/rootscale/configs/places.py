"""Values in the text of a configuration, and their places: JSON, TOML, YAML, options of a shell, Python.

A syntax finds every value with the names that lead to it and the part of the text that it takes. Nothing is executed.
`rootscale.configs.document` writes new values in those places, so that all other text stays as it is.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from types import MappingProxyType
from typing import Any

#: The names that lead to a value, from the outermost one on; a number leads into a list.
Path = tuple[str, ...]


@dataclass(frozen=True)
class Leaf:
    """A value and its place in the text.

    Args:
        value: as the syntax reads it.
        start: of its text.
        end: of its text.
        key: its name, as written.
        head: where the entry (the key and the value) starts; a new entry is written like it.
        tail: where the entry ends and a new entry may follow; None if none may.
        fixed: why its text must not be changed; empty if it may.
        note: what to know about the value; empty if nothing.
        inline: whether a new entry stands in the same line, behind a comma.
    """

    value: Any
    start: int
    end: int
    key: str = ""
    head: int = 0
    tail: int | None = None
    fixed: str = ""
    note: str = ""
    inline: bool = False


Leaves = Iterator[tuple[Path, Leaf]]


@dataclass(frozen=True)
class Syntax:
    """How one kind of text is read and written.

    Args:
        name: as in messages.
        leaves: returns the values of a text with their paths; a `ValueError` says why it cannot be read.
        entry: returns the text of a new entry behind an existing one: ``(text, leaf, key, value)``.
        suffixes: of files that must be written in this syntax.
        number: returns a number as text.
        sequence: returns the text of a list of these texts.
    """

    name: str
    leaves: Callable[[str], Leaves]
    entry: Callable[[str, Leaf, str, str], str]
    suffixes: tuple[str, ...] = ()
    number: Callable[[int | float], str] = repr
    sequence: Callable[[Iterable[str]], str] = lambda items: f"[{', '.join(items)}]"


def _line_entry(equals: str) -> Callable[[str, Leaf, str, str], str]:
    """Return a function that writes an entry on a line of its own, indented like the leaf's, or behind a comma."""

    def entry(text: str, leaf: Leaf, key: str, value: str) -> str:
        if leaf.inline:
            return f", {key}{'=' if equals == ' = ' and '=' in text[leaf.head : leaf.start] else equals}{value}"
        line = text.rfind("\n", 0, leaf.head) + 1
        newline = "\r\n" if "\r\n" in text else "\n"
        return f"{newline}{text[line : leaf.head]}{key}{equals}{value}"

    return entry


def number(word: str) -> Any:
    """Return the number that a word is, or the word."""
    for read in (int, float):
        try:
            return read(word)
        except ValueError:
            continue
    return word


_STAGES = re.compile(r"\s*\d[\w.]*:\d+(?:[\s,]+\d[\w.]*:\d+)*\s*")


def _stages(word: str, start: int) -> Iterator[Leaf]:
    """Yield the batch sizes of a text such as ``"0:16 2.4B:320"``, which has pairs of a threshold and a batch size."""
    if _STAGES.fullmatch(word):
        for m in re.finditer(r":(\d+)", word):
            yield Leaf(int(m[1]), start + m.start(1), start + m.end(1))


# ---- JSON

_SPACE = re.compile(r"[ \t\r\n]*")


def _json_leaves(text: str) -> Leaves:
    json.loads(text)  # for its messages: from here on the text is known to be valid
    decode = json.JSONDecoder().raw_decode

    def skip(i: int) -> int:
        return _SPACE.match(text, i).end()  # type: ignore[union-attr]

    def walk(i: int, path: Path, key: str, head: int) -> Leaves:
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
            for inner, leaf in walk(i, (*path, name), name if isinstance(value, dict) else "", start):
                yield inner, leaf
                if inner == (*path, name):
                    after = leaf.end
            i = skip(after)
            i = skip(i + 1) if text[i] == "," else i
            index += 1

    yield from walk(skip(0), (), "", 0)


def _json_entry(text: str, leaf: Leaf, key: str, value: str) -> str:
    gap = text[len(text[: leaf.head].rstrip()) : leaf.head]
    return f",{gap or ' '}{json.dumps(key)}: {value}"


# ---- TOML


def _toml_leaves(text: str) -> Leaves:
    """Find the places by writing the document with a mark in the place of every value.

    tomlkit writes what it has read byte for byte, but does not say where a value was. Between the marks is the text
    that was between the values.
    """
    import tomllib

    tomllib.loads(text)  # for its messages
    try:
        import tomlkit
    except ImportError:
        raise ValueError("TOML files need tomlkit: pip install 'rootscale[toml]'") from None
    document = tomlkit.parse(text)
    mark = "@"
    while f'"{mark}' in text:
        mark += "@"
    values: list[tuple[Path, Any, str]] = []

    def put_marks(holder: Any, path: Path) -> None:
        names = list(holder) if isinstance(holder, dict) else range(len(holder))
        for name in names:
            item, where = holder[name], (*path, str(name))
            if isinstance(item, dict | list):
                if isinstance(item, list):
                    values.append((where, item.unwrap(), ""))  # type: ignore[attr-defined]
                put_marks(item, where)
            else:
                values.append(
                    (where, item.unwrap() if hasattr(item, "unwrap") else item, tomlkit.item(item).as_string())
                )
                holder[name] = f"{mark}{len(values) - 1}{mark}"

    put_marks(document, ())
    places: dict[int, tuple[int, int]] = {}
    result, position = "", 0
    marked = tomlkit.dumps(document)
    for m in re.finditer(rf'"{mark}(\d+){mark}"', marked):
        result += marked[position : m.start()]
        places[int(m[1])] = (len(result), len(result) + len(values[int(m[1])][2]))
        result += values[int(m[1])][2]
        position = m.end()
    if result + marked[position:] != text:
        raise ValueError("TOML is written in a way in which the places of its values cannot be found")
    for i, (path, value, _) in enumerate(values):
        if i not in places:
            yield path, Leaf(value, 0, 0, path[-1])
        else:
            yield path, _toml_leaf(text, path, value, *places[i])


def _toml_leaf(text: str, path: Path, value: Any, start: int, end: int) -> Leaf:
    """Return a value with its entry: a line of a table, a pair in braces, or an item of a list without a name."""
    line = text.rfind("\n", 0, start) + 1
    pair = re.compile(r"""(?:^[ \t]*|[{,]\s*)(?P<key>(?:[\w-]+|"[^"\n]*"|'[^'\n]*')(?:[ \t]*\.[ \t]*"""
                      r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*'))*)[ \t]*=[ \t]*$""")  # fmt: skip
    m = pair.search(text[line:start])
    if m is None or m["key"].rstrip("\"'").rpartition(".")[2].strip("\"' ") != path[-1].rpartition(".")[2]:
        return Leaf(value, start, end)
    head, inline = line + m.start("key"), m[0].lstrip()[:1] in ("{", ",")
    stop = re.compile(r"[^\r\n]*").match(text, end)
    tail = end if inline or stop is None else stop.end()
    return Leaf(value, start, end, m["key"], head, tail, inline=inline)


def _toml_entry(text: str, leaf: Leaf, key: str, value: str) -> str:
    """Return a new entry; beside ``optimizer.lr = 1`` it is one of ``optimizer`` too."""
    table = re.match(r"""(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*)*""", leaf.key)
    name = key if re.fullmatch(r"[\w-]+", key) else json.dumps(key)
    entry = f"{table[0] if table else ''}{name}"
    if leaf.inline:
        return f", {entry} = {value}"
    return _line_entry(" = ")(text, leaf, entry, value)


# ---- YAML


def _yaml_leaves(text: str) -> Leaves:
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
    yield from _Yaml(yaml, loader, text).leaves(root, (), None, False)
    loader.dispose()


class _Yaml:
    """Finds the values below a node of YAML; an anchor's values are yielded once with a place, then without one."""

    def __init__(self, yaml: Any, loader: Any, text: str) -> None:
        self.yaml, self.loader, self.text = yaml, loader, text
        self.seen: set[int] = set()

    def leaves(self, node: Any, path: Path, key: Any, flow: bool) -> Leaves:
        """Yield the values of a node; ``key`` is the node of its name, ``flow`` says whether it is in brackets."""
        first = id(node) not in self.seen
        self.seen.add(id(node))
        if isinstance(node, self.yaml.MappingNode) and first:
            yield from self._mapping(node, path, flow)
        elif isinstance(node, self.yaml.SequenceNode) and first:
            yield from self._sequence(node, path)
        elif isinstance(node, self.yaml.ScalarNode):
            leaf = self._scalar(node, key, flow)
            items = list(_stages(leaf.value, leaf.start + 1)) if node.style in ("'", '"') else []
            if items:
                leaf = replace(leaf, value=[*range(len(items))])
            yield path, leaf
            for i, item in enumerate(items):
                yield (*path, str(i)), item
            if not first:  # an alias: a change here would be a change there
                yield path, Leaf(leaf.value, leaf.start, leaf.end)
        else:
            yield path, Leaf("(an alias)", *_yaml_span(node))  # its values are those of another place

    def _mapping(self, node: Any, path: Path, flow: bool) -> Leaves:
        if not node.value:
            yield path, Leaf({}, *_yaml_span(node))
        for name, item in node.value:
            if name.tag == "tag:yaml.org,2002:merge":
                line = name.start_mark.line + 1
                raise ValueError(f"YAML merge keys are not read: write the values out where line {line} has <<")
            yield from self.leaves(item, (*path, str(name.value)), name, flow or bool(node.flow_style))

    def _sequence(self, node: Any, path: Path) -> Leaves:
        for i, item in enumerate(node.value):
            yield from self.leaves(item, (*path, str(i)), None, True)
        start, end = _yaml_span(node)
        yield path, Leaf([*range(len(node.value))], start, end if node.flow_style else start, str(path[-1]))

    def _scalar(self, node: Any, key: Any, flow: bool) -> Leaf:
        start, end = _yaml_span(node)
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
        head, behind = _yaml_span(key)
        tail = (end if flow else line) if single else None
        return Leaf(value, start, end, self.text[head:behind], head, tail, inline=flow)


def _yaml_span(node: Any) -> tuple[int, int]:
    return node.start_mark.index, node.end_mark.index


def _yaml_number(value: int | float) -> str:
    """Return a number that YAML 1.1 reads as a number: 5.0e-09, not 5e-09."""
    return re.sub(r"^(-?\d+)e", r"\1.0e", repr(value))


# ---- options of a shell script or a file of arguments

_FLAG = re.compile(r"(?<![\w$./-])(?:--([A-Za-z][\w-]*)(?![\w:.-])|-([A-Za-z])(?=[ \t]+[^\s-]))")
_GAP = r"(?:=|[ \t]*(?:\\?\r?\n)?[ \t]*)"
#: A value: a quoted text without options in it, or a word that is no option.
_VALUE = re.compile(
    rf"""{_GAP}(?:"(?P<double>(?!-[^\d.])[^"\n\\]*)"|'(?P<single>(?!-[^\d.])[^'\n\\]*)'|"""
    r"""(?![-\\](?![\d.]))(?P<word>[^\s"'\\)]+))"""
)
#: A further value of the same option is a number.
_MORE = re.compile(r"[ \t]*(?:\\?\r?\n)?[ \t]+(?P<word>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?=[\s)]|$)")
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
_PROGRAM = re.compile(r"(?<![\w$=-])(?:[\w.$}{-]*/)*([\w-]+\.(?:py|sh))(?![\w.])")


@dataclass(frozen=True)
class _Word:
    """A value as written, where it is, where its quotes end, why it must not be changed, what to know about it."""

    text: str
    start: int
    end: int
    behind: int
    fixed: str = ""
    note: str = ""

    @property
    def leaf(self) -> Leaf:
        """The value as an item of a list."""
        return Leaf(_word_value(self.text), self.start, self.end, fixed=self.fixed, note=self.note)


def _option_leaves(text: str) -> Leaves:
    """Find every option; ``$NAME`` is looked up where it is set, if that is one place."""
    code = re.sub(r"(?:^|(?<=\s))#[^\n]*", lambda m: " " * len(m[0]), text)
    flags = [(m, list(_words(code, m.end()))) for m in _FLAG.finditer(code)]
    names = [m.span() for m, _ in flags]
    all_words = [word for _, words in flags for word in words]
    uses = [*names, *((word.start, word.end) for word in all_words if _VARIABLE.fullmatch(word.text))]
    for m, written in flags:
        key = m[1] or m[2]
        path = (key.replace("-", "_"),)
        words = [_resolve(code, word, uses) for word in written]
        if not words:
            yield path, Leaf(True, m.end(), m.end(), key, m.start(), m.end())
            continue
        place = (words[0].start, words[-1].end, key, m.start(), written[-1].behind)
        items = [word.leaf for word in words] if len(words) > 1 else list(_stages(words[0].text, words[0].start))
        if items:
            yield path, Leaf([*range(len(items))], *place)
            for i, item in enumerate(items):
                yield (*path, str(i)), item
        else:
            yield path, Leaf(_word_value(words[0].text), *place, words[0].fixed, words[0].note)
    options = [*names, *((word.start, word.end) for word in all_words)]
    programs = dict.fromkeys(m[1] for m in _PROGRAM.finditer(code) if not _inside(m.span(1), options))
    for i, name in enumerate(programs):  # the scripts that are started, by their bare names
        yield ("(program)", str(i)), Leaf(name, 0, 0)


def _word_value(word: str) -> Any:
    return {"true": True, "false": False, "none": None}.get(word.lower(), number(word))


def _inside(span: tuple[int, int], spans: list[tuple[int, int]]) -> bool:
    return any(start <= span[0] and span[1] <= end for start, end in spans)


def _words(code: str, position: int) -> Iterator[_Word]:
    """Yield the values behind an option: one of any kind, then numbers."""
    m = _VALUE.match(code, position)
    if m is None or m.lastgroup is None or (m.lastgroup != "word" and re.search(r"(?:^|\s)--\w", m[m.lastgroup])):
        return
    yield _Word(m[m.lastgroup], *m.span(m.lastgroup), m.end())
    is_number = m.lastgroup == "word" and not isinstance(number(m["word"]), str)
    while is_number and (m := _MORE.match(code, m.end())):
        yield _Word(m["word"], *m.span("word"), m.end())


def _resolve(code: str, word: _Word, uses: list[tuple[int, int]]) -> _Word:
    """Return the value of a word that is a variable, and the place where that is set; other words as they are."""
    m = _VARIABLE.fullmatch(word.text)
    if m is None:
        return word
    name, default = m[1] or m[3], m[2]
    places = list(re.finditer(rf"""^[ \t]*(?:export[ \t]+)?({name})=(["']?)([^\s"';]+)\2""", code, re.MULTILINE))
    if len(places) > 1 or (not places and default is None):
        return word
    note = f"the variable {name} may also be set from outside: what is converted is its value in this file"
    if not places:
        start = word.start + m.start(2)
        return _Word(m[2], start, start + len(m[2]), word.behind, note=note)
    fixed = _other_use(code, name, [*uses, places[0].span()])
    inner = _VARIABLE.fullmatch(places[0][3])
    if inner is None or inner[2] is None:
        return _Word(places[0][3], *places[0].span(3), word.behind, fixed)
    start = places[0].start(3) + inner.start(2)
    return _Word(inner[2], start, start + len(inner[2]), word.behind, fixed, note)


def _other_use(code: str, name: str, known: list[tuple[int, int]]) -> str:
    """Return where a variable is used other than as the whole value of an option, in words; empty if nowhere."""
    for use in re.finditer(rf"(?<!\w){name}(?!\w)", code):
        if not _inside(use.span(), known):
            return f"it is the variable {name}, which line {code.count(chr(10), 0, use.start()) + 1} uses too"
    return ""


# ---- Python

#: The name under which the function or class of a call is found, beside its arguments.
_CALLED = "()"
#: The name under which an argument without a name is found.
UNNAMED = ("(argument)", "(arguments)")


def _power(base: Any, exponent: Any) -> Any:
    if abs(exponent) > 64:
        raise OverflowError("larger than any batch size or learning rate")
    return base**exponent


_ARITHMETIC: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: _power,
}


def _python_leaves(text: str) -> Leaves:
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ValueError(f"line {error.lineno}: {error.msg}") from None
    except (RecursionError, MemoryError):
        raise ValueError("its values are nested too deep to be read") from None
    yield from _Python(text).statements(tree.body)


class _Call(dict[str, Any]):
    """A call, which holds its arguments as a table holds values; it is shown as it is written."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def __repr__(self) -> str:
        return repr(self.text)


class _Python:
    """Finds values that are assigned at the top, and those of the call that a function returns."""

    def __init__(self, text: str) -> None:
        self.text = text
        lines = text.splitlines(keepends=True)
        self.starts = [0, *accumulate(len(line) for line in lines)]
        self.lines = [line.encode() for line in lines]
        self.known: dict[str, Any] = {}

    def statements(self, body: list[ast.stmt]) -> Leaves:
        """Yield the values of a module: ``name = value``, and what a function returns, under the function's name."""
        for statement in body:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
            if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name) and statement.value:
                yield from self.assigned(target, statement.value, statement)
            elif isinstance(statement, ast.FunctionDef):
                yield from self.function(statement)
            else:  # whatever is assigned here is not known without executing it
                for name in _stored(statement):
                    self.known.pop(name.id, None)
                    yield (name.id,), Leaf(f"(set in line {name.lineno})", *self.span(name))

    def assigned(self, target: ast.Name, value: ast.expr, statement: ast.stmt) -> Leaves:
        start, end = self.span(value)
        values = list(self.values(value, (target.id,)))
        self.known.pop(target.id, None)
        for path, leaf in values:
            if path == (target.id,):
                line_end = self.text.find("\n", self.span(statement)[1])
                line_end = len(self.text) if line_end < 0 else line_end
                head = self.span(target)[0]
                leaf = Leaf(leaf.value, start, end, target.id, head, line_end)
                if isinstance(leaf.value, int | float):
                    self.known[target.id] = leaf.value
            yield path, leaf

    def function(self, function: ast.FunctionDef) -> Leaves:
        """Yield the arguments of the one call that a function returns, if that is all that it returns."""
        returned = [node for node in ast.walk(function) if isinstance(node, ast.Return)]
        if len(returned) == 1 and isinstance(returned[0].value, ast.Call):
            above = self.known
            arguments = (one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg))
            own = {*arguments, *(name.id for name in _stored(function))}  # not known without executing it
            self.known = {name: value for name, value in above.items() if name not in own}
            yield from self.values(returned[0].value, (function.name,))
            self.known = above

    def values(self, node: ast.expr, path: Path) -> Leaves:
        """Yield the value of an expression; a call's keyword arguments are the values of a table."""
        start, end = self.span(node)
        if isinstance(node, ast.Call):
            yield path, Leaf(_Call(ast.unparse(node)), start, end)
            yield (*path, _CALLED), Leaf(ast.unparse(node.func), *self.span(node.func))
            for positional in node.args:
                yield (*path, UNNAMED[0]), Leaf(ast.unparse(positional), *self.span(positional))
            for word in node.keywords:
                if word.arg is None:
                    yield (*path, UNNAMED[1]), Leaf(ast.unparse(word.value), *self.span(word.value))
                else:
                    yield from self.argument(word, (*path, word.arg))
        elif isinstance(node, ast.List | ast.Tuple):
            yield path, Leaf([*range(len(node.elts))], start, end)
            for i, item in enumerate(node.elts):
                yield from self.values(item, (*path, str(i)))
        else:
            yield path, Leaf(self.constant(node), start, end)

    def argument(self, word: ast.keyword, path: Path) -> Leaves:
        """Yield the value of a keyword argument, behind which another one can be written."""
        for inner, leaf in self.values(word.value, path):
            if inner == path:
                leaf = Leaf(leaf.value, leaf.start, leaf.end, path[-1], self.span(word)[0], leaf.end, inline=True)
            yield inner, leaf

    def constant(self, node: ast.expr) -> Any:
        """Return a number, a text, True, False or None; of anything else the text as it is written."""
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str | bool | None):
            return node.value
        if isinstance(node, ast.Name) and node.id in self.known:
            return self.known[node.id]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self.constant(node.operand)
            return -value if isinstance(value, int | float) else ast.unparse(node)
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            sides = [self.constant(node.left), self.constant(node.right)]
            if all(isinstance(side, int | float) for side in sides):
                try:
                    return _ARITHMETIC[type(node.op)](*sides)
                except (ZeroDivisionError, OverflowError):
                    return ast.unparse(node)
        return ast.unparse(node)

    def span(self, node: Any) -> tuple[int, int]:
        """Return where a node is in the text; Python counts columns in bytes."""
        return (self.place(node.lineno, node.col_offset), self.place(node.end_lineno, node.end_col_offset))

    def place(self, line: int, column: int) -> int:
        return self.starts[line - 1] + len(self.lines[line - 1][:column].decode())


def _stored(statement: ast.stmt) -> Iterator[ast.Name]:
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node


# ---- all of them

#: Every syntax by its name.
SYNTAXES: Mapping[str, Syntax] = MappingProxyType(
    {
        syntax.name: syntax
        for syntax in (
            Syntax("JSON", _json_leaves, _json_entry, (".json",)),
            Syntax("TOML", _toml_leaves, _toml_entry, (".toml",)),
            Syntax("YAML", _yaml_leaves, _line_entry(": "), number=_yaml_number),
            Syntax(
                "arguments",
                _option_leaves,
                lambda text, leaf, key, value: f" --{key} {value}",
                (".sh", ".bash", ".slurm"),
                sequence=" ".join,
            ),
            Syntax("Python", _python_leaves, _line_entry(" = "), (".py",)),
        )
    }
)


def guess_syntaxes(text: str, suffix: str = "") -> tuple[str, ...]:
    """Return what a text may be written in, the likeliest first.

    Args:
        text: of the file.
        suffix: of its name, such as ``.json``; it decides, where it stands for one syntax.
    """
    for syntax in SYNTAXES.values():
        if suffix.lower() in syntax.suffixes:
            return (syntax.name,)
    if suffix.lower() in (".yaml", ".yml"):
        return ("YAML", "arguments")  # options may be part of a text in YAML
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        return ("JSON",)
    if _is_python(text):
        return ("TOML", "Python") if _is_toml(text) else ("Python",)
    if _is_toml(text):
        return ("TOML",)
    if all(leaf.value is True or len(leaf.key) < 2 for _, leaf in _option_leaves(text)):  # no option with a value
        return ("YAML",)
    try:
        import yaml

        node = yaml.compose(text, yaml.SafeLoader)
    except ImportError:
        return ("arguments", "YAML")
    except (yaml.YAMLError, RecursionError):
        return ("arguments",)
    # Options may be part of a text in YAML; a script has no names and values at its top.
    return ("YAML", "arguments") if isinstance(node, yaml.MappingNode) else ("arguments",)


def _is_toml(text: str) -> bool:
    import tomllib

    try:
        return bool(tomllib.loads(text))
    except (ValueError, RecursionError):
        return False


def _is_python(text: str) -> bool:
    """Return whether a text is Python that sets something; ``a: 1`` of YAML is Python too, but sets nothing."""
    try:
        return any(isinstance(one, ast.Assign | ast.FunctionDef) for one in ast.parse(text).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
