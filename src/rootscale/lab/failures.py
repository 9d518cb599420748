"""What failed in a user's program, and where: said in place of an error from the depths of the lab."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rootscale.lab.stopping import ClearlyDifferentError, UnfinishedError

__all__ = ["FINISHED", "blaming"]

#: Said after a run has failed.
FINISHED = "Runs that are finished are kept: the same command makes the others."

#: The folder of rootscale, whose files are no part of a user's program.
_PACKAGE = Path(__file__).parents[1]


@contextmanager
def blaming(what: str, then: str = "") -> Iterator[None]:
    """Say what failed, such as a run, and where in the user's program; one that would end this one has failed too.

    Args:
        what: the subject of the sentence.
        then: what the user can do, where their program failed.
    """
    try:
        yield
    except (ClearlyDifferentError, KeyboardInterrupt, UnfinishedError):
        raise
    except BaseException as error:
        steps = traceback.extract_tb(error.__traceback__)
        theirs = [step for step in steps if _PACKAGE not in Path(step.filename).parents]
        said = isinstance(error, TypeError | ValueError) and steps[-1] not in theirs  # by us, of what they gave
        if not said and not theirs:  # a fault of ours
            raise
        if said and not theirs:
            raise ValueError(f"{what}: {error}") from error
        name = "" if said else f"{type(error).__name__}: "
        raise ValueError(f"{what} failed: {name}{error}\n{''.join(traceback.format_list(theirs))}{then}") from error
