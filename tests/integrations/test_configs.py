import json
import os
import re
import shlex
import stat
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
import yaml
from config_formats import describe_format, describe_formats
from hypothesis import given, settings
from hypothesis import strategies as st

from rootscale import AdamW, BatchSize, Plan
from rootscale.cli import main
from rootscale.configs import FORMATS, Length, convert_file
from rootscale.configs import convert_text as convert
from rootscale.configs.convert import read_document
from rootscale.configs.document import TextDocument
from rootscale.configs.rows import PLAN_UNITS, UNIT_KEYS, fields_of, unit_of
from rootscale.rules import rule_text
from rootscale.units import UNITS

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "configs"
#: file: batch size, format, and what else is needed to know it
FILES = {
    "deepspeed.json": (1024, "deepspeed", {}),
    "training_args.json": (256, "transformers", {"world_size": 8}),
    "timm-args.yaml": (1024, "timm", {"world_size": 4}),
    "torchtitan.toml": (64, "torchtitan", {}),
    "megatron.sh": (256, "megatron", {}),
    "axolotl.yaml": (32, "axolotl", {"world_size": 4}),
    "llamafactory.yaml": (32, "llamafactory", {"world_size": 4}),
    "litgpt.yaml": (512, "litgpt", {}),
    "lightning.yaml": (256, "lightning", {"world_size": 4}),
    "nemo.yaml": (64, "nemo", {"world_size": 4}),
    "nemo-megatron.yaml": (256, "nemo-megatron", {}),
    "hydra.yaml": (256, "hydra", {"world_size": 4}),
    "olmo.yaml": (1024, "olmo", {}),
    "olmo-core.yaml": (524288, "olmo-core", {}),
    "nanogpt.py": (128, "nanogpt", {}),
    "torchtitan_samples.py": (64, "torchtitan-python", {}),
    "torchtitan_tokens.py": (524288, "torchtitan-tokens", {}),
    "transformers.sh": (256, "transformers", {"world_size": 8}),
    "timm.sh": (1024, "timm", {"world_size": 4}),
}


def example(name):
    return (EXAMPLES / name).read_bytes().decode()


def deepspeed(optimizer="AdamW", scheduler=None, **top):
    params = {"lr": 1e-3, "betas": [0.98, 0.999], "eps": 1e-8, "weight_decay": 0.1}
    data = {"train_batch_size": 256, "optimizer": {"type": optimizer, "params": params}, **top}
    return json.dumps(data if scheduler is None else {**data, "scheduler": scheduler}, indent=2)


def values(text, format):
    """Every single value of a file."""
    document, _ = read_document(text, format)
    return {path: leaf.value for path, leaf in document.leaves.items() if not isinstance(leaf.value, dict | list)}


def without_numbers(text):
    return re.sub(r"(?<![\w.])-?\d[\d.]*(e[-+]?\d+)?(?![\w.])", "#", text)


def is_kept(before, after):
    """Whether the second text has all of the first but its numbers, in order; new entries may stand in between."""
    characters = iter(without_numbers(after))
    return all(character in characters for character in without_numbers(before))


def test_every_example_is_there_and_found_out():
    assert sorted(FILES) == sorted(path.name for path in EXAMPLES.iterdir())
    assert {read_document(example(name))[1].name for name in FILES} == set(FORMATS)
    for name, (_, format, _) in FILES.items():
        assert read_document(example(name))[1].name == format


def test_every_field_has_a_unit_and_every_optimizer_a_learning_rate():
    for known in FORMATS.values():
        for row in known.optimizers.values():
            assert "optimizer.eta" in [one.what for one in fields_of(row)]
            for one in (*fields_of(row), *known.fields, *(f for s in known.schedules.values() for f in s.fields)):
                assert unit_of(one, row.family) in UNITS
                assert one.what.startswith("optimizer.") or one.what in {*PLAN_UNITS, *UNIT_KEYS}


