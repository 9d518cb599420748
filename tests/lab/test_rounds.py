"""How many seeds a check takes, what it measures, costs, says while it runs and recommends in the end."""

import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from problems import make, mlp_batchnorm
from rich.console import Console
from swept import sweep
from torch import nn

from rootscale import Adam, Plan
from rootscale.cli import check as arguments
from rootscale.cli import main
from rootscale.cli.run_check import _say_cost
from rootscale.cli.watching import _Watch, speaking, stoppable
from rootscale.integrations.trackers import TRACKERS, Track
from rootscale.lab import (
    Deadline,
    Here,
    Measure,
    Observer,
    Result,
    Settings,
    Store,
    Table,
    Trial,
    UnfinishedError,
    Variant,
    check,
)
from rootscale.lab.cost import Cost, estimate_cost
from rootscale.lab.recommendation import recommend
from rootscale.lab.replicas import stacking_pays
from rootscale.lab.rounds import Rounds
from rootscale.trajectory import Trajectory
from rootscale.verdict import Absolute, compare

PLAN = Plan(Adam(eta=1e-3, beta1=0.9), batch_size=16, steps=1000)


def arm_with(seeds: int, gap: float, spread: float, size: int = 64, **more) -> Result:
    """An arm whose gap at the end, and its spread over seeds, are these."""
    samples, rng = np.linspace(1000, 16000, 16), np.random.default_rng(seeds)
    ramp = (samples - samples[0]) / np.ptp(samples)
    seen = {"samples": samples.tolist(), "seeds": list(range(seeds))}
    base = Trajectory(samples, {"train loss": np.tile(1 - ramp, (seeds, 1))}, meta=seen)
    noise = spread * rng.standard_normal((seeds, 1)) * ramp
    other = Trajectory(samples, {"train loss": 1 - ramp + gap * ramp + noise}, meta=seen)
    plan = PLAN.convert(size)
    return Result(f"B = {size}", "batch size", plan.plan, plan.changes.to_dict(), other, compare(base, other), **more)


def check_with(*arms: Result, noise=None) -> Table:
    values = {"train loss": np.tile(1 - np.linspace(0, 1, 16), (4, 1))}
    if noise is not None:
        values |= {"noise scale": np.tile(noise, (4, 1))}
    samples = np.linspace(1000, 16000, 16)
    base = Trajectory(samples, values, meta={"samples": samples.tolist(), "seeds": [0, 1, 2, 3]})
    return Table("mine", Result("B = 16", "base", PLAN, None, base), arms, 1000, {})


# --- seeds until it is decided


def test_seeds_are_added_to_what_is_undecided_until_all_is_decided() -> None:
    plain, close = Variant(4), Variant(16)
    asked = []

    def run(variants, seeds, deadline):
        asked.append((list(variants), len(seeds)))
        gaps = {plain: (0.5, 0.01), close: (0.0, 0.02)}
        return len(asked), [arm_with(len(seeds), *gaps[variant]) for variant in variants]

    notes = []
    last, arms = Rounds.of("auto").run([plain, close], run, notes.append)
    assert asked[0] == ([plain, close], 4)
    assert [variants for variants, _ in asked[1:]] == [[close]] * (len(asked) - 1)
    numbers = [seeds for _, seeds in asked]
    assert all(a + 2 <= b <= 2 * a for a, b in pairwise(numbers))
    assert [arm.verdict for arm in arms] == ["different", "same"]
    assert last == len(asked)
    assert notes[0].startswith("1 of 2 undecided with 4 seeds: taking ")


def test_a_budget_stops_what_is_under_way_and_keeps_what_is_known() -> None:
    def run(variants, seeds, deadline):
        assert deadline.left <= 1
        if len(seeds) > 4:
            time.sleep(deadline.left)
            raise UnfinishedError
        return None, [arm_with(len(seeds), 0.0, 0.05) for _ in variants]

    notes = []
    _, (arm,) = Rounds.of("auto", 1.0).run([Variant(4)], run, notes.append)
    assert arm.verdict == "undecided"
    assert "the budget was spent before" in notes[-1]


def test_a_deadline_that_is_not_the_budgets_ends_all() -> None:
    def run(variants, seeds, deadline):
        if len(seeds) > 4:
            raise UnfinishedError
        return None, [arm_with(len(seeds), 0.0, 0.05) for _ in variants]

    with pytest.raises(UnfinishedError):
        Rounds.of("auto").run([Variant(4)], run, lambda text: None)


