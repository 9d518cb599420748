"""Checkpoints of torch on disk: the converted file resumes as the run that was converted in its process."""

import argparse
import collections
import copy
import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from live import ADAM, Average, net, plain, train
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    SequentialLR,
    StepLR,
)

from rootscale.changes import ScalingWarning
from rootscale.integrations.checkpoints import Keys, convert_checkpoint
from rootscale.training import rescale_, restore_
from rootscale.training.checkpoints import archive as archives
from rootscale.training.checkpoints.archive import Archive, MappedFile
from rootscale.training.checkpoints.pickled import Kept, dump, load

pytestmark = pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*before.*optimizer.step.*")


def sequential(optimizer):
    return SequentialLR(optimizer, [LinearLR(optimizer, 0.1, 1.0, 4), CosineAnnealingLR(optimizer, 60)], [4])


OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, **ADAM, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, **ADAM, weight_decay=0.1),
    "amsgrad": lambda p: torch.optim.AdamW(p, **ADAM, amsgrad=True),
    "tensor lr": lambda p: torch.optim.AdamW(p, **{**ADAM, "lr": torch.tensor(1e-3)}, capturable=False, foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, alpha=0.99),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "floors": lambda p: torch.optim.AdamW(p, lr=1e-3, betas=(0.9, 0.95)),
    "groups": lambda p: torch.optim.AdamW(
        [{"params": p[:2], "lr": 1e-4}, {"params": p[2:], "weight_decay": 0}], **ADAM
    ),
}
SCHEDULERS = {
    "cosine": lambda o: CosineAnnealingLR(o, 60),
    "one cycle": lambda o: OneCycleLR(o, 1e-2, total_steps=60, cycle_momentum=False),
    "lambda": lambda o: LambdaLR(o, lambda k: 1 / (1 + k)),
    "sequential": sequential,
    "chained": lambda o: ChainedScheduler([ExponentialLR(o, 0.9), StepLR(o, 5)], optimizer=o),
}


def make(optimizer="adamw", scheduler="cosine"):
    model = net()
    made = OPTIMIZERS[optimizer](list(model.parameters()))
    return model, made, SCHEDULERS[scheduler](made)


def go(model, optimizer, scheduler, steps, seed=0):
    for i in range(steps):
        train(model, optimizer, 1, seed=100 * seed + i)
        scheduler.step()


def started(optimizer="adamw", scheduler="cosine", steps=8):
    """A run in its middle."""
    run = make(optimizer, scheduler)
    go(*run, steps)
    return run


def saved(run, **more):
    model, optimizer, scheduler = run
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        **more,
    }


def resumed(path, optimizer="adamw", scheduler="cosine"):
    """A fresh process's objects, loaded from a converted checkpoint."""
    run = make(optimizer, scheduler)
    held = torch.load(path, weights_only=True)
    for one, key in zip(run, ("model", "optimizer", "scheduler"), strict=True):
        one.load_state_dict(held[key])
    restore_(run[1], scheduler=run[2], model=run[0])
    return run


def switched(run, before=16, after=64):
    """The same run, converted in its process."""
    rescale_(run[1], batch_size=(before, after), scheduler=run[2], model=run[0])
    return run


def assert_same_run(one, other):
    for run in (one, other):
        go(*run, 6, seed=1)
    assert plain(one[0].state_dict()) == plain(other[0].state_dict())
    assert plain(one[1].state_dict()) == plain(other[1].state_dict())


@pytest.fixture
def write(tmp_path):
    """Saves a run (or what is given) and returns the path."""

    def save(thing, name="in.pt"):
        path = tmp_path / name
        torch.save(thing, path)
        return path

    return save


@pytest.mark.parametrize("kappa", [4, 3, 0.5])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_converted_file_resumes_as_the_run_converted_in_process(write, tmp_path, optimizer, kappa):
    run = started(optimizer)
    convert_checkpoint(write(saved(run)), 16, 16 * kappa, tmp_path / "out.pt", keys=Keys(interval="step"))
    assert_same_run(switched(run, 16, 16 * kappa), resumed(tmp_path / "out.pt", optimizer))


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_schedulers_of_all_kinds_go_on_in_the_converted_file(write, tmp_path, scheduler):
    run = started("adamw", scheduler)
    convert_checkpoint(write(saved(run)), 16, 64, tmp_path / "out.pt")
    assert_same_run(switched(run), resumed(tmp_path / "out.pt", "adamw", scheduler))


