"""Every operation on tiles of a block becomes what each thread does with its registers, as the layouts say."""

from __future__ import annotations

from math import prod

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, ModuleOp, TensorType
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidProgram
from tilewright.kernel import circular_buffer, simt
from tilewright.kernel import dialect as tile
from tilewright.kernel.attributes import LIMITS, warps_of
from tilewright.kernel.axis_info import AxisAnalysis
from tilewright.kernel.bulk_stores import BulkStoreOp, FinishStoresOp
from tilewright.kernel.dialect import INDEX, FuncOp, element, shape
from tilewright.kernel.elements import ELEMENT
from tilewright.kernel.facts import NOTHING, facts_of
from tilewright.kernel.passes.common.settings import one_of, power_of_two
from tilewright.kernel.passes.gpu.distribution.bulk_stores import expand as bulk_store
from tilewright.kernel.passes.gpu.distribution.bulk_stores import finish as finish_stores
from tilewright.kernel.passes.gpu.distribution.circular_buffer import expand as buffer
from tilewright.kernel.passes.gpu.distribution.conversions import convert, may_wait, read_waiting
from tilewright.kernel.passes.gpu.distribution.expansion import Expansion, Settings
from tilewright.kernel.passes.gpu.distribution.global_memory import gather, load, store
from tilewright.kernel.passes.gpu.distribution.layout import assigned_layout, held, registers, shares
from tilewright.kernel.passes.gpu.distribution.products import dot
from tilewright.kernel.passes.gpu.distribution.reductions import reduce
from tilewright.kernel.passes.gpu.distribution.rows import MEMORIES
from tilewright.kernel.passes.gpu.distribution.shared_tiles import stage, unstage
from tilewright.layouts.opaque import Opaque
from tilewright.machine.units import MATRIX_LOADS

_KEPT = (scf.YieldOp, tile.ReturnOp)  # whatever their operands are


@dataclass(frozen=True)
class DistributePass(ModulePass):
    """Expand every kernel whose tiles have layouts into what one thread of its block does.

    Before:  %y = arith.addf %x, %x : tensor<256xf32, "#linear<…>">
    After:   %y = arith.addf %x, %x : tensor<2xf32>, in a kernel with `threads`
    Legal where every tile has a layout: needs `assign-layouts` with the same number of warps. Afterwards no tile has
    one, and tiles have one dimension.
    """

    name = "distribute"
    warps: int = 4
    lanes: int = 32
    memory: str = "swizzled"  # of conversions; or "padded", "plain"
    matrix_loads: bool = True  # where the machine has them
    outer_product: bool = True  # of a step of k all products before those of the next; else one sum after the other

    def __post_init__(self) -> None:
        power_of_two(self, "warps", "lanes")
        one_of(MEMORIES, self, "memory")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        facts = facts_of(op)
        lanes_load = facts != NOTHING and MATRIX_LOADS not in facts.units
        matrix_loads = self.matrix_loads and not lanes_load
        at_once = facts.shared_bytes // 2 if lanes_load else 0  # the rest is for what else is in use
        for kernel in list(op.body.ops):
            if isinstance(kernel, FuncOp) and not kernel.block:
                warps = prod(warps_of(kernel) or (self.warps,))
                made = distribute(kernel, warps, self.lanes, self.memory, matrix_loads, self.outer_product, at_once)
                op.body.block.insert_op_before(made, kernel)
                op.body.block.erase_op(kernel)


