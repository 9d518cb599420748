"""State that cannot be changed in place, shares its memory or is interrupted: each place once, all of it or nothing."""

import pytest
import torch
from live import ADAM, Average, net, snapshot, train
from torch import nn

from rootscale.training import Run, rescale_


def in_place(optimizer, **parts):
    return rescale_(optimizer, 3, **parts)


def in_a_run(optimizer, **parts):
    return Run(optimizer, tuned_at=8, batch_size=24, **parts)


def later_in_a_run(optimizer, **parts):
    run = Run(optimizer, tuned_at=8, **parts)
    run.batch_size = 24
    return run


CHANGES = pytest.mark.parametrize("change", [in_place, in_a_run, later_in_a_run])
#: A `Run` that is made of a state copies it before the first change.
IN_PLACE = pytest.mark.parametrize("change", [in_place, later_in_a_run])


class Job:
    """An optimizer with two groups, a BatchNorm layer and an average."""

    def __init__(self, **options):
        self.model, self.average = net(), Average(0.9)
        groups = [{"params": self.model[0].parameters()}, {"params": self.model[1:].parameters(), "lr": 1e-2}]
        self.optimizer = torch.optim.Adam(groups, **{**ADAM, **options})
        train(self.model, self.optimizer, 3)

    def snapshot(self):
        return snapshot(self.optimizer, self.model, self.average)

    def assert_untouched_by(self, change, error, message, **options):
        """Change the batch size and fail; nothing has changed, and a run can still be made."""
        before = self.snapshot()
        with pytest.raises(error, match=message):
            change(self.optimizer, **{"model": self.model, "ema": self.average, **options})
        assert self.snapshot() == before


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


@CHANGES
@pytest.mark.parametrize("options", [{}, {"lr": torch.tensor(1e-3), "foreach": False}])
def test_a_setter_that_rejects_the_new_value_leaves_everything_as_it_was(change, options):
    job, fixed = Job(**options), Rejecting()
    lr = job.optimizer.param_groups[0]["lr"]
    job.assert_untouched_by(change, ValueError, "the decay is fixed", ema=[job.average, fixed])
    assert fixed.decay == 0.9
    assert job.optimizer.param_groups[0]["lr"] is lr


@IN_PLACE
def test_an_inference_tensor_in_the_state_is_refused_before_any_change(change):
    job = Job()
    state = job.optimizer.state[job.model[2].bias]
    with torch.inference_mode():
        state["exp_avg_sq"] = state["exp_avg_sq"].clone()
    job.assert_untouched_by(change, TypeError, r"exp_avg_sq is an inference tensor.*its clone\(\)")


@pytest.mark.parametrize("kind", ["inference", "expanded"])
def test_a_run_copies_the_state_that_it_is_made_of(kind):
    job = Job()
    state = job.optimizer.state[job.model[2].bias]
    with torch.inference_mode(kind == "inference"):
        state["exp_avg_sq"] = torch.ones((), dtype=torch.float64).expand(1, 3)[:, :1] + 0
    if kind == "expanded":
        state["exp_avg_sq"] = torch.ones((), dtype=torch.float64).expand(1)
    before = state["exp_avg_sq"]
    in_a_run(job.optimizer)
    torch.testing.assert_close(state["exp_avg_sq"], before / 3)


@CHANGES
def test_an_inference_tensor_as_learning_rate_is_refused_before_any_change(change):
    job = Job()
    with torch.inference_mode():
        job.optimizer.param_groups[1]["lr"] = torch.tensor(1e-2)
    job.assert_untouched_by(change, TypeError, "the optimizer's lr is an inference tensor")


@IN_PLACE
def test_an_expanded_tensor_in_the_state_is_refused_by_those_who_would_change_it_in_place(change):
    job = Job()
    job.optimizer.state[job.model[2].bias]["exp_avg_sq"] = torch.ones((), dtype=torch.float64).expand(1, 3)
    job.assert_untouched_by(change, TypeError, "exp_avg_sq is an expanded tensor")


@CHANGES
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("two", "exp_avg_sq must be a tensor, got str"),
        (torch.ones(1, dtype=torch.int64), r"exp_avg_sq must be a floating-point tensor, got torch\.int64"),
    ],
)
def test_state_that_is_no_tensor_of_numbers_is_refused_before_any_change(change, value, message):
    job = Job()
    job.optimizer.state[job.model[2].bias]["exp_avg_sq"] = value
    job.assert_untouched_by(change, TypeError, message)


