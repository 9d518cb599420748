"""Against the real Trainer: a GPT-2 of two layers and width 32, randomly initialised, on synthetic text, on the CPU."""

import copy
import dataclasses
import gc
import inspect
import json
import math
import os
import runpy
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", reason="needs the extra: pip install 'rootscale[transformers]'")

import torch  # noqa: E402
from resumed_by_hand import go_on  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments  # noqa: E402
from transformers.optimization import TYPE_TO_SCHEDULER_FUNCTION  # noqa: E402
from transformers.trainer_utils import SchedulerType  # noqa: E402
from transformers.training_args import OptimizerNames  # noqa: E402

from rootscale import AdamW, Plan, RMSprop, ScalingWarning, Schedule  # noqa: E402
from rootscale.configs import convert_text  # noqa: E402
from rootscale.configs.tools.trainer import TRANSFORMERS  # noqa: E402
from rootscale.integrations.transformers import (  # noqa: E402
    RunCallback,
    explain_training_arguments,
    global_batch_size,
    scale_training_arguments,
)

ROOT = Path(__file__).parents[2]
BASE = {"per_device_train_batch_size": 4, "learning_rate": 1e-3, "adam_beta1": 0.95, "adam_beta2": 0.99}
NEW_SCHEDULES = {"greedy"} - {one.value for one in SchedulerType}  # what the lowest version, 5.0, does not have yet
FIELDS = {one.name for one in dataclasses.fields(TrainingArguments)}
BY_LENGTH = (
    {"train_sampling_strategy": "group_by_length"} if "train_sampling_strategy" in FIELDS else {"group_by_length": True}
)
QUIET = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no", "dataloader_pin_memory": False}


@pytest.fixture(scope="module", autouse=True)
def _quick_collection():
    """The Trainer collects garbage when training begins, which takes long if it goes through all that was imported."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    """The Trainer makes its folder, also where a test writes nothing to it."""
    monkeypatch.chdir(tmp_path)


def arguments(folder="unused", **values):
    return TrainingArguments(str(folder), **{**QUIET, **BASE, **values})


def tiny(seed=0):
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=16, n_positions=8, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    model = GPT2LMHeadModel(config).double()
    model.loss_function = double_loss
    return model


def double_loss(logits, labels, vocab_size, num_items_in_batch=None, **kwargs):
    """The library's own loss is computed in float32."""
    wanted = labels[:, 1:].reshape(-1)
    total = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, vocab_size), wanted, reduction="sum")
    return total / (len(wanted) if num_items_in_batch is None else num_items_in_batch)


def text(number, seed=0):
    """Sequences in which each token is the one before, plus one or two, or now and then anything."""
    g = torch.Generator().manual_seed(seed)
    steps = torch.where(
        torch.rand(number, 8, generator=g) < 0.3,
        torch.randint(0, 16, (number, 8), generator=g),
        torch.randint(1, 3, (number, 8), generator=g),
    )
    tokens = steps.cumsum(1) % 16
    return [{"input_ids": row, "labels": row} for row in tokens]


class Watch(TrainerCallback):
    """Learning rates by samples seen, and the loss on data of its own at every ``every`` samples."""

    def __init__(self, every=None):
        self.rates, self.losses, self.every = {}, {}, every
        self.data = torch.stack([row["input_ids"] for row in text(256, seed=1)])

    def on_step_begin(self, args, state, control, **kwargs):
        self.rates[state.global_step * global_batch_size(args).total] = kwargs["optimizer"].param_groups[0]["lr"]

    def on_step_end(self, args, state, control, model=None, **kwargs):
        samples = state.global_step * global_batch_size(args).total
        if self.every and samples % self.every == 0:
            with torch.no_grad():
                self.losses[samples] = model(self.data, labels=self.data).loss.item()


def trainer(args, *callbacks, data=64, **kwargs):
    return Trainer(
        tiny(), args, train_dataset=text(data) if isinstance(data, int) else data, callbacks=[*callbacks], **kwargs
    )


# ---- arguments


def test_everything_counted_in_steps_or_measured_in_noise_is_converted_and_nothing_else():
    args = arguments(
        weight_decay=0.1, max_steps=1000, warmup_steps=80, max_grad_norm=1.0, logging_steps=20, save_strategy="steps",
        save_steps=100, eval_strategy="steps", eval_steps=40, eval_delay=60, gradient_accumulation_steps=2,
    )  # fmt: skip
    before = copy.deepcopy(args.to_dict())
    new = scale_training_arguments(args, to=32)
    plan = Plan(
        AdamW(1e-3, 0.95, 0.99, 1e-8, weight_decay=0.1), 8, steps=1000, schedule=Schedule(warmup=80), clip=1.0,
        intervals={"logging": 20, "save": 100, "eval": 40},
    ).at(32)  # fmt: skip
    assert args.to_dict() == before
    changed = {key: value for key, value in new.to_dict().items() if value != before[key]}
    assert changed == {
        "learning_rate": plan.optimizer.eta,
        "adam_beta1": plan.optimizer.beta1,
        "adam_beta2": plan.optimizer.beta2,
        "adam_epsilon": plan.optimizer.eps,
        "weight_decay": plan.optimizer.weight_decay,
        "max_steps": plan.steps,
        "warmup_steps": plan.schedule.warmup,
        "max_grad_norm": plan.clip,
        "logging_steps": plan.intervals["logging"],
        "save_steps": plan.intervals["save"],
        "eval_steps": plan.intervals["eval"],
        "eval_delay": 15,
        "gradient_accumulation_steps": 8,
    }
    assert all(type(changed[key]) is int for key in ("max_steps", "warmup_steps", "logging_steps", "save_steps"))
    assert TrainingArguments(**{k: v for k, v in new.to_dict().items() if k in ("output_dir", *changed)})
    there = scale_training_arguments(args, to=32, rule="with paper")
    back = scale_training_arguments(there, to=8, rule="with paper").to_dict()
    assert {key: back[key] for key in changed} == pytest.approx({key: before[key] for key in changed})


