"""The theory's functions with flat arguments: a test names what it varies, and `SaveAt` and `Paths` are made of it."""

from rootscale.theory import Paths, SaveAt, run_chain, solve, weak_error


def solved(equation, x0, functions, times, *, h, seed, scheme="euler", t0=0.0, keep=False, paths=None, **how):
    save = SaveAt(times, functions, t0, keep)
    return solve(equation, x0, save, h=h, scheme=scheme, paths=Paths(paths, seed, **how))


def chained(chain, x0, functions, times, *, seed, t0=0.0, keep=False, paths=None, **how):
    return run_chain(chain, x0, SaveAt(times, functions, t0, keep), Paths(paths, seed, **how))


def weak(
    chains, reference, x0, times, *, start=0.0, tests=None, scheme=None, controls=True, paths=20_000, seed=0, **how
):
    save = SaveAt(times, tests, start)
    return weak_error(chains, reference, x0, save, scheme=scheme, controls=controls, paths=Paths(paths, seed, **how))
