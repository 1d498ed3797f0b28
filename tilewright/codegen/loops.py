"""Loops and branches in LLVM IR that carry registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir


def counted_loop(
    builder: ir.IRBuilder,
    bounds: tuple[ir.Value, ir.Value, ir.Value],
    initial: Sequence[ir.Value],
    body: Callable[[ir.Value, list[ir.Value]], Sequence[ir.Value]],
) -> list[ir.Value]:
    """A loop from a low to a high bound (exclusive) by a step, that carries registers; their values after it.

    `body` is given the index and the registers at the start of a trip, and gives the registers at its end.
    """
    low, high, step = bounds
    before = builder.block
    head, inside, after = (builder.function.append_basic_block(name) for name in ("head", "body", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(low.type)
    index.add_incoming(low, before)
    carried = [builder.phi(register.type) for register in initial]
    for phi, register in zip(carried, initial, strict=True):
        phi.add_incoming(register, before)
    builder.cbranch(builder.icmp_signed("<", index, high), inside, after)
    builder.position_at_end(inside)
    results = body(index, list(carried))
    following = builder.add(index, step, flags=["nsw"])
    index.add_incoming(following, builder.block)
    for phi, register in zip(carried, results, strict=True):
        phi.add_incoming(register, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return list(carried)


def either(
    builder: ir.IRBuilder,
    condition: ir.Value,
    then: Callable[[], Sequence[ir.Value]],
    other: Callable[[], Sequence[ir.Value]],
    names: tuple[str, str, str] = ("then", "else", "after"),
) -> list[ir.Value]:
    """Emits `then` where the condition holds and `other` where not; the registers that the one that ran gives."""
    yes, no, after = (builder.function.append_basic_block(name) for name in names)
    builder.cbranch(condition, yes, no)
    ends = []
    for block, emit in ((yes, then), (no, other)):
        builder.position_at_end(block)
        registers = emit()
        ends.append((builder.block, registers))
        builder.branch(after)
    builder.position_at_end(after)
    columns = zip(*(registers for _, registers in ends), strict=True)
    return [merged(builder, [(end, each) for (end, _), each in zip(ends, column, strict=True)]) for column in columns]


def merged(builder: ir.IRBuilder, incoming: Sequence[tuple[ir.Block, ir.Value]]) -> ir.Value:
    """The register of the block that control came from."""
    phi = builder.phi(incoming[0][1].type)
    for block, value in incoming:
        phi.add_incoming(value, block)
    return phi
