"""A real network follows the SDE of Adam: discrete Adam, SVAG and the SDE itself on scikit-learn's digits.

The claim. From a common state in mid-training (where gradient noise dominates), Adam at batch size 4, SVAG with ell = 2
and 4, and the SDE of Adam solved by Euler-Maruyama, each with many replicas, have the same mean train loss, accuracy,
gradient norm and Tr Sigma over continuous time, to within the sampling error of the replicas. Controls: Adam with other
seeds shows how large that error is, a coarser solver that its steps are small enough, Adam at batch size 16 under the
square root rule what the rule is good for, and with hyperparameters kept that a wrong process is told apart. The paper
calls the solution of the SDE intractable; with ``Sigma^(1/2) xi = n^(-1/2) sum_i (g_i - g_bar) xi_i`` it costs a
full-batch backward a step.

Setting. 1,437 of the 1,797 digits, MLP 64-32-10 with ReLU, Adam with lr 5e-4, betas .99/.999, eps 1e-8, float32, in
torch's form (v_{k+1}): the paper's form divides by v_k, which is still zero when a pixel that is almost always empty is
first seen. 12,000 samples from scratch make the common start; everything after is compared.

Cost. 10 to 15 minutes of one core with the defaults, most of it the SDE. Interrupted runs go on where they stopped:
each finished process is a file under OUT/digits.

    python -m rootscale.paper.experiments.sde_digits --out results/theory
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rootscale.files import command_line, write_json
from rootscale.gap import gaps
from rootscale.hparams import Adam
from rootscale.lab.provenance import environment
from rootscale.paper.figures.sde_figure import draw_sde
from rootscale.report.plotting import need_matplotlib
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
)
from rootscale.trajectory import Trajectory

Functions = dict[str, Callable[[AdamState], Tensor]]

ADAM = Adam(eta=5e-4, beta1=0.99, beta2=0.999, eps=1e-8)


@dataclass(frozen=True)
class Setup:
    """What all processes share: the chain of Adam, the common start, and when to look at what."""

    chain: Chain
    x0: AdamState
    t0: float
    times: list[float]
    functions: Functions
    replicas: int
    compile: bool

    @property
    def save(self) -> SaveAt:
        """When to look at what; every replica is kept."""
        return SaveAt(self.times, self.functions, self.t0, keep=True)

    def paths(self, seed: int) -> Paths:
        """How to run the replicas of a process."""
        return Paths(self.replicas, seed, compile=self.compile)


def digits(device: str) -> tuple[Tensor, Tensor]:
    """1,437 digits (four in five) in random order, pixels in [0, 1]."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))[:1437]
    return torch.tensor(x[order] / 16, dtype=torch.float32, device=device), torch.tensor(y[order], device=device)


