"""The learners: what they have in common, and the graph learner's bookkeeping with a graph that is made up."""

from contextlib import contextmanager, nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from problems import jitter, make, mlp, mlp_batchnorm
from torch import nn
from torch.optim.swa_utils import update_bn

from rootscale.lab import Measure, Settings, Setup, Trial, Variant
from rootscale.lab.learner import make_learner
from rootscale.lab.learner_eager import EagerLearner
from rootscale.lab.learner_graph import GraphLearner, SideBySide
from rootscale.lab.objective import Objective
from rootscale.lab.replicas import Single, Stack, make_replicas
from rootscale.lab.stream import Stream
from rootscale.lab.trial import forward_samples
from rootscale.rules import RULES
from rootscale.training.adapters import make_optimizer
from rootscale.training.norms import norm_layers

CPU = torch.device("cpu")


def batches(size, passes=1, seeds=(3, 5), start=0):
    stream = Stream(200, seeds)
    return [(stream.indices(start + i * size, start + (i + 1) * size), None) for i in range(passes)]


def test_one_seed_is_the_model_itself_and_several_are_stacked():
    task = make()
    assert isinstance(make_learner(task, [3], Setup(fast=True)).nets, Single)
    assert isinstance(make_learner(task, [3, 5], Setup()).nets, Stack)
    with pytest.raises(ValueError, match="at least one seed is needed, got none"):
        make_learner(task, [], Setup())


@pytest.mark.parametrize("model", [mlp_batchnorm, lambda: nn.Sequential(nn.Dropout(0.5), mlp())])
@pytest.mark.parametrize("seeds", [[3], [3, 5]])
def test_the_loss_in_train_mode_is_that_of_the_model_in_train_mode_and_changes_nothing(model, seeds):
    task = make("everything", model)
    learner = make_learner(task, seeds, Setup())
    for start in range(0, 64, 16):
        learner.step(batches(16, seeds=seeds, start=start), 1e-2)
    before = {name: buffer.clone() for name, buffer in learner.nets.buffers.items()}
    x, y = task.train.inputs, task.train.targets
    torch.manual_seed(0)
    found = learner.means(x, y, {"loss": task.loss}, train=True)["loss"]
    assert all(torch.equal(before[name], buffer) for name, buffer in learner.nets.buffers.items())
    learner.average = None  # the parameters that are trained, not their average
    if model is mlp_batchnorm or len(seeds) == 1:
        for r in range(len(seeds)):
            torch.manual_seed(0)
            assert found[r].item() == pytest.approx(task.loss(learner.replica(r).train()(x), y).mean().item(), rel=1e-9)
    assert found.tolist() != learner.means(x, y, {"loss": task.loss})["loss"].tolist()
    assert torch.isfinite(learner.means(x[:1], y[:1], {"loss": task.loss}, train=True)["loss"]).all()


@pytest.mark.parametrize("momentum", [0.1, 0.01, 1.0])
@pytest.mark.parametrize("seeds", [[3], [3, 5]])
@pytest.mark.parametrize("chunk", [50, 200])
def test_reestimated_statistics_are_those_of_torchs_update_bn(seeds, momentum, chunk, monkeypatch):
    monkeypatch.setattr("rootscale.lab.learner_eager.CHUNK", chunk)
    task = make("everything", mlp_batchnorm)  # with an average of the parameters
    learner = make_learner(task, seeds, Setup(micro=4))
    for layer in norm_layers(learner.nets.model).values():
        layer.momentum = momentum
    for start in range(0, 64, 16):
        learner.step(batches(16, seeds=seeds, start=start), 1e-2)
    before = {name: buffer.clone() for name, buffer in learner.nets.buffers.items()}
    (x, y), (samples, _) = task.test[:], task.train[:]
    found = learner.means(x, y, {"loss": task.loss}, statistics=samples)["loss"]
    assert all(torch.equal(before[name], buffer) for name, buffer in learner.nets.buffers.items())
    for r in range(len(seeds)):
        model = learner.replica(r)
        update_bn(samples.split(chunk), model)
        assert found[r].item() == pytest.approx(task.loss(model.eval()(x), y).mean().item(), rel=1e-9)
    assert found.tolist() != pytest.approx(learner.means(x, y, {"loss": task.loss})["loss"].tolist(), rel=1e-5)


