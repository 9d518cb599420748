"""Many runs on real data: tasks, the engine, sweeps and the check."""

from rootscale.lab.check import Arm, Check, check
from rootscale.lab.engine import Run, Settings, Variant, grid
from rootscale.lab.sweep import Sweep, sweep
from rootscale.lab.task import Data, Task, Tensors, load_task

__all__ = [
    "Arm", "Check", "Data", "Run", "Settings", "Sweep", "Task", "Tensors", "Variant", "check", "grid", "load_task",
    "sweep",
]  # fmt: skip
