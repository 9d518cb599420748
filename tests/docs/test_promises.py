"""The page of promises: every test that it names is there, and its table of faults says that nothing was lost."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py::\w+)`( †)?", PAGE)
#: Of the table of faults: the numbers of a row.
NUMBERS = re.compile(r"\| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$")


def test_every_promise_names_a_test():
    promises = [line for line in PAGE.splitlines() if re.match(r"\| [A-Z`]", line) and not NUMBERS.search(line)]
    assert len(promises) >= 18
    assert not [line for line in promises if "`tests/" not in line]


def test_every_test_that_is_named_is_collected():
    """Those with a dagger may need libraries that are not here, so that their names are looked up in the file."""
    for name, _ in NAMED:
        file, _, function = name.partition("::")
        assert f"\ndef {function}(" in (ROOT / file).read_text(encoding="utf-8"), name
    here = [name for name, elsewhere in NAMED if not elsewhere]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
        *here,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:]
    collected = {re.sub(r"\[.*", "", line) for line in done.stdout.splitlines() if "::" in line}
    assert collected == set(here)


def test_two_hundred_faults_were_tried_and_nothing_was_lost():
    rows = [tuple(map(int, found.groups())) for line in PAGE.splitlines() if (found := NUMBERS.search(line))]
    *each, every = rows
    assert every == tuple(map(sum, zip(*each, strict=True)))
    assert every[0] >= 200
    assert every[1:] == (0, 0, 0, 0)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_the_script_of_faults_tries_each_once_and_loses_nothing():
    command = [sys.executable, "-W", "ignore", ROOT / "benchmarks" / "faults.py", "--share", "0.01"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
