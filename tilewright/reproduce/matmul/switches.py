"""The optimisations of a product on a GPU as switches: which program and which settings of passes a set of them means.

The program says what a block computes: an element of C per thread, multiply-adds on tiles, or matrix instructions on
tiles. It reads and writes C in every trip, as the loops of the source do. Everything else is done by passes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, replace
from math import prod
from typing import Any, Final

from tilewright.codegen.gpu.control import shared_places
from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.kernel.dialect import FuncOp
from tilewright.kernel.facts import NOTHING
from tilewright.kernel.passes.table import run_pipeline
from tilewright.kernel.text import parse_module

Sizes = tuple[int, int, int]  # M, N, K
INTRINSIC: Final = "mma_m16n8k16_f16_f32"
INTRINSICS: Final[Mapping[str, str]] = {"mma.sync": INTRINSIC, "wmma": "wmma_16x16x16_f16_f32"}
"""The intrinsic of each kind of matrix instruction."""
LEFT_OUT: Final[Mapping[str, tuple[str, ...]]] = {"mma.sync": (), "wmma": ("ldmatrix", "swizzle", "prefetch")}
"""The switches without effect for a kind of instruction: fragments of unspecified layout are loaded from rows."""


@dataclass(frozen=True)
class Switch:
    """An optimisation: the switches that it needs, what it does here, and what is left without it."""

    needs: tuple[str, ...]
    on: str
    off: str


#: By the names of the publication's steps, in the order of the ablation; the last two are what came after it.
SWITCHES: Final[Mapping[str, Switch]] = {
    "block-tiling": Switch(
        (), "a block computes a tile of c, slice of k by slice", "a thread per element of c, every k from global memory"
    ),
    "shared": Switch(
        ("block-tiling",), "slices of a and b pass through shared memory", "lanes load what they multiply themselves"
    ),
    "warp-tiling": Switch(
        ("block-tiling",), "a warp computes a tile, which its lanes hold", "a thread has one element of the tile"
    ),
    "matrix-ops": Switch(("warp-tiling",), "mma.sync", "multiply-adds"),
    "permute": Switch(
        ("matrix-ops",), "the loops of a warp's tile are inside of the slice: c once per slice",
        "c is read and written for each step of the instruction along k",
    ),
    "outer-product": Switch(
        ("matrix-ops",), "all products of a step of k follow each other", "all steps of one sum follow each other"
    ),
    "unroll": Switch(
        ("matrix-ops",), "a slice is 64 deep: four steps of k in a row, every fragment read once",
        "a slice, and a trip, is one step of k; inside of a step fragments are still read once",
    ),
    "hoist-c": Switch(("permute", "unroll"), "c stays in registers over all slices", "c is read and written per slice"),
    "padding": Switch(("shared",), "rows in shared memory have 16 bytes behind them", "rows follow each other"),
    "vector-copy": Switch(("shared",), "copies of 16 bytes", "copies of 2 bytes"),
    "latency-hiding": Switch(
        ("shared", "hoist-c"), "the next slice is loaded while this one is multiplied", "copy, then compute"
    ),
    "ldmatrix": Switch(("shared", "matrix-ops"), "ldmatrix", "loads of 32 bits per lane"),
    "swizzle": Switch(("shared",), "pieces of rows change places; takes the place of padding", "row after row"),
    "reorder-blocks": Switch(("block-tiling",), "blocks in groups of 8 rows", "row after row of blocks"),
    "async-copy": Switch(
        ("vector-copy", "latency-hiding"), "cp.async into three buffers, or two where three do not fit",
        "through registers into one buffer",
    ),
    "prefetch": Switch(
        ("async-copy",), "fragments of the next step of k are read while products run", "read when they are wanted"
    ),
}  # fmt: skip
EXCLUDES: Final = {"swizzle": "padding"}
"""What cannot be on together: where the first is, the second goes."""

LEVELS: Final[Mapping[str, tuple[str, ...]]] = {
    "L0": (),
    "L1": ("block-tiling", "shared"),
    "L2": ("warp-tiling", "matrix-ops"),
    "L3": ("permute", "outer-product", "unroll", "hoist-c"),
    "L4": ("padding",),
    "L5": ("vector-copy",),
    "L6": ("latency-hiding",),
    "L7": ("ldmatrix", "swizzle", "async-copy", "prefetch", "reorder-blocks"),
}
"""What every level of the ablation adds to the one before it."""


@dataclass(frozen=True)
class Tiling:
    """A block's tile of C and depth of a slice, and its warps along m and n."""

    block: Sizes
    warps: tuple[int, int]

    @property
    def threads(self) -> int:
        return 32 * prod(self.warps)


