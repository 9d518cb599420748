"""What a script printed, as a log: lines that begin with a counter and go on with names and numbers.

| made by | lines |
|---|---|
| nanoGPT | ``iter 250: loss 3.9, time 92.5ms, mfu 3.2%`` and ``step 250: train loss 4.1, val loss 4.2`` |
| others | ``step:125/5960 val_loss:5.2``, ``epoch 3 | loss = 0.4``, ``samples=4096 loss=0.9`` |

Other lines are left out, and so are numbers with a unit such as ``ms``. All counters of steps are one column ``step``.
nanoGPT prints the tokens of a step once, before the first; they make a column of tokens.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from rootscale.compare.columns import CLOCKS, STEPS
from rootscale.compare.log import Columns, Log, Series
from rootscale.compare.readers.text import decoded, text_blocks

#: Names that begin a row.
_COUNTERS = frozenset((*STEPS, *(name for unit in ("samples", "tokens", "epochs") for name in CLOCKS[unit])))
_NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf)"
#: A name of one or two words, and a number that nothing but a total (``125/5960``) is tied to.
_PAIR = re.compile(
    rf"([A-Za-z_][\w./-]*(?: [A-Za-z_][\w./-]*)?)\s*[:=]?\s*({_NUMBER})(?:/\d+)?(?=[\s,;|:)\]]|\.?$)", re.I
)
_TOKENS = re.compile(r"tokens per iteration will be: ([\d,]+)")
#: Bytes that are looked at to see whether a text is such a log.
_GLANCE = 1 << 16


def detect(path: Path) -> bool:
    """Return whether it is a text with such lines."""
    if path.suffix.lower() not in (".log", ".txt", ".out") or not path.is_file():
        return False
    with path.open("rb") as file:
        text = file.read(_GLANCE).decode("utf-8", errors="replace")
    return any(_row(line.rstrip()) for line in text.splitlines())


def read(path: Path) -> list[Log]:
    """Read the run that was printed."""
    columns, tokens = Columns(), 0.0
    for block in text_blocks(path):
        text = decoded(path, block)
        if not tokens and (match := _TOKENS.search(text)):
            tokens = float(match[1].replace(",", ""))
        columns.add_rows([row for line in text.splitlines() if (row := _row(line.rstrip()))])
    log = columns.to_log(str(path))
    step = log.columns.get("step")
    if not tokens or step is None or "tokens" in log.columns:
        return [log]
    counted = {**log.columns, "tokens": Series(np.multiply(step.values, tokens), step.index)}
    return [Log(log.name, counted, notes=(*log.notes, f"{tokens:,.0f} tokens a step, as it was printed"))]


def _row(line: str) -> dict[str, float]:
    """Return the numbers of a line by name; nothing for a line that does not begin with a counter.

    >>> _row("iter 250: loss 3.9021, time 92.51ms, mfu 3.20%")
    {'step': 250.0, 'loss': 3.9021}
    >>> _row("step:125/5960 val_loss:5.2 train_time:11ms"), _row("number of parameters: 10.65M")
    ({'step': 125.0, 'val_loss': 5.2}, {})
    """
    pairs = _PAIR.findall(line)
    if len(pairs) < 2 or pairs[0][0].lower() not in _COUNTERS or not line.lstrip("[( ").startswith(pairs[0][0]):
        return {}
    found: dict[str, float] = {}
    for name, number in pairs:  # of a name that comes twice the first counts
        found.setdefault("step" if name.lower() in STEPS else name, float(number.replace(",", "")))
    return found
