"""A Lightning run that is resumed at another batch size, with one line more: ``RunCallback(tuned_at=8)``.

python examples/lightning_run.py                # two epochs at batch size 8, then two at 32
python examples/lightning_run.py --devices 2    # saved by two processes, 4 samples each; resumed by one
"""

import argparse
import logging
import tempfile
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rootscale.integrations.lightning import RunCallback


class Net(LightningModule):
    """Its numbers are those of a batch size of 8, and stay so."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Return the loss of a regression."""
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss, on_epoch=True)
        return loss

    def configure_optimizers(self):
        """Return AdamW with a cosine that is stepped with the optimizer."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=5e-3, betas=(0.98, 0.999), weight_decay=0.1)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4 * 32)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def data() -> TensorDataset:
    """Return 256 samples of a noisy sum."""
    generator = torch.Generator().manual_seed(0)
    x, noise = torch.randn(256, 8, generator=generator), torch.randn(256, 1, generator=generator)
    return TensorDataset(x, x.sum(1, keepdim=True) + noise)


def fit(folder: str, samples: TensorDataset, batch_size: int, epochs: int, resume: str | None, devices: int) -> Trainer:
    """Train up to so many epochs."""
    trainer = Trainer(
        max_epochs=epochs, accelerator="cpu", devices=devices, strategy="ddp_fork" if devices > 1 else "auto",
        gradient_clip_val=1.0, logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[
            EMAWeightAveraging(decay=0.99), RunCallback(tuned_at="8x1x1"), ModelCheckpoint(folder, save_last=True)
        ],
    )  # fmt: skip
    trainer.fit(Net(), DataLoader(samples, batch_size, shuffle=True), ckpt_path=resume, weights_only=False)
    return trainer


def main() -> None:
    """Two epochs at a global batch size of 8, then two at 32."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="where the checkpoint goes")
    parser.add_argument("--devices", type=int, default=1, help="processes of the first part")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    folder = args.folder or tempfile.mkdtemp()
    fit(folder, data(), 8 // args.devices, 2, None, args.devices)
    logging.getLogger("lightning.pytorch").setLevel(logging.INFO)
    trainer = fit(f"{folder}/large", data(), 32, 4, f"{folder}/last.ckpt", 1)
    print(f"loss {trainer.callback_metrics['loss_epoch']:.3f}")


if __name__ == "__main__":
    main()
