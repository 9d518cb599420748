"""The same model, sooner: its arms, what the noise said, and the pages made of what is stored."""

import math
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch

from rootscale.cli import main
from rootscale.lab import Table
from rootscale.lab.group import rows_of
from rootscale.paper.entries import entries_of
from rootscale.paper.experiments import experiments, sooner, switch_lines
from rootscale.paper.headline import HEADLINES, Way, ways_of
from rootscale.paper.text.tokens import Tokens
from rootscale.paper.text.vocabularies import Vocabulary
from rootscale.trajectory import Trajectory

pytest.importorskip("transformers")
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"


@lru_cache(maxsize=1)
def large():
    """Something of the size of enwik8 in its place; it takes no memory."""
    return Tokens("enwik8-byte", {"train": torch.zeros(1, dtype=torch.uint8).expand(100_000_000)}, Vocabulary("byte"))


@pytest.fixture
def lines(monkeypatch):
    monkeypatch.setattr(switch_lines, "tokens_of", lambda folder, name: large())

    def made(name):
        experiment = experiments()[name]
        found, settings = experiment.lines(experiment.options(device="cuda"))
        return {line.label: line for line in found}, settings

    return made


@pytest.fixture(scope="module")
def entries():
    return {entry.experiment.name: entry for entry in entries_of(RESULTS) if entry.there}


def rate(line, samples):
    """The learning rate and the batch size in use after so many samples."""
    at = [0, *(place for place, _ in line.variant.ramp)]
    stage = max(i for i, place in enumerate(at) if place <= samples)
    plan = line.variant.plans(line.task.plan)[stage]
    size = int(plan.batch_size.total)
    return plan.learning_rate(samples / size), size


def test_all_arms_see_the_same_samples_and_the_noise_is_measured_along_the_base_alone(lines):
    found, settings = lines("sooner")
    assert {line.task.plan.samples for line in found.values()} == {262_144}
    assert [line.settings(settings).measure.noise for line in found.values()] == [True] + [False] * 5
    assert len({line.variant.ramp for line in found.values()}) == 4, "the same stages, converted or not"


def test_seesaw_divides_the_rate_by_the_root_of_two_where_the_cosine_has_halved(lines):
    found, _ = lines("sooner")
    base, seesaw = found["B = 8 kept"], found["Seesaw"]
    peak = base.task.plan.optimizer.eta
    for k, (at, kappa) in enumerate(seesaw.variant.ramp, start=1):
        assert kappa == 2**k
        assert rate(base, at)[0] == pytest.approx(peak / 2**k, rel=0.01)
        assert rate(seesaw, at) == (pytest.approx(peak / math.sqrt(2) ** k), 8 * 2**k)
    last = seesaw.variant.plan(seesaw.task.plan).optimizer
    assert (last.beta1, last.beta2, last.weight_decay) == (0.9, 0.95, 0.1), "nothing else changes"


def test_raised_instead_of_the_decay_keeps_the_rate_near_its_peak(lines):
    found, _ = lines("sooner")
    line = found["raised instead of the decay, converted"]
    peak = line.task.plan.optimizer.eta
    for at, _ in line.variant.ramp:
        assert rate(line, at)[0] == pytest.approx(peak, rel=0.02)


def test_the_rule_of_marek_keeps_the_half_life_of_beta2_in_tokens(lines):
    found, _ = lines("one-gpu")
    plan = found["B = 8, Marek et al., learning rate / 3"].task.plan
    base = found["B = 512, at once"].task.plan
    half_lives = [p.batch_size.total * math.log(0.5) / math.log(p.optimizer.beta2) for p in (plan, base)]
    assert half_lives[0] == pytest.approx(half_lives[1])
    assert plan.optimizer.beta1 == base.optimizer.beta1
    assert plan.optimizer.eta == pytest.approx(base.optimizer.eta / 3)
    assert found["B = 512, accumulated"].setup.micro == 8


def noisy(scales, trace=2.0):
    """Runs of two seeds with these noise scales, and a little spread."""
    scale = np.array(scales)[None] * np.array([[0.99], [1.01]])
    values = {"Tr Sigma": np.full_like(scale, trace), "noise scale": scale}
    return Trajectory(
        np.arange(len(scales), dtype=float), values, meta={"samples": [100 * i for i in range(len(scales))]}
    )


