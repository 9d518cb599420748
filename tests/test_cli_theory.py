"""`rootscale order` and `rootscale simulate`, at small sizes, through their arguments."""

import argparse
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from rootscale import theory_settings as settings
from rootscale.cli import run_theory as commands
from rootscale.cli import theory as theory_cli
from rootscale.report import orders as figures
from rootscale.report import plotting
from rootscale.theory import FAMILIES, Paths, cases, quadratic
from rootscale.theory.cases import Against, Setting, measure_orders, run_processes
from rootscale.trajectory import Trajectory

PNG = b"\x89PNG\r\n\x1a\n"


def run(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    theory_cli.add_parsers(parser.add_subparsers(required=True))
    args = parser.parse_args([str(a) for a in arguments])
    return args.handler(args)


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")


def test_the_arguments_are_parsed_without_importing_torch():
    code = (
        "import argparse, sys; from rootscale.cli.theory import add_parsers; p = argparse.ArgumentParser(); "
        "add_parsers(p.add_subparsers()); p.parse_args(['order']); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("problem", settings.PROBLEMS)
@pytest.mark.parametrize("optimizer", settings.OPTIMIZERS)
def test_every_named_setting_has_a_chain_and_noises_are_the_families_and_mini_batches(optimizer, problem):
    signs = optimizer in ("signsgd", "signum", "lion", "lion-time")  # they see more of the noise than its covariance
    for noise in settings.NOISES:
        if noise == settings.MINIBATCH and settings.PROBLEMS[problem].noise != settings.MINIBATCH:
            continue
        known = noise == "gaussian" or (optimizer == "signsgd" and noise == "student-t" and problem != "logistic")
        if signs and not known:
            with pytest.raises(ValueError, match=r"density at 0, not by the covariance alone.*use noise gaussian"):
                Setting(optimizer, problem, noise)
        else:
            assert Setting(optimizer, problem, noise).chain(0.25).optimizer.eta > 0
    assert tuple(cases.NOISES) == settings.NOISES
    assert {name for name, family in FAMILIES.items() if getattr(family, "name", name) == name} == set(FAMILIES)


@pytest.mark.parametrize("optimizer", settings.OPTIMIZERS)
@pytest.mark.parametrize("problem", ["cosine", "quadratic", "linear"])
def test_learning_rates_are_moved_to_the_nearest_whose_steps_fill_the_time(optimizer, problem):
    setting = Setting(optimizer, problem, time=0.75)
    chain = setting.chain(0.21)
    steps = 0.75 / chain.clock
    assert steps == pytest.approx(round(steps), abs=1e-9)
    assert chain.optimizer.eta == pytest.approx(0.21, rel=0.2)


def test_default_learning_rates_are_those_that_the_noise_allows():
    assert [round(1 / chain.clock) for chain in Setting("adam", "cosine").chains()] == [16, 32, 64, 128]
    # 0.8 units of time at sigma0 = 0.05: 20, 10 and 5 samples a batch; 2.5 are not possible.
    assert [chain.oracle.sigma**-2 for chain in Setting("adam", "logistic").chains()] == pytest.approx([20, 10, 5])


def test_order_prints_errors_with_intervals_and_the_fitted_orders(capsys):
    assert run("order", "--optimizer", "rmsprop", "--etas", 0.25, 0.177, "--paths", 2000) == 0
    out = capsys.readouterr().out
    assert "rmsprop on cosine with gaussian noise: weak error against its SDE" in out
    assert "0.0625" in out
    assert "0.176777" in out  # moved from 0.177, so that 32 steps fill the time
    assert "± is 95 %, 2,000 paths each" in out.replace("\n", " ")
    fitted = [line for line in out.splitlines() if "│ order " in line and ("±" in line or "unresolved" in line)]
    assert len(fitted) == 4  # theta, theta^2, cos theta, theta*u


def test_order_finds_order_one_for_the_default_problem():
    found = measure_orders(Setting(), [0.25, 0.125], paths=Paths(4000))
    errors = found.errors
    assert errors.h == (1 / 16, 1 / 64)
    assert {name for name, fit in found.fits.items() if abs(fit.slope - 1) <= 0.15} == set(errors.names)
    assert errors.diverged == (0, 0)


def test_order_and_simulate_with_decay_momentum_and_schedules(capsys):
    assert run("order", "--optimizer", "adamw", "--schedule", "cosine", "--etas", 0.25, 0.125, "--paths", 200) == 0
    assert "adamw on cosine with gaussian noise, cosine schedule: weak error" in capsys.readouterr().out
    arguments = ("--optimizer", "sgd-momentum", "--eta", 0.01, "--ells", 2, "--paths", 50, "--points", 4)
    assert run("simulate", *arguments) == 0
    out = capsys.readouterr().out
    assert "discrete sgd-momentum" in out
    assert "steps of eta/(1-momentum)/8" in out
    assert run("simulate", "--optimizer", "rmspropw", "--schedule", "step", "--ells", 2, "--paths", 50) == 0
    assert "rmspropw on cosine with gaussian noise, step schedule, eta=0.25: 16 steps" in capsys.readouterr().out
    with pytest.raises(ValueError, match="a schedule is for SDEs whose theta is moved in proportion to eta; SignSDE"):
        run("order", "--optimizer", "lion", "--schedule", "linear")


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "rmspropw", "sgd-momentum", "signum-time"])
def test_two_batch_sizes_agree_under_the_rule_with_a_schedule_too(optimizer):
    found = measure_orders(Setting(optimizer, schedule="cosine"), [], against=Against(4), paths=Paths(500))
    error, se = found.errors.at("theta")
    assert abs(error[-1]) < max(abs(error[0]) / 4, 5 * se[-1])  # 8 times smaller steps: an error of order 1


