"""`NetworkOracle` in float64 against explicit per-sample gradients, one backward for each sample and replica."""

import copy
import itertools
import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from calls import chained, solved
from networks import COVERED, brute_force, case
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization
from torch.utils.data import TensorDataset

from rootscale import Adam
from rootscale.records import Lion
from rootscale.theory import NGOS, AdamState, Chain, NetworkOracle, sde, svag_chain
from rootscale.theory.families import Minibatch
from rootscale.theory.oracle import Oracle, penalised, svag
from rootscale.theory.random import normal

R, N = 3, 7
cross_entropy = partial(F.cross_entropy, reduction="none")


class Tied(nn.Module):
    """A layer called twice, and a weight that another layer shares."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(torch.tanh(self.first(torch.tanh(self.first(x))))))


class Leaky(nn.Module):
    """A weight that the network also uses past its layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.first(x)) + F.linear(x, self.first.weight.square()))


class Sequence(nn.Module):
    """An embedding, a layer on every position, a normalisation and a bare parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.each = nn.Embedding(6, 4), nn.Linear(4, 4)
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 3, bias=False)
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(torch.tanh(self.each(self.embed(x)))).mean(1)
        return self.scale * self.head(h)


class Doubled(nn.Linear):
    """A subclass of the linear layer with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * x) + x.sum(1, keepdim=True) * self.weight.sum()


class Exp(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w.exp()


def parametrized() -> nn.Module:
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    register_parametrization(net[0], "weight", Exp())
    return net


def frozen() -> nn.Module:
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    net[0].weight.requires_grad_(False)
    net[4].bias.requires_grad_(False)
    return net


def normalised() -> nn.Module:
    net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 3))
    net(torch.randn(20, 5))
    return net.eval()


def vectors() -> Tensor:
    return torch.randn(N, 5)


def images() -> Tensor:
    return torch.randn(N, 2, 5, 5)


def tokens() -> Tensor:
    return torch.randint(6, (N, 4))


#: name -> (network, inputs, parameters that take explicit per-sample gradients)
NETWORKS = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)),
        vectors,
        [],
    ),
    "one layer": (lambda: nn.Linear(5, 3), vectors, []),
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.GroupNorm(1, 3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 3)),
        images,
        [],
    ),
    "tied": (Tied, vectors, ["first.weight", "first.bias"]),
    "leaky": (Leaky, vectors, ["first.weight"]),
    "sequence": (Sequence, tokens, ["scale"]),
    "subclass": (lambda: nn.Sequential(Doubled(5, 4), nn.Tanh(), nn.Linear(4, 3)), vectors, ["0.weight", "0.bias"]),
    "parametrized": (parametrized, vectors, ["0.parametrizations.weight.original"]),
    "frozen": (frozen, vectors, []),
    "batch norm in eval": (normalised, vectors, []),
}


