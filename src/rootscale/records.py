"""The hyperparameters of further optimizers as frozen records; `rootscale.hparams` has the paper's.

A docstring has the update, in the paper's letters: ``g`` is the gradient, ``m`` and ``v`` are averages of it and of its
square. Fields without a unit are options that no change of batch size touches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from rootscale.hparams import SGD, Adam, AdamW, Optimizer, RMSprop, SDEConstants, quantity

__all__ = [
    "LAMB",
    "LARS",
    "SOAP",
    "AdEMAMix",
    "Adafactor",
    "Adagrad",
    "Adamax",
    "Lion",
    "Muon",
    "NAdam",
    "RAdam",
    "RMSpropCentered",
    "RMSpropMomentum",
    "ScheduleFreeAdamW",
    "ScheduleFreeSGD",
    "Shampoo",
    "Signum",
]

# ---- updates that divide by the root of a second moment


@dataclass(frozen=True)
class NAdam(Optimizer):
    """Adam that looks ahead: in place of ``m_hat`` it has ``mu' m / (1 - P mu') + (1 - mu) g / (1 - P)``.

    ``mu`` grows from ``beta1 / 2`` to ``beta1`` as ``beta1 (1 - 0.96^(k momentum_decay) / 2)``, ``mu'`` is the next
    one, and ``P`` is the product of all ``mu`` so far.
    """

    beta1: float = quantity("beta1", default=0.9)
    beta2: float = quantity("beta2", default=0.999)
    eps: float = quantity("eps", default=1e-8)
    weight_decay: float = quantity("l2", default=0.0)
    momentum_decay: float = quantity("momentum_decay", default=4e-3)
    name: ClassVar[str] = "nadam"


@dataclass(frozen=True)
class RAdam(Optimizer):
    """Adam times a rectification that grows to 1 with the number of steps; its first steps do not divide by ``v``."""

    beta1: float = quantity("beta1", default=0.9)
    beta2: float = quantity("beta2", default=0.999)
    eps: float = quantity("eps", default=1e-8)
    weight_decay: float = quantity("l2", default=0.0)
    name: ClassVar[str] = "radam"


@dataclass(frozen=True)
class Adamax(Optimizer):
    """Adam with a decaying maximum: ``u = max(beta2 u, |g| + eps)`` and ``theta -= eta m_hat / u``."""

    beta1: float = quantity("beta1", default=0.9)
    beta2: float = quantity("beta2", default=0.999)
    eps: float = quantity("eps", default=1e-8)
    weight_decay: float = quantity("l2", default=0.0)
    name: ClassVar[str] = "adamax"


@dataclass(frozen=True)
class RMSpropMomentum(Optimizer):
    """RMSprop with momentum: ``b = mu b + g / (sqrt(v) + eps)`` and ``theta -= eta b``."""

    beta: float = quantity("beta2", "beta (alpha)", default=0.99)
    eps: float = quantity("eps", default=1e-8)
    weight_decay: float = quantity("l2", default=0.0)
    momentum: float = quantity("momentum", default=0.9)
    name: ClassVar[str] = "rmsprop-momentum"


@dataclass(frozen=True)
class RMSpropCentered(Optimizer):
    """RMSprop that divides by the standard deviation ``sqrt(v - a^2)``, with ``a`` the average of ``g``."""

    beta: float = quantity("beta2", "beta (alpha)", default=0.99)
    eps: float = quantity("eps", default=1e-8)
    weight_decay: float = quantity("l2", default=0.0)
    momentum: float = quantity("momentum", default=0.0)
    name: ClassVar[str] = "rmsprop-centered"


@dataclass(frozen=True)
class Adafactor(Optimizer):
    """Adafactor: ``theta -= max(eps2, rms(theta)) min(eta, k^(-1/2)) g / sqrt(v)``, clipped at an rms of ``clip``.

    ``v`` is a product of averages over rows and columns, of weight ``1 - k^beta2_decay`` at step ``k``. With a
    ``beta1`` the steps are averaged too.
    """

    weight_decay: float = quantity("decoupled_decay", default=0.0)
    beta1: float | None = quantity("beta1", default=None)
    eps1: float = quantity("eps_root", default=1e-30)
    beta2_decay: float = -0.8
    eps2: float = 1e-3
    clip: float = 1.0
    name: ClassVar[str] = "adafactor"


@dataclass(frozen=True)
class AdEMAMix(Optimizer):
    """AdEMAMix: ``theta -= eta ((m_hat + alpha m2) / (sqrt(v_hat) + eps) + weight_decay theta)``.

    ``m2`` is a second, slower average of weight ``beta3``. Over ``warmup`` steps alpha and beta3 grow to their values.
    """

    beta1: float = quantity("beta1", default=0.9)
    beta2: float = quantity("beta2", default=0.999)
    beta3: float = quantity("beta3", default=0.9999)
    eps: float = quantity("eps", default=1e-8)
    weight_decay: float = quantity("decoupled_decay", default=0.0)
    alpha: float = 5.0
    warmup: float | None = quantity("warmup", "t_alpha_beta3", default=None)
    name: ClassVar[str] = "ademamix"


@dataclass(frozen=True)
class SOAP(Optimizer):
    """Adam in the eigenbasis of ``L`` and ``R``, averages of ``g g^T`` and ``g^T g``; the basis is renewed at times."""

    beta1: float = quantity("beta1", default=0.95)
    beta2: float = quantity("beta2", default=0.95)
    shampoo_beta: float = quantity("beta3", default=0.95)
    eps: float = quantity("eps", default=1e-8)
    weight_decay: float = quantity("decoupled_decay", default=0.01)
    frequency: float = quantity("frequency", "precondition_frequency", default=10)
    name: ClassVar[str] = "soap"


@dataclass(frozen=True)
class Shampoo(Optimizer):
    """Shampoo: ``theta -= eta L^(-1/4) m R^(-1/4)`` with averages ``L`` and ``R`` as SOAP's, plus ``eps``."""

    beta1: float = quantity("beta1", default=0.9)
    beta2: float = quantity("beta2", default=0.999)
    eps: float = quantity("eps_root", default=1e-12)
    weight_decay: float = quantity("decoupled_decay", default=0.0)
    frequency: float = quantity("frequency", "precondition_frequency", default=10)
    name: ClassVar[str] = "shampoo"


