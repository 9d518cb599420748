"""`rootscale plan`: batch sizes, hours and a ramp for a number of tokens, as a forecast."""

from __future__ import annotations

import argparse
import json
import logging
import math
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rootscale.cli.options import add_rule
from rootscale.cli.plan_options import add_plan, plan_of_options
from rootscale.sizes import read_size, samples_of

if TYPE_CHECKING:
    from rootscale.configs.convert import ConvertedFile
    from rootscale.horizon import Horizons
    from rootscale.noise import Interval
    from rootscale.plan import Plan
    from rootscale.planner import Choice, Forecast, NoiseAlong, Seconds

_LOG = logging.getLogger(__name__)


def add_parsers(commands: Any) -> None:
    """Add the command to the result of ``ArgumentParser.add_subparsers``; ``args.handler(args)`` runs it."""
    parser = commands.add_parser(
        "plan",
        usage="rootscale plan --config FILE --tokens N [...]",
        description="Forecast what batch sizes take of a run: steps, hours, how many more samples the noise scale says "
        "they need for the same loss (samples = least (1 + B / B_noise), arXiv 1812.06162), what runs like it did, and "
        "a batch that grows. A forecast, no measurement: `rootscale largest` measures.",
        epilog="examples:\n"
        "rootscale plan --optimizer adamw --lr 3e-4 --batch-size 0.5M --sequence-length 2048 --tokens 10B "
        "--noise 1.4M 1.1M 1.9M --seconds 0.5M=0.41 2M=1.3\n"
        "rootscale plan --config train.yaml --tokens 10B --sequence-length 2048 --noise-log run.jsonl "
        '--time "torchrun train.py --batch_size {batch_size} --max_steps {steps}" --time-at 256 1024',
    )
    what = parser.add_argument_group("what is forecast")
    what.add_argument(
        "--batch-sizes", nargs="+", default=[], metavar="B", help="default: 1, 2, 4, ... times that of now"
    )
    what.add_argument("--horizon", metavar="TOKENS", help="the numbers for another number of tokens too, by each rule "
                      "that was published; none is a default")  # fmt: skip
    add_rule(what)
    noise = parser.add_argument_group("the noise scale, with its interval").add_mutually_exclusive_group()
    noise.add_argument("--noise", nargs=3, metavar=("VALUE", "LOW", "HIGH"), help="as a NoiseMeter estimates it")
    noise.add_argument(
        "--noise-log", nargs="+", metavar="LOG", help="of runs of this plan, with the columns noise_scale, "
        "noise_scale_low and noise_scale_high: gives a ramp too",
    )  # fmt: skip
    seconds = parser.add_argument_group("the seconds of a step, at two batch sizes or more")
    seconds.add_argument("--seconds", nargs="+", default=[], metavar="B=S", help="as you know them")
    seconds.add_argument(
        "--time", metavar="COMMAND", help="measure them: a command in which {batch_size} and {steps} are filled in"
    )
    seconds.add_argument("--time-at", nargs="+", default=[], metavar="B", help="batch sizes to measure, in samples")
    seconds.add_argument("--time-steps", type=int, default=10, metavar="N", help="steps of a try; default: %(default)s")
    seconds.add_argument("--out", type=Path, default=Path("runs/plan"), metavar="FOLDER", help="where measured seconds "
                         "are kept, so that a stopped measurement goes on; default: %(default)s")  # fmt: skip
    run = parser.add_argument_group("the run as it is")
    run.add_argument("--config", type=Path, metavar="FILE", help="a configuration that `rootscale convert` reads")
    run.add_argument("--from", dest="start", metavar="B", help="its batch size, where the file does not have it")
    add_plan(run)
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="the forecast, machine-readable, with the plan of each row")
    output.add_argument("--png", type=Path, metavar="FILE", help="a figure of samples and hours (needs 'plot')")
    output.add_argument("--choose", metavar="B", help="the batch size to write")
    output.add_argument(
        "--write", type=Path, metavar="FILE", help="the configuration, or the plan as JSON, at --choose"
    )
    parser.set_defaults(handler=_plan)


