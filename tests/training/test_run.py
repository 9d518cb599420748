"""`Run`: the script's numbers stay, and the steps are those of a conversion that is written down by hand."""

import copy
import itertools
import math
import pickle
import sys

import pytest
import torch
from live import ADAM, Average, plain, snapshot, train
from live import net as normed
from torch import nn

from rootscale import ScalingWarning
from rootscale.training import Run, rescale_

KAPPAS = [4, 1 / 2, 2.5]


def net():
    """Without BatchNorm, before which a bias has no gradient but rounding, that Adam makes large."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def noise_of(beta):
    """Variance of an average of noise with this weight of the past."""
    return 1 - beta


def stop(beta, kappa, floor=0.9):
    """``1 - kappa (1 - beta)``, no shorter than its floor, or than it was."""
    return max(1 - kappa * (1 - beta), min(beta, floor))


def adam_by_hand(group, state, kappa, decoupled):
    one, two = group["betas"]
    new = stop(one, kappa), stop(two, kappa)
    m = math.sqrt(noise_of(new[0]) / (kappa * noise_of(one)))
    for held in state:
        for name, factor in (("exp_avg", m), ("exp_avg_sq", 1 / kappa), ("max_exp_avg_sq", 1 / kappa)):
            if name in held:
                held[name].mul_(factor)
        held["step"].div_(kappa)
    return {
        "lr": group["lr"] * kappa**0.5,
        "betas": new,
        "eps": group["eps"] / kappa**0.5,
        "weight_decay": group["weight_decay"] * (kappa**0.5 if decoupled else 1),
    }


def rmsprop_by_hand(group, state, kappa):
    for held in state:
        if "grad_avg" in held:  # what exceeds the squared mean is noise
            mean = held["grad_avg"].square()
            held["square_avg"].copy_((held["square_avg"] - mean) / kappa + mean)
        else:
            held["square_avg"].div_(kappa)
        held["step"].div_(kappa)
    return {
        "lr": group["lr"] * kappa**0.5,
        "alpha": stop(group["alpha"], kappa),
        "eps": group["eps"] / kappa**0.5,
        "weight_decay": group["weight_decay"],
    }


def sgd_by_hand(group, state, kappa):
    for held in state:
        held["momentum_buffer"].div_(kappa**0.5)  # the noise of a sum over as many steps as before
    return {"lr": group["lr"] * kappa}


def adam(**options):
    return lambda p: torch.optim.Adam(p, **{**ADAM, **options}), lambda *a: adam_by_hand(*a, decoupled=False)


def adamw(**options):
    make = lambda p: torch.optim.AdamW(p, **{**ADAM, "weight_decay": 0.1, **options})  # noqa: E731
    return make, lambda *a: adam_by_hand(*a, decoupled=True)


VARIANTS = {
    "Adam": adam(),
    "Adam, one by one": adam(foreach=False),
    "Adam, foreach": adam(foreach=True),
    "Adam, fused": adam(fused=True),
    "Adam, AMSGrad": adam(amsgrad=True),
    "Adam, L2": adam(weight_decay=0.1),
    "Adam, maximize": adam(maximize=True),
    "Adam, default betas": adam(betas=(0.9, 0.95)),
    "AdamW": adamw(),
    "AdamW, fused": adamw(fused=True),
    "RMSprop": (lambda p: torch.optim.RMSprop(p, lr=1e-3, alpha=0.99, weight_decay=0.1), rmsprop_by_hand),
    "RMSprop, centered": (lambda p: torch.optim.RMSprop(p, lr=1e-3, alpha=0.99, centered=True), rmsprop_by_hand),
    "SGD": (lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True), sgd_by_hand),
}


def close(found, expected, rtol=1e-10):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=1e-14)


@pytest.mark.parametrize("kappa", KAPPAS)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_run_is_the_conversion_by_hand_and_the_groups_keep_the_scripts_numbers(name, kappa):
    make, by_hand = VARIANTS[name]
    mine, theirs = net(), net()
    optimizer, plain_torch = make(mine.parameters()), make(theirs.parameters())
    run = Run(optimizer, tuned_at=8)
    train(mine, optimizer, 5), train(theirs, plain_torch, 5)
    group = copy.deepcopy({k: v for k, v in optimizer.param_groups[0].items() if k != "params"})

    run.batch_size = 8 * kappa
    (held,) = plain_torch.param_groups
    held.update(by_hand(held, list(plain_torch.state.values()), kappa))
    train(mine, optimizer, 6, seed=1), train(theirs, plain_torch, 6, seed=1)
    close(mine.parameters(), theirs.parameters())
    assert {k: v for k, v in optimizer.param_groups[0].items() if k != "params"} == group
    assert run.values()["lr"] == pytest.approx(held["lr"], rel=1e-12)
    assert run.clock == pytest.approx(5 + 6 * kappa)


@pytest.mark.parametrize("tensors", ["lr", "lr and betas"])
def test_tensors_in_groups_are_filled_for_a_step_and_put_back_to_the_bit(tensors):
    """Groups share them, as those of one optimizer do by default."""
    lr = torch.tensor(1e-3, dtype=torch.float64)
    betas = (torch.tensor(0.98, dtype=torch.float64), torch.tensor(0.999, dtype=torch.float64))
    results = []
    for as_tensors in (False, True):
        model = net()
        options = {"lr": lr} if as_tensors else {"lr": 1e-3}
        options["betas"] = betas if as_tensors and "betas" in tensors else (0.98, 0.999)
        groups = [{"params": model[0].parameters()}, {"params": model[1:].parameters()}]
        optimizer = torch.optim.Adam(groups, **options, foreach=False)
        run = Run(optimizer, tuned_at=8, batch_size=32)
        train(model, optimizer, 4)
        run.batch_size = 16
        train(model, optimizer, 4)
        results.append(list(model.parameters()))
    close(*results)
    assert (lr.item(), [beta.item() for beta in betas]) == (1e-3, [0.98, 0.999])
    for group in optimizer.param_groups:
        assert group["lr"] is lr
        assert "betas" not in tensors or all(one is two for one, two in zip(group["betas"], betas, strict=True))


@pytest.mark.parametrize("name", VARIANTS)
def test_there_and_back_and_in_parts(name):
    make, _ = VARIANTS[name]
    runs = []
    for sizes in ([8], [32, 128, 8], [3, 20, 8]):
        model = net()
        optimizer = make(model.parameters())
        run = Run(optimizer, tuned_at=8)
        train(model, optimizer, 4)
        for size in sizes:
            run.batch_size = size
        train(model, optimizer, 4, seed=1)
        runs.append(list(model.parameters()))
    close(runs[0], runs[1])
    close(runs[0], runs[2], 1e-7)  # torch counts steps in float32, which has no thirds
    parts = []
    for sizes in ([128], [32, 128]):
        model = net()
        optimizer = make(model.parameters())
        run = Run(optimizer, tuned_at=8)
        train(model, optimizer, 4)
        for size in sizes:
            run.batch_size = size
        train(model, optimizer, 4, seed=1)
        parts.append(list(model.parameters()))
    close(*parts)


def test_a_loop_that_overwrites_the_learning_rate_is_converted():
    """As nanoGPT's get_lr at every step, which the clock answers; and momentum that a loop sets."""

    def get_lr(step):
        return 1e-3 * (0.5 + 0.5 * math.cos(step / 20))

    model, twin = net(), net()
    optimizer, hand = (torch.optim.AdamW(one.parameters(), **ADAM, weight_decay=0.1) for one in (model, twin))
    run = Run(optimizer, tuned_at=8, batch_size=32)
    hand.param_groups[0].update(betas=(0.92, 0.996), eps=5e-9, weight_decay=0.2)
    for step in range(6):
        optimizer.param_groups[0]["lr"] = get_lr(run.clock)
        hand.param_groups[0]["lr"] = 2 * get_lr(4 * step)
        train(model, optimizer, 1, seed=step), train(twin, hand, 1, seed=step)
        assert optimizer.param_groups[0]["lr"] == get_lr(4 * step)
    close(model.parameters(), twin.parameters())


