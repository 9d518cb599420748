"""The digits experiment runs end to end, resumes, and writes what it claims to write."""

import json

import pytest


@pytest.fixture(scope="module")
def digits():
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    from rootscale.paper.experiments import sde_digits

    return sde_digits


def test_the_experiment_writes_figure_record_and_trajectories_and_resumes(digits, tmp_path, capsys):
    arguments = ["--out", str(tmp_path), "--replicas", "3", "--warmup-samples", "40", "--samples", "32"]
    arguments += ["--points", "2", "--eager"]
    assert digits.main(arguments) == 0
    (tmp_path / "digits" / "sde.npz").unlink()
    capsys.readouterr()
    assert digits.main(arguments) == 0
    out = capsys.readouterr().out
    assert out.count("already there") == len(digits.PROCESSES) - 1
    record = json.loads((tmp_path / "digits.json").read_text())
    assert set(record["processes"]) == set(digits.PROCESSES)
    assert record["processes"]["adam"]["against_discrete_adam"] is None
    gap = record["processes"]["sde"]["against_discrete_adam"]
    assert set(gap) == {"loss", "accuracy", "gradient norm", "Tr Sigma"}
    assert (tmp_path / "digits.png").stat().st_size > 10_000
    assert not list(tmp_path.rglob("*.tmp"))


def test_other_settings_are_not_taken_from_finished_runs(digits, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(digits, "PROCESSES", {key: digits.PROCESSES[key] for key in ("adam", "svag-2")})
    arguments = ["--out", str(tmp_path), "--replicas", "2", "--warmup-samples", "40", "--samples", "16"]
    arguments += ["--points", "1", "--eager", "--only-run"]
    assert digits.main(arguments) == 0
    capsys.readouterr()
    assert digits.main([*arguments, "--seed", "1"]) == 0
    assert "already there" not in capsys.readouterr().out
