"""A Hugging Face Trainer that continues with four times its batch size: a tiny GPT-2, synthetic text, some seconds.

pip install 'rootscale[transformers]'
python examples/transformers_trainer.py
"""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from rootscale.integrations.transformers import (
    RescaleCallback,
    explain_training_arguments,
    resume,
    scale_training_arguments,
)

torch.set_num_threads(1)


def model() -> GPT2LMHeadModel:
    """A GPT-2 of two layers."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=8, n_embd=32, n_layer=2, n_head=2))


def text(number: int) -> list[dict[str, torch.Tensor]]:
    """Sequences in which each token is the one before, plus one or two."""
    steps = torch.randint(1, 3, (number, 8), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row} for row in steps.cumsum(1) % 16]


def main(folder: Path) -> None:
    """Train at batch size 4, then resume the checkpoint at 16."""
    args = TrainingArguments(
        str(folder / "small"), per_device_train_batch_size=4, learning_rate=1e-3, adam_beta1=0.95, weight_decay=0.1,
        max_steps=96, warmup_steps=8, lr_scheduler_type="cosine", logging_steps=16, save_steps=32,
        use_cpu=True, dataloader_pin_memory=False, report_to=[], disable_tqdm=True,
    )  # fmt: skip
    data = text(384)
    Trainer(model(), args, train_dataset=data, callbacks=[RescaleCallback()]).train()

    print(explain_training_arguments(args, to=16))
    larger = scale_training_arguments(args, to=16)
    larger.output_dir = str(folder / "large")
    larger.logging_steps = 4
    trainer = Trainer(model(), larger, train_dataset=data, callbacks=[RescaleCallback(noise_every=1)])
    resume(trainer, folder / "small" / "checkpoint-32")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
