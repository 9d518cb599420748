"""The numbers on pages are those of the stored runs."""

import json
import math
import re
import statistics
from pathlib import Path

import pytest
from rich.console import Console

from rootscale.cli import main
from rootscale.cli.run_check import show_check
from rootscale.format import percent
from rootscale.lab import Table
from rootscale.paper.entries import entries_of
from rootscale.paper.experiments.momentum_switch import measured
from rootscale.paper.groups import GROUPS, cells_of
from rootscale.paper.headline import HEADLINES, ways_of
from rootscale.paper.stored import finals_of
from rootscale.stats import binomial_limit
from rootscale.trajectory import Trajectory

ROOT = Path(__file__).parents[2]


def test_every_command_of_the_documentation_exists(capsys):
    texts = [(ROOT / "README.md").read_text(), *(path.read_text() for path in (ROOT / "docs").rglob("*.md"))]
    texts.append((ROOT / "Makefile").read_text())
    commands = {name for text in texts for name in re.findall(r"(?:`|\$ |/)rootscale ([a-z]+)\b", text)}
    assert {"scale", "check", "demo", "report", "reproduce"} <= commands
    for command in commands:
        with pytest.raises(SystemExit) as stop:
            main([command, "--help"])
        assert stop.value.code == 0, command


def test_the_error_rates_in_the_documentation_are_those_of_the_results():
    results = json.loads((ROOT / "results" / "verdict" / "verdict.json").read_text())
    cells = {tuple(key.split("|")): one["counts"] for key, one in results["cells"].items()}
    null = [counts for (_, kind, *_), counts in cells.items() if kind == "null pairs"]
    spike = [counts for (_, kind, *_), counts in cells.items() if kind == "twice, at one time"]
    wrong = [counts for (_, kind, *_), counts in cells.items() if kind.startswith("twice") and "one time" not in kind]
    assert min(len(null), len(wrong), len(spike)) >= 48
    assert max(counts["different"] for counts in null) == max(counts["same"] for counts in wrong) == 0
    assert max(counts["same"] for counts in spike) <= 0.05 * results["repetitions"]
    assert {sum(counts.values()) for counts in (*null, *wrong)} == {results["repetitions"]}
    assert binomial_limit(0, results["repetitions"]) < 0.03
    few = [counts for (_, kind, _, seeds), counts in cells.items() if (kind, seeds) == ("twice, at one time", "4")]
    assert (sum(c["same"] for c in few), sum(sum(c.values()) for c in few)) == (3, 1600)
    assert not any(c["same"] for (_, kind, _, seeds), c in cells.items() if kind.startswith("twice") and seeds != "4")


def test_the_table_of_decided_verdicts_is_that_of_the_results():
    results = json.loads((ROOT / "results" / "verdict" / "verdict.json").read_text())["cells"]
    table = (ROOT / "docs" / "verdict.md").read_text().partition("| 8 seeds |")[2]
    rows = re.findall(r"^\| ([^|]+?) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", table, re.MULTILINE)
    assert len(rows) == 8
    for name, *shown in rows:
        null, twice = (results[f"{name}|{kind}|any|8"]["counts"] for kind in ("null pairs", "twice the tolerance"))
        decided = [100 - counts["undecided"] for counts in (null, twice)]
        assert [int(one) for one in shown] == [null["different"], twice["same"], *decided]


def test_the_gaps_of_a_switch_on_digits_are_those_of_the_results():
    gaps = json.loads((ROOT / "results" / "digits-switch.json").read_text())["gaps"]
    text = (ROOT / "docs" / "live-runs.md").read_text()
    table = text.partition("| at the switch | gap / range |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (.*?) \| ([\d.]+) ± ([\d.]+) \|$", table, re.MULTILINE)
    assert len(rows) == 10
    for name, mean, error in rows:
        values = [run[name] for run in gaps.values()]
        assert float(mean) == round(statistics.mean(values), 3)
        assert float(error) == round(statistics.stdev(values) / len(values) ** 0.5, 3)
    assert f"standard error over {len(gaps)} seeds of 16 replicas each" in " ".join(text.split())


