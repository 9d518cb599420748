"""A configuration file of the same run at another batch size: what changes, and the text with just that changed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from rootscale.batch_size import BatchSize
from rootscale.changes import Change, Changes, no_way_back
from rootscale.configs.batch import read_batch_size, write_batch_size
from rootscale.configs.document import TextDocument
from rootscale.configs.places import guess_syntaxes
from rootscale.configs.reading import Length, Reading, read_configuration
from rootscale.configs.rows import Format
from rootscale.configs.tools import FORMATS
from rootscale.configs.unknown import check_options, foreign_sign, left_as_they_are
from rootscale.plan import Plan
from rootscale.rules import Rule
from rootscale.units import AVERAGE, AVERAGE_POWER, COMPLEMENT, Number


@dataclass(frozen=True)
class ConvertedFile:
    """A file at another batch size.

    Args:
        format: what kind of file it is.
        before: its text.
        after: its new text.
        values: everything that is written, by path: the new values, and the other items of a list that was not there.
        changes: every known quantity with its reason, and the warnings.
        plan: the run that the file describes, as far as it does.
    """

    format: Format
    before: str
    after: str
    values: Mapping[str, int | float]
    changes: Changes
    plan: Plan

    def diff(self, name: str = "config") -> str:
        """Return the change as a unified diff."""
        sides = (self.before.splitlines(keepends=True), self.after.splitlines(keepends=True))
        lines = difflib.unified_diff(*sides, name, name)
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the new values and the changes in JSON's types."""
        return {"format": self.format.name, "values": dict(self.values), **self.changes.to_dict()}


def convert_text(
    text: str,
    to: BatchSize | Number | str,
    *,
    start: BatchSize | Number | str | None = None,
    world_size: int | None = None,
    rule: str | Rule | None = None,
    format: str | None = None,
    section: str | None = None,
    length: Length = Length(),  # noqa: B008
) -> ConvertedFile:
    """Return the text of a configuration file for another batch size; only the values that have to change do.

    Args:
        text: of the file.
        to: the new number of samples per optimizer step, or ``"32x4x8"`` (micro x accumulation x workers).
        start: the old one, where the file does not have it.
        world_size: workers that share a batch (data parallel), where the file has samples per worker only.
        rule: a rule or its text, such as ``"sqrt"``, ``"with power"`` or ``"sqrt without batchnorm"``; None is the
            optimizer's own.
        format: one of `FORMATS`; None finds it out.
        section: the name of one configuration, where a file has several.
        length: of the run, where the file does not have it.

    Raises:
        ValueError: the file cannot be converted as a whole; nothing is converted then.

    >>> print(convert_text('{"train_batch_size": 256, "optimizer": {"type": "AdamW", "params": '
    ...                    '{"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}}}', 1024).after)
    {"train_batch_size": 1024, "optimizer": {"type": "AdamW", "params":
    {"lr": 0.0006, "betas": [0.9, 0.9], "eps": 5e-09, "weight_decay": 0.2}}}
    """
    document, known = read_document(text, format, section=section)
    return _convert(document, known, to, start=start, world_size=world_size, rule=rule, length=length)


def convert_file(
    path: Path,
    to: BatchSize | Number | str,
    *,
    format: str | None = None,
    section: str | None = None,
    **options: Any,
) -> ConvertedFile:
    """Return a configuration file for another batch size; nothing is written.

    Args:
        path: of the file. Its suffix says what it is written in, where that is clear (``.json``, ``.toml``).
        to: the new batch size.
        format: one of `FORMATS`; None finds it out.
        section: the name of one configuration, where a file has several.
        options: the others of `convert_text`.

    Raises:
        ValueError: the file cannot be read or not be converted as a whole; the message begins with its path.
    """
    try:
        text = path.read_bytes().decode("utf-8")  # line ends as they are
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        document, known = read_document(text, format, path.suffix, section)
        return _convert(document, known, to, **options)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _convert(
    document: TextDocument,
    known: Format,
    to: BatchSize | Number | str,
    *,
    start: BatchSize | Number | str | None = None,
    world_size: int | None = None,
    rule: str | Rule | None = None,
    length: Length = Length(),  # noqa: B008
) -> ConvertedFile:
    reading = read_configuration(document, known)
    check_options(document, known)
    if reading.row.check is not None:
        reading.row.check(document)
    old = read_batch_size(document, known.batch, start, world_size)
    batch = write_batch_size(document, known.batch, old, to)
    plan = reading.plan(old, length)
    changes = reading.changes(plan.convert(batch.size, rule))
    used = (*(one.path for one in reading.values), *known.batch.paths())
    left = left_as_they_are(((path, leaf.value) for path, leaf in document.leaves.items()), known, float(changes.kappa))
    notes = (*batch.warnings, *document.notes(used), *no_way_back(changes, changes.kappa), *left)
    warnings = dict.fromkeys((*changes.warnings, *notes))
    changes = replace(changes, warnings=tuple(warnings))
    new = {**batch.values, **_new_values(document, reading, changes)}
    values = {path: value for path, value in new.items() if document[path] != value}
    for path, value in values.items():
        document.set(path, value)
    return ConvertedFile(known, document.text, document.edited(), values, changes, plan)


