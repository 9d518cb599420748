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

__all__ = ["SAMPLES", "Tracked", "above_noise", "numbers"]

#: The name under which samples seen are logged, for trackers that count steps in a way of their own.
SAMPLES = "samples_seen"
_VERDICTS = {"same": 1.0, "undecided": 0.0, "different": -1.0}


class Tracked(Protocol):
    """Anything that has its numbers as a flat dictionary, as `Changes` does."""

    def flat(self) -> dict[str, float]:
        """Return them."""


def numbers(*found: Tracked | Noise | Comparison | Mapping[str, float]) -> dict[str, float]:
    """Return what was found as one flat dictionary of numbers, for loggers; what is not finite is left out.

    Args:
        found: `Changes` (each new value as ``rootscale/...``), `Noise` (``noise_scale`` with its interval), a
            `Comparison` (``verdict`` as 1 for the same, -1 for different, 0 for undecided, and the largest gap of each
            test function), or numbers by name.

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
        else:
            held |= one if isinstance(one, Mapping) else one.flat()
    return {name: float(value) for name, value in held.items() if math.isfinite(value)}


def _judged(comparison: Comparison) -> dict[str, float]:
    verdict = {} if comparison.verdict is None else {"rootscale/verdict": _VERDICTS[comparison.verdict]}
    gaps = {f"rootscale/gap/{gap.name.replace(' ', '_')}": gap.largest.gap for gap in comparison.gaps.values()}
    return {**verdict, **gaps}


def above_noise(noise: Noise, batch_size: float) -> str:
    """Return what to say where a batch exceeds the measured noise scale, its whole interval; empty where it does not.

    Beyond the noise scale the gradient dominates, and the rule no longer keeps the dynamics.
    """
    if batch_size <= noise.scale.high:
        return ""
    return (
        f"the batch of {show(batch_size)} samples exceeds the measured noise scale, {noise.scale} samples (95 % "
        "interval): from here on larger batches need more samples for the same loss, and the rule does not hold"
    )
