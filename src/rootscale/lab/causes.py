"""Why runs at another batch size come out differently, as far as a check can see it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rootscale.compare.result import Result
from rootscale.format import listed, show
from rootscale.lab.settings import Settings
from rootscale.lab.task import Task
from rootscale.lab.variant import Variant
from rootscale.noise import noise_cause
from rootscale.plan import Plan
from rootscale.rules import default_rule
from rootscale.trajectory import Trajectory
from rootscale.units import KEPT
from rootscale.verdict import Comparison

#: What the rows of a rule are to somebody who trains; others are called as the table of units has them.
NAMES = {
    "eta": "the learning rate", "v": "the optimizer's state", "m": "the optimizer's state",
    "step_counter": "the optimizer's state", "ema": "the decay of the averaged weights", "warmup": "the warm-up",
    "decoupled_decay": "the weight decay", "clip": "the gradient clip", "batchnorm": "BatchNorm's momentum",
}  # fmt: skip
#: Fewer steps than this after the change are too few for the averages of a run to follow an SDE.
FEW_STEPS = 100
#: BatchNorm's statistics of fewer samples are noisy enough to make another model of it.
BATCHNORM_SAMPLES = 32


def causes_of(task: Task, variant: Variant, arm: Result, base: Trajectory, settings: Settings) -> tuple[str, ...]:
    """Return why an arm differs from the base, likeliest first; where nothing is seen, how far one may go."""
    assert arm.comparison is not None
    return tuple(_known(task, variant, arm, base, settings)) or tuple(_advice(variant, arm.comparison))


def _known(task: Task, variant: Variant, arm: Result, base: Trajectory, settings: Settings) -> Iterator[str]:
    """Yield the known causes that apply."""
    rule = variant.the_rule(task.plan)
    own = default_rule(task.plan.optimizer.name).averaged(rule.averaging)
    if variant.ell == 1 and rule.name != own.name:
        left = [
            key
            for key, unit in own.units.items()
            if key in _used(task.plan, settings) and rule.form(key) != unit.form and unit.form.text != "x"
        ]
        if left:
            alone = [key for key in left if rule.form(key).text == KEPT.text]
            if alone:
                yield f"not converted: {listed(_words(alone))}"
            if other := [key for key in left if key not in alone]:
                yield f"converted by another power than the {own.name} rule has: {listed(_words(other))}"
    lost = [place for place in arm.trajectory.meta["diverged_at"] if place is not None]
    if lost:
        yield f"{len(lost)} of {arm.trajectory.replicas} runs diverged, the first after {show(min(lost))} samples"
    gone = sum(place is not None for place in base.meta["diverged_at"])
    if gone:
        yield f"{gone} of {base.replicas} runs of the base diverged"
    size = int(arm.the_plan.batch_size.total)
    yield from noise_cause(base, size, settings.measure.noise_samples)
    yield from arm.guards if variant.ell == 1 and rule.name == own.name else ()
    steps = arm.trajectory.meta["steps"]
    if steps < FEW_STEPS:
        yield f"only {steps} steps are left after the change: too few for the SDE to describe them"
    model = task.model()
    normalised = any("BatchNorm" in type(module).__name__ for module in model.modules())
    smallest = min(size, int(task.plan.batch_size.total))
    if normalised and smallest < BATCHNORM_SAMPLES and variant.kappa != 1:
        yield (
            f"BatchNorm normalises with the statistics of the batch: those of {smallest} samples make another model "
            f"than those of {max(size, int(task.plan.batch_size.total))}, whatever the hyperparameters"
        )


def _words(keys: Iterable[str]) -> list[str]:
    """Return what the rows of these keys are called, each once."""
    return list(dict.fromkeys(NAMES.get(key, key) for key in keys))


def _advice(variant: Variant, comparison: Comparison) -> Iterator[str]:
    """Yield the kappa that is probably within the tolerance: without a known cause, the step is too long."""
    kappa = float(max(variant.kappas))
    excess = max(abs(gap.largest.gap) / comparison.limit(gap) for gap in comparison.decisive)
    if kappa > 1 and excess > 1:
        safe = 1 + (kappa - 1) / excess
        yield (
            "none of the known causes is seen: the steps may be too large for the curvature of the loss; the error of "
            f"a discretisation grows as kappa - 1, so kappa = {show(float(f'{safe:.2g}'))} may be within the tolerance"
        )


def _used(plan: Plan, settings: Settings) -> set[str]:
    """Return the rows of the table of units that matter for this plan."""
    used = {"eta", "beta1", "beta2", "eps"}
    used |= {"v", "step_counter"} if settings.switch_at else set()
    used |= {"warmup"} if plan.schedule.warmup else set()
    used |= {"ema"} if plan.ema is not None else set()
    used |= {"clip"} if plan.clip is not None else set()
    used |= {"batchnorm"} if plan.batchnorm_momentum is not None else set()
    used |= (
        {"decoupled_decay"}
        if plan.optimizer.name == "adamw" and getattr(plan.optimizer, "weight_decay", False)
        else set()
    )
    return used
