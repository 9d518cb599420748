"""The groups, the state and the checkpoints of an optimizer whose steps say how many samples they have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor

from rootscale.hparams import average, nonnegative, positive
from rootscale.training import clock_kernels
from rootscale.training.clock import START, Clock, advance, largest_ratio
from rootscale.training.clock_kernels import Bucket
from rootscale.training.markers import same, units_of
from rootscale.training.shards import local

__all__ = ["FLOORS", "SampleClock", "Samples"]

#: A count for all groups, or one for each of them.
Samples = float | Tensor | Sequence[float | Tensor]
#: Where beta1 and beta2 stop when the batch is large. Large batches are single steps here and not a whole run, so that
#: beta1 may become shorter than in the rule: on the toy problem of the tests, with batches of 1 to 32, a floor of .9 is
#: off by more than .03 of the range, and .8 by .015.
FLOORS = (0.8, 0.9)


class SampleClock(torch.optim.Optimizer):
    """An optimizer whose hyperparameters and state belong to a reference batch, and whose steps may have any other."""

    _moments: tuple[str, str]  # torch's names of m and v; an empty one is not there
    #: Options of torch's optimizers that are not here, with the values that mean so.
    _refused: ClassVar[dict[str, Any]] = {"differentiable": False}

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        self._forget()
        super().__init__(params, defaults)

    def _forget(self) -> None:
        self._pending: float | Tensor | None = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, with a ``reference_batch`` of its own if it has one."""
        self._check({**self.defaults, **param_group})
        super().add_param_group(param_group)

    def _check(self, group: dict[str, Any]) -> None:
        if isinstance(group["lr"], Tensor) and not group["capturable"]:
            raise ValueError("a tensor as lr needs capturable=True")
        for name in ("lr", "eps", "weight_decay"):
            nonnegative(name, group[name])
        for name, beta in zip(("beta1", "beta2"), self._betas(group), strict=True):
            average(name, beta)
        positive("reference_batch", group["reference_batch"])
        if not isinstance(group["floors"], tuple | list) or len(group["floors"]) != 2:
            raise ValueError(f"floors must be two numbers, for beta1 and beta2, got {group['floors']!r}")
        for floor in group["floors"]:
            average("each of floors", floor)
        for name, value in self._refused.items():
            if group.get(name, value) != value:
                raise ValueError(f"{type(self).__name__} on the sample clock has no {name}, got {group[name]!r}")
        if group.get("fused") and (group["capturable"] or group.get("amsgrad")):
            raise ValueError("torch's fused kernel takes neither capturable nor amsgrad here; leave fused=None")

    @staticmethod
    def _check_units(group: dict[str, Any]) -> None:
        """Refuse the group of a checkpoint that says it is at another batch size than the reference batch."""
        size, reference = units_of([group]).batch_size, group["reference_batch"]
        if size is not None and not same(size, float(reference)):
            raise ValueError(
                f"the state says that it is at batch size {size:.15g}, and reference_batch is {reference}: make the "
                f"optimizer with reference_batch={size:.15g}, or bring the run to {reference} by "
                "rescale_(optimizer, batch_size=...) before its state is saved; if reference_batch counts something "
                "else, such as tokens, delete rootscale_batch_size from the groups of the state"
            )

    @staticmethod
    def _betas(group: dict[str, Any]) -> tuple[float, float]:
        beta1, beta2 = group["betas"] if "betas" in group else (0.0, group["alpha"])
        return float(beta1), float(beta2)

    # How many samples a step has.

    def next_samples(self, samples: float | Tensor | None) -> None:
        """Set the samples of the next ``step()``, for loops whose call of ``step`` one cannot change."""
        self._pending = samples

    def add_samples(self, samples: float | Tensor) -> None:
        """Add to the samples of the next ``step()`` after a backward; ``zero_grad`` forgets them."""
        self.next_samples(samples if self._pending is None else self._pending + samples)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and the samples counted for them."""
        self._pending = None
        super().zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *, samples: Samples | None = None) -> Any:
        """Make one step.

        Args:
            closure: evaluates the loss again; it is called first.
            samples: how many samples the gradient is the mean of, over all ranks; a list has a number for each group. A
                group with 0 is left alone. With ``capturable`` a tensor is read when the step is made, so a CUDA graph
                follows it; that of the first step must be above 0.
        """
        loss = None
        if closure is not None:
            if not callable(closure):
                raise TypeError(f"closure must be a function, got {closure!r}; samples go by name: step(samples=...)")
            with torch.enable_grad():
                loss = closure()
        if samples is None:
            samples, self._pending = self._pending, None
        for group, k in zip(self.param_groups, self._ratios(samples), strict=True):
            if isinstance(k, Tensor):
                self._step_graphed(group, k)
            elif k:
                self._step_known(group, k)
        return loss

    @property
    def reference_steps(self) -> float:
        """How many reference batches have been seen, by the parameter that has seen most."""
        return max((float(state["clock"][0]) for state in self.state.values() if "clock" in state), default=0.0)

    def _ratios(self, samples: Samples | None) -> list[float | Tensor]:
        """Return the samples of each group over its reference batch; tensors for the groups that are capturable."""
        groups = self.param_groups
        if samples is None:
            if not self._is_filling():
                raise ValueError(
                    f"{type(self).__name__} on the sample clock needs the samples of its batch: call "
                    "step(samples=n), or next_samples(n) before step()"
                )
            samples = [group["reference_batch"] for group in groups]
        several = isinstance(samples, list | tuple)
        counts: Sequence[Any] = samples if several else [samples] * len(groups)  # type: ignore[assignment]
        if len(counts) != len(groups):
            raise ValueError(f"samples must be one number, or one for each of {len(groups)} groups, got {len(counts)}")
        return [self._ratio(group, count) for group, count in zip(groups, counts, strict=True)]

    def _ratio(self, group: dict[str, Any], count: float | Tensor) -> float | Tensor:
        reference = group["reference_batch"]
        if group["capturable"]:
            like: Any = {"dtype": torch.float64, "device": group["params"][0].device}
            if not isinstance(count, Tensor):  # it is filled in, which a graph that is being made allows
                count = torch.full((), nonnegative("samples", count), **like)
            return count.to(**like) / float(reference)
        k: float = nonnegative("samples", count.item() if isinstance(count, Tensor) else count) / reference
        limits = [largest_ratio(*pair) for pair in zip(self._betas(group), group["floors"], strict=True)]
        if k >= min(limits):
            which = limits.index(min(limits)) + 1
            raise ValueError(
                f"samples={k * reference:g} is {k:g} reference batches, and {k:g} (1 - beta{which}) must stay below 1: "
                f"give fewer than {min(limits) * reference:g} samples, or floors={FLOORS}"
            )
        return k

    def _is_filling(self) -> bool:
        """Whether this step only fills the state, as torch.distributed.checkpoint does before it loads one."""
        if self.state or any(float(group["lr"]) for group in self.param_groups):
            return False
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        return not any(bool(local(grad).count_nonzero()) for grad in grads)

    # The step of a group.

    def _step_known(self, group: dict[str, Any], k: float) -> None:
        beta1, beta2 = self._betas(group)
        for clock, states, bucket in self._buckets(group):
            if bucket.params[0].is_cuda and torch.cuda.is_current_stream_capturing():
                raise RuntimeError("a CUDA graph would repeat this number of samples for ever: give capturable=True")
            after, move = advance(clock, k, beta1, beta2, tuple(group["floors"]), "betas" in group)
            fuse = bool(bucket.m) and not bucket.largest and group["fused"] is not False
            make = clock_kernels.fused_ if fuse and clock_kernels.can_fuse(bucket.params[0]) else clock_kernels.foreach_
            make(bucket, group, after, move, k)
            stored, step = tuple(after), torch.tensor(after.steps, dtype=torch.float32)
            for state in states:  # one tensor for all; in a checkpoint each has its own
                state["clock"], state["step"] = stored, step

    def _step_graphed(self, group: dict[str, Any], k: Tensor) -> None:
        beta1, beta2 = self._betas(group)
        for _, states, bucket in self._buckets(group):
            clocks = [state["clock"] for state in states]
            clock = Clock(*torch.stack(clocks, 1))
            after, move = advance(clock, k, beta1, beta2, tuple(group["floors"]), "betas" in group)
            clock_kernels.graphed_(bucket, group, after, move, k)
            numbers: Any = tuple(after)
            torch._foreach_copy_(clocks, torch.stack(numbers, 1).unbind())
            torch._foreach_copy_([state["step"] for state in states], list(after.steps))  # type: ignore[arg-type]

    def _buckets(self, group: dict[str, Any]) -> Iterator[tuple[Clock, list[dict[str, Any]], Bucket]]:
        """Yield the parameters that have gradients: those that share a clock, their states and what is to be moved."""
        found: dict[Any, tuple[list[dict[str, Any]], Bucket]] = {}
        moments = [(i, name) for i, name in enumerate((*self._moments, "max_exp_avg_sq"), 2) if name]
        latest: Any = None
        for parameter in group["params"]:
            grad = parameter.grad
            if grad is None:
                continue
            if grad.layout is not torch.strided:
                raise TypeError(f"{type(self).__name__} needs dense gradients, got a {grad.layout} one")
            state = self.state[parameter] or self._new_state(parameter, group)
            clock = START if group["capturable"] else state["clock"]
            key = clock, parameter.device, parameter.dtype, type(parameter)
            if key != latest:  # one comparison is cheaper than a hash, and most parameters share a clock
                latest = key
                states, bucket = found.setdefault(key, ([], Bucket([], [], [], [], [])))
            states.append(state)
            bucket.params.append(parameter)
            bucket.grads.append(-grad if group["maximize"] else grad)
            for i, name in moments:
                if name in state:
                    bucket[i].append(state[name])
        for (clock, _, dtype, kind), (states, bucket) in found.items():
            plain = kind is torch.nn.Parameter and not dtype.is_complex
            yield Clock(*clock), states, bucket if plain else Bucket(*([*map(_real, part)] for part in bucket))

    def _new_state(self, parameter: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        state: dict[str, Any] = self.state[parameter]
        state.update(_timed(START, parameter, group))
        for key in (*self._moments, *(["max_exp_avg_sq"] if group.get("amsgrad") else [])):
            if key:
                state[key] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state

    # Checkpoints.

    @torch.no_grad()
    def settle(self) -> None:
        """Bring what is stored to the units of the reference batch; the optimizer goes on as before.

        ``m`` and ``v`` are kept over scalars of their own between two checkpoints. Afterwards these are 1.
        """
        for state in self.state.values():
            if "clock" not in state:
                continue
            clock = state["clock"]
            for key, factor in zip(self._moments, clock[3:], strict=True):
                if key and (isinstance(factor, Tensor) or factor != 1):
                    local(state[key]).mul_(factor)
            if isinstance(clock, Tensor):
                clock[3:] = 1
            else:
                state["clock"] = (*clock[:3], 1.0, 1.0)
                state["step"] = torch.tensor(clock[0], dtype=torch.float32)

    def state_dict(self) -> dict[str, Any]:
        """Return the state in the units of the reference batch, where torch's optimizer of that batch can load it."""
        self.settle()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a checkpoint of this optimizer, or one of torch's that was made at the reference batch.

        As always in torch, the hyperparameters of the checkpoint win. One of torch's has no ``reference_batch`` and no
        ``floors``: those of this optimizer stay.
        """
        own = [{key: group[key] for key in ("reference_batch", "floors")} for group in self.param_groups]
        saved = [{**mine, **group} for mine, group in zip(own, state_dict["param_groups"], strict=False)]
        for group in saved:
            if group.get("capturable") or group.get("amsgrad"):  # torch fuses these too
                group["fused"] = None
            self._check({**self.defaults, **group})
            self._check_units(group)
        if len(saved) == len(state_dict["param_groups"]):
            state_dict = {**state_dict, "param_groups": saved}
        super().load_state_dict(state_dict)
        ids = chain.from_iterable(group["params"] for group in saved)
        for group in self.param_groups:
            for parameter, saved_id in zip(group["params"], ids, strict=False):
                if parameter in self.state:
                    clock = _clock_of(state_dict["state"][saved_id])
                    self.state[parameter].update(_timed(clock, parameter, group))

    def __setstate__(self, state: dict[str, Any]) -> None:  # of a copy, or in load_state_dict
        super().__setstate__(state)
        self._forget()
        for group in self.param_groups:
            for key, value in self.defaults.items():
                group.setdefault(key, value)


def _timed(clock: Sequence[Any], parameter: Tensor, group: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of a parameter's state that tell the time; tensors on its device, if that is capturable."""
    device = parameter.device if group["capturable"] else torch.device("cpu")
    step = torch.tensor(clock[0], dtype=torch.float32, device=device)
    graphed = torch.tensor(clock, dtype=torch.float64, device=device) if group["capturable"] else tuple(clock)
    return {"step": step, "clock": graphed}


def _clock_of(saved: dict[str, Any]) -> Sequence[float]:
    """Return the clock of a checkpoint; if another optimizer made it, or went on from it, that of its step counter."""
    clock, step = saved.get("clock", START), float(saved["step"])
    numbers: list[float] = clock.tolist() if isinstance(clock, Tensor) else list(clock)
    same = float(torch.tensor(numbers[0], dtype=torch.float32)) == step
    return numbers if same else [step, step, step, 1.0, 1.0]


def _real(tensor: Tensor) -> Tensor:
    """Return what this process holds of a tensor, as real numbers; moving them moves the tensor."""
    tensor = local(tensor)
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
