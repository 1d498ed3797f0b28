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
from collections.abc import Container, Mapping
from dataclasses import replace
from functools import reduce as fold

from tilewright.errors import InvalidArgument
from tilewright.expr.affine import Affine, simplify
from tilewright.expr.core import Apply, Axis, Compute, Const, Expr, Read, Tensor, select
from tilewright.expr.dtypes import INDEX, DType
from tilewright.expr.evaluate import evaluate_compute
from tilewright.expr.graph import Graph
from tilewright.expr.rewrite import inline, transform, unique
from tilewright.expr.serialize import compute_digest
from tilewright.expr.text import print_statement
from tilewright.instruction.physical import Digit, PhysicalMapping, Placement

PREFIX = "relayout."


def relayouts(physical: PhysicalMapping) -> tuple[Compute, ...]:
    """One node per source operand, in the record's order."""
    return tuple(_into(physical, number) for number in range(len(physical.match.reads)))


def call(physical: PhysicalMapping) -> Compute:
    """What all calls of the intrinsic together compute: the packed result from the packed operands."""
    placement = physical.placements[-1]
    output = Tensor(_stored_name(physical), placement.shape, physical.match.compute.output.dtype)
    names: set[str] = set()
    outer = {axis: _axis(axis.name, int(axis.extent), names) for axis in physical.outer}  # type: ignore[arg-type]
    spatial, axes, index = _place_axes(physical, placement, outer, names)
    summed: list[Axis] = [outer[axis] for axis in physical.outer if axis in physical.match.compute.reduce]
    for loop, count in zip(physical.record.loops, physical.tiles, strict=True):
        if loop.kind == "R":
            tile = _axis(f"{loop.name}.o", count, names)
            inner = _axis(f"{loop.name}.i", loop.extent, names)
            index[loop.name] = (tile, inner)
            summed += [tile, inner]
    assert len(spatial) == len(placement.outer), "the destination has one outer dimension per outer loop"
    packed = {
        operand.role: node.output[_indices(place, outer, index)]
        for operand, node, place in zip(physical.record.sources, relayouts(physical), physical.placements, strict=False)
    }
    body = _with_operands(physical.record.body.value, packed, output.dtype)
    accum = physical.match.compute.accum
    return Compute(output, axes, simplify(body), tuple(summed), accum, source=physical.match.compute.source)


def unpacked(physical: PhysicalMapping) -> Compute:
    """The inverse relayout: the node's own result out of the packed one."""
    compute, placement = physical.match.compute, physical.placements[-1]
    stored = Tensor(_stored_name(physical), placement.shape, compute.output.dtype)
    return Compute(compute.output, compute.axes, stored_read(physical, -1, stored), source=compute.source)