def make(name: str, batch_size: int = 2, chunk: int | None = None) -> tuple[NetworkOracle, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        build, inputs, _ = NETWORKS[name]
        module = build().double()
        x = inputs()
        data = (x.double() if x.is_floating_point() else x, torch.randint(3, (N,)))
        oracle = NetworkOracle(module, cross_entropy, data, batch_size, chunk=chunk)
        return oracle, oracle.start(R) + 0.3 * torch.randn(R, oracle.d, dtype=torch.float64)


def sample_gradients(oracle: NetworkOracle, theta: Tensor) -> Tensor:
    """[R, n, d]: put a replica's parameters into a copy of the module, and run one backward for each sample."""
    rows = []
    for row, i in itertools.product(theta, range(oracle.n)):
        module = copy.deepcopy(oracle.module)
        named = oracle.unflatten(row)
        parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        for name, p in parameters.items():
            p.data.copy_(named[name])
        loss = cross_entropy(module(oracle.inputs[i : i + 1]), oracle.targets[i : i + 1]).sum()
        grads = torch.autograd.grad(loss, list(parameters.values()))
        rows.append(torch.cat([g.reshape(-1) for g in grads]))
    return torch.stack(rows).reshape(len(theta), oracle.n, oracle.d)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradient_noise_and_variance_equal_those_of_explicit_per_sample_gradients(name, chunk):
    oracle, theta = make(name, chunk=chunk)
    g = sample_gradients(oracle, theta)
    xi = torch.randn(R, N, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gradient, centred = g.mean(1), g - g.mean(1, keepdim=True)
    noise = (centred * xi.unsqueeze(-1)).sum(1) / N**0.5
    variance = (centred**2).mean(1)
    assert (variance.amax(1) > 1e-3).all()
    close(oracle.gradient(theta), gradient)
    close(oracle.noise(theta, xi), noise)
    close(oracle.variance(theta), variance)
    close(oracle.noisy_gradient(theta, xi), gradient + noise / 2**0.5)
    close(oracle.noisy_gradient(theta, xi, scale=3.0), gradient + 3 * noise)
    for ours, expected in zip(oracle.moments(theta, xi), (gradient, noise, variance), strict=True):
        close(ours, expected)


@pytest.mark.parametrize("name", COVERED)
def test_every_kind_of_layer_has_its_exact_variance_without_explicit_gradients(name):
    model, x, y = case(name)
    oracle = NetworkOracle(model, cross_entropy, (x, y))
    g = brute_force(model, F.cross_entropy, x, y)
    assert not oracle.explicit
    variance = oracle.unflatten(oracle.variance(oracle.start(2)))
    for parameter, gradients in g.items():
        expected = gradients.var(0, unbiased=False)
        close(variance[parameter], expected.expand(2, *expected.shape))


@pytest.mark.parametrize("name", NETWORKS)
def test_only_parameters_without_a_formula_or_used_twice_take_explicit_gradients(name):
    oracle, _ = make(name)
    assert sorted(oracle.explicit) == sorted(NETWORKS[name][2])


@pytest.mark.parametrize("name", ["mlp", "conv", "tied"])
def test_the_covariance_of_all_minibatches_is_sigma_squared_times_that_of_the_noise(name):
    oracle, theta = make(name, batch_size=2)
    theta = theta[:1]
    # Every mini-batch of two, drawn with replacement, once: exact expectations, no sampling.
    index = torch.cartesian_prod(torch.arange(N), torch.arange(N))
    g = oracle.minibatch(theta.expand(len(index), -1), index)
    close(g.mean(0), oracle.gradient(theta)[0])
    root = oracle.noise(theta.expand(N, -1), torch.eye(N, dtype=torch.float64))  # the columns of Sigma^(1/2)
    covariance = root.T @ root
    close((g - g.mean(0)).T @ (g - g.mean(0)) / len(index), oracle.sigma**2 * covariance)
    close(covariance.diagonal(), oracle.variance(theta)[0])


def test_a_sample_is_a_minibatch_drawn_with_replacement_by_the_generator():
    oracle, theta = make("mlp", batch_size=3)
    g = oracle.sample(theta, torch.Generator().manual_seed(5))
    index = torch.randint(N, (R, 3), generator=torch.Generator().manual_seed(5))
    picked = sample_gradients(oracle, theta).gather(1, index.unsqueeze(-1).expand(-1, -1, oracle.d))
    close(g, picked.mean(1))


def test_the_oracle_keeps_the_protocol_and_takes_any_noise_family():
    oracle, theta = make("mlp", batch_size=4)
    assert isinstance(oracle, Oracle)
    assert svag(oracle, 3).sigma == 3 * oracle.sigma == 1.5
    # The mini-batch family on the network's covariance is the network's own mini-batch.
    ngos = NGOS(oracle.problem(), oracle.sigma, Minibatch(4))
    w = torch.randn(R, ngos.normals, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    index = (torch.special.ndtr(w[:, :4]) * N).long()
    xi = ngos.couple(w).xi
    close(ngos.gradient(theta) + ngos.sigma * ngos.noise(theta, xi), oracle.minibatch(theta, index))


def test_the_sign_of_a_minibatch_has_no_sde_unless_its_noise_is_taken_as_gaussian():
    oracle = NetworkOracle(nn.Linear(5, 3), cross_entropy, (torch.ones(N, 5), torch.zeros(N).long()), batch_size=4)
    lion = Lion(0.1, 0.9, 0.99)
    for one in (oracle, svag(oracle, 2), penalised(oracle, 0.1)):
        with pytest.raises(ValueError, match=r"got Minibatch\(batch_size=4\); use noise gaussian \(in Python NGOS"):
            sde(lion, one)
    with pytest.raises(ValueError, match="which SVAG changes unless the noise is Gaussian"):
        svag_chain(Chain(lion, oracle), 2)
    assert sde(lion, NGOS(oracle.problem(), oracle.sigma)).sigma0 == pytest.approx(0.05)


def test_losses_and_outputs_are_those_of_the_module_with_each_replicas_parameters():
    oracle, theta = make("batch norm in eval", chunk=2)
    for r in range(R):
        out = torch.func.functional_call(oracle.module, oracle.unflatten(theta[r]), (oracle.inputs,))
        close(oracle.outputs(theta)[r], out)
        close(oracle.losses(theta)[r], cross_entropy(out, oracle.targets))


def test_start_and_flatten_give_the_parameters_of_the_module():
    oracle, _ = make("tied")
    close(oracle.start(2), oracle.flatten(oracle.module).expand(2, -1))
    close(oracle.unflatten(oracle.start(1))["first.weight"][0], oracle.module.first.weight.detach())
    with pytest.raises(ValueError, match=r"expected a module built like the oracle's; first.weight is missing"):
        oracle.flatten(nn.Linear(5, 3))


def test_the_module_of_the_caller_is_left_alone():
    module = nn.Sequential(nn.Linear(5, 3))
    oracle = NetworkOracle(module, cross_entropy, (vectors(), torch.randint(3, (N,))))
    before = oracle.losses(oracle.start(1))
    with torch.no_grad():
        module[0].weight.zero_()
    assert not module[0]._forward_hooks
    assert torch.equal(oracle.losses(oracle.start(1)), before)


def test_a_dataset_gives_the_same_oracle_as_its_tensors():
    x, y = vectors(), torch.randint(3, (N,))
    module = nn.Linear(5, 3)
    a = NetworkOracle(module, cross_entropy, (x, y))
    b = NetworkOracle(module, cross_entropy, TensorDataset(x, y))
    assert torch.equal(a.gradient(a.start(1)), b.gradient(b.start(1)))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.BatchNorm1d(5), r"BatchNorm1d '0' normalizes by its batch.*module.eval\(\).*GroupNorm or LayerNorm"),
        (nn.BatchNorm1d(5, track_running_stats=False).eval(), "BatchNorm1d '0' normalizes by its batch"),
        (nn.Dropout(0.1), r"Dropout '0' drops at random \(p=0.1\).*module.eval\(\) or set p=0"),
        (nn.TransformerEncoderLayer(5, 1, 5), r"Dropout|MultiheadAttention '0.self_attn' drops at random \(p=0.1\)"),
    ],
)
def test_layers_without_a_gradient_for_each_sample_are_refused_by_name(layer, message):
    with pytest.raises(ValueError, match=message):
        NetworkOracle(nn.Sequential(layer, nn.Linear(5, 3)), cross_entropy, (vectors(), torch.randint(3, (N,))))


