"""What is known while a graph is planned: where tensors are stored, which kernels there are, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.compiler.mapped import with_mapped
from tilewright.compiler.target import target_of
from tilewright.compiler.trees import GivenTrees
from tilewright.compiler.views import View, view_of
from tilewright.dataclass import dataclass
from tilewright.decision import ASKED, Decision, Refusal
from tilewright.expr import dtypes
from tilewright.expr.core import Compute, Expr, Read, Tensor, static_shape, walk
from tilewright.expr.graph import Graph
from tilewright.expr.live import live
from tilewright.expr.names import claim
from tilewright.graph.groups import Group
from tilewright.graph.passes.rewritten import Rewritten
from tilewright.instruction.products import (
    ChooseMapping,
    Found,
    MappedProduct,
    Mappings,
    Target,
    find_lanes,
    find_product,
    iterations,
    loops_of,
    mappings_of,
)
from tilewright.instruction.relayout import none_twice
from tilewright.intrinsics.registry import Registry
from tilewright.layouts import Packed, permuted, row_major
from tilewright.lower.steps import Moving
from tilewright.machine.description import Cpu, Gpu
from tilewright.operator.flatten import flatten
from tilewright.operator.product_point import ProductPoint
from tilewright.operator.product_space import ProductSpace
from tilewright.options import Options
from tilewright.tiles.kernel import Kernel as ScheduledKernel
from tilewright.tiles.machines import program_resources
from tilewright.tiles.notation import print_tree
from tilewright.tiles.tree import to_json

if TYPE_CHECKING:
    from tilewright.instruction.block_tiles import Candidate, Ranking
    from tilewright.instruction.gpu_products import Rankings


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


def no_model(_: ScheduledKernel) -> float:
    """The cycles of kernels for which there is no model."""
    return 0.0


def cycles_of_rule(own: ScheduledKernel, decision: Decision) -> Callable[[ScheduledKernel], float]:
    """The predicted cycles of a decision for the kernel that it chose, and no model of a kernel with another tree."""
    cycles = decision.cost.cycles if decision.cost is not None else None
    return lambda scheduled: (cycles or 0.0) if scheduled is own else 0.0


def _undecided(*_: Any) -> None:
    """Leave a choice to the rules."""


@dataclass(frozen=True)
class ChooseProduct:
    """Chooses how products run: which mapping a node has, and then which point of its space; None leaves it to rules.

    A space is that of the contraction before its vector operand is packed; the string is the name of its node. `tile`
    chooses among the tiles that a block of a GPU may have, cheapest first. `chains` are the fusions (subjects of their
    decisions) that happen, whatever is predicted; where anything is chosen, no other products are fused.
    """

    mapping: ChooseMapping = _undecided
    point: Callable[[ProductSpace, str], ProductPoint | None] = _undecided
    tile: Callable[[Ranking, str], Candidate | None] = _undecided
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


class Planning:
    """A plan in the making, and what all its groups share. `plan` grows; nothing else changes but `constants`."""

    def __init__(
        self,
        graph: Graph,
        rewritten: Rewritten,
        machine: Cpu | Gpu,
        threads: int,
        options: Options,
        choose: ChooseProduct | None = None,
    ) -> None:
        """`graph` is what is stored with the module, `rewritten` the one that kernels compute."""
        self.plan = Plan(graph, rewritten, decisions=list(rewritten.decisions), intrinsics=options.intrinsics)
        self.options = options
        self.choose = choose or ChooseProduct()
        self.machine = machine
        self.rules = target_of(machine).rules
        self.intrinsics = self.rules.records(machine) if options.intrinsics is None else options.intrinsics
        self._products: dict[Compute, Found] = {}
        self._mappings: dict[Compute, Mappings] = {}
        self.rankings: Rankings = {}  # of the tiles of a GPU
        self.threads = threads
        self.trees = GivenTrees(options, program_resources(machine, options.intrinsics))
        self.borders = dict(rewritten.borders)
        self.borders_left_out: set[str] = set()  # tensors whose border of zeros is not in memory
        self.kernel_names: set[str] = set()
        self._names = {name for each in (graph, rewritten.graph) for name in (*each.tensors(), *each.all_constants())}
        self._take(rewritten.graph)
        written = (Stored(tensor, _rows(tensor), "output") for tensor in rewritten.graph.outputs)
        self.results.update((stored.tensor.name, stored) for stored in written)

    def inside(self, body: Graph, results: Mapping[str, Stored]) -> Planning:
        """The planning of the body of a loop, which adds to the same plan; its results are stored like this."""
        inner = copy(self)
        inner._take(body)
        inner.results.update(results)
        return inner

    def _take(self, graph: Graph) -> None:
        """Make this the planning of a graph, its loops aside. What these read is stored row by row, as outputs are."""
        self.closed, self.graph = graph, graph.opened()
        self.constants = dict(self.graph.constants)
        self.outputs = {tensor.name for tensor in self.graph.outputs}
        operands = (tensor for tensor in self.graph.outputs if tensor not in graph.outputs)
        self.results = {tensor.name: Stored(tensor, _rows(tensor), "arena") for tensor in operands}
        self.users = self.graph.consumers()
        self.views: dict[str, View] = {}  # by their sources
        self._viewed: dict[str, str] = {}  # the sources of views, by their results
        self.fused: dict[str, Group] = {}  # maps that the relayout of their only reader's operand may compute
        self.unfused: dict[str, str] = {}  # why others are computed before they are packed
        self.buffers: set[str] = set()  # results that stay in the kernel that is planned now

    # Storage --------------------------------------------------------------------------------------------------

    def taken(self) -> set[str]:
        """The names of all tensors of the graph, of its loops too, and of what is stored beside these."""
        return {*self._names, *self.plan.stored}

    def place(self, tensor: Tensor, layout: Packed, space: str, zero_border: bool = False) -> None:
        assert tensor.name not in self.plan.stored, f"{tensor.name} is stored already"
        self.plan.stored[tensor.name] = Stored(tensor, layout, space, zero_border=zero_border)

    def place_result(self, tensor: Tensor, order: Sequence[int]) -> None:
        """Store what a kernel writes: an output as it is, other results in `order` with their border.

        Where a view wants dimensions together, they are, if the innermost one stays: a product writes vectors along it.
        """
        shape = static_shape(tensor.shape)
        if tensor.name in self.outputs:
            self.plan.stored[tensor.name] = self.results[tensor.name]
            return
        if tensor.name in self.views:
            together = self.views[tensor.name].grouped(order)
            order = together if together[-1] == order[-1] else order
        border = self.borders.get(tensor.name)
        if border is not None and self.rules.leave_border(self, tensor, order, self.machine):
            self.borders_left_out.add(tensor.name)
            border = None
        layout = permuted(shape, order, border.widths if border else None)
        zero_border = border is not None and border.of_zeros and self._may_keep_border(tensor, layout)
        self.place(tensor, layout, "arena", zero_border=zero_border)

    def _may_keep_border(self, tensor: Tensor, layout: Packed) -> bool:
        return layout.size * dtypes.size_bytes(tensor.dtype) <= self.rules.ZERO_BORDER_BYTES

    def find_views(self, groups: Sequence[Group]) -> None:
        """Note which groups may turn out to be views; their sources get the borders that readers of views need."""
        inputs = {tensor.name for tensor in self.graph.inputs}
        for group in reversed(groups):
            view = view_of(group.main) if len(group.nodes) == 1 else None
            if view is None or view.result.name in self.outputs or view.source.name in self.constants:
                continue
            source, border = view.source.name, self.borders.get(view.result.name)
            if source in self.outputs or (source not in inputs and len(self.users[source]) != 1):
                continue
            if border is not None:
                moved = view.border(border)
                if moved is None or source in inputs:
                    continue
                self.borders[source] = moved
            self.views[source] = view
            self._viewed[view.result.name] = source

    def place_view(self, result: Tensor) -> bool:
        """Store a result where its source is, if it may be a view and the source's layout holds it."""
        view = self._view_written_as(result)
        if view is None:
            return False
        source = self.stored(view.source)
        layout = view.layout(source.layout)
        subject = f"storage of {result.name}"
        if layout is None:
            why = Refusal(f"that of {view.source.name}", "it stores each dimension as one run", str(source.layout))
            self.plan.decisions.append(Decision(subject, "a copy", "no view holds it", refused=(why,)))
            return False
        self.plan.stored[result.name] = Stored(result, layout, source.space, source.memory, begin=source.begin)
        self.plan.decisions.append(
            Decision(subject, f"that of {view.source.name}", f"{layout} holds the same elements in the same places")
        )
        return True

    def _view_written_as(self, result: Tensor) -> View | None:
        """The view whose result this is; the last one, where a tensor is the source of several."""
        view = self.views.get(self._viewed.get(result.name, ""))
        return view if view is not None and view.result == result else None

    def stored(self, tensor: Tensor) -> Stored:
        """How a tensor that is read is stored; constants are placed when first met."""
        if tensor.name not in self.plan.stored:
            assert tensor.name in self.constants, f"{tensor.name} is read before it is written"
            self.place(tensor, row_major(static_shape(tensor.shape)), "constant")
        return self.plan.stored[tensor.name]

    def layout(self, tensor: Tensor) -> Packed:
        return self.stored(tensor).layout

    def expected_layout(self, tensor: Tensor) -> Packed:
        """The layout of a tensor that is read; that of a constant without a place is expected, and stays open."""
        if tensor.name in self.plan.stored or tensor.name not in self.constants:
            return self.layout(tensor)
        return row_major(static_shape(tensor.shape))

    def flat(self, body: Expr, own: set[str]) -> Expr:
        """Reads of the values `own` of a kernel lose their indices; reads of stored tensors become flat."""
        return flatten(body, self.layout, own)

    def keep_constants(self) -> None:
        """Leave stored what kernels read, and what only the stored graph reads, so that it can be compiled again.

        Kernels do not read a constant where a condition that never holds guards it.
        """
        plan = self.plan
        kept = {name for kernel in plan.kernels for name in kernel.reads}
        kept |= {name for loop in plan.loops for each in loop.moving.values() for name in (each.whole, each.first)}
        held = {plan.sources.get(name, name) for name in kept}
        held |= {name for name, part in plan.computed.parts.items() if part.whole in held}
        for name, array in plan.graph.all_constants().items():
            if name not in held:
                self.constants[name] = array
                tensor = Tensor(name, array.shape, dtypes.from_numpy(array.dtype))
                plan.stored.pop(name, None)  # met, but no kernel reads it
                self.place(tensor, row_major(array.shape), "constant")
                kept.add(name)
        plan.stored = {n: stored for n, stored in plan.stored.items() if stored.space != "constant" or n in kept}
        plan.constants = {name: array for name, array in self.constants.items() if name in plan.stored}

    # Products -------------------------------------------------------------------------------------------------

    @property
    def target(self) -> Target:
        """What the machine says about products."""
        return self.rules.mappings(self, self.machine)

    def product_of(self, node: Compute) -> MappedProduct | None:
        """The mapping with which a compute runs as a product on this machine, or None."""
        return self.find_product(node)[0]

    def find_product(self, node: Compute) -> Found:
        """The mapping with which a compute runs as a product on this machine, if there is one, and why."""
        if node.accum is None:  # bodies of maps may be long: they are not looked up
            return None, None
        if node not in self._products:
            asked = None if self.choose.mapping is _undecided else self.choose.mapping
            self._products[node] = find_product(node, self.target, asked, self._mappings_of(node))
        return self._products[node]

    def all_products(self, node: Compute) -> list[MappedProduct]:
        """Every mapping with which a compute may run as a product, preferred first; not all of them are proven."""
        return [each for each in self._mappings_of(node)[0] if self.target.can_pack(each)]

    def _mappings_of(self, node: Compute) -> Mappings:
        if node not in self._mappings:
            self._mappings[node] = mappings_of(node, self.target)
        return self._mappings[node]

    def settle(self, node: Compute, product: MappedProduct, decision: Decision) -> None:
        """Let a compute run with this mapping."""
        self._products[node] = product, decision

    def lane_by_lane(self, node: Compute) -> tuple[list[MappedProduct], list[Refusal]]:
        """The mappings that multiply the factors of a compute lane by lane; what was refused."""
        return find_lanes(node, self.target)

    def apart(self, group: Group) -> str:
        """Why a group is computed before what reads it is packed; empty for a map that packing can compute.

        That is one map that one product alone reads, as an operand that may be packed, each element once.
        """
        result, users = group.main.output, self.users.get(group.name, [])
        if len(group.nodes) != 1 or group.main.accum is not None:
            return "it sums"
        if group.name in self.outputs:
            return "it is an output"
        if len(users) != 1:
            return f"{len(users)} nodes read it"
        if group.name in self.views:
            return f"{self.views[group.name].result.name} is a view of it"
        view = self._view_written_as(result)
        if view is not None and view.layout(self.layout(view.source)) is not None:
            return f"it is a view of {view.source.name}"
        if group.name in self.borders:
            return "it has a border"
        product = self.product_of(users[0]) if self.target.packs else None
        reads = [] if product is None else [read for read in users[0].reads() if read.tensor == result]
        if product is None or reads not in ([product.a], [product.b]):
            return "no product alone reads it, and once"
        if reads == [product.b]:
            taken = iterations(tuple(loops_of(product.b)))
            return "" if none_twice(taken, result) else "packing takes elements of it several times"
        return "" if product.group > 1 else f"{product.instruction} takes single elements of it"

    # Decisions ------------------------------------------------------------------------------------------------

    @contextmanager
    def about(self, kernel: str) -> Iterator[None]:
        """Decisions made meanwhile are about this kernel, but those that say another one."""
        decisions = self.plan.decisions
        begin = len(decisions)
        yield
        decisions[begin:] = [each if each.kernel else replace(each, kernel=kernel) for each in decisions[begin:]]

    # Kernels --------------------------------------------------------------------------------------------------

    def name_kernel(self, hint: str) -> str:
        """A name for a kernel that no other has."""
        return claim(hint, self.kernel_names)

    def add_scheduled(
        self,
        name: str,
        scheduled: ScheduledKernel,
        decided: Decision,
        writes: Sequence[str],
        flops: int,
        updates: Sequence[str] = (),
        cycles: Callable[[ScheduledKernel], float] = no_model,
        instruction: str = "",
    ) -> None:
        """Launch a scheduled kernel next, under a name that `name_kernel` gave.

        `decided` is the rule's choice that its tree writes down. `cycles` predicts those of the kernel, with the tree
        that was given for it where there is one.
        """
        scheduled = self.trees.instead(name, scheduled)
        bodies = [statement.body for statement in scheduled.statements]
        values = {statement.name for statement in scheduled.statements if statement.address is None}
        read_in = (each for body in bodies for each in walk(body) if isinstance(each, Read) and each.indices)
        reads = dict.fromkeys(each.tensor.name for each in read_in if each.tensor.name not in values)
        for read in reads:
            assert read in self.plan.stored, f"{name} reads {read}, which is not stored"
        others = tuple(read for read in reads if read not in writes)
        kernel = Kernel(name, scheduled, others, tuple(writes), flops, tuple(updates), cycles(scheduled), instruction)
        self.plan.kernels.append(kernel)
        self.plan.decisions.append(self._tree_decision(name, scheduled, decided))

    def _tree_decision(self, name: str, scheduled: ScheduledKernel, decided: Decision) -> Decision:
        """The tile tree of a kernel as a decision: that of its rule, with its costs, or what was given."""
        subject, tree = f"tile tree of {name}", print_tree(scheduled.tree)
        if self.trees.tree(name) is not None:
            return Decision(subject, tree, ASKED, f"the tree for {decided.chosen}", decided.reason)
        return replace(
            decided,
            subject=subject,
            chosen=tree,
            reason=f"{decided.subject} is {decided.chosen}, {decided.reason}",
            refused=(),
        )


def _rows(tensor: Tensor) -> Packed:
    return row_major(static_shape(tensor.shape))


def points(node: Compute) -> int:
    """Evaluations of the body of a node."""
    return iterations(node.body_loops)
