"""`rootscale scale`, `rootscale units` and `rootscale rules`: what the table of units says about a run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from rootscale.batch_size import BatchSize
from rootscale.cli.console import make_console
from rootscale.cli.render import render_changes
from rootscale.cli.tables import Column, FittedTable
from rootscale.optimizers import FAMILIES, OPTIMIZERS
from rootscale.plan import Plan
from rootscale.rules import AVERAGINGS, RULES, get_averaging, get_rule, is_rule, rule_text
from rootscale.schedule import SHAPES, WARMUPS
from rootscale.tables import rules_data, units_data
from rootscale.units import TABLE

__all__ = ["RULE_NAMES", "add_parsers", "averaging", "plan_of_values"]

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
    ("--batch-size", "batch_size", dict(metavar="B", help="a number, or MICROxACCUMULATIONxWORKERS such as 32x4x8")),
    ("--steps", "steps", dict(type=float, help="length of the run")),
    ("--epochs", "epochs", dict(type=float, help="length of the run, with --dataset-size")),
    ("--dataset-size", "dataset_size", dict(type=int, metavar="N", help="samples in the data")),
    ("--schedule", "schedule.name", dict(choices=list(SHAPES), help="of the learning rate; default: constant")),
    ("--warmup-steps", "schedule.warmup", dict(type=float, metavar="STEPS", help="length of the warm-up")),
    ("--warmup-shape", "schedule.warmup_shape", dict(choices=list(WARMUPS), help="default: linear")),
    ("--warmup-start", "schedule.warmup_start", dict(type=float, metavar="SHARE", help="of the peak, at step 0")),
    ("--min-lr", "schedule.min_eta", dict(type=float, metavar="ETA", help="lowest learning rate")),
    ("--milestones", "schedule.milestones", dict(type=float, nargs="+", metavar="STEP", help="of multistep")),
    ("--decay-every", "schedule.every", dict(type=float, metavar="STEPS", help="of step and exponential")),
    ("--decay-steps", "schedule.decay", dict(type=float, metavar="STEPS", help="of warmup-stable-decay")),
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
    ("--noise-scale", "noise_scale", dict(type=float, metavar="SAMPLES", help="measured Tr Sigma / |grad|^2")),
)


class _RuleNames(tuple[str, ...]):
    """The names of rules, which completion and errors list; ``normalized:10`` stands for one with every number."""

    __slots__ = ()

    def __contains__(self, text: object) -> bool:
        return is_rule(str(text))


RULE_NAMES = _RuleNames((*RULES, "normalized:10"))


def averaging(text: str) -> str:
    """Return the name of a form of averaging, or raise what argparse shows."""
    try:
        get_averaging(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def add_parsers(commands: Any) -> None:
    """Adds the commands to the result of ``ArgumentParser.add_subparsers``; ``args.handler(args)`` runs one."""
    scale = commands.add_parser(
        "scale",
        usage="rootscale scale --optimizer NAME --lr ETA --batch-size B --to B [...]",
        help="the same run at another batch size",
        description="Print a run at another batch size: every value before and after, its status and the reason.",
        epilog="example: rootscale scale --optimizer adamw --lr 3e-4 --betas 0.9 0.95 --weight-decay 0.1 "
        "--batch-size 256 --to 1024 --steps 100000 --warmup-steps 2000 --ema 0.9999",
    )
    target = scale.add_argument_group("the change")
    target.add_argument("--to", required=True, metavar="B", help="the new batch size, as --batch-size")
    target.add_argument(
        "--rule", choices=RULE_NAMES, metavar="RULE", help="see `rootscale rules`; default: the optimizer's own"
    )
    target.add_argument(
        "--averaging", type=averaging, default="floor", metavar="FORM",
        help="of the betas: " + "; ".join(f"{name} ({row.text})" for name, row in AVERAGINGS.items()),
    )  # fmt: skip
    _add_plan(scale.add_argument_group("the run"))
    output = scale.add_argument_group("output").add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="both plans and the changes, machine-readable")
    output.add_argument("--snippet", choices=["torch"], help="code to paste instead of the table")
    scale.set_defaults(handler=_scale)

    _add_table(
        commands, "units", _units, "the table of units: how each quantity changes with the batch size",
        "Print the table of units: what every quantity of a run becomes at kappa times the batch size, how sure that "
        "is (theorem, derived, measured or heuristic), why, and where it comes from.",
    )  # fmt: skip
    _add_table(
        commands, "rules", _rules, "the scaling rules, what each converts, and the rule of each optimizer",
        "Print the rules that --rule takes with the rows of `rootscale units` that each converts, and the optimizers "
        "that are known, each with its own rule and how sure it is.",
    )  # fmt: skip


def _add_table(commands: Any, name: str, handler: Any, summary: str, description: str) -> None:
    parser = commands.add_parser(
        name, help=summary, description=description, epilog=f"example: rootscale {name} --json"
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON, with every form as data")
    parser.set_defaults(handler=handler)


def _add_plan(run: Any) -> None:
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

    >>> plan_of_values(None, ["optimizer=adamw", "lr=1e-3", "betas=0.9,0.95", "steps=100"], 16).optimizer.beta2
    0.95
    """
    flags = {flag[2:].replace("-", "_"): flag for flag, _, _ in _PLAN_OPTIONS}
    words = [] if plan is None else ["--plan", str(plan)]
    for text in [*values, *([] if batch_size is None else [f"batch_size={batch_size}"])]:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in flags:
            raise ValueError(f"--values takes NAME=VALUE, where NAME is one of {', '.join(flags)}; got {text!r}")
        words += [flags[name], *value.split(",")]
    parser = argparse.ArgumentParser(exit_on_error=False, add_help=False, allow_abbrev=False)
    _add_plan(parser)
    try:
        args, rest = parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        raise ValueError(f"--values: {error}") from None
    if rest:
        raise ValueError(f"--values: too many values, {' '.join(rest)}")
    return _plan(args)


