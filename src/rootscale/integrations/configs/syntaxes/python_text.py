"""Python configurations with the places of their values; they are parsed, and never executed."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from rootscale.integrations.configs.syntaxes.leaf import Found, Leaf, Path, Syntax, line_entry

__all__ = ["PYTHON", "UNNAMED"]

#: The name under which the function or class of a call is found, beside its arguments.
_CALLED = "()"
#: The name under which an argument without a name is found.
UNNAMED = ("(argument)", "(arguments)")
_ARITHMETIC: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


def _leaves(text: str) -> Found:
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ValueError(f"line {error.lineno}: {error.msg}") from None
    except (RecursionError, MemoryError):
        raise ValueError("its values are nested too deep to be read") from None
    yield from _Walk(text).statements(tree.body)


class _Call(dict[str, Any]):
    """A call, which holds its arguments as a table holds values; it is shown as it is written."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def __repr__(self) -> str:
        return repr(self.text)


class _Walk:
    """Finds values that are assigned at the top, and those of the call that a function returns."""

    def __init__(self, text: str) -> None:
        self.text = text
        lines = text.splitlines(keepends=True)
        self.starts = [0, *accumulate(len(line) for line in lines)]
        self.lines = [line.encode() for line in lines]
        self.known: dict[str, Any] = {}

    def statements(self, body: list[ast.stmt]) -> Found:
        """The values of a module: ``name = value``, and what each function returns, under the function's name."""
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

    def assigned(self, target: ast.Name, value: ast.expr, statement: ast.stmt) -> Found:
        start, end = self.span(value)
        found = list(self.values(value, (target.id,)))
        self.known.pop(target.id, None)
        for path, leaf in found:
            if path == (target.id,):
                line_end = self.text.find("\n", self.span(statement)[1])
                line_end = len(self.text) if line_end < 0 else line_end
                head = self.span(target)[0]
                leaf = Leaf(leaf.value, start, end, target.id, head, line_end)
                if isinstance(leaf.value, int | float):
                    self.known[target.id] = leaf.value
            yield path, leaf

    def function(self, function: ast.FunctionDef) -> Found:
        """The arguments of the one call that a function returns, if that is all that it returns."""
        returned = [node for node in ast.walk(function) if isinstance(node, ast.Return)]
        if len(returned) == 1 and isinstance(returned[0].value, ast.Call):
            above = self.known
            arguments = (one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg))
            own = {*arguments, *(name.id for name in _stored(function))}  # not known without executing it
            self.known = {name: value for name, value in above.items() if name not in own}
            yield from self.values(returned[0].value, (function.name,))
            self.known = above

    def values(self, node: ast.expr, path: Path) -> Found:
        """The value of an expression; a call's keyword arguments are the values of a table."""
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

    def argument(self, word: ast.keyword, path: Path) -> Found:
        """The value of a keyword argument, behind which another one can be written."""
        for found, leaf in self.values(word.value, path):
            if found == path:
                leaf = Leaf(leaf.value, leaf.start, leaf.end, path[-1], self.span(word)[0], leaf.end, inline=True)
            yield found, leaf

    def constant(self, node: ast.expr) -> Any:
        """A number, a text, True, False or None; of anything else the text as it is written."""
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
        """Where a node is in the text; Python counts columns in bytes."""
        return (self.place(node.lineno, node.col_offset), self.place(node.end_lineno, node.end_col_offset))

    def place(self, line: int, column: int) -> int:
        return self.starts[line - 1] + len(self.lines[line - 1][:column].decode())


def _stored(statement: ast.stmt) -> Iterator[ast.Name]:
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node


PYTHON = Syntax(
    "Python", _leaves, lambda text, leaf, key, value: line_entry(text, leaf, key, value, " = "), suffixes=(".py",)
)
