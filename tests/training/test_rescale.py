import copy
import functools
import itertools
import math
import pickle
import warnings

import pytest
import torch
from live import ADAM, Average, net, plain, snapshot, train
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

from rootscale import RULES, ScalingWarning
from rootscale.changes import key_of
from rootscale.training import Run, rescale_

VARIANTS = {
    "Adam": lambda p: torch.optim.Adam(p, **ADAM),
    "Adam, single tensors": lambda p: torch.optim.Adam(p, **ADAM, foreach=False),
    "Adam, foreach": lambda p: torch.optim.Adam(p, **ADAM, foreach=True),
    "Adam, fused": lambda p: torch.optim.Adam(p, **ADAM, fused=True),
    "Adam, AMSGrad": lambda p: torch.optim.Adam(p, **ADAM, amsgrad=True),
    "Adam, tensor lr": lambda p: torch.optim.Adam(p, **{**ADAM, "lr": torch.tensor(1e-3, dtype=torch.float64)}),
    "Adam, L2": lambda p: torch.optim.Adam(p, **ADAM, weight_decay=0.1),
    "Adam, maximize": lambda p: torch.optim.Adam(p, **ADAM, maximize=True),
    "AdamW": lambda p: torch.optim.AdamW(p, **ADAM, weight_decay=0.1),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, **ADAM, weight_decay=0.1, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, alpha=0.99, eps=1e-8, weight_decay=0.1),
    "RMSprop, foreach": lambda p: torch.optim.RMSprop(p, lr=1e-3, alpha=0.99, eps=1e-8, weight_decay=0.1, foreach=True),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_hyperparameters_and_state_are_converted_in_place(name):
    model = net()
    optimizer = VARIANTS[name](model.parameters())
    train(model, optimizer, 5)
    state = [copy.deepcopy(s) for s in optimizer.state.values()]
    tensors = [dict(s) for s in optimizer.state.values()]
    group = dict(optimizer.param_groups[0])
    lr = float(group["lr"])

    rescale_(optimizer, 4)
    new = optimizer.param_groups[0]
    assert float(new["lr"]) == pytest.approx(2 * lr)
    assert new["eps"] == pytest.approx(5e-9)
    if "betas" in new:
        assert new["betas"] == pytest.approx((0.92, 0.996))
    else:
        assert new["alpha"] == pytest.approx(0.96)
    assert new["weight_decay"] == pytest.approx(group["weight_decay"] * (2 if "AdamW" in name else 1))
    factors = {"exp_avg": 1, "exp_avg_sq": 1 / 4, "max_exp_avg_sq": 1 / 4, "square_avg": 1 / 4, "step": 1 / 4}
    for old, held, now in zip(state, tensors, optimizer.state.values(), strict=True):
        assert set(now) <= set(factors)
        for key, value in now.items():
            assert value is held[key]
            torch.testing.assert_close(value, old[key] * factors[key], rtol=1e-12, atol=0)
    train(model, optimizer, 5)  # and it runs


@pytest.mark.parametrize("name", VARIANTS)
def test_there_and_back_is_the_same_run(name):
    losses = []
    for kappas in ([], [4, 1 / 4]):
        model = net()
        optimizer = VARIANTS[name](model.parameters())
        train(model, optimizer, 5)
        for kappa in kappas:
            rescale_(optimizer, kappa)
        losses.append(train(model, optimizer, 5, seed=1))
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


@pytest.mark.parametrize("name", VARIANTS)
def test_kappa_one_changes_nothing_to_the_bit(name):
    model = net()
    optimizer = VARIANTS[name](model.parameters())
    train(model, optimizer, 3)
    before = snapshot(optimizer, model)
    rescale_(optimizer, 1, model=model)
    assert snapshot(optimizer, model) == before


def test_sgd_follows_the_linear_rule_and_keeps_its_momentum():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True)
    train(model, optimizer, 3)
    buffers = [s["momentum_buffer"].clone() for s in optimizer.state.values()]
    changes = rescale_(optimizer, 4)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.4, 0.9, 0.1)
    assert changes.rule.name == "linear"
    for old, state in zip(buffers, optimizer.state.values(), strict=True):
        assert torch.equal(state["momentum_buffer"], old / 2)  # the noise of a sum over as many steps as before


def test_each_group_keeps_its_own_values_and_later_groups_get_the_new_defaults():
    model = net()
    groups = [
        {"params": model[0].parameters()},
        {"params": model[1].parameters(), "lr": 1e-2, "betas": (0.96, 0.99), "eps": 1e-6, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, **ADAM, weight_decay=0.1)
    changes = rescale_(optimizer, 4)
    first, second = optimizer.param_groups
    assert (first["lr"], second["lr"]) == (2e-3, 2e-2)
    assert second["betas"] == pytest.approx((0.9, 0.96))
    assert (first["weight_decay"], second["weight_decay"]) == (0.2, 0.0)
    assert changes["lr (group 1)"].after == 2e-2
    optimizer.add_param_group({"params": model[2].parameters()})
    third = optimizer.param_groups[2]
    assert {key: third[key] for key in ("lr", "betas", "eps", "weight_decay")} == {
        key: first[key] for key in ("lr", "betas", "eps", "weight_decay")
    }


def test_a_learning_rate_tensor_that_groups_share_is_converted_once():
    model, lr = net(), torch.tensor(1e-3, dtype=torch.float64)
    optimizer = torch.optim.Adam([{"params": m.parameters()} for m in model], lr=lr)
    rescale_(optimizer, 4)
    assert lr.item() == pytest.approx(2e-3)
    assert all(group["lr"] is lr for group in optimizer.param_groups)


def test_a_learning_rate_tensor_that_optimizers_share_is_converted_once():
    lr = torch.tensor(1e-3, dtype=torch.float64)
    rescale_([torch.optim.Adam(net().parameters(), lr=lr) for _ in range(2)], 4)
    assert lr.item() == pytest.approx(2e-3)


def test_betas_that_are_tensors_are_filled():
    model, betas = net(), (torch.tensor(0.98, dtype=torch.float64), torch.tensor(0.999, dtype=torch.float64))
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-3), betas=betas, foreach=False)
    rescale_(optimizer, 4)
    assert [beta.item() for beta in betas] == pytest.approx([0.92, 0.996])