def _plan(args: argparse.Namespace) -> int:
    from rootscale.horizon import horizons
    from rootscale.planner import make_forecast
    from rootscale.rules import rule_text

    if getattr(args, "noise_scale", None) is not None:
        raise ValueError(
            f"--noise-scale {args.noise_scale} has no interval, and nothing is forecast from a number alone: give "
            "--noise VALUE LOW HIGH, as a NoiseMeter estimates it, or --noise-log"
        )
    if (args.choose is None) != (args.write is None):
        raise ValueError("--choose B and --write FILE belong together: give both, or neither")
    plan, rule = _run_as_it_is(args), rule_text(args.rule, args.averaging)
    sizes = [_whole_size("--batch-sizes", text, plan) for text in args.batch_sizes]
    if args.choose is not None:
        sizes.append(_whole_size("--choose", args.choose, plan))
    forecast = make_forecast(plan, sizes, _noise(args, plan), _seconds(args, plan), rule)
    other = None if args.horizon is None else horizons(plan, None, args.horizon)
    if args.json:
        found = forecast.to_dict() | ({} if other is None else {"horizon": other.to_dict()})
        print(json.dumps(found, indent=2, allow_nan=False))
    else:
        _show(forecast, other)
    if args.png is not None:
        _draw(forecast, args.png)
    if args.write is not None:
        _write(args, forecast, sizes[-1], rule)
    return 0


# -- what is given ---------------------------------------------------------------------------------------------------


def _run_as_it_is(args: argparse.Namespace) -> Plan:
    """Return the plan of the options, or that of a configuration with the length of the options."""
    if args.config is None:
        if args.start is not None:
            raise ValueError("--from is the batch size of a --config that does not have it; give --batch-size")
        return plan_of_options(args)
    from rootscale.configs.batch import read_batch_size
    from rootscale.configs.convert import read_document
    from rootscale.configs.reading import read_configuration

    try:
        text = args.config.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {args.config}: {getattr(error, 'strerror', None) or error}") from None
    document, known = read_document(text, None, args.config.suffix)
    plan = read_configuration(document, known).plan(read_batch_size(document, known.batch, args.start, None))
    length, name = _length(args), "sequence_length"
    given = getattr(args, name)
    if given is not None:
        tokens = read_size(given)
        if tokens is None:
            raise ValueError(f"--sequence-length must be a whole number of tokens such as 2048, got {given!r}")
        plan = replace(plan, sequence_length=tokens)
    if known.batch.counts == "tokens" and length is not None:
        length = length.replace("tokens", "samples")  # such a file counts batches in tokens, and has no sequences
    return plan if length is None else replace(plan, steps=plan.steps_of("--tokens", length), epochs=None)


def _length(args: argparse.Namespace) -> str | None:
    units = [unit for unit in ("steps", "samples", "tokens") if getattr(args, unit) is not None]
    if len(units) > 1:
        raise ValueError(f"give one length of the run, --{units[0]} or --{units[1]}, not both")
    return f"{getattr(args, units[0])} {units[0]}" if units else None


def _whole_size(flag: str, text: str, plan: Plan) -> int:
    """Return a batch size in whole samples; of tokens that are no whole sequences, the nearest."""
    size = samples_of(flag, text, plan.sequence_length)
    if size != int(size):
        _LOG.info("note: %s %s is %.6g sequences, of which %d are taken", flag, text, float(size), round(size))
    return max(1, round(size))


def _noise(args: argparse.Namespace, plan: Plan) -> NoiseAlong | None:
    """Return the noise scale of the options; None where none was given."""
    from rootscale.noise import Interval
    from rootscale.planner import NoiseAlong

    if args.noise is not None:
        value, low, high = (math.inf if text == "inf" else _scale(text, plan) for text in args.noise)
        return NoiseAlong((0.0,), (Interval(value, low, high),))
    if args.noise_log is not None:
        return noise_of_logs(args.noise_log, plan)
    return None


