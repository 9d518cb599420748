"""Which optimizers count as which family."""

import functools

import pytest
import torch
from torch import nn

from rootscale.training import adapters, register
from rootscale.training.adapters import family_of, row_of

OWN = (torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.SGD)


def make(cls):
    return cls(nn.Linear(2, 1).parameters(), lr=0.1)


@pytest.mark.parametrize("cls", OWN)
def test_a_subclass_that_wraps_the_step_it_replaces_is_refused(cls):
    """functools.wraps makes the new step look like the old one."""

    class Changed(cls):
        @functools.wraps(cls.step)
        def step(self, closure=None):
            for group in self.param_groups:
                group["lr"] *= 0.5
            return super().step(closure)

    make(cls)  # torch wraps the step of a class when its first object is made
    for _ in range(2):
        with pytest.raises(TypeError, match="got Changed"):
            row_of(make(Changed))


@pytest.mark.parametrize("cls", OWN)
def test_a_step_wrapped_on_the_class_itself_is_refused(cls):
    class Patched(cls):
        pass

    @functools.wraps(cls.step)
    def step(self, closure=None):
        return None

    Patched.step = step
    with pytest.raises(TypeError, match="got Patched"):
        row_of(make(Patched))


@pytest.mark.parametrize("cls", OWN)
def test_a_subclass_without_a_step_of_its_own_is_its_torch_class(cls):
    class Named(cls):
        def zero_grad(self, set_to_none=True):
            super().zero_grad(set_to_none)

    class Twice(Named):
        pass

    for one in (Named, Twice, Named):
        assert row_of(make(one)).name == cls.__name__


def test_the_step_that_a_scheduler_puts_on_an_object_does_not_matter():
    class Named(torch.optim.AdamW):
        pass

    optimizer = make(Named)
    torch.optim.lr_scheduler.StepLR(optimizer, 3)
    assert "step" in vars(optimizer)
    assert family_of(optimizer).name == "adamw"


class Packaged(torch.optim.Adam):
    """An optimizer of an installed package, with a step of its own."""

    def step(self, closure=None):
        return super().step(closure)


class Point:
    """An entry point."""

    def __init__(self, name, function):
        self.name, self.value, self.function = name, f"package:{name}", function

    def load(self):
        return self.function


@pytest.mark.usefixtures("forget_registered")
def test_a_package_brings_the_rows_of_its_optimizers_along(monkeypatch):
    def broken():
        raise KeyError("lr")

    points = [Point("broken", broken), Point("packaged", lambda: register(Packaged, like="adam"))]
    monkeypatch.setattr(
        adapters.metadata, "entry_points", lambda group: points if group == "rootscale.optimizers" else []
    )
    adapters.load_entry_points.cache_clear()
    optimizer = Packaged([torch.nn.Parameter(torch.ones(2))])
    with pytest.warns(RuntimeWarning, match="package:broken of rootscale.optimizers failed: 'lr'"):
        assert adapters.family_of(optimizer).name == "adam"
    assert adapters.family_of(optimizer).name == "adam"  # and is asked once
    adapters.load_entry_points.cache_clear()
