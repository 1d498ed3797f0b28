"""Which computes become one kernel.

Four kinds of group: a *product* with the map that follows it (its epilogue); a *row group* of reductions over the same
loops with the maps between and after them (softmax, norms); a single map; an ordered accumulation (scan, sort,
scatter), always alone. Rules only, no cost yet: a product takes the
one map that consumes it point by point; a row group grows while every member is computed from the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

from tilewright.dataclass import dataclass
from tilewright.decision import Decision, Refusal
from tilewright.expr.core import JOINED, Axis, Compute, Const, Expr, Read, walk
from tilewright.expr.graph import Graph, Loop
from tilewright.expr.rewrite import substitute, transform
from tilewright.graph.passes.inline_maps import reads_own_points

_MOST_PARTS = 4  # of the name of a kernel
_MOST_MEMBERS = 64  # of a row group: one kernel, whose code no instruction cache holds if it is longer


@dataclass(frozen=True)
class Group:
    """Computes that become one kernel, in order. `kind` is "product", "rows" or "ordered".

    In a row group all nodes are written over shared loops: `outer`, and `inner` which its reductions sum over. `stored`
    names the members that other groups or the graph's outputs read. `kernel` is the name of the kernel, by default the
    one that `kernel_name` makes of the nodes. Products that run in one kernel are its `parts`, each a group of its own.
    """

    kind: str
    nodes: tuple[Compute, ...]
    outer: tuple[Axis, ...] = ()
    inner: tuple[Axis, ...] = ()
    stored: tuple[str, ...] = ()
    decision: Decision | None = None
    kernel: str = ""
    parts: tuple[Group, ...] = ()

    def __post_init__(self) -> None:
        if not self.kernel:
            object.__setattr__(self, "kernel", kernel_name(self.nodes))

    @property
    def name(self) -> str:
        return self.nodes[-1].name

    @property
    def main(self) -> Compute:
        return self.nodes[0]


def kernel_name(nodes: Sequence[Compute]) -> str:
    """The name of the kernel that computes `nodes`: the first node, which does most of the work, and what follows it.

    Nodes inside an operator are named after its result (`softmax.max` is part of `softmax`). Maps that were inlined
    stand before the node that has them if they join several computed tensors (`Compute.source`): a convolution, the
    addition of a residual and a relu are `conv2d_16+add+relu_15`. Of more than `_MOST_PARTS` names the first and the
    last one stay. Groups with no node in common have different names.
    """
    names = {node.name for node in nodes}
    parts: dict[str, None] = {}
    for number, node in enumerate(nodes):
        outer = (node.name[:dot] for dot, letter in enumerate(node.name) if letter == ".")
        operator = next((name for name in outer if name in names), node.name)
        joined = node.source.split(JOINED)[:-1] if number or node.accum is None else []
        parts.update(dict.fromkeys((*joined, operator)))
    first, *others = parts
    return JOINED.join(parts if len(parts) <= _MOST_PARTS else (first, "..", others[-1]))


def joined(parts: Sequence[Group], decision: Decision) -> Group:
    """Groups as one kernel: two products, and perhaps rows between them, each of which reads the one before it."""
    nodes = tuple(node for part in parts for node in part.nodes)
    return Group("product", nodes, stored=parts[-1].stored, decision=decision, parts=tuple(parts))


def form_groups(graph: Graph, is_product: Callable[[Compute], bool]) -> list[Group | Loop]:
    """Cut the nodes of a graph into groups, and give these and its loops in an order in which they can run."""
    taken: dict[str, Group] = {}
    _take_products(graph.opened(), is_product, taken)
    _take_rows(graph, taken)
    for node in graph.nodes:
        if node.name not in taken:
            group = _single(node)
            taken[node.name] = group
    return _ordered(graph, taken)


def _take_products(graph: Graph, is_product: Callable[[Compute], bool], taken: dict[str, Group]) -> None:
    consumers = graph.consumers()
    outputs = {tensor.name for tensor in graph.outputs}
    for node in reversed(graph.nodes):
        if not is_product(node):
            continue
        readers = consumers.get(node.name, [])
        subject = f"fusion of {node.name}"
        if len(readers) == 1 and node.name not in outputs:
            epilogue = readers[0]
            reason = _refuse_epilogue(node, epilogue, taken)
            if reason is None:
                chosen = Decision(subject, f"with {epilogue.name}", "its only consumer reads it point by point")
                group = Group("product", _aligned(node, epilogue), stored=(epilogue.name,), decision=chosen)
                taken[node.name] = taken[epilogue.name] = group
                continue
            refusal = (Refusal(f"with {epilogue.name}", reason),)
            decision = Decision(subject, "alone", "its consumer cannot be an epilogue", refused=refusal)
        else:
            decision = Decision(subject, "alone", f"{len(readers)} consumers read it")
        taken[node.name] = Group("product", (node,), stored=(node.name,), decision=decision)


def _refuse_epilogue(node: Compute, reader: Compute, taken: dict[str, Group]) -> str | None:
    """Why `reader` cannot be the epilogue of `node`, or None."""
    if reader.accum is not None:
        return "it reduces"
    if reader.name in taken:
        return "it is the epilogue of a later product"
    if not reads_own_points(reader, node.output):
        return "it reads the product at other points than it writes"
    return None


def _aligned(node: Compute, reader: Compute) -> tuple[Compute, Compute]:
    """A product and its epilogue over the same dimensions: dimensions of extent 1 are those of the epilogue."""
    if node.output.shape == reader.output.shape:
        return node, reader
    live = iter([axis for axis in node.axes if axis.extent != 1])
    axes = tuple(Axis(f"u{dim}", 1) if axis.extent == 1 else next(live) for dim, axis in enumerate(reader.axes))
    output = replace(node.output, shape=reader.output.shape)
    unit = {axis: Const(0, "i64") for axis in node.axes if axis.extent == 1}
    body = transform(
        reader.body, lambda e: output[reader.axes] if isinstance(e, Read) and e.tensor == node.output else None
    )
    return replace(node, output=output, axes=axes, body=substitute(node.body, unit)), replace(reader, body=body)


def _single(node: Compute) -> Group:
    return Group("ordered" if node.ordered else "rows", (node,), node.axes, node.reduce, (node.name,))


# Row groups -----------------------------------------------------------------------------------------------------------


def _take_rows(graph: Graph, taken: dict[str, Group]) -> None:
    consumers = graph.consumers()
    outputs = {tensor.name for tensor in graph.opened().outputs}
    steps = graph.steps()
    nodes = [step for step in steps if isinstance(step, Compute)]
    position = {node.name: place for place, node in enumerate(nodes)}
    # The results of a loop come late, so that no node that needs them runs together with what the loop needs.
    before = 0
    for step in steps:
        before += isinstance(step, Compute)
        if isinstance(step, Loop):
            position.update((tensor.name, before) for tensor in step.outputs())
    for node in nodes:
        if node.name in taken or node.accum is None or node.ordered:
            continue
        members = _grow(nodes, node, taken, position, consumers)
        names = {member.name for member in members}
        stored = tuple(
            m.name
            for m in members
            if m.name in outputs or any(user.name not in names for user in consumers.get(m.name, []))
        )
        live = tuple(axis for axis in node.axes)
        chosen = " + ".join(member.name for member in members)
        decision = Decision(f"fusion of {node.name}", chosen, "all are computed from the same rows")
        group = Group("rows", tuple(members), live, node.reduce, stored, decision)
        for member in members:
            taken[member.name] = group


def _grow(
    nodes: Sequence[Compute],
    first: Compute,
    taken: dict[str, Group],
    position: dict[str, int],
    consumers: dict[str, list[Compute]],
) -> list[Compute]:
    """Add later nodes that are computed from the rows of `first`: each rewritten over the loops of `first`.

    Only what reads a member is looked at, in the order of the graph. What a member reads is earlier than `first` or a
    member too, so that the group can run as one.
    Windows overlap, so that only what follows point by point shares a kernel with a reduction over windows.
    """
    windows = bool(_windows(first))
    members = [first]
    written: dict[str, tuple[Axis, ...]] = {first.name: first.axes}  # loops over which each member is written
    start = position[first.name]
    waiting = [position[user.name] for user in consumers.get(first.name, [])]
    heapify(waiting)
    seen = set(waiting)
    while waiting and len(members) < _MOST_MEMBERS:
        node = nodes[heappop(waiting)]
        late = any(position.get(tensor.name, -1) > start and tensor.name not in written for tensor in node.inputs())
        rewritten = None if late or node.name in taken or node.ordered else _over_shared_loops(node, first, written)
        if rewritten is None or (windows and set(rewritten.loops) & set(first.reduce)):
            continue
        members.append(rewritten)
        written[node.name] = rewritten.axes
        for user in consumers.get(node.name, []):
            if position[user.name] not in seen:
                seen.add(position[user.name])
                heappush(waiting, position[user.name])
    return members


def _windows(node: Compute) -> list[Expr]:
    """Indices in which an outer and an inner loop meet: windows, whose rows overlap."""
    found = []
    for read in node.reads():
        for index in read.indices:
            axes = {a for a in walk(index) if isinstance(a, Axis)}
            if axes & set(node.axes) and axes & set(node.reduce):
                found.append(index)
    return found


def _over_shared_loops(node: Compute, first: Compute, written: dict[str, tuple[Axis, ...]]) -> Compute | None:
    """`node` with its loops renamed to those of `first`, or None where they do not correspond."""
    names: dict[Axis, Axis] = {}
    for read in node.reads():
        for index, axis in zip(read.indices, written.get(read.tensor.name, ()), strict=False):
            if axis.extent == 1:
                continue
            if not isinstance(index, Axis) or index.extent != axis.extent or names.setdefault(index, axis) != axis:
                return None
    left = [axis for axis in node.loops if axis not in names and axis.extent != 1]
    free = [axis for axis in first.reduce if axis not in names.values() and axis.extent != 1]
    if left and [axis.extent for axis in left] != [axis.extent for axis in free]:
        return None
    names.update(zip(left, free, strict=False))
    outer = {axis for axis in first.axes if axis.extent != 1}
    inner = {axis for axis in first.reduce if axis.extent != 1}
    if len(set(names.values())) != len(names) or not outer <= set(names.values()):
        return None
    summed = {names[axis] for axis in node.reduce if axis in names}
    if node.accum is not None and (summed != inner or any(names.get(axis) in inner for axis in node.axes)):
        return None
    mine = {names[axis] for axis in node.axes if axis in names}
    if node.accum is None and mine & inner and not inner <= mine:
        return None
    return _renamed(node, names)


def _renamed(node: Compute, names: dict[Axis, Axis]) -> Compute:
    """`node` over the shared loops; its own loops of extent 1 stay its own."""
    replaced: dict[Axis, Axis] = {axis: names.get(axis, Axis(f"{node.name}.{axis.name}", 1)) for axis in node.loops}
    axes, reduce = (tuple(replaced[axis] for axis in group) for group in (node.axes, node.reduce))
    return replace(node, axes=axes, reduce=reduce, body=substitute(node.body, dict(replaced)))


def _ordered(graph: Graph, taken: dict[str, Group]) -> list[Group | Loop]:
    """Groups and loops in an order that respects the tensors between them."""
    producer: dict[str, Group | Loop] = {node.name: taken[node.name] for node in graph.nodes}
    producer |= {tensor.name: loop for loop in graph.loops for tensor in loop.outputs()}
    done: list[Group | Loop] = []
    begun: set[int] = set()
    finished: set[int] = set()
    stack: list[tuple[Group | Loop, Iterator[Group | Loop]]] = []

    def sources(group: Group | Loop) -> Iterator[Group | Loop]:
        parts: Sequence[Compute | Loop] = (group,) if isinstance(group, Loop) else group.nodes
        names = (tensor.name for part in parts for tensor in part.inputs())
        return (producer[name] for name in names if name in producer and producer[name] is not group)

    for step in graph.steps():
        group: Group | Loop | None = taken[step.name] if isinstance(step, Compute) else step
        while group is not None or stack:
            if group is not None and id(group) not in begun:
                begun.add(id(group))
                stack.append((group, sources(group)))
            if not stack:
                break
            current, rest = stack[-1]
            group = next((each for each in rest if id(each) not in finished), None)
            if group is None:
                finished.add(id(current))
                done.append(current)
                stack.pop()
            else:
                assert id(group) not in begun, "groups depend on each other in a circle"
    return done