def test_where_svag_ends_on_vgg16_is_what_the_results_say():
    text = " ".join((ROOT / "docs" / "limitations.md").read_text().split())
    cold, warm = (finals_of(ROOT / "results" / f"cifar10-svag-rmsprop{name}") for name in ("", "-warm"))
    ends = [finals[1].accuracy for finals in (cold, warm)]
    assert f"ends {100 * ends[0].gap:.1f} ± {100 * ends[0].gap_se:.1f} points above RMSprop" in text
    assert f"and {abs(100 * ends[1].gap):.1f} ± {100 * ends[1].gap_se:.1f} points from it" in text
    assert (cold[0].seeds, cold[0].diverged, warm[0].seeds, warm[0].diverged) == (4, 1, 4, 0)
    assert {final.verdict for final in (*cold[1:], *warm[1:])} == {"undecided"}, "the curves do not say it"


def test_the_gaps_of_svag_are_those_of_the_results():
    gaps = json.loads((ROOT / "results" / "digits-svag-start.json").read_text())["gaps"]
    told = [
        f"{100 * gap:.1f} ± {100 * error:.1f} %"
        for start in ("at the beginning", "in mid-run")
        for gap, error in (gaps[optimizer][start]["4"] for optimizer in ("RMSprop", "Adam"))
    ]
    (bullet,) = re.findall(r"^- \*\*The first steps.*?(?=^- )", (ROOT / "docs/limitations.md").read_text(), re.M | re.S)
    assert re.findall(r"[\d.]+ ± [\d.]+ %", bullet) == told[::2]


def test_the_documentation_shows_the_verdicts_that_are_stored(capsys):
    blocks = re.findall(r"(gpt-gpt-tiny.*?)\n```", (ROOT / "docs" / "language.md").read_text(), re.DOTALL)
    console = Console(width=120, highlight=False)
    for name, block in zip(("gpt-check", "gpt-svag-check"), blocks, strict=True):
        show_check(Table.load(ROOT / "results" / name), console)
        printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
        shown = block.splitlines()
        assert printed[: len(shown)] == shown


def test_the_gaps_of_the_tiny_gpt_are_those_of_the_results():
    base, converted, left, rate, zeroed, ramp = finals_of(ROOT / "results" / "gpt-tiny-switch")
    assert {final.seeds for final in (base, converted, left, rate, zeroed, ramp)} == {8}
    told = [percent((far := final.curve("test loss")).gap, far.se) for final in (ramp, converted, zeroed, left, rate)]
    page = (ROOT / "docs" / "language.md").read_text().partition("| 8 → 128 in mid-run | gap |")[2]
    assert re.findall(r"\| ([\d.]+ ± [\d.]+ %) \|", page)[:5] == told
    protocol = (ROOT / "results" / "PROTOCOL.md").read_text()
    assert f"({told[1]} against {told[3]})" in protocol
    assert f"with zeros the gap is {told[2]}" in protocol


def test_the_bands_hold_as_often_as_the_page_of_the_verdict_says():
    table = (ROOT / "results" / "verdict" / "bands.txt").read_text().split("\n\n")[2]
    rows = [[float(one) for one in re.findall(r"(\d+\.\d) \|", row)] for row in table.splitlines()[2:]]
    assert [len(row) for row in rows] == 8 * [9]
    *kinds, limit = (row[1:] for row in rows)  # without the column of 2 pairs
    page = " ".join((ROOT / "docs" / "verdict.md").read_text().split())
    assert f"From 3 pairs on it is at least {min(map(min, kinds)):.0f} %" in page
    assert f"{min(limit):.0f} to {max(limit):.0f} % instead of 95 %" in page


def headline(name):
    (entry,) = [one for one in entries_of(ROOT / "results") if one.folder.name == name]
    return entry, {way.arm.label: way for way in ways_of(entry, HEADLINES[name].arms)}


def last_losses(name):
    """The validation losses at the end, by arm and seed."""
    check = headline(name)[0].check
    arms = {arm.label: arm.trajectory for arm in (check.base, *check.others)}
    return {
        label: dict(zip(runs.meta["seeds"], runs.values["test loss"][:, -1], strict=True))
        for label, runs in arms.items()
    }


def paired(one, other):
    """Mean and standard error of differences over the seeds that both have, and their number."""
    found = [one[seed] - other[seed] for seed in one if seed in other]
    error = statistics.stdev(found) / len(found) ** 0.5 if len(found) > 1 else math.nan
    return statistics.mean(found), error, len(found)


