"""Does SVAG, which simulates the SDE of Adam, follow Adam on language models?

Claim. "SVAG converges and closely tracks Adam" on GPT (WikiText-103) and RoBERTa (Wikipedia and books), betas .9 and
.98 (appendix, "SVAG Experiments").

Protocol. SVAG with ell = 2 takes 4 times the steps, with two batches each. `gpt` and `roberta` are small copies from
scratch: enwik8, 1/32 and 1/4 of an epoch, the table's values taken to hold at B = 32. `tiny` is the net of
language_switch.py, from a warm start after 25 % of the run, seeds 0 to 11.

Cost. 2 to 3 minutes of one H200, or 50 minutes on two cores of a CPU for `tiny`.

Finding. On the tiny GPT it is the same (n = 12); GPT from scratch, one seed, leaves the curve by 8 % of its range on
the way. RoBERTa has not been run.

    rootscale study experiments/language_svag.py --setting tiny --data FOLDER
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from language_models import Setting
from language_switch import EARLY, TINY
from results import Claim, rows

from rootscale.lab import Arm, Study, Variant

GROUP = "paper"
ELL = 2
SETTINGS = {
    "tiny": replace(TINY, name="gpt-svag-check", sizes=(8,), seeds=12),
    "gpt": Setting(
        "gpt-svag", "GPT", "gpt", 1 / 32, (32,), 12, recipe="gpt-svag", length=64, reference=32, eta=5e-4
    ),
    "roberta": Setting(
        "roberta-svag", "RoBERTa of 6 layers", "roberta-small", 1 / 4, (32,), 12, recipe="roberta-svag", reference=32,
        eta=2.5e-4, kind="bpe", vocabulary=8192,
    ),
}  # fmt: skip


def claim(setting: Setting) -> str:
    """Return what is asked of a setting."""
    return f"{setting.title} on enwik8: SVAG with ell = {ELL} follows Adam"


def study(setting: Setting, data: str = "") -> Study:
    """Return the study of a setting: the discrete run, and SVAG."""
    task, warm = setting.task(data), setting.name == SETTINGS["tiny"].name
    base, label = ("B = 8", f"SVAG ell = {ELL}") if warm else ("discrete (ℓ = 1)", f"SVAG, ℓ = {ELL}")
    start = int((task.plan.samples or 0) * EARLY) // setting.sizes[0] * setting.sizes[0] if warm else 0
    arms = [Arm(base, task), Arm(label, task, Variant(ell=ELL))]
    return Study(setting.name, arms, claim(setting), setting.seeds, setting.settings(task, data, start))


def studies(setting: str = "", data: str = "", smoke: bool = False) -> list[Study]:
    """Return the study of one setting, or of all."""
    chosen = [SETTINGS[setting]] if setting else list(SETTINGS.values())
    return [study(one.small() if smoke else one, data) for one in chosen]


def claims(results: Path) -> list[Claim]:
    """Return the rows of the table of claims."""
    return rows("language_svag", {one.name: claim(one) for one in SETTINGS.values()}, results)


STUDY = studies
