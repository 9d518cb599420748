import json
from fractions import Fraction
from functools import lru_cache

import numpy as np
import pytest
import torch

from rootscale import reproduce
from rootscale.cli import main
from rootscale.lab import Check, Variant
from rootscale.lab.text import Tokens, Vocabulary
from rootscale.reproduce import experiments, experiments_folder, load_file

pytest.importorskip("transformers")
torch.set_num_threads(1)
MADE_OF_LINES = ["gpt-wikitext", "gpt-enwik8", "gpt-switch", "gpt-svag", "roberta-mlm", "roberta-svag"]


@lru_cache(maxsize=1)
def large():
    """Something of the size of enwik8 in its place; it takes no memory."""
    parts = {"train": torch.zeros(1, dtype=torch.uint8).expand(100_000_000)}
    return Tokens("enwik8-byte", parts, Vocabulary("byte"))


@pytest.fixture
def texts(monkeypatch):
    for name in MADE_OF_LINES:
        lines = experiments()[name].lines
        module = getattr(lines, "func", lines).__globals__
        monkeypatch.setitem(module, "tokens_of", lambda folder, name: large())


def run(name, place, patch):
    patch.chdir(place)
    out = place / "results" / name
    assert main(["reproduce", name, "--smoke", "--out", str(out)]) == 0
    return out


@pytest.mark.parametrize("name", MADE_OF_LINES)
@pytest.mark.parametrize("small", [False, True])
def test_lines_of_an_experiment_have_different_names_and_valid_plans(name, small, texts):
    experiment = experiments()[name]
    lines, settings = experiment.lines(experiment.options(smoke=small, device="cuda"))
    assert len({line.label for line in lines}) == len(lines) > 1
    assert lines[0].variant == Variant()
    steps = np.diff(settings.grid).min()
    assert settings.fast
    assert (settings.micro is None) == small
    for line in lines:
        plan = line.variant.plan(line.task.plan)
        assert max(int(line.task.plan.batch_size.total * kappa) for kappa in line.variant.kappas) <= steps
        assert line.task.plan.samples == settings.grid[-1]
        assert plan.samples == settings.grid[-1] * line.variant.ell**2


def test_gpt_runs_have_the_papers_hyperparameters_at_1024(texts):
    experiment = experiments()["gpt-enwik8"]
    lines, _ = experiment.lines(experiment.options())
    plans = {line.label: line.variant.plan(line.task.plan) for line in lines}
    sizes = [int(plan.batch_size.total) for plan in plans.values()]
    assert sizes == [64, 256, 1024, 1024, 1024]
    whole = plans["B = 1,024"].optimizer
    found = (whole.eta, whole.beta1, whole.beta2, whole.eps)
    assert found == pytest.approx((1e-3, 0.9875, 0.996, 2e-8))
    assert plans["B = 1,024, learning rate only"].optimizer.beta1 == plans["B = 64"].optimizer.beta1
    assert plans["B = 1,024, linear"].optimizer.eta == pytest.approx(16 * plans["B = 64"].optimizer.eta)


def test_the_ramp_of_gpt_begins_at_the_switch(texts):
    experiment = experiments()["gpt-switch"]
    lines, settings = experiment.lines(experiment.options())
    total = settings.grid[-1]
    assert settings.switch_at / total == pytest.approx(0.4, abs=1e-3)
    ramp = lines[-1].variant
    assert ramp.kappas == (4, 16)
    assert [at / total for at, _ in ramp.ramp] == pytest.approx([0.55], abs=0.01)


def test_svag_has_the_papers_betas_and_sequences(texts):
    experiment = experiments()["gpt-svag"]
    lines, _ = experiment.lines(experiment.options())
    adam = lines[0].task.plan.optimizer
    assert (adam.beta1, adam.beta2) == (0.9, 0.98)
    assert lines[0].task.train.length == 64
    assert lines[1].variant.ell == 2


