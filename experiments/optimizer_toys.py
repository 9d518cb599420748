"""What do the rules of the registry keep of an optimizer's dynamics on toy problems?

Claim. Not in the paper. Under the rule of its family (`rootscale.optimizers`) each optimizer keeps its mean loss when
the batch becomes 4 or 16 times as large in mid-run, where the learning rate alone does not.

Protocol. Many replicas of a noisy quadratic of a vector and of one of a matrix are trained at batch size 1
(`rootscale.theory.toys`), 1,024 of each. The gap is the largest difference of the mean losses at equal samples, as a
share of the base curve's range, on the problem where it is larger. The null is the same batch with other noise. Wrong
rules are measured beside the right ones. microbatchadam is not among them, as its gradients come in micro-batches.
Families that are stored with as many replicas are not made again.

Cost. Three minutes on one core for a family.

Finding. The null is off by at most .023 (n = 1,024). A rule that keeps momentum in steps (Muon, Lion, Signum, LARS,
SGD, RMSprop with momentum) departs more than one that keeps it in samples.

    python experiments/optimizer_toys.py --only muon lion
    python website/registry.py        write the table of docs/optimizers.md from it
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

from results import Claim
from rich.progress import track

from rootscale.files import write_json
from rootscale.optimizers import FAMILIES
from rootscale.rules import get_rule
from rootscale.theory.toys import TOY_RECORDS, TOYS, Setting, toy_gaps

GROUP = "beyond"
NAME = "optimizer-toys"
CLAIM = "Each family of optimizers keeps its mean loss on toy problems under its rule"
KAPPAS = (4, 16)


def rules_of(name: str) -> dict[str, str]:
    """Return the family's rules, and the wrong ones that they are compared with."""
    row = FAMILIES[TOY_RECORDS[name].name]
    wrong = {"learning rate only": "sqrt-eta", "Adam's rule": "sqrt with paper"} if row.degree == 0 else {}
    if row.rules[0] == "sqrt":
        wrong.pop("Adam's rule", None)
    return {**{rule: rule for rule in row.rules}, **wrong, "nothing": "none"}


def measured(name: str, replicas: int) -> dict[str, Any]:
    """Return the gaps of one family by toy, kappa and rule; rules that have no value at a kappa are left out."""
    record = TOY_RECORDS[name]
    found: dict[str, Any] = {"replicas": replicas}
    for toy in TOYS:
        for kappa in KAPPAS:
            possible = {}
            for label, rule in rules_of(name).items():
                try:
                    get_rule(rule, record.name).convert_record(record, kappa)
                except ValueError:
                    continue
                possible[label] = rule
            gaps = toy_gaps(record, possible, kappa, toy, Setting(replicas))
            found[f"{toy}, kappa={kappa}"] = {
                label: {"gap": round(one.gap, 4), "se": round(one.se, 4)} for label, one in gaps.items()
            }
    return found


def largest_of(found: dict[str, Any], rule: str, kappa: int) -> dict[str, float] | None:
    """Return the gap of a rule on the toy problem where it is larger, with its error; None where it has no value."""
    sizes = [gaps[rule] for key, gaps in found.items() if key.endswith(f"kappa={kappa}") and rule in gaps]
    return max(sizes, key=lambda one: abs(one["gap"]), default=None)


def stored(results: Path) -> dict[str, Any]:
    """Return what is stored, by family."""
    path = results / f"{NAME}.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def claims(results: Path) -> list[Claim]:
    """Return the row of the table of claims: the largest gaps of the families' own rules, and of the learning rate."""
    found = stored(results)
    if not found:
        return [Claim(CLAIM, "", "", "", __file__)]
    nulls = [abs(gaps["null"]["gap"]) for one in found.values() for key, gaps in one.items() if "kappa" in key]
    parts = []
    for kappa in KAPPAS:
        named = [(name, largest_of(found[name], next(iter(rules_of(name))), kappa)) for name in found]
        own = {name: abs(gap["gap"]) for name, gap in named if gap is not None}
        alone = [largest_of(found[name], "learning rate only", kappa) for name in found]
        wrong = sorted(abs(gap["gap"]) for gap in alone if gap is not None)
        worst = max(own, key=lambda name: own[name])
        parts.append(
            f"{kappa} times the batch: own rule, median of {len(own)} families {median(own.values()):.3f}, largest "
            f"{own[worst]:.3f} ({worst}); learning rate only, median {median(wrong):.3f}"
        )
    outcome = f"largest gap of the mean loss over its range. {'; '.join(parts)}. Null at most {max(nulls):.3f}"
    return [Claim(CLAIM, outcome, f"{min(one['replicas'] for one in found.values()):,}", f"{NAME}.json", __file__)]


def page(results: Path) -> str:
    """Return all rules of all families, in Markdown."""
    return toys_table(stored(results))


def toys_table(found: dict[str, Any]) -> str:
    """Return all rules of all families as a table."""
    lines = ["| optimizer | rule | κ = 4 | κ = 16 |", "|---|---|---|---|"]
    for name in (name for name in TOY_RECORDS if name in found):
        own = FAMILIES[TOY_RECORDS[name].name].rules
        for i, rule in enumerate(rules_of(name)):
            cells = [shown(largest_of(found[name], rule, kappa)) for kappa in KAPPAS]
            label = f"**{rule}**" if i == 0 else rule if rule in own else f"*{rule}*"
            lines.append(f"| {name if i == 0 else ''} | {label} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", "Bold is the family's own rule, *slanted* are those that it is compared with."])


def shown(gap: dict[str, float] | None) -> str:
    """Return a gap with its error."""
    return "none" if gap is None else f"{gap['gap']:+.3f} ± {gap['se']:.3f}"


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=1024)
    parser.add_argument("--only", nargs="*", choices=list(TOY_RECORDS), default=list(TOY_RECORDS))
    parser.add_argument("--out", type=Path, default=Path("results"))
    args = parser.parse_args()
    found = stored(args.out)
    for name in track(args.only):
        if found.get(name, {}).get("replicas", 0) < args.replicas:
            found[name] = measured(name, args.replicas)
            args.out.mkdir(parents=True, exist_ok=True)
            write_json(args.out / f"{NAME}.json", {key: found[key] for key in TOY_RECORDS if key in found})
    print(toys_table(found))


if __name__ == "__main__":
    main()
