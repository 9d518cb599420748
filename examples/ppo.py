"""PPO whose number of environments changes: the learning rate of 8 environments, at 32 or 64 of them.

    python examples/ppo.py --envs 32                         # a task of this file, seconds on a CPU
    python examples/ppo.py CartPole-v1 --envs 32             # of gymnasium: pip install 'rootscale[rl]'

A batch of `envs` environments is `envs / 8` times the batch that the settings were tuned at. The lines marked with +
are all that `Run` adds; the settings stay those of 8 environments, and the same frames are seen.
"""

import argparse

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical, Normal

from rootscale import Run  # +

TUNED_AT = 8  # + environments that the settings below are for
#: Steps of a rollout, epochs, samples of a gradient step, learning rate, gamma, bonus of the entropy, frames.
SETTINGS = {
    "CartPole-v1": (32, 10, 64, 1e-3, 0.98, 0.0, 98_304),
    "Pendulum-v1": (256, 10, 64, 1e-3, 0.9, 0.0, 131_072),
    "Corridor": (32, 4, 64, 2.5e-3, 0.95, 0.01, 8_192),
}


class Corridor:
    """A task with gymnasium's interface of vectorised environments: walk to the right end of a corridor in 20 steps."""

    LENGTH = 8

    def __init__(self, envs: int) -> None:
        self.envs, self.actions, self.size = envs, 2, 2

    def reset(self, seed: int | None = None) -> tuple[np.ndarray, dict]:
        """Start all of them."""
        self.random = np.random.default_rng(seed)
        self.place, self.time = self.random.integers(0, 4, self.envs), np.zeros(self.envs, int)
        return self._seen(), {}

    def _seen(self) -> np.ndarray:
        return np.stack([self.place / self.LENGTH, self.time / 20], 1).astype(np.float32)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        """Walk; those that are there, or out of time, start again."""
        slips = self.random.random(self.envs) < 0.1
        self.place = np.clip(self.place + np.where((actions == 1) ^ slips, 1, -1), 0, self.LENGTH)
        self.time += 1
        there, late = self.place == self.LENGTH, self.time == 20
        reward = np.where(there, 1.0, -0.05)
        over = there | late
        self.place = np.where(over, self.random.integers(0, 4, self.envs), self.place)
        self.time = np.where(over, 0, self.time)
        return self._seen(), reward, there, late, {}


def make(task: str, envs: int):
    """Return environments, the size of an observation, and the number of actions; 0 actions are a number each."""
    if task == "Corridor":
        return Corridor(envs), 2, 2
    import gymnasium as gym

    mode = "vector_entry_point" if task == "CartPole-v1" else "sync"  # CartPole computes all of them at once
    made = gym.make_vec(task, envs, vectorization_mode=mode)
    return made, made.single_observation_space.shape[0], int(getattr(made.single_action_space, "n", 0))


class Agent(nn.Module):
    """A policy and a value."""

    def __init__(self, size: int, actions: int) -> None:
        super().__init__()
        self.continuous = actions == 0
        self.policy, self.value = self._net(size, actions or 1, 0.01), self._net(size, 1, 1.0)
        self.spread = nn.Parameter(torch.zeros(1)) if self.continuous else None

    @staticmethod
    def _net(size: int, out: int, gain: float) -> nn.Module:
        layers = [nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, out)]
        for layer, g in zip(layers[::2], (2**0.5, 2**0.5, gain), strict=True):
            nn.init.orthogonal_(layer.weight, g)
            nn.init.zeros_(layer.bias)
        return nn.Sequential(*layers)

    def forward(self, seen):
        """Return the distribution of actions, and the value."""
        out = self.policy(seen)
        law = Normal(out[:, 0], self.spread.exp()) if self.continuous else Categorical(logits=out)
        return law, self.value(seen)[:, 0]


