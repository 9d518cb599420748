"""Change the batch size of an Adam or RMSprop run and keep its training dynamics.

Nothing here imports torch; `rootscale.training` does.
"""

from rootscale._version import __version__
from rootscale.batch_size import BatchSize
from rootscale.changes import Change, Changes, ScalingWarning
from rootscale.conversion import Conversion
from rootscale.hparams import SGD, Adam, AdamW, RMSprop, SDEConstants
from rootscale.plan import Plan
from rootscale.rules import RULES, Rule
from rootscale.schedule import Schedule
from rootscale.units import TABLE, Unit

__all__ = [
    "RULES",
    "SGD",
    "TABLE",
    "Adam",
    "AdamW",
    "BatchSize",
    "Change",
    "Changes",
    "Conversion",
    "Plan",
    "RMSprop",
    "Rule",
    "SDEConstants",
    "ScalingWarning",
    "Schedule",
    "Unit",
    "__version__",
]
