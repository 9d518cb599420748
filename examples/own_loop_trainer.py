"""A Hugging Face Trainer of your own in the check: its arguments stay as they are, and its log is compared.

pip install 'rootscale[transformers]'
rootscale check examples/own_loop_trainer.py:train --to 8 --seeds 8
python examples/own_loop_trainer.py
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded

import torch
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from rootscale.integrations.transformers import RunCallback
from rootscale.lab import Here, Judge, Loop, RunLog, check


class Net(torch.nn.Module):
    """A linear regression, as the Trainer wants a model."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(4, 1)
        torch.nn.init.zeros_(self.line.weight)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss."""
        found = self.line(x).squeeze(-1)
        return {"loss": (found - labels).square().mean(), "logits": found}


class Report(TrainerCallback):
    """Hands what the Trainer logs to the check."""

    def __init__(self, log: RunLog, batch_size: int) -> None:
        self.log, self.batch_size = log, batch_size  # a step may be several passes of a smaller batch

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        """Log the evaluation: the same samples at every batch size."""
        if "eval_loss" in logs:
            self.log(samples=state.global_step * self.batch_size, eval_loss=logs["eval_loss"])


def data() -> list[dict[str, torch.Tensor]]:
    """Return 128 samples with much noise, which is where the rule holds from scratch."""
    generator = torch.Generator().manual_seed(0)
    x, noise = torch.randn(128, 4, generator=generator), torch.randn(128, generator=generator)
    return [{"x": row, "labels": 0.2 * row.sum() + one} for row, one in zip(x, noise, strict=True)]


def train(batch_size: int = 2, seed: int = 0, log: RunLog = None) -> None:
    """Make a run: the arguments are those of the base, but for the accumulation."""
    args = TrainingArguments(
        str(log.folder / "out"), per_device_train_batch_size=2, gradient_accumulation_steps=batch_size // 2,
        learning_rate=4e-3, adam_beta1=0.95, max_steps=240, warmup_steps=24, eval_strategy="steps", eval_steps=24,
        per_device_eval_batch_size=128, seed=seed, use_cpu=True, dataloader_pin_memory=False, report_to=[],
        disable_tqdm=True, save_strategy="no", logging_strategy="no",
    )  # fmt: skip
    torch.manual_seed(seed)
    trainer = Trainer(Net(), args, train_dataset=data(), eval_dataset=data(), callbacks=[Report(log, batch_size)])
    trainer.remove_callback(PrinterCallback)
    RunCallback(trainer, tuned_at=2)
    trainer.train()


def main(seeds: int = 8) -> None:
    """Compare B = 2 with B = 8."""
    torch.set_num_threads(1)
    loop = Loop("trainer", train, batch_size=2)
    found = check(loop, [4], seeds=seeds, judge=Judge(tolerance=0.1), execute=Here())
    print(found["B = 8"].comparison)


if __name__ == "__main__":
    main()
