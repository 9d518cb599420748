"""Every scheduler of torch in a `Run`: its own numbers, at equal time, whatever the batch size is and was."""

import copy
import functools
import io
import math
import subprocess
import sys

import pytest
import torch
from torch.optim import lr_scheduler as lrs
from torch.optim.swa_utils import SWALR

from rootscale import RULES
from rootscale.training import Run

#: Gradients here do not know of the batch size, which the look at the loop after a change remarks on.
pytestmark = pytest.mark.filterwarnings("ignore:after the batch size has changed:rootscale.ScalingWarning")
BEFORE = pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step:UserWarning")
STEPS = 96  # of the base run; divisible by the kappas below


class Halving(lrs.LRScheduler):
    """A user's scheduler, with a recursion and an absolute learning rate of its own."""

    def get_lr(self):
        if self.last_epoch % 20 or not self.last_epoch:
            return [group["lr"] for group in self.optimizer.param_groups]
        return [max(group["lr"] / 2, 3e-4) for group in self.optimizer.param_groups]


class Gradual(lrs.LRScheduler):
    """A warm-up that holds what comes after it, as a widespread one does."""

    def __init__(self, optimizer, steps, after):
        self.steps, self.after_scheduler = steps, after
        super().__init__(optimizer)

    def get_lr(self):
        return [base * min(1, self.last_epoch / self.steps) for base in self.base_lrs]


def warm_cosine(opt):
    first = lrs.LinearLR(opt, start_factor=0.01, total_iters=10)
    return lrs.SequentialLR(opt, [first, lrs.CosineAnnealingLR(opt, T_max=86, eta_min=1e-5)], milestones=[10])


# Every public scheduler of torch.optim.lr_scheduler, with absolute learning rates wherever there are any.
SCHEDULERS = {
    "LambdaLR": lambda opt: lrs.LambdaLR(opt, lambda k: 0.95**k + 0.1 * math.sin(k) ** 2),
    "MultiplicativeLR": lambda opt: lrs.MultiplicativeLR(opt, lambda k: 1 - 1 / (k + 3)),
    "StepLR": lambda opt: lrs.StepLR(opt, step_size=7, gamma=0.8),
    "MultiStepLR": lambda opt: lrs.MultiStepLR(opt, milestones=[5, 33, 34, 80], gamma=0.5),
    "ConstantLR": lambda opt: lrs.ConstantLR(opt, factor=0.3, total_iters=29),
    "LinearLR": lambda opt: lrs.LinearLR(opt, start_factor=0.1, end_factor=0.7, total_iters=50),
    "ExponentialLR": lambda opt: lrs.ExponentialLR(opt, gamma=0.97),
    "SequentialLR": warm_cosine,
    "CosineAnnealingLR": lambda opt: lrs.CosineAnnealingLR(opt, T_max=40, eta_min=1e-4),
    "ChainedScheduler": lambda opt: lrs.ChainedScheduler(
        [lrs.ConstantLR(opt, factor=0.1, total_iters=13), lrs.ExponentialLR(opt, gamma=0.99), lrs.StepLR(opt, 31)],
        optimizer=opt,
    ),
    "CyclicLR": lambda opt: lrs.CyclicLR(
        opt, base_lr=1e-4, max_lr=2e-3, step_size_up=11, step_size_down=17, base_momentum=0.97, max_momentum=0.99
    ),
    "CosineAnnealingWarmRestarts": lambda opt: lrs.CosineAnnealingWarmRestarts(opt, T_0=10, T_mult=2, eta_min=1e-5),
    "OneCycleLR": lambda opt: lrs.OneCycleLR(
        opt, max_lr=5e-3, total_steps=STEPS, base_momentum=0.85, max_momentum=0.99, three_phase=True
    ),
    "PolynomialLR": lambda opt: lrs.PolynomialLR(opt, total_iters=70, power=1.7),
    # not in that list, but schedulers all the same
    "SWALR": lambda opt: SWALR(opt, swa_lr=2e-4, anneal_epochs=30),
    "user's own": Halving,
    "held by another": lambda opt: Gradual(opt, 20, lrs.CosineAnnealingLR(opt, 200)),
    "nested twice": lambda opt: lrs.ChainedScheduler([lrs.StepLR(opt, 30, 0.5), warm_cosine(opt)], optimizer=opt),
    "sequence with OneCycleLR": lambda opt: lrs.SequentialLR(
        opt,
        [lrs.ConstantLR(opt, 0.2, 5), lrs.OneCycleLR(opt, 4e-3, total_steps=STEPS - 10, cycle_momentum=False)],
        milestones=[10],
    ),
}