def test_a_group_that_is_added_at_another_batch_size_is_one_of_the_script():
    """Its state is born in the units of now, and a checkpoint has it in the script's."""
    model, twin = net(), net()
    optimizer = torch.optim.Adam(model[0].parameters(), lr=1e-3, betas=(0.9, 0.95))
    hand = torch.optim.Adam(twin[0].parameters(), lr=2e-3, betas=(0.9, 0.9), eps=5e-9)
    run = Run(optimizer, tuned_at=8, batch_size=32)
    for one, its, lr in ((model, optimizer, 1e-2), (twin, hand, 2e-2)):
        train(one, its, 3)
        its.add_param_group({"params": one[1:].parameters(), "lr": lr})
        train(one, its, 3)
    close(model.parameters(), twin.parameters())
    saved, held = optimizer.state_dict(), hand.state_dict()
    for key, state in held["state"].items():
        torch.testing.assert_close(saved["state"][key]["exp_avg_sq"], 4 * state["exp_avg_sq"])
        torch.testing.assert_close(saved["state"][key]["exp_avg"], 2 * state["exp_avg"])
        assert saved["state"][key]["step"] == 4 * state["step"]
    before = plain(saved)
    run.batch_size = 8
    assert plain(optimizer.state_dict()["param_groups"]) == before["param_groups"]
    close([s["exp_avg_sq"] for s in optimizer.state.values()], [s["exp_avg_sq"] for s in saved["state"].values()])


