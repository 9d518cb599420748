"""The same run at another batch size, for a configuration file: what changes, and the file with just that changed."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from rootscale.changes import Change, Changes
from rootscale.format import show
from rootscale.integrations.configs.documents import Document, guess_syntaxes
from rootscale.integrations.configs.formats import (
    BASE_LR,
    BATCHNORM,
    EVERY,
    FORMATS,
    PLAN_ROLES,
    SCHEDULE,
    UNIT_ROLES,
    Field,
    Format,
    Kind,
    Layout,
)
from rootscale.plan import BatchSize, Plan
from rootscale.rules import Rule
from rootscale.units import AVERAGE, AVERAGE_POWER, COMPLEMENT, KEPT, Number, Unit

#: Values that a file may have in the place of a number, filled in elsewhere.
AUTO = "auto"


@dataclass(frozen=True)
class Conversion:
    """A converted file.

    Args:
        format: what kind of file it is.
        before: its text.
        after: its new text.
        values: the new value of every field that changed, by path.
        changes: every known quantity with its reason, and the warnings.
        plan: the run that the file describes, as far as it does.
    """

    format: Format
    before: str
    after: str
    values: Mapping[str, int | float]
    changes: Changes
    plan: Plan

    def diff(self, name: str = "config") -> str:
        """The change as a unified diff."""
        sides = (self.before.splitlines(keepends=True), self.after.splitlines(keepends=True))
        lines = difflib.unified_diff(*sides, name, name)
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"format": self.format.name, "values": dict(self.values), **self.changes.to_dict()}


def convert(
    text: str,
    to: BatchSize | Number | str,
    *,
    start: BatchSize | Number | str | None = None,
    world_size: int | None = None,
    rule: str | Rule | None = None,
    dataset_size: int | None = None,
    steps: Number | None = None,
    format: str | None = None,
) -> Conversion:
    """A configuration file for another batch size; the text is not changed but for the values that have to.

    Args:
        text: of the file.
        to: the new number of samples per optimizer step, or ``"32x4x8"`` (micro x accumulation x workers).
        start: the old one, where the file does not have it.
        world_size: workers that share a batch (data parallel), where the file has samples per worker only.
        rule: a rule or its text, such as ``"sqrt"``, ``"with power"`` or ``"sqrt without batchnorm"``; None is the
            optimizer's own.
        dataset_size: samples in the data; where the file's length is in epochs, the explanation has the steps then.
        steps: length of the run, where the file does not have it; it is explained, not written.
        format: one of `FORMATS`; None finds it out.

    Raises:
        ValueError: the file cannot be converted as a whole; nothing is converted then.

    >>> print(convert('{"train_batch_size": 256, "optimizer": {"type": "AdamW", "params": '
    ...               '{"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}}}', 1024).after)
    {"train_batch_size": 1024, "optimizer": {"type": "AdamW", "params":
    {"lr": 0.0006, "betas": [0.6, 0.8], "eps": 5e-09, "weight_decay": 0.2}}}
    """
    document, known = read(text, format)
    for guard in known.guards:
        if reason := guard(document):
            raise ValueError(reason)
    kind = _kind(document, known)
    fields = (*kind.fields, *known.fields, *_schedule(document, known))
    batch = _batch(document, known.layout, start, to, world_size)
    values = {f: value for f in fields if (value := _value(document, f)) is not None}
    auto = list(dict.fromkeys(path for f in fields if (path := _auto(document, f))))
    plan = _plan(document, known, kind, values, batch, dataset_size, steps)
    explained = plan.explain(batch.new, rule)
    rows: list[Change] = []
    new: dict[str, int | float] = dict(batch.values)
    for f, value in values.items():
        row = _row(f, value, explained, batch, document)
        rows.append(row)
        after = _written(row, batch.kappa)
        if after is not None and after != value:
            new[f.path] = after
    if "steps" not in (f.role for f in values) and plan.total_steps is not None:
        rows.append(explained["steps"])
    warnings = [*explained.warnings, *(remark(document, float(batch.kappa)) for remark in known.remarks), *batch.notes]
    if auto:
        warnings.append(f'{", ".join(auto)}: "auto" is filled in from the training arguments; convert those too')
    changes = replace(explained, rows=tuple(rows), warnings=tuple(dict.fromkeys(filter(None, warnings))))
    written = {path: value for path, value in new.items() if document[path] != value}
    return Conversion(known, text, document.write(written), written, changes, plan)


def read(text: str, format: str | None = None) -> tuple[Document, Format]:
    """The values of a file, and which format it is."""
    syntaxes = guess_syntaxes(text)
    if format is not None and format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    formats = list(FORMATS.values()) if format is None else [FORMATS[format]]
    found = [(syntax, known) for syntax in syntaxes for known in formats if syntax in known.syntaxes]
    for syntax, known in found:
        document = Document(text, syntax, known.flat)
        if known.matches(document):
            return document, known
    if format is not None:
        if not found:
            usual = " or ".join(formats[0].syntaxes)
            raise ValueError(f"{format} files are {usual}, this one looks like {syntaxes[0]}")
        syntax, known = found[0]
        return Document(text, syntax, known.flat), known
    raise ValueError(
        f"the format is not known; looked for {', '.join(f.looked_for for f in FORMATS.values())}, and found "
        f"{syntaxes[0]} without them; --format names it"
    )


def _kind(document: Document, known: Format) -> Kind:
    name = document[known.optimizer]
    if name is None and not known.default_optimizer:
        raise ValueError(
            f"{known.optimizer} is not in the file: the optimizer is made elsewhere (in code, or by the training "
            "arguments), and has to be converted there"
        )
    kind = known.optimizers.get(str(name or known.default_optimizer).lower())
    if kind is None:
        raise ValueError(
            f"{known.optimizer}={name!r}: there is no rule for this optimizer; "
            f"there is one for {', '.join(known.optimizers)}"
        )
    if kind.switch is not None and document[kind.switch[0]] is kind.switch[1]:
        return replace(kind, name=kind.switch[2])
    return kind


def _schedule(document: Document, known: Format) -> tuple[Field, ...]:
    name = document[known.schedule]
    if name is None:
        return ()
    fields = known.schedules.get(str(name).lower())
    if fields is None or isinstance(fields, str):
        usable = [name for name, value in known.schedules.items() if name and not isinstance(value, str)]
        reason = fields or "this schedule's clock is not known"
        raise ValueError(f"{known.schedule}={name!r}: {reason}; known are {', '.join(usable)}")
    return fields


def _auto(document: Document, f: Field) -> str:
    """The path, or that of the list it is in, if it says that its value comes from elsewhere."""
    parent, _, last = f.path.rpartition(".")
    path = parent if last.isdigit() and f.path not in document else f.path
    return path if document[path] == AUTO else ""


def _value(document: Document, f: Field) -> int | float | None:
    """The value of a field, the tool's default where it has none; None where there is nothing to convert."""
    value = document[f.path]
    if _auto(document, f) or (f.when and not document[f.when]):
        return None
    if f.role == BASE_LR and document["lr"]:
        return None  # overridden by lr
    if value is None and f.needed:
        raise ValueError(f"{f.path} is not in the file, and {f.needed}; write it there")
    if value is None:
        _check_parents(document, f)
        return None if any(document[path] for path in f.unless) else f.default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{f.path} must be a number, got {value!r}")
    counts = f.role in ("steps", SCHEDULE, EVERY)
    if counts and 0 < value < 1:
        return None  # a share of the run
    if value <= 0 and (counts or f.role in ("clip", BASE_LR)):
        return None  # the tools' way to say: not set
    if f.role == "lr" and value == 0:
        raise ValueError(f"{f.path} must be above 0, got {value!r}")
    return value


