"""What a file has that its format's table does not: signs of another tool, and options that may change the optimizer.

Converting half of a run is worse than converting nothing. So a file that looks like two tools is refused, and so is an
option that sounds like a part of the optimizer and is in no table. A number elsewhere that may count steps, or belong
to an optimizer, stays as it is and is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from rootscale.configs.document import TextDocument
from rootscale.configs.places import UNNAMED
from rootscale.configs.rows import Format
from rootscale.configs.tools import SIGNS
from rootscale.format import show

#: Names of options that may change an optimizer, its schedule or its batches.
_SOUNDS = re.compile(
    r"(?:^|_)(?:lrs?|eta|learning_rates?|betas?|eps|epsilon|momentum|optims?|optimi[sz]ers?|decay|warmup|scheds?"
    r"|schedulers?|clip|clipping|ema|swa|accumulation|accumulate|muon|galore|qgalore|apollo|badam|lomo|lion|sophia"
    r"|adam|adamw|adalomo|dion|lisa|relora|grokfast|loraplus|schedule_free|ref_model_sync)(?:_|\d|$)"
)
#: Names of options that may be counted in steps.
_COUNTS = re.compile(
    r"(?:^|_)(?:n?steps?|iters?|iterations?|intervals?|freq|frequency|every|period|schedule|update_rate)(?:_|$)"
)
#: Options of torch's optimizers that choose an implementation, not an update.
_IMPLEMENTATION = ("fused", "foreach", "capturable", "differentiable", "amsgrad", "nesterov", "dampening")


def foreign_sign(document: TextDocument, known: Format) -> str:
    """Return the name in a file that only other tools have, with those tools; empty if there is none."""
    for path in document.leaves:
        names = [name for name in path.split(".") if name in SIGNS]
        if names and known.name not in SIGNS[names[0]] and not path.startswith("deepspeed."):
            return f"{path} is of {' or '.join(SIGNS[names[0]])}"
    return ""


def check_options(document: TextDocument, known: Format) -> None:
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


def left_as_they_are(values: Iterable[tuple[str, Any]], known: Format, kappa: float) -> Iterator[str]:
    """Yield a warning that names the numbers that are in no table and may have a unit, if there are any.

    Args:
        values: of a configuration, by path.
        known: its format.
        kappa: the factor of the batch size.
    """
    paths = known.known_paths()
    unknown = ((path, value) for path, value in values if not _is_known(path, paths))
    found = [f"{path}={value!r}" for path, value in unknown if _may_have_unit(path, value)]
    if found and kappa != 1:
        yield (
            f"left as they are, since {known.name} has no row for them: {', '.join(found)}; what counts optimizer "
            f"steps has to be divided by {show(kappa)}, and what belongs to an optimizer or an average converted by "
            "hand"
        )


def _may_have_unit(path: str, value: Any) -> bool:
    """Whether a number sounds like one of steps, or of an optimizer; an interval of 1 is the shortest there is."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value or path.startswith("deepspeed."):
        return False
    name = next((part for part in reversed(path.lower().split(".")) if not part.isdigit()), "")
    if name.rpartition("_")[2] in ("eps", "epsilon", "epochs"):  # of a layer, or no steps
        return False
    return bool(_SOUNDS.search(name) or (_COUNTS.search(name) and value != 1))


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
