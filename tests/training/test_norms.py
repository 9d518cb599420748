"""Which layers keep running statistics, and those that TorchScript has compiled."""

import pytest
import torch
from torch import nn

from rootscale.training import SVAG, Run, rescale_
from rootscale.training.norms import norm_layers

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


def net(**options):
    return nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3, **options))


def scripted(**options):
    return torch.jit.script(net(**options))


def traced():
    return torch.jit.trace(net(), torch.ones(4, 3, 2, 2), check_trace=False)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.98, 0.999))


def test_layers_are_found_by_name_and_each_once():
    shared = nn.BatchNorm1d(3)
    model = nn.ModuleDict(
        {
            "one": shared,
            "again": shared,
            "tracked": nn.InstanceNorm1d(3, track_running_stats=True),
            "batch": nn.BatchNorm1d(3, track_running_stats=False),
            "instance": nn.InstanceNorm1d(3),
            "layer": nn.LayerNorm(3),
            "plain": nn.BatchNorm1d(3, momentum=None),
        }
    )
    assert list(norm_layers(model)) == ["one", "tracked", "plain"]


@pytest.mark.parametrize("make", [scripted, traced])
def test_batchnorm_compiled_by_torchscript_is_refused_by_name(make):
    model = make()
    optimizer = adam(model)
    with pytest.raises(TypeError, match=r"layer 1 is a BatchNorm2d compiled by TorchScript.*without batchnorm"):
        rescale_(optimizer, 4, model=model)
    assert optimizer.param_groups[0]["lr"] == 1e-3


@pytest.mark.parametrize("options", [{"rule": "without batchnorm"}, {"forward_kappa": 1}])
def test_a_compiled_batchnorm_whose_momentum_is_kept_is_no_obstacle(options):
    model = scripted()
    optimizer = adam(model)
    if "rule" in options:
        with pytest.warns(match="does not keep the dynamics"):
            rescale_(optimizer, 4, model=model, **options)
    else:
        rescale_(optimizer, 4, model=model, **options)
    assert optimizer.param_groups[0]["lr"] == 2e-3


@pytest.mark.parametrize("options", [{"momentum": None}, {"track_running_stats": False}])
def test_compiled_layers_without_a_momentum_to_convert_are_accepted(options):
    model = scripted(**options)
    assert not norm_layers(model)
    rescale_(adam(model), 4, model=model)


def test_svag_refuses_a_compiled_batchnorm_too():
    model = scripted()
    with pytest.raises(TypeError, match="layer 1 is a BatchNorm2d compiled by TorchScript"):
        SVAG(adam(model), 2, model=model)


def test_a_model_compiled_after_its_conversion_has_the_new_momentum():
    model = net()
    rescale_(adam(model), 4, model=model)
    compiled = torch.jit.script(model).train()
    compiled(torch.ones(4, 3, 2, 2))
    reference = net()
    reference[1].momentum = 1 - 0.9**4
    reference.load_state_dict(model.state_dict())
    with torch.no_grad():
        reference[1].running_mean.zero_()
    reference(torch.ones(4, 3, 2, 2))
    torch.testing.assert_close(list(compiled.children())[1].running_mean, reference[1].running_mean)


class OwnNorm(nn.Module):
    def __init__(self, momentum=0.1):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(3))
        self.momentum = momentum


def test_a_batchnorm_of_ones_own_is_left_and_named():
    model = nn.Sequential(nn.Linear(3, 3), OwnNorm(), nn.Sequential(OwnNorm()), OwnNorm(None), nn.BatchNorm1d(3))
    left = [text for text in rescale_(adam(model), 4, model=model).remaining if "momentum" in text]
    assert len(left) == 1
    assert left[0].startswith("momentum of OwnNorm (1, 2.0), which is not torch's and was kept: ")
    assert "0.3439 if it weighs the new batch" in left[0]
    assert "0.0001 if the old statistics" in left[0]
    assert model[1].momentum == 0.1
    assert not any("OwnNorm" in text for text in rescale_(adam(model), 4, model=model, forward_kappa=1).remaining)
    run = Run(adam(model), tuned_at=8, batch_size=32, model=model)
    assert left[0] in run.changes.remaining
    run.batch_size = 8
    assert not any("OwnNorm" in text for text in run.changes.remaining)


def test_a_run_sets_the_momentum_for_now_and_one_that_the_script_sets_is_the_scripts():
    model = net()
    run = Run(adam(model), tuned_at=8, batch_size=32, model=model)
    assert model[1].momentum == pytest.approx(1 - 0.9**4, rel=1e-12)
    model[1].momentum = 0.2  # by the script, between two changes
    run.batch_size = 16
    assert model[1].momentum == pytest.approx(1 - 0.8**2, rel=1e-12)
    run.batch_size = 8
    assert model[1].momentum == pytest.approx(0.2, rel=1e-12)


def test_a_run_counts_the_samples_of_a_forward_pass():
    model = net()
    run = Run(adam(model), tuned_at="8x1x1", batch_size="8x4x1", model=model)
    assert (run.kappa, run.forward_kappa, model[1].momentum) == (4, 1, 0.1)
    run.batch_size = "16x2x1"
    assert (run.kappa, model[1].momentum) == (4, pytest.approx(1 - 0.9**2, rel=1e-12))


@pytest.mark.parametrize("make", [scripted, traced])
def test_a_run_refuses_what_is_compiled_by_torchscript_and_leaves_the_optimizer(make):
    model = make()
    optimizer = adam(model)
    with pytest.raises(TypeError, match="layer 1 is a BatchNorm2d compiled by TorchScript"):
        Run(optimizer, tuned_at=8, batch_size=32, model=model)
    Run(optimizer, tuned_at=8)  # nothing was attached
