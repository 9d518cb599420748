"""The fast path on a GPU: the whole step as one CUDA graph, in bfloat16 and channels_last, compiled where that works.

A step of a small net is hundreds of kernels of a few microseconds each; launching them one by one takes longer than
running them. A graph launches all of them at once: sampling, augmentation, forward, backward and optimizer. Learning
rates are tensors that the graph reads; everything else is part of it, so that a change of batch size makes a new graph.
Several seeds are several graphs on streams of their own: at small batch sizes they share the GPU.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rootscale.changes import Changes
from rootscale.lab.learner import Batches, Learner, make_optimizer
from rootscale.lab.task import Task
from rootscale.rules import Rule

__all__ = ["FastLearner", "SideBySide", "fast_learner"]

#: Steps that are run one kernel at a time before the graph is recorded: they make the optimizer's state and workspaces.
EAGER_STEPS = 3
#: Batches up to this one try all of cuDNN's algorithms for their convolutions.
SHORT_TRY = 1024


def fast_learner(task: Task, seeds: Sequence[int], device: torch.device, **options: Any) -> Learner:
    """One replica, or several side by side; the options are those of `FastLearner`."""
    learners = [FastLearner(task, [seed], device, **options) for seed in seeds]
    return learners[0] if len(learners) == 1 else SideBySide(learners)


class FastLearner(Learner):
    """One replica, trained by a CUDA graph.

    Args:
        task, seeds, device, micro, amp: as for `Learner`.
        compile: whether model and loss go through ``torch.compile``.
    """

    def __init__(
        self,
        task: Task,
        seeds: Sequence[int],
        device: torch.device,
        *,
        micro: int | None = None,
        amp: bool = True,
        compile: bool = True,
    ) -> None:
        super().__init__(task, seeds, device, micro=micro, amp=amp)
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        maker = task.optimizer or partial(make_optimizer, capturable=True)
        self.optimizer = maker(self.trained, task.plan.optimizer)
        for group in self.optimizer.param_groups:
            group["capturable"] = True
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
        if compile and _can_compile():
            torch._dynamo.config.cache_size_limit = max(64, torch._dynamo.config.cache_size_limit)
            self.losses = _compiled(self.losses)  # type: ignore[method-assign]
            self.batch = _compiled(self.batch)  # type: ignore[method-assign]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._eager = 0
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def rescale(self, kappa: float, ell: float, rule: Rule) -> Changes:
        """As `Learner.rescale`; the next steps make a new graph."""
        self._forget()
        return super().rescale(kappa, ell, rule)

    def zero_state(self) -> None:
        """Forget the optimizer's state."""
        self._forget()
        super().zero_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; the next steps make a new graph."""
        self._forget()
        super().load_state_dict(state)
        for group in self.optimizer.param_groups:
            group["capturable"] = True
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32).to(self.device)

    def _forget(self) -> None:
        self.join()
        self._graph, self._eager = None, 0

    def join(self) -> None:
        """Let the present stream wait for the steps that are under way."""
        torch.cuda.current_stream(self.device).wait_stream(self._stream)

    def step(self, batches: Batches, eta: float, clip: float | None = None) -> None:
        """One step; returns before it is done."""
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        for index, uniforms in batches:  # made on another stream: keep their memory until this one has used it
            index.record_stream(self._stream)
            if uniforms is not None:
                uniforms.record_stream(self._stream)
        with torch.cuda.stream(self._stream):
            for group, ratio in zip(self.optimizer.param_groups, self.ratios, strict=True):
                group["lr"].fill_(eta * ratio)
            if self._eager < EAGER_STEPS:
                self._eager += 1
                self._update(batches, clip)
                return
            if self._graph is None:
                self._record(batches, clip)
            for (index, uniforms), (held_index, held_uniforms) in zip(batches, self._held, strict=True):
                held_index.copy_(index)
                if held_uniforms is not None and uniforms is not None:
                    held_uniforms.copy_(uniforms)
            assert self._graph is not None
            self._graph.replay()
            if self.svag is not None:
                self.svag.done += 1

    def _record(self, batches: Batches, clip: float | None) -> None:
        self._held = [(index.clone(), None if uniforms is None else uniforms.clone()) for index, uniforms in batches]
        done = None if self.svag is None else self.svag.done
        self.optimizer.zero_grad()
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            self._update(self._held, clip)
        self._graph = graph
        if self.svag is not None and done is not None:
            self.svag.done = done

    def _update(self, batches: Batches, clip: float | None) -> None:
        size = batches[0][0].shape[1]
        with _fastest_convolutions(min(size, self.micro or size)):
            super()._update(batches, clip)

    # What looks at the parameters waits for the steps.

    def means(
        self, x: Tensor, y: Tensor, functions: Mapping[str, Callable[[Any, Tensor], Tensor]], chunk: int = 4096
    ) -> dict[str, Tensor]:
        """As `Learner.means`."""
        self.join()
        return super().means(x, y, functions, chunk)

    def gradient(self, x: Tensor, y: Tensor) -> list[Tensor]:
        """As `Learner.gradient`."""
        self.join()
        return super().gradient(x, y)

    def replica(self, r: int) -> nn.Module:
        """As `Learner.replica`."""
        self.join()
        return super().replica(r)

    def state_dict(self) -> dict[str, Any]:
        """As `Learner.state_dict`."""
        self.join()
        return super().state_dict()


@contextmanager
def _fastest_convolutions(batch: int) -> Iterator[None]:
    """Let cuDNN try its algorithms for a convolution the first time it comes; a graph keeps the one it found.

    All of them for small batches, where a try is short and the best may not be among the first ten.
    """
    cudnn: Any = torch.backends.cudnn
    new = {"benchmark": True} | ({"benchmark_limit": 0} if batch <= SHORT_TRY and cudnn.is_available() else {})
    before = {name: getattr(cudnn, name) for name in new}
    try:
        for name, value in new.items():
            setattr(cudnn, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(cudnn, name, value)


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function through ``torch.compile``; as it is, which is said, where that fails."""
    now = torch.compile(function, dynamic=False)

    def call(*args: Any) -> Any:
        nonlocal now
        if now is function:
            return function(*args)
        try:
            return now(*args)
        except Exception as error:
            result = function(*args)  # raises the error again where it is the function's own
            reason = next((line for line in reversed(str(error).splitlines()) if "Error" in line), type(error).__name__)
            warnings.warn(f"torch.compile failed, which costs speed only: {reason.strip()}", stacklevel=2)
            now = function
            return result

    return call


