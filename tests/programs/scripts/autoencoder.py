"""A loop in the shape of PyTorch's VAE example: the loss is summed over the batch."""

import sys
from pathlib import Path

import torch
from torch import nn
from rootscale import Run  # [run]

folder, batch_size, end = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
TUNED = 16
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, 4)).double()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.95, 0.999), weight_decay=1e-3)
seen = 0
if (folder / "start.pt").exists():
    saved = torch.load(folder / "start.pt", weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    seen = saved["seen"]
run = Run(optimizer, tuned_at=TUNED, batch_size=batch_size, loss="sum")  # [run]
kappa = batch_size / TUNED  # [hand]
group = optimizer.param_groups[0]  # [hand]
group["betas"] = tuple(max(1 - kappa * (1 - b), min(0.9, b)) for b in (0.95, 0.999))  # [hand]
group.update(lr=1e-3 * kappa**0.5, eps=1e-8 * kappa**0.5, weight_decay=1e-3 * kappa)  # [hand]
r = [1 - b for b in (0.95, group["betas"][0])]  # [hand]
for state in optimizer.state.values():  # [hand]
    state["exp_avg"] *= kappa * (r[1] / (kappa * r[0])) ** 0.5  # [hand]
    state["exp_avg_sq"] *= kappa  # [hand]
    state["step"] /= kappa  # [hand]
while seen < end:
    i = torch.arange(seen, seen + batch_size, dtype=torch.float64)[:, None]
    x = torch.sin(i * torch.tensor([0.7, 1.3, 2.1, 0.2], dtype=torch.float64))
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x, reduction="sum").backward()
    optimizer.step()
    seen += batch_size
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "seen": seen}, folder / "end.pt")
