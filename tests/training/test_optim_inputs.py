"""PyTorch's own optimizer inputs through `Run`: there and back, in parts, saved and loaded.

They are in the package of torch's own tests, which changes settings of the process that imports it: another one does.
"""

import copy
import subprocess
import sys

import pytest
import torch
from live import plain
from torch import nn

from rootscale.training import Run, rescale_

DUMP = """
import importlib.util, sys, types, unittest
import torch
if importlib.util.find_spec("expecttest") is None:  # which torch's tools import, and this does not need
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase
from torch.testing._internal.common_optimizers import optim_db
found = {
    info.optim_cls.__name__: ([one.kwargs for one in info.optim_inputs_func(device="cpu")], info.supports_complex,
                              [name for name in info.supported_impls if name in ("foreach", "fused")])
    for info in optim_db
}
torch.save(found, sys.argv[1])
"""
NOT_KNOWN = {"LBFGS", "Rprop", "ASGD", "Adadelta", "SparseAdam"}
CLASSES = ["Adafactor", "Adagrad", "Adam", "Adamax", "AdamW", "NAdam", "RAdam", "RMSprop", "SGD"]
CLASSES += ["Muon"] * hasattr(torch.optim, "Muon")


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    file = tmp_path_factory.mktemp("inputs") / "inputs.pt"
    subprocess.run([sys.executable, "-W", "ignore", "-c", DUMP, str(file)], check=True)
    return torch.load(file, weights_only=False)


def test_every_class_of_torch_is_here(database):
    assert set(database) == {*CLASSES, *NOT_KNOWN}


def inputs(database, name):
    """All arguments, each also with complex parameters, and the first fused and foreach, where torch has that."""
    given, complexes, implementations = database[name]
    for i, options in enumerate(given):
        for more in ({}, *({key: True} for key in implementations if not i)):
            yield {**options, **more}, torch.float64
        if complexes:
            yield options, torch.complex128


def make(name, options, dtype):
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(3, 4, dtype=dtype)), nn.Parameter(torch.randn(2, 2, dtype=dtype))]
    return parameters, getattr(torch.optim, name)(parameters, **copy.deepcopy(options))


def steps(parameters, optimizer, seeds):
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        for p in parameters:
            p.grad = torch.randn(p.shape, dtype=p.dtype, generator=generator)
        optimizer.step()


def flat(optimizer):
    return [
        (key, name, value)
        for key, state in optimizer.state_dict()["state"].items()
        for name, value in sorted(state.items())
        if isinstance(value, torch.Tensor | float | int)
    ]


def numbers(optimizer):
    return [(k, plain(v)) for group in optimizer.param_groups for k, v in group.items() if k != "params"]


def assert_same_state(optimizer, other):
    for (*where, value), (*there, expected) in zip(flat(optimizer), flat(other), strict=True):
        assert where == there
        value, expected = torch.as_tensor(value), torch.as_tensor(expected)
        rtol = 1e-6 if value.dtype == torch.float32 else 1e-10  # step counters, and a few scalars
        torch.testing.assert_close(value, expected, rtol=rtol, atol=1e-14)


def assert_same(parameters, others, float32):
    for p, q in zip(parameters, others, strict=True):
        torch.testing.assert_close(p.detach(), q.detach(), rtol=1e-6 if float32 else 1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore::rootscale.ScalingWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", CLASSES)
def test_there_and_back_in_parts_saved_and_loaded(name, database):
    done = 0
    for options, dtype in inputs(database, name):
        try:
            parameters, optimizer = make(name, options, dtype)
            steps(parameters, optimizer, range(2))
        except (RuntimeError, ValueError, AssertionError):
            continue  # torch itself has not this combination
        script, float32 = numbers(optimizer), isinstance(options.get("lr"), torch.Tensor)
        twins, alone = make(name, options, dtype)
        steps(twins, alone, range(2))

        run = Run(optimizer, tuned_at=8)
        for size in (32, 128, 8):  # four times and four times is sixteen times, and back
            run.batch_size = size
        assert_same_state(optimizer, alone)
        run.batch_size = 128
        at_once = [plain(state) for state in optimizer.state.values()]
        assert_same_state(optimizer, alone)  # a checkpoint is the script's
        run.batch_size = 32
        run.batch_size = 128
        for state, before in zip(optimizer.state.values(), at_once, strict=True):
            for key, value in plain(state).items():
                torch.testing.assert_close(torch.tensor(value), torch.tensor(before[key]), rtol=1e-6, atol=0)
        run.batch_size = 32

        others, resumed = make(name, options, dtype)
        for p, q in zip(others, parameters, strict=True):
            p.data.copy_(q.data)
        its, saved = Run(resumed, tuned_at=8, batch_size=4), optimizer.state_dict()
        for _ in range(2):  # as often as one likes from the same dictionary
            resumed.load_state_dict(saved)
        its.batch_size = 32
        for p, q in ((parameters, optimizer), (others, resumed)):
            steps(p, q, range(2, 5))
        assert_same(others, parameters, float32)
        assert numbers(optimizer) == script

        rescale_(alone, 4)  # the conversion in place makes the same steps
        steps(twins, alone, range(2, 5))
        assert_same(parameters, twins, float32)
        done += 1
    assert done >= len(database[name][0])


@pytest.mark.parametrize("name", sorted(NOT_KNOWN))
def test_those_without_a_rule_are_refused_with_the_reason(name):
    optimizer = getattr(torch.optim, name)([nn.Parameter(torch.ones(2))])
    with pytest.raises(TypeError, match=f"{name} has no rule that keeps its dynamics: "):
        Run(optimizer, tuned_at=8)
