"""Running a chain over continuous time: the counterpart of `solve` for discrete optimizers and SVAG."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from rootscale.theory.discrete import Chain
from rootscale.theory.engine import State, States, drive
from rootscale.theory.solve import whole_steps
from rootscale.trajectory import Trajectory

__all__ = ["Drawable", "run_chain"]


@runtime_checkable
class Drawable(Protocol):
    """What `run_chain` needs of an oracle: stochastic gradients as a function of standard normals."""

    @property
    def normals(self) -> int:
        """How many standard normals a stochastic gradient takes."""

    def drawn(self, theta: Tensor, w: Tensor) -> Tensor:
        """The stochastic gradient ``[P, d]`` of the normals ``w [P, normals]``."""


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
    functions: Mapping[str, Callable[[Any], Tensor]],
    times: Sequence[float],
    *,
    seed: int,
    t0: float = 0.0,
    paths: int | None = None,
    keep: bool = False,
    compile: bool | None = None,
    chunk: int | None = None,
    progress: bool | None = None,
) -> Trajectory:
    """Test functions of a chain at requested times ``t = k eta^2`` (SGD: ``k eta``), as `solve` gives them of its SDE.

    >>> import torch
    >>> from rootscale.hparams import RMSprop
    >>> from rootscale.theory import NGOS, Chain, RMSpropState, cosine
    >>> chain = Chain(RMSprop(eta=0.1, beta=0.98), NGOS(cosine(), sigma=10.0))
    >>> x0 = RMSpropState(torch.ones(1, 1), torch.ones(1, 1))
    >>> result = run_chain(chain, x0, {"theta": lambda x: x.theta[:, 0]}, [0.0, 1.0], seed=0, paths=100)
    >>> result["theta"].mean[0]
    np.float64(1.0)

    Args:
        chain: the optimizer on its oracle; `svag_chain` gives SVAG's.
        x0: the state at ``t0``, *of the SDE* (``u = v / sigma^2``), so that all processes can start at the same one.
        functions: the test functions, of a state of the SDE: one number for each path, ``[P]``.
        times: when to evaluate them: increasing, and whole numbers of steps from ``t0``.
        seed: of the normals that the stochastic gradients are made of.
        t0: the initial time; the chain's counter starts at ``t0`` over the time of a step.
        paths, keep, compile, chunk, progress: as in `rootscale.theory.engine.drive`.
    """
    oracle, h = chain.oracle, chain.clock
    if not isinstance(oracle, Drawable):
        raise TypeError(
            f"run_chain needs an oracle with normals and drawn(theta, w), as NGOS and NetworkOracle have them; "
            f"{type(oracle).__name__} has none (Chain.iterate takes any oracle)"
        )

    if len(x0) != chain.moments + 1:
        raise ValueError(
            f"x0 must be a state of the SDE of {chain.optimizer.name} with {chain.moments + 1} parts, got "
            f"{type(x0).__name__} with {len(x0)}"
        )

    def observe(t: float, x: States) -> dict[str, Tensor]:
        state = chain.scaled(x[0])
        return {name: f(state) for name, f in functions.items()}

    return drive(
        _Step(chain, oracle, t0 / h),
        (chain.unscaled(x0),),
        observe,
        steps=whole_steps(times, t0, h),
        h=h,
        width=oracle.normals,
        seed=seed,
        t0=t0,
        paths=paths,
        keep=keep,
        compile=compile,
        chunk=chunk,
        progress=progress,
        meta={"optimizer": repr(chain.optimizer), "sigma": oracle.sigma, "form": chain.form.name},
    )
