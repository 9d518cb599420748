"""A check on a Ray cluster: here a new one on this machine; give ``address`` for yours.

    pip install 'rootscale[ray]'
    python examples/ray_sweep.py [--address auto]

The work is split to fill the CPUs of the cluster. If a worker is lost, its runs are resumed elsewhere from their
checkpoints. The folder has to lie on a file system that all nodes see. Finished runs in it are not made again, on Ray
or elsewhere.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from torch import nn

from rootscale import Adam, Plan
from rootscale.integrations.executors import OnRay
from rootscale.lab import Measure, Task, check


def task() -> Task:
    """A small net on three clouds of points."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(3, (400,), generator=generator)
    x = torch.randn(3, 8, generator=generator)[y] + torch.randn(400, 8, generator=generator)
    return Task(
        "clouds",
        plan=Plan(Adam(eta=1e-3, beta1=0.98, beta2=0.999), batch_size=4, steps=1_000),
        model=lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)),
        loss=lambda outputs, y: nn.functional.cross_entropy(outputs, y, reduction="none"),
        train=(x[:300], y[:300]),
        test=(x[300:], y[300:]),
    )


def main() -> None:
    """Compare B = 4 with B = 8, on Ray."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", help="of the cluster; default: a new one on this machine")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = check(task(), [2], seeds=8, measure=Measure(points=10), store=folder, execute=OnRay(args.address))
    print(found["B = 8"].comparison)


if __name__ == "__main__":
    main()
