import os
import stat
import subprocess
import sys
import threading
import time

import pytest

from rootscale.files import locked, remove_temporary, this_command, whole


def test_a_lock_is_given_to_one_at_a_time_and_waited_for_on_request(tmp_path):
    place, order = tmp_path / "lock", []
    with locked(place) as first, locked(place) as second:
        assert (first, second) == (True, False)
    with locked(place) as again:
        assert again

    def hold():
        with locked(place) as mine:
            order.append(("held", mine))
            ready.set()
            time.sleep(0.3)
            order.append("let go")

    ready = threading.Event()
    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait()
    with locked(place, lambda: True) as mine:
        order.append(("waited", mine))
    thread.join()
    assert order == [("held", True), "let go", ("waited", True)]


def test_waiting_for_a_lock_may_be_given_up(tmp_path):
    asked = iter([True, True, False])
    with locked(tmp_path / "lock"), locked(tmp_path / "lock", lambda: next(asked)) as mine:
        assert not mine
    assert list(asked) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    place = tmp_path / "pipe"
    os.mkfifo(place)
    reader = os.open(place, os.O_RDONLY | os.O_NONBLOCK)
    with whole(place) as temporary:
        temporary.write_text("all of it")
    assert stat.S_ISFIFO(place.stat().st_mode)
    assert os.read(reader, 100) == b"all of it"
    os.close(reader)
    assert list(tmp_path.iterdir()) == [place]
    assert not temporary.exists()


def test_temporary_files_of_killed_processes_are_removed_and_those_of_running_ones_are_kept(tmp_path):
    code = """
import os, sys
from rootscale.files import whole
with whole(sys.argv[1]):
    os.kill(os.getpid(), 9)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "killed.json")], env=environment, check=False)
    assert len(list(tmp_path.iterdir())) == 1
    with whole(tmp_path / "mine-2.json") as mine:
        assert len(list(tmp_path.iterdir())) == 2
        remove_temporary(tmp_path)
        assert list(tmp_path.iterdir()) == [mine]
    elsewhere = tmp_path / f".run-anotherhost-{os.getpid()}-abc.tmp"
    elsewhere.touch()
    remove_temporary(tmp_path)
    assert elsewhere.exists(), "nobody here knows whether its process is running"
    remove_temporary(tmp_path, all_processes=True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine-2.json"]


@pytest.mark.parametrize(
    ("program", "told"), [("/here/bin/rootscale", "rootscale"), ("/here/rootscale/__main__.py", "python -m rootscale")]
)
def test_the_command_of_this_process_can_be_typed_elsewhere(monkeypatch, program, told):
    monkeypatch.setattr(sys, "argv", [program, "study", "gpt-switch", "--out", "/here", "--seeds", "2"])
    assert this_command() == f"{told} study gpt-switch --seeds 2"
