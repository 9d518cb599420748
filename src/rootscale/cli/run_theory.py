"""`rootscale order` and `rootscale simulate`: tables of weak errors, and of processes side by side."""

from __future__ import annotations

import math
from argparse import Namespace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from rootscale.cli.console import make_console, progress, unclipped
from rootscale.files import need_folder
from rootscale.format import show
from rootscale.theory.cases import STEPS, Against, Orders, Processes, Setting, measure_orders, run_processes
from rootscale.theory.discrete import Chain
from rootscale.theory.engine import Paths
from rootscale.theory.weak import LARGEST, RESOLVED, Order
from rootscale.theory_settings import MINIBATCH, NOISES, PROBLEMS


def _make_folder(place: Path) -> None:
    """Make a folder for results, before the work rather than after it."""
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{place} cannot be made a folder: {error.strerror}; give another --save") from None


def number(value: float, error: float) -> str:
    """Return ``value ± 1.96 standard errors``, to the digits that the error leaves."""
    if not (math.isfinite(value) and math.isfinite(error)):
        return "-"
    half = 1.96 * error
    digits = 1 - math.floor(math.log10(half)) if half > 0 else 6
    if abs(value) < 1e-3:
        shift = math.floor(math.log10(max(abs(value), half, 1e-300)))
        scale = 10.0**shift
        digits = max(0, digits + shift)
        return f"({value / scale:.{digits}f} ± {half / scale:.{digits}f})e{shift:d}"
    return f"{value:.{max(0, digits)}f} ± {half:.{max(0, digits)}f}"


def _setting(args: Namespace) -> Setting:
    """Return the setting, after everything that can be checked before the work."""
    torch.set_num_threads(1)  # tensors are small: a second thread gains little, and waits long where cores are shared
    if args.png is not None:
        from rootscale.report.plotting import need_matplotlib

        need_matplotlib()
        if args.png.suffix != ".png":
            raise ValueError(f"figures are saved as .png, got {args.png.name!r}; use --png {args.png.stem + '.png'}")
        need_folder(args.png, "figure", "--png")
    if args.noise == MINIBATCH and PROBLEMS[args.problem].noise != MINIBATCH:
        others = " or ".join(name for name in NOISES if name != MINIBATCH)
        raise ValueError(
            f"mini-batches need a problem with data, got --problem {args.problem}; use --problem logistic, or --noise "
            f"{others}"
        )
    return Setting(args.optimizer, args.problem, args.noise, args.time, args.schedule)


def order(args: Namespace) -> int:
    """Measure weak errors and their orders, print both, and draw them if asked to."""
    setting, out = _setting(args), make_console()
    if args.ells and len(args.etas) > 1:
        raise ValueError(
            f"SVAG is measured over --ells at one eta, got {len(args.etas)}; give one, e.g. --etas {args.etas[0]:g}"
        )
    if args.ells and args.kappa != 1:
        raise ValueError("choose either --ells (SVAG against the SDE) or --kappa (two batch sizes), not both")
    if args.rule is not None and args.kappa == 1:
        raise ValueError(f"--rule {args.rule} needs a second batch size to convert to; add e.g. --kappa 4")
    if not args.etas and not setting.chains():
        raise ValueError(
            f"none of {', '.join(map(str, STEPS))} steps fills a time of {setting.case.duration:g} with whole "
            "mini-batches; give --etas or another --time"
        )
    with progress(out) as tell:
        paths = Paths(args.paths, args.seed, progress=lambda share: tell("weak errors", share))
        against = Against(args.kappa, args.rule)
        found = measure_orders(setting, args.etas, ells=args.ells, against=against, paths=paths)
    _print_errors(out, found)
    if args.png is not None:
        _draw_orders(found, args.png)
        out.print(f"wrote {args.png}")
    return 0


def _draw_orders(found: Orders, png: Path) -> None:
    errors = found.errors
    rows = {
        name: [(h, float(e), float(se)) for h, e, se in zip(errors.h, *errors.at(name), strict=True)]
        for name in errors.names
    }
    fits = {name: fit_text(fit) for name, fit in found.fits.items()}
    step = _STEPS[step_text(found.chains[0])]
    label = f"{step}$/\\ell^2$" if found.ells and found.setting.case.equation.clock_power == 2 else step
    from rootscale.report.orders import draw_orders

    draw_orders(rows, png, fits=fits, title=found.title, step=label, largest=LARGEST, resolved=RESOLVED)


