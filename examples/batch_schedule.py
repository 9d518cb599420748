"""A batch size that grows in mid-run, three ways; each follows the loss curve of the run that keeps its batch size.

    python examples/batch_schedule.py            # all of them, about ten seconds on a CPU

`stages` are fixed, `noise` grows with the measured noise scale, `decay` raises the batch where the learning rate falls.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from rootscale import Adam, Plan, Schedule
from rootscale.training import BatchSchedule, Grow, ScheduledRun, ScheduledSampler

EPOCHS, START, MICRO = 4, 16, 8
PLAN = Plan(Adam(1e-3, 0.98, 0.998), START, epochs=EPOCHS, dataset_size=4000, schedule=Schedule("cosine", min_eta=1e-4))
SCHEDULES = {
    "kept": lambda: BatchSchedule([(0, START)]),
    "stages": lambda: BatchSchedule([(0, START), (5_000, 4 * START), (10_000, 8 * START)]),
    "noise": lambda: START,
    "decay": lambda: BatchSchedule.instead_of_decay(PLAN, most=8 * START),
}


def make_data() -> TensorDataset:
    """Ten classes around random centres, with much overlap."""
    source = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (4000,), generator=source)
    centres = torch.randn(10, 32, generator=source)
    return TensorDataset(centres[labels] + 2 * torch.randn(4000, 32, generator=source), labels)


def train(name: str, data: TensorDataset) -> None:
    """One run; the lines marked with + are all that a schedule adds to a loop."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.98, 0.998))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(data) // START, eta_min=1e-4)
    sampler = ScheduledSampler(len(data), SCHEDULES[name](), micro=MICRO)  # +
    loader = DataLoader(data, batch_sampler=sampler)
    run = ScheduledRun(sampler, optimizer, scheduler=scheduler, model=model)  # +
    grow = Grow(run, most=8 * START) if name == "noise" else None  # + measures, and extends the schedule

    losses, steps = [], 0
    while run.epoch < EPOCHS:
        for x, y in run.batches(loader):  # +
            (F.cross_entropy(model(x), y) * run.weight).backward()
            if not run.complete:
                continue
            steps += 1
            nn.utils.clip_grad_norm_(model.parameters(), run.clip(5.0))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        with torch.no_grad():
            losses.append(F.cross_entropy(model(data.tensors[0]), data.tensors[1]).item())
    print(f"{name}: {run.sampler.schedule}")
    if grow is not None:
        print(f"  {grow.reason}")
    print(f"  {steps} steps, learning rate of the last one {run.values()['lr']:.2g}")
    print(f"  loss after each epoch {' '.join(f'{loss:.3f}' for loss in losses)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("schedule", nargs="*", help=f"of {', '.join(SCHEDULES)}; all of them by default")
    torch.set_num_threads(1)  # the net is tiny
    for chosen in parser.parse_args().schedule or SCHEDULES:
        train(chosen, make_data())