def test_without_state_only_the_hyperparameters_change():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    train(model, optimizer, 3)
    before = copy.deepcopy(list(optimizer.state.values()))
    changes = rescale_(optimizer, 4, state=False)
    for old, new in zip(before, optimizer.state.values(), strict=True):
        assert all(torch.equal(old[key], new[key]) for key in old)
    assert not any(row.name.startswith("factor of") for row in changes)


def test_learning_rate_only_leaves_everything_else():
    model, ema = net(), Average(0.99)
    optimizer = torch.optim.AdamW(model.parameters(), **ADAM, weight_decay=0.1)
    train(model, optimizer, 3)
    state = copy.deepcopy(list(optimizer.state.values()))
    with pytest.warns(ScalingWarning, match="does not keep the dynamics"):
        rescale_(optimizer, 4, model=model, ema=ema, rule="sqrt-eta")
    group = optimizer.param_groups[0]
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (2e-3, (0.98, 0.999), 1e-8, 0.1)
    assert (ema.decay, model[1].momentum) == (0.99, 0.1)
    for old, new in zip(state, optimizer.state.values(), strict=True):
        assert all(torch.equal(old[key], new[key]) for key in old)


def test_the_converted_moments_are_those_of_the_larger_batch():
    """At equal gradients' noise, E[v] is sigma^2 before and sigma^2 / kappa after: no transient in the step size."""
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.zeros(20_000, dtype=torch.float64))
    optimizer = torch.optim.Adam([parameter], lr=1e-4, betas=(0.98, 0.99))

    def steps(number, sigma):
        sizes = []
        for _ in range(number):
            before = parameter.detach().clone()
            parameter.grad = sigma * torch.randn_like(parameter)
            optimizer.step()
            sizes.append((parameter.detach() - before).std().item())
        return sizes

    before = steps(1000, sigma=1.0)[-1]
    rescale_(optimizer, 4)
    after = steps(100, sigma=0.5)
    # A step of m_hat / sqrt(v_hat): std sqrt((1 - beta1) / (1 + beta1)) by Adam's stationary average of noise.
    assert before == pytest.approx(1e-4 * math.sqrt(0.02 / 1.98), rel=0.03)
    assert after[-1] == pytest.approx(2e-4 * math.sqrt(0.08 / 1.92), rel=0.03)
    # From the first step on it is on the way between the two averages; without the state it would overshoot v by 4.
    assert all(1.9 * before < size < 2.1 * after[-1] for size in after)


# ---- BatchNorm and parameter averages


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(3),
        nn.BatchNorm2d(3),
        nn.BatchNorm3d(3),
        nn.SyncBatchNorm(3),
        nn.LazyBatchNorm2d(),
        nn.InstanceNorm1d(3, track_running_stats=True),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_the_momentum_of_every_batchnorm_is_converted(layer):
    model = nn.Sequential(nn.Linear(3, 3), nn.ModuleList([layer]))
    optimizer = torch.optim.Adam(model[0].parameters())
    changes = rescale_(optimizer, 4, model=model)
    assert layer.momentum == pytest.approx(1 - 0.9**4)
    assert changes["BatchNorm momentum"].after == layer.momentum


def test_a_plain_average_stays_one_and_shared_layers_are_converted_once():
    shared, cumulative = nn.BatchNorm1d(3, momentum=0.2), nn.BatchNorm1d(3, momentum=None)
    model = nn.Sequential(nn.Linear(3, 3), shared, cumulative, shared, nn.InstanceNorm1d(3))
    rescale_(torch.optim.Adam(model[0].parameters()), 2, model=model)
    assert shared.momentum == pytest.approx(1 - 0.8**2)
    assert cumulative.momentum is None
    assert model[4].momentum == 0.1  # it keeps no statistics


@pytest.mark.parametrize(("attribute", "maker"), [("multi_avg_fn", get_ema_multi_avg_fn), ("avg_fn", get_ema_avg_fn)])
def test_torchs_exponential_averages_are_converted(attribute, maker):
    model = net()
    ema = AveragedModel(model, **{attribute: maker(0.99)})
    changes = rescale_(torch.optim.Adam(model.parameters()), 4, ema=ema)
    assert changes["EMA decay"].after == pytest.approx(0.99**4)
    with torch.no_grad():
        for parameter in ema.parameters():
            parameter.zero_()
        for parameter in model.parameters():
            parameter.fill_(1)
    ema.n_averaged.fill_(1)
    ema.update_parameters(model)
    assert next(ema.parameters()).detach().flatten()[0].item() == pytest.approx(1 - 0.99**4)


