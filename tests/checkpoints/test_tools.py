"""Checkpoints of other tools: the converted one is that of a run whose script has the new numbers."""

import json
import logging
import os
import pickle
import shutil

import pytest
import torch
from saved_runs import FIRST, Accelerated, Bare, Flattened, Sharded, assert_close, by_hand, net, plain, samples
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict

from rootscale.checkpoints import Keys, convert_checkpoint
from rootscale.checkpoints.convert import FORMATS

NEW = 4 * FIRST
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def made(kind):
    if kind is Accelerated:
        pytest.importorskip("accelerate")
    return kind()


@pytest.mark.parametrize("kind", [Bare, Sharded, Flattened, Accelerated])
def test_a_fresh_run_loads_the_converted_checkpoint_and_is_at_its_place(tmp_path, kind):
    run = made(kind)
    run.train(8)
    run.save(tmp_path)
    before = {name: plain(part) for name, part in Bare.states(run).items()}
    old = by_hand(Bare.states(run)["optimizer"], 4)
    changes = convert_checkpoint(tmp_path / kind.place, FIRST, NEW, tmp_path / "out").changes
    run = made(kind)
    run.load(tmp_path / "out")
    found = Bare.states(run)
    assert_close(found["optimizer"], old)
    assert plain(found["model"]) == before["model"]
    assert plain(found["ema"]) == before["ema"]
    scheduler = found["scheduler"]
    assert [scheduler[key] for key in ("last_epoch", "_step_count", "total_iters")] == [2, 3, 16]
    assert scheduler["base_lrs"] == [2e-2]
    assert changes["scheduler.total_iters"].value == 16


