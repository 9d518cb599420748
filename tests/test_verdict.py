"""Comparisons: that bands hold, that verdicts err as rarely as they say, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import astuple, replace

import numpy as np
import pytest
from scipy import stats

from rootscale.bands import averaged
from rootscale.gap import Gap, gaps
from rootscale.looks import LOOKS
from rootscale.pairing import Sample
from rootscale.stats import barnard_exact, binomial_limit, student_log_tail, student_of_log_tail, student_quantile
from rootscale.tolerance import parse_tolerance, tolerance_text
from rootscale.trajectory import Estimate, Trajectory
from rootscale.verdict import Absolute, Comparison, compare

PROGRESS = np.linspace(0.0, 1.0, 21)
TIMES = 1 + PROGRESS  # in mid-run: what is before the first step has no part in a comparison
CURVE = 1 - PROGRESS  # range 1
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
    common = rng.standard_normal((count, len(PROGRESS)))
    for name, scale in SCALES.items():
        steps = 0.8 * common + 0.6 * rng.standard_normal((count, len(PROGRESS)))
        steps[:, 0] = 0
        path = np.cumsum(steps, 1) / math.sqrt(len(PROGRESS) - 1)
        values[name] = scale * (CURVE + noise * path + share + gap * np.minimum(2 * PROGRESS, 1))
    return Trajectory(TIMES, values, meta={} if seeds is None else {"seeds": seeds})


def shared(rng: np.random.Generator, count: int) -> np.ndarray:
    return 0.3 * PROGRESS * rng.standard_normal((count, 1))


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


def pooled(se: np.ndarray) -> np.ndarray:
    """The slow oracle: the root of the mean square over up to two neighbours on either side that have a spread."""
    used = np.flatnonzero(se > 1e-6)
    found = se.copy()
    for t in used:
        near = [s for s in used if abs(int(s) - int(t)) <= 2]  # a tenth of 21 times
        found[t] = math.sqrt(sum(se[s] ** 2 for s in near) / len(near))
    return found


def test_the_gap_of_pairs_is_the_mean_difference_over_the_range_and_the_band_a_multiple_of_its_error() -> None:
    base, other = pair(np.random.default_rng(0), 8, gap=0.02)
    result = compare(base, other)
    assert result.paired
    assert result.seeds == (8, 8)
    for name in SCALES:
        found = result.gaps[name]
        width = np.ptp(base[name].mean)
        differences = (other.values[name] - base.values[name]) / width
        half = result.critical * pooled(differences.std(0, ddof=1) / math.sqrt(8))
        assert found.range == pytest.approx(width, rel=1e-12)
        np.testing.assert_allclose(found.gap, differences.mean(0), atol=1e-12)
        np.testing.assert_allclose(found.high - found.gap, half, atol=1e-12)
        np.testing.assert_allclose(found.gap - found.low, half, atol=1e-12)
        assert np.all(found.margin[1:] < half[1:])


def test_the_band_of_independent_runs_has_welchs_error() -> None:
    rng = np.random.default_rng(1)
    base, other = runs(rng, 9, seeds=list(range(9))), runs(rng, 6, noise=0.2, seeds=list(range(50, 56)))
    result = compare(base, other)
    assert not result.paired
    assert result.seeds == (6, 9)
    for name in SCALES:
        found, error = result.gaps[name], np.hypot(base[name].se, other[name].se)
        np.testing.assert_allclose(found.gap * found.range, other[name].mean - base[name].mean, atol=1e-12)
        half = result.critical * pooled(error)
        np.testing.assert_allclose((found.high - found.gap) * found.range, half, atol=1e-12)


@pytest.mark.parametrize("count", [4, 5, 8, 40])
def test_one_function_at_one_time_gets_students_quantile(count) -> None:
    rng = np.random.default_rng(2)
    seeds = {"seeds": list(range(count))}
    base = Trajectory(np.array([1.0, 2.0]), {"loss": np.array([1.0, 0.0]) + np.zeros((count, 1))}, meta=seeds)
    noise = rng.standard_normal((count, 1)) * np.array([0.0, 0.1])
    other = Trajectory(base.times, {"loss": base.values["loss"] + noise}, meta=seeds)
    result = compare(base, other, resamples=100_000, looks="once")
    assert result.critical == pytest.approx(stats.t.ppf(0.975, count - 1), rel=0.02)
    found = result.gaps["loss"]
    each = result.critical * found.margin[1] / (found.high - found.gap)[1]
    assert each == pytest.approx(stats.t.ppf(0.95, count - 1), rel=0.02)


def test_the_band_has_no_width_where_all_runs_are_alike() -> None:
    base, other = pair(np.random.default_rng(3), 6)
    for found in compare(base, other).gaps.values():
        assert found.gap[0] == found.low[0] == found.high[0] == 0
        assert np.all(found.high[1:] > found.low[1:])


def test_rounding_noise_at_the_start_does_not_enter_the_critical_value() -> None:
    rng = np.random.default_rng(4)
    base, other = pair(rng, 8)
    noisy = {
        name: v + np.where(PROGRESS == 0, 1e-9 * rng.standard_normal((8, 1)), 0) for name, v in other.values.items()
    }
    assert compare(base, with_values(other, **noisy)).critical == pytest.approx(compare(base, other).critical, rel=1e-9)


def test_identical_runs_are_the_same() -> None:
    base, _ = pair(np.random.default_rng(5), 4)
    result = compare(base, base)
    assert result.verdict == "same"
    assert result.settled_after == 1
    assert astuple(result.gaps["loss"].largest) == (0, 0, 0, 0, 1)


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


# --- error rates; the tables for many more processes are in results/verdict/bands.txt, made by benchmarks/bands.py


def holds(result: Comparison, gap: float) -> bool:
    """Whether the bands hold the true gap everywhere."""
    return all(
        bool(np.all((g.low * g.range <= truth + 1e-12) & (truth <= g.high * g.range + 1e-12)))
        for g in result.gaps.values()
        for truth in [gap * SCALES[g.name] * np.minimum(2 * PROGRESS, 1)]
    )


@pytest.mark.parametrize(
    ("count", "against", "noise"),
    [(5, None, 0.05), (8, None, 0.05), (16, None, 0.05), (8, 8, 0.05), (8, 12, 0.25)],
    ids=["5 pairs", "8 pairs", "16 pairs", "8 and 8", "8 and 12, unequal noise"],
)
def test_bands_hold_the_true_gap_at_all_times_and_functions_in_95_of_100_cases(count, against, noise) -> None:
    rng = np.random.default_rng((count, against or 0))
    repeats, hits = 300, 0
    for _ in range(repeats):
        if against is None:
            base, other = pair(rng, count, gap=0.1)
        else:
            base, other = runs(rng, against), runs(rng, count, noise=noise, gap=0.1)
        found = compare(base, other, resamples=400, tolerance=10.0, looks="once")  # decided: no search for seeds
        hits += holds(found, 0.1)
    error = math.sqrt(0.95 * 0.05 / repeats)
    assert 0.95 - 3 * error < hits / repeats < 0.95 + 3.5 * error


@pytest.mark.parametrize("paired", [True, False])
def test_null_pairs_are_called_different_in_at_most_5_of_100_cases_at_any_tolerance(paired) -> None:
    rng = np.random.default_rng(20)
    repeats, wrong = 400, 0
    for _ in range(repeats):
        base, other = pair(rng, 8) if paired else (runs(rng, 8), runs(rng, 8))
        # The smallest tolerance there is makes every band without zero "different": the worst case.
        wrong += compare(base, other, resamples=400, tolerance=1e-9, looks="once").verdict == "different"
    assert wrong / repeats < 0.05 + 3 * math.sqrt(0.05 * 0.95 / repeats)


@pytest.mark.parametrize("count", [3, 8])
@pytest.mark.parametrize(("size", "times"), [(2, [12]), (1, range(9, 16))], ids=["one time", "a window"])
def test_a_gap_on_the_edge_is_called_the_same_in_at_most_5_of_100_cases(count, size, times) -> None:
    """The worst cases of "same": twice the tolerance at a single time, and the tolerance for as long as is averaged."""
    rng, wrong, repeats = np.random.default_rng(23), 0, 150
    for _ in range(repeats):
        base, other = pair(rng, count, noise=0.01)
        at = SCALES["loss"] * size * 0.05 * np.ptp(base["loss"].mean) * np.isin(np.arange(len(TIMES)), list(times))
        wrong += compare(base, with_values(other, loss=other.values["loss"] + at), ["loss"], resamples=400,
                         looks="once").verdict == "same"  # fmt: skip
    assert wrong / repeats < 0.05 + 3 * math.sqrt(0.05 * 0.95 / repeats)


def late(rng: np.random.Generator, size: float) -> tuple[Trajectory, Trajectory]:
    """Pairs whose gap is that many tolerances at the last time, and none before; new scatter at every time."""
    noise = 0.01 * rng.standard_normal((4, len(TIMES)))
    at = np.zeros(len(TIMES))
    at[-1] = size * 0.05
    seeds = {"seeds": list(range(4))}
    curve = np.broadcast_to(CURVE, noise.shape)
    return Trajectory(TIMES, {"loss": curve}, meta=seeds), Trajectory(TIMES, {"loss": curve + at + noise}, meta=seeds)


@pytest.mark.parametrize("over", ["curve", "end"])
@pytest.mark.parametrize("size", [1.01, 1.4, 1.8])
def test_a_gap_at_the_end_alone_is_not_the_same(size, over) -> None:
    rng = np.random.default_rng(28)
    verdicts = [compare(*late(rng, size), looks="once", over=over, resamples=400).verdict for _ in range(100)]
    assert verdicts.count("same") / 100 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 100)


def test_a_judge_of_the_end_does_not_ask_for_the_way() -> None:
    rng = np.random.default_rng(29)
    base, other = pair(rng, 8, noise=0.002)
    way = other.values["loss"] + 0.5 * (np.arange(len(TIMES)) == 8)
    bump = with_values(other, loss=way)
    assert compare(base, bump).verdict == "different"
    found = compare(base, bump, over="end")
    assert (found.verdict, found.end, found.seeds_needed) == ("same", "same", None)
    assert compare(*pair(rng, 8, gap=0.2, noise=0.002), over="end").verdict == "different"
    assert Comparison.from_dict(json.loads(json.dumps(found.to_dict()))).over == "end"


def test_two_pairs_share_the_error_among_the_functions_that_decide() -> None:
    """A single deviation is one direction: all functions look like one, and each gets a third of the error."""
    rng, seeds = np.random.default_rng(11), {"seeds": [0, 1]}
    base = Trajectory(TIMES[:2], {name: np.array([[1.0, 0.0]] * 2) for name in SCALES}, meta=seeds)
    noise = {name: base.values[name] + rng.standard_normal((2, 1)) * [0.0, 0.1] for name in SCALES}
    result = compare(base, Trajectory(TIMES[:2], noise, meta=seeds), resamples=100_000, looks="once")
    assert result.critical == pytest.approx(stats.t.ppf(1 - 0.05 / 6, 1), rel=0.05)


def test_scatter_that_is_new_at_every_time_is_averaged_away_and_scatter_that_lasts_is_not() -> None:
    rng, found = np.random.default_rng(27), {}
    for name, shape in (("new", (8, len(TIMES))), ("lasting", (8, 1))):
        verdicts = []
        for _ in range(20):
            base, _ = pair(rng, 8)
            noise = 0.05 * SCALES["loss"] * rng.standard_normal(shape)
            verdicts.append(compare(base, with_values(base, loss=base.values["loss"] + noise), ["loss"], resamples=400))
        found[name] = [bool(one.gaps["loss"].within(0.05)[:-1].all()) for one in verdicts].count(True)
        found[f"{name}, end"] = [one.end for one in verdicts].count("same")
    assert found["new"] > 14 > 7 > found["lasting"], found
    assert found["new, end"] < 8, found  # the last time stands for itself


def test_a_run_is_averaged_over_the_times_before_it_diverged() -> None:
    values = np.array([[[1.0, 2.0, 3.0, 4.0, 50.0, 60.0, 7.0, 8.0, 9.0, 10.0]], [[0.0] * 10]])
    lost = np.zeros((2, 10), bool)
    lost[0, 4:] = True
    found = averaged(Sample.of(values, lost), np.ones((1, 10), bool))
    assert (found.mean + found.deviations)[0, 0, :4].tolist() == [1.5, 2.0, 3.0, 3.5]  # the neighbours, and itself
    assert found.count.tolist() == [2] * 4 + [1] * 6
    untouched = averaged(Sample.of(values, lost), np.zeros((1, 10), bool))
    assert (untouched.mean + untouched.deviations)[0, 0, :4].tolist() == [1, 2, 3, 4]


def test_adding_seeds_one_by_one_until_it_is_decided_errs_in_at_most_5_of_100_cases() -> None:
    rng, repeats, wrong = np.random.default_rng(24), 80, {"any": 0, "once": 0}
    for _ in range(repeats):
        base, other = pair(rng, 12)
        for looks in wrong:
            verdicts = (
                compare(*(part(one, n) for one in (base, other)), ["loss"], resamples=300, tolerance=1e-9, looks=looks)
                for n in (2, 3, 4, 5, 6, 7, 8, 10, 12)
            )
            wrong[looks] += any(found.verdict == "different" for found in verdicts)
    assert wrong["any"] / repeats < 0.05 + 3 * math.sqrt(0.05 * 0.95 / repeats)
    assert wrong["once"] > 2 * wrong["any"], wrong  # which is what it is for


def part(trajectory: Trajectory, count: int) -> Trajectory:
    """The first runs alone."""
    values = {name: value[:count] for name, value in trajectory.values.items()}
    return Trajectory(trajectory.times, values, meta={"seeds": trajectory.meta["seeds"][:count]})


@pytest.mark.parametrize(("looks", "numbers"), [("any", range(2, 400)), ("doubling", [2, 4, 8, 16, 32, 64, 128, 256])])
def test_the_looks_together_spend_the_error(looks, numbers) -> None:
    """Student's statistic of a growing sample crosses its quantiles, at what each look may spend, in 5 % of cases."""
    rng, repeats, ns = np.random.default_rng(25), 4000, np.arange(2, 400)
    x = rng.standard_normal((repeats, 399))
    sums, squares = x.cumsum(1)[:, 1:], (x**2).cumsum(1)[:, 1:]
    t = sums / np.sqrt(ns * (squares - sums**2 / ns) / (ns - 1))
    spent = np.array([LOOKS[looks](int(n)) for n in ns])
    crossed = (t > stats.t.ppf(1 - 0.05 * spent, ns - 1))[:, np.isin(ns, list(numbers))].any(1).mean()
    assert 0.035 < crossed < 0.05 + 3 * math.sqrt(0.05 * 0.95 / repeats)


