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
        page: of the documentation, where the rest stands.
        python: what is done in a script instead of a command.
    """

    title: str
    commands: tuple[str, ...]
    page: str
    python: str = ""


_SCALE = "rootscale scale --optimizer adamw --lr 3e-4 --betas 0.9 0.95"
CASES = (
    Case(
        "more GPUs tomorrow: a run goes on at a larger batch",
        ("rootscale checkpoint last.pt --from 256 --to 1024 -o last_1024.pt",),
        "docs/cases/more-gpus.md",
        "rescale_(optimizer, batch_size=(256, 1024), scheduler=scheduler, model=model)",
    ),
    Case(
        "fewer GPUs, or one: the same run at a smaller batch",
        (f"{_SCALE} --batch-size 512 --to 8 --steps 10000 --snippet torch",),
        "docs/cases/one-gpu.md",
    ),
    Case(
        "a batch ramp: start small, grow when the noise allows it",
        ("rootscale largest train.py:train --batch-size 16 --switch-at ckpt/1000.pt ckpt/5000.pt --budget 30m",),
        "docs/cases/ramp.md",
        "BatchSchedule([(0, 256), (1_000_000, 1024)])",
    ),
    Case(
        "a large-batch recipe to copy",
        (
            f"{_SCALE} --batch-size 4096 --to 512 --steps 50000 --warmup-steps 2000",
            "rootscale convert recipe.yaml --to 512 -o recipe_512.yaml",
        ),
        "docs/cases/recipe.md",
    ),
    Case(
        "batches that vary from step to step",
        (),
        "docs/cases/varying.md",
        "rootscale.training.optim.AdamW(..., reference_batch=256).step(samples=n)",
    ),
    Case(
        "Muon, Lion and other optimizers",
        ("rootscale rules", "rootscale scale --optimizer muon --lr 0.02 --batch-size 256 --to 1024"),
        "docs/cases/muon.md",
    ),
    Case(
        "is it the same? ask your own training, or logs that you have",
        (
            "rootscale check train.py:train --batch-size 16 --to 64",
            "rootscale compare base/*.jsonl --to big/*.jsonl --batch-size 16 64 --report compare.html",
            "rootscale demo",
        ),
        "docs/own-loop.md, docs/compare.md",
    ),
    Case(
        "research on SDEs",
        (
            "rootscale order --optimizer adam --problem cosine",
            "rootscale simulate --optimizer rmsprop --eta 0.25 --ells 2 4",
            "rootscale reproduce --list",
        ),
        "docs/cases/research.md",
    ),
)


def show_cases() -> int:
    """Print every case with its commands, and what else there is."""
    from rich.text import Text

    console = make_console()
    console.print(Text("Change the batch size of a run and keep its training dynamics. Which case is yours?"))
    for case in CASES:
        console.print(Text(f"\n{case.title}", style="bold"))
        for command in case.commands:
            console.print(Text(fold_command(command, console.width), style="cyan"), soft_wrap=True)
        if case.python:
            console.print(Text.assemble("  in Python: ", (case.python, "cyan")))
        console.print(Text(f"  {case.page}", style="dim"), soft_wrap=True)
    console.print(Text("\nAll commands: rootscale --help. Each has an example: rootscale scale --help"))
    return 0
