"""What the rules of the registry keep of an optimizer's dynamics on toy problems, beside other seeds and wrong rules.

    python benchmarks/optimizer_toys.py [--replicas 1024] [--only muon lion] [--out results/optimizers]
    python website/registry.py    # writes the table of docs/optimizers.md from it

Largest gap of the loss as a share of the base curve's range at kappa = 4 and 16 (`rootscale.theory.toys`), in
``toys.json``. Families that are there already with as many replicas are kept. Some minutes on one core.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.progress import track

from rootscale.files import write_json
from rootscale.optimizers import FAMILIES
from rootscale.rules import get_rule
from rootscale.theory.toy_records import TOY_RECORDS
from rootscale.theory.toys import TOYS, Setting, toy_gaps

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


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=1024)
    parser.add_argument("--only", nargs="*", choices=list(TOY_RECORDS), default=list(TOY_RECORDS))
    parser.add_argument("--out", type=Path, default=Path("results/optimizers"))
    args = parser.parse_args()
    path = args.out / "toys.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for name in track(args.only):
        if found.get(name, {}).get("replicas", 0) < args.replicas:
            found[name] = measured(name, args.replicas)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {key: found[key] for key in TOY_RECORDS if key in found})


if __name__ == "__main__":
    main()
