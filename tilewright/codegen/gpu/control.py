"""Kernels in distributed form to LLVM IR: how they are launched, their operations in order, loops and branches."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from llvmlite import ir
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Block, Operation, Region, SSAValue

from tilewright.codegen.elementwise import ELEMENT
from tilewright.codegen.gpu import elements
from tilewright.codegen.gpu.emission import LOCAL, SHARED, Emission, Place, Tile, from_words, to_words
from tilewright.codegen.loops import counted_loop, either
from tilewright.codegen.values import I8, I32, I64, bits_of, llvm_type
from tilewright.errors import InvalidProgram
from tilewright.kernel import dialect as tile
from tilewright.kernel import simt
from tilewright.kernel.block_limits import check_shared
from tilewright.kernel.facts import Facts

SHARED_ALIGN = 1024  # what the widest swizzle of shared memory wants
LOCAL_ALIGN = 16
_MOST = (2**31 - 1, 65_535, 65_535)  # blocks along x, y, z
# Views below this many elements are addressed with 32 bits: what a masked block hangs over fits as well.
_NARROW_ELEMENTS = 1 << 30


def entry_name(func: tile.FuncOp) -> str:
    """The name of a kernel in machine code."""
    name = re.sub(r"[^A-Za-z0-9_$]", "_", func.sym_name.data)
    return name if name[0].isalpha() else f"kernel_{name}"


def grid_of(func: tile.FuncOp) -> tuple[int, int, int]:
    """Blocks along x, y and z: the last axis of the program is x; more than three axes share x.

    Blocks that run a program together are neighbours along x.
    """
    x, y, z = _programs(func)
    return x * func.blocks, y, z


def _programs(func: tile.FuncOp) -> tuple[int, int, int]:
    """Programs along x, y and z."""
    extents = tuple(reversed(func.extents))
    most = (_MOST[0] // func.blocks, *_MOST[1:])
    if len(extents) <= 3 and all(extent <= limit for extent, limit in zip(extents, most, strict=False)):
        x, y, z = (*extents, 1, 1, 1)[:3]
        return x, y, z
    if func.programs > most[0]:
        blocks = func.programs * func.blocks
        raise InvalidProgram(f"kernel {func.sym_name.data}: {blocks} blocks", help=f"at most {_MOST[0]}")
    return func.programs, 1, 1


def block_of(func: tile.FuncOp, lanes: int) -> tuple[int, int, int]:
    """Threads along x, y and z, in warps of `lanes`; InvalidProgram for a kernel that is not in distributed form."""
    name = func.sym_name.data
    if not func.block:
        raise InvalidProgram(f"kernel {name} is in tile form", help="code is made of what one thread does")
    if func.lanes != lanes and prod(func.block) != 1:
        raise InvalidProgram(f"kernel {name}: warps of {func.lanes} threads", help=f"warps have {lanes}")
    x, y, z = func.block
    return x, y, z


def views_of(func: tile.FuncOp) -> list[SSAValue]:
    made = [result for op in tile.operations(func.body) for result in op.results if isinstance(result.type, MemRefType)]
    return [*func.body.block.args, *made]


def elements_of(view: SSAValue) -> int:
    type_ = view.type
    assert isinstance(type_, MemRefType), "arguments of kernels and results of allocations are views"
    return int(type_.get_shape()[0])


def index_type(func: tile.FuncOp) -> ir.IntType:
    """The machine type of `index` in a kernel."""
    return I32 if all(elements_of(value) < _NARROW_ELEMENTS for value in views_of(func)) else I64


def coordinates(at: Emission, block_id: Callable[[str], ir.Value]) -> list[ir.Value]:
    """The coordinate of this block's program along every axis of the grid; `block_id` gives its own along x, y or z."""
    func, builder = at.func, at.builder
    grid = _programs(func)
    extents = tuple(reversed(func.extents))

    def program(axis: str) -> ir.Value:
        own = block_id(axis)
        return builder.udiv(own, I32(func.blocks)) if axis == "x" and func.blocks > 1 else own

    if (*extents, 1, 1, 1)[:3] == grid and len(extents) <= 3:
        found = [I32(0) if extent == 1 else program(axis) for extent, axis in zip(extents, "xyz", strict=False)]
    else:
        found, rest = [], program("x")
        for extent in extents:
            found.append(builder.urem(rest, I32(extent)) if extent != 1 else I32(0))
            rest = builder.udiv(rest, I32(extent)) if extent != 1 else rest
    return [at.to_index(coordinate) for coordinate in reversed(found)]


# Memory ---------------------------------------------------------------------------------------------------------------


