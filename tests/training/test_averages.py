"""Averages of the parameters: each kind follows the batch size, and states and copies hold the script's decay."""

import copy
import pickle
from dataclasses import dataclass
from types import new_class

import pytest
import torch
from live import ADAM, Average, net
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

from rootscale.training import Run, register, rescale_
from rootscale.training.averages import KINDS, ParameterAverage

DECAY = 0.999


class Saving(Average):
    """An average of a user's own that saves its decay."""

    def state_dict(self):
        return {"decay": self.decay}

    def load_state_dict(self, state):
        self.decay = state["decay"]


class Plain(Average):
    """One whose state does not hold the decay."""

    def state_dict(self):
        return {"mean": 1.0}

    def load_state_dict(self, state):
        self.mean = state["mean"]


def adam(model=None):
    return torch.optim.Adam((model or net()).parameters(), **ADAM)


def exponential(model, decay=DECAY):
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))


# ---- the table of kinds


class Beta(torch.nn.Module):
    """ema_pytorch's way: beta, an interval, a counter in a buffer."""

    def __init__(self):
        super().__init__()
        self.beta, self.update_every, self.update_after_step, self.inv_gamma, self.power = DECAY, 10, 100, 1.0, 2 / 3
        self.register_buffer("step", torch.tensor(7))


class Decay:
    """The way of the others: a decay in an attribute, and in the state where the library saves it."""

    def __init__(self):
        self.decay, self.optimization_step, self.update_after_step, self.num_updates = DECAY, 7, 0, 7

    def state_dict(self):
        return {"decay": self.decay, "optimization_step": self.optimization_step}

    def load_state_dict(self, state):
        self.decay = state.get("decay", self.decay)
        self.optimization_step = state["optimization_step"]


def stand_in(package, name, base):
    return new_class(name, (base,), {}, lambda body: body.update(__module__=f"{package}.models"))


STAND_INS = {
    "ema_pytorch.EMA": (stand_in("ema_pytorch", "EMA", Beta), "beta"),
    "diffusers.EMAModel": (stand_in("diffusers", "EMAModel", Decay), "decay"),
    "torch_ema.ExponentialMovingAverage": (stand_in("torch_ema", "ExponentialMovingAverage", Decay), "decay"),
    "timm.ModelEmaV3": (stand_in("timm", "ModelEmaV3", Average), "decay"),
    "timm.ModelEmaV2": (stand_in("timm", "ModelEmaV2", Average), "decay"),
    "timm.ModelEma": (stand_in("timm", "ModelEma", Average), "decay"),
}


def made(name):
    cls, attribute = STAND_INS[name]
    return (cls(DECAY) if issubclass(cls, Average) else cls()), attribute


def test_every_row_of_the_table_has_a_stand_in():
    assert {f"{kind.package}.{kind.cls}" for kind in KINDS} == set(STAND_INS)


@pytest.mark.parametrize("name", STAND_INS)
def test_the_decay_of_every_kind_follows_and_goes_back(name):
    ema, attribute = made(name)
    others = {key: value for key, value in vars(ema).items() if key != attribute and not key.startswith("_")}
    run = Run(adam(), tuned_at=8, batch_size=32, ema=ema)
    assert getattr(ema, attribute) == pytest.approx(DECAY**4, rel=1e-14)
    (row,) = [row for row in run.changes if row.name == "EMA decay"]
    assert (row.before, row.after, row.status) == (DECAY, pytest.approx(DECAY**4, rel=1e-14), "derived")
    run.batch_size = 4
    assert getattr(ema, attribute) == pytest.approx(DECAY**0.5, rel=1e-14)
    run.batch_size = 8
    assert getattr(ema, attribute) == DECAY
    run.batch_size = 32
    run.detach()
    assert getattr(ema, attribute) == DECAY
    assert {key: vars(ema)[key] for key in others} == others  # an interval stays what it is, in steps
    rescale_(adam(), 4, ema=ema)
    assert getattr(ema, attribute) == pytest.approx(DECAY**4, rel=1e-14)


