"""What reaches the trackers of each framework, through the interface that W&B, MLflow and TensorBoard have there."""

import math
import os
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rootscale import Adam, Plan, ScalingWarning
from rootscale.noise import Interval, Noise
from rootscale.tracking import above_noise, numbers
from rootscale.training import Run
from rootscale.trajectory import Trajectory
from rootscale.verdict import compare

os.environ.setdefault("HF_HUB_OFFLINE", "1")
SOME = Interval(1.0, 0.5, 2.0)


def noise(low, value, high):
    return Noise(SOME, SOME, Interval(value, low, high), 100)


def runs(shift, seed):
    spread = np.random.default_rng(seed).normal(0, 1e-3, (8, 3))
    return Trajectory(np.arange(3.0), {"loss": np.array([1.0, 0.5, 0.2]) + shift + spread})


def test_changes_noise_and_verdict_are_flat_numbers():
    changes = Plan(Adam(1e-3, beta1=0.98), batch_size=16, steps=1000).convert(64).changes
    found = numbers(changes, noise(90, 100, math.inf), {"loss": 0.5})
    assert found["rootscale/optimizer.eta"] == 2e-3
    assert (found["noise_scale"], found["noise_scale_low"], found["loss"]) == (100, 90, 0.5)
    assert "noise_scale_high" not in found  # trackers take finite numbers
    same = numbers(compare(runs(0.0, 0), runs(0.0, 1), tolerance=0.05))
    different = numbers(compare(runs(0.2, 0), runs(0.0, 1), tolerance=0.05))
    assert (same["rootscale/verdict"], different["rootscale/verdict"]) == (1, -1)
    assert different["rootscale/gap/loss"] == pytest.approx(-2 / 3, abs=0.02)  # of the range after the first time


def test_a_batch_above_the_whole_interval_of_the_noise_scale_is_said():
    assert above_noise(noise(90, 100, 120), 120) == ""
    assert above_noise(noise(90, 100, math.inf), 1e9) == ""
    said = above_noise(noise(90, 100, 120), 128)
    assert said.startswith("the batch of 128 samples exceeds the measured noise scale, 100 [90, 120] samples (95 %")


# ---- accelerate


def test_the_trackers_of_accelerate_are_told_at_the_samples_seen():
    pytest.importorskip("accelerate")
    from accelerate import Accelerator
    from accelerate.tracking import GeneralTracker

    from rootscale.integrations.accelerate import log

    class Tracker(GeneralTracker):
        name, requires_logging_directory, tracker = "mine", False, None

        def __init__(self):
            self.logged = []

        def store_init_configuration(self, values):
            pass

        def log(self, values, step=None, **kwargs):
            self.logged.append((step, values))

    accelerator = Accelerator(cpu=True, log_with=(mine := Tracker()))
    accelerator.init_trackers("project")
    run = Run(torch.optim.Adam([torch.zeros(1, requires_grad=True)], betas=(0.98, 0.999)), tuned_at=16, batch_size=64)
    log(accelerator, run, {"loss": 0.5}, samples=1600)
    ((step, values),) = mine.logged
    assert (step, values["samples_seen"], values["loss"], values["rootscale/lr"]) == (1600, 1600, 0.5, 2e-3)
    with pytest.warns(ScalingWarning, match="the batch of 128 samples exceeds"):
        log(accelerator, noise(90, 100, 120), samples=1700, batch_size=128)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        log(accelerator, noise(90, 100, 120), samples=1800, batch_size=64)
    assert [at for at, _ in mine.logged] == [1600, 1700, 1800]


# ---- the Trainer of transformers


