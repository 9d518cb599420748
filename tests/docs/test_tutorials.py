"""The tutorials: notebooks that show what their code gave, keep their form, and run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import places
import pytest
import tutorials

ROOT = Path(__file__).parents[2]
NOTEBOOKS = tutorials.notebooks()
EVERY = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cell(text, kind="code", **metadata):
    made = {
        "cell_type": kind,
        "id": "cell",
        "metadata": metadata,
        "source": text.splitlines(keepends=True),
    }
    return made if kind == "markdown" else made | {"execution_count": None, "outputs": []}


CELLS = [
    cell("# Title", "markdown"),
    cell("import matplotlib.pyplot as plt\n\nplt.figure().subplots().plot([1, 2])\nplt.show()", caption="Two points"),
    cell('print("printed")\n1 + 1'),
    cell("!echo one \\\n    two"),
    cell("assert plt", tags=["check"]),
]


@pytest.fixture
def notebook(tmp_path):
    path = tmp_path / "01-mine.ipynb"
    tutorials.save({"cells": CELLS, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, path)
    return path


def test_there_are_eight_and_the_index_has_them_all():
    index = (tutorials.HERE / "README.md").read_text("utf-8")
    assert [path.name for path in NOTEBOOKS] == re.findall(r"\]\((\d\d-[\w-]+\.ipynb)\)", index)
    assert len(NOTEBOOKS) == 8


@EVERY
def test_a_notebook_shows_what_its_code_gave(path):
    assert not tutorials.stale(path), "run make tutorials"


@EVERY
def test_a_tutorial_says_what_one_learns_in_short_cells_with_pictures(path):
    text, pictures = tutorials.page(path)
    for part in ("**What you will learn.**", "## What to remember", "## Where to go next"):
        assert text.count(part) == 1, part
    for number, one in enumerate(tutorials.load(path)["cells"], 1):
        lines = [line for line in tutorials.source(one).splitlines() if line.strip()]
        if tutorials.kind(one) in ("python", "console"):
            assert len(lines) <= 30, f"cell {number}"
            assert max(map(len, lines)) <= 80, f"cell {number}"
    captions = re.findall(r"!\[(.*)\]\(images/.+\)", text)
    assert len(captions) == len(pictures) > 0
    assert all(len(words) > 20 for words in captions), "a picture needs a caption in its cell's metadata"
    assert max(map(len, pictures.values())) < 400_000


@EVERY
def test_pages_show_no_places_of_one_machine(path):
    assert not re.search(r"(?<![\w.])/(home|tmp|work|root|usr|Users)/", tutorials.page(path)[0])


@EVERY
def test_links_of_a_tutorial_lead_somewhere(path):
    cells = tutorials.load(path)["cells"]
    words = [tutorials.source(one) for one in cells if tutorials.kind(one) == "markdown"]
    for target in places.targets("\n\n".join(words)):
        assert (path.parent / target).exists(), target


def test_cells_are_run_and_shown_as_a_notebook_would(notebook):
    assert tutorials.stale(notebook)
    tutorials.run(notebook)
    assert not tutorials.stale(notebook)
    text, pictures = tutorials.page(notebook)
    assert text.startswith("# Title\n\n*As a [notebook](01-mine.ipynb).*\n")
    assert "```text\nprinted\n2\n```" in text
    assert "```console\n$ echo one \\\n    two\none two\n```" in text
    assert "![Two points](images/01-mine-1.png)\n\n*Two points.*\n" in text
    assert pictures["01-mine-1.png"].startswith(b"\x89PNG")
    assert "assert plt" not in text


def test_other_code_is_noticed_and_other_words_are_not(notebook):
    tutorials.run(notebook)
    made = tutorials.load(notebook)
    made["cells"][0]["source"] = ["# Other title"]
    tutorials.save(made, notebook)
    assert not tutorials.stale(notebook)
    made["cells"][2]["source"] = ['print("other")']
    tutorials.save(made, notebook)
    assert tutorials.stale(notebook)


@pytest.mark.parametrize(
    ("added", "why"),
    [
        (cell("1 / 0"), "division by zero"),
        (cell("!rootscale scale --lr"), "rootscale scale --lr ended with 2"),
        (cell("!rootscale rules", tags=["refused"]), "rootscale rules ended with 0"),
    ],
)
def test_a_tutorial_that_fails_writes_nothing_and_says_where(notebook, added, why):
    made = tutorials.load(notebook)
    made["cells"].append(added)
    tutorials.save(made, notebook)
    before = notebook.read_bytes()
    with pytest.raises((RuntimeError, ZeroDivisionError), match=why) as failed:
        tutorials.run(notebook)
    assert "in cell 6 of 01-mine.ipynb" in "".join(failed.value.__notes__)
    assert notebook.read_bytes() == before


@pytest.mark.slow
@EVERY
def test_every_tutorial_runs_and_its_words_hold(path, tmp_path):
    copy = shutil.copy(path, tmp_path)
    code = f"import pathlib, tutorials; tutorials.run(pathlib.Path({str(copy)!r}))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "website")])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