def stored_read(physical: PhysicalMapping, number: int, stored: Tensor) -> Expr:
    """The element of operand `number` that a point of the node's loops uses, read from the stored operand."""
    placement = physical.placements[number]
    index = {}
    for loop in placement.loops:
        value = physical.virtual(loop.name)
        index[loop.name] = (value // loop.extent, value % loop.extent)
    outer: dict[Axis, Axis] = {axis: axis for axis in physical.outer}
    return simplify(stored[_indices(placement, outer, index)])


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
    origin = origin or read.tensor
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

    def order(whole: PhysicalMapping, where: Placement, places: Mapping[Axis, int]) -> object:
        outer = [[places[axis] for axis in each.form.terms] for each in where.outer]
        sets = dict(zip(whole.record.extents, whole.mapping.sets, strict=True))
        numbers = {loop.name: position for position, loop in enumerate(where.loops)}
        fused = [[places[axis] for axis in sets[loop.name]] for loop in where.loops]
        digits = [(numbers[digit.loop], digit.divisor, digit.extent) for digit in where.digits]
        return outer, fused, [loop.extent for loop in where.loops], digits, where.leading

    if order(producer, stored, own) != order(consumer, place, dimension):
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


def fuse_producers(graph: Graph) -> Graph:
    """`graph` with every relayout reading what its producer reads, where that producer is a map with one use.

    Padding, element-wise operators and inverse relayouts then happen while the operand is packed.
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
                single = producer is not None and len(consumers[tensor.name]) == 1 and tensor.name not in outputs
                if producer is not None and single and producer.accum is None:
                    merged = inline(node, producer)
                    nodes_now = tuple(merged if each is node else each for each in graph.nodes if each is not producer)
                    graph, changed = replace(graph, nodes=nodes_now), True
                    break
            if changed:
                break
    return graph


def named_by_content(relayout: Compute) -> Compute:
    """A relayout under a name that equal relayouts of the same tensors share, and no others."""
    draft = replace(relayout, output=replace(relayout.output, name="_"))
    sources = " ".join(dict.fromkeys(tensor.name for tensor in draft.inputs()))
    content = f"{compute_digest(draft)} {sources} {print_statement(draft)}"
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    return replace(draft, output=replace(draft.output, name=f"{PREFIX}{digest}"))


# Building


def _into(physical: PhysicalMapping, number: int) -> Compute:
    """The relayout of a source operand."""
    match, placement = physical.match, physical.placements[number]
    read = match.reads[number]
    names: set[str] = set()
    outer, axes, index = _place_axes(physical, placement, {}, names)
    decoded: dict[Axis, Expr] = {}
    inside: list[Expr] = []
    for loop in placement.loops:
        tile, inner = index[loop.name]
        fused = tile * loop.extent + inner
        have = physical.fused[physical.record.loops.index(loop)]
        if have < _range(placement, loop.name):
            inside.append(fused < have)
        decoded.update(physical.decode(loop.name, fused))
    rest: dict[Axis, tuple[Affine, Axis]] = {}
    for each, axis in zip(placement.outer, outer, strict=True):
        if len(each.form.terms) == 1:
            decoded[next(iter(each.form.terms))] = axis
        else:
            rest.update((loop, (each.form, axis)) for loop in each.form.terms)
    indices = tuple(_decoded_index(form, decoded, rest) for form in match.forms[number])
    body: Expr = read.tensor[indices]
    if inside:
        pad = Const(physical.record.pad_identity, body.dtype)
        body = select(fold(lambda left, right: left & right, inside), body, pad)
    tensor = Tensor("_", placement.shape, body.dtype)
    return named_by_content(Compute(tensor, axes, simplify(body), source=read.tensor.name))


def _with_operands(value: Expr, operands: Mapping[str, Expr], dtype: DType) -> Expr:
    """The body of a record on the operands of a call, in the accumulator's type."""
    if isinstance(value, Read):
        return operands[value.tensor.name].cast(dtype)
    if isinstance(value, Const):
        return Const(value.value, dtype)
    assert isinstance(value, Apply), "bodies of records have reads, numbers and functions"
    return Apply(value.function, tuple(_with_operands(arg, operands, dtype) for arg in value.args), dtype)


def _decoded_index(form: Affine, decoded: Mapping[Axis, Expr], merged: Mapping[Axis, tuple[Affine, Axis]]) -> Expr:
    """One index of a read, loops replaced by what they are in the packed operand."""
    constant = form.constant
    parts: list[tuple[Expr, int]] = []
    done: set[Axis] = set()
    for axis, coefficient in form.terms.items():
        if axis not in merged:
            parts.append((decoded[axis], coefficient))
            continue
        window, dimension = merged[axis]
        if dimension not in done:
            done.add(dimension)
            step = coefficient // window.terms[axis]
            parts.append((dimension, step))
            constant -= window.constant * step
    terms = [value if factor == 1 else value * factor for value, factor in parts]
    if constant or not terms:
        terms.append(Const(constant, INDEX))
    return fold(lambda left, right: left + right, terms)


def _place_axes(
    physical: PhysicalMapping, placement: Placement, outer: Mapping[Axis, Axis], names: set[str]
) -> tuple[list[Axis], tuple[Axis, ...], dict[str, tuple[Expr, Expr]]]:
    """The axes of a stored operand, and the number of tile and the place in it of every loop in terms of them."""
    front = [
        outer[next(iter(each.form.terms))] if outer else _axis(each.name, each.extent, names)
        for each in placement.outer
    ]
    index: dict[str, tuple[Expr, Expr]] = {}
    if placement.storage == "strided":
        whole = []
        for number, loop in enumerate(placement.loops):
            axis = _axis(f"{loop.name}.v", placement.shape[len(front) + number], names)
            whole.append(axis)
            index[loop.name] = (axis // loop.extent, axis % loop.extent)
        return front, (*front, *whole), index
    tiles = [
        _axis(f"{loop.name}.o", count, names) for loop, count in zip(placement.loops, placement.tiles, strict=True)
    ]
    digits = [(digit, _axis(f"{digit.loop}.i", digit.extent, names)) for digit in placement.digits]
    for loop, tile in zip(placement.loops, tiles, strict=True):
        own = [axis * digit.divisor if digit.divisor > 1 else axis for digit, axis in digits if digit.loop == loop.name]
        inner: Expr = fold(lambda left, right: left + right, own) if own else Const(0, INDEX)
        index[loop.name] = (tile, inner)
    return front, (*front, *tiles, *(axis for _, axis in digits)), index


def _indices(
    placement: Placement, outer: Mapping[Axis, Axis], index: Mapping[str, tuple[Expr, Expr]]
) -> tuple[Expr, ...]:
    """Where in a stored operand an element lies, given the outer loops and (tile, place) of every intrinsic loop."""
    front = [
        Affine(each.form.constant, {outer[axis]: factor for axis, factor in each.form.terms.items()}).expression()
        for each in placement.outer
    ]
    if placement.storage == "strided":
        whole = [index[loop.name][0] * loop.extent + index[loop.name][1] for loop in placement.loops]
        return (*front, *whole)
    return (
        *front,
        *(index[loop.name][0] for loop in placement.loops),
        *(_take(digit, index[digit.loop][1], placement) for digit in placement.digits),
    )


def _take(digit: Digit, value: Expr, placement: Placement) -> Expr:
    whole = next(loop.extent for loop in placement.loops if loop.name == digit.loop)
    quotient = value // digit.divisor if digit.divisor > 1 else value
    return quotient if digit.divisor * digit.extent >= whole else quotient % digit.extent


def _range(placement: Placement, loop: str) -> int:
    """How many values the fused index of a loop has in the stored operand, padding included."""
    number = next(number for number, each in enumerate(placement.loops) if each.name == loop)
    if placement.storage == "strided" and number == len(placement.loops) - 1:
        return placement.leading
    return placement.tiles[number] * placement.loops[number].extent


def _axis(hint: str, extent: int, names: set[str]) -> Axis:
    axis = Axis(unique(hint, names), extent)
    names.add(axis.name)
    return axis


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
    "PREFIX", "apply_mappings", "call", "fold_constants", "fuse_producers", "named_by_content", "nodes", "relayouts",
    "stored_read", "undoes", "unpacked",
]  # fmt: skip