@pytest.fixture
def trainers(tmp_path):
    """A Trainer of a line, with a tracker before the callback that is given to it, as W&B's is."""
    transformers = pytest.importorskip("transformers")
    from rootscale.integrations.transformers import RunCallback

    class Line(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.line = nn.Linear(4, 1)

        def forward(self, x, labels):
            return {"loss": nn.functional.mse_loss(self.line(x), labels)}

    class Tracker(transformers.TrainerCallback):
        def __init__(self):
            self.logged = []

        def on_log(self, args, state, control, logs=None, **kwargs):
            self.logged.append((state.global_step, dict(logs)))

    source = torch.Generator().manual_seed(0)
    rows = 1 + 0.05 * torch.randn(64, 4, generator=source)  # the gradient dominates
    data = [{"x": row, "labels": row.sum(0, keepdim=True)} for row in rows]

    def make(name, **options):
        values = {"per_device_train_batch_size": 4, "logging_steps": 8, "max_steps": 16, **options.pop("arguments", {})}
        args = transformers.TrainingArguments(
            str(tmp_path / name), learning_rate=1e-3, adam_beta1=0.98, save_steps=8, use_cpu=True, report_to=[],
            disable_tqdm=True, dataloader_pin_memory=False, **values,
        )  # fmt: skip
        made = transformers.Trainer(Line(), args, train_dataset=data, callbacks=[tracker := Tracker()])
        RunCallback(made, tuned_at=4, **options)
        return made, tracker

    return make


def test_a_tracker_of_the_trainer_is_told_the_samples_seen_and_what_a_step_uses(trainers, tmp_path):
    trainer, tracker = trainers("small")
    trainer.train()
    assert [(step, logs["samples_seen"]) for step, logs in tracker.logged] == [(8, 32), (16, 64), (16, 64)]
    trainer, tracker = trainers("large", arguments={"per_device_train_batch_size": 16})
    trainer.train(str(tmp_path / "small" / "checkpoint-8"))
    (loss,) = [logs for _, logs in tracker.logged if "loss" in logs]
    assert loss["samples_seen"] == 64  # step 4, where the small run had step 16
    assert (loss["rootscale/kappa"], loss["rootscale/group_0/beta1"]) == (4, pytest.approx(0.92))
    assert loss["rootscale/group_0/lr"] == pytest.approx(2 * loss["learning_rate"])  # that of the optimizer's groups
    assert trainer.state.log_history[-2]["samples_seen"] == 64


def test_a_tracker_of_the_trainer_is_told_the_noise_and_a_batch_that_exceeds_it_is_a_warning(trainers):
    arguments = {"gradient_accumulation_steps": 2, "max_grad_norm": 0.0, "max_steps": 32, "logging_steps": 16}
    trainer, tracker = trainers("noise", arguments=arguments, noise_every=1)
    with pytest.warns(ScalingWarning, match=r"the batch of 8 samples exceeds the measured noise scale") as said:
        trainer.train()
    assert sum("exceeds" in str(one.message) for one in said) == 1
    assert tracker.logged[0][1]["noise_scale_high"] < 8  # eight steps of eight samples


# ---- Lightning


@pytest.fixture
def fits(tmp_path):
    """A fit with a logger of its own, from a folder's last checkpoint on if there is one."""
    lightning = pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers.logger import Logger

    from rootscale.integrations.lightning import RunCallback

    class Mine(Logger):
        name, version = "mine", "0"

        def __init__(self):
            super().__init__()
            self.logged = []

        def log_metrics(self, metrics, step=None):
            self.logged.append((step, dict(metrics)))

        def log_hyperparams(self, *args, **kwargs):
            pass

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.line = nn.Linear(4, 1)

        def training_step(self, batch, batch_idx):
            loss = nn.functional.mse_loss(self.line(batch[0]), batch[1])
            self.log("loss", loss, on_step=True, on_epoch=True)
            return loss

        def validation_step(self, batch, batch_idx):
            self.log("val", nn.functional.mse_loss(self.line(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3, betas=(0.95, 0.99))

    x = 1 + 0.05 * torch.randn(64, 4, generator=torch.Generator().manual_seed(0))  # the gradient dominates
    data = TensorDataset(x, x.sum(1, keepdim=True))

    def fit(size, epochs, resume=None, every=1, **options):
        logger = Mine()
        trainer = lightning.Trainer(
            max_epochs=epochs, accelerator="cpu", devices=1, logger=logger, log_every_n_steps=8 // (size // 4),
            accumulate_grad_batches=every, enable_progress_bar=False, enable_model_summary=False,
            callbacks=[RunCallback(4, **options), ModelCheckpoint(tmp_path, save_last=True)],
        )  # fmt: skip
        trainer.fit(Net(), DataLoader(data, size), DataLoader(data, 64), ckpt_path=resume, weights_only=True)
        return logger.logged

    return fit


QUIET = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
    pytest.mark.filterwarnings("error::rootscale.changes.ScalingWarning"),
]


def quiet(test):
    for mark in QUIET:
        test = mark(test)
    return test


@quiet
def test_the_loggers_of_lightning_go_on_in_samples_after_a_change(fits, tmp_path):
    before = fits(4, 1, by_samples=True)
    after = fits(16, 2, resume=tmp_path / "last.ckpt", by_samples=True)
    assert [step for step, logged in before if "loss_step" in logged] == [32, 64]
    assert [step for step, logged in after if "loss_step" in logged] == [96, 128]
    for logged, end in ((before, 64), (after, 128)):
        assert [step for step, values in logged if "val" in values] == [end]
        assert [step for step, values in logged if "loss_epoch" in values] == [end]
        assert all("step" not in values for _, values in logged)
    ((step, values),) = [row for row in after if "rootscale/kappa" in row[1]]
    assert (step, values["rootscale/lr"], values["samples_seen"]) == (64, 2e-3, 64)
    assert [values["rootscale/beta2"] for _, values in after if "loss_step" in values] == pytest.approx([0.96, 0.96])


@quiet
def test_the_loggers_of_lightning_have_the_samples_beside_steps_of_their_own(fits, tmp_path):
    fits(4, 1)
    after = fits(16, 2, resume=tmp_path / "last.ckpt")
    steps = [(step, values["samples_seen"]) for step, values in after if "loss_step" in values]
    assert steps == [(17, 96), (19, 128)]
    assert [step for step, values in after if "rootscale/kappa" in values] == [16]


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*")
@pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning")
def test_lightning_warns_of_a_batch_that_exceeds_the_noise_scale(fits):
    with pytest.warns(ScalingWarning, match="the batch of 8 samples exceeds the measured noise scale") as said:
        logged = fits(4, 3, every=2, noise=True)
    assert sum("exceeds" in str(one.message) for one in said) == 1
    assert any("noise_scale" in values for _, values in logged)
