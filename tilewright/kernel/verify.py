"""The verifier of whole tile programs: rules of single operations are in `dialect`, rules between operations here.

Also limits what may occur at all: values are scalars, statically shaped tiles and flat views; views are only accessed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache
from operator import is_

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import (
    BFloat16Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IndexType,
    IntegerType,
    MemRefType,
    ModuleOp,
    Signedness,
    TensorType,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.traits import IsolatedFromAbove, IsTerminator, NoTerminator
from xdsl.utils.exceptions import VerifyException

from tilewright.errors import InvalidProgram
from tilewright.kernel import bulk_stores, circular_buffer, simt
from tilewright.kernel.dialect import (
    BroadcastOp,
    DotOp,
    FirstOp,
    FuncOp,
    GatherOp,
    IotaOp,
    LaunchOp,
    LoadBoxOp,
    LoadOp,
    MainOp,
    PrefetchOp,
    ReduceOp,
    ReshapeOp,
    SliceOp,
    StageOp,
    StoreOp,
    UnstageOp,
)
from tilewright.kernel.elements import ELEMENT
from tilewright.kernel.hopper import simt_async, simt_launches, simt_warpgroup

INTEGER_WIDTHS = (1, 8, 16, 32, 64)
_CONTROL = (ModuleOp, scf.ForOp, scf.IfOp, scf.YieldOp, arith.ConstantOp)
VIEW_OPERANDS: dict[type[Operation], tuple[int, ...]] = {
    SliceOp: (0,), FirstOp: (1, 2),
    LoadOp: (0,), LoadBoxOp: (0,), StoreOp: (1,), GatherOp: (0,), PrefetchOp: (0,), StageOp: (0, 2), UnstageOp: (0,),
    simt.AsyncCopyOp: (0, 2), simt.AtomicOp: (1,),
    simt.LoadMatrixOp: (0,), simt.StoreMatrixOp: (1,), simt.LoadFragmentOp: (0,), simt.StoreFragmentOp: (1,),
    circular_buffer.ProduceOp: (0,), circular_buffer.BulkLoadOp: (0, 1), circular_buffer.ConsumerWaitOp: (0,),
    circular_buffer.ConsumerReleaseOp: (0,), bulk_stores.BulkStoreOp: (1,),
    **simt_async.VIEW_OPERANDS,
}  # fmt: skip

_BY_TYPES = frozenset((
    arith.ConstantOp, IotaOp, BroadcastOp, ReshapeOp, ReduceOp, DotOp, LoadOp, StoreOp,
    simt.PartOp, simt.JoinOp,
))  # fmt: skip
"""Operations whose rules read types and attributes, no more."""
_HELD: set[tuple[object, ...]] = set()
"""Such operations whose rules hold, as types and attributes: most of those in a program are alike."""
_MOST_HELD = 10_000


class Checked:
    """Operations of kernels whose own rules were found to hold, each as it was then, and whole kernels.

    Operations are identified by `id`; each is kept, so that no other one gets its number.
    """

    def __init__(self) -> None:
        self._valid: dict[int, _Valid] = {}
        self._stated: dict[int, tuple[object, ...]] = {}
        self._module: list[object] = []  # what a module states which was found valid, and its parts
        self._parts: list[list[object]] = []  # everything that each of these parts holds

    def unchanged(self, module: list[object], parts: list[list[object]]) -> list[bool]:
        """Of each part of a module, given as what it holds, whether it is as it was in a module found valid."""
        if not _same(module, self._module):
            return [False for _ in parts]
        return [_same(part, before) for part, before in zip(parts, self._parts, strict=True)]

    def note_valid(self, module: list[object], parts: list[list[object]]) -> None:
        """The module that states this and has these parts is valid."""
        self._module, self._parts = module, parts

    def stated(self, op: Operation) -> tuple[object, ...]:
        """What an operation states: types of its results, attributes, properties. The same tuple until one changes."""
        types = [result.type for result in op.results]
        stated = (op, *types, *op.attributes, *op.attributes.values(), *op.properties.values())
        before = self._stated.get(id(op))
        if before is not None and _same(before, stated):
            return before
        self._stated[id(op)] = stated
        return stated

    def valid(self, op: Operation) -> _Valid | None:
        """The operation as it was when its rules held."""
        return self._valid.get(id(op))

    def note(self, op: Operation, valid: _Valid) -> None:
        """The rules hold for an operation without regions as it is now. Rules of others read what is inside."""
        self._valid[id(op)] = valid


class _Valid:
    """Everything that the rules of an operation read: of the operation, of what defines its operands, of its kernel."""

    __slots__ = ("around", "attributes", "last", "op", "operands", "own", "properties", "sources", "types")

    def __init__(
        self, op: Operation, around: tuple[object, object], own: tuple[object, ...], sources: list[object]
    ) -> None:
        """`around`: the operation around it, and what its kernel states. `own` is what it states itself, `sources` what
        the operations state that define its operands.
        """
        self.op, self.around, self.own, self.sources = op, around, own, sources
        self.last, self.operands = op._next_op is None, op._operands
        self.types = [result._type for result in op.results]
        self.attributes, self.properties = dict(op.attributes), dict(op.properties)

    def is_now(self, op: Operation, around: tuple[object, object]) -> bool:
        """Whether the operation is as it was, but for what defines its operands."""
        return (
            self.operands is op._operands  # a tuple, which xDSL replaces where an operand changes
            and self.last == (op._next_op is None)
            and self.around[0] is around[0]
            and self.around[1] is around[1]
            and self.properties == op.properties
            and self.attributes == op.attributes
            and all(map(is_, self.types, [result._type for result in op.results]))
        )


def _same(some: Sequence[object], others: Sequence[object]) -> bool:
    """Whether both are the same objects."""
    return len(some) == len(others) and all(map(is_, some, others))


def verify(module: ModuleOp, where: Callable[[Operation], str] | None = None, checked: Checked | None = None) -> None:
    """Check every rule of the tile program; InvalidProgram names the first operation that breaks one.

    `where` gives the place of an operation, for the error. `checked` holds operations of an earlier check, whose own
    rules are not checked again unless they have changed; it is brought up to date.
    """
    if checked is None:
        _Checker(where, Checked()).operation(module, set())
        return
    stated: list[object] = [module, *module.attributes.values(), *module.properties.values(), *module.body.ops]
    parts = [held(part) for part in module.body.ops]
    unchanged = checked.unchanged(stated, parts)
    if not unchanged or not all(unchanged):
        known = {id(part[0]) for part, same in zip(parts, unchanged, strict=True) if same}
        _Checker(where, checked, known).operation(module, set())
        checked.note_valid(stated, parts)


def held(op: Operation) -> list[object]:
    """All that a program consists of: operations, their operands and types, attributes, properties, and blocks.

    While these are the same objects, the program has not changed, but for names of values and source lines.
    """
    found: list[object] = [op, *op.attributes.values(), *op.properties.values()]
    for region in op.regions:
        for block in region.blocks:
            found.append(block)
            found += [argument.type for argument in block.args]
            child = block.first_op
            while child is not None:
                found += (child, child._operands)
                found += [result.type for result in child.results]
                if child.regions:
                    found += held(child)
                else:
                    found += child.attributes.values()
                    found += child.properties.values()
                child = child._next_op
    return found


class _Checker:
    def __init__(self, where: Callable[[Operation], str] | None, checked: Checked, known: Collection[int] = ()) -> None:
        self.where = where or (lambda op: "")
        self.checked = checked
        self.known = known  # the `id` of each part of the module that was found valid: no rule of a kernel reads others
        self.kernel: Operation | None = None  # around the operation that is checked
        self.asked: tuple[object, ...] = ()  # what that kernel states
        self.types: set[Attribute] = set()
        self.stated: dict[int, object] = {}  # by the `id` of a value: what its operation states, or its type

    def operation(self, op: Operation, visible: set[int], owner: Operation | None = None) -> None:
        """Check an operation in `owner` and what is inside; `visible` has the `id` of every value that it may use."""
        try:
            self.own_rules(op, visible, owner)
        except VerifyException as error:
            place = self.where(op)
            raise InvalidProgram(f"{op.name}: {error}", where=place, help=_HELP) from None
        except ValueError:  # from xDSL's traits, which look inside
            message = f"{op.name}: a value inside is used where it is not defined"
            raise InvalidProgram(message, where=self.where(op), help=_HELP) from None
        if not op.regions:
            return
        if isinstance(op, FuncOp):
            if id(op) in self.known:
                return
            self.kernel = op
            self.asked = self.checked.stated(op)
        inner = set() if op.has_trait(IsolatedFromAbove) else visible
        for region in op.regions:
            for block in region.blocks:
                self.block(op, block, inner)
        if op is self.kernel:
            self.kernel = None

    def own_rules(self, op: Operation, visible: set[int], owner: Operation | None) -> None:
        operands = op._operands
        if not visible.issuperset(map(id, operands)):
            undefined = next(operand for operand in operands if id(operand) not in visible)
            raise VerifyException(f"operand {_name(undefined)} is not defined before this operation")
        for result in op.results:
            self.known_type(result.type)
        for region in op.regions:
            self.region(op, region)
        if type(op) is scf.IfOp:
            _verify_if(op)
        elif type(op) is ModuleOp:
            _verify_module(op)
        elif type(op) is FuncOp and op.block:
            simt_launches.verify_wait(op)
        _verify_vocabulary(op)
        _verify_views(op, operands)
        _verify_alone(op, operands)
        if self.kernel is not None:
            self.note(op, owner)

    def region(self, op: Operation, region: Region) -> None:
        if len(region.blocks) > 1:
            raise VerifyException("a region of several blocks; control flow is scf.for and scf.if")
        for block in region.blocks:
            for argument in block.args:
                self.known_type(argument.type)
            if not isinstance(op, ModuleOp) and not op.has_trait(NoTerminator):
                last = block.last_op
                if last is None or not last.has_trait(IsTerminator):
                    raise VerifyException("a region does not end with its terminator")
            for child in block.ops:
                kind: type[Operation] = type(child)
                if child.next_op is not None and _ends_a_block(kind):
                    raise VerifyException(f"{child.name} in the middle of a region")

    def block(self, owner: Operation, block: Block, visible: set[int]) -> None:
        inside = visible | set(map(id, block.args))
        self.stated.update((id(argument), argument.type) for argument in block.args)
        op = block.first_op
        while op is not None:
            if self.kernel is None or not self.is_as_it_was(op, inside, owner):
                self.operation(op, inside, owner)
            inside.update(map(id, op.results))
            op = op._next_op

    def is_as_it_was(self, op: Operation, visible: set[int], owner: Operation) -> bool:
        """Whether nothing has changed that the rules of an operation of a kernel read since they were found to hold."""
        valid = self.checked.valid(op)
        if valid is None or not valid.is_now(op, (owner, self.asked)):
            return False
        operands = tuple(map(id, op._operands))
        if not visible.issuperset(operands) or not all(map(is_, valid.sources, map(self.stated.get, operands))):
            return False
        for result in op.results:
            self.stated[id(result)] = valid.own
        return True

    def note(self, op: Operation, owner: Operation | None) -> None:
        """The rules of an operation of a kernel hold."""
        own = self.checked.stated(op)
        for result in op.results:
            self.stated[id(result)] = own
        if not op.regions:
            sources = [self.stated[id(operand)] for operand in op._operands]
            self.checked.note(op, _Valid(op, (owner, self.asked), own, sources))

    def known_type(self, type_: Attribute) -> None:
        if type_ not in self.types:
            _verify_type(type_)
            self.types.add(type_)


@cache
def _ends_a_block(kind: type[Operation]) -> bool:
    return kind.has_trait(IsTerminator)


def _verify_type(type_: Attribute) -> None:
    bare = type_
    if isinstance(type_, TensorType):
        if any(extent < 1 for extent in type_.get_shape()) or not type_.get_shape():
            raise VerifyException(f"{type_} is not a tile: extents are known and at least 1, scalars are bare")
        bare = type_.element_type
    elif isinstance(type_, MemRefType):
        bare = type_.element_type
    match bare:
        case BFloat16Type() | Float16Type() | Float32Type() | Float64Type() | IndexType():
            return
        case IntegerType() if bare.width.data in INTEGER_WIDTHS and bare.signedness.data == Signedness.SIGNLESS:
            return
    raise VerifyException(f"values of {type_}; elements are bf16, f16, f32, f64, index, i1, i8, i16, i32, i64")


def _verify_vocabulary(op: Operation) -> None:
    if not (op.name in ELEMENT or type(op) in _CONTROL or op.dialect_name() in ("tile", "simt")):
        raise VerifyException("not an operation of tile programs; element operations are those of kernel.elements")


def _verify_alone(op: Operation, operands: tuple[SSAValue, ...]) -> None:
    """The rules of the operation's definition."""
    if op.name not in ELEMENT and type(op) not in _BY_TYPES:
        op.verify_()
        return
    types = (*[operand.type for operand in operands], None, *[result.type for result in op.results])
    alike = (type(op), types, *op.properties.items(), None, *op.attributes.items())
    if alike in _HELD:
        return
    op.verify_()
    if len(_HELD) >= _MOST_HELD:
        _HELD.clear()
    _HELD.add(alike)


