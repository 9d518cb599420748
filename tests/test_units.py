from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rootscale import TABLE
from rootscale.format import show
from rootscale.units import AVERAGE, AVERAGE_POWER, COMPLEMENT, UNITS, power

KAPPAS = st.floats(1e-3, 1e3)


def test_every_row_has_a_status_a_source_and_a_reason():
    for unit in TABLE:
        assert unit.status in ("theorem", "derived", "heuristic")
        assert unit.source
        assert unit.why
    assert len(UNITS) == len(TABLE)


@pytest.mark.parametrize(
    ("key", "value", "kappa", "expected"),
    [
        # the paper's square root scaling rule, and the rest of the design's table, at kappa = 4
        ("eta", 1e-3, 4, 2e-3),
        ("beta1", 0.98, 4, 0.92),
        ("beta2", 0.999, 4, 0.996),
        ("eps", 1e-8, 4, 5e-9),
        ("eps_root", 1e-8, 4, 2.5e-9),
        ("steps", 100, 4, 25),
        ("warmup", 100, 4, 25),
        ("schedule", 100, 4, 25),
        ("min_eta", 1e-5, 4, 2e-5),
        ("l2", 0.1, 4, 0.1),
        ("decoupled_decay", 0.1, 4, 0.2),
        ("ema", 0.9, 4, 0.6561),
        ("batchnorm", 0.1, 4, 0.3439),
        ("clip", 1.0, 4, 0.5),
        ("v", 1.0, 4, 0.25),
        ("m", 1.0, 4, 1.0),
        ("step_counter", 10.0, 4, 2.5),
        ("mu", 0.95, 4, 0.95),
        ("mix", 0.9, 4, 0.9),
        ("m_sum", 1.0, 4, 0.5 * 0.02 / 0.08),
        ("eps_m", 1e-7, 4, 5e-8),
        ("step_decay", 0.1, 4, 0.4),
        ("m_steps", 1.0, 4, 4.0),
        ("trust_decay", 0.1, 4, 0.1),
        ("momentum_decay", 4e-3, 4, 0.016),
        ("product", 0.5, 4, 0.5),
        ("sup", 1.0, 4, 0.5),
        ("beta3", 0.999, 4, 0.996),
        ("m2", 1.0, 4, 1.0),
        ("frequency", 10, 4, 2.5),
        ("interpolation", 0.9, 4, 0.9),
        ("weight_sum", 1.0, 4, 1.0),
        ("sum", 1.0, 4, 1 / 16),
        ("eps_sum", 1e-8, 4, 2.5e-9),
        ("lr_decay", 0.1, 4, 0.4),
        ("buffer", 1.0, 4, 1.0),
        ("sgd_eta", 0.1, 4, 0.4),
        ("momentum", 0.9, 4, 0.9),
    ],
)
def test_each_row_says_what_the_design_says(key, value, kappa, expected):
    averages = (0.98, 0.92) if UNITS[key].form.follows else ()
    assert UNITS[key].form(value, kappa, *averages) == pytest.approx(expected, rel=1e-12)


def test_the_cases_above_are_the_whole_table():
    cases = {mark[0] for mark in test_each_row_says_what_the_design_says.pytestmark[0].args[1]}
    assert cases == set(UNITS)


def test_whole_steps_stay_exact():
    steps = power(-1)(100_000, Fraction(300, 256))
    assert steps == Fraction(256_000, 3)
    assert power(-1)(steps, Fraction(256, 300)) == 100_000


@given(st.floats(1e-6, 0.5), KAPPAS)
def test_the_two_averages_agree_to_first_order(rate, kappa):
    """Taylor: ``1 - (1 - r)^kappa = kappa r - kappa (kappa - 1) / 2 * r^2 (1 - x)^(kappa - 2)``, some x in (0, r)."""
    power_form = AVERAGE_POWER(1 - rate, kappa)
    assert abs((1 - power_form) - kappa * rate) <= 2 * kappa * abs(kappa - 1) * rate**2 + 1e-10
    assert 0 <= power_form <= 1


@given(st.floats(0, 1), KAPPAS)
def test_the_complement_is_the_power_of_what_is_kept(p, kappa):
    assert COMPLEMENT(p, kappa) == pytest.approx(1 - (1 - p) ** kappa, abs=1e-12)


@given(st.sampled_from(TABLE), st.floats(1e-6, 1 - 1e-6))
def test_kappa_one_is_the_identity_to_the_bit(unit, value):
    assert unit.form(value, 1) == value
    assert unit.form(value, Fraction(1)) == value


def test_no_average_stays_no_average():
    assert AVERAGE(0.0, 16) == 0
    assert AVERAGE(0.0, 0.1) == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.1, "0.1"),
        (1234, "1,234"),
        (Fraction(1, 3), "0.333333"),
        (10**20, "1e+20"),
        (12345.678, "12,345.68"),
    ],
)
def test_numbers_are_shown_as_people_write_them(value, text):
    assert show(value) == text
