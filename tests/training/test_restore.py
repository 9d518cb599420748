"""Runs that carry their units: what is saved, what is restored, what is refused, and what is left to the user."""

import copy
import subprocess
import sys

import pytest
import torch
from live import ADAM, Average, net, plain, train
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim.lr_scheduler import LinearLR, StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from rootscale import ScalingWarning
from rootscale.training import rescale_, restore_, track_
from rootscale.training.markers import units_of
from rootscale.training.optim import MicroBatchAdam


def adam(model=None):
    return torch.optim.Adam((model or net()).parameters(), **ADAM)


def carried(optimizer):
    return {
        key.removeprefix("rootscale_"): value
        for key, value in optimizer.param_groups[0].items()
        if key.startswith("rootscale_")
    }


# ---- what a run carries


def test_units_are_plain_numbers_in_every_group():
    model, ema = net(), Average(0.99)
    groups = [{"params": [parameter]} for parameter in model.parameters()]
    optimizer = torch.optim.Adam(groups, **ADAM)
    scheduler = LinearLR(optimizer)
    rescale_(optimizer, batch_size=(16, 64), scheduler=scheduler, model=model, ema=ema, forward_kappa=2)
    rescale_(optimizer, 2, scheduler=scheduler)
    wanted = {"kappa": 8.0, "batch_size": 128.0, "scheduler_kappa": 8.0, "forward_kappa": 2.0, "ema_kappa": 4.0}
    wanted["beta1"] = pytest.approx(1 - 8 * 0.02)  # what beta1 would be without its floor
    assert {key: carried(optimizer)[key] for key in wanted} == wanted  # and betas that stopped at a floor
    assert all(type(value) is float for value in carried(optimizer).values())
    for group in optimizer.param_groups:
        assert {key: group[f"rootscale_{key}"] for key in wanted} == wanted
    assert "rootscale_kappa" not in optimizer.defaults  # from which tools make new optimizers


def test_a_run_that_goes_back_to_the_units_of_its_script_carries_none():
    model = net()
    optimizer = adam(model)
    before = plain(optimizer.state_dict())
    rescale_(optimizer, 4, model=model)
    rescale_(optimizer, 1 / 4, model=model)
    assert carried(optimizer) == {}
    assert plain(optimizer.state_dict())["param_groups"][0].keys() == before["param_groups"][0].keys()


def test_what_is_refused_or_rolled_back_carries_nothing(monkeypatch):
    model = net()
    optimizer, scheduler = adam(model), object()
    with pytest.raises(TypeError, match="scheduler must be"):
        rescale_(optimizer, 4, scheduler=scheduler, model=model)
    assert carried(optimizer) == {}

    class Stubborn(Average):
        def __setattr__(self, name, value):
            if name == "decay" and value != 0.99:
                raise RuntimeError("no")
            super().__setattr__(name, value)

    rescale_(optimizer, 2, model=model)
    held = carried(optimizer)
    with pytest.warns(ScalingWarning, match="was not given to rescale_"), pytest.raises(RuntimeError, match="no"):
        rescale_(optimizer, 2, model=model, ema=Stubborn(0.99))
    assert carried(optimizer) == held
    train(model, optimizer, 1)


def test_a_dry_run_leaves_no_trace():
    optimizer = adam()
    rescale_(optimizer, 4, dry_run=True)
    assert carried(optimizer) == {}


# ---- the change of batch size


def test_batch_sizes_are_kappa():
    one, other = adam(), adam()
    changes = rescale_(one, 4)
    sizes = rescale_(other, batch_size=(16, 64))
    assert [(row.name, row.after) for row in changes] == [(row.name, row.after) for row in sizes]
    assert (sizes.kappa, sizes.steps_factor) == (4, 0.25)
    assert units_of(other.param_groups).batch_size == 64


def test_layouts_say_how_many_samples_a_forward_has():
    model = net()
    changes = rescale_(adam(model), batch_size=("16x1x1", "16x4x1"), model=model)
    assert (changes.kappa, changes["BatchNorm momentum"].after) == (4, 0.1)


def test_batch_sizes_may_be_tensors_as_other_numbers_may():
    assert rescale_(adam(), batch_size=(torch.tensor(16), torch.tensor(64))).kappa == 4


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((16, "16x4x1"), r"layout 16x4x1 beside 16, .* as in \('16x1x1', '16x4x1'\), both as numbers, as in \(16, "),
        (("16x4x1", 128), r"layout 16x4x1 beside 128, .* as in \('16x4x1', '128x1x1'\), both as numbers"),
    ],
)
def test_a_layout_beside_a_number_is_refused_where_there_is_batchnorm(sizes, message):
    model = net()
    with pytest.raises(ValueError, match=message):
        rescale_(adam(model), batch_size=sizes, model=model)
    assert rescale_(adam(), batch_size=sizes).kappa > 1


