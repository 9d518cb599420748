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
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from problems import make, mlp

from rootscale.files import locked
from rootscale.lab import Run, Settings, Setup, Variant, identity, sweep
from rootscale.lab.identity import describe
from rootscale.lab.pool import available
from rootscale.lab.sweep import BusyError, finished
from rootscale.paper.tasks import Normalise
from rootscale.trajectory import Trajectory

SETTINGS = Settings(grid=(0, 160, 320, 480))
SWITCH = Settings(grid=(160, 320, 480), switch_at=160)
VARIANTS = [Variant(), Variant(4), Variant(4, "linear"), Variant(ell=2)]


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(Path(folder).rglob("*.npz"))}


def equal(a, b):
    assert a.trajectories.keys() == b.trajectories.keys()
    for variant, one in a.trajectories.items():
        other = b.trajectories[variant]
        assert one.meta["seeds"] == other.meta["seeds"]
        for name in one.names:
            assert np.array_equal(one.values[name], other.values[name]), (variant, name)


@pytest.mark.parametrize("settings", [SETTINGS, SWITCH])
def test_a_sweep_with_a_folder_gives_what_one_without_gives_and_skips_what_is_finished(tmp_path, settings):
    kept = sweep(make(), VARIANTS, [0, 1, 2], settings, tmp_path, together=2)
    equal(kept, sweep(make(), VARIANTS, [0, 1, 2], settings, together=2, workers=1))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npz")}
    again = sweep(make(), VARIANTS, [0, 1, 2], settings, tmp_path, together=2)
    equal(again, kept)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npz")} == before
    assert not list(tmp_path.rglob("*.tmp"))


def test_all_variants_of_a_switch_start_from_one_warm_start(tmp_path):
    found = sweep(make(), VARIANTS, [0, 1], SWITCH, tmp_path)
    starts = [trajectory.values["train loss"][:, 0] for trajectory in found.trajectories.values()]
    for start in starts[1:]:
        assert np.array_equal(start, starts[0])
    assert found.warm.values["train loss"][:, -1] == pytest.approx(starts[0])
    assert found.warm.meta["samples"][0] == 0


def test_a_run_folder_describes_itself_and_is_read_without_this_package(tmp_path):
    sweep(make("everything"), [Variant(4)], [3, 4], SETTINGS, tmp_path)
    (place,) = tmp_path.iterdir()
    assert sorted(path.name for path in place.glob("[!.]*")) == ["run.json", "trajectory.csv", "trajectory.npz"]
    facts = json.loads((place / "run.json").read_text())
    assert facts["status"] == "finished"
    assert facts["seeds"] == [3, 4]
    assert facts["variant"]["kappa"] == "4"
    assert facts["plan"]["batch_size"] == 16
    assert {"torch", "rootscale", "python", "numpy"} <= set(facts["versions"])
    assert facts["hardware"]
    assert facts["command"]
    with np.load(place / "trajectory.npz") as arrays:
        loss = arrays["values/train loss"]
    table = np.genfromtxt(place / "trajectory.csv", delimiter=",", names=True, deletechars="")
    assert table["train_loss"].reshape(2, 4) == pytest.approx(loss)
    assert table["samples"].reshape(2, 4)[0].tolist() == [0, 160, 320, 480]
    assert table["seed"].reshape(2, 4)[:, 0].tolist() == [3, 4]


def test_what_decides_the_result_decides_the_folder():
    task = make()
    changed = {
        "plan": make("rmsprop"),
        "data": replace(task, train=(task.train.inputs + 1, task.train.targets)),
        "model": make(model=lambda: mlp().requires_grad_(False)),
        "loss": replace(task, loss=lambda outputs, y: outputs.square().mean(-1)),
        "metrics": replace(task, metrics={}),
    }
    for what, other in changed.items():
        assert describe(other) != describe(task), what
    assert describe(make()) == describe(task)


class Halved:
    """A loss of one's own, as an object."""

    def __init__(self, by, hidden=None):
        self.by, self.hidden = by, hidden

    def __call__(self, outputs, y):
        return torch.nn.functional.cross_entropy(outputs, y, reduction="none") / self.by


class Own(torch.nn.Module):
    """A net of one's own."""

    def __init__(self, activation=torch.relu):
        super().__init__()
        self.layer, self.activation = torch.nn.Linear(6, 3), activation

    def forward(self, x):
        return self.activation(self.layer(x))


def closure(factor):
    return lambda outputs, y: factor * torch.nn.functional.cross_entropy(outputs, y, reduction="none")


FACTOR = 2.0


def of_a_global(outputs, y):
    return FACTOR * torch.nn.functional.cross_entropy(outputs, y, reduction="none")


def rows(changed):
    y = torch.zeros(10_000, dtype=torch.long)
    y[changed] = 1
    return torch.ones(10_000, 6, dtype=torch.float64), y


