"""The experiments: what their files would run is what is stored, and what is said of them is made of that."""

import ast
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import results

from rootscale.cli import main
from rootscale.lab import Table
from rootscale.lab.study_file import StudyFile

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
#: Files whose studies are made without any data; those of language models need their text.
FILES = (
    "ablations", "cifar10_ablations", "cifar10_factors", "cifar10_scaling", "cifar10_svag", "cifar10_switch",
    "cifar10_vk", "digits_svag_start", "digits_switch", "stages",
)  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_what_a_file_would_run_is_what_is_stored(name):
    compared = 0
    for study in StudyFile(ROOT / "experiments" / f"{name}.py").studies():
        if not (RESULTS / f"{study.name}.npz").exists():
            continue
        table = Table.load(RESULTS / f"{study.name}.npz")
        assert study.completing(table).stored is table, "raises where a plan, a rule or a grid differs"
        arms, stored = {arm.label: arm for arm in study.arms}, (table.base, *table.others)
        assert [result.label for result in stored] == [label for label in arms if label in {r.label for r in stored}]
        assert {result.label: dict(result.factors) for result in stored} == {
            r.label: arms[r.label].fields for r in stored
        }
        assert study.judge.to_dict() == table.judge.to_dict()
        assert table.made["claim"] == study.claim
        compared += 1
    assert compared


def test_floors_and_momentum_on_digits_are_what_is_stored():
    problems = [("floors", {"problem": one}) for one in ("digits", "convnet", "convnet-ema")]
    kinds = [("momentum", {"kind": one}) for one in ("muon-digits", "muon-plain-digits", "lion-digits")]
    for name, given in problems + kinds:
        for study in StudyFile(ROOT / "experiments" / f"{name}.py").studies(**given):
            study.completing(Table.load(RESULTS / f"{study.name}.npz"))


def test_what_is_built_is_what_is_stored(tmp_path):
    """`make results` changes nothing: the table of claims, and the figures beside the data."""
    copy = tmp_path / "results"
    shutil.copytree(RESULTS, copy)
    results.build(copy)
    assert (copy / "README.md").read_text(encoding="utf-8") == (RESULTS / "README.md").read_text(encoding="utf-8")
    for name in results.TRACKED:
        assert (copy / f"{name}.png").read_bytes() == (RESULTS / f"{name}.png").read_bytes(), name


def test_results_hold_data_one_table_and_the_figures_that_pages_show():
    files = {path.relative_to(RESULTS).as_posix() for path in RESULTS.rglob("*") if path.is_file()}
    others = {name for name in files if not name.startswith(("verdict/", "benchmarks/"))}
    others -= {"README.md", *(f"{name}.png" for name in results.TRACKED)}
    assert {Path(name).suffix for name in others} == {".npz", ".json"}
    assert all("/" not in name for name in others), "one file a study"
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = {name for page in pages for name in re.findall(r"results/([\w-]+)\.png", page.read_text(encoding="utf-8"))}
    assert shown == set(results.TRACKED)


EXPERIMENTS = [path for path, _ in results.files()]


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_a_file_says_its_claim_its_protocol_its_cost_and_what_was_found(path):
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    parts = re.split(r"\n\n(?=(?:Claims?|Protocol|Cost|Finding)\b)", text)
    heads = {re.match(r"\w+", part)[0].removesuffix("s"): part for part in parts}
    assert {"Claim", "Protocol", "Cost"} <= heads.keys()
    assert text.splitlines()[0].endswith(("?", "."))
    own = [line for line in text.splitlines() if re.match(r" {4}(rootscale|python) ", line)]
    assert any(path.name in line for line in own), "a command that makes it"
    rows = (RESULTS / "README.md").read_text(encoding="utf-8").splitlines()
    done = any(line.startswith("| ") and f"../experiments/{path.name}" in line for line in rows)
    assert "Finding" in heads or not done, "a finding where there are data"
    if "Finding" in heads:
        assert re.search(r"n = |seed|replicas|paths", heads["Finding"]), "how many runs"


