"""Kill, interrupt and starve runs 200 times, restart them, and count what was lost.

Each try makes a small check (or a sweep, or a converted checkpoint) in a process of its own, harms it at a random
moment, and gives the same command again. It then compares what there is with what an undisturbed process made:

- *lost*: a log that is not the undisturbed one, byte for byte from its last beginning (a loop that begins anew writes
  below what was there), or a curve that is off by more than 1e-9; a finished run that was made again; a temporary file
  that stayed.
- *second writers*: every run holds a lock of its own (POSIX, which rootscale does not use) from its first row to its
  last; a run that cannot have it has found another writer of the same run at work.
- *left running*: processes of a run that live on when all is done.
- *false verdicts*: an exit code of 0, 1 or 3 without a table on disk.

    make faults                                         # some fifteen minutes; writes the table into docs/promises.md
    python benchmarks/faults.py --share 0.02            # each kind once or twice

A full disk is a file system in memory (tmpfs), mounted in a name space of this program's own (``unshare``).
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rootscale import Adam, BatchSize, Plan
from rootscale.cli import main as rootscale
from rootscale.lab import Arm, Forked, Settings, Store, Study, Task, Variant
from rootscale.trajectory import Trajectory

PAGE = Path(__file__).parents[1] / "docs" / "promises.md"
MARKS = "<!-- faults -->", "<!-- /faults -->"

#: Set where disks can be mounted that nobody else sees.
INSIDE = "ROOTSCALE_FAULTS"
#: A loop as a function and as a program: its rows depend on batch size and seed alone.
LOOP = """
import fcntl, json, math, os, sys, time

