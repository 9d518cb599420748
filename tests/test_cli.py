import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rootscale import TABLE, Plan, cli
from rootscale.cli import main
from rootscale.cli.options import USES
from rootscale.compare import Table
from rootscale.rules import RULES

WORKED = (
    "scale --optimizer adamw --lr 3e-4 --betas 0.9 0.95 --eps 1e-8 --weight-decay 0.1 --batch-size 256 --to 1024 "
    "--steps 100000 --warmup-steps 2000 --ema 0.9999"
).split()
SOURCE = str(Path(__file__).parents[1] / "src")


def run(*words, **environment):
    """In a process of its own, as users do."""
    env = {**os.environ, "PYTHONPATH": SOURCE, **environment}
    return subprocess.run(
        [sys.executable, "-m", "rootscale", *words], capture_output=True, text=True, env=env, check=False
    )


def test_scale_prints_before_and_after_with_status_and_reason(capsys):
    assert main(WORKED) == 0
    out = capsys.readouterr().out
    lines = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert lines["lr"][1:4] == ["0.0003", "0.0006", "derived"]
    assert lines["beta1"][1:4] == ["0.9", "0.9", "measured"]
    assert lines["weight_decay"][1:4] == ["0.1", "0.2", "derived"]
    assert lines["steps"][1:3] == ["100,000", "25,000"]
    assert "\x1b[" not in out


def test_colour_is_for_terminals_only():
    assert "\x1b[" not in run(*WORKED).stdout
    pty = pytest.importorskip("pty")
    parent, child = pty.openpty()
    env = {**os.environ, "PYTHONPATH": SOURCE, "TERM": "xterm-256color"}
    env.pop("NO_COLOR", None)
    with subprocess.Popen([sys.executable, "-m", "rootscale", *WORKED], stdout=child, env=env):
        os.close(child)
        assert b"\x1b[" in os.read(parent, 4096)
        try:
            while os.read(parent, 4096):
                pass
        except OSError:  # the other end is closed
            pass


