"""Which factor of a product has the vectors on a CPU, where tensors are given row by row."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from tilewright.expr.core import Axis, Compute, Tensor
from tilewright.instruction.cpu_products import CpuProducts
from tilewright.instruction.products import MappedProduct, mappings_of
from tilewright.intrinsics.registry import standard
from tilewright.machine import resolve_cpu

MACHINE = resolve_cpu("znver1")


def pointwise(size: int, channels: int, filters: int) -> Compute:
    """A convolution of 1 x 1: y[k, i, j] = sum over c of x[c, i, j] * w[k, c]."""
    k, i, j, c = Axis("k", filters), Axis("i", size), Axis("j", size), Axis("c", channels)
    x, w = Tensor("x", (channels, size, size), "f32"), Tensor("w", (filters, channels), "f32")
    output = Tensor("y", (filters, size, size), "f32")
    return Compute(output, (k, i, j), x[c, i, j] * w[k, c], (c,), "sum")


def target(given: Collection[str] = (), results: Collection[str] = ()) -> CpuProducts:
    return CpuProducts(standard(), MACHINE, {"w"}, given, results)


def best(compute: Compute, machine: CpuProducts) -> str:
    return str(mappings_of(compute, machine)[0][0])


def mapped(compute: Compute, text: str, machine: CpuProducts) -> MappedProduct:
    return next(each for each in mappings_of(compute, machine)[0] if str(each) == text)


def test_vectors_run_along_pixels_where_both_images_are_given() -> None:
    """Along filters, the image would be copied with its channels innermost, and the result back."""
    compute = pointwise(56, 192, 128)
    assert best(compute, target({"x"}, {"y"})) == "(k|j|c) on fma_8_f32_f32"
    assert best(compute, target()) == "(ij|k|c) on fma_8_f32_f32"


@pytest.mark.parametrize("size", [7, 14, 28])
def test_vectors_run_along_filters_where_a_row_of_pixels_fills_no_vectors(size: int) -> None:
    assert best(pointwise(size, 512, 512), target({"x"}, {"y"})) == "(ij|k|c) on fma_8_f32_f32"


def test_what_is_read_across_lines_is_waited_for_or_copied() -> None:
    """192 lines, 12,544 bytes apart, lie in 16 sets of L1, which have 128; all of L1 has 512."""
    along_filters = "(ij|k|c) on fma_8_f32_f32"
    for channels, results, waits in ((64, {"y"}, False), (192, {"y"}, True), (192, set[str](), False)):
        compute = pointwise(56, channels, 128)
        machines = target(results=results), target({"x"}, results)
        costs = [machine.cost(mapped(compute, along_filters, machine)).cycles for machine in machines]
        assert costs[0] is not None
        assert costs[1] is not None
        assert (costs[1] > costs[0]) == waits
        assert costs[1] - costs[0] <= 30 * 56 * 56 * channels * 4 / 64


def test_a_result_that_is_given_row_by_row_is_copied() -> None:
    compute, along_filters = pointwise(56, 64, 64), "(ij|k|c) on fma_8_f32_f32"
    free, output = (each.cost(mapped(compute, along_filters, each)) for each in (target(), target(results={"y"})))
    assert (free.bytes, output.bytes) == (0, 2 * compute.output.size_bytes)
    assert output.cycles is not None
    assert free.cycles is not None
    assert output.cycles - free.cycles >= 30 * compute.output.size_bytes / 64
