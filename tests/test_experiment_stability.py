"""The study of beta1: which runs it makes, and how the measured value is limited."""

from pathlib import Path

import numpy as np
import pytest

from rootscale.files import load_file
from rootscale.lab.tasks import digits

study = load_file(Path(__file__).parents[1] / "experiments" / "stability.py", "experiment_stability")


def test_equal_arms_are_made_once_and_carry_the_measured_beta1():
    task = digits()  # betas .99, .999
    found = {label: beta1 for label, _, beta1, _ in study.arms(task, [4], eta_h=0.03)}
    assert found == pytest.approx(
        {"paper": 0.96, "measured = paper": 0.96, "floor .9 = paper": 0.96, "learning rate only": 0.99}
    )
    found = {label: (kappa, beta1) for label, kappa, beta1, _ in study.arms(task, [64], eta_h=2.0)}
    assert found["paper"] == (64, pytest.approx(0.36))
    assert found["measured"] == (64, pytest.approx(95 / 97))
    assert found["beta1 0.8"] == (64, pytest.approx(0.8))


@pytest.mark.parametrize(("value", "source"), [(0.7, "16 measured"), (0.93, "16 floor .9")])
def test_the_limited_value_never_raises_beta1(value, source):
    record = {"betas": "999", "beta1": {"16 measured": value, "16 floor .9": 0.9}, "same": {}}
    limited, _ = study.capped(record, {})
    assert limited["beta1"]["16 measured, at most beta1"] == min(value, 0.9)
    assert limited["same"]["16 measured, at most beta1"] == source


def test_stored_runs_are_read_back_as_they_were(tmp_path):
    record = {"net": "mlp", "betas": "95", "seed": 3, "beta1": {}, "same": {}}
    curves = {"base": np.arange(3.0, dtype=np.float32), "16 floor .9": np.full(3, np.nan, np.float32)}
    study.write({"mlp-95": [(record, curves)]}, tmp_path)
    ((again, read),) = study.read(tmp_path / "none", tmp_path)["mlp-95"]
    assert again == record
    assert set(read) == set(curves)
    assert all(np.array_equal(read[name], curves[name], equal_nan=True) for name in curves)
