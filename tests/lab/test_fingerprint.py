"""A stored run is found again as long as the task computes the same, and not where it computes something else."""

import os
import pickle
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from problems import clouds, jitter, make, mlp, mlp_batchnorm
from swept import finished, sweep
from torch import nn
from torch.nn import functional as F

from rootscale.cli import main
from rootscale.lab import Here, Observer, Settings, Store, Tensors, Variant
from rootscale.lab.fingerprint import SAMPLES, TOLERANCE, Fingerprints, data_hash, differences

SETTINGS = Settings(grid=(0, 16))


def print_of(task, seeds=(0, 1)):
    """The fingerprint as it is stored: numbers are computed when they are asked for, and a task may change later."""
    return pickle.loads(pickle.dumps(Fingerprints().of(task, seeds)))


def changed(one, other):
    """What differs between two tasks; the same task does not differ from itself."""
    assert differences(print_of(one), print_of(one)) == []
    return differences(print_of(one), print_of(other))


class Halved:
    """A loss of one's own, as an object."""

    def __init__(self, by, unused=None):
        self.by, self.unused = by, unused

    def __call__(self, outputs, y):
        return F.cross_entropy(outputs, y, reduction="none") / self.by


class Own(nn.Module):
    """A net of one's own."""

    def __init__(self, activation=torch.relu, p=0.0):
        super().__init__()
        self.layer, self.activation, self.drop = nn.Linear(6, 3).double(), activation, nn.Dropout(p)

    def forward(self, x):
        return self.activation(self.drop(self.layer(x)))


FACTOR = 2.0


def of_a_global(outputs, y):
    return FACTOR * F.cross_entropy(outputs, y, reduction="none")


def closure(factor):
    return lambda outputs, y: factor * F.cross_entropy(outputs, y, reduction="none")


def scaled(parameters, record):
    return torch.optim.Adam(parameters, lr=2 * record.eta)


CROSS = partial(nn.CrossEntropyLoss, reduction="none")
LOSSES = {"loss in evaluation mode", "loss", "gradient"}


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({"loss": CROSS()}, {"loss": CROSS(label_smoothing=0.1)}, LOSSES),
        ({"loss": partial(F.cross_entropy, reduction="none", label_smoothing=0.1)}, {}, LOSSES),
        ({"loss": CROSS()}, {"loss": CROSS(weight=torch.tensor([1.0, 2.0, 1.0]).double())}, LOSSES),
        ({"loss": Halved(2)}, {"loss": Halved(2.5)}, LOSSES),
        ({"loss": closure(1.0)}, {"loss": closure(0.5)}, LOSSES),
        ({"model": Own}, {"model": partial(Own, torch.tanh)}, LOSSES),
        ({"model": Own}, {"model": partial(Own, lambda h: 0.0 * h)}, LOSSES),
        ({"model": partial(Own, p=0.1)}, {"model": partial(Own, p=0.2)}, {"loss", "gradient"}),
        ({"model": mlp}, {"model": mlp_batchnorm}, {"initial parameters", "optimizer", *LOSSES}),
        ({}, {"model": lambda: mlp().requires_grad_(False)}, {"gradient", "optimizer"}),
        ({}, {"prepare": torch.tanh}, LOSSES),
        ({"augment": jitter, "draws": 1}, {"augment": lambda x, u: jitter(x, 2 * u), "draws": 1}, {"loss", "gradient"}),
        ({}, {"optimizer": scaled}, {"optimizer"}),
        ({}, {"metrics": {}}, {"metric accuracy"}),
        ({}, {"metrics": {"accuracy": lambda outputs, y: outputs.mean(-1)}}, {"metric accuracy"}),
        ({"functions": {"f": lambda model: 1.0}}, {"functions": {"f": lambda model: 2.0}}, {"function f"}),
        ({}, {"test": None}, {"test data"}),
    ],
)
def test_what_changes_a_number_is_seen_and_named(one, other, expected):
    task = make()
    found = set(changed(replace(task, **one), replace(task, **other)))
    assert expected <= found
    assert found - expected <= {"metric accuracy"}, "other outputs may be as accurate, or not"


def test_what_changes_no_number_is_not_seen():
    task = make()
    assert changed(replace(task, loss=Halved(2)), replace(task, loss=Halved(2, unused={"a": 3}))) == []
    assert changed(replace(task, loss=Halved(1)), task) == []
    assert changed(make("adam"), make("adam")) == []


def test_a_global_is_seen(monkeypatch):
    task = replace(make(), loss=of_a_global)
    before = print_of(task)
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert set(differences(print_of(task), before)) == LOSSES


def test_every_row_of_the_data_counts():
    x, y = clouds(10_000)
    before = data_hash(Tensors(x, y))
    for row in (0, 65, 9_999):
        other = y.clone()
        other[row] = (other[row] + 1) % 3
        assert data_hash(Tensors(x, other)) != before
    assert data_hash(Tensors(x, y.int())) != before
    assert data_hash(Tensors(x.clone(), y.clone())) == before
    assert data_hash(Tensors(x.t().contiguous().t(), y)) == before, "only the values count, not how they lie in memory"
    task = make()
    inputs = task.train.inputs.clone()
    inputs[70, 0] += 1e-12
    assert changed(task, replace(task, train=(inputs, task.train.targets))) == ["train data"]


class Listed:
    """Data of one's own: a sample is made when it is asked for."""

    def __init__(self, x, y, special=-1):
        self.x, self.y, self.special = x, y, special

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = self.x[index]
        x[index == self.special] += 1
        return x, self.y[index]

    def to(self, device):
        return self


def test_data_of_ones_own_count_by_their_samples():
    x, y = clouds(9_000)
    assert data_hash(Listed(x, y)) == data_hash(Listed(x.clone(), y.clone()))
    assert data_hash(Listed(x, y)) != data_hash(Listed(x, y, special=8_999))


