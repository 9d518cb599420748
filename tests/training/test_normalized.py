"""Live optimizers that normalise momentum itself: Muon, Lion and Signum, alone and beside Adam."""

import pytest
import torch
from torch import nn

from rootscale import RULES
from rootscale.training import Run, register, rescale_

#: At kappa = 4 by a: factors of the learning rate, 1 - mu, the buffer (and eps) and decoupled decay.
FACTORS = {
    "normalized-sqrt": (2.0, 1.0, 0.5, 2.0),
    "normalized-half": (2.0**1.5, 2.0, 2.0**-0.5, 2.0**0.5),
    "normalized-linear": (4.0, 4.0, 1.0, 1.0),
}


class Lion(torch.optim.Optimizer):
    """What the libraries call Lion; the family is found by the name and the groups."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                beta1, beta2 = group["betas"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.sign(beta1 * m + (1 - beta1) * p.grad), alpha=-group["lr"])
                m.lerp_(p.grad, 1 - beta2)


def trained(optimizers, model, steps=3):
    for seed in range(steps):
        x = torch.randn(5, 8, generator=torch.Generator().manual_seed(seed))
        model.zero_grad()
        model(x).square().mean().backward()
        for one in optimizers:
            one.step()


def net():
    torch.manual_seed(0)
    return nn.Linear(8, 4)


def test_what_the_rule_of_normalised_momentum_rests_on_is_left_to_a_look():
    """Of the noise scale nothing is to be seen in an optimizer; by a = 1 there is nothing to look at."""
    model = net()

    def looks(run=None, **options):
        optimizers = [torch.optim.Muon([model.weight]), torch.optim.AdamW([model.bias])]
        left = rescale_(optimizers, **options).remaining if run is None else run(optimizers).changes.remaining
        return [line for line in left if "noise scale" in line]

    (line,) = looks(batch_size=(16, 64))
    assert line.startswith(
        "optimizer 0: a look at the noise scale (NoiseMeter measures it): momentum averages 39 batch"
    )
    assert "normalized-sqrt holds while the noise scale is far above that, 2,500 samples" in line
    assert line.endswith("elsewhere normalized-half is nearer")
    assert looks(kappa=4, rule={"muon": "normalized-half"})[0].endswith("elsewhere normalized-linear is nearer")
    assert "that, 2,500 samples" in looks(batch_size=(64, 16))[0]  # that of the larger batch
    assert "far above that; elsewhere" in looks(kappa=4)[0]  # in batches, where no size is given
    assert not looks(kappa=4, rule={"muon": "normalized-linear"})
    assert not looks(kappa=1)
    assert looks(run=lambda optimizers: Run(optimizers, tuned_at=16, batch_size=64)) == [line]


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("rule", FACTORS)
def test_muon_is_converted_with_its_buffer(rule, nesterov):
    model = net()
    muon = torch.optim.Muon([model.weight], lr=0.02, weight_decay=0.1, nesterov=nesterov)
    trained([muon], model)
    before = muon.state[model.weight]["momentum_buffer"].clone()
    changes = rescale_(muon, 4, rule=rule)
    rate, past, buffer, decay = FACTORS[rule]
    group = muon.param_groups[0]
    assert group["lr"] == pytest.approx(0.02 * rate)
    assert 1 - group["momentum"] == pytest.approx(0.05 * past)
    assert group["weight_decay"] == pytest.approx(0.1 * decay)
    assert group["eps"] == pytest.approx(1e-7 * buffer)
    torch.testing.assert_close(muon.state[model.weight]["momentum_buffer"], before * buffer)
    assert all("times the batch at once" in text for text in changes.warnings)


@pytest.mark.parametrize("rule", FACTORS)
def test_lion_is_found_by_its_name_and_mixes_by_the_root(rule):
    model = net()
    lion = Lion(model.parameters(), lr=1e-3, weight_decay=0.2)
    trained([lion], model)
    before = lion.state[model.weight]["exp_avg"].clone()
    rescale_(lion, 4, rule=rule)
    rate, past, buffer, decay = FACTORS[rule]
    group = lion.param_groups[0]
    assert group["lr"] == pytest.approx(1e-3 * rate)
    assert 1 - group["betas"][0] == pytest.approx(0.1 * past**0.5)
    assert 1 - group["betas"][1] == pytest.approx(0.01 * past)
    assert group["weight_decay"] == pytest.approx(0.2 * decay)
    torch.testing.assert_close(lion.state[model.weight]["exp_avg"], before * buffer)


def pair():
    model = net()
    muon = torch.optim.Muon([model.weight], lr=0.02)
    adamw = torch.optim.AdamW([model.bias], lr=1e-3, betas=(0.98, 0.999))
    trained([muon, adamw], model)
    return muon, adamw


def test_muon_and_adamw_follow_each_its_own_rule():
    muon, adamw = pair()
    rescale_([muon, adamw], 4)
    assert muon.param_groups[0]["momentum"] == 0.95
    assert adamw.param_groups[0]["betas"] == pytest.approx((0.92, 0.996))
    assert (muon.param_groups[0]["lr"], adamw.param_groups[0]["lr"]) == (0.04, 2e-3)


@pytest.mark.parametrize("rule", [{"muon": "normalized-linear"}, ["normalized-linear", None]])
def test_a_rule_can_be_given_for_one_of_several(rule):
    muon, adamw = pair()
    rescale_([muon, adamw], 4, rule=rule)
    assert muon.param_groups[0]["lr"] == 0.08
    assert adamw.param_groups[0]["lr"] == 2e-3


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"lion": "normalized-linear"}, "rule names 'lion', but the optimizers are muon, adamw"),
        (["sqrt"], "rule must be one for all 2 optimizers or one for each of them, got 1"),
    ],
)
def test_rules_that_fit_no_optimizer_are_refused(rule, message):
    with pytest.raises(ValueError, match=message):
        rescale_(pair(), 4, rule=rule)


def test_adams_rule_on_muon_is_made_for_comparison_with_a_warning():
    muon, _ = pair()
    with pytest.warns(
        UserWarning, match="'sqrt with paper' does not keep the dynamics of muon; .* is 'normalized-sqrt'"
    ):
        rescale_(muon, 4, rule="sqrt with paper")
    assert muon.param_groups[0]["momentum"] == pytest.approx(0.8)


@pytest.mark.parametrize("rule", FACTORS)
def test_the_rule_and_its_inverse_cancel(rule):
    chosen = RULES[rule]
    for key in ("eta", "mu", "mix", "m", "eps_m", "decoupled_decay"):
        there = chosen.convert(key, 0.9, 4.0)
        assert chosen.convert(key, there, 0.25) == pytest.approx(0.9, rel=1e-12)


def test_a_momentum_that_would_leave_its_range_is_refused_with_the_largest_kappa():
    muon, _ = pair()
    with pytest.raises(ValueError, match=r"kappa=20 gives momentum=.*; need kappa < 20"):
        rescale_(muon, 20, rule="normalized-linear")


# ---- momentum that sums gradients


def muon_class(sums):
    """The first Muon's buffer is ``mu b + g``; later ones average."""

    class Muon(torch.optim.Optimizer):
        def __init__(self, params, lr=0.02, momentum=0.95, wd=0.1):
            super().__init__(params, {"lr": lr, "momentum": momentum, "wd": wd})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    buffer = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                    buffer.mul_(group["momentum"]).add_(p.grad, alpha=1.0 if sums else 1 - group["momentum"])
                    left, _, right = torch.linalg.svd(buffer, full_matrices=False)
                    p.mul_(1 - group["lr"] * group["wd"]).add_(left @ right, alpha=-group["lr"])

    return Muon