def _scale(text: str, plan: Plan) -> float:
    return 0.0 if text == "0" else float(samples_of("--noise", text, plan.sequence_length))


def noise_of_logs(paths: list[str], plan: Plan) -> NoiseAlong:
    """Return the noise scale along logged runs of a plan, in samples: of several runs, what is careful of all."""
    import numpy as np

    from rootscale.compare.columns import find_clock
    from rootscale.compare.readers.formats import read_logs
    from rootscale.noise import Interval
    from rootscale.planner import NoiseAlong

    logs, runs = read_logs(paths), []
    clocks = find_clock([logs], None, [float(plan.batch_size.total)])[0]
    for log, clock in zip(logs, clocks, strict=True):
        lacking = [name for name in ("noise_scale", "noise_scale_low") if name not in log.columns]
        if lacking:
            raise ValueError(
                f"{log.name} has no column {' and '.join(lacking)}, and nothing is forecast from a noise scale without "
                "its interval: log rootscale.tracking.numbers(meter.estimate()) along the run"
            )
        if clock.unit == "tokens" and plan.sequence_length is None:
            raise ValueError(f"{log.name} counts tokens: give --sequence-length")
        if clock.unit not in ("samples", "tokens"):
            raise ValueError(f"{log.name} counts {clock.unit}, and the noise needs samples or tokens")
        value, low = log.columns["noise_scale"], log.columns["noise_scale_low"]
        high = log.columns.get("noise_scale_high")
        upper = {} if high is None else dict(zip(high.rows.tolist(), high.values.tolist(), strict=True))
        lower = dict(zip(low.rows.tolist(), low.values.tolist(), strict=True))
        unit = plan.sequence_length if clock.unit == "tokens" else 1
        places = clock.places(value) / (unit or 1)
        runs.append([
            (float(at), Interval(float(middle), lower[row], max(float(middle), upper.get(row, math.inf))))
            for row, at, middle in zip(value.rows.tolist(), places, value.values, strict=True)
            if row in lower and 0 < middle < math.inf
        ])  # fmt: skip
    if not all(runs):
        raise ValueError(
            "the noise scale was never measured with an interval: too few micro-batches? A NoiseMeter needs two parts "
            "of a step, and two steps"
        )
    first = runs[0][:: max(1, len(runs[0]) // 64)]
    scales = []
    for at, _ in first:
        near = [min(run, key=lambda pair: abs(pair[0] - at))[1] for run in runs]
        middle = float(np.median([one.value for one in near]))
        scales.append(Interval(middle, min(one.low for one in near), max(one.high for one in near)))
    return NoiseAlong(tuple(at for at, _ in first), tuple(scales))


def _seconds(args: argparse.Namespace, plan: Plan) -> Seconds | None:
    """Return the seconds of a step, given or measured; None where neither was asked for."""
    from rootscale.planner import Seconds

    if args.seconds and args.time:
        raise ValueError("give the seconds of a step, --seconds, or have them measured, --time; not both")
    if args.time_at and not args.time:
        raise ValueError("--time-at does nothing without --time: leave it out, or add that")
    if args.time:
        sizes = [_whole_size("--time-at", text, plan) for text in args.time_at]
        return Seconds(
            {float(size): took for size, took in _measured(args.time, sizes, args.time_steps, args.out).items()}
        )
    points: dict[float, float] = {}
    for text in args.seconds:
        size, equals, value = text.partition("=")
        try:
            points[float(samples_of("--seconds", size, plan.sequence_length))] = float(value)
        except ValueError as error:
            expected = "" if equals else ": write 256=0.41"
            raise ValueError(
                f"--seconds takes B=SECONDS such as 256=0.41, got {text!r}{expected or f' ({error})'}"
            ) from None
    return Seconds(points) if points else None


def _measured(command: str, sizes: Sequence[int], steps: int, folder: Path) -> dict[float, float]:
    """Return the seconds of a step of a command at some batch sizes, from runs of so many steps and three times that.

    Their difference leaves out what a run takes to begin. What is measured is kept, and not measured again.
    """
    from rootscale.files import write_json

    if len(set(sizes)) < 2:
        raise ValueError("--time needs two batch sizes or more to measure at, such as --time-at 256 1024")
    for name in ("{batch_size}", "{steps}"):
        if name not in command:
            raise ValueError(f"the command of --time must have {name}, which is filled in; got {command!r}")
    if steps < 1:
        raise ValueError(f"--time-steps must be at least 1, got {steps}")
    folder.mkdir(parents=True, exist_ok=True)
    file, key = folder / "seconds.json", f"{steps} steps: {command}"
    stored: dict[str, dict[str, float]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    known = stored.setdefault(key, {})
    for size in sorted(set(sizes)):
        if str(size) in known:
            continue
        short, long = (_timed(command, size, count, folder) for count in (steps, 3 * steps))
        if long <= short:
            raise ValueError(
                f"{3 * steps} steps at batch size {size} took {long:.3g} s, and {steps} steps {short:.3g} s: does the "
                "command end after {steps} steps? If it does, a larger --time-steps tells them apart"
            )
        known[str(size)] = (long - short) / (2 * steps)
        write_json(file, stored)
        _LOG.info("note: a step at batch size %d takes %.3g s", size, known[str(size)])
    return {float(size): known[str(size)] for size in sizes}


def _timed(command: str, size: int, steps: int, folder: Path) -> float:
    """Return the seconds that a command takes."""
    from rootscale.lab.processes import Child

    _LOG.info("running %d steps at batch size %d", steps, size)
    words = [word.replace("{batch_size}", str(size)).replace("{steps}", str(steps)) for word in shlex.split(command)]
    if shutil.which(words[0]) is None:
        raise ValueError(f"the command of --time begins with {words[0]!r}, and there is no such program")
    with (folder / "output.txt").open("wb") as output:
        begun = time.monotonic()
        child = Child.command(words, output)
        try:
            child.wait()
        except BaseException:
            child.end()
            child.wait()
            raise
        took = time.monotonic() - begun
    if child.returncode:
        tail = (folder / "output.txt").read_text(encoding="utf-8", errors="replace")[-500:].strip()
        raise ValueError(f"the command of --time ended with exit code {child.returncode}: {' '.join(words)}\n{tail}")
    return took


# -- what is shown ---------------------------------------------------------------------------------------------------


def _show(forecast: Forecast, other: Horizons | None) -> None:
    from rich.text import Text

    from rootscale.cli.console import Column, FittedTable, make_console
    from rootscale.format import few_digits, show
    from rootscale.sizes import show_samples

    console, plan = make_console(), forecast.plan
    length, samples = plan.sequence_length, show_samples(plan.samples or 0, plan.sequence_length)
    console.print(
        f"[bold]Forecast[/] for a run of {plan.optimizer.name} over samples: {samples}. Its batch size is "
        f"{plan.batch_size} now.\n"
    )
    names = ["batch size", "steps", "hours", "samples for the same loss", "hours to the same loss", "lr"]
    risks = any(choice.risk for choice in forecast.choices)
    columns = [Column(name, right=True) for name in names] + ([Column("runs like it", folds=True)] if risks else [])
    rows = [[Text(cell) for cell in _row(choice, length, risks)] for choice in forecast.choices]
    console.print(FittedTable(columns, rows))
    beyond = [choice for choice in forecast.choices if choice.seconds is not None and not choice.measured]
    if beyond:
        console.print(
            f"Hours of {', '.join(show(choice.size.total) for choice in beyond)} lie beyond the batch sizes that were "
            "measured, and go on as a line.", soft_wrap=True,
        )  # fmt: skip
    console.print(
        "Samples are times those of the batch size of now, with what the noise scale's 95 % interval leaves open: "
        "1 + B / B_noise over the same of now. Nobody has run it: `rootscale largest` says what trains the same.",
        soft_wrap=True,
    )
    if forecast.ramp is None:
        console.print(f"\nNo ramp: {forecast.no_ramp}.", soft_wrap=True)
    else:
        ramp = forecast.ramp
        stages = ", ".join(f"{show_samples(size, length)} from sample {show(at)}" for at, size in ramp.stages)
        hours = "" if ramp.hours is None else f", {few_digits(ramp.hours)} hours"
        console.print(
            f"\nA ramp, below half of the noise scale's lower end: {stages}; {show(ramp.steps)} steps{hours}, "
            f"{_factor(ramp.cost)} the samples.", soft_wrap=True,
        )  # fmt: skip
    if other is not None:
        console.print(f"\n[bold]Another number of tokens[/]: {other}.\n", soft_wrap=True)
        values = sorted(other.ranges)
        columns = [Column("published rule"), *(Column(name, right=True) for name in values), Column("source"),
                   Column("why", folds=True)]  # fmt: skip
        console.print(FittedTable(columns, [
            [Text(row.name), *(Text(f"{getattr(row.plan.optimizer, name):.5g}") for name in values),
             Text(row.rule.source), Text(row.rule.why)]
            for row in other.rows
        ]))  # fmt: skip
    for choice in forecast.choices:
        if choice.conversion.changes.warnings:
            _LOG.warning("note: at %s: %s", choice.size, "; ".join(choice.conversion.changes.warnings))


def _row(choice: Choice, length: int | None, risks: bool) -> list[str]:
    from rootscale.format import few_digits, show
    from rootscale.sizes import show_samples

    to_loss = choice.hours_to_loss
    return [
        show_samples(choice.size.total, length),
        show(choice.steps),
        "" if choice.hours is None else few_digits(choice.hours),
        f"cannot say ({choice.unknown})" if choice.cost is None else _factor(choice.cost),
        ""
        if to_loss is None
        else f"{few_digits(to_loss.value)} [{few_digits(to_loss.low)}, {few_digits(to_loss.high)}]",
        few_digits(choice.conversion.plan.optimizer.eta),
        *([choice.risk] if risks else []),
    ]


def _factor(cost: Interval) -> str:
    return f"{cost} times"


def _draw(forecast: Forecast, path: Path) -> None:
    """Draw samples and hours to the same loss over the batch size."""
    from rootscale.report.plotting import need_matplotlib, plain_axes, save_figure

    matplotlib = need_matplotlib()
    known = [choice for choice in forecast.choices if choice.cost is not None]
    if not known:
        raise ValueError("nothing can be drawn: the samples of no batch size can be said; give --noise or --noise-log")
    panels: list[tuple[str, Callable[[Choice], Interval | None]]] = [
        ("samples for the same loss / those of now", lambda choice: choice.cost)
    ]
    if known[0].hours is not None:
        panels.append(("hours to the same loss", lambda choice: choice.hours_to_loss))
    figure = matplotlib.figure.Figure(figsize=(4.5 * len(panels), 3.4), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (label, value) in zip(axes, panels, strict=True):
        points = [(float(choice.size.total), one) for choice in known if (one := value(choice)) is not None]
        x = [at for at, _ in points]
        axis.fill_between(x, [one.low for _, one in points], [one.high for _, one in points], alpha=0.2)
        axis.plot(x, [one.value for _, one in points], "o-")
        axis.set(xscale="log", yscale="log", xlabel="batch size, samples", ylabel=f"{label} (forecast)")
    plain_axes(axes)
    save_figure(figure, path, 150)


def _write(args: argparse.Namespace, forecast: Forecast, size: int, rule: str | None) -> None:
    """Write the configuration, or the plan, at the chosen batch size."""
    from rootscale.files import whole

    if args.config is None:
        chosen: Mapping[int, Choice] = {int(choice.size.total): choice for choice in forecast.choices}
        text = chosen[size].conversion.plan.to_json() + "\n"
    else:
        from rootscale.configs.convert import convert_file
        from rootscale.configs.reading import Length

        steps = forecast.plan.total_steps
        made: ConvertedFile = convert_file(args.config, size, start=args.start, rule=rule, length=Length(steps, None))
        text = made.after
    with whole(args.write) as temporary:
        temporary.write_text(text, encoding="utf-8")
    _LOG.info("written to %s", args.write)
