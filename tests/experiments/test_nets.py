import importlib.util
import sys
import types

import nets
import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from rootscale.lab import tasks
from rootscale.training import rescale_

#: Every model that needs no other package, with the shape of an image.
CASES = {
    "mlp": (lambda: tasks.mlp((12, 5, 7, 3)), (12,)),
    "mlp with BatchNorm": (lambda: tasks.mlp((12, 5, 3), momentum=0.02), (12,)),
    "conv": (lambda: tasks.convnet(width=3), (3, 16, 16)),
    "conv with BatchNorm": (lambda: tasks.convnet(width=3, channels=1, momentum=0.1), (1, 28, 28)),
    "conv with grouped BatchNorm": (
        lambda: nets.group_batchnorm(tasks.convnet(width=3, momentum=0.1), 1),
        (3, 16, 16),
    ),
    "vgg16": (nets.vgg16, (3, 32, 32)),
    "resnet56": (nets.resnet56, (3, 32, 32)),
}
IMAGES = {name: case for name, case in CASES.items() if len(case[1]) == 3}


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def inputs(shape, batch=2):
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_stacked_replicas_give_what_single_models_give(name, training):
    make, shape = CASES[name]
    torch.manual_seed(0)
    replicas = [make().train(training) for _ in range(2)]
    x = torch.stack([inputs(shape), inputs(shape).flip(0) + 1])
    parameters, buffers = stack_module_state(replicas)

    def forward(parameters, buffers, x):
        return functional_call(replicas[0], (parameters, buffers), (x,)), buffers

    outputs, new_buffers = vmap(forward)(parameters, buffers, x)
    for i, replica in enumerate(replicas):
        expected = replica(x[i])
        torch.testing.assert_close(outputs[i], expected, rtol=1e-3, atol=1e-4)
        for key, buffer in replica.named_buffers():
            torch.testing.assert_close(new_buffers[key][i], buffer, rtol=1e-3, atol=1e-4)
    assert outputs.std() > 1e-3


@pytest.mark.parametrize("name", [name for name in CASES if name != "vgg16"])
def test_gradients_of_stacked_replicas_are_those_of_single_models(name):
    make, shape = CASES[name]
    torch.manual_seed(0)
    replicas = [make().double() for _ in range(2)]
    x = torch.stack([inputs(shape), inputs(shape) + 1]).double()
    parameters, buffers = stack_module_state(replicas)
    outputs = vmap(lambda p, b, x: functional_call(replicas[0], (p, b), (x,)))(parameters, buffers, x)
    outputs.square().sum().backward()
    for i, replica in enumerate(replicas):
        replica(x[i]).square().sum().backward()
        for key, parameter in replica.named_parameters():
            torch.testing.assert_close(parameters[key].grad[i], parameter.grad, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", IMAGES)
def test_channels_last_changes_nothing_but_the_layout(name):
    make, shape = CASES[name]
    torch.manual_seed(0)
    model = make().eval()
    x = inputs(shape)
    expected = model(x)
    last = model.to(memory_format=torch.channels_last)(x.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(last, expected, rtol=1e-3, atol=1e-4)


def test_resnet56_has_the_published_size_and_depth():
    model = nets.resnet56()
    convolutions = 3 * 16 + 16 * 16 * 18 + 16 * 32 + 32 * 32 * 17 + 32 * 64 + 64 * 64 * 17
    norms = 2 * (16 * 19 + 32 * 18 + 64 * 18)
    # 0.85 million in He et al., table 6
    assert count(model) == 9 * convolutions + norms + 64 * 10 + 10 == 853_018
    weighted = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(weighted) == 56
    assert all(m.bias is None for m in weighted[:-1])


def test_resnet56_shrinks_the_image_twice_and_its_shortcut_has_no_parameters():
    block = nets._Block(2, 4, 0.1).eval()
    for parameter in block.parameters():
        nn.init.zeros_(parameter)
    x = torch.arange(1.0, 2 * 4 * 4 + 1).view(1, 2, 4, 4)
    out = block(x)
    assert out.shape == (1, 4, 2, 2)
    assert torch.equal(out[0, 1:3], x[0, :, ::2, ::2])
    assert not out[0, [0, 3]].any()
    assert nets.resnet56().features(inputs((3, 32, 32))).shape == (2, 64, 8, 8)


def test_vgg16_has_13_convolutions_and_one_linear_layer():
    model = nets.vgg16()
    assert sum(isinstance(m, nn.Conv2d) for m in model.modules()) == 13
    assert sum(isinstance(m, nn.BatchNorm2d) for m in model.modules()) == 13
    assert sum(isinstance(m, nn.Linear) for m in model.modules()) == 1
    # torchvision's vgg16_bn features without the 4,224 biases in front of BatchNorm, and 512 x 10 + 10
    assert count(model) == 14_723_136 - 4_224 + 5_130 == 14_724_042
    assert model.features(inputs((3, 32, 32))).shape == (2, 512, 1, 1)


@pytest.mark.parametrize("make", [nets.vgg16, nets.resnet56, tasks.convnet])
def test_a_frozen_last_layer_gets_no_gradient_and_the_rest_does(make):
    model = make(classes=4, freeze_last=True)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {"last.weight", "last.bias"}
    assert all(parameter.requires_grad for parameter in make(classes=4).parameters())
    model(inputs((3, 32, 32))).square().sum().backward()
    assert model.last.weight.grad is None
    assert next(model.parameters()).grad.abs().sum() > 0


@pytest.mark.parametrize("name", [name for name in CASES if name != "mlp" and name != "conv"])
def test_layers_before_batchnorm_have_no_bias_and_the_momentum_is_the_given_one(name):
    model = CASES[name][0]()
    modules = list(model.modules())
    norms = [m for m in modules if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    assert norms
    assert {m.momentum for m in norms} == {0.02 if name.startswith("mlp") else 0.1}
    assert nets.vgg16(momentum=0.3).features[1].momentum == 0.3
    weighted = [m for m in modules if isinstance(m, nn.Conv2d | nn.Linear)]
    assert all(m.bias is None for m in weighted[:-1])
    assert weighted[-1].bias is not None


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_done_in_place(name):
    assert not any(getattr(m, "inplace", False) for m in CASES[name][0]().modules())


def test_an_mlp_needs_two_sizes():
    with pytest.raises(ValueError, match=r"sizes must have at least inputs and outputs, got \(3,\)"):
        tasks.mlp((3,))


def test_without_a_library_resnet50_says_what_to_install(monkeypatch):
    for name in nets.RESNET50:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=r"resnet50 needs torchvision or timm, .* pip install torchvision"):
        nets.resnet50()
    with pytest.raises(ValueError, match=r"resnet50 takes images of 3 channels, got 1"):
        nets.resnet50(channels=1)


class Library(nn.Module):
    """Something with the parts of a library's ResNet that are touched."""

    def __init__(self, classes):
        super().__init__()
        self.bn1, self.relu, self.fc = nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.Linear(3, classes)


@pytest.mark.parametrize("name", nets.RESNET50)
def test_resnet50_of_a_library_is_made_to_fit(monkeypatch, name):
    library = types.SimpleNamespace(
        models=types.SimpleNamespace(resnet50=lambda weights, num_classes: Library(num_classes)),
        create_model=lambda name, pretrained, num_classes: Library(num_classes),
    )
    for other in nets.RESNET50:
        monkeypatch.setitem(sys.modules, other, library if other == name else None)
    model = nets.resnet50(classes=7, momentum=0.4, freeze_last=True)
    assert model.fc.out_features == 7
    assert not model.fc.weight.requires_grad
    assert model.bn1.momentum == 0.4
    assert not model.relu.inplace


@pytest.mark.skipif(not any(map(importlib.util.find_spec, nets.RESNET50)), reason="no library with ResNet-50")
def test_resnet50_has_the_published_size():
    assert count(nets.resnet50()) == 25_557_032


def grouped(group=4, features=3):
    layer = nets.GroupedBatchNorm2d(features, group, momentum=0.3).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, 0.5, 2.0]))
        layer.bias.copy_(torch.tensor([0.0, 1.0, -1.0]))
    return layer


