"""The whole table of a tool: where its batch size is, and its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rootscale.changes import Change
from rootscale.integrations.configs.formats.row import Field, OptimizerRow, Refusal, ScheduleRow, Source

__all__ = ["Format", "Layout"]


@dataclass(frozen=True)
class Layout:
    """Where the batch size is.

    Args:
        total: samples per step.
        micro: samples per backward of a worker.
        accumulation: backwards per step.
        defaults: what the tool takes where one of these is not given.
        all_workers: whether ``accumulation`` counts the backwards of all workers together.
        stages: the batch sizes of a ramp, each converted; ``*`` stands for every item of a list.
        last_stage: the list whose last item is the batch size, where ``total`` is not given.
        counts: what the numbers count.
    """

    total: str = ""
    micro: str = ""
    accumulation: str = ""
    defaults: Mapping[str, int] = field(default_factory=dict)
    all_workers: bool = False
    stages: tuple[str, ...] = ()
    last_stage: str = ""
    counts: str = "samples"

    def paths(self) -> tuple[str, ...]:
        """Return every path that a batch size may be at."""
        return tuple(filter(None, (self.total, self.micro, self.accumulation, *self.stages)))


#: One path, or several of which one is enough.
Paths = str | tuple[str, ...]


def _there(source: Source, paths: Paths) -> bool:
    """Whether one of the paths, or a table of that name, is in a configuration."""
    return any(path in source or source.under(path) for path in ([paths] if isinstance(paths, str) else paths))


@dataclass(frozen=True)
class Format:
    """A tool's configuration.

    Args:
        name: as on the command line.
        summary: what it is.
        syntaxes: what a file is written in; names of `rootscale.integrations.configs.syntaxes.SYNTAXES`.
        markers: paths that only this tool has; a file is of this format if one is there, and all of ``also``.
        also: see ``markers``.
        layout: where the batch size is.
        optimizer: the path of the optimizer's name.
        optimizers: by name in lower case.
        default_optimizer: where none is named; empty if one must be.
        schedule: the path of the schedule's name.
        schedules: by name in lower case; empty if nothing depends on the schedule.
        default_schedule: where none is named.
        schedule_values: the table that holds the schedule's own options, where all of them must be known.
        fields: of every configuration of this format.
        epochs: the path of the length of the run in passes over the data, which does not change.
        refusals: what cannot be converted.
        remarks: each returns what else to know about a configuration at this kappa, or nothing.
        adjust: returns the rows, by path, with what has to fit together made to fit.
        tables: where an unknown option that sounds like the optimizer's is refused; empty text: the top of the file.
        strict: tables in which every unknown option is refused.
        others: options that are known to have no unit, as full paths.
        flat: whether values are known by bare names, with ``_`` for ``-``.
        null: whether a null switches off what it stands for; else the tool takes its default.
        aliases: other names of options, with the path of each.
        sections: whether a file may have several configurations, each in a table of its name.
        left_alone: what is not converted and why, for the docs.
    """

    name: str
    summary: str
    syntaxes: tuple[str, ...]
    markers: tuple[str, ...]
    layout: Layout
    optimizer: str
    optimizers: Mapping[str, OptimizerRow]
    also: tuple[Paths, ...] = ()
    default_optimizer: str = ""
    schedule: str = ""
    schedules: Mapping[str, ScheduleRow] = field(default_factory=dict)
    default_schedule: str = ""
    schedule_values: str = ""
    fields: tuple[Field, ...] = ()
    epochs: str = ""
    refusals: tuple[Refusal, ...] = ()
    remarks: tuple[Callable[[Source, float], str], ...] = ()
    adjust: Callable[[Source, dict[str, Change]], dict[str, Change]] = lambda source, rows: rows
    tables: tuple[str, ...] = ()
    strict: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    flat: bool = False
    null: bool = False
    aliases: tuple[tuple[str, str], ...] = ()
    sections: bool = False
    left_alone: str = ""

    def matches(self, source: Source) -> bool:
        """Whether a configuration is of this format."""
        return _there(source, self.markers) and all(_there(source, paths) for paths in self.also)

    @property
    def looked_for(self) -> str:
        """What makes a file of this format, in words."""
        also = [paths if isinstance(paths, str) else " or ".join(paths) for paths in self.also]
        with_also = f" and {', '.join(also)}" if also else ""
        return f"{self.name} ({' or '.join(self.syntaxes)} with {' or '.join(self.markers)}{with_also})"

    def all_fields(self) -> tuple[Field, ...]:
        """Return every field of the format, whatever the optimizer and the schedule."""
        optimizers = (one for row in self.optimizers.values() for one in row.fields)
        schedules = (one for row in self.schedules.values() for one in row.fields)
        return (*optimizers, *schedules, *self.fields)

    def known_paths(self) -> frozenset[str]:
        """Return every path that the table says something about."""
        switches = (row.switch[0] for row in self.optimizers.values() if row.switch is not None)
        conditions = (when.path for one in self.all_fields() for when in one.when)
        named = (self.optimizer, self.schedule, self.schedule_values, self.epochs)
        refused = (refusal.path for refusal in self.refusals)
        fields = [one.path for one in self.all_fields()]
        lists = (path.rpartition(".")[0] for path in fields if path.rpartition(".")[2].isdigit())
        known = (*fields, *lists, *conditions, *switches, *named, *refused, *self.layout.paths(), *self.others)
        return frozenset(filter(None, known))
