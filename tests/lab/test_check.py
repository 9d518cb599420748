"""The check: its verdicts and causes, what is saved, and the command."""

import json
import multiprocessing
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from problems import PLANS, make, mlp_batchnorm
from swept import sweep
from torch import nn

from rootscale import SGD, Adam, Plan
from rootscale.cli import main
from rootscale.cli.run_check import folder_name
from rootscale.lab import (
    Forked,
    Here,
    Judge,
    Measure,
    Observer,
    Settings,
    Store,
    Table,
    Variant,
    causes,
    check,
    study,
)
from rootscale.lab.execute import can_fork
from rootscale.lab.task import load_task
from rootscale.lab.tasks import digits

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
HERE = Here()

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


def points(n, **more):
    return {"measure": Measure(points=n, **more), "execute": HERE}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A check of a small task: the rule, SVAG and a wrong rule."""
    folder = tmp_path_factory.mktemp("check")
    variants = [2, Variant(ell=2), Variant(8, "none", name="nothing")]
    return check(make(), variants, seeds=6, switch_at=200, **points(6), store=folder), folder


@pytest.fixture(scope="module")
def scratch():
    """The digits from scratch, at 16 times the batch size."""
    return check(digits(samples=6_400), [16], seeds=4, **points(4))


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
    with pytest.raises(KeyError, match="no arm 'x'; there are"):
        found["x"]


def test_the_rule_is_the_same_and_a_wrong_one_different_on_digits():
    found = check(digits(samples=6_000), [4, Variant(4, "none")], seeds=5, switch_at=4_000, **points(4, noise=False))
    assert found["B = 16"].verdict == "same"
    assert found["B = 16, none"].verdict == "different"
    assert found.verdict == "different"
    assert found["B = 16, none"].causes[0].startswith("not converted: the learning rate, beta1, beta2, eps")


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        ("sqrt-eta", ["not converted: beta1, beta2, eps and the optimizer's state"]),
        (
            "linear",
            [
                "not converted: eps and the optimizer's state",
                "converted by another power than the sqrt rule has: the learning rate",
            ],
        ),
    ],
)
def test_a_wrong_rule_is_told_by_what_it_converts_otherwise(rule, left):
    task = digits(samples=2_000)
    found = check(task, [Variant(4, rule)], seeds=2, switch_at=1_000, **points(2, noise=False))
    settings = Settings(grid=[1_000, 2_000], switch_at=1_000)
    told = causes.causes_of(task, Variant(4, rule), found.others[0], found.base.trajectory, settings)
    assert list(told[: len(left)]) == left


def test_from_scratch_the_noise_hardly_dominates_and_the_check_says_so(scratch):
    arm = scratch["B = 64"]
    assert arm.verdict == "different"
    assert "noise dominates all along, but by a factor of only" in arm.causes[0]
    assert "and the batch is 64" in arm.causes[0]


def test_a_check_without_a_known_cause_says_how_far_one_may_go(scratch):
    base = scratch.base.trajectory
    unknown = replace(base, values={name: v for name, v in base.values.items() if name != "noise scale"})
    arm = scratch["B = 64"]
    (cause,) = causes.causes_of(digits(samples=6_400), Variant(16), arm, unknown, Settings(grid=(0, 6_400)))
    assert "none of the known causes is seen" in cause
    largest = max(abs(gap.largest.gap) for gap in arm.comparison.decisive)
    assert f"kappa = {1 + 15 * 0.05 / largest:.2g} may be within the tolerance" in cause


def test_causes_name_batchnorm_few_steps_and_guards():
    plan = Plan(Adam(2e-3, 0.96, 0.99), batch_size=4, steps=300, batchnorm_momentum=0.1)
    variant = Variant(16, "with paper", name="B = 64")
    found = check(make(plan, mlp_batchnorm), [variant], seeds=4, **points(5), judge=Judge(tolerance=1e-3))
    text = "\n".join(found["B = 64"].causes)
    assert "BatchNorm normalises with the statistics of the batch: those of 4 samples make another model" in text
    assert "only 19 steps are left after the change" in text
    assert "kappa * (1 - beta1) = 0.64" in text


def test_divergence_is_a_difference():
    task = replace(
        make(Plan(SGD(eta=0.01), batch_size=4, steps=600), lambda: nn.Linear(6, 3).double()),
        loss=lambda outputs, y: (outputs - nn.functional.one_hot(y, 3)).square().sum(-1),
    )
    found = check(task, [64], seeds=6, **points(4))
    arm = found["B = 256"]
    assert arm.comparison.diverged == (6, 0)
    assert arm.verdict == "different"
    assert arm.causes[0].startswith("6 of 6 runs diverged, the first after ")


def test_a_base_that_diverges_is_a_cause_and_gives_no_advice(small):
    found, _ = small
    arm, base = found["B = 8"], found.base.trajectory
    lost = replace(base, meta={**base.meta, "diverged_at": [40, None, 40, None, None, None]})
    assert "2 of 6 runs of the base diverged" in causes.causes_of(make(), Variant(2), arm, lost, Settings(grid=(0, 4)))
    gaps = {name: replace(gap, gap=0 * gap.gap) for name, gap in arm.comparison.gaps.items()}
    assert list(causes._advice(Variant(4), replace(arm.comparison, gaps=gaps))) == []


def test_users_choose_what_decides_and_a_function_that_does_not_move_is_left_out():
    task = replace(make(), functions={"three": lambda model: 3.0})
    found = check(task, [2], seeds=4, **points(4), judge=Judge(decide_by=["parameter norm"]))
    assert found["B = 8"].comparison.deciding == ("parameter norm",)
    assert "three" not in found["B = 8"].comparison.gaps
    assert any("three" in note and "flat" in note for note in found["B = 8"].comparison.notes)


@pytest.mark.skipif(not can_fork(), reason="this process cannot be forked: JAX is loaded")
def test_processes_give_what_one_gives():
    options = {"seeds": 4, "switch_at": 80, "stop": 240, "measure": Measure(points=3)}
    alone, pooled = (check(make(), [2], **options, execute=execute) for execute in (Here(together=2), Forked(2)))
    one, other = alone["B = 8"].trajectory, pooled["B = 8"].trajectory
    for name in one.names:
        assert one.values[name] == pytest.approx(other.values[name], rel=1e-9), name


def test_mistakes_are_explained_before_anything_is_run(monkeypatch):
    monkeypatch.setattr(study, "make", lambda *args, **kwargs: pytest.fail("a run was made"))
    for variants, options, message in (
        ([], {}, r"nothing to compare: give a batch size that is not the plan's \(a kappa, or a Variant\)"),
        ([1], {}, "nothing to compare"),
        ([2], {"seeds": 1}, r"at least 2 different seeds are needed for a verdict, got \[0\]"),
        ([2], {"switch_at": 600}, "switch_at must lie in the run of 600 samples, got 600"),
        ([2], {"stop": 700}, "stop must lie in the run of 600 samples, got 700"),
        ([2], {"judge": Judge(decide_by=["loss"])}, "the verdict cannot rest on 'loss'; there are 'train loss'"),
        ([2, Variant(2, "sqrt", name="B = 8")], {}, "two arms are called 'B = 8': give one of them another label"),
    ):
        with pytest.raises(ValueError, match=message):
            check(make(), variants, **options)
    with pytest.raises(ValueError, match=r"need a tolerance above 0 and a level between 0 and 1, got 0\.05 and 95"):
        Judge(level=95)
    with pytest.raises(ValueError, match="need a tolerance above 0"):
        Judge(tolerance=0.0)


def test_damaged_files_of_runs_are_named(small, tmp_path):
    task = make()
    options = {"seeds": 4, "switch_at": 200, **points(4), "store": Store(tmp_path)}
    check(task, [2], **options)
    (start,) = (path.parent for path in (tmp_path / "runs").glob("*/*/checkpoint.pt"))
    for name in ("trajectory.npz", "checkpoint.pt"):
        kept = (start / name).read_bytes()
        (start / name).write_bytes(b"")
        with pytest.raises(ValueError, match=rf"{name} is .*damaged: .*; remove it, and the run is made again"):
            check(task, [2, 4], **options)
        (start / name).write_bytes(kept)


# -- what is saved ---------------------------------------------------------------------------------------------------


def test_a_check_is_kept_whole_and_read_again(small):
    found, folder = small
    again = Table.load(folder)
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
    assert {"command", "versions", "hardware", "seeds", "seconds"} <= set(again.made)
    assert [arm.factors for arm in again.others] == [arm.factors for arm in found.others]
    assert [arm.comparison.to_dict() for arm in again.others] == [arm.comparison.to_dict() for arm in found.others]


def test_a_table_without_its_comparisons_makes_them_again(small, tmp_path):
    found, folder = small
    path = found.save(tmp_path / "small.npz", comparisons=False)
    assert path.stat().st_size < (folder / "table.npz").stat().st_size
    again = Table.load(path)
    assert [arm.comparison.to_dict() for arm in again.others] == [arm.comparison.to_dict() for arm in found.others]


def test_a_table_has_a_row_for_each_arm_seed_time_and_function(small):
    found, _ = small
    rows = list(found.records())
    runs = found.others[0].trajectory
    sides = (found.base, *found.others)
    assert len(rows) == sum(one.trajectory.values[name].size for one in sides for name in runs.names)
    (row,) = [
        row
        for row in rows
        if (row["arm"], row["seed"], row["function"]) == (found.others[0].label, 1, "train loss")
        and row["time"] == runs.times[-1]
    ]
    assert row["value"] == runs.values["train loss"][runs.meta["seeds"].index(1), -1]
    assert row["kappa"] == str(found.others[0].factors["kappa"])


def test_a_check_that_is_saved_again_leaves_nothing_of_the_old_one(small, tmp_path):
    found, _ = small
    found.save(tmp_path)
    replace(found, others=found.others[:1], warm=None).save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["table.npz"]
    assert len(Table.load(tmp_path).others) == 1


def _save(check, folder, barrier, times):
    for _ in range(times):
        barrier.wait()
        check.save(folder)


def test_of_two_checks_that_are_saved_at_once_one_remains_whole_and_readers_see_one(small, tmp_path):
    if not can_fork():
        pytest.skip("this process cannot be forked: JAX is loaded")
    found, _ = small
    one = replace(found, task="one", others=found.others[:1])
    shifted = {name: values + 1 for name, values in found.base.trajectory.values.items()}
    other = replace(
        found, task="other", base=replace(found.base, trajectory=replace(found.base.trajectory, values=shifted))
    )
    expected = {"one": found.base.trajectory.values["train loss"], "other": shifted["train loss"]}
    one.save(tmp_path)
    context, times = multiprocessing.get_context("fork"), 8
    barrier = context.Barrier(2)
    saving = [context.Process(target=_save, args=(check, tmp_path, barrier, times)) for check in (one, other)]
    for process in saving:
        process.start()
    reads = 0
    while any(process.is_alive() for process in saving) or not reads:
        read = Table.load(tmp_path)
        assert len(read.others) == (1 if read.task == "one" else 3)
        assert np.array_equal(read.base.trajectory.values["train loss"], expected[read.task])
        reads += 1
    for process in saving:
        process.join()
        assert process.exitcode == 0
    assert len(Table.load(tmp_path).others) in (1, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: [], "expected an object with 'arms', got list"),
        (lambda record: {}, "'arms' is missing; expected a list"),
        (lambda record: {**record, "arms": []}, "'arms' must have at least the base, got none"),
        (lambda record: {**record, "arms": [3]}, "expected an object with 'runs', got int"),
        (lambda record: {**record, "switch_at": "soon"}, "'switch_at' must be a whole number, got \"soon\""),
        (lambda record: {**record, "made": None}, "'made' must be an object, got null"),
        (
            lambda record: {**record, "arms": [{**record["arms"][0], "plan": {"a": 1}}]},
            "'plan' is not one that was saved",
        ),
        (
            lambda record: {**record, "arms": [{**record["arms"][1], "comparison": {"gaps": 1}}]},
            "'comparison' is not one that was saved",
        ),
        (lambda record: {**record, "judge": {"tolerance": -1}}, "'judge' is not one that was saved"),
    ],
)
def test_wrong_content_of_a_saved_check_is_named_in_one_line(small, tmp_path, change, message, capsys):
    path = small[0].save(tmp_path)
    with np.load(path) as file:
        arrays = dict(file)
    arrays["table"] = np.array(json.dumps(change(json.loads(str(arrays["table"])))))
    np.savez_compressed(path, **arrays)
    assert main(["report", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert f"{path} " in error
    assert message in error
    assert error.count("\n") == 1


def test_what_is_no_table_is_no_saved_table(tmp_path):
    for raw in (b"{", b"\xff\xfe"):
        (tmp_path / "table.npz").write_bytes(raw)
        with pytest.raises(ValueError, match=r"table.npz is not a saved table, or is damaged: no whole .npz file"):
            Table.load(tmp_path)
    np.savez(tmp_path / "table.npz", other=np.zeros(3))
    with pytest.raises(ValueError, match="it has no table"):
        Table.load(tmp_path)


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
    assert "finished B = 8 (8 of 8 runs done, 100 %)" in text.err
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
        ("{file}:task", "nothing to compare with batch size 4: give others with --to, or SVAG with --ell; for example"),
        ("{file}:task --to 4 --ell 1", "nothing to compare with batch size 4"),
        ("fm --to 64", "TASK must be file.py:name, module:name, or one of digits, mnist; got 'fm'"),
        ("mnist --to 64", "there is no folder to read MNIST from: set the environment variable ROOTSCALE_DATA"),
        ("{file}:task --to 8 --switch-at soon", "--switch-at takes samples or a share such as 25%, got 'soon'"),
        ("{file}:task --to 8 --keep nothing", "rule 'sqrt' has no row 'nothing' to leave out"),
        ("{file}:task --to 8 --seeds 1", "at least 2 different seeds are needed"),
        ("{file}:task --to 8 --eval-samples 0", "eval_samples must be at least 1, got 0"),
        ("{file}:task --to 8 --micro -1", "micro must be at least 1, got -1"),
        ("{file}:task --to 8 --points 0", "points must be at least 1, got 0"),
        ("{file}:task --to 8 --switch-at inf", "--switch-at takes samples or a share such as 25%, got 'inf'"),
        ("{file}:task --to 8 --device gpu", "device must be one of torch, such as cpu or cuda, got 'gpu'"),
        pytest.param(
            "{file}:task --to 8 --device cuda",
            "there is no device cuda for torch",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
        ),
        (
            "{file}:task --to 8 --batch-size 2",
            "--batch-size does nothing for a Task, only for a training function or --command",
        ),
        ("{file}:task --to 8 --level 95", "a level between 0 and 1, got 0.05 and 95"),
        ("{file}:task --to 8 --decide-by loss", "the verdict cannot rest on 'loss'"),
        ("{file}:task --to 8 --report nowhere/x.html", "there is no folder nowhere for the report"),
    ],
)
def test_mistakes_end_in_one_line(task_file, tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.delenv("ROOTSCALE_DATA", raising=False)
    assert main(["check", *words.format(file=task_file).split(), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message.replace("{file}", str(task_file)) in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_task_that_fails_in_its_own_program_says_where(tmp_path, capsys):
    path = tmp_path / "fails.py"
    path.write_text(
        "import torch\nfrom rootscale import Adam, Plan\nfrom rootscale.lab import Task\n"
        "x = torch.ones(20, 3)\n"
        "def loss(outputs, y):\n"
        "    return (outputs @ y).sum(1)\n"
        "plan = Plan(Adam(eta=1e-3), batch_size=4, steps=50)\n"
        "task = Task('mine', plan, lambda: torch.nn.Linear(3, 1), loss, (x, x))\n"
    )
    for command in ("check", "largest"):
        assert main([command, f"{path}:task", "--to", "8", "--workers", "1", "--out", str(tmp_path / "out")]) == 2
        said = capsys.readouterr().err
        assert "the task 'mine'" in said
        assert "failed: RuntimeError: " in said
        assert f'{path}", line 6, in loss' in said
        assert "rootscale/lab" not in said


def test_a_share_of_the_run_is_a_switch(task_file, tmp_path, capsys):
    words = ["check", f"{task_file}:task", "--to", "8", "--seeds", "4", "--points", "3", "--workers", "1"]
    more = ["--eval-samples", "7", "--micro", "3"]
    main([*words, *more, "--switch-at", "25%", "--stop", "50%", "--out", str(tmp_path / "out")])
    assert "runs switched after 200 samples" in capsys.readouterr().out
    for path in (tmp_path / "out" / "runs").rglob("run.json"):
        settings = json.loads(path.read_text())["settings"]
        assert (settings["eval_samples"], settings["micro"]) == (7, 3)
    assert Table.load(tmp_path / "out").base.trajectory.meta["samples"][-1] == 400


def test_ready_made_tasks_have_short_names():
    assert load_task("rootscale.lab.tasks:digits").name == "digits"


@pytest.mark.parametrize("name", ["..", "../outside", "/tmp/outside", "a/../../b", ".hidden", "...", ""])
def test_the_folder_of_a_task_lies_in_the_folder_of_runs(name):
    place = (Path("/base/runs") / folder_name(name)).resolve()
    assert place.parent == Path("/base/runs")


def test_rules_on_the_command_line_are_made_of_three_options(task_file, tmp_path, capsys):
    words = ["check", f"{task_file}:task", "--to", "8", "--seeds", "4", "--points", "2", "--stop", "80"]
    rule = ["--rule", "sqrt", "--averaging", "power", "--keep", "beta2", "eps"]
    main([*words, *rule, "--workers", "1", "--out", str(tmp_path / "out")])
    (arm,) = Table.load(tmp_path / "out").others
    assert arm.label == "B = 8, sqrt with power without beta2, eps"
    assert arm.plan.optimizer.beta1 == pytest.approx(0.98**2)
    assert arm.plan.optimizer.beta2 == 0.999


def test_tensorboard_gets_every_point_once_also_after_a_resume(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from rootscale.integrations.trackers import Track

    def stop(label, job, jobs, share):
        if share > 0.5:
            raise RuntimeError("stopped")

    settings = Settings(grid=(0, 160, 320, 480))
    options = {"seeds": [0, 1], "settings": settings, "store": Store(tmp_path, checkpoint_every=0), "execute": HERE}
    with pytest.raises(ValueError, match="RuntimeError: stopped"):
        sweep(make(), [Variant()], **options, observe=Observer(stop, measured=Track("tensorboard")))
    swept = sweep(make(), [Variant()], **options, observe=Observer(measured=Track("tensorboard")))
    found = swept.trajectories[Variant()]
    (place,) = tmp_path.glob("*/*/")
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
