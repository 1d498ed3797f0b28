"""Why a program may move something else than its tile tree says: what `counting` knows of it.

A reason is given only where the kernel has what it speaks of and, of registers, where the program moves less.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from tilewright.expr.affine import affine
from tilewright.expr.core import Apply, Expr, Read, walk
from tilewright.operator.products_tree import products_tree
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.problem import Problem
from tilewright.tiles.product import products_of
from tilewright.tiles.traffic import Moved
from tilewright.tiles.windows import window_reads

IN_REGISTERS = "in registers"  # a value that is in memory never, or not where a statement of the kernel reads it
LAST_BLOCK = "last block"  # the last block of k goes on to what follows the sum, tile by tile, from registers
SUMS_IN_SCRATCH = "sums in scratch"  # a result whose sums wait in other memory, from which they are copied
GUARDED = "under a condition"  # steps touch, and then hold, only elements for which it holds
FROM_DATA = "from data"  # which elements are read, a tensor says
GAPS = "gaps"  # the model takes all elements between the first and the last one that a step reads
DIFFERS = "differs"


class Reasons:
    """The reasons of one kernel. `problem` has its expressions with dimensions, `buffers` names of scratch memory."""

    def __init__(
        self, kernel: Kernel, problem: Problem, arguments: AbstractSet[str], buffers: AbstractSet[str]
    ) -> None:
        self.problem, self.arguments, self.buffers = problem, arguments, buffers
        self.products = products_tree(kernel) if products_of(kernel) else None
        self.own = {each.name for each in kernel.statements}
        totals = {each.work.total.name for each in self.products.products} if self.products is not None else set()
        self.of_rows = {each.name for each in kernel.statements if each.accum is not None} - totals
        self.through_windows = {name: each.read for name, each in window_reads(kernel.statements).items()}

    def of(self, name: str, model: Moved, counted: Moved) -> str:
        """Why a tensor moves so much and not what the model says; empty where both are equal."""
        if counted == model:
            return ""
        if name not in self.buffers | self.arguments:
            return IN_REGISTERS
        less = counted.loads <= model.loads and counted.fills <= model.fills and counted.stores <= model.stores
        of_products = self._of_products(name)
        if of_products:
            return of_products
        stored = name in self.own and counted.stores == model.stores and name not in self.through_windows
        if less and (name in self.of_rows or stored):
            return IN_REGISTERS
        reads = {read for each in self.problem.computes for read in each.reads() if read.tensor.name == name}
        windows = self.through_windows.values()  # what these leave out is not computed, nor what it is computed from
        if any(affine(index) is None for read in reads for index in read.indices):
            return FROM_DATA
        if name not in self.through_windows and any(_is_guarded(each.body, name) for each in self.problem.computes):
            return GUARDED  # of windows, memory has the border
        return GAPS if len(reads) > 1 or any(_has_gaps(read) for read in (*reads, *windows)) else DIFFERS

    def _of_products(self, name: str) -> str:
        if self.products is None:
            return ""
        if name in self.buffers & self.arguments:
            return SUMS_IN_SCRATCH
        return LAST_BLOCK if any(each.k_block for each in self.products.products) else ""


def _has_gaps(read: Read) -> bool:
    """Whether a step may read elements with others between them: by strides, or by loops that overlap in an address."""
    forms = [form for index in read.indices if (form := affine(index)) is not None]
    strides = any(abs(factor) > 1 for form in forms for factor in form.terms.values())
    return strides or (read.tensor.rank == 1 and any(len(form.terms) > 1 for form in forms))


def _is_guarded(body: Expr, tensor: str) -> bool:
    """Whether a tensor is read below a selection."""
    chosen = [each for each in walk(body) if isinstance(each, Apply) and each.function == "select"]
    return any(isinstance(node, Read) and node.tensor.name == tensor for each in chosen for node in walk(each))
