"""The pages that are made when the site is built."""

from __future__ import annotations

import api

__all__ = ["pages"]


def pages() -> dict[str, str]:
    """Return the text of each generated page by its place on the site."""
    return {**api.pages()}