def test_order_of_svag_and_of_two_batch_sizes(capsys):
    assert run("order", "--etas", 0.25, "--ells", 2, 3, "--paths", 200) == 0
    assert "SVAG, adam on cosine" in capsys.readouterr().out
    assert run("order", "--etas", 0.25, 0.125, "--kappa", 4, "--rule", "linear", "--paths", 200) == 0
    assert "against 4 times the batch size (rule 'linear')" in capsys.readouterr().out


@pytest.mark.parametrize(("rule", "low", "high"), [("sqrt", 0.0, 0.5), ("linear", 0.8, 1.2), ("none", 0.8, 1.2)])
def test_the_error_between_two_batch_sizes_vanishes_with_eta_under_the_rule_and_stays_under_others(rule, low, high):
    # eta^2 four times smaller: an error of order 1 is a quarter, one that stays is the same.
    found = measure_orders(Setting("rmsprop"), [0.125, 0.0625], against=Against(4, rule), paths=Paths(1000))
    error, se = found.errors.at("theta")
    assert abs(error[0]) > 5 * se[0]
    assert low < error[1] / error[0] < high


def test_simulate_prints_every_process_with_its_diverged_paths(capsys, tmp_path):
    folder = tmp_path / "runs"
    assert run("simulate", "--eta", 0.25, "--ells", 2, "--paths", 50, "--points", 4, "--save", folder) == 0
    out = capsys.readouterr().out
    for label in ("discrete adam", "SVAG ell=2", "SDE"):
        assert label in out
    assert out.count("0 of 50") == 3 * 5  # processes and test functions
    assert "solved by heun with steps of eta^2/8" in out
    saved = Trajectory.load(folder / "SVAG-ell-2.npz")
    assert saved.values["m^2"].shape == (50, 5)
    np.testing.assert_allclose(saved.times, [0.5, 0.75, 1.0, 1.25, 1.5])


def test_simulated_means_agree_within_their_intervals():
    found = run_processes(Setting("rmsprop"), 0.1, ells=(2,), paths=Paths(1000), points=2)
    results = dict(found.trajectories)
    base = results.pop("discrete rmsprop")
    for other in results.values():
        for name in base.names:
            a, b = base[name], other[name]
            assert abs(a.mean[-1] - b.mean[-1]) < 4 * np.hypot(a.se[-1], b.se[-1])
            assert a.mean[0] == pytest.approx(b.mean[0], rel=1e-12)


def test_diverged_paths_are_counted_in_the_table(monkeypatch, capsys):
    def explosive(*args):
        plain = made("sgd", "quadratic")
        oracle = replace(plain.equation.oracle, problem=quadratic([1e300]))
        return replace(plain, equation=replace(plain.equation, oracle=oracle))

    made = cases.case
    monkeypatch.setattr(cases, "case", explosive)
    assert run("simulate", "--optimizer", "sgd", "--eta", 0.1, "--paths", 5, "--ells") == 0
    out = capsys.readouterr().out
    assert out.count("5 of 5") == 2 * 3
    assert "means are over the paths that did not diverge" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["order", "--noise", "minibatch"],
            "mini-batches need a problem with data, got --problem cosine; use --problem log",
        ),
        (
            ["order", "--ells", "2", "--etas", "0.2", "0.1"],
            "SVAG is measured over --ells at one eta, .*--etas 0.2",
        ),
        (["order", "--ells", "2", "--kappa", "4", "--etas", "0.2"], "choose either --ells .* or --kappa"),
        (["order", "--rule", "linear"], "--rule linear needs a second batch size.*--kappa 4"),
        (["order", "--etas", "3"], "a step at eta=3 takes longer than time=1; use a smaller eta"),
        (["order", "--etas", "-1"], "eta must be a finite number > 0, got -1"),
        (["order", "--time", "0"], "time must be a finite number > 0, got 0"),
        (["order", "--paths", "10"], "paths must be at least 100"),
        (
            ["order", "--problem", "logistic", "--time", "0.77"],
            "none of .* fills a time of 0.77 .* give --etas or",
        ),
        (["order", "--etas", "0.2", "0.2"], "etas must differ, .* there they are eta = 0.2, 0.2"),
        (["order", "--optimizer", "sgd", "--etas", "0.05", "0.0501"], "etas must differ"),
        (["order", "--ells", "2", "2"], "ells must differ"),
        (["order", "--kappa", "-2"], "kappa must be a whole number of at least 1, got -2"),
        (["order", "--ells", "1e160"], "ell must be a finite number >= 1 with a finite square"),
        (["order", "--png", "nowhere/x.png"], "there is no folder nowhere for the figure"),
        (["simulate", "--ells", "0"], "ell must be a finite number >= 1"),
        (["simulate", "--save", "/proc/nothing"], "/proc/nothing cannot be made a folder"),
        (["simulate", "--paths", "1"], "need --substeps >= 1, --points >= 1 and --paths >= 2, got 8, 20 and 1"),
    ],
)
def test_mistakes_are_answered_with_what_would_work(arguments, message):
    with pytest.raises(ValueError, match=message):
        run(*arguments)


