"""Outcomes and figures of the stored results: who decides, what is told, and that labels can be read."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from rootscale.paper.entries import entries_of
from rootscale.paper.experiments import experiments
from rootscale.paper.finals import SEED_DEVIATION, End
from rootscale.paper.overview import claims_of
from rootscale.paper.shown import CONTRADICTED, REPRODUCED, UNDECIDED, judge_ends
from rootscale.report import plotting

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def entries():
    return list(entries_of(RESULTS))


@pytest.fixture(scope="module")
def claims(entries):
    return list(claims_of(entries))


def test_what_stands_for_an_experiment_names_one_that_decides():
    names = {e.shown.stands_for for e in experiments().values() if e.shown.stands_for}
    assert {"imagenet-resnet50", "gpt-wikitext", "glue-grid"} <= names
    for name in names:
        assert not experiments()[name].shown.stands_for


def test_every_experiment_of_the_paper_is_in_one_row(entries, claims):
    stored = [entry.folder for claim in claims for entry in claim.stored]
    assert len(stored) == len(set(stored))
    paper = [e for e in entries if not e.experiment.group and not e.experiment.claim.startswith("Not in the paper")]
    assert {entry.folder for entry in paper if entry.stored() is not None} == set(stored)
    assert {entry.experiment.shown.stands_for or entry.experiment.name for entry in paper} == {
        claim.planned.experiment.name for claim in claims
    }


def test_runs_of_another_length_or_data_decide_nothing(claims):
    for claim in claims:
        deciding = [entry for entry in claim.stored if claim.decides(entry)]
        assert (claim.outcome == "not run") == (not deciding), claim.title
        for entry in deciding:
            assert not entry.there or entry.record["options"]["epochs"] == claim.planned.options.epochs
    (house,) = [c for c in claims if c.title.endswith("VGG-16, RMSprop")]
    assert house.outcome == CONTRADICTED
    longer = replace(house, planned=replace(house.planned, options=replace(house.planned.options, epochs=1000)))
    assert longer.outcome == "not run"
    assert "500 epochs instead of 1000" in longer.differences(house.stored[0])


def test_an_outcome_needs_twice_the_error():
    assert judge_ends([End(0.9, 0.005, -0.016, 0.007)], 0.03) == REPRODUCED
    assert judge_ends([End(0.9, 0.005, -0.017, 0.007)], 0.03) == UNDECIDED
    assert judge_ends([End(0.9, 0.005, -0.045, 0.007)], 0.03) == CONTRADICTED
    assert judge_ends([End(0.9, 0.005, 0.0, 0.007), End(None)], 0.03) == CONTRADICTED, "diverged"
    assert judge_ends([], 0.03) == UNDECIDED, "nothing decides nothing"


def test_another_net_or_a_small_copy_decides_nothing_even_as_planned(claims):
    other = [claim for claim in claims if not claim.planned.experiment.shown.paper_setting]
    names = {claim.planned.experiment.name for claim in other}
    assert {"gpt-svag", "cifar10-ablations", "cifar10-svag-adam-warm", "roberta-mlm", "glue-grid"} <= names
    assert {claim.outcome for claim in other} == {"not run"}
    for claim in other:
        assert claim.planned.experiment.shown.differs, "what differs is said"
    assert "mlp-sde" not in {claim.planned.experiment.name for claim in claims}, "the paper has no such experiment"


def test_the_epochs_of_a_warm_start_are_those_that_are_stored(entries):
    (entry,) = [entry for entry in entries if entry.folder.name == "cifar10-svag-rmsprop-warm"]
    samples = entry.check.base.trajectory.meta["samples"]
    assert [round(samples[i] / 50_000) for i in (0, -1)] == [6, 8]
    assert "the last of fewer" in entry.experiment.shown.differs
    assert entry.record["options"]["epochs"] == 8


def test_an_outcome_of_one_seed_says_so_and_where_the_limit_is_exceeded(entries):
    claims = {claim.title: claim for claim in claims_of(entries)}
    adam, rmsprop = (claims[f"The square root rule: VGG-16, {name}"] for name in ("Adam", "RMSprop"))
    assert (adam.outcome, adam.qualified) == (REPRODUCED, " (one seed)")
    assert (rmsprop.outcome, rmsprop.qualified) == (CONTRADICTED, " at B = 16,384 (one seed)")
    assert {claim.qualified for claim in claims.values() if claim.outcome == "not run"} == {""}
    table = (RESULTS / "README.md").read_text(encoding="utf-8")
    assert "| **contradicted** at B = 16,384 (one seed) |" in table
    (row,) = [line for line in table.splitlines() if line.startswith("| **A large-batch recipe on one GPU.**")]
    assert "| 1 to 4 |" in row


def test_the_deviation_of_a_single_run_is_that_of_the_switch(entries):
    (switch,) = [entry for entry in entries if entry.experiment.name == "cifar10-switch"]
    base = switch.check.base.trajectory
    assert base.values["test accuracy"][:, -1].std(ddof=1) == pytest.approx(SEED_DEVIATION, abs=2e-4)
    assert (switch.record["options"]["epochs"], base.replicas, switch.finals[0].batch_size) == (60, 3, 256)


def test_the_titles_of_figures_are_sentences_with_the_stored_numbers(entries):
    for entry in entries:
        headline = entry.experiment.shown.headline
        if entry.there and headline is not None:
            assert 20 < len(headline(entry.finals)) < 170, entry.folder
    (switch,) = [entry for entry in entries if entry.experiment.name == "cifar10-switch"]
    told = switch.experiment.shown.headline(switch.finals)
    assert "the run loses 0.7 ± 0.1\N{NO-BREAK SPACE}points, with the learning rate alone 7.4 ± 0.2" in told


def test_labels_at_lines_do_not_touch_each_other():
    text = pytest.importorskip("matplotlib.text")
    figure = plotting.need_matplotlib().figure.Figure(figsize=(9, 3), layout="constrained")
    axis = figure.subplots()
    axis.plot([0, 1], [0, 1])
    heights = [0.5, 0.5, 0.51, 0.9, 2.0, -1.0]
    plotting.label_ends(axis, [plotting.LineEnd(1, y, f"line {i}", "black") for i, y in enumerate(heights)], 9.0)
    figure.draw_without_rendering()
    boxes = [text.Text.get_window_extent(label) for label in axis.texts]  # without the line to it
    assert len(boxes) == 6
    assert all(box.x0 > axis.bbox.x1 for box in boxes)
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    middles = [(box.y0 + box.y1) / 2 for box in boxes]
    assert [i for _, i in sorted(zip(middles, range(6), strict=True))] == [5, 0, 1, 2, 3, 4], "the order of the lines"
