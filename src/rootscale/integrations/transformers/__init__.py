"""Hugging Face transformers: `TrainingArguments` for another batch size, and a `Trainer` that resumes at another one.

The policy is the same in both: **the run at the new batch size looks as if it had always had it.** Its arguments are
the old ones converted (`scale_training_arguments`), its steps are counted in the new unit, its checkpoints are ordinary
ones. So a switch in mid-run converts the checkpoint's step counter before the Trainer reads it (`resume`), from which
its place in the data follows. It converts the optimizer's state and schedule after they are loaded (`RescaleCallback`).
"""

from rootscale.integrations.transformers.arguments import (
    explain_training_arguments,
    global_batch_size,
    scale_training_arguments,
)
from rootscale.integrations.transformers.callback import RescaleCallback
from rootscale.integrations.transformers.checkpoints import resume
from rootscale.integrations.transformers.sample_clock import SampleClockMixin

__all__ = [
    "RescaleCallback",
    "SampleClockMixin",
    "explain_training_arguments",
    "global_batch_size",
    "resume",
    "scale_training_arguments",
]
