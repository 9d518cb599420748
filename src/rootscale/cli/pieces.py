"""A study in pieces, for jobs that share its folder: which runs a command makes, and when they are judged.

What makes and reads runs is imported when it is called.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from rootscale.compare.result import Table
    from rootscale.lab.execute import Execute
    from rootscale.lab.observe import Observer
    from rootscale.lab.store import Store
    from rootscale.lab.study import Arm, Study


def add_pieces(run: Any) -> None:
    """Add which of the runs are made, and whether they are judged."""
    run.add_argument(
        "--only", nargs="+", default=[], metavar="ARM", help="make the runs of these arms alone (batch sizes, or "
        "labels, or parts of labels), for jobs that share a study; nothing is judged, and exit code 0 says that they "
        "are stored",
    )  # fmt: skip
    run.add_argument("--seed", type=int, metavar="N", help="make the runs of this seed alone, in the same way")
    run.add_argument(
        "--piece", type=int, metavar="K", help="make one run, the K-th of all arms and seeds, counted from 0 and seed "
        "by seed: the index of an array of jobs",
    )  # fmt: skip
    run.add_argument(
        "--collect", action="store_true", help="make nothing, and judge the runs that are stored, of all seeds"
    )
    run.add_argument(
        "--fresh", action="store_true", help="make all runs anew; those that there are are moved to a folder beside"
    )


def add_depends(run: Any) -> None:
    """Add what runs depend on besides what is seen of them."""
    run.add_argument(
        "--depends", nargs="+", default=[], metavar="NAME", help="files, folders and variables of the environment that "
        "runs depend on: a change of one makes all anew, as a change of the program and of what it imports does",
    )  # fmt: skip


def in_pieces(args: argparse.Namespace) -> bool:
    """Return whether some runs are asked for, and no verdict."""
    return bool(args.only) or args.seed is not None or args.piece is not None


def refuse_pieces(args: argparse.Namespace) -> None:
    """Refuse options that contradict each other."""
    if args.collect and (in_pieces(args) or args.fresh):
        raise ValueError("--collect makes nothing: leave out --only, --seed, --piece and --fresh")
    if args.piece is not None and (args.only or args.seed is not None):
        raise ValueError("--piece is one arm and one seed: leave out --only and --seed")
    if in_pieces(args) and args.fresh:
        raise ValueError("--fresh moves all runs away, those of other jobs too: use it once, before the jobs begin")


def store_of(folder: Path, args: argparse.Namespace) -> Store:
    """Return the store of a study; with ``--fresh`` its runs are moved away, and it is said where they are now."""
    from rootscale.files import command_line
    from rootscale.lab.store import Store

    store = Store(folder, command=command_line("rootscale", sys.argv[1:]), depends=args.depends)
    place = replace(store, folder=folder / "runs").set_aside() if args.fresh else None
    if place is not None:
        print(f"note: the runs that were there are in {place} now", file=sys.stderr, flush=True)
    return store


def make_pieces(
    study: Study, args: argparse.Namespace, store: Store, execute: Execute, observe: Observer, console: Console
) -> None:
    """Make the runs that are asked for, and say where they are."""
    from rootscale.format import listed

    arms, seeds = _pieces(study, args)
    study.make(arms, seeds, store, execute, observe)
    labels, numbers = listed([arm.label for arm in arms]), listed([str(seed) for seed in seeds])
    what = f"{labels}, {'seed' if len(seeds) == 1 else 'seeds'} {numbers}"
    console.print(f"{what}: stored in {store.folder / 'runs'}", markup=False, soft_wrap=True)


def _pieces(study: Study, args: argparse.Namespace) -> tuple[list[Arm], list[int]]:
    """Return the arms and the seeds whose runs are asked for, the base among the arms."""
    from rootscale.lab.rounds import Rounds

    arms, seeds = list(study.arms), list(Rounds.of(study.seeds).first)
    if args.piece is not None:
        count = len(arms) * len(seeds)
        if not 0 <= args.piece < count:
            raise ValueError(
                f"--piece goes from 0 to {count - 1}, for {len(arms)} arms with {len(seeds)} seeds (--seeds), got "
                f"{args.piece}"
            )
        return [arms[args.piece % len(arms)]], [seeds[args.piece // len(arms)]]
    return _named(arms, args.only), seeds if args.seed is None else [args.seed]


def _named(arms: Sequence[Arm], texts: Sequence[str]) -> list[Arm]:
    """Return the arms with these batch sizes, labels or parts of labels; all of them for nothing."""
    chosen: list[Arm] = []
    for text in texts:
        found = [arm for arm in arms if text in (arm.label, str(arm.batch_size))]
        found = found or [arm for arm in arms if text in arm.label]
        if not found:
            labels = "; ".join(arm.label for arm in arms)
            raise ValueError(
                f"--only takes batch sizes, labels of arms or parts of labels, got {text!r}; there are {labels}"
            )
        chosen += found
    return [arm for arm in arms if not texts or arm in chosen]


def collected(study: Study, store: Store) -> Table:
    """Return the table of the runs that are stored."""
    from rootscale.lab.stopping import UnfinishedError

    try:
        return study.all_stored(store).collect(store)
    except UnfinishedError as error:
        raise ValueError(f"nothing can be judged in {store.folder}: {error}") from None