#: path: the value at four times the batch size, by hand from the table of units
EXPECTED = {
    "deepspeed.json": {
        "train_batch_size": 4096,
        "gradient_accumulation_steps": 16,
        "optimizer.params.lr": 6e-4,
        "optimizer.params.betas.0": 0.92,
        "optimizer.params.betas.1": 0.996,
        "optimizer.params.eps": 5e-9,
        "optimizer.params.weight_decay": 0.2,
        "scheduler.params.warmup_max_lr": 6e-4,
        "scheduler.params.warmup_num_steps": 500,
        "scheduler.params.total_num_steps": 25000,
        "gradient_clipping": 0.5,
        "steps_per_print": 25,
    },
    "training_args.json": {
        "gradient_accumulation_steps": 16,
        "learning_rate": 1e-4,
        "adam_beta1": 0.92,
        "adam_beta2": 0.996,
        "adam_epsilon": 5e-9,
        "weight_decay": 0.02,
        "max_grad_norm": 0.5,
        "warmup_steps": 250,
        "max_steps": 10000,
        "logging_steps": 25,
        "eval_steps": 500,
        "save_steps": 1000,
    },
    "timm-args.yaml": {
        "grad_accum_steps": 8,
        "lr": 0.002,
        "min_lr": 2e-6,
        "warmup_lr": 2e-5,
        "opt_betas.0": 0.92,
        "opt_betas.1": 0.996,
        "opt_eps": 5e-9,
        "weight_decay": 0.1,
        "clip_grad": 0.5,
        "model_ema_decay": pytest.approx(0.9998**4, rel=1e-12),
    },
    "torchtitan.toml": {
        "metrics.log_freq": 5,
        "optimizer.lr": 6e-4,
        "optimizer.beta1": 0.9,
        "optimizer.beta2": 0.92,
        "optimizer.eps": 5e-9,
        "optimizer.weight_decay": 0.2,
        "lr_scheduler.warmup_steps": 50,
        "training.global_batch_size": 256,
        "training.max_norm": 0.5,
        "training.steps": 250,
        "checkpoint.interval": 125,
    },
    "megatron.sh": {
        "global_batch_size": 1024,
        "lr": 1.2e-3,
        "min_lr": 1.2e-4,
        "adam_beta1": 0.9,
        "adam_beta2": 0.92,
        "adam_eps": 5e-9,
        "weight_decay": 0.2,
        "clip_grad": 0.5,
        "train_iters": 25000,
        "lr_decay_iters": 25000,
        "lr_warmup_iters": 500,
        "eval_interval": 250,
        "save_interval": 2500,
        "log_interval": 25,
    },
    "axolotl.yaml": {
        "gradient_accumulation_steps": 16,
        "learning_rate": 4e-4,
        "adam_beta1": 0.9,
        "adam_beta2": 0.92,
        "adam_epsilon": 5e-9,
        "weight_decay": 0.02,
        "max_grad_norm": 0.5,
        "save_steps": 25,
    },
    "llamafactory.yaml": {
        "gradient_accumulation_steps": 32,
        "learning_rate": 2e-4,
        "adam_beta1": 0.9,
        "adam_beta2": 0.92,
        "adam_epsilon": 5e-9,
        "max_grad_norm": 0.5,
        "logging_steps": 5,
        "save_steps": 100,
    },
    "litgpt.yaml": {
        "train.global_batch_size": 2048,
        "optimizer.init_args.lr": 8e-4,
        "optimizer.init_args.betas.0": 0.9,
        "optimizer.init_args.betas.1": 0.92,
        "optimizer.init_args.eps": 5e-9,
        "optimizer.init_args.weight_decay": 0.2,
        "train.min_lr": 8e-5,
        "train.max_norm": 0.5,
        "train.lr_warmup_steps": 500,
        "train.save_interval": 250,
        "eval.interval": 250,
    },
    "lightning.yaml": {
        "trainer.accumulate_grad_batches": 8,
        "optimizer.init_args.lr": 2e-3,
        "optimizer.init_args.betas.0": 0.9,
        "optimizer.init_args.betas.1": 0.92,
        "optimizer.init_args.eps": 5e-9,
        "optimizer.init_args.weight_decay": 0.1,
        "lr_scheduler.init_args.eta_min": 2e-5,
        "trainer.gradient_clip_val": 0.5,
        "trainer.max_steps": 2500,
        "trainer.log_every_n_steps": 10,
    },
    "nemo.yaml": {  # the factor of Noam's schedule stays: its warm-up of fewer steps makes the peak higher
        "trainer.accumulate_grad_batches": 4,
        "model.optim.betas.0": 0.9,
        "model.optim.betas.1": 0.92,
        "model.optim.eps": 5e-9,
        "model.optim.weight_decay": 2e-3,
        "model.optim.sched.warmup_steps": 2500,
        "model.optim.sched.min_lr": 2e-6,
        "trainer.gradient_clip_val": 0.5,
        "trainer.log_every_n_steps": 25,
    },
    "nemo-megatron.yaml": {
        "model.global_batch_size": 1024,
        "model.optim.lr": 4e-4,
        "model.optim.betas.0": 0.9,
        "model.optim.betas.1": 0.92,
        "model.optim.eps": 5e-9,
        "model.optim.weight_decay": 0.02,
        "model.optim.sched.warmup_steps": 125,
        "model.optim.sched.constant_steps": 2500,
        "model.optim.sched.min_lr": 4e-5,
        "trainer.gradient_clip_val": 0.5,
        "trainer.max_steps": 25000,
        "trainer.log_every_n_steps": 5,
        "trainer.val_check_interval": 500,
    },
    "hydra.yaml": {
        "trainer.accumulate_grad_batches": 4,
        "model.optimizer.lr": 2e-3,
        "model.optimizer.betas.0": 0.9,
        "model.optimizer.betas.1": 0.92,
        "model.optimizer.eps": 5e-9,
        "model.scheduler.eps": 2e-8,
        "trainer.gradient_clip_val": 0.25,
    },
    "olmo.yaml": {
        "global_train_batch_size": 4096,
        "optimizer.learning_rate": 6e-4,
        "optimizer.betas.0": 0.9,
        "optimizer.betas.1": 0.92,
        "optimizer.eps": 5e-9,
        "optimizer.weight_decay": 0.2,
        "scheduler.t_warmup": 500,
        "max_grad_norm": 0.5,
        "stop_at": 100000,
        "save_interval": 250,
    },
    "olmo-core.yaml": {
        "data_loader.global_batch_size": 2097152,
        "train_module.optim.lr": 8e-4,
        "train_module.optim.betas.0": 0.9,
        "train_module.optim.betas.1": 0.92,
        "train_module.optim.eps": 5e-9,
        "train_module.optim.weight_decay": 0.2,
        "train_module.scheduler.warmup": 500,
        "train_module.max_grad_norm": 0.5,
        "trainer.callbacks.checkpointer.save_interval": 250,
    },
    "nanogpt.py": {
        "gradient_accumulation_steps": 32,
        "learning_rate": 2e-3,
        "min_lr": 2e-4,
        "beta1": 0.9,
        "beta2": 0.92,
        "weight_decay": 0.2,
        "grad_clip": 0.5,
        "max_iters": 1250,
        "lr_decay_iters": 1250,
        "warmup_iters": 25,
        "eval_interval": 60,
    },
    "torchtitan_samples.py": {
        "training.global_batch_size": 256,
        "optimizer.lr": 1.6e-3,
        "optimizer.beta1": 0.9,
        "optimizer.beta2": 0.92,
        "optimizer.eps": 5e-9,
        "optimizer.weight_decay": 0.2,
        "lr_scheduler.warmup_steps": 50,
        "training.max_norm": 0.5,
        "training.steps": 2500,
    },
    "torchtitan_tokens.py": {
        "training.num_tokens_per_train_step": 2097152,
        "optimizer.lr": 6e-4,
        "optimizer.betas.0": 0.9,
        "optimizer.betas.1": 0.92,
        "optimizer.eps": 5e-9,
        "optimizer.weight_decay": 0.2,
        "lr_scheduler.warmup_steps": 150,
        "training.max_norm": 0.5,
        "training.steps": 750,
        "checkpoint.interval": 125,
    },
    "transformers.sh": {
        "gradient_accumulation_steps": 16,
        "learning_rate": 1e-4,
        "adam_beta1": 0.9,
        "adam_beta2": 0.92,
        "adam_epsilon": 5e-9,
        "weight_decay": 0.02,
        "max_grad_norm": 0.5,
        "max_steps": 10000,
        "warmup_steps": 250,
        "logging_steps": 25,
        "save_steps": 1000,
    },
    "timm.sh": {
        "grad_accum_steps": 8,
        "lr": 2e-3,
        "warmup_lr": 2e-5,
        "opt_betas.0": 0.9,
        "opt_betas.1": 0.92,
        "opt_eps": 5e-9,
        "weight_decay": 0.1,
        "clip_grad": 0.5,
    },
}


@pytest.mark.parametrize("name", FILES)
def test_known_fields_change_and_nothing_else_does(name):
    size, format, known = FILES[name]
    text = example(name)
    result = convert(text, 4 * size, **known)
    assert result.values == EXPECTED[name]
    assert values(result.after, format) == {**values(text, format), **EXPECTED[name]}
    assert is_kept(text, result.after)
    if not EXPECTED[name].keys() - values(text, format).keys():
        assert without_numbers(result.after) == without_numbers(text)


@pytest.mark.parametrize("name", FILES)
def test_the_same_batch_size_gives_the_same_bytes(name):
    size, _, known = FILES[name]
    result = convert(example(name), size, **known)
    assert result.after == example(name)
    assert result.diff() == ""


def test_what_the_tools_read_is_what_was_written():
    assert json.loads(convert(example("deepspeed.json"), 4096).after)["optimizer"]["params"]["betas"] == [0.92, 0.996]
    assert tomllib.loads(convert(example("torchtitan.toml"), 256).after)["optimizer"]["eps"] == 5e-9
    loaded = yaml.safe_load(convert(example("timm-args.yaml"), 4096, world_size=4).after)
    assert (loaded["opt_eps"], loaded["opt_betas"], loaded["min_lr"]) == (
        5e-9,
        [0.92, 0.996],
        2e-6,
    )  # numbers, not words


# Round trips ----------------------------------------------------------------------------------------------------------

_decimals = st.tuples(st.integers(1, 9999), st.integers(-9, -4)).map(lambda pair: float(f"{pair[0]}e{pair[1]}"))
_betas = st.integers(9_000, 99_999).map(lambda n: float(f"0.{n:05d}") if n >= 90_000 else float(f"0.9{n:04d}"))
_counts = st.integers(1, 500).map(lambda n: 64 * n)


