"""A loop in the shape of a DDPM trainer's: an average of the parameters with an interval, kept in a class of its own."""

import sys
from pathlib import Path

import torch
from torch import nn
from rootscale import Run  # [run]

folder, batch_size, end = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
TUNED = 16


class EMA:
    def __init__(self, model, beta=0.9, update_every=2):
        self.beta, self.update_every, self.step = beta, update_every, 0
        self.shadow = [p.detach().clone() for p in model.parameters()]

    @property
    def decay(self):
        return self.beta

    @decay.setter
    def decay(self, value):
        self.beta = value

    def update(self, model):
        self.step += 1
        if self.step % self.update_every == 0:
            for s, p in zip(self.shadow, model.parameters(), strict=True):
                s.lerp_(p.detach(), 1 - self.beta)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)).double()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.99))
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 40))
ema = EMA(model)
seen = 0
if (folder / "start.pt").exists():
    saved = torch.load(folder / "start.pt", weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
    ema.shadow, seen = saved["shadow"], saved["seen"]
run = Run(optimizer, tuned_at=TUNED, batch_size=batch_size, scheduler=scheduler, ema=ema)  # [run]
kappa = batch_size / TUNED  # [hand]
group = optimizer.param_groups[0]  # [hand]
group["betas"] = tuple(max(1 - kappa * (1 - b), min(0.9, b)) for b in (0.9, 0.99))  # [hand]
group["eps"] = 1e-8 / kappa**0.5  # [hand]
r = [1 - b for b in (0.9, group["betas"][0])]  # [hand]
for state in optimizer.state.values():  # [hand]
    state["exp_avg"] *= (r[1] / (kappa * r[0])) ** 0.5  # [hand]
    state["exp_avg_sq"] /= kappa  # [hand]
    state["step"] /= kappa  # [hand]
ema.beta, ticks = 0.9**kappa, seen / TUNED  # [hand]
while seen < end:
    i = torch.arange(seen, seen + batch_size, dtype=torch.float64)[:, None]
    x = torch.sin(i * torch.tensor([0.7, 1.3, 2.1, 0.2], dtype=torch.float64))
    noise = torch.cos(i * torch.tensor([3.7, 2.3, 1.1, 5.2], dtype=torch.float64))
    optimizer.param_groups[0]["lr"] = 2e-3 * min(1.0, (int(ticks + 1e-9) + 1) / 40) * kappa**0.5  # [hand]
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x + noise), noise).backward()
    optimizer.step()
    scheduler.step()  # [plain]
    scheduler.step()  # [run]
    ticks += kappa  # [hand]
    ema.update(model)
    seen += batch_size
torch.save(
    {
        "model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(),
        "shadow": ema.shadow, "seen": seen,
    },
    folder / "end.pt",
)  # fmt: skip
