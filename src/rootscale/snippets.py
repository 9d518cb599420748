"""Plans as code to paste."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType

from rootscale.hparams import Optimizer
from rootscale.optimizers import FAMILIES
from rootscale.plan import Plan
from rootscale.schedule import Count
from rootscale.units import Number


def _text(value: Number) -> str:
    """Return a number as Python source, without the last digits that only show rounding."""
    return repr(int(value) if value == int(value) and abs(float(value)) >= 1 else float(f"{float(value):.12g}"))


def _floor(name: str, divisor: Count) -> str:
    """Return ``name // divisor`` in whole numbers: a float division could miss the step where it jumps."""
    exact = Fraction(divisor)
    return f"({name} * {exact.denominator} // {exact.numerator})" if exact.denominator > 1 else f"({name} // {exact})"


def _progress(plan: Plan) -> str:
    warmup, steps = plan.schedule.warmup, plan.total_steps or 0
    start = f"(step - {_text(warmup)})" if warmup else "step"
    return f"min(1.0, {start} / {_text(steps - warmup) if steps > warmup else '1'})"


#: What each schedule is after its warm-up, as an expression of ``step``: 1 is the peak, 0 the lowest learning rate.
_SHAPES: Mapping[str, Callable[[Plan], str]] = MappingProxyType(
    {
        "constant": lambda plan: "1.0",
        "linear": lambda plan: f"1 - {_progress(plan)}",
        "cosine": lambda plan: f"(1 + math.cos(math.pi * {_progress(plan)})) / 2",
        "polynomial": lambda plan: f"(1 - {_progress(plan)}) ** {_text(plan.schedule.power)}",
        "exponential": lambda plan: (
            f"{_text(plan.schedule.gamma)} ** "
            f"((step - {_text(plan.schedule.warmup)}) / {_text(plan.schedule.every or 1)})"
        ),
        "step": lambda plan: f"{_text(plan.schedule.gamma)} ** {_floor('step', plan.schedule.every or 1)}",
        "multistep": lambda plan: (
            f"{_text(plan.schedule.gamma)} ** sum(step >= m for m in "
            f"[{', '.join(map(_text, plan.schedule.milestones))}])"
        ),
        "inverse-sqrt": lambda plan: f"math.sqrt({_text(plan.schedule.warmup)} / max(step, 1))",
        "warmup-stable-decay": lambda plan: (
            f"min(1.0, max(0, {_text(plan.total_steps or 0)} - step) / {_text(plan.schedule.decay or 1)})"
        ),
    }
)
_WARMUPS: Mapping[str, Callable[[str, str], str]] = MappingProxyType(
    {
        "linear": lambda start, p: p if start == "0.0" else f"{start} + (1 - {start}) * {p}",
        "exponential": lambda start, p: f"{start} ** (1 - {p})",
    }
)


def _optimizer(record: Optimizer) -> str:
    if eps_root := getattr(record, "eps_root", 0):
        raise ValueError(f"torch's optimizers have no eps inside the root, got eps_root={eps_root}")
    torch = FAMILIES[record.name].torch
    texts = [
        f"{name}=({', '.join(map(_text, value))})" if isinstance(value, tuple) else f"{name}={_text(value)}"
        for name, value in torch.arguments(record).items()
    ]
    return f"torch.optim.{torch.name}(model.parameters(), {', '.join(texts)})"


def _schedule(plan: Plan) -> list[str]:
    schedule = plan.schedule
    if schedule.name == "constant" and not schedule.warmup:
        return []
    body = _SHAPES[schedule.name](plan)
    if schedule.min_eta:
        lowest = _text(schedule.min_eta / plan.optimizer.eta)
        body = f"{lowest} + (1 - {lowest}) * ({body})"
    lines = ["", "", "def factor(step):  # learning rate / peak learning rate"]
    if schedule.warmup:
        warm = _WARMUPS[schedule.warmup_shape](_text(schedule.warmup_start), f"step / {_text(schedule.warmup)}")
        lines += [f"    if step < {_text(schedule.warmup)}:", f"        return {warm}"]
    lines += [f"    return {body}", "", ""]
    return [
        *lines,
        "scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)  # step it after every optimizer step",
    ]


def torch_code(plan: Plan) -> str:
    """Return the PyTorch calls that build this plan's optimizer and schedule, to paste behind ``model = ...``."""
    steps = plan.total_steps
    header = [f"# batch size {plan.batch_size}" + (f", {_text(-(-steps // 1))} steps" if steps else "")]
    header += [f"# every {_text(max(1, round(every)))} steps: {name}" for name, every in plan.intervals.items()]
    schedule = _schedule(plan)
    lines = [f"optimizer = {_optimizer(plan.optimizer)}", *schedule]
    if plan.batchnorm_momentum is not None:
        lines += [
            "for module in model.modules():",
            "    if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):",
            f"        module.momentum = {_text(plan.batchnorm_momentum)}",
        ]
    if plan.ema is not None:
        lines += [
            "ema = torch.optim.swa_utils.AveragedModel(",
            f"    model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn({_text(plan.ema)})",
            ")  # ema.update_parameters(model) after every step",
        ]
    if plan.clip is not None:
        clip = f"torch.nn.utils.clip_grad_norm_(model.parameters(), {_text(plan.clip)})"
        lines.append(f"# between backward and optimizer.step(): {clip}")
    imports = ["import math", ""] if any("math." in line for line in schedule) else []
    return "\n".join([*header, *imports, "import torch", "", *lines])
