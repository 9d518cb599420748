"""Several optimizers of one run are trained, converted and resumed as one."""

import pytest
import torch

from rootscale import Plan, hparams, records
from rootscale.lab import Settings, Task, Trial, Variant
from rootscale.lab.several import Several, parts_of
from rootscale.training.adapters import make_optimizer

pytestmark = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")


def both(parameters, record):
    parameters = list(parameters)
    matrices = [p for p in parameters if p.ndim == 2]
    others = [p for p in parameters if p.ndim != 2]
    return Several(make_optimizer(matrices, record), make_optimizer(others, hparams.AdamW(1e-3, 0.98, 0.998)))


@pytest.fixture(scope="module")
def task():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 6, generator=generator)
    y = (x[:, :3].argmax(-1)).long()
    return Task(
        "both",
        Plan(records.Muon(0.02, 0.95), batch_size=4, steps=32),
        lambda: torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)),
        lambda outputs, y: torch.nn.functional.cross_entropy(outputs, y, reduction="none"),
        (x, y),
        optimizer=both,
    )


def rates(run):
    return [group["lr"] for group in run.learner.optimizer.param_groups]


@pytest.mark.parametrize(
    ("rule", "muon", "adam"),
    [("normalized-linear", 4, 2), ("normalized-sqrt", 2, 2), ("linear-eta", 4, 2), ("none", 1, 1)],
)
def test_the_first_follows_the_rule_and_the_others_their_own(task, rule, muon, adam):
    settings = Settings(grid=(32, 64, 96, 128), switch_at=32)
    run = Trial(task, Variant(4, rule), [0], settings)
    run.advance()
    run.advance()  # a step, with the learning rates of the plan
    assert rates(run) == pytest.approx([0.02 * muon, 1e-3 * adam])
    second = parts_of(run.learner.optimizer)[1]
    assert second.param_groups[0]["betas"] == pytest.approx((0.98, 0.998) if adam == 1 else (0.92, 0.992))


def test_a_run_of_several_optimizers_resumes_to_the_same_end(task):
    settings = Settings(grid=(0, 32, 64, 96, 128))
    whole = Trial(task, Variant(2), [3], settings).finish()
    first = Trial(task, Variant(2), [3], settings)
    for _ in range(9):
        first.advance()
    second = Trial(task, Variant(2), [3], settings)
    second.load_state_dict(first.state_dict())
    assert second.finish()["train loss"].mean.tolist() == whole["train loss"].mean.tolist()


def test_zeroing_the_state_forgets_that_of_all(task):
    run = Trial(task, Variant(2, zero_state=True), [0], Settings(grid=(32, 64, 96), switch_at=32))
    assert all(not part.state for part in parts_of(run.learner.optimizer))


def test_the_null_starts_from_the_same_state_and_sees_other_samples(task):
    settings = Settings(grid=(32, 64, 96), switch_at=32)
    base, null = (Trial(task, variant, [0], settings) for variant in (Variant(), Variant(other_samples=True)))
    losses = [run.finish()["train loss"].mean.tolist() for run in (base, null)]
    assert losses[0][0] == losses[1][0]
    assert losses[0][1:] != losses[1][1:]
    assert Variant.from_dict(null.variant.to_dict()) == null.variant != base.variant
    assert "other_samples" not in base.variant.to_dict(), "runs that are stored keep their names"
