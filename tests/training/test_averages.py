"""Averages beside the optimizer: each is converted exactly once, however they are saved, given and loaded."""

import copy
from dataclasses import dataclass

import pytest
import torch
from live import ADAM, Average, net
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from rootscale import ScalingWarning
from rootscale.training import rescale_, restore_


class Saving(Average):
    """An average that saves its decay, as those of torch_ema and diffusers do."""

    def state_dict(self):
        return {"decay": self.decay}

    def load_state_dict(self, state):
        self.decay = state["decay"]


def adam(model=None):
    return torch.optim.Adam((model or net()).parameters(), **ADAM)


def exponential(model, decay=0.999):
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))


# ---- an average that saves its decay


def saved(*decays, kappa=4):
    """The states of a run that was converted with averages."""
    optimizer, averages = adam(), [Saving(decay) for decay in decays]
    rescale_(optimizer, kappa, ema=averages)
    return copy.deepcopy(optimizer.state_dict()), [one.state_dict() for one in averages]


def loaded(state):
    optimizer = adam()
    optimizer.load_state_dict(copy.deepcopy(state))
    return optimizer


@pytest.mark.parametrize("order", ["before", "after", "never"])
def test_a_decay_that_comes_with_a_state_is_not_converted_twice(order):
    state, (own,) = saved(0.999)
    optimizer, ema = loaded(state), Saving(0.999)
    if order == "before":
        ema.load_state_dict(own)
    changes = restore_(optimizer, ema=ema)
    assert ("EMA decay" in [row.name for row in changes]) == (order != "before")
    if order == "after":
        ema.load_state_dict(own)
    assert ema.decay == pytest.approx(0.999**4, rel=1e-12)
    restore_(optimizer, ema=ema)  # once more changes nothing
    rescale_(optimizer, 2, ema=ema)
    assert ema.decay == pytest.approx(0.999**8, rel=1e-12)


def test_a_decay_of_before_that_was_loaded_over_a_converted_one_is_converted_again():
    optimizer, ema = adam(), Saving(0.999)
    rescale_(optimizer, 4, ema=ema)
    ema.load_state_dict({"decay": 0.999})
    restore_(optimizer, ema=ema)
    assert ema.decay == pytest.approx(0.999**4)


@pytest.mark.parametrize("fresh", [(), (0,), (1,), (0, 1)])
def test_several_averages_are_told_apart_by_their_order(fresh):
    decays = (0.999, 0.999**4)  # the second is at first what the first becomes
    state, own = saved(*decays)
    averages = [Saving(decay) for decay in decays]
    for i, one in enumerate(averages):
        if i not in fresh:
            one.load_state_dict(own[i])
    restore_(loaded(state), ema=averages)
    assert [one.decay for one in averages] == [pytest.approx(decay**4) for decay in decays]


def test_averages_in_another_order_are_found_by_their_decays():
    state, _ = saved(0.9, 0.99)
    averages = [Saving(0.99), Saving(0.9)]
    restore_(loaded(state), ema=averages)
    assert [one.decay for one in averages] == [pytest.approx(0.99**4), pytest.approx(0.9**4)]


def test_a_decay_of_float32_is_recognised():
    state, (own,) = saved(0.999)
    ema = Saving(torch.tensor(own["decay"], dtype=torch.float32).item())
    before = ema.decay
    restore_(loaded(state), ema=ema)
    assert ema.decay == before


def test_a_decay_that_fits_neither_is_refused_with_both():
    state, _ = saved(0.999)
    optimizer, ema = loaded(state), Saving(0.9)
    message = r"decay of Saving is 0\.9, .* saved with 0\.996006, which was 0\.999 .*ema\.decay = 0\.996.* ema=\[\]"
    with pytest.raises(ValueError, match=message):
        restore_(optimizer, ema=ema)
    assert ema.decay == 0.9
    restore_(optimizer, ema=[])