def _check_parents(document: Document, f: Field) -> None:
    """Where a field is missing, what it would be in must not be something else: that would be written over."""
    *parents, last = f.path.split(".")
    for i in range(1, len(parents) + 1):
        path = ".".join(parents[:i])
        holder, kind = document[path], list if last.isdigit() and i == len(parents) else dict
        if holder is not None and not isinstance(holder, kind):
            wanted = "a list of numbers" if kind is list else "names and values"
            raise ValueError(f"{path} must be {wanted}, got {holder!r}")
        if kind is list and holder is not None:
            raise ValueError(f"{path} must be a list of at least {int(last) + 1} numbers, got {len(holder)}")


@dataclass(frozen=True)
class _Batch:
    """Both batch sizes, how the samples per forward pass of all workers change, and what to write."""

    old: BatchSize
    new: BatchSize
    forward: Fraction
    values: Mapping[str, int]
    notes: tuple[str, ...] = ()

    @property
    def kappa(self) -> Fraction:
        return Fraction(self.new.total) / Fraction(self.old.total)


def _size(document: Document, path: str) -> int | None:
    value = document[path] if path else None
    if value in (None, AUTO) or (isinstance(value, int) and not isinstance(value, bool) and value <= 0):
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{path} must be a whole number, got {value!r}")
    return value


