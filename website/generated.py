"""The pages of the reference, which are made when the site is built: nothing of them is stored."""

from __future__ import annotations

import reference_api
import reference_cli
import reference_units

__all__ = ["pages"]


def pages() -> dict[str, str]:
    """Return the text of each page by its place on the site."""
    return {
        "reference/cli.md": reference_cli.page(),
        "reference/units.md": reference_units.units(),
        "reference/rules.md": reference_units.rules(),
        "reference/optimizers.md": reference_units.optimizers(),
        **reference_api.pages(),
    }
