"""Growing in stages: is many times the batch nearer to the run in several steps than at once?

Claim. At 64 times the batch, and with BatchNorm at 16 times, no form of default betas gives the run when the batch
grows at once. Fixed before it was run: in stages the gap is smaller by more than two errors (first half), and the runs
are the same (second half).

Control, fixed before it was run too. Stages also come later. One jump to the largest batch at the time of the last
stage is as late, without the stages. If the stages themselves help, its gap is larger than theirs by more than two
errors; if only the delay does, the two gaps agree within two errors. The second is expected, on all three nets.

Protocol. An MLP, a conv net with BatchNorm and a tiny GPT, betas .9, .999 and .9, .95, default floors. The batch grows
by 4 at the switch and again after each quarter of what is left, up to 64 times (MLP, GPT) or 16 times (conv net); or by
all of it at the switch; or by all of it when the last stage would begin. Everything is converted, or the learning rate
alone. The null is the same batch size with other samples. Seeds 0 to 15 of the MLP, 0 to 7 of the others.

Cost. A few minutes on a core of a CPU for each of the small nets, half an hour for the GPT.

Finding. The first half holds for MLP and conv net. The second is contradicted by the conv net (beta2 = .95, n = 8), and
not decided by the MLP at beta2 = .999 (n = 16). The control says why stages are nearer: they are later. One late jump
is as near as the stages in all four, within two errors. results/README.md has the verdicts with n.

    rootscale study experiments/stages.py
    rootscale study experiments/stages.py --net convnet --beta2 0.95
"""

from __future__ import annotations

from fractions import Fraction

from small_nets import KEEPS, NETS, base_and_null

from rootscale.lab import Arm, Study, Variant

#: The part of the run after the switch from one growth of the batch to the next.
APART = Fraction(1, 4)
ON = ("mlp", "convnet", "gpt")
#: What is converted, and what follows the label.
RULES = {"sqrt": "", "sqrt-eta": ", learning rate only"}


def study(net: str, beta2: float) -> Study:
    """Return the base, its null, and the largest batch at once and in stages, by both rules."""
    chosen = NETS[net]
    task = chosen.task(f"stages-{'digits' if net == 'mlp' else net}-{beta2:g}", (0.9, beta2))
    settings, sizes = chosen.settings(task), chosen.sizes
    left = settings.grid[-1] - settings.switch_at
    apart = max(1, round(left * APART / sizes[-1])) * sizes[-1]
    first, *later = (Fraction(size, sizes[0]) for size in sizes[1:])
    ramp = tuple((settings.switch_at + apart * i, kappa) for i, kappa in enumerate(later, 1))
    arms = list(base_and_null(task))
    for rule, more in RULES.items():
        ways = {
            "at once": Variant(Fraction(sizes[-1], sizes[0]), rule),
            "in stages": Variant(first, rule, ramp=ramp),
            "at once, late": Variant(1, rule, ramp=ramp[-1:]),
        }
        for way, variant in ways.items():
            arms.append(Arm(f"{sizes[0]} → {sizes[-1]}, {way}{more}", task, variant, {"form": way}))
    claim = f"{chosen.title}, betas .9 and {beta2:g}: {sizes[-1] // sizes[0]} times the batch in stages, or at once"
    return Study(f"stages-{net}-{beta2:g}", arms, claim, chosen.seeds, settings, keeps=KEEPS)


def studies(net: str = "", beta2: float = 0.0) -> list[Study]:
    """Return the studies of one net or betas, or of all."""
    return [study(one, two) for one in ([net] if net else ON) for two in ([beta2] if beta2 else (0.999, 0.95))]


STUDY = studies
