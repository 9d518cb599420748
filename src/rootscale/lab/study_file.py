"""A study in a file of the user's: what it is called, what it varies as options, and its studies."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from rootscale.files import load_file
from rootscale.lab.study import Study

#: What a file of a study defines.
NAME = "STUDY"


class StudyFile:
    """A Python file that defines ``STUDY``: a `Study`, or a function that makes one or several.

    The keyword arguments of the function are options on the command line: ``def STUDY(net: str = "mlp", kappa: int =
    16, smoke: bool = False)`` takes ``--net``, ``--kappa`` and ``--smoke``. It may return a list of studies.

    Args:
        path: of the file; modules beside it can be imported.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.suffix != ".py" or not self.path.is_file():
            raise ValueError(f"a study is a Python file that defines {NAME}, such as experiments/stages.py; got {path}")
        sys.path.insert(0, str(self.path.parent.resolve()))
        self.module: ModuleType = load_file(self.path, self.path.stem)
        made = getattr(self.module, NAME, None)
        if not isinstance(made, Study) and not callable(made):
            raise ValueError(f"{path} must define {NAME}, a rootscale.lab.Study or a function that makes one")
        self._made: Study | Callable[..., Any] = made

    @property
    def text(self) -> str:
        """What the file says of itself."""
        return inspect.getdoc(self.module) or ""

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """What the study varies."""
        return {} if isinstance(self._made, Study) else inspect.signature(self._made).parameters

    def add_options(self, parser: argparse.ArgumentParser, taken: tuple[str, ...] = ()) -> None:
        """Add an option for each parameter, but for those that the command has itself."""
        group = parser.add_argument_group("what this study varies")
        for name, parameter in self.parameters.items():
            default = parameter.default
            if default is parameter.empty:
                raise ValueError(f"{self.path}: {NAME}({name}) needs a default, which says what type the option has")
            flag = f"--{name.replace('_', '-')}"
            if name in taken:
                continue
            if isinstance(default, bool):
                group.add_argument(flag, action="store_true", help="default: no")
            elif isinstance(default, tuple):
                kind = type(default[0]) if default else str
                group.add_argument(flag, type=kind, nargs="+", default=default, help="default: %(default)s")
            else:
                kind = str if default is None else type(default)
                group.add_argument(flag, type=kind, default=default, help="default: %(default)s")

    def studies(self, **given: Any) -> list[Study]:
        """Return the studies under these options; those that the function does not take are left out."""
        if isinstance(self._made, Study):
            return [self._made]
        known = {name: value for name, value in given.items() if name in self.parameters}
        known = {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
        found = self._made(**known)
        studies = [found] if isinstance(found, Study) else list(found)
        names = [study.name for study in studies if isinstance(study, Study)]
        if not studies or len(set(names)) != len(studies):
            raise ValueError(f"{self.path}: {NAME}() must return a rootscale.lab.Study, or several with names")
        return studies