def test_few_seeds_decide_what_is_plain() -> None:
    rng = np.random.default_rng(26)
    for count in (3, 4):
        plain = [compare(*pair(rng, count, gap=0.6, noise=0.02), resamples=400).verdict for _ in range(40)]
        assert plain.count("different") >= 36
        alike = [compare(*pair(rng, count, noise=0.002), resamples=400).verdict for _ in range(40)]
        assert alike.count("same") >= 36


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
    return Gap("loss", np.arange(len(a), dtype=float), (a + b) / 2, (b - a) / 6, 2.0, a, b, verdict, needed)


def test_the_band_decides() -> None:
    rng = np.random.default_rng(30)
    base, other = pair(rng, 16, gap=0.03, noise=0.002)
    assert compare(base, other).verdict == "same"
    assert compare(base, other, tolerance=0.01).verdict == "different"
    on = abs(compare(base, other).gaps["loss"].largest.gap)
    assert compare(base, other, ["loss"], tolerance=on).verdict == "undecided"
    for tolerance in (0.01, on, 0.05):
        for found in compare(base, other, tolerance=tolerance).gaps.values():
            expected = (
                "different" if found.outside(tolerance).any()
                else "same" if found.within(tolerance).all() else "undecided"
            )  # fmt: skip
            assert found.verdict == expected


