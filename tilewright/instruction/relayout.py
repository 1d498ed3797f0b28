"""The tensor expressions that bring operands into the order of a mapping, call it, and bring the result back.

Everything here is an ordinary `Compute`, so that fusion, scheduling, evaluation and printing treat it as any other:

    T'[o, uo, wo, ui, wi] = T[access with every mapped loop decoded]   where u < E_u and w < E_w
                          = pad identity                               elsewhere
    D'[o, uo, wo, ui, wi] += F(A'[...], B'[...]) over outer reductions, tiles and the intrinsic's own reductions
    Out[software loops]   = D'[o, v_1 // t_1, v_2 // t_2, v_1 % t_1, v_2 % t_2]

The guard is on the fused index, for all inputs. Names of relayouts are derived from what they compute, so that equal
relayouts of one tensor are one node.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from functools import reduce as fold

from tilewright.errors import InvalidArgument
from tilewright.expr.affine import affine, simplify
from tilewright.expr.core import Apply, Axis, Compute, Const, Expr, Read, Tensor, select, walk
from tilewright.expr.dtypes import INDEX, DType
from tilewright.expr.evaluate import evaluate_compute
from tilewright.expr.graph import Graph
from tilewright.expr.names import claim
from tilewright.expr.rewrite import inline, substitute, transform
from tilewright.expr.serialize import compute_digest
from tilewright.expr.text import print_statement
from tilewright.instruction.order import Digit, Index, Order
from tilewright.instruction.physical import PhysicalMapping

PREFIX = "relayout."


def packed(read: Read, order: Order, pad: float = 0) -> Compute:
    """The relayout of an operand: what `read` takes at every point of its loops, in `order`, `pad` in between."""
    return named_by_content(_packed(read, order, pad))


def _packed(read: Read, order: Order, pad: float) -> Compute:
    axes, values = _dimensions(order, set())
    homes = {loop: index for index in order.indices for loop in index.form.terms}
    body: Expr = read.tensor[tuple(_taken(place, homes, values) for place in read.indices)]
    inside = [values[index.name] < index.extent for index in order.indices if index.extent < order.room(index)]
    if inside:
        body = select(fold(lambda left, right: left & right, inside), body, Const(pad, body.dtype))
    return Compute(Tensor("_", order.shape, body.dtype), axes, simplify(body), source=read.tensor.name)


def relayouts(physical: PhysicalMapping) -> tuple[Compute, ...]:
    """One node per source operand, in the record's order."""
    return tuple(map(named_by_content, unnamed_relayouts(physical)))


def unnamed_relayouts(physical: PhysicalMapping) -> tuple[Compute, ...]:
    """The same for those who only compute them."""
    pad = physical.record.pad_identity
    operands = zip(physical.match.reads, physical.orders, strict=False)
    return tuple(_packed(read, order, pad) for read, order in operands)


def call(physical: PhysicalMapping) -> Compute:
    """What all calls of the intrinsic together compute: the packed result from the packed operands."""
    placement, order = physical.placements[-1], physical.orders[-1]
    output = Tensor(_stored_name(physical), placement.shape, physical.match.compute.output.dtype)
    names: set[str] = set()
    axes, values = _dimensions(order, names)
    count = len(placement.outer)
    assert all(len(each.form.terms) == 1 for each in placement.outer), "a result has a dimension per outer loop"
    outside = {next(iter(each.form.terms)): values[each.name] for each in placement.outer}
    fused = {loop.name: values[each.name] for loop, each in zip(placement.loops, order.indices[count:], strict=True)}
    reductions = [axis for axis in physical.outer if axis in physical.match.compute.reduce]
    summed = [_axis(axis.name, axis.size, names) for axis in reductions]
    outside.update(zip(reductions, summed, strict=True))
    for loop, tiles in zip(physical.record.loops, physical.tiles, strict=True):
        if loop.kind == "R":
            tile, inner = _axis(f"{loop.name}.o", tiles, names), _axis(f"{loop.name}.i", loop.extent, names)
            fused[loop.name] = _number([(tile, loop.extent), (inner, 1)])
            summed += [tile, inner]
    operands = {
        operand.role: node.output[physical.orders[number].places(_values(physical, number, outside, fused))]
        for number, (operand, node) in enumerate(zip(physical.record.sources, relayouts(physical), strict=True))
    }
    body = _with_operands(physical.record.body.value, operands, output.dtype)
    accum = physical.match.compute.accum
    return Compute(output, axes, simplify(body), tuple(summed), accum, source=physical.match.compute.source)


def unpacked(physical: PhysicalMapping) -> Compute:
    """The inverse relayout: the node's own result out of the packed one."""
    compute, placement = physical.match.compute, physical.placements[-1]
    stored = Tensor(_stored_name(physical), placement.shape, compute.output.dtype)
    return Compute(compute.output, compute.axes, stored_read(physical, -1, stored), source=compute.source)


