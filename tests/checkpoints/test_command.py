"""The command `rootscale checkpoint`."""

import json
import os
import platform
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from saved_runs import net, train

from rootscale.cli import main


@pytest.fixture
def checkpoint(tmp_path):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.98, 0.999))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    for _ in range(8):
        train(model, optimizer, 1)
        scheduler.step()
    objects = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    torch.save({**{name: one.state_dict() for name, one in objects.items()}, "step": 8}, tmp_path / "last.pt")
    return tmp_path / "last.pt"


def test_the_command_shows_every_change_and_what_is_left_and_writes(checkpoint, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    out = checkpoint.with_name("last_64.pt")
    assert main(["checkpoint", str(checkpoint), "--from", "16", "--to", "64", "-o", str(out)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in (
        "batch size 16 -> 64, kappa = 4, rule sqrt",
        "keeps sigma0 = sigma * eta",
        "scheduler.T_max 100 25",
        "step = 8 is kept: if it counts steps, --counter step makes it 2",
        ".1 becomes 0.3439",
        f"written to {out}",
    ):
        assert words in text
    held = torch.load(out, weights_only=True)
    assert (held["scheduler"]["T_max"], held["step"]) == (25, 8)
    assert not any(str(key).startswith("rootscale") for key in held["optimizer"]["param_groups"][0])


def test_every_counter_of_steps_is_named_and_settings_are_not(checkpoint, capsys):
    held = torch.load(checkpoint, weights_only=True)
    held |= {"iter_num": 32, "step_count": 8, "train_state": {"step": 8, "best": True}, "config": {"max_iters": 100}}
    torch.save(held, checkpoint)
    assert main(["checkpoint", str(checkpoint), "--from", "16", "--to", "64"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for name, value in (("iter_num", 32), ("step_count", 8), ("train_state.step", 8)):
        assert f"{name} = {value} is kept: if it counts steps, --counter {name} makes it {value // 4}" in text
    assert "max_iters" not in text


def test_counters_are_converted_by_their_names(checkpoint, capsys):
    held = torch.load(checkpoint, weights_only=True)
    torch.save(held | {"iter_num": 32}, checkpoint)
    out = checkpoint.with_name("out.pt")
    words = ["checkpoint", str(checkpoint), "--from", "16", "--to", "64", "--counter", "iter_num", "--counter", "step"]
    assert main([*words, "-o", str(out)]) == 0
    found = torch.load(out, weights_only=True)
    assert (found["iter_num"], found["step"]) == (8, 2)
    assert "is kept" not in capsys.readouterr().out


def test_nothing_is_written_without_an_output(checkpoint, capsys):
    assert main(["checkpoint", str(checkpoint), "--from", "16", "--to", "64"]) == 0
    assert "nothing was written; -o OUT writes it" in capsys.readouterr().out
    assert os.listdir(checkpoint.parent) == ["last.pt"]


def test_changes_are_printed_as_json(checkpoint, capsys):
    assert main(["checkpoint", str(checkpoint), "--from", "16", "--to", "64", "--json"]) == 0
    held = json.loads(capsys.readouterr().out)
    assert (held["format"], held["kappa"], held["written"]) == ("torch", 4.0, None)
    assert {row["name"] for row in held["changes"]} >= {"lr", "beta1", "factor of exp_avg_sq"}
    assert any("gradient clip" in line for line in held["remaining"])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--from", "16", "--to", "64", "-o", "IN"], "the output is the checkpoint itself"),
        (["--from", "16", "--to", "64", "--optimizer", "adam"], "decoupled_weight_decay=True"),
        (["--from", "16", "--to", "64", "--optimizer-key", "opt"], "there is no 'opt'; there are model, optimizer"),
        (["--from", "16", "--to", "64", "--format", "tape"], "format must be one of dcp"),
        (["--from", "0", "--to", "64"], "batch_size"),
        (["--from", "16", "--to", "64", "--counter", "iter"], "--counter iter: there is no 'iter'; there are model"),
    ],
)
def test_mistakes_end_in_one_line_and_exit_code_2(checkpoint, capsys, options, text):
    words = [str(checkpoint) if word == "IN" else word for word in options]
    assert main(["checkpoint", str(checkpoint), *words]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1


def test_what_a_killed_conversion_left_is_removed(checkpoint):
    node = re.sub(r"\W", "", platform.node())[:32]
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        dead.wait()
    left = checkpoint.with_name(f".out-{node}-{dead.pid}-abc.tmp")
    left.mkdir()
    (left / "part").touch()
    left.with_name(f".out-{node}-{dead.pid}-def.tmp").touch()
    left.with_name(f".out-{node}-{os.getpid()}-ghi.tmp").touch()  # of a process that runs
    out = checkpoint.with_name("out.pt")
    assert main(["checkpoint", str(checkpoint), "--from", "16", "--to", "64", "-o", str(out)]) == 0
    assert sorted(os.listdir(checkpoint.parent)) == [f".out-{node}-{os.getpid()}-ghi.tmp", "last.pt", "out.pt"]


@pytest.mark.slow
def test_a_killed_conversion_leaves_no_checkpoint_and_the_next_one_cleans_up(checkpoint):
    out = checkpoint.with_name("out.pt")
    program = (
        "import sys, time, rootscale.checkpoints as c\n"
        "def slow(what, share):\n"
        "    print(share, flush=True)\n"
        "    time.sleep(60)\n"
        "c.convert_checkpoint(sys.argv[1], 16, 64, sys.argv[2], progress=slow)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program, checkpoint, out], stdout=subprocess.PIPE)
    child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    time.sleep(0.05)
    left = [one for one in os.listdir(checkpoint.parent) if one != "last.pt"]
    assert len(left) == 1
    assert left[0].endswith(".tmp")
    assert main(["checkpoint", str(checkpoint), "--from", "16", "--to", "64", "-o", str(out)]) == 0
    assert sorted(os.listdir(checkpoint.parent)) == ["last.pt", "out.pt"]
