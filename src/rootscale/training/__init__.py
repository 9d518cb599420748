"""Live PyTorch objects: convert a running optimizer, its scheduler, BatchNorm and parameter average in place."""

from rootscale.training.rescale import rescale_

__all__ = ["rescale_"]
