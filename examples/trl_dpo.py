"""TRL's DPOTrainer that goes on with four times its batch size; a tiny GPT-2 and synthetic preferences, some seconds.

pip install 'rootscale[transformers]' trl
python examples/trl_dpo.py

All numbers stay those of a batch size of 4, but for the steps between two updates of the reference model: TRL counts
those in steps of now. The updated reference model is in no checkpoint of TRL: `KeepReference` puts it there.
"""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback
from trl import DPOConfig, DPOTrainer

from rootscale.integrations.transformers import RunCallback

torch.set_num_threads(1)


def tokenizer() -> PreTrainedTokenizerFast:
    """Digits are the words."""
    words = {word: i for i, word in enumerate(["<pad>", "<eos>", *"0123456789"])}
    made = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>")


def model() -> GPT2LMHeadModel:
    """A GPT-2 of one layer."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=12, n_positions=16, n_embd=16, n_layer=1, n_head=2))


def preferences(number: int) -> Dataset:
    """Count up, do not count down."""
    rows = [(i % 5, i % 5 + 3) for i in range(number)]
    return Dataset.from_list(
        [
            {"prompt": f"{low}{low + 1}", "chosen": f"{low + 2}{low + 3}", "rejected": f"{high}{high - 1}"}
            for low, high in rows
        ]
    )


class KeepReference(TrainerCallback):
    """Saves the reference model with every checkpoint."""

    def __init__(self, reference: GPT2LMHeadModel) -> None:
        self.reference = reference

    def on_save(self, args, state, control, **kwargs):
        """Write it into the folder of the checkpoint."""
        torch.save(
            self.reference.state_dict(), Path(args.output_dir, f"checkpoint-{state.global_step}", "reference.pt")
        )


def trainer(folder: Path, reference: GPT2LMHeadModel, accumulation: int) -> DPOTrainer:
    """Return a trainer with the arguments of a batch size of 4."""
    args = DPOConfig(
        str(folder), per_device_train_batch_size=4, gradient_accumulation_steps=accumulation,
        learning_rate=1e-3, adam_beta1=0.95, max_steps=16, logging_steps=8, save_steps=8,
        sync_ref_model=True, ref_model_sync_steps=8 // accumulation, gradient_checkpointing=False,
        use_cpu=True, bf16=False, dataloader_pin_memory=False, report_to=[], disable_tqdm=True,
    )  # fmt: skip
    made = DPOTrainer(
        model(), reference, args, train_dataset=preferences(64), processing_class=tokenizer(),
        callbacks=[KeepReference(reference)],
    )  # fmt: skip
    RunCallback(made, tuned_at=4)
    return made


def main(folder: Path) -> None:
    """Train at batch size 4, then resume the checkpoint at 16."""
    reference = model()
    trainer(folder / "small", reference, 1).train()
    checkpoint = folder / "small" / "checkpoint-8"
    reference.load_state_dict(torch.load(checkpoint / "reference.pt"))
    larger = trainer(folder / "large", reference, 4)
    larger.train(resume_from_checkpoint=str(checkpoint))
    print(f"reference model every {larger.args.ref_model_sync_steps} steps, {larger.state.global_step} steps in all")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
