"""The numbers on pages are those of the stored runs."""

import json
import re
from pathlib import Path

import pytest
from test_readme import difference, stored

from rootscale.stats import binomial_limit

ROOT = Path(__file__).parents[2]


def page(name):
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def words(name):
    return " ".join(page(name).split())


def gap(table, label, function):
    """The largest gap to the base, in percent of the base curve's range."""
    return 100 * table[label].comparison.gaps[function].largest.gap


def arm(table, **factors):
    (label,) = [one.label for one in table.others if factors.items() <= dict(one.factors).items()]
    return label


def table_of(name, head):
    """The cells of the table whose header begins with these words."""
    rows = page(name).partition(f"| {head}")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


# -- how far it holds --------------------------------------------------------------------------------------------------

CONVERTED, ALONE = "floors .9, .9", "learning rate only"
#: The studies of a row: that of the null and the learning rate alone, that of the converted runs, and the loss.
NETS = {
    "MLP, .999": ("digits-999", "digits-999", "train loss"),
    "MLP, .95": ("digits-95", "digits-95", "train loss"),
    "conv net, BatchNorm, .999": ("convnet-999", "convnet-999", "train loss"),
    "conv net, BatchNorm, .95": ("convnet-95", "convnet-95", "train loss"),
    "the same with EMA, .999": ("convnet-ema-999", "convnet-ema-999", "test loss"),
    "GPT, .999": ("gpt-999", "gpt-kappa-999", "test loss"),
    "GPT, .95": ("gpt-95", "gpt-kappa-95", "test loss"),
    "tiny GPT, .999": ("gpt-tiny-999", "gpt-tiny-999", "test loss"),
    "tiny GPT, .95": ("gpt-tiny-95", "gpt-tiny-95", "test loss"),
}


@pytest.mark.parametrize("row", NETS)
def test_the_table_of_how_far_it_holds_is_that_of_the_stored_runs(row):
    (cells,) = [cells for cells in table_of("how-far", "net, beta2 (seeds)") if cells[0].startswith(f"{row} (")]
    alone, converted, loss = NETS[row]
    tables = [stored(f"floors-{name}") for name in (converted, converted, converted, alone, alone)]
    places = [
        {"other_samples": True},
        *({"form": form, "kappa": k} for form in (CONVERTED, ALONE) for k in ("4", "16")),
    ]
    for cell, table, place in zip(cells[1:], tables, places, strict=True):
        label = arm(table, **place)
        assert cell == f"{gap(table, label, loss):.0f} {table[label].verdict}", label
        assert cells[0].endswith(f"({len(table[label].trajectory.meta['seeds'])})")
        assert table.base.the_plan.optimizer.beta1 == 0.9


def test_nothing_is_the_same_at_64_times_the_batch():
    at = {}
    for name in ("digits-999", "digits-95", "gpt-999", "gpt-95"):
        table = stored(f"floors-{name}")
        verdicts = {one.verdict for one in table.others if one.factors.get("kappa") == "64"}
        assert verdicts == {"different"}
        loss = "train loss" if name.startswith("digits") else "test loss"
        at[name] = gap(table, arm(table, form=CONVERTED, kappa="64"), loss)
    assert f"{at['digits-999']:.0f} to {at['digits-95']:.0f} % off for the MLP, more for the GPT" in words("how-far")
    assert min(at["gpt-999"], at["gpt-95"]) > at["digits-95"]


def test_where_the_learning_rate_alone_ends_on_the_gpt():
    table = stored("floors-gpt-999")
    told = [
        "{:.4f} ± {:.4f}".format(*(abs(x) for x in difference(table, label, table.base.label, "test loss")[:2]))
        for label in (arm(table, form=ALONE, kappa="4"), arm(table, other_samples=True))
    ]
    assert f"it ends {told[0]} nats lower, where other samples end {told[1]} lower" in words("how-far")


def test_a_late_jump_is_as_near_as_a_ramp():
    for net in ("mlp", "convnet"):
        table = stored(f"stages-{net}-0.999")
        late, ramp, once = (
            gap(table, next(one.label for one in table.others if one.label.endswith(end)), "train loss")
            for end in ("at once, late", "in stages", "at once")
        )
        assert abs(late - ramp) < 0.5
        assert once > 2 * ramp


