"""Plans as code to paste: templates, which the calculator in the browser fills in too, and what fills them in."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from rootscale.hparams import Optimizer
from rootscale.messages import say
from rootscale.optimizers import FAMILIES
from rootscale.plan import Plan
from rootscale.sizes import Count
from rootscale.units import Number

#: The pieces of the code; what stands in braces is filled in.
TEMPLATES: Mapping[str, str] = MappingProxyType(
    {
        "batch size": "# batch size {size}",
        "steps": ", {steps} steps",
        "every": "# every {steps} steps: {name}",
        "math": "import math\n",
        "torch": "import torch\n",
        "in torch": "optimizer = torch.optim.{name}(model.parameters(), {arguments})",
        "elsewhere": "# torch has no {name}: import it from where you have it\n"
        "optimizer = {name}(model.parameters(), {arguments})",
        "factor": "\n\ndef factor(step):  # learning rate / peak learning rate",
        "warm-up": "    if step < {warmup}:\n        return {factor}",
        "linear": "{start} + (1 - {start}) * step / {warmup}",
        "linear from 0": "step / {warmup}",
        "exponential": "{start} ** (1 - step / {warmup})",
        "body": "    return {factor}\n\n",
        "above lowest": "{lowest} + (1 - {lowest}) * ({factor})",
        "since": "(step - {warmup})",
        "progress": "min(1.0, {since} / {length})",
        "periods": "(step // {every})",
        "periods of parts": "(step * {parts} // {every})",
        "scheduler": "scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)  # step it after every "
        "optimizer step",
        "batchnorm": "for module in model.modules():\n"
        "    if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):\n"
        "        module.momentum = {momentum}",
        "ema": "ema = torch.optim.swa_utils.AveragedModel(\n"
        "    model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn({decay})\n"
        ")  # ema.update_parameters(model) after every step",
        "clip": "# between backward and optimizer.step(): torch.nn.utils.clip_grad_norm_(model.parameters(), {clip})",
    }
)
#: What each schedule is after its warm-up, as an expression of ``step``: 1 is the peak, 0 the lowest learning rate.
SHAPE_CODE: Mapping[str, str] = MappingProxyType(
    {
        "constant": "1.0",
        "linear": "1 - {progress}",
        "cosine": "(1 + math.cos(math.pi * {progress})) / 2",
        "polynomial": "(1 - {progress}) ** {power}",
        "exponential": "{gamma} ** ((step - {warmup}) / {every})",
        "step": "{gamma} ** {periods}",
        "multistep": "{gamma} ** sum(step >= m for m in [{milestones}])",
        "inverse-sqrt": "math.sqrt({warmup} / max(step, 1))",
        "warmup-stable-decay": "min(1.0, max(0, {steps} - step) / {decay})",
    }
)


def _fill(template: str, /, **words: object) -> str:
    return TEMPLATES[template].format(**words)


def _text(value: Any) -> str:
    """Return a value as Python source, a number without the last digits that only show rounding."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))})"
    if isinstance(value, bool):
        return repr(value)
    return repr(int(value) if value == int(value) and abs(float(value)) >= 1 else float(f"{float(value):.12g}"))


def _periods(every: Count) -> str:
    """Return ``step // every`` in whole numbers: a float division could miss the step where it jumps."""
    exact = Fraction(every)
    whole = exact.denominator == 1
    return _fill("periods" if whole else "periods of parts", every=exact.numerator, parts=exact.denominator)


def _progress(warmup: Number, steps: Number) -> str:
    since = _fill("since", warmup=_text(warmup)) if warmup else "step"
    return _fill("progress", since=since, length=_text(steps - warmup) if steps > warmup else "1")


def _optimizer(record: Optimizer) -> str:
    if eps_root := getattr(record, "eps_root", 0):
        raise ValueError(say("no eps_root in torch", value=eps_root))
    torch = FAMILIES[record.name].torch
    given = {name: value for name, value in torch.arguments(record).items() if value is not None}
    arguments = ", ".join(f"{name}={_text(value)}" for name, value in given.items())
    return _fill("in torch" if torch.in_torch else "elsewhere", name=torch.name, arguments=arguments)


def _shape(plan: Plan) -> str:
    """Return the factor after the warm-up as an expression of ``step``."""
    schedule, steps = plan.schedule, plan.total_steps or 0
    factor = SHAPE_CODE[schedule.name].format(
        progress=_progress(schedule.warmup, steps),
        periods=_periods(schedule.every or 1),
        milestones=", ".join(map(_text, schedule.milestones)),
        steps=_text(steps),
        decay=_text(schedule.decay or 1),
        every=_text(schedule.every or 1),
        **{name: _text(getattr(schedule, name)) for name in ("power", "gamma", "warmup")},
    )
    if not schedule.min_eta:
        return factor
    return _fill("above lowest", lowest=_text(schedule.min_eta / plan.optimizer.eta), factor=factor)


def _schedule(plan: Plan) -> list[str]:
    schedule = plan.schedule
    if schedule.name == "constant" and not schedule.warmup:
        return []
    lines = [_fill("factor")]
    if schedule.warmup:
        shape = "linear from 0" if schedule.warmup_shape == "linear" and not schedule.warmup_start else None
        warmup = _text(schedule.warmup)
        factor = _fill(shape or schedule.warmup_shape, start=_text(schedule.warmup_start), warmup=warmup)
        lines.append(_fill("warm-up", warmup=warmup, factor=factor))
    return [*lines, _fill("body", factor=_shape(plan)), _fill("scheduler")]


def torch_code(plan: Plan) -> str:
    """Return the PyTorch calls that build this plan's optimizer and schedule, to paste behind ``model = ...``."""
    steps = plan.total_steps
    header = [
        _fill("batch size", size=plan.batch_size) + (_fill("steps", steps=_text(-(-steps // 1))) if steps else "")
    ]
    header += [_fill("every", steps=_text(max(1, round(every))), name=name) for name, every in plan.intervals.items()]
    schedule = _schedule(plan)
    lines = [_optimizer(plan.optimizer), *schedule]
    if plan.batchnorm_momentum is not None:
        lines.append(_fill("batchnorm", momentum=_text(plan.batchnorm_momentum)))
    if plan.ema is not None:
        lines.append(_fill("ema", decay=_text(plan.ema)))
    if plan.clip is not None:
        lines.append(_fill("clip", clip=_text(plan.clip)))
    imports = [_fill("math")] if any("math." in line for line in schedule) else []
    return "\n".join([*header, *imports, _fill("torch"), *lines])