def _batch(document: Document, layout: Layout, start: Any, to: Any, world_size: int | None) -> _Batch:
    total, micro, accumulation = (_size(document, path) for path in (layout.total, layout.micro, layout.accumulation))
    given = None if start is None else BatchSize.of(start)
    workers = given.workers if given is not None and given.laid_out else world_size
    if workers is not None and workers < 1:
        raise ValueError(f"the world size must be a whole number above 0, got {workers!r}")
    steps = accumulation or (None if document[layout.accumulation] == AUTO else 1) if layout.accumulation else 1
    if total is None and micro is not None and workers is not None and steps is not None:
        total = micro * steps * workers
    if total is None:
        if given is None:
            here = f"{layout.micro}={micro} is per worker" if micro else f"{layout.total or layout.micro} is not there"
            raise ValueError(
                f"the file does not say how many samples a step takes ({here}): give the number of data-parallel "
                "workers (--world-size) or the batch size itself (--from)"
            )
        total = int(given.total)
        if micro and steps and layout.accumulation and workers is None and total % (micro * steps) == 0:
            workers = total // (micro * steps)
    if given is not None and given.total != total:
        raise ValueError(f"the batch size of the file is {show(total)}, and {show(given.total)} was given")
    if micro and workers and accumulation and micro * workers * accumulation != total:
        raise ValueError(
            f"{layout.total}={total} is not {micro} micro x {accumulation} accumulation x {workers} workers"
        )
    if micro and accumulation and workers is None and total % (micro * accumulation) == 0:
        workers = total // (micro * accumulation)
    return _new_batch(document, layout, (total, micro, workers), to)


def _new_batch(document: Document, layout: Layout, old: tuple[int, int | None, int | None], to: Any) -> _Batch:
    (total, micro, workers), new = old, BatchSize.of(to)
    laid_out = new.laid_out
    if not isinstance(new.total, int):
        raise ValueError(f"the new batch size must be a whole number, got {show(new.total)}")
    values: dict[str, int] = {}
    forward = Fraction(new.total, total)
    here = int(new.micro) if laid_out else micro
    hands = new.workers if laid_out else workers
    if here and new.total % (here * (hands or 1)):
        raise ValueError(
            f"batch size {show(new.total)} is no multiple of {here} micro x {hands or 1} workers: choose its layout "
            f"yourself, as MICROxACCUMULATIONxWORKERS"
        )
    if micro and workers and here and hands:
        forward = Fraction(here * hands, micro * workers)
    if layout.total and (_size(document, layout.total) or not layout.accumulation):
        values[layout.total] = new.total
    if laid_out and _size(document, layout.micro):
        values[layout.micro] = int(new.micro)
    derived = _size(document, layout.total) and not _size(document, layout.accumulation)
    if layout.accumulation and here and hands and not derived and document[layout.accumulation] != AUTO:
        steps = new.total // (here * hands)
        if steps != (_size(document, layout.accumulation) or 1):
            values[layout.accumulation] = steps
    notes: tuple[str, ...] = ()
    if not values and new.total != total and not (layout.accumulation and here and hands):
        notes = ("the batch size itself is not written: the file has no number for it",)
    return _Batch(BatchSize.of(total), BatchSize.of(new.total), forward, values, notes)


