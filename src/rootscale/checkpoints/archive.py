"""The files that `torch.save` writes: read without executing anything, written again record by record.

Such a file is an uncompressed zip. ``data.pkl`` has the objects, and ``data/0``, ``data/1``, ... the bytes of the
tensors. A conversion reads the objects (`rootscale.checkpoints.pickled`) and maps the tensors into memory
without reading them. It writes new objects, and copies the records: those of tensors that are to be multiplied chunk by
chunk, all others byte for byte.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from rootscale.checkpoints.pickled import Kept, Reference, callables_in, dump, load, name_of

#: Bytes that are held in memory at once.
CHUNK = 16 * 2**20
#: Where torch aligns the bytes of a tensor in the file.
_ALIGNMENT = 64
_TENSORS = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3")
_TYPES = {
    "DoubleStorage": torch.float64, "FloatStorage": torch.float32, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64, "ComplexDoubleStorage": torch.complex128,
}  # fmt: skip
_PARAMETERS = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")

#: Is called with the number of bytes that were written since the last call.
Tell = Callable[[int], None]


class MappedFile:
    """A file whose bytes are tensors: changes of them stay in memory, and the file is never written to."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, path.stat().st_size

    @cached_property
    def _storage(self) -> Any:
        return torch.UntypedStorage.from_file(str(self.path), False, self.size)

    def storage(self, start: int, size: int) -> Any:
        """Return a part of the file as a storage."""
        return self._storage[start : start + size] if size else torch.empty(0).untyped_storage()

    def tensor(self, start: int, size: int, dtype: torch.dtype, shape: Any) -> Tensor:
        """Return a part of the file as a contiguous tensor."""
        return torch.empty(0, dtype=torch.uint8).set_(self.storage(start, size)).view(dtype).reshape(tuple(shape))

    def multiplied(self, start: int, size: int, dtype: torch.dtype, factor: float) -> Iterator[memoryview]:
        """Yield a part of the file as numbers times a factor, in chunks; as `rootscale.training.state` multiplies."""
        for chunk in self.read(start, size):
            numbers = torch.frombuffer(bytearray(chunk), dtype=dtype)
            torch._foreach_mul_([numbers], [factor])
            yield bytes_of(numbers)

    def read(self, start: int, size: int) -> Iterator[bytes]:
        """Yield a part of the file as it is, in chunks."""
        with open(self.path, "rb") as file:
            file.seek(start)
            while size > 0 and (chunk := file.read(min(size, CHUNK))):
                size -= len(chunk)
                yield chunk


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor."""
    data: Any = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return memoryview(data)


class _Part(io.RawIOBase):
    """A part of a file, which is taken for a file."""

    def __init__(self, file: BinaryIO, start: int, size: int | None = None) -> None:
        self._file, self._start, self._size = file, start, size

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return self._size is not None

    def writable(self) -> bool:
        return self._size is None

    def tell(self) -> int:
        return self._file.tell() - self._start

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END and self._size is not None:
            offset, whence = self._size + offset, io.SEEK_SET
        if offset < 0:
            raise OSError("before the start of the file")
        return self._file.seek(offset + (self._start if whence == io.SEEK_SET else 0), whence) - self._start

    def readinto(self, buffer: Any) -> int:
        left = (self._size or 0) - self.tell()
        data = self._file.read(max(0, min(len(buffer), left)))
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        return self._file.write(data)


class Archive:
    """A file of `torch.save`, or a part of a file that is one.

    Args:
        file: the file.
        start: of the part.
        size: of the part; None is the rest of the file.

    Attributes:
        root: what was saved. Change dictionaries and lists in it, and `write` it; its tensors stay as `Kept` objects.

    Raises:
        ValueError: it is none.
    """

    def __init__(self, file: MappedFile, start: int = 0, size: int | None = None) -> None:
        self.file, self._start = file, start
        self._views: dict[str, list[Tensor]] = {}
        self._made: dict[int, tuple[Any, Tensor]] = {}
        self._versions: dict[int, int] = {}
        with open(file.path, "rb") as opened:
            part = io.BufferedReader(_Part(opened, start, file.size - start if size is None else size))
            try:
                with zipfile.ZipFile(part) as archive:
                    self._records = archive.infolist()
                    self._places = {one.filename: start + _data_start(opened, start, one) for one in self._records}
                    pickles = [one for one in self._records if one.filename.endswith("/data.pkl")]
                    orders = [archive.read(one) for one in self._records if one.filename.endswith("/byteorder")]
                    self._pickle = archive.read(pickles[0]) if pickles else b""
            except zipfile.BadZipFile:
                raise ValueError(
                    f"{file.path.name} is no file of torch.save, or one of torch before 1.6; in the second case load "
                    "it and save it again: torch.save(torch.load(IN, weights_only=True), NEW)"
                ) from None
        if not pickles or any("/code/" in one.filename for one in self._records):
            raise ValueError(f"{file.path.name} is a zip file, but not one of torch.save (a TorchScript model?)")
        if orders and orders[0] != b"little":
            raise ValueError(f"{file.path.name} was written on a machine of the other byte order; save it again here")
        if any(one.compress_type != zipfile.ZIP_STORED for one in self._records):
            raise ValueError(f"{file.path.name} is compressed; unpack it, or save it again with torch.save")
        self._folder = pickles[0].filename.removesuffix("data.pkl")
        self.root = load(self._pickle)

    @cached_property
    def callables(self) -> set[str]:
        """The names that a program would call when it loads the file."""
        return callables_in(self._pickle)

    @property
    def size(self) -> int:
        """The bytes of all records."""
        return sum(one.file_size for one in self._records)

    def tensor(self, thing: Any) -> Tensor | None:
        """Return a tensor of `root`, mapped into memory; None for what is none.

        Raises:
            ValueError: it is a tensor of a kind that cannot be mapped.
        """
        if id(thing) in self._made:
            return self._made[id(thing)][1]
        name = name_of(thing)
        if name in _PARAMETERS:
            return self.tensor(thing.arguments[0])
        if name not in _TENSORS:
            if isinstance(thing, Kept) and (name.startswith("torch._utils._rebuild") or "DTensor" in name):
                raise ValueError(
                    f"a tensor of the optimizer's state was saved as {name}, which is not plain: save whole tensors "
                    "(torch.distributed.checkpoint.state_dict.get_state_dict with full_state_dict=True), or save with "
                    "torch.distributed.checkpoint.save"
                )
            return None
        reference, offset, shape, stride = thing.arguments[:4]
        key, dtype = self._storage_of(reference, thing)
        record = f"{self._folder}data/{key}"
        storage = self.file.storage(self._places[record], self._size_of(record))
        made = torch.empty(0, dtype=dtype).set_(storage, offset, tuple(shape), tuple(stride))
        self._views.setdefault(record, []).append(made)
        self._made[id(thing)] = (thing, made)
        self._versions[id(made)] = made._version
        return made

    def is_changed(self, tensor: Tensor) -> bool:
        """Return whether a tensor that `tensor` returned has been changed in memory since."""
        return tensor._version != self._versions[id(tensor)]

    def _storage_of(self, reference: Any, thing: Kept) -> tuple[str, torch.dtype]:
        if not isinstance(reference, Reference):
            raise ValueError(f"{self.file.path.name} has a tensor without a storage")
        _, kind, key, *_ = reference.identity
        if name_of(thing) == _TENSORS[1]:  # an untyped storage; the type is that of the tensor
            dtype: Any = getattr(torch, name_of(thing.arguments[6]).rpartition(".")[2], None)
        else:
            dtype = _TYPES.get(name_of(kind).rpartition(".")[2])
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{self.file.path.name} has a tensor of an unknown type, {name_of(kind)}")
        return str(key), dtype

    def _size_of(self, record: str) -> int:
        return next(one.file_size for one in self._records if one.filename == record)

    def write(self, file: BinaryIO, factors: Mapping[int, float], tell: Tell) -> None:
        """Write the archive with `root` as it is now.

        Args:
            file: to be written to, from where it is now.
            factors: of the tensors that `tensor` returned, by their ``id``; others are written as they are in memory.
            tell: is called with the bytes that were written.
        """
        target = io.BufferedWriter(_Part(file, file.tell()), 2**20)
        with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED, strict_timestamps=False) as archive:
            for record in self._records:
                if record.filename == f"{self._folder}data.pkl":
                    data = dump(self.root, self._pickle)
                    _write_record(archive, record, len(data), iter([data]), tell)
                else:
                    _write_record(archive, record, record.file_size, self._data(record, factors), tell)
        target.flush()
        target.detach()

    def _data(self, record: zipfile.ZipInfo, factors: Mapping[int, float]) -> Iterator[Any]:
        views, place = self._views.get(record.filename), self._places[record.filename]
        size = record.file_size
        if not views or not any(id(view) in factors or self.is_changed(view) for view in views):
            return self.file.read(place, size)
        view, *others = views
        if not self.is_changed(view) and not others and view.numel() * view.element_size() == size:
            return self.file.multiplied(place, size, view.dtype, factors[id(view)])
        held = torch.empty(0, dtype=torch.uint8).set_(self.file.storage(place, size)).clone()
        for view in views:
            part = torch.empty(0, dtype=view.dtype).set_(
                held.untyped_storage(), view.storage_offset(), view.shape, view.stride()
            )
            if id(view) in factors:
                torch._foreach_mul_([part], [factors[id(view)]])
        return iter([bytes_of(held)])


def _data_start(file: BinaryIO, start: int, record: zipfile.ZipInfo) -> int:
    """Return where the bytes of a record begin, after its header."""
    file.seek(start + record.header_offset + 26)
    name, extra = struct.unpack("<HH", file.read(4))
    return int(record.header_offset + 30 + name + extra)


def _write_record(archive: zipfile.ZipFile, old: zipfile.ZipInfo, size: int, data: Iterator[Any], tell: Tell) -> None:
    record = zipfile.ZipInfo(old.filename, old.date_time)
    record.file_size, record.external_attr = size, old.external_attr
    large = size * 1.05 > zipfile.ZIP64_LIMIT
    header = 30 + len(old.filename.encode()) + 4 + (20 if large else 0)
    padding = -(archive.start_dir + header) % _ALIGNMENT
    record.extra = struct.pack("<2sH", b"FB", padding) + b"Z" * padding
    with archive.open(record, "w", force_zip64=large) as target:
        for chunk in data:
            target.write(chunk)
            tell(len(chunk))
