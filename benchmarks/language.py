"""The lab against ``transformers.Trainer`` on the same GPT and batch, in the same run: tokens a second.

    PYTHONPATH=experiments python benchmarks/language.py --device cuda

The net is the paper's GPT (12 layers, width 768, sequences of 128, dropout .1), randomly initialised, with AdamW. Both
train in bfloat16 with the attention of ``scaled_dot_product_attention``. The Trainer is plain: its DataLoader with
worker processes, its optimizer, its defaults, no logging; ``compiled`` is the same with its ``torch_compile``. On a
CPU: a small net, to see that the program works.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from lab import rate, stepper
from language_models import Training, gpt
from rich.console import Console
from rich.table import Table
from text import Tokens, Vocabulary
from torch import Tensor
from transformers import GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from rootscale.lab import Setup, Task
from rootscale.lab.learner import make_learner

#: Bytes, or about as many words as WikiText-2 has.
VOCABULARIES = {"bytes": 256, "words": 33_280}


class Windows(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Windows one by one, as the Trainer wants them."""

    def __init__(self, task: Task) -> None:
        self.data: Any = task.train

    def __len__(self) -> int:
        """How many."""
        return len(self.data)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        """One; the model shifts the labels itself."""
        tokens, _ = self.data[torch.tensor([number])]
        return {"input_ids": tokens[0], "labels": tokens[0]}


class Clock(TrainerCallback):  # type: ignore[misc]
    """The time at which each step was done."""

    def __init__(self, device: str) -> None:
        self.device, self.times = device, list[float]()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After a step."""
        if state.global_step % 10 == 0:
            if self.device != "cpu":
                torch.cuda.synchronize()
            self.times.append(time.perf_counter())


def trainer_rate(task: Task, batch: int, device: str, seconds: float, compiled: bool) -> float:
    """Steps a second of ``transformers.Trainer``: the first 30 are not counted."""
    net: Any = task.model()
    model: GPT2LMHeadModel = net.net
    clock = Clock(device)
    steps = 60
    while True:
        arguments = TrainingArguments(
            output_dir="build/trainer", per_device_train_batch_size=batch, max_steps=steps, learning_rate=1e-4,
            bf16=device != "cpu", use_cpu=device == "cpu", dataloader_num_workers=0 if device == "cpu" else 8,
            report_to=[], logging_strategy="no", save_strategy="no", disable_tqdm=True, torch_compile=compiled,
        )  # fmt: skip
        clock.times.clear()
        Trainer(model, arguments, train_dataset=Windows(task), callbacks=[clock]).train()
        spent = clock.times[-1] - clock.times[2]
        if spent >= seconds or device == "cpu":
            return 10 * (len(clock.times) - 3) / spent
        steps = int(30 + 1.2 * (steps - 30) * seconds / spent) // 10 * 10 + 10


def lab_rate(task: Task, batch: int, device: str, seconds: float) -> Callable[[], float]:
    """Steps a second of the lab: CUDA graph, compiled, in bfloat16."""
    learner = make_learner(task, [0], Setup(device, fast=True))
    return partial(rate, stepper(task, learner, batch, device), seconds, device)


def text(vocabulary: int, length: int, windows: int = 20_000) -> Tokens:
    """Tokens at random: the time does not depend on them."""
    drawn = torch.randint(vocabulary, (windows * length + 1,), generator=torch.Generator().manual_seed(0))
    words = Vocabulary("word", tuple(map(str, range(vocabulary))))
    return Tokens(f"random-{vocabulary}", {"train": drawn}, words)


def main() -> None:
    """Measure, print the table, and the ratios last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[16, 64])
    parser.add_argument("--texts", nargs="+", choices=VOCABULARIES, default=list(VOCABULARIES))
    parser.add_argument("--compiled", action="store_true", help="also the Trainer with torch_compile")
    args = parser.parse_args()
    cpu = args.device == "cpu"
    model, length = ("gpt-tiny", 16) if cpu else ("gpt", 128)
    where = "CPU" if cpu else torch.cuda.get_device_name()
    table = Table("text", "batch size", "how", "tokens/s", "ratio", title=f"{model}, sequences of {length}, {where}")
    found: dict[str, float] = {}
    for name in args.texts:
        for batch in args.batch_sizes:
            task = gpt(text(VOCABULARIES[name], length), model=model, length=length, training=Training("", batch, 1))
            ways: dict[str, Callable[[], float]] = {
                "Trainer": partial(trainer_rate, task, batch, args.device, args.seconds, False),
                "the lab": lab_rate(task, batch, args.device, args.seconds),
            }
            if args.compiled:
                ways["Trainer, compiled"] = partial(trainer_rate, task, batch, args.device, args.seconds, True)
            rates = {way: [measure() for _ in range(args.repeats)] for way, measure in ways.items()}
            for way, values in rates.items():
                ratios = [a / b for a, b in zip(values, rates["Trainer"], strict=True)]
                middle = statistics.median(ratios)
                speed = batch * length * statistics.median(values)
                spread = f"{middle:.2f} ({min(ratios):.2f} - {max(ratios):.2f})"
                table.add_row(name, str(batch), way, f"{speed:,.0f}", spread)
                print(f"{name} {batch} {way}: {speed:,.0f} tokens/s, {spread}", flush=True)
                if way != "Trainer":
                    found[f"gpt_{name}_{batch}" + ("" if way == "the lab" else "_trainer_compiled")] = middle
    Console().print(table)
    print(f"{args.device}, torch {torch.__version__}, transformers {transformers.__version__}")
    print(" ".join(f"{name}={value:.2f}" for name, value in found.items()))


if __name__ == "__main__":
    main()