def test_a_layout_beside_a_number_needs_the_change_of_a_forward():
    model, optimizer = net(), adam()
    track_(optimizer, "8x2x1")
    with pytest.raises(ValueError, match="layout 16x4x1 beside 16, which does not say how many samples one forward"):
        rescale_(optimizer, batch_size="16x4x1", model=model)
    changes = rescale_(optimizer, batch_size="16x4x1", model=model, forward_kappa=1)
    assert (changes.kappa, changes["BatchNorm momentum"].after) == (4, 0.1)


def test_micro_batches_whose_second_moment_is_kept_stay_as_large():
    def rescaled(*layouts):
        return rescale_(MicroBatchAdam(net().parameters(), lr=1e-3, betas=(0.98, 0.999)), batch_size=layouts)

    assert rescaled("16x4x1", "16x16x1")["lr"].after == 4e-3
    assert rescaled(64, 256)["lr"].after == 4e-3
    for new in ("64x1x1", "64x4x1", "16x4x4"):
        with pytest.raises(ValueError, match="takes their size to be fixed, but they grow by 4: change the accumul"):
            rescaled("16x4x1", new)


def test_a_run_that_carries_its_batch_size_needs_only_the_new_one():
    optimizer = adam()
    track_(optimizer, 16)
    assert rescale_(optimizer, batch_size=64).kappa == 4
    assert rescale_(optimizer, batch_size=(64, 32)).kappa == 0.5
    assert carried(optimizer)["batch_size"] == 32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, r"give either kappa or batch_size=\(before, after\), .* got neither"),
        ({"kappa": 4, "batch_size": (16, 64)}, "got both"),
        ({"batch_size": 64}, r"does not carry its batch size: give batch_size=\(before, 64\), or call track_"),
        ({"batch_size": "16x4x1"}, r"does not carry its batch size: give batch_size=\(before, '16x4x1'\), or call"),
        ({"batch_size": "16->64"}, r"batch_size must be a number .*, got '16->64'"),
        ({"batch_size": (16, 32, 64)}, "must be .before, after. or the new one alone, got 3 numbers"),
        ({"batch_size": (16, 0)}, "batch_size must be a number above 0"),
        ({"batch_size": (16, None)}, "batch_size must be a number above 0 such as 1024, got None"),
        ({"batch_size": (None, 16)}, "batch_size must be a number above 0 such as 1024, got None"),
        ({"kappa": 0}, "kappa must be a finite number > 0"),
        ({"kappa": 4, "clip": -1.0}, "clip must be a finite number > 0"),
        ({"kappa": 4, "state": "no"}, "state must be True or False, got 'no'"),
        ({"kappa": 4, "state": None}, "state must be True or False, got None"),
        ({"kappa": 4, "dry_run": "no"}, "dry_run must be True or False, got 'no'"),
    ],
)
def test_a_change_that_is_not_clear_is_refused(change, message):
    optimizer = adam()
    with pytest.raises(ValueError, match=message):
        rescale_(optimizer, **change)
    assert optimizer.param_groups[0]["lr"] == 1e-3


def test_a_run_at_another_batch_size_is_not_converted_from_this_one():
    optimizer = adam()
    rescale_(optimizer, batch_size=(16, 64))
    with pytest.raises(ValueError, match="the run is at batch size 64, not at 16"):
        rescale_(optimizer, batch_size=(16, 64))


def test_the_clip_and_the_steps_are_returned():
    changes = rescale_(adam(), batch_size=(16, 64), clip=2.0)
    assert (changes.clip, changes.steps_factor) == (1.0, 0.25)
    assert changes["clip"].status == "heuristic"
    assert rescale_(adam(), 4).clip is None
    linear = rescale_(torch.optim.SGD(net().parameters(), lr=0.1), 4, clip=2.0)
    assert linear.clip == 1.0


