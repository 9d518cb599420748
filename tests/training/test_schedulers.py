"""Every scheduler of torch, converted before the run or in its middle, gives the rule's learning rate at equal time."""

import copy
import functools
import io
import itertools
import math
import pickle
import warnings
from dataclasses import replace

import pytest
import torch
from torch.optim import lr_scheduler as lrs
from torch.optim.swa_utils import SWALR

from rootscale import RULES, ScalingWarning
from rootscale.training import register, rescale_, restore_, track_

STEPS = 96  # of the base run; divisible by the kappas below


class Halving(lrs.LRScheduler):
    """A user's scheduler, with a recursion and an absolute learning rate of its own."""

    def get_lr(self):
        if self.last_epoch % 20 or not self.last_epoch:
            return [group["lr"] for group in self.optimizer.param_groups]
        return [max(group["lr"] / 2, 3e-4) for group in self.optimizer.param_groups]


def warm_cosine(opt):
    first = lrs.LinearLR(opt, start_factor=0.01, total_iters=10)
    return lrs.SequentialLR(opt, [first, lrs.CosineAnnealingLR(opt, T_max=86, eta_min=1e-5)], milestones=[10])


# Every public scheduler of torch.optim.lr_scheduler, with absolute learning rates wherever there are any.
SCHEDULERS = {
    "LambdaLR": lambda opt: lrs.LambdaLR(opt, lambda k: 0.95**k + 0.1 * math.sin(k) ** 2),
    "MultiplicativeLR": lambda opt: lrs.MultiplicativeLR(opt, lambda k: 1 - 1 / (k + 3)),
    "StepLR": lambda opt: lrs.StepLR(opt, step_size=7, gamma=0.8),
    "MultiStepLR": lambda opt: lrs.MultiStepLR(opt, milestones=[5, 33, 34, 80], gamma=0.5),
    "ConstantLR": lambda opt: lrs.ConstantLR(opt, factor=0.3, total_iters=29),
    "LinearLR": lambda opt: lrs.LinearLR(opt, start_factor=0.1, end_factor=0.7, total_iters=50),
    "ExponentialLR": lambda opt: lrs.ExponentialLR(opt, gamma=0.97),
    "SequentialLR": warm_cosine,
    "CosineAnnealingLR": lambda opt: lrs.CosineAnnealingLR(opt, T_max=40, eta_min=1e-4),
    "ChainedScheduler": lambda opt: lrs.ChainedScheduler(
        [lrs.ConstantLR(opt, factor=0.1, total_iters=13), lrs.ExponentialLR(opt, gamma=0.99)], optimizer=opt
    ),
    "CyclicLR": lambda opt: lrs.CyclicLR(
        opt, base_lr=1e-4, max_lr=2e-3, step_size_up=11, step_size_down=17, base_momentum=0.97, max_momentum=0.99
    ),
    "CosineAnnealingWarmRestarts": lambda opt: lrs.CosineAnnealingWarmRestarts(opt, T_0=10, T_mult=2, eta_min=1e-5),
    "OneCycleLR": lambda opt: lrs.OneCycleLR(
        opt, max_lr=5e-3, total_steps=STEPS, base_momentum=0.97, max_momentum=0.99, three_phase=True
    ),
    "PolynomialLR": lambda opt: lrs.PolynomialLR(opt, total_iters=70, power=1.7),
    # not in that list, but schedulers all the same
    "SWALR": lambda opt: SWALR(opt, swa_lr=2e-4, anneal_epochs=30),
    "user's own": Halving,
    "nested twice": lambda opt: lrs.ChainedScheduler([lrs.StepLR(opt, 30, 0.5), warm_cosine(opt)], optimizer=opt),
    "sequence with OneCycleLR": lambda opt: lrs.SequentialLR(
        opt,
        [lrs.ConstantLR(opt, 0.2, 5), lrs.OneCycleLR(opt, 4e-3, total_steps=STEPS - 10, cycle_momentum=False)],
        milestones=[10],
    ),
}


def test_the_table_has_every_scheduler_of_torch():
    public = {name for name in lrs.__all__ if issubclass(getattr(lrs, name), lrs.LRScheduler)}
    assert public - {"LRScheduler", "ReduceLROnPlateau"} <= set(SCHEDULERS)


