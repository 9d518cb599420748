"""PPO with more environments: does the conversion keep the return curve that 8 environments give?

Claim. With 32 or 64 environments instead of 8, at equal frames, a converted PPO run keeps the return of 8 environments
at the end, within 10 % of the range of the task's mean return (CartPole 0 to 500; Pendulum -1600 to 0).

Fixed before it was run. Hypotheses: (1) at 32 environments, *converted* is *same* on both tasks; (2) at 64, *nothing*
changed is lower at the end than *converted* on both tasks; (3) the learning rate alone is between the two; (4) at 64
environments *converted* is not *same* on CartPole. Seeds 0 to 15.

Protocol. PPO as in `examples/ppo.py`, in the style of CleanRL: two nets of 64 x 64, Adam, a learning rate that falls
linearly. A rollout has as many steps per environment as ever, and as many gradient steps, so that a minibatch has
kappa times the samples. CartPole-v1 and Pendulum-v1 of gymnasium, 98,304 and 131,072 frames. Three ways at 32 and 64
environments: everything converted by `Run`; the learning rate alone by the square root; nothing.

Cost. About 20 minutes of one core for CartPole, 30 for Pendulum. It needs gymnasium.

    rootscale study experiments/rollouts.py
"""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from rootscale.lab import Arm, Loop, Study
from rootscale.lab.loop import parsed_source
from rootscale.verdict import Absolute, Judge

EXAMPLE = Path(__file__).parents[1] / "examples" / "ppo.py"
GROUP = "beyond"
RETURN = "mean return"
#: By task: a tenth of the range of its return.
MARGINS = {"CartPole-v1": 50.0, "Pendulum-v1": 160.0}
RULES = {"converted": None, "learning rate only": "sqrt-eta", "nothing": "none"}


@dataclass(frozen=True)
class Rollouts:
    """PPO on a task, with so many environments."""

    task: str
    envs: int
    rule: str | None = None

    def source(self) -> str:
        """Return what decides a run: the program of the example and the arm."""
        return f"{self!r} {parsed_source(EXAMPLE.read_text(encoding='utf-8'))}"

    def programs(self) -> list[Path]:
        """Return the files whose imports decide a run too."""
        return [EXAMPLE]

    def __call__(self, batch_size: int, seed: int, log: Callable[..., None]) -> None:
        """Make a run."""
        torch.set_num_threads(1)
        runpy.run_path(str(EXAMPLE))["train"](self.task, self.envs, seed, log, self.rule)


def studies(task: str = "", smoke: bool = False) -> list[Study]:
    """Return the study of one task, or of both; a smoke test has a task that needs no gymnasium."""
    made = []
    for name in [task] if task else ["Corridor"] if smoke else MARGINS:
        arms = [Arm("8 environments", Loop(f"ppo-{name}-8", Rollouts(name, 8), batch_size=8))]
        for envs in (32,) if smoke else (32, 64):
            for label, rule in RULES.items():
                loop = Loop(f"ppo-{name}-{envs}-{rule or 'own'}", Rollouts(name, envs, rule), batch_size=8)
                arms.append(Arm(f"{envs} environments, {label}", loop, factors={"envs": envs, "form": label}))
        judge = Judge(tolerance=Absolute(MARGINS.get(name, 0.5)), over="end", decide_by=(RETURN,), looks="once")
        claim = f"PPO on {name}: 8 environments become 32 or 64, the return at the end within {judge.tolerance.value:g}"  # type: ignore[union-attr]
        made.append(Study(f"ppo-{name}", arms, claim, 2 if smoke else 16, judge=judge))
    return made


STUDY = studies
