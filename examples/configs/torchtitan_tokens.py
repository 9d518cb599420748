from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.config import TrainingConfig
from torchtitan.trainer import Trainer


def llama_small() -> Trainer.Config:
    return Trainer.Config(
        optimizer=default_adamw(lr=3e-4, betas=(0.95, 0.98)),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=600),
        training=TrainingConfig(
            num_tokens_per_microbatch_per_dp_rank=2 * 8192,
            num_tokens_per_train_step=524288,
            steps=3000,
            max_norm=1.0,
        ),
        checkpoint=CheckpointManager.Config(interval=500),
    )


def llama_small_float8() -> Trainer.Config:
    config = llama_small()
    config.compile.enable = True
    return config
