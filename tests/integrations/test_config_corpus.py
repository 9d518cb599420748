"""A corpus of small configurations in the shape of each tool's own, converted to four times the batch size.

Each case says what every value becomes, by hand from the table of units, or why it is refused. What the tool takes if
a value is not given counts too: it is written where the rule changes it.
"""

import re
from collections import Counter

import pytest

from rootscale.integrations.configs import FORMATS, convert_text
from rootscale.integrations.configs.converter import read_document
from rootscale.rules import RULES


def beta1(value):
    return pytest.approx(float(RULES["sqrt"].convert("beta1", value, 4)), rel=1e-9)


def beta2(value):
    return pytest.approx(float(RULES["sqrt"].convert("beta2", value, 4)), rel=1e-9)


#: AdamW's betas of 0.9 and 0.999 and its eps of 1e-8, as most tools have them by default.
def defaults(table="adam_", one="beta1", two="beta2", eps="epsilon"):
    return {f"{table}{one}": beta1(0.9), f"{table}{two}": beta2(0.999), f"{table}{eps}": 5e-9}


_AXOLOTL = "base_model: a/b\nsequence_len: 512\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\nnum_epochs: 1\n"
_FACTORY = (
    "model_name_or_path: a/b\nstage: sft\nfinetuning_type: lora\nper_device_train_batch_size: 1\n"
    "gradient_accumulation_steps: 8\nlearning_rate: 1.0e-4\nlogging_steps: 20\nsave_steps: 400\n"
)
_FACTORY_VALUES = {
    "gradient_accumulation_steps": 32, "learning_rate": 2e-4, **defaults(), "max_grad_norm": 0.5, "logging_steps": 5,
    "save_steps": 100,
}  # fmt: skip
_LITGPT = (
    "train:\n  global_batch_size: 64\n  micro_batch_size: 4\n  {train}\noptimizer:\n  class_path: {cls}\n"
    "  init_args:\n    lr: 2e-4\n    {args}\n"
)
_LITGPT_BETAS = {
    "train.global_batch_size": 256, "optimizer.init_args.lr": 4e-4, **defaults("optimizer.init_args.", "betas.0", "betas.1", "eps"),
}  # fmt: skip
_LIGHTNING = (
    "trainer:\n  max_epochs: 9\ndata:\n  batch_size: 32\noptimizer:\n  class_path: torch.optim.{cls}\n"
    "  init_args:\n    lr: 0.1\n{more}"
)
_NEMO = (
    "model:\n  train_ds:\n    batch_size: 8\n  optim:\n    name: {name}\n    lr: 1e-3\n    betas: [0.98, 0.999]\n"
    "    {more}\ntrainer:\n  max_epochs: 3\n"
)
_NEMO_VALUES = {
    "trainer.accumulate_grad_batches": 4, "model.optim.lr": 2e-3, "model.optim.betas.0": 0.92, "model.optim.betas.1": 0.996,
    "model.optim.eps": 5e-9,
}  # fmt: skip
_OLMO = (
    "global_train_batch_size: 64\ndevice_train_microbatch_size: 4\noptimizer:\n  name: adamw\n  learning_rate: 4e-4\n"
    "  betas: [0.95, 0.98]\n"
)
_OLMO_VALUES = {
    "global_train_batch_size": 256, "optimizer.learning_rate": 8e-4, "optimizer.betas.0": 0.8, "optimizer.betas.1": 0.92,
    "optimizer.eps": 5e-6, "optimizer.weight_decay": 0.02,
}  # fmt: skip
_CORE = (
    "data_loader: {{global_batch_size: 65536}}\ntrain_module:\n  rank_microbatch_size: 4096\n  optim:\n"
    "    {name}\n    lr: 1e-3\n    betas: [0.95, 0.98]\n    weight_decay: 0.1\n  scheduler:\n    {schedule}\n"
)
_CORE_VALUES = {
    "data_loader.global_batch_size": 262144, "train_module.optim.lr": 2e-3, "train_module.optim.betas.0": 0.8,
    "train_module.optim.betas.1": 0.92, "train_module.optim.eps": 5e-9, "train_module.optim.weight_decay": 0.2,
}  # fmt: skip
_NANO = "batch_size = 16\ngradient_accumulation_steps = 2 * 4\nblock_size = 64\nbeta1 = 0.95\nbeta2 = 0.98\n"
_NANO_VALUES = {
    "gradient_accumulation_steps": 32, "learning_rate": 1.2e-3, "beta1": 0.8, "beta2": 0.92, "weight_decay": 0.2,
    "grad_clip": 0.5, "max_iters": 150_000, "eval_interval": 500,
}  # fmt: skip
_NANO_DECAY = {"min_lr": 1.2e-4, "warmup_iters": 500, "lr_decay_iters": 150_000}
_TITAN = "[training]\nlocal_batch_size = 2\nglobal_batch_size = 64\n[optimizer]\nlr = 1e-3\nbeta1 = 0.95\nbeta2 = 0.98\n{more}\n"
_TITAN_VALUES = {
    "training.global_batch_size": 256, "optimizer.lr": 2e-3, "optimizer.beta1": 0.8, "optimizer.beta2": 0.92,
    "optimizer.eps": 5e-9, "optimizer.weight_decay": 0.2, "training.max_norm": 0.5, "training.steps": 2500,
    "lr_scheduler.warmup_steps": 50,
}  # fmt: skip
_PYTHON = (
    "def small() -> Trainer.Config:\n    return Trainer.Config(\n        optimizer={made},\n"
    "        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=200),\n"
    "        training=TrainingConfig(num_tokens_per_train_step=8 * 2048, steps=1000),\n    )\n"
)
_PYTHON_VALUES = {
    "training.num_tokens_per_train_step": 65536, "optimizer.lr": 1.6e-3, "optimizer.betas.0": 0.8,
    "optimizer.betas.1": 0.92, "optimizer.eps": 5e-9, "optimizer.weight_decay": 0.2, "training.max_norm": 0.5,
    "training.steps": 250, "lr_scheduler.warmup_steps": 50,
}  # fmt: skip
_HF = "torchrun --nproc_per_node 8 run_clm.py --per_device_train_batch_size 4 --learning_rate 1e-4 --logging_steps 20 --save_steps 400"
_HF_VALUES = {
    "gradient_accumulation_steps": 4, "learning_rate": 2e-4, **defaults(), "max_grad_norm": 0.5, "logging_steps": 5,
    "save_steps": 100,
}  # fmt: skip
_TIMM = "./distributed_train.sh 8 /data --model vit -b 64 --opt adamw --opt-betas 0.95 0.98 --lr 1e-3 --weight-decay .05 {more}"
_TIMM_VALUES = {
    "grad_accum_steps": 4, "lr": 2e-3, "opt_betas.0": 0.8, "opt_betas.1": 0.92, "opt_eps": 5e-9, "weight_decay": 0.1,
    "warmup_lr": 2e-5,
}  # fmt: skip
_MEGATRON = (
    "python pretrain_gpt.py --micro-batch-size 4 --lr 1e-3 --adam-beta1 0.95 --adam-beta2 0.98 --train-samples 1000000 "
)
_MEGATRON_VALUES = {
    "lr": 2e-3, "adam_beta1": 0.8, "adam_beta2": 0.92, "adam_eps": 5e-9, "weight_decay": 0.02, "clip_grad": 0.5
}  # fmt: skip
_ARGS = "optimizer.init_args"

