"""The site: built strictly, complete, and independent of other hosts."""

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import generated
import places
import pytest
import reference_cli
from docs.screenshots import PHONE, open_page
from report.browser import CHROMIUM, DESKTOP, Browser

from rootscale import TABLE
from rootscale.optimizers import FAMILIES
from rootscale.rules import RULES

pytest.importorskip("mkdocs")
pytest.importorskip("material")
pytest.importorskip("mkdocstrings")

ROOT = Path(__file__).parents[2]


def build(folder, config=ROOT / "mkdocs.yml"):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
    line = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--config-file",
        str(config),
        "--site-dir",
        str(folder),
    ]
    return subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)


class Parts(HTMLParser):
    """What a page refers to, and what can be referred to on it."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loaded, self.anchors = [], [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.anchors |= {found[name] for name in ("id", "name") if found.get(name)}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        loads = tag in ("script", "img", "iframe", "source") or (tag == "link" and "stylesheet" in found.get("rel", ""))
        self.loaded += [found[name] for name in ("src", "href") if loads and found.get(name)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {path: Parts(path) for path in site.rglob("*.html") if path.name != "404.html"}


def test_every_link_leads_to_a_page_and_an_anchor_of_the_site(pages):
    dead = []
    for path, parts in pages.items():
        for link in [*parts.links, *parts.loaded]:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            if not target.is_file():
                dead.append(f"{path.name}: {link}")
            elif url.fragment and target in pages and unquote(url.fragment) not in pages[target].anchors:
                dead.append(f"{path.name}: {link} (no such anchor)")
    assert not dead, "\n".join(dead)


def test_nothing_is_loaded_from_another_host(pages):
    assert not {url for parts in pages.values() for url in parts.loaded if urlsplit(url).netloc}


def test_every_page_of_the_documentation_is_in_the_navigation(pages, site):
    start = {(site / unquote(urlsplit(link).path)).resolve() for link in pages[site / "index.html"].links}
    sources = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert len(sources) > 25
    for source in sources:
        name = source.with_name("index.html") if source.name == "README.md" else source.with_suffix(".html")
        assert (site / name).resolve() in start, source


def test_results_are_on_the_site_with_their_figures(site):
    for path in (ROOT / "results").rglob("*"):
        if path.name == "README.md":
            assert (site / path.relative_to(ROOT)).with_name("index.html").is_file()
        elif path.suffix == ".png":
            assert (site / path.relative_to(ROOT)).is_file()


def test_links_of_the_pages_work_on_github_too():
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    pages += [*(ROOT / "docs").rglob("*.md"), *(ROOT / "results").rglob("*.md")]
    dead = [
        f"{page.relative_to(ROOT)}: {path}"
        for page in pages
        for path in places.targets(page.read_text(encoding="utf-8"))
        if not (page.parent / path).exists()
    ]
    assert not dead, "\n".join(dead)


def test_the_reference_has_every_command_option_unit_rule_and_optimizer():
    made = generated.pages()
    for name, command in reference_cli.commands().items():
        assert f"\n## {name}\n" in made["reference/cli.md"]
        for option in command._option_string_actions:
            if option not in ("-h", "--help"):
                assert f"`{option}" in made["reference/cli.md"] or f", {option}" in made["reference/cli.md"]
    for unit in TABLE:
        assert f"| `{unit.key}` |" in made["reference/units.md"]
    for name in RULES:
        assert f"\n## {name}\n" in made["reference/rules.md"]
    for family in FAMILIES.values():
        assert f"\n## {family.name}\n" in made["reference/optimizers.md"]
        assert f"](rules.md#{family.rules[0]}) | {family.status} | " in made["reference/optimizers.md"]


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("there is no chromium on the PATH (apt-get install chromium)")
    with Browser() as browser:
        yield browser


def test_search_works_from_the_disk(browser, site):
    browser.look(DESKTOP)
    open_page(browser, site / "index.html")
    browser.run("""(() => { const field = document.querySelector("[data-md-component=search-query]");
        field.focus(); field.value = "adamax"; field.dispatchEvent(new Event("keyup", {bubbles: true}));
        field.dispatchEvent(new Event("input", {bubbles: true})); })()""")
    found = "[...document.querySelectorAll('.md-search-result__link')].map((one) => one.getAttribute('href'))"
    browser.wait(f"{found}.some((link) => link.includes('optimizers.html'))")
    assert not browser.problems


@pytest.mark.parametrize("page", ["index", "reference/optimizers", "results/index"])
def test_pages_fit_on_a_phone(page, browser, site):
    browser.look(PHONE)
    open_page(browser, site / f"{page}.html")
    assert browser.run("document.documentElement.scrollWidth") <= PHONE[0]
    assert not browser.problems


def test_the_colours_follow_the_system(browser, site):
    grounds = []
    for dark in (False, True):
        browser.look(DESKTOP, dark)
        open_page(browser, site / "index.html")
        grounds.append(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert grounds[0] == "rgb(255, 255, 255)"
    assert grounds[1] != grounds[0]


#: Mistakes of a page, each with what the build says of it.
MISTAKES = {
    "[a](gone.md)": "'gone.md', but the target is not found",
    "[a](README.md#gone)": "there is no such anchor on this page",
    "[a](../src/gone.py)": "links to src/gone.py, which is not in the repository",
    ">>> 1 + 1": "has an example outside of a block of code",
}


def test_dead_links_and_broken_examples_end_the_build(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "README.md").write_text("# Start\n\n" + "\n\n".join(MISTAKES), encoding="utf-8")
    (tmp_path / "mkdocs.yml").write_text(
        f"INHERIT: {ROOT / 'mkdocs.yml'}\nnav: [README.md]\nplugins: []\nhooks: [{ROOT / 'website' / 'hooks.py'}]\n"
    )
    done = build(tmp_path / "site", tmp_path / "mkdocs.yml")
    assert done.returncode == 1
    for message in MISTAKES.values():
        assert message in done.stderr
