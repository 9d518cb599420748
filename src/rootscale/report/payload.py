"""The curves of a check as JSON for the page's plots."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from rootscale.lab.check import Arm, Check
from rootscale.report import words
from rootscale.report.words import batch_sizes, clock, clock_name, clock_of_gap
from rootscale.trajectory import Trajectory

__all__ = ["payload", "script_json"]


def script_json(value: Any) -> str:
    r"""Strict JSON that can stand inside ``<script>``: no text in it can end the element or open a comment.

    >>> script_json({"a": "</script><!--"})
    '{"a":"\\u003c/script\\u003e\\u003c!--"}'
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII: also U+2028 is escaped
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def payload(check: Check) -> dict[str, Any]:
    """Everything that is drawn; six digits, and null for what is not finite."""
    base = check.base.trajectory
    switch = None
    if check.switch_at:
        switch = check.switch_at if clock_name(base) == "samples seen" else float(base.times[0])
    return {
        "clock": clock_name(base),
        "switch": switch,
        "functions": words.functions(check),
        "noise": {"warm": _noise(check.warm), "base": _noise(base)} if words.noise(base) else None,
        "sizes": [{"arm": i, "size": size} for i, size in batch_sizes(check)],
        "warm": None if check.warm is None else _curves(check.warm),
        "arms": [_arm(arm) for arm in (check.base, *check.others)],
    }


def _arm(arm: Arm) -> dict[str, Any]:
    gaps = {}
    if arm.comparison is not None:
        gaps = {
            name: {
                "x": _finite(clock_of_gap(gap, arm.trajectory)),
                "gap": _finite(gap.gap),
                "low": _finite(gap.low),
                "high": _finite(gap.high),
            }
            for name, gap in arm.comparison.gaps.items()
        }
    tolerance = None if arm.comparison is None else arm.comparison.tolerance
    return {"label": arm.label, "tolerance": tolerance, "gaps": gaps, **_curves(arm.trajectory)}


def _curves(trajectory: Trajectory) -> dict[str, Any]:
    curves = {}
    for name in trajectory.names:
        if name == words.NOISE_SCALE:
            continue
        mean, se = trajectory[name]
        curves[name] = {"mean": _finite(mean), "se": _finite(se)}
    return {"x": _finite(clock(trajectory)), "curves": curves}


def _noise(trajectory: Trajectory | None) -> dict[str, Any] | None:
    noise = words.noise(trajectory)
    if noise is None:
        return None
    parts = {"x": noise.clock, "middle": noise.middle, "low": noise.low, "high": noise.high}
    return {name: _finite(part) for name, part in parts.items()}


def _finite(values: Iterable[float]) -> list[float | None]:
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]