@settings(deadline=None, max_examples=40)
@given(
    kappa=st.sampled_from([2, 3, 4, 5, 8, 64]), up=st.booleans(), averaging=st.sampled_from(["paper", "power"]),
    lr=_decimals, eps=_decimals, decay=_decimals, clip=_decimals, beta1=_betas, beta2=_betas, steps=_counts,
    indent=st.sampled_from([None, 1, 4]),
)  # fmt: skip
def test_there_and_back_gives_the_values_and_the_bytes_back(
    kappa, up, averaging, lr, eps, decay, clip, beta1, beta2, steps, indent
):
    if kappa * (1 - min(beta1, beta2)) >= 1:
        averaging = "power"
    steps *= 15  # divisible by every kappa
    size = 960 * 64
    text = json.dumps(
        {
            "train_batch_size": size,
            "optimizer": {
                "type": "AdamW",
                "params": {"lr": lr, "betas": [beta1, beta2], "eps": eps, "weight_decay": decay},
            },
            "scheduler": {
                "type": "WarmupCosineLR",
                "params": {"warmup_num_steps": steps, "total_num_steps": 2 * steps, "warmup_type": "linear"},
            },
            "gradient_clipping": clip,
            "other": {"lr": lr, "text": 'a "quoted" {brace}, [1, 2]: \\ é', "none": None},
        },
        indent=indent,
    )
    there = convert(text, size * kappa if up else size // kappa, rule=rule_text(None, averaging))
    back = convert(there.after, size, rule=rule_text(None, averaging))
    assert there.after != text
    assert json.loads(back.after)["other"] == json.loads(text)["other"]
    assert back.after == text


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kappa", [2, 4, 8])
def test_every_example_goes_there_and_back(name, kappa):
    size, format, known = FILES[name]
    text = example(name)
    there = convert(text, size * kappa, **known)
    lossy = ("rounded", "exactly", "stops at its floor")
    rounded = [row.name for row in there.changes if any(word in row.why for word in lossy)]
    stopped = any("does not return it; keep the old one" in warning for warning in there.changes.warnings)
    assert stopped == any("stops at its floor" in row.why for row in there.changes)
    back = convert(there.after, size, **known)
    kept = {path: value for path, value in values(text, format).items() if path not in rounded}
    assert {path: value for path, value in values(back.after, format).items() if path in kept} == kept
    assert is_kept(text, back.after)


@settings(deadline=None, max_examples=30)
@given(data=st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1, max_size=4), inner, max_size=3),
    max_leaves=8,
), indent=st.sampled_from([None, 0, 3]))  # fmt: skip
def test_places_in_json_are_those_of_the_values(data, indent):
    text = json.dumps({"x": data, "y": 1.5}, indent=indent)
    document = TextDocument(text, "JSON")
    for leaf in document.leaves.values():
        assert json.loads(text[leaf.start : leaf.end]) == leaf.value
    document.set("y", 2.5)
    assert json.loads(document.edited()) == {"x": data, "y": 2.5}


# Values that are not there --------------------------------------------------------------------------------------------


def test_a_default_that_the_rule_changes_is_written_down():
    result = convert('{"train_batch_size": 256, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}', 1024)
    params = json.loads(result.after)["optimizer"]["params"]
    assert params == {"lr": 0.002, "betas": [0.9, 0.996], "eps": 5e-9}
    assert "the tool's default" in result.changes["optimizer.params.eps"].why


@pytest.mark.parametrize(
    ("text", "size", "expected"),
    [
        (
            "opt: adamw\nbatch_size: 128\nlr: 1e-3 # peak\nopt_betas: null\nopt_eps:\nx: 1\n", 512,
            "opt: adamw\nbatch_size: 128\nlr: 0.002 # peak\ngrad_accum_steps: 4\nweight_decay: 4.0e-05\n"
            "warmup_lr: 2.0e-05\nopt_betas: [0.9, 0.996]\nopt_eps: 5.0e-09\nx: 1\n",
        ),
        (
            "[training]\r\nlocal_batch_size = 128 # each\r\n", 512,
            "[training]\r\nlocal_batch_size = 128 # each\r\nglobal_batch_size = 512\r\nmax_norm = 0.5\r\n"
            "steps = 2500\r\n\n[optimizer]\nlr = 0.0016\nbeta2 = 0.9\neps = 5e-09\nweight_decay = 0.2\n"
            "\n[lr_scheduler]\nwarmup_steps = 50\n",
        ),
        (
            "run.py --lr=1e-3 --micro-batch-size 128 --clip-grad 0 --weight-decay 0 \\\n  --train-samples 9", 512,
            "run.py --lr=0.002 --global-batch-size 512 --adam-beta2 0.996 --adam-eps 5e-09 "
            "--micro-batch-size 128 --clip-grad 0 --weight-decay 0 \\\n  --train-samples 9",
        ),
    ],
)  # fmt: skip
def test_new_entries_are_written_as_their_neighbours_are(text, size, expected):
    assert convert(text, size, world_size=1).after == expected


def test_a_table_that_is_missing_is_written_with_the_defaults_in_it():
    after = json.loads(convert('{"train_batch_size": 256, "optimizer": {"type": "AdamW"}}', 1024).after)
    assert after["optimizer"] == {"type": "AdamW", "params": {"lr": 0.002, "betas": [0.9, 0.996], "eps": 5e-9}}


#: files that leave the betas to the tool, 0.9 and 0.999, and how the pair looks that is written
_NO_BETAS = {
    "deepspeed": (
        '{"train_batch_size": 64, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": null}}}',
        '"betas": [%s, %s]',
    ),
    "timm": ("opt: adamw\nbatch_size: 64\nlr: 1e-3\n", "opt_betas: [%s, %s]\n"),
    "timm's null": ("opt: adamw\nbatch_size: 64\nlr: 1e-3\nopt_betas: null\n", "opt_betas: [%s, %s]\n"),
    "timm's script": ("train.py --opt adamw --batch-size 64 --lr 1e-3\n", " --opt-betas %s %s"),
    "litgpt": (
        "train: {global_batch_size: 64, micro_batch_size: 4}\n"
        "optimizer:\n  class_path: torch.optim.AdamW\n  init_args:\n    lr: 1e-3\n",
        "    betas: [%s, %s]\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", _NO_BETAS)
@pytest.mark.parametrize(
    ("rule", "pair"),
    [
        (None, (0.9, 0.996)),  # the first stays
        ("with floor:0.5,0.999", (0.6, 0.999)),  # the second stays
        ("with floor:0.5,0.5", (0.6, 0.996)),
        ("with floor:0.9,0.999", ()),  # both stay: nothing to write
    ],
)
def test_a_list_that_is_missing_is_written_whole_also_where_one_item_stays(case, rule, pair):
    text, written = _NO_BETAS[case]
    result = convert(text, 256, world_size=1, rule=rule)
    assert tuple(value for path, value in result.values.items() if "betas" in path) == pair
    if pair:
        assert result.after.count(written % pair) == 1
        assert convert(result.after, 256, world_size=1, rule=rule).after == result.after
    else:
        assert without_numbers(result.after).count("betas") == text.count("betas")


def test_a_list_that_is_missing_in_python_is_written_whole():  # the defaults of torchtitan are 0.9 and 0.95
    text = (
        "def small() -> Trainer.Config:\n    return Trainer.Config(\n        optimizer=default_adamw(lr=8e-4),\n"
        "        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=200),\n"
        "        training=TrainingConfig(num_tokens_per_train_step=64, steps=1000),\n    )\n"
    )
    optimizer = "optimizer=default_adamw(lr=0.0016, eps=5e-09, weight_decay=0.2, betas=%s),\n"
    assert optimizer % [0.9, 0.9] in convert(text, 256).after
    assert optimizer % [0.6, 0.95] in convert(text, 256, rule="with floor:0.5,0.95").after


_POLYNOMIAL = "per_device_train_batch_size: 8\ngradient_accumulation_steps: 1\nlr_scheduler_type: polynomial\n"


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ("", {"lr_end": 2e-7}),
        ("lr_scheduler_kwargs:\n", {"lr_end": 2e-7}),
        ("lr_scheduler_kwargs: {}\n", {"lr_end": 2e-7}),
        ("lr_scheduler_kwargs:\n  power: 2.0\n", {"power": 2.0, "lr_end": 2e-7}),
        ("lr_scheduler_kwargs: {lr_end: 1.0e-6}\n", {"lr_end": 2e-6}),
    ],
)
def test_the_end_of_transformers_polynomial_is_converted_also_where_it_is_the_default(kwargs, expected):
    text = _POLYNOMIAL + kwargs
    after = convert(text, 32, world_size=1).after
    assert yaml.safe_load(after)["lr_scheduler_kwargs"] == expected
    assert after.count("lr_scheduler_kwargs") == 1
    as_json = convert(json.dumps(yaml.safe_load(text)), 32, world_size=1).after
    assert json.loads(as_json)["lr_scheduler_kwargs"] == expected


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ({}, {"timescale": 2500}),
        ({"warmup_steps": 0, "lr_scheduler_kwargs": {"timescale": 400}}, {"timescale": 100}),
        ({"warmup_steps": 400}, None),  # it is the time scale
        ({"warmup_ratio": 0.1}, None),
    ],
)
def test_the_time_scale_of_transformers_inverse_sqrt_is_converted_also_where_it_is_the_default(rest, expected):
    data = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "lr_scheduler_type": "inverse_sqrt"}
    after = json.loads(convert(json.dumps({**data, **rest}), 32, world_size=1).after)
    assert after.get("lr_scheduler_kwargs") == expected


