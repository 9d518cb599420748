"""The arguments of `rootscale order` and `rootscale simulate`; torch is imported when one of them runs, not before."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rootscale.rules import RULES
from rootscale.theory_settings import CONSTANT, NOISES, OPTIMIZERS, PROBLEMS, SCHEDULES


def _common(parser: argparse.ArgumentParser, paths: int) -> None:
    parser.add_argument(
        "--optimizer", choices=OPTIMIZERS, default="adam", help="whose steps and SDE; default: %(default)s"
    )
    parser.add_argument(
        "--problem", choices=PROBLEMS, default="cosine", help="loss and gradient covariance; default: %(default)s"
    )
    parser.add_argument("--noise", choices=NOISES, help="of the stochastic gradients; default: the problem's own")
    parser.add_argument(
        "--schedule", choices=SCHEDULES, default=CONSTANT, help="of the learning rate over time; default: %(default)s"
    )
    parser.add_argument("--time", type=float, help="continuous time to run for; default: the problem's own")
    parser.add_argument("--paths", type=int, default=paths, help="how many independent runs; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers; default: %(default)s")
    parser.add_argument("--png", type=Path, metavar="FILE", help="write a figure (needs the extra 'plot')")


def add_parsers(subparsers: Any) -> None:
    """Add both commands to the result of ``ArgumentParser.add_subparsers``; ``args.handler(args)`` runs one."""
    order = subparsers.add_parser(
        "order",
        description="Measure the weak error of a discrete optimizer against its SDE at several learning rates, and fit "
        "the order. Every number has its 95 % interval; errors that are not resolved are marked.",
        epilog="example: rootscale order --optimizer adam --problem cosine --etas 0.25 0.177 0.125 --png order.png",
    )
    _common(order, 20_000)
    order.add_argument(
        "--etas", type=float, nargs="+", default=[], metavar="ETA",
        help="learning rates, moved to the nearest whose steps fill the time; default: of 16, 32, 64 and 128 steps",
    )  # fmt: skip
    order.add_argument(
        "--ells",
        type=float,
        nargs="+",
        default=[],
        metavar="ELL",
        help="measure SVAG at these values of ell, at one eta",
    )
    order.add_argument("--kappa", type=int, default=1, help="compare with kappa times the batch size, not with the SDE")
    order.add_argument(
        "--rule",
        choices=list(RULES),
        metavar="RULE",
        help="that converts to the second batch size; default: the optimizer's own",
    )
    order.set_defaults(handler=_order)

    simulate = subparsers.add_parser(
        "simulate",
        description="Run a discrete optimizer, SVAG and the SDE from one start, and compare their means with bands.",
        epilog="example: rootscale simulate --optimizer rmsprop --eta 0.25 --ells 2 4 --png simulate.png",
    )
    _common(simulate, 10_000)
    simulate.add_argument(
        "--eta", type=float, default=0.25,
        help="learning rate, moved to the nearest whose steps fill the time; default: %(default)s",
    )  # fmt: skip
    simulate.add_argument(
        "--ells", type=float, nargs="*", default=[2.0, 4.0], metavar="ELL", help="values of SVAG's ell; default: 2 4"
    )
    simulate.add_argument("--points", type=int, default=20, help="how many times to record; default: %(default)s")
    simulate.add_argument(
        "--substeps",
        type=int,
        default=8,
        help="steps of the SDE's solver for each step of the optimizer; default: %(default)s",
    )
    simulate.add_argument("--save", type=Path, metavar="FOLDER", help="write the trajectories as .npz")
    simulate.set_defaults(handler=_simulate)


def _order(args: argparse.Namespace) -> int:
    from rootscale.cli import run_theory

    return run_theory.order(args)


def _simulate(args: argparse.Namespace) -> int:
    from rootscale.cli import run_theory

    return run_theory.simulate(args)
