"""The options that make up a plan: those of `rootscale scale`, which `--values` of `rootscale check` takes too.

Sizes and lengths are texts that `rootscale.sizes` reads: ``0.5M``, ``2**19``, ``10B tokens``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from rootscale.optimizers import OPTIMIZERS
from rootscale.plan import Plan
from rootscale.schedule import SHAPES, WARMUPS
from rootscale.sizes import read_amount, read_size

#: Lengths of the run in other units than steps; each fills in the steps.
_LENGTHS = ("samples", "tokens")
#: The options that make up a plan: flag, the key of `Plan.to_dict` it fills (a dot leads into a part), how it is read.
_PLAN_OPTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("--optimizer", "optimizer.name", dict(choices=list(OPTIMIZERS), help="the optimizer")),
    ("--lr", "optimizer.eta", dict(type=float, metavar="ETA", help="learning rate (its peak)")),
    ("--betas", "optimizer.betas", dict(type=float, nargs=2, metavar="BETA", help="of Adam and those like it")),
    ("--alpha", "optimizer.beta", dict(type=float, metavar="BETA", help="of RMSprop (the paper's beta)")),
    ("--momentum", "optimizer.momentum", dict(type=float, help="of SGD, Muon and others that have one")),
    ("--eps", "optimizer.eps", dict(type=float, help="added to sqrt(v)")),
    ("--eps-root", "optimizer.eps_root", dict(type=float, metavar="EPS", help="added inside the root")),
    (
        "--weight-decay",
        "optimizer.weight_decay",
        dict(type=float, metavar="LAMBDA", help="decoupled (AdamW, Muon, Lion ...) or an L2 term (Adam, SGD ...)"),
    ),
    (
        "--batch-size",
        "batch_size",
        dict(metavar="B", help="a number, 0.5M or 2**19 tokens, or MICROxACCUMULATIONxWORKERS such as 32x4x8"),
    ),
    ("--sequence-length", "sequence_length", dict(metavar="TOKENS", help="of a sample; sizes may then count tokens")),
    ("--steps", "steps", dict(help="length of the run")),
    ("--tokens", "tokens", dict(help="length of the run, such as 10B; needs --sequence-length")),
    ("--samples", "samples", dict(help="length of the run, such as 5M")),
    ("--epochs", "epochs", dict(type=float, help="length of the run, with --dataset-size")),
    ("--dataset-size", "dataset_size", dict(metavar="N", help="samples in the data")),
    ("--schedule", "schedule.name", dict(choices=list(SHAPES), help="of the learning rate; default: constant")),
    ("--warmup-steps", "schedule.warmup", dict(metavar="STEPS", help="length of the warm-up; or '100M tokens'")),
    ("--warmup-shape", "schedule.warmup_shape", dict(choices=list(WARMUPS), help="default: linear")),
    ("--warmup-start", "schedule.warmup_start", dict(type=float, metavar="SHARE", help="of the peak, at step 0")),
    ("--min-lr", "schedule.min_eta", dict(type=float, metavar="ETA", help="lowest learning rate")),
    ("--milestones", "schedule.milestones", dict(nargs="+", metavar="STEP", help="of multistep")),
    ("--decay-every", "schedule.every", dict(metavar="STEPS", help="of step and exponential")),
    ("--decay-steps", "schedule.decay", dict(metavar="STEPS", help="of warmup-stable-decay")),
    ("--gamma", "schedule.gamma", dict(type=float, help="factor of step, multistep and exponential")),
    ("--power", "schedule.power", dict(type=float, help="of polynomial")),
    ("--ema", "ema", dict(type=float, metavar="DECAY", help="decay of a parameter average")),
    (
        "--batchnorm-momentum",
        "batchnorm_momentum",
        dict(type=float, metavar="P", help="weight of the new batch, as in torch"),
    ),
    ("--clip", "clip", dict(type=float, metavar="NORM", help="largest gradient norm")),
    ("--every", "intervals", dict(nargs="+", metavar="NAME=STEPS", help="intervals such as eval=1000 save=5000")),
    ("--noise-scale", "noise_scale", dict(metavar="SAMPLES", help="measured Tr Sigma / |grad|^2")),
)


def add_plan(run: Any) -> None:
    run.add_argument(
        "--plan", type=Path, metavar="FILE", help="a plan as JSON; options given besides it take precedence"
    )
    for flag, key, how in _PLAN_OPTIONS:
        named = {} if "choices" in how else {"metavar": flag.strip("-").upper()}
        run.add_argument(flag, dest=key, **{**named, **how})
    run.add_argument(
        "--decoupled", action="store_true", help="Adam's weight decay is decoupled: the same as --optimizer adamw"
    )


def plan_of_values(plan: Path | None, values: Sequence[str], batch_size: int | None) -> Plan:
    """Return the plan of a file and of texts such as ``lr=3e-4`` and ``betas=0.9,0.95``: the options of `scale`.

    >>> plan = plan_of_values(None, ["optimizer=adamw", "lr=1e-3", "betas=0.9,0.95", "every_eval=40"], 16)
    >>> plan.optimizer.beta2, plan.intervals
    (0.95, {'eval': 40})
    """
    flags = {flag[2:].replace("-", "_"): flag for flag, _, _ in _PLAN_OPTIONS}
    words, intervals = [] if plan is None else ["--plan", str(plan)], list[str]()
    for text in [*values, *([] if batch_size is None else [f"batch_size={batch_size}"])]:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if equals and name.startswith("every_"):
            intervals.append(f"{name.removeprefix('every_')}={value}")
            continue
        if equals and name == "every":
            intervals += value.split(",")
            continue
        if not equals or name not in flags:
            names = ", ".join(name for name in flags if name != "every")
            raise ValueError(f"--values takes NAME=VALUE, where NAME is one of {names} or every_NAME; got {text!r}")
        words += [flags[name], *value.split(",")]
    words += ["--every", *intervals] if intervals else []
    parser = argparse.ArgumentParser(exit_on_error=False, add_help=False, allow_abbrev=False)
    add_plan(parser)
    try:
        args, rest = parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        raise ValueError(f"--values: {error}") from None
    if rest:
        raise ValueError(f"--values: too many values, {' '.join(rest)}")
    return plan_of_options(args)


def plan_of_options(args: argparse.Namespace) -> Plan:
    """Return the plan of ``--plan`` with the options on top."""
    data: dict[str, Any] = {}
    if args.plan is not None:
        try:
            data = Plan.from_json(args.plan.read_text(encoding="utf-8")).to_dict(tuned=True)
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"cannot read {args.plan}: {getattr(error, 'strerror', None) or error}") from None
        except ValueError as error:
            raise ValueError(f"{args.plan}: {error}") from None
    for _, key, _ in _PLAN_OPTIONS:
        value = getattr(args, key)
        if value is None:
            continue
        if key == "intervals":
            value = _intervals(value)
        target = data
        *path, last = key.split(".")
        for part in path:
            target = target.setdefault(part, {})
        if key in _LENGTHS:
            _set_length(data, args, key, value)
        elif key == "sequence_length":
            data[key] = _whole(value)
        elif last == "betas":
            target["beta1"], target["beta2"] = value
        else:
            target[last] = value
    _by_label(data.get("optimizer", {}))
    if args.decoupled and data.get("optimizer", {}).get("name") == "adam":
        data["optimizer"]["name"] = "adamw"
    for key, flag in (("optimizer", "--optimizer"), ("batch_size", "--batch-size")):
        if key not in data:
            raise ValueError(f"{flag} is needed, or a --plan that has it")
    try:
        return Plan.from_dict(data)
    except ValueError as error:
        raise ValueError(_with_option(str(error))) from None


def _set_length(data: dict[str, Any], args: argparse.Namespace, unit: str, value: str) -> None:
    """Write a length in samples or tokens as that of the plan, which replaces the one of a plan file."""
    for other in ("steps", "epochs", *_LENGTHS):
        if other != unit and getattr(args, other) is not None:
            raise ValueError(f"give one length of the run, --{other} or --{unit}, not both")
    data.pop("epochs", None)
    amount = read_amount(value)
    if amount.unit not in ("", unit):
        raise ValueError(f"--{unit} must be a number of {unit} such as 10B, got {value!r}")
    data["steps"] = value if amount.unit else f"{value} {unit}"


def _whole(text: str) -> int:
    size = read_size(text)
    if size is None:
        raise ValueError(f"--sequence-length must be a whole number of tokens such as 2048, got {text!r}")
    return size


def _by_label(optimizer: dict[str, Any]) -> None:
    """Bring values to the fields that users know by another name: Muon's ``--momentum`` is its ``mu``."""
    record = OPTIMIZERS.get(str(optimizer.get("name")))
    if record is None:
        return
    own = {f.name for f in fields(record)}
    for f in fields(record):
        label = f.metadata.get("label")
        if label in optimizer and f.name not in optimizer and label not in own:
            optimizer[f.name] = optimizer.pop(label)


def _with_option(message: str) -> str:
    """Return an error about a field of a plan as one about the option that fills it.

    >>> _with_option("eta must be a finite number > 0, got -1")
    '--lr must be a finite number > 0, got -1'
    """
    name, _, rest = message.partition(" ")
    flags = {key.rpartition(".")[2]: flag for flag, key, _ in _PLAN_OPTIONS}
    flags |= {"beta1": "--betas: beta1", "beta2": "--betas: beta2"}
    return f"{flags[name]} {rest}" if name in flags and rest.startswith("must ") else message


def _intervals(words: Sequence[str]) -> dict[str, str]:
    intervals = {}
    for word in words:
        name, _, intervals[name] = word.partition("=")
        if not intervals[name]:
            raise ValueError(f"--every takes NAME=STEPS such as eval=1000, got {word!r}")
    return intervals
