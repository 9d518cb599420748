"""Does a language model go on as if nothing had changed when its batch grows in mid-run?

Claim. Not in the paper, whose theorem for Adam asks for a warm start: with everything converted it does, and half
measures do not. Fixed before they were run, on the tiny GPT (seeds 0 to 7) and on `table` (seeds 0 to 3): converted is
nearer than hyperparameters only, and these are nearer than a state of zeros; contradicted if the order is another.

Protocol. GPT on the bytes of enwik8. After 40 % of the run the batch grows 16 times: everything converted, the
hyperparameters alone (the state stays in its old units), the learning rate alone, the state zeroed, or in two stages
(at 40 and 55 % of the run). `enwik8` and `table` are the settings of language_scaling.py; `tiny` has two layers of
width 32 and sequences of 32, so that a CPU can train many seeds. `check` is the same net as `rootscale check` sees it:
4 and 16 times the batch after 25 %, everything converted, and the learning rate alone.

Cost. 3 to 10 minutes of one H200, or 40 minutes on two cores of a CPU for `tiny`.

Finding. On the tiny GPT (n = 8) the first half held, the second is contradicted: a state in the old units is worse than
none. The learning rate alone is many times farther off than all of these. Up a ramp, and at 4 times the batch, the run
is the same; at 16 times at once it is undecided. results/README.md has the gaps.

    rootscale study experiments/language_switch.py --setting tiny --data FOLDER
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import lcm
from pathlib import Path

from language_models import Setting
from results import Claim, rows

from rootscale.lab import Arm, Study, Task, Variant

TINY = Setting(
    "gpt-tiny-switch", "A tiny GPT", "gpt-tiny", 0.0228, (8, 32, 128), 24, 8, length=32, reference=8, eta=2e-3
)
SETTINGS = {
    "tiny": TINY,
    "check": replace(TINY, name="gpt-check"),
    "enwik8": Setting("gpt-switch", "GPT", "gpt", 3 / 16, (8, 32, 128), 12, reference=8, eta=2e-4),
    "table": Setting("gpt-table-switch", "GPT, the paper's values", "gpt", 3 / 4, (64, 256, 1024), 12, seeds=4),
}
#: Shares of the run at which the batch grows, and where it grows in `check`.
SWITCHES, EARLY = (Fraction(40, 100), Fraction(55, 100)), Fraction(1, 4)


def claim(setting: Setting) -> str:
    """Return what is asked of a setting."""
    times = setting.sizes[-1] // setting.sizes[0]
    return f"{setting.title} on enwik8, {times} times the batch in mid-run: converted, it goes on as before"


def switched(task: Task, sizes: Sequence[int]) -> tuple[list[Arm], int]:
    """Return the batch kept, converted, the half measures and a ramp; and the samples before the switch."""
    samples, unit = int(task.plan.samples or 0), lcm(*sizes)
    start = int(samples * SWITCHES[0]) // sizes[0] * sizes[0]
    second = start + max(1, round((samples * SWITCHES[1] - start) / unit)) * unit
    middle, largest = (Fraction(size, sizes[0]) for size in sizes[1:])
    variants = {
        "everything converted": Variant(largest, "with paper"),
        "hyperparameters only": Variant(largest, "with paper without v, step_counter"),
        "learning rate only": Variant(largest, "sqrt-eta"),
        "state zeroed": Variant(largest, "with paper", zero_state=True),
    }
    arrow = f"{sizes[0]:,} → {sizes[-1]:,}"
    arms = [Arm(f"{arrow}, {label}", task, variant) for label, variant in variants.items()]
    ramp = Variant(middle, "with paper", ramp=((second, largest),))
    return [Arm(f"B = {sizes[0]:,} kept", task), *arms, Arm(" → ".join(f"{b:,}" for b in sizes), task, ramp)], start


def checked(task: Task, sizes: Sequence[int]) -> tuple[list[Arm], int]:
    """Return what a check compares; and the samples before the switch."""
    arms = [Arm(f"B = {sizes[0]}", task)]
    for size in sizes[1:]:
        for rule, text in (("sqrt", "sqrt with paper"), ("sqrt-eta", "sqrt-eta")):
            arms.append(Arm(f"B = {size}, {rule}", task, Variant(Fraction(size, sizes[0]), text)))
    return arms, int((task.plan.samples or 0) * EARLY) // sizes[0] * sizes[0]


def study(setting: Setting, data: str = "") -> Study:
    """Return the study of a setting."""
    task = setting.task(data)
    arms, start = (checked if setting.name == "gpt-check" else switched)(task, setting.sizes)
    return Study(setting.name, arms, claim(setting), setting.seeds, setting.settings(task, data, start))


def studies(setting: str = "", data: str = "", smoke: bool = False) -> list[Study]:
    """Return the study of one setting, or of all."""
    chosen = [SETTINGS[setting]] if setting else list(SETTINGS.values())
    return [study(one.small() if smoke else one, data) for one in chosen]


def claims(results: Path) -> list[Claim]:
    """Return the rows of the table of claims."""
    return rows("language_switch", {one.name: claim(one) for one in SETTINGS.values()}, results)


STUDY = studies