def distribute(
    kernel: FuncOp, warps: int, lanes: int, memory: str = "swizzled", matrix_loads: bool = True,
    outer_product: bool = True, at_once: int = 0,
) -> FuncOp:  # fmt: skip
    """The kernel in distributed form; InvalidProgram where layouts are not of so many warps and lanes.

    Conversions that follow each other pass through memory together, up to `at_once` bytes of it: behind one barrier
    threads then read what they want first, and no fragment waits in registers for another operand to be written.
    """
    _check_layouts(kernel, warps, lanes)
    arguments = list(kernel.function_type.inputs.data)
    made = FuncOp(
        kernel.sym_name.data, arguments, kernel.extents, cost=kernel.cost, threads=(warps * lanes, 1, 1), warp=lanes,
        blocks=kernel.blocks,
    )  # fmt: skip
    made.location = kernel.location
    made.attributes = {key: value for key, value in kernel.attributes.items() if key in LIMITS}
    values: dict[SSAValue, SSAValue] = dict(zip(kernel.body.block.args, made.body.block.args, strict=True))
    for old, new in values.items():
        new.name_hint = old.name_hint
    loads = [op for op in tile.operations(kernel.body) if isinstance(op, tile.LoadOp | tile.GatherOp)]
    read = frozenset(op.operands[0] for op in loads)
    facts = AxisAnalysis(kernel) if any(isinstance(op, tile.GatherOp) for op in loads) else None
    settings = Settings(memory, matrix_loads, outer_product, at_once, read, facts)
    _expand(Expansion(made.body.block, values, settings), kernel.body.block)
    return made


def _check_layouts(kernel: FuncOp, warps: int, lanes: int) -> None:
    layouts = {assigned_layout(each) for op in tile.operations(kernel.body) for each in op.results if shape(each)}
    for layout in layouts:
        own = layout.in_size("warp"), layout.in_size("lane")
        if own != (warps, lanes):
            raise InvalidProgram(
                f"kernel {kernel.sym_name.data}: layouts of {own[0]} warps of {own[1]} lanes for {warps} of {lanes}",
                help="give assign-layouts and distribute the same warps and lanes",
            )


def _expand(at: Expansion, source: Block) -> None:
    """Expand what a block of the source does into a block of threads."""
    for op in source.ops:
        if at.waiting and not may_wait(at, op):
            read_waiting(at)
        before = at.target.last_op
        _operation(at, op)
        at.locate(op, before)


def _operation(at: Expansion, op: Operation) -> None:
    """Emit what threads do for an operation, and note what stands for its results."""
    match op:
        case tile.LoadOp() if shape(op.result):
            at.values[op.result] = load(at, op)
        case tile.StoreOp() if shape(op.value):
            store(at, op)
        case tile.StoreOp():
            at.once(lambda: _copy(at, op))
        case tile.GatherOp() if shape(op.result):
            at.values[op.result] = gather(at, op)
        case tile.IotaOp():
            layout = assigned_layout(op.result)
            at.values[op.result] = at.coordinates(shares(layout)[op.axis.value.data])
        case tile.BroadcastOp():
            value = at.values[op.value]
            wide = shape(op.value) or not shape(op.result)
            at.values[op.result] = value if wide else at.repeated(value, registers(op.result))
        case tile.ReshapeOp() if shape(op.value):
            value = at.values[op.value]
            at.values[op.result] = value if shape(op.result) else at.scalar(at.part(value, 0))
        case tile.ReshapeOp():
            at.values[op.result] = at.repeated(at.values[op.value], registers(op.result))
        case tile.ConvertOp():
            converted = convert(at, op)
            if converted is not None:
                at.values[op.result] = converted
        case tile.StagingOp() | tile.AllocOp():
            count = int(op.result.type.get_shape()[0])
            at.values[op.result] = at.shared(count, element(op.result))
        case tile.StageOp():
            stage(at, op)
        case tile.CommitOp():
            at.add(simt.CommitOp())
        case tile.AwaitOp():
            at.add(simt.WaitOp(op.pending.value.data))
            at.add(simt.BarrierOp())
        case tile.BarrierOp():
            at.add(simt.BarrierOp())
        case tile.UnstageOp():
            at.values[op.result] = unstage(at, op)
        case tile.ReduceOp():
            at.values[op.result] = reduce(at, op)
        case tile.DotOp():
            at.values[op.result] = dot(at, op)
        case arith.ConstantOp() if shape(op.result):
            at.values[op.result] = _constant(at, op)
        case _ if isinstance(op, circular_buffer.OPERATIONS):
            buffer(at, op)
        case BulkStoreOp():
            bulk_store(at, op)
        case FinishStoresOp():
            finish_stores(at)
        case tile.ReturnOp() if at.kernel.blocks > 1:  # none of them ends while others may use its memory
            at.add(simt.ClusterBarrierOp())
            _copy(at, op)
        case scf.ForOp():
            _loop(at, op)
        case scf.YieldOp() if isinstance(op.parent_op(), scf.ForOp):
            at.add(scf.YieldOp(*(_once_each(at, operand) for operand in op.operands)))
        case scf.IfOp():
            _branch(at, op)
        case _:
            _copy(at, op)


