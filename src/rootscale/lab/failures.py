"""What failed in a user's program, and where: said in place of an error from the depths of the lab."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rootscale.lab.stopping import ClearlyDifferentError, UnfinishedError

#: Said after a run has failed.
FINISHED = "Finished runs are stored: the same command makes the others."

#: The folder of rootscale, whose files are no part of a user's program, and that of Python's library.
_PACKAGE, _LIBRARY = Path(__file__).parents[1], Path(os.__file__).parent


@contextmanager
def blaming(what: str, then: str = "") -> Iterator[None]:
    """Say what failed, such as a run, and where in the user's program; one that would end this one has failed too.

    Args:
        what: the subject of the sentence.
        then: what the user can do, where their program failed.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, ClearlyDifferentError | KeyboardInterrupt | UnfinishedError):
            raise
        text = _text(error)
        if text is None:  # a fault of ours
            raise
        raise ValueError(f"{what}{text}{then if text.endswith(chr(10)) else ''}") from error


@contextmanager
def in_one_process() -> Iterator[None]:
    """End every process that a program has forked and that comes back from it: what follows is for the first alone."""
    own = os.getpid()
    try:
        yield
    except BaseException:
        if os.getpid() != own:
            traceback.print_exc()
            os._exit(1)
        raise
    if os.getpid() != own:
        os._exit(0)


def _of_python(step: traceback.FrameSummary) -> bool:
    """Return whether a step is in Python's own library, which both use."""
    path = Path(step.filename)
    return _LIBRARY in path.parents and "site-packages" not in path.parts


def _text(error: BaseException) -> str | None:
    """Return what is said of an error after its subject; None where it is not the user's."""
    steps = [step for step in traceback.extract_tb(error.__traceback__) if not _of_python(step)]
    theirs = [step for step in steps if _PACKAGE not in Path(step.filename).parents]
    ours = bool(steps) and steps[-1] not in theirs
    if isinstance(error, OSError) and ours:  # of a disk: full, read only, gone
        place = f": {error.filename}" if error.filename else ""
        return f" cannot be stored: {error.strerror or error}{place}\n"
    said = isinstance(error, TypeError | ValueError) and ours  # by us, of what they gave
    if not theirs:
        return f": {error}" if said else None
    name = "" if said else f"{type(error).__name__}: "
    return f" failed: {name}{error}\n{''.join(traceback.format_list(theirs))}"
