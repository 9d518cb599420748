"""The experiments whose results are, or would be, stored in a folder of results; each is read once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rootscale.lab import Table
from rootscale.paper.experiment import Experiment, Options, Stored
from rootscale.paper.experiments import experiments
from rootscale.paper.finals import Final
from rootscale.paper.stored import finals_of, record_of

__all__ = ["Entry", "entries_of", "gathered"]


@dataclass(frozen=True)
class Entry:
    """An experiment under some options, and the folder where its results would be.

    Args:
        read: what was read from the folder already, if anything.
    """

    experiment: Experiment
    options: Options
    folder: Path
    read: Table | None = None

    @property
    def title(self) -> str:
        """That of the experiment, with what is other than its default."""
        options, defaults = self.options, self.experiment.defaults
        parts = [self.experiment.title]
        parts += [f"ε = {options.eps:g}"] if options.eps != defaults.eps else []
        parts += [f"recipe {options.recipe}"] if options.recipe != defaults.recipe else []
        parts += [options.model] if options.model != defaults.model else []
        parts += ["BatchNorm as in the paper"] if options.paper_batchnorm else []
        return ", ".join(parts)

    @property
    def there(self) -> bool:
        """Whether runs of it are stored."""
        return (self.folder / "experiment.json").exists()

    @property
    def figure(self) -> Path:
        """The figure of its page."""
        shown = self.experiment.shown
        name = "finals.png" if shown.dots else "sweep.png" if shown.sweep else "curves.png"
        return next((one for one in [self.folder / "seconds.png"] if one.exists()), self.folder / name)

    # What is stored is read once, for all figures and tables.

    @cached_property
    def check(self) -> Table:
        """The trajectories."""
        return self.read or Table.load(self.folder)

    @cached_property
    def record(self) -> Mapping[str, Any]:
        """What made them."""
        return record_of(self.folder)

    @cached_property
    def finals(self) -> Sequence[Final]:
        """What they came to."""
        return finals_of(self.folder, self.check)

    def stored(self) -> Stored | None:
        """What a reader learns."""
        if self.experiment.stored is not None:
            return self.experiment.stored(self.folder)
        if not self.there:
            return None
        seeds = max(final.seeds for final in self.finals)
        return Stored(self.words(), seeds, self.record["hardware"], self.figure)

    def words(self, told: str = "") -> str:
        """What came out (in the experiment's words or in others), and what there is not yet, with its command."""
        assert self.experiment.words is not None
        record, words = self.record, told or self.experiment.words(self.finals)
        made = record["options"]
        if made["smoke"]:
            return f"a smoke test on generated data, which says nothing about the claim: {words}"
        missing = record["missing"]
        runs = f"{len(missing)} {'runs' if len(missing) > 1 else 'run'}"
        unfinished = f". *Missing:* {runs}, `{record['command']}`" if missing else ""
        return words + unfinished + self.short_of(made)

    def short_of(self, made: Mapping[str, Any]) -> str:
        """What was made with other options than planned, and the command for the plan; nothing if it is the plan."""
        planned = self.options.to_dict()
        other = [name for name in ("epochs", "batch_sizes", "ells", "seeds") if made[name] != planned[name]]
        if not other:
            return ""
        instead = "; ".join(
            f"{name.replace('_', ' ')} {_values(made[name])} instead of {_values(planned[name])}" for name in other
        )
        return f". Made with {instead}; *missing:* `{self.command}`"

    @property
    def command(self) -> str:
        """What makes it as planned."""
        return self.experiment.command(replace(self.options, device="cuda"))


def entries_of(results: Path, read: Mapping[Path, Table] | None = None) -> Iterator[Entry]:
    """Every experiment with its default options, with the further ones it names, and any other that is stored.

    Args:
        results: the folder of all of them.
        read: checks that were read already, by their folders.
    """
    read, known = read or {}, set()
    for experiment in experiments().values():
        for change in ({}, *experiment.also):
            options = replace(experiment.options(), **change)
            folder = results / experiment.folder(options)
            known.add(folder)
            yield Entry(experiment, options, folder, read.get(folder))
    for place in sorted(results.glob("*/experiment.json")):
        if place.parent not in known:
            record = record_of(place.parent)
            given: dict[str, Any] = {
                name: tuple(x) if isinstance(x, list) else x for name, x in record["options"].items()
            }
            yield Entry(experiments()[record["name"]], Options(**given), place.parent, read.get(place.parent))


def _values(option: Any) -> str:
    return ", ".join(f"{value:,g}" for value in (option if isinstance(option, list) else [option]))


def gathered(runs: Sequence[str]) -> str:
    """Return names of runs, those that differ in their seed only together.

    >>> gathered(["B = 256, seed 3", "B = 1,024, seed 3", "B = 256, seed 4"])
    'B = 256, seeds 3, 4; B = 1,024, seed 3'
    """
    seeds: dict[str, list[str]] = {}
    for run in runs:
        label, _, some = run.rpartition(", seed")
        seeds.setdefault(label, []).append(some.removeprefix("s").strip())
    return "; ".join(
        f"{label}, {'seeds' if len(some) > 1 or ' ' in some[0] else 'seed'} {', '.join(some)}"
        for label, some in seeds.items()
    )