def test_no_seeds_are_added_to_a_gap_on_the_tolerance() -> None:
    asked, notes = [], []

    def run(variants, seeds, deadline):
        asked.append(len(seeds))
        return None, [arm_with(len(seeds), 0.053, 0.02) for _ in variants]

    _, (arm,) = Rounds.of("auto").run([Variant(4)], run, notes.append)
    assert arm.verdict == "undecided"
    assert len(asked) > 1
    assert asked[-1] < 64
    assert notes[-1] == f"1 of 1 undecided with {asked[-1]} seeds, and not even 64 would decide: no more are taken"


def test_no_round_is_begun_that_does_not_fit_into_the_budget(monkeypatch) -> None:
    monkeypatch.setattr(Deadline, "left", 0.0)
    notes = []
    Rounds.of("auto", 30.0).run([Variant(4)], lambda v, s, d: (None, [arm_with(4, 0.0, 0.1)]), notes.append)
    assert notes[-1].endswith("more than is left of the budget")


def test_what_is_no_number_of_seeds_is_refused() -> None:
    for seeds, budget, told in (
        ("many", None, "seeds must be a number, a list of seeds, or 'auto', got 'many'"),
        (8, 60.0, "give seeds='auto'"),
        ("auto", -1.0, "budget must be a number of seconds above 0"),
    ):
        with pytest.raises(ValueError, match=told):
            Rounds.of(seeds, budget)


def test_a_check_takes_four_seeds_where_they_decide_and_an_absolute_tolerance() -> None:
    from rootscale.lab import Judge

    found = check(make(), [2], measure=Measure(points=4), execute=Here(), judge=Judge(Absolute(10.0)))
    assert found.made["seeds"] == [0, 1, 2, 3]
    assert found.verdict == "same"
    assert found.judge.tolerance == Absolute(10.0)
    assert 0 < found.made["measuring"] < 1


# --- measuring


def test_measuring_is_at_most_its_share_of_the_work() -> None:
    for trained in (3_100, 6_000, 50_000, 1_000_000, 10**9):
        found = Measure(share=0.2).fitted(trained, 50_000, 10_000)
        work = found.points * found.work(50_000, 10_000)
        assert work <= 0.2 * (work + 3 * trained)
    least = Measure(share=0.2).fitted(100, 50_000, 10_000)
    assert (least.points, least.eval_samples, least.noise_samples) == (6, 64, 64)
    assert (found.points, found.eval_samples, found.noise_samples) == (40, 2048, 2048)
    assert Measure(points=7).fitted(10, 100, 100) == Measure(points=7)
    assert Measure(points=7, share=0.2).fitted(10**9, 100, 100).points == 7
    with pytest.raises(ValueError, match="share must lie between 0 and 1, got 2"):
        Measure(share=2)


def test_the_share_is_no_part_of_what_a_run_is(tmp_path) -> None:
    for share in (None, 0.3):
        settings = Settings((0, 32, 64), measure=Measure(share=share))
        sweep(make(), [Variant()], seeds=[0], settings=settings, store=tmp_path, execute=Here())
    assert len(list(tmp_path.glob("*/*/run.json"))) == 1


def test_conv_nets_are_not_stacked_on_a_cpu() -> None:
    task = make()
    assert stacking_pays(task, torch.device("cpu"))
    conv = replace(task, model=lambda: nn.Sequential(nn.Conv1d(1, 1, 1), nn.Flatten()))
    assert not stacking_pays(conv, torch.device("cpu"))
    assert stacking_pays(conv, torch.device("cuda"))


def test_the_cost_counts_runs_steps_and_points() -> None:
    task = replace(make(), model=mlp_batchnorm)
    small = estimate_cost(task, [Variant(2)], Settings((0, 64, 128)))
    large = estimate_cost(task, [Variant(2), Variant(4), Variant(ell=2)], Settings(tuple(range(0, 6401, 64))))
    assert small.runs == 2
    assert large.runs == 4
    assert large.training > 10 * small.training > 0
    assert large.measuring > 10 * small.measuring > 0
    assert small.seconds(8, 2) == pytest.approx(4 * small.seconds(1))


def test_the_estimate_says_where_a_run_is_too_short_for_the_share(capsys) -> None:
    for measuring, said in ((3.0, " (more than 20 %: the runs are too short for less)"), (1.0, "")):
        settings = Settings((0, 32, 64), measure=Measure(eval_samples=64, share=0.2))
        _say_cost(Cost(4.0, measuring, 2), settings, 4, Here())
        assert f"% of it measuring: 3 points on 64 samples{said}; runs that are stored" in capsys.readouterr().err


# --- while it runs