def test_what_ends_lower_than_the_converted_run_is_told():
    ends = last_losses("sooner")
    _, converted, _, _, rate, _ = ends
    gap, error, n = paired(ends[converted], ends[rate])
    told = f"{gap:.4f} ± {error:.4f}".replace("0.", ".")
    for page in ("docs/batch-schedules.md", "docs/cases/ramp.md"):
        assert told in (ROOT / page).read_text()
    assert n == 4


def test_that_a_better_small_batch_is_known_is_told():
    """Another experiment has the same net, seeds, tokens and validation set: its runs begin at the same loss."""
    small, other = (headline(name)[0].check for name in ("sooner", "one-gpu"))
    label = "B = 8, Marek et al., learning rate / 3"
    here, there = small.base.trajectory, other[label].trajectory
    assert (here.values["test loss"][:, 0] == there.values["test loss"][:, 0]).all()
    for name in ("seeds", "steps", "replacement"):
        assert here.meta[name] == there.meta[name]
    assert here.meta["samples"][-1] == there.meta["samples"][-1]
    assert here.meta["plan"]["schedule"] == there.meta["plan"]["schedule"]
    gap, error, n = paired(last_losses("one-gpu")[label], last_losses("sooner")["B = 8 kept"])
    page = " ".join((ROOT / "docs" / "batch-schedules.md").read_text().split())
    assert f"difference {gap:.4f} ± {error:.4f}, n = {n}".replace("0.", ".") in page
    assert f"{-gap:.4f} ± {error:.4f} lower" in (ROOT / "results" / "PROTOCOL.md").read_text()
    for way, runs in ((headline("sooner")[1]["B = 8 kept"], here), (headline("one-gpu")[1][label], there)):
        assert f"{way.loss[0]:.4f}" in page, runs


def test_the_recipe_on_one_gpu_is_that_of_the_results():
    entry, ways = headline("one-gpu")
    base, accumulated, converted, third, kept = ways.values()
    assert converted.as_good
    assert abs(converted.seconds / accumulated.seconds - 1) < 0.05
    assert converted.memory < accumulated.memory
    page = (ROOT / "docs" / "cases" / "one-gpu.md").read_text()
    arms = {arm.label: arm.trajectory.values["test loss"][:, -1] for arm in (entry.check.base, *entry.check.others)}
    for way in (base, converted):
        ends = arms[way.arm.label]
        assert f"{ends.min():.2f} and {ends.max():.2f}" in page
    assert f"ended at {third.loss[0]:.2f}," in page
    assert f"ended at {kept.loss[0]:.2f}." in page
    assert f"its {base.steps} steps are few" in page
    ends = last_losses("one-gpu")
    gap, _, n = paired(ends[converted.arm.label], ends[accumulated.arm.label])
    assert (n, accumulated.seeds) == (1, 1)
    assert f"the converted run ends {-gap:.3f} lower" in " ".join(page.split())
    gap, _, n = paired(ends[third.arm.label], ends[converted.arm.label])
    assert n == 4
    assert f"{-gap:.2f} lower still" in page
    assert min(ends[base.arm.label], key=ends[base.arm.label].get) == 0, "the seed of the learning rate is the best"
    assert f"with {converted.steps:,} steps" in page


def momentum(name):
    (cell,) = [cell for cell in cells_of(list(entries_of(ROOT / "results")), "momentum") if cell.name == name]
    return cell


ROWS = {
    "GPT: Muon, Nesterov": "muon",
    "GPT: Muon without": "muon-plain",
    "GPT: Lion": "lion",
    "digits: Muon, Nesterov": "muon-digits",
    "digits: Muon without": "muon-plain-digits",
    "digits: Lion": "lion-digits",
}


@pytest.mark.parametrize("row", ROWS)
def test_the_gaps_of_muon_and_lion_are_those_of_the_results(row):
    page, cell = (ROOT / "docs" / "optimizers.md").read_text(), momentum(ROWS[row])
    (told,) = re.findall(rf"^\| {row} \|.*$", page, re.MULTILINE)
    *gaps, other = [text.strip("* ") for text in told.split("|")[2:-1]]
    forms = ("a = 0", "a = 1/2", "a = 1", "learning rate only, square root", "nothing")
    for form, text in zip(forms, gaps, strict=True):
        assert text == " / ".join(f"{100 * cell.found[kappa, form].gap:.0f}" for kappa in (4, 16)), form
        bold = f"**{text}**" in told
        assert bold == all(cell.found[kappa, form].keeps(cell.null) for kappa in (4, 16)), form
    assert other == f"{100 * abs(cell.null.gap):.0f}"


