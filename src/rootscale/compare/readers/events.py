"""TensorBoard's event files, read without TensorBoard.

A file is a row of records: eight bytes of length, four of its checksum, the event, four of checksum. An event is a
protocol buffer: ``step`` is its field 2, ``summary`` its field 5. A summary has values (field 1), and a value a ``tag``
(1) with a ``simple_value`` (2) or a ``tensor`` (8). Of tensors those of one number are read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rootscale.compare.log import Log

_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_STEP, _SUMMARY, _VALUE, _TAG, _SIMPLE, _TENSOR = 2, 5, 1, 1, 2, 8
#: TensorBoard's numbers of the types of a tensor, with how one number of each is packed.
_PACKED = {1: "<f", 2: "<d", 3: "<i", 9: "<q"}
#: The field of a tensor that holds single numbers of each type.
_FIELD = {1: 5, 2: 6, 3: 7, 9: 10}


def detect(path: Path) -> bool:
    """Return whether it is an event file, or a folder that holds some."""
    if path.is_file():
        return "tfevents" in path.name
    return path.is_dir() and any("tfevents" in one.name and one.is_file() for one in path.iterdir())


def read(path: Path) -> list[Log]:
    """Read a run: a file, or all files of a folder in the order in which they were begun."""
    files = [path] if path.is_file() else [one for one in path.iterdir() if one.is_file() and "tfevents" in one.name]
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for file in sorted(files, key=_begun):
        for step, scalars in _events(file, notes):
            if not rows or rows[-1]["step"] != step or any(name in rows[-1] for name in scalars):
                rows.append({"step": step})
            rows[-1].update(scalars)
    return [Log.of_rows(str(path), rows, notes=tuple(notes))]


def _begun(file: Path) -> tuple[int, str]:
    """Return when a file was begun, which its name says."""
    found = re.search(r"tfevents\.(\d+)", file.name)
    return (int(found[1]) if found else 0), file.name


def _events(file: Path, notes: list[str]) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield step and scalars of each event that has some."""
    for record in _records(file, notes):
        step, scalars = 0, dict[str, float]()
        try:
            for field, value in _fields(record):
                if field == _STEP:
                    step = int(value)
                elif field == _SUMMARY:
                    scalars |= dict(_scalars(value))
        except (IndexError, struct.error, UnicodeDecodeError, TypeError, ValueError):
            raise ValueError(f"{file} is damaged: an event in it cannot be read") from None
        if scalars:
            yield step, scalars


def _records(file: Path, notes: list[str]) -> Iterator[bytes]:
    data, at = file.read_bytes(), 0
    while at < len(data):
        head = data[at : at + 12]
        if len(head) == 12 and _checksum(head[:8]) != struct.unpack("<I", head[8:])[0]:
            raise ValueError(f"{file} is no event file of TensorBoard, or is damaged at byte {at:,}")
        length = struct.unpack("<Q", head[:8])[0] if len(head) == 12 else 0
        if len(head) < 12 or at + 16 + length > len(data):
            notes.append("its last event is cut off and was left out")
            return
        event = data[at + 12 : at + 12 + length]
        if _checksum(event) != struct.unpack("<I", data[at + 12 + length : at + 16 + length])[0]:
            raise ValueError(f"{file} is damaged: the event at byte {at:,} does not have its checksum")
        yield event
        at += 16 + length


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a protocol buffer: numbers, or bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        field, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield field, value - (1 << 64) * (value >> 63)
        elif kind == _EIGHT:
            yield field, data[at : at + 8]
            at += 8
        elif kind == _BYTES:
            length, at = _varint(data, at)
            yield field, data[at : at + length]
            at += length
        elif kind == _FOUR:
            yield field, data[at : at + 4]
            at += 4
        else:
            raise ValueError(f"no field has the type {kind}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _scalars(summary: bytes) -> Iterator[tuple[str, float]]:
    for field, value in _fields(summary):
        if field != _VALUE:
            continue
        parts = dict(_fields(value))
        if _TAG not in parts:
            continue
        number = struct.unpack("<f", parts[_SIMPLE])[0] if _SIMPLE in parts else _number(parts.get(_TENSOR))
        if number is not None:
            yield parts[_TAG].decode(), float(number)


def _number(tensor: bytes | None) -> float | None:
    """Return the number of a tensor that holds one; None for text, pictures, histograms."""
    parts = dict(_fields(tensor or b""))
    form = _PACKED.get(parts.get(1, 0))
    if form is None:
        return None
    found = parts.get(4) or parts.get(_FIELD[parts[1]])
    if isinstance(found, int):
        return float(found)
    if found is None or len(found) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, found)[0])


def _make_table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
        table.append(number)
    return table


_TABLE = _make_table()


def _checksum(data: bytes) -> int:
    """Return the masked CRC-32C with which a length is written."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