def test_json_is_machine_readable(capsys):
    assert main([*WORKED, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert Plan.from_dict(data["to"]).optimizer.eta == 6e-4
    assert data["kappa"] == 4
    assert {"name", "field", "before", "after", "used", "form", "status", "source", "why"} == set(data["changes"][0])


def test_a_plan_file_goes_in_and_options_go_on_top(tmp_path, capsys):
    file = tmp_path / "plan.json"
    assert main([*WORKED, "--averaging", "paper", "--json"]) == 0
    file.write_text(json.dumps(json.loads(capsys.readouterr().out)["to"]))
    assert main(["scale", "--plan", str(file), "--to", "256", "--clip", "2", "--json"]) == 0
    back = Plan.from_dict(json.loads(capsys.readouterr().out)["to"])
    assert (back.steps, back.clip) == (100_000, 4.0)
    assert back.optimizer.beta1 == pytest.approx(0.9)


def test_decoupled_adam_is_adamw(capsys):
    words = "scale --optimizer adam --lr 1e-3 --weight-decay 0.1 --batch-size 8 --to 32 --json".split()
    decays = []
    for extra in ([], ["--decoupled"]):
        assert main([*words, *extra]) == 0
        decays.append(json.loads(capsys.readouterr().out)["to"]["optimizer"]["weight_decay"])
    assert decays == [0.1, 0.2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("scale --to 4", "rootscale scale: error: --optimizer is needed, or a --plan that has it"),
        ("scale --optimizer adam --to 4", "--batch-size is needed"),
        (
            "scale --optimizer adam --lr 1e-3 --batch-size 8 --to 128 --averaging paper",
            "need kappa < 10, or floors, which give beta1=0.9",
        ),
        ("scale --optimizer adam --lr -1e-3 --batch-size 8 --to 16", "--lr must be a finite number > 0, got -0.001"),
        (
            "scale --optimizer adam --lr 1e-3 --batch-size -16 --to 16",
            "--batch-size must be a number above 0 such as 1024, got '-16'",
        ),
        (
            "scale --optimizer adam --lr 1e-3 --batch-size 8 --to many",
            "--to must be a number above 0 such as 1024, got",
        ),
        ("scale --optimizer adam --lr 1e-3 --batch-size 8 --to 1,024", "above 0 such as 1024, got '1,024'"),
        ("scale --optimizer adam --lr x --batch-size 8 --to 16", "argument --lr: invalid float value: 'x'"),
        ("scale --optimizer lbfgs --batch-size 8 --to 16", "argument --optimizer: invalid choice: 'lbfgs'"),
        ("scale --optimizer sgd --lr 1 --batch-size 8 --to 16 --rule sqrt", "the rule of sgd is 'linear'"),
        (
            "scale --optimizer muon --lr 1 --batch-size 8 --to 16 --rule normalized:R",
            "'normalized-half', 'normalized-linear')",
        ),
        ("scale --plan nowhere.json --to 16", "cannot read nowhere.json: No such file or directory"),
        (
            "scale --optimizer sgd --lr 1 --batch-size 8 --to 16 --every eval",
            "--every takes NAME=STEPS such as eval=1000, got 'eval'",
        ),
        ("scale --optimizer sgd --lr 1 --batch-size 8 --to 16 --alpha 0.9", "optimizer sgd has no 'beta'"),
        ("scal", "argument COMMAND: invalid choice: 'scal'"),
    ],
)
def test_mistakes_are_one_line_on_stderr_and_exit_code_2(words, message):
    done = run(*words.split())
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_broken_plan_file_is_named(tmp_path):
    (tmp_path / "plan.json").write_bytes(b"\xff\xfe{")
    assert "plan.json" in run("scale", "--plan", str(tmp_path / "plan.json"), "--to", "4").stderr
    (tmp_path / "plan.json").write_text('{"optimizer": 3}')
    assert (
        "plan.json: optimizer must be an object"
        in run("scale", "--plan", str(tmp_path / "plan.json"), "--to", "4").stderr
    )


def test_units_and_rules_print_their_whole_tables(capsys):
    assert main(["units"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert all(unit.form.text in out and unit.status in out for unit in TABLE)
    assert main(["rules"]) == 0
    out = capsys.readouterr().out
    assert all(rule in out for rule in RULES)


def test_a_reader_that_goes_away_is_no_error():
    env = {**os.environ, "PYTHONPATH": SOURCE}
    with subprocess.Popen(
        [sys.executable, "-m", "rootscale", "units"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""


def test_an_interrupt_is_one_line_and_the_shells_exit_code(monkeypatch, capsys):
    def interrupted(plan, *args):
        raise KeyboardInterrupt

    monkeypatch.setattr(Plan, "convert", interrupted)
    assert main(WORKED) == 130
    assert capsys.readouterr().err == "rootscale scale: interrupted\n"


#: The rooms of the house and the libraries that each command may load, and the most modules of ours.
THEORY = {"spellings", "training", "theory", "torch", "numpy", "rich"}
LOADS = {
    "--help": (set(), 20),
    "": ({"rich"}, 22),
    "scale --optimizer adam --lr 1e-3 --batch-size 8 --to 16": ({"rich"}, 28),
    "units": ({"rich"}, 22),
    "rules": ({"rich"}, 26),
    **{f"{name} --help": (set(), 26) for name in cli.COMMANDS if name != "convert"},
    "convert --help": ({"configs"}, 60),
    "convert train.py --to 24 --format nanogpt": ({"configs", "rich"}, 60),
    "checkpoint nothing.pt --from 1 --to 2": (
        {"checkpoints", "configs", "spellings", "training", "torch", "numpy", "rich"},
        100,
    ),
    "compare base.csv --to large.csv": ({"compare", "numpy", "rich"}, 52),
    "order --optimizer sgd --paths 50 --etas 0.25 0.125": (THEORY, 100),
    "simulate --optimizer sgd --paths 50": (THEORY, 100),
}


@pytest.mark.parametrize("words", LOADS)
def test_a_command_loads_what_it_needs(words, tmp_path):
    (tmp_path / "train.py").write_text("learning_rate = 6e-4\nbatch_size = 12\nmax_iters = 600000\n")
    for name in ("base", "large"):
        (tmp_path / f"{name}.csv").write_text("samples,loss\n" + "".join(f"{k},{1 / k}\n" for k in range(1, 9)))
    code = (
        "import sys; from rootscale.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print('loaded', *sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run(
        [sys.executable, "-c", code, *words.split()], capture_output=True, text=True, env=env, check=True, cwd=tmp_path
    )
    assert "Traceback" not in done.stderr
    loaded = done.stdout.rpartition("loaded ")[2].split()
    ours = [name.split(".") for name in loaded if name.startswith("rootscale")]
    rooms = {parts[1] for parts in ours if len(parts) > 2} - {"cli"}
    libraries = {"torch", "numpy", "rich", "yaml", "sklearn", "scipy", "matplotlib", "plotly", "polars"}
    allowed, most = LOADS[words]
    assert rooms | libraries & set(loaded) <= allowed
    assert len(ours) <= most


def test_the_help_of_the_whole_names_every_command(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for name, command in cli.COMMANDS.items():
        assert f"{name} {command.summary}" in shown


def test_what_is_no_answer_is_logged_to_stderr(caplog, capsys):
    assert main([*WORKED[:-2], "--noise-scale", "512", "--snippet", "torch"]) == 0
    found = capsys.readouterr()
    assert "rootscale scale: warning: batch size 1,024 is beyond the noise scale" in found.err
    assert "beyond" not in found.out
    assert [record.name for record in caplog.records] == ["rootscale.cli.scale"] * len(caplog.records)


# -- what options are for


def options_of(name):
    parser = cli.make_parser(name)
    (commands,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    return {flag for one in commands.choices[name]._actions for flag in one.option_strings if flag.startswith("--")}


def test_every_option_of_check_and_compare_has_its_use():
    check, largest, compare = (options_of(name) - {"--help"} for name in ("check", "largest", "compare"))
    assert set(USES) == check | largest | compare
    assert {flag for flag, use in USES.items() if "logs" in use.check} == compare
    assert {flag for flag, use in USES.items() if {*use.check} - {"logs"}} == check
    assert {flag for flag, use in USES.items() if use.largest} == largest


LOOP = """
def train(batch_size, seed, log, convert):
    for k in range(1, 41):
        log(samples=k * 16, loss=1 / k + 1e-3 * seed)
"""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("loop.py:train --track tensorboard", "--track does nothing for a training function, only for a Task: leave"),
        ("loop.py:train --device cuda", "--device does nothing for a training function, only for a Task"),
        ("loop.py:train --device=cuda", "--device does nothing for a training function, only for a Task"),
        ("loop.py:train --eval-samples 9", "--eval-samples does nothing for a training function"),
        ("loop.py:train --log a.jsonl", "--log does nothing for a training function, only for --command"),
        ("loop.py:train --address ray://a", "--address does nothing without --engine ray: leave it out, or add that"),
        ("loop.py:train --seeds 4 --budget 5m", "--budget does nothing without --seeds auto"),
        ("digits --values lr=1", "--values does nothing for a Task, only for a training function or --command"),
        ("--command x --micro 8", "--micro does nothing for --command, only for a Task"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop.py").write_text(LOOP)
    assert main(["check", *words.split(), "--to", "64", *([] if "digits" in words else ["--batch-size", "16"])]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix) == ["loop.py"], "nothing is run"


WRITER = """
import pathlib, sys, time
folder, size, seed = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
place = folder / f"run_{time.time_ns()}"
place.mkdir(parents=True)
rows = [f"{k * size},{1 / k + 1e-3 * seed}" for k in range(1, 41)]
(place / "metrics.csv").write_text("\\n".join(["samples,loss", *rows, ""]))
"""


def test_the_log_of_a_command_may_be_a_pattern_for_folders_with_a_time_in_their_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "writer.py").write_text(WRITER)
    (tmp_path / "out[1]" / "run_1").mkdir(parents=True)
    (tmp_path / "out[1]" / "run_1" / "metrics.csv").write_text("samples,loss\n1,1\n")  # left by an older run
    command = f"{sys.executable} -S {tmp_path / 'writer.py'} {{place}} {{batch_size}} {{seed}}"
    words = ["check", "--batch-size", "16", "--to", "32", "--seeds", "2", "--workers", "1"]
    inside = command.replace("{place}", "{folder}")
    assert main([*words, "--command", inside, "--log", "{folder}/run_*/metrics.csv", "--out", "a"]) in (0, 1, 3)
    assert "each compared with B = 16 (2 seeds each)" in capsys.readouterr().out
    one = command.replace("{place}", "'out[1]'")
    assert main([*words, "--command", one, "--log", "out[[]1]/run_*/metrics.csv", "--out", "b"]) in (0, 1, 3)
    twice = f"sh -c '{command} && {command}'".replace("{place}", "{folder}")
    assert main([*words, "--command", twice, "--log", "{folder}/run_*/metrics.csv", "--out", "c"]) == 2
    assert "leads to 2 logs that were written in this run" in capsys.readouterr().err
    nothing = f"{sys.executable} -S -c pass {{batch_size}} {{seed}}"
    assert main([*words, "--command", nothing, "--log", "{folder}/run_*/metrics.csv", "--out", "d"]) == 2
    assert "ended without a log at" in capsys.readouterr().err
    assert main([*words, "--command", nothing, "--log", "out[[]1]/run_*/metrics.csv", "--out", "e"]) == 2
    assert "whose log is older" in capsys.readouterr().err


def test_values_take_an_interval_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "import sys; open(sys.argv[1], 'w').write(''.join(f'{{k}},{{1 / k}}\\n' if k else 'samples,loss\\n' "
    code += "for k in range(9)) + f'{{100 + int(sys.argv[2])}},.1\\n')"
    command = f'{sys.executable} -S -c "{code}" {{log}} {{every_eval}} {{batch_size}} {{seed}}'
    words = ["check", "--command", command.replace("{log}", "{folder}/a.csv"), "--log", "{folder}/a.csv"]
    words += "--batch-size 16 --to 32 --seeds 2 --workers 1 --out kept --values optimizer=sgd lr=1 steps=400".split()
    assert main([*words, "every_eval=40", "every=save=80"]) in (0, 1, 3)
    found = Table.load("kept")
    assert [arm.plan.intervals for arm in (found.base, *found.others)] == [
        {"eval": 40, "save": 80}, {"eval": 20, "save": 40},
    ]  # fmt: skip


def test_points_are_those_of_a_loop_too(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop.py").write_text(LOOP)
    words = "check loop.py:train --batch-size 16 --to 64 --seeds 2 --workers 1 --points 3".split()
    assert main(words) == 0
    assert "at 3 points" in capsys.readouterr().out


def test_a_fault_of_ours_is_no_verdict(monkeypatch, capsys):
    def broken(args):
        raise KeyError("inside")

    parser = cli.make_parser()
    monkeypatch.setattr(cli, "make_parser", lambda *called: parser)
    monkeypatch.setattr(parser, "parse_args", lambda words: argparse.Namespace(command="check", handler=broken))
    assert main(["check"]) == 70
    assert "KeyError: 'inside'" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_one_line(monkeypatch, capsys):
    def refused(args):
        raise NotADirectoryError(20, "Not a directory", "afile/runs")

    parser = cli.make_parser()
    monkeypatch.setattr(cli, "make_parser", lambda *called: parser)
    monkeypatch.setattr(parser, "parse_args", lambda words: argparse.Namespace(command="check", handler=refused))
    assert main(["check"]) == 2
    assert capsys.readouterr().err == "rootscale check: error: [Errno 20] Not a directory: 'afile/runs'\n"
