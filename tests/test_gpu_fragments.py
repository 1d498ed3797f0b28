"""Products on fragments that hardware does not tell: from tiles to the assembler, the interpreter and the emulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.working_passes import share, working_passes
from tilewright.codegen.nvptx import ptxas
from tilewright.codegen.nvptx.pipeline import PtxCode, generate
from tilewright.codegen.nvptx.target import target_for
from tilewright.errors import InvalidProgram
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.passes.gpu.distribution.tests.programs import matmul, ragged_matmul
from tilewright.kernel.passes.table import run_pipeline
from tilewright.kernel.text import parse_module
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.runtime import emulated

RNG = np.random.default_rng(0)
F16 = "wmma_16x16x16_f16_f32"
# Of every record the elements in memory, those of a and b as NumPy has them, and those of c in both.
TYPES: Mapping[str, tuple[str, Any, str, Any]] = {
    F16: ("f16", np.float16, "f32", np.float32),
    "wmma_16x16x16_f16_f16": ("f16", np.float16, "f16", np.float16),
    "wmma_32x8x16_f16_f32": ("f16", np.float16, "f32", np.float32),
    "wmma_8x32x16_f16_f16": ("f16", np.float16, "f16", np.float16),
    "wmma_16x16x16_bf16_f32": ("bf16", ml_dtypes.bfloat16, "f32", np.float32),
    "wmma_16x16x16_s8_s32": ("i8", np.int8, "i32", np.int32),
    "wmma_32x8x16_s8_s32": ("i8", np.int8, "i32", np.int32),
    "wmma_16x16x16_u8_s32": ("i8", np.int8, "i32", np.int32),
    "wmma_16x16x8_tf32_f32": ("f32", np.float32, "f32", np.float32),
    "wmma_8x8x4_f64_f64": ("f64", np.float64, "f64", np.float64),
}


def compiled(
    text: str, machine: str, disable: Sequence[str] = (), options: Mapping[str, Mapping[str, Any]] | None = None,
    arrays: Sequence[Any] = (),
) -> PtxCode:  # fmt: skip
    """Code of a program, which the interpreter has run in distributed form and the assembler takes without spills."""
    gpu, module = resolve(machine), parse_module(text)
    assert isinstance(gpu, Gpu)
    module.attributes["tile.target"] = target_for(gpu).attribute()
    run_pipeline(module, "gpu", disable, verify_each=True, options=options)
    if len(arrays):
        run_kernel(module, "k", arrays)
    code = generate(module)
    resources = ptxas.check(code.ptx, machine)
    if resources is not None:
        assert resources["k"].spills == 0
    return code


def check(text: str, arrays: Sequence[Any], machine: str = "sm_80", **given: Any) -> tuple[Any, str]:
    """Counts and PTX of a run without diagnostics that gives what the interpreter gives of tiles and of threads."""
    wanted, threads, found = ([array.copy() for array in arrays] for _ in range(3))
    run_kernel(parse_module(text), "k", wanted)
    code = compiled(text, machine, arrays=threads, **given)
    run = emulated.run_kernel(code, "k", found)
    assert run.diagnostics == []
    for one, other, third in zip(wanted, threads, found, strict=True):
        np.testing.assert_array_equal(other, one)
        np.testing.assert_array_equal(third, one)
    ((_, counts),) = run.counts
    return counts, code.ptx


def operands(sizes: tuple[int, int, int], intrinsic: str) -> list[Any]:
    """Small whole numbers, or all that bytes may be: their sums are exact in any order and type."""
    m, n, k = sizes
    _, factor, _, total = TYPES[intrinsic]
    low, high = (-128, 128) if factor is np.int8 else (-2, 3)
    a, b = (RNG.integers(low, high, count).astype(factor) for count in (m * k, k * n))
    return [a, b, np.zeros(m * n, total)]


def program(kind: Any, sizes: tuple[int, int, int], block: tuple[int, int, int], intrinsic: str, **given: Any) -> str:
    dtype, _, result, _ = TYPES[intrinsic]
    text = str(kind(sizes, block, intrinsic, dtype, result=result, **given))
    return text.replace('unsigned ""', 'unsigned "ab"') if "_u8_" in intrinsic else text


@pytest.mark.parametrize("intrinsic", TYPES)
def test_whole_tiles(intrinsic: str) -> None:
    sizes = (64, 64, 64)
    counts, ptx = check(program(matmul, sizes, (64, 64, 32), intrinsic), operands(sizes, intrinsic))
    if "_32x8" not in intrinsic:  # 8 columns of f32 are a sector, of the rows of a tile whose result passes through
        assert counts.total("global", "transactions") == counts.total("global", "fewest")
    if "16x16" in intrinsic:
        assert counts.total("shared", "conflicts") == 0
    assert "wmma.mma.sync" in ptx
    assert "cp.async" in ptx
    assert "mma.sync.aligned.m16n8" not in ptx


@pytest.mark.covering(1)
@pytest.mark.parametrize("sizes", [(70, 45, 52), (64, 64, 80)])
@pytest.mark.parametrize("transposed", ["", "a", "b", "ab"])
@pytest.mark.parametrize("intrinsic", [F16, "wmma_16x16x16_s8_s32", "wmma_16x16x8_tf32_f32", "wmma_32x8x16_f16_f32"])
def test_ragged_sizes_in_every_order(intrinsic: str, transposed: str, sizes: tuple[int, int, int]) -> None:
    text = program(ragged_matmul, sizes, (64, 32, 32), intrinsic, transposed=transposed)
    check(text, operands(sizes, intrinsic))


def test_machines_without_copies_and_matrix_loads() -> None:
    for kind, sizes in ((matmul, (64, 64, 96)), (ragged_matmul, (70, 45, 52))):
        _, ptx = check(program(kind, sizes, (64, 32, 32), F16), operands(sizes, F16), "sm_75")
        assert "wmma.load.a" in ptx
        assert "cp.async" not in ptx


@pytest.mark.parametrize(("part", "kind", "sizes"), [(1, matmul, (64, 32, 64)), (0, ragged_matmul, (70, 29, 52))])
def test_every_optimisation_can_be_switched_off(part: int, kind: Any, sizes: tuple[int, int, int]) -> None:
    """Each of those that change the program, on one of the two."""
    text, gpu = program(kind, sizes, (64, 32, 32), F16), resolve("sm_80")
    assert isinstance(gpu, Gpu)
    module = parse_module(text)
    module.attributes["tile.target"] = target_for(gpu).attribute()
    working = working_passes(module)
    assert set(working) >= {"pipeline-loads", "barriers", "cse"}
    for name in share(working, part, 2):
        check(text, operands(sizes, F16), disable=(name,))


@pytest.mark.covering
@pytest.mark.parametrize("intrinsic", [F16, "mma_m16n8k16_f16_f32"])
@pytest.mark.parametrize("stage_c", ["off", "on"])
@pytest.mark.parametrize(("kind", "sizes"), [(matmul, (64, 64, 64)), (ragged_matmul, (70, 45, 52))])
def test_c_through_shared_memory_or_not(kind: Any, sizes: tuple[int, int, int], stage_c: str, intrinsic: str) -> None:
    """Both kinds of fragments are stored directly, or leave through shared memory, whole or under bounds."""
    text, options = kind(sizes, (64, 32, 32), intrinsic), {"assign-layouts": {"stage_c": stage_c}}
    _, ptx = check(text, operands(sizes, F16), options=options)
    if kind is matmul and stage_c == "off":
        assert "st.shared" not in ptx
    if intrinsic == F16:
        direct = kind is matmul and stage_c == "off"
        assert ("wmma.store.d.sync.aligned.row.m16n16k16.global" in ptx) == direct
        assert ("wmma.store.d.sync.aligned.row.m16n16k16.shared" in ptx) != direct


def test_factors_from_global_memory() -> None:
    """With `promote` off warps load fragments of whole matrices where they are; of ragged ones, through rows."""
    options = {"assign-layouts": {"promote": False}}
    _, ptx = check(matmul((64, 64, 64), (64, 32, 32), F16), operands((64, 64, 64), F16), options=options)
    assert "wmma.load.a.sync.aligned.row.m16n16k16.global" in ptx
    assert "shared" not in ptx
    check(ragged_matmul((70, 45, 52), (64, 32, 32), F16), operands((70, 45, 52), F16), options=options)


SIGNS = [
    ("wmma_16x16x16_u8_s32", "ab"), ("wmma_16x16x16_s8_s32", ""), ("mma_m16n8k32_u8_s32", "ab"),
    ("mma_m16n8k32_u8s8_s32", "a"), ("mma_m16n8k32_s8u8_s32", "b"), ("mma_m16n8k32_s8_s32", ""),
]  # fmt: skip


@pytest.mark.parametrize(("intrinsic", "unsigned"), SIGNS)
def test_bytes_are_read_with_the_sign_that_the_product_says(intrinsic: str, unsigned: str) -> None:
    sizes = (64, 64, 64)
    text = matmul(sizes, (64, 64, 32), intrinsic, "i8", result="i32")
    for said in ("", "a", "b", "ab"):
        given = text.replace('unsigned ""', f'unsigned "{said}"')
        if said == unsigned:
            check(given, operands(sizes, "wmma_16x16x16_s8_s32"))
        else:
            with pytest.raises(InvalidProgram, match=f'{intrinsic} reads a as .*: unsigned "{said}"') as caught:
                compiled(given, "sm_80")
            assert caught.value.help == f'unsigned "{unsigned}"'
