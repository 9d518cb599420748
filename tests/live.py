"""A small run in float64, and everything of it that a conversion may change."""

import torch
from torch import nn

ADAM = {"lr": 1e-3, "betas": (0.98, 0.999), "eps": 1e-8}


class Average:
    """Someone's own parameter average."""

    def __init__(self, decay):
        self.decay = decay


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()


def train(model, optimizer, steps, seed=0):
    """The losses of some steps on data of its own."""
    generator, losses = torch.Generator().manual_seed(seed), []
    for _ in range(steps):
        x = torch.randn(8, 3, generator=generator, dtype=torch.float64)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def plain(value):
    """Tensors and all that holds them as numbers and lists, to compare bit by bit."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def snapshot(*objects):
    """Everything that rescale_ may change, as plain values."""
    taken = []
    for one in objects:
        if isinstance(one, torch.optim.Optimizer):
            taken.append((plain(one.state_dict()), plain(dict(one.defaults))))
        elif isinstance(one, nn.Module):
            taken.append([getattr(module, "momentum", None) for module in one.modules()])
        elif isinstance(one, Average):
            taken.append(one.decay)
        else:
            taken.append(
                (type(one), plain({k: v for k, v in one.__dict__.items() if k not in ("optimizer", "_schedulers")}))
            )
    return taken
