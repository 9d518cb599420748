"""Checkpoints on disk at another batch size: read without executing anything, converted, written record by record.

`archive` reads and writes the files of `torch.save`, `dcp` the folders of `torch.distributed.checkpoint`, and a module
for each tool its own. `contents` finds optimizers and schedulers in them, `rebase` converts these, and `convert` has
the table of formats.
"""

from rootscale.checkpoints.contents import Keys
from rootscale.checkpoints.convert import ConvertedCheckpoint, convert_checkpoint

__all__ = [
    "ConvertedCheckpoint",
    "Keys",
    "convert_checkpoint",
]