def test_numbers_agree_within_a_tolerance_and_hashes_exactly():
    found = print_of(make())
    near = {
        **found,
        "seeds": {
            seed: {name: [x * (1 + TOLERANCE / 2) for x in values] for name, values in numbers.items()}
            for seed, numbers in found["seeds"].items()
        },
    }
    assert differences(found, near) == []
    far = {**found, "seeds": {**found["seeds"], "1": {**found["seeds"]["1"], "loss": [np.nan] * SAMPLES}}}
    assert differences(found, far) == ["loss"]
    assert differences({**found, "train data": "0"}, found) == ["train data"]
    assert differences(found, {**found, "seeds": {}}) == [], "no seed is in both"


@pytest.mark.parametrize(("share", "seen"), [(6e-4, []), (3e-2, ["gradient"])])
def test_gradients_may_differ_by_what_another_processor_rounds(share, seen):
    found = print_of(make())
    other = {
        seed: {**one, "gradient": [x * (1 + share) for x in one["gradient"]]} for seed, one in found["seeds"].items()
    }
    assert differences(found, {**found, "seeds": other}) == seen


def test_single_precision_and_another_number_of_threads_agree_with_themselves():
    task = make(model=lambda: mlp().float(), prepare=lambda x: x.float())
    before, threads = print_of(task), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert differences(print_of(task), before) == []
    finally:
        torch.set_num_threads(threads)


def test_a_fingerprint_is_computed_once_for_each_task_and_seed_and_touches_no_global_state():
    made = []

    def model():
        made.append(1)
        return mlp()

    task, prints = make(model=model), Fingerprints()
    state = torch.get_rng_state()
    dict(prints.of(task, [0, 1])["seeds"])
    dict(prints.of(task, [1, 0, 2])["seeds"])
    assert len(made) == 3
    assert torch.equal(torch.get_rng_state(), state)


def test_a_fingerprint_costs_less_than_fifteen_steps_of_a_tiny_net():
    task = make()
    print_of(task, [0])  # what torch loads when it is first used
    began = time.process_time()
    print_of(task, [1])
    cost = time.process_time() - began
    began = time.process_time()
    sweep(task, [Variant()], seeds=[0], settings=Settings(grid=(0, 600)), execute=Here())
    assert cost < 0.1 * (time.process_time() - began), "150 steps"


# -- with a store ----------------------------------------------------------------------------------------------------


def test_an_outdated_run_is_made_anew_which_is_said_and_the_old_one_is_kept(tmp_path):
    notes = []

    def made(task):
        found = sweep(
            task, [Variant(4)], seeds=[0, 1], settings=SETTINGS, store=tmp_path, execute=Here(),
            observe=Observer(note=notes.append),
        )  # fmt: skip
        return found.trajectories[Variant(4)].values["train loss"]

    one, other = replace(make(), loss=Halved(1)), replace(make(), loss=Halved(2))
    first = made(one)
    assert made(other) == pytest.approx(first / 2, rel=0.1)
    (note,) = notes
    assert note == (
        "B = 16: the stored runs were made with another loss in evaluation mode, loss, gradient; they stay, and "
        "new ones are made"
    )
    assert sorted(path.name for path in tmp_path.glob("*/*/")) == ["seeds-0-1", "seeds-0-1-version-2"]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npz")}
    assert np.array_equal(made(one), first)
    made(other)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npz")} == before
    assert len(notes) == 1


def test_a_store_that_is_kept_looks_at_a_task_once_and_a_new_one_looks_again(tmp_path, monkeypatch):
    task = replace(make(), loss=of_a_global)
    asked = {"seeds": [0], "settings": SETTINGS}
    sweep(task, [Variant()], **asked, store=tmp_path, execute=Here())
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert not finished(task, [Variant()], **asked, store=Store(tmp_path))


TASK = """
import torch
from torch import nn
from rootscale import Adam, Plan
from rootscale.lab import Task
from helper import act

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(act(self.first(x)))

x, y = torch.randn(100, 5, generator=torch.Generator().manual_seed(0)), torch.arange(100) % 3
task = Task(
    "mine", plan=Plan(Adam(eta=1e-3, beta1=0.98), batch_size=4, steps=20), model=Net, train=(x, y),
    loss=lambda outputs, y: nn.functional.cross_entropy(outputs, y, reduction="none"),
)
"""
HELPER = "import torch\n\ndef act(h):\n    return {}\n"


def test_a_check_sees_a_helper_in_another_module_and_a_fresh_process_finds_unchanged_runs(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "mine.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    words = ["check", "mine.py:task", "--to", "8", "--seeds", "4", "--points", "2", "--out", "out", "--workers", "1"]

    def check(act):
        (tmp_path / "helper.py").write_text(HELPER.format(act))
        sys.modules.pop("helper", None)
        assert main(words) in (0, 1, 3)
        return capsys.readouterr().err

    def runs():
        return {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").rglob("*.npz")}

    assert "finished B = 8 (8 of 8 runs done" in check("torch.relu(h)")
    first = runs()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    again = subprocess.run(
        [sys.executable, "-m", "rootscale", *words], env=environment, capture_output=True, text=True, check=False
    )
    assert again.returncode in (0, 1, 3)
    assert "finished" not in again.stderr
    assert runs() == first
    before = (tmp_path / "out" / "table.npz").read_bytes()
    said = check("0.0 * h")
    assert "note: B = 8: the stored runs were made with another loss in evaluation mode, loss, gradient" in said
    assert "finished B = 8 (8 of 8 runs done" in said
    assert len(runs()) == 2 * len(first)
    assert (tmp_path / "out" / "table.npz").read_bytes() != before
