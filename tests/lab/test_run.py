import copy
import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from problems import PLANS, Residual, jitter, make, mlp, mlp_batchnorm
from torch import nn

from rootscale import SGD, Adam, Plan
from rootscale.lab import Measure, Settings, Setup, Trial, Variant, grid
from rootscale.lab.learner import make_learner
from rootscale.lab.probes import gradient_noise
from rootscale.lab.stream import Stream
from rootscale.rules import RULES
from rootscale.training import rescale_

NOISY = Settings(grid=(0, 64, 128))
SETTINGS = replace(NOISY, measure=Measure(noise=False))
SWITCH = replace(SETTINGS, grid=(32, 64, 128), switch_at=32)
VARIANTS = {
    "base": Variant(),
    "four times the batch": Variant(4),
    "half the batch": Variant(Fraction(1, 2)),
    "linear": Variant(4, "linear"),
    "beta2 kept": Variant(4, "sqrt without beta2"),
    "ramp": Variant(2, ramp=((64, 4), (90, 1))),
    "state zeroed": Variant(4, zero_state=True),
    "svag": Variant(ell=2),
    "svag, real ell, other batch": Variant(2, ell=1.5),
}


def short(settings, variant):
    """SVAG takes many steps for a few samples: end a run of it at the second point."""
    return settings if variant.ell == 1 else replace(settings, grid=settings.grid[:2])


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
    task, how = make("everything", model), VARIANTS[variant]
    settings = short(NOISY if variant == "base" or model is Residual else SETTINGS, how)
    together = Trial(task, how, [3, 5], settings).finish()
    for r, seed in enumerate((3, 5)):
        close(together, Trial(task, how, [seed], settings).finish(), [r])


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
    found = Trial(task, Variant(), [7], SETTINGS).finish()
    assert found.values["train loss"][0, -1] == pytest.approx(by_hand(task, [(1, 4, 32)]), rel=1e-9)


def test_a_switch_in_mid_run_is_what_rescale_does():
    task = make()
    found = Trial(task, Variant(4), [7], SWITCH).finish()
    assert found.values["train loss"][0, -1] == pytest.approx(by_hand(task, [(1, 4, 8), (4, 16, 6)]), rel=1e-9)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_resumed_from_its_state_is_the_uninterrupted_one_bit_for_bit(variant):
    task = make("everything", mlp_batchnorm, augment=jitter, draws=1)
    settings = replace(SWITCH, measure=NOISY.measure) if variant == "base" else short(SWITCH, VARIANTS[variant])
    arguments = (task, VARIANTS[variant], [3, 5], settings)
    whole = Trial(*arguments).finish()
    run = Trial(*arguments)
    for stop in (1, 5):  # a ramp is in its second stage then
        while run.step < stop:
            run.advance()
        state = copy.deepcopy(run.state_dict())
        run = Trial(*arguments)
        run.load_state_dict(state)
    resumed = run.finish()
    for name in whole.names:
        assert np.array_equal(whole.values[name], resumed.values[name]), name


def test_dropout_is_the_same_after_a_resume():
    task = make(model=lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)).double())
    whole = Trial(task, Variant(), [3], SETTINGS).finish()
    run = Trial(task, Variant(), [3], SETTINGS)
    for _ in range(21):
        run.advance()
    torch.manual_seed(99)  # somebody else's random numbers
    state = copy.deepcopy(run.state_dict())
    run = Trial(task, Variant(), [3], SETTINGS)
    run.load_state_dict(state)
    assert np.array_equal(run.finish().values["train loss"], whole.values["train loss"])


def test_a_run_leaves_the_random_numbers_of_its_user_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    Trial(make(), Variant(), [3], SETTINGS).finish()
    assert torch.equal(torch.rand(3), expected)


def test_micro_batches_give_the_gradient_of_the_batch():
    whole = Trial(make("everything"), Variant(4), [3, 5], SETTINGS).finish()
    close(Trial(make("everything"), Variant(4), [3, 5], replace(SETTINGS, setup=Setup(micro=5))).finish(), whole)


def test_runs_of_a_seed_see_the_same_samples_at_every_batch_size():
    task = make()
    seen = []
    for variant in (Variant(), Variant(4)):
        run = Trial(task, variant, [3], SETTINGS)
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
    run = Trial(task, Variant(), [3, 5], SETTINGS)
    x, y = run._probes.samples["train"]
    found = gradient_noise(run.learner, x, y)
    batches, b = 6, len(x) // 6  # of 32 samples or more
    assert len(x) // 32 == batches
    for r in range(2):
        model = run.learner.replica(r)
        rows = []
        for k in range(batches):
            part = slice(b * k, b * k + b)
            model.zero_grad()
            nn.functional.cross_entropy(model(x[part]), y[part]).backward()
            rows.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        gradients = torch.stack(rows)
        trace = b * gradients.var(0).sum()
        mean = gradients.mean(0)
        assert found["Tr Sigma"][r].item() == pytest.approx(trace.item(), rel=1e-9)
        assert found["gradient norm"][r].item() == pytest.approx(mean.norm().item(), rel=1e-9)
        scale = trace / (mean.square().sum() - trace / (batches * b))
        assert found["noise scale"][r].item() == pytest.approx(scale.item(), rel=1e-9)


