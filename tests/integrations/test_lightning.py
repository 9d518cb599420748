"""Against the real Trainer, on CPU."""

import importlib.util
import inspect
import logging
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from resumed_by_hand import go_on
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

from rootscale.integrations.lightning import RunCallback
from rootscale.training import NoiseMeter

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),  # Lightning's: few workers, other folders, short epochs
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),  # torch's, on account of Lightning
    pytest.mark.filterwarnings("error::rootscale.changes.ScalingWarning"),
    pytest.mark.filterwarnings("ignore:.*times the batch that was tuned.*"),  # tests/test_evidence.py looks at it
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
    def __init__(self, configure=lambda module: cosine(adamw(module)), norm=lambda: nn.BatchNorm1d(4)):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 4), norm(), nn.Linear(4, 1)).double()
        self.configure = configure

    def training_step(self, batch, batch_idx):
        return (self.net(batch[0]) - batch[1]).square().mean()

    def configure_optimizers(self):
        return self.configure(self)


class Spy(Callback):
    """What the run has before each of its steps: the script's numbers, and what a step uses."""

    def __init__(self):
        self.rates, self.used, self.sizes, self.now = [], [], [], {}

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if batch_idx % trainer.accumulate_grad_batches:
            return
        callback = next((one for one in trainer.callbacks if isinstance(one, RunCallback)), None)
        (optimizer, *_) = trainer.optimizers
        self.rates.append(optimizer.param_groups[0]["lr"])
        self.used.append(callback.run.values() if callback else {})
        self.sizes.append(len(batch[0]) * trainer.accumulate_grad_batches)
        averages = [one._average_model for one in trainer.callbacks if isinstance(one, EMAWeightAveraging)]
        self.now = {
            "momentum": [one.momentum for one in module.modules() if isinstance(one, nn.BatchNorm1d)],
            "decay": [inspect.getclosurevars(inspect.unwrap(one.avg_fn)).nonlocals["decay"] for one in averages],
            "clip": trainer.gradient_clip_val,
            "max_steps": trainer.max_steps,
        }


def fit(folder, batch, *, module=None, callbacks=(), tuned_at="4x1x1", resume=None, epochs=2, loader=None, **settings):
    """Train; the checkpoint of the last epoch is in the folder. Without ``tuned_at`` it is a plain fit."""
    spy, keep = Spy(), ModelCheckpoint(folder, save_last=True)
    mine = [] if tuned_at is None or any(isinstance(one, RunCallback) for one in callbacks) else [RunCallback(tuned_at)]
    options = dict(accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False)
    trainer = Trainer(max_epochs=epochs, callbacks=[*callbacks, *mine, spy, keep], **options, **settings)
    loader = loader or DataLoader(DATA, batch_size=batch)
    trainer.fit(module or Net(), loader, ckpt_path=resume, weights_only=True)
    spy.trainer = trainer
    spy.callback = next((one for one in trainer.callbacks if isinstance(one, RunCallback)), None)
    return spy


def average():
    return EMAWeightAveraging(decay=0.99)


SIZES = {"sixteen": {"batch": 16}, "accumulated": {"batch": 4, "accumulate_grad_batches": 4}, "two": {"batch": 2}}


def bare():
    """Without BatchNorm, whose statistics depend on the samples of a forward pass."""
    return Net(norm=nn.Tanh)


