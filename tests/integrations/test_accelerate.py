"""Against the real library, in one process and in two (gloo)."""

import math
import os
import runpy
import socket
import warnings
from pathlib import Path

import pytest

accelerate = pytest.importorskip("accelerate", reason="needs the extra: pip install 'rootscale[accelerate]'")

import torch  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from accelerate.state import AcceleratorState, GradientState, PartialState  # noqa: E402
from live import on_the_clock  # noqa: E402
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, ReduceLROnPlateau  # noqa: E402

from rootscale.integrations.accelerate import add_samples, rescale  # noqa: E402
from rootscale.training import rescale_, restore_  # noqa: E402
from rootscale.training.samples import follow_samples  # noqa: E402

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
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.95, 0.99), weight_decay=0.1)
    if late:  # the scheduler is made from the prepared optimizer
        model, optimizer = accelerator.prepare(model, optimizer)
        scheduler = accelerator.prepare(make(optimizer))
    else:
        model, optimizer, scheduler = accelerator.prepare(model, optimizer, make(optimizer))
    return accelerator, model, optimizer, scheduler


def steps(accelerator, model, optimizer, scheduler, number):
    """The learning rates of some optimizer steps."""
    rates = []
    for _ in range(number):
        loss = model(torch.randn(8, 3)).square().mean()
        accelerator.backward(loss)
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return rates


@pytest.mark.parametrize("late", [False, True], ids=["scheduler before prepare", "scheduler after prepare"])
def test_prepared_objects_are_converted_with_their_state_and_clock(late):
    run = prepared(late=late)
    _, model, optimizer, scheduler = run
    steps(*run, 8)
    before = [{key: value.clone() for key, value in state.items()} for state in optimizer.state.values()]
    belongs = scheduler.scheduler.optimizer
    old_beta1 = optimizer.param_groups[0]["betas"][0]
    m = math.sqrt((0.1 / 1.9) / (4 * (1 - old_beta1) / (1 + old_beta1)))  # beta1 stops at its floor
    changes = rescale(optimizer, 4, scheduler=scheduler, model=model)
    for old, new in zip(before, optimizer.state.values(), strict=True):
        for key, factor in {"exp_avg": m, "exp_avg_sq": 1 / 4, "step": 1 / 4}.items():
            torch.testing.assert_close(new[key], old[key] * factor)
    group = optimizer.param_groups[0]
    assert (group["betas"], group["weight_decay"]) == (pytest.approx((0.9, 0.96)), pytest.approx(0.2))
    assert model[1].momentum == pytest.approx(1 - 0.9**4)
    assert changes["LambdaLR clock"].after == 4
    assert scheduler.scheduler.optimizer is belongs
    assert steps(*run, 8) == pytest.approx([2 * 1e-3 * half(8 + 4 * k) for k in range(8)], rel=1e-9)


def two_prepared(late):
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    models = [torch.nn.Linear(3, 1), torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))]
    optimizers = [
        torch.optim.AdamW(models[0].parameters(), lr=1e-3, betas=(0.95, 0.99)),
        torch.optim.SGD(models[1].parameters(), lr=0.1),
    ]
    if late:
        optimizers = list(accelerator.prepare(*optimizers))
    schedulers = [LambdaLR(optimizer, half) for optimizer in optimizers]
    everything = accelerator.prepare(*models, *schedulers, *([] if late else optimizers))
    return accelerator, everything[:2], optimizers if late else list(everything[4:]), list(everything[2:4])


@pytest.mark.parametrize("late", [False, True], ids=["schedulers before prepare", "schedulers after prepare"])
def test_several_prepared_optimizers_are_converted_together(late):
    accelerator, models, optimizers, schedulers = two_prepared(late)
    belong = [one.scheduler.optimizer for one in schedulers]
    options = {
        "scheduler": schedulers[::-1],
        "model": models,
        "forward_kappa": 2,
        "processes_before": 2,
        "lengths": "fixed",
    }
    changes = rescale(optimizers, 4, **options)
    assert [one.scheduler.optimizer for one in schedulers] == belong
    assert models[1][1].momentum == pytest.approx(1 - 0.9**2)
    for i, (model, factor) in enumerate(zip(models, (2, 4), strict=True)):
        assert changes[f"optimizer {i}: lr"].after == factor * changes[f"optimizer {i}: lr"].before
        clocks = [row for row in changes if row.name.startswith(f"optimizer {i}: ") and row.name.endswith("LR clock")]
        assert [(row.before, row.after) for row in clocks] == [(1, 4), (4, 8)]
        rates = steps(accelerator, model, optimizers[i], schedulers[i], 4)
        lr = changes[f"optimizer {i}: lr"].after
        assert rates == pytest.approx([lr * half(8 * k) for k in range(4)], rel=1e-9)


