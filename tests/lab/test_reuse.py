"""Which stored runs are taken for those that are asked for, what is said of it, and studies that are made in pieces."""

import json
import sys

import pytest

from rootscale.cli import main
from rootscale.files import locked
from rootscale.lab import Store, Table
from rootscale.lab.store import BusyError

TRAIN = """
import math
from helper import scale

def train(batch_size=4, seed=0, log=None):
    for samples in range(batch_size, 401, batch_size):
        log(samples=samples, loss=scale() * math.exp(-samples / 100) + 1e-3 * math.sin(seed))
"""
HELPER = "from package.deep import FACTOR\n\ndef scale():\n    return FACTOR\n"


@pytest.fixture
def words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("train", "helper", "package", "package.deep"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "deep.py").write_text("FACTOR = 1.0\n")
    (tmp_path / "data.bin").write_bytes(b"1")
    monkeypatch.setenv("MODE", "a")
    return ["check", "train.py:train", "--to", "16", "--seeds", "2", "--workers", "1", "--out", "kept"]


def again(words, capsys):
    for name in ("helper", "package", "package.deep"):
        sys.modules.pop(name, None)
    assert main(words) == 0
    return capsys.readouterr()


def test_how_many_runs_were_reused_and_from_when_is_always_said(words, capsys):
    assert "All 4 runs are new." in again(words, capsys).out
    said = again(words, capsys).out
    assert "4 of 4 runs were there already, of 20" in said
    assert "(--fresh makes all anew)" in said
    assert "4 of 6 runs were there already" in again([*words[:4], "8", *words[4:]], capsys).out
    assert Table.load("kept").made["reused"]["of"] == 6


def test_a_module_that_the_script_imports_counts_as_the_script_does(words, tmp_path, capsys):
    again(words, capsys)
    (tmp_path / "helper.py").write_text("# a comment\n" + HELPER)
    assert "4 of 4 runs were there already" in again(words, capsys).out
    (tmp_path / "package" / "deep.py").write_text("FACTOR = 1.5\n")
    said = again(words, capsys)
    assert "All 4 runs are new." in said.out
    assert "the stored runs were made with another module package.deep; they stay" in said.err
    (tmp_path / "package" / "deep.py").write_text("FACTOR = 1.0\n")
    assert "4 of 4 runs were there already" in again(words, capsys).out


def test_the_modules_of_a_command_count_too(words, tmp_path, capsys):
    (tmp_path / "train.py").write_text(
        TRAIN + "\nimport json, sys\nwith open(sys.argv[1], 'w') as file:\n"
        "    train(int(sys.argv[2]), int(sys.argv[3]), lambda **row: print(json.dumps(row), file=file))\n"
    )
    own = ["check", "--command", f"{sys.executable} train.py {{log}} {{batch_size}} {{seed}}", "--batch-size", "4"]
    own = [*own, *words[2:]]
    again(own, capsys)
    assert "4 of 4 runs were there already" in again(own, capsys).out
    (tmp_path / "package" / "deep.py").write_text("FACTOR = 1.5\n")
    assert "All 4 runs are new." in again(own, capsys).out


def test_files_and_variables_that_runs_depend_on_are_named(words, tmp_path, capsys, monkeypatch):
    words = [*words, "--depends", "data.bin", "MODE"]
    again(words, capsys)
    assert "4 of 4 runs were there already" in again(words, capsys).out
    (tmp_path / "data.bin").write_bytes(b"2")
    assert "made with another data.bin" in again(words, capsys).err
    monkeypatch.setenv("MODE", "b")
    assert "made with another data.bin, MODE" in again(words, capsys).err
    assert main([*words, "NOWHERE"]) == 2
    assert (
        "runs cannot depend on 'NOWHERE': there is no such file or folder, and no variable" in capsys.readouterr().err
    )


def test_fresh_makes_all_anew_and_keeps_what_there_was(words, tmp_path, capsys):
    again(words, capsys)
    said = again([*words, "--fresh"], capsys)
    assert "All 4 runs are new." in said.out
    (old,) = (tmp_path / "kept").glob("runs-until-*")
    assert len(list(old.rglob("log.jsonl"))) == len(list((tmp_path / "kept" / "runs").rglob("log.jsonl"))) == 4
    place = next((tmp_path / "kept" / "runs").rglob("log.jsonl")).parent
    with locked(place / ".lock"), pytest.raises(BusyError, match=r"is in work by process \d+ on "):
        Store(tmp_path / "kept" / "runs").set_aside()
    assert "4 of 4 runs were there already" in again(words, capsys).out


