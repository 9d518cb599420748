import json
import multiprocessing
import os
import socket
import sys
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache, partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from rootscale.cli import main
from rootscale.lab import Deadline, Table, Tensors, Variant
from rootscale.paper import results, stored
from rootscale.paper.data.layouts import Images
from rootscale.paper.experiments import (
    experiments,
    glue,
    glue_page,
    glue_runs,
    imagenet_images,
    imagenet_resnet50,
    imagenet_training,
)
from rootscale.paper.finals import End, Final
from rootscale.paper.language.glue_data import Point, generated_glue
from rootscale.paper.models import convnet
from rootscale.paper.text.tokens import Tokens
from rootscale.paper.text.vocabularies import Vocabulary

pytest.importorskip("transformers")
MADE_OF_LINES = [name for name in experiments() if name.startswith(("gpt", "roberta"))]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Nets this small are slower on more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
        monkeypatch.setitem(module, "tokens_of", lambda folder, name, kind=None, size=None: large())


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
    assert settings.setup.fast
    assert (settings.setup.micro is None) == small
    for line in lines:
        plan = line.variant.plan(line.task.plan)
        assert max(int(line.task.plan.batch_size.total * kappa) for kappa in line.variant.kappas) <= steps
        assert line.task.plan.samples == settings.grid[-1]
        assert plan.samples == settings.grid[-1] * line.variant.ell**2


def test_gpt_runs_have_the_papers_hyperparameters_at_1024(texts):
    experiment = experiments()["gpt-wikitext"]
    lines, _ = experiment.lines(experiment.options(batch_sizes=(64, 256, 1024)))
    plans = {line.label: line.variant.plan(line.task.plan) for line in lines}
    sizes = [int(plan.batch_size.total) for plan in plans.values()]
    assert sizes == [64, 256, 1024, 1024, 1024]
    whole = plans["B = 1,024"].optimizer
    found = (whole.eta, whole.beta1, whole.beta2, whole.eps)
    assert found == pytest.approx((1e-3, 0.9875, 0.996, 2e-8))
    assert plans["B = 1,024, learning rate only"].optimizer.beta1 == plans["B = 64"].optimizer.beta1
    assert plans["B = 1,024, linear"].optimizer.eta == pytest.approx(16 * plans["B = 64"].optimizer.eta)


def test_the_small_copy_of_gpt_has_the_papers_betas_at_its_base(texts):
    experiment = experiments()["gpt-enwik8"]
    lines, _ = experiment.lines(experiment.options())
    base, largest = (line.variant.plan(line.task.plan) for line in (lines[0], lines[2]))
    assert (base.batch_size.total, largest.batch_size.total) == (8, 128)
    adam = base.optimizer
    assert (adam.eta, adam.beta1, adam.beta2, adam.eps) == pytest.approx((2e-4, 0.9875, 0.996, 2e-8))
    assert (largest.optimizer.eta, largest.optimizer.beta1) == pytest.approx((8e-4, 0.8))


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
    check, table = Table.load(out), stored.finals_of(out)
    assert [final.batch_size for final in table] == [4, 16, 16, 16]
    train, test = (check.base.trajectory.values[f"{part} loss"][0] for part in ("train", "test"))
    assert test[-1] < test[0] - 0.5
    other = check.others[0].trajectory.values["test loss"][0, -1]
    said = capsys.readouterr().out
    assert f"train log-perplexity {train[-1]:.3f}, validation log-perplexity {test[-1]:.3f}, " in said
    words = f"B = 4: {test[-1]:.3f}, B = 16: {other:.3f} ({other - test[-1]:+.3f}, one seed), "
    assert words in said
    results.build(tmp_path / "results", None)
    page = (out / "README.md").read_text()
    assert f"| B = 4 | 1 | 0 | {train[-1]:.3f} | {test[-1]:.3f} | base |" in page
    assert f" | {other:.3f} | {other - test[-1]:+.3f}, one seed | none: one seed |" in page
    assert "One seed: what a rerun would change is not known." in page
    assert "validation log-perplexity at the end (less the base's) " + words in page
    assert "images" not in page
    assert "Epochs" not in page


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ({"B = 256": 1.05, "B = 1,024": 0.91, "B = 1,024, linear": 3.0}, "rule all within the paper's ± 0.1"),
        ({"B = 256": 1.05, "B = 1,024": 1.11}, "not all within the paper's ± 0.1 of the base (largest at B = 1,024)"),
        ({"B = 256": 1.05, "B = 1,024": None}, "not all within the paper's ± 0.1 of the base (largest at B = 256)"),
        ({"64 → 256, everything converted": 1.02, "64 → 256, state zeroed": 2.0}, "rule all within the paper's"),
        ({"SVAG, ℓ = 2": 1.02}, None),
    ],
)
def test_the_claim_of_a_tenth_is_judged_under_the_rule(ends, words):
    curves = {"test loss": Mock(gap=[0.021], largest=Mock(gap=0.021, se=0.004))}
    base = Final("base", 64, 1, 0, {"test loss": End(1.0)}, {}, 1.0)
    others = [
        Final(label, 64, 1, int(v is None), {"test loss": End(v, None, None if v is None else v - 1)}, curves, 1.0)
        for label, v in ends.items()
    ]
    told = experiments()["gpt-enwik8"].words([base, *others])
    assert told.startswith("validation log-perplexity at the end (less the base's) base: 1.000, ")
    assert "largest gap on the way, over the range of the base's curve: " in told
    assert f"{next(iter(ends))} 2.1 ± 0.4 %" in told
    assert ("the paper's" in told) == (words is not None)
    assert words is None or words in told


