"""Whether a mapping may be used: checks V1 to V9, in this order, each with an error code and a counterexample.

V1 to V4 look at the boolean matrices, V5 and V6 at the record's arithmetic, V7 at match points, V8 at memory. V9 runs
the mapping on small extents of the same structure, through the reference behaviour of the record, and compares with the
node's own loop nest, exactly; its outcome is kept per structure, so that a mapping of the same loops of another size is
not run again.
"""

from __future__ import annotations

from collections.abc import Mapping as Names
from dataclasses import replace
from functools import cache, lru_cache
from itertools import product
from math import gcd, lcm, prod
from random import Random
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.errors import CompileError
from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import FUNCTIONS, Apply, Axis, Cast, Compute, Const, Expr, Read, Tensor, static_shape, walk
from tilewright.expr.core import identity as neutral
from tilewright.expr.rewrite import transform
from tilewright.expr.serialize import compute_digest
from tilewright.instruction.canonical import Canonical
from tilewright.instruction.emulate import Execute, default_execute, emulate, exact_bound, reference, small_values
from tilewright.instruction.mapping import Mapping, Mode
from tilewright.instruction.matching import Match, software_dtype
from tilewright.instruction.physical import PhysicalMapping, Placement, address_strides, fits, physical
from tilewright.intrinsics.elements import bits, storage
from tilewright.intrinsics.intrinsic import Cost, Intrinsic, Limits, Movement, Operand
from tilewright.intrinsics.numerics import RULES

#: The checks in order, with what each is called in errors.
CHECKS: Names[str, str] = {
    "V1": "mapping-function", "V2": "mapping-kinds", "V3": "mapping-semantics", "V4": "mapping-surjectivity",
    "V5": "mapping-combiner", "V6": "mapping-numerics", "V7": "mapping-separability", "V8": "mapping-memory",
    "V9": "mapping-differential",
}  # fmt: skip

_KEPT_EXTENT = 4  # intrinsic loops up to this extent stay whole in a small instance; longer ones become 2


class MappingRefused(CompileError):
    """A mapping that breaks a condition of validity; `check` is its number (V1 to V9), `code` its name."""

    def __init__(self, check: str, message: str, *, where: str = "", help: str = "") -> None:
        super().__init__(f"{check}: {message}", where=where, help=help)
        self.check = check
        self.code = CHECKS[check]


@dataclass(frozen=True)
class Verdict:
    """What validation found: the refusal, or None, and notes on conditions that the mode does not insist on."""

    refusal: MappingRefused | None
    notes: tuple[str, ...] = ()


def validate(mapping: Mapping | PhysicalMapping, mode: Mode = "points", **options: Any) -> tuple[str, ...]:
    """Notes on a valid mapping. Raises MappingRefused for the first check that fails; options as in `judge`."""
    verdict = judge(mapping, mode, **options)
    if verdict.refusal is not None:
        raise verdict.refusal
    return verdict.notes


def judge(
    mapping: Mapping | PhysicalMapping,
    mode: Mode = "points",
    *,
    differential: bool = True,
    exact: bool = True,
    registers: int | None = None,
    execute: Execute | None = None,
) -> Verdict:
    """The outcome of all checks, V9 included unless `differential` is off.

    `exact` asks that integers wrap as the node's arithmetic does, and that inputs are not read with fewer bits; without
    it such records may be used, with a note. `registers` is what one lane of the machine has.
    """
    if execute is None and isinstance(mapping, Mapping):
        verdict = _known(_unnamed(mapping), mode, differential, exact, registers)
        if verdict == Verdict(None):
            return verdict  # others name the tensors of this node
    return _judged(mapping, mode, differential, exact, registers, execute)


@lru_cache(maxsize=1024)
def _known(mapping: Mapping, mode: Mode, differential: bool, exact: bool, registers: int | None) -> Verdict:
    """The verdict on a mapping whose tensors have no names: layers of one shape have one."""
    return _judged(mapping, mode, differential, exact, registers, None)


