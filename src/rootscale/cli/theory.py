"""The arguments of `rootscale order` and `rootscale simulate`; torch is imported when one of them runs, not before."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rootscale.files import need_folder
from rootscale.rules import RULES

__all__ = ["add_parsers"]

#: The rows of the tables in `rootscale.theory`, which cannot be imported here; a test compares them.
OPTIMIZERS = ("sgd", "rmsprop", "adam")
PROBLEMS = ("cosine", "quadratic", "linear", "logistic")
NOISES = ("gaussian", "rademacher", "skewed", "student-t", "minibatch")


def _common(parser: argparse.ArgumentParser, paths: int) -> None:
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adam", help="default: %(default)s")
    parser.add_argument(
        "--problem", choices=PROBLEMS, default="cosine", help="loss and gradient covariance; default: %(default)s"
    )
    parser.add_argument("--noise", choices=NOISES, help="of the stochastic gradients; default: the problem's own")
    parser.add_argument("--time", type=float, help="continuous time to run for; default: the problem's own")
    parser.add_argument("--paths", type=int, default=paths, help="replicas; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--png", type=Path, metavar="FILE", help="write a figure (needs the extra 'plot')")


def add_parsers(subparsers: Any) -> None:
    """Adds both commands to the result of ``ArgumentParser.add_subparsers``; ``args.handler(args)`` runs one."""
    order = subparsers.add_parser(
        "order",
        help="how fast an optimizer approaches its SDE: weak errors and their order",
        description="Measure the weak error of a discrete optimizer against its SDE at several learning rates, and fit "
        "the order. Every number has its 95 % interval; what is not resolved is said to be so.",
        epilog="example: rootscale order --optimizer adam --problem cosine --etas 0.25 0.177 0.125 --png order.png",
    )
    _common(order, 20_000)
    order.add_argument(
        "--etas", type=float, nargs="+", default=[], metavar="ETA",
        help="learning rates; default: those of 16, 32, 64 and 128 steps",
    )  # fmt: skip
    order.add_argument("--ells", type=float, nargs="+", default=[], metavar="ELL", help="SVAG at these ell, at one eta")
    order.add_argument("--kappa", type=int, default=1, help="against kappa times the batch size, not against the SDE")
    order.add_argument("--rule", choices=list(RULES), metavar="RULE", help="of the second batch size; default: its own")
    order.set_defaults(handler=_order)

    simulate = subparsers.add_parser(
        "simulate",
        help="an optimizer, SVAG and the SDE over continuous time",
        description="Run a discrete optimizer, SVAG and the SDE from one start, and compare their means with bands.",
        epilog="example: rootscale simulate --optimizer rmsprop --eta 0.25 --ells 2 4 --png simulate.png",
    )
    _common(simulate, 10_000)
    simulate.add_argument("--eta", type=float, default=0.25, help="learning rate; default: %(default)s")
    simulate.add_argument(
        "--ells", type=float, nargs="*", default=[2.0, 4.0], metavar="ELL", help="of SVAG; default: 2 4"
    )
    simulate.add_argument("--points", type=int, default=20, help="how often to look; default: %(default)s")
    simulate.add_argument("--substeps", type=int, default=8, help="of the SDE's solver in a step; default: %(default)s")
    simulate.add_argument("--save", type=Path, metavar="FOLDER", help="write the trajectories as .npz")
    simulate.set_defaults(handler=_simulate)


def _setting(args: argparse.Namespace) -> Any:
    import torch

    from rootscale.cli.run_theory import Setting

    torch.set_num_threads(1)  # tensors are small: a second thread gains little, and waits long where cores are shared
    if args.png is not None:
        from rootscale.report.orders import need_matplotlib

        need_matplotlib()  # before the work, not after it
        if args.png.suffix != ".png":
            raise ValueError(f"figures are saved as .png, got {args.png.name!r}; use {args.png.stem + '.png'!r}")
        need_folder(args.png, "figure", "--png")
    return Setting(args.optimizer, args.problem, args.noise, args.time)


def _order(args: argparse.Namespace) -> int:
    from rootscale.cli import run_theory

    run_theory.order(
        _setting(args), args.etas, ells=args.ells, kappa=args.kappa, rule=args.rule, paths=args.paths, seed=args.seed,
        png=args.png,
    )  # fmt: skip
    return 0


def _simulate(args: argparse.Namespace) -> int:
    from rootscale.cli import run_theory

    run_theory.simulate(
        _setting(args), args.eta, ells=args.ells, paths=args.paths, points=args.points, substeps=args.substeps,
        seed=args.seed, png=args.png, save=args.save,
    )  # fmt: skip
    return 0
