"""Does the square root rule keep the log-perplexity of language models that are trained from scratch?

Claim. The paper, on 12-layer GPT on WikiText-103 with batches of 1,024 to 8,192: "We achieve a validation log
perplexity of 5 ± 0.1 for all the batch sizes under consideration", with aligned trajectories ("except 8192 in the first
half of the training"); on RoBERTa-large: "2.1 ± 0.1 for batch size 1024, 2048, 4096 and 8192" (section 5; appendix,
"Square Root Scaling Experiments"). So the validation loss ends within .1 of the base's. Fixed before they were run:
`gpt-table` from 64 to 1,024 (seeds 0 to 3) and RoBERTa from 32 to 256 over 8 epochs (seed 0) do so too; contradicted if
a mean gap exceeds .1 by more than twice its error.

Protocol. The appendix's tables of hyperparameters, converted from 1,024 to the smallest batch, which is the base. At
the largest batch also the learning rate alone, and linear scaling. `wikitext` has the paper's setting: 18 epochs of
WikiText-103 are its 12,500 steps (or WikiText-2, which is small enough to be learned by heart, or any text). `table`
has the paper's values on the bytes of enwik8 from B = 64 on. `enwik8` is a small copy: batches 128 times smaller over
1 % of the samples, the table's betas and eps taken to hold at 8, with a learning rate of 2e-4 there. `roberta` is one
too: 6 layers instead of 24, enwik8 cut by a BPE of 8,192 tokens, the table's values taken to hold at 32.

Cost. 3 to 10 minutes of one H200 each; WikiText-103 takes 7 hours.

Finding. One seed each, which decides nothing. GPT at 4 times the batch ends within .1, at 16 times above it; RoBERTa
ends .14 lower at 4 times and .25 higher at 16 times, and with the learning rate alone 3.0 higher.

    rootscale study experiments/language_scaling.py --setting enwik8 --device cuda --data FOLDER
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from language_models import Setting
from results import Claim, rows

from rootscale.lab import Arm, Judge, Study, Task, Variant
from rootscale.verdict import Absolute

GROUP = "paper"
#: Nats by which the paper's log-perplexities lie apart at most.
LIMIT = 0.1
SETTINGS = {
    "enwik8": Setting("gpt-enwik8", "GPT on enwik8", "gpt", 3 / 16, (8, 32, 128), 16, reference=8, eta=2e-4),
    "table": Setting("gpt-table", "GPT on enwik8, the paper's values", "gpt", 3 / 4, (64, 256, 1024), 16, seeds=4),
    "wikitext": Setting("gpt-wikitext", "GPT on WikiText", "gpt", 18, (1024, 2048, 4096, 8192), 50, corpus=None),
    "roberta": Setting(
        "roberta-mlm", "RoBERTa of 6 layers on enwik8", "roberta-small", 2, (32, 128, 512), 16, recipe="roberta",
        reference=32, eta=2.5e-4, kind="bpe", vocabulary=8192,
    ),
    "roberta-long": Setting(
        "roberta-mlm-long", "RoBERTa of 6 layers on enwik8, 8 epochs", "roberta-small", 8, (32, 64, 256), 16,
        recipe="roberta", reference=32, eta=2.5e-4, kind="bpe", vocabulary=8192,
    ),
}  # fmt: skip


def claim(setting: Setting) -> str:
    """Return what is asked of a setting."""
    return f"{setting.title}, from scratch: under the rule the validation loss ends within {LIMIT:g} of the base's"


def arms(task: Task, sizes: Sequence[int]) -> list[Arm]:
    """Return the base, each batch size under the rule, and two other rules at the largest."""
    kappas = [Fraction(size, sizes[0]) for size in sizes]
    ruled = [
        Arm(f"B = {size:,}", task, Variant(kappa, "with paper")) for size, kappa in zip(sizes, kappas, strict=True)
    ]
    others = {"learning rate only": "sqrt-eta", "linear": "linear with paper"}
    wrong = [Arm(f"B = {sizes[-1]:,}, {label}", task, Variant(kappas[-1], rule)) for label, rule in others.items()]
    return [Arm(f"B = {sizes[0]:,}", task), *ruled[1:], *wrong]


def study(setting: Setting, data: str = "") -> Study:
    """Return the study of a setting; its models are stored, as GLUE goes on from them."""
    task = setting.task(data)
    judge = Judge(Absolute(LIMIT), decide_by=("test loss",), over="end")
    return Study(
        setting.name, arms(task, setting.sizes), claim(setting), setting.seeds, setting.settings(task, data),
        judge=judge, keep_models=setting.masked,
    )  # fmt: skip


def studies(setting: str = "", data: str = "", smoke: bool = False) -> list[Study]:
    """Return the study of one setting, or of all."""
    chosen = [SETTINGS[setting]] if setting else list(SETTINGS.values())
    return [study(one.small() if smoke else one, data) for one in chosen]


def claims(results: Path) -> list[Claim]:
    """Return the rows of the table of claims."""
    return rows("language_scaling", {one.name: claim(one) for one in SETTINGS.values()}, results)


STUDY = studies
