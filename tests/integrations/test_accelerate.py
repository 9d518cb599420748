"""Against the real library, in one process and in two (gloo)."""

import math
import os
import runpy
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

accelerate = pytest.importorskip("accelerate", reason="needs the extra: pip install 'rootscale[accelerate]'")

import torch  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from accelerate.state import AcceleratorState, GradientState, PartialState  # noqa: E402
from resumed_by_hand import go_on  # noqa: E402
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, ReduceLROnPlateau  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from rootscale.integrations.accelerate import Growing, global_batch_size, run  # noqa: E402
from rootscale.training import Run, rescale_  # noqa: E402

ROOT = Path(__file__).parents[2]


def forget():
    """Accelerate keeps its state for the whole process."""
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


@pytest.fixture(autouse=True)
def _fresh():
    forget()
    yield
    forget()


def half(step):
    return 0.5 ** (step / 64)


def prepared(make=lambda o: LambdaLR(o, half), late=False, **kwargs):
    accelerator = Accelerator(cpu=True, **kwargs)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.98, 0.999), weight_decay=0.1)
    if late:  # the scheduler is made from the prepared optimizer
        model, optimizer = accelerator.prepare(model, optimizer)
        scheduler = accelerator.prepare(make(optimizer))
    else:
        model, optimizer, scheduler = accelerator.prepare(model, optimizer, make(optimizer))
    return accelerator, model, optimizer, scheduler


def batches(size, first, last):
    rows = torch.sin(torch.arange(3.0 * last).double() ** 1.5).view(last, 3)[first:]
    return rows.split(size)


def loss(model, x):
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


def train(accelerator, model, optimizer, scheduler, given):
    """The script's learning rates at the steps of some batches."""
    rates = []
    for batch in given:
        accelerator.backward(loss(model, batch))
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return rates