@pytest.mark.parametrize("change", [{"batch_size": (16, 64)}, {"batch_size": 64}])
def test_a_resumed_run_gets_the_clip_and_the_steps_of_its_change(change):
    first, resumed = adam(), adam()
    if change["batch_size"] == 64:
        track_(first, 16)
    wanted = rescale_(first, **change, clip=2.0, rule="sqrt")
    resumed.load_state_dict(copy.deepcopy(first.state_dict()))
    changes = rescale_(resumed, **change, clip=2.0, rule="sqrt")
    assert (changes.clip, changes.steps_factor, changes.kappa) == (1.0, 0.25, 4)
    assert changes.remaining == wanted.remaining
    assert resumed.param_groups[0]["lr"] == first.param_groups[0]["lr"]


def test_a_resumed_run_is_refused_for_what_is_refused_at_first():
    first = adam()
    rescale_(first, batch_size=(16, 64))
    for wrong, message in (({"clip": -1.0}, "clip must be"), ({"rule": "nonsense"}, "nonsense")):
        resumed = adam()
        resumed.load_state_dict(copy.deepcopy(first.state_dict()))
        with pytest.raises(ValueError, match=message):
            rescale_(resumed, batch_size=(16, 64), **wrong)


def test_changes_are_a_flat_dictionary_for_loggers():
    generator, critic = adam(), adam()
    changes = rescale_([generator, critic], 4, clip=1.0)
    flat = changes.flat()
    assert flat["rootscale/kappa"] == 4.0
    assert flat["rootscale/optimizer_1/lr"] == 2e-3
    assert flat["rootscale/clip"] == 0.5
    assert all(type(value) is float for value in flat.values())
    assert set(changes.flat("")) == {name.removeprefix("rootscale/") for name in flat}


# ---- what is left to the user


def test_an_average_that_was_not_converted_with_the_run_is_told():
    optimizer, model = adam(), net()
    rescale_(optimizer, 4)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    with pytest.warns(ScalingWarning, match=r"was not given to rescale_.* set its decay to decay \*\* 4"):
        restore_(optimizer, scheduler=[], model=[], ema=ema)


def test_what_remains_is_named():
    changes = rescale_(adam(), batch_size=(16, 64), clip=1.0)
    assert list(changes.remaining) == [
        "batch size of the data loader (or accumulation, or workers): 16 -> 64",
        "steps left, and every interval in steps (logging, evaluation, checkpoints): divide by 4",
        "gradient clip: 1 -> 0.5",
        "BatchNorm, if there is any: model was not given, and its momentum is in no optimizer; give model=model",
        "average of the parameters (EMA), if there is one: ema was not given; give ema=ema",
    ]
    assert "left to you: gradient clip: 1 -> 0.5" in str(changes)
    assert changes.to_dict()["remaining"] == list(changes.remaining)
    unknown = rescale_(adam(), 4, model=net()).remaining
    assert unknown[0].endswith("times 4")
    assert unknown[-2] == "gradient clip, if there is one: times 0.5"
    assert rescale_(adam(), 1).remaining == ()


def test_an_average_that_can_be_seen_is_reminded_of():
    class Teacher(nn.Module):
        def __init__(self):
            super().__init__()
            self.student = net()
            self.average = AveragedModel(self.student, multi_avg_fn=get_ema_multi_avg_fn(0.99))
            self.ema = Average(0.9)

    model = Teacher()
    reminders = [text for text in rescale_(adam(model.student), 4, model=model).remaining if "average" in text]
    assert reminders == [
        "parameter average ema (Average): it was not given; give ema=model.ema",
        "parameter average average (AveragedModel): it was not given; give ema=model.average",
    ]
    given = rescale_(adam(model.student), 4, model=model, ema=[model.ema, model.average])
    assert not any("average" in text for text in given.remaining)


# ---- restoring