def network_oracle(device: str, batch_size: int) -> NetworkOracle:
    """The MLP 64-32-10 on digits."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
    return NetworkOracle(module, partial(F.cross_entropy, reduction="none"), digits(device), batch_size)


def measures(oracle: NetworkOracle) -> Functions:
    """The test functions, exact over the training set."""
    return {
        "loss": lambda x: oracle.losses(x.theta).mean(1),
        "accuracy": lambda x: (oracle.outputs(x.theta).argmax(-1) == oracle.targets).float().mean(1),
        "gradient norm": lambda x: oracle.gradient(x.theta).norm(dim=1),
        "Tr Sigma": lambda x: oracle.variance(x.theta).sum(1),
    }


def common_start(chain: Chain, steps: int, seed: int) -> AdamState:
    """The state of one run of the chain after so many steps from scratch."""
    oracle = chain.oracle
    assert isinstance(oracle, NetworkOracle)
    # On the CPU generator whatever the device, so that the start is the same everywhere.
    generator = torch.Generator().manual_seed(seed)
    x = chain.start(oracle.start(1))
    for k in range(steps):
        index = torch.randint(oracle.n, (1, oracle.batch_size), generator=generator).to(x[0].device)
        x = chain.step(k, x, oracle.minibatch(x[0], index))
    state = chain.scaled(x)
    assert isinstance(state, AdamState)
    return state


def chain_process(ell: int) -> Callable[[Setup, int], Trajectory]:
    """Adam for ell = 1, else SVAG."""

    def run(setup: Setup, seed: int) -> Trajectory:
        chain = setup.chain if ell == 1 else svag_chain(setup.chain, ell)
        return run_chain(chain, setup.x0, setup.save, setup.paths(seed))

    return run


def scaled_process(kappa: int, rule: str) -> Callable[[Setup, int], Trajectory]:
    """Adam at kappa times the batch size under a scaling rule, from the same state of the SDE."""

    def run(setup: Setup, seed: int) -> Trajectory:
        chain = rescaled(setup.chain, kappa, rule)
        # Compared after equal numbers of samples, whatever the rule does to the learning rate and so to the clock.
        length = setup.chain.clock * kappa
        times = [setup.t0 + round((t - setup.t0) / length) * chain.clock for t in setup.times]
        found = run_chain(chain, setup.x0, replace(setup.save, times=times), setup.paths(seed))
        return replace(found, times=np.array(setup.times))

    return run


def sde_process(substeps: int) -> Callable[[Setup, int], Trajectory]:
    """The SDE by Euler-Maruyama, with steps of eta^2 / substeps."""

    def run(setup: Setup, seed: int) -> Trajectory:
        equation = sde(setup.chain.optimizer, setup.chain.oracle)
        return solve(equation, setup.x0, setup.save, h=setup.chain.clock / substeps, paths=setup.paths(seed))

    return run


@dataclass(frozen=True)
class Process:
    """A row of the comparison."""

    label: str
    run: Callable[[Setup, int], Trajectory]
    drawn: str = ""


#: What is compared, with what the figure calls it; every row has seeds of its own. The last four are controls: how
#: large the errors are that the comparison makes itself (other seeds, a coarser solver), and what it finds if the
#: process is another one.
PROCESSES = {
    "adam": Process("discrete Adam", chain_process(1), "Adam"),
    "svag-2": Process("SVAG ℓ = 2", chain_process(2), "SVAG, ℓ = 2"),
    "svag-4": Process("SVAG ℓ = 4", chain_process(4), "SVAG, ℓ = 4"),
    "sde": Process("SDE (Euler–Maruyama, h = η²/2)", sde_process(2), "the SDE"),
    "adam-again": Process("discrete Adam, other seeds", chain_process(1)),
    "sde-coarse": Process("SDE (Euler–Maruyama, h = η²)", sde_process(1)),
    "adam-4x": Process("discrete Adam at 4 B, the rule", scaled_process(4, "sqrt"), "4 B, the rule"),
    "adam-4x-kept": Process(
        "discrete Adam at 4 B, hyperparameters kept", scaled_process(4, "none"), "4 B, nothing converted"
    ),
}


def compared(base: Trajectory, other: Trajectory) -> dict[str, Any]:
    """Return the largest gap to the base (`rootscale.gap`), the gap over time in standard errors, and the end."""
    out = {}
    for name, found in gaps(base, other).items():
        far, spread = found.largest, found.se > 0  # all start at one point
        end = other[name]
        out[name] = {
            "largest_gap_over_range": round(abs(far.gap), 4),
            "its_standard_error": round(far.se, 4),
            "root_mean_square_gap_in_standard_errors": round(
                float(np.sqrt(((found.gap[spread] / found.se[spread]) ** 2).mean())), 3
            ),
            "at_the_end": [float(f"{end.mean[-1]:.5g}"), float(f"{end.se[-1]:.2g}")],
        }
    return out


def draw_stored(out: Path) -> None:
    """Draw the figure of the trajectories that are stored in a folder of results."""
    drawn = {process.drawn: out / "digits" / f"{key}.npz" for key, process in PROCESSES.items() if process.drawn}
    draw_sde({label: Trajectory.load(path) for label, path in drawn.items()}, out / "digits.png")


def make_setup(args: argparse.Namespace) -> Setup:
    """Return Adam on digits, the common start after its warm-up, and the times after it."""
    oracle = network_oracle(args.device, args.batch_size)
    chain = Chain(ADAM, oracle, FORMS["torch"])
    warm, steps = args.warmup_samples // args.batch_size, args.samples // args.batch_size
    times = [(warm + k) * chain.clock for k in range(0, steps + 1, max(1, steps // args.points))]
    x0 = common_start(chain, warm, args.seed)
    return Setup(chain, x0, warm * chain.clock, times, measures(oracle), args.replicas, not args.eager)


def run_or_read(process: Process, path: Path, setup: Setup, seed: int, about: dict[str, Any]) -> Trajectory:
    """Return what a process gave: from its file where that has these settings, else of a run, which is stored."""
    if path.exists() and (done := Trajectory.load(path)).meta.get("settings") == about["settings"]:
        print(f"{process.label}: already there")
        return done
    print(f"{process.label} ...", flush=True)
    started = time.perf_counter()
    found = process.run(setup, seed)
    seconds = round(time.perf_counter() - started, 1)
    done = replace(found, meta={**found.meta, **about, "seconds": seconds})
    done.save(path)
    print(f"{process.label}: {seconds:.0f} s, {int(done.diverged[-1])} of {done.replicas} diverged", flush=True)
    return done


def process_record(key: str, result: Trajectory, adam: Trajectory) -> dict[str, Any]:
    """Return what is told of a process: how it was made, and its gaps to discrete Adam."""
    return {
        "label": PROCESSES[key].label,
        "seed": result.meta["seed"],
        "step": result.meta["h"],
        **{what: result.meta[what] for what in ("seconds", "hardware", "command", "versions")},
        "diverged": int(result.diverged[-1]),
        "against_discrete_adam": compared(adam, result) if key != "adam" else None,
    }


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/theory"), help="folder of the results")
    parser.add_argument("--replicas", type=int, default=32)
    parser.add_argument("--warmup-samples", type=int, default=12_000, help="before the common start")
    parser.add_argument("--samples", type=int, default=20_000, help="after it")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--points", type=int, default=25, help="how often to look")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--eager", action="store_true", help="no torch.compile (for short runs)")
    parser.add_argument("--only-run", action="store_true", help="no figure: a later call without this draws it")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Runs what is missing, then draws the figure and writes the record."""
    args = parse(argv)
    if not args.only_run:
        need_matplotlib()  # before the work, not after it
    setup = make_setup(args)
    names = ("batch_size", "warmup_samples", "samples", "points", "replicas", "seed")
    settings = {"optimizer": repr(ADAM), **{name: getattr(args, name) for name in names}}
    oracle, theta = setup.chain.oracle, setup.x0.theta
    assert isinstance(oracle, NetworkOracle)
    noise = float(oracle.variance(theta).sum() / oracle.gradient(theta).square().sum())
    print(f"common start: loss {float(oracle.losses(theta).mean()):.4f}, noise scale {noise:.0f} samples")

    folder = args.out / "digits"
    folder.mkdir(parents=True, exist_ok=True)
    words = sys.argv[1:] if argv is None else argv
    command = command_line("python -m rootscale.paper.experiments.sde_digits", words)
    about = {"settings": settings, "command": command, **environment(args.device)}
    results = {
        key: run_or_read(process, folder / f"{key}.npz", setup, 1000 * args.seed + i + 1, about)
        for i, (key, process) in enumerate(PROCESSES.items())
    }
    if args.only_run:
        return 0
    draw_stored(args.out)
    record = {
        "claim": (__doc__ or "").split("\n\n")[1],
        "settings": settings,
        "noise_scale_at_the_start": round(noise, 1),
        "processes": {key: process_record(key, result, results["adam"]) for key, result in results.items()},
    }
    write_json(args.out / "digits.json", record, ensure_ascii=False)
    print(f"wrote {args.out / 'digits.png'} and {args.out / 'digits.json'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