def make(name, lr=1e-3, cls=torch.optim.Adam):
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(2)]
    groups = [
        {"params": parameters[:1]},
        {"params": parameters[1:], "lr": lr if isinstance(lr, torch.Tensor) else 3 * lr},
    ]
    optimizer = cls(groups, lr=lr, betas=(0.98, 0.999))
    return optimizer, SCHEDULERS[name](optimizer)


def advance(optimizer, scheduler, steps):
    """Learning rates and beta1 of both groups after each of the steps; only the first has gradients, for a state."""
    seen = []
    for step in range(steps):
        for parameter in itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups):
            parameter.grad = None if step else torch.ones_like(parameter)
        optimizer.step()
        scheduler.step()
        seen.append([(float(group["lr"]), group["betas"][0]) for group in optimizer.param_groups])
    return torch.tensor(seen, dtype=torch.float64)


@functools.cache
def unconverted(name):
    return advance(*make(name), STEPS)


@pytest.mark.parametrize("start", [0, 1, 23, 48])
@pytest.mark.parametrize("kappa", [1 / 3, 1 / 2, 2, 4, 16])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_learning_rate_is_the_rules_multiple_at_equal_time(name, kappa, start):
    base = unconverted(name)
    optimizer, scheduler = make(name)
    advance(optimizer, scheduler, start)
    rescale_(optimizer, kappa, scheduler=scheduler)
    converted = advance(optimizer, scheduler, int((STEPS - start) / kappa))

    if kappa >= 1:  # every step of the converted run ends at a step of the base run
        there, here = base[start + int(kappa) - 1 :: int(kappa)][: len(converted)], converted
    else:  # every step of the base run ends at a step of the converted one
        every = round(1 / kappa)
        there, here = base[start:], converted[every - 1 :: every]
    assert len(here) == len(there) > 2
    torch.testing.assert_close(here[..., 0], there[..., 0] * kappa**0.5, rtol=1e-9, atol=0)
    paper = 1 - (1 - there[..., 1]) * kappa
    torch.testing.assert_close(1 - here[..., 1], 1 - paper.clamp(min=0.9), rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_there_and_back_is_the_run_that_was_never_converted(name):
    base = unconverted(name)[:40]
    optimizer, scheduler = make(name)
    cls = type(scheduler)
    advance(optimizer, scheduler, 8)
    rescale_(optimizer, 4, scheduler=scheduler)
    advance(optimizer, scheduler, 4)
    rescale_(optimizer, 1 / 4, scheduler=scheduler)
    assert type(scheduler) is cls
    torch.testing.assert_close(advance(optimizer, scheduler, 16), base[24:], rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_two_changes_are_one_change_by_their_product(name):
    runs = []
    for kappas in ([8], [2, 4]):
        optimizer, scheduler = make(name)
        advance(optimizer, scheduler, 16)
        for kappa in kappas:
            rescale_(optimizer, kappa, scheduler=scheduler)
        runs.append(advance(optimizer, scheduler, 9))
    torch.testing.assert_close(*runs, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_saved_and_loaded_run_goes_on_as_if_nothing_had_happened(name):
    optimizer, scheduler = make(name)
    advance(optimizer, scheduler, 20)
    rescale_(optimizer, 4, scheduler=scheduler)
    advance(optimizer, scheduler, 3)
    file = io.BytesIO()
    torch.save([optimizer.state_dict(), scheduler.state_dict()], file)
    expected = advance(optimizer, scheduler, 10)

    optimizer, scheduler = make(name)
    rescale_(optimizer, 4, scheduler=scheduler)  # the switch came before the checkpoint: so does it here
    file.seek(0)
    saved = torch.load(
        file, weights_only=name != "user's own" and "Lambda" not in name and "Multiplicative" not in name
    )
    optimizer.load_state_dict(saved[0])
    scheduler.load_state_dict(saved[1])
    assert torch.equal(advance(optimizer, scheduler, 10), expected)


def test_a_checkpoint_from_before_the_switch_needs_the_way_back():
    optimizer, scheduler = make("CosineAnnealingLR")
    advance(optimizer, scheduler, 20)
    saved = copy.deepcopy([optimizer.state_dict(), scheduler.state_dict()])
    expected = advance(optimizer, scheduler, 10)
    rescale_(optimizer, 4, scheduler=scheduler)
    for one, state in zip((optimizer, scheduler), saved, strict=True):
        with pytest.raises(ValueError, match=r"converted by kappa = 4, and the state was saved at kappa = 1: swap"):
            one.load_state_dict(state)
    rescale_(optimizer, 1 / 4, scheduler=scheduler)
    assert type(scheduler) is lrs.CosineAnnealingLR
    optimizer.load_state_dict(saved[0])
    scheduler.load_state_dict(saved[1])
    assert torch.equal(advance(optimizer, scheduler, 10), expected)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_converted_checkpoint_in_an_ordinary_scheduler_makes_no_step_before_it_is_restored(name):
    optimizer, scheduler = make(name)
    advance(optimizer, scheduler, 20)
    rescale_(optimizer, 4, scheduler=scheduler)
    advance(optimizer, scheduler, 3)
    saved = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
    expected = advance(optimizer, scheduler, 10)

    optimizer, scheduler = make(name)
    optimizer.load_state_dict(saved[0])
    scheduler.load_state_dict(copy.deepcopy(saved[1]))  # torch's CyclicLR takes entries out of what it loads
    with pytest.raises(TypeError):  # also where rootscale is not imported
        scheduler.step(*((1.0,) if isinstance(scheduler, lrs.ReduceLROnPlateau) else ()))
    optimizer, scheduler = make(name)
    optimizer.load_state_dict(saved[0])
    scheduler.load_state_dict(saved[1])
    with pytest.raises(ValueError, match=r"call rootscale.training.restore_\(optimizer, scheduler=scheduler\)"):
        optimizer.step()
    with pytest.raises(ValueError, match=r"converted already, to kappa = 4: call rootscale.training.restore_\("):
        rescale_(optimizer, 2, scheduler=scheduler)
    restore_(optimizer, scheduler=scheduler)
    assert torch.equal(advance(optimizer, scheduler, 10), expected)


@pytest.mark.parametrize("copy_of", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_converted_scheduler_can_be_copied_and_pickled(copy_of):
    optimizer, scheduler = make("StepLR")
    advance(optimizer, scheduler, 5)
    del optimizer.step  # torch's schedulers put a local function there, which no optimizer can be pickled with
    rescale_(optimizer, 4, scheduler=scheduler)
    optimizer, scheduler = copy_of((optimizer, scheduler))
    assert isinstance(scheduler, lrs.StepLR)
    assert advance(optimizer, scheduler, 3)[-1, 0, 0] == pytest.approx(2e-3 * 0.8**2)


def test_get_last_lr_is_the_learning_rate_in_use():
    optimizer, scheduler = make("SequentialLR")
    advance(optimizer, scheduler, 20)
    rescale_(optimizer, 4, scheduler=scheduler)
    assert scheduler.get_last_lr() == [group["lr"] for group in optimizer.param_groups]
    advance(optimizer, scheduler, 3)
    assert scheduler.get_last_lr() == [group["lr"] for group in optimizer.param_groups]


def test_a_learning_rate_that_someone_else_changes_stays_changed():
    optimizer, scheduler = make("ExponentialLR")
    rescale_(optimizer, 4, scheduler=scheduler)
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
    assert advance(optimizer, scheduler, 1)[0, 0, 0] == pytest.approx(2e-3 * 0.5 * 0.97**4, rel=1e-12)


def test_a_scheduler_that_leaves_the_learning_rate_alone_leaves_it_to_the_bit():
    optimizer, scheduler = make("ConstantLR")
    advance(optimizer, scheduler, 29)
    rescale_(optimizer, 3, scheduler=scheduler)
    before = [group["lr"] for group in optimizer.param_groups]
    advance(optimizer, scheduler, 50)
    assert [group["lr"] for group in optimizer.param_groups] == before


def test_an_epoch_scheduler_keeps_its_clock():
    optimizer, scheduler = make("StepLR")
    changes = rescale_(optimizer, 4, scheduler=scheduler, interval="epoch")
    assert changes["StepLR clock"].after == 1
    assert advance(optimizer, scheduler, 7)[-2:, 0, 0].tolist() == pytest.approx([2e-3, 2e-3 * 0.8])


def test_an_explicit_epoch_is_passed_on():
    optimizer, scheduler = make("CosineAnnealingWarmRestarts")
    rescale_(optimizer, 4, scheduler=scheduler)
    scheduler.step(2.5)
    assert scheduler.last_epoch == 2
    assert scheduler.T_cur == 2.5


def test_reduce_on_plateau_counts_reports_and_keeps_its_lowest_rate_in_units():
    optimizer = make("ConstantLR")[0]
    for group in optimizer.param_groups:
        group["lr"] = 1e-3
    scheduler = lrs.ReduceLROnPlateau(optimizer, factor=0.1, patience=1, min_lr=2e-4)
    changes = rescale_(optimizer, 4, scheduler=scheduler)
    assert changes["ReduceLROnPlateau clock"].after == 1
    rates = []
    for _ in range(4):
        scheduler.step(1.0)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([2e-3, 2e-3, 4e-4, 4e-4])


def test_one_cycle_ends_where_it_ends_and_refuses_after_it():
    optimizer, scheduler = make("OneCycleLR")
    rescale_(optimizer, 10, scheduler=scheduler)  # 96 steps are 9.6 of ten
    advance(optimizer, scheduler, 10)
    assert scheduler.last_epoch == STEPS
    with pytest.raises(ValueError, match="total steps"):
        scheduler.step()


def test_tensor_learning_rates_stay_the_same_tensors():
    optimizer, scheduler = make("CosineAnnealingLR", lr=torch.tensor(1e-3))
    held = [group["lr"] for group in optimizer.param_groups]
    base = advance(*make("CosineAnnealingLR", lr=torch.tensor(1e-3)), 40)
    advance(optimizer, scheduler, 8)
    rescale_(optimizer, 4, scheduler=scheduler)
    after = advance(optimizer, scheduler, 8)
    assert all(group["lr"] is tensor for group, tensor in zip(optimizer.param_groups, held, strict=True))
    torch.testing.assert_close(after[..., 0], 2 * base[11::4, :, 0], rtol=2e-6, atol=0)


def test_a_scheduler_of_another_optimizer_is_refused():
    optimizer, _ = make("StepLR")
    _, scheduler = make("StepLR")
    with pytest.raises(ValueError, match="StepLR belongs to another optimizer"):
        rescale_(optimizer, 2, scheduler=scheduler)


def test_something_that_is_no_scheduler_is_refused_with_advice():
    optimizer, _ = make("StepLR")
    with pytest.raises(TypeError, match=r"got dict; for another kind, make it anew .*Plan\.at"):
        rescale_(optimizer, 2, scheduler={"a": 1})


def test_a_scheduler_that_was_forgotten_is_warned_about():
    optimizer, _ = make("StepLR")
    with pytest.warns(ScalingWarning, match="a scheduler drives this optimizer but was not given"):
        rescale_(optimizer, 2)


def test_cycled_beta1_is_guarded_at_its_lowest_value():
    optimizer, scheduler = make("CyclicLR")
    with (
        pytest.raises(ValueError, match=r"CyclicLR's lowest beta1=-0\.2; need kappa < 33\.3333"),
        warnings.catch_warnings(),
    ):
        rescale_(optimizer, 40, scheduler=scheduler, rule="with paper")
    assert type(scheduler) is lrs.CyclicLR
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-4)


@pytest.mark.parametrize("name", ["OneCycleLR", "CyclicLR", "SequentialLR", "user's own"])
def test_sgd_has_the_linear_rule_and_keeps_the_momentum_that_is_cycled(name):
    def run(steps, kappa=None, at=24):
        parameter = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([parameter], lr=1e-3, momentum=0.9)
        scheduler, seen = SCHEDULERS[name](optimizer), []
        for k in range(steps):
            if k == at and kappa:
                rescale_(optimizer, kappa, scheduler=scheduler)
            optimizer.step()
            scheduler.step()
            seen.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]))
        return torch.tensor(seen, dtype=torch.float64)

    base, converted = run(STEPS), run(24 + 18, kappa=4)
    torch.testing.assert_close(converted[24:, 0], 4 * base[27::4, 0], rtol=1e-9, atol=0)
    torch.testing.assert_close(converted[24:, 1], base[27::4, 1], rtol=1e-12, atol=0)


