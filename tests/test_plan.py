import json
import math
import sys
import types
from dataclasses import fields, replace
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rootscale import RULES, SGD, Adam, AdamW, BatchSize, Plan, RMSprop, ScalingWarning, Schedule
from rootscale.optimizers import OPTIMIZERS
from rootscale.rules import rule_text
from rootscale.schedule import SHAPES

FULL = Plan(
    AdamW(3e-4, 0.9, 0.95, weight_decay=0.1),
    batch_size="32x4x2",
    steps=100_000,
    schedule=Schedule("cosine", warmup=2_000, min_eta=3e-5),
    ema=0.9999,
    batchnorm_momentum=0.1,
    clip=1.0,
    intervals={"eval": 1_000, "log": 10},
)


def test_everything_is_converted_at_once():
    big = FULL.at(1024)
    assert big.batch_size == BatchSize(32, 16, 2)
    assert (big.steps, big.schedule.warmup, big.intervals) == (25_000, 500, {"eval": 250, "log": Fraction(5, 2)})
    assert big.schedule.min_eta == pytest.approx(6e-5)
    assert big.optimizer.weight_decay == pytest.approx(0.2)
    assert big.ema == pytest.approx(0.9999**4)
    assert big.batchnorm_momentum == FULL.batchnorm_momentum  # a forward has 32 samples still
    assert big.clip == pytest.approx(0.5)


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**7))
@pytest.mark.filterwarnings("ignore::rootscale.ScalingWarning")
def test_the_total_of_samples_is_kept_exactly_and_the_way_back_is_exact(b1, b2, steps):
    plan = Plan(SGD(0.1), b1, steps=steps)
    there = plan.at(b2)
    assert there.samples == plan.samples == b1 * steps
    assert there.at(b1).steps == steps


@pytest.mark.parametrize(
    ("before", "after", "momentum"),
    [
        (256, 1024, 1 - 0.9**4),
        ("32x4x2", "64x8x2", 1 - 0.9**2),
        ("32x4x2", "32x16x2", 0.1),
        ("32x4x2", "32x4x8", 1 - 0.9**4),  # every rank makes a quarter of the forwards
        ("32x4x2", 1000, 1 - 0.9 ** (1000 / 256)),  # no layout any more: a forward may have any number of samples
    ],
)
@pytest.mark.filterwarnings("ignore::rootscale.ScalingWarning")
def test_batchnorm_follows_the_samples_of_a_forward(before, after, momentum):
    plan = Plan(Adam(1e-3, 0.98), before, steps=100, batchnorm_momentum=0.1)
    assert plan.at(after).batchnorm_momentum == pytest.approx(momentum, rel=1e-12)
    row = plan.explain(after)["BatchNorm momentum"]
    assert row.after == pytest.approx(momentum, rel=1e-12)
    assert ("it counts forwards" in row.note) == (momentum in (0.1, 1 - 0.9**2))


def test_epochs_are_samples():
    plan = Plan(Adam(1e-3, 0.99), 256, epochs=500, dataset_size=50_000)
    assert plan.total_steps == Fraction(500 * 50_000, 256)
    assert plan.at(1024).total_steps == Fraction(500 * 50_000, 1024)
    assert plan.at(1024).samples == 25_000_000
    assert plan.explain(1024)["steps"].used == 24_415


def test_rounding_of_steps_is_reported():
    with pytest.warns(ScalingWarning, match="no multiple of 32 micro x 2 workers"):
        FULL.at(300)
    changes = FULL.explain(300)
    assert changes["steps"].after == Fraction(256_000, 3)
    assert changes["steps"].used == 85_334
    assert "the last step takes 100 samples" in changes["steps"].why
    assert changes["warm-up steps"].used == 1_707
    assert "rounded from 1,706.67" in changes["warm-up steps"].why


def test_explain_tells_every_change_its_status_and_why():
    changes = FULL.explain(1024)
    names = ["lr", "beta1", "beta2", "eps", "weight_decay", "steps", "warm-up steps", "lowest lr", "EMA decay"]
    assert [row.name for row in changes] == [*names, "BatchNorm momentum", "clip norm", "every eval", "every log"]
    assert changes["lr"].status == "derived", "its power is the theorem's, and the run is not covered"
    assert changes["beta2"].status == "measured"  # it stops at its floor
    assert FULL.explain(1024, "with paper")["beta2"].status == "derived"
    assert changes["weight_decay"].status == "derived"
    assert changes["clip norm"].status == "heuristic"
    text = str(changes)
    assert (
        "batch size 256 (32 micro x 4 accumulation x 2 workers) -> 1,024 (32 micro x 16 accumulation x 2 workers)"
        in text
    )
    assert "25,600,000 samples" in text
    assert "Measured in mid-run at 4 times the batch" in " ".join(text.split())