@pytest.mark.parametrize(("name", "count"), [("ema_pytorch.EMA", 7.0), ("diffusers.EMAModel", 7.0)])
def test_updates_are_counted_where_the_class_counts_them(name, count):
    assert ParameterAverage(made(name)[0]).updates == count


def test_an_update_interval_keeps_the_window_in_samples():
    """An update every tenth step covers 10 times 8 samples before and 10 times 32 after: one instruction, no more."""
    ema, _ = made("ema_pytorch.EMA")
    before = ema.beta ** (32_000 / (ema.update_every * 8))
    run = Run(adam(), tuned_at=8, batch_size=32, ema=ema)
    assert ema.update_every == 10
    assert ema.beta ** (32_000 / (ema.update_every * 32)) == pytest.approx(before, rel=1e-12)
    assert not any("update_every" in text for text in run.changes.remaining)


def test_a_warm_up_that_counts_updates_is_left_to_the_user_by_name():
    ema, _ = made("ema_pytorch.EMA")
    run = Run(adam(), tuned_at=8, batch_size=32, ema=ema)
    (line,) = [text for text in run.changes.remaining if "warm-up" in text]
    assert line.startswith("the warm-up of EMA counts its own updates (update_after_step = 100, inv_gamma = 1.0")
    run.batch_size = 8
    assert not run.changes.remaining
    assert not any(
        "warm-up of" in text for text in Run(adam(), tuned_at=8, batch_size=16, ema=Average(0.9)).changes.remaining
    )


@pytest.mark.parametrize(("attribute", "maker"), [("multi_avg_fn", get_ema_multi_avg_fn), ("avg_fn", get_ema_avg_fn)])
def test_torchs_average_moves_by_the_decay_of_now(attribute, maker):
    model = net()
    ema = AveragedModel(model, **{attribute: maker(0.99)})
    run = Run(adam(model), tuned_at=8, batch_size=32, ema=ema)
    for kappa in (4, 2, 1):
        run.batch_size = 8 * kappa
        with torch.no_grad():
            for parameter in ema.parameters():
                parameter.zero_()
            for parameter in model.parameters():
                parameter.fill_(1)
        ema.n_averaged.fill_(1)
        ema.update_parameters(model)
        moved = next(ema.parameters()).detach().flatten()[0].item()
        assert moved == pytest.approx(1 - 0.99**kappa, rel=1e-12)


@pytest.mark.usefixtures("forget_registered")
def test_a_registered_attribute_follows():
    class Tracker:
        def __init__(self):
            self.rate = 0.99

    with pytest.raises(TypeError, match=r"got Tracker; .*register\(Tracker, decay='\.\.\.'\)"):
        Run(adam(), tuned_at=8, batch_size=32, ema=Tracker())
    register(Tracker, decay="rate")
    try:
        one, two = Tracker(), type("Faster", (Tracker,), {})()
        run = Run(adam(), tuned_at=8, batch_size=32, ema=[one, two])
        assert (one.rate, two.rate) == (pytest.approx(0.99**4), pytest.approx(0.99**4))
        run.detach()
        assert (one.rate, two.rate) == (0.99, 0.99)
    finally:
        del KINDS[0]


# ---- a decay that is set between two changes


@pytest.mark.parametrize("make", [lambda: Average(DECAY), lambda: made("diffusers.EMAModel")[0]])
def test_a_decay_that_the_script_sets_between_two_changes_is_the_scripts(make):
    ema = make()
    run = Run(adam(), tuned_at=8, batch_size=32, ema=ema)
    ema.decay = 0.99
    run.batch_size = 16
    assert ema.decay == pytest.approx(0.99**2, rel=1e-14)
    run.detach()
    assert ema.decay == 0.99


def test_a_decay_that_is_set_to_what_it_is_stays():
    ema = Average(DECAY)
    run = Run(adam(), tuned_at=8, batch_size=32, ema=ema)
    ema.decay = ema.decay + 0.0
    run.batch_size = 8
    assert ema.decay == DECAY


