"""Layouts for all tiles of a kernel: accesses choose theirs to coalesce, what is computed keeps that of its operands.

What holds one value everywhere has no layout of its own: it is made again in the layout of whoever uses it. Where an
operation needs another tile in another layout than it is in, a `tile.convert` says so, and stays for
`remove-conversions` to look at.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidProgram
from tilewright.kernel import circular_buffer
from tilewright.kernel import dialect as tile
from tilewright.kernel.attributes import warps_of
from tilewright.kernel.axis_info import AxisAnalysis
from tilewright.kernel.block_limits import check_threads
from tilewright.kernel.bulk_stores import BulkStoreOp
from tilewright.kernel.dialect import FuncOp, operations, shape
from tilewright.kernel.elements import ELEMENT
from tilewright.kernel.facts import NOTHING, facts_of
from tilewright.kernel.passes.common.settings import one_of, power_of_two
from tilewright.kernel.passes.gpu.distribution.access import (
    ACCESS_BYTES,
    aligned,
    begin_bytes,
    coalesced,
    neighbours,
    row_bytes,
)
from tilewright.kernel.passes.gpu.distribution.gathers import gathered_layout
from tilewright.kernel.passes.gpu.distribution.layout import (
    canonical,
    check_extents,
    give,
    layout_of,
    projected,
    tile_layout_of,
    with_layout,
)
from tilewright.kernel.passes.gpu.distribution.matrix import can_transpose, dot_layouts, extents_of
from tilewright.kernel.passes.gpu.distribution.opaque import matrices_at
from tilewright.kernel.passes.gpu.distribution.register_tiles import thread_tiles
from tilewright.kernel.passes.gpu.distribution.warpgroup import held_layout, result_layout
from tilewright.kernel.passes.gpu.forms import LAYOUTS, form_of
from tilewright.kernel.passes.gpu.opaque_tiles import store_of, takes_fragments
from tilewright.kernel.records import fragments_record, record_of
from tilewright.kernel.rewrite import uniform
from tilewright.kernel.simt import element_bytes
from tilewright.layouts.access import GlobalAccess, global_access
from tilewright.layouts.blocked import initial_blocked
from tilewright.layouts.linear import LinearLayout
from tilewright.layouts.opaque import Opaque
from tilewright.machine.units import MATRIX_LOADS

STAGE_C = ("auto", "on", "off")
ENOUGH = 1.3  # times the sectors of the best layout: to pass through shared memory costs more
DIRECT_BYTES = 8  # of a store from where a product leaves its sums
_ANYWHERE = (arith.ConstantOp, tile.IotaOp)


@dataclass(frozen=True)
class AssignLayoutsPass(ModulePass):
    """Say which thread and register of a block of `warps` warps holds which element of every tile.

    Before:  %x = tile.load %v[%o] strides [1] : memref<1024xf32> -> tensor<256xf32>
    After:   … -> tensor<256xf32, "#linear<r=[(1)], l=[(2),(4),(8),(16),(32)], w=[(64),(128)]>">
    A kernel with the attribute `warps` has that many, distributed to m and n of its products; one with the attribute
    `layout` has its tiles in that, and in what it says of tiles with some extents 1, whatever memory makes of that.
    Legal for extents that are powers of two, and layouts of as many warps and lanes as there are. Kernels with threads,
    and those whose tiles have layouts, are left alone. Afterwards every tile has a layout.

    Tiles in fragments that hardware does not tell (`layouts.opaque`) stay in them from product to product, through
    loops and what treats all elements alike; whatever else reads one has it converted. Where `stage_c` is not on, warps
    load and store such results in global memory itself, if they lie there as whole matrices; off, threads do so with
    results of a documented layout too.
    """

    name = "assign-layouts"
    warps: int = 4
    lanes: int = 32
    access_bytes: int = ACCESS_BYTES  # of the widest access to global memory
    promote: bool = True  # operands of products to shared memory; else lanes load what they hold of them
    stage_c: str = "auto"  # what is added to, and results, through shared memory: "on", "off"; auto: if documented

    def __post_init__(self) -> None:
        power_of_two(self, "warps", "lanes")
        power_of_two(self, "access_bytes", most=ACCESS_BYTES)
        one_of(STAGE_C, self, "stage_c")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        facts = facts_of(op)
        by_tiles = facts != NOTHING and MATRIX_LOADS not in facts.units
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp) and not kernel.block:
                warps = warps_of(kernel) or self.warps
                check_threads(kernel, (prod(warps if isinstance(warps, tuple) else (warps,)) * self.lanes, 1, 1), facts)
                asked = self.asked(kernel, warps)
                if form_of(kernel) == LAYOUTS:
                    continue
                made = _Assignment(warps, self.lanes, self.access_bytes, by_tiles, asked, self.promote, self.stage_c)
                made.kernel(kernel)

    def asked(self, kernel: FuncOp, warps: int | tuple[int, int]) -> LinearLayout | None:
        """The layout that a kernel asks for, which has to have its warps and lanes."""
        found, count = tile_layout_of(kernel), warps if isinstance(warps, int) else prod(warps)
        if found is not None and (found.in_size("warp"), found.in_size("lane")) != (count, self.lanes):
            raise InvalidProgram(
                f"tiles in {found}", where=f"@{kernel.sym_name.data}", help=f"{count} warps of {self.lanes} lanes"
            )
        return found


class _Assignment:
    def __init__(
        self, warps: int | tuple[int, int], lanes: int, access_bytes: int, by_tiles: bool, asked: LinearLayout | None,
        promote: bool, stage_c: str = "auto",
    ) -> None:  # fmt: skip
        self.distributed, self.lanes, self.by_tiles, self.asked = warps, lanes, by_tiles, asked
        self.warps = warps if isinstance(warps, int) else prod(warps)
        self.access_bytes, self.promote, self.stage_c = access_bytes, promote, stage_c
        self.sums: set[LinearLayout] = set()  # of products of one warp
        self.fma_sums: set[LinearLayout] = set()  # those of multiply-adds
        self.transposed: set[tuple[str, tuple[int, ...]]] = set()  # instruction and result of those computed as b^T a^T
        self.seen: dict[tuple[int, ...], LinearLayout] = {}  # of every shape the first layout, or that of a product
        self.staged: dict[tuple[int, ...], LinearLayout] = {}  # of products of four warps
        self.facts: AxisAnalysis | None = None  # where there are gathers to lay out

    @property
    def grid(self) -> tuple[int, int]:
        """Warps along m and n of a product of four warps."""
        return self.distributed if isinstance(self.distributed, tuple) else (self.distributed, 1)

    def kernel(self, kernel: FuncOp) -> None:
        """All of a kernel; what offsets are made of takes the layout in which gathers of them coalesce.

        Where one product reads another's result, all warps lie along the longer side, unless the kernel says how.
        """
        second = next((op for op in operations(kernel.body) if isinstance(op, tile.DotOp) and _is_chained(op)), None)
        if second is not None and isinstance(self.distributed, int):
            rows, columns = shape(second.result)
            self.distributed = (self.distributed, 1) if rows >= columns else (1, self.distributed)
        if self.by_tiles and self.stage_c != "on":
            dots = [op for op in operations(kernel.body) if isinstance(op, tile.DotOp)]
            self.transposed = {(op.intrinsic.data, shape(op.result)) for op in dots if self.leaves_by_rows(op)}
        for product in operations(kernel.body):  # what is computed before meets it
            if isinstance(product, circular_buffer.StagedDotOp):
                self.seen[shape(product.result)] = self.of_staged(product)
        gathers = [op for op in operations(kernel.body) if isinstance(op, tile.GatherOp) and shape(op.result)]
        if gathers and self.asked is None:
            self.facts = AxisAnalysis(kernel)
            for layout in map(self.gathered, gathers):
                if layout is not None:
                    self.note(layout)
        self.block(kernel.body.block)

    def block(self, block: Block) -> None:
        for op in list(block.ops):
            self.operation(op)

    def operation(self, op: Operation) -> None:
        for result in op.results:
            check_extents(result)
        if not takes_fragments(op, self.stage_c == "on"):
            for index, operand in enumerate(op.operands):
                if isinstance(layout_of(operand), Opaque):
                    self.convert(op, index, self.told(operand))
        match op:
            case tile.LoadOp():
                self.load(op)
            case tile.StoreOp():
                self.store(op)
            case tile.GatherOp():
                self.gather(op)
            case tile.ReduceOp():
                layout = self.anchored(op, 0)
                give(op.result, projected(layout, shape(op.result)))
            case tile.BroadcastOp() if shape(op.value):
                self.broadcast(op)
            case tile.ReshapeOp() if shape(op.value):
                layout = self.anchored(op, 0)
                if shape(op.result):
                    give(op.result, self.note(canonical(layout.reshape(shape(op.result)))))
            case tile.DotOp():
                transposed = (op.intrinsic.data, shape(op.result)) in self.transposed
                layouts = dot_layouts(fragments_record(op), extents_of(op), self.distributed, self.lanes, transposed)
                self.sums.add(layouts[2])
                if fragments_record(op) is None:
                    self.fma_sums.add(layouts[2])
                for index, layout in enumerate(layouts):
                    if self.promote:
                        self.load_tiles(op.operands[index], layout)
                    elif index < 2:
                        self.direct(op.operands[index], layout)
                    self.convert(op, index, layout)
                give(op.result, layouts[2])
                # Counts, masks and repeated rows meet the product there.
                opaque = isinstance(layouts[2], Opaque)
                self.seen[shape(op.result)] = self.told(op.result) if opaque else layouts[2]
            case circular_buffer.StagedDotOp():
                self.staged_dot(op)
            case circular_buffer.FinishOp():
                self.element_wise(op)
            case BulkStoreOp():
                m, n = shape(op.value)
                self.convert(op, 0, result_layout(record_of(op), (m, n), self.grid))
            case scf.ForOp():
                self.loop(op)
            case scf.IfOp():
                self.branch(op)
            case scf.YieldOp() | tile.UnstageOp():
                pass  # the former with the operation it ends, the latter is made with its layout
            case _ if isinstance(op, _ANYWHERE) or (
                isinstance(op, tile.BroadcastOp | tile.ReshapeOp) and shape(op.result)
            ):
                if shape(op.results[0]):
                    give(op.results[0], self.usual(shape(op.results[0])))
            case _ if op.name in ELEMENT:
                self.element_wise(op)
            case _ if any(shape(value) for value in (*op.operands, *op.results)):
                raise InvalidProgram(
                    f"{op.name} on tiles of a block", help="expand it to element work, loads and stores"
                )

    # Operations

    def load(self, op: tile.LoadOp) -> None:
        if not shape(op.result):
            return
        layout = self.coalesced(op, op.result)
        if (
            shape(op.result) in self.staged and op.mask is None
        ):  # beside a circular buffer there is no room to pass through
            give(op.result, self.staged[shape(op.result)])
            return
        wanted = self.usual_asked(shape(op.result))
        if wanted is not None and self.serves(op, wanted, layout):
            layout = wanted
        give(op.result, layout)
        if op.mask is not None and shape(op.mask):
            self.convert(op, list(op.operands).index(op.mask), layout)
        if wanted is not None and layout != wanted:
            convert = tile.ConvertOp(op.result, with_layout(op.result.type, wanted))
            convert.location = op.location
            assert op.parent is not None
            op.parent.insert_op_after(convert, op)
            op.result.replace_uses_with_if(convert.result, lambda use: use.operation is not convert)

    def gather(self, op: tile.GatherOp) -> None:
        layout = self.gathered(op)
        if layout is None:
            self.element_wise(op)
            return
        for index, operand in enumerate(op.operands):
            if shape(operand):
                self.convert(op, index, layout)
        give(op.result, layout)

    def gathered(self, op: tile.GatherOp) -> LinearLayout | None:
        """The layout that a gather wants for its own sake."""
        if self.facts is None or not shape(op.result):
            return None
        return gathered_layout(op, self.facts, self.access_bytes, self.warps, self.lanes)

    def usual_asked(self, extents: Sequence[int]) -> LinearLayout | None:
        """What the kernel's `layout` says of a tile; None for other tiles."""
        asked = self.asked
        if asked is None or len(extents) != len(asked.shape):
            return None
        if any(extent not in (1, whole) for extent, whole in zip(extents, asked.shape, strict=True)):
            return None
        return projected(asked, extents)

    def serves(self, op: tile.LoadOp | tile.StoreOp, asked: LinearLayout, best: LinearLayout) -> bool:
        """Whether an access in the layout that is asked for moves hardly more than the best one.

        Tiles that are repeated are read where they are wanted.
        """
        if self.asked is not None and asked.shape != self.asked.shape:
            return True
        size, strides = element_bytes(op.view), tile.strides_of(op)
        known = 1 if op.align is None else max(1, gcd(self.access_bytes, op.align.value.data) // size)

        def access(layout: LinearLayout) -> GlobalAccess:
            width = neighbours(layout, strides, known)
            while not aligned(layout, strides, width):
                width //= 2
            return global_access(layout, 8 * size, strides, width)

        own, other = access(asked), access(best)
        return own.sectors * other.fewest <= ENOUGH * other.sectors * own.fewest

    def load_tiles(self, value: SSAValue, wanted: LinearLayout) -> None:
        """Let threads load tiles of an operand of a product, where lanes read what they hold of it."""
        load, layout = value.owner, layout_of(value)
        if not self.by_tiles or not isinstance(load, tile.LoadOp) or load.mask is not None or not value.has_one_use():
            return
        if isinstance(wanted, Opaque):  # rows are read as they are
            return
        strides = tile.strides_of(load)
        if layout is None or 1 not in strides:
            return
        size = element_bytes(load.view)
        other = thread_tiles(layout, wanted, strides.index(1), size, self.warps, self.lanes)
        if other is not None:
            give(value, other)

    def direct(self, value: SSAValue, wanted: LinearLayout) -> None:
        """Let lanes load what they hold of an operand of a product."""
        load = value.owner
        if not isinstance(load, tile.LoadOp) or load.mask is not None or not value.has_one_use():
            return
        if not isinstance(wanted, Opaque) or matrices_at(load, wanted) is not None:
            give(value, wanted)

    def is_direct(self, value: SSAValue, wanted: LinearLayout) -> bool:
        """Whether what a product adds to is loaded where the product has it."""
        load = value.owner
        if not isinstance(load, tile.LoadOp) or load.mask is not None or not value.has_one_use():
            return False
        if wanted not in self.sums or self.stage_c == "on":
            return False
        return matrices_at(load, wanted) is not None if isinstance(wanted, Opaque) else self.stage_c == "off"

    def told(self, value: SSAValue) -> LinearLayout:
        """The layout in which a tile leaves its fragments: that of the store that it comes to, if it comes to one."""
        store = store_of(value)
        if store is None:
            return self.usual(shape(value))
        return canonical(self.coalesced(store, store.value).reshape(shape(value)))

    def store(self, op: tile.StoreOp) -> None:
        if not shape(op.value):
            return
        own = layout_of(op.value)
        if isinstance(own, Opaque) or (own in self.sums and self.stage_c == "off"):
            if op.mask is not None and shape(op.mask):
                self.convert(op, list(op.operands).index(op.mask), own)
            return
        small = prod(shape(op.value)) <= self.warps * self.lanes  # one element per thread: nothing to join
        wanted = self.usual_asked(shape(op.value))
        if wanted is not None:
            layout = self.coalesced(op, op.value)
            layout = wanted if self.serves(op, wanted, layout) else layout
            for index, operand in enumerate(op.operands):
                if shape(operand):
                    self.convert(op, index, layout)
            return
        kept = own is not None and not _is_anywhere(op.value) and (small or self.fills_sectors(op, own))
        layout = own if own is not None and kept else self.coalesced(op, op.value)
        for index, operand in enumerate(op.operands):
            if shape(operand):
                self.convert(op, index, layout)

    def fills_sectors(self, op: tile.StoreOp, layout: LinearLayout) -> bool:
        """Whether threads that store what they hold of a product move no more than there is to store.

        Of a product of four warps, of multiply-adds, or of one where lanes load what they hold.
        """
        kernel = _kernel(op)
        if layout in (self.sums if self.by_tiles else self.fma_sums) and self.stage_c != "on":
            self.promise(op)
        elif not any(isinstance(each, circular_buffer.CircularOp) for each in kernel.body.block.ops):
            return False
        return _is_whole(op, layout, element_bytes(op.view) if op.align is None else row_bytes(op, shape(op.value)))

    def leaves_by_rows(self, op: tile.DotOp) -> bool:
        """Whether lanes may store the result of a product, computed as ``c^T = b^T a^T``, as it is."""
        store, record = store_of(op.result), fragments_record(op)
        if store is None or shape(store.value) != shape(op.result) or record is None or not can_transpose(record):
            return False
        layout = dot_layouts(record, extents_of(op), self.distributed, self.lanes, transposed=True)[2]
        return _is_whole(store, layout, row_bytes(store, shape(store.value)))

    def coalesced(self, op: tile.LoadOp | tile.StoreOp, value: SSAValue) -> LinearLayout:
        """Neighbouring threads on neighbouring elements, each with as many as one access takes."""
        extents, strides = shape(value), tile.strides_of(op)
        size = element_bytes(op.view)
        self.promise(op)
        known = gcd(row_bytes(op, extents), self.access_bytes)
        return self.note(coalesced(extents, strides, max(1, known // size), self.warps, self.lanes))

    def promise(self, op: tile.LoadOp | tile.StoreOp) -> None:
        """Let an access say of which bytes its tile begins at a multiple, where that is known."""
        if op.align is None and begin_bytes(op) > element_bytes(op.view):
            op.align = IntegerAttr(begin_bytes(op), 64)

    def of_staged(self, op: circular_buffer.StagedDotOp) -> LinearLayout:
        """The layout of the result of a product of four warps."""
        m, n, _ = op.extents
        return result_layout(record_of(op), (m, n), self.grid, op.by_registers)

    def staged_dot(self, op: circular_buffer.StagedDotOp) -> None:
        m, _, depth = op.extents
        layout = self.of_staged(op)
        if op.holds_a:
            self.convert(op, list(op.operands).index(op.a), held_layout(record_of(op), (m, depth), self.grid))
        self.convert(op, list(op.operands).index(op.c), layout)
        give(op.result, layout)
        self.staged[shape(op.result)] = layout

    def element_wise(self, op: Operation) -> None:
        tiles = [index for index, operand in enumerate(op.operands) if shape(operand)]
        if not tiles:
            return
        leading = next((index for index in tiles if not _is_anywhere(op.operands[index])), tiles[0])
        layout = self.anchored(op, leading)
        for index in tiles:
            self.convert(op, index, layout)
        for result in op.results:
            if shape(result):
                give(result, layout)

    def broadcast(self, op: tile.BroadcastOp) -> None:
        """To a layout whose copies along the repeated dimensions are those of the operand, if one is known."""
        extents = shape(op.result)
        layout = self.usual(extents)
        self.convert(op, 0, projected(layout, shape(op.value)))
        give(op.result, layout)

    def loop(self, op: scf.ForOp) -> None:
        """Tiles go round a loop in the layout in which a trip leaves them, found by a trial: no trip converts."""
        if any(map(shape, op.results)):
            trial = op.clone()
            assert op.parent is not None
            op.parent.insert_op_before(trial, op)
            if self.facts is not None:
                self.facts.loop(trial)
            self.body(trial, [layout_of(value) for value in trial.iter_args])
            last = trial.body.block.last_op
            assert last is not None
            left = [layout_of(_before_conversion(value)) for value in last.operands]
            op.parent.erase_op(trial, safe_erase=False)
            for number, layout in enumerate(left):
                if layout is not None:
                    self.convert(op, 3 + number, layout)
        self.body(op, [layout_of(value) for value in op.iter_args])
        self.yielded(op, op.body)

    def body(self, op: scf.ForOp, layouts: Sequence[LinearLayout | None]) -> None:
        for argument, layout in zip(list(op.body.block.args[1:]), layouts, strict=True):
            if layout is not None:
                give(argument, layout)
        self.block(op.body.block)

    def branch(self, op: scf.IfOp) -> None:
        for region in op.regions:
            for block in region.blocks:
                self.block(block)
        for result in op.results:
            if shape(result):
                give(result, self.usual(shape(result)))
        for region in op.regions:
            self.yielded(op, region)

    def yielded(self, op: Operation, region: Region) -> None:
        """What a region gives, in the layouts of the results of its operation."""
        for block in region.blocks:
            last = block.last_op
            assert last is not None
            for index in range(len(last.operands)):
                wanted = layout_of(op.results[index]) or (
                    layout_of(block.args[1 + index]) if isinstance(op, scf.ForOp) else None
                )
                if wanted is not None:
                    self.convert(last, index, wanted)
                    give(op.results[index], wanted)

    # Layouts

    def anchored(self, op: Operation, index: int) -> LinearLayout:
        """The layout of an operand; what has none of its own gets the usual one of its shape."""
        value = op.operands[index]
        layout = layout_of(value)
        assert layout is not None, f"{op.name} reads a tile without a layout"
        return layout

    def usual(self, extents: Sequence[int]) -> LinearLayout:
        known = self.usual_asked(extents) or self.seen.get(tuple(extents))
        if known is not None:
            return known
        return self.note(canonical(initial_blocked(extents, self.warps, self.lanes).to_linear(extents)))

    def note(self, layout: LinearLayout) -> LinearLayout:
        self.seen.setdefault(layout.shape, layout)
        return layout

    def convert(self, op: Operation, index: int, layout: LinearLayout) -> None:
        """Let `op` read an operand in a layout."""
        value = op.operands[index]
        if layout_of(value) == layout:
            return
        owner = value.owner
        if self.is_direct(value, layout):
            give(value, layout)
            return
        if _is_repeated(value) or (isinstance(owner, arith.ConstantOp) and uniform(value) is not None):
            assert isinstance(owner, Operation)
            again = owner.clone()
            block = op.parent
            assert block is not None
            block.insert_op_before(again, op)
            give(again.results[0], layout)
            again.results[0].name_hint = value.name_hint
            op.operands[index] = again.results[0]
            return
        convert = tile.ConvertOp(value, with_layout(value.type, layout))
        convert.location = op.location
        block = op.parent
        assert block is not None
        block.insert_op_before(convert, op)
        op.operands[index] = convert.result


def _is_whole(op: tile.StoreOp, layout: LinearLayout, known: int) -> bool:
    """Whether stores of what threads hold side by side have `DIRECT_BYTES` or more, and fill sectors together.

    `known` are the bytes of which rows begin at a multiple.
    """
    size, strides = element_bytes(op.view), tile.strides_of(op)
    width = neighbours(layout, strides, max(1, min(known, ACCESS_BYTES) // size))
    if 1 not in strides or width * size < DIRECT_BYTES:
        return False
    access = global_access(layout, 8 * size, strides, width)
    return access.sectors == access.fewest


def _kernel(op: Operation) -> FuncOp:
    kernel = op.parent_op()
    while not isinstance(kernel, FuncOp):
        assert kernel is not None, "verified operations are part of kernels"
        kernel = kernel.parent_op()
    return kernel


def _is_chained(op: tile.DotOp) -> bool:
    """Whether what a product multiplies is computed, element by element, from the result of another one."""
    seen, left = set[SSAValue](), [op.a, op.b]
    while left:
        value = left.pop()
        owner = value.owner
        if isinstance(owner, tile.DotOp):
            return True
        if value not in seen and isinstance(owner, Operation) and owner.name in ELEMENT:
            left += [operand for operand in owner.operands if shape(operand)]
        seen.add(value)
    return False


def _before_conversion(value: SSAValue) -> SSAValue:
    return value.owner.value if isinstance(value.owner, tile.ConvertOp) else value


def _is_anywhere(value: SSAValue) -> bool:
    """Whether a tile can be made in any layout: constants, counts, repeated scalars."""
    owner = value.owner
    return isinstance(owner, _ANYWHERE) or _is_repeated(value)


def _is_repeated(value: SSAValue) -> bool:
    return isinstance(value.owner, tile.BroadcastOp) and not shape(value.owner.value)
