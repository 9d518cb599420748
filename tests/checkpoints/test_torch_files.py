"""Files of torch.save: the converted one is that of a run whose script has the numbers of the new batch size."""

import argparse
import collections
import copy
import io
import pickle
import re
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from saved_runs import ADAM, assert_close, by_hand, net, plain, train
from torch.optim import lr_scheduler as lrs

from rootscale.checkpoints import Keys, convert_checkpoint
from rootscale.checkpoints import archive as archives
from rootscale.checkpoints.archive import Archive, MappedFile
from rootscale.checkpoints.pickled import Kept, dump, load
from rootscale.training import Run

pytestmark = pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*before.*optimizer.step.*")


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
#: Each scheduler as a script makes it at kappa times its batch size.
SCHEDULERS = {
    "cosine": lambda o, k: lrs.CosineAnnealingLR(o, 60 // k, 1e-5 * k**0.5),
    "one cycle": lambda o, k: lrs.OneCycleLR(o, 1e-2 * k**0.5, total_steps=80 // k, cycle_momentum=False),
    "cyclic": lambda o, k: lrs.CyclicLR(o, 1e-3 * k**0.5, 1e-2 * k**0.5, 16 / k, cycle_momentum=False),
    "lambda": lambda o, k: lrs.LambdaLR(o, lambda step: 1 / (1 + k * step)),
    "step": lambda o, k: lrs.StepLR(o, 12 // k),
    "steps": lambda o, k: lrs.MultiStepLR(o, [4 // k, 12 // k, 24 // k]),
    "exponential": lambda o, k: lrs.ExponentialLR(o, 0.97**k),
    "constant": lambda o, k: lrs.ConstantLR(o, 0.5, 16 // k),
    "linear": lambda o, k: lrs.LinearLR(o, 0.1, 1.0, 32 // k),
    "polynomial": lambda o, k: lrs.PolynomialLR(o, 32 // k, 2.0),
    "restarts": lambda o, k: lrs.CosineAnnealingWarmRestarts(o, 12 // k, 2),
    "sequential": lambda o, k: lrs.SequentialLR(
        o, [lrs.LinearLR(o, 0.1, 1.0, 4 // k), lrs.CosineAnnealingLR(o, 60 // k)], [4 // k]
    ),
    "chained": lambda o, k: lrs.ChainedScheduler([lrs.ExponentialLR(o, 0.9**k), lrs.StepLR(o, 20 // k)], optimizer=o),
}


def make(optimizer="adamw", scheduler="cosine", kappa=1):
    model = net()
    made = OPTIMIZERS[optimizer](list(model.parameters()))
    for group in made.param_groups:
        group["lr"] = group["lr"] * kappa**0.5
    return model, made, SCHEDULERS[scheduler](made, kappa)


def started(optimizer="adamw", scheduler="cosine", steps=8, kappa=1):
    """A run in its middle."""
    run = make(optimizer, scheduler, kappa)
    for i in range(steps):
        train(run[0], run[1], 1, seed=i)
        run[2].step()
    return run


def saved(run, **more):
    return {**{name: part.state_dict() for name, part in zip(("model", "optimizer", "scheduler"), run, strict=True)},
            **more}  # fmt: skip


@pytest.fixture
def write(tmp_path):
    """Saves a run (or what is given) and returns the path."""

    def save(thing, name="in.pt"):
        path = tmp_path / name
        torch.save(thing, path)
        return path

    return save


def at(name, state_dict, kappa):
    """What an optimizer's state_dict becomes, by hand."""
    if name == "sgd":
        return by_hand(state_dict, kappa, lr=1, buffer=-0.5)
    return by_hand(state_dict, kappa, decay=0 if name == "adam" else 0.5)


@pytest.mark.parametrize("kappa", [4, 3, 0.5])
@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name != "floors"])
def test_every_number_of_the_optimizer_is_rebased_and_all_else_stays(write, tmp_path, optimizer, kappa):
    held = saved(started(optimizer))
    if optimizer == "rmsprop" and kappa == 4:
        held["optimizer"]["param_groups"][0]["alpha"] = 0.99
    convert_checkpoint(write(held), 16, 16 * kappa, tmp_path / "out.pt", keys=Keys(interval="step"))
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert_close(found["optimizer"], at(optimizer, held["optimizer"], kappa))
    assert plain(found["model"]) == plain(held["model"])


def test_where_beta1_stops_at_its_floor_momentum_gets_the_noise_of_its_average(write, tmp_path):
    held = saved(started("floors"))
    changes = convert_checkpoint(write(held), 16, 64, tmp_path / "out.pt").changes
    found = torch.load(tmp_path / "out.pt", weights_only=True)["optimizer"]
    assert found["param_groups"][0]["betas"] == (0.9, 0.9)
    assert any("betas" in text or "beta1" in text for text in changes.warnings if "stopped at a floor" in text)
    for owner, state in held["optimizer"]["state"].items():
        factor = 0.5  # sqrt(((1 - b') / (1 + b')) / (kappa (1 - b) / (1 + b))) with b' = b
        torch.testing.assert_close(found["state"][owner]["exp_avg"], state["exp_avg"] * factor, rtol=1e-12, atol=0)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_script_with_the_new_numbers_resumes_the_schedule_where_it_was(write, tmp_path, scheduler):
    convert_checkpoint(write(saved(started("adamw", scheduler))), 16, 64, tmp_path / "out.pt")
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    _, optimizer, resumed = make("adamw", scheduler, 4)
    optimizer.load_state_dict(found["optimizer"])
    resumed.load_state_dict(found["scheduler"])
    _, reference, never_saved = started("adamw", scheduler, 2, kappa=4)
    for i in range(10):
        rates = [[group["lr"] for group in one.param_groups] for one in (optimizer, reference)]
        if i or scheduler != "one cycle":  # whose last step is total_steps - 1, so that places are not multiples
            assert rates[0] == pytest.approx(rates[1], rel=1e-9)
        for one, by in ((optimizer, resumed), (reference, never_saved)):
            one.step()
            by.step()


def test_a_scheduler_by_epochs_keeps_its_counts(write, tmp_path):
    held = saved(started())
    convert_checkpoint(write(held), 16, 64, tmp_path / "out.pt", keys=Keys(interval="epoch"))
    found = torch.load(tmp_path / "out.pt", weights_only=True)["scheduler"]
    assert (found["last_epoch"], found["T_max"], found["_step_count"]) == (8, 60, 9)
    assert found["base_lrs"] == [2e-3]
    assert found["eta_min"] == 2e-5


def test_places_that_are_no_whole_steps_are_rounded_and_said(write, tmp_path):
    changes = convert_checkpoint(write(saved(started(steps=7))), 16, 64, tmp_path / "out.pt").changes
    assert changes["scheduler.last_epoch"].note == "rounded from 1.75"
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert (found["scheduler"]["last_epoch"], found["scheduler"]["_step_count"]) == (2, 3)
    assert float(found["optimizer"]["state"][0]["step"]) == 1.75


def test_a_plateau_scheduler_keeps_its_evaluations(write, tmp_path):
    model, optimizer, _ = started()
    plateau = lrs.ReduceLROnPlateau(optimizer, patience=8, min_lr=1e-5)
    for _ in range(4):
        plateau.step(1.0)
    convert_checkpoint(write(saved((model, optimizer, plateau))), 16, 64, tmp_path / "out.pt")
    found, old = torch.load(tmp_path / "out.pt", weights_only=True)["scheduler"], plateau.state_dict()
    assert found["min_lrs"] == [2e-5]
    assert found["eps"] == 2e-8
    assert all(found[key] == old[key] for key in ("patience", "num_bad_epochs", "last_epoch", "best", "cooldown"))


def test_nothing_says_that_a_file_was_converted_and_it_can_be_converted_again(write, tmp_path):
    held = saved(started())
    convert_checkpoint(write(held), 16, 32, tmp_path / "one.pt")
    convert_checkpoint(tmp_path / "one.pt", 32, 64, tmp_path / "two.pt")
    found = torch.load(tmp_path / "two.pt", weights_only=True)
    assert_close(found["optimizer"], at("adamw", held["optimizer"], 4))
    assert "rootscale" not in str(list(walk(found)))


def walk(thing):
    """Every key."""
    for key, value in thing.items() if isinstance(thing, dict) else enumerate(thing) if isinstance(thing, list) else ():
        yield key
        yield from walk(value)


def test_a_file_converted_there_and_back_is_the_file_it_was(write, tmp_path):
    path = write(saved(started()))
    convert_checkpoint(path, 16, 64, tmp_path / "there.pt")
    convert_checkpoint(tmp_path / "there.pt", 64, 16, tmp_path / "back.pt")
    before, after = (torch.load(one, weights_only=True) for one in (path, tmp_path / "back.pt"))
    assert_close(after, before)


# ---- counters of the loop


def test_counters_are_converted_by_name(write, tmp_path):
    held = saved(started(), iter_num=32, train_state={"step": 33}, config={"max_iters": 100})
    keys = Keys(counters=("iter_num", "train_state.step"))
    changes = convert_checkpoint(write(held), 16, 64, tmp_path / "out.pt", keys=keys).changes
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert (found["iter_num"], found["train_state"], found["config"]) == (8, {"step": 8}, {"max_iters": 100})
    assert changes["train_state.step"].note == "rounded from 8.25"
    assert not any("iter_num" in text for text in changes.remaining)


def test_a_counter_that_is_not_named_is_left_and_the_option_is_named(write):
    changes = convert_checkpoint(write(saved(started(), iter_num=32)), 16, 64).changes
    assert "iter_num = 32 is kept: if it counts steps, --counter iter_num makes it 8" in changes.remaining


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("steps", "--counter steps: there is no 'steps'; there are model, optimizer, scheduler, best"),
        ("best", "--counter best must be a whole number of steps, got float 0.5"),
        ("model.a.b", "--counter model.a: there is no 'a'"),
    ],
)
def test_a_counter_that_is_none_is_refused(write, key, text):
    refused(write(saved(started(), best=0.5)), text, keys=Keys(counters=(key,)))


def test_what_version_0_1_converted_in_place_is_refused(write):
    held = copy.deepcopy(saved(started()))
    held["scheduler"]["_rootscale_frames"] = [("sqrt", 4.0)]
    refused(write(held), "scheduler was converted in place by rootscale 0.1")
    held["optimizer"]["param_groups"][0]["rootscale_kappa"] = 4.0
    refused(write(held), r"rescale_\(optimizer, 0.25\)")


def test_the_clock_of_a_run_without_step_counters_is_converted(write, tmp_path):
    run = started("sgd")
    held = saved(run)
    held["optimizer"]["param_groups"][0]["rootscale_clock"] = 10.0
    convert_checkpoint(write(held), 16, 64, tmp_path / "out.pt", keys=Keys(interval="step"))
    optimizer = OPTIMIZERS["sgd"](list(net().parameters()))
    optimizer.load_state_dict(torch.load(tmp_path / "out.pt", weights_only=True)["optimizer"])
    assert Run(optimizer, tuned_at=64, batch_size=64).clock == 2.5


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
    convert_checkpoint(write(saved(started()), "plain.pt"), 16, 64, tmp_path / "other.pt")
    found, other = (torch.load(tmp_path / name, weights_only=True) for name in ("out.pt", "other.pt"))
    assert plain(found) == plain(PLACES[place](other["optimizer"], other["scheduler"]))


def test_several_optimizers_are_converted_with_their_schedulers(write, tmp_path):
    runs = {name: started(name) for name in ("adamw", "sgd")}
    held = {f"{what}_{name}": one.state_dict() for name, run in runs.items()
            for what, one in zip(("optimizer", "scheduler"), run[1:], strict=True)}  # fmt: skip
    convert_checkpoint(write(held), 16, 64, tmp_path / "out.pt", keys=Keys(interval="step"))
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    for name in runs:
        assert_close(found[f"optimizer_{name}"], at(name, held[f"optimizer_{name}"], 4))
        assert found[f"scheduler_{name}"]["T_max"] == 15
        assert found[f"scheduler_{name}"]["base_lrs"] == pytest.approx([2e-3 if name == "adamw" else 4e-2], rel=1e-12)


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
    changes = convert_checkpoint(write(saved(started(), **more)), 16, 64, "out.pt").changes
    assert not Path(TRAP).exists()
    (warning,) = [text for text in changes.warnings if "would call" in text]
    assert re.search(
        r"in.pt names __builtin__.getattr, .*pathlib.*Path, .*, which torch.load\(..., weights_only=False\) would call",
        warning,
    )
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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_tensors_are_multiplied_in_chunks_as_they_are_whole(write, tmp_path, monkeypatch, dtype):
    monkeypatch.setattr(archives, "CHUNK", 4096)
    weight = torch.nn.Parameter(torch.randn(137, 111).to(dtype))
    optimizer = torch.optim.AdamW([weight], **ADAM)
    weight.grad = torch.randn(137, 111).to(dtype)
    optimizer.step()
    path = write(optimizer.state_dict())
    convert_checkpoint(path, 16, 48, tmp_path / "out.pt")
    old, new = optimizer.state_dict()["state"][0], torch.load(tmp_path / "out.pt", weights_only=True)["state"][0]
    expected = old["exp_avg_sq"].clone()
    torch._foreach_mul_([expected], [1 / 3])  # as torch multiplies whole tensors
    assert torch.equal(new["exp_avg_sq"], expected)
    assert torch.equal(new["exp_avg"], old["exp_avg"])


def test_values_that_leave_half_precision_are_warned_of(write):
    weight = torch.nn.Parameter(torch.ones(4).half())
    optimizer = torch.optim.AdamW([weight], **ADAM)
    weight.grad = torch.ones(4).half()
    optimizer.step()
    optimizer.state[weight]["exp_avg_sq"] = torch.tensor([6e-8, 1.0, 1.0, 0.0]).half()
    changes = convert_checkpoint(write(optimizer.state_dict()), 16, 64).changes
    assert (
        "exp_avg_sq is kept in float16, and 1 of 3 (33 %) sampled values other than 0 become 0 when multiplied by "
        "0.25; keep parameters and state in float32 or bfloat16 (torch.autocast computes in half precision all the "
        "same)"
    ) in changes.warnings


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
    refused(path, "Adam or AdamW: .* give --optimizer adam or --optimizer adamw")
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
    (torch.optim.RAdam, {}, {"exp_avg_sq": 0.25, "step": 0.25, "exp_avg": 1}),
    (torch.optim.NAdam, {"betas": (0.99, 0.999)}, {"exp_avg_sq": 0.25, "step": 0.25, "exp_avg": 1}),
    (torch.optim.Adamax, {"betas": (0.99, 0.999)}, {"exp_inf": 0.5, "step": 0.25, "exp_avg": 1}),
    (torch.optim.Adagrad, {}, {"sum": 1 / 16, "step": 0.25}),
    (torch.optim.RMSprop, {"momentum": 0.9}, {"square_avg": 0.25, "momentum_buffer": 1}),
    (torch.optim.SGD, {"nesterov": True, "momentum": 0.9, "lr": 0.1}, {"momentum_buffer": 0.5}),
    (torch.optim.Adadelta, {}, None),
    (torch.optim.ASGD, {}, None),
    (torch.optim.Rprop, {}, None),
]


@pytest.mark.parametrize(("cls", "options", "factors"), CLASSES, ids=[row[0].__name__ for row in CLASSES])
def test_the_state_of_each_class_is_multiplied_by_its_factors_or_refused(write, tmp_path, cls, options, factors):
    model = net()
    optimizer = cls(model.parameters(), **options)
    train(model, optimizer, 4)
    path = write(optimizer.state_dict())
    if factors is None:
        refused(path, "is not recognised: its groups have .*lr|follows no known SDE")
        return
    if cls is torch.optim.RAdam:
        optimizer.param_groups[0]["betas"] = (0.99, 0.999)
        path = write(optimizer.state_dict())
    convert_checkpoint(path, 16, 64, tmp_path / "out.pt")
    found, old = torch.load(tmp_path / "out.pt", weights_only=True)["state"], optimizer.state_dict()["state"]
    for owner, state in old.items():
        for name, factor in factors.items():
            expected = state[name] * factor
            torch.testing.assert_close(found[owner][name], expected, rtol=1e-6 if name == "step" else 1e-12, atol=0)


def test_the_mean_of_a_centered_rmsprop_stays_in_its_second_moment(write, tmp_path):
    model = net()
    optimizer = torch.optim.RMSprop(model.parameters(), centered=True)
    train(model, optimizer, 4)
    convert_checkpoint(write(optimizer.state_dict()), 16, 64, tmp_path / "out.pt")
    found = torch.load(tmp_path / "out.pt", weights_only=True)["state"]
    for owner, state in optimizer.state_dict()["state"].items():
        mean = state["grad_avg"].square()
        expected = mean + (state["square_avg"] - mean) / 4
        torch.testing.assert_close(found[owner]["square_avg"], expected, rtol=1e-12, atol=1e-18)
        assert torch.equal(found[owner]["grad_avg"], state["grad_avg"])


class Lion(torch.optim.Optimizer):
    """An optimizer of some library, which need not be there when its file is converted."""

    def __init__(self, params):
        super().__init__(params, {"lr": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.1})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                self.state[weight].setdefault("exp_avg", weight.grad.clone())


def test_an_optimizer_of_a_library_is_named_by_its_family(write, tmp_path):
    model = net()
    optimizer = Lion(model.parameters())
    train(model, optimizer, 4)
    path = write(optimizer.state_dict())
    refused(path, "is not recognised: its groups have betas, lr, weight_decay. If its update is that of .*lion")
    changes = convert_checkpoint(
        path, 16, 64, tmp_path / "out.pt", keys=Keys(kind="lion"), rule="normalized-sqrt"
    ).changes
    group = torch.load(tmp_path / "out.pt", weights_only=True)["param_groups"][0]
    assert (group["lr"], group["betas"], group["weight_decay"]) == (2e-3, (0.9, 0.99), 0.2)
    assert changes["factor of exp_avg"].after == 0.5


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
    assert convert_checkpoint(path, 16, 64, keys=Keys(interval="step")).changes["scheduler.T_max"].value == 15
    path = write({"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(), "epoch": 2})
    assert "scheduler.T_max" not in convert_checkpoint(path, 16, 64).changes
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


def test_a_link_is_not_replaced_unless_it_is_forced(write, tmp_path):
    path = write(saved(started()))
    (tmp_path / "best.pt").write_text("mine")
    for name, target in (("link.pt", "best.pt"), ("dangling.pt", "nowhere.pt")):
        link = tmp_path / name
        link.symlink_to(target)
        refused(path, f"{name} is a symbolic link to {target}; --force replaces the link", output=link)
        assert link.is_symlink()
        convert_checkpoint(path, 16, 64, link, force=True)
        assert not link.is_symlink()
        assert torch.load(link, weights_only=True)["optimizer"]
    assert (tmp_path / "best.pt").read_text() == "mine"


def pickled_file(path, data):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("run/data.pkl", data)
        archive.writestr("run/version", "3")
    return path


BOMBS = {
    "places": b"\x80\x02}r\xff\xff\xff\x7f.",
    "a text": b"\x80\x04\x8d" + (2**40).to_bytes(8, "little") + b"abc.",
    "an array": b"\x80\x05\x96" + (2**40).to_bytes(8, "little") + b"abc.",
    "a number": b"\x80\x02\x8b" + (2**30).to_bytes(4, "little") + b"abc.",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_pickle_that_asks_for_all_memory_is_refused(tmp_path, name):
    path = pickled_file(tmp_path / "in.pt", BOMBS[name])
    tracemalloc.start()
    refused(path, "the pickle in it cannot be read")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6


def test_lists_that_double_forty_times_are_not_unfolded(tmp_path):
    value = [0.9, 0.999]
    for _ in range(40):
        value = [value, value]
    held = {
        "param_groups": [{"params": [0], "lr": value, "betas": value, "eps": 1e-8, "weight_decay": 0.0}],
        "state": {},
    }
    data = pickle.dumps(held, 2)
    assert len(data) < 600
    refused(pickled_file(tmp_path / "in.pt", data), "which is no hyperparameter", keys=Keys(kind="adamw"))
    optimizer = started()[1].state_dict()
    state = {"optimizer": optimizer | {"state": {0: value}}}
    refused(pickled_file(tmp_path / "in.pt", pickle.dumps(state, 2)), "is no dictionary of named pieces")
    group = {**optimizer["param_groups"][0], "params": [0]}
    scheduler = {"last_epoch": 3, "_step_count": 4, "_last_lr": [group["lr"]], "base_lrs": value}
    run = {"optimizer": {"state": {}, "param_groups": [group]}, "scheduler": scheduler}
    path = pickled_file(tmp_path / "in.pt", pickle.dumps(run, 2))
    refused(path, "learning rates of lists in lists", keys=Keys(interval="step"))


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