def resumed(folder):
    """What every batch size makes of a checkpoint of batch size 4 at sample 64: parameters and learning rates."""
    found = {}
    for size in (16, 2, 4):
        for late in (False, True):
            forget()
            held = prepared(late=late)
            follow = run(held[0], held[2], tuned_at=4, batch_size=size, scheduler=held[3])
            held[0].load_state(folder)  # before or after it, nothing else is needed
            rates = train(*held, batches(size, 64, 256))
            found[size, late] = ([p.detach() for p in held[1].parameters()], rates, follow.clock)
            held[0].save_state(f"{folder}/{size}")
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run that knows nothing of this, saved after 16 steps, and what fresh processes make of it."""
    forget()
    folder = tmp_path_factory.mktemp("plain")
    held = prepared()
    train(*held, batches(4, 0, 64))
    held[0].save_state(str(folder))
    model, state = [p.detach().clone() for p in held[1].parameters()], held[2].optimizer.state_dict()
    copy = {"state": {k: {n: t.clone() for n, t in s.items()} for k, s in state["state"].items()}}
    state = {**copy, "param_groups": [dict(group) for group in state["param_groups"]]}
    train(*held, batches(4, 64, 256))
    forget()
    paths = os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests")))
    command = [sys.executable, __file__, folder, folder / "found.pt"]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"})
    found = torch.load(folder / "found.pt", weights_only=False)
    return folder, model, state, [p.detach() for p in held[1].parameters()], found


@pytest.mark.parametrize("late", [False, True], ids=["scheduler before prepare", "scheduler after prepare"])
@pytest.mark.parametrize("size", [16, 2])
def test_a_checkpoint_resumed_in_a_fresh_process_is_what_a_user_would_write(plain, size, late):
    _, weights, state, _, found = plain
    model = prepared()[1]
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), weights, strict=True):
            parameter.copy_(value)
    rate = lambda step: 1e-3 * half(step)  # noqa: E731
    wanted = go_on(model, model.parameters(), state, size / 4, batches(size, 64, 256), loss, rate, 16)
    parameters, rates, clock = found[size, late]
    for a, b in zip(parameters, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    assert rates == pytest.approx([rate(math.floor(16 + k * size / 4)) for k in range(192 // size)], rel=1e-12)
    assert clock == 64


def test_resumed_at_the_same_batch_size_it_is_the_run_that_was_never_interrupted(plain):
    for a, b in zip(plain[4][4, False][0], plain[3], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


def test_a_checkpoint_of_a_larger_batch_size_is_one_of_the_script(plain):
    """A plain loop at batch size 4 loads it, and is where it should be."""
    held = prepared()
    held[0].load_state(str(plain[0] / "16"))
    group = held[2].param_groups[0]
    assert (group["lr"], group["betas"], group["eps"]) == (1e-3 * half(64), (0.98, 0.999), 1e-8)
    assert {float(state["step"]) for state in held[2].state.values()} == {64.0}
    assert held[3].scheduler.last_epoch == 64


def test_several_prepared_optimizers_are_followed_together():
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    models = [torch.nn.Linear(3, 1), torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))]
    optimizers = [
        torch.optim.AdamW(models[0].parameters(), lr=1e-3, betas=(0.95, 0.99)),
        torch.optim.SGD(models[1].parameters(), lr=0.1),
    ]
    schedulers = [LambdaLR(optimizer, half) for optimizer in optimizers]
    everything = list(accelerator.prepare(*models, *schedulers, *optimizers))
    models, schedulers, optimizers = everything[:2], everything[2:4], everything[4:]
    follow = run(
        accelerator, optimizers, tuned_at="4x1x1", batch_size="8x2x1", scheduler=schedulers[::-1], model=models
    )
    assert models[1][1].momentum == pytest.approx(1 - 0.9**2)
    assert [follow.values()[f"optimizer {i}/lr"] for i in (0, 1)] == pytest.approx([2e-3, 0.4])
    for _ in range(3):
        for model, optimizer, scheduler in zip(models, optimizers, schedulers, strict=True):
            accelerator.backward(model(torch.ones(8, 3)).square().mean())
            optimizer.step()
            scheduler.step()
    assert [scheduler.scheduler.last_epoch for scheduler in schedulers] == [12, 12]
    follow.detach()
    assert models[1][1].momentum == 0.1


def test_one_of_several_that_is_refused_leaves_the_others():
    accelerator = Accelerator(cpu=True)
    nets = [torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)]
    optimizers = [torch.optim.AdamW(nets[0].parameters()), torch.optim.SGD(nets[1].parameters(), lr=0.1)]
    optimizers = list(accelerator.prepare(*optimizers))
    with pytest.raises(ValueError, match=r"optimizer 1: rule 'sqrt' is for adam, adamw, .*; the rule of sgd is"):
        run(accelerator, optimizers, tuned_at=4, batch_size=16, rule="sqrt")
    run(accelerator, optimizers, tuned_at=4, batch_size=16)  # nothing of the first one is in a Run


def test_accumulation_does_not_disturb_the_clock_and_the_loader_says_the_batch_size():
    accelerator, model, optimizer, scheduler = prepared(gradient_accumulation_steps=4)
    loader = accelerator.prepare(DataLoader(torch.zeros(64, 3).double(), batch_size=4))
    assert global_batch_size(accelerator, loader).to_json() == "4x4x1"
    follow = run(accelerator, optimizer, tuned_at=4, batch_size=loader, scheduler=scheduler)
    rates = []
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(loss(model, batch))
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    assert rates[::4] == pytest.approx([1e-3 * half(4 * k) for k in range(4)], rel=1e-9)
    assert (follow.kappa, follow.clock) == (4, 16)
    with pytest.raises(ValueError, match="the batch size cannot be found in this DataLoader: give a loader of accel"):
        run(accelerator, optimizer, tuned_at=4, batch_size=DataLoader(torch.zeros(8), batch_size=4))


@pytest.mark.parametrize("make", [lambda o: CosineAnnealingLR(o, 64), lambda o: OneCycleLR(o, 1e-3, total_steps=65)])
def test_schedules_end_where_they_did(make):
    base = train(*prepared(make), batches(4, 0, 256))
    forget()
    large = prepared(make)
    run(large[0], large[2], tuned_at=4, batch_size=16, scheduler=large[3])
    assert train(*large, batches(16, 0, 256)) == pytest.approx(base[::4], rel=1e-9, abs=1e-12)


def test_a_plateau_keeps_its_clock():
    held = prepared(lambda o: ReduceLROnPlateau(o, patience=1, factor=0.5))
    run(held[0], held[2], tuned_at=4, batch_size=16, scheduler=held[3])
    for _ in range(3):
        held[3].step(1.0)
    assert held[2].param_groups[0]["lr"] == pytest.approx(5e-4)


@pytest.mark.parametrize("interval", [None, "epoch"])
def test_a_scheduler_that_the_loop_steps_once_an_epoch_keeps_its_clock(interval):
    held = prepared(step_scheduler_with_optimizer=False)
    follow = run(held[0], held[2], tuned_at=4, batch_size=16, scheduler=held[3], interval=interval)
    for _ in range(3):
        for batch in batches(16, 0, 64):
            held[0].backward(loss(held[1], batch))
            held[2].step()
            held[2].zero_grad()
        held[3].step()
    assert (held[3].scheduler.last_epoch, follow.clock) == (3, 48)


def test_what_was_prepared_is_sent_here_by_the_functions_for_bare_objects():
    _, _, optimizer, _ = prepared()
    for function, change in ((rescale_, {"kappa": 4}), (Run, {"tuned_at": 4})):
        with pytest.raises(
            TypeError, match=r"AcceleratedOptimizer of accelerator\.prepare: .*integrations\.accelerate\.run"
        ):
            function(optimizer, **change)


def test_another_optimizer_or_another_scheduler_is_refused():
    accelerator, _, optimizer, scheduler = prepared()
    other = accelerator.prepare(torch.optim.Rprop([torch.zeros(1, requires_grad=True)], lr=1e-3))
    with pytest.raises(TypeError, match="Rprop has no rule that keeps its dynamics"):
        run(accelerator, other, tuned_at=4, batch_size=16)
    third = accelerator.prepare(torch.optim.Adam([torch.zeros(1, requires_grad=True)]))
    with pytest.raises(ValueError, match="LambdaLR belongs to another optimizer than the one given"):
        run(accelerator, third, tuned_at=4, batch_size=16, scheduler=scheduler)
    run(accelerator, optimizer, tuned_at=4, batch_size=16, scheduler=scheduler)
    with pytest.raises(ValueError, match="is in a Run already"):
        run(accelerator, optimizer, tuned_at=4, batch_size=16)


# (tuned at, batch size of now, the script's steps in a step of now), with two processes
CASES = [(8, 32, 4), ("8x1x1", "4x1x2", 1), ("8x1x1", "16x1x2", 4), ("4x1x2", "16x1x2", 8), ("8x1x4", "8x1x2", 2)]


def _two(rank, port, out):
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    forget()
    found = []
    for tuned_at, batch_size, _ in CASES:
        held = prepared()
        run(held[0], held[2], tuned_at=tuned_at, batch_size=batch_size, scheduler=held[3])
        found.append(train(*held, batches(4, 0, 24)))
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    loader = accelerator.prepare(DataLoader(torch.zeros(64, 3), batch_size=4))
    if rank == 0:
        torch.save((found, global_batch_size(accelerator, loader).to_json()), out)
    torch.distributed.barrier()
    os._exit(0)  # DDP's reducer may wait for threads of gloo for ever where it is freed after the group


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    """What two processes found."""
    file = tmp_path_factory.mktemp("two") / "found.pt"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Forked: importing torch and accelerate anew would take longer than all the rest.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)  # of Python 3.12, where there are threads
        mp.start_processes(_two, (port, file), nprocs=2, start_method="fork")
    return torch.load(file, weights_only=True)


def test_the_length_of_a_schedule_does_not_depend_on_the_number_of_processes_that_step_it(of_two):
    """As a number, ``tuned_at`` says that lengths are in steps; as a layout, in steps of so many processes' script."""
    for (_, _, ticks), rates in zip(CASES, of_two[0], strict=True):
        assert rates == pytest.approx([1e-3 * half(ticks * k) for k in range(6)], rel=1e-9)


