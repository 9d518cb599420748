"""The curves of a check as JSON for the page's plots."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from rootscale.compare.result import Result, Table, clock, clock_unit
from rootscale.noise import scale_curve
from rootscale.report import words
from rootscale.report.words import batch_sizes, clock_name, clock_of_gap
from rootscale.trajectory import Trajectory


def script_json(value: Any) -> str:
    r"""Strict JSON that can stand inside ``<script>``: no text in it can end the element or open a comment.

    >>> script_json({"a": "</script><!--"})
    '{"a":"\\u003c/script\\u003e\\u003c!--"}'
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII: also U+2028 is escaped
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def make_payload(check: Table) -> dict[str, Any]:
    """Return everything that is drawn; six digits, and null for what is not finite.

    What belongs to a test function is known by its number, never by its name, which users choose.
    """
    base, names = check.base.trajectory, words.functions(check)
    arms = (check.base, *check.others)
    return {
        "clock": clock_name(base),
        "counted": clock_unit(base) in ("samples", "tokens"),
        "switches": [{"at": at, "text": text} for at, text in words.switches(check)],
        "functions": names,
        "noise": {"warm": _noise(check.warm), "base": _noise(base), "levels": words.noise_levels(check)}
        if scale_curve(base)
        else None,
        "sizes": [{"arm": i, "size": size} for i, size in batch_sizes(check)],
        "tolerances": [words.tolerance(check, name) for name in names],
        "warm": None if check.warm is None else _curves(check.warm, names),
        "arms": [
            {"label": arm.label, "gaps": [_gap(arm, name) for name in names]} | _curves(arm.trajectory, names)
            for arm in arms
        ],
    }


def _gap(arm: Result, name: str) -> dict[str, Any] | None:
    """Return the gap with its bands, without them where there was no verdict; None where there is no gap."""
    gap = None if arm.comparison is None else arm.comparison.gaps.get(name)
    if gap is None:
        return None
    parts = {"x": clock_of_gap(gap, arm.trajectory), "gap": gap.gap, "low": gap.low, "high": gap.high}
    parts |= {"inner_low": gap.local - gap.margin, "inner_high": gap.local + gap.margin}
    bare = () if gap.verdict else ("low", "high", "inner_low", "inner_high")
    return {key: None if key in bare else _finite(part) for key, part in parts.items()}


def _curves(trajectory: Trajectory, names: Iterable[str]) -> dict[str, Any]:
    curves: list[dict[str, Any] | None] = []
    for name in names:
        if name not in trajectory.names:
            curves.append(None)
            continue
        mean, se = trajectory[name]
        curves.append({"mean": _finite(mean), "se": _finite(se)})
    return {"x": _finite(clock(trajectory)), "curves": curves}


def _noise(trajectory: Trajectory | None) -> dict[str, Any] | None:
    noise = scale_curve(trajectory)
    if noise is None:
        return None
    parts = {"x": noise.clock, "middle": noise.middle, "low": noise.low, "high": noise.high}
    return {name: _finite(part) for name, part in parts.items()}


def _finite(values: Iterable[float]) -> list[float | None]:
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]
