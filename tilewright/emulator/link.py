"""An entry of a module as one flat list of instructions: scopes resolved, calls inlined, variables placed."""

from __future__ import annotations

from dataclasses import field
from functools import cached_property

from tilewright.dataclass import dataclass
from tilewright.emulator.errors import InvalidPtx, Place, refuse
from tilewright.emulator.scalars import WIDTHS, size
from tilewright.emulator.syntax import (
    Address,
    Block,
    Function,
    Group,
    Instruction,
    Label,
    Module,
    Name,
    Number,
    Operand,
    Pair,
    Registers,
    Targets,
    Variable,
    Vector,
)

_DEEPEST_CALL = 32
_CODE_BASE = 0x10_0000  # addresses of functions, which only indirect calls use
_MOST_INSTRUCTIONS = 1 << 20
#: Functions that the driver provides: their calls are understood by name.
PROVIDED = ("vprintf", "__assertfail", "__trap")


@dataclass(frozen=True, slots=True)
class Register:
    """A register: its number, width in bits, and declared type."""

    slot: int
    width: int
    type: str


@dataclass(slots=True)
class Storage:
    """A variable: its space, and its offset there once it is placed."""

    space: str
    variable: Variable
    offset: int = -1

    @property
    def bytes(self) -> int:
        return (self.variable.count or 0) * size(self.variable.type)


@dataclass(frozen=True, slots=True)
class Mark:
    """A label, by number; `targets` of an indexed branch are several."""

    number: int
    targets: tuple[Name, ...] = ()


@dataclass(frozen=True, slots=True)
class Code:
    """A function as a value: its address."""

    address: int


Symbol = Register | Storage | Mark | Code


class Scope:
    """Names of a block, and those around it."""

    def __init__(self, outer: Scope | None = None) -> None:
        self.outer = outer
        self.names: dict[str, Symbol] = {}

    def find(self, name: str) -> Symbol | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return None

    def add(self, name: str, symbol: Symbol, place: Place) -> None:
        if name in self.names:
            raise refuse(place, f"{name!r} is declared twice in one scope")
        self.names[name] = symbol


@dataclass
class Linked:
    """The entry, flat: instructions with the scope of their names, registers, labels, and where variables are."""

    entry: Function
    target: str
    instructions: list[tuple[Instruction, Scope]] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    labels: dict[int, int] = field(default_factory=dict)
    parameters: list[Storage] = field(default_factory=list)
    parameter_bytes: int = 0
    globals: list[Storage] = field(default_factory=list)
    static_bytes: int = 0
    dynamic: str = ""  # a variable in shared memory of which the launch gives the extent
    local_bytes: int = 0
    functions: dict[str, int] = field(default_factory=dict)  # addresses
    signals: bool = False  # has fences, or accesses that release or acquire
    waits: bool = False  # may wait for other blocks: has atomic or ordered accesses
    reserved: bool = False  # names the shared memory that hardware keeps for itself
    whole_grid: bool = False  # names the memory through which all blocks of a launch wait for each other
    speculative_reads: frozenset[int] = frozenset()  # registers of loads that a compare-and-swap confirms
    sums: dict[int, str] = field(default_factory=dict)  # registers that may hold sums of floats, and their type


def link(module: Module, entry: str) -> Linked:
    """Raises InvalidPtx for an unknown entry, unknown names in declarations, recursion and calls of the unknown."""
    function = module.functions.get(entry)
    if function is None or not function.entry or function.body is None:
        raise InvalidPtx(f"no entry {entry!r}", where="--entry", help=f"entries: {', '.join(module.entries) or 'none'}")
    return _Linker(module, function).run()


