import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from rootscale.rules import svag_weights
from rootscale.training import SVAG


def net(dropout=0.0):
    torch.manual_seed(0)
    layers = [nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 2)]
    return nn.Sequential(*layers).double()


def batches(seed=1):
    generator = torch.Generator().manual_seed(seed)
    while True:
        x = torch.randn(8, 3, generator=generator, dtype=torch.float64)
        yield x, (x.sum(1) > 0).long()


def make(ell, model=None, cls=torch.optim.Adam):
    model = net() if model is None else model
    optimizer = cls(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=50)
    return model, optimizer, scheduler, SVAG(optimizer, ell, scheduler=scheduler, model=model)


def train(model, optimizer, scheduler, svag, data, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        for r in svag.passes():
            x, y = next(data)
            (r * F.cross_entropy(model(x), y)).backward()
        optimizer.step()
        scheduler.step()
    return [p.detach().clone() for p in model.parameters()] + [b.clone() for b in model.buffers()]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("ell", [1, 1.5, 2, 10])
def test_the_weights_keep_the_mean_and_multiply_the_noise(ell):
    r1, r2 = svag_weights(ell)
    assert r1 + r2 == pytest.approx(1)
    assert r1**2 + r2**2 == pytest.approx(ell**2)


@pytest.mark.parametrize("ell", [0.5, 0, -1, math.nan, "2"])
def test_an_ell_below_one_is_refused(ell):
    with pytest.raises(ValueError, match="ell must be a finite number >= 1"):
        SVAG(torch.optim.Adam(net().parameters()), ell)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_ell_of_one_is_the_base_run_bit_for_bit(dropout):
    parts = make(1, net(dropout))
    torch.manual_seed(7)  # dropout's masks
    found = train(*parts, batches(), 20)
    model = net(dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=50)
    torch.manual_seed(7)
    for _, (x, y) in zip(range(20), batches(), strict=False):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        scheduler.step()
    assert same(found, [p.detach() for p in model.parameters()] + list(model.buffers()))


def test_the_hyperparameters_are_svags():
    optimizer = torch.optim.AdamW(net().parameters(), lr=1e-2, betas=(0.9, 0.96), eps=1e-8, weight_decay=0.1)
    values = SVAG(optimizer, 2).run.values()
    assert (values["lr"], values["eps"], values["weight_decay"]) == (5e-3, 2e-8, 0.05)
    assert (values["beta1"], values["beta2"]) == pytest.approx((1 - 0.1 / 4, 1 - 0.04 / 4))
    group = optimizer.param_groups[0]
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (1e-2, (0.9, 0.96), 1e-8, 0.1)


def test_the_gradient_is_the_weighted_sum_of_two_fresh_batches():
    model, optimizer, _, svag = make(3)
    data = batches()
    for r in svag.passes():
        x, y = next(data)
        (r * F.cross_entropy(model(x), y)).backward()
    found = [p.grad.clone() for p in model.parameters()]
    data, gradients = batches(), []
    for _ in range(2):
        x, y = next(data)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    r1, r2 = svag_weights(3)
    for g, a, b in zip(found, *gradients, strict=True):
        torch.testing.assert_close(g, r1 * a + r2 * b, rtol=1e-10, atol=1e-14)


def test_steps_are_counted_in_both_clocks():
    svag = SVAG(torch.optim.Adam(net().parameters()), 1.5)
    assert svag.steps(100) == 225
    for _ in range(svag.steps(4)):
        for _ in svag.passes():
            pass
    assert (svag.done, svag.discrete_steps) == (9, 4)


def test_running_statistics_are_updated_once_a_step_with_a_converted_momentum():
    model, _, _, svag = make(2)
    norm = model[1]
    assert norm.momentum == pytest.approx(1 - 0.9 ** (1 / 4))
    before, data = norm.running_mean.clone(), batches()
    for i, _ in enumerate(svag.passes()):
        model(next(data)[0])
        assert torch.equal(norm.running_mean, before) == (i == 0)
    assert norm.momentum == pytest.approx(1 - 0.9 ** (1 / 4))


def test_leaving_a_pass_early_leaves_batchnorm_intact():
    model, _, _, svag = make(2)
    for _ in svag.passes():
        break
    assert model[1].momentum == pytest.approx(1 - 0.9 ** (1 / 4))


@pytest.mark.parametrize("ell", [1, 2, 1.5])
def test_a_saved_run_goes_on_as_it_was(ell):
    parts, data = make(ell), batches()
    train(*parts, data, 7)
    saved = copy.deepcopy([part.state_dict() for part in parts])
    expected = train(*parts, batches(9), 5)
    parts = make(ell)
    for part, state in zip(parts, saved, strict=True):
        part.load_state_dict(state)
    found = train(*parts, batches(9), 5)
    if ell == 1.5:  # a checkpoint has v times 4/9, which is no power of two
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    else:
        assert same(found, expected)
    assert parts[3].done == 12
    assert parts[3].run.clock == pytest.approx(12 / ell**2, rel=1e-6)


def test_a_checkpoint_of_another_ell_is_refused():
    svag = SVAG(torch.optim.Adam(net().parameters()), 2)
    with pytest.raises(ValueError, match="the checkpoint is of SVAG with ell=4, this one has ell=2"):
        svag.load_state_dict({"ell": 4, "done": 1})


def test_accumulation_and_the_grad_scaler_give_the_same_run():
    expected = train(*make(2), batches(), 5)
    model, optimizer, scheduler, svag = make(2)
    scaler, data = torch.amp.GradScaler("cpu", init_scale=2.0**10), batches()
    for _ in range(5):
        optimizer.zero_grad()
        for r in svag.passes():
            x, y = next(data)
            logits = model(x)  # one forward, for BatchNorm; two backwards of its halves
            for half in (slice(0, 4), slice(4, 8)):
                loss = F.cross_entropy(logits[half], y[half]) / 2
                scaler.scale(r * loss).backward(retain_graph=True)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
    found = [p.detach() for p in model.parameters()] + list(model.buffers())
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_ddp_gives_the_same_run(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        expected = train(*make(2), batches(), 5)
        found = train(*make(2, DistributedDataParallel(net())), batches(), 5)
    finally:
        torch.distributed.destroy_process_group()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_the_third_moment_of_the_noise_falls_as_one_over_ell():
    """The low-skewness lemma, on exponential noise: E z^3 = 2 (3 ell^2 - 1) / (2 ell^3) at unit variance."""
    parameter, generator = nn.Parameter(torch.zeros(200_000, dtype=torch.float64)), torch.Generator().manual_seed(0)
    for ell in (1, 2, 4, 8):
        svag = SVAG(torch.optim.Adam([parameter]), ell)
        parameter.grad = None
        for r in svag.passes():
            noise = torch.empty_like(parameter).exponential_(generator=generator) - 1
            (r * noise * parameter).sum().backward()
        z = parameter.grad / ell
        expected = (3 * ell**2 - 1) / ell**3
        error = z.pow(3).std().item() / math.sqrt(len(z))
        assert abs(z.pow(3).mean().item() - expected) < 4 * error
        assert z.var().item() == pytest.approx(1, abs=0.03)


def test_a_plain_average_of_statistics_counts_one_batch_a_step():
    model = nn.Sequential(nn.BatchNorm1d(1, momentum=None))
    optimizer = torch.optim.Adam(model.parameters())
    svag, second = SVAG(optimizer, 2, model=model), []
    for k in range(20):
        optimizer.zero_grad()
        for i, r in enumerate(svag.passes()):
            x = torch.full((4, 1), 10.0 + k) + i * torch.arange(4.0)[:, None]
            second += [x.mean()] * i
            (r * model(x).square().mean()).backward()
        optimizer.step()
    assert model[0].num_batches_tracked == 20
    torch.testing.assert_close(model[0].running_mean[0], torch.stack(second).mean())