CROSS = partial(torch.nn.CrossEntropyLoss, reduction="none")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"loss": CROSS()}, {"loss": CROSS(label_smoothing=0.5)}),
        ({"loss": CROSS()}, {"loss": CROSS(weight=torch.tensor([1.0, 2.0, 1.0]))}),
        ({"loss": Halved(2)}, {"loss": Halved(2.5)}),
        ({"loss": Halved(2)}, {"loss": Halved(2, hidden={"a": torch.ones(2)})}),
        ({"loss": closure(1.0)}, {"loss": closure(0.5)}),
        ({"prepare": Normalise((0.0,), (1.0,))}, {"prepare": Normalise((5.0,), (9.0,))}),
        ({"prepare": torch.relu}, {"prepare": torch.tanh}),
        ({"prepare": np.exp}, {"prepare": np.log}),
        ({"train": rows(0)}, {"train": rows(9_999)}),
        ({"model": Own}, {"model": partial(Own, torch.tanh)}),
        ({"model": lambda: torch.nn.Dropout(0.5)}, {"model": lambda: torch.nn.Dropout(0.1)}),
        ({"model": lambda: torch.nn.ReLU()}, {"model": lambda: torch.nn.Tanh()}),
    ],
)
def test_values_decide_the_folder_as_code_does(one, other):
    task = make()
    assert describe(replace(task, **one)) != describe(replace(task, **other))
    assert describe(replace(task, **one)) == describe(replace(task, **one))


def test_equal_values_are_equal_whether_or_not_they_are_one_object():
    task, half = make(), (0.5, 0.25)
    again = tuple(float(x) for x in half)
    assert again is not half
    one, other = (replace(task, prepare=Normalise(half, second)) for second in (half, again))
    assert describe(one) == describe(other)
    around = {"a": half}
    around["self"] = around
    assert describe(replace(task, loss=Halved(2, around))) != describe(replace(task, loss=Halved(2, {"a": half})))


def test_a_global_that_a_loss_refers_to_decides_the_folder(monkeypatch):
    task = make()
    before = describe(replace(task, loss=of_a_global))
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert describe(replace(task, loss=of_a_global)) != before


def test_an_argument_that_a_newer_library_adds_changes_nothing(monkeypatch):
    def older(self, p=0.5, inplace=False):
        torch.nn.Module.__init__(self)
        self.p, self.inplace = p, inplace

    def newer(self, p=0.5, inplace=False, more=None):
        older(self, p, inplace)
        self.more = more

    found = []
    for init in (older, newer):
        monkeypatch.setattr(torch.nn.Dropout, "__init__", init)
        identity._arguments.cache_clear()
        found.append(describe(replace(make(), model=lambda: torch.nn.Dropout(0.3)))["model"])
    identity._arguments.cache_clear()
    assert found[0] == found[1]


def test_a_model_is_made_once_to_describe_tasks_that_share_it():
    made = []

    def model(width, extra=None):
        made.append(width)
        return torch.nn.Linear(6, width).double()

    tasks = [make(plan, model=partial(model, width)) for plan in ("adam", "rmsprop") for width in (3, 4)]
    descriptions = [describe(task)["model"] for task in tasks]
    assert made == [3, 4]
    assert descriptions[0] == descriptions[2] != descriptions[1]
    assert describe(make(model=partial(model, 3, extra=[])))["model"] == descriptions[0], "a list cannot be looked up"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_sweep_killed_at_twenty_random_moments_loses_nothing(tmp_path):
    if not available():
        pytest.skip("this process cannot be forked: a test before this one has loaded JAX")
    task, arguments = make("everything"), (VARIANTS, [0, 1, 2], SWITCH)
    began = time.monotonic()
    expected = sweep(task, *arguments, tmp_path / "whole", together=2)
    length = time.monotonic() - began
    context, moments = multiprocessing.get_context("fork"), random.Random(0)

    def work():
        sweep(task, *arguments, tmp_path / "killed", together=2, workers=1, checkpoint_every=0.0)

    kills = 0
    while kills < 20:
        before = files(tmp_path / "killed")
        process = context.Process(target=work)
        process.start()
        process.join(moments.uniform(0.02, length / 6))
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            kills += 1
        elif kills < 20:  # done before the twentieth kill: take something away that it has to do again
            assert process.exitcode == 0
            next((tmp_path / "killed").rglob("trajectory.npz")).unlink()
            continue
        now = files(tmp_path / "killed")
        assert before.items() <= now.items()
        for path in now:
            Trajectory.load(tmp_path / "killed" / path)
    equal(sweep(task, *arguments, tmp_path / "killed", together=2), expected)


