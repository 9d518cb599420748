"""A bare PyTorch loop: saved at batch size 16, gone on with at 64 by a fresh process; some seconds.

python examples/pytorch_loop.py run.pt    # an epoch at batch size 16, saved
python examples/pytorch_loop.py run.pt    # finds the file: loads it, converts the run, an epoch at 64
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

from rootscale.training import rescale_


def main(file: Path) -> None:
    """Train one epoch, from the file if there is one; the lines marked with + are all that a switch adds."""
    torch.manual_seed(0)
    x = torch.randn(2048, 8)
    data = TensorDataset(x, x.sum(1, keepdim=True) + torch.randn(2048, 1))
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.95, 0.99))
    scheduler = CosineAnnealingLR(optimizer, T_max=2 * 2048 // 16)  # two epochs of batches of 16: never changed
    parts, batch_size, clip = {"model": model, "optimizer": optimizer, "scheduler": scheduler}, 16, 1.0

    if file.exists():
        saved = torch.load(file)
        for name, part in parts.items():
            part.load_state_dict(saved[name])  # first load,
        changes = rescale_(
            optimizer, batch_size=(16, 64), scheduler=scheduler, model=model, clip=clip
        )  # + then convert
        batch_size, clip = 64, changes.clip  # +
        print(changes)

    for inputs, labels in DataLoader(data, batch_size, shuffle=True, drop_last=True):
        loss = nn.functional.mse_loss(model(inputs), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    torch.save({name: part.state_dict() for name, part in parts.items()}, file)
    print(f"batch size {batch_size}, lr {scheduler.get_last_lr()[0]:.9f}, clip {clip}, loss {loss.item():.6f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
