"""Products with few tiles and a long sum: blocks share a tile, each with a part of k; a second kernel adds up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import AnyFloat, IntegerAttr, MemRefType, ModuleOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidProgram
from tilewright.kernel import dialect as tile
from tilewright.kernel.attributes import SPLITS, splits_of
from tilewright.kernel.dialect import INDEX, DotOp, FuncOp, LoadOp, StoreOp, element, operations, shape
from tilewright.kernel.passes.common.effects import PURE
from tilewright.kernel.passes.common.rules.control import trips
from tilewright.kernel.passes.common.settings import at_least
from tilewright.kernel.passes.common.trip import again
from tilewright.kernel.rewrite import constant, insert_before, replace_by_values, uniform

ARENA_ALIGN = 256


PARTS = "_parts"  # what the name of the kernel that sums the parts ends in


@dataclass(frozen=True)
class SplitKPass(ModulePass):
    """Give each of `splits` blocks a part of the trips of a tile's loop over k, and add their sums in a second kernel.

    Before:  @f(a, b, c) grid [M, N] { %r = for %k { %d = dot … }  epilogue  store c }
    After:   @f_parts(a, b, w) grid [S, M, N] { %r = for %k in part s { … }  store w[s] }
             @f(c, w) grid [M, N] { %r = init + w[0] + … + w[S-1]  epilogue  store c }
    Legal for a kernel with one loop in its body, of constant bounds, all of whose results are sums of products, that
    stores nothing before the loop. The order of additions changes, which `tile.dot` leaves open. Launches follow; the
    parts lie behind the arena. A kernel's attribute `splits` is asked first; with 1 nothing changes.
    """

    name = "split-k"
    splits: int = 1

    def __post_init__(self) -> None:
        at_least(1, self, "splits")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in [each for each in op.body.ops if isinstance(each, FuncOp) and not each.block]:
            splits = splits_of(kernel, self.splits)
            loop = _loop(kernel) if splits > 1 else None
            if loop is not None and (count := trips(loop) or 0) >= splits:
                _split(op, kernel, loop, splits, -(-count // splits))


def _loop(kernel: FuncOp) -> scf.ForOp | None:
    """The loop whose results are sums of products, if a kernel is nothing but that and what follows."""
    loops = [op for op in kernel.body.block.ops if isinstance(op, scf.ForOp)]
    if len(loops) != 1 or not loops[0].results:
        return None
    loop, last = loops[0], loops[0].body.block.last_op
    assert last is not None
    before = [op for op in kernel.body.block.ops if op.is_before_in_block(loop)]
    if any(not isinstance(op, LoadOp) and op.name not in PURE for op in before):
        return None
    if any(isinstance(op, StoreOp) for op in loop.walk()):
        return None
    sums = zip(loop.body.block.args[1:], last.operands, strict=True)
    return loop if all(_is_sum(argument, value) for argument, value in sums) else None


def _is_sum(argument: SSAValue, value: SSAValue) -> bool:
    """Whether a trip only adds products to what it carries."""
    while isinstance(value.owner, DotOp):
        value = value.owner.c
    return value is argument and sum(1 for _ in argument.uses) == 1


def _split(module: ModuleOp, kernel: FuncOp, loop: scf.ForOp, splits: int, each: int) -> None:
    name = f"{kernel.sym_name.data}{PARTS}"
    if any(isinstance(op, FuncOp) and op.sym_name.data == name for op in module.body.ops):
        raise InvalidProgram(f"there is a kernel {name} already", where="split-k", help="name it otherwise")
    views: list[Attribute] = [
        MemRefType(element(result), [splits * kernel.programs * prod(shape(result))]) for result in loop.results
    ]
    arguments = [argument.type for argument in kernel.body.block.args]
    parts = FuncOp(name, [*arguments, *views], [splits, *kernel.extents], cost=kernel.cost)
    parts.attributes = {**kernel.attributes, SPLITS: IntegerAttr(1, 64)}  # a part is not split again
    parts.location = kernel.location
    module.body.block.insert_op_before(parts, kernel)
    _fill_parts(parts, kernel, loop, each)
    _add_parts(kernel, loop, views, splits)
    kernel.properties.pop("cost", None)
    kernel.attributes.pop(SPLITS, None)
    kept_of_parts, kept = _without_unused(parts), _without_unused(kernel)
    for main in [op for op in module.body.ops if isinstance(op, tile.MainOp)]:
        _launch(main, kernel.sym_name.data, name, views, kept_of_parts, kept)


class _At:
    """Appends operations to a kernel."""

    def __init__(self, place: Callable[[Operation], None]) -> None:
        self.place = place

    def add(self, op: Operation) -> SSAValue:
        self.place(op)
        return op.results[0]

    def number(self, value: int) -> SSAValue:
        return self.add(arith.ConstantOp(IntegerAttr(value, INDEX)))

    def place_of_part(self, kernel: FuncOp, split: SSAValue, axes: int, tiles: int) -> SSAValue:
        """The first element of a block's part: blocks row-major, `axes` of the grid come before them."""
        total = split
        for axis, extent in enumerate(kernel.extents[axes:]):
            scaled = self.add(arith.MuliOp(total, self.number(extent)))
            total = self.add(arith.AddiOp(scaled, self.add(tile.ProgramIdOp(axes + axis))))
        return self.add(arith.MuliOp(total, self.number(tiles)))


