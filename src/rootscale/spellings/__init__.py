"""How libraries and tools name what an optimizer has: rows of one type, `Spelling`.

Torch's rows stand with the families (`rootscale.optimizers`). `libraries` has those of other torch libraries, `optax`
those of optax, and a configuration's are in the table of its tool (`rootscale.configs.tools`). A row is data. What one
optimizer alone needs is a function on its row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol

from rootscale.hparams import Optimizer

#: One or several fields of a record that a tool keeps under one name, such as torch's ``betas``.
Fields = str | tuple[str, ...]
_GROUP = "group."


class Options(Protocol):
    """What a tool holds of an optimizer, by its names: a parameter group, arguments, a configuration."""

    def get(self, name: str, default: Any = None, /) -> Any:
        """Return a value, or the default where there is none."""

    def __getitem__(self, name: str, /) -> Any:
        """Return a value."""

    def __contains__(self, name: object, /) -> bool:
        """Return whether there is a value of that name."""


def _frozen() -> Any:
    return field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Spelling:
    """How a library or a tool names one of its optimizers, and what that has.

    Args:
        names: of its classes or functions; the first is the usual one.
        family: whose update it makes, in `rootscale.optimizers.FAMILIES`.
        values: its names of the hyperparameters, with the fields of the record that they hold. What the record of the
            family has no field for is called by its unit.
        state: its names of the state, with the keys of `Family.state`. ``group.k`` is kept in a parameter group,
            ``state1[0]`` is the first part of a tensor. Of two names with one key, the first may hold codes in few
            bits, which stay, and the second their scales, which change.
        package: that the classes come from; empty is any.
        needs: what every group must have; a class of that name is another one without it.
        defaults: values that it has where nothing is said, or that make it one of this family.
        family_of: gives the family, of an optimizer and its options, where these decide it.
        check: refuses options with which the update is another one.
        more: yields quantities that depend on the options: the name, the family whose rule converts it, the unit.
        unchanged: names of state without a unit, such as Schedule-Free's ``z``.
        foreign: names of state that another family has: parameters that have it are another optimizer's.
        unsure: what is not known of the state, where it matters as soon as momentum's weight changes.
    """

    names: tuple[str, ...]
    family: str
    values: Mapping[str, Fields] = _frozen()
    state: Mapping[str, str] = _frozen()
    package: str = ""
    needs: tuple[str, ...] = ("lr",)
    defaults: Mapping[str, Any] = _frozen()
    family_of: Callable[[Any, Options], str] | None = None
    check: Callable[[Options], None] | None = None
    more: Callable[[Options], Iterable[tuple[str, str, str]]] | None = None
    unchanged: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    unsure: str = ""

    @property
    def name(self) -> str:
        """The usual name of the class or function."""
        return self.names[0]

    @property
    def in_torch(self) -> bool:
        """Whether it is a class of ``torch.optim``."""
        return self.package == "torch"

    @property
    def group_state(self) -> dict[str, str]:
        """The names of the state that stands in parameter groups, beside the hyperparameters."""
        return {name.removeprefix(_GROUP): key for name, key in self.state.items() if name.startswith(_GROUP)}

    @property
    def parameter_state(self) -> dict[str, str]:
        """The names of the state that each parameter has."""
        return {name: key for name, key in self.state.items() if not name.startswith(_GROUP)}

    @property
    def codes(self) -> dict[str, str]:
        """The names of state that may be codes in few bits, with the names of their scales."""
        held = list(self.parameter_state.items())
        return {
            name: scales.partition("[")[0]
            for i, (name, key) in enumerate(held)
            for scales, same in held[i + 1 :]
            if same == key
        }

    def arguments(self, record: Optimizer) -> dict[str, Any]:
        """Return the hyperparameters of a record under the tool's names.

        >>> from rootscale.hparams import Adam
        >>> from rootscale.optimizers import FAMILIES
        >>> FAMILIES["adam"].torch.arguments(Adam(1e-3))
        {'lr': 0.001, 'betas': (0.9, 0.999), 'eps': 1e-08, 'weight_decay': 0.0}
        """
        return {
            name: getattr(record, held) if isinstance(held, str) else tuple(getattr(record, each) for each in held)
            for name, held in self.values.items()
        } | dict(self.defaults)

    def summing(self) -> Spelling:
        """Return the spelling of classes that sum gradients in their momentum, ``b = mu b + g``, and do not average."""
        state = {name: "b" if key == "m" else key for name, key in self.state.items()}
        return replace(self, state=MappingProxyType(state), unsure="")

    def state_name(self, key: str) -> str | None:
        """Return the tool's name of a piece of state such as ``v``; None where the optimizer has none."""
        return next((name for name, held in self.parameter_state.items() if held == key), None)


def only(why: str, **allowed: Any) -> Callable[[Options], None]:
    """Return a check that options have one of the allowed values, or are not there; ``why`` says what that is for.

    >>> only("its steps are normalised", normalize=(False,))({"normalize": True})
    Traceback (most recent call last):
    ...
    ValueError: normalize=True: its steps are normalised; it has to be False
    """

    def check(options: Options) -> None:
        for name, values in allowed.items():
            if options.get(name, values[0]) not in values:
                expected = " or ".join(map(repr, values))
                raise ValueError(f"{name}={options[name]!r}: {why}; it has to be {expected}")

    return check


def kind_of_rmsprop(optimizer: Any, options: Options) -> str:
    """Return the family of RMSprop, as torch and optax have it: centered, with momentum or neither."""
    return (
        "rmsprop-centered" if options.get("centered") else "rmsprop-momentum" if options.get("momentum") else "rmsprop"
    )


def decoupled_or_not(optimizer: Any, options: Options) -> str:
    """Return Adam or AdamW, by what the optimizer or its options say of the decay."""
    decoupled = options.get("decoupled_weight_decay", getattr(optimizer, "adam_w_mode", False))
    return "adamw" if decoupled else "adam"
