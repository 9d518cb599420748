"""`rootscale compare`: arguments, what is printed, files and exit codes."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from rootscale.cli import main
from rootscale.lab import Table


def write_side(folder, runs, shift=0.0, seed=0, size=16, steps=100, noise=0.01):
    folder.mkdir()
    rng = np.random.default_rng(seed)
    for number in range(runs):
        offset = noise * rng.standard_normal()
        rows = [
            {"step": step, "loss": 1 + 2 * math.exp(-step * size / 500) + shift + offset}
            for step in range(1, steps + 1)
        ]
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return sorted(map(str, folder.iterdir()))


@pytest.fixture
def logs(tmp_path):
    base = write_side(tmp_path / "base", 4)
    same = write_side(tmp_path / "same", 4, seed=1, size=64, steps=25)
    other = write_side(tmp_path / "other", 4, seed=2, size=64, steps=25, shift=0.3)
    return base, same, other


SIZES = ["--batch-size", "16", "64"]


@pytest.mark.parametrize(("which", "code", "word"), [(1, 0, "same"), (2, 1, "different")])
def test_the_exit_code_is_that_of_the_check(logs, capsys, which, code, word):
    assert main(["compare", *logs[0], "--to", *logs[which], *SIZES]) == code
    out = capsys.readouterr().out
    assert "B = 64 (4 runs) compared with B = 16 (4 runs)" in out
    assert f"B = 64  {word}" in out
    assert "aligned on samples (column 'step' x 16; column 'step' x 64)" in out
    assert ("separate after" in out) == (word == "different")


def test_one_run_a_side_is_undecided_and_says_what_it_shows(logs, capsys):
    assert main(["compare", logs[0][0], "--to", logs[2][0], *SIZES]) == 3
    out = capsys.readouterr().out
    assert "not judged" in out
    assert "one run on a side cannot show how far seeds differ" in out
    assert "Whether the setting or the seed made the difference cannot be told" in out


def test_several_sides_and_names(logs, capsys):
    words = ["compare", *logs[0], "--to", *logs[1], "--to", *logs[2], "--batch-size", "16", "64", "64"]
    assert main([*words, "--names", "base", "rule", "linear"]) == 1
    out = capsys.readouterr().out
    assert "rule    same" in out
    assert "linear  different" in out
    assert main(words) == 1  # named by their folders, where batch sizes do not tell them apart
    assert "same   same" in capsys.readouterr().out


def test_several_sides_have_names_of_their_own_wherever_their_files_lie(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("base", "lr-only", "rule")):
        for number, path in enumerate(write_side(tmp_path / name, 2, seed=seed)):
            (tmp_path / f"{name}-{number}.jsonl").write_text(Path(path).read_text())
            (tmp_path / f"{'xyz'[seed]}{'ab'[number]}.jsonl").write_text(Path(path).read_text())
    sizes = ["--batch-size", "16", "16", "16"]

    def named(*sides):
        base, *others = sides
        words = ["compare", *base, *(word for other in others for word in ("--to", *other)), *sizes, "--json"]
        assert main(words) in (0, 1, 3)
        found = json.loads(capsys.readouterr().out)
        return [found["base"], *(other["label"] for other in found["others"])]

    both = ["base", "lr-only", "rule"]
    assert named(*([f"{name}-0.jsonl", f"{name}-1.jsonl"] for name in both)) == both
    assert named(*([f"{name}-*.jsonl"] for name in both)) == both
    assert named(*([name] for name in both)) == both
    assert named(*([f"{name}/*.jsonl"] for name in both)) == both
    assert named(["xa.jsonl", "xb.jsonl"], ["ya.jsonl", "yb.jsonl"], ["za.jsonl", "zb.jsonl"]) == ["x", "y", "z"]
    assert named(["xa.jsonl", "yb.jsonl"], ["ya.jsonl", "xb.jsonl"], ["za.jsonl", "zb.jsonl"]) == [
        "xa.jsonl and 1 more", "ya.jsonl and 1 more", "z",
    ]  # fmt: skip


def test_the_result_is_json_on_request(logs, capsys):
    assert main(["compare", *logs[0], "--to", *logs[2], *SIZES, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "different"
    assert found["clock"] == "samples"
    (other,) = found["others"]
    assert other["label"] == "B = 64"
    assert other["gaps"][0]["verdict"] == "different"
    assert other["parts_at"]["loss"] == other["gaps"][0]["times"][0]
    assert any("aligned on samples" in note for note in found["notes"])


def test_report_figures_and_result_are_written(logs, tmp_path, capsys):
    pytest.importorskip("plotly")
    pytest.importorskip("matplotlib")
    words = ["compare", *logs[0], "--to", *logs[2], *SIZES]
    words += ["--report", str(tmp_path / "r.html"), "--png", str(tmp_path / "png"), "--out", str(tmp_path / "kept")]
    assert main(words) == 1
    assert "read from logs, aligned on samples" in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert (tmp_path / "png" / "loss.png").stat().st_size > 10_000
    assert Table.load(tmp_path / "kept").verdict == "different"
    assert main(["report", str(tmp_path / "kept"), "-o", str(tmp_path / "again.html")]) == 0


def test_mistakes_are_one_line_that_says_what_to_type(logs, tmp_path, capsys):
    for words, text in (
        ([], "has steps but no batch size; its columns are 'step', 'loss'"),
        (["--batch-size", "16"], "need one batch size for each of the 2 sides"),
        ([*SIZES, "--metric", "los"], "has no metric 'los' (did you mean 'loss'?)"),
        ([*SIZES, "--report", str(tmp_path / "no" / "r.html")], "there is no folder"),
        ([*SIZES, "--start", "1e9"], "nothing is left between --start and --stop: the runs have 64 to 1,600 samples"),
    ):
        assert main(["compare", *logs[0], "--to", *logs[1], *words]) == 2
        error = capsys.readouterr().err
        assert text in error
        assert error.count("\n") == 1