def stored_read(physical: PhysicalMapping, number: int, stored: Tensor) -> Read:
    """The element of operand `number` that a point of the node's loops uses, read from the stored operand."""
    return stored[physical.orders[number].places()]


def nodes(physical: PhysicalMapping) -> tuple[Compute, ...]:
    """All nodes that replace the original one: canonicalisation, relayouts, the call, and back."""
    canonical = physical.match.canonical
    into = dict.fromkeys(relayouts(physical))
    return (*canonical.before, *into, call(physical), unpacked(physical), *canonical.after)


def apply_mappings(graph: Graph, chosen: Mapping[str, PhysicalMapping]) -> Graph:
    """`graph` with every named node replaced by relayouts, the call of its intrinsic, and the inverse relayout.

    Equal relayouts of one tensor are shared. Those that undo the inverse relayout of a neighbour are left out; with
    element-wise operators in between, these are computed on the packed result.
    """
    known = {node.name for node in graph.nodes}
    for name in chosen:
        if name not in known:
            raise InvalidArgument(f"graph {graph.name} has no node {name!r}", help=f"one of {', '.join(sorted(known))}")
    written: dict[str, Compute] = {}
    for node in graph.nodes:
        physical = chosen.get(node.name)
        for each in (node,) if physical is None else nodes(physical):
            if each.name in written and each != written[each.name]:
                raise InvalidArgument(f"two nodes are called {each.name}", help="rename one of them")
            written.setdefault(each.name, each)
    # A result is stored packed by one mapping; another may read it in exactly that order.
    producers = {physical.match.canonical.nodes[-1].name: physical for physical in chosen.values()}
    maps = _single_maps(graph, set(chosen))
    same: dict[str, Tensor] = {}
    for physical in chosen.values():
        for number, into in enumerate(relayouts(physical)):
            hoisted, origin = _through_maps(into, maps)
            producer = producers.get(origin.name)
            if producer is None or not undoes(producer, physical, number, origin):
                continue
            packed = call(producer).output
            if hoisted is into:
                same[into.name] = packed
                continue
            (read,) = dict.fromkeys(into.reads())
            found = _reading_packed(hoisted, origin, read.indices, packed)
            written[into.name] = found or into
    kept = [_reading(node, same) for name, node in written.items() if name not in same]
    return _without_dead(replace(graph, nodes=tuple(kept)))


def undoes(producer: PhysicalMapping, consumer: PhysicalMapping, number: int, origin: Tensor | None = None) -> bool:
    """Whether the relayout of a consumer's operand gives back the packed result of its producer, element by element.

    `origin` is what the operand was computed from element by element; the operand itself without.

    Legal only if the operand's reductions fill their tiles: padding of the producer's result may hold anything that
    a sum over zeros and values that are not finite gives.
    """
    read = consumer.match.reads[number]
    origin = read.tensor if origin is None else origin
    if producer.match.canonical.after or producer.match.compute.output != origin or origin.shape != read.tensor.shape:
        return False
    if origin == read.tensor and producer.record.destination.dtype != consumer.record.sources[number].dtype:
        return False
    place, stored = consumer.placements[number], producer.placements[-1]
    if place.shape != stored.shape or place.storage != stored.storage:
        return False
    dimension: dict[Axis, int] = {}
    for position, form in enumerate(consumer.match.forms[number]):
        terms = list(form.terms.items())
        if len(terms) != 1 or form.constant or terms[0][1] != 1 or terms[0][0].extent != read.tensor.shape[position]:
            return False
        if terms[0][0] in dimension:
            return False
        dimension[terms[0][0]] = position
    own = {axis: position for position, axis in enumerate(producer.match.compute.axes)}

    if _dims(producer.orders[-1], own) != _dims(consumer.orders[number], dimension):
        return False
    fused = dict(zip(consumer.record.loops, consumer.fused, strict=True))
    return all(have % loop.extent == 0 for loop, have in fused.items() if loop.kind == "R" and loop in place.loops)


def fold_constants(graph: Graph) -> Graph:
    """`graph` with every relayout of constants replaced by its values."""
    constants = dict(graph.constants)
    kept = []
    for node in graph.nodes:
        if node.accum is None and node.name.startswith(PREFIX) and all(t.name in constants for t in node.inputs()):
            constants[node.name] = evaluate_compute(node, constants)
        else:
            kept.append(node)
    return _used_constants(replace(graph, nodes=tuple(kept), constants=constants))


def none_twice(taken: int, result: Tensor) -> bool:
    """Whether a relayout that takes so many elements of a map's result may compute them: none of them twice."""
    return taken <= result.size


