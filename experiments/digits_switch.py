"""A switch of batch size in mid-run, twice by 4, on scikit-learn's digits: the whole conversion against half-measures.

Claim. With everything converted the mean train-loss curve stays where it was; with anything left out it does not.

Protocol. An MLP (B = 4, betas .99, .999), the same with an average of the weights (decay .999), and one with BatchNorm
of momentum .02 (B = 32). After 12,000 samples the batch size is multiplied by 4, and after half of the rest by 4 again.
The null is the same batch size with other samples. 16 seeds. Judged is the train loss; where weights are averaged, the
test loss, which is that of the average.

Cost. A minute or two on a core of a CPU.

Finding. Converted the run is the same; every half-measure departs (results/README.md has verdicts and gaps, n = 16).

    rootscale study experiments/digits_switch.py
"""

from __future__ import annotations

from collections.abc import Mapping

from switches import KEEPS

from rootscale.lab import Arm, Judge, Measure, Settings, Study, Variant, grid
from rootscale.lab.tasks import digits

START, POINTS = 12_000, 24
FORMS: Mapping[str, str] = {
    "everything converted": "sqrt",
    "hyperparameters, not the state": "sqrt without m, v, step_counter",
    "linear rule": "linear",
    "learning rate only": "sqrt-eta",
    "nothing but the batch size": "none",
}
#: What is varied, by net: the options of the task, the rules, and the function that is judged.
NETS: Mapping[str, tuple[Mapping[str, object], Mapping[str, str], str]] = {
    "digits-switch": ({}, FORMS, "train loss"),
    "digits-switch-batchnorm": (
        {"batchnorm": True},
        {"everything converted": "sqrt", "BatchNorm's momentum left alone": "sqrt without batchnorm"},
        "train loss",
    ),
    "digits-switch-ema": (
        {"ema": 0.999},
        {"everything converted": "sqrt", "the average's decay left alone": "sqrt without ema"},
        "test loss",
    ),
}


def study(name: str) -> Study:
    """Return the base, the null, and two switches by each rule."""
    options, rules, judged = NETS[name]
    task = digits(samples=12_000 + 38_400, **options)  # type: ignore[arg-type]
    size, total = int(task.plan.batch_size.total), int(task.plan.samples or 0)
    sizes = (size, 4 * size, 16 * size)
    start, second = (at // sizes[-1] * sizes[-1] for at in (START, (START + total) // 2))
    measure = Measure(POINTS, eval_samples=2048, noise=False)
    settings = Settings(grid(total, POINTS, start, sizes), start, measure)
    arms = [Arm("kept", task), Arm("other samples", task, Variant(other_samples=True), {"form": "null"})]
    ramp = ((second, 16),)
    arms += [Arm(form, task, Variant(4, rule, ramp=ramp), {"form": form}) for form, rule in rules.items()]
    net = name.removeprefix("digits-switch").strip("-") or "MLP"
    claim = f"digits, {net}: 4 and then 16 times the batch in mid-run"
    judge = Judge(decide_by=(judged,))
    return Study(name, arms, f"{claim}, everything converted or not", 16, settings, judge=judge, keeps=KEEPS)


def studies(net: str = "") -> list[Study]:
    """Return the study of one net, or of all."""
    return [study(name) for name in ([net] if net else NETS)]


STUDY = studies