def test_in_python_mistakes_are_refused_without_words_of_the_command_line():
    for wrong, message in (
        (
            lambda: Setting("adam", "cosine", "minibatch"),
            "need a problem with data, got 'cosine'; use .* the problem logistic",
        ),
        (
            lambda: Setting("adam", "logistic").chain(0.01),
            "at least one sample, which needs eta >= 0.05 here, got eta=0.01; SVAG goes further",
        ),
        (
            lambda: Setting("sgd", "logistic").chain(0.001),
            "which needs eta >= 0.0025 here, got eta=0.001",
        ),
        (lambda: Setting("adam", "logistic", time=0.7711).chain(0.1), "no number of steps fills time=0.7711"),
        (
            lambda: measure_orders(Setting(), [0.25], against=Against(64)),
            "kappa=64 gives beta1=-5; need kappa < 10.6667, or a chain of the same SDE with a smaller eta",
        ),
        (lambda: measure_orders(Setting(), [0.2, 0.1], ells=[2]), "SVAG is measured over ells at one of etas, got 2"),
        (lambda: measure_orders(Setting(), ells=[2], against=Against(4)), "choose either ells .* or kappa"),
        (lambda: Against(rule="linear"), "rule 'linear' needs a second batch size .* give a kappa above 1"),
        (
            lambda: measure_orders(Setting(problem="logistic", time=0.77)),
            "fills time=0.77 .* give etas or another",
        ),
        (lambda: run_processes(Setting(), 0.25, paths=Paths(1)), "need substeps >= 1, points >= 1 and paths >= 2"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            wrong()
        assert "--" not in str(error.value)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="problem must be one of cosine, quadratic, linear, logistic, got 'sine'"):
        Setting(problem="sine")


def test_without_matplotlib_a_figure_is_refused_before_any_work(monkeypatch, tmp_path):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(plotting.importlib, "import_module", missing)
    with pytest.raises(ValueError, match=r"figures need matplotlib.*pip install 'rootscale\[plot\]'"):
        run("simulate", "--png", tmp_path / "a.png", "--paths", 10**9)


def test_both_commands_write_a_png(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    order, simulate = tmp_path / "order.png", tmp_path / "simulate.png"
    assert run("order", "--optimizer", "sgd", "--etas", 0.0625, 0.03125, "--paths", 500, "--png", order) == 0
    assert run("simulate", "--paths", 20, "--points", 3, "--png", simulate) == 0
    out = capsys.readouterr().out.replace("\n", "")
    for path in (order, simulate):
        assert path.read_bytes()[:8] == PNG
        assert f"wrote {path}" in out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["order.png", "simulate.png"]


def test_the_figure_says_how_many_replicas_diverged(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    values = np.ones((4, 3))
    values[2, 1:] = np.nan
    texts = []
    original = figures._save

    def save(figure, path):
        texts.extend(text.get_text() for text in figure.legends[0].get_texts())
        return original(figure, path)

    monkeypatch.setattr(figures, "_save", save)
    runs = {
        "all": Trajectory(np.arange(3.0), {"x": np.arange(12.0).reshape(4, 3)}),
        "some": Trajectory(np.arange(3.0), {"x": values}),
    }
    figures.draw_trajectories(runs, tmp_path / "a.png")
    assert texts == ["all", "some (1 of 4 diverged)"]


def test_a_figure_must_be_a_png(tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match=r"figures are saved as .png, got 'a.pdf'; use --png a.png"):
        run("order", "--png", tmp_path / "a.pdf")


@pytest.mark.parametrize(
    ("value", "se", "text"),
    [
        (1.23456, 0.01, "1.235 ± 0.020"),
        (-0.0042, 0.0001, "-0.00420 ± 0.00020"),
        (3.1e-5, 2e-6, "(3.10 ± 0.39)e-5"),
        (1.0, 0.0, "1.000000 ± 0.000000"),
        (float("nan"), 1.0, "-"),
    ],
)
def test_numbers_are_shown_to_the_digits_that_their_error_leaves(value, se, text):
    assert commands.number(value, se) == text


def test_a_learning_rate_is_moved_to_one_with_whole_mini_batches():
    for optimizer in ("adam", "sgd"):
        chain = Setting(optimizer, "logistic").chain(0.25)
        assert chain.oracle.sigma**-2 == pytest.approx(round(chain.oracle.sigma**-2))
        assert chain.optimizer.eta == pytest.approx(0.25, rel=0.7)  # whole batches are few
