"""Files are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["whole"]


@contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary file to write to, which takes the place of ``path`` when the block ends.

    On any failure, an interrupt included, ``path`` is what it was and the temporary file is gone.
    """
    path = Path(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=".tmp")
    os.close(handle)
    try:
        yield Path(name)
        with open(name, "rb") as written:
            os.fsync(written.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)  # mkstemp makes private files
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
