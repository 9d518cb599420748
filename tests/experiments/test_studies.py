"""The experiments: what their files would run is what is stored, and what is said of them is made of that."""

from pathlib import Path

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


def test_the_table_of_claims_is_made_of_what_is_stored():
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    assert results.tables(RESULTS) == text.partition(results.BEGIN + "\n")[2].partition(results.END)[0]


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


@pytest.mark.parametrize(
    "name", ["cifar10_scaling --net vgg16 --optimizer adam --recipe house --eps 1e-8", "cifar10_vk"]
)
def test_an_experiment_is_tried_in_small(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROOTSCALE_DATA", raising=False)
    file, *options = name.split()
    command = ["study", str(ROOT / "experiments" / f"{file}.py"), *options, "--smoke", "--workers", "1"]
    assert main([*command, "--seeds", "1"]) in (0, 1, 3)
    assert "The report: build/smoke/" in capsys.readouterr().out
