"""Where files of the repository are on the site, and links between them.

Pages link to each other as GitHub needs it: relative to the file that has the link. The site has docs/ at its root and
takes in results/ and some files of the root. A link to anything else leads to the repository, if its address is known.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

__all__ = ["REPOSITORY", "ROOT", "rewrite_links", "show_sources", "targets", "to_repository", "to_site"]

ROOT = Path(__file__).parents[1]
#: Files of the root that are pages of the site; README.md is not one, docs/README.md is the start page.
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "README.md": "README.md"}
#: The scheme of links to files that are not on the site, until they are shown.
REPOSITORY = "repository:"
#: Code, which is left alone, or the target of a link; code spans of a link's text are passed over with it.
_CODE_OR_LINK = re.compile(
    r"(?P<code>(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`))|\]\((?P<target>[^()\s]+)(?=[)\s])", re.S
)
_FENCE = re.compile(r"^(?P<fence> *(?P<ticks>`{3,}|~{3,})[^\n]*\n.*?^ *(?P=ticks)[`~]* *$)", re.M | re.S)
_SHOWN = re.compile(rf'<a href="{REPOSITORY}(?P<path>[^"#]*)(?:#[^"]*)?">(?P<text>.*?)</a>', re.S)


def to_site(path: str) -> str | None:
    """Return where a file of the repository is among the sources of the site; None where it is not on it.

    >>> to_site("docs/same.md"), to_site("results/glue/README.md"), to_site("CHANGELOG.md"), to_site("src/x.py")
    ('same.md', 'results/glue/README.md', 'changelog.md', None)
    """
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return path if path.startswith("results/") else PAGES.get(path)


def to_repository(uri: str) -> str:
    """Return the path in the repository of a source of the site.

    >>> to_repository("same.md"), to_repository("results/glue/README.md"), to_repository("changelog.md")
    ('docs/same.md', 'results/glue/README.md', 'CHANGELOG.md')
    """
    if uri.startswith("results/"):
        return uri
    return next((path for path, place in PAGES.items() if place == uri and uri != "README.md"), f"docs/{uri}")


def outside_code(markdown: str) -> list[tuple[str, bool]]:
    """Return the parts of a page, each with whether it is a fenced block of code."""
    return [(part, index % 3 == 1) for index, part in enumerate(_FENCE.split(markdown)) if index % 3 != 2]


def rewrite_links(markdown: str, page: str, known: set[str]) -> str:
    """Return a page with its links as the site needs them.

    Args:
        markdown: the page.
        page: its path in the repository.
        known: the sources of the site.

    >>> rewrite_links("[a](../results/x.png) [b](../src/y.py) `[c](d)`", "docs/p.md", {"results/x.png"})
    '[a](results/x.png) [b](repository:src/y.py) `[c](d)`'
    """

    def one(found: re.Match[str]) -> str:
        target = found["target"]
        if target is None or re.match(r"[a-z]+:|#|/", target):
            return found[0]
        path, mark, anchor = target.partition("#")
        absolute = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        uri = to_site(absolute)
        name, suffix = posixpath.splitext(uri or "")
        if suffix == ".ipynb" and name != posixpath.splitext(page)[0].removeprefix("docs/"):
            uri = f"{name}.md"  # a notebook is shown by its page, which alone links to the notebook
        if uri is None or (uri not in known and (ROOT / absolute).exists()):
            return f"]({REPOSITORY}{absolute}"
        base = posixpath.dirname(to_site(page) or page) or "."
        return f"]({posixpath.relpath(uri, base)}{mark}{anchor}"

    return "".join(part if code else _CODE_OR_LINK.sub(one, part) for part, code in outside_code(markdown))


def targets(markdown: str) -> list[str]:
    """Return the files that the links of a page name, without anchors and other hosts.

    >>> targets("[a](b.md#c) [d](https://e) `[f](g)` ![h](i.png)")
    ['b.md', 'i.png']
    """
    texts = [part for part, code in outside_code(markdown) if not code]
    found = [match["target"] for text in texts for match in _CODE_OR_LINK.finditer(text)]
    return [link.partition("#")[0] for link in found if link and not re.match(r"[a-z]+:|#|/", link)]


def missing_sources(markdown: str) -> list[str]:
    """Return the links of a rewritten page to files that the repository does not have."""
    found = re.findall(rf"\]\({REPOSITORY}([^()\s#]+)", markdown)
    return [path for path in found if not (ROOT / path).exists()]


def show_sources(html: str, repository: str | None) -> str:
    """Return a page whose links to files of the repository lead there, or are shown as code where it has no address.

    >>> show_sources('<a href="repository:src/y.py">b</a>', None)
    'b <code>src/y.py</code>'
    """

    def one(found: re.Match[str]) -> str:
        path, text = found["path"], found["text"]
        if repository:
            kind = "tree" if (ROOT / path).is_dir() else "blob"
            return f'<a href="{repository.rstrip("/")}/{kind}/main/{path}">{text}</a>'
        plain = re.sub(r"<[^>]+>", "", text)
        return f"<code>{path}</code>" if posixpath.basename(path) in plain else f"{text} <code>{path}</code>"

    return _SHOWN.sub(one, html)