def _can_compile() -> bool:
    """Whether torch.compile has what it needs; says so where not."""
    if importlib.util.find_spec("triton") is None:
        warnings.warn("torch.compile needs triton, which is missing: the model is run as it is", stacklevel=3)
        return False
    return True


class SideBySide(Learner):
    """Several replicas, each with a graph and a stream of its own."""

    def __init__(self, learners: Sequence[FastLearner]) -> None:
        self.learners = list(learners)
        first = self.learners[0]
        self.task, self.device, self.micro, self.amp = first.task, first.device, first.micro, first.amp
        self.data, self.seeds = first.data, [seed for learner in learners for seed in learner.seeds]

    @property
    def passes(self) -> int:
        """Batches in a step: two for SVAG."""
        return self.learners[0].passes

    @property
    def trained(self) -> list[Tensor]:  # type: ignore[override]
        """The parameters of all replicas, stacked anew."""
        for learner in self.learners:
            learner.join()
        return _stacked([[p.detach() for p in learner.trained] for learner in self.learners])

    def rescale(self, kappa: float, ell: float, rule: Rule) -> Changes:
        """As `Learner.rescale`, all replicas."""
        changes = [learner.rescale(kappa, ell, rule) for learner in self.learners]
        return changes[0]

    def zero_state(self) -> None:
        """Forget the optimizers' state."""
        for learner in self.learners:
            learner.zero_state()

    def step(self, batches: Batches, eta: float, clip: float | None = None) -> None:
        """One step of every replica, at once."""
        for r, learner in enumerate(self.learners):
            own = [(index[r : r + 1], None if u is None else u[r : r + 1]) for index, u in batches]
            learner.step(own, eta, clip)

    def means(
        self, x: Tensor, y: Tensor, functions: Mapping[str, Callable[[Any, Tensor], Tensor]], chunk: int = 4096
    ) -> dict[str, Tensor]:
        """As `Learner.means`."""
        each = [learner.means(x, y, functions, chunk) for learner in self.learners]
        return {name: torch.cat([one[name] for one in each]) for name in each[0]}

    def gradient(self, x: Tensor, y: Tensor) -> list[Tensor]:
        """As `Learner.gradient`."""
        return _stacked([learner.gradient(x, y) for learner in self.learners])

    def replica(self, r: int) -> nn.Module:
        """As `Learner.replica`."""
        return self.learners[r].replica(0)

    def state_dict(self) -> dict[str, Any]:
        """Of each replica."""
        return {"replicas": [learner.state_dict() for learner in self.learners]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        for learner, own in zip(self.learners, state["replicas"], strict=True):
            learner.load_state_dict(own)


def _stacked(rows: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [torch.stack(tensors) for tensors in zip(*rows, strict=True)]
