"""Each row of the registry keeps the dynamics of its family on toy problems, where wrong rules do not."""

import pytest
import torch

from rootscale import Adam
from rootscale.optimizers import FAMILIES
from rootscale.records import Muon
from rootscale.theory.toys import TOY_RECORDS, TOYS, Setting, live_gaps, toy_gaps
from rootscale.theory.updates import UPDATES

FAST = Setting(replicas=256, before=96, after=320)
LONG = Setting(replicas=2048, before=160, after=800)
#: The most that the own rule's gap may be at kappa = 4 and 16 over both problems, in percent of the base curve's range.
#: Fast runs have a null of up to .03, long ones of up to .02. Adamax's maximum loses a logarithm of the window.
BOUNDS = {"adamax": (0.16, 0.25)}
SHORT_MEMORY = (0.08, 0.2)  # momentum is kept in steps, and grows in samples
BOUNDS |= dict.fromkeys(("lars", "rmsprop-momentum", "sgd", "muon", "muon without Nesterov"), SHORT_MEMORY)
BOUNDS |= dict.fromkeys(("lion", "signum"), (0.1, 0.3))


def wrong_rules(name):
    """Rules that must be worse than the own one, by more than the null; LARS has nothing but its learning rate."""
    family = FAMILIES[TOY_RECORDS[name].name]
    if family.degree:
        return {"nothing": "none"}
    wrong = {"nothing": "none"}
    if family.rules[0] != "sqrt":
        wrong["Adam's"] = "sqrt with paper"
    elif name != "lars":
        wrong["learning rate only"] = "sqrt-eta"
    return wrong


def test_every_family_has_a_toy_run():
    simulated = {record.name for record in TOY_RECORDS.values()}
    assert simulated == set(UPDATES)
    assert simulated == set(FAMILIES) - {"microbatchadam"}  # its gradients come in micro-batches


@pytest.mark.parametrize("name", TOY_RECORDS)
def test_the_own_rule_keeps_the_dynamics_and_wrong_rules_do_not(name):
    """At kappa = 4 on the quadratic; the slow test below has the rest."""
    found = toy_gaps(TOY_RECORDS[name], {"own": None, **wrong_rules(name)}, 4, "quadratic", FAST)
    assert abs(found["null"].gap) < 0.04
    own = abs(found["own"].gap)
    assert own < BOUNDS.get(name, (0.06, None))[0]
    for wrong in wrong_rules(name):
        assert abs(found[wrong].gap) > own + 0.05


@pytest.mark.slow
@pytest.mark.parametrize("toy", TOYS)
@pytest.mark.parametrize("name", TOY_RECORDS)
def test_the_own_rule_keeps_the_dynamics_at_larger_kappa_and_for_matrices(name, toy):
    bounds = BOUNDS.get(name, (0.04, 0.1))  # nadam 0.08 at 16, where beta1 stops at its floor
    for kappa, bound in zip((4, 16), bounds, strict=True):
        wrong = {key: rule for key, rule in wrong_rules(name).items() if key != "Adam's" or kappa == 4}
        found = toy_gaps(TOY_RECORDS[name], {"own": None, **wrong}, kappa, toy, LONG)
        own = abs(found["own"].gap)
        assert own < bound
        for key in wrong:
            assert abs(found[key].gap) > own + 0.05


def test_adams_rule_is_worse_for_muon_than_any_choice_of_a():
    """On this problem, without Nesterov's look-ahead, the more of momentum's window is kept in samples the better."""
    rules = {f"a={a}": f"normalized-{a}" for a in ("sqrt", "half", "linear")}
    found = toy_gaps(Muon(0.007, 0.95, nesterov=False), {**rules, "Adam's": "sqrt with paper"}, 4, "matrix", FAST)
    assert abs(found["a=linear"].gap) < 0.05
    assert abs(found["a=half"].gap) < 0.08
    assert abs(found["a=sqrt"].gap) < 0.12 < abs(found["Adam's"].gap)


def test_a_live_optimizer_on_the_toy_is_converted_by_rescale():
    def make(parameters):
        return torch.optim.Adam(parameters, lr=0.015, betas=(0.98, 0.995))

    found = live_gaps(make, {"own": None, "nothing": "none"}, 4, "quadratic", FAST)
    simulated = toy_gaps(TOY_RECORDS["adam"], {"own": None, "nothing": "none"}, 4, "quadratic", FAST)
    for name in ("null", "own", "nothing"):  # the same noise, so the same numbers
        assert found[name].gap == pytest.approx(simulated[name].gap, abs=1e-4)
    assert abs(found["own"].gap) < 0.06 < abs(found["nothing"].gap)


def test_replicas_can_be_parameters_of_their_own():
    def make(parameters):
        return torch.optim.Adam(parameters, lr=0.015, betas=(0.98, 0.995))

    tiny = Setting(replicas=4, before=20, after=32)
    apart = live_gaps(make, {"own": None}, 4, "matrix", tiny, elementwise=False)
    together = live_gaps(make, {"own": None}, 4, "matrix", tiny)
    assert apart["own"].gap == pytest.approx(together["own"].gap, rel=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kappa": 3}, "kappa must be 1, 2, 4, 8 or 16, got 3"),
        ({"toy": "cubic"}, "toy must be one of quadratic, matrix, got 'cubic'"),
        ({"rules": {"base": None}}, "other names than base and null, got 'base'"),
        ({"record": Adam(1e300)}, "have no finite mean; use a smaller learning rate"),
        ({"setting": lambda: Setting(replicas=1)}, "replicas of Setting must be a whole number of at least 2, got 1"),
        ({"setting": lambda: Setting(after=8)}, "after of Setting must be a whole number of at least 16, got 8"),
    ],
)
def test_mistakes_are_named(change, message):
    arguments = {"record": TOY_RECORDS["adam"], "rules": {"own": None}, "kappa": 4, "toy": "quadratic"} | change
    setting = arguments.pop("setting", lambda: Setting(replicas=4, before=20, after=32))
    with pytest.raises(ValueError, match=message):
        toy_gaps(**arguments, setting=setting())


def test_replicas_that_would_see_each_other_in_one_parameter_are_refused():
    """Adafactor averages over rows and columns of a parameter, and scales a step by the size of the whole."""
    tiny = Setting(replicas=4, before=20, after=32)
    with pytest.raises(ValueError, match=r"Adafactor does not move each number by itself.*give elementwise=False"):
        live_gaps(torch.optim.Adafactor, {"own": None}, 4, "matrix", tiny)
    assert live_gaps(torch.optim.Adafactor, {"own": None}, 4, "matrix", tiny, elementwise=False)
