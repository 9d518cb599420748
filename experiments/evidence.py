"""Writes the table of evidence that the package ships, from the stored studies alone.

    python experiments/evidence.py            (part of `make results`)

A row is an arm of a study that differs from its base by its batch size, or by its samples alone (the null). What was
converted is read from the plan and the rule of the arm, not from its label: *everything* is the family's own rule as it
is now, whatever it was called when it was run. The nets of the studies are named here.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from rootscale.averagings import stability_bound
from rootscale.evidence import Row, What
from rootscale.files import whole
from rootscale.lab import Result, Table, Variant
from rootscale.rules import default_rule

HERE = Path(__file__).parent
#: The table in the package.
SHIPPED = HERE.parent / "src" / "rootscale" / "evidence.csv"
_SMALL = ("ablations", "floors", "stages", "stability")
_KINDS = ("muon", "lion", "signum", "lamb", "signsgd")
#: What the studies train: for each net, how the names of its studies begin; the longest that fits counts.
NETS: Mapping[str, Sequence[str]] = {
    "MLP": (
        *(f"{study}-mlp" for study in _SMALL), "floors-digits", "digits-switch", "forecast-digits",
        "momentum-lion-digits",
        "momentum-muon-digits", *(f"momentum-default-{kind}-mlp" for kind in _KINDS),
    ),
    "MLP with plain momentum": ("momentum-muon-plain-digits",),
    "conv net": (
        *(f"{study}-convnet" for study in _SMALL), "noise-", "bias-", "rates-convnet", "previous-moment",
        *(f"momentum-default-{kind}-convnet" for kind in _KINDS),
    ),
    "ResNet-8": ("stability-resnet8", "svag-warm"),
    "ResNet-50": ("tiny-imagenet", "imagenet"),
    "ResNet-56": ("cifar10-resnet56",),
    "VGG-16": ("cifar10",),
    "VGG-16 with eps 1e-30": ("cifar10-vgg16-adam-eps", "cifar10-vgg16-rmsprop-eps"),
    "tiny GPT": (
        *(f"{study}-gpt" for study in _SMALL[2:]), "floors-gpt-tiny", "gpt-tiny", "gpt-check",
        "far-gpt", "forecast-gpt", "horizon",
        "rates-gpt", *(f"momentum-default-{kind}-gpt" for kind in _KINDS),
    ),
    "GPT": ("floors-gpt", "gpt", "sooner", "one-gpu", "momentum-lion", "momentum-muon", "muon-ratio"),
    "GPT with plain momentum": ("momentum-muon-plain",),
    "RoBERTa": ("roberta",),
}  # fmt: skip


def net_of(study: str) -> str:
    """Return the net of a study."""
    found = {name: net for net, names in NETS.items() for name in names if study.startswith(name)}
    if not found:
        raise ValueError(f"experiments/evidence.py names no net of the study {study!r}: add it to NETS")
    return found[max(found, key=len)]


def rows_of(study: str, table: Table, measured: dict[str, Any]) -> Iterator[Row]:
    """Yield the rows of a study, given ``eta h`` and the noise scale at its switch where they are known."""
    base = table.base.plan
    for arm in table.others:
        stored = arm.trajectory.meta.get("variant")
        if stored is None or base is None or arm.plan is None or arm.plan.optimizer.name != base.optimizer.name:
            continue
        if any(arm.factors.get(name) != value for name, value in table.base.factors.items()):
            continue  # of another recipe, which has a base of its own
        variant = Variant.from_dict(stored)
        null = bool(variant.other_samples)
        if variant.ell != 1 or (set(variant.kappas) == {1} and not null):
            continue
        batch, largest = float(base.batch_size.total), float(arm.plan.batch_size.total)
        late = bool(variant.ramp) and variant.kappa == 1
        changes = [*([] if late else [table.switch_at]), *(at for at, _ in variant.ramp)]
        samples = arm.trajectory.meta["samples"][-1] - changes[-1] if changes else 0
        optimizer = base.optimizer
        what = "null" if null else what_of(arm, variant, base)
        beta1 = getattr(optimizer, "beta1", getattr(optimizer, "mu", math.nan))
        beta2 = getattr(optimizer, "beta2", getattr(optimizer, "beta", None))
        rule = {"null": "", "learning rate": "sqrt-eta", "nothing": "none"}.get(what, variant.the_rule(base).name)
        noise, edge = at_switch(measured, arm, variant, table)
        yield Row(
            study, net_of(study), optimizer.name, beta1, math.nan if beta2 is None else beta2,
            float(variant.kappas[-1]), batch, table.switch_at > 0 or late, max(1, len(changes)),
            late, base.batchnorm_momentum is not None, base.ema is not None,
            what, rule, samples / largest, *_gap(arm), arm.trajectory.replicas,
            arm.verdict or "", noise, edge,
        )  # fmt: skip


def what_of(arm: Result, variant: Variant, base: Any) -> What:
    """Return what was converted: by the numbers of the plan, and by what the rule left out."""
    rule, own = variant.the_rule(base), default_rule(base.optimizer.name)
    if variant.zero_state or rule.left_out:
        return "other"
    if rule.key == own.key:
        now = base.convert(arm.the_plan.batch_size, own).plan
        same = all(np.isclose(a, b, rtol=1e-9) for a, b in zip(_numbers(now), _numbers(arm.the_plan), strict=True))
        return "everything" if same else "other"
    return {"sqrt-eta": "learning rate", "none": "nothing"}.get(rule.key, "other")  # type: ignore[return-value]


def _numbers(plan: Any) -> list[float]:
    values = [getattr(plan.optimizer, f.name) for f in fields(plan.optimizer)]
    values += [plan.ema, plan.batchnorm_momentum, plan.total_steps]
    return [float(value) for value in values if isinstance(value, int | float | Fraction)]


def at_switch(measured: dict[str, Any], arm: Result, variant: Variant, table: Table) -> tuple[float, float]:
    """Return the new batch size over the noise scale, and ``kappa eta h`` over its bound."""
    along = table.base.trajectory.values.get("noise scale")
    found = measured.get(table.task) or []
    scales = [one["noise_scale"] for one in found] or ([] if along is None else list(along[:, 0]))
    if not scales or not table.switch_at:
        return math.nan, math.nan
    plan, kappa = arm.the_plan, float(variant.kappas[-1])
    scale = math.exp(np.mean(np.log(scales)))
    eta_h = float(np.mean([one["eta_h"] for one in found])) if found else math.nan
    bound = stability_bound(getattr(plan.optimizer, "beta1", 0.0))
    return float(plan.batch_size.total) / scale, kappa * eta_h / bound


def _gap(arm: Result) -> tuple[str, float, float]:
    """Return where the verdict rests, the gap there as a share of the range, and its standard error."""
    comparison = arm.comparison
    worst = None if comparison is None else comparison.worst
    if comparison is None or any(comparison.diverged) or worst is None or not np.isfinite(worst.judged.gap):
        return "curve", math.inf, math.nan
    if comparison.over == "end":
        return "end", float(worst.gap[-1]), float(worst.se[-1])
    return "curve", float(worst.judged.gap), float(worst.judged.se)


def build(results: Path) -> str:
    """Return the table as CSV."""
    import floors  # noqa: F401  (its rules and those of the next are named in stored tables)
    import momentum  # noqa: F401

    place = results / "map.json"
    measured = json.loads(place.read_text()) if place.is_file() else {}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([f.name for f in fields(Row)])
    for path in sorted(results.glob("*.npz")):
        with np.load(path, allow_pickle=False) as file:
            if "table" not in file.files:
                continue
        table = Table.load(path)
        for row in rows_of(path.stem, table, {table.task: measured.get(path.stem)}):
            writer.writerow([_cell(getattr(row, f.name)) for f in fields(Row)])
    return out.getvalue()


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4g}"
    return str(value)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE.parent / "results")
    parser.add_argument("--to", type=Path, default=SHIPPED, help="default: the table in the package")
    args = parser.parse_args()
    with whole(args.to) as temporary:
        temporary.write_text(build(args.results), encoding="utf-8")
