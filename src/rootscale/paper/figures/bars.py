"""The figure of a headline: a bar of seconds for each way to the model, its colour the verdict on the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rootscale.format import plus_minus
from rootscale.paper.experiments.sooner import MARGIN
from rootscale.paper.headline import Way
from rootscale.report.plotting import need_matplotlib, save_figure
from rootscale.report.styles import SOFT

__all__ = ["draw_headline"]

#: Colours and words of the verdicts.
TEXTS = {
    "base": "base",
    "as good": f"as good: 95 % interval below +{MARGIN:g} nats",
    "worse": "worse",
    "undecided": "undecided",
    "one seed": "one seed: no interval",
}
COLOURS = {"base": "#8a9099", "as good": "#009e73", "worse": "#d55e00", "undecided": "#d98e00", "one seed": "#7d9cc0"}


def draw_headline(title: str, ways: Sequence[Way], path: Path, memory: bool = False) -> None:
    """Draw the seconds of the ways, with the difference of the final loss at each bar."""
    shown = [way for way in reversed(ways) if way.seconds is not None]
    figure = need_matplotlib().figure.Figure(figsize=(9.4, 0.6 * len(shown) + 1.5), layout="constrained")
    axis = figure.subplots()
    axis.spines[["top", "right", "left"]].set_visible(False)
    longest = max(way.seconds or 0.0 for way in shown)
    for place, way in enumerate(shown):
        _bar(axis, place, way, longest, memory)
    axis.set_yticks(range(len(shown)), [way.arm.short for way in shown], fontsize=9)
    axis.tick_params(axis="y", length=0)
    axis.tick_params(axis="x", labelsize=8, colors=SOFT)
    axis.set_xlim(0, 1.75 * longest)
    axis.set_xticks([tick for tick in axis.get_xticks() if tick <= 1.05 * longest])
    axis.set_xlabel(
        "seconds of training, alone on one H200;  loss: that of the base ± its error, or less that ± its 95 % interval",
        fontsize=8,
        color=SOFT,
        loc="left",
    )
    axis.set_title(title, fontsize=11, loc="left")
    used = [verdict for verdict in COLOURS if any(way.verdict == verdict for way in shown)]
    handles = [need_matplotlib().patches.Patch(color=COLOURS[verdict]) for verdict in used]
    texts = [TEXTS[verdict] for verdict in used]
    figure.legend(handles, texts, loc="outside lower right", ncols=len(used), fontsize=8, frameon=False)
    save_figure(figure, path, 130)


def _bar(axis: Any, place: int, way: Way, longest: float, memory: bool) -> None:
    seconds = way.seconds or 0.0
    axis.barh(place, seconds, color=COLOURS[way.verdict], height=0.68)
    inside = {"ha": "right", "va": "center", "color": "white", "fontsize": 10, "fontweight": "bold"}
    axis.text(seconds - 0.01 * longest, place, f"{seconds:.0f} s", **inside)
    beside = {"ha": "left", "va": "center", "fontsize": 8.5, "color": "#1d2126"}
    axis.text(seconds + 0.012 * longest, place, _note(way, memory), **beside)


def _note(way: Way, memory: bool) -> str:
    """Return the loss, its difference with the interval, and the steps or the memory."""
    more = f"{way.memory / 1e9:.1f} GB" if memory else f"{way.steps:,} steps"
    if way.gap is None:
        return f"loss {plus_minus(*way.loss, 3)}, {more}"
    mean, half = way.gap
    around = f" ± {half:.3f}" if half < 1 else " (one seed)"
    more += "" if way.alone else " (seconds: same steps)"
    return f"loss {mean:+.3f}{around}, {more}".replace("-", "\N{MINUS SIGN}")
