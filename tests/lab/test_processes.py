"""Processes under a guard, and checks that are killed, asked to end, or have a program that does odd things."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from rootscale.cli import main
from rootscale.files import held_locks, locked
from rootscale.lab import Table, processes
from rootscale.lab.execute import can_fork
from rootscale.lab.processes import Child

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc"),
]
forks = pytest.mark.skipif(not can_fork(), reason="this process cannot be forked: JAX is loaded")


def alive(pid):
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(found, seconds=30.0):
    until = time.monotonic() + seconds
    while not (result := found()):
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)
    return result


def number_in(path):
    return wait_for(lambda: path.exists() and path.read_text().strip()) and int(path.read_text())


# -- a process and its guard


@pytest.fixture(params=["command", pytest.param("forked", marks=forks)])
def begin(request, tmp_path):
    """Begin a Python program under a guard, as a command or in a forked process."""

    def begun(code):
        if request.param == "forked":
            return Child.forked(lambda: exec(code, {}))
        with (tmp_path / "output.txt").open("wb") as file:
            return Child.command([sys.executable, "-S", "-c", code], file)

    return begun


def test_how_a_process_ended_is_known(begin):
    assert begin("pass").wait() == 0
    assert begin("import os; os._exit(7)").wait() == 7
    assert begin("import os; os.kill(os.getpid(), 9)").wait() == -signal.SIGKILL


def test_a_process_ends_with_all_that_it_started_wherever_that_went(begin, tmp_path):
    code = f"""
import os, subprocess, time
for number, session in enumerate((False, True)):
    process = subprocess.Popen(["sleep", "60"], start_new_session=session)
    open("{tmp_path}/pid-" + str(number), "w").write(str(process.pid))
time.sleep(SECONDS)
"""
    child = begin(code.replace("SECONDS", "60"))
    pids = [number_in(tmp_path / f"pid-{number}") for number in (0, 1)]
    assert child.poll() is None
    child.end()
    assert child.wait() == -signal.SIGTERM
    assert not any(map(alive, pids))
    for path in tmp_path.glob("pid-*"):
        path.unlink()
    child = begin(code.replace("SECONDS", "0"))
    assert child.wait() == 0
    assert not any(alive(number_in(tmp_path / f"pid-{number}")) for number in (0, 1))


def test_a_process_that_does_not_want_to_end_is_killed(tmp_path, monkeypatch):
    code = f"""
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("{tmp_path}/begun", "w").write("1")
time.sleep(60)
"""
    monkeypatch.setattr(processes, "GRACE", 0.2)
    child = Child.forked(lambda: exec(code, {}))
    number_in(tmp_path / "begun")
    child.end()
    assert child.wait(20) == -signal.SIGKILL


@forks
@pytest.mark.parametrize("killed", ["parent", "guard"])
def test_a_command_ends_when_what_began_it_is_killed_and_holds_its_lock_until_then(tmp_path, killed):
    code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"
    words = [sys.executable, "-S", "-c", code, str(tmp_path / "pid")]

    def begins_and_waits():
        (tmp_path / "parent").write_text(str(os.getpid()))
        with locked(tmp_path / "lock"), (tmp_path / "output.txt").open("wb") as file:
            child = Child.command(words, file, held_locks())
            (tmp_path / "guard").write_text(Path(f"/proc/self/task/{os.getpid()}/children").read_text())
            child.wait()

    parent = Child.forked(begins_and_waits)
    pid = number_in(tmp_path / "pid")
    with locked(tmp_path / "lock") as free:
        assert not free
    os.kill(number_in(tmp_path / killed), signal.SIGKILL)
    parent.wait(20)
    with locked(tmp_path / "lock", lambda: True):
        assert not alive(pid)


# -- a check

LOOP = """
import json, math, os, signal, subprocess, sys, time
from pathlib import Path

def train(batch_size, seed, log):
    for samples in range(batch_size, 401, batch_size):
        log(samples=samples, loss=math.exp(-samples / 100) + 1e-3 * math.sin(seed))
        if (batch_size, seed, samples) == (16, 1, 208):
            odd(log)
