"""A run on paper: everything about it that a change of batch size may have to convert."""

from __future__ import annotations

import difflib
import json
import math
import warnings as python_warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from fractions import Fraction
from typing import Any

from rootscale.changes import Change, Changes, ScalingWarning
from rootscale.format import show
from rootscale.hparams import OPTIMIZERS, Optimizer, positive, quantity, validate
from rootscale.rules import Averaging, Rule, get_rule, svag_weights
from rootscale.schedule import Count, Schedule, count
from rootscale.units import Number


@dataclass(frozen=True)
class BatchSize:
    """Samples per optimizer step: ``micro`` per backward, times ``accumulation``, times ``workers``.

    >>> BatchSize.of("32x4x8").total
    1024
    """

    micro: Count
    accumulation: int = 1
    workers: int = 1

    def __post_init__(self) -> None:
        for name in ("micro", "accumulation", "workers"):
            value = count("batch_size" if name == "micro" else name, getattr(self, name))
            if isinstance(value, Fraction) and (name != "micro" or self.accumulation != 1 or self.workers != 1):
                raise ValueError(f"{name} must be a whole number, got {show(value)}")
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, value: BatchSize | Number | str) -> BatchSize:
        """From a number, or from ``"micro x accumulation x workers"`` such as ``"32x4x8"``."""
        if isinstance(value, BatchSize):
            return value
        if isinstance(value, str):
            parts = value.lower().replace("×", "x").split("x")
            if len(parts) not in (1, 3):
                raise ValueError(
                    f"batch_size must be a number or MICROxACCUMULATIONxWORKERS such as 32x4x8, got {value!r}"
                )
            return cls(*(part.strip() for part in parts))  # type: ignore[arg-type]
        return cls(value)  # type: ignore[arg-type]

    @property
    def total(self) -> Count:
        """Samples per optimizer step; a fraction stands for a nominal batch size, as SVAG's."""
        return self.micro * self.accumulation * self.workers

    @property
    def forward(self) -> Count:
        """Samples of one forward pass, over all workers: BatchNorm's running averages take a step with each."""
        return self.micro * self.workers

    @staticmethod
    def laid_out(value: BatchSize | Number | str) -> bool:
        """Whether what `of` takes says how the samples are laid out: ``256x1x1`` does, 256 does not."""
        return isinstance(value, BatchSize) or (isinstance(value, str) and "x" in value.lower().replace("×", "x"))

    @property
    def plain(self) -> bool:
        """Whether it is a mere number, without accumulation or workers."""
        return self.accumulation == self.workers == 1

    def at(self, other: BatchSize | Number | str) -> BatchSize:
        """The layout for another total: where it divides, the accumulation follows and the rest stays."""
        new = BatchSize.of(other)
        if self.plain or not new.plain:
            return new
        accumulation = Fraction(new.total) / (self.micro * self.workers)
        return replace(self, accumulation=int(accumulation)) if accumulation.denominator == 1 else new

    def __str__(self) -> str:
        if self.plain:
            return show(self.total)
        return f"{show(self.total)} ({self.micro} micro x {self.accumulation} accumulation x {self.workers} workers)"

    def to_json(self) -> int | str:
        """A number, or the text that `of` reads."""
        if self.plain:
            return self.micro if isinstance(self.micro, int) else str(self.micro)
        return f"{self.micro}x{self.accumulation}x{self.workers}"