@pytest.mark.parametrize("net", ["mlp", "convnet"])
def test_the_whole_rule_is_not_the_nearest_from_scratch(net):
    table = stored(f"ablations-{net}-scratch")
    for size in {one.label.partition(",")[0] for one in table.others if one.factors.get("kappa")}:
        gaps = {one.label: abs(gap(table, one.label, "train loss")) for one in table.others if size in one.label}
        gaps = {label: value for label, value in gaps.items() if "other samples" not in label}
        assert min(gaps, key=gaps.get) != f"{size}, the whole rule"


def test_what_the_optimizers_state_is_worth():
    table = stored("cifar10-switch")
    base = table.base.label
    lost = [
        f"{-100 * difference(table, f'256 → 4,096, {name}', base, 'test accuracy')[0]:.1f}"
        for name in ("everything converted", "hyperparameters only", "state zeroed")
    ]
    assert (
        f"lost {lost[0]} points of accuracy with everything converted, {lost[1]} with the state left alone, and "
        f"{lost[2]} with a state of zeros (3 seeds)" in words("how-far")
    )


# -- other pages -------------------------------------------------------------------------------------------------------


def test_the_recipe_on_one_gpu():
    table = stored("one-gpu")
    (converted,) = [one.label for one in table.others if "converted" in one.label]
    lower, error, n = difference(table, converted, table.base.label, "test loss")
    assert f"it ends {-lower:.2f} ± {error:.2f} nats *below* 512 at once ({n} seeds" in words("gpus")
    assert f"it made {table.base.trajectory.meta['steps']} steps" in words("gpus")


@pytest.mark.parametrize("name", ["batch-schedules"])
def test_what_ends_lower_than_the_converted_run_is_said(name):
    lower, error, n = difference(
        stored("sooner"), "grown by the noise, converted", "grown by the noise, learning rate only", "test loss"
    )
    assert f"{lower:.4f} ± {error:.4f}".replace("0.", ".") in page(name)
    assert n == 4


def test_the_gpts_of_the_page_on_language_models():
    rows = {row[0]: row[1:] for row in table_of("language", "GPT | n | change")}
    for betas, name in (("999", "6 layers, betas .9, .999"), ("95", "6 layers, betas .9, .95")):
        own, alone = stored(f"floors-gpt-kappa-{betas}"), stored(f"floors-gpt-{betas}")
        told = [gap(own, arm(own, form=CONVERTED, kappa="16"), "test loss")]
        told.append(gap(alone, arm(alone, form=ALONE, kappa="16"), "test loss"))
        assert rows[name][2:] == [f"{value:.0f}" for value in told]
        assert rows[name][0] == str(len(own.base.trajectory.meta["seeds"]))
    table = stored("gpt-tiny-switch")
    told = [gap(table, f"8 → 128, {label}", "test loss") for label in ("everything converted", "learning rate only")]
    assert rows["2 layers, the paper's long betas"][2:] == [f"{value:.0f}" for value in told]


FORMS = ("a = 0", "a = 1/2", "a = 1", "learning rate only, square root", "nothing")
ROWS = {
    "GPT: Muon, Nesterov": "muon",
    "GPT: Muon without": "muon-plain",
    "GPT: Lion": "lion",
    "digits: Muon, Nesterov": "muon-digits",
    "digits: Muon without": "muon-plain-digits",
    "digits: Lion": "lion-digits",
}


def momentum(name):
    """The gap and the verdict of each form at 4 and 16 times the batch, and the gap of other samples."""
    table = stored(f"momentum-{name}")
    loss = "train loss" if name.endswith("digits") else "test loss"
    found = {}
    for form in FORMS:
        for kappa in ("4", "16"):
            label = arm(table, form=form, kappa=kappa)
            found[form, kappa] = gap(table, label, loss), table[label].verdict
    return found, gap(table, arm(table, other_samples=True), loss)


@pytest.mark.parametrize("row", ROWS)
def test_the_gaps_of_muon_and_lion_are_those_of_the_stored_runs(row):
    (cells,) = [cells for cells in table_of("optimizers", "at 4 / 16 times the batch") if cells[0] == row]
    found, other = momentum(ROWS[row])
    assert cells[1:-1] == [" / ".join(f"{found[form, kappa][0]:.0f}" for kappa in ("4", "16")) for form in FORMS]
    assert cells[-1] == f"{abs(other):.0f}"


