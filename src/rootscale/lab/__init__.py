"""Many runs on real data: tasks, runs, sweeps and the check."""

from rootscale.lab.check import Arm, Check, check
from rootscale.lab.run import Run
from rootscale.lab.settings import Measure, Settings, Setup, grid
from rootscale.lab.sweep import Sweep, sweep
from rootscale.lab.task import Data, Task, Tensors, load_task
from rootscale.lab.variant import Variant

__all__ = [
    "Arm", "Check", "Data", "Measure", "Run", "Settings", "Setup", "Sweep", "Task", "Tensors", "Variant", "check",
    "grid", "load_task", "sweep",
]  # fmt: skip
