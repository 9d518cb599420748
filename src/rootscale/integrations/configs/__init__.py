"""Configuration files of DeepSpeed, transformers, timm, torchtitan and Megatron-LM at another batch size.

`convert` reads the fields it knows, converts them by the table of units and puts the new values where the old ones
stand; the rest of the text, comments and order included, stays as it is. ``rootscale convert`` is its command.
"""

from rootscale.integrations.configs.convert import Conversion, convert
from rootscale.integrations.configs.formats import FORMATS, Format

__all__ = ["FORMATS", "Conversion", "Format", "convert"]
