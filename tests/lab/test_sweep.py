"""Sweeps: what is stored, found again, resumed and split."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from problems import make
from swept import finished, sweep

from rootscale.files import locked
from rootscale.lab import (
    Arm,
    Deadline,
    Forked,
    Here,
    Observer,
    Settings,
    Setup,
    Store,
    Study,
    Trial,
    UnfinishedError,
    Variant,
    group,
    task_runs,
)
from rootscale.lab.execute import can_fork
from rootscale.lab.store import BusyError
from rootscale.trajectory import Trajectory

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

SETTINGS = Settings(grid=(0, 80, 160))
SWITCH = Settings(grid=(80, 160, 240), switch_at=80)
VARIANTS = [Variant(), Variant(4), Variant(4, "linear"), Variant(ell=2)]
TWO, FOUR = [0, 1], [0, 1, 2, 3]


def run(task, variants, seeds, settings, store=None, execute=None, **observe):
    """A sweep, in this process if nothing else is said."""
    return sweep(
        task, variants, seeds=seeds, settings=settings, store=store, execute=execute or Here(),
        observe=Observer(**observe),
    )  # fmt: skip


def equal(a, b, close=False):
    assert a.trajectories.keys() == b.trajectories.keys()
    for variant, one in a.trajectories.items():
        other = b.trajectories[variant]
        assert one.meta["seeds"] == other.meta["seeds"]
        for name in one.names:
            if close:
                assert one.values[name] == pytest.approx(other.values[name], rel=1e-9), (variant, name)
            else:
                assert np.array_equal(one.values[name], other.values[name]), (variant, name)


def times(folder, pattern="*.npz"):
    return {path: path.stat().st_mtime_ns for path in Path(folder).rglob(pattern)}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A folder with a sweep of four variants from a switch, three seeds in groups of two, and what it gave."""
    folder = tmp_path_factory.mktemp("stored")
    return folder, run(make("everything"), VARIANTS, [0, 1, 2], SWITCH, folder, Here(together=2))


@pytest.fixture
def copied(stored, tmp_path):
    shutil.copytree(stored[0], tmp_path / "copy")
    return tmp_path / "copy", stored[1]


def test_a_sweep_with_a_folder_gives_what_one_without_gives_and_finished_runs_are_only_read(stored):
    folder, kept = stored
    equal(kept, run(make("everything"), VARIANTS, [0, 1, 2], SWITCH, None, Here(together=2)))
    before = times(folder)
    jobs = []
    equal(run(make("everything"), VARIANTS, [0, 1, 2], SWITCH, folder, progress=lambda *said: jobs.append(said)), kept)
    assert times(folder) == before
    assert not jobs
    assert not list(folder.rglob("*.tmp"))


def test_a_run_is_found_again_in_whatever_group_of_seeds_it_was_made(copied):
    folder, kept = copied
    before = times(folder)
    swept = run(make("everything"), VARIANTS[:2], [2, 0], SWITCH, folder, Here(together=16))
    assert times(folder) == before
    for variant in VARIANTS[:2]:
        one, other = swept.trajectories[variant], kept.trajectories[variant]
        assert one.meta["seeds"] == [2, 0]
        assert np.array_equal(one.values["train loss"], other.values["train loss"][[2, 0]])
        assert 0 < one.meta["seconds"] < other.meta["seconds"]


def test_a_warm_start_serves_other_groups_than_it_was_made_in(copied):
    folder, _ = copied
    apart = run(make("everything"), [Variant(2)], [0, 1, 2], SWITCH, None, Here(together=1))
    before = times(folder, "checkpoint.pt")
    together = run(make("everything"), [Variant(2)], [0, 1, 2], SWITCH, folder, Here(together=3))
    equal(together, apart, close=True)
    assert times(folder, "checkpoint.pt") == before, "the states of groups 0-1 and 2 were put together"


@pytest.mark.parametrize("kind", [pytest.param("adam", marks=pytest.mark.slow), "everything"])
def test_the_result_does_not_depend_on_the_groups(kind):
    task = make(kind)
    apart, together = (run(task, VARIANTS, TWO, SWITCH, None, Here(together)) for together in (1, 2))
    equal(apart, together, close=True)


def test_all_variants_of_a_switch_start_from_one_warm_start(stored):
    _, found = stored
    starts = [trajectory.values["train loss"][:, 0] for trajectory in found.trajectories.values()]
    for start in starts[1:]:
        assert np.array_equal(start, starts[0])
    assert found.warm.values["train loss"][:, -1] == pytest.approx(starts[0])
    assert found.warm.meta["samples"][0] == 0


