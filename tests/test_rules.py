import math
from dataclasses import asdict, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rootscale import RULES, SGD, TABLE, Adam, AdamW, Plan, RMSprop, ScalingWarning, Schedule
from rootscale.rules import get_rule, rule_text

pytestmark = pytest.mark.filterwarnings("ignore::rootscale.ScalingWarning")

etas = st.floats(1e-6, 1e-1)
rates = st.floats(1e-5, 0.5)  # 1 - beta
kappas = st.floats(1e-2, 1e2)
small = st.floats(1e-12, 1e-3)
adaptive = st.one_of(
    st.builds(lambda e, a, b, x, y, d: Adam(e, 1 - a, 1 - b, x, y, d), etas, rates, rates, small, small, rates),
    st.builds(lambda e, a, b, x, y, d: AdamW(e, 1 - a, 1 - b, x, y, d), etas, rates, rates, small, small, rates),
    st.builds(lambda e, b, x, y, d: RMSprop(e, 1 - b, x, y, d), etas, rates, small, small, rates),
)
optimizers = st.one_of(adaptive, st.builds(SGD, etas, rates, rates))


def scaled(optimizer, kappa, **options):
    """The optimizer's record after a change of batch size from 1 to kappa."""
    return Plan(optimizer, batch_size=1).at(kappa, **options).optimizer


def above_floors(optimizer, kappa):
    """Whether the averages follow the paper by default."""
    betas = [getattr(optimizer, name, 0) for name in ("beta1", "beta2", "beta")]
    return all(kappa <= 1 or kappa * (1 - beta) < 0.1 for beta in betas if beta)


def in_range(optimizer, kappa):
    averages = [getattr(optimizer, name, 0) for name in ("beta1", "beta2", "beta")]
    return all(kappa * (1 - beta) < 0.999 for beta in averages if beta)


def close(a, b):
    """Equal up to rounding; averages by 1 - beta, which is what has the unit."""
    for name, x in asdict(a).items():
        y = asdict(b)[name]
        if name.startswith("beta"):
            assert 1 - x == pytest.approx(1 - y, rel=1e-9, abs=1e-13)
        else:
            assert x == pytest.approx(y, rel=1e-12)


@given(optimizers, kappas)
def test_the_optimizers_own_rule_keeps_the_sde_constants(optimizer, kappa):
    assume(in_range(optimizer, kappa))
    rule = None if above_floors(optimizer, kappa) else "with paper"
    before, after = asdict(optimizer.constants(1)), asdict(scaled(optimizer, kappa, rule=rule).constants(kappa))
    assert after.pop("step") == pytest.approx(before.pop("step") * kappa, rel=1e-12)
    assert all((after[name] is None) == (value is None) for name, value in before.items())
    known = {name: value for name, value in before.items() if value is not None}
    assert {name: after[name] for name in known} == pytest.approx(known, rel=1e-7)


@given(etas, rates, rates, small, small, rates, kappas, st.sampled_from(sorted(set(RULES) - {"sqrt"})))
def test_no_other_rule_keeps_all_of_them(eta, rate1, rate2, eps, eps_root, decay, kappa, rule):
    optimizer = AdamW(eta, 1 - rate1, 1 - rate2, eps, eps_root, decay)
    assume(in_range(optimizer, kappa) and abs(math.log(kappa)) > 0.1)
    before, after = asdict(optimizer.constants(1)), asdict(scaled(optimizer, kappa, rule=rule).constants(kappa))
    assert any(after[name] != pytest.approx(value, rel=1e-3) for name, value in before.items() if name != "step")


@given(optimizers, kappas, kappas, st.sampled_from(["with paper", "with power"]))
def test_rules_compose_and_invert(optimizer, kappa1, kappa2, rule):
    assume(in_range(optimizer, kappa1) and in_range(optimizer, kappa1 * kappa2))
    plan = Plan(optimizer, batch_size=1)
    twice = plan.at(kappa1, rule).at(kappa1 * kappa2, rule)
    close(twice.optimizer, plan.at(kappa1 * kappa2, rule).optimizer)
    close(plan.at(kappa1, rule).at(1, rule).optimizer, optimizer)


