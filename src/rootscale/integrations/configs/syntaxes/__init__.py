"""What configuration files are written in: one module for each syntax, which finds the values and their places.

To add a syntax, write its module and add it to `SYNTAXES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rootscale.integrations.configs.syntaxes.arguments_text import ARGUMENTS
from rootscale.integrations.configs.syntaxes.json_text import JSON
from rootscale.integrations.configs.syntaxes.leaf import Leaf, Path, Syntax
from rootscale.integrations.configs.syntaxes.python_text import PYTHON
from rootscale.integrations.configs.syntaxes.toml_text import TOML
from rootscale.integrations.configs.syntaxes.yaml_text import YAML

__all__ = ["SYNTAXES", "Leaf", "Path", "Syntax", "guess_syntaxes"]

#: Every syntax by its name.
SYNTAXES: Mapping[str, Syntax] = MappingProxyType({one.name: one for one in (JSON, TOML, YAML, ARGUMENTS, PYTHON)})


def guess_syntaxes(text: str, suffix: str = "") -> tuple[str, ...]:
    """Return what a text may be written in, the likeliest first.

    Args:
        text: of the file.
        suffix: of its name, such as ``.json``; it decides, where it stands for one syntax.
    """
    for syntax in SYNTAXES.values():
        if suffix.lower() in syntax.suffixes:
            return (syntax.name,)
    if suffix.lower() in (".yaml", ".yml"):
        return ("YAML", "arguments")  # options may be part of a text in YAML
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        return ("JSON",)
    if _is_python(text):
        return ("TOML", "Python") if _is_toml(text) else ("Python",)
    if _is_toml(text):
        return ("TOML",)
    if all(leaf.value is True or len(leaf.key) < 2 for _, leaf in ARGUMENTS.leaves(text)):  # no option with a value
        return ("YAML",)
    try:
        import yaml

        node = yaml.compose(text, yaml.SafeLoader)
    except ImportError:
        return ("arguments", "YAML")
    except (yaml.YAMLError, RecursionError):
        return ("arguments",)
    # Options may be part of a text in YAML; a script has no names and values at its top.
    return ("YAML", "arguments") if isinstance(node, yaml.MappingNode) else ("arguments",)


def _is_toml(text: str) -> bool:
    import tomllib

    try:
        return bool(tomllib.loads(text))
    except (ValueError, RecursionError):
        return False


def _is_python(text: str) -> bool:
    """Whether a text is Python that sets something; ``a: 1`` of YAML is Python too, but sets nothing."""
    import ast

    try:
        return any(isinstance(one, ast.Assign | ast.FunctionDef) for one in ast.parse(text).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
