"""A real network follows the SDE of Adam: `experiments/theory/digits.py` under the name ``mlp-sde``.

The claim, the setting and the cost are in that file: discrete Adam, SVAG and the SDE by Euler-Maruyama from a common
state in mid-training, 32 replicas each, on scikit-learn's digits. The paper calls the solution of the SDE intractable.

    rootscale reproduce mlp-sde
"""

from __future__ import annotations

from pathlib import Path

from rootscale.reproduce import Experiment, Options, load_file

#: What a smoke test runs: all processes, for a moment.
SMALL = ["--eager", "--replicas", "3", "--warmup-samples", "400", "--samples", "64", "--points", "2"]


def script(options: Options, out: Path) -> None:
    """The program of the theory's experiment."""
    digits = load_file(Path(__file__).parent / "theory" / "digits.py")
    digits.main(["--out", str(out), "--device", options.device, *(SMALL if options.smoke else [])])


EXPERIMENTS = [
    Experiment(
        name="mlp-sde",
        title="The SDE of a real network",
        claim="Discrete Adam and SVAG follow the SDE (which the paper does not solve: its simulation is intractable)",
        source="Section 4 and section 6, SVAG",
        minutes=3,
        defaults=Options(epochs=1, batch_sizes=(4,), seeds=32),
        script=script,
    )
]
