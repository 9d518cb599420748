"""What a file has that its format's table does not: signs of another tool, and options that may change the optimizer.

Converting half of a run is worse than converting nothing. So a file that looks like two tools is refused, and so is an
option that sounds like a part of the optimizer and is in no table.
"""

from __future__ import annotations

import re

from rootscale.integrations.configs.document import Document
from rootscale.integrations.configs.formats import SIGNS, Format
from rootscale.integrations.configs.syntaxes.python_text import UNNAMED

__all__ = ["check_options", "foreign_sign"]

#: Names of options that may change an optimizer, its schedule or its batches.
_SOUNDS = re.compile(
    r"(?:^|_)(?:lrs?|eta|learning_rates?|betas?|eps|epsilon|momentum|optims?|optimi[sz]ers?|decay|warmup|scheds?"
    r"|schedulers?|clip|clipping|ema|swa|accumulation|accumulate|muon|galore|qgalore|apollo|badam|lomo|lion|sophia"
    r"|adam|adamw|adalomo|dion|lisa|relora|grokfast|loraplus|schedule_free|ref_model_sync)(?:_|\d|$)"
)
#: Options of torch's optimizers that choose an implementation, not an update.
_IMPLEMENTATION = ("fused", "foreach", "capturable", "differentiable", "amsgrad", "nesterov", "dampening")


def foreign_sign(document: Document, known: Format) -> str:
    """Return the name in a file that only other tools have, with those tools; empty if there is none."""
    for path in document.leaves:
        names = [name for name in path.split(".") if name in SIGNS]
        if names and known.name not in SIGNS[names[0]] and not path.startswith("deepspeed."):
            return f"{path} is of {' or '.join(SIGNS[names[0]])}"
    return ""


def check_options(document: Document, known: Format) -> None:
    """Refuse an option that is in no table, where it may change the optimizer.

    Raises:
        ValueError: there is one; the message has its name.
    """
    paths = known.known_paths()
    tables = {path.rpartition(".")[0] for path in paths}
    for path, leaf in document.leaves.items():
        if isinstance(leaf.value, dict | list) or leaf.value in (None, False, "", 0):
            continue
        parent, _, name = path.rpartition(".")
        if name in UNNAMED and parent in tables:
            raise ValueError(f"{parent} is called with arguments that have no names; write each as name=value")
        strict = any(path.startswith(f"{table}.") for table in known.strict)
        if _is_known(path, paths) or (strict and name in _IMPLEMENTATION):
            continue
        if strict or any(_sounds(path, table) for table in known.tables):
            raise ValueError(
                f"{path}={leaf.value!r}: this option may change the optimizer, its schedule or its batches, and "
                f"its unit is not known for {known.name}; take it out of the file, and convert what it does yourself"
            )


def _is_known(path: str, paths: frozenset[str]) -> bool:
    """Whether the table has a path, or the list or table that it is in."""
    parts = path.split(".")
    return any(".".join(parts[:i]) in paths for i in range(1, len(parts) + 1))


def _sounds(path: str, table: str) -> bool:
    """Whether what a table of the file holds sounds like a part of the optimizer.

    An eps may be that of a layer, and what is counted in epochs stays.
    """
    if table and not path.startswith(f"{table}."):
        return False
    name = path.removeprefix(f"{table}." if table else "").partition(".")[0].lower()
    return bool(_SOUNDS.search(name)) and "norm_eps" not in name and not name.endswith("_epochs")
