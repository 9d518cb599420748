"""What the rules of the registry keep of an optimizer's dynamics on toy problems, beside other seeds and wrong rules.

    python benchmarks/optimizer_toys.py [--replicas 1024] [--only muon lion] [--out results/optimizers]
    python website/registry.py    # writes the table of docs/optimizers.md from it

It writes ``README.md`` of the folder too, from what is stored there (``quantised.json`` of
``benchmarks/quantised_adam.py`` as well).

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
from rootscale.theory.toys import TOY_RECORDS, TOYS, Setting, toy_gaps

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


def page(found: dict[str, Any], quantised: dict[str, Any] | None) -> str:
    """Return the page of the folder."""
    nulls = [abs(gaps["null"]["gap"]) for one in found.values() for key, gaps in one.items() if "kappa" in key]
    parts = [
        "# Optimizers: what their rules keep",
        "Not in the paper. Every family of the registry (`rootscale.optimizers`, [docs](../../docs/optimizers.md)) has "
        "a rule. Here it is held against a simulation: many replicas of a noisy quadratic of a vector and of one of a "
        "matrix are trained at batch size 1, and in mid-run the batch becomes 4 or 16 times as large. A gap is the "
        "largest difference of the mean losses at equal samples, as a share of the base curve's range, on the problem "
        "where it is larger; ± is one standard error.",
        f"**We measured:** the same batch with other noise differs by at most {max(nulls):.3f}. A rule that keeps "
        "momentum in steps (Muon, Lion, Signum, LARS, SGD, RMSprop with momentum) departs more than one that keeps it "
        "in samples; the other rules of a family are listed under it.",
        toys_table(found),
        f"`toys.json` has all numbers, of {min(one['replicas'] for one in found.values()):,} replicas each, made by "
        "`python benchmarks/optimizer_toys.py`. microbatchadam is not among them, as its gradients come in "
        "micro-batches; GPTs are in [momentum](../momentum/README.md) and [gpt-switch](../gpt-switch/README.md).",
    ]
    if quantised:
        parts += quantised_part(quantised)
    return "\n\n".join(parts) + "\n"


def toys_table(found: dict[str, Any]) -> str:
    """Return all rules of all families as a table."""
    lines = ["| optimizer | rule | κ = 4 | κ = 16 |", "|---|---|---|---|"]
    for name in TOY_RECORDS:
        own = FAMILIES[TOY_RECORDS[name].name].rules
        for i, rule in enumerate(rules_of(name)):
            cells = [shown(largest_of(found[name], rule, kappa)) for kappa in KAPPAS]
            label = f"**{rule}**" if i == 0 else rule if rule in own else f"*{rule}*"
            lines.append(f"| {name if i == 0 else ''} | {label} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", "Bold is the family's own rule, *slanted* are those that it is compared with."])


def shown(gap: dict[str, float] | None) -> str:
    """Return a gap with its error."""
    return "none" if gap is None else f"{gap['gap']:+.3f} ± {gap['se']:.3f}"


def quantised_part(found: dict[str, Any]) -> list[str]:
    """Return the section on states in 8 bits."""
    kinds = list(found["gaps"])
    lines = [f"| | κ | {' | '.join(kinds)} |", f"|---|---|{'---|' * len(kinds)}"]
    for key in found["gaps"][kinds[0]]:
        for label in found["gaps"][kinds[0]][key]:
            cells = [shown(found["gaps"][kind][key][label]) for kind in kinds]
            lines.append(f"| {label} | {key.removeprefix('kappa=')} | {' | '.join(cells)} |")
    both = "" if len(kinds) > 1 else " The same in 32 bits is not measured yet."
    return [
        "## A state of 8 bits",
        f"bitsandbytes' AdamW on scikit-learn's digits (MLP 64-128-10), {found['seeds']} seeds: 12,000 samples at "
        "batch size 4, then 24,000 more at 4, 16 and 64. Each column is compared with the run of its own kind that "
        f"keeps its batch size. `rescale_` multiplies the scales of the blocks and leaves the codes.{both} Left as "
        "they are, the scales are those of another batch size.",
        "\n".join(lines),
        f"`{found['command']}`, bitsandbytes {found['bitsandbytes']}, on a CPU.",
    ]


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
    if set(TOY_RECORDS) <= set(found):
        stored = args.out / "quantised.json"
        quantised = json.loads(stored.read_text()) if stored.exists() else None
        (args.out / "README.md").write_text(page(found, quantised), encoding="utf-8")


if __name__ == "__main__":
    main()
