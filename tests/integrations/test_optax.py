"""Against the real optax, in float64."""

import importlib.util
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("optax", reason="needs optax: pip install 'rootscale[optax]'")

import jax
import jax.numpy as jnp
import optax

from rootscale import SGD, Adam, AdamW, RMSprop, ScalingWarning
from rootscale.integrations.optax import rescale, scale, scale_schedule
from rootscale.records import LARS, Lion, Muon, Shampoo
from rootscale.training import Run

ROOT = Path(__file__).parents[2]


def function(name):
    return getattr(optax, name, None) or getattr(optax.contrib, name)


A = np.diag([1.0, 4.0, 0.3]) + 0.1
NOISE = np.random.default_rng(0).normal(size=(64, 3))


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def gradient(params, k):
    """Of a quadratic, with the same noise for everybody."""
    return params @ A + NOISE[k]


def run(transformation, params, state, steps, first=0):
    for k in range(first, first + steps):
        updates, state = transformation.update(gradient(params, k), state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def start():
    return jnp.array([1.0, -2.0, 0.5])


def leaves_equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    return all(bool(jnp.array_equal(x, y)) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_it_is_imported_and_used_without_torch():
    code = """
import sys
sys.modules["torch"] = None  # importing it fails
import optax, jax.numpy as jnp
from rootscale.integrations.optax import rescale, scale, scale_schedule
state = optax.adam(1e-3).init(jnp.ones(2))
print(scale(optax.adamw, 4, learning_rate=1e-3)["learning_rate"], rescale(state, 4, b1=0.98)[0].nu)
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path])}
    found = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert found.stdout.split() == ["0.002", "[0.", "0.]"], found.stderr


# Arguments.

ARGUMENTS = {
    "adam": (
        optax.adam,
        dict(learning_rate=1e-3, b1=0.98, b2=0.999, eps=1e-6, eps_root=1e-10),
        dict(learning_rate=2e-3, b1=0.92, b2=0.996, eps=5e-7, eps_root=2.5e-11),
    ),
    "adamw": (
        optax.adamw,
        dict(learning_rate=1e-3, b1=0.98, b2=0.999, weight_decay=0.1),
        dict(learning_rate=2e-3, b1=0.92, b2=0.996, eps=5e-9, eps_root=0.0, weight_decay=0.2),
    ),
    "amsgrad": (
        optax.amsgrad,
        dict(learning_rate=1e-3, b1=0.98),
        dict(learning_rate=2e-3, b1=0.92, b2=0.996, eps=5e-9),
    ),
    "rmsprop": (
        optax.rmsprop,
        dict(learning_rate=1e-3, decay=0.99, eps=1e-6, initial_scale=1.0),
        dict(learning_rate=2e-3, decay=0.96, eps=2.5e-7, initial_scale=0.25),
    ),
    "rmsprop, eps outside": (
        optax.rmsprop,
        dict(learning_rate=1e-3, decay=0.99, eps=1e-6, eps_in_sqrt=False),
        dict(learning_rate=2e-3, decay=0.96, eps=5e-7, eps_in_sqrt=False),
    ),
    "sgd": (optax.sgd, dict(learning_rate=1e-3, momentum=0.9), dict(learning_rate=4e-3, momentum=0.9)),
    "rmsprop, momentum": (
        optax.rmsprop,
        dict(learning_rate=1e-3, decay=0.99, eps=1e-6, momentum=0.9, centered=True),
        dict(learning_rate=2e-3, decay=0.96, eps=2.5e-7, momentum=0.9),
    ),
    "adam, look-ahead": (optax.adam, dict(learning_rate=1e-3, nesterov=True), dict(learning_rate=2e-3, eps=5e-9)),
    "nadam": (optax.nadam, dict(learning_rate=1e-3, b1=0.98), dict(learning_rate=2e-3, b1=0.92, eps=5e-9)),
    "nadamw": (optax.nadamw, dict(learning_rate=1e-3, weight_decay=0.1), dict(learning_rate=2e-3, weight_decay=0.2)),
    "radam": (optax.radam, dict(learning_rate=1e-3, b1=0.98), dict(learning_rate=2e-3, b1=0.92, threshold=5.0)),
    "adamax": (optax.adamax, dict(learning_rate=1e-3, b2=0.999), dict(learning_rate=2e-3, b2=0.996, eps=5e-9)),
    "adamaxw": (optax.adamaxw, dict(learning_rate=1e-3, weight_decay=0.1), dict(weight_decay=0.2)),
    "adagrad": (
        optax.adagrad,
        dict(learning_rate=1e-1, eps=1e-6),
        dict(learning_rate=1e-1, eps=1e-6 / 16, initial_accumulator_value=0.1 / 16),
    ),
    "adafactor": (
        optax.adafactor,
        dict(learning_rate=1e-3, momentum=0.98, weight_decay_rate=1e-4, decay_offset=8),
        dict(learning_rate=2e-3, momentum=0.92, weight_decay_rate=4e-4, decay_offset=2, eps=2.5e-31, decay_rate=0.8),
    ),
    "lars": (optax.lars, dict(learning_rate=1e-1, eps=1e-3), dict(learning_rate=2e-1, eps=5e-4, momentum=0.9)),
    "lamb": (
        optax.lamb,
        dict(learning_rate=1e-3, weight_decay=0.1),
        dict(learning_rate=1e-3 * 4**0.75, b1=0.8, b2=0.996, eps=5e-7, weight_decay=0.1 * 4**0.25),
    ),
    "lion": (
        optax.lion,
        dict(learning_rate=1e-4, weight_decay=0.1),
        dict(learning_rate=2e-4, b1=0.9, b2=0.99, weight_decay=0.2),
    ),
    "signum": (optax.signum, dict(learning_rate=1e-4), dict(learning_rate=2e-4, beta=0.9)),
    "sign_sgd": (optax.sign_sgd, dict(learning_rate=1e-4), dict(learning_rate=2e-4)),
    "muon": (
        optax.contrib.muon,
        dict(learning_rate=0.02, weight_decay=0.1, adam_learning_rate=1e-3, adam_b1=0.98, adam_weight_decay=0.01),
        dict(
            learning_rate=0.04, beta=0.95, eps=5e-9, weight_decay=0.2,
            adam_learning_rate=2e-3, adam_b1=0.92, adam_b2=0.996, adam_weight_decay=0.02,
        ),
    ),
    "muon, one learning rate": (
        optax.contrib.muon,
        dict(learning_rate=0.02),
        dict(learning_rate=0.04, adam_learning_rate=0.04),
    ),
    "ademamix": (
        optax.contrib.ademamix,
        dict(learning_rate=1e-3, b1=0.98, weight_decay=0.1),
        dict(learning_rate=2e-3, b1=0.92, b2=0.996, b3=0.9996, alpha=5.0, weight_decay=0.2),
    ),
    "schedule_free_adamw": (
        optax.contrib.schedule_free_adamw,
        dict(learning_rate=1e-3, warmup_steps=100, weight_decay=0.1),
        dict(learning_rate=2e-3, warmup_steps=25, b1=0.9, b2=0.996, weight_decay=0.2),
    ),
    "schedule_free_sgd": (
        optax.contrib.schedule_free_sgd,
        dict(learning_rate=1e-3, warmup_steps=100),
        dict(learning_rate=4e-3, warmup_steps=25, b1=0.9),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_and_defaults_are_converted_by_their_own_rows(name):
    make, arguments, expected = ARGUMENTS[name]
    new = scale(make, 4, **arguments)
    assert {key: new[key] for key in expected} == pytest.approx(expected, rel=1e-12)
    assert new == scale(name.split(",")[0], 4, **arguments)
    make(**new).init(start())  # they are all its arguments


def test_a_record_has_its_arguments_in_it():
    assert scale(AdamW(eta=1e-3, beta1=0.98, weight_decay=0.1), 4) == scale(
        "adamw", 4, learning_rate=1e-3, b1=0.98, weight_decay=0.1
    )
    assert scale(RMSprop(eta=1e-3, beta=0.99), 4) == scale(
        "rmsprop", 4, learning_rate=1e-3, decay=0.99, eps_in_sqrt=False
    )
    assert scale(RMSprop(eta=1e-3, eps=0, eps_root=1e-6), 4)["eps"] == 2.5e-7
    assert scale(SGD(eta=0.1), 4)["momentum"] is None
    with pytest.raises(ValueError, match=r"optax.adam has no L2 term"):
        scale(Adam(eta=1e-3, beta1=0.98, weight_decay=0.1), 4)
    with pytest.raises(ValueError, match="has one eps"):
        scale(RMSprop(eta=1e-3, eps_root=1e-6), 4)
    assert scale(Muon(eta=0.02, nesterov=False), 4) == scale(
        "muon", 4, learning_rate=0.02, beta=0.95, eps=1e-7, weight_decay=0.1, nesterov=False
    )
    assert scale(Lion(eta=1e-4), 4) == scale("lion", 4, learning_rate=1e-4, weight_decay=0.0)
    with pytest.raises(ValueError, match=r"optax.lars has arguments that a record of lars does not tell; call scale"):
        scale(LARS(eta=1e-3), 4)
    with pytest.raises(ValueError, match=r"optimizer must be one of adam, .*; got a record of shampoo"):
        scale(Shampoo(eta=1e-3), 4)


def test_each_optimizer_of_muon_may_have_its_rule():
    new = scale("muon", 4, learning_rate=0.02, eps=0.0, rule={"muon": "normalized-linear"})
    assert (new["learning_rate"], new["beta"], new["adam_learning_rate"]) == pytest.approx((0.08, 0.8, 0.04))


def test_a_schedule_of_what_has_no_unit_follows_the_clock():
    warm = optax.linear_schedule(0.0, 5.0, 100)
    alpha = scale("ademamix", 4, learning_rate=1e-3, alpha=warm)["alpha"]
    assert float(alpha(10)) == pytest.approx(float(warm(40)))


def test_arguments_that_no_rule_keeps_are_refused():
    with pytest.raises(ValueError, match=r"optimizer must be one of adam, adamw.*; got 'novograd'"):
        scale(optax.novograd, 4, learning_rate=1e-3)
    with pytest.raises(ValueError, match=r"contrib.muon with adaptive=True: only steps .*; it has to be False"):
        scale(optax.contrib.muon, 4, learning_rate=1e-3, adaptive=True)
    with pytest.raises(ValueError, match=r"weight_lr_power=1: the sum of its weights .*; it has to be 2"):
        scale("schedule_free_sgd", 4, learning_rate=1e-3, weight_lr_power=1)
    with pytest.raises(ValueError, match=r"optax.adafactor without a learning_rate has none to convert"):
        scale("adafactor", 4)
    with pytest.raises(ValueError, match=r"optax.contrib.muon has one eps for two optimizers, which becomes 1e-08 for"):
        scale("muon", 4, learning_rate=1e-3, rule={"muon": "normalized-linear"})
    with pytest.raises(ValueError, match=r"kappa=16 gives b1=-0.6; need kappa < 10"):
        scale("adam", 16, learning_rate=1e-3, rule="with paper")
    with pytest.raises(ValueError, match="a schedule of beta1 cannot be checked"):
        scale("adam", 4, learning_rate=1e-3, b1=lambda count: 0.9)
    with pytest.warns(ScalingWarning, match="averages over less than two steps"):
        scale("adam", 6, learning_rate=1e-3, rule="with paper")


@pytest.mark.parametrize("kappa", [4, 3, 0.5, 1.5])
def test_a_schedule_at_equal_samples_is_converted(kappa):
    old = optax.warmup_cosine_decay_schedule(0.0, 1e-2, warmup_steps=20, decay_steps=100, end_value=1e-3)
    new = scale_schedule(old, kappa)
    for samples in range(0, 120, 6):
        assert float(new(samples / kappa)) == pytest.approx(kappa**0.5 * float(old(samples)), rel=1e-12)
    assert scale("sgd", 4, learning_rate=old)["learning_rate"](5) == pytest.approx(4 * float(old(20)))


def test_a_schedule_that_looks_up_steps_gets_integers():
    table = jnp.arange(100.0)
    assert float(scale_schedule(lambda count: table[count], 4)(jnp.asarray(5))) == 2 * 20
    steps = optax.piecewise_constant_schedule(1.0, {10: 0.1})
    counts = [jnp.float32(k / 3) for k in (9, 10, 11)]
    assert [float(scale_schedule(steps, 3)(count)) for count in counts] == pytest.approx(
        [3**0.5 * float(steps(k)) for k in (9, 10, 11)]
    )
    near = jnp.nextafter(counts[1], jnp.float32(0))  # as rounding may leave it
    assert float(scale_schedule(steps, 3)(near)) == pytest.approx(0.1 * 3**0.5)


# States.


@pytest.mark.parametrize("rule", ["with paper", None])
@pytest.mark.parametrize(("steps", "kappa", "count"), [(12, 4, 3), (10, 4, 2.5), (10, 3, 10 / 3), (4, 0.5, 8)])
def test_the_next_update_is_that_of_a_state_converted_by_hand(steps, kappa, count, rule):
    arguments = dict(learning_rate=1e-2, b1=0.9, b2=0.99, eps=1e-3, eps_root=1e-4)
    params, state = run(optax.adam(**arguments), start(), optax.adam(**arguments).init(start()), steps)
    transformation = optax.adam(**scale("adam", kappa, rule=rule, **arguments))
    got, after = transformation.update(gradient(params, steps), rescale(state, kappa, rule=rule, b1=0.9), params)

    b1, b2, factor = 1 - kappa * 0.1, 1 - kappa * 0.01, 1.0
    if rule is None and b1 < 0.9:  # beta1 stops at its floor, and mu gets the noise level of that average
        b1, factor = 0.9, math.sqrt(1 / kappa)
    m = b1 * state[0].mu * factor + (1 - b1) * gradient(params, steps)
    v = b2 * state[0].nu / kappa + (1 - b2) * gradient(params, steps) ** 2
    m_hat, v_hat = m / (1 - b1 ** (count + 1)), v / (1 - b2 ** (count + 1))
    expected = -1e-2 * kappa**0.5 * m_hat / (np.sqrt(v_hat + 1e-4 / kappa) + 1e-3 * kappa**-0.5)
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    assert float(after[0].count) == pytest.approx(count + 1, rel=1e-15)
    assert jnp.issubdtype(after[0].count.dtype, jnp.integer) == float(count).is_integer()


def torch_run(make, steps, kappa, more, schedule=None):
    params = torch.nn.Parameter(torch.tensor(np.array(start())))
    optimizer = make([params])
    scheduler = schedule and torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    for k in range(steps + more):
        if k == steps:
            Run(optimizer, tuned_at=1, batch_size=kappa, scheduler=scheduler)
        params.grad = torch.tensor(np.array(gradient(params.detach().numpy(), k)))
        optimizer.step()
        if scheduler:
            scheduler.step()
    return params.detach().numpy()


def decay(count):
    return 1.0 / (1.0 + 0.05 * count)


PAIRS = {
    "Adam": ("adam", dict(b1=0.9, b2=0.99), lambda p: torch.optim.Adam(p, 1e-2, (0.9, 0.99))),
    "AdamW": (
        "adamw",
        dict(b1=0.9, b2=0.99, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, 1e-2, (0.9, 0.99), weight_decay=0.1),
    ),
    "RMSprop": (
        "rmsprop",
        dict(decay=0.95, eps=1e-4, eps_in_sqrt=False),
        lambda p: torch.optim.RMSprop(p, 1e-2, alpha=0.95, eps=1e-4),
    ),
    "SGD": ("sgd", dict(momentum=0.9), lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9)),
    "RAdam": ("radam", dict(b1=0.9, b2=0.7, eps=0.0), lambda p: torch.optim.RAdam(p, 1e-2, (0.9, 0.7), eps=0.0)),
    "Adamax": ("adamax", dict(b1=0.9, b2=0.99), lambda p: torch.optim.Adamax(p, 1e-2, (0.9, 0.99))),
    "Adagrad": (
        "adagrad",
        dict(eps=0.0, initial_accumulator_value=0.1),
        lambda p: torch.optim.Adagrad(p, 1e-2, initial_accumulator_value=0.1, eps=0.0),
    ),
    "RMSprop with momentum": (
        "rmsprop",
        dict(decay=0.95, eps=1e-4, eps_in_sqrt=False, momentum=0.9),
        lambda p: torch.optim.RMSprop(p, 1e-2, alpha=0.95, eps=1e-4, momentum=0.9),
    ),
    "RMSprop centered": (
        "rmsprop",
        dict(decay=0.95, eps=1e-4, eps_in_sqrt=False, centered=True),
        lambda p: torch.optim.RMSprop(p, 1e-2, alpha=0.95, eps=1e-4, centered=True),
    ),
    "Lion": ("lion", dict(weight_decay=0.1), lambda p: TorchLion(p, 1e-2)),
}
#: Whose momentum holds the learning rates of the past, as optax keeps it, and torch does not.
AFTER_ETA = ("RMSprop with momentum",)


class TorchLion(torch.optim.Optimizer):
    """Lion as its libraries have it; the family is found by the name and the groups."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.1):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                beta1, beta2 = group["betas"]
                moved = torch.sign(beta1 * m + (1 - beta1) * p.grad)
                p.add_(moved + group["weight_decay"] * p, alpha=-group["lr"])
                m.lerp_(p.grad, 1 - beta2)


TorchLion.__name__ = "Lion"


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("kappa", [4, 2])
@pytest.mark.parametrize("name", PAIRS)
def test_optax_and_torch_follow_the_same_path_through_the_change(name, kappa, scheduled):
    maker, arguments, make = PAIRS[name]
    if scheduled and name in AFTER_ETA:
        pytest.skip("the momenta differ where the learning rate changes")
    rate = (lambda count: 1e-2 * decay(count)) if scheduled else 1e-2
    arguments = {"learning_rate": rate, **arguments}
    transformation = getattr(optax, maker)(**arguments)
    params, state = run(transformation, start(), transformation.init(start()), 10)
    converted = getattr(optax, maker)(**scale(maker, kappa, **arguments))
    state = rescale(state, kappa, b1=arguments.get("b1"), optimizer=maker)
    params, _ = run(converted, params, state, 10, first=10)
    expected = torch_run(make, 10, kappa, 10, decay if scheduled else None)
    np.testing.assert_allclose(params, expected, rtol=1e-9)


def test_jit_and_scan_take_a_fractional_count():
    adam = optax.adamw(**scale("adamw", 4, learning_rate=optax.linear_schedule(1e-2, 0, 100), b1=0.95))
    _, state = run(optax.adamw(optax.linear_schedule(1e-2, 0, 100)), start(), adam.init(start()), 5)
    state = rescale(state, 4, b1=0.95)

    def step(carry, k):
        params, state = carry
        updates, state = adam.update(params, state, params)
        return (optax.apply_updates(params, updates), state), None

    (params, after), _ = jax.jit(lambda carry: jax.lax.scan(step, carry, jnp.arange(3)))((start(), state))
    carry = (start(), state)
    for k in range(3):
        carry, _ = step(carry, k)
    np.testing.assert_allclose(params, carry[0], rtol=1e-12)
    assert float(after[0].count) == 5 / 4 + 3


def test_injected_hyperparameters_are_converted_in_the_state():
    arguments = dict(learning_rate=1e-2, b1=0.9, b2=0.99, weight_decay=0.1)
    injected = optax.inject_hyperparams(optax.adamw)(**arguments)
    params, state = run(injected, start(), injected.init(start()), 8)
    plain = optax.adamw(**arguments)
    _, plain_state = run(plain, start(), plain.init(start()), 8)
    got, injected_after = run(injected, params, rescale(state, 4), 4, first=8)  # the same transformation
    after = rescale(plain_state, 4, b1=0.9)
    expected, _ = run(optax.adamw(**scale("adamw", 4, **arguments)), params, after, 4, first=8)
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    assert int(injected_after.count) == 6


def test_an_injected_schedule_needs_the_transformation_anew():
    arguments = dict(learning_rate=optax.linear_schedule(1e-2, 0, 100), b1=0.9, b2=0.99)
    injected = optax.inject_hyperparams(optax.adam)(**arguments)
    _, state = run(injected, start(), injected.init(start()), 8)
    state = rescale(state, 4)
    assert int(state.hyperparams_states["learning_rate"].count) == 2
    converted = optax.inject_hyperparams(optax.adam)(**scale("adam", 4, **arguments))
    _, state = run(converted, start(), state, 1)
    assert float(state.hyperparams["learning_rate"]) == pytest.approx(2 * 1e-2 * 0.92)
    assert float(state.hyperparams["b1"]) == pytest.approx(0.9)


def test_injected_hyperparameters_of_doubtful_units_are_asked_for():
    def own(lr):
        return optax.chain(optax.scale_by_adam(), optax.scale_by_learning_rate(lr))

    def l2(learning_rate, weight_decay):
        return optax.chain(optax.add_decayed_weights(weight_decay), optax.adam(learning_rate))

    state = optax.inject_hyperparams(own)(lr=0.1).init(start())
    with pytest.raises(ValueError, match=r"opt_state.hyperparams\['lr'\]: its unit is unknown"):
        rescale(state, 4, remade=True, b1=0.9)
    assert float(rescale(state, 4, units={"lr": "eta"}, remade=True, b1=0.9).hyperparams["lr"]) == pytest.approx(0.2)
    state = optax.inject_hyperparams(l2)(learning_rate=0.1, weight_decay=0.3).init(start())
    with pytest.raises(ValueError, match=r"\['weight_decay'\]: its unit is unknown"):
        rescale(state, 4, remade=True, b1=0.9)
    after = rescale(state, 4, units={"weight_decay": "l2"}, remade=True, b1=0.9)
    assert float(after.hyperparams["weight_decay"]) == 0.3
    state = optax.inject_hyperparams(optax.rmsprop)(1e-2, decay=0.99).init(start())
    with pytest.raises(ValueError, match=r"\['eps'\]: its unit is unknown"):
        rescale(state, 4)
    assert float(rescale(state, 4, units={"eps": "eps_root"}).hyperparams["eps"]) == pytest.approx(2.5e-9)
    state = optax.inject_hyperparams(optax.sgd)(1e-2).init(start())
    with pytest.raises(ValueError, match="if it is SGD, say optimizer='sgd'"):
        rescale(state, 4)
    assert float(rescale(state, 4, optimizer="sgd").hyperparams["learning_rate"]) == pytest.approx(4e-2)


def own_adam(learning_rate, b2=0.99):
    return optax.adam(learning_rate, b1=0.9, b2=b2)


FIXED = {
    "static_args": (optax.inject_hyperparams(optax.adam, static_args=("b1", "b2"))(1e-2, b1=0.9, b2=0.99), "b1, b2"),
    "one of them": (optax.inject_hyperparams(optax.adam, static_args="b2")(1e-2, b1=0.9, b2=0.99), "b2"),
    "by the function": (optax.inject_hyperparams(own_adam)(1e-2), "b1, eps"),
}


@pytest.mark.parametrize("name", FIXED)
def test_betas_that_the_state_does_not_hold_are_an_error(name):
    injected, fixed = FIXED[name]
    _, state = run(injected, start(), injected.init(start()), 8)
    with pytest.raises(
        ValueError, match=rf"does not hold {fixed}: they are static_args .* rescale\(..., remade=True\)"
    ):
        rescale(state, 4)
    lr_only = rescale(state, 4, rule="sqrt-eta")  # changes no beta
    assert float(lr_only.hyperparams["learning_rate"]) == pytest.approx(2e-2)


def test_a_function_that_is_made_anew_goes_on_as_the_converted_run():
    params, state = run(FIXED["static_args"][0], start(), FIXED["static_args"][0].init(start()), 8)
    numbers = scale("adam", 4, learning_rate=1e-2, b1=0.9, b2=0.99)
    anew = optax.inject_hyperparams(optax.adam, static_args=("b1", "b2"))(**numbers)
    got, _ = run(anew, params, rescale(state, 4, remade=True, b1=0.9), 4, first=8)
    plain = optax.adam(1e-2, b1=0.9, b2=0.99)
    _, plain_state = run(plain, start(), plain.init(start()), 8)
    expected, _ = run(optax.adam(**numbers), params, rescale(plain_state, 4, b1=0.9), 4, first=8)
    np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.parametrize("injected", [False, True])
def test_the_state_of_flax_nnx_stays_one(injected):
    nnx = pytest.importorskip("flax.nnx", reason="needs flax")
    x = jnp.linspace(-1, 1, 6).reshape(3, 2)

    def trained(kappa, steps):
        model = nnx.Linear(2, 1, rngs=nnx.Rngs(0), param_dtype=jnp.float64)
        arguments = dict(learning_rate=1e-2, b1=0.9, b2=0.99)
        make = optax.inject_hyperparams(optax.adam) if injected else optax.adam
        optimizer = nnx.Optimizer(model, make(**arguments), wrt=nnx.Param)
        for step in range(steps):
            if step == 8:
                optimizer.opt_state = nnx.data(rescale(optimizer.opt_state, kappa, b1=0.9))
                optimizer.tx = make(**scale("adam", kappa, **arguments))
            optimizer.update(model, nnx.grad(lambda model: (model(x) ** 2).mean())(model))
        return model, optimizer

    model, _ = trained(4, 12)
    adam = optax.adam(1e-2, b1=0.9, b2=0.99)
    fresh = nnx.Linear(2, 1, rngs=nnx.Rngs(0), param_dtype=jnp.float64)
    params = {"kernel": fresh.kernel[...], "bias": fresh.bias[...]}
    state, loss = adam.init(params), lambda p: ((x @ p["kernel"] + p["bias"]) ** 2).mean()
    for step in range(12):
        if step == 8:
            adam, state = optax.adam(**scale("adam", 4, learning_rate=1e-2, b1=0.9, b2=0.99)), rescale(state, 4, b1=0.9)
        updates, state = adam.update(jax.grad(loss)(params), state)
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(model.kernel[...], params["kernel"], rtol=1e-9)


def partitioned(params):
    return {"w": "adam", "b": "sgd"}


WRAPPED = {
    "chain": optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2)),
    "named_chain": optax.named_chain(("clip", optax.clip(1.0)), ("adam", optax.adam(1e-2))),
    "masked": optax.masked(optax.adam(1e-2), {"w": True, "b": False}),
    "partition": optax.partition({"adam": optax.adam(1e-2), "sgd": optax.sgd(1e-2, momentum=0.9)}, partitioned),
    "apply_if_finite": optax.apply_if_finite(optax.adam(1e-2), 5),
    "MultiSteps": optax.MultiSteps(optax.adam(1e-2), 1).gradient_transformation(),
    "amsgrad": optax.amsgrad(1e-2),
    "scheduled decay": optax.adamw(1e-2, weight_decay=optax.constant_schedule(0.1)),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_wherever_the_state_is_it_is_found(name):
    transformation, params = WRAPPED[name], {"w": jnp.ones(2), "b": jnp.ones(())}
    state = transformation.init(params)
    update = jax.jit(transformation.update)
    for _ in range(8):
        _, state = update(params, state, params)
    new = rescale(state, 4, rule="with paper")
    assert jax.tree.structure(new) == jax.tree.structure(state)
    counted = 0
    for (path, before), after in zip(jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(new), strict=True):
        keys = jax.tree_util.keystr(path)
        assert after.dtype == before.dtype
        divided = ".nu" in keys or keys.endswith((".count", ".gradient_step"))
        counted += divided
        factor = 1 / 4 if divided else 1 / 2 if ".trace" in keys else 1  # SGD's trace is a sum of noise
        np.testing.assert_allclose(after, before * factor, rtol=1e-15)
    assert counted >= 2
    assert leaves_equal(rescale(new, 1 / 4, rule="with paper"), state)  # and back
    assert rescale(state, 1) is state


#: Factors of the state at kappa = 4, by the names of its fields; counters are divided, and all else is kept.
FACTORS = {
    "adamax": ({}, {"nu": 1 / 2}),
    "radam": ({}, {"nu": 1 / 4}),
    "nadam": ({}, {"nu": 1 / 4}),
    "lamb": ({}, {"mu": 4**-0.25, "nu": 1 / 4}),
    "lars": ({}, {"trace": 2}),
    "lion": ({}, {"mu": 1 / 2}),
    "signum": ({}, {"ema": 1 / 2}),
    "muon": ({}, {"mu": 1 / 2, "nu": 1 / 4, "adam mu": 1}),
    "adagrad": ({}, {"sum_of_squares": 1 / 16}),
    "adafactor": (
        {"momentum": 0.98, "min_dim_size_to_factor": 2},
        {"v_row": 1 / 4, "v_col": 1 / 4, "v": 1 / 4, "ema": 4},
    ),
    "ademamix": ({"b1": 0.98}, {"nu": 1 / 4}),
    "rmsprop": ({"momentum": 0.9, "bias_correction": True}, {"nu": 1 / 4, "trace": 2}),
    "schedule_free_adamw": ({}, {"nu": 1 / 4, "max_lr": 2}),
    "schedule_free_sgd": ({}, {"max_lr": 4, "weight_sum": 4}),
}


@pytest.mark.parametrize("name", FACTORS)
def test_the_state_of_each_optimizer_is_converted_by_its_row(name):
    arguments, factors = FACTORS[name]
    transformation = function(name)(learning_rate=1e-2, **arguments)
    params = {"w": jnp.ones((3, 2)), "b": jnp.ones(2)}
    state = transformation.init(params)
    for k in range(8):
        grads = {"w": params["w"] + NOISE[k, :2], "b": params["b"] - NOISE[k + 8, :2]}
        _, state = transformation.update(grads, state, params)
    new = rescale(state, 4, optimizer=name, b1=0.98)
    seen = set()
    for (path, before), after in zip(jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(new), strict=True):
        keys = jax.tree_util.keystr(path)
        field = keys.split(".")[-1].split("[")[0]
        field = f"adam {field}" if "'adam'" in keys and f"adam {field}" in factors else field
        if field == "step_count":
            assert (int(before), int(after)) == (9, 3)
        else:
            factor = 1 / 4 if field in ("count", "count_m2") else factors.get(field, 1)
            np.testing.assert_allclose(after, before * factor, rtol=1e-12)
        seen.add(field)
    assert set(factors) <= seen
    transformation = function(name)(**scale(name, 4, learning_rate=1e-2, **arguments))
    updates, _ = transformation.update(grads, new, params)
    assert all(bool(jnp.all(jnp.isfinite(one))) for one in jax.tree.leaves(updates))


def test_injected_lion_follows_its_own_rule():
    lion = optax.inject_hyperparams(optax.lion)(learning_rate=1e-4, weight_decay=0.1)
    params, state = run(lion, start(), lion.init(start()), 8)
    with pytest.raises(ValueError, match=r"\['weight_decay'\]: its unit is unknown"):
        rescale(state, 4)
    new = rescale(state, 4, optimizer="lion")
    held = {name: float(value) for name, value in new.hyperparams.items()}
    assert held == pytest.approx(dict(learning_rate=2e-4, b1=0.9, b2=0.99, weight_decay=0.2))
    linear = rescale(state, 4, optimizer=optax.lion, rule="normalized-linear").hyperparams
    assert float(linear["b2"]) == pytest.approx(0.96)
    run(lion, params, new, 2)


REFUSED = {
    "ScaleByRStdDevWithCountState": optax.rmsprop(1e-2, centered=True, bias_correction=True),
    "ScaleByBeliefState": optax.adabelief(1e-2),
    "ScaleByNovogradState": optax.novograd(1e-2),
    "AddNoiseState": optax.chain(optax.adam(1e-2), optax.add_noise(0.1, 0.1, 0)),
    "ConditionallyTransformState": optax.conditionally_transform(optax.adam(1e-2), lambda step: step > 3),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_state_of_unknown_units_is_refused_by_name(name):
    with pytest.raises(TypeError, match=rf"is a {name}, whose clock and units are unknown; known are ScaleByAdamState"):
        rescale(REFUSED[name].init(start()), 4)


def test_states_that_cannot_be_converted_now_are_refused():
    with pytest.raises(ValueError, match=r"has a trace .momentum. besides a second moment; .* say optimizer='rmsprop'"):
        rescale(optax.rmsprop(1e-2, momentum=0.9).init(start()), 4)
    with pytest.raises(ValueError, match=r"a trace .momentum. behind everything else.* say optimizer='lars'"):
        rescale(optax.lars(1e-2).init(start()), 4)
    with pytest.raises(ValueError, match=r"has EmaState, which does not show what is averaged; say optimizer='signum'"):
        rescale(optax.signum(1e-2).init(start()), 4)
    with pytest.raises(ValueError, match=r"TraceState and ScaleByAdamState for the same .* no known optimizer"):
        rescale(optax.chain(optax.trace(0.9), optax.adam(1e-2)).init(start()), 4)
    with pytest.raises(ValueError, match=r"optimizer='lion', but the state is of adam \(ScaleByAdamState\)"):
        rescale(optax.adam(1e-2).init(start()), 4, optimizer="lion")
    with pytest.raises(ValueError, match=r"rule 'sqrt' is for adam, .*; the rule of sgd is 'linear'"):
        rescale(optax.sgd(1e-2, momentum=0.9).init(start()), 4, rule="sqrt")
    steps = optax.MultiSteps(optax.adam(1e-2), 4).gradient_transformation()
    _, state = steps.update(start(), steps.init(start()), start())
    with pytest.raises(ValueError, match=r"in the middle of a step .mini_step=1."):
        rescale(state, 4)
    with pytest.raises(TypeError, match="opt_state is a ArrayImpl, where a state of optax was expected"):
        rescale(start(), 4)
    with pytest.raises(ValueError, match="kappa must be a finite number > 0, got 0"):
        rescale(optax.adam(1e-2).init(start()), 0)


def test_the_ablations_leave_out_what_they_leave_out():
    _, state = run(optax.adam(1e-2), start(), optax.adam(1e-2).init(start()), 8)
    new = rescale(state, 4, rule="sqrt-eta")
    assert leaves_equal(new, state)


def test_the_example_runs(capsys):
    spec = importlib.util.spec_from_file_location("optax_loop", ROOT / "examples/optax_loop.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with jax.enable_x64(False):
        module.main()
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("batch size  8: 256 steps")
    assert second.startswith("batch size 32: 128 steps")