def test_noise_in_adams_metric_and_in_dual_norms_is_that_of_brute_force():
    run = Trial(make(), Variant(), [3, 5], SETTINGS)
    x, y = run._probes.samples["train"]
    first = gradient_noise(run.learner, x, y, norms=True)  # no second moment yet: that of these gradients
    assert all(torch.isfinite(value).all() for value in first.values())
    no_metric = Trial(make(Plan(SGD(1e-3), batch_size=4, steps=10)), Variant(), [3], SETTINGS).learner
    assert not any("Adam" in name for name in gradient_noise(no_metric, x, y, norms=True))
    while run.step < 3:
        run.advance()
    found = gradient_noise(run.learner, x, y, norms=True)
    batches, b = 6, len(x) // 6
    state, beta2 = run.learner.optimizer.state, run.learner.optimizer.param_groups[0]["betas"][1]
    for r in range(2):
        model, rows = run.learner.replica(r), []
        roots = []
        for p in run.learner.trained:
            v = state[p]["exp_avg_sq"][r]
            roots.append((v / (1 - beta2 ** float(state[p]["step"]))).sqrt() + 1e-8)
        for k in range(batches):
            part = slice(b * k, b * k + b)
            model.zero_grad()
            nn.functional.cross_entropy(model(x[part]), y[part]).backward()
            rows.append([p.grad.clone() for p in model.parameters()])
        norms = {
            ", Adam's metric": lambda g, roots=roots: sum(
                (t / d).square().sum() for t, d in zip(g, roots, strict=True)
            ),
            ", sign": lambda g: sum(t.abs().sum() for t in g) ** 2,
            ", spectral": lambda g: sum(torch.linalg.svdvals(t).sum() for t in g if t.ndim == 2) ** 2,
        }
        mean = [torch.stack(tensors).mean(0) for tensors in zip(*rows, strict=True)]
        for name, square in norms.items():
            rest = [square([t - m for t, m in zip(row, mean, strict=True)]) for row in rows]
            trace = b * sum(rest) / (batches - 1)
            assert found[f"Tr Sigma{name}"][r].item() == pytest.approx(trace.item(), rel=1e-4)
            scale = trace / (square(mean) - trace / (batches * b))
            assert found[f"noise scale{name}"][r].item() == pytest.approx(scale.item(), rel=1e-3)


def test_measuring_changes_nothing():
    task = make("everything", mlp_batchnorm)
    often = Trial(task, Variant(), [3, 5], Settings(grid=tuple(range(0, 132, 8)))).finish()
    rarely = Trial(task, Variant(), [3, 5], SETTINGS).finish()
    assert np.array_equal(often.values["train loss"][:, [0, 8, 16]], rarely.values["train loss"])


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
    learner = make_learner(task, seeds, Setup())
    before = {name: buffer.clone() for name, buffer in learner.nets.buffers.items()}
    x, y = 100 * task.train.inputs, task.train.targets
    found = learner.means(x, y, {"loss": task.loss})["loss"]
    assert all(torch.equal(before[name], buffer) for name, buffer in learner.nets.buffers.items())
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
    assert torch.isfinite(make_learner(task, seeds, Setup()).means(x[:1], y[:1], {"loss": task.loss})["loss"]).all()


def test_users_own_test_functions_see_each_replica():
    task = make("everything", functions={"bias": lambda model: model[2].bias.sum()})
    run = Trial(task, Variant(), [3, 5], SETTINGS)
    found = run.finish()
    expected = [value.sum().item() for value in run.learner._averaged()["2.bias"]]
    assert found.values["bias"][:, -1] == pytest.approx(expected, rel=1e-9)


def test_the_grid_lies_on_whole_steps_of_every_batch_size():
    places = grid(38_400, 40, batch_sizes=[4, 16, 64])
    assert all(place % 64 == 0 for place in places)
    assert (places[0], places[-1], len(places)) == (0, 38_400, 41)


def test_mistakes_are_explained():
    with pytest.raises(ValueError, match=r"longer than the distance of the grid's points: ask for fewer points"):
        Trial(make(), Variant(32), [0], Settings(grid=tuple(range(0, 480, 40))))
    with pytest.raises(ValueError, match=r"makes a batch of 1.33333 samples; it must be whole"):
        Variant(Fraction(1, 3)).plan(PLANS["adam"])
    with pytest.raises(
        ValueError, match=r"one value for each of 400 samples, got the shape \[\]; use reduction='none'"
    ):
        Trial(replace(make(), loss=nn.functional.cross_entropy), Variant(), [0, 1], SETTINGS).finish()
    with pytest.raises(ValueError, match="needs a length"):
        replace(make(), plan=Plan(Adam(1e-3), batch_size=4))


