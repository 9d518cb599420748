"""Random plans for the calculator, and what Python makes of each."""

import random

from rootscale import Plan
from rootscale.averagings import AVERAGINGS
from rootscale.rules import RULES, rule_text
from rootscale.schedule import SHAPES, WARMUPS
from rootscale.snippets import torch_code

#: Values that are tried for each unit, good ones first; the last is out of range, where there is such a value.
WEIGHTS = (0.9, 0.95, 0.99, 0.999, 0.9999, 0.98, 0.5, 0.0, 0.85, 1.0)
AMOUNTS = (0.1, 0.01, 0.0, 1e-3, 0.25, 3.0, -0.5)
VALUES = {
    "eta": (1e-3, 3e-4, 6e-4, 0.1, 2.5e-5, 1.0, 7.3e-4, -1e-3),
    "eps": (1e-8, 1e-6, 1e-10, 0.0, 1e-15, -1e-8),
    "eps_root": (0.0, 0.0, 0.0, 1e-8, 1e-30),
    "ema": (0.999, 0.9999, 0.99, 0.5, 1.0),
    "batchnorm": (0.1, 0.01, 1, 0.0, 0.003, 1.5),
    "clip": (1, 0.5, 5, 0.1, 0),
    "min_eta": (1e-5, 3e-6, 0.0, 1e-7),
    "frequency": (10, 1, 100, 25, 0),
    "warmup": (1000, 0, 37, 250.5),
    "beta1": WEIGHTS, "beta2": WEIGHTS, "beta3": WEIGHTS, "mu": WEIGHTS, "mix": WEIGHTS, "momentum": WEIGHTS,
    "interpolation": WEIGHTS[:-1],
}  # fmt: skip
BATCHES = (1, 4, 16, 32, 48, 64, 100, 256, 1000, 4096, 65536, "8x4x2", "32x1x1", "3x5x7", "256x1x8")
ODD_BATCHES = (0, "x", "4x4", "12.5", "513/2", -3, "0.5x2x2", 3.3)
#: Sizes and lengths in samples and tokens, some of which need the length of a sequence or cannot be read.
LENGTHS = (128, 2048, 100, 1, 0.5)
WRITTEN_BATCHES = (
    "0.5M", "2**19", "65536 tokens", "8 samples", "524288", "1.5k", "2^10 * 3", "1e6 Tokens", "4_096 sequences",
    "0.5M x", "10 steps", "1M token", "k", "5e99 samples", "1_000", "2** 8",
)  # fmt: skip
WRITTEN_LENGTHS = (
    "10B tokens",
    "5M samples",
    "20K",
    "2e4 steps",
    "1e9 tokens",
    "7 tokens",
    "1T",
    "many",
    "3.5M sequences",
)
STEPS = (1000, 10_000, 100_000, 3e5, 12_345.5, 123_456_789, 777, 1)


def shipped(names):
    """The names without a number of their own: those with one are added by files of experiments in this process."""
    return [name for name in names if ":" not in name]


def pick(rng, values):
    """One of the values, rarely the last."""
    return values[-1] if rng.random() < 0.015 else rng.choice(values[:-1])


