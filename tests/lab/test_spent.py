"""What a run takes: its seconds, those that are not training, and how they are kept."""

import time

import pytest
import torch

from rootscale.lab import Settings, Variant
from rootscale.lab.group import joined, rows_of
from rootscale.lab.run import Run
from rootscale.lab.spent import SETTLING_STEPS, Spent
from rootscale.paper.tasks import digits

CPU = torch.device("cpu")


def test_the_first_steps_of_every_stage_are_counted_apart():
    spent = Spent(CPU)
    for _ in range(2):
        for step in range(SETTLING_STEPS + 2):
            with spent.stepped(first=step == 0):
                time.sleep(0.002)
    assert spent.settling == pytest.approx(2 * SETTLING_STEPS * 0.002, rel=0.5)
    assert spent.seconds > spent.settling + 4 * 0.002
    with spent.measured():
        time.sleep(0.005)
    assert 0.005 <= spent.measuring < spent.seconds
    assert spent.memory == 0


def test_a_resumed_run_goes_on_counting_and_settles_again():
    spent = Spent(CPU)
    spent.load_state_dict({"seconds": 10.0, "measuring": 2.0})
    assert spent.state_dict() == {"seconds": 10.0, "measuring": 2.0, "settling": 0.0}
    with spent.stepped():
        pass
    assert spent.settling > 0


def test_a_trajectory_knows_which_seeds_were_trained_in_one_program():
    pytest.importorskip("sklearn")
    task, settings = digits(), Settings(grid=(0, 64, 128))
    ramp = Variant(1, ramp=((64, 4),))
    both, one = (Run(task, ramp, seeds, settings).finish() for seeds in ([0, 1], [2]))
    assert [run["seeds"] for run in both.meta["runs"]] == [[0, 1]]
    together = joined([rows_of(both, [0]), rows_of(both, [1]), one])
    assert [run["seeds"] for run in together.meta["runs"]] == [[0, 1], [2]], "once each"
    assert together.meta["runs"][0]["seconds"] >= together.meta["runs"][0]["settling"] > 0