def resumed(folder, checkpoint):
    """What every batch size makes of a checkpoint."""
    found = {}
    for name, layout in {**SIZES, "same": {"batch": 4}}.items():
        module = bare()
        spy = fit(Path(folder, name), **layout, module=module, resume=checkpoint, epochs=6, gradient_clip_val=0.5)
        found[name] = {"parameters": [p.detach() for p in module.net.parameters()], "rates": spy.rates,
                       "clock": spy.callback.run.clock, "clip": spy.now["clip"]}  # fmt: skip
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Two epochs at batch size 4 by a script that knows nothing of this, the six it would have made, and fresh ones."""
    folder = tmp_path_factory.mktemp("plain")
    options = {"tuned_at": None, "gradient_clip_val": 0.5}
    fit(folder, 4, module=bare(), **options)
    checkpoint = folder / "last.ckpt"
    rest = fit(folder / "rest", 4, module=(module := bare()), resume=checkpoint, epochs=6, **options)
    paths = os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests")))
    command = [sys.executable, __file__, folder / "fresh", checkpoint, folder / "found.pt"]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"})
    found = torch.load(folder / "found.pt", weights_only=False)
    return folder, found, rest.rates, [p.detach() for p in module.net.parameters()]


@pytest.mark.parametrize("name", SIZES)
def test_a_checkpoint_of_a_plain_fit_resumed_in_a_fresh_process_is_what_a_user_would_write(plain, name):
    folder, found, rates, _ = plain
    saved = torch.load(folder / "last.ckpt", weights_only=False)
    module = bare()
    module.load_state_dict(saved["state_dict"])
    size = 2 if name == "two" else 16
    batches = [pair for _ in range(4) for pair in zip(X.split(size), DATA.tensors[1].split(size), strict=True)]
    rate = lambda step: 1e-3 * 0.5 * (1 + math.cos(math.pi * step / 96))  # noqa: E731
    wanted = go_on(
        module.net, module.net.parameters(), saved["optimizer_states"][0], size / 4, batches,
        lambda net, batch: (net(batch[0]) - batch[1]).square().mean(), rate, 32, clip=0.5,
    )  # fmt: skip
    for a, b in zip(found[name]["parameters"], wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    assert found[name]["clock"] == 96
    assert found[name]["clip"] == pytest.approx(0.5 * math.sqrt(4 / size))
    script = [rates[math.floor(k * size / 4)] for k in range(len(found[name]["rates"]))]
    assert found[name]["rates"] == pytest.approx(script, rel=1e-12)


def test_resumed_at_the_same_batch_size_it_is_the_fit_that_was_never_interrupted(plain):
    for a, b in zip(plain[1]["same"]["parameters"], plain[3], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


def test_a_checkpoint_of_a_larger_batch_size_is_one_of_the_script(plain):
    saved = torch.load(plain[0] / "fresh" / "sixteen" / "last.ckpt", weights_only=False)
    (state,), (scheduler,) = saved["optimizer_states"], saved["lr_schedulers"]
    (group,) = state["param_groups"]
    assert {name: group[name] for name in ("betas", "eps", "weight_decay")} == {
        name: ADAM[name] for name in ("betas", "eps", "weight_decay")
    }
    assert {float(one["step"]) for one in state["state"].values()} == {96.0}
    assert scheduler["last_epoch"] == 96
    assert not any("rootscale" in str(key) for key in (*saved, *group, *scheduler))


@pytest.mark.parametrize("layout", SIZES.values(), ids=SIZES)
def test_batchnorm_averages_and_the_clip_follow_and_are_the_scripts_again_after_the_fit(tmp_path, layout):
    module, callback = Net(), RunCallback("4x1x1")
    spy = fit(tmp_path, **layout, module=module, callbacks=[average(), callback], gradient_clip_val=1.0, epochs=1)
    kappa = spy.sizes[0] / 4
    # BatchNorm counts forward passes, which accumulation does not change.
    forward = 1 if "accumulate_grad_batches" in layout else kappa
    assert spy.now["momentum"][0] == pytest.approx(1 - 0.9**forward)
    assert spy.now["decay"] == [pytest.approx(0.99**kappa)]
    assert spy.now["clip"] == pytest.approx(kappa**-0.5)
    assert [changes.kappa for changes in callback.changes] == [kappa]
    assert (module.net[1].momentum, spy.trainer.gradient_clip_val) == (0.1, 1.0)


def test_the_accumulation_scheduler_is_followed(plain, tmp_path):
    callback = RunCallback("4x1x1")
    spy = fit(tmp_path, 4, module=Net(), callbacks=[callback, GradientAccumulationScheduler({3: 4})], epochs=6)
    assert spy.sizes == 48 * [4] + 12 * [16]
    script = [1e-3 * 0.5 * (1 + math.cos(math.pi * k / 96)) for k in range(96)]
    assert spy.rates == pytest.approx(script[:48] + script[48::4], rel=1e-12)
    assert [used["lr"] / rate for used, rate in zip(spy.used, spy.rates, strict=True)] == pytest.approx(
        48 * [1] + 12 * [2]
    )
    assert [changes.kappa for changes in callback.changes] == [1, 4]
    assert spy.now["momentum"] == [0.1]


def test_max_steps_is_the_same_number_of_samples_on_every_way(tmp_path):
    fit(tmp_path, 4, epochs=-1, max_steps=32)
    larger = fit(tmp_path / "b", 16, resume=tmp_path / "last.ckpt", epochs=-1, max_steps=64)
    assert (len(larger.rates), larger.now["max_steps"], larger.callback.run.clock) == (8, 40, 64)
    assert larger.trainer.max_steps == 64  # the script's
    smaller = fit(tmp_path / "c", 2, epochs=-1, max_steps=32)  # 64 steps: more than the script's number
    assert (len(smaller.rates), smaller.callback.run.clock) == (64, 32)
    on = fit(tmp_path / "d", 4, resume=tmp_path / "c" / "last.ckpt", epochs=-1, max_steps=48)
    assert (len(on.rates), on.callback.run.clock) == (16, 48)
    over = fit(tmp_path / "e", 4, resume=tmp_path / "c" / "last.ckpt", epochs=-1, max_steps=32)
    assert over.rates == []


def test_an_average_that_starts_later_starts_at_the_same_samples(tmp_path):
    started = []

    class Listen(EMAWeightAveraging):
        def should_update(self, step_idx=None, epoch_idx=None):
            found = super().should_update(step_idx, epoch_idx)
            if found and step_idx is not None:
                started.append(step_idx)
            return found

    callback = Listen(decay=0.9, update_starting_at_step=16)
    fit(tmp_path, 16, callbacks=[callback, RunCallback("4x1x1")])
    assert started[0] == 4
    assert callback.update_starting_at_step == 16


def test_a_scheduler_by_epochs_keeps_its_clock(tmp_path):
    def configure(module):
        return cosine(adamw(module), interval="epoch")

    small = fit(tmp_path, 4, module=Net(configure))
    large = fit(tmp_path / "b", 16, module=Net(configure))
    assert large.rates == pytest.approx(small.rates[::4], rel=1e-12)
    assert len(set(large.rates)) == 2


@pytest.mark.parametrize("frequency", [2, 3, 4])
@pytest.mark.parametrize("layout", [{"batch": 16}, {"batch": 4, "accumulate_grad_batches": 4}])
def test_the_frequency_of_a_scheduler_is_counted_in_batches(tmp_path, frequency, layout):
    def configure(module):
        return cosine(adamw(module), frequency=frequency)

    small = fit(tmp_path, 4, module=Net(configure), epochs=3)
    large = fit(tmp_path / "b", **layout, module=Net(configure), epochs=3)
    often = math.lcm(frequency, layout.get("accumulate_grad_batches", 1)) * layout["batch"] // 16  # steps between calls
    ticks = [often * (k // often) * 4 / frequency for k in range(4)]  # each call makes up for those between
    assert len(set(small.rates[:16])) == math.ceil(16 / frequency)
    script = [1e-3 * 0.5 * (1 + math.cos(math.pi * math.floor(tick + 1e-9) / 96)) for tick in ticks]
    assert large.rates[:4] == pytest.approx(script, rel=1e-12)


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
    return [RunCallback(4, batch_size=lambda trainer: trainer.train_dataloader.batch_size, ema="average", **options)]


def test_manual_optimization_with_two_optimizers(tmp_path):
    fit(tmp_path, 4, module=Manual(), callbacks=by_hand())
    rest = fit(tmp_path / "a", 4, module=Manual(), callbacks=by_hand(), resume=tmp_path / "last.ckpt", epochs=4)
    large = fit(tmp_path / "b", 16, module=Manual(), callbacks=by_hand(), resume=tmp_path / "last.ckpt", epochs=4)
    assert large.rates == pytest.approx(rest.rates[::4], rel=1e-12)
    (changes,) = large.callback.changes
    assert changes.rule.name == "sqrt (optimizer 0), linear (optimizer 1)"
    assert changes["EMA decay"].after == pytest.approx(0.9**4)
    assert changes["BatchNorm momentum"].after == pytest.approx(1 - 0.9**4)
    assert changes["optimizer 1: lr"].after == pytest.approx(4e-2)
    assert large.callback.run.clocks == (64, 64)  # SGD has no counter in its state


def test_max_steps_counts_the_steps_of_all_optimizers(tmp_path):
    spy = fit(tmp_path, 16, module=Manual(), callbacks=by_hand(), epochs=-1, max_steps=64)
    assert len(spy.rates) == 8  # 64 steps of two optimizers at batch size 4 are 16 of 16, of both


def test_schedulers_of_one_run_may_step_by_steps_and_by_epochs(tmp_path):
    """Each keeps its own clock: the first by steps, the second, which waits for epoch 3, by epochs."""

    def configure(module):
        optimizer = adamw(module)
        steps = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=96)
        epochs = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3], gamma=0.5)
        return [optimizer], [{"scheduler": steps, "interval": "step"}, {"scheduler": epochs, "interval": "epoch"}]

    small = fit(tmp_path, 4, module=Net(configure), epochs=4)
    large = fit(tmp_path / "b", 16, module=Net(configure), epochs=4)
    assert large.rates == pytest.approx(small.rates[::4], rel=1e-9)


def test_what_is_refused_leaves_the_optimizers_untouched(tmp_path):
    class Strange(Manual):
        def __init__(self):
            super().__init__()
            self.strange = object()

    cases = (
        (Strange(), {"ema": ("average", "strange")}, TypeError, r"ema must be an AveragedModel, .*got object"),
        (Manual(), {"ema": "other"}, ValueError, "ema='other': Manual has no such attribute"),
        (Manual(torch.optim.Rprop), {}, TypeError, r"optimizer 1: Rprop has no rule that keeps its dynamics"),
        (Manual(), {"rule": "root"}, ValueError, "rule must be one of sqrt"),
    )
    for module, options, error, message in cases:
        with pytest.raises(error, match=message):
            fit(tmp_path, 16, module=module, callbacks=[RunCallback(4, batch_size=16, **options)])
        assert module.trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(1e-4)
        assert module.net[1].momentum == 0.1


def plateau(module):
    optimizer = adamw(module)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    config = {"scheduler": scheduler, "interval": "step", "monitor": "x", "strict": False, "frequency": 100}
    return {"optimizer": optimizer, "lr_scheduler": config}


REFUSED = {
    "plateau by steps": (plateau, [], "ReduceLROnPlateau with interval='step' counts reports"),
    "SWA": (adamw, [StochasticWeightAveraging(1e-2, 0.99)], "StochasticWeightAveraging makes a schedule of its own"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_anything_is_touched(tmp_path, name):
    configure, others, message = REFUSED[name]
    module = Net(configure)
    with pytest.raises((TypeError, ValueError), match=message):
        fit(tmp_path, 16, module=module, callbacks=others)
    assert module.trainer.optimizers[0].param_groups[0]["betas"] == (0.99, 0.999)
    assert module.net[1].momentum == 0.1


def test_a_batch_size_that_cannot_be_found_or_compared_is_asked_for(tmp_path):
    loaders = {"a": DataLoader(DATA, batch_size=4), "b": DataLoader(DATA, batch_size=4)}
    with pytest.raises(ValueError, match="cannot be found in the train_dataloader, a dict; give"):
        fit(tmp_path, 4, loader=loaders)
    with pytest.raises(ValueError, match="under manual optimization only the module knows"):
        fit(tmp_path, 4, module=Manual())
    with pytest.raises(ValueError, match="the layout 4x4x1 beside 4 does not say how many samples one forward has"):
        fit(tmp_path, 4, accumulate_grad_batches=4, tuned_at=4)
    with pytest.raises(ValueError, match="batch_size must be"):
        RunCallback("4x4")
    with pytest.raises(ValueError, match="interval must be 'step', 'epoch' or None"):
        RunCallback(4, interval="batch")


def test_an_error_in_the_middle_leaves_everything_as_the_script_made_it(tmp_path):
    class Break(Callback):
        def on_train_batch_end(self, trainer, module, *_):
            raise RuntimeError("broken")

    module, callback = Net(), RunCallback(4)
    with pytest.raises(RuntimeError, match="broken"):
        fit(tmp_path, 16, module=module, callbacks=[callback, Break()], gradient_clip_val=1.0, max_steps=64)
    assert (module.net[1].momentum, module.trainer.gradient_clip_val, module.trainer.max_steps) == (0.1, 1.0, 64)
    (state,) = {float(state["step"]) for state in module.trainer.optimizers[0].state.values()}
    assert state == 4  # in steps of the script
    assert "step" not in vars(module.trainer.optimizers[0]) or callback.run.kappa == 1


def test_the_noise_scale_is_that_of_a_loop_by_hand(tmp_path):
    class Listen(Callback):
        def on_train_batch_end(self, trainer, module, *_):
            logged.append({k: float(v) for k, v in trainer.callback_metrics.items() if "noise" in k})

    def configure(module):
        return torch.optim.SGD(module.parameters(), lr=0.0)

    logged, callback = [], RunCallback(8, noise=True)
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


NUMBER = 202
NOISY = torch.randn(NUMBER, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
TARGETS = torch.randn(NUMBER, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)  # noise alone


class Steady:
    """A loader that can be saved in the middle of an epoch, as torchdata's StatefulDataLoader; it notes its samples."""

    batch_size = 2

    def __init__(self):
        self.epoch, self.place, self.asked = 0, 0, []

    def __len__(self):
        return math.ceil(NUMBER / self.batch_size)

    def __iter__(self):
        if self.place >= NUMBER:
            self.epoch, self.place = self.epoch + 1, 0
        order = torch.randperm(NUMBER, generator=torch.Generator().manual_seed(self.epoch))
        while self.place < NUMBER:
            i = order[self.place : self.place + self.batch_size]
            self.place += self.batch_size
            self.asked.append(i.tolist())
            yield NOISY[i], TARGETS[i]

    def state_dict(self):
        return {"epoch": self.epoch, "place": self.place}

    def load_state_dict(self, state):
        self.epoch, self.place = state["epoch"], state["place"]


