"""Which parts of the rule are needed? Five subsets of it and four linear rules, with many seeds on small nets.

Claim. The paper compares these nine on CIFAR-10 without errors (its appendix, "Ablation study on the proposed scaling
rule" and "Ablation against linear scaling rules"). Fixed before it was run: at a switch in mid-run the whole rule is
the nearest of the nine.

Protocol. An MLP and a conv net with BatchNorm, Adam with betas of .99 and .999, for which the paper's form is defined,
4 and 16 times the batch, in mid-run (where the theorem holds) and from scratch (the paper's setting). BatchNorm is
converted in all runs. At a switch the subsets convert the optimizer's state; the linear rules, which have no row for
`v`, leave it. The null is the same batch size with other samples. 16 seeds of the MLP, 8 of the conv net.

Cost. About seven minutes on a core of a CPU for all four.

Finding. It is the nearest in mid-run but for the conv net at 16 times, and nowhere from scratch: results/README.md has
the verdicts with n.

    rootscale study experiments/ablations.py
    rootscale study experiments/ablations.py --net mlp --scratch
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from small_nets import KEEPS, NETS, base_and_null

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


def form(rule: str, scaled: tuple[str, ...]) -> str:
    """Return what a subset is called: by what it scales."""
    if scaled == ROWS["sqrt"]:
        return "the whole rule"
    return f"{'linear: ' if rule == 'linear' else ''}{', '.join(('eta', *scaled))}"


def study(net: str, scratch: bool) -> Study:
    """Return the base, its null, and every rule at every batch size."""
    chosen = replace(NETS[net], sizes=SIZES[net])
    task = chosen.task(f"ablations-{'digits' if net == 'mlp' else net}-0.999", (0.99, 0.999))
    arms, sizes = list(base_and_null(task)), chosen.sizes
    for size in sizes[1:]:
        for rule, scaled in SUBSETS:
            text = rule_text(rule, "paper", [row for row in ROWS[rule] if row not in scaled])
            label = f"{'B = ' if scratch else f'{sizes[0]} → '}{size}, {form(rule, scaled)}"
            variant = Variant(Fraction(size, sizes[0]), text)
            arms.append(Arm(label, task, variant, {"form": form(rule, scaled)}))
    when = "from scratch" if scratch else "a switch in mid-run"
    name = f"ablations-{net}{'-scratch' if scratch else ''}"
    claim = f"{chosen.title}, betas .99 and .999, {when}: which parts of the rule are needed"
    return Study(name, arms, claim, chosen.seeds, chosen.settings(task, not scratch), keeps=KEEPS)


def studies(net: str = "", scratch: bool = False) -> list[Study]:
    """Return the studies of one net, or of all, both in mid-run and from scratch."""
    starts = (True,) if scratch else (False, True)
    return [study(one, start) for start in starts for one in ([net] if net else NETS)]


STUDY = studies
