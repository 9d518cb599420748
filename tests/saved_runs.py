"""Small runs in float64 that save checkpoints: a loop by hand, with DCP, and under Accelerate."""

import torch
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.optim.lr_scheduler import LinearLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

ADAM = {"lr": 1e-3, "betas": (0.98, 0.999), "eps": 1e-8}
FIRST = 2  # the script's batch size


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()


def train(model, optimizer, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(8, 3, generator=generator, dtype=torch.float64)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def plain(value):
    """Tensors and all that holds them as numbers and lists, to compare bit by bit."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


#: What a piece of state is multiplied by, where no floor acts.
POWERS = {"exp_avg_sq": -1, "max_exp_avg_sq": -1, "square_avg": -1, "step": -1, "exp_avg": 0}


def by_hand(state_dict, kappa, *, lr=0.5, decay=0.5, buffer=0.0):
    """A copy of an optimizer's state_dict at kappa times the batch size, from the table of units."""
    groups = []
    for old in state_dict["param_groups"]:
        group = dict(old)
        for key in ("lr", "initial_lr"):
            if key in group:
                group[key] = group[key] * kappa**lr
        if "betas" in group:
            group["betas"] = tuple(max(min(beta, 0.9), 1 - kappa * (1 - beta)) for beta in group["betas"])
        if "alpha" in group:
            group["alpha"] = max(min(group["alpha"], 0.9), 1 - kappa * (1 - group["alpha"]))
        if "eps" in group:
            group["eps"] = group["eps"] * kappa**-0.5
        if group.get("weight_decay"):
            group["weight_decay"] = group["weight_decay"] * kappa**decay
        groups.append(group)
    powers = {**POWERS, "momentum_buffer": buffer}
    state = {
        owner: {name: value * kappa ** powers[name] for name, value in pieces.items()}
        for owner, pieces in state_dict["state"].items()
    }
    return {"state": state, "param_groups": groups}


def assert_close(found, expected, path=""):
    """Equal up to rounding, with the same keys."""
    if isinstance(expected, dict):
        assert set(found) == set(expected), path
        for key, value in expected.items():
            assert_close(found[key], value, f"{path}.{key}")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), path
        for i, value in enumerate(expected):
            assert_close(found[i], value, f"{path}.{i}")
    elif isinstance(expected, torch.Tensor) or isinstance(found, torch.Tensor):
        found = torch.as_tensor(found)
        rtol = 1e-6 if found.dtype == torch.float32 else 1e-12
        torch.testing.assert_close(found, torch.as_tensor(expected, dtype=found.dtype), rtol=rtol, atol=0)
    elif isinstance(expected, float):
        assert abs(found - expected) <= 1e-12 * abs(expected), (path, found, expected)
    else:
        assert found == expected, path


def samples(start, number):
    rows = torch.arange(start, start + number, dtype=torch.float64)[:, None] * torch.tensor([1.0, 2.3, 3.7])
    x = torch.sin(rows.double() ** 1.5)
    return x, x.sum(1, keepdim=True) + torch.cos(7 * x[:, :1])


class Bare:
    """A loop by hand, with torch.save."""

    place = "run.pt"

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)).double()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, betas=(0.98, 0.999), weight_decay=0.1)
        self.scheduler = LinearLR(self.optimizer, 0.2, total_iters=64)
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.95))

    def backward(self, loss):
        loss.backward()

    def train(self, steps, size=FIRST):
        for i in range(steps):
            x, y = samples(i * size, size)
            self.optimizer.zero_grad()
            self.backward((self.model(x) - y).square().mean())
            self.optimizer.step()
            self.scheduler.step()
            self.ema.update_parameters(self.model)

    def states(self):
        parts = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler, "ema": self.ema}
        return {name: part.state_dict() for name, part in parts.items()}

    def save(self, folder):
        torch.save(self.states(), folder / self.place)

    def load(self, path):
        for name, state in torch.load(path, weights_only=True).items():
            getattr(self, name).load_state_dict(state)


class Sharded(Bare):
    """Saves with torch.distributed.checkpoint."""

    place = "dcp"
    options = None

    def states(self):
        model, optimizer = get_state_dict(self.model, self.optimizer, options=self.options)
        return super().states() | {"model": model, "optimizer": optimizer}

    def save(self, folder):
        dcp.save(self.states(), checkpoint_id=folder / self.place, no_dist=True)

    def load(self, path):
        states = self.states()
        dcp.load(states, checkpoint_id=path, no_dist=True)
        set_state_dict(
            self.model, self.optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"],
            options=self.options,
        )  # fmt: skip
        self.scheduler.load_state_dict(states["scheduler"])
        self.ema.load_state_dict(states["ema"])


class Flattened(Sharded):
    """Saves the optimizer's state with a key for every parameter, as torchtitan does."""

    options = StateDictOptions(flatten_optimizer_state_dict=True)


class Accelerated(Bare):
    """A loop under Hugging Face accelerate."""

    place = "accelerate"

    def __init__(self):
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState, GradientState, PartialState

        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
        super().__init__()
        self.accelerator = Accelerator(cpu=True)
        self.model, self.optimizer, self.scheduler = self.accelerator.prepare(
            self.model, self.optimizer, self.scheduler
        )
        self.accelerator.register_for_checkpointing(self.ema)

    def backward(self, loss):
        self.accelerator.backward(loss)

    def save(self, folder):
        self.accelerator.save_state(str(folder / self.place))

    def load(self, path):
        self.accelerator.load_state(str(path))
