"""A conversion that fails while it is made is taken back, to the bit; and each place in memory is converted once."""

import pytest
import torch
from live import ADAM, Average, net, snapshot, train
from torch import nn
from torch.optim.lr_scheduler import ChainedScheduler, CosineAnnealingLR, LambdaLR, StepLR

from rootscale.training import rescale_

NOTHING = "all changes were taken back, so nothing has changed"


class Job:
    """A run with everything that rescale_ converts."""

    def __init__(self, **options):
        self.model, self.average = net(), Average(0.9)
        groups = [{"params": self.model[0].parameters()}, {"params": self.model[1:].parameters(), "lr": 1e-2}]
        self.optimizer = torch.optim.Adam(groups, **{**ADAM, **options})
        self.scheduler = ChainedScheduler([CosineAnnealingLR(self.optimizer, 100), StepLR(self.optimizer, 10)])
        for _ in range(3):
            train(self.model, self.optimizer, 1)
            self.scheduler.step()

    def snapshot(self):
        inner = self.scheduler._schedulers
        return snapshot(self.optimizer, self.scheduler, *inner, self.model, self.average)

    def assert_untouched_by(self, error, message, kappa=3, note=True, **options):
        """Convert and fail; the error carries the note, and nothing has changed."""
        settings = {"scheduler": self.scheduler, "model": self.model, "ema": self.average, **options}
        before = self.snapshot()
        with pytest.raises(error, match=message) as caught:
            rescale_(self.optimizer, kappa, **settings)
        assert self.snapshot() == before
        assert any(NOTHING in one for one in getattr(caught.value, "__notes__", ())) == note


class Rejecting:
    """An average of parameters whose setter accepts one value only."""

    def __init__(self):
        self._decay = 0.9

    @property
    def decay(self):
        return self._decay

    @decay.setter
    def decay(self, value):
        if value != 0.9:
            raise ValueError("the decay is fixed")


def test_a_setter_that_rejects_the_new_value_leaves_everything_as_it_was():
    job, fixed = Job(), Rejecting()
    job.assert_untouched_by(ValueError, "the decay is fixed", ema=[job.average, fixed])
    assert fixed.decay == 0.9


def test_the_changes_before_a_failure_are_taken_back_with_tensor_learning_rates_too():
    lr = torch.tensor(1e-3, dtype=torch.float32)
    job = Job(lr=lr, capturable=False, foreach=False)
    job.assert_untouched_by(ValueError, "the decay is fixed", ema=Rejecting())
    assert job.optimizer.param_groups[0]["lr"] is lr


class Frozen(StepLR):
    """A scheduler that does not let its class be changed."""

    def __setattr__(self, name, value):
        if name == "__class__":
            raise RuntimeError("frozen")
        super().__setattr__(name, value)


def test_a_scheduler_that_fails_in_the_middle_leaves_everything_as_it_was():
    job = Job()
    job.assert_untouched_by(RuntimeError, "frozen", scheduler=[job.scheduler, Frozen(job.optimizer, 7)])


class Final(LambdaLR):
    def __init_subclass__(cls, **options):
        raise TypeError("Final is final")


def test_a_scheduler_whose_class_cannot_be_extended_is_refused_with_advice():
    job = Job()
    final = Final(job.optimizer, lambda step: 1.0)
    job.assert_untouched_by(
        TypeError, "Final cannot be converted, as its class cannot be extended .*Plan.at", note=False,
        scheduler=[job.scheduler, final],
    )  # fmt: skip


def test_an_inference_tensor_in_the_state_is_refused_before_any_change():
    job = Job()
    state = job.optimizer.state[job.model[2].bias]
    with torch.inference_mode():
        state["exp_avg_sq"] = state["exp_avg_sq"].clone()
    job.assert_untouched_by(TypeError, r"exp_avg_sq is an inference tensor.*its clone\(\)", note=False)


@pytest.mark.filterwarnings("ignore:a scheduler drives")
def test_an_inference_tensor_as_learning_rate_is_refused_before_any_change():
    job = Job()
    with torch.inference_mode():
        job.optimizer.param_groups[1]["lr"] = torch.tensor(1e-2)
    job.assert_untouched_by(TypeError, "the optimizer's lr is an inference tensor", note=False, scheduler=None)


def test_an_expanded_tensor_in_the_state_is_refused_before_any_change():
    job = Job()
    job.optimizer.state[job.model[2].bias]["exp_avg_sq"] = torch.ones((), dtype=torch.float64).expand(1, 3)
    job.assert_untouched_by(TypeError, "exp_avg_sq is an expanded tensor", note=False)


