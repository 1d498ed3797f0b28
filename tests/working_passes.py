"""Which optimisations of GPUs change a program: to leave out any other one would run the same code again."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from tests.covering import FULL
from tilewright.kernel.passes.table import OPTIMISATIONS, pipeline
from tilewright.kernel.text import print_module
from tilewright.kernel.verify import held


def working_passes(module: ModuleOp, passes: Sequence[ModulePass] | None = None) -> list[str]:
    """Names of the optimisations that change the program, in order, when the passes of GPUs run on it, in place.

    Passes are functions of the program: without one that changes nothing wherever it runs, all of the others find what
    they found with it.
    """
    before, found = print_module(module), []
    for each in pipeline("gpu") if passes is None else passes:
        if not changes(each, module):
            continue
        after = print_module(module)
        if after != before and each.name in OPTIMISATIONS:
            found.append(each.name)
        before = after
    return list(dict.fromkeys(found))


def changes(each: ModulePass, module: ModuleOp) -> bool:
    """Run a pass; whether it may have changed the program: it made something anew, if perhaps as it was."""
    before = held(module)
    each.apply(Context(), module)
    after = held(module)
    return len(before) != len(after) or not all(map(is_, before, after))


def share(names: Sequence[str], number: int, of: int) -> list[str]:
    """Those of the optimisations that part `number` of `of` parts tries; all with `--full`.

    Programs that are tried without the same optimisations take a part each.
    """
    return [name for name in names if FULL or OPTIMISATIONS.index(name) % of == number]
