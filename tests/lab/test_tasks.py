import sys
from fractions import Fraction

import pytest
import torch
from torch import nn

from rootscale import Adam, AdamW, Plan, RMSprop
from rootscale.lab import Task, data, tasks
from rootscale.lab.data import CropFlip, Normalise
from rootscale.lab.task import load_task


def obvious_crop_flip(x, uniforms, padding, fill):
    """One image after the other: put it on a larger one, cut, mirror."""
    out = torch.empty_like(x)
    for i, (image, (u0, u1, u2)) in enumerate(zip(x, uniforms.tolist(), strict=True)):
        height, width = image.shape[1:]
        large = torch.tensor(fill)[:, None, None].repeat(1, height + 2 * padding, width + 2 * padding)
        large[:, padding : padding + height, padding : padding + width] = image
        top, left = int(u0 * (2 * padding + 1)), int(u1 * (2 * padding + 1))
        cut = large[:, top : top + height, left : left + width]
        for row in range(height):
            for column in range(width):
                out[i, :, row, column] = cut[:, row, width - 1 - column if u2 < 0.5 else column]
    return out


STATISTICS = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
FILL = (-1.5, 0.25, 3.0)


def images_and_uniforms(count=40, height=6, width=8, channels=3):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, channels, height, width, generator=generator)
    u = torch.rand(count, 3, generator=generator)
    u[:2] = torch.tensor([[0.0, 0.0, 0.0], [1 - 2**-24] * 3])  # the ends of the range
    return x, u


@pytest.mark.parametrize("padding", [0, 1, 4])
def test_crop_and_flip_is_what_a_loop_does(padding):
    x, u = images_and_uniforms()
    fast = CropFlip(padding, FILL)(x, u)
    assert torch.equal(fast, obvious_crop_flip(x, u, padding, FILL))


def test_crop_and_flip_works_for_grey_images():
    x, u = images_and_uniforms(channels=1)
    assert torch.equal(CropFlip(2, (0.5,))(x, u), obvious_crop_flip(x, u, 2, (0.5,)))


def test_crop_and_flip_works_under_vmap_and_with_more_dimensions():
    x, u = images_and_uniforms()
    crop = CropFlip(2, FILL)
    expected = crop(x, u).view(4, 10, 3, 6, 8)
    x, u = x.view(4, 10, 3, 6, 8), u.view(4, 10, 3)
    assert torch.equal(torch.func.vmap(crop)(x, u), expected)
    assert torch.equal(crop(x, u), expected)


def test_crop_and_flip_leaves_its_input_alone_and_gives_channels_last():
    x, u = images_and_uniforms()
    before = x.clone()
    out = CropFlip(2, FILL)(x, u)
    assert torch.equal(x, before)
    assert out.is_contiguous(memory_format=torch.channels_last)


def test_preparing_and_augmenting_never_wait_for_the_device():
    x = torch.empty(4, 3, 8, 8, dtype=torch.uint8, device="meta")  # has no values: whoever asks for one fails
    out = CropFlip(2, FILL)(Normalise(*STATISTICS)(x), torch.empty(4, 3, device="meta"))
    assert out.shape == (4, 3, 8, 8)


def test_crops_and_flips_are_uniform():
    x = torch.arange(25.0).view(1, 1, 5, 5).expand(9000, 1, 5, 5)
    u = torch.rand(9000, 3, generator=torch.Generator().manual_seed(0))
    middle = CropFlip(1, (-1.0,))(x, u)[:, 0, 2, 2].long()  # tells which of the 3 x 3 crops it was
    counts = middle.bincount(minlength=25).view(5, 5)[1:4, 1:4]
    assert counts.sum() == 9000
    assert (counts - 1000).abs().max() < 4 * (1000 * 8 / 9) ** 0.5
    ends = CropFlip(0, (-1.0,))(x, u)[:, 0, 0, 0]
    assert abs((ends == 4).sum().item() - 4500) < 4 * 2250**0.5


