"""Trajectories: what they hold, what they refuse, and that a file is whole or absent."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rootscale.trajectory import Estimate, Trajectory

TIMES = np.array([0.0, 0.5, 1.0])
VALUES = {"loss": np.arange(12.0).reshape(4, 3), "accuracy": np.arange(12.0).reshape(4, 3) ** 2}


def kept() -> Trajectory:
    return Trajectory(TIMES, VALUES, meta={"seed": 3, "command": ["a", "b"]})


def estimated() -> Trajectory:
    return Trajectory(
        TIMES, {}, {"loss": Estimate(np.ones(3), np.full(3, 0.1))}, replicas=1000, diverged=np.array([0, 2, 5])
    )


def test_mean_and_standard_error_are_those_of_the_replicas() -> None:
    mean, se = kept()["loss"]
    np.testing.assert_allclose(mean, VALUES["loss"].mean(0), rtol=1e-15)
    np.testing.assert_allclose(se, VALUES["loss"].std(0, ddof=1) / 2, rtol=1e-15)
    assert kept().names == ("loss", "accuracy")
    assert kept().replicas == 4


def test_diverged_replicas_are_counted_and_left_out_of_every_function() -> None:
    values = {name: value.copy() for name, value in VALUES.items()}
    values["loss"][1, 1:] = np.nan
    values["loss"][2, 2] = np.inf
    trajectory = Trajectory(TIMES, values)
    assert trajectory.diverged.tolist() == [0, 1, 2]
    assert trajectory["loss"].mean[2] == pytest.approx(VALUES["loss"][[0, 3], 2].mean())
    assert trajectory["accuracy"].mean[2] == pytest.approx(VALUES["accuracy"][[0, 3], 2].mean())


def test_a_standard_error_of_one_replica_is_not_a_number() -> None:
    mean, se = Trajectory(TIMES, {"loss": np.ones((1, 3))})["loss"]
    assert mean.tolist() == [1, 1, 1]
    assert np.isnan(se).all()


@pytest.mark.parametrize("make", [kept, estimated])
def test_a_saved_trajectory_is_loaded_to_the_bit(make, tmp_path: Path) -> None:
    before = make()
    after = Trajectory.load(before.save(tmp_path / "run.npz"))
    np.testing.assert_array_equal(after.times, before.times)
    np.testing.assert_array_equal(after.diverged, before.diverged)
    assert (after.names, after.replicas, after.meta) == (before.names, before.replicas, before.meta)
    for name in before.names:
        np.testing.assert_array_equal(after[name].mean, before[name].mean)
        np.testing.assert_array_equal(after[name].se, before[name].se)
    for name, value in before.values.items():
        np.testing.assert_array_equal(after.values[name], value)


def test_a_file_is_read_with_numpy_alone(tmp_path: Path) -> None:
    with np.load(kept().save(tmp_path / "run.npz"), allow_pickle=False) as file:
        np.testing.assert_array_equal(file["values/loss"], VALUES["loss"])
        assert json.loads(str(file["meta"]))["seed"] == 3
    with np.load(estimated().save(tmp_path / "few.npz"), allow_pickle=False) as file:
        assert file["se/loss"].tolist() == [0.1, 0.1, 0.1]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError("disk full")])
def test_an_interrupted_save_leaves_the_old_file_and_nothing_else(interruption, tmp_path: Path, monkeypatch) -> None:
    path = kept().save(tmp_path / "run.npz")
    old = path.read_bytes()

    def interrupted(file, **arrays) -> None:
        file.write(b"half")
        raise interruption

    monkeypatch.setattr(np, "savez", interrupted)
    with pytest.raises((KeyboardInterrupt, OSError)):
        estimated().save(path)
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_a_trajectory_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        kept().times = TIMES
    with pytest.raises(ValueError, match="read-only"):
        kept().values["loss"][0, 0] = 1
    with pytest.raises(TypeError):
        kept().values["more"] = TIMES


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([0.0, 0.0, 1.0], VALUES), r"times must be finite and increasing, got \[0.0, 0.0, 1.0\]"),
        ((TIMES, {}), "either values .* or estimates .*, got neither"),
        ((TIMES, VALUES, {"loss": Estimate(TIMES, TIMES)}), "got both"),
        ((TIMES, {"loss": np.ones(3)}), r"values\['loss'\] must have 2 dimensions, got the shape \[3\]"),
        ((TIMES, {"loss": np.ones((4, 2))}), r"must all be \[R, T\] with T=3 times, got \[\(4, 2\)\]"),
        (
            (TIMES, {}, {"loss": Estimate(TIMES, TIMES[:2])}, 5),
            r"loss must be \[T\] with T=3 times, got the shape \[2\]",
        ),
        ((TIMES, {}, {"loss": Estimate(TIMES, TIMES)}), "replicas must be at least 1, got 0"),
    ],
)
def test_what_does_not_fit_together_is_refused(arguments, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Trajectory(*arguments)


def test_wrong_names_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="no test function 'los'; there are 'loss', 'accuracy'"):
        kept()["los"]
    with pytest.raises(ValueError, match=r"saved as .npz, got 'run.csv'; use 'run.csv.npz'"):
        kept().save(tmp_path / "run.csv")
    with pytest.raises(TypeError, match="meta must hold what JSON can hold"):
        Trajectory(TIMES, VALUES, meta={"x": object()}).save(tmp_path / "run.npz")
    np.savez(tmp_path / "other.npz", times=TIMES)
    with pytest.raises(ValueError, match="not a saved trajectory, or is damaged: it has no diverged, meta, replicas"):
        Trajectory.load(tmp_path / "other.npz")


def test_a_damaged_file_is_named_wherever_it_is_damaged(tmp_path):
    path = tmp_path / "run.npz"
    with pytest.raises(FileNotFoundError):
        Trajectory.load(path)
    kept().save(path)
    whole = path.read_bytes()
    for at in range(0, len(whole), 97):
        path.write_bytes(whole[:at])
        with pytest.raises(ValueError, match=r"run.npz is not a saved trajectory, or is damaged: no whole .npz file"):
            Trajectory.load(path)
    told = []
    for at in range(60, len(whole), 13):  # a byte that is not what it was: told, or harmless
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            Trajectory.load(path)
        except ValueError as error:
            told.append(str(error))
    assert len(told) > 20
    assert all("run.npz is not a saved trajectory, or is damaged: " in text for text in told)


def test_runs_of_ones_own_are_paired_by_their_seeds() -> None:
    runs = Trajectory.of_runs([10, 20], {"loss": [[1.0, 0.5], [0.8, 0.4]]}, seeds=[3, 7])
    assert runs.meta == {"samples": [10, 20], "seeds": [3, 7]}
    assert Trajectory.of_runs([10, 20], {"loss": [[1.0, 0.5]]}).meta["seeds"] == [0]
    with pytest.raises(ValueError, match="one seed for each of the 2 runs, got 3"):
        Trajectory.of_runs([10, 20], {"loss": [[1.0, 0.5], [0.8, 0.4]]}, seeds=[1, 2, 3])
    with pytest.raises(ValueError, match=r"values\['loss'\] must have 2 dimensions"):
        Trajectory.of_runs([10, 20], {"loss": [1.0, 0.5]})


def test_a_trajectory_is_a_table_in_notebooks_and_as_a_frame(monkeypatch):
    import sys
    import types

    library = types.ModuleType("pandas")
    library.DataFrame = dict
    monkeypatch.setitem(sys.modules, "pandas", library)
    runs = Trajectory.of_runs([100, 200], {"loss": [[0.9, 0.7], [0.8, np.nan]]}, seeds=[3, 5])
    frame = runs.to_frame()
    assert {name: column.tolist() for name, column in frame.items() if name != "loss"} == {
        "run": [3, 3, 5, 5], "time": [100.0, 200.0] * 2, "samples": [100, 200] * 2,
    }  # fmt: skip
    np.testing.assert_array_equal(frame["loss"], [0.9, 0.7, 0.8, np.nan])
    text = runs._repr_html_()
    assert "<caption>2 runs at 2 times, means and standard errors</caption>" in text
    assert "<td>loss</td><td>0.850 ± 0.050</td><td>0.7</td>" in text
    assert "1 of 2 runs diverged" in text
    means = Trajectory([0.0, 1.0], estimates={"x": Estimate([1.0, 2.0], [0.1, 0.2])}, replicas=9).to_frame()
    assert {name: list(column) for name, column in means.items()} == {
        "time": [0.0, 1.0], "x": [1.0, 2.0], "x se": [0.1, 0.2],
    }  # fmt: skip