def adam(betas=(0.98, 0.999)):
    return torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))], lr=1e-3, betas=betas)


def test_rows_left_out_one_after_the_other_are_the_rows_left_out_at_once():
    twice, once = RULES["sqrt"].without("beta2").without("v"), RULES["sqrt"].without("beta2", "v")
    assert twice == once
    optimizer = adam()
    scheduler = lrs.CosineAnnealingLR(optimizer, 100)
    with pytest.warns(ScalingWarning, match="without beta2, v"):
        rescale_(optimizer, 4, scheduler=scheduler, rule=twice)
    advance(optimizer, scheduler, 2)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(2e-3 * 0.5 * (1 + math.cos(math.pi * 8 / 100)))


def test_a_rule_whose_name_is_not_its_own_is_refused_before_any_change():
    for rule in (replace(RULES["sqrt"], key="mine"), replace(RULES["sqrt"], key="linear")):
        optimizer = adam()
        scheduler = lrs.CosineAnnealingLR(optimizer, 100)
        with pytest.raises(ValueError, match="a scheduler keeps its rule by name"):
            rescale_(optimizer, 4, scheduler=scheduler, rule=rule)
        assert optimizer.param_groups[0]["lr"] == 1e-3
        assert type(scheduler) is lrs.CosineAnnealingLR