def test_a_run_folder_describes_itself_and_is_read_without_this_package(tmp_path):
    run(make("everything"), [Variant(4)], [3, 4], SETTINGS, Store(tmp_path, command="make it"))
    (place,) = tmp_path.glob("*/*/")
    assert place.name == "seeds-3-4"
    assert sorted(path.name for path in place.glob("[!.]*")) == ["run.json", "trajectory.csv", "trajectory.npz"]
    facts = json.loads((place / "run.json").read_text())
    assert facts["status"] == "finished"
    assert facts["seeds"] == [3, 4]
    assert facts["variant"]["kappa"] == "4"
    assert facts["plan"]["batch_size"] == 16
    assert {"torch", "rootscale", "python", "numpy"} <= set(facts["versions"])
    assert facts["hardware"]
    assert facts["command"] == "make it"
    with np.load(place / "trajectory.npz") as arrays:
        loss = arrays["values/train loss"]
    table = np.genfromtxt(place / "trajectory.csv", delimiter=",", names=True, deletechars="")
    assert table["train_loss"].reshape(2, 3) == pytest.approx(loss)
    assert table["samples"].reshape(2, 3)[0].tolist() == [0, 80, 160]
    assert table["seed"].reshape(2, 3)[:, 0].tolist() == [3, 4]


# -- stopping and resuming -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kills_wanted", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_a_sweep_killed_at_random_moments_loses_nothing(kills_wanted, stored, tmp_path):
    if not can_fork():
        pytest.skip("this process cannot be forked: a test before this one has loaded JAX")
    task, folder = make("everything"), tmp_path / "killed"
    context, moments = multiprocessing.get_context("fork"), random.Random(0)
    store = Store(folder, checkpoint_every=0.0)
    store.fingerprints.of(task, [0, 1, 2])  # once, and not in every process
    began = time.monotonic()
    run(task, VARIANTS, [0, 1, 2], SWITCH, None, Here(together=2))
    length = time.monotonic() - began

    def work():
        run(task, VARIANTS, [0, 1, 2], SWITCH, store, Here(together=2))

    kills = 0
    while kills < kills_wanted:
        before = {path: path.read_bytes() for path in folder.rglob("*.npz")}
        process = context.Process(target=work)
        process.start()
        process.join(moments.uniform(0.02, length / 6))
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            kills += 1
        else:  # done before the last kill: take something away that it has to do again
            assert process.exitcode == 0
            next(folder.rglob("trajectory.npz")).unlink()
            continue
        now = {path: path.read_bytes() for path in folder.rglob("*.npz")}
        assert before.items() <= now.items()
        for path in now:
            Trajectory.load(path)
    equal(run(task, VARIANTS, [0, 1, 2], SWITCH, store, Here(together=2)), stored[1])
    assert not list(folder.rglob("*.tmp")), "what a killed process was writing is removed"


def test_a_run_is_finished_when_all_else_of_it_is_written(tmp_path, monkeypatch):
    """Nobody opens the folder of a finished run again, so that what a kill leaves there would stay."""
    written = group.write_facts

    def killed(place, wanted, facts):
        written(place, wanted, facts)
        raise OSError("killed while it wrote the last facts")

    task = make("everything")
    with monkeypatch.context() as patch:
        patch.setattr(group, "write_facts", killed)
        with pytest.raises(ValueError, match="killed while it wrote"):
            run(task, [Variant()], [0], SETTINGS, tmp_path)
    assert list(tmp_path.rglob("run.json"))
    assert not list(tmp_path.rglob("trajectory.npz"))
    run(task, [Variant()], [0], SETTINGS, tmp_path)
    (record,) = tmp_path.rglob("run.json")
    assert json.loads(record.read_text())["status"] == "finished"


def test_an_interrupt_waits_for_a_checkpoint_and_the_sweep_resumes_from_it(stored, tmp_path):
    task, handler = make("everything"), signal.getsignal(signal.SIGINT)

    def interrupt(label, job, jobs, share):
        if job == 3 and share > 0.5:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(task, VARIANTS, [0, 1, 2], SWITCH, tmp_path, Here(together=2), progress=interrupt)
    (cut,) = [path for path in tmp_path.glob("*/*/") if not (path / "trajectory.npz").exists()]
    assert (cut / "checkpoint.pt").exists()
    shares = []
    resumed = run(
        task, VARIANTS, [0, 1, 2], SWITCH, tmp_path, Here(together=2), progress=lambda *said: shares.append(said)
    )
    assert shares[0][3] > 0.5
    equal(resumed, stored[1])
    assert signal.getsignal(signal.SIGINT) is handler, "the sweep puts back what it found"


