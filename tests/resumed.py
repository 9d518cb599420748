"""A small run under each framework that saves and resumes: three times the same loop, and Lightning's.

Samples are functions of their position, so that a run that goes on sees what the run that was never interrupted saw.
Every step records what the batch size touches: the loss, the learning rate, the loss in evaluation (BatchNorm's running
statistics) and that of the averaged parameters.
"""

from types import MappingProxyType

import torch
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim.lr_scheduler import LinearLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from rootscale.training import rescale_

FIRST = 2  # the script's batch size
KAPPAS = (4, 2)  # the two changes of the run that is never interrupted


def samples(start, number):
    rows = torch.arange(start, start + number, dtype=torch.float64)[:, None] * torch.tensor([1.0, 2.3, 3.7])
    x = torch.sin(rows.double() ** 1.5)
    return x, x.sum(1, keepdim=True) + torch.cos(7 * x[:, :1])


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)).double()


class Bare:
    """A loop by hand, with torch.save."""

    file = "run.pt"

    def __init__(self):
        self.model = network()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, betas=(0.98, 0.999), weight_decay=0.1)
        self.scheduler = LinearLR(self.optimizer, 0.2, total_iters=64)
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.95))

    @property
    def parts(self):
        return {"scheduler": self.scheduler, "model": self.model, "ema": self.ema}

    def backward(self, loss):
        loss.backward()

    def loss(self, model, place, size):
        x, y = samples(place, size)
        return (model(x) - y).square().mean()

    def train(self, place, size, steps):
        """The records of some steps, by the samples seen before them."""
        found = {}
        for _ in range(steps):
            self.model.train()
            loss = self.loss(self.model, place, size)
            rate = float(self.optimizer.param_groups[0]["lr"])
            self.optimizer.zero_grad()
            self.backward(loss)
            self.optimizer.step()
            self.scheduler.step()
            self.ema.update_parameters(self.model)
            self.model.eval(), self.ema.eval()
            with torch.no_grad():
                tests = [self.loss(one, 1000, 16).item() for one in (self.model, self.ema)]
            found[place] = [loss.item(), rate, *tests]
            place += size
        return found

    def states(self):
        held = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler, "ema": self.ema}
        return {name: one.state_dict() for name, one in held.items()}

    def save(self, folder):
        torch.save(self.states(), folder / self.file)

    def load(self, folder):
        for name, state in torch.load(folder / self.file, weights_only=True).items():
            getattr(self, name).load_state_dict(state)

    def rescale(self, **change):
        return rescale_(self.optimizer, **change, **self.parts)


class SchedulerFirst(Bare):
    """Loads the scheduler before the optimizer."""

    def load(self, folder):
        for name, state in reversed(torch.load(folder / self.file, weights_only=True).items()):
            getattr(self, name).load_state_dict(state)