#: By tool: the name of a case, its text, and what it becomes (every value) or the reason of its refusal.
CORPUS = {
    "litgpt": [
        (
            "pre-training takes the defaults of its command",
            "model_name: pythia-14m\n" + _LITGPT.format(cls="torch.optim.AdamW", train="max_tokens: 1000", args="weight_decay: 0.1"),
            {**_LITGPT_BETAS, f"{_ARGS}.weight_decay": 0.2, "train.min_lr": 8e-5, "train.max_norm": 0.5, "train.lr_warmup_steps": 500},
        ),
        (
            "a fine-tuning neither clips nor has a lowest learning rate",
            "checkpoint_dir: a/b\n" + _LITGPT.format(cls="torch.optim.AdamW", train="min_lr: 6e-5", args="weight_decay: 0.0"),
            {**_LITGPT_BETAS, "train.lr_warmup_steps": 25},
        ),
        (
            "what is null is switched off",
            _LITGPT.format(cls="torch.optim.Adam", train="max_norm:\n  lr_warmup_steps:\n  min_lr: 1e-5", args="betas: [0.98, 0.999]"),
            {**_LITGPT_BETAS, f"{_ARGS}.betas.0": 0.92, f"{_ARGS}.betas.1": 0.996, "train.min_lr": 2e-5},
        ),
        (
            "a paged optimizer is AdamW",
            "checkpoint_dir: a/b\n" + _LITGPT.format(cls="bitsandbytes.optim.PagedAdamW8bit", train="lr_warmup_steps: 8", args="weight_decay: 0.1"),
            {**_LITGPT_BETAS, f"{_ARGS}.weight_decay": 0.2, "train.lr_warmup_steps": 2},
        ),
        ("an optimizer by name only", "train: {global_batch_size: 8}\noptimizer: AdamW\n", "class_path is not in the file"),
        ("GaLore", _LITGPT.format(cls="galore_torch.GaLoreAdamW", train="max_steps: 4", args="rank: 8"), "GaLoreAdamW.*no rule"),
        ("an option of the class", _LITGPT.format(cls="torch.optim.AdamW", train="max_steps: 4", args="lr_scale: 3"), "lr_scale=3: this option may"),
    ],
    "axolotl": [
        (
            "8 bits",
            _AXOLOTL + "optimizer: adamw_bnb_8bit\nlearning_rate: 0.0002\nwarmup_ratio: 0.1\nlr_scheduler: cosine\nlogging_steps: 4\n",
            {"gradient_accumulation_steps": 16, "learning_rate": 4e-4, **defaults(), "max_grad_norm": 0.5, "logging_steps": 1},
        ),
        (
            "paged, with a warm-up in steps",
            _AXOLOTL + "optimizer: paged_adamw_32bit\nlearning_rate: 2e-5\nadam_beta2: 0.98\nweight_decay: 0.1\nwarmup_steps: 100\nmax_steps: 400\n",
            {"gradient_accumulation_steps": 16, "learning_rate": 4e-5, "adam_beta1": beta1(0.9), "adam_beta2": 0.92, "adam_epsilon": 5e-9,
             "weight_decay": 0.2, "max_grad_norm": 0.5, "warmup_steps": 25, "max_steps": 100},
        ),
        (
            "DPO's beta is no optimizer's",
            _AXOLOTL + "rl: dpo\nrl_beta: 0.5\nlearning_rate: 1e-5\nwarmup_steps: 0\n",
            {"gradient_accumulation_steps": 16, "learning_rate": 2e-5, **defaults(), "max_grad_norm": 0.5},
        ),
        (
            "LoRA+ has a learning rate of the embeddings",
            _AXOLOTL + "loraplus_lr_ratio: 16\nlearning_rate: 1e-5\nwarmup_ratio: 0.1\n",
            {"gradient_accumulation_steps": 16, "learning_rate": 2e-5, **defaults(), "max_grad_norm": 0.5, "loraplus_lr_embedding": 2e-6},
        ),
        ("Muon", _AXOLOTL + "optimizer: muon\nlearning_rate: 1e-3\nwarmup_ratio: 0.1\n", "optimizer='muon': there is no rule"),
        ("no warm-up", _AXOLOTL + "learning_rate: 1e-3\n", "warmup_steps is not in the file, and axolotl's default is 3 %"),
        ("GRPO", _AXOLOTL + "rl: grpo\nlearning_rate: 1e-3\nwarmup_ratio: 0.1\n", "how many answers are sampled at once"),
        ("a misspelled eps", _AXOLOTL + "adam_eps: 1e-6\nlearning_rate: 1e-3\nwarmup_ratio: 0.1\n", "adam_eps=1e-06: this option may"),
        ("LISA", _AXOLOTL + "lisa_n_layers: 4\nlearning_rate: 1e-3\nwarmup_ratio: 0.1\n", "lisa_n_layers=4: this option may"),
        ("groups", _AXOLOTL + "lr_groups:\n  - {name: a, lr: 1e-3}\nlearning_rate: 1e-3\nwarmup_ratio: 0.1\n", "lr_groups"),
        ("grokfast", _AXOLOTL + "plugins: [axolotl.integrations.grokfast.GrokfastPlugin]\nlearning_rate: 1e-3\nwarmup_ratio: 0.1\n", "filters the gradients"),
    ],
    "llamafactory": [
        ("LoRA", _FACTORY + "warmup_ratio: 0.1\n", _FACTORY_VALUES),
        ("paged", _FACTORY + "optim: paged_adamw_8bit\n", _FACTORY_VALUES),
        ("LoRA+", _FACTORY + "loraplus_lr_ratio: 16.0\n", {**_FACTORY_VALUES, "loraplus_lr_embedding": 2e-6}),
        ("DPO", _FACTORY.replace("sft", "dpo") + "pref_beta: 0.1\n", _FACTORY_VALUES),
        *(
            (name, f"{_FACTORY}{name}: true\n", f"{name}=True: the run is trained with")
            for name in ("use_muon", "use_galore", "use_apollo", "use_badam", "use_adam_mini")
        ),
        ("off", _FACTORY + "use_muon: false\nuse_galore: false\n", _FACTORY_VALUES),
        ("Megatron", _FACTORY + "tensor_model_parallel_size: 4\n", "trained by Megatron or another trainer"),
        ("PPO", _FACTORY.replace("sft", "ppo"), "PPO samples its own data"),
        ("an option of GaLore", _FACTORY + "galore_rank: 64\n", "galore_rank=64: this option may"),
    ],
    "transformers": [
        ("a script", _HF, _HF_VALUES),
        ("a script over several lines", _HF.replace(" --", " \\\n    --") + " --bf16 True --optim adamw_8bit", _HF_VALUES),
        ("a variable with a default", "LR=${LR:-1e-4}\n" + _HF.replace("1e-4", "$LR"), _HF_VALUES),
        ("a default at the option", _HF.replace("1e-4", "${LR:-1e-4}"), _HF_VALUES),
        ("a target of TRL", "per_device_train_batch_size: 4\nlearning_rate: 1e-4\nlogging_steps: 20\nsave_steps: 400\nsync_ref_model: true\nbeta: 0.1\n",
         {**_HF_VALUES, "ref_model_sync_steps": 128}),
        ("no Trainer", _HF.replace("run_clm", "run_clm_no_trainer"), "run_clm_no_trainer.py: a script without a Trainer"),
        ("an option of another script", _HF + " --num_warmup_steps 100", "num_warmup_steps=100: this option may"),
        ("GaLore", _HF + " --optim galore_adamw", "optim='galore_adamw': there is no rule"),
    ],
    "timm": [
        ("a script", _TIMM.format(more="--amp --epochs 300"), _TIMM_VALUES),
        ("a clip and an average", _TIMM.format(more="--clip-grad 1.0 --model-ema --model-ema-decay 0.99"), {**_TIMM_VALUES, "clip_grad": 0.5, "model_ema_decay": pytest.approx(0.99**4)}),
        ("another script with these options", _TIMM.format(more="").replace("./distributed_train.sh 8", "python main.py"), "only train.py is known"),
        ("an option of such a script", _TIMM.format(more="--update_freq 4"), "update_freq is of "),
        ("LAMB", _TIMM.format(more="").replace("adamw", "lamb"), "opt='lamb': there is no rule"),
    ],
    "megatron": [
        ("iterations", _MEGATRON + "--global-batch-size 64 --lr-warmup-fraction .01", {**_MEGATRON_VALUES, "global_batch_size": 256}),
        (
            "a ramp keeps its samples",
            _MEGATRON + "--global-batch-size 64 --rampup-batch-size 16 8 300000",
            {**_MEGATRON_VALUES, "global_batch_size": 256, "rampup_batch_size.0": 64, "rampup_batch_size.1": 32},
        ),
        (
            "a schedule of batch sizes",
            _MEGATRON + '--step-batch-size-schedule "0:16 2.4B:32 4.8B:64"',
            {**_MEGATRON_VALUES, **{f"step_batch_size_schedule.{i}": 4 * size for i, size in enumerate((16, 32, 64))}},
        ),
        (
            "a schedule in YAML",
            'ARGS:\n  --step-batch-size-schedule: "0:32 200B:64"\n  --micro-batch-size: 4\n  --lr: 1e-3\n  --adam-beta1: 0.95\n'
            "  --adam-beta2: 0.98\n  --train-samples: 1000\n  --lr-decay-style: cosine\n",
            {**_MEGATRON_VALUES, "step_batch_size_schedule.0": 128, "step_batch_size_schedule.1": 256},
        ),
        ("a default in the script", "GBS=${GBS:-64}\n" + _MEGATRON + "--global-batch-size $GBS", {**_MEGATRON_VALUES, "global_batch_size": 256}),
        ("a default from an argument", "GBS=${1:-64}\n" + _MEGATRON + "--global-batch-size ${GBS}", {**_MEGATRON_VALUES, "global_batch_size": 256}),
        ("Muon", _MEGATRON + "--global-batch-size 64 --optimizer muon", "optimizer='muon': there is no rule"),
        ("an option of Muon", _MEGATRON + "--global-batch-size 64 --muon-momentum 0.9", "muon_momentum=0.9: this option may"),
        ("litgpt's names in a flat file", "global_batch_size: 64\nlr: 1e-3\ntrain_iters: 9\nbetas: [0.9, 0.95]\n", "looks like megatron, but betas.0 is of"),
    ],
    "lightning": [
        ("SGD", _LIGHTNING.format(cls="SGD", more="    momentum: 0.9\n"), {"trainer.accumulate_grad_batches": 4, f"{_ARGS}.lr": 0.4}),
        (
            "AdamW with a plateau",
            _LIGHTNING.format(cls="AdamW", more="    betas: [0.98, 0.999]\nlr_scheduler:\n  class_path: lightning.pytorch.cli.ReduceLROnPlateau\n  init_args: {monitor: val}\n"),
            {"trainer.accumulate_grad_batches": 4, f"{_ARGS}.lr": 0.2, f"{_ARGS}.betas.0": 0.92, f"{_ARGS}.betas.1": 0.996, f"{_ARGS}.eps": 5e-9,
             f"{_ARGS}.weight_decay": 0.02, "lr_scheduler.init_args.eps": 2e-8},
        ),
        ("one cycle", _LIGHTNING.format(cls="AdamW", more="lr_scheduler:\n  class_path: torch.optim.lr_scheduler.OneCycleLR\n"), "cycles beta1 by itself"),
        ("an optimizer of its own", _LIGHTNING.format(cls="AdamW", more="").replace("torch.optim.AdamW", "my.Adam"), "'my.Adam': there is no rule"),
        ("centered", _LIGHTNING.format(cls="RMSprop", more="    centered: true\n"), "RMSprop with momentum or centered"),
        ("decoupled by an option", _LIGHTNING.format(cls="Adam", more="    decoupled_weight_decay: true\n"), "name AdamW instead"),
    ],
    "nemo": [
        ("AdamW", _NEMO.format(name="adamw", more="weight_decay: 0.1"), {**_NEMO_VALUES, "model.optim.weight_decay": 0.2}),
        ("fused", _NEMO.format(name="fused_adam", more="sched: {name: CosineAnnealing, warmup_steps: 40, min_lr: 1e-5}"),
         {**_NEMO_VALUES, "model.optim.sched.warmup_steps": 10, "model.optim.sched.min_lr": 2e-5}),
        ("a target", _NEMO.format(name="x", more="weight_decay: 0.1").replace("name: x", "_target_: torch.optim.Adam"), _NEMO_VALUES),
        ("Noam keeps its factor", _NEMO.format(name="adam", more="sched: {name: NoamAnnealing, d_model: 256, warmup_steps: 40}"),
         {**{k: v for k, v in _NEMO_VALUES.items() if k != "model.optim.lr"}, "model.optim.sched.warmup_steps": 10}),
        ("an average", _NEMO.format(name="adam", more="eps: 1e-8") + "exp_manager:\n  ema: {enable: true, decay: 0.999}\n",
         {**_NEMO_VALUES, "exp_manager.ema.decay": pytest.approx(0.999**4)}),
        ("NovoGrad", _NEMO.format(name="novograd", more="eps: 1e-8"), "'novograd': there is no rule"),
        ("a gamma", _NEMO.format(name="adam", more="sched: {name: ExponentialLR, gamma: 0.9}"), "a factor for each step or epoch"),
        ("an unknown option of a schedule", _NEMO.format(name="adam", more="sched: {name: CosineAnnealing, stairs: 3}"), "sched.stairs: its unit is not known"),
        ("several optimizers", _NEMO.format(name="adam", more="eps: 1e-8\n  optim_discriminator: {lr: 1e-3}"), "several optimizers"),
        ("seconds", _NEMO.format(name="adam", more="eps: 1e-8").replace("batch_size: 8", "batch_size: 8\n    batch_duration: 300"), "seconds of audio"),
        ("an interpolation", _NEMO.format(name="adam", more="eps: 1e-8").replace("lr: 1e-3", "lr: ${lr}"), r"lr must be a number, got '\$\{lr\}'"),
    ],
    "nemo-megatron": [
        (
            "a ramp",
            "model:\n  global_batch_size: 64\n  micro_batch_size: 4\n  rampup_batch_size: [16, 16, 5000]\n  optim: {name: distributed_fused_adam, lr: 1e-3, betas: [0.95, 0.98]}\n"
            "trainer: {max_steps: 1000, val_check_interval: 200, gradient_clip_val: 1.0}\n",
            {"model.global_batch_size": 256, "model.rampup_batch_size.0": 64, "model.rampup_batch_size.1": 64, "model.optim.lr": 2e-3,
             "model.optim.betas.0": 0.8, "model.optim.betas.1": 0.92, "model.optim.eps": 5e-9, "trainer.max_steps": 250,
             "trainer.val_check_interval": 50, "trainer.gradient_clip_val": 0.5},
        ),
    ],
    "hydra": [
        ("Adam", "data: {batch_size: 8}\nmodel:\n  optimizer: {_target_: torch.optim.Adam, _partial_: true, lr: 1e-3, betas: [0.98, 0.999]}\ntrainer: {max_epochs: 3}\n",
         {"trainer.accumulate_grad_batches": 4, "model.optimizer.lr": 2e-3, "model.optimizer.betas.0": 0.92, "model.optimizer.betas.1": 0.996, "model.optimizer.eps": 5e-9}),
        ("another class", "data: {batch_size: 8}\nmodel:\n  optimizer: {_target_: my.Adam, lr: 1e-3}\ntrainer: {max_epochs: 3}\n", "'my.Adam': there is no rule"),
        ("a schedule", "data: {batch_size: 8}\nmodel:\n  optimizer: {_target_: torch.optim.Adam, lr: 1e-3}\n  scheduler: {_target_: torch.optim.lr_scheduler.StepLR}\ntrainer: {max_epochs: 3}\n",
         "this schedule's clock is not known"),
    ],
    "olmo": [
        ("steps", _OLMO + "scheduler: {name: cosine_with_warmup, t_warmup: 400}\nmax_duration: 8000\n", {**_OLMO_VALUES, "scheduler.t_warmup": 100, "max_duration": 2000}),
        ("tokens", _OLMO + "scheduler: {name: linear_with_warmup, units: tokens, t_warmup: 4000}\nmax_duration: 5e12T\nmax_grad_norm: 1.0\n", {**_OLMO_VALUES, "max_grad_norm": 0.5}),
        ("defaults", _OLMO + "max_duration: 1ep\nscheduler: {alpha_f: 0.1}\n", {**_OLMO_VALUES, "scheduler.t_warmup": 25}),
        ("Lion", _OLMO.replace("adamw", "lionw"), "'lionw': there is no rule"),
        ("a clip against averages", _OLMO + "max_grad_norm_ratio: 2.0\n", "an average of past norms"),
    ],
    "olmo-core": [
        ("a class", _CORE.format(name="_CLASS_: olmo_core.optim.AdamWConfig", schedule="_CLASS_: olmo_core.optim.CosWithWarmup\n    warmup: 400"), {**_CORE_VALUES, "train_module.scheduler.warmup": 100}),
        ("a type", _CORE.format(name="type: skip_step_adamw", schedule="type: wsd\n    warmup_fraction: 0.1\n    units: tokens"), _CORE_VALUES),
        ("tokens", _CORE.format(name="type: adamw", schedule="type: wsd\n    units: tokens\n    warmup: 4000\n    decay: 8000"), _CORE_VALUES),
        ("Muon", _CORE.format(name="_CLASS_: olmo_core.optim.muon.MuonConfig", schedule="type: constant"), "MuonConfig': there is no rule"),
        ("groups", _CORE.format(name="type: adamw\n    group_overrides: [{params: [a], opts: {lr: 1e-3}}]", schedule="type: constant"), "group_overrides"),
        ("several schedules", _CORE.format(name="type: adamw", schedule="type: sequential\n    schedulers: [{type: constant}]"), "schedulers|clock is not known"),
    ],
    "nanogpt": [
        ("defaults", _NANO, {**_NANO_VALUES, **_NANO_DECAY}),
        ("a name of another value", _NANO + "max_iters = 4000\nlr_decay_iters = max_iters\n", {**_NANO_VALUES, **_NANO_DECAY, "max_iters": 1000, "lr_decay_iters": 1000}),
        ("constant", _NANO + "decay_lr = False\n", _NANO_VALUES),
        ("nothing is executed", _NANO + "import os\nout_dir = os.environ['NOWHERE'] + str(1 / 0)\n", {**_NANO_VALUES, **_NANO_DECAY}),
        ("an expression", _NANO + "max_iters = int(3e5)\n", r"max_iters must be a number, got 'int\(300000.0\)'"),
        ("a condition", _NANO + "if True:\n    learning_rate = 1e-3\n", r"learning_rate must be a number, got '\(set in line 7\)'"),
        ("an argument without a name", _NANO + "learning_rate = min(1e-3, 1)\n", r"learning_rate must be a number, got 'min\(0.001, 1\)'"),
        ("twice", _NANO + "max_iters = 10\nmax_iters = 20\n", "max_iters is in the file more than once"),
        ("an unknown option", _NANO + "muon_lr = 1e-3\n", "muon_lr=0.001: this option may"),
    ],
    "torchtitan": [
        ("TOML", _TITAN.format(more='name = "AdamW"'), _TITAN_VALUES),
        ("foreach", _TITAN.format(more='implementation = "foreach"'), _TITAN_VALUES),
        ("the older form", "[training]\nbatch_size = 8\nwarmup_steps = 200\n[optimizer]\nlr = 1e-3\n", "has the betas 0.9 and 0.95 .* in its code"),
        ("Muon", _TITAN.format(more='name = "Muon"'), "'Muon': there is no rule"),
        ("an option of Muon", _TITAN.format(more="mu = 0.95"), "optimizer.mu=0.95: this option may"),
    ],
    "torchtitan-tokens": [
        ("a function", _PYTHON.format(made="default_adamw(lr=8e-4, betas=(0.95, 0.98))"), _PYTHON_VALUES),
        ("several groups", _PYTHON.format(made="OptimizersContainer.Config(param_groups=[a, b])"), "several groups"),
        ("arguments without names", _PYTHON.format(made="default_adamw(3e-4)"), "optimizer is called with arguments that have no names"),
        ("arguments from elsewhere", _PYTHON.format(made="default_adamw(lr=3e-4, **more)"), "optimizer is called with arguments that have no names"),
        ("an optimizer of its own", _PYTHON.format(made="mine(lr=1e-3)"), "'mine': there is no rule"),
        ("two functions", _PYTHON.format(made="default_adamw()") + _PYTHON.format(made="default_adamw()").replace("small", "large"), "--section names one of small, large"),
    ],
    "torchtitan-python": [
        (
            "a function",
            _PYTHON.format(made="OptimizersContainer.Config(lr=8e-4, beta1=0.95, beta2=0.98)").replace("num_tokens_per_train_step=8 * 2048", "local_batch_size=2, global_batch_size=8"),
            {"training.global_batch_size": 32, "optimizer.lr": 1.6e-3, "optimizer.beta1": 0.8, "optimizer.beta2": 0.92, "optimizer.eps": 5e-9,
             "optimizer.weight_decay": 0.2, "training.max_norm": 0.5, "training.steps": 250, "lr_scheduler.warmup_steps": 50},
        ),
    ],
    "deepspeed": [
        ("an option that is not known", '{"train_batch_size": 64, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "cautious": true}}}', "cautious=True: this option may"),
    ],
}  # fmt: skip
CASES = [(tool, *case) for tool, cases in CORPUS.items() for case in cases]


