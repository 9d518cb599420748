"""Does SVAG follow the discrete run from a warm start, up to ell = 8? On a ResNet-8 with GroupNorm, in small.

Claim. "SVAG on the Adam trajectory [...] matches the discrete trajectory (ell = 1) on various test functions" for ell
up to 8, with eps of 1e-8 and of 1e-30, and the same for RMSprop (the paper's section 6 and appendix "SVAG
Experiments"). The theorem starts from a second moment above zero. Fixed before the runs were made, for each of four
panels: (1) no arm of SVAG is called different by the train loss, at any ell; (2) the largest gap at ell = 8 is at most
that at ell = 2 plus two errors of their difference.

Protocol. A ResNet-8 with GroupNorm, which has no batch statistics, on CIFAR-10 in 8 x 8 pixels, B = 32, eta 1e-3, Adam
with betas .9 and .999 or torch's RMSprop with .999, eps 1e-8 or 1e-30, constant after a warm start of 128 steps; then
128 steps of the discrete run, which are 128 ell^2 steps of SVAG with two batches each. SVAG's samples are others than
those of the discrete run, so that the null, a rerun with other samples, has the same spread. Seeds 0 to 11.

Cost. About twenty minutes on a core of a CPU for each panel, nearly all of it at ell = 8.

    rootscale study experiments/svag_warm.py --optimizer adam --eps 1e-30
"""

from __future__ import annotations

from small_nets import NETS, base_and_null

from rootscale import Adam, RMSprop
from rootscale.lab import Arm, Measure, Settings, Study, Variant, grid
from rootscale.verdict import Judge

BATCH, BEFORE, AFTER, POINTS, SEEDS = 32, 128, 128, 16, 12
ELLS = (2, 4, 8)
EPS = (1e-8, 1e-30)
KEEPS = ("train loss", "test loss", "test accuracy", "gradient norm", "Tr Sigma")


def study(optimizer: str, eps: float) -> Study:
    """Return one panel: the discrete run, its null, and SVAG for each ell."""
    net = NETS["resnet8"]
    record = Adam(1e-3, 0.9, 0.999, eps=eps) if optimizer == "adam" else RMSprop(1e-3, 0.999, eps=eps)
    sized = type(net)(net.title, net.data, 1e-3, (BATCH,), (BEFORE + AFTER) * BATCH, net.before, POINTS, SEEDS)
    task = sized.task(f"svag-resnet8-{optimizer}-{eps:g}", optimizer=record)
    arms = [*base_and_null(task), *(Arm(f"SVAG, ell = {ell}", task, Variant(ell=ell)) for ell in ELLS)]
    start, stop = BEFORE * BATCH, (BEFORE + AFTER) * BATCH
    measure = Measure(POINTS, eval_samples=2048, noise=True, noise_samples=2048)
    settings = Settings(grid(stop, POINTS, start, (BATCH,)), start, measure)
    claim = f"{net.title}, {optimizer}, eps {eps:g}: SVAG follows the discrete run from a warm start"
    judge = Judge(decide_by=("train loss",))
    return Study(f"svag-warm-{optimizer}-{eps:g}", arms, claim, SEEDS, settings, judge=judge, keeps=KEEPS)


def studies(optimizer: str = "", eps: float = 0.0) -> list[Study]:
    """Return one panel, or all of them."""
    return [study(a, b) for a in ([optimizer] if optimizer else ("adam", "rmsprop")) for b in ([eps] if eps else EPS)]


STUDY = studies
