"""Training on a GPU by CUDA graphs, in bfloat16 and channels_last, compiled where that works.

A step of a small net is hundreds of kernels of a few microseconds each; launching them one by one takes longer than
running them. A graph launches all of them at once: sampling, augmentation, forward, backward and optimizer. Learning
rates are tensors that the graph reads; everything else is part of it, so that a change of batch size makes a new graph.
An optimizer that cannot read a tensor, such as torch's Muon, has its learning rate in the graph as well: while that
changes, steps are run one kernel at a time. Several seeds are several graphs on streams of their own: at small batch
sizes they share the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rootscale.lab.compiled import can_compile, fastest_convolutions, try_compile
from rootscale.lab.learner_eager import EagerLearner
from rootscale.lab.objective import Batches, Objective, PerSample, as_is
from rootscale.lab.replicas import make_replicas
from rootscale.lab.several import parts_of
from rootscale.training.adapters import make_optimizer

if TYPE_CHECKING:
    from rootscale.changes import Changes
    from rootscale.lab.settings import Setup
    from rootscale.lab.task import Task
    from rootscale.rules import Rule

#: Options of an optimizer by which it takes a tensor as learning rate without looking at its value.
READS_TENSORS = {"capturable", "fused"}
#: Steps that are run one kernel at a time before the graph is recorded: they make the optimizer's state and workspaces.
EAGER_STEPS = 3


class GraphLearner:
    """One replica, trained by a CUDA graph of the step of an `EagerLearner`.

    Args:
        task: what is learned.
        seed: of the initialization.
        setup: how; ``amp`` decides whether the model runs in bfloat16.
        compile: whether model and loss go through ``torch.compile``.
    """

    def __init__(self, task: Task, seed: int, setup: Setup, compile: bool = True) -> None:
        self.device = torch.device(setup.device)
        replicas = make_replicas(task, [seed], self.device)
        replicas.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        wrap = as_is
        if compile and can_compile():
            torch._dynamo.config.cache_size_limit = max(64, torch._dynamo.config.cache_size_limit)
            wrap = try_compile
        objective = Objective(task, replicas, self.device, bool(setup.amp), wrap)
        self._eager = EagerLearner(objective, setup.micro, partial(make_optimizer, capturable=True))
        self._make_capturable()
        self._graph: torch.cuda.CUDAGraph | None = None
        self._warm_steps = 0
        self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def _make_capturable(self) -> None:
        """Let a graph hold the optimizer's step, and read the learning rates from tensors where it can."""
        for optimizer in parts_of(self._eager.optimizer):
            for group in optimizer.param_groups if READS_TENSORS & set(optimizer.defaults) else ():
                group["capturable"] = True
                group["lr"] = torch.tensor(float(group["lr"]), device=self.device)

    def _set_learning_rates(self, eta: float) -> bool:
        """Set them, and return whether one has changed that is a part of the graph."""
        changed = False
        for group, rate in zip(self._eager.optimizer.param_groups, self._eager.rates(eta), strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            elif group["lr"] != rate:
                group["lr"], changed = rate, True
        return changed

    def join(self) -> None:
        """Let the present stream wait for the steps that are under way."""
        torch.cuda.current_stream(self.device).wait_stream(self._stream)

    def _forget(self) -> None:
        """Drop the graph: the next steps record another one."""
        self.join()
        self._graph, self._warm_steps = None, 0

    # -- training -----------------------------------------------------------------------------------------------

    @property
    def replicas(self) -> int:
        """Return how many replicas there are: one."""
        return 1

    @property
    def passes(self) -> int:
        """Return how many batches a step takes: two for SVAG."""
        return self._eager.passes

    def rescale(self, kappa: float, rule: Rule, ell: float = 1.0, forward_kappa: float | None = None) -> Changes:
        """Convert to another batch size; the next steps record a new graph."""
        self._forget()
        return self._eager.rescale(kappa, rule, ell, forward_kappa)

    def zero_state(self) -> None:
        """Forget the optimizer's state; the next steps record a new graph."""
        self._forget()
        self._eager.zero_state()

    def step(self, batches: Batches, eta: float, clip: float | None = None) -> None:
        """Take one step; returns before it is done."""
        eager, svag = self._eager, self._eager.svag
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        for index, uniforms in batches:  # made on another stream: keep their memory until this one has used it
            index.record_stream(self._stream)
            if uniforms is not None:
                uniforms.record_stream(self._stream)
        with torch.cuda.stream(self._stream):
            if self._set_learning_rates(eta):
                self._graph, self._warm_steps = None, 0
            eager.count_step()
            if self._warm_steps < EAGER_STEPS:
                self._warm_steps += 1
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
            if svag is not None:
                svag.done += 1

    def _record(self, batches: Batches, clip: float | None) -> None:
        """Record a step on batches of this shape, without taking it."""
        optimizer, svag = self._eager.optimizer, self._eager.svag
        self._held = [(index.clone(), None if uniforms is None else uniforms.clone()) for index, uniforms in batches]
        done = None if svag is None else svag.done
        optimizer.zero_grad()
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            self._update(self._held, clip)
        self._graph = graph
        if svag is not None and done is not None:
            svag.done = done

    def _update(self, batches: Batches, clip: float | None) -> None:
        size = batches[0][0].shape[1]
        with fastest_convolutions(min(size, self._eager.micro or size)):
            self._eager.update(batches, clip)

    # -- what looks at the parameters waits for the steps -------------------------------------------------------

    @property
    def trained(self) -> Sequence[Tensor]:
        """Return the parameters that are trained."""
        self.join()
        return self._eager.trained

    def step_loss(self) -> Tensor | None:
        """Return the mean loss of the steps since this was last called; None where there were none."""
        self.join()
        return self._eager.step_loss()

    def means(
        self,
        x: Tensor,
        y: Tensor,
        functions: Mapping[str, PerSample],
        train: bool = False,
        statistics: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return the means over samples of functions of outputs and targets, in eval mode or in train mode."""
        self.join()
        return self._eager.means(x, y, functions, train, statistics)

    def gradient(self, x: Tensor, y: Tensor) -> list[Tensor]:
        """Return the gradient of the mean loss of these samples, in train mode."""
        self.join()
        return self._eager.gradient(x, y)

    def roots(self) -> list[Tensor] | None:
        """Return ``sqrt(v_hat) + eps`` for each trained parameter: empty before a step, None for optimizers without."""
        self.join()
        return self._eager.roots()

    def replica(self, r: int) -> nn.Module:
        """Return a copy of the model (of its average, where the plan has an EMA), in eval mode."""
        self.join()
        return self._eager.replica(r)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a step changes."""
        self.join()
        return self._eager.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, which is copied; the next steps record a new graph."""
        self._forget()
        self._eager.load_state_dict(state)
        self._make_capturable()


class SideBySide:
    """Several replicas, each with a graph and a stream of its own."""

    def __init__(self, learners: Sequence[GraphLearner]) -> None:
        self._learners = list(learners)

    @property
    def replicas(self) -> int:
        """Return how many there are."""
        return len(self._learners)

    @property
    def passes(self) -> int:
        """Return how many batches a step takes: two for SVAG."""
        return self._learners[0].passes

    @property
    def trained(self) -> Sequence[Tensor]:
        """Return the parameters of all replicas, stacked anew."""
        return _stacked([[p.detach() for p in learner.trained] for learner in self._learners])

    def rescale(self, kappa: float, rule: Rule, ell: float = 1.0, forward_kappa: float | None = None) -> Changes:
        """Convert all replicas to another batch size."""
        changes = [learner.rescale(kappa, rule, ell, forward_kappa) for learner in self._learners]
        return changes[0]

    def zero_state(self) -> None:
        """Forget the optimizers' state."""
        for learner in self._learners:
            learner.zero_state()

    def step(self, batches: Batches, eta: float, clip: float | None = None) -> None:
        """Take one step of every replica, at once."""
        for r, learner in enumerate(self._learners):
            own = [(index[r : r + 1], None if u is None else u[r : r + 1]) for index, u in batches]
            learner.step(own, eta, clip)

    def step_loss(self) -> Tensor | None:
        """Return the mean loss of the steps since this was last called; None where there were none."""
        each = [loss for learner in self._learners if (loss := learner.step_loss()) is not None]
        return torch.cat(each) if each else None

    def means(
        self,
        x: Tensor,
        y: Tensor,
        functions: Mapping[str, PerSample],
        train: bool = False,
        statistics: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return the means over samples of functions of outputs and targets, in eval mode or in train mode."""
        each = [learner.means(x, y, functions, train, statistics) for learner in self._learners]
        return {name: torch.cat([one[name] for one in each]) for name in each[0]}

    def gradient(self, x: Tensor, y: Tensor) -> list[Tensor]:
        """Return the gradient of the mean loss of these samples, in train mode."""
        return _stacked([learner.gradient(x, y) for learner in self._learners])

    def roots(self) -> list[Tensor] | None:
        """Return ``sqrt(v_hat) + eps`` for each trained parameter: empty before a step, None for optimizers without."""
        each = [roots for learner in self._learners if (roots := learner.roots()) is not None]
        return _stacked(each) if len(each) == len(self._learners) else None

    def replica(self, r: int) -> nn.Module:
        """Return a copy of the model of one replica (of its average, where the plan has an EMA), in eval mode."""
        return self._learners[r].replica(0)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a step changes, for each replica."""
        return {"replicas": [learner.state_dict() for learner in self._learners]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, which is copied."""
        for learner, own in zip(self._learners, state["replicas"], strict=True):
            learner.load_state_dict(own)


def _stacked(rows: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [torch.stack(tensors) for tensors in zip(*rows, strict=True)]
