"""Checkpoints of other tools on disk at another batch size; none of their libraries is needed."""

from rootscale.integrations.checkpoints.converter import ConvertedCheckpoint, convert_checkpoint
from rootscale.integrations.checkpoints.formats import FORMATS, CheckpointFormat
from rootscale.training.checkpoints import Keys

__all__ = ["FORMATS", "CheckpointFormat", "ConvertedCheckpoint", "Keys", "convert_checkpoint"]
