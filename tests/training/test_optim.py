import copy

import pytest
import torch
from torch import nn

from rootscale import ScalingWarning
from rootscale.training import rescale_
from rootscale.training.optim import Adam, MicroBatchAdam, RMSprop

ADAM = {"lr": 1e-2, "betas": (0.9, 0.97), "eps": 1e-6}


def parameters():
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(3, 2, dtype=torch.float64)), nn.Parameter(torch.randn(4, dtype=torch.float64))]


def gradients(steps, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [
        [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters()] for _ in range(steps)
    ]


def run(optimizer, params, grads):
    for step in grads:
        for p, g in zip(params, step, strict=True):
            p.grad = g.clone()
        optimizer.step()
    return [p.detach().clone() for p in params]


def obvious_adam(grads, eta, beta1, beta2, eps, l2=0.0, decay=0.0):
    """Def. 2.2 of the paper, line by line; at k = 0 only the state is filled."""
    thetas = [p.detach().clone() for p in parameters()]
    for i, theta in enumerate(thetas):
        m, v = torch.zeros_like(theta), torch.zeros_like(theta)
        for k, step in enumerate(grads):
            if k:
                theta -= eta * decay * theta
            g = step[i] + l2 * theta
            v_hat = v / (1 - beta2**k) if k else None
            m = beta1 * m + (1 - beta1) * g
            v = beta2 * v + (1 - beta2) * g**2
            if v_hat is not None:
                theta -= eta * m / (1 - beta1 ** (k + 1)) / (v_hat.sqrt() + eps)
    return thetas


def obvious_rmsprop(grads, eta, beta, eps, l2=0.0):
    """Def. 2.1 of the paper."""
    thetas = [p.detach().clone() for p in parameters()]
    for i, theta in enumerate(thetas):
        v = torch.zeros_like(theta)
        for k, step in enumerate(grads):
            g = step[i] + l2 * theta
            if k:
                theta -= eta * g / (v.sqrt() + eps)
            v = beta * v + (1 - beta) * g**2
    return thetas


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("eps", [1e-6, 0.0])
@pytest.mark.parametrize("decay", [{}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "decoupled_weight_decay": True}])
def test_adam_is_the_papers(capturable, eps, decay):
    params, grads = parameters(), gradients(30)
    found = run(Adam(params, lr=1e-2, betas=(0.9, 0.97), eps=eps, capturable=capturable, **decay), params, grads)
    expected = obvious_adam(
        grads, 1e-2, 0.9, 0.97, eps,
        l2=0.1 if len(decay) == 1 else 0.0, decay=0.1 if len(decay) == 2 else 0.0,
    )  # fmt: skip
    # The counter of steps is a float32, as torch's is: beta^k is then that of a float32 in the capturable form.
    torch.testing.assert_close(found, expected, rtol=1e-5 if capturable else 1e-12, atol=1e-8 if capturable else 1e-14)


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_rmsprop_is_the_papers(capturable, l2):
    params, grads = parameters(), gradients(30)
    optimizer = RMSprop(params, lr=1e-2, alpha=0.97, eps=1e-6, weight_decay=l2, capturable=capturable)
    torch.testing.assert_close(
        run(optimizer, params, grads), obvious_rmsprop(grads, 1e-2, 0.97, 1e-6, l2), rtol=1e-12, atol=1e-14
    )


DECOUPLED = {"weight_decay": 0.1, "decoupled_weight_decay": True}


@pytest.mark.parametrize(
    "make",
    [
        lambda p: Adam(p, **ADAM),
        lambda p: Adam(p, **ADAM, **DECOUPLED),
        lambda p: Adam(p, **ADAM, **DECOUPLED, capturable=True),
        lambda p: RMSprop(p, lr=1e-2),
    ],
)
def test_the_first_step_only_fills_the_state(make):
    params = parameters()
    optimizer = make(params)
    before = [p.detach().clone() for p in params]
    run(optimizer, params, gradients(1))
    assert all(torch.equal(p, b) for p, b in zip(params, before, strict=True))
    assert all(state["step"] == 1 for state in optimizer.state.values())


def test_a_tensor_as_learning_rate_gives_the_same():
    runs = []
    for lr in (1e-2, torch.tensor(1e-2, dtype=torch.float64)):
        params = parameters()
        runs.append(run(Adam(params, **{**ADAM, "lr": lr}, capturable=True), params, gradients(20)))
    torch.testing.assert_close(*runs, rtol=1e-12, atol=0)


def test_maximize_climbs():
    params, grads = parameters(), gradients(10)
    up = run(Adam(params, **ADAM, maximize=True), params, [[-g for g in step] for step in grads])
    params = parameters()
    torch.testing.assert_close(up, run(Adam(params, **ADAM), params, grads), rtol=0, atol=0)


