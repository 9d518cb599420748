"""Many runs on real data: tasks, runs, sweeps and the check."""

from rootscale.lab.checking import check
from rootscale.lab.command import Command
from rootscale.lab.comparing import compare
from rootscale.lab.execute import Forked, Here
from rootscale.lab.largest import Largest, Search, find_largest
from rootscale.lab.loop import Convert, Loop, RunLog
from rootscale.lab.result import Arm, Check
from rootscale.lab.run import Run
from rootscale.lab.settings import Measure, Settings, Setup, grid
from rootscale.lab.stopping import Deadline, UnfinishedError
from rootscale.lab.store import BusyError, Store
from rootscale.lab.sweeps import Observer, Sweep, finished, sweep
from rootscale.lab.task import Data, Task, Tensors, load_task
from rootscale.lab.variant import Variant
from rootscale.verdict import Judge

__all__ = [
    "Arm", "BusyError", "Check", "Command", "Convert", "Data", "Deadline", "Forked", "Here", "Judge", "Largest", "Loop",
    "Measure", "Observer", "Run", "RunLog", "Search", "Settings", "Setup", "Store", "Sweep", "Task", "Tensors",
    "UnfinishedError", "Variant", "check", "compare", "find_largest", "finished", "grid", "load_task", "sweep",
]  # fmt: skip
