import subprocess
import sys
from pathlib import Path

import pytest
from report.fixtures import make_check

from rootscale.cli import main
from rootscale.lab.check import Check


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """A folder that `Check.load` reads."""
    runs = tmp_path / "runs"
    runs.mkdir()

    def load(path):
        assert Path(path) == runs
        return make_check()

    monkeypatch.setattr(Check, "load", load, raising=False)
    return runs


def test_report_writes_the_page_and_says_where(folder, tmp_path, capsys):
    out = tmp_path / "out.html"
    assert main(["report", str(folder), "-o", str(out)]) == 0
    assert capsys.readouterr().out.split() == [str(out)]
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_report_writes_figures_where_asked(folder, tmp_path, capsys):
    out = tmp_path / "out.html"
    assert main(["report", str(folder), "-o", str(out), "--pdf", str(tmp_path / "papers")]) == 0
    lines = capsys.readouterr().out.split()
    assert lines[0] == str(out)
    assert sorted(lines[1:]) == sorted(map(str, (tmp_path / "papers").iterdir()))
    assert {Path(line).suffix for line in lines[1:]} == {".pdf"}


def test_a_place_that_cannot_be_written_is_one_line(folder, tmp_path, capsys):
    assert main(["report", str(folder), "-o", str(tmp_path / "missing" / "out.html")]) == 2
    assert "must be a file in a folder that exists" in capsys.readouterr().err
    (tmp_path / "papers").write_text("in the way")
    assert main(["report", str(folder), "-o", str(tmp_path / "a.html"), "--png", str(tmp_path / "papers")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("rootscale report: error: cannot write ")
    assert error.count("\n") == 1


def test_the_command_line_imports_neither_plotly_nor_matplotlib_before_it_must():
    code = "import sys, rootscale.cli as c; c._parser(); print(*{'plotly', 'matplotlib', 'torch'} & set(sys.modules))"
    source = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": source}
    )
    assert done.stdout.strip() == ""
