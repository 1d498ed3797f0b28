"""Layouts of tiles: the encoding of a tile type is the text of a linear layout with inputs register, lane and warp."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from xdsl.dialects import arith
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, NoneAttr, StringAttr, TensorType
from xdsl.ir import Attribute, SSAValue

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidProgram
from tilewright.kernel.attributes import asked_layout
from tilewright.kernel.dialect import FuncOp, element, shape, tile_type
from tilewright.layouts.bits import power_from
from tilewright.layouts.linear import LinearLayout, dims
from tilewright.layouts.opaque import FORMS, Opaque, opaque
from tilewright.layouts.text import parse

INPUTS = ("register", "lane", "warp")


def with_layout(type_: Attribute, layout: LinearLayout | None) -> Attribute:
    """The type of a tile in a layout; scalars stay scalars."""
    if not isinstance(type_, TensorType):
        return type_
    encoding = NoneAttr() if layout is None else StringAttr(str(layout))
    return TensorType(type_.element_type, list(type_.get_shape()), encoding)


def layout_of(value: SSAValue | Attribute) -> LinearLayout | None:
    """The layout of a tile; None for a scalar and where there is none."""
    type_ = value.type if isinstance(value, SSAValue) else value
    if not isinstance(type_, TensorType) or not isinstance(type_.encoding, StringAttr):
        return None
    return _parsed(type_.encoding.data, tuple(type_.get_shape()))


def assigned_layout(value: SSAValue | Attribute) -> LinearLayout:
    """The layout of a tile; InvalidProgram where there is none."""
    layout = layout_of(value)
    if layout is None:
        type_ = value.type if isinstance(value, SSAValue) else value
        raise InvalidProgram(f"{type_} has no layout", help="run assign-layouts before distribute")
    return layout


def give(value: SSAValue, layout: LinearLayout) -> None:
    """Put a tile into a layout, where it is made; a scalar stays what it is."""
    made = with_layout(value.type, layout)
    if made == value.type:
        return
    value._type = made
    owner = value.owner
    if isinstance(owner, arith.ConstantOp):
        dense = owner.properties["value"]
        assert isinstance(dense, DenseIntOrFPElementsAttr)
        assert isinstance(made, TensorType)
        owner.properties["value"] = DenseIntOrFPElementsAttr(made, dense.data)


@lru_cache(maxsize=4096)
def _parsed(text: str, extents: tuple[int, ...]) -> LinearLayout:
    form = parse(text)
    if isinstance(form, FORMS) and form.opaque:
        return opaque(form, extents)
    return canonical(form.to_linear(extents))


def canonical(layout: LinearLayout) -> LinearLayout:
    """The same layout with all of `INPUTS`, in that order, and outputs by number."""
    if isinstance(layout, Opaque):
        return layout
    outs = tuple(zip(dims(len(layout.shape)), layout.shape, strict=True))
    return LinearLayout(tuple((name, layout.of(name)) for name in INPUTS), outs)


def projected(layout: LinearLayout, extents: Sequence[int]) -> LinearLayout:
    """The layout of a tile with some extents 1: threads and registers that differed along them hold copies."""
    bases = tuple(
        (
            name,
            tuple(tuple(c if extent > 1 else 0 for c, extent in zip(base, extents, strict=True)) for base in vectors),
        )
        for name, vectors in layout.bases
    )
    return LinearLayout(bases, tuple((name, n) for (name, _), n in zip(layout.outs, extents, strict=True)))


def registers(type_: SSAValue | Attribute) -> int:
    """Elements of a tile that one thread holds."""
    layout = layout_of(type_)
    assert layout is not None, f"no layout: {type_}"
    return layout.in_size("register")


def held(type_: Attribute) -> Attribute:
    """The type of what one thread holds of a tile; scalars and views stay what they are."""
    return tile_type([registers(type_)], element(type_)) if shape(type_) else type_


def check_extents(value: SSAValue) -> None:
    """Refuse a tile that no linear layout holds."""
    extents = shape(value)
    if any(extent & (extent - 1) for extent in extents):
        padded = "x".join(str(power_from(extent)) for extent in extents)
        raise InvalidProgram(
            f"a tile of {'x'.join(map(str, extents))} elements for the threads of a block",
            help=f"extents are powers of two: {padded} under bounds",
        )
    if prod(extents) > 1 << 20:
        raise InvalidProgram(f"a tile of {prod(extents)} elements", help="at most 1048576")


def tile_layout_of(kernel: FuncOp) -> LinearLayout | None:
    """The layout of the tiles of a block, where the kernel's attribute `layout` says so."""
    found = asked_layout(kernel)
    return None if found is None else canonical(found)


@dataclass(frozen=True)
class Share:
    """Where along one dimension an element lies: ``thread part XOR register part``, the thread's bit by bit.

    `bits` are (bit of the linear thread number, contribution); `registers` the parts of the registers.
    """

    bits: tuple[tuple[int, int], ...]
    registers: tuple[int, ...]

    @property
    def mask(self) -> int:
        """The bits of a coordinate that threads contribute to."""
        found = 0
        for _, part in self.bits:
            found |= part
        return found


@lru_cache(maxsize=4096)
def shares(layout: LinearLayout) -> tuple[Share, ...]:
    """One share per dimension; lanes are the low bits of a thread's number, warps the high ones."""
    found = []
    lanes = len(layout.of("lane"))
    for dim in range(len(layout.shape)):
        bits = [(bit, base[dim]) for bit, base in enumerate(layout.of("lane")) if base[dim]]
        bits += [(lanes + bit, base[dim]) for bit, base in enumerate(layout.of("warp")) if base[dim]]
        parts = [0]
        for base in layout.of("register"):
            parts += [part ^ base[dim] for part in parts]
        found.append(Share(tuple(bits), tuple(parts)))
    return tuple(found)


def owners(layout: LinearLayout) -> tuple[int, tuple[int, ...]]:
    """Which threads hold an element first: those whose number has no bit of the mask; and in which registers."""
    free = layout.free_bits()
    lanes = len(layout.of("lane"))
    mask = free["lane"] | free["warp"] << lanes
    return mask, tuple(r for r in range(layout.in_size("register")) if not r & free["register"])
