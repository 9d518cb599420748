"""Sweeps on a local Ray cluster."""

import json
import os
import runpy
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from problems import make, mlp

from rootscale.lab import Settings, Variant, sweep

ray = pytest.importorskip("ray", reason="needs the extra 'ray'")
pytestmark = pytest.mark.filterwarnings("ignore")

VARIANTS = [Variant(), Variant(4), Variant(4, "linear"), Variant(2)]
SETTINGS = Settings(grid=(160, 320, 480), switch_at=160)


@pytest.fixture(scope="module", autouse=True)
def cluster():
    environment = {"PYTHONPATH": os.pathsep.join(path for path in os.sys.path if path)}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": environment})
    yield
    ray.shutdown()


def equal(a, b):
    for variant, one in a.trajectories.items():
        for name in one.names:
            assert np.array_equal(one.values[name], b.trajectories[variant].values[name]), (variant, name)


def test_a_sweep_on_ray_is_the_one_of_this_process_and_can_be_moved(tmp_path):
    here = sweep(make(), VARIANTS, [0, 1], SETTINGS)
    equal(sweep(make(), VARIANTS[:2], [0, 1], SETTINGS, tmp_path, engine="ray"), here)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("trajectory.npz")}
    equal(sweep(make(), VARIANTS, [0, 1], SETTINGS, tmp_path, workers=2), here)  # goes on with processes
    assert times.items() <= {path: path.stat().st_mtime_ns for path in tmp_path.rglob("trajectory.npz")}.items()


def test_a_worker_killed_in_mid_run_loses_nothing_and_doubles_nothing(tmp_path):
    task = make()
    expected = sweep(task, VARIANTS, [0, 1], SETTINGS)
    killed = []

    def kill():
        deadline = time.monotonic() + 60
        while not killed and time.monotonic() < deadline:
            for path in tmp_path.glob("*/checkpoint.pt"):
                place = path.parent
                if not (place / "trajectory.npz").exists() and "warm" not in place.name:
                    pid = json.loads((place / "run.json").read_text())["process"]["pid"]
                    if pid != os.getpid():
                        os.kill(pid, signal.SIGKILL)
                        killed.append(place)
                        return
            time.sleep(0.005)

    thread = threading.Thread(target=kill)
    thread.start()
    found = sweep(task, VARIANTS, [0, 1], SETTINGS, tmp_path, engine="ray", checkpoint_every=0.0)
    thread.join()
    assert killed
    equal(found, expected)
    statuses = [json.loads(path.read_text())["status"] for path in tmp_path.glob("*/run.json")]
    assert statuses == ["finished"] * (len(VARIANTS) + 1)


def test_the_example_runs(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["ray_sweep.py"])
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "ray_sweep.py"), run_name="__main__")
    assert "train loss" in capsys.readouterr().out


def test_an_error_in_a_run_reaches_the_user(tmp_path):
    here = os.getpid()

    def broken():
        if os.getpid() != here:
            raise ValueError("no such weights")
        return mlp()

    task = make(model=broken)
    with pytest.raises(ValueError, match="no such weights"):
        sweep(task, [Variant()], [0], Settings(grid=(0, 160)), tmp_path, engine="ray")


def test_an_unknown_engine_is_refused():
    with pytest.raises(ValueError, match="engine must be one of processes, ray, got 'slurm'"):
        sweep(make(), [Variant()], [0], Settings(grid=(0, 160)), engine="slurm")