def test_every_stored_table_has_a_row():
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    for path in RESULTS.glob("*.npz"):
        assert f"]({path.name})" in text or path.stem.startswith("glue-"), path.name


def test_growing_in_stages_is_nearer_by_more_than_two_errors():
    for name in ("stages-mlp-0.999", "stages-mlp-0.95", "stages-convnet-0.999", "stages-convnet-0.95"):
        table = Table.load(RESULTS / f"{name}.npz")
        off = {}
        for result in table.others:
            if result.factors.get("rule") == "sqrt":
                gap = result.comparison.gaps["train loss"].largest
                off[result.factors["form"]] = abs(gap.gap), gap.se
        (once, a), (staged, b) = off["at once"], off["in stages"]
        assert once - staged > 2 * (a**2 + b**2) ** 0.5


#: Each file, with the options of one of its studies; the others are made by the same code.
SMOKE = (
    "ablations --net mlp --start switch", "bias_correction", "cifar10_ablations", "cifar10_factors",
    "cifar10_scaling --net vgg16 --optimizer adam --recipe house --eps 1e-8", "cifar10_svag --optimizer adam",
    "cifar10_switch", "cifar10_vk", "digits_svag_start --optimizer adam", "digits_switch --net digits-switch-ema",
    "elastic", "far_from_scratch --beta2 0.95", "floors --problem digits --betas 95", "forecast --net digits",
    "growth --net convnet", "horizon --times 1", "imagenet --images tiny", "language_scaling --setting enwik8",
    "language_svag --setting tiny", "language_switch --setting tiny", "momentum --kind lion-digits",
    "momentum_default --net mlp --kind lion --tune", "noise_dominates --optimizer adam --eps 1e-8", "one_gpu",
    "previous_moment", "rollouts", "saturating_rate --net pictures --tune", "sooner", "stages --net mlp",
    "svag_warm --optimizer adam --eps 1e-8",
)  # fmt: skip
#: Tried without being asked for.
QUICK = ("cifar10_scaling", "cifar10_vk")
#: What waits for another study: GLUE for pre-trained models, the study of stability for a measurement.
WAITING = {"glue", "stability"}


@pytest.fixture(scope="session")
def generated(tmp_path_factory):
    """A folder of data at random in the form of CIFAR-10 in 8 x 8 pixels and of enwik8."""
    folder, random = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    parts = {}
    for part, count in (("train", 25_000), ("test", 5_000)):
        parts[part] = random.integers(0, 256, (count, 3, 8, 8), np.uint8)
        parts[f"{part} labels"] = random.integers(0, 10, count, np.uint8)
    np.savez(folder / "cifar10-8x8.npz", **parts)
    (folder / "enwik8").write_bytes(random.integers(97, 123, 12_000_000, np.uint8).tobytes())
    return folder


def smoke(line, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    file, *options = line.split()
    command = ["study", str(ROOT / "experiments" / f"{file}.py"), *options, "--smoke", "--workers", "1"]
    assert main([*command, "--seeds", "1"]) in (0, 1, 3)
    assert "The report: build/smoke/" in capsys.readouterr().out


def test_every_file_with_a_study_is_tried():
    files = {path.stem for path, module in results.files() if hasattr(module, "STUDY")}
    assert files == {line.split()[0] for line in SMOKE} | WAITING


@pytest.mark.parametrize("line", [line for line in SMOKE if line.split()[0] in QUICK])
def test_an_experiment_is_tried_in_small(line, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("ROOTSCALE_DATA", raising=False)
    smoke(line, tmp_path, monkeypatch, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for line in SMOKE if line.split()[0] not in QUICK])
def test_every_experiment_is_tried_in_small(line, generated, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ROOTSCALE_DATA", str(generated))
    smoke(line, tmp_path, monkeypatch, capsys)


@pytest.mark.slow
def test_fine_tuning_is_tried_after_its_pre_training(generated, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ROOTSCALE_DATA", str(generated))
    smoke("language_scaling --setting roberta", tmp_path, monkeypatch, capsys)
    smoke("glue", tmp_path, monkeypatch, capsys)
