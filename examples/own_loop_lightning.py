"""A Lightning module of your own in the check: a callback makes its steps at the batch size of the run.

pip install 'rootscale[lightning]'
rootscale check examples/own_loop_lightning.py:train --to 8 --seeds 8
python examples/own_loop_lightning.py
"""

import logging
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rootscale.integrations.lightning import RunCallback
from rootscale.lab import Here, Judge, Loop, RunLog, check


class Net(LightningModule):
    """Its numbers are those of the base batch size, 2."""

    def __init__(self, log_row: RunLog, batch_size: int, data: TensorDataset) -> None:
        super().__init__()
        self.net, self.data = nn.Linear(8, 1), data
        nn.init.zeros_(self.net.weight)
        self.log_row, self.batch_size = log_row, batch_size

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Return the loss of a regression; now and then log that of all samples."""
        seen = self.global_step * self.batch_size
        if seen % 64 == 0:
            with torch.no_grad():
                self.log_row(samples=seen, loss=self.loss(*self.data.tensors))
        return self.loss(*batch)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the squared error."""
        return nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self):
        """Return Adam with a cosine, both of the base batch size."""
        optimizer = torch.optim.Adam(self.parameters(), lr=6e-3, betas=(0.95, 0.999))
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=256)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def train(batch_size: int = 2, seed: int = 0, log: RunLog = None) -> None:
    """Make a run of 512 samples."""
    warnings.filterwarnings("ignore", module="lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    generator = torch.Generator().manual_seed(0)
    x, noise = torch.randn(256, 8, generator=generator), torch.randn(256, 1, generator=generator)
    data = TensorDataset(x, 0.2 * x.sum(1, keepdim=True) + noise)  # much noise: there the rule holds from scratch
    torch.manual_seed(seed)
    net = Net(log, batch_size, data)
    trainer = Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, callbacks=[RunCallback(tuned_at=2)],
    )  # fmt: skip
    torch.manual_seed(seed)  # the order of the samples
    trainer.fit(net, DataLoader(data, batch_size, shuffle=True))


def main(seeds: int = 8) -> None:
    """Compare B = 2 with B = 8."""
    torch.set_num_threads(1)
    loop = Loop("lightning", train, batch_size=2)
    found = check(loop, [4], seeds=seeds, judge=Judge(tolerance=0.1), execute=Here())
    print(found["B = 8"].comparison)


if __name__ == "__main__":
    main()