def _new_values(document: TextDocument, reading: Reading, changes: Changes) -> dict[str, int | float]:
    """Return what the rule changes; a list that is not in the file comes whole, with the items that stay as well."""
    before = {one.path: value for one, value in reading.values.items()}
    rows = ((path, _written(changes[path], Fraction(changes.kappa))) for path in before)
    changed = {path: after for path, after in rows if after is not None and after != before[path]}
    lists = {_missing_list(document, path) for path in changed} - {""}
    written = [path for path in before if path in changed or _missing_list(document, path) in lists]
    return {path: changed.get(path, before[path]) for path in written}


def _missing_list(document: TextDocument, path: str) -> str:
    """The list that a value would be an item of, where the file does not have the list; empty if there is none."""
    parent, _, last = path.rpartition(".")
    return parent if last.isdigit() and path not in document else ""


def read_document(
    text: str, format: str | None = None, suffix: str = "", section: str | None = None
) -> tuple[TextDocument, Format]:
    """Return the values of a file, and its format.

    Args:
        text: of the file.
        format: one of `FORMATS`; None finds it out.
        suffix: of the file's name, such as ``.json``.
        section: the name of one configuration, where a file has several.
    """
    if format is not None and format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    syntaxes = guess_syntaxes(text, suffix)
    formats = list(FORMATS.values()) if format is None else [FORMATS[format]]
    found = [(syntax, known) for syntax in syntaxes for known in formats if syntax in known.syntaxes]
    if format is not None and not found:
        usual = " or ".join(formats[0].syntaxes)
        raise ValueError(f"{format} files are {usual}, this one looks like {syntaxes[0]}")
    for syntax in dict.fromkeys(syntax for syntax, _ in found):
        candidates = [(_document(text, syntax, known, section), known) for each, known in found if each == syntax]
        matching = [(document, known) for document, known in candidates if known.matches(document)]
        clean = [pair for pair in matching if not foreign_sign(*pair)]
        if len(clean) == 1:
            return clean[0]
        if len(clean) > 1:
            names = " or ".join(known.name for _, known in clean)
            raise ValueError(f"the file may be of {names}, which differ in what they do; --format says which")
        if matching:
            document, known = matching[0]
            raise ValueError(f"the file looks like {known.name}, but {foreign_sign(document, known)}")
    if format is not None:
        document = _document(text, found[0][0], formats[0], section)
        if sign := foreign_sign(document, formats[0]):
            raise ValueError(f"the file is not of {format}: {sign}")
        return document, formats[0]
    raise ValueError(
        f"the format is not known; looked for {', '.join(one.looked_for for one in FORMATS.values())}, and found "
        f"{syntaxes[0]} without them; --format names it"
    )


def _document(text: str, syntax: str, known: Format, section: str | None) -> TextDocument:
    """The values of a file; of a file with several configurations, those of one."""
    if not known.sections:
        return TextDocument(text, syntax, known.flat, known.aliases)
    names = dict.fromkeys(path.partition(".")[0] for path in TextDocument(text, syntax).leaves)
    documents = {name: TextDocument(text, syntax, known.flat, known.aliases, name) for name in names}
    usable = {name: document for name, document in documents.items() if known.matches(document)}
    if section is None and len(usable) > 1:
        raise ValueError(f"the file has several configurations; --section names one of {', '.join(usable)}")
    if section is not None and usable and section not in usable:
        raise ValueError(f"--section must be one of {', '.join(usable)}, got {section!r}")
    return usable[section or next(iter(usable))] if usable else TextDocument(text, syntax)


def _written(row: Change, kappa: Fraction) -> int | float | None:
    """Return the new value without the last digits that only show rounding: 0.6, not 0.6000000000000001.

    A value within the rounding of a number of 9 digits is that number, so going back gives the value one came from.
    Rounding is relative but for ``1 - kappa (1 - x)``, where that of ``1 - x`` is multiplied with kappa.
    """
    if row.value is None or isinstance(row.value, int):
        return row.value
    value = float(row.value)
    short = float(f"{value:.9g}")
    form = row.unit.form if row.unit else None
    paper = form is AVERAGE or (form is not None and form.floor is not None)
    noise = 1e-14 * (1.0 if paper else abs(value))
    if paper or form in (AVERAGE_POWER, COMPLEMENT):
        noise *= max(1.0, float(kappa) / 5)
    return short if abs(short - value) <= noise else value