class Rounded:
    """An average that keeps its decay in single precision."""

    def __init__(self, decay):
        self._decay = torch.tensor(decay)

    decay = property(lambda self: self._decay.item(), lambda self, value: self._decay.fill_(value))


@pytest.mark.parametrize("sizes", [(16, 32, 64, 128), (32, 128), (64, 512), (16, 128)])
@pytest.mark.parametrize("decay", [0.99, 0.999, 0.9995, 0.9999])
def test_a_decay_in_single_precision_is_not_taken_for_one_that_was_set(decay, sizes):
    ema = Rounded(decay)
    first = ema.decay
    run = Run(adam(), tuned_at=8, ema=ema)
    for size in sizes:
        run.batch_size = size
        assert ema.decay == pytest.approx(first ** (size / 8), rel=1e-7)
    run.batch_size = 8
    assert ema.decay == first


# ---- states


SAVED = {
    "diffusers": lambda: made("diffusers.EMAModel")[0],
    "torch_ema": lambda: made("torch_ema.ExponentialMovingAverage")[0],
    "own": lambda: Saving(DECAY),
}


@pytest.mark.parametrize("order", ["before", "after", "both"])
@pytest.mark.parametrize("size", [8, 16, 64])
@pytest.mark.parametrize("name", SAVED)
def test_a_state_holds_the_scripts_decay_and_is_loaded_in_any_order(name, size, order):
    ema = SAVED[name]()
    Run(adam(), tuned_at=8, batch_size=32, ema=ema)
    state = ema.state_dict()
    assert state["decay"] == DECAY
    assert ema.decay == pytest.approx(DECAY**4, rel=1e-14)  # saving changes nothing
    other = SAVED[name]()
    if order != "after":
        other.load_state_dict(state)
    run = Run(adam(), tuned_at=8, batch_size=size, ema=other)
    if order != "before":
        other.load_state_dict(state)
    assert other.decay == pytest.approx(DECAY ** (size / 8), rel=1e-14)
    other.load_state_dict({**state, "decay": 0.9})  # of another script
    assert other.decay == pytest.approx(0.9 ** (size / 8), rel=1e-14)
    run.detach()
    assert other.decay == 0.9
    assert "state_dict" not in vars(other)


@pytest.mark.parametrize("make", [lambda: Plain(DECAY), lambda: made("diffusers.EMAModel")[0]])
def test_a_state_without_a_decay_changes_none(make):
    ema = make()
    run = Run(adam(), tuned_at=8, batch_size=32, ema=ema)
    state = ema.state_dict()
    state.pop("decay", None)
    for _ in range(2):
        ema.load_state_dict(state)
    assert ema.decay == pytest.approx(DECAY**4, rel=1e-14)
    run.batch_size = 8
    assert ema.decay == DECAY


def test_a_state_that_cannot_be_loaded_leaves_the_decay():
    ema = Saving(DECAY)
    Run(adam(), tuned_at=8, batch_size=32, ema=ema)
    with pytest.raises(KeyError):
        ema.load_state_dict({})
    assert ema.decay == pytest.approx(DECAY**4, rel=1e-14)


# ---- copies


