"""The batch sizes of a configuration, old and new, and what has to be written for the new one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from rootscale.batch_size import BatchSize
from rootscale.configs.rows import Batch
from rootscale.documents import Document, under
from rootscale.format import show
from rootscale.sizes import LARGEST, read_size
from rootscale.units import Number

#: What a configuration may have in the place of a number that is filled in elsewhere.
AUTO = "auto"


@dataclass(frozen=True)
class BatchChange:
    """A new batch size.

    Args:
        size: the new one; its layout is known where that of the old one is.
        values: what to write, by path.
        warnings: what to know about it.
    """

    size: BatchSize
    values: Mapping[str, int]
    warnings: tuple[str, ...] = ()


def _count(source: Document, path: str, defaults: Mapping[str, int] = MappingProxyType({})) -> int | None:
    """A whole number above 0; the tool's default or None where there is none."""
    value = source[path] if path else None
    value = defaults.get(path) if value is None else value
    if isinstance(value, str) and value != AUTO:
        value = read_size(value) or value
    if value in (None, AUTO) or (isinstance(value, int) and not isinstance(value, bool) and value <= 0):
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f'{path} must be a whole number, such as 512, "0.5M" or "2**19", got {value!r}')
    if value > LARGEST:
        raise ValueError(f"{path} must be a number of samples, got one of {len(str(value))} digits")
    return value


def _given(option: str, value: BatchSize | Number | str) -> BatchSize:
    try:
        size = BatchSize.of(value)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None
    if not isinstance(size.total, int):
        raise ValueError(f"{option} must be a whole number of samples, got {show(size.total)}")
    return size


def read_batch_size(
    source: Document, layout: Batch, start: BatchSize | Number | str | None, world_size: int | None
) -> BatchSize:
    """Return the batch size of a configuration, with its layout where samples per backward and workers are known.

    Args:
        source: the configuration.
        layout: where its numbers are.
        start: the batch size, where the configuration does not have it.
        world_size: the data-parallel workers, where it does not have them.
    """
    paths = (layout.total, layout.micro, layout.accumulation)
    total, micro, accumulation = (_count(source, path, layout.defaults) for path in paths)
    if total is None and layout.last_stage:
        total = _last_stage(source, layout.last_stage)
    given = None if start is None else _given("--from", start)
    if world_size is not None and world_size < 1:
        raise ValueError(f"--world-size must be a whole number above 0, got {world_size!r}")
    workers = given.workers if given is not None and given.laid_out else world_size
    workers = 1 if layout.all_workers else workers
    backwards = accumulation or (None if layout.accumulation and source[layout.accumulation] == AUTO else 1)
    if total is None and micro and workers and backwards:
        total = micro * backwards * workers
    if total is None:
        if given is None:
            by_workers = "the number of data-parallel workers (--world-size) or " if micro else ""
            raise ValueError(
                f"the file does not say how many {layout.counts} a step takes ({_here(source, layout, micro)}): give "
                f"{by_workers}the batch size itself (--from)"
            )
        total = int(given.total)
        accumulation = accumulation or (backwards if layout.accumulation else None)
    if given is not None and given.total != total:
        raise ValueError(f"the batch size of the file is {show(total)}, and --from says {show(given.total)}")
    if micro and workers and accumulation and micro * workers * accumulation != total:
        raise ValueError(
            f"{layout.total}={total} is not {micro} micro x {accumulation} accumulation x {workers} workers"
        )
    if micro and accumulation and workers is None and total % (micro * accumulation) == 0:
        workers = total // (micro * accumulation)
    if given is not None and given.laid_out and not micro:
        return given
    if micro and workers and total % (micro * workers) == 0:
        return BatchSize(micro, total // (micro * workers), workers)
    return BatchSize(total)


def _here(source: Document, layout: Batch, micro: int | None) -> str:
    """Return what a configuration has where the batch size is looked for."""
    if micro:
        return f"{layout.micro}={micro} is per worker"
    path = layout.total or layout.micro
    return f'{path} is "{AUTO}"' if source[path] == AUTO else f"{path} is not there"


def _last_stage(source: Document, path: str) -> int | None:
    """The last batch size of a ramp."""
    items = under(source, path)
    return _count(source, items[-1]) if items else None


def _ramp(source: Document, layout: Batch, kappa: Fraction) -> dict[str, int]:
    """Every batch size of a ramp, converted: each stage keeps its samples and takes kappa times as many a step."""
    paths = [
        path
        for stage in layout.stages
        for path in (under(source, stage.removesuffix(".*")) if stage.endswith(".*") else [stage])
        if path in source
    ]
    new = {}
    for path in paths:
        size, micro = _count(source, path), _count(source, layout.micro) or 1
        after = Fraction(size or 0) * kappa
        if after.denominator != 1 or after % micro:
            raise ValueError(
                f"{path}={size} of the ramp would become {show(after)}, which is no multiple of {micro} micro: choose "
                "a batch size for which every stage is one"
            )
        new[path] = int(after)
    return new


def write_batch_size(source: Document, layout: Batch, old: BatchSize, to: BatchSize | Number | str) -> BatchChange:
    """Return the new batch size and what to write for it: where only the total is given, the accumulation follows."""
    asked = _given("--to", to)
    new = old.at(asked)
    micro, workers = (old.micro, old.workers) if old.laid_out else (_count(source, layout.micro) or 1, 1)
    ramp = _ramp(source, layout, Fraction(new.total) / Fraction(old.total))
    if not asked.laid_out and (int(new.total) % (int(micro) * workers) or new.laid_out != old.laid_out):
        raise ValueError(
            f"batch size {show(new.total)} is no multiple of {micro} micro x {workers} workers: choose its layout "
            "yourself, --to MICROxACCUMULATIONxWORKERS"
        )
    values: dict[str, int] = {}
    if layout.total and (_count(source, layout.total) or not (layout.accumulation or ramp)):
        values[layout.total] = int(new.total)
    if asked.laid_out and _count(source, layout.micro):
        values[layout.micro] = int(asked.micro)
    derived = _count(source, layout.total) and not _count(source, layout.accumulation)
    counted = layout.accumulation and new.laid_out
    counted_here = counted and not derived and source[layout.accumulation] != AUTO
    if counted_here and new.accumulation != (_count(source, layout.accumulation, layout.defaults) or 1):
        values[layout.accumulation] = new.accumulation
    values |= ramp
    missing = not values and new.total != old.total and not counted
    notes = ("the batch size itself is not written: the file has no number for it",) if missing else ()
    return BatchChange(new, values, notes)
