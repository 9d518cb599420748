"""Dividing by the second moment before the step (v_k, the paper's theory) or after it (v_{k+1}, torch), in small.

Claim. With v_k the paper observes "a small drop (about 1 %) in test accuracies", while across batch sizes "the
behavior of the trajectories [...] stays the same" (appendix "Using v_k instead of v_{k+1} in the update rule"). Fixed
before the runs were made: at B = 16 and at B = 1,024 the accuracy with v_k is within 3 points of that with v_{k+1}, and
under v_k the accuracy at 4 and 64 times the batch is within 3 points of that at B = 16.

Protocol. The net, data, schedule and values of noise_dominates.py for Adam at eps = 1e-8, from scratch; both forms at B
= 16 and 1,024, v_k at B = 64 too. All are compared with v_k at B = 16. Seeds 0 to 7.

Cost. About ten minutes on a core of a CPU.

    rootscale study experiments/previous_moment.py
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from cifar10 import paper_form
from noise_dominates import values
from small_nets import KEEPS, NETS, base_and_null, paper_schedule

from rootscale.lab import Arm, Study, Variant
from rootscale.verdict import Absolute, Judge


def study() -> Study:
    """Return v_k at the base and its null, then both forms at larger batches."""
    net = NETS["pictures"]
    after = net.task("pictures-adam-v_k1", optimizer=values("adam", 1e-8), schedule=paper_schedule)
    before = replace(after, name="pictures-adam-v_k", optimizer=paper_form)
    arms = [replace(arm, label=f"v_k, {arm.label}", factors={**arm.factors, "v": "k"}) for arm in base_and_null(before)]
    for index, task, sizes in (("k", before, (64, 1024)), ("k+1", after, (16, 1024))):
        name = "v_k" if index == "k" else "v_{k+1}"
        for size in sizes:
            rule = None if size == 16 else "sqrt with paper"
            arms.append(Arm(f"{name}, B = {size}", task, Variant(Fraction(size, 16), rule), {"v": index}))
    settings = net.settings(after, switch=False)
    settings = replace(settings, measure=replace(settings.measure, noise=False))
    claim = f"{net.title}, Adam from scratch: dividing by v_k instead of v_{{k+1}}"
    judge = Judge(tolerance=Absolute(0.03), over="end", decide_by=("test accuracy",))
    return Study("previous-moment", arms, claim, net.seeds, settings, judge=judge, keeps=KEEPS)


STUDY = study
