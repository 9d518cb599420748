"""Does a real network follow the SDE of Adam? Discrete Adam, SVAG and the solved SDE on scikit-learn's digits.

Claim. Not in the paper, which calls the solution of the SDE intractable. From a common state in mid-training, where
gradient noise dominates, Adam at batch size 4, SVAG with ell = 2 and 4, and the SDE of Adam solved by Euler-Maruyama
have the same mean train loss over continuous time. With ``Sigma^(1/2) xi = n^(-1/2) sum_i (g_i - g_bar) xi_i`` a step
of the solver costs a full-batch backward.

Protocol. 1,437 of the 1,797 digits, MLP 64-32-10 with ReLU, Adam with lr 5e-4, betas .99 and .999, eps 1e-8, float32,
in torch's form (v_{k+1}): the paper's form divides by v_k, which is still zero when a pixel that is almost always empty
is first seen. 12,000 samples from scratch make the common start; 20,000 after it are compared at 25 times, 32 replicas
of each process, with seeds of its own. Controls: Adam with other seeds shows how large the error of the replicas is, a
coarser solver that its steps are small enough, Adam at batch size 16 under the square root rule what the rule is good
for, and with hyperparameters kept that a wrong process is told apart.

Cost. 10 to 15 minutes of one core, most of it the SDE. What was stopped goes on: each finished process is a file.

Finding. SVAG, the SDE and the rule at 4 times the batch have Adam's curve of the train loss, by the judge; with nothing
converted 4 times the batch is 28 % of the range away (n = 32).

    python experiments/sde_digits.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from results import Claim, claim_of, stored
from torch import Tensor, nn
from torch.nn import functional as F

from rootscale import Adam
from rootscale.lab import Judge, Result, Table
from rootscale.lab.provenance import environment
from rootscale.theory import (
    FORMS,
    AdamState,
    Chain,
    NetworkOracle,
    Paths,
    SaveAt,
    rescaled,
    run_chain,
    sde,
    solve,
    svag_chain,
)  # fmt: skip
from rootscale.trajectory import Trajectory

GROUP = "beyond"
NAME = "sde-digits"
CLAIM = "MLP on digits: discrete Adam, SVAG and the solved SDE have one loss curve"
JUDGE = Judge(decide_by=("loss",))
ADAM = Adam(eta=5e-4, beta1=0.99, beta2=0.999, eps=1e-8)
BATCH = 4
#: Samples before the common start and after it, and the times that are compared.
WARM, SAMPLES, POINTS = 12_000, 20_000, 25


@dataclass(frozen=True)
class Start:
    """What all processes share: the chain of Adam, the common state and its time, and what is measured when."""

    chain: Chain
    x0: AdamState
    save: SaveAt
    replicas: int
    compiled: bool

    @property
    def times(self) -> list[float]:
        """The times of the measurements, after the start."""
        return list(self.save.times)

    def paths(self, seed: int) -> Paths:
        """Return how the replicas of a process are run."""
        return Paths(self.replicas, seed, compile=self.compiled)


def digits() -> tuple[Tensor, Tensor]:
    """Return 1,437 digits (four in five) in random order, with pixels in [0, 1]."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))[:1437]
    return torch.tensor(x[order] / 16, dtype=torch.float32), torch.tensor(y[order])


