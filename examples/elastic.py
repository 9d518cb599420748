"""Elastic training: processes come and go, the batch size follows their number, and every step follows it.

    torchrun --nproc-per-node 2 examples/elastic.py run.pt --leave 2    # stopped after two epochs, as by a scheduler
    torchrun --nproc-per-node 3 examples/elastic.py run.pt              # goes on, with more processes

The processes load the file and go on at the larger batch size, from the sample where it was saved: twice in an epoch,
so that little is lost where a process is killed (``--lose`` tries it). The script does not know whether it is a
restart: `torchrun --nnodes 1:4 --max-restarts 3 --rdzv-backend c10d --rdzv-endpoint HOST:PORT` restarts it by itself
when machines come or go.
"""

import argparse
import json
import os
import signal
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from rootscale.training import BatchSchedule, ScheduledRun, ScheduledSampler

PER_PROCESS, TUNED_AT, EPOCHS = 16, 32, 6  # the settings below were tuned at batches of 32 samples


def main() -> None:
    """Train the epochs that are left, with as many processes as there are now."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="of the checkpoint, which all machines can read")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--leave", type=int, help="stop after so many epochs, as a job that loses its machine")
    parser.add_argument("--lose", type=int, help="the last process is killed after so many samples")
    parser.add_argument("--batch", type=int, help="samples of a step, whatever the number of processes")
    parser.add_argument("--rule", default="", help="of the conversion; default: the optimizer's own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--curve", type=Path, help="of samples and validation loss, as JSON lines")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)

    torch.manual_seed(args.seed)
    x = torch.randn(2880, 20)
    y = (x.sum(1) + 2 * torch.randn(2880) > 0).long()
    data = TensorDataset(x[:1440], y[:1440])
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 2)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.98, 0.998), weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(data) // TUNED_AT)
    schedule = BatchSchedule([(0, args.batch or PER_PROCESS * dist.get_world_size())])  # knows how many there are
    sampler = ScheduledSampler(len(data), schedule, seed=args.seed)
    run = ScheduledRun(sampler, optimizer, scheduler=scheduler, model=model, tuned_at=TUNED_AT, rule=args.rule or None)
    parts = {"run": run, "model": model.module, "optimizer": optimizer, "scheduler": scheduler}
    if args.file.exists():
        saved = torch.load(args.file)
        for name, part in parts.items():
            part.load_state_dict(saved[name])

    def save() -> None:
        """Write a checkpoint, and the validation loss where it is; a process may be stopped at any time."""
        if dist.get_rank() == 0:
            with torch.no_grad():
                loss = F.cross_entropy(model.module(x[1440:]), y[1440:]).item()
            whole = args.file.with_suffix(".part")
            torch.save({name: part.state_dict() for name, part in parts.items()}, whole)
            os.replace(whole, args.file)
            if args.curve:
                with args.curve.open("a") as file:
                    file.write(json.dumps({"samples": run.seen, "validation loss": loss}) + "\n")

    loader = DataLoader(data, batch_sampler=sampler)
    last = args.epochs if args.leave is None else min(args.epochs, run.epoch + args.leave)
    while run.epoch < last:
        for inputs, labels in run.batches(loader):
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), run.clip(1.0))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if run.seen % len(data) >= len(data) // 2 > (run.seen - run.batch_size) % len(data):
                save()
            if args.lose and run.seen >= args.lose and dist.get_rank() == dist.get_world_size() - 1:
                os.kill(os.getpid(), signal.SIGKILL)
        save()
        if dist.get_rank() == 0:
            step = run.values()
            print(
                f"{dist.get_world_size()} processes, {run.seen} samples, batch size {run.batch_size}, "
                f"lr {step['lr']:.9f}, decay {step['weight_decay']:.6f}, clip {run.clip(1.0):.6f}",
                flush=True,
            )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
