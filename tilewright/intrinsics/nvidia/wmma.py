"""CUDA WMMA: matrix products of a warp whose fragments are opaque.

Which lane holds which element differs between architectures, so only uniform elementwise work is possible on a
fragment; what needs coordinates goes through shared memory, or uses ``mma.sync``.
"""

from __future__ import annotations

from tilewright.intrinsics.elements import bits
from tilewright.intrinsics.intrinsic import Cost, Intrinsic, Limits, Movement
from tilewright.intrinsics.shapes import MATRIX, matrix, types_of

SOURCE = "CUDA C++ Programming Guide, warp matrix functions; PTX ISA 8.5, wmma"
CUDA = "cuda"


def _memory(dtypes: tuple[str, str, str]) -> tuple[Movement, ...]:
    """Every operand in row or column order, from shared or global memory; the narrowest types in one order only."""
    found = [Movement("fill", "Dst", "reg", "constant", "", "fill_fragment", value=0.0)]
    orders = {
        "a": ("Src1", "load_matrix_sync", {"row": "i1 * stride_a + r1", "col": "r1 * stride_a + i1"}),
        "b": ("Src2", "load_matrix_sync", {"row": "r1 * stride_b + i2", "col": "i2 * stride_b + r1"}),
        "c": ("Dst", "store_matrix_sync", {"row": "i1 * stride_c + i2", "col": "i2 * stride_c + i1"}),
    }
    for (letter, (role, via, addresses)), dtype in zip(orders.items(), dtypes, strict=True):
        width = bits(dtype)
        for order, address in addresses.items():
            if width < 8 and (letter, order) not in (("a", "row"), ("b", "col")):
                continue
            for scope in ("shared", "global"):
                there, here = (scope, "reg") if letter == "c" else ("reg", scope)
                found.append(Movement(f"{letter}_{order}_{scope}", role, there, here, f"addr_{letter} + {address}", via,
                                      32, max(1, 128 // width)))  # fmt: skip
    return tuple(found)


def wmma(
    shape: tuple[int, int, int],
    dtypes: tuple[str, str, str],
    feature: str,
    cycles: float,
    llvm: str = "",
    *,
    compute: str = MATRIX,
    suffix: str = "",
    aliases: tuple[str, ...] = (),
) -> Intrinsic:
    """A record of this family; sources of f16 are held twice."""
    m, n, k = shape
    a, b, c = (max(1, points * bits(t) // 1024) for points, t in zip((m * k, k * n, m * n), dtypes, strict=True))
    registers = (8, 8, c) if dtypes[0] == "f16" else (a, b, c)
    return matrix(
        f"wmma_{m}x{n}x{k}_{types_of(*dtypes)}{suffix}", CUDA, shape, dtypes, ("opaque",) * 3, group="warp32",
        features=(feature,), cost=Cost(cycles, 2 * cycles, 4), source=SOURCE, memory=_memory(dtypes),
        registers=registers, limits=Limits(registers=sum(registers)),
        llvm=f"llvm.nvvm.wmma.m{m}n{n}k{k}.mma.{llvm}" if llvm else "", compute=compute, aliases=aliases,
    )  # fmt: skip


_SHAPES = ((16, 16, 16), (32, 8, 16), (8, 32, 16))
_XOR = "Dst[i1, i2] += Src1[i1, r1] ^ Src2[r1, i2]"
# Cycles at full rate: V100 for f16, the first device with the feature for others.
INTRINSICS = (
    *(wmma(shape, ("f16", "f16", c), "sm_70", 32.0, f"row.col.{c}.{c}",
           aliases=(f"NV_WMMA_{c.upper()}_16x16x16_F16",) if shape == _SHAPES[0] else ())
      for shape in _SHAPES for c in ("f32", "f16")),
    *(wmma(shape, ("bf16", "bf16", "f32"), "sm_80", 16.0, "row.col.bf16",
           aliases=("NV_WMMA_F32_16x16x16_BF16",) if shape == _SHAPES[0] else ())
      for shape in _SHAPES),
    *(wmma(shape, (t, t, "i32"), "sm_72", 16.0, f"row.col.{'s8' if t == 'i8' else t}")
      for shape in _SHAPES for t in ("i8", "u8")),
    wmma((16, 16, 8), ("tf32", "tf32", "f32"), "sm_80", 16.0, "row.col.tf32",
         aliases=("NV_WMMA_F32_16x16x8_TF32",)),
    wmma((8, 8, 4), ("f64", "f64", "f64"), "sm_80", 16.0, "row.col.f64"),
    *(wmma((8, 8, 32), (t, t, "i32"), "sm_75", 4.0, f"row.col.{'s4' if t == 'i4' else t}") for t in ("i4", "u4")),
    wmma((8, 8, 128), ("b1", "b1", "i32"), "sm_75", 4.0, "xor.popc.row.col.b1", compute=_XOR),
    wmma((8, 8, 128), ("b1", "b1", "i32"), "sm_80", 4.0, "and.popc.row.col.b1", suffix="_and"),
)  # fmt: skip