def whole(value):
    """The value as JSON has it: 3.0 is 3."""
    if isinstance(value, dict):
        return {key: whole(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [whole(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value


def make_schedule(rng, steps):
    name = rng.choice(list(SHAPES))
    made = {"name": name}
    if rng.random() < 0.6 or name == "inverse-sqrt":
        made["warmup"] = rng.choice((10, 100, 500, 33, 0, steps // 20, 2000)[: 7 if rng.random() < 0.1 else 4])
        made["warmup_shape"] = rng.choice(list(WARMUPS))
        linear = made["warmup_shape"] == "linear" or rng.random() < 0.05
        made["warmup_start"] = rng.choice((0.0, 0.0, 0.1) if linear else (1e-3, 0.1))
    takes = SHAPES[name].takes
    own = {
        "min_eta": lambda: pick(rng, VALUES["min_eta"]),
        "every": lambda: rng.choice((100, 7, 30, 1000, 12.5)),
        "milestones": lambda: rng.choice(
            ([300, 600], [50], [10, 20, 35], [0.3 * steps, 0.6 * steps], [40, 30])[: 5 if rng.random() < 0.2 else 4]
        ),
        "decay": lambda: rng.choice((50, 200, steps // 5, 0.1 * steps)),
        "gamma": lambda: rng.choice((0.1, 0.5, 0.97, 1, 1.5) if rng.random() < 0.1 else (0.1, 0.5, 0.97)),
        "power": lambda: rng.choice((1, 2, 0.5)),
    }
    for field in takes:
        if rng.random() < (0.97 if field in SHAPES[name].needs else 0.7):
            made[field] = own[field]()
    return made


def make_request(rng, optimizers):
    """A plan as JSON, the batch size to go to, a rule and a form of averaging."""
    name = rng.choice(list(optimizers))
    values = {"eta": pick(rng, VALUES["eta"])}
    for field in optimizers[name]["fields"]:
        if field["name"] != "eta" and field["kind"] == "number" and rng.random() < 0.6:
            values[field["name"]] = pick(
                rng, VALUES.get(field["unit"], AMOUNTS[:-2] if field["unit"] is None else AMOUNTS)
            )
    batch, to = (rng.choice(ODD_BATCHES if rng.random() < 0.02 else BATCHES) for _ in range(2))
    steps = pick(rng, STEPS)
    plan = {"optimizer": {"name": name, **values}, "batch_size": batch, "schedule": make_schedule(rng, steps)}
    length = rng.random() * (0.9 if SHAPES[plan["schedule"]["name"]].needs_length else 1.2)
    if length < 0.6:
        plan["steps"] = steps
    elif length < 0.85:
        plan |= {"epochs": rng.choice((1, 3, 90, 0.5)), "dataset_size": rng.choice((50_000, 1_281_167, 1437))}
    for field, unit in (("ema", "ema"), ("batchnorm_momentum", "batchnorm"), ("clip", "clip")):
        if rng.random() < 0.35:
            plan[field] = pick(rng, VALUES[unit])
    if rng.random() < 0.2:
        plan["intervals"] = {"eval": rng.choice((1000, 50, 3)), "save": rng.choice((5000, 1))}
    if rng.random() < 0.2:
        plan["noise_scale"] = rng.choice((100, 389.5, 20_000))
    if rng.random() < 0.3:
        plan["sequence_length"] = pick(rng, LENGTHS)
        plan["batch_size"], to = (rng.choice((*BATCHES, *WRITTEN_BATCHES)) for _ in range(2))
        for name_of, value in (("steps", rng.choice(WRITTEN_LENGTHS)), ("dataset_size", "50K"), ("noise_scale", "1M")):
            if name_of in plan and rng.random() < 0.8:
                plan[name_of] = value
        if "warmup" in plan["schedule"] and rng.random() < 0.5:
            plan["schedule"]["warmup"] = rng.choice(("100M tokens", "2K samples", "0 tokens", "3 steps"))
        if rng.random() < 0.2:
            del plan["sequence_length"]
    rule = rng.choice([None, None, *shipped(optimizers[name]["rules"]), rng.choice(shipped(RULES))])
    averaging = rng.choice(["floor", *shipped(AVERAGINGS), "floor:0.7,0.95"])
    return whole({"plan": plan, "to": to, "rule": rule, "averaging": averaging})


def make_requests(optimizers, count, seed=0):
    rng = random.Random(seed)
    return [make_request(rng, optimizers) for _ in range(count)]


def limits_of(plan, changes):
    """The largest kappa of each value that has one."""
    forms = {row.field: changes.rule.units[unit].form for row in changes if row.unit and (unit := row.unit.key)}
    limits = [(row, forms[row.field].limit(row.before)) for row in changes if row.field in forms]
    return [{"field": row.field, "name": row.name, "limit": limit} for row, limit in limits if limit != float("inf")]


def answer(request):
    """What Python says: the conversion with its code, or the error."""
    try:
        plan = Plan.from_dict(request["plan"])
        conversion = plan.convert(request["to"], rule_text(request["rule"], request["averaging"]))
    except ValueError as error:
        return {"error": str(error)}
    changes = conversion.changes
    try:
        code = torch_code(conversion.plan)
    except ValueError as error:
        code = f"error: {error}"
    said = changes.to_dict() | {"limits": limits_of(plan, changes)}
    return {**said, "heading": changes.heading, "code": code, "to": conversion.plan.to_dict()}
