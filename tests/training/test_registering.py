"""Optimizers of the user's own: like a known family, or with a row of its own."""

import pytest
import torch

from rootscale import RULES
from rootscale.degrees import Piece, count_degrees
from rootscale.theory.toys import Setting, live_gaps
from rootscale.training import Run, register, rescale_

pytestmark = pytest.mark.usefixtures("forget_registered")


class MyAdam(torch.optim.Adam):
    def step(self, closure=None):
        return super().step(closure)


class Normed(torch.optim.Optimizer):
    """Momentum divided by the root of the average of its square: of degree 0, in its own way."""

    def __init__(self, params, lr=0.01, mu=0.9, rho=0.99):
        super().__init__(params, {"lr": lr, "mu": mu, "rho": rho})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                m, q = (state.setdefault(key, torch.zeros_like(p)) for key in ("m", "q"))
                m.lerp_(p.grad, 1 - group["mu"])
                q.lerp_(m.square(), 1 - group["rho"])
                p.addcdiv_(m, q.sqrt() + 1e-12, value=-group["lr"])


def net():
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2).double()


def trained(optimizer, model, steps=4):
    for _ in range(steps):
        model(torch.randn(5, 3, dtype=torch.double)).square().mean().backward()
        optimizer.step()


def test_a_class_can_count_as_a_known_family():
    model = net()
    optimizer = MyAdam(model.parameters(), lr=1e-3, betas=(0.98, 0.999))
    with pytest.raises(TypeError, match=r"register\(MyAdam, like='adam'\)"):
        rescale_(optimizer, 4)
    assert register(MyAdam, like="adam").name == "adam"
    trained(optimizer, model)
    assert rescale_(optimizer, 4)["lr"].after == 2e-3


class Renamed(torch.optim.Optimizer):
    """Adam under names of its own."""

    def __init__(self, params, **betas):
        super().__init__(params, {"lr": 1e-3, "eps": 1e-8, **(betas or {"betas": (0.98, 0.999)})})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            self.state[p] = {"mean": torch.ones_like(p), "square": torch.ones_like(p), "t": 8, "is_warm": True}


def test_state_under_other_names_is_refused_until_it_has_a_row():
    register(Renamed, like="adam")
    optimizer = Renamed(net().parameters())
    optimizer.step()
    message = r"state has mean, square, t, which adam has not.* register\(cls, values=..., state=\{'mean': ..., 'squ"
    with pytest.raises(ValueError, match=message):
        rescale_(optimizer, 4)
    assert optimizer.param_groups[0]["lr"] == 1e-3
    assert rescale_(optimizer, 4, state=False, dry_run=True)["lr"].after == 2e-3
    values = {"lr": "eta", "betas": ("beta1", "beta2"), "eps": "eps"}
    register(Renamed, values=values, state={"mean": "m", "square": "v", "t": "step_counter"})
    rescale_(optimizer, 4)
    held = next(iter(optimizer.state.values()))
    assert (held["square"].mean(), held["mean"].mean(), held["t"]) == (0.25, 1.0, 2)


def test_values_under_other_names_are_refused():
    register(Renamed, like="adam")
    with pytest.raises(ValueError, match=r"Renamed has no 'betas' in group 0, which has .*; register\(Renamed, val"):
        rescale_(Renamed(net().parameters(), beta1=0.98, beta2=0.999), 4)


def registered():
    """The row by degree counting: the update is m over the noise of m, with the window of m kept in steps."""
    counted = count_degrees({"m": Piece(window=0), "n": Piece(1, "noise", window=0)}, {"m": 1, "n": -1})
    return register(
        Normed,
        values={"lr": "eta", "mu": "mu", "rho": "beta2"},
        state={"m": "n", "q": 2 * counted.state["n"]},
        exponents=counted,
        rule="normalized-sqrt",
        why="m is divided by the root of the average of its square.",
    )


def test_a_row_of_its_own_is_counted_and_converted():
    row = registered()
    assert (row.name, row.status, row.rules) == ("normed", "heuristic", ("normed",))
    model = net()
    optimizer = Normed(model.parameters())
    trained(optimizer, model)
    q, m = (optimizer.state[model.weight][key].clone() for key in ("q", "m"))
    changes = rescale_(optimizer, 4)
    assert (changes["lr"].after, changes["mu"].after, changes["rho"].after) == (0.02, 0.9, pytest.approx(0.96))
    torch.testing.assert_close(optimizer.state[model.weight]["q"], q / 4)
    torch.testing.assert_close(optimizer.state[model.weight]["m"], m / 2)
    assert not changes.warnings
    rescale_(optimizer, 0.25)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)


