"""Products that a CPU runs in place: a mapping onto an outer product of registers, with operands read where they are.

Of all mappings of a compute onto ``Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]``, a kernel can run those in which one
loop is i2, the vector. Their relayouts need no kernels of their own: that of Src1 is folded into addresses, that of
Src2 is its packing into panels, which constants have had at compile time. Other loops stay outside. The mapping with
the least predicted time wins; nothing depends on an operator's name.

`find_product` decides which loops may be rows, vector and sums. The schedule then decides along which rows the register
tile extends, and `InPlace.running` is the mapping that this makes: it is proven before it is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from math import prod
from typing import Any

from tilewright.dataclass import dataclass
from tilewright.decision import ASKED, Cost, Decision, Refusal
from tilewright.expr import dtypes
from tilewright.expr.affine import affine, bounds
from tilewright.expr.core import Apply, Axis, Cast, Compute, Expr, Read, Tensor, static_shape
from tilewright.expr.rewrite import transform
from tilewright.fields import Readable, required, several, string
from tilewright.instruction.mapping import Mapping
from tilewright.instruction.matching import Match, match
from tilewright.instruction.validation import judge
from tilewright.intrinsics.intrinsic import Intrinsic
from tilewright.intrinsics.registry import Registry, targets_of
from tilewright.machine.description import Cpu


@dataclass(frozen=True)
class InPlace:
    """A mapping as a kernel runs it: `a` is broadcast, `b` is the vector operand, `kernels` are the outer products of
    registers that may execute it, in order of preference; all are made of one instruction.

    With `fixed` the schedule keeps to the mapping: register tiles have several rows along the loops of i1 and no
    others, and groups of neighbours run along r1. Without, i1 has all loops that may be rows, r1 all sums.
    """

    mapping: Mapping
    kernels: tuple[Intrinsic, ...]
    compute: Compute
    outer: tuple[Axis, ...]
    m_loops: tuple[Axis, ...]
    n_loop: Axis
    k_loops: tuple[Axis, ...]
    a: Read
    b: Read
    fixed: bool = False

    def __str__(self) -> str:
        return f"{self.mapping} on {self.instruction}"

    @property
    def key(self) -> ProductKey:
        """What tells this product from the others of its node."""
        return ProductKey(self.instruction, self.b.tensor.name, tuple(self.mapping.loops.values()))

    @property
    def instruction(self) -> str:
        """The instruction that the kernels are made of."""
        return self.kernels[0].realised_by or self.kernels[0].name

    @property
    def lanes(self) -> int:
        """Elements of one register along i2."""
        return self.kernels[0].extents["i2"] // self.kernels[0].grid[1]

    @property
    def group(self) -> int:
        """Neighbours along the reduction that one instruction consumes."""
        return self.kernels[0].extents["r1"] // self.kernels[0].grid[2]

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Rows and vectors of the kernels' accumulators."""
        return tuple(kernel.grid[:2] for kernel in self.kernels)

    def variants(self) -> Iterator[InPlace]:
        """The fixed mappings among which the rows of the schedule choose: one or two loops of i1; for an instruction
        on groups, one loop of r1, or all where that one leaves groups partly filled.
        """
        rows, vector, every = self.mapping.sets
        walked = [axis for axis in every if axis in _walked(self.k_loops, self.a, self.b)] if self.group > 1 else []
        sums: list[tuple[Axis, ...]] = [(axis,) for axis in walked] or [every]
        if any(axis.size % self.group for axis in walked) and len(every) > 1:
            sums.append(every)
        for count in (2, 1):
            for i1 in combinations(rows, min(count, len(rows))) if count <= max(len(rows), 1) else ():
                for r1 in sums:
                    yield replace(self, mapping=Mapping(self.mapping.match, (i1, vector, r1)), fixed=True)

    def running(self, rows: Collection[Axis], sums: Collection[Axis], tile: tuple[int, int]) -> InPlace:
        """The mapping of a schedule whose register tile, of so many rows and vectors, has several rows along the loops
        `rows`, in groups along `sums`; onto the least outer product of registers that holds the tile.

        A tile of one row walks i1 one row at a time: any loop of rows will do, and the last is taken.
        """
        own, vector, summed = self.mapping.sets
        i1 = tuple(axis for axis in own if axis in rows) or own[-1:]
        r1 = tuple(axis for axis in summed if axis in sums) or summed
        holding = [each for each in self.kernels if each.grid[0] >= tile[0] and each.grid[1] >= tile[1]]
        kernel = min(holding, key=lambda each: each.grid[0] * each.grid[1])
        mapping = Mapping(replace(self.mapping.match, record=kernel), (i1, vector, r1))
        return replace(self, mapping=mapping, fixed=True)

    def to_json(self) -> dict[str, Any]:
        """The mapping as data: record, operands, loops of the record's loops, loops outside."""
        return {
            **self.key.to_json(),
            "record": self.mapping.record.name,
            "broadcast": self.a.tensor.name,
            "outer": [axis.name for axis in self.mapping.outer],
        }


