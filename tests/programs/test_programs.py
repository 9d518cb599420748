"""Programs in the shape of public ones: the lines that a `Run` adds, and that they train as a conversion by hand does.

Each script is written three times in one file: ``[plain]`` lines are the program as it was, ``[run]`` lines are those
that a `Run` takes in their place, and ``[hand]`` lines convert it by hand, without rootscale. A plain script trains at
the batch size it was tuned at and saves a checkpoint. From there the script with the Run, in a fresh process, and the
one by hand go on at 4 and at 1/2 times the batch size.
"""

import difflib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPTS = Path(__file__).parent / "scripts"
#: The samples of the first part and of all, the batch size tuned at, and the lines that are added and replaced.
PROGRAMS = {
    "language_model": (512, 1024, 32, (5, 3)),
    "policy": (512, 1536, 32, (2, 0)),
    "gan": (256, 448, 16, (3, 0)),
    "autoencoder": (256, 640, 16, (2, 0)),
    "diffusion": (256, 640, 16, (2, 0)),
    "muon": (256, 640, 16, (4, 1)),
}
#: Runs scripts in a fresh process, one after the other: torch is imported once.
FRESH = (
    "import runpy, sys, warnings\n"
    "warnings.filterwarnings('ignore', '.*times the batch at once')\n"  # of Muon, which tests/test_evidence.py looks at
    "for sys.argv in eval(sys.argv[1]): runpy.run_path(sys.argv[0], run_name='__main__')"
)
_MARK = re.compile(r"  # \[(\w+)\]$")


def version(name: str, kind: str) -> str:
    """The source of one version of a script."""
    lines = (SCRIPTS / f"{name}.py").read_text(encoding="utf-8").splitlines()
    held = [(line, _MARK.search(line)) for line in lines]
    return "\n".join(_MARK.sub("", line) for line, mark in held if mark is None or mark[1] == kind) + "\n"


def train(source: str, folder: Path, batch_size: int, end: int, monkeypatch) -> dict:
    monkeypatch.setattr(sys, "argv", ["script", str(folder), str(batch_size), str(end)])
    exec(compile(source, "script", "exec"), {"__name__": "__main__"})
    return torch.load(folder / "end.pt", weights_only=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_lines_that_a_run_adds(name):
    added, replaced = PROGRAMS[name][3]
    diff = list(difflib.unified_diff(version(name, "plain").splitlines(), version(name, "run").splitlines(), n=0))
    changes = [line for line in diff if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert sum(line.startswith("+") for line in changes) == added
    assert sum(line.startswith("-") for line in changes) == replaced
    assert "rootscale" not in version(name, "hand") + version(name, "plain")


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_train_as_those_converted_by_hand(name, tmp_path, monkeypatch):
    half, end, tuned, _ = PROGRAMS[name]
    start = tmp_path / "start"
    start.mkdir()
    train(version(name, "plain"), start, tuned, half, monkeypatch)
    checkpoint = (start / "end.pt").read_bytes()
    script = tmp_path / "script.py"
    script.write_text(version(name, "run"), encoding="utf-8")
    folders = {kappa: (tmp_path / f"run{kappa}", tmp_path / f"hand{kappa}") for kappa in (4, 0.5)}
    for pair in folders.values():
        for folder in pair:
            folder.mkdir()
            (folder / "start.pt").write_bytes(checkpoint)
    sizes = {kappa: int(kappa * tuned) for kappa in folders}
    runs = [[str(script), str(folders[kappa][0]), str(size), str(end)] for kappa, size in sizes.items()]
    made = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", FRESH, repr(runs)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    for kappa, (in_run, by_hand) in folders.items():
        oracle = train(version(name, "hand"), by_hand, sizes[kappa], end, monkeypatch)
        found = torch.load(in_run / "end.pt", weights_only=True)
        compared = 0
        for key, wanted in oracle.items():
            for one, other in zip(tensors(found[key], key), tensors(wanted, key), strict=True):
                torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
                compared += 1
        assert compared >= 4
        in_script_units(found, torch.load(start / "end.pt", weights_only=True))


def tensors(value, key):
    """The tensors of a model or an average; optimizers are in other units by hand."""
    if isinstance(value, dict) and "param_groups" not in value and key not in ("scaler", "sg", "scheduler"):
        return list(value.values())
    return value if isinstance(value, list) else []


def in_script_units(found, start):
    """The optimizers of a run's checkpoint have the script's numbers, whatever the batch size."""
    for key, value in found.items():
        if isinstance(value, dict) and "param_groups" in value:
            for group, before in zip(value["param_groups"], start[key]["param_groups"], strict=True):
                for name in ("betas", "alpha", "eps", "weight_decay"):
                    assert group.get(name) == before.get(name), (key, name)
