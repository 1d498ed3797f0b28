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
    first, second = variants(product(), machine(), OPTIONS, (0, 1))
    plain = build(product(), machine(), 1, OPTIONS)
    assert first.artifact.plan == plain.plan
    assert first.artifact.code == plain.code
    assert first.tile in plain.plan
    assert "it was chosen" not in plain.plan
    assert "it was chosen" in second.artifact.plan
    assert second.tile != first.tile
    assert second.tile in second.artifact.plan
    assert second.artifact.code != first.artifact.code


def test_variants_have_the_ranks_that_were_asked_for() -> None:
    found = list(variants(product(), machine(), OPTIONS, (0, 3, 7, 10**6)))
    assert len(found) == 3
    assert 0 < found[0].cycles <= found[1].cycles <= found[2].cycles


def test_there_are_no_more_variants_than_tiles() -> None:
    b = GraphBuilder()
    graph = b.finish([linalg.matmul(b.input("x", (1, 8), "f32"), b.input("y", (8, 1), "f32"))])
    assert [each.tile for each in variants(graph, machine(), OPTIONS)] == [""]