def saved_run():
    model, ema = net(), Average(0.99)
    optimizer = adam(model)
    scheduler = LinearLR(optimizer, 0.5, total_iters=64)
    rescale_(optimizer, 4, scheduler=scheduler, model=model, ema=ema)
    return copy.deepcopy({"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()})


def loaded_run(saved, *names):
    model = net()
    optimizer = adam(model)
    scheduler = LinearLR(optimizer, 0.5, total_iters=64)
    for name in names or ("optimizer", "scheduler"):
        {"optimizer": optimizer, "scheduler": scheduler}[name].load_state_dict(copy.deepcopy(saved[name]))
    return optimizer, {"scheduler": scheduler, "model": model, "ema": Average(0.99)}


def test_restoring_is_done_once_however_often_it_is_called():
    optimizer, parts = loaded_run(saved_run())
    changes = restore_(optimizer, **parts)
    assert changes.kappa == 4
    assert {row.name: row.after for row in changes} == {
        "LinearLR clock": 4, "BatchNorm momentum": pytest.approx(1 - 0.9**4), "EMA decay": pytest.approx(0.99**4),
    }  # fmt: skip
    for again in (optimizer, copy.deepcopy(optimizer)):
        assert len(restore_(again, **(parts if again is optimizer else {**parts, "scheduler": []}))) == 0
    assert parts["ema"].decay == pytest.approx(0.99**4)


def test_a_run_that_was_never_converted_stays_as_it_is():
    model = net()
    optimizer = adam(model)
    before = plain(optimizer.state_dict())
    scheduler = StepLR(optimizer, 4)
    assert len(restore_(optimizer, scheduler=scheduler, model=model, ema=Average(0.9))) == 0
    assert type(scheduler) is StepLR
    assert carried(optimizer) == {}
    assert plain(optimizer.state_dict())["state"] == before["state"]


@pytest.mark.parametrize("missing", ["scheduler", "model", "ema"])
def test_what_was_converted_has_to_be_restored_with_the_optimizer(missing):
    optimizer, parts = loaded_run(saved_run())
    parts[missing] = None
    with pytest.raises(ValueError, match=rf"to be restored with it: call .*{missing}={missing}.* \(an empty list"):
        restore_(optimizer, **parts)
    model = parts["model"]
    assert model is None or model[1].momentum == 0.1
    parts[missing] = []
    restore_(optimizer, **parts)  # there is none any more
    optimizer.step()


@pytest.mark.parametrize(("name", "other"), [("optimizer", "scheduler"), ("scheduler", "optimizer")])
def test_a_state_that_was_not_loaded_is_noticed(name, other):
    optimizer, parts = loaded_run(saved_run(), name)
    with pytest.raises(ValueError, match=f"load both of their states .* that of the {other} seems to be missing"):
        restore_(optimizer, **parts)
    assert parts["model"][1].momentum == 0.1


def test_each_of_several_optimizers_is_restored_with_its_scheduler():
    one, two, *fresh = (adam() for _ in range(4))
    converted, new = ([StepLR(each, 5) for each in pair] for pair in ((one, two), fresh))
    rescale_([one, two], 4, scheduler=converted)
    for target, source in zip([*fresh, *new], [one, two, *converted], strict=True):
        target.load_state_dict(source.state_dict())
    with pytest.raises(ValueError, match=r"optimizer 1: .* a scheduler, and none of those given drives it: give that"):
        restore_(fresh, scheduler=new[:1])
    assert restore_(fresh, scheduler=new).kappa == 4


def test_optimizers_of_different_units_are_restored_apart():
    saved = saved_run()
    optimizer, parts = loaded_run(saved)
    with pytest.raises(ValueError, match="in different units, kappa = 4 and 1; restore each"):
        restore_([optimizer, adam()], **parts)


def test_a_change_can_follow_once_the_run_is_restored():
    optimizer, parts = loaded_run(saved_run())
    with pytest.raises(ValueError, match="if this is another one, let it follow restore_"):
        rescale_(optimizer, 2, **parts)
    restore_(optimizer, **parts)
    rescale_(optimizer, 2, **parts)
    assert carried(optimizer)["kappa"] == 8
    assert parts["model"][1].momentum == pytest.approx(1 - 0.9**8)


def test_a_loaded_run_that_needs_nothing_else_goes_on_and_is_known_after_a_step():
    model = net()
    optimizer = adam(model)
    rescale_(optimizer, 4)
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer = adam(model)
    optimizer.load_state_dict(saved)
    with pytest.raises(ValueError, match="converted already, to kappa = 4"):
        rescale_(optimizer, 4)
    train(model, optimizer, 1)
    rescale_(optimizer, 4)
    assert carried(optimizer)["kappa"] == 16


def test_a_checkpoint_of_two_changes_is_not_loaded_into_a_run_of_one():
    model = net()
    optimizer = adam(model)
    rescale_(optimizer, 16)
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer = adam(model)
    rescale_(optimizer, 4)
    with pytest.raises(ValueError, match=r"saved at kappa = 16: leave rescale_ out: .* and then restore_\(optimizer"):
        optimizer.load_state_dict(saved)


def test_tracking_is_for_a_run_that_starts():
    optimizer = adam()
    scheduler = StepLR(optimizer, 4)
    track_(optimizer, 16, scheduler=scheduler)
    track_(optimizer, 16, scheduler=scheduler)  # a script may say it again
    assert isinstance(scheduler, StepLR)
    with pytest.raises(
        ValueError, match=r"track_ is for a run that starts; this Adam is at kappa = 1 \(batch size 16\)"
    ):
        track_(optimizer, 32)
    with pytest.raises(ValueError, match="batch_size must be"):
        track_(adam(), 0)


def test_a_tracked_scheduler_restores_itself_and_goes_there_and_back():
    saved = saved_run()
    model = net()
    optimizer = adam(model)
    scheduler = LinearLR(optimizer, 0.5, total_iters=64)
    track_(optimizer, 16, scheduler=scheduler)
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
    restore_(optimizer, model=model, ema=[])
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(2e-3 * (0.5 + 0.5 * 4 / 64))


def test_a_compiled_step_is_not_disturbed():
    model = net()
    optimizer = adam(model)
    train(model, optimizer, 1)
    rescale_(optimizer, 4)
    torch.compile(optimizer.step, backend="eager")()


SCRIPT = """
import sys, torch
state = torch.load(sys.argv[1], weights_only=True)
optimizer = torch.optim.Adam([torch.ones(1, requires_grad=True)], lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4)
optimizer.load_state_dict(state["optimizer"])
scheduler.load_state_dict(state["scheduler"])
optimizer.step()
assert not any(name.startswith("rootscale") for name in sys.modules)
try:
    scheduler.step()
except TypeError:
    print(scheduler.last_epoch)
"""


@pytest.mark.slow
def test_a_program_without_rootscale_loads_it_and_does_not_go_on_in_other_units(tmp_path):
    optimizer = torch.optim.Adam([torch.ones(1, requires_grad=True)], lr=1e-3)
    scheduler = StepLR(optimizer, 4)
    rescale_(optimizer, 4, scheduler=scheduler)
    torch.save({"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}, tmp_path / "run.pt")
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "run.pt")], check=True, capture_output=True, text=True
    )
    assert "call rootscale.training.restore_(optimizer, scheduler=scheduler, ...)" in found.stdout


# ---- torch.distributed.checkpoint, which loads only keys that a fresh state has


def normed():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))


