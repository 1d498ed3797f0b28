"""Layouts of matrix instructions: results, and operands that lie in registers.

Names: an instruction computes M x N += (M x K) * (K x N); operand 0 is A, operand 1 is B. The matrix dimensions are the
last two of a tile; dimensions before them are batches, over which only warps and registers are distributed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.layouts.bits import is_power_of_two, powers_around
from tilewright.layouts.blocked import Blocked
from tilewright.layouts.form import Distributed
from tilewright.layouts.linear import LinearLayout, along, dims, product, repeated


class Matrix(Distributed):
    """The result of a matrix instruction: `warps` repeat the instruction's tile; further tiles are in registers."""

    warps: tuple[int, ...]

    @property
    def warp_order(self) -> str:
        """The dimensions over which warps are distributed, fastest first."""
        return "nm"

    def _check(self) -> None:
        for key in ("W", "instr"):
            if key in self.KEYS:
                self.powers(key)
        if len(self.warps) < 2:
            raise self.refuse(f"W has {len(self.warps)} dimensions", help="2, and one more per batch dimension")

    @property
    def rank(self) -> int:
        return len(self.warps)

    @property
    def mn(self) -> tuple[str, str]:
        """The names of dimensions m and n."""
        names = dims(self.rank)
        return names[-2], names[-1]

    def rest_order(self, rank: int) -> tuple[int, ...]:
        return (rank - 1, rank - 2, *reversed(range(rank - 2)))

    def repetition(self, shape: tuple[int, ...]) -> LinearLayout:
        return product(self.rank, *self.fragment(), *self.distributed())

    def distributed(self, without: str = "") -> list[LinearLayout]:
        """The factors of the warps; those along dimension `without` ("m" or "n") hold the same."""
        names = dims(self.rank)
        warps = dict(zip(names, self.warps, strict=True))
        place = dict(zip("mn", self.mn, strict=True))
        found = [
            repeated("warp", warps[place[d]]) if d == without else along("warp", warps[place[d]], place[d])
            for d in self.warp_order
        ]
        return [*found, *(along("warp", warps[d], d) for d in reversed(names[:-2]))]

    def fragment(self) -> list[LinearLayout]:
        """The factors of one warp's part of the result."""
        raise NotImplementedError

    def operand(self, index: int, width: int, along_outer: str, along_k: str) -> list[LinearLayout]:
        """The factors of one warp's part of an operand with `width` neighbours along K per lane.

        Raises InvalidArgument where the operand does not lie in registers.
        """
        raise NotImplementedError


