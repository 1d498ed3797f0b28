"""Every family of kernels with one optimisation left out at a time: still right at ragged sizes, without diagnostics.

A pass that changes nothing where it runs is not left out, and code that was run already is not run again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from tests.covering import FULL, chosen
from tests.working_passes import share, working_passes
from tilewright.codegen.nvptx.pipeline import generate
from tilewright.compiler.gpu import tile_program
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.program import Placement
from tilewright.expr import dtypes
from tilewright.expr.core import Tensor, static_shape
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import conv, elementwise, linalg, norm, reduce
from tilewright.kernel.passes.table import pipeline
from tilewright.kernel.text import parse_module, print_module
from tilewright.kernel.verify import verify
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.options import Options
from tilewright.runtime import emulated

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Family:
    """A graph, the machines to which it is compiled, and how far a result may be off, of the largest one.

    A product is large where the machine has few `multiprocessors`: then its tiles are those of `wgmma`.
    """

    build: Callable[[GraphBuilder], Tensor]
    tolerance: float
    machines: tuple[str, ...] = ("sm_75", "sm_80", "sm_90a")
    input_precision: str = "ieee"
    multiprocessors: int | None = None


def product(m: int, n: int, k: int, dtype: str, transpose_b: bool = False) -> Callable[[GraphBuilder], Tensor]:
    def build(b: GraphBuilder) -> Tensor:
        x, w = b.input("x", (m, k), dtype), b.input("w", (n, k) if transpose_b else (k, n), dtype)
        wide: dict[str, Any] = {"accumulate": "i32", "out_dtype": "i32"} if dtype == "i8" else {}
        return linalg.matmul(x, w, transpose_b=transpose_b, **wide)

    return build


def convolution(b: GraphBuilder) -> Tensor:
    weights = (np.random.default_rng(1).integers(-3, 4, (9, 24, 3, 3)) / 8).astype(np.float16)
    return elementwise.relu(conv.conv(b.input("x", (1, 24, 4, 6), "f16"), b.constant(weights), pads=1, strides=2))


def biased(b: GraphBuilder) -> Tensor:
    """Larger than a tile along m, with a ragged end everywhere."""
    y = linalg.matmul(b.input("x", (65, 104), "f16"), b.input("w", (40, 104), "f16"), transpose_b=True)
    return elementwise.binary(y, b.input("c", (40,), "f16"), "add")


def layer_norm(b: GraphBuilder) -> Tensor:
    return norm.layer_norm(b.input("x", (3, 77), "f32"), b.input("g", (77,), "f32"), b.input("c", (77,), "f32"))


FAMILIES = {
    "convolution": Family(convolution, 4e-3),
    "softmax": Family(lambda b: norm.softmax(b.input("x", (3, 77), "f32")), 1e-5),
    "layer norm": Family(layer_norm, 1e-5),
    "sum of rows": Family(lambda b: reduce.reduce_sum(b.input("x", (5, 133), "f32"), (1,)), 1e-5),
    "largest of columns": Family(lambda b: reduce.reduce_max(b.input("x", (37, 13), "f32"), (0,)), 0.0),
    "s8": Family(product(21, 19, 136, "i8", transpose_b=True), 0.0),
    "tf32": Family(product(21, 19, 40, "f32", transpose_b=True), 4e-3, ("sm_80", "sm_90a"), input_precision="tf32"),
    "tf32x3": Family(product(21, 19, 40, "f32", transpose_b=True), 2e-6, ("sm_80", "sm_90a"), input_precision="tf32x3"),
    "f64": Family(product(13, 11, 40, "f64"), 1e-13, ("sm_80", "sm_90a")),
    "bias": Family(biased, 4e-3, ("sm_80",)),
    "wgmma": Family(product(72, 40, 120, "f16"), 4e-3, ("sm_90a",), multiprocessors=1),
}
INSTRUCTIONS = {
    "s8": "mma.sync", "tf32": ".tf32", "tf32x3": "mma.sync.aligned.m16n8k8.row.col.f32.tf32", "f64": "mma.sync",
    "wgmma": "wgmma.mma_async", "convolution": "mma",
}  # fmt: skip
WORKING = {
    ("s8", "sm_75"): {"pipeline-registers", "allocate-shared", "barriers"},
    ("s8", "sm_80"): {"pipeline-loads", "allocate-shared", "barriers"},
    ("tf32", "sm_80"): {"swizzle-blocks", "pipeline-loads", "prefetch-fragments", "round-to-tf32"},
    ("tf32x3", "sm_80"): {"swizzle-blocks", "pipeline-loads", "prefetch-fragments"},
    ("f64", "sm_80"): {"pipeline-loads", "prefetch-fragments"},
    ("convolution", "sm_80"): {"pipeline-loads", "prefetch-fragments", "barriers"},
    ("wgmma", "sm_90a"): {"tensor-copies", "pipeline-tensor-copies", "pipeline-wgmma", "warp-specialize"},
}
"""Passes that a family certainly is to be tried without."""


class Compiled:
    """A family for a machine as a tile program, with what it computes."""

    def __init__(self, family: Family, machine: str) -> None:
        b = GraphBuilder()
        self.family, self.graph = family, b.finish([family.build(b)])
        gpu = resolve(machine)
        assert isinstance(gpu, Gpu)
        if family.multiprocessors is not None:
            gpu = replace(gpu, multiprocessors=family.multiprocessors)
        plan = make_plan(self.graph, gpu, 1, Options(input_precision=family.input_precision))
        placement = Placement(plan)
        self.text, self.constants = print_module(tile_program(plan, placement, gpu)), placement.packed(plan)
        self.inputs = arrays_of(self.graph)
        self.wanted = evaluate(self.graph, self.inputs)[0]
        self.ran: set[str] = set()

    def program(self, disable: tuple[str, ...]) -> ModuleOp:
        module = parse_module(self.text)
        for each in pipeline("gpu", disable):
            each.apply(Context(), module)
        verify(module)
        return module

    def working(self) -> list[str]:
        """The optimisations that change the program."""
        return working_passes(parse_module(self.text))

    def check(self, disable: tuple[str, ...]) -> str:
        """Run the code without some passes, unless it ran before; gives it."""
        code = generate(self.program(disable))
        if code.ptx not in self.ran:
            self.ran.add(code.ptx)
            output = np.zeros(self.wanted.shape, self.wanted.dtype)
            assert emulated.run_module(code, self.inputs, [output], self.constants).diagnostics == []
            wanted = self.wanted.astype(np.float64)
            limit = self.family.tolerance * max(1.0, float(np.abs(wanted).max()))
            assert np.abs(output.astype(np.float64) - wanted).max() <= limit
        return code.ptx


def arrays_of(graph: Graph) -> list[Array]:
    rng, found = np.random.default_rng(0), []
    for tensor in graph.inputs:
        extents, dtype = static_shape(tensor.shape), dtypes.numpy_dtype(tensor.dtype)
        whole = rng.integers(-3, 4, extents) if tensor.dtype[0] in "iu" else rng.standard_normal(extents)
        found.append(whole.astype(dtype))
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_every_optimisation_can_be_switched_off(name: str) -> None:
    """On every machine nothing and what certainly matters, of the others a third on one machine; all with `--full`."""
    cases: list[tuple[str, str]] = []
    compiled = {machine: Compiled(FAMILIES[name], machine) for machine in FAMILIES[name].machines}
    for machine, one in compiled.items():
        ptx, working = one.check(()), one.working()
        assert INSTRUCTIONS.get(name, "") in ptx
        assert len(working) >= 3
        assert WORKING.get((name, machine), set()) <= set(working)
        cases += [(machine, optimisation) for optimisation in working]
    certain = [(machine, each) for machine in compiled for each in sorted(WORKING.get((name, machine), ()))]
    tried = share(list(dict.fromkeys(each for _, each in cases)), list(FAMILIES).index(name) % 3, 3)
    once = [cases[number] for number in chosen(cases, strength=1)]
    kept = cases if FULL else [*certain, *(case for case in once if case[1] in tried)]
    for machine, optimisation in dict.fromkeys(kept):
        try:
            compiled[machine].check((optimisation,))
        except AssertionError as error:
            raise AssertionError(f"{machine} without {optimisation}: {error}") from error
