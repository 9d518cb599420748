"""Checkpoints on disk at another batch size: read without executing anything, converted, written record by record.

`archive` reads and writes the files of `torch.save`, `dcp` the folders of `torch.distributed.checkpoint`. What they
hold is found by `finding`, made into objects by `saved`, and converted by `contents` with the code that converts live
runs. The folders and files of other tools are in `rootscale.integrations.checkpoints`, with the table of all formats.
"""

from rootscale.training.checkpoints.contents import Contents, Request, convert_contents
from rootscale.training.checkpoints.finding import Keys, find_contents
from rootscale.training.checkpoints.sources import Folder, Source, TorchFile

__all__ = ["Contents", "Folder", "Keys", "Request", "Source", "TorchFile", "convert_contents", "find_contents"]