def test_explain_finds_what_someone_forgot_to_convert():
    by_hand = replace(FULL.at(1024), optimizer=replace(FULL.at(1024).optimizer, beta2=0.95))
    changes = FULL.explain(by_hand)
    assert changes["beta2"].note == "the rule gives 0.9"
    assert changes["beta1"].note == ""


def test_explain_says_what_a_rule_leaves_alone():
    row = FULL.explain(1024, rule="sqrt-eta")["beta1"]
    assert (row.status, row.after) == ("kept", 0.9)


def test_explain_refuses_to_compare_two_optimizers():
    with pytest.raises(ValueError, match="both plans must have the same optimizer, got adamw and sgd"):
        FULL.explain(Plan(SGD(0.1), 8))


def test_an_unknown_change_is_a_key_error_that_names_the_known_ones():
    with pytest.raises(KeyError, match="no change of 'betas'; there are lr, beta1"):
        FULL.explain(1024)["betas"]


@pytest.mark.parametrize(
    ("plan", "to", "message"),
    [
        (
            Plan(Adam(1e-3, 0.9999, 0.999), 1),
            (600, "with paper"),
            r"kappa \* \(1 - beta2\) = 0\.6 is outside the theorem's range .*kappa < 500",
        ),
        (Plan(Adam(1e-3), 1), (6, "with power"), r"kappa \* \(1 - beta1\) = 0\.6: .*kappa < 5 would be enough"),
        (
            Plan(Adam(1e-3, 0.99), 64, noise_scale=100),
            256,
            r"beyond the noise scale 100: .*up to kappa = 1\.5625 it does",
        ),
        (Plan(SGD(1e-3), 1, steps=10), 16, "the whole run is 0.625 of a step"),
        (Plan(SGD(1e-3), 1, intervals={"log": 2}), 16, "log would be every 0.125 steps; a step is the least"),
    ],
)
def test_outside_its_range_the_rule_warns_with_the_number_that_would_work(plan, to, message):
    with pytest.warns(ScalingWarning, match=message):
        plan.at(*to) if isinstance(to, tuple) else plan.at(to)


@pytest.mark.parametrize("rule", ["linear", "linear-eta", "sqrt-eta", "none", "invariant"])
def test_a_rule_that_does_not_keep_adams_dynamics_warns(rule):
    with pytest.warns(ScalingWarning, match="'sqrt'"):
        FULL.at(512, rule=rule)


# ---- schedules


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (Schedule(), {0: 1, 50: 1, 100: 1}),
        (Schedule(warmup=10), {0: 0, 5: 0.5, 10: 1, 100: 1}),
        (Schedule(warmup=10, warmup_start=0.2), {0: 0.2, 5: 0.6, 10: 1}),
        # the paper's warm-up on CIFAR-10: eta * 1e-3 * (1e3)^(k / warm-up)
        (Schedule(warmup=10, warmup_shape="exponential", warmup_start=1e-3), {0: 1e-3, 5: 1e-3 * 1e3**0.5, 10: 1}),
        (Schedule("linear", warmup=20), {20: 1, 60: 0.5, 100: 0}),
        (Schedule("linear", min_eta=0.1), {0: 1, 50: 0.55, 100: 0.1}),
        (Schedule("cosine", min_eta=0.2), {0: 1, 50: 0.6, 100: 0.2, 120: 0.2}),
        (Schedule("polynomial", power=2), {0: 1, 50: 0.25, 100: 0}),
        (Schedule("exponential", every=10, gamma=0.5), {0: 1, 5: 0.5**0.5, 20: 0.25}),
        (Schedule("step", every=30, gamma=0.1), {0: 1, 29: 1, 30: 0.1, 60: 0.01}),
        (Schedule("multistep", milestones=[80, 90]), {79: 1, 80: 0.1, 90: 0.01}),
        (Schedule("inverse-sqrt", warmup=4), {2: 0.5, 4: 1, 16: 0.5}),
        (Schedule("warmup-stable-decay", warmup=10, decay=20), {10: 1, 80: 1, 90: 0.5, 100: 0}),
    ],
)
def test_schedules_have_their_values(schedule, values):
    plan = Plan(SGD(1.0), 1, steps=100, schedule=schedule)
    assert {k: plan.learning_rate(k) for k in values} == pytest.approx(values, abs=1e-12)