def outcome(tool, text, expected):
    """Return ``right``, ``refused`` or ``wrong``."""
    try:
        world_size = None if FORMATS[tool].layout.total else 8
        document, known = read_document(text)
        size = document[known.layout.total] if known.layout.total else None
        if known.layout.all_workers:
            total = 128
        elif size is None and known.layout.last_stage:
            total = document[document.under(known.layout.last_stage)[-1]]
        else:
            total = size or (document[known.layout.micro] or 1) * (document[known.layout.accumulation] or 1) * 8
        result = convert_text(text, 4 * total, world_size=world_size)
    except ValueError as error:
        return "refused" if isinstance(expected, str) and re.search(expected, str(error)) else f"wrong: {error}"
    if isinstance(expected, str):
        return f"wrong: converted to {result.values}"
    if (result.format.name, dict(result.values)) != (tool, expected):
        return f"wrong: {result.format.name} {dict(result.values)}"
    return "right"


@pytest.mark.parametrize(("tool", "name", "text", "expected"), CASES, ids=[f"{case[0]}: {case[1]}" for case in CASES])
def test_every_case_of_the_corpus_is_right_or_refused_for_its_reason(tool, name, text, expected):
    assert outcome(tool, text, expected) == ("refused" if isinstance(expected, str) else "right")


def test_the_corpus_has_every_format_and_nothing_is_wrong():
    counts = {
        tool: Counter(outcome(tool, text, expected) for _, text, expected in cases) for tool, cases in CORPUS.items()
    }
    assert set(counts) == set(FORMATS)
    assert all(set(count) <= {"right", "refused"} for count in counts.values()), counts
    total = sum(counts.values(), Counter())
    assert total["right"] >= 49
    assert total["refused"] >= 45
