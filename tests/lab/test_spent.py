"""What a run takes: its seconds, those that are not training, and how they are kept."""

import itertools
import time

import pytest
import torch

from rootscale.lab import Settings, Trial, Variant
from rootscale.lab.group import joined, rows_of
from rootscale.lab.spent import SETTLING_STEPS, Spent
from rootscale.lab.tasks import digits

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by one with every look."""
    now = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(now)))


def test_the_first_steps_of_every_stage_are_counted_apart(clock):
    spent = Spent(CPU)
    for _ in range(2):
        for step in range(SETTLING_STEPS + 2):
            with spent.stepped(first=step == 0):
                pass
    # A step that settles looks four times: before, after waiting, after the step, and at the end.
    assert spent.settling == 2 * SETTLING_STEPS
    assert spent.seconds == 2 * (3 * SETTLING_STEPS + 2)
    assert spent.measuring == 0
    before = spent.seconds
    with spent.measured():
        pass
    assert (spent.measuring, spent.seconds - before) == (1, 2), "waiting for steps is not measuring"
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
    both, one = (Trial(task, ramp, seeds, settings).finish() for seeds in ([0, 1], [2]))
    assert [run["seeds"] for run in both.meta["runs"]] == [[0, 1]]
    together = joined([rows_of(both, [0]), rows_of(both, [1]), one])
    assert [run["seeds"] for run in together.meta["runs"]] == [[0, 1], [2]], "once each"
    assert together.meta["runs"][0]["seconds"] >= together.meta["runs"][0]["settling"] > 0
