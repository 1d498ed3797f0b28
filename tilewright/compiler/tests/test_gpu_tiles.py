"""Modules for a GPU with the few best tiles of a product: what a tuner measures."""

from __future__ import annotations

from tilewright.compiler.compile import build
from tilewright.compiler.gpu_tiles import variants
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import linalg
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.options import Options

OPTIONS = Options(cache=False)


def product() -> Graph:
    b = GraphBuilder()
    return b.finish([linalg.matmul(b.input("x", (256, 128), "f16"), b.input("y", (128, 256), "f16"))])


def machine() -> Gpu:
    found = resolve("sm_80")
    assert isinstance(found, Gpu)
    return found


def test_the_first_variant_is_what_compile_makes() -> None:
    """Plan and code: both share one place in the cache."""
    (name, first), (other, second) = variants(product(), machine(), OPTIONS, 2)
    plain = build(product(), machine(), 1, OPTIONS)
    assert first.plan == plain.plan
    assert first.code == plain.code
    assert name in plain.plan
    assert "it was chosen" not in plain.plan
    assert "it was chosen" in second.plan
    assert other != name
    assert other in second.plan
    assert second.code != first.code


def test_there_are_no_more_variants_than_tiles() -> None:
    b = GraphBuilder()
    graph = b.finish([linalg.matmul(b.input("x", (1, 8), "f32"), b.input("y", (8, 1), "f32"))])
    assert [name for name, _ in variants(graph, machine(), OPTIONS)] == [""]
