"""Shapes of micro-kernels by arithmetic intensity: outer products of vectors, fragments of warps, fractal blocks.

Spec 1, section 4 (thesis, section 3.4.1.2). They say what a machine's registers or buffers could hold; which shapes an
instruction has as records, and which one a product takes, is up to `products`.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument


@dataclass(frozen=True)
class OuterProduct:
    """``C[MI, NI vectors] += A[MI, k] * B[k, NI vectors]``, `broadcast` elements of a column of A loaded at a time."""

    rows: int
    vectors: int
    broadcast: int

    @property
    def registers(self) -> int:
        """Vector registers: accumulators, a row of B, broadcast elements of A."""
        return self.rows * self.vectors + self.vectors + self.broadcast

    def intensity(self, depth: int | None = None) -> float:
        """Multiply-adds per vector loaded or stored, over `depth` steps of k; None: as k grows."""
        products, operands = self.rows * self.vectors, self.rows + self.vectors
        if depth is None:
            return products / operands
        return products * depth / (depth * operands + 2 * products)


def outer_product(registers: int, *, hide_latency: bool = True) -> OuterProduct:
    """The shape of greatest intensity in so many vector registers.

    With `hide_latency`, two broadcasts or more are in flight and their number divides the rows. Ties go to more
    accumulators, then to fewer registers. Raises InvalidArgument where no shape fits.
    """
    shapes = list(_outer_products(registers, hide_latency))
    if not shapes:
        need = 5 if hide_latency else 3
        raise InvalidArgument(
            f"{registers} registers hold no outer product", where="registers", help=f"{need} registers or more"
        )
    return max(shapes, key=lambda shape: (shape.intensity(), shape.rows * shape.vectors, -shape.registers))


def _outer_products(registers: int, hide_latency: bool) -> Iterator[OuterProduct]:
    for rows in range(1, registers):
        for vectors in range(1, registers // rows + 1):
            for broadcast in range(2 if hide_latency else 1, rows + 1):
                shape = OuterProduct(rows, vectors, broadcast)
                if shape.registers <= registers and not (hide_latency and rows % broadcast):
                    yield shape


def fragment_intensity(rows: int, columns: int) -> float:
    """Matrix multiplications per fragment loaded, of `rows` by `columns` accumulators that share their operands."""
    return rows * columns / (rows + columns)


@dataclass(frozen=True)
class FractalBlock:
    """``C[m1, n1, m2, n2] += A[m1, k1, m2, k2] * B[k1, n1, n2, k2]`` in fractals of `lanes` by `lanes`."""

    m1: int
    n1: int
    k1: int
    lanes: int

    @property
    def intensity(self) -> float:
        """Multiply-adds per element of A and B."""
        m, n = self.m1 * self.lanes, self.n1 * self.lanes
        return m * n / (m + n)


def fractal_block(
    operand_bytes: int, accumulator_bytes: int, *, lanes: int = 16, element_bytes: int = 2, sum_bytes: int = 4,
    double_buffer: bool = False,
) -> FractalBlock:  # fmt: skip
    """The largest square block whose sums fit `accumulator_bytes`, and the depth that one operand's buffer holds."""
    fractal = lanes * lanes
    side = isqrt(accumulator_bytes // (fractal * sum_bytes))
    depth = operand_bytes // (max(side, 1) * fractal * element_bytes) // (2 if double_buffer else 1)
    if side < 1 or depth < 1:
        raise InvalidArgument(
            f"buffers of {operand_bytes} and {accumulator_bytes} bytes hold no fractals of {lanes} by {lanes}",
            where="buffers",
            help=f"{fractal * element_bytes} bytes for an operand and {fractal * sum_bytes} for sums, or more",
        )
    return FractalBlock(side, side, depth, lanes)
