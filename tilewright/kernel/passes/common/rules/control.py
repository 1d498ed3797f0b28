"""Loops and branches whose course is known."""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.ir import Block, Region

from tilewright.kernel.rewrite import Rule, erase, inline_before, insert_before, replace, replace_by_values, uniform


def trips(op: scf.ForOp) -> int | None:
    """How often the body of a loop runs, if its bounds are constants and its step is legal."""
    low, high, step = (uniform(bound) for bound in (op.lb, op.ub, op.step))
    if low is None or high is None or step is None or step <= 0:
        return None
    return len(range(int(low), int(high), int(step)))


def trivial_loop(op: scf.ForOp) -> bool:
    """A loop of no trips gives its first values, a loop of one trip is its body."""
    count = trips(op)
    if count == 0:
        replace_by_values(op, op.iter_args)
        return True
    if count == 1:
        replace_by_values(op, inline_before(op, op.body.block, [op.lb, *op.iter_args]))
        return True
    return False


def invariant_carried_values(op: scf.ForOp) -> bool:
    """A carried value that each trip hands on unchanged is its first value, inside and after the loop."""
    first = list(op.iter_args)
    block = op.body.block
    terminator = block.last_op
    assert terminator is not None
    arguments = block.args[1:]
    kept = [
        number
        for number, (argument, value) in enumerate(zip(arguments, terminator.operands, strict=True))
        if value is not argument and value is not first[number]
    ]
    if len(kept) == len(arguments):
        return False
    for number, argument in enumerate(arguments):
        if number not in kept:
            argument.replace_all_uses_with(first[number])
            op.results[number].replace_all_uses_with(first[number])
    replace(terminator, scf.YieldOp(*(terminator.operands[number] for number in kept)))
    for number in reversed(range(len(arguments))):
        if number not in kept:
            block.erase_arg(arguments[number])
    body = Region()
    op.body.move_blocks(body)
    loop = scf.ForOp(op.lb, op.ub, op.step, [first[number] for number in kept], body)
    loop.attributes = dict(op.attributes)
    insert_before(op, loop)
    for number, result in zip(kept, loop.results, strict=True):
        op.results[number].replace_all_uses_with(result)
    erase(op)
    return True


def known_branch(op: scf.IfOp) -> bool:
    """A constant condition chooses a branch."""
    chosen = uniform(op.cond)
    if chosen is None:
        return False
    region = op.true_region if chosen != 0 else op.false_region
    block: Block | None = region.blocks.first
    replace_by_values(op, inline_before(op, block, []) if block is not None else [])
    return True


RULES: dict[str, list[Rule]] = {
    scf.ForOp.name: [trivial_loop, invariant_carried_values],
    scf.IfOp.name: [known_branch],
}