def test_shares_and_epochs_mean_the_same_at_any_batch_size():
    args = arguments(num_train_epochs=3, warmup_steps=0.1, logging_steps=0.05, max_grad_norm=0)
    new = scale_training_arguments(args, to=16, dataset_size=1000)
    for name in ("num_train_epochs", "max_steps", "warmup_steps", "logging_steps", "max_grad_norm"):
        assert getattr(new, name) == getattr(args, name)
    changes = explain_training_arguments(args, to=16, dataset_size=1000)
    assert (changes["steps"].before, changes["steps"].used) == (750, 188)
    assert "batch size 4 -> 16 (4 micro x 4 accumulation x 1 workers)" in changes.title


def test_an_argument_of_a_subclass_that_may_count_steps_is_named():
    class Arguments(TrainingArguments):
        pass

    args = Arguments("out", per_device_train_batch_size=4, use_cpu=True)
    args.teacher_sync_steps, args.epsilon = 512, 0.2
    with pytest.warns(ScalingWarning, match="left as they are, .*: teacher_sync_steps=512; .* divided by 4"):
        assert scale_training_arguments(args, to=16).teacher_sync_steps == 512


@pytest.mark.filterwarnings("ignore::rootscale.ScalingWarning")
@pytest.mark.parametrize(
    ("to", "world_size", "layout"),
    [
        (64, 2, (4, 8)),
        (16, 4, (4, 1)),
        (8, 4, (2, 1)),  # the batch per device shrinks only where it must
        (20, 2, (2, 5)),
        ("8x2x16", 2, (8, 2)),
    ],
)
def test_devices_and_accumulation_are_counted(to, world_size, layout):
    args = arguments(gradient_accumulation_steps=2)
    new = scale_training_arguments(args, to=to, world_size=world_size, rule="sqrt-eta with power")
    assert (new.per_device_train_batch_size, new.gradient_accumulation_steps) == layout
    kappa = (256 if to == "8x2x16" else to) / (8 * world_size)
    assert new.learning_rate == pytest.approx(1e-3 * math.sqrt(kappa))


def test_rmsprop_is_converted_through_its_optim_args_and_sgd_linearly():
    args = arguments(optim="rmsprop", optim_args="alpha=0.98", weight_decay=0.1)
    if "alpha" not in Trainer.get_optimizer_cls_and_kwargs(args)[1]:
        pytest.skip("this version of transformers loses optim_args, which is refused")
    new = scale_training_arguments(args, to=16)
    made = Trainer.get_optimizer_cls_and_kwargs(new)
    want = Plan(RMSprop(1e-3, 0.98), 4).at(16).optimizer
    assert made == (torch.optim.RMSprop, {"lr": want.eta, "alpha": want.beta, "eps": want.eps})
    assert (new.weight_decay, new.adam_beta1, new.adam_epsilon) == (0.1, args.adam_beta1, args.adam_epsilon)
    sgd = scale_training_arguments(arguments(optim="sgd", optim_args="momentum=0.9", weight_decay=0.1), to=16)
    assert (sgd.learning_rate, sgd.weight_decay, sgd.optim_args) == (4e-3, 0.1, "momentum=0.9")


def test_optim_args_that_the_trainer_would_lose_are_refused(monkeypatch):
    """As version 5.0 does."""
    monkeypatch.setattr(Trainer, "get_optimizer_cls_and_kwargs", lambda args: (torch.optim.RMSprop, {"lr": 1e-3}))
    with pytest.raises(
        ValueError, match=r"does not give optim_args to RMSprop, so alpha, eps would be lost: use a newer"
    ):
        scale_training_arguments(arguments(optim="rmsprop", optim_args="alpha=0.98"), to=16)
    scale_training_arguments(arguments(), to=16)


def made_from(text, folder="unused"):
    """The arguments of a file, as `HfArgumentParser` makes them."""
    return TrainingArguments(str(folder), **{"use_cpu": True, "report_to": [], **json.loads(text)})


FILES = {
    "defaults": {},
    "8-bit": {"optim": "adamw_bnb_8bit", "weight_decay": 0.1},
    "sgd with momentum": {"optim": "sgd", "optim_args": "momentum=0.9", "weight_decay": 0.1},
    "evaluations": {"eval_strategy": "steps", "eval_steps": 40, "eval_delay": 60, "save_strategy": "no"},
    "evaluations by epochs": {"eval_strategy": "epoch", "eval_steps": 40, "eval_delay": 2, "save_strategy": "epoch"},
    "evaluations with the logs": {"eval_strategy": "steps", "logging_steps": 40},
    "best model": {
        "load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 30, "save_steps": 90, "max_steps": 600
    },
    "shares": {"warmup_steps": 0.1, "logging_steps": 0.05, "max_grad_norm": 0.0},
    "polynomial": {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"power": 2.0}, "warmup_steps": 80},
    "inverse_sqrt": {"lr_scheduler_type": "inverse_sqrt"},
    "plateau": {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 40},
    "stable": {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 80}},
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_converted_to_the_arguments_that_live_ones_become(name):
    given = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "adam_beta1": 0.95, **FILES[name]}
    text = json.dumps(given)
    live = scale_training_arguments(made_from(text), to=32).to_dict()
    after = made_from(convert_text(text, 32, world_size=1).after).to_dict()
    assert (live["gradient_accumulation_steps"], live["learning_rate"] > 5e-5) == (8, True)
    for key, value in live.items():
        kind = pytest.approx if isinstance(value, float | dict) else lambda x: x
        assert after[key] == (kind(value) if key != "accelerator_config" else value), key


