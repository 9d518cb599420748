"""How the command behaves in terminals and pipes: cases, JSON, completion, colours, width, help."""

import argparse
import json
import os
import pydoc
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rootscale import TABLE
from rootscale.cli import COMMANDS, main, make_parser
from rootscale.cli.cases import CASES
from rootscale.optimizers import FAMILIES
from rootscale.rules import RULES

ROOT = Path(__file__).parents[1]
SCALE = "scale --optimizer adamw --lr 3e-4 --batch-size 256 --to 1024 --steps 100000 --rule linear".split()
TABLES = [SCALE, ["units"], ["rules"], []]


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch):
    """An environment that says nothing about the terminal."""
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


def run(*words, **environment):
    """In a pipe and a process of its own."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}
    done = subprocess.run(
        [sys.executable, "-m", "rootscale", *words], capture_output=True, text=True, env=env, check=True
    )
    assert done.stderr == ""
    return done.stdout


def parsers():
    """Every command's parser by its name, and the whole one under "rootscale"."""
    whole = make_parser(*COMMANDS)
    (commands,) = (one for one in whole._actions if isinstance(one, argparse._SubParsersAction))
    return {"rootscale": whole, **commands.choices}


def test_without_a_command_the_cases_are_shown(capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out
    for words in ("more or fewer GPUs", "recipe", "how large", "grow", "vary", "is it the same run?", "Muon", "SDE"):
        assert words in shown
    pasted = re.sub(r" \\\n +", " ", shown)
    assert all(command in pasted for case in CASES for command in case.commands)


def test_at_80_columns_the_commands_of_cases_are_folded_before_an_option(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    after = [lines[number + 1].split()[0] for number, line in enumerate(lines) if line.endswith(" \\")]
    assert after
    assert all(word.startswith("-") for word in after)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_the_commands_and_topics_of_a_case_exist(case):
    for command in case.commands:
        name, *words = shlex.split(command)
        assert name == "rootscale"
        assert make_parser(words[0]).parse_args(words).handler is not None
    assert case.commands or case.python
    for topic in case.topics:
        assert pydoc.locate(topic) is not None


def test_units_as_json_are_the_table(capsys):
    assert main(["units", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["key"] for row in rows] == [unit.key for unit in TABLE]
    assert rows[0]["form"] == {"text": "x * kappa^(1/2)", "kind": "power", "exponent": "1/2"}
    assert all({"label", "status", "source", "why"} <= set(row) for row in rows)


def test_rules_as_json_are_the_tables(capsys):
    assert main(["rules", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert list(data["rules"]) == list(RULES)
    assert list(data["optimizers"]) == list(FAMILIES)
    linear = data["rules"]["linear"]
    assert "sgd" in linear["holds_for"]
    assert {row["key"] for row in linear["rows"]} == set(RULES["linear"].units)


def test_a_command_that_is_gone_names_what_takes_its_place(capsys):
    assert main(["reproduce", "cifar10-switch", "--device", "cuda"]) == 2
    assert "rootscale study experiments/FILE.py" in capsys.readouterr().err


@pytest.mark.parametrize("words", TABLES, ids=lambda words: " ".join(words[:2]) or "cases")
def test_a_pipe_gets_plain_text_and_all_of_it(words, capsys, monkeypatch):
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "…" not in out
    if words[:1] in (["units"], ["rules"]):
        rows = [unit.why for unit in TABLE] if words == ["units"] else [*RULES, *FAMILIES]
        monkeypatch.setenv("COLUMNS", "400")
        assert main(words) == 0
        shown = re.sub(r"\W", "", capsys.readouterr().out)
        assert all(re.sub(r"\W", "", row) in shown for row in rows)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
@pytest.mark.parametrize("words", TABLES[:3], ids=lambda words: words[0])
def test_a_narrow_terminal_gets_lines_that_can_be_read(words, width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(words) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= width
    assert "…" not in out
    assert "theorem" in out
    if width >= 40:  # no column is so narrow that a word is cut into pieces
        assert "samples" in out
        assert not re.search(r"^ *[a-z]{1,3} *\n *[a-z]{1,3} *\n *[a-z]{1,3} *$", out, re.MULTILINE)


def test_colours_can_be_forced_and_forbidden():
    assert "\x1b[" in run(*SCALE, FORCE_COLOR="1")
    assert "\x1b[3" not in run(*SCALE, FORCE_COLOR="1", NO_COLOR="1")
    assert "\x1b[" not in run(*SCALE, NO_COLOR="1")


def test_forced_colours_make_no_progress_bar_in_a_pipe(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main("order --optimizer sgd --paths 200 --etas 0.25 0.125".split()) == 0
    out = capsys.readouterr().out
    assert "\x1b[1m" in out
    assert "\x1b[2K" not in out  # erases a line
    assert "\x1b[?25l" not in out  # hides the cursor


@pytest.mark.parametrize("name", parsers())
def test_the_help_of_a_command_has_an_example_that_parses(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    parser = parsers()[name]
    text = parser.format_help()
    title, _, examples = text.rpartition("example")[2].partition(":\n")
    assert title in ("", "s")
    commands = examples.replace("\\\n", " ").strip().splitlines()
    assert commands, "each command has an example"
    for command in commands:
        words = shlex.split(command.partition(">")[0])
        assert words[0] == "rootscale"
        assert name in ("rootscale", words[1])
        make_parser(words[1]).parse_args(words[1:])
    assert parser.description
    assert max(map(len, text.splitlines())) <= 80
    assert not re.search(r"--[a-z-]+-\n", text), "an option is broken at its hyphen"


def test_every_option_is_explained():
    for name, parser in parsers().items():
        for action in parser._actions:
            assert action.help or isinstance(action, argparse._SubParsersAction), f"{name} {action.option_strings}"


def complete(script, line, folder):
    """What bash offers for the last word of a line."""
    words = line.split(" ")
    code = f"""source {shlex.quote(str(script))}
        COMP_WORDS=({" ".join(map(shlex.quote, words))}); COMP_CWORD={len(words) - 1}
        _shtab_rootscale; printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(
        ["bash", "--norc", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env={"PATH": os.environ["PATH"]},
    )
    return set(done.stdout.split("\n")) - {""}


def test_bash_completes_commands_options_words_and_files(tmp_path):
    pytest.importorskip("shtab")
    command = [sys.executable, "-m", "rootscale", "completion", "bash"]  # other tests of this process may add rules
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    script = tmp_path / "script"
    script.write_text(done.stdout)
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text("")

    def offered(line):
        return complete(script, line, folder)

    assert offered("rootscale ") >= set(COMMANDS)
    assert offered("rootscale ch") == {"check", "checkpoint"}
    assert "--schedule" in offered("rootscale scale --sch")
    assert offered("rootscale scale --schedule co") == {"constant", "cosine"}
    assert offered("rootscale scale --averaging ") == {"floor", "paper", "power"}
    assert "train.py" in offered("rootscale convert tr")
    assert "train.py" in offered("rootscale compare tr")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_names_every_command(shell, capsys):
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(name in script for name in COMMANDS)
    assert "measure-share" in script


def test_completion_without_its_library_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert 'completion needs shtab; pip install "rootscale[completion]"' in capsys.readouterr().err