def test_a_row_of_its_own_goes_through_a_run_with_its_scheduler():
    registered()
    model = net()
    optimizer = Normed(model.parameters())
    trained(optimizer, model)
    q, m = (optimizer.state[model.weight][key].clone() for key in ("q", "m"))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 8, gamma=0.5)
    run = Run(optimizer, tuned_at=8, batch_size=32, scheduler=scheduler)
    torch.testing.assert_close(optimizer.state[model.weight]["q"], q / 4)
    torch.testing.assert_close(optimizer.state[model.weight]["m"], m / 2)
    torch.testing.assert_close(optimizer.state_dict()["state"][0]["q"], q)  # a checkpoint is the script's
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["rho"]) == (0.01, 0.99)
    assert {key: run.values()[key] for key in ("lr", "mu", "rho")} == pytest.approx(
        {"lr": 0.02, "mu": 0.9, "rho": 0.96}
    )
    for _ in range(2):
        trained(optimizer, model, steps=1)
        scheduler.step()
    assert (scheduler.last_epoch, optimizer.param_groups[0]["lr"]) == (8, 0.005)


def test_betas_keep_their_names_and_what_averages_gradients_follows_the_floor_of_beta1():
    """Adam, registered by degree counting, is converted as Adam is."""

    class Counted(MyAdam):
        pass

    counted = count_degrees({"mean": Piece(), "square": Piece(2, "noise")}, {"mean": 1, "square": -0.5})
    values = {"lr": "eta", "betas": ("beta1", "beta2"), "eps": counted.eps["square"], "weight_decay": "l2"}
    state = {"exp_avg": "mean", "exp_avg_sq": "square", "step": "step_counter"}
    register(Counted, values=values, state=state, exponents=counted)
    found = []
    for cls in (Counted, torch.optim.Adam):
        model = net()
        optimizer = cls(model.parameters(), lr=1e-3)
        trained(optimizer, model)
        found.append({row.name: row.after for row in rescale_(optimizer, 16)})
    assert found[0] == found[1]
    assert found[0]["factor of exp_avg"] == pytest.approx(0.25)


def test_the_harness_tells_a_good_row_from_a_bad_one():
    registered()
    setting = Setting(replicas=256, before=96, after=320)
    found = live_gaps(lambda p: Normed(p, lr=0.0035), {"own": None, "sqrt": "sqrt"}, 4, "quadratic", setting)
    assert abs(found["own"].gap) < 0.08
    assert abs(found["sqrt"].gap) > 0.2


def test_powers_of_kappa_can_be_given_as_numbers():
    row = register(Normed, name="mine", values={"lr": 0.5, "mu": "mu", "rho": "beta2"}, state={"m": -0.5, "q": -1})
    assert row.rules == ("mine",)
    assert RULES["mine"].convert("mine.q", 8.0, 4) == 2.0
    assert RULES["mine"].convert("eta", 1.0, 4) == 2.0


def test_a_cell_that_registers_can_be_run_again():
    for _ in range(2):

        class Mine(Normed):
            def step(self, closure=None): ...

        assert register(Mine, values={"lr": 0.5, "mu": "mu", "rho": "beta2"}, state={"m": -0.5}).name == "mine"
    with pytest.raises(ValueError, match="there is a rule 'mine' already; choose another name"):
        register(Mine, values={"lr": 0.75, "mu": "mu", "rho": "beta2"}, state={"m": -0.5})
    assert rescale_(Mine(net().parameters()), 4)["lr"].after == 0.02


def test_a_row_of_known_units_alone_keeps_the_dynamics_by_the_rule_it_names():
    register(Normed, values={"lr": "eta", "mu": "mu", "rho": "beta2"}, rule="normalized-sqrt")
    assert rescale_(Normed(net().parameters()), 4).warnings == ()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"speed": "mu"}, "Normed has no 'speed' in group 0, which has lr, mu, rho"),
        ({"mu": ("mu", "beta2")}, "mu holds 1 numbers, and the row of misfit has 2 units for it"),
    ],
)
def test_a_row_that_does_not_fit_the_groups_is_refused(values, message):
    register(Normed, values={"lr": "eta", **values}, name="misfit")
    with pytest.raises(ValueError, match=message):
        rescale_(Normed(net().parameters()), 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"values": {"lr": "eta"}, "rule": "square"}, "rule must be one of sqrt, .* got 'square'"),
        ({}, r"register needs like=, or values= with at least \{'lr': 'eta'\}"),
        ({"like": "adams"}, "optimizer must be one of adam, .*, got 'adams'"),
        ({"like": "adam", "state": {"m": "m"}}, "like takes a whole row"),
        ({"values": {"lr": "eta", "mu": "speed"}}, "mu must have a unit of the table or a power of kappa, got 'speed'"),
        ({"values": {"lr": "eta"}, "name": "adam"}, "there is a family 'adam' already"),
    ],
)
def test_mistakes_are_refused_with_what_would_work(options, message):
    with pytest.raises(ValueError, match=message):
        register(Normed, **options)
