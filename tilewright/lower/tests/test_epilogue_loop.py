"""Epilogues of products as loops over the vectors of register tiles: right for every tile, and made by the schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.compiler import cpu_products
from tilewright.compiler.compile import build
from tilewright.compiler.make_plan import make_plan
from tilewright.decision import ASKED, Decision
from tilewright.expr.core import Tensor, apply
from tilewright.expr.dtypes import numpy_dtype
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import conv, elementwise
from tilewright.machine import host, resolve_cpu
from tilewright.operator.product_point import ProductPoint
from tilewright.operator.product_tree import product_tree
from tilewright.options import Options
from tilewright.runtime.module import Module
from tilewright.tiles.product import Product, product_of

Array = np.ndarray[Any, Any]
EPILOGUES: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": elementwise.gelu,
    "softplus": elementwise.softplus,
    "gate": lambda y: elementwise.swish(y) * y,
    "place": lambda y: elementwise.map_elements(
        [y], lambda v: apply("select", v < 0.0, apply("exp", v), apply("tanh", v))
    ),
}


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every epilogue is a loop over pairs of vectors where a row has such, on every machine."""
    chosen = Decision("epilogue", "a loop", ASKED)

    def vectors(work: Product, point: ProductPoint, *given: object) -> tuple[int, Decision]:
        whole = point.tile(work)[work.columns.name] % (2 * work.lanes) == 0
        return 2 if whole else 1, chosen

    monkeypatch.setattr(cpu_products, "epilogue_vectors", vectors)


def product(epilogue: str, m: int, k: int, n: int, dtype: str = "f32") -> tuple[Graph, list[Array]]:
    generator = np.random.default_rng(0)
    numbers = numpy_dtype(dtype)
    b = GraphBuilder()
    x = b.input("x", (m, k), dtype)
    rest = b.input("rest", (m, n), dtype)
    w = b.constant((generator.standard_normal((k, n)) * k**-0.5).astype(numbers), "w")
    bias = b.constant(generator.standard_normal(n).astype(numbers), "bias")
    graph = b.finish([EPILOGUES[epilogue](x @ w + bias) + rest])
    return graph, [generator.standard_normal(shape).astype(numbers) for shape in ((m, k), (m, n))]


def agree(graph: Graph, inputs: list[Array], tolerance: float, threads: int = 1) -> str:
    """Hold machine code against the evaluator; the text of the tile program."""
    artifact = build(graph, host(), threads, Options(cache=False))
    found = Module(artifact, threads=threads)(*inputs)
    (expected,) = evaluate(graph, inputs, precise=True, wide=True)
    assert np.abs(np.asarray(found, np.float64) - np.asarray(expected, np.float64)).max() <= tolerance
    return artifact.program


@pytest.mark.covering(1)
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize(("m", "k", "n"), [(24, 16, 96), (13, 9, 77), (50, 33, 200), (7, 5, 11), (29, 3, 17)])
def test_products_of_odd_sizes(epilogue: str, m: int, k: int, n: int) -> None:
    graph, inputs = product(epilogue, m, k, n)
    assert "tile.empty_registers" in agree(graph, inputs, 2e-5)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("dtype", "tolerance"), [("f64", 1e-12), ("bf16", 0.05), ("f16", 0.01)])
def test_other_types(dtype: str, tolerance: float) -> None:
    graph, inputs = product("gelu", 21, 18, 75, dtype)
    assert "tile.empty_registers" in agree(graph, inputs, tolerance)


@pytest.mark.usefixtures("always")
def test_sums_in_blocks_of_k() -> None:
    graph, inputs = product("gelu", 61, 5003, 40)
    plan = make_plan(graph, host(), 1)
    (tree,) = [product_tree(each.scheduled) for each in plan.kernels if product_of(each.scheduled)]
    assert tree.k_block > 0
    assert tree.epilogue_vectors
    agree(graph, inputs, 5e-5)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("stride", [1, 2])
def test_tiles_over_rows_and_columns_of_an_image(stride: int) -> None:
    generator = np.random.default_rng(0)
    b = GraphBuilder()
    image = generator.standard_normal((2, 6, 11, 9), np.float32)
    x = b.input("x", image.shape, "f32")
    w = b.constant(generator.standard_normal((40, 6, 3, 3), np.float32) / 7, "w")
    graph = b.finish([elementwise.mish(conv.conv(x, w, strides=stride, pads=1))])
    assert "tile.empty_registers" in agree(graph, [image], 2e-5, threads=2)


def test_what_fits_into_registers_is_unrolled() -> None:
    generator = np.random.default_rng(0)
    b = GraphBuilder()
    x = generator.standard_normal((24, 16), np.float32)
    w = b.constant(generator.standard_normal((16, 96), np.float32), "w")
    graph = b.finish([elementwise.relu(b.input("x", x.shape, "f32") @ w)])
    assert "tile.empty_registers" not in agree(graph, [x], 2e-5)


def test_the_plan_and_its_account_name_the_loop() -> None:
    plan = make_plan(product("gelu", 24, 16, 96)[0], resolve_cpu("znver5"), 1)
    (found,) = [each for each in plan.decisions if each.subject.startswith("epilogue of")]
    assert found.chosen.startswith("a loop over the vectors")
    assert "registers beside" in found.reason
    assert [each["schedule"]["epilogue_vectors"] for each in plan.products.values()] == [2]