def test_what_is_shown_of_a_different_gap_is_a_band_that_lies_outside() -> None:
    wide, narrow = (-0.8, 1.2), (0.06, 0.24)  # the gap of the first is larger, that of the second is sure
    a, b = np.array([wide, narrow]).T
    gap = Gap("loss", np.arange(2.0), (a + b) / 2, (b - a) / 6, 2.0, a, b, "different")
    assert gap.largest.gap == pytest.approx(0.2)
    assert astuple(gap.judged)[0::2][:2] == pytest.approx((0.15, 0.06))
    other = replace(gap, name="test loss", gap=gap.gap + 1, verdict="undecided")
    both = Comparison({"loss": gap, "test loss": other}, 0.05, 0.95, (4, 4), True)
    assert both.worst is gap


def test_one_different_function_makes_all_different_and_one_undecided_prevents_the_same() -> None:
    def whole(*verdicts: str) -> str:
        gaps = {str(i): gap_of([0.0], [0.0], verdict) for i, verdict in enumerate(verdicts)}
        return Comparison(gaps, 0.05, 0.95, (8, 8), True).verdict

    assert whole("same", "same") == "same"
    assert whole("same", "undecided") == "undecided"
    assert whole("undecided", "different", "same") == "different"


def test_largest_within_outside_and_settled_after() -> None:
    found = gap_of([-0.02, 0.06, -0.3, -0.04, 0.0], [0.0, 0.08, -0.2, 0.06, 0.05])
    assert astuple(found.largest) == pytest.approx((-0.25, 0.1 / 6, -0.3, -0.2, 2.0))
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
        assert (abs(found.gaps["loss"].largest.gap) > 0.05) == (gap > 0)

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
        exact = base.values[name] + shift - shift.mean(0) + 0.05 * np.ptp(base[name].mean) * (PROGRESS > 0)
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


