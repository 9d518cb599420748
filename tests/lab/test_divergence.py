"""When a replica counts as diverged, and when it does not."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from problems import make, mlp
from torch import nn

from rootscale import Adam, Plan, RMSprop, Schedule
from rootscale.compare.divergence import FAR, Divergence
from rootscale.lab import Measure, Settings, Setup, Trial, Variant

SETTINGS = Settings(grid=(0, 32, 64, 96), measure=Measure(noise=False))
SWITCH = replace(SETTINGS, grid=(32, 64, 96), switch_at=32)
BOUND = replace(SETTINGS, setup=Setup(max_loss=50.0))


def deep():
    """Four layers with BatchNorm: the loss in eval mode follows the running statistics of each of them."""
    widths = [6, 8, 8, 8, 8]
    layers = [(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU()) for a, b in pairwise(widths)]
    return nn.Sequential(*(part for layer in layers for part in layer), nn.Linear(8, 3)).double()


def test_running_statistics_that_lag_are_no_divergence():
    plan = Plan(RMSprop(0.1, 0.99), 16, steps=60, batchnorm_momentum=0.01, schedule=Schedule("cosine"))
    settings = replace(SETTINGS, grid=tuple(range(0, 961, 64)))
    found = Trial(make(plan, deep), Variant(), [5], settings).finish()
    eval_mode, of_steps = found.values["train loss"][0], found.values["train loss (batch)"][0]
    assert (eval_mode[2:4] > FAR * eval_mode[0]).all()  # by the loss in eval mode, it has diverged
    assert of_steps.max() < 2.5 * of_steps[0]
    assert found.meta["diverged_at"] == [None]
    assert np.isfinite(eval_mode).all()
    assert of_steps[-1] < 0.8 * of_steps[0]


def test_the_test_loss_with_reestimated_statistics_does_not_lag():
    plan = Plan(RMSprop(0.1, 0.99), 16, steps=60, batchnorm_momentum=0.01, schedule=Schedule("cosine"))
    settings = replace(SETTINGS, grid=tuple(range(0, 961, 64)), measure=Measure(noise=False, reestimate=True))
    found = Trial(make(plan, deep), Variant(), [5], settings).finish()
    eval_mode, anew = found.values["test loss"][0], found.values["test loss (BatchNorm re-estimated)"][0]
    assert (eval_mode[2:4] > FAR * eval_mode[0]).all()
    assert anew.max() < 5 * anew[0]
    plain = Trial(make(plan, deep), Variant(), [5], replace(settings, measure=SETTINGS.measure)).finish()
    assert all(np.array_equal(found.values[name], plain.values[name]) for name in plain.names)  # the same run
    assert set(found.names) - set(plain.names) == {"test loss (BatchNorm re-estimated)"}
    without = Trial(make(plan), Variant(), [5], settings).finish()
    assert "test loss (BatchNorm re-estimated)" not in without.names


def test_a_loss_that_is_not_finite_is_divergence_at_once():
    task = make(Plan(Adam(1e100), batch_size=4, steps=150))
    overflowing = replace(task, loss=lambda outputs, y: outputs.pow(4).sum(-1))
    run = Trial(overflowing, Variant(), [3, 5], SETTINGS)
    found = run.finish()
    assert run.step == 8
    assert found.meta["diverged_at"] == [32, 32]
    assert np.isnan(found.values["train loss"][:, 1:]).all()


def test_a_large_loss_that_stays_is_divergence_from_where_it_began():
    task = make(Plan(Adam(1e4), batch_size=4, steps=150))
    run = Trial(task, Variant(), [3, 5], BOUND)
    found = run.finish()
    assert run.step == 16  # the point at 64 shows that it stays
    assert found.meta["diverged_at"] == [32, 32]
    assert found.diverged.tolist() == [0, 2, 2, 2]


@pytest.mark.parametrize(
    ("losses", "place"),
    [
        ([2.0, 300.0, 2.0, 300.0, 2.0], None),  # comes back
        ([2.0, 3.0, 300.0, 400.0, 2.0], 2),  # stays, which the next point shows
        ([2.0, 3.0, 3.0, 2.0, 300.0], 4),  # the run ends there
        ([2.0, 199.0, 199.0, 199.0, 199.0], None),
        ([2.0, math.nan, 2.0, 2.0, 2.0], 1),
        ([2.0, 2.0, math.inf, 2.0, 2.0], 2),
        ([-2.0, 195.0, 195.0, -2.0, -2.0], None),  # a loss below zero has a bound above it
        ([-2.0, 197.0, 197.0, -2.0, -2.0], 1),
    ],
)
def test_divergence_is_a_loss_that_is_not_finite_or_stays_far_above_the_first(losses, place):
    watched = Divergence(1)
    for point, loss in enumerate(losses):
        resumed = Divergence(1)  # at every point: what has been seen is in the state
        resumed.load_state_dict(watched.state_dict())
        watched = resumed
        watched.watch(point, [loss], [1.0], point == len(losses) - 1)
    assert watched.places == [place]


def test_parameters_that_are_not_finite_have_diverged():
    watched = Divergence(2)
    watched.watch(0, [1.0, 1.0], [1.0, math.inf], False)
    assert watched.places == [None, 0]


def test_a_replica_that_diverges_is_recorded_and_the_others_continue():
    def fragile():
        model = mlp()
        if torch.initial_seed() == 5:
            with torch.no_grad():
                model[2].weight.mul_(1e30)
        return model

    found = Trial(make(model=fragile), Variant(), [3, 5], BOUND).finish()
    assert found.meta["diverged_at"] == [None, 0]
    assert np.isnan(found.values["train loss"][1]).all()
    alone = Trial(make(), Variant(), [3], SETTINGS).finish()
    np.testing.assert_allclose(found.values["train loss"][0], alone.values["train loss"][0], rtol=1e-8)


def test_a_loss_below_zero_is_no_divergence():
    task = make()
    below = replace(task, loss=lambda outputs, y: task.loss(outputs, y) - 5)
    found = Trial(below, Variant(), [0, 1], SETTINGS).finish()
    assert found.meta["diverged_at"] == [None, None]
    np.testing.assert_allclose(
        found.values["train loss"], Trial(task, Variant(), [0, 1], SETTINGS).finish().values["train loss"] - 5
    )


def test_the_bound_is_that_of_the_start_and_not_of_the_switch():
    task = make()
    first = Trial(task, Variant(), [3], replace(SETTINGS, grid=(0, 32)))
    first.finish()
    run = Trial(task, Variant(4), [3], SWITCH, warm=first.state_dict())
    assert run.state_dict()["bounds"] == [pytest.approx(100 * first.values["train loss"][0][0])]
    assert Trial(task, Variant(4), [3], SWITCH).state_dict()["bounds"] == run.state_dict()["bounds"]


def test_what_diverged_before_the_switch_has_diverged_after_it():
    task = make()
    first = Trial(task, Variant(), [3, 5], replace(SETTINGS, grid=(0, 32)))
    first.finish()
    state = first.state_dict()
    found = Trial(task, Variant(4), [3, 5], SWITCH, warm={**state, "diverged": [20, None]}).finish()
    assert found.meta["diverged_at"] == [32, None]
    assert np.isnan(found.values["train loss"][0]).all()
    assert np.isfinite(found.values["train loss"][1]).all()
    lost = Trial(task, Variant(4), [3, 5], SWITCH, warm={**state, "diverged": [20, 12]}).finish()
    assert lost.names == found.names
    assert np.isnan(lost.values["train loss"]).all()


def test_the_state_of_an_older_version_is_resumed():
    task = make()
    run = Trial(task, Variant(), [3, 5], SETTINGS)
    while run.measured < 2:
        run.advance()
    state = run.state_dict()
    del state["above"], state["learner"]["step_loss"], state["values"]["train loss (batch)"]
    resumed = Trial(task, Variant(), [3, 5], SETTINGS)
    resumed.load_state_dict(state)
    found, whole = resumed.finish(), Trial(task, Variant(), [3, 5], SETTINGS).finish()
    assert set(whole.names) - set(found.names) == {"train loss (batch)"}
    assert np.array_equal(found.values["train loss"], whole.values["train loss"])