def shared_places(func: tile.FuncOp, facts: Facts) -> tuple[dict[simt.SharedOp, int], int]:
    """Where every shared allocation begins, in bytes, and what they take together.

    Allocations without an offset follow those with one. Raises InvalidProgram where a block may not have so much.
    """
    found = [op for op in tile.operations(func.body) if isinstance(op, simt.SharedOp)]
    end = max((op.offset.value.data + op.bytes for op in found if op.offset is not None), default=0)
    places = {}
    for op in found:
        align = op.align.value.data
        if align > SHARED_ALIGN:
            name = func.sym_name.data
            raise InvalidProgram(f"kernel {name}: shared memory aligned to {align} bytes", help=f"{SHARED_ALIGN}")
        if op.offset is None:
            places[op] = -(-end // align) * align
            end = places[op] + op.bytes
        else:
            places[op] = op.offset.value.data
    check_shared(func, end, facts)
    return places, end


def place_shared(at: Emission, places: dict[simt.SharedOp, int], array: ir.Value) -> None:
    """Say where in an array of bytes, aligned to `SHARED_ALIGN`, every shared allocation lies."""
    for op, start in places.items():
        pointer = at.builder.gep(array, [I32(start)], source_etype=I8)
        pointer.type = ir.PointerType(addrspace=at.spaces[SHARED])
        element = llvm_type(tile.element(op.result))
        known = min(SHARED_ALIGN, start & -start) if start else SHARED_ALIGN
        align = max(known, op.align.value.data)
        at.places[op.result] = Place(pointer, element, SHARED, align, elements_of(op.result))


# Operations -----------------------------------------------------------------------------------------------------------


def walk(at: Emission, block: Block) -> None:
    """Emit the operations of a block; operations of its own a target gives as `Emission.handlers`."""
    for op in block.ops:
        handler = at.handlers.get(type(op)) or HANDLERS.get(type(op))
        if handler is not None:
            handler(at, op)
        elif op.name in ELEMENT:
            elements.element(at, op)
        else:
            raise InvalidProgram(f"no machine code for operation {op.name} in kernel {at.name}")


def _program_id(at: Emission, op: tile.ProgramIdOp) -> None:
    at.set(op.result, [at.coordinates[op.axis.value.data]])


def _alloc(at: Emission, op: tile.AllocOp) -> None:
    element, count = llvm_type(tile.element(op.result)), elements_of(op.result)
    with at.builder.goto_entry_block():
        memory_ = at.builder.alloca(ir.ArrayType(element, count))
    space = at.spaces[LOCAL]
    memory_.align = f"{LOCAL_ALIGN}, addrspace({space})" if space else LOCAL_ALIGN  # llvmlite prints no space itself
    memory_.type = ir.PointerType(addrspace=space)
    at.places[op.result] = Place(memory_, element, LOCAL, LOCAL_ALIGN, count)


# Control --------------------------------------------------------------------------------------------------------------


def _carried(at: Emission, values: Sequence[Tile]) -> list[ir.Value]:
    """Registers that cross blocks: elements narrower than a register travel in words."""
    return [register for value in values for register in _packed(at, value)]


def _packed(at: Emission, value: Tile) -> Sequence[ir.Value]:
    narrow = 1 < bits_of(value.elements[0].type) < 32 and len(value.elements) > 1
    return to_words(at.builder, value.elements) if narrow else value.elements


def _unpacked(at: Emission, like: Sequence[Tile], registers: Sequence[ir.Value]) -> list[Tile]:
    found, start = [], 0
    for value in like:
        type_, count = value.elements[0].type, len(value.elements)
        per = 32 // bits_of(type_) if 1 < bits_of(type_) < 32 and count > 1 else 1
        words = registers[start : start + -(-count // per)]
        start += len(words)
        pieces = from_words(at.builder, words, type_, count) if per > 1 else list(words)
        found.append(Tile(value.shape, tuple(pieces)))
    return found


def _for(at: Emission, op: scf.ForOp) -> None:
    initial = [at.values[value] for value in op.iter_args]

    def body(index: ir.Value, registers: list[ir.Value]) -> list[ir.Value]:
        variable, *arguments = op.body.block.args
        at.values[variable] = Tile((), (index,))
        at.values.update(zip(arguments, _unpacked(at, initial, registers), strict=True))
        walk(at, op.body.block)
        return _carried(at, _yielded(at, op.body.block))

    bounds = at.scalar(op.lb), at.scalar(op.ub), at.scalar(op.step)
    registers = counted_loop(at.builder, bounds, _carried(at, initial), body)
    at.values.update(zip(op.results, _unpacked(at, initial, registers), strict=True))


def branch(at: Emission, op: scf.IfOp) -> None:
    like: list[Tile] = []

    def emit(region: Region) -> list[ir.Value]:
        if not region.blocks:
            return []
        walk(at, region.block)
        like[:] = _yielded(at, region.block)
        return _carried(at, like)

    registers = either(at.builder, at.scalar(op.cond), lambda: emit(op.true_region), lambda: emit(op.false_region))
    at.values.update(zip(op.results, _unpacked(at, like, registers), strict=True))


def _yielded(at: Emission, block: Block) -> list[Tile]:
    """What the terminator of a block gives to the loop or branch around it."""
    last = block.last_op
    assert isinstance(last, scf.YieldOp), "verified loops and branches end with a yield"
    return [at.values[value] for value in last.arguments]


def _nothing(at: Emission, op: Operation) -> None:
    """Terminators: their operands are read by the loop or branch that they end; places of shared memory are known."""


HANDLERS: dict[type[Operation], Callable[[Emission, Any], None]] = {
    arith.ConstantOp: elements.constant,
    arith.IndexCastOp: elements.index_cast,
    scf.ForOp: _for,
    scf.IfOp: branch,
    scf.YieldOp: _nothing,
    tile.ReturnOp: _nothing,
    tile.ProgramIdOp: _program_id,
    tile.AllocOp: _alloc,
    tile.IotaOp: elements.iota,
    tile.BroadcastOp: elements.broadcast,
    tile.ReshapeOp: elements.reshape,
    tile.ReduceOp: elements.reduce,
    tile.CastOp: elements.cast,
    tile.DotOp: elements.dot,
    simt.SharedOp: _nothing,
    simt.JoinOp: elements.join,
    simt.PartOp: elements.part,
}
