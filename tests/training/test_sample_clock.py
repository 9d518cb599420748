"""Optimizers whose every step may have another batch size: all that is exact about them."""

import copy
import io
import pickle

import pytest
import torch
from live import snapshot
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    ExponentialLR,
    LinearLR,
    OneCycleLR,
    SequentialLR,
)

from rootscale.training import optim, rescale_, track_
from rootscale.training.sample_clock import Adam, AdamW, RMSprop
from rootscale.training.samples import count_ranks, follow_samples

REFERENCE = 8
BATCHES = (8, 1, 32, 5, 200, 2, 64, 8, 17, 3)
ADAM = {"lr": 1e-2, "betas": (0.9, 0.98), "eps": 1e-3}


def parameters(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, dtype=dtype, generator=generator)) for shape in ((5, 3), (4,), ())]


def gradients(steps, like, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        yield [torch.randn(p.shape, dtype=p.dtype, generator=generator) for p in like]


def train(params, optimizer, batches=None, steps=40, seed=1):
    """Steps with given gradients; without batches the optimizer is torch's."""
    for i, grads in enumerate(gradients(steps, params, seed)):
        for p, grad in zip(params, grads, strict=True):
            p.grad = grad.clone()
        if batches is None:
            optimizer.step()
        else:
            optimizer.step(samples=batches[i % len(batches)])
    return params


def assert_same(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


def assert_close(found, expected, rtol=1e-11):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=1e-13)


TO_THE_BIT = {
    "AdamW, fused": (AdamW, {}, torch.optim.AdamW, {"fused": True}),
    "Adam with L2, fused": (Adam, {"weight_decay": 0.1}, torch.optim.Adam, {"fused": True, "weight_decay": 0.1}),
    "AdamW, foreach": (AdamW, {"fused": False}, torch.optim.AdamW, {"foreach": True}),
    "AMSGrad": (AdamW, {"amsgrad": True}, torch.optim.AdamW, {"amsgrad": True, "foreach": True}),
    "maximize": (Adam, {"maximize": True}, torch.optim.Adam, {"maximize": True, "fused": True}),
    "small betas": (AdamW, {"betas": (0.3, 0.4)}, torch.optim.AdamW, {"betas": (0.3, 0.4), "fused": True}),
    "no momentum": (AdamW, {"betas": (0.0, 0.9)}, torch.optim.AdamW, {"betas": (0.0, 0.9), "fused": True}),
    "RMSprop": (RMSprop, {"weight_decay": 0.1}, torch.optim.RMSprop, {"weight_decay": 0.1, "foreach": True}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("case", TO_THE_BIT.values(), ids=TO_THE_BIT)
def test_at_the_reference_batch_it_is_torchs_optimizer_to_the_bit(case, dtype):
    cls, options, theirs, their_options = case
    mine, other = parameters(dtype), parameters(dtype)
    train(mine, cls(mine, reference_batch=REFERENCE, **options), [REFERENCE], 200)
    assert_same(mine, train(other, theirs(other, **their_options), steps=200))


@pytest.mark.parametrize("options", [{"amsgrad": True}, {"weight_decay": 0.1}], ids=str)
@pytest.mark.parametrize("cls", [Adam, AdamW])
def test_capturable_is_the_same_to_rounding(cls, options):
    mine, other = parameters(), parameters()
    train(mine, cls(mine, reference_batch=8, capturable=True, **ADAM, **options), BATCHES)
    assert_close(mine, train(other, cls(other, reference_batch=8, **ADAM, **options), BATCHES))


@pytest.mark.filterwarnings("ignore::rootscale.ScalingWarning")
@pytest.mark.parametrize("k", [0.25, 1.5, 4, 30])
@pytest.mark.parametrize("fused", [None, False])
def test_at_a_constant_batch_it_is_adamw_with_the_numbers_of_the_rule(k, fused):
    mine, other = parameters(), parameters()
    clock = AdamW(mine, reference_batch=8, weight_decay=0.3, fused=fused, **ADAM)
    plain = torch.optim.AdamW(other, weight_decay=0.3, **ADAM)
    rescale_(plain, k, rule="with floor:0.8,0.9")  # the floors of the clock
    train(mine, clock, [8 * k])
    assert_close(mine, train(other, plain))


def test_at_a_constant_batch_rmsprop_has_the_numbers_of_the_rule():
    mine, other = parameters(), parameters()
    train(mine, RMSprop(mine, 1e-2, 0.98, 1e-3, reference_batch=8), [32])
    assert_close(mine, train(other, torch.optim.RMSprop(other, 2e-2, 0.92, 0.5e-3)))


class Oracle:
    """The equations of rootscale.training.clock, one after the other, for one tensor."""

    def __init__(
        self, parameter, *, lr, betas, eps, decay=0.0, l2=0.0, floors=(0.8, 0.9), amsgrad=False, corrected=True
    ):
        self.theta = parameter.detach().clone()
        self.m, self.v, self.largest = (torch.zeros_like(self.theta) for _ in range(3))
        self.left1 = self.left2 = 1.0
        self.lr, (self.beta1, self.beta2), self.eps, self.decay, self.l2 = lr, betas, eps, decay, l2
        self.bound1, self.bound2 = (max(1 - f, 1 - b) for f, b in zip(floors, betas, strict=True))
        self.amsgrad, self.corrected = amsgrad, corrected

    def step(self, g, k):
        g = g + self.l2 * self.theta
        w1, w2 = min(k * (1 - self.beta1), self.bound1), min(k * (1 - self.beta2), self.bound2)
        if self.beta1 == 0:
            w1 = 1.0
        self.m = (1 - w1) * self.m + k * (1 - self.beta1) * g
        self.v = (1 - w2) * self.v + w2 * k * g * g
        self.left1, self.left2 = self.left1 * (1 - w1), self.left2 * (1 - w2)
        self.largest = torch.maximum(self.largest, self.v)
        v = self.largest if self.amsgrad else self.v
        bias1, bias2 = (1 - self.left1, 1 - self.left2) if self.corrected else (1, 1)
        self.theta = self.theta - k * self.lr * self.decay * self.theta
        pay = self.lr * w1 / (1 - self.beta1)
        self.theta = self.theta - pay * (self.m / bias1) / ((v / bias2).sqrt() + self.eps)


VARYING = {
    "fused": (AdamW, {"weight_decay": 0.1}, {"decay": 0.1}),
    "L2": (Adam, {"weight_decay": 0.1}, {"l2": 0.1}),
    "foreach": (AdamW, {"weight_decay": 0.1, "fused": False}, {"decay": 0.1}),
    "capturable": (AdamW, {"weight_decay": 0.1, "capturable": True}, {"decay": 0.1}),
    "AMSGrad": (AdamW, {"weight_decay": 0.0, "amsgrad": True}, {"amsgrad": True}),
    "other floors": (Adam, {"floors": (0.5, 0.2)}, {"floors": (0.5, 0.2)}),
    "no momentum": (Adam, {"betas": (0.0, 0.9)}, {"betas": (0.0, 0.9)}),
    "RMSprop": (RMSprop, {"alpha": 0.98}, {"betas": (0.0, 0.98), "corrected": False}),
    "RMSprop, capturable": (RMSprop, {"alpha": 0.98, "capturable": True}, {"betas": (0.0, 0.98), "corrected": False}),
}


@pytest.mark.parametrize("case", VARYING.values(), ids=VARYING)
def test_varying_batches_follow_the_equations(case):
    cls, options, of_oracle = case
    numbers = {"lr": 1e-2, "betas": (0.9, 0.98), "eps": 1e-3}
    mine = parameters()
    oracles = [Oracle(p, **{**numbers, **of_oracle}) for p in mine]
    if cls is RMSprop:
        del numbers["betas"]
    optimizer = cls(mine, reference_batch=8, **{**numbers, **options})
    train(mine, optimizer, BATCHES)
    for i, grads in enumerate(gradients(40, mine)):
        for oracle, grad in zip(oracles, grads, strict=True):
            oracle.step(grad, BATCHES[i % len(BATCHES)] / 8)
    assert_close(mine, [oracle.theta for oracle in oracles])
    optimizer.settle()
    states = [optimizer.state[p] for p in mine]
    key = "square_avg" if cls is RMSprop else "exp_avg_sq"
    assert_close([state[key] for state in states], [oracle.v for oracle in oracles])
    if cls is not RMSprop and options.get("betas", (1,))[0]:
        assert_close([state["exp_avg"] for state in states], [oracle.m for oracle in oracles])
    assert_close([mine[0]], train(mine, optimizer, BATCHES, 0)[:1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex128], ids=str)
def test_every_type_of_parameter_takes_steps(dtype):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(6, dtype=dtype, generator=generator)
    found = []
    for capturable in (False, True):
        p = nn.Parameter(start.clone())
        optimizer = Adam([p], reference_batch=8, capturable=capturable, **ADAM)
        for n in BATCHES:
            p.grad = torch.ones_like(p) * (0.5 + n / 100)
            optimizer.step(samples=n)
        found.append(p.detach())
    torch.testing.assert_close(found[0], found[1])
    assert not torch.equal(found[0], start)


# How many samples.


def test_samples_may_differ_between_groups_and_so_may_reference_batches():
    a, b = parameters(), parameters()
    options = {"reference_batch": 8, **ADAM}
    two = AdamW([{"params": a[:2]}, {"params": a[2:], "reference_batch": 4}], **options)
    apart = AdamW(b[:2], **options), AdamW(b[2:], **{**options, "reference_batch": 4})
    for grads in gradients(10, a):
        for p, q, grad in zip(a, b, grads, strict=True):
            p.grad, q.grad = grad.clone(), grad.clone()
        two.step(samples=[16, 3])
        apart[0].step(samples=16)
        apart[1].step(samples=3)
    assert_same(a, b)
    with pytest.raises(ValueError, match="one for each of 2 groups, got 3"):
        two.step(samples=[1, 2, 3])


def test_a_group_without_samples_is_left_alone():
    a = parameters()
    optimizer = AdamW([{"params": a[:2]}, {"params": a[2:]}], reference_batch=8)
    before = a[2].detach().clone()
    train(a, optimizer, [[8, 0]], 3)
    assert torch.equal(a[2], before)
    assert a[2] not in optimizer.state
    train(a, optimizer, [0], 3)
    assert optimizer.reference_steps == 3


def test_a_parameter_without_a_gradient_keeps_its_clock():
    a, b = parameters(), parameters()
    optimizer, alone = AdamW(a, reference_batch=8, **ADAM), AdamW(b[:1], reference_batch=8, **ADAM)
    for i, grads in enumerate(gradients(12, a)):
        for p, grad in zip(a, grads, strict=True):
            p.grad = grad.clone()
        if i % 3:
            a[0].grad = None
        optimizer.step(samples=BATCHES[i % 10])
        if not i % 3:
            b[0].grad = grads[0].clone()
            alone.step(samples=BATCHES[i % 10])
    assert torch.equal(a[0], b[0])
    assert optimizer.state[a[0]]["step"] == alone.reference_steps < optimizer.reference_steps


def test_samples_are_counted_where_step_cannot_be_told():
    a, b = parameters(), parameters()
    counting, told = AdamW(a, reference_batch=8), AdamW(b, reference_batch=8)
    for p, q in zip(a, b, strict=True):
        p.grad, q.grad = torch.ones_like(p), torch.ones_like(q)
    counting.add_samples(1000)
    counting.zero_grad(set_to_none=False)  # forgets the gradient and its samples
    for p in a:
        p.grad.fill_(1)
    counting.add_samples(3)
    counting.add_samples(torch.tensor(4))
    counting.step()
    told.step(samples=7)
    assert_same(a, b)
    with pytest.raises(ValueError, match=r"needs the samples of its batch: call step\(samples=n\)"):
        counting.step()


def test_samples_counted_in_the_closure_are_those_of_the_step():
    a = parameters()
    optimizer = AdamW(a, reference_batch=8)

    def closure():
        for p in a:
            p.grad = torch.ones_like(p)
        optimizer.add_samples(4)
        return 7.0

    assert optimizer.step(closure) == 7
    assert optimizer.reference_steps == 0.5


def test_a_gradient_scaler_passes_the_samples_on():
    a, b = parameters(torch.float32), parameters(torch.float32)
    scaled, plain = AdamW(a, reference_batch=8), AdamW(b, reference_batch=8)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    sum(p.square().sum() for p in b).backward()
    plain.step(samples=3)
    scaler.scale(sum(p.square().sum() for p in a)).backward()
    scaler.step(scaled, samples=3)
    assert_same(a, b)


def test_a_tensor_of_samples_is_read_by_a_capturable_step():
    a, b = parameters(), parameters()
    one, other = (AdamW(ps, reference_batch=8, capturable=True, **ADAM) for ps in (a, b))
    samples = torch.zeros((), dtype=torch.float64)
    for i, grads in enumerate(gradients(10, a)):
        for p, q, grad in zip(a, b, grads, strict=True):
            p.grad, q.grad = grad.clone(), grad.clone()
        one.step(samples=samples.fill_(BATCHES[i]))
        other.step(samples=BATCHES[i])
    assert_same(a, b)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_cuda_graph_follows_the_samples():
    a = [nn.Parameter(p.detach().cuda()) for p in parameters()]
    b = [nn.Parameter(p.detach().cuda()) for p in parameters()]
    graphed, plain = AdamW(a, reference_batch=8, capturable=True, **ADAM), AdamW(b, reference_batch=8, **ADAM)
    samples = torch.full((), 8.0, device="cuda")
    for p, q in zip(a, b, strict=True):
        p.grad, q.grad = torch.ones_like(p), torch.ones_like(q)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graphed.step(samples=samples)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        graphed.step(samples=samples)
    plain.step(samples=8)
    for n in BATCHES:
        for p, q in zip(a, b, strict=True):
            p.grad.fill_(n / 10)
            q.grad.fill_(n / 10)
        samples.fill_(n)
        graph.replay()
        plain.step(samples=n)
    assert_close(a, b)


def test_without_floors_the_largest_batch_is_named():
    a = parameters()
    optimizer = AdamW(a, reference_batch=256, floors=(0, 0))
    train(a, optimizer, [2559], 2)
    before = [p.detach().clone() for p in a]
    with pytest.raises(ValueError, match=r"16 \(1 - beta1\) must stay below 1: give fewer than 2560 samples, or"):
        train(a, optimizer, [4096], 1)
    assert_same(a, before)
    train(a, AdamW(a, reference_batch=256), [1e6], 3)  # with floors every batch has a step
    assert all(p.isfinite().all() for p in a)


REFUSED = {
    "samples": (
        lambda a: AdamW(a, reference_batch=8).step(samples=-1),
        ValueError,
        "samples must be a finite number >= 0",
    ),
    "not a number": (lambda a: AdamW(a, reference_batch=8).step(samples="8"), ValueError, "samples must be"),
    "reference": (lambda a: AdamW(a, reference_batch=0), ValueError, "reference_batch must be a finite number > 0"),
    "lr": (lambda a: AdamW(a, torch.tensor(0.1), reference_batch=8), ValueError, "needs capturable=True"),
    "betas": (lambda a: AdamW(a, betas=(0.9, 1.0), reference_batch=8), ValueError, "beta2 must be in"),
    "floors": (lambda a: AdamW(a, reference_batch=8, floors=(0.9, 1)), ValueError, "each of floors must be in"),
    "one floor": (lambda a: AdamW(a, reference_batch=8, floors=(0.9,)), ValueError, "floors must be two numbers"),
    "fused": (lambda a: AdamW(a, reference_batch=8, fused=True, amsgrad=True), ValueError, "leave fused=None"),
    "position": (
        lambda a: AdamW(a, reference_batch=8).step(8),
        TypeError,
        r"samples go by name: step\(samples=\.\.\.\)",
    ),
    "group": (
        lambda a: AdamW([{"params": a, "reference_batch": "8"}], reference_batch=8),
        ValueError,
        "reference_batch must be",
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_mistakes_are_named(case):
    make, error, text = case
    a = parameters()
    for p in a:
        p.grad = torch.ones_like(p)
    with pytest.raises(error, match=text):
        make(a)


def test_sparse_gradients_are_refused():
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(TypeError, match=r"AdamW needs dense gradients, got a torch\.sparse_coo one"):
        AdamW(table.parameters(), reference_batch=8).step(samples=1)


# Checkpoints.


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("cls", [AdamW, RMSprop])
@pytest.mark.parametrize("capturable", [False, True])
def test_a_resumed_run_is_the_one_that_went_on_to_the_bit(cls, capturable):
    a = parameters()
    first = cls(a, reference_batch=8, capturable=capturable)
    train(a, first, BATCHES, 7)
    saved, b = through_a_file(first.state_dict()), [nn.Parameter(p.detach().clone()) for p in a]
    second = cls(b, reference_batch=1, lr=7.0)
    second.load_state_dict(saved)
    assert second.param_groups[0]["reference_batch"] == 8
    train(a, first, BATCHES, 9, seed=2)
    assert_same(train(b, second, BATCHES, 9, seed=2), a)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_goes_on_alike(duplicate):
    a = parameters()
    first = AdamW(a, reference_batch=8)
    train(a, first, BATCHES, 7)
    second = duplicate(first)
    b = second.param_groups[0]["params"]
    assert_same(train(b, second, BATCHES, 9, seed=2), train(a, first, BATCHES, 9, seed=2))


def test_a_checkpoint_of_torch_at_the_reference_batch_goes_on():
    a, b = parameters(), parameters()
    theirs, never = torch.optim.AdamW(a, **ADAM), AdamW(b, reference_batch=8, **ADAM)
    train(a, theirs, steps=7)
    train(b, never, [8], 7)
    mine = AdamW(a, lr=7.0, reference_batch=8, floors=(0.7, 0.8))
    mine.load_state_dict(through_a_file(theirs.state_dict()))
    assert mine.param_groups[0]["reference_batch"] == 8
    assert mine.param_groups[0]["floors"] == (0.7, 0.8)
    assert mine.param_groups[0]["lr"] == ADAM["lr"]
    mine.param_groups[0]["floors"] = (0.8, 0.9)
    assert_close(train(a, mine, BATCHES, 9, seed=2), train(b, never, BATCHES, 9, seed=2))


@pytest.mark.parametrize("options", [{"amsgrad": True, "fused": True}, {"fused": True}, {"foreach": True}], ids=str)
def test_checkpoints_of_torchs_kinds_of_adamw_go_on(options):
    a = parameters()
    theirs = torch.optim.AdamW(a, **options)
    train(a, theirs, steps=3)
    b = [nn.Parameter(p.detach().clone()) for p in a]
    mine = AdamW(b, reference_batch=8)
    mine.load_state_dict(through_a_file(theirs.state_dict()))
    assert_close(train(b, mine, [8], 5, seed=2), train(a, theirs, steps=5, seed=2))
    assert mine.reference_steps == 8


@pytest.mark.parametrize("told", [lambda one: rescale_(one, batch_size=(8, 32)), lambda one: track_(one, 32)])
def test_a_checkpoint_that_says_another_batch_size_is_refused(told):
    held = parameters()
    torchs = torch.optim.AdamW(held, **ADAM)
    for p, grad in zip(held, next(gradients(1, held)), strict=True):
        p.grad = grad
    torchs.step()
    told(torchs)
    state = copy.deepcopy(torchs.state_dict())
    with pytest.raises(ValueError, match=r"at batch size 32, and reference_batch is 8: make .* reference_batch=32"):
        AdamW(held, **ADAM, reference_batch=REFERENCE).load_state_dict(state)
    fitting = AdamW(held, **ADAM, reference_batch=32)
    fitting.load_state_dict(state)
    assert fitting.param_groups[0]["lr"] == torchs.param_groups[0]["lr"]


def test_torch_goes_on_from_a_checkpoint_at_the_reference_batch_and_back():
    a, b = parameters(), parameters()
    mine, theirs = AdamW(a, reference_batch=8, **ADAM), torch.optim.AdamW(b)
    train(a, mine, [8, 16, 4], 1500)  # long enough for the bias to be gone: only it depends on the order of batches
    with torch.no_grad():
        torch._foreach_copy_(b, a)
    theirs.load_state_dict(through_a_file(mine.state_dict()))
    train(a, mine, [8], 9, seed=2)
    assert_close(train(b, theirs, steps=9, seed=2), a, 1e-9)
    again = AdamW(b, reference_batch=8)
    again.load_state_dict(through_a_file(theirs.state_dict()))
    assert again.reference_steps == 500 * (1 + 2 + 0.5) + 9
    assert_close(train(b, again, BATCHES, 9, seed=3), train(a, mine, BATCHES, 9, seed=3), 1e-9)


def test_a_checkpoint_with_another_update_is_refused():
    a = parameters()
    theirs = torch.optim.RMSprop(a, momentum=0.5)
    train(a, theirs, steps=2)
    mine = RMSprop(a, reference_batch=8)
    with pytest.raises(ValueError, match=r"RMSprop on the sample clock has no momentum, got 0\.5"):
        mine.load_state_dict(theirs.state_dict())
    assert "momentum" not in mine.param_groups[0]


def test_distributed_checkpoints_resume():
    torch.manual_seed(0)
    one, other = (nn.Linear(3, 2).double() for _ in range(2))
    other.load_state_dict(one.state_dict())
    first, second = (AdamW(net.parameters(), reference_batch=8) for net in (one, other))
    train(list(one.parameters()), first, BATCHES, 7)
    other.load_state_dict(one.state_dict())
    set_optimizer_state_dict(other, second, through_a_file(get_optimizer_state_dict(one, first)))
    train(list(one.parameters()), first, BATCHES, 9, seed=2)
    assert_same(train(list(other.parameters()), second, BATCHES, 9, seed=2), one.parameters())


# What is around it.


def test_rescale_has_nothing_to_convert():
    a = parameters()
    optimizer = optim.AdamW(a, reference_batch=8)
    assert optim.AdamW is AdamW
    train(a, optimizer, BATCHES, 5)
    optimizer.settle()
    before = snapshot(optimizer)
    with pytest.raises(TypeError, match=r"nothing to convert in AdamW.*give the new batch size to step\(samples"):
        rescale_(optimizer, 4)
    assert snapshot(optimizer) == before


SCHEDULES = {
    "cosine": lambda o: CosineAnnealingLR(o, 20),
    "sequential": lambda o: SequentialLR(o, [LinearLR(o, 0.1, total_iters=5), CosineAnnealingLR(o, 10)], [5]),
    "chained": lambda o: ChainedScheduler([LinearLR(o, 0.1, total_iters=5), ExponentialLR(o, 0.9)]),
    "one cycle": lambda o: OneCycleLR(o, 1.0, total_steps=20, cycle_momentum=False),
}


@pytest.mark.parametrize("make", SCHEDULES.values(), ids=SCHEDULES)
def test_a_schedule_that_follows_samples_is_that_of_the_reference_batch(make):
    a, b = parameters()[:1], parameters()[:1]
    mine, base = AdamW(a, lr=1.0, reference_batch=4), torch.optim.SGD(b, lr=1.0)
    following, plain = follow_samples(make(mine)), make(base)
    seen = ticks = 0
    for n in (1, 1, 1, 1, 4, 8, 2, 2, 16, 12, 1, 3, 20, 8):
        a[0].grad = torch.ones_like(a[0])
        mine.step(samples=n)
        following.step()
        following.step()  # a second call finds nothing to do
        for _ in range(ticks, min((seen := seen + n) // 4, 20)):
            base.step()
            plain.step()
            ticks += 1
        assert mine.param_groups[0]["lr"] == pytest.approx(base.param_groups[0]["lr"], rel=1e-12)
    assert ticks == 20


def test_a_schedule_that_follows_samples_resumes():
    a, b = parameters()[:1], parameters()[:1]
    first, second = (AdamW(ps, lr=1.0, reference_batch=4) for ps in (a, b))
    one, other = (follow_samples(CosineAnnealingLR(o, 20)) for o in (first, second))
    for n in (3, 6, 9):
        train(a, first, [n], 1)
        one.step()
    second.load_state_dict(first.state_dict())
    other.load_state_dict(one.state_dict())
    for n in (3, 6, 9):
        train(a, first, [n], 1)
        train(b, second, [n], 1)
        one.step()
        other.step()
        assert first.param_groups[0]["lr"] == second.param_groups[0]["lr"] < 1
    assert pickle.loads(pickle.dumps(one)).last_epoch == 9


def test_only_schedulers_of_steps_on_the_sample_clock_follow_samples():
    a = parameters()
    with pytest.raises(TypeError, match="must be on the sample clock, got SGD"):
        follow_samples(LinearLR(torch.optim.SGD(a, lr=0.1)))
    with pytest.raises(TypeError, match="counts optimizer steps, got ReduceLROnPlateau"):
        follow_samples(torch.optim.lr_scheduler.ReduceLROnPlateau(AdamW(a, reference_batch=8)))


def test_one_process_has_all_samples():
    assert count_ranks(12) == (12, 1)
    with pytest.raises(ValueError, match="samples must be a finite number >= 0"):
        count_ranks(-1)
