"""How runs are told apart in every figure: a colour and a dash for each, as data.

The colours are Okabe and Ito's, which colour-blind readers can tell apart; the dashes are for those who print in grey.
``page.css`` has the same colours as ``--arm-0`` to ``--arm-7``, and lighter ones for dark screens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Style:
    """A colour and a dash.

    Args:
        colour: on a light ground.
        dash: lengths of line and gap, in turn; none for a solid line.
        plotly: the dash as Plotly calls it, a name or lengths.
    """

    colour: str
    dash: tuple[float, ...]
    plotly: str

    @property
    def svg(self) -> str:
        """The dash as SVG's ``stroke-dasharray``."""
        return " ".join(f"{length:g}" for length in self.dash) or "none"

    @property
    def matplotlib(self) -> Any:
        """The dash as matplotlib's ``linestyle``."""
        return (0, tuple(0.7 * length for length in self.dash)) if self.dash else "-"


STYLES = (
    Style("#1d2126", (), "solid"),
    Style("#0072b2", (7, 3), "dash"),
    Style("#d98e00", (2, 2.5), "dot"),
    Style("#c4629a", (7, 3, 2, 3), "dashdot"),
    Style("#009e73", (12, 3), "longdash"),
    Style("#2ba3dd", (12, 3, 2, 3), "longdashdot"),
    Style("#d55e00", (7, 2, 2, 2, 2, 2), "9px,3px,3px,3px,3px,3px"),
    Style("#a39a00", (2, 6), "3px,9px"),
)
#: What came before a switch, the tolerance, marks and words, and the grid.
WARM, STRIP, SOFT, GRID = "#8a9099", "#66707c", "#5a626c", "#e3e3e0"


def style_of(number: int) -> Style:
    """Return the style of the run of this number; after all styles the colours come again, with other dashes."""
    turn, place = divmod(number, len(STYLES))
    dashed = STYLES[(place + turn) % len(STYLES)]
    return Style(STYLES[place].colour, dashed.dash, dashed.plotly)


def line_styles(count: int) -> list[tuple[str, Any]]:
    """Return colour and linestyle of so many runs, for matplotlib."""
    return [(style.colour, style.matplotlib) for style in map(style_of, range(count))]