def test_how_often_a_half_is_nearer_is_what_the_results_say():
    alone = "learning rate only, square root"
    forms, same = ("a = 0", "a = 1/2", "a = 1", alone), set()
    nearer, kept = dict.fromkeys(forms, 0), dict.fromkeys(forms, 0)
    for name in ROWS.values():
        cell = momentum(name)
        for kappa in (4, 16):
            for form in forms:
                one = cell.found[kappa, form]
                nearer[form] += abs(one.gap) < abs(cell.found[kappa, "a = 0"].gap)
                kept[form] += one.keeps(cell.null)
                same |= {(form, kappa)} if one.final.verdict == "same" else set()
    assert kept == {"a = 0": 1, "a = 1/2": 5, "a = 1": 5, alone: 1}
    assert (nearer["a = 1/2"], nearer[alone]) == (10, 9)
    assert {form for form, _ in same} == {"a = 1"}
    page = " ".join((ROOT / "docs" / "optimizers.md").read_text().split())
    assert "in ten of twelve cases, and as close as a rerun in five, where `a = 0` is in one" in page
    assert "by the square root, is nearer than `a = 0` in nine of twelve cases" in page


def test_the_ratio_on_digits_is_that_of_the_results():
    cell, page = momentum("muon-digits"), (ROOT / "docs" / "optimizers.md").read_text()
    assert f"R was measured as {measured(cell.entry.finals)[0]:.0f}," in page
    assert cell.found[4, "noise 10 times the gradient"].keeps(cell.null)


def test_the_measured_ratio_of_muon_is_that_of_the_results():
    page, finals = (ROOT / "docs" / "optimizers.md").read_text(), finals_of(ROOT / "results" / "muon-ratio")
    found = {final.label: 100 * final.curve("test loss").gap for final in finals[1:]}
    told = re.search(
        r"is wrong\*\*: it was measured as (\S+) and .* R = 10\skept\s.*\((\S+) %\), and sixteen .* "
        r"10 \((\S+) %\) and 30 \((\S+) %\)",
        page,
        re.DOTALL,
    )
    assert told[1] == f"{measured(finals)[0]:.2f}"
    rows = [found[f"8 → {size}, noise {ratio} times the gradient"] for size, ratio in ((32, 10), (128, 10), (128, 30))]
    assert [int(text) for text in told.groups()[1:]] == [round(gap) for gap in rows]


#: The GPT with the two values of beta2.
CASES = ("gpt-999", "gpt-95")


def floors():
    return {cell.name: cell for cell in cells_of(list(entries_of(ROOT / "results")), "floors")}


def test_how_many_runs_floors_keep_is_what_the_results_say():
    page = " ".join((ROOT / "docs" / "when-it-matters.md").read_text().split())
    cells, group = list(floors().values()), GROUPS["floors"]
    both = group.shared(cells, "learning rate only")
    assert (
        f"![Of {both.cases} switches to at most 16 times the batch that both made, floors of .9 kept {both.first} "
        f"runs, the learning rate alone {both.kept}]" in page
    )
    eight = group.shared(cells, "floors .8, .9")
    assert eight.kept == eight.first
    assert f"({eight.kept} of the {eight.cases} that both made)" in page