@dataclass(frozen=True)
class Tilings:
    """The tiles of every kind of program; the publication's example has those of `USUAL`."""

    elements: Tiling  # an element of C per thread, which no tile of a block joins; k is what is counted together
    threads: Tiling  # an element of C per thread
    tiles: Tiling  # a tile of C per thread
    matrix: Tiling


USUAL: Final = Tilings(
    Tiling((8, 16, 64), (2, 2)), Tiling((16, 16, 16), (2, 4)), Tiling((64, 64, 16), (2, 2)),
    Tiling((128, 128, 64), (2, 4)),
)  # fmt: skip
STEP: Final = 16  # of the instruction, along k
STAGES: Final = (3, 2)  # buffers of asynchronous copies, the first that fit


@dataclass(frozen=True)
class Settings:
    """How a set of switches is compiled."""

    tiling: Tiling
    intrinsic: str  # "" for an element per thread
    steps: int  # products of a trip one after the other, each of which reads and writes c
    disable: tuple[str, ...]
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def needs(name: str) -> tuple[str, ...]:
    return SWITCHES[name].needs


def switches_of(mma: str) -> dict[str, Switch]:
    """The switches of a kind of matrix instruction, with its name.

    >>> switches_of("wmma")["matrix-ops"].on
    'wmma'
    """
    found = {name: each for name, each in SWITCHES.items() if name not in LEFT_OUT[mma]}
    return {**found, "matrix-ops": replace(found["matrix-ops"], on=mma)}


def closed(without: Iterable[str], levels: Mapping[str, tuple[str, ...]] = LEVELS) -> dict[str, frozenset[str]]:
    """The switches that are on at every level, without some, and without those that need them.

    >>> sorted(closed(["permute"])["L5"] - closed([])["L2"])
    ['outer-product', 'padding', 'unroll', 'vector-copy']
    """
    off = set(without)
    for name in off:
        if name not in SWITCHES:
            raise InvalidArgument(f"no optimisation {name!r}", where="--without", help=f"one of {', '.join(SWITCHES)}")
    while more := {name for name in SWITCHES if name not in off and off & set(needs(name))}:
        off |= more
    found: dict[str, frozenset[str]] = {}
    on: frozenset[str] = frozenset()
    for level, adds in levels.items():
        on |= {name for name in adds if name not in off}
        on -= {other for name, other in EXCLUDES.items() if name in on}
        found[level] = on
    return found


def check(on: Collection[str]) -> None:
    """Raises InvalidArgument where a switch is on without what it needs, or with what it excludes."""
    for name in on:
        missing = [need for need in needs(name) if need not in on]
        if missing:
            raise InvalidArgument(f"{name} without {', '.join(missing)}", help="a switch needs those that it rests on")
        if EXCLUDES.get(name) in on:
            raise InvalidArgument(f"{name} and {EXCLUDES[name]}", help="one of them")


def settings(on: Collection[str], tilings: Tilings = USUAL, mma: str = "mma.sync") -> Settings:
    """The program and the passes of a legal set of switches."""
    check(on)
    found = [name for name in LEFT_OUT[mma] if name in on]
    if found:
        raise InvalidArgument(f"{found[0]} with {mma}", help="fragments are loaded from rows there")
    tiling, intrinsic, steps = _program(on, tilings, INTRINSICS[mma])
    passes = {"hoist-c": "hoist-accumulators", "latency-hiding": "pipeline-registers", "async-copy": "pipeline-loads",
              "prefetch": "prefetch-fragments", "reorder-blocks": "swizzle-blocks"}  # fmt: skip
    memory = "swizzled" if "swizzle" in on else "padded" if "padding" in on else "plain"
    return Settings(
        tiling,
        intrinsic,
        steps,
        tuple(name for switch, name in passes.items() if switch not in on),
        {
            "assign-layouts": {"access_bytes": 16 if "vector-copy" in on else 2, "promote": "shared" in on},
            "pipeline-loads": {"memory": memory},
            "distribute": {
                "memory": memory,
                "matrix_loads": "ldmatrix" in on,
                "outer_product": "outer-product" in on or "matrix-ops" not in on,
            },
        },
    )


