"""Chains over continuous time: the counterpart of `solve` for discrete optimizers and SVAG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from rootscale.theory.discrete import Chain
from rootscale.theory.engine import Paths, SaveAt, State, States, System, drive
from rootscale.theory.states import started
from rootscale.trajectory import Trajectory

__all__ = ["Drawable", "run_chain"]


@runtime_checkable
class Drawable(Protocol):
    """What `run_chain` needs of an oracle: stochastic gradients as a function of standard normals."""

    @property
    def normals(self) -> int:
        """How many standard normals a stochastic gradient takes."""

    def drawn(self, theta: Tensor, w: Tensor) -> Tensor:
        """Return the stochastic gradient ``[P, d]`` of the normals ``w [P, normals]``."""


@dataclass(frozen=True)
class _Step:
    """One step of a chain: an ``advance`` for `drive`. ``start`` is the counter of its first step."""

    chain: Chain
    oracle: Drawable
    start: float

    def __call__(self, k: Tensor, t: Tensor, h: float | Tensor, x: States, w: tuple[Tensor, ...]) -> States:
        return (self.chain.step(self.start + k, x[0], self.oracle.drawn(x[0][0], w[0])),)


def run_chain(
    chain: Chain,
    x0: State,
    save: SaveAt,
    paths: Paths = Paths(),  # noqa: B008  (frozen)
) -> Trajectory:
    """Return test functions of a chain at times ``t = k chain.clock``, as `solve` gives them of its SDE.

    >>> import torch
    >>> from rootscale.hparams import RMSprop
    >>> from rootscale.theory import NGOS, Chain, RMSpropState, cosine
    >>> chain = Chain(RMSprop(eta=0.1, beta=0.98), NGOS(cosine(), sigma=10.0))
    >>> x0 = RMSpropState(torch.ones(1, 1), torch.ones(1, 1))
    >>> result = run_chain(chain, x0, SaveAt([0.0, 1.0], {"theta": lambda x: x.theta[:, 0]}), Paths(100))
    >>> result["theta"].mean[0]
    np.float64(1.0)

    Args:
        chain: the optimizer on its oracle; `svag_chain` gives SVAG's.
        x0: the state at ``save.start``, *of the SDE* (``u = v / sigma^2``), so that all processes can start at the
            same one.
        save: which test functions of a state of the SDE to evaluate, and when. The chain's counter starts at
            ``save.start`` over the time of a step.
        paths: how many, and how; the stochastic gradients are made of its normals.
    """
    oracle, h = chain.oracle, chain.clock
    if not isinstance(oracle, Drawable):
        raise TypeError(
            f"run_chain needs an oracle with normals and drawn(theta, w), as NGOS and NetworkOracle have them; "
            f"{type(oracle).__name__} has none (Chain.iterate takes any oracle)"
        )
    x0 = started(x0, chain.kind, chain.oracle)
    functions = save.functions_of(x0)

    def observe(t: float, x: States) -> dict[str, Tensor]:
        state = chain.scaled(x[0])
        return {name: f(state) for name, f in functions.items()}

    system = System(_Step(chain, oracle, save.start / h), h, oracle.normals)
    meta = {"optimizer": repr(chain.optimizer), "sigma": oracle.sigma, "form": chain.form.name}
    return drive(system, (chain.unscaled(x0),), observe, save, paths, meta)
