"""Logs as curves: the clock, restarts, holes, smoothing, the grid, and what one run allows to say."""

import math
import re

import numpy as np
import pytest

from rootscale.compare import Alignment, Judge, Log, align, as_logs, compare
from rootscale.tolerance import parse_tolerance
from rootscale.trajectory import Trajectory

X = np.linspace(1_000, 50_000, 50)


def falling(x, shift=0.0):
    return 1 + 2 * np.exp(-np.asarray(x, float) / 10_000) + shift


def side(runs=4, shift=0.0, noise=0.01, seed=0, x=X):
    rng = np.random.default_rng(seed)
    return {"samples": x, "loss": falling(x, shift) + noise * rng.standard_normal((runs, 1))}


def steps(size, count, noise=0.1, shift=0.0, seed=0):
    """A run that logs the loss of every step."""
    rng, step = np.random.default_rng(seed), np.arange(1, count + 1)
    return {"step": step, "loss": falling(step * size, shift) + noise * rng.standard_normal(count)}


def one(rows, **more):
    return Log.of_rows("a.jsonl", rows, **more)


def said(found, text):
    return [note for note in found.made["notes"] if text in note]


# -- the clock


def test_runs_of_steps_are_aligned_by_their_batch_sizes():
    found = align(
        [[*as_logs("a", steps(16, 400, 0))], as_logs("b", steps(64, 100, 0))], Alignment(batch_sizes=(16, 64))
    )
    base, other = found.trajectories
    assert found.unit == "samples"
    np.testing.assert_allclose(base.values["loss"], falling(base.times)[None], atol=2e-3)
    np.testing.assert_allclose(other.values["loss"], falling(base.times)[None], atol=2e-3)


@pytest.mark.parametrize(
    ("columns", "unit"),
    [
        ({"consumed_samples": X, "step": X}, "samples"),
        ({"num_input_tokens_seen": X, "step": X}, "tokens"),
        ({"epoch": X / 1e4, "step": X}, "epochs"),
        ({"Step": X, "batch_size": np.full(50, 8.0)}, "samples"),
    ],
)
def test_the_clock_is_found_by_its_name(columns, unit):
    logs = as_logs("a", {**columns, "loss": falling(X)})
    assert align([logs, logs]).unit == unit


def test_a_batch_size_that_grows_is_summed_up_over_the_steps():
    sizes = np.where(np.arange(50) < 25, 4.0, 16.0)
    grown = as_logs("a", {"step": np.arange(50.0), "batch_size": sizes, "loss": falling(X)})
    found = align([grown, grown])
    assert found.trajectories[0].times[-1] == 4 * 24 + 16 * 25


def test_samples_that_are_no_multiple_of_the_steps_count_before_a_batch_size_that_was_given():
    """The steps of a run that was resumed at another batch size may be numbered anew."""
    samples = np.concatenate([np.arange(1, 101) * 16, 1600 + np.arange(1, 76) * 64])
    step = np.concatenate([np.arange(1, 101), np.arange(26, 101)])
    switched = one([{"step": s, "samples_seen": n, "loss": falling(n)} for s, n in zip(step, samples, strict=True)])
    base = Log.of_columns("b", steps(16, 400, 0))
    found = align([[base], [switched]], Alignment(batch_sizes=(16, 64)))
    np.testing.assert_allclose(
        found.trajectories[1].values["loss"], falling(found.trajectories[1].times)[None], atol=2e-3
    )
    assert "column 'samples_seen', which is no multiple of 'step'" in found.notes[0]


def test_a_batch_size_that_was_given_counts_before_one_that_the_log_says_and_that_is_said():
    log = one([{"step": k, "batch_size": 4, "samples": 4 * k, "loss": falling(16 * k)} for k in range(1, 401)])
    found = align([as_logs("a", steps(16, 400, 0)), [log]], Alignment(batch_sizes=(16, 16)))
    assert "'step' x 16 as given; the log itself says 4" in found.notes[0]
    assert found.trajectories[1].times[-1] == 6400