def _plan(
    document: Document,
    known: Format,
    kind: Kind,
    values: Mapping[Field, int | float],
    batch: _Batch,
    dataset_size: int | None,
    steps: Number | None,
) -> Plan:
    # Where a value is not in the file ("auto") the plan needs one that no limit is reached with; it is not shown.
    average = 1 - 1e-12
    data: dict[str, Any] = {"optimizer": {"name": kind.name, "eta": 1.0}, "intervals": {}}
    for f in kind.fields:
        if f.role in ("beta1", "beta2", "alpha"):
            data["optimizer"][PLAN_ROLES[f.role].rpartition(".")[2]] = average
    for f, value in values.items():
        if f.role in PLAN_ROLES:
            target, _, key = PLAN_ROLES[f.role].rpartition(".")
            (data[target] if target else data)[key] = value
        elif f.role in (SCHEDULE, EVERY):
            data["intervals"][f.path] = value
    if steps is not None and data.setdefault("steps", steps) != steps:
        raise ValueError(f"the file's run has {show(data['steps'])} steps, and {show(steps)} were given")
    epochs = document[known.epochs] if known.epochs else None
    if dataset_size is not None and "steps" not in data and isinstance(epochs, int | float) and epochs > 0:
        data |= {"epochs": epochs, "dataset_size": dataset_size}
    return Plan.from_dict({**data, "batch_size": int(batch.old.total)})


def _row(f: Field, value: int | float, explained: Changes, batch: _Batch, document: Document) -> Change:
    rule = explained.rule
    note = "" if document[f.path] is not None else "not in the file: the tool's default"
    if f.role in PLAN_ROLES:
        if not value:  # explain leaves out what is 0 and stays 0
            return Change(f.path, value, value, None, note=note)
        row = explained[PLAN_ROLES[f.role]]
    elif f.role in (SCHEDULE, EVERY):
        row = explained[f"intervals.{f.path}"]
        if f.role == SCHEDULE and row.after is not None and row.after < Fraction(1, 2):
            raise ValueError(
                f"{f.path}={show(value)} would become {show(row.after)} of a step; "
                f"need kappa <= {show(2 * Fraction(value))}, or write 0 if there is to be none"
            )
    elif f.role == BATCHNORM:
        row = _unit_row(f, value, rule, "batchnorm", batch.forward)
        if batch.forward != batch.kappa:
            row = replace(row, note=f"it counts forward passes, whose samples change by {show(batch.forward)}")
    elif f.role == BASE_LR:
        row = _base_lr(f, value, rule, batch, document)
    else:
        row = _unit_row(f, value, rule, UNIT_ROLES[f.role], batch.kappa)
    return replace(row, name=f.path, field=f.path, before=value, note="; ".join(filter(None, (row.note, note))))


def _unit_row(f: Field, value: Number, rule: Rule, key: str, kappa: Fraction) -> Change:
    return Change(f.path, value, rule.convert(key, value, kappa, f.path), rule.units.get(key))


def _base_lr(f: Field, value: float, rule: Rule, batch: _Batch, document: Document) -> Change:
    """timm: ``lr = lr_base * (batch / lr_base_size)^p``, with p = 1/2 for ``sqrt`` and 1 for ``linear``."""
    name = document["lr_base_scale"] or (
        "sqrt" if any(part in str(document["opt"]).lower() for part in ("ada", "lamb")) else "linear"
    )
    own = float(batch.kappa) ** (0.5 if name == "sqrt" else 1.0)
    after = float(rule.convert("eta", value, batch.kappa, f.path)) / own
    if math.isclose(after, value, rel_tol=1e-12):
        why = f"timm multiplies it with the {name} scale of the batch size, as the rule does"
        return Change(f.path, value, value, _kept(rule.units.get("eta"), why))
    note = f"timm itself multiplies with {show(own)} ({name} scale)"
    return Change(f.path, value, after, rule.units.get("eta"), note=note)


def _kept(unit: Unit | None, why: str) -> Unit | None:
    return unit and replace(unit, form=KEPT, why=why)


def _written(row: Change, kappa: Fraction) -> int | float | None:
    """The new value without the last digits that only show rounding: 0.6, not 0.6000000000000001.

    What is within the rounding of a number of 9 digits is that number, so going back gives the value one came from.
    Rounding is relative but for ``1 - kappa (1 - x)``, where that of ``1 - x`` is multiplied with kappa.
    """
    after = row.after if row.used is None else row.used
    if after is None or isinstance(after, int):
        return after
    value = float(after)
    short = float(f"{value:.9g}")
    form = row.unit and row.unit.form
    noise = 1e-14 * (1.0 if form is AVERAGE else abs(value))
    if form in (AVERAGE, AVERAGE_POWER, COMPLEMENT):
        noise *= max(1.0, float(kappa) / 5)
    return short if abs(short - value) <= noise else value
