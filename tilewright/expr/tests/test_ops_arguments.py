"""Every builder of the operator library, called with what does not belong there: only errors for users come out."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import random
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Any, Literal, Union

import numpy as np
import pytest

from tilewright.errors import CompileError, InvalidArgument
from tilewright.expr import ops
from tilewright.expr.core import Axis, Const, Expr, Tensor
from tilewright.expr.dtypes import DTYPES
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops import elementwise, linalg, reduce
from tilewright.expr.ops.sampling import Table, resize_table

SHAPES: tuple[tuple[int, ...], ...] = (
    (), (1,), (5,), (4, 5), (5, 4), (2, 4, 5), (2, 4, 6, 5), (3, 4, 2, 3), (1, 4, 5, 6, 7), (0, 3), (4, 0),
    (1, 1, 1, 1),
)  # fmt: skip
WRONG: tuple[Any, ...] = (
    None, "x", "", b"y", 1.5, float("nan"), float("inf"), -1, 0, 3, 10**30, -(10**30), True, 2j, [], (), [None], ["x"],
    [1, "x"], [10**30], [-1, -1], [[1]], {}, {1}, {"x": 1}, {0: None}, object(), int, len, np.zeros(3), np.float32(2),
    np.int64(2), Tensor("other", (3,), "f32"), Const(1, "f32"), Axis("i", 3),
)  # fmt: skip


def builders() -> Iterator[Callable[..., Any]]:
    """Every builder of `expr.ops` that takes no function: what that raises is its own."""
    for module in pkgutil.iter_modules(ops.__path__):
        found = importlib.import_module(f"{ops.__name__}.{module.name}")
        for _, function in inspect.getmembers(found, inspect.isfunction):
            checked = function.__module__ == found.__name__ and hasattr(function, "__wrapped__")
            if checked and "Callable" not in str(inspect.signature(function)):
                yield function


BUILDERS = list(builders())


def plausible(hint: Any, b: GraphBuilder, draw: random.Random) -> Any:
    """A value of an annotated type, which may still be one that the operator has no use for."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, UnionType):
        return plausible(draw.choice(parts), b, draw)
    if origin is Literal:
        return draw.choice(parts)
    if origin is tuple and parts[-1] is not Ellipsis:
        return tuple(plausible(part, b, draw) for part in parts)
    if origin in (tuple, list, Sequence):
        return [plausible(parts[0], b, draw) for _ in range(draw.randrange(5))]
    if origin in (dict, Mapping):
        return {plausible(parts[0], b, draw): plausible(parts[1], b, draw)}
    if hint is Tensor:
        return b.input(f"x{len(b.inputs)}", draw.choice(SHAPES), draw.choice(("f32", "f32", *DTYPES)))
    numbers: dict[Any, tuple[Any, ...]] = {
        int: (0, 1, 2, 3, -1, -2, 64, 10**30), float: (0.0, 0.5, 2.0, -1.0, float("inf")), bool: (True, False),
        str: ("name", "f32", "i64", "sum", "max", "none", "tanh"), type(None): (None,), Any: (3, "x"),
        Table: (resize_table(5, 3, 0.6),),
        Axis: (Axis("i0", 5), Axis("k", 4)), Expr: (Const(1.0, "f32"), Axis("i0", 5)),
    }  # fmt: skip
    return draw.choice(numbers.get(hint, WRONG))


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: f"{build.__module__.rpartition('.')[2]}.{build.__name__}")
def test_only_errors_for_users_come_out(build: Callable[..., Any]) -> None:
    hints = {k: v for k, v in typing.get_type_hints(build).items() if k not in ("return", "b", "sliding")}
    parameters = inspect.signature(build).parameters
    required = [name for name in hints if parameters[name].default is inspect.Parameter.empty]
    draw = random.Random(build.__name__)
    for _ in range(40):
        b = GraphBuilder()
        names = [name for name in hints if name in required or draw.random() < 0.5]
        arguments = {name: plausible(hints[name], b, draw) for name in names}
        if names and draw.random() < 0.6:
            arguments[draw.choice(names)] = draw.choice(WRONG)
        if "b" in parameters:
            arguments["b"] = b
        try:
            build(**arguments)
        except CompileError:
            pass
        except Exception as error:
            shown = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
            raise AssertionError(f"{build.__name__}({shown})") from error


def test_messages_say_where_what_and_what_would_be_legal() -> None:
    b = GraphBuilder()
    x = b.input("x", (3, 4), "f32")
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: elementwise.relu("x"), r"relu: .*x is a str: 'x'\n.*give a Tensor"),  # type: ignore[arg-type]
        (lambda: elementwise.fill(None, (2,), 0, "f32"), r"fill: .*b is a NoneType: None\n.*give a GraphBuilder"),  # type: ignore[arg-type]
        (lambda: elementwise.relu(), r"relu: .*missing a required argument: 'x'\n.*its arguments are x, name"),  # type: ignore[call-arg]
        (lambda: elementwise.relu(x, slope=3), r"relu: .*unexpected keyword argument 'slope'"),  # type: ignore[call-arg]
        (lambda: linalg.matmul(x, np.zeros((4, 2))), r"matmul: .* is a ndarray: array(?s:.*)give a Tensor"),  # type: ignore[arg-type]
        (lambda: reduce.reduce_sum(x, 1), r"reduce_sum: .*axes is a int: 1\n.*a list, each an integer or None"),  # type: ignore[arg-type]
        (lambda: reduce.reduce_sum(x, [True]), r"axes is a list: \[True\]"),
        (lambda: elementwise.leaky_relu(x, alpha="1"), r"alpha is a str: '1'\n.*give a number"),  # type: ignore[arg-type]
    ]
    for call, message in cases:
        with pytest.raises(InvalidArgument, match=message):
            call()


def test_numbers_of_numpy_are_numbers() -> None:
    b = GraphBuilder()
    x = b.input("x", (3, 4), "f32")
    assert reduce.reduce_sum(x, (np.int64(1),), keepdims=np.bool_(False)).shape == (3,)  # type: ignore[arg-type]
    assert elementwise.leaky_relu(x, alpha=np.float32(0.5)).shape == (3, 4)  # type: ignore[arg-type]