def test_a_file_converted_twice_is_the_run_converted_twice(write, tmp_path):
    run = started()
    convert_checkpoint(write(saved(run)), 16, 64, tmp_path / "one.pt")
    convert_checkpoint(tmp_path / "one.pt", 64, 128, tmp_path / "two.pt")
    assert_same_run(switched(switched(run), 64, 128), resumed(tmp_path / "two.pt"))


def test_a_file_converted_there_and_back_is_the_file_it_was(write, tmp_path):
    path = write(saved(started()))
    convert_checkpoint(path, 16, 64, tmp_path / "there.pt")
    convert_checkpoint(tmp_path / "there.pt", 64, 16, tmp_path / "back.pt")
    before, after = (torch.load(one, weights_only=True) for one in (path, tmp_path / "back.pt"))
    groups = [held["optimizer"]["param_groups"][0] for held in (before, after)]
    assert groups[1]["lr"] == pytest.approx(groups[0]["lr"], rel=1e-14)
    assert groups[1]["betas"] == pytest.approx(groups[0]["betas"], rel=1e-14)
    assert groups[1]["rootscale_kappa"] == 1
    assert after["scheduler"]["last_epoch"] == before["scheduler"]["last_epoch"]
    for state in (held["optimizer"]["state"][0] for held in (before, after)):
        assert state["exp_avg_sq"].tolist() == before["optimizer"]["state"][0]["exp_avg_sq"].tolist()


PLACES = {
    "optimizer_state_dict": lambda o, s: {"optimizer_state_dict": o, "scheduler_state_dict": s},
    "optim": lambda o, s: {"optim": o, "lr_scheduler": s},
    "opt": lambda o, s: {"opt": o, "sched": s},
    "lists": lambda o, s: {"optimizer_states": [o], "lr_schedulers": [s]},
    "nested": lambda o, s: {"state": {"training": {"optimizer": o, "scheduler": s}}},
    "the optimizer alone": lambda o, s: o,
}


@pytest.mark.parametrize("place", PLACES)
def test_optimizers_and_schedulers_are_found_wherever_people_put_them(write, tmp_path, place):
    _, optimizer, scheduler = started()
    path = write(PLACES[place](optimizer.state_dict(), scheduler.state_dict()))
    convert_checkpoint(path, 16, 64, tmp_path / "out.pt")
    if place == "the optimizer alone":
        with pytest.warns(ScalingWarning, match="a scheduler drives this optimizer but was not given"):
            rescale_(optimizer, batch_size=(16, 64))
    else:
        rescale_(optimizer, batch_size=(16, 64), scheduler=scheduler)
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert plain(found) == plain(PLACES[place](optimizer.state_dict(), scheduler.state_dict()))


def test_several_optimizers_are_converted_with_their_schedulers(write, tmp_path):
    runs = {name: started(name) for name in ("adamw", "sgd")}
    held = {f"{what}_{name}": one.state_dict() for name, run in runs.items()
            for what, one in zip(("optimizer", "scheduler"), run[1:], strict=True)}  # fmt: skip
    convert_checkpoint(write(held), 16, 64, tmp_path / "out.pt", keys=Keys(interval="step"))
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    for name, (_, optimizer, scheduler) in runs.items():
        rescale_(optimizer, batch_size=(16, 64), scheduler=scheduler)
        assert plain(found[f"optimizer_{name}"]) == plain(optimizer.state_dict())
        assert plain(found[f"scheduler_{name}"]) == plain(scheduler.state_dict())


def test_keys_can_be_given(write, tmp_path):
    run = started()
    held = {"a": {"b": run[1].state_dict()}, "old": started("sgd")[1].state_dict()}
    changes = convert_checkpoint(write(held), 16, 64, tmp_path / "out.pt", keys=Keys(optimizer=["a.b"])).changes
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert plain(found["old"]) == plain(held["old"])
    assert changes["lr"].after == found["a"]["b"]["param_groups"][0]["lr"]


