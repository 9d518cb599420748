"""`TrainingArguments` of the same run at another batch size."""

from __future__ import annotations

import copy
import warnings as python_warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from rootscale.changes import Change, Changes, ScalingWarning
from rootscale.format import show
from rootscale.hparams import SGD, AdamW, Optimizer, RMSprop
from rootscale.plan import BatchSize, Plan
from rootscale.rules import Rule, get_rule
from rootscale.schedule import Schedule
from rootscale.units import Number

try:
    from transformers import TrainingArguments
except ImportError as error:
    raise ImportError(
        f"rootscale.integrations.transformers needs transformers 5 or newer, with accelerate ({error}): "
        "pip install 'rootscale[transformers]'"
    ) from error

__all__ = ["explain_training_arguments", "global_batch_size", "scale_training_arguments"]


def _adamw(args: Any) -> AdamW:
    return AdamW(
        args.learning_rate, args.adam_beta1, args.adam_beta2, args.adam_epsilon, weight_decay=args.weight_decay
    )


def _optim_args(args: Any) -> dict[str, str]:
    """``optim_args`` as the Trainer reads it: ``"alpha=0.99, eps=1e-8"``."""
    parts = (args.optim_args or "").replace(" ", "").split(",")
    return dict(part.split("=", 1) for part in parts if part)


def _rmsprop(args: Any) -> RMSprop:
    given = _optim_args(args)
    if float(given.get("momentum", 0)) or given.get("centered", "false").lower() in ("true", "1", "yes"):
        raise ValueError("RMSprop with momentum or centered follows no known SDE, so no rule keeps its dynamics")
    alpha, eps = float(given.get("alpha", 0.99)), float(given.get("eps", 1e-8))
    return RMSprop(args.learning_rate, alpha, eps, weight_decay=args.weight_decay)


def _sgd(args: Any) -> SGD:
    return SGD(args.learning_rate, float(_optim_args(args).get("momentum", 0)), args.weight_decay)


#: The values of ``optim`` whose optimizers follow a known SDE.
OPTIMIZERS: Mapping[str, Callable[[Any], Optimizer]] = MappingProxyType(
    {
        "adamw_torch": _adamw,
        "adamw_torch_fused": _adamw,
        "adamw_torch_xla": _adamw,
        "adamw_torch_npu_fused": _adamw,
        "rmsprop": _rmsprop,
        "sgd": _sgd,
    }
)


@dataclass(frozen=True)
class _Kind:
    """A value of ``lr_scheduler_type``: the units of its ``lr_scheduler_kwargs`` (None: a number without a unit).

    ``defaults`` are those that the library takes where none is given, although they have a unit.
    """

    units: Mapping[str, str | None] = field(default_factory=dict)
    defaults: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


_MIN_LR: dict[str, str | None] = {"num_cycles": None, "min_lr": "min_eta", "min_lr_rate": None}
_SCHEDULERS: Mapping[str, _Kind] = MappingProxyType(
    {
        "linear": _Kind(),
        "cosine": _Kind({"num_cycles": None}),
        "cosine_with_restarts": _Kind({"num_cycles": None}),
        "polynomial": _Kind({"lr_end": "min_eta", "power": None}, {"lr_end": 1e-7}),
        "constant": _Kind(),
        "constant_with_warmup": _Kind(),
        "inverse_sqrt": _Kind({"timescale": "steps"}),
        "cosine_with_min_lr": _Kind(_MIN_LR),
        "cosine_warmup_with_min_lr": _Kind(
            {**_MIN_LR, "warmup_lr_rate": None},
            note="cosine_warmup_with_min_lr is a step ahead of its formula, and that step is now another one: at equal "
            "samples its learning rate is the rule's multiple only to within a step",
        ),
        "warmup_stable_decay": _Kind(
            {"num_decay_steps": "steps", "num_stable_steps": "steps"}
            | dict.fromkeys(("warmup_type", "decay_type", "min_lr_ratio", "num_cycles"))
        ),
        # Its clock is the evaluations, which stay where they were in samples.
        "reduce_lr_on_plateau": _Kind(
            {"min_lr": "min_eta", "eps": "min_eta"}
            | dict.fromkeys(("mode", "factor", "patience", "threshold", "threshold_mode", "cooldown")),
            {"eps": 1e-8},
        ),
    }
)


def name_of(value: Any) -> str:
    return str(getattr(value, "value", value))


