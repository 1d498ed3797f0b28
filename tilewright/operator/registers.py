"""Vector registers that the epilogue of a product needs, and whether it runs on the register tile or in a loop.

An epilogue that is unrolled over the register tile runs while most sums are still in registers. Where both together
need more registers than the machine has, LLVM keeps sums in stack memory, inside the loop over k too. The sums then
wait in scratch memory, and the epilogue is a loop over the vectors of the tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final

from tilewright.decision import Decision
from tilewright.expr.core import Apply, Const, Expr, Read
from tilewright.machine.description import Cpu
from tilewright.operator.product_point import ProductPoint
from tilewright.tiles.product import Product

#: Registers of the constants and of the most values alive at once of functions in f32, of AVX-512, counted in the code
#: of `codegen/math`. Functions that are not here are one instruction or a few without constants.
FUNCTION_REGISTERS: Final = {
    "exp": 17, "exp_nonpositive": 12, "exp2": 17, "expm1": 21, "sigmoid": 18, "tanh": 20, "sinh": 25, "cosh": 19,
    "asinh": 26, "acosh": 28, "atanh": 26,
    "log": 20, "log1p": 23, "pow": 51, "sin": 20, "cos": 18, "tan": 18, "asin": 15, "acos": 18, "atan": 20,
    "erf": 22, "normal_cdf": 31, "normal_cdf_tanh": 23,
}  # fmt: skip

#: Vectors of a step of an epilogue that is a loop, as the row of a tile is divided by them. The instructions of one
#: vector depend on each other, those of two do not. On a Zen 3, convolutions with SiLU, GELU, mish and tanh took 0.83
#: to 1.02 of their time with one vector, those with three vectors in a row 0.96; four took as long as two.
SIDE_BY_SIDE: Final = (2, 3)


def epilogue_vectors(work: Product, point: ProductPoint, machine: Cpu, kernel: str) -> tuple[int, Decision]:
    """How many vectors of the epilogue one step of a loop computes; 0 where it is unrolled over the register tile.

    It is a loop if it needs more registers than the machine has beside the sums of the tile.
    """
    needed, sums = registers_of(work.epilogue, work.total.name), sums_of(work, point)
    loop = needed > 0 and sums > 1 and needed + sums > machine.vector_registers
    at_a_time = _side_by_side(point.tile(work)[work.columns.name], work.lanes)
    places = (
        "on the register tile",
        f"a loop over the vectors of the register tile, {at_a_time} at a time, whose sums are in scratch memory",
    )
    reason = f"it needs about {needed} registers beside {sums} sums, of {machine.vector_registers}"
    return at_a_time if loop else 0, Decision(f"epilogue of {kernel}", places[loop], reason, places[not loop])


def _side_by_side(columns: int, lanes: int) -> int:
    """Vectors of a step: so many that they divide the row of a tile, or one."""
    vectors = columns // lanes if columns % lanes == 0 else 1
    return next((count for count in SIDE_BY_SIDE if vectors % count == 0), 1)


def sums_of(work: Product, point: ProductPoint) -> int:
    """Vectors of sums in a register tile."""
    return prod(point.rows) * -(-point.tile(work)[work.columns.name] // work.lanes)


def registers_of(expr: Expr, accumulator: str) -> int:
    """About the registers in which one vector of an expression is computed, beside the one of its sum.

    They are those of numbers, of functions, and of intermediate results in the best order (Sethi and Ullman, "The
    generation of optimal code for arithmetic expressions", JACM 17(4), 1970).
    """
    constants = 0
    intermediate: dict[Expr, int] = {}
    for node in dict.fromkeys(reversed(list(_values(expr)))):  # arguments before what they are arguments of
        if isinstance(node, Const):
            constants += 1
            intermediate[node] = 0
        elif isinstance(node, Read):
            intermediate[node] = int(node.tensor.name != accumulator)
        else:
            needs = sorted((intermediate[child] for child in node.children()), reverse=True)
            intermediate[node] = max((need + held for held, need in enumerate(needs)), default=1)
    functions = {node.function for node in intermediate if isinstance(node, Apply)}
    return constants + sum(FUNCTION_REGISTERS.get(name, 0) for name in functions) + intermediate[expr]


def _values(expr: Expr) -> Iterator[Expr]:
    """Every node of an expression but the addresses of what it reads, parents before their arguments."""
    yield expr
    if not isinstance(expr, Read):
        for child in expr.children():
            yield from _values(child)