def test_an_average_with_a_decay_in_the_file_is_converted(write, tmp_path):
    held = saved(started(), ema={"decay": 0.999, "num_updates": 3, "shadow_params": [torch.ones(2)]})
    convert_checkpoint(write(held), 16, 64, tmp_path / "out.pt")
    assert torch.load(tmp_path / "out.pt", weights_only=True)["ema"]["decay"] == pytest.approx(0.999**4, rel=1e-12)


@pytest.mark.parametrize("loads", [True, False])
def test_an_average_with_a_decay_in_the_file_is_restored_as_the_report_says(write, tmp_path, loads):
    held = saved(started(), ema={"decay": 0.999, "shadow": {"weight": torch.ones(2)}})
    first = convert_checkpoint(write(held), 16, 64, tmp_path / "out.pt").changes
    convert_checkpoint(tmp_path / "out.pt", 64, 128, tmp_path / "again.pt")
    assert any(text.endswith("ema=ema)") for text in first.remaining)
    found = torch.load(tmp_path / "again.pt", weights_only=True)
    model, optimizer, scheduler = started()
    optimizer.load_state_dict(found["optimizer"])
    scheduler.load_state_dict(found["scheduler"])
    ema = Average(found["ema"]["decay"] if loads else 0.999)
    restore_(optimizer, scheduler=scheduler, model=model, ema=ema)
    assert ema.decay == pytest.approx(0.999**8, rel=1e-12)


# ---- everything else stays