def test_anything_with_a_decay_is_a_parameter_average_and_there_may_be_several():
    one, two = Average(0.9), Average(0.99)
    rescale_(torch.optim.Adam(net().parameters()), 2, ema=[one, two])
    assert (one.decay, two.decay) == (pytest.approx(0.81), pytest.approx(0.9801))


# ---- refusals: nothing has changed


class MyAdam(torch.optim.Adam):
    def step(self, closure=None):
        return super().step(closure)


class NamedAdam(torch.optim.Adam):
    """Adam under another name is Adam."""


def test_a_subclass_that_keeps_the_step_is_accepted():
    optimizer = NamedAdam(net().parameters(), **ADAM)
    rescale_(optimizer, 4)
    assert optimizer.param_groups[0]["lr"] == 2e-3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: torch.optim.LBFGS(p), "LBFGS has no rule that keeps its dynamics: it fits a curvature"),
        (lambda p: torch.optim.Rprop(p), "Rprop has no rule that keeps its dynamics: it compares signs"),
        (lambda p: torch.optim.ASGD(p), "ASGD has no rule that keeps its dynamics"),
        (
            lambda p: MyAdam(p),
            r"got MyAdam\. .*The nearest family is 'adam', as it is a subclass of Adam with a step of its own: if its "
            r"update is that one, rootscale\.training\.register\(MyAdam, like='adam'\)",
        ),
        (lambda p: of_class("CautiousAdamW", betas=(0.9, 0.99))(p), "The nearest family is 'adamw', by its name"),
        (
            lambda p: of_class("Sophia", betas=(0.9, 0.99), rho=0.04)(p),
            r"got Sophia\. .*No family is near by its name; if its update is that of a known one, .*like='\.\.\.'\)",
        ),
        (lambda p: p, "got Parameter"),
        (lambda p: "adam", "got str"),
    ],
)
def test_other_optimizers_are_refused_by_name(make, message):
    with pytest.raises(TypeError, match=message):
        rescale_(make(net().parameters()), 2)


def of_class(name, **options):
    """A class of that name with groups that hold these options."""

    def init(self, params):
        torch.optim.Optimizer.__init__(self, params, {"lr": 1e-3, **options})

    return type(name, (torch.optim.Optimizer,), {"__init__": init, "step": lambda self: None})


class Wrapper:
    def __init__(self, optimizer):
        self.optimizer = optimizer


class SAM(torch.optim.Optimizer):
    def __init__(self, optimizer):
        super().__init__(optimizer.param_groups, {"rho": 0.05})
        self.base_optimizer = optimizer


def test_what_wraps_an_optimizer_is_refused():
    inner = torch.optim.Adam(net().parameters())
    with pytest.raises(TypeError, match=r"must be a torch\.optim\.Optimizer that is known; got Wrapper"):
        rescale_(Wrapper(inner), 2)
    with pytest.raises(TypeError, match=r"got SAM\. If it wraps another optimizer, give that one"):
        rescale_(SAM(inner), 2)


def test_a_generator_of_optimizers_is_read_once():
    one, two = (torch.optim.Adam(net().parameters(), lr=1e-3) for _ in range(2))
    rescale_((each for each in (one, two)), 4)
    assert one.param_groups[0]["lr"] == two.param_groups[0]["lr"] == 2e-3


@pytest.mark.parametrize("centered", [False, True])
def test_complex_state_is_pairs_of_numbers(centered):
    """torch's optimizers take real and imaginary parts as numbers of their own, in the second moment too."""
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.randn(5, dtype=torch.complex128))
    twin = nn.Parameter(torch.view_as_real(parameter.detach()).clone())
    optimizers = [torch.optim.RMSprop([one], lr=1e-3, centered=centered, momentum=0.9) for one in (parameter, twin)]
    for step in range(6):
        parameter.grad = torch.randn_like(parameter)
        twin.grad = torch.view_as_real(parameter.grad).clone()
        for one in optimizers:
            one.step()
            if step == 3:
                rescale_(one, 4)
    torch.testing.assert_close(torch.view_as_real(parameter.detach()), twin.detach(), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"kappa": 100, "rule": "with paper"},
            ValueError,
            r"kappa=100 gives beta1=-1; need kappa < 50, or floors, which give beta1=0\.9",
        ),
        ({"kappa": 0}, ValueError, "kappa must be a finite number > 0, got 0"),
        ({"kappa": math.nan}, ValueError, "kappa must be a finite number > 0, got nan"),
        ({"kappa": "4"}, ValueError, "kappa must be a finite number > 0, got '4'"),
        ({"rule": "cubic"}, ValueError, "rule must be one of sqrt, linear"),
        ({"rule": "with mean"}, ValueError, "averaging must be 'floor'"),
        ({"rule": 3}, ValueError, "rule must be one of sqrt, .* got 3"),
        ({"model": "net"}, TypeError, r"model must be a torch\.nn\.Module, got str"),
        ({"scheduler": "own"}, TypeError, r"use Run\(optimizer, .*scheduler=scheduler\), or make the scheduler anew"),
        ({"state": "yes"}, ValueError, "state must be True or False, got 'yes'"),
        ({"dry_run": 1}, ValueError, "dry_run must be True or False, got 1"),
        ({"loss": "total"}, ValueError, "loss must be 'mean' or 'sum'"),
        ({"batch_size": (8, 32)}, ValueError, "give either kappa or batch_size.*got both"),
        (
            {"ema": object()},
            TypeError,
            "ema must be an AveragedModel, one of EMA, .*, or have a number as its attribute decay, got object",
        ),
        ({"ema": Average(1.5)}, ValueError, r"EMA decay must be in \[0, 1\), got 1\.5"),
        (
            {"ema": "SWA"},
            TypeError,
            "with an exponential average of torch's .*an average of equal weights needs no conversion",
        ),
        ({"ema": "own"}, TypeError, r"For a function of your own, set its decay to decay \*\* run\.kappa"),
        ({"momentum": 7.0}, ValueError, r"BatchNorm momentum must be in \[0, 1\], got 7"),
    ],
)
def test_if_anything_is_refused_nothing_has_changed(options, error, message):
    model, average = net(), Average(0.9)
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    train(model, optimizer, 3)
    options = {"kappa": 4, "model": model, "ema": average, **options}
    if options.get("scheduler") == "own":
        options["scheduler"] = scheduler
    if options["ema"] == "SWA":
        options["ema"] = AveragedModel(model)
    elif options["ema"] == "own":
        options["ema"] = AveragedModel(model, avg_fn=lambda a, b, n: a)
    model[1].momentum = options.pop("momentum", 0.1)
    before = snapshot(optimizer, scheduler, model, average)
    with pytest.raises(error, match=message):
        rescale_(optimizer, options.pop("kappa"), **options)
    assert snapshot(optimizer, scheduler, model, average) == before


