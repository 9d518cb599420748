"""Which metrics of the logs are compared."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from rootscale.logs.clock import is_clock
from rootscale.logs.record import Log

__all__ = ["choose_metrics", "is_loss"]


def is_loss(name: str) -> bool:
    """Return whether a metric is a loss by its name: lower is better, and a run that diverges sends it up.

    >>> is_loss("train/loss"), is_loss("eval_nll"), is_loss("accuracy"), is_loss("loss_scale")
    (True, True, False, False)
    """
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]
    return bool({"loss", "nll", "perplexity", "ppl", "bpb", "bpc"} & set(words)) and not {"scale", "scaler"} & set(
        words
    )


def choose_metrics(sides: Sequence[Sequence[Log]], asked: Sequence[str]) -> list[str]:
    """Return the metrics that are compared: those asked for, or else the losses, or else the only one there is.

    All runs must have them.
    """
    logs = [log for side in sides for log in side]
    if asked:
        for name in asked:
            for log in logs:
                if name not in log.columns:
                    raise ValueError(f"{log.name} has no metric {name!r}{_near(name, log)}; it has {_listed(log)}")
        return list(dict.fromkeys(asked))
    common = [name for name in _metrics(logs[0]) if all(name in log.columns for log in logs)]
    losses = [name for name in common if is_loss(name)]
    if losses:
        return losses
    if len(common) == 1:
        return common
    if common:
        raise ValueError(
            f"none of the metrics that all runs have is called a loss: give those to compare with --metric, of "
            f"{', '.join(map(repr, common))}"
        )
    odd = next((log for log in logs if set(_metrics(log)) != set(_metrics(logs[0]))), logs[-1])
    raise ValueError(
        f"the runs have no metric in common: {logs[0].name} has {_listed(logs[0])}, {odd.name} has {_listed(odd)}"
    )


def _metrics(log: Log) -> list[str]:
    return [name for name in log.columns if not is_clock(name)]


def _listed(log: Log) -> str:
    return ", ".join(map(repr, _metrics(log))) or "none"


def _near(name: str, log: Log) -> str:
    near = difflib.get_close_matches(name, _metrics(log), 1, 0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""