def fuse_producers(graph: Graph) -> Graph:
    """`graph` with every relayout reading what its producer reads, where that producer is a map with one use.

    Padding, element-wise operators and inverse relayouts then happen while the operand is packed. What computes is left
    where elements would be computed twice. What only moves is always fused, unlike in the plan for a CPU: there padding
    is part of how a tensor is stored, and other moves are views or copies that are read many times.
    """
    changed = True
    while changed:
        changed = False
        producers, consumers = graph.producers(), graph.consumers()
        outputs = {tensor.name for tensor in graph.outputs}
        for node in graph.nodes:
            if not node.name.startswith(PREFIX):
                continue
            for tensor in node.inputs():
                producer = producers.get(tensor.name)
                if producer is None or len(consumers[tensor.name]) != 1 or tensor.name in outputs:
                    continue
                moves = _only_moves(producer.body)
                if producer.accum is None and (moves or none_twice(_taken_by(node, tensor), tensor)):
                    merged = inline(node, producer)
                    nodes_now = tuple(merged if each is node else each for each in graph.nodes if each is not producer)
                    graph, changed = replace(graph, nodes=nodes_now), True
                    break
            if changed:
                break
    return graph


def named_by_content(relayout: Compute) -> Compute:
    """A relayout under a name that equal relayouts of the same tensors share, and no others; its loops are numbered."""
    axes = tuple(Axis(f"d{number}", axis.extent) for number, axis in enumerate(relayout.axes))
    body = substitute(relayout.body, dict(zip(relayout.axes, axes, strict=True)))
    draft = replace(relayout, output=replace(relayout.output, name="_"), axes=axes, body=body)
    sources = " ".join(dict.fromkeys(tensor.name for tensor in draft.inputs()))
    content = f"{compute_digest(draft)} {sources} {print_statement(draft)}"
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    return replace(draft, output=replace(draft.output, name=f"{PREFIX}{digest}"))


# Fusing


def _only_moves(expr: Expr) -> bool:
    """Whether values are as they were read, or constants."""
    if isinstance(expr, Apply) and expr.function == "select":
        condition, *values = expr.args
        return not any(isinstance(each, Read) for each in walk(condition)) and all(map(_only_moves, values))
    return isinstance(expr, Read | Const)


def _taken_by(relayout: Compute, tensor: Tensor) -> int:
    """How many elements of a tensor a relayout takes, those that it takes again counted again; none where it pads."""
    points, body = relayout.output.size, relayout.body
    if isinstance(body, Apply) and body.function == "select" and isinstance(body.args[2], Const):
        inside = Compute(Tensor("_", relayout.output.shape, "bool"), relayout.axes, body.args[0])
        points = int(evaluate_compute(inside, {}).sum()) if not inside.inputs() else points
    return points * len({read for read in relayout.reads() if read.tensor == tensor})


# Building


def _with_operands(value: Expr, operands: Mapping[str, Expr], dtype: DType) -> Expr:
    """The body of a record on the operands of a call, in the accumulator's type."""
    if isinstance(value, Read):
        return operands[value.tensor.name].cast(dtype)
    if isinstance(value, Const):
        return Const(value.value, dtype)
    assert isinstance(value, Apply), "bodies of records have reads, numbers and functions"
    return Apply(value.function, tuple(_with_operands(arg, operands, dtype) for arg in value.args), dtype)


def _dimensions(order: Order, names: set[str]) -> tuple[tuple[Axis, ...], dict[str, Expr]]:
    """An axis for each dimension of a stored operand, and its indices in terms of them."""
    digits: dict[str, list[tuple[Digit, Axis]]] = {index.name: [] for index in order.indices}
    axes = []
    for digit in order.digits:
        kind = "o" if digit.divisor == order.highest[digit.index] else "i"
        alone = sum(each.index == digit.index for each in order.digits) == 1
        axes.append(_axis(digit.index if alone else f"{digit.index}.{kind}", digit.extent, names))
        digits[digit.index].append((digit, axes[-1]))
    values: dict[str, Expr] = {}
    for name, own in digits.items():
        values[name] = _number([(axis, digit.divisor) for digit, axis in own])
    return tuple(axes), values


def _number(digits: Sequence[tuple[Axis, int]]) -> Expr:
    """The number with these digits and their weights; a digit that is always 0 says nothing."""
    terms: list[Expr] = [axis * weight if weight > 1 else axis for axis, weight in digits if axis.size > 1]
    return simplify(fold(lambda left, right: left + right, terms)) if terms else Const(0, INDEX)


