"""Checks whose folder is full, read only, or no folder, and loops that log numbers without a square."""

import json
import os
import resource
import sys
from pathlib import Path

import pytest

from rootscale.cli import main
from rootscale.lab import Table
from rootscale.lab.execute import can_fork
from rootscale.lab.processes import Child

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.skipif(not can_fork(), reason="this process cannot be forked: JAX is loaded"),
]
LOOP = """
import math
def train(batch_size=4, seed=0, log=None):
    for samples in range(batch_size, 2001, batch_size):
        log(samples=samples, loss={loss})
"""


@pytest.fixture
def words(tmp_path):
    def made(loss="math.exp(-samples / 400) + 1e-3 * math.sin(seed)"):
        (tmp_path / "own.py").write_text(LOOP.replace("{loss}", loss))
        words = ["check", f"{tmp_path / 'own.py'}:train", "--to", "16", "--seeds", "2", "--workers", "2"]
        return [*words, "--out", str(tmp_path / "kept")]

    return made


def test_a_full_disk_names_the_run_and_the_same_command_goes_on(words, tmp_path, capfd):
    def full():
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))  # of a file: as a disk that has that much left
        os._exit(main(words()))

    assert Child.forked(full).wait(60) == 2
    said = capfd.readouterr().err
    assert "B = 4, seed " in said
    assert "OSError: [Errno 27] File too large" in said or "cannot be stored: File too large" in said
    assert not (tmp_path / "kept" / "table.npz").exists()
    assert main(words()) == 0
    for path in tmp_path.rglob("log.jsonl"):
        rows = [json.loads(line)["samples"] for line in path.read_text().splitlines()]
        assert rows[-1] == 2000
    assert not any("damaged" in note for note in Table.load(tmp_path / "kept").made["notes"])


TASK = """
import torch
from rootscale import Adam, Plan
from rootscale.lab import Task

x = torch.randn(64, 50, generator=torch.Generator().manual_seed(0))
line = Task(
    "line", Plan(Adam(1e-3), batch_size=4, steps=40), lambda: torch.nn.Linear(50, 1),
    lambda outputs, y: (outputs.squeeze(1) - y) ** 2, (x, x.sum(1)),
)
"""


def test_a_checkpoint_that_finds_no_room_is_said_to_find_none(tmp_path, capfd):
    (tmp_path / "task.py").write_text(TASK)
    words = ["check", f"{tmp_path / 'task.py'}:line", "--to", "16", "--switch-at", "50%", "--seeds", "2"]

    def full():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, 4_000))
        os._exit(main([*words, "--workers", "1", "--out", str(tmp_path / "kept")]))

    assert Child.forked(full).wait(60) == 2
    assert "B = 4 cannot be stored: File too large" in capfd.readouterr().err
    assert main([*words, "--workers", "1", "--out", str(tmp_path / "kept")]) in (0, 1, 3)


@pytest.mark.skipif(sys.platform != "linux" or not Path("/sys").is_dir(), reason="/sys takes no folders")
def test_a_folder_that_takes_no_files_is_refused_before_any_run(words, tmp_path, capfd):
    assert main([*words()[:-1], "/sys/kept"]) == 2
    assert "error: the runs cannot be stored in /sys/kept/runs: " in capfd.readouterr().err
    assert main([*words()[:-1], str(tmp_path / "own.py" / "kept")]) == 2
    assert "own.py/kept/runs: Not a directory; give another folder (--out)" in capfd.readouterr().err


def test_numbers_that_have_no_square_count_as_not_finite(words, capfd):
    assert main(words("1e308 * math.exp(-samples / 400) + seed")) == 2
    assert "all runs of both sides diverged: there is nothing to compare" in capfd.readouterr().err
    assert main(
        words("math.exp(-samples / 400) + 1e-3 * math.sin(seed) + 1.7e308 * (batch_size > 4 and samples > 999)")
    ) in (
        1,
        3,
    )
    assert "2 of 2 runs of the other and 0 of 2 of the base diverged" in " ".join(capfd.readouterr().out.split())