@dataclass(frozen=True)
class ProductKey(Readable):
    """A product of a node by names: instruction, tensor that is read as vectors, loops of every intrinsic loop."""

    instruction: str = required(string)
    vector: str = required(string)
    loops: tuple[tuple[str, ...], ...] = required(several(several(string)))

    def __str__(self) -> str:
        blank = " " if any(len(name) > 1 for names in self.loops for name in names) else ""
        return f"({'|'.join(blank.join(names) for names in self.loops)}) on {self.instruction}"

    @classmethod
    def of(cls, product: dict[str, Any]) -> ProductKey:
        """The key in what a plan notes about a product, `InPlace.to_json`."""
        return cls.from_json({name: product[name] for name in ("instruction", "vector", "loops")})


#: Chooses among the fixed mappings of a node; None leaves it to the predicted times.
ChooseMapping = Callable[[Compute, Sequence[InPlace]], InPlace | None]


def product_factors(compute: Compute) -> tuple[Read, Read] | None:
    """The two reads whose product a compute sums, casts to the accumulator's type looked through.

    None for other bodies.
    """
    if compute.accum != "sum":
        return None
    body = compute.body
    if not (isinstance(body, Apply) and body.function == "mul"):
        return None
    factors = []
    for factor in body.args:
        inner = factor.arg if isinstance(factor, Cast) else factor
        if not isinstance(inner, Read) or not all(_is_affine(index) for index in inner.indices):
            return None
        factors.append(inner)
    return factors[0], factors[1]


def loops_of(read: Read) -> set[Axis]:
    """Loops with a non-zero coefficient in some index of an affine read."""
    found: set[Axis] = set()
    for index in read.indices:
        form = affine(index)
        if form is not None:
            found.update(form.terms)
    return found


def find_product(
    compute: Compute,
    registry: Registry,
    machine: Cpu,
    constants: Collection[str],
    packable: Callable[[InPlace], bool],
    choose: ChooseMapping | None = None,
) -> tuple[InPlace | None, Decision | None]:
    """The mapping with which a compute runs as a product, and the decision: what came second, what was refused.

    Records that the machine lacks the features for are refused. Of the others' mappings that run in place the one with
    the least predicted time is taken, in the registry's order where times are equal. `packable` says whether the vector
    operand of a mapping can be packed. `choose` is asked first, for a mapping onto the instruction of the best.
    """
    factors = product_factors(compute)
    if factors is None or any(axis.extent == 0 for axis in compute.loops):
        return None, None
    refused: list[Refusal] = []
    subject = f"instruction of {compute.name}"
    found: list[InPlace] = []  # in the registry's order, and for an instruction by preference
    for kernels in _instructions(registry, machine, factors, compute.output.dtype, refused):
        found += sorted(_in_place(compute, kernels, refused), key=lambda each: _preference(each, constants))
    found.sort(key=lambda each: _cost(each, machine, constants).cycles or 0.0)
    ranked = [each for each in found if packable(each)]
    refused += [Refusal(str(each), f"{each.b.tensor.name} can be packed") for each in found if not packable(each)]
    if choose is not None and found:
        best = (ranked or found)[0]
        same = [variant for each in found if each.kernels is best.kernels for variant in each.variants()]
        asked = choose(compute, [variant for variant in same if packable(variant)])
        if asked is not None:
            why, cost = _reason(best, machine, constants), _cost(best, machine, constants)
            own = _cost(asked, machine, constants)
            return asked, Decision(subject, str(asked), ASKED, str(best), why, cost=own, runner_up_cost=cost)
    for number, chosen in enumerate(ranked):
        verdict = judge(chosen.mapping, "signature", differential=True)
        if verdict.refusal is not None:
            refused.append(Refusal(str(chosen), verdict.refusal.check, verdict.refusal.message))
            continue
        second = ranked[number + 1] if number + 1 < len(ranked) else None
        return chosen, Decision(
            subject,
            str(chosen),
            _reason(chosen, machine, constants),
            "" if second is None else f"{second} with vectors of {second.b.tensor.name}",
            "" if second is None else _reason(second, machine, constants),
            tuple(dict.fromkeys(refused)),
            _cost(chosen, machine, constants),
            None if second is None else _cost(second, machine, constants),
        )
    why = "no record has a mapping that runs in place"
    return None, Decision(subject, "none", why, refused=tuple(dict.fromkeys(refused)))


