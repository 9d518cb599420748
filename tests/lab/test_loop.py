"""A loop of the user's own in the check: a function, a command, checkpoints, what is stored and resumed."""

import json
import math
import os
import shlex
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

from rootscale import Adam, AdamW, Plan, Run
from rootscale.cli import main
from rootscale.cli.watching import stoppable
from rootscale.compare import read_logs
from rootscale.lab import (
    Command,
    Deadline,
    Forked,
    Here,
    Loop,
    Observer,
    Store,
    Table,
    UnfinishedError,
    Variant,
    check,
    find_largest,
    loop_runs,
)
from rootscale.lab.command import values_of
from rootscale.lab.execute import can_fork
from rootscale.lab.largest import Search
from rootscale.lab.loop import Convert, is_train_function
from rootscale.lab.rounds import Rounds

PLAN = Plan(Adam(eta=1e-3, beta1=0.98, beta2=0.999), batch_size=4, steps=200)


def curve(samples, eta, seed):
    """A loss that falls as fast as the learning rate is high, and a little otherwise for each seed."""
    return 1 + math.exp(-samples * eta / 0.2) + 0.004 * math.sin(seed)


def train(batch_size, seed, log, convert):
    """As the rule wants it: eta over the square root of the batch size tells how fast the loss falls."""
    eta = convert.plan(PLAN).optimizer.eta
    start = json.loads(convert.checkpoint.read_text())["samples"] if convert.checkpoint else 0
    for samples in range(start + batch_size, start + 801, batch_size):
        log(samples=samples, loss=curve(samples, eta / math.sqrt(float(convert.kappa)), seed))


def wrong(batch_size, seed, log, convert):
    for samples in range(batch_size, 801, batch_size):
        log(samples=samples, loss=curve(samples, 1e-3 * (1 + (batch_size > 4)), seed))


HERE = Here()


def run(function, variants=(4,), **more):
    return check(Loop("mine", function, 4), variants, **{"seeds": 4, "execute": HERE, **more})


# -- functions


def test_a_loop_that_is_converted_is_the_same_and_one_that_is_not_differs():
    assert run(train).verdict == "same"
    found = run(wrong)
    assert found.verdict == "different"
    arm = found["B = 16"]
    assert arm.comparison.paired
    assert arm.comparison.gaps["loss"].parts_at(0.05) < 400
    assert found.task == "mine"


def test_rules_are_tried_by_their_names():
    found = run(train, [Variant(4), Variant(4, "linear"), Variant(4, "none")])
    assert {arm.label: arm.verdict for arm in found.others} == {
        "B = 16": "same", "B = 16, linear": "different", "B = 16, none": "different",
    }  # fmt: skip
    assert any("'linear' does not keep the dynamics of adam" in text for text in found["B = 16, linear"].guards)


def test_a_loop_with_a_plan_has_its_changes_in_the_report():
    found = check(Loop("mine", train, 4, PLAN), [4], seeds=4, execute=HERE)
    assert found["B = 16"].plan.optimizer.eta == pytest.approx(2e-3)
    assert found["B = 16"].changes["kappa"] == 4


def test_convert_lets_live_objects_follow_and_leaves_their_numbers():
    for size, lr in ((4, 1e-3), (16, 2e-3)):
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.Adam([weight], lr=1e-3, betas=(0.98, 0.999))
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
        convert = Convert(size, 4)
        changes = convert(optimizer, scheduler=scheduler)
        assert optimizer.param_groups[0]["lr"] == scheduler.get_last_lr()[0] == 1e-3
        assert changes["lr"].after == pytest.approx(lr)
        assert convert.steps(100) == 100 * 4 // size


