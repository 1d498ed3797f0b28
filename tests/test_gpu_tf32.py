"""Products of f32 on instructions that read tf32: rounded or in three products, through the emulator, at any sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tests.covering import some
from tilewright.codegen.nvptx import ptxas
from tilewright.codegen.nvptx.pipeline import PtxCode, generate
from tilewright.codegen.nvptx.target import target_for
from tilewright.compiler.make_plan import make_plan
from tilewright.errors import InvalidArgument, InvalidProgram
from tilewright.expr.core import Tensor
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import linalg
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.passes.gpu.distribution.tests.programs import attention, matmul, ragged_matmul
from tilewright.kernel.passes.table import run_pipeline
from tilewright.kernel.text import parse_module, print_module
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.options import Options
from tilewright.runtime import emulated

Array = np.ndarray[Any, Any]
MMA, SHORT, WMMA = "mma_m16n8k8_tf32_f32", "mma_m16n8k4_tf32_f32", "wmma_16x16x8_tf32_f32"
# Of sums, relative to the sum of absolute terms: tensor cores cut what they align; four products are added at once.
CUT, TERMS = 2.0**-22, 4


def gpu(name: str) -> Gpu:
    found = resolve(name)
    assert isinstance(found, Gpu)
    return found


def rounded(values: Array) -> Array:
    """To 11 bits, ties away from zero, in f64."""
    mantissas, exponents = np.frexp(values.astype(np.float64))
    return np.asarray(np.ldexp(np.sign(mantissas) * np.floor(np.abs(mantissas) * 2.0**11 + 0.5), exponents - 11))


def cut(values: Array) -> Array:
    mantissas, exponents = np.frexp(values.astype(np.float64))
    return np.asarray(np.ldexp(np.trunc(mantissas * 2.0**11), exponents - 11))


def sums_bound(a: Array, b: Array) -> Array:
    """How far sums may be off: each addition of a few terms cuts."""
    depth = a.shape[1]
    return np.asarray((-(-depth // TERMS) + TERMS) * CUT * (np.abs(a) @ np.abs(b)))


def run(text: str, arrays: list[Any], machine: str = "sm_80", disable: tuple[str, ...] = ()) -> PtxCode:
    """Run a tile program in distributed form, then as PTX, without diagnostics and without spills, on the arrays.

    The interpreter adds exactly, the emulator as tensor cores do.
    """
    module = parse_module(text)
    module.attributes["tile.target"] = target_for(gpu(machine)).attribute()
    run_pipeline(module, "gpu", disable, verify_each=True)
    threads = [array.copy() for array in arrays]
    run_kernel(module, "k", threads)
    code = generate(module)
    resources = ptxas.check(code.ptx, machine)
    assert resources is None or resources["k"].spills == 0
    assert emulated.run_kernel(code, "k", arrays).diagnostics == []
    finite = np.abs(threads[-1][np.isfinite(threads[-1])])
    np.testing.assert_allclose(arrays[-1], threads[-1], rtol=1e-5, atol=1e-5 * float(finite.max(initial=0.0)))
    return code


def multiplied(
    sizes: tuple[int, int, int], intrinsic: str = MMA, precision: str = "", transposed: str = "b",
    machine: str = "sm_80", disable: tuple[str, ...] = (),
) -> tuple[Array, Array, Array, str]:  # fmt: skip
    """Random a and b of any scale, their product by a tile program, and the PTX."""
    m, n, k = sizes
    block = (32, 32, 16) if intrinsic == WMMA else (64, 64, 16) if "wgmma" in intrinsic else (32, 16, 16)
    rng = np.random.default_rng(m * n * k)
    a, b = (rng.standard_normal(extents) * 2.0 ** rng.integers(-9, 9, extents) for extents in ((m, k), (k, n)))
    a, b = a.astype(np.float32), b.astype(np.float32)
    text = ragged_matmul(sizes, block, intrinsic, "f32", transposed, precision=precision).replace(" align 16", "")
    given = [(x.T if name in transposed else x).flatten() for name, x in (("a", a), ("b", b))]
    arrays = [*given, np.full(m * n, np.nan, np.float32)]
    code = run(text, arrays, machine, disable)
    return a.astype(np.float64), b.astype(np.float64), arrays[2].reshape(m, n).astype(np.float64), code.ptx


SIZES = ((1, 1, 1), (1, 7, 17), (7, 17, 1), (17, 1, 7), (37, 19, 61))
ROUTES = ((MMA, "b", "sm_80"), (MMA, "", "sm_90a"), (SHORT, "a", "sm_80"), (WMMA, "", "sm_80"), (WMMA, "ab", "sm_90a"))


@pytest.mark.covering(1)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("intrinsic", "transposed", "machine"), ROUTES)
def test_factors_are_rounded_to_nearest(
    intrinsic: str, transposed: str, machine: str, sizes: tuple[int, int, int]
) -> None:
    a, b, c, ptx = multiplied(sizes, intrinsic, transposed=transposed, machine=machine)
    assert "cvt.rna.tf32.f32" in ptx
    assert (np.abs(c - rounded(a) @ rounded(b)) <= sums_bound(a, b)).all()


@pytest.mark.parametrize("sizes", SIZES)
def test_without_the_pass_factors_are_cut(sizes: tuple[int, int, int]) -> None:
    a, b, c, ptx = multiplied(sizes, disable=("round-to-tf32",))
    assert "cvt.rna" not in ptx
    assert (np.abs(c - cut(a) @ cut(b)) <= sums_bound(a, b)).all()
    assert (np.abs(c - rounded(a) @ rounded(b)) > sums_bound(a, b)).any()


@pytest.mark.covering(1)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("intrinsic", "transposed", "machine"), ROUTES)
def test_three_products_are_nearly_as_exact_as_f32(
    intrinsic: str, transposed: str, machine: str, sizes: tuple[int, int, int]
) -> None:
    """What is left out, low times low, and the bit that reading a low part costs, are below 2^-21 of a product."""
    a, b, c, _ = multiplied(sizes, intrinsic, "tf32x3", transposed, machine)
    assert (np.abs(c - a @ b) <= 3 * sums_bound(a, b) + 2.0**-21 * (np.abs(a) @ np.abs(b))).all()


def test_three_products_are_far_more_exact_than_one() -> None:
    errors = {}
    for precision in ("", "tf32x3"):
        a, b, c, _ = multiplied((37, 19, 61), precision=precision)
        errors[precision] = np.abs(c - a @ b).max()
    assert errors["tf32x3"] * 256 < errors[""]


def long_product(intrinsic: str, machine: str, precision: str) -> float:
    """The error of a product over a long k, relative to the result, beyond what the factors' precision costs."""
    m, n, k = (16, 16, 4096) if intrinsic == WMMA else (16, 8, 4096)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(extents).astype(np.float32) for extents in ((m, k), (k, n)))
    if not precision:
        a, b = rounded(a).astype(np.float32), rounded(b).astype(np.float32)
    module = parse_module(ragged_matmul((m, n, k), (m, n, 32), intrinsic, "f32", precision=precision))
    module.attributes["tile.target"] = target_for(gpu(machine)).attribute()
    run_pipeline(module, "gpu")
    c = np.full(m * n, np.nan, np.float32)
    assert emulated.run_kernel(generate(module), "k", [a.flatten(), b.flatten(), c]).diagnostics == []
    exact = a.astype(np.float64) @ b.astype(np.float64)
    return float(np.linalg.norm(c.reshape(m, n) - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize(
    ("intrinsic", "machine"), some([(MMA, "sm_80"), (SHORT, "sm_80"), (WMMA, "sm_80"), (MMA, "sm_90a")], 1)
)
def test_the_error_of_three_products_does_not_grow_with_k(intrinsic: str, machine: str) -> None:
    assert long_product(intrinsic, machine, "tf32x3") < 1e-6  # multiply-adds of f32, one after the other: 1.1e-6


@pytest.mark.parametrize("machine", some(["sm_80", "sm_90a"], 1))
def test_sums_that_tensor_cores_add_up_drift_over_a_long_k(machine: str) -> None:
    """What three products avoid, and the emulator models: each block of a sum is rounded toward zero."""
    assert 5e-6 < long_product(MMA, machine, "") < 5e-5


def special(precision: str) -> tuple[Array, Array, Array]:
    """A product of factors among which are infinities, NaN and the largest numbers, of both signs."""
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(0.5, 0.75, extents).astype(np.float32) for extents in ((32, 16), (16, 16)))
    largest = np.finfo(np.float32).max
    a[range(7), range(7)] = np.array([np.inf, -np.inf, np.nan, largest, -largest, 0.0, 1e-40], np.float32)
    b[range(5), range(5)] = [-np.inf, np.inf, np.inf, np.nan, -0.25]
    b[6, 7], a[3:5, 6] = largest, 0.0  # no sum of two of the largest
    arrays = [a.flatten(), b.flatten(), np.full(32 * 16, np.nan, np.float32)]
    run(ragged_matmul((32, 16, 16), (32, 16, 16), MMA, "f32", precision=precision), arrays)
    return a, b, arrays[2].reshape(32, 16)


@pytest.mark.parametrize("precision", ["", "tf32x3"])
def test_infinities_and_nan_are_those_of_f32(precision: str) -> None:
    """The largest numbers, which rounding makes infinite, are finite in three products, though exact to tf32 only."""
    a, b, c = special(precision)
    with np.errstate(all="ignore"):
        exact = a.astype(np.float64) @ b.astype(np.float64)
        wanted = exact.astype(np.float32)
    largest = (np.abs(a) == np.finfo(np.float32).max).any(1, keepdims=True) | (b > 1e38).any(0, keepdims=True)
    chosen = np.ones(c.shape, np.bool_) if precision else np.broadcast_to(~largest, c.shape)
    np.testing.assert_array_equal(np.isnan(c)[chosen], np.isnan(wanted)[chosen])
    np.testing.assert_array_equal(np.isinf(c)[chosen], np.isinf(wanted)[chosen])
    finite = np.isfinite(wanted) & chosen
    np.testing.assert_allclose(c[finite], exact[finite], rtol=2.0**-9)
    infinite = np.isinf(wanted) & chosen
    np.testing.assert_array_equal(c[infinite], wanted[infinite])


def test_each_fragment_is_rounded_once() -> None:
    """A warp with 2 x 2 fragments of a sum: 2 of a with 4 registers, 2 of b with 2, for each of two steps of k."""
    module = parse_module(matmul((32, 16, 64), (32, 16, 16), MMA, "f32"))
    run_pipeline(module, "gpu", options={"assign-layouts": {"warps": 1}, "distribute": {"warps": 1}})
    text = print_module(module)
    assert text.count("simt.mma") == 2 * 2 * 2
    assert text.count('tile.tf32 "nearest"') == 2 * (2 + 2)


def test_products_of_products_are_rounded() -> None:
    """Attention: the rows of q are rounded before the loop, what softmax gives in registers."""
    heads, rows, width = 1, 32, 16
    text = attention((heads, rows, width), (16, 16), (1, 1), intrinsic=MMA).replace("f16", "f32")
    module = parse_module(text)
    run_pipeline(module, "gpu")
    before, loop = print_module(module).split("scf.for", 1)
    assert 'tile.tf32 "nearest"' in before
    assert 'tile.tf32 "nearest"' in loop
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((rows, width)).astype(np.float32) for _ in range(3))
    arrays = [q.flatten(), k.flatten(), v.flatten(), np.full(rows * width, np.nan, np.float32)]
    run(text, arrays)
    s = q @ k.T / np.sqrt(width)
    e = np.exp(s - s.max(1, keepdims=True))
    np.testing.assert_allclose(arrays[3].reshape(rows, width), e / e.sum(1, keepdims=True) @ v, atol=4e-3)


