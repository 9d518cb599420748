"""Published rules for another number of tokens, side by side."""

import pytest

from rootscale import SGD, AdamW, Plan, Schedule
from rootscale.horizon import HORIZONS, STATUS, horizons

PLAN = Plan(
    AdamW(3e-4, 0.9, 0.95, weight_decay=0.1), 256, steps=1000, schedule=Schedule("cosine", warmup=50, min_eta=3e-5),
    sequence_length=2000, intervals={"eval": 100},
)  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "eta", "decay"),
    [  # at twice the batch and four times the tokens
        ("timescale", 3e-4, 0.1 * 2 / 4),
        ("power-lines", 3e-4, 0.1 * 2 * 4 ** (0.527 - 1)),
        ("nanochat", 3e-4 * 2**0.5, 0.1 * 2**0.5 / 4),
        ("marin", 3e-4 * 2**0.5 * 4**-0.3, 0.1 * 2**0.5),
        ("completed-p", 3e-4 * (2 / 4) ** 0.5, 0.1 * (2 / 4) ** 0.5),
    ],
)
def test_each_rule_multiplies_by_its_powers(rule, eta, decay):
    plan = PLAN.at(512, tokens=4 * PLAN.tokens, horizon=rule)
    assert plan.optimizer.eta == pytest.approx(eta, rel=1e-12)
    assert plan.optimizer.weight_decay == pytest.approx(decay, rel=1e-12)
    assert (plan.batch_size.total, plan.tokens, plan.steps) == (512, 4 * PLAN.tokens, 2000)
    assert plan.schedule.warmup == 100  # the share of the run is kept
    assert plan.schedule.min_eta == pytest.approx(eta / 10)
    assert plan.intervals == {"eval": 50}


def test_a_longer_run_as_a_smaller_batch_keeps_the_sde_but_for_its_length():
    plan = PLAN.at(tokens=4 * PLAN.tokens, horizon="completed-p")
    assert plan.optimizer.beta2 == pytest.approx(1 - 0.05 / 4)
    assert plan.optimizer.eps == pytest.approx(2e-8)
    assert PLAN.at(1024, tokens=4 * PLAN.tokens, horizon="completed-p").optimizer.eta == pytest.approx(3e-4)


def test_all_rules_agree_where_nothing_changes():
    found = horizons(PLAN, None, PLAN.tokens)
    assert all(row.plan == PLAN for row in found.rows)
    assert found.ranges == {}
    assert str(found).endswith("they agree")


def test_disagreement_is_a_range_and_every_row_has_source_and_status():
    found = horizons(PLAN, None, "2.048B")
    assert [row.name for row in found.rows] == list(HORIZONS)
    assert found.ranges["eta"] == pytest.approx((1.5e-4, 3e-4))
    assert found.ranges["weight_decay"] == pytest.approx((0.025, 0.1))
    assert found.rows[2].batch_size == pytest.approx(256 * 4**0.383)
    data = found.to_dict()
    assert all(row["source"] and row["status"] == STATUS == "published" for row in data["rows"])


def test_none_of_the_rules_is_a_default():
    said = "none of the published rules for it is a default: choose one with horizon='tim.* eta 0.00015 to 0.0003"
    with pytest.raises(ValueError, match=said):
        PLAN.at(tokens="2.048B")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: PLAN.at(tokens="1B", horizon="mine"), "horizon must be one of timescale, power-lines"),
        (lambda: PLAN.at(512, "sqrt", tokens="1B"), "rule='sqrt' keeps a run, and tokens= makes another one"),
        (lambda: PLAN.at(512, horizon="marin"), "horizon='marin' is for another number of tokens: give tokens= too"),
        (lambda: Plan(AdamW(1e-3), 8, steps=9).at(tokens="1B", horizon="marin"), "must come with the length of a sequ"),
        (lambda: Plan(AdamW(1e-3), 8, sequence_length=9).at(tokens="1B"), "needs the length of the run as it is"),
        (lambda: Plan(SGD(1), 8, steps=9, sequence_length=9).at(tokens="1B"), "there is no published rule .* with sgd"),
        (
            lambda: Plan.from_dict(MUON).at(tokens="1B", horizon="marin"),
            "'marin' is for adam and adamw, got muon",
        ),
    ],
)
def test_what_a_rule_is_not_for_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        change()


MUON = {"optimizer": {"name": "muon", "eta": 0.02}, "batch_size": 8, "steps": 9, "sequence_length": 9}


def test_samples_may_be_given_where_there_are_no_tokens():
    plan = Plan(AdamW(1e-3), 8, steps=100).at(tokens="1600 samples", horizon="timescale")
    assert plan.steps == 200
