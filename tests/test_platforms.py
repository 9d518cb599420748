"""What docs/platforms.md says of systems that are not this one, as far as it can be seen from here."""

import os
import sys

import pytest

from rootscale.files import lock_holder, locked
from rootscale.lab import Forked


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_systems_than_linux_make_runs_in_one_process(system, monkeypatch):
    monkeypatch.setattr(sys, "platform", system)
    assert Forked(8).workers() == 1


def test_without_flock_a_file_that_is_touched_is_the_lock(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with locked(tmp_path / "lock") as first, locked(tmp_path / "lock") as second:
        assert (first, second) == (True, False)
        assert lock_holder(tmp_path / "lock").startswith(f"process {os.getpid()} on ")
    with locked(tmp_path / "lock") as third:
        assert third