def forgetful(batch_size, seed, log):
    """Makes its own Run, and goes on with the loader of batch size 4."""
    torch.manual_seed(seed)
    model = torch.nn.Linear(10, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.95, 0.99))

    def step(size):
        x = torch.randn(size, 10)
        loss = (model(x) - 5 * torch.randn(size, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    run = Run(optimizer, tuned_at=4)
    for _ in range(300):
        step(4)
    run.batch_size = batch_size
    for i in range(40):
        loss = step(4)
        log(samples=(i + 1) * 4, loss=loss)
    assert run.kappa == batch_size / 4


@pytest.mark.filterwarnings("default::rootscale.ScalingWarning")
def test_what_a_loop_s_own_run_has_seen_is_said_with_the_verdict():
    found = check(Loop("mine", forgetful, 4), [16], seeds=2, execute=HERE)
    assert any("does the data loader still have the old batch size?" in text for text in found["B = 64"].guards)
    assert not any("data loader" in text for text in found.base.guards)


def test_a_real_loop_of_torch_goes_on_by_the_rule_from_its_checkpoint(tmp_path):
    x = torch.randn(256, 6, generator=torch.Generator().manual_seed(0))
    y = x.sum(1, keepdim=True) + torch.randn(256, 1, generator=torch.Generator().manual_seed(1))

    def real(batch_size, seed, log, convert, until=2_000):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.98, 0.999))
        start = 0
        if convert.checkpoint:
            saved = torch.load(convert.checkpoint)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            start = saved["samples"]
        convert(optimizer)
        order = torch.randint(256, (until,), generator=torch.Generator().manual_seed(100 + seed))
        for place in range(start, until, batch_size):
            rows = order[place : place + batch_size]
            loss = (model(x[rows]) - y[rows]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if (place + batch_size) % 200 == 0:
                with torch.no_grad():
                    log(samples=place + batch_size, loss=(model(x) - y).square().mean())
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "samples": until}

    class Silent:
        def __call__(self, *args, **kwargs):
            pass

    for seed in range(4):
        torch.save(real(2, seed, Silent(), Convert(2, 2), until=800), tmp_path / f"{seed}.pt")
    rules = [Variant(4), Variant(4, "none", name="nothing")]
    where = tmp_path / "{seed}.pt"
    found = check(Loop("real", real, 2), rules, seeds=4, switch_at=where, execute=HERE, store=tmp_path / "kept")
    sizes = {arm.label: abs(arm.comparison.gaps["loss"].largest.gap) for arm in found.others}
    assert sizes["B = 8"] < 0.05 < 0.3 < sizes["nothing"]
    assert found["B = 8"].verdict != "different"
    assert found.made["checkpoint"] == str(where)
    assert found.base.trajectory.meta["samples"][0] >= 800


def test_what_no_loop_can_be_is_refused():
    with pytest.raises(ValueError, match="a variant with SVAG, a ramp or a zeroed state is for a Task"):
        run(train, [Variant(ell=2)])
    with pytest.raises(ValueError, match="a loop of your own switches where you saved it"):
        run(train, switch_at=100)
    with pytest.raises(ValueError, match="at least 2 different seeds"):
        run(train, seeds=1)
    with pytest.raises(ValueError, match=r"there is no checkpoint nowhere/0.pt, from which the run of seed 0"):
        run(train, switch_at="nowhere/{seed}.pt")
    with pytest.raises(ValueError, match=r"the run logged nothing: call log\(samples="):
        run(lambda batch_size, seed, log, convert: None)
    with pytest.raises(ValueError, match="it must be whole"):
        run(train, [1.1])
    with pytest.raises(TypeError, match=r"train must be a function train\(batch_size, seed, log\)"):
        Loop("a", 3, 4)
    with pytest.raises(ValueError, match="the plan must have the batch size of the loop, 8, got 4"):
        Loop("a", train, 8, PLAN)
    assert not is_train_function(print)
    assert not is_train_function(lambda seed: None)


# -- the store


def test_finished_runs_are_read_again_and_others_are_made(tmp_path):
    made = []

    def counted(batch_size, seed, log, convert):
        made.append((batch_size, seed))
        train(batch_size, seed, log, convert)

    run(counted, store=tmp_path)
    assert len(made) == 8
    run(counted, store=tmp_path, seeds=5)
    assert made[8:] == [(4, 4), (16, 4)]
    assert Table.load(tmp_path).base.trajectory.replicas == 5


