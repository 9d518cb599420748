"""What training/test_distributed.py runs, in one process and on several ranks.

    python ranks.py FOLDER [WORLD_SIZE ...]

One start does all of it, one world after the other: importing torch takes longer than everything else, so the ranks are
forked from a process that has done it (and computed nothing).

Everything is in float64 and samples by position, so that any number of ranks computes what one process does.
"""

import os
import sys
import traceback
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LinearLR

from rootscale.training import SVAG, BatchSchedule, Grow, NoiseMeter, ScheduledRun, ScheduledSampler

N, SAVED, END = 96, 48, 112
GROWING = [(0, 8), (32, 16), (80, 32)]  # saved at 48, the run has been converted once and will be once more
OTHER = [(0, 8), (32, 16), (48, 32), (80, 64)]
FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


def wrapped(kind, net):
    if kind == "ddp":
        return DistributedDataParallel(net)
    if kind == "fsdp":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        fully_shard(net[0], mesh=mesh)
        fully_shard(net, mesh=mesh)
    return net


def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


class Job:
    """One training job: alone, under DDP or under FSDP2."""

    def __init__(self, kind, stages=GROWING, micro=2):
        torch.manual_seed(0)
        self.x = torch.randn(N, 6, dtype=torch.float64)
        self.y = torch.randint(3, (N,))
        # Five rows: two ranks have shards of different sizes, and of four one has nothing.
        net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        self.model = wrapped(kind, net)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, betas=(0.98, 0.99), weight_decay=0.1)
        self.scheduler = LinearLR(self.optimizer, 0.2, total_iters=20)
        self.sampler = ScheduledSampler(N, BatchSchedule(stages), micro=micro, replacement=True)
        self.run = ScheduledRun(self.sampler, self.optimizer, scheduler=self.scheduler, model=self.model)

    def quiet(self, synchronised):
        """Without communication in this backward, where the wrapper can do that."""
        return nullcontext() if synchronised else getattr(self.model, "no_sync", nullcontext)()

    def train(self, samples):
        while self.run.seen < samples:
            for i in self.run.batches(self.sampler):
                with self.quiet(self.run.complete):
                    (F.cross_entropy(self.model(self.x[i]), self.y[i]) * self.run.weight).backward()
                if self.run.complete:
                    self.optimizer.step()
                    self.scheduler.step()
                    self.optimizer.zero_grad()
                if self.run.seen >= samples:
                    break
        return self

    def found(self):
        """Everything that a run is: parameters, state, learning rate."""
        states = [self.optimizer.state[p] for p in self.model.parameters()]
        return {
            "parameters": [whole(p) for p in self.model.parameters()],
            **{key: [whole(state[key]) for state in states] for key in ("exp_avg", "exp_avg_sq", "step")},
            "lr": torch.tensor(self.run.values()["lr"]),
            "position": torch.tensor(self.run.seen),
        }

    def save(self, file):
        """One file with whole tensors, which any number of processes can load."""
        model, optimizer = get_state_dict(self.model, self.optimizer, options=FULL)
        rest = {"run": self.run.state_dict(), "scheduler": self.scheduler.state_dict()}
        if self.sampler.rank == 0:
            torch.save({"model": model, "optimizer": optimizer, **rest}, file)
        return self

    def load(self, file):
        saved = torch.load(file, weights_only=False)
        self.run.load_state_dict(saved["run"])  # first of all
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=saved["model"],
            optim_state_dict=saved["optimizer"],
            options=StateDictOptions(full_state_dict=True),
        )
        self.scheduler.load_state_dict(saved["scheduler"])
        return self

    def save_sharded(self, folder):
        """Every rank writes its shards."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=folder)
        if self.sampler.rank == 0:
            torch.save({"run": self.run.state_dict(), "scheduler": self.scheduler.state_dict()}, f"{folder}/rest.pt")

    def load_sharded(self, folder):
        rest = torch.load(f"{folder}/rest.pt", weights_only=False)
        self.run.load_state_dict(rest["run"])
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state = {"model": model, "optimizer": optimizer}
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.scheduler.load_state_dict(rest["scheduler"])
        return self


def svag(kind):
    """Two fresh batches a step, of eight samples over all ranks."""
    job = Job(kind, [(0, 8)])
    job.run.detach()
    simulation = SVAG(job.optimizer, 2, scheduler=job.scheduler, model=job.model)
    batches = iter(ScheduledSampler(N, BatchSchedule([(0, 8)]), replacement=True, epoch=1000))
    for _ in range(5):
        for r in simulation.passes():
            i = next(batches)
            (r * F.cross_entropy(job.model(job.x[i]), job.y[i])).backward()
        job.optimizer.step()
        job.scheduler.step()
        job.optimizer.zero_grad()
    return job.found()


def noise(kind, ranks):
    """Estimates of four steps of two micro-batches on each rank; in one process the parts are those of all ranks."""
    job = Job(kind, [(0, 16)])
    alone = kind == "alone"
    options = {} if alone else {"process_group": dist.group.WORLD, "model": job.model if kind == "fsdp" else None}
    meter = NoiseMeter(job.optimizer, **options)
    samplers = [
        iter(ScheduledSampler(N, BatchSchedule([(0, 16)]), micro=8 // ranks, rank=rank, world_size=ranks, epoch=1000))
        for rank in (range(ranks) if alone else [dist.get_rank()])
    ]
    for _ in range(4):
        parts = [(i, last) for last in (False, True) for i in map(next, samplers)]
        weight = 1 / len(parts)
        for i, last in parts:
            with job.quiet(last), meter.part(len(i), weight):
                (weight * F.cross_entropy(job.model(job.x[i]), job.y[i])).backward()
        meter.update()
        job.optimizer.step()
        job.optimizer.zero_grad()
    meter.remove()
    return torch.tensor(meter._values())


def sharded_state():
    """A change of batch size on shards: what communicates, and whether it is done in place; rank by rank."""
    job = Job("fsdp").train(24)
    shards = [state["exp_avg_sq"].to_local() for state in job.optimizer.state.values()]
    before = [shard.clone() for shard in shards]
    with CommDebugMode() as communication:
        job.run.batch_size = 32
    after = [state["exp_avg_sq"].to_local() for state in job.optimizer.state.values()]
    return {
        "empty": any(not len(shard) for shard in shards),
        "collectives": communication.get_total_counts(),
        "in place": [a.data_ptr() for a in shards] == [a.data_ptr() for a in after],
        "divided by 4": all(torch.equal(a, b / 4) for a, b in zip(after, before, strict=True)),
    }


def growth():
    """Ranks whose gradients differ, and whose workers have read ahead differently, decide alike."""
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Linear(2, 1).double())
    optimizer = torch.optim.Adam(net.parameters(), lr=0.0)
    sampler = ScheduledSampler(400, 8, shuffle=False)
    run = ScheduledRun(sampler, optimizer)
    grow = Grow(run, every=1, most=16, process_group=dist.group.WORLD)
    torch.manual_seed(1 + dist.get_rank())  # the noise of a rank is its own
    x = torch.randn(400, 2, dtype=torch.float64)
    for places in run.batches(sampler):
        (net(x[places]) - 5 * torch.randn(len(places), 1, dtype=torch.float64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if run.seen == 160:
            sampler.position += 8 * dist.get_rank()  # as if more had been read ahead
    return sampler.schedule.stages, [(noise.scale.low, size) for _, size, noise in grow.history]


UNEQUAL = {"a part each": ([1.0], [6]), "accumulation": ([0.25, 0.75], [4, 12])}


def metered(name, rank=None, bucket_view=False):
    """Estimates of parts of other weights and sizes, in the optimizer's metric and by coordinates too.

    One rank of two under DDP, or (without a rank) one process whose parts are the two ranks' batches.
    """
    weights, sizes = UNEQUAL[name]
    job = Job("alone")
    ranks = (0, 1) if rank is None else (rank,)
    if rank is not None:
        job.model = DistributedDataParallel(job.model, gradient_as_bucket_view=bucket_view)
    group = None if rank is None else dist.group.WORLD
    meter = NoiseMeter(job.optimizer, preconditioned=True, coordinates=9, process_group=group)
    for step in range(5):
        for one in ranks:
            source = torch.Generator().manual_seed(1000 * one + step)
            for k, (weight, size) in enumerate(zip(weights, sizes, strict=True)):
                i = torch.randint(N, (size,), generator=source)
                share = weight / len(ranks)
                with job.quiet(k == len(sizes) - 1), meter.part(size, share):
                    (share * F.cross_entropy(job.model(job.x[i]), job.y[i])).backward()
        meter.update()
        job.optimizer.step()
        job.optimizer.zero_grad()
    meter.remove()
    return torch.tensor(meter._values()), float(meter._steps[0][1])


def refusals():
    """What NoiseMeter says of shards that it cannot meter."""
    job, said = Job("fsdp"), []
    for options in ({}, {"process_group": dist.group.WORLD, "model": job.model, "preconditioned": True}):
        try:
            NoiseMeter(job.optimizer, **options)
        except (TypeError, ValueError) as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def main(rank, world, folder):
    store = dist.FileStore(f"{folder}/store{world}", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
    found = {"shards": sharded_state(), "grown": growth(), "refused": refusals()}
    for kind in ("ddp", "fsdp"):
        found[kind] = {
            "trajectory": Job(kind).train(SAVED).save(f"{folder}/{kind}{world}.pt").train(END).found(),
            "kept": Job(kind).load(f"{folder}/alone.pt").train(END).found(),
            "changed": Job(kind, OTHER).load(f"{folder}/alone.pt").train(END).found(),
            "svag": svag(kind),
            "noise": noise(kind, world),
        }
    if world == 2:
        cases = [(name, view) for name in UNEQUAL for view in (False, True)]
        found["metered"] = {case: metered(case[0], rank, case[1]) for case in cases}
        Job("fsdp").train(SAVED).save_sharded(f"{folder}/sharded")
    else:
        for name, stages in (("sharded kept", GROWING), ("sharded changed", OTHER)):
            found["fsdp"][name] = Job("fsdp", stages).load_sharded(f"{folder}/sharded").train(END).found()
    torch.save(found, f"{folder}/{world}-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def start(world, folder):
    """All ranks of one world; waits for them and returns whether all went well."""
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            try:
                main(rank, world, folder)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    return not any(statuses)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(0 if all(start(int(world), Path(sys.argv[1])) for world in sys.argv[2:]) else 1)