def test_the_lowest_beta1_of_a_cycle_is_judged_in_the_units_of_now():
    optimizer = adam((0.9, 0.999))
    scheduler = lrs.CyclicLR(optimizer, 1e-4, 1e-3)
    rescale_(optimizer, 1 / 8, scheduler=scheduler, rule="with paper")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScalingWarning)
        rescale_(optimizer, 8, scheduler=scheduler, rule="with paper")
    assert type(scheduler) is lrs.CyclicLR
    with pytest.raises(ValueError, match="lowest beta1"):
        rescale_(optimizer, 8, scheduler=scheduler, rule="with paper")


def test_a_learning_rate_below_zero_is_converted_as_any_other():
    optimizer = adam()
    scheduler = lrs.LambdaLR(optimizer, lambda k: 1 - k / 100)
    rescale_(optimizer, 3, scheduler=scheduler)
    advance(optimizer, scheduler, 34)  # 102 steps of its own
    assert optimizer.param_groups[0]["lr"] == pytest.approx(-2e-5 * math.sqrt(3))
    assert optimizer.param_groups[0]["betas"] == pytest.approx((0.94, 0.997))


# ---- what schedulers set beside the learning rate


class Decaying(lrs.LRScheduler):
    """A user's scheduler of the weight decay."""

    def get_lr(self):
        return [group["lr"] for group in self.optimizer.param_groups]

    def step(self, epoch=None):
        super().step()
        for group in self.optimizer.param_groups:
            group["weight_decay"] = 0.1 * (1 + self.last_epoch / 100)