def _program(on: Collection[str], tilings: Tilings, intrinsic: str) -> tuple[Tiling, str, int]:
    """Tiles, instruction, and products one after the other in a trip."""
    if "block-tiling" not in on:
        return tilings.elements, "", 1
    if "matrix-ops" not in on:
        return tilings.tiles if "warp-tiling" in on else tilings.threads, "fma", 1
    (bm, bn, bk), warps = tilings.matrix.block, tilings.matrix.warps
    if "unroll" not in on:
        return Tiling((bm, bn, STEP), warps), intrinsic, 1
    return tilings.matrix, intrinsic, 1 if "permute" in on else bk // STEP


def compiled(sizes: Sizes, chosen: Settings, shared_bytes: int = 0) -> Any:
    """The kernel ``k(a, b, c)``, c += a b, in distributed form.

    `shared_bytes` are what a block may have, 0: any. Where that is too few for three buffers of a slice it has two.
    """
    if chosen.intrinsic:
        program = tiles(sizes, chosen.tiling, chosen.intrinsic, steps=chosen.steps)
    else:
        program = elements(sizes, chosen.tiling)
    for stages in STAGES:
        module = parse_module(program)
        options = {**chosen.options, "allocate-shared": {"most": shared_bytes}}
        options["pipeline-loads"] = {**options["pipeline-loads"], "stages": stages}
        run_pipeline(module, "gpu", chosen.disable, options=options)
        (kernel,) = (op for op in module.body.ops if isinstance(op, FuncOp))
        if not shared_bytes or shared_places(kernel, NOTHING)[1] <= shared_bytes:
            break
    return module


def tiles(
    sizes: Sizes, tiling: Tiling, intrinsic: str, accumulator: str = "f32", attributes: str = "", steps: int = 1
) -> str:
    """``c += a b``: a block per tile of c, which is read and written for every slice of k, or each of its `steps`."""
    (m, n, k), (bm, bn, bk) = sizes, tiling.block
    a, b, c = f"memref<{m * k}xf16>", f"memref<{k * n}xf16>", f"memref<{m * n}x{accumulator}>"
    depth = bk // steps
    x, y, z = f"tensor<{bm}x{depth}xf16>", f"tensor<{depth}x{bn}xf16>", f"tensor<{bm}x{bn}x{accumulator}>"
    trip = ""
    for step in range(steps):
        own = str(step) if step else ""
        if step:
            trip += f"""\
    %at{own} = arith.constant {step * depth} : index
    %k{own} = arith.addi %k, %at{own} : index
"""
        trip += f"""\
    %ao{own} = arith.addi %rows, %k{own} : index
    %kn{own} = arith.muli %k{own}, %width : index
    %bo{own} = arith.addi %kn{own}, %j : index
    %x{own} = tile.load %a[%ao{own}] strides [{k}, 1] align 16 : {a} -> {x}
    %y{own} = tile.load %b[%bo{own}] strides [{n}, 1] align 16 : {b} -> {y}
    %z{own} = tile.load %c[%co] strides [{n}, 1] align 16 : {c} -> {z}
    %d{own} = tile.dot "{intrinsic}" %x{own}, %y{own}, %z{own} unsigned "" : {x}, {y}, {z}
    tile.store %d{own}, %c[%co] strides [{n}, 1] align 16 : {z}, {c}
"""
    return f"""\
{_head(sizes, tiling, accumulator, attributes)}
  %bk = arith.constant {bk} : index
  %depth = arith.constant {k} : index
  %low = arith.constant 0 : index
  %rows = arith.muli %i, %depth : index
  scf.for %k = %low to %depth step %bk {{
{trip}  }}
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
