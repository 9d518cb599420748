"""A Hugging Face Trainer that goes on with four times its batch size: a tiny GPT-2, synthetic text, some seconds.

pip install 'rootscale[transformers]'
python examples/transformers_trainer.py
"""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from rootscale.integrations.transformers import RunCallback

torch.set_num_threads(1)


def model() -> GPT2LMHeadModel:
    """A GPT-2 of two layers."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=8, n_embd=32, n_layer=2, n_head=2))


def text(number: int) -> list[dict[str, torch.Tensor]]:
    """Sequences in which each token is the one before, plus one or two."""
    steps = torch.randint(1, 3, (number, 8), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row} for row in steps.cumsum(1) % 16]


def arguments(folder: Path, accumulation: int) -> TrainingArguments:
    """Return the arguments of the script: but for the accumulation, those of a batch size of 4."""
    return TrainingArguments(
        str(folder), per_device_train_batch_size=4, gradient_accumulation_steps=accumulation,
        learning_rate=1e-3, adam_beta1=0.95, weight_decay=0.1, max_steps=96, warmup_steps=8,
        lr_scheduler_type="cosine", logging_steps=16, save_steps=32,
        use_cpu=True, dataloader_pin_memory=False, report_to=[], disable_tqdm=True,
    )  # fmt: skip


def main(folder: Path) -> None:
    """Train at batch size 4, then resume a checkpoint at 16."""
    data = text(384)
    trainer = Trainer(model(), arguments(folder / "small", 1), train_dataset=data)
    RunCallback(trainer, tuned_at=4)
    trainer.train()

    trainer = Trainer(model(), arguments(folder / "large", 4), train_dataset=data)
    callback = RunCallback(trainer, tuned_at=4, noise_every=1)
    trainer.train(resume_from_checkpoint=str(folder / "small" / "checkpoint-32"))
    print(callback.changes)
    print(f"{trainer.state.global_step} steps of 16, {callback.run.samples:.0f} samples")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