def test_power_averaging_has_no_largest_kappa():
    optimizer = torch.optim.Adam(net().parameters(), **ADAM)
    with pytest.warns(ScalingWarning, match="averages over less than two steps"):
        rescale_(optimizer, 100, rule="with power")
    assert optimizer.param_groups[0]["betas"] == pytest.approx((0.98**100, 0.999**100))


def test_numbers_without_a_gradient_do_not_count_where_eps_is_looked_at():
    rows = nn.Embedding(1000, 4)
    optimizer = torch.optim.Adam(rows.parameters(), lr=1e-3)
    rows(torch.arange(3)).square().sum().backward()
    optimizer.step()
    assert rescale_(optimizer, 4).warnings == ()


def test_a_second_moment_that_half_precision_has_lost_is_told():
    parameter = nn.Parameter(torch.ones(64, dtype=torch.float16))
    optimizer = torch.optim.Adam([parameter], lr=1e-3)
    parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    with pytest.warns(ScalingWarning, match="lr / eps; most of v is 0 in half precision; keep parameters and state"):
        rescale_(optimizer, 4)


def test_eps_that_dominates_is_noticed_with_its_share():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), **{**ADAM, "eps": 1e3})
    train(model, optimizer, 3)
    with pytest.warns(ScalingWarning, match=r"eps is larger than sqrt\(v\) in 29 of 29 \(100 %\) sampled coordinates"):
        rescale_(optimizer, 4)


# ---- saved and loaded


def test_a_saved_run_goes_on_as_it_was():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), **ADAM, amsgrad=True)
    train(model, optimizer, 5)
    rescale_(optimizer, 4, model=model)
    train(model, optimizer, 2)
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    expected = train(model, optimizer, 5, seed=1)

    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), **ADAM, amsgrad=True)
    rescale_(optimizer, 4, model=model)  # for BatchNorm; the optimizer's numbers come with its state
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    assert train(model, optimizer, 5, seed=1) == expected


