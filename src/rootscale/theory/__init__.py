"""The paper's mathematics as working code: oracle -> {discrete, SVAG, SDE} -> `Trajectory`.

Make an oracle (`NGOS` of a problem, `NetworkOracle` of a network), a `Chain` on it and its SDE (`sde`); run them
(`run_chain`, `solve`) or measure how far they are apart (`weak_error`, `fit_order`).
"""

from rootscale.theory.assumptions import check_oracle
from rootscale.theory.cases import case
from rootscale.theory.discrete import FORMS, Chain, discretise, rescaled, svag_chain
from rootscale.theory.engine import Paths, SaveAt
from rootscale.theory.equations import RateSchedule, RMSpropW, Scheduled, sde
from rootscale.theory.families import FAMILIES, Minibatch
from rootscale.theory.network import NetworkOracle
from rootscale.theory.oracle import NGOS
from rootscale.theory.orders import fit_order
from rootscale.theory.problems import cosine, linear, logistic, quadratic
from rootscale.theory.simulate import run_chain
from rootscale.theory.solver import solve
from rootscale.theory.states import AdamState, RMSpropState, SGDState, SignumState
from rootscale.theory.weak import weak_error

__all__ = [
    "FAMILIES",
    "FORMS",
    "NGOS",
    "AdamState",
    "Chain",
    "Minibatch",
    "NetworkOracle",
    "Paths",
    "RMSpropState",
    "RMSpropW",
    "RateSchedule",
    "SGDState",
    "SaveAt",
    "Scheduled",
    "SignumState",
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