class Lion(torch.optim.Optimizer):
    """Lion as libraries spell it; its update is not needed here."""

    def __init__(self, params, lr=1e-3, betas=(0.95, 0.98), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def step(self, closure=None):
        """Move nothing."""


def weights(*shape):
    return [torch.nn.Parameter(torch.ones(*shape))]


def one_cycle(optimizer):
    return lrs.OneCycleLR(optimizer, 0.1, total_steps=STEPS, base_momentum=0.93, max_momentum=0.95)


def cycle(optimizer):
    return lrs.CyclicLR(optimizer, 0.01, 0.1, step_size_up=20, base_momentum=0.93, max_momentum=0.95)


CYCLED = {
    "SGD": (lambda: torch.optim.SGD(weights(2), lr=0.1, momentum=0.95), "linear-time", "momentum"),
    "RMSprop": (lambda: torch.optim.RMSprop(weights(2), lr=0.1, momentum=0.95), "sqrt-time", "momentum"),
    "Lion, half": (lambda: Lion(weights(2)), "normalized-half", "mix"),
    "Lion, linear": (lambda: Lion(weights(2)), "normalized-linear", "mix"),
}
if hasattr(torch.optim, "Muon"):
    CYCLED["Muon"] = (lambda: torch.optim.Muon(weights(2, 2), lr=0.1), "normalized-half", "mu")


@pytest.mark.filterwarnings("ignore::rootscale.ScalingWarning")  # RMSprop's alpha
@pytest.mark.parametrize("scheduler_of", [one_cycle, cycle])
@pytest.mark.parametrize("name", CYCLED)
def test_a_cycled_momentum_follows_the_rule_of_its_family(name, scheduler_of):
    make_optimizer, rule, unit = CYCLED[name]

    def momentum(optimizer):
        group = optimizer.param_groups[0]
        return group["betas"][0] if "betas" in group else group["momentum"]

    def run(steps, kappa=None):
        optimizer = make_optimizer()
        scheduler, seen = scheduler_of(optimizer), []
        for k in range(steps):
            if k == 24 and kappa:
                rescale_(optimizer, kappa, scheduler=scheduler, rule=rule)
            optimizer.step()
            scheduler.step()
            seen.append(momentum(optimizer))
        return seen

    base, converted = run(STEPS), run(24 + 36, kappa=2)
    expected = [RULES[rule].convert(unit, value, 2) for value in base[25::2]]
    assert converted[24:] == pytest.approx(expected, rel=1e-9)
    assert expected[0] != pytest.approx(base[25], rel=1e-3)


def test_a_cycle_of_momentum_that_has_no_lowest_value_is_refused():
    optimizer = torch.optim.SGD(weights(2), lr=0.1, momentum=0.95)
    with pytest.raises(ValueError, match="CyclicLR's lowest momentum"):
        rescale_(optimizer, 15, scheduler=cycle(optimizer), rule="linear-time")


def test_ends_of_a_cycle_below_zero_without_floors_can_be_converted_again():
    optimizer = adam((0.95, 0.999))
    scheduler = lrs.OneCycleLR(optimizer, 0.1, total_steps=1000)
    for kappa in (16, 2):
        rescale_(optimizer, kappa, scheduler=scheduler)
    assert optimizer.param_groups[0]["base_momentum"] == pytest.approx(1 - 32 * 0.15)


def test_a_scheduler_of_the_weight_decay_sets_it_in_the_units_of_now():
    optimizer = torch.optim.AdamW(weights(2), betas=(0.99, 0.999))
    scheduler = Decaying(optimizer)
    optimizer.step()
    scheduler.step()
    rescale_(optimizer, 4, scheduler=scheduler)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["weight_decay"] == pytest.approx(0.1 * 1.05 * 2)


def test_a_beta2_below_its_floor_stays_when_beta1_is_cycled():
    optimizer = adam((0.95, 0.8))
    scheduler = one_cycle(optimizer)
    rescale_(optimizer, 4, scheduler=scheduler)
    advance(optimizer, scheduler, 1)
    assert optimizer.param_groups[0]["betas"][1] == 0.8


@pytest.mark.parametrize("steps", [30, 80])  # own beta1 above and below the floor
def test_the_way_back_leads_to_the_beta1_that_the_scheduler_has_set_since(steps):
    def run(kappa, before, after):
        optimizer = adam((0.95, 0.999))
        scheduler = lrs.OneCycleLR(optimizer, 0.1, total_steps=1000)
        advance(optimizer, scheduler, before)
        rescale_(optimizer, kappa, scheduler=scheduler)
        advance(optimizer, scheduler, after)
        rescale_(optimizer, 1 / kappa, scheduler=scheduler)
        return optimizer

    there_and_back, stayed = run(4, 5, steps), run(1, 5 + 4 * steps, 0)
    for key in ("lr", "betas"):
        assert there_and_back.param_groups[0][key] == pytest.approx(stayed.param_groups[0][key], rel=1e-9)


@pytest.mark.usefixtures("forget_registered")
@pytest.mark.parametrize("betas", [(0.99,), (0.99, 0.999, 0.9999)])
def test_betas_of_any_number_are_those_of_the_family(betas):
    units = ("beta1", "beta2", "beta3")[: len(betas)]
    cls = type(f"With{len(betas)}Betas", (Lion,), {"step": lambda self, closure=None: None})
    register(cls, values={"lr": "eta", "betas": units})
    optimizer = cls(weights(1), lr=1e-3, betas=betas)
    scheduler = lrs.ExponentialLR(optimizer, 0.9)
    rescale_(optimizer, 4, scheduler=scheduler)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(2e-3 * 0.9**4)
    assert optimizer.param_groups[0]["betas"] == pytest.approx([1 - 4 * (1 - beta) for beta in betas])


def test_a_step_that_fails_leaves_the_learning_rate_in_the_units_of_now():
    optimizer = adam()
    scheduler = lrs.LambdaLR(optimizer, lambda k: 1 / (4 - k))
    rescale_(optimizer, 4, scheduler=scheduler)
    with pytest.raises(ZeroDivisionError):
        advance(optimizer, scheduler, 1)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(5e-4)


def test_a_learning_rate_follows_a_rule_that_was_measured_step_by_step():
    optimizer = Lion(weights(2), lr=0.1)
    scheduler = lrs.ExponentialLR(optimizer, 0.99)
    changes = rescale_(optimizer, 4, scheduler=scheduler, rule="normalized:1.5")
    advance(optimizer, scheduler, 3)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(changes["lr"].after * 0.99**12)


def test_a_key_of_the_users_own_is_not_a_schedulers():
    optimizer = torch.optim.AdamW([{"params": weights(1), "min_lr": 1e-4, "max_lr": 1.0}], betas=(0.99, 0.999))
    rescale_(optimizer, 4)
    assert (optimizer.param_groups[0]["min_lr"], optimizer.param_groups[0]["max_lr"]) == (1e-4, 1.0)


def test_tensors_among_the_betas_go_with_a_cycle_of_beta1():
    beta2 = torch.tensor(0.999)
    optimizer = adam((torch.tensor(0.95), beta2))
    scheduler = one_cycle(optimizer)
    rescale_(optimizer, 1 / 4, scheduler=scheduler)
    advance(optimizer, scheduler, 4)
    assert optimizer.param_groups[0]["betas"][1] is beta2
    assert float(beta2) == pytest.approx(1 - 0.001 / 4)


# ---- which schedulers, and how often they are stepped


def warmed_up():
    optimizer = adam()
    scheduler = warm_cosine(optimizer)
    advance(optimizer, scheduler, 4)
    return optimizer, scheduler


@pytest.mark.parametrize("besides", [True, False])
def test_parts_of_a_scheduler_are_refused_besides_it_and_instead_of_it(besides):
    optimizer, scheduler = warmed_up()
    given = [*([scheduler] if besides else []), *scheduler._schedulers]
    with pytest.raises(ValueError, match="LinearLR is a part of a SequentialLR, which steps it: give the SequentialLR"):
        rescale_(optimizer, 4, scheduler=given)
    rescale_(optimizer, 4, scheduler=scheduler)


def test_one_of_several_schedulers_that_was_forgotten_is_warned_about():
    optimizer = adam()
    given, other = lrs.StepLR(optimizer, 30), lrs.ExponentialLR(optimizer, 0.99)
    with pytest.warns(ScalingWarning, match="ExponentialLR also drives this optimizer but was not given"):
        rescale_(optimizer, 4, scheduler=given, dry_run=True)
    assert not rescale_(optimizer, 4, scheduler=[given, other], dry_run=True).warnings
    del other
    assert not rescale_(optimizer, 4, scheduler=given).warnings


def test_a_scheduler_that_is_stepped_once_an_epoch_is_seen_by_its_counter():
    optimizer = adam()
    scheduler = lrs.StepLR(optimizer, 30)
    for _ in range(3):
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad = torch.ones_like(parameter)
        for _ in range(50):
            optimizer.step()
        scheduler.step()
    with pytest.warns(ScalingWarning, match=r"StepLR has made 3 steps and the optimizer 150.*interval='epoch'"):
        rescale_(optimizer, 4, scheduler=scheduler, dry_run=True)
    for interval in ("epoch", ["step"]):
        assert not rescale_(optimizer, 4, scheduler=scheduler, interval=interval, dry_run=True).warnings


# ---- back in its own units, and loaded


@pytest.mark.parametrize("sizes", [((3, 1), (1, 3)), ((3, 7), (7, 3))])
def test_a_run_that_is_back_in_its_own_units_loads_as_any_other(sizes):
    optimizer, scheduler = make("CosineAnnealingLR")
    advance(optimizer, scheduler, 1)
    for size in sizes:
        rescale_(optimizer, batch_size=size, scheduler=scheduler)
        advance(optimizer, scheduler, size == sizes[0])
    saved = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
    place = scheduler.last_epoch
    optimizer, scheduler = make("CosineAnnealingLR")
    optimizer.load_state_dict(saved[0])
    scheduler.load_state_dict(saved[1])
    advance(optimizer, scheduler, 1)
    assert scheduler.last_epoch == place + 1


def test_a_tracked_checkpoint_in_an_untracked_script_is_an_ordinary_one():
    optimizer, scheduler = make("LinearLR")
    track_(optimizer, 16, scheduler=scheduler)
    advance(optimizer, scheduler, 5)
    saved = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
    optimizer, scheduler = make("LinearLR")
    optimizer.load_state_dict(saved[0])
    scheduler.load_state_dict(saved[1])
    advance(optimizer, scheduler, 15)
    restore_(optimizer, scheduler=scheduler)
    assert torch.equal(advance(optimizer, scheduler, 1), unconverted("LinearLR")[20:21])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScalingWarning)
        rescale_(optimizer, batch_size=64, scheduler=scheduler)
    there = unconverted("LinearLR")[24:25, :, 0] * 2
    torch.testing.assert_close(advance(optimizer, scheduler, 1)[..., 0], there, rtol=1e-9, atol=0)


