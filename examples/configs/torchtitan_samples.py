from torchtitan.components.lr_scheduler import LRSchedulersContainer
from torchtitan.components.optimizer import OptimizersContainer
from torchtitan.config import TrainingConfig
from torchtitan.trainer import Trainer


def llama_small() -> Trainer.Config:
    return Trainer.Config(
        optimizer=OptimizersContainer.Config(lr=8e-4, beta1=0.95, beta2=0.98, eps=1e-8, weight_decay=0.1),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=200, decay_ratio=0.8),
        training=TrainingConfig(
            local_batch_size=8,
            global_batch_size=64,
            seq_len=2048,
            max_norm=1.0,
            steps=10000,
        ),
    )
