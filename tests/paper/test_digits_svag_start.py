"""The experiment whose outcome over 16 seeds is in results/digits-svag-start.json."""

import pytest

from rootscale.paper.experiments import digits_svag_start as experiment

pytestmark = pytest.mark.slow


def test_svag_follows_the_run_from_mid_run_and_not_from_the_start():
    for starts in experiment.measure(seeds=4).values():
        first, middle = (starts[start]["4"][0] for start in experiment.STARTS)
        assert first > 0.1
        assert middle < 0.05