def _loop(at: Expansion, op: scf.ForOp) -> None:
    """Of registers that hold copies of others, one goes round."""
    carried = [_once_each(at, operand) for operand in op.iter_args]
    block = Block(arg_types=[INDEX, *(value.type for value in carried)])
    inner = at.inside(block)
    for old, new in zip(op.body.block.args, block.args, strict=True):
        new.name_hint = old.name_hint
        inner.values[old] = _with_copies(inner, new, old.type)
    low, high, step = (at.values[bound] for bound in (op.lb, op.ub, op.step))
    # Before what is inside: accesses ask what the loop counts.
    made = scf.ForOp(low, high, step, carried, block)
    _expand(inner, op.body.block)
    at.add(made)
    for result, own in zip(op.results, made.results, strict=True):
        at.values[result] = _with_copies(at, own, result.type)


def _once_each(at: Expansion, value: SSAValue) -> SSAValue:
    """What the thread holds of a value, without registers that hold copies of others."""
    own = at.values[value]
    return at.picked(own, list(dict.fromkeys(_originals(value)))) if shape(value) else own


def _with_copies(at: Expansion, value: SSAValue, type_: Attribute) -> SSAValue:
    """All registers of a tile of `type_` from those that are `_once_each`."""
    if not shape(type_):
        return value
    originals = _originals(type_)
    own = list(dict.fromkeys(originals))
    return at.picked(value, [own.index(register) for register in originals])


def _originals(value: SSAValue | Attribute) -> list[int]:
    """For each register of a tile the first one of the same thread that holds the same element."""
    layout = assigned_layout(value)
    if isinstance(layout, Opaque):
        return list(range(registers(value)))
    first: dict[tuple[int, ...], int] = {}
    places = zip(*(share.registers for share in shares(layout)), strict=True)
    return [first.setdefault(place, register) for register, place in enumerate(places)]


def _branch(at: Expansion, op: scf.IfOp) -> None:
    regions = []
    for region in op.regions:
        made = Region()
        for block in region.blocks:
            inside = Block()
            _expand(at.inside(inside), block)
            made.add_block(inside)
        regions.append(made)
    yes, no = regions
    branch = scf.IfOp(at.values[op.cond], [held(result.type) for result in op.results], yes, no)
    at.add(branch)
    at.values.update(zip(op.results, branch.results, strict=True))


def _copy(at: Expansion, op: Operation) -> None:
    """The same operation on what the thread holds."""
    if not (op.name in ELEMENT or isinstance(op, _KEPT) or not any(map(shape, (*op.operands, *op.results)))):
        raise InvalidProgram(f"{op.name} on tiles of a block", help="expand it to element operations and accesses")
    made = type(op).create(
        operands=[at.values[operand] for operand in op.operands],
        result_types=[held(result.type) for result in op.results],
        properties=op.properties,
        attributes=op.attributes,
    )
    at.add(made)
    at.values.update(zip(op.results, made.results, strict=True))


def _constant(at: Expansion, op: arith.ConstantOp) -> SSAValue:
    dense = op.properties["value"]
    assert isinstance(dense, DenseIntOrFPElementsAttr)
    made = held(op.result.type)
    assert isinstance(made, TensorType)
    size = dense.get_element_type().compile_time_size
    content = dense.data.data
    if content != content[:size] * (len(content) // size):
        raise InvalidProgram("a constant tile of different elements in a block", help="load it from memory")
    type_ = dense.data.__class__
    count = made.get_shape()[0]
    return at.add(arith.ConstantOp(DenseIntOrFPElementsAttr(made, type_(content[:size] * count)))).results[0]