def growing(folder, resume=None, epochs=3, **options):
    callback = RunCallback("4x1x1", grow={"most": 16, "every": 2, "window": 32, **options})
    keep = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=19, save_top_k=-1)
    loader, module = Steady(), Net(lambda module: torch.optim.Adam(module.parameters(), 1e-3))
    module.net = nn.Linear(3, 1).double()
    nn.init.zeros_(module.net.weight)
    spy = fit(folder, 2, module=module, callbacks=[callback, keep], loader=loader, epochs=epochs, resume=resume,
              accumulate_grad_batches=2)  # fmt: skip
    return spy, module, loader, callback


@pytest.mark.filterwarnings("ignore:after the batch size has changed:rootscale.ScalingWarning")  # few, wild gradients
def test_the_batch_of_a_fit_grows_and_a_resumed_fit_is_the_one_that_was_not_interrupted(tmp_path):
    """From checkpoints in the middle of epochs: no sample is lost or repeated, the weights are the same."""
    spy, module, loader, callback = growing(tmp_path / "steady")
    assert sorted(set(spy.sizes)) == [4, 8, 16]
    assert spy.trainer.accumulate_grad_batches == 2, "the script's, after the fit"
    assert all(size <= 0.5 * noise.scale.low for _, size, noise in callback.grow.history)
    flat = [i for batch in loader.asked for i in batch]
    for epoch in range(3):
        assert sorted(flat[epoch * NUMBER : (epoch + 1) * NUMBER]) == list(range(NUMBER))
    checkpoints = sorted((tmp_path / "steady").glob("step=*.ckpt"))
    assert len(checkpoints) > 2
    for path in checkpoints:
        _, again, rest, resumed = growing(tmp_path / "again", resume=path)
        assert rest.asked == loader.asked[len(loader.asked) - len(rest.asked) :]
        assert [entry[:2] for entry in resumed.grow.history] == [entry[:2] for entry in callback.grow.history]
        for a, b in zip(again.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_growth_without_parts_is_refused(tmp_path):
    with pytest.raises(ValueError, match="grow= needs accumulate_grad_batches >= 2 or DDP"):
        fit(tmp_path, 4, callbacks=[RunCallback(4, grow={"most": 16})])


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
    assert "batch size 8 -> 32" in caplog.text
    assert capsys.readouterr().out.startswith("loss ")
    path = tmp_path / "last.ckpt"
    assert torch.load(path, weights_only=False)["global_step"] == 2 * 256 / 8
    for batch_size in (8, 4):
        trainer = example.fit(str(tmp_path / str(batch_size)), example.data(), batch_size, 3, path, 1)
        (callback,) = (one for one in trainer.callbacks if isinstance(one, RunCallback))
        assert [changes.kappa for changes in callback.changes] == [batch_size / 8]
        assert callback.run.samples == 3 * 256


if __name__ == "__main__":  # the fresh process
    folder, saved, result = sys.argv[1:]
    torch.save(resumed(folder, saved), result)