@pytest.mark.parametrize("name", sorted({"greedy", "period", "auto", "split", "optimizer"} - NEW_SCHEDULES))
def test_a_file_is_refused_with_the_message_that_live_arguments_are(name):
    given = {
        "greedy": {"lr_scheduler_type": "greedy", "eval_strategy": "epoch"},
        "period": {"lr_scheduler_kwargs": {"period": 10}},
        "auto": {"auto_find_batch_size": True},
        "split": {"accelerator_config": {"split_batches": True}},
        "optimizer": {"optim": "ademamix"},
    }[name]
    text = json.dumps({"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, **given})
    messages = []
    for convert in (lambda: scale_training_arguments(made_from(text), to=32), lambda: convert_text(text, 32, start=8)):
        with pytest.raises(ValueError, match=r"known|switch it off|no rule") as caught:
            convert()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_the_defaults_of_the_table_are_those_of_transformers():
    fields = {one.name: one.default for one in dataclasses.fields(TrainingArguments)}
    for one in TRANSFORMERS.all_fields():
        if "." not in one.path and one.default is not None and one.path != "ref_model_sync_steps":  # of TRL
            assert fields[one.path] == one.default, one.path
    names = {one.value for one in OptimizerNames} | {"adamw_hf", "adamw_apex_fused"}  # two of transformers 4
    assert set(TRANSFORMERS.optimizers) <= names
    assert {one.value for one in SchedulerType} == set(TRANSFORMERS.schedules) - NEW_SCHEDULES
    for name, row in TRANSFORMERS.schedules.items():
        if name in NEW_SCHEDULES:
            continue
        takes = inspect.signature(TYPE_TO_SCHEDULER_FUNCTION[SchedulerType(name)]).parameters
        if name == "reduce_lr_on_plateau":
            takes = inspect.signature(torch.optim.lr_scheduler.ReduceLROnPlateau).parameters
        ours = {one.path.rpartition(".")[2]: one.default for one in row.fields}
        assert {*ours, *row.others} <= set(takes)
        for key, default in ours.items():
            assert default == takes[key].default or default is None or takes[key].default is None, (name, key)


def test_checkpoints_stay_a_multiple_of_evaluations_where_the_best_model_is_kept():
    both = {"save_strategy": "steps", "save_steps": 1000, "eval_strategy": "steps", "eval_steps": 500}
    new = scale_training_arguments(arguments(load_best_model_at_end=True, **both), to=12)
    assert (new.eval_steps, new.save_steps) == (167, 334)


SCHEDULES = {
    "linear": ({}, Schedule("linear", warmup=8)),
    "cosine": ({}, Schedule("cosine", warmup=8)),
    "polynomial": ({"power": 2.0}, Schedule("polynomial", warmup=8, power=2.0, min_eta=1e-7)),
    "constant_with_warmup": ({}, Schedule("constant", warmup=8)),
    "inverse_sqrt": ({}, Schedule("inverse-sqrt", warmup=8)),
    "cosine_with_min_lr": ({"min_lr": 1e-4}, Schedule("cosine", warmup=8, min_eta=1e-4)),
    "warmup_stable_decay": (
        {"num_decay_steps": 16, "decay_type": "linear"},
        Schedule("warmup-stable-decay", warmup=8, decay=16),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_trainer_makes_the_optimizer_and_the_schedule_of_the_plan(name):
    kwargs, schedule = SCHEDULES[name]
    args = arguments(weight_decay=0.1, max_steps=64, warmup_steps=8, lr_scheduler_type=name, lr_scheduler_kwargs=kwargs)
    plan = Plan(AdamW(1e-3, 0.95, 0.99, 1e-8, weight_decay=0.1), 4, steps=64, schedule=schedule)
    for run, size, wanted in ((args, 4, plan), (scale_training_arguments(args, to=16), 16, plan.at(16))):
        made = trainer(run)
        made.create_optimizer_and_scheduler(run.max_steps)
        group = made.optimizer.param_groups[0]
        record = wanted.optimizer
        assert (group["betas"], group["eps"]) == ((record.beta1, record.beta2), record.eps)
        assert group["weight_decay"] == record.weight_decay
        assert run.max_steps == wanted.steps
        for step in range(run.max_steps):
            base = plan.learning_rate(step * size / 4)
            assert group["lr"] == pytest.approx(wanted.learning_rate(step), rel=1e-9, abs=1e-15)
            assert group["lr"] == pytest.approx(math.sqrt(size / 4) * base, rel=1e-9, abs=1e-15)
            made.optimizer.step()
            made.lr_scheduler.step()


def test_numbers_that_the_library_takes_by_itself_are_converted_too():
    new = scale_training_arguments(arguments(lr_scheduler_type="inverse_sqrt"), to=16)
    assert new.lr_scheduler_kwargs == {"timescale": 2500}
    plateau = {"eval_strategy": "steps", "eval_steps": 8, "lr_scheduler_type": "reduce_lr_on_plateau"}
    new = scale_training_arguments(arguments(**plateau, lr_scheduler_kwargs={"patience": 3, "min_lr": 1e-5}), to=16)
    assert new.lr_scheduler_kwargs == {"patience": 3, "min_lr": 2e-5, "eps": 2e-8}
    assert new.eval_steps == 2


REFUSED = {
    "adafactor": ({"optim": "adafactor"}, "optim='adafactor': there is no rule for this optimizer"),
    "lomo": ({"optim": "lomo"}, "optim='lomo': there is no rule for this optimizer"),
    "momentum": ({"optim": "rmsprop", "optim_args": "momentum=0.9"}, "RMSprop with momentum"),
    "greedy": (
        {"lr_scheduler_type": "greedy", "eval_strategy": "epoch"},
        "lr_scheduler_type='greedy': it has no clock",
    ),
    "unknown number": ({"lr_scheduler_kwargs": {"period": 10}}, r"lr_scheduler_kwargs\.period: its unit is not known"),
    "changing batch": (
        {"auto_find_batch_size": True},
        "auto_find_batch_size=True: the Trainer then chooses the batch size",
    ),
    "split batches": (
        {"accelerator_config": {"split_batches": True}},
        "split_batches=True: per_device_train_batch_size then is the batch of all devices",
    ),
    "beta": ({"adam_beta1": 1.5}, r"beta1 must be in \[0, 1\), got 1.5"),
}


@pytest.mark.parametrize("why", [name for name in REFUSED if name not in NEW_SCHEDULES])
def test_what_cannot_be_converted_is_refused_by_name(why):
    values, message = REFUSED[why]
    args = arguments(**values)
    before = copy.deepcopy(args.to_dict())
    with pytest.raises(ValueError, match=message):
        scale_training_arguments(args, to=16)
    assert args.to_dict() == before


def test_a_batch_size_that_does_not_divide_is_refused_with_those_that_do():
    with pytest.raises(ValueError, match="to=18 does not divide among 4 workers; 16 or 20 would"):
        scale_training_arguments(arguments(), to=18, world_size=4)
    with pytest.raises(TypeError, match=r"args must be transformers\.TrainingArguments, got dict"):
        scale_training_arguments({}, to=18)


def test_a_schedule_that_counts_from_one_is_warned_about():
    args = arguments(lr_scheduler_type="cosine_warmup_with_min_lr", lr_scheduler_kwargs={"min_lr_rate": 0.1})
    with pytest.warns(ScalingWarning, match="only to within a step"):
        scale_training_arguments(args, to=16)


# ---- a run at another batch size, with the arguments as they are

LENGTH = {"max_steps": 64, "warmup_steps": 8, "lr_scheduler_type": "cosine", "max_grad_norm": 0.5, "weight_decay": 0.1}
TUNED = {**LENGTH, "adam_beta1": 0.98, "adam_beta2": 0.999, "seed": 3}
DATA, SAVED = 256, 16
SIZES = {
    "sixteen": ({"per_device_train_batch_size": 16}, 4),
    "accumulated": ({"gradient_accumulation_steps": 4}, 4),
    "two": ({"per_device_train_batch_size": 2}, 0.5),
    "same": ({}, 1),
}


class Seen(torch.utils.data.Dataset):
    """Data that remembers which of it was asked for."""

    def __init__(self, rows):
        self.rows, self.asked = rows, []

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        self.asked.append(i)
        return self.rows[i]


def followed(args, *callbacks, data=DATA, tuned_at=4, **options):
    """A Trainer with a RunCallback, and that."""
    made = trainer(args, *callbacks, data=data)
    return made, RunCallback(made, tuned_at=tuned_at, **options)


def resumed(folder, checkpoint):
    """What every batch size makes of a checkpoint."""
    found = {}
    for name, (size, _) in SIZES.items():
        data, watch = Seen(text(DATA)), Watch()
        args = arguments(Path(folder, name), **TUNED, **size, save_strategy="steps", save_steps=48)
        made, callback = followed(args, watch, data=data)
        made.train(checkpoint)
        found[name] = {
            "parameters": [p.detach() for p in made.model.parameters()], "asked": data.asked, "rates": watch.rates,
            "steps": (made.state.global_step, made.state.max_steps), "clock": callback.run.clock,
            "clip": args.max_grad_norm,
        }  # fmt: skip
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run at batch size 4 by a Trainer that knows nothing of this, with its checkpoints."""
    folder = tmp_path_factory.mktemp("plain")
    data, watch = Seen(text(DATA)), Watch()
    args = arguments(folder, **TUNED, save_strategy="steps", save_steps=SAVED)
    made = trainer(args, watch, data=data)
    made.train()
    return folder / f"checkpoint-{SAVED}", [p.detach() for p in made.model.parameters()], data.asked, watch.rates


@pytest.fixture(scope="module")
def fresh(plain, tmp_path_factory):
    """The same, resumed at other batch sizes in a fresh process."""
    folder = tmp_path_factory.mktemp("fresh")
    paths = os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests")))
    command = [sys.executable, __file__, folder, plain[0], folder / "found.pt"]
    subprocess.run(command, check=True, cwd=folder, env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"})
    return torch.load(folder / "found.pt", weights_only=False), folder


def cosine(step):
    if step < 8:
        return 1e-3 * step / 8
    return 1e-3 * 0.5 * (1 + math.cos(math.pi * (step - 8) / 56))


@pytest.mark.parametrize("name", [name for name in SIZES if name != "same"])
def test_a_checkpoint_of_a_plain_trainer_resumed_in_a_fresh_process_is_what_a_user_would_write(plain, fresh, name):
    checkpoint, found, kappa = plain[0], fresh[0][name], SIZES[name][1]
    order, size, rows = plain[2][SAVED * 4 : 64 * 4], round(4 * kappa), text(DATA)
    batches = [torch.stack([rows[i]["input_ids"] for i in order[k : k + size]]) for k in range(0, len(order), size)]
    model = tiny()
    model.load_state_dict(load_file(checkpoint / "model.safetensors"), strict=False)  # the head is tied
    model.tie_weights()
    saved = torch.load(checkpoint / "optimizer.pt", weights_only=True)
    groups = trainer(arguments(**TUNED))
    groups.model = model
    optimizer = groups.create_optimizer()
    wanted = go_on(
        model, [{"params": group["params"]} for group in optimizer.param_groups], saved, kappa, batches,
        lambda model, batch: model(batch, labels=batch).loss, cosine, SAVED, clip=0.5, fused=True,
    )  # fmt: skip
    for a, b in zip(found["parameters"], wanted, strict=True):  # they part by 5e-10, of steps of 1e-3
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)
    assert found["steps"] == (round(64 / kappa), round(64 / kappa))
    assert (found["clock"], found["clip"]) == (64, 0.5)


def test_resumed_at_the_same_batch_size_it_is_the_run_that_was_never_interrupted(plain, fresh):
    for a, b in zip(fresh[0]["same"]["parameters"], plain[1], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", SIZES)
def test_no_sample_is_skipped_or_seen_again_and_the_scripts_learning_rate_stays(plain, fresh, name):
    found = fresh[0][name]
    assert found["asked"][: len(plain[2]) - 64] == plain[2][64:]
    assert len(found["rates"]) == 48 / SIZES[name][1]
    for samples, rate in found["rates"].items():
        assert rate == pytest.approx(plain[3][samples // 4 * 4], rel=1e-12)


def test_checkpoints_hold_the_numbers_and_the_state_of_the_script(plain, fresh):
    """Of the run at 16: its 12th step is the script's 48th."""
    checkpoint = fresh[1] / "sixteen" / "checkpoint-12"
    mine, script = (
        torch.load(path / "optimizer.pt", weights_only=True) for path in (checkpoint, plain[0].parent / "checkpoint-48")
    )
    for a, b in zip(mine["param_groups"], script["param_groups"], strict=True):
        assert a == {**b, "lr": pytest.approx(b["lr"], rel=1e-12), "initial_lr": 1e-3}
    assert {float(state["step"]) for state in mine["state"].values()} == {48.0}
    a, b = (
        torch.load(path / "scheduler.pt", weights_only=True) for path in (checkpoint, plain[0].parent / "checkpoint-48")
    )
    assert a["last_epoch"] == b["last_epoch"] == 48
    assert set(a) == set(b)
    record = json.loads((checkpoint / "trainer_state.json").read_text())["stateful_callbacks"]["rootscale"]
    assert record["attributes"] == {"batch_size": "16x1x1"}


def test_a_second_change_and_the_way_back_need_nothing_either(plain, fresh, tmp_path):
    """4, then 16 for 32 steps of the script, then 4 again: the data in order, the schedule of the script to its end."""
    data, watch = Seen(text(DATA)), Watch()
    made, callback = followed(arguments(tmp_path, **TUNED), watch, data=data)
    made.train(str(fresh[1] / "sixteen" / "checkpoint-12"))
    assert data.asked[:64] == plain[2][192:256]
    assert watch.rates == pytest.approx({s: rate for s, rate in plain[3].items() if s >= 192}, rel=1e-12)
    assert (made.state.global_step, callback.run.clock) == (64, 64)


@pytest.mark.parametrize("kind", ["linear", "cosine", "constant_with_warmup", "inverse_sqrt"])
def test_a_schedule_over_epochs_is_of_the_scripts_steps(tmp_path, kind):
    rates = {}
    for size in (4, 16, 2):
        watch = Watch()
        options = {"num_train_epochs": 2, "max_steps": -1, "warmup_steps": 0.25, "lr_scheduler_type": kind}
        made, _ = followed(arguments(tmp_path, per_device_train_batch_size=size, **options), watch, data=64)
        made.train()
        assert made.state.global_step == made.state.max_steps == 128 / size
        rates[size] = watch.rates
    for size in (16, 2):
        for samples, rate in rates[size].items():
            assert rate == pytest.approx(rates[4][samples // 4 * 4], rel=1e-12)


def test_a_schedule_of_the_users_own_keeps_its_length(tmp_path):
    model = tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=32)
    args = arguments(tmp_path, per_device_train_batch_size=16, max_steps=-1, num_train_epochs=2)
    made = Trainer(model, args, train_dataset=text(64), optimizers=(optimizer, scheduler))
    callback = RunCallback(made, tuned_at=4)
    made.train()
    assert (made.state.global_step, callback.run.clock, scheduler.last_epoch) == (8, 32, 32)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0, abs=1e-12)


def test_intervals_and_the_evaluation_delay_are_counted_in_steps_of_the_script(tmp_path):
    class Events(TrainerCallback):
        saved, evaluated = (), ()

        def on_save(self, args, state, control, **kwargs):
            self.saved = (*self.saved, state.global_step)

        def on_evaluate(self, args, state, control, **kwargs):
            self.evaluated = (*self.evaluated, state.global_step)

    options = {"save_strategy": "steps", "save_steps": 24, "eval_strategy": "steps", "eval_steps": 8, "eval_delay": 16}
    args = arguments(tmp_path, per_device_train_batch_size=16, max_steps=64, logging_steps=0.25, **options)
    before = copy.deepcopy(args.to_dict())
    made = trainer(args, events := Events(), data=DATA, eval_dataset=text(8))
    RunCallback(made, tuned_at=4)
    made.train()
    logged = [entry for entry in made.state.log_history if "loss" in entry]
    assert [entry["step"] for entry in logged] == [4, 8, 12, 16]
    assert (events.saved, events.evaluated) == ((6, 12, 16), (4, 6, 8, 10, 12, 14, 16))
    assert args.to_dict() == before


def test_after_training_or_an_error_everything_is_as_the_script_made_it(tmp_path):
    class Break(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            raise RuntimeError("broken")

    model = Normed()
    ema = types.SimpleNamespace(decay=0.99)
    args = arguments(tmp_path, per_device_train_batch_size=16, max_steps=16)
    made = Trainer(model, args, train_dataset=REGRESSION, callbacks=[Break()])
    callback = RunCallback(made, tuned_at=4, ema=ema)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"):
            made.train()
        assert (model.net[1].momentum, ema.decay, args.max_grad_norm) == (0.1, 0.99, 1.0)
        assert callback.changes["BatchNorm momentum"].after == pytest.approx(1 - 0.9**4)
        assert callback.changes["EMA decay"].after == pytest.approx(0.99**4)
    made.remove_callback(Break)
    made.train()
    assert callback.run.clock == 24  # the optimizer of a Trainer goes on where it was


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))

    def forward(self, x, labels=None):
        return {"loss": (self.net(x).squeeze(1) - labels).square().mean()}


REGRESSION = [
    {"x": torch.randn(4, generator=torch.Generator().manual_seed(i)), "labels": torch.tensor(1.0)} for i in range(64)
]


def test_batchnorm_follows_the_samples_of_a_forward_and_needs_the_layout_where_that_is_not_known(tmp_path):
    class Momentum(TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, **kwargs):
            self.found = model.net[1].momentum

    def momentum(tuned_at, **size):
        args = arguments(tmp_path, max_steps=4, **size)
        made = Trainer(Normed(), args, train_dataset=REGRESSION, callbacks=[seen := Momentum()])
        RunCallback(made, tuned_at=tuned_at)
        made.train()
        return seen.found

    assert momentum("4x1x1", per_device_train_batch_size=16) == pytest.approx(1 - 0.9**4)
    assert momentum(4, per_device_train_batch_size=16) == pytest.approx(1 - 0.9**4)
    assert momentum("4x1x1", gradient_accumulation_steps=4) == 0.1
    assert momentum("4x2x1", per_device_train_batch_size=8) == pytest.approx(1 - 0.9**2)
    with pytest.raises(ValueError, match=r"the layout 4x4x1 beside 4 does not say how many samples one forward has"):
        momentum(4, gradient_accumulation_steps=4)


@pytest.mark.parametrize("optim", ["sgd", "adafactor", "rmsprop", "adagrad"])
def test_other_optimizers_of_the_trainer_are_resumed_as_if_they_had_not_been_interrupted(tmp_path, optim):
    """At four times the batch size all the way, and from a checkpoint: SGD has no counter of its own for the clock."""
    found = []
    options = {"optim": optim, "per_device_train_batch_size": 16, "max_steps": 32, "save_strategy": "steps"}
    for checkpoint in (None, str(tmp_path / "a" / "checkpoint-4")):
        name = "b" if checkpoint else "a"
        args = arguments(tmp_path / name, **options, save_steps=16, lr_scheduler_type="linear", learning_rate=1e-2)
        made, callback = followed(args, data=DATA)
        made.train(checkpoint)
        assert (made.state.global_step, callback.run.clock) == (8, 32)
        assert callback.changes["lr (group 0)"].after == pytest.approx(
            {"sgd": 4, "adagrad": 1, "adafactor": 2, "rmsprop": 2}[optim] * callback.changes["lr (group 0)"].before
        )
        found.append([p.detach() for p in made.model.parameters()])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_schedule_free_follows(tmp_path):
    pytest.importorskip("schedulefree")
    args = arguments(tmp_path, optim="schedule_free_adamw", per_device_train_batch_size=16, max_steps=32)
    made, callback = followed(args, data=DATA)
    made.train()
    assert (made.state.global_step, callback.run.clock) == (8, 32)
    assert callback.changes["lr (group 0)"].after == pytest.approx(2e-3)


def test_true_takes_the_checkpoint_with_most_samples_and_numbers_in_one_folder_are_a_warning(plain, tmp_path):
    folder = tmp_path / "out"
    shutil.copytree(plain[0].parent, folder)
    for item in folder.glob("checkpoint-*"):
        if item.name not in ("checkpoint-16", "checkpoint-32"):
            shutil.rmtree(item)
    args = arguments(folder, **TUNED, per_device_train_batch_size=16, save_strategy="steps", save_steps=16)
    made, callback = followed(args, Stop(4))
    with pytest.warns(
        ScalingWarning, match=r"numbered in steps of 16 from here on, from 8, and may replace .*point-16"
    ):
        made.train(resume_from_checkpoint=True)
    assert (made.state.global_step, callback.run.clock) == (12, 48)
    made, callback = followed(args, stop := Stop(1))
    made.train(resume_from_checkpoint=True)  # checkpoint-12 of 16, not checkpoint-32 of 4
    assert stop.began == 12
    with pytest.raises(ValueError, match=r"needs a checkpoint in .*nowhere, and there is none"):
        followed(arguments(tmp_path / "nowhere", **TUNED))[0].train(resume_from_checkpoint=True)


class Stop(TrainerCallback):
    """Ends the training after so many steps."""

    def __init__(self, after):
        self.after = after

    def on_train_begin(self, args, state, control, **kwargs):
        self.began = state.global_step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.began + self.after


def test_samples_that_are_seen_again_are_counted(plain, tmp_path):
    made, callback = followed(arguments(tmp_path, **TUNED, per_device_train_batch_size=12), stop := Stop(1))
    with pytest.warns(ScalingWarning, match="4 samples are seen again: after 16 steps of batch size 4"):
        made.train(str(plain[0]))
    assert (stop.began, callback.run.clock) == (5, 19)


@pytest.mark.filterwarnings("error::rootscale.ScalingWarning")
def test_groups_by_length_are_warned_of_inside_an_epoch(tmp_path):
    args = arguments(tmp_path / "a", **BY_LENGTH, save_strategy="steps", save_steps=8, max_steps=32)
    trainer(args, Stop(16), data=64).train()  # an epoch has 16 steps
    larger = arguments(tmp_path / "b", **BY_LENGTH, max_steps=32, per_device_train_batch_size=16)
    with pytest.raises(ScalingWarning, match="group_by_length orders the data by the batch size"):
        followed(larger, Stop(1), data=64)[0].train(str(tmp_path / "a" / "checkpoint-8"))
    followed(larger, Stop(1), data=64)[0].train(str(tmp_path / "a" / "checkpoint-16"))


def test_what_cannot_work_is_refused_before_a_step_is_made(tmp_path):
    with pytest.raises(TypeError, match=r"takes the Trainer itself, got GPT2LMHeadModel: make it after the Trainer"):
        RunCallback(tiny(), tuned_at=4)
    made, _ = followed(arguments(tmp_path))
    with pytest.raises(ValueError, match="this Trainer has a RunCallback already"):
        RunCallback(made, tuned_at=4)
    for options, message in (
        ({"auto_find_batch_size": True}, "does not work with auto_find_batch_size=True: the Trainer then chooses"),
        ({"accelerator_config": {"split_batches": True}}, "does not work with split_batches=True: per_device_train_"),
    ):
        with pytest.raises(ValueError, match=message):
            followed(arguments(tmp_path, **options))
    with pytest.raises(ValueError, match="batch_size must be"):
        followed(arguments(tmp_path), tuned_at="4x4")
    model = tiny()
    optimizer = torch.optim.Rprop(model.parameters())
    made = Trainer(model, arguments(tmp_path), train_dataset=text(8), optimizers=(optimizer, None))
    RunCallback(made, tuned_at=4)
    with pytest.raises(TypeError, match="Rprop has no rule that keeps its dynamics"):
        made.train()
    assert made.state.global_step == 0


def test_a_checkpoint_that_an_earlier_version_converted_in_place_is_refused(plain, tmp_path):
    folder = tmp_path / "checkpoint-16"
    shutil.copytree(plain[0], folder)
    state = torch.load(folder / "optimizer.pt", weights_only=True)
    for group in state["param_groups"]:
        group["rootscale_kappa"] = 4.0
    torch.save(state, folder / "optimizer.pt")
    with pytest.raises(ValueError, match=r"converted in place by rootscale 0\.1"):
        followed(arguments(tmp_path / "new", **TUNED))[0].train(str(folder))


def test_the_speed_that_the_trainer_logs_is_that_of_the_samples_it_has_seen(tmp_path):
    made, _ = followed(arguments(tmp_path, per_device_train_batch_size=16, max_steps=64), data=DATA)
    metrics = made.train().metrics
    assert metrics["train_samples_per_second"] == pytest.approx(16 * metrics["train_steps_per_second"], rel=1e-2)


# ---- the noise


def test_the_noise_scale_is_logged_with_the_loss_whatever_the_clip(tmp_path):
    logged = []
    for clip in (0, 1e-3):
        args = arguments(
            tmp_path,
            gradient_accumulation_steps=4,
            max_steps=16,
            logging_steps=8,
            max_grad_norm=clip,
            learning_rate=1e-9,
        )
        made, _ = followed(args, tuned_at=16, noise_every=1)
        made.train()
        logged.append([entry for entry in made.state.log_history if "loss" in entry])
    for entry in logged[0]:
        assert entry["noise_scale_low"] < entry["noise_scale"] < entry["noise_scale_high"]
    # Clipping changes what the optimizer gets, not what was measured.
    assert [e["noise_scale"] for e in logged[1]] == pytest.approx([e["noise_scale"] for e in logged[0]], rel=1e-3)


def test_the_noise_scale_is_that_of_the_gradients(tmp_path):
    rows = text(DATA)
    args = arguments(tmp_path, gradient_accumulation_steps=4, max_steps=12, logging_steps=12, learning_rate=1e-12)
    made, _ = followed(args, data=rows, tuned_at=16, noise_every=1, noise_window=12)
    made.train()
    entry = next(e for e in made.state.log_history if "loss" in e)
    model, squares, total = tiny(), 0.0, 0.0
    parameters = list(model.parameters())
    for row in rows[:64]:
        loss = model(row["input_ids"][None], labels=row["labels"][None]).loss
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])
        squares, total = squares + gradient.square().sum().item(), total + gradient
    whole = (total / 64).square().sum().item()
    trace = (squares / 64 - whole) * 64 / 63
    assert entry["noise_scale_low"] < trace / (whole - trace / 64) < entry["noise_scale_high"]


def test_the_last_step_of_an_epoch_with_fewer_parts_is_left_out(tmp_path):
    args = arguments(tmp_path, gradient_accumulation_steps=3, num_train_epochs=4, logging_steps=1, max_grad_norm=1)
    made, callback = followed(args, data=4 * 10, tuned_at=12, noise_every=1)  # ten micro-batches: 3 + 3 + 3 + 1

    class Count(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            self.steps = callback._noise.steps

    made.add_callback(count := Count())
    made.train()
    assert (made.state.global_step, count.steps) == (16, 12)


# ---- a batch that grows

GROWING = {
    "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "num_train_epochs": 4, "logging_steps": 1,
    "save_strategy": "steps", "save_steps": 17, "lr_scheduler_type": "constant", "max_grad_norm": 1e9,
}  # fmt: skip


def grown(folder, *callbacks, data, grow=None, **values):
    """A Trainer with noise enough to grow soon: labels are random."""
    torch.manual_seed(0)
    args = arguments(folder, **{**GROWING, **values})
    made = trainer(args, *callbacks, data=data)
    return made, RunCallback(made, tuned_at=4, grow={"most": 16, "every": 2, "window": 16, **(grow or {})})


def random_text(number):
    tokens = torch.randint(0, 16, (number, 8), generator=torch.Generator().manual_seed(3))
    return [{"input_ids": row, "labels": row} for row in tokens]


class Sizes(TrainerCallback):
    """The batch size of each step, as the Trainer makes it."""

    def __init__(self):
        self.sizes = []

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.sizes.append(global_batch_size(args).total)


@pytest.mark.parametrize(("number", "epochs"), [(202, 2), (96, 4)])
def test_the_batch_of_a_trainer_grows_and_a_resumed_run_is_the_one_that_was_not_interrupted(tmp_path, number, epochs):
    """From every checkpoint: no sample is lost or repeated, the weights are those of the run that went on."""
    data, sizes = Seen(random_text(number)), Sizes()
    made, callback = grown(tmp_path / "steady", sizes, data=data, num_train_epochs=epochs)
    made.train()
    assert sorted(set(sizes.sizes)) == [4, 8, 16]
    assert sizes.sizes == sorted(sizes.sizes)
    for epoch in range(epochs):
        assert sorted(data.asked[number * epoch : number * (epoch + 1)]) == list(range(number))
    assert made.args.gradient_accumulation_steps == 2, "the script's, after the training"
    assert all(size <= 0.5 * noise.scale.low for _, size, noise in callback.grow.history)
    logged = [entry for entry in made.state.log_history if "loss" in entry]
    assert {entry["rootscale/batch_size"] for entry in logged} == {4.0, 8.0, 16.0}
    assert logged[-1]["noise_scale_low"] > 0
    checkpoints = sorted((tmp_path / "steady").glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    assert len(checkpoints) > 2
    for path in checkpoints:
        record = json.loads((path / "trainer_state.json").read_text())["stateful_callbacks"]["rootscale"]["attributes"]
        again = Seen(random_text(number))
        other, resumed = grown(tmp_path / "again", data=again, num_train_epochs=epochs, save_strategy="no")
        other.train(str(path))
        size = math.prod(map(int, record["batch_size"].split("x")))
        epoch, within = divmod(record["steps"], math.ceil(number / size))
        assert again.asked == data.asked[epoch * number + within * size :]
        assert [entry[:2] for entry in resumed.grow.history] == [entry[:2] for entry in callback.grow.history]
        for a, b in zip(other.model.parameters(), made.model.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_a_length_in_steps_is_of_the_scripts_steps_while_the_batch_grows(tmp_path):
    data, sizes = Seen(random_text(96)), Sizes()
    made, _ = grown(tmp_path, sizes, data=data, max_steps=150, save_strategy="no")
    made.train()
    assert max(sizes.sizes) > 4
    assert 600 <= sum(sizes.sizes) < 600 + 3 * max(sizes.sizes)
    assert made.state.global_step == made.state.max_steps == len(sizes.sizes)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gradient_accumulation_steps": 1}, "grow= needs gradient_accumulation_steps >= 2.*_size=1 and"),
        (BY_LENGTH, "grow= does not work with group_by_length"),
    ],
)
def test_growth_that_could_not_be_measured_or_resumed_is_refused(tmp_path, values, message):
    with pytest.raises(ValueError, match=message):
        grown(tmp_path, data=random_text(16), **values)[0].train()


def test_a_grown_checkpoint_on_devices_that_cannot_make_its_batch_is_refused(tmp_path):
    made, _ = grown(tmp_path / "two", data=random_text(96))
    made.train()
    last = max((tmp_path / "two").glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    other, _ = grown(tmp_path / "three", data=random_text(96), per_device_train_batch_size=3)
    with pytest.raises(ValueError, match="had grown to 16, which 3 samples over all devices cannot make: choose"):
        other.train(str(last))


def test_noise_without_parts_is_refused(tmp_path):
    with pytest.raises(ValueError, match="noise_every needs gradient_accumulation_steps >= 2"):
        followed(arguments(tmp_path, max_steps=1), noise_every=1)[0].train()


def test_the_example_runs_and_warns_that_its_batch_exceeds_the_noise_scale(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.warns(ScalingWarning, match="the batch of 16 samples exceeds the measured noise scale"):
        runpy.run_path(str(ROOT / "examples" / "transformers_trainer.py"), run_name="__main__")
    assert "noise_scale" in capsys.readouterr().out


if __name__ == "__main__":  # the fresh process
    out, saved, result = sys.argv[1:]
    torch.save(resumed(out, saved), result)
