import importlib
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
from problems import PLANS, make, mlp_batchnorm
from torch import nn

from rootscale import SGD, Adam, Plan
from rootscale.cli import main
from rootscale.lab import Check, Settings, Variant, check, load_task
from rootscale.lab.pool import available, run_all
from rootscale.paper.tasks import digits

lab_check = importlib.import_module("rootscale.lab.check")  # the package has a function of that name

TASK = """
import torch
from torch import nn
from rootscale import Adam, Plan
from rootscale.lab import Task

x, y = torch.randn(100, 5, generator=torch.Generator().manual_seed(0)), torch.arange(100) % 3
task = Task(
    "mine <b>", plan=Plan(Adam(eta=1e-3, beta1=0.98), batch_size=4, steps=200), model=lambda: nn.Linear(5, 3),
    loss=lambda outputs, y: nn.functional.cross_entropy(outputs, y, reduction="none"), train=(x[:80], y[:80]),
)

def made():
    return task

wrong = 3
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A check of a small task: the rule, a wrong rule and SVAG."""
    folder = tmp_path_factory.mktemp("check")
    wrong = Variant(8, "none", name="nothing")
    return check(make(), [2], ells=[2], seeds=6, switch_at=200, variants=[wrong], points=6, folder=folder), folder


def test_a_check_compares_every_arm_with_the_base(small):
    found, _ = small
    assert [arm.label for arm in found.others] == ["B = 8", "SVAG ell = 2", "nothing"]
    assert found.base.label == "B = 4"
    assert found.base.comparison is None
    for arm in found.others:
        assert arm.comparison.deciding == ("train loss", "test loss")
        assert {"test accuracy", "train accuracy", "gradient norm", "Tr Sigma", "parameter norm"} < set(
            arm.comparison.gaps
        )
        assert arm.comparison.paired
    assert found["B = 8"].changes["kappa"] == 2
    assert found["SVAG ell = 2"].changes is None
    assert found["SVAG ell = 2"].plan.steps == 4 * PLANS["adam"].steps
    assert found.switch_at == 200
    assert found.warm.meta["samples"][-1] == 200


def test_a_check_is_kept_whole_and_read_again(small):
    found, folder = small
    again = Check.load(folder)
    assert again.verdict == found.verdict
    assert [arm.label for arm in again.others] == [arm.label for arm in found.others]
    for one, other in zip((found.base, *found.others), (again.base, *again.others), strict=True):
        assert (one.guards, one.causes, one.plan, one.verdict) == (
            other.guards,
            other.causes,
            other.plan,
            other.verdict,
        )
        for name in one.trajectory.names:
            assert np.array_equal(one.trajectory.values[name], other.trajectory.values[name])
    record = json.loads((folder / "check.json").read_text())
    assert {"command", "versions", "hardware", "seeds", "seconds"} <= set(record["made"])


def test_the_rule_is_the_same_and_a_wrong_one_different_on_digits():
    wrong = Variant(4, "none")
    found = check(digits(samples=18_000), [4], seeds=8, switch_at=12_000, variants=[wrong], points=10)
    assert found["B = 16"].verdict == "same"
    assert found["B = 16, none"].verdict == "different"
    assert found.verdict == "different"
    assert "rule 'none' does not convert eta, beta1, beta2, eps" in found["B = 16, none"].causes[0]


def test_from_scratch_the_noise_does_not_dominate_and_the_check_says_so():
    found = check(digits(samples=12_800), [16], seeds=8, points=8)
    arm = found["B = 64"]
    assert arm.verdict == "different"
    assert "noise dominates " in arm.causes[0]
    assert "and the batch is 64" in arm.causes[0]


def test_causes_name_batchnorm_few_steps_and_guards():
    plan = Plan(Adam(2e-3, 0.96, 0.99), batch_size=4, steps=300, batchnorm_momentum=0.1)
    found = check(make(plan, mlp_batchnorm), [16], seeds=6, points=5, tolerance=1e-3)
    causes = "\n".join(found["B = 64"].causes)
    assert "BatchNorm normalises with the statistics of the batch: those of 4 samples make another model" in causes
    assert "only 19 steps are left after the change" in causes
    assert "kappa * (1 - beta1) = 0.64" in causes


def test_a_check_without_a_known_cause_says_how_far_one_may_go():
    found = check(digits(samples=12_800), [16], seeds=6, points=6, noise=False)
    assert "gradient norm" not in found.base.trajectory.names
    (cause,) = found["B = 64"].causes
    assert "none of the known causes is seen" in cause
    largest = max(abs(gap.largest.gap) for gap in found["B = 64"].comparison.decisive)
    assert f"kappa = {1 + 15 * 0.05 / largest:.2g} may be within the tolerance" in cause


def test_divergence_is_a_difference():
    task = replace(
        make(Plan(SGD(eta=0.01), batch_size=4, steps=600), lambda: nn.Linear(6, 3).double()),
        loss=lambda outputs, y: (outputs - nn.functional.one_hot(y, 3)).square().sum(-1),
    )
    found = check(task, [64], seeds=6, points=4)
    arm = found["B = 256"]
    assert arm.comparison.diverged == (6, 0)
    assert arm.verdict == "different"
    assert arm.causes[0].startswith("6 of 6 runs diverged, the first after ")


