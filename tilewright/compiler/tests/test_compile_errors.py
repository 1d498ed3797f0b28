"""What a compilation refuses, and wrong data that must not reach other memory."""

from __future__ import annotations

import errno
import mmap
from dataclasses import replace

import numpy as np
import pytest

from tilewright.compiler.compile import compile, compile_graph
from tilewright.errors import CompileError, InvalidArgument, InvalidExpression, InvalidFile
from tilewright.expr.core import Axis, Compute, Tensor
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import elementwise, indexing, linalg
from tilewright.options import Options

OPTIONS = replace(Options(), cache=False)


def relu(*extents: int) -> Graph:
    b = GraphBuilder("relu")
    return b.finish([elementwise.relu(b.input("x", extents, "f32"))])


@pytest.mark.parametrize("extents", [(1 << 20, 1 << 20), (1 << 40, 1 << 40), (1 << 62,)])
def test_absurd_size(extents: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument, match="at most 1 TiB"):
        compile_graph(relu(*extents), threads=1, options=OPTIONS)


def test_more_memory_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    b = GraphBuilder("product")
    x, y = (b.input(name, (1 << 12, 1 << 12), "f32") for name in "xy")
    graph = b.finish([linalg.matmul(x, y)])
    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(InvalidArgument, match=r"product: .* bytes of arena .* do not fit into the memory"):
        compile_graph(graph, threads=1, options=OPTIONS)


@pytest.mark.parametrize("machine", ["nosuch", "gfx1201", "edge", "", "/nonexistent.yaml"])
def test_machines_whose_code_does_not_run(machine: str) -> None:
    with pytest.raises(CompileError, match=r"machine|kind|read"):
        compile_graph(relu(3), machine, threads=1, options=OPTIONS)


def test_code_of_another_architecture_is_not_run() -> None:
    import platform

    other = "aarch64" if platform.machine() == "x86_64" else "x86-64-v2"
    with pytest.raises(InvalidFile, match="needs the CPU features"):
        compile_graph(relu(3), other, threads=1, options=OPTIONS)


@pytest.mark.parametrize("threads", [0, -1, 5000, True])
def test_number_of_threads(threads: int) -> None:
    with pytest.raises(InvalidArgument, match="1 to 1024"):
        compile_graph(relu(3), threads=threads, options=OPTIONS)


def test_read_outside_a_tensor() -> None:
    i, x = Axis("i", 5), Tensor("x", (3,), "f32")
    node = Compute(Tensor("y", (5,), "f32"), (i,), x[i])
    with pytest.raises(InvalidExpression, match=r"reads x.* with index"):
        compile(Graph((x,), (node.output,), (node,), {}, "outside"), threads=1, options=OPTIONS)


def test_deep_expression() -> None:
    i, x = Axis("i", 3), Tensor("x", (3,), "f32")
    body = x[i] + 1.0
    for _ in range(3000):
        body = body * 2.0
    node = Compute(Tensor("y", (3,), "f32"), (i,), body)
    with pytest.raises(InvalidExpression, match="nested too deeply"):
        compile(Graph((x,), (node.output,), (node,), {}, "deep"), threads=1, options=OPTIONS)


def test_long_chain_of_maps() -> None:
    """Four hundred maps in a row do not become one expression that Python cannot walk."""
    b = GraphBuilder("chain")
    x = y = b.input("x", (5,), "f32")
    for _ in range(400):
        y = elementwise.unary(y, "tanh")
    module = compile(b.finish([y]), threads=1, options=OPTIONS)
    expected = 1.0
    for _ in range(400):
        expected = np.tanh(expected)
    np.testing.assert_allclose(module(np.ones(x.shape, np.float32)), expected, rtol=400 * 2.0**-22)


def test_wrong_index_stays_inside_the_tensor() -> None:
    b = GraphBuilder("gather")
    x, indices = b.input("x", (4, 3), "f32"), b.input("i", (5,), "i64")
    module = compile(b.finish([indexing.gather(x, indices)]), threads=1, options=OPTIONS)
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    found = module(table, np.asarray([2, -1, 1 << 40, -(1 << 62), 7]))
    np.testing.assert_array_equal(found[:2], table[[2, -1]])
    assert np.isin(found, table).all()