def _taken(place: Expr, homes: Mapping[Axis, Index], values: Mapping[str, Expr]) -> Expr:
    """One index of a read, loops replaced by what they are in the stored operand.

    A form of loops that is a dimension of storage is that dimension; other fused loops are decoded.
    """
    form = affine(place)
    assert form is not None, "operands are read at affine indices"
    constant, left = form.constant, dict(form.terms)
    terms: list[Expr] = []
    for loop, factor in form.terms.items():
        index = homes[loop]
        step = factor // index.form.terms[loop]
        if all(left.get(each) == step * own for each, own in index.form.terms.items()):
            terms.append(values[index.name] * step if step != 1 else values[index.name])
            constant -= index.form.constant * step
            left = {each: own for each, own in left.items() if each not in index.form.terms}
        elif loop in left:
            own = left.pop(loop)
            value = index.decode(values[index.name])[loop]
            terms.append(value * own if own != 1 else value)
    if constant or not terms:
        terms.append(Const(constant, INDEX))
    return simplify(fold(lambda left, right: left + right, terms))


def _values(
    physical: PhysicalMapping, number: int, outside: Mapping[Axis, Expr], fused: Mapping[str, Expr]
) -> dict[str, Expr]:
    """The indices of a stored operand, given the outer loops and the fused index of every intrinsic loop."""
    placement, order = physical.placements[number], physical.orders[number]
    count = len(placement.outer)
    found = {each.name: substitute(each.form.expression(), outside) for each in placement.outer}
    own = zip(placement.loops, order.indices[count:], strict=True)
    return found | {index.name: fused[loop.name] for loop, index in own}


def _dims(order: Order, dims: Mapping[Axis, int]) -> object:
    """What an order does in memory, by the dimensions of a tensor that its loops walk."""
    numbers = {index.name: number for number, index in enumerate(order.indices)}
    walked = [[dims[axis] for axis in index.form.terms] for index in order.indices]
    return walked, [(numbers[digit.index], digit.divisor, digit.extent) for digit in order.digits]


def _axis(hint: str, extent: int, names: set[str]) -> Axis:
    return Axis(claim(hint, names), extent)


def _stored_name(physical: PhysicalMapping) -> str:
    return f"{physical.match.compute.name}.packed"


# Graphs


def _single_maps(graph: Graph, mapped: Container[str]) -> dict[str, tuple[Compute, Tensor]]:
    """Maps that one node reads, each with the one tensor of its own shape that it reads element by element."""
    consumers = graph.consumers()
    outputs = {tensor.name for tensor in graph.outputs}
    found: dict[str, tuple[Compute, Tensor]] = {}
    for node in graph.nodes:
        if node.accum is not None or node.name in mapped or node.name in outputs or len(consumers[node.name]) != 1:
            continue
        alike = {read.tensor for read in node.reads() if read.indices == node.axes}
        alike = {tensor for tensor in alike if tensor.shape == node.output.shape}
        if len(alike) == 1:
            found[node.name] = (node, alike.pop())
    return found


def _through_maps(into: Compute, maps: Mapping[str, tuple[Compute, Tensor]]) -> tuple[Compute, Tensor]:
    """A relayout with the maps before it computed in it, and what the first of them reads."""
    (origin,) = into.inputs()
    while origin.name in maps:
        node, before = maps[origin.name]
        into, origin = inline(into, node), before
    return into, origin


def _reading_packed(into: Compute, origin: Tensor, place: tuple[Expr, ...], packed: Tensor) -> Compute | None:
    """`into` with its reads of `origin`, all at the place of their element, from the packed tensor; None otherwise."""
    if any(read.indices != place for read in into.reads() if read.tensor == origin):
        return None
    return replace(
        into,
        body=transform(
            into.body,
            lambda node: packed[into.axes] if isinstance(node, Read) and node.tensor == origin else None,
        ),
    )


def _reading(node: Compute, same: Mapping[str, Tensor]) -> Compute:
    """`node` reading other tensors of the same shape."""
    if not any(tensor.name in same for tensor in node.inputs()):
        return node
    return replace(
        node,
        body=transform(
            node.body,
            lambda each: (
                same[each.tensor.name][each.indices] if isinstance(each, Read) and each.tensor.name in same else None
            ),
        ),
    )


def _without_dead(graph: Graph) -> Graph:
    """`graph` without nodes that nothing reads."""
    outputs = {tensor.name for tensor in graph.outputs}
    nodes_now = list(graph.nodes)
    while True:
        used = outputs | {tensor.name for node in nodes_now for tensor in node.inputs()}
        alive = [node for node in nodes_now if node.name in used]
        if len(alive) == len(nodes_now):
            return replace(graph, nodes=tuple(alive))
        nodes_now = alive


def _used_constants(graph: Graph) -> Graph:
    used = {tensor.name for node in graph.nodes for tensor in node.inputs()} | {t.name for t in graph.outputs}
    return replace(graph, constants={name: array for name, array in graph.constants.items() if name in used})


__all__ = [
    "PREFIX", "apply_mappings", "call", "fold_constants", "fuse_producers", "named_by_content", "nodes", "packed",
    "relayouts", "stored_read", "undoes", "unpacked",
]  # fmt: skip
