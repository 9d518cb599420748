"""A checkpoint is the script's: in every order of loading and making a `Run`, it is the run that was not interrupted.

That run makes 8 steps of 2 samples, 4 of 8 and 4 of 16. It is saved before the first change, after it, and after the
second one; fresh objects resume it in every order of the lines of a script, and a script without rootscale does too.
"""

import copy
import itertools
import pickle

import pytest
import torch
from resumed import FIRST, Bare
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from rootscale.training import Run

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.distributed.*:UserWarning"),
]
NAMES = ("model", "optimizer", "scheduler", "ema")


class Script(Bare):
    """A loop by hand; a `Run` is made when it is asked for."""

    run = None

    def start(self, size):
        parts = {"scheduler": self.scheduler, "model": self.model, "ema": self.ema}
        self.run = Run(self.optimizer, tuned_at=FIRST, batch_size=size, **parts)
        return self

    def save(self, folder):
        torch.save(self.states(), folder / "run.pt")

    def read(self, folder):
        return torch.load(folder / "run.pt", weights_only=True)

    def load(self, states):
        for name in NAMES:
            getattr(self, name).load_state_dict(states[name])


class SchedulerFirst(Script):
    def load(self, states):
        for name in reversed(NAMES):
            getattr(self, name).load_state_dict(states[name])


class Pickled(Script):
    def save(self, folder):
        (folder / "run.pickle").write_bytes(pickle.dumps(self.states()))

    def read(self, folder):
        return pickle.loads((folder / "run.pickle").read_bytes())


class Copied(Script):
    """Kept in memory, as a search that goes back to its best state does."""

    kept = {}  # noqa: RUF012

    def save(self, folder):
        self.kept[folder] = copy.deepcopy(self.states())

    def read(self, folder):
        return self.kept[folder]  # not a copy


class Sharded(Script):
    """Saves with torch.distributed.checkpoint, which loads only keys that the fresh state has."""

    def states(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        rest = {"scheduler": self.scheduler.state_dict(), "ema": self.ema.state_dict()}
        return {"model": model, "optimizer": optimizer, **rest}

    def save(self, folder):
        dcp.save(self.states(), checkpoint_id=folder / "dcp", no_dist=True)

    def read(self, folder):
        return folder

    def load(self, folder):
        states = self.states()
        dcp.load(states, checkpoint_id=folder / "dcp", no_dist=True)
        set_state_dict(
            self.model, self.optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"]
        )
        self.scheduler.load_state_dict(states["scheduler"])
        self.ema.load_state_dict(states["ema"])


FRAMEWORKS = {
    "torch.save": Script,
    "scheduler first": SchedulerFirst,
    "pickle": Pickled,
    "in memory": Copied,
    "DCP": Sharded,
}
SIZES = {0: 2, 16: 8, 48: 16}  # from which sample on
SAVED = {"before": 16, "after": 32, "twice": 80}  # samples; the first one just before the change
END = 112


def size_at(place):
    return [size for start, size in SIZES.items() if start <= place][-1]


def go_on(script, place, end=END):
    found = {}
    for start, stop in itertools.pairwise(sorted({place, end, *(at for at in SIZES if place < at < end)})):
        script.run.batch_size = size_at(start)
        found |= script.train(start, size_at(start), (stop - start) // size_at(start))
    return found


@pytest.fixture(scope="module", params=FRAMEWORKS)
def saved(request, tmp_path_factory):
    """The records of the run that is never interrupted, and its checkpoints in folders of their names."""
    folder, cls = tmp_path_factory.mktemp("saved"), FRAMEWORKS[request.param]
    script, found, place = cls().start(FIRST), {}, 0
    for name, stop in SAVED.items():
        found |= go_on(script, place, stop)
        (folder / name).mkdir()
        script.save(folder / name)
        place = stop
    return cls, folder, found | go_on(script, place)


def load_first(script, read, size):
    script.load(read())
    script.start(size)


def run_first(script, read, size):
    script.start(size)
    script.load(read())


def another_size_first(script, read, size):
    script.start(5 * size)
    script.load(read())
    script.run.batch_size = size


def script_size_first(script, read, size):
    script.start(FIRST)
    script.load(read())
    script.run.batch_size = size


def trained_before(script, read, size):
    script.start(3 * size)
    script.train(0, 3 * size, 2)
    script.load(read())
    script.run.batch_size = size


def again_and_again(script, read, size):
    states = read()  # the same objects each time
    script.start(size)
    script.load(states)
    script.train(0, size, 2)
    script.run.batch_size = FIRST
    script.load(states)
    script.train(0, FIRST, 2)
    script.run.batch_size = 7 * FIRST
    script.load(states)
    script.run.batch_size = size


ORDERS = [load_first, run_first, another_size_first, script_size_first, trained_before, again_and_again]


@pytest.mark.parametrize("name", SAVED)
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.__name__)
def test_every_order_is_the_run_that_was_not_interrupted(saved, order, name):
    cls, folder, records = saved
    script, place = cls(), SAVED[name]
    script.model.load_state_dict(copy.deepcopy(script.model.state_dict()))
    order(script, lambda: script.read(folder / name), size_at(place - 1))
    check(go_on(script, place), {at: record for at, record in records.items() if at >= place})


def check(found, expected, rel=1e-9):
    """The bias before BatchNorm has a gradient of rounding alone, which Adam makes large."""
    assert list(found) == list(expected)
    for at in expected:
        assert found[at] == pytest.approx(expected[at], rel=rel), at


@pytest.mark.parametrize("name", SAVED)
def test_a_script_without_rootscale_goes_on_as_the_reference(saved, name):
    """The reference is the run of the script's batch size that has the same state, converted by hand."""
    cls, folder, _ = saved
    plain, place = cls(), SAVED[name]
    plain.load(plain.read(folder / name))
    reference = cls().start(size_at(place - 1))
    reference.load(reference.read(folder / name))
    kappa = size_at(place - 1) / FIRST
    by_hand = Bare()
    for mine, held in (("model", reference.model), ("scheduler", reference.scheduler), ("ema", reference.ema)):
        getattr(by_hand, mine).load_state_dict(copy.deepcopy(held.state_dict()))
    one = max(1 - kappa * 0.02, 0.9)
    factor = (0.02 * kappa / (1 - one)) ** 0.5
    for p, q in zip(by_hand.model.parameters(), reference.model.parameters(), strict=True):
        live = reference.optimizer.state[q]
        by_hand.optimizer.state[p] = {
            "step": live["step"] * kappa,
            "exp_avg": live["exp_avg"] * factor,
            "exp_avg_sq": live["exp_avg_sq"] * kappa,
        }
    by_hand.optimizer.param_groups[0]["lr"] = reference.optimizer.param_groups[0]["lr"]
    check(plain.train(place, FIRST, 8), by_hand.train(place, FIRST, 8))


# ---- optimizers without torch's hooks


class OwnStates(torch.optim.SGD):
    """Saves and loads in its own way, as those of bitsandbytes do, and calls none of torch's hooks."""

    def state_dict(self):
        numbers = {p: i for i, p in enumerate(itertools.chain(*(group["params"] for group in self.param_groups)))}
        groups = [{**group, "params": [numbers[p] for p in group["params"]]} for group in self.param_groups]
        return {"state": {numbers[p]: state for p, state in self.state.items()}, "param_groups": groups}

    def load_state_dict(self, state_dict):
        state_dict = copy.deepcopy(state_dict)
        parameters = list(itertools.chain(*(group["params"] for group in self.param_groups)))
        self.state.clear()
        for i, state in state_dict["state"].items():
            self.state[parameters[i]] = state
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({**saved, "params": group["params"]})


@pytest.mark.parametrize("cls", [torch.optim.SGD, OwnStates])
def test_an_optimizer_with_states_of_its_own_way(cls):
    def make():
        torch.manual_seed(0)
        model = nn.Linear(3, 1).double()
        return model, cls(model.parameters(), lr=0.01, momentum=0.9)

    def train(model, optimizer, steps, seed=0):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(4, 3, generator=generator, dtype=torch.float64)).square().mean().backward()
            optimizer.step()

    model, optimizer = make()
    run = Run(optimizer, tuned_at=2, batch_size=8)
    train(model, optimizer, 3)
    saved, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
    live = [state["momentum_buffer"] for state in optimizer.state.values()]
    for held, state in zip(live, saved["state"].values(), strict=True):
        torch.testing.assert_close(state["momentum_buffer"], 2 * held, rtol=1e-12, atol=0)
    assert saved["param_groups"][0]["lr"] == 0.01
    train(model, optimizer, 3, seed=1)
    for size in (8, 4):
        other, its = make()
        again = Run(its, tuned_at=2, batch_size=size)
        other.load_state_dict(weights)
        for _ in range(2):
            its.load_state_dict(saved)
        again.batch_size = 8
        assert again.clock == 12
        train(other, its, 3, seed=1)
        assert again.clock == run.clock == 24
        torch.testing.assert_close(other.weight, model.weight, rtol=1e-12, atol=0)