class Sharded(Bare):
    """Saves with torch.distributed.checkpoint, which loads only keys that the fresh state has."""

    def states(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {
            "model": model,
            "optimizer": optimizer,
            "scheduler": self.scheduler.state_dict(),
            "ema": self.ema.state_dict(),
        }

    def save(self, folder):
        dcp.save(self.states(), checkpoint_id=folder / "dcp", no_dist=True)

    def load(self, folder):
        states = self.states()
        dcp.load(states, checkpoint_id=folder / "dcp", no_dist=True)
        set_state_dict(
            self.model, self.optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"]
        )
        self.scheduler.load_state_dict(states["scheduler"])
        self.ema.load_state_dict(states["ema"])


class Accelerated(Bare):
    """A loop under Hugging Face accelerate."""

    late = False  # whether the scheduler is made of the prepared optimizer

    def __init__(self):
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState, GradientState, PartialState

        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
        super().__init__()
        self.accelerator = Accelerator(cpu=True)
        if self.late:
            for group in self.optimizer.param_groups:
                group["lr"] = group.pop("initial_lr")
            del self.optimizer.step  # as if there had been no scheduler
            self.model, self.optimizer = self.accelerator.prepare(self.model, self.optimizer)
            self.scheduler = self.accelerator.prepare(LinearLR(self.optimizer, 0.2, total_iters=64))
        else:
            self.model, self.optimizer, self.scheduler = self.accelerator.prepare(
                self.model, self.optimizer, self.scheduler
            )
        self.accelerator.register_for_checkpointing(self.ema)

    def backward(self, loss):
        self.accelerator.backward(loss)

    def save(self, folder):
        self.accelerator.save_state(str(folder / "accelerate"))

    def load(self, folder):
        self.accelerator.load_state(str(folder / "accelerate"))

    def rescale(self, **change):
        from rootscale.integrations.accelerate import rescale

        return rescale(self.optimizer, **change, **self.parts)

    def restore(self):
        from rootscale.integrations.accelerate import restore

        return restore(self.optimizer, **self.parts)

    def track(self):
        from rootscale.integrations.accelerate import track

        track(self.optimizer, FIRST, scheduler=self.scheduler)


class AcceleratedLate(Accelerated):
    """The same, with a scheduler that belongs to accelerate's optimizer."""

    late = True


class Lightning:
    """Fits of Lightning, an epoch for every 16 samples, with a callback that is the script: it converts by hand."""

    epochs = (2, 8, 8, 16, 16)  # the batch sizes
    saved = MappingProxyType({"before": 0, "after": 1, "twice": 3})  # the last epoch before the checkpoint

    def __init__(self, folder, sizes=epochs):
        self.folder, self.sizes = folder, sizes

    def fit(self, convert=None, when="never", resume=None, end=5):
        """The records of a fit; the script calls ``convert`` before or after Lightning loads the checkpoint."""
        from lightning.pytorch import Callback, LightningModule, Trainer
        from lightning.pytorch.callbacks import ModelCheckpoint
        from torch.utils.data import DataLoader, TensorDataset

        sizes, records = self.sizes, {}

        class Net(LightningModule):
            def __init__(self):
                super().__init__()
                self.net = network()

            def train_dataloader(self):
                epoch = self.trainer.current_epoch
                return DataLoader(TensorDataset(*samples(16 * epoch, 16)), batch_size=sizes[epoch])

            def training_step(self, batch, index):
                loss = (self.net(batch[0]) - batch[1]).square().mean()
                place = 16 * self.trainer.current_epoch + index * sizes[self.trainer.current_epoch]
                records[place] = [loss.item(), self.optimizers().param_groups[0]["lr"]]
                return loss

            def on_train_batch_end(self, *args):
                self.net.eval()
                x, y = samples(1000, 16)
                with torch.no_grad():
                    records[max(records)].append((self.net(x) - y).square().mean().item())
                self.net.train()

            def configure_optimizers(self):
                optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2, betas=(0.98, 0.999), weight_decay=0.1)
                scheduler = LinearLR(optimizer, 0.2, total_iters=64)
                return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

        class Script(Callback):
            def parts(self, trainer, module):
                schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
                return trainer.optimizers, {"scheduler": schedulers, "model": module}

            def on_fit_start(self, trainer, module):
                if when == "rescale first":
                    convert(*self.parts(trainer, module))

            def on_train_start(self, trainer, module):
                self.first = trainer.current_epoch
                if when in ("load first", "restored"):
                    convert(*self.parts(trainer, module))

            def on_train_epoch_start(self, trainer, module):
                old, new = sizes[max(0, trainer.current_epoch - 1)], sizes[trainer.current_epoch]
                if trainer.current_epoch > self.first and old != new:
                    optimizers, parts = self.parts(trainer, module)
                    rescale_(optimizers, batch_size=(old, new), **parts)

        keep = ModelCheckpoint(self.folder, filename="{epoch}", save_top_k=-1, every_n_epochs=1)
        quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False)
        trainer = Trainer(
            accelerator="cpu", devices=1, max_epochs=end, callbacks=[Script(), keep],
            reload_dataloaders_every_n_epochs=1, **quiet,
        )  # fmt: skip
        trainer.fit(Net(), ckpt_path=resume, weights_only=True)
        return records


class HuggingFace:
    """The Trainer of transformers, on 160 samples in their order; its checkpoints are those of ``resume``."""

    saved = MappingProxyType({"before": (2, 16), "after": (8, 32), "twice": (16, 80)})  # batch size and samples seen

    def __init__(self, folder, size, *, callback=True, batchnorm=True, rescaled=()):
        from transformers import Trainer, TrainerCallback, TrainingArguments

        from rootscale.integrations.transformers import RescaleCallback, scale_training_arguments

        first = TrainingArguments(
            str(folder), per_device_train_batch_size=FIRST, learning_rate=1e-2, adam_beta1=0.98, adam_beta2=0.999,
            weight_decay=0.1, max_steps=56, lr_scheduler_type="linear", use_cpu=True, report_to=[], disable_tqdm=True,
            save_strategy="no", dataloader_pin_memory=False, train_sampling_strategy="sequential", max_grad_norm=0.0,
        )  # fmt: skip
        self.args = first if size == FIRST else scale_training_arguments(first, to=f"{size}x1x1")
        records = self.records = {}

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = network()

            def forward(self, x, y):
                loss = (self.net(x) - y).square().mean()
                self.last = loss.item()
                return {"loss": loss}

        class Script(TrainerCallback):
            def __init__(self, stops):
                self.stops = stops

            def on_step_begin(self, args, state, control, optimizer=None, **kwargs):
                self.rate = optimizer.param_groups[0]["lr"]

            def on_step_end(self, args, state, control, model=None, **kwargs):
                model.eval()
                with torch.no_grad():
                    test = model(*samples(1000, 16))["loss"].item()
                model.train()
                records[(state.global_step - 1) * size] = [self.rate, test]
                if state.global_step * size in self.stops:
                    control.should_save = True
                    control.should_training_stop = state.global_step * size == max(self.stops)

        x, y = samples(0, 160)
        data = [{"x": one, "y": other} for one, other in zip(x, y, strict=True)]
        self.model, self.stops = Net(), []
        given = {}
        if rescaled:
            optimizer = Trainer(self.model, first, train_dataset=data).create_optimizer()
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 56)
            for kappa in rescaled:
                rescale_(optimizer, kappa, scheduler=scheduler, model=self.model)
            given["optimizers"] = (optimizer, scheduler)
        callbacks = [RescaleCallback(batchnorm=batchnorm)] * callback + [Script(self.stops)]
        self.trainer = Trainer(self.model, self.args, train_dataset=data, callbacks=callbacks, **given)

    def train(self, *stops, checkpoint=None, converted=False):
        """The records until the last stop; a checkpoint is written at each."""
        from rootscale.integrations.transformers import resume

        self.stops[:] = stops
        if converted:
            resume(self.trainer, checkpoint)
        else:
            self.trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        return self.records
