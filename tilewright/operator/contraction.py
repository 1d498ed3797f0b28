"""Contractions: which loops of a product of two flat operands play which part, and how they run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from tilewright.dataclass import dataclass
from tilewright.expr.core import Axis, Const, Expr, Tensor
from tilewright.expr.dtypes import INDEX
from tilewright.expr.names import unique
from tilewright.expr.rewrite import substitute
from tilewright.operator.nest import addresses, outside_reads, renamed, walked_as_one


@dataclass(frozen=True)
class Operand:
    """One factor of the product: a flat tensor read at one linear, affine index."""

    tensor: Tensor
    index: Expr


@dataclass(frozen=True)
class Contraction:
    """What to compute. `m_loops` are tiled as a box, `n_loop` is the vector, `k_loops` run inside, outermost first.

    `outer` loops (batch, groups) are not tiled. `accumulator` is the name by which `epilogue` reads the sum, at rank 0;
    `output` is written at the linear address `index`. `intrinsic` names the instruction, `lanes` what one of its
    registers holds along n, `group` its neighbours along k, which the last k loop provides contiguously in a and
    interleaved in b; a register tile has at most the rows and registers per row of one of `shapes`. `whole_panels`: the
    storage of b holds whole tiles along n, so that the ragged one may be read beyond the last column. `whole_groups`:
    the last group of the last k loop may be read beyond the last point of a, where b has zeros. `fused` has the loops
    that an m or k loop stands for, by its name.
    """

    outer: tuple[Axis, ...]
    m_loops: tuple[Axis, ...]
    n_loop: Axis
    k_loops: tuple[Axis, ...]
    a: Operand
    b: Operand
    accumulator: Tensor
    epilogue: Expr
    output: Tensor
    index: Expr
    intrinsic: str
    shapes: tuple[tuple[int, int], ...]
    lanes: int
    group: int = 1
    whole_panels: bool = False
    whole_groups: bool = False
    fused: Mapping[str, tuple[Axis, ...]] = field(default_factory=dict)

    def stands_for(self, loop: Axis) -> tuple[Axis, ...]:
        """The loops that were fused into a loop, or the loop itself."""
        return self.fused.get(loop.name, (loop,))

    def renamed(self, names: Mapping[str, str]) -> Contraction:
        """The same contraction over tensors with other names."""

        def called(tensor: Tensor) -> Tensor:
            return replace(tensor, name=names[tensor.name])

        return replace(
            self,
            a=replace(self.a, tensor=called(self.a.tensor)),
            b=replace(self.b, tensor=called(self.b.tensor)),
            accumulator=called(self.accumulator),
            epilogue=renamed(self.epilogue, names),
            output=called(self.output),
        )


@dataclass(frozen=True)
class ContractionSchedule:
    """How it runs: tile extents per loop (m loops multiply to the rows of the register tile), order and blocks of the
    loops.

    `order` lists the spatial loops outermost first; `blocks` deals loops to the grid, whose slowest axis is the first
    of `grid_order`. `k_unroll` is how many steps of the last k loop one product takes. `k_block` > 0 cuts the first k
    loop into blocks of so many points that run outside the m loops; with `prefetch_line_bytes`, the cache line, a block
    asks for what comes next while it is computed. With `epilogue_loop` the epilogue is a loop over the vectors of the
    register tile, which reads the sums from scratch memory; else it is unrolled over the tile.
    """

    tile: Mapping[str, int]
    order: tuple[str, ...]
    blocks: Mapping[str, int]
    grid_order: tuple[str, ...]
    k_unroll: int
    lanes: int
    k_block: int = 0
    prefetch_line_bytes: int = 0
    epilogue_loop: bool = False


def merge_product_loops(work: Contraction, rows: Collection[Axis] | None = None) -> Contraction:
    """Fuse neighbouring m loops, and neighbouring k loops, that every address walks as one.

    Loops among `rows`, where given, are fused with each other only.
    """
    for part in ("m_loops", "k_loops"):
        position = 0
        while position + 1 < len(getattr(work, part)):
            axes = getattr(work, part)
            a, b = axes[position], axes[position + 1]
            if part == "m_loops" and rows is not None and (a in rows) != (b in rows):
                position += 1
                continue
            indices = [work.a.index, work.b.index, work.index, *addresses(work.epilogue)]
            if not walked_as_one(a, b, indices) or outside_reads(work.epilogue, (a, b)):
                position += 1
                continue
            loops = (*work.outer, *work.m_loops, work.n_loop, *work.k_loops)
            name = unique(f"{a.name}_{b.name}", {axis.name for axis in loops})
            fused = Axis(name, int(a.extent) * int(b.extent))
            parts = (*work.stands_for(a), *work.stands_for(b))
            work = replace(work, fused={**work.fused, fused.name: parts})
            if part == "m_loops" and rows is not None and a in rows:
                rows = {*rows, fused}
            work = _replaced(
                work, part, (*axes[:position], fused, *axes[position + 2 :]), {a: Const(0, INDEX), b: fused}
            )
    return work


def _replaced(work: Contraction, part: str, axes: Sequence[Axis], loops: Mapping[Axis, Expr]) -> Contraction:
    changed: dict[str, Any] = {part: tuple(axes)}
    return replace(
        work,
        **changed,
        a=Operand(work.a.tensor, substitute(work.a.index, loops)),
        b=Operand(work.b.tensor, substitute(work.b.index, loops)),
        epilogue=substitute(work.epilogue, loops),
        index=substitute(work.index, loops),
    )