@pytest.mark.parametrize("copy_of", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_of_an_average_that_saves_its_decay_is_the_scripts(copy_of):
    ema = Saving(DECAY)
    run = Run(adam(), tuned_at=8, batch_size=32, ema=ema)
    copied = copy_of(ema)
    assert (type(copied), copied.decay, copied.state_dict()) == (Saving, DECAY, {"decay": DECAY})
    run.batch_size = 16
    assert (ema.decay, copied.decay) == (pytest.approx(DECAY**2), DECAY)


@pytest.mark.parametrize("kind", [Average, Saving])
def test_a_copied_run_has_an_average_of_its_own(kind):
    ema = kind(DECAY)
    run = Run(adam(), tuned_at=8, batch_size=32, ema=ema)
    other = copy.deepcopy(run)
    (copied,) = [one.average for one in other._averages]
    assert copied is not ema
    other.batch_size = 64
    assert (ema.decay, copied.decay) == (pytest.approx(DECAY**4, rel=1e-14), pytest.approx(DECAY**8, rel=1e-14))
    other.detach()
    assert copied.decay == DECAY


# ---- several, and in place


def test_there_may_be_several_averages_and_each_has_its_own_decay():
    one, two, three = Average(0.9), Average(0.99), Saving(0.9**4)
    run = Run(adam(), tuned_at=8, batch_size=32, ema=[one, two, three])
    assert [ema.decay for ema in (one, two, three)] == pytest.approx([0.9**4, 0.99**4, 0.9**16], rel=1e-14)
    run.batch_size = 8
    assert [ema.decay for ema in (one, two, three)] == [0.9, 0.99, 0.9**4]


def test_an_average_with_slots_follows():
    class Slotted:
        __slots__ = ("decay",)

    ema = Slotted()
    ema.decay = DECAY
    run = Run(adam(), tuned_at=8, batch_size=32, ema=ema)
    run.batch_size = 64
    assert ema.decay == pytest.approx(DECAY**8, rel=1e-14)
    rescale_(adam(), 2, ema=ema)
    assert ema.decay == pytest.approx(DECAY**16, rel=1e-14)


def test_accumulation_leaves_batchnorm_and_converts_the_average():
    model, ema = net(), Average(DECAY)
    rescale_(adam(model), 4, model=model, ema=ema, forward_kappa=1)
    rescale_(adam(model), 2, model=model, ema=ema)
    assert (model[1].momentum, ema.decay) == (pytest.approx(1 - 0.9**2), pytest.approx(DECAY**8))


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


CHANGES = pytest.mark.parametrize(
    "change",
    [
        lambda ema: rescale_(adam(), 4, ema=ema, dry_run=True),
        lambda ema: rescale_(adam(), 4, ema=ema),
        lambda ema: Run(adam(), tuned_at=8, batch_size=32, ema=ema),
    ],
    ids=["dry run", "in place", "run"],
)


@CHANGES
def test_a_decay_that_is_computed_is_refused_and_not_touched(change):
    ema = WarmingUp(3)
    with pytest.raises(TypeError, match=r"decay of WarmingUp is a property that computes 0\.307692, .*a warm-up"):
        change(ema)
    assert ema.base == 0.999


def test_a_property_that_reads_its_number_is_converted():
    ema = WarmingUp(10**6)
    Run(adam(), tuned_at=8, batch_size=32, ema=ema)
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


@CHANGES
def test_a_frozen_average_is_refused(change):
    @dataclass(frozen=True)
    class Frozen:
        decay: float = 0.9

    with pytest.raises(TypeError, match=r"the decay of Frozen cannot be set; set .* \*\* run\.kappa"):
        change(Frozen())


@CHANGES
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (object, TypeError, "ema must be an AveragedModel, one of EMA, .* got object"),
        (lambda: Average(1.5), ValueError, r"EMA decay must be in \[0, 1\), got 1\.5"),
        (lambda: AveragedModel(net()), TypeError, "an average of equal weights needs no conversion"),
        (
            lambda: AveragedModel(net(), avg_fn=lambda mean, value, n: mean),
            TypeError,
            r"For a function of your own, set its decay to decay \*\* run\.kappa",
        ),
    ],
)
def test_what_has_no_decay_that_can_be_set_is_refused(change, make, error, message):
    with pytest.raises(error, match=message):
        change(make())


def test_a_layout_beside_a_number_is_of_no_matter_where_batchnorm_is_kept():
    model = net()
    with pytest.raises(ValueError, match="beside 16"):
        rescale_(adam(model), batch_size=(16, "16x4x1"), model=model)
    with pytest.raises(ValueError, match="beside 16"):
        Run(adam(model), tuned_at=16, batch_size="16x4x1", model=model)
    with pytest.warns(match="without batchnorm"):
        Run(adam(model), tuned_at=16, batch_size="16x4x1", model=model, rule="sqrt without batchnorm")
    assert model[1].momentum == 0.1