# What a compilation takes ---------------------------------------------------------------------------------------------


def product(m: int, n: int, k: int, transpose_b: bool = True) -> Graph:
    def build(b: GraphBuilder) -> Tensor:
        stored = (n, k) if transpose_b else (k, n)
        return linalg.matmul(b.input("x", (m, k), "f32"), b.input("w", stored, "f32"), transpose_b=transpose_b)

    b = GraphBuilder()
    return b.finish([build(b)])


@pytest.mark.covering(1)
@pytest.mark.parametrize("machine", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("sizes", some([(17, 7, 13), (72, 40, 88), (29, 31, 7)], 2))
def test_a_graph_in_every_precision(machine: str, sizes: tuple[int, int, int]) -> None:
    graph, rng = product(*sizes), np.random.default_rng(0)
    a, b = (rng.standard_normal(extents).astype(np.float32) for extents in ((sizes[0], sizes[2]), (sizes[1], sizes[2])))
    exact, scale = a.astype(np.float64) @ b.T, np.abs(a).astype(np.float64) @ np.abs(b.T)
    for precision, most in (("ieee", 2.0**-20), ("tf32", 2.0**-9), ("tf32x3", 2.0**-18)):
        options = Options(cache=False, input_precision=precision, verify_each=True)
        module = tilewright.compile(graph, machine=machine, options=options, device="emulator")
        assert (np.abs(module(a, b) - exact) <= most * scale).all()
        ptx = module.artifact.code.decode()
        assert (".tf32" in ptx) == (precision != "ieee")
        assert precision != "tf32x3" or "wgmma" not in ptx


def reason(machine: str, precision: str, rows: bool = False, **given: Any) -> str:
    """With `rows`, the second factor lies along n."""
    graph = product(4096, 4096, 4096, not rows)
    plan = make_plan(graph, gpu(machine), 1, Options(input_precision=precision, **given))
    return "\n".join(decision.explain() for decision in plan.decisions if decision.subject.startswith("block of"))


def test_decisions_say_what_becomes_of_f32() -> None:
    assert "; f32 is rounded to tf32" in reason("sm_80", "tf32")
    assert "; f32 is cut to tf32" in reason("sm_80", "tf32", disable=("round-to-tf32",))
    assert "; f32 is cut to tf32, since operands in shared memory pass no registers" in reason("sm_90a", "tf32")
    assert "; f32 is rounded to tf32 in b, whose fragments threads read, else cut" in reason("sm_90a", "tf32", True)
    assert "; f32 is cut to tf32" in reason("sm_90a", "tf32", True, disable=("round-to-tf32",))
    three = reason("sm_90a", "tf32x3")
    assert f"with {MMA} as tf32x3" in three
    assert "; f32 is the sum of two tf32, three products for one" in three
    assert "operands are split in registers, which bulk copies do not pass" in three
    assert "no matrix instruction takes f32,f32->f32 with input_precision ieee" in reason("sm_90a", "ieee")


def test_a_large_product_of_rows_is_one_of_four_warps() -> None:
    """Fragments of b change registers while products are under way: ptxas serialises none, and nothing spills."""
    options = Options(cache=False, input_precision="tf32")
    module = tilewright.compile(product(4096, 4096, 4096, False), machine="sm_90a", options=options, device="emulator")
    assert "256x128x32 on 1x8 warps with wgmma_m64n256k8_tf32_f32, 4 stages" in module.explain(all=True)
    resources = ptxas.check(module.artifact.code.decode(), "sm_90a")
    assert resources is None or not any(each.spills or each.warnings for each in resources.values())


@pytest.mark.parametrize("rounds", [True, False])
def test_what_threads_read_is_rounded_what_instructions_read_is_cut(rounds: bool) -> None:
    """A product of four warps with rows of b: without the pass both factors are cut."""
    a, b, c, ptx = multiplied((64, 64, 32), "wgmma_m64n64k8_tf32_f32", "", "", "sm_90a",
                              () if rounds else ("round-to-tf32",))  # fmt: skip
    assert "wgmma" in ptx
    assert ("cvt.rna.tf32" in ptx) == rounds
    assert (np.abs(c - cut(a) @ (rounded(b) if rounds else cut(b))) <= sums_bound(a, b)).all()


def test_a_machine_without_tf32_multiplies_f32() -> None:
    graph = product(17, 7, 13)
    given: dict[str, Any] = {"machine": "sm_75", "device": "emulator"}
    codes = [
        tilewright.compile(graph, options=Options(cache=False, input_precision=precision), **given).artifact.code
        for precision in ("ieee", "tf32x3")
    ]
    assert codes[0] == codes[1]


def test_four_warps_leave_three_products_to_single_ones() -> None:
    arrays = [np.ones(128 * 64, np.float32), np.ones(64 * 64, np.float32), np.zeros(128 * 64, np.float32)]
    text = ragged_matmul((128, 64, 64), (64, 32, 16), "wgmma_m64n32k8_tf32_f32", "f32", "b", precision="tf32x3")
    ptx = run(text, arrays, "sm_90a").ptx
    assert "wgmma" not in ptx
    assert "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" in ptx
    assert (arrays[2] == 64).all()


def test_an_instruction_that_reads_fewer_bits_is_refused() -> None:
    module = parse_module(ragged_matmul((32, 32, 32), (32, 32, 16), MMA, "f32", precision="ieee"))
    with pytest.raises(InvalidProgram, match=f"{MMA} reads f32 as tf32: precision 'ieee'"):
        run_pipeline(module, "gpu")


@pytest.mark.parametrize("precision", ["ieee", "tf32", "tf32x3"])
def test_multiply_adds_serve_every_precision(precision: str) -> None:
    texts = [ragged_matmul((40, 24, 20), (16, 16, 8), "fma", "f32", precision=asked) for asked in ("", precision)]
    modules = [parse_module(text) for text in texts]
    for module in modules:
        run_pipeline(module, "gpu")
    assert print_module(modules[0]) == print_module(modules[1])


def test_code_wants_products_to_be_split() -> None:
    module = parse_module("""
tile.func @k(%m: memref<256xf32>) grid [] threads [32, 1, 1] warp 32 {
  %o = arith.constant 0 : index
  %a = tile.load %m[%o] strides [1] : memref<256xf32> -> tensor<4xf32>
  %b = tile.load %m[%o] strides [1] : memref<256xf32> -> tensor<2xf32>
  %d = simt.mma "mma_m16n8k8_tf32_f32" %a, %b, %a precision "tf32x3" : tensor<4xf32>, tensor<2xf32>, tensor<4xf32>
  tile.store %d, %m[%o] strides [1] : tensor<4xf32>, memref<256xf32>
  tile.return
}""")
    module.attributes["tile.target"] = target_for(gpu("sm_80")).attribute()
    with pytest.raises(InvalidProgram, match=r"with precision 'tf32x3' is three products\n.*run the pass tf32x3"):
        generate(module)


def test_precisions_that_there_are_not() -> None:
    with pytest.raises(InvalidArgument, match="there is no input precision 'bf16x3'"):
        Options(input_precision="bf16x3")


def test_what_is_cached_explains_itself_with_its_own_options(tmp_path: Path) -> None:
    """A machine without tf32 makes the same code of both; the reasons differ."""
    for precision in ("ieee", "tf32"):
        options = Options(cache=True, cache_dir=tmp_path, input_precision=precision)
        module = tilewright.compile(product(17, 9, 13), machine="sm_75", options=options, device="emulator")
        assert ("with input_precision ieee" in module.explain(all=True)) == (precision == "ieee")
