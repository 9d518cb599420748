"""Checks made up for the tests of the report: curves as digits has them, without a run."""

import warnings
from dataclasses import replace
from fractions import Fraction

import numpy as np

from rootscale import Adam, Plan
from rootscale.gap import Gap
from rootscale.lab import Result, Table
from rootscale.trajectory import Trajectory
from rootscale.verdict import Comparison, compare

PLAN = Plan(Adam(eta=5e-4, beta1=0.99, beta2=0.999), batch_size=4, steps=13_000, intervals={"eval": 250})
SWITCH = 12_000
TOLERANCE = 0.05
FUNCTIONS = (
    "train loss", "test loss", "test accuracy", "gradient norm", "Tr Sigma", "parameter norm", "noise scale",
)  # fmt: skip


#: Of the shift, for each test function: what changes the loss changes the norm of the parameters less.
SHARES = dict(zip(FUNCTIONS, (1.0, 0.9, -0.6, 0.7, 0.4, -0.15, 0.3), strict=True))


def curves(samples):
    """The mean of every test function after so many samples."""
    loss = 0.06 + 2.24 * np.exp(-((samples / 7_000) ** 0.75))
    test = loss + 0.03 + 0.05 * samples / 52_000
    gradient = 0.12 + 1.1 * np.exp(-samples / 9_000)
    trace = 6 + 40 * np.exp(-((samples - 4_000) ** 2) / 1.2e8)
    return dict(
        zip(
            FUNCTIONS,
            (loss, test, 0.975 - 0.87 * np.exp(-samples / 6_000), gradient, trace, 5 + 0.11 * np.sqrt(samples),
             38 + 900 * (1 - np.exp(-samples / 24_000))),
            strict=True,
        )
    )  # fmt: skip


def trajectory(samples, seeds, rng, shift=0.0, noise=0.008):
    """Replicas that wander smoothly around the means; ``shift`` is their distance, as a share of the range."""
    mean = curves(samples)
    values = {}
    for name, curve in mean.items():
        steps = rng.normal(size=(len(seeds), len(samples)))
        wander = np.stack([np.convolve(row, np.ones(5) / 5**0.5, mode="same") for row in steps])
        size = np.ptp(curve) * noise * (4 if name == "noise scale" else 1)
        values[name] = curve + SHARES[name] * np.ptp(curve) * shift + size * wander
    times = (samples - samples[0]) / 4 * 5e-4**2 if samples[0] else samples / 4 * 5e-4**2
    meta = {"samples": samples.astype(int).tolist(), "seeds": list(seeds)}
    return Trajectory(times, values, meta=meta)


def comparison(base, other, tolerance=TOLERANCE, width=3.2, seeds_needed=41):
    """As the check makes one, with the width of its band given instead of found by resampling."""
    gaps = {}
    for name in base.names:
        if name == "noise scale":
            continue
        span = float(np.ptp(base[name].mean))
        gap = (other[name].mean - base[name].mean) / span
        se = np.hypot(other[name].se, base[name].se) / span
        half = width * se
        low, high = gap - half, gap + half
        if np.any(low > tolerance) or np.any(high < -tolerance):
            verdict = "different"
        else:
            verdict = "same" if np.all((low >= -tolerance) & (high <= tolerance)) else "undecided"
        needed = seeds_needed if verdict == "undecided" else None
        ends = (float(base[name].mean.min()), float(base[name].mean.max()))
        gaps[name] = Gap(name, base.times, gap, se, span, low, high, verdict, needed, span=ends)
    lost = (int(other.diverged[-1]), int(base.diverged[-1]))
    return Comparison(
        gaps, tolerance, 0.95, (other.replicas, base.replicas), False, lost, (), width, ("train loss", "test loss")
    )


