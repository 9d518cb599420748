"""The registry: rows that are whole, and rules that degree counting gives too."""

import math
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path

import pytest

from rootscale import RULES, Plan
from rootscale.degrees import Piece, count_degrees
from rootscale.optimizers import FAMILIES, OPTIMIZERS, add_family, family
from rootscale.units import UNITS

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
HALF = Fraction(1, 2)


@pytest.mark.parametrize("row", FAMILIES.values(), ids=lambda row: row.name)
def test_a_row_is_whole(row):
    assert row.rules
    assert all(name in RULES for name in row.rules)
    assert row.name in RULES[row.rules[0]].holds_for
    assert row.status in ("theorem", "derived", "heuristic")
    assert row.source
    assert row.why.endswith(".")
    assert all(unit in UNITS for unit in row.state.values())
    assert all(held in row.state for held in row.torch.state.values())
    known = {f.name for f in fields(row.record)}
    held = [one for value in row.torch.values.values() for one in (value if isinstance(value, tuple) else (value,))]
    assert set(held) <= known


def test_only_what_has_an_sde_is_a_theorem():
    assert {row.name for row in FAMILIES.values() if row.status == "theorem"} == {"adam", "rmsprop", "sgd"}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_plan_of_every_record_goes_to_another_batch_size_and_back(name):
    plan = Plan(OPTIMIZERS[name](eta=1e-3), 16, steps=1000)
    there = plan.at(32, "with paper")  # floors lead back only in live runs, which remember what they stopped
    assert Plan.from_json(there.to_json()) == there
    back = there.at(16, "with paper").optimizer
    for f in fields(back):
        value = getattr(plan.optimizer, f.name)
        assert getattr(back, f.name) == (value if value is None else pytest.approx(value, rel=1e-9))


def exponent(rule, key):
    """The power of kappa of a unit under a rule."""
    return math.log(float(RULES[rule].convert(key, 1e-3, 4.0)) / 1e-3, 4)


@pytest.mark.parametrize(
    ("rule", "pieces", "update", "state"),
    [
        ("sqrt", {"m": Piece(), "v": Piece(2, "noise")}, {"m": 1, "v": -HALF}, {"v": "v"}),
        ("adagrad", {"s": Piece(2, "noise", "sum")}, {"g": 1, "s": -HALF}, {"s": "sum"}),
        ("linear", {}, {"g": 1}, {}),
        ("linear-time", {"b": Piece(kind="sum")}, {"b": 1}, {"b": "buffer"}),
        *(
            (
                rule,
                {"m": Piece(window=a), "noise": Piece(1, "noise", window=a)},
                {"m": 1, "noise": -1},
                {"noise": "m"},
            )
            for rule, a in (("normalized-sqrt", 0), ("normalized-half", HALF), ("normalized-linear", 1))
        ),
    ],
)
def test_degree_counting_gives_the_rules(rule, pieces, update, state):
    counted = count_degrees(pieces, update)
    assert exponent(rule, "eta") == pytest.approx(float(counted.eta))
    if "decoupled_decay" in RULES[rule].units:
        assert exponent(rule, "decoupled_decay") == pytest.approx(float(counted.decoupled_decay))
    for piece, unit in state.items():
        assert exponent(rule, unit) == pytest.approx(float(counted.state[piece]))
    for piece, key in (("v", "eps"), ("s", "eps_sum"), ("noise", "eps_m")):
        if piece in counted.eps:
            assert exponent(rule, key) == pytest.approx(float(counted.eps[piece]))


def test_an_update_of_unknown_pieces_is_refused():
    with pytest.raises(ValueError, match="the update has 'v', which is not among the pieces g, m"):
        count_degrees({"m": Piece()}, {"m": 1, "v": -HALF})


def test_rows_cannot_be_replaced_and_unknown_names_are_refused():
    with pytest.raises(ValueError, match=r"optimizer must be one of adam, .*, got 'lbfgs'"):
        family("lbfgs")
    with pytest.raises(ValueError, match="there is a family 'adam' already"):
        add_family(replace(FAMILIES["adam"], why="other"))
