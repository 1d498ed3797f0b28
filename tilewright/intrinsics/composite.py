"""Records made of others: outer products of registers from a multiply-add, and the shapes that move least data."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import inf

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.expr.dtypes import DType
from tilewright.intrinsics.intrinsic import Cost, Intrinsic, Limits, Movement, Numerics, Operand
from tilewright.intrinsics.shapes import MATRIX

SCALARS = 2  # in registers at a time, so that loads run ahead of multiply-adds


@dataclass(frozen=True)
class MicroKernel:
    """An outer product of registers: `mi` rows x `ni` vectors of accumulators, `mii` broadcast scalars at a time."""

    mi: int
    ni: int
    mii: int

    @property
    def registers(self) -> int:
        return self.mi * self.ni + self.ni + self.mii

    @property
    def shape(self) -> tuple[int, int]:
        return self.mi, self.ni

    def intensity(self, ki: float = inf) -> float:
        """Multiply-adds of vectors per vector or scalar moved, over `ki` steps: accumulators are read and written."""
        steady = self.mi * self.ni / (self.mi + self.ni)
        if ki == inf:
            return steady
        return self.mi * self.ni * ki / (ki * (self.mi + self.ni) + 2 * self.mi * self.ni)


def optimum(registers: int, ki: float = inf) -> MicroKernel:
    """The outer product with most multiply-adds per element moved that fits into vector registers.

    ``mi * ni + ni + mii <= registers``, mii divides mi, mii >= 2; of equals the one with fewest registers.

    >>> optimum(32)
    MicroKernel(mi=6, ni=4, mii=2)
    """
    fitting = [
        kernel
        for mi in range(2, registers)
        for ni in range(1, (registers - 2) // (mi + 1) + 1)
        for mii in range(2, mi + 1)
        if mi % mii == 0 and (kernel := MicroKernel(mi, ni, mii)).registers <= registers
    ]
    if not fitting:
        raise InvalidArgument(f"no outer product fits into {registers} vector registers", help="at least 5")
    return max(fitting, key=lambda kernel: (kernel.intensity(ki), -kernel.registers, kernel.mi))


def outer(base: Intrinsic, mi: int, ni: int, ki: int = 1, *, scalars: int = SCALARS) -> Intrinsic:
    """``Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]`` of `mi` rows and `ni` registers, realised by `base`.

    `base` is a record with one spatial loop, its vector, which only one of its two sources has: a multiply-add with a
    broadcast scalar, or a dot product with a broadcast word. `ki` counts its steps, so r1 has ki times the reduction
    of `base`. At least so many `scalars` are in registers at a time, where mi has such a divisor. Raises
    InvalidArgument for another form of record, and for extents below 1.
    """
    lanes, group, scalar, vector = _form(base)
    if min(mi, ni, ki) < 1:
        raise InvalidArgument(f"an outer product of {mi} rows, {ni} registers, {ki} steps", help="at least 1 of each")
    m, n, k = mi, ni * lanes, ki * group
    packed = f"r1 // {group} * {n * group} + i2 * {group} + r1 % {group}" if group > 1 else f"r1 * {n} + i2"
    accumulators = mi * ni
    return Intrinsic(
        name=f"outer_{mi}x{ni}x{ki}_{base.name}",
        target=base.target,
        compute=MATRIX,
        extents={"i1": m, "i2": n, "r1": k},
        operands=_operands(scalar, vector, base.destination.dtype, packed),
        cost=Cost(base.cost.issue_cycles * accumulators * ki, base.cost.latency_cycles, base.cost.units_per_core),
        source=f"{ki} x {mi} x {ni} of {base.name}",
        features=base.features,
        memory=_movements(lanes),
        limits=_limits(mi, ni, scalars),
        numerics=_numerics(base.numerics, group),
        emitter=base.emitter,
        realised_by=base.name,
        grid=(mi, ni, ki),
    )


# There are hundreds of outer products, made when their module is imported; they share what few of them differ in.


@cache
def _form(base: Intrinsic) -> tuple[int, int, DType, DType]:
    """Lanes of `base`, its multiply-adds per lane, the element types of its scalar and its vector source."""
    spatial = [loop for loop in base.loops if loop.kind == "S"]
    vectors = [operand for operand in base.sources if spatial and spatial[0].name in operand.loops]
    if not (len(spatial) == len(vectors) == 1 and len(base.sources) == 2 and base.combine == "sum"):
        raise InvalidArgument(f"{base.name} has the form {base.compute}", help="Dst[i] += Src1[r] * Src2[i, r]")
    scalar = next(operand for operand in base.sources if operand is not vectors[0])
    lanes = spatial[0].extent
    return lanes, base.macs // lanes, scalar.dtype, vectors[0].dtype


@cache
def _limits(mi: int, ni: int, scalars: int) -> Limits:
    return Limits(registers=MicroKernel(mi, ni, _broadcasts(mi, scalars)).registers)


@cache
def _operands(scalar: DType, vector: DType, accumulator: DType, packed: str) -> tuple[Operand, ...]:
    return (
        Operand("Src1", scalar, ("i1", "r1"), "mem"),
        Operand("Src2", vector, ("r1", "i2"), "mem", packed),
        Operand("Dst", accumulator, ("i1", "i2"), "reg"),
    )


@cache
def _movements(lanes: int) -> tuple[Movement, ...]:
    return (
        Movement("lda", "Src1", "reg", "mem", "addr_a + i1 * stride_a + r1", "broadcast"),
        Movement("ldb", "Src2", "reg", "mem", "addr_b + r1 * stride_b + i2", stride_multiple=lanes),
        Movement("ldc", "Dst", "reg", "mem", "addr_c + i1 * stride_c + i2"),
        Movement("stc", "Dst", "mem", "reg", "addr_c + i1 * stride_c + i2"),
    )


@cache
def _numerics(base: Numerics, group: int) -> Numerics:
    return replace(base, group=base.group or (group if base.rule == "exact" else 0))


WIDEST = 8  # registers in a row of accumulators: a panel of Src2 twice as wide as what L1 likes gains nothing


def family(base: Intrinsic, registers: int, *, scalars: int = SCALARS) -> tuple[Intrinsic, ...]:
    """The outer products of `base` that no other one contains; the optimum, if it is among them, is the first.

    A kernel may use fewer rows and registers than its record has, so these cover all that fit `registers`.
    """
    return tuple(outer(base, *shape, scalars=scalars) for shape in _largest(registers, scalars))


@cache
def _largest(registers: int, scalars: int) -> tuple[tuple[int, int], ...]:
    """Rows and registers of the outer products that fit and that no other one contains, as `family` has them."""
    kernels = [
        MicroKernel(mi, ni, _broadcasts(mi, scalars)) for mi in range(1, registers) for ni in range(1, WIDEST + 1)
    ]
    fitting = [kernel for kernel in kernels if kernel.registers <= registers]
    largest = [
        kernel
        for kernel in fitting
        if not any(other != kernel and other.mi >= kernel.mi and other.ni >= kernel.ni for other in fitting)
    ]
    best = optimum(registers)
    largest.sort(key=lambda kernel: (kernel.shape != best.shape, -kernel.intensity(), kernel.registers))
    return tuple(kernel.shape for kernel in largest)


def _broadcasts(mi: int, scalars: int) -> int:
    """Scalars held at a time: the least divisor of mi from `scalars` on, or 1."""
    return next((mii for mii in range(scalars, mi + 1) if mi % mii == 0), 1)


def cube_tile(
    l0a_bytes: int, l0b_bytes: int, l0c_bytes: int, *, square: bool = False, powers: bool = False
) -> tuple[int, int, int]:
    """(M1, N1, K1): the 16 x 16 tiles of a cube unit's f16 product that fit and do most arithmetic per element.

    Accumulators have 4 bytes, inputs 2: ``4*M1*N1*256 <= L0C``, ``2*M1*K1*256 <= L0A``, ``2*K1*N1*256 <= L0B``.
    `square` asks for M1 = N1, `powers` for powers of two. Of equals the squarest, then the one with the smaller M1.
    """
    most = l0c_bytes // 1024
    sizes = [size for size in range(1, most + 1) if not powers or size & (size - 1) == 0]
    fitting = [
        (m, n)
        for m in sizes
        for n in sizes
        if m * n <= most and (m == n or not square) and m * 512 <= l0a_bytes and n * 512 <= l0b_bytes
    ]
    if not fitting:
        message = f"no tile fits into {l0a_bytes}, {l0b_bytes} and {l0c_bytes} bytes"
        raise InvalidArgument(message, help="at least 512, 512 and 1024")
    m, n = max(fitting, key=lambda pair: (cube_intensity(*pair), -abs(pair[0] - pair[1]), -pair[0]))
    return m, n, min(l0a_bytes // (512 * m), l0b_bytes // (512 * n))


def cube_intensity(m1: int, n1: int) -> float:
    """Multiply-adds per element read of an M1*16 x N1*16 tile: ``M*N / (M + N)`` with M, N in elements over K."""
    m, n = m1 * 16, n1 * 16
    return m * n / (m + n)
