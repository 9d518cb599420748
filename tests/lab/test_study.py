"""Studies: arms with fields, one judge, and files that define them."""

from dataclasses import replace

import numpy as np
import pytest
from problems import make

from rootscale.cli import main
from rootscale.lab import Arm, Here, Judge, Loop, Measure, Settings, Study, Table, Variant, check
from rootscale.lab.study_file import StudyFile

SETTINGS = Settings(grid=(0, 80, 160, 240), measure=Measure(noise=False))
ARMS = {
    "as it is": Variant(),
    "again": Variant(other_samples=True),
    "four times": Variant(4),
    "four times, nothing else": Variant(4, "none"),
}


def study(**more):
    task = make()
    arms = [Arm(label, task, variant, {"net": "mlp"}) for label, variant in ARMS.items()]
    return Study("mine", arms, "a claim", seeds=4, settings=SETTINGS, **more)


def test_a_check_is_a_study(tmp_path):
    table = study().run(tmp_path, Here())
    again = check(make(), [Variant(4)], seeds=4, stop=240, measure=Measure(points=3, noise=False), execute=Here())
    one, other = table["four times"].trajectory, again["B = 16"].trajectory
    np.testing.assert_array_equal(one.values["train loss"][:, -1], other.values["train loss"][:, -1])
    assert table.made["claim"] == "a claim"
    read = Table.load(tmp_path)
    assert read["four times, nothing else"].factors == {"kappa": "4", "rule": "none", "net": "mlp"}
    assert read["again"].factors == {"other_samples": True, "net": "mlp"}
    assert [result.verdict for result in read.others] == [result.verdict for result in table.others]


def test_a_gap_can_be_judged_beside_that_of_the_null():
    found, beside = study().run(execute=Here()), study(judge=Judge(against="again")).run(execute=Here())
    gaps = [table["four times"].comparison.gaps["train loss"] for table in (found, beside)]
    null = found["again"].comparison.gaps["train loss"]
    np.testing.assert_allclose(
        gaps[1].gap * gaps[1].range, gaps[0].gap * gaps[0].range - null.gap * null.range, rtol=1e-9, atol=1e-12
    )
    assert beside.judged()["four times"].comparison.to_dict() == beside["four times"].comparison.to_dict()
    with pytest.raises(ValueError, match="the judge compares with 'rerun'; the arms are as it is, again"):
        study(judge=Judge(against="rerun"))


def test_a_study_is_judged_by_the_end_where_that_is_asked_for():
    found = study(judge=Judge(over="end", decide_by=["train loss"])).run(execute=Here())
    for result in found.others:
        assert result.comparison.over == "end"
        assert result.verdict == result.comparison.end
    assert "at the last evaluation is at most" in found.others[0].comparison.definition


def test_arms_are_of_one_kind_and_have_labels_of_their_own():
    task = make()
    with pytest.raises(ValueError, match="two arms are called 'a'"):
        Study("mine", [Arm("a", task), Arm("a", task, Variant(4))])
    with pytest.raises(ValueError, match="all arms of a study must be tasks, or all loops, or all logs"):
        Study("mine", [Arm("a", task), Arm("b", Loop("loop", lambda **given: None, 4))])


def test_conversions_are_made_once(monkeypatch):
    task, variant, made = make(), Variant(4, ramp=((64, 8),)), []
    convert = Variant._convert
    monkeypatch.setattr(Variant, "_convert", lambda *given: made.append(given) or convert(*given))
    for _ in range(3):
        variant.plan(task.plan), variant.guards(task.plan), variant.label(task.plan)
    assert len(made) == 2, "a stage each"
    other = replace(task.plan, steps=50)
    assert variant.plan(other) != variant.plan(task.plan)


FILE = '''
"""Four times the batch."""
from problems import make
from rootscale.lab import Arm, Measure, Settings, Study, Variant


def studies(kappas: tuple = (4,), rule: str = "sqrt", noise: bool = False):
    task, settings = make(), Settings((0, 80, 160, 240, 320, 400), measure=Measure(noise=noise))
    arms = [Arm("base", task), *(Arm(f"times {kappa}", task, Variant(kappa, rule)) for kappa in kappas)]
    return [Study(f"times-{rule}", arms, "a claim", 4, settings)]


STUDY = studies
'''


@pytest.fixture
def file(tmp_path):
    (tmp_path / "times.py").write_text(FILE)
    return tmp_path / "times.py"


def test_a_file_is_run_with_its_own_options_and_resumed(file, tmp_path, capsys):
    words = [
        "study",
        str(file),
        "--rule",
        "none",
        "--kappas",
        "4",
        "8",
        "--out",
        str(tmp_path / "out"),
        "--workers",
        "1",
    ]
    code = main([*words, "--smoke", "--results", str(tmp_path)])
    out = capsys.readouterr().out
    assert "a claim" in out
    table = Table.load(tmp_path / "times-none.npz")
    assert code == {"same": 0, "different": 1, "undecided": 3}[table.verdict]
    assert [result.label for result in table.others] == ["times 4", "times 8"]
    assert table.base.trajectory.meta["samples"] == [0, 80, 160, 240]
    assert (tmp_path / "out" / "times-none" / "report.html").exists()
    runs = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("trajectory.npz")}
    assert main([*words, "--smoke"]) == code
    assert runs == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("trajectory.npz")}


def test_mistakes_in_files_and_options_are_explained(file, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["study", str(file), "--kapas", "4"])
    assert "unrecognized arguments: --kapas" in capsys.readouterr().err
    (tmp_path / "none.py").write_text("x = 1")
    for path, told in (("none.py", "must define STUDY"), ("missing.py", "a study is a Python file that defines STUDY")):
        assert main(["study", str(tmp_path / path)]) == 2
        assert told in capsys.readouterr().err
    (tmp_path / "bare.py").write_text("def STUDY(net):\n    pass\n")
    assert main(["study", str(tmp_path / "bare.py")]) == 2
    assert "STUDY(net) needs a default" in capsys.readouterr().err
    assert StudyFile(file).text == "Four times the batch."
