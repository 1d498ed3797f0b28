"""Which registers hold speculative reads: plain loads that a compare-and-swap confirms; a stale value costs one retry.

Loops around ``atom.cas`` start with a plain load of the word that others change at the same time. Such a load needs no
order where nothing else sees what it read: moves apart, the value is what one ``atom.cas`` on the same address compares
and what it stores is computed from. Registers count with all their definitions and uses, wherever those stand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilewright.emulator.link import Linked, Mark, Register, Scope, Storage
from tilewright.emulator.scalars import WIDTHS
from tilewright.emulator.spaces import NAMES
from tilewright.emulator.syntax import Address, Group, Instruction, Name, Negated, Number, Operand, Pair, Vector

#: Instructions that only compute their first operand from the others.
_COMPUTES = frozenset((
    "abs", "add", "and", "bfe", "bfi", "bfind", "bmsk", "brev", "clz", "cnot", "copysign", "cos", "cvt", "div", "ex2",
    "fma", "fns", "lg2", "lop3", "mad", "mad24", "max", "min", "mov", "mul", "mul24", "neg", "not", "or", "popc",
    "prmt", "rcp", "rem", "rsqrt", "sad", "selp", "set", "setp", "shf", "shl", "shr", "sin", "slct", "sqrt", "sub",
    "szext", "tanh", "testp", "xor",
))  # fmt: skip
_SAME = ("eq", "ne", "equ", "neu")


def speculative_reads(linked: Linked) -> frozenset[int]:
    """The registers that such loads set."""
    swaps = [
        number for number, (node, _) in enumerate(linked.instructions)
        if node.parts[0] == "atom" and "cas" in node.parts and len(node.operands) >= 4
    ]  # fmt: skip
    if not swaps:
        return frozenset()
    flow = _Flow(linked)
    return frozenset(slot for number in swaps for slot in _Swap(flow, number).confirmed())


class _Flow:
    """Which instructions define a register and which use it; what is not known as a definition counts as both."""

    def __init__(self, linked: Linked) -> None:
        self.linked = linked
        self.defined: dict[int, list[int]] = {}
        self.used: dict[int, list[int]] = {}
        for number, (node, scope) in enumerate(linked.instructions):
            targets = set(_slots(node.operands[:1], scope, addresses=False))
            known = self.computes(number) or node.parts[0] in ("ld", "atom")
            sources = set(_slots(node.operands[1:] if known else node.operands, scope))
            if node.guard is not None:
                sources.update(_slots((node.guard,), scope))
            for slots, where in ((targets, self.defined), (sources, self.used)):
                for slot in slots:
                    where.setdefault(slot, []).append(number)

    def node(self, number: int) -> Instruction:
        return self.linked.instructions[number][0]

    def computes(self, number: int) -> bool:
        parts = self.node(number).parts
        return parts[0] in _COMPUTES and "cc" not in parts

    def slots(self, number: int, first: int, last: int | None = None) -> set[int]:
        """The registers of operands `first` to `last`."""
        node, scope = self.linked.instructions[number]
        return set(_slots(node.operands[first:last], scope))

    def moved(self, number: int) -> int | None:
        """The register that an instruction moves as it is into another."""
        node, scope = self.linked.instructions[number]
        if node.parts[0] != "mov" or len(node.operands) != 2:
            return None
        target, source = (scope.find(operand.text) if isinstance(operand, Name) else None for operand in node.operands)
        if isinstance(target, Register) and isinstance(source, Register) and target.width == source.width:
            return source.slot
        return None

    def place(self, number: int) -> tuple[object, ...] | None:
        """What an access names, equal for accesses of the same bytes: its space, base, offset and width."""
        node, scope = self.linked.instructions[number]
        address = node.operands[1] if len(node.operands) > 1 else None
        width = next((WIDTHS[part] for part in node.parts if part in WIDTHS), 0)
        if not isinstance(address, Address) or address.coordinates is not None:
            return None
        space = next((NAMES[part] for part in node.parts if part in NAMES), "generic")
        if isinstance(address.base, Number):
            return space, address.base.value, address.offset, width
        base = scope.find(address.base.text)
        if isinstance(base, Register):
            where = self.defined.get(base.slot, [])
            if len(where) != 1 or where[0] >= number:  # not surely the same address wherever it is named
                return None
            return space, "register", base.slot, address.offset, width
        return (space, "variable", id(base), address.offset, width) if isinstance(base, Storage) else None

    def goes_back(self, number: int, before: int) -> bool:
        """Whether an instruction is a branch to `before` or in front of it."""
        if number >= len(self.linked.instructions):
            return False
        node, scope = self.linked.instructions[number]
        target = node.operands[0] if node.parts[0] == "bra" and node.operands else None
        mark = scope.find(target.text) if isinstance(target, Name) else None
        return isinstance(mark, Mark) and self.linked.labels.get(mark.number, before + 1) <= before


class _Swap:
    """One compare-and-swap, and the registers around it by what they hold.

    `old` is what it found, `compared` the guess and its copies, `new` what goes into the word and nowhere else, and
    `again` the predicates that say whether the guess was right, which only repeat the loop.
    """

    def __init__(self, flow: _Flow, number: int) -> None:
        self.flow, self.number = flow, number
        self.place = flow.place(number)
        self.old = flow.slots(number, 0, 1)
        grown = True
        while grown:
            targets = {
                slot for source in self.old for use in flow.used.get(source, ()) if flow.moved(use) == source
                for slot in flow.slots(use, 0, 1)
            }  # fmt: skip
            grown = not targets <= self.old
            self.old |= targets
        self.compared = self._sources(flow.slots(number, 2, 3), set(), moves=True)
        self.new = self._sources(flow.slots(number, 3), self.compared, moves=False)
        self.again = {
            slot for source in self.old for use in flow.used.get(source, ()) if self._asks(use)
            for slot in flow.slots(use, 0, 1)
        }  # fmt: skip

    def _sources(self, first: set[int], without: set[int], *, moves: bool) -> set[int]:
        """Registers that others are moved or computed from."""
        found: set[int] = set()
        work = list(first - without)
        while work:
            slot = work.pop()
            found.add(slot)
            for number in self.flow.defined.get(slot, ()):
                source = self.flow.moved(number)
                sources: Iterable[int] = () if source is None else (source,)
                if not moves:
                    sources = self.flow.slots(number, 1) if self.flow.computes(number) else ()
                work.extend(each for each in sources if each not in found and each not in without)
        return found

    def confirmed(self) -> Iterator[int]:
        """The register of the one load that gives the guess, if nothing else sees it."""
        if self.place is None:
            return
        while self._drop():
            pass
        loads = {number for slot in self.compared for number in self.flow.defined[slot] if self._is_load(number)}
        if len(loads) == 1:
            yield from self.flow.slots(loads.pop(), 0, 1)

    def _drop(self) -> bool:
        """Drop registers that do not hold only what they should, or whose values go elsewhere; were there any?"""
        flow, before = self.flow, len(self.old) + len(self.compared) + len(self.new) + len(self.again)
        for slots in (self.old, self.compared):
            slots -= {
                slot for slot in slots if not all(self._gives(each, slot) for each in flow.defined.get(slot, (-1,)))
            }
        self.again -= {slot for slot in self.again if not all(map(self._asks, flow.defined[slot]))}
        for slots in (self.compared, self.new, self.again):
            slots -= {slot for slot in slots if not all(self._fine(each, slot) for each in flow.used.get(slot, ()))}
        return len(self.old) + len(self.compared) + len(self.new) + len(self.again) < before

    def _gives(self, number: int, slot: int) -> bool:
        """Whether an instruction sets a register to the guess or to what the swap found."""
        if number < 0:  # nothing sets it
            return False
        if number == self.number or self.flow.moved(number) in self.old | self.compared:
            return True
        return slot in self.compared and self._is_load(number)

    def _is_load(self, number: int) -> bool:
        node, scope = self.flow.linked.instructions[number]
        target = scope.find(node.operands[0].text) if node.operands and isinstance(node.operands[0], Name) else None
        return (
            node.parts[0] == "ld" and isinstance(target, Register) and self.place is not None
            and self.flow.place(number) == self.place and self.place[-1] == target.width
        )  # fmt: skip

    def _asks(self, number: int) -> bool:
        """Whether an instruction compares the guess with what the swap found."""
        node = self.flow.node(number)
        if node.parts[0] != "setp" or len(node.operands) != 3 or node.parts[1] not in _SAME:
            return False
        left, right = self.flow.slots(number, 1, 2), self.flow.slots(number, 2, 3)
        return isinstance(node.operands[0], Name) and any(
            a and b and a <= self.old and b <= self.compared for a, b in ((left, right), (right, left))
        )

    def _fine(self, number: int, slot: int) -> bool:
        """Whether an instruction uses a register as it may."""
        flow, node = self.flow, self.flow.node(number)
        scope = flow.linked.instructions[number][1]
        steers = node.guard is not None and slot in _slots((node.guard,), scope)
        if slot in self.again:
            leaves = (
                node.parts[0] == "bra" and flow.goes_back(number + 1, self.number)
                and flow.node(number + 1).guard is None
            )  # fmt: skip
            return steers and number > self.number and (leaves or flow.goes_back(number, self.number))
        if number == self.number:
            others = flow.slots(number, 1, 2 if slot in self.compared else 3)
            return not steers and slot not in others
        if not flow.computes(number):
            return False
        targets = flow.slots(number, 0, 1)
        if targets <= self.new:
            return bool(targets)
        if steers or slot not in self.compared:
            return False
        return (flow.moved(number) == slot and targets <= self.compared) or (
            self._asks(number) and targets <= self.again
        )


def _slots(operands: Iterable[Operand], scope: Scope, *, addresses: bool = True) -> Iterator[int]:
    """All registers of operands, predicates too; those of addresses as asked."""
    for operand in operands:
        if isinstance(operand, Name):
            symbol = scope.find(operand.text)
            if isinstance(symbol, Register):
                yield symbol.slot
        elif isinstance(operand, Negated):
            yield from _slots((operand.operand,), scope)
        elif isinstance(operand, (Vector, Group)):
            yield from _slots(operand.items, scope, addresses=addresses)
        elif isinstance(operand, Pair):
            yield from _slots((operand.first, operand.second), scope, addresses=addresses)
        elif isinstance(operand, Address) and addresses:
            if isinstance(operand.base, Name):
                yield from _slots((operand.base,), scope)
            if operand.coordinates is not None:
                yield from _slots((operand.coordinates,), scope)