def check_arguments(args: Any) -> None:
    """Refuse by name what could not be converted consistently."""
    if not isinstance(args, TrainingArguments):
        raise TypeError(f"args must be transformers.TrainingArguments, got {type(args).__name__}")
    optim, scheduler = name_of(args.optim), name_of(args.lr_scheduler_type)
    if optim not in OPTIMIZERS:
        raise ValueError(
            f"optim={optim!r} follows no known SDE, so no rule keeps its dynamics; those that do: {_list(OPTIMIZERS)}"
        )
    if scheduler not in _SCHEDULERS:
        raise ValueError(
            f"lr_scheduler_type={scheduler!r} has no known clock; those that have one: {_list(_SCHEDULERS)}"
        )
    for key in args.lr_scheduler_kwargs or {}:
        if key not in _SCHEDULERS[scheduler].units:
            raise ValueError(
                f"lr_scheduler_kwargs of {scheduler!r} has {key!r}, whose unit is not known; known are "
                f"{_list(_SCHEDULERS[scheduler].units) or 'none'}"
            )
    if args.deepspeed:
        raise ValueError(
            "deepspeed has read the arguments into a configuration of its own already: convert that file instead "
            "and make the TrainingArguments anew"
        )
    if args.auto_find_batch_size:
        raise ValueError(
            "auto_find_batch_size changes the batch size and converts nothing: turn it off and state the batch size"
        )
    if getattr(args.accelerator_config, "split_batches", False):
        raise ValueError("split_batches makes per_device_train_batch_size mean another thing: turn it off")


def _list(names: Any) -> str:
    return ", ".join(names)


def global_batch_size(args: Any, world_size: int | None = None) -> BatchSize:
    """Samples per optimizer step: ``per_device_train_batch_size`` x ``gradient_accumulation_steps`` x workers.

    Args:
        args: `transformers.TrainingArguments`.
        world_size: devices that see different samples; None is what the arguments see on this machine, now.
    """
    if world_size is None:
        world_size = args.world_size * max(1, args.n_gpu)
        parallel = args.parallelism_config
        if parallel is not None:  # these processes share their samples
            world_size //= parallel.tp_size * parallel.cp_size * getattr(parallel, "sp_size", 1)
    return BatchSize(args.per_device_train_batch_size, args.gradient_accumulation_steps, world_size)