@pytest.mark.parametrize("kind", [Saving, Average])
def test_a_checkpoint_that_does_not_remember_the_decay_is_restored(kind):
    state, _ = saved(0.999)
    for group in state["param_groups"]:
        del group["rootscale_ema_decay_0"]
    optimizer, ema = loaded(state), kind(0.999)
    if kind is Average:  # it has no state that the decay could have come with
        restore_(optimizer, ema=ema)
        assert ema.decay == pytest.approx(0.999**4)
    else:
        with pytest.warns(ScalingWarning, match=r"0\.999 was left as it is.* set ema\.decay = 0\.996"):
            restore_(optimizer, ema=ema)
        assert ema.decay == 0.999
        assert len(restore_(optimizer, ema=ema)) == 0


def test_the_decay_is_remembered_only_while_it_is_converted():
    optimizer, ema = adam(), Average(0.999)
    rescale_(optimizer, 4, ema=ema)
    assert [group["rootscale_ema_decay_0"] for group in optimizer.param_groups] == [ema.decay]
    rescale_(optimizer, 1 / 4, ema=ema)
    assert not any(key.startswith("rootscale") for key in optimizer.param_groups[0])
    rescale_(optimizer, 4, ema=exponential(net()))  # whose decay is in no state
    assert not any("decay_" in key for key in optimizer.param_groups[0])


def test_another_decay_of_torchs_average_is_that_of_the_script():
    model = net()
    optimizer = adam(model)
    rescale_(optimizer, 4, ema=exponential(model))
    changes = restore_(loaded(optimizer.state_dict()), ema=exponential(model, 0.9))
    assert changes["EMA decay"].after == pytest.approx(0.9**4)


# ---- the same average in several calls


@pytest.mark.parametrize("factors", [(4,), (4, 2), (4, 1 / 4)])
def test_what_two_optimizers_share_is_converted_by_the_first_call(factors):
    model, ema = net(), Average(0.999)
    averages = [ema, exponential(model)]
    optimizers = [adam(model[0]), adam(model[2])]
    total = 1.0
    for kappa in factors:
        total *= kappa
        rescale_(optimizers[0], kappa, model=model, ema=averages)
        changes = rescale_(optimizers[1], kappa, model=model, ema=averages)
        for name in ("BatchNorm momentum", "EMA decay"):
            assert changes[name].before == changes[name].after
            assert "at the new batch size already" in changes[name].note
        assert (ema.decay, model[1].momentum) == (pytest.approx(0.999**total), pytest.approx(1 - 0.9**total))
    for optimizer in optimizers:  # both say that it has to be restored
        assert optimizer.param_groups[0].get("rootscale_ema_kappa", 1.0) == total
        assert optimizer.param_groups[0].get("rootscale_forward_kappa", 1.0) == total


def test_what_is_ahead_by_another_factor_is_refused():
    model, ema = net(), Average(0.999)
    rescale_(adam(model), 4, model=model, ema=ema)
    other = adam(model)
    with pytest.raises(
        ValueError, match=r"BatchNorm's momentum has been .* by kappa = 4 and the optimizer by 1.*model"
    ):
        rescale_(other, 2, model=model)
    with pytest.raises(ValueError, match=r"decay of the parameter average .* give ema to one .*rootscale_kappa to 1"):
        rescale_(other, 2, ema=ema)
    assert (ema.decay, model[1].momentum) == (pytest.approx(0.999**4), pytest.approx(1 - 0.9**4))
    ema.rootscale_kappa = 1
    rescale_(other, 2, ema=ema)
    assert ema.decay == pytest.approx(0.999**8)


def test_what_two_optimizers_share_may_be_given_with_either():
    model = net()
    first, second = adam(model[0]), adam(model[2])
    for given, other in ((first, second), (second, first), (first, second)):
        rescale_(given, 2, model=model)
        rescale_(other, 2)
    assert model[1].momentum == pytest.approx(1 - 0.9**8)


