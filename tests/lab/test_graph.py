"""Training by CUDA graphs against the eager learner; needs a GPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rootscale import Adam, Plan, RMSprop, Schedule
from rootscale.lab import Measure, Settings, Setup, Trial, Variant
from rootscale.lab.data import patterns
from rootscale.lab.learner_graph import GraphLearner, SideBySide
from rootscale.lab.tasks import generated

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

SETTINGS = Settings(grid=(0, 320, 640, 960), measure=Measure(eval_samples=512), setup=Setup("cuda"))
FAST = replace(SETTINGS.setup, fast=True)
OPTIMIZERS = {"adam": Adam(1e-3, 0.95, 0.99), "rmsprop": RMSprop(1e-3, 0.98)}
VARIANTS = {
    "base": Variant(),
    "four times the batch": Variant(4),
    "ramp": Variant(2, ramp=((480, 4),)),
    "svag": Variant(ell=2),
    "state zeroed": Variant(4, zero_state=True),
}


def make(optimizer="adam", **options):
    plan = Plan(OPTIMIZERS[optimizer], 16, steps=60, schedule=Schedule("cosine", warmup=10), **options)
    return generated(patterns(1024, size=16), plan=plan, augment=True)


def run(task, variant, settings, seeds=(3,), learner=None):
    """A run whose learner is made by ``learner``, of the same arguments."""
    made = Trial(task, variant, list(seeds), settings)
    if learner is not None:
        made = Trial.__new__(Trial)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rootscale.lab.trial.make_learner", learner)
            made.__init__(task, variant, list(seeds), settings)
    return made


def exact(task, seeds, setup):
    """The graph without what changes rounding."""
    each = [GraphLearner(task, seed, setup, compile=False) for seed in seeds]
    return each[0] if len(each) == 1 else SideBySide(each)


def close(a, b, rtol, atol):
    for name in ("train loss", "test loss", "train loss (batch)", "parameter norm", "gradient norm"):
        np.testing.assert_allclose(a.values[name], b.values[name], rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_graph_takes_the_steps_of_the_eager_learner(optimizer, variant, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    task = make(optimizer, ema=0.9, clip=1.0)
    settings = replace(SETTINGS, grid=(320, 640, 960), switch_at=320)
    plain = run(task, VARIANTS[variant], settings).finish()
    close(run(task, VARIANTS[variant], settings, learner=exact).finish(), plain, 2e-2, 2e-3)


def test_the_compiled_graph_is_the_eager_learner_within_bfloat16():
    task = make()
    plain = run(task, Variant(), SETTINGS).finish()
    close(run(task, Variant(), replace(SETTINGS, setup=FAST)).finish(), plain, 0.1, 0.02)


def test_replicas_side_by_side_are_the_single_ones():
    task = make()
    together = run(task, Variant(), SETTINGS, (3, 5), exact).finish()
    for r, seed in enumerate((3, 5)):
        alone = run(task, Variant(), SETTINGS, (seed,), exact).finish()
        for name in ("train loss", "parameter norm"):
            np.testing.assert_allclose(together.values[name][r], alone.values[name][0], rtol=2e-2, atol=2e-3)


def test_a_resumed_run_goes_on_as_it_was():
    task = make()
    settings = replace(SETTINGS, grid=(320, 640, 960), switch_at=320)
    whole = run(task, Variant(4), settings, learner=exact).finish()
    first = run(task, Variant(4), settings, learner=exact)
    for _ in range(11):
        first.advance()
    torch.cuda.synchronize()
    second = run(task, Variant(4), settings, learner=exact)
    second.load_state_dict(first.state_dict())
    close(second.finish(), whole, 2e-2, 2e-3)


def language(dropout):
    pytest.importorskip("transformers")
    from language_models import Training, gpt
    from text import chain, from_text

    made = from_text(chain(30, 40_000), name="chain")
    training = Training("", 16, 1, eta=3e-3, reference=16)
    return gpt(made, model="gpt-tiny", length=16, dropout=dropout, training=training)


@pytest.mark.parametrize("micro", [None, 8])
def test_a_language_model_trains_in_a_graph_as_it_does_without(micro):
    task, settings = language(0.0), replace(SETTINGS, setup=Setup("cuda", micro))
    plain = run(task, Variant(4), settings).finish()
    assert plain.values["train loss"][0, -1] < 0.95 * plain.values["train loss"][0, 0]
    close(run(task, Variant(4), replace(settings, setup=replace(settings.setup, fast=True))).finish(), plain, 0.1, 0.02)


def test_dropout_in_a_graph_is_other_at_every_step_and_the_same_after_a_stop():
    task = language(0.5)
    settings = replace(SETTINGS, setup=FAST)
    whole = run(task, Variant(), settings).finish()
    first = run(task, Variant(), settings)
    for _ in range(25):
        first.advance()
    torch.cuda.synchronize()
    second = run(task, Variant(), settings)
    second.load_state_dict(first.state_dict())
    close(second.finish(), whole, 2e-2, 2e-3)
    fixed = run(task, Variant(), settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "manual_seed", lambda seed, own=torch.manual_seed: own(1))
        other = fixed.finish()
    assert not np.allclose(other.values["train loss"][0, -1], whole.values["train loss"][0, -1], rtol=1e-4)