def train(batch_size, seed, log):
    witness = open(os.path.join(os.environ["WITNESSES"], f"{batch_size}-{seed}"), "a")
    try:
        fcntl.lockf(witness, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        open(os.path.join(os.environ["WITNESSES"], f"second-{os.getpid()}"), "w").close()
    print(os.getpid(), file=witness, flush=True)
    for samples in range(batch_size, 1201, batch_size):
        log(samples=samples, loss=math.exp(-samples / 300) + 1e-3 * math.sin(seed))
        time.sleep(0.001)

if __name__ == "__main__":
    with open(sys.argv[3], "w") as file:
        train(int(sys.argv[1]), int(sys.argv[2]), lambda **row: print(json.dumps(row), file=file, flush=True))
"""
#: Exit codes that say something about a verdict.
VERDICTS = (0, 1, 3)
#: Seconds that processes have to be gone when all is done.
PATIENCE = 15.0
#: Kilobytes that are left on a disk that gets full, and later.
SMALL, LARGE = (8, 72), 65536


@dataclass
class Place:
    """The folder of a try."""

    folder: Path

    @property
    def out(self) -> Path:
        return self.folder / "disk" / "out"

    def witnesses(self) -> list[Path]:
        return list((self.folder / "witnesses").iterdir())


@dataclass
class Count:
    """What became of a kind of fault."""

    times: int = 0
    lost: int = 0
    second: int = 0
    running: int = 0
    false: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return bool(self.lost or self.second or self.running or self.false)


# -- what is disturbed -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """Something that is made in a process of its own.

    Args:
        name: in the table.
        make: makes it in a place; returns an exit code.
        result: what it has made, to be compared.
    """

    name: str
    make: Callable[[Place], int]
    result: Callable[[Place], dict[str, Any]]


def check_function(place: Place) -> int:
    return _check(place, f"{place.folder / 'loop.py'}:train")


def check_command(place: Place) -> int:
    command = f"{sys.executable} -S {place.folder / 'loop.py'} {{batch_size}} {{seed}} {{log}}"
    return _check(place, "--command", command)


def _check(place: Place, *what: str) -> int:
    words = ["check", *what, "--batch-size", "4", "--to", "8", "--seeds", "2", "--workers", "2"]
    return rootscale([*words, "--out", str(place.out)])


def logs(place: Place) -> dict[str, Any]:
    """Return the logs of all runs from their last beginning, and what nobody will remove any more."""
    found: dict[str, Any] = {}
    for path in place.out.rglob("log.jsonl"):
        rows = path.read_bytes().splitlines(keepends=True)
        samples = [json.loads(row)["samples"] for row in rows]
        begun = max(number for number, there in enumerate(samples) if there == samples[0])
        found[str(path.relative_to(place.out))] = b"".join(rows[begun:])
    return found | {str(path): b"" for path in place.out.rglob(".*.tmp")}


def sweep_task(place: Place) -> int:
    """Train a small task from a warm start, with a checkpoint whenever there may be one."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 6, generator=generator, dtype=torch.float64)
    y = (x @ torch.randn(6, 1, generator=generator, dtype=torch.float64)).squeeze(1)
    task = Task(
        "line", Plan(Adam(2e-3, 0.98, 0.998), BatchSize(4), steps=200), lambda: torch.nn.Linear(6, 1).double(),
        lambda outputs, target: (outputs.squeeze(1) - target) ** 2, (x, y),
    )  # fmt: skip
    settings = Settings(grid=tuple(range(320, 801, 80)), switch_at=320)
    store = Store(place.out, checkpoint_every=0.0)
    study = Study("line", [Arm("base", task), Arm("four times", task, Variant(4))], settings=settings)
    study.make(study.arms, [0, 1], store, Forked(2))
    return 0


def curves(place: Place) -> dict[str, Any]:
    found: dict[str, Any] = {
        str(path.parent.name + path.parent.parent.name): Trajectory.load(path) for path in place.out.rglob("*.npz")
    }
    return found | {str(path): b"" for path in place.out.rglob(".*.tmp")}


def convert(place: Place) -> int:
    """Convert a checkpoint of 40 MB in the place of an older one."""
    source, target = place.folder / "source.pt", place.out / "target.pt"
    words = ["checkpoint", str(source), "--from", "16", "--to", "64", "--force", "-o", str(target)]
    return rootscale(words)


def files(place: Place) -> dict[str, Any]:
    return {path.name: path.read_bytes() for path in place.out.iterdir()}


FUNCTION = Work("a check of a function", check_function, logs)
COMMAND = Work("a check of a command", check_command, logs)
TASK = Work("a sweep of a task", sweep_task, curves)
CHECKPOINT = Work("a conversion of a checkpoint", convert, files)


# -- what is done to it ------------------------------------------------------------------------------------------------


def descendants(pid: int) -> dict[int, int]:
    """Return the processes below one, by their depth below it."""
    found, layer, depth = dict[int, int](), [pid], 0
    while layer:
        depth += 1
        below = []
        for parent in layer:
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
                below += list(map(int, text.split()))
        found |= dict.fromkeys(below, depth)
        layer = below
    return found


def send(number: signal.Signals, depth: int | None, pid: int, rng: random.Random) -> bool:
    """Send a signal to a process, or to one at a depth below it, or (None) to all of them; return whether it could."""
    below = descendants(pid)
    targets = [pid, *below] if depth is None else [pid] if not depth else [p for p, at in below.items() if at == depth]
    if not targets:
        return False
    if depth is not None:
        targets = [rng.choice(targets)]
    rng.shuffle(targets)
    for target in targets:
        with contextlib.suppress(ProcessLookupError):
            os.kill(target, number)
    return True


@dataclass(frozen=True)
class Fault:
    """A kind of harm.

    Args:
        name, where: in the table.
        work: what it is done to.
        times: how often.
        number, depth: the signal, and the process below that of the check which gets it; None is all of them.
        disk: whether the disk gets full instead.
        beside: whether another process makes the same at the same time.
        flock: whether the file system has locks.
        codes: exit codes that may follow.
    """

    name: str
    where: str
    work: Work
    times: int
    number: signal.Signals = signal.SIGKILL
    depth: int | None = 0
    disk: bool = False
    beside: bool = False
    flock: bool = True
    codes: tuple[int, ...] = (-signal.SIGKILL,)


TERM, INT = signal.SIGTERM, signal.SIGINT
FAULTS = [
    Fault("SIGTERM", "the check", FUNCTION, 15, TERM, codes=(130,)),
    Fault("SIGINT (Ctrl-C)", "the check", FUNCTION, 10, INT, codes=(130,)),
    Fault("SIGKILL", "the check", FUNCTION, 20),
    Fault("SIGKILL", "a run", FUNCTION, 15, depth=2, codes=(2,)),
    Fault("SIGKILL", "the guard of a run", FUNCTION, 15, depth=1, codes=(2,)),
    Fault("SIGKILL", "all processes, in any order", FUNCTION, 10, depth=None),
    Fault("SIGKILL", "the check, while a second one waits", FUNCTION, 10, beside=True),
    Fault("SIGKILL", "the check, on a file system without flock", FUNCTION, 5, flock=False),
    Fault("disk full", "the folder of the runs", FUNCTION, 15, disk=True, codes=(2,)),
    Fault("SIGTERM", "the check", COMMAND, 15, TERM, codes=(130,)),
    Fault("SIGKILL", "the check", COMMAND, 20),
    Fault("SIGKILL", "a run", COMMAND, 10, depth=2, codes=(2,)),
    Fault("SIGKILL", "the guard of the command", COMMAND, 10, depth=3, codes=(2,)),
    Fault("SIGKILL", "the command", COMMAND, 10, depth=4, codes=(2,)),
    Fault("SIGKILL", "all processes, in any order", COMMAND, 10, depth=None),
    Fault("disk full", "the folder of the runs", COMMAND, 5, disk=True, codes=(2,)),
    Fault("SIGKILL", "the sweep, with checkpoints all the time", TASK, 10),
    Fault("SIGKILL", "all processes, in any order", TASK, 5, depth=None),
    Fault("disk full", "the folder of the runs", TASK, 5, disk=True, codes=(2,)),
    Fault("SIGKILL", "the conversion", CHECKPOINT, 20),
    Fault("SIGTERM", "the conversion", CHECKPOINT, 5, TERM, codes=(130,)),
    Fault("disk full", "the folder of the new file", CHECKPOINT, 5, disk=True, codes=(2,)),
]


# -- a try -------------------------------------------------------------------------------------------------------------


def begin(work: Work, place: Place, flock: bool = True) -> int:
    """Begin work in a process of its own; return its id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.setsid()
        with (place.folder / "output.txt").open("ab") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        os.environ["WITNESSES"] = str(place.folder / "witnesses")
        if not flock:
            fcntl.flock = _no_flock
        code = work.make(place)
    except KeyboardInterrupt:
        code = 130
    except (OSError, ValueError) as error:  # what users are told, as the command does
        print(error)
        code = 2
    except Exception:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(code)


def _no_flock(*arguments: Any) -> None:
    raise OSError(errno.ENOSYS, "Function not implemented")


def end(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@contextlib.contextmanager
def disk(place: Place, kilobytes: int | None) -> Iterator[None]:
    """Mount the folder of a place as a disk of so many kilobytes."""
    path = place.folder / "disk"
    path.mkdir()
    if kilobytes is None:
        yield
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@contextlib.contextmanager
def prepared(work: Work, source: Path, kilobytes: int | None = None) -> Iterator[Place]:
    """Give the folder of a try."""
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        place = Place(Path(name))
        (place.folder / "witnesses").mkdir()
        (place.folder / "loop.py").write_text(LOOP)
        (place.folder / "output.txt").touch()
        with disk(place, kilobytes):
            if work is CHECKPOINT:
                os.link(source, place.folder / "source.pt")
                place.out.mkdir()
                (place.out / "target.pt").write_bytes(b"an older file")
            yield place


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Return whether two results are the same."""
    if a.keys() != b.keys():
        return False
    for name, value in a.items():
        if not isinstance(value, Trajectory):
            if value != b[name]:
                return False
        elif any(abs(v - b[name].values[key]).max() > 1e-9 for key, v in value.values.items()):
            return False
    return True


def finished(place: Place) -> dict[Path, int]:
    """Return the files of finished runs, with when they were written."""
    names = [path for name in ("log.jsonl", "trajectory.npz") for path in place.out.rglob(name)]
    return {path: path.stat().st_mtime_ns for path in names}


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def attempt(
    fault: Fault, source: Path, expected: dict[str, Any], seconds: float, rng: random.Random, count: Count
) -> bool:
    """Try a fault once; return whether it came before the end."""
    kilobytes = rng.randrange(*SMALL, 4) if fault.disk else None
    if kilobytes is not None and fault.work is CHECKPOINT:
        kilobytes *= 256  # a file of 40 MB
    with prepared(fault.work, source, kilobytes) as place:
        pid = begin(fault.work, place, fault.flock)
        second = begin(fault.work, place, fault.flock) if fault.beside else None
        below = {pid}
        if not fault.disk:
            until, came = time.monotonic() + rng.uniform(0, seconds), False
            while not came and not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if time.monotonic() >= until:
                    below |= set(descendants(pid))
                    came = send(fault.number, fault.depth, pid, rng)
                time.sleep(0.002)
        code = end(pid)
        done = finished(place)
        said = (place.folder / "output.txt").read_text(errors="replace")
        if code in VERDICTS:  # it had ended
            has = (place.out / "table.npz").exists() or fault.work in (TASK, CHECKPOINT)
            if not has:
                count.false += 1
            if second is not None:
                end(second)
            return not has
        if code not in fault.codes:
            count.notes.append(f"{fault.name}, {fault.where}: exit code {code}: {said[-500:]}")
            count.false += 1
        if fault.work is CHECKPOINT and files(place)["target.pt"] not in (b"an older file", expected["target.pt"]):
            count.lost += 1
        if fault.disk:
            subprocess.run(["mount", "-o", f"remount,size={LARGE}k", str(place.folder / "disk")], check=True)
        code = end(begin(fault.work, place, fault.flock) if second is None else second)
        now, result = finished(place), fault.work.result(place)
        if code != 0 or not same(result, expected) or any(now.get(path) != moment for path, moment in done.items()):
            said = (place.folder / "output.txt").read_text(errors="replace")
            count.lost += 1
            count.notes.append(f"{fault.name}, {fault.where}: {code} {sorted(result)} {said[-800:]}")
        count.second += any(path.name.startswith("second") for path in place.witnesses())
        writers = {int(word) for path in place.witnesses() for word in path.read_text().split()}
        until = time.monotonic() + PATIENCE
        while any(map(alive, writers | below)) and time.monotonic() < until:
            time.sleep(0.05)
        count.running += any(map(alive, writers | below))
        count.times += 1
        return True


def undisturbed(work: Work, source: Path) -> tuple[dict[str, Any], float]:
    """Return what work makes that nobody disturbs, and how long it takes."""
    with prepared(work, source) as place:
        began = time.monotonic()
        code = end(begin(work, place))
        spent = time.monotonic() - began
        if code != 0:
            raise RuntimeError(f"{work.name} ended with {code}: {(place.folder / 'output.txt').read_text()}")
        return work.result(place), spent


def write_source(path: Path) -> None:
    """Write a checkpoint of 40 MB, with the state of an optimizer after one step."""
    torch.manual_seed(0)
    model = torch.nn.Linear(1800, 1800)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(1, 1800)).square().mean().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


