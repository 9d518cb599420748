"""The small studies of the experiments: their nets, the optimizers that they define, and the arms of their studies."""

import json
import math
from dataclasses import replace
from pathlib import Path

import momentum_default
import pytest
import saturating_rate
import small_nets
import stability
import torch

from rootscale.lab import Settings, Trial, Variant
from rootscale.lab.study_file import StudyFile

ROOT = Path(__file__).parents[2]
#: Files whose studies need nothing that is stored.
FILES = (
    "ablations", "bias_correction", "far_from_scratch", "noise_dominates", "previous_moment", "stages", "svag_warm",
)  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_studies_are_described_without_their_data(name, monkeypatch):
    monkeypatch.delenv("ROOTSCALE_DATA", raising=False)
    for study in StudyFile(ROOT / "experiments" / f"{name}.py").studies():
        assert study.claim
        assert len(study.arms) > 2
        assert study.settings.grid[-1] <= study.base.run.plan.samples
        for arm in study.arms:
            assert arm.variant.plan(arm.run.plan).batch_size.total * 2 <= study.settings.grid[-1]


def test_a_late_jump_is_at_the_time_of_the_last_stage():
    study = StudyFile(ROOT / "experiments" / "stages.py").studies(net="mlp", beta2=0.999)[0]
    variants = {arm.fields.get("form"): arm.variant for arm in study.arms}
    stages, late = variants["in stages"], variants["at once, late"]
    assert late.kappas == (1, 64)
    assert late.ramp == stages.ramp[-1:]


@pytest.mark.parametrize("net", ["gpt", "resnet8"])
def test_stacked_seeds_of_the_larger_nets_train_as_single_ones(net):
    made = small_nets.NETS[net].data()
    if net == "gpt":
        x = torch.randint(256, (8, small_nets.LENGTH), generator=torch.Generator().manual_seed(0))
        data = x, x.roll(-1, 1)
    else:
        generator = torch.Generator().manual_seed(0)
        data = torch.randn(8, 3, 8, 8, generator=generator), torch.arange(8)
    task = replace(made, train=data, test=None, plan=replace(made.plan, steps=4))
    settings = Settings((0, 16, 32))
    both = Trial(task, Variant(), [0, 1], settings).finish().values["train loss"]
    for row, seed in enumerate((0, 1)):
        alone = Trial(task, Variant(), [seed], settings).finish().values["train loss"]
        assert both[row] == pytest.approx(alone[0], rel=2e-4)


def test_the_gpt_sees_nothing_of_later_bytes():
    torch.manual_seed(0)
    model = small_nets.TinyGPT()
    x = torch.randint(256, (2, small_nets.LENGTH))
    y = x.clone()
    y[:, 20:] = 0
    assert torch.allclose(model(x)[:, :20], model(y)[:, :20], atol=1e-6)
    assert not torch.allclose(model(x)[:, 20:], model(y)[:, 20:], atol=1e-3)


@pytest.mark.parametrize("kind", ["lion", "signum", "signsgd", "lamb"])
def test_optimizers_take_the_steps_of_their_formulas(kind):
    record = momentum_default.KINDS[kind].record
    torch.manual_seed(0)
    p = torch.randn(3, 2, dtype=torch.double).requires_grad_()
    theta, gradients = p.detach().clone(), torch.randn(4, 3, 2, dtype=torch.double)
    optimizer = momentum_default.KINDS[kind].make([p.shape], [p], record)
    optimizer.param_groups[0]["lr"] = 0.01
    m = v = torch.zeros_like(theta)
    for k, g in enumerate(gradients, 1):
        p.grad = g.clone()
        optimizer.step()
        if kind == "lion":
            theta = theta - 0.01 * torch.sign(0.9 * m + 0.1 * g)
            m = 0.99 * m + 0.01 * g
        elif kind == "lamb":
            m, v = 0.95 * m + 0.05 * g, 0.999 * v + 0.001 * g**2
            update = m / (1 - 0.95**k) / ((v / (1 - 0.999**k)).sqrt() + 1e-6)
            theta = theta - 0.01 * theta.norm() / update.norm() * update
        else:
            mu = record.mu
            m = mu * m + (1 - mu) * g
            theta = theta - 0.01 * torch.sign(m)
    assert torch.allclose(p.detach(), theta, rtol=1e-6, atol=1e-9)


def test_norms_of_stacked_seeds_are_refused():
    p = torch.ones(2, 3, 4, requires_grad=True)
    with pytest.raises(ValueError, match="--together 1"):
        momentum_default.KINDS["lamb"].make([torch.Size([3, 4])], [p], momentum_default.KINDS["lamb"].record)


def test_the_saturating_rate_lies_between_the_square_root_and_the_kept_rate():
    names = "square root", "saturating", "kept"
    for kappa in (4, 64):
        for b in (0.01, 1.0, 100.0):
            root, saturating, kept = (saturating_rate.factor(name, kappa, b) for name in names)
            assert kept < saturating < root == math.sqrt(kappa)
    assert saturating_rate.factor("saturating", 1e6, 0.01) == pytest.approx(math.sqrt(1.01 / 0.01), rel=1e-3)


def test_a_rate_that_is_not_tuned_is_asked_for(monkeypatch, tmp_path):
    monkeypatch.setattr(small_nets, "RESULTS", tmp_path)
    with pytest.raises(ValueError, match="--tune"):
        saturating_rate.studies("gpt")


def test_values_of_beta1_that_agree_are_one_arm(monkeypatch, tmp_path):
    place = tmp_path / "eta.json"
    place.write_text(json.dumps({"mlp": {"999": [{"eta_h": 0.02}, {"eta_h": 0.04}]}}))
    monkeypatch.setattr(stability, "MEASURED", place)
    study = stability.study("mlp", "999")
    found = {arm.label: arm.fields.get("beta1") for arm in study.arms}
    assert found["4 → 16, paper"] == 0.6
    assert "4 → 16, measured" not in found
    assert found["4 → 256, measured"] == pytest.approx((0.75 * 0.03 * 64 - 1) / (0.75 * 0.03 * 64 + 1), abs=1e-3)
    for arm in study.arms[2:]:
        if "beta1" in arm.fields:
            assert arm.variant.plan(arm.run.plan).optimizer.beta1 == pytest.approx(arm.fields["beta1"], abs=2e-3)
    with pytest.raises(ValueError, match="--net gpt"):
        stability.study("gpt", "999")
