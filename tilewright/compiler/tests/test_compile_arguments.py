"""Arguments that mean nothing are errors that say so: options, environment, builders, calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright
from tests.covering import tries
from tilewright.compiler.compile import compile_graph
from tilewright.errors import CompileError, InvalidArgument, InvalidExpression
from tilewright.expr.core import Tensor
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import elementwise
from tilewright.options import Options, environment_threads


def test_an_option_by_its_old_name_names_the_new_one() -> None:
    with pytest.raises(InvalidArgument, match="has another name now\n  = help: write mma="):
        Options(route="wmma")


def relu() -> Graph:
    b = GraphBuilder("relu")
    return b.finish([elementwise.relu(b.input("x", (3,), "f32"))])


@pytest.fixture(scope="module")
def module() -> tilewright.Module:
    return compile_graph(relu(), threads=1, options=Options(cache=False))


@pytest.mark.parametrize(
    ("name", "value", "nearest"),
    [
        ("device", "tpu", "emulator"), ("device", "cuda:x", "cuda:N"), ("device", None, "auto"),
        ("trials", 1.5, "1 or more"), ("trials", True, "1 or more"), ("trials", 0, "1 or more"),
        ("trials", 5, 'search="joint"'),
        ("search", "jiont", "joint, rules"), ("mma", "mma", "wmma"), ("input_precision", "tf23", "tf32"),
        ("cache", "yes", "True or False"), ("pin", 1, "True or False"), ("disable", "cse", "a tuple"),
        ("disable", (1,), "a tuple"), ("cache_bytes", 1.0, "bytes"), ("cache_bytes", 1 << 70, "bytes"),
        ("cluster", 3, "1, 2, 4 or None"),
    ],
)  # fmt: skip
def test_options_of_wrong_types_and_values_are_refused(name: str, value: Any, nearest: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        Options(**{name: value})
    assert error.value.where == name
    assert repr(value) in error.value.message
    assert nearest in error.value.help


@pytest.mark.parametrize("text", ["²", "٣", "9" * 5000, "-1", "0", "1e3", "\0", ""])
def test_thread_counts_in_the_environment_that_are_no_numbers_are_left_aside(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", {"OMP_NUM_THREADS": text})
    assert environment_threads() is None


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("x", (None, 4), "f32"), ("x", (8.0, 4), "f32"), ("x", 4, "f32"), ("x", "4", "f32"), ("x", (True,), "f32"),
        ("x", (-1,), "f32"), ("x", (3,), "float31"), ("x", (3,), np.complex64), ("x", (3,), None), (3, (3,), "f32"),
        ("", (3,), "f32"), ("taken", (3,), "f32"),
    ],
)  # fmt: skip
def test_inputs_that_are_none_are_refused(name: Any, shape: Any, dtype: Any) -> None:
    b = GraphBuilder()
    b.input("taken", (np.int64(3),), "f32")
    with pytest.raises(InvalidExpression):
        b.input(name, shape, dtype)


def test_graphs_of_other_tensors_or_without_outputs_are_refused() -> None:
    b, other = GraphBuilder(), GraphBuilder()
    x, foreign = b.input("x", (3,), "f32"), other.input("y", (3,), "f32")
    for outputs in ([elementwise.relu(foreign)], [foreign], x, None, [3], ["x"]):
        with pytest.raises(InvalidExpression):
            b.finish(outputs)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="no outputs"):
        compile_graph(GraphBuilder().finish([]))
    with pytest.raises(InvalidExpression, match="a list"):
        b.constant([1.0])  # type: ignore[arg-type]


def test_devices_and_options_without_effect_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="code for a CPU"):
        compile_graph(relu(), device="tpu")
    for options in ({"cache": False}, "fast", 3):
        with pytest.raises(InvalidArgument, match="options are a"):
            compile_graph(relu(), options=options)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="intrinsics are a list"):
        compile_graph(relu(), options=Options(intrinsics=[]))


class Raises:
    """An array of a library with a bug."""

    def __dlpack__(self, **_: Any) -> None:
        raise KeyError("no such buffer")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def test_arrays_whose_own_code_raises_are_named(module: tilewright.Module) -> None:
    with pytest.raises(InvalidArgument, match=r"cannot view this Raises.*no such buffer"):
        module(Raises())


@pytest.mark.parametrize("repeats", [1 << 62, 0, 1.5, True, None, "3"])
def test_numbers_of_runs_that_are_none_are_refused(repeats: Any, module: tilewright.Module) -> None:
    with pytest.raises(InvalidArgument, match="repeats is"):
        module.profile(repeats=repeats)


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 70), 1 << 70), st.floats(), st.text(max_size=3), st.binary(max_size=3),
    st.sampled_from([(), (3,), [3], {}, (None,), np.float32, np.zeros(3, np.float32), np.zeros((2, 2)), object()]),
    st.builds(Tensor, st.just("x"), st.just((3,)), st.just("f32")),
)  # fmt: skip


@given(st.data())
@settings(max_examples=tries(20, full=200), deadline=None)
def test_calls_with_anything_end_in_errors_of_ours(module: tilewright.Module, data: st.DataObject) -> None:
    """Wrong types and absurd numbers in public calls: a result, or a CompileError."""
    arguments = data.draw(st.lists(ANYTHING, min_size=3, max_size=3))
    first, second, third = arguments
    b = GraphBuilder()
    known = data.draw(st.sampled_from([field.name for field in fields(Options) if field.name != "cache_dir"]))
    calls: list[Callable[[], object]] = [
        lambda: Options(**{known: first}),
        lambda: b.input(first, second, third),
        lambda: b.constant(first),
        lambda: b.finish(first),
        lambda: module(first),
        lambda: module(np.zeros(3, np.float32), out=first),
        lambda: module.profile(first) if first is not None else None,
        lambda: compile_graph(relu(), threads=-1 if first is None else first),
        lambda: tilewright.compile(first if not isinstance(first, Graph) else None, second),
        lambda: tilewright.load(first),
    ]
    call = data.draw(st.sampled_from(calls))
    with suppress(CompileError):
        call()