class _Linker:
    def __init__(self, module: Module, entry: Function) -> None:
        self.module = module
        self.linked = Linked(entry, module.target)
        self.top = Scope()
        self.shared: list[Storage] = []
        self.marks = 0

    def run(self) -> Linked:
        linked = self.linked
        for number, name in enumerate(self.module.functions):
            linked.functions[name] = _CODE_BASE + 16 * number
            self.top.names[name] = Code(linked.functions[name])
        for variable in self.module.variables.values():
            storage = Storage(variable.space, variable)
            self.top.names[variable.name] = storage
            if variable.space in ("global", "const"):
                linked.globals.append(storage)
        scope = Scope(self.top)
        at = 0
        for parameter in linked.entry.parameters:
            if isinstance(parameter, Registers):
                raise refuse(parameter.place, "an entry takes .param parameters")
            storage = Storage("param", parameter)
            at = -(-at // parameter.align) * parameter.align
            storage.offset = at
            at += storage.bytes
            linked.parameters.append(storage)
            scope.add(parameter.name, storage, parameter.place)
        linked.parameter_bytes = at
        assert linked.entry.body is not None, "checked by link"
        self._block(linked.entry.body, scope, None, ())
        self._place_shared()
        for node, _ in linked.instructions:
            parts = set(node.parts)
            fences = node.parts[0] in ("fence", "membar") and not parts & {"proxy", "mbarrier_init"}
            accesses = node.parts[0] in ("ld", "st", "atom", "red")
            linked.signals |= fences or (accesses and bool(parts & {"acquire", "release", "acq_rel"}))
            linked.waits |= node.parts[0] == "atom" or (accesses and bool(parts & {"acquire", "relaxed", "volatile"}))
        return linked

    def _block(self, block: Block, outer: Scope, end: Name | None, calls: tuple[str, ...]) -> None:
        scope = Scope(outer)
        for statement in block.body:
            if isinstance(statement, (Label, Targets)):
                self.marks += 1
                targets = statement.labels if isinstance(statement, Targets) else ()
                scope.add(statement.name, Mark(self.marks, targets), statement.place)
        for statement in block.body:
            if isinstance(statement, Registers):
                self._registers(statement, scope)
            elif isinstance(statement, Variable):
                self._variable(statement, scope)
            elif isinstance(statement, Label):
                mark = scope.names[statement.name]
                assert isinstance(mark, Mark), "added above"
                self.linked.labels[mark.number] = len(self.linked.instructions)
            elif isinstance(statement, Block):
                self._block(statement, scope, end, calls)
            elif isinstance(statement, Instruction):
                self._instruction(statement, scope, end, calls)

    def _instruction(self, node: Instruction, scope: Scope, end: Name | None, calls: tuple[str, ...]) -> None:
        if node.parts[0] == "call":
            self._call(node, scope, calls)
            return
        if node.parts[0] == "ret" and end is not None:
            node = Instruction("bra", (end,), node.place, node.guard, node.negated)
        if len(self.linked.instructions) >= _MOST_INSTRUCTIONS:
            raise refuse(node.place, f"more than {_MOST_INSTRUCTIONS} instructions after inlining")
        for operand in node.operands:
            self._touch(operand, scope)
        self.linked.instructions.append((node, scope))

    def _touch(self, operand: Operand, scope: Scope) -> None:
        """Shared variables of the module that this kernel names get a place."""
        if isinstance(operand, Name):
            self.linked.reserved |= operand.text.startswith("%reserved_smem_")
            self.linked.whole_grid |= operand.text in ("%envreg1", "%envreg2")
            found = scope.find(operand.text)
            if isinstance(found, Storage) and found.space == "shared" and found not in self.shared:
                self.shared.append(found)
        elif isinstance(operand, Address):
            if isinstance(operand.base, Name):
                self._touch(operand.base, scope)
        elif isinstance(operand, (Vector, Group)):
            for item in operand.items:
                self._touch(item, scope)
        elif isinstance(operand, Pair):
            self._touch(operand.first, scope)
            self._touch(operand.second, scope)

    def _registers(self, node: Registers, scope: Scope) -> None:
        width = WIDTHS[node.type]
        if width > 64:
            raise refuse(node.place, f"registers of type .{node.type} are not emulated", "use pairs of .b64")
        if node.vector > 1:
            raise refuse(node.place, "vector registers are not emulated", "declare their elements")
        names = [node.name] if node.count is None else [f"{node.name}{number}" for number in range(node.count)]
        for name in names:
            scope.add(name, Register(len(self.linked.widths), width, node.type), node.place)
            self.linked.widths.append(width)

    def _variable(self, node: Variable, scope: Scope) -> None:
        if node.space == "shared":
            storage = Storage("shared", node)
            self.shared.append(storage)
        elif node.space in ("local", "param"):  # parameters of calls live in the caller's local memory
            storage = Storage("local", node)
            self.linked.local_bytes = -(-self.linked.local_bytes // node.align) * node.align
            storage.offset = self.linked.local_bytes
            self.linked.local_bytes += storage.bytes
        elif node.space in ("global", "const"):
            storage = Storage(node.space, node)
            self.linked.globals.append(storage)
        else:
            raise refuse(node.place, f"a variable in .{node.space}")
        scope.add(node.name, storage, node.place)

    def _call(self, node: Instruction, scope: Scope, calls: tuple[str, ...]) -> None:
        """The callee's body in place of the call: its parameters are the caller's variables, or copies of operands."""
        operands = list(node.operands)
        results = operands.pop(0) if operands and isinstance(operands[0], Group) else Group((), node.place)
        if not operands or not isinstance(operands[0], Name):
            raise refuse(node.place, "a call without the name of a function")
        name = operands[0].text
        arguments = operands[1] if len(operands) > 1 and isinstance(operands[1], Group) else Group((), node.place)
        assert isinstance(results, Group), "taken above"
        function = self.module.functions.get(name)
        if name in PROVIDED:
            self._provided(name, node, results, scope)
            return
        if isinstance(scope.find(name), Register):
            self._indirect(operands[0], node, results, arguments, scope, calls)
            return
        if function is None or function.body is None:
            raise refuse(node.place, f"calls {name!r}, which has no body here",
                         "libraries are not emulated; link the function into the PTX")  # fmt: skip
        if name in calls or len(calls) >= _DEEPEST_CALL:
            raise refuse(node.place, f"recursion through {name!r} is not emulated")
        if len(results.items) != len(function.results) or len(arguments.items) != len(function.parameters):
            raise refuse(node.place, f"{name!r} takes {len(function.parameters)} parameters and gives "
                         f"{len(function.results)} results")  # fmt: skip
        self.marks += 1
        end = Name(f"$end of call {self.marks}", node.place)
        inner = Scope(self.top)
        inner.add(end.text, Mark(self.marks), node.place)
        bridge = Scope(scope)  # sees the caller's names, and the callee's parameters under names of their own
        bridge.add(end.text, inner.names[end.text], node.place)
        if node.guard is not None:
            self.linked.instructions.append(
                (Instruction("bra", (end,), node.place, node.guard, not node.negated), bridge)
            )
        after = []
        for formals, actuals, incoming in ((function.parameters, arguments, True), (function.results, results, False)):
            for number, (formal, actual) in enumerate(zip(formals, actuals.items, strict=True)):
                found = scope.find(actual.text) if isinstance(actual, Name) else None
                if isinstance(formal, Variable) and isinstance(found, Storage) and found.space == "local":
                    inner.add(formal.name, found, formal.place)
                    continue
                alias = f"${'in' if incoming else 'out'} {number}"
                place = Name(alias, node.place)
                own: Name | Address
                if isinstance(formal, Registers):
                    self._registers(formal, inner)
                    bridge.names[alias] = inner.names[formal.name]
                    opcode, own = f"mov.{formal.type}", place
                else:
                    self._variable(formal, inner)
                    bridge.names[alias] = inner.names[formal.name]
                    opcode = f"{'st' if incoming else 'ld'}.param.{formal.type}"
                    own = Address(place, 0, None, node.place)
                pair = (own, actual) if incoming else (actual, own)
                made = (Instruction(opcode, pair, node.place), bridge)
                if incoming:
                    self.linked.instructions.append(made)
                else:
                    after.append(made)
        self._block(function.body, inner, end, (*calls, name))
        mark = inner.names[end.text]
        assert isinstance(mark, Mark), "added above"
        if node.guard is None:
            self.linked.labels[mark.number] = len(self.linked.instructions)
            self.linked.instructions += after
        else:
            self.linked.instructions += [
                (Instruction(made.opcode, made.operands, made.place, node.guard, node.negated), where)
                for made, where in after
            ]
            self.linked.labels[mark.number] = len(self.linked.instructions) - len(after)

    def _provided(self, name: str, node: Instruction, results: Group, scope: Scope) -> None:
        """What the driver provides; results are zeros."""
        calls = [Instruction(f"call.{name}", (), node.place, node.guard, node.negated)]
        for result in results.items:
            found = scope.find(result.text) if isinstance(result, Name) else None
            if isinstance(result, Name) and isinstance(found, Storage):
                target, zero = Address(result, 0, None, node.place), Number(0, "int", node.place)
                calls.append(Instruction(f"st.param.b{WIDTHS[found.variable.type]}", (target, zero), node.place))
        self.linked.instructions += [(call, scope) for call in calls]

    def _indirect(
        self, target: Name, node: Instruction, results: Group, arguments: Group, scope: Scope, calls: tuple[str, ...]
    ) -> None:
        """A call through a register: every function that has an address, where the register holds it."""
        self.marks += 1
        end, guard = self.marks, Name(f"$callee {self.marks}", node.place)
        around = Scope(scope)
        self._registers(Registers("pred", guard.text, None, node.place), around)
        past = Name(f"$after call {end}", node.place)
        around.add(past.text, Mark(end), node.place)
        made = self.linked.instructions
        if node.guard is not None:
            made.append((Instruction("bra", (past,), node.place, node.guard, not node.negated), around))
        given = len(results.items), len(arguments.items)
        for name in self._with_address:
            function = self.module.functions[name]
            if name in calls or (len(function.results), len(function.parameters)) != given:
                continue
            address = Number(self.linked.functions[name], "int", node.place)
            made.append((Instruction("setp.eq.u64", (guard, target, address), node.place), around))
            self._call(
                Instruction("call", (results, Name(name, node.place), arguments), node.place, guard), around, calls
            )
            made.append((Instruction("bra", (past,), node.place, guard), around))
        made.append((Instruction("trap", (), node.place), around))  # no function, or one that would be recursive
        self.linked.labels[end] = len(made)

    @cached_property
    def _with_address(self) -> list[str]:
        """Functions with a body that a variable or a register may hold."""
        named: set[str] = set()

        def look(block: Block) -> None:
            for statement in block.body:
                if isinstance(statement, Block):
                    look(statement)
                elif isinstance(statement, Instruction) and statement.parts[0] != "call":
                    named.update(operand.text for operand in statement.operands if isinstance(operand, Name))

        for variable in self.module.variables.values():
            named.update(value[0] for value in variable.values if isinstance(value, tuple))
        for function in self.module.functions.values():
            if function.body is not None:
                look(function.body)
        return [name for name, each in self.module.functions.items() if name in named and each.body and not each.entry]

    def _place_shared(self) -> None:
        """Static variables in order, dynamic ones all after them, at one address."""
        at, dynamic = 0, []
        for storage in self.shared:
            if storage.variable.count is None:
                dynamic.append(storage)
                continue
            at = -(-at // storage.variable.align) * storage.variable.align
            storage.offset = at
            at += storage.bytes
        if dynamic:
            align = max(16, *(storage.variable.align for storage in dynamic))
            at = -(-at // align) * align
        for storage in dynamic:
            storage.offset = at
            self.linked.dynamic = storage.variable.name
        self.linked.static_bytes = at


def number_of(operand: Operand) -> int:
    """The value of an integer constant; raises InvalidPtx for anything else."""
    if isinstance(operand, Number) and operand.kind == "int":
        return operand.value
    raise refuse(operand.place, "expected an integer constant")