def test_an_interrupt_waits_for_a_checkpoint_and_the_sweep_goes_on_from_it(tmp_path):
    task = make("everything")

    def interrupt(label, run, runs, share):
        if run == 2 and share > 0.5:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        sweep(task, VARIANTS, [0, 1], SWITCH, tmp_path, workers=1, on_progress=interrupt)
    (begun,) = [path for path in tmp_path.iterdir() if not (path / "trajectory.npz").exists()]
    assert (begun / "checkpoint.pt").exists()
    shares = []
    resumed = sweep(task, VARIANTS, [0, 1], SWITCH, tmp_path, workers=1, on_progress=lambda *said: shares.append(said))
    assert shares[0][1] == 2
    assert shares[0][3] > 0.5
    equal(resumed, sweep(task, VARIANTS, [0, 1], SWITCH))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def names(folder):
    return {"warm": next(folder.glob("*/checkpoint.pt")).parent.name, "run": next(folder.glob("b-16-s*")).name}


@pytest.mark.parametrize("what", ["warm", "run"])
def test_a_run_that_another_process_makes_is_waited_for_and_read(tmp_path, what):
    asked = make(), [Variant(4)], [0], SWITCH
    made = sweep(*asked, tmp_path / "made", workers=1)
    places = names(tmp_path / "made")
    before = ["warm", "run"][: ["warm", "run"].index(what)]
    for name in before:
        shutil.copytree(tmp_path / "made" / places[name], tmp_path / "new" / places[name])
    held, told = ExitStack(), []
    assert held.enter_context(locked(tmp_path / "new" / places[what] / ".lock"))

    def finish(label, run, runs, share):
        told.append(share)
        if len(told) == 3:  # as the other process would
            shutil.copytree(tmp_path / "made" / places[what], tmp_path / "new" / places[what], dirs_exist_ok=True)
            held.close()

    equal(sweep(*asked, tmp_path / "new", workers=1, on_progress=finish), made)
    assert told[:3] == [0, 0, 0]
    assert (len(told) == 3) == (what == "run"), "after a warm start, the run itself is made"


def test_a_run_that_another_process_makes_is_an_error_where_it_is_not_to_be_waited_for(tmp_path):
    asked = make(), [Variant(4)], [0], SWITCH
    sweep(*asked, tmp_path / "made", workers=1)
    places = names(tmp_path / "made")
    with (
        locked(tmp_path / "new" / places["run"] / ".lock"),
        pytest.raises(BusyError, match=f"another process is making {places['run']}"),
    ):
        sweep(*asked, tmp_path / "new", workers=1, wait=False)
    assert (tmp_path / "new" / places["warm"] / "trajectory.npz").exists()
    sweep(*asked, tmp_path / "new", workers=1, wait=False)
    assert finished(*asked, tmp_path / "new")


def test_waiting_for_another_process_can_be_interrupted(tmp_path):
    asked = make(), [Variant(4)], [0], SETTINGS
    sweep(*asked, tmp_path / "made", workers=1)
    (place,) = (tmp_path / "made").iterdir()
    with locked(tmp_path / "new" / place.name / ".lock"), pytest.raises(KeyboardInterrupt):
        sweep(*asked, tmp_path / "new", workers=1, on_progress=lambda *said: os.kill(os.getpid(), signal.SIGINT))
    assert not finished(*asked, tmp_path / "new")


def test_whether_a_sweep_is_finished_is_known_without_running_it(tmp_path):
    asked = (make(), VARIANTS[:2], [0, 1, 2], SWITCH, tmp_path)
    assert not finished(*asked, together=2)
    assert not list(tmp_path.iterdir())
    sweep(*asked, together=2, workers=1)
    assert finished(*asked, together=2)
    assert not finished(*asked, together=3)
    assert not finished(make(), VARIANTS[:3], *asked[2:], together=2)
    for path in tmp_path.rglob("trajectory.npz"):  # the warm starts are runs too
        path.rename(path.with_suffix(".away"))
        assert not finished(*asked, together=2)
        path.with_suffix(".away").rename(path)


def test_without_variants_a_sweep_makes_the_warm_starts(tmp_path):
    made = sweep(make(), (), [0, 1], SWITCH, tmp_path, workers=1)
    assert made.trajectories == {}
    assert made.warm.replicas == 2
    assert finished(make(), (), [0, 1], SWITCH, tmp_path)
    (place,) = tmp_path.iterdir()
    assert (place / "checkpoint.pt").exists()
    equal(sweep(make(), VARIANTS, [0, 1], SWITCH, tmp_path, workers=1), sweep(make(), VARIANTS, [0, 1], SWITCH))


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


