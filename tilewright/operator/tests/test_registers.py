"""Where the epilogue of a product runs, by the registers that it needs."""

from __future__ import annotations

import pytest

from tilewright.expr.core import Axis, Expr, Read, Tensor, apply
from tilewright.machine import resolve_cpu
from tilewright.operator.product_point import ProductPoint
from tilewright.operator.registers import epilogue_vectors, registers_of, sums_of
from tilewright.tiles.product import Operand, Product, flat_product

I, J, K = Axis("i", 64), Axis("j", 96), Axis("k", 8)
SUM = Read(Tensor("sum", (), "f32"), ())
BIAS = Read(Tensor("bias", (96,), "f32"), (J,))
SILU = SUM * apply("sigmoid", SUM)
SCALE = Read(Tensor("scale", (96,), "f32"), (J,))


def work(epilogue: Expr, columns: int = 96, lanes: int = 16) -> Product:
    j = Axis("j", columns)
    a, b, c = (Tensor(name, (size,), "f32") for name, size in (("A", 512), ("B", 8 * columns), ("C", 64 * columns)))
    factors = Operand(a, I * 8 + K), Operand(b, K * columns + j)
    index = I * columns + j
    return flat_product((), (I,), j, (K,), *factors, SUM.tensor, epilogue, c, index, intrinsic="fma", lanes=lanes)


def point(rows: int, vectors: int) -> ProductPoint:
    return ProductPoint((rows,), vectors, ("j", "i"))


@pytest.mark.parametrize(
    ("epilogue", "registers"),
    [
        (SUM, 0),
        (SUM + BIAS, 1),
        (apply("max", SUM + BIAS, 0.0), 2),
        (apply("max", SUM, 2.0) * 2.0, 2),
        ((SUM * SCALE) * (BIAS + SCALE), 2),  # the sum has a register of its own
        ((BIAS + SCALE) * (BIAS - SCALE), 3),
        (apply("exp", SUM), 17),
        (apply("exp", SUM) + apply("exp", SUM + BIAS), 18),  # constants of one function are there once
    ],
)
def test_registers_of_an_epilogue(epilogue: Expr, registers: int) -> None:
    assert registers_of(epilogue, "sum") == registers


def test_an_address_needs_no_vector_register() -> None:
    far = Read(Tensor("bias", (96000,), "f32"), (J * 1000 + 7,))
    assert registers_of(SUM + far, "sum") == registers_of(SUM + BIAS, "sum")


def test_vectors_of_sums() -> None:
    assert sums_of(work(SUM), point(4, 6)) == 24
    assert sums_of(work(SUM, columns=5), point(3, 1)) == 3  # fewer columns than lanes


def test_an_epilogue_that_fits_beside_the_sums_is_unrolled() -> None:
    machine = resolve_cpu("znver5")
    vectors, decision = epilogue_vectors(work(apply("max", SUM + BIAS, 0.0)), point(4, 6), machine, "C")
    assert vectors == 0
    assert decision.subject == "epilogue of C"
    assert decision.chosen == "on the register tile"
    assert decision.reason == "it needs about 2 registers beside 24 sums, of 32"


def test_an_epilogue_that_does_not_fit_is_a_loop() -> None:
    silu = work(SILU)
    wide, narrow = resolve_cpu("znver5"), resolve_cpu("x86-64-v3")
    assert epilogue_vectors(silu, point(4, 6), wide, "C")[0] == 2
    assert epilogue_vectors(silu, point(2, 6), wide, "C")[0] == 0  # 12 sums leave 20
    assert epilogue_vectors(work(SILU, lanes=8), point(2, 4), narrow, "C")[0] == 2


def test_a_step_of_the_loop_has_as_many_vectors_as_divide_a_row() -> None:
    machine, silu = resolve_cpu("x86-64-v3"), work(SILU, lanes=8)
    vectors, decision = epilogue_vectors(silu, point(6, 2), machine, "C")
    assert vectors == 2
    assert decision.chosen.startswith("a loop over the vectors of the register tile, 2 at a time")
    assert epilogue_vectors(silu, point(3, 3), machine, "C")[0] == 3
    assert epilogue_vectors(silu, point(2, 6), machine, "C")[0] == 2
    assert epilogue_vectors(silu, point(2, 5), machine, "C")[0] == 1
    assert epilogue_vectors(silu, point(12, 1), machine, "C")[0] == 1
    assert epilogue_vectors(work(SILU, columns=5, lanes=8), point(12, 1), machine, "C")[0] == 1


def test_one_vector_is_no_loop() -> None:
    gelu = work(SUM * apply("normal_cdf", SUM))
    assert epilogue_vectors(gelu, point(1, 1), resolve_cpu("x86-64-v3"), "C")[0] == 0
    assert epilogue_vectors(gelu, point(2, 1), resolve_cpu("x86-64-v3"), "C")[0] == 1