def test_timms_defaults_are_converted_where_they_are_used():
    text = "opt: adamw\nbatch_size: 128\nlr: 1e-3\nmodel_ema: %s\n"
    after = yaml.safe_load(convert(text % "true", 512, world_size=1).after)
    assert after["model_ema_decay"] == pytest.approx(0.9998**4, rel=1e-12)
    assert after["warmup_lr"] == 2e-5
    assert "model_ema_decay" not in convert(text % "false", 512, world_size=1).values


def test_a_batch_size_that_is_auto_is_asked_for():
    text = json.dumps({"train_batch_size": "auto", "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}})
    with pytest.raises(ValueError, match=r'train_batch_size is "auto"\): give the batch size itself \(--from\)'):
        convert(text, 64, format="deepspeed")


def test_auto_stays_auto_and_is_named():
    names = {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}
    data = {"train_batch_size": "auto", "optimizer": {"type": "AdamW", "params": names}, "gradient_clipping": "auto"}
    text = json.dumps(data)
    result = convert(text, 4096, start=256)
    assert result.after == text
    assert any("optimizer.params.betas" in warning and "auto" in warning for warning in result.changes.warnings)
    with pytest.raises(ValueError, match="does not say how many samples a step takes"):
        convert(text, 4096)


@pytest.mark.parametrize(
    ("text", "size", "named", "quiet"),
    [
        (
            "base_model: m\nmicro_batch_size: 4\nlearning_rate: 1e-3\nwarmup_ratio: 0.1\nqat:\n"
            "  fake_quant_after_n_steps: 1000\ndiffusion:\n  generation_interval: 250\n  generation_epochs: 3\n",
            16,
            ["qat.fake_quant_after_n_steps=1000", "diffusion.generation_interval=250"],
            ["warmup_ratio", "generation_epochs"],
        ),
        (
            "optimizer:\n  class_path: torch.optim.AdamW\ndata:\n  batch_size: 32\nmodel:\n  init_args:\n    lr: 0.1\n"
            "    norm_eps: 1e-5\ntrainer:\n  val_check_interval: 50\n  callbacks:\n"
            "  - class_path: lightning.pytorch.callbacks.EMAWeightAveraging\n    init_args: {decay: 0.999}\n"
            "  - class_path: lightning.pytorch.callbacks.ModelCheckpoint\n    init_args: {every_n_train_steps: 1}\n",
            128,
            ["trainer.callbacks.0.init_args.decay=0.999", "model.init_args.lr=0.1"],
            ["norm_eps", "val_check_interval", "every_n_train_steps"],
        ),
        (
            deepspeed(curriculum_learning={"enabled": True, "schedule_config": {"total_curriculum_step": 15000}}),
            1024,
            ["curriculum_learning.schedule_config.total_curriculum_step=15000"],
            ["enabled"],
        ),
        (
            "pretrain_gpt.py --lr 1e-3 --train-iters 100 --global-batch-size 64 --moe-router-bias-update-rate 1e-3 "
            "--eval-iters 10",
            256,
            ["moe_router_bias_update_rate=0.001"],
            ["eval_iters"],
        ),
        (
            "data_loader: {global_batch_size: 64}\ntrain_module: {optim: {_CLASS_: AdamWConfig}}\n"
            "trainer:\n  callbacks:\n    checkpointer: {save_interval: 100}\n    mine: {eval_interval: 500}\n",
            256,
            ["trainer.callbacks.mine.eval_interval=500"],
            ["save_interval"],
        ),
    ],
    ids=["axolotl", "lightning", "deepspeed", "megatron", "olmo-core"],
)
def test_a_number_that_may_have_a_unit_and_is_in_no_table_is_named(text, size, named, quiet):
    def said(to):
        changes = convert(text, to, world_size=1).changes
        return " ".join(warning for warning in changes.warnings if "left as they are" in warning)

    assert [name for name in named if name not in said(size)] == []
    assert [name for name in quiet if name in said(size)] == []
    assert "divided by 4" in said(size)
    assert said(size // 4) == ""


# What the tools do themselves -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("opt", ["adamw", "adam", "sgd"])
@pytest.mark.parametrize("scale", ["", "linear", "sqrt"])
def test_timm_which_scales_lr_base_itself_arrives_at_the_learning_rate_of_the_rule(opt, scale):
    def learning_rate(text, size):
        """As in timm's train.py."""
        args = yaml.safe_load(text)
        name = args["lr_base_scale"] or ("sqrt" if any(o in args["opt"] for o in ("ada", "lamb")) else "linear")
        ratio = size / args["lr_base_size"]
        return args["lr_base"] * (ratio**0.5 if name == "sqrt" else ratio)

    text = f"opt: {opt}\nbatch_size: 128\nlr: null\nlr_base: 0.1\nlr_base_size: 256\nlr_base_scale: '{scale}'\n"
    after = convert(text, 1152, world_size=1).after
    expected = 9 if opt == "sgd" else 3
    assert learning_rate(after, 1152) == pytest.approx(expected * learning_rate(text, 128), rel=1e-12)


def test_deepspeeds_schedule_is_the_same_at_equal_samples():
    def learning_rate(params, k):
        """WarmupDecayLR with a linear warm-up."""
        low, high = params["warmup_min_lr"], params["warmup_max_lr"]
        warmup, total = params["warmup_num_steps"], params["total_num_steps"]
        gamma = k / warmup if k < warmup else max(0.0, (total - k) / (total - warmup))
        return low + (high - low) * gamma

    before, after = (
        json.loads(text) for text in (example("deepspeed.json"), convert(example("deepspeed.json"), 4096).after)
    )
    for k in (0, 100, 499, 500, 12_000, 25_000):
        old = learning_rate(before["scheduler"]["params"], 4 * k)
        assert learning_rate(after["scheduler"]["params"], k) == pytest.approx(2 * old, rel=1e-12, abs=1e-18)


def test_deepspeeds_adam_decays_as_adamw_unless_told_not_to():
    assert convert(deepspeed("Adam"), 1024).values["optimizer.params.weight_decay"] == 0.2
    text = deepspeed("Adam").replace('"lr"', '"adam_w_mode": false, "lr"')
    result = convert(text, 1024)
    assert "optimizer.params.weight_decay" not in result.values
    assert "part of the loss" in result.changes["optimizer.params.weight_decay"].why


def test_deepspeeds_logarithmic_warmup_is_warned_of():
    scheduler = {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3, "warmup_num_steps": 1000}}
    assert any("'log'" in warning for warning in convert(deepspeed(scheduler=scheduler), 1024).changes.warnings)
    scheduler["params"]["warmup_type"] = "linear"
    assert not convert(deepspeed(scheduler=scheduler), 1024).changes.warnings


def test_batchnorm_counts_forward_passes():
    text = example("timm-args.yaml")
    assert "bn_momentum" not in convert(text, 4096, world_size=4).values  # more accumulation: the same passes
    workers = convert(text, "128x2x16", world_size=4)
    assert workers.values["bn_momentum"] == pytest.approx(1 - 0.9**4)
    assert "grad_accum_steps" not in workers.values


@pytest.mark.parametrize(
    ("start", "to", "momentum"),
    [
        ("32x1x1", "32x4x1", 0.1),
        ("32x4x1", "128x1x1", 1 - 0.9**4),
        ("32x4x1", "32x1x4", 1 - 0.9**4),
        ("32x1x4", 256, 0.1),
    ],
)
def test_a_plan_and_a_file_agree_on_batchnorm(start, to, momentum):
    micro, accumulation, workers = start.split("x")
    text = f"opt: adamw\nlr: 1e-3\nbatch_size: {micro}\ngrad_accum_steps: {accumulation}\nbn_momentum: 0.1\n"
    result = convert(text, to, world_size=int(workers))
    plan = Plan(AdamW(1e-3), start, batchnorm_momentum=0.1).convert(to).plan
    assert result.changes["batchnorm_momentum"].value == plan.batchnorm_momentum == pytest.approx(momentum, rel=1e-12)
    assert result.values.get("bn_momentum", 0.1) == pytest.approx(momentum, rel=1e-12)


def test_a_layout_of_one_worker_without_accumulation_is_a_layout():
    text = "batch_size: 128\nbn_momentum: 0.1\nlr: 0.001\nopt: adamw\n"
    result = convert(text, "256x1x1", start="128x1x1")
    assert result.values["batch_size"] == 256
    assert result.values["bn_momentum"] == pytest.approx(0.19)
    assert "grad_accum_steps" not in result.values
    assert convert(text, 256, world_size=1).values["grad_accum_steps"] == 2
    text = _HF.replace('steps": 1', 'steps": 4') % '"learning_rate": 5e-5'
    result = convert(text, "32x1x1", start="8x4x1")
    assert result.values == {"per_device_train_batch_size": 32, "gradient_accumulation_steps": 1}
    assert convert(text, BatchSize(32, 1, 1), world_size=1).values == result.values


def test_shares_of_the_run_epochs_and_what_is_switched_off_stay():
    text = json.dumps({
        "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "warmup_steps": 0.1, "eval_steps": 0.5,
        "max_steps": -1, "max_grad_norm": 0.0, "num_train_epochs": 3, "weight_decay": 0.0,
    })  # fmt: skip
    result = convert(text, 256, world_size=8, length=Length(dataset_size=6400))
    assert set(result.values) == {
        "gradient_accumulation_steps", "learning_rate", "adam_beta2", "adam_epsilon", "logging_steps", "save_steps",
    }  # fmt: skip
    assert (result.changes["steps"].before, result.changes["steps"].after) == (300, 75)
    ema_off = example("timm-args.yaml").replace("model_ema: true", "model_ema: false")
    assert "model_ema_decay" not in convert(ema_off, 4096, world_size=4).values


def test_steps_that_do_not_divide_are_rounded_and_said_so():
    result = convert(example("training_args.json"), 768, world_size=8)
    assert result.values["max_steps"] == 13334
    assert "exactly 13,333.33: the last step takes 256 samples" in result.changes["max_steps"].why
    assert result.values["warmup_steps"] == 333
    assert "rounded from 333.333" in result.changes["warmup_steps"].why


def test_variables_of_a_script_are_changed_where_they_are_set():
    text = 'export N=64\nLR=1e-3\nrun --train-samples 9 --global-batch-size ${N} --lr "$LR" --adam-beta1 0.98\n'
    after = convert(text, 128, rule="none").after
    assert after == text.replace("N=64", "N=128")
    shared = "ITERS=100\nrun --global-batch-size 64 --lr 1e-3 --train-iters $ITERS --seed $ITERS"
    with pytest.raises(ValueError, match="does not let single values be replaced safely"):
        convert(shared, 128)


@pytest.mark.parametrize(
    "use",
    [
        "SAMPLES=$((100000*N))",
        "run --train-samples $((100000 * N))",
        "NAME=gpt-${N}",
        "if [ $N -gt 3 ]; then",
        "run --name gpt-$N",
    ],
)
def test_a_variable_that_something_else_uses_is_not_changed(use):
    command = "run --micro-batch-size 4 --global-batch-size $N --lr 1e-3 --lr-decay-style cosine"
    text = f"N=64\n# N is the batch size\n{use}\n{command}\n"
    with pytest.raises(ValueError, match=r"global_batch_size .* it is the variable N, which line 3 uses too; write"):
        convert(text, 128)
    unchanged = text.replace("--global-batch-size $N", "--global-batch-size 64 --seq-length $N")
    assert convert(unchanged, 128).values["global_batch_size"] == 128
    assert "N=64\n" in convert(unchanged, 128).after


def test_a_variable_of_the_name_of_its_option_is_changed():
    text = "lr=1e-3\nrun --micro-batch-size 4 --global-batch-size 64 --lr $lr --lr-decay-style cosine --other $other\n"
    assert "lr=0.002\n" in convert(text, 256).after


@pytest.mark.parametrize("format", [None, "transformers"])
def test_options_inside_a_text_of_yaml_do_not_make_it_a_script(format):
    text = "per_device_train_batch_size: 8\nlearning_rate: 1e-4\nrun_name: sweep --lr 3\n"
    result = convert(text, 32, world_size=1, format=format)
    assert (result.format.name, result.values["learning_rate"]) == ("transformers", 2e-4)
    assert "sweep --lr 3\n" in result.after
    inside = "command: |\n  run --micro-batch-size 4 --global-batch-size 64 --lr 1e-3 --train-samples 9\n"
    assert "--global-batch-size 256 " in convert(inside, 256).after  # a script inside YAML is one


def test_values_with_a_tag_of_their_own_stay_as_they_are():
    text = (
        "per_device_train_batch_size: 8\nlearning_rate: 1.0e-4\ndtype: !torch float32\n"
        "kind: !!python/name:torch.float32 ''\nday: 2024-13-45\nsteps: !range {a: 1}\n"
    )
    after = convert(text, 32, world_size=1).after
    assert [line for line in after.splitlines() if "!" in line or "day" in line] == text.splitlines()[2:]
    with pytest.raises(ValueError, match=r"learning_rate must be a number, got '!number 1\.0e-4'"):
        convert(text.replace("1.0e-4", "!number 1.0e-4"), 32, world_size=1)


def test_megatron_in_yaml_goes_by_bare_names():
    text = "ARGS:\n  --lr: 1.0e-3 # peak\n  --global-batch-size: 64\n  --train-samples: 1000\n  --lr-decay-style: WSD\n"
    after = yaml.safe_load(convert(text, 256).after)["ARGS"]
    assert after["--global-batch-size"] == 256
    assert (after["--lr"], after["--adam-beta2"], after["--adam-eps"], after["--train-samples"]) == (
        2e-3,
        0.996,
        5e-9,
        1000,
    )
    assert "--adam-beta1" not in after  # the default is at its floor


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Lion", "OneBitAdam", "Lamb", "Muon", "Adagrad", "MuAdam"])
def test_unknown_optimizers_are_refused_by_name(name):
    with pytest.raises(ValueError, match=rf"optimizer.type='{name}': there is no rule .* adam, adamw, sgd, rmsprop"):
        convert(deepspeed(name), 1024)


_HF = '{"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, %s}'
_BETAS = json.dumps([0.98, 0.999], indent=2).replace("\n", "\n      ")
_MEGATRON = "--micro-batch-size 1 --global-batch-size 64 --train-samples 9 --lr 1e-3 "
REFUSED = {
    "adafactor": (_HF % '"optim": "adafactor"', "optim='adafactor': there is no rule"),
    "lion": ("opt: lion\nbatch_size: 8\nlr: 1e-3\n", "opt='lion': there is no rule"),
    "muon": (_MEGATRON + "--optimizer muon", "optimizer='muon': there is no rule"),
    "no optimizer": ('{"train_batch_size": 256, "zero_optimization": {"stage": 2}}', "optimizer.type is not in"),
    "plateau": ("opt: adamw\nbatch_size: 8\nlr: 1e-3\nsched: plateau\n", "no clock: it waits .* known are cosine"),
    "rmsprop in text": (_HF % '"optim": "rmsprop"', "optim='rmsprop': its alpha and eps are in the text of optim_args"),
    "unknown schedule": (_HF % '"lr_scheduler_type": "mine"', "'mine': this schedule's clock is not known"),
    "range test": (deepspeed(scheduler={"type": "LRRangeTest"}), "it is a test of learning rates"),
    "one cycle": (deepspeed(scheduler={"type": "OneCycle", "params": {}}), 'set "cycle_momentum": false'),
    "no peak": (deepspeed(scheduler={"type": "WarmupLR", "params": {"x": 1}}), "warmup_max_lr is not in the file"),
    "elastic": (deepspeed(elasticity={"enabled": True}), "chooses the batch size by itself"),
    "auto batch": (_HF % '"auto_find_batch_size": true', "chooses the batch size by itself"),
    "variable": (_MEGATRON.replace("1e-3", "$LR"), r"lr must be a number, got '\$LR'"),
    "text": (deepspeed(gradient_clipping="big"), "gradient_clipping must be a number, got 'big'"),
    "layout": (deepspeed(train_micro_batch_size_per_gpu=3), "no multiple of 3 micro x 1 workers: choose its layout"),
    "clip by value": ("opt: adamw\nbatch_size: 8\nlr: 1e-3\nclip_grad: 1.0\nclip_mode: agc\n", "only a clip by norm"),
    "twice": ('{"train_batch_size": 256, ' + deepspeed()[1:], "more than once"),
    "nothing known": ('{"a": 1}', r"looked for deepspeed \(JSON with train_micro_batch_size_per_gpu .* megatron"),
    "broken": ('{"train_batch_size": 256', "expected JSON: Expecting"),
    "merge": (
        "base: &base\n  learning_rate: 1e-3\n<<: *base\nper_device_train_batch_size: 8\n",
        "YAML merge keys are not read: write the values out where line 3 has <<",
    ),
    "alias": (
        "base: &base {lr_end: 1e-6}\nper_device_train_batch_size: 8\nlr_scheduler_type: polynomial\n"
        "lr_scheduler_kwargs: *base\n",
        r"lr_scheduler_kwargs must be names and values, got '\(an alias\)'",
    ),
    "betas as text": (
        deepspeed().replace(_BETAS, '"0.95,0.95"'), r"params\.betas must be a list of numbers, got '0.95,0.95'"
    ),
    "one beta": (deepspeed().replace(_BETAS, "0.95"), r"params\.betas must be a list of numbers, got 0.95"),
    "few betas": (deepspeed().replace(_BETAS, "[0.95]"), r"params\.betas must be a list of at least 2 numbers, got 1"),
    "kwargs as text": (
        _HF % '"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": "{}"',
        "lr_scheduler_kwargs must be names and values, got '{}'",
    ),
    "empty": ("", "YAML must have names and values"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_converted_as_a_whole_is_refused(case):
    text, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        convert(text, 1024, world_size=None if "256" in text or case == "layout" else 8)


BROKEN = {
    "garbage.json": (b"lr = 1\n", r"expected JSON: Expecting value: line 1"),
    "list.json": (b"[1, 2]", r"the format is not known; .* found JSON without them"),
    "garbage.toml": (b"{]", r"expected TOML: "),
    "bell.yaml": (b"opt: adamw\nlr: 1e-3\nbatch_size: 8\nnote: a\x07b\n", r"line 4 has the character U\+0007"),
    "bell.json": (b'{"train_batch_size": 256, "note": "\x07"}', r"expected JSON: Invalid control character at: line 1"),
    "bell.toml": (b'[training]\nglobal_batch_size = 64\nx = "\x07"\n', r"expected TOML: Illegal character '\\x07'"),
    "deep.json": (b'{"a": ' + b"[" * 100_000, r"expected JSON, got values that are nested too deep"),
    "deep.yaml": (b"a: " + b"[" * 1200, r"YAML"),
    "tag.yaml": (b"opt: adamw\nlr: !!int ''\nbatch_size: 8\n", r"lr must be a number, got .!!int"),
    "latin.yaml": (b"opt: \xe9", r"cannot read .*latin.yaml: 'utf-8' codec"),
    "empty.yaml": (b"", r"YAML must have names and values"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_cannot_be_read_is_refused_in_one_line(name, tmp_path, capsys):
    content, message = BROKEN[name]
    path = tmp_path / name
    path.write_bytes(content)
    assert main(["convert", str(path), "--to", "1024", "--world-size", "1"]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert str(path) in error
    assert len(error.splitlines()) == 1


def test_a_name_that_says_json_is_believed(tmp_path):
    path = tmp_path / "args.json"
    path.write_text("per_device_train_batch_size: 8\n")
    with pytest.raises(ValueError, match=r"args\.json: expected JSON: Expecting value"):
        convert_file(path, 32)
    renamed = path.rename(tmp_path / "args.yml")
    assert convert_file(renamed, 32, world_size=1).format.name == "transformers"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--to", "-16", r"--to: .*got '-16'"),
        ("--to", "ten", r"--to: .*got 'ten'"),
        ("--to", "2.5", r"--to must be a whole number of samples, got 2.5"),
        ("--from", "0", r"--from: .*got '0'"),
        ("--world-size", "0", r"--world-size must be a whole number above 0, got 0"),
        ("--steps", "5", r"the run has 100,000 steps, and --steps says 5"),
    ],
)
def test_errors_name_the_option(option, value, message, capsys):
    words = ["convert", str(EXAMPLES / "deepspeed.json"), "--to", "4096"]
    assert main([*words[: 2 if option == "--to" else 4], option, value]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_a_value_outside_its_domain_is_named_by_its_path():
    with pytest.raises(ValueError, match=r"optimizer\.params\.lr must be a finite number > 0, got -0\.001"):
        convert(deepspeed().replace("0.001", "-0.001"), 1024)
    with pytest.raises(ValueError, match=r"optimizer\.params\.betas\.0 must be in \[0, 1\), got 1\.5"):
        convert(deepspeed().replace("0.98", "1.5"), 1024)


HUGE = "9" * 400


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("lr-warmup-iters", "inf", r"lr_warmup_iters must be a finite number, got inf"),
        ("lr-decay-iters", "1e400", r"lr_decay_iters must be a finite number, got inf"),
        ("lr-decay-iters", HUGE, r"lr_decay_iters must be a finite number, got one of 400 digits"),
        ("train-iters", "1e18", r"train_iters must be a number of steps, got 1e\+18"),
        ("min-lr", "inf", r"min_lr must be a finite number, got inf"),
        ("clip-grad", "nan", r"clip_grad must be a finite number, got nan"),
        ("global-batch-size", HUGE, r"global_batch_size must be a number of samples, got one of 400 digits"),
        ("global-batch-size", "inf", r"global_batch_size must be a whole number, such as 512, .*, got inf"),
    ],
)
def test_a_number_that_is_not_finite_is_refused_by_its_name(option, value, message, tmp_path, capsys):
    words = {"lr": "1e-3", "train-iters": "100", "global-batch-size": "64", option: value}
    path = tmp_path / "run.sh"
    path.write_text(f"pretrain_gpt.py {' '.join(f'--{name} {word}' for name, word in words.items())}\n")
    assert main(["convert", str(path), "--to", "256"]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert len(error.splitlines()) == 1


def test_a_length_in_epochs_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match=r"num_train_epochs must be a finite number, got inf"):
        convert(
            '{"per_device_train_batch_size": 8, "num_train_epochs": Infinity}', 32, world_size=1,
            length=Length(dataset_size=1000),
        )  # fmt: skip


@pytest.mark.parametrize(("to", "total"), [("2**21", 2**21), ("512 * 4096", 2**21), ("1M", 10**6), ("0.5m", 500_000)])
def test_a_batch_size_may_be_an_expression(to, total):
    text = example("olmo-core.yaml").replace("global_batch_size: 524288", "global_batch_size: 2**19")
    text = re.sub(r"rank_microbatch_size: \d+", "rank_microbatch_size: 1000" if total % 2**19 else r"\g<0>", text)
    result = convert(text, to)
    assert result.values["data_loader.global_batch_size"] == total
    assert result.changes.kappa == pytest.approx(total / 2**19, rel=1e-12)
    assert f"global_batch_size: {total}\n" in result.after


def test_a_python_configuration_may_have_powers():
    text = example("nanogpt.py")
    power = re.sub(r"(?m)^max_iters = .*$", "max_iters = 10**5", text)
    assert convert(power, 512).values["max_iters"] == 25_000
    huge = re.sub(r"(?m)^max_iters = .*$", "max_iters = 10**10**10", text)
    with pytest.raises(ValueError, match=r"max_iters must be a number, got '10 \*\* 10 \*\* 10'"):
        convert(huge, 512)


TOML = """\
# a run
"optimizer" = {name = "AdamW", lr = 8e-4, "eps" = 1e-8, beta1 = 0.98, beta2 = 0.99, weight_decay = 0.1} # all in one
"training".'local_batch_size' = 4
training.global_batch_size = 64   # samples
training."max_norm" = 1.0
lr_scheduler.warmup_steps = 200
note = '''
steps = 3
'''
[training.more]
list = [
  1, # one
  2,
]
"""


def test_toml_with_tables_in_a_line_and_quoted_keys_is_edited_in_place():
    result = convert(TOML, 256)
    expected = {"training.global_batch_size": 256, "optimizer.lr": 1.6e-3, "optimizer.eps": 5e-9,
                "optimizer.beta1": 0.92, "optimizer.beta2": 0.96, "optimizer.weight_decay": 0.2,
                "training.max_norm": 0.5, "training.steps": 2500, "lr_scheduler.warmup_steps": 50}  # fmt: skip
    assert dict(result.values) == pytest.approx(expected, rel=1e-12)
    before, after = TOML.splitlines(), result.after.splitlines()
    changed = [line for line in after if line not in before]
    assert changed == [
        '"optimizer" = {name = "AdamW", lr = 0.0016, "eps" = 5e-09, beta1 = 0.92, beta2 = 0.96, weight_decay = 0.2} '
        "# all in one",
        "training.global_batch_size = 256   # samples",
        'training."max_norm" = 0.5',
        "training.steps = 2500",
        "lr_scheduler.warmup_steps = 50",
    ]
    assert tomllib.loads(result.after)["optimizer"]["lr"] == 1.6e-3


def test_an_entry_that_is_new_in_a_table_in_a_line_stands_in_it():
    text = TOML.replace(', "eps" = 1e-8', "").replace("lr_scheduler.warmup_steps = 200\n", "[lr_scheduler]\n")
    after = convert(text, 256).after
    assert "lr = 0.0016, eps = 5e-09, beta1" in after
    assert tomllib.loads(after)["lr_scheduler"]["warmup_steps"] == 50


def test_without_tomlkit_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tomlkit", None)
    with pytest.raises(ValueError, match=r"pip install 'rootscale\[toml\]'"):
        convert(example("torchtitan.toml"), 256)


def test_a_warmup_that_would_vanish_is_refused_and_an_interval_is_at_least_a_step():
    scheduler = {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3, "warmup_num_steps": 1, "warmup_type": "linear"}}
    with pytest.raises(ValueError, match=r"warmup_num_steps=1 would become 0\.25 of a step; need kappa <= 2"):
        convert(deepspeed(scheduler=scheduler), 1024)
    result = convert(deepspeed(steps_per_print=1), 1024)
    assert "steps_per_print" not in result.values
    assert any("a step is the least" in warning for warning in result.changes.warnings)


def test_no_kappa_is_too_large_but_for_the_papers_own_form():
    text = deepspeed().replace("0.98", "0.9")
    stopped, kept = convert(deepspeed(), 4096), convert(text, 4096)
    assert stopped.values["optimizer.params.betas.0"] == 0.9
    assert "optimizer.params.betas.0" not in kept.values  # it is at the floor already
    for result in (stopped, kept):
        assert result.changes["optimizer.params.betas.0"].value == 0.9
        assert "stops at its floor" in result.changes["optimizer.params.betas.0"].why
        assert any("betas.0" in warning and "keep the old one" in warning for warning in result.changes.warnings)
    with pytest.raises(ValueError, match=r"kappa=16 gives beta1=-0.6; need kappa < 10"):
        convert(text, 4096, rule="with paper")
    assert convert(text, 4096, rule="with power").values["optimizer.params.betas.0"] == pytest.approx(0.9**16)


def test_batch_sizes_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match=r"the batch size of the file is 1,024, and --from says 512"):
        convert(example("deepspeed.json"), 4096, start=512)
    with pytest.raises(ValueError, match="train_batch_size=1024 is not 32 micro x 4 accumulation x 4 workers"):
        convert(example("deepspeed.json"), 4096, world_size=4)
    with pytest.raises(ValueError, match=r"per_device_train_batch_size=8 is per worker.*--world-size"):
        convert(example("training_args.json"), 4096)
    with pytest.raises(ValueError, match="the run has 100,000 steps, and --steps says 5"):
        convert(example("deepspeed.json"), 4096, length=Length(steps=5))


def test_a_format_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="torchtitan files are TOML, this one looks like JSON"):
        convert(example("deepspeed.json"), 4096, format="torchtitan")
    with pytest.raises(ValueError, match=r"format must be one of deepspeed, .*, got 'mine'"):
        convert(example("deepspeed.json"), 4096, format="mine")


def test_without_pyyaml_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ValueError, match=r"pip install 'rootscale\[yaml\]'"):
        convert(example("timm-args.yaml"), 4096, world_size=4)
    assert convert(example("megatron.sh"), 1024).values["lr"] == 1.2e-3  # needs none