def stepped(model, optimizer, steps=2):
    for seed in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))).square().mean().backward()
        optimizer.step()


def through_dcp(model, optimizer, fresh, folder):
    """Save a run, and load it into fresh objects."""
    states = get_state_dict(model, optimizer)
    dcp.save(dict(zip("mo", states, strict=True)), checkpoint_id=folder, no_dist=True)
    held = dict(zip("mo", get_state_dict(*fresh), strict=True))
    dcp.load(held, checkpoint_id=folder, no_dist=True)
    set_state_dict(*fresh, model_state_dict=held["m"], optim_state_dict=held["o"])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_tracked_run_keeps_the_betas_without_floors_in_a_distributed_checkpoint(tmp_path):
    model, optimizer = normed()
    track_(optimizer, 16)
    stepped(model, optimizer)
    rescale_(optimizer, 16, model=model)
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.9)  # stopped by their floors
    fresh = normed()
    track_(fresh[1], 16)
    through_dcp(model, optimizer, fresh, tmp_path / "dcp")
    restore_(fresh[1], model=fresh[0])
    group = fresh[1].param_groups[0]
    assert (group["rootscale_beta1"], group["rootscale_beta2"]) == pytest.approx((-0.6, 0.2))
    rescale_(fresh[1], 1 / 16, model=fresh[0])
    assert group["betas"] == pytest.approx((0.9, 0.95))  # the way back leads to the first betas
    assert (group["rootscale_beta1"], group["rootscale_beta2"]) == (None, None)
    stepped(*fresh)


def test_a_tracked_run_follows_betas_that_somebody_changes():
    """The keys are there from the start, and say nothing before a floor stops an average."""
    _, optimizer = normed()
    track_(optimizer, 16)
    optimizer.param_groups[0]["betas"] = (0.98, 0.999)
    rescale_(optimizer, 4)
    assert optimizer.param_groups[0]["betas"] == pytest.approx((0.92, 0.996))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_saving_units_that_a_distributed_checkpoint_would_lose_warns(tmp_path):
    model, optimizer = normed()
    stepped(model, optimizer)
    rescale_(optimizer, 4, model=model)
    optimizer.state_dict()  # an ordinary save keeps them
    with pytest.warns(ScalingWarning, match=r"together with BatchNorm's momentum, and .* Call .*track_\(optimizer"):
        through_dcp(model, optimizer, normed(), tmp_path / "dcp")
