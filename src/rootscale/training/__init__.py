"""Live PyTorch objects: runs converted in place, SVAG, the noise of gradients, and the paper's optimizers."""

from rootscale.training.noise import NoiseMeter, advise
from rootscale.training.persample import exact_noise
from rootscale.training.rescale import rescale_
from rootscale.training.svag import SVAG

__all__ = ["SVAG", "NoiseMeter", "advise", "exact_noise", "rescale_"]