def _layout(old: BatchSize, to: BatchSize | Number | str) -> BatchSize:
    """Another total: the workers stay, and the micro-batch too where it divides, else the largest below that does."""
    new = BatchSize.of(to)
    if new.laid_out:
        return new
    each = Fraction(new.total) / old.workers
    if each.denominator != 1:
        below = int(each) * old.workers
        near = f"{below} or {below + old.workers}" if below else f"{old.workers}"
        raise ValueError(f"to={show(new.total)} does not divide among {old.workers} workers; {near} would")
    micro = next(size for size in range(int(old.micro), 0, -1) if each % size == 0)
    return BatchSize(micro, int(each) // micro, old.workers)


def scale_training_arguments(
    args: Any,
    *,
    to: BatchSize | Number | str,
    world_size: int | None = None,
    dataset_size: int | None = None,
    rule: str | Rule | None = None,
) -> Any:
    """New `TrainingArguments` of the same run at another global batch size.

    Converted are the learning rate, Adam's betas and epsilon, decoupled weight decay, the gradient clip, the warm-up,
    ``max_steps``, the steps between logs, evaluations and checkpoints, and what ``lr_scheduler_kwargs`` holds of steps
    and learning rates. Shares (a warm-up of 0.1, say) and ``num_train_epochs`` mean the same at any batch size. All
    else stays; ``args`` itself is not changed. `explain_training_arguments` says what is changed and why.

    Args:
        args: the arguments of the run as it is; subclasses stay what they are.
        to: the new global batch size, counted over devices and accumulation: a number, for which the accumulation
            changes and the batch per device stays where it can; or ``"8x4x16"``, batch per device x accumulation x
            devices.
        world_size: devices that see different samples; None is what this process sees.
        dataset_size: samples in the training data, to check a run whose length is in epochs.
        rule: a rule or its text, such as ``"sqrt"``, ``"with power"`` or ``"sqrt without batchnorm"``; None is the
            optimizer's own, ``sqrt`` for AdamW.

    Raises:
        ValueError: there are no such arguments; the message says what would work.

    >>> from transformers import TrainingArguments
    >>> args = TrainingArguments("out", per_device_train_batch_size=8, learning_rate=3e-4, adam_beta1=0.95,
    ...                          max_steps=1000, warmup_steps=100, use_cpu=True)
    >>> new = scale_training_arguments(args, to=32)
    >>> new.per_device_train_batch_size, new.gradient_accumulation_steps, new.max_steps, new.warmup_steps
    (8, 4, 250, 25)
    >>> new.learning_rate, round(new.adam_beta1, 12), args.learning_rate
    (0.0006, 0.8, 0.0003)
    """
    values, changes = _converted(args, to, world_size, dataset_size, rule)
    for message in changes.warnings:
        python_warnings.warn(message, ScalingWarning, stacklevel=2)
    new = copy.copy(args)
    for key, value in vars(args).items():  # so that whoever changes a list of the new ones leaves the old ones alone
        if isinstance(value, dict | list):
            setattr(new, key, copy.copy(value))
    for key, value in values.items():
        setattr(new, key, value)
    return new


def explain_training_arguments(
    args: Any,
    *,
    to: BatchSize | Number | str,
    world_size: int | None = None,
    dataset_size: int | None = None,
    rule: str | Rule | None = None,
) -> Changes:
    """What `scale_training_arguments` changes, each row with its status and its reason; print it."""
    return _converted(args, to, world_size, dataset_size, rule)[1]


def _intervals(args: Any) -> dict[str, int]:
    """What is done every so many steps; shares of the run (below 1) stay."""
    return {
        name: int(getattr(args, f"{name}_steps"))
        for name in ("logging", "eval", "save")
        if name_of(getattr(args, f"{name}_strategy")) == "steps" and (getattr(args, f"{name}_steps") or 0) >= 1
    }


def _converted(
    args: Any,
    to: BatchSize | Number | str,
    world_size: int | None,
    dataset_size: int | None,
    rule: str | Rule | None,
) -> tuple[dict[str, Any], Changes]:
    """The values that change, by the names of the arguments, and the table of changes."""
    check_arguments(args)
    old = global_batch_size(args, world_size)
    new = _layout(old, to)
    optimizer = OPTIMIZERS[name_of(args.optim)](args)
    chosen = get_rule(rule, optimizer.name)
    long = args.max_steps > 0
    epochs = Fraction(args.num_train_epochs) if dataset_size is not None and not long else None
    plan = Plan(
        optimizer,
        old.total,  # type: ignore[arg-type]
        steps=args.max_steps if long else None,
        epochs=epochs,
        dataset_size=dataset_size,
        schedule=Schedule(warmup=int(args.warmup_steps) if args.warmup_steps >= 1 else 0),
        clip=args.max_grad_norm or None,
        intervals=_intervals(args),
    )
    changes = plan.explain(new.total, chosen)
    rows = {row.name: row for row in changes}
    warnings = list(changes.warnings)

    if args.eval_delay and name_of(args.eval_strategy) == "steps":
        rows["eval_delay"] = _row(chosen, "eval_delay", "steps", args.eval_delay, changes.kappa, whole=True)
    if args.load_best_model_at_end and {"every eval", "every save"} <= set(rows):
        every = _used(rows["every eval"]) * Fraction(args.save_steps) / Fraction(args.eval_steps)
        if every != _used(rows["every save"]):
            rows["every save"] = replace(rows["every save"], used=int(every), note="a multiple of the evaluations")
    kwargs = dict(args.lr_scheduler_kwargs or {})
    for key, row in _scheduler_rows(args, chosen, changes.kappa).items():
        rows[f"lr_scheduler_kwargs {key}"] = row
        kwargs[key] = _plain(_used(row))

    names = {
        "learning_rate": "lr",
        "adam_beta1": "beta1",
        "adam_beta2": "beta2",
        "adam_epsilon": "eps",
        "weight_decay": "weight_decay",
        "max_steps": "steps" if long else "",
        "warmup_steps": "warm-up steps",
        "max_grad_norm": "clip norm",
        "logging_steps": "every logging",
        "eval_steps": "every eval",
        "save_steps": "every save",
        "eval_delay": "eval_delay",
    }
    if optimizer.name == "rmsprop":
        del names["adam_epsilon"]
    values: dict[str, Any] = {key: _plain(_used(rows[name])) for key, name in names.items() if name in rows}
    values |= {"per_device_train_batch_size": new.micro, "gradient_accumulation_steps": new.accumulation}
    if kwargs:
        values["lr_scheduler_kwargs"] = kwargs
    if isinstance(optimizer, RMSprop):
        own = {"alpha": rows["beta (alpha)"], "eps": rows["eps"]}
        texts = _optim_args(args) | {key: repr(float(_used(row))) for key, row in own.items()}
        values["optim_args"] = ",".join(f"{key}={value}" for key, value in texts.items())
    note = _SCHEDULERS[name_of(args.lr_scheduler_type)].note
    if note and changes.kappa != 1:
        warnings.append(note)
    title = f"{changes.title}, {_text(old)} -> {_text(new)} (per device x accumulation x devices)"
    return values, replace(changes, rows=tuple(rows.values()), warnings=tuple(warnings), title=title)


def _text(size: BatchSize) -> str:
    return f"{size.micro}x{size.accumulation}x{size.workers}"


def _used(row: Change) -> Any:
    return row.after if row.used is None else row.used


def _plain(value: Number) -> int | float:
    return value if isinstance(value, int) else float(value)


def _row(rule: Rule, name: str, unit: str, value: float, kappa: Number, whole: bool = False) -> Change:
    exact = Fraction(value) if whole else value
    after = rule.convert(unit, exact, kappa, name)
    used = max(1, round(after)) if whole else None
    note = f"rounded from {show(after)}" if whole and used != after else ""
    return Change(name, value, after, rule.units.get(unit), used, note)


def _scheduler_rows(args: Any, rule: Rule, kappa: Number) -> dict[str, Change]:
    kind = _SCHEDULERS[name_of(args.lr_scheduler_type)]
    values = {**kind.defaults, **(args.lr_scheduler_kwargs or {})}
    if name_of(args.lr_scheduler_type) == "inverse_sqrt" and not args.warmup_steps:
        values.setdefault("timescale", 10_000)  # what the library takes
    rows = {}
    for key, value in values.items():
        unit = kind.units[key]
        if unit is not None and value is not None:
            rows[key] = _row(rule, f"lr_scheduler_kwargs {key}", unit, value, kappa, whole=unit == "steps")
    return rows
