"""The tutorials: their pages belong to their scripts, keep their form, and run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import places
import pytest
import tutorials

ROOT = Path(__file__).parents[2]
SCRIPTS = tutorials.scripts()
SCRIPT = """\
# %% [markdown]
# # Title

# %% Two points
import matplotlib.pyplot as plt

plt.figure().subplots().plot([1, 2])
plt.show()

# %%
print("printed")
1 + 1

# %%
# !echo one \\
#     two

# %% tags=["check"]
assert plt
"""


def page(script):
    return script.with_suffix(".md").read_text("utf-8")


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "01-mine.py"
    path.write_text(SCRIPT)
    return path


def test_there_are_eight_and_the_index_has_them_all():
    index = (tutorials.HERE / "README.md").read_text("utf-8")
    assert [f"{script.stem}.md" for script in SCRIPTS] == re.findall(r"\]\((\d\d-[\w-]+\.md)\)", index)
    assert len(SCRIPTS) == 8


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_pages_and_notebooks_are_made_of_the_present_scripts(script):
    assert not tutorials.stale(script), "run make tutorials"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_tutorial_says_what_one_learns_in_short_cells_with_pictures(script):
    text = page(script)
    for part in ("**What you will learn.**", "## What to remember", "## Where to go next"):
        assert text.count(part) == 1, part
    for cell in tutorials.read_cells(script.read_text("utf-8")):
        lines = [line for line in cell.text.splitlines() if line.strip()]
        assert cell.kind not in ("python", "console") or len(lines) <= 15, f"{script.name}:{cell.line}"
    pictures = re.findall(r"!\[(.*)\]\(images/(.+)\)", text)
    assert pictures
    for words, name in pictures:
        assert len(words) > 20, f"{name} needs a description after its # %%"
        assert (tutorials.HERE / "images" / name).stat().st_size < 400_000


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_pages_show_no_places_of_one_machine(script):
    assert not re.search(r"(?<![\w.])/(home|tmp|work|root|usr|Users)/", page(script))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_links_of_a_tutorial_lead_somewhere(script):
    for target in places.targets(page(script)):
        assert (script.parent / target).exists(), target


def test_no_picture_is_left_from_a_tutorial_that_is_gone():
    named = {name for script in SCRIPTS for name in re.findall(r"\]\(images/(.+?)\)", page(script))}
    assert {path.name for path in (tutorials.HERE / "images").iterdir()} == named


def test_cells_are_run_and_shown_as_a_notebook_would(script):
    tutorials.make_tutorial(script)
    text = page(script)
    assert "```text\nprinted\n2\n```" in text
    assert "```console\n$ echo one \\\n    two\none two\n```" in text
    assert "![Two points](images/01-mine-1.png)\n\n*Two points.*\n" in text
    assert (script.parent / "images" / "01-mine-1.png").read_bytes().startswith(b"\x89PNG")
    assert "assert plt" not in text
    notebook = json.loads(script.with_suffix(".ipynb").read_text())
    assert [cell["cell_type"] for cell in notebook["cells"]] == ["markdown", "code", "code", "code"]
    assert "".join(notebook["cells"][-1]["source"]) == "!echo one \\\n    two"
    assert not tutorials.stale(script)


def test_a_page_of_another_text_is_noticed(script):
    assert tutorials.stale(script) == "01-mine.py has no page or no notebook yet"
    tutorials.make_tutorial(script)
    changes = [
        (script.with_suffix(".md"), "printed", "other", "01-mine.md was changed by hand: change 01-mine.py instead"),
        (script.with_suffix(".ipynb"), "printed", "other", "01-mine.ipynb was made of another text"),
        (script, "printed", "other", "01-mine.md was made of another text"),
    ]
    for path, old, new, why in changes:
        before = path.read_text()
        path.write_text(before.replace(old, new))
        assert tutorials.stale(script) == why
        path.write_text(before)
    (script.parent / "images" / "01-mine-1.png").unlink()
    assert tutorials.stale(script) == "images/01-mine-1.png is missing, or is left from before"


def test_other_words_keep_what_the_code_gave_and_other_code_is_run(script):
    assert tutorials.make_tutorial(script)
    first = page(script)
    script.write_text(SCRIPT.replace("# # Title", "# # Other title").replace("Two points", "Points"))
    assert not tutorials.make_tutorial(script, run=False)
    assert page(script).partition("<!--")[0] == first.partition("<!--")[0].replace("# Title", "# Other title").replace(
        "Two points", "Points"
    )
    assert not tutorials.stale(script)
    script.write_text(SCRIPT.replace("assert plt", "assert plt.plot"))
    assert tutorials.make_tutorial(script, run=False)
    script.with_suffix(".md").write_text(page(script).replace("printed\n2", "printed\n3"))
    assert tutorials.make_tutorial(script, run=False)
    assert "printed\n2" in page(script)


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ("# %%\n1 / 0\n", "division by zero"),
        ("# %%\n# !rootscale scale --lr\n", "rootscale scale --lr ended with 2"),
        ("# %% refused\n# !rootscale rules\n", "rootscale rules ended with 0"),
    ],
)
def test_a_tutorial_that_fails_writes_nothing_and_says_where(script, cell, why):
    script.write_text(SCRIPT + cell)
    with pytest.raises((RuntimeError, ZeroDivisionError), match=why) as failed:
        tutorials.make_tutorial(script)
    assert "in the cell at line 21 of 01-mine.py" in "".join(failed.value.__notes__)
    assert list(script.parent.iterdir()) == [script]


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_every_tutorial_runs_and_its_words_hold(script):
    code = f"import pathlib, tutorials; tutorials.run_script(pathlib.Path({str(script)!r}))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "website")])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