def _verify_views(op: Operation, operands: tuple[SSAValue, ...]) -> None:
    kind = type(op)  # by class: `isinstance` of xDSL's classes takes ten times as long to say no
    if kind is LaunchOp:
        return
    expected = VIEW_OPERANDS.get(kind, ())
    if kind in (simt_warpgroup.WarpgroupMmaOp, circular_buffer.StagedDotOp):
        b = operands.index(op.b, 1)  # type: ignore[attr-defined]
        expected = (0, b) if isinstance(op.a.type, MemRefType) else (b,)  # type: ignore[attr-defined]
    for index, operand in enumerate(operands):
        if (type(operand.type) is MemRefType) != (index in expected):
            raise VerifyException(f"operand {_name(operand)} of type {operand.type}; views are only loaded and stored")


def _verify_if(op: scf.IfOp) -> None:
    if not op.false_region.blocks and op.output:
        raise VerifyException("gives values but has no else")
    for region in op.regions:
        for block in region.blocks:
            last = block.last_op
            if isinstance(last, scf.YieldOp) and last.arguments.types != tuple(op.output.types):
                types = ", ".join(map(str, last.arguments.types))
                raise VerifyException(f"yields ({types}) for ({', '.join(map(str, op.output.types))})")


def _verify_module(op: ModuleOp) -> None:
    mains = 0
    for child in op.body.ops:
        if not isinstance(child, FuncOp | MainOp):
            raise VerifyException(f"a module holds kernels and one tile.main, not {child.name}")
        mains += isinstance(child, MainOp)
    if mains > 1:
        raise VerifyException(f"{mains} tile.main in one module")


def _name(value: SSAValue) -> str:
    return f"%{value.name_hint}" if value.name_hint else f"of type {value.type}"


_HELP = "`tilewright opt FILE` verifies a program; the rules are in the docstrings of tilewright.kernel.dialect"
