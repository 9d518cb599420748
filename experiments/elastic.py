"""An elastic job whose batch follows its processes: is its loss curve that of a constant batch?

Claim. A job of `torchrun` with 1, then 2, then 4 processes, of which one is killed, and then 1 again has the same
validation loss along the run as a job whose batch is constant, within 5 % of the range of the curve.

Fixed before it was run. Hypotheses: (1) *converted* is *same*; (2) the learning rate alone has a larger gap than
*converted*; (3) with nothing converted the run is *different*. Seeds 0 to 7.

Protocol. `examples/elastic.py`: a small net, AdamW with betas .98 and .998 and a cosine, tuned at 32 samples; 16
samples a process, so that the batch is 16, 32, 64 and 16; 6 epochs of 1,440 samples. One process makes an epoch, two
make two, four make one and a half, where the last is killed with SIGKILL; one process goes on from the last checkpoint,
in the middle of the epoch. The base has 32 samples a step in one process.

Finding (n = 8, largest gap of the loss curve, ± one standard error). (1) is contradicted: the converted job is lower
all along, by 10.7 ± .6 % of the range; its batch is half the base's at first, from scratch, where no rule is known to
keep a run. (2) is contradicted: the learning rate alone is 9.4 ± .6 % off. (3) held: with nothing converted it is
37.7 ± 1.2 %. Nothing was lost by the kill.

Deviation. Seeds 0 to 3 of (1) had been run before, as a trial that was not stored; all runs were made anew.

Cost. About 15 minutes of two cores, of which most is starting Python.

    rootscale study experiments/elastic.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rootscale.compare import Alignment
from rootscale.lab import Arm, Loop, Study
from rootscale.lab.loop import parsed_source

EXAMPLE = Path(__file__).parents[1] / "examples" / "elastic.py"
GROUP = "beyond"
LOSS = "validation loss"
#: Processes of each start, with the options that end it.
STARTS = ((1, ("--leave", "1")), (2, ("--leave", "2")), (4, ("--lose", "6500")), (1, ()))
RULES = {"converted": "", "learning rate only": "sqrt-eta", "nothing": "none"}


@dataclass(frozen=True)
class Job:
    """A job of some starts, by a rule; without starts it is one process with the constant batch."""

    starts: tuple[tuple[int, tuple[str, ...]], ...] = ()
    rule: str = ""

    def source(self) -> str:
        """Return what decides a run: the program of the example and the arm."""
        return f"{self!r} {parsed_source(EXAMPLE.read_text(encoding='utf-8'))}"

    def programs(self) -> list[Path]:
        """Return the files whose imports decide a run too."""
        return [EXAMPLE]

    def __call__(self, batch_size: int, seed: int, log: Callable[..., None]) -> None:
        """Start it as often as it takes, and hand over what it has logged."""
        folder: Path = log.folder  # type: ignore[attr-defined]
        file, rows = folder / "job.pt", folder / "job.jsonl"
        for one in (file, rows):
            one.unlink(missing_ok=True)
        for processes, options in self.starts or ((1, ("--batch", "32")),):
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
            command += [str(EXAMPLE), str(file), f"--curve={rows}", f"--seed={seed}", f"--rule={self.rule}", *options]
            done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
            if (done.returncode != 0) != ("--lose" in options):
                raise RuntimeError(f"{processes} processes ended with {done.returncode}: {done.stderr[-2000:]}")
        for row in map(json.loads, rows.read_text(encoding="utf-8").splitlines()):
            log(**row)


def study(smoke: bool = False) -> Any:
    """Return the study."""
    arms = [Arm("constant batch", Loop("elastic-constant", Job(), batch_size=32))]
    for label, rule in list(RULES.items())[: 1 if smoke else None]:
        loop = Loop(f"elastic-{rule or 'own'}", Job(STARTS, rule), batch_size=32)
        arms.append(Arm(f"1, 2, 4 and 1 processes, {label}", loop, factors={"form": label}))
    claim = "An elastic job of 1, 2, 4 and 1 processes, one killed, has the loss curve of the constant batch"
    return Study("elastic", arms, claim, 2 if smoke else 8, alignment=Alignment((LOSS,), window=0.0))


STUDY = study
