import json
import math
import re
import shlex
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from rootscale import Adam, Plan
from rootscale.cli import main
from rootscale.files import locked
from rootscale.lab import Deadline, Result, Settings, Table, Task, Variant
from rootscale.lab.task import Tensors
from rootscale.paper import entries, pages, parts, results, running, work
from rootscale.paper import experiments as experiments_package
from rootscale.paper import stored as kept_results
from rootscale.paper.data.layouts import Images
from rootscale.paper.experiment import Experiment, Line, Options
from rootscale.paper.experiments import FILES, experiments
from rootscale.paper.finals import SEED_DEVIATION, End, accuracies, final_values, format_gap
from rootscale.paper.work import How, Watch
from rootscale.trajectory import Trajectory

ALL = list(experiments())
#: Those on images; test_reproduce_language.py has the others.
MADE_OF_LINES = [name for name in ALL if name.startswith("cifar10")]
#: Those that compare a part of the run.
PARTS = ("cifar10-svag-adam-warm", "cifar10-svag-rmsprop-warm")


@pytest.fixture
def cifar10(monkeypatch):
    """Something of the size of CIFAR-10 in its place."""

    def zeros(n):
        return Tensors(torch.zeros(n, 3, 8, 8, dtype=torch.uint8), torch.zeros(n, dtype=torch.long))

    images = Images(zeros(50_000), zeros(10_000), tuple("abcdefghij"))
    monkeypatch.setattr(parts, "_cifar10", lambda folder: images)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """The command of the README, run once."""
    place = tmp_path_factory.mktemp("smoke")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert main("reproduce cifar10-vgg16-adam --smoke --out results/cifar10-vgg16-adam".split()) == 0
    return place


RESULTS = Path(__file__).parents[2] / "results"


