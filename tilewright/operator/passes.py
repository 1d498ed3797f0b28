"""The passes of a kernel of rows: which statements run together, and which values they leave in row buffers.

Each pass walks the *inner* loops, which are those of the reductions, at one point of the outer loops. It computes one
statement, and before it the row buffers that it is the first to read. A statement that has a value for every inner
point and is not stored is computed again by each pass that reads it, unless it has a row buffer. A sum that follows
another reduction may be *joined*: it is computed in the pass of that, from its elements.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tilewright.expr.core import COSTLY, Apply, Expr, walk
from tilewright.operator.statements import covering, values_in
from tilewright.tiles.kernel import Statement


def row_buffers(statements: Sequence[Statement], joined: Collection[str] = ()) -> tuple[str, ...]:
    """Costly values per inner point that several passes read: the first one writes them to scratch for the others."""
    readers: dict[str, int] = {}
    for each in statements:
        for name in values_in(each.body) if each.name not in joined else ():
            readers[name] = readers.get(name, 0) + 1
    return tuple(
        name
        for name, each in covering(statements).items()
        if each.address is None and readers.get(name, 0) > 1
        and any(isinstance(e, Apply) and e.function in COSTLY for e in walk(each.body))
    )  # fmt: skip


def passes_of(
    statements: Sequence[Statement], buffers: Collection[str], joined: Collection[str] = ()
) -> list[list[Statement]]:
    """In each pass, the row buffers that it is the first to read, in order, the statement it is for, and sums that are
    `joined` to it.
    """
    inlined = set(covering(statements)) - set(buffers)
    waiting = {each.name: each for each in statements if each.name in buffers}
    needed: dict[str, dict[str, None]] = {}  # row buffers that a statement reads, those behind other buffers first
    for each in statements:
        own: dict[str, None] = {}
        for name in values_in(each.body):
            own.update(needed.get(name, {}) if name in inlined or name in buffers else {})
            own.update({name: None} if name in buffers else {})
        needed[each.name] = own
    passes = []
    for each in statements:
        elsewhere = each.name in buffers or each.name in joined
        if not elsewhere and (each.name not in inlined or each.address is not None):
            fills = [waiting.pop(name) for name in needed[each.name] if name in waiting]
            following = [sum_ for sum_ in statements if sum_.name in joined and follows(sum_, each)]
            passes.append([*fills, each, *following])
    return passes


def follows(statement: Statement, reduction: Statement) -> bool:
    """Whether a sum can be computed in the pass of a reduction, whose value it follows."""
    return statement.follows is not None and statement.follows.reduction == reduction.name


def walks_inner(statement: Statement, statements: Sequence[Statement]) -> bool:
    """Whether the pass of a statement walks the inner loops: not that of one value per outer point."""
    return statement.accum is not None or statement.name in covering(statements)


def values_read(body: Expr, inlined: Mapping[str, Statement]) -> set[str]:
    """Names of this kernel that a body reads, itself or through what it may compute again."""
    found: set[str] = set()
    bodies = [body]
    while bodies:
        for name in values_in(bodies.pop()):
            if name not in found:
                found.add(name)
                if name in inlined:
                    bodies.append(inlined[name].body)
    return found


def rows_in_use(stages: Sequence[Sequence[Sequence[Statement]]], statements: Sequence[Statement]) -> int:
    """Rows whose buffers are in use at once, where each stage of a pipeline, a list of passes, is on another row."""
    inlined = covering(statements)
    most = 1
    for first, stage in enumerate(stages):
        filled = {each.name for steps in stage for each in steps[:-1]}
        for last, reader in enumerate(stages[first + 1 :], first + 1):
            if any(filled & values_read(steps[-1].body, inlined) for steps in reader):
                most = max(most, last - first + 1)
    return most
