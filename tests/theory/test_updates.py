"""The plain updates are those of the libraries, to rounding."""

import pytest
import torch

from rootscale import SGD, Adam, AdamW, RMSprop, records
from rootscale.optimizers import FAMILIES
from rootscale.theory.updates import UPDATES, amsgrad
from rootscale.training.adapters import make_optimizer

STEPS = 12
RECORDS = [
    Adam(0.1, 0.9, 0.99, weight_decay=0.1),
    AdamW(0.1, 0.9, 0.99, weight_decay=0.1),
    RMSprop(0.1, 0.9, weight_decay=0.1),
    records.RMSpropMomentum(0.1, 0.9, momentum=0.8),
    records.RMSpropCentered(0.1, 0.9, momentum=0.8),
    records.NAdam(0.1, 0.9, 0.99, weight_decay=0.1),
    records.RAdam(0.1, 0.9, 0.9, weight_decay=0.1),
    records.Adamax(0.1, 0.9, 0.99, weight_decay=0.1),
    records.Adagrad(0.1, lr_decay=0.1, start=0.3, weight_decay=0.1),
    records.Adafactor(0.1, weight_decay=0.1, clip=1.1),
    SGD(0.1, 0.8, weight_decay=0.1),
]


def gradients(seed=0, shape=(3, 4)):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.double) for _ in range(STEPS)]


def simulated(update, record, start):
    theta, state = start.clone().unsqueeze(0), {}
    for g in gradients():
        theta = update(theta, g.unsqueeze(0), state, record)
    return theta[0]


def trained(optimizer, parameter):
    for g in gradients():
        parameter.grad = g.clone()
        optimizer.step()
    return parameter.detach()


def start():
    return torch.nn.Parameter(torch.linspace(-1, 1, 12, dtype=torch.double).view(3, 4).clone())


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_an_update_is_that_of_torch(record):
    parameter = start()
    expected = simulated(UPDATES[record.name], record, parameter.detach())
    digits = 1e-6 if record.name in ("nadam", "radam") else 1e-9  # mu_product in float32; eps before the correction
    moved = trained(make_optimizer([parameter], record), parameter)
    torch.testing.assert_close(moved, expected, rtol=digits, atol=digits)


def test_amsgrad_is_that_of_torch():
    parameter = start()
    expected = simulated(amsgrad, Adam(0.1, 0.9, 0.99), parameter.detach())
    optimizer = torch.optim.Adam([parameter], lr=0.1, betas=(0.9, 0.99), amsgrad=True)
    torch.testing.assert_close(trained(optimizer, parameter), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_is_that_of_torch_up_to_its_short_iteration(nesterov):
    """torch stops after five steps in bfloat16, with singular values between 0.7 and 1.2."""
    parameter, record = start(), records.Muon(1e-3, 0.9, weight_decay=0.0, nesterov=nesterov)
    before = parameter.detach().clone()
    expected = simulated(UPDATES["muon"], record, before) - before
    moved = trained(make_optimizer([parameter], record), parameter) - before
    assert torch.nn.functional.cosine_similarity(moved.flatten(), expected.flatten(), dim=0) > 0.97
    assert moved.norm() / expected.norm() == pytest.approx(1.0, abs=0.3)


@pytest.mark.parametrize(
    ("module", "name", "record"),
    [
        ("lion_pytorch", "Lion", records.Lion(0.1, 0.9, 0.95, weight_decay=0.1)),
        ("schedulefree", "AdamWScheduleFree", records.ScheduleFreeAdamW(0.1, 0.9, 0.99, weight_decay=0.1, warmup=3)),
        ("schedulefree", "SGDScheduleFree", records.ScheduleFreeSGD(0.1, 0.9, weight_decay=0.1, warmup=3)),
        ("pytorch_optimizer", "AdEMAMix", records.AdEMAMix(0.1, 0.9, 0.99, 0.999, alpha=2.0, warmup=6)),
    ],
)
def test_an_update_is_that_of_its_library(module, name, record):
    library = pytest.importorskip(module)
    parameter = start()
    expected = simulated(UPDATES[record.name], record, parameter.detach())
    optimizer = getattr(library, name)([parameter], **FAMILIES[record.name].torch.arguments(record))
    if hasattr(optimizer, "train"):
        optimizer.train()
    torch.testing.assert_close(trained(optimizer, parameter), expected, rtol=1e-6, atol=1e-9)
