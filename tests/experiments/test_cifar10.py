"""The paper's runs on CIFAR-10: its recipes, its plans, its tasks, and what the studies vary of them."""

from fractions import Fraction
from pathlib import Path

import cifar10
import nets
import pytest
import torch
from nets import GroupedBatchNorm2d
from recipes import FACTORS, OPTIMIZERS, Recipe, paper_plan, recipe
from torch import nn

from rootscale import SGD, Adam, AdamW, RMSprop
from rootscale.lab import data
from rootscale.lab.data import CropFlip
from rootscale.lab.study_file import StudyFile
from rootscale.training import optim

EPOCH = 195
EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def head(text, model):
    torch.manual_seed(0)
    made = cifar10.task(model, kind=text).model()
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
        cifar10.task(kind="theirs")


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


def studies(name, **options):
    return StudyFile(EXPERIMENTS / f"{name}.py").studies(**options)


def test_the_scaling_experiments_follow_the_authors_at_the_papers_batch_sizes():
    found = {study.name: study for study in studies("cifar10_scaling")}
    for net in ("vgg16", "resnet56"):
        for optimizer in OPTIMIZERS:
            study, house = (found[f"cifar10-{net}-{optimizer}{name}"] for name in ("-authors", ""))
            sizes = [arm.variant.plan(arm.run.plan).batch_size.total for arm in study.arms]
            assert sizes == [256, 1024, 4096, 8192, 16384]
            assert (study.base.run.plan, study.seeds) == (paper_plan(optimizer, recipe="authors"), 3)
            assert (house.base.run.plan.optimizer, house.seeds) == (paper_plan(optimizer).optimizer, 1)
    (grouped,) = studies("cifar10_scaling", net="vgg16", optimizer="adam", eps=1e-8, recipe="house+groups")
    assert grouped.name == "cifar10-vgg16-adam-house-groups"


def test_each_factor_has_its_own_base():
    (study,) = studies("cifar10_factors", smoke=True)
    labels = [arm.label for arm in study.arms]
    assert labels[:4] == ["house, B = 16", "house, B = 1,024", "decays, B = 16", "decays, B = 1,024"]
    assert "BatchNorm groups, B = 16" not in labels, "it would be the house's"
    changed = {arm.label: arm.run for arm in study.arms}
    house = changed["house, B = 1,024"]
    assert changed["decays, B = 1,024"].plan.schedule.milestones != house.plan.schedule.milestones
    assert changed["decays, B = 1,024"].plan.optimizer == house.plan.optimizer
    assert changed["bias correction, B = 1,024"].plan.optimizer.name == "adam"
    assert changed["bias correction, B = 1,024"].plan.schedule == house.plan.schedule
    assert changed["all three, B = 1,024"].plan.schedule == changed["decays, B = 1,024"].plan.schedule
    assert {m.group for m in changed["BatchNorm groups, B = 1,024"].model().modules() if hasattr(m, "group")} == {16}


def test_only_the_runs_of_fp32_leave_bfloat16_on_a_gpu():
    (study,) = studies("cifar10_factors", smoke=True, device="cuda")
    setups = {arm.label: (arm.settings or study.settings).setup for arm in study.arms}
    assert {label for label, setup in setups.items() if not setup.amp} == {"fp32, B = 16", "fp32, B = 1,024"}
    assert all(setup.fast and setup.device == "cuda" for setup in setups.values())


