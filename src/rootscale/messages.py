"""What is said about a plan and its conversion, as templates.

Errors, warnings and notes stand here as data. Python fills them in, and so does the calculator in the browser
(``website/calculator_tables.py`` exports them), so that both say the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

#: Errors about a value; each begins with the name of the field.
_VALUES = {
    "value": "{name} must be {expected}, got {value}",
    "count": "a number above 0 such as 1024",
    "count or 0": "a number that is 0 or more",
    "count, largest": "at most 2^53 = {largest}",
    "count, smallest": "at least 1e-12",
    "batch size": "batch_size must be a number or MICROxACCUMULATIONxWORKERS such as 32x4x8, got {value}",
    "whole": "{name} must be a whole number, got {value}",
    "no steps": "{name} must be a number of samples or tokens, got {value}",
    "sequence length": "{name} must come with the length of a sequence where it counts tokens, got {value}: give "
    "--sequence-length too (in Python sequence_length=2048)",
    "samples or tokens": "{name} must say its unit, as it may count samples or tokens (sequences have {length}), got "
    "{value}: write '{value} samples' or '{value} tokens'",
    "two sequence lengths": "sequence_length must be that of the batch size, {length}, got {value}",
    "warm-up start": "an exponential warm-up needs warmup_start > 0 (the paper's is 1e-3), got 0",
    "milestones": "milestones must increase, got {milestones}",
    "lr": "{what} needs 'eta', the learning rate",
    "schedule takes": "schedule {schedule!r} does not use {name}; it takes {takes} and the warm-up",
    "schedule needs": "schedule {schedule!r} needs {name}",
    "schedule needs length": "schedule {schedule!r} needs the run's length: give steps, or epochs and dataset_size",
    "steps or epochs": "give steps, or epochs and dataset_size, not both",
    "dataset size": "epochs needs dataset_size, the number of samples in the data",
    "lowest lr": "min_eta must be at most eta={eta}, got {value}",
    "within the run": "{name} must end within the run of {steps} steps, got {value}",
    "no eps_root in torch": "torch's optimizers have no eps inside the root, got eps_root={value}",
}
#: Errors and warnings about a rule at this kappa.
_RULES = {
    "too large": "kappa={kappa} gives {name}={value}; need kappa < {limit}",
    "or floors": ", or floors, which give {name}={value} (--averaging floor; in Python rule='with floor')",
    "out of range": "kappa={kappa} turns {name}={value} into a number that is out of range ({name} becomes {form}); "
    "use a kappa nearer to 1",
    "refused": "rule {rule!r} is for {able}; the rule of {optimizer} is {own!r}",
    "invariant": "rule 'invariant' holds only where v averages the squared gradients of micro-batches of a fixed size; "
    "the rule of ordinary {optimizer} is {own!r}",
    "other dynamics": "rule {rule!r} does not keep the dynamics of {optimizer}; the one that does is {own!r}",
    "short beta2": "kappa * (1 - beta2) = {value} is outside the theorem's range (eta^2 < 1 / (2 c2), that is kappa < "
    "{limit}); with floors the average stays longer (--averaging floor)",
    "short beta1": "kappa * (1 - beta1) = {value}: the first moment averages over less than two steps, too few to damp "
    "them; measured runs with such averages departed far from their trajectory; kappa < {limit} would be "
    "enough, or floors (--averaging floor)",
    "floored": "1 - kappa * (1 - x), at least {floor}",
    "compared": "for comparison: {why}",
    "summed": "{why}; of a summed loss, gradients grow with the batch",
    "below floor": "below the floor of {floor} already, and kept: not measured (the paper's form gives {value})",
    "tuned at": "what was tuned at {size}, which a floor had stopped",
    "floor": "stops at its floor (the paper's form gives {value}), so that it still damps single steps",
}
#: Warnings about a plan at its new batch size, notes on single changes, and the heading.
_CHANGES = {
    "noise scale": "batch size {size} is beyond the noise scale {noise}: the noise no longer dominates the gradient; "
    "up to kappa = {kappa} it does. Stay below, or grow later, when it is larger. Measured beyond theirs: {seen}",
    "layout": "batch size {size} is no multiple of {micro} micro x {workers} workers: choose its layout yourself, as "
    "MICROxACCUMULATIONxWORKERS",
    "short run": "the whole run is {steps} of a step",
    "short interval": "{name} would be every {steps} steps; a step is the least",
    "kept": "not touched by this rule",
    "last step": "exactly {steps}: the last step takes {samples} samples",
    "rounded": "rounded from {value}",
    "forwards": "it counts forwards: {before} a step before, {after} a step now",
    "layout of batch": "{total} ({micro} micro x {accumulation} accumulation x {workers} workers)",
    "title": "batch size {before} -> {after}, kappa = {kappa}",
    "samples": ", {samples} samples in both",
    "tokens": ", {samples} samples = {tokens} tokens in both",
    "and tokens": "{samples} = {tokens} tokens",
    "rule": "{title}, rule {rule}",
}
#: What was measured (`rootscale.evidence`). A percentage is of how far the loss falls.
_EVIDENCE = {
    "not covered": "No theorem covers this run as a whole ({names}); `rootscale units` says which powers are a "
    "theorem's.",
    "seen": "Measured in mid-run at {kappa} times the batch: {what}: {verdicts}; largest gaps {gaps} of the loss's "
    "fall.",
    "from scratch": "From scratch: {verdicts}; {gaps}.",
    "smaller": "No change to a smaller batch was measured in mid-run.",
    "not measured": "No switch of {family} by the rule {rule} was measured in training; `rootscale check` measures "
    "yours.",
    "lost": "{kappa} times the batch at once: at {measured} times {lost} of {count} measured switches of {families} "
    "became another run ({gaps})",
    "unmeasured kappa": "{kappa} times the batch at once: nothing above {largest} times was measured",
    "smaller steps": "grow later in the run, by at most {largest} times at once, or up a ramp",
    "not this rule": "keep the batch, or let `rootscale check` measure a small copy of the run first",
    "nearer": "the rule {rule} was nearer in {nearer} of {count}",
    "scratch": "the run starts at {kappa} times the batch that was tuned: from scratch at {measured} times {lost} of "
    "{count} measured runs of {families} became another run ({gaps}); start at the tuned batch, and grow in mid-run",
    "few steps": "{steps} steps are left: the measured runs that did not become another one had {least} or more after "
    "the change",
}
#: Every template by its name; what stands in braces is filled in.
MESSAGES: Mapping[str, str] = MappingProxyType(_VALUES | _RULES | _CHANGES | _EVIDENCE)


def say(message: str, /, **words: object) -> str:
    """Return a template, filled in.

    >>> say("rounded", value="2.5")
    'rounded from 2.5'
    """
    return MESSAGES[message].format(**words)
