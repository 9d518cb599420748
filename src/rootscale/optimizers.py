"""The registry of optimizer families: one row for each, as data.

A family is a kind of update, whoever implements it. Its row says which record of `rootscale.hparams` holds its
hyperparameters, which rule keeps its dynamics, what state it carries in which units, and how torch spells all of that.
Plans, snippets, live conversions, the noise metric, the lab and the converters of configurations read this table.
`rootscale.training.adapters` leads from a live torch optimizer to its row. To add an optimizer, add a row here (and an
adapter there, if torch has a class for it).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from rootscale.hparams import SGD, Adam, AdamW, Lion, Muon, Optimizer, RMSprop, Signum

__all__ = ["FAMILIES", "Family", "Spelling", "family"]

#: One or several fields of a record that a tool keeps under one name, such as torch's ``betas``.
Fields = str | tuple[str, ...]


def _frozen(mapping: Mapping[str, Any]) -> Any:
    return field(default_factory=lambda: MappingProxyType(dict(mapping)))


@dataclass(frozen=True)
class Spelling:
    """How a tool names what a family has.

    Args:
        name: of the optimizer in that tool.
        values: the tool's names of the hyperparameters, with the fields of the record that they hold.
        state: the tool's names of the state, with the keys of `Family.state`.
        options: the tool's names of what has no unit, such as ``nesterov``, with the fields that they hold.
    """

    name: str
    values: Mapping[str, Fields] = _frozen({})
    state: Mapping[str, str] = _frozen({})
    options: Mapping[str, str] = _frozen({})

    def arguments(self, record: Optimizer) -> dict[str, Any]:
        """Return the hyperparameters of a record under the tool's names.

        >>> FAMILIES["adam"].torch.arguments(Adam(1e-3))
        {'lr': 0.001, 'betas': (0.9, 0.999), 'eps': 1e-08, 'weight_decay': 0.0}
        """
        return {
            name: getattr(record, held) if isinstance(held, str) else tuple(getattr(record, one) for one in held)
            for name, held in {**self.values, **self.options}.items()
        }

    def state_name(self, key: str) -> str | None:
        """Return the tool's name of a piece of state such as ``v``; None where the optimizer has none."""
        return next((name for name, held in self.state.items() if held == key), None)


@dataclass(frozen=True)
class Family:
    """One kind of optimizer.

    Args:
        name: as on the command line, in plan files and in rules.
        record: of its hyperparameters; each field names its unit.
        rules: the names of the rules that keep its dynamics; the first is its own, which is the default.
        state: what it carries from step to step, by the paper's letters, with the units.
        torch: how torch spells it.
        bias_corrected: whether it divides by ``sqrt(v / (1 - beta2^k))`` rather than by ``sqrt(v)``.
        degree: of the update in the gradient: 1 for SGD, 0 where doubling all gradients changes no step.
    """

    name: str
    record: type[Optimizer]
    rules: tuple[str, ...]
    state: Mapping[str, str]
    torch: Spelling
    bias_corrected: bool = False
    degree: int = 0

    @property
    def adaptive(self) -> bool:
        """Whether the update is divided by the root of a second moment."""
        return "v" in self.state

    def unit(self, name: str) -> str:
        """Return the unit of a field of the record."""
        return next(str(f.metadata["unit"]) for f in fields(self.record) if f.name == name)

    def torch_units(self) -> dict[str, Fields]:
        """Return the units of torch's hyperparameters, by torch's names.

        >>> FAMILIES["rmsprop"].torch_units()
        {'lr': 'eta', 'alpha': 'beta2', 'eps': 'eps', 'weight_decay': 'l2'}
        """
        return {
            name: self.unit(held) if isinstance(held, str) else tuple(self.unit(one) for one in held)
            for name, held in self.torch.values.items()
        }

    def torch_state_units(self) -> dict[str, str]:
        """Return the units of torch's state, by torch's names."""
        return {name: self.state[held] for name, held in self.torch.state.items()}


_MOMENTS: Mapping[str, str] = MappingProxyType({"m": "m", "v": "v", "step": "step_counter"})
_ADAM_VALUES: Mapping[str, Fields] = MappingProxyType(
    {"lr": "eta", "betas": ("beta1", "beta2"), "eps": "eps", "weight_decay": "weight_decay"}
)
_ADAM_STATE: Mapping[str, str] = MappingProxyType(
    {"exp_avg": "m", "exp_avg_sq": "v", "max_exp_avg_sq": "v", "step": "step"}
)


_SQRT = ("sqrt",)
_NORMALIZED = ("normalized-sqrt", "normalized-half", "normalized-linear")


def _rows() -> Iterator[Family]:
    yield Family("adam", Adam, _SQRT, _MOMENTS, Spelling("Adam", _ADAM_VALUES, _ADAM_STATE), bias_corrected=True)
    yield Family("adamw", AdamW, _SQRT, _MOMENTS, Spelling("AdamW", _ADAM_VALUES, _ADAM_STATE), bias_corrected=True)
    yield Family(
        "rmsprop",
        RMSprop,
        _SQRT,
        {"v": "v", "step": "step_counter"},
        Spelling(
            "RMSprop",
            {"lr": "eta", "alpha": "beta", "eps": "eps", "weight_decay": "weight_decay"},
            {"square_avg": "v", "step": "step"},
        ),
    )
    yield Family(
        "sgd",
        SGD,
        ("linear",),
        {},
        Spelling("SGD", {"lr": "eta", "momentum": "momentum", "weight_decay": "weight_decay"}),
        degree=1,
    )
    yield Family(
        "muon",
        Muon,
        _NORMALIZED,
        {"m": "m"},
        Spelling(
            "Muon",
            {"lr": "eta", "momentum": "mu", "weight_decay": "weight_decay", "eps": "eps"},
            {"momentum_buffer": "m"},
            {"nesterov": "nesterov"},
        ),
    )
    yield Family(
        "lion",
        Lion,
        _NORMALIZED,
        {"m": "m"},
        Spelling("Lion", {"lr": "eta", "betas": ("beta1", "beta2"), "weight_decay": "weight_decay"}, {"exp_avg": "m"}),
    )
    yield Family(
        "signum",
        Signum,
        _NORMALIZED,
        {"m": "m"},
        Spelling("Signum", {"lr": "eta", "momentum": "mu", "weight_decay": "weight_decay"}, {"momentum_buffer": "m"}),
    )
    # Adam whose second moment averages the squared gradients of micro-batches of a fixed size.
    yield Family(
        "microbatchadam",
        Adam,
        ("invariant",),
        _MOMENTS,
        Spelling("MicroBatchAdam", _ADAM_VALUES, _ADAM_STATE),
        bias_corrected=True,
    )


#: Every family by its name.
FAMILIES: Mapping[str, Family] = MappingProxyType({row.name: row for row in _rows()})


def family(name: str) -> Family:
    """Return the row of that name."""
    if name not in FAMILIES:
        raise ValueError(f"optimizer must be one of {', '.join(FAMILIES)}, got {name!r}")
    return FAMILIES[name]