def test_the_schedules_above_are_all_schedules():
    assert {mark[0].name for mark in test_schedules_have_their_values.pytestmark[0].args[1]} == set(SHAPES)


@pytest.mark.parametrize("case", test_schedules_have_their_values.pytestmark[0].args[1], ids=lambda case: case[0].name)
@pytest.mark.parametrize("batch_size", [1, 3, 4, 64])
@pytest.mark.filterwarnings("ignore::rootscale.ScalingWarning")
def test_at_equal_time_the_learning_rate_is_the_rules_multiple(case, batch_size):
    plan = Plan(Adam(1.0, 0.999), 4, steps=100, schedule=case[0])
    other = plan.at(batch_size)
    kappa = batch_size / 4
    for k in range(101):
        expected = math.sqrt(kappa) * plan.learning_rate(k)
        assert other.learning_rate(Fraction(k) / Fraction(batch_size, 4)) == pytest.approx(
            expected, rel=1e-9, abs=1e-12
        )


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda: Schedule("cosin"), "schedule must be one of constant, linear, .*got 'cosin'"),
        (lambda: Schedule("step"), "schedule 'step' needs every"),
        (
            lambda: Schedule("cosine", gamma=0.5),
            "schedule 'cosine' does not use gamma; it takes min_eta and the warm-up",
        ),
        (lambda: Schedule("inverse-sqrt"), "schedule 'inverse-sqrt' needs warmup"),
        (lambda: Schedule(warmup_shape="cubic"), "warmup_shape must be one of linear, exponential, got 'cubic'"),
        (lambda: Schedule(warmup=5, warmup_shape="exponential"), "an exponential warm-up needs warmup_start > 0"),
        (lambda: Schedule("multistep", milestones=[5, 5]), "milestones must increase, got 5, 5"),
        (lambda: Schedule("multistep", milestones=5), "milestones must be a list of steps, got 5"),
        (lambda: Plan(SGD(0.1), 1, schedule=Schedule("cosine")), "schedule 'cosine' needs the run's length"),
        (
            lambda: Plan(SGD(0.1), 1, steps=10, schedule=Schedule(warmup=11)),
            "warmup must end within the run of 10 steps, got 11",
        ),
        (
            lambda: Plan(SGD(0.1), 1, steps=10, schedule=Schedule("linear", min_eta=1)),
            r"min_eta must be at most eta=0\.1, got 1",
        ),
        (
            lambda: Plan(SGD(0.1), 1, steps=10, epochs=2, dataset_size=5),
            "give steps, or epochs and dataset_size, not both",
        ),
        (lambda: Plan(SGD(0.1), 1, epochs=2), "epochs needs dataset_size"),
        (lambda: Plan(SGD(0.1), 0), "batch_size must be a number above 0 such as 1024, got 0"),
        (
            lambda: Plan(SGD(0.1), "32x4"),
            "batch_size must be a number or MICROxACCUMULATIONxWORKERS such as 32x4x8, got '32x4'",
        ),
        (lambda: Plan(SGD(0.1), "1.5x4x8"), "micro must be a whole number, got 1.5"),
        (lambda: Plan("adam", 1), "optimizer must be one of Adam, AdamW, RMSprop, .*, got 'adam'"),
        (lambda: Plan(SGD(0.1), 1, schedule="cosine"), "schedule must be a Schedule, got 'cosine'"),
        (lambda: Plan(SGD(0.1), 1, ema=1.0), r"ema must be in \[0, 1\), got 1\.0"),
        (lambda: Plan(SGD(0.1), 1, clip=0), "clip must be a finite number > 0, got 0"),
        (lambda: Plan(SGD(0.1), 1, intervals=[3]), r"intervals must map names to steps, got \[3\]"),
        (lambda: Plan(SGD(0.1), 1, intervals={"eval": -1}), "intervals.'eval'. must be a number above 0"),
        (
            lambda: Plan(SGD(0.1), 1, noise_scale="much"),
            "noise_scale must be a number above 0 such as 1024, got 'much'",
        ),
        (lambda: Adam(True), "eta must be a finite number > 0, got True"),
        (lambda: Adam(math.nan), "eta must be a finite number > 0, got nan"),
        (lambda: Adam(10**400), "eta must be a finite number > 0, got 1000"),
        (lambda: FULL.at("many"), "batch_size must be a number above 0 such as 1024, got 'many'"),
        (lambda: FULL.at(math.inf), "batch_size must be a number above 0 such as 1024, got inf"),
    ],
)
def test_mistakes_are_told_with_what_was_expected_and_what_came(bad, message):
    with pytest.raises(ValueError, match=message):
        bad()


