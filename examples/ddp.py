"""Data-parallel training that is the same run on any number of processes, saved and resumed on another number.

    torchrun --nproc-per-node 2 examples/ddp.py --save run.pt
    torchrun --nproc-per-node 4 examples/ddp.py --resume run.pt                 # the batch size kept
    torchrun --nproc-per-node 4 examples/ddp.py --resume run.pt --batch 128     # and raised by four

The batch size is that of all processes together. CPU (gloo) or one GPU a process (nccl); a few seconds on a CPU.
"""

import argparse
import os
from contextlib import nullcontext

import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from rootscale.training import BatchSchedule, NoiseMeter, ScheduledRun, ScheduledSampler

TUNED_AT, MICRO, EPOCHS = 32, 16, 3  # the settings below were tuned at batches of 32 samples


def main() -> None:
    """Train for the epochs that are left."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=TUNED_AT, help="samples per step, over all processes")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--save", help="file for the state at the end")
    parser.add_argument("--resume", help="such a file, of any number of processes and any batch size")
    args = parser.parse_args()
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    torch.set_num_threads(1)

    torch.manual_seed(0)
    x = torch.randn(3000, 20, dtype=torch.float64)
    data = TensorDataset(x, (x.sum(1) + 2 * torch.randn(3000, dtype=torch.float64) > 0).long())
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 2)).double().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.98, 0.998), weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * EPOCHS * len(data) // TUNED_AT)
    sampler = ScheduledSampler(len(data), BatchSchedule([(0, args.batch)]), micro=MICRO, replacement=True)
    loader = DataLoader(data, batch_sampler=sampler)
    run = ScheduledRun(sampler, optimizer, scheduler=scheduler, model=model, tuned_at=TUNED_AT)
    meter = NoiseMeter(optimizer, process_group=dist.group.WORLD)

    parts = {"run": run, "model": model.module, "optimizer": optimizer, "scheduler": scheduler}
    if args.resume:
        saved = torch.load(args.resume, map_location=device, weights_only=False)
        for name, part in parts.items():
            part.load_state_dict(saved[name])

    last, alone = run.epoch + args.epochs, dist.get_world_size() == 1
    while run.epoch < last:
        for inputs, labels in run.batches(loader):
            with nullcontext() if run.complete else model.no_sync(), meter.part(len(inputs), run.weight):
                (F.cross_entropy(model(inputs.to(device)), labels.to(device)) * run.weight).backward()
            if run.complete:
                if not alone or run.weight < 1:
                    meter.update()
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        with torch.no_grad():
            loss = F.cross_entropy(model.module(x.to(device)), data.tensors[1].to(device)).item()
        if dist.get_rank() == 0:
            print(f"{run.seen:6} samples, batch size {run.layout}, loss {loss:.9f}", flush=True)
    if dist.get_rank() == 0:
        print(f"{meter.estimate()}")
        if args.save:
            torch.save({name: part.state_dict() for name, part in parts.items()}, args.save)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
