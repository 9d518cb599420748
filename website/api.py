"""The reference of the Python interface: a page for each part, with what its modules export."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["PARTS", "Part", "pages"]


class Part(NamedTuple):
    """A page: what it is for, and the modules whose public names it has."""

    title: str
    text: str
    modules: tuple[str, ...]


PARTS = {
    "rootscale": Part("rootscale", "Runs on paper: plans, rules, units. Nothing here needs torch.", ("rootscale",)),
    "training": Part("rootscale.training", "Live PyTorch.", ("rootscale.training",)),
    "lab": Part("rootscale.lab", "Checks.", ("rootscale.lab",)),
    "theory": Part("rootscale.theory", "SDEs.", ("rootscale.theory",)),
    "integrations": Part(
        "rootscale.integrations",
        "Adapters.",
        tuple(
            f"rootscale.integrations.{name}"
            for name in (
                "transformers",
                "lightning",
                "accelerate",
                "optax",
                "ray",
                "checkpoints",
                "configs",
                "logs",
                "trackers",
            )
        ),
    ),
}


def pages() -> dict[str, str]:
    """Return the pages, with directives that mkdocstrings fills."""
    return {
        f"reference/api/{name}.md": f"# {part.title}\n\n{part.text}\n\n"
        + "\n\n".join(f"::: {module}" for module in part.modules)
        + "\n"
        for name, part in PARTS.items()
    }
