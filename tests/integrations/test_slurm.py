"""The page "64 GPUs on SLURM": its scripts, run by submitit's executor on this machine, and its programs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cloudpickle")
pytestmark = pytest.mark.filterwarnings("ignore")

PAGE = (Path(__file__).parents[2] / "docs" / "slurm.md").read_text(encoding="utf-8")
TRAIN, *PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
PIECES, JUDGE, _ = re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
#: What is smaller here than on the page.
SMALLER = {
    "--to 64 256 1024": "--to 64",
    "--seeds 16": "--seeds 2",
    "[4, 16, 64]": "[4]",
    "seeds=16": "seeds=2",
    "seeds=4": "seeds=2",
    "gpus_per_node=1, ": "",
    'cluster="slurm"': 'cluster="local"',
    "at_once=64": "at_once=2",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder that all jobs see, with the loop, and commands that are on the paths of a cluster."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "bin").mkdir()
    for name, text in {"rootscale": f'exec {sys.executable} -m rootscale "$@"', "srun": 'exec "$@"'}.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def smaller(text, folder):
    for before, after in SMALLER.items():
        text = text.replace(before, after)
    return text.replace("/shared", str(folder))


def test_the_array_has_a_piece_for_every_arm_and_seed():
    sizes = re.search(r"--to ([\d ]+) --seeds (\d+)", PIECES)
    count = (1 + len(sizes[1].split())) * int(sizes[2])
    assert f"--array=0-{count - 1}\n" in PIECES
    assert count == 64


def test_an_array_of_jobs_ends_in_a_verdict(folder):
    submitit = pytest.importorskip("submitit")
    (folder / "pieces.sh").write_text(smaller(PIECES, folder))
    (folder / "judge.sh").write_text(smaller(JUDGE, folder))
    executor = submitit.AutoExecutor(folder / "logs", cluster="local")
    executor.update_parameters(timeout_min=5)
    command = submitit.helpers.CommandFunction
    jobs = [
        executor.submit(command(["env", f"SLURM_ARRAY_TASK_ID={index}", "bash", "pieces.sh"], verbose=False))
        for index in range(4)
    ]
    said = [job.result() for job in jobs]
    assert [re.search(r"(B = \d+), seed (\d): stored in", text).groups() for text in said] == [
        ("B = 16", "0"), ("B = 64", "0"), ("B = 16", "1"), ("B = 64", "1"),
    ]  # fmt: skip
    done = subprocess.run(["bash", "judge.sh"], capture_output=True, text=True, timeout=200)
    assert done.returncode in (0, 1, 3), done.stderr
    assert "4 of 4 runs were there already" in done.stdout
    assert (folder / "check" / "report.html").exists()


@pytest.mark.parametrize("text", PROGRAMS, ids=lambda text: text.split()[1])
def test_a_program_of_the_page_ends_in_a_verdict(folder, text):
    for library in re.findall(r"^(?:from|import) (submitit|dask|joblib)", text, re.MULTILINE):
        pytest.importorskip({"dask": "distributed"}.get(library, library))
    file = folder / text.split()[1]
    file.write_text(smaller(text, folder))
    assert len(text.splitlines()) <= 20
    done = subprocess.run([sys.executable, "-W", "ignore", file], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] in ("same", "different", "undecided")
    assert not list((folder / "check" / "runs").glob(".jobs-*"))