def test_the_papers_values_are_carried_down_to_64_and_up_again(texts):
    experiment = experiments()["gpt-table"]
    lines, settings = experiment.lines(experiment.options())
    plans = {line.label: line.variant.plan(line.task.plan) for line in lines}
    base, largest = plans["B = 64"], plans["B = 1,024"]
    assert base.optimizer.eta == pytest.approx(1e-3 / 4)
    found = largest.optimizer
    assert (found.eta, found.beta1, found.beta2, found.eps) == pytest.approx((1e-3, 0.9875, 0.996, 2e-8))
    assert base.steps == pytest.approx(8192, rel=0.06)
    switched, settings = experiments()["gpt-table-switch"].lines(experiments()["gpt-table-switch"].options())
    assert settings.switch_at / settings.grid[-1] == pytest.approx(0.4, abs=1e-3)
    assert [line.variant.kappas[-1] for line in switched] == [1, 16, 16, 16, 16, 16]


def test_a_recipe_may_hold_at_another_batch_size(texts):
    experiment = experiments()["gpt-enwik8"]
    module = experiment.lines.func.__globals__
    setting, options = module["Setting"]("enwik8", reference=64), experiment.options(batch_sizes=(64, 256))
    lines, _ = module["scaling"](setting, options)
    assert lines[0].task.plan.batch_size.total == 64
    assert lines[0].task.plan.optimizer.eta == 1e-3


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """The smoke test of roberta-mlm, run once; its runs are where glue looks for them."""
    place = tmp_path_factory.mktemp("pretrained")
    with pytest.MonkeyPatch.context() as patch:
        run("roberta-mlm", place, patch)
    return place


def test_roberta_smoke_runs_the_whole_path(pretrained):
    out = pretrained / "results" / "roberta-mlm"
    assert [final.batch_size for final in stored.finals_of(out)] == [4, 8, 8, 8]
    loss = Table.load(out).base.trajectory.values["test loss"][0]
    assert loss[-1] < loss[0] - 0.3


def test_roberta_runs_have_the_papers_betas_at_their_base(texts):
    experiment = experiments()["roberta-mlm"]
    lines, settings = experiment.lines(experiment.options(device="cuda"))
    base, largest = (line.variant.plan(line.task.plan) for line in (lines[0], lines[2]))
    assert (base.batch_size.total, largest.batch_size.total) == (32, 512)
    adam = base.optimizer
    assert (adam.eta, adam.beta1, adam.beta2, adam.eps) == pytest.approx((2.5e-4, 0.99375, 0.996, 2e-6))
    assert (largest.optimizer.eta, largest.optimizer.beta1) == pytest.approx((1e-3, 0.9))
    assert settings.setup.micro == 512


@pytest.fixture
def few_points(monkeypatch):
    """One short fine-tuning for each task."""
    monkeypatch.setattr(glue, "smoke_points", lambda task: [Point(32, 1e-2, 1)])


