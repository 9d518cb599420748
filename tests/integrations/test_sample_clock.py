"""Optimizers on the sample clock under the real libraries: every step is told its samples."""

import logging
import os

import pytest
import torch
from torch import nn

from rootscale.training.sample_clock import AdamW

os.environ.setdefault("HF_HUB_OFFLINE", "1")


class Told(AdamW):
    """Remembers the samples of its steps, in reference batches."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.told = []

    def _ratios(self, samples):
        self.told += (found := super()._ratios(samples))[:1]
        return found


def test_the_trainer_tells_the_tokens_of_a_step(tmp_path):
    transformers = pytest.importorskip("transformers")
    from rootscale.integrations.transformers import SampleClockMixin

    divided_by = []

    class Trainer(SampleClockMixin, transformers.Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            divided_by.append(int(num_items_in_batch))
            return super().training_step(model, inputs, num_items_in_batch)

    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    net = transformers.GPT2LMHeadModel(config)
    lengths = [8, 3, 5, 2, 7, 8, 4]  # packed or padded: some labels do not count
    rows = [
        {"input_ids": torch.arange(8) % 16, "labels": torch.where(torch.arange(8) < n, torch.arange(8), -100)}
        for n in lengths
    ]
    arguments = transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no", num_train_epochs=1,
        per_device_train_batch_size=1, gradient_accumulation_steps=2, train_sampling_strategy="sequential",
    )  # fmt: skip
    optimizer = Told(net.parameters(), reference_batch=7)
    Trainer(net, arguments, train_dataset=rows, optimizers=(optimizer, None)).train()
    assert [7 * k for k in optimizer.told] == pytest.approx(divided_by[::2])
    assert len(set(optimizer.told)) == 4

    plain = torch.optim.AdamW(net.parameters())
    with pytest.raises(TypeError, match="needs an optimizer on the sample clock, got AdamW"):
        Trainer(net, arguments, train_dataset=rows, optimizers=(plain, None)).train()


@pytest.mark.filterwarnings("ignore")
def test_lightning_tells_the_samples_of_a_step():
    lightning = pytest.importorskip("lightning.pytorch")
    from rootscale.integrations.lightning import SampleClockCallback

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(3, 1)

        def training_step(self, batch, batch_idx):
            return self.net(batch).square().mean()

        def configure_optimizers(self):
            self.made = Told(self.parameters(), reference_batch=4)
            return self.made

    batches = [torch.ones(n, 3) for n in (4, 2, 1, 7, 3)]
    for options, every, told in (
        ({}, 1, [1, 0.5, 0.25, 1.75, 0.75]),
        ({}, 2, [1.5, 2, 0.75]),
        ({"samples": lambda batch: batch.numel()}, 1, [3, 1.5, 0.75, 5.25, 2.25]),
    ):
        module = Module()
        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, barebones=False,
            enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=every,
            callbacks=[SampleClockCallback(**options)],
        )  # fmt: skip
        trainer.fit(module, torch.utils.data.DataLoader(batches, batch_size=None))
        assert module.made.told == told


def test_accelerate_counts_the_samples_of_a_step():
    accelerate = pytest.importorskip("accelerate")
    from accelerate.state import AcceleratorState, GradientState, PartialState

    from rootscale.integrations.accelerate import add_samples

    states = AcceleratorState, GradientState, PartialState
    for state in states:
        state._reset_state()
    try:
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        net = nn.Linear(3, 1)
        bare = Told(net.parameters(), reference_batch=4)
        net, optimizer = accelerator.prepare(net, bare)
        for n in (4, 2, 1, 7):
            with accelerator.accumulate(net):
                accelerator.backward(net(torch.ones(n, 3)).square().mean())
                add_samples(accelerator, optimizer, n)
                optimizer.step()
                optimizer.zero_grad()
        assert bare.told == [1.5, 2]
        with pytest.raises(TypeError, match="optimizer must be on the sample clock, got SGD"):
            add_samples(accelerator, torch.optim.SGD(net.parameters(), lr=0.1), 4)
    finally:
        for state in states:
            state._reset_state()
