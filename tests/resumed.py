"""A small run that saves and resumes: a loop by hand, with torch.save.

Samples are functions of their position, so that a run that goes on sees what the run that was never interrupted saw.
Every step records what the batch size touches: the loss, the learning rate, the loss in evaluation (BatchNorm's running
statistics) and that of the averaged parameters.
"""

import torch
from torch import nn
from torch.optim.lr_scheduler import LinearLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

FIRST = 2  # the script's batch size


def samples(start, number):
    rows = torch.arange(start, start + number, dtype=torch.float64)[:, None] * torch.tensor([1.0, 2.3, 3.7])
    x = torch.sin(rows.double() ** 1.5)
    return x, x.sum(1, keepdim=True) + torch.cos(7 * x[:, :1])


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)).double()


class Bare:
    """A loop by hand, with torch.save."""

    file = "run.pt"

    def __init__(self):
        self.model = network()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, betas=(0.98, 0.999), weight_decay=0.1)
        self.scheduler = LinearLR(self.optimizer, 0.2, total_iters=64)
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.95))

    def backward(self, loss):
        loss.backward()

    def loss(self, model, place, size):
        x, y = samples(place, size)
        return (model(x) - y).square().mean()

    def train(self, place, size, steps):
        """The records of some steps, by the samples seen before them."""
        found = {}
        for _ in range(steps):
            self.model.train()
            loss = self.loss(self.model, place, size)
            rate = float(self.optimizer.param_groups[0]["lr"])
            self.optimizer.zero_grad()
            self.backward(loss)
            self.optimizer.step()
            self.scheduler.step()
            self.ema.update_parameters(self.model)
            self.model.eval(), self.ema.eval()
            with torch.no_grad():
                tests = [self.loss(one, 1000, 16).item() for one in (self.model, self.ema)]
            found[place] = [loss.item(), rate, *tests]
            place += size
        return found

    def states(self):
        held = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler, "ema": self.ema}
        return {name: one.state_dict() for name, one in held.items()}

    def save(self, folder):
        torch.save(self.states(), folder / self.file)

    def load(self, folder):
        for name, state in torch.load(folder / self.file, weights_only=True).items():
            getattr(self, name).load_state_dict(state)