# ---- JSON


@pytest.mark.parametrize("batch_size", ["32x4x2", 300, 1024, 7, Fraction(256, 3)])
@pytest.mark.filterwarnings("ignore::rootscale.ScalingWarning")
def test_json_loses_nothing(batch_size):
    plan = FULL.at(batch_size)
    assert Plan.from_json(plan.to_json()) == plan
    assert json.loads(plan.to_json())["optimizer"]["name"] == "adamw"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "plan must be JSON: Expecting value"),
        ("[1]", r"plan must be an object with named values, got \[1\]"),
        ("{}", "plan needs 'optimizer', got only nothing"),
        ('{"optimizer": {"name": "adam"}, "batch_size": 1}', "optimizer adam needs 'eta', the learning rate"),
        (
            '{"optimizer": {"name": "lbfgs"}, "batch_size": 1}',
            "optimizer name must be one of adam, adamw, rmsprop, .*, got 'lbfgs'",
        ),
        (
            '{"optimizer": {"name": "sgd", "eta": 1, "beta1": 0}, "batch_size": 1}',
            "optimizer sgd has no 'beta1'; did you mean 'eta'",
        ),
        (
            '{"optimizer": {"name": "sgd", "eta": 1}, "batch_size": 1, "step": 5}',
            "plan has no 'step'; did you mean 'steps'?",
        ),
        (
            '{"optimizer": {"name": "sgd", "eta": 1}, "batch_size": 1, "steps": "1e999999999"}',
            "steps must be a number above 0",
        ),
        (
            '{"optimizer": {"name": "sgd", "eta": 1}, "batch_size": [1]}',
            r"batch_size must be a number above 0 such as 1024, got \[1\]",
        ),
        ("[" * 100_000, "plan must be JSON"),
    ],
)
def test_a_bad_plan_file_is_refused_by_name(text, message):
    with pytest.raises(ValueError, match=message):
        Plan.from_json(text)


# ---- ten thousand configurations, good and bad

odd = st.sampled_from(
    [None, "", "x", "7", [], {}, True, -1, 0, 1, 2, 0.5, 1e-300, 1e300, 1e-20, 2**60, math.nan, math.inf, -math.inf]
)


def rarely_odd(good):
    return st.one_of(*[good] * 12, odd)


sizes = st.one_of(st.integers(1, 10**6), st.floats(1e-3, 1e6), st.sampled_from(["32x4x8", "1x1x1", "8 x 2 x 2"]))
lr, unit = st.floats(1e-8, 1.0), st.floats(0, 0.99999)
steps = st.one_of(st.integers(1, 10**7), st.floats(0.1, 1e6))
PLANS = st.fixed_dictionaries(
    {
        "optimizer": st.one_of(
            st.fixed_dictionaries(
                {"name": st.sampled_from(["adam", "adamw"]), "eta": rarely_odd(lr)},
                optional={
                    "beta1": rarely_odd(unit),
                    "beta2": rarely_odd(unit),
                    "eps": rarely_odd(lr),
                    "weight_decay": unit,
                },
            ),
            st.fixed_dictionaries(
                {"name": st.just("rmsprop"), "eta": lr}, optional={"beta": rarely_odd(unit), "eps_root": lr}
            ),
            st.fixed_dictionaries({"name": st.just("sgd"), "eta": lr}, optional={"momentum": rarely_odd(unit)}),
        ),
        "batch_size": rarely_odd(sizes),
    },
    optional={
        "steps": rarely_odd(steps),
        "dataset_size": rarely_odd(st.integers(1, 10**7)),
        "ema": rarely_odd(unit),
        "batchnorm_momentum": rarely_odd(unit),
        "clip": rarely_odd(lr),
        "noise_scale": rarely_odd(st.floats(1, 1e6)),
        "intervals": rarely_odd(st.dictionaries(st.sampled_from(["eval", "save"]), rarely_odd(steps))),
        "schedule": rarely_odd(
            st.one_of(
                st.fixed_dictionaries({}, optional={"warmup": rarely_odd(st.integers(0, 10))}),
                st.fixed_dictionaries(
                    {"name": st.sampled_from(sorted(SHAPES))}, optional={"warmup": rarely_odd(steps)}
                ),
                st.fixed_dictionaries(
                    {"name": st.just("step"), "every": steps, "gamma": rarely_odd(st.floats(0.01, 1))}
                ),
                st.fixed_dictionaries(
                    {"name": st.just("multistep"), "milestones": st.lists(rarely_odd(steps), max_size=3)}
                ),
                st.fixed_dictionaries({"name": st.sampled_from(["cosine", "linear"]), "min_eta": rarely_odd(lr)}),
            )
        ),
    },
)