def _plan(args: argparse.Namespace) -> Plan:
    """Return the plan of ``--plan`` with the options on top."""
    data: dict[str, Any] = {}
    if args.plan is not None:
        try:
            data = Plan.from_json(args.plan.read_text(encoding="utf-8")).to_dict()
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
        if last == "betas":
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


def _intervals(words: Sequence[str]) -> dict[str, float]:
    intervals = {}
    for word in words:
        name, _, steps = word.partition("=")
        try:
            intervals[name] = float(steps)
        except ValueError:
            raise ValueError(f"--every takes NAME=STEPS such as eval=1000, got {word!r}") from None
    return intervals


def _scale(args: argparse.Namespace) -> int:
    from rootscale.snippets import torch_code

    plan = _plan(args)
    try:
        size = BatchSize.of(args.to)
    except ValueError as error:
        raise ValueError(str(error).replace("batch_size", "--to", 1)) from None
    conversion = plan.convert(size, rule_text(args.rule, args.averaging))
    new, changes = conversion.plan, conversion.changes
    if args.json:
        print(json.dumps({"from": plan.to_dict(), "to": new.to_dict(), **changes.to_dict()}, indent=2))
    elif args.snippet:
        print(torch_code(new))
        for warning in changes.warnings:
            print(f"rootscale scale: warning: {warning}", file=sys.stderr)
    else:
        make_console().print(render_changes(changes))
    return 0


def _units(args: argparse.Namespace) -> int:
    if args.json:
        print(json.dumps(units_data(), indent=2))
        return 0
    columns = [Column("key"), Column("quantity", folds=True), Column("x becomes"), Column("status")]
    rows = [(u.key, u.label, u.form.text, u.status, f"{u.why} ({u.source})") for u in TABLE]
    make_console().print(FittedTable([*columns, Column("why (source)", folds=True)], rows))
    return 0


def _rules(args: argparse.Namespace) -> int:
    if args.json:
        print(json.dumps(rules_data(), indent=2))
        return 0
    rules = []
    for rule in (*RULES.values(), get_rule(RULE_NAMES[-1], "muon")):
        converted = [key for key, unit in rule.units.items() if unit.form.text != "x"]
        rules.append((rule.name, rule.summary, ", ".join(converted)))
    families = [
        (row.name, ", ".join(row.rules), row.status, row.why, row.measured and f"results/{row.measured}")
        for row in FAMILIES.values()
    ]
    console = make_console()
    console.print(
        FittedTable([Column("rule"), Column("what it is", folds=True), Column("converts", folds=True)], rules)
    )
    columns = [Column("optimizer"), Column("rules, its own first", folds=True), Column("status")]
    console.print(FittedTable([*columns, Column("why", folds=True), Column("measured in", folds=True)], families))
    return 0
