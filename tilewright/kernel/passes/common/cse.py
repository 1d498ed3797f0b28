"""Common subexpressions."""

from __future__ import annotations

from collections.abc import Hashable

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.kernel.dialect import FuncOp
from tilewright.kernel.passes.common.effects import PURE, READS, Writes
from tilewright.kernel.rewrite import replace_by_values


@dataclass(frozen=True)
class CsePass(ModulePass):
    """Compute the same value once.

    Before:  %a = arith.addi %x, %y     %b = arith.addi %x, %y
    After:   %a, twice
    Legal for operations that only compute, where the first is visible at the second; for loads and gathers, if in
    addition nothing between the two writes to their view. Views of one kernel share no memory, so that a write to
    another view does not count. Of what other threads write, a barrier or a wait shows all that it may. Shuffles and
    products of a warp are merged likewise: the first has run for the same lanes.
    """

    name = "cse"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp):
                _Walk(Writes(kernel)).block(kernel.body.block)


class _Walk:
    def __init__(self, stored: Writes) -> None:
        self.stored = stored
        self.known: dict[Hashable, Operation] = {}
        self.version: dict[SSAValue, int] = {}  # grows with every write to a view
        self.writes = 0

    def block(self, block: Block) -> None:
        added: list[Hashable] = []
        op = block.first_op
        while op is not None:
            following = op.next_op
            kind = op.name
            if kind in PURE:
                self.merge(op, _key(op, 0), added)
            elif kind in READS:
                self.merge(op, _key(op, self.version.get(op.operands[0], 0)), added)
            elif op.regions:
                self.regions(op)
            else:
                self.written(*self.stored.of(op))
            op = following
        for key in added:
            del self.known[key]

    def merge(self, op: Operation, key: Hashable, added: list[Hashable]) -> None:
        earlier = self.known.get(key)
        if earlier is None:
            self.known[key] = op
            added.append(key)
        else:
            replace_by_values(op, earlier.results)

    def regions(self, op: Operation) -> None:
        """Walk what an operation holds, which notes all that it writes."""
        for region in op.regions:
            for inner in region.blocks:
                if isinstance(op, scf.ForOp):
                    self.written(*self.stored.of(op))  # by an earlier trip
                self.block(inner)

    def written(self, *views: SSAValue) -> None:
        for view in views:
            self.writes += 1
            self.version[view] = self.writes


def _key(op: Operation, version: int) -> Hashable:
    """What makes two operations the same: kind, operands, properties, result type, and the state of memory."""
    properties = op.properties
    if type(op) is arith.ConstantOp:
        return properties["value"]
    # The numbers of objects: values are compared by identity, and the operation that is known keeps them alive.
    operands = tuple(map(id, op.operands))
    if not properties:
        return (type(op), op.results[0].type, version, operands)
    return (type(op), op.results[0].type, version, operands, *properties.items())