class Trap:
    """Leaves a trace when it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path(TRAP),)


TRAP = "trap"


def test_nothing_in_a_file_is_executed_and_nothing_is_lost(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    more = {
        "args": argparse.Namespace(lr=1e-3, layers=[1, 2]),
        "counter": collections.Counter("aab"),
        "default": collections.defaultdict(list, {"a": [1]}),
        "bytes": b"\xff\x00",
        "set": {1, 2},
        "dtype": torch.bfloat16,
        "path": Path("somewhere"),
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "trap": Trap(),
    }
    more["again"] = more["args"]
    convert_checkpoint(write(saved(started(), **more)), 16, 64, "out.pt")
    assert not Path(TRAP).exists()
    found = torch.load("out.pt", weights_only=False)
    assert Path(TRAP).exists()  # so it is still in the file, for who trusts it
    for key in more.keys() - {"trap", "parameter"}:
        assert found[key] == more[key]
    assert found["again"] is found["args"]
    assert isinstance(found["parameter"], torch.nn.Parameter)


def test_records_that_do_not_change_are_the_same_bytes(write, tmp_path):
    path = write(saved(started()))
    convert_checkpoint(path, 16, 64, tmp_path / "out.pt")
    with zipfile.ZipFile(path) as before, zipfile.ZipFile(tmp_path / "out.pt") as after:
        assert after.testzip() is None
        assert before.namelist() == after.namelist()
        changed = [name for name in before.namelist() if before.read(name) != after.read(name)]
    held = torch.load(path, weights_only=True)["optimizer"]["state"]
    assert len(changed) == 1 + 2 * len(held)  # the pickle; v and the step of each parameter


def test_tensors_stay_aligned_so_that_torch_can_map_the_file(write, tmp_path):
    convert_checkpoint(write(saved(started())), 16, 64, tmp_path / "out.pt")
    with zipfile.ZipFile(tmp_path / "out.pt") as held, open(tmp_path / "out.pt", "rb") as file:
        starts = [archives._data_start(file, 0, one) for one in held.infolist()]
    assert all(start % 64 == 0 for start in starts)
    assert plain(torch.load(tmp_path / "out.pt", mmap=True, weights_only=True)["model"])


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_pickles_of_all_protocols_are_read_and_written(protocol):
    thing = {
        "a": [argparse.Namespace(x=1), {2, 3}, 4.5, None, True, 2**70],
        "b": collections.OrderedDict(c=("d", b"e")),
    }
    data = pickle.dumps(thing, protocol)
    held = load(data)
    assert isinstance(held["a"][0], Kept)
    assert held["a"][0].attributes() == {"x": 1}
    assert pickle.loads(dump(held, data)) == thing


# ---- tensors in chunks


@pytest.mark.filterwarnings("ignore::rootscale.changes.ScalingWarning")  # small values of float16
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_tensors_are_multiplied_in_chunks_as_they_are_whole(write, tmp_path, monkeypatch, dtype):
    monkeypatch.setattr(archives, "CHUNK", 4096)
    weight = torch.nn.Parameter(torch.randn(137, 111).to(dtype))
    optimizer = torch.optim.AdamW([weight], **ADAM)
    weight.grad = torch.randn(137, 111).to(dtype)
    optimizer.step()
    path = write(optimizer.state_dict())
    convert_checkpoint(path, 16, 48, tmp_path / "out.pt")
    rescale_(optimizer, batch_size=(16, 48))
    assert plain(torch.load(tmp_path / "out.pt", weights_only=True)) == plain(optimizer.state_dict())


def test_tensors_that_share_a_storage_are_each_multiplied_once(write, tmp_path):
    weights = [torch.nn.Parameter(torch.ones(4)) for _ in range(2)]
    optimizer = torch.optim.AdamW(weights, **ADAM)
    for weight in weights:
        weight.grad = torch.randn(4)
    optimizer.step()
    flat = torch.rand(12)
    for i, weight in enumerate(weights):
        optimizer.state[weight]["exp_avg_sq"] = flat[4 * i : 4 * i + 4]
    convert_checkpoint(write({"optimizer": optimizer.state_dict(), "flat": flat}), 16, 64, tmp_path / "out.pt")
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert found["flat"].tolist() == [*(flat[:8] / 4).tolist(), *flat[8:].tolist()]
    assert found["optimizer"]["state"][1]["exp_avg_sq"].tolist() == (flat[4:8] / 4).tolist()


def test_counters_that_are_numbers_become_what_torch_makes_of_them(write, tmp_path):
    run = started(steps=10)
    held = copy.deepcopy(saved(run))
    for state in held["optimizer"]["state"].values():
        state["step"] = int(state["step"])  # as torch wrote it before 1.12
    convert_checkpoint(write(held), 16, 64, tmp_path / "out.pt")
    steps = {
        state["step"] for state in torch.load(tmp_path / "out.pt", weights_only=True)["optimizer"]["state"].values()
    }
    assert steps == {2.5}
    assert_same_run(switched(run), resumed(tmp_path / "out.pt"))


# ---- what is refused


def refused(path, text, *args, keys=Keys(), output=None, **options):  # noqa: B008
    with pytest.raises(ValueError, match=text):
        convert_checkpoint(path, *(args or (16, 64)), output, keys=keys, **options)


def test_files_without_an_optimizer_are_refused(write):
    refused(write(net().state_dict()), "no optimizer's state_dict .* a model alone is the same at every batch size")
    refused(write(argparse.Namespace(a=1)), "holds a whole argparse.Namespace object, not dictionaries")


def test_whole_objects_are_refused(write):
    refused(write({"optimizer": started()[1]}), r"optimizer of in.pt is a whole torch.optim.adamw.AdamW object")


def test_adam_and_adamw_of_older_files_are_told_apart_by_the_user(write, tmp_path):
    held = started("adam")[1].state_dict()
    for group in held["param_groups"]:
        del group["decoupled_weight_decay"]
    path = write(held)
    refused(path, "AdamW or Adam: .* give --optimizer adamw or --optimizer adam")
    decay = {
        kind: convert_checkpoint(path, 16, 64, keys=Keys(kind=kind)).changes["weight_decay"].after
        for kind in ("adam", "adamw")
    }
    assert decay == {"adam": 0.1, "adamw": 0.2}
    held["param_groups"][0]["weight_decay"] = 0.0  # then they are the same
    assert convert_checkpoint(write(held), 16, 64).changes["weight_decay"].after == 0


def test_a_kind_that_the_file_contradicts_is_refused(write):
    refused(write(started("adamw")[1].state_dict()), "decoupled_weight_decay=True", keys=Keys(kind="adam"))
    refused(write(started("sgd")[1].state_dict()), "groups have no betas", keys=Keys(kind="adam"))
    refused(write(started("sgd")[1].state_dict()), "optimizer must be one of", keys=Keys(kind="adagrad2"))


CLASSES = [
    *((cls, {}) for cls in (torch.optim.RAdam, torch.optim.Adamax, torch.optim.NAdam, torch.optim.Adadelta)),
    *((cls, {}) for cls in (torch.optim.Adagrad, torch.optim.Adafactor, torch.optim.ASGD, torch.optim.Rprop)),
    *((torch.optim.RMSprop, options) for options in ({"momentum": 0.9}, {"centered": True})),
    (torch.optim.SGD, {"nesterov": True, "momentum": 0.9, "lr": 0.1}),
]


@pytest.mark.filterwarnings("ignore::rootscale.changes.ScalingWarning")
@pytest.mark.parametrize(("cls", "options"), CLASSES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_file_is_converted_or_refused_as_the_live_optimizer_is(write, tmp_path, cls, options):
    model = net()
    optimizer = cls(model.parameters(), **options)
    train(model, optimizer, 4)
    path = write(optimizer.state_dict())
    try:
        rescale_(optimizer, batch_size=(16, 64))
    except (TypeError, ValueError):
        refused(path, "is not recognised: its groups have .*lr|follows no known SDE")
        return
    convert_checkpoint(path, 16, 64, tmp_path / "out.pt")
    assert plain(torch.load(tmp_path / "out.pt", weights_only=True)) == plain(optimizer.state_dict())


class Lion(torch.optim.Optimizer):
    """An optimizer of some library, which need not be there when its file is converted."""

    def __init__(self, params):
        super().__init__(params, {"lr": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.1})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for weight in group["params"]:
                m = self.state[weight].setdefault("exp_avg", torch.zeros_like(weight))
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.sub_(group["lr"] * torch.lerp(weight.grad, m, beta1).sign())
                m.lerp_(weight.grad, 1 - beta2)


@pytest.mark.filterwarnings("ignore::rootscale.changes.ScalingWarning")
def test_an_optimizer_of_a_library_is_named_by_its_family(write, tmp_path):
    model = net()
    optimizer = Lion(model.parameters())
    train(model, optimizer, 4)
    path = write(optimizer.state_dict())
    refused(path, "is not recognised: its groups have betas, lr, weight_decay. If its update is that of .*lion")
    convert_checkpoint(path, 16, 64, tmp_path / "out.pt", keys=Keys(kind="lion"))
    rescale_(optimizer, batch_size=(16, 64))
    assert plain(torch.load(tmp_path / "out.pt", weights_only=True)) == plain(optimizer.state_dict())


@pytest.mark.parametrize("protocol", [2, 5])
def test_learning_rates_of_numpy_are_numbers(tmp_path, protocol):
    held = copy.deepcopy(started()[1].state_dict())
    rate = held["param_groups"][0]["lr"]
    held["param_groups"][0]["lr"] = np.float64(rate)
    held["param_groups"][0]["betas"] = (np.float32(0.5), 0.999)
    torch.save(held, tmp_path / "in.pt", pickle_protocol=protocol)
    convert_checkpoint(tmp_path / "in.pt", 16, 20, tmp_path / "out.pt")
    group = torch.load(tmp_path / "out.pt", weights_only=False)["param_groups"][0]
    assert group["lr"] == rate * 1.25**0.5
    held["param_groups"][0]["lr"] = argparse.Namespace(value=1)
    torch.save(held, tmp_path / "in.pt")
    refused(tmp_path / "in.pt", "lr as argparse.Namespace, and not as a number")


def test_a_state_that_the_family_does_not_know_is_refused(write):
    held = copy.deepcopy(started()[1].state_dict())
    held["state"][0]["exp_avg_diff"] = torch.ones(4, 3)
    refused(write(held), "exp_avg_diff in its state, which AdamW has not")


def test_a_scheduler_of_another_kind_is_refused(write):
    held = saved(started()) | {"scheduler": {"num_epochs": 3, "value": 0.1}}
    refused(write(held), "scheduler holds a scheduler that is not known")


def test_the_clock_of_a_scheduler_is_found_from_the_counters(write, tmp_path):
    model, optimizer, scheduler = make()
    for _ in range(3):
        train(model, optimizer, 5)
        scheduler.step()
    path = write({"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()})
    refused(path, "scheduler has made 3 steps and the optimizer 15: give --interval epoch")
    assert convert_checkpoint(path, 16, 64, keys=Keys(interval="step")).changes["scheduler clock"].after == 4
    path = write({"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(), "epoch": 2})
    assert convert_checkpoint(path, 16, 64).changes["scheduler clock"].after == 1
    refused(write(saved(started("sgd"))), "does not say whether they are those of the optimizer")


def test_files_that_are_none_of_torchs_are_refused(tmp_path, write):
    text = tmp_path / "text.pt"
    text.write_text("hello")
    refused(text, "text.pt is no file of torch.save, or one of torch before 1.6")
    torch.save(started()[1].state_dict(), text, _use_new_zipfile_serialization=False)
    refused(text, r"torch.save\(torch.load\(IN, weights_only=True\), NEW\)")
    with zipfile.ZipFile(text, "w") as archive:
        archive.writestr("model/data.pkl", pickle.dumps({}))
        archive.writestr("model/code/model.py", "class Model: ...")
    refused(text, "a TorchScript model")
    refused(tmp_path / "nowhere.pt", "there is no")


def test_outputs_that_would_destroy_something_are_refused(write, tmp_path):
    path = write(saved(started()))
    refused(path, "the output is the checkpoint itself", output=path)
    (tmp_path / "there.pt").write_text("mine")
    refused(path, "is there already; --force replaces it", output=tmp_path / "there.pt")
    refused(path, "there is no folder", output=tmp_path / "no" / "out.pt")
    assert (tmp_path / "there.pt").read_text() == "mine"
    convert_checkpoint(path, 16, 64, tmp_path / "there.pt", force=True)
    assert torch.load(tmp_path / "there.pt", weights_only=True)["optimizer"]


def test_a_batch_size_that_the_file_contradicts_is_refused(write):
    held = started()[1].state_dict()
    held["param_groups"][0] |= {"rootscale_kappa": 4.0, "rootscale_batch_size": 64.0}
    refused(write(held), "says that it is at batch size 64, but --from is 16: give --from 64")


# ---- nothing is half-written


class Stop(BaseException):
    pass


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt, OSError])
def test_a_write_that_fails_leaves_nothing_behind(write, tmp_path, monkeypatch, error):
    monkeypatch.setattr(archives, "CHUNK", 64)
    path, told = write(saved(started())), []

    def progress(what, share):
        told.append(share)
        if share > 0.5:
            raise error("stop")

    with pytest.raises(error):
        convert_checkpoint(path, 16, 64, tmp_path / "out.pt", progress=progress)
    assert told[-1] > 0.5
    assert [one.name for one in tmp_path.iterdir()] == ["in.pt"]


def test_progress_goes_from_nothing_to_all(write, tmp_path):
    told = []
    convert_checkpoint(
        write(saved(started())), 16, 64, tmp_path / "out.pt", progress=lambda _, share: told.append(share)
    )
    assert told == sorted(told)
    assert told[-1] == pytest.approx(1.0, abs=0.05)


def test_an_archive_in_the_middle_of_a_file_is_read_and_written(tmp_path):
    data = io.BytesIO()
    torch.save({"a": torch.arange(4.0), "b": 1}, data)
    (tmp_path / "file").write_bytes(b"x" * 100 + data.getvalue() + b"y" * 50)
    held = Archive(MappedFile(tmp_path / "file"), 100, len(data.getvalue()))
    tensor = held.tensor(held.root["a"])
    assert tensor.tolist() == [0, 1, 2, 3]
    with open(tmp_path / "new", "wb") as file:
        file.write(b"z" * 33)
        held.write(file, {id(tensor): 2.0}, lambda size: None)
    new = io.BytesIO((tmp_path / "new").read_bytes()[33:])
    assert torch.load(new, weights_only=True)["a"].tolist() == [0, 2, 4, 6]
