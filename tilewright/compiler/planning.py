"""What is known while a graph is planned, and what the rules of a machine do with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from tilewright.compiler.plan import ChooseProduct, Kernel, Plan, Stored, undecided
from tilewright.compiler.trees import GivenTrees
from tilewright.compiler.views import View, view_of
from tilewright.decision import ASKED, Decision, Refusal
from tilewright.expr import dtypes
from tilewright.expr.core import Compute, Expr, Read, Tensor, static_shape, walk
from tilewright.expr.graph import Graph, Loop
from tilewright.expr.names import claim
from tilewright.graph.groups import Group
from tilewright.graph.passes.rewritten import Rewritten
from tilewright.instruction.products import (
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
from tilewright.machine.description import Cpu, Gpu
from tilewright.operator.flatten import flatten
from tilewright.options import Options
from tilewright.tiles.kernel import Kernel as ScheduledKernel
from tilewright.tiles.machines import program_resources
from tilewright.tiles.notation import print_tree

if TYPE_CHECKING:
    from tilewright.instruction.gpu_products import Rankings
    from tilewright.operator.statements import Statements


def no_model(_: ScheduledKernel) -> float:
    """The cycles of kernels for which there is no model."""
    return 0.0


def cycles_of_rule(own: ScheduledKernel, decision: Decision) -> Callable[[ScheduledKernel], float]:
    """The predicted cycles of a decision for the kernel that it chose, and no model of a kernel with another tree."""
    cycles = decision.cost.cycles if decision.cost is not None else None
    return lambda scheduled: (cycles or 0.0) if scheduled is own else 0.0


class Rules(Protocol):
    """A module of rules. `machine` is of the kind that they are for."""

    @property
    def ORDERED(self) -> bool:  # noqa: N802
        """Whether there are kernels for ordered accumulations; else they become reductions."""

    @property
    def TRANSPOSED_COPIES(self) -> bool:  # noqa: N802
        """Whether a map that writes along another loop than it reads takes two kernels, the second a copy."""

    @property
    def ZERO_BORDER_BYTES(self) -> int:  # noqa: N802
        """Bytes of the largest tensor whose border of zeros is never written.

        Such a tensor shares memory with fewer others. Writing the border of a larger one takes a small part of the time
        in which the tensor is written.
        """

    def leave_border(self, planning: Planning, tensor: Tensor, order: Sequence[int], machine: Any) -> bool:
        """Whether the border of a tensor stored in `order` need not be in memory; adds a decision where it may not."""

    def combined_cycles(self, planning: Planning, node: Compute, machine: Any) -> float | None:
        """Predicted cycles of a kernel of a product, for whether one product takes the place of several that share a
        factor; None where none does.
        """

    def records(self, machine: Any) -> Registry:
        """The records of intrinsics that a plan may use where the user gives none."""

    def mappings(self, planning: Planning, machine: Any) -> Target:
        """How products are mapped to the intrinsics of a machine."""

    def add_rows(self, planning: Planning, group: Group, statements: Statements, flops: int, machine: Any) -> None:
        """Add the kernels of the statements of a row group or pointwise group, whose results are placed."""

    def schedule_rows(
        self, statements: Statements, machine: Any, threads: int, subject: str, lanes: int = 0
    ) -> tuple[ScheduledKernel, Decision]:
        """The kernel of statements; vectors have `lanes` lanes where an instruction was chosen."""

    def row_cycles(
        self, machine: Any, scheduled: ScheduledKernel, decision: Decision
    ) -> Callable[[ScheduledKernel], float]:
        """What predicts the cycles of a kernel of rows, of which `scheduled` is the rule's, chosen by `decision`."""

    def join_products(self, planning: Planning, steps: Sequence[Group | Loop], machine: Any) -> Sequence[Group | Loop]:
        """The steps of a plan with products that are to run in one kernel as one group."""

    def plan_product(self, planning: Planning, group: Group, machine: Any) -> None:
        """Place the result of a product with its epilogue, and add its kernels."""

    def plan_ordered(self, planning: Planning, group: Group, machine: Any) -> None:
        """Place the result of an ordered accumulation, and add its kernels."""


class Planning:
    """A plan in the making, and what all its groups share. `plan` grows; nothing else changes but `constants`."""

    def __init__(
        self,
        graph: Graph,
        rewritten: Rewritten,
        machine: Cpu | Gpu,
        rules: Rules,
        threads: int,
        options: Options,
        choose: ChooseProduct | None = None,
    ) -> None:
        """`graph` is what is stored with the module, `rewritten` the one that kernels compute.

        `rules` are those of the machine.
        """
        self.plan = Plan(graph, rewritten, decisions=list(rewritten.decisions), intrinsics=options.intrinsics)
        self.options = options
        self.choose = choose or ChooseProduct()
        self.machine = machine
        self.rules = rules
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
        self.row_major_results = _row_major_results(self.graph, self.users)
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
            asked = None if self.choose.mapping is undecided else self.choose.mapping
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


def _row_major_results(graph: Graph, users: Mapping[str, Sequence[Compute]]) -> frozenset[str]:
    """The outputs, and what maps of one kernel make outputs of: kernels write these as their dimensions say."""
    nodes = graph.producers()
    found = {tensor.name for tensor in graph.outputs}
    waiting = [nodes[name] for name in found if name in nodes]
    while waiting:
        node = waiting.pop()
        if node.accum is not None:
            continue
        for read in node.reads():
            name = read.tensor.name
            if name in nodes and name not in found and len(users[name]) == 1 and _is_element_wise(read, node):
                found.add(name)
                waiting.append(nodes[name])
    return frozenset(found)


def _is_element_wise(read: Read, node: Compute) -> bool:
    """Whether a node reads each element of a tensor where it writes its own; dimensions of extent 1 may be any."""
    if len(read.indices) != len(node.axes):
        return False
    return all(index == axis or axis.extent == 1 for index, axis in zip(read.indices, node.axes, strict=True))


def points(node: Compute) -> int:
    """Evaluations of the body of a node."""
    return iterations(node.body_loops)
