"""Write docs/integrations/formats.md, every tool with what is converted: ``python website/config_formats.py``."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rootscale.configs import FORMATS
from rootscale.configs.rows import Field, Format, Refusal, fields_of, given, unit_of
from rootscale.configs.tools import SIGNS

__all__ = ["describe_format", "describe_formats"]


def describe_formats() -> str:
    """Return the whole page in Markdown."""
    rows = [
        f"| [`{one.name}`](#{one.name}) | {one.summary} | {' or '.join(one.syntaxes)} |" for one in FORMATS.values()
    ]
    signs = [f"| `{name}` | {', '.join(owners) or 'none of these'} |" for name, owners in SIGNS.items()]
    parts = (
        "# Formats of configuration files",
        "This page is made from the table that `rootscale convert` reads, `FORMATS`; a test keeps it so. What to know "
        "about single tools is in [configs.md](configs.md).",
        "\n".join(("| format | what it is | written in |", "|---|---|---|", *rows)),
        "A file that has one of these names is of no other tool:",
        "\n".join(("| name | only in |", "|---|---|", *signs)),
        *(describe_format(one) for one in FORMATS.values()),
    )
    return "\n\n".join(parts) + "\n"


def describe_format(known: Format) -> str:
    """Return the section of one format."""
    sizes = known.batch
    batch = _names((sizes.total, sizes.micro, sizes.accumulation, *sizes.stages))
    counts = "" if sizes.counts == "samples" else f" ({sizes.counts})"
    rows = [
        ("known by", f"{' or '.join(_names(known.markers))}{''.join(f', and {_any(paths)}' for paths in known.also)}"),
        (
            "batch size",
            f"{', '.join(batch)}{counts}{'' if sizes.total or sizes.all_workers else ', with `--world-size`'}",
        ),
        (f"optimizers (`{known.optimizer}`)", ", ".join(_names(known.optimizers))),
        ("their values", _values(known, (one for row in known.optimizers.values() for one in fields_of(row)))),
    ]
    usable = [name for name, row in known.schedules.items() if name and not row.refused]
    refused = [name for name, row in known.schedules.items() if row.refused]
    if usable:
        text = ", ".join(_names(usable)) + (f"; refused: {', '.join(_names(refused))}" if refused else "")
        rows.append((f"schedules (`{known.schedule}`)", text))
    if any(row.fields for row in known.schedules.values()):
        rows.append(("their values", _values(known, (one for row in known.schedules.values() for one in row.fields))))
    rows.append(("others", _values(known, known.fields)))
    if known.refusals:
        rows.append(("refused", "; ".join(dict.fromkeys(_refused(one) for one in known.refusals))))
    if known.left_alone:
        rows.append(("left alone", known.left_alone))
    table = "\n".join(f"| {name} | {text} |" for name, text in rows)
    return f"## {known.name}\n\n{known.summary[0].upper()}{known.summary[1:]}.\n\n| | |\n|---|---|\n{table}"


def _names(names: Iterable[str]) -> list[str]:
    return [f"`{name}`" for name in names if name]


def _refused(refusal: Refusal) -> str:
    if refusal.path == "(program)":
        return "scripts of other programs"
    return f"no `{refusal.path}`" if refusal.allowed is given else f"`{refusal.path}`"


def _any(paths: str | tuple[str, ...]) -> str:
    return " or ".join(_names((paths,) if isinstance(paths, str) else paths))


def _values(known: Format, fields: Iterable[Field]) -> str:
    """The paths of fields by their units."""
    families = {one: row.family for row in known.optimizers.values() for one in fields_of(row)}
    units: dict[str, list[str]] = {}
    for one in fields:
        unit = unit_of(one, families.get(one, "adamw"))
        path = f"`{re.sub(r'[.][0-9]+$', '', one.path)}`"
        if path not in units.setdefault(unit, []):
            units[unit].append(path)
    return "; ".join(f"{', '.join(paths)} ({unit})" for unit, paths in units.items())


if __name__ == "__main__":
    import places

    (places.ROOT / "docs" / "integrations" / "formats.md").write_text(describe_formats(), encoding="utf-8")