def test_what_floors_do_not_keep_up_to_16_is_the_net_with_batchnorm():
    cells, page = floors(), " ".join((ROOT / "docs" / "when-it-matters.md").read_text().split())
    lost = {
        (cell.name, kappa)
        for cell in cells.values()
        for (kappa, form), one in cell.found.items()
        if form == "floors .9, .9" and kappa <= 16 and not cell.scratch and not one.keeps(cell.null)
    }
    nets = ("convnet-999", "convnet-95")
    assert lost == {*((net, kappa) for net in nets for kappa in (4, 16)), ("convnet-ema-999", 16)}

    def gaps(form, kappa, *names):
        return sorted(round(100 * cells[name].found[kappa, form].gap) for name in names)

    own, alone = ([gaps(form, kappa, *nets) for kappa in (4, 16)] for form in ("floors .9, .9", "learning rate only"))
    (average,) = gaps("floors .9, .9", 16, "convnet-ema-999")
    assert (
        f"off by {own[0][0]} and {own[0][1]} % at kappa = 4, by {own[1][0]} and {own[1][1]} % at 16 ({average} % with "
        "its weights averaged)" in page
    )
    assert f"by {alone[0][0]} and {alone[0][1]} %, and {alone[1][0]} and {alone[1][1]} %." in page
    for name in nets:
        kept = [form for (kappa, form), one in cells[name].found.items() if kappa == 16 and one.keeps(cells[name].null)]
        assert not kept, "no form keeps it at 16"


def test_the_lower_losses_of_the_learning_rate_alone_are_those_of_the_results():
    cells = floors()
    page = " ".join((ROOT / "docs" / "when-it-matters.md").read_text().split())
    found = {(name, kappa): cells[name].found[kappa, "learning rate only"] for name in CASES for kappa in (4, 16)}
    ends = {key: one.final.end("test loss") for key, one in found.items()}
    for key, place in (
        (("gpt-95", 4), "({:.3f} ± {:.3f} nats lower, n = 4;"),
        (("gpt-999", 4), "by {:.4f} ± {:.4f} nats at 4 times"),
        (("gpt-999", 16), "{:.4f} ± {:.4f} at 16 times,"),
    ):
        assert place.format(-ends[key].gap, ends[key].gap_se) in page
    rerun = {name: cells[name].null.final.end("test loss") for name in CASES}
    for name, place in (
        ("gpt-95", "; a rerun {:.3f} ± {:.3f} lower)"),
        ("gpt-999", "a rerun ends {:.4f} ± {:.4f} lower"),
    ):
        assert place.format(-rerun[name].gap, rerun[name].gap_se) in page
    switched = [cell for name, cell in cells.items() if name.endswith("999") and not name.startswith("gpt-kappa")]
    alone = [cell.found[4, "learning rate only"] for cell in switched]
    off = [100 * abs(one.gap) for one in alone]
    assert f"it is off by {min(off):.0f} to {max(off):.0f} % of the curve's range at kappa = 4 already" in page
    eight = [100 * cells[name].found[16, "floors .8, .9"].gap for name in ("gpt-999", "gpt-kappa-999")]
    assert "by {:.0f} and {:.0f} % of its range".format(*eight) in page
    eight = [-100 * cells[name].found[16, "floors .8, .9"].gap for name in ("gpt-95", "gpt-kappa-95")]
    assert "the loss is lower by {:.0f} and {:.0f} %".format(*eight) in page


def test_what_averaged_weights_lose_is_what_the_results_say():
    """With the floors that are the default."""
    cells = {cell.name: cell for cell in cells_of(list(entries_of(ROOT / "results")), "floors")}
    found = cells["convnet-ema-999"].found
    alone, own = (found[16, form].final.accuracy for form in ("learning rate only", "floors .9, .9"))
    text = " ".join((ROOT / "docs" / "when-it-matters.md").read_text().split())
    lost = [f"lost {-100 * end.gap:.1f} ± {100 * end.gap_se:.1f}" for end in (alone, own)]
    assert (
        f"{lost[0]} points of accuracy with the learning rate alone. With everything converted they {lost[1]}." in text
    )
    assert abs(own.gap) < 2 * own.gap_se


def test_what_the_check_says_of_the_runs_that_floors_kept_is_told():
    found = {
        (name, kappa): one.final.verdict
        for name, cell in floors().items()
        for (kappa, form), one in cell.found.items()
        if form == "floors .9, .9" and kappa <= 16 and not cell.scratch and one.keeps(cell.null)
    }
    same = [name for (name, _), verdict in found.items() if verdict == "same"]
    counts = len(found), len(same), sum(name.startswith("digits") for name in same)
    assert counts == (19, 7, 5)
    large = {key: verdict for key, verdict in found.items() if key[0].startswith("gpt") and "tiny" not in key[0]}
    assert len(large) == 8
    assert set(large.values()) == {"undecided"}
    assert sum(name.startswith("gpt-tiny") for name in same) == 1
    page = " ".join((ROOT / "docs" / "when-it-matters.md").read_text().split())
    assert (
        "of the 19 switches that floors of .9 kept it calls 7 *same* (5 of the MLP, 1 of a tiny GPT with 8 seeds"
        in page
    )
    assert "12 *undecided*, among them all 8 of the GPT" in page
    assert sum(name.startswith("digits") for name, _ in found) == 6


