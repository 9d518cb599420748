"""The examples of loops of one's own, each with its real library: converted, they stay where the base is."""

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("library", ["pytorch", "trainer", "lightning"])
def test_the_example_is_not_different(library, capsys):
    needed = {"trainer": "transformers", "lightning": "lightning"}
    if library in needed:
        pytest.importorskip(needed[library])
    runpy.run_path(str(EXAMPLES / f"own_loop_{library}.py"))["main"](seeds=4)
    out = capsys.readouterr().out
    assert re.match("(same|undecided): 4 pairs of runs, tolerance 10 %", out)
    assert abs(float(re.search(r"largest gap ([-+0-9.]+) %", out)[1])) < 10
