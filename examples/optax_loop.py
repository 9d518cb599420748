"""An optax loop whose batch size is raised in mid-run: arguments by `scale`, state by `rescale`.

python examples/optax_loop.py
"""

import jax
import jax.numpy as jnp
import optax

from rootscale.integrations.optax import rescale, scale


def loss(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the loss of a linear regression."""
    return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)


def train(optimizer: optax.GradientTransformation, params, state, x, y, size: int):
    """Train for one epoch in batches of ``size``."""

    def step(carry, batch):
        params, state = carry
        updates, state = optimizer.update(jax.grad(loss)(params, *batch), state, params)
        return (optax.apply_updates(params, updates), state), None

    batches = x.reshape(-1, size, x.shape[1]), y.reshape(-1, size)
    return jax.jit(lambda carry: jax.lax.scan(step, carry, batches)[0])((params, state))


def main() -> None:
    """Train an epoch at batch size 8, then one at 32."""
    keys = jax.random.split(jax.random.key(0), 2)
    x = jax.random.normal(keys[0], (2048, 8))
    y = x.sum(1) + jax.random.normal(keys[1], (2048,))
    schedule = optax.warmup_cosine_decay_schedule(0.0, 2e-2, warmup_steps=50, decay_steps=512)
    arguments = {"learning_rate": schedule, "b1": 0.95, "b2": 0.995, "weight_decay": 1e-3}
    params = {"w": jnp.zeros(8), "b": jnp.zeros(())}
    optimizer = optax.adamw(**arguments)
    params, state = train(optimizer, params, optimizer.init(params), x, y, 8)
    print(f"batch size  8: {int(state[0].count):3d} steps, loss {loss(params, x, y):.3f}")

    kappa = 4
    optimizer = optax.adamw(**scale(optax.adamw, kappa, **arguments))
    state = rescale(state, kappa, b1=arguments["b1"])
    params, state = train(optimizer, params, state, x, y, 8 * kappa)
    print(f"batch size 32: {int(state[0].count):3d} steps, loss {loss(params, x, y):.3f}")


if __name__ == "__main__":
    main()