def test_normalised_images_have_mean_0_and_deviation_1():
    x = data.patterns(train=64, size=8).train.inputs
    normalise = Normalise.of(x)
    out = normalise(x)
    assert out.dtype == torch.float32
    exact = x.double() / 255
    for channel in range(3):
        assert normalise.mean[channel] == pytest.approx(exact[:, channel].mean().item(), rel=1e-12)
        assert normalise.std[channel] == pytest.approx(exact[:, channel].std(correction=0).item(), rel=1e-12)
    torch.testing.assert_close(out.mean((0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-5)
    torch.testing.assert_close(out.std((0, 2, 3), correction=0), torch.ones(3), rtol=1e-5, atol=0)
    assert Normalise.of(torch.zeros(2, 1, 3, 3, dtype=torch.uint8))(x[:2, :1]).isfinite().all()


def test_the_border_is_exactly_what_black_becomes():
    normalise = Normalise(*STATISTICS)
    black = normalise(torch.zeros(1, 3, 2, 2, dtype=torch.uint8))
    corner = CropFlip(2, normalise.black)(black + 1, torch.zeros(1, 3))
    assert torch.equal(corner, black)


def train(task, steps=None, seed=0):
    """The obvious loop; the first and the last accuracy on the test data."""
    torch.manual_seed(seed)
    model, plan = task.model(), task.plan
    trained = [p for p in model.parameters() if p.requires_grad]
    record = plan.optimizer
    if task.optimizer is not None:
        optimizer = task.optimizer(trained, record)
    elif isinstance(record, RMSprop):
        optimizer = torch.optim.RMSprop(trained, lr=record.eta, alpha=record.beta, eps=record.eps)
    else:
        optimizer = torch.optim.Adam(trained, lr=record.eta, betas=(record.beta1, record.beta2), eps=record.eps)

    def prepared(x):
        return x if task.prepare is None else task.prepare(x)

    def test():
        model.eval()
        with torch.no_grad():
            x, y = task.test[:]
            value = task.metrics["accuracy"](model(prepared(x)), y).mean().item()
        model.train()
        return value

    first = test()
    for _ in range(int(plan.total_steps) if steps is None else steps):
        x, y = task.train[torch.randint(len(task.train), (int(plan.batch_size.total),))]
        x = prepared(x)
        if task.augment is not None:
            x = task.augment(x, torch.rand(len(x), task.draws))
        losses = task.loss(model(x), y)
        assert losses.shape == y.shape
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
    return first, test()


def test_generated_images_are_learned_and_the_same_every_time():
    task = tasks.generated(data.patterns(size=16))
    first, last = train(task)
    assert first < 0.3
    assert last > 0.8
    again = tasks.generated(data.patterns(size=16))
    assert torch.equal(task.train.inputs, again.train.inputs)
    assert not torch.equal(task.train.inputs, tasks.generated(data.patterns(size=16, seed=1)).train.inputs)
    assert task.train.inputs.shape == (2048, 3, 16, 16)
    assert task.train.inputs.dtype == torch.uint8
    assert task.test.targets.bincount(minlength=10).min() > 20


def test_digits_has_the_design_plan_and_is_learned():
    task = tasks.digits()
    assert task.plan == Plan(Adam(eta=5e-4, beta1=0.99, beta2=0.999), batch_size=4, steps=13_000)
    assert (len(task.train), len(task.test)) == (1437, 360)
    assert task.train.inputs.shape == (1437, 64)
    assert task.train.inputs.max() == 1
    both = torch.cat([task.train.inputs, task.test.inputs])
    assert len(both.unique(dim=0)) == 1797  # no image twice
    assert [tuple(p.shape) for p in task.model().parameters()] == [(32, 64), (32,), (10, 32), (10,)]
    first, last = train(task, steps=3000)
    assert first < 0.3
    assert last > 0.75


def test_digits_has_its_options():
    task = tasks.digits(batchnorm=True)
    adam = Adam(eta=1e-3, beta1=0.98, beta2=0.998)
    assert task.plan == Plan(adam, batch_size=32, steps=1625, batchnorm_momentum=0.02)
    assert [m.momentum for m in task.model().modules() if isinstance(m, nn.BatchNorm1d)] == [0.02]
    assert tasks.digits(ema=0.999).plan.ema == 0.999
    assert tasks.digits(weight_decay=0.1).plan.optimizer == AdamW(5e-4, 0.99, 0.999, weight_decay=0.1)
    assert tasks.digits(warmup=8000).plan.schedule.warmup == 2000
    assert tasks.digits(samples=4001).plan.total_steps == Fraction(4001, 4)
    assert tasks.digits(ema=0.99, warmup=4).name == "digits-ema-warmup"


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ValueError, match=r"scikit-learn, which is not installed; pip install 'rootscale\[lab\]'"):
        tasks.digits()


def test_mnist_is_made_from_its_files(tmp_path):
    for split in ("train", "t10k"):
        head = bytes([0, 0, 8, 3, 0, 0, 0, 5, 0, 0, 0, 28, 0, 0, 0, 28])
        (tmp_path / f"{split}-images-idx3-ubyte").write_bytes(head + bytes(5 * 28 * 28))
        (tmp_path / f"{split}-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 5, *range(5)]))
    task = tasks.mnist(tmp_path, epochs=64)
    assert task.plan.total_steps == 64 * 5 // 32
    assert task.model()(task.prepare(task.train.inputs)).shape == (5, 10)
    assert task.augment is None
    assert task.draws == 0


def test_a_folder_of_images_makes_a_task(tmp_path):
    from PIL import Image

    for part in ("train", "test"):
        for name in ("blue", "red"):
            (tmp_path / "colours" / part / name).mkdir(parents=True)
            for i in range(3):
                Image.new("RGB", (16, 20 + i), name).save(tmp_path / "colours" / part / name / f"{i}.png")
    task = tasks.image_folder(tmp_path / "colours", size=16, epochs=10)
    assert task.name == "colours"
    assert task.plan.samples == 10 * 6
    assert task.model()(task.prepare(task.train.inputs)).shape == (6, 2)
    assert task.augment.padding == 2
    plan = Plan(Adam(eta=1e-3), batch_size=2, steps=30)
    assert tasks.image_folder(tmp_path / "colours", size=16, plan=plan).plan == plan


def test_the_command_line_finds_ready_made_tasks():
    task = load_task("rootscale.lab.tasks:digits")
    assert isinstance(task, Task)
    assert task.name == "digits"
