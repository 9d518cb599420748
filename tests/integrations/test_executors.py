"""Sweeps by the executors of other libraries: each gives what this process gives, and nothing is made twice."""

import concurrent.futures
import importlib
import json
import multiprocessing
import os
import platform
import signal
import subprocess
import threading
import time
from contextlib import contextmanager

import pytest
import torch
from problems import make, mlp
from swept import sweep

from rootscale import Adam, Plan
from rootscale.integrations.executors import OnExecutor
from rootscale.lab import Deadline, Forked, Here, Settings, Store, UnfinishedError, Variant

pytest.importorskip("cloudpickle")
pytestmark = pytest.mark.filterwarnings("ignore")

VARIANTS = [Variant(), Variant(4)]
SETTINGS = Settings(grid=(160, 320, 480), switch_at=160)
LONG = Plan(Adam(2e-3, 0.98, 0.998), batch_size=4, steps=400_000)


@contextmanager
def processes():
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as executor:
        yield executor


@contextmanager
def submitit():
    library = pytest.importorskip("submitit")
    executor = library.AutoExecutor(os.environ["SUBMITIT_FOLDER"], cluster="local")
    executor.update_parameters(timeout_min=5)
    yield executor


@contextmanager
def joblib():
    library = pytest.importorskip("joblib")
    executor = library.externals.loky.get_reusable_executor(2)
    yield executor
    executor.shutdown(kill_workers=True)


@contextmanager
def dask():
    library = pytest.importorskip("distributed")
    with (
        library.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        library.Client(cluster) as client,
    ):
        yield client.get_executor()


EXECUTORS = {"concurrent.futures": processes, "submitit": submitit, "joblib": joblib, "dask": dask}