@pytest.mark.parametrize("nu", [1, 3, 7, 15, 63, 4000])
def test_students_tail_and_quantile_are_scipys(nu) -> None:
    for t in (0.5, 2.0, 6.0, 30.0):
        expected = math.log(2) + stats.t.logsf(t, nu)
        if expected > -50:
            assert student_log_tail(t, nu) == pytest.approx(expected, rel=1e-5)
    for tail in (0.05, 1e-3, 1e-6):
        assert student_of_log_tail(math.log(tail), nu) == pytest.approx(stats.t.isf(tail / 2, nu), rel=1e-5)
    assert student_quantile(nu) == pytest.approx(stats.t.ppf(0.975, nu), rel=1e-5)
    assert student_quantile(nu, 0.6) == pytest.approx(stats.t.ppf(0.6, nu), rel=1e-4)


def test_the_limit_of_a_rate_is_clopper_and_pearsons() -> None:
    for events, trials in ((0, 200), (1, 200), (7, 10), (150, 400)):
        expected = stats.beta.ppf(0.95, events + 1, trials - events)
        assert binomial_limit(events, trials) == pytest.approx(expected, rel=1e-9)
    assert binomial_limit(0, 200) == pytest.approx(0.0149, abs=5e-5)
    assert binomial_limit(5, 5) == 1