def test_a_checkpoint_has_the_numbers_it_was_saved_with_and_nothing_else():
    """Nothing is remembered: one of before the change brings the old numbers back, whole, and is converted again."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    train(model, optimizer, 5)
    old = copy.deepcopy(optimizer.state_dict())
    rescale_(optimizer, 4)
    right = copy.deepcopy(optimizer.state_dict())
    assert right["param_groups"][0].keys() == old["param_groups"][0].keys()
    optimizer.load_state_dict(copy.deepcopy(old))
    assert plain(optimizer.state_dict()) == plain(old)
    rescale_(optimizer, 4)
    assert plain(optimizer.state_dict()) == plain(right)


def test_an_optimizer_in_a_run_is_refused_until_it_is_detached():
    optimizer = torch.optim.Adam(net().parameters(), **ADAM)
    run = Run(optimizer, tuned_at=8, batch_size=16)
    with pytest.raises(ValueError, match=r"this Adam is in a Run, .*run\.batch_size, or call run\.detach\(\)"):
        rescale_(optimizer, 4)
    run.detach()
    rescale_(optimizer, 4)
    assert optimizer.param_groups[0]["lr"] == 2e-3


def test_a_warning_that_is_turned_into_an_error_comes_before_any_change():
    optimizer = torch.optim.Adam(net().parameters(), **ADAM)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ScalingWarning, match="less than two steps"):
            rescale_(optimizer, 40, rule="with paper")
    assert optimizer.param_groups[0]["lr"] == 1e-3


def test_the_look_at_eps_copies_no_tensor():
    from rootscale.training.contract import sample as _sample

    for layout in (torch.contiguous_format, torch.channels_last):
        tensor = torch.rand(8, 4, 16, 16).to(memory_format=layout)
        few = _sample(tensor)
        assert 256 <= len(few) < 512
        assert (
            few.untyped_storage().nbytes() == tensor.untyped_storage().nbytes()
        )  # a view: nothing was made of its size
        assert few.data_ptr() == tensor.data_ptr()


def test_a_state_that_is_no_tensor_is_refused_before_any_change():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    train(model, optimizer, 2)
    optimizer.state[model[2].bias]["exp_avg"] = "two"
    with pytest.raises(TypeError, match="the optimizer's state exp_avg must be a tensor, got str"):
        rescale_(optimizer, 4)
    assert optimizer.param_groups[0]["lr"] == 1e-3


@pytest.mark.parametrize("counter", [10, torch.tensor(10)])
def test_whole_step_counters_are_rounded(counter):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    train(model, optimizer, 2)
    optimizer.state[model[2].bias]["step"] = counter
    rescale_(optimizer, 4)
    assert optimizer.state[model[2].bias]["step"] == 2
    assert isinstance(optimizer.state[model[2].bias]["step"], type(counter))


def test_adam_with_decoupled_decay_is_adamw():
    optimizer = torch.optim.Adam(net().parameters(), **ADAM, weight_decay=0.1, decoupled_weight_decay=True)
    assert rescale_(optimizer, 4)["weight_decay"].after == pytest.approx(0.2)


def test_nothing_is_hung_on_parameters():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    train(model, optimizer, 2)
    before = [sorted(vars(p)) for p in model.parameters()]
    rescale_(optimizer, 4, model=model)
    assert [sorted(vars(p)) for p in model.parameters()] == before


def test_the_changes_print_as_a_table_with_reasons():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    train(model, optimizer, 2)
    text = str(rescale_(optimizer, 4, model=model, ema=Average(0.9)))
    for expected in (
        "lr",
        "beta1",
        "factor of exp_avg_sq",
        "BatchNorm momentum",
        "EMA decay",
        "theorem",
        "derived",
    ):
        assert expected in text
    assert "kappa = 4, rule sqrt" in text


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.filterwarnings("ignore::rootscale.ScalingWarning")
def test_every_rule_converts_a_live_run_as_it_converts_a_plan(rule):
    from rootscale import Adam, Plan

    optimizer = torch.optim.Adam(net().parameters(), **ADAM)
    rescale_(optimizer, 4, rule=rule)
    on_paper = Plan(Adam(1e-3, 0.98, 0.999, 1e-8), 1).at(4, rule=rule).optimizer
    group = optimizer.param_groups[0]
    assert (group["lr"], *group["betas"], group["eps"]) == (on_paper.eta, on_paper.beta1, on_paper.beta2, on_paper.eps)


# ---- several optimizers: all or none


class Pair:
    """Two nets with a BatchNorm layer each, optimizers of two families, a shared average of the weights."""

    def __init__(self, steps=3):
        self.nets = [net(), net()]
        first = torch.optim.Adam(self.nets[0].parameters(), **ADAM, amsgrad=True)
        second = torch.optim.RMSprop(
            [{"params": self.nets[1][0].parameters()}, {"params": self.nets[1][1:].parameters(), "lr": 1e-2}],
            lr=1e-3,
            alpha=0.99,
        )
        self.optimizers = [first, second]
        self.average = Average(0.9)
        for model, optimizer in zip(self.nets, self.optimizers, strict=True):
            train(model, optimizer, steps)

    def snapshot(self):
        return snapshot(*self.optimizers, *self.nets, self.average)

    def rescale(self, kappa=4, **options):
        settings = {"model": self.nets, "ema": self.average, **options}
        return rescale_(self.optimizers, kappa, **settings)


@pytest.mark.parametrize("rule", [None, "with power"])
def test_two_optimizers_at_once_are_each_alone(rule):
    together, apart = Pair(), Pair()
    changes = together.rescale(rule=rule)
    alone = [
        rescale_(optimizer, 4, model=model, ema=ema, rule=rule)
        for optimizer, model, ema in zip(apart.optimizers, apart.nets, (apart.average, None), strict=True)
    ]
    assert together.snapshot() == apart.snapshot()
    for i, ones in enumerate(alone):
        for row in ones:
            if row.name == "BatchNorm momentum":  # two layers in one row
                assert (changes[row.name].after, changes[row.name].note) == (row.after, "2 layers")
            elif row.name == "EMA decay":
                assert changes[row.name] == row
            else:
                named = changes[f"optimizer {i}: {row.name}"]
                assert (named.before, named.after, named.unit, named.note) == (
                    row.before, row.after, row.unit, row.note,
                )  # fmt: skip
    assert len(changes) == sum(map(len, alone)) - 1
    for one, other in zip(together.optimizers, apart.optimizers, strict=True):
        assert type(one) is type(other)
    for i in range(2):  # and they go on alike
        losses = [train(pair.nets[i], pair.optimizers[i], 3, seed=1) for pair in (together, apart)]
        assert losses[0] == losses[1]


def test_what_is_given_once_is_converted_once():
    pair = Pair()
    shared = nn.Sequential(*pair.nets, pair.nets[0])
    changes = pair.rescale(model=[shared, pair.nets[1]])
    assert [model[1].momentum for model in pair.nets] == [pytest.approx(1 - 0.9**4)] * 2
    assert pair.average.decay == pytest.approx(0.9**4)
    assert changes["BatchNorm momentum"].note == "2 layers"
    names = [row.name for row in changes]
    assert len(set(names)) == len(names)
    assert names.count("BatchNorm momentum") == names.count("EMA decay") == 1


def test_optimizers_of_other_families_follow_their_own_rules():
    models = [net(), net(), net()]
    optimizers = [
        torch.optim.AdamW(models[0].parameters(), **ADAM),
        torch.optim.RMSprop(models[1].parameters(), lr=1e-3),
        torch.optim.SGD(models[2].parameters(), lr=0.1),
    ]
    ema = Average(0.9)
    changes = rescale_(tuple(optimizers), 4, model=models, ema=ema)
    assert [optimizer.param_groups[0]["lr"] for optimizer in optimizers] == [2e-3, 2e-3, 0.4]
    assert changes["optimizer 2: lr"].after == 0.4
    assert changes.rule.name == "sqrt (optimizer 0, optimizer 1), linear (optimizer 2)"
    assert "kappa = 4, rule sqrt (optimizer 0, optimizer 1), linear (optimizer 2)" in str(changes)
    assert "Measured in mid-run at 4 times the batch" in str(changes)
    assert "No switch of SGD by the rule linear was measured in training" in str(changes)
    assert (ema.decay, models[2][1].momentum) == (pytest.approx(0.9**4), pytest.approx(1 - 0.9**4))
    assert changes["EMA decay"].status == "derived"


def test_a_sequence_of_one_is_one():
    runs = []
    for several in (False, True):
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), **ADAM)
        train(model, optimizer, 3)
        runs.append((rescale_([optimizer] if several else optimizer, 4), snapshot(optimizer)))
    assert runs[0] == runs[1]


def unknown(pair):
    pair.optimizers[1] = torch.optim.Adadelta(pair.nets[1].parameters())


def no_tensor(pair):
    pair.optimizers[1].state[pair.nets[1][2].bias]["square_avg"] = "two"


def whole_numbers(pair):
    pair.optimizers[1].state[pair.nets[1][2].bias]["square_avg"] = torch.tensor(2)


def short_average(pair):
    pair.optimizers[1].param_groups[1]["alpha"] = 0.5
    return {"rule": "with paper"}


def shared_rate(pair):
    lr = torch.tensor(0.1)
    pair.optimizers[0].param_groups[0]["lr"] = lr
    pair.optimizers[1] = torch.optim.SGD(pair.nets[1].parameters(), lr=lr)


class ReadOnly:
    decay = property(lambda self: 0.9)


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (unknown, TypeError, "^optimizer 1: Adadelta has no rule that keeps its dynamics: it has one eps"),
        (no_tensor, TypeError, "^optimizer 1: the optimizer's state square_avg must be a tensor, got str"),
        (whole_numbers, TypeError, r"^optimizer 1: .*state square_avg must be .*floating.*, got torch\.int64"),
        (short_average, ValueError, "^optimizer 1: kappa=4 gives alpha=-1; need kappa < 2"),
        (shared_rate, ValueError, "^optimizers 0 and 1 share a tensor as their lr, but their rules convert it"),
        (lambda pair: pair.optimizers.append(pair.optimizers[0]), ValueError, "^optimizer 2 is optimizer 0 again"),
        (lambda pair: {"rule": "cubic"}, ValueError, "rule must be one of sqrt, linear"),
        (lambda pair: {"model": [pair.nets[0], "net"]}, TypeError, r"^model must be a torch\.nn\.Module, got str"),
        (lambda pair: {"ema": [pair.average, object()]}, TypeError, "^ema must be an AveragedModel, .*got object"),
        (lambda pair: {"ema": [pair.average, ReadOnly()]}, TypeError, "^the decay of ReadOnly cannot be set"),
        (lambda pair: {"forward_kappa": 0}, ValueError, "^forward_kappa must be a finite number > 0, got 0"),
    ],
)
def test_an_error_in_one_of_several_leaves_all_of_them_untouched(spoil, error, message):
    pair = Pair()
    options = spoil(pair) or {}
    before = pair.snapshot()
    with pytest.raises(error, match=message):
        pair.rescale(**options)
    assert pair.snapshot() == before


def test_no_optimizer_at_all_is_refused():
    with pytest.raises(ValueError, match="optimizer must be an optimizer or a sequence of them, got an empty list"):
        rescale_([], 4, model=net())


def test_warnings_say_which_of_several_and_come_before_any_change():
    pair = Pair()
    pair.optimizers[1].param_groups[0]["alpha"] = 0.8
    before = pair.snapshot()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ScalingWarning, match=r"^optimizer 1: kappa \* \(1 - beta2\) = 0\.8 is outside"):
            pair.rescale(rule="with paper")
    assert pair.snapshot() == before
    torch.optim.lr_scheduler.StepLR(pair.optimizers[0], 10)
    with pytest.warns(ScalingWarning) as caught:
        changes = pair.rescale(rule="with paper")
    assert [str(one.message) for one in caught] == list(changes.warnings)
    assert changes.warnings[0].startswith("optimizer 0: a scheduler drives this Adam and will set its old learning")
    assert changes.warnings[1].startswith("optimizer 1: kappa * (1 - beta2)")
    assert len(changes.warnings) == 2


def test_a_dry_run_says_what_would_change_and_changes_nothing():
    pair = Pair()
    before = pair.snapshot()
    foreseen = pair.rescale(dry_run=True)
    assert pair.snapshot() == before
    assert pair.rescale() == foreseen
    with pytest.raises(ValueError, match="optimizer 0: kappa=100 gives beta1"):
        pair.rescale(100, dry_run=True, rule="with paper")


@pytest.mark.parametrize(("kappa", "forward"), [(4, 2), (4, 1), (1, 4)])
def test_batchnorm_counts_forward_passes(kappa, forward):
    """Part of the change is accumulation, or all of it, or micro-batches have grown at the cost of accumulation."""
    model, ema = net(), Average(0.9)
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    rescale_(optimizer, kappa, model=model, ema=ema, forward_kappa=forward)
    assert model[1].momentum == (pytest.approx(1 - 0.9**forward) if forward > 1 else 0.1)
    assert ema.decay == pytest.approx(0.9**kappa)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * kappa**0.5)


# ---- on a GPU


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "options", [{"capturable": True}, {"fused": True}, {"foreach": True}, {"capturable": True, "amsgrad": True}]
)
def test_on_a_gpu_the_state_is_converted_in_place(options):
    model = net().cuda().float()
    lr = 1e-3 if "foreach" in options else torch.tensor(1e-3, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.98, 0.999), **options)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    held = [dict(state) for state in optimizer.state.values()]
    v, steps = ([state[key].clone() for state in optimizer.state.values()] for key in ("exp_avg_sq", "step"))
    rescale_(optimizer, 4)
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(2e-3)
    for before, old_v, old_step, state in zip(held, v, steps, optimizer.state.values(), strict=True):
        assert all(state[key] is before[key] for key in before)
        torch.testing.assert_close(state["exp_avg_sq"], old_v / 4)
        torch.testing.assert_close(state["step"], old_step / 4)
    optimizer.step()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_captured_graph_sees_the_new_learning_rate_and_state():
    parameter = nn.Parameter(torch.zeros(4, device="cuda"))
    parameter.grad = torch.ones_like(parameter)
    lr = torch.tensor(1e-3, device="cuda")
    optimizer = torch.optim.Adam([parameter], lr=lr, betas=(0.98, 0.999), capturable=True)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            optimizer.step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    rescale_(optimizer, 4)
    step = optimizer.state[parameter]["step"].item()
    before = parameter.detach().clone()
    graph.replay()
    torch.cuda.synchronize()
    assert lr.item() == pytest.approx(2e-3)
    assert optimizer.state[parameter]["step"].item() == pytest.approx(step + 1)
    assert (parameter.detach() - before).abs().min() > 0


def test_a_default_that_no_group_uses_does_not_stand_in_the_way():
    model = net()
    optimizer = torch.optim.Adam([{"params": model.parameters(), "betas": (0.99, 0.999)}], lr=1e-3)
    rescale_(optimizer, 16, rule="with paper")
    assert optimizer.param_groups[0]["betas"] == pytest.approx((0.84, 0.984))
    assert optimizer.defaults["betas"] == (0.9, 0.999)  # torch's, which has no value at 16
    assert optimizer.defaults["lr"] == pytest.approx(4e-3)


class Other(torch.Tensor):
    """Tensors that torch takes in no list with ordinary ones, as DTensors."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch._foreach_mul_ and len({type(one) for one in args[0]}) > 1:
            raise RuntimeError("got mixed torch.Tensor and DTensor")
        return super().__torch_function__(function, types, args, kwargs or {})


