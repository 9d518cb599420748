"""A loop in the shape of dcgan's: two optimizers, BatchNorm, a scheduler for one of them."""

import sys
from pathlib import Path

import torch
from torch import nn
from rootscale import Run  # [run]

folder, batch_size, end = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
TUNED = 16
torch.manual_seed(0)
net_g = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()
net_d = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8, momentum=0.2), nn.Tanh(), nn.Linear(8, 1)).double()
optimizer_d = torch.optim.Adam(net_d.parameters(), lr=1e-3, betas=(0.5, 0.99))
optimizer_g = torch.optim.RMSprop(net_g.parameters(), lr=1e-3, alpha=0.99)
scheduler_g = torch.optim.lr_scheduler.ExponentialLR(optimizer_g, gamma=0.97)
seen = 0
if (folder / "start.pt").exists():
    saved = torch.load(folder / "start.pt", weights_only=True)
    for name, thing in (("g", net_g), ("d", net_d), ("od", optimizer_d), ("og", optimizer_g), ("sg", scheduler_g)):
        thing.load_state_dict(saved[name])
    seen = saved["seen"]
both, nets = [optimizer_d, optimizer_g], [net_g, net_d]  # [run]
run = Run(both, tuned_at=TUNED, batch_size=batch_size, scheduler=scheduler_g, model=nets)  # [run]
kappa = batch_size / TUNED  # [hand]
optimizer_d.param_groups[0].update(lr=1e-3 * kappa**0.5, eps=1e-8 / kappa**0.5)  # [hand]
optimizer_d.param_groups[0]["betas"] = tuple(max(1 - kappa * (1 - b), min(0.9, b)) for b in (0.5, 0.99))  # [hand]
optimizer_g.param_groups[0].update(eps=1e-8 / kappa**0.5, alpha=max(1 - kappa * 0.01, 0.9))  # [hand]
r = [1 - b for b in (0.5, optimizer_d.param_groups[0]["betas"][0])]  # [hand]
for optimizer in (optimizer_d, optimizer_g):  # [hand]
    for state in optimizer.state.values():  # [hand]
        for m in [state["exp_avg"]] if "exp_avg" in state else []:  # [hand]
            m *= (r[1] / (kappa * r[0])) ** 0.5  # [hand]
        state["exp_avg_sq" if "exp_avg_sq" in state else "square_avg"] /= kappa  # [hand]
        state["step"] /= kappa  # [hand]
net_g[1].momentum, net_d[1].momentum = 1 - 0.9**kappa, 1 - 0.8**kappa  # [hand]
ticks = seen / TUNED  # [hand]
while seen < end:
    i = torch.arange(seen, seen + batch_size, dtype=torch.float64)[:, None]
    real = torch.sin(i * torch.tensor([0.9, 1.7, 0.1], dtype=torch.float64))
    fake = net_g(torch.cos(i * torch.tensor([1.1, 2.7], dtype=torch.float64)))
    net_d.zero_grad()
    loss = nn.functional.softplus(-net_d(real)).mean() + nn.functional.softplus(net_d(fake.detach())).mean()
    loss.backward()
    optimizer_d.step()
    net_g.zero_grad()
    nn.functional.softplus(-net_d(fake)).mean().backward()
    optimizer_g.param_groups[0]["lr"] = 1e-3 * 0.97 ** int(ticks) * kappa**0.5  # [hand]
    optimizer_g.step()
    scheduler_g.step()  # [plain]
    scheduler_g.step()  # [run]
    ticks += kappa  # [hand]
    seen += batch_size
torch.save(
    {
        "g": net_g.state_dict(), "d": net_d.state_dict(), "od": optimizer_d.state_dict(), "og": optimizer_g.state_dict(),
        "sg": scheduler_g.state_dict(), "seen": seen,
    },
    folder / "end.pt",
)  # fmt: skip