def test_statistics_of_a_layer_that_is_frozen_stay_and_a_lonely_sample_has_none():
    task = make("everything", mlp_batchnorm)
    learner = make_learner(task, [3], Setup())
    (x, y), (samples, _) = task.test[:], task.train[:]
    learner.step(batches(16, seeds=[3]), 1e-2)
    expected = learner.means(x, y, {"loss": task.loss})["loss"]
    assert torch.equal(learner.means(x, y, {"loss": task.loss}, statistics=samples[:1])["loss"], expected)
    for layer in norm_layers(learner.nets.model).values():
        layer.momentum = 0.0
    assert torch.equal(learner.means(x, y, {"loss": task.loss}, statistics=samples)["loss"], expected)


@pytest.mark.parametrize("micro", [None, 3])
@pytest.mark.parametrize("seeds", [[3], [3, 5]])
def test_the_loss_of_the_steps_is_the_mean_of_what_a_loop_would_print(seeds, micro):
    task = make()
    learner = make_learner(task, seeds, Setup(micro=micro))
    assert learner.step_loss() is None
    expected = []
    for start in range(0, 40, 8):
        step = batches(8, seeds=seeds, start=start)
        index = step[0][0]
        expected.append([task.loss(learner.replica(r)(task.train[i][0]), task.train[i][1]).mean().item()
                         for r, i in enumerate(index)])  # fmt: skip
        learner.step(step, 1e-2)
    assert learner.step_loss().tolist() == pytest.approx(np.mean(expected, 0).tolist(), rel=1e-9)
    assert learner.step_loss() is None


def test_the_loss_of_the_steps_of_svag_is_that_of_both_batches():
    task = make()
    learner = make_learner(task, [3], Setup())
    learner.rescale(1.0, RULES["sqrt"], ell=2.0)
    pair = batches(8, passes=2, seeds=[3])
    model = learner.replica(0)
    expected = np.mean([task.loss(model(x), y).mean().item() for x, y in (task.train[index[0]] for index, _ in pair)])
    learner.step(pair, 1e-2)
    assert learner.step_loss().item() == pytest.approx(expected, rel=1e-9)


# -- BatchNorm and micro-batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("micro", "variant", "factors"),
    [
        (None, Variant(4), [4]),
        (8, Variant(4), [2]),  # 4 samples in a forward pass become 8, not 16
        (4, Variant(4), [1]),
        (2, Variant(4), [1]),
        (5, Variant(4), [1]),  # 5, 5, 5 and 1: four on average
        (2, Variant(1 / 4), [1 / 2]),  # 2 become 1
        (8, Variant(4, ramp=((64, 2), (96, 1))), [2, 2, 1]),
        (4, Variant(ell=2), [1 / 4]),  # SVAG's steps are shorter, its batches as large
    ],
)
def test_batchnorm_is_converted_by_the_samples_of_a_forward_pass(micro, variant, factors):
    run = Trial(make("everything", mlp_batchnorm), variant, [3], Settings(grid=(0, 128), setup=Setup(micro=micro)))
    found = []
    for number in range(len(factors)):
        if number:
            run._enter(number)
        found.append(run.learner.nets.model[1].momentum)
    assert found == pytest.approx([1 - 0.95**factor for factor in factors], rel=1e-12)


def test_the_samples_of_a_forward_pass_are_those_of_a_micro_batch():
    assert [forward_samples(size, 8) for size in (4, 8, 16, 12)] == [4, 8, 8, 6]
    assert forward_samples(12, None) == 12


# -- the graph learner -----------------------------------------------------------------------------------------------


