"""What threads of a block do, in kernels that have them: coordinates, asynchronous copies, parts of joined tiles.

Apart from the other rules, which a CPU needs too: operations of `simt` are not imported for one.
"""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from tilewright.kernel.dialect import shape
from tilewright.kernel.rewrite import Rule, replace, replace_by_number, replace_by_values, uniform
from tilewright.kernel.simt import AsyncCopyOp, JoinOp, PartOp, ThreadIdOp, block_of


def thread_of_one(op: ThreadIdOp) -> bool:
    """Along an axis of one thread its coordinate is 0."""
    if block_of(op).block[op.axis.value.data] != 1:
        return False
    replace_by_number(op, 0)
    return True


def copy_permits(op: AsyncCopyOp) -> bool:
    """A copy of which every element is valid needs no number that says so."""
    number = uniform(op.valid) if op.valid is not None else None
    elements = op.elements.value.data
    if number is None or number < elements:
        return False
    places = (op.source, op.source_offset, op.target, op.target_offset)
    replace(op, AsyncCopyOp(*places, elements, bypass=op.bypass is not None))
    return True


def whole_part(op: PartOp) -> bool:
    """All elements of a tile are the tile."""
    if op.value.type != op.result.type:
        return False
    replace_by_values(op, [op.value])
    return True


def part_of_part(op: PartOp) -> bool:
    """A part of a part is a part."""
    inner = op.value.owner
    if not isinstance(inner, PartOp):
        return False
    replace(op, PartOp(inner.value, inner.start.value.data + op.start.value.data, shape(op.result)[0]))
    return True


def part_of_joined(op: PartOp) -> bool:
    """A part of joined tiles that lies in one of them is a part of that one."""
    joined, start, count = op.value.owner, op.start.value.data, shape(op.result)[0]
    if not isinstance(joined, JoinOp):
        return False
    for part in joined.parts:
        own = shape(part)[0]
        if start + count <= own and start >= 0:
            replace(op, PartOp(part, start, count))
            return True
        start -= own
    return False


def joined_neighbours(op: JoinOp) -> bool:
    """Parts of one tile that follow each other are one part; a single tile is not joined."""
    parts: list[SSAValue] = []
    runs: list[tuple[SSAValue, int, int]] = []  # of which tile, from where, how many elements
    for part in op.parts:
        owner = part.owner
        of, start = (owner.value, owner.start.value.data) if isinstance(owner, PartOp) else (part, 0)
        count = shape(part)[0]
        if runs and runs[-1][0] is of and runs[-1][1] + runs[-1][2] == start:
            runs[-1] = (of, runs[-1][1], runs[-1][2] + count)
        else:
            runs.append((of, start, count))
    if len(runs) == len(op.parts) and len(runs) > 1:
        return False
    new: list[Operation] = []
    for of, start, count in runs:
        if count == shape(of)[0]:
            parts.append(of)
        else:
            new.append(PartOp(of, start, count))
            parts.append(new[-1].results[0])
    if len(parts) > 1:
        replace(op, *new, JoinOp(parts))
    elif new:
        replace(op, *new)
    else:
        replace_by_values(op, parts)
    return True


RULES: dict[str, list[Rule]] = {
    ThreadIdOp.name: [thread_of_one],
    AsyncCopyOp.name: [copy_permits],
    PartOp.name: [whole_part, part_of_part, part_of_joined],
    JoinOp.name: [joined_neighbours],
}