def _pairs(rows: int, columns: int, m: str, n: str) -> list[LinearLayout]:
    """A tile whose tiles of 8 x 8 have pairs along n in each of 4 lanes, 8 rows of them along m."""
    return [
        along("register", 2, n), along("lane", 4, n), along("lane", 8, m),
        along("register", rows // 8, m), along("register", columns // 8, n),
    ]  # fmt: skip


@dataclass(frozen=True)
class Mma(Matrix):
    """Results of NVIDIA's matrix instructions: version 2 of a warp (16 x 8), version 3 of a warp in a group of four.

    `instr` is (M, N) of version 2, also 8 x 8 for its small shapes, and (16, N, K) per warp of version 3.
    """

    FORM: ClassVar[str] = "mma"
    KEYS: ClassVar[dict[str, str]] = {"v": "version", "W": "warps", "instr": "instr"}

    version: int
    warps: tuple[int, ...]
    instr: tuple[int, ...] = (16, 8)

    def __post_init__(self) -> None:
        if self.version not in (2, 3):
            raise self.refuse(f"version {self.version}", help="v=2 (a warp) or v=3 (a group of four warps)")
        self._check()
        if self.version == 2 and self.instr not in ((16, 8), (8, 8)):
            raise self.refuse(f"instructions of {list(self.instr)}", help="instr=[16,8], or [8,8] for small shapes")
        if self.version == 3:
            if len(self.instr) != 3 or self.instr[0] != 16 or not 8 <= self.instr[1] <= 256:
                raise self.refuse(f"instructions of {list(self.instr)}", help="instr=[16,N,K], N from 8 to 256")
            if self.warps[-2] % 4:
                raise self.refuse(f"{self.warps[-2]} warps along m", help="a multiple of 4: a group of four warps")

    @property
    def warp_order(self) -> str:
        return "nm" if self.version == 2 else "mn"

    def fragment(self) -> list[LinearLayout]:
        return _pairs(self.instr[0], self.instr[1], *self.mn)

    def operand(self, index: int, width: int, along_outer: str, along_k: str) -> list[LinearLayout]:
        if index == 1:
            if self.version == 3:
                raise self.refuse("operand 1 of version 3 lies in shared memory", help="#nvmma<...>")
            halves = [along("register", 2, along_k)]
        else:
            halves = [along("register", self.instr[0] // 8, along_outer), along("register", 2, along_k)]
        if self.instr == (8, 8):
            halves = []  # one piece of K; more of it are repetitions
        return [
            along("register", width, along_k), along("lane", 4, along_k), along("lane", 8, along_outer), *halves
        ]  # fmt: skip


@dataclass(frozen=True)
class Wmma(Matrix):
    """Fragments of NVIDIA's ``wmma``: result and operands of a warp, opaque.

    Hardware decides which lane holds what, and it differs between generations. The linear form is *one* assignment with
    the documented number of elements per lane, replication included, so that tiles can be sized, distributed to warps
    and treated element-wise; values enter and leave it through memory only (`convert` sees to that). An operand of w=2
    is f16, which is replicated up to 16 elements per lane; bf16, the other 16-bit type, is not.
    """

    FORM: ClassVar[str] = "wmma"
    KEYS: ClassVar[dict[str, str]] = {"W": "warps", "instr": "instr"}

    warps: tuple[int, ...]
    instr: tuple[int, ...] = (16, 16, 16)

    def __post_init__(self) -> None:
        self._check()
        if self.instr not in _WMMA:
            raise self.refuse(
                f"instructions of {list(self.instr)}", help=f"one of {', '.join(map(str, map(list, _WMMA)))}"
            )

    @property
    def opaque(self) -> bool:
        return True

    def fragment(self) -> list[LinearLayout]:
        return _pairs(self.instr[0], self.instr[1], *self.mn)

    def operand(self, index: int, width: int, along_outer: str, along_k: str) -> list[LinearLayout]:
        outer, k = self.instr[index], self.instr[2]
        copies = max(1, 16 // (outer * k // 32)) if width == 2 and k == 16 else 1
        pair = min(width, k // 4)
        return [
            along("register", pair, along_k), along("lane", 4, along_k), along("lane", 8, along_outer),
            along("register", outer // 8, along_outer), along("register", k // (4 * pair), along_k),
            repeated("register", copies),
        ]  # fmt: skip


_WMMA = ((16, 16, 16), (32, 8, 16), (8, 32, 16), (16, 16, 8), (8, 8, 4))  # M, N, K: 8 and 16 bits, tf32, f64


@dataclass(frozen=True)
class AmdWmma(Matrix):
    """Results of AMD's WMMA 16 x 16, of RDNA generation 3 or 4; `transposed` swaps the roles of A and B."""

    FORM: ClassVar[str] = "amd_wmma"
    KEYS: ClassVar[dict[str, str]] = {"v": "version", "W": "warps", "transposed": "transposed"}

    version: int
    warps: tuple[int, ...]
    transposed: bool = False

    def __post_init__(self) -> None:
        self._check()
        if self.version not in (3, 4):
            raise self.refuse(f"version {self.version}", help="v=3 (RDNA 3) or v=4 (RDNA 4)")

    def fragment(self) -> list[LinearLayout]:
        m, n = reversed(self.mn) if self.transposed else self.mn
        if self.version == 3:
            return [along("lane", 16, n), along("lane", 2, m), along("register", 8, m)]
        return [along("lane", 16, n), along("register", 8, m), along("lane", 2, m)]

    def operand(self, index: int, width: int, along_outer: str, along_k: str) -> list[LinearLayout]:
        if self.version == 3:
            if width != 16:
                raise self.refuse(f"w={width} of an operand", help="w=16: a lane holds a whole row of A")
            return [along("register", 16, along_k), along("lane", 16, along_outer), repeated("lane", 2)]
        if width not in (4, 8):
            raise self.refuse(f"w={width} of an operand", help="w=4 (16-bit elements), or w=8")
        return [
            along("register", width, along_k), along("lane", 16, along_outer), along("lane", 2, along_k),
            along("register", 8 // width, along_k),
        ]  # fmt: skip


@dataclass(frozen=True)
class Mfma(Matrix):
    """Results of AMD's MFMA, 16 x 16 or 32 x 32 of a wave of 64; `bits` of an accumulator, `transposed` as for WMMA."""

    FORM: ClassVar[str] = "mfma"
    KEYS: ClassVar[dict[str, str]] = {"W": "warps", "instr": "instr", "bits": "bits", "transposed": "transposed"}

    warps: tuple[int, ...]
    instr: tuple[int, ...] = (32, 32)
    bits: int = 32
    transposed: bool = False

    def __post_init__(self) -> None:
        self._check()
        if self.instr not in ((16, 16), (32, 32)):
            raise self.refuse(f"instructions of {list(self.instr)}", help="instr=[16,16] or [32,32]")
        if self.bits not in (32, 64) or (self.bits == 64 and self.instr != (16, 16)):
            raise self.refuse(f"accumulators of {self.bits} bits", help="bits=32, or 64 with instr=[16,16]")

    def fragment(self) -> list[LinearLayout]:
        m, n = reversed(self.mn) if self.transposed else self.mn
        rows = self.instr[0]
        if self.bits == 64:
            return [along("lane", 16, n), along("lane", 4, m), along("register", 4, m)]
        groups = 64 // rows
        return [
            along("register", 4, m), along("lane", rows, n), along("lane", groups, m),
            along("register", rows // 4 // groups, m),
        ]  # fmt: skip

    def operand(self, index: int, width: int, along_outer: str, along_k: str) -> list[LinearLayout]:
        rows = self.instr[0]
        return [along("register", width, along_k), along("lane", rows, along_outer), along("lane", 64 // rows, along_k)]


@dataclass(frozen=True)
class DotOperand(Distributed):
    """Operand `index` (0: A, M x K; 1: B, K x N) of a product whose result has layout `parent`.

    `width` neighbours along K lie in consecutive registers of a lane: 32 / bits for NVIDIA's version 2 and 3, the
    elements of one piece of K for AMD's. Of a blocked parent, a lane holds all of K (`width` says nothing).
    """

    FORM: ClassVar[str] = "dot"
    KEYS: ClassVar[dict[str, str]] = {"idx": "index", "parent": "parent", "w": "width"}

    index: int
    parent: Matrix | Blocked
    width: int = 1

    def __post_init__(self) -> None:
        self.powers("w")
        if self.index not in (0, 1):
            raise self.refuse(f"operand {self.index}", help="idx=0 (A) or idx=1 (B)")
        if not isinstance(self.parent, Matrix | Blocked) or self.parent.rank < 2:
            raise self.refuse(f"the parent is {self.parent}", help="a matrix layout, or a blocked one of rank 2")
        if isinstance(self.parent, Matrix):
            self.parent.operand(self.index, self.width, "dim0", "dim1")

    @property
    def opaque(self) -> bool:
        return self.parent.opaque

    @property
    def rank(self) -> int:
        return self.parent.rank

    @property
    def _k(self) -> int:
        """The number of dimension k."""
        return self.rank - 1 - self.index

    def repetition(self, shape: tuple[int, ...]) -> LinearLayout:
        names = dims(self.rank)
        outer, k = names[self.rank - 2 + self.index], names[self._k]
        if isinstance(self.parent, Matrix):
            held = self.parent.operand(self.index, self.width, outer, k)
            return product(self.rank, *held, *self.parent.distributed(without="nm"[self.index]))
        p = self.parent
        levels = (("register", p.size_per_thread), ("lane", p.threads_per_warp), ("warp", p.warps))
        return product(
            self.rank,
            *(
                along(level, sizes[d], names[d])
                if d != self._k
                else along(level, shape[d], names[d]) if level == "register" else repeated(level, sizes[d])
                for level, sizes in levels
                for d in p.order
            ),
        )  # fmt: skip

    def rest_order(self, rank: int) -> tuple[int, ...]:
        if isinstance(self.parent, Blocked):
            return self.parent.order
        return (self._k, rank - 2 + self.index, *reversed(range(rank - 2)))


def mma_warps(shape: Sequence[int], warps: int, version: int = 2, instr: tuple[int, int] = (16, 8)) -> tuple[int, ...]:
    """How `warps` are distributed to the instructions that a result of `shape` takes.

    Version 2: the dimension with more instructions left, of `instr` results each, doubles its warps; version 3 starts
    with a group of four along m. Batches take all warps.

    >>> mma_warps((128, 256), 8)
    (2, 4)
    """
    if not is_power_of_two(warps):
        raise InvalidArgument(f"{warps} warps", help=f"a power of two: {powers_around(warps)}")
    *batch, rows, columns = shape
    if batch:
        return (warps, *(1 for _ in shape[1:]))
    if version == 3:
        if warps % 4:
            raise InvalidArgument(f"{warps} warps for instructions of four warps", help="4, 8 or 16")
        along_m, along_n = 4, 1
        while along_m * along_n < warps:
            along_m, along_n = (2 * along_m, along_n) if rows > 16 * along_m else (along_m, 2 * along_n)
        return along_m, along_n
    left = [-(-rows // instr[0]), -(-columns // instr[1])]
    distributed = [1, 1]
    while distributed[0] * distributed[1] < warps:
        d = 0 if left[0] >= left[1] else 1
        distributed[d] *= 2
        left[d] = max(1, left[d] // 2)
    return distributed[0], distributed[1]


def warpgroup_n(columns: int) -> int:
    """N of version 3: the largest multiple of 8 up to 256 that divides the columns of a warp's part.

    Raises InvalidArgument where there is none.
    """
    for n in range(256, 0, -8):
        if columns > 0 and columns % n == 0:
            return n
    raise InvalidArgument(f"{columns} columns", help=f"a multiple of 8: {max(1, -(-columns // 8)) * 8}")
