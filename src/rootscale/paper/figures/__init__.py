"""The figures of results/, all drawn from stored data, and wide enough to be read on a page of about 900 pixels."""

from rootscale.paper.figures.curves import draw_curves, starts_off_the_figure
from rootscale.paper.figures.dots import draw_dots
from rootscale.paper.figures.gap_tables import draw_group
from rootscale.paper.figures.noise_scale import batch_size, dominance_of, draw_noise
from rootscale.paper.figures.sde_figure import draw_sde
from rootscale.paper.figures.sweeps import draw_sweep
from rootscale.paper.figures.switched import draw_switch

__all__ = [
    "batch_size",
    "dominance_of",
    "draw_curves",
    "draw_dots",
    "draw_group",
    "draw_noise",
    "draw_sde",
    "draw_sweep",
    "draw_switch",
    "starts_off_the_figure",
]
