"""An intrinsic as data: what it computes, how its operands lie in registers and memory, what limits and costs it has.

One record per (instruction, shape, dtypes). Matching, validation, the performance model, the reference behaviour
(`execute`) and the emitters all read this one description. Names are family_shape_inputs_accumulator; `aliases` are
the names that other tools use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Literal

from tilewright.expr.dtypes import DType

#: Who issues the instruction together: one lane of code, a warp, a wave, a group of warps, a core.
Group = Literal["lane", "warp32", "warpgroup128", "wave32", "wave64", "core"]
LoopKind = Literal["S", "R"]
Scope = str  # global, shared, reg, uniform, use, and a target's own names (l0a, l0b, l0c, ub, l1)


@dataclass(frozen=True)
class Loop:
    """One intrinsic loop: spatial (`S`, indexes the result) or reduction (`R`)."""

    name: str
    extent: int
    kind: LoopKind


@dataclass(frozen=True)
class Fragment:
    """Which element of an operand register element `e` of lane `lane` holds: one index expression per operand loop.

    The expressions are text over `lane` and `e` with ``+ * // %``: ``"lane // 4 + 8 * (e // 2 % 2)"``. `replicated`
    says that several lanes hold the same element on purpose.
    """

    lanes: int
    elements: int
    indices: tuple[str, ...]
    replicated: bool = False


@dataclass(frozen=True)
class Operand:
    """One operand of the body: its role (`Src1`, `Src2`, `Dst`), element type, loops, scope and place in it.

    `layout` is a `Fragment` (registers of lanes), a formula for the element offset over the operand's loops
    (``"4 * i + r"``), or one of the words box (row-major), descriptor, opaque.
    """

    role: str
    dtype: DType
    loops: tuple[str, ...]
    scope: Scope = "reg"
    layout: Fragment | str = "box"


@dataclass(frozen=True)
class Movement:
    """One statement of the memory abstraction: ``dst_scope.operand[loops] = src_scope.operand[address]``.

    `address` is an affine text in the operand's loops and free parameters (``addr_a + i1 * stride_a + r1``); the
    free parameters are what a mapping fills in. `alignment_bytes` is that of the address, `stride_multiple` the
    granularity of strides in elements, `via` the instruction that moves, `value` the constant of a fill.
    """

    name: str
    operand: str
    destination: Scope
    source: Scope
    address: str
    via: str = ""
    alignment_bytes: int = 1
    stride_multiple: int = 1
    value: float | None = None


@dataclass(frozen=True)
class Limits:
    """Capacities per scope in bytes, and registers of one lane that one call occupies."""

    capacity_bytes: Mapping[Scope, int] = field(default_factory=dict)
    registers: int = 0


@dataclass(frozen=True)
class Numerics:
    """How `execute` computes: a rule of `instruction.numerics`, saturation, denormals, and whether sums have an order."""

    rule: str = "exact"
    saturate: bool = False
    denormals: Literal["keep", "zero"] = "keep"
    order: Literal["fixed", "unspecified"] = "unspecified"


@dataclass(frozen=True)
class Cost:
    """Cycles between two independent issues on one unit, and from issue to result; units per core (multiprocessor)."""

    issue_cycles: float
    latency_cycles: float = 0.0
    units_per_core: int = 1


@dataclass(frozen=True)
class Intrinsic:
    """One record. `compute` is index notation (``Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]``); loops that index `Dst`
    are spatial, the others reductions; `operands` are the sources in the order of `compute`, then `Dst`.

    `realised_by` names the instruction of which a composite record (an outer product of registers) is made.
    """

    name: str
    target: str
    compute: str
    extents: Mapping[str, int]
    operands: tuple[Operand, ...]
    cost: Cost
    source: str
    group: Group = "lane"
    features: tuple[str, ...] = ()
    memory: tuple[Movement, ...] = ()
    limits: Limits = Limits()
    numerics: Numerics = Numerics()
    pad_identity: float = 0.0
    aliases: tuple[str, ...] = ()
    llvm: str = ""
    realised_by: str = ""

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def destination(self) -> Operand:
        return self.operands[-1]

    @property
    def sources(self) -> tuple[Operand, ...]:
        return self.operands[:-1]

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """All loops, in the order of `extents`."""
        spatial = set(self.destination.loops)
        return tuple(Loop(name, extent, "S" if name in spatial else "R") for name, extent in self.extents.items())

    @property
    def macs(self) -> int:
        """Points of the loop nest: multiply-adds of one call."""
        return prod(self.extents.values())
