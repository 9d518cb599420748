"""Methods of one object that a `Run` answers in its place, and that no copy and no checkpoint of the object holds.

PyTorch has hooks for most of what a run needs to see. Where it has none (the step of a scheduler, a step that raises, a
copy of an optimizer), a method is put on the object itself, as `torch.optim.lr_scheduler` does with ``optimizer.step``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import update_wrapper
from types import MethodType
from typing import Any


class Attachment:
    """Answer some methods of an object until `remove` is called.

    Args:
        thing: the object.
        methods: by name; each is called with the original bound method first, and then with the arguments.
        state: gives what ``copy`` and ``pickle`` see of the object; None is its attributes without these methods.
    """

    def __init__(
        self, thing: Any, methods: Mapping[str, Callable[..., Any]], state: Callable[[], Any] | None = None
    ) -> None:
        self.thing = thing
        self._before = {name: vars(thing)[name] for name in methods if name in vars(thing)}
        self._own: dict[str, Any] = {
            name: _bound(thing, getattr(thing, name), method) for name, method in methods.items()
        }
        self._own["__getstate__"] = state or self.plain
        vars(thing).update(self._own)

    def plain(self) -> dict[str, Any]:
        """Return the attributes of the object as they would be without this attachment."""
        return {key: value for key, value in vars(self.thing).items() if key not in self._own} | self._before

    def remove(self) -> None:
        """Give the object its own methods back; what somebody else has put around one since stays where it is."""
        attributes = vars(self.thing)
        for name, method in self._own.items():
            if attributes.get(name) is method:
                del attributes[name]
                attributes.update({name: self._before[name]} if name in self._before else {})


def _bound(thing: Any, original: Callable[..., Any], method: Callable[..., Any]) -> MethodType:
    """Return a bound method, which torch's schedulers expect where they wrap ``optimizer.step`` once more."""

    def answer(_: Any, *args: Any, **kwargs: Any) -> Any:
        return method(original, *args, **kwargs)

    update_wrapper(answer, getattr(original, "__func__", original))
    return MethodType(answer, thing)
