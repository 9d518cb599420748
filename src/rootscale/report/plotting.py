"""What all PNG and PDF figures have in common: matplotlib where it is installed, plain axes, files without dates.

matplotlib is an extra (``pip install 'rootscale[plot]'``) and is imported when a figure is drawn.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rootscale.files import whole
from rootscale.report.styles import GRID


def need_matplotlib() -> Any:
    """Return matplotlib, drawing to files; raise a `ValueError` that says how to install it where it is missing."""
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError:
        raise ValueError("figures need matplotlib, which is not installed; pip install 'rootscale[plot]'") from None
    importlib.import_module("matplotlib.figure")
    return matplotlib


def plain_axes(axes: Iterable[Any]) -> None:
    """Leave the axes two spines and a pale grid."""
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(color=GRID, linewidth=0.6)


def few_ticks(axis: Any, across: int = 5, up: int = 4) -> None:
    """Leave linear axes so few ticks, and logarithmic ones only their powers of ten."""
    ticker = importlib.import_module("matplotlib.ticker")
    for one, scale, count in ((axis.xaxis, axis.get_xscale(), across), (axis.yaxis, axis.get_yscale(), up)):
        if scale == "linear":
            one.set_major_locator(ticker.MaxNLocator(count, steps=[1, 2, 5, 10]))
    axis.minorticks_off()


@dataclass(frozen=True)
class LineEnd:
    """The end of a line in a panel, which gets a label instead of an entry in a legend.

    Args:
        x, y: the last point, in data.
        text: the label.
        colour: of line and label.
    """

    x: float
    y: float
    text: str
    colour: str


def label_ends(axis: Any, ends: Sequence[LineEnd], size: float = 9.0, gap: float = 8.0) -> None:
    """Write labels to the right of a panel, at the heights of their lines and apart from each other.

    Args:
        axis: the panel, with its final limits.
        ends: of its lines; one beyond the limits is labelled at the edge.
        size: of the letters, in points.
        gap: between panel and labels, in points.
    """
    figure = axis.figure.canvas.figure  # that of all subfigures
    figure.draw_without_rendering()  # the layout decides how high the panel is
    height = axis.bbox.height * 72 / figure.dpi
    heights = [float(axis.transAxes.inverted().transform(axis.transData.transform((e.x, e.y)))[1]) for e in ends]
    inside = [min(1.0, max(0.0, y)) for y in heights]
    for end, y, place in zip(ends, inside, spread(inside, 1.3 * size / height), strict=True):
        bent = abs(place - y) * height > 0.5
        axis.annotate(
            end.text, (1.0, y), xycoords="axes fraction", xytext=(gap, (place - y) * height),
            textcoords="offset points", color=end.colour, fontsize=size, va="center", ha="left", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": end.colour, "linewidth": 0.7, "alpha": 0.6, "shrinkA": 1,
                        "shrinkB": 1, "relpos": (0, 0.5)} if bent else None,
        )  # fmt: skip


def spread(places: Sequence[float], least: float) -> list[float]:
    """Return places moved as little as needed to be ``least`` apart, in the order given, around their own middles.

    >>> spread([0.5, 0.5, 0.9], 0.1)
    [0.45, 0.55, 0.9]
    >>> spread([0.0, 0.3, 0.05], 0.1)
    [-0.025, 0.3, 0.075]
    """
    blocks: list[tuple[float, list[int]]] = []  # the middle of neighbours that touch, and who they are
    for i in sorted(range(len(places)), key=lambda i: places[i]):
        blocks.append((places[i], [i]))
        while len(blocks) > 1:
            (low, below), (high, above) = blocks[-2:]
            if high - low >= least * (len(below) + len(above)) / 2 - 1e-12:
                break
            members = below + above
            blocks[-2:] = [(sum(places[j] for j in members) / len(members), members)]
    found = [0.0] * len(places)
    for middle, members in blocks:
        for rank, i in enumerate(members):
            found[i] = round(middle + least * (rank - (len(members) - 1) / 2), 9)
    return found


_SIGNS = {"theta": "θ", "eta": "η", "eps": "ε", "beta1": "β₁", "beta2": "β₂", "ell": "ℓ", "kappa": "κ"}


def symbols(text: str) -> str:
    """Return a text with the signs of mathematics for the names that the program prints.

    >>> symbols("theta^2"), symbols("theta*u"), symbols("cos theta"), symbols("SVAG ell=2"), symbols("eta=0.25")
    ('θ²', 'θ u', 'cos θ', 'SVAG ℓ = 2', 'η = 0.25')
    >>> symbols("linear: eta, beta1"), symbols("eps, a beta")
    ('linear: η, β₁', 'ε, a beta')
    """
    for name, sign in _SIGNS.items():
        text = re.sub(rf"(?<![a-z]){name}(?![a-z0-9])", sign, text)
    text = text.replace("^2", "²").replace("*", " ")
    return re.sub(r"(?<=\w)=(?=[\w.])", " = ", text)


def save_figure(figure: Any, path: str | os.PathLike[str], dpi: int) -> Path:
    """Write a PNG or PDF, whole or not at all; without dates, so that the same figure gives the same file."""
    path = Path(path)
    kind = path.suffix.removeprefix(".")
    metadata = {"Software": None} if kind == "png" else {"CreationDate": None}
    with whole(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=dpi, metadata=metadata)
    return path
