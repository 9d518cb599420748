"""What a check found, for people: one HTML page that needs no network, and figures for papers. Computes nothing."""

from rootscale.report.figures import draw_curves, draw_figures
from rootscale.report.page import render_page, write_page

__all__ = ["draw_curves", "draw_figures", "render_page", "write_page"]
