"""The pages of the headline's experiments: what each way to the same model costs, and whether the model is as good."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType

import numpy as np

from rootscale.format import plus_minus
from rootscale.lab import Result as Stored
from rootscale.pairing import Array
from rootscale.paper.entries import Entry, gathered
from rootscale.paper.experiments.sooner import ARMS, MARGIN, RECIPES, Result
from rootscale.stats import student_quantile

__all__ = ["HEADLINES", "Headline", "Way", "ways_of"]

LOSS = "test loss"
NOTE = (
    "± is one standard error over seeds; the interval is Student's, of paired differences after the last step. *As "
    f"good*: its upper end is below {MARGIN:g} nats; *worse*: its lower end is above. Seconds and memory are those of "
    "the seed that had the GPU for itself, without measuring and without compiling, which a longer run pays once. Runs "
    "that shared the GPU have none; *same steps*: seconds and memory of the row whose batches are the same."
)
#: Tokens of a sequence.
LENGTH = 128


@dataclass(frozen=True)
class Way:
    """What one way to the model came to.

    Args:
        arm: the way.
        seeds: how many runs it has.
        loss: the mean validation loss at the end, and its standard error.
        gap: the mean of the paired differences to the base, and half of its 95 % interval; None for the base, and half
            an interval of infinity for one pair.
        steps: of one run.
        tokens: that it saw.
        seconds: of training, of the seed that was alone on the GPU, of this arm or of the one it is timed as; None
            where there is none.
        settling: seconds of compiling and recording of that run, which are not among them.
        memory: bytes in use in a step of that run.
        load: mean utilisation of the GPU in percent while it ran; None where it was not recorded.
        alone: whether a seed of this arm itself was alone.
    """

    arm: Result
    seeds: int
    loss: tuple[float, float | None]
    gap: tuple[float, float] | None
    steps: int
    tokens: int
    seconds: float | None
    settling: float
    memory: int
    load: float | None
    alone: bool = True

    @property
    def as_good(self) -> bool:
        """Whether the upper end of the interval is below the margin; the base is."""
        return self.gap is None or self.gap[0] + self.gap[1] < MARGIN

    @property
    def worse(self) -> bool:
        """Whether the lower end of the interval is above the margin."""
        return self.gap is not None and self.gap[0] - self.gap[1] > MARGIN

    @property
    def verdict(self) -> str:
        """In words."""
        if self.gap is None:
            return "base"
        if not np.isfinite(self.gap[1]):
            return "one seed"
        return "as good" if self.as_good else "worse" if self.worse else "undecided"

    @property
    def gap_text(self) -> str:
        """The difference and its interval."""
        if self.gap is None:
            return ""
        mean, half = self.gap
        if not np.isfinite(half):
            return f"{mean:+.4f}"
        return f"{mean:+.4f} [{mean - half:+.4f}, {mean + half:+.4f}]"


def ways_of(entry: Entry, arms: Sequence[Result]) -> list[Way]:
    """Return what is stored of an experiment's arms, in their order."""
    stored = {one.label: one for one in (entry.check.base, *entry.check.others)}
    load = _load(entry.folder / "gpu.csv")
    ways = [_way(arm, stored[arm.label], entry.check.base, load) for arm in arms if arm.label in stored]
    timed = {way.arm.label: way for way in ways if way.seconds is not None}
    return [_timed(way, timed.get(way.arm.timed_as)) for way in ways]


def _timed(way: Way, like: Way | None) -> Way:
    """Return a way that was never alone with seconds and memory of one that takes the same steps."""
    if way.seconds is not None or like is None:
        return way
    return replace(way, seconds=like.seconds, memory=like.memory, alone=False)


def _way(arm: Result, found: Stored, base: Stored, load: Callable[[float, float], float | None]) -> Way:
    here, there = found.trajectory, base.trajectory
    ends, own = (dict(zip(one.meta["seeds"], one.values[LOSS][:, -1], strict=True)) for one in (there, here))
    values, pairs = np.array(list(own.values())), np.array([own[seed] - ends[seed] for seed in own if seed in ends])
    error = float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
    way = Way(
        arm,
        len(values),
        (float(values.mean()), error),
        None if found is base else (float(pairs.mean()), _half(pairs)),
        max(run["steps"] for run in here.meta["runs"]),
        LENGTH * int(here.meta["samples"][-1]),
        None, 0.0, 0, None,
    )  # fmt: skip
    alone = next((run for run in here.meta["runs"] if len(run["seeds"]) == 1), None)
    if alone is None:
        return way
    seconds = alone["seconds"] - alone["measuring"] - alone["settling"]
    used = load(alone["ended"] - alone["seconds"], alone["ended"])
    return replace(way, seconds=seconds, settling=alone["settling"], memory=alone["memory"], load=used)


def _half(pairs: Array) -> float:
    """Return half of the 95 % interval of the mean of differences, by Student."""
    if len(pairs) < 2:
        return float("inf")
    return student_quantile(len(pairs) - 1) * float(pairs.std(ddof=1)) / math.sqrt(len(pairs))