def make_check(warm=True, seeds=16):
    """B = 16 is the same, B = 64 undecided, B = 64 by the linear rule different, SVAG the same.

    The losses decide; the gradient norm of B = 16, which is followed, has a larger gap than they.
    """
    rng = np.random.default_rng(0)
    samples = np.linspace(SWITCH if warm else 0, 52_000, 41).round()
    grow = np.clip((samples - samples[0]) / 12_000, 0, 1) * np.exp(-((samples - samples[0]) / 45_000))
    base = trajectory(samples, range(seeds), rng)
    arms = []
    for label, kind, batch_size, rule, shift, noise, guards, causes in (
        ("B = 16", "batch size", 16, None, 0.006 * grow, 0.010, (), ()),
        ("B = 64", "batch size", 64, None, 0.055 * grow, 0.022, (), ()),
        (
            "B = 64, linear", "batch size", 64, "linear", 0.27 * grow, 0.013,
            ("the linear rule is for SGD; it does not keep the dynamics of adam: use rule='sqrt'",),
            (
                "the linear rule raises the learning rate by 16; the square-root rule by 4",
                "beta1, beta2 and eps were left alone: the averages run over 16 times as many samples",
            ),
        ),
        ("SVAG ell = 2", "svag", Fraction(1), None, -0.004 * grow, 0.008, (), ()),
    ):  # fmt: skip
        other = trajectory(samples, range(100, 100 + seeds), rng, shift, noise)
        if label == "B = 16":
            other = followed(other, "gradient norm", 0.15)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plan = PLAN.at(batch_size, rule)
        changes = PLAN.explain(batch_size, rule).to_dict()
        arms.append(Result(label, kind, plan, changes, other, comparison(base, other), guards, causes))
    before = trajectory(np.linspace(0, SWITCH, 13), range(seeds), rng) if warm else None
    made = {
        "command": "rootscale check rootscale.lab.tasks:digits --to 16 64 --ells 2 --switch-at 12000 --seeds 16",
        "versions": {"rootscale": "0.1.0", "torch": "2.13.0", "numpy": "2.4.6", "python": "3.11.2"},
        "hardware": "2 x 2.1 GHz CPU",
        "seconds": 83.4,
    }
    return Table(
        "digits: MLP 64-32-10",
        Result("B = 4", "base", PLAN, None, base),
        tuple(arms),
        SWITCH if warm else 0,
        made,
        before,
    )


def followed(trajectory, name, share):
    """The trajectory with a test function moved by a share of its range."""
    values = trajectory.values[name]
    moved = values + share * np.ptp(values.mean(0))
    return replace(trajectory, values={**trajectory.values, name: moved})


def few(check, *names):
    """The check with these test functions only: figures take their time."""

    def cut(arm):
        values = {name: arm.trajectory.values[name] for name in names}
        arm = replace(arm, trajectory=replace(arm.trajectory, values=values))
        if arm.comparison is None:
            return arm
        gaps = {name: gap for name, gap in arm.comparison.gaps.items() if name in names}
        deciding = tuple(name for name in arm.comparison.deciding if name in names)
        return replace(arm, comparison=replace(arm.comparison, gaps=gaps, deciding=deciding))

    return replace(check, base=cut(check.base), others=tuple(map(cut, check.others)))


def unjudged(check):
    """The check with one seed and no verdicts, as expensive experiments have it."""

    def few(arm):
        values = {name: value[:1] for name, value in arm.trajectory.values.items()}
        meta = {**arm.trajectory.meta, "seeds": [0]}
        return replace(arm, causes=(), trajectory=replace(arm.trajectory, values=values, meta=meta))

    base = few(check.base)
    others = [few(arm) for arm in check.others]
    compared = [compare(base.trajectory, arm.trajectory, deciding=("train loss", "test loss")) for arm in others]
    pairs = zip(others, compared, strict=True)
    return replace(check, base=base, others=tuple(replace(arm, comparison=one) for arm, one in pairs))


def renamed(check, names):
    """The check with test functions called otherwise."""

    def rename(arm):
        values = {names.get(name, name): value for name, value in arm.trajectory.values.items()}
        trajectory = replace(arm.trajectory, values=values)
        if arm.comparison is None:
            return replace(arm, trajectory=trajectory)
        gaps = {names.get(name, name): gap for name, gap in arm.comparison.gaps.items()}
        gaps = {name: replace(gap, name=name) for name, gap in gaps.items()}
        deciding = tuple(names.get(name, name) for name in arm.comparison.deciding)
        return replace(
            arm, trajectory=trajectory, comparison=replace(arm.comparison, gaps=gaps, deciding=deciding)
        )  # fmt: skip

    return replace(check, base=rename(check.base), others=tuple(map(rename, check.others)))


def with_text(text):
    """A check in which everything that users can name says ``text``."""
    check = renamed(make_check(), {"train loss": text})
    first = check.others[0]
    changes = {**first.changes, "rule": text, "warnings": [text]}
    changes["changes"] = [{**row, "name": text, "why": text, "source": text} for row in changes["changes"]]
    comparison = replace(first.comparison, notes=(text,))
    hostile = replace(first, label=text, guards=(text,), causes=(text,), changes=changes, comparison=comparison)
    base = replace(check.base, label=text + " base")
    made = {text: text, "nested": {text: [text, {text: text}]}, "command": text}
    return replace(check, task=text, base=base, others=(hostile, *check.others[1:]), made=made)
