"""An intrinsic as data: what it computes, how its operands lie in registers and memory, what limits and costs it has.

One record per (instruction, shape, dtypes). Matching, validation, the performance model, the reference behaviour
(`execute`) and the emitters all read this one description. Names are family_shape_inputs_accumulator; `aliases` are
the names that other tools use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from functools import cache, cached_property
from math import prod
from typing import Any, Literal

from tilewright.dataclass import dataclass
from tilewright.errors import CompileError, InvalidIntrinsic
from tilewright.expr.core import Axis, Expr, Read
from tilewright.expr.dtypes import DType
from tilewright.expr.text import parse_compute
from tilewright.fields import (
    Fault,
    Place,
    Readable,
    count,
    finite,
    flag,
    integer,
    items,
    optional,
    record,
    required,
    several,
    string,
    table,
)
from tilewright.intrinsics.elements import bits, is_float

#: Who issues the instruction together: one lane of code, a warp, a wave, a group of warps, a core.
Group = Literal["lane", "warp32", "warpgroup128", "wave32", "wave64", "core"]
LoopKind = Literal["S", "R"]
GROUP_LANES: Mapping[Group, int] = {
    "lane": 1, "warp32": 32, "warpgroup128": 128, "wave32": 32, "wave64": 64, "core": 1,
}  # fmt: skip
Combine = Literal["sum", "max", "min"]
Scope = str  # global, shared, reg, uniform, use, and a target's own names (l0a, l0b, l0c, ub, l1)


@dataclass(frozen=True)
class Loop:
    """One intrinsic loop: spatial (`S`, indexes the result) or reduction (`R`)."""

    name: str
    extent: int
    kind: LoopKind


@dataclass(frozen=True)
class Fragment(Readable):
    """Which element of an operand register element `e` of lane `lane` holds: one index expression per operand loop.

    The expressions are text over `lane` and `e` with ``+ * // %``: ``"lane // 4 + 8 * (e // 2 % 2)"``. `replicated`
    says that several lanes hold the same element on purpose.
    """

    lanes: int = required(integer)
    elements: int = required(integer)
    indices: tuple[str, ...] = required(several(string))
    replicated: bool = optional(flag, False)


def _layout(value: Any, place: Place, faults: list[Fault]) -> Any:
    """A formula or word, or a fragment."""
    return value if isinstance(value, str) else record(Fragment)(value, place, faults)


@dataclass(frozen=True)
class Operand(Readable):
    """One operand of the body: its role (`Src1`, `Src2`, `Dst`), element type, loops, scope and place in it.

    `layout` is a `Fragment` (registers of lanes), a formula for the element offset over the operand's loops
    (``"4 * i + r"``), or one of the words row_major, descriptor, opaque. An opaque operand occupies `registers` of 32
    bits of every lane.
    """

    role: str = required(string)
    dtype: DType = required(string)
    loops: tuple[str, ...] = required(several(string))
    scope: Scope = optional(string, "reg")
    layout: Fragment | str = optional(_layout, "row_major")
    registers: int = optional(integer, 0)


@dataclass(frozen=True)
class Movement(Readable):
    """One statement of the memory abstraction: ``dst_scope.operand[loops] = src_scope.operand[address]``.

    `address` is an affine text in the operand's loops and free parameters (``addr_a + i1 * stride_a + r1``); the
    free parameters are what a mapping fills in. `alignment_bytes` is that of the address, `stride_multiple` the
    granularity of strides in elements, `via` the instruction that moves, `value` the constant of a fill. Where lanes
    supply addresses of rows (``ldmatrix``), `lane_address` is the element offset that lane `lane` supplies.
    """

    name: str = required(string)
    operand: str = required(string)
    destination: Scope = required(string)
    source: Scope = required(string)
    address: str = required(string)
    via: str = optional(string, "")
    alignment_bytes: int = optional(integer, 1)
    stride_multiple: int = optional(integer, 1)
    value: float | None = optional(finite)
    lane_address: str = optional(string, "")


@dataclass(frozen=True)
class Limits(Readable):
    """Capacities per scope in bytes, and registers of one lane that one call occupies."""

    capacity_bytes: Mapping[Scope, int] = field(default_factory=dict, metadata={"kind": table(string, integer)})
    registers: int = optional(integer, 0)


@dataclass(frozen=True)
class Numerics(Readable):
    """How `execute` computes: a rule of `intrinsics.numerics`, saturation, denormals, and whether sums have an order.

    Rule `exact` rounds (wraps, saturates) after every `group` points of the reduction; 0: once, after all of them.
    `order` unspecified says that hardware may add in another order and round at other places than `execute` does.
    """

    rule: str = optional(string, "exact")
    group: int = optional(integer, 0)
    saturate: bool = optional(flag, False)
    denormals: Literal["keep", "zero"] = optional(string, "keep")
    order: Literal["fixed", "unspecified"] = optional(string, "unspecified")


@dataclass(frozen=True)
class Cost(Readable):
    """Cycles between two independent issues on one unit, and from issue to result; units per core (multiprocessor)."""

    issue_cycles: float = required(finite)
    latency_cycles: float = optional(finite, 0.0)
    units_per_core: int = optional(integer, 1)


@dataclass(frozen=True)
class Body:
    """`compute`, parsed: ``Dst = combine(Dst, value)`` for every point of the loops.

    `value` is an expression of `expr` over the axes of `loops`; its reads name the operands. Their element types are
    carriers (i64 or f64), those of the record are in its operands.
    """

    combine: Combine
    value: Expr
    reads: tuple[Read, ...]
    axes: tuple[Axis, ...]
    destination: str


@dataclass(frozen=True)
class Intrinsic(Readable):
    """One record. `compute` is index notation (``Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]``); loops that index `Dst`
    are spatial, the others reductions; `operands` are the sources in the order of `compute`, then `Dst`.

    `realised_by` names the instruction of which a composite record (an outer product of registers) is made, `grid` its
    rows, registers per row and steps; `llvm` is LLVM's intrinsic function, `emitter` the name under which code
    generation finds how to emit it. Where LLVM has the function for vectors of several widths, `llvm` has ``{bits}``
    in place of the width, and `vector_bits` lists them. `processors` are those that execute it, where `features` do
    not tell; empty: all that have the features.
    """

    name: str = required(string)
    target: str = required(string)
    compute: str = required(string)
    extents: Mapping[str, int] = required(table(string, integer))
    operands: tuple[Operand, ...] = required(several(record(Operand)))
    cost: Cost = required(record(Cost))
    source: str = required(string)
    group: Group = optional(string, "lane")
    features: tuple[str, ...] = optional(several(string), ())
    processors: tuple[str, ...] = optional(several(string), ())
    memory: tuple[Movement, ...] = optional(several(record(Movement)), ())
    limits: Limits = optional(record(Limits), Limits())
    numerics: Numerics = optional(record(Numerics), Numerics())
    pad_identity: float = optional(finite, 0.0)
    aliases: tuple[str, ...] = optional(several(string), ())
    llvm: str = optional(string, "")
    vector_bits: tuple[int, ...] = optional(several(integer), ())
    emitter: str = optional(string, "")
    realised_by: str = optional(string, "")
    grid: tuple[int, int, int] = optional(items(count, count, count), (1, 1, 1))  # rows, registers per row, steps

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

    @cached_property
    def combine(self) -> Combine:
        """By the sign in `compute`, whose expression most records never need parsed."""
        statement = _STATEMENT.fullmatch(self.compute)
        return self.body.combine if statement is None else _COMBINES[statement[3]]

    @cached_property
    def body(self) -> Body:
        """`compute`, parsed. Raises InvalidIntrinsic where it is not index notation over the loops of `extents`."""
        carrier = "f64" if any(is_float(operand.dtype) for operand in self.operands) else "i64"
        try:
            return _parse_body(self.compute, tuple(self.extents.items()), carrier)
        except CompileError as error:
            raise InvalidIntrinsic(f"compute: {error.message}", where=self.name, help=error.help) from error

    @cached_property
    def functions(self) -> Mapping[int, str]:
        """LLVM's functions by the lanes of the destination, the narrowest first."""
        result = self.destination
        if not self.vector_bits:
            return {prod(self.shape(result)): self.llvm}
        return {size // bits(result.dtype): self.llvm.replace(WIDTH, str(size)) for size in sorted(self.vector_bits)}

    def operand(self, role: str) -> Operand:
        """The operand with this role; raises InvalidIntrinsic if there is none."""
        for operand in self.operands:
            if operand.role == role:
                return operand
        roles = ", ".join(operand.role for operand in self.operands)
        raise InvalidIntrinsic(f"no operand {role!r}", where=self.name, help=f"one of {roles}")

    def shape(self, operand: Operand) -> tuple[int, ...]:
        """The extents of an operand's loops: the shape of its tile."""
        return tuple(self.extents[loop] for loop in operand.loops)

    @property
    def macs(self) -> int:
        """Points of the loop nest: multiply-adds of one call."""
        return prod(self.extents.values())


WIDTH = "{bits}"  # in `Intrinsic.llvm`
_STATEMENT = re.compile(r"\s*(\w+)\s*\[([\w\s,]*)\]\s*(\+=|max=|min=)(.*)", re.DOTALL)
_COMBINES: Mapping[str, Combine] = {"+=": "sum", "max=": "max", "min=": "min"}


@cache
def _parse_body(compute: str, extents: tuple[tuple[str, int], ...], carrier: str) -> Body:
    found = _STATEMENT.fullmatch(compute)
    if found is None:
        raise InvalidIntrinsic(
            f"compute is not a statement: {compute!r}",
            help="write it as Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]; +=, max= and min= combine",
        )
    destination, spatial, sign, value = found.groups()
    indices = [name.strip() for name in spatial.split(",") if name.strip()]
    reduces = any(name not in indices for name, _ in extents)
    parsed = parse_compute(f"{destination}[{spatial}] {sign if reduces else '='} {value}", dict(extents), carrier)
    reads: list[Read] = []
    _collect(parsed.body, reads)
    return Body(_COMBINES[sign], parsed.body, tuple(reads), parsed.loops, destination)


def _collect(expr: Expr, reads: list[Read]) -> None:
    if isinstance(expr, Read):
        reads.append(expr)
    for child in getattr(expr, "args", ()):
        _collect(child, reads)
    if hasattr(expr, "arg"):
        _collect(expr.arg, reads)
