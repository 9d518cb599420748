"""The search for the largest batch stops runs that are clearly different, and compares with the noise scale."""

from __future__ import annotations

import math

import pytest
import torch

from rootscale import Adam, Plan
from rootscale.lab import Forked, Here, Judge, Loop, Measure, Store, Task, find_largest
from rootscale.lab.early import PLACES, SPENT, _on_the_way, at_the_end
from rootscale.lab.largest import Search
from rootscale.lab.rounds import Rounds

X = torch.randn(100, 5, generator=torch.Generator().manual_seed(0))
Y = X[:, :3].argmax(1)


def task(steps: int = 200) -> Task:
    return Task(
        "mine", Plan(Adam(eta=5e-3, beta1=0.98), batch_size=4, steps=steps), lambda: torch.nn.Linear(5, 3),
        lambda outputs, y: torch.nn.functional.cross_entropy(outputs, y, reduction="none"), (X, Y),
    )  # fmt: skip


@pytest.mark.parametrize("execute", [Here(), Forked(2, together=1)], ids=["here", "forked"])
def test_runs_of_a_task_end_where_they_are_clearly_different_and_are_not_made_again(tmp_path, execute) -> None:
    search = Search(kappas=(8,), rule="none", rounds=Rounds.of(8))  # an eighth of the steps, all as long as before
    given = {"measure": Measure(points=12, noise=False), "execute": execute, "store": Store(tmp_path)}
    (branch,) = find_largest(task(), search, **given).branches
    (arm,) = branch.check.others
    assert arm.verdict == "different"
    stopped = arm.trajectory.meta["stopped_at"]
    assert stopped < 800
    assert arm.trajectory.meta["samples"][-1] == stopped
    assert branch.check.base.trajectory.meta["samples"][-1] == 800
    assert any(note.startswith(f"stopped at {stopped:g} of 800 samples") for note in arm.comparison.notes)
    folders = [place.parent for place in (tmp_path / "start-0" / "runs").glob("b-32*/*/run.json")]
    assert folders
    finished = sum((folder / "trajectory.npz").exists() for folder in folders)
    assert finished < (8 if execute.workers() > 1 else 1)  # one after the other, or all seeds at once
    made = []
    again = find_largest(task(), search, **{**given, "execute": Counting(made)}).branches[0]
    assert not made
    assert again.check.others[0].comparison.to_dict() == arm.comparison.to_dict()


class Counting(Here):
    """Notes how many jobs it is given."""

    def __init__(self, made: list[int]) -> None:
        super().__init__()
        object.__setattr__(self, "made", made)

    def run(self, jobs, folder, on_progress, interrupted=None):
        self.made.append(len(jobs))
        super().run(jobs, folder, on_progress, interrupted)


def test_a_batch_that_is_the_same_is_run_to_its_end(tmp_path) -> None:
    search = Search(kappas=(2,), rounds=Rounds.of(4), judge=Judge(tolerance=0.5))
    (branch,) = find_largest(task(), search, measure=Measure(points=12), execute=Here(), store=Store(tmp_path)).branches
    (arm,) = branch.check.others
    assert arm.verdict == "same"
    assert arm.trajectory.meta["samples"][-1] == 800
    assert arm.comparison.level == pytest.approx(1 - 0.05 * (1 - SPENT * len(PLACES)))


def test_all_looks_together_spend_what_the_judge_allows() -> None:
    judge = Judge(level=0.9)
    assert len(PLACES) * (1 - _on_the_way(judge).level) + 1 - at_the_end(judge).level == pytest.approx(0.1)


def logging(**more: float):
    def train(batch_size, seed, log, convert):
        for samples in range(32, 1601, 32):
            far = 0.2 if batch_size > 8 else 0.0
            log(
                samples=samples,
                loss=1 + far + math.exp(-samples / 400) + 1e-3 * math.sin(7 * seed + batch_size),
                **more,
            )

    return Loop("mine", train, 4)


def test_the_noise_scale_that_a_loop_logs_is_compared_with_the_answer(tmp_path) -> None:
    search = Search(kappas=(2, 4, 8))
    (branch,) = find_largest(
        logging(noise_scale=40.0, noise_scale_low=30.0), search, store=Store(tmp_path / "a"), execute=Here()
    ).branches
    assert (branch.same, branch.different) == (8, 16)
    assert branch.advice.batch_size == 30
    assert branch.to_dict()["noise_scale_allows"] == 30
    (bare,) = find_largest(logging(), search, store=Store(tmp_path / "b"), execute=Here()).branches
    assert bare.advice is None
    assert bare.to_dict()["noise_scale_unknown"] == "not logged: log(noise_scale=...), as a NoiseMeter gives it"


def test_a_budget_that_ends_before_the_first_verdict_says_nothing_and_the_search_goes_on(tmp_path) -> None:
    search, given = Search(kappas=(2, 4), rounds=Rounds.of(4)), {"store": Store(tmp_path), "execute": Here()}
    short = find_largest(task(2000), search, measure=Measure(points=12), budget=0.2, **given)
    (branch,) = short.branches
    assert branch.check is None
    assert branch.to_dict()["same"] is None
    assert short.ramp == ()
    assert str(branch) == "after 0 samples nothing can be said: the budget ended before B = 8 was judged"
    again = find_largest(task(2000), search, measure=Measure(points=12), budget=600, **given).branches[0]
    assert again.check is not None
    assert again.sizes[0] == 8
    with pytest.raises(ValueError, match="budget must be a number of seconds above 0"):
        find_largest(task(), search, budget=0, **given)


def test_the_noise_scales_of_a_task_have_intervals_in_each_norm(tmp_path) -> None:
    search = Search(kappas=(2,), rounds=Rounds.of(4), judge=Judge(tolerance=0.5))
    measure = Measure(points=6, norms=True)
    (branch,) = find_largest(
        task(), search, starts=(200,), measure=measure, execute=Here(), store=Store(tmp_path)
    ).branches
    assert list(branch.noise) == ["Euclidean", "Adam's metric", "sign", "spectral"]
    assert all(0 <= scale.low < scale.value < scale.high for scale in branch.noise.values())


def test_a_loop_is_stopped_on_the_way_and_the_rest_of_its_seeds_is_not_run(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("rootscale.lab.early.EVERY", 0.0)
    monkeypatch.setattr("rootscale.lab.early.SHARE", 1e9)
    (branch,) = find_largest(logging(), Search(kappas=(4,)), store=Store(tmp_path), execute=Here()).branches
    (arm,) = branch.check.others
    assert arm.verdict == "different"
    seeds = arm.trajectory.replicas
    assert seeds in (2, 3)
    assert arm.trajectory.meta["stopped_at"] == pytest.approx(32 + 0.25 * (1600 - 32))
    assert [note for note in arm.comparison.notes if note.startswith("stopped at 424 of 1,600 samples")]
    (last,) = (tmp_path / "start-0" / "runs").glob(f"b-16*/seeds-{seeds - 1}")
    assert not (last / "log.jsonl").exists()
    assert not list((tmp_path / "start-0" / "runs").glob(f"b-16*/seeds-{seeds}"))