def test_the_floor_that_follows_kappa_is_that_of_the_results():
    text = " ".join((ROOT / "docs" / "when-it-matters.md").read_text().split())
    cells = {cell.name: cell for cell in cells_of(list(entries_of(ROOT / "results")), "floors")}

    def gaps(net, kappa):
        """Of the floor that follows kappa, and of .9, with both beta2."""
        forms = ("floor by kappa, .9", "floors .9, .9")
        found = [cells[f"{net}-{betas}"].found[kappa, form].gap for form in forms for betas in ("999", "95")]
        return [f"{100 * abs(gap):.0f}" for gap in found]

    for place, net, kappa in (
        ("keeps the conv net ({} and {} % of the range, instead of {} and {} %)", "convnet", 4),
        ("and the GPT ({} and {} %, as with .9: {} and {} %)", "gpt-kappa", 4),
        ("On the GPT it is off by {} and {} % of the range, instead of {} and {} % with .9", "gpt-kappa", 64),
        ("on the MLP by {} and {} %, instead of {} and {} %", "digits", 64),
    ):
        assert place.format(*gaps(net, kappa)) in text
    for cell in cells.values():
        for (kappa, form), one in cell.found.items():
            nine = cell.found.get((kappa, "floors .9, .9"))
            if form.startswith("floor by kappa") and kappa <= 16 and nine is not None:
                assert abs(one.gap) <= abs(nine.gap) + 2 * math.hypot(one.se, nine.se)


def test_the_ratios_in_the_results_are_those_that_were_measured():
    (row,) = re.findall(r"^\| \[benchmarks/h200.txt\].*$", (ROOT / "results" / "README.md").read_text(), re.MULTILINE)
    vgg, resnet, small, large = re.findall(r"\d\.\d\d", row)
    text = (ROOT / "results" / "benchmarks" / "h200.txt").read_text()
    assert f"resnet56_256={resnet} vgg16_256={vgg}\n" in text
    assert re.search(rf"bytes 16 the lab: .* {small} ", text)
    assert re.search(rf"bytes 64 the lab: .* {large} ", text)


def test_the_commands_of_the_results_can_be_run_elsewhere():
    records = [json.loads(path.read_text()) for path in (ROOT / "results").rglob("*.json")]
    commands = [record.get("command") or record.get("made", {}).get("command") for record in records]
    told = [command for command in commands if command]
    assert len(told) >= 8
    for command in told:
        assert not re.search(r"(^|[\s=])[/~]", command), f"a place of one machine: {command}"


@pytest.mark.parametrize(
    ("optimizer", "others"),
    [
        ("adam", [("cifar10-vgg16-adam", "B = 256")]),
        ("rmsprop", [("cifar10-rmsprop-factors", f"all three, B = {size}") for size in ("256", "16,384")]),
    ],
)
def test_runs_without_a_base_are_told_as_they_are(optimizer, others):
    page = (ROOT / "results" / "unfinished" / "README.md").read_text()
    (row,) = re.findall(rf"^\| {optimizer} .*$", page, re.MULTILINE | re.IGNORECASE)
    places = (ROOT / "results" / "unfinished").glob(f"*-{optimizer}-*/b-8-192-*/seeds-*/trajectory.npz")
    seeds = [Trajectory.load(place)["test accuracy"].mean[-1] for place in places]
    found = sum(seeds) / len(seeds)
    assert ("(n = 3)" in row) == (len(seeds) == 3)
    ends = [next(end for end in finals_of(ROOT / "results" / name) if end.label == label) for name, label in others]
    base, *larger = [end.accuracy.value for end in ends]
    told = [found, base, found - base, *(end - base for end in larger)]
    assert re.findall(r"(-?\d+\.\d) ± ", row) == [f"{100 * value:.1f}" for value in told]