def test_a_counter_of_a_dcp_folder_is_converted_by_its_name(tmp_path):
    run = Sharded()
    run.train(8)
    dcp.save(run.states() | {"train": {"step": 8}}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    convert_checkpoint(tmp_path / "dcp", FIRST, NEW, tmp_path / "out", keys=Keys(counters=("train.step",)))
    held = {"train": {"step": 0}}
    dcp.load(held, checkpoint_id=tmp_path / "out", no_dist=True)
    assert held["train"]["step"] == 2
    with pytest.raises(ValueError, match=r"--counter step must be a whole number in the checkpoint"):
        convert_checkpoint(tmp_path / "dcp", FIRST, NEW, keys=Keys(counters=("step",)))


# ---- DCP


def test_items_of_dcp_that_do_not_change_are_the_same_bytes(tmp_path):
    run = Sharded()
    run.train(3)
    run.save(tmp_path)
    (tmp_path / "dcp" / "more.txt").write_text("mine")
    convert_checkpoint(tmp_path / "dcp", FIRST, NEW, tmp_path / "out")
    before, after = (items(tmp_path / name) for name in ("dcp", "out"))
    assert (tmp_path / "out" / "more.txt").read_text() == "mine"
    changed = {key for key in before if before[key] != after[key]}
    assert not any(key.startswith(("model.", "ema.")) or key.endswith("exp_avg") for key in changed)
    assert {key.rpartition(".")[2] for key in changed if ".state." in key} == {"exp_avg_sq", "step"}
    assert before.keys() == after.keys()


def items(folder):
    """The bytes of every item of a folder."""
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    return {
        index.fqn: (folder / info.relative_path).read_bytes()[info.offset : info.offset + info.length]
        for index, info in metadata.storage_data.items()
    }


def test_pieces_of_a_tensor_are_all_converted(tmp_path):
    """Two ranks saved the halves of each tensor: made by hand, from two checkpoints of one rank each."""
    run = Sharded()
    run.train(3)
    run.save(tmp_path)
    folder = tmp_path / "dcp"
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    name = "optimizer.state.0.weight.exp_avg_sq"
    index, info = next((i, one) for i, one in metadata.storage_data.items() if i.fqn == name)
    whole = run.optimizer.state_dict()["state"][0]["exp_avg_sq"]
    del metadata.storage_data[index]
    described = metadata.state_dict_metadata[name]
    described.chunks.clear()
    for rank, rows in enumerate((slice(0, 1), slice(1, 4))):
        file = folder / f"__{rank + 1}_0.distcp"
        torch.save(whole[rows].clone(), file)
        offset = torch.Size([rows.start, 0])
        described.chunks.append(type_of_chunk(metadata)(offset, whole[rows].shape))
        new = type(index)(name, offset, rank)
        metadata.storage_data[new] = type(info)(file.name, 0, file.stat().st_size)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    convert_checkpoint(folder, FIRST, NEW, tmp_path / "out")
    held = {"optimizer": {"state": {"0.weight": {"exp_avg_sq": torch.zeros_like(whole)}}}}
    dcp.load(held, checkpoint_id=tmp_path / "out", no_dist=True)
    assert torch.equal(held["optimizer"]["state"]["0.weight"]["exp_avg_sq"], whole / 4)


def type_of_chunk(metadata):
    return type(metadata.state_dict_metadata["model.0.bias"].chunks[0])


def test_a_dcp_folder_of_a_model_alone_is_refused(tmp_path):
    dcp.save({"model": net().state_dict()}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    with pytest.raises(ValueError, match=r"has no optimizer .* a model alone is the same at every batch size"):
        convert_checkpoint(tmp_path / "dcp", FIRST, NEW)


def test_a_scheduler_of_another_kind_in_a_dcp_folder_is_refused(tmp_path):
    run = Sharded()
    run.train(2)
    states = run.states() | {"lr_scheduler": {"num_epochs": 3}}
    del states["scheduler"]
    dcp.save(states, checkpoint_id=tmp_path / "dcp", no_dist=True)
    with pytest.raises(ValueError, match="lr_scheduler holds a scheduler that is not known"):
        convert_checkpoint(tmp_path / "dcp", FIRST, NEW)


# ---- Accelerate


def test_an_accelerate_folder_without_an_optimizer_is_refused(tmp_path):
    run = made(Accelerated)
    run.train(2)
    run.save(tmp_path)
    (tmp_path / "accelerate" / "optimizer.bin").unlink()
    with pytest.raises(ValueError, match=r"has no optimizer.bin"):
        convert_checkpoint(tmp_path / "accelerate", FIRST, NEW)


def test_shards_of_fsdp_are_converted_in_their_place(tmp_path):
    """Under FSDP, Accelerate writes the optimizer with DCP into a folder of its own."""
    run = made(Accelerated)
    run.train(4)
    run.save(tmp_path)
    folder = tmp_path / "accelerate"
    (folder / "optimizer.bin").unlink()
    bare = run.optimizer.optimizer
    state = get_state_dict(run.model, bare)[1]
    dcp.save({"optimizer": state}, checkpoint_id=folder / "optimizer_0", no_dist=True)
    convert_checkpoint(folder, FIRST, NEW, tmp_path / "out")
    held = {"optimizer": {"state": state["state"], "param_groups": state["param_groups"]}}
    old = by_hand(run.optimizer.optimizer.state_dict(), 4)
    dcp.load(held, checkpoint_id=tmp_path / "out" / "optimizer_0", no_dist=True)
    names = [name for name, _ in run.model.named_parameters()]
    for owner, name in enumerate(names):
        assert_close(held["optimizer"]["state"][name], old["state"][owner])
    assert held["optimizer"]["param_groups"][0]["lr"] == old["param_groups"][0]["lr"]
    found = torch.load(tmp_path / "out" / "scheduler.bin", weights_only=True)
    assert (found["last_epoch"], found["total_iters"]) == (1, 16)


# ---- Hugging Face Trainer


def trainer(folder, **values):
    transformers = pytest.importorskip("transformers")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x, labels=None):
            y = self.net(x)
            return {"loss": (y - labels).square().mean(), "logits": y}

    x, y = samples(0, 64)
    data = [{"x": a, "labels": b} for a, b in zip(x, y, strict=True)]
    options = {
        "per_device_train_batch_size": 4, "max_steps": 48, "save_steps": 12, "warmup_steps": 8, "logging_steps": 4,
        "learning_rate": 1e-2, "adam_beta1": 0.98, "weight_decay": 0.1, "lr_scheduler_type": "cosine", "seed": 3,
    }  # fmt: skip
    quiet = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "dataloader_pin_memory": False}
    args = transformers.TrainingArguments(str(folder), **{**quiet, **options, **values})
    return transformers.Trainer(Net(), args, train_dataset=data)


