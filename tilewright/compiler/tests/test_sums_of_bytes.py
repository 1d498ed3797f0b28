"""Sums of integers along a vector, which LLVM has instructions for: products and differences of bytes and words."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.compiler.compile import compile_graph
from tilewright.expr.dtypes import numpy_dtype
from tilewright.expr.evaluate import evaluate
from tilewright.expr.text import parse_graph
from tilewright.options import Options

TYPES = [("u8", "u8"), ("u8", "i8"), ("i8", "i8"), ("i16", "i16")]
BODIES = {"products": "i32(x[i, k]) * i32(w[i, k])", "differences": "abs(i32(x[i, k]) - i32(w[i, k]))"}


@pytest.mark.parametrize("types", TYPES, ids="-".join)
@pytest.mark.parametrize("body", BODIES)
def test_a_row_is_summed_whole(body: str, types: tuple[str, str]) -> None:
    """LLVM 22 lost three of four sums of a `vpdpbusd`, and stopped at differences of bytes."""
    for extent in (4, 8, 16, 24, 32):
        inputs = "\n".join(f"input {name}: {type_}[1, {extent}]" for name, type_ in zip("xw", types, strict=True))
        graph = parse_graph(f"graph g\n{inputs}\ny: i32[i:1] += {BODIES[body]} over k:{extent}\noutput y\n")
        generator = np.random.default_rng(extent)
        limits = [np.iinfo(numpy_dtype(type_)) for type_ in types]
        values = [generator.integers(each.min, each.max + 1, (1, extent)).astype(each.dtype) for each in limits]
        found = compile_graph(graph, threads=1, options=Options(cache=False))(*values)
        np.testing.assert_array_equal(found, evaluate(graph, values)[0])
