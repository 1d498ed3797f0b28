"""Which registers hold guesses: what a compare-and-swap compares, so that an old value only costs another attempt.

Loops around ``atom.cas`` start with a plain load of the word that others change at the same time. Such a load needs no
order; whoever uses the word otherwise, or without the comparison, does.
"""

from __future__ import annotations

from tilewright.emulator.link import Linked
from tilewright.emulator.sums import registers


def guesses(linked: Linked) -> frozenset[int]:
    """The registers that instructions ``atom.cas`` compare, and those that are moved into them."""
    moved: dict[int, list[int]] = {}
    work: list[int] = []
    for node, scope in linked.instructions:
        if node.parts[0] == "mov" and len(node.operands) == 2:
            for target in registers(node.operands[0], scope):
                moved.setdefault(target, []).extend(registers(node.operands[1], scope))
        elif node.parts[0] == "atom" and "cas" in node.parts and len(node.operands) == 4:
            work.extend(registers(node.operands[2], scope))
    found: set[int] = set()
    while work:
        slot = work.pop()
        if slot not in found:
            found.add(slot)
            work.extend(moved.get(slot, ()))
    return frozenset(found)
