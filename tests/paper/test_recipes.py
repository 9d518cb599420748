import pytest
import torch
from torch import nn

from rootscale import Adam, RMSprop
from rootscale.paper import data, tasks
from rootscale.paper.experiment import Options
from rootscale.paper.experiments import cifar10_factors, experiments
from rootscale.paper.models import GroupedBatchNorm2d
from rootscale.paper.recipes import FACTORS, OPTIMIZERS, RECIPES, Recipe, paper_plan, recipe

EPOCH = 195


def head(text, model):
    images = data.patterns(train=64, test=8, size=32)
    torch.manual_seed(0)
    made = tasks.cifar10(images=images, model=model, epochs=2, recipe=text).model()
    return made, made.last


def test_recipes_are_named_with_factors_added():
    assert recipe("house") == Recipe()
    assert recipe("authors") == recipe("house+decays+head+bias-correction+warm-up")
    assert recipe("authors+groups+fp32").group == 256
    assert not recipe("authors+groups+fp32").bfloat16
    assert recipe(recipe("authors")) == recipe("authors")
    for factor in FACTORS:
        assert recipe(f"house+{factor}") != recipe("house")
    for text in ("authors+heads", "theirs", ""):
        with pytest.raises(ValueError, match=r"one of house, authors, .*one or more of decays, head.*got '"):
            recipe(text)
    with pytest.raises(ValueError, match="a recipe is one of house, authors"):
        Options(recipe="theirs")


def test_the_authors_rmsprop_is_adam_without_a_first_moment_and_decays_earlier():
    plan = paper_plan("rmsprop", recipe="authors")
    assert plan.optimizer == Adam(eta=1e-3, beta1=0.0, beta2=0.999, eps=1e-8, weight_decay=1e-4)
    for epoch, rate in [(0, 1e-6), (10, 1e-3), (299, 1e-3), (300, 1e-4), (399, 1e-4), (400, 1e-5), (499, 1e-5)]:
        assert plan.learning_rate(epoch * EPOCH) == pytest.approx(rate, rel=1e-12)
    big = plan.at(16384)
    assert big.optimizer.beta1 == 0
    assert big.optimizer.beta2 == pytest.approx(1 - 0.064)
    assert paper_plan("rmsprop").optimizer == RMSprop(eta=1e-3, beta=0.999, weight_decay=1e-4)
    assert paper_plan("rmsprop").learning_rate(399 * EPOCH) == 1e-3


def test_the_authors_adam_is_that_of_the_text():
    assert paper_plan("adam", recipe="authors") == paper_plan("adam")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_authors_warm_up_has_ten_epochs_in_runs_of_any_length(optimizer):
    for epochs in (500, 100, 20):
        assert paper_plan(optimizer, epochs=epochs, recipe="authors").schedule.warmup == 10 * EPOCH
    assert paper_plan(optimizer, epochs=4, recipe="authors").schedule.warmup == 2 * EPOCH  # half of it at most
    assert paper_plan(optimizer, epochs=100).schedule.warmup == 2 * EPOCH


def test_the_authors_vgg_has_a_small_fixed_head_and_their_resnet_trains_it():
    house, plain = head("house", "vgg16")
    authors, last = head("authors", "vgg16")
    assert not last.weight.requires_grad
    assert not last.bias.requires_grad
    assert last.weight.std().item() == pytest.approx(0.01, rel=0.05)
    assert not last.bias.any()
    assert plain.weight.std().item() == pytest.approx((3 * 512) ** -0.5, rel=0.05)
    for (name, a), b in zip(house.features.named_parameters(), authors.features.parameters(), strict=True):
        assert torch.equal(a, b), name  # the rest begins as it does without
    _, last = head("authors", "resnet56")
    assert last.weight.requires_grad
    assert last.bias.requires_grad
    assert last.weight.std().item() == pytest.approx((2 / 64) ** 0.5, rel=0.1)
    assert not head("house", "resnet56")[1].weight.requires_grad


def test_groups_change_batchnorm_and_nothing_else():
    grouped, _ = head("house+groups", "vgg16")
    plain, _ = head("house", "vgg16")
    layers = [module for module in grouped.modules() if isinstance(module, nn.BatchNorm2d)]
    assert {(type(layer), layer.group, layer.momentum) for layer in layers} == {(GroupedBatchNorm2d, 256, 0.1)}
    assert len(layers) == 13
    for (name, a), (other, b) in zip(grouped.state_dict().items(), plain.state_dict().items(), strict=True):
        assert name == other
        assert torch.equal(a, b)


def test_the_scaling_experiments_follow_the_authors_at_the_papers_batch_sizes():
    for name in ("cifar10-vgg16-adam", "cifar10-vgg16-rmsprop", "cifar10-resnet56-adam", "cifar10-resnet56-rmsprop"):
        experiment = experiments()[name]
        options = experiment.options()
        assert options.recipe == "authors"
        assert options.batch_sizes == (256, 1024, 4096, 8192, 16384)
        assert (options.epochs, options.seeds) == (500, 3)
        assert experiment.folder(options) == f"{name}-authors"
        assert experiment.folder(experiment.options(recipe="house")) == name  # what was run first, and is stored
        assert experiment.folder(experiment.options(recipe="house+groups")) == f"{name}-house-groups"
    assert "authors" in RECIPES


def test_each_factor_is_a_line_with_its_own_base():
    options = experiments()["cifar10-rmsprop-factors"].options(smoke=True)
    lines, settings = cifar10_factors.lines(options)
    labels = [line.label for line in lines]
    assert labels[:4] == ["house, B = 16", "house, B = 64", "decays, B = 16", "decays, B = 64"]
    assert "BatchNorm groups, B = 16" not in labels  # it would be the house's
    assert len(lines) == 2 * len(cifar10_factors.CHANGED) - 1
    changed = {line.label: line.task for line in lines}
    house = changed["house, B = 64"]
    assert changed["decays, B = 64"].plan.schedule.milestones != house.plan.schedule.milestones
    assert changed["decays, B = 64"].plan.optimizer == house.plan.optimizer
    assert changed["bias correction, B = 64"].plan.optimizer.name == "adam"
    assert changed["bias correction, B = 64"].plan.schedule == house.plan.schedule
    assert changed["all three, B = 64"].plan.schedule == changed["decays, B = 64"].plan.schedule
    assert {m.group for m in changed["BatchNorm groups, B = 64"].model().modules() if hasattr(m, "group")} == {16}
    assert all(line.settings(settings).grid == settings.grid for line in lines)


def test_only_the_line_of_fp32_leaves_bfloat16_on_a_gpu(monkeypatch):
    options = experiments()["cifar10-rmsprop-factors"].options(smoke=True, device="cuda")
    lines, settings = cifar10_factors.lines(options)
    setups = {line.label: line.settings(settings).setup for line in lines}
    assert {label for label, setup in setups.items() if not setup.amp} == {"fp32, B = 16", "fp32, B = 64"}
    assert all(setup.fast and setup.device == "cuda" for setup in setups.values())
