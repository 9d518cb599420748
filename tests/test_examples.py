"""Examples that start processes of their own, or that belong to no single integration; each ends in a line to check."""

import json
import math
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ALONE = dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone")
ELASTIC = re.compile(r"(\d) processes, (\d+) samples, batch size (\d+), lr ([\d.]+), decay ([\d.]+), clip ([\d.]+)")


def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def started(*command):
    """The output of a command of Python, run to its end."""
    line = [sys.executable, *map(str, command)]
    done = subprocess.run(line, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def called(monkeypatch, capsys, name, *arguments):
    """The same in this process."""
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    return capsys.readouterr().out


def test_a_bare_loop_goes_on_in_a_fresh_process(tmp_path, monkeypatch, capsys):
    file = tmp_path / "run.pt"
    first = called(monkeypatch, capsys, "pytorch_loop.py", file)
    assert first.splitlines()[-1].startswith(
        "batch size 16, script's lr 0.005000000, a step's lr 0.005000000, clip 1.0"
    )
    saved = file.read_bytes()
    fresh = started("examples/pytorch_loop.py", file, 64)
    assert fresh.splitlines()[-1].startswith(
        "batch size 64, script's lr 0.000000000, a step's lr 0.000000000, clip 0.5"
    )
    file.write_bytes(saved)
    assert called(monkeypatch, capsys, "pytorch_loop.py", file, 64) == fresh


def test_an_elastic_run_goes_on_with_another_number_of_processes(tmp_path, monkeypatch, capsys):
    """One process, whose batch is half of what the settings are for: sqrt(1/2) of the learning rate and decay."""
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)
    ((world, samples, size, rate, decay, clip),) = ELASTIC.findall(
        called(monkeypatch, capsys, "elastic.py", tmp_path / "run.pt", "--epochs=1")
    )
    assert (world, samples, size, float(rate)) == ("1", "1440", "16", 0.0)
    assert float(decay) == pytest.approx(0.1 / 2**0.5, abs=1e-6)
    assert float(clip) == pytest.approx(2**0.5, abs=1e-6)


def returns(printed):
    return [float(value) for value in re.findall(r"'mean return': ([-\d.]+)", printed)]


@pytest.mark.parametrize("envs", [8, 32])
def test_ppo_learns_with_the_settings_of_8_environments(envs, monkeypatch, capsys):
    """A walk to the end pays up to .8; one at random pays below 0."""
    found = returns(called(monkeypatch, capsys, "ppo.py", f"--envs={envs}"))
    assert found[-1] > 0.5 > found[0]


@pytest.mark.parametrize(("task", "frames"), [("CartPole-v1", 16_384), ("Pendulum-v1", 32_768)])
def test_ppo_of_gymnasium(task, frames, monkeypatch, capsys):
    pytest.importorskip("gymnasium", reason="needs the extra: pip install 'rootscale[rl]'")
    found = returns(called(monkeypatch, capsys, "ppo.py", task, "--envs=32", f"--frames={frames}"))
    assert all(math.isfinite(value) for value in found)
    if task == "CartPole-v1":
        assert found[-1] > 2 * found[0]


@pytest.mark.slow  # eight processes
def test_a_job_that_loses_a_process_goes_on_in_the_middle_of_an_epoch(tmp_path):
    file, curve = tmp_path / "run.pt", tmp_path / "curve.jsonl"
    script = ("examples/elastic.py", file, f"--curve={curve}")
    started(*TORCHRUN, "--nproc-per-node=1", *script, "--leave=1")
    started(*TORCHRUN, "--nproc-per-node=2", *script, "--leave=2")
    killed = [sys.executable, *TORCHRUN, "--nproc-per-node=4", *map(str, script), "--lose=6500"]
    done = subprocess.run(killed, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode != 0
    assert "SIGKILL" in done.stderr or "-9" in done.stderr
    started(*TORCHRUN, "--nproc-per-node=1", *script)
    rows = [json.loads(line) for line in curve.read_text().splitlines()]
    seen = [row["samples"] for row in rows]
    assert seen == sorted(set(seen)), "no part of the run twice"
    assert [round(one / 720) for one in seen] == list(range(1, 13))
    assert rows[-1]["validation loss"] < 0.8 * rows[0]["validation loss"]


@pytest.mark.slow  # seven starts of Python
def test_torchrun_goes_on_with_more_processes_and_everything_is_converted(tmp_path):
    """Settings are for 32 samples, of two processes; three have 48."""
    script = ("examples/elastic.py", tmp_path / "run.pt", "--epochs=4")
    printed = started(*TORCHRUN, "--nproc-per-node=2", *script, "--leave=2")
    printed += started(*TORCHRUN, "--nproc-per-node=3", *script)
    rows = ELASTIC.findall(printed)
    assert [row[:3] for row in rows] == [
        (world, str(1440 * epoch), size)
        for epoch, (world, size) in enumerate([("2", "32"), ("2", "32"), ("3", "48"), ("3", "48")], 1)
    ]
    for epoch, (*_, size, rate, decay, clip) in enumerate(rows, 1):
        root = (int(size) / 32) ** 0.5
        assert float(decay) == pytest.approx(0.1 * root, abs=1e-6)
        assert float(clip) == pytest.approx(1 / root, abs=1e-6)
        assert float(rate) == pytest.approx(1e-3 * root * (1 + math.cos(math.pi * epoch / 4)) / 2, abs=1e-8)


@pytest.mark.slow  # three starts of Python; test_accelerate.py runs the example in one process
def test_accelerate_launch_starts_two_processes_with_different_samples():
    pytest.importorskip("accelerate")
    options = "--multi_gpu --num_processes=2 --num_machines=1 --mixed_precision=no --dynamo_backend=no"
    module = ["-m", "accelerate.commands.launch", *options.split(), "--main_process_port=0"]
    assert "2 processes, 4096 samples, 4096 of them different" in started(*module, "examples/accelerate_loop.py")


def test_a_dpo_run_of_trl_goes_on_at_another_batch_size():
    """In a process of its own: TRL warns of much that is not ours."""
    pytest.importorskip("trl")
    pytest.importorskip("datasets")
    printed = started("examples/trl_dpo.py")
    (last,) = [line for line in printed.splitlines() if "'rootscale/kappa': '4'" in line]
    assert "'samples_seen': '64'" in last
    assert "'learning_rate': '0.00025'" in last  # the script's, and beside it that of a step
    assert "'rootscale/group_0/lr': '0.0005'" in last
    assert "reference model every 2 steps, 4 steps in all" in printed
