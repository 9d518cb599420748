"""`TrainingArguments` of the same run at another batch size, for those who want new arguments for good.

The table of arguments is `rootscale.configs.tools.trainer.TRANSFORMERS`, which files are converted by too.
"""

from __future__ import annotations

import copy
import warnings as python_warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rootscale.batch_size import BatchSize
from rootscale.changes import Changes, ScalingWarning
from rootscale.checkpoints.huggingface import layout_at
from rootscale.configs.places import number
from rootscale.configs.reading import Length, Reading, read_configuration
from rootscale.configs.tools.trainer import LIVE_REFUSALS, TRANSFORMERS
from rootscale.configs.unknown import left_as_they_are
from rootscale.rules import Rule
from rootscale.units import Number

try:
    from transformers import TrainingArguments
except ImportError as error:
    raise ImportError(
        f"rootscale.integrations.transformers needs transformers 5 or newer, with accelerate ({error}): "
        "pip install 'rootscale[transformers]'"
    ) from error


class ArgumentsDocument:
    """Live arguments as a document, by the paths of the table; ``optim_args`` is read as the Trainer reads it."""

    def __init__(self, args: Any) -> None:
        self.args = args

    def __getitem__(self, path: str) -> Any:
        name, _, key = path.partition(".")
        value = getattr(self.args, name, None)
        if name == "optim_args" or key:
            entries = _table(name, value)
            return entries.get(key) if key else entries or None
        return getattr(value, "value", value)  # of an enumeration

    def __contains__(self, path: object) -> bool:
        return self[str(path)] is not None

    def get(self, path: str, default: Any = None) -> Any:
        """Return an argument, or the default where it is None."""
        value = self[path]
        return default if value is None else value

    def set(self, path: str, value: int | float) -> None:
        """Set an argument, or an entry of one."""
        name, _, key = path.partition(".")
        if name == "optim_args":
            entries = _table(name, self.args.optim_args) | {key: value}
            self.args.optim_args = ",".join(f"{each}={entries[each]}" for each in entries)
        elif key:
            setattr(self.args, name, {**(getattr(self.args, name) or {}), key: value})
        else:
            setattr(self.args, name, value)

    def paths(self) -> Iterator[str]:
        """Yield the names of all arguments, and of the entries of those that are dictionaries."""
        for name in vars(self.args):
            yield name
            value = self[name]
            if isinstance(value, dict):
                yield from (f"{name}.{key}" for key in value)


def _table(name: str, value: Any) -> dict[str, Any]:
    """What an argument holds: a mapping, an object with attributes, or the text of ``optim_args``."""
    if name == "optim_args":
        pairs = (part.partition("=") for part in (value or "").replace(" ", "").split(",") if part)
        return {key: number(word) for key, _, word in pairs}
    if isinstance(value, dict):
        return value
    return vars(value) if hasattr(value, "__dict__") else {}


def read_arguments(args: Any) -> Reading:
    """Return what the arguments say.

    Raises:
        ValueError: they could not be converted consistently; the message names the argument.
    """
    if not isinstance(args, TrainingArguments):
        raise TypeError(f"args must be transformers.TrainingArguments, got {type(args).__name__}")
    source = ArgumentsDocument(args)
    for refusal in LIVE_REFUSALS:
        refusal.check(source)
    return read_configuration(source, TRANSFORMERS)


def global_batch_size(args: Any, world_size: int | None = None) -> BatchSize:
    """Return the samples per optimizer step: per device x accumulation x devices.

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


def scale_training_arguments(
    args: Any,
    *,
    to: BatchSize | Number | str,
    world_size: int | None = None,
    dataset_size: int | None = None,
    rule: str | Rule | None = None,
) -> Any:
    """Return new `TrainingArguments` of the same run at another global batch size.

    Converted are the learning rate, Adam's betas and epsilon, decoupled weight decay, the gradient clip, the warm-up,
    ``max_steps``, the steps between logs, evaluations and checkpoints, and what ``lr_scheduler_kwargs`` holds of steps
    and learning rates. Shares (a warm-up of 0.1, say) and ``num_train_epochs`` mean the same at any batch size. All
    else stays; ``args`` itself is not changed. `explain_training_arguments` returns what is changed and why.

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
    (0.0006, 0.9, 0.0003)
    """
    reading, size, changes = _converted(args, to, world_size, dataset_size, rule)
    for message in changes.warnings:
        python_warnings.warn(message, ScalingWarning, stacklevel=2)
    new = copy.copy(args)
    for key, value in vars(args).items():  # so that whoever changes a list of the new ones leaves the old ones alone
        if isinstance(value, dict | list):
            setattr(new, key, copy.copy(value))
    new.per_device_train_batch_size, new.gradient_accumulation_steps = size.micro, size.accumulation
    document = ArgumentsDocument(new)
    for one, before in reading.values.items():
        after = changes[one.path].value
        if after is not None and after != before:
            document.set(one.path, after if isinstance(after, int) else float(after))
    _check_taken(new)
    return new


def _check_taken(args: Any) -> None:
    """Check that the Trainer hands ``optim_args`` on to RMSprop, whose alpha and eps are there."""
    held = _table("optim_args", args.optim_args) if args.optim == "rmsprop" else {}
    if held:
        import transformers

        _, given = transformers.Trainer.get_optimizer_cls_and_kwargs(args)
        lost = [name for name in held if name not in given]
        if lost:
            raise ValueError(
                f"transformers {transformers.__version__} does not give optim_args to RMSprop, so {', '.join(lost)} "
                "would be lost: use a newer version, or make the optimizer yourself, Trainer(optimizers=...)"
            )


def explain_training_arguments(
    args: Any,
    *,
    to: BatchSize | Number | str,
    world_size: int | None = None,
    dataset_size: int | None = None,
    rule: str | Rule | None = None,
) -> Changes:
    """Return what `scale_training_arguments` changes, each row with its status and its reason; print it."""
    return _converted(args, to, world_size, dataset_size, rule)[2]


def _converted(
    args: Any, to: BatchSize | Number | str, world_size: int | None, dataset_size: int | None, rule: str | Rule | None
) -> tuple[Reading, BatchSize, Changes]:
    """What the arguments say, the new batch size, and every change by the names of the arguments."""
    reading = read_arguments(args)
    old = global_batch_size(args, world_size)
    new = layout_at(old, BatchSize.of(to))
    plan = reading.plan(old, Length(dataset_size=dataset_size))
    changes = reading.changes(plan.convert(new, rule))
    left = left_as_they_are(vars(args).items(), reading.format, float(changes.kappa))
    return reading, new, replace(changes, warnings=(*changes.warnings, *left))