def test_groups_and_missing_gradients_are_kept_apart():
    params, grads = parameters(), gradients(12)
    optimizer = Adam([{"params": params[:1]}, {"params": params[1:], "lr": 1e-3}], **ADAM)
    for k, step in enumerate(grads):
        params[0].grad = step[0].clone()
        params[1].grad = step[1].clone() if k % 2 else None
        optimizer.step()
    every = obvious_adam(grads, 1e-2, 0.9, 0.97, 1e-6)
    odd = obvious_adam(grads[1::2], 1e-3, 0.9, 0.97, 1e-6)
    torch.testing.assert_close([p.detach() for p in params], [every[0], odd[1]], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("make", [lambda p: Adam(p, **ADAM), lambda p: RMSprop(p, lr=1e-2)])
def test_a_saved_run_goes_on_as_it_was(make):
    params, grads = parameters(), gradients(20)
    optimizer = make(params)
    half = run(optimizer, params, grads[:10])
    saved = copy.deepcopy(optimizer.state_dict())
    expected = run(optimizer, params, grads[10:])
    params = [nn.Parameter(p) for p in half]
    optimizer = make(params)
    optimizer.load_state_dict(saved)
    assert all(torch.equal(a, b) for a, b in zip(run(optimizer, params, grads[10:]), expected, strict=True))


def test_the_closure_is_called_with_gradients_on():
    parameter = nn.Parameter(torch.ones(2))
    optimizer = Adam([parameter])

    def closure():
        optimizer.zero_grad()
        loss = parameter.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2
    assert optimizer.step(closure).item() == 2
    assert optimizer.step(closure).item() < 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: Adam(p, lr=-1), "lr must be a finite number >= 0, got -1"),
        (lambda p: Adam(p, betas=(0.9, 1.0)), r"beta2 must be in \[0, 1\), got 1\.0"),
        (lambda p: Adam(p, lr=torch.tensor(0.1)), "a tensor as lr needs capturable=True"),
        (lambda p: RMSprop(p, alpha=1.5), r"alpha must be in \[0, 1\), got 1\.5"),
    ],
)
def test_bad_values_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make(parameters())


@pytest.mark.parametrize("make", [lambda p: Adam(p, **ADAM), lambda p: RMSprop(p, lr=1e-2, alpha=0.97)])
def test_rescale_converts_the_papers_optimizers(make):
    params = parameters()
    optimizer = make(params)
    run(optimizer, params, gradients(4))
    second = "exp_avg_sq" if isinstance(optimizer, Adam) else "square_avg"
    v = [state[second].clone() for state in optimizer.state.values()]
    rescale_(optimizer, 4)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(2e-2)
    for old, state in zip(v, optimizer.state.values(), strict=True):
        torch.testing.assert_close(state[second], old / 4)
        assert state["step"] == 1
    run(optimizer, params, gradients(2))


# ---- micro-batches


def test_micro_batches_average_their_squares():
    params, grads = parameters(), gradients(6)
    optimizer = MicroBatchAdam(params, **ADAM)
    expected = [p.detach().clone() for p in params]
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in expected]
    for k in range(3):
        for half in grads[2 * k : 2 * k + 2]:
            for p, g in zip(params, half, strict=True):
                p.grad = g.clone()
            optimizer.micro_step()
        optimizer.step()
        for i, theta in enumerate(expected):
            a, b = grads[2 * k][i], grads[2 * k + 1][i]
            m = 0.9 * moments[i][0] + 0.1 * (a + b) / 2
            v = 0.97 * moments[i][1] + 0.03 * (a**2 + b**2) / 2
            moments[i] = m, v
            theta -= 1e-2 * m / (1 - 0.9 ** (k + 1)) / ((v / (1 - 0.97 ** (k + 1))).sqrt() + 1e-6)
    torch.testing.assert_close([p.detach() for p in params], expected, rtol=1e-12, atol=1e-14)


def test_one_micro_batch_is_torchs_adam():
    params, grads = parameters(), gradients(10)
    optimizer = MicroBatchAdam(params, **ADAM)
    for step in grads:
        for p, g in zip(params, step, strict=True):
            p.grad = g.clone()
        optimizer.micro_step()
        optimizer.step()
    reference = parameters()
    run(torch.optim.Adam(reference, **ADAM), reference, grads)
    torch.testing.assert_close([p.detach() for p in params], [p.detach() for p in reference], rtol=1e-12, atol=1e-14)


def test_a_forgotten_micro_step_is_told():
    params = parameters()
    optimizer = MicroBatchAdam(params, **ADAM)
    params[0].grad = torch.ones_like(params[0])
    with pytest.raises(RuntimeError, match=r"call micro_step\(\) after the backward of each micro-batch"):
        optimizer.step()


def test_the_invariant_rule_is_its_own():
    params = parameters()
    optimizer = MicroBatchAdam(params, **{**ADAM, "betas": (0.98, 0.98)})
    with pytest.raises(ValueError, match="invariant takes their size to be fixed, but they grow by 4"):
        rescale_(optimizer, 4)
    changes = rescale_(optimizer, 4, forward_kappa=1)  # by accumulation alone
    group = optimizer.param_groups[0]
    assert changes.rule.name == "invariant"
    assert (group["lr"], group["eps"]) == (4e-2, 1e-6)
    assert group["betas"] == pytest.approx((0.92, 0.92))
    with pytest.warns(
        ScalingWarning, match="'sqrt' does not keep the dynamics of microbatchadam; the one that does is 'invariant'"
    ):
        rescale_(optimizer, 2, rule="sqrt")


def test_a_micro_batch_without_a_gradient_counts_as_zero():
    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    optimizer = MicroBatchAdam([a, b], lr=1.0, betas=(0.0, 0.5))
    for _ in range(2):  # the second step counts anew
        for i in range(4):
            (a.sum() + (b.sum() if i == 0 else 0)).backward()
            optimizer.micro_step()
        optimizer.step()
        assert (optimizer.state[a]["exp_avg"], optimizer.state[b]["exp_avg"]) == (1.0, 0.25)
    assert (optimizer.state[a]["exp_avg_sq"], optimizer.state[b]["exp_avg_sq"]) == (0.75, 0.1875)


def test_a_copied_optimizer_of_micro_batches_goes_on():
    model = nn.Linear(2, 1)
    model, optimizer = copy.deepcopy((model, MicroBatchAdam(model.parameters(), lr=0.1)))
    before = model.weight.clone()
    optimizer.zero_grad()
    model(torch.ones(3, 2)).sum().backward()
    optimizer.micro_step()
    optimizer.step()
    assert not torch.equal(model.weight, before)
