"""Against the real Trainer: a GPT-2 of two layers and width 32, randomly initialised, on synthetic text, on the CPU."""

import copy
import dataclasses
import gc
import inspect
import json
import math
import os
import re
import runpy
import types
from itertools import accumulate
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", reason="needs the extra: pip install 'rootscale[transformers]'")

import torch  # noqa: E402
from live import on_the_clock  # noqa: E402
from torch.optim.lr_scheduler import LambdaLR  # noqa: E402
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments  # noqa: E402
from transformers.optimization import TYPE_TO_SCHEDULER_FUNCTION  # noqa: E402
from transformers.trainer_utils import SchedulerType  # noqa: E402
from transformers.training_args import OptimizerNames  # noqa: E402

from rootscale import AdamW, Plan, RMSprop, ScalingWarning, Schedule  # noqa: E402
from rootscale.configs import convert_text  # noqa: E402
from rootscale.configs.tools.trainer import TRANSFORMERS  # noqa: E402
from rootscale.integrations.transformers import (  # noqa: E402
    RescaleCallback,
    SampleClockMixin,
    explain_training_arguments,
    global_batch_size,
    resume,
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
    return GPT2LMHeadModel(config).double()


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


# ---- a run that goes on

LENGTH = {"max_steps": 128, "warmup_steps": 16, "lr_scheduler_type": "cosine", "max_grad_norm": 0, "weight_decay": 0.1}
DATA = 1024


class Seen(torch.utils.data.Dataset):
    """Data that remembers which of it was asked for."""

    def __init__(self, rows):
        self.rows, self.asked = rows, []

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        self.asked.append(i)
        return self.rows[i]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run at batch size 4 that leaves a checkpoint in its middle."""
    folder = tmp_path_factory.mktemp("run")
    args = arguments(folder / "small", save_strategy="steps", save_steps=64, seed=3, **LENGTH)
    watch, data = Watch(every=32), Seen(text(DATA))
    trainer(args, RescaleCallback(), watch, data=data).train()
    return args, folder / "small" / "checkpoint-64", watch, data


class Stop(TrainerCallback):
    """Ends the training after so many steps, and keeps what the Trainer had when it began."""

    def __init__(self, after):
        self.after = after

    def on_train_begin(self, args, state, control, **kwargs):
        self.began, self.optimizer, self.scheduler = state.global_step, kwargs["optimizer"], kwargs["lr_scheduler"]
        self.state = copy.deepcopy(self.optimizer.state_dict())

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.began + self.after


def larger(args, folder, to=16, **values):
    new = scale_training_arguments(args, to=to)
    new.output_dir = str(folder)
    for key, value in values.items():
        setattr(new, key, value)
    return new


def test_the_checkpoint_says_its_batch_size(run):
    _, checkpoint, *_ = run
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    assert state["stateful_callbacks"]["RescaleCallback"]["attributes"]["batch_size"] == "4x1x1"


def test_the_state_is_converted_when_the_run_goes_on_at_four_times_the_batch_size(run, tmp_path):
    args, checkpoint, *_ = run
    held = torch.load(checkpoint / "optimizer.pt", weights_only=True)
    listing = sorted((p.name, p.stat().st_mtime_ns) for p in checkpoint.iterdir())
    callback, stop = RescaleCallback(), Stop(after=1)
    resume(trainer(larger(args, tmp_path), callback, stop, data=DATA), checkpoint)
    assert stop.began == 16
    assert sorted((p.name, p.stat().st_mtime_ns) for p in checkpoint.iterdir()) == listing
    m = math.sqrt((0.1 / 1.9) / (4 * 0.05 / 1.95))  # beta1 goes from .95 to its floor
    factors = {"exp_avg": m, "exp_avg_sq": 1 / 4, "step": 1 / 4}
    for key, old in held["state"].items():
        for name, factor in factors.items():
            torch.testing.assert_close(stop.state["state"][key][name], old[name] * factor, rtol=1e-12, atol=0)
    for old, new in zip(held["param_groups"], stop.state["param_groups"], strict=True):
        assert new["lr"] == pytest.approx(2 * old["lr"], rel=1e-9)
        assert new["betas"] == pytest.approx((0.9, 0.96))
        assert new["eps"] == pytest.approx(5e-9)
        assert new["weight_decay"] == pytest.approx(2 * old["weight_decay"])
    assert callback.changes["lr (group 0)"].after == pytest.approx(2 * held["param_groups"][0]["lr"])
    options = [re.search(r"RescaleCallback\((\w+)=", text)[1] for text in callback.changes.remaining]
    assert options == ["batchnorm", "ema"]
    assert type(stop.scheduler) is LambdaLR  # an ordinary one


@pytest.fixture(scope="module")
def switched(run, tmp_path_factory):
    """The run from its checkpoint on at batch size 16, which leaves a checkpoint of its own."""
    args, checkpoint, *_ = run
    folder, watch, data = tmp_path_factory.mktemp("switched"), Watch(every=32), Seen(text(DATA))
    new = larger(args, folder, save_steps=24)
    resume(trainer(new, RescaleCallback(), watch, data=data), checkpoint)
    return new, folder / "checkpoint-24", watch, data


def test_the_learning_rate_is_the_rules_multiple_at_equal_samples_to_the_end(run, switched):
    (_, _, small, _), (_, _, large, _) = run, switched
    assert list(large.rates) == list(range(256, 512, 16))
    for samples, rate in large.rates.items():
        assert rate == pytest.approx(2 * small.rates[samples], rel=1e-9)


def test_the_loss_follows_that_of_the_run_which_kept_its_batch_size_and_without_conversion_it_does_not(
    run, switched, tmp_path
):
    (args, checkpoint, small, _), (_, _, large, _) = run, switched
    naive = copy.copy(args)
    naive.output_dir, naive.gradient_accumulation_steps, naive.max_steps = str(tmp_path), 4, 64 + 16
    watch = Watch(every=32)
    trainer(naive, watch, data=DATA).train(resume_from_checkpoint=str(checkpoint))
    base = [loss for samples, loss in small.losses.items() if samples > 256]
    span = max(small.losses.values()) - min(small.losses.values())
    converted, not_converted = (
        max(abs(a - b) for a, b in zip(list(one.losses.values())[-8:], base, strict=True)) / span
        for one in (large, watch)
    )
    print(f"gap / range: converted {converted:.4f}, not converted {not_converted:.4f}")
    assert converted < 0.03  # over four seeds: 0.006 to 0.010
    assert not_converted > 5 * converted  # over four seeds: 0.143 to 0.159


def test_no_sample_is_skipped_or_seen_again(run, switched):
    assert switched[3].asked[:256] == run[3].asked[256:512]


def test_a_checkpoint_from_after_the_switch_is_an_ordinary_one(switched, tmp_path):
    args, checkpoint, watch, _ = switched
    new = copy.copy(args)
    new.output_dir = str(tmp_path)
    callback, again = RescaleCallback(), Watch(every=32)
    trainer(new, callback, again, data=DATA).train(resume_from_checkpoint=str(checkpoint))
    assert callback.changes is None
    assert callback.started_at == "4x1x1"
    assert again.losses == pytest.approx({s: x for s, x in watch.losses.items() if s > 24 * 16}, rel=1e-9)


def test_a_checkpoint_that_does_not_say_its_batch_size_needs_it_given(run, tmp_path):
    args, checkpoint, *_ = run
    bare = tmp_path / "checkpoint-64"
    bare.mkdir()
    for item in checkpoint.iterdir():
        (bare / item.name).symlink_to(item)
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    del state["stateful_callbacks"]["RescaleCallback"]
    (bare / "trainer_state.json").unlink()
    (bare / "trainer_state.json").write_text(json.dumps(state))
    made = trainer(larger(args, tmp_path / "new", save_strategy="steps", save_steps=17), Stop(1), data=DATA)
    with pytest.raises(ValueError, match=r"does not say at which global batch size .* give batch_size="):
        resume(made, bare)
    resume(made, bare, batch_size=4)
    assert (tmp_path / "new" / "checkpoint-17").exists()
    with pytest.warns(ScalingWarning, match="does not say its batch size; taken as 16"):
        trainer(larger(args, tmp_path / "newer"), RescaleCallback(), Stop(1), data=DATA).train(
            resume_from_checkpoint=str(bare)
        )


def test_samples_that_are_seen_again_are_counted(run, tmp_path):
    args, checkpoint, *_ = run
    stop = Stop(1)
    made = trainer(larger(args, tmp_path, to=12), stop, data=DATA)
    with pytest.warns(ScalingWarning, match="4 samples are seen again"):
        resume(made, checkpoint)
    assert stop.began == 21


def test_the_place_in_the_data_counts_epochs(run, tmp_path):
    args, checkpoint, *_ = run  # 256 samples: two epochs of 104 and 48 more; an epoch has 7 steps of 16
    stop = Stop(1)
    resume(trainer(larger(args, tmp_path), stop, data=104), checkpoint)
    assert stop.began == 2 * 7 + 3


def test_a_checkpoint_younger_than_a_step_of_the_new_size_is_converted_too(tmp_path):
    args = arguments(tmp_path / "a", save_strategy="steps", save_steps=8, **LENGTH)
    args.adam_beta1, data, again = 0.98, Seen(text(DATA)), Seen(text(DATA))
    trainer(args, RescaleCallback(), Stop(after=8), data=data).train()
    callback, stop = RescaleCallback(), Stop(after=1)
    made = trainer(larger(args, tmp_path / "b", to=64), callback, stop, data=again)
    with pytest.warns(ScalingWarning, match="32 samples are seen again"):
        resume(made, tmp_path / "a" / "checkpoint-8")
    assert stop.began == 0
    assert callback.changes is not None
    for group in stop.state["param_groups"]:
        assert group["initial_lr"] == pytest.approx(4e-3)
        assert group["betas"] == pytest.approx((0.9, 0.9))  # their floors
        assert group["eps"] == pytest.approx(2.5e-9)
    assert {float(state["step"]) for state in stop.state["state"].values()} == {0.5}
    assert stop.scheduler.last_epoch == 1
    assert again.asked[:32] == data.asked[:32]


def test_a_callback_of_an_earlier_training_starts_another_one_afresh(tmp_path):
    callback = RescaleCallback()
    trainer(arguments(tmp_path / "a", max_steps=2), callback).train()
    trainer(arguments(tmp_path / "b", max_steps=2, per_device_train_batch_size=8), callback).train()
    assert callback.changes is None
    assert (callback.batch_size, callback.started_at) == ("8x1x1", "8x1x1")
    trainer(arguments(tmp_path / "c", max_steps=2), callback, RescaleCallback()).train()
    assert callback.batch_size == "4x1x1"


@pytest.mark.filterwarnings("error::rootscale.ScalingWarning")
def test_groups_by_length_are_warned_of_inside_an_epoch(tmp_path):
    first = arguments(tmp_path / "a", **BY_LENGTH, save_strategy="steps", save_steps=8, max_steps=32)
    trainer(first, RescaleCallback(), Stop(16), data=64).train()  # an epoch has 16 steps
    for step in (8, 16):
        made = trainer(larger(first, tmp_path / f"b{step}"), Stop(1), data=64)
        checkpoint = tmp_path / "a" / f"checkpoint-{step}"
        if step == 16:
            resume(made, checkpoint)
        else:
            with pytest.raises(ScalingWarning, match="group_by_length orders the data by the batch size"):
                resume(made, checkpoint)
            resume(trainer(first, Stop(1), data=64), checkpoint)  # the same batch size, the same order


def test_resuming_inconsistently_is_refused_before_a_step_is_made(run, tmp_path):
    args, checkpoint, *_ = run

    def refused(new, message, call=resume, error=ValueError, **kwargs):
        made = trainer(new, RescaleCallback(), Watch(), data=DATA)
        with pytest.raises(error, match=message):
            call(made, checkpoint, **kwargs)
        assert made.state.global_step in (0, 16, 64)

    new = larger(args, tmp_path)
    plain = lambda made, path: made.train(resume_from_checkpoint=str(path))  # noqa: E731
    refused(new, r"written at batch size 4 and is resumed at 16 \(4 micro x 4 acc.*use.*resume\(trainer", plain)
    refused(larger(args, tmp_path, learning_rate=1e-3), r"eta=0.001 becomes 0.002 at kappa = 4.*have 0.001: take them")
    refused(larger(args, tmp_path, adam_beta2=0.99), r"beta2=0.99 becomes 0.96")
    refused(larger(args, tmp_path, max_steps=256), "but the schedule of the arguments has .* at step 16")
    refused(larger(args, args.output_dir), "output_dir must be another folder than that of checkpoint-64")
    refused(new, "batch_size is 8, but checkpoint-64 says that it was written at 4", batch_size=8)
    refused(larger(args, tmp_path, optim="adafactor"), "optim='adafactor': there is no rule")
    refused(
        larger(args, tmp_path, optim="adamw_apex_fused"),
        "optim='adamw_apex_fused' keeps its state in a form of its own.* the state can be of adamw_torch, .*adamw_8bit",
    )


def test_a_run_with_its_state_in_8_bits_is_resumed_at_another_batch_size(tmp_path):
    pytest.importorskip("bitsandbytes")
    args = arguments(tmp_path / "a", save_strategy="steps", save_steps=8, **LENGTH)
    args.adam_beta1, args.optim = 0.98, "adamw_bnb_8bit"
    trainer(args, RescaleCallback(), Stop(after=8)).train()
    callback, stop = RescaleCallback(), Stop(after=1)
    resume(trainer(larger(args, tmp_path / "b"), callback, stop), tmp_path / "a" / "checkpoint-8")
    assert stop.began == 2
    factors = {row.name: row.after for row in callback.changes.rows if row.name.startswith("factor of")}
    second = [after for name, after in factors.items() if "state2" in name]
    assert second
    assert set(second) == {0.25}
    assert {float(state["step"]) for state in stop.state["state"].values()} == {2}


def test_a_scheduler_of_ones_own_is_refused(tmp_path):
    model = tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    optimizers = (optimizer, scheduler)
    first = arguments(tmp_path / "a", save_strategy="steps", save_steps=4, max_steps=4)
    Trainer(model, first, train_dataset=text(64), optimizers=optimizers, callbacks=[RescaleCallback()]).train()
    made = Trainer(model, larger(first, tmp_path / "b"), train_dataset=text(64), optimizers=optimizers)
    with pytest.raises(TypeError, match=r"one that the Trainer makes .* got StepLR, whose clock is not known"):
        resume(made, tmp_path / "a" / "checkpoint-4")


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))

    def forward(self, x, labels=None):
        return {"loss": (self.net(x).squeeze(1) - labels).square().mean()}


def test_batchnorm_and_averages_are_converted_from_the_batch_size_at_which_the_run_started(tmp_path):
    data = [{"x": torch.randn(4), "labels": torch.tensor(1.0)} for _ in range(64)]

    def made(args):
        model = Normed()
        ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
        return model, ema, Trainer(
            model, args, train_dataset=data, callbacks=[RescaleCallback(batchnorm=True, ema=ema)]
        )  # fmt: skip

    args = arguments(tmp_path / "a", max_steps=16, save_strategy="steps", save_steps=8)
    model, _, small = made(args)
    small.train()
    assert model.net[1].momentum == 0.1
    for to, forward in (("8x2x1", 2), (16, 1)):  # BatchNorm counts forwards, which accumulation leaves as they are
        args_b = larger(args, tmp_path / f"b{to}", to=to, save_steps=3)
        model, ema, large = made(args_b)
        resume(large, tmp_path / "a" / "checkpoint-8")
        model2, ema2, later = made(args_b)  # code as before, from a checkpoint of the larger batch size
        later.train(resume_from_checkpoint=str(tmp_path / f"b{to}" / "checkpoint-3"))
        for one, average in ((model, ema), (model2, ema2)):
            assert one.net[1].momentum == pytest.approx(1 - 0.9**forward)
            decay = inspect.getclosurevars(inspect.unwrap(average.multi_avg_fn)).nonlocals["decay"]
            assert decay == pytest.approx(0.99**4)
    same = copy.copy(args)  # the same global batch size from smaller forwards
    same.output_dir, same.per_device_train_batch_size, same.gradient_accumulation_steps = str(tmp_path / "c"), 2, 2
    model, ema, other = made(same)
    other.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-8"))
    assert model.net[1].momentum == pytest.approx(1 - 0.9 ** (1 / 2))
    assert inspect.getclosurevars(inspect.unwrap(ema.multi_avg_fn)).nonlocals["decay"] == 0.99


@pytest.mark.parametrize("loads", [True, False])
def test_an_average_may_have_loaded_its_decay_of_the_checkpoint(tmp_path, loads):
    data = [{"x": torch.randn(4), "labels": torch.tensor(1.0)} for _ in range(64)]

    def made(args, decay):
        ema = types.SimpleNamespace(decay=decay)
        return ema, Trainer(Normed(), args, train_dataset=data, callbacks=[RescaleCallback(ema=ema)])

    args = arguments(tmp_path / "a", max_steps=16, save_strategy="steps", save_steps=8)
    made(args, 0.99)[1].train()
    args = larger(args, tmp_path / "b", to=16, save_steps=2)
    ema, large = made(args, 0.99)
    resume(large, tmp_path / "a" / "checkpoint-8")
    assert ema.decay == pytest.approx(0.99**4)
    ema, later = made(args, ema.decay if loads else 0.99)
    later.train(resume_from_checkpoint=str(tmp_path / "b" / "checkpoint-4"))
    assert ema.decay == pytest.approx(0.99**4)


def test_batchnorm_needs_the_samples_per_device_of_a_checkpoint_that_does_not_say_them(tmp_path):
    data = [{"x": torch.randn(4), "labels": torch.tensor(1.0)} for _ in range(64)]
    args = arguments(tmp_path / "a", max_steps=8, save_strategy="steps", save_steps=4, gradient_accumulation_steps=2)
    Trainer(Normed(), args, train_dataset=data).train()
    model = Normed()
    made = Trainer(model, larger(args, tmp_path / "b"), train_dataset=data, callbacks=[RescaleCallback(batchnorm=True)])
    with pytest.raises(ValueError, match=r'train_batch_size=4, so batch_size=8 .*"4xACCUMULATIONxDEVICES"'):
        resume(made, tmp_path / "a" / "checkpoint-4", batch_size=8)
    resume(made, tmp_path / "a" / "checkpoint-4", batch_size="4x2x1")
    assert model.net[1].momentum == 0.1


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
        made = trainer(args, RescaleCallback(noise_every=1), data=DATA)
        made.train()
        logged.append([entry for entry in made.state.log_history if "loss" in entry])
    for entry in logged[0]:
        assert entry["noise_scale_low"] < entry["noise_scale"] < entry["noise_scale_high"]
    # Clipping changes what the optimizer gets, not what was measured.
    assert [e["noise_scale"] for e in logged[1]] == pytest.approx([e["noise_scale"] for e in logged[0]], rel=1e-3)


def test_the_noise_scale_is_that_of_the_gradients(tmp_path):
    rows = text(DATA)
    args = arguments(tmp_path, gradient_accumulation_steps=4, max_steps=12, logging_steps=12, learning_rate=1e-12)
    made = trainer(args, RescaleCallback(noise_every=1, noise_window=12), data=rows)
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
    callback = RescaleCallback(noise_every=1)
    made = trainer(args, callback, data=4 * 10)  # ten micro-batches: 3 + 3 + 3 + 1

    class Count(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            self.steps = callback._noise.steps

    made.add_callback(count := Count())
    made.train()
    assert (made.state.global_step, count.steps) == (16, 12)


def test_noise_without_parts_is_refused(tmp_path):
    with pytest.raises(ValueError, match="noise_every needs gradient_accumulation_steps >= 2"):
        trainer(arguments(tmp_path, max_steps=1), RescaleCallback(noise_every=1)).train()


def test_the_example_runs_and_warns_that_its_batch_exceeds_the_noise_scale(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.warns(ScalingWarning, match="the batch of 16 samples exceeds the measured noise scale"):
        runpy.run_path(str(ROOT / "examples" / "transformers_trainer.py"), run_name="__main__")
    assert "noise_scale" in capsys.readouterr().out


def test_the_folder_of_a_run_is_not_a_checkpoint(run, tmp_path):
    args, checkpoint, *_ = run
    made = trainer(larger(args, tmp_path / "new"), data=DATA)
    with pytest.raises(
        ValueError, match=r"is the folder of a run, not a checkpoint: .* the latest is .*checkpoint-128"
    ):
        resume(made, checkpoint.parent)
    with pytest.raises(
        ValueError, match=r"must be a folder that the Trainer has saved, got .*: there is no such folder"
    ):
        resume(made, tmp_path / "nowhere")
    with pytest.raises(
        ValueError, match=r"must be a folder that the Trainer has saved, got .*: it has no trainer_state"
    ):
        resume(made, tmp_path)


def test_a_checkpoint_of_the_model_only_has_nothing_to_convert(run, tmp_path):
    args, checkpoint, *_ = run
    only = tmp_path / "checkpoint-64"
    only.mkdir()
    for item in checkpoint.iterdir():
        if not item.name.startswith(("optimizer", "scheduler")):
            (only / item.name).symlink_to(item)
    made = trainer(larger(args, tmp_path / "new"), data=DATA)
    with pytest.raises(ValueError, match=r"has no state of the optimizer \(it was saved with save_only_model=True\)"):
        resume(made, only)


def test_a_rule_that_is_given_at_one_place_only_is_named(run, tmp_path):
    args, checkpoint, *_ = run
    new = scale_training_arguments(args, to=16, rule="with power")
    new.output_dir = str(tmp_path / "new")
    made = trainer(new, RescaleCallback(), data=DATA)
    with pytest.raises(ValueError, match=r"converted with rule='sqrt with power' .* RescaleCallback\(rule='sqrt with"):
        resume(made, checkpoint)
    other = trainer(larger(args, tmp_path / "newer"), RescaleCallback(rule="with power"), data=DATA)
    with pytest.raises(ValueError, match=r"converted with rule='sqrt.* and RescaleCallback has rule='with power'"):
        resume(other, checkpoint)


# ---- the sample clock


def test_the_trainer_tells_an_optimizer_on_the_sample_clock_what_it_divides_the_loss_by(tmp_path):
    divided_by = []

    class Counting(SampleClockMixin, Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            divided_by.append(int(num_items_in_batch))
            return super().training_step(model, inputs, num_items_in_batch)

    model, rows = tiny(), text(7)
    for row, length in zip(rows, [8, 3, 5, 2, 7, 8, 4], strict=True):  # of some tokens the labels do not count
        row["labels"] = torch.where(torch.arange(8) < length, row["labels"], -100)
    args = arguments(tmp_path, per_device_train_batch_size=1, gradient_accumulation_steps=2, num_train_epochs=1)
    optimizer, seen = on_the_clock(model.parameters(), 7)
    Counting(model, args, train_dataset=rows, optimizers=(optimizer, None)).train()
    assert seen == list(accumulate(divided_by[::2]))
    assert len(seen) == len(set(divided_by)) == 4
    with pytest.raises(TypeError, match="needs an optimizer on the sample clock, got AdamW"):
        Counting(model, args, train_dataset=rows).train()
