"""Sums of products that are no product of panels: a multiply-add along one loop of the result.

Depthwise convolutions and the like have no loop for the rows of an outer product. Where their channel is innermost it
is the lane of ``Dst[i] += Src1[i] * Src2[i]``; where their pixels are, these are the lanes of
``Dst[i] += Src1[] * Src2[i]``. The nest that computes them runs its vector along that loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tilewright.dataclass import dataclass
from tilewright.decision import Decision, Refusal
from tilewright.expr.core import Axis, Compute
from tilewright.instruction.in_place import product_factors, with_borders
from tilewright.instruction.mapping import Mapping
from tilewright.instruction.matching import Match, match
from tilewright.instruction.validation import judge
from tilewright.intrinsics.intrinsic import Intrinsic
from tilewright.intrinsics.registry import Registry, targets_of
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

    @property
    def whole(self) -> bool:
        """Whether both factors are vectors."""
        return all(operand.loops for operand in self.record.sources)

    def along(self, loop: Axis) -> Mapping:
        return Mapping(self.match, ((loop,),))


def find_element_wise(
    compute: Compute, registry: Registry, machine: Cpu
) -> tuple[tuple[ElementWise, ...], list[Refusal]]:
    """Records of the machine that multiply the factors of `compute` lane by lane, and what was refused.

    The first record that takes a vector of both factors, then the first that takes one value of a factor.
    """
    factors, refused = product_factors(compute), list[Refusal]()
    if factors is None or any(axis.extent == 0 for axis in compute.loops):
        return (), refused
    vectors: list[ElementWise] = []
    broadcasts: list[ElementWise] = []
    inputs = tuple(read.dtype for read in factors)
    targets = targets_of(machine.architecture)
    for record in registry:
        if record.realised_by or not record.emitter or record.target not in targets or len(record.loops) != 1:
            continue
        if record.destination.dtype != compute.output.dtype or len(record.sources) != 2:
            continue
        among = vectors if all(operand.loops for operand in record.sources) else broadcasts
        if among or sorted(operand.dtype for operand in record.sources) != sorted(inputs):
            continue
        missing = [feature for feature in record.features if feature not in machine.features]
        if missing:
            refused.append(Refusal(record.name, "the machine has its features", f"lacks {', '.join(missing)}"))
            continue
        for found in _matches(compute, record):
            loops = tuple(axis for axis in found.candidates(record.loops[0]) if axis.extent != 1)
            if loops and not found.canonical.before:
                among.append(ElementWise(record, found, loops))
                break
        else:
            factors_indexed = "both factors" if among is vectors else "one factor"
            refused.append(Refusal(record.name, f"a loop indexes {factors_indexed} and the result"))
    return (*vectors, *broadcasts), refused


def decide(
    compute: Compute, found: Sequence[ElementWise], order: Sequence[int], refused: Sequence[Refusal]
) -> tuple[ElementWise, Decision] | None:
    """The record for a result that is stored in `order` (dimensions, innermost last), and why; None if no mapping is
    proven whose vector runs along the innermost dimension.
    """
    axes = [compute.axes[dim] for dim in order if compute.axes[dim].extent != 1]
    for each in found:
        if not axes or axes[-1] not in each.loops:
            continue
        mapping = each.along(axes[-1])
        if judge(mapping, "signature", differential=True).refusal is not None:
            continue
        indexed = "both factors" if each.whole else "one factor"
        subject, chosen = f"instruction of {compute.name}", f"{mapping} on {each.record.name}"
        reason = f"the loop indexes {indexed} and is innermost in the result"
        return each, Decision(subject, chosen, reason, refused=tuple(refused))
    return None


@lru_cache(maxsize=1024)
def _matches(compute: Compute, record: Intrinsic) -> tuple[Match, ...]:
    return match(with_borders(compute), record, commute=True)
