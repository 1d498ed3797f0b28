"""The passes over the graph, in order, and how to run them.

`simplifying` ends in a graph that can be evaluated, printed and stored with a module; `fitting` is for one machine;
`storing` moves work into the storage of tensors, which a graph alone cannot say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.errors import InvalidArgument
from tilewright.expr.core import Compute
from tilewright.expr.graph import Graph
from tilewright.graph.passes.carry_splits import CarrySplits
from tilewright.graph.passes.combine_products import CombineProducts, Cycles
from tilewright.graph.passes.empty_loops import RemoveEmptyLoops
from tilewright.graph.passes.fold_constant_parts import FoldConstantParts
from tilewright.graph.passes.fold_constants import FoldConstants
from tilewright.graph.passes.fold_padding import FoldPadding
from tilewright.graph.passes.fold_scale import FoldScale
from tilewright.graph.passes.hoist_from_loops import HoistFromLoops
from tilewright.graph.passes.in_loops import in_loops
from tilewright.graph.passes.inline_maps import InlineMaps
from tilewright.graph.passes.merge_equal import MergeEqual
from tilewright.graph.passes.move_scale import MoveScale
from tilewright.graph.passes.offset_factors import OffsetFactors, Price
from tilewright.graph.passes.ordered_as_reductions import OrderedAsReductions
from tilewright.graph.passes.remove_dead import RemoveDead
from tilewright.graph.passes.rewritten import GraphPass, Rewritten
from tilewright.graph.passes.separate_outputs import SeparateOutputs
from tilewright.graph.passes.split_channels import SplitChannels
from tilewright.graph.passes.split_phases import SplitPhases
from tilewright.graph.passes.split_taps import SplitTaps
from tilewright.graph.passes.widen_factors import WidenFactors


def simplifying(is_product: Callable[[Compute], bool]) -> tuple[GraphPass, ...]:
    """What every target wants done. `is_product` tells which computes level 3 may map to an intrinsic."""
    return (
        RemoveDead(),
        RemoveEmptyLoops(),
        HoistFromLoops(),
        SplitPhases(),
        SplitTaps(),
        FoldConstants(),
        FoldConstantParts(),
        MergeEqual(),
        SeparateOutputs(),
        InlineMaps(is_product),
        SplitChannels(),
        CarrySplits(is_product),
        FoldScale(is_product),
        MoveScale(is_product),
        RemoveDead(),  # constants that splitting and folding have replaced
    )


def fitting(price: Price, cycles: Cycles, ordered: bool = True) -> tuple[GraphPass, ...]:
    """What depends on the machine.

    `price` tells how level 3 would run a product, `cycles` how long a kernel of it takes where products may be
    combined, `ordered` whether there are kernels for ordered accumulations.
    """
    return (CombineProducts(cycles), OffsetFactors(price), WidenFactors(price), OrderedAsReductions(not ordered))


def storing() -> tuple[GraphPass, ...]:
    """What needs a say in how tensors are stored."""
    return (FoldPadding(),)


REQUIRED = frozenset({RemoveEmptyLoops.name, SeparateOutputs.name, OrderedAsReductions.name})
"""Passes that cannot be switched off."""

NAMES = tuple(
    dict.fromkeys(
        each.name
        for each in (*simplifying(lambda _: False), *fitting(lambda _: None, lambda _: None), *storing())
        if each.name not in REQUIRED
    )
)
"""Passes that can be switched off by name; the others need none of them."""


def run_passes(graph: Graph | Rewritten, passes: Sequence[GraphPass], disable: Sequence[str] = ()) -> Rewritten:
    """Run passes in order, without those named in `disable` (names of other tables are not looked at)."""
    state = graph if isinstance(graph, Rewritten) else Rewritten(graph)
    for each in passes:
        if each.name not in disable or each.name in REQUIRED:
            state = _applied(each, state)
    return state


def _applied(each: GraphPass, state: Rewritten) -> Rewritten:
    """Apply a pass; one that knows nothing of loops to the nodes around and in each of them."""
    if isinstance(each, RemoveDead | RemoveEmptyLoops | HoistFromLoops) or not state.graph.loops:
        return each.apply(state)
    return in_loops(each, state)


def run_pass(
    graph: Graph,
    name: str,
    is_product: Callable[[Compute], bool],
    price: Price = lambda _: None,
    cycles: Cycles = lambda _: None,
) -> Rewritten:
    """Run one pass alone."""
    for each in (*simplifying(is_product), *fitting(price, cycles, False), *storing()):
        if each.name == name:
            return _applied(each, Rewritten(graph))
    raise InvalidArgument(f"no graph pass {name!r}", help=f"one of {', '.join((*NAMES, *sorted(REQUIRED)))}")