def test_a_command_whose_program_changes_while_it_runs_has_failed(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(
        "open('own.py', 'a').write('x = 1\\n'); open(__import__('sys').argv[1], 'w')\\\n"
        ".write(''.join(f'{{\"samples\": {i}, \"loss\": {1/i}}}\\n' for i in range(1, 9)))\n"
    )
    own = ["check", "--command", f"{sys.executable} own.py {{log}} {{batch_size}} {{seed}}", "--batch-size", "4"]
    assert main([*own, "--to", "8", "--seeds", "2", "--workers", "1", "--out", "kept"]) == 2
    assert "B = 4, seed 0: source of the command changed while it ran: start the check again" in capsys.readouterr().err


# -- in pieces


def test_a_study_in_pieces_is_judged_as_one_that_was_made_at_once(words, tmp_path, capsys):
    whole = [word if word != "kept" else "whole" for word in words]
    assert main(whole) == 0
    assert main([*words, "--collect"]) == 2
    assert "nothing can be judged in" in capsys.readouterr().err
    pieces = [word for word in words if word not in ("--seeds", "2")]
    for arm, seed in (("4", "0"), ("B = 4", "1"), ("16", "0"), ("16", "1")):
        assert main([*pieces, "--only", arm, "--seed", seed]) == 0
        assert f"seed {seed}: stored in" in capsys.readouterr().out
        if (arm, seed) == ("B = 4", "1"):
            assert main([*pieces, "--collect"]) == 3
            assert "Not finished: B = 16, seeds 0, 1" in capsys.readouterr().out
    assert main([*pieces, "--collect"]) == 0
    assert "4 of 4 runs were there already" in capsys.readouterr().out
    found, expected = Table.load(tmp_path / "kept"), Table.load(tmp_path / "whole")
    assert found.others[0].comparison.to_dict() == expected.others[0].comparison.to_dict()
    assert main([*pieces, "--only", "4", "--collect"]) == 2
    assert "--collect makes nothing: leave out --only" in capsys.readouterr().err
    assert main([*pieces, "--seed", "0", "--fresh"]) == 2
    assert "--fresh moves all runs away, those of other jobs too" in capsys.readouterr().err
    assert main([*pieces, "--only", "64"]) == 2
    assert (
        "--only takes batch sizes, labels of arms or parts of labels, got '64'; there are B = 4; B = 16"
        in capsys.readouterr().err
    )


def test_the_index_of_an_array_of_jobs_is_a_run_seed_by_seed(words, tmp_path, capsys):
    for index, said in enumerate(("B = 4, seed 0:", "B = 16, seed 0:", "B = 4, seed 1:", "B = 16, seed 1:")):
        assert main([*words, "--piece", str(index)]) == 0
        assert said in capsys.readouterr().out
        assert len(list((tmp_path / "kept").rglob("log.jsonl"))) == index + 1
    assert main([*words, "--collect"]) == 0
    assert main([*words, "--piece", "4"]) == 2
    assert "--piece goes from 0 to 3, for 2 arms with 2 seeds (--seeds), got 4" in capsys.readouterr().err
    assert main([*words, "--piece", "1", "--seed", "0"]) == 2
    assert "--piece is one arm and one seed" in capsys.readouterr().err


STUDY = """
from train import train
from rootscale.lab import Arm, Loop, Study, Variant

loop = Loop("mine", train, 4)

def STUDY(kappas: tuple = (2, 4), several: bool = False):
    arms = [Arm("as it is", loop), *(Arm(f"times {kappa}", loop, Variant(kappa)) for kappa in kappas)]
    return [Study(name, arms, seeds=2) for name in ("one", "other")[:1 + several]]
"""


def test_a_study_in_a_file_is_made_in_pieces_too(words, tmp_path, capsys):
    (tmp_path / "times.py").write_text(STUDY)
    own = ["study", "times.py", "--out", "pieces", "--workers", "1"]
    for piece in (
        ["--piece", "0"],
        ["--piece", "1"],
        ["--only", "times 4", "as it is", "--seed", "0"],
        ["--seed", "1"],
    ):
        assert main([*own, *piece]) == 0
        assert "stored in" in capsys.readouterr().out
    assert main([*own, "--collect"]) == 0
    assert "6 of 6 runs were there already" in capsys.readouterr().out
    assert main([*own[:-4], "--out", "whole", "--workers", "1"]) == 0
    assert "All 6 runs are new" in capsys.readouterr().out
    found, expected = Table.load(tmp_path / "pieces" / "one"), Table.load(tmp_path / "whole" / "one")
    assert [a.comparison.to_dict() for a in found.others] == [b.comparison.to_dict() for b in expected.others]
    assert main([*own, "--several", "--piece", "0"]) == 2
    assert "--piece is for one study, and times.py makes 2" in capsys.readouterr().err
    assert main([*own, "--fresh"]) == 0
    assert "All 6 runs are new" in capsys.readouterr().out


def test_a_run_that_is_not_finished_is_not_judged(words, tmp_path, capsys):
    assert main([*words[:5], "3", *words[6:]]) == 0
    part = next(path for path in (tmp_path / "kept").rglob("log.jsonl") if "b-16" in str(path))
    part.rename(part.with_name("log.part.jsonl"))
    seed = json.loads(part.with_name("run.json").read_text())["seeds"][0]
    capsys.readouterr()
    assert main([*words[:5], "3", *words[6:], "--collect"]) == 0
    assert f"Not finished: B = 16, seeds {seed}" in capsys.readouterr().out
    assert Table.load(tmp_path / "kept").others[0].trajectory.replicas == 2
