import copy
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from problems import PLANS, Residual, jitter, make, mlp, mlp_batchnorm
from torch import nn

from rootscale import Adam, Plan
from rootscale.lab import Run, Settings, Variant, grid
from rootscale.lab.stream import Stream
from rootscale.training import rescale_

SETTINGS = Settings(grid=(0, 160, 320, 480))
VARIANTS = {
    "base": Variant(),
    "four times the batch": Variant(4),
    "half the batch": Variant(Fraction(1, 2)),
    "linear": Variant(4, "linear"),
    "beta2 kept": Variant(4, keep=("beta2",)),
    "ramp": Variant(2, ramp=((240, 4), (330, 1))),
    "state zeroed": Variant(4, zero_state=True),
    "svag": Variant(ell=2),
    "svag, real ell, other batch": Variant(2, ell=1.5),
}


def close(a, b, row=slice(None)):
    """Equal to rounding, which training carries on."""
    for name in a.names:
        np.testing.assert_allclose(a.values[name][row], b.values[name], rtol=1e-8, atol=1e-10, err_msg=name)


@pytest.mark.parametrize(
    ("model", "variant"),
    [(mlp, "base"), (mlp, "svag"), (Residual, "four times the batch"), (Residual, "svag")]
    + [(mlp_batchnorm, variant) for variant in VARIANTS],
)
def test_replicas_in_one_program_are_the_single_runs(model, variant):
    task = make("everything", model)
    together = Run(task, VARIANTS[variant], [3, 5], SETTINGS).finish()
    for r, seed in enumerate((3, 5)):
        close(together, Run(task, VARIANTS[variant], [seed], SETTINGS).finish(), [r])


def by_hand(task, stages, seed=7):
    """The train loss after a user's own loop: stages of (kappa, batch size, steps), each begun with `rescale_`."""
    torch.manual_seed(seed)
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.98, 0.998))
    stream, position = Stream(200, [seed]), 0
    for kappa, size, steps in stages:
        if kappa != 1:
            rescale_(optimizer, kappa)
        for _ in range(steps):
            x, y = task.train[stream.indices(position, position + size)[0]]
            position += size
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return nn.functional.cross_entropy(model(task.train.inputs), task.train.targets).item()


def test_a_run_is_what_a_users_own_loop_does():
    task = make()
    found = Run(task, Variant(), [7], SETTINGS).finish()
    assert found.values["train loss"][0, -1] == pytest.approx(by_hand(task, [(1, 4, 120)]), rel=1e-9)


def test_a_switch_in_mid_run_is_what_rescale_does():
    task = make()
    found = Run(task, Variant(4), [7], replace(SETTINGS, grid=(160, 320, 480), switch_at=160)).finish()
    assert found.values["train loss"][0, -1] == pytest.approx(by_hand(task, [(1, 4, 40), (4, 16, 20)]), rel=1e-9)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("stops", [(1,), (37, 60)])
def test_a_run_resumed_from_its_state_is_the_uninterrupted_one_bit_for_bit(variant, stops):
    task = make("everything", mlp_batchnorm, augment=jitter, draws=1)
    arguments = (task, VARIANTS[variant], [3, 5], replace(SETTINGS, grid=(80, 160, 320, 480), switch_at=80))
    whole = Run(*arguments).finish()
    run = Run(*arguments)
    for stop in stops:
        while run.step < stop:
            run.advance()
        state = copy.deepcopy(run.state_dict())
        run = Run(*arguments)
        run.load_state_dict(state)
    resumed = run.finish()
    for name in whole.names:
        assert np.array_equal(whole.values[name], resumed.values[name]), name


def test_dropout_is_the_same_after_a_resume():
    task = make(model=lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)).double())
    whole = Run(task, Variant(), [3], SETTINGS).finish()
    run = Run(task, Variant(), [3], SETTINGS)
    for _ in range(31):
        run.advance()
    torch.manual_seed(99)  # somebody else's random numbers
    state = copy.deepcopy(run.state_dict())
    run = Run(task, Variant(), [3], SETTINGS)
    run.load_state_dict(state)
    assert np.array_equal(run.finish().values["train loss"], whole.values["train loss"])


def test_a_run_leaves_the_random_numbers_of_its_user_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    Run(make(), Variant(), [3], SETTINGS).finish()
    assert torch.equal(torch.rand(3), expected)


def test_micro_batches_give_the_gradient_of_the_batch():
    whole = Run(make("everything"), Variant(4), [3, 5], SETTINGS).finish()
    close(Run(make("everything"), Variant(4), [3, 5], replace(SETTINGS, micro=5)).finish(), whole)


def test_runs_of_a_seed_see_the_same_samples_at_every_batch_size():
    task = make()
    seen = []
    for variant in (Variant(), Variant(4)):
        run = Run(task, variant, [3], SETTINGS)
        seen.append(run._stream.indices(0, 64))
    assert torch.equal(*seen)


