"""Which parts of the rule are needed, on small nets and with many seeds.

The question. The paper compares five subsets of its rule and four linear rules on CIFAR-10, without errors
(`cifar10-ablations`). Here the same nine are compared where many runs can be made, so that their order has errors.

Setting. The MLP and the conv net with BatchNorm of `rootscale.paper.experiments.floors`, on scikit-learn's digits, with
Adam and betas of .99 and .999, for which the paper's form is defined at 4 and 16 times the batch. A switch in mid-run,
where the theorem holds, and from scratch, which is the paper's setting. BatchNorm is converted in all runs. At a switch
the subsets convert the optimizer's state, and the linear rules, which have no row for `v`, leave it: from scratch there
is no such difference. A run of the same batch size with other samples is the null.

Cost. About seven minutes on a core of a CPU for all four.

    rootscale reproduce ablations-digits ablations-convnet ablations-digits-scratch ablations-convnet-scratch
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial

from rootscale.lab import Settings
from rootscale.paper.experiment import Experiment, Line, Options
from rootscale.paper.experiments.cifar10_ablations import ROWS, SUBSETS
from rootscale.paper.experiments.floors import PROBLEMS
from rootscale.paper.experiments.switch_lines import Comparison
from rootscale.rules import rule_text

__all__ = ["BETAS", "EXPERIMENTS", "RULES"]

BETAS = (0.99, 0.999)


def _name(rule: str, scaled: tuple[str, ...]) -> str:
    """Return how a subset is called, as the paper lists what is scaled."""
    if (rule, scaled) == ("sqrt", ROWS["sqrt"]):
        return "the whole rule"
    return f"{'linear: ' if rule == 'linear' else ''}{', '.join(('eta', *scaled))}"


#: The paper's nine rules by name, with its form of averaging.
RULES = {
    _name(rule, scaled): rule_text(rule, "paper", [row for row in ROWS[rule] if row not in scaled])
    for rule, scaled in reversed(SUBSETS)
}


def lines(problem: str, scratch: bool, options: Options) -> tuple[list[Line], Settings]:
    """Return the base, the null, and every rule at every batch size."""
    chosen = PROBLEMS[problem]
    task = chosen.task(BETAS, options)
    before = Fraction(0) if scratch else chosen.before
    comparison = Comparison(lambda kappa: RULES, before, chosen.eval_samples, noise=scratch)
    return comparison.lines(replace(task, name=task.name.replace("floors", "ablations")), options)


def _experiment(problem: str, sizes: tuple[int, ...], scratch: bool) -> Experiment:
    chosen, cell = PROBLEMS[problem], f"{problem}{'-scratch' if scratch else ''}"
    return chosen.experiment(
        "ablations",
        cell,
        partial(lines, problem, scratch),
        sizes,
        title=f"Subsets of the rule: {chosen.title}, {'from scratch' if scratch else 'a switch in mid-run'}",
        claim="Not in the paper. Which of the paper's subsets of the rule, and of its linear rules, keeps the run of a "
        "small net",
        source="appendix, Ablation study on the proposed scaling rule; Ablation against linear scaling rules",
        minutes=2,
        smoke={"epochs": 1, "batch_sizes": (1024, 4096)},
    )


EXPERIMENTS = [
    _experiment(problem, sizes, scratch)
    for scratch in (False, True)
    for problem, sizes in (("digits", (4, 16, 64)), ("convnet", (16, 64, 256)))
]