@pytest.mark.parametrize("late", [False, True], ids=["schedulers before prepare", "schedulers after prepare"])
def test_one_of_several_that_is_refused_leaves_the_others(late):
    _, models, optimizers, schedulers = two_prepared(late)
    belong = [one.scheduler.optimizer for one in schedulers]
    with pytest.raises(ValueError, match=r"optimizer 1: rule 'sqrt' is for adam, adamw, .*; the rule of sgd is"):
        rescale(optimizers, 4, scheduler=schedulers, model=models, rule="sqrt", processes_before=2, lengths="fixed")
    assert optimizers[0].param_groups[0]["lr"] == 1e-3
    assert models[1][1].momentum == 0.1
    assert [type(one.scheduler) for one in schedulers] == [LambdaLR, LambdaLR]
    assert [one.scheduler.optimizer for one in schedulers] == belong


def test_accumulation_does_not_disturb_the_clock():
    accelerator, model, optimizer, scheduler = prepared(gradient_accumulation_steps=4)
    rescale(optimizer, 4, scheduler=scheduler)
    rates = []
    for _ in range(16):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.randn(8, 3)).square().mean())
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    assert rates[::4] == pytest.approx([2e-3 * half(4 * k) for k in range(4)], rel=1e-9)


@pytest.mark.parametrize("make", [lambda o: CosineAnnealingLR(o, 64), lambda o: OneCycleLR(o, 1e-3, total_steps=65)])
def test_schedules_end_where_they_did(make):
    base = steps(*prepared(make), 64)
    forget()
    large = prepared(make)
    rescale(large[2], 4, scheduler=large[3])
    assert steps(*large, 16) == pytest.approx([2 * rate for rate in base[::4]], rel=1e-9, abs=1e-12)


def test_a_plateau_keeps_its_clock():
    run = prepared(lambda o: ReduceLROnPlateau(o, patience=1, factor=0.5))
    rescale(run[2], 4, scheduler=run[3])
    for _ in range(3):
        run[3].step(1.0)
    assert run[2].param_groups[0]["lr"] == pytest.approx(1e-3)


def test_bare_objects_work_too():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rescale(optimizer, 4, scheduler=LambdaLR(optimizer, half))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(2e-3)


def test_what_was_prepared_is_sent_here_by_the_functions_for_bare_objects():
    _, _, optimizer, scheduler = prepared()
    for function, change in ((rescale_, {"kappa": 4}), (restore_, {})):
        with pytest.raises(
            TypeError, match=r"AcceleratedOptimizer of accelerator\.prepare: .*integrations\.accelerate"
        ):
            function(optimizer, scheduler=scheduler, **change)


def test_a_scheduler_whose_clock_is_not_known_is_refused_before_anything_is_changed():
    run = prepared(step_scheduler_with_optimizer=False)
    with pytest.raises(ValueError, match=r"its clock is not known: give interval='step' .* or interval='epoch'"):
        rescale(run[2], 4, scheduler=run[3])
    assert run[2].param_groups[0]["lr"] == 1e-3
    rescale(run[2], 4, scheduler=run[3], interval="epoch")
    run[2].step()
    run[3].step()
    assert run[2].param_groups[0]["lr"] == pytest.approx(2e-3 * half(1))


def test_another_optimizer_is_refused_before_anything_is_changed():
    accelerator = Accelerator(cpu=True)
    optimizer = accelerator.prepare(torch.optim.Rprop([torch.zeros(1, requires_grad=True)], lr=1e-3))
    with pytest.raises(TypeError, match="Rprop has no rule that keeps its dynamics"):
        rescale(optimizer, 4)


# (processes before, kappa, factor of the scheduler's clock: that of the batch per process, as there are two now)
CASES = [(None, 4, 4), (1, 4, 2), (1, 2, 1), (1, 1, 0.5), (4, 1, 2)]


def _two(rank, port, out):
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    forget()
    found = []
    for before, kappa, _ in CASES:
        run = prepared()
        rescale(run[2], kappa, scheduler=run[3], processes_before=before, lengths="fixed")
        found.append(steps(*run, 6))
    accelerator = Accelerator(cpu=True)
    net = torch.nn.Linear(3, 1)
    bare, seen = on_the_clock(net.parameters(), 4)
    net, optimizer, scheduler = accelerator.prepare(net, bare, follow_samples(CosineAnnealingLR(bare, 10)))
    for n in (2, 7):
        accelerator.backward(net(torch.ones(n, 3)).square().mean())
        add_samples(accelerator, optimizer, n)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    try:
        add_samples(accelerator, optimizer, 3 + rank)
        refused = ""
    except ValueError as error:
        refused = str(error)
    if rank == 0:
        torch.save((found, seen, scheduler.scheduler.last_epoch, refused), out)
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


