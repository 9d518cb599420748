"""The list of accepted skips, and that a run in CI fails for any other."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from skips import Entry, entry_of, read_entries

LIST = Path(__file__).with_name("skips.toml")
ENTRY = '[[skip]]\nreason = "needs a (GPU|TPU)"\nenvironments = ["integrations"]\nbecause = "there is none"\n'
WORKERS = ("-p", "xdist", "-n", "2")
TESTS = """
import pytest

def test_that_runs(): ...

@pytest.mark.skip(reason="needs a GPU")
def test_listed(): ...
"""


def pytest_of(folder, tests, *options, ci, entries=ENTRY):
    """Run pytest in a folder of its own with the plugin, and return its exit status and output."""
    (folder / "test_some.py").write_text(tests)
    (folder / "list.toml").write_text(entries)
    words = ["-p", "skips", "-p", "no:cacheprovider", "--rootdir", str(folder), "--skips", str(folder / "list.toml")]
    env = {**os.environ, "PYTHONPATH": str(LIST.parent), "CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    env.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *words, *options, str(folder)],
        env=env, cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_a_listed_skip_passes_in_ci_and_is_shown_with_its_reason(tmp_path):
    status, out = pytest_of(tmp_path, TESTS, "--environment=integrations", ci="true")
    assert status == 0, out
    assert re.search(r" 1  needs a GPU\n +there is none\n", out)


@pytest.mark.parametrize("options", [(), WORKERS])
def test_a_skip_that_the_environment_does_not_accept_fails_in_ci_only(tmp_path, options):
    status, out = pytest_of(tmp_path, TESTS, *options, ci="true")
    assert status == 1
    assert re.search(r" 1  needs a GPU\n +not in list.toml\n", out)
    assert "1 reasons are not in" in out
    assert "environment 'test'" in out
    status, out = pytest_of(tmp_path, TESTS, *options, ci="")
    assert status == 0
    assert re.search(r" 1  needs a GPU\n +not in list.toml\n", out)
    assert "reasons are not in" not in out


def test_a_whole_file_that_is_skipped_is_no_exception(tmp_path):
    tests = "import pytest\npytest.importorskip('no_such_library')\n\ndef test_one(): ...\n"
    (tmp_path / "test_other.py").write_text("def test_that_runs(): ...\n")
    for options in ((), WORKERS):
        status, out = pytest_of(tmp_path, tests, *options, ci="1")
        assert status == 1
        assert out.count("could not import 'no_such_library': No module named 'no_such_library'\n") == 1


def test_a_run_without_skips_says_nothing_of_them(tmp_path):
    status, out = pytest_of(tmp_path, "def test_that_runs(): ...\n", ci="true")
    assert (status, "skipped" in out) == (0, False)


def test_a_reason_is_matched_as_a_whole():
    entries = [Entry("needs a GPU", ("test",), "there is none")]
    assert entry_of("needs a GPU", entries, "test") is entries[0]
    assert entry_of("needs a GPU and more", entries, "test") is None
    assert entry_of("needs a GPU", entries, "integrations") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ENTRY.replace("because", "why"), "needs reason, environments and because, got"),
        (ENTRY.replace("there is none", ""), "needs reason, environments and because, got"),
        (ENTRY.replace("integrations", "nightly"), r"must be of \('test', 'integrations'\), got \['nightly'\]"),
        (ENTRY.replace("TPU)", "TPU"), "is not a regular expression: 'needs a .GPU|TPU'"),
    ],
)
def test_entries_that_say_too_little_are_refused(tmp_path, text, message):
    (tmp_path / "list.toml").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_entries(tmp_path / "list.toml")


def test_a_library_that_fails_on_import_is_not_taken_for_one_that_is_not_there():
    entries = read_entries(LIST)
    broken = "could not import 'torchao.optim': cannot import name 'x' from 'torch'"
    assert entry_of(broken, entries, "test") is None
    absent = "could not import 'torchao.optim': No module named 'torchao'"
    assert entry_of(absent, entries, "test").because.endswith("make test-integrations")
    assert entry_of(absent, entries, "integrations") is None