def test_betas_that_are_cycled_between_two_changes_lose_nothing_when_saved_and_loaded():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.85, 0.999))
    Run(optimizer, tuned_at=8, batch_size=32)
    train(model, optimizer, 3)
    optimizer.param_groups[0]["betas"] = (0.95, 0.999)
    train(model, optimizer, 3)
    before = copy.deepcopy(list(optimizer.state.values()))
    optimizer.load_state_dict(optimizer.state_dict())
    for one, other in zip(before, optimizer.state.values(), strict=True):
        close([other[key] for key in one], one.values())


# ---- steps of other kinds


def test_a_closure_sees_the_scripts_numbers_and_the_step_those_of_now():
    results, seen = [], []
    for with_closure in (False, True):
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), **ADAM)
        run = Run(optimizer, tuned_at=8, batch_size=32)
        x = torch.ones(4, 3, dtype=torch.float64)

        def closure(model=model, optimizer=optimizer, x=x):
            seen.append(optimizer.param_groups[0]["lr"])
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        for _ in range(3):
            if with_closure:
                assert optimizer.step(closure).item() > 0
                optimizer.step(closure=closure)
            else:
                closure(), optimizer.step(), closure(), optimizer.step()
        assert run.clock == 24
        results.append(list(model.parameters()))
    close(*results)
    assert seen == [1e-3] * 12


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["closure", "step"])
def test_a_step_that_raises_leaves_the_scripts_numbers(error, where, monkeypatch):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), **ADAM, foreach=False)
    run = Run(optimizer, tuned_at=8, batch_size=32)
    train(model, optimizer, 2)
    before = snapshot(optimizer)

    def fail(*args, **kwargs):
        raise error("stop")

    if where == "step":
        monkeypatch.setattr(torch.optim.Adam, "_init_group", fail)
    with pytest.raises(error, match="stop"):
        optimizer.step(*([fail] if where == "closure" else []))
    assert (snapshot(optimizer), run.clock) == (before, 8)
    monkeypatch.undo()
    train(model, optimizer, 1)
    assert run.clock == 12


class Twice(torch.optim.Adam):
    """Its step calls that of torch's Adam, which has hooks of its own, and then decays by the numbers of the step."""

    @torch.no_grad()
    def step(self, closure=None):
        loss = super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                p.mul_(1 - group["lr"])
        return loss