@pytest.mark.parametrize("kind", ["adam", "everything"])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_models_that_are_kept_are_those_at_the_end_of_a_run(tmp_path, kind, workers):
    task, variants = make(kind), [Variant(), Variant(4)]
    found = sweep(task, variants, [0, 1, 2], SETTINGS, tmp_path, together=2, workers=workers, keep_models=True)
    for variant in variants:
        for seeds in ([0, 1], [2]):
            run = Run(task, variant, seeds, SETTINGS)
            run.finish()
            for r, seed in enumerate(seeds):
                path, replica = found.models[variant, seed]
                assert path.parent.parent == tmp_path
                same({0: torch.load(path, weights_only=True)[replica]}, {0: dict(run.learner.replica(r).state_dict())})
    assert not list(tmp_path.rglob("checkpoint.pt"))


def test_the_models_of_an_interrupted_sweep_are_those_of_one_that_was_not(tmp_path):
    task = make("everything")

    def interrupt(label, run, runs, share):
        if run == 2 and share > 0.5:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        sweep(task, VARIANTS, [0, 1], SWITCH, tmp_path / "cut", workers=1, keep_models=True, on_progress=interrupt)
    cut, whole = (sweep(task, VARIANTS, [0, 1], SWITCH, tmp_path / name, keep_models=True) for name in ("cut", "whole"))
    assert len(cut.models) == 2 * len(VARIANTS)
    same(learned(cut), learned(whole))


@pytest.mark.parametrize("settings", [SETTINGS, SWITCH])
def test_models_can_be_asked_for_later(tmp_path, settings):
    before = sweep(make(), VARIANTS, [0, 1], settings, tmp_path, workers=1)
    assert before.models == {}
    assert not list(tmp_path.rglob("model.pt"))
    assert finished(make(), VARIANTS, [0, 1], settings, tmp_path)
    assert not finished(make(), VARIANTS, [0, 1], settings, tmp_path, keep_models=True)
    after = sweep(make(), VARIANTS, [0, 1], settings, tmp_path, workers=1, keep_models=True)
    equal(after, before)
    assert finished(make(), VARIANTS, [0, 1], settings, tmp_path, keep_models=True)
    same(learned(after), learned(sweep(make(), VARIANTS, [0, 1], settings, tmp_path / "new", keep_models=True)))
    changed = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    sweep(make(), VARIANTS, [0, 1], settings, tmp_path, workers=1, keep_models=True)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == changed, "they are there now"


def test_a_model_is_made_from_the_last_checkpoint_where_there_is_one(tmp_path):
    run = Run(make(), Variant(), [0], SETTINGS)
    run.finish()
    sweep(make(), [Variant()], [0], SETTINGS, tmp_path)
    (place,) = tmp_path.iterdir()
    torch.save(run.state_dict(), place / "checkpoint.pt")
    shares = []
    found = sweep(
        make(), [Variant()], [0], SETTINGS, tmp_path, workers=1, keep_models=True,
        on_progress=lambda *said: shares.append(said),
    )  # fmt: skip
    assert not shares, "no step was made"
    same(learned(found), {(Variant(), 0): dict(run.learner.replica(0).state_dict())})


def test_what_diverged_has_no_model_and_is_not_run_again_for_one(tmp_path):
    settings = replace(SETTINGS, setup=Setup(max_loss=1e-9))
    found = sweep(make(), [Variant()], [0, 1], settings, tmp_path, workers=1, keep_models=True)
    assert found.models == {}
    assert not list(tmp_path.rglob("model.pt"))
    shares = []
    sweep(
        make(), [Variant()], [0, 1], settings, tmp_path, workers=1, keep_models=True,
        on_progress=lambda *said: shares.append(said),
    )  # fmt: skip
    assert not shares


def test_a_run_of_which_some_replicas_diverged_has_the_models_of_the_others(tmp_path):
    start = sweep(make(), [Variant()], [0, 1], SETTINGS).trajectories[Variant()].values["train loss"][:, 0]
    settings = replace(SETTINGS, setup=Setup(max_loss=float(start.mean())))
    found = sweep(make(), [Variant()], [0, 1], settings, tmp_path, keep_models=True)
    kept = int(start.argmin())
    ((key, (path, replica)),) = found.models.items()
    assert key == (Variant(), kept)
    models = torch.load(path, weights_only=True)
    assert replica == kept
    assert models[kept] is not None
    assert models[1 - kept] is None


def test_a_sweep_can_run_outside_the_main_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(sweep(make(), [Variant()], [0], SETTINGS)))
    thread.start()
    thread.join()
    assert len(found) == 1


def test_mistakes_are_explained():
    with pytest.raises(ValueError, match=r"seeds must differ from each other, got \[0, 0\]"):
        sweep(make(), VARIANTS, [0, 0], SETTINGS)
    with pytest.raises(ValueError, match="models are kept in the folder of the runs: give one"):
        sweep(make(), VARIANTS, [0], SETTINGS, keep_models=True)
    with pytest.raises(ValueError, match="variants must differ"):
        sweep(make(), [Variant(4), Variant(4)], [0], SETTINGS)