# ---- checkpoints of an earlier version, and memory


def test_what_an_earlier_version_has_converted_in_place_is_refused_with_the_command():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters())
    Run(optimizer, tuned_at=2, batch_size=8)
    state = optimizer.state_dict()
    state["param_groups"][0]["rootscale_kappa"] = 4.0
    with pytest.raises(ValueError, match=r"kappa = 4.* load it with that version, call rescale_\(optimizer, 0\.25\)"):
        optimizer.load_state_dict(state)
    state["param_groups"][0]["rootscale_kappa"] = 1.0  # back in the script's units
    optimizer.load_state_dict(state)
    assert not any(str(key).startswith("rootscale") for key in optimizer.param_groups[0])


@pytest.mark.parametrize(("betas", "pieces"), [((0.98, 0.999), 1), ((0.9, 0.95), 2), ((0.0, 0.95), 1)])
def test_saving_copies_each_converted_piece_once(betas, pieces, monkeypatch):
    """v, and m where beta1 stops at a floor; parameters, and what has no unit, are the optimizer's own tensors."""
    parameter = nn.Parameter(torch.ones(100_000))
    optimizer = torch.optim.Adam([parameter], betas=betas, amsgrad=True)
    run = Run(optimizer, tuned_at=2)
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    clone, copied = torch.Tensor.clone, []

    def counting(tensor, *args, **options):
        copied.append(tensor.numel())
        return clone(tensor, *args, **options)

    monkeypatch.setattr(torch.Tensor, "clone", counting)
    optimizer.state_dict()
    assert sum(copied) == 0
    run.batch_size = 8
    copied.clear()
    optimizer.state_dict()
    assert sum(n for n in copied if n > 1) == (pieces + 1) * 100_000  # and AMSGrad's maximum


def test_saving_leaves_the_live_state_where_and_as_it_is():
    parameter = nn.Parameter(torch.ones(10))
    optimizer = torch.optim.Adam([parameter])
    Run(optimizer, tuned_at=2, batch_size=8)
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    held = dict(optimizer.state[parameter])
    values = {key: value.clone() for key, value in held.items()}
    optimizer.state_dict()
    for key, value in optimizer.state[parameter].items():
        assert value is held[key]
        assert torch.equal(value, values[key])
