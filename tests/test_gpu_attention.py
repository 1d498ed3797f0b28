"""Attention as one program: a loop over two products with rescaling, from tile form to PTX that runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from tests.covering import FULL
from tests.machine_code import HGMMA_OF_REGISTERS, LDSM, machine_code
from tests.working_passes import share, working_passes
from tilewright.codegen.nvptx import ptxas
from tilewright.codegen.nvptx.pipeline import PtxCode, generate
from tilewright.codegen.nvptx.target import Target, target_for
from tilewright.kernel.dialect import FuncOp, operations
from tilewright.kernel.hopper.simt_warpgroup import WarpgroupWaitOp
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.passes.gpu.distribution.tests import programs
from tilewright.kernel.passes.table import run_pipeline
from tilewright.kernel.simt import SharedOp
from tilewright.kernel.text import parse_module
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.runtime import emulated

Array = np.ndarray
Sizes = tuple[int, int, int]
# Weights are rounded to f16 before they meet v, and exponentials are approximate: each has an error of 2^-11.
RELATIVE, ABSOLUTE = 2e-3, 1e-3
COARSER = {"f16": 1, "bf16": 8}  # the error of a rounding
TYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}


def arrays(sizes: Sizes, dtype: str = "f16", result: str = "f32") -> list[Array]:
    """q, k and v, with rows of k that grow, so that the largest value of a row changes from block to block; o."""
    heads, rows, width = sizes
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal(sizes) for _ in range(3))
    k *= np.linspace(0.2, 3, rows)[:, None]
    type_, made = TYPES[dtype], TYPES[result]
    return [*(each.astype(type_).reshape(-1) for each in (q, k, v)), np.zeros(heads * rows * width, made)]


def expected(given: Sequence[Array], sizes: Sizes, causal: bool) -> Array:
    """All rows at once, in f64."""
    q, k, v = (each.astype(np.float64).reshape(sizes) for each in given[:3])
    s = q @ k.transpose(0, 2, 1) / np.sqrt(sizes[2])
    if causal:
        s = np.where(np.tri(sizes[1], dtype=bool), s, -np.inf)
    e = np.exp(s - s.max(axis=2, keepdims=True))
    made: Array = (e / e.sum(axis=2, keepdims=True) @ v).reshape(-1)
    return made


def check(
    sizes: Sizes, block: tuple[int, int], causal: bool, disable: Sequence[str] = (), cpu: str = "sm_80"
) -> tuple[ModuleOp, PtxCode, Any]:
    """On whole tiles, on threads with a search for races, and as PTX: each gives what NumPy gives; what was run."""
    text = programs.attention(sizes, block, causal=causal)
    return check_text(text, sizes, causal, Target(cpu, ("ptx80",)), disable)


def check_text(
    text: str,
    sizes: Sizes,
    causal: bool,
    target: Target,
    disable: Sequence[str] = (),
    dtype: str = "f16",
    result: str = "f32",
) -> tuple[ModuleOp, PtxCode, Any]:
    """As `check`, of a program."""
    wanted = expected(arrays(sizes, dtype), sizes, causal)

    def compare(got: Array) -> None:
        bounds = {"rtol": RELATIVE * COARSER[dtype], "atol": ABSOLUTE * COARSER[dtype]}
        np.testing.assert_allclose(got.view(TYPES[result]).astype(np.float32), wanted, **bounds)

    given = arrays(sizes, dtype, result)
    run_kernel(parse_module(text), "k", given)
    compare(given[3])

    module = parse_module(text)
    module.attributes["tile.target"] = target.attribute()
    run_pipeline(module, "gpu", disable, verify_each=True)
    given = arrays(sizes, dtype, result)
    run_kernel(module, "k", given, races=True)
    compare(given[3])

    code = generate(module)
    resources = ptxas.check(code.ptx, target.cpu)
    if resources is not None:
        assert (resources["k"].spills, resources["k"].warnings) == (0, ())
    given = [each if each.dtype != TYPES["bf16"] else each.view(np.int16) for each in arrays(sizes, dtype, result)]
    run = emulated.run_kernel(code, "k", given)
    assert run.diagnostics == []
    compare(given[3])
    ((_, counts),) = run.counts
    return module, code, counts


@pytest.mark.covering(1)
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize(
    ("sizes", "block"),
    [((1, 50, 32), (16, 16)), ((1, 128, 64), (64, 64)), ((2, 80, 32), (64, 32)),
     *([((1, 50, 64), (64, 32)), ((1, 64, 32), (64, 32))] if FULL else [])],
    ids=str,
)  # fmt: skip
def test_attention(sizes: Sizes, block: tuple[int, int], causal: bool) -> None:
    module, code, counts = check(sizes, block, causal)
    assert counts.total("shared", "conflicts") == 0
    assert counts.total("global", "transactions") == counts.total("global", "fewest")
    assert "cp.async" in code.ptx
    assert "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16" in code.ptx  # v, which its product reads by columns
    # Weights stay in the registers of their rows: q, k, v and the result alone pass through shared memory; of small
    # tiles the result goes from lane to lane.
    (kernel,) = (op for op in module.body.ops if isinstance(op, FuncOp))
    assert sum(isinstance(op, SharedOp) for op in operations(kernel.body)) == (3 if block == (16, 16) else 4)


# Products of four warps -----------------------------------------------------------------------------------------------


def wide(
    sizes: Sizes,
    block: tuple[int, int],
    causal: bool,
    dtype: str = "f16",
    disable: Sequence[str] = (),
    program: Callable[..., str] = programs.attention,
    result: str = "f32",
    blocks: int = 132,
) -> tuple[ModuleOp, PtxCode, Any]:
    """`check` with products of four warps, as many groups of them as there are 64 rows, on so many multiprocessors."""
    warps = (block[0] // 64 * 4, 1)
    more = {} if result == "f32" else {"result": result}
    text = program(sizes, block, warps, causal, "wgmma_m64n{n}k16_{dtype}_f32", dtype, **more)
    return check_text(text, sizes, causal, hopper(blocks), disable, dtype, result)


def hopper(blocks: int = 132) -> Target:
    """A machine of so many multiprocessors."""
    machine = resolve("sm_90a")
    assert isinstance(machine, Gpu)
    target = target_for(machine)
    return replace(target, facts=replace(target.facts, multiprocessors=blocks))


@pytest.mark.covering(1)
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize(
    ("sizes", "block", "dtype"),
    [((1, 50, 64), (64, 64), "bf16"), ((2, 80, 64), (64, 64), "f16"), ((1, 136, 64), (128, 64), "bf16"),
     *([((1, 136, 128), (64, 64), "bf16"), ((1, 144, 64), (128, 128), "f16"), ((1, 144, 128), (128, 64), "f16"),
        ((1, 256, 64), (64, 64), "f16"), ((1, 272, 128), (128, 128), "f16")] if FULL else [])],
    ids=str,
)  # fmt: skip
def test_attention_of_four_warps(sizes: Sizes, block: tuple[int, int], dtype: str, causal: bool) -> None:
    """q is brought once, k and v are brought ahead; weights go from one product to the other in registers."""
    _, code, counts = wide(sizes, block, causal, dtype)
    assert counts.total("shared", "conflicts") == 0
    assert "mma.sync" not in code.ptx
    assert "ldmatrix" not in code.ptx
    assert "st.shared" not in code.ptx


@pytest.mark.covering(1)
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize(
    ("sizes", "block", "dtype"),
    [((1, 136, 64), (64, 64), "bf16"), ((1, 136, 128), (64, 128), "f16"), ((1, 144, 64), (128, 64), "f16"),
     *([((2, 128, 64), (64, 64), "f16"), ((1, 200, 128), (64, 128), "f16"), ((1, 272, 64), (128, 128), "bf16"),
        ((2, 256, 128), (128, 128), "f16")] if FULL else [])],
    ids=str,
)  # fmt: skip
def test_attention_by_powers_of_two(sizes: Sizes, block: tuple[int, int], dtype: str, causal: bool) -> None:
    """The result leaves by boxes, too; where all blocks do as much, two of them compute one tile after the other.

    Blocks of causal attention may, where their loops are seen to have a trip.
    """
    program = programs.attention_by_powers_of_two
    module, code, _ = wide(sizes, block, causal, dtype, program=program, result=dtype, blocks=2)
    (kernel,) = (op for op in module.body.ops if isinstance(op, FuncOp))
    many = sizes[0] * -(-sizes[1] // block[0]) > 2
    assert not many or causal or kernel.programs == 2
    assert "mma.sync" not in code.ptx
    assert "ldmatrix" not in code.ptx
    assert re.search(r"cp\.async\.bulk\.tensor\.[23]d\.global\.shared", code.ptx)


def test_every_optimisation_can_be_switched_off() -> None:
    """Each of those that change the program."""
    sizes, block = (1, 80, 32), (64, 16)
    module = parse_module(programs.attention(sizes, block, causal=True))
    module.attributes["tile.target"] = Target("sm_80", ("ptx80",)).attribute()
    working = working_passes(module)
    assert set(working) >= {"pipeline-loads", "barriers", "licm", "cse"}
    for name in share(working, 0, 3):  # the others on products
        check(sizes, block, True, disable=(name,))


def test_without_rescaling_the_result_is_wrong() -> None:
    """The largest value does change from block to block: the test sees the rescaling."""
    sizes = (1, 64, 32)
    text = programs.attention(sizes, (64, 32)).replace("arith.mulf %acc, %shrinks", "arith.addf %acc, %zero")
    given = arrays(sizes)
    run_kernel(parse_module(text), "k", given)
    assert np.abs(given[3] - expected(given, sizes, causal=False)).max() > 0.1


def test_a_first_factor_that_is_computed_stays_in_registers() -> None:
    """q is doubled, and the scale halved."""
    sizes, q = (1, 128, 64), "tensor<64x64xf16>"
    text = programs.attention(sizes, (64, 64), (4, 1), False, "wgmma_m64n{n}k16_{dtype}_f32")
    text = text.replace("dense<0.125>", "dense<0.0625>").replace("%qs = ", "%given = ")
    doubled = f"%two = arith.constant dense<2.0> : {q}\n  %qs = arith.mulf %given, %two : {q}\n"
    _, code, _ = check_text(text.replace("  %none = ", f"  {doubled}  %none = "), sizes, False, hopper())
    assert "mma.sync" not in code.ptx
    assert "wgmma.mma_async" in code.ptx
    if ptxas.find() is None:
        return
    (instructions,) = machine_code(code.ptx).values()
    loaded = {each.written for each in instructions if each.opcode == LDSM}
    multiplied = {each.read for each in instructions if each.opcode == HGMMA_OF_REGISTERS}
    assert loaded
    assert multiplied
    assert not loaded & multiplied, "the loop overwrites factors of its next trip: `codegen.nvptx.warpgroup`"


def test_blocks_with_most_work_can_come_first() -> None:
    """A block's number is one that passes take no further apart: boxes are found, and products overlap."""
    sizes = (1, 256, 64)
    text = programs.attention_by_powers_of_two(sizes, (64, 64), (4, 1), True, "wgmma_m64n{n}k16_f16_f32", "f16", "f16")
    reversed_number = (
        "%n = arith.constant 4 : index\n  %n1 = arith.constant 3 : index\n  %opposite = arith.subi %n1, %p : index\n"
    )
    text = text.replace(
        "%i = arith.muli %p",
        f"{reversed_number}  %reversed = arith.remui %opposite, %n : index\n  %i = arith.muli %reversed",
    )
    module, code, _ = check_text(text, sizes, True, hopper(), result="f16")
    assert re.search(r"cp\.async\.bulk\.tensor\.[23]d\.global\.shared", code.ptx)
    pending = [op.pending.value.data for op in module.walk() if isinstance(op, WarpgroupWaitOp)]
    assert 1 in pending


@pytest.mark.covering(1)
def test_of_products_of_four_warps_every_optimisation_can_be_switched_off() -> None:
    sizes, block = (1, 80, 64), (64, 64)
    text = programs.attention(sizes, block, (4, 1), True, "wgmma_m64n{n}k16_{dtype}_f32")
    module = parse_module(text)
    module.attributes["tile.target"] = hopper().attribute()
    working = working_passes(module)
    assert set(working) >= {"tensor-copies", "pipeline-tensor-copies", "warp-specialize"}
    for name in ("tensor-copies", *share(working, 1, 3)):
        wide(sizes, block, True, disable=(name,))