@given(st.sampled_from(sorted(RULES)), optimizers, st.sampled_from(["floor", "paper", "power"]))
def test_kappa_one_is_the_identity_to_the_bit_under_every_rule(rule, optimizer, averaging):
    assume(optimizer.name not in RULES[rule].refuses)
    plan = Plan(optimizer, batch_size=7, ema=0.1, clip=0.3, batchnorm_momentum=0.7, steps=13)
    assert plan.at(7, rule_text(rule, averaging)) == plan


@given(etas, rates, rates, small, st.floats(1, 10))
def test_kappa_of_one_over_ell_squared_gives_svags_hyperparameters(eta, rate1, rate2, eps, ell):
    """Definition of the SVAG algorithm: eta / ell, 1 - (1 - beta) / ell^2, eps * ell."""
    beta1, beta2 = 1 - rate1, 1 - rate2
    adam = scaled(Adam(eta, beta1, beta2, eps), ell**-2)
    close(adam, Adam(eta / ell, 1 - (1 - beta1) / ell**2, 1 - (1 - beta2) / ell**2, eps * ell))
    rmsprop = scaled(RMSprop(eta, beta2, eps), ell**-2)
    close(rmsprop, RMSprop(eta / ell, 1 - (1 - beta2) / ell**2, eps * ell))


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        # the paper's appendix: five variations of the square root rule and four linear ones, at kappa = 4
        ("sqrt-eta", Adam(2e-3, 0.9, 0.999, 1e-8)),
        ("sqrt without beta1, beta2", Adam(2e-3, 0.9, 0.999, 5e-9)),
        ("sqrt without beta2", Adam(2e-3, 0.6, 0.999, 5e-9)),
        ("sqrt without beta1", Adam(2e-3, 0.9, 0.996, 5e-9)),
        ("linear-eta", Adam(4e-3, 0.9, 0.999, 1e-8)),
        ("linear without beta2", Adam(4e-3, 0.6, 0.999, 1e-8)),
        ("linear without beta1", Adam(4e-3, 0.9, 0.996, 1e-8)),
        ("none", Adam(1e-3, 0.9, 0.999, 1e-8)),
        ("linear", Adam(4e-3, 0.6, 0.996, 1e-8)),
        ("sqrt", Adam(2e-3, 0.6, 0.996, 5e-9)),
        ("invariant", Adam(4e-3, 0.6, 0.996, 1e-8)),
    ],
)
def test_each_rule_scales_what_it_says(rule, expected):
    name, _, left_out = rule.partition(" without ")
    close(scaled(Adam(1e-3), 4, rule=rule_text(name, "paper", [left_out] if left_out else [])), expected)
    close(scaled(Adam(1e-3), 4, rule=rule), replace(expected, beta1=max(expected.beta1, 0.9)))


def test_the_invariant_rule_keeps_the_decoupled_decay():
    assert scaled(AdamW(1e-3, weight_decay=0.1), 4, rule="invariant").weight_decay == 0.1


def test_the_power_form_is_beta_to_the_kappa():
    assert scaled(Adam(1e-3), 16, rule="with power").beta1 == pytest.approx(0.9**16, rel=1e-12)


def test_a_kappa_too_large_is_refused_with_the_largest_and_the_alternative():
    with pytest.raises(
        ValueError,
        match=r"^kappa=16 gives beta1=-0\.6; need kappa < 10, or floors, which give beta1=0\.9 \(--averaging floor",
    ):
        scaled(Adam(1e-3), 16, rule="with paper")


@pytest.mark.parametrize("kappa", [9.99, 9.9])
def test_a_kappa_below_the_largest_is_accepted(kappa):
    assert 0 < scaled(Adam(1e-3), kappa, rule="with paper").beta1 < 0.011


