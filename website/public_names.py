"""Write docs/names.md, every public name on one page: ``python website/public_names.py``.

The source is read, not imported, so that names of libraries that are not installed here are on it too.
"""

from __future__ import annotations

import ast
import re
import textwrap
from functools import cache
from pathlib import Path

import places

#: The public modules, in the order of the page, with what each is for. No other module of the package has ``__all__``.
MODULES = {
    "rootscale": "Runs on paper and live. Needs no torch, but for `Run`.",
    "rootscale.records": "Hyperparameters of the other optimizers, as plans take them.",
    "rootscale.rules": "Rules by their text.",
    "rootscale.degrees": "The powers of kappa of an optimizer of your own, counted.",
    "rootscale.planner": "Forecasts: how large may the batch be, and how long will it take?",
    "rootscale.horizon": "Published rules for other numbers of tokens.",
    "rootscale.training": "Live PyTorch. [Hand-written loops](live-runs.md)",
    "rootscale.training.optim": "The paper's optimizers with torch's interface.",
    "rootscale.configs": "Configuration files of other tools. [Configuration files](integrations/configs.md)",
    "rootscale.checkpoints": "Checkpoints on disk. [Checkpoints](checkpoints.md)",
    "rootscale.compare": "Logs of runs, compared without torch. [Is it the same run?](same.md)",
    "rootscale.verdict": "The verdict on two sets of curves. [The verdict](same.md#the-verdict)",
    "rootscale.gap": "The gap of two sets of curves.",
    "rootscale.trajectory": "A curve of a run.",
    "rootscale.tracking": "What experiment trackers are given.",
    "rootscale.lab": "Many runs on real data: checks, studies. [Is it the same run?](same.md)",
    "rootscale.lab.tasks": "Tasks that are ready to run. [Tasks and data](data.md)",
    "rootscale.report": "A result as one page, and as figures. [Is it the same run?](same.md)",
    "rootscale.theory": "Oracles, chains, SDEs and weak errors. [Theory](theory.md)",
    "rootscale.theory.toys": "Toy runs that an optimizer of your own is held against.",
    "rootscale.integrations.transformers": "Hugging Face's Trainer. [transformers](integrations/transformers.md)",
    "rootscale.integrations.lightning": "[Lightning](integrations/lightning.md)",
    "rootscale.integrations.accelerate": "[Accelerate](integrations/accelerate.md)",
    "rootscale.integrations.optax": "[optax](integrations/optax.md)",
    "rootscale.integrations.executors": "Jobs on other machines. [Is it the same run?](same.md)",
    "rootscale.integrations.trackers": "Trackers of a study's runs.",
}
#: Modules whose names are for who studies runs, and not for who trains one.
_RESEARCH = ("rootscale.records.", "rootscale.lab.", "rootscale.theory.")
_SOURCE = places.ROOT / "src" / "rootscale"


def path_of(module: str) -> Path:
    """Return the file of a module."""
    path = _SOURCE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def _parsed(module: str) -> ast.Module:
    return ast.parse(path_of(module).read_text(encoding="utf-8"))


def names_of(module: str) -> list[str]:
    """Return the public names of a module, as its ``__all__`` has them."""
    for node in _parsed(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def home_of(module: str, name: str) -> tuple[str, str]:
    """Return the module that defines a name, and its name there."""
    for node in ast.walk(_parsed(module)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rootscale"):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return home_of(str(node.module), alias.name)
    return module, name


def summary_of(module: str, name: str) -> str:
    """Return the first sentence of a name's docstring, or of the comment above a table."""
    home, own = home_of(module, name)
    lines = path_of(home).read_text(encoding="utf-8").split("\n")
    for node in _parsed(home).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == own:
            return _sentence(ast.get_docstring(node) or "")
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == own for target in targets):
            above = lines[: node.lineno - 1]
            comment: list[str] = []
            while above and above[-1].startswith("#:"):
                comment.insert(0, above.pop().removeprefix("#:").strip())
            return _sentence(" ".join(comment))
    return ""


def _sentence(text: str) -> str:
    """Return the first sentence of a docstring, without its examples."""
    first = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<!Def[.])(?<=[.:;]) ", first)[0].rstrip(".:;").replace("``", "`").replace("|", "\\|")


def public_names() -> dict[str, str]:
    """Return every public name with the module that it is listed under: the first that has it."""
    homes: dict[tuple[str, str], str] = {}
    for module in MODULES:
        for name in names_of(module):
            homes.setdefault(home_of(module, name), f"{module}.{name}")
    return {listed: f"{home}.{name}" for (home, name), listed in homes.items()}


def page() -> str:
    """Return the page in Markdown."""
    listed = set(public_names())
    research = sum(name.startswith(_RESEARCH) for name in listed)
    parts = [
        "# Public names",
        f"These {len(listed)} names are the interface: they change with a note in the [changelog](../CHANGELOG.md) "
        f"only. {len(listed) - research} of them are for runs; the others are hyperparameters of further optimizers, "
        "the lab and the theory. Everything else in the package is private, whatever its name. "
        "The reference on the site has their arguments.",
        "This page is written by `website/public_names.py`, and a test keeps it the same as the source.",
    ]
    for module, text in MODULES.items():
        rows = [
            f"| `{name}` | {summary_of(module, name)} |"
            for name in names_of(module)
            if f"{module}.{name}" in listed and name != "__version__"
        ]
        also = [f"`{name}`" for name in names_of(module) if f"{module}.{name}" not in listed]
        again = f"\n\nAlso here: {', '.join(also)}." if also else ""
        parts.append(f"## {module}\n\n{text}\n\n" + "\n".join(("| name | what it is |", "|---|---|", *rows)) + again)
    wrapped = [part if "\n" in part else textwrap.fill(part, 120, break_on_hyphens=False) for part in parts]
    return "\n\n".join(wrapped) + "\n"


if __name__ == "__main__":
    (places.ROOT / "docs" / "names.md").write_text(page(), encoding="utf-8")