def test_the_paper_plan_is_that_of_its_appendix():
    plan = paper_plan("rmsprop")
    assert plan.optimizer == RMSprop(eta=1e-3, beta=0.999, eps=1e-8, weight_decay=1e-4)
    assert plan.batch_size.total == 256
    assert plan.steps == 97_500
    assert plan.schedule.warmup == 1950
    epoch = 195
    for epochs, rate in [(0, 1e-6), (5, 1e-3 * 1e-3 * 1e3**0.5), (9, 1e-6 * 1e3**0.9), (10, 1e-3), (399, 1e-3)]:
        assert plan.learning_rate(epochs * epoch) == pytest.approx(rate, rel=1e-12)
    assert plan.learning_rate(400 * epoch) == pytest.approx(1e-4)
    assert plan.learning_rate(450 * epoch) == pytest.approx(1e-5)
    plan = paper_plan("adam", eps=1e-30)
    assert plan.optimizer == Adam(eta=1e-3, beta1=0.999, beta2=0.999, eps=1e-30, weight_decay=1e-4)
    assert plan.learning_rate(299 * epoch) == 1e-3
    assert plan.learning_rate(300 * epoch) == plan.learning_rate(499 * epoch) == pytest.approx(1e-4)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_paper_plan_exists_at_every_batch_size_of_the_paper(optimizer):
    plan = paper_plan(optimizer)
    for size in (1024, 4096, 16384):
        big = plan.at(size)
        assert big.samples == plan.samples
        assert big.optimizer.eta == pytest.approx(1e-3 * (size / 256) ** 0.5)
        for share in (0.01, 0.5, 0.61, 0.85, 0.95):
            rates = [p.learning_rate(share * float(p.total_steps)) / p.optimizer.eta for p in (plan, big)]
            assert rates[0] == pytest.approx(rates[1], rel=1e-9)
        assert big.batchnorm_momentum == pytest.approx(1 - 0.9 ** (size / 256))
    assert paper_plan(optimizer, batchnorm_momentum=None).at(1024).batchnorm_momentum is None


def test_short_runs_keep_the_shares_of_the_schedule():
    plan = paper_plan("rmsprop", epochs=7)
    assert plan.steps == 7 * 195
    assert plan.schedule.warmup == Fraction(7 * 195, 50)
    assert plan.schedule.milestones == (Fraction(7 * 195 * 4, 5), Fraction(7 * 195 * 9, 10))


@pytest.mark.parametrize("net", ["vgg16", "resnet56"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_task_has_the_paper_net_and_plan(net, optimizer):
    task = cifar10.task(net, optimizer, epochs=2, eps=1e-30, kind="house")
    assert task.plan == paper_plan(optimizer, epochs=2, eps=1e-30)
    made, plain = task.model(), nets.NETS[net]()
    assert type(made) is type(plain)
    assert sum(p.numel() for p in made.parameters()) == sum(p.numel() for p in plain.parameters())
    assert [name for name, p in made.named_parameters() if not p.requires_grad] == ["last.weight", "last.bias"]
    assert task.augment == CropFlip(4, task.prepare.black)
    assert (task.draws, task.name) == (3, f"cifar10-{net}-{optimizer}")
    assert {m.momentum for m in made.modules() if isinstance(m, nn.BatchNorm2d)} == {0.1}


def test_images_are_read_when_a_sample_is_needed(monkeypatch):
    task = cifar10.task()
    assert (len(task.train), len(task.test)) == (50_000, 10_000)
    monkeypatch.setattr(cifar10, "images", lambda folder: data.patterns(train=50_000, test=10_000, size=2))
    x, y = task.train[torch.tensor([3, 5])]
    assert (x.shape, x.dtype, y.shape) == ((2, 3, 2, 2), torch.uint8, (2,))


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"optimizer must be one of adam, rmsprop, got 'sgd'"):
        cifar10.task(optimizer="sgd")
    with pytest.raises(ValueError, match=r"net must be one of vgg16, resnet56, got 'vgg'"):
        cifar10.task("vgg")


def test_the_paper_form_has_the_hyperparameters_of_the_record():
    p = nn.Parameter(torch.zeros(3))
    adam = cifar10.paper_form([p], Adam(1e-3, 0.8, 0.9, 1e-5, weight_decay=0.1))
    assert type(adam) is optim.Adam
    expected = dict(lr=1e-3, betas=(0.8, 0.9), eps=1e-5, weight_decay=0.1, decoupled_weight_decay=False)
    assert adam.param_groups[0].items() >= expected.items()
    adamw = cifar10.paper_form([{"params": [p]}], AdamW(1e-3, weight_decay=0.2))
    assert adamw.param_groups[0]["decoupled_weight_decay"]
    rmsprop = cifar10.paper_form(iter([p]), RMSprop(1e-2, 0.9, 1e-4, weight_decay=0.3))
    assert type(rmsprop) is optim.RMSprop
    expected = dict(lr=1e-2, alpha=0.9, eps=1e-4, weight_decay=0.3, capturable=False)
    assert rmsprop.param_groups[0].items() >= expected.items()
    for record in (SGD(0.1), Adam(1e-3, eps_root=1e-8)):
        with pytest.raises(ValueError, match=r"exists of adam, adamw and rmsprop, without eps_root; got"):
            cifar10.paper_form([p], record)