def _is_affine(index: Expr) -> bool:
    return affine(index) is not None


# Candidates -----------------------------------------------------------------------------------------------------------


def _instructions(
    registry: Registry, machine: Cpu, factors: tuple[Read, Read], result: str, refused: list[Refusal]
) -> Iterator[tuple[Intrinsic, ...]]:
    """The outer products of each instruction with these element types; what the machine lacks is refused."""
    inputs = tuple(read.dtype for read in factors)
    found: dict[str, list[Intrinsic]] = {}
    targets = targets_of(machine.architecture)
    for record in registry:
        if not (record.realised_by and record.emitter and record.target in targets):
            continue
        if record.destination.dtype != result:
            continue
        types = tuple(operand.dtype for operand in record.sources)
        if types not in (inputs, inputs[::-1]) or record.realised_by not in registry:
            continue
        found.setdefault(record.realised_by, []).append(record)
    for name, kernels in found.items():
        missing = [feature for feature in kernels[0].features if feature not in machine.features]
        if missing:
            refused.append(Refusal(name, "the machine has its features", f"lacks {', '.join(missing)}"))
            continue
        yield tuple(kernels)
    if not found:
        refused.append(Refusal(f"{inputs[0]} x {inputs[1]} -> {result}", "some record has these dtypes"))


def _in_place(compute: Compute, kernels: tuple[Intrinsic, ...], refused: list[Refusal]) -> Iterator[InPlace]:
    """The mappings onto the first of `kernels` that run in place, for both orders of the factors."""
    record = kernels[0]
    found = _matches(compute, record)
    if not found:
        refused.append(Refusal(record.name, "its expression is that of the node"))
    for each in found:
        if each.canonical.before and not each.canonical.units:
            refused.append(Refusal(record.name, "operands are read where they are"))
            continue
        rows, vectors, reductions = (each.candidates(loop) for loop in record.loops)
        a, b = (_read_of(each, compute, number) for number in range(2))
        bound = f"{record.name} with b = {b.tensor.name}"
        live = [axis for axis in compute.axes if axis.extent != 1]
        k_loops = tuple(axis for axis in compute.reduce if axis.extent != 1)
        if not loops_of(a) | loops_of(b) >= set(k_loops):
            refused.append(Refusal(bound, "every reduction loop indexes an operand"))
            continue
        if not k_loops:
            refused.append(Refusal(record.name, "there is something to sum"))
            continue
        wide = [axis for axis in vectors if axis in live]
        if not wide:
            refused.append(Refusal(bound, "no loop indexes b and the output only, so no vector"))
            continue
        group = record.extents["r1"] // record.grid[2]
        if group > 1 and not _walked(k_loops, a, b):
            refused.append(Refusal(record.name, "a reduction loop indexes b and walks neighbours of a"))
            continue
        m_loops = tuple(axis for axis in live if axis in rows)
        sums = tuple(axis for axis in reductions if axis in k_loops) or reductions[:1]
        for vector in reversed(wide):
            outside = tuple(axis for axis in live if axis not in m_loops and axis != vector)
            mapping = Mapping(each, (m_loops or rows[:1], (vector,), sums))
            yield InPlace(mapping, kernels, compute, outside, m_loops, vector, k_loops, a, b)


@lru_cache(maxsize=1024)
def _matches(compute: Compute, record: Intrinsic) -> tuple[Match, ...]:
    return match(with_borders(compute), record, commute=True, complete=True)


