"""The YAML of LLaMA-Factory: the arguments of Hugging Face's Trainer, and options that change the optimizer."""

from __future__ import annotations

from dataclasses import replace

from rootscale.integrations.configs.formats.row import Field, Refusal, When
from rootscale.integrations.configs.formats.transformers import TRANSFORMERS

__all__ = ["LLAMAFACTORY"]

_OTHER_OPTIMIZERS = {
    "use_muon": "Muon", "use_galore": "GaLore", "use_apollo": "APOLLO", "use_badam": "BAdam",
    "use_adam_mini": "Adam-mini",
}  # fmt: skip
_OTHER_TRAINERS = (
    "use_mca", "use_megatron_bridge", "use_hyper_parallel", "tensor_model_parallel_size",
    "pipeline_model_parallel_size", "use_distributed_optimizer",
)  # fmt: skip

LLAMAFACTORY = replace(
    TRANSFORMERS,
    name="llamafactory",
    summary="the YAML of LLaMA-Factory",
    syntaxes=("YAML", "JSON", "arguments"),
    markers=("finetuning_type", "stage"),
    also=("per_device_train_batch_size",),
    fields=(*TRANSFORMERS.fields, Field("loraplus_lr_embedding", "eta", 1e-6, when=(When("loraplus_lr_ratio"),))),
    refusals=(
        *TRANSFORMERS.refusals,
        *(
            Refusal(path, f"the run is trained with {name}, for which there is no rule here; switch it off")
            for path, name in _OTHER_OPTIMIZERS.items()
        ),
        *(
            Refusal(
                path,
                "the run is trained by Megatron or another trainer, whose optimizer is not this file's",
                (None, False),
            )
            for path in _OTHER_TRAINERS
        ),
        Refusal(
            "stage",
            "PPO samples its own data, and its batch size says how many at once",
            (None, "pt", "sft", "rm", "dpo", "kto"),
        ),
    ),
    others=(*TRANSFORMERS.others, "loraplus_lr_ratio", "pref_beta", "ppo_epochs", "kto_chosen_weight"),
    left_alone="`num_train_epochs`, `warmup_ratio`, `loraplus_lr_ratio` (no steps)",
)
