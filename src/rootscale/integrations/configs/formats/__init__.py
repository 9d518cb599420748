"""The configurations of known tools, as tables: the path of each value, and which quantity it is.

A value that is in no table is not touched. What a tool scales by itself, and what is left alone because its meaning is
not certain, is in docs/integrations. To add a tool, write the module of its table and add it to `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rootscale.integrations.configs.formats.deepspeed import DEEPSPEED
from rootscale.integrations.configs.formats.megatron import MEGATRON
from rootscale.integrations.configs.formats.row import Format
from rootscale.integrations.configs.formats.timm import TIMM
from rootscale.integrations.configs.formats.torchtitan import TORCHTITAN
from rootscale.integrations.configs.formats.transformers import TRANSFORMERS

__all__ = ["FORMATS", "Format"]

#: Every format by its name; the command line and the docs iterate this table.
FORMATS: Mapping[str, Format] = MappingProxyType(
    {one.name: one for one in (DEEPSPEED, TRANSFORMERS, TIMM, TORCHTITAN, MEGATRON)}
)
