"""From tile form to PTX that runs: layouts, expansion, LLVM, the assembler where it is found, the emulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.working_passes import share, working_passes
from tilewright.codegen.nvptx import ptxas
from tilewright.codegen.nvptx.pipeline import PtxCode, generate
from tilewright.codegen.nvptx.target import Target
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.passes.gpu.distribution.tests import programs
from tilewright.kernel.passes.table import run_pipeline
from tilewright.kernel.text import parse_module
from tilewright.runtime import emulated

RNG = np.random.default_rng(0)
CPUS = ["sm_80", "sm_90a"]


def compiled(text: str, cpu: str, disable: Sequence[str] = ()) -> PtxCode:
    module = parse_module(text)
    module.attributes["tile.target"] = Target(cpu, ("ptx80",)).attribute()
    run_pipeline(module, "gpu", disable, verify_each=True)
    code = generate(module)
    resources = ptxas.check(code.ptx, cpu)
    if resources is not None:
        assert resources["k"].spills == 0
    return code


def check(text: str, arrays: Sequence[np.ndarray], cpu: str, exact: bool = True, disable: Sequence[str] = ()) -> Any:
    """The counts of a run in the emulator that found nothing, and gave what the interpreter gives on whole tiles."""
    return check_code(compiled(text, cpu, disable), arrays, interpreted(text, arrays), exact)


def interpreted(text: str, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The arrays after a run of the program on whole tiles."""
    wanted = [array.copy() for array in arrays]
    run_kernel(parse_module(text), "k", wanted)
    return wanted


def check_code(code: PtxCode, arrays: Sequence[np.ndarray], wanted: Sequence[np.ndarray], exact: bool = True) -> Any:
    """The counts of a run in the emulator that found nothing, and gave these arrays."""
    found = [array.copy() for array in arrays]
    run = emulated.run_kernel(code, "k", found)
    assert run.diagnostics == []
    for one, other in zip(wanted, found, strict=True):
        if exact:
            np.testing.assert_array_equal(other, one)
        else:
            np.testing.assert_allclose(other, one, rtol=2e-5, atol=1e-5)
    ((_, counts),) = run.counts
    return counts


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("elements", [1, 255, 1000])
def test_element_work(elements: int, cpu: str) -> None:
    x = RNG.standard_normal(elements).astype(np.float32)
    check(programs.add(elements, 256), [x, np.zeros_like(x)], cpu, exact=False)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(("rows", "columns"), [(8, 128), (1, 512), (4, 8)])
def test_softmax(rows: int, columns: int, cpu: str) -> None:
    x = RNG.standard_normal(2 * rows * columns).astype(np.float32)
    counts = check(programs.softmax(2, rows, columns), [x, np.zeros_like(x)], cpu, exact=False)
    assert counts.total("shared", "conflicts") == 0


def test_a_transposition_has_no_bank_conflicts_and_writes_whole_sectors() -> None:
    values = RNG.standard_normal(64 * 64).astype(np.float16)
    counts = check(programs.transposition(64, 64, "f16"), [values, np.zeros_like(values)], "sm_80")
    assert counts.total("shared", "conflicts") == 0
    assert counts.total("global store", "transactions") == values.nbytes // 32


@pytest.mark.parametrize(("element", "dtype"), [("f32", np.float32), ("i32", np.int32)])
def test_lanes_of_a_warp_exchange_what_they_hold(element: str, dtype: type) -> None:
    """One warp turns a tile: by shuffles, nothing lies in shared memory."""
    text = f"""
    builtin.module {{
      tile.func @k(%a: memref<128x{element}>, %c: memref<128x{element}>) grid [1]
          attributes {{warps = array<i64: 1, 1>}} {{
        %o = arith.constant 0 : index
        %x = tile.load %a[%o] strides [1] align 16 : memref<128x{element}> -> tensor<128x{element}>
        %y = tile.reshape %x : tensor<128x{element}> -> tensor<16x8x{element}>
        tile.store %y, %c[%o] strides [1, 16] align 16 : tensor<16x8x{element}>, memref<128x{element}>
        tile.return
      }}
    }}"""
    values = np.arange(128).astype(dtype)
    found = compiled(text, "sm_80")
    assert "shfl.sync" in found.ptx
    assert "bar.sync" not in found.ptx
    check(text, [values, np.zeros_like(values)], "sm_80")


@pytest.mark.covering(1)
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("ahead", [True, False], ids=["copies ahead", "one buffer"])
@pytest.mark.parametrize("block", [(64, 64, 32), (128, 64, 64), (32, 32, 16)], ids=str)
def test_products_through_matrix_loads(block: tuple[int, int, int], ahead: bool, cpu: str) -> None:
    """Small whole numbers: exact in any order."""
    m, n, k = 128, 64, 128
    a, b = (RNG.integers(-3, 4, size).astype(np.float16) for size in (m * k, k * n))
    text, disable = programs.matmul((m, n, k), block), () if ahead else ("pipeline-loads",)
    arrays, code = [a, b, np.zeros(m * n, np.float32)], compiled(text, cpu, disable)
    counts = check_code(code, arrays, interpreted(text, arrays))
    assert "ldmatrix.sync.aligned.m8n8.x4.shared.b16" in code.ptx
    assert "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16" in code.ptx
    assert ("cp.async" in code.ptx) == ahead
    assert counts.total("shared", "conflicts") == 0
    assert counts.total("global", "transactions") == counts.total("global", "fewest")
    if ahead:  # every row of a tile is copied as a whole: its lines of 128 bytes are touched once
        of_a, of_b = m * (k // block[2]) * -(-2 * block[2] // 128), k * (n // block[1]) * -(-2 * block[1] // 128)
        assert counts.total("shared", "lines") == of_a * (n // block[1]) + of_b * (m // block[0])


@pytest.mark.parametrize(
    ("part", "text", "sizes"),
    [
        (0, programs.matmul((64, 64, 64), (64, 32, 32)), (64, 64, 64)),
        (1, programs.ragged_matmul((70, 45, 52), (64, 32, 32)), (70, 45, 52)),
    ],
    ids=["whole", "ragged"],
)
def test_every_optimisation_can_be_switched_off(part: int, text: str, sizes: tuple[int, int, int]) -> None:
    """On whole tiles and on a size that no tile divides: each of those that change the program, on one of them."""
    m, n, k = sizes
    a, b = (RNG.integers(-3, 4, size).astype(np.float16) for size in (m * k, k * n))
    module = parse_module(text)
    module.attributes["tile.target"] = Target("sm_80", ("ptx80",)).attribute()
    working = working_passes(module)
    assert set(working) >= {"pipeline-loads", "allocate-shared", "barriers", "cse"}
    arrays = [a, b, np.zeros(m * n, np.float32)]
    wanted = interpreted(text, arrays)
    for name in share(working, part, 2):
        check_code(compiled(text, "sm_80", (name,)), arrays, wanted)


def test_the_same_program_gives_the_same_text() -> None:
    text = programs.matmul((64, 64, 64), (64, 64, 32))
    assert compiled(text, "sm_80").ptx == compiled(text, "sm_80").ptx