@dataclass(frozen=True)
class Plan:
    """A run: optimizer, batch size, length, schedule and whatever else is counted in steps or measured in noise.

    Counts of steps are exact: whole numbers, or fractions after a change of batch size that does not divide them. So
    the total of samples never changes, and going back gives the plan one came from.

    Args:
        optimizer: `Adam`, `AdamW`, `RMSprop` or `SGD`.
        batch_size: samples per step; a number, ``"32x4x8"`` (micro x accumulation x workers) or a `BatchSize`.
        steps: length of the run in optimizer steps; or give ``epochs`` and ``dataset_size``.
        epochs: length of the run in passes over the data.
        dataset_size: samples in the data.
        schedule: of the learning rate.
        ema: decay of a running average of the parameters, per step.
        batchnorm_momentum: of BatchNorm's running statistics, torch's convention (weight of the new batch).
        clip: largest gradient norm.
        intervals: anything done every so many steps, by name: ``{"eval": 1000, "save": 5000}``.
        noise_scale: measured ``Tr Sigma / |grad f|^2`` in samples; beyond it the noise no longer dominates.

    >>> from rootscale import AdamW, Plan, Schedule
    >>> plan = Plan(AdamW(eta=3e-4), batch_size=256, steps=100_000, schedule=Schedule("cosine", warmup=2_000))
    >>> big = plan.at(1024)
    >>> big.optimizer.eta, round(big.optimizer.beta2, 12), big.steps, big.schedule.warmup
    (0.0006, 0.996, 25000, 500)
    >>> big.samples == plan.samples and big.at(256).steps == plan.steps
    True
    """

    optimizer: Optimizer
    batch_size: BatchSize
    steps: Count | None = quantity("steps", default=None)
    epochs: Count | None = None
    dataset_size: int | None = None
    schedule: Schedule = field(default_factory=Schedule)
    ema: float | None = quantity("ema", "EMA decay", default=None)
    batchnorm_momentum: float | None = quantity("batchnorm", "BatchNorm momentum", default=None)
    clip: float | None = quantity("clip", "clip norm", default=None)
    intervals: Mapping[str, Count] = quantity("steps", "every", default_factory=dict)
    noise_scale: float | None = None

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        if not isinstance(self.optimizer, Optimizer):
            raise ValueError(f"optimizer must be Adam, AdamW, RMSprop or SGD, got {self.optimizer!r}")
        if not isinstance(self.schedule, Schedule):
            raise ValueError(f"schedule must be a Schedule, got {self.schedule!r}")
        put("batch_size", BatchSize.of(self.batch_size))
        for name in ("steps", "epochs", "dataset_size"):
            value = getattr(self, name)
            if value is not None:
                put(name, count(name, value))
        if self.steps is not None and self.epochs is not None:
            raise ValueError("give steps, or epochs and dataset_size, not both")
        if self.epochs is not None and self.dataset_size is None:
            raise ValueError("epochs needs dataset_size, the number of samples in the data")
        validate(self)
        if not isinstance(self.intervals, Mapping):
            raise ValueError(f"intervals must map names to steps, got {self.intervals!r}")
        put("intervals", {str(k): count(f"intervals[{k!r}]", v) for k, v in self.intervals.items()})
        if self.noise_scale is not None:
            put("noise_scale", positive("noise_scale", self.noise_scale))
        self._check_schedule()

    def _check_schedule(self) -> None:
        schedule, steps = self.schedule, self.total_steps
        if schedule.min_eta > self.optimizer.eta:
            raise ValueError(f"min_eta must be at most eta={show(self.optimizer.eta)}, got {show(schedule.min_eta)}")
        schedule.eta(self.optimizer.eta, 0, steps)
        schedule.eta(self.optimizer.eta, float(schedule.warmup), steps)
        if steps is None:
            return
        latest = {"warmup": schedule.warmup, "decay": schedule.warmup + (schedule.decay or 0)}
        latest |= {"milestones": schedule.milestones[-1]} if schedule.milestones else {}
        for name, value in latest.items():
            if value > steps:
                raise ValueError(f"{name} must end within the run of {show(steps)} steps, got {show(value)}")

    @property
    def total_steps(self) -> Count | None:
        """The length of the run in steps, exactly; None where the plan has no length."""
        if self.epochs is None:
            return self.steps
        exact = Fraction(self.epochs) * self.dataset_size / self.batch_size.total  # type: ignore[operator]
        return exact.numerator if exact.denominator == 1 else exact

    @property
    def samples(self) -> Count | None:
        """The length of the run in samples, exactly."""
        steps = self.total_steps
        return None if steps is None else count("samples", steps * Fraction(self.batch_size.total))

    def learning_rate(self, step: float) -> float:
        """The learning rate at a step, which may be fractional."""
        return self.schedule.eta(self.optimizer.eta, step, self.total_steps)

    def kappa(self, other: Plan | BatchSize | Number | str) -> Fraction:
        """By how much the other batch size is larger than this plan's."""
        size = other.batch_size if isinstance(other, Plan) else BatchSize.of(other)
        return Fraction(size.total) / Fraction(self.batch_size.total)

    def at(
        self, batch_size: BatchSize | Number | str, rule: str | Rule | None = None, averaging: Averaging = "paper"
    ) -> Plan:
        """The plan of the same run at another batch size.

        Args:
            batch_size: the new one.
            rule: a name from `rootscale.RULES`; None is the one that keeps the optimizer's dynamics.
            averaging: ``paper`` for ``1 - kappa (1 - beta)``, ``power`` for ``beta^kappa``.

        Raises:
            ValueError: there is no such plan; the message has the largest kappa that has one.
        """
        plan, messages = self._at(batch_size, rule, averaging)
        for message in messages:
            python_warnings.warn(message, ScalingWarning, stacklevel=2)
        return plan

    def _at(
        self, batch_size: BatchSize | Number | str, rule: str | Rule | None, averaging: Averaging
    ) -> tuple[Plan, list[str]]:
        chosen = get_rule(rule, self.optimizer.name, averaging)
        messages = chosen.check(self.optimizer.name)
        size = self.batch_size.at(batch_size)
        kappa = self.kappa(size)
        new = replace(self, batch_size=size, **self._converted(chosen, kappa))
        if self.batchnorm_momentum is not None:
            forward = self._forward_kappa(size)
            momentum = float(chosen.convert("batchnorm", self.batchnorm_momentum, forward, "batchnorm_momentum"))
            new = replace(new, batchnorm_momentum=momentum)
        return new, messages + self._guards(new, chosen, kappa)

    def _forward_kappa(self, size: BatchSize) -> Fraction:
        """How many times as many samples a forward has, for BatchNorm; kappa where one of the layouts is not known."""
        known = self.batch_size.plain == size.plain
        return Fraction(size.forward) / Fraction(self.batch_size.forward) if known else self.kappa(size)

    def _converted(self, rule: Rule, kappa: Fraction) -> dict[str, Any]:
        return {
            "optimizer": rule.convert_record(self.optimizer, kappa),
            "schedule": rule.convert_record(self.schedule, kappa),
            **rule.converted(self, kappa),
        }

    def svag(self, ell: float, averaging: Averaging = "paper") -> Plan:
        """The plan of SVAG (the paper's Def. 6.2): the rule at ``kappa = ell^-2``, with the batch size kept.

        Each of its steps takes two batches of that size, and ``ell^2`` of them are one step of this plan.

        >>> from rootscale import Adam, Plan
        >>> Plan(Adam(eta=1e-3), batch_size=256, steps=1000).svag(2).steps
        4000
        """
        svag_weights(ell)  # checks ell
        plan = self if self.epochs is None else replace(self, epochs=None, steps=self.total_steps)
        kappa = Fraction(ell) ** -2
        return replace(plan, **plan._converted(get_rule(None, self.optimizer.name, averaging), kappa))

    def _guards(self, new: Plan, rule: Rule, kappa: Fraction) -> list[str]:
        optimizer: Any = self.optimizer
        beta2 = getattr(optimizer, "beta2", getattr(optimizer, "beta", None))
        messages = rule.check_averages(float(kappa), getattr(optimizer, "beta1", 0.0), beta2)
        if self.noise_scale is not None and new.batch_size.total > self.noise_scale:
            messages.append(
                f"batch size {show(new.batch_size.total)} is beyond the noise scale {show(self.noise_scale)}: "
                f"the noise no longer dominates the gradient; up to kappa = "
                f"{show(self.noise_scale / float(self.batch_size.total))} it does"
            )
        if not self.batch_size.plain and new.batch_size.plain and new.batch_size.total != self.batch_size.total:
            messages.append(
                f"batch size {show(new.batch_size.total)} is no multiple of {self.batch_size.micro} micro x "
                f"{self.batch_size.workers} workers: choose its layout yourself, as MICROxACCUMULATIONxWORKERS"
            )
        total = new.total_steps
        if total is not None and total < 1:
            messages.append(f"the whole run is {show(total)} of a step")
        messages += [
            f"{name} would be every {show(value)} steps; a step is the least"
            for name, value in new.intervals.items()
            if value < Fraction(1, 2)
        ]
        return messages

    def explain(
        self, other: Plan | BatchSize | Number | str, rule: str | Rule | None = None, averaging: Averaging = "paper"
    ) -> Changes:
        """Every change from this plan to the other (a plan, or a batch size), its status and its reason.

        Where the other plan is not what the rule gives, the row says what the rule gives.
        """
        chosen = get_rule(rule, self.optimizer.name, averaging)
        size = other.batch_size if isinstance(other, Plan) else other
        expected, messages = self._at(size, chosen, averaging)
        if isinstance(other, Plan):
            if type(other.optimizer) is not type(self.optimizer):
                raise ValueError(
                    f"both plans must have the same optimizer, got {self.optimizer.name} and {other.optimizer.name}"
                )
            new = other
        else:
            new = expected
        before, after, ruled = (dict(_named(plan)) for plan in (self, new, expected))
        rows = []
        for name in [*before, *(name for name in after if name not in before)]:
            key, old = before.get(name, (after.get(name, ("", None))[0], None))
            value, should = (side.get(name, (key, None))[1] for side in (after, ruled))
            used, note = _whole(name, value, new) if key in ("steps", "warmup") else (None, "")
            if key == "batchnorm" and self._forward_kappa(new.batch_size) != self.kappa(new):
                times = [f"{size.accumulation} a step" for size in (self.batch_size, new.batch_size)]
                note = f"it counts forwards: {times[0]} before, {times[1]} now"
            if not _close(value, should):
                note = f"the rule gives {show(should)}" if should is not None else "only in the second plan"
            rows.append(Change(name, old, value, chosen.units.get(key), used, note))
        title = f"batch size {self.batch_size} -> {new.batch_size}, kappa = {show(self.kappa(new))}"
        if new.samples is not None and _close(new.samples, self.samples):
            title += f", {show(new.samples)} samples in both"
        return Changes(self.kappa(new), chosen, tuple(rows), tuple(messages), title)

    def to_dict(self) -> dict[str, Any]:
        """Everything that is set, in JSON's types; nothing is lost."""
        optimizer = {f.name: getattr(self.optimizer, f.name) for f in fields(self.optimizer)}
        rest = {
            f.name: _jsonable(getattr(self, f.name))
            for f in fields(self)
            if f.name not in ("optimizer", "batch_size", "schedule") and getattr(self, f.name) not in (None, {})
        }
        schedule = {
            f.name: _jsonable(getattr(self.schedule, f.name))
            for f in fields(self.schedule)
            if f.name == "name" or getattr(self.schedule, f.name) != f.default
        }
        return {
            "optimizer": {"name": self.optimizer.name, **optimizer},
            "batch_size": self.batch_size.to_json(),
            **rest,
            "schedule": schedule,
        }

    def to_json(self) -> str:
        """The plan as JSON text; `from_json` gives an equal plan."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_dict(cls, data: Any) -> Plan:
        """The plan of such a dict; unknown keys are refused by name."""
        data = dict(_mapping("plan", data))
        try:
            optimizer = dict(_mapping("optimizer", data.pop("optimizer")))
            batch_size = data.pop("batch_size")
        except KeyError as missing:
            raise ValueError(f"plan needs {missing.args[0]!r}, got only {', '.join(data) or 'nothing'}") from None
        name = optimizer.pop("name", None)
        if not isinstance(name, str) or name not in OPTIMIZERS:
            raise ValueError(f"optimizer name must be one of {', '.join(OPTIMIZERS)}, got {name!r}")
        schedule = dict(_mapping("schedule", data.pop("schedule", {})))
        known = [f.name for f in fields(cls)]
        return cls(
            _make(OPTIMIZERS[name], optimizer, f"optimizer {name}"),
            batch_size,
            schedule=_make(Schedule, schedule, "schedule"),
            **_known(data, known, "plan"),
        )

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan of a JSON text."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"plan must be JSON: {error}") from None
        return cls.from_dict(data)


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be an object with named values, got {value!r}")
    return value


def _known(values: dict[str, Any], known: list[str], what: str) -> dict[str, Any]:
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
            raise ValueError(f"{what} has no {key!r}; {hint}")
    return values


def _make(cls: type[Any], values: dict[str, Any], what: str) -> Any:
    known = [f.name for f in fields(cls)]
    _known(values, known, what)
    if "eta" in known and "eta" not in values:
        raise ValueError(f"{what} needs 'eta', the learning rate")
    return cls(**values)


def _jsonable(value: Any) -> Any:
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, tuple):
        return [_jsonable(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _jsonable(item) for key, item in value.items()}
    return value


def _named(record: Any) -> Iterator[tuple[str, tuple[str, Number]]]:
    """Every value of a plan that has a unit, as ``(name, (unit, value))``, but for None and a 0 that is the default."""
    for f in fields(record):
        value, key = getattr(record, f.name), f.metadata.get("unit")
        if is_dataclass(value) and not isinstance(value, BatchSize):
            yield from _named(value)
        elif f.name == "epochs" and value is not None:
            yield "steps", ("steps", record.total_steps)
        elif key is not None and isinstance(value, tuple):
            yield from ((f"{f.metadata['label']} {i}", (key, item)) for i, item in enumerate(value, 1))
        elif key is not None and isinstance(value, Mapping):
            yield from ((f"{f.metadata['label']} {name}", (key, item)) for name, item in value.items())
        elif key is not None and value is not None and (value or f.default):
            yield f.metadata["label"] or f.name, (key, value)


def _whole(name: str, value: Number | None, plan: Plan) -> tuple[Number | None, str]:
    """The whole number of steps to use, and what the rounding does."""
    if not isinstance(value, Fraction):
        return None, ""
    if name == "steps":
        rest = (value - math.floor(value)) * Fraction(plan.batch_size.total)
        return math.ceil(value), f"exactly {show(value)}: the last step takes {show(rest)} samples"
    return max(1, round(value)), f"rounded from {show(value)}"


def _close(a: Number | None, b: Number | None) -> bool:
    return a == b if a is None or b is None else math.isclose(a, b, rel_tol=1e-9)