def _unnamed(mapping: Mapping) -> Mapping:
    """The mapping with its tensors numbered in the order in which its nodes mention them."""
    found = mapping.match
    tensors = [tensor for node in found.canonical.nodes for tensor in (*node.inputs(), node.output)]
    numbers = {tensor: Tensor(f"t{n}", tensor.shape, tensor.dtype) for n, tensor in enumerate(dict.fromkeys(tensors))}

    def numbered(expr: Expr) -> Expr | None:
        return Read(numbers[expr.tensor], expr.indices) if isinstance(expr, Read) else None

    def node(compute: Compute) -> Compute:
        return replace(compute, output=numbers[compute.output], body=transform(compute.body, numbered), source="")

    whole = found.canonical
    canonical = Canonical(tuple(map(node, whole.before)), node(whole.core), tuple(map(node, whole.after)), whole.units)
    reads = tuple(Read(numbers[read.tensor], read.indices) for read in found.reads)
    return Mapping(replace(found, canonical=canonical, reads=reads), mapping.sets)


def _judged(
    mapping: Mapping | PhysicalMapping,
    mode: Mode,
    differential: bool,
    exact: bool,
    registers: int | None,
    execute: Execute | None,
) -> Verdict:
    whole = mapping if isinstance(mapping, PhysicalMapping) else None
    logical = whole.mapping if whole is not None else mapping
    assert isinstance(logical, Mapping), "a physical mapping has a mapping"
    notes: list[str] = []
    for check in (_function, _kinds, _semantics, _surjectivity, _combiner):
        found = check(logical)
        if found is not None:
            return Verdict(found)
    found = _numerics(logical, exact, execute)
    if found is not None:
        return Verdict(found)
    inexact = None if exact else _numerics(logical, True, execute)
    if inexact is not None:
        notes.append(inexact.message)
    entangled = _separability(logical)
    if entangled is not None:
        if mode == "points":
            return Verdict(entangled)
        notes.append(entangled.message)
    whole = whole or physical(logical)
    found = _memory(whole, registers) or (_differential(whole, execute) if differential else None)
    return Verdict(found, tuple(notes))


# V1 to V4: the matrices


def _function(mapping: Mapping) -> MappingRefused | None:
    loops = mapping.record.loops
    for axis, column in zip(mapping.match.loops, mapping.matrix.T, strict=True):
        if column.sum() > 1:
            names = [loop.name for loop, used in zip(loops, column, strict=True) if used]
            return _refused(
                "V1", mapping, f"loop {axis.name} goes to {' and '.join(names)}; {axis.name} = 1 has two places",
                f"leave it in one of {', '.join(names)}",
            )  # fmt: skip
    return None


def _kinds(mapping: Mapping) -> MappingRefused | None:
    words = {"S": "spatial", "R": "a reduction"}
    for loop, axes in zip(mapping.record.loops, mapping.sets, strict=True):
        for axis in axes:
            kind = mapping.match.kind(axis)
            if kind != loop.kind:
                return _refused(
                    "V2", mapping, f"loop {axis.name} is {words[kind]}, {loop.name} is {words[loop.kind]}: "
                    + (f"results for {axis.name} = 0 and 1 would be added" if kind == "S"
                       else f"terms for {axis.name} = 0 and 1 would be stored apart"),
                    _candidates(mapping, loop.name),
                )  # fmt: skip
    return None


def _semantics(mapping: Mapping) -> MappingRefused | None:
    match = mapping.match
    found = match.intrinsic_access @ mapping.matrix
    for column, axis in enumerate(match.loops):
        if axis not in mapping.mapped:
            continue
        loop = next(loop.name for loop, axes in zip(mapping.record.loops, mapping.sets, strict=True) if axis in axes)
        for row, operand in enumerate(match.record.operands):
            if found[row, column] == match.access[row, column]:
                continue
            name = _tensor(match, row).name
            if match.access[row, column]:
                story = (
                    f"{name} depends on {axis.name}, but {operand.role} is not indexed by {loop}: "
                    f"{axis.name} = 0 and {axis.name} = 1 would share one element of {operand.role}"
                )
            else:
                story = (
                    f"{name} does not depend on {axis.name}, but {operand.role} is indexed by {loop}: "
                    f"{axis.name} = 0 and {axis.name} = 1 would need two elements of {operand.role} for one of {name}"
                )
            return _refused("V3", mapping, story, _candidates(mapping, loop))
    return None


