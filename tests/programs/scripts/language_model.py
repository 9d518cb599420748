"""A loop in the shape of nanoGPT's: get_lr at every step, two groups, accumulation, GradScaler, a clipped gradient."""

import math
import sys
from pathlib import Path

import torch
from torch import nn
from rootscale import Run  # [run]

folder, batch_size, end = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
TUNED = 32
learning_rate, min_lr, warmup_iters, max_iters, grad_clip = 3e-3, 3e-4, 4, 64, 1.0


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = min((it - warmup_iters) / (max_iters - warmup_iters), 1.0)
    return min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


def samples(start, stop):
    i = torch.arange(start, stop, dtype=torch.float64)[:, None]
    x = torch.sin(i * torch.tensor([0.7, 1.3, 2.1, 0.2], dtype=torch.float64) + 0.3)
    return x, torch.cos(x.sum(1, keepdim=True) * 3 + i)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
decay = [p for p in model.parameters() if p.dim() == 2]
rest = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
    lr=learning_rate,
    betas=(0.95, 0.99),
)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
seen, iter_num = 0, 0
if (folder / "start.pt").exists():
    saved = torch.load(folder / "start.pt", weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    scaler.load_state_dict(saved["scaler"])
    seen, iter_num = saved["seen"], saved["iter_num"]
run = Run(optimizer, tuned_at=TUNED, batch_size=batch_size)  # [run]
kappa = batch_size / TUNED  # [hand]
for group in optimizer.param_groups:  # [hand]
    group["betas"] = tuple(max(1 - kappa * (1 - b), min(0.9, b)) for b in (0.95, 0.99))  # [hand]
    group["eps"], group["weight_decay"] = 1e-8 / kappa**0.5, group["weight_decay"] * kappa**0.5  # [hand]
r = [1 - b for b in (0.95, optimizer.param_groups[0]["betas"][0])]  # [hand]
for state in optimizer.state.values():  # [hand]
    state["exp_avg"] *= (r[1] / (kappa * r[0])) ** 0.5  # [hand]
    state["exp_avg_sq"] /= kappa  # [hand]
    state["step"] /= kappa  # [hand]
micro = 8
while seen < end:
    lr = get_lr(iter_num)  # [plain]
    lr = get_lr(run.clock)  # [run]
    lr = get_lr(iter_num) * kappa**0.5  # [hand]
    for group in optimizer.param_groups:
        group["lr"] = lr
    for start in range(seen, seen + batch_size, micro):
        x, y = samples(start, start + micro)
        loss = (model(x) - y).square().mean() * micro / batch_size
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)  # [plain]
    torch.nn.utils.clip_grad_norm_(model.parameters(), run.clip(grad_clip))  # [run]
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip / kappa**0.5)  # [hand]
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    seen += batch_size
    iter_num += 1  # [plain]
    iter_num = run.clock  # [run]
    iter_num += kappa  # [hand]
torch.save(
    {
        "model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict(), "seen": seen,
        "iter_num": iter_num,
    },
    folder / "end.pt",
)  # fmt: skip
