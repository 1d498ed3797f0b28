"""The values of a plan: where tensors are stored, which kernels there are, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.compiler.mapped import with_mapped
from tilewright.dataclass import dataclass
from tilewright.decision import Decision
from tilewright.expr import dtypes
from tilewright.expr.core import Compute, Tensor
from tilewright.expr.graph import Graph
from tilewright.expr.live import live
from tilewright.graph.passes.rewritten import Rewritten
from tilewright.instruction.products import ChooseMapping
from tilewright.intrinsics.registry import Registry
from tilewright.layouts import Packed
from tilewright.lower.steps import Moving
from tilewright.operator.product_point import ProductPoint
from tilewright.operator.product_space import ProductSpace
from tilewright.tiles.kernel import Kernel as ScheduledKernel
from tilewright.tiles.tree import to_json

if TYPE_CHECKING:
    from tilewright.instruction.block_tiles import Candidate, Ranking


@dataclass(frozen=True)
class Stored:
    """A tensor in memory: its layout and where it lives: an input, an output, a constant, or the arena.

    A view lives in the memory of another tensor, its `owner`, from element `begin`. `slack` elements behind the last
    one may be read too. A "slice" is where its loop says (`PlannedLoop.moving`). A `zero_border` is zeros from the
    beginning, since only tensors with the same border share its memory, and no kernel writes it.
    """

    tensor: Tensor
    layout: Packed
    space: str
    owner: str = ""
    slack: int = 0
    begin: int = 0
    zero_border: bool = False

    @property
    def memory(self) -> str:
        """The tensor whose memory this is."""
        return self.owner or self.tensor.name

    @property
    def bytes(self) -> int:
        return (self.layout.size + self.slack) * dtypes.size_bytes(self.tensor.dtype)

    @property
    def flat(self) -> Tensor:
        """The tensor as its storage, in one dimension."""
        return Tensor(self.tensor.name, (self.layout.size + self.slack,), self.tensor.dtype)


@dataclass(frozen=True)
class Kernel:
    """One launch: what to lower, and the stored tensors it reads and writes, in the order of its arguments.

    `scheduled` is what `lower` takes. Of the tensors that it writes, `updates` hold what another kernel wrote, which it
    changes in place. Other kernels that write one tensor write different elements. `cycles` are predicted, of one trip,
    all threads together and all data near; 0 where there is no model. `instruction` is the record of a product.
    """

    name: str
    scheduled: ScheduledKernel
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    flops: int
    updates: tuple[str, ...] = ()
    cycles: float = 0.0
    instruction: str = ""

    @property
    def arguments(self) -> tuple[str, ...]:
        return (*self.reads, *self.writes)


@dataclass(frozen=True)
class PlannedLoop:
    """Kernels `begin` to `end` of a plan run `trips` times.

    `moving` says where the slices of each trip are. Tensors in `local` hold nothing from one trip to the next.
    """

    name: str
    trips: int
    begin: int
    end: int
    moving: Mapping[str, Moving]
    local: frozenset[str]


def undecided(*_: Any) -> None:
    """Leave a choice to the rules."""


@dataclass(frozen=True)
class ChooseProduct:
    """Chooses how products run: which mapping a node has, and then which point of its space; None leaves it to rules.

    A space is that of the contraction before its vector operand is packed; the string is the name of its node. `tile`
    chooses among the tiles that a block of a GPU may have, cheapest first. `chains` are the fusions (subjects of their
    decisions) that happen, whatever is predicted; where anything is chosen, no other products are fused.
    """

    mapping: ChooseMapping = undecided
    point: Callable[[ProductSpace, str], ProductPoint | None] = undecided
    tile: Callable[[Ranking, str], Candidate | None] = undecided
    chains: frozenset[str] = frozenset()


@dataclass
class Plan:
    """All decisions about one graph for one machine; `products` has mapping and schedule of each product as data.

    `graph` is what is stored with the module, `computed` what the passes for this machine made of it, and `mapped` says
    which nodes there run as several: relayouts of operands, the node that reads them, the relayout of its result.
    `intrinsics` has the records that its kernels may name; None: the catalogue.
    """

    graph: Graph
    computed: Rewritten
    mapped: dict[str, tuple[Compute, ...]] = field(default_factory=dict)
    stored: dict[str, Stored] = field(default_factory=dict)
    kernels: list[Kernel] = field(default_factory=list)
    loops: list[PlannedLoop] = field(default_factory=list)  # inner ones before those around them
    decisions: list[Decision] = field(default_factory=list)
    products: dict[str, dict[str, Any]] = field(default_factory=dict)
    constants: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)  # packed constant -> the constant it holds
    intrinsics: Registry | None = None

    def trees(self) -> dict[str, Any]:
        """The tile tree of every kernel by its name, as data."""
        return {kernel.name: to_json(kernel.scheduled.tree) for kernel in self.kernels}

    def mapped_graph(self) -> Graph:
        """The graph that kernels compute, relayouts as nodes, those of constants (folded when compiled) too.

        Borders, which are written where a tensor is stored, are nodes as well.
        """
        return live(replace(self.computed, graph=with_mapped(self.computed.graph, self.mapped)).explicit())