def test_lines_count_runs_and_come_once_a_minute(capsys, monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr("rootscale.cli.watching.time.monotonic", lambda: now[0])
    watch = _Watch(Console(file=sys.stderr, force_terminal=False))
    for second in range(200):
        now[0] = float(second)
        watch(lambda text, share: None, "B = 64", 1, 4, second / 200)
    watch(lambda text, share: None, "B = 64", 1, 4, 1.0)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert lines[0] == "running B = 64 (0 of 4 runs done, 8 %, about 12 min left)"
    assert lines[-1].startswith("finished B = 64 (1 of 4 runs done, 25 %")


@pytest.mark.parametrize("terminal", [True, False])
def test_an_experiment_speaks_once_a_minute_and_counts_what_was_made_before_as_no_work(
    terminal, capsys, monkeypatch
) -> None:
    now, moved = [0.0], []
    monkeypatch.setattr("rootscale.cli.watching.time.monotonic", lambda: now[0])
    show = speaking(Console(file=sys.stderr, force_terminal=terminal), lambda text, share: moved.append((text, share)))
    for second in range(0, 151, 10):
        now[0] = float(second)
        show("B = 64, seed 0", 0.5 + second / 1000)
    assert len(moved) == 16
    lines = capsys.readouterr().err.splitlines()
    assert lines == (
        []
        if terminal
        else [
            "running B = 64, seed 0 (57 %, about 7 min left)",
            "running B = 64, seed 0 (64 %, about 6 min left)",
        ]
    )


def test_ctrl_c_says_where_the_runs_are_and_what_resumes_them(capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/x/rootscale", "check", "mine.py:task", "--tolerance", "0.02 loss"])
    with pytest.raises(KeyboardInterrupt), stoppable(Path("runs/mine/runs")):
        raise KeyboardInterrupt
    said = capsys.readouterr().err
    assert "interrupted: the runs so far are in runs/mine/runs; this resumes them:" in said
    assert "  rootscale check mine.py:task --tolerance '0.02 loss'" in said
    with pytest.raises(SystemExit) as stop, stoppable(Path("runs/mine/runs")):
        raise UnfinishedError
    assert stop.value.code == 75
    assert "the budget is spent: the runs so far" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--seeds few", "seeds are a number or auto, got 'few'"),
        ("--budget soon", "a time is given as 90s, 30m or 2h, got 'soon'"),
        ("--tolerance much", "a tolerance is a share of the base curve's range"),
    ],
)
def test_wrong_options_are_refused(words, told, capsys) -> None:
    with pytest.raises(SystemExit):
        main(["check", "digits", "--to", "8", *words.split()])
    assert told in capsys.readouterr().err


# --- trackers


def test_the_command_knows_all_trackers() -> None:
    assert list(arguments.TRACKERS) == list(TRACKERS)
    with pytest.raises(ValueError, match="a tracker must be one of tensorboard, wandb, mlflow, got 'paper'"):
        Track("paper")


def test_a_tracker_gets_the_mean_of_every_function_at_every_point(tmp_path) -> None:
    opened, logged = [], []

    def open_run(run):
        opened.append(run)
        return lambda values, step: logged.append((step, dict(values)))

    settings = Settings((0, 32, 64))
    found = sweep(
        make(), [Variant()], seeds=[0, 1], settings=settings, store=Store(tmp_path), execute=Here(),
        observe=Observer(measured=Track(open_run)),
    ).trajectories[Variant()]  # fmt: skip
    (run,) = opened
    assert run.resumed_at is None
    assert run.config["seeds"] == [0, 1]
    assert [step for step, _ in logged] == [0, 32, 64]
    assert [values["train loss"] for _, values in logged] == pytest.approx(found["train loss"].mean)


def test_wandb_and_mlflow_are_called_as_they_want_it(tmp_path, monkeypatch) -> None:
    calls = []

    class Client:
        def get_experiment_by_name(self, name):
            return None

        def create_experiment(self, name):
            return f"experiment {name}"

        def create_run(self, experiment, run_name):
            return SimpleNamespace(info=SimpleNamespace(run_id=f"{experiment}: {run_name}"))

        def log_dict(self, run, config, file):
            calls.append((run, file))

        def log_metric(self, run, name, value, step):
            calls.append((run, name, step))

    def init(**options):
        calls.append(options)
        return SimpleNamespace(log=lambda values, step: calls.append((sorted(values)[0], step)))

    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=Client))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    run = Trial(make(), Variant(), [0], Settings((0, 32)))
    run.finish()
    for name in ("wandb", "mlflow"):
        Track(name)(tmp_path, run)
    assert calls[0]["project"] == "rootscale"
    assert calls[0]["config"]["seeds"] == [0]
    assert calls[1][1] == 32
    assert (calls[2][1], calls[3][0].split(":")[0]) == ("config.json", "experiment rootscale")
    assert all(not set(call[1]) & set("()") for call in calls[3:])


