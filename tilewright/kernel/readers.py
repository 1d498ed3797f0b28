"""Who reads a value, directly or by way of loops and of operations that hand it on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from xdsl.dialects import scf
from xdsl.ir import Operation, SSAValue


def readers(value: SSAValue, hands_on: Callable[[Operation], bool]) -> Iterator[Operation]:
    """Operations that read a value, nearest first: through loops, and behind those for which `hands_on` says so."""
    seen, left = {value}, deque([value])
    while left:
        for use in left.popleft().uses:
            user, more = use.operation, list[SSAValue]()
            if isinstance(user, scf.ForOp) and use.index >= 3:
                more = [user.results[use.index - 3], user.body.block.args[use.index - 2]]
            elif isinstance(user, scf.YieldOp):
                parent = user.parent_op()
                assert parent is not None
                more = [parent.results[use.index]]
            elif hands_on(user):
                more = list(user.results)
            else:
                yield user
            left += [each for each in more if each not in seen]
            seen.update(more)
