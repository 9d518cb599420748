"""Live PyTorch objects: `Run`, batch-size schedules on top of it, SVAG, noise, and the paper's optimizers."""

from rootscale.noise import advise
from rootscale.training.batch_schedule import BatchSchedule
from rootscale.training.grow import Grow
from rootscale.training.noise import NoiseMeter
from rootscale.training.persample import exact_noise
from rootscale.training.registering import register
from rootscale.training.rescale import rescale_
from rootscale.training.run import Run
from rootscale.training.sampler import ScheduledSampler
from rootscale.training.scheduled_run import ScheduledRun
from rootscale.training.scheduled_stream import ScheduledStream
from rootscale.training.stability import measure_stability
from rootscale.training.svag import SVAG

__all__ = [
    "SVAG",
    "BatchSchedule",
    "Grow",
    "NoiseMeter",
    "Run",
    "ScheduledRun",
    "ScheduledSampler",
    "ScheduledStream",
    "advise",
    "exact_noise",
    "measure_stability",
    "register",
    "rescale_",
]
