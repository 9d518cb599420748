"""The collector's sums, in float64, against explicit per-sample gradients of one sample at a time."""

import pytest
import torch
from networks import COVERED, MODELS, N, brute_force, case
from torch import nn
from torch.nn import functional as F

from rootscale.training import layers
from rootscale.training.collector import Collector
from rootscale.training.layers import LAYERS, Wanted


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def collected(model, x, y, wanted):
    """By name, what the collector finds of the parameters that are used once."""
    collector = Collector(model)
    try:
        with collector.forward(len(y), wanted):
            total = F.cross_entropy(model(x), y, reduction="sum")
        once = collector.once(total)
        total.backward()
        names = {p: name for name, p in model.named_parameters()}
        return {names[p]: sums for p, sums in collector.found.items() if p in once}
    finally:
        collector.remove()
        model.zero_grad()


@pytest.mark.parametrize("room", [None, 50], ids=["at once", "in slices"])
@pytest.mark.parametrize("name", MODELS)
def test_sums_are_those_of_explicit_per_sample_gradients(name, room):
    model, x, y = case(name)
    weights = (torch.randn(N, dtype=torch.float64), torch.ones(N, dtype=torch.float64))
    gradients = brute_force(model, F.cross_entropy, x, y)
    for wanted in (Wanted(room=room), Wanted(second=True, weights=weights, room=room)):
        found = collected(model, x, y, wanted)
        assert name not in COVERED or set(found) == set(gradients)
        for parameter, sums in found.items():
            g = gradients[parameter]
            close(sums.norms, g.reshape(N, -1).square().sum(1))
            assert (sums.second is None) is not wanted.second
            if sums.second is not None:
                close(sums.second, g.square().sum(0))
            if sums.first is not None:
                close(sums.first, g.sum(0))
            for w, total in zip(wanted.weights, sums.weighted, strict=True):
                close(total, torch.einsum("s,s...->...", w, g))


@pytest.mark.parametrize("name", COVERED)
def test_shifted_forwards_give_the_same_sums_under_vmap(name):
    model, x, y = case(name)
    gradients = brute_force(model, F.cross_entropy, x, y)
    collector = Collector(model)
    with collector.forward(N):
        model(x)
    seen = dict(collector.seen)
    collector.clear()
    zeros = {key: torch.zeros(N, *one.shape, dtype=torch.float64) for key, one in seen.items()}

    def loss(shifts):
        with collector.shifted(shifts) as inputs:
            return F.cross_entropy(model(x), y, reduction="sum"), inputs

    _, pull, inputs = torch.func.vjp(loss, zeros, has_aux=True)
    (deltas,) = pull(torch.tensor(1.0, dtype=torch.float64))
    factors = torch.tensor([1.0, 2.0], dtype=torch.float64)  # replicas whose losses are scaled
    for key, one in seen.items():

        def squares(factor, one=one, key=key):
            return {n: s.second for n, s in one(inputs[key], factor * deltas[key], Wanted(second=True)).items()}

        for own, second in torch.func.vmap(squares)(factors).items():
            parameter = f"{key}.{own}".lstrip(".")
            if parameter in gradients:
                for factor, row in zip(factors, second, strict=True):
                    close(row, factor**2 * gradients[parameter].square().sum(0))


def test_every_row_of_the_table_is_among_the_networks():
    used = {type(layer) for name in COVERED for layer in case(name)[0].modules()}
    assert set(LAYERS) - used == {nn.BatchNorm3d}  # as BatchNorm2d, with a dimension more


def test_a_subclass_with_a_forward_of_its_own_has_no_formula():
    class Doubled(nn.Linear):
        def forward(self, x):
            return super().forward(2 * x)

    class Named(nn.Linear):
        pass

    assert layers.layer_sums(Doubled(2, 2)) is None
    assert layers.layer_sums(Named(2, 2)) is layers.layer_sums(nn.Linear(2, 2))


def test_a_layer_that_checkpointing_runs_again_in_the_backward_is_counted_once():
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Sequential):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    torch.manual_seed(0)
    model = Checkpointed(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = torch.randn(N, 4, dtype=torch.float64), torch.randint(3, (N,))
    gradients = brute_force(model, F.cross_entropy, x, y)
    found = collected(model, x, y, Wanted())
    assert set(found) == set(gradients)
    for name, sums in found.items():
        close(sums.norms, gradients[name].reshape(N, -1).square().sum(1))


def test_a_cleared_collector_keeps_no_graph_and_a_removed_one_no_hooks():
    model, x, _ = case("linear")
    collector = Collector(model)
    with collector.forward(N):
        model(x)
    assert collector.seen
    collector.clear()
    for left in (collector.seen, collector.edges, collector.found):
        assert not left
    collector.remove()
    assert not model._forward_hooks