@pytest.mark.usefixtures("forget_registered")
def test_a_step_within_a_step_is_one():
    from rootscale.training import register

    register(Twice, like="adam")
    torch.optim.Adam(net().parameters())  # torch puts its hooks on a class with its first object
    model, twin = net(), net()
    optimizer, hand = (
        Twice(model.parameters(), **ADAM),
        Twice(twin.parameters(), lr=2e-3, betas=(0.92, 0.996), eps=5e-9),
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    run = Run(optimizer, tuned_at=8, batch_size=32, scheduler=scheduler)
    for step in range(3):
        train(model, optimizer, 1, step), train(twin, hand, 1, step)
        scheduler.step()
    close(model.parameters(), twin.parameters())
    assert (run.clock, scheduler.last_epoch, optimizer.param_groups[0]["lr"]) == (12, 12, 1e-3)


@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_a_grad_scaler_skips_are_not_counted(fused):
    model = net().float()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    run = Run(optimizer, tuned_at=8, batch_size=32)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(6):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(4, 3)).square().mean()).backward()
        if step in (0, 3):
            next(model.parameters()).grad.fill_(math.inf)
        scaler.step(optimizer)
        scaler.update()
    assert run.clock == 16
    assert {float(state["step"]) for state in optimizer.state.values()} == {4.0}


def test_accumulated_micro_batches_are_one_batch():
    results = []
    for parts in (1, 4):
        model = nn.Linear(3, 1).double()
        nn.init.ones_(model.weight), nn.init.zeros_(model.bias)
        optimizer = torch.optim.Adam(model.parameters(), **ADAM)
        run = Run(optimizer, tuned_at="2x1x1", batch_size=f"{8 // parts}x{parts}x1")
        for step in range(4):
            x = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            for part in x.chunk(parts):
                (model(part).square().mean() / parts).backward()
            optimizer.step()
        results.append(list(model.parameters()))
        assert (run.kappa, run.clock) == (4, 16)
    close(*results)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_compiled_step_is_that_of_now():
    """Compiled steps round otherwise than eager ones, so both are compiled."""
    model, twin = net(), net()
    optimizer, hand = torch.optim.Adam(model.parameters(), **ADAM), torch.optim.Adam(twin.parameters(), **ADAM)
    run = Run(optimizer, tuned_at=8, batch_size=32)
    rescale_(hand, 4)
    steps = [torch.compile(one.step, backend="eager") for one in (optimizer, hand)]
    for k in range(4):
        for one, step in zip((model, twin), steps, strict=True):
            one.zero_grad()
            one(torch.full((4, 3), 0.3, dtype=torch.float64)).square().mean().backward()
            step()
        if k == 1:
            run.batch_size = 16
            rescale_(hand, 0.5)
    torch._dynamo.reset()
    close(model.parameters(), twin.parameters())
    assert (run.clock, optimizer.param_groups[0]["lr"]) == (12, 1e-3)


# ---- copies


