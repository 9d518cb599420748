"""A loop in the shape of cleanrl's PPO: the learning rate is annealed by hand, more environments make larger batches."""

import sys
from pathlib import Path

import torch
from torch import nn
from rootscale import Run  # [run]

folder, batch_size, end = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
TUNED = 32  # samples of a minibatch with 8 environments
num_envs, num_steps, num_minibatches, update_epochs = batch_size // 4, 16, 4, 2
total, learning_rate, per_iteration = 4096, 2.5e-3, num_minibatches * update_epochs

torch.manual_seed(0)
agent = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()
optimizer = torch.optim.Adam(agent.parameters(), lr=learning_rate, eps=1e-5, betas=(0.95, 0.999))
seen = 0
if (folder / "start.pt").exists():
    saved = torch.load(folder / "start.pt", weights_only=True)
    agent.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    seen = saved["seen"]
run = Run(optimizer, tuned_at=TUNED, batch_size=batch_size)  # [run]
kappa = batch_size / TUNED  # [hand]
group = optimizer.param_groups[0]  # [hand]
group["betas"] = tuple(max(1 - kappa * (1 - b), min(0.9, b)) for b in (0.95, 0.999))  # [hand]
group["eps"] = 1e-5 / kappa**0.5  # [hand]
r = [1 - b for b in (0.95, group["betas"][0])]  # [hand]
for state in optimizer.state.values():  # [hand]
    state["exp_avg"] *= (r[1] / (kappa * r[0])) ** 0.5  # [hand]
    state["exp_avg_sq"] /= kappa  # [hand]
    state["step"] /= kappa  # [hand]
while seen < end:
    frac = 1.0 - seen / total
    optimizer.param_groups[0]["lr"] = frac * learning_rate  # [plain]
    optimizer.param_groups[0]["lr"] = frac * learning_rate  # [run]
    optimizer.param_groups[0]["lr"] = frac * learning_rate * kappa**0.5  # [hand]
    i = torch.arange(seen, seen + num_envs * num_steps, dtype=torch.float64)[:, None]
    obs = torch.sin(i * torch.tensor([0.9, 1.7, 0.1], dtype=torch.float64))
    advantages = torch.cos(i * 2.3).flatten()
    actions = (i.flatten() * 7 % 2).long()
    for epoch in range(update_epochs):
        for mb in range(num_minibatches):
            rows = slice(mb * batch_size, (mb + 1) * batch_size)
            logprob = agent(obs[rows]).log_softmax(1).gather(1, actions[rows, None]).flatten()
            loss = -(advantages[rows] * logprob).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    seen += num_envs * num_steps
torch.save({"model": agent.state_dict(), "optimizer": optimizer.state_dict(), "seen": seen}, folder / "end.pt")