def test_users_choose_what_decides(small):
    found = check(make(), [2], seeds=6, points=4, functions=["parameter norm"])
    assert found["B = 8"].comparison.deciding == ("parameter norm",)
    with pytest.raises(ValueError, match="the verdict cannot rest on 'loss'; there are 'train loss'"):
        check(make(), [2], seeds=6, points=4, functions=["loss"])


@pytest.fixture
def forks():
    if not available():
        pytest.skip("this process cannot be forked: a test before this one has loaded JAX")


@pytest.mark.usefixtures("forks")
def test_processes_give_what_one_gives(tmp_path):
    alone = check(make(), [2, 4], seeds=6, switch_at=200, points=5, together=3, workers=1)
    pooled = check(make(), [2, 4], seeds=6, switch_at=200, points=5, together=3, workers=2, folder=tmp_path)
    for one, other in zip(alone.others, pooled.others, strict=True):
        for name in one.trajectory.names:
            assert np.array_equal(one.trajectory.values[name], other.trajectory.values[name])


@pytest.mark.usefixtures("forks")
def test_the_error_of_a_process_reaches_the_user():
    def broken():
        raise ValueError("no such weights")

    def job(tell, stop):
        broken()

    with pytest.raises(ValueError, match="no such weights"):
        run_all([job, lambda tell, stop: stop.wait(20)], 2, lambda number, share: None, threading.Event())

    def dies(tell, stop):
        os._exit(7)

    with pytest.raises(RuntimeError, match="died with exit code 7"):
        run_all([dies], 2, lambda number, share: None, threading.Event())


def test_mistakes_are_explained():
    with pytest.raises(ValueError, match="nothing to compare: give kappas, ells or variants"):
        check(make())
    with pytest.raises(ValueError, match="at least 4 seeds are needed for a verdict, got 3"):
        check(make(), [2], seeds=3)
    with pytest.raises(ValueError, match="switch_at must lie in the run of 600 samples, got 600"):
        check(make(), [2], switch_at=600)
    with pytest.raises(ValueError, match="stop must lie in the run of 600 samples, got 700"):
        check(make(), [2], stop=700)
    with pytest.raises(KeyError, match="no arm 'x'; there are"):
        check(make(), [2], seeds=4, points=3)["x"]


# -- on the command line ---------------------------------------------------------------------------------------------


@pytest.fixture
def task_file(tmp_path):
    (tmp_path / "mine.py").write_text(TASK)
    return tmp_path / "mine.py"


