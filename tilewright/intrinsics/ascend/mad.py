"""The cube unit of Ascend: ``mad`` on fractals of 16 x 32 bytes, and tiles of fractals."""

from __future__ import annotations

from typing import Literal

from tilewright.intrinsics.composite import cube_tile
from tilewright.intrinsics.elements import bits
from tilewright.intrinsics.intrinsic import Cost, Intrinsic, Limits, Movement, Numerics, Operand
from tilewright.intrinsics.shapes import matrix, types_of

SOURCE = "Huawei CANN documentation, Mmad and data formats; Liao et al., DaVinci, Hot Chips 2019"
ASCEND = "ascend"
KIB = 1024
#: Bytes of the buffers of one core.
ASCEND_910 = {"l0a": 64 * KIB, "l0b": 64 * KIB, "l0c": 256 * KIB, "l1": 1024 * KIB, "ub": 256 * KIB}
ASCEND_910B = {"l0a": 64 * KIB, "l0b": 64 * KIB, "l0c": 128 * KIB, "l1": 512 * KIB, "ub": 192 * KIB}
Order = Literal["Nz", "Zz"]
_SCOPES = ("l0a", "l0b", "l0c")


def _moves(a: str, b: str, c: str) -> tuple[Movement, ...]:
    return (
        Movement("dma_a", "Src1", "l1", "global", a, "data_move", 32),
        Movement("dma_b", "Src2", "l1", "global", b, "data_move", 32),
        Movement("lda", "Src1", "l0a", "l1", a, "load2d", 512),
        Movement("ldb", "Src2", "l0b", "l1", b, "load2d, fractals transposed", 512),
        Movement("st_ub", "Dst", "ub", "l0c", c, "fixpipe", 32),
        Movement("st_global", "Dst", "global", "l0c", c, "fixpipe", 32),
    )


def fractal(dtype: str, accumulator: str) -> Intrinsic:
    """One fractal of each operand: 16 x 16 x (32 bytes), K contiguous in A and B."""
    k = 256 // bits(dtype)
    return matrix(
        f"mad_16x16x{k}_{types_of(dtype, dtype, accumulator)}", ASCEND, (16, 16, k), (dtype, dtype, accumulator),
        (f"i1 * {k} + r1", f"i2 * {k} + r1", "i1 * 16 + i2"), group="core", scopes=_SCOPES,
        cost=Cost(1.0), source=SOURCE, limits=Limits(ASCEND_910B),
        memory=_moves("addr_a + i1 * stride_a + r1", "addr_b + i2 * stride_b + r1", "addr_c + i1 * stride_c + i2"),
    )  # fmt: skip


def mad(m1: int, n1: int, k1: int, dtype: str = "f16", accumulator: str = "f32", *, order: Order = "Nz",
        capacity: dict[str, int] | None = None, aliases: tuple[str, ...] = ()) -> Intrinsic:  # fmt: skip
    """A tile of fractals: ``C[m1, n1, m2, n2] += A[m1, k1, m2, k2] * B[k1, n1, n2, k2]``.

    A is stored in order Zz, B in Zn. `order` is that of C: Nz is the hardware's, Zz has m1 outermost.
    """
    k2 = 256 // bits(dtype)
    fractals = f"n1 * {m1} + m1" if order == "Nz" else f"m1 * {n1} + n1"
    parent = fractal(dtype, accumulator)
    return Intrinsic(
        name=f"mad_{m1 * 16}x{n1 * 16}x{k1 * k2}_{types_of(dtype, dtype, accumulator)}",
        target=ASCEND,
        compute="C[m1, n1, m2, n2] += A[m1, k1, m2, k2] * B[k1, n1, n2, k2]",
        extents={"m1": m1, "n1": n1, "k1": k1, "m2": 16, "n2": 16, "k2": k2},
        operands=(
            Operand("A", dtype, ("m1", "k1", "m2", "k2"), "l0a", f"(m1 * {k1} + k1) * {16 * k2} + m2 * {k2} + k2"),
            Operand("B", dtype, ("k1", "n1", "n2", "k2"), "l0b", f"(k1 * {n1} + n1) * {16 * k2} + n2 * {k2} + k2"),
            Operand("C", accumulator, ("m1", "n1", "m2", "n2"), "l0c", f"({fractals}) * 256 + m2 * 16 + n2"),
        ),
        cost=Cost(float(m1 * n1 * k1)),
        source=SOURCE,
        group="core",
        memory=tuple(
            Movement(move.name, {"Src1": "A", "Src2": "B", "Dst": "C"}[move.operand], move.destination, move.source,
                     {"Src1": "addr_a + m1 * stride_m1 + m2 * stride_m2 + k1 * stride_k1 + k2",
                      "Src2": "addr_b + n1 * stride_n1 + n2 * stride_n2 + k1 * stride_k1 + k2",
                      "Dst": "addr_c + m1 * stride_m1 + m2 * stride_m2 + n1 * stride_n1 + n2"}[move.operand],
                     move.via, move.alignment_bytes)
            for move in parent.memory
        ),
        limits=Limits(capacity or ASCEND_910),
        numerics=Numerics() if accumulator == "f32" else Numerics(order="fixed"),
        aliases=aliases,
        realised_by=parent.name,
    )  # fmt: skip


def _best(capacity: dict[str, int], **choice: bool) -> tuple[int, int, int]:
    """The tile with most arithmetic per element; half of its depth along K, since buffers are doubled."""
    m1, n1, k1 = cube_tile(capacity["l0a"], capacity["l0b"], capacity["l0c"], **choice)
    return m1, n1, max(1, k1 // 2)


INTRINSICS = (
    fractal("f16", "f32"),
    fractal("i8", "i32"),
    mad(*_best(ASCEND_910), capacity=ASCEND_910, aliases=("mad_910",)),
    mad(*_best(ASCEND_910B), capacity=ASCEND_910B, aliases=("mad_910b",)),
)
