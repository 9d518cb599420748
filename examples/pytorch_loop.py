"""A bare PyTorch loop: saved at batch size 16, resumed at 64 by a fresh process; some seconds.

python examples/pytorch_loop.py run.pt       # an epoch at batch size 16, saved
python examples/pytorch_loop.py run.pt 64    # finds the file: loads it, and trains an epoch at 64
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

from rootscale import Run


def main(file: Path, batch_size: int) -> None:
    """Train one epoch, from the file if there is one; the line marked with + is all that is added."""
    torch.manual_seed(0)
    x = torch.randn(2048, 8)
    data = TensorDataset(x, x.sum(1, keepdim=True) + torch.randn(2048, 1))
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.95, 0.99))
    scheduler = CosineAnnealingLR(optimizer, T_max=2 * 2048 // 16)  # two epochs of batches of 16: never changed
    run = Run(optimizer, tuned_at=16, batch_size=batch_size, scheduler=scheduler, model=model)  # +
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    if file.exists():
        saved = torch.load(file)
        for name, part in parts.items():
            part.load_state_dict(saved[name])

    for inputs, labels in DataLoader(data, batch_size, shuffle=True, drop_last=True):
        loss = nn.functional.mse_loss(model(inputs), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), run.clip(1.0))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    torch.save({name: part.state_dict() for name, part in parts.items()}, file)
    print(run)
    step = f"lr {run.values()['lr']:.9f}, clip {run.clip(1.0)}"
    print(f"batch size {batch_size}, script's lr {scheduler.get_last_lr()[0]:.9f}, a step's {step}, loss {loss:.6f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 16)
