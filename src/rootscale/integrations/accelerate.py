"""Hugging Face accelerate: a `Run` of what ``accelerator.prepare`` returned, one that grows, and its trackers.

A prepared scheduler is stepped once for each process at every optimizer step (unless batches are split), because
accelerate takes its length to be counted in batches of one process. In a run its length is the script's: that of
``tuned_at``, whatever the number of processes is now.
"""

from __future__ import annotations

import warnings as python_warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar

import torch
from torch.utils.data import DataLoader

from rootscale.batch_size import BatchSize
from rootscale.changes import ScalingWarning
from rootscale.noise import Noise
from rootscale.tracking import SAMPLES, Running, Tracked, above_noise, numbers
from rootscale.training.grow import Grow
from rootscale.training.optimizers import bare_optimizers
from rootscale.training.run import Run, Size
from rootscale.verdict import Comparison

try:
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.scheduler import AcceleratedScheduler
    from accelerate.state import AcceleratorState
except ImportError as error:
    raise ImportError(
        f"rootscale.integrations.accelerate needs accelerate ({error}): pip install 'rootscale[accelerate]'"
    ) from error

__all__ = ["Growing", "global_batch_size", "log", "run"]

Item = TypeVar("Item")


def global_batch_size(accelerator: Accelerator, loader: DataLoader[Any]) -> BatchSize:
    """Return the samples of an optimizer step: per process x accumulation x processes.

    Args:
        accelerator: whose ``gradient_accumulation_steps`` is taken.
        loader: what ``accelerator.prepare`` returned.
    """
    total = getattr(loader, "total_batch_size", None)
    if not isinstance(total, int):
        raise ValueError(
            f"the batch size cannot be found in this {type(loader).__name__}: give a loader of accelerator.prepare, or "
            'the samples of an optimizer step over all processes, as batch_size=256 or "32x4x2"'
        )
    processes = int(accelerator.num_processes)
    return BatchSize(total // processes, int(accelerator.gradient_accumulation_steps), processes)


def run(
    accelerator: Accelerator,
    optimizer: Any,
    *,
    tuned_at: Size,
    batch_size: Size | DataLoader[Any] | None = None,
    scheduler: Any = None,
    interval: Literal["step", "epoch"] | None = None,
    **options: Any,
) -> Run:
    """Return a `Run` of prepared objects. ``accelerator.save_state`` and ``load_state`` need nothing else.

    >>> import torch
    >>> accelerator = Accelerator(cpu=True)
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    >>> loader = DataLoader(torch.randn(64, 2), batch_size=16)
    >>> model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    >>> follow = run(accelerator, optimizer, tuned_at=4, batch_size=loader)
    >>> follow.kappa, follow.values()["lr"], optimizer.param_groups[0]["lr"]
    (4.0, 0.002, 0.001)

    Args:
        accelerator: the one that prepared them.
        optimizer: what ``accelerator.prepare`` returned, or bare ones; one or several.
        tuned_at: the batch size that the script's numbers belong to. As a layout, ``"32x1x8"``, it says that the
            schedule's length is that of a script of accelerate on so many processes, which steps it once for each; as a
            number, that the length is in optimizer steps.
        batch_size: that of now, over processes and accumulation; or the prepared data loader, from which it is found.
        scheduler: what ``accelerator.prepare`` returned, or bare ones; one or several.
        interval: ``"epoch"`` if the loop steps its schedulers once an epoch. None is every optimizer step for prepared
            ones, and found from the calls for others.
        options: the others of `Run`: ``model``, ``ema``, ``rule``, ``loss``.
    """
    tuned, processes = BatchSize.of(tuned_at), int(AcceleratorState().num_processes)
    found = global_batch_size(accelerator, batch_size) if isinstance(batch_size, DataLoader) else batch_size
    if isinstance(found, BatchSize) and found.plain and not tuned.laid_out:
        found = BatchSize(found.total)
    given = scheduler if isinstance(scheduler, list | tuple) else [] if scheduler is None else [scheduler]
    wrapped = [held for held in given if isinstance(held, AcceleratedScheduler)]
    made = Run(
        [_inner(held) for held in _prepared(optimizer)],
        tuned_at=tuned,
        batch_size=found,
        scheduler=None if scheduler is None else [_inner(held) for held in given],
        interval=interval,
        **options,
    )
    driven = {id(held.scheduler): held for held in made.schedulers}
    for held in wrapped:
        if held.step_with_optimizer and interval != "epoch":
            one = driven[id(held.scheduler)]
            one.interval = "step"
            one.per_step = float(1 if held.split_batches else tuned.workers)
            one.per_call = one.per_step / (1 if held.split_batches else processes)
    return made


class Growing(Grow):
    """Grow the batch of a run of accelerate, by accumulation, with the noise that it shows while it trains.

    The loop goes over `batches` instead of the loader, inside ``accelerator.accumulate`` as ever::

        growing = Growing(accelerator, run(accelerator, optimizer, tuned_at=8, batch_size=loader), most=256)
        accelerator.register_for_checkpointing(growing)
        for batch in growing.batches(loader):
            with accelerator.accumulate(model):
                ...

    The data loader stays as it is: a checkpoint in mid-epoch goes on with ``accelerator.skip_first_batches``, whatever
    the batch had grown to.

    Args:
        accelerator: with ``gradient_accumulation_steps`` of 2 or more, or several processes.
        run: of its prepared objects.
        options: the others of `Grow`: ``share``, ``factor``, ``most``, ``every``, ``window``.
    """

    def __init__(self, accelerator: Accelerator, run: Run, **options: Any) -> None:
        steps, processes = int(accelerator.gradient_accumulation_steps), int(accelerator.num_processes)
        if steps < 2 and processes == 1:
            raise ValueError(
                "Growing needs gradient_accumulation_steps >= 2 or several processes to tell noise from gradient: with "
                "half the batch size in the loader and gradient_accumulation_steps=2 the batch is as it was"
            )
        if accelerator.scaler is not None:
            raise ValueError("Growing does not work with a GradScaler (mixed_precision='fp16'); bf16 does")
        self._accelerator, self._forward = accelerator, int(run.batch_size) // steps
        self._clock = run.clock  # when the latest step ended
        group = torch.distributed.group.WORLD if processes > 1 else None
        super().__init__(run, process_group=group, **options)

    def batches(self, loader: Iterable[Item]) -> Iterator[Item]:
        """Yield the batches of a prepared loader, and end a step where accelerate has synchronized the gradients."""
        for batch in loader:
            yield batch
            self._finish()

    def _finish(self) -> None:
        """End a step that was made and not ended yet."""
        if self.run.clock != self._clock:
            self._clock = self.run.clock
            self.step(whole=not self._accelerator.gradient_state.end_of_dataloader)

    def state_dict(self) -> dict[str, Any]:
        """Return where the run is, after the step that the loop has just made."""
        self._finish()
        return super().state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where a run was saved, at the batch size that it had grown to."""
        super().load_state_dict(state_dict)
        self._clock = self.run.clock

    def can_begin(self, size: int) -> bool:
        """Return whether accelerate, which counts batches, can end such a step whole."""
        return int(self._accelerator.step) % (size // self._forward) == 0

    def went_to(self, size: int) -> None:
        """Accumulate that much."""
        self._accelerator.gradient_accumulation_steps = size // self._forward


def log(
    accelerator: Accelerator,
    *found: Tracked | Running | Noise | Comparison | Mapping[str, float],
    samples: float,
    batch_size: float | None = None,
) -> None:
    """Log what was found to all trackers of an accelerator, at the number of samples seen as the step.

    >>> log(Accelerator(cpu=True), {"loss": 0.5}, samples=4096)

    Args:
        accelerator: made with ``log_with=...``, after ``init_trackers``.
        found: a `Run`, for what its steps really use; what a `NoiseMeter` estimated, a verdict, or numbers by name.
        samples: seen until now, over all processes: ``run.samples``. As the step they let curves of different batch
            sizes continue each other.
        batch_size: over processes and accumulation; if it exceeds a noise scale that is logged, that is a warning.
    """
    accelerator.log({**numbers(*found), SAMPLES: float(samples)}, step=int(samples))
    for one in found:
        message = above_noise(one, batch_size) if isinstance(one, Noise) and batch_size is not None else ""
        if message and accelerator.is_main_process:
            python_warnings.warn(message, ScalingWarning, stacklevel=2)


def _prepared(optimizer: Any) -> list[Any]:
    """Return the optimizers that were given; one that is prepared holds another, and is no container of several."""
    return [optimizer] if isinstance(optimizer, AcceleratedOptimizer) else list(bare_optimizers(optimizer))


def _inner(prepared: Any) -> Any:
    """Return what ``accelerator.prepare`` was given."""
    if isinstance(prepared, AcceleratedOptimizer):
        return _inner(prepared.optimizer)
    return prepared.scheduler if isinstance(prepared, AcceleratedScheduler) else prepared
