"""Against the real Trainer, on CPU."""

import importlib.util
import inspect
import logging
import sys
from pathlib import Path

import pytest
import torch
from live import on_the_clock
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("lightning", reason="needs Lightning: pip install 'rootscale[lightning]'")

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    StochasticWeightAveraging,
)

from rootscale.integrations.lightning import RescaleCallback, SampleClockCallback
from rootscale.training import NoiseMeter

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),  # Lightning's: few workers, other folders, short epochs
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),  # torch's, on account of Lightning
    pytest.mark.filterwarnings("error::rootscale.changes.ScalingWarning"),
]
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

ADAM = dict(lr=1e-3, betas=(0.99, 0.999), eps=1e-8, weight_decay=0.1)
X = torch.randn(64, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
DATA = TensorDataset(X, X.sum(1, keepdim=True))


def adamw(module):
    return torch.optim.AdamW(module.parameters(), **ADAM)


def cosine(optimizer, **config):
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=96)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step", **config}}


class Net(LightningModule):
    def __init__(self, configure=lambda module: cosine(adamw(module))):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
        self.configure = configure

    def training_step(self, batch, batch_idx):
        return (self.net(batch[0]) - batch[1]).square().mean()

    def configure_optimizers(self):
        return self.configure(self)


class Spy(Callback):
    """What the run has before each of its steps, and what it had before the first one."""

    def __init__(self):
        self.rates, self.first, self.sizes = [], None, []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if batch_idx % trainer.accumulate_grad_batches:
            return
        (optimizer, *_) = trainer.optimizers
        group = optimizer.param_groups[0]
        self.rates.append(group["lr"])
        self.sizes.append(len(batch[0]) * trainer.accumulate_grad_batches)
        averages = [one._average_model for one in trainer.callbacks if isinstance(one, EMAWeightAveraging)]
        now = {
            "state": [{k: v.clone() for k, v in one.items()} for one in optimizer.state.values()],
            "group": {key: value for key, value in group.items() if key != "params"},
            "momentum": [one.momentum for one in module.modules() if isinstance(one, nn.BatchNorm1d)],
            "decay": [inspect.getclosurevars(inspect.unwrap(one.avg_fn)).nonlocals["decay"] for one in averages],
            "clip": trainer.gradient_clip_val,
            "max_steps": trainer.max_steps,
        }
        self.first = self.first or now
        self.last = now


def fit(folder, batch, *, module=None, callbacks=None, resume=None, epochs=2, loader=None, **settings):
    """Train; the checkpoint of the last epoch is in the folder."""
    spy = Spy()
    mine = [RescaleCallback()] if callbacks is None else callbacks
    keep = ModelCheckpoint(folder, save_last=True)
    options = dict(accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False)
    trainer = Trainer(max_epochs=epochs, callbacks=[*mine, spy, keep], **options, **settings)
    loader = loader or DataLoader(DATA, batch_size=batch)
    trainer.fit(module or Net(), loader, ckpt_path=resume, weights_only=True)
    return spy