def test_grouped_batchnorm_normalises_each_group_as_a_batch_of_its_own():
    layer = grouped()
    x = inputs((3, 5, 5), 12).double().contiguous(memory_format=torch.channels_last).requires_grad_()
    plain = nn.BatchNorm2d(3, momentum=0.3).double()
    plain.load_state_dict(layer.state_dict())
    out = layer(x)
    assert out.is_contiguous(memory_format=torch.channels_last)
    weights = inputs((3, 5, 5), 12).double().sin()
    (grad,) = torch.autograd.grad((out * weights).sum(), x, retain_graph=True)
    means, variances = [], []
    for part in (slice(0, 4), slice(4, 8), slice(8, 12)):
        plain.running_mean.zero_(), plain.running_var.fill_(1)
        y = x[part].detach().requires_grad_()
        expected = plain(y)
        torch.testing.assert_close(out[part], expected, rtol=1e-12, atol=1e-12)
        (own,) = torch.autograd.grad((expected * weights[part]).sum(), y)
        torch.testing.assert_close(grad[part], own, rtol=1e-10, atol=1e-12)
        means.append(plain.running_mean.clone())
        variances.append(plain.running_var.clone())
    torch.testing.assert_close(layer.running_mean, torch.stack(means).mean(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(layer.running_var, torch.stack(variances).mean(0), rtol=1e-12, atol=0)
    assert layer.num_batches_tracked == 1


def test_a_batch_that_is_no_multiple_of_the_group_is_one_group_and_evaluation_has_none():
    for size, training in ((4, True), (6, True), (8, False)):
        layer = grouped().train(training)
        plain = nn.BatchNorm2d(3, momentum=0.3).double().train(training)
        plain.load_state_dict(layer.state_dict())
        x = inputs((3, 2, 2), size).double()
        assert torch.equal(layer(x), plain(x))
        assert all(torch.equal(a, b) for a, b in zip(layer.buffers(), plain.buffers(), strict=True))


def test_grouped_batchnorm_runs_in_bfloat16_with_statistics_in_float32():
    layer = grouped().float()
    x = inputs((3, 5, 5), 8)
    expected = layer(x)
    out = layer(x.bfloat16())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, rtol=0.02, atol=0.02)


def test_grouping_replaces_every_layer_and_the_rule_converts_its_momentum():
    model = nets.group_batchnorm(tasks.convnet(width=3, momentum=0.1), 16)
    layers = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert [type(layer) for layer in layers] == [nets.GroupedBatchNorm2d] * 3
    assert {layer.group for layer in layers} == {16}
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.99, 0.999))
    rescale_(optimizer, 4, model=model)
    assert [layer.momentum for layer in layers] == pytest.approx([1 - 0.9**4] * 3)
