"""The script's numbers stay: a live run whose steps are made in the units of the batch size of now.

Learning rates and betas are tuned at one batch size and written into a script. They stay what they are, in the
optimizer's groups, in schedulers, in a loop that sets ``lr`` by hand, in logs and in checkpoints. A `Run` makes each
step in the units of the batch size of now: it multiplies the learning rate by ``sqrt(kappa)`` for the step alone, and
puts the script's number back.

Where everything is:

| what | in which units |
|---|---|
| parameter groups, schedulers, ``get_last_lr()``, checkpoints, copies, pickles | the script's, always |
| a step, the optimizer's live state, BatchNorm's momentum, the decay of averages | the batch size of now |
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

import torch

from rootscale.batch_size import BatchSize
from rootscale.changes import Change, Changes, Reminder, ScalingWarning
from rootscale.format import format_table, show
from rootscale.hparams import positive
from rootscale.training.averages import NormLayers, ParameterAverage
from rootscale.training.contract import Contract
from rootscale.training.guards import doubts, momentum_look
from rootscale.training.optimizers import (
    Rules,
    check_forward,
    common_rule,
    prefixed_errors,
    ruled_optimizers,
    several,
)
from rootscale.training.projected import ProjectedOptimizer, is_projected
from rootscale.training.schedulers import Interval, SteppedScheduler, check_interval, is_driven, nested
from rootscale.training.stability import Stability, check_measured
from rootscale.units import Number

if TYPE_CHECKING:
    from rootscale.rules import Rule
    from rootscale.training.state import StateScaling

#: A run looks for doubts at so many batch sizes.
_DOUBTED = 8
#: Samples of an optimizer step: a number, or a layout such as ``"32x4x8"``, micro-batch x accumulation x workers.
Size = BatchSize | Number | str


class Run:
    """Train at any batch size with the numbers that were tuned at another one.

    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    >>> scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10_000)
    >>> run = Run(optimizer, tuned_at=256, batch_size=1024, scheduler=scheduler)
    >>> for step in range(run.steps(8)):
    ...     optimizer.zero_grad()
    ...     model(torch.randn(1024, 2)).square().mean().backward()
    ...     optimizer.step()
    ...     scheduler.step()
    >>> run.clock, scheduler.last_epoch, run.values()["lr"] / optimizer.param_groups[0]["lr"]
    (8.0, 8, 2.0)

    Set `batch_size` at any time, before every step if batches vary. A loop that sets the learning rate by hand asks for
    it at `clock`, which counts steps of ``tuned_at``: ``group["lr"] = get_lr(run.clock)``.

    Args:
        optimizer: of torch or of a library, one that has a row in `rootscale.optimizers`; several as a list, a
            dictionary or a container with ``optimizers``. Groups may be of several families.
        tuned_at: the batch size that the script's numbers belong to, in samples of one optimizer step over all
            micro-batches and workers; or a layout, ``"32x4x8"``; or ``"0.5M tokens"``.
        batch_size: that of now; None is ``tuned_at``.
        scheduler: the learning-rate scheduler that drives the optimizer, or several.
        model: whose BatchNorm layers are to follow; one or several.
        ema: averages of the parameters that are to follow: an `torch.optim.swa_utils.AveragedModel`, one of a library
            (`rootscale.training.averages.KINDS`), or anything with a ``decay``.
        rule: a rule or its text, for every optimizer; None is each one's own. A list has one for each optimizer, and a
            mapping one for each family: ``{"muon": "normalized-linear"}``.
        loss: whether the loss is a ``"mean"`` over the batch, as usual, or a ``"sum"``.
        interval: how often the schedulers are stepped: with every optimizer ``"step"``, once an ``"epoch"``; None is
            found from their calls.
        measure: chooses beta1 at larger batches from what is measured at each change of batch size, in place of its
            floor of .9: ``lambda: measure_stability(model, optimizer, loss, batches)``. For one Adam or RMSprop.
        sequence_length: tokens of a sample; batch sizes may then be texts that count tokens.

    Raises:
        TypeError: an object of a kind that cannot follow; the message names those that can.
        ValueError: there is no valid value at this batch size, a scheduler of another optimizer, or an optimizer
            that is in a run already. Nothing has changed then.

    Attributes:
        warnings: what was said about this run, each once.
        stability: what ``measure`` returned at the last change of batch size, in the script's units; None before one.
    """

    def __init__(
        self,
        optimizer: Any,
        *,
        tuned_at: Size,
        batch_size: Size | None = None,
        scheduler: Any = None,
        model: Any = None,
        ema: Any = None,
        rule: Rules = None,
        loss: Literal["mean", "sum"] = "mean",
        interval: Interval | None = None,
        sequence_length: int | None = None,
        measure: Callable[[], Stability] | None = None,
    ) -> None:
        if loss not in ("mean", "sum"):
            raise ValueError(f"loss must be 'mean' or 'sum' (over the batch), got {loss!r}")
        self._tuned = _size("tuned_at", tuned_at, sequence_length)
        self._size = self._tuned
        self._given = {"scheduler": scheduler is not None, "model": model is not None, "ema": ema is not None}
        self._settings: dict[str, Any] = {"rule": rule, "loss": loss, "interval": check_interval(interval)}
        found = ruled_optimizers(optimizer, rule, summed=loss == "sum")
        for held in found:
            if is_projected(held.optimizer):
                raise ValueError(
                    f"{held.prefix}this {type(held.optimizer).__name__} is in a Run already: set its batch_size, or "
                    "call detach() on it first"
                )
        self._rule = common_rule(found)
        self.stability: Stability | None = None
        self._measure = measure
        if measure is not None:
            check_measured(found)
        self._optimizers = [ProjectedOptimizer(held.optimizer, held.rules, held.prefix) for held in found]
        for one in self._optimizers:
            one.borrow()
        self._schedulers = [self._scheduler(one, interval) for one in _schedulers_of(scheduler)]
        self._check_schedulers()
        self._models = several(model)
        self._norms = NormLayers(self._models)
        self._averages = [ParameterAverage(one) for one in several(ema)]
        self.warnings: list[str] = []
        self._doubted: set[float] = set()
        self._none_scripted = False
        self._detached = False
        size = self._resolved(self._tuned if batch_size is None else batch_size)
        scalings, foreign = self._checked(size), self._checked_rules()  # nothing has been touched until here
        parts: list[Any] = [*self._optimizers, *self._schedulers, *self._averages]
        for part in parts:
            part.attach()
        self._contracts = [Contract(one, self._averages, loss == "sum") for one in self._optimizers]
        try:
            doubtful = self._doubts(float(size.total / self._tuned.total))  # of the state as it is
            self._arrive(size, scalings)
            self._warn_of_start(foreign)
            for message in doubtful:
                self._warn(message)
        except BaseException:
            self.detach()
            raise

    # ---- the batch size

    @property
    def tuned_at(self) -> int | float:
        """The batch size that the script's numbers belong to."""
        return _plain(self._tuned.total)

    @property
    def batch_size(self) -> int | float:
        """The batch size of now; set it to a number or a layout at any time between two steps."""
        return _plain(self._size.total)

    @batch_size.setter
    def batch_size(self, batch_size: Size) -> None:
        size = self._resolved(batch_size)
        before = self.kappa
        if self._detached:
            raise RuntimeError("this Run was detached: its objects are the script's again; make a new Run for them")
        if size == self._size and size.laid_out == self._size.laid_out:
            return
        if any(one.in_step for one in self._optimizers):
            raise RuntimeError("batch_size was set while a step was made; set it between two steps")
        scalings = self._checked(size)
        if self._measured(size):
            scalings = self._checked(size)
        doubtful = self._doubts(float(size.total / self._tuned.total))
        self._arrive(size, scalings)
        if before != self.kappa:
            for contract in self._contracts:
                contract.begin(self.kappa / before, show(self.batch_size))
            for message in doubtful:
                self._warn(message)

    @property
    def layout(self) -> BatchSize:
        """The batch size of now with its micro-batches, accumulation and workers, as far as they were given."""
        return self._size

    @property
    def kappa(self) -> float:
        """The batch size of now over ``tuned_at``."""
        return float(self._size.total / self._tuned.total)

    @property
    def forward_kappa(self) -> float:
        """The same of the samples of one forward pass, which BatchNorm averages over."""
        return self._forward(self._size)

    def _forward(self, size: BatchSize) -> float:
        return float(self._tuned.forward_kappa(size))

    def _resolved(self, batch_size: Size) -> BatchSize:
        size = _size("batch_size", batch_size, self._tuned.sequence_length)
        if self._norms_follow:
            check_layouts(self._tuned, size)
        return size

    @property
    def _norms_follow(self) -> bool:
        return bool(getattr(self, "_norms", None) and self._norms.layers and "batchnorm" in self._rule.units)

    def _checked(self, size: BatchSize) -> list[StateScaling]:
        """Refuse a batch size that something cannot follow to, or return the changes of state; nothing is changed."""
        kappa, scalings = float(size.total / self._tuned.total), []
        for one in self._optimizers:
            with prefixed_errors(one.prefix):
                one.check(kappa)
                check_forward(one, kappa, self._forward(size))
                scalings.append(one.scaling(kappa))
        if self._norms_follow:
            self._norms.at(self._rule, self._forward(size))
        if "batchnorm" in self._rule.units and self._forward(size) != 1 and not self._none_scripted:
            NormLayers(self._models, refuse_scripted=True)  # walks the models: not before every step
            self._none_scripted = True
        for average in self._averages:
            average.at(self._rule, kappa)
        return scalings

    def _measured(self, size: BatchSize) -> bool:
        """Measure how far beta1 can fall at a larger batch, and take the rule with that floor; say what is beyond it.

        The run passes the script's own batch size on the way, where all rules agree.
        """
        (one, *_), kappa = self._optimizers, float(size.total / self._tuned.total)
        if self._measure is None or kappa <= max(1.0, self.kappa):
            return False
        if not one.optimizer.state:
            self._warn("measure: the optimizer has no second moment yet, so beta1 stops at its floor of .9")
            return False
        # `Metric` gives sqrt(v) of now, smaller by sqrt(kappa), while the groups hold the script's learning rate
        self.stability = self._measure().times(self.kappa**-0.5)
        betas = [projection.values(group).get("beta1", 0.0) for _, group, projection in one.groups()]
        floor = min(min(self.stability.beta1(beta1, kappa), beta1) for beta1 in betas)
        for message in self.stability.doubts(kappa, floor, float(size.total)):
            self._warn(message)
        if not any(betas):
            return False
        rules = {name: rule.averaged(f"floor:{floor:.6f},0.9") for name, rule in one.rules.items()}
        self._arrive(self._tuned, self._checked(self._tuned))
        one.follow(rules)
        ((_, self._rule),) = rules.items()
        self._settings["rule"] = self._rule.name  # of copies, which measure nothing
        return True

    def _arrive(self, size: BatchSize, scalings: list[StateScaling]) -> None:
        """Bring everything to a batch size that was checked."""
        norms = self._norms if self._norms_follow else None
        to = float(size.total / self._tuned.total), self._forward(size)
        back = self.kappa, self.forward_kappa
        interrupted = arrive_all(self._optimizers, scalings, self._averages, norms, self._rule, to, back)
        self._size = size
        if interrupted is not None:
            raise interrupted

    # ---- what the loop asks, and what frameworks do

    def check(self, batch_size: Size) -> None:
        """Refuse a batch size to which the run cannot go, with the error that setting it would raise."""
        self._checked(self._resolved(batch_size))

    @property
    def optimizers(self) -> tuple[ProjectedOptimizer, ...]:
        """What makes the steps of each optimizer."""
        return tuple(self._optimizers)

    @property
    def schedulers(self) -> tuple[SteppedScheduler, ...]:
        """How the schedulers are stepped, for frameworks that step them in a way of their own."""
        return tuple(self._schedulers)

    @property
    def clocks(self) -> tuple[float, ...]:
        """The `clock` of each optimizer."""
        return tuple(held.clock for held in self._optimizers)

    @property
    def clock(self) -> float:
        """The steps made, counted in steps of ``tuned_at``; saved and restored with the optimizer."""
        return self._optimizers[0].clock

    @property
    def samples(self) -> float:
        """The samples seen by these steps."""
        return self.clock * float(self._tuned.total)

    @property
    def tokens(self) -> float | None:
        """The tokens seen by these steps; None where the length of a sequence is not known."""
        return None if self._tuned.sequence_length is None else self.samples * self._tuned.sequence_length

    def steps(self, count: float) -> int:
        """Return how many steps of now cover so many steps of ``tuned_at``: a length, a warm-up, an interval.

        >>> optimizer = torch.optim.Adam([torch.ones(1, requires_grad=True)])
        >>> Run(optimizer, tuned_at=256, batch_size=1024).steps(10_000)
        2500
        """
        number = float(count)
        if not number >= 0:
            raise ValueError(f"steps must be given a number of steps that is 0 or more, got {count!r}")
        return max(1, round(number / self.kappa)) if number else 0

    def clip(self, norm: float) -> float:
        """Return the largest gradient norm for a step of now, from the one that was tuned."""
        return float(self._rule.convert("clip", positive("clip", norm), self.kappa, "clip"))

    def values(self) -> dict[str, float]:
        """Return what a step really uses, by flat names for loggers: ``lr``, ``beta1``, ``group 1/lr``."""
        found: dict[str, float] = {}
        for one in self._optimizers:
            for row in one.changes(self.kappa):
                name, _, group = row.name.partition(" (")
                parts = (one.prefix.removesuffix(": "), group.removesuffix(")"), name)
                found["/".join(part for part in parts if part)] = float(row.value or 0.0)
        return found

    @property
    def changes(self) -> Changes:
        """The script's numbers and those of a step, with the reasons and what is left to you; print it."""
        used = [pair for one in self._optimizers for pair in one.families]
        varies = "schedule" if self._schedulers else ""
        return Changes.made(
            self.kappa, self._rule, self._rows(), self.warnings, optimizers=used, varies=varies,
            batchnorm=bool(self._norms.layers), title=self._title, remaining=self._left(),
        )  # fmt: skip

    @property
    def _title(self) -> str:
        return f"batch size {show(self.tuned_at)} -> {show(self.batch_size)}, kappa = {show(self.kappa)}"

    def _rows(self) -> Iterator[Change]:
        for one in self._optimizers:
            for row in (*one.changes(self.kappa), *one.state_changes(self.kappa)):
                yield replace(row, name=f"{one.prefix}{row.name}", field=f"{one.prefix}{row.field}")
        if self._norms_follow:
            yield from self._norms.changes(self._rule, self.forward_kappa)
        for average in self._averages:
            yield average.change(self._rule, self.kappa)

    def _left(self) -> tuple[str, ...]:
        kappa = self.kappa
        if kappa == 1:
            return ()
        lines: list[str] = [
            Reminder(f"the data loader: {show(self.batch_size)} samples a step", "batch size"),
            Reminder("steps: run.steps(n); a schedule set by hand: get_lr(run.clock)", "steps"),
        ]
        if "clip" in self._rule.units:
            lines.append(Reminder(f"gradient clip: run.clip(norm), times {show(self.clip(1.0))}", "clip"))
        lines += self._norms.left(self._rule, self.forward_kappa)
        if not self._given["model"]:
            lines.append("BatchNorm, if there is any: Run(..., model=model)")
        if not self._given["ema"]:
            lines.append("an average of the parameters (EMA), if there is one: Run(..., ema=ema)")
        lines += [
            f"the warm-up of {average.name} counts its own updates ({average.warmup})"
            for average in self._averages
            if average.warmup
        ]
        larger = float(max(self._tuned.total, self._size.total))
        for one in self._optimizers:
            lines += momentum_look(one, kappa, larger)
        return tuple(lines)

    def __str__(self) -> str:
        rows = [[row.name, show(row.before), show(row.value), row.why] for row in self._rows()]
        table = format_table(("quantity", "yours", "a step's", "why"), rows, right=("yours", "a step's"), width=80)
        left = [f"left to you: {text}" for text in self._left()]
        said = [f"warning: {text}" for text in self.warnings]
        evidence = (fill(text, 80) for text in self.changes.evidence)
        return "\n".join([f"{self._title}, rule {self._rule.name}", "", table, *said, *left, *evidence])

    def __repr__(self) -> str:
        names = ", ".join(type(one.optimizer).__name__ for one in self._optimizers)
        return f"Run({names}, tuned_at={self._tuned.to_json()}, batch_size={self._size.to_json()})"

    # ---- schedulers, warnings

    def _scheduler(self, scheduler: Any, interval: Interval | None) -> SteppedScheduler:
        if not isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler):
            raise TypeError(
                f"scheduler must be a torch.optim.lr_scheduler.LRScheduler, got {type(scheduler).__name__}; one of "
                "another kind follows where its loop asks it for step run.clock"
            )
        for one in self._optimizers:
            if _unwrapped(scheduler.optimizer) is one.optimizer:
                return SteppedScheduler(scheduler, one, interval)
        raise ValueError(
            f"{type(scheduler).__name__} belongs to another optimizer than "
            f"{'any of those' if len(self._optimizers) > 1 else 'the one'} given"
        )

    def _check_schedulers(self) -> None:
        outer = [one.scheduler for one in self._schedulers]
        for i, scheduler in enumerate(outer):
            if any(scheduler is other for other in outer[:i]):
                raise ValueError(f"{type(scheduler).__name__} was given twice; give each scheduler once")
            if "__getstate__" in vars(scheduler):
                raise ValueError(f"this {type(scheduler).__name__} is in a Run already: call detach() on it first")
            for parent in outer:
                if parent is not scheduler and any(child is scheduler for child in nested(parent)):
                    raise ValueError(
                        f"{type(scheduler).__name__} is a part of a {type(parent).__name__}, which steps it: give the "
                        f"{type(parent).__name__} alone"
                    )

    def _checked_rules(self) -> list[str]:
        """Refuse a rule that is not for a family, or return what there is to warn about."""
        messages: list[str] = []
        for one in self._optimizers:
            with prefixed_errors(one.prefix):
                for name, rule in one.rules.items():
                    messages += [f"{one.prefix}{message}" for message in rule.check(name)]
        return messages

    def _warn_of_start(self, foreign: list[str]) -> None:
        """Say what the objects tell about the run already."""
        for one in self._optimizers:
            driven = any(_unwrapped(held.scheduler.optimizer) is one.optimizer for held in self._schedulers)
            if is_driven(one.optimizer) and not driven and not self._given["scheduler"]:
                self._warn(
                    f"{one.prefix}a scheduler drives this {type(one.optimizer).__name__} and was not given: it would "
                    "count steps of the batch size of now as its own; give scheduler=scheduler"
                )
        for message in foreign:
            self._warn(message)

    def _doubts(self, kappa: float) -> list[str]:
        """Return what is doubtful at a batch size; at the first sizes only, as batches may vary with every step."""
        if kappa in self._doubted or len(self._doubted) >= _DOUBTED:
            return []
        self._doubted.add(kappa)
        batchnorm = bool(self._norms.layers)
        return [message for one in self._optimizers for message in doubts(one, kappa, batchnorm=batchnorm)]

    def _warn(self, message: str) -> None:
        if message not in self.warnings:
            self.warnings.append(message)
            warnings.warn(message, ScalingWarning, stacklevel=4)

    # ---- an end, and copies

    def detach(self) -> None:
        """Leave all objects as the script made them: its numbers, state in its units, nothing attached."""
        if self._detached:
            return
        self._detached = True
        for scheduler in self._schedulers:
            scheduler.detach()
        for average in self._averages:
            average.detach()
        if self._norms_follow:
            self._norms.arrive(self._rule, 1.0)
        for one in self._optimizers:
            one.detach()
        self._size = self._tuned

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy or a pickle is made of: the objects in the script's units, and the settings."""
        kept = {
            "optimizer": [one.optimizer for one in self._optimizers],
            "scheduler": [one.scheduler for one in self._schedulers] if self._given["scheduler"] else None,
            "model": self._models if self._given["model"] else None,
            "ema": [one.average for one in self._averages] if self._given["ema"] else None,
        }
        numbers = {"norms": self._norms.script, "averages": [one.script for one in self._averages]}
        place = {
            "own": self._own_attributes(),
            "tuned_at": self._tuned,
            "batch_size": self._size,
            "clocks": [one.clock for one in self._optimizers],
        }
        return {**kept, **self._settings, **numbers, **place}

    def _own_attributes(self) -> dict[str, Any]:
        """Return what a subclass holds besides, for copies."""
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        held = dict(state)
        momenta, decays, clocks = held.pop("norms"), held.pop("averages"), held.pop("clocks")
        vars(self).update(held.pop("own"))
        for layer, momentum in zip(NormLayers(several(held["model"])).layers, momenta, strict=True):
            layer.momentum = momentum
        for average, decay in zip(several(held["ema"]), decays, strict=True):
            ParameterAverage(average).write(decay)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ScalingWarning)  # they were given where the original was made
            Run.__init__(self, held.pop("optimizer"), **held)
        for one, clock in zip(self._optimizers, clocks, strict=True):
            one.set_clock(clock)