def test_glue_smoke_fine_tunes_every_pretrained_model(pretrained, monkeypatch):
    runs = pretrained / "build" / "smoke" / "runs"
    before = {path: path.stat().st_mtime_ns for path in (runs / "roberta-mlm").rglob("trajectory.npz")}
    assert len(before) == 4
    out = run("glue", pretrained, monkeypatch)
    after = {path: path.stat().st_mtime_ns for path in (runs / "roberta-mlm").rglob("trajectory.npz")}
    assert after == before, "nothing was pre-trained again"
    record = json.loads((out / "glue.json").read_text())
    assert record["complete"]
    assert {run["task"] for run in record["runs"]} == {"CoLA", "MRPC", "STS-B"}
    assert len(record["runs"]) == 2 * 3 * 2
    scores = [run["score"] for run in record["runs"] if (run["pretrained_at"], run["task"]) == (4, "CoLA")]
    assert f"| 4 | {max(scores):.3f} |" in (out / "README.md").read_text()
    check = Table.load(pretrained / "results" / "roberta-mlm")
    losses = [one["log_perplexity"] for one in record["pretraining"]["runs"]]
    assert losses == [arm.trajectory.values["test loss"][0, -1] for arm in (check.base, check.others[0])]
    found = experiments()["glue"].stored(out)
    assert "which says nothing about the claim" in found.words
    assert found.figure.exists()
    assert experiments()["glue"].stored(out / "nowhere") is None
    assert experiments()["glue"].options(smoke=True) == glue_runs.PRETRAINING.options(smoke=True)


def test_glue_that_is_stopped_resumes_to_the_same_scores(pretrained, few_points, tmp_path, monkeypatch):
    options = glue_runs.PRETRAINING.options(smoke=True)
    before, looks = pretrained / "build" / "smoke" / "runs" / "roberta-mlm", 0

    class Soon(Deadline):
        """Passes after so many looks at it."""

        @property
        def passed(self):
            nonlocal looks
            looks -= 1
            return looks < 0

    def go(name, deadline, pretrained=before):
        with glue.planned(options, glue.small_points) as plan:
            return glue.run_all(
                glue_runs.Progress(plan, tmp_path / f"{name}-runs", pretrained, deadline), tmp_path / name, ""
            )

    assert not go("cut", Soon(), tmp_path / "nowhere")
    assert not (tmp_path / "cut-runs").exists(), "no run was made"
    assert "| pre-trained at B | CoLA | MRPC | STS-B |" in (tmp_path / "cut" / "README.md").read_text()
    assert "no two batch sizes can be compared yet (unfinished)" in glue.stored(tmp_path / "cut").words
    rounds, looks = 1, 20
    while not go("cut", Soon()):
        record = json.loads((tmp_path / "cut" / "glue.json").read_text())
        assert not record["complete"]
        assert "not finished" in (tmp_path / "cut" / "README.md").read_text()
        rounds, looks = rounds + 1, 20
        assert rounds < 30
    assert rounds > 1
    assert go("whole", Deadline())
    looks = 0
    assert go("cut", Soon()), "all is there to be read"
    cut, whole = (json.loads((tmp_path / name / "glue.json").read_text())["runs"] for name in ("cut", "whole"))
    assert cut == whole
    assert len(whole) == 6


def test_tasks_of_glue_are_those_whose_files_are_there(tmp_path, caplog):
    caplog.set_level("INFO", "rootscale")
    with pytest.raises(ValueError, match=r"no task of GLUE in .*: it must hold glue/NAME/train.tsv and dev.tsv"):
        glue.available(tmp_path)
    generated_glue(tmp_path)
    (tmp_path / "glue" / "MRPC" / "dev.tsv").unlink()
    assert glue.available(tmp_path) == ("CoLA", "STS-B")
    assert "CoLA, STS-B; not SST-2, MRPC, QQP, MNLI, QNLI, RTE" in caplog.text


def test_tasks_on_which_one_answer_for_all_is_as_good_are_named():
    table = {256: {"RTE": (0.6, None), "CoLA": (0.3, None)}, 1024: {"RTE": (0.62, None), "MRPC": (0.82, None)}}
    assert glue_page.at_chance(table) == ["RTE", "MRPC"]
    table[1024]["RTE"] = (0.63, None)
    assert glue_page.at_chance(table) == ["MRPC"]