# The command ----------------------------------------------------------------------------------------------------------


def test_the_command_prints_the_diff_and_the_reasons_and_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    path = tmp_path / "ds.json"
    path.write_text(example("deepspeed.json"))
    assert main(["convert", str(path), "--to", "4096"]) == 0
    out = capsys.readouterr().out
    assert '-            "lr": 3e-4,' in out.splitlines()
    assert '+            "lr": 0.0006,' in out.splitlines()
    assert "keeps sigma0 = sigma * eta" in out
    assert "nothing was written" in out
    assert path.read_text() == example("deepspeed.json")
    assert list(tmp_path.iterdir()) == [path]


def test_output_and_in_place_write_the_same(tmp_path, capsys):
    path, other = tmp_path / "run.sh", tmp_path / "new.sh"
    path.write_bytes(example("megatron.sh").replace("\n", "\r\n").encode())
    path.chmod(0o755)
    assert main(["convert", str(path), "--to", "1024", "-o", str(other)]) == 0
    assert b"--lr-warmup-iters 500\r\n" in other.read_bytes()
    assert b"--lr-warmup-iters 2000\r\n" in path.read_bytes()
    assert main(["convert", str(path), "--to", "1024", "--in-place"]) == 0
    assert path.read_bytes() == other.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert sorted(tmp_path.iterdir()) == [other, path]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_devices_and_pipes_are_written_to_and_stay(tmp_path, capsys):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert main(["convert", str(EXAMPLES / "deepspeed.json"), "--to", "4096", "-o", str(pipe)]) == 0
    assert json.loads(os.read(reader, 60_000))["train_batch_size"] == 4096
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_refused_file_is_not_touched(tmp_path, capsys):
    path = tmp_path / "ds.json"
    path.write_text(deepspeed("Lion"))
    assert main(["convert", str(path), "--to", "4096", "--in-place"]) == 2
    assert path.read_text() == deepspeed("Lion")
    error = capsys.readouterr().err
    assert error.startswith("rootscale convert: error: ")
    assert "optimizer.type='Lion'" in error
    assert main(["convert", str(tmp_path / "none.json"), "--to", "4096"]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_json_has_the_new_text_and_every_reason(tmp_path, capsys):
    assert main(["convert", str(EXAMPLES / "torchtitan.toml"), "--to", "256", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["format"] == "torchtitan"
    assert data["values"]["optimizer.lr"] == 6e-4
    assert tomllib.loads(data["text"])["optimizer"]["lr"] == 6e-4
    assert {"name": "optimizer.lr", "status": "derived"}.items() <= data["changes"][0].items()


def test_the_command_is_quick_to_start():
    heavy = ("torch", "numpy", "yaml", "tomllib", "rich", "transformers")
    code = f"import sys, rootscale.cli\nprint([m for m in sys.modules if m in {heavy}])"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env).stdout.strip() == "[]"


def test_the_commands_of_the_docs_print_what_the_docs_show(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "integrations" / "configs.md").read_text()
    blocks = re.findall(r"```console\n\$ (rootscale convert .*?)```", page, re.DOTALL)
    assert blocks
    for block in blocks:
        command, _, shown = block.replace("\\\n", " ").partition("\n")
        main(shlex.split(command)[1:])
        lines = [line.rstrip() for line in "".join(capsys.readouterr()).strip().splitlines()]
        # An error is a line of any length, which a terminal folds.
        folded = [textwrap.wrap(line, 80, subsequent_indent="  ", break_on_hyphens=False) or [""] for line in lines]
        assert [part for parts in folded for part in parts] == shown.strip("\n").splitlines()


def test_the_page_of_formats_is_the_table():
    page = ROOT / "docs" / "integrations" / "formats.md"
    assert page.read_text() == describe_formats()
    for known in FORMATS.values():
        section = describe_format(known)
        for one in known.all_fields():
            assert f"`{re.sub(r'[.][0-9]+$', '', one.path)}`" in section


@pytest.mark.parametrize("name", FILES)
def test_no_other_format_takes_a_file(name):
    _, format, known = FILES[name]
    text = example(name)
    syntax = read_document(text)[0].syntax.name
    others = [one for one in FORMATS.values() if syntax in one.syntaxes and one.name != format]
    # LLaMA-Factory takes the arguments of the Trainer as they are.
    for other in [one for one in others if (format, one.name) != ("transformers", "llamafactory")]:
        with pytest.raises(ValueError):  # noqa: PT011
            convert(text, 2**22, format=other.name, **known)


@pytest.mark.parametrize(
    ("text", "format", "message"),
    [
        (
            "train_iters: 9\nlr: 1e-3\nglobal_batch_size: 8\nmodel: {_target_: x.Y}\n", None,
            r"looks like megatron, but _target_ is of nemo or",
        ),
        (
            "opt: adamw\nlr: 1e-3\nbatch_size: 8\noptimizer: {class_path: a.B}\n", None,
            r"looks like timm, but optimizer\.class_path is of litgpt or",
        ),
        (
            "opt: adamw\nlr: 1e-3\nbatch_size: 8\nbetas: [0.9, 0.99]\n", "timm",
            r"looks like timm, but betas\.0 is of deepspeed or",
        ),
        ("lr: 1e-3\nbetas: [0.9, 0.99]\n", "timm", r"the file is not of timm: betas.0 is of"),
        ("opt: adamw\nbatch_size: 8\nlr: 1\nglobal_batch_size: 8\ntrain_iters: 5\n", None, r"be of timm or megatron"),
    ],
)  # fmt: skip
def test_a_file_that_looks_like_two_tools_is_refused(text, format, message):
    with pytest.raises(ValueError, match=message):
        convert(text, 64, format=format, world_size=1)


def test_one_of_several_configurations_is_converted_by_its_name():
    one = example("torchtitan_tokens.py").partition("def llama_small_float8")[0]
    two = one + one.partition("from torchtitan.trainer import Trainer")[2].replace("llama_small", "llama_large")
    with pytest.raises(ValueError, match="several configurations; --section names one of llama_small, llama_large"):
        convert(two, 2097152)
    with pytest.raises(ValueError, match="--section must be one of llama_small, llama_large, got 'llama_tiny'"):
        convert(two, 2097152, section="llama_tiny")
    after = convert(two, 2097152, section="llama_large").after
    assert after.startswith(one)
    assert after.count("lr=0.0006") == 1


@pytest.mark.parametrize("body", ["    rate = 1e-3\n", "    for rate in (1e-3, 2e-3):\n        pass\n"])
def test_a_name_of_a_function_is_not_that_of_the_module(body):
    text = example("torchtitan_tokens.py").partition("def llama_small_float8")[0]
    named = "rate = 3e-4\n" + text.replace("lr=3e-4", "lr=rate")
    assert convert(named, 2097152).values["optimizer.lr"] == 6e-4
    with pytest.raises(ValueError, match=r"optimizer\.lr must be a number, got 'rate'"):
        convert(named.replace("    return", body + "    return"), 2097152)
