# mypy: disable-error-code="no-any-return"
# Hyperparameters are read from records of many kinds, hence Any.
"""The plain update of each optimizer family, for many replicas at once: what the toy problems simulate.

An update takes the parameters ``theta`` ``[R, n, m]`` of R replicas, their gradients ``g``, the state (a dict that it
fills and changes) and a record of hyperparameters, and returns the new parameters. It is written from the equations in
the records' docstrings, apart from every library, so that a test can hold libraries and rules against it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

State = dict[str, Any]
Update = Callable[[Tensor, Tensor, State, Any], Tensor]


def _count(state: State) -> float:
    state["step"] = state.get("step", 0.0) + 1
    return float(state["step"])


def _average(state: State, name: str, beta: float, value: Tensor) -> Tensor:
    """Average a value over steps with the weight ``beta`` of the past, in the state."""
    old = state.get(name)
    state[name] = (1 - beta) * value + (0 if old is None else beta * old)
    new: Tensor = state[name]
    return new


def _norm(x: Tensor) -> Tensor:
    """Return the norm of each replica, ``[R, 1, 1]``."""
    return x.square().sum((1, 2), keepdim=True).sqrt()


def _safe(x: Tensor) -> Tensor:
    return x.clamp(min=1e-300)


def _moments(state: State, g: Tensor, h: Any) -> tuple[Tensor, Tensor]:
    """Return ``m_hat`` and ``sqrt(v_hat) + eps`` of Adam, with the state updated."""
    k = _count(state)
    m, v = _average(state, "m", h.beta1, g), _average(state, "v", h.beta2, g * g)
    return m / (1 - h.beta1**k), (v / (1 - h.beta2**k)).sqrt() + h.eps


def sgd(theta: Tensor, g: Tensor, state: State, h: Any) -> Tensor:
    """``b = mu b + g``, ``theta -= eta b``."""
    g = g + h.weight_decay * theta
    state["b"] = g + h.momentum * state.get("b", 0.0)
    return theta - h.eta * state["b"]


def adam(theta: Tensor, g: Tensor, state: State, h: Any) -> Tensor:
    """``theta -= eta m_hat / (sqrt(v_hat) + eps)``."""
    m, root = _moments(state, g + h.weight_decay * theta, h)
    return theta - h.eta * m / root


def adamw(theta: Tensor, g: Tensor, state: State, h: Any) -> Tensor:
    """``theta -= eta (m_hat / (sqrt(v_hat) + eps) + lambda theta)``."""
    m, root = _moments(state, g, h)
    return theta * (1 - h.eta * h.weight_decay) - h.eta * m / root


def amsgrad(theta: Tensor, g: Tensor, state: State, h: Any) -> Tensor:
    """Adam that divides by the root of the largest ``v`` so far."""
    k = _count(state)
    m, v = _average(state, "m", h.beta1, g), _average(state, "v", h.beta2, g * g)
    state["v_max"] = torch.maximum(state["v_max"], v) if "v_max" in state else v
    root = (state["v_max"] / (1 - h.beta2**k)).sqrt() + h.eps
    return theta - h.eta * m / (1 - h.beta1**k) / root


def nadam(theta: Tensor, g: Tensor, state: State, h: Any) -> Tensor:
    """Adam that looks ahead, with a momentum that grows."""
    g = g + h.weight_decay * theta
    k = _count(state)
    m, v = _average(state, "m", h.beta1, g), _average(state, "v", h.beta2, g * g)
    root = (v / (1 - h.beta2**k)).sqrt() + h.eps
    mu, after = (h.beta1 * (1 - 0.5 * 0.96 ** (j * h.momentum_decay)) for j in (k, k + 1))
    state["product"] = product = state.get("product", 1.0) * mu
    ahead = (1 - mu) * g / (1 - product) + after * m / (1 - product * after)
    return theta - h.eta * ahead / root


def radam(theta: Tensor, g: Tensor, state: State, h: Any) -> Tensor:
    """Adam times its rectification; without division by ``v`` while ``rho_k <= 5``."""
    m, root = _moments(state, g + h.weight_decay * theta, h)
    k = state["step"]
    most = 2 / (1 - h.beta2) - 1
    rho = most - 2 * k * h.beta2**k / (1 - h.beta2**k)
    if rho <= 5:
        return theta - h.eta * m
    rectified = math.sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho))
    return theta - h.eta * rectified * m / root


def adamax(theta: Tensor, g: Tensor, state: State, h: Any) -> Tensor:
    """``u = max(beta2 u, |g| + eps)``, ``theta -= eta m_hat / u``."""
    g = g + h.weight_decay * theta
    k = _count(state)
    m = _average(state, "m", h.beta1, g)
    now = g.abs() + h.eps
    state["u"] = torch.maximum(h.beta2 * state["u"], now) if "u" in state else now
    return theta - h.eta / (1 - h.beta1**k) * m / state["u"]


def rmsprop(theta: Tensor, g: Tensor, state: State, h: Any) -> Tensor:
    """``b = mu b + g / (sqrt(v - a^2) + eps)``, ``theta -= eta b``, with or without momentum and the mean ``a``."""
    g = g + h.weight_decay * theta
    v = _average(state, "v", h.beta, g * g)
    if h.name == "rmsprop-centered":
        v = (v - _average(state, "a", h.beta, g).square()).clamp(min=0)
    step = g / (v.sqrt() + h.eps)
    mu = getattr(h, "momentum", 0.0)
    if mu:
        state["b"] = step = step + mu * state.get("b", 0.0)
    return theta - h.eta * step


def adagrad(theta: Tensor, g: Tensor, state: State, h: Any) -> Tensor:
    """``s += g^2``, ``theta -= eta g / (sqrt(s) + eps)``."""
    g = g + h.weight_decay * theta
    k = _count(state)
    state["s"] = state.get("s", h.start) + g * g
    return theta - h.eta / (1 + (k - 1) * h.lr_decay) * g / (state["s"].sqrt() + h.eps)


def adafactor(theta: Tensor, g: Tensor, state: State, h: Any) -> Tensor:
    """``v`` from averages over rows and columns; steps in shares of the parameter's own size."""
    k = _count(state)
    beta2 = 1 - k**h.beta2_decay
    row = _average(state, "row", beta2, g.square().mean(2, keepdim=True))
    column = _average(state, "column", beta2, g.square().mean(1, keepdim=True))
    update = g / (row @ column / _safe(row.mean(1, keepdim=True))).sqrt()
    size = math.sqrt(theta[0].numel())
    update = update / (_norm(update) / size / h.clip).clamp(min=1)
    alpha = (_norm(theta) / size).clamp(min=h.eps2) * min(h.eta, 1 / math.sqrt(k))
    return theta * (1 - h.eta * h.weight_decay) - alpha * update