def test_an_average_that_takes_no_attribute_is_known_by_its_decay():
    class Slotted:
        __slots__ = ("decay",)

    ema = Slotted()
    ema.decay = 0.999
    optimizer = adam()
    rescale_(optimizer, 4, ema=ema)
    rescale_(optimizer, 2, ema=ema)
    assert ema.decay == pytest.approx(0.999**8)
    assert optimizer.param_groups[0]["rootscale_ema_kappa"] == 8


# ---- what an earlier change was not given


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model", r"BatchNorm was not given to an earlier rescale_.* 1 - \(1 - momentum\) \*\* 4"),
        ("ema", r"was not given to rescale_.* set its decay to decay \*\* 4"),
        ("scheduler", r"go back with rescale_\(optimizer, 0\.25\).*rescale_\(optimizer, 4, scheduler=scheduler\)"),
    ],
)
def test_what_is_given_for_the_first_time_at_a_later_change_is_told(name, message, recwarn):
    model = net()
    optimizer = adam(model)
    given = {"model": model, "ema": Average(0.999)}
    rescale_(optimizer, 4)
    if name == "scheduler":
        given["scheduler"] = StepLR(optimizer, 10)
    with pytest.warns(ScalingWarning, match=message):
        rescale_(optimizer, 2, **{name: given[name]})


def test_the_advice_for_a_scheduler_brings_it_to_the_optimizers_units():
    model = net()
    optimizer, reference = adam(model), adam(model)
    scheduler, expected = StepLR(optimizer, 10), StepLR(reference, 10)
    rescale_(reference, 8, scheduler=expected)
    with pytest.warns(ScalingWarning, match="a scheduler drives this optimizer but was not given"):
        rescale_(optimizer, 4)
    with pytest.warns(ScalingWarning, match="go back with"):
        rescale_(optimizer, 2, scheduler=scheduler)
    with pytest.warns(ScalingWarning, match="a scheduler drives this optimizer but was not given"):
        rescale_(optimizer, 0.25)
    rescale_(optimizer, 4, scheduler=scheduler)
    for one, its in ((optimizer, scheduler), (reference, expected)):
        one.step()
        its.step()
    assert scheduler.get_last_lr() == [pytest.approx(expected.get_last_lr()[0])]
    assert optimizer.param_groups[0]["lr"] == pytest.approx(reference.param_groups[0]["lr"])


def test_a_scheduler_that_no_change_was_given_is_told_at_a_restore():
    optimizer = adam()
    rescale_(optimizer, 4)
    with pytest.warns(ScalingWarning, match="the scheduler was not given to an earlier rescale_"):
        restore_(optimizer, scheduler=StepLR(optimizer, 10))


def test_a_part_that_misses_a_change_in_between_is_told():
    optimizer, ema = adam(), Average(0.999)
    rescale_(optimizer, 4, ema=ema)
    rescale_(optimizer, 2)
    with pytest.warns(ScalingWarning, match=r"decay \*\* 2"):
        rescale_(optimizer, 3, ema=ema)


def test_layers_that_join_a_converted_model_are_told():
    model = net()
    optimizer = adam(model)
    rescale_(optimizer, 4, model=model)
    model.append(nn.BatchNorm1d(1))
    with pytest.warns(ScalingWarning, match="or the layers were made since"):
        rescale_(optimizer, 2, model=model)
    assert [layer.momentum for layer in (model[1], model[3])] == [pytest.approx(1 - 0.9**8), pytest.approx(1 - 0.9**2)]


def test_accumulation_leaves_nothing_behind(recwarn):
    model = net()
    optimizer = adam(model)
    rescale_(optimizer, 4, model=model, forward_kappa=1)
    rescale_(optimizer, 2, model=model)
    assert model[1].momentum == pytest.approx(1 - 0.9**2)
    assert not recwarn.list


# ---- decays that cannot be set


