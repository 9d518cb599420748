"""The paper's mathematics as working code: oracle -> {discrete, SVAG, SDE} -> `Trajectory`.

Make an oracle (`NGOS` of a problem, `NetworkOracle` of a network), a `Chain` on it and its SDE (`sde`); run them
(`run_chain`, `solve`) or measure how far they are apart (`weak_error`, `fit_order`).
"""

from rootscale.theory.assumptions import check_oracle
from rootscale.theory.cases import case
from rootscale.theory.discrete import FORMS, Chain, RateSchedule, discretise, rescaled, sde, svag_chain
from rootscale.theory.engine import Paths, SaveAt
from rootscale.theory.equations import AdamState, RMSpropState
from rootscale.theory.families import FAMILIES
from rootscale.theory.network import NetworkOracle
from rootscale.theory.oracle import NGOS, cosine, linear, logistic, quadratic
from rootscale.theory.solver import batch_gap, run_chain, solve
from rootscale.theory.weak import fit_order, weak_error

__all__ = [
    "FAMILIES",
    "FORMS",
    "NGOS",
    "AdamState",
    "Chain",
    "NetworkOracle",
    "Paths",
    "RMSpropState",
    "RateSchedule",
    "SaveAt",
    "batch_gap",
    "case",
    "check_oracle",
    "cosine",
    "discretise",
    "fit_order",
    "linear",
    "logistic",
    "quadratic",
    "rescaled",
    "run_chain",
    "sde",
    "solve",
    "svag_chain",
    "weak_error",
]