@torch.no_grad()
def arrive_all(
    optimizers: Sequence[ProjectedOptimizer],
    scalings: Sequence[StateScaling],
    averages: Sequence[ParameterAverage],
    norms: NormLayers | None,
    rule: Rule,
    to: tuple[float, float],
    back: tuple[float, float],
) -> KeyboardInterrupt | None:
    """Bring all parts of a run to another batch size, or all of them back, where the code of others refuses it.

    Args:
        optimizers: that were checked; their state comes last, as it is what takes long.
        scalings: the checked change of the state of each.
        averages: of the parameters.
        norms: layers that follow.
        rule: for averages and layers.
        to: kappa and that of a forward pass, from the script's batch size to the new one.
        back: the same to the present one.

    Returns:
        An interrupt by the user, which has waited until all parts were there.
    """
    interrupted = None
    with ExitStack() as undo:
        for average in averages:
            average.arrive(rule, to[0])
            undo.callback(average.arrive, rule, back[0])
        if norms is not None:
            norms.arrive(rule, to[1])
            undo.callback(norms.arrive, rule, back[1])
        for one, scaling in zip(optimizers, scalings, strict=True):
            try:
                scaling.finish()
            except KeyboardInterrupt as error:
                interrupted = error
            one.arrive(to[0])
            undo.callback(_return, one, back[0])
        undo.pop_all()
    return interrupted


