"""README: its numbers are those of the stored runs, its commands exist, and it stays short."""

import re
from functools import cache
from pathlib import Path

import pytest

from rootscale.cli import main
from rootscale.lab import Table
from rootscale.optimizers import FAMILIES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TEXT = " ".join(README.split())


@cache
def stored(name):
    return Table.load(ROOT / "results" / f"{name}.npz")


def difference(table, one, other, function):
    """Mean and standard error of the differences at the end, over the seeds, and how many they are."""
    ends = [
        dict(zip((runs := table[label].trajectory).meta["seeds"], runs.values[function][:, -1], strict=True))
        for label in (one, other)
    ]
    found = [ends[0][seed] - ends[1][seed] for seed in ends[0].keys() & ends[1].keys()]
    mean = sum(found) / len(found)
    return mean, (sum((x - mean) ** 2 for x in found) / (len(found) - 1) / len(found)) ** 0.5, len(found)


def row(program, start):
    """The result and the n of a row of the table of what was measured."""
    (line,) = re.findall(rf"^\| {re.escape(start)}.*experiments/{program}\.py\) \|$", README, re.MULTILINE)
    return [cell.strip() for cell in line.split("|")[2:4]]


def test_vgg_at_16_times_the_batch():
    arms = ("256 → 4,096, everything converted", "256 → 4,096, learning rate only")
    table = stored("cifar10-switch")
    gap, error, n = difference(table, *arms, "test accuracy")
    told = f"converting everything ends {100 * gap:.1f} ± {100 * error:.1f} points of accuracy above"
    assert row("cifar10_switch", "VGG-16") == [f"{told} the learning rate alone", str(n)]
    assert {table.base.the_plan.optimizer.beta1, table.base.the_plan.optimizer.beta2} == {0.999}


def test_the_average_of_the_weights_at_16_times_the_batch():
    table = stored("floors-convnet-ema-999")
    base = table.base.label
    gap, error, n = difference(table, "16 → 256, learning rate only", base, "test accuracy")
    none, its_error, _ = difference(table, "16 → 256, floors .9, .9", base, "test accuracy")
    told, seeds = row("floors", "the conv net above, 16 times")
    assert f"alone loses {-100 * gap:.1f} ± {100 * error:.1f} points" in told
    assert int(seeds) == n
    assert abs(none) < 2 * its_error, "converting loses none"
    assert table["16 → 256, floors .9, .9"].verdict == "different", "but it leaves the curve on the way"


def test_the_picture_is_of_default_betas_and_of_runs_that_are_the_same():
    table = stored("floors-convnet-ema-999")
    optimizer = table.base.the_plan.optimizer
    assert (optimizer.beta1, optimizer.beta2) == (0.9, 0.999)
    assert "default betas (.9, .999); mean of 8 seeds" in TEXT
    assert table["16 → 64, floors .9, .9"].verdict == "same"
    assert table["16 → 64, learning rate only"].verdict == "different"
    assert table.base.trajectory.meta["seeds"] == list(range(8))


def test_a_batch_that_grows_with_the_noise():
    table = stored("sooner")
    converted, rate = "grown by the noise, converted", "grown by the noise, learning rate only"
    alone = [
        next(run for run in table[label].trajectory.meta["runs"] if len(run["seeds"]) == 1)
        for label in (table.base.label, converted)
    ]
    base, grown = (run["seconds"] - run["measuring"] - run["settling"] for run in alone)
    told, n = row("sooner", "GPT on enwik8")
    assert told == f"the same loss in {100 * grown / base:.0f} % of the time"
    lower, error, seeds = difference(table, converted, rate, "test loss")
    assert row("sooner", "the same, with the learning rate alone") == [
        f"{lower:.4f} ± {error:.4f} nats lower: short betas did not need it",
        str(seeds),
    ]
    assert n == str(seeds)
    assert abs(difference(table, converted, table.base.label, "test loss")[0]) < 0.01, "the same: fixed in advance"


def test_the_number_of_families():
    assert f"Adam, RMSprop and {len(FAMILIES) - 2} other families" in TEXT


def test_it_is_short_and_has_few_numbers():
    assert len(README.splitlines()) <= 120
    prose = re.sub(r"```.*?```|<picture>.*?</picture>|`[^`]*`|\]\([^)]*\)", "", README, flags=re.DOTALL)
    assert len(re.findall(r"\d[\d.,]*|\.\d+", prose)) <= 60


def test_every_command_of_the_documentation_exists(capsys):
    texts = [README, *(path.read_text() for path in (ROOT / "docs").rglob("*.md"))]
    texts.append((ROOT / "Makefile").read_text())
    commands = {name for text in texts for name in re.findall(r"(?:`|\$ |/)rootscale ([a-z]+)\b", text)}
    assert {"scale", "check", "demo", "largest"} <= commands
    for command in commands:
        with pytest.raises(SystemExit) as stop:
            main([command, "--help"])
        assert stop.value.code == 0, command