def ademamix(theta: Tensor, g: Tensor, state: State, h: Any) -> Tensor:
    """``theta -= eta ((m_hat + alpha m2) / (sqrt(v_hat) + eps) + lambda theta)``."""
    m, root = _moments(state, g, h)
    share = 1.0 if h.warmup is None else min(1.0, state["step"] / float(h.warmup))
    beta3 = h.beta3
    if share < 1:  # the half-life of the slow average grows linearly
        low, high = math.log(h.beta1), math.log(h.beta3)
        beta3 = math.exp(low * high / ((1 - share) * high + share * low))
    slow = _average(state, "m2", beta3, g)
    return theta * (1 - h.eta * h.weight_decay) - h.eta * (m + h.alpha * share * slow) / root


def _factors(state: State, g: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    left = _average(state, "left", beta, g @ g.transpose(1, 2))
    right = _average(state, "right", beta, g.transpose(1, 2) @ g)
    return left, right


def _due(state: State, name: str, every: float) -> bool:
    """Return whether something that is done every so many steps is due; intervals need not be whole."""
    return name not in state or math.floor(state["step"] / every) > math.floor((state["step"] - 1) / every)


def soap(theta: Tensor, g: Tensor, state: State, h: Any) -> Tensor:
    """Adam in the eigenbasis of the averages of ``g g^T`` and ``g^T g``."""
    k = _count(state)
    left, right = _factors(state, g, h.shampoo_beta)
    if _due(state, "basis", h.frequency):
        state["basis"] = torch.linalg.eigh(left)[1], torch.linalg.eigh(right)[1]
    p, q = state["basis"]
    turned = p.transpose(1, 2) @ g @ q
    m, v = _average(state, "m", h.beta1, g), _average(state, "v", h.beta2, turned * turned)
    root = (v / (1 - h.beta2**k)).sqrt() + h.eps
    step = p @ (p.transpose(1, 2) @ (m / (1 - h.beta1**k)) @ q / root) @ q.transpose(1, 2)
    return theta * (1 - h.eta * h.weight_decay) - h.eta * step


def _root4(matrix: Tensor, eps: float) -> Tensor:
    """Return the inverse fourth root of symmetric matrices."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * (values.clamp(min=0) + eps).pow(-0.25).unsqueeze(1)) @ vectors.transpose(1, 2)


def shampoo(theta: Tensor, g: Tensor, state: State, h: Any) -> Tensor:
    """``theta -= eta L^(-1/4) m_hat R^(-1/4)``."""
    k = _count(state)
    left, right = (side / (1 - h.beta2**k) for side in _factors(state, g, h.beta2))
    m = _average(state, "m", h.beta1, g) / (1 - h.beta1**k)
    if _due(state, "roots", h.frequency):
        state["roots"] = _root4(left, h.eps), _root4(right, h.eps)
    one, two = state["roots"]
    return theta * (1 - h.eta * h.weight_decay) - h.eta * one @ m @ two


def _schedule_free(theta: Tensor, direction: Tensor, state: State, h: Any, eta: float) -> Tensor:
    """Move ``z``, and ``y`` with it; ``theta`` is ``y``."""
    state["eta_max"] = max(eta, state.get("eta_max", 0.0))
    weight = state["eta_max"] ** 2
    state["weights"] = state.get("weights", 0.0) + weight
    share = weight / state["weights"]
    z = state.get("z", theta)
    moved = theta + share * (z - theta) + eta * (h.beta1 * (1 - share) - 1) * direction
    state["z"] = z - eta * direction
    return moved


def _warmed(state: State, h: Any) -> float:
    """Return the learning rate of this step, ``state["step"]``."""
    return float(h.eta * min(1.0, state["step"] / h.warmup if h.warmup else 1.0))


def schedulefree_adamw(theta: Tensor, g: Tensor, state: State, h: Any) -> Tensor:
    """``z -= eta (g / (sqrt(v_hat) + eps) + lambda y)``."""
    k = _count(state)
    root = (_average(state, "v", h.beta2, g * g) / (1 - h.beta2**k)).sqrt() + h.eps
    return _schedule_free(theta, g / root + h.weight_decay * theta, state, h, _warmed(state, h))


def schedulefree_sgd(theta: Tensor, g: Tensor, state: State, h: Any) -> Tensor:
    """``z -= eta (g + lambda y)``."""
    _count(state)
    return _schedule_free(theta, g + h.weight_decay * theta, state, h, _warmed(state, h))


def lars(theta: Tensor, g: Tensor, state: State, h: Any) -> Tensor:
    """``b = mu b + |theta| (g + lambda theta) / (|g| + lambda |theta|)``, ``theta -= eta b``."""
    size, decayed = _norm(theta), g + h.weight_decay * theta
    state["b"] = size * decayed / _safe(_norm(g) + h.weight_decay * size) + h.momentum * state.get("b", 0.0)
    return theta - h.eta * state["b"]


def orthogonalized(matrix: Tensor, eps: float, steps: int = 12) -> Tensor:
    """Return the nearest orthogonal matrices by Newton's iteration, ``X <- (3 X - X X^T X) / 2``."""
    x = matrix / _norm(matrix).clamp(min=eps)
    wide = x if x.shape[1] <= x.shape[2] else x.transpose(1, 2)
    for i in range(steps):  # the first steps widen the range of singular values that converge, as Muon's do
        a, b, c = (3.4445, -4.7750, 2.0315) if i < steps // 2 else (1.875, -1.25, 0.375)
        gram = wide @ wide.transpose(1, 2)
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    return wide if x.shape[1] <= x.shape[2] else wide.transpose(1, 2)


def muon(theta: Tensor, g: Tensor, state: State, h: Any) -> Tensor:
    """``theta -= eta (O(m) + lambda theta)``, or with Nesterov ``O(mu m + (1 - mu) g)``."""
    m = _average(state, "m", h.mu, g)
    o = orthogonalized(h.mu * m + (1 - h.mu) * g if h.nesterov else m, h.eps)
    return theta * (1 - h.eta * h.weight_decay) - h.eta * o


def lion(theta: Tensor, g: Tensor, state: State, h: Any) -> Tensor:
    """``theta -= eta (sign(beta1 m + (1 - beta1) g) + lambda theta)``, then ``m`` takes ``g``."""
    moved = (1 - h.beta1) * g + h.beta1 * state.get("m", 0.0)
    _average(state, "m", h.beta2, g)
    return theta * (1 - h.eta * h.weight_decay) - h.eta * moved.sign()


def signum(theta: Tensor, g: Tensor, state: State, h: Any) -> Tensor:
    """``theta -= eta (sign(m) + lambda theta)``."""
    m = _average(state, "m", h.mu, g)
    return theta * (1 - h.eta * h.weight_decay) - h.eta * m.sign()


def lamb(theta: Tensor, g: Tensor, state: State, h: Any) -> Tensor:
    """``theta -= eta |theta| r / |r|`` with ``r = m_hat / (sqrt(v_hat) + eps) + lambda theta``."""
    m, root = _moments(state, g, h)
    r = m / root + h.weight_decay * theta
    return theta - h.eta * _norm(theta) / _safe(_norm(r)) * r


#: The updates by the names of their families.
UPDATES: Mapping[str, Update] = MappingProxyType(
    {
        "adam": adam, "adamw": adamw, "rmsprop": rmsprop, "sgd": sgd, "nadam": nadam, "radam": radam, "adamax": adamax,
        "rmsprop-momentum": rmsprop, "rmsprop-centered": rmsprop, "adafactor": adafactor, "ademamix": ademamix,
        "soap": soap, "shampoo": shampoo, "schedulefree-adamw": schedulefree_adamw, "adagrad": adagrad, "lars": lars,
        "muon": muon, "lion": lion, "signum": signum, "lamb": lamb, "schedulefree-sgd": schedulefree_sgd,
    }
)  # fmt: skip
