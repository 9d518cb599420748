"""What README and the results say is what the code says."""

import json
import re
import shlex
import statistics
from pathlib import Path

import pytest
from rich.console import Console

from rootscale.cli import main
from rootscale.cli.run_check import show_check
from rootscale.format import percent
from rootscale.lab import Check
from rootscale.paper.stored import finals_of
from rootscale.stats import binomial_limit

ROOT = Path(__file__).parents[1]


def test_the_command_in_the_readme_prints_what_the_readme_shows(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    (block,) = re.findall(r"```console\n\$ (rootscale scale .*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    command, _, shown = block.replace("\\\n", " ").partition("\n")
    assert main(shlex.split(command)[1:]) == 0
    printed = capsys.readouterr().out
    assert [line.rstrip() for line in printed.strip().splitlines()] == shown.strip().splitlines()


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
    wrong = [counts for (_, kind, *_), counts in cells.items() if kind.startswith("twice")]
    assert min(len(null), len(wrong)) >= 48
    assert max(counts["different"] for counts in null) == max(counts["same"] for counts in wrong) == 0
    assert {sum(counts.values()) for counts in (*null, *wrong)} == {results["repetitions"]}
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"measured over {results['repetitions']} checks of each kind" in readme
    assert binomial_limit(0, results["repetitions"]) < 0.03
    assert "in less than 3 % of checks, at 95 % confidence" in readme


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


def test_the_gaps_of_svag_are_those_of_the_results():
    gaps = json.loads((ROOT / "results" / "digits-svag-start.json").read_text())["gaps"]
    told = [
        f"{100 * gap:.1f} ± {100 * error:.1f} %"
        for start in ("at the beginning", "in mid-run")
        for gap, error in (gaps[optimizer][start]["4"] for optimizer in ("RMSprop", "Adam"))
    ]
    (row,) = re.findall(r"^\| \[digits-svag-start.json\].*$", (ROOT / "results/README.md").read_text(), re.MULTILINE)
    assert re.findall(r"[\d.]+ ± [\d.]+ %", row) == told
    (bullet,) = re.findall(r"^- \*\*The first steps.*?(?=^- )", (ROOT / "docs/limitations.md").read_text(), re.M | re.S)
    assert re.findall(r"[\d.]+ ± [\d.]+ %", bullet) == told[::2]


def test_the_documentation_shows_the_verdicts_that_are_stored(capsys):
    blocks = re.findall(r"(gpt-gpt-tiny.*?)\n```", (ROOT / "docs" / "language.md").read_text(), re.DOTALL)
    console = Console(width=120, highlight=False)
    for name, block in zip(("gpt-check", "gpt-svag-check"), blocks, strict=True):
        show_check(Check.load(ROOT / "results" / name), console)
        printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
        shown = block.splitlines()
        assert printed[: len(shown)] == shown


def test_the_final_values_in_the_readme_are_those_of_the_results():
    rows = re.findall(r"^\| .*?\]\(results/(\S+?)/README.md\)(.*?) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(rows) == 7
    for name, row in rows:
        told = re.findall(r"(?<=\| )(?:[\d.]+|diverged)", row)
        finals = finals_of(ROOT / "results" / name)
        if name == "gpt-switch":  # the columns are base, ramp, converted, learning rate alone
            finals = [finals[i] for i in (0, 5, 1, 3)]
        accuracy = name.startswith("cifar10")
        ends = [final.accuracy if accuracy else final.end("test loss") for final in finals]
        factor, digits = (100, 2) if accuracy else (1, 3)
        texts = ["diverged" if end.value is None else f"{factor * end.value:.{digits}f}" for end in ends]
        assert told == texts[: len(told)]


def test_what_the_readme_says_of_all_batch_sizes_is_in_the_results():
    table = (ROOT / "results" / "README.md").read_text().partition("Where the noise dominates")[2]
    rows = [line.split(" | ")[1:] for line in table.splitlines() if line.startswith(("| VGG", "| ResNet"))]
    assert len(rows) == 6
    small, large, largest = ([cell.strip(" |") for cell in column] for column in zip(*rows, strict=True))

    def gaps(cells):
        return [float(found[1]) for cell in cells if (found := re.search(r"([-+][\d.]+) ±", cell))]

    def shares(cells):
        return [int(found[1]) for cell in cells if (found := re.search(r"(\d+) %:", cell))]

    text = " ".join((ROOT / "README.md").read_text().split())
    assert all(abs(gap) <= 1 for gap in gaps(small))
    worse = sorted(-gap for gap in gaps(large) if abs(gap) > 1)
    assert len(gaps(large)) == 6
    assert f"at 16 B four do and two lose {worse[0]} and {worse[1]}, at 64 B one does" in text
    worse = [-gap for gap in gaps(largest) if abs(gap) > 1]
    assert (len(worse), len(gaps(largest)), largest.count("diverged")) == (4, 5, 1)
    assert f"four lose {min(worse):.0f} to {max(worse):.0f} and one diverges" in text
    said = f"exceeds 4 B in {min(shares(small))} to {max(shares(small))} % of these runs and 64 B in at most"
    assert f"{said} {max(shares(largest))} %" in text


def test_the_ablations_in_the_readme_are_those_of_the_results():
    finals = {final.label: final for final in finals_of(ROOT / "results" / "cifar10-ablations")}
    text = " ".join((ROOT / "README.md").read_text().split()).partition("Half of the rule is not enough")[2]
    for subset in ("eta, eps, beta1, beta2", "eta, eps, beta2", "eta"):
        end = finals[f"B = 2,048; sqrt: {subset}"].accuracy
        told = f"{-100 * end.gap:.1f} ± {100 * end.gap_se:.1f}"
        assert told in text
        text = text.partition(told)[2]
    rule, linear = (
        finals[f"B = 2,048; {label}"] for label in ("sqrt: eta, eps, beta1, beta2", "linear: eta, beta1, beta2")
    )
    assert 0 < linear.accuracy.gap < 2 * linear.accuracy.gap_se
    on_the_way = [percent(final.curve("train loss").gap) for final in (linear, rule)]
    times = len(rule.curves["train loss"].times)
    window = f"({'one seed' if rule.seeds == 1 else rule.seeds}, {times} times after the first step)"
    assert f"train loss by {on_the_way[0]} of its range on the way, the rule by {on_the_way[1]} {window}" in text


def test_the_switch_on_the_first_screen_is_that_of_the_results():
    text = (
        (ROOT / "README.md").read_text().partition("![A switch of batch size in mid-run]")[2].partition("\n\nA run")[0]
    )
    _, converted, hyperparameters, rate, zeroed, norms, ramp = finals_of(ROOT / "results" / "cifar10-switch")
    for final in (converted, ramp, rate, zeroed, hyperparameters, norms):
        told = f"{-100 * final.accuracy.gap:.1f} ± {100 * final.accuracy.gap_se:.1f}"
        assert told in text
        text = text.partition(told)[2]


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
