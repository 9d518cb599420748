"""Live PyTorch objects: runs converted in place, SVAG, and the paper's optimizers."""

from rootscale.training.rescale import rescale_
from rootscale.training.svag import SVAG

__all__ = ["SVAG", "rescale_"]
