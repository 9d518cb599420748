"""What `try_compile` does where torch.compile cannot help; needs no GPU."""

import pytest
import torch

from rootscale.lab.compiled import try_compile


def double(x):
    if x < 0:
        raise ValueError("negative")
    return 2 * x


def test_a_function_that_does_not_compile_is_run_as_it_is_and_warns_once(monkeypatch, recwarn):
    asked = []

    def fail(function, dynamic):
        def call(*args):
            asked.append(args)
            raise RuntimeError("lines of a traceback\nValueError: no such kernel\n\nset a variable for more")

        return call

    monkeypatch.setattr(torch, "compile", fail)
    call = try_compile(double)
    assert [call(1), call(2), call(3)] == [2, 4, 6]
    assert asked == [(1,)]
    (warning,) = recwarn
    assert str(warning.message) == "torch.compile failed, which costs speed only: ValueError: no such kernel"


def test_a_functions_own_error_is_not_hidden(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: function)
    with pytest.raises(ValueError, match="negative"):
        try_compile(double)(-1)


def test_a_function_that_compiles_is_run_so(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: lambda x: ("compiled", function(x)))
    assert try_compile(double)(2) == ("compiled", 4)