class Stubborn(torch.Tensor):
    """A tensor of another class, that can be copied but not multiplied in place."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.Tensor.mul_ and args[0].numel() == 1:
            raise RuntimeError("cannot be multiplied")
        return super().__torch_function__(function, types, args, kwargs or {})


def test_a_state_of_another_class_that_fails_leaves_everything_as_it_was():
    """The first of them has been multiplied by then, by a factor that cannot be divided out exactly."""
    job = Job()
    for parameter in (job.model[0].weight, job.model[2].bias):
        state = job.optimizer.state[parameter]
        state["exp_avg_sq"] = state["exp_avg_sq"].as_subclass(Stubborn)
    job.assert_untouched_by(RuntimeError, "cannot be multiplied")


def test_what_cannot_be_put_back_is_named_and_the_rest_is():
    class Trap(Rejecting):
        def __init__(self):
            super().__init__()
            self.armed = False

        @property
        def decay(self):
            if self.armed:
                raise OSError("gone")
            return 0.9

        @decay.setter
        def decay(self, value):
            if value != 0.9:
                self.armed = True
                raise ValueError("no")

    job = Job()
    before = job.snapshot()
    with pytest.raises(ValueError, match="no") as caught:
        rescale_(job.optimizer, 3, scheduler=job.scheduler, model=job.model, ema=[job.average, Trap()])
    assert job.snapshot() == before
    assert caught.value.__notes__ == [
        "rescale_: the changes were taken back, except where that failed too (OSError: gone)"
    ]


def test_an_interrupt_among_the_multiplications_comes_after_the_last_of_them(monkeypatch):
    job, expected = Job(), Job()
    rescale_(expected.optimizer, 3, scheduler=expected.scheduler, model=expected.model, ema=expected.average)
    multiply, calls = torch._foreach_mul_, []

    def interrupted(tensors, factors):
        multiply(tensors, factors)
        calls.append(len(tensors))
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(torch, "_foreach_mul_", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rescale_(job.optimizer, 3, scheduler=job.scheduler, model=job.model, ema=job.average)
    assert len(calls) == 2  # float64 moments and float32 counters
    assert job.snapshot() == expected.snapshot()


def test_a_device_that_fails_among_the_multiplications_is_not_said_to_have_changed_nothing(monkeypatch):
    job = Job()

    def broken(tensors, factors):
        raise RuntimeError("device lost")

    monkeypatch.setattr(torch, "_foreach_mul_", broken)
    with pytest.raises(RuntimeError, match="device lost") as caught:
        rescale_(job.optimizer, 3, scheduler=job.scheduler)
    assert "may have been converted in part" in caught.value.__notes__[0]
    assert job.optimizer.param_groups[0]["lr"] < 1e-3  # taken back


# ---- memory


def set_steps(optimizer, steps):
    for state, step in zip(optimizer.state.values(), steps, strict=True):
        state["step"] = step


def adam():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    "alias",
    [
        lambda one: one.view(()),
        lambda one: one.detach(),
        lambda one: torch.from_numpy(one.numpy()),
        lambda one: torch.as_strided(one, (), ()),
    ],
    ids=["view", "detach", "numpy", "strided"],
)
def test_counters_that_share_their_memory_are_divided_once(alias):
    optimizer, counter = adam(), torch.tensor(8.0)
    set_steps(optimizer, [counter, alias(counter)])
    rescale_(optimizer, 4)
    assert [state["step"].item() for state in optimizer.state.values()] == [2.0, 2.0]


def test_counters_side_by_side_in_one_storage_are_divided_each():
    optimizer, counters = adam(), torch.tensor([8.0, 16.0])
    set_steps(optimizer, counters.unbind())
    rescale_(optimizer, 4)
    assert counters.tolist() == [2.0, 4.0]


def test_interleaved_tensors_are_divided_each():
    optimizer, block = adam(), torch.full((2, 4), 8.0)
    weight, bias = optimizer.state.values()
    weight["exp_avg_sq"], bias["exp_avg_sq"] = block[:, :3], block[:, 3]
    rescale_(optimizer, 4)
    assert torch.equal(block, torch.full((2, 4), 2.0))


def test_tensors_that_share_a_part_of_their_memory_are_refused():
    optimizer, block = adam(), torch.full((6,), 8.0)
    weight, bias = optimizer.state.values()
    weight["exp_avg_sq"], bias["exp_avg_sq"] = block.view(2, 3), block[4:]
    with pytest.raises(ValueError, match=r"share a part of their memory \(exp_avg_sq and exp_avg_sq\).*clone\(\)"):
        rescale_(optimizer, 4)
    assert torch.equal(block, torch.full((6,), 8.0))
