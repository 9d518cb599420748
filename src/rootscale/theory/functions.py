"""Test functions: what is averaged over paths to compare a chain with its SDE."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Tensor

__all__ = ["TESTS", "Functions", "TestFunction", "tests_of"]

Functions = Mapping[str, Callable[[Any], Tensor]]


@dataclass(frozen=True)
class TestFunction:
    """A test function of the state of the SDE.

    Args:
        name: for tables.
        function: of a state of the SDE; ``[P]``.
        needs: which parts of the state it uses.
    """

    __test__: ClassVar[bool] = False  # pytest: not a class of tests
    name: str
    function: Callable[[Any], Tensor]
    needs: frozenset[str] = frozenset({"theta"})


#: The test functions by name, averaged over coordinates.
TESTS: Mapping[str, TestFunction] = MappingProxyType({
    test.name: test
    for test in (
        TestFunction("theta", lambda x: x.theta.mean(1)),
        TestFunction("theta^2", lambda x: x.theta.square().mean(1)),
        TestFunction("cos theta", lambda x: x.theta.cos().mean(1)),
        TestFunction("theta*u", lambda x: (x.theta * x.u).mean(1), frozenset({"theta", "u"})),
        TestFunction("m^2", lambda x: x.m.square().mean(1), frozenset({"m"})),
    )
})  # fmt: skip


def tests_of(state: tuple[Tensor, ...]) -> dict[str, Callable[[Any], Tensor]]:
    """Return the rows of `TESTS` that can be evaluated on this state, by name."""
    parts = set(getattr(state, "_fields", ()))
    return {name: test.function for name, test in TESTS.items() if test.needs <= parts}
