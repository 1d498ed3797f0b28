"""Products that share a factor, as one kernel of a GPU: results, what is stored, and the module compiled again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.compiler.compile import compile_graph, plan_graph, rebuilt, resolve_target
from tilewright.compiler.stored import stored_graph
from tilewright.expr.core import Tensor
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import conv, elementwise, linalg, shape
from tilewright.options import Options
from tilewright.runtime.module import Module

OPTIONS = Options(cache=False)
ROWS, WIDTHS = 17, (32, 48, 32)


def values(*extents: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).uniform(-1, 1, extents).astype(np.float16)


def branches() -> Graph:
    """Three products of one matrix with a bias each; two are multiplied with each other, the third with them."""
    b = GraphBuilder("g")
    x = b.input("x", (ROWS, 64), "f16")
    heads: list[Tensor] = []
    for number, width in enumerate(WIDTHS):
        y = linalg.matmul(x, b.constant(values(64, width, seed=number), f"w{number}"), accumulate="f32")
        heads.append(elementwise.binary(y, b.constant(values(width, seed=number), f"b{number}"), "add"))
    scores = linalg.matmul(heads[0], heads[2], transpose_b=True)
    return b.finish([linalg.matmul(scores, heads[1])])


@pytest.mark.parametrize("machine", ["sm_80", "sm_90a"])
def test_branches_of_one_matrix_are_one_kernel(machine: str) -> None:
    graph = branches()
    module = compile_graph(graph, machine, options=OPTIONS, device="emulator")
    names = [launch.name for launch in module.manifest.launches]
    assert len([name for name in names if "combined" in name]) == 1
    x = values(ROWS, 64)
    (expected,) = evaluate(graph, [x])
    found = module(x)
    np.testing.assert_allclose(found, expected, rtol=0.02, atol=0.02 * float(np.abs(expected).max()))


def test_constants_are_stored_once_and_found_again() -> None:
    """The module is compiled again for a CPU, on which each product is a kernel of its own."""
    graph = branches()
    artifact = compile_graph(graph, "sm_80", options=OPTIONS, device="emulator").artifact
    held = stored_graph(artifact)
    for name, array in graph.constants.items():
        np.testing.assert_array_equal(held.constants[name], array)
    numbers = sum(array.nbytes for array in graph.constants.values())
    assert artifact.manifest.constants_bytes < 1.1 * numbers
    again = rebuilt(artifact, "host", 1, OPTIONS)
    assert not [launch.name for launch in again.manifest.launches if "combined" in launch.name]
    x = values(ROWS, 64)
    (expected,) = evaluate(graph, [x])
    found = Module(again, threads=1)(x)
    np.testing.assert_allclose(found, expected, rtol=0.02, atol=0.02 * float(np.abs(expected).max()))


@pytest.mark.parametrize("machine", ["sm_80", "sm_90a"])
def test_windows_with_padding_read_parts_of_what_was_combined(machine: str) -> None:
    """Branches of 1 x 1 convolutions of one image, each read by a window that reaches beyond the image."""
    b = GraphBuilder("g")
    x = b.input("x", (1, 16, 5, 7), "f16")
    results = []
    for number, width in enumerate((16, 24)):
        w = b.constant(values(width, 16, 1, 1, seed=number), f"w{number}")
        y = elementwise.relu(conv.conv(x, w, b.constant(values(width, seed=number), f"b{number}"), accumulate="f32"))
        v = b.constant(values(8, width, 3, 3, seed=number), f"v{number}")
        results.append(conv.conv(y, v, pads=1, accumulate="f32"))
    graph = b.finish([shape.concat(results, axis=1)])
    module = compile_graph(graph, machine, options=OPTIONS, device="emulator")
    assert [launch.name for launch in module.manifest.launches if "combined" in launch.name]
    image = values(1, 16, 5, 7)
    (expected,) = evaluate(graph, [image])
    for _ in range(2):
        np.testing.assert_allclose(module(image), expected, rtol=0.02, atol=0.02 * float(np.abs(expected).max()))


def test_the_pass_can_be_left_out() -> None:
    plan = plan_graph(
        branches(), resolve_target("sm_80", OPTIONS), 1, Options(cache=False, disable=("combine-products",))
    )
    assert not [kernel.name for kernel in plan.kernels if "combined" in kernel.name]


@pytest.mark.parametrize("machine", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("begin", [0, 32])
def test_a_product_of_two_parts_of_one_tensor_fits_shared_memory(machine: str, begin: int) -> None:
    """Each factor has a stage of its own, of which one holds the tile of that factor and no more."""
    b = GraphBuilder("g")
    x = b.input("x", (40, 96), "f16")
    y = shape.slice_(x, [0, begin], [40, 64])
    graph = b.finish([linalg.matmul(shape.slice_(x, [0, 0], [40, 64]), y, transpose_b=True)])
    module = compile_graph(graph, machine, options=OPTIONS, device="emulator")
    given = values(40, 96)
    (expected,) = evaluate(graph, [given])
    np.testing.assert_allclose(module(given), expected, rtol=0.02, atol=0.1)