def test_gpt_smoke_learns_and_its_perplexities_are_told(tmp_path, monkeypatch, capsys):
    out = run("gpt-wikitext", tmp_path, monkeypatch)
    record = json.loads((out / "experiment.json").read_text())
    assert [final["batch_size"] for final in record["final"]] == [4, 16, 16, 16]
    assert "test loss" in capsys.readouterr().out
    loss = Check.load(out).base.trajectory.values["test loss"][0]
    assert loss[-1] < loss[0] - 0.5
    table = load_file(experiments_folder() / "gpt_wikitext.py").perplexities(out)
    assert (
        f"| B = 4 | 1 | {Check.load(out).base.trajectory.values['train loss'][0, -1]:.3f} | {loss[-1]:.3f} |" in table
    )
    assert len(table.splitlines()) == 6


def test_roberta_smoke_runs_the_whole_path(tmp_path, monkeypatch):
    out = run("roberta-mlm", tmp_path, monkeypatch)
    record = json.loads((out / "experiment.json").read_text())
    assert [final["batch_size"] for final in record["final"]] == [4, 8, 8, 8]
    loss = Check.load(out).base.trajectory.values["test loss"][0]
    assert loss[-1] < loss[0] - 0.3


def test_roberta_runs_have_the_papers_hyperparameters_at_1024(texts):
    experiment = experiments()["roberta-mlm"]
    lines, settings = experiment.lines(experiment.options(device="cuda"))
    adam = lines[2].variant.plan(lines[2].task.plan).optimizer
    assert lines[2].variant.kappa == 16
    at = lines[1].variant.plan(lines[1].task.plan)
    assert at.batch_size.total == 1024
    found = (at.optimizer.eta, at.optimizer.beta1, at.optimizer.beta2, at.optimizer.eps)
    assert found == pytest.approx((1e-3, 0.99375, 0.996, 2e-6))
    assert adam.eta == pytest.approx(2e-3)
    assert settings.micro == 512


def test_glue_smoke_fine_tunes_every_pretrained_model(tmp_path, monkeypatch, capsys):
    out = run("glue", tmp_path, monkeypatch)
    record = json.loads((out / "glue.json").read_text())
    assert record["complete"]
    assert {run["task"] for run in record["runs"]} == {"CoLA", "MRPC", "STS-B"}
    assert len(record["runs"]) == 2 * 3 * 2
    scores = [run["score"] for run in record["runs"] if (run["pretrained_at"], run["task"]) == (4, "CoLA")]
    assert f"| 4 | {max(scores):.3f} |" in (out / "README.md").read_text()
    found = experiments()["glue"].stored(out)
    assert "which says nothing about the claim" in found.words
    assert found.figure.exists()
    assert experiments()["glue"].stored(tmp_path / "nowhere") is None


def test_the_best_of_the_grid_is_taken_for_every_seed_and_then_the_mean():
    module = load_file(experiments_folder() / "glue.py")
    runs = [(256, 0, 0.5), (256, 0, 0.7), (256, 1, 0.9), (1024, 0, 0.6), (1024, 1, None)]
    runs = [{"pretrained_at": size, "seed": seed, "task": "RTE", "score": score} for size, seed, score in runs]
    table = module.best({"runs": runs})
    assert table == {256: {"RTE": (pytest.approx(0.8), pytest.approx(0.1))}, 1024: {"RTE": (0.6, None)}}
    assert module.spreads(table) == {"RTE": pytest.approx(0.2)}
    assert module.PAPER[4096]["RTE"] == 0.675
    assert module.PAPER[8192]["CoLA"] == 0.626


def test_mistakes_are_answered_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROOTSCALE_DATA", raising=False)
    for words, message in (
        ("gpt-wikitext --smoke --batch-sizes 16 64", "must be multiples of 256, got 16"),
        ("gpt-wikitext --smoke --batch-sizes 1024 1048576", "fewer than four steps at batch size 4,096"),
        ("gpt-switch --smoke --batch-sizes 1024 2048", "needs three or more batch sizes"),
        ("gpt-wikitext", "ROOTSCALE_DATA"),
    ):
        assert main(["reproduce", *words.split()]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_the_smallest_batch_is_the_base(texts):
    experiment = experiments()["gpt-wikitext"]
    lines, _ = experiment.lines(experiment.options(batch_sizes=(4096, 1024)))
    assert [line.variant.kappa for line in lines] == [1, Fraction(4), Fraction(4), Fraction(4)]
    assert reproduce.experiments()["gpt-wikitext"].defaults.batch_sizes[0] == 1024