def test_a_state_of_tensors_of_several_kinds_is_converted():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.98, 0.999))
    train(model, optimizer, 2)
    states = list(optimizer.state.values())
    states[0]["exp_avg_sq"] = states[0]["exp_avg_sq"].as_subclass(Other)
    before = [state["exp_avg_sq"].clone() for state in states]
    rescale_(optimizer, 4)
    for state, old in zip(states, before, strict=True):
        torch.testing.assert_close(state["exp_avg_sq"], old / 4, rtol=0, atol=0)


def test_an_average_by_a_function_of_ones_own_is_refused_with_advice():
    average = functools.partial(lambda mean, value, n, decay: decay * mean + (1 - decay) * value, decay=0.9)
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.98, 0.999))
    with pytest.raises(TypeError, match=r"For a function of your own, set its decay to decay \*\* run\.kappa"):
        rescale_(optimizer, 4, ema=AveragedModel(model, avg_fn=average))


def half_precision(dtype, v):
    parameter = nn.Parameter(torch.zeros(1000, dtype=dtype))
    parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.Adam([parameter], lr=1e-3, betas=(0.98, 0.999), eps=1e-12)
    optimizer.step()
    optimizer.state[parameter]["exp_avg_sq"] = torch.tensor(v, dtype=dtype).repeat(1000 // len(v))
    return optimizer, parameter


def test_a_half_precision_state_that_becomes_zero_is_counted():
    """6e-8 is the smallest float16: 1e-7 / 16 is nothing there, 1e-3 / 16 is. Zeros do not count."""
    optimizer, parameter = half_precision(torch.float16, [1e-7, 1e-3, 1e-3, 0.0])
    with pytest.warns(
        ScalingWarning, match=r"exp_avg_sq is kept in float16, and 84 of 250 \(34 %\) .*become 0 .*float32 or bfloat16"
    ):
        rescale_(optimizer, 16)
    assert (optimizer.state[parameter]["exp_avg_sq"][1::4] > 0).all()


def test_a_half_precision_state_that_becomes_infinite_is_counted():
    optimizer, _ = half_precision(torch.float16, [4e4, 1.0])
    with pytest.warns(
        ScalingWarning, match=r"\(50 %\) sampled values other than 0 become infinite when multiplied by 16"
    ):
        rescale_(optimizer, 1 / 16)


def test_a_run_counts_what_half_precision_loses_before_it_is_lost():
    optimizer, _ = half_precision(torch.float16, [1e-7, 1e-3, 1e-3, 0.0])
    with pytest.warns(ScalingWarning, match=r"84 of 250 \(34 %\) sampled values other than 0 become 0"):
        Run(optimizer, tuned_at=8, batch_size=128)


def test_half_precision_state_without_gradients_is_not_what_is_lost(recwarn):
    optimizer, _ = half_precision(torch.bfloat16, [0.0, 0.0, 0.0, 1e-3])
    run = Run(optimizer, tuned_at=8, batch_size=128)
    run.batch_size = 16
    assert not [one for one in recwarn if "is kept in" in str(one.message)]


def test_eps_is_compared_with_v_in_the_units_of_the_same_batch_size():
    """sqrt(v_hat) is 2 eps at every batch size, as both follow it."""
    parameter = nn.Parameter(torch.zeros(100, dtype=torch.float64))
    parameter.grad = torch.full_like(parameter, 2e-6)
    optimizer = torch.optim.Adam([parameter], lr=1e-3, betas=(0.98, 0.999), eps=1e-6)
    for _ in range(16):
        optimizer.step()
    run = Run(optimizer, tuned_at=8)
    for size in (128, 32, 8, 2, 32, 64):
        run.batch_size = size
    assert not run.warnings


@pytest.mark.parametrize(
    ("dtype", "options"), [(torch.bfloat16, {}), (torch.float32, {}), (torch.float16, {"state": False})]
)
def test_a_state_that_keeps_its_range_is_not_warned_about(dtype, options):
    optimizer, _ = half_precision(dtype, [1e-7, 1e-3])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rescale_(optimizer, 16, **options)


def test_default_betas_stop_at_their_floors_and_m_follows():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    held = [(state["exp_avg"].clone(), state["exp_avg_sq"].clone()) for state in optimizer.state.values()]
    changes = rescale_(optimizer, 16)
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.9)
    factor = math.sqrt(1 / 16)
    assert changes["factor of exp_avg"].after == pytest.approx(factor, rel=1e-12)
    assert [changes[name].status for name in ("beta1", "beta2", "factor of exp_avg")] == [
        "measured", "measured", "derived",
    ]  # fmt: skip
    for (m, v), state in zip(held, optimizer.state.values(), strict=True):
        torch.testing.assert_close(state["exp_avg"], m * factor)
        torch.testing.assert_close(state["exp_avg_sq"], v / 16)


