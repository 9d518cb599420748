"""Lightning: a callback that keeps a run's dynamics when its global batch size changes.

    global batch size = batch size of the data loader * accumulate_grad_batches * data-parallel devices

The callback compares it with the batch size that the optimizers' numbers are for, before the first batch of every
optimizer step: at the start of a fit, after a checkpoint of another batch size was resumed, and whenever somebody
changes it in mid-run. Where it differs by ``kappa``, everything is converted with `rootscale.training.rescale_`.

The numbers in the script (the module's, the callbacks', the Trainer's) are those of the first batch size of the run,
in every script that resumes it.
"""

try:
    import lightning.pytorch  # noqa: F401
    from lightning.pytorch.callbacks import EMAWeightAveraging  # noqa: F401
except ImportError as error:
    raise ImportError(
        "rootscale.integrations.lightning needs Lightning 2.6 or newer: pip install 'rootscale[lightning]'"
    ) from error

from rootscale.integrations.lightning.batches import global_batch_size
from rootscale.integrations.lightning.callback import RescaleCallback
from rootscale.integrations.lightning.sample_clock import SampleClockCallback

__all__ = ["RescaleCallback", "SampleClockCallback", "global_batch_size"]