def test_the_page_of_glue_is_made_of_what_is_stored():
    folder = Path(__file__).parents[2] / "results" / "glue"
    record = json.loads((folder / "glue.json").read_text())
    assert glue_page.page(record) == (folder / "README.md").read_text()
    assert "**At chance:** CoLA, MRPC, RTE." in glue_page.page(record)


def test_the_best_of_the_grid_is_taken_for_every_seed_and_then_the_mean():
    module = glue_page
    runs = [(256, 0, 0.5), (256, 0, 0.7), (256, 1, 0.9), (1024, 0, 0.6), (1024, 1, None)]
    runs = [{"pretrained_at": size, "seed": seed, "task": "RTE", "score": score} for size, seed, score in runs]
    table = module.best({"runs": runs})
    assert table == {256: {"RTE": (pytest.approx(0.8), pytest.approx(0.1))}, 1024: {"RTE": (0.6, None)}}
    assert module.spreads(table) == {"RTE": pytest.approx(0.2)}
    assert module.PAPER[4096]["RTE"] == 0.675
    assert module.PAPER[8192]["CoLA"] == 0.626


# -- ImageNet --------------------------------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path):
    imagenet_images.generated(tmp_path / "images")
    base = imagenet_resnet50.imagenet_plan(64, 2, batch_size=8)
    model = partial(convnet, width=4, momentum=0.1)
    return imagenet_training.Job(tmp_path / "images", model, 16, base, 4, 2, torch.device("cpu"), 0)


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory):
    """The folder of the smoke test's results, run once."""
    with pytest.MonkeyPatch.context() as patch:
        return run("imagenet-resnet50", tmp_path_factory.mktemp("imagenet"), patch)


def test_imagenet_smoke_runs_the_whole_path(imagenet):
    out = imagenet
    record = json.loads((out / "imagenet.json").read_text())
    assert record["complete"]
    assert [run["batch_size"] for run in record["runs"]] == [8, 16]
    assert [len(run["test accuracy"]) for run in record["runs"]] == [2, 2]
    assert "B = 16: " in experiments()["imagenet-resnet50"].stored(out).words
    assert experiments()["imagenet-resnet50"].stored(out / "nowhere") is None