#: The time that a step takes, and how a figure writes it.
_STEPS = {"eta^2": "$\\eta^2$", "eta": "$\\eta$", "eta/(1-momentum)": "$\\eta/(1-\\mu)$"}


def step_text(chain: Chain) -> str:
    """Return the time that a step of a chain takes, as a formula."""
    if getattr(chain.optimizer, "momentum", 0.0):
        return "eta/(1-momentum)"
    return "eta" if math.isclose(chain.clock, chain.optimizer.eta) else "eta^2"


def fit_text(fit: Order) -> str:
    """Return the order with half its 95 % interval."""
    return f"{fit.slope:.2f} ± {1.96 * fit.se:.2f}" if math.isfinite(fit.slope) else "unresolved"


def _print_errors(out: Console, found: Orders) -> None:
    errors, fits, ells = found.errors, found.fits, found.ells
    out.print(found.title, style="bold", soft_wrap=True)
    table = Table("test function", "eta", *(["ell"] if ells else []), "step of time")
    for column in ("weak error", "diverged"):
        table.add_column(column, justify="right")
    for name in errors.names:
        rows = zip(found.chains, errors.h, *errors.at(name), errors.diverged, strict=True)
        for i, (chain, h, error, se, diverged) in enumerate(rows):
            value = number(error, se) + ("  " if abs(error) >= RESOLVED * se else " ?")
            ell = [show(ells[i])] if ells else []
            table.add_row("" if i else name, show(chain.optimizer.eta), *ell, show(h), value, str(diverged))
        table.add_row("", "[bold]order", *([""] if ells else []), "", f"[bold]{fit_text(fits[name])}  ", "")
        table.add_section()
    out.print(unclipped(table))
    out.print(
        f"± is 95 %, {errors.errors[0].replicas:,} paths each; that of an order is statistical and does not cover "
        f"curvature, which a smaller eta reduces\n?: unresolved (below {RESOLVED:g} standard errors), not in the fit"
    )
    if any(h >= LARGEST for h in errors.h):
        out.print(f"steps of time from {LARGEST:g} on are not in the fit: too large to follow one power")
    for fit in fits.values():
        for note in fit.notes:
            out.print(f"note: {fit.name}: {note}")
    if any(errors.diverged):
        out.print(f"note: {sum(errors.diverged)} paths diverged; estimates are over the others")


def simulate(args: Namespace) -> int:
    """Run the discrete optimizer, SVAG and the SDE, print where they are at the end, and draw and save if asked to."""
    setting, out = _setting(args), make_console()
    if args.substeps < 1 or args.points < 1 or args.paths < 2:
        raise ValueError(
            f"need --substeps >= 1, --points >= 1 and --paths >= 2, got {args.substeps}, {args.points} and {args.paths}"
        )
    if args.save is not None:
        _make_folder(args.save)
    with progress(out) as tell:
        paths = Paths(args.paths, args.seed, progress=lambda share: tell("simulating", share))
        found = run_processes(
            setting, args.eta, ells=args.ells, points=args.points, substeps=args.substeps, paths=paths
        )
    _print_processes(out, found, args.substeps)
    if args.png is not None:
        from rootscale.report.orders import draw_trajectories

        draw_trajectories(found.trajectories, args.png, title=found.title)
        out.print(f"wrote {args.png}")
    if args.save is not None:
        for label, result in found.trajectories.items():
            result.save(args.save / f"{label.replace(' ', '-').replace('=', '-')}.npz")
        out.print(f"wrote {len(found.trajectories)} trajectories to {args.save}")
    return 0


def _print_processes(out: Console, found: Processes, substeps: int) -> None:
    out.print(found.title, style="bold", soft_wrap=True)
    table = Table("test function", "process")
    for column in ("mean at the end", "diverged"):
        table.add_column(column, justify="right")
    first = next(iter(found.trajectories.values()))
    for name in first.names:
        for i, (label, result) in enumerate(found.trajectories.items()):
            end = result[name]
            value = number(end.mean[-1], end.se[-1])
            table.add_row("" if i else name, label, value, f"{result.diverged[-1]} of {result.replicas}")
        table.add_section()
    out.print(unclipped(table))
    step = step_text(found.chain)
    out.print(f"± is 95 %; the SDE was solved by {found.scheme.name} with steps of {step}/{substeps}")
    if any(result.diverged[-1] for result in found.trajectories.values()):
        out.print("note: means are over the paths that did not diverge")
