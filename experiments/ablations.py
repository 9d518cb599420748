"""Which parts of the rule are needed? Five subsets of it and four linear rules, with many seeds on small nets.

Claim. The paper compares these nine on CIFAR-10 without errors (its appendix, "Ablation study on the proposed scaling
rule" and "Ablation against linear scaling rules"). Fixed before it was run: at a switch in mid-run the whole rule is
the nearest of the nine. Fixed before the runs with the paper's schedule were made: from scratch with it, the whole rule
is the nearest of the five subsets in all four cases, and the nearest of all nine in at least three.

Protocol. An MLP and a conv net with BatchNorm, Adam with betas of .99 and .999, for which the paper's form is defined,
4 and 16 times the batch: in mid-run, where the theorem holds; from scratch at a constant learning rate; and from
scratch with the paper's warm-up (2 % of the run) and decay (to a tenth after 60 %). BatchNorm is converted in all runs.
At a switch the subsets convert the optimizer's state; the linear rules, which have no row for `v`, leave it. The null
is the same batch size with other samples. Seeds 0 to 15 of the MLP, 0 to 7 of the conv net.

Cost. About fifteen minutes on a core of a CPU for all six.

Finding. It is the nearest in mid-run but for the conv net at 16 times, and nowhere from scratch (MLP n = 16, conv net
n = 8); results/README.md has the verdicts.

    rootscale study experiments/ablations.py
    rootscale study experiments/ablations.py --net mlp --start schedule
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from small_nets import KEEPS, NETS, base_and_null, paper_schedule

from rootscale.lab import Arm, Study, Variant
from rootscale.rules import rule_text

#: What each rule can scale besides the learning rate.
ROWS = {"sqrt": ("eps", "beta1", "beta2"), "linear": ("beta1", "beta2")}
#: What it does scale, as the paper lists it: four linear rules, and five subsets of the square root rule.
SUBSETS = (
    ("linear", ("beta1", "beta2")), ("linear", ("beta2",)), ("linear", ("beta1",)), ("linear", ()),
    ("sqrt", ("eps", "beta1", "beta2")), ("sqrt", ("eps", "beta2")), ("sqrt", ("eps", "beta1")), ("sqrt", ("eps",)),
    ("sqrt", ()),
)  # fmt: skip
SIZES = {"mlp": (4, 16, 64), "convnet": (16, 64, 256)}
#: Where the batch changes, in words; the last is the paper's setting.
STARTS = {
    "switch": "a switch in mid-run", "scratch": "from scratch",
    "schedule": "from scratch with the paper's warm-up and decay",
}  # fmt: skip


def form(rule: str, scaled: tuple[str, ...]) -> str:
    """Return what a subset is called: by what it scales."""
    if scaled == ROWS["sqrt"]:
        return "the whole rule"
    return f"{'linear: ' if rule == 'linear' else ''}{', '.join(('eta', *scaled))}"


def study(net: str, start: str) -> Study:
    """Return the base, its null, and every rule at every batch size."""
    chosen, switched = replace(NETS[net], sizes=SIZES[net]), start == "switch"
    schedule = paper_schedule if start == "schedule" else None
    task = chosen.task(f"ablations-{'digits' if net == 'mlp' else net}-0.999", (0.99, 0.999), schedule=schedule)
    arms, sizes = list(base_and_null(task)), chosen.sizes
    for size in sizes[1:]:
        for rule, scaled in SUBSETS:
            text = rule_text(rule, "paper", [row for row in ROWS[rule] if row not in scaled])
            label = f"{f'{sizes[0]} → ' if switched else 'B = '}{size}, {form(rule, scaled)}"
            variant = Variant(Fraction(size, sizes[0]), text)
            arms.append(Arm(label, task, variant, {"form": form(rule, scaled)}))
    name = f"ablations-{net}{'' if switched else f'-{start}'}"
    claim = f"{chosen.title}, betas .99 and .999, {STARTS[start]}: which parts of the rule are needed"
    return Study(name, arms, claim, chosen.seeds, chosen.settings(task, switched), keeps=KEEPS)


def studies(net: str = "", start: str = "") -> list[Study]:
    """Return the studies of one net, or of all, from one start or from all of them."""
    return [study(one, way) for way in ([start] if start else STARTS) for one in ([net] if net else SIZES)]


STUDY = studies
