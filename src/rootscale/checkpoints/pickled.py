"""Read a pickle without executing what is in it, and write it again with everything unknown as it was.

A pickle is a program: it names classes and functions of any library and calls them. Here no name is looked up. Each
becomes a `Kept` class of its own, whose objects remember what they would have been made of, and which is written as the
same name again. So a file may hold a user's ``Namespace``, an enumeration or something hostile: it is neither run nor
lost. Only dictionaries, lists, tuples, numbers and texts become what they are, and `collections.OrderedDict`.
"""

from __future__ import annotations

import collections
import copyreg
import io
import pickle
import pickletools
import re
from typing import Any, BinaryIO, ClassVar

import numpy as np

_NOTHING = object()


class Kept:
    """An object that is kept as the pickle describes it: a name of some library, and what it is called with."""

    module: ClassVar[str] = ""
    name: ClassVar[str] = ""
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    called: bool
    state: Any
    items: list[Any]
    pairs: list[tuple[Any, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Kept:
        """Remember the arguments."""
        made = object.__new__(cls)
        made.arguments, made.keywords, made.called = args, kwargs, False
        made.state, made.items, made.pairs = _NOTHING, [], []
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.called = True  # a class whose __new__ alone is used does not come here

    def __call__(self, *args: Any) -> Kept:
        """Remember a call of what the pickle has made, such as a method."""
        made = _Called(*args)
        made.function = self
        return made

    def __setstate__(self, state: Any) -> None:
        """Remember the state."""
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        """Remember an item of what is a mapping."""
        self.pairs.append((key, value))

    def append(self, item: Any) -> None:
        """Remember an item of what is a list."""
        self.items.append(item)

    def extend(self, items: Any) -> None:
        """Remember several of them."""
        self.items.extend(items)

    def attributes(self) -> dict[str, Any]:
        """Return the attributes that the object would have, where its state is a plain dictionary."""
        return self.state if isinstance(self.state, dict) else {}

    def reduced(self) -> tuple[Any, ...]:
        """Return what a pickler needs to write the object as it was read."""
        cls = type(self)
        if isinstance(self, _Called):
            made: tuple[Any, Any] = (self.function, self.arguments)
        elif self.called:
            made = (cls, self.arguments)
        elif self.keywords:
            made = (copyreg.__newobj_ex__, (cls, self.arguments, self.keywords))  # type: ignore[attr-defined]
        else:
            made = (copyreg.__newobj__, (cls, *self.arguments))  # type: ignore[attr-defined]
        state = None if self.state is _NOTHING else self.state
        return (*made, state, iter(self.items) if self.items else None, iter(self.pairs) if self.pairs else None)


class _Called(Kept):
    function: Kept


class Reference:
    """Something that the pickle refers to and does not hold, such as torch's storages."""

    def __init__(self, identity: Any) -> None:
        self.identity = identity


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, fix_imports=False, encoding="utf-8")
        self.names: dict[tuple[str, str], type] = {("collections", "OrderedDict"): collections.OrderedDict}

    def find_class(self, module: str, name: str) -> Any:
        key = (module, name)
        if key not in self.names:
            self.names[key] = type(name.rpartition(".")[2], (Kept,), {"module": module, "name": name})
        return self.names[key]

    def persistent_load(self, identity: Any) -> Reference:
        return Reference(identity)


_Python: Any = pickle._Pickler  # the one that can write names which need not exist


class _Pickler(_Python):  # type: ignore[misc]
    def reducer_override(self, thing: Any) -> Any:
        return thing.reduced() if isinstance(thing, Kept) else NotImplemented

    def persistent_id(self, thing: Any) -> Any:
        return thing.identity if isinstance(thing, Reference) else None

    def save_global(self, thing: Any, name: str | None = None) -> None:
        if not (isinstance(thing, type) and issubclass(thing, Kept)):
            super().save_global(thing, name)
            return
        if self.proto >= 4:
            self.save(thing.module)
            self.save(thing.name)
            self.write(pickle.STACK_GLOBAL)
        else:
            self.write(pickle.GLOBAL + f"{thing.module}\n{thing.name}\n".encode())
        self.memoize(thing)

    def save_type(self, thing: Any) -> None:
        self.save_global(thing)

    dispatch: ClassVar[dict[Any, Any]] = {**_Python.dispatch, type: save_type}


#: Names that make tensors, numbers and containers again.
_TRUSTED = re.compile(
    r"torch\.(?:_utils\._rebuild\w+|_tensor\._rebuild\w+|\w*Storage|storage\.\w+|Size|device|dtype|nn\.parameter\.\w+"
    r"|u?int\d+|b?float\d\w*|complex\d+|bool|serialization\._get_layout|distributed\.checkpoint\.metadata\.\w+)"
    r"|numpy\.(?:dtype|ndarray|_?core\.(?:multiarray|numeric)\.\w+)|collections\.\w+|_codecs\.encode|copyreg\.\w+"
    r"|(?:builtins|__builtin__)\.(?:set|frozenset|dict|list|tuple|complex|bytearray|slice|range|int|float|str|bytes)"
)
#: Operations that put something into the pickle's memory, with the place as their argument.
_PUTS = {"PUT", "BINPUT", "LONG_BINPUT"}


def load(data: bytes) -> Any:
    """Return what a pickle holds, with `Kept` objects for all that it would have called."""
    try:
        _check(data)
        return _Unpickler(io.BytesIO(data)).load()
    except (RecursionError, MemoryError, OverflowError):
        raise ValueError("the pickle in it cannot be read (it asks for more memory than there is)") from None
    except (pickle.UnpicklingError, EOFError, AttributeError, IndexError, TypeError, KeyError) as error:
        raise ValueError(f"the pickle in it cannot be read ({error})") from None


def _check(data: bytes) -> None:
    """Refuse a pickle that would take much more memory than it has bytes, before Python reserves it.

    Python reserves as many places as the largest number of one, and the bytes of a text or an array before it reads
    them; a pickle of a few hundred bytes can ask for all memory.
    """
    try:
        for operation, argument, position in pickletools.genops(data):
            if operation.name in _PUTS and isinstance(argument, int) and argument > len(data):
                raise ValueError(
                    f"the pickle in it cannot be read (byte {position} asks for {argument:,} places in memory, and the "
                    f"pickle has {len(data):,} bytes)"
                )
    except ValueError as error:
        text = str(error)
        raise ValueError(text if "cannot be read" in text else f"the pickle in it cannot be read ({text})") from None


def callables_in(data: bytes) -> set[str]:
    """Return the names that a pickle has a program call, but for those of tensors, numbers and containers."""
    unpickler = _Unpickler(io.BytesIO(data))
    unpickler.load()
    names = {f"{module}.{name}" for module, name in unpickler.names}
    return {name for name in names if not _TRUSTED.fullmatch(name)}


def dump(thing: Any, like: bytes) -> bytes:
    """Return the pickle of what `load` returned, in the protocol of the pickle that it came from."""
    protocol = like[1] if like[:1] == pickle.PROTO else 0
    file = io.BytesIO()
    _Pickler(file, protocol, fix_imports=False).dump(thing)
    return file.getvalue()


def name_of(thing: Any) -> str:
    """Return the full name of what a kept object or class is of, or the type of another thing."""
    cls = thing if isinstance(thing, type) else type(thing)
    return f"{cls.module}.{cls.name}" if issubclass(cls, Kept) else cls.__name__


def number_of(thing: Any) -> float | None:
    """Return the number that a kept scalar of NumPy is, such as a learning rate from ``np.cos``; None for others."""
    if not name_of(thing).endswith("core.multiarray.scalar") or len(thing.arguments) != 2:
        return None
    kind, data = thing.arguments
    if name_of(data) == "_codecs.encode":  # bytes in the older protocols
        data = data.arguments[0].encode("latin1")
    if name_of(kind) != "numpy.dtype" or not isinstance(data, bytes):
        return None
    found = np.frombuffer(data, np.dtype(kind.arguments[0]).newbyteorder("<"))
    return float(found[0]) if found.dtype.kind in "fiu" and len(found) == 1 else None