def test_the_loader_of_two_processes_says_the_batch_size(of_two):
    assert of_two[1] == "4x3x2"


def test_the_example_runs(capsys):
    runpy.run_path(str(ROOT / "examples" / "accelerate_loop.py"), run_name="__main__")
    assert "batch size 16 -> 64" in capsys.readouterr().out


class Growth:
    """A loop whose batch grows, with a checkpoint in the middle of an epoch."""

    NUMBER, EPOCHS = 202, 3

    def __init__(self):
        forget()
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        torch.manual_seed(6)
        x, y = torch.randn(self.NUMBER, 4, dtype=torch.float64).split([3, 1], 1)  # noise alone
        data = TensorDataset(torch.arange(self.NUMBER), x, y)
        model = torch.nn.Linear(3, 1).double()
        torch.nn.init.zeros_(model.weight)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        loader = DataLoader(data, batch_size=2)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)
        follow = run(self.accelerator, self.optimizer, tuned_at="4x1x1", batch_size=self.loader)
        self.growing = Growing(self.accelerator, follow, most=16, every=2)
        self.accelerator.register_for_checkpointing(self.growing)
        self.seen, self.sizes = [], []

    def train(self, epoch=0, skip=0, save=None):
        """Train to the end, from a batch of an epoch; ``save`` is ``(epoch, batches, folder)``."""
        for number in range(epoch, self.EPOCHS):
            rest = self.accelerator.skip_first_batches(self.loader, skip) if skip else self.loader
            for k, (i, x, y) in enumerate(self.growing.batches(rest), 1 + skip):
                with self.accelerator.accumulate(self.model):
                    self.accelerator.backward((self.model(x) - y).square().mean())
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                self.seen.append(i.tolist())
                if self.accelerator.sync_gradients:
                    self.sizes.append(int(self.growing.run.batch_size))
                if save is not None and (number, k) == save[:2]:
                    self.accelerator.save_state(str(save[2]))
                    return self
            skip = 0
        return self