class Functional(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(5, 3), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.linear(x))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda h: F.dropout(h, 0.5, training=True), "answers the same samples differently each time.*eval"),
        (lambda h: h - h.mean(0), "depends on the other samples of its batch.*GroupNorm"),
    ],
)
def test_unnamed_randomness_and_mixing_of_samples_are_found_and_refused(function, message):
    with pytest.raises(ValueError, match=message):
        NetworkOracle(Functional(function), cross_entropy, (vectors(), torch.randint(3, (N,))))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"loss": F.cross_entropy}, ValueError, r"one value for each sample \(shape \[4\].*got shape \[\].*reduction"),
        ({"loss": lambda out, y: out}, ValueError, r"got shape \[4, 3\].*average over everything but the samples"),
        ({"data": vectors()}, TypeError, r"data must be \(inputs, targets\).*got Tensor"),
        ({"data": (vectors(), torch.zeros(3))}, ValueError, "same number of samples, at least 1; got 7 and 3"),
        ({"batch_size": 0}, ValueError, "batch_size must be a whole number >= 1, got 0"),
        ({"chunk": 0}, ValueError, "chunk must be None or a number of samples >= 1, got 0"),
        ({"module": nn.Linear(5, 3).requires_grad_(False)}, ValueError, "no parameter with requires_grad=True"),
    ],
)
def test_mistakes_are_answered_with_what_would_work(arguments, error, message):
    given = {"module": nn.Linear(5, 3), "loss": cross_entropy, "data": (vectors(), torch.randint(3, (N,)))} | arguments
    with pytest.raises(error, match=message):
        NetworkOracle(**given)