# -- all of them -------------------------------------------------------------------------------------------------------


def table(counts: list[tuple[Fault, Count]]) -> str:
    """Return what became of all faults, as a table of Markdown."""
    head = "| what | fault | of | times | lost | second writers | left running | false verdicts |"
    lines = [head, "|---|---|---|" + "---:|" * 5]
    rows = [(fault.work.name, fault.name, fault.where, count) for fault, count in counts]
    every = Count(
        *(sum(getattr(c, name) for _, c in counts) for name in ("times", "lost", "second", "running", "false"))
    )
    for what, name, where, count in [*rows, ("**all**", "", "", every)]:
        numbers = (count.times, count.lost, count.second, count.running, count.false)
        lines.append(f"| {what} | {name} | {where} | {' | '.join(map(str, numbers))} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--share", type=float, default=1.0, help="of the tries")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="TEXT", help="faults with this in their row, such as 'disk full'")
    parser.add_argument("--write", action="store_true", help="write the table into docs/promises.md")
    asked = parser.parse_args()
    if os.environ.get(INSIDE) is None:
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "--map-root-user", "--mount", sys.executable, "-W", "ignore", *sys.argv])
    torch.set_num_threads(1)
    rng, counts, began = random.Random(asked.seed), list[tuple[Fault, Count]](), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source.pt")
        write_source(source)
        expected = {work.name: undisturbed(work, source) for work in (FUNCTION, COMMAND, TASK, CHECKPOINT)}
        for fault in FAULTS:
            if asked.only not in f"{fault.work.name}: {fault.name}, {fault.where}":
                continue
            count, tries = Count(), max(1, round(asked.share * fault.times))
            limit = 20 * tries
            while count.times < tries and limit:
                limit -= 1
                attempt(fault, source, *expected[fault.work.name], rng, count)
            if count.times < tries:
                raise RuntimeError(f"{fault.name} of {fault.where} came too late in all tries")
            counts.append((fault, count))
            print(f"{fault.work.name}: {fault.name}, {fault.where}: {count}", flush=True)
    print(table(counts), f"\n{time.monotonic() - began:.0f} s")
    if asked.write:
        text = PAGE.read_text(encoding="utf-8")
        before, after = text.partition(MARKS[0])[0], text.partition(MARKS[1])[2]
        PAGE.write_text(f"{before}{MARKS[0]}\n\n{table(counts)}\n\n{MARKS[1]}{after}", encoding="utf-8")
    return int(any(count.failed for _, count in counts))


if __name__ == "__main__":
    sys.exit(main())