def test_the_log_without_a_clock_is_named_also_if_the_others_have_one_by_their_batch_size():
    texts = one([{"step": f"{k}K", "loss": 1.0 / k} for k in range(1, 9)])
    with pytest.raises(ValueError, match=r"a\.jsonl has no column of samples, tokens or steps; its columns are 'loss'"):
        align([as_logs("b", steps(16, 40)), [texts]], Alignment(batch_sizes=(16, 16)))


def test_numbers_of_numpy_in_rows_are_numbers():
    log = one([{"step": np.int64(k), "loss": np.float32(1 / 2**k)} for k in range(1, 4)])
    assert (log.columns["step"].values.tolist(), log.columns["loss"].values.tolist()) == ([1, 2, 3], [0.5, 0.25, 0.125])


def test_a_column_of_numbers_with_texts_in_it_is_said():
    log = one([{"step": k, "loss": "n/a" if k == 3 else 1.0 / k, "note": "fine"} for k in range(1, 9)])
    assert log.notes == ("1 of 8 values of loss are no numbers and were left out, such as 'n/a'",)


def test_a_log_without_a_clock_says_what_to_type():
    logs = as_logs("runs/a.csv", {"step": X, "loss": falling(X)})
    with pytest.raises(
        ValueError, match=r"runs/a.csv has steps but no batch size; its columns are 'step', 'loss'.*16 64"
    ):
        align([logs, logs])
    with pytest.raises(ValueError, match="no column of samples, tokens or steps; its columns are 'loss'"):
        align([as_logs("a", {"loss": falling(X)})] * 2)
    with pytest.raises(ValueError, match="has no column 'x' for the clock; it has 'step', 'loss'"):
        align([logs, logs], Alignment(clock="x"))
    with pytest.raises(ValueError, match="one batch size for each of the 2 sides, the base first; got 3: 1, 2, 3"):
        align([logs, logs], Alignment(batch_sizes=(1, 2, 3)))
    with pytest.raises(ValueError, match=r"the runs have no clock in common: a counts tokens, b counts epochs"):
        align([as_logs("a", {"tokens": X, "loss": X}), as_logs("b", {"epoch": X, "loss": X})])


def test_runs_that_do_not_overlap_are_refused():
    with pytest.raises(
        ValueError, match=r"do not overlap: b\[0\] begins at 1,000,000 samples, and a\[0\] ends at 50,000"
    ):
        align([as_logs("a", side(1)), as_logs("b", side(1, x=X + 999_000))])


# -- curves


def test_a_restart_replaces_what_was_logged_after_it():
    first = [{"samples": 100 * i, "loss": 5.0} for i in range(1, 9)]
    again = [{"samples": 100 * i + 50, "loss": 10.0 - i} for i in range(4, 9)]
    log = one(first[:7] + again)
    found = align([[log], [log]], Alignment(window=0, start=500))
    assert found.trajectories[0].values["loss"].max() < 6
    assert any("resumed 1 time; of loss, 3 values that were logged again" in note for note in found.notes)


def test_of_values_at_one_place_the_last_counts_and_newest_first_is_turned_around():
    rows = [{"samples": s, "loss": v} for s, v in ((1, 9.0), (1, 3.0), (2, 2.0), (3, 1.0))]
    for log in (one(rows), one([rows[3], rows[2], rows[1]])):
        assert align([[log], [log]]).trajectories[0].values["loss"].tolist() == [[3.0, 2.0, 1.0]]


def test_a_run_whose_loss_ends_not_finite_diverged_and_a_single_nan_is_a_hole():
    rows = [{"samples": s, "loss": v} for s, v in ((1, 4.0), (2, math.nan), (3, 2.0), (4, 1.0), (5, 1.0))]
    lost = [*rows[:3], {"samples": 4, "loss": math.inf}, {"samples": 5, "loss": math.nan}]
    found = align([[one(rows)], [one(lost)]], Alignment(window=0))
    base, other = found.trajectories
    assert base.diverged.tolist() == [0] * 4
    assert other.diverged.tolist() == [0, 0, 1, 1]
    assert "a.jsonl: 1 values of loss that are not finite were left out; finite ones follow" in found.notes
    assert "a.jsonl: diverged: loss is not finite from 4 samples on" in found.notes


