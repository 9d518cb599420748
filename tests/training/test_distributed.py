"""DDP and FSDP2 on 2 and 4 processes: the run of one process with the same batch, and checkpoints between them."""

import os
import re
import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from ranks import END, OTHER, SAVED, UNEQUAL, Job, metered, noise, svag

ROOT = Path(__file__).parents[2]
WORLDS = (2, 4)
KINDS = ("ddp", "fsdp")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The ranks' findings: two processes first, then four that also load what the two have saved.

    Where pytest itself has several workers, one of them starts the ranks and the others wait for it.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "ranks"
    status = folder / "status"
    try:
        folder.mkdir()
    except FileExistsError:
        until = time.monotonic() + 300
        while not status.exists() and time.monotonic() < until:
            time.sleep(0.2)
    else:
        Job("alone").train(SAVED).save(folder / "alone.pt")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, str(ROOT / "tests" / "ranks.py"), str(folder), *map(str, WORLDS)]
        done = subprocess.run(command, env=environment, timeout=300)
        status.write_text(str(done.returncode))
    assert status.read_text() == "0"
    return folder


@pytest.fixture(scope="module")
def ranks(folder):
    return {world: [torch.load(folder / f"{world}-{rank}.pt") for rank in range(world)] for world in WORLDS}


@pytest.fixture(scope="module")
def alone(folder):
    return {
        "trajectory": Job("alone").train(END).found(),
        "changed": Job("alone", OTHER).load(folder / "alone.pt").train(END).found(),
        "svag": svag("alone"),
    }


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        tensors = zip(found[key], value, strict=True) if isinstance(value, list) else [(found[key], value)]
        for mine, other in tensors:
            assert torch.allclose(mine, other, rtol=1e-9, atol=1e-13), key


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", WORLDS)
class TestRanks:
    def test_the_trajectory_is_that_of_one_process(self, ranks, alone, world, kind):
        for rank in ranks[world]:
            assert_same(rank[kind]["trajectory"], alone["trajectory"])

    def test_a_checkpoint_of_one_process_goes_on_at_the_same_batch(self, ranks, alone, world, kind):
        for rank in ranks[world]:
            assert_same(rank[kind]["kept"], alone["trajectory"])

    def test_a_checkpoint_of_one_process_goes_on_at_another_batch(self, ranks, alone, world, kind):
        assert not torch.allclose(alone["changed"]["lr"], alone["trajectory"]["lr"])
        for rank in ranks[world]:
            assert_same(rank[kind]["changed"], alone["changed"])

    def test_a_checkpoint_of_the_ranks_goes_on_in_one_process(self, folder, ranks, alone, world, kind):
        file = folder / f"{kind}{world}.pt"
        assert_same(Job("alone").load(file).train(END).found(), alone["trajectory"])
        assert_same(Job("alone", OTHER).load(file).train(END).found(), alone["changed"])

    def test_svag_is_that_of_one_process(self, ranks, alone, world, kind):
        for rank in ranks[world]:
            assert_same(rank[kind]["svag"], alone["svag"])

    def test_the_noise_is_that_of_one_process_whose_parts_are_the_ranks(self, ranks, world, kind):
        expected = noise("alone", world)
        assert expected.isfinite().all()
        for rank in ranks[world]:
            assert torch.allclose(rank[kind]["noise"], expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", UNEQUAL)
def test_parts_of_any_weights_and_sizes_are_metered_across_ranks(ranks, name):
    """Two ranks find what one process finds whose parts are the batches of both."""
    expected, size = metered(name)
    assert size == 2 * sum(UNEQUAL[name][1])
    for rank in ranks[2]:
        for bucket_view in (False, True):
            found, together = rank["metered"][name, bucket_view]
            assert together == pytest.approx(size)
            assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize(("name", "expected"), [("sharded kept", "trajectory"), ("sharded changed", "changed")])
def test_shards_of_two_ranks_go_on_as_shards_of_four(ranks, alone, name, expected):
    for rank in ranks[4]:
        assert_same(rank["fsdp"][name], alone[expected])


@pytest.mark.parametrize("world", WORLDS)
def test_shards_are_rescaled_in_place_and_without_communication(ranks, world):
    shards = [rank["shards"] for rank in ranks[world]]
    assert all(one["divided by 4"] and one["in place"] and one["collectives"] == 0 for one in shards)
    assert any(one["empty"] for one in shards) == (world == 4)


@pytest.mark.parametrize("world", WORLDS)
def test_ranks_grow_the_batch_together(ranks, world):
    """By the same interval, at the latest of their positions."""
    (stages, history), *others = [rank["grown"] for rank in ranks[world]]
    assert all(other == (stages, history) for other in others)
    ((low, size),) = history
    assert (size, low >= 32) == (16, True)
    assert stages[0] == (0, 8)
    assert stages[1][1] == 16


def test_shards_that_cannot_be_metered_are_refused(ranks):
    for rank in ranks[2]:
        without, more = rank["refused"]
        assert without.startswith("TypeError: these parameters are sharded (FSDP2)")
        assert "process_group= and model=" in without
        assert more.startswith("ValueError: preconditioned and coordinates")


ROWS = re.compile(r"(\d+) samples, batch size ([\d]+).*, loss ([\d.]+)")


@pytest.mark.slow  # TestRanks shows the same without starting Python anew
def test_the_example_runs_by_torchrun_and_goes_on_in_one_process_at_another_batch(tmp_path, monkeypatch, capsys):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *torchrun, "examples/ddp.py", "--epochs=1", f"--save={tmp_path}/run.pt"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "noise scale" in done.stdout
    ((samples, size, loss),) = ROWS.findall(done.stdout)
    assert (samples, size) == ("3008", "32")

    alone = dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    for name, value in alone.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["ddp.py", "--epochs=1", f"--resume={tmp_path}/run.pt", "--batch=128"])
    runpy.run_path(str(ROOT / "examples/ddp.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "noise scale" in printed
    ((samples, size, later),) = ROWS.findall(printed)
    assert (samples, size) == (str(3008 + 24 * 128), "128")
    assert float(later) < 0.9 * float(loss)
