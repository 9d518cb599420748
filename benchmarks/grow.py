"""What `Grow` costs: the seconds of measuring as a share of the run.

The same GPT is trained twice, step by step in turn: by a loop that accumulates, and by that loop with a `Grow` whose
batch may not grow, so that only measuring is timed. Time is that of the process; the share is of all steps, those that
are not measured too.

    python benchmarks/grow.py [--width 256] [--every 10] [--rounds 12]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from rich.console import Console
from torch import nn
from torch.nn import functional as F

from rootscale.stats import student_quantile
from rootscale.training import Grow, Run

LENGTH, MICRO = 64, 4


class Net(nn.Module):
    """A GPT of two layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(width, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next byte."""
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        out: torch.Tensor = self.head(self.layers(self.tokens(x), mask=mask, is_causal=True))
        return out


class Job:
    """A loop of two micro-batches a step."""

    def __init__(self, width: int, every: int) -> None:
        torch.manual_seed(0)
        self.model = Net(width)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        run = Run(self.optimizer, tuned_at=2 * MICRO)
        self.grow = Grow(run, most=2 * MICRO, every=every) if every else None

    def steps(self, number: int) -> float:
        """Make steps, and return their seconds."""
        begun = time.process_time()
        for _ in range(number):
            for x in torch.randint(256, (2, MICRO, LENGTH + 1)):
                (F.cross_entropy(self.model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()) / 2).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.grow is not None:
                self.grow.step()
        return time.process_time() - begun


def main() -> None:
    """Print the share."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=12)
    args = parser.parse_args()
    torch.set_num_threads(1)
    plain, growing = Job(args.width, 0), Job(args.width, args.every)
    for job in (plain, growing):
        job.steps(args.every)
    ratios = [growing.steps(2 * args.every) / plain.steps(2 * args.every) - 1 for _ in range(args.rounds)]
    half = student_quantile(len(ratios) - 1) * np.std(ratios, ddof=1) / len(ratios) ** 0.5
    Console().print(
        f"Grow, one step in {args.every} measured, AdamW, width {args.width}: {100 * np.mean(ratios):.1f} ± "
        f"{100 * half:.1f} % of the run (95 %, n = {len(ratios)})"
    )


if __name__ == "__main__":
    main()