@pytest.mark.parametrize(
    ("betas", "kappa", "expected"),
    [
        ((0.9, 0.999), 4, (0.9, 0.996)),
        ((0.95, 0.95), 64, (0.9, 0.9)),
        ((0.98, 0.999), 4, (0.92, 0.996)),
        ((0.5, 0.8), 16, (0.5, 0.8)),  # below the floors already
        ((0.0, 0.95), 1000, (0.0, 0.9)),
        ((0.8, 0.9), 0.25, (0.95, 0.975)),
    ],
)
def test_betas_follow_the_paper_down_to_their_floors(betas, kappa, expected):
    new = scaled(Adam(1e-3, *betas), kappa)
    assert (new.beta1, new.beta2) == pytest.approx(expected, rel=1e-12)


def test_floors_can_be_chosen():
    rule = get_rule("with floor:0.7,0.95", "adam")
    new = scaled(Adam(1e-3, 0.9, 0.99), 16, rule=rule)
    assert (rule.name, new.beta1, new.beta2) == ("sqrt with floor:0.7,0.95", 0.7, 0.95)
    assert get_rule(rule.name, "adam") == rule
    with pytest.raises(ValueError, match=r"the floor of beta2 must be in \[0, 1\), got 1.5"):
        get_rule("with floor:0.7,1.5", "adam")


def test_where_beta1_stops_m_gets_the_noise_level_of_its_average():
    """The variance of an average of independent gradients is ``s (1 - beta) / (1 + beta)``, and s falls as 1/kappa."""
    rule, kappa = RULES["sqrt"], 16
    factor = rule.factor("m", kappa, {"beta1": 0.95}, {"beta1": 0.9})
    generator = np.random.default_rng(0)

    def variance(beta, s):
        m = np.zeros(4000)
        for _ in range(120):
            m = beta * m + (1 - beta) * generator.normal(scale=s**0.5, size=m.shape)
        return m.var()

    assert factor**2 == pytest.approx(0.1 / (16 * 0.05), rel=1e-12)
    assert factor**2 * variance(0.95, 1.0) == pytest.approx(variance(0.9, 1 / kappa), rel=0.15)


@pytest.mark.parametrize(
    ("rule", "before", "after"),
    [("sqrt", 0.98, 0.92), ("sqrt with paper", 0.9, 0.6), ("sqrt with power", 0.9, 0.6561)],
)
def test_elsewhere_m_is_kept(rule, before, after):
    assert get_rule(rule, "adam").factor("m", 4, {"beta1": before}, {"beta1": after}) == 1


def test_changes_of_m_one_after_the_other_multiply_exactly():
    rule, betas = RULES["sqrt"], {kappa: {"beta1": max(1 - kappa * 0.02, 0.9)} for kappa in (1, 4, 16)}
    steps = rule.factor("m", 4, betas[1], betas[4]) * rule.factor("m", 4, betas[4], betas[16])
    assert steps == pytest.approx(rule.factor("m", 16, betas[1], betas[16]), rel=1e-14)


def test_the_row_of_a_value_says_when_it_has_stopped_at_its_floor():
    rule = RULES["sqrt"]
    assert rule.row("beta1", 0.98, 0.92, 4) is rule.units["beta1"]
    stopped = rule.row("beta1", 0.9, 0.9, 16)
    assert stopped.status == "measured"
    assert "the paper's form gives -0.6" in stopped.why


@pytest.mark.parametrize(
    ("optimizer", "rule", "message"),
    [
        (SGD(0.1), "sqrt", "rule 'sqrt' is for adam, adamw, rmsprop, .*; the rule of sgd is 'linear'"),
        (SGD(0.1), "invariant", "rule 'invariant' is for"),
        (Adam(0.1), "quadratic", "rule must be one of sqrt, linear, none, invariant, sqrt-eta.*got 'quadratic'"),
    ],
)
def test_a_rule_that_does_not_exist_for_the_optimizer_is_refused(optimizer, rule, message):
    with pytest.raises(ValueError, match=message):
        scaled(optimizer, 2, rule=rule)


