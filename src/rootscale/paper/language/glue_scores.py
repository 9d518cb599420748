"""The scores of GLUE, from scikit-learn and SciPy (extra ``lab``)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from rootscale.lab.task import Tensors

__all__ = ["SCORES", "Score"]


def _matthews(predicted: Any, true: Any) -> float:
    return float(_library("sklearn.metrics").matthews_corrcoef(true, predicted))


def _f1(predicted: Any, true: Any) -> float:
    return float(_library("sklearn.metrics").f1_score(true, predicted, zero_division=0.0))


def _accuracy(predicted: Any, true: Any) -> float:
    return float(_library("sklearn.metrics").accuracy_score(true, predicted))


def _spearman(predicted: Any, true: Any) -> float:
    if len(set(predicted.tolist())) < 2:  # it is not defined, and nothing has been learned
        return 0.0
    return float(_library("scipy.stats").spearmanr(predicted, true).statistic)


#: How answers are judged: functions of what was predicted (a class or a number) and what is true.
SCORES: Mapping[str, Callable[[Any, Any], float]] = MappingProxyType(
    {"Matthews correlation": _matthews, "F1": _f1, "accuracy": _accuracy, "Spearman correlation": _spearman}
)


@dataclass(frozen=True, eq=False)
class Score:
    """One number for a model's answers to all of some data; a function of `Task`.

    Args:
        metric: one of `SCORES`.
        data: inputs and targets.
        at_once: samples through the model at once.
    """

    metric: str
    data: Tensors
    at_once: int = 256

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> float:
        """Of this model."""
        device = next(model.parameters()).device
        starts = range(0, len(self.data), self.at_once)
        parts = [self.data.inputs[start : start + self.at_once].to(device) for start in starts]
        outputs = torch.cat([model(part).float().cpu() for part in parts])
        if not torch.isfinite(outputs).all():
            return float("nan")
        predicted = outputs[:, 0] if outputs.shape[1] == 1 else outputs.argmax(1)
        return SCORES[self.metric](predicted.numpy(), self.data.targets.numpy())


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ValueError(f"the scores of GLUE need {name}; pip install 'rootscale[lab]'") from None
