"""What experiment trackers are given: flat dictionaries of numbers, and what to say where the batch is too large.

TensorBoard, W&B and MLflow take a name, a number and a step. The integrations hand these dictionaries to whatever
logger their framework has. The step is the number of samples seen, so that curves before and after a change of batch
size continue each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from rootscale.format import show
from rootscale.noise import Noise
from rootscale.verdict import Comparison

__all__ = ["numbers"]

#: The name under which samples seen are logged, for trackers that count steps in a way of their own.
SAMPLES = "samples_seen"
#: The same for tokens, where the length of a sequence is known.
TOKENS = "tokens_seen"
_VERDICTS = {"same": 1.0, "undecided": 0.0, "different": -1.0}


class Tracked(Protocol):
    """Anything that has its numbers as a flat dictionary, as `Changes` does."""

    def flat(self) -> dict[str, float]:
        """Return them."""


class Running(Protocol):
    """A live run, as `rootscale.training.Run` is."""

    @property
    def kappa(self) -> float:
        """The batch size of now over that of the script."""

    @property
    def samples(self) -> float:
        """The samples seen."""

    @property
    def tokens(self) -> float | None:
        """The tokens seen, where the length of a sequence is known."""

    def values(self) -> dict[str, float]:
        """Return what a step really uses."""


def numbers(*found: Tracked | Running | Noise | Comparison | Mapping[str, float]) -> dict[str, float]:
    """Return what was found as one flat dictionary of numbers, for loggers; what is not finite is left out.

    Args:
        found: a `Run` (``samples_seen``, ``tokens_seen`` where it knows them, ``rootscale/kappa``, and what a step
            really uses as ``rootscale/lr``; the learning rate in the optimizer's groups and of ``get_last_lr()``, which
            trackers log by themselves, is the script's), `Changes` (each new value as ``rootscale/...``), `Noise`
            (``noise_scale`` with its interval), a `Comparison` (``verdict`` as 1 for the same, -1 for different, 0 for
            undecided, and the largest gap of each test function), or numbers by name.

    >>> from rootscale import Adam, Plan
    >>> changes = Plan(Adam(1e-3, beta1=0.98), batch_size=16, steps=1000).convert(64).changes
    >>> sorted(numbers(changes, {"loss": 0.5}))[:3]
    ['loss', 'rootscale/kappa', 'rootscale/optimizer.beta1']
    """
    held: dict[str, float] = {}
    for one in found:
        if isinstance(one, Noise):
            scale = one.scale
            held |= {"noise_scale": scale.value, "noise_scale_low": scale.low, "noise_scale_high": scale.high}
        elif isinstance(one, Comparison):
            held |= _judged(one)
        elif isinstance(one, Mapping):
            held |= one
        elif hasattr(one, "flat"):
            held |= one.flat()
        else:
            tokens = {} if one.tokens is None else {TOKENS: one.tokens}
            held |= {SAMPLES: one.samples, **tokens, "rootscale/kappa": one.kappa, **step_values(one.values())}
    return {name: float(value) for name, value in held.items() if math.isfinite(value)}


def step_values(values: Mapping[str, float]) -> dict[str, float]:
    """Return what `rootscale.training.Run.values` gives, by the names under which it is logged.

    >>> step_values({"lr": 2e-3, "group 1/lr": 1e-3})
    {'rootscale/lr': 0.002, 'rootscale/group_1/lr': 0.001}
    """
    return {f"rootscale/{name.replace(' ', '_')}": value for name, value in values.items()}


def _judged(comparison: Comparison) -> dict[str, float]:
    verdict = {} if comparison.verdict is None else {"rootscale/verdict": _VERDICTS[comparison.verdict]}
    gaps = {f"rootscale/gap/{gap.name.replace(' ', '_')}": gap.largest.gap for gap in comparison.gaps.values()}
    return {**verdict, **gaps}


def above_noise(noise: Noise, batch_size: float, sequence_length: int | None = None) -> str:
    """Return what to say where a batch exceeds the measured noise scale, its whole interval; empty where it does not.

    Beyond the noise scale the gradient dominates, and the rule no longer keeps the dynamics.

    Args:
        noise: as measured, in samples.
        batch_size: in samples.
        sequence_length: tokens of a sample, to say both in tokens too.
    """
    if batch_size <= noise.scale.high:
        return ""
    tokens = "" if sequence_length is None else f" ({show(batch_size * sequence_length)} tokens)"
    return (
        f"the batch of {show(batch_size)} samples{tokens} exceeds the measured noise scale, {noise.scale} samples "
        "(95 % interval): from here on larger batches need more samples for the same loss, and the rule does not hold"
    )
