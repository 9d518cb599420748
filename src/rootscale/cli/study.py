"""`rootscale study`: run a study that a file defines. What runs it is imported when it is called."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rootscale.cli.options import seeds
from rootscale.cli.parser import Parser
from rootscale.cli.pieces import add_depends, add_pieces, collected, in_pieces, make_pieces, refuse_pieces, store_of

if TYPE_CHECKING:
    from rootscale.compare.result import Table
    from rootscale.lab.execute import Execute
    from rootscale.lab.observe import Observer
    from rootscale.lab.store import Store
    from rootscale.lab.study import Study

_USAGE = "rootscale study FILE [option ...]"
#: Parameters of a file's function that are options of every study.
_OWN = ("seeds", "device", "smoke", "data")


def add_parsers(subparsers: Any) -> None:
    """Add the command to the result of ``ArgumentParser.add_subparsers``; ``args.handler(args)`` runs it."""
    parser = subparsers.add_parser(
        "study",
        usage=_USAGE,
        description="Run a file that defines STUDY, a rootscale.lab.Study or a function that makes one, whose keyword "
        "arguments are options. The same command resumes it. `rootscale study FILE --help` has its options. Exit code: "
        "0 same, 1 different, 3 undecided or unfinished.",
        epilog="example: rootscale study experiments/stages.py --net convnet --seeds 8",
    )
    parser.add_argument("file", metavar="FILE", help="a Python file that defines STUDY")
    parser.add_argument("options", nargs=argparse.REMAINDER, metavar="option", help="those below, and the file's own")
    _add_options(parser)
    parser.set_defaults(handler=_study)


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Add what all studies have."""
    parser.add_argument("--seeds", type=seeds, metavar="N", help="runs of each arm, or auto; default: the study's")
    parser.add_argument(
        "--minutes", type=float, metavar="M",
        help="stop after that time, with checkpoints, and judge what is finished; 0 runs nothing",
    )  # fmt: skip
    add_pieces(parser)
    add_depends(parser)
    parser.add_argument("--smoke", action="store_true", help="a short try of all of it, which says nothing")
    parser.add_argument("--device", help="of torch; default: the study's")
    parser.add_argument("--data", metavar="FOLDER", help="that holds the data; default: ROOTSCALE_DATA")
    parser.add_argument("--together", type=int, default=16, metavar="N", help="most seeds in one program")
    parser.add_argument("--workers", type=int, metavar="N", help="processes; default: one for each core, one on a GPU")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="of runs, table and page; default: runs/NAME")
    parser.add_argument(
        "--results", type=Path, metavar="FOLDER",
        help="where NAME.npz, the table alone, is put too; runs that it has already are not made again",
    )  # fmt: skip


def _study(args: argparse.Namespace) -> int:
    from rootscale.cli.verdicts import EXIT
    from rootscale.lab.study_file import StudyFile

    file = StudyFile(args.file)
    parser = Parser(prog=f"rootscale study {file.path}", description=file.text)
    _add_options(parser)
    file.add_options(parser, _OWN)
    parser.set_defaults(**{name: value for name, value in vars(args).items() if name not in ("file", "options")})
    asked = parser.parse_args(args.options)
    given = {name: value for name, value in vars(asked).items() if value is not None}
    refuse_pieces(asked)
    small = asked.smoke and "smoke" not in file.parameters
    studies = file.studies(**given)
    if asked.piece is not None and len(studies) > 1:
        raise ValueError(
            f"--piece is for one study, and {file.path} makes {len(studies)}: choose one by its options, or give "
            "--only and --seed"
        )
    verdicts = [_run(study, asked, small) for study in studies]
    if in_pieces(asked):
        return 0
    return EXIT["different" if "different" in verdicts else "same" if set(verdicts) == {"same"} else "undecided"]


def _run(study: Study, asked: argparse.Namespace, small: bool) -> str:
    """Run a study, print its verdicts and write its page; return the verdict."""
    from rootscale.cli.console import make_console
    from rootscale.cli.run_check import show_check
    from rootscale.cli.verdicts import write_report
    from rootscale.cli.watching import observing, stoppable
    from rootscale.compare.result import Table
    from rootscale.lab.execute import default_executor, limited
    from rootscale.lab.stopping import Deadline

    study = study.with_options(seeds=asked.seeds, device=asked.device, small=small)
    folder = asked.out / study.name if asked.out else Path("build/smoke" if asked.smoke else "runs") / study.name
    console = make_console()
    if study.claim:
        console.print(study.claim, markup=False, soft_wrap=True)
    stored = asked.results / f"{study.name}.npz" if asked.results is not None else None
    if stored is not None and stored.exists():
        study = study.completing(Table.load(stored))
        console.print(f"runs in {stored} are not made again", markup=False)
    with stoppable(folder / "runs"), observing(console) as observe:
        store = store_of(folder, asked)
        execute = default_executor(study.settings.setup.device, asked.workers, asked.together)
        if in_pieces(asked):
            within = None if asked.minutes is None else 60 * asked.minutes
            make_pieces(study, asked, store, limited(execute, Deadline.after(within)), observe, console)
            return "undecided"
        if asked.collect:
            table = collected(study, store)
        elif study.seeds == "auto" or asked.minutes is None:
            table = study.run(store, execute, observe, None if asked.minutes is None else 60 * asked.minutes)
        else:
            table = _partly(study, store, execute, observe, asked.minutes)
    if table.others:
        show_check(table, console)
    write_report(table, folder / "report.html", console)
    if stored is not None:
        table.save(stored, comparisons=False)
    if table.made.get("missing"):
        missing = "; ".join(table.made["missing"])
        console.print(f"not finished: {missing}. The same command resumes it", markup=False, soft_wrap=True)
        return "undecided"
    return table.verdict


def _partly(study: Study, store: Store, execute: Execute, observe: Observer, minutes: float) -> Table:
    """Make runs until a deadline; return the table of what is finished."""
    from rootscale.lab.rounds import Rounds
    from rootscale.lab.stopping import Deadline, UnfinishedError

    with contextlib.suppress(UnfinishedError):
        if minutes != 0:
            within = Deadline.after(60 * minutes)
            study.make(study.arms, Rounds.of(study.seeds).first, store, execute, observe, within)
    return study.collect(store)
