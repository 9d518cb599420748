"""The reference of the Python interface: a page for each part, with what its modules export."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["PARTS", "Part", "pages"]


class Part(NamedTuple):
    """A page: what it is for, and the modules whose public names it has."""

    title: str
    text: str
    modules: tuple[str, ...]


_TOOLS = ("transformers", "lightning", "accelerate", "optax", "executors", "trackers")
#: The pages by name; the navigation of mkdocs.yml has them in this order.
PARTS = {
    "rootscale": Part(
        "rootscale",
        "A run on paper: plans, what a change of batch size makes of them, rules and units. Nothing here needs torch.",
        ("rootscale",),
    ),
    "training": Part(
        "rootscale.training",
        "Live PyTorch: `Run`, batch-size schedules, SVAG, noise, and optimizers with torch's names. "
        "[Hand-written loops](../../live-runs.md) is the guide.",
        (
            "rootscale.training",
            "rootscale.training.optim",
        ),
    ),
    "lab": Part(
        "rootscale.lab",
        "Many runs on real data: tasks, the check, comparisons, sweeps. "
        "[Is it the same run?](../../same.md) is the guide.",
        ("rootscale.lab", "rootscale.lab.tasks"),
    ),
    "theory": Part(
        "rootscale.theory",
        "Oracles, chains, SDEs and weak errors. [Theory](../../theory.md) is the guide.",
        ("rootscale.theory", "rootscale.theory.toys"),
    ),
    "integrations": Part(
        "rootscale.integrations",
        "Adapters to other tools. Each needs its library, which is imported only when the module is; checkpoints and "
        "configuration files need none. [Integrations](../../integrations/README.md) is the guide.",
        (*(f"rootscale.integrations.{name}" for name in _TOOLS), "rootscale.checkpoints", "rootscale.configs"),
    ),
    "comparing": Part(
        "Gaps and verdicts",
        "What runs are compared by: curves, the gap of two sets of them, its bands, the verdict. Without torch. "
        "[The verdict](../../same.md#the-verdict) explains.",
        tuple(f"rootscale.{name}" for name in ("compare", "verdict", "gap", "trajectory", "tracking")),
    ),
    "registry": Part(
        "Rules and optimizers",
        "Where rules and optimizers are looked up and added. [Optimizers](../../optimizers.md) is the guide.",
        ("rootscale.rules", "rootscale.records", "rootscale.degrees", "rootscale.planner", "rootscale.horizon"),
    ),
    "report": Part("rootscale.report", "A result as one page and as figures.", ("rootscale.report",)),
}


def pages() -> dict[str, str]:
    """Return the pages, with directives that mkdocstrings fills."""
    return {
        f"reference/api/{name}.md": f"# {part.title}\n\n{part.text}\n\n"
        + "\n\n".join(f"::: {module}" for module in part.modules)
        + "\n"
        for name, part in PARTS.items()
    }
