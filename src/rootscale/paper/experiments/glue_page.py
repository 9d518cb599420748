"""What is said of the fine-tunings on GLUE: the best of the grid, the spread over batch sizes, and a page."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from rootscale.paper.language.glue_data import GLUE

__all__ = ["MAJORITY", "PAPER", "at_chance", "best", "page", "spreads"]

#: By batch size of the pre-training and task: a score, and its standard error over seeds (None for one seed).
Table = dict[int, dict[str, tuple[float, float | None]]]
#: The paper's scores by the batch size of the pre-training; it has no number for MNLI at 8,192.
PAPER: dict[int, dict[str, float]] = {
    1024: dict(zip(GLUE, (0.585, 0.92, 0.73, 0.866, 0.873, 0.836, 0.906, 0.682), strict=True)),
    2048: dict(zip(GLUE, (0.563, 0.928, 0.803, 0.869, 0.875, 0.826, 0.897, 0.653), strict=True)),
    4096: dict(zip(GLUE, (0.581, 0.921, 0.778, 0.869, 0.875, 0.839, 0.892, 0.675), strict=True)),
    8192: dict(zip(GLUE, (0.626, 0.929, 0.778, 0.884, 0.877, math.nan, 0.9, 0.675), strict=True)),
}


#: Scores of one answer for all, the most frequent of the dev set; correlations with it are 0.
MAJORITY = {"CoLA": 0.0, "SST-2": 0.509, "MRPC": 0.812, "STS-B": 0.0, "RTE": 0.527}
#: A model has learned something where it is so much above that score.
LEARNED = 0.1


def at_chance(table: Table) -> list[str]:
    """Return the tasks on which no model is clearly above one answer for all."""
    tops = {task: max(row[task][0] for row in table.values() if task in row) for row in table.values() for task in row}
    return [task for task, top in tops.items() if task in MAJORITY and top < MAJORITY[task] + LEARNED]


def best(record: dict[str, Any]) -> Table:
    """By batch size of the pre-training and task: the best of the grid, mean and standard error over seeds."""
    scores: dict[tuple[int, str, int], float] = {}
    for run in record["runs"]:
        if run["score"] is not None:
            key = (run["pretrained_at"], run["task"], run["seed"])
            scores[key] = max(run["score"], scores.get(key, -math.inf))
    table: Table = {}
    for size in sorted({size for size, _, _ in scores}):
        for task in dict.fromkeys(task for at, task, _ in scores if at == size):
            values = np.array([value for (at, name, _), value in scores.items() if (at, name) == (size, task)])
            se = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None
            table.setdefault(size, {})[task] = (float(values.mean()), se)
    return table


def page(record: dict[str, Any]) -> str:
    """The table of the best of the grid, ours and the paper's, in Markdown."""
    table = best(record)
    tasks = [task for task in GLUE if task in record["dev"]]
    lines = ["# GLUE after pre-training at several batch sizes", ""]
    if record["smoke"]:
        lines += ["A smoke test on generated data, which says nothing about the claim.", ""]
    lines += [f"| pre-trained at B | {' | '.join(tasks)} |", f"|---|{'---|' * len(tasks)}"]
    for size, row in table.items():
        lines.append(f"| {size:,} | {' | '.join(_cell(row.get(task)) for task in tasks)} |")
    for size, values in PAPER.items():
        cells = ["-" if math.isnan(values[task]) else f"{values[task]:.3f}" for task in tasks]
        lines.append(f"| the paper, {size:,} | {' | '.join(cells)} |")
    cells = [f"{MAJORITY[task]:.3f}" if task in MAJORITY else "-" for task in tasks]
    lines.append(f"| one answer for all | {' | '.join(cells)} |")
    chance = at_chance(table)
    spread = ", ".join(f"{task} {value:.3f}" for task, value in spreads(table).items())
    lines += [
        "",
        f"Best of the grid on the dev sets ({', '.join(f'{task}: {GLUE[task].metric}' for task in tasks)}).",
        *(["One seed: what a rerun would change is not known."] if record["seeds"] == 1 else []),
        *(
            [f"**At chance:** {', '.join(chance)}. There the models have learned nothing that could differ."]
            if chance
            else []
        ),
        f"Largest difference between pre-training batch sizes: {spread or 'not known yet'}.",
        f"Validation log-perplexity after pre-training: {', '.join(_pretraining_words(record)) or 'not known yet'}.",
        f"{record['model']}, pre-trained on {record['text']} over {record['pretraining']['options']['epochs']:g} "
        "epochs; the paper's RoBERTa-large saw far more text: compare the spread over batch sizes, not the height.",
        "",
        f"Made by `{record['command']}` on {record['date']}: {record['hardware']}"
        + ("." if record["complete"] else "; not finished."),
    ]
    return "\n".join(lines) + "\n"


def _pretraining_words(record: dict[str, Any]) -> Iterator[str]:
    """By batch size, the mean over seeds; and which diverged."""
    for size in record["pretraining"]["batch_sizes"]:
        made = [run["log_perplexity"] for run in record["pretraining"]["runs"] if run["batch_size"] == size]
        kept = [loss for loss in made if loss is not None]
        if made:
            lost = f" ({len(made) - len(kept)} of {len(made)} diverged)" if len(kept) < len(made) else ""
            yield f"B = {size:,}: " + (f"{np.mean(kept):.3f}" if kept else "none") + lost


def _cell(value: tuple[float, float | None] | None) -> str:
    if value is None:
        return ""
    return f"{value[0]:.3f}" if value[1] is None else f"{value[0]:.3f} ± {value[1]:.3f}"


def spreads(table: Table) -> dict[str, float]:
    """For each task, the largest score less the smallest, over the batch sizes of the pre-training."""
    out = {}
    for task in GLUE:
        values = [row[task][0] for row in table.values() if task in row]
        if len(values) > 1:
            out[task] = max(values) - min(values)
    return out
