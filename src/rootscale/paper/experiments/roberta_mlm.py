"""RoBERTa, a masked language model: the square root rule and SVAG in pre-training.

The claim. RoBERTa-large on Wikipedia and books with Adam under the square root rule: "We achieve a validation log
perplexity of 2.1 ± 0.1 for batch size 1024, 2048, 4096 and 8192" (appendix "Square Root Scaling Experiments", Academic
BERT), and "SVAG converges and closely tracks Adam", betas .9 and .98 (appendix "SVAG Experiments").

Setting. The appendix's table: lr 1e-3, betas .99375 and .996, eps 2e-6, weight decay 1e-4 at batch size 1,024, dropout
.1, 92,000 steps of which 5,520 are a linear warm-up, then linear decay to 0; sequences of 128, of which 15 % of the
tokens are predicted, other ones every time. The paper's 16 GB of text are not available. This is a small copy: enwik8,
cut by a BPE of 8,192 tokens that is trained on it, batch sizes 32 times smaller (the table's betas and eps are taken to
hold at 32, with lr 2.5e-4 there), and by default 6 layers instead of 24. The smallest batch size that is asked for is
the base of the rule.

Cost. From 1 million tokens a second on one H200, which `rootscale reproduce --list` counts for one seed.

    rootscale reproduce roberta-mlm --device cuda --data FOLDER
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial

from rootscale.paper.experiment import Experiment, Options
from rootscale.paper.experiments import cifar10_svag
from rootscale.paper.experiments import language_runs as base
from rootscale.paper.language.roberta_task import roberta
from rootscale.paper.shown import Planned, Shown
from rootscale.paper.text.tokens import Tokens, chain, from_text

#: The appendix's eps at batch size 1,024.
EPS = 2e-6


@lru_cache(maxsize=1)
def generated() -> Tokens:
    """A text for smoke tests, simpler than GPT's: here only few tokens are learned from."""
    return from_text(chain(10, 2500, 0.95), name="chain")


#: The pre-training, which ``glue`` goes on from.
SMALL = base.Setting(
    "enwik8", "roberta", reference=32, eta=2.5e-4, kind="bpe", vocabulary=8192, make=roberta,
    smoke=base.Smoke("roberta-tiny", 18, 1e-2, generated),
)  # fmt: skip

EXPERIMENTS = [
    Experiment(
        name="roberta-mlm",
        title="RoBERTa, masked language model",
        claim="Validation log-perplexity 2.1 ± 0.1 at B = 1024, 2048, 4096 and 8192 (RoBERTa-large, Wikipedia + books)",
        source="Section 5, figure on large scale experiments; appendix, Square Root Scaling Experiments, Academic BERT",
        minutes=4,
        defaults=Options(epochs=2, batch_sizes=(32, 128, 512), eps=EPS, model="roberta-small", points=16),
        lines=partial(base.scaling, SMALL),
        words=base.gaps,
        models=("roberta-large", "roberta-base"),
        smoke={"batch_sizes": (1024, 2048), "epochs": 3, "points": 2},
        measure="test loss",
        keep_models=True,  # for glue
        shown=Shown(
            partial(base.headline, "RoBERTa"),
            "test loss",
            base.CLAIMED,
            judge=base.judge,
            differs="a small copy: 6 layers, enwik8, values that are not the paper's (its 16 GB of text are not there)",
            paper_setting=False,
            decided_by=Planned({"batch_sizes": (32, 64, 256), "epochs": 8}, 28),
        ),
    ),
    Experiment(
        name="roberta-svag",
        title="SVAG: RoBERTa, masked language model",
        claim="SVAG converges and closely tracks Adam",
        source="Appendix, SVAG Experiments, Wikipedia + Books (Academic BERT)",
        minutes=3,
        defaults=Options(epochs=1 / 4, batch_sizes=(32,), eps=EPS, model="roberta-small", ells=(1.0, 2.0), points=12),
        lines=partial(base.svag, replace(SMALL, recipe="roberta-svag")),
        words=base.gaps,
        models=("roberta-large", "roberta-base"),
        smoke={"batch_sizes": (1024,), "epochs": 2, "ells": (1.0, 2.0)},
        measure="test loss",
        shown=Shown(
            partial(cifar10_svag.headline, "RoBERTa", "test loss"),
            "test loss",
            judge=cifar10_svag.judge,
            differs="a small copy: 6 layers, enwik8, 1/4 epoch",
            paper_setting=False,
        ),
    ),
]
