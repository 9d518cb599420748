"""Many runs on real data: tasks, runs, studies and the check."""

from rootscale.compare import Result, Table, compare
from rootscale.lab.checking import check
from rootscale.lab.command import Command
from rootscale.lab.execute import Forked, Here
from rootscale.lab.largest import find_largest
from rootscale.lab.loop import Loop, RunLog
from rootscale.lab.observe import Observer
from rootscale.lab.settings import Measure, Settings, Setup, grid
from rootscale.lab.stopping import Deadline, UnfinishedError
from rootscale.lab.store import Store
from rootscale.lab.study import Arm, Study
from rootscale.lab.task import Data, Task, Tensors
from rootscale.lab.trial import Trial
from rootscale.lab.variant import Variant
from rootscale.verdict import Judge

__all__ = [
    "Arm",
    "Command",
    "Data",
    "Deadline",
    "Forked",
    "Here",
    "Judge",
    "Loop",
    "Measure",
    "Observer",
    "Result",
    "RunLog",
    "Settings",
    "Setup",
    "Store",
    "Study",
    "Table",
    "Task",
    "Tensors",
    "Trial",
    "UnfinishedError",
    "Variant",
    "check",
    "compare",
    "find_largest",
    "grid",
]