"""
#: What a loop does in the middle, and what is said of it.
ODD = {
    "exit 0": ("os._exit(0)", "B = 16, seed 1 ended its process with exit code 0 before it was finished"),
    "exit 3": ("os._exit(3)", "B = 16, seed 1 ended its process with exit code 3 before it was finished"),
    "no memory": ("os.kill(os.getpid(), 9)", "B = 16, seed 1 was killed by SIGKILL"),
    "log of a fork": (
        "pid = os.fork()\n    if not pid: log(samples=1, loss=1)\n    os.waitpid(pid, 0)",
        "log was called in a process that the loop has forked",
    ),
}


@forks
@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("odd", ODD)
def test_a_run_that_ends_oddly_is_named_and_is_no_verdict(tmp_path, capfd, odd, workers):
    code, said = ODD[odd]
    (tmp_path / "odd.py").write_text(f"{LOOP}\ndef odd(log):\n    {code}\n")
    words = ["check", f"{tmp_path / 'odd.py'}:train", "--batch-size", "4", "--to", "16", "--seeds", "2"]
    code = main([*words, "--workers", workers, "--out", str(tmp_path / "kept")])
    assert said in capfd.readouterr().err
    if odd == "log of a fork":  # it is the fork's mistake, and the run goes on
        assert code == 0
        assert len(list(tmp_path.rglob("log.jsonl"))) == 4
        return
    assert code == 2
    assert not (tmp_path / "kept" / "table.npz").exists()
    assert len(list(tmp_path.rglob("log.jsonl"))) >= 2
    (tmp_path / "odd.py").write_text(f"{LOOP}\ndef odd(log):\n    pass\n")
    assert main([*words, "--workers", workers, "--out", str(tmp_path / "kept")]) == 0


@forks
def test_a_process_that_a_loop_forks_and_forgets_writes_nothing(tmp_path, capfd):
    (tmp_path / "odd.py").write_text(f"{LOOP}\ndef odd(log):\n    if not os.fork(): log = print\n    time.sleep(.1)\n")
    (tmp_path / "odd.py").write_text((tmp_path / "odd.py").read_text().replace("odd(log)\n", "odd(log); return\n", 1))
    words = ["check", f"{tmp_path / 'odd.py'}:train", "--batch-size", "4", "--to", "16", "--seeds", "2"]
    assert main([*words, "--workers", "1", "--out", str(tmp_path / "kept")]) in (0, 1, 3)
    assert Table.load(tmp_path / "kept").base.trajectory.replicas == 2
    (record,) = [path for path in tmp_path.rglob("log.jsonl") if len(path.read_text().splitlines()) == 13]
    assert json.loads(record.with_name("run.json").read_text())["seeds"] == [1]


COMMAND = """
import json, math, os, sys, time
size, seed, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
with open(path, "a") as file:
    for samples in range(4, 401, 4):
        row = {"samples": samples, "loss": math.exp(-samples / 100) + 1e-3 * math.sin(seed)}
        print(json.dumps(row), file=file, flush=True)
        if samples == 200 and os.path.exists(sys.argv[4]):
            open(sys.argv[4] + ".pid", "w").write(str(os.getpid()))
            time.sleep(60)
"""


@forks
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_command_ends_with_its_check_and_a_restart_makes_what_is_missing(tmp_path, capfd, number):
    (tmp_path / "own.py").write_text(COMMAND)
    (tmp_path / "hang").touch()
    text = f"{sys.executable} -S {tmp_path / 'own.py'} {{batch_size}} {{seed}} {{folder}}/a.jsonl {tmp_path / 'hang'}"
    words = ["check", "--command", text, "--log", "{folder}/a.jsonl", "--batch-size", "4", "--to", "8"]
    words += ["--seeds", "2", "--workers", "2", "--out", str(tmp_path / "kept")]

    def check():
        (tmp_path / "check").write_text(str(os.getpid()))
        os._exit(main(words))

    child = Child.forked(check)
    pid = number_in(tmp_path / "hang.pid")
    os.kill(number_in(tmp_path / "check"), number)
    code = child.wait(40)
    assert not alive(pid)
    if number != signal.SIGKILL:
        assert code == 130
        assert "interrupted: the runs so far are in" in capfd.readouterr().err
    (tmp_path / "hang").unlink()
    assert main(words) == 0


@forks
def test_a_second_check_waits_for_the_run_of_the_first_and_says_whom_for(tmp_path, capfd):
    (tmp_path / "own.py").write_text(COMMAND)
    (tmp_path / "hang").touch()
    text = f"{sys.executable} -S {tmp_path / 'own.py'} {{batch_size}} {{seed}} {{folder}}/a.jsonl {tmp_path / 'hang'}"
    words = ["check", "--command", text, "--log", "{folder}/a.jsonl", "--batch-size", "4", "--to", "8"]
    words += ["--seeds", "2", "--workers", "1", "--out", str(tmp_path / "kept")]
    first = Child.forked(lambda: os._exit(main(words)))
    number_in(tmp_path / "hang.pid")
    second = Child.forked(lambda: os._exit(main(words)))
    said = ""

    def waits():
        nonlocal said
        said += capfd.readouterr().err
        return "waiting for process " in said

    wait_for(waits)
    assert "which is making B = 4, seed 0 in" in said
    first.end()
    first.wait()
    (tmp_path / "hang").unlink()
    assert second.wait(60) == 0
