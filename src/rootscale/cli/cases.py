"""`rootscale` without a command: what people come for, and the commands for it."""

from __future__ import annotations

from dataclasses import dataclass

from rootscale.cli.console import make_console
from rootscale.cli.parser import fold_command


@dataclass(frozen=True)
class Case:
    """What somebody comes for.

    Args:
        title: in their words.
        commands: that help; placeholders are in capitals.
        python: what is done in a script instead of a command.
        topics: names for ``python -m pydoc``, which an installed package answers without its documentation.
    """

    title: str
    commands: tuple[str, ...] = ()
    python: str = ""
    topics: tuple[str, ...] = ()


_SCALE = "rootscale scale --optimizer adamw --lr 3e-4 --betas 0.9 0.95"
CASES = (
    Case(
        "more or fewer GPUs tomorrow: the run goes on at another batch size",
        ("rootscale checkpoint last.pt --from 256 --to 1024 -o last_1024.pt",),
        "Run(optimizer, tuned_at=256, batch_size=1024, model=model)",
        ("rootscale.Run",),
    ),
    Case(
        "a recipe to copy to another batch size",
        (
            f"{_SCALE} --batch-size 4096 --to 512 --steps 50000 --warmup-steps 2000",
            "rootscale convert recipe.yaml --to 512 -o recipe_512.yaml",
        ),
    ),
    Case(
        "how large may the batch be?",
        ("rootscale largest train.py:train --batch-size 16 --switch-at ckpt/1000.pt ckpt/5000.pt --budget 30m",),
        topics=("rootscale.training.NoiseMeter",),
    ),
    Case(
        "let the batch grow, or vary from step to step",
        python="run.batch_size = n, before a step",
        topics=("rootscale.training.BatchSchedule",),
    ),
    Case(
        "is it the same run? ask your own training, or logs that you have",
        (
            "rootscale check train.py:train --batch-size 16 --to 64",
            "rootscale compare base/*.jsonl --to big/*.jsonl --batch-size 16 64 --report compare.html",
            "rootscale demo",
        ),
    ),
    Case(
        "Muon, Lion and other optimizers",
        ("rootscale rules", "rootscale scale --optimizer muon --lr 0.02 --batch-size 256 --to 1024"),
    ),
    Case(
        "the SDE behind the rule",
        ("rootscale order --optimizer adam", "rootscale simulate --optimizer rmsprop --eta 0.25 --ells 2 4"),
        topics=("rootscale.theory",),
    ),
)


def show_cases() -> int:
    """Print every case with its commands, and where the rest stands."""
    from rich.text import Text

    console = make_console()
    console.print(Text("Change the batch size of a run without retuning. What do you want to do?"))
    for case in CASES:
        console.print(Text(f"\n{case.title}", style="bold"))
        for command in case.commands:
            console.print(Text(fold_command(command, console.width), style="cyan"), soft_wrap=True)
        if case.python:
            console.print(Text.assemble("  in Python: ", (case.python, "cyan")), soft_wrap=True)
        for topic in case.topics:
            console.print(Text(f"  more: python -m pydoc {topic}", style="dim"), soft_wrap=True)
    console.print(Text("\nAll commands: rootscale --help. Each has an example: rootscale scale --help"))
    return 0
