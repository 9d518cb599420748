"""What the loggers of a Lightning Trainer are told: changes at once, and the samples seen with every step."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule, Trainer

from rootscale.changes import Changes
from rootscale.tracking import SAMPLES, numbers

__all__ = ["log_changes", "log_samples"]

_STEP = "step"  # the name that Lightning takes for the step of all that is logged with it


def log_changes(trainer: Trainer, changes: Changes, samples: float, by_samples: bool) -> None:
    """Give every logger the new values, when they are made: the next logs may be many steps away.

    Args:
        trainer: of the fit.
        changes: what was converted.
        samples: seen until now.
        by_samples: whether they are the step.
    """
    step = int(samples) if by_samples else trainer.fit_loop.epoch_loop._batches_that_stepped
    for logger in trainer.loggers:
        logger.log_metrics({**numbers(changes), SAMPLES: samples}, step=step)


def log_samples(trainer: Trainer, module: LightningModule, samples: float, by_samples: bool, epoch: bool) -> None:
    """Log the samples seen, beside what the module logs; for the loggers alone.

    Args:
        trainer, module: of the fit.
        samples: seen until now.
        by_samples: whether they are also the step of what is logged.
        epoch: whether this is the end of an epoch of training or validation, not of a batch.
    """
    if not trainer.loggers or trainer.sanity_checking:
        return
    value = torch.tensor(samples, dtype=torch.float64)  # in float32 the 16,777,217th would be lost
    for name in (SAMPLES, _STEP) if by_samples else (SAMPLES,):
        if name == _STEP or not epoch:
            module.log(name, value, on_step=not epoch, on_epoch=epoch, batch_size=1)