def test_the_mean_since_the_last_value_stands_in_the_middle():
    rows = [{"samples": 100 * i, "loss": float(i)} for i in range(1, 6)]
    log = one(rows, averaged=frozenset({"loss"}))
    assert align([[log], [log]]).trajectories[0].times.tolist() == [50, 150, 250, 350, 450]


def test_in_columns_nan_is_nothing_logged_but_at_the_end_of_a_full_column():
    full = as_logs("a", {"samples": X, "loss": np.where(X > 30_000, np.nan, falling(X))})
    sparse = np.where(np.arange(50) % 2 == 0, np.nan, falling(X))
    holes = as_logs("b", {"samples": X, "loss": sparse})
    found = align([holes, full])
    assert found.trajectories[0].diverged[-1] == 0
    assert found.trajectories[1].diverged[-1] == 1


def test_a_hole_and_an_early_end_are_said():
    keep = (X < 20_000) | (X > 30_000)
    short = {"samples": X[:30], "loss": falling(X[:30])}
    found = compare({"samples": X[keep], "loss": falling(X[keep])}, short, names=("a", "b"))
    assert said(found, "b ends at 30,000 samples; what a has after that, up to 50,000, is not compared")
    found = compare({"samples": X[keep], "loss": falling(X[keep])}, side(1), names=("a", "b"))
    assert said(found, "a has no values between 19,000 and 31,000 samples")


# -- smoothing and grid


def test_equal_grids_are_taken_as_they_are_and_others_interpolated():
    equal = align([as_logs("a", side(2)), as_logs("b", side(2))])
    assert equal.trajectories[0].times.tolist() == X.tolist()
    assert not any("interpolated" in note for note in equal.notes)
    other = align([as_logs("a", side(2)), as_logs("b", side(2, x=X + 300))])
    assert any("runs that were not logged there are interpolated" in note for note in other.notes)
    np.testing.assert_allclose(
        other.trajectories[1].values["loss"].mean(0) - other.trajectories[0].values["loss"].mean(0), 0, atol=5e-3
    )


def steep(x):
    return 1.2 + 4.0 * np.exp(-x / 8_000) + 0.5 * np.exp(-x / 60_000)


