"""What README and the results say is what the code says."""

import json
import re
import shlex
import statistics
from pathlib import Path

from rootscale.cli import main

ROOT = Path(__file__).parents[1]


def test_the_command_in_the_readme_prints_what_the_readme_shows(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    (block,) = re.findall(r"```console\n\$ (rootscale scale .*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    command, _, shown = block.replace("\\\n", " ").partition("\n")
    assert main(shlex.split(command)[1:]) == 0
    printed = capsys.readouterr().out
    assert [line.rstrip() for line in printed.strip().splitlines()] == shown.strip().splitlines()


def test_make_demo_runs_the_command_of_the_readme():
    (block,) = re.findall(
        r"```console\n\$ (rootscale scale .*?)\n\n?", (ROOT / "README.md").read_text().replace("\\\n", " "), re.DOTALL
    )
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    (demo,) = re.findall(r"\$\(BIN\)/(rootscale scale .*)", makefile)
    assert shlex.split(demo) == shlex.split(block.splitlines()[0])


def test_the_gaps_in_the_readme_are_those_of_the_results():
    gaps = json.loads((ROOT / "results" / "digits-switch.json").read_text())["gaps"]
    rows = re.findall(r"^\| (.*?) \| ([\d.]+) ± ([\d.]+) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(rows) >= 5
    for name, mean, error in rows:
        values = [run[name] for run in gaps.values()]
        assert float(mean) == round(statistics.mean(values), 3)
        assert float(error) == round(statistics.stdev(values) / len(values) ** 0.5, 3)