def test_imagenet_takes_options_stops_and_collects(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "reproduce imagenet-resnet50 --smoke --epochs 1 --seeds 2 --batch-sizes 256 --runs runs --out out".split()
    assert main([*words, "--minutes", "0"]) == 3
    record = json.loads((tmp_path / "out" / "imagenet.json").read_text())
    assert (record["complete"], record["runs"]) == (False, [])
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["locks"]
    assert main(words) == 0
    record = json.loads((tmp_path / "out" / "imagenet.json").read_text())
    assert [(run["batch_size"], run["seed"]) for run in record["runs"]] == [(16, 0), (16, 1)]
    assert [run["steps"] for run in record["runs"]] == [[2, 4]] * 2
    assert record["command"].endswith("--epochs 1 --batch-sizes 256 --seeds 2 --smoke")
    assert len(list((tmp_path / "runs").iterdir())) == 3
    assert main([*words, "--minutes", "0"]) == 0
    assert json.loads((tmp_path / "out" / "imagenet.json").read_text())["runs"] == record["runs"]
    assert main([*words, "--minutes", "0", "--points", "1"]) == 3  # other runs


def test_imagenet_has_the_papers_plan():
    plan = imagenet_resnet50.imagenet_plan(1_281_167)
    adam = plan.optimizer
    assert (adam.eta, adam.beta1, adam.beta2, adam.eps, adam.weight_decay) == (3e-4, 0.999, 0.999, 1e-8, 1e-4)
    assert plan.steps == 450_360
    assert plan.schedule.warmup == 5 * 5004
    assert plan.schedule.milestones == (50 * 5004, 80 * 5004)
    rates = [plan.learning_rate(epoch * 5004) for epoch in (0, 5, 49, 50, 80)]
    assert rates == pytest.approx([3e-7, 3e-4, 3e-4, 3e-5, 3e-6])
    large = plan.at(32_768, "with paper").optimizer
    assert (large.eta, large.beta1) == pytest.approx((3e-4 * 128**0.5, 0.872))


def test_processes_share_the_micro_batches_of_one():
    def draws(*process):
        return imagenet_images.Draws(100, imagenet_images.Micro(16, 4, *process), range(3, 6), 0)

    alone = list(draws())
    assert len(alone) == len(draws()) == 12
    assert list(draws(1, 2)) == alone[1::2]
    assert [position for _, position in alone[0]] == [48, 49, 50, 51]
    assert all(0 <= number < 100 for part in alone for number, _ in part)
    assert alone[:4] != alone[4:8]
    with pytest.raises(ValueError, match="must be a multiple of 12"):
        draws(0, 3)


def test_images_are_cropped_by_position_and_tests_take_the_middle(job):
    images = imagenet_images.Folder(job.root / "train", 16, seed=0)
    first, label = images[3, 7]
    assert first.shape == (3, 16, 16)
    assert first.dtype == torch.uint8
    assert label == images.labels[3]
    assert torch.equal(images[3, 7][0], first)
    assert not torch.equal(images[3, 8][0], first)
    fixed = imagenet_images.Folder(job.root / "val", 16)
    assert torch.equal(fixed[0, 0][0], fixed[0, 1][0])
    with pytest.raises(ValueError, match="must have a folder for each class"):
        imagenet_images.Folder(job.root / "train" / "class0", 16)


def test_a_run_on_images_that_is_stopped_goes_on_to_the_same_end(job, tmp_path):
    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()
    whole = imagenet_training.train(job, 16, 0, tmp_path / "whole")
    assert whole["steps"] == [4, 8]
    for _ in range(7):
        assert imagenet_training.train(replace(job, deadline=0.0), 16, 0, tmp_path / "cut") is None
    cut = imagenet_training.train(job, 16, 0, tmp_path / "cut")
    assert cut["test accuracy"] == whole["test accuracy"]
    assert cut["test loss"] == pytest.approx(whole["test loss"], rel=1e-6)
    assert imagenet_training.train(job, 16, 0, tmp_path / "cut") == cut


def as_rank(rank, port, words):
    """Run a command as one of two processes that torchrun started."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    sys.exit(main(words))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_two_processes_make_the_run_of_one_with_more_accumulation(imagenet, tmp_path):
    alone = json.loads((imagenet / "imagenet.json").read_text())
    out = tmp_path / "shared"
    words = ["reproduce", "imagenet-resnet50", "--smoke", "--out", str(out), "--runs", str(tmp_path / "runs")]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=as_rank, args=(rank, port, words)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
    assert [process.exitcode for process in ranks] == [0, 0]
    shared = json.loads((out / "imagenet.json").read_text())
    assert [record["processes"] for record in (alone, shared)] == [1, 2]
    for one, other in zip(alone["runs"], shared["runs"], strict=True):
        assert other["train loss"] == pytest.approx(one["train loss"], rel=1e-3)


def test_tiny_imagenet_smoke_runs_the_whole_path(tmp_path, monkeypatch):
    out = run("tiny-imagenet-resnet50", tmp_path, monkeypatch)
    assert [final.batch_size for final in stored.finals_of(out)] == [4, 16]


def test_tiny_imagenet_is_converted_from_the_papers_256(monkeypatch):
    images = Images(*(Tensors(torch.zeros(n, 3, 8, 8).byte(), torch.zeros(n).long()) for n in (10_000, 1000)), ())
    experiment = experiments()["tiny-imagenet-resnet50"]
    monkeypatch.setitem(experiment.lines.__globals__, "_tiny", lambda folder: images)
    lines, settings = experiment.lines(experiment.options())
    plans = [line.variant.plan(line.task.plan) for line in lines]
    assert [int(plan.batch_size.total) for plan in plans] == [64, 256, 1024]
    assert plans[1].optimizer.eta == pytest.approx(3e-4)
    assert plans[0].samples == settings.grid[-1] == 60 * 39 * 256


def test_resnet50_is_there_without_torchvision():
    with torch.device("meta"):
        net = imagenet_resnet50._FromTransformers(1000)
        assert net(torch.zeros(2, 3, 224, 224)).shape == (2, 1000)
    assert sum(p.numel() for p in net.parameters()) == 25_557_032


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
    assert experiments()["gpt-wikitext"].defaults.batch_sizes[0] == 1024
