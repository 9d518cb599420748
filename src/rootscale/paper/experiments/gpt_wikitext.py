"""GPT: the square root rule, SVAG and a switch in mid-run, on WikiText, enwik8 or any folder of text.

The claim. 12-layer GPT on WikiText-103 with Adam, batch sizes 1,024 to 8,192 under the square root rule: "We achieve a
validation log perplexity of 5 ± 0.1 for all the batch sizes under consideration", with aligned trajectories ("except
8192 in the first half of the training") and gradient norms (appendix "Square Root Scaling Experiments", WikiText-103).
"SVAG converges and closely tracks Adam" on it, sequences of 64, betas .9 and .98 (appendix "SVAG Experiments"). The
paper has no switch in mid-run.

The paper's setting (``gpt-wikitext``). The appendix's table: lr 1e-3, betas .9875 and .996, eps 2e-8, weight decay 1e-4
at batch size 1,024, dropout .1, 12,500 steps of which 1,000 are a linear warm-up, then linear decay to 0; sequences of
128, windows of the text drawn with replacement, divided 9:1 at random. The smallest batch size that is asked for is the
base; it has the table's values converted to it by the rule. ``--epochs`` sets the length, and the warm-up keeps its
share; 18 epochs of WikiText-103 are the paper's 12,500 steps. Against the rule, at the largest batch: the learning rate
alone, and linear scaling. It takes WikiText-103, or else WikiText-2 (words; small enough to be learned by heart), or
any text files.

A small copy of it (``gpt-enwik8``, ``gpt-switch``, ``gpt-svag``): the same net on the bytes of enwik8, at batch sizes
128 times smaller and over 1 % of the samples, so that steps, betas and eps at the base are about the paper's: the
table's betas and eps are taken to hold at batch size 8, with lr 2e-4 there (at batch size 8 the paper's 1e-3 is much).

A tiny copy that a CPU can train with many seeds (``gpt-tiny-switch``): two layers of width 32 and sequences of 32, the
table's betas and eps at batch size 8 with lr 2e-3, as in `rootscale.paper.experiments.gpt_check`.

The paper's values carried down by the rule (``gpt-table``, ``gpt-table-switch``): the same net and text at B = 64, with
the table's hyperparameters converted from 1,024 to it, and up to 1,024 again; 67 million tokens, 4 seeds.

Cost. From 0.4 million tokens a second on one H200, which `rootscale reproduce --list` counts for one seed.

    rootscale reproduce gpt-enwik8 --device cuda --data FOLDER
    rootscale reproduce gpt-wikitext --epochs 18 --device cuda --data FOLDER
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from rootscale.paper.experiment import Experiment, Lines, Options
from rootscale.paper.experiments import cifar10_svag
from rootscale.paper.experiments.language_runs import CLAIMED, Setting, gaps, headline, judge, scaling, svag, switch
from rootscale.paper.shown import Shown

#: The appendix's eps at batch size 1,024.
EPS = 2e-8
SMALL = Setting("enwik8", reference=8, eta=2e-4)
TINY = Setting("enwik8", length=32, reference=8, eta=2e-3)
TABLE = Setting("enwik8")
#: How much higher a loss, in nats, still counts as kept after a switch: the margin of results/PROTOCOL.md.
MARGIN = 0.01


def _experiment(name: str, title: str, minutes: float, lines: Lines, defaults: Options, **smoke: object) -> Experiment:
    """Return an experiment; its claim goes by what its lines are."""
    kind = lines.func  # type: ignore[attr-defined]
    claim, source = CLAIMS[kind]
    shown = SHOWN[kind]
    if defaults.model != "gpt":
        shown = replace(shown, headline=partial(headline, title.partition(" on ")[0]))
    return Experiment(
        name, title, claim, source, minutes, defaults, lines, gaps, ("gpt-6", "gpt-4"),
        smoke={"eps": defaults.eps, **smoke}, measure="test loss",
        shown=replace(
            shown,
            differs=DIFFERS.get(name, ""),
            paper_setting=name not in DIFFERS,
            stands_for=STANDS_FOR.get(name, ""),
        ),
    )  # fmt: skip


#: How each kind of lines is drawn and judged.
SHOWN = {
    scaling: Shown(partial(headline, "GPT"), "test loss", CLAIMED, judge=judge),
    switch: Shown(partial(headline, "GPT"), "test loss", MARGIN, "the margin of the protocol"),
    svag: Shown(partial(cifar10_svag.headline, "GPT", "test loss"), "test loss", judge=cifar10_svag.judge),
}
_COPY = "a small copy: enwik8's bytes, about 1 % of the samples"
#: What of the paper's setting an experiment is not like.
DIFFERS = {
    "gpt-enwik8": f"{_COPY}, B = 8 to 128, with values that are not the paper's",
    "gpt-table": f"{_COPY}, the paper's values carried down to B = 64 by the rule",
    "gpt-svag": f"{_COPY}, 1/32 of an epoch, one seed",
}
STANDS_FOR = {"gpt-enwik8": "gpt-wikitext", "gpt-table": "gpt-wikitext"}


#: Claim and source of each kind of lines.
CLAIMS = {
    scaling: (
        "Validation log-perplexity 5 ± 0.1 at all batch sizes (WikiText-103); trajectories and gradient norms "
        "are close, except B = 8192 in the first half of the training",
        "Section 5, figure on large scale experiments; appendix, Square Root Scaling Experiments, WikiText-103",
    ),
    switch: (
        "Not in the paper: a change of batch size in mid-run, all of it converted, goes on as if nothing had changed",
        "Theorem for Adam, which asks for a warm start",
    ),
    svag: ("SVAG converges and closely tracks Adam", "Appendix, SVAG Experiments, WikiText-103 (GPT)"),
}

EXPERIMENTS = [
    _experiment(
        "gpt-enwik8",
        "GPT on enwik8",
        4,
        partial(scaling, SMALL),
        Options(epochs=3 / 16, batch_sizes=(8, 32, 128), eps=EPS, model="gpt", points=16),
        batch_sizes=(1024, 4096),
        epochs=2,
    ),
    _experiment(
        "gpt-switch",
        "GPT on enwik8, a switch in mid-run",
        3,
        partial(switch, SMALL),
        Options(epochs=3 / 16, batch_sizes=(8, 32, 128), eps=EPS, model="gpt", points=12),
        batch_sizes=(1024, 2048, 4096),
        epochs=2,
    ),
    _experiment(
        "gpt-tiny-switch",
        "A tiny GPT on enwik8, a switch in mid-run",
        5,
        partial(switch, TINY),
        Options(epochs=0.0228, batch_sizes=(8, 32, 128), seeds=8, eps=EPS, model="gpt-tiny", points=24),
        batch_sizes=(1024, 2048, 4096),
        epochs=2,
    ),
    _experiment(
        "gpt-table",
        "GPT on enwik8, the paper's values from B = 64 on",
        10,
        partial(scaling, TABLE),
        Options(epochs=3 / 4, batch_sizes=(64, 256, 1024), seeds=4, eps=EPS, model="gpt", points=16),
        batch_sizes=(1024, 4096),
        epochs=2,
    ),
    _experiment(
        "gpt-table-switch",
        "GPT on enwik8, the paper's values from B = 64 on, a switch in mid-run",
        10,
        partial(switch, TABLE),
        Options(epochs=3 / 4, batch_sizes=(64, 256, 1024), seeds=4, eps=EPS, model="gpt", points=12),
        batch_sizes=(1024, 2048, 4096),
        epochs=2,
    ),
    _experiment(
        "gpt-svag",
        "SVAG: GPT on enwik8",
        2,
        partial(svag, Setting("enwik8", "gpt-svag", 64, reference=32, eta=5e-4)),
        Options(epochs=1 / 32, batch_sizes=(32,), eps=EPS, model="gpt", ells=(1.0, 2.0), points=12),
        batch_sizes=(1024,),
        epochs=1,
        ells=(1.0, 2.0),
    ),
    _experiment(
        "gpt-wikitext",
        "GPT on WikiText",
        400,
        partial(scaling, Setting()),
        Options(epochs=18, batch_sizes=(1024, 2048, 4096, 8192), eps=EPS, model="gpt"),
        batch_sizes=(1024, 4096),
        epochs=3,
    ),
]
