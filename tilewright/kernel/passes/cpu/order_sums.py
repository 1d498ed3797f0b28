"""Index sums are added in the order of the loops that their terms change in."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.kernel.dialect import FuncOp
from tilewright.kernel.rewrite import erase, replace


@dataclass(frozen=True)
class OrderSumsPass(ModulePass):
    """Add first what outer loops change, so that an inner loop adds only what it changes itself.

    Before:  scf.for %i { scf.for %j { %s = arith.addi %j, %i   %t = arith.addi %s, %k } }
    After:   scf.for %i { %s = arith.addi %k, %i   scf.for %j { %t = arith.addi %s, %j } }
    Legal for sums of type index, whose partial sums nothing else reads. Constants are added last: an access keeps them
    apart from the address that it shares with others. Comes after `licm`, which leaves each term in the loop that
    changes it.
    """

    name = "order-sums"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp):
                values = list(_values(kernel.body.block))
                numbers = {value: number for number, value in enumerate(values)}
                for value in values:
                    owner = value.owner
                    if isinstance(owner, arith.AddiOp) and _is_whole_sum(owner):
                        _order(owner, numbers)


def _values(block: Block) -> Iterator[SSAValue]:
    """Every value of a block, nested ones included, in the order of definition."""
    yield from block.args
    for op in block.ops:
        yield from op.results
        for region in op.regions:
            for inner in region.blocks:
                yield from _values(inner)


def _is_whole_sum(op: arith.AddiOp) -> bool:
    """Whether an addition gives an index that is not just a part of another sum."""
    return isinstance(op.result.type, IndexType) and type(op.result.get_user_of_unique_use()) is not arith.AddiOp


def _order(whole: arith.AddiOp, numbers: dict[SSAValue, int]) -> None:
    terms: list[SSAValue] = []
    parts: list[arith.AddiOp] = []
    waiting = [whole.rhs, whole.lhs]
    while waiting:
        term = waiting.pop()
        owner = term.owner
        if isinstance(owner, arith.AddiOp) and term.has_one_use():
            parts.append(owner)
            waiting += [owner.rhs, owner.lhs]
        else:
            terms.append(term)
    ordered = sorted(terms, key=lambda term: (type(term.owner) is arith.ConstantOp, numbers[term]))
    if ordered == terms and all(each.rhs in terms for each in (whole, *parts)):
        return
    total = latest = ordered[0]
    for term in ordered[1:-1]:
        added = arith.AddiOp(total, term)
        added.location = whole.location
        if term.owner is latest.owner or numbers[term] < numbers[latest]:
            _insert_behind(total, added)
        else:
            _insert_behind(term, added)
            latest = term
        total = added.result
    last = arith.AddiOp(total, ordered[-1])
    numbers[last.result] = numbers[whole.result]
    replace(whole, last)
    for part in parts:
        erase(part)


def _insert_behind(value: SSAValue, op: Operation) -> None:
    """Put an operation right behind the definition of a value."""
    owner = value.owner
    if isinstance(owner, Block):
        assert owner.first_op is not None
        owner.insert_op_before(op, owner.first_op)
    else:
        assert owner.parent is not None
        owner.parent.insert_op_after(op, owner)
