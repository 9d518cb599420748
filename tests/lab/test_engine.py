import copy
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from problems import PLANS, Residual, jitter, make, mlp, mlp_batchnorm
from torch import nn

from rootscale import Adam, Plan
from rootscale.lab import Run, Settings, Setup, Variant, grid
from rootscale.lab.learner import Learner
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
    close(Run(make("everything"), Variant(4), [3, 5], replace(SETTINGS, setup=Setup(micro=5))).finish(), whole)


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


def frozen():
    """Its averages stay what they are."""
    model = mlp_batchnorm()
    model[1].momentum = 0.0
    return model


@pytest.mark.parametrize(
    ("net", "seeds"),
    [(mlp_batchnorm, [3]), (mlp_batchnorm, [3, 5]), (Residual, [3, 5]), (frozen, [3]), (frozen, [3, 5])],
)
def test_before_the_first_step_batchnorm_takes_the_statistics_of_the_samples(net, seeds):
    task = make(model=net)
    learner = Learner(task, seeds)
    before = {name: buffer.clone() for name, buffer in learner.buffers.items()}
    x, y = 100 * task.train.inputs, task.train.targets
    found = learner.means(x, y, {"loss": task.loss})["loss"]
    assert all(torch.equal(before[name], buffer) for name, buffer in learner.buffers.items())
    for r, seed in enumerate(seeds):
        torch.manual_seed(seed)
        model = net()
        with_averages = task.loss(model.eval()(x), y).mean().item()
        assert found[r].item() == pytest.approx(task.loss(model.train()(x), y).mean().item(), rel=1e-9)
        assert found[r].item() != pytest.approx(with_averages, rel=0.05)
    learner.step([(torch.arange(4).expand(len(seeds), 4), None)], 1e-3)
    after = learner.means(x, y, {"loss": task.loss})["loss"]
    for r in range(len(seeds)):  # from then on there are averages
        assert after[r].item() == pytest.approx(task.loss(learner.replica(r)(x), y).mean().item(), rel=1e-9)
    assert torch.isfinite(Learner(task, seeds).means(x[:1], y[:1], {"loss": task.loss})["loss"]).all()


def test_a_replica_that_diverges_is_recorded_and_the_others_go_on():
    def fragile():
        model = mlp()
        if torch.initial_seed() == 5:
            with torch.no_grad():
                model[2].weight.mul_(1e30)
        return model

    task = make(model=fragile)
    found = Run(task, Variant(), [3, 5], replace(SETTINGS, setup=Setup(max_loss=50.0))).finish()
    assert found.meta["diverged_at"] == [None, 0]
    assert np.isnan(found.values["train loss"][1]).all()
    close(Run(task, Variant(), [3], SETTINGS).finish(), Run(make(), Variant(), [3], SETTINGS).finish())
    assert np.isfinite(found.values["train loss"][0]).all()


def test_a_run_whose_replicas_all_diverge_ends_there():
    task = make(Plan(Adam(1e4), batch_size=4, steps=150))
    run = Run(task, Variant(), [3, 5], replace(SETTINGS, setup=Setup(max_loss=50.0)))
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


def shared_activation():
    relu = nn.ReLU()
    return nn.Sequential(nn.Linear(6, 8), relu, nn.Linear(8, 8), relu, nn.Linear(8, 3)).double()


def tied_weights():
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3)).double()
    model[2].weight = model[0].weight
    return model


@pytest.mark.parametrize("model", [shared_activation, tied_weights])
def test_what_a_net_has_at_two_places_is_at_two_places_in_replicas_too(model):
    task = make(model=model)
    together = Run(task, Variant(), [3, 5], SETTINGS).finish()
    for r, seed in enumerate((3, 5)):
        close(together, Run(task, Variant(), [seed], SETTINGS).finish(), [r])


def test_a_loss_below_zero_is_no_divergence():
    task = make()
    below = replace(task, loss=lambda outputs, y: task.loss(outputs, y) - 5)
    found = Run(below, Variant(), [0, 1], SETTINGS).finish()
    assert found.meta["diverged_at"] == [None, None]
    np.testing.assert_allclose(
        found.values["train loss"], Run(task, Variant(), [0, 1], SETTINGS).finish().values["train loss"] - 5
    )


def test_a_run_has_diverged_by_the_loss_at_its_start_and_not_at_the_switch():
    task, settings = make(), replace(SETTINGS, grid=(160, 320, 480), switch_at=160)
    first = Run(task, Variant(), [3], replace(SETTINGS, grid=(0, 160)))
    first.finish()
    run = Run(task, Variant(4), [3], settings, warm=first.state_dict())
    assert run.state_dict()["bounds"] == [pytest.approx(100 * first.values["train loss"][0][0])]
    assert Run(task, Variant(4), [3], settings).state_dict()["bounds"] == run.state_dict()["bounds"]


def test_what_diverged_before_the_switch_has_diverged_after_it():
    task, settings = make(), replace(SETTINGS, grid=(160, 320, 480), switch_at=160)
    first = Run(task, Variant(), [3, 5], replace(SETTINGS, grid=(0, 160)))
    first.finish()
    state = first.state_dict()
    found = Run(task, Variant(4), [3, 5], settings, warm={**state, "diverged": [80, None]}).finish()
    assert found.meta["diverged_at"] == [160, None]
    assert np.isnan(found.values["train loss"][0]).all()
    assert np.isfinite(found.values["train loss"][1]).all()
    with pytest.raises(ValueError, match="all 2 runs diverged before the switch at 160 samples, the first after 40"):
        Run(task, Variant(4), [3, 5], settings, warm={**state, "diverged": [80, 40]})


def test_no_gradient_at_all_is_no_divergence():
    task = replace(make(), loss=lambda outputs, y: 0.0 * outputs.sum(-1))
    found = Run(task, Variant(), [0], SETTINGS).finish()
    assert np.isfinite(found.values["noise scale"]).all()
    assert not found.lost.any()


def test_measurements_do_not_depend_on_the_random_numbers_of_the_user():
    task = make(model=lambda: nn.Sequential(nn.Dropout(0.5), mlp()))
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found.append(Run(task, Variant(), [3], SETTINGS).finish().values["gradient norm"])
    np.testing.assert_array_equal(*found)


def test_the_number_of_points_that_an_error_advises_is_possible():
    task = make()
    for points in range(1, 60):
        places = grid(960, points, batch_sizes=[4, 64])
        try:
            Run(task, Variant(16), [0], Settings(grid=places))
        except ValueError as error:
            advised = int(str(error).partition("at most ")[2].partition(")")[0])
            Run(task, Variant(16), [0], Settings(grid=grid(960, advised, batch_sizes=[4, 64])))
    with pytest.raises(ValueError, match="points must be at least 1, got 0"):
        grid(960, 0)


def test_a_device_that_is_not_there_is_told():
    with pytest.raises(ValueError, match="device must be one of torch, such as cpu or cuda, got 'gpu'"):
        Setup("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="torch sees no CUDA GPU"):
            Run(make(), Variant(), [0], replace(SETTINGS, setup=Setup("cuda")))