def test_the_batch_grows_to_half_of_the_noise_scale_and_never_above():
    schedule = sooner.grown(noisy([1, 15, 15, 40, 40, 40, 40, 5, 5, 5, 1000, 1000, 1000, 1000]), start=8, most=32)
    assert schedule.stages == ((0, 8), (500, 16), (1200, 32)), "when the window of three is above, but for the end"


def test_the_stages_and_the_rates_are_what_the_stored_runs_say(entries):
    base = entries["sooner"].check.base.trajectory
    seeds = [place for place, seed in enumerate(base.meta["seeds"]) if seed in (1, 2, 3)]
    assert sooner.grown(rows_of(base, seeds), 8, 128).stages == sooner.GROWN
    for name, sizes in (("sooner-lr", [8]), ("sooner-large-lr", [128]), ("one-gpu-lr", [512])):
        ends = {final.label: final.end("test loss").value for final in entries[name].finals}
        for size in sizes:
            best = min((value, label) for label, value in ends.items() if label.startswith(f"B = {size},"))
            assert float(best[1].rpartition(" ")[2]) == sooner.RATES[size]


@pytest.mark.parametrize(("gap", "verdict"), [
    ((0.002, 0.005), "as good"), ((0.02, 0.005), "worse"), ((0.008, 0.005), "undecided"),
    ((0.001, math.inf), "one seed"), (None, "base"),
])  # fmt: skip
def test_a_model_is_as_good_where_its_whole_interval_is_below_the_margin(gap, verdict):
    way = Way(sooner.ARMS[0], 4, (1.2, 0.001), gap, 100, 1000, 1.0, 0.1, 0, None)
    assert way.verdict == verdict


@pytest.mark.parametrize("name", HEADLINES)
def test_the_page_of_a_headline_is_made_of_what_is_stored(name, entries):
    entry, headline = entries[name], HEADLINES[name]
    assert headline.page(entry) == (entry.folder / "README.md").read_text(encoding="utf-8")
    assert (entry.folder / "seconds.png").exists()


def test_the_guide_to_batch_schedules_has_the_measured_numbers(entries):
    text = " ".join((ROOT / "docs" / "batch-schedules.md").read_text(encoding="utf-8").split())
    base, noise, raised, seesaw, rate, large = ways_of(entries["sooner"], sooner.ARMS)
    for way, told in ((raised, "63 % of the seconds and half"), (noise, "46 % of the seconds and 29 % of the steps")):
        assert told.startswith(f"{100 * way.seconds / base.seconds:.0f} %")
        assert told in text
    assert round(100 * noise.steps / base.steps) == 29
    for way, told in ((rate, "ended .006 nats below"), (seesaw, "ended .005 below"), (large, "ended .011 higher")):
        assert f".{round(1000 * abs(way.gap[0])):03d}" in told
        assert told in text


def test_an_arm_that_never_ran_alone_has_the_seconds_of_the_same_steps(entries):
    ways = {way.arm.label: way for way in ways_of(entries["sooner"], sooner.ARMS)}
    one, other = ways["grown by the noise, converted"], ways["grown by the noise, learning rate only"]
    assert one.alone
    assert not other.alone
    assert (one.seconds, one.steps) == (other.seconds, other.steps)
    assert ways["B = 8 kept"].seeds == 4


def test_a_smoke_test_stores_what_a_run_alone_took(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    more = ["--smoke", "--epochs", "2", "--points", "2", "--out", "out", "--only", "B = 8 kept", "Seesaw"]
    assert main(["reproduce", "sooner", *more]) == 0
    check = Table.load("out")
    for arm in (check.base, *check.others):
        (run,) = arm.trajectory.meta["runs"]
        assert run["seeds"] == [0]
        assert run["steps"] == arm.trajectory.meta["steps"]
        assert 0 < run["settling"] + run["measuring"] < run["seconds"]
    assert check.others[0].trajectory.meta["steps"] < check.base.trajectory.meta["steps"]
    assert "noise scale" in check.base.trajectory.names
    assert np.array_equal(check.base.trajectory.times, check.others[0].trajectory.times)