def scaled(args, folder, to=16):
    from rootscale.integrations.transformers import scale_training_arguments

    new = scale_training_arguments(args, to=to)
    new.output_dir = str(folder)
    return new


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The output folder of a Trainer, and its arguments."""
    folder = tmp_path_factory.mktemp("trainer") / "run"
    made = trainer(folder)
    made.train()
    return folder, made.args


@pytest.mark.parametrize("step", [12, 24])
def test_a_converted_trainer_folder_resumes_with_the_scaled_arguments(tmp_path, trained, step):
    folder, args = trained
    convert_checkpoint(folder / f"checkpoint-{step}", 4, 16, tmp_path / "converted")
    state = torch.load(tmp_path / "converted" / "optimizer.pt", weights_only=True)
    assert_close(state, by_hand(torch.load(folder / f"checkpoint-{step}" / "optimizer.pt", weights_only=True), 4))
    run = trainer(tmp_path / "disk")
    run.args = scaled(args, tmp_path / "disk")
    run.train(resume_from_checkpoint=str(tmp_path / "converted"))
    assert run.state.global_step == 12
    rates = [entry["learning_rate"] for entry in run.state.log_history if "learning_rate" in entry]
    assert rates[-1] < 2e-2
    written = (tmp_path / "converted" / "trainer_state.json").read_text()
    assert "RescaleCallback" not in written
    held = torch.load(tmp_path / "converted" / "scheduler.pt", weights_only=False)
    assert (held["last_epoch"], held["base_lrs"]) == (step // 4, [2e-2, 2e-2])


def test_a_trainer_folder_keeps_all_that_does_not_change(tmp_path, trained):
    source = trained[0] / "checkpoint-24"
    changes = convert_checkpoint(source, 4, 16, tmp_path / "out").changes
    for name in ("model.safetensors", "rng_state.pth", "training_args.bin"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    before, after = (json.loads((one / "trainer_state.json").read_text()) for one in (source, tmp_path / "out"))
    changed = {key for key in before if before[key] != after[key]}
    assert changed == {"global_step", "max_steps", "logging_steps", "save_steps", "eval_steps"}
    assert [changes[name].value for name in ("global_step", "max_steps", "save_steps")] == [6, 12, 3]
    text = (source / "trainer_state.json").read_text()
    assert len((tmp_path / "out" / "trainer_state.json").read_text().splitlines()) == len(text.splitlines())


def test_trainer_folders_that_hold_no_run_are_refused(tmp_path, trained):
    folder = trained[0]
    with pytest.raises(ValueError, match=r"is no checkpoint but holds some; the newest is .*checkpoint-48"):
        convert_checkpoint(folder, 4, 16)
    with pytest.raises(ValueError, match=r"optimizer.pt is a part of a checkpoint: give its folder, .*checkpoint-12"):
        convert_checkpoint(folder / "checkpoint-12" / "optimizer.pt", 4, 16)
    shutil.copytree(folder / "checkpoint-12", tmp_path / "checkpoint-12")
    (tmp_path / "checkpoint-12" / "optimizer.pt").unlink()
    with pytest.raises(ValueError, match="save_only_model=True"):
        convert_checkpoint(tmp_path / "checkpoint-12", 4, 16)


def test_batch_sizes_that_a_trainer_folder_contradicts_are_refused(trained):
    with pytest.raises(ValueError, match=r"--from 6 does not fit training_args.bin: 4 per device x 1 accumulation"):
        convert_checkpoint(trained[0] / "checkpoint-12", 6, 16)


def test_steps_that_depend_on_the_size_of_the_data_need_it(trained):
    path = trained[0] / "checkpoint-36"
    with pytest.raises(ValueError, match=r"is in epoch 2.25: .* give --dataset-size"):
        convert_checkpoint(path, 4, 6)
    assert convert_checkpoint(path, 4, 6, dataset_size=64).changes["global_step"].value == 2 * 11 + 16 // 6


# ---- Lightning


def module(configure=None):
    from lightning.pytorch import LightningModule

    class Net(LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()

        def training_step(self, batch, index):
            return (self.net(batch[0]) - batch[1]).square().mean()

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2, betas=(0.98, 0.999), weight_decay=0.1)
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    return Net()


def fit(size, resume=None, save=None, callback=None, **options):
    """A fit of Lightning on 32 samples; its module."""
    pytest.importorskip("lightning")
    from lightning.pytorch import Trainer
    from torch.utils.data import DataLoader, TensorDataset

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    made = Trainer(accelerator="cpu", callbacks=callback, **{**quiet, **options})
    net = module()
    made.fit(net, DataLoader(TensorDataset(*samples(0, 32)), batch_size=size), ckpt_path=resume, weights_only=False)
    if save is not None:
        made.save_checkpoint(save)
    return made, net


def saver(path, step):
    """A callback that saves in the middle of an epoch."""
    pytest.importorskip("lightning")
    from lightning.pytorch import Callback

    class Saver(Callback):
        def on_train_batch_end(self, trainer, *args):
            if trainer.global_step == step:
                trainer.save_checkpoint(path)

    return Saver()


def test_a_converted_lightning_file_resumes_in_steps_of_the_new_batch_size(tmp_path):
    path = tmp_path / "in.ckpt"
    fit(FIRST, save=path, max_epochs=1)
    changes = convert_checkpoint(path, FIRST, NEW, tmp_path / "out.ckpt").changes
    assert (changes["global_step"].before, changes["global_step"].value) == (16, 4)
    held, old = (torch.load(one, weights_only=False) for one in (tmp_path / "out.ckpt", path))
    assert_close(held["optimizer_states"][0], by_hand(old["optimizer_states"][0], 4))
    assert (held["lr_schedulers"][0]["last_epoch"], held["lr_schedulers"][0]["T_max"]) == (4, 15)
    made, _ = fit(NEW, resume=tmp_path / "out.ckpt", max_epochs=3)
    assert made.global_step == 3 * 4
    assert made.lr_scheduler_configs[0].scheduler.last_epoch == 12


def test_the_place_in_an_epoch_of_lightning_is_converted(tmp_path):
    path = tmp_path / "in.ckpt"
    fit(FIRST, callback=[saver(path, 9)], max_epochs=1)
    changes = convert_checkpoint(path, FIRST, NEW, tmp_path / "out.ckpt").changes
    row = changes["batches of this epoch"]
    assert (row.before, row.value) == (9, 2)
    assert "2 samples are seen again" in row.note
    made, _ = fit(NEW, resume=tmp_path / "out.ckpt", max_epochs=1)
    assert made.global_step == 4  # 16 of 32 samples are left, in batches of 8


def test_lightning_files_that_cannot_be_converted_are_refused(tmp_path):
    made, _ = fit(FIRST, max_epochs=1)
    made.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)
    with pytest.raises(ValueError, match="save_weights_only=True"):
        convert_checkpoint(tmp_path / "weights.ckpt", FIRST, NEW)


# ---- safetensors


def written(folder, run, separator="/", header=False):
    """A folder as LeRobot writes it, or with the groups in the header."""
    save = pytest.importorskip("safetensors.torch").save_file
    folder.mkdir()
    held = run.optimizer.state_dict()
    flat = {
        separator.join(("state", str(owner), name)): value
        for owner, state in held["state"].items()
        for name, value in state.items()
    }
    groups = json.dumps(held["param_groups"])
    save(flat, folder / "optimizer_state.safetensors", {"param_groups": groups} if header else None)
    if not header:
        (folder / "optimizer_param_groups.json").write_text(groups)
    (folder / "scheduler_state.json").write_text(json.dumps(run.scheduler.state_dict(), indent=4))
    return folder


def loaded(folder, run, separator="/", header=False):
    safe = pytest.importorskip("safetensors")
    with safe.safe_open(folder / "optimizer_state.safetensors", "pt") as file:
        state = {}
        for key in file.keys():  # noqa: SIM118
            _, owner, name = key.split(separator)
            state.setdefault(int(owner), {})[name] = file.get_tensor(key)
        text = file.metadata()["param_groups"] if header else (folder / "optimizer_param_groups.json").read_text()
    run.optimizer.load_state_dict({"state": state, "param_groups": json.loads(text)})
    run.scheduler.load_state_dict(json.loads((folder / "scheduler_state.json").read_text()))


@pytest.mark.parametrize(("separator", "header"), [("/", False), (".", True)])
def test_a_state_in_safetensors_is_rebased_with_its_counter(tmp_path, separator, header):
    run = Bare()
    run.train(8)
    folder = written(tmp_path / "in", run, separator, header)
    (folder / "training_step.json").write_text('{"step": 8}')
    old = by_hand(run.optimizer.state_dict(), 4)
    assert "step = 8 is kept" in " ".join(convert_checkpoint(folder, FIRST, NEW).changes.remaining)
    convert_checkpoint(folder, FIRST, NEW, tmp_path / "out", keys=Keys(counters=("step",)))
    run = Bare()
    loaded(tmp_path / "out", run, separator, header)
    found = run.optimizer.state_dict()
    found["param_groups"][0]["betas"] = tuple(found["param_groups"][0]["betas"])
    assert_close(found, old)
    assert (run.scheduler.last_epoch, run.scheduler.total_iters) == (2, 16)
    assert json.loads((tmp_path / "out" / "training_step.json").read_text()) == {"step": 2}


def test_tensors_without_hyperparameters_are_refused(tmp_path):
    run = Bare()
    run.train(2)
    folder = written(tmp_path / "in", run)
    (folder / "optimizer_param_groups.json").unlink()
    with pytest.raises(ValueError, match=r"tensors alone are no run. Write .* optimizer_param_groups.json"):
        convert_checkpoint(folder, FIRST, NEW)


# ---- DeepSpeed


def universal(folder, run, step=int, **engine):
    """A universal checkpoint after DeepSpeed's documentation, of a run under torch's AdamW."""
    held = run.optimizer.state_dict()
    names = [name for name, _ in run.model.named_parameters()]
    for owner, (name, weight) in zip(held["state"], run.model.named_parameters(), strict=True):
        place = folder / "zero" / name
        place.mkdir(parents=True)
        torch.save({"param": weight.detach(), "cat_dim": 0}, place / "fp32.pt")
        for key in ("exp_avg", "exp_avg_sq"):
            torch.save({"param": held["state"][owner][key], "cat_dim": 0}, place / f"{key}.pt")
        torch.save(step(held["state"][owner]["step"]), place / "step.pt")
    groups = [{**group, "params": [i]} for i, group in enumerate(held["param_groups"])]
    torch.save({"param_groups": groups, "loss_scaler": None}, folder / "zero" / "optimizer_state.pt")
    torch.save(
        {"module": run.model.state_dict(), "global_steps": 8, "lr_scheduler": {"last_batch_iteration": 7}, **engine},
        folder / "mp_rank_00_model_states.pt",
    )
    return names


def test_a_universal_checkpoint_of_deepspeed_is_converted_by_the_table(tmp_path):
    run = Bare()
    run.train(8)
    names = universal(tmp_path / "in", run, ds_config={"train_batch_size": FIRST})
    changes = convert_checkpoint(tmp_path / "in", FIRST, NEW, tmp_path / "out").changes
    held = by_hand(run.optimizer.state_dict(), 4)
    out = tmp_path / "out"
    for owner, name in enumerate(names):
        for key in ("exp_avg", "exp_avg_sq"):
            found = torch.load(out / "zero" / name / f"{key}.pt", weights_only=True)
            torch.testing.assert_close(found["param"], held["state"][owner][key], rtol=1e-12, atol=0)
            assert found["cat_dim"] == 0
        assert torch.load(out / "zero" / name / "step.pt", weights_only=True) == 2  # stays a whole number
        old, new = ((one / "zero" / name / "fp32.pt").read_bytes() for one in (tmp_path / "in", out))
        assert old == new
    group = torch.load(out / "zero" / "optimizer_state.pt", weights_only=True)["param_groups"][0]
    assert_close({**group, "params": held["param_groups"][0]["params"]}, held["param_groups"][0])
    engine = torch.load(out / "mp_rank_00_model_states.pt", weights_only=True)
    assert (engine["global_steps"], engine["lr_scheduler"]) == (2, {"last_batch_iteration": 1})
    assert changes["last_batch_iteration"].before == 7


def test_deepspeed_folders_that_cannot_be_converted_are_refused(tmp_path):
    run = Bare()
    run.train(2)
    universal(tmp_path / "in", run, ds_config={"train_batch_size": FIRST})
    with pytest.raises(ValueError, match="train_batch_size 2, but --from is 16: give --from 2"):
        convert_checkpoint(tmp_path / "in", 16, 64)
    (tmp_path / "zero1").mkdir()
    torch.save({}, tmp_path / "zero1" / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt")
    with pytest.raises(ValueError, match=r"ds_to_universal.py"):
        convert_checkpoint(tmp_path / "zero1", 16, 64)


# ---- all of them


def test_folders_that_fail_while_they_are_written_leave_nothing_behind(tmp_path):
    run = Sharded()
    run.train(2)
    run.save(tmp_path)

    def progress(what, share):
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_checkpoint(tmp_path / "dcp", FIRST, NEW, tmp_path / "out", progress=progress)
    assert [one.name for one in tmp_path.iterdir()] == ["dcp"]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(KeyboardInterrupt):
        convert_checkpoint(tmp_path / "dcp", FIRST, NEW, tmp_path / "out", progress=progress, force=True)
    assert [one.name for one in (tmp_path / "out").iterdir()] == ["mine"]
    convert_checkpoint(tmp_path / "dcp", FIRST, NEW, tmp_path / "out", force=True)
    assert not (tmp_path / "out" / "mine").exists()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["dcp", "out"]


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"is no checkpoint of a known kind: a folder of torch.distributed.checkpoint"):
        convert_checkpoint(tmp_path / "empty", 16, 64)
    with pytest.raises(ValueError, match=f"format must be one of {', '.join(FORMATS)}"):
        convert_checkpoint(tmp_path / "empty", 16, 64, format="tape")