def _return(one: ProjectedOptimizer, kappa: float) -> None:
    """Bring the state of an optimizer back."""
    one.scaling(kappa).finish()
    one.arrive(kappa)


def check_layouts(before: BatchSize, after: BatchSize) -> None:
    """Refuse a layout beside a plain number, where layers average over the samples of a forward pass."""
    if before.laid_out != after.laid_out and before.total != after.total:
        laid, plain = (after, before) if after.laid_out else (before, after)
        raise ValueError(
            f"the layout {laid.to_json()} beside {plain.total} does not say how many samples one forward has, and "
            f"BatchNorm averages over those: give both batch sizes as layouts, as in '{plain.total}x1x1', or both as "
            "numbers"
        )


def _size(name: str, given: Size, sequence_length: int | None) -> BatchSize:
    try:
        return BatchSize.of(given, sequence_length)
    except ValueError as error:
        raise ValueError(str(error).replace("batch_size", name)) from None


def _plain(total: Any) -> int | float:
    return int(total) if total == int(total) else float(total)


def _unwrapped(optimizer: Any) -> Any:
    """Return the optimizer itself: a framework may have made the scheduler of its own wrapper around it."""
    while isinstance(inner := vars(optimizer).get("optimizer"), torch.optim.Optimizer):
        optimizer = inner
    return optimizer


def _schedulers_of(given: Any) -> list[Any]:
    """Return the schedulers of what was given: one, several, or a container that holds them as ``schedulers``."""
    inner = getattr(given, "schedulers", None)
    if isinstance(inner, list | tuple) and not isinstance(given, torch.optim.lr_scheduler.LRScheduler):
        return list(inner)
    return [one for held in several(given) for one in ([held] if not isinstance(held, Mapping) else held.values())]