def stepped(cls, registered, rule, kappa=4, steps=3):
    """The weights of a run that is converted in its middle."""
    model = net().double()
    muon = cls([model.weight])
    if registered is not None:
        register(cls, like="muon", sums=registered)
    for k in range(2 * steps):
        if k == steps:
            rescale_(muon, kappa, rule=rule)
        x = torch.randn(5, 8, generator=torch.Generator().manual_seed(k), dtype=torch.double)
        model.zero_grad()
        model(x).square().mean().backward()
        muon.step()
    return model.weight.detach()


@pytest.mark.parametrize("rule", FACTORS)
def test_momentum_that_sums_goes_on_as_momentum_that_averages(rule):
    """Both normalise it, so that they are one optimizer; a buffer converted by the wrong factor is another one."""
    average = stepped(muon_class(sums=False), False, rule)
    torch.testing.assert_close(stepped(muon_class(sums=True), True, rule), average, rtol=1e-9, atol=1e-12)
    wrong = (stepped(muon_class(sums=True), False, rule) - average).abs().max()
    assert (wrong < 1e-9) == (rule == "normalized-sqrt")  # where mu is kept, the factors are the same


def test_a_muon_of_unknown_momentum_is_converted_where_mu_is_kept_and_refused_elsewhere():
    cls = muon_class(sums=True)
    torch.testing.assert_close(stepped(cls, None, None), stepped(muon_class(sums=False), None, None))
    with pytest.raises(
        ValueError, match=r"not known whether its momentum averages .* like='muon', sums=True\) if it sums"
    ):
        stepped(cls, None, "normalized-half")


def test_the_decay_of_a_muon_may_be_called_wd():
    model = net()
    muon = muon_class(sums=False)([model.weight])
    assert rescale_(muon, 4)["wd"].after == 0.2
    assert muon.param_groups[0]["wd"] == 0.2


def test_parameters_that_muon_leaves_to_adam_are_not_taken_for_its_own():
    model = net()
    muon = muon_class(sums=False)([model.weight])
    muon.state[model.weight] = {"exp_avg": torch.zeros(4, 8)}
    with pytest.raises(TypeError, match="a group of muon has parameters with exp_avg, which are another optimizer's"):
        rescale_(muon, 4)
    muon.param_groups[0]["adamw_betas"] = (0.9, 0.95)
    with pytest.raises(ValueError, match=r"with adamw_betas=.* it leaves some parameters of a group to Adam"):
        rescale_(muon, 4)


def test_sums_is_for_normalised_momentum():
    with pytest.raises(
        ValueError, match="sums is for momentum that is normalised, of muon and signum; got like='adam'"
    ):
        register(muon_class(sums=True), like="adam", sums=True)
    with pytest.raises(ValueError, match="sums needs like='muon'"):
        register(muon_class(sums=True), sums=True, values={"lr": "eta"})
