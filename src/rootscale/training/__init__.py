"""Live PyTorch objects: runs converted in place, batch-size schedules, SVAG, noise, and the paper's optimizers."""

from rootscale.noise import advise
from rootscale.training.batch_schedule import BatchSchedule
from rootscale.training.noise import NoiseMeter
from rootscale.training.persample import exact_noise
from rootscale.training.registering import register
from rootscale.training.rescale import rescale_
from rootscale.training.restore import restore_, track_
from rootscale.training.sampler import ScheduledSampler
from rootscale.training.scheduled_run import ScheduledRun
from rootscale.training.scheduled_stream import ScheduledStream
from rootscale.training.svag import SVAG

__all__ = [
    "SVAG",
    "BatchSchedule",
    "NoiseMeter",
    "ScheduledRun",
    "ScheduledSampler",
    "ScheduledStream",
    "advise",
    "exact_noise",
    "register",
    "rescale_",
    "restore_",
    "track_",
]
