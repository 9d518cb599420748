r"""Does the rule hold for a small GPT? The check of `rootscale check`, with a verdict, on the bytes of enwik8.

A language model of two layers that a CPU can train; 8,015 steps of Adam at batch size 8 with the betas of the paper's
table. The batch grows to 32 and to 128 after a quarter of the run, with everything converted and with the learning rate
alone. Eight seeds; about 40 minutes on two cores. ROOTSCALE_DATA names the folder that holds enwik8.

    rootscale check rootscale.paper.experiments.gpt_check:task --to 32 128 --rule sqrt sqrt-eta --switch-at 25% \
        --seeds 8 --together 8 --points 24 --out results/gpt-check

And does SVAG follow Adam on it? Twelve seeds; about 50 minutes.

    rootscale check rootscale.paper.experiments.gpt_check:task --ell 2 --switch-at 25% --seeds 12 --together 8 \
        --points 24 --eval-samples 512 --out results/gpt-svag-check
"""

from __future__ import annotations

from rootscale.lab import Task
from rootscale.paper.language.gpt_task import gpt
from rootscale.paper.language.recipes import Pretraining
from rootscale.paper.text.corpora import corpus
from rootscale.paper.text.tokens import tokenise


def task() -> Task:
    """At batch size 8."""
    tokens = tokenise(corpus(name="enwik8"))
    return gpt(tokens, model="gpt-tiny", length=32, training=Pretraining("", 8, 0.0228, eta=2e-3, reference=8))
