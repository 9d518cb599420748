"""Growing in stages: whether many times the batch is kept better in several steps than at once.

The question. At 64 times the batch, and with BatchNorm at 16 times, no form of default betas keeps a run that is
switched at once (`rootscale.paper.experiments.floors`), and the advice is to grow in stages. Does that keep it?

Setting. The MLP and the conv net of that module, with betas of .9, .999 and .9, .95 and the default floors. The batch
grows by 4 at the switch and again after each quarter of what is left of the run, up to 64 times (MLP) or 16 times (conv
net); or by all of it at the switch. Both with everything converted and with the learning rate only. A run of the same
batch size with other samples is the null.

Cost. A few minutes on a core of a CPU.

    rootscale reproduce stages-digits-999 stages-digits-95 stages-convnet-999 stages-convnet-95
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial

from rootscale.format import show
from rootscale.lab import Settings, Task, Variant
from rootscale.paper.experiment import Experiment, Line, Options
from rootscale.paper.experiments.floors import BETAS, PROBLEMS
from rootscale.paper.experiments.language_runs import sizes_of
from rootscale.paper.experiments.switch_lines import Comparison

__all__ = ["EXPERIMENTS", "in_stages"]

#: The part of the run after the switch from one growth of the batch to the next.
APART = Fraction(1, 4)
#: What is converted at each of them.
RULES = {"": "sqrt", ", learning rate only": "sqrt-eta"}


def in_stages(task: Task, sizes: Sequence[int], start: int, rule: str) -> Variant:
    """Return a batch that grows at the switch, and again after each further quarter of what is left then."""
    total = task.plan.samples
    assert total is not None
    apart = max(1, round((int(total) - start) * APART / sizes[-1])) * sizes[-1]
    first, *others = [Fraction(size, sizes[0]) for size in sizes[1:]]
    return Variant(first, rule, ramp=tuple((start + apart * (i + 1), kappa) for i, kappa in enumerate(others)))


def lines(problem: str, betas: str, options: Options) -> tuple[list[Line], Settings]:
    """Return the base, the null, and the largest batch at once and in stages."""
    chosen, sizes = PROBLEMS[problem], sizes_of(options)
    task = chosen.task(BETAS[betas], options)
    task = replace(task, name=task.name.replace("floors", "stages"))
    made, settings = Comparison(lambda kappa: {}, chosen.before, chosen.eval_samples).lines(task, options)
    kappa, arrow = Fraction(sizes[-1], sizes[0]), f"{sizes[0]:,} → {sizes[-1]:,}"
    for more, rule in RULES.items():
        made.append(Line(f"{arrow}, at once{more}", task, Variant(kappa, rule)))
        made.append(Line(f"{arrow}, in stages{more}", task, in_stages(task, sizes, settings.switch_at, rule)))
    return made, settings


def _experiment(problem: str, betas: str, sizes: tuple[int, ...]) -> Experiment:
    chosen, (_, beta2) = PROBLEMS[problem], BETAS[betas]
    return chosen.experiment(
        "stages",
        f"{problem}-{betas}",
        partial(lines, problem, betas),
        sizes,
        title=f"Growing in stages: {chosen.title}, .9 and {show(beta2).lstrip('0')}, a switch in mid-run",
        claim="Not in the paper. Many times the batch in stages, everything converted, keeps a run that is not kept "
        "at once",
        source="section 5, where the paper's form ends at kappa = 1 / (1 - beta)",
        minutes=1,
        smoke={"epochs": 4, "batch_sizes": (1024, 2048, 4096)},
    )


EXPERIMENTS = [
    _experiment(problem, betas, sizes)
    for problem, sizes in (("digits", (4, 16, 64, 256)), ("convnet", (16, 64, 256)))
    for betas in BETAS
]
