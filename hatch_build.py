"""README for a package index: links into the repository become absolute, where its address is known.

``REPOSITORY_URL=https://host/owner/name make dist``; the same variable gives the site its links (mkdocs.yml).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

#: What a link or a picture begins with, and its target: of this repository, unless it names a host or an anchor.
_TARGET = re.compile(r"(?P<before>\]\(|(?:src|srcset)=\")(?P<path>(?![a-z]+:|#)[^)\"\s]+)")


def absolute(text: str, repository: str) -> str:
    """Return README with links and pictures that work outside of the repository.

    >>> absolute('[a](docs/b.md#c) [d](https://e) <img src="f.svg">', "https://host/x/")
    '[a](https://host/x/blob/main/docs/b.md#c) [d](https://e) <img src="https://host/x/raw/main/f.svg">'
    """
    if not repository:
        return text

    def one(found: re.Match[str]) -> str:
        kind = "blob" if found["before"] == "](" else "raw"
        return f"{found['before']}{repository.rstrip('/')}/{kind}/main/{found['path']}"

    return _TARGET.sub(one, text)


class ReadmeHook(MetadataHookInterface):
    """Fills in ``readme`` when the package is built."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the text that an index shows."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = absolute(text, os.environ.get("REPOSITORY_URL", ""))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
