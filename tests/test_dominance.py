"""Where noise dominates: one definition, whoever says it."""

from __future__ import annotations

import numpy as np
import pytest

from rootscale.noise import NOISE_SCALE, Dominance, noise_cause, scale_curve
from rootscale.trajectory import Trajectory


def run(scales, samples=None, seeds: int = 1) -> Trajectory:
    values = np.tile(np.array(scales, float), (seeds, 1))
    samples = [100 * (i + 1) for i in range(values.shape[1])] if samples is None else samples
    return Trajectory(np.arange(1.0, values.shape[1] + 1), {NOISE_SCALE: values}, meta={"samples": samples})


def dominance(scales, size: float, measured_on: float = 2048) -> Dominance:
    return Dominance(scale_curve(run(scales)), size, measured_on)


@pytest.mark.parametrize(
    ("scales", "where", "share"),
    [
        ([20, 30, 40, 50], "noise dominates all along", 1.0),
        ([5, 10, 40, 50], "noise dominates from 300 samples on, not before", 0.5),
        ([5, 10, 9, 8], "noise dominates nowhere", 0.0),
        ([5, 20, 30, 8], "noise dominates at 2 of 4 times, not at the end", 0.5),
    ],
)
def test_noise_dominates_where_the_noise_scale_is_above_the_batch(scales, where, share) -> None:
    found = dominance(scales, 10)
    assert found.where == where
    assert found.share == (share, share)
    assert found.dominates.tolist() == [scale > 10 for scale in scales]


def test_no_gradient_is_beyond_what_was_measured() -> None:
    scales = [5000, 1e12, 1e12, 9000]
    assert dominance(scales, 1000).where == "noise dominates all along"  # above 2,048, hence above 1,000
    large = dominance(scales, 4096)
    assert large.share == (0.5, 1.0)
    assert large.where == "noise dominates all along (where no gradient was seen, that is beyond what was measured)"
    assert dominance([1e12] * 3, 4096).where.startswith("noise dominates nowhere for sure (where no gradient was seen")


def test_the_scale_is_the_median_of_the_seeds_that_have_not_diverged() -> None:
    values = np.array([[10.0, 10, 10], [20, 20, np.nan], [1e14, 30, np.nan]])
    curve = scale_curve(Trajectory(np.arange(3.0), {NOISE_SCALE: values}, meta={"samples": [0, 4, 8]}))
    assert curve.middle.tolist() == [20, 20, 10]
    assert curve.clock.tolist() == [0, 4, 8]
    gone = scale_curve(run([10, np.nan, np.nan, np.nan]))
    assert Dominance(gone, 5, 2048).share is None  # of one time there is no share
    assert scale_curve(Trajectory(np.arange(2.0), {"loss": np.ones((1, 2))}), None) is None


def test_parts_of_a_run_are_one_curve() -> None:
    curve = scale_curve(run([1, 2], [0, 10]), run([3, 4], [20, 30]))
    assert curve.clock.tolist() == [0, 10, 20, 30]
    assert curve.middle.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("scales", [[5, 10, 40, 50], [35, 20, 60, 70], [5, 6, 7, 8]])
def test_a_cause_says_what_the_plot_says_and_where_it_is_worst(scales) -> None:
    found = dominance(scales, 10)
    (cause,) = noise_cause(run(scales), 10, 2048)
    assert cause.startswith(found.where)
    worst = int(np.argmin(scales))
    assert f"after {100 * (worst + 1)} samples the noise scale is {scales[worst]} (median of the seeds" in cause
    assert cause.endswith("and the batch is 10")
    assert ("by a factor of only" in cause) == (min(scales) > 10)


def test_noise_that_dominates_by_far_is_no_cause() -> None:
    assert noise_cause(run([40, 50, 60]), 10, 2048) == []
    assert noise_cause(Trajectory(np.arange(2.0), {"loss": np.ones((1, 2))}), 10, 2048) == []