def test_an_unknown_averaging_is_refused():
    with pytest.raises(ValueError, match=r"averaging must be 'floor' .*'paper' .*'power' .* or floors of .*got 'mean'"):
        scaled(Adam(0.1), 2, rule="with mean")


@pytest.mark.parametrize("optimizer", [Adam(1e-3, beta1=0, beta2=0.99), RMSprop(1e-3, beta=0.99)])
def test_no_first_moment_stays_no_first_moment(optimizer):
    assert getattr(scaled(optimizer, 8), "beta1", 0) == 0
    assert optimizer.constants().c1 is None


def test_numbers_that_leave_the_floats_are_refused():
    with pytest.raises(ValueError, match=r"kappa=1e-12 turns beta1=0\.999999 into a number that is out of range"):
        get_rule("sqrt", "adam").convert("beta1", 0.999999, 1e-12)


def test_every_quantity_of_the_sqrt_rule_is_a_row_of_the_table():
    compared = {"mu", "mix", "m_sum", "momentum"}  # of optimizers whose own rule is another one
    assert {unit for key, unit in RULES["sqrt"].units.items() if key not in compared} < set(TABLE)


def test_rules_are_data_and_cannot_be_changed():
    with pytest.raises(TypeError):
        RULES["mine"] = RULES["sqrt"]  # type: ignore[index]
    assert replace(RULES["sqrt"], key="mine").name == "mine"


def test_rows_can_be_left_out_of_a_rule():
    plan = Plan(Adam(eta=1e-3, beta1=0.98), 4, steps=1000, schedule=Schedule(warmup=100))
    rule = RULES["sqrt"].without("beta2", "warmup")
    with pytest.warns(ScalingWarning, match="'sqrt without beta2, warmup' does not keep"):
        big = plan.at(16, rule)
    assert (big.optimizer.beta2, big.schedule.warmup) == (plan.optimizer.beta2, plan.schedule.warmup)
    assert (big.optimizer.eta, big.steps) == (2e-3, 250)


def test_only_rows_of_the_rule_can_be_left_out_and_never_the_clock():
    for key in ("beta4", "steps"):
        with pytest.raises(ValueError, match=f"no row '{key}' to leave out; it has eta, beta1"):
            RULES["sqrt"].without(key)


@pytest.mark.parametrize(("beta", "kappa"), [(0.9, 10), (0.95, 20), (0.98, 50), (0.99, 100), (0.999, 1000)])
def test_an_average_over_nothing_is_refused_whatever_rounding_leaves_of_it(beta, kappa):
    for averaged in (Fraction(kappa), float(kappa)):
        with pytest.raises(ValueError, match="need kappa <"):
            RULES["sqrt"].averaged("paper").convert("beta2", beta, averaged)


@pytest.mark.parametrize(
    "text", ["sqrt", "sqrt with power", "sqrt without beta2, v", "linear with power without beta1", "none"]
)
def test_the_name_of_a_rule_is_the_text_that_gives_it(text):
    assert get_rule(text, "adam").name == text


def test_a_text_without_a_name_is_the_optimizers_own_rule():
    assert get_rule("with power", "sgd").name == "linear with power"
    assert get_rule("without batchnorm", "adam").name == "sqrt without batchnorm"
    assert RULES["sqrt"].averaged("power").averaged("floor") == RULES["sqrt"]


def test_a_rule_for_another_optimizer_is_no_theorem():
    changes = Plan(Adam(1e-3, 0.9, 0.999), batch_size=256).explain(1024, "linear")
    found = {row.name: (row.status, row.why) for row in changes.rows}
    assert found["lr"][0] == "heuristic"
    assert found["lr"][1].startswith("for comparison: the linear rule")
    assert "theorem" not in {status for status, _ in found.values()}
    own = Plan(SGD(1e-3), batch_size=256).explain(1024, "linear")
    assert {row.status for row in own.rows if row.name == "lr"} == {"theorem"}
    assert "No switch of SGD by the rule linear was measured in training" in str(own)
