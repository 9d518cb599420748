"""What `mkdocs` does besides reading docs/: generated pages, results, links, and Markdown as GitHub reads it."""

from __future__ import annotations

import fnmatch
import logging
import re
from pathlib import Path
from typing import Any

import dialect
import generated
import mathematics
import places
import tutorials
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

log = logging.getLogger("mkdocs.plugins.website")

#: What results/ gives to the site; data in other files stays in the repository.
_RESULTS = (".md", ".png", ".svg", ".txt")
#: Where `make results` builds a page and a figure of each study, and where they are on the site.
_STUDIES, STUDIES = places.ROOT / "build" / "results", "results/studies"
ASSETS = ("site.css", "iframe-worker.js")
#: A page that is no Markdown; its link leads to a file of the repository, so that it also works from there.
CALCULATOR = "calculator/index.html"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, results/ and pages of the root; arrange what patterns of the navigation match."""
    if Path(config.docs_dir) != places.ROOT / "docs":
        return files  # somebody else's pages
    for uri, text in generated.pages().items():
        files.append(File.generated(config, uri, content=text))
    for path in sorted((places.ROOT / "results").rglob("*")):
        if path.suffix in _RESULTS:
            uri = path.relative_to(places.ROOT).as_posix()
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    for path in sorted(_STUDIES.glob("*")):
        if path.suffix in _RESULTS:
            files.append(File.generated(config, f"{STUDIES}/{path.name}", abs_src_path=str(path)))
    for path in tutorials.notebooks():
        text, pictures = tutorials.page(path)
        files.append(File.generated(config, f"tutorials/{path.stem}.md", content=text))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"tutorials/images/{name}", content=picture))
    for name, uri in places.PAGES.items():
        if uri != "README.md":
            files.append(File.generated(config, uri, abs_src_path=str(places.ROOT / name)))
    page = files.src_uris[CALCULATOR]
    files.remove(page)
    text = page.content_string.replace("../README.md", "../index.html")
    files.append(File.generated(config, CALCULATOR, content=text))
    for name in ASSETS:
        files.append(File.generated(config, f"assets/{name}", abs_src_path=str(places.ROOT / "website" / name)))
    uris = [file.src_uri for file in files if file.inclusion is not InclusionLevel.EXCLUDED]
    nav = list(config.nav or [])
    named = set(_named(nav))
    config.nav = _arranged(nav, sorted(uri for uri in uris if uri not in named))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Bring links and Markdown to what the site's reader understands."""
    source = places.to_repository(page.file.src_uri)
    known = {file.src_uri for file in files}
    if source == "results/README.md":
        markdown = link_studies(markdown, known)
    markdown = places.rewrite_links(markdown, source, known)
    for path in places.missing_sources(markdown):
        log.warning("%s links to %s, which is not in the repository", source, path)
    for line in dialect.stray_examples(markdown):
        log.warning("%s has an example outside of a block of code: %s", source, line)
    markdown, page.meta["mathematics"] = mathematics.take_mathematics(markdown)
    return dialect.to_python_markdown(markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show links to files of the repository, and mathematics."""
    return places.show_sources(mathematics.insert_mathematics(html, page.meta["mathematics"]), config.repo_url)


def link_studies(markdown: str, known: set[str]) -> str:
    """Return the table of claims with a link to the page of each study that was built, beside its data.

    >>> link_studies("[a.npz](a.npz) [b.npz](b.npz)", {"results/studies/a.md"})
    '[a.npz](a.npz), [gaps](studies/a.md) [b.npz](b.npz)'
    """

    def one(found: re.Match[str]) -> str:
        name = found["name"]
        return f"{found[0]}, [gaps](studies/{name}.md)" if f"{STUDIES}/{name}.md" in known else found[0]

    return re.sub(r"\[(?P<name>[\w.-]+)\.npz\]\((?P=name)\.npz\)", one, markdown)


def _named(items: Any) -> list[str]:
    """Return the pages that a navigation names without a pattern."""
    if isinstance(items, str):
        return [] if "*" in items else [items]
    parts = items.values() if isinstance(items, dict) else items
    return [name for part in parts for name in _named(part)]


def _matches(uri: str, pattern: str) -> bool:
    deep = "**" in pattern or uri.count("/") == pattern.count("/")
    return deep and fnmatch.fnmatch(uri, pattern.replace("**/", "*"))


def _arranged(items: list[Any], others: list[str]) -> list[Any]:
    """Return a navigation with patterns replaced by the pages that match and stand nowhere else; empty parts vanish.

    A page is taken by the first pattern that matches.
    """
    arranged: list[Any] = []
    for item in items:
        title, value = next(iter(item.items())) if isinstance(item, dict) else (None, item)
        if isinstance(value, list):
            value = _arranged(value, others)
        elif "*" in value:
            found = [uri for uri in others if _matches(uri, value)]
            others[:] = [uri for uri in others if uri not in found]
            value = sorted(found, key=lambda uri: not uri.endswith(("README.md", "index.md")))
            if title is None:
                arranged += value
                continue
        if value:
            arranged.append(value if title is None else {title: value})
    return arranged