# --- divergence


def test_barnards_test_is_scipys() -> None:
    for a, n, b, m in ((3, 8, 0, 8), (5, 8, 0, 8), (1, 6, 7, 9), (0, 4, 0, 4), (4, 16, 2, 5), (4, 4, 0, 4)):
        expected = stats.barnard_exact([[a, b], [n - a, m - b]]).pvalue
        assert barnard_exact((a, b), (n, m)) == pytest.approx(expected, rel=1e-4)


def test_more_divergence_on_one_side_prevents_the_same() -> None:
    base, other = pair(np.random.default_rng(40), 8, noise=0.001)
    assert compare(base, other).verdict == "same"
    result = compare(base, diverge(other, 2))
    assert result.diverged == (2, 0)
    assert {gap.verdict for gap in result.gaps.values()} == {"same"}
    assert result.verdict == "undecided"
    needed_of = {"any": 32, "once": 16}
    for looks, level in (("any", 0.05 / 6), ("once", 0.05)):
        needed, lost = compare(base, diverge(other, 2), looks=looks).seeds_needed, round(needed_of[looks] / 4)
        assert needed == needed_of[looks]
        assert stats.barnard_exact([[lost, 0], [needed - lost, needed]]).pvalue < level
    assert "2 of 8 runs of the other and 0 of 8 of the base diverged" in result.notes[0]


def test_four_of_four_runs_that_diverge_are_different_and_three_of_three_are_forecast() -> None:
    base, other = pair(np.random.default_rng(40), 4, noise=0.001)
    assert compare(base, diverge(other, 4)).verdict == "different"  # p = 2 / 2^8, and a look may spend 0.05 / 6
    assert compare(diverge(base, 4), other).verdict == "different"
    assert compare(base, diverge(other, 3)).verdict == "undecided"
    three = pair(np.random.default_rng(40), 3, noise=0.001)
    result = compare(three[0], diverge(three[1], 3))
    assert (result.verdict, result.seeds_needed) == ("undecided", 4)


def test_much_more_divergence_on_one_side_is_different() -> None:
    base, other = pair(np.random.default_rng(41), 12, noise=0.001)
    for result in (compare(base, diverge(other, 8)), compare(diverge(base, 8), other)):
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
    assert "11 of 21 times, from t = 1.5 on, are not judged" in result.notes[0]
    text = json.dumps(result.to_dict(), allow_nan=False)
    np.testing.assert_array_equal(Comparison.from_dict(json.loads(text)).gaps["loss"].gap, found.gap)