# --- what to do


def test_it_recommends_what_is_safe_and_says_when_to_switch_to_what_is_not() -> None:
    rising = np.linspace(50, 2000, 16)  # 512 = 2 x 256 from 4,550 samples on
    advice = recommend(check_with(arm_with(4, 0.0, 0.001), arm_with(4, 0.3, 0.001, 256), noise=rising))
    assert advice[0].startswith("64 is safe, switched after 1,000 samples: the same as B = 16 within 5 %")
    assert advice[1].startswith(
        "256 is different, by up to 30 % of the range: switch after about 5,000 samples, from where on the noise scale "
        "is twice as large as it or use beta1 >= 0.9938 at 16 from the start"
    )


def test_a_ramp_is_named_with_all_its_batch_sizes_and_switches() -> None:
    ramp = arm_with(4, 0.0, 0.001, 256)
    variant = {"kappa": "4", "ramp": [[2000, "16"]]}
    trajectory = replace(ramp.trajectory, meta={**ramp.trajectory.meta, "variant": variant})
    (sentence,) = recommend(check_with(replace(ramp, trajectory=trajectory)))
    assert sentence.startswith("16 → 64 → 256 is safe, switched after 1,000 and 2,000 samples: the same as B = 16")


def test_it_names_the_noise_scale_where_it_never_reaches_the_batch_and_a_smaller_batch() -> None:
    (sentence,) = recommend(check_with(arm_with(4, 0.3, 0.001, 256), noise=np.full(16, 100.0)))
    assert "not in this part of the run, where the noise scale is at most 100 samples" in sentence
    assert "try 32, as the error of larger steps grows" in sentence  # 16 (1 + 15 / 6) = 56, and a power of 2 times 16


def test_it_advises_no_number_that_is_not_worth_a_try() -> None:
    (sentence,) = recommend(check_with(arm_with(4, 0.9, 0.001, 64)))  # 16 (1 + 3 / 18) is hardly more than 16
    assert sentence == "64 is different, by up to 90 % of the range: use beta1 >= 0.975 at 16 from the start."


def test_the_regime_comes_first_and_no_number_is_advised_in_it() -> None:
    arm = arm_with(4, 0.3, 0.001, 256)
    (sentence,) = recommend(replace(check_with(arm), switch_at=0))
    assert sentence.startswith("256 is different, by up to 30 % of the range. Its runs are from scratch, where noise")
    assert "try" not in sentence
    few = replace(arm, trajectory=replace(arm.trajectory, meta={**arm.trajectory.meta, "steps": 12}))
    (sentence,) = recommend(check_with(few))
    assert "It takes 12 steps in all, too few for averages over steps: compare longer runs." in sentence
    meta = {name: value for name, value in arm.trajectory.meta.items() if name != "variant"}
    loop = replace(arm, causes=("does the data loader still have the old batch size?",))
    (sentence,) = recommend(check_with(replace(loop, trajectory=replace(arm.trajectory, meta=meta))))
    assert "Mend the loop first, which does not do what was converted: does the data loader still" in sentence
    assert "try" not in sentence


def test_a_gap_on_the_tolerance_is_not_answered_with_thousands_of_seeds() -> None:
    (sentence,) = recommend(check_with(arm_with(4, 0.0495, 0.03)))
    assert "more seeds would hardly decide. Take a smaller batch, or a tolerance that you can live with." in sentence


def test_undecided_batches_other_rules_and_svag_have_their_own_words() -> None:
    linear = arm_with(4, 0.4, 0.001)
    linear = replace(linear, label="B = 64, linear", changes={**linear.changes, "rule": "linear"})
    svag = replace(arm_with(4, 0.0, 0.001), label="SVAG ell = 2", kind="svag", changes=None)
    (own,) = recommend(check_with(log := replace(arm_with(4, 0.03, 0.015), kind="log")))
    assert "compare them again when you have them" in own
    (own,) = recommend(replace(check_with(log), made={"seeds": [0, 1, 2, 3]}))  # of a loop that the check has run
    assert "would decide (--seeds " in own
    undecided, other, theory = recommend(check_with(arm_with(4, 0.03, 0.015), linear, svag))
    assert undecided.startswith("64 is undecided with 4 seeds: about ")
    assert other == "Convert everything, by the optimizer's own rule. What differs: B = 64, linear (off by 40 %)."
    assert theory.startswith(
        "SVAG ell = 2 is a test of the theory behind the rule, not of a change: its simulation agrees"
    )