def test_wrong_shapes_of_theta_xi_and_index_name_the_right_ones():
    oracle, theta = make("one layer")
    with pytest.raises(ValueError, match=r"theta must end in d=18 parameters, got shape \[3, 17\]"):
        oracle.gradient(theta[:, 1:])
    with pytest.raises(ValueError, match=r"theta must be \[R, d=18\]"):
        oracle.losses(theta[0])
    with pytest.raises(
        ValueError, match=r"theta must be torch.float64 on cpu.*got torch.float32 on cpu; convert theta"
    ):
        oracle.gradient(theta.float())
    with pytest.raises(ValueError, match=r"xi must be \[R, n\] = \[3, 7\].*got \[3, 18\]"):
        oracle.noise(theta, theta)
    with pytest.raises(ValueError, match=r"index must be \[R, B\] with R=3 rows.*got \[2\]"):
        oracle.minibatch(theta, torch.zeros(2, dtype=torch.long))


@pytest.mark.parametrize("name", ["mlp", "conv"])
def test_a_step_of_the_sde_is_its_drift_and_diffusion_by_explicit_per_sample_gradients(name):
    oracle, theta = make(name, batch_size=4)
    g = sample_gradients(oracle, theta)
    gradient, centred = g.mean(1), g - g.mean(1, keepdim=True)
    adam = Adam(eta=0.1, beta1=0.9, beta2=0.95, eps=0.2)
    equation, t, h = sde(adam, oracle), 0.4, 0.01
    x = AdamState(theta, 0.1 * theta, 1 + theta**2)
    dw = normal(0, 0, (R, N)) * h**0.5
    functions = {f"{part}{i}": lambda x, p=part, i=i: getattr(x, p)[:, i] for part in "mu" for i in range(3)}
    functions |= {f"theta{i}": lambda x, i=i: x.theta[:, i] for i in range(3)}
    result = solved(equation, x, functions, [t + h], h=h, seed=0, t0=t, keep=True)
    root2, gamma1 = (1 - math.exp(-5 * t)) ** 0.5, 1 - math.exp(-10 * t)  # c2 = 5, c1 = 10
    expected = {
        "theta": theta - h * root2 / gamma1 * x.m / (0.05 * x.u.sqrt() + 0.02 * root2),  # sigma0, eps0
        "m": x.m + 10 * h * (gradient - x.m) + 0.05 * 10 * (centred * dw.unsqueeze(-1)).sum(1) / N**0.5,
        "u": x.u + 5 * h * ((centred**2).mean(1) - x.u),
    }
    for part, value in expected.items():
        for i in range(3):
            close(torch.tensor(result.values[f"{part}{i}"][:, 0]), value[:, i])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_results_on_a_gpu_are_those_on_the_cpu():
    oracle, theta = make("conv")
    module = copy.deepcopy(oracle.module).cuda()
    other = NetworkOracle(module, cross_entropy, (oracle.inputs.cuda(), oracle.targets.cuda()), oracle.batch_size)
    xi = torch.randn(R, N, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for a, b in zip(oracle.moments(theta, xi), other.moments(theta.cuda(), xi.cuda()), strict=True):
        close(b.cpu(), a)
    w = torch.randn(R, oracle.normals, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    close(other.drawn(theta.cuda(), w.cuda()).cpu(), oracle.drawn(theta, w))


def test_an_error_in_the_network_leaves_no_tape_behind():
    oracle, theta = make("mlp")
    expected = oracle.losses(theta)
    loss = oracle._sums.loss
    oracle._sums.loss = lambda out, y: 1 / 0
    with pytest.raises(ZeroDivisionError):
        oracle.variance(theta)
    oracle._sums.loss = loss
    assert torch.equal(oracle.losses(theta), expected)


@pytest.mark.slow
def test_a_whole_step_of_the_sde_and_of_the_chain_compiles(recwarn):
    oracle, theta = make("conv", batch_size=4)  # both ways to diag Sigma
    adam = Adam(eta=0.1, beta1=0.9, beta2=0.95, eps=0.2)
    x = AdamState(theta, 0.1 * theta, 1 + theta**2)
    functions = {"loss": lambda x: oracle.losses(x.theta).mean(1)}
    times = [0.41, 0.45]
    for run in (
        partial(solved, sde(adam, oracle), h=0.01),
        partial(chained, Chain(adam, oracle)),
        partial(chained, svag_chain(Chain(adam, oracle), 2)),
    ):
        eager, compiled = (run(x, functions, times, seed=0, t0=0.4, keep=True, compile=c) for c in (False, True))
        close(torch.tensor(compiled.values["loss"]), torch.tensor(eager.values["loss"]))
    assert not [w for w in recwarn if "torch.compile does not work" in str(w.message)]