def test_a_comparison_whose_other_runs_all_diverged_at_once_is_different() -> None:
    base, other = pair(np.random.default_rng(46), 8)
    result = compare(base, diverge(other, 8, since=0))
    assert result.verdict == "different"
    assert math.isnan(result.gaps["loss"].largest.gap)
    assert "largest gap – of the base curve's range" in str(result)


# --- the window: what comes before the first step


def spiked(start: float, above: float = 0.0, **meta) -> Trajectory:
    """Eight runs from scratch: ``start`` at t = 0, then 1.0 to 0.11, plus ``above``."""
    rng = np.random.default_rng(0)
    loss = np.append(start, np.linspace(1.0, 0.11, 20) + above)
    noise = 1e-3 * rng.standard_normal((8, 21)) * (PROGRESS > 0)
    return Trajectory(PROGRESS, {"loss": loss + noise}, meta={"seeds": list(range(8)), **meta})


@pytest.mark.parametrize("start", [2.3, 50.0, 3000.0, -40.0])
def test_a_loss_before_the_first_step_does_not_widen_the_range(start) -> None:
    result = compare(spiked(start), spiked(start, above=0.8))
    found = result.gaps["loss"]
    assert result.verdict == "different"
    assert found.range == pytest.approx(0.89, abs=2e-3)
    assert found.largest.gap == pytest.approx(0.8 / 0.89, abs=5e-3)
    assert compare(spiked(start), spiked(start, above=0.06)).verdict == "different"
    assert found.times[0] == PROGRESS[1]  # nor is it compared


def test_a_start_in_mid_run_is_a_state_of_training_and_counts() -> None:
    samples = {"samples": [100 * (i + 7) for i in range(21)]}
    found = compare(spiked(2.0, **samples), spiked(2.0, above=0.8, **samples)).gaps["loss"]
    assert found.range == pytest.approx(2.0 - 0.11, abs=2e-3)
    assert found.times[0] == 0
    scratch = {"samples": [100 * i for i in range(21)]}
    assert compare(spiked(2.0, **scratch), spiked(2.0, **scratch)).gaps["loss"].times[0] == PROGRESS[1]


def test_starts_of_independent_runs_from_scratch_are_not_judged() -> None:
    wild = 3000 + 300 * np.random.default_rng(1).standard_normal((2, 8))
    made = []
    for i, starts in enumerate(wild):
        values = spiked(0.0).values["loss"].copy()
        values[:, 0] = starts
        made.append(Trajectory(PROGRESS, {"loss": values}, meta={"seeds": list(range(8 * i, 8 * i + 8))}))
    assert compare(*made).verdict == "same"


def test_where_one_time_follows_the_start_the_start_counts() -> None:
    times = np.array([0.0, 1.0])
    base, other = (Trajectory(times, {"loss": np.array([[2.0, end]])}) for end in (1.0, 1.5))
    assert gaps(base, other)["loss"].largest.gap == 0.5


def test_a_longer_window_may_give_the_unit() -> None:
    whole = Trajectory(np.arange(4.0), {"loss": np.array([[9.0, 5.0, 2.0, 1.0]])})
    base, other = (Trajectory(np.array([2.0, 3.0]), {"loss": np.array([[2.0, end]])}) for end in (1.0, 1.4))
    assert gaps(base, other)["loss"].largest.gap == pytest.approx(0.4)
    assert gaps(base, other, whole=whole)["loss"].largest.gap == pytest.approx(0.1)


def test_the_noise_scale_has_no_gap_unless_it_is_asked_for() -> None:
    base, other = pair(np.random.default_rng(58), 8)
    base, other = (with_values(one, **{"noise scale": one.values["loss"]}) for one in (base, other))
    assert "noise scale" not in compare(base, other).gaps
    assert list(gaps(base, other, ["noise scale"])) == ["noise scale"]


# --- seeds that overlap, and what is refused


def test_common_seeds_are_paired_and_others_left_out() -> None:
    base, other = pair(np.random.default_rng(50), 8)
    moved = Trajectory(TIMES, other.values, meta={"seeds": [0, 1, 2, 3, 4, 95, 96, 97]})
    result = compare(base, moved)
    assert (result.paired, result.seeds) == (True, (5, 5))
    assert result.notes == ("paired by the 5 seeds that both have; 6 runs with other seeds were left out",)
    few = compare(base, Trajectory(TIMES, other.values, meta={"seeds": [0, 1, 2, 93, 94, 95, 96, 97]}))
    assert (few.paired, few.seeds, few.verdict) == (True, (3, 3), "undecided")
    assert few.notes == ("paired by the 3 seeds that both have; 10 runs with other seeds were left out",)