def network(batch_size: int = BATCH) -> NetworkOracle:
    """Return the oracle of the MLP 64-32-10 on digits."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    return NetworkOracle(module, partial(F.cross_entropy, reduction="none"), digits(), batch_size)


def functions(oracle: NetworkOracle) -> dict[str, Callable[[AdamState], Tensor]]:
    """Return the test functions, exact over the training set."""
    return {
        "loss": lambda x: oracle.losses(x.theta).mean(1),
        "accuracy": lambda x: (oracle.outputs(x.theta).argmax(-1) == oracle.targets).float().mean(1),
        "gradient norm": lambda x: oracle.gradient(x.theta).norm(dim=1),
        "Tr Sigma": lambda x: oracle.variance(x.theta).sum(1),
    }


def common_start(chain: Chain, steps: int, seed: int = 0) -> AdamState:
    """Return the state of one run of the chain after so many steps from scratch."""
    oracle = chain.oracle
    assert isinstance(oracle, NetworkOracle)
    generator = torch.Generator().manual_seed(seed)
    x = chain.start(oracle.start(1))
    for k in range(steps):
        index = torch.randint(oracle.n, (1, oracle.batch_size), generator=generator).to(x[0].device)
        x = chain.step(k, x, oracle.minibatch(x[0], index))
    state = chain.scaled(x)
    assert isinstance(state, AdamState)
    return state


def start(warm: int = WARM, samples: int = SAMPLES, points: int = POINTS, replicas: int = 32) -> Start:
    """Return the common start; few replicas run without a compiled step, which would take longer to make."""
    oracle = network()
    chain = Chain(ADAM, oracle, FORMS["torch"])
    first, steps = warm // BATCH, samples // BATCH
    times = [(first + k) * chain.clock for k in range(0, steps + 1, max(1, steps // points))]
    save = SaveAt(times, functions(oracle), first * chain.clock, keep=True)
    return Start(chain, common_start(chain, first), save, replicas, replicas >= 8)


def adam(here: Start, seed: int, ell: int = 1) -> Trajectory:
    """Run Adam, or SVAG with another ``ell``."""
    chain = here.chain if ell == 1 else svag_chain(here.chain, ell)
    return run_chain(chain, here.x0, here.save, here.paths(seed))


def equation(here: Start, seed: int, substeps: int = 2) -> Trajectory:
    """Solve the SDE by Euler-Maruyama, with steps of eta^2 / substeps."""
    made = sde(here.chain.optimizer, here.chain.oracle)
    return solve(made, here.x0, here.save, h=here.chain.clock / substeps, paths=here.paths(seed))


def larger(here: Start, seed: int, rule: str, kappa: int = 4) -> Trajectory:
    """Run Adam at kappa times the batch size from the same state; compared after equal numbers of samples."""
    chain, length = rescaled(here.chain, kappa, rule), here.chain.clock * kappa
    times = [here.save.start + round((t - here.save.start) / length) * chain.clock for t in here.times]
    found = run_chain(chain, here.x0, replace(here.save, times=times), here.paths(seed))
    return replace(found, times=np.array(here.times))


#: The processes, the base first; the seed of each is its place, counted from 1. From the fifth on they are controls.
PROCESSES: Mapping[str, Callable[[Start, int], Trajectory]] = {
    "discrete Adam": adam,
    "SVAG, ℓ = 2": partial(adam, ell=2),
    "SVAG, ℓ = 4": partial(adam, ell=4),
    "the SDE": equation,
    "discrete Adam, other seeds": adam,
    "the SDE, steps twice as long": partial(equation, substeps=1),
    "Adam at 4 B, the rule": partial(larger, rule="sqrt"),
    "Adam at 4 B, nothing converted": partial(larger, rule="none"),
}


def table(runs: Mapping[str, Trajectory]) -> Table:
    """Return the table of the processes, judged against the first."""
    (label, base), *others = runs.items()
    results = [Result(name, "log", None, None, run, factors={"process": name}) for name, run in others]
    made = {"claim": CLAIM, **{key: base.meta[key] for key in ("hardware", "versions")}}
    return Table(NAME, Result(label, "base", None, None, base), tuple(results), 0, made, judge=JUDGE).judged()


def claims(results: Path) -> list[Claim]:
    """Return the row of the table of claims."""
    return [claim_of(CLAIM, stored(results, NAME), NAME, "`python experiments/sde_digits.py`")]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the processes that are missing, and store the table of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results"), help="the folder of the table")
    parser.add_argument("--runs", type=Path, default=Path("runs") / NAME, help="the folder of finished processes")
    parser.add_argument("--smoke", action="store_true", help="3 replicas for a moment, which say nothing")
    args = parser.parse_args(argv)
    folder = args.runs / "smoke" if args.smoke else args.runs
    folder.mkdir(parents=True, exist_ok=True)
    here = start(400, 64, 2, 3) if args.smoke else start()
    runs = {}
    for seed, (label, process) in enumerate(PROCESSES.items(), 1):
        path = folder / f"{seed}.npz"
        if not path.exists():
            began = time.perf_counter()
            made = process(here, seed)
            seconds = round(time.perf_counter() - began, 1)
            replace(made, meta={**made.meta, **environment("cpu"), "seconds": seconds}).save(path)
        runs[label] = Trajectory.load(path)
        print(f"{label}: {runs[label].meta['seconds']:.0f} s, {int(runs[label].diverged[-1])} diverged", flush=True)
    found = table(runs)
    path = found.save((folder if args.smoke else args.out) / f"{NAME}.npz", comparisons=False)
    for arm in found.others:
        assert arm.comparison is not None
        print(f"{arm.label}: {arm.comparison}")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