def test_the_table_has_every_scheduler_of_torch():
    public = {name for name in lrs.__all__ if issubclass(getattr(lrs, name), lrs.LRScheduler)}
    assert public - {"LRScheduler", "ReduceLROnPlateau"} <= set(SCHEDULERS)


class Job:
    """Two groups, a scheduler and a run."""

    def __init__(self, name, size=4, lr=1e-3, cls=torch.optim.Adam, made="after", **options):
        torch.manual_seed(0)
        self.parameters = [torch.nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(2)]
        groups = [{"params": self.parameters[:1]}, {"params": self.parameters[1:]}]
        if not isinstance(lr, torch.Tensor):
            groups[1]["lr"] = 3 * lr
        more = {"betas": (0.98, 0.999)} if cls is torch.optim.Adam else {"momentum": 0.9}
        self.optimizer = cls(groups, lr=lr, **more)
        self.scheduler = SCHEDULERS[name](self.optimizer) if isinstance(name, str) else name(self.optimizer)
        self.run = size and Run(self.optimizer, tuned_at=4, batch_size=size, scheduler=self.scheduler, **options)
        self.made = 0

    @property
    def numbers(self):
        key = "betas" if "betas" in self.optimizer.param_groups[0] else "momentum"
        return [
            (float(group["lr"]), group[key] if key == "momentum" else group[key][0])
            for group in self.optimizer.param_groups
        ]

    def step(self):
        for parameter in self.parameters:
            parameter.grad = torch.sin(torch.arange(1.0, 3.0, dtype=torch.float64) * (1 + self.made))
        self.made += 1
        self.optimizer.step()
        self.scheduler.step()

    def advance(self, steps):
        """Learning rates and momenta of both groups after each of the steps."""
        seen = []
        for _ in range(steps):
            self.step()
            seen.append(self.numbers)
        return torch.tensor(seen, dtype=torch.float64)

    def states(self):
        return [self.optimizer.state_dict(), self.scheduler.state_dict()]

    def load(self, states):
        self.optimizer.load_state_dict(states[0])
        self.scheduler.load_state_dict(states[1])


@functools.cache
def alone(name):
    return Job(name, size=0).advance(STEPS)