def test_a_run_is_finished_when_its_warnings_are_written(tmp_path, monkeypatch):
    def killed(*what):
        raise OSError("killed while it wrote the last facts")

    with monkeypatch.context() as patch:
        patch.setattr(loop_runs, "write_facts", killed)
        with pytest.raises(ValueError, match="killed while it wrote"):
            run(train, store=tmp_path)
    assert not list(tmp_path.rglob("log.jsonl"))
    run(train, store=tmp_path)
    assert {json.loads(path.read_text())["status"] for path in tmp_path.rglob("run.json")} == {"finished"}


def test_a_run_that_was_stopped_goes_on_in_its_folder(tmp_path):
    def resumable(batch_size, seed, log, convert):
        kept = log.folder / "state.json"
        start = json.loads(kept.read_text()) if kept.exists() else 0
        for samples in range(start + batch_size, 801, batch_size):
            log(samples=samples, loss=curve(samples, 1e-3, seed))
            kept.write_text(json.dumps(samples))
            if seed == 2 and samples == 400 and not start:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(resumable, store=tmp_path)
    (part,) = tmp_path.rglob("log.part.jsonl")
    assert len(part.read_text().splitlines()) == 100
    with pytest.raises(KeyboardInterrupt):  # that of B = 16
        run(resumable, store=tmp_path)
    found = run(resumable, store=tmp_path)
    assert found.verdict == "same"
    assert not any("resumed" in note for note in found.made["notes"])


def test_a_deadline_ends_a_run_when_it_logs(tmp_path):
    with pytest.raises(UnfinishedError):
        run(train, store=tmp_path, execute=Here(deadline=Deadline.after(0.0)))


def test_another_source_makes_new_runs(tmp_path):
    notes = []

    for factor in (1.0, 1.5):
        path = tmp_path / "mine.py"
        path.write_text(
            "import math\n# a comment does not count\n"
            * int(factor * 2)
            + f"def train(batch_size, seed, log, convert):\n"
            f"    for s in range(batch_size, 401, batch_size):\n"
            f"        log(samples=s, loss={factor} * math.exp(-s / 100) + 1e-3 * seed)\n"
        )
        from rootscale.lab.task import load_named

        loop = Loop("mine", load_named(f"{path}:train"), 4)
        found = check(loop, [4], seeds=4, execute=HERE, store=tmp_path / "kept", observe=Observer(note=notes.append))
    assert found.base.trajectory["loss"].mean.max() > 1.2
    assert "B = 4: the stored runs were made with another source; they stay, and new ones are made" in notes


def test_words_of_a_program_do_not_make_new_runs(tmp_path):
    from rootscale.lab.task import load_named

    def fingerprint(words, factor):
        path = tmp_path / f"mine_{len(words)}_{factor}.py"
        path.write_text(
            f'"""{words}"""\n\n# {words}\ndef train(batch_size, seed, log, convert):\n    """{words}"""\n'
            f"    log(samples=batch_size, loss={factor})\n"
        )
        return Loop("mine", load_named(f"{path}:train"), 4).fingerprint()

    assert fingerprint("One finding.", 1.0) == fingerprint("Another one, n = 8.", 1.0)
    assert fingerprint("One finding.", 1.0) != fingerprint("One finding.", 2.0)