@pytest.mark.parametrize("way", [(16, 1 / 16), (4, 4, 1 / 16), (16, 1 / 4, 1 / 4), (1 / 4, 4), (1 / 16, 4, 4)])
def test_the_way_back_over_floors_leads_to_the_first_betas_and_state(way):
    model = net().double()
    betas = itertools.cycle([(0.9, 0.95), (0.5, 0.95)])
    groups = [{"params": [parameter], "betas": next(betas)} for parameter in model.parameters()]
    optimizer = torch.optim.Adam(groups, lr=1e-3)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict())
    run = Run(optimizer, tuned_at=8)
    for kappa in way:
        run.batch_size *= kappa
        assert plain(optimizer.state_dict()["param_groups"]) == plain(before["param_groups"])
    after = optimizer.state_dict()
    for old, new in zip(before["param_groups"], after["param_groups"], strict=True):
        assert new["betas"] == pytest.approx(old["betas"], rel=1e-12)
    for key, state in before["state"].items():
        torch.testing.assert_close(after["state"][key]["exp_avg"], state["exp_avg"], rtol=1e-12, atol=0)


def test_a_weight_that_was_set_anew_is_not_taken_for_one_that_a_floor_has_stopped():
    """A cycle of beta1 was below the floor when the batch changed, and is above it when it changes again."""
    optimizer = torch.optim.Adam(net().parameters(), lr=1e-3, betas=(0.88, 0.999))
    rescale_(optimizer, 2)
    optimizer.param_groups[0]["betas"] = (0.95, 0.998)
    rescale_(optimizer, 1.5)
    assert optimizer.param_groups[0]["betas"] == pytest.approx((0.925, 0.997))


def test_up_in_two_changes_is_up_in_one():
    results = []
    for way in ((16,), (4, 4), (1.5, 32 / 3)):
        model = net().double()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        for kappa in way:
            rescale_(optimizer, kappa)
        state = next(iter(optimizer.state.values()))
        results.append((optimizer.param_groups[0]["betas"], float(state["exp_avg"].sum())))
    assert results[1] == (pytest.approx(results[0][0]), pytest.approx(results[0][1], rel=1e-12))
    assert results[2][0] == pytest.approx(results[0][0])


def test_what_is_left_has_keys_by_which_a_tool_knows_what_it_does_itself():
    optimizer = torch.optim.Adam(nn.Linear(2, 1).parameters())
    left = rescale_(optimizer, 4, clip=1.0).remaining  # the clip was asked for, and is in the changes
    assert [key_of(text) for text in left if key_of(text)] == ["batch size", "steps"]
    left = rescale_(optimizer, 4).remaining
    assert [key_of(text) for text in left if key_of(text)] == ["batch size", "steps", "clip"]
    for copied in (copy.deepcopy(left), pickle.loads(pickle.dumps(left))):
        assert copied == left
        assert [key_of(text) for text in copied] == [key_of(text) for text in left]
    assert key_of("words alone") == ""
