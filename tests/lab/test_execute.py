"""Executors: errors, interrupts and deadlines of jobs."""

import os
import signal
import threading
import time

import pytest

from rootscale.lab import Deadline, Forked, Here, UnfinishedError, execute, processes
from rootscale.lab.execute import can_fork, default_executor

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
forks = pytest.mark.skipif(not can_fork(), reason="this process cannot be forked: JAX is loaded")


def silent(number, share):
    pass


def waits(tell, stop):
    while not stop.asked:
        time.sleep(0.01)
    stop.end()


def broken(tell, stop):
    raise ValueError("no such weights")


@forks
def test_the_error_of_a_process_reaches_the_user_and_stops_the_others(tmp_path):
    with pytest.raises(ValueError, match="no such weights"):
        Forked(2).run([broken, waits], tmp_path, silent)


@forks
@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (lambda: os._exit(0), "job 0 ended its process with exit code 0 before it was finished"),
        (lambda: os._exit(3), "job 0 ended its process with exit code 3"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), r"job 0 was killed by SIGKILL \(so does the kernel"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "job 0 was killed by SIGSEGV"),
    ],
)
def test_a_job_that_does_not_say_that_it_has_ended_has_failed(tmp_path, ends, said):
    with pytest.raises(ValueError, match=said):
        Forked(2).run([lambda tell, stop: ends(), waits], tmp_path, silent)


def test_a_job_in_this_process_cannot_end_it(tmp_path):
    with pytest.raises(RuntimeError, match=r"job 0 called os._exit\(0\)"):
        Here().run([lambda tell, stop: os._exit(0)], tmp_path, silent)


@forks
def test_a_job_that_hangs_is_ended_when_it_was_asked_to_stop(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(execute, "PATIENCE", 0.3)

    def hangs(tell, stop):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        (tmp_path / "begun").touch()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        time.sleep(60)

    monkeypatch.setattr(processes, "GRACE", 0.2)
    began = time.monotonic()
    with pytest.raises(UnfinishedError):
        Forked(1, deadline=Deadline.after(0.5)).run([hangs], tmp_path, silent)
    assert time.monotonic() - began < 10
    assert "job 0 did not stop for" in caplog.text


@forks
def test_a_process_that_is_told_to_end_by_itself_interrupts_all(tmp_path):
    def told(tell, stop):
        os.kill(os.getpid(), signal.SIGTERM)
        waits(tell, stop)

    with pytest.raises(KeyboardInterrupt):
        Forked(2).run([told, waits], tmp_path, silent)


@forks
def test_an_error_that_cannot_be_pickled_reaches_the_user_as_its_text(tmp_path):
    class OddError(Exception):
        def __init__(self, one, two):
            super().__init__(f"{one} and {two}")

    def odd(tell, stop):
        raise OddError(1, 2)

    with pytest.raises(RuntimeError, match="OddError: 1 and 2"):
        Forked(2).run([odd], tmp_path, silent)


@pytest.mark.parametrize("executor", [Here, pytest.param(Forked, marks=forks)])
def test_jobs_see_the_deadline_and_no_other_is_started(tmp_path, executor):
    def leaves_a_trace(tell, stop):
        (tmp_path / "started").touch()

    jobs = [*[waits] * executor().workers(), leaves_a_trace]
    with pytest.raises(UnfinishedError):
        executor(deadline=Deadline.after(0.2)).run(jobs, tmp_path, silent)
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("executor", [Here(), pytest.param(Forked(2), marks=forks)])
def test_an_interrupt_reaches_all_jobs(tmp_path, executor):
    event = threading.Event()
    threading.Timer(0.2, event.set).start()
    with pytest.raises(KeyboardInterrupt):
        executor.run([waits, waits], tmp_path, silent, event)


@pytest.mark.parametrize("executor", [Here(), pytest.param(Forked(2), marks=forks)])
def test_progress_is_that_of_every_job(tmp_path, executor):
    found = []
    jobs = [lambda tell, stop, i=i: (tell(0.5), tell(1.0)) for i in range(3)]
    executor.run(jobs, tmp_path, lambda number, share: found.append((number, share)))
    assert sorted(found) == [(i, share) for i in range(3) for share in (0.5, 1.0)]


def test_a_deadline_counts_from_now():
    assert Deadline.after(None).left == float("inf")
    assert not Deadline.after(60).passed
    assert 59 < Deadline.after(60).left <= 60
    assert Deadline.after(0).passed
    assert Deadline.after(0).left == 0


def test_the_default_is_a_process_for_each_core_but_for_a_gpu():
    assert default_executor("mps") == Here()
    assert default_executor("cpu") == (Forked() if can_fork() else Here())
    if can_fork():
        assert Forked().workers() == len(os.sched_getaffinity(0))