def test_two_processes_step_the_scheduler_twice_and_a_change_in_their_number_is_counted_once(of_two):
    for (_, kappa, ticks), rates in zip(CASES, of_two[0], strict=True):
        wanted = [math.sqrt(kappa) * 1e-3 * half(math.floor(2 * ticks * k)) for k in range(6)]
        assert rates == pytest.approx(wanted, rel=1e-9)


def test_samples_of_two_processes_are_counted_once_and_unequal_ones_are_refused(of_two):
    _, seen, ticks, refused = of_two
    assert seen == [4, 18]
    assert ticks == 18 // 4  # accelerate steps it twice, which changes nothing
    assert refused.startswith("the processes have unequal samples (3, 4), but their gradients are averaged with equal")


def stretched(before, now, steps_done=24):
    """A run of one process that goes on as if on several, whose script multiplies its lengths by their number."""
    saved = prepared(lambda o: LambdaLR(o, lambda step: 1 - step / (64 * before)))
    for _ in range(before):  # the clock ticks once for each process
        steps(*saved, steps_done)
    states = saved[2].optimizer.state_dict(), saved[3].scheduler.state_dict()
    forget()
    run = prepared(lambda o: LambdaLR(o, lambda step: 1 - step / (64 * now)))
    run[2].optimizer.load_state_dict(states[0])
    run[3].scheduler.load_state_dict(states[1])
    return run


@pytest.mark.parametrize(("before", "kappa"), [(2, 1), (2, 4), (4, 2), (3, 1)])
@pytest.mark.parametrize("lengths", [None, "per process"])
def test_lengths_that_follow_the_number_of_processes_are_noticed(before, kappa, lengths):
    run = stretched(before, 1)
    changes = rescale(run[2], kappa, scheduler=run[3], processes_before=before, lengths=lengths)
    assert (changes["LambdaLR place"].before, changes["LambdaLR place"].after) == (24 * before, 24)
    wanted = [math.sqrt(kappa) * 1e-3 * (1 - (24 + kappa * k) / 64) for k in range(8)]
    assert steps(*run, 8) == pytest.approx(wanted, rel=1e-9)


def test_lengths_that_are_fixed_are_noticed():
    run = prepared()
    steps(*run, 16)
    rescale(run[2], 4, scheduler=run[3], processes_before=2)
    assert steps(*run, 4) == pytest.approx([2e-3 * half(16 + 8 * k) for k in range(4)], rel=1e-9)


def test_lengths_that_cannot_be_told_are_asked_for_before_anything_is_changed():
    run = prepared()  # at its start, any function gives what it gives
    with pytest.raises(ValueError, match=r"at both of the places .* give lengths='fixed' .* lengths='per process'"):
        rescale(run[2], 4, scheduler=run[3], processes_before=2)
    changed = stretched(2, 5)
    with pytest.raises(ValueError, match=r"at neither of the places"):
        rescale(changed[2], 4, scheduler=changed[3], processes_before=2)
    nested = prepared(lambda o: torch.optim.lr_scheduler.ChainedScheduler([LambdaLR(o, half)], optimizer=o))
    with pytest.raises(ValueError, match=r"functions of this LambdaLR are not in the checkpoint"):
        rescale(nested[2], 4, scheduler=nested[3], processes_before=2)
    with pytest.raises(ValueError, match="lengths must be 'fixed' or 'per process', got 'both'"):
        rescale(run[2], 4, scheduler=run[3], processes_before=2, lengths="both")
    assert all(one[2].param_groups[0]["lr"] <= 1e-3 for one in (run, changed, nested))


def test_the_example_runs(capsys):
    runpy.run_path(str(ROOT / "examples" / "accelerate_loop.py"), run_name="__main__")
    assert "LambdaLR clock" in capsys.readouterr().out


def test_an_optimizer_on_the_sample_clock_is_told_the_samples_of_its_steps():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = torch.nn.Linear(3, 1)
    bare, seen = on_the_clock(net.parameters(), 4)
    net, optimizer, scheduler = accelerator.prepare(net, bare, follow_samples(CosineAnnealingLR(bare, 10)))
    for n in (4, 2, 1, 7):
        with accelerator.accumulate(net):
            accelerator.backward(net(torch.ones(n, 3)).square().mean())
            add_samples(accelerator, optimizer, n)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    assert seen == [6, 14]
    assert scheduler.scheduler.last_epoch == 14 // 4
    with pytest.raises(TypeError, match="optimizer must be on the sample clock, got SGD"):
        add_samples(accelerator, torch.optim.SGD(net.parameters(), lr=0.1), 4)