def test_the_command_runs_a_users_file_and_goes_on_where_it_was(task_file, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["check", f"{task_file}:made", "--to", "8", "--seeds", "4", "--points", "4", "--out", str(out)]
    code = main([*words, "--workers", "1", "--tolerance", "0.9"])
    text = capsys.readouterr()
    assert code == 0
    assert "mine <b>: runs from scratch, each compared with B = 4 (4 seeds each)" in text.out
    assert "same" in text.out
    assert "finished B = 8 (2 of 2)" in text.err
    assert str(out / "report.html") in text.out.replace("\n", "")
    before = {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("trajectory.npz")}
    assert len(before) == 2
    assert main([*words, "--workers", "1", "--tolerance", "1e-6"]) in (1, 3)
    assert {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("trajectory.npz")} == before
    assert "<b>" not in (out / "report.html").read_text(encoding="utf-8").split("<h1", 1)[1].split("</h1>")[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("{file}:nothing --to 8", "has no 'nothing'; its tasks are task"),
        ("{file}:wrong --to 8", "must be a rootscale.lab.Task or a function that makes one, got int"),
        ("{file}x.py:task --to 8", "there is no file"),
        ("no_such_module:task --to 8", "cannot import 'no_such_module'"),
        ("{file}:task", "nothing to compare"),
        ("{file}:task --to 8 --switch-at soon", "--switch-at takes samples or a share such as 25%, got 'soon'"),
        ("{file}:task --to 8 --keep nothing", "rule 'sqrt' has no row 'nothing' to leave out"),
        ("{file}:task --to 8 --seeds 2", "at least 4 seeds are needed"),
        ("{file}:task --to 8 --eval-samples 0", "eval_samples must be at least 1, got 0"),
        ("{file}:task --to 8 --micro -1", "micro must be at least 1, got -1"),
        ("{file}:task --to 8 --points 0", "points must be at least 1, got 0"),
        ("{file}:task --to 8 --switch-at inf", "--switch-at takes samples or a share such as 25%, got 'inf'"),
        ("{file}:task --to 8 --device gpu", "device must be one of torch, such as cpu or cuda, got 'gpu'"),
        ("{file}:task --to 8 --level 95", "a level between 0 and 1, got 0.05 and 95"),
        ("{file}:task --to 8 --decide-by loss", "the verdict cannot rest on 'loss'"),
        ("{file}:task --to 8 --report nowhere/x.html", "there is no folder nowhere for the report"),
    ],
)
def test_mistakes_end_in_one_line(task_file, tmp_path, capsys, words, message):
    assert main(["check", *words.format(file=task_file).split(), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_share_of_the_run_is_a_switch(task_file, tmp_path, capsys):
    words = ["check", f"{task_file}:task", "--to", "8", "--seeds", "4", "--points", "3", "--workers", "1"]
    more = ["--eval-samples", "7", "--micro", "3"]
    main([*words, *more, "--switch-at", "25%", "--stop", "50%", "--out", str(tmp_path / "out")])
    assert "runs switched after 200 samples" in capsys.readouterr().out
    for path in (tmp_path / "out" / "runs").rglob("run.json"):
        settings = json.loads(path.read_text())["settings"]
        assert (settings["eval_samples"], settings["micro"]) == (7, 3)
    assert Check.load(tmp_path / "out").base.trajectory.meta["samples"][-1] == 400


def test_ready_made_tasks_have_short_names():
    assert load_task("rootscale.paper.tasks:digits").name == "digits"


def test_tensorboard_gets_every_point_once_also_after_a_resume(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from rootscale.lab import Settings, sweep

    def stop(label, run, runs, share):
        if share > 0.5:
            raise RuntimeError("stopped")

    settings = Settings(grid=(0, 160, 320, 480))
    with pytest.raises(RuntimeError, match="stopped"):
        sweep(
            make(),
            [Variant()],
            [0, 1],
            settings,
            tmp_path,
            workers=1,
            tensorboard=True,
            checkpoint_every=0,
            on_progress=stop,
        )
    found = sweep(make(), [Variant()], [0, 1], settings, tmp_path, tensorboard=True).trajectories[Variant()]
    (place,) = tmp_path.iterdir()
    events = accumulator.EventAccumulator(str(place))
    events.Reload()
    scalars = sorted(events.Scalars("train loss"), key=lambda event: event.step)  # two files within one second
    assert [event.step for event in scalars] == [0, 160, 320, 480]
    assert [event.value for event in scalars] == pytest.approx(found["train loss"].mean, rel=1e-6)


@pytest.mark.slow
def test_the_demo_says_what_it_found(tmp_path):
    command = [sys.executable, "-m", "rootscale", "demo", "--seeds", "4", "--out", str(tmp_path / "demo")]
    found = subprocess.run([*command, "--workers", "1"], capture_output=True, text=True, check=True)
    assert "the square root rule" in found.stdout
    assert "noise scale" in found.stdout
    assert (tmp_path / "demo" / "report.html").exists()


def test_what_is_refused_is_refused_before_anything_is_run(monkeypatch):
    monkeypatch.setattr(lab_check, "sweep", lambda *args, **kwargs: pytest.fail("a run was made"))
    task = make()
    for options, message in (
        ({"level": 95}, "need a tolerance above 0 and a level between 0 and 1, got 0.05 and 95"),
        ({"tolerance": 0.0}, "need a tolerance above 0"),
        ({"functions": ["loss"]}, "the verdict cannot rest on 'loss'; there are 'train loss'"),
        (
            {"variants": [Variant(2, "with power", name="B = 8")]},
            "two runs are called 'B = 8': give one of the variants a name",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            check(task, [2], seeds=4, points=4, **options)


def test_a_function_that_does_not_move_is_left_out_and_the_check_goes_on():
    found = check(replace(make(), functions={"three": lambda model: 3.0}), [2], seeds=4, points=4)
    assert "three" not in found["B = 8"].comparison.gaps
    assert any("three" in note and "flat" in note for note in found["B = 8"].comparison.notes)


def test_damaged_files_of_runs_are_named(tmp_path):
    check(make(), [2], seeds=4, points=4, switch_at=200, folder=tmp_path, workers=1)
    for name in ("trajectory.npz", "checkpoint.pt"):
        (start,) = (path.parent for path in (tmp_path / "runs").glob("*/checkpoint.pt"))
        damaged = start / name
        kept = damaged.read_bytes()
        damaged.write_bytes(b"")
        with pytest.raises(ValueError, match=rf"{name} is .*damaged: .*; remove it, and the run is made again"):
            check(make(), [2, 4], seeds=4, points=4, switch_at=200, folder=tmp_path, workers=1)
        damaged.write_bytes(kept)


def test_a_base_that_diverges_is_a_cause_and_gives_no_advice():
    found = check(make(), [2], seeds=6, points=4)
    arm, base = found["B = 8"], found.base.trajectory
    lost = replace(base, meta={**base.meta, "diverged_at": [40, None, 40, None, None, None]})
    causes = list(lab_check._causes(make(), Variant(2), arm, lost, Settings(grid=(0, 4))))
    assert "2 of 6 runs of the base diverged" in causes
    gaps = {name: replace(gap, gap=0 * gap.gap) for name, gap in arm.comparison.gaps.items()}
    assert list(lab_check._otherwise(Variant(4), replace(arm.comparison, gaps=gaps))) == []