@pytest.mark.parametrize("copy_of", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copied_optimizer_is_the_scripts(copy_of):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    run = Run(optimizer, tuned_at=8, batch_size=32)
    train(model, optimizer, 3)
    twin = copy_of(optimizer)
    assert plain(twin.state_dict()) == plain(optimizer.state_dict())
    assert {float(state["step"]) for state in twin.state.values()} == {12.0}
    Run(twin, tuned_at=8)  # it is in no run
    train(model, optimizer, 1)
    assert run.clock == 16


@pytest.mark.parametrize("copy_of", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
@pytest.mark.parametrize("cls", [torch.optim.AdamW, torch.optim.SGD])
def test_a_copied_run_goes_on_apart(copy_of, cls):
    model, ema = normed(), Average(0.99)
    optimizer = cls(model.parameters(), lr=1e-3)
    run = Run(optimizer, tuned_at=8, batch_size=32, model=model, ema=ema)
    train(model, optimizer, 3)
    twin, same = copy_of((run, model)), None
    other, same = twin
    (its,) = [one.optimizer for one in other._optimizers]
    assert (other.clock, other.batch_size, other.kappa) == (run.clock, 32, 4)
    assert (same[1].momentum, model[1].momentum) == (pytest.approx(1 - 0.9**4), pytest.approx(1 - 0.9**4))
    assert train(model, optimizer, 3, seed=1) == pytest.approx(train(same, its, 3, seed=1), rel=1e-10)
    assert other.clock == run.clock == 24
    other.batch_size = 8
    assert (same[1].momentum, ema.decay) == (0.1, pytest.approx(0.99**4))


def test_a_run_that_is_detached_leaves_what_the_script_made():
    model, twin = normed(), normed()
    optimizer, alone = (torch.optim.Adam(one.parameters(), **ADAM) for one in (model, twin))
    scheduler, ema = torch.optim.lr_scheduler.StepLR(optimizer, 4), Average(0.99)
    train(model, optimizer, 3), train(twin, alone, 3)
    held = set(vars(optimizer)), set(vars(scheduler))
    run = Run(optimizer, tuned_at=8, batch_size=32, scheduler=scheduler, model=model, ema=ema)
    run.detach()
    run.detach()
    assert (set(vars(optimizer)), set(vars(scheduler))) == held
    assert (model[1].momentum, ema.decay) == (0.1, 0.99)
    assert train(model, optimizer, 3, seed=1) == pytest.approx(train(twin, alone, 3, seed=1), rel=1e-12)
    with pytest.raises(RuntimeError, match=r"this Run was detached.*make a new Run"):
        run.batch_size = 16
    again = Run(optimizer, tuned_at=8, batch_size=16, scheduler=scheduler, model=model, ema=ema)
    run.detach()
    assert (again.kappa, ema.decay) == (2, pytest.approx(0.99**2))


# ---- several


def test_several_optimizers_and_families_are_each_alone():
    models, twins = [net(), net()], [net(), net()]
    make = [lambda p: torch.optim.Adam(p, **ADAM), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)]
    together, apart = ([f(m.parameters()) for f, m in zip(make, each, strict=True)] for each in (models, twins))
    run = Run(together, tuned_at=8)
    runs = [Run(one, tuned_at=8) for one in apart]
    for size in (8, 32, 4):
        run.batch_size = size
        for one in runs:
            one.batch_size = size
        for model, optimizer in zip([*models, *twins], [*together, *apart], strict=True):
            train(model, optimizer, 3, seed=size)
    for model, twin in zip(models, twins, strict=True):
        close(model.parameters(), twin.parameters())
    assert set(run.values()) == {
        "optimizer 0/lr", "optimizer 0/beta1", "optimizer 0/beta2", "optimizer 0/eps", "optimizer 0/weight_decay",
        "optimizer 1/lr", "optimizer 1/momentum", "optimizer 1/weight_decay",
    }  # fmt: skip
    text = str(run)
    assert "batch size 8 -> 4, kappa = 0.5" in text
    assert "optimizer 0: lr" in text
    assert "a step's" in text
    assert "left to you" in text


# ---- complex parameters


@pytest.mark.parametrize("kind", ["Adam", "RMSprop"])
def test_complex_parameters_are_pairs_of_numbers(kind):
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.randn(5, dtype=torch.complex128))
    twin = nn.Parameter(torch.view_as_real(parameter.detach()).clone())
    optimizers = [getattr(torch.optim, kind)([one], lr=1e-3) for one in (parameter, twin)]
    runs = [Run(one, tuned_at=8) for one in optimizers]
    for step in range(6):
        parameter.grad = torch.randn_like(parameter)
        twin.grad = torch.view_as_real(parameter.grad).clone()
        for run, one in zip(runs, optimizers, strict=True):
            one.step()
            run.batch_size = 8 * (1 + step)
    torch.testing.assert_close(torch.view_as_real(parameter.detach()), twin.detach(), rtol=1e-12, atol=0)


# ---- bad input