def _surjectivity(mapping: Mapping) -> MappingRefused | None:
    match = mapping.match
    found = match.access @ mapping.matrix.T
    for column, (loop, axes) in enumerate(zip(mapping.record.loops, mapping.sets, strict=True)):
        if not axes or (found[:, column] != match.intrinsic_access[:, column]).any():
            return _refused(
                "V4", mapping, f"no loop goes to {loop.name}: {loop.name} = 1 would have no meaning",
                _candidates(mapping, loop.name),
            )  # fmt: skip
    return None


# V5 and V6: arithmetic


def _combiner(mapping: Mapping) -> MappingRefused | None:
    record, body = mapping.record, mapping.record.body
    filled = transform(
        body.value, lambda node: Const(record.pad_identity, node.dtype) if isinstance(node, Read) else None
    )
    value = _constant(filled)
    start = neutral(record.combine, record.destination.dtype).value
    if value != start:
        return _refused(
            "V5", mapping, f"padding with {record.pad_identity:g} contributes {value:g} to {record.combine}, "
            f"whose neutral value is {start:g}", f"a record with another pad_identity than {record.name}",
        )  # fmt: skip
    return None


def _numerics(mapping: Mapping, exact: bool, execute: Execute | None) -> MappingRefused | None:
    match, record = mapping.match, mapping.record
    for operand, read in zip(record.sources, match.reads, strict=True):
        if software_dtype(operand.dtype) != read.dtype or (exact and operand.dtype != read.dtype):
            return _refused(
                "V6", mapping, f"{operand.role} is {operand.dtype}, {read.tensor.name} is {read.dtype}",
                "a record of the tensor's type" + (", or allow narrower inputs" if exact else ""),
            )  # fmt: skip
    if record.destination.dtype != match.compute.output.dtype:
        return _refused(
            "V6", mapping,
            f"{record.name} accumulates in {record.destination.dtype}, the node in {match.compute.output.dtype}", "",
        )  # fmt: skip
    if not exact or not dtypes.is_integer(record.destination.dtype) or record.combine != "sum":
        return None
    story = _overflow(record, execute or default_execute())
    if story is None and record.numerics.saturate:
        terms = prod(axis.size for axis in match.compute.reduce)
        story = _saturation(record, terms)
    return None if story is None else _refused("V6", mapping, story, "a record that wraps, or allow other results")


@cache
def _overflow(record: Intrinsic, execute: Execute) -> str | None:
    """Inputs of extreme values for which one call, from an accumulator of 0, gives other integers than exact sums."""
    shapes = {operand.role: tuple(record.extents[name] for name in operand.loops) for operand in record.operands}
    destination = record.destination
    for extremes in product(*map(_extremes, record.sources)):
        tiles = [
            np.full(shapes[operand.role], value, storage(operand.dtype))
            for operand, value in zip(record.sources, extremes, strict=True)
        ]
        start = np.zeros(shapes[destination.role], dtypes.numpy_dtype(destination.dtype))
        found = int(np.asarray(execute(record, start, *tiles)).reshape(-1)[0])
        terms = prod(loop.extent for loop in record.loops if loop.kind == "R")
        wanted = terms * _contribution(record, extremes)
        width = dtypes.bits(destination.dtype)
        if (found - wanted) % (1 << width):
            values = " and ".join(
                f"{operand.role} = {value}" for operand, value in zip(record.sources, extremes, strict=True)
            )
            return f"with {values} one call of {record.name} gives {found}, the sum is {wanted}"
    return None


def _saturation(record: Intrinsic, terms: int) -> str | None:
    """Sums that leave the accumulator, in words; None if none can."""
    extremes = [_contribution(record, values) for values in product(*map(_extremes, record.sources))]
    bound = np.iinfo(dtypes.numpy_dtype(record.destination.dtype))
    for extreme in extremes:
        if not bound.min <= terms * extreme <= bound.max:
            return (
                f"{record.name} saturates where the node wraps: {terms} products of {extreme} are {terms * extreme}, "
                f"and {record.destination.dtype} ends at {bound.max if extreme > 0 else bound.min}"
            )
    return None


