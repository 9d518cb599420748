import subprocess
import sys
from pathlib import Path

import pytest
from report.fixtures import few, make_check, unjudged

from rootscale.cli import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path):
    return few(make_check(), "train loss").save(tmp_path / "runs").parent


def error_of(capsys, *arguments):
    assert main(["report", *map(str, arguments)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("rootscale report: error: ")
    assert error.count("\n") == 1
    return error


def test_report_writes_the_page_and_figures_and_says_where(folder, tmp_path, capsys):
    out = tmp_path / "out.html"
    assert main(["report", str(folder), "-o", str(out), "--pdf", str(tmp_path / "papers")]) == 0
    lines = capsys.readouterr().out.split()
    assert lines == [str(out), str(tmp_path / "papers" / "train-loss.pdf")]
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert Path(lines[1]).read_bytes().startswith(b"%PDF-")


def test_a_result_without_verdicts_has_a_report_too(tmp_path):
    few(unjudged(make_check()), "train loss").save(tmp_path / "runs")
    assert main(["report", str(tmp_path / "runs"), "-o", str(tmp_path / "out.html")]) == 0
    assert "a verdict needs at least 2 seeds; there is 1" in (tmp_path / "out.html").read_text(encoding="utf-8")


def test_a_place_that_cannot_be_written_is_one_line(folder, tmp_path, capsys):
    error = error_of(capsys, folder, "-o", tmp_path / "missing" / "out.html")
    assert "must be a file in a folder that exists" in error
    (tmp_path / "papers").write_text("in the way")
    assert "error: cannot write " in error_of(capsys, folder, "-o", tmp_path / "a.html", "--png", tmp_path / "papers")


def test_a_folder_that_holds_no_whole_table_is_one_line(folder, tmp_path, capsys):
    out = ("-o", tmp_path / "out.html")
    assert "holds no table.npz" in error_of(capsys, tmp_path, *out)
    path = folder / "table.npz"
    path.write_bytes(path.read_bytes()[:500])
    assert f"{path} is not a saved table, or is damaged: no whole .npz file" in error_of(capsys, folder, *out)
    path.unlink()
    path.mkdir()
    assert "cannot read" in error_of(capsys, folder, *out)
    assert not (tmp_path / "out.html").exists()


def test_the_command_line_imports_neither_plotly_nor_matplotlib_before_it_must():
    code = (
        "import sys, rootscale.cli as c; c.make_parser(*c.COMMANDS); "
        "print(*{'plotly', 'matplotlib', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT / "src")}
    )
    assert done.stdout.strip() == ""