def test_epochs_see_every_sample_once():
    stream = Stream(200, [1, 2], replacement=False)
    for epoch in range(3):
        index = torch.cat([stream.indices(200 * epoch + 40 * i, 200 * epoch + 40 * (i + 1)) for i in range(5)], 1)
        assert torch.equal(index.sort().values, torch.arange(200).expand(2, -1))
    assert not torch.equal(stream.indices(0, 200), stream.indices(200, 400))


def test_samples_drawn_with_replacement_are_uniform_and_independent_of_each_other():
    draws = Stream(10, [0, 1], lane=1).indices(5, 20_005)
    for row in draws:
        counts = torch.bincount(row, minlength=10)
        assert ((counts - 2000).abs() < 4 * 2000**0.5).all()
    agreement = (draws[0] == draws[1]).float().mean().item()
    assert abs(agreement - 0.1) < 4 * (0.09 / 20_000) ** 0.5
    assert torch.equal(draws[:, 100:200], Stream(10, [0, 1], lane=1).indices(105, 205))


def test_the_measured_noise_is_that_of_brute_force():
    task = make()
    run = Run(task, Variant(), [3, 5], SETTINGS)
    found = run._noise()
    for r in range(2):
        model = run.learner.replica(r)
        rows = []
        x, y = run._probes["train"]
        for k in range(16):
            part = slice(12 * k, 12 * k + 12)
            model.zero_grad()
            nn.functional.cross_entropy(model(x[part]), y[part]).backward()
            rows.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        gradients = torch.stack(rows)
        trace = 12 * gradients.var(0).sum()
        mean = gradients.mean(0)
        assert found["Tr Sigma"][r].item() == pytest.approx(trace.item(), rel=1e-9)
        assert found["gradient norm"][r].item() == pytest.approx(mean.norm().item(), rel=1e-9)
        scale = trace / (mean.square().sum() - trace / 192)
        assert found["noise scale"][r].item() == pytest.approx(scale.item(), rel=1e-9)


def test_measuring_changes_nothing():
    task = make("everything", mlp_batchnorm)
    often = Run(task, Variant(), [3, 5], Settings(grid=tuple(range(0, 484, 4)))).finish()
    rarely = Run(task, Variant(), [3, 5], SETTINGS).finish()
    assert np.array_equal(often.values["train loss"][:, [0, 40, 80, 120]], rarely.values["train loss"])


def test_a_replica_that_diverges_is_recorded_and_the_others_go_on():
    def fragile():
        model = mlp()
        if torch.initial_seed() == 5:
            with torch.no_grad():
                model[2].weight.mul_(1e30)
        return model

    task = make(model=fragile)
    found = Run(task, Variant(), [3, 5], replace(SETTINGS, max_loss=50.0)).finish()
    assert found.meta["diverged_at"] == [None, 0]
    assert np.isnan(found.values["train loss"][1]).all()
    close(Run(task, Variant(), [3], SETTINGS).finish(), Run(make(), Variant(), [3], SETTINGS).finish())
    assert np.isfinite(found.values["train loss"][0]).all()


def test_a_run_whose_replicas_all_diverge_ends_there():
    task = make(Plan(Adam(1e4), batch_size=4, steps=150))
    run = Run(task, Variant(), [3, 5], replace(SETTINGS, max_loss=50.0))
    found = run.finish()
    assert run.step == 40
    assert found.meta["diverged_at"] == [160, 160]
    assert found.diverged.tolist() == [0, 2, 2, 2]


def test_users_own_test_functions_see_each_replica():
    task = make("everything", functions={"bias": lambda model: model[2].bias.sum()})
    run = Run(task, Variant(), [3, 5], SETTINGS)
    found = run.finish()
    expected = [value.sum().item() for value in run.learner._averaged()["2.bias"]]
    assert found.values["bias"][:, -1] == pytest.approx(expected, rel=1e-9)


def test_the_grid_lies_on_whole_steps_of_every_batch_size():
    places = grid(38_400, 40, batch_sizes=[4, 16, 64])
    assert all(place % 64 == 0 for place in places)
    assert (places[0], places[-1], len(places)) == (0, 38_400, 41)


def test_mistakes_are_explained():
    with pytest.raises(ValueError, match=r"longer than the distance of the grid's points: ask for fewer points"):
        Run(make(), Variant(32), [0], Settings(grid=tuple(range(0, 480, 40))))
    with pytest.raises(ValueError, match=r"makes a batch of 1.33333 samples; it must be whole"):
        Variant(Fraction(1, 3)).plan(PLANS["adam"])
    with pytest.raises(
        ValueError, match=r"one value for each of 400 samples, got the shape \[\]; use reduction='none'"
    ):
        Run(replace(make(), loss=nn.functional.cross_entropy), Variant(), [0, 1], SETTINGS).finish()
    with pytest.raises(ValueError, match="needs a length"):
        replace(make(), plan=Plan(Adam(1e-3), batch_size=4))


def test_a_ramp_is_several_switches():
    task = make()
    found = Run(task, Variant(2, ramp=((320, 8),)), [7], replace(SETTINGS, grid=(160, 480), switch_at=160)).finish()
    loss = by_hand(task, [(1, 4, 40), (2, 8, 20), (4, 32, 5)])
    assert found.values["train loss"][0, -1] == pytest.approx(loss, rel=1e-9)