def numbers(record):
    """Every number in a plan."""
    for f in fields(record):
        value = getattr(record, f.name)
        if hasattr(value, "__dataclass_fields__"):
            yield from numbers(value)
        elif isinstance(value, dict | tuple):
            yield from value.values() if isinstance(value, dict) else value
        elif isinstance(value, int | float | Fraction):
            yield value


CONFIGURATIONS = given(PLANS, rarely_odd(sizes), st.sampled_from([None, *RULES]), st.sampled_from(["paper", "power"]))


@settings(max_examples=1_000, suppress_health_check=list(HealthCheck))
@CONFIGURATIONS
@pytest.mark.filterwarnings("ignore::rootscale.ScalingWarning")
def test_any_configuration_gives_a_valid_plan_or_a_clear_value_error(data, to, rule, averaging):
    check_configuration(data, to, rule, averaging)


@pytest.mark.slow
@settings(max_examples=10_000, suppress_health_check=list(HealthCheck))
@CONFIGURATIONS
@pytest.mark.filterwarnings("ignore::rootscale.ScalingWarning")
def test_ten_thousand_configurations_give_valid_plans_or_clear_value_errors(data, to, rule, averaging):
    check_configuration(data, to, rule, averaging)


def check_configuration(data, to, rule, averaging):
    refusal, text = None, ""
    try:
        plan = Plan.from_dict(data)
        other = plan.at(to, rule_text(rule, averaging))
        text = str(plan.explain(other, rule_text(rule, averaging)))
    except ValueError as error:
        refusal = str(error)
    if refusal is not None:
        assert len(refusal) > 15  # a sentence
        assert "\n" not in refusal
        return
    assert all(math.isfinite(value) for value in numbers(other))
    assert "nan" not in text.split()
    assert Plan.from_json(other.to_json()) == other
    assert other.samples == plan.samples


