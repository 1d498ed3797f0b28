"""Inputs of modules by name, on the host and in the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.errors import InvalidArgument
from tilewright.expr import GraphBuilder

X, Y = np.arange(6, dtype=np.float32).reshape(2, 3), np.float32([1, 2, 3])


@pytest.fixture(scope="module", params=["host", "sm_80"])
def module(request: pytest.FixtureRequest) -> tilewright.Module:
    b = GraphBuilder("scale")
    x, y, odd = b.input("x", (2, 3), "f32"), b.input("y", (3,), "f32"), b.input("a.1", (3,), "f32")
    options = tilewright.Options(cache=False)
    device = None if request.param == "host" else "emulator"
    return tilewright.compile(b.finish([x * y - odd]), machine=request.param, options=options, device=device)


def test_inputs_by_name_in_any_order(module: tilewright.Module) -> None:
    expected = X * Y - 1
    ones = np.ones(3, np.float32)
    for result in (
        module(X, Y, ones), module(X, Y, **{"a.1": ones}), module(**{"a.1": ones, "y": Y, "x": X}),
        module(X, **{"a.1": ones}, y=Y),
    ):  # fmt: skip
        np.testing.assert_array_equal(result, expected)
    out = np.empty_like(X)
    module(X, Y, **{"a.1": ones}, out=out)
    np.testing.assert_array_equal(out, expected)
    assert module.profile(X, Y, **{"a.1": ones}, repeats=1)


WRONG: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((), {"x": X, "Y": Y}, r"scale: .*no input is called 'Y'\n.*did you mean y\? The inputs are x: f32\[2, 3\], y"),
    ((), {"x": X, "weights": Y}, r"no input is called 'weights'\n.*the inputs are x"),
    ((X,), {"x": X, "y": Y}, r"'x' given by position and by name\n.*once"),
    ((), {"y": Y}, r"'x', 'a\.1' missing\n.*the inputs are x"),
    ((X, Y, Y, Y), {"x": X}, r"'x' given by position"),
    ((), {"x": Y, "y": Y, "a.1": Y}, r"input 'x'"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_unknown_repeated_and_missing_names(module: tilewright.Module, number: int) -> None:
    arrays, named, message = WRONG[number]
    with pytest.raises(InvalidArgument, match=message):
        module(*arrays, **named)