@pytest.mark.filterwarnings("ignore:after the batch size has changed:rootscale.ScalingWarning")  # few, wild gradients
@pytest.mark.parametrize(("epoch", "batches"), [(0, 60), (2, 40), (2, 96)])
def test_a_batch_that_grows_goes_on_from_the_middle_of_an_epoch(tmp_path, epoch, batches):
    steady = Growth().train()
    assert sorted(set(steady.sizes)) == [4, 8, 16]
    assert steady.accelerator.gradient_accumulation_steps == 8
    flat = [i for some in steady.seen for i in some]
    assert all(sorted(flat[202 * k : 202 * (k + 1)]) == list(range(202)) for k in range(3))
    first = Growth().train(save=(epoch, batches, tmp_path / "saved"))
    second = Growth()
    second.accelerator.load_state(str(tmp_path / "saved"))
    second.train(epoch, batches)
    assert first.seen + second.seen == steady.seen
    assert first.sizes + second.sizes == steady.sizes
    assert [one[:2] for one in second.growing.history] == [one[:2] for one in steady.growing.history]
    assert torch.equal(second.model.weight, steady.model.weight)


def test_growth_that_could_not_be_measured_is_refused():
    accelerator, _, optimizer, scheduler = prepared()
    follow = run(accelerator, optimizer, tuned_at=4, scheduler=scheduler)
    with pytest.raises(ValueError, match="Growing needs gradient_accumulation_steps >= 2 or several processes"):
        Growing(accelerator, follow)


if __name__ == "__main__":  # the fresh process
    folder, result = sys.argv[1:]
    torch.save(resumed(folder), result)
