"""The curves of a check as figures for papers: one for each test function, as PNG and PDF.

matplotlib is an extra (``pip install 'rootscale[plot]'``) and is imported when a figure is drawn.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from rootscale.compare import Array
from rootscale.files import whole
from rootscale.lab import Arm, Check
from rootscale.report import words
from rootscale.trajectory import Trajectory

__all__ = ["FORMATS", "figures", "need_matplotlib"]

FORMATS = ("png", "pdf")
#: Okabe and Ito's colours and dashes, in the order of the page.
STYLES: tuple[tuple[str, Any], ...] = (
    ("#1d2126", "-"),
    ("#0072b2", (0, (5, 2))),
    ("#d98e00", (0, (1.4, 1.6))),
    ("#c4629a", (0, (5, 2, 1.4, 2))),
    ("#009e73", (0, (9, 2))),
    ("#2ba3dd", (0, (9, 2, 1.4, 2))),
    ("#d55e00", (0, (5, 2, 1.4, 2, 1.4, 2))),
    ("#a39a00", (0, (1.4, 5))),
)
WARM, STRIP, SOFT = "#8a9099", "#66707c", "#5a626c"


def need_matplotlib() -> Any:
    """matplotlib, drawing to files; a `ValueError` that says how to install it where it is missing."""
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError:
        raise ValueError("figures need matplotlib, which is not installed; pip install 'rootscale[plot]'") from None
    importlib.import_module("matplotlib.figure")
    return matplotlib


def figures(check: Check, folder: str | os.PathLike[str], formats: Iterable[str] = FORMATS) -> list[Path]:
    """Draws each test function of a check: the mean curves with bands, and below the gaps against the tolerance.

    After a switch in mid-run only what follows it is drawn (of the noise scale, all).

    Args:
        check: what was found.
        folder: where to write, made if it is missing; a file is called after its test function.
        formats: ``png`` (300 dots per inch) and ``pdf`` (text stays text).

    Returns:
        The files.
    """
    formats = list(dict.fromkeys(formats))
    for name in formats:
        if name not in FORMATS:
            raise ValueError(f"figures are made as {' and '.join(FORMATS)}, got {name!r}")
    matplotlib = need_matplotlib()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context({"pdf.fonttype": 42, "font.size": 8, "axes.titlesize": 9, "legend.fontsize": 8}):
        for name, stem in _stems(check.base.trajectory.names).items():
            figure = _figure(matplotlib, check, name)
            for kind in formats:
                path = folder / f"{stem}.{kind}"
                # No dates: the same check gives the same files.
                metadata = {"Software": None} if kind == "png" else {"CreationDate": None}
                with whole(path) as temporary:
                    figure.savefig(temporary, format=kind, dpi=300, metadata=metadata)
                written.append(path)
    return written


def _stems(names: Iterable[str]) -> dict[str, str]:
    """File names: letters, digits and dashes, each once."""
    stems: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:80] or "function"
        stem, count = plain, 1
        while stem in stems.values():
            count += 1
            stem = f"{plain}-{count}"
        stems[name] = stem
    return stems


def _text(text: str) -> str:
    """Users' text as it is: matplotlib would read mathematics between dollars, and hide what begins with ``_``."""
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _figure(matplotlib: Any, check: Check, name: str) -> Any:
    noise = name == words.NOISE_SCALE
    arms = list(_styled((check.base, *check.others)))
    gaps = [] if noise else [(style, found) for arm, style in arms[1:] if (found := _gap(arm, check.base, name))]
    labels = [arm.label for arm, _ in arms]
    columns = min(3, max(1, 78 // (8 + max(map(len, labels)))))
    rows, lines = 2 if gaps else 1, 1 if noise else -(-len(labels) // columns)
    size = (4.8, 2.5 + 1.8 * (rows - 1) + 0.17 * lines)
    figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, 1, squeeze=False, sharex=True, height_ratios=(3, 2)[:rows])[:, 0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(color="#e3e3e0", linewidth=0.6)
        for at, _ in words.switches(check):
            axis.axvline(at, color=SOFT, linewidth=0.9, linestyle=":")
    if noise:
        _noise(axes[0], check)
    for arm, (colour, dash) in arms:
        if name in arm.trajectory.names and not noise:
            _curve(axes[0], arm.trajectory, name, colour, dash, _text(arm.label))
    axes[0].set_ylabel(_text(name))
    for (colour, dash), (x, gap, low, high) in gaps:
        if low is not None and high is not None:
            axes[1].fill_between(x, 100 * low, 100 * high, color=colour, alpha=0.17, linewidth=0)
        axes[1].plot(x, 100 * gap, color=colour, linestyle=dash, linewidth=1.4)
    if gaps:
        axes[1].axhline(0, color=SOFT, linewidth=0.7)
        axes[1].set_ylabel("gap (% of range)")
        tolerances = [100 * arm.comparison.tolerance for arm in check.others if arm.comparison]
        if tolerances:
            axes[1].axhspan(-max(tolerances), max(tolerances), color=STRIP, alpha=0.13, linewidth=0)
            for y in (-max(tolerances), max(tolerances)):
                axes[1].axhline(y, color=STRIP, linewidth=0.8)
    axes[-1].set_xlabel(words.clock_name(check.base.trajectory))
    if words.clock_name(check.base.trajectory) == "samples seen":
        axes[-1].xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
        axes[-1].xaxis.set_major_locator(importlib.import_module("matplotlib.ticker").MaxNLocator(6))
    handles, texts = axes[0].get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside upper center", ncols=columns, frameon=False, handlelength=2.8)
    return figure


def _gap(arm: Arm, base: Arm, name: str) -> tuple[Array, Array, Array | None, Array | None] | None:
    """By the clock: the gap with its band, or that of the means alone where the arm was not compared."""
    if arm.comparison is None:
        found = words.mean_gap(arm, base, name)
        return None if found is None else (words.clock(arm.trajectory), found, None, None)
    gap = arm.comparison.gaps.get(name)
    return None if gap is None else (words.clock_of_gap(gap, arm.trajectory), gap.gap, gap.low, gap.high)


def _noise(axis: Any, check: Check) -> None:
    """The noise scale of the base, as on the page, and the batch sizes."""
    axis.set_yscale("log")
    for trajectory, colour, label in (
        (check.warm, WARM, "before the switch"),
        (check.base.trajectory, STYLES[0][0], _text(check.base.label)),
    ):
        noise = words.noise(trajectory)
        if noise is not None:
            axis.fill_between(noise.clock, noise.low, noise.high, color=colour, alpha=0.17, linewidth=0)
            axis.plot(noise.clock, noise.middle, color=colour, linewidth=1.5, label=label)
    for i, size in words.batch_sizes(check):
        colour, dash = STYLES[i % len(STYLES)]
        axis.axhline(size, color=colour, linestyle=dash, linewidth=1)
        axis.annotate(
            f"B = {words.number(size, 6)}", (1, size), xycoords=("axes fraction", "data"), xytext=(0, 1.5),
            textcoords="offset points", ha="right", va="bottom", color=colour, fontsize=7,
        )  # fmt: skip
    low, high = words.noise_levels(check)
    axis.set_ylim(low / 1.5, high * 2)


def _styled(arms: Iterable[Arm]) -> Iterable[tuple[Arm, tuple[str, Any]]]:
    return ((arm, STYLES[i % len(STYLES)]) for i, arm in enumerate(arms))


def _curve(axis: Any, trajectory: Trajectory, name: str, colour: str, dash: Any, label: str) -> None:
    """Mean and two standard errors."""
    mean, se = trajectory[name]
    x = words.clock(trajectory)
    known = np.isfinite(se)
    axis.fill_between(x, mean - 2 * se, mean + 2 * se, where=known, color=colour, alpha=0.17, linewidth=0)
    axis.plot(x, mean, color=colour, linestyle=dash, linewidth=1.5, label=label)