def test_a_ramp_is_several_switches():
    task = make()
    found = Trial(task, Variant(2, ramp=((64, 8),)), [7], replace(SWITCH, grid=(32, 128))).finish()
    loss = by_hand(task, [(1, 4, 8), (2, 8, 4), (4, 32, 2)])
    assert found.values["train loss"][0, -1] == pytest.approx(loss, rel=1e-9)


def test_every_stage_of_a_ramp_begins_at_its_place():
    run = Trial(make(), Variant(2, ramp=((48, 4), (80, 8))), [7], replace(SWITCH, grid=(32, 144)))
    base, seen = int(make().plan.batch_size.total), []
    while not run.done:
        before = run.step, int(run.position)
        run.advance()
        if run.step > before[0]:
            seen.append((before[1], int(run.position) - before[1]))
    expected = [(at, base * (2 if at < 48 else 4 if at < 80 else 8)) for at, _ in seen]
    assert seen == expected
    assert {size for _, size in seen} == {2 * base, 4 * base, 8 * base}


def test_a_point_between_two_steps_is_measured_at_the_nearer_one():
    size = 4 * int(make().plan.batch_size.total)  # of a step
    grid_of = (0, size + size // 4, 4 * size - size // 4, 8 * size)
    run, places = Trial(make(), Variant(4), [7], replace(SETTINGS, grid=grid_of)), []
    while not run.done:
        before = run.measured
        run.advance()
        if run.measured > before:
            places.append(int(run.position))
    assert places == [0, size, 4 * size, 8 * size]


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
    together = Trial(task, Variant(), [3, 5], SETTINGS).finish()
    for r, seed in enumerate((3, 5)):
        close(together, Trial(task, Variant(), [seed], SETTINGS).finish(), [r])


def test_no_gradient_at_all_is_no_divergence():
    task = replace(make(), loss=lambda outputs, y: 0.0 * outputs.sum(-1))
    found = Trial(task, Variant(), [0], NOISY).finish()
    assert np.isfinite(found.values["noise scale"]).all()
    assert not found.lost.any()


def test_measurements_do_not_depend_on_the_random_numbers_of_the_user():
    task = make(model=lambda: nn.Sequential(nn.Dropout(0.5), mlp()))
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found.append(Trial(task, Variant(), [3], NOISY).finish().values["gradient norm"])
    np.testing.assert_array_equal(*found)


def test_the_number_of_points_that_an_error_advises_is_possible():
    task = make()
    for points in (1, 14, 15, 16, 29, 30, 31, 59):
        places = grid(960, points, batch_sizes=[4, 64])
        try:
            Trial(task, Variant(16), [0], Settings(grid=places))
        except ValueError as error:
            advised = int(str(error).partition("at most ")[2].partition(")")[0])
            Trial(task, Variant(16), [0], Settings(grid=grid(960, advised, batch_sizes=[4, 64])))
    with pytest.raises(ValueError, match="points must be at least 1, got 0"):
        grid(960, 0)


def test_a_device_that_is_not_there_is_told():
    with pytest.raises(ValueError, match="device must be one of torch, such as cpu or cuda, got 'gpu'"):
        Setup("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="torch sees no CUDA GPU"):
            Trial(make(), Variant(), [0], replace(SETTINGS, setup=Setup("cuda")))


def test_a_rule_as_an_object_is_the_rule_of_its_text():
    rule = RULES["sqrt"].averaged("power").without("v", "step_counter")
    variant = Variant(4, rule)
    assert variant == Variant(4, "sqrt with power without v, step_counter")
    assert variant.the_rule(PLANS["adam"]) == rule
    assert Variant(4, "") == Variant(4)
    with pytest.raises(
        ValueError, match=r"must be one of rootscale.RULES, .*; got 'sqrt with paper', which is another one"
    ):
        Variant(4, replace(rule, averaging="paper", left_out=()))


@pytest.mark.parametrize(
    ("variant", "label"),
    [
        (Variant(4), "B = 16"),
        (Variant(4, "linear"), "B = 16, linear"),
        (Variant(4, "with power"), "B = 16 with power"),
        (Variant(4, "without v, step_counter"), "B = 16 without v, step_counter"),
        (Variant(4, "sqrt without v", zero_state=True), "B = 16, sqrt without v, state zeroed"),
        (Variant(2, ramp=((64, 4),)), "B = 8 -> 16"),
        (Variant(2, ell=2), "SVAG ell = 2, B = 8"),
        (Variant(4, name="mine"), "mine"),
    ],
)
def test_a_variant_is_labelled_and_read_back(variant, label):
    assert variant.label(PLANS["adam"]) == label
    assert Variant.from_dict(json.loads(json.dumps(variant.to_dict()))) == variant


def test_a_variant_that_an_older_version_stored_is_read():
    stored = {"kappa": "4", "rule": None, "keep": ["v"], "ell": 1.0, "averaging": "power", "ramp": [[64, "8"]],
              "zero_state": False}  # fmt: skip
    assert Variant.from_dict(stored) == Variant(4, "with power without v", ramp=((64, 8),))
    assert Variant.from_dict({**stored, "keep": [], "averaging": "paper"}) == Variant(4, "with paper", ramp=((64, 8),))
