"""Machine code of the innermost loops of products: sums and addresses are in registers."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tilewright.codegen.cpu import pipeline
from tilewright.compiler.compile import build
from tilewright.expr import GraphBuilder
from tilewright.expr.ops import conv
from tilewright.kernel.text import parse_module
from tilewright.machine import resolve_cpu
from tilewright.options import Options


@pytest.mark.parametrize(
    ("size", "channels", "filters", "said"),
    [
        # Programs are rows of the image: LLVM kept an address for every element that the product broadcasts.
        (65, 192, 64, r"tile.func @conv\(.*\) grid \[7\]"),
        # Hints beside the product, whose loads all came first: LLVM held more of them than registers were left.
        (7, 512, 256, r"tile.prefetch"),
        # Taps begin where they meet the image: LLVM kept an address for every element that the product broadcasts.
        (28, 256, 64, r"arith.maxsi"),
    ],
)
def test_no_stack_memory_in_the_loop_of_a_product(size: int, channels: int, filters: int, said: str) -> None:
    b = GraphBuilder("image")
    weights = b.constant(np.ones((filters, channels, 3, 3), np.float32), "w")
    graph = b.finish([conv.conv(b.input("x", (1, channels, size, size), "f32"), weights, pads=(1, 1, 1, 1))])
    made = build(graph, resolve_cpu("x86-64-v4"), 1, Options(cache=False)).program
    assert re.search(said, made), "the case that is meant"
    loops = _loops(pipeline.assembly(parse_module(made)))
    products = [loop for loop in loops if sum("vfmadd" in instruction for instruction in loop) > 9]
    assert products
    for loop in products:
        assert not [instruction for instruction in loop if "(%rsp)" in instruction]


def _loops(assembly: str) -> list[list[str]]:
    """The instructions of each loop that is one basic block."""
    blocks = re.split(r"^(\.L\w+):.*$", assembly, flags=re.MULTILINE)
    found = []
    for label, text in zip(blocks[1::2], blocks[2::2], strict=True):
        lines = text.splitlines()
        ends = [number for number, line in enumerate(lines) if re.match(rf"\tj\w+\t{re.escape(label)}$", line)]
        if ends:
            found.append(lines[: ends[-1]])
    return found