def _contribution(record: Intrinsic, values: tuple[int, ...]) -> int:
    """What one point of the loops adds, for these values of the sources."""
    given = dict(zip((operand.role for operand in record.sources), values, strict=True))
    filled = transform(
        record.body.value,
        lambda node: Const(given[node.tensor.name], node.dtype) if isinstance(node, Read) else None,
    )
    return int(_constant(filled))


def _extremes(operand: Operand) -> tuple[int, int]:
    """The least and the greatest value of an integer operand."""
    if storage(operand.dtype).kind == "b":
        return 0, 1
    width, signed = bits(operand.dtype), not operand.dtype.startswith("u")
    return (-(1 << width - 1), (1 << width - 1) - 1) if signed else (0, (1 << width) - 1)


# V7 and V8


def _separability(mapping: Mapping) -> MappingRefused | None:
    match = mapping.match
    inside = [
        point for point in match.points if all(axis in axes for axis, axes in zip(point, mapping.sets, strict=True))
    ]
    for number, (loop, axes) in enumerate(zip(mapping.record.loops, mapping.sets, strict=True)):
        for axis in axes:
            if any(point[number] == axis for point in inside):
                continue
            return _refused(
                "V7", mapping, f"{axis.name} on {loop.name} has no match point: {_entangled(mapping, number, axis)}",
                "mode signature, or other loops beside it",
            )  # fmt: skip
    return None


def _entangled(mapping: Mapping, number: int, axis: Axis) -> str:
    """One point with `axis` in place, and what it cannot separate."""
    match = mapping.match
    sets = [(axis,) if position == number else axes for position, axes in enumerate(mapping.sets)]
    for point in product(*sets):
        source = match.entangled(point)
        if source is None:
            continue
        read, operand = match.reads[source], match.record.sources[source]
        for dimension, form in enumerate(match.forms[source]):
            varying = [each for each in form.terms if each in point]
            if len(varying) > 1:
                a, b = varying[:2]
                step = gcd(form.terms[a], form.terms[b])
                return (
                    f"{a.name}, {b.name} = {abs(form.terms[b]) // step}, 0 and 0, {abs(form.terms[a]) // step} give "
                    f"dimension {dimension} of {read.tensor.name} one index, so {read.tensor.name} is no table with a "
                    f"row per {a.name} and a column per {b.name}"
                )
            if varying and form.terms[varying[0]] < 0:
                return f"dimension {dimension} of {read.tensor.name} is walked backwards by {varying[0].name}"
        names = ", ".join(f"{loop.name} = {each.name}" for loop, each in zip(match.record.loops, point, strict=True))
        return f"with {names} the dimensions of {read.tensor.name} are not those of {operand.role}"
    return "a loop stands in two parts"


def _memory(whole: PhysicalMapping, registers: int | None) -> MappingRefused | None:
    record = whole.record
    if registers is not None and record.limits.registers > registers:
        story = f"one call occupies {record.limits.registers} registers, the machine has {registers}"
        return _refused("V8", whole.mapping, story, "a smaller record")
    for placement in whole.placements:
        role = placement.operand.role
        moves = [move for move in record.memory if move.operand == role and move.value is None]
        reaching = [move for move in moves if fits(placement, move)]
        if moves and not reaching:
            return _refused("V8", whole.mapping, _out_of_reach(placement, moves[0]), "another storage")
        step = gcd(*_steps(placement)) * bits(placement.dtype)
        if reaching and all(_direct(move) and step % (8 * move.alignment_bytes) for move in reaching):
            move = min(reaching, key=lambda move: move.alignment_bytes)
            return _refused(
                "V8", whole.mapping, f"{move.via or move.name} needs {role} aligned to {move.alignment_bytes} bytes; "
                f"tiles start at multiples of {step / 8:g} bytes", "packed storage, or a record of another shape",
            )  # fmt: skip
    for scope, capacity in record.limits.capacity_bytes.items():
        held = [place for place in whole.placements if _passes(record, place.operand, scope)]
        needed = sum(place.tile_elements * bits(place.dtype) for place in held) // 8
        if needed > capacity:
            story = f"one call holds {needed} bytes in {scope}, which has {capacity}"
            return _refused("V8", whole.mapping, story, "a smaller record")
    return None