class Graph:
    """Stands for a CUDA graph: takes the step that was recorded."""

    def replay(self):
        svag = self.learner.svag
        done = None if svag is None else svag.done
        self.step()
        if svag is not None:
            svag.done = done  # a graph runs kernels, not Python


@pytest.fixture
def without_a_gpu(monkeypatch):
    """Let GraphLearner run on a CPU: streams do nothing, and recording keeps the step instead of taking it."""

    class Stream:
        def __init__(self, device=None):
            pass

        def wait_stream(self, other):
            pass

    recorded = []

    @contextmanager
    def record(graph, stream):
        recorded.append(graph)
        update = EagerLearner.update

        def keep(self, held, clip):
            graph.learner, graph.step = self, partial(update, self, held, clip)

        monkeypatch.setattr(EagerLearner, "update", keep)
        yield
        monkeypatch.setattr(EagerLearner, "update", update)

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", record)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    return recorded


def graphs(task, seeds, setup):
    each = [GraphLearner(task, seed, setup, compile=False) for seed in seeds]
    return each[0] if len(each) == 1 else SideBySide(each)


@pytest.mark.parametrize("seeds", [[3], [3, 5]])
@pytest.mark.parametrize(
    ("variant", "stages"),
    [(Variant(4), 1), (Variant(2, ramp=((64, 4),)), 2), (Variant(ell=2), 1), (Variant(4, zero_state=True), 1)],
)
def test_the_graph_learner_takes_the_steps_of_the_eager_one(variant, stages, seeds, without_a_gpu, monkeypatch):
    task = make("everything", mlp_batchnorm, augment=jitter, draws=1)
    grid = (16, 64, 128) if variant.ell == 1 else (16, 32)
    arguments = (task, variant, seeds, Settings(grid, 16, Measure(noise=variant.zero_state, reestimate=True)))
    expected = Trial(*arguments).finish()
    monkeypatch.setattr("rootscale.lab.trial.make_learner", graphs)
    without_a_gpu.clear()
    found = Trial(*arguments).finish()
    assert "test loss (BatchNorm re-estimated)" in expected.names
    assert len(without_a_gpu) == len(seeds) * (1 + stages)  # one for the warm start, one for each batch size
    for name in expected.names:
        np.testing.assert_allclose(found.values[name], expected.values[name], rtol=1e-8, atol=1e-10, err_msg=name)


def test_a_graph_learner_that_is_resumed_records_anew_and_goes_on(without_a_gpu, monkeypatch):
    monkeypatch.setattr("rootscale.lab.trial.make_learner", graphs)
    arguments = (make("everything", mlp_batchnorm), Variant(), [3, 5], Settings(grid=(0, 32, 96)))
    whole = Trial(*arguments).finish()
    first = Trial(*arguments)
    while first.step < 11:
        first.advance()
    second = Trial(*arguments)
    second.load_state_dict(first.state_dict())
    found = second.finish()
    for name in whole.names:
        np.testing.assert_allclose(found.values[name], whole.values[name], rtol=1e-12, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("model", [mlp, mlp_batchnorm])
def test_batch_and_losses_of_a_step_compile_without_a_break(model):
    task = make(model=model, augment=jitter, draws=1)
    replicas = make_replicas(task, [3], CPU)
    whole = partial(torch.compile, dynamic=False, backend="eager", fullgraph=True)
    compiled, plain = Objective(task, replicas, CPU, wrap=whole), Objective(task, replicas, CPU)
    index, uniforms = torch.arange(6)[None], torch.rand(1, 6, 1, dtype=torch.float64)
    x, y = compiled.batch(index, uniforms)
    assert torch.equal(x, plain.batch(index, uniforms)[0])
    assert torch.equal(compiled.losses(x, y), plain.losses(x, y))


def test_an_optimizer_of_a_graph_is_capturable():
    parameters = [nn.Parameter(torch.zeros(2))]
    for plan in ("adam", "everything", "rmsprop"):
        optimizer = make_optimizer(parameters, make(plan).plan.optimizer, capturable=True)
        assert optimizer.defaults["capturable"]
