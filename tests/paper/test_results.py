"""The stored results say one thing: the tables and the page have the same number for the same runs."""

import re
from pathlib import Path

import numpy as np
import pytest

from rootscale.format import percent
from rootscale.gap import gaps
from rootscale.lab import Table
from rootscale.paper.entries import entries_of
from rootscale.paper.experiments import experiments
from rootscale.paper.finals import final_values
from rootscale.paper.headline import HEADLINES
from rootscale.paper.overview import outcome_tables
from rootscale.paper.pages import dominated_words, page
from rootscale.paper.shown import Point, Sweep
from rootscale.paper.stored import deviation_of, record_of
from rootscale.report.payload import make_payload

RESULTS = Path(__file__).parents[2] / "results"
CHECKS = sorted(path.parent for path in RESULTS.rglob("table.npz"))
ENTRIES = [
    entry
    for entry in entries_of(RESULTS)
    if entry.there and not entry.experiment.group and entry.experiment.name not in HEADLINES
]
NAMES = {str(folder.relative_to(RESULTS)): folder for folder in CHECKS}
#: Published numbers that once disagreed: folder, run, the train loss's largest gap.
ONCE_DISAGREED = {
    ("cifar10-resnet56-rmsprop", "B = 4,096"): "57.6 %",
    ("cifar10-resnet56-adam", "B = 1,024"): "33.5 %",
    ("tiny-imagenet-resnet50", "B = 1,024"): "37.8 %",
    ("cifar10-svag-rmsprop", "SVAG, ℓ = 2"): "-95.6 ± 75.1 %",
}


@pytest.fixture(scope="module")
def checks():
    return {name: Table.load(folder) for name, folder in NAMES.items()}


def shown_in_the_table(folder):
    """The gaps in ``README.md`` by run and test function."""
    lines = (folder / "README.md").read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| largest gap to the base's curve"))
    cells = [line.strip("| ").split(" | ") for line in lines[start:]]
    names = cells[0][1:]
    rows = [row for row in cells[2:] if len(row) == len(names) + 1]
    return {(row[0], name): text for row in rows for name, text in zip(names, row[1:], strict=True)}


@pytest.mark.parametrize("name", NAMES)
def test_table_and_page_have_the_same_gap_for_the_same_runs(name, checks):
    check, folder = checks[name], RESULTS / name
    page = make_payload(check)
    compares = name not in HEADLINES and (name not in experiments() or experiments()[name].shown.compares)
    curves = (folder / "README.md").exists() and compares  # other pages are of ends
    table = shown_in_the_table(folder) if curves else None
    count = 0
    for i, arm in enumerate(check.others, 1):
        again = gaps(check.base.trajectory, arm.trajectory)
        assert set(arm.comparison.gaps) == set(again)
        for function, gap in again.items():
            far = gap.largest
            np.testing.assert_array_equal(arm.comparison.gaps[function].gap, gap.gap)
            drawn = page["arms"][i]["gaps"][page["functions"].index(function)]["gap"]
            np.testing.assert_allclose(np.array(drawn, float), gap.gap, rtol=1e-5, atol=1e-12)
            if table is not None and (arm.label, function) in table:
                text = "diverged" if np.isnan(gap.gap[-1]) else percent(far.gap, far.se)
                assert table[arm.label, function] == text
                count += 1
    assert table is None or count == len(table) > 0


@pytest.mark.parametrize(("name", "label"), ONCE_DISAGREED)
def test_numbers_that_once_disagreed_are_one(name, label, checks):
    far = checks[name][label].comparison.gaps["train loss"].largest
    assert percent(far.gap, far.se).replace("-", "") == ONCE_DISAGREED[name, label].replace("-", "")
    assert shown_in_the_table(RESULTS / name)[label, "train loss"] == percent(far.gap, far.se)


@pytest.mark.parametrize("name", [name for name, folder in NAMES.items() if (folder / "experiment.json").exists()])
def test_final_values_take_their_gaps_from_the_comparison(name, checks):
    check = checks[name]
    for arm, final in zip(
        check.others,
        final_values([check.base, *check.others], deviation_of(record_of(RESULTS / name)))[1:],
        strict=True,
    ):
        assert final.curves == arm.comparison.gaps
        assert final.verdict == arm.verdict
        assert arm.verdict is not None or min(arm.comparison.seeds) < 4


def test_the_table_of_results_is_made_of_what_is_stored():
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    assert outcome_tables(RESULTS) in text
    entries = [
        entry for entry in entries_of(RESULTS) if entry.there and entry.experiment.title.startswith("The square")
    ]
    assert dominated_words(entries) in text


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.folder.name)
def test_the_page_of_an_experiment_is_made_of_what_is_stored(entry):
    assert page(entry) == (entry.folder / "README.md").read_text(encoding="utf-8")
    assert entry.figure.exists()
    assert f"]({entry.figure.name})" in page(entry)


def test_a_sweep_rings_the_lowest_loss_and_the_smallest_gap():
    points = [
        Point("B = 8", 1e-3, 2.0),
        Point("B = 8", 1e-2, 1.5),
        Point("B = 64", 1e-2, -3.0),
        Point("B = 64", 1.0, 1.0),
    ]
    losses, gaps_ = Sweep(points, "x", "y"), Sweep(points, "x", "y", (-1, 1))
    assert losses.series == ["B = 8", "B = 64"]
    assert [losses.best(name).number for name in losses.series] == [1e-2, 1e-2]
    assert [gaps_.best(name).number for name in gaps_.series] == [1e-2, 1.0]


def test_a_choice_among_learning_rates_is_no_comparison():
    entries = {entry.folder.name: entry for entry in entries_of(RESULTS)}
    text, sweep = page(entries["sooner-lr"]), experiments()["sooner-lr"].shown.sweep(entries["sooner-lr"].finals)
    assert "verdict" not in text
    assert "less the base's" not in text
    assert len(sweep.points) == 12
    lowest = {final.label: final.end("test loss").value for final in entries["sooner-lr"].finals}
    for size in sweep.series:
        best = min((value, label) for label, value in lowest.items() if label.startswith(f"{size},"))
        assert best[1] == f"{size}, learning rate {sweep.best(size).number:g}"


def test_muons_ratios_are_drawn_where_the_page_has_them():
    (entry,) = [entry for entry in entries_of(RESULTS) if entry.folder.name == "muon-ratio"]
    sweep, text = entry.experiment.shown.sweep(entry.finals), page(entry)
    assert [point.number for point in sweep.points if point.series == "4 times the batch"] == [np.inf, 1, 3, 10, 30]
    for point in sweep.points:
        assert percent(point.value / 100, point.error / 100) in text
    assert list(sweep.marks.values()) == ["measured: 0.44"]


def test_no_page_has_the_binomial_error_of_its_test_set():
    for path in RESULTS.rglob("README.md"):
        assert "binomial" not in path.read_text(encoding="utf-8"), path


def test_no_command_of_the_results_names_a_file_that_was_moved():
    for path in [*RESULTS.rglob("*.json"), *RESULTS.rglob("*.md"), *RESULTS.rglob("*.txt")]:
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"(?<!paper/)experiments/(\w+\.py)", text):
            assert (RESULTS.parent / "experiments" / name).exists(), path