class ReadOnly:
    decay = property(lambda self: 0.9)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tuned_at": 0}, ValueError, "batch_size must be a number above 0|tuned_at"),
        ({"tuned_at": -4}, ValueError, "above 0"),
        ({"tuned_at": None}, ValueError, "above 0"),
        ({"tuned_at": "many"}, ValueError, "must be a number"),
        ({"batch_size": math.nan}, ValueError, "must be a"),
        ({"batch_size": "4x0x1"}, ValueError, "accumulation must be a number above 0"),
        ({"batch_size": 800, "rule": "with paper"}, ValueError, r"kappa=100 gives beta1=.*; need kappa < 50"),
        ({"rule": "cubic"}, ValueError, "rule must be one of sqrt"),
        ({"loss": "total"}, ValueError, r"loss must be 'mean' or 'sum' \(over the batch\), got 'total'"),
        ({"interval": "day"}, ValueError, "interval must be 'step', 'epoch' or None"),
        ({"model": "net"}, TypeError, r"model must be a torch\.nn\.Module, got str"),
        ({"scheduler": "cosine"}, TypeError, r"scheduler must be a torch\.optim\.lr_scheduler\.LRScheduler, got str"),
        ({"scheduler": "foreign"}, ValueError, "StepLR belongs to another optimizer than the one given"),
        ({"scheduler": "twice"}, ValueError, "StepLR was given twice"),
        ({"ema": object()}, TypeError, "ema must be an AveragedModel, one of .*, got object; .*register"),
        ({"ema": ReadOnly()}, TypeError, "the decay of ReadOnly cannot be set"),
        ({"ema": Average(1.5)}, ValueError, r"EMA decay must be in \[0, 1\), got 1\.5"),
    ],
)
def test_what_is_refused_changes_nothing(options, error, message):
    model, average = normed(), Average(0.9)
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    train(model, optimizer, 3)
    given = {"tuned_at": 8, "batch_size": 32, "model": model, "ema": average, "scheduler": scheduler, **options}
    if given["scheduler"] == "foreign":
        given["scheduler"] = torch.optim.lr_scheduler.StepLR(torch.optim.Adam(net().parameters()), 3)
    elif given["scheduler"] == "twice":
        given["scheduler"] = [scheduler, scheduler]
    before, attributes = snapshot(optimizer, scheduler, model, average), set(vars(optimizer))
    with pytest.raises(error, match=message):
        Run(optimizer, **given)
    assert (snapshot(optimizer, scheduler, model, average), set(vars(optimizer))) == (before, attributes)
    Run(optimizer, tuned_at=8, batch_size=32, model=model, ema=average, scheduler=scheduler)  # and it can be made


def test_a_second_run_on_one_optimizer_and_a_change_within_a_step_are_refused():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    run = Run(optimizer, tuned_at=8, batch_size=32)
    with pytest.raises(ValueError, match=r"this Adam is in a Run already: set its batch_size, or call detach\(\)"):
        Run([torch.optim.Adam(net().parameters()), optimizer], tuned_at=8)
    with pytest.raises(ValueError, match=r"is in a Run, which keeps its numbers: set run\.batch_size"):
        rescale_(optimizer, 2)

    def impatient(*_):
        run.batch_size = 16

    handle = optimizer.register_step_pre_hook(impatient)
    with pytest.raises(RuntimeError, match="set it between two steps"):
        optimizer.step()
    handle.remove()
    assert (run.kappa, optimizer.param_groups[0]["lr"]) == (4, 1e-3)
    optimizer.step()


def test_a_batch_size_that_something_cannot_follow_to_changes_nothing():
    model, average = normed(), Average(0.9)
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    run = Run(optimizer, tuned_at=8, model=model, ema=average, rule="with paper")
    train(model, optimizer, 2)
    run.batch_size = 16
    before = snapshot(optimizer, model, average)
    with pytest.raises(ValueError, match="need kappa < 50"):
        run.batch_size = 8 * 60
    assert (snapshot(optimizer, model, average), run.batch_size) == (before, 16)


class Fixed:
    """An average whose setter accepts one value only."""

    decay = property(lambda self: self._decay, lambda self, value: self._refuse(value))

    def __init__(self):
        self._decay = 0.9

    def _refuse(self, value):
        if value != 0.9:
            raise ValueError("the decay is fixed")


def test_a_setter_that_refuses_leaves_everything_as_it_was():
    model, average = normed(), Average(0.8)
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    train(model, optimizer, 2)
    before = snapshot(optimizer, model, average), set(vars(optimizer))
    with pytest.raises(ValueError, match="the decay is fixed"):
        Run(optimizer, tuned_at=8, batch_size=32, model=model, ema=[average, Fixed()])
    assert (snapshot(optimizer, model, average), set(vars(optimizer))) == before
    run = Run(optimizer, tuned_at=8, model=model, ema=[average, Fixed()])
    with pytest.raises(ValueError, match="the decay is fixed"):
        run.batch_size = 32
    assert (snapshot(optimizer, model, average), run.kappa) == (before[0], 1)


