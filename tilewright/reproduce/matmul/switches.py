"""The optimisations of a product on a GPU as switches: which program and which settings of passes a set of them means.

The program says what a block computes: an element of C per thread, multiply-adds on tiles, or matrix instructions on
tiles. It reads and writes C in every trip, as the loops of the source do. Everything else is done by passes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

from tilewright.errors import InvalidArgument
from tilewright.kernel.passes.table import run_pipeline
from tilewright.kernel.text import parse_module

Sizes = tuple[int, int, int]  # M, N, K
INTRINSIC: Final = "mma_m16n8k16_f16_f32"

#: What every switch does, in the order of the ladder, and which others it needs.
SWITCHES: Final[Mapping[str, tuple[str, ...]]] = {
    "tiles": (),
    "matrix-ops": ("tiles",),
    "hoist-c": (),
    "padding": ("tiles",),
    "vector-copy": ("tiles",),
    "latency-hiding": ("tiles", "hoist-c"),
    "ldmatrix": ("matrix-ops",),
    "swizzle": ("tiles",),
    "async-copy": ("vector-copy", "latency-hiding", "swizzle"),
    "prefetch": ("async-copy", "matrix-ops"),
    "reorder-blocks": ("tiles",),
}
LEVELS: Final[Mapping[str, tuple[str, ...]]] = {
    "L0": (),
    "L1": ("tiles",),
    "L2": ("matrix-ops",),
    "L3": ("hoist-c",),
    "L4": ("padding",),
    "L5": ("vector-copy",),
    "L6": ("latency-hiding",),
    "L7": ("ldmatrix", "swizzle", "async-copy", "prefetch", "reorder-blocks"),
}
"""What every level of the ladder adds to the one before it."""


@dataclass(frozen=True)
class Tiling:
    """A block's tile of C and depth of a slice, and its warps along m and n."""

    block: Sizes
    warps: tuple[int, int]

    @property
    def threads(self) -> int:
        return 32 * prod(self.warps)


ELEMENTS: Final = Tiling((8, 16, 64), (2, 2))  # an element of C per thread
MULTIPLY_ADDS: Final = Tiling((64, 64, 16), (2, 2))
MATRIX: Final = Tiling((128, 128, 64), (2, 4))  # the running example of the publication


@dataclass(frozen=True)
class Settings:
    """How a set of switches is compiled."""

    tiling: Tiling
    intrinsic: str  # "" for an element per thread
    disable: tuple[str, ...]
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def closed(without: Iterable[str], levels: Mapping[str, tuple[str, ...]] = LEVELS) -> dict[str, frozenset[str]]:
    """The switches that are on at every level, without some, and without those that need them.

    >>> sorted(closed(["hoist-c"])["L6"])
    ['matrix-ops', 'padding', 'tiles', 'vector-copy']
    """
    off = set(without)
    for name in off:
        if name not in SWITCHES:
            raise InvalidArgument(f"no optimisation {name!r}", where="--without", help=f"one of {', '.join(SWITCHES)}")
    while more := {name for name, needs in SWITCHES.items() if name not in off and off & set(needs)}:
        off |= more
    found: dict[str, frozenset[str]] = {}
    on: frozenset[str] = frozenset()
    for level, adds in levels.items():
        on |= {name for name in adds if name not in off}
        found[level] = on
    return found


def settings(on: Collection[str], tiling: Tiling | None = None) -> Settings:
    """The program and the passes of a set of switches, each of which has what it needs in the set."""
    for name in on:
        missing = [need for need in SWITCHES[name] if need not in on]
        if missing:
            raise InvalidArgument(f"{name} without {', '.join(missing)}", help="a switch needs those that it rests on")
    usual = ELEMENTS if "tiles" not in on else MATRIX if "matrix-ops" in on else MULTIPLY_ADDS
    passes = {"hoist-c": "hoist-accumulators", "latency-hiding": "pipeline-registers", "async-copy": "pipeline-loads",
              "prefetch": "prefetch-fragments", "reorder-blocks": "order-blocks"}  # fmt: skip
    memory = "swizzled" if "swizzle" in on else "padded" if "padding" in on else "plain"
    return Settings(
        tiling or usual,
        "" if "tiles" not in on else INTRINSIC if "matrix-ops" in on else "fma",
        tuple(name for switch, name in passes.items() if switch not in on),
        {
            "assign-layouts": {"access_bytes": 16 if "vector-copy" in on else 2},
            "distribute": {"memory": memory, "matrix_loads": "ldmatrix" in on},
        },
    )


def compiled(sizes: Sizes, chosen: Settings) -> Any:
    """The kernel ``k(a, b, c)``, c += a b, in distributed form."""
    program = tiles(sizes, chosen.tiling, chosen.intrinsic) if chosen.intrinsic else elements(sizes, chosen.tiling)
    module = parse_module(program)
    run_pipeline(module, "gpu", chosen.disable, options=chosen.options)
    return module