@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize("size", [24, 64, 128])
def test_equal_curves_that_are_logged_more_and_less_often_are_the_same(size, noise):
    """Every 100 steps at two batch sizes: the rarer side resolves the steep start less."""
    rng = np.random.default_rng(0)
    fine, coarse = (np.arange(1, 160_000 // (100 * b) + 1) * 100.0 * b for b in (16, size))
    sides = [
        [{"samples": x, "loss": steep(x) + 0.01 * rng.standard_normal() + noise * rng.standard_normal(len(x))}
         for _ in range(8)] for x in (fine, coarse)
    ]  # fmt: skip
    found = compare(*sides)
    assert found.verdict == "same"
    (gap,) = found.others[0].comparison.decisive
    assert abs(gap.gap).max() < 0.03
    assert compare(sides[0], [{**run, "loss": run["loss"] + 0.5} for run in sides[1]]).verdict == "different"


def test_means_since_the_last_value_are_compared_over_the_same_samples():
    x = np.arange(0.0, 160_001, 100)
    total = np.concatenate([[0], np.cumsum((steep(x[1:]) + steep(x[:-1])) / 2 * 100)])
    sides = []
    for size in (16, 128):
        ends = np.arange(1, 160_000 // (100 * size) + 1) * 100.0 * size
        means = np.diff(np.interp(np.append(0, ends), x, total)) / (100 * size)
        rows = [{"samples": end, "loss": mean} for end, mean in zip(ends, means, strict=True)]
        sides.append([one(rows, averaged=frozenset({"loss"}))])
    base, other = align(sides).trajectories
    assert len(base.times) == 12
    np.testing.assert_allclose(base.values["loss"], other.values["loss"], rtol=1e-12)


def test_copies_of_a_run_count_once():
    rng = np.random.default_rng(0)
    base, other = ([{"samples": X, "loss": falling(X) + 0.05 * rng.standard_normal()} for _ in range(2)] for _ in "ab")
    found = compare(base * 6, other * 6, names=("a", "b"))
    assert found.others[0].comparison.seeds == (2, 2)
    assert said(found, "a: 10 of 12 runs are copies of others, and are left out")
    assert found.verdict != "same"
    assert compare([base[0]] * 2, other).others[0].verdict is None, "one run has no verdict"


def test_runs_of_which_one_ends_early_are_not_called_the_same():
    rng = np.random.default_rng(0)
    jump = np.where(X > 30_000, 0.3, 0.0)
    base = [{"samples": X, "loss": falling(X) + 0.005 * rng.standard_normal()} for _ in range(4)]
    base[3] = {name: values[:25] for name, values in base[3].items()}
    other = [{"samples": X, "loss": falling(X) + jump + 0.005 * rng.standard_normal()} for _ in range(4)]
    found = compare(base, other)
    assert found.verdict == "undecided"
    (note,) = [note for note in found.others[0].comparison.notes if "the same up to there" in note]
    assert "ends at 25,000 samples" in note
    assert note.endswith("ask about this part with --stop 25000")
    assert found.others[0].comparison.seeds_needed is None
    assert compare(base, other, alignment=Alignment(stop=25_000)).verdict == "same"
    assert compare(base[:3], other).verdict == "different"


def test_points_of_an_accuracy_in_percent_are_refused():
    rng = np.random.default_rng(0)
    sides = [[{"samples": X, "accuracy": 90 - 60 * falling(X) + rng.standard_normal()} for _ in range(4)] for _ in "ab"]
    how, points = Alignment(metrics=("accuracy",)), parse_tolerance("0.5 points")
    with pytest.raises(ValueError, match=r"logged in percent; .* Give --tolerance '0.5 absolute'"):
        compare(*sides, alignment=how, judge=Judge(points))
    share = [[{**run, "accuracy": run["accuracy"] / 100} for run in side] for side in sides]
    assert compare(*share, alignment=how, judge=Judge(points)).verdict is not None


def test_a_line_in_a_window_gives_back_a_line_exactly():
    places = np.sort(np.random.default_rng(0).uniform(0, 100, 400))
    line = as_logs("a", {"samples": places, "loss": 3 - 0.02 * places})
    found = align([line, line], Alignment(window=10.0)).trajectories[0]
    np.testing.assert_allclose(found.values["loss"][0], 3 - 0.02 * found.times, rtol=1e-12)


def test_noisy_losses_are_smoothed_over_windows_of_equal_samples_and_the_window_is_said():
    base = [steps(16, 4000, 0.1, seed=s) for s in range(4)]
    other = [steps(64, 1000, 0.05, seed=9 + s) for s in range(4)]
    found = compare(base, other, alignment=Alignment(batch_sizes=(16, 64)))
    (note,) = said(found, "smoothed")
    assert note.startswith("loss is smoothed: a line fitted in windows of 1,598 samples (about 100 and 25 logged")
    assert found.verdict == "same"
    shifted = compare(base, [{**run, "loss": run["loss"] + 0.3} for run in other],
                      alignment=Alignment(batch_sizes=(16, 64)))  # fmt: skip
    assert shifted.verdict == "different"


def test_the_error_by_scatter_is_that_of_the_smoothed_value():
    """Over 150 runs of white noise and of noise with a memory: within a tenth, and within a third."""
    for memory, bound in ((0.0, 0.1), (0.6, 0.34)):
        rng, values, errors = np.random.default_rng(1), [], []
        for _ in range(150):
            noise = rng.standard_normal(300)
            for i in range(1, 300):
                noise[i] = memory * noise[i - 1] + math.sqrt(1 - memory**2) * noise[i]
            log = as_logs("a", {"samples": np.arange(300.0), "loss": noise})
            found = align([log, log], Alignment(window=50.0, points=5))
            values.append(found.trajectories[0].values["loss"][0])
            errors.append(found.scatter[0]["loss"])
        assert abs(np.mean(errors) / np.std(values, axis=0).mean() - 1) < bound


def test_a_window_that_leaves_nothing_is_refused():
    with pytest.raises(ValueError, match="leaves nothing of the 49,000 that the runs have in common: give a smaller"):
        align([as_logs("a", side(1))] * 2, Alignment(window=40_000))


# -- metrics


def test_all_losses_are_compared_unless_others_are_asked_for():
    log = {"samples": X, "train/loss": falling(X), "eval_loss": falling(X), "acc": -falling(X), "loss_scale": X}
    assert align([as_logs("a", log)] * 2).trajectories[0].names == ("train/loss", "eval_loss")
    assert align([as_logs("a", log)] * 2, Alignment(["acc"])).trajectories[0].names == ("acc",)
    with pytest.raises(
        ValueError, match=r"a has no metric 'eval/loss' \(did you mean 'eval_loss'\?\); it has 'train/loss'"
    ):
        align([as_logs("a", log)] * 2, Alignment(["eval/loss"]))
    with pytest.raises(ValueError, match=r"none of the metrics that all runs have is called a loss: .* 'x', 'y'"):
        align([as_logs("a", {"samples": X, "x": X, "y": X})] * 2)
    with pytest.raises(ValueError, match="no metric in common: a has 'x', b has 'y'"):
        align([as_logs("a", {"samples": X, "x": X}), as_logs("b", {"samples": X, "y": X})])


# -- the verdict


def test_the_verdict_is_that_of_the_check():
    assert compare(side(), side(seed=1)).verdict == "same"
    found = compare(side(), side(seed=1, shift=0.3), side(seed=2), names=("B = 4", "B = 16", "B = 64"))
    assert [arm.verdict for arm in found.others] == ["different", "same"]
    assert found["B = 16"].comparison.gaps["loss"].largest.gap == pytest.approx(0.15, abs=0.02)


def test_where_the_runs_part_is_the_first_place_at_which_the_band_is_outside():
    late = side(seed=1)
    found = compare(side(), {**late, "loss": late["loss"] + 0.4 * (X > 30_000)})
    assert found.others[0].comparison.gaps["loss"].parts_at(0.05) == 31_000


def test_paired_runs_are_compared_pair_by_pair():
    base, pairs = side(noise=0.5), side(noise=0.5)
    assert compare(base, pairs).verdict == "undecided"
    found = compare(base, {**pairs, "loss": pairs["loss"] + 0.001}, paired=True)
    assert found.others[0].comparison.paired
    with pytest.raises(ValueError, match="equally many on all sides, in the same order; got 4 of base, 3 of other"):
        compare(side(), side(3), paired=True)


def test_one_run_a_side_is_never_the_same_and_says_what_can_be_seen():
    base = steps(16, 4000, 0.05)
    for other, text in (
        (steps(64, 1000, 0.03, seed=1), 'no difference beyond 5 % is seen between these runs; .* That is not "same"'),
        (steps(64, 1000, 0.03, 0.5, seed=1), "these runs differ by more than 5 %; .* the setting or the seed"),
        (steps(64, 1000, 0.9, seed=1), "nothing can be told at 5 %"),
    ):
        found = compare(base, other, alignment=Alignment(batch_sizes=(16, 64)))
        assert found.others[0].verdict is None
        assert found.verdict == "undecided"
        first, second = found.others[0].comparison.notes[-2:]
        assert first.startswith("one run on a side cannot show how far seeds differ: no verdict; run at least 4")
        assert re.search(text, second)


def test_of_one_run_a_side_of_which_one_diverged_it_is_said_that_they_differ():
    base, other = steps(16, 400, 0.01), steps(16, 400, 0.01, seed=1)
    other["loss"][250:] = math.nan
    notes = compare(base, other, alignment=Alignment(batch_sizes=(16, 16))).others[0].comparison.notes
    assert any("1 of 1 runs of the other and 0 of 1 of the base diverged: these runs differ" in note for note in notes)
    assert not any("no difference" in note for note in notes)


def test_a_loss_far_above_its_start_is_a_divergence_and_one_that_never_came_down_is_said():
    blown = side(seed=1)
    blown["loss"] = blown["loss"].copy()
    blown["loss"][0, 20:] = 1e5
    found = compare(side(), blown)
    assert found.others[0].comparison.diverged == (1, 0)
    stuck = side(seed=1)
    stuck["loss"] = stuck["loss"].copy()
    stuck["loss"][1] = 3.2
    (note,) = said(compare(side(), stuck), "never came down")
    assert note == "other: loss of 1 of 4 runs never came down: it ends at or above its first value, 3.2"


# -- what is given


def test_arrays_rows_pairs_frames_and_trajectories_are_all_runs():
    class Frame:  # what pandas and polars have in common
        columns = ("samples", "loss", "note")

        def __getitem__(self, name):
            return {"samples": X, "loss": falling(X), "note": np.array(["a"] * 50)}[name]

    rows = [{"samples": float(x), "loss": float(falling(x))} for x in X]
    trajectory = Trajectory(X, {"loss": falling(X)[None]}, meta={"samples": X.tolist(), "seeds": [3]})
    for given in ({"samples": X, "loss": falling(X)}, rows, (X, falling(X)), Frame(), trajectory, [rows]):
        (log,) = as_logs("a", given)
        np.testing.assert_allclose(log.columns["loss"].values, falling(X))
    assert [len(as_logs("a", [rows, rows])), len(as_logs("a", (X, np.stack([X, X, X]))))] == [2, 3]
    assert as_logs("a", trajectory)[0].seed == 3


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_real_frames_are_runs(library):
    frames = pytest.importorskip(library)
    (log,) = as_logs("a", frames.DataFrame({"samples": X, "loss": falling(X), "text": ["a"] * 50}))
    assert set(log.columns) == {"samples", "loss"}


def test_what_is_no_run_is_refused_in_words():
    with pytest.raises(TypeError, match=r"base is the path 'a.jsonl'; read it first: .*read_logs\(\['a.jsonl'\]\)"):
        compare("a.jsonl", side())
    with pytest.raises(TypeError, match="base must be a dict of arrays"):
        compare(3, side())
    with pytest.raises(ValueError, match=r"columns of base must have one length .*'samples': \[50\], 'loss': \[49\]"):
        compare({"samples": X, "loss": X[1:]}, side())
    with pytest.raises(ValueError, match="nothing to compare with"):
        compare(side())
    with pytest.raises(ValueError, match="names must be 2 different ones"):
        compare(side(), side(), names=("a", "a"))
    with pytest.raises(ValueError, match="need a tolerance above 0"):
        compare(side(), side(), judge=Judge(tolerance=0))
    with pytest.raises(ValueError, match="points must be at least 2"):
        Alignment(points=1)


def test_a_comparison_is_saved_and_read_as_a_check(tmp_path):
    from rootscale.lab import Table
    from rootscale.report import render_page

    found = compare(side(), side(seed=1, shift=0.3), names=("B = 4", "B = 16"))
    again = Table.load(found.save(tmp_path / "kept"))
    assert again.verdict == "different"
    assert again.base.plan is None
    with pytest.raises(ValueError, match="'B = 16' was read from a log and has no plan"):
        _ = again.others[0].the_plan
    if pytest.importorskip("plotly"):
        page = render_page(again)
        assert "read from logs, aligned on samples" in page
        assert "separate after" in page


def test_a_comparison_is_a_table_in_notebooks_and_as_a_frame(monkeypatch):
    import sys
    import types

    library = types.ModuleType("pandas")
    library.DataFrame = dict
    monkeypatch.setitem(sys.modules, "pandas", library)
    found = compare(side(), side(seed=1, shift=0.3), side(seed=2), names=("B = 4", "B < 16", "B = 64"))
    frame = found.to_frame()
    assert frame["arm"] == ["B < 16", "B = 64"]
    assert frame["verdict"] == frame["verdict of the arm"] == ["different", "same"]
    assert frame["gap"] == [arm.comparison.gaps["loss"].largest.gap for arm in found.others]
    assert frame["at"] == [arm.comparison.gaps["loss"].largest.time for arm in found.others]
    text = found._repr_html_()
    assert "different, compared with B = 4</caption>" in text
    assert "<td>B &lt; 16</td><td>loss</td><td>different</td>" in text