def test_how_often_a_half_is_nearer_is_what_the_stored_runs_say():
    nearer, same = dict.fromkeys(FORMS, 0), set()
    for name in ROWS.values():
        found, _ = momentum(name)
        for (form, kappa), (value, verdict) in found.items():
            nearer[form] += abs(value) < abs(found["a = 0", kappa][0])
            same |= {form} if verdict == "same" else set()
    assert (nearer["a = 1/2"], nearer["learning rate only, square root"]) == (10, 9)
    assert "`a = 1/2` is nearer than `a = 0` in ten of twelve cases" in words("optimizers")
    assert "by the square root, is nearer than `a = 0` in nine of twelve cases" in words("optimizers")
    assert same == {"a = 1"}


#: What a row of the switch on digits is called in its study.
OF_A_NET = {
    "BatchNorm: everything converted": "everything converted",
    "BatchNorm: its momentum left alone": "BatchNorm's momentum left alone",
    "averaged weights: everything converted": "everything converted",
    "averaged weights: the decay left alone": "the average's decay left alone",
}


def test_the_gaps_of_a_switch_on_digits_are_those_of_the_stored_runs():
    rows = [row for row in table_of("live-runs", "at the switch | gap") if len(row) == 3]
    assert len(rows) == 10
    for name, *told in rows:
        net = {"BatchNorm": "-batchnorm", "averaged weights": "-ema"}.get(name.partition(":")[0], "")
        table = stored(f"digits-switch{net}")
        one = table[OF_A_NET.get(name, name)]
        size = one.comparison.gaps[table.judge.decide_by[0]].largest
        assert told == [f"{100 * size.gap:.1f} ± {100 * size.se:.1f} %", one.verdict]
        assert f"standard error over {one.trajectory.replicas} seeds" in words("live-runs")


# -- the verdict -------------------------------------------------------------------------------------------------------


def test_the_error_rates_are_those_that_were_measured():
    results = json.loads((ROOT / "results" / "verdict" / "verdict.json").read_text())
    cells = {tuple(key.split("|")): one["counts"] for key, one in results["cells"].items()}
    null = [counts for (_, kind, *_), counts in cells.items() if kind == "null pairs"]
    wrong = [counts for (_, kind, *_), counts in cells.items() if kind.startswith("twice") and "one time" not in kind]
    assert min(len(null), len(wrong)) >= 48
    assert max(counts["different"] for counts in null) == max(counts["same"] for counts in wrong) == 0
    assert f"{results['repetitions']} pairs of each kind, 8 seeds. A 0 means below 3 %, at 95 %" in words("same")
    assert binomial_limit(0, results["repetitions"]) < 0.03
    few = [counts for (_, kind, _, seeds), counts in cells.items() if (kind, seeds) == ("twice, at one time", "4")]
    missed, of_all = sum(c["same"] for c in few), sum(sum(c.values()) for c in few)
    assert f"With 4 seeds {missed} of {of_all:,} gaps that last for one single evaluation were missed" in words("same")


def test_the_table_of_decided_verdicts_is_that_of_the_results():
    results = json.loads((ROOT / "results" / "verdict" / "verdict.json").read_text())["cells"]
    rows = table_of("same", "8 seeds, in %")
    assert len(rows) == 5
    for name, *told in rows:
        null, twice = (results[f"{name}|{kind}|any|8"]["counts"] for kind in ("null pairs", "twice the tolerance"))
        decided = [100 - counts["undecided"] for counts in (null, twice)]
        assert told == [str(value) for value in (null["different"], twice["same"], *decided)]


def test_the_bands_hold_as_often_as_the_page_says():
    table = (ROOT / "results" / "verdict" / "bands.txt").read_text().split("\n\n")[2]
    rows = [[float(value) for value in re.findall(r"(\d+\.\d) \|", row)] for row in table.splitlines()[2:]]
    *kinds, _ = (row[1:] for row in rows)  # without the column of 2 pairs, and without the skewed kind
    assert f"in at least {min(map(min, kinds)):.0f} % of cases from 3 pairs on" in words("same")