def with_average(**options):
    return [EMAWeightAveraging(decay=0.99, **options), RescaleCallback()]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Two epochs at batch size 4, and the first learning rates of the four epochs it would have gone on with."""
    folder = tmp_path_factory.mktemp("small")
    fit(folder, 4, callbacks=with_average(), gradient_clip_val=1.0)
    rest = fit(
        folder / "rest", 4, callbacks=with_average(), gradient_clip_val=1.0, resume=folder / "last.ckpt", epochs=6
    )
    return folder / "last.ckpt", rest


def test_a_checkpoint_says_its_global_batch_size(small):
    record = torch.load(small[0], weights_only=False)["rootscale"]
    assert record == {"batch_size": 4, "accumulation": 1, "frames": []}


def test_resumed_at_the_same_batch_size_nothing_changes(small):
    path, rest = small
    saved = torch.load(path, weights_only=False)
    (state,) = saved["optimizer_states"]
    for now, then in zip(rest.first["state"], state["state"].values(), strict=True):
        assert all(torch.equal(now[key], then[key]) for key in then)
    assert {**rest.first["group"], "params": [0, 1, 2, 3, 4, 5]} == state["param_groups"][0]
    assert rest.first["momentum"] == [0.1]
    assert rest.first["decay"] == [0.99]
    assert rest.first["clip"] == 1.0


def test_larger_batches_that_are_accumulated_less_change_batchnorm_alone(small, tmp_path):
    fit(tmp_path / "a", 4, accumulate_grad_batches=4)
    callback = RescaleCallback()
    now = fit(tmp_path / "b", 16, callbacks=[callback], resume=tmp_path / "a" / "last.ckpt", epochs=3)
    (state,) = torch.load(tmp_path / "a" / "last.ckpt", weights_only=False)["optimizer_states"]
    for held, then in zip(now.first["state"], state["state"].values(), strict=True):
        assert all(torch.equal(held[key], then[key]) for key in then)
    units = {"kappa": 1.0, "batch_size": 16.0, "forward_kappa": 4.0, "scheduler_kappa": 1.0, "ema_kappa": 1.0}
    carried = {f"rootscale_{name}": value for name, value in units.items()}
    assert now.first["group"] | {"params": [0, 1, 2, 3, 4, 5]} == state["param_groups"][0] | carried
    assert now.first["momentum"] == [pytest.approx(1 - 0.9**4)]
    (changes,) = callback.changes
    assert [row.name for row in changes if row.after != row.before] == ["BatchNorm momentum"]


@pytest.mark.parametrize("way", ["larger batches", "accumulation"])
def test_resumed_at_four_times_the_batch_size_everything_is_converted(small, tmp_path, way):
    path, rest = small
    layout = {"batch": 16} if way == "larger batches" else {"batch": 4, "accumulate_grad_batches": 4}
    module, callbacks = Net(), with_average()
    big = fit(tmp_path, **layout, module=module, callbacks=callbacks, gradient_clip_val=1.0, resume=path, epochs=6)
    assert set(big.sizes) == {16}
    (state,) = torch.load(path, weights_only=False)["optimizer_states"]
    for now, then in zip(big.first["state"], state["state"].values(), strict=True):
        assert torch.equal(now["exp_avg"], then["exp_avg"])
        torch.testing.assert_close(now["exp_avg_sq"], then["exp_avg_sq"] / 4, rtol=1e-15, atol=0)
        assert now["step"] == then["step"] / 4 == 8
    group, before = big.first["group"], state["param_groups"][0]
    assert group["lr"] == 2 * before["lr"]
    assert group["betas"] == pytest.approx((0.96, 0.996), rel=1e-14)
    assert group["eps"] == before["eps"] / 2
    assert group["weight_decay"] == 2 * before["weight_decay"]
    # BatchNorm counts forward passes, which accumulation does not change.
    assert big.first["momentum"] == [pytest.approx(1 - 0.9**4) if way == "larger batches" else 0.1]
    assert big.first["decay"] == [pytest.approx(0.99**4)]
    assert big.first["clip"] == 0.5
    assert big.rates == pytest.approx([2 * rate for rate in rest.rates[::4]], rel=1e-12)  # at equal samples
    assert callbacks[1].changes[0]["gradient_clip_val"].after == 0.5
    assert module.net[1].momentum == 0.1  # the script's again, for the next fit
    assert not any("clip" in text for text in callbacks[-1].changes[0].remaining)


def test_a_run_that_was_converted_resumes_as_it_was_and_converts_again(small, tmp_path):
    path, rest = small
    fit(tmp_path / "a", 16, callbacks=with_average(), gradient_clip_val=1.0, resume=path, epochs=4)
    same = fit(
        tmp_path / "b", 16, callbacks=with_average(), gradient_clip_val=1.0, resume=tmp_path / "a/last.ckpt", epochs=6
    )
    assert same.rates == pytest.approx([2 * rate for rate in rest.rates[32::4]], rel=1e-12)
    assert same.first["group"]["betas"] == pytest.approx((0.96, 0.996), rel=1e-14)
    assert same.first["momentum"] == [pytest.approx(1 - 0.9**4)]
    assert same.first["decay"] == [pytest.approx(0.99**4)]
    assert same.first["clip"] == 0.5
    back = fit(
        tmp_path / "c", 4, callbacks=with_average(), gradient_clip_val=1.0, resume=tmp_path / "a/last.ckpt", epochs=6
    )
    assert back.rates == pytest.approx(rest.rates[32:], rel=1e-12)
    assert back.first["momentum"] == [pytest.approx(0.1, rel=1e-12)]
    assert back.first["decay"] == [pytest.approx(0.99, rel=1e-12)]
    assert back.first["clip"] == pytest.approx(1.0)


def test_a_converted_run_makes_no_step_without_the_callback(small, tmp_path):
    fit(tmp_path / "a", 16, callbacks=with_average(), resume=small[0], epochs=3)
    with pytest.raises(ValueError, match=r"BatchNorm's momentum .* are not: .* give the Trainer its RescaleCallback"):
        fit(
            tmp_path / "b",
            16,
            callbacks=[EMAWeightAveraging(decay=0.99)],
            resume=tmp_path / "a" / "last.ckpt",
            epochs=4,
        )


def test_a_checkpoint_of_a_version_whose_runs_did_not_carry_their_units_is_resumed(small, tmp_path):
    fit(tmp_path / "a", 16, callbacks=with_average(), resume=small[0], epochs=3)
    checkpoint = torch.load(tmp_path / "a" / "last.ckpt", weights_only=True)
    for group in checkpoint["optimizer_states"][0]["param_groups"]:
        for key in [key for key in group if key.startswith("rootscale_")]:
            del group[key]
    torch.save(checkpoint, tmp_path / "old.ckpt")
    one = fit(tmp_path / "b", 16, callbacks=with_average(), resume=tmp_path / "a" / "last.ckpt", epochs=4)
    other = fit(tmp_path / "c", 16, callbacks=with_average(), resume=tmp_path / "old.ckpt", epochs=4)
    assert one.rates == other.rates
    assert other.last["momentum"] == [pytest.approx(1 - 0.9**4)]


def test_the_accumulation_scheduler_is_followed(small, tmp_path):
    _, rest = small
    callbacks = [RescaleCallback(), GradientAccumulationScheduler({3: 4})]
    spy = fit(tmp_path, 4, callbacks=callbacks, epochs=6)
    assert spy.sizes == 48 * [4] + 12 * [16]
    assert spy.rates[32:48] == pytest.approx(rest.rates[:16], rel=1e-12)
    assert spy.rates[48:] == pytest.approx([2 * rate for rate in rest.rates[16::4]], rel=1e-12)
    assert spy.last["momentum"] == [0.1]


def test_rescale_on_request_waits_for_a_step_that_begins_in_both_countings(tmp_path):
    class Ask(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if trainer.current_epoch == 0 and batch_idx == 4:
                callback.rescale(trainer, 4)
                with pytest.raises(ValueError, match=r"kappa=0.5 would accumulate 0.5 batches, which must be a whole"):
                    callback.rescale(trainer, 0.5)
                with pytest.raises(ValueError, match=r"kappa must be a finite number > 0, got 0"):
                    callback.rescale(trainer, 0)

    callback = RescaleCallback()
    spy = fit(tmp_path, 4, callbacks=[callback, Ask()], epochs=1)
    assert spy.sizes == 8 * [4] + 2 * [16]
    assert spy.last["group"]["betas"] == pytest.approx((0.96, 0.996), rel=1e-14)
    assert len(callback.changes) == 1
    with pytest.raises(RuntimeError, match="for a fit under way"):
        callback.rescale(Trainer(logger=False, accelerator="cpu", barebones=True), 2)


def test_max_steps_is_the_same_number_of_samples(tmp_path):
    fit(tmp_path, 4, epochs=1, max_steps=48)
    callbacks = [RescaleCallback()]
    spy = fit(tmp_path / "b", 16, callbacks=callbacks, resume=tmp_path / "last.ckpt", epochs=-1, max_steps=48)
    assert spy.first["max_steps"] == 16 + 32 / 4
    assert len(spy.rates) == 8
    assert callbacks[0].changes[0]["max_steps"].used == 24
    left = callbacks[0].changes[0].remaining
    assert left[0] == "intervals in steps (log_every_n_steps, every_n_train_steps of a callback): divide by 4"
    assert not any(text.startswith(("batch size", "steps left")) for text in left)
    assert "gradient clip, if there is one: times 0.5" in left  # the Trainer has none


def test_what_a_script_says_of_the_trainer_can_be_left_alone(tmp_path):
    fit(tmp_path, 4, epochs=1, max_steps=48)
    callbacks = [RescaleCallback(trainer_settings=False)]
    spy = fit(
        tmp_path / "b", 16, callbacks=callbacks, resume=tmp_path / "last.ckpt", max_steps=20, gradient_clip_val=0.5
    )
    assert spy.first["max_steps"] == 20
    assert spy.first["clip"] == 0.5
    assert any(text.startswith("steps left") for text in callbacks[0].changes[0].remaining)


def test_a_scheduler_by_epochs_keeps_its_clock(tmp_path):
    def configure(module):
        return cosine(adamw(module), interval="epoch")

    fit(tmp_path, 4, module=Net(configure))
    rest = fit(tmp_path / "a", 4, module=Net(configure), resume=tmp_path / "last.ckpt", epochs=4)
    big = fit(tmp_path / "b", 16, module=Net(configure), resume=tmp_path / "last.ckpt", epochs=4)
    assert big.rates == pytest.approx([2 * rate for rate in rest.rates[::4]], rel=1e-12)
    assert len(set(big.rates)) == 2


@pytest.mark.parametrize("layout", [{"batch": 16}, {"batch": 4, "accumulate_grad_batches": 4}])
def test_the_frequency_of_a_scheduler_is_counted_in_batches(tmp_path, layout):
    """frequency=2 with larger batches: it is stepped half as often as the optimizer; 4 with accumulation: as often."""

    def configure(module):
        return cosine(adamw(module), frequency=4 if "accumulate_grad_batches" in layout else 2)

    fit(tmp_path, 4, module=Net(configure))
    rest = fit(tmp_path / "a", 4, module=Net(configure), resume=tmp_path / "last.ckpt", epochs=4)
    big = fit(tmp_path / "b", **layout, module=Net(configure), resume=tmp_path / "last.ckpt", epochs=4)
    both = slice(None, None, 2)  # in between, the larger batches wait for the scheduler
    assert big.rates[both] == pytest.approx([2 * rate for rate in rest.rates[::4]][both], rel=1e-12)
    assert len(set(big.rates)) == len(big.rates) / (1 if "accumulate_grad_batches" in layout else 2)


def test_a_frequency_that_the_accumulation_breaks_is_refused(tmp_path):
    def configure(module):
        return cosine(adamw(module), frequency=2)

    fit(tmp_path, 4, module=Net(configure), epochs=1)
    with pytest.raises(ValueError, match="frequency=2 would be stepped after 2 times as many samples, when"):
        fit(tmp_path / "b", 4, accumulate_grad_batches=4, module=Net(configure), resume=tmp_path / "last.ckpt")


class Manual(Net):
    """Two optimizers stepped by hand; an average of the weights as an attribute."""

    def __init__(self, second=torch.optim.SGD):
        super().__init__()
        self.automatic_optimization = False
        self.second = second
        self.average = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def configure_optimizers(self):
        first = torch.optim.Adam(self.net[0].parameters(), lr=1e-3, betas=(0.99, 0.999))
        second = self.second(self.net[1:].parameters(), lr=1e-2)
        return [first, second], [torch.optim.lr_scheduler.LinearLR(first, 0.1, total_iters=64)]

    def training_step(self, batch, batch_idx):
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        for optimizer in self.optimizers():
            optimizer.step()
        self.lr_schedulers().step()
        self.average.update_parameters(self.net)


def by_hand(**options):
    size = options.pop("batch_size", lambda trainer: trainer.train_dataloader.batch_size)
    return [RescaleCallback(batch_size=size, interval="step", ema="average", **options)]


def test_manual_optimization_with_two_optimizers(tmp_path):
    fit(tmp_path, 4, module=Manual(), callbacks=by_hand())
    rest = fit(tmp_path / "a", 4, module=Manual(), callbacks=by_hand(), resume=tmp_path / "last.ckpt", epochs=4)
    callbacks = by_hand()
    big = fit(tmp_path / "b", 16, module=Manual(), callbacks=callbacks, resume=tmp_path / "last.ckpt", epochs=4)
    assert big.rates == pytest.approx([2 * rate for rate in rest.rates[::4]], rel=1e-12)
    (changes,) = callbacks[0].changes
    assert changes.rule.name == "sqrt (optimizer 0), linear (optimizer 1)"
    assert changes["EMA decay"].after == pytest.approx(0.9**4)
    assert changes["BatchNorm momentum"].after == pytest.approx(1 - 0.9**4)
    assert changes["optimizer 0: LinearLR clock"].after == 4
    assert changes["optimizer 1: lr"].after == pytest.approx(4e-2)
    assert len([row for row in changes if "EMA" in row.name or "BatchNorm" in row.name]) == 2


def test_schedulers_of_one_run_may_step_by_steps_and_by_epochs(tmp_path):
    """Each keeps its own clock: the first by steps, the second, which waits for epoch 3, by epochs."""

    def configure(module):
        optimizer = adamw(module)
        steps = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=96)
        epochs = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3], gamma=0.5)
        return [optimizer], [{"scheduler": steps, "interval": "step"}, {"scheduler": epochs, "interval": "epoch"}]

    fit(tmp_path, 4, module=Net(configure))
    rest = fit(tmp_path / "a", 4, module=Net(configure), resume=tmp_path / "last.ckpt", epochs=4)
    big = fit(tmp_path / "b", 16, module=Net(configure), resume=tmp_path / "last.ckpt", epochs=4)
    assert big.rates == pytest.approx([2 * rate for rate in rest.rates[::4]], rel=1e-12)


def test_an_average_that_is_refused_leaves_the_optimizers_untouched(tmp_path):
    class Strange(Manual):
        def __init__(self):
            super().__init__()
            self.strange = object()

    callbacks = by_hand()
    fit(tmp_path, 4, module=Strange(), callbacks=callbacks, epochs=1)
    saved = torch.load(tmp_path / "last.ckpt", weights_only=False)["optimizer_states"]
    module = Strange()
    callbacks[0].ema = ("average", "strange")
    with pytest.raises(TypeError, match=r"ema must be an AveragedModel .*got object"):
        fit(tmp_path / "b", 16, module=module, callbacks=callbacks, resume=tmp_path / "last.ckpt")
    for optimizer, then in zip(module.trainer.optimizers, saved, strict=True):
        assert optimizer.state_dict()["param_groups"] == then["param_groups"]
    assert module.net[1].momentum == 0.1


def test_an_unknown_optimizer_is_refused_before_anything_is_touched(tmp_path):
    """The second optimizer is the unknown one: the first must not have been converted."""
    fit(tmp_path, 4, module=Manual(torch.optim.Rprop), callbacks=by_hand(), epochs=1)
    saved = torch.load(tmp_path / "last.ckpt", weights_only=False)["optimizer_states"][0]
    module = Manual(torch.optim.Rprop)
    with pytest.raises(TypeError, match=r"optimizer 1: Rprop has no rule that keeps its dynamics"):
        fit(tmp_path / "b", 16, module=module, callbacks=by_hand(), resume=tmp_path / "last.ckpt")
    adam = module.trainer.optimizers[0].state_dict()
    assert adam["param_groups"] == saved["param_groups"]
    assert all(torch.equal(adam["state"][0][key], saved["state"][0][key]) for key in ("step", "exp_avg_sq"))
    assert module.net[1].momentum == 0.1


def hidden(module):
    optimizer = adamw(module)
    module.scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
    return optimizer


def plateau(module):
    optimizer = adamw(module)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    config = {"scheduler": scheduler, "interval": "step", "monitor": "x", "strict": False, "frequency": 100}
    return {"optimizer": optimizer, "lr_scheduler": config}


REFUSED = {
    "scheduler unknown to Lightning": (hidden, [], "a scheduler drives this AdamW but Lightning does not know it"),
    "plateau by steps": (plateau, [], "ReduceLROnPlateau with interval='step' counts reports"),
    "SWA": (adamw, [StochasticWeightAveraging(1e-2, 0.99)], "StochasticWeightAveraging makes a schedule of its own"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_anything_is_touched(tmp_path, name):
    configure, others, message = REFUSED[name]
    fit(tmp_path, 4, module=Net(configure), epochs=1)
    module = Net(configure)
    with pytest.raises((TypeError, ValueError), match=message):
        fit(tmp_path / "b", 16, module=module, callbacks=[*others, RescaleCallback()], resume=tmp_path / "last.ckpt")
    assert module.trainer.optimizers[0].param_groups[0]["lr"] == 1e-3 or name == "scheduler unknown to Lightning"
    assert module.trainer.optimizers[0].param_groups[0]["betas"] == (0.99, 0.999)
    assert module.net[1].momentum == 0.1


def test_a_checkpoint_without_the_callback_needs_its_batch_size(small, tmp_path):
    fit(tmp_path, 4, callbacks=[], epochs=2)
    with pytest.raises(ValueError, match=r"does not say its global batch size.*saved_batch_size"):
        fit(tmp_path / "b", 16, resume=tmp_path / "last.ckpt")
    callbacks = [RescaleCallback(saved_batch_size=4)]
    spy = fit(tmp_path / "c", 16, callbacks=callbacks, resume=tmp_path / "last.ckpt", epochs=3)
    assert spy.rates[0] == pytest.approx(2 * small[1].rates[0])


def test_a_batch_size_that_cannot_be_found_is_asked_for(tmp_path):
    loaders = {"a": DataLoader(DATA, batch_size=4), "b": DataLoader(DATA, batch_size=4)}
    with pytest.raises(ValueError, match="cannot be found in the train_dataloader, a dict; give"):
        fit(tmp_path, 4, loader=loaders)
    with pytest.raises(ValueError, match="under manual optimization only the module knows"):
        fit(tmp_path, 4, module=Manual())
    with pytest.raises(ValueError, match="rule must be one of sqrt"):
        RescaleCallback("root")


def test_the_noise_scale_is_that_of_a_loop_by_hand(tmp_path):
    class Listen(Callback):
        def on_train_batch_end(self, trainer, module, *_):
            logged.append({k: float(v) for k, v in trainer.callback_metrics.items() if "noise" in k})

    def configure(module):
        return torch.optim.SGD(module.parameters(), lr=0.0)

    logged, callback = [], RescaleCallback(noise=True)
    module = Net(configure)
    callbacks = [callback, Listen()]
    fit(tmp_path, 4, module=module, callbacks=callbacks, accumulate_grad_batches=2, log_every_n_steps=4, epochs=2)

    model = Net().net
    meter = NoiseMeter(torch.optim.SGD(model.parameters(), lr=0.0))
    for _ in range(2):
        for pair in zip(X.split(8), DATA.tensors[1].split(8), strict=True):
            model.zero_grad()
            for x, y in zip(*(one.split(4) for one in pair), strict=True):
                with meter.part(4, 1 / 2):
                    ((model(x) - y).square().mean() / 2).backward()
            meter.update()
    assert callback.noise().steps == 16
    assert callback.noise().scale.value == pytest.approx(meter.estimate().scale.value, rel=1e-6)
    assert logged[-1]["noise_scale"] == pytest.approx(meter.estimate().scale.value, rel=1e-4)
    assert logged[-1]["noise_scale_low"] < logged[-1]["noise_scale"] < logged[-1]["noise_scale_high"]


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("lightning_run", ROOT / "examples/lightning_run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of Python 3.12, where there are threads
def test_a_checkpoint_of_two_processes_is_resumed_by_one(tmp_path, example, monkeypatch, capsys, caplog):
    """The example: saved by two gloo processes with 4 samples each, resumed by one with 32; here also with 8 and 4."""
    monkeypatch.setattr(sys, "argv", ["lightning_run.py", "--folder", str(tmp_path), "--devices", "2"])
    with caplog.at_level(logging.INFO, "lightning.pytorch"):
        example.main()
    assert "global batch size 8 -> 32" in caplog.text
    assert capsys.readouterr().out.startswith("loss ")
    path = tmp_path / "last.ckpt"
    saved = torch.load(path, weights_only=False)
    assert saved["rootscale"]["batch_size"] == 8
    assert saved["global_step"] == 2 * 256 / 8
    for batch_size, kappas in ((8, []), (4, [0.5])):
        trainer = example.fit(str(tmp_path / str(batch_size)), example.data(), batch_size, 3, path, 1)
        (callback,) = (one for one in trainer.callbacks if isinstance(one, RescaleCallback))
        assert [changes.kappa for changes in callback.changes] == kappas


COUNTED = {
    "batches": ({}, 1, [4, 6, 7, 14, 17]),
    "accumulation": ({}, 2, [6, 14, 17]),
    "numbers": ({"samples": lambda batch: batch[0].numel()}, 1, [12, 18, 21, 42, 51]),
}


@pytest.mark.parametrize("case", COUNTED.values(), ids=COUNTED)
def test_an_optimizer_on_the_sample_clock_is_told_the_samples_of_its_steps(tmp_path, case):
    options, every, expected = case
    made = []

    def configure(module):
        made.append(on_the_clock(module.parameters(), 4))
        return made[-1][0]

    module = Net(configure).eval()  # batches of one sample have no statistics
    loader = DataLoader([(X[:n], X[:n].sum(1, keepdim=True)) for n in (4, 2, 1, 7, 3)], batch_size=None)
    callbacks = [SampleClockCallback(**options)]
    options = dict(accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False)
    trainer = Trainer(
        max_epochs=1, callbacks=callbacks, accumulate_grad_batches=every, enable_checkpointing=False, **options
    )
    trainer.fit(module, loader)
    assert made[-1][1] == expected
