"""A plan: everything about a run that a change of batch size may have to convert."""

from __future__ import annotations

import difflib
import json
import warnings as python_warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Any

from rootscale.batch_size import BatchSize
from rootscale.changes import Changes, ScalingWarning
from rootscale.conversion import Conversion, convert_plan, converted_parts, explain_change
from rootscale.format import html_table, show
from rootscale.hparams import Optimizer, positive, quantity, validate
from rootscale.messages import say
from rootscale.optimizers import OPTIMIZERS
from rootscale.rules import Rule, get_rule, svag_weights
from rootscale.schedule import Schedule
from rootscale.sizes import Count, count, samples_of, steps_of
from rootscale.units import Number


@dataclass(frozen=True)
class Plan:
    """Describes a run: optimizer, batch size, length, schedule, and all else counted in steps or measured in noise.

    A plan that was converted carries what it was tuned at, as a run does: at another batch size it is converted from
    there, so that what stopped at a floor comes back. A plan that is edited is tuned anew.

    Counts of steps are exact: whole numbers, or fractions after a change of batch size that does not divide them. So
    the total of samples never changes, and going back gives the plan one came from.

    Args:
        optimizer: `Adam`, `AdamW`, `RMSprop` or `SGD`.
        batch_size: samples per step; a number, ``"32x4x8"`` (micro x accumulation x workers), ``"0.5M tokens"`` or a
            `BatchSize`.
        steps: length of the run in optimizer steps, or ``"10B tokens"``; or give ``epochs`` and ``dataset_size``.
        epochs: length of the run in passes over the data.
        dataset_size: samples in the data.
        schedule: of the learning rate.
        ema: decay of a running average of the parameters, per step.
        batchnorm_momentum: of BatchNorm's running statistics, torch's convention (weight of the new batch).
        clip: largest gradient norm.
        intervals: anything done every so many steps, by name: ``{"eval": 1000, "save": 5000}``.
        noise_scale: measured ``Tr Sigma / |grad f|^2`` in samples; beyond it the noise no longer dominates.
        sequence_length: tokens of a sample, where samples are sequences; sizes and lengths may then be texts that count
            tokens (`rootscale.sizes`).

    >>> from rootscale import AdamW, Plan, Schedule
    >>> plan = Plan(AdamW(eta=3e-4), batch_size=256, steps=100_000, schedule=Schedule("cosine", warmup=2_000))
    >>> big = plan.at(1024)
    >>> big.optimizer.eta, round(big.optimizer.beta2, 12), big.steps, big.schedule.warmup
    (0.0006, 0.996, 25000, 500)
    >>> big.samples == plan.samples and big.at(256) == plan
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
    sequence_length: int | None = None

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        if not isinstance(self.optimizer, Optimizer):
            kinds = ", ".join(cls.__name__ for cls in OPTIMIZERS.values())
            raise ValueError(f"optimizer must be one of {kinds}, got {self.optimizer!r}")
        if not isinstance(self.schedule, Schedule):
            raise ValueError(f"schedule must be a Schedule, got {self.schedule!r}")
        put("batch_size", BatchSize.of(self.batch_size, self.sequence_length))
        put("sequence_length", self.batch_size.sequence_length)
        if self.steps is not None:
            put("steps", self.steps_of("steps", self.steps))
        if self.epochs is not None:
            put("epochs", count("epochs", self.epochs))
        if self.dataset_size is not None:
            put("dataset_size", samples_of("dataset_size", self.dataset_size, self.sequence_length))
        if self.steps is not None and self.epochs is not None:
            raise ValueError(say("steps or epochs"))
        if self.epochs is not None and self.dataset_size is None:
            raise ValueError(say("dataset size"))
        validate(self)
        if not isinstance(self.intervals, Mapping):
            raise ValueError(f"intervals must map names to steps, got {self.intervals!r}")
        put("intervals", {str(k): self.steps_of(f"intervals[{k!r}]", v) for k, v in self.intervals.items()})
        if self.noise_scale is not None:
            scale = self.noise_scale
            if isinstance(scale, str):
                scale = float(samples_of("noise_scale", scale, self.sequence_length))
            put("noise_scale", positive("noise_scale", scale))
        self._check_schedule()

    def _check_schedule(self) -> None:
        schedule, steps = self.schedule, self.total_steps
        if schedule.min_eta > self.optimizer.eta:
            raise ValueError(say("lowest lr", eta=show(self.optimizer.eta), value=show(schedule.min_eta)))
        schedule.eta(self.optimizer.eta, 0, steps)
        schedule.eta(self.optimizer.eta, float(schedule.warmup), steps)
        if steps is None:
            return
        latest = {"warmup": schedule.warmup, "decay": schedule.warmup + (schedule.decay or 0)}
        latest |= {"milestones": schedule.milestones[-1]} if schedule.milestones else {}
        for name, value in latest.items():
            if value > steps:
                raise ValueError(say("within the run", name=name, steps=show(steps), value=show(value)))

    @property
    def total_steps(self) -> Count | None:
        """Length of the run in steps, exactly; None where the plan has no length."""
        if self.epochs is None:
            return self.steps
        exact = Fraction(self.epochs) * self.dataset_size / self.batch_size.total  # type: ignore[operator]
        return exact.numerator if exact.denominator == 1 else exact

    @property
    def samples(self) -> Count | None:
        """Length of the run in samples, exactly."""
        steps = self.total_steps
        return None if steps is None else count("samples", steps * Fraction(self.batch_size.total))

    @property
    def tokens(self) -> Count | None:
        """Length of the run in tokens, exactly; None without a length or the length of a sequence."""
        if self.samples is None or self.sequence_length is None:
            return None
        return self.samples * self.sequence_length

    def steps_of(self, name: str, length: Any, zero: bool = False) -> Count:
        """Return a length that may count samples or tokens, such as ``"100M tokens"``, in steps of this plan."""
        return steps_of(name, length, self.batch_size.total, self.sequence_length, zero)

    def learning_rate(self, step: float) -> float:
        """Return the learning rate at a step, which may be fractional."""
        return self.schedule.eta(self.optimizer.eta, step, self.total_steps)

    def kappa(self, other: Plan | BatchSize | Number | str) -> Fraction:
        """Return how many times larger the other batch size is than this plan's."""
        size = other.batch_size if isinstance(other, Plan) else BatchSize.of(other)
        return Fraction(size.total) / Fraction(self.batch_size.total)

    def convert(self, batch_size: BatchSize | Number | str, rule: str | Rule | None = None) -> Conversion:
        """Return the plan of the same run at another batch size, with every change and warning as data.

        Args:
            batch_size: the new one.
            rule: a rule or its text, such as ``"sqrt"``, ``"with power"`` or ``"sqrt without batchnorm"``; None is the
                one that keeps the optimizer's dynamics.

        Raises:
            ValueError: there is no such plan; the message has the largest kappa that has one.
        """
        return convert_plan(self, batch_size, rule)

    def at(
        self,
        batch_size: BatchSize | Number | str | None = None,
        rule: str | Rule | None = None,
        *,
        tokens: Number | str | None = None,
        horizon: str | None = None,
    ) -> Plan:
        """Return the plan of the same run at another batch size; warnings are Python warnings (`ScalingWarning`).

        With ``tokens`` it is another, longer or shorter run, by a published rule that has to be named.

        Args:
            batch_size, rule: as for `convert`; without ``batch_size`` it stays.
            tokens: length of the run, such as ``"40B"``; or ``"5M samples"``.
            horizon: one of `rootscale.horizon.HORIZONS`; `rootscale.horizon.horizons` gives all of them.
        """
        if tokens is not None:
            if rule is not None:
                raise ValueError(f"rule={rule!r} keeps a run, and tokens= makes another one: leave one of them out")
            from rootscale.horizon import at_horizon

            return at_horizon(self, batch_size, tokens, horizon)
        if horizon is not None:
            raise ValueError(f"horizon={horizon!r} is for another number of tokens: give tokens= too")
        conversion = self.convert(self.batch_size if batch_size is None else batch_size, rule)
        for message in conversion.warnings:
            python_warnings.warn(message, ScalingWarning, stacklevel=2)
        return conversion.plan

    def explain(self, other: Plan | BatchSize | Number | str, rule: str | Rule | None = None) -> Changes:
        """Return every change from this plan to another one, or to a batch size, with its status and its reason.

        Where another plan is not what the rule gives, the row says what the rule gives.
        """
        if isinstance(other, Plan):
            return explain_change(self, other, rule)
        return self.convert(other, rule).changes

    def svag(self, ell: float, rule: str | Rule | None = None) -> Plan:
        """Return the plan of SVAG (the paper's Def. 6.2): the rule at ``kappa = ell^-2``, with the batch size kept.

        Each of its steps takes two batches of that size, and ``ell^2`` of them are one step of this plan.

        >>> from rootscale import Adam, Plan
        >>> Plan(Adam(eta=1e-3), batch_size=256, steps=1000).svag(2).steps
        4000
        """
        svag_weights(ell)  # checks ell
        plan = self if self.epochs is None else replace(self, epochs=None, steps=self.total_steps)
        return replace(plan, **converted_parts(plan, get_rule(rule, self.optimizer.name), Fraction(ell) ** -2))

    @property
    def tuned(self) -> tuple[Plan, str] | None:
        """The plan that this one was converted from, and the rule by which; None where its numbers are its own."""
        found: tuple[Plan, str] | None = vars(self).get("_tuned")  # no field: what is edited is tuned anew
        return found

    def to_dict(self, tuned: bool = False) -> dict[str, Any]:
        """Return everything that is set, in JSON's types; with ``tuned``, what the plan was tuned at too."""
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
            **({"tuned": {"rule": self.tuned[1], **self.tuned[0].to_dict()}} if tuned and self.tuned else {}),
        }

    def __hash__(self) -> int:
        """Return the hash of all fields; those of equal plans are equal."""
        parts = (getattr(self, f.name) for f in fields(self) if f.name != "intervals")
        return hash((*parts, frozenset(self.intervals.items())))

    def _repr_html_(self) -> str:
        rows = []
        for key, value in self.to_dict().items():
            parts = value if isinstance(value, dict) else {"": value}
            rows += [[f"{key}.{name}" if name else key, _cell(part)] for name, part in parts.items()]
        return html_table(f"{self.optimizer.name} at batch size {self.batch_size}", ("field", "value"), rows)

    def to_json(self) -> str:
        """Return the plan as JSON text; `from_json` gives an equal plan."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_dict(cls, data: Any) -> Plan:
        """Return the plan of such a dict; unknown keys are refused by name."""
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
        size = BatchSize.of(batch_size, data.get("sequence_length"))
        tuned = dict(_mapping("tuned", data.pop("tuned"))) if "tuned" in data else None
        plan = cls(
            _make(OPTIMIZERS[name], optimizer, f"optimizer {name}"),
            size,
            schedule=_make(Schedule, _in_steps(schedule, size), "schedule"),
            **_known(data, known, "plan"),
        )
        if tuned is None:
            return plan
        made = cls.from_dict({name: value for name, value in tuned.items() if name != "rule"})
        converted = made.convert(plan.batch_size, tuned.get("rule")).plan
        return converted if converted == plan else plan  # a file that was edited is tuned anew

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return the plan of a JSON text."""
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
        raise ValueError(say("lr", what=what))
    return cls(**values)


def _in_steps(schedule: dict[str, Any], size: BatchSize) -> dict[str, Any]:
    """Return a schedule with its lengths in steps, where they are texts that count samples or tokens."""

    def steps(name: str, value: Any) -> Any:
        return steps_of(name, value, size.total, size.sequence_length, zero=True) if isinstance(value, str) else value

    lengths = {f.name for f in fields(Schedule) if f.metadata.get("unit") in ("steps", "warmup", "schedule")}
    return {
        name: [steps(name, item) for item in value] if isinstance(value, list) and name in lengths
        else steps(name, value) if name in lengths else value
        for name, value in schedule.items()
    }  # fmt: skip


def _jsonable(value: Any) -> Any:
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, tuple):
        return [_jsonable(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _jsonable(item) for key, item in value.items()}
    return value


def _cell(value: Any) -> str:
    return show(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