def two_schedulers():
    optimizer = adam()
    return optimizer, lrs.StepLR(optimizer, 30), lrs.ExponentialLR(optimizer, 0.99)


def test_all_schedulers_that_were_loaded_are_restored_together():
    optimizer, *both = two_schedulers()
    rescale_(optimizer, 4, scheduler=both)
    saved = copy.deepcopy([one.state_dict() for one in (optimizer, *both)])
    optimizer, *both = two_schedulers()
    for one, state in zip((optimizer, *both), saved, strict=True):
        one.load_state_dict(state)
    with pytest.raises(ValueError, match=r"ExponentialLR of this Adam also was loaded .* scheduler=\[...\]\) with all"):
        restore_(optimizer, scheduler=both[0])
    restore_(optimizer, scheduler=both)
    advance(optimizer, both[1], 1)
    assert both[1].last_epoch == 4


def test_states_of_different_checkpoints_are_told_from_a_state_that_is_missing():
    optimizer, scheduler = make("StepLR")
    rescale_(optimizer, 4, scheduler=scheduler)
    first = copy.deepcopy(optimizer.state_dict())
    rescale_(optimizer, 2, scheduler=scheduler)
    second = copy.deepcopy(scheduler.state_dict())
    optimizer, scheduler = make("StepLR")
    optimizer.load_state_dict(first)
    with pytest.raises(ValueError, match=r"that of the scheduler seems to be missing.*made after.* scheduler=\[\]"):
        restore_(optimizer, scheduler=scheduler)
    scheduler.load_state_dict(second)
    with pytest.raises(ValueError, match=r"kappa = 8, .* kappa = 4: their states are of different checkpoints"):
        restore_(optimizer, scheduler=scheduler)


