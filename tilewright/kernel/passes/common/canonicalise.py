"""One walk that applies every local simplification."""

from __future__ import annotations

from functools import cache

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.kernel.dialect import FuncOp
from tilewright.kernel.passes.common.rules import access, arithmetic, control, tiles
from tilewright.kernel.rewrite import Rule, rewrite


@dataclass(frozen=True)
class CanonicalisePass(ModulePass):
    """Fold constants, remove identities, shorten chains of casts, repeats and reshapes, unroll loops of 0 or 1 trips.

    Before:  %a = arith.addi %x, %c1     %b = arith.addi %a, %c2
    After:   %b = arith.addi %x, %c3
    Legal because each rule gives the same numbers, bit by bit except for the payload of a NaN; `rules/` has them.
    Leaves operations without uses behind.
    """

    name = "canonicalise"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp):
                rewrite(kernel.body.block, _rules_of_blocks() if kernel.block else RULES)


def _merged(*tables: dict[str, list[Rule]]) -> dict[str, list[Rule]]:
    merged: dict[str, list[Rule]] = {}
    for table in tables:
        for name, rules in table.items():
            merged.setdefault(name, []).extend(rules)
    return merged


RULES = _merged(arithmetic.RULES, tiles.RULES, access.RULES, control.RULES)


@cache
def _rules_of_blocks() -> dict[str, list[Rule]]:
    """Those of kernels whose programs are blocks of threads."""
    from tilewright.kernel.passes.common.rules import threads

    return _merged(RULES, threads.RULES)
