"""Sweeps on a local Ray cluster."""

import json
import os
import runpy
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from problems import make, mlp
from swept import sweep

from rootscale import Adam, Plan
from rootscale.integrations.executors import OnRay
from rootscale.lab import Deadline, Forked, Here, Settings, Store, UnfinishedError, Variant

ray = pytest.importorskip("ray", reason="needs the extra 'ray'")
pytestmark = pytest.mark.filterwarnings("ignore")

VARIANTS = [Variant(), Variant(4), Variant(4, "linear"), Variant(2)]
SETTINGS = Settings(grid=(160, 320, 480), switch_at=160)


@pytest.fixture(scope="module", autouse=True)
def cluster():
    environment = {"PYTHONPATH": os.pathsep.join(path for path in os.sys.path if path)}
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": environment})
    yield
    ray.shutdown()


def run(task, variants, seeds, settings=SETTINGS, store=None, execute=None):
    return sweep(task, variants, seeds=seeds, settings=settings, store=store, execute=execute or Here())


def equal(a, b):
    for variant, one in a.trajectories.items():
        for name in one.names:
            assert one.values[name] == pytest.approx(b.trajectories[variant].values[name], rel=1e-9), (variant, name)


def test_a_sweep_on_ray_is_the_one_of_this_process_and_can_be_moved(tmp_path):
    here = run(make(), VARIANTS, [0, 1])
    few = run(make(), VARIANTS[:2], [0, 1], store=tmp_path, execute=OnRay())
    for variant in VARIANTS[:2]:
        assert few.trajectories[variant].meta["seeds"] == [0, 1]
        assert few.trajectories[variant].values["train loss"] == pytest.approx(
            here.trajectories[variant].values["train loss"], rel=1e-9
        )
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("trajectory.npz")}
    equal(run(make(), VARIANTS, [0, 1], store=tmp_path, execute=Forked(2)), here)
    assert times.items() <= {path: path.stat().st_mtime_ns for path in tmp_path.rglob("trajectory.npz")}.items()


def test_a_worker_killed_in_mid_run_loses_nothing_and_doubles_nothing(tmp_path):
    task = make()
    expected = run(task, VARIANTS, [0, 1])
    killed = []

    def kill():
        deadline = time.monotonic() + 60
        while not killed and time.monotonic() < deadline:
            for path in tmp_path.glob("*/*/checkpoint.pt"):
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
    found = run(task, VARIANTS, [0, 1], store=Store(tmp_path, checkpoint_every=0.0), execute=OnRay())
    thread.join()
    assert killed
    equal(found, expected)
    statuses = [json.loads(path.read_text())["status"] for path in tmp_path.glob("*/*/run.json")]
    assert set(statuses) == {"finished"}


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
        run(task, [Variant()], [0], Settings(grid=(0, 160)), tmp_path, OnRay())


def test_two_arms_of_eight_seeds_fill_all_cpus(tmp_path):
    run(make(), VARIANTS[:2], range(8), Settings(grid=(0, 16)), tmp_path, OnRay())
    assert len(list(tmp_path.glob("*/*/run.json"))) == 2, "there are two CPUs: a job for each"
    assert OnRay().workers() == 2
    assert OnRay(gpus=0.5).workers() == 1


def test_a_deadline_stops_the_workers_with_checkpoints(tmp_path):
    with pytest.raises(UnfinishedError):
        run(make(), [Variant()], [0], SETTINGS, tmp_path / "none", OnRay(deadline=Deadline.after(0)))
    task = make(Plan(Adam(2e-3, 0.98, 0.998), batch_size=4, steps=400_000))
    long = Settings(grid=(0, 1_600_000))
    with pytest.raises(UnfinishedError):
        run(task, [Variant()], [0], long, tmp_path, OnRay(deadline=Deadline.after(3)))
    (place,) = tmp_path.glob("*/*/")
    assert (place / "checkpoint.pt").exists()


def test_a_training_function_from_a_file_runs_on_ray(tmp_path):
    from rootscale.lab import Loop, check
    from rootscale.lab.task import load_named

    path = tmp_path / "on_ray_mine.py"
    path.write_text(
        "import math\n\ndef helper(s):\n    return math.exp(-s / 100)\n\n"
        "def train(batch_size, seed, log, convert):\n    for s in range(batch_size, 401, batch_size):\n"
        "        log(samples=s, loss=helper(s) + 1e-3 * seed)\n"
    )
    loop = Loop("mine", load_named(f"{path}:train"), 4)
    found = check(loop, [4], seeds=4, store=tmp_path / "kept", execute=OnRay())
    assert found.verdict == "same"


def test_a_job_of_several_gpus_needs_them_on_one_node(monkeypatch):
    nodes = [{"Alive": True, "Resources": {"CPU": 8.0, "GPU": gpus}} for gpus in (3.0, 4.0)]
    nodes += [{"Alive": False, "Resources": {"CPU": 8.0, "GPU": 8.0}}]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    assert OnRay(gpus=2).workers() == 1 + 2
    assert OnRay(gpus=4).workers() == 1
    assert OnRay(gpus=0.5).workers() == 14
    assert OnRay().workers() == 16


def test_the_runs_of_a_dead_node_are_made_again(tmp_path):
    """In a process of its own, with a cluster of its own: a head without CPUs and two nodes, one of which dies."""
    program = tmp_path / "program.py"
    program.write_text(DEAD_NODE)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in os.sys.path if path)}
    command = [os.sys.executable, "-W", "ignore", str(program), str(tmp_path / "runs")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert "equal after a node was removed" in done.stdout, done.stderr[-3000:]


DEAD_NODE = """
import sys, threading, time
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
from problems import make
from rootscale.integrations.executors import OnRay
from rootscale.lab import Here, Settings, Store, Variant
from swept import sweep

folder, settings, variants = Path(sys.argv[1]), Settings(grid=(160, 320, 480), switch_at=160), [Variant(), Variant(4)]
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
ray.init(address=cluster.address, log_to_driver=False)
expected = sweep(make(), variants, seeds=[0], settings=settings, execute=Here())
removed = []

def remove():
    while not list(folder.glob("*/*/checkpoint.pt")):
        time.sleep(0.005)
    cluster.remove_node(nodes[1], allow_graceful=False)
    removed.append(nodes[1])

threading.Thread(target=remove, daemon=True).start()
store = Store(folder, checkpoint_every=0.0)
found = sweep(make(), variants, seeds=[0], settings=settings, store=store, execute=OnRay())
same = all(abs(a.values[n] - found.trajectories[v].values[n]).max() < 1e-9
           for v, a in expected.trajectories.items() for n in a.names)
print("equal after a node was removed" if same and removed else f"{same} {removed}")
"""
