"""A list of kernels with their buffers to one tile program.

Kernels once each, the host sequence, the plan of the arena.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, MemRefType, ModuleOp
from xdsl.ir import Attribute, Block, SSAValue

from tilewright.dataclass import dataclass
from tilewright.expr.core import Const, Tensor
from tilewright.expr.names import claim
from tilewright.expr.ordered import Ordered
from tilewright.kernel import dialect as tile
from tilewright.lower.body import computed_in, computed_value
from tilewright.lower.builder import KernelBuilder, view_type
from tilewright.lower.nest import lower_nest
from tilewright.lower.ordered import lower_ordered
from tilewright.lower.product import lower_product
from tilewright.lower.steps import Moving, Place, Repeated, Sections, Step, anonymous
from tilewright.lower.whereabouts import Notes
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.legality import check
from tilewright.tiles.parts import on_blocks
from tilewright.tiles.problem import problem_of
from tilewright.tiles.product import products_of
from tilewright.tiles.resources import Resources


def build_module(
    steps: Sequence[Step | Repeated],
    sizes: Mapping[str, tuple[Tensor, int]],
    places: Mapping[str, Place],
    sections: Sections,
    target: DictionaryAttr,
    resources: Resources,
    notes: dict[str, tuple[Step, Notes]] | None = None,
) -> tuple[ModuleOp, list[str]]:
    """The tile program and the kernel of every launch. Kernels that came out equal are emitted once.

    `sizes` has the elements that tensors take in memory, for those that parts of which move with a loop; `resources`
    what one program may place at each level. `notes` is given what each kernel of a CPU is made of, by its name.
    """
    main = tile.MainOp(sections.arena_bytes, sections.constants_bytes, sections.zeroed_bytes)
    building = _Building(main, places, sizes, resources, notes)
    building.add(steps, _Scope(main.body.block, {}))
    return ModuleOp([*building.functions, main], {"tile.target": target}), building.launched


@dataclass
class _Scope:
    """The host sequence or the body of a loop: where operations go, and the tensors that move there."""

    block: Block
    moving: Mapping[str, Moving]
    outer: _Scope | None = None
    views: dict[tuple[str, str], SSAValue] = field(default_factory=dict)


class _Building:
    """The kernels and the host sequence while they grow."""

    def __init__(
        self, main: tile.MainOp, places: Mapping[str, Place], sizes: Mapping[str, tuple[Tensor, int]],
        resources: Resources, notes: dict[str, tuple[Step, Notes]] | None,
    ) -> None:  # fmt: skip
        self.main, self.places, self.sizes, self.resources, self.notes = main, places, sizes, resources, notes
        self.functions: list[tile.FuncOp] = []
        self.launched: list[str] = []
        self._known: dict[str, str] = {}
        self._names: set[str] = set()
        self._buffers: dict[tuple[str, int, str], SSAValue] = {}
        self._numbers: dict[Const, SSAValue] = {}

    def add(self, steps: Sequence[Step | Repeated], scope: _Scope) -> None:
        for step in steps:
            if isinstance(step, Repeated):
                loop = tile.LoopOp(step.trips)
                self.add(step.steps, _Scope(loop.body.block, step.moving, scope))
                scope.block.add_op(loop)
                continue
            kernel = self._kernel(step)
            self.launched.append(kernel)
            views = [self._view(tensor.name, view_type(tensor.dtype, size), scope) for tensor, size in step.arguments]
            numbers = [self._number(number) for _, number in step.numbers]
            scope.block.add_op(tile.LaunchOp(kernel, [*views, *numbers]))

    def _kernel(self, step: Step) -> str:
        nameless = anonymous(step)
        key = nameless.key
        if key not in self._known:
            self._known[key] = _unique(step.name, self._names)
            notes = None if self.notes is None else Notes()
            self.functions.append(lower_kernel(nameless, self._known[key], self.resources, notes))
            if self.notes is not None and notes is not None:
                self.notes[self._known[key]] = step, notes
        return self._known[key]

    def _number(self, number: Const) -> SSAValue:
        """A number that a launch gives its kernel, in the type that the kernel computes it in."""
        if number not in self._numbers:
            made = KernelBuilder(self.main.body.block).number(computed_value(number), computed_in(number.dtype))
            self._numbers[number] = made
        return self._numbers[number]

    def _view(self, name: str, type_: MemRefType[Attribute], scope: _Scope) -> SSAValue:
        """The memory of a tensor; slices are taken in the loop that moves them, buffers are outside of all loops."""
        if name in scope.moving:
            key = (name, str(type_))
            if key not in scope.views:
                scope.views[key] = self._slice(scope.moving[name], type_, scope)
            return scope.views[key]
        if scope.outer is not None:
            return self._view(name, type_, scope.outer)
        place = self.places[name]
        found = (place.space, place.index, str(type_))
        if found not in self._buffers:
            op = tile.BufferOp(place.space, place.index, type_)
            self.main.body.block.add_op(op)
            self._buffers[found] = op.result
        return self._buffers[found]

    def _slice(self, moving: Moving, type_: MemRefType[Attribute], scope: _Scope) -> SSAValue:
        assert scope.outer is not None, "what moves is in a loop"
        tensor, size = self.sizes[moving.whole]
        whole = self._view(moving.whole, view_type(tensor.dtype, size), scope.outer)
        trip = scope.block.args[0]
        op = tile.SliceOp(whole, trip, moving.start, moving.stride, moving.period, type_)
        scope.block.add_op(op)
        if not moving.first:
            return op.result
        first = tile.FirstOp(trip, self._view(moving.first, type_, scope.outer), op.result)
        scope.block.add_op(first)
        return first.result


def lower_kernel(step: Step, name: str, resources: Resources, notes: Notes | None = None) -> tile.FuncOp:
    """The tile program of the kernel of one launch. Raises IllegalTree where a rule forbids its tree.

    `notes` is given where the accesses of products and of rows on a CPU stand.
    """
    check(step.kernel.tree, problem_of(step.kernel), imperfect=True, resources=resources)
    products = products_of(step.kernel)
    if isinstance(step.kernel.statements[-1].accum, Ordered):
        func = lower_ordered(name, step.kernel, step.arguments)
    elif on_blocks(step.kernel.tree):
        func = _on_blocks(len(products))(name, step.kernel, step.arguments)
    elif products:
        func = lower_product(name, step.kernel, step.arguments, step.parameters, notes)
    else:
        func = lower_nest(name, step.kernel, step.arguments, step.parameters, notes)
    func.properties["cost"] = DictionaryAttr(
        {"flops": IntegerAttr(step.flops, 64), "bytes": IntegerAttr(step.bytes, 64)}
    )
    return func


def _on_blocks(products: int) -> Callable[[str, Kernel, Sequence[tuple[Tensor, int]]], tile.FuncOp]:
    """What lowers a kernel on blocks of threads with so many products; a CPU has none, and imports nothing for it."""
    if products == 0:
        from tilewright.lower.block_nest import lower_block_nest

        return lower_block_nest
    if products == 1:
        from tilewright.lower.blocks import lower_blocks

        return lower_blocks
    from tilewright.lower.fused_blocks import lower_fused_blocks

    return lower_fused_blocks


def _unique(name: str, taken: set[str]) -> str:
    plain = "".join(c if c.isalnum() or c in "._" else "_" for c in name)
    plain = plain if plain[:1].isalpha() else f"k{plain}"
    return claim(plain, taken)