@pytest.fixture(autouse=True)
def visible(monkeypatch, tmp_path):
    """Processes of other libraries find the modules of these tests."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in os.sys.path if path))
    monkeypatch.setenv("SUBMITIT_FOLDER", str(tmp_path / "submitit"))


def run(task, variants, seeds, settings=SETTINGS, store=None, execute=None):
    return sweep(task, variants, seeds=seeds, settings=settings, store=store, execute=execute or Here())


def equal(a, b):
    for variant, trajectory in a.trajectories.items():
        for name in trajectory.names:
            other = b.trajectories[variant].values[name]
            assert trajectory.values[name] == pytest.approx(other, rel=1e-9), (variant, name)


def no_traces(folder):
    return not list(folder.glob(".jobs-*"))


@pytest.mark.parametrize("name", EXECUTORS)
def test_a_sweep_is_the_one_of_this_process_and_can_be_moved(name, tmp_path):
    here = run(make(), VARIANTS, [0, 1])
    store = tmp_path / "runs"
    with EXECUTORS[name]() as executor:
        equal(run(make(), VARIANTS, [0, 1], store=store, execute=OnExecutor(executor, at_once=2)), here)
    times = {path: path.stat().st_mtime_ns for path in store.rglob("trajectory.npz")}
    equal(run(make(), VARIANTS, [0, 1], store=store, execute=Forked(2)), here)
    assert times == {path: path.stat().st_mtime_ns for path in store.rglob("trajectory.npz")}
    assert no_traces(store)


def test_what_has_no_submit_is_refused():
    with pytest.raises(TypeError, match=r"submit\(function, \*arguments\).* got int"):
        OnExecutor(3)


class Threads:
    """An executor of threads of this process, whose jobs can be lost on the way."""

    def __init__(self, lose=0):
        self.pool, self.lose, self.sizes = concurrent.futures.ThreadPoolExecutor(2), lose, []

    def submit(self, function, *arguments):
        place = arguments[0]
        self.sizes.append(os.path.getsize(os.path.join(place, "jobs.pkl")))
        if self.lose:
            self.lose -= 1
            return self.pool.submit(lambda: 1 / 0)
        return self.pool.submit(function, *arguments)


def test_a_job_that_left_no_record_of_its_end_is_submitted_again(tmp_path, monkeypatch):
    executors = importlib.import_module("rootscale.integrations.executors")
    monkeypatch.setattr(executors, "_VISIBLE", 0.1)
    some = OnExecutor(Threads(lose=2), at_once=2)
    equal(run(make(), VARIANTS, [0, 1], store=tmp_path, execute=some), run(make(), VARIANTS, [0, 1]))
    with pytest.raises(RuntimeError, match=r"job 0 lost its worker 2 times: ZeroDivisionError"):
        run(make(), VARIANTS, [2], store=tmp_path, execute=OnExecutor(Threads(lose=9), retries=1))


def test_a_folder_that_a_worker_does_not_see_is_named(tmp_path, monkeypatch):
    executor = Threads()
    submit = executor.submit
    executor.submit = lambda function, place, *more: submit(function, place + "-elsewhere", *more) or None
    executor.sizes = type("Ignore", (), {"append": lambda self, size: None})()
    monkeypatch.setattr(os.path, "getsize", lambda path: 0)
    with pytest.raises(ValueError, match=r"does not see the folder .*: keep the runs on a file system that all"):
        run(make(), [Variant()], [0], store=tmp_path, execute=OnExecutor(executor))


def test_an_error_in_a_run_reaches_the_user(tmp_path):
    here = threading.get_ident()

    def broken():
        if threading.get_ident() != here:
            raise ValueError("no such weights")
        return mlp()

    with pytest.raises(ValueError, match="no such weights"):
        run(make(model=broken), [Variant()], [0], Settings(grid=(0, 160)), tmp_path, OnExecutor(Threads()))
    assert no_traces(tmp_path)


def test_what_jobs_share_is_shipped_once_and_views_without_their_storage(tmp_path):
    large = torch.zeros(2_000_000, 6, dtype=torch.float64)  # 96 MB, of which the task uses a little
    y = torch.arange(240) % 3
    task = make()
    task = type(task)(**{**vars(task), "train": (large[:240], y), "test": None})
    executor = Threads()
    settings = Settings(grid=(0, 16))
    run(task, [Variant(), Variant(2)], range(4), settings, tmp_path, OnExecutor(executor, at_once=4, together=1))
    assert len(executor.sizes) == 8
    assert set(executor.sizes) == {max(executor.sizes)}
    assert max(executor.sizes) < 200_000


def test_the_progress_of_a_running_job_is_seen_and_ctrl_c_leaves_a_checkpoint(tmp_path):
    seen, interrupted = [], threading.Event()
    runs = importlib.import_module("rootscale.lab.task_runs")
    store = Store(tmp_path)
    spec = runs.TaskSpec(make(LONG), Variant(), Settings(grid=(0, 1_600_000)))
    jobs = importlib.import_module("rootscale.lab.jobs")
    job = jobs._Job(store, store.want(spec, [0]), jobs.Observer())

    def on_progress(number, share):
        seen.append(share)
        if share > 0:
            interrupted.set()

    with pytest.raises(KeyboardInterrupt):
        OnExecutor(Threads()).run([job], tmp_path, on_progress, interrupted)
    assert 0 < seen[-1] < 1
    assert list(tmp_path.glob("*/*/checkpoint.pt"))


def test_a_deadline_stops_the_workers_with_checkpoints(tmp_path):
    task, long = make(LONG), Settings(grid=(0, 1_600_000))
    with pytest.raises(UnfinishedError):
        run(task, [Variant()], [0], long, tmp_path, OnExecutor(Threads(), deadline=Deadline.after(1)))
    assert list(tmp_path.glob("*/*/checkpoint.pt"))


def test_a_killed_worker_of_submitit_is_replaced(tmp_path):
    """SLURM may end a job at any time; the next one resumes from its checkpoint."""
    task, killed = make(), []
    expected = run(task, VARIANTS, [0])

    def kill():
        limit = time.monotonic() + 90
        while not killed and time.monotonic() < limit:
            for path in (tmp_path / "runs").glob("*/*/checkpoint.pt"):
                record = json.loads((path.parent / "run.json").read_text())
                if record["status"] == "running":
                    os.kill(record["process"]["pid"], signal.SIGKILL)
                    killed.append(path.parent)
                    return
            time.sleep(0.005)

    thread = threading.Thread(target=kill)
    with submitit() as executor:
        thread.start()
        store = Store(tmp_path / "runs", checkpoint_every=0.0)
        found = run(task, VARIANTS, [0], store=store, execute=OnExecutor(executor))
    thread.join()
    assert killed
    equal(found, expected)


def test_what_a_killed_process_has_submitted_is_told_to_stop_and_removed_later(tmp_path):
    """As after a kill: a folder of jobs whose process is not there any more, and one of a process that is."""
    command = [os.sys.executable, "-S", "-c", "import os; print(os.getpid())"]
    gone = subprocess.run(command, capture_output=True, text=True, check=True)
    for name, pid in ((".jobs-gone", int(gone.stdout)), (".jobs-there", os.getppid())):
        (tmp_path / name).mkdir()
        (tmp_path / name / "driver.json").write_text(json.dumps({"host": platform.node(), "pid": pid}))
    run(make(), [Variant()], [0], store=tmp_path, execute=OnExecutor(Threads()))
    assert (tmp_path / ".jobs-gone" / "stop").exists()
    assert not (tmp_path / ".jobs-there" / "stop").exists()
    os.utime(tmp_path / ".jobs-gone" / "stop", (0, 0))
    run(make(), [Variant()], [1], store=tmp_path, execute=OnExecutor(Threads()))
    assert [path.name for path in tmp_path.glob(".jobs-*")] == [".jobs-there"]