def tiny(seeds=2, steps=24):
    """An experiment on three clouds of points that takes a moment; what it makes is in one file."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(3, (96,), generator=generator)
    x = torch.randn(96, 5, generator=generator) + y[:, None]
    task = Task(
        "clouds",
        Plan(Adam(1e-2, 0.9, 0.99), batch_size=4, steps=steps),
        partial(torch.nn.Linear, 5, 3),
        partial(torch.nn.functional.cross_entropy, reduction="none"),
        (x[:64], y[:64]),
        (x[64:], y[64:]),
        {"accuracy": lambda outputs, y: (outputs.argmax(-1) == y).float()},
    )

    def lines(options):
        settings = Settings(grid=(32, 64, 96), switch_at=32)
        return [Line("kept", task), Line("doubled", task, Variant(Fraction(2)))], settings

    return Experiment(
        "tiny", "Tiny", "nothing", "nowhere", 0, Options(epochs=1, seeds=seeds), lines, lambda finals: finals[-1].label
    )


def stored(folder):
    check = Table.load(folder)
    return {arm.label: arm.trajectory for arm in (check.base, *check.others)}


def test_smoke_runs_the_whole_path_and_keeps_only_small_files(smoke):
    out = smoke / "results" / "cifar10-vgg16-adam"
    record = json.loads((out / "experiment.json").read_text())
    table = kept_results.finals_of(out)
    assert [final.batch_size for final in table] == [16, 64, 256]
    assert record["missing"] == []
    assert record["command"] == "rootscale reproduce cifar10-vgg16-adam --smoke"
    assert {"versions", "hardware", "seconds", "seeds", "claim", "source"} <= set(record)
    assert 0.15 < table[0].accuracy.value <= 1, "it should learn something"
    assert table[0].accuracy.value == stored(out)["B = 16"].values["test accuracy"][0, -1]
    assert sum(path.stat().st_size for path in out.iterdir()) < 100_000
    assert not list(out.glob("*.pt"))


def test_what_is_finished_is_read_and_not_run_again(smoke, capsys, monkeypatch):
    monkeypatch.chdir(smoke)
    before = stored(smoke / "results" / "cifar10-vgg16-adam")
    words = "reproduce cifar10-vgg16-adam --smoke --seeds 1 --out results/cifar10-vgg16-adam".split()
    assert main(words) == 0
    assert capsys.readouterr().out.count("made before") == 3
    after = stored(smoke / "results" / "cifar10-vgg16-adam")
    for label, trajectory in before.items():
        assert all(np.array_equal(trajectory.values[name], after[label].values[name]) for name in trajectory.names)


def test_results_of_other_settings_are_not_written_over(smoke, capsys, monkeypatch):
    monkeypatch.chdir(smoke)
    assert main("reproduce cifar10-vgg16-adam --smoke --epochs 3 --out results/cifar10-vgg16-adam".split()) == 2
    assert "holds results of other settings (epochs 4): give another --out" in capsys.readouterr().err


def test_stopped_after_some_time_it_resumes_to_the_same_end(tmp_path, monkeypatch):
    whole = running.reproduce(tiny(), Options(epochs=1, seeds=2), tmp_path / "whole", tmp_path / "whole-runs")
    assert whole
    looks = 0

    class Soon(Deadline):
        """Passes after so many looks at it."""

        @property
        def passed(self):
            nonlocal looks
            looks -= 1
            return looks < 0

        @classmethod
        def after(cls, seconds):
            return cls()

    monkeypatch.setattr(running, "Deadline", Soon)
    calls = 0
    while True:
        looks, calls = 15, calls + 1
        if running.reproduce(tiny(), Options(epochs=1, seeds=2), tmp_path / "cut", tmp_path / "cut-runs"):
            break
        assert calls < 50
        if (tmp_path / "cut" / "experiment.json").exists():
            record = json.loads((tmp_path / "cut" / "experiment.json").read_text())
            done = sum(final.seeds for final in kept_results.finals_of(tmp_path / "cut"))
            assert done + len(record["missing"]) == 4
    assert calls > 4
    whole, cut = stored(tmp_path / "whole"), stored(tmp_path / "cut")
    assert list(whole) == list(cut) == ["kept", "doubled"]
    for label, trajectory in whole.items():
        assert trajectory.meta["seeds"] == cut[label].meta["seeds"] == [0, 1]
        for name in trajectory.names:
            assert np.array_equal(trajectory.values[name], cut[label].values[name])
    assert np.array_equal(
        Table.load(tmp_path / "whole").warm.values["train loss"], Table.load(tmp_path / "cut").warm.values["train loss"]
    )


def test_two_seeds_are_compared_and_one_gets_no_verdict(tmp_path):
    for seeds in (1, 2):
        out = tmp_path / str(seeds)
        assert running.reproduce(tiny(), Options(epochs=1, seeds=seeds), out, tmp_path / "runs")
        (arm,) = Table.load(out).others
        assert (arm.verdict in ("same", "different", "undecided")) == (seeds == 2)
    assert list(arm.comparison.deciding) == ["train loss", "test loss"]
    assert "test accuracy" in arm.comparison.gaps


def test_seeds_trained_together_end_as_they_do_alone(tmp_path):
    for together in (1, 3):
        out = tmp_path / str(together)
        assert running.reproduce(tiny(), Options(epochs=1, seeds=4), out, tmp_path / "runs", How(together=together))
    alone, side_by_side = stored(tmp_path / "1"), stored(tmp_path / "3")
    for label, trajectory in alone.items():
        assert side_by_side[label].meta["seeds"] == [0, 1, 2, 3]
        np.testing.assert_allclose(
            side_by_side[label].values["train loss"], trajectory.values["train loss"], rtol=1e-5, atol=1e-6
        )


def test_an_interrupt_keeps_what_is_finished(tmp_path, monkeypatch):
    real = work.sweep

    def sweep(*args, **kwargs):
        if args[1] == [Variant(Fraction(2))]:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(work, "sweep", sweep)
    with pytest.raises(KeyboardInterrupt):
        running.reproduce(tiny(), Options(epochs=1, seeds=1), tmp_path / "out", tmp_path / "runs")
    assert json.loads((tmp_path / "out" / "experiment.json").read_text())["missing"] == ["doubled, seed 0"]
    assert list(stored(tmp_path / "out")) == ["kept"]


def runs_in(folder):
    return sorted(path.parent.parent.name.rpartition("-")[0] for path in folder.rglob("trajectory.npz"))


def test_only_some_lines_are_made_and_all_that_are_finished_are_collected(tmp_path):
    asked = tiny(), Options(epochs=1, seeds=2), tmp_path / "out", tmp_path / "runs"
    assert running.reproduce(*asked, How(only=("doub",)))
    assert not (tmp_path / "out").exists(), "there is no base yet to compare with"
    assert runs_in(tmp_path / "runs") == ["b-4", "b-4", "b-8", "b-8"], "two warm starts, two runs"
    assert running.reproduce(*asked, How(only=("kept",)))
    assert list(stored(tmp_path / "out")) == ["kept", "doubled"]
    assert json.loads((tmp_path / "out" / "experiment.json").read_text())["missing"] == []
    assert running.reproduce(tiny(), asked[1], tmp_path / "alone", tmp_path / "others")
    for label, trajectory in stored(tmp_path / "alone").items():
        assert np.array_equal(stored(tmp_path / "out")[label].values["train loss"], trajectory.values["train loss"])


def test_results_are_completed_without_the_runs_that_made_them(tmp_path):
    """Only seeds and lines that the results lack are made, and the outcome is that of making all at once."""
    out, complete = tmp_path / "out", How(complete=True)
    assert running.reproduce(tiny(), Options(epochs=1, seeds=3), tmp_path / "whole", tmp_path / "runs")
    assert running.reproduce(tiny(), Options(epochs=1, seeds=1), out, tmp_path / "first")
    some = replace(complete, only=("doubled",), together=2)
    assert running.reproduce(tiny(), Options(epochs=1, seeds=3), out, tmp_path / "second", some)
    assert kept_results.record_of(out)["missing"] == ["kept, seeds 1 to 2"]
    assert {name: runs.meta["seeds"] for name, runs in stored(out).items()} == {"kept": [0], "doubled": [0, 1, 2]}
    assert {path.parent.name for path in tmp_path.rglob("second/**/trajectory.npz")} == {"seeds-1-2"}
    assert running.reproduce(tiny(), Options(epochs=1, seeds=3), out, tmp_path / "third", complete)
    assert kept_results.record_of(out)["missing"] == []
    here, there = Table.load(out), Table.load(tmp_path / "whole")
    for mine, other in zip((here.base, *here.others), (there.base, *there.others), strict=True):
        assert mine.trajectory.meta["seeds"] == other.trajectory.meta["seeds"] == [0, 1, 2]
        for name in other.trajectory.names:
            np.testing.assert_allclose(mine.trajectory.values[name], other.trajectory.values[name], rtol=1e-6)
    assert here.warm.meta["seeds"] == [0, 1, 2]
    before = sorted(out.iterdir())
    assert running.reproduce(tiny(), Options(epochs=1, seeds=3), out, tmp_path / "fourth", complete)
    assert sorted(out.iterdir()) == before, "trajectories that are written have new names"
    assert runs_in(tmp_path / "fourth") == [], "nothing was left to make"


def test_stored_runs_are_not_lost_to_results_that_are_not_finished(tmp_path, caplog):
    caplog.set_level("INFO", "rootscale")
    asked = tiny(), Options(epochs=1, seeds=2), tmp_path / "out"
    assert running.reproduce(*asked, tmp_path / "runs")
    before = (tmp_path / "out" / "table.npz").read_bytes()
    assert running.reproduce(*asked, tmp_path / "elsewhere", How(only=("kept",)))
    assert "stays as it is: it holds 2 runs that would be lost" in caplog.text
    assert (tmp_path / "out" / "table.npz").read_bytes() == before
    assert running.reproduce(*asked, tmp_path / "elsewhere"), "all of it is there"
    assert (tmp_path / "out" / "table.npz").read_bytes() != before


def test_results_of_runs_that_would_be_made_otherwise_cannot_be_completed(tmp_path):
    assert running.reproduce(tiny(), Options(epochs=1, seeds=1), tmp_path / "out", tmp_path / "runs")
    with pytest.raises(ValueError, match="holds runs named 'kept', which this version makes in another way"):
        running.reproduce(
            tiny(steps=28), Options(epochs=1, seeds=2), tmp_path / "out", tmp_path / "new", How(complete=True)
        )
    assert kept_results.record_of(tmp_path / "out")["seeds"] == [0]


@pytest.mark.parametrize(("seeds", "text"), [((2,), "seed 2"), ((1, 2, 3), "seeds 1 to 3"), ((0, 2), "seeds 0, 2")])
def test_seeds_of_a_part_are_named(seeds, text):
    assert running._seeds(seeds) == text


def test_a_text_that_is_a_label_stands_for_that_line_alone():
    lines = [Line(label, None) for label in ("B = 4", "B = 16", "B = 16, linear")]
    assert running._asked(lines, ["B = 16"]) == {"B = 16"}
    assert running._asked(lines, ["16"]) == {"B = 16", "B = 16, linear"}
    assert running._asked(lines, ["lin", "B = 4"]) == {"B = 4", "B = 16, linear"}
    assert running._asked(lines, []) == {"B = 4", "B = 16", "B = 16, linear"}
    with pytest.raises(ValueError, match=r"got 'B = 5'; there are B = 4; B = 16; B = 16, linear"):
        running._asked(lines, ["B = 4", "B = 5"])


def test_a_watcher_hears_of_every_run_once_and_how_far_all_are(tmp_path):
    shares, ends = [], []
    watch = Watch(lambda name, share: shares.append(share), lambda *what: ends.append(what))
    asked = tiny(), Options(epochs=1, seeds=1), tmp_path / "out", tmp_path / "runs"
    assert running.reproduce(*asked, watch=watch)
    assert [end[:3] for end in ends] == [(1, 2, "kept, seed 0"), (2, 2, "doubled, seed 0")]
    assert all(re.fullmatch(r"test accuracy \d+\.\d\d %, \d s", end[3]) for end in ends)
    assert shares == sorted(shares)
    assert shares[-1] == 1
    ends.clear()
    assert running.reproduce(*asked, watch=watch)
    assert all(end[3].endswith(" (made before)") for end in ends)
    assert len(ends) == 2


def test_results_name_the_hardware_and_versions_of_the_runs_and_not_of_who_collects_them(tmp_path, monkeypatch):
    def elsewhere(hardware):
        found = {"versions": {"torch": "9.9", "python": "3.99"}, "hardware": hardware}
        monkeypatch.setattr("rootscale.lab.trial.environment", lambda device: found)

    place = tiny(), Options(epochs=1, seeds=2), tmp_path / "out", tmp_path / "runs"
    for hardware, only in (("a GPU", "kept"), ("another", "doubled")):
        elsewhere(hardware)
        running.reproduce(*place, How(only=(only,)))
    elsewhere("a desk")
    assert running.reproduce(*place, How(minutes=0)) is True
    record = kept_results.record_of(tmp_path / "out")
    assert record["hardware"] == "a GPU; another"
    assert record["versions"] == {"torch": "9.9", "python": "3.99"}


def test_in_no_time_nothing_is_run_and_what_is_finished_is_collected(tmp_path):
    options, runs = Options(epochs=1, seeds=2), tmp_path / "runs"
    assert not running.reproduce(tiny(), options, tmp_path / "none", runs, How(minutes=0))
    assert not (tmp_path / "none").exists()
    assert runs_in(runs) == []
    running.reproduce(tiny(), options, tmp_path / "first", runs, How(only=("kept",)))
    there = runs_in(runs)
    assert not running.reproduce(tiny(), options, tmp_path / "part", runs, How(minutes=0))
    assert list(stored(tmp_path / "part")) == ["kept"]
    missing = ["doubled, seed 0", "doubled, seed 1"]
    assert json.loads((tmp_path / "part" / "experiment.json").read_text())["missing"] == missing
    assert runs_in(runs) == there
    running.reproduce(tiny(), options, tmp_path / "first", runs)
    assert running.reproduce(tiny(), options, tmp_path / "all", runs, How(minutes=0))
    assert list(stored(tmp_path / "all")) == ["kept", "doubled"]


@pytest.mark.parametrize("what", ["doubled", "before the switch"])
def test_a_run_that_another_process_makes_is_left_to_it(tmp_path, what):
    asked = tiny(), Options(epochs=1, seeds=1)
    assert running.reproduce(*asked, tmp_path / "elsewhere", tmp_path / "runs")
    (held,) = tmp_path.glob("runs/b-8-*/seeds-0" if what == "doubled" else "runs/b-4-*/seeds-0/checkpoint.pt")
    held = held if what == "doubled" else held.parent
    for path in [held / "trajectory.npz"] if what == "doubled" else list(tmp_path.rglob("runs/*/*/trajectory.npz")):
        path.unlink()  # as if it were not finished
    (tmp_path / "elsewhere" / "experiment.json").unlink()
    ends = []
    with locked(held / ".lock"):
        how, watch = How(minutes=None if what == "doubled" else 0.005), Watch(ended=lambda *what: ends.append(what))
        assert not running.reproduce(*asked, tmp_path / "out", tmp_path / "runs", how, watch)
    if what == "doubled":
        assert ends[-1] == (2, 2, "doubled, seed 0", "left to another process, which is making it")
        assert list(stored(tmp_path / "out")) == ["kept"]
    else:  # it was waited for, as long as there was time
        assert ends == []
    assert running.reproduce(*asked, tmp_path / "out", tmp_path / "runs")
    assert list(stored(tmp_path / "out")) == ["kept", "doubled"]


def test_two_processes_make_what_one_makes(tmp_path):
    asked, ends = (tiny(), Options(epochs=1, seeds=2)), []
    watch = Watch(ended=lambda *what: ends.append(what[:3]))
    assert running.reproduce(*asked, tmp_path / "shared", tmp_path / "runs", How(processes=2), watch)
    assert sorted(ends) == [
        (1, 4, "kept, seed 0"), (2, 4, "doubled, seed 0"), (3, 4, "kept, seed 1"), (4, 4, "doubled, seed 1"),
    ]  # fmt: skip
    assert running.reproduce(*asked, tmp_path / "alone", tmp_path / "others")
    for label, trajectory in stored(tmp_path / "alone").items():
        for name in trajectory.names:
            assert np.array_equal(stored(tmp_path / "shared")[label].values[name], trajectory.values[name])


def test_models_are_kept_where_the_experiment_says_so(tmp_path):
    for keep in (False, True):
        experiment = replace(tiny(), keep_models=keep)
        asked = experiment, Options(epochs=1, seeds=1), tmp_path / str(keep), tmp_path / f"runs-{keep}"
        running.reproduce(*asked)
        models = sorted(path.parents[1].name.rpartition("-")[0] for path in asked[3].rglob("model.pt"))
        assert models == (["b-4", "b-8"] if keep else [])


def test_a_script_is_told_where_and_how_long(tmp_path, monkeypatch):
    seen = []

    def script(options, out, runs, minutes):
        seen.append((options, out, runs, minutes))
        return minutes is None

    experiment = replace(tiny(), name="mine", lines=None, words=None, script=script, takes=("device", "data", "seeds"))
    monkeypatch.setattr(experiments_package, "experiments", lambda: {"mine": experiment})
    monkeypatch.chdir(tmp_path)
    assert main("reproduce mine --smoke --data D --seeds 3 --minutes 5 --runs R --out O".split()) == 3
    assert main(["reproduce", "mine", "--smoke"]) == 0
    (options, *rest), (others, *places) = seen
    assert (options.data, options.seeds, options.device, options.smoke) == ("D", 3, "cpu", True)
    assert rest == [Path("O"), Path("R"), pytest.approx(5.0, abs=0.01)]
    assert (others.data, others.seeds) == (None, 2)
    assert places == [Path("build/smoke/results/mine"), Path("build/smoke/runs/mine"), None]
    with pytest.raises(ValueError, match="mine has no options but --smoke, --device, --data and --seeds, got --eps"):
        experiment.options(eps=1e-3)
    with pytest.raises(ValueError, match="drop --only"):
        running.reproduce(experiment, options, tmp_path, tmp_path, How(only=("x",)))


def test_epochs_may_be_a_part_and_whole_ones_are_integers(cifar10):
    assert repr(Options(epochs=60.0)) == repr(Options(epochs=60))
    assert json.dumps(Options(epochs=2.0).to_dict()["epochs"]) == "2"
    experiment = experiments()["cifar10-vgg16-adam"]
    options = experiment.options(epochs=2.5)
    assert experiment.command(options) == "rootscale reproduce cifar10-vgg16-adam --epochs 2.5"
    assert experiment.command(experiment.options(epochs=500.0)) == "rootscale reproduce cifar10-vgg16-adam"
    plan = experiment.lines(options)[0][0].task.plan
    assert plan.steps == round(2.5 * 195)
    for wrong in (0, -1, math.inf, math.nan):
        with pytest.raises(ValueError, match="epochs must be a number above 0"):
            Options(epochs=wrong)


def test_a_measure_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match="the measure of tiny must be one of test accuracy, test loss, got 'loss'"):
        replace(tiny(), measure="loss")


@pytest.mark.parametrize("name", MADE_OF_LINES)
@pytest.mark.parametrize("small", [False, True])
def test_lines_of_an_experiment_have_different_names_and_valid_plans(name, small, cifar10):
    experiment = experiments()[name]
    options = experiment.options(smoke=small)
    lines, settings = experiment.lines(options)
    assert len({line.label for line in lines}) == len(lines) > 1
    assert lines[0].variant == Variant()
    assert len({(line.task.name, line.variant) for line in lines}) == len(lines)
    steps = np.diff(settings.grid).min()
    for line in lines:
        plan = line.variant.plan(line.task.plan)
        assert max(int(line.task.plan.batch_size.total * kappa) for kappa in line.variant.kappas) <= steps
        assert name in PARTS or line.task.plan.samples == settings.grid[-1]
        assert plan.samples == line.task.plan.samples * line.variant.ell**2


def test_defaults_are_those_of_the_paper(cifar10):
    for name in ("cifar10-vgg16-adam", "cifar10-resnet56-rmsprop"):
        lines, _ = experiments()[name].lines(experiments()[name].options())
        sizes = [int(line.variant.plan(line.task.plan).batch_size.total) for line in lines]
        assert sizes == [256, 1024, 4096, 8192, 16384]
        plan = lines[0].task.plan
        assert (plan.optimizer.eta, plan.optimizer.eps, plan.optimizer.weight_decay) == (1e-3, 1e-8, 1e-4)
        assert plan.steps == 500 * 195
        assert lines[1].variant.plan(plan).batchnorm_momentum == pytest.approx(1 - 0.9**4)


def test_the_switch_is_at_two_fifths_and_the_ramp_goes_on_from_there(cifar10):
    experiment = experiments()["cifar10-switch"]
    lines, settings = experiment.lines(experiment.options())
    total = settings.grid[-1]
    assert settings.switch_at == settings.grid[0]
    assert settings.switch_at / total == pytest.approx(0.4, abs=1e-3)
    found = {line.label.split(", ")[-1]: line.variant for line in lines}
    assert found["hyperparameters only"].rule == "without v, step_counter"
    assert found["learning rate only"].rule == "sqrt-eta"
    assert found["state zeroed"].zero_state
    assert found["BatchNorm left alone"].rule == "without batchnorm"
    ramp = lines[-1].variant
    assert ramp.kappas == (4, 16, 64)
    assert [at / total for at, _ in ramp.ramp] == pytest.approx([0.55, 0.7], abs=0.01)
    assert all((at - settings.switch_at) % 16384 == 0 for at, _ in ramp.ramp)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_svag_starts_at_the_beginning_or_after_the_warm_up(optimizer, cifar10):
    epoch = 195 * 256
    for name, start, stop in (
        (f"cifar10-svag-{optimizer}", 0, 2 * epoch),
        (f"cifar10-svag-{optimizer}-warm", 30 * epoch, 32 * epoch),
    ):
        lines, settings = experiments()[name].lines(experiments()[name].options())
        assert (settings.switch_at, settings.grid[0], settings.grid[-1]) == (start, start, stop)
        assert [line.variant.ell for line in lines] == [1, 2, 4]
    plan = lines[0].task.plan
    assert plan.schedule.warmup * 256 < settings.switch_at
    assert min(plan.schedule.milestones) * 256 > settings.grid[-1]


def test_unfinished_ablations_tell_what_there_is():
    runs = [arm("B = 256", [0.9]), arm("B = 2,048; sqrt: eta", [0.8], size=2048, loss=[1.5])]
    words = experiments()["cifar10-ablations"].words(final_values(runs, SEED_DEVIATION))
    assert words.endswith(". B = 2,048: sqrt: eta 50 % (-10.0 ± 0.7 points)")


def test_ablations_tell_the_rank_of_the_rule_the_papers_others_and_the_ends():
    losses = {
        "sqrt: eta": 1.9,
        "sqrt: eta, eps, beta1": 1.3,
        "sqrt: eta, eps, beta1, beta2": 1.2,
        "linear: eta": 1.6,
        "linear: eta, beta1": 1.1,
        "linear: eta, beta1, beta2": 1.4,
    }
    others = [arm(f"B = 2,048; {label}", [0.9], size=2048, loss=[loss]) for label, loss in losses.items()]
    words = experiments()["cifar10-ablations"].words(final_values([arm("B = 256", [0.9]), *others], SEED_DEVIATION))
    same = "(+0.0 ± 0.7 points)"
    assert words.partition("B = 2,048: ")[2] == (
        f"the whole rule sqrt: eta, eps, beta1, beta2 20 % {same}, 2 of 6; sqrt: eta, eps, beta1 30 % {same}; "
        f"linear: eta, beta1, beta2 40 % {same}; best of the others: linear: eta, beta1 10 % {same}; "
        f"worst of the others: sqrt: eta 90 % {same}"
    )


def test_the_papers_form_of_adam_is_compared_with_torchs_and_with_itself():
    sizes = {"B = 256": (256, 0.88, 0.87), "B = 4,096": (4096, 0.86, 0.84)}
    runs = [arm(f"v_{{k+1}} (torch), {label}", [torchs], size=size) for label, (size, torchs, _) in sizes.items()]
    words = experiments()["cifar10-vk"].words
    assert words(final_values(runs, SEED_DEVIATION)).endswith("B = 4,096: 86.00 ± 0.50 %")
    runs += [arm(f"v_k (paper), {label}", [papers], size=size) for label, (size, _, papers) in sizes.items()]
    told = words(final_values(runs, SEED_DEVIATION)).partition("; ")[2]
    assert told == "v_k less v_{k+1}: -1.0 ± 0.7 points; under v_k, B = 4,096 less B = 256: -3.0 ± 0.7 points"
    assert words(final_values(runs[:3], SEED_DEVIATION)).endswith("; v_k less v_{k+1}: -1.0 ± 0.7 points")


def test_svag_that_has_only_begun_tells_what_there_is():
    words = experiments()["cifar10-svag-adam-warm"].words
    told = words(final_values([arm("discrete (ℓ = 1)", [0.5])], SEED_DEVIATION))
    assert told == "test accuracy discrete (ℓ = 1): 50.00 ± 0.50 %"


def test_ablations_scale_what_their_name_says_and_batchnorm_always(cifar10):
    experiment = experiments()["cifar10-ablations"]
    lines, _ = experiment.lines(experiment.options(batch_sizes=(2048,)))
    base = lines[0].task.plan
    assert len(lines) == 10
    for line in lines[1:]:
        rule, _, rows = line.label.partition("; ")[2].partition(": ")
        plan = line.variant.plan(base)
        ratio = {"sqrt": math.sqrt(8), "linear": 8}[rule]
        assert plan.optimizer.eta == pytest.approx(ratio * base.optimizer.eta)
        for row, scaled in (("beta1", 0.992), ("beta2", 0.992), ("eps", base.optimizer.eps / math.sqrt(8))):
            expected = scaled if row in rows.split(", ") else getattr(base.optimizer, row)
            assert getattr(plan.optimizer, row) == pytest.approx(expected, rel=1e-12), (line.label, row)
        assert plan.batchnorm_momentum == pytest.approx(1 - 0.9**8)


@pytest.mark.parametrize("name", ["cifar10-vgg16-adam", "cifar10-ablations", "cifar10-vk"])
def test_paper_batchnorm_leaves_its_momentum_alone(name, cifar10):
    experiment = experiments()[name]
    lines, _ = experiment.lines(experiment.options(paper_batchnorm=True))
    for line in lines:
        assert line.variant.plan(line.task.plan).batchnorm_momentum == 0.1


@pytest.mark.parametrize("name", ALL)
def test_the_command_that_is_recorded_gives_the_options_back(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    experiment, seen = experiments()[name], []
    monkeypatch.setattr(running, "reproduce_all", lambda works, *_: seen.append(works[0].options) or [True])
    changes = [{}, {"smoke": True}]
    if experiment.lines is not None:
        changes.append({"epochs": 0.25})
        changes.append({"eps": 1e-30, "epochs": 7, "seeds": 5, "batch_sizes": (512, 2048), "paper_batchnorm": True})
        recipe = "" if experiment.defaults.recipe == "house" else f"-{experiment.defaults.recipe}"
        place = experiment.place or name
        assert experiment.folder(experiment.options(**changes[-1])) == f"{place}-eps-1e-30{recipe}-paper-batchnorm"
    elif "epochs" in experiment.takes:
        changes.append({"epochs": 0.25, "seeds": 5})
    for change in changes:
        options = experiment.options(device="cuda:1", **change)
        main(shlex.split(experiment.command(options))[1:])
        assert seen[-1] == options


def test_list_names_every_experiment_with_its_cost(capsys):
    assert main(["reproduce", "--list"]) == 0
    out = capsys.readouterr().out
    for experiment in experiments().values():
        assert experiment.name in out
        assert f"About {experiment.minutes:g} minutes on one H200" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("reproduce", "an experiment is needed, one of cifar10-switch, cifar10-vgg16-adam"),
        ("reproduce cifar11", "got 'cifar11'"),
        ("reproduce cifar10-vgg16-adam --model resnet56", "the model of cifar10-vgg16-adam must be one of vgg16"),
        (
            "reproduce mlp-sde --epochs 3 --eps 1",
            "mlp-sde has no options but --smoke and --device, got --epochs, --eps",
        ),
        ("reproduce cifar10-vgg16-adam --smoke --only B=16", "got 'B=16'; there are B = 16; B = 64; B = 256"),
        ("reproduce mlp-sde --smoke --only SDE", "mlp-sde is not made of lines of which one could ask for some"),
        ("reproduce cifar10-vgg16-adam --seeds 0", "seeds must be at least 1, got 0"),
        ("reproduce cifar10-vgg16-adam --data nowhere", "there is no folder nowhere"),
        ("reproduce cifar10-vgg16-adam --smoke --batch-sizes 256 65536", "fewer than four steps at batch size 4,096"),
        ("reproduce cifar10-switch --smoke --batch-sizes 256", "needs two or more batch sizes above 256"),
    ],
)
def test_mistakes_are_answered_in_one_line(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


# -- the table of final values ---------------------------------------------------------------------------------------


def arm(label, accuracy, seeds=None, size=256, loss=None):
    accuracy = np.array(accuracy, float)
    seeds = list(range(len(accuracy))) if seeds is None else seeds
    start, ends = np.full(len(accuracy), 0.1), np.ones(len(accuracy)) if loss is None else np.array(loss, float)
    values = {"test accuracy": np.stack([start, start, accuracy], 1)}
    values["train loss"] = np.stack([20 * start, 20 * start, ends], 1)
    meta = {"seeds": seeds, "seconds": 1.0, "samples": [0, 50, 100], "guards": []}
    plan = Plan(Adam(1e-3, 0.9, 0.99), batch_size=size, steps=10)
    return Result(label, "base", plan, None, Trajectory(np.array([0.0, 1.0, 2.0]), values, meta=meta))


def test_one_seed_has_the_deviation_over_seeds_where_that_is_known():
    runs = [arm("a", [0.9]), arm("b", [0.88], size=512)]
    base, other = final_values(runs, SEED_DEVIATION)
    assert base.accuracy == End(0.9, 0.005)
    assert other.accuracy.gap == pytest.approx(-0.02)
    assert other.accuracy.gap_se == pytest.approx(math.sqrt(2) * 0.005)
    assert other.batch_size == 512
    assert format_gap("test accuracy", other.accuracy) == "-2.0 ± 0.7 points"
    assert format_gap("test accuracy", final_values(runs)[1].accuracy) == "-2.0 points, one seed"


def test_the_deviation_over_seeds_is_that_of_the_stored_runs():
    ends = stored(RESULTS / "cifar10-switch")["B = 256 kept"].values["test accuracy"][:, -1]
    assert len(ends) == 3
    assert ends.std(ddof=1) == pytest.approx(SEED_DEVIATION, rel=0.05)


def test_one_seed_has_no_error_of_the_loss():
    base, other = final_values([arm("a", [0.9]), arm("b", [0.88], loss=[1.5])], SEED_DEVIATION)
    assert base.end("train loss") == End(1.0)
    assert other.end("train loss") == End(1.5, None, 0.5, None)
    assert format_gap("train loss", other.end("train loss")) == "+0.500, one seed"
    assert other.end("perplexity") == End()


def test_several_seeds_have_the_error_of_paired_differences():
    losses = [1.0, 1.2, 1.4]
    base, other = final_values(
        [arm("a", [0.90, 0.92, 0.94], loss=losses), arm("b", [0.91, 0.89], seeds=[2, 1], loss=[1.7, 1.3])]
    )
    assert base.accuracy.se == pytest.approx(0.02 / math.sqrt(3))
    assert other.accuracy.gap == pytest.approx(np.mean([0.91 - 0.94, 0.89 - 0.92]))
    assert other.accuracy.gap_se == pytest.approx(0, abs=1e-9)
    assert base.end("train loss") == End(pytest.approx(1.2), pytest.approx(0.2 / math.sqrt(3)))
    assert other.end("train loss") == End(*map(pytest.approx, (1.5, 0.2, (0.3 + 0.1) / 2, 0.1)))


def test_diverged_runs_are_counted_and_left_out():
    _, part, gone = final_values(
        [arm("a", [0.9, 0.9]), arm("b", [0.8, np.nan], loss=[1.5, np.nan]), arm("c", [np.nan] * 2, loss=[np.nan] * 2)]
    )
    assert (part.diverged, part.accuracy.value, part.accuracy.gap) == (1, 0.8, pytest.approx(-0.1))
    assert part.curve("train loss").gap == pytest.approx(0.5)
    assert (gone.diverged, gone.accuracy, gone.end("train loss")) == (2, End(), End())
    assert format_gap("test accuracy", gone.accuracy) == "diverged"


def test_a_base_that_diverged_leaves_no_gap():
    _, other = final_values([arm("a", [np.nan], loss=[np.nan]), arm("b", [0.9])])
    assert (other.accuracy.value, other.accuracy.gap) == (0.9, None)
    assert format_gap("test accuracy", other.accuracy) == "not known"


def test_a_seed_whose_base_diverged_is_left_out_of_the_gap_of_curves():
    base = arm("a", [0.9, np.nan], loss=[1.0, np.nan])
    found = final_values([base, arm("b", [0.8, 0.7], loss=[1.5, 9.0])])
    assert found[1].curve("train loss").gap == pytest.approx(0.5)
    assert found[1].accuracy.gap == pytest.approx(-0.1)
    assert accuracies(found) == "a: 90.00 % (1 of 2 diverged), b: 75.00 ± 5.00 %"


def test_the_claim_of_three_points_is_judged_up_to_8192():
    experiment = experiments()["cifar10-vgg16-adam"]
    runs = [arm("B = 256", [0.93]), arm("B = 4,096", [0.91], size=4096), arm("B = 16,384", [0.80], size=16384)]
    assert experiment.words(final_values(runs, SEED_DEVIATION)).endswith(
        "gap at B = 4,096: -2.0 ± 0.7 points, within the paper's 3 points; its appendix claims them beyond 8,192 too: "
        "B = 16,384 -13.0 ± 0.7 points"
    )
    assert experiment.words(final_values(runs[:2], SEED_DEVIATION)).endswith("within the paper's 3 points")
    runs[1] = arm("B = 4,096", [0.89], size=4096)
    assert "-4.0 ± 0.7 points, beyond the paper's 3 points; its" in experiment.words(final_values(runs, SEED_DEVIATION))
    runs[1] = arm("B = 4,096", [np.nan], size=4096)
    assert "B = 4,096: diverged" in experiment.words(final_values(runs, SEED_DEVIATION))


# -- what is made of stored results ----------------------------------------------------------------------------------


def test_results_of_a_smaller_run_than_planned_say_so_and_name_the_command(tmp_path):
    entry = next(
        entry for entry in entries.entries_of(tmp_path) if entry.folder.name == "cifar10-vgg16-rmsprop-authors"
    )
    made = entry.options.to_dict()
    assert entry.short_of(made) == ""
    made |= {"epochs": 100, "batch_sizes": [256, 1024]}
    assert entry.short_of(made) == (
        ". Made with epochs 100 instead of 500; batch sizes 256, 1,024 instead of 256, 1,024, 4,096, 8,192, 16,384; "
        "*missing:* `rootscale reproduce cifar10-vgg16-rmsprop --device cuda`"
    )


def test_results_that_are_not_finished_say_what_is_missing_and_name_the_command(tmp_path, monkeypatch):
    experiment = replace(tiny(), name="cifar10-vk")
    place = tmp_path / "cifar10-vk"
    running.reproduce(experiment, Options(epochs=1, seeds=2), place, tmp_path / "runs", How(only=("kept",)))
    monkeypatch.setattr(entries, "experiments", lambda: {"cifar10-vk": experiment})
    results.build(tmp_path, None)
    (row,) = [line for line in (tmp_path / "README.md").read_text().splitlines() if "cifar10-vk/" in line]
    assert "*Missing:* 2 runs, `rootscale reproduce cifar10-vk`" in row
    page = (place / "README.md").read_text()
    assert "**Missing:** doubled, seeds 0, 1.\n" in page
    assert kept_results.outcome(experiment, place).endswith(" (unfinished: 2 runs are missing)")


def test_results_are_rebuilt_from_what_is_stored_and_the_rest_is_listed_as_missing(smoke, tmp_path):
    place = tmp_path / "results"
    (place / "cifar10-vgg16-adam").mkdir(parents=True)
    for path in (smoke / "results" / "cifar10-vgg16-adam").iterdir():
        (place / "cifar10-vgg16-adam" / path.name).write_bytes(path.read_bytes())
    (place / "README.md").write_text(f"# Mine\n\n{results.BEGIN}\nstale\n{results.END}\n\nThe end.\n")
    results.build(place, None)
    text = (place / "README.md").read_text()
    assert text.startswith("# Mine\n")
    assert text.endswith("\n\nThe end.\n")
    assert "stale" not in text
    table, _, noise = text.partition("Where the noise dominates")
    assert re.search(
        r"^\| VGG-16, Adam, recipe house, 4 epochs( \| \d+ %: [-+.\d]+ points, one seed){2} \|$", noise, re.MULTILINE
    )
    rows = [line for line in table.splitlines() if line.startswith("| **")]
    assert all("**not run**" in row for row in rows), "a smoke test decides nothing"
    assert "`rootscale reproduce cifar10-svag-adam-warm --device cuda`, 4 min of one H200 |" in text
    assert len(rows) == 32
    assert "which says nothing about the claim: test accuracy B = 16: " in text
    page = (place / "cifar10-vgg16-adam" / "README.md").read_text()
    assert "| B = 64 | 1 | 0 | " in page
    assert "none: one seed" in page
    for figure in (place / "cifar10-vgg16-adam" / "curves.png", place / "noise.png"):
        assert figure.read_bytes()[:4] == b"\x89PNG"
    again = text
    results.build(place, None)
    assert (place / "README.md").read_text() == again


# Too few seeds for a verdict, and enough; the latter also makes pages and PDFs.
@pytest.mark.parametrize("seeds", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_the_switch_has_a_figure_and_reports_are_made_of_it(seeds, tmp_path, monkeypatch):
    place = tmp_path / "results"
    experiment = replace(tiny(), name="cifar10-switch")
    options = Options(epochs=1, seeds=seeds, smoke=True)
    running.reproduce(experiment, options, place / "cifar10-switch", tmp_path / "runs")
    monkeypatch.setattr(entries, "experiments", lambda: {"cifar10-switch": experiment})
    results.build(place, tmp_path / "pages" if seeds == 4 else None)
    assert (place / "cifar10-switch" / "switch.png").read_bytes()[:4] == b"\x89PNG"
    assert "![the switch](switch.png)" in (place / "cifar10-switch" / "README.md").read_text()
    assert (tmp_path / "pages" / "cifar10-switch" / "report.html").exists() == (seeds == 4)
    assert bool(list((tmp_path / "pages" / "cifar10-switch").glob("*.pdf"))) == (seeds == 4)


def measured(values, samples, size=256):
    """The arm of one seed with these test functions."""
    one = arm("a", [0.5], size=size)
    meta = {**one.trajectory.meta, "samples": samples}
    values = {name: np.array([row], float) for name, row in values.items()}
    return replace(one, trajectory=Trajectory(np.arange(len(samples), dtype=float), values, meta=meta))


@pytest.mark.parametrize(
    ("losses", "samples", "high"),
    [([3000, 2, 1], [0, 1, 2], True), ([2, 2, 1], [0, 1, 2], False), ([3000, 2, 1], [1, 2, 3], False)],
)
def test_a_loss_before_the_first_step_that_is_far_above_is_named(losses, samples, high):
    base = measured({"train loss": losses, "test accuracy": [0.1, 0.5, 0.9]}, samples)
    words = pages.window_words(Mock(base=base))
    assert ("the train loss is 3,000: it leaves the figure" in words) == high


def test_the_share_of_the_run_in_which_noise_dominates_is_shown():
    samples, loss = [0, 1, 2, 3, 4], [2.0, 1, 1, 1, 1]
    values = {"train loss": loss, "noise scale": [1e6, 50, 150, 1e12, 120]}
    assert pages._share(measured({"train loss": loss}, samples)) == ""
    assert pages._share(measured(values, samples, size=100)) == "80 %"
    scales = {**values, "noise scale": [1, 50, 9000, 1e12, 1]}
    assert pages._share(measured(scales, samples, 4096)) == "20 to 40 %"


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "results").glob("*/experiment.json")), ids=lambda path: path.parent.name
)
def test_stored_results_name_the_command_that_makes_them_today(path):
    record = json.loads(path.read_text())
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in record["options"].items()}
    experiment, options = experiments()[record["name"]], Options(**given)
    assert record["command"].removesuffix(" --device cuda") == experiment.command(options)
    assert path.parent.name == experiment.folder(options)


def test_the_theory_experiment_is_listed_with_its_stored_result():
    folder = Path(__file__).parents[2] / "results" / "theory"
    found = experiments()["mlp-sde"].stored(folder)
    assert found.figure.exists()
    assert "SVAG ℓ = 2" in found.words
    assert found.seeds >= 32
    assert experiments()["mlp-sde"].stored(folder / "nowhere") is None


def test_every_module_that_declares_experiments_is_listed():
    folder = Path(experiments_package.__file__).parent
    declaring = {path.stem for path in folder.glob("*.py") if "\nEXPERIMENTS = " in path.read_text()}
    assert declaring == set(FILES)
    assert len(FILES) == len(set(FILES))


def test_the_command_shares_several_experiments_among_processes(tmp_path, monkeypatch, capsys):
    others = {"mine": replace(tiny(), name="mine"), "yours": replace(tiny(), name="yours")}
    monkeypatch.setattr(experiments_package, "experiments", lambda: others)
    monkeypatch.chdir(tmp_path)
    assert main("reproduce mine yours --smoke --epochs 1 --processes 2".split()) == 0
    said = capsys.readouterr().out
    for name in others:
        assert said.count(f"reproduce {name} ") == 1
        assert list(stored(tmp_path / "build/smoke/results" / name)) == ["kept", "doubled"]
        assert f"wrote build/smoke/results/{name}" in said
    assert [said.count(f"{number} of 4: ") for number in range(1, 5)] == [1] * 4  # each run is told once


def test_a_program_that_shares_its_runs_is_run_in_every_process_and_collected(tmp_path):
    def script(options, out, runs, minutes):
        with (out / "calls").open("a") as file:
            file.write(f"{minutes}\n")
        return True

    experiment = replace(tiny(), lines=None, words=None, script=script, shares=True)
    how = How(processes=2)
    assert running.reproduce(experiment, Options(), tmp_path / "out", tmp_path / "runs", how)
    assert sorted((tmp_path / "out" / "calls").read_text().split()) == ["0.0", "None", "None"]


def test_what_is_of_one_experiment_is_refused_for_several(capsys):
    assert main(["reproduce", "cifar10-vgg16-adam", "gpt-enwik8", "--out", "x", "--only", "B"]) == 2
    assert "--out and --only can be given for one experiment, got 2" in capsys.readouterr().err
    assert main(["reproduce", "cifar10-vgg16-adam", "--smoke", "--processes", "0"]) == 2
    assert "--processes must be at least 1" in capsys.readouterr().err
    assert main(["reproduce", "cifar10-vgg16-adam", "cifar11"]) == 2
    assert "got 'cifar11'" in capsys.readouterr().err
