"""optax: the rule as pure functions, on the arguments of its optimizers, on schedules and on a live ``opt_state``.

A run continues at ``kappa`` times its batch size when its transformation is made anew with converted arguments
(`scale`) and its state is converted (`rescale`). Both together are the change of units: neither is right alone.

optax counts steps in int32, and a counter in the new units is ``count / kappa``, which need not be whole. Where it is,
it stays an integer. Where it is not, it becomes a floating-point number, which optax's own transformations and
schedules take as they are (``count + 1``, ``1 - b**count``). The conversion is exact, at the price of one more
compilation of a jitted step. Switch after a multiple of ``kappa`` steps, and no type changes.
"""

try:
    import jax  # noqa: F401
    import optax  # noqa: F401
except ImportError as error:
    raise ImportError("rootscale.integrations.optax needs optax: pip install 'rootscale[optax]'") from error

from rootscale.integrations.optax.arguments import scale, scale_schedule
from rootscale.integrations.optax.states import rescale

__all__ = ["rescale", "scale", "scale_schedule"]
