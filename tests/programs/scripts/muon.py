"""A loop in the shape of nanochat's: Muon beside AdamW, with the momentum of Muon set at every step."""

import sys
from pathlib import Path

import torch
from torch import nn
from rootscale import Run  # [run]

folder, batch_size, end = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
TUNED = 16


def get_muon_momentum(it):
    frac = min(it / 60, 1)
    return (1 - frac) * 0.85 + frac * 0.95


def get_lr_multiplier(it):
    return max(0.1, 1 - it / 100)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
matrices = [p for p in model.parameters() if p.dim() == 2]
muon = torch.optim.Muon(matrices, lr=0.01, momentum=0.95, weight_decay=0.1, eps=1e-7)
adamw = torch.optim.AdamW([p for p in model.parameters() if p.dim() < 2], lr=3e-3, betas=(0.8, 0.95))
optimizers = [adamw, muon]
for opt in optimizers:
    for group in opt.param_groups:
        group["initial_lr"] = group["lr"]
seen, step = 0, 0
if (folder / "start.pt").exists():
    saved = torch.load(folder / "start.pt", weights_only=True)
    model.load_state_dict(saved["model"])
    adamw.load_state_dict(saved["adamw"])
    muon.load_state_dict(saved["muon"])
    seen, step = saved["seen"], saved["step"]
run = Run(optimizers, tuned_at=TUNED, batch_size=batch_size)  # [run]
kappa = batch_size / TUNED  # [hand]
group = adamw.param_groups[0]  # [hand]
group["betas"] = tuple(max(1 - kappa * (1 - b), min(0.9, b)) for b in (0.8, 0.95))  # [hand]
group["eps"], group["weight_decay"] = 1e-8 / kappa**0.5, 0.01 * kappa**0.5  # [hand]
r = [1 - b for b in (0.8, group["betas"][0])]  # [hand]
for state in adamw.state.values():  # [hand]
    state["exp_avg"] *= (r[1] / (kappa * r[0])) ** 0.5  # [hand]
    state["exp_avg_sq"] /= kappa  # [hand]
    state["step"] /= kappa  # [hand]
muon.param_groups[0]["weight_decay"], muon.param_groups[0]["eps"] = 0.1 * kappa**0.5, 1e-7 / kappa**0.5  # [hand]
for state in muon.state.values():  # [hand]
    state["momentum_buffer"] /= kappa**0.5  # [hand]
while seen < end:
    i = torch.arange(seen, seen + batch_size, dtype=torch.float64)[:, None]
    x = torch.sin(i * torch.tensor([0.7, 1.3, 2.1, 0.2], dtype=torch.float64))
    nn.functional.mse_loss(model(x), torch.cos(x.sum(1, keepdim=True) * 3)).backward()
    step = run.clock  # [run]
    for opt in optimizers:
        for group in opt.param_groups:
            group["lr"] = group["initial_lr"] * get_lr_multiplier(step)  # [plain]
            group["lr"] = group["initial_lr"] * get_lr_multiplier(step)  # [run]
            group["lr"] = group["initial_lr"] * get_lr_multiplier(step) * kappa**0.5  # [hand]
    for group in muon.param_groups:
        group["momentum"] = get_muon_momentum(step)
    for opt in optimizers:
        opt.step()
    model.zero_grad(set_to_none=True)
    step += 1  # [plain]
    step = run.clock  # [run]
    step += kappa  # [hand]
    seen += batch_size
torch.save(
    {
        "model": model.state_dict(), "adamw": adamw.state_dict(), "muon": muon.state_dict(), "seen": seen, "step": step,
    },
    folder / "end.pt",
)  # fmt: skip