@pytest.mark.parametrize("seeds", [[0, 1, 2], [0, 1, 2, 3, 4, 5, 6, 6]])
def test_seeds_must_be_one_a_run_and_different(seeds) -> None:
    base, other = pair(np.random.default_rng(51), 8)
    with pytest.raises(ValueError, match="one seed for each of the 8 runs of the other"):
        compare(base, Trajectory(TIMES, other.values, meta={"seeds": seeds}))


@pytest.mark.parametrize("counts", [(1, 1), (8, 1)])
def test_a_single_run_has_the_same_gap_and_no_verdict(counts) -> None:
    rng = np.random.default_rng(52)
    base, other = runs(rng, counts[0]), runs(rng, counts[1], gap=0.3)
    result = compare(base, other)
    assert (result.verdict, result.critical, result.seeds_needed) == (None, None, None)
    for name, found in result.gaps.items():
        expected = (other[name].mean - base[name].mean) / np.ptp(base[name].mean)
        np.testing.assert_allclose(found.gap, expected, atol=1e-12)
        np.testing.assert_allclose(found.se * found.range, np.hypot(base[name].se, other[name].se), atol=1e-12)
        assert np.isnan(found.low).all()
        assert (found.verdict, found.seeds_needed) == (None, None)
    assert str(result).startswith("not judged: ")
    again = Comparison.from_dict(json.loads(json.dumps(result.to_dict(), allow_nan=False)))
    assert again.to_dict() == result.to_dict()


def test_other_times_are_refused_with_both_grids() -> None:
    base, other = pair(np.random.default_rng(53), 8)
    moved = Trajectory(TIMES * 2, other.values)
    with pytest.raises(ValueError, match="21 times from 1 to 2 for the base and 21 times from 2 to 4 for the other"):
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
    flat = np.full((8, len(PROGRESS)), 0.1) + 1e-10 * PROGRESS
    both = compare(with_values(base, flat=flat), with_values(other, flat=flat))
    assert list(both.gaps) == list(SCALES)
    assert both.notes == ("left out, as the base's mean curve is flat and has no range: flat",)
    with pytest.raises(ValueError, match=r"mean curve of 'flat' is flat.*leave 'flat' out of functions"):
        compare(with_values(base, flat=flat), with_values(other, flat=flat), ["flat", "loss"])
    with pytest.raises(ValueError, match="mean curve of 'flat' is flat"):
        compare(with_values(base, flat=flat), with_values(other, flat=flat + 0.1 * PROGRESS))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"tolerance": 0.0}, "need a tolerance above 0 and a level between 0 and 1, got 0.0 and 0.95"),
        ({"level": 1.0}, "need a tolerance above 0 and a level between 0 and 1, got 0.05 and 1.0"),
        ({"resamples": 10}, "need at least 100 resamples, got 10"),
        ({"looks": "often"}, "looks must be one of any, doubling, once, got 'often'"),
        ({"tolerance": Absolute(-1.0)}, "need a tolerance above 0 and a level between 0 and 1, got -1.0 and 0.95"),
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
        for field in ("times", "gap", "se", "low", "high", "margin", "local", "single"):
            np.testing.assert_array_equal(getattr(after.gaps[name], field), getattr(gap, field))


def test_a_comparison_as_text_has_a_line_for_each_function() -> None:
    base, other = pair(np.random.default_rng(61), 8, gap=0.03)
    result = compare(base, other)
    text = str(result)
    assert text.startswith(
        f"{result.verdict}: 8 pairs of runs, tolerance 5 % of the base curve's range; 95 % sure, however often you look"
    )
    for name, gap in result.gaps.items():
        row = next(line for line in text.splitlines() if line.strip().startswith(name))
        assert str(gap) in row
        assert str(gap).startswith(f"{name}: {gap.verdict}")
        own = gap.in_own_unit(gap.judged.gap)
        assert f"largest gap {100 * gap.judged.gap:+.1f} % ({own}) of the base curve's range (" in row
        assert float(gap.in_own_unit(gap.judged.gap)) == pytest.approx(gap.judged.gap * gap.range, rel=0.01)
        assert gap.span[1] - gap.span[0] == gap.range == np.ptp(base[name].mean)
        assert str(gap.seeds_needed or "") in row


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"gaps": None}, "missing: 'gaps'"),
        ({"seeds": [8]}, "seeds and diverged of a comparison must be two numbers each"),
        ({"gaps": [3]}, "a gap must be a JSON object, got int"),
        ({"gaps": [{"name": "loss"}]}, "missing: 'times', 'gap', 'low', 'high', 'range', 'verdict'"),
    ],
)
def test_a_record_with_wrong_content_is_refused_by_name(change, told) -> None:
    record = compare(*pair(np.random.default_rng(62), 8)).to_dict() | change
    with pytest.raises(ValueError, match=told):
        Comparison.from_dict({key: value for key, value in record.items() if value is not None})