def with_borders(compute: Compute) -> Compute:
    """The compute reading tensors that include the borders it reaches into."""

    def moved(node: Expr) -> Expr | None:
        if not isinstance(node, Read):
            return None
        reach = [tuple(int(limit) for limit in bounds(index)) for index in node.indices]
        shape = static_shape(node.tensor.shape)
        before = [max(0, -low) for low, _ in reach]
        sizes = [max(extent, high + 1) + shift for (_, high), extent, shift in zip(reach, shape, before, strict=True)]
        if tuple(sizes) == shape:
            return None
        wider = Tensor(node.tensor.name, tuple(sizes), node.dtype)
        return Read(wider, tuple(index + shift for index, shift in zip(node.indices, before, strict=True)))

    return replace(compute, body=transform(compute.body, moved))


def _read_of(found: Match, compute: Compute, number: int) -> Read:
    """The node's own read behind a bound operand (a match may have given it dimensions of extent 1)."""
    factors = product_factors(compute)
    assert factors is not None
    return factors[1 - number] if found.swapped else factors[number]


def _walked(reduce: Sequence[Axis], a: Read, b: Read) -> list[Axis]:
    """Reduction loops that index b and walk neighbours along a dimension of a."""
    in_b = loops_of(b)
    return [axis for axis in reduce if axis in in_b and walked_dimension(a, axis) is not None]


def walked_dimension(read: Read, loop: Axis) -> int | None:
    """The dimension in which a loop walks neighbours: with coefficient 1, others there stepping over all of its run."""
    for dim, index in enumerate(read.indices):
        form = affine(index)
        if form is None or form.coefficient(loop) != 1:
            continue
        if all(step % loop.size == 0 for axis, step in form.terms.items() if axis != loop):
            return dim
    return None


# Order ----------------------------------------------------------------------------------------------------------------


def _preference(product: InPlace, constants: Collection[str]) -> tuple[bool, int]:
    """Among equal times: a packed constant, then the longer vector."""
    return product.b.tensor.name not in constants, -product.n_loop.size


def _is_last(product: InPlace) -> bool:
    """Whether the vector is the last loop that could be."""
    possible = loops_of(product.b).intersection((*product.outer, product.n_loop)) - loops_of(product.a)
    loops = [axis for axis in product.compute.axes if axis in possible]
    return loops[-1:] == [product.n_loop]


def _cost(product: InPlace, machine: Cpu, constants: Collection[str]) -> Cost:
    """Calls at full rate, partly filled vectors and groups included, and bytes of packing and copying out at the rate
    of main memory.

    A variable vector operand is packed once: read and written. So is a result whose last dimension is not the vector,
    where all but that one are dimensions of the rows (others may be stored as the kernel likes), and any result whose
    vector is not the last loop that could be.
    """
    lanes, group, loops = product.lanes, product.group, product.compute.loops
    last = product.k_loops[-1] if product.k_loops else None
    points = prod(axis.size for axis in loops if axis != product.n_loop and axis != last)
    vectors = -(-product.n_loop.size // lanes)
    steps = -(-last.size // group) if last is not None else 1
    base = product.kernels[0]
    accumulators = base.grid[0] * base.grid[1] * base.grid[2]
    cycles = points * vectors * steps * base.cost.issue_cycles / accumulators
    moved = 0
    if product.b.tensor.name not in constants:
        in_b = loops_of(product.b)
        moved += 2 * prod(axis.size for axis in loops if axis in in_b) * _bytes(product.b.dtype)
    if (product.n_loop != product.compute.axes[-1] and len(product.m_loops) <= 1) or not _is_last(product):
        moved += 2 * product.compute.output.size * _bytes(product.compute.output.dtype)
    return Cost(cycles + moved * machine.nominal_clock_hz / machine.dram.bytes_per_second, bytes=moved)


def _reason(product: InPlace, machine: Cpu, constants: Collection[str]) -> str:
    cost = _cost(product, machine, constants)
    packed = "constant" if product.b.tensor.name in constants else "variable"
    moved = f", {cost.bytes:,} bytes of packing among them" if cost.bytes else ""
    calls = f"{cost.cycles:.0f} cycles of {product.instruction} at full rate{moved}"
    return f"{calls}, vectors of {product.b.tensor.name}, {packed}"


def _bytes(dtype: str) -> int:
    return dtypes.size_bytes(dtype)