def _steps(placement: Placement) -> list[int]:
    """Elements from a tile to each of its neighbours, where it has one."""
    steps = [stride for stride, count in zip(placement.tile_strides, placement.tiles, strict=True) if count > 1]
    outer = zip(placement.outer_strides, placement.outer, strict=True)
    return steps + [stride for stride, each in outer if each.extent > 1]


def _direct(move: Movement) -> bool:
    """Whether a movement reaches memory itself; a copy in a nearer memory is put where the movement wants it."""
    return bool({move.source, move.destination} & {"global", "mem"})


def _out_of_reach(placement: Placement, move: Movement) -> str:
    """The first stride of a stored operand that a movement cannot walk, in words."""
    fixed, free = address_strides(move, placement.operand)
    for name, stride in fixed.items():
        if placement.strides[name] != stride:
            return (
                f"{move.via or move.name} walks {move.operand} along {name} in steps of {stride}; "
                f"{name} = 1 is stored at element {placement.strides[name]}"
            )
    name = next(name for name in free if placement.strides[name] % move.stride_multiple)
    return (
        f"{move.via or move.name} needs strides of {move.operand} that are multiples of {move.stride_multiple} "
        f"elements; {name} = 1 is stored at element {placement.strides[name]}"
    )


def _passes(record: Intrinsic, operand: Operand, scope: str) -> bool:
    scopes = {operand.scope}
    for move in record.memory:
        if move.operand == operand.role:
            scopes |= {move.destination, move.source}
    return scope in scopes


# V9


def shrunken(mapping: Mapping) -> Mapping:
    """The mapping on extents of 1 to 3: loops on the intrinsic that run alone have 3 values, as do the first two
    reductions of a set, other loops 2; so that tiles of 2 are filled, cut and left over.
    """
    extents: dict[Axis, int] = {}
    for loop, axes in zip(mapping.record.loops, mapping.sets, strict=True):
        for number, axis in enumerate(axes):
            extents[axis] = 3 if len(axes) == 1 or (loop.kind == "R" and number < 2) or number == 0 else 2
    for axis in mapping.match.loops:
        extents[axis] = min(axis.size, extents.get(axis, 2))
    match = mapping.match
    core = resized(match.compute, extents)
    renamed = {axis: Axis(axis.name, extents[axis]) for axis in match.loops}
    reads = dict(zip(_leaves(match.compute.body), _leaves(core.body), strict=True))
    small = Match(Canonical((), core), match.record, tuple(reads[read] for read in match.reads), match.swapped)
    return Mapping(small, tuple(tuple(renamed[axis] for axis in axes) for axes in mapping.sets))


def resized(compute: Compute, extents: Names[Axis, int]) -> Compute:
    """`compute` over loops of other, not larger, extents; the tensors it reads become as large as it needs."""
    renamed = {axis: Axis(axis.name, extents[axis]) for axis in compute.loops}

    def moved(node: Expr) -> Expr | None:
        return renamed.get(node) if isinstance(node, Axis) else None

    body = transform(compute.body, moved)
    sizes: dict[str, list[int]] = {}
    for read in (node for node in walk(body) if isinstance(node, Read)):
        shape = sizes.setdefault(read.tensor.name, [1] * read.tensor.rank)
        for dimension, index in enumerate(read.indices):
            form = affine(index)
            assert form is not None, "a match reads with affine indices"
            high = form.constant + sum(max(0, c * (axis.size - 1)) for axis, c in form.terms.items())
            shape[dimension] = max(shape[dimension], high + 1)

    def fitted(node: Expr) -> Expr | None:
        if not isinstance(node, Read):
            return None
        return Tensor(node.tensor.name, tuple(sizes[node.tensor.name]), node.dtype)[node.indices]

    axes = tuple(renamed[axis] for axis in compute.axes)
    output = Tensor(compute.name, tuple(axis.extent for axis in axes), compute.output.dtype)
    summed = tuple(renamed[axis] for axis in compute.reduce)
    return Compute(output, axes, transform(body, fitted), summed, compute.accum)