@dataclass(frozen=True)
class ScheduleFreeAdamW(Optimizer):
    """Schedule-Free AdamW: ``z -= eta (g(y) / (sqrt(v_hat) + eps) + weight_decay y)``, ``x`` averages ``z``.

    Gradients are taken at ``y = (1 - beta1) z + beta1 x``, and step ``k`` has weight ``k^r eta^p`` in ``x``.
    """

    beta1: float = quantity("interpolation", default=0.9)
    beta2: float = quantity("beta2", default=0.999)
    eps: float = quantity("eps", default=1e-8)
    weight_decay: float = quantity("decoupled_decay", default=0.0)
    warmup: float = quantity("warmup", "warmup_steps", default=0)
    name: ClassVar[str] = "schedulefree-adamw"


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad: ``s += g^2`` and ``theta -= eta / (1 + k lr_decay) g / (sqrt(s) + eps)``; ``s`` starts at ``start``."""

    eps: float = quantity("eps_sum", default=1e-10)
    weight_decay: float = quantity("l2", default=0.0)
    lr_decay: float = quantity("lr_decay", default=0.0)
    start: float = quantity("sum", "initial_accumulator_value", default=0.0)
    name: ClassVar[str] = "adagrad"


@dataclass(frozen=True)
class LARS(Optimizer):
    """LARS: ``b = mu b + |theta| (g + weight_decay theta) / (|g| + weight_decay |theta|)`` and ``theta -= eta b``."""

    momentum: float = quantity("momentum", default=0.9)
    weight_decay: float = quantity("l2", default=0.0)
    name: ClassVar[str] = "lars"


# ---- updates that normalise momentum itself


@dataclass(frozen=True)
class Muon(Optimizer):
    """Muon: ``m = mu m + (1 - mu) g`` and ``theta -= eta * (O + weight_decay * theta)``.

    ``O`` is the orthogonal matrix nearest to ``m``, or with ``nesterov`` to ``mu m + (1 - mu) g``. ``eps`` bounds the
    norm of that matrix from below. Some variants average the squares of ``O`` with a ``beta2``.
    """

    mu: float = quantity("mu", "momentum", default=0.95)
    weight_decay: float = quantity("decoupled_decay", default=0.1)
    eps: float = quantity("eps_m", default=1e-7)
    beta2: float | None = quantity("beta2", default=None)
    nesterov: bool = True
    name: ClassVar[str] = "muon"


def _sign_constants(eta: float, weight_decay: float, batch_size: float) -> SDEConstants:
    """Return the constants of a step ``eta sign(...)``, of gradients with fixed weights: the clock is ``k eta^2``."""
    return SDEConstants(
        eta / math.sqrt(batch_size), None, None, None, None, decay=weight_decay / eta, step=eta**2
    )  # fmt: skip


@dataclass(frozen=True)
class Lion(Optimizer):
    """Lion: ``theta -= eta * (sign(beta1 m + (1 - beta1) g) + weight_decay * theta)``, then ``m`` takes ``g``.

    ``m = beta2 m + (1 - beta2) g``: beta2 is the momentum, and beta1 mixes momentum and gradient.
    """

    beta1: float = quantity("mix", default=0.9)
    beta2: float = quantity("mu", default=0.99)
    weight_decay: float = quantity("decoupled_decay", default=0.0)
    name: ClassVar[str] = "lion"

    def constants(self, batch_size: float = 1) -> SDEConstants:
        """Return the constants of its SDE with momentum kept in steps; `rootscale.theory` has the others."""
        return _sign_constants(self.eta, self.weight_decay, batch_size)


@dataclass(frozen=True)
class Signum(Optimizer):
    """Signum, which is SignSGD with momentum: ``m = mu m + (1 - mu) g`` and ``theta -= eta * sign(m)``."""

    mu: float = quantity("mu", "momentum", default=0.9)
    weight_decay: float = quantity("decoupled_decay", default=0.0)
    name: ClassVar[str] = "signum"

    def constants(self, batch_size: float = 1) -> SDEConstants:
        """Return the constants of its SDE with momentum kept in steps; `rootscale.theory` has the others."""
        return _sign_constants(self.eta, self.weight_decay, batch_size)


@dataclass(frozen=True)
class LAMB(Optimizer):
    """LAMB: ``theta -= eta |theta| r / |r|`` with ``r = m_hat / (sqrt(v_hat) + eps) + weight_decay theta``."""

    beta1: float = quantity("mu", "beta1", default=0.9)
    beta2: float = quantity("beta2", default=0.999)
    eps: float = quantity("eps", default=1e-6)
    weight_decay: float = quantity("trust_decay", default=0.0)
    max_grad_norm: float | None = quantity("clip", default=None)
    name: ClassVar[str] = "lamb"


# ---- updates that grow with the gradient


@dataclass(frozen=True)
class ScheduleFreeSGD(Optimizer):
    """Schedule-Free SGD: ``z -= eta (g(y) + weight_decay y)``; ``y`` and ``x`` as in Schedule-Free AdamW."""

    beta1: float = quantity("interpolation", "momentum", default=0.9)
    weight_decay: float = quantity("l2", default=0.0)
    warmup: float = quantity("warmup", "warmup_steps", default=0)
    name: ClassVar[str] = "schedulefree-sgd"


#: The optimizers whose SDE is known.
SDEOptimizer = Adam | AdamW | RMSprop | SGD | Signum | Lion