def train(task: str, envs: int, seed: int, log, rule: str | None = None, frames: int | None = None) -> None:
    """Train for the frames of the task; `log` gets the mean return of the episodes that ended since it was called."""
    steps, epochs, minibatch, lr, gamma, bonus, usual = SETTINGS[task]
    frames = frames or usual
    minibatch = minibatch * envs // TUNED_AT  # + as many gradient steps a rollout as ever
    torch.manual_seed(seed)
    env, size, actions = make(task, envs)
    agent = Agent(size, actions)
    optimizer = torch.optim.Adam(agent.parameters(), lr=lr, eps=1e-5)
    run = Run(optimizer, tuned_at=TUNED_AT, batch_size=envs, rule=rule)  # +

    seen, _ = env.reset(seed=seed)
    returns, running, fresh, points = [], np.zeros(envs), np.zeros(envs, bool), 0
    for rollout in range(frames // (steps * envs)):
        for group in optimizer.param_groups:
            group["lr"] = lr * (1 - rollout * steps * envs / frames)
        store = {name: [] for name in ("seen", "action", "logp", "value", "reward", "over", "used")}
        for _ in range(steps):
            with torch.no_grad():
                law, value = agent(torch.as_tensor(seen, dtype=torch.float32))
                action = law.sample()
            move = action.numpy() if actions else action.numpy()[:, None].clip(-1, 1) * 2
            after, reward, terminated, truncated, _ = env.step(move)
            over = terminated | truncated
            rows = (seen, action, law.log_prob(action), value, reward, over, ~fresh)
            for name, row in zip(store, rows, strict=True):
                store[name].append(torch.as_tensor(np.asarray(row), dtype=torch.float32))
            running = np.where(fresh, 0.0, running + reward)
            returns += running[over & ~fresh].tolist()
            running = np.where(over, 0.0, running)
            fresh = over & (task != "Corridor")  # gymnasium starts an environment anew in the step after its end
            seen = after
        data = {name: torch.stack(rows) for name, rows in store.items()}
        with torch.no_grad():
            last = agent(torch.as_tensor(seen, dtype=torch.float32))[1]
        gain, advantage = torch.zeros(envs), torch.zeros_like(data["reward"])
        for t in reversed(range(steps)):
            later = data["value"][t + 1] if t + 1 < steps else last
            scale = 0.1 if task == "Pendulum-v1" else 1.0
            delta = scale * data["reward"][t] + gamma * later * (1 - data["over"][t]) - data["value"][t]
            advantage[t] = gain = delta + gamma * 0.95 * (1 - data["over"][t]) * gain
        target = advantage + data["value"]
        flat = {
            name: rows.flatten(0, 1) for name, rows in (*data.items(), ("advantage", advantage), ("target", target))
        }
        flat = {name: rows[flat["used"] > 0] for name, rows in flat.items() if name != "used"}
        for _ in range(epochs):
            for i in torch.randperm(len(flat["reward"])).split(minibatch):
                law, value = agent(flat["seen"][i])
                ratio = (law.log_prob(flat["action"][i]) - flat["logp"][i]).exp()
                a = flat["advantage"][i]
                a = (a - a.mean()) / (a.std() + 1e-8)
                policy = -torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a).mean()
                loss = policy + 0.25 * (value - flat["target"][i]).square().mean() - bonus * law.entropy().mean()
                run.batch_size = len(i) / minibatch * envs  # + the last minibatch of an epoch may be smaller
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), run.clip(0.5))  # + not 0.5
                optimizer.step()
        now = (rollout + 1) * steps * envs
        if returns and now * 16 // frames > points:
            points = now * 16 // frames
            log(samples=now, **{"mean return": float(np.mean(returns))})
            returns = []


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", nargs="?", default="Corridor", choices=SETTINGS)
    parser.add_argument("--envs", type=int, default=TUNED_AT)
    parser.add_argument("--frames", type=int, help="default: those of the task")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    train(args.task, args.envs, args.seed, lambda **row: print(row, flush=True), frames=args.frames)
