"""Change the batch size of an Adam or RMSprop run and keep its training dynamics."""

from rootscale._version import __version__
from rootscale.hparams import SGD, Adam, AdamW, RMSprop, SDEConstants
from rootscale.rules import RULES, Rule
from rootscale.units import TABLE, Unit

__all__ = ["RULES", "SGD", "TABLE", "Adam", "AdamW", "RMSprop", "Rule", "SDEConstants", "Unit", "__version__"]