def test_a_fair_share_of_those_configurations_is_valid():
    """So that the test above is about plans, not about refusals only."""
    valid = []

    @settings(max_examples=150, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(PLANS)
    def count(data):
        try:
            Plan.from_dict(data)
            valid.append(1)
        except ValueError:
            valid.append(0)

    count()
    assert 0.25 < sum(valid) / len(valid) < 0.75


def test_rmsprop_has_the_paper_s_names():
    big = Plan(RMSprop(1e-3, beta=0.999, eps=1e-8), 256).at(1024).optimizer
    assert (big.eta, round(big.beta, 12), big.eps) == (2e-3, 0.996, 5e-9)


@pytest.mark.parametrize(
    ("before", "after", "momentum"),
    [
        ("32x1x1", "32x4x1", 0.1),  # accumulation: a forward has as many samples as before
        ("32x4x1", "128x1x1", 0.3439),
        ("32x1x4", "32x4x4", 0.1),
        ("32x1x1", 128, 0.1),  # the layout is known, and the accumulation follows
        (32, 128, 0.3439),
        (32, "32x4x1", 0.3439),  # how 32 samples were laid out is not known
    ],
)
def test_batchnorm_follows_the_samples_of_one_forward(before, after, momentum):
    plan = Plan(Adam(1e-3, beta1=0.99), before, batchnorm_momentum=0.1)
    assert plan.at(after).batchnorm_momentum == pytest.approx(momentum)


def test_a_change_is_found_by_its_field_and_by_its_name():
    plan = Plan(Adam(1e-3, beta1=0.99), 4, steps=100, intervals={"eval": 8}, schedule=Schedule(warmup=10))
    changes = plan.convert(16).changes
    assert changes["optimizer.eta"] is changes["lr"]
    assert changes["intervals.eval"] is changes["every eval"]
    assert changes["schedule.warmup"].value == 2
    assert "schedule.warmup" in changes
    assert "clip" not in changes


def test_a_conversion_has_its_plan_changes_and_warnings_and_issues_none(recwarn):
    plan = Plan(Adam(1e-3), 4, steps=100)
    conversion = plan.convert(24, "with paper")
    assert (conversion.before, conversion.plan.batch_size.total) == (plan, 24)
    assert conversion.warnings == conversion.changes.warnings != ()
    assert not recwarn.list


# -- in notebooks and frames


PLAN = Plan(
    AdamW(3e-4), batch_size=256, steps=100_000, schedule=Schedule("cosine", warmup=2_000), ema=0.9999, clip=1.0,
    intervals={"save": 5_000, "eval": 1_000},
)  # fmt: skip


def test_equal_plans_have_one_hash():
    again = Plan.from_json(PLAN.to_json())
    turned = replace(PLAN, intervals={"eval": 1_000, "save": 5_000})
    assert PLAN == again == turned
    assert hash(PLAN) == hash(again) == hash(turned)
    assert len({PLAN, again, turned, PLAN.at(512)}) == 2
    assert {PLAN: "a"}[turned] == "a"


def test_the_short_form_of_changes_fits_a_screen_and_names_what_changed():
    changes = PLAN.convert(1024).changes
    assert repr(changes) == (
        "Changes(batch size 256 -> 1,024, kappa = 4, 25,600,000 samples in both, rule sqrt: lr 0.0003 -> 0.0006, beta2 "
        "0.999 -> 0.996, eps 1e-08 -> 5e-09, weight_decay 0.01 -> 0.02, steps 100,000 -> 25,000, warm-up steps 2,000 "
        "-> 500; 4 more; 1 unchanged)"
    )
    plain = Plan(SGD(0.1), batch_size=8).convert(8).changes
    assert "nothing" in repr(plain)
    assert max(len(repr(Plan(cls(0.01), batch_size=8, steps=100).convert(16).changes)) for cls in OPTIMIZERS.values()
               ) < 500  # fmt: skip


def test_plans_and_changes_are_tables_in_notebooks_and_nothing_in_them_is_markup():
    plan = replace(PLAN, intervals={"<script>": 1_000})
    for text in (plan._repr_html_(), plan.convert(1024).changes._repr_html_()):
        assert text.startswith("<table><caption>")
        assert text.count("<tr>") == text.count("</tr>") > 8
        assert "<script>" not in text
        assert "&lt;script&gt;" in text
    assert "<td>optimizer.eta</td><td>0.0003</td>" in plan._repr_html_()
    assert "<td>lr</td><td>0.0003</td><td>0.0006</td><td>derived</td>" in plan.convert(1024).changes._repr_html_()


class Frames(types.ModuleType):
    """Stands in for a library of frames: a frame is its columns."""

    DataFrame = dict


def test_changes_are_a_frame_of_pandas_or_else_of_polars(monkeypatch):
    changes = PLAN.convert(1024).changes
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        changes.to_frame()
    for name in ("polars", "pandas"):
        monkeypatch.setitem(sys.modules, name, Frames(name))
        frame = changes.to_frame()
        assert frame["name"] == [row.name for row in changes]
        assert frame["used"][0] == 6e-4
        assert {len(column) for column in frame.values()} == {len(changes)}


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_changes_are_a_frame_of_the_real_libraries(library, monkeypatch):
    frames = pytest.importorskip(library)
    if library == "polars":
        monkeypatch.setitem(sys.modules, "pandas", None)
    frame = PLAN.convert(1024).changes.to_frame()
    assert isinstance(frame, frames.DataFrame)
    assert list(frame["field"])[:2] == ["optimizer.eta", "optimizer.beta1"]