class Gradual(lrs.LRScheduler):
    """A warm-up that holds what comes after it, as a widespread one does."""

    def __init__(self, optimizer, steps, after):
        self.steps, self.after_scheduler = steps, after
        super().__init__(optimizer)

    def get_lr(self):
        return [base * self.last_epoch / self.steps for base in self.base_lrs]


def test_a_scheduler_that_another_holds_in_its_own_way_is_not_missing(recwarn):
    optimizer = adam()
    outer = Gradual(optimizer, 20, lrs.CosineAnnealingLR(optimizer, 200))
    advance(optimizer, outer, 3)
    with pytest.raises(ValueError, match="CosineAnnealingLR is a part of a Gradual"):
        rescale_(optimizer, 4, scheduler=[outer, outer.after_scheduler])
    rescale_(optimizer, 4, scheduler=outer)
    assert not [one for one in recwarn if issubclass(one.category, ScalingWarning)]


def test_a_scheduler_that_was_dropped_is_not_missing(recwarn):
    optimizer = adam()
    old = lrs.StepLR(optimizer, 5)
    old.itself = old  # only the collector frees it
    del old
    scheduler = lrs.StepLR(optimizer, 5)
    advance(optimizer, scheduler, 3)
    rescale_(optimizer, 4, scheduler=scheduler)
    assert not [one for one in recwarn if issubclass(one.category, ScalingWarning)]


def test_a_scheduler_that_was_made_later_is_not_taken_for_one_of_epochs(recwarn):
    optimizer = adam()
    first = lrs.StepLR(optimizer, 5)
    advance(optimizer, first, 30)
    del first
    scheduler = lrs.StepLR(optimizer, 5)
    advance(optimizer, scheduler, 10)
    rescale_(optimizer, 1, scheduler=scheduler)
    rescale_(optimizer, 4, scheduler=scheduler)
    assert not [one for one in recwarn if issubclass(one.category, ScalingWarning)]
