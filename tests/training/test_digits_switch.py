"""Real data, real training: a switch of batch size in mid-run keeps the loss curve, and half-measures do not.

The problems are those of experiments/digits_switch.py, here in a live loop.
"""

import pytest
from digits_replicas import Run, curve, largest_gap

from rootscale import ScalingWarning

# The check on digits in tests/lab/test_check.py shows the same in less time, for the plain problem.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::rootscale.ScalingWarning")]

PLAIN = {"batch": 4}
WITH_BATCHNORM = {"batch": 32, "lr": 1e-3, "betas": (0.98, 0.998), "batchnorm": 0.02}
WITH_EMA = {"batch": 4, "ema": 0.999}
#: Samples before the switch, and by batch size after it: enough for what is left out to show, fewer than in the
#: experiment.
WARM = {4: 8_000, 32: 12_000}
SAMPLES = {4: 7_680, 32: 30_720}

# problem, what is done wrong at the switch, by how many times its gap exceeds that of rescale_ at least
WRONG = [
    (PLAIN, {"rule": "sqrt-eta"}, 8),
    (PLAIN, {"rule": "linear"}, 6),
    (PLAIN, {"state": False}, 4),
    (WITH_BATCHNORM, {"model": None}, 4),
    (WITH_EMA, {"ema": None}, 20),
]


@pytest.fixture(scope="module")
def problems():
    """The warm start, the curve of the run that goes on as it was, and the gap of the one that is switched."""
    made = []
    for settings in (PLAIN, WITH_BATCHNORM, WITH_EMA):
        batch = settings["batch"]
        start, samples = Run(**settings, warm=WARM[batch]), SAMPLES[batch]
        base = curve(start, 1, [1], samples)
        made.append((settings, start, base, largest_gap(base, curve(start, 2, [4, 4], samples))))
    return made


def of(problems, settings):
    return next(rest for known, *rest in problems if known is settings)


@pytest.mark.parametrize("settings", [PLAIN, WITH_BATCHNORM, WITH_EMA], ids=["plain", "batchnorm", "ema"])
def test_the_switched_run_stays_within_six_percent_of_the_range(problems, settings):
    _, _, switched = of(problems, settings)
    print(f"gap {switched:.4f}")
    assert switched < 0.06


@pytest.mark.parametrize(
    ("settings", "wrong", "factor"), WRONG, ids=["lr only", "linear", "no state", "no BN", "no EMA"]
)
def test_what_is_left_out_shows(problems, settings, wrong, factor):
    start, base, switched = of(problems, settings)
    left_out = largest_gap(base, curve(start, 2, [4, 4], SAMPLES[settings["batch"]], **wrong))
    print(f"gap {left_out:.4f}, {left_out / switched:.1f} times that of rescale_")
    assert left_out > factor * switched


def test_linear_on_adam_is_warned_about():
    with pytest.warns(ScalingWarning, match="'linear' does not keep the dynamics of adam; the one that does is 'sqrt'"):
        curve(Run(warm=40, replicas=1), 0, [2], 480, rule="linear")