def test_curves_of_unequal_length_are_refused() -> None:
    record = compare(*pair(np.random.default_rng(63), 8)).gaps["loss"].to_dict()
    with pytest.raises(ValueError, match="the curves of the gap of 'loss' must have one length"):
        Gap.from_dict(record | {"low": [0.0]})


def test_records_from_before_standard_errors_were_kept_are_read() -> None:
    record = compare(*pair(np.random.default_rng(64), 8)).gaps["loss"].to_dict()
    before = Gap.from_dict({key: value for key, value in record.items() if key != "se"})
    assert np.isnan(before.se).all()
    np.testing.assert_array_equal(before.gap, np.array(record["gap"]))


def test_records_with_one_band_for_both_verdicts_are_read_as_they_were_judged() -> None:
    record = compare(*pair(np.random.default_rng(65), 8)).to_dict()
    old = {key: value for key, value in record.items() if key != "looks"}
    new = ("margin", "local", "single")
    old["gaps"] = [{key: value for key, value in gap.items() if key not in new} for gap in record["gaps"]]
    read = Comparison.from_dict(old)
    assert read.looks == "once"
    for gap in read.gaps.values():
        np.testing.assert_allclose(gap.margin, gap.high - gap.gap, atol=1e-15)


# --- a tolerance in the user's terms


def test_an_absolute_tolerance_is_that_share_of_the_range() -> None:
    base, other = pair(np.random.default_rng(70), 8, gap=0.03)
    width = float(np.ptp(base["norm"].mean))
    absolute = compare(base, other, ["norm"], tolerance=Absolute(0.05 * width, "norm"))
    share = compare(base, other, ["norm"])
    assert absolute.limit(absolute.gaps["norm"]) == pytest.approx(0.05)
    assert {**absolute.to_dict(), "tolerance": 0} == {**share.to_dict(), "tolerance": 0}
    assert Comparison.from_dict(json.loads(json.dumps(absolute.to_dict()))).tolerance == absolute.tolerance
    assert f"tolerance {0.05 * width:.6g} (norm)" in str(absolute)


def test_a_tolerance_says_nothing_about_functions_of_another_kind() -> None:
    base, other = pair(np.random.default_rng(71), 8)
    result = compare(base, other, tolerance=Absolute(0.5, "loss"), deciding=["loss"])
    assert result.verdict == "same"
    assert result.gaps["accuracy"].verdict is None
    with pytest.raises(ValueError, match=r"a tolerance of 0.5 loss says nothing about 'norm', on which the verdict"):
        compare(base, other, tolerance=Absolute(0.5, "loss"), deciding=["norm"])


@pytest.mark.parametrize("text", ["", "much", "-0.05", "0.02 train loss", "nan", "0"])
def test_what_is_no_tolerance_is_refused_with_what_is(text) -> None:
    with pytest.raises(ValueError, match=r"a tolerance is a share .* '0.5 points' of an accuracy"):
        parse_tolerance(text)


def test_tolerances_as_text() -> None:
    assert parse_tolerance("1 points") == Absolute(0.01, "accuracy")
    assert tolerance_text(Absolute(0.02)) == "0.02 in the units of the test function"


def test_followed_functions_do_not_widen_the_band_of_those_that_decide() -> None:
    base, other = pair(np.random.default_rng(72), 8, gap=0.02)
    alone, with_others = compare(base, other, ["loss"]), compare(base, other, deciding=["loss"])
    np.testing.assert_allclose(with_others.gaps["loss"].high, alone.gaps["loss"].high, rtol=1e-12)
    assert with_others.critical < compare(base, other).critical