def test_an_interrupt_among_the_multiplications_comes_after_the_last_of_them(monkeypatch):
    models = [net(), net()]
    optimizers = [torch.optim.Adam(model.parameters(), **ADAM) for model in models]
    runs = [Run(one, tuned_at=8) for one in optimizers]
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, 3)
    runs[1].batch_size = 24
    multiply, calls = torch._foreach_mul_, []

    def interrupted(tensors, factors):
        multiply(tensors, factors)
        calls.append(len(tensors))
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(torch, "_foreach_mul_", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runs[0].batch_size = 24
    monkeypatch.undo()
    assert len(calls) == 2  # float64 moments and float32 counters
    assert runs[0].kappa == 3
    for one, other in zip(*(list(each.state.values()) for each in optimizers), strict=True):
        close(one.values(), other.values(), 1e-15)


# ---- what a run says


def test_lengths_clips_and_samples():
    run = Run(torch.optim.Adam(net().parameters(), **ADAM), tuned_at=256, batch_size=1024)
    assert (run.steps(10_000), run.steps(0), run.steps(1), run.clip(1.0)) == (2500, 0, 1, 0.5)
    assert (run.clock, run.samples, run.tuned_at, run.batch_size) == (0, 0, 256, 1024)
    for wrong in (-1, math.nan):
        with pytest.raises(ValueError, match="steps must be given a number of steps that is 0 or more"):
            run.steps(wrong)
    with pytest.raises(ValueError, match="clip must be"):
        run.clip(0)


def test_a_scheduler_that_was_forgotten_is_warned_about_once():
    optimizer = torch.optim.Adam(net().parameters())
    torch.optim.lr_scheduler.StepLR(optimizer, 3)
    with pytest.warns(ScalingWarning, match="a scheduler drives this Adam and was not given") as caught:
        run = Run(optimizer, tuned_at=8, batch_size=16)
    assert [str(one.message) for one in caught] == run.warnings


def test_nothing_is_hung_on_parameters_or_layers_and_no_class_is_changed():
    model = normed()
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    train(model, optimizer, 1)
    hooks = sys.modules["torch.optim.optimizer"]._global_optimizer_pre_hooks
    number = len(hooks)
    before = [sorted(vars(p)) for p in itertools.chain(model.parameters(), model)]
    run = Run(optimizer, tuned_at=8, batch_size=32, model=model)
    assert run.kappa == 4
    assert [sorted(vars(p)) for p in itertools.chain(model.parameters(), model)] == before
    assert (type(optimizer), len(hooks)) == (torch.optim.Adam, number)


@pytest.mark.parametrize("kappa", [4, 16, 0.5])
@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.SGD])
def test_a_summed_loss_is_the_mean_with_numbers_that_grow_with_the_batch(cls, kappa):
    """Of a sum over B samples, eps and an L2 penalty are B times those of the mean, and SGD's rate is a B-th of it."""

    def trained(summed):
        size, generator = 8, torch.Generator().manual_seed(0)
        weight = nn.Parameter(torch.ones(4, dtype=torch.float64))
        by = size if summed else 1
        numbers = {"lr": 0.01 / (by if cls is torch.optim.SGD else 1)}
        if cls is not torch.optim.SGD:
            numbers["eps"] = 1e-3 * by
        numbers["weight_decay"] = 0.1 * (1 if cls is torch.optim.AdamW else by)
        optimizer = cls([weight], **numbers)
        run = Run(optimizer, tuned_at=size, loss="sum" if summed else "mean")
        for _ in range(2):
            for _ in range(6):
                noise = torch.randn(int(run.batch_size), 4, dtype=torch.float64, generator=generator)
                losses = ((weight - 0.3 + noise) * torch.arange(1.0, 5, dtype=torch.float64)).square().sum(1)
                optimizer.zero_grad()
                (losses.sum() if summed else losses.mean()).backward()
                optimizer.step()
            run.batch_size = int(size * kappa)
        return weight.detach()

    torch.testing.assert_close(trained(True), trained(False), rtol=0, atol=1e-10)
