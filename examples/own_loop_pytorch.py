"""A training loop of your own in the check: bare PyTorch. Does it survive four times its batch size?

rootscale check examples/own_loop_pytorch.py:train --to 8 --seeds 8
python examples/own_loop_pytorch.py              # the same, from Python
"""

import torch
from torch import nn

from rootscale import Run
from rootscale.lab import Here, Judge, Loop, RunLog, check

SAMPLES, DATA = 2_000, 512


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the samples of a regression with much noise, which is where the rule holds from scratch."""
    generator = torch.Generator().manual_seed(0)
    x, noise = torch.randn(DATA, 8, generator=generator), torch.randn(DATA, 1, generator=generator)
    return x, 0.1 * x.sum(1, keepdim=True) + noise


def train(batch_size: int = 2, seed: int = 0, log: RunLog = None) -> None:
    """Make a run: everything is written for the base batch size, and ``Run`` makes the steps at that of this run."""
    torch.manual_seed(seed)
    x, y = data()
    model = nn.Linear(8, 1)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.95, 0.999), weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=SAMPLES // 2)
    Run(optimizer, tuned_at=2, batch_size=batch_size, scheduler=scheduler, model=model)
    # Runs of one seed see the same samples in the same order at every batch size: their differences are small.
    order = torch.randint(DATA, (SAMPLES,), generator=torch.Generator().manual_seed(seed))
    for seen in range(0, SAMPLES, batch_size):
        rows = order[seen : seen + batch_size]
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if (seen + batch_size) % 200 < batch_size:
            with torch.no_grad():
                log(samples=seen + batch_size, loss=nn.functional.mse_loss(model(x), y))


def main(seeds: int = 8) -> None:
    """Compare B = 2 with B = 8, by the rule."""
    torch.set_num_threads(1)
    loop = Loop("pytorch", train, batch_size=2)
    found = check(loop, [4], seeds=seeds, judge=Judge(tolerance=0.1), execute=Here())
    print(found["B = 8"].comparison)


if __name__ == "__main__":
    main()