class WarmingUp:
    """Its decay is read as that of a warm-up and written as the base of it."""

    def __init__(self, updates):
        self.base, self.updates = 0.999, updates

    @property
    def decay(self):
        return min(self.base, (1 + self.updates) / (10 + self.updates))

    @decay.setter
    def decay(self, value):
        self.base = value


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_decay_that_is_computed_is_refused_and_not_touched(dry_run):
    ema = WarmingUp(3)
    with pytest.raises(TypeError, match=r"decay of WarmingUp is a property that computes 0\.307692, .*a warm-up"):
        rescale_(adam(), 4, ema=ema, dry_run=dry_run)
    assert ema.base == 0.999


def test_a_property_that_reads_its_number_is_converted():
    ema = WarmingUp(10**6)
    rescale_(adam(), 4, ema=ema)
    assert ema.base == pytest.approx(0.999**4)


def test_a_dry_run_sets_nothing():
    class Counting(Average):
        writes = 0

        def __setattr__(self, name, value):
            Counting.writes += 1
            super().__setattr__(name, value)

    ema = Counting(0.99)
    rescale_(adam(), 4, ema=ema, dry_run=True)
    assert Counting.writes == 1


def test_a_frozen_average_is_refused():
    @dataclass(frozen=True)
    class Frozen:
        decay: float = 0.9

    with pytest.raises(TypeError, match="the decay of Frozen cannot be set; convert it yourself"):
        rescale_(adam(), 4, ema=Frozen(), dry_run=True)


# ---- what is left to the user


def test_a_second_average_in_the_model_is_reminded_of():
    model = nn.ModuleDict({"student": net()})
    model["teacher"] = exponential(model["student"], 0.99)
    model["swa"] = AveragedModel(model["student"])  # of equal weights
    left = rescale_(adam(model["student"]), 4, model=model, ema=Average(0.9)).remaining
    assert [text for text in left if "average" in text] == [
        "parameter average teacher (AveragedModel): it was not given; give ema=model.teacher"
    ]


def test_what_an_average_counts_in_updates_is_reminded_of():
    ema = Average(0.999)
    vars(ema).update(num_updates=0, update_after_step=100, update_every=0, use_warmup=True, power=0, device="cpu")
    left = rescale_(adam(), 4, ema=ema).remaining
    assert left[-1] == (
        "what Average counts in its own updates, a warm-up of its decay or an interval (num_updates = 0, "
        "update_after_step = 100, use_warmup = True): one update now has the samples of 4 before"
    )
    assert not any("counts in its own" in text for text in rescale_(adam(), 4, ema=Average(0.9)).remaining)


class Rounded:
    """An average that keeps its decay in single precision."""

    def __init__(self, decay):
        self._decay = torch.tensor(decay)

    decay = property(lambda self: self._decay.item(), lambda self, value: self._decay.fill_(value))


@pytest.mark.parametrize("kappas", [(2, 2, 2, 2), (4, 4), (8, 8), (2, 8)])
@pytest.mark.parametrize("decay", [0.99, 0.999, 0.9995, 0.9999])
def test_a_decay_in_single_precision_is_known_again_after_many_changes(decay, kappas):
    optimizer, ema, total = adam(), Rounded(decay), 1
    for kappa in kappas:
        rescale_(optimizer, kappa, ema=ema)
        total *= kappa
    fresh, again = loaded(optimizer.state_dict()), Rounded(decay)
    restore_(fresh, ema=again)
    assert again.decay == pytest.approx(decay**total, rel=1e-5)
    other = loaded(optimizer.state_dict())
    with pytest.raises(ValueError, match="but the run was saved with"):
        restore_(other, ema=Rounded(decay**1.5))


def test_a_layout_beside_a_number_is_of_no_matter_where_batchnorm_is_kept():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.99, 0.999))
    with pytest.raises(ValueError, match="beside 16"):
        rescale_(optimizer, batch_size=(16, "16x4x1"), model=model)
    with pytest.warns(ScalingWarning, match="without batchnorm"):
        rescale_(optimizer, batch_size=(16, "16x4x1"), model=model, rule="sqrt without batchnorm")
    assert model[1].momentum == 0.1
