"""Does RMSprop keep 64 times the batch only if its second moment is corrected for starting at zero?

Claim. The paper reports RMSprop within 3 points of accuracy up to 64 times the batch. Its code's RMSprop is Adam with
beta1 = 0, which corrects the bias of `v`; torch's RMSprop does not, and its first steps are 1 / sqrt(1 - beta) times as
long. Fixed before the runs were made: at 64 times the batch from scratch, the accuracy of the corrected form is within
3 points of that of its base, that of torch's form is not, and the corrected form loses fewer points.

Protocol. The net, data, schedule and values of noise_dominates.py for RMSprop at eps = 1e-8, B = 16 and 1,024, both
forms of RMSprop, each compared with its own base. Seeds 0 to 7.

Cost. About ten minutes on a core of a CPU for both.

    rootscale study experiments/bias_correction.py
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from noise_dominates import DECAYS, values
from small_nets import KEEPS, NETS, base_and_null, paper_schedule

from rootscale import Adam
from rootscale.lab import Arm, Study, Variant
from rootscale.verdict import Absolute, Judge

FORMS = {
    "uncorrected": values("rmsprop", 1e-8),
    "corrected": Adam(1e-3, 0.0, 0.999, eps=1e-8, weight_decay=1e-4),
}


def study(form: str) -> Study:
    """Return the base of one form, its null, and 64 times the batch."""
    net = NETS["pictures"]
    schedule = partial(paper_schedule, decays=DECAYS["rmsprop"])
    task = net.task(f"pictures-rmsprop-{form}", optimizer=FORMS[form], schedule=schedule)
    large = Arm(f"B = {net.sizes[-1]}", task, Variant(net.sizes[-1] // net.sizes[0], "sqrt with paper"))
    settings = net.settings(task, switch=False)
    settings = replace(settings, measure=replace(settings.measure, noise=False))
    claim = f"{net.title}: RMSprop, second moment {form} for its start, at 64 times the batch from scratch"
    judge = Judge(tolerance=Absolute(0.03), over="end", decide_by=("test accuracy",))
    return Study(
        f"bias-{form}", [*base_and_null(task), large], claim, net.seeds, settings, judge=judge, keeps=KEEPS
    )  # fmt: skip


def studies(form: str = "") -> list[Study]:
    """Return the study of one form, or of both."""
    return [study(one) for one in ([form] if form else FORMS)]


STUDY = studies
