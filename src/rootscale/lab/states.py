"""The state of single replicas out of the states of runs that trained several at once.

The state of several replicas has their tensors stacked, ``[R, ...]``; that of one has them as the model has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def select(picks: Sequence[tuple[Mapping[str, Any], int]]) -> dict[str, Any]:
    """Return the warm start of some replicas: of each, the state of the run that made it and its place in there."""
    states: dict[int, Mapping[str, Any]] = {id(state): state for state, _ in picks}
    if len(states) == 1:
        (state,) = states.values()
        if [place for _, place in picks] == list(range(len(state["diverged"]))):
            return dict(state)
    return {
        "learner": _joined([_single(state["learner"], place, len(state["diverged"])) for state, place in picks]),
        "bounds": [state["bounds"][place] for state, place in picks],
        "diverged": [state["diverged"][place] for state, place in picks],
    }


def _single(state: Mapping[str, Any], place: int, replicas: int) -> Mapping[str, Any]:
    """Return the learner's state of one replica."""
    if "replicas" in state:
        found: Mapping[str, Any] = state["replicas"][place]
        return {**found, "apart": True}
    return state if replicas == 1 else _each([state], lambda tensors: tensors[0][place])


def _joined(states: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the learner's state of several replicas from those of single ones."""
    if len(states) == 1:
        return states[0]
    if any("apart" in state for state in states):  # each has a graph of its own
        return {"replicas": list(states)}
    return _each(states, lambda tensors: torch.stack(list(tensors)))


def _each(states: Sequence[Mapping[str, Any]], change: Callable[[Sequence[Tensor]], Tensor]) -> dict[str, Any]:
    """Apply a function to the tensors that belong to replicas, from all states together; the rest they share."""
    first = states[0]

    def of(*keys: Any) -> Tensor:
        tensors = []
        for state in states:
            found: Any = state
            for key in keys:
                found = found[key]
            tensors.append(found)
        return change(tensors)

    slots = first["optimizer"]["state"]
    return {
        **{name: value for name, value in first.items() if name != "step_loss"},  # of steps before the switch
        "params": {name: of("params", name) for name in first["params"]},
        "buffers": {name: of("buffers", name) for name in first["buffers"]},
        "average": None if first["average"] is None else [of("average", i) for i in range(len(first["average"]))],
        "optimizer": {
            **first["optimizer"],
            "state": {
                i: {
                    name: of("optimizer", "state", i, name) if isinstance(value, Tensor) and name != "step" else value
                    for name, value in slot.items()
                }
                for i, slot in slots.items()
            },
        },
    }
