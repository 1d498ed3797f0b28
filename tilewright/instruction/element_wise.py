"""Sums of products in which some loop indexes both factors and the result: a multiply-add of two vectors.

Depthwise convolutions and the like have no loop for the vector of an outer product, but their channel is the lane of
``Dst[i] += Src1[i] * Src2[i]``. The nest that computes them runs its vector along that loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tilewright.decision import Decision, Refusal
from tilewright.expr.core import Axis, Compute
from tilewright.instruction.in_place import product_factors, with_borders
from tilewright.instruction.intrinsic import Intrinsic
from tilewright.instruction.mapping import Mapping
from tilewright.instruction.matching import Match, match
from tilewright.instruction.registry import Registry, targets_of
from tilewright.instruction.validation import judge
from tilewright.machine.description import Cpu


@dataclass(frozen=True)
class ElementWise:
    """A record and the loops that its vector may run along."""

    record: Intrinsic
    match: Match
    loops: tuple[Axis, ...]

    @property
    def lanes(self) -> int:
        return self.record.loops[0].extent

    def along(self, loop: Axis) -> Mapping:
        return Mapping(self.match, ((loop,),))


def find_element_wise(compute: Compute, registry: Registry, machine: Cpu) -> tuple[ElementWise | None, list[Refusal]]:
    """The first record of the machine that multiplies the factors of `compute` lane by lane; what was refused."""
    factors, refused = product_factors(compute), list[Refusal]()
    if factors is None or any(axis.extent == 0 for axis in compute.loops):
        return None, refused
    inputs = tuple(read.dtype for read in factors)
    targets = targets_of(machine.architecture)
    for record in registry:
        if record.realised_by or not record.emitter or record.target not in targets or len(record.loops) != 1:
            continue
        if record.destination.dtype != compute.output.dtype or len(record.sources) != 2:
            continue
        if tuple(operand.dtype for operand in record.sources) != inputs or not all(o.loops for o in record.sources):
            continue
        missing = [feature for feature in record.features if feature not in machine.features]
        if missing:
            refused.append(Refusal(record.name, "the machine has its features", f"lacks {', '.join(missing)}"))
            continue
        for found in _matches(compute, record):
            loops = tuple(axis for axis in found.candidates(record.loops[0]) if axis.extent != 1)
            if loops and not found.canonical.before:
                return ElementWise(record, found, loops), refused
        refused.append(Refusal(record.name, "a loop indexes both factors and the result"))
    return None, refused


def decide(compute: Compute, found: ElementWise, order: Sequence[int], refused: Sequence[Refusal]) -> Decision | None:
    """The decision for a result that is stored in `order` (dimensions, innermost last); None if the mapping is not
    proven, or its vector would not run along the innermost dimension.
    """
    axes = [compute.axes[dim] for dim in order if compute.axes[dim].extent != 1]
    if not axes or axes[-1] not in found.loops:
        return None
    mapping = found.along(axes[-1])
    if judge(mapping, "signature", differential=True).refusal is not None:
        return None
    return Decision(
        f"instruction of {compute.name}",
        f"{mapping} on {found.record.name}",
        "the loop indexes both factors and is innermost in the result",
        refused=tuple(refused),
    )


@lru_cache(maxsize=1024)
def _matches(compute: Compute, record: Intrinsic) -> tuple[Match, ...]:
    return match(with_borders(compute), record)
