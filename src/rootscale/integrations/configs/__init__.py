"""Configuration files of DeepSpeed, transformers, timm, torchtitan and Megatron-LM at another batch size.

`convert_file` and `convert_text` read the values they know, convert them by the table of units and put the new ones
where the old ones stand; the rest of the text, comments and order included, stays as it is. ``rootscale convert`` is
the command.
"""

from rootscale.integrations.configs.converter import ConvertedFile, convert_file, convert_text
from rootscale.integrations.configs.formats import FORMATS, Format
from rootscale.integrations.configs.reading import Length

__all__ = ["FORMATS", "ConvertedFile", "Format", "Length", "convert_file", "convert_text"]
