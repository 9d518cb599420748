"""Change the batch size of an Adam or RMSprop run and keep its training dynamics.

Nothing here imports torch; `Run` is imported when it is asked for, and `rootscale.training` needs torch.
"""

from typing import TYPE_CHECKING, Any

from rootscale._version import __version__
from rootscale.batch_size import BatchSize
from rootscale.changes import Change, Changes, ScalingWarning
from rootscale.hparams import SGD, Adam, AdamW, RMSprop
from rootscale.plan import Plan
from rootscale.rules import RULES, Rule
from rootscale.schedule import Schedule
from rootscale.units import TABLE

if TYPE_CHECKING:
    from rootscale.training.run import Run

__all__ = [
    "RULES",
    "SGD",
    "TABLE",
    "Adam",
    "AdamW",
    "BatchSize",
    "Change",
    "Changes",
    "Plan",
    "RMSprop",
    "Rule",
    "Run",
    "ScalingWarning",
    "Schedule",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name == "Run":
        from rootscale.training.run import Run

        return Run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
