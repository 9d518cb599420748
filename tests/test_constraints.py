"""The pinned versions: those of `make test` and those of `make test-integrations`."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: mlflow and what it needs go with older ones.
OLDER = {"importlib-metadata", "python-dateutil"}


def normalized(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(name):
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return {normalized(name): version for name, version in (line.split("==") for line in lines if line[0] != "#")}


def test_both_environments_have_the_same_versions_but_for_what_mlflow_holds_back():
    ours, all_of_them = pins("constraints.txt"), pins("constraints-integrations.txt")
    assert "torch" in ours
    assert {name for name in ours.keys() & all_of_them.keys() if ours[name] != all_of_them[name]} == OLDER


def test_every_library_that_is_installed_for_a_job_is_pinned():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for extra, name in (("dev", "constraints.txt"), ("integrations", "constraints-integrations.txt")):
        needed = {normalized(re.match(r"[\w.-]+", one)[0]) for one in extras[extra]} - {"rootscale"}
        assert needed <= pins(name).keys(), needed - pins(name).keys()
