"""Several optimizers in one object, and several families in one optimizer: each by its own rule, all or nothing."""

import pytest
import torch
from torch import nn

from rootscale.training import Run, rescale_


class MuonWithAuxAdam(torch.optim.Optimizer):
    """Groups say which optimizer they have, as in the public Muon's class of this name."""

    def __init__(self, groups, key="use_muon"):
        for group in groups:
            kind = group[key] in (True, "muon")
            group.update({"lr": 0.02, "momentum": 0.95} if kind else {"lr": 3e-4, "betas": (0.98, 0.99), "eps": 1e-10})
            group["weight_decay"] = 0.1
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "momentum" in group:
                    state.setdefault("momentum_buffer", torch.zeros_like(p)).lerp_(p.grad, 1 - group["momentum"])
                else:
                    state["step"] = state.get("step", 0) + 1
                    state.setdefault("exp_avg", torch.zeros_like(p)).lerp_(p.grad, 0.02)
                    state.setdefault("exp_avg_sq", torch.zeros_like(p)).lerp_(p.grad.square(), 0.01)


def net():
    torch.manual_seed(0)
    return nn.Linear(6, 4)


def trained(optimizers, model):
    for seed in range(8):
        model.zero_grad()
        model(torch.randn(5, 6, generator=torch.Generator().manual_seed(seed))).square().mean().backward()
        for one in optimizers:
            one.step()


@pytest.mark.parametrize(("key", "muon", "adam"), [("use_muon", True, False), ("kind", "muon", "adamw")])
def test_groups_of_one_optimizer_follow_each_its_own_rule(key, muon, adam):
    model = net()
    optimizer = MuonWithAuxAdam([{"params": [model.weight], key: muon}, {"params": [model.bias], key: adam}], key)
    trained([optimizer], model)
    buffer, v = (
        optimizer.state[p][k].clone() for p, k in ((model.weight, "momentum_buffer"), (model.bias, "exp_avg_sq"))
    )
    changes = rescale_(optimizer, 4)
    one, two = optimizer.param_groups
    assert (one["lr"], one["momentum"], one["weight_decay"]) == (0.04, 0.95, 0.2)
    assert (two["lr"], two["betas"], two["eps"]) == (6e-4, pytest.approx((0.92, 0.96)), 5e-11)
    assert torch.equal(optimizer.state[model.weight]["momentum_buffer"], buffer / 2)
    assert torch.equal(optimizer.state[model.bias]["exp_avg_sq"], v / 4)
    assert optimizer.state[model.bias]["step"] == 2
    assert changes.rule.name == "normalized-sqrt (muon), sqrt (adamw)"
    assert changes["lr (group 0)"].after == 0.04


def pair():
    model = net()
    optimizer = MuonWithAuxAdam(
        [{"params": [model.weight], "use_muon": True}, {"params": [model.bias], "use_muon": False}]
    )
    trained([optimizer], model)
    return model, optimizer


def test_a_scheduler_of_both_kinds_of_groups_goes_on():
    _, optimizer = pair()
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.5, total_iters=100)
    run = Run(optimizer, tuned_at=8, batch_size=32, scheduler=scheduler)
    optimizer.step()
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.02 * 0.98, 3e-4 * 0.98])
    values = run.values()
    assert [values["group 0/lr"], values["group 1/lr"]] == pytest.approx([0.04 * 0.98, 6e-4 * 0.98])


def test_a_scheduler_may_drive_groups_whose_rates_scale_differently():
    """It sets the script's numbers, and each group's rule applies to its own."""
    _, optimizer = pair()
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.5, total_iters=100)
    run = Run(optimizer, tuned_at=8, batch_size=32, scheduler=scheduler, rule={"muon": "normalized-linear"})
    optimizer.step()
    scheduler.step()
    values = run.values()
    assert [values["group 0/lr"], values["group 1/lr"]] == pytest.approx([4 * 0.02 * 0.98, 2 * 3e-4 * 0.98])


def test_an_error_in_one_kind_of_group_leaves_the_other_as_it_was():
    model, optimizer = pair()
    optimizer.state[model.bias]["exp_avg_sq"] = "lost"
    with pytest.raises(TypeError, match=r"^the optimizer's state exp_avg_sq must be a tensor, got str"):
        rescale_(optimizer, 4)
    assert optimizer.param_groups[0]["lr"] == 0.02


def test_a_kind_of_group_that_is_not_known_is_named():
    model = net()
    optimizer = MuonWithAuxAdam([{"params": [model.weight], "kind": "muon"}], "kind")
    optimizer.param_groups[0]["kind"] = "shampoo"
    with pytest.raises(ValueError, match="has a group with kind='shampoo'; known are 'muon', 'adamw'"):
        rescale_(optimizer, 4)


class Container:
    """torchtitan's way: an object with a list of optimizers."""

    def __init__(self, *optimizers):
        self.optimizers = list(optimizers)


class Iterated:
    """An object that is iterated over, and has no list."""

    def __init__(self, *optimizers):
        self.held = optimizers

    def __iter__(self):
        return iter(self.held)


@pytest.mark.parametrize(
    "container",
    [
        Container,
        Iterated,
        lambda *all: list(all),
        lambda *all: [Container(*all)],
        lambda *all: dict(zip("ab", all, strict=True)),
    ],
)
def test_containers_are_opened(container):
    model = net()
    muon, adamw = torch.optim.Muon([model.weight], lr=0.02), torch.optim.AdamW([model.bias], lr=1e-3)
    trained([muon, adamw], model)
    rescale_(container(muon, adamw), 4)
    assert (muon.param_groups[0]["lr"], adamw.param_groups[0]["lr"]) == (0.04, 2e-3)


def test_an_empty_container_is_refused():
    with pytest.raises(ValueError, match="got an empty Container"):
        rescale_(Container(), 4)
