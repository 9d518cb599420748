"""What pages show: code that parses and imports what there is, and commands with options that exist."""

import ast
import importlib
import re
import shlex
import textwrap
from pathlib import Path

import public_names
import pytest
import registry

from rootscale import __version__, cli
from rootscale.configs import FORMATS
from rootscale.lab.study_file import StudyFile
from rootscale.optimizers import FAMILIES

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Pages whose text is made by a program.
MADE = [ROOT / "docs/integrations/formats.md"]
#: Libraries that need not be installed where the pages are tested.
OPTIONAL = ("optax", "ray", "lightning", "transformers", "accelerate")


def blocks(page, language):
    """The blocks of code of a language, without the indentation of lists."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(text) for _, text in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_without_prompts_parses_and_imports_what_there_is(page):
    for text in blocks(page, "python"):
        if ">>> " in text:
            continue  # doctest runs it
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "rootscale":
                if any(name in node.module for name in OPTIONAL):
                    continue
                module = importlib.import_module(node.module)
                assert not [alias.name for alias in node.names if not hasattr(module, alias.name)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_have_options_that_exist(page):
    parsers = cli.make_parser(*cli.COMMANDS)._subparsers._group_actions[0].choices
    for text in blocks(page, "console"):
        for line in re.findall(r"^\$ (?:\S+=\S+ )*rootscale (.*)$", text.replace("\\\n", " "), re.MULTILINE):
            command, *words = shlex.split(line.partition(" # ")[0].replace("wait;", ""), comments=True)
            if command not in parsers:
                assert command.startswith("-"), line
                continue
            options = {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)}
            own = options if "--" not in words else set()
            known = set(parsers[command]._option_string_actions)
            if command == "study" and (ROOT / words[0]).is_file():  # what a file varies are options too
                known |= {f"--{name.replace('_', '-')}" for name in StudyFile(ROOT / words[0]).parameters}
            assert own <= known, line


@pytest.mark.parametrize("page", [page for page in PAGES if page not in MADE], ids=lambda page: page.name)
def test_no_line_of_prose_is_longer_than_120(page):
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert not [line for line in text.splitlines() if len(line) > 120 and not line.lstrip().startswith(("|", "!["))]


@pytest.mark.parametrize("page", [page for page in PAGES if page not in MADE], ids=lambda page: str(page.name))
def test_no_line_of_code_is_wider_than_80(page):
    found = re.findall(r"^( *)```\w*\n(.*?)^\1```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert not [line for _, text in found for line in textwrap.dedent(text).splitlines() if len(line) > 80]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_begins_with_a_sentence(page):
    title, first, *_ = (line for line in page.read_text(encoding="utf-8").splitlines() if line.strip())
    assert title.startswith("# ")
    assert re.match(r"[\w*`\[]", first), f"begins with {first!r}"


def test_the_changelog_has_the_version_and_a_place_for_what_is_next():
    heads = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert heads[:2] == ["Unreleased", __version__]
    text = " ".join((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split())
    assert f"{len(FAMILIES)} families" in text
    assert f"{len(FORMATS)} kinds of configuration files" in text


def test_the_page_of_public_names_is_the_surface():
    page = (ROOT / "docs" / "names.md").read_text(encoding="utf-8")
    assert page == public_names.page(), "python website/public_names.py writes it anew"
    source = ROOT / "src" / "rootscale"
    listed = {public_names.path_of(module) for module in public_names.MODULES}
    exporting = {path for path in source.rglob("*.py") if "\n__all__ = " in path.read_text(encoding="utf-8")}
    assert exporting == listed
    assert len(public_names.public_names()) <= 155  # a new name says which one it replaces


def test_every_public_name_says_what_it_is():
    for module in public_names.MODULES:
        for name in public_names.names_of(module):
            assert name == "__version__" or public_names.summary_of(module, name), f"{module}.{name}"


@pytest.mark.parametrize("name", [*registry.PAGES, *registry.MEASURED])
def test_tables_are_those_of_the_registry_and_of_the_evidence(name):
    page = (ROOT / name).read_text(encoding="utf-8")
    assert page == registry.renewed(name), "python website/registry.py writes it anew"
