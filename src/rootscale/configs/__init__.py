"""Configuration files of other tools at another batch size.

`convert_file` and `convert_text` read the values they know, convert them by the table of units and put the new ones
where the old ones stand; the rest of the text, comments and order included, stays as it is. ``rootscale convert`` is
the command.
"""

from rootscale.configs.convert import ConvertedFile, convert_file, convert_text
from rootscale.configs.reading import Length
from rootscale.configs.tools import FORMATS

__all__ = [
    "FORMATS",
    "ConvertedFile",
    "Length",
    "convert_file",
    "convert_text",
]
