"""Comparisons: that bands hold, that verdicts err as rarely as they say, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from rootscale.compare import Comparison, Gap, _fisher, _student_quantile, _student_tail, compare
from rootscale.trajectory import Estimate, Trajectory

TIMES = np.linspace(0.0, 1.0, 21)
CURVE = 1 - TIMES  # range 1
SCALES = {"loss": 1.0, "accuracy": 0.3, "norm": 4.0}


def runs(
    rng: np.random.Generator,
    count: int,
    *,
    noise: float = 0.05,
    gap: float = 0.0,
    share: np.ndarray | float = 0.0,
    seeds: list[int] | None = None,
) -> Trajectory:
    """Brownian deviations that are zero at t = 0, partly common to the functions; ``gap`` is reached at t = 1/2."""
    values = {}
    common = rng.standard_normal((count, len(TIMES)))
    for name, scale in SCALES.items():
        steps = 0.8 * common + 0.6 * rng.standard_normal((count, len(TIMES)))
        steps[:, 0] = 0
        path = np.cumsum(steps, 1) / math.sqrt(len(TIMES) - 1)
        values[name] = scale * (CURVE + noise * path + share + gap * np.minimum(2 * TIMES, 1))
    return Trajectory(TIMES, values, meta={} if seeds is None else {"seeds": seeds})


def shared(rng: np.random.Generator, count: int) -> np.ndarray:
    return 0.3 * TIMES * rng.standard_normal((count, 1))


def pair(rng: np.random.Generator, count: int, gap: float = 0.0, noise: float = 0.05) -> tuple[Trajectory, Trajectory]:
    """Base and other, which share a large part of their noise."""
    seeds, share = list(range(count)), shared(rng, count)
    return (
        runs(rng, count, noise=noise, share=share, seeds=seeds),
        runs(rng, count, noise=noise, share=share, seeds=seeds, gap=gap),
    )


def with_values(trajectory: Trajectory, **values: np.ndarray) -> Trajectory:
    return Trajectory(trajectory.times, {**trajectory.values, **values}, meta=trajectory.meta)


def diverge(trajectory: Trajectory, count: int, since: int = 10) -> Trajectory:
    """The first ``count`` runs are lost from the time of index ``since`` on."""
    loss = trajectory.values["loss"].copy()
    loss[:count, since:] = np.nan
    return with_values(trajectory, loss=loss)


# --- the gap and its band


def test_the_gap_of_pairs_is_the_mean_difference_over_the_range_and_the_band_a_multiple_of_its_error() -> None:
    base, other = pair(np.random.default_rng(0), 8, gap=0.02)
    result = compare(base, other)
    assert result.paired
    assert result.seeds == (8, 8)
    for name in SCALES:
        found = result.gaps[name]
        width = np.ptp(base[name].mean)
        differences = (other.values[name] - base.values[name]) / width
        half = result.critical * differences.std(0, ddof=1) / math.sqrt(8)
        assert found.range == pytest.approx(width, rel=1e-12)
        np.testing.assert_allclose(found.gap, differences.mean(0), atol=1e-12)
        np.testing.assert_allclose(found.high - found.gap, half, atol=1e-12)
        np.testing.assert_allclose(found.gap - found.low, half, atol=1e-12)


def test_the_band_of_independent_runs_has_welchs_error() -> None:
    rng = np.random.default_rng(1)
    base, other = runs(rng, 9, seeds=list(range(9))), runs(rng, 6, noise=0.2, seeds=list(range(50, 56)))
    result = compare(base, other)
    assert not result.paired
    assert result.seeds == (6, 9)
    for name in SCALES:
        found, error = result.gaps[name], np.hypot(base[name].se, other[name].se)
        np.testing.assert_allclose(found.gap * found.range, other[name].mean - base[name].mean, atol=1e-12)
        np.testing.assert_allclose((found.high - found.gap) * found.range, result.critical * error, atol=1e-12)


@pytest.mark.parametrize("count", [4, 5, 8, 40])
def test_one_function_at_one_time_gets_students_quantile(count) -> None:
    rng = np.random.default_rng(2)
    seeds = {"seeds": list(range(count))}
    base = Trajectory(np.array([0.0, 1.0]), {"loss": np.array([1.0, 0.0]) + np.zeros((count, 1))}, meta=seeds)
    noise = rng.standard_normal((count, 1)) * np.array([0.0, 0.1])
    result = compare(base, Trajectory(base.times, {"loss": base.values["loss"] + noise}, meta=seeds), resamples=100_000)
    assert result.critical == pytest.approx(stats.t.ppf(0.975, count - 1), rel=0.02)


def test_the_band_has_no_width_where_all_runs_are_alike() -> None:
    base, other = pair(np.random.default_rng(3), 6)
    for found in compare(base, other).gaps.values():
        assert found.gap[0] == found.low[0] == found.high[0] == 0
        assert np.all(found.high[1:] > found.low[1:])


def test_rounding_noise_at_the_start_does_not_enter_the_critical_value() -> None:
    rng = np.random.default_rng(4)
    base, other = pair(rng, 8)
    noisy = {name: v + np.where(TIMES == 0, 1e-9 * rng.standard_normal((8, 1)), 0) for name, v in other.values.items()}
    assert compare(base, with_values(other, **noisy)).critical == pytest.approx(compare(base, other).critical, rel=1e-9)


def test_identical_runs_are_the_same() -> None:
    base, _ = pair(np.random.default_rng(5), 4)
    result = compare(base, base)
    assert result.verdict == "same"
    assert result.settled_after == 0
    assert result.gaps["loss"].largest == (0, 0, 0, 0)


def test_pairing_ignores_the_order_of_runs_and_narrows_the_band() -> None:
    base, other = pair(np.random.default_rng(6), 8, gap=0.02)
    order = [3, 1, 0, 2, 7, 6, 5, 4]
    shuffled = Trajectory(TIMES, {k: v[order] for k, v in other.values.items()}, meta={"seeds": order})
    assert compare(base, shuffled).to_dict() == compare(base, other).to_dict()
    unpaired = compare(base, Trajectory(TIMES, other.values))
    assert not unpaired.paired
    assert unpaired.gaps["loss"].high[-1] > 3 * compare(base, other).gaps["loss"].high[-1]


def test_the_same_seed_gives_the_same_band() -> None:
    base, other = pair(np.random.default_rng(7), 16)
    assert compare(base, other, seed=3).to_dict() == compare(base, other, seed=3).to_dict()
    assert compare(base, other, seed=3).critical != compare(base, other, seed=4).critical


def test_more_functions_widen_the_band() -> None:
    base, other = pair(np.random.default_rng(8), 12)
    one = compare(base, other, ["loss"])
    assert list(one.gaps) == ["loss"]
    assert one.critical < compare(base, other).critical


# --- error rates; the tables for many more processes are in docs/verdict.md, made by benchmarks/bands.py


def holds(result: Comparison, gap: float) -> bool:
    """Whether the bands hold the true gap everywhere."""
    return all(
        bool(np.all((g.low * g.range <= truth + 1e-12) & (truth <= g.high * g.range + 1e-12)))
        for g in result.gaps.values()
        for truth in [gap * SCALES[g.name] * np.minimum(2 * TIMES, 1)]
    )


@pytest.mark.parametrize(
    ("count", "against", "noise"),
    [(5, None, 0.05), (8, None, 0.05), (16, None, 0.05), (8, 8, 0.05), (8, 12, 0.25)],
    ids=["5 pairs", "8 pairs", "16 pairs", "8 and 8", "8 and 12, unequal noise"],
)
def test_bands_hold_the_true_gap_at_all_times_and_functions_in_95_of_100_cases(count, against, noise) -> None:
    rng = np.random.default_rng((count, against or 0))
    repeats, hits = 400, 0
    for _ in range(repeats):
        if against is None:
            base, other = pair(rng, count, gap=0.1)
        else:
            base, other = runs(rng, against), runs(rng, count, noise=noise, gap=0.1)
        hits += holds(compare(base, other, resamples=400), 0.1)
    error = math.sqrt(0.95 * 0.05 / repeats)
    assert 0.95 - 3 * error < hits / repeats < 0.95 + 3.5 * error


@pytest.mark.parametrize("paired", [True, False])
def test_null_pairs_are_called_different_in_at_most_5_of_100_cases_at_any_tolerance(paired) -> None:
    rng = np.random.default_rng(20)
    repeats, wrong = 400, 0
    for _ in range(repeats):
        base, other = pair(rng, 8) if paired else (runs(rng, 8), runs(rng, 8))
        # The smallest tolerance there is makes every band without zero "different": the worst case.
        wrong += compare(base, other, resamples=400, tolerance=1e-9).verdict == "different"
    assert wrong / repeats < 0.05 + 3 * math.sqrt(0.05 * 0.95 / repeats)


@pytest.mark.parametrize("noise", [0.02, 0.05, 0.2])
def test_a_gap_of_twice_the_tolerance_is_called_the_same_in_at_most_5_of_100_cases(noise) -> None:
    rng = np.random.default_rng(21)
    verdicts = [compare(*pair(rng, 8, gap=0.1, noise=noise), resamples=400).verdict for _ in range(200)]
    assert verdicts.count("same") / 200 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)


def test_more_seeds_decide_more_often() -> None:
    rng = np.random.default_rng(22)
    for gap, right in ((0.0, "same"), (0.1, "different")):
        rates = []
        for count in (6, 12, 24):
            verdicts = [compare(*pair(rng, count, gap=gap, noise=0.025), resamples=400).verdict for _ in range(60)]
            rates.append(verdicts.count(right) / 60)
        assert rates[0] + 0.1 < rates[1] <= rates[2], rates
        assert rates[2] > 0.8, rates


@pytest.mark.slow
@pytest.mark.parametrize("count", [6, 8, 16, 32])
def test_bands_hold_under_heavy_tails(count) -> None:
    rng = np.random.default_rng(count)
    hits = 0
    for _ in range(1000):
        base = runs(rng, count)
        wild = np.sqrt(3 / rng.chisquare(3, (count, 1)))
        values = {k: SCALES[k] * CURVE + wild * (v - SCALES[k] * CURVE) for k, v in runs(rng, count).values.items()}
        hits += holds(compare(base, with_values(base, **values)), 0.0)
    assert hits / 1000 > 0.95 - 3 * math.sqrt(0.95 * 0.05 / 1000)


# --- verdicts


def gap_of(low: list[float], high: list[float], verdict: str = "undecided", needed: int | None = None) -> Gap:
    a, b = np.array(low), np.array(high)
    return Gap("loss", np.arange(len(a), dtype=float), (a + b) / 2, a, b, 2.0, verdict, needed)


def test_the_band_decides() -> None:
    rng = np.random.default_rng(30)
    base, other = pair(rng, 16, gap=0.03, noise=0.002)
    assert compare(base, other).verdict == "same"
    assert compare(base, other, tolerance=0.01).verdict == "different"
    on = abs(compare(base, other).gaps["loss"].largest[0])
    assert compare(base, other, ["loss"], tolerance=on).verdict == "undecided"
    for tolerance in (0.01, on, 0.05):
        for found in compare(base, other, tolerance=tolerance).gaps.values():
            expected = (
                "different" if found.outside(tolerance).any()
                else "same" if found.within(tolerance).all() else "undecided"
            )  # fmt: skip
            assert found.verdict == expected


def test_one_different_function_makes_all_different_and_one_undecided_prevents_the_same() -> None:
    def whole(*verdicts: str) -> str:
        gaps = {str(i): gap_of([0.0], [0.0], verdict) for i, verdict in enumerate(verdicts)}
        return Comparison(gaps, 0.05, 0.95, (8, 8), True).verdict

    assert whole("same", "same") == "same"
    assert whole("same", "undecided") == "undecided"
    assert whole("undecided", "different", "same") == "different"


def test_largest_within_outside_and_settled_after() -> None:
    found = gap_of([-0.02, 0.06, -0.3, -0.04, 0.0], [0.0, 0.08, -0.2, 0.06, 0.05])
    assert found.largest == (-0.25, -0.3, -0.2, 2.0)
    assert found.within(0.05).tolist() == [True, False, False, False, True]
    assert found.outside(0.05).tolist() == [False, True, True, False, False]
    assert found.settled_after(0.05) == 4
    assert found.settled_after(1.0) == 0
    assert found.settled_after(0.01) is None
    comparison = Comparison({"a": found, "b": gap_of([0.0, 0.1, 0.0], [0.0, 0.1, 0.0])}, 0.05, 0.95, (8, 8), True)
    assert comparison.settled_after == 4
    assert replace(comparison, tolerance=0.01).settled_after is None


def test_seeds_needed_is_where_the_band_would_decide() -> None:
    """Repeating runs keeps gap and spread: with n seeds of the same spread the band decides, with a fifth less not."""
    rng = np.random.default_rng(31)
    for gap in (0.0, 0.12):
        base, other = pair(rng, 8, gap=gap, noise=0.04 if gap == 0 else 0.08)
        found = compare(base, other, ["loss"])
        assert found.verdict == "undecided"
        needed = found.seeds_needed
        assert needed is not None
        assert needed == found.gaps["loss"].seeds_needed
        assert (abs(found.gaps["loss"].largest[0]) > 0.05) == (gap > 0)

        def at(count: int, base: Trajectory = base, other: Trajectory = other) -> str:
            """`count` runs with the mean and covariance that the 8 pairs have."""
            difference = other.values["loss"] - base.values["loss"]
            mixed = np.random.default_rng(0).standard_normal((count, 8)) @ (difference - difference.mean(0))
            mixed -= mixed.mean(0)
            mixed *= difference.std(0, ddof=1) / np.maximum(mixed.std(0, ddof=1), 1e-12)
            curve = np.broadcast_to(base["loss"].mean, mixed.shape)
            seeds = {"seeds": list(range(count))}
            made = Trajectory(TIMES, {"loss": curve + difference.mean(0) + mixed}, meta=seeds)
            return compare(Trajectory(TIMES, {"loss": curve}, meta=seeds), made).verdict

        assert at(math.ceil(1.25 * needed)) == ("different" if gap else "same"), gap
        assert at(math.floor(0.75 * needed)) == "undecided"


def test_no_number_of_seeds_decides_a_gap_on_the_tolerance() -> None:
    base, other = pair(np.random.default_rng(32), 8)
    for name in SCALES:
        shift = other.values[name] - base.values[name]
        exact = base.values[name] + shift - shift.mean(0) + 0.05 * np.ptp(base[name].mean) * (TIMES > 0)
        other = with_values(other, **{name: exact})
    result = compare(base, other)
    assert result.verdict == "undecided"
    assert result.seeds_needed is None


def test_seeds_needed_of_all_is_the_largest_of_the_undecided() -> None:
    gaps = {"a": gap_of([0], [0.1], "undecided", 12), "b": gap_of([0], [0.1], "undecided", 40)}
    result = Comparison({**gaps, "c": gap_of([0], [0], "same")}, 0.05, 0.95, (8, 8), True)
    assert result.seeds_needed == 40
    assert replace(result, gaps={**gaps, "c": gap_of([0.2], [0.3], "different")}).seeds_needed is None
    assert replace(result, gaps={**gaps, "c": gap_of([0], [0.1])}).seeds_needed is None


@pytest.mark.parametrize("nu", [3, 7, 15, 63, 4000])
def test_students_tail_and_quantile_are_scipys(nu) -> None:
    for t in (0.5, 2.0, 6.0, 30.0):
        expected = math.log(2) + stats.t.logsf(t, nu)
        if expected > -50:
            assert _student_tail(t, nu) == pytest.approx(expected, rel=1e-3)
    for tail in (0.05, 1e-3, 1e-6):
        assert _student_quantile(math.log(tail), nu) == pytest.approx(stats.t.isf(tail / 2, nu), rel=1e-3)


# --- divergence


def test_fishers_test_is_scipys() -> None:
    for a, n, b, m in ((3, 8, 0, 8), (5, 8, 0, 8), (1, 6, 7, 9), (0, 4, 0, 4), (4, 16, 2, 5)):
        expected = stats.fisher_exact([[a, n - a], [b, m - b]]).pvalue
        assert _fisher((a, b), (n, m)) == pytest.approx(expected, rel=1e-12)


def test_more_divergence_on_one_side_prevents_the_same() -> None:
    base, other = pair(np.random.default_rng(40), 8, noise=0.001)
    assert compare(base, other).verdict == "same"
    result = compare(base, diverge(other, 2))
    assert result.diverged == (2, 0)
    assert {gap.verdict for gap in result.gaps.values()} == {"same"}
    assert result.verdict == "undecided"
    assert result.seeds_needed == 24  # 6 of 24 against 0: p = 0.02; 4 of 16: 0.10
    assert "2 of 8 runs of the other and 0 of 8 of the base diverged" in result.notes[0]


def test_much_more_divergence_on_one_side_is_different() -> None:
    base, other = pair(np.random.default_rng(41), 12, noise=0.001)
    for result in (compare(base, diverge(other, 6)), compare(diverge(base, 6), other)):
        assert result.divergence == result.verdict == "different"
        assert result.seeds_needed is None


def test_as_much_divergence_on_both_sides_leaves_the_gap_of_the_survivors() -> None:
    base, other = pair(np.random.default_rng(42), 12, gap=0.02, noise=0.001)
    result = compare(diverge(base, 2), diverge(other, 2))
    assert result.diverged == (2, 2)
    assert result.verdict == "same"
    assert "the gap is that of the runs that did not" in result.notes[0]
    shift = (other.values["loss"] - base.values["loss"])[2:, -1].mean()
    assert result.gaps["loss"].gap[-1] * result.gaps["loss"].range == pytest.approx(shift)


def test_a_pair_is_lost_where_either_run_is() -> None:
    base, other = pair(np.random.default_rng(43), 12, noise=0.01)
    last = Trajectory(TIMES, {k: v[::-1] for k, v in base.values.items()}, meta={"seeds": list(range(12))[::-1]})
    found = compare(diverge(last, 1), diverge(other, 1)).gaps["loss"]
    shift = (other.values["loss"] - base.values["loss"])[1:-1, -1].mean()
    assert found.gap[-1] * found.range == pytest.approx(shift)


def test_huge_values_before_a_divergence_do_not_stretch_the_range() -> None:
    base, other = pair(np.random.default_rng(44), 8)
    loss = base.values["loss"].copy()
    loss[0, 10], loss[0, 11:] = 1e12, np.inf
    assert compare(with_values(base, loss=loss), other).gaps["loss"].range < 2


def test_times_with_few_survivors_are_not_judged() -> None:
    base, other = pair(np.random.default_rng(45), 8, noise=0.001)
    result = compare(diverge(base, 5), diverge(other, 5))
    found = result.gaps["loss"]
    assert np.isnan(found.gap[10:]).all()
    assert np.isfinite(found.gap[:10]).all()
    assert (result.verdict, result.seeds_needed, found.settled_after(0.05)) == ("undecided", None, None)
    assert "11 of 21 times, from t = 0.5 on, are not judged" in result.notes[0]
    text = json.dumps(result.to_dict(), allow_nan=False)
    np.testing.assert_array_equal(Comparison.from_dict(json.loads(text)).gaps["loss"].gap, found.gap)


def test_a_comparison_whose_other_runs_all_diverged_at_once_is_different() -> None:
    base, other = pair(np.random.default_rng(46), 8)
    result = compare(base, diverge(other, 8, since=0))
    assert result.verdict == "different"
    assert math.isnan(result.gaps["loss"].largest[0])
    assert "unknown" in str(result)


# --- seeds that overlap, and what is refused


def test_common_seeds_are_paired_and_others_left_out() -> None:
    base, other = pair(np.random.default_rng(50), 8)
    moved = Trajectory(TIMES, other.values, meta={"seeds": [0, 1, 2, 3, 4, 95, 96, 97]})
    result = compare(base, moved)
    assert (result.paired, result.seeds) == (True, (5, 5))
    assert result.notes == ("paired by the 5 seeds that both have; 6 runs with other seeds were left out",)
    few = Trajectory(TIMES, other.values, meta={"seeds": [0, 1, 2, 93, 94, 95, 96, 97]})
    with pytest.raises(ValueError, match=r"share 3 of 8 and 8 seeds.*at least 4 in common; use the same seeds"):
        compare(base, few)


@pytest.mark.parametrize("seeds", [[0, 1, 2], [0, 1, 2, 3, 4, 5, 6, 6]])
def test_seeds_must_be_one_a_run_and_different(seeds) -> None:
    base, other = pair(np.random.default_rng(51), 8)
    with pytest.raises(ValueError, match="one seed for each of the 8 runs of the other"):
        compare(base, Trajectory(TIMES, other.values, meta={"seeds": seeds}))


def test_few_runs_are_refused_with_the_number_needed() -> None:
    rng = np.random.default_rng(52)
    with pytest.raises(ValueError, match=r"at least 4 pairs of runs with equal seeds .* got 3 of the other and 3"):
        compare(*pair(rng, 3))
    with pytest.raises(ValueError, match=r"at least 4 runs of each .* got 3 of the other and 8 of the base"):
        compare(runs(rng, 8), runs(rng, 3))


def test_other_times_are_refused_with_both_grids() -> None:
    base, other = pair(np.random.default_rng(53), 8)
    moved = Trajectory(TIMES * 2, other.values)
    with pytest.raises(ValueError, match="21 times from 0 to 1 for the base and 21 times from 0 to 2 for the other"):
        compare(base, moved)
    compare(base, Trajectory(TIMES * (1 + 1e-14), other.values))


def test_means_alone_are_refused() -> None:
    base, _ = pair(np.random.default_rng(54), 8)
    means = Trajectory(TIMES, {}, {"loss": Estimate(CURVE, CURVE)}, replicas=8)
    with pytest.raises(ValueError, match=r"the other has means and standard errors only.*values \[R, T\]"):
        compare(base, means)


def test_functions_must_be_in_both() -> None:
    base, other = pair(np.random.default_rng(55), 8)
    more = with_values(other, mine=other.values["loss"])
    assert compare(base, more).notes == ("left out, as only one of the two has it: mine",)
    with pytest.raises(ValueError, match=r"got \['mine'\]; there are loss, accuracy, norm"):
        compare(base, more, ["mine"])


def test_a_flat_base_curve_is_an_error_unless_nothing_happened_at_all() -> None:
    base, other = pair(np.random.default_rng(56), 8)
    flat = np.full((8, len(TIMES)), 0.1) + 1e-10 * TIMES
    both = compare(with_values(base, flat=flat), with_values(other, flat=flat))
    assert list(both.gaps) == list(SCALES)
    assert both.notes == ("left out, as it is the same constant in all runs: flat",)
    with pytest.raises(ValueError, match=r"mean curve of 'flat' is flat.*leave 'flat' out of functions"):
        compare(with_values(base, flat=flat), with_values(other, flat=flat), ["flat", "loss"])
    with pytest.raises(ValueError, match="mean curve of 'flat' is flat"):
        compare(with_values(base, flat=flat), with_values(other, flat=flat + 0.1 * TIMES))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"tolerance": 0.0}, "need a tolerance above 0 and a level between 0 and 1, got 0.0 and 0.95"),
        ({"level": 1.0}, "need a tolerance above 0 and a level between 0 and 1, got 0.05 and 1.0"),
        ({"resamples": 10}, "need at least 100 resamples, got 10"),
    ],
)
def test_settings_out_of_range_are_refused(wrong, told) -> None:
    with pytest.raises(ValueError, match=told):
        compare(*pair(np.random.default_rng(57), 8), **wrong)


# --- as text and as JSON


def test_a_comparison_goes_through_strict_json_unchanged() -> None:
    base, other = pair(np.random.default_rng(60), 8, gap=0.03)
    before = compare(base, diverge(other, 1))
    after = Comparison.from_dict(json.loads(json.dumps(before.to_dict(), allow_nan=False)))
    assert after.to_dict() == before.to_dict()
    assert replace(after, gaps={}) == replace(before, gaps={})
    for name, gap in before.gaps.items():
        for field in ("times", "gap", "low", "high"):
            np.testing.assert_array_equal(getattr(after.gaps[name], field), getattr(gap, field))


def test_the_table_says_in_words_what_colours_only_repeat() -> None:
    base, other = pair(np.random.default_rng(61), 8, gap=0.03)
    result = compare(base, other)
    text = str(result)
    assert text.startswith(f"{result.verdict}: 8 pairs of runs")
    assert "\x1b" not in text
    for name, gap in result.gaps.items():
        row = next(line for line in text.splitlines() if line.strip().startswith(name))
        assert gap.verdict in row
        assert f"{100 * gap.largest[0]:+.1f} % ±" in row
        assert str(gap.seeds_needed or "") in row
        assert str(gap).startswith(f"{name}: {gap.verdict}")