def _fill_parts(parts: FuncOp, kernel: FuncOp, loop: scf.ForOp, each: int) -> None:
    """The kernel up to its loop, over the trips of one part, from zero; the sums go to the part's memory."""
    block = parts.body.block
    values: dict[SSAValue, SSAValue] = dict(zip(kernel.body.block.args, block.args, strict=False))
    for old, new in values.items():
        new.name_hint = old.name_hint
    end = tile.ReturnOp()
    block.add_op(end)
    at = _At(lambda op: insert_before(end, op))
    split = at.add(tile.ProgramIdOp(0))
    again([op for op in kernel.body.block.ops if op.is_before_in_block(loop)], values, end)
    for op in operations(parts.body):
        if isinstance(op, tile.ProgramIdOp) and op.result is not split:
            op.properties["axis"] = IntegerAttr(op.axis.value.data + 1, 64)
    low, high, step = (uniform(bound) for bound in (loop.lb, loop.ub, loop.step))
    assert low is not None
    assert high is not None
    assert step is not None
    length, splits = int(step) * each, parts.extents[0]
    shift = at.add(arith.MuliOp(split, at.number(length)))
    last = at.number(int(low) + length)
    if (trips(loop) or 0) % splits:
        last = at.add(arith.MinSIOp(last, at.add(arith.SubiOp(values[loop.ub], shift))))
    zeros = []
    for result in loop.results:
        type_ = element(result)
        zero = at.add(constant(0.0 if isinstance(type_, AnyFloat) else 0, type_))
        zeros.append(at.add(tile.BroadcastOp(zero, shape(result))))
    body = Region(Block(arg_types=[argument.type for argument in loop.body.block.args]))
    inside: dict[SSAValue, SSAValue] = {**values, **dict(zip(loop.body.block.args, body.block.args, strict=True))}
    yielded = scf.YieldOp()
    body.block.add_op(yielded)
    *ops, terminator = loop.body.block.ops
    counter = arith.AddiOp(body.block.args[0], shift)
    insert_before(yielded, counter)
    inside[loop.body.block.args[0]] = counter.result
    again(ops, inside, yielded)
    insert_before(yielded, scf.YieldOp(*(inside.get(value, value) for value in terminator.operands)))
    body.block.erase_op(yielded)
    made = scf.ForOp(values[loop.lb], last, values[loop.step], zeros, body)
    at.place(made)
    for result, view in zip(made.results, block.args[len(kernel.body.block.args) :], strict=True):
        offset = at.place_of_part(parts, split, 1, prod(shape(result)))
        at.place(StoreOp(result, view, offset, _row_major(shape(result)), align=16))


def _add_parts(kernel: FuncOp, loop: scf.ForOp, views: Sequence[Attribute], splits: int) -> None:
    """The kernel with the sum of the parts in the place of its loop."""
    block = kernel.body.block
    memories = [block.insert_arg(view, len(block.args)) for view in views]
    kernel.properties["function_type"] = FuncOp("k", [argument.type for argument in block.args], []).function_type
    at = _At(lambda op: insert_before(loop, op))
    sums: list[SSAValue] = list(loop.iter_args)
    for split in range(splits):
        for number, memory in enumerate(memories):
            extents, type_ = shape(sums[number]), element(sums[number])
            offset = at.place_of_part(kernel, at.number(split), 0, prod(extents))
            part = at.add(LoadOp(memory, offset, extents, _row_major(extents), align=16))
            plus = arith.AddfOp if isinstance(type_, AnyFloat) else arith.AddiOp
            sums[number] = at.add(plus(sums[number], part))
    replace_by_values(loop, sums)


def _row_major(extents: Sequence[int]) -> list[int]:
    return [prod(extents[dim + 1 :]) for dim in range(len(extents))]


def _without_unused(kernel: FuncOp) -> list[int]:
    """Remove what a kernel computes for nothing, and arguments that nothing uses; which arguments are left."""
    for op in reversed(list(kernel.body.block.ops)):
        if (op.name in PURE or isinstance(op, LoadOp)) and not any(any(result.uses) for result in op.results):
            kernel.body.block.erase_op(op)
    block = kernel.body.block
    kept = [number for number, argument in enumerate(block.args) if any(argument.uses)]
    for argument in [block.args[number] for number in range(len(block.args)) if number not in kept]:
        block.erase_arg(argument)
    kernel.properties["function_type"] = FuncOp("k", [argument.type for argument in block.args], []).function_type
    return kept


def _launch(
    main: tile.MainOp, name: str, parts: str, views: Sequence[Attribute], of_parts: Sequence[int], kept: Sequence[int]
) -> None:
    """Launch both kernels where one was launched, with the parts behind the arena."""
    end = main.arena_bytes.value.data
    for launch in tile.operations(main.body):
        if not isinstance(launch, tile.LaunchOp) or launch.kernel.root_reference.data != name:
            continue
        arguments, start = list(launch.arguments), end
        for view in views:
            start = -(-start // ARENA_ALIGN) * ARENA_ALIGN
            assert isinstance(view, MemRefType)
            buffer = tile.BufferOp("arena", start, view)
            insert_before(_outermost(launch, main), buffer)
            arguments.append(buffer.result)
            start += prod(view.get_shape()) * view.element_type.bitwidth // 8
        insert_before(launch, tile.LaunchOp(parts, [arguments[number] for number in of_parts]))
        insert_before(launch, tile.LaunchOp(name, [arguments[number] for number in kept]))
        block = launch.parent_block()
        assert block is not None, "a launch is in the host sequence or in a loop of it"
        block.erase_op(launch)
        main.properties["arena_bytes"] = IntegerAttr(max(start, main.arena_bytes.value.data), 64)


def _outermost(op: Operation, main: tile.MainOp) -> Operation:
    """The operation of the host sequence itself that `op` is in."""
    while (outer := op.parent_op()) is not main:
        assert outer is not None, "a launch is in tile.main"
        op = outer
    return op