def small_record(record: Intrinsic) -> Intrinsic:
    """The record with long loops cut to 2 and operands in plain tiles: the same arithmetic on less.

    Composite records of one instruction whose loops are cut to the same are one small record, which is proven once.
    """
    group = lcm(RULES[record.numerics.rule].group, record.numerics.group or 1)
    extents = {
        loop.name: loop.extent if loop.extent <= _KEPT_EXTENT else group if loop.kind == "R" and group > 1 else 2
        for loop in record.loops
    }
    if extents == dict(record.extents):
        return record
    operands = tuple(replace(operand, layout="row_major") for operand in record.operands)
    small = replace(record, extents=extents, operands=operands, memory=())
    if not record.realised_by:
        return small
    return replace(
        small, name=f"{record.realised_by}.small", cost=Cost(1, 1), source="", limits=Limits(), grid=(1, 1, 1)
    )


_PROVEN: dict[object, str | None] = {}


def _differential(whole: PhysicalMapping, execute: Execute | None) -> MappingRefused | None:
    small = shrunken(whole.mapping)
    run = execute or default_execute()
    digest = compute_digest(small.match.compute)
    places = tuple(tuple(small.match.loops.index(axis) for axis in axes) for axes in small.sets)
    bound = tuple(_leaves(small.match.compute.body).index(read) for read in small.match.reads)
    for record in dict.fromkeys((small_record(whole.record), whole.record)):
        key = (digest, places, bound, record, whole.storage, whole.keep_windows, run)
        if key not in _PROVEN:
            instance = Mapping(replace(small.match, record=record), small.sets)
            _PROVEN[key] = _difference(replace(whole, mapping=instance), run)
        story = _PROVEN[key]
        if story is not None:
            return _refused("V9", whole.mapping, story, "report this: what passes V1 to V8 must not fail here")
    return None


def _difference(whole: PhysicalMapping, run: Execute) -> str | None:
    """Where a small instance differs from its node's own loop nest, in words."""
    compute = whole.match.compute
    generator = Random(0)
    bound = max(1, exact_bound(compute.output.dtype, prod(axis.size for axis in compute.reduce)))
    tensors = {
        tensor.name: small_values(tensor.dtype, static_shape(tensor.shape), generator, bound)
        for tensor in compute.inputs()
    }
    found, wanted = emulate(whole, tensors, execute=run), reference(compute, tensors)
    wrong = np.argwhere(found != wanted)
    if not len(wrong):
        return None
    point = tuple(int(index) for index in wrong[0])
    where = ", ".join(f"{axis.name} = {index}" for axis, index in zip(compute.axes, point, strict=True))
    sizes = ", ".join(f"{axis.name} = {axis.extent}" for axis in compute.loops)
    return f"with extents {sizes}, element {where} is {found[point]} instead of {wanted[point]}"


# Words


def _refused(check: str, mapping: Mapping, message: str, help: str) -> MappingRefused:
    return MappingRefused(check, message, where=f"{mapping} onto {mapping.record.name}", help=help)


def _candidates(mapping: Mapping, name: str) -> str:
    loop = next(loop for loop in mapping.record.loops if loop.name == name)
    fitting = [axis.name for axis in mapping.match.candidates(loop)]
    return f"loops that fit {name}: {', '.join(fitting) or 'none'}"


def _tensor(match: Match, row: int) -> Tensor:
    return match.reads[row].tensor if row < len(match.reads) else match.compute.output


def _constant(expr: Expr) -> Any:
    """The value of an expression of constants."""
    if isinstance(expr, Const):
        return expr.value
    if isinstance(expr, Cast):
        return dtypes.numpy_dtype(expr.dtype).type(_constant(expr.arg))
    assert isinstance(expr, Apply), "only constants are left"
    return FUNCTIONS[expr.function].numpy(*(_constant(arg) for arg in expr.args))


def _leaves(body: Expr) -> list[Read]:
    return [node for node in walk(body) if isinstance(node, Read)]