def tiles(sizes: Sizes, tiling: Tiling, intrinsic: str, accumulator: str = "f32", attributes: str = "") -> str:
    """``c += a b``: a block per tile of c, which is read and written for every slice of k."""
    (m, n, k), (bm, bn, bk) = sizes, tiling.block
    a, b, c = f"memref<{m * k}xf16>", f"memref<{k * n}xf16>", f"memref<{m * n}x{accumulator}>"
    x, y, z = f"tensor<{bm}x{bk}xf16>", f"tensor<{bk}x{bn}xf16>", f"tensor<{bm}x{bn}x{accumulator}>"
    return f"""\
{_head(sizes, tiling, accumulator, attributes)}
  %bk = arith.constant {bk} : index
  %depth = arith.constant {k} : index
  %low = arith.constant 0 : index
  %rows = arith.muli %i, %depth : index
  scf.for %k = %low to %depth step %bk {{
    %ao = arith.addi %rows, %k : index
    %kn = arith.muli %k, %width : index
    %bo = arith.addi %kn, %j : index
    %x = tile.load %a[%ao] strides [{k}, 1] align 16 : {a} -> {x}
    %y = tile.load %b[%bo] strides [{n}, 1] align 16 : {b} -> {y}
    %z = tile.load %c[%co] strides [{n}, 1] align 16 : {c} -> {z}
    %d = tile.dot "{intrinsic}" %x, %y, %z unsigned "" : {x}, {y}, {z}
    tile.store %d, %c[%co] strides [{n}, 1] align 16 : {z}, {c}
  }}
  tile.return
}}
"""


def elements(sizes: Sizes, tiling: Tiling) -> str:
    """``c += a b``: a thread per element of c, which is read and written for every k."""
    (m, n, k), (bm, bn, _) = sizes, tiling.block
    a, b, c = f"memref<{m * k}xf16>", f"memref<{k * n}xf16>", f"memref<{m * n}xf32>"
    h, z, t = f"tensor<{bm}x{bn}xf16>", f"tensor<{bm}x{bn}xf32>", f"tensor<{bm}x{bn}xi64>"
    return f"""\
{_head(sizes, tiling)}
  %one = arith.constant 1 : index
  %depth = arith.constant {k} : index
  %low = arith.constant 0 : index
  %rows = arith.muli %i, %depth : index
  %row = tile.iota 0 : {t}
  %column = tile.iota 1 : {t}
  %line = arith.constant dense<{k}> : {t}
  %down = arith.muli %row, %line : {t}
  scf.for %k = %low to %depth step %one {{
    %ao = arith.addi %rows, %k : index
    %kn = arith.muli %k, %width : index
    %bo = arith.addi %kn, %j : index
    %as = arith.index_cast %ao : index to i64
    %bs = arith.index_cast %bo : index to i64
    %at = tile.broadcast %as : i64 -> {t}
    %bt = tile.broadcast %bs : i64 -> {t}
    %ap = arith.addi %down, %at : {t}
    %bp = arith.addi %column, %bt : {t}
    %x = tile.gather %a[%ap : {t}] : {a} -> {h}
    %y = tile.gather %b[%bp : {t}] : {b} -> {h}
    %xf = tile.cast %x : {h} -> {z}
    %yf = tile.cast %y : {h} -> {z}
    %xy = arith.mulf %xf, %yf : {z}
    %z = tile.load %c[%co] strides [{n}, 1] align 16 : {c} -> {z}
    %d = arith.addf %z, %xy : {z}
    tile.store %d, %c[%co] strides [{n}, 1] align 16 : {z}, {c}
  }}
  tile.return
}}
"""


def _head(sizes: Sizes, tiling: Tiling, accumulator: str = "f32", attributes: str = "") -> str:
    """The kernel up to the place of the block's tile of c."""
    (m, n, k), (bm, bn, bk) = sizes, tiling.block
    for size, part, name in zip((m, n, k), (bm, bn, bk), "MNK", strict=True):
        if size % part:
            raise InvalidArgument(f"{name} = {size} is no multiple of {part}", where="sizes", help=f"blocks of {part}")
    a, b, c = f"memref<{m * k}xf16>", f"memref<{k * n}xf16>", f"memref<{m * n}x{accumulator}>"
    warps = f"warps = array<i64: {tiling.warps[0]}, {tiling.warps[1]}>{attributes}"
    return f"""\
tile.func @k(%a: {a}, %b: {b}, %c: {c}) grid [{m // bm}, {n // bn}] attributes {{{warps}}} {{
  %p = tile.program_id 0
  %q = tile.program_id 1
  %bm = arith.constant {bm} : index
  %bn = arith.constant {bn} : index
  %width = arith.constant {n} : index
  %i = arith.muli %p, %bm : index
  %j = arith.muli %q, %bn : index
  %in = arith.muli %i, %width : index
  %co = arith.addi %in, %j : index"""
