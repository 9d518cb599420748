import gc
import importlib
import sys

import pytest
from hypothesis import settings

# The same examples every time, however busy the machine is.
settings.register_profile("rootscale", deadline=None, derandomize=True)
settings.load_profile("rootscale")


def pytest_collection_finish():
    """Take what was imported out of the sight of the garbage collector, which `rescale_` asks for schedulers."""
    if "torch" in sys.modules:
        importlib.import_module("torch._dynamo")  # the first optimizer does it, and it is the most of all
        gc.collect()
        gc.freeze()


@pytest.fixture
def forget_registered(monkeypatch):
    """What a test registers is forgotten after it."""
    from rootscale import optimizers, rules
    from rootscale.training import adapters

    monkeypatch.setattr(adapters, "REGISTERED", dict(adapters.REGISTERED))
    held = dict(optimizers._FAMILIES), dict(optimizers._OPTIMIZERS), dict(rules._RULES)
    yield
    for table, before in zip((optimizers._FAMILIES, optimizers._OPTIMIZERS, rules._RULES), held, strict=True):
        table.clear()
        table.update(before)
