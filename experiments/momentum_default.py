"""Which power of the batch size for optimizers that normalise momentum: Muon, Lion, Signum, LAMB.

Claim. Counting powers leaves ``a`` free: ``lr * kappa^((1+a)/2)``, ``(1 - mu) * kappa^a``, ``m * kappa^((a-1)/2)``.
Fixed before the runs were made, with momentum: over all cells (a net, an optimizer, a kappa) a = 1/2 has the smallest
mean gap of a = 0, 1/2 and 1 and of the learning rate alone by the square root; and a = 0 is the nearest of the four in
less than a quarter of the cells. Without momentum (SignSGD), where only the learning rate is left to convert: a = 0,
the square root, is the nearest in every cell.

Protocol. An MLP and a conv net with BatchNorm on digits and a tiny GPT on enwik8; a switch in mid-run to 4 and 16 times
the batch; constant learning rates, each the best of a row of factors at the base batch (``--tune``). Muon has Nesterov
momentum and trains the matrices of MLP and GPT beside AdamW, which has its own rule; the conv net has no Muon. The gap
is the largest of the training loss (GPT: test loss). Seeds 0 to 7.

Cost. Ten minutes on a core of a CPU for each optimizer on the GPT, one or two elsewhere.

    rootscale study experiments/momentum_default.py --tune --together 1 --results results
    rootscale study experiments/momentum_default.py --net gpt --kind lion --together 1 --results results
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from small_nets import KEEPS, LENGTH, NETS, Net, base_and_null, tuned, tuning
from torch import Tensor

from rootscale import hparams, records
from rootscale.lab import Arm, Study, Task, Variant
from rootscale.lab.several import Several
from rootscale.training import register
from rootscale.training.adapters import make_optimizer
from rootscale.verdict import Judge

#: What is converted, by the text of the rule.
RULES = {
    "a = 0": "normalized-sqrt", "a = 1/2": "normalized-half", "a = 1": "normalized-linear",
    "learning rate only": "sqrt-eta",
}  # fmt: skip
KAPPAS = (4, 16)


class Normalised(torch.optim.Optimizer):
    """Lion, Signum and LAMB, with the arguments of their records."""

    def __init__(self, params: Iterable[Tensor], kind: str, record: Any) -> None:
        self.kind = kind
        betas = {"betas": (record.beta1, record.beta2)} if kind != "signum" else {"momentum": record.mu}
        more = {"eps": record.eps} if kind == "lamb" else {}
        super().__init__(params, {"lr": record.eta, "weight_decay": record.weight_decay, "step": 0, **betas, **more})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take a step."""
        for group in self.param_groups:
            group["step"] += 1
            for p in group["params"]:
                update = getattr(self, f"_{self.kind}")(p, p.grad, self.state[p], group)
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=group["lr"])

    def _lion(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        m, (beta1, beta2) = state.setdefault("exp_avg", torch.zeros_like(p)), group["betas"]
        update: Tensor = torch.lerp(g, m, beta1).sign_()
        m.lerp_(g, 1 - beta2)
        return update

    def _signum(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        m: Tensor = state.setdefault("momentum_buffer", torch.zeros_like(p))
        return m.lerp_(g, 1 - group["momentum"]).sign()

    def _lamb(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        beta1, beta2 = group["betas"]
        m, v = (state.setdefault(name, torch.zeros_like(p)) for name in ("exp_avg", "exp_avg_sq"))
        k = group["step"]
        m.lerp_(g, 1 - beta1)
        v.lerp_(g.square(), 1 - beta2)
        update: Tensor = m / (1 - beta1**k) / ((v / (1 - beta2**k)).sqrt() + group["eps"])
        length, size = update.norm(), p.norm()
        return update * (size / length) if size > 0 and length > 0 else update


# The names by which `rootscale` knows how the arguments and the state of an optimizer are spelled.
LION, SIGNUM, LAMB = (type(name, (Normalised,), {}) for name in ("Lion", "Signum", "Lamb"))
register(LAMB, like="lamb")


def _alone(params: Iterable[Tensor], shapes: list[torch.Size]) -> list[Tensor]:
    """Return the parameters of one seed; norms over stacked ones would mix seeds."""
    every = list(params)
    if [p.shape for p in every] != shapes:
        raise ValueError("Muon and LAMB take norms of whole tensors: train one seed in a program, --together 1")
    return every


def _muon(beside: float, shapes: list[torch.Size], params: Iterable[Tensor], record: Any) -> Several:
    every = _alone(params, shapes)
    inner = [p for p in every if p.ndim == 2 and not {256, LENGTH}.issuperset(p.shape)]
    others = [p for p in every if not any(p is q for q in inner)]
    adamw = hparams.AdamW(beside, 0.9, 0.95, weight_decay=0.01)
    return Several(make_optimizer(inner, record), make_optimizer(others, adamw))


def _own(cls: Any, kind: str, shapes: list[torch.Size], params: Iterable[Tensor], record: Any) -> Any:
    return cls(_alone(params, shapes) if kind == "lamb" else params, kind, record)


@dataclass(frozen=True)
class Kind:
    """An optimizer: its record at a rate of 1, what makes it, and the rate around which others are tried, by net."""

    record: Any
    make: Callable[..., Any]
    rates: Mapping[str, float]


_ALL = {"mlp": 1e-4, "convnet": 1e-4, "gpt": 3e-4}
KINDS: Mapping[str, Kind] = {
    "muon": Kind(records.Muon(1.0, 0.95, weight_decay=0.01), partial(_muon, 2e-3), {"mlp": 0.001, "gpt": 0.01}),
    "lion": Kind(records.Lion(1.0, 0.9, 0.99), partial(_own, LION, "lion"), _ALL),
    "signum": Kind(records.Signum(1.0, 0.95), partial(_own, SIGNUM, "signum"), _ALL),
    "signsgd": Kind(records.Signum(1.0, 0.0), partial(_own, SIGNUM, "signum"), _ALL),
    "lamb": Kind(
        records.LAMB(1.0, 0.95, 0.999), partial(_own, LAMB, "lamb"), {"mlp": 0.003, "convnet": 0.003, "gpt": 0.006}
    ),
}
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
SAMPLES = {"mlp": 18 * 1437, "convnet": 12 * 1437, "gpt": 2**15}


def task_of(net: str, kind: str, rate: float) -> tuple[Net, Task]:
    """Return a net with an optimizer, and its task."""
    sizes = tuple(NETS[net].sizes[0] * kappa for kappa in (1, *KAPPAS))
    chosen, of = replace(NETS[net], sizes=sizes, samples=SAMPLES[net], seeds=8), KINDS[kind]
    task = chosen.task(f"momentum-{kind}-{net}", optimizer=replace(of.record, eta=rate))
    return chosen, replace(task, optimizer=partial(of.make, [p.shape for p in task.model().parameters()]))


def study(net: str, kind: str) -> Study:
    """Return the base, its null, and each rule at each kappa."""
    rate, _ = tuned(f"{kind}-{net}", NETS[net].judged)
    chosen, task = task_of(net, kind, rate)
    arms, size = list(base_and_null(task)), chosen.sizes[0]
    for kappa in KAPPAS:
        for name, rule in RULES.items():
            if kind != "signsgd" or name != "learning rate only":  # without momentum it is a = 0
                arms.append(Arm(f"{size} → {size * kappa}, {name}", task, Variant(kappa, rule), {"form": name}))
    claim = f"{chosen.title}, {kind}: how momentum and learning rate follow the batch size"
    judge = Judge(decide_by=(chosen.judged,))
    return Study(f"momentum-default-{kind}-{net}", arms, claim, 8, chosen.settings(task), judge=judge, keeps=KEEPS)


def studies(net: str = "", kind: str = "", tune: bool = False) -> list[Study]:
    """Return the studies of one net or optimizer, or of all; with ``tune`` those that find the learning rates."""
    pairs = [(a, b) for b in KINDS for a in KINDS[b].rates if net in ("", a) and kind in ("", b)]
    if tune:
        return [tuning(f"{b}-{a}", *task_of(a, b, KINDS[b].rates[a]), FACTORS) for a, b in pairs]
    return [study(a, b) for a, b in pairs]


STUDY = studies