def test_a_group_that_was_stopped_is_resumed_as_it_was_also_where_fewer_seeds_are_wanted(tmp_path):
    def interrupt(label, job, jobs, share):
        if share > 0.5 and job == 0:  # once: a second interrupt would not wait for a checkpoint
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(make(), [Variant()], FOUR, SETTINGS, tmp_path, progress=interrupt)
    shares = []
    found = run(
        make(), [Variant()], [1], SETTINGS, tmp_path, Here(together=1), progress=lambda *said: shares.append(said[3])
    )
    assert shares[0] > 0.5
    assert found.trajectories[Variant()].meta["seeds"] == [1]
    assert [path.name for path in tmp_path.glob("*/*/")] == ["seeds-0-3"]


def test_seeds_that_are_finished_elsewhere_are_not_made_again_with_a_group_that_was_stopped(tmp_path):
    def interrupt(label, job, jobs, share):
        if share > 0.5 and job == 0:
            os.kill(os.getpid(), signal.SIGINT)

    store = Store(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(make(), [Variant()], FOUR, SETTINGS, store, progress=interrupt)
    spec = task_runs.TaskSpec(make(), Variant(), SETTINGS)
    assert store.split(store.want(spec, FOUR), 16) == [(0, 1, 2, 3)]
    run(make(), [Variant()], [1], SETTINGS, tmp_path / "alone")
    (one,) = (tmp_path / "alone").glob("*/*/")
    shutil.copytree(one, next(tmp_path.glob("b-4-*")) / one.name)
    assert store.split(store.want(spec, FOUR), 16) == [(0, 2, 3)]


@pytest.mark.parametrize("execute", [Here, Forked])
def test_a_deadline_stops_a_sweep_with_a_checkpoint(stored, tmp_path, execute):
    task, store = make("everything"), Store(tmp_path)
    dict(store.fingerprints.of(task, TWO)["seeds"])  # computed before the clock runs
    long = Settings(grid=(0, 400_000))
    plan = replace(task.plan, steps=200_000)
    with pytest.raises(
        UnfinishedError, match="the deadline passed before all runs were finished; the same call resumes"
    ):
        run(replace(task, plan=plan), [Variant()], TWO, long, store, execute(deadline=Deadline.after(0.5)))
    places = list(tmp_path.glob("*/*/"))
    assert places
    for place in places:
        assert 0 <= torch.load(place / "checkpoint.pt", weights_only=True)["step"] < 200_000
        assert json.loads((place / "run.json").read_text())["status"] == "running"


def test_a_deadline_that_has_passed_makes_nothing_and_still_reads(stored, tmp_path):
    folder, kept = stored
    over = Here(deadline=Deadline.after(0))
    equal(run(make("everything"), VARIANTS, [0, 1, 2], SWITCH, folder, over), kept)
    with pytest.raises(UnfinishedError):
        run(make(), [Variant()], TWO, SETTINGS, tmp_path, over)
    assert not list(tmp_path.iterdir())


# -- several processes -----------------------------------------------------------------------------------------------


def test_work_is_split_to_fill_the_workers_and_no_further():
    class Counted(Here):
        def __init__(self, workers, together):
            super().__init__(together)
            object.__setattr__(self, "count", workers)
            object.__setattr__(self, "made", [])

        def workers(self):
            return self.count

        def run(self, jobs, *rest):
            self.made.append([len(job.wanted.seeds) for job in jobs])
            super().run(jobs, *rest)

    for workers, together, expected in (
        (2, 16, [[8, 8]]),
        (8, 16, [[2] * 8]),
        (64, 16, [[1] * 16]),
        (1, 16, [[8, 8]]),
        (1, 3, [[3, 3, 2] * 2]),
    ):
        execute = Counted(workers, together)
        run(make(), VARIANTS[:2], range(8), Settings(grid=(0, 16)), None, execute)
        assert execute.made == expected, (workers, together)


def places_of(folder):
    return {
        "warm": next(folder.glob("*/*/checkpoint.pt")).parent.relative_to(folder),
        "run": next(folder.glob("b-16-*/*/run.json")).parent.relative_to(folder),
    }


@pytest.fixture(scope="module")
def one_made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    return folder, run(make(), [Variant(4)], [0], SWITCH, folder)


@pytest.mark.parametrize("what", ["warm", "run"])
def test_a_run_that_another_process_makes_is_waited_for_and_read(one_made, tmp_path, what):
    made, expected = one_made
    places = places_of(made)
    if what == "run":
        shutil.copytree(made / places["warm"], tmp_path / places["warm"])
    shutil.copytree(made / places[what], tmp_path / places[what])
    (tmp_path / places[what] / "trajectory.npz").unlink()
    held, shares = ExitStack(), []
    assert held.enter_context(locked(tmp_path / places[what] / ".lock"))

    def finish(label, job, jobs, share):
        shares.append(share)
        if len(shares) == 3:  # as the other process would
            shutil.copy(made / places[what] / "trajectory.npz", tmp_path / places[what])
            held.close()

    equal(run(make(), [Variant(4)], [0], SWITCH, tmp_path, progress=finish), expected)
    assert shares[:3] == [0, 0, 0]
    assert (shares[3:] == [1.0]) == (what == "run"), "after a warm start, the run itself is made"


def test_a_run_that_another_process_makes_in_another_group_is_an_error_where_the_store_does_not_wait(tmp_path):
    asked = make(), [Variant(4)]
    run(*asked, TWO, SETTINGS, tmp_path)
    (place,) = tmp_path.glob("*/*/")
    (place / "trajectory.npz").unlink()
    store = Store(tmp_path, wait=False)
    with locked(place / ".lock"), pytest.raises(BusyError, match="another process is making B = 16"):
        run(*asked, [1], SETTINGS, store)
    run(*asked, [1], SETTINGS, store)
    assert finished(*asked, seeds=TWO, settings=SETTINGS, store=store)


def test_waiting_for_another_process_can_be_interrupted(one_made, tmp_path):
    made, _ = one_made
    shutil.copytree(made, tmp_path / "new")
    (place,) = (tmp_path / "new").glob("b-16-*/*/")
    (place / "trajectory.npz").unlink()
    with locked(place / ".lock"), pytest.raises(KeyboardInterrupt):
        run(
            make(), [Variant(4)], [0], SWITCH, tmp_path / "new",
            progress=lambda *said: os.kill(os.getpid(), signal.SIGINT),
        )  # fmt: skip
    assert not finished(make(), [Variant(4)], seeds=[0], settings=SWITCH, store=tmp_path / "new")


def test_whether_a_sweep_is_finished_is_known_without_running_it(copied, tmp_path):
    folder, _ = copied
    task = make("everything")

    def done(variants=VARIANTS, seeds=(0, 1, 2), store=folder):
        return finished(task, variants, seeds=seeds, settings=SWITCH, store=store)

    assert done()
    assert not done(store=tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert not done(seeds=(0, 3))
    assert not done([Variant(8)])
    for path in list(folder.rglob("trajectory.npz"))[:6]:  # the warm starts are runs too
        path.rename(path.with_suffix(".away"))
        assert not done()
        path.with_suffix(".away").rename(path)


# -- models ----------------------------------------------------------------------------------------------------------


def learned(swept):
    """The parameters of every variant and seed, from the files."""
    return {
        key: torch.load(path, weights_only=True)[replica]
        for key, (path, replica) in sorted(swept.models.items(), key=str)
    }


def same(a, b):
    assert a.keys() == b.keys()
    for key, state in a.items():
        assert state.keys() == b[key].keys()
        assert all(torch.equal(value, b[key][name]) for name, value in state.items()), key


@pytest.mark.parametrize("execute", [Here(together=2), Forked(2, together=2)])
def test_models_that_are_kept_are_those_at_the_end_of_a_run(tmp_path, execute):
    task, variants = make("everything"), [Variant(), Variant(4)]
    found = run(task, variants, [0, 1, 2], SETTINGS, Store(tmp_path, keep_models=True), execute)
    for variant in variants:
        for seeds in ([0, 1], [2]):
            alone = Trial(task, variant, seeds, SETTINGS)
            alone.finish()
            for r, seed in enumerate(seeds):
                path, replica = found.models[variant, seed]
                assert path.is_relative_to(tmp_path)
                same(
                    {0: torch.load(path, weights_only=True)[replica]}, {0: dict(alone.learner.replica(r).state_dict())}
                )
    assert not list(tmp_path.rglob("checkpoint.pt"))


def test_models_can_be_asked_for_later(copied, tmp_path):
    folder, before = copied
    task, store = make("everything"), Store(folder, keep_models=True)
    assert before.models == {}
    assert not list(folder.rglob("model.pt"))
    asked = {"seeds": [0, 1, 2], "settings": SWITCH}
    assert finished(task, VARIANTS, **asked, store=folder)
    assert not finished(task, VARIANTS, **asked, store=store)
    after = run(task, VARIANTS, [0, 1, 2], SWITCH, store, Here(together=16))
    equal(after, before)
    assert finished(task, VARIANTS, **asked, store=store)
    new = Store(tmp_path / "new", keep_models=True)
    same(learned(after), learned(run(task, VARIANTS, [0, 1, 2], SWITCH, new, Here(together=2))))
    changed = times(folder, "*")
    run(task, VARIANTS, [0, 1, 2], SWITCH, store)
    assert times(folder, "*") == changed, "they are there now"


def test_a_model_is_made_from_the_last_checkpoint_where_there_is_one(tmp_path):
    alone = Trial(make(), Variant(), [0], SETTINGS)
    alone.finish()
    run(make(), [Variant()], [0], SETTINGS, tmp_path)
    (place,) = tmp_path.glob("*/*/")
    torch.save(alone.state_dict(), place / "checkpoint.pt")
    shares = []
    found = run(
        make(), [Variant()], [0], SETTINGS, Store(tmp_path, keep_models=True),
        progress=lambda *said: shares.append(said[3]),
    )  # fmt: skip
    assert shares == [1.0], "no step was made"
    same(learned(found), {(Variant(), 0): dict(alone.learner.replica(0).state_dict())})


# -- divergence ------------------------------------------------------------------------------------------------------


def limited(settings, loss):
    return replace(settings, setup=Setup(max_loss=loss))


def test_what_diverged_has_no_model_and_is_not_run_again_for_one(tmp_path):
    store = Store(tmp_path, keep_models=True)
    found = run(make(), [Variant()], TWO, limited(SETTINGS, 1e-9), store)
    assert found.models == {}
    assert not list(tmp_path.rglob("model.pt"))
    jobs = []
    run(make(), [Variant()], TWO, limited(SETTINGS, 1e-9), store, progress=lambda *said: jobs.append(said))
    assert not jobs


@pytest.mark.parametrize("together", [1, 2])
def test_replicas_that_diverged_before_the_switch_stay_lost_in_every_group(tmp_path, together):
    start = run(make(), [Variant()], TWO, SETTINGS).trajectories[Variant()].values["train loss"][:, 0]
    kept = int(start.argmin())
    settings = limited(SWITCH, float(start.mean()))
    found = run(make(), [Variant(4)], TWO, settings, Store(tmp_path, keep_models=True), Here(together))
    ((key, (path, replica)),) = found.models.items()
    assert key == (Variant(4), kept)
    assert torch.load(path, weights_only=True)[replica] is not None
    lost = np.isnan(found.trajectories[Variant(4)].values["train loss"])
    assert lost[1 - kept].all()
    assert not lost[kept].any()


def test_a_switch_that_no_replica_reaches_is_refused():
    with pytest.raises(ValueError, match="all 2 runs diverged before the switch at 80 samples, the first after 0"):
        run(make(), [Variant(4)], TWO, limited(SWITCH, 1e-9), None, Here(together=1))


# -- the rest --------------------------------------------------------------------------------------------------------


def test_a_sweep_can_run_outside_the_main_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(run(make(), [Variant()], [0], SETTINGS)))
    thread.start()
    thread.join()
    assert len(found) == 1


def test_mistakes_are_explained(tmp_path):
    task = make()
    for seeds in ([0, 0], []):
        with pytest.raises(ValueError, match="seeds must differ from each other, and there must be one, got"):
            Study("line", [Arm("base", task), Arm("four", task, Variant(4))], seeds=seeds, settings=SETTINGS).run()
    with pytest.raises(ValueError, match="two arms are called 'four'"):
        Study("line", [Arm("four", task), Arm("four", task, Variant(4))], settings=SETTINGS)
    with pytest.raises(ValueError, match="together must be at least 1, got 0"):
        Here(together=0)
    with pytest.raises(ValueError, match="processes must be at least 1, got 0"):
        Forked(0)
    run(make(), [Variant()], [0], SETTINGS, tmp_path)
    (record,) = tmp_path.rglob("run.json")
    record.write_text("{}")
    with pytest.raises(ValueError, match=r"run.json is damaged: KeyError\('seeds'\); remove its folder"):
        run(make(), [Variant()], [0], SETTINGS, tmp_path)
