"""The experiments: what their files would run is what is stored, and what is said of them is made of that."""

import json
import sys
from pathlib import Path

import pytest

from rootscale.lab import Table
from rootscale.lab.study_file import StudyFile

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "experiments"))

from results import FILES, claims, stored  # noqa: E402

STUDIES = [
    (name, study)
    for name in FILES
    for study in StudyFile(ROOT / "experiments" / f"{name}.py").studies()
    if (ROOT / "results" / f"{study.name}.npz").is_file()
]


@pytest.mark.parametrize(("name", "study"), STUDIES, ids=[study.name for _, study in STUDIES])
def test_what_a_file_would_run_is_what_is_stored(name, study):
    table = Table.load(ROOT / "results" / f"{study.name}.npz")
    assert [arm.label for arm in study.arms] == [result.label for result in (table.base, *table.others)]
    assert study.judge == table.judge
    assert study.settings.switch_at == table.switch_at
    for arm, result in zip(study.arms, (table.base, *table.others), strict=True):
        meta = result.trajectory.meta
        assert arm.fields == result.factors
        assert arm.variant.to_dict() == meta["variant"]
        assert json.loads(json.dumps(arm.run.plan.to_dict())) == meta["base_plan"]
        assert (arm.run.name, list(study.settings.grid)) == (meta["task"], meta["samples"])
        assert result.trajectory.replicas == study.seeds
        assert set(result.trajectory.names) <= set(study.keeps)


@pytest.fixture(scope="module")
def found():
    return list(stored(ROOT / "results"))


def test_the_table_of_claims_is_made_of_what_is_stored(found):
    assert claims(found) in (ROOT / "results" / "README.md").read_text(encoding="utf-8")


def test_what_is_said_of_stages_is_what_is_stored(found):
    tables = {study.name: table for name, study, table in found if name == "stages"}
    off, sure = {}, {}
    for name, table in tables.items():
        for result in table.others:
            gap = result.comparison.gaps["train loss"].largest
            off.setdefault((name.split("-")[1], result.factors.get("rule"), result.factors["form"]), []).append(gap.gap)
            sure[name, result.factors.get("rule"), result.factors["form"]] = abs(gap.gap), gap.se
    for name in tables:
        (once, a), (staged, b) = (sure[name, "sqrt", form] for form in ("at once", "in stages"))
        assert once - staged > 2 * (a**2 + b**2) ** 0.5, "the first half of the hypothesis"
    readme, page, faq = ((ROOT / name).read_text() for name in ("README.md", "docs/when-it-matters.md", "docs/faq.md"))
    text = " ".join(page.split())

    def ranged(*key):
        values = [round(100 * gap) for gap in off[key]]
        return f"{min(values)} to {max(values)} %"

    def both(*key):
        return "{:.0f} and {:.0f} %".format(*(100 * gap for gap in off[key]))

    assert f"| higher by {ranged('mlp', 'sqrt-eta', 'at once')} |" in readme
    in_stages = ranged("mlp", "sqrt", "in stages")
    assert f"| higher by {ranged('mlp', 'sqrt', 'at once')}; in three stages by {in_stages} |" in readme
    assert f"and by {in_stages} in three stages" in " ".join(faq.split())
    assert f"in two stages by {ranged('convnet', 'sqrt-eta', 'in stages')} |" in readme
    assert f"by {ranged('convnet', 'sqrt', 'in stages')} |" in readme
    told = f"off by {both('mlp', 'sqrt', 'at once')} at once, and by {both('mlp', 'sqrt', 'in stages')} in three stages"
    assert told in text
    assert f"stages leave it off by {both('convnet', 'sqrt-eta', 'in stages')}" in text