@pytest.mark.skipif(not can_fork(), reason="no process can be forked here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_processes_share_the_runs(tmp_path):
    assert run(train, store=Store(tmp_path), execute=Forked(2)).verdict == "same"


# -- commands

SCRIPT = """
import argparse, json, math
parser = argparse.ArgumentParser()
for name in ("batch-size", "seed"):
    parser.add_argument("--" + name, type=int)
parser.add_argument("--lr", type=float)
parser.add_argument("--log")
args = parser.parse_args()
eta = args.lr / math.sqrt(args.batch_size / 4)
with open(args.log, "w") as file:
    for samples in range(args.batch_size, 801, args.batch_size):
        loss = 1 + math.exp(-samples * eta / 0.2) + 0.004 * math.sin(args.seed)
        print(json.dumps({"samples": samples, "loss": loss}), file=file)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return f"{sys.executable} -S {path} --batch-size {{batch_size}} --lr {{lr}} --seed {{seed}} --log {{log}}"


def test_a_command_is_run_with_the_converted_values(script, tmp_path, capsys):
    words = ["check", "--command", script, "--values", "optimizer=adam", "lr=1e-3", "betas=0.98,0.999", "steps=200"]
    words += ["--batch-size", "4", "--to", "16", "--rule", "sqrt", "none", "--seeds", "4", "--workers", "1"]
    assert main([*words, "--out", str(tmp_path / "kept")]) == 1
    found = Table.load(tmp_path / "kept")
    assert [arm.verdict for arm in found.others] == ["same", "different"]
    out = capsys.readouterr().out
    assert "train: runs from scratch, each compared with B = 4 (4 seeds each)" in out
    assert found.others[0].plan.optimizer.eta == pytest.approx(2e-3)


def test_a_function_is_checked_from_the_command_line(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(
        textwrap.dedent("""
        import math

        def train(batch_size=4, seed=0, log=None, convert=None):
            for samples in range(batch_size, 401, batch_size):
                log(step=samples // batch_size, loss=math.exp(-samples / 100) + 1e-3 * seed)

        def bare(batch_size, seed, log, convert):
            train(batch_size, seed, log, convert)
        """)
    )
    out = ["--seeds", "4", "--workers", "1", "--out", str(tmp_path / "kept")]
    assert main(["check", f"{path}:train", "--to", "16", *out, "--report", str(tmp_path)]) == 0
    assert "No report: " in capsys.readouterr().out  # a folder: the verdict stands
    assert main(["check", f"{path}:train", "--to", "16", *out]) == 0
    assert "mine-train: runs from scratch" in capsys.readouterr().out
    assert main(["check", f"{path}:bare", "--to", "16", *out]) == 2
    assert "needs the batch size of the base: give --batch-size, or a default" in capsys.readouterr().err
    assert main(["check", "--to", "16"]) == 2
    assert "give TASK, or a command with --command; one of them" in capsys.readouterr().err
    assert main(["check", f"{path}:train", "--to", "16", "--switch-at", "nowhere.pt", *out]) == 2
    assert "there is no checkpoint nowhere.pt" in capsys.readouterr().err


def test_a_command_that_cannot_be_filled_in_or_fails_says_so(script, tmp_path):
    with pytest.raises(ValueError, match=r"has {lr}, which is not known; known are batch_size, seed, kappa, log"):
        Command(script, None, read_logs)
    with pytest.raises(ValueError, match=r"must have {batch_size}"):
        Command("python a.py {seed}", None, read_logs)
    with pytest.raises(ValueError, match=r"must have {seed}, so that runs differ"):
        Command("python a.py {batch_size}", None, read_logs)
    with pytest.raises(ValueError, match="where does the command log"):
        Command("python a.py {batch_size} {seed}", None, read_logs)
    fails = f"{sys.executable} -S -c 'import sys; print(\"oh\"); sys.exit({{batch_size}} + {{seed}})'"
    loop = Loop("fails", Command(fails, None, read_logs, "{folder}/a.csv"), 4)
    with pytest.raises(ValueError, match=r"the command failed with 4: (.|\n)*oh"):
        check(loop, [4], seeds=4, execute=HERE)
    silent = Command(f"{sys.executable} -S -c pass {{batch_size}} {{seed}}", None, read_logs, "{folder}/a.csv")
    with pytest.raises(ValueError, match=r"ended without a log at .*a.csv"):
        check(Loop("silent", silent, 4), [4], seeds=4, execute=HERE)
    with pytest.raises(ValueError, match="cannot run 'no-such-program'"):
        check(Loop("none", Command("no-such-program {batch_size} {seed} {log}", None, read_logs), 4), [4], seeds=4,
              execute=HERE)  # fmt: skip


def test_the_values_of_a_plan_are_named_as_options_are():
    plan = Plan(AdamW(eta=1e-3), batch_size=8, steps=1000, clip=1.0, ema=0.99, intervals={"eval": 100})
    found = values_of(plan.at(16))
    assert found["steps"] == 500
    assert found["every_eval"] == 50
    assert found["lr"] == pytest.approx(1e-3 * math.sqrt(2))
    assert {"beta1", "beta2", "eps", "weight_decay", "clip", "ema", "warmup_steps", "min_lr"} <= set(found)
    assert np.isclose(found["ema"], 0.99**2)


# -- the largest batch


def drifting(batch_size, seed, log, convert):
    """A gap that grows with the batch size, and shrinks with what was seen before: 1 % of the range at B = 8."""
    start = json.loads(convert.checkpoint.read_text())["samples"] if convert.checkpoint else 0
    gap = 0.01 * (float(convert.kappa) - 1) * 200 / (200 + start)
    for samples in range(32, 1601, 32):
        falls = math.exp(-samples / 400) + 1e-4 * math.sin(7 * seed)
        log(samples=start + samples, loss=1 + falls + gap * samples / 1600)


def test_the_search_ends_at_the_first_batch_that_is_different(tmp_path):
    made = []

    def counted(batch_size, seed, log, convert):
        made.append(batch_size)
        drifting(batch_size, seed, log, convert)

    search = Search(kappas=(2, 4, 8, 16, 32))
    found = find_largest(Loop("mine", counted, 4), search, store=Store(tmp_path), execute=HERE)
    (branch,) = found.branches
    assert branch.same == 16  # a gap of 3 %; 8 times the batch has 7 %
    assert branch.different == 32
    assert sorted(set(made)) == [4, 8, 16, 32]
    assert len(made) == 14  # four seeds of each decide; of the last, two show it on the way
    assert branch.to_dict()["arms"][-1]["stopped_at"] == pytest.approx(32 + 0.75 * (1600 - 32))
    assert str(branch) == "after 0 samples B = 16 is the same; 32 is different"
    assert Table.load(tmp_path / "start-0")["B = 32"].verdict == "different"


def test_an_undecided_batch_gets_more_seeds(tmp_path):
    def noisy(batch_size, seed, log, convert):
        for samples in range(batch_size, 1601, batch_size):
            wander = 0.06 * (batch_size > 4) * math.cos(2.4 * seed)
            log(samples=samples, loss=1 + math.exp(-samples / 400) + wander)

    search = Search(kappas=(2,))
    found = find_largest(Loop("mine", noisy, 4), search, store=Store(tmp_path), execute=HERE)
    assert found.branches[0].runs > 4
    assert found.branches[0].same == 8


def test_several_checkpoints_make_a_ramp(tmp_path, capsys):
    for samples in (0, 200, 3_000):
        (tmp_path / f"{samples}.json").write_text(json.dumps({"samples": samples}))
    starts = [tmp_path / f"{samples}.json" for samples in (0, 200, 3_000)]
    loop = Loop("mine", drifting, 4)
    search = Search(kappas=(2, 4, 8, 16), rounds=Rounds.of(4))
    found = find_largest(loop, search, starts=starts, store=Store(tmp_path / "kept"), execute=HERE)
    assert [branch.same for branch in found.branches] == [16, 32, 64]
    assert found.branches[2].different is None
    assert [size for _, size in found.ramp] == [16, 32, 64]
    assert found.to_dict()["branches"][0]["arms"][0] == {
        "batch_size": 8, "verdict": "same", "seeds": 4, "stopped_at": None,
    }  # fmt: skip


def test_the_search_is_a_command_and_is_compared_with_the_noise_scale(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / "mine.py"
    path.write_text(
        textwrap.dedent("""
        import torch
        from rootscale import Adam, Plan
        from rootscale.lab import Task

        x = torch.randn(100, 5, generator=torch.Generator().manual_seed(0))
        y = x[:, :3].argmax(1)
        task = Task(
            "mine", Plan(Adam(eta=5e-3, beta1=0.98), batch_size=4, steps=200), lambda: torch.nn.Linear(5, 3),
            lambda outputs, y: torch.nn.functional.cross_entropy(outputs, y, reduction="none"), (x, y),
        )
        """)
    )
    words = ["largest", f"{path}:task", "--switch-at", "200", "25%", "--points", "8", "--workers", "1"]
    assert main([*words, "--seeds", "6", "--rule", "none", "--out", str(tmp_path / "kept")]) in (0, 3)
    captured = capsys.readouterr()
    found = json.loads((tmp_path / "kept" / "largest.json").read_text())
    assert [branch["samples"] for branch in found["branches"]] == [200, 200]
    assert all(branch["noise_scale_allows"] > 0 for branch in found["branches"])
    assert all(branch["arms"][-1]["verdict"] == "different" for branch in found["branches"])
    assert "the noise scale allows" in captured.out
    assert "batches above 75 samples are left out: they have less than a step a point" in captured.err
    norms = {"Euclidean", "Adam's metric", "sign", "spectral"}
    for branch in found["branches"]:
        assert set(branch["noise_scales"]) == norms
        assert all(low <= value for value, low, _ in branch["noise_scales"].values())
    assert "noise scale (spectral)" in captured.out
    assert main([*words, "--to", "512", "--out", str(tmp_path / "kept")]) == 2
    assert "no batch size is left: a step must not be longer" in capsys.readouterr().err


def test_a_search_needs_larger_batches():
    with pytest.raises(ValueError, match="must be larger than that of the base"):
        Search(kappas=(0.5, 2))


# -- Ctrl-C


OWN = """
import argparse, json, math, os, signal, sys
from pathlib import Path

MADE = Path(__file__).with_name("made.txt")


def made(seed, whom):
    with MADE.open("a") as file:
        file.write(f"{seed} ")
    if MADE.read_text() == "0 1 ":  # the second run, the first time
        os.kill(whom, signal.SIGINT)


def train(batch_size, seed, log, convert):
    made(seed, os.getpid())
    for samples in range(8, 801, 8):
        log(samples=samples, loss=math.exp(-samples / 200) + 1e-3 * math.sin(seed))


if __name__ == "__main__":
    size, seed, path = sys.argv[1:]
    made(seed, int(os.environ["CHECK"]))
    rows = [{"samples": n, "loss": math.exp(-n / 200) + 1e-3 * math.sin(int(seed))} for n in range(8, 801, 8)]
    if MADE.read_text() == "0 1 ":
        import time

        time.sleep(5)  # until it is ended
    Path(path).write_text("".join(json.dumps(row) + chr(10) for row in rows))
"""


@pytest.mark.parametrize("kind", ["function", "command"])
def test_ctrl_c_says_where_the_runs_are_and_the_command_that_goes_on_with_them(tmp_path, capsys, monkeypatch, kind):
    script, out = tmp_path / "own.py", tmp_path / "kept"
    script.write_text(OWN)
    command = ["--command", f"{sys.executable} {script} {{batch_size}} {{seed}} {{log}}"]
    words = ["check", *([f"{script}:train"] if kind == "function" else command), "--batch-size", "4", "--to", "8"]
    words += ["--seeds", "3", "--workers", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["rootscale", *words])
    monkeypatch.setenv("CHECK", str(os.getpid()))
    assert main(words) == 130
    said = capsys.readouterr().err
    assert f"interrupted: the runs so far are in {out / 'runs'}; this resumes them:\n  rootscale check " in said
    assert main(words) == 0
    made = (tmp_path / "made.txt").read_text().split()
    assert made == ["0", "1", "1", "2", "0", "1", "2"]  # the first is not made again


# -- what goes wrong in a loop


@pytest.mark.parametrize(
    "error",
    [RuntimeError("out of memory"), SystemExit(0), FileNotFoundError(2, "No such file")],
    ids=["error", "exit", "file"],
)
def test_a_loop_that_fails_says_which_run_and_where_and_is_no_verdict(tmp_path, capsys, error):
    path = tmp_path / "fails.py"
    path.write_text(
        "import math\n"
        "def train(batch_size, seed, log, convert):\n"
        "    for samples in range(batch_size, 401, batch_size):\n"
        "        log(samples=samples, loss=math.exp(-samples / 100) + 1e-3 * seed)\n"
        "        if (batch_size, seed) == (16, 1):\n"
        f"            raise {error!r}\n"
    )
    words = ["check", f"{path}:train", "--batch-size", "4", "--to", "16", "--seeds", "3", "--workers", "1"]
    assert main([*words, "--out", str(tmp_path / "kept")]) == 2
    said = capsys.readouterr().err
    assert f"B = 16, seed 1 failed: {type(error).__name__}: {error}\n" in said
    assert f'{path}", line 6, in train' in said
    assert "Traceback" not in said
    assert "rootscale/lab" not in said
    assert len(list(tmp_path.rglob("log.jsonl"))) == 4


def test_the_terminal_says_that_runs_diverged_and_does_not_speak_of_the_tolerance(tmp_path, capsys):
    path = tmp_path / "nan.py"
    path.write_text(
        "import math\n"
        "def train(batch_size=4, seed=0, log=None, convert=None):\n"
        "    for samples in range(batch_size, 801, batch_size):\n"
        "        lost = batch_size == 4 and seed < 2 and samples > 400\n"
        "        log(samples=samples, loss=math.nan if lost else math.exp(-samples / 200) + 1e-3 * math.sin(seed))\n"
    )
    words = ["check", f"{path}:train", "--to", "16", "--seeds", "4", "--workers", "1", "--out", str(tmp_path / "kept")]
    assert main(words) == 3
    said = capsys.readouterr().out
    assert "B = 4, seed 1: diverged: loss is not finite from" in said
    assert "B = 16 is undecided: 0 of its 4 runs diverged, and 2 of the 4 of B = 4. Find out why" in said
    assert "lies about on the tolerance" not in said


def test_only_numbers_are_logged():
    with pytest.raises(ValueError, match=r"B = 4, seed 0 failed: log takes numbers; 'loss' is a Tensor of shape \[2\]"):
        run(lambda batch_size, seed, log, convert: log(samples=4, loss=torch.ones(2)))


def test_seeds_that_do_not_reach_the_runs_are_noted():
    found = run(lambda batch_size, seed, log, convert: train(batch_size, 0, log, convert))
    assert [note for note in found.made["notes"] if note.startswith("B = 4: all 4 runs are equal to the last digit")]
    assert not [note for note in run(train).made["notes"] if "equal" in note]


def test_another_checkpoint_of_the_same_name_makes_new_runs(tmp_path):
    where, notes = tmp_path / "state.json", []
    for samples in (800, 800, 1600):
        where.write_text(json.dumps({"samples": samples}))
        found = run(train, switch_at=where, store=tmp_path / "kept", observe=Observer(note=notes.append))
        assert found.base.trajectory.meta["samples"][0] == pytest.approx(samples, abs=50)
    assert notes[0].startswith("B = 4: the stored runs were made with another checkpoint")
    assert len(notes) == 2  # and one on B = 16, the third time


def test_no_run_of_a_search_is_made_before_all_checkpoints_are_there(tmp_path):
    with pytest.raises(ValueError, match=r"there is no checkpoint 25%, .* a loop of your own switches where you saved"):
        find_largest(Loop("mine", train, 4), starts=(0, "25%"), store=Store(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_quick_search_takes_four_seeds_and_calls_undecided_what_is(tmp_path, capsys):
    path = tmp_path / "open.py"
    path.write_text(
        "import math\n"
        "def train(batch_size=4, seed=0, log=None, convert=None):\n"
        "    for samples in range(batch_size, 801, batch_size):\n"
        "        far = 0.03 * (batch_size > 4) * (1 + math.sin(40 * seed))\n"
        "        log(samples=samples, loss=math.exp(-samples / 200) + far)\n"
    )
    words = ["largest", f"{path}:train", "--to", "16", "--quick", "--workers", "1"]
    assert main([*words, "--out", str(tmp_path / "kept")]) == 3
    said = capsys.readouterr()
    assert "B = 16: undecided with 4 seeds" in said.err
    assert "No larger batch is known to be the same; more seeds for B = 16 may tell." in said.out


def test_the_start_of_a_search_from_scratch_is_0(tmp_path):
    found = find_largest(Loop("mine", train, 4), Search(kappas=(4,)), store=Store(tmp_path), execute=HERE)
    assert found.ramp == ((0, 16),)


# -- what goes wrong with a command


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("LR=1 python a.py {batch_size} {seed} {log}", "has 'LR=1', which only a shell understands"),
        ("cd a && python a.py {batch_size} {seed} {log}", r"has '&&', which .*: write it as sh -c '...'"),
        ("python a.py {batch_size} {seed} {log} > out.txt", "has '>', which only a shell understands"),
        ("python 'a.py {batch_size} {seed} {log}", "cannot be split into words"),
        ("", "must have {batch_size}"),
        ("python a.py {batch_size} {seed} {log} '{\"a\": 1}'", r"braces that are to stay are written {{ and }}"),
    ],
)
def test_a_command_that_no_program_can_be_is_refused_before_it_is_run(text, said):
    with pytest.raises(ValueError, match=said):
        Command(text, None, read_logs)


def test_a_command_may_change_its_folder(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loop = Loop("moves", Command(f"sh -c 'cd / && {script}'", PLAN, read_logs), 4)
    assert check(loop, [4], seeds=2, execute=HERE, store="kept").base.trajectory.replicas == 2


def test_settings_that_a_command_names_are_a_part_of_it(tmp_path):
    settings = tmp_path / "base.yaml"
    command = Command(f"python -m mine --config={settings} {{batch_size}} {{seed}} {{log}}", None, read_logs)
    found = []
    for text in ("depth: 2", "depth: 2", "depth: 3"):
        settings.write_text(text)
        found.append(Loop("mine", command, 4).fingerprint())
    assert found[0] == found[1] != found[2]


def test_a_log_that_another_run_left_is_not_taken_for_that_of_a_command(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"samples": 4, "loss": 1}\n{"samples": 8, "loss": 0.5}\n')
    command = Command(f"{sys.executable} -S -c pass {{batch_size}} {{seed}}", None, read_logs, f"{tmp_path}/a.jsonl")
    with pytest.raises(ValueError, match=r"B = 4, seed 0: the command did not write to .*a.jsonl, whose log is older"):
        check(Loop("silent", command, 4), [4], seeds=2, execute=HERE)


LIVE = """
import json, math, sys, time
size, seed, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
with open(path, "w") as file:
    for samples in range(32, 1601, 32):
        loss = 1 + 0.2 * (size > 4) + math.exp(-samples / 400) + 1e-3 * math.sin(7 * seed + size)
        print(json.dumps({"samples": samples, "loss": loss}), file=file, flush=True)
        if size > 4 and seed == 2 and samples == 800:
            time.sleep(60)
"""


def test_a_command_that_is_clearly_different_is_stopped_on_the_way(tmp_path, monkeypatch):
    monkeypatch.setattr("rootscale.lab.early.EVERY", 0.0)
    monkeypatch.setattr("rootscale.lab.early.SHARE", 1e9)
    (tmp_path / "live.py").write_text(LIVE)
    text = f"{sys.executable} -S {tmp_path / 'live.py'} {{batch_size}} {{seed}} {{log}}"
    loop = Loop("live", Command(text, None, read_logs), 4)
    search = Search(kappas=(4,), rounds=Rounds.of(4))
    (branch,) = find_largest(loop, search, store=Store(tmp_path / "kept"), execute=HERE).branches
    (arm,) = branch.check.others
    assert arm.verdict == "different"
    assert arm.trajectory.replicas == 3  # the third was stopped in its sleep, and the fourth was not begun
    assert arm.trajectory.meta["stopped_at"] < 800
    (part,) = (tmp_path / "kept").rglob("log.part.jsonl")
    assert len(part.read_text().splitlines()) == 24  # of 25 that were written, without the last


def test_a_run_that_cannot_be_checked_says_what_it_takes(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text("def train(batch_size, seed):\n    pass\n\ndef good(batch_size, seed, log, convert):\n    pass\n")
    words = ["--batch-size", "4", "--to", "16", "--out", str(tmp_path / "kept")]
    assert main(["check", f"{path}:train", *words]) == 2
    said = "a training function train(batch_size, seed, log); it takes (batch_size, seed)"
    assert said in capsys.readouterr().err
    assert main(["check", f"{path}:good", *words, "--stop", "50%"]) == 2
    assert "--stop takes a number of samples where a loop of your own is checked, got '50%'" in capsys.readouterr().err


def test_the_command_that_resumes_has_its_quotes(monkeypatch, capsys):
    words = ["rootscale", "check", "--command", "python 'my dir/a.py' {batch_size}", "--switch-at", "25%"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(KeyboardInterrupt), stoppable(Path("runs")):
        raise KeyboardInterrupt
    assert shlex.split(capsys.readouterr().err.splitlines()[1]) == words