@pytest.mark.parametrize("size", [4 / 3, 2, 8, 16, 64])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_groups_have_the_scripts_numbers_at_equal_time(name, size):
    """And a step uses the rule's multiple of them."""
    base, kappa, job = alone(name), size / 4, Job(name)
    job.advance(24)
    job.run.batch_size = size
    found = job.advance(round((STEPS - 24) / kappa - 0.4))
    if kappa >= 1:  # every step of now ends at a step of the base run
        there = base[24 + int(kappa) - 1 :: int(kappa)][: len(found)]
    else:  # every step of the base run ends at a step of now
        every = round(1 / kappa)
        there, found = base[24:], found[every - 1 :: every]
    assert len(found) == len(there) > 2
    torch.testing.assert_close(found, there, rtol=1e-12, atol=0)
    assert job.scheduler.get_last_lr() == [group["lr"] for group in job.optimizer.param_groups]
    values = job.run.values()
    assert values["group 1/lr"] == pytest.approx(job.numbers[1][0] * kappa**0.5, rel=1e-12, abs=1e-300)
    script = job.numbers[1][1]
    assert values["group 1/beta1"] == pytest.approx(max(1 - kappa * (1 - script), min(script, 0.9)), rel=1e-12)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_kappa_that_is_not_whole_ticks_so_often_on_average(name):
    base, job = alone(name), Job(name, size=10)
    found, starts = [], [0.0]
    for _ in range(STEPS * 4 // 10):
        job.step()
        found.append(job.numbers)
        starts.append(job.run.clock)
    assert job.run.clock == pytest.approx(2.5 * len(found))
    expected = torch.stack([base[int(clock + 1e-9) - 1] for clock in starts[1:]])
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("size", [16, 10, 3])
@pytest.mark.parametrize("first", ["optimizer", "scheduler"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_saved_and_loaded_in_any_order_and_by_stock_torch(name, first, size):
    job = Job(name)
    job.advance(20)
    job.run.batch_size = size
    job.advance(3)
    file = io.BytesIO()
    torch.save(job.states(), file)
    expected = job.advance(10)

    def saved():
        file.seek(0)
        return torch.load(file, weights_only=False)

    other = Job(name, size=size)
    states = saved()
    if first == "optimizer":
        other.load(states)
    else:
        other.scheduler.load_state_dict(states[1])
        other.optimizer.load_state_dict(states[0])
    torch.testing.assert_close(other.advance(10), expected, rtol=1e-12, atol=0)

    stock = Job(name, size=0)  # goes on at the script's batch size, as the reference would
    stock.load(saved())
    place = 20 + int(3 * size / 4 + 1e-9)
    torch.testing.assert_close(stock.advance(10), alone(name)[place : place + 10], rtol=1e-12, atol=0)
    late = Job(name, size=0)  # and a Run that is made after loading
    late.load(saved())
    late.run = Run(late.optimizer, tuned_at=4, batch_size=size, scheduler=late.scheduler)
    if size % 4 == 0:
        torch.testing.assert_close(late.advance(10), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kappa", [4, 1 / 2, 2.5])
def test_once_an_epoch_is_left_alone(kappa):
    def epochs(job, count, steps):
        seen = []
        for _ in range(count):
            for _ in range(steps):
                job.optimizer.step()
            job.scheduler.step()
            seen.append(job.numbers[0][0])
        return seen

    base, job = epochs(Job("StepLR", size=0), 12, 1), Job("StepLR")
    found = epochs(job, 4, 20)
    job.run.batch_size = 4 * kappa
    found += epochs(job, 8, round(20 / kappa))
    assert found == base
    told = Job("StepLR", size=16, interval="epoch")
    assert epochs(told, 12, 1) == base


@pytest.mark.parametrize("kappa", [4, 1 / 2])
def test_reduce_on_plateau_counts_reports_and_its_lowest_rate_is_the_scripts(kappa):
    job = Job(lambda opt: lrs.ReduceLROnPlateau(opt, factor=0.1, patience=1, min_lr=2e-4), size=4 * kappa)
    rates = []
    for _ in range(4):
        job.optimizer.step()
        job.scheduler.step(1.0)
        rates.append(job.numbers[0][0])
    assert rates == pytest.approx([1e-3, 1e-3, 2e-4, 2e-4])
    assert job.run.values()["group 0/lr"] == pytest.approx(2e-4 * kappa**0.5)


def test_one_cycle_ends_where_it_ends_and_refuses_after_it():
    job = Job("OneCycleLR", size=40)  # 96 steps are 9.6 of ten
    job.advance(10)
    assert job.scheduler.last_epoch == STEPS
    with pytest.raises(ValueError, match="total steps"):
        job.scheduler.step()


@pytest.mark.parametrize("name", ["OneCycleLR", "CyclicLR", "SequentialLR", "user's own"])
def test_sgd_has_the_linear_rule_and_keeps_the_momentum_that_is_cycled(name):
    base = Job(name, size=0, cls=torch.optim.SGD).advance(STEPS)
    job = Job(name, size=16, cls=torch.optim.SGD)
    torch.testing.assert_close(job.advance(18), base[3:72:4], rtol=1e-12, atol=0)
    values = job.run.values()
    assert (values["group 0/lr"], values["group 0/momentum"]) == pytest.approx(
        (4 * job.numbers[0][0], job.numbers[0][1])
    )


def test_a_cycled_momentum_follows_the_rule_of_its_family():
    optimizer = torch.optim.Muon([torch.nn.Parameter(torch.ones(2, 2))], lr=0.1)
    scheduler = lrs.OneCycleLR(optimizer, 0.1, total_steps=STEPS, base_momentum=0.93, max_momentum=0.95)
    run = Run(optimizer, tuned_at=4, batch_size=8, scheduler=scheduler, rule="normalized-half")
    for _ in range(20):
        optimizer.step(), scheduler.step()
        script = optimizer.param_groups[0]["momentum"]
        assert 0.93 <= script <= 0.95
        assert run.values()["momentum"] == pytest.approx(RULES["normalized-half"].convert("mu", script, 2), rel=1e-12)


def test_an_explicit_epoch_is_passed_on():
    job = Job("CosineAnnealingWarmRestarts", size=16)
    job.scheduler.step(2.5)
    assert (job.scheduler.last_epoch, job.scheduler.T_cur) == (2, 2.5)


def test_a_learning_rate_that_someone_else_changes_stays_changed():
    job = Job("ExponentialLR", size=16)
    for group in job.optimizer.param_groups:
        group["lr"] *= 0.5
    assert job.advance(1)[0, 0, 0] == pytest.approx(1e-3 * 0.5 * 0.97**4, rel=1e-12)


def test_tensor_learning_rates_stay_the_same_tensors():
    base = Job("CosineAnnealingLR", size=0, lr=torch.tensor(1e-3)).advance(40)
    job = Job("CosineAnnealingLR", lr=torch.tensor(1e-3))
    held = [group["lr"] for group in job.optimizer.param_groups]
    job.advance(8)
    job.run.batch_size = 16
    torch.testing.assert_close(job.advance(8), base[11::4], rtol=2e-6, atol=0)
    assert all(group["lr"] is tensor for group, tensor in zip(job.optimizer.param_groups, held, strict=True))


@BEFORE
@pytest.mark.parametrize("skipped", [1, 2, 3])
@pytest.mark.parametrize("size", [16, 2])
def test_first_steps_that_a_grad_scaler_skips_do_not_hide_that_a_call_is_a_step(skipped, size):
    """The scaler calls no step then, and the loop calls its scheduler all the same, as stock torch's warning tells."""
    job, kappa = Job("LinearLR", size=size), size / 4
    for _ in range(skipped):
        job.scheduler.step()
    job.advance(10)
    assert job.scheduler.last_epoch == int(kappa * (10 + skipped) + 1e-9)


@BEFORE
def test_a_scheduler_of_every_micro_batch_counts_by_itself():
    job = Job("LinearLR", size=16)  # by four times the accumulation
    for _ in range(6):
        for _ in range(7):
            job.scheduler.step()
        job.step()
    assert job.scheduler.last_epoch == 48


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_the_step_that_torchs_distributed_states_make_is_not_one_of_the_loop():
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def model_of(job):
        return torch.nn.ParameterList(job.parameters)

    job = Job("LinearLR", size=16)
    job.advance(3)
    saved = copy.deepcopy(get_state_dict(model_of(job), job.optimizer)), copy.deepcopy(job.scheduler.state_dict())
    other = Job("LinearLR", size=16)
    get_state_dict(model_of(other), other.optimizer)  # makes a step, for a state to load into
    other.scheduler.load_state_dict(saved[1])
    (model, state) = saved[0]
    set_state_dict(model_of(other), other.optimizer, model_state_dict=model, optim_state_dict=state)
    assert other.run.clock == 12
    torch.testing.assert_close(other.advance(5), job.advance(5), rtol=1e-12, atol=0)


def test_its_state_is_that_of_an_ordinary_scheduler():
    for name in ("StepLR", "SequentialLR", "ChainedScheduler"):
        job, stock = Job(name, size=16), Job(name, size=0)
        job.advance(2), stock.advance(8)
        assert job.scheduler.state_dict() == stock.scheduler.state_dict()


@pytest.mark.parametrize("besides", [True, False])
def test_parts_of_a_scheduler_are_refused_besides_it(besides):
    job = Job("SequentialLR", size=0)
    given = [job.scheduler, *job.scheduler._schedulers][: 2 if besides else 3]
    with pytest.raises(ValueError, match="LinearLR is a part of a SequentialLR, which steps it: give the SequentialLR"):
        Run(job.optimizer, tuned_at=4, scheduler=given)
    Run(job.optimizer, tuned_at=4, scheduler=job.scheduler)


def test_a_state_that_was_converted_by_an_earlier_version_is_refused():
    job = Job("StepLR", size=16)
    state = job.scheduler.state_dict()
    for wrong in ({"_rootscale_frames": [1]}, {"last_epoch": "converted by rootscale"}):
        with pytest.raises(ValueError, match=r"converted in place by rootscale 0\.1: load it with that version"):
            job.scheduler.load_state_dict({**state, **wrong})


SCRIPT = """
import sys, torch
state = torch.load(sys.argv[1], weights_only=True)
optimizer = torch.optim.Adam([torch.ones(1, requires_grad=True)], lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4)
optimizer.load_state_dict(state["optimizer"])
scheduler.load_state_dict(state["scheduler"])
assert not any(name.startswith("rootscale") for name in sys.modules)
optimizer.step(), scheduler.step()
print(scheduler.last_epoch, optimizer.param_groups[0]["lr"])
"""


def test_a_program_without_rootscale_goes_on(tmp_path):
    optimizer = torch.optim.Adam([torch.ones(1, requires_grad=True)], lr=1e-3)
    scheduler = lrs.StepLR(optimizer, 4)
    Run(optimizer, tuned_at=4, batch_size=16, scheduler=scheduler)
    optimizer.step(), scheduler.step()
    torch.save({"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}, tmp_path / "run.pt")
    found = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / "run.pt")], capture_output=True, text=True)
    assert found.stdout.split() == ["5", "0.0001"], found.stderr