class Stubborn(torch.Tensor):
    """A tensor of another class, that can be copied but not multiplied in place where it has one entry."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.Tensor.mul_ and args[0].numel() == 1:
            raise RuntimeError("cannot be multiplied")
        return super().__torch_function__(function, types, args, kwargs or {})


def stubborn(job, *parameters):
    for parameter in parameters:
        state = job.optimizer.state[parameter]
        state["exp_avg_sq"] = state["exp_avg_sq"].as_subclass(Stubborn)


@CHANGES
def test_a_state_of_another_class_that_fails_leaves_everything_as_it_was(change):
    """The first of them has been multiplied by then, by a factor that cannot be divided out exactly."""
    job = Job()
    stubborn(job, job.model[0].weight, job.model[2].bias)
    job.assert_untouched_by(change, RuntimeError, "cannot be multiplied")


@CHANGES
def test_the_optimizers_before_one_that_fails_are_brought_back(change):
    one, two = Job(), Job()
    stubborn(two, two.model[2].bias)
    before = [job.snapshot() for job in (one, two)]
    held = [state["exp_avg_sq"].clone() for state in one.optimizer.state.values()]
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        change([one.optimizer, two.optimizer], model=[one.model, two.model], ema=[one.average, two.average])
    assert two.snapshot() == before[1]
    assert snapshot(one.model, one.average) == before[0][1:]
    assert one.optimizer.param_groups[0]["lr"] == 1e-3
    for state, v in zip(one.optimizer.state.values(), held, strict=True):  # multiplied and divided again
        torch.testing.assert_close(state["exp_avg_sq"], v, rtol=1e-15, atol=0)


@CHANGES
def test_an_interrupt_among_the_multiplications_comes_after_the_last_of_them(change, monkeypatch):
    job, expected = Job(), Job()
    rescale_(expected.optimizer, 3, model=expected.model, ema=expected.average)
    multiply, calls = torch._foreach_mul_, []

    def interrupted(tensors, factors):
        multiply(tensors, factors)
        calls.append(len(tensors))
        if len(calls) == 1:
            raise KeyboardInterrupt

    if change is not in_a_run:  # which is undone where it cannot be returned
        monkeypatch.setattr(torch, "_foreach_mul_", interrupted)
        with pytest.raises(KeyboardInterrupt):
            change(job.optimizer, model=job.model, ema=job.average)
        assert len(calls) == 2  # float64 moments and float32 counters
        held = [dict(state) for state in job.optimizer.state.values()]
        for one, other in zip(held, expected.optimizer.state.values(), strict=True):
            assert all(torch.equal(one[key], other[key]) for key in other)
        assert (job.average.decay, job.model[1].momentum) == (expected.average.decay, expected.model[1].momentum)
        return
    before = snapshot(job.model, job.average), job.optimizer.state_dict()
    held = [state["exp_avg_sq"].clone() for state in job.optimizer.state.values()]
    monkeypatch.setattr(torch, "_foreach_mul_", interrupted)
    with pytest.raises(KeyboardInterrupt):
        change(job.optimizer, model=job.model, ema=job.average)
    assert snapshot(job.model, job.average) == before[0]
    assert job.optimizer.state_dict()["param_groups"] == before[1]["param_groups"]
    for state, v in zip(job.optimizer.state.values(), held, strict=True):
        torch.testing.assert_close(state["exp_avg_sq"], v, rtol=1e-15, atol=0)


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


def run_of(optimizer):
    """A run that owns its state, as after a step, and then changes."""
    run = Run(optimizer, tuned_at=8, batch_size=8)
    run.batch_size = 32
    return run


@pytest.mark.parametrize("change", [lambda optimizer: rescale_(optimizer, 4), run_of])
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
def test_counters_that_share_their_memory_are_divided_once(alias, change):
    optimizer, counter = adam(), torch.tensor(8.0)
    set_steps(optimizer, [counter, alias(counter)])
    change(optimizer)
    assert [state["step"].item() for state in optimizer.state.values()] == [2.0, 2.0]


def test_aliases_in_a_checkpoint_of_a_run_are_multiplied_once_too():
    optimizer = adam()
    Run(optimizer, tuned_at=8, batch_size=32)
    counter = torch.tensor(2.0)
    set_steps(optimizer, [counter, counter.view(())])
    saved = optimizer.state_dict()
    assert [state["step"].item() for state in saved["state"].values()] == [8.0, 8.0]
    assert counter.item() == 2.0


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


# ---- codes and scales, whole numbers


class AdamW8bit(torch.optim.Optimizer):
    """bitsandbytes' by its name and keys: codes of 8 bits, a table of them, a scale for each block of 4."""

    __module__ = "bitsandbytes.optim.adamw"

    def __init__(self, params, lr=1e-3, betas=(0.98, 0.999)):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": 1e-8, "weight_decay": 0.1})

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                codes = torch.arange(p.numel(), dtype=torch.uint8)
                table, scales = torch.linspace(0, 1, 256), torch.rand(p.numel() // 4) + 0.5
                state = self.state[p]
                state["step"] = state.get("step", 0) + 1
                for i in (1, 2):
                    state |= {f"state{i}": codes.clone(), f"qmap{i}": table, f"absmax{i}": scales * i}


def quantised():
    torch.manual_seed(0)
    optimizer = AdamW8bit([nn.Parameter(torch.zeros(4, 4))])
    optimizer.step()
    (state,) = optimizer.state.values()
    state["step"] = 10
    return optimizer, state


@pytest.mark.parametrize("change", [lambda optimizer: rescale_(optimizer, 4), run_of])
def test_of_codes_and_scales_the_scales_are_converted(change):
    optimizer, state = quantised()
    before = {key: value.clone() for key, value in state.items() if key != "step"}
    change(optimizer)
    (state,) = optimizer.state.values()
    for key, value in before.items():
        assert torch.equal(state[key], value / 4 if key == "absmax2" else value), key
    assert (state["step"], type(state["step"])) == (2, int)


def test_codes_and_scales_of_a_run_are_saved_and_loaded_in_the_scripts_units():
    optimizer, state = quantised()
    before = {key: value.clone() if key != "step" else value for key, value in state.items()}
    run = Run(optimizer, tuned_at=8, batch_size=32)
    saved = optimizer.state_dict()
    for key, value in before.items():
        assert torch.equal(torch.as_tensor(saved["state"][0][key]), torch.as_tensor(value)), key
    other = AdamW8bit([nn.Parameter(torch.zeros(4, 4))])
    Run(other, tuned_at=8, batch_size=16)
    other.load_state_dict(saved)
    (loaded,) = other.state.values()
    assert torch.equal(loaded["absmax2"], before["absmax2"] / 2)
    assert loaded["step"] == 5
    assert torch.equal(saved["state"][0]["absmax2"], before["absmax2"])
    run.batch_size = 8
    assert torch.equal(state["absmax2"], before["absmax2"])
    assert run.clock == 10


class Packed(torch.Tensor):
    """torchao's way: codes and scales in one tensor of a class of its own."""

    @staticmethod
    def __new__(cls, codes, scale):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return cls(args[0].codes, args[0].scale)
        if function is torch.ops.aten.clone.default:
            return cls(args[0].codes.clone(), args[0].scale.clone())
        raise NotImplementedError(f"{function} of packed tensors")


@pytest.mark.parametrize("change", [lambda optimizer: rescale_(optimizer, 4), run_of])
def test_of_packed_tensors_the_scale_is_converted(change):
    optimizer = adam()
    codes, scales = torch.arange(6, dtype=torch.uint8).view(2, 3), torch.tensor([0.5, 0.25])
    weight = next(iter(optimizer.state.values()))
    weight["exp_avg_sq"] = Packed(codes.clone(), scales.clone())
    change(optimizer)
    assert torch.equal(weight["exp_avg_sq"].codes, codes)
    assert torch.equal(weight["exp_avg_sq"].scale, scales / 4)


@pytest.mark.parametrize("counter", [10, torch.tensor(10)])
def test_whole_counters_are_rounded_and_exact_on_the_way_back_and_in_checkpoints(counter):
    """10 steps are 2.5 at 4 times the batch size, and 2.5 is not rounded twice."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    train(model, optimizer, 2)
    for state in optimizer.state.values():
        state["step"] = counter.clone() if isinstance(counter, torch.Tensor) else counter
    run = Run(optimizer, tuned_at=8, batch_size=32)
    live = optimizer.state[model[2].bias]
    assert (live["step"], type(live["step"])) == (2, type(counter))
    assert [state["step"] for state in optimizer.state_dict()["state"].values()] == [10] * 6
    run.batch_size = 24  # 3 1/3
    assert live["step"] == 3
    run.batch_size = 16
    assert live["step"] == 5
    run.batch_size = 8
    assert [state["step"] for state in optimizer.state.values()] == [10] * 6