def _load(path: Path) -> Callable[[float, float], float | None]:
    """Return the mean utilisation of the GPU between two times, from a log of nvidia-smi: time in UTC, percent."""
    rows: list[tuple[float, float]] = []
    if path.exists():
        with path.open(encoding="utf-8") as file:
            for time, percent, *_ in csv.reader(file):
                rows.append((datetime.strptime(f"{time} +0000", "%Y/%m/%d %H:%M:%S.%f %z").timestamp(), float(percent)))

    def between(start: float, end: float) -> float | None:
        some = [percent for time, percent in rows if start <= time <= end]
        return float(np.mean(some)) if some else None

    return between


# -- pages -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Headline:
    """An experiment with a page and a figure of bars.

    Args:
        arms: its rows.
        subject: what was trained, in the title of the figure.
        question: what the reader wants to know.
        notes: what the rows are.
        memory: whether memory is told, instead of the load of the GPU.
    """

    arms: tuple[Result, ...]
    subject: str
    question: str
    notes: tuple[str, ...]
    memory: bool = False

    def words(self, ways: Sequence[Way]) -> str:
        """Return the outcome in a sentence."""
        base, *others = ways
        parts = []
        for way in others:
            known = way.seconds is not None and base.seconds
            time = f", {way.seconds / base.seconds:.2f} of its seconds" if known else ""  # type: ignore[operator]
            share = f"{way.steps / base.steps:.3g} of its steps"
            parts.append(f"{way.arm.label}: {way.verdict} ({way.gap_text}{time}, {share}, n = {way.seeds})")
        return f"against {base.arm.label} ({plus_minus(*base.loss, 4)}): " + "; ".join(parts)

    def table(self, ways: Sequence[Way]) -> str:
        """Return the rows as Markdown."""
        last = "memory, GB" if self.memory else "load of the GPU"
        head = ["", "n", "validation loss", "less the base's [95 %]", f"as good within {MARGIN:g}?", "steps", "seconds",
                "tokens/s", "compiling, s", last]  # fmt: skip
        lines = [_row(*head), _row(*["---"] * len(head))]
        for way in ways:
            end = f"{way.memory / 1e9:.2f}" if self.memory else "" if way.load is None else f"{way.load:.0f} %"
            cells = way.arm.label, str(way.seeds), plus_minus(*way.loss, 4), way.gap_text, f"**{way.verdict}**"
            speed = f"{way.tokens / way.seconds / 1e6:.2f} M" if way.seconds is not None else ""
            time = "" if way.seconds is None else f"{way.seconds:.1f}{'' if way.alone else ' (same steps)'}"
            more = (f"{way.settling:.1f}", end) if way.alone and way.seconds is not None else ("", "")
            lines.append(_row(*cells, f"{way.steps:,}", time, speed, *more))
        return "\n".join(lines)

    def page(self, entry: Entry) -> str:
        """Return the page in Markdown."""
        ways, record = ways_of(entry, self.arms), entry.record
        missing = f"**Missing:** {gathered(record['missing'])}." if record["missing"] else ""
        versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
        parts = [
            f"# {entry.title}",
            self.question,
            f"**We measured:** {self.words(ways)}.",
            "![seconds](seconds.png)",
            self.table(ways),
            NOTE,
            "\n".join(f"- {note}" for note in self.notes),
            "[PROTOCOL](../PROTOCOL.md) has what was decided before the runs, and every deviation.",
            missing,
            f"Made by `{record['command']}` on {record['date']}: {record['hardware']}; {versions}.",
        ]
        return "\n\n".join(part for part in parts if part) + "\n"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


_SETTING = (
    "A GPT (6 layers, width 512) on the bytes of enwik8, sequences of 128, AdamW with betas .9 and .95 and a cosine. "
    "All rows see the same tokens in the same order."
)
HEADLINES: Mapping[str, Headline] = MappingProxyType(
    {
        "sooner": Headline(
            ARMS,
            "GPT, 33.6 M tokens",
            f"A small batch trains a good model slowly. Which way to the same model is sooner? {_SETTING}",
            (
                "**grown by the noise, converted**: `BatchSchedule.from_noise`, with the noise measured along runs of "
                "the base; learning rate, betas, eps, decay and state are converted at each change.",
                "**raised instead of the decay, converted**: `BatchSchedule.instead_of_decay`; the batch takes the "
                "cosine's decay until it is 128.",
                "**Seesaw** (arXiv 2510.14717): where the cosine has halved, the learning rate is divided by sqrt(2) "
                "and the batch doubled; nothing else changes.",
                "**learning rate only**: the stages of the first, the learning rate by the square root, nothing else.",
                "**B = 128 from the start**: the best of three learning rates, each tried over a whole run.",
            ),
        ),
        "one-gpu": Headline(
            RECIPES,
            "GPT, 33.6 M tokens",
            f"A recipe was made for a batch of 512, and there is one GPU. Accumulate, or convert? {_SETTING}",
            (
                "**B = 512**: the best of four learning rates, each tried over a whole run; accumulated in 64 "
                "micro-batches of 8, or at once.",
                "**converted**: everything by kappa = 1/64, from the start; no accumulation.",
                "**Marek et al.** (arXiv 2507.07101): beta2's half-life in tokens, beta1 kept, no weight decay.",
            ),
            memory=True,
        ),
    }
)
