"""The one recogniser of products: which computes are sums of products that an intrinsic executes, on any machine.

A compute is matched with records of the form ``Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]`` (tiles of rows by
columns) or ``Dst[i2] += Src1[] * Src2[i2]`` (lanes). The kinds and signatures of its loops say which of them may be
rows, columns and sums: a `MappedProduct` is the mapping and these roles. Operands are read where they are, or packed: a
match whose operands would need computes of their own is refused. Nothing depends on the name of an operator.

What is particular to a machine is a `Target`: which records it offers, what its kernels cannot run, which product it
prefers. The product that it prefers most is validated (V1 to V9) before it is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import combinations
from math import prod
from typing import Any, Protocol

from tilewright.dataclass import dataclass
from tilewright.decision import ASKED, Cost, Decision, Refusal
from tilewright.expr.affine import affine, bounds
from tilewright.expr.core import Apply, Axis, Cast, Compute, Expr, Read, Tensor, static_shape
from tilewright.expr.rewrite import transform
from tilewright.fields import Readable, required, several, string
from tilewright.instruction.mapping import Mapping
from tilewright.instruction.matching import Match, match
from tilewright.instruction.validation import judge, validate
from tilewright.intrinsics.intrinsic import Intrinsic, Loop


@dataclass(frozen=True)
class MappedProduct:
    """A compute as a product: its mapping onto the first of `records`, which are of one instruction and one form.

    Any of `records` may execute it, in order of preference. With `fixed` the schedule keeps to the mapping: register
    tiles have several rows along the loops of i1 and no others, and groups of neighbours run along r1. Without, i1 has
    all loops that may be rows, r1 all sums.
    """

    mapping: Mapping
    records: tuple[Intrinsic, ...]
    compute: Compute
    fixed: bool = False

    def __str__(self) -> str:
        return f"{self.mapping} on {self.instruction}"

    @property
    def key(self) -> ProductKey:
        """What tells this product from the others of its node."""
        return ProductKey(self.instruction, self.b.tensor.name, tuple(self.mapping.loops.values()))

    # Roles of loops: those of extent 1 have none ------------------------------------------------------------------

    @cached_property
    def rows(self) -> tuple[Axis, ...]:
        """Loops that index a and the result."""
        loop = _roles(self.mapping.record).rows
        rows = () if loop is None else self.mapping.match.candidates(loop)
        return tuple(axis for axis in _live(self.compute.axes) if axis in rows)

    @cached_property
    def columns(self) -> Axis:
        """The loop of i2: on a CPU, the one that vectors run along."""
        record = self.mapping.record
        return self.mapping.sets[record.loops.index(_roles(record).columns)][0]

    @cached_property
    def depth(self) -> tuple[Axis, ...]:
        """Loops that are summed, those that index one factor alone too."""
        return _live(self.compute.reduce)

    @cached_property
    def outer(self) -> tuple[Axis, ...]:
        """Loops of the result that are not tiled: batches, groups, and columns beside the loop of i2."""
        tiled = {*self.rows, self.columns}
        return tuple(axis for axis in _live(self.compute.axes) if axis not in tiled)

    @cached_property
    def sizes(self) -> tuple[int, int, int]:
        """Points of all rows, of the columns, of all sums."""
        return iterations(self.rows), self.columns.size, iterations(self.depth)

    @cached_property
    def a(self) -> Read:
        """The factor that rows index; the node's own read, where the match has given it dimensions of extent 1."""
        return self._reads[0]

    @cached_property
    def b(self) -> Read:
        """The factor that columns index: on a CPU, the vector operand."""
        return self._reads[1]

    @cached_property
    def _reads(self) -> tuple[Read, Read]:
        return _factors(self.compute, self.mapping.match)

    # What executes it ---------------------------------------------------------------------------------------------

    @property
    def instruction(self) -> str:
        """The instruction that the records are made of."""
        return self.records[0].realised_by or self.records[0].name

    @property
    def lanes(self) -> int:
        """Elements of one register along i2."""
        record = self.records[0]
        return _roles(record).columns.extent // record.grid[1]

    @property
    def group(self) -> int:
        """Neighbours along the reduction that one instruction consumes."""
        loop = _roles(self.records[0]).depth
        return 1 if loop is None else loop.extent // self.records[0].grid[2]

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Rows and vectors of the records' accumulators."""
        return tuple(record.grid[:2] for record in self.records)

    @property
    def lane_by_lane(self) -> bool:
        """Whether both factors are vectors."""
        return all(operand.loops for operand in self.records[0].sources)

    @cached_property
    def contiguous_sums(self) -> tuple[Axis, ...]:
        """Reduction loops that index b and take neighbours along a dimension of a."""
        in_b = loops_of(self.b)
        return tuple(axis for axis in self.depth if axis in in_b and contiguous_dimension(self.a, axis) is not None)

    def variants(self) -> Iterator[MappedProduct]:
        """The fixed mappings among which the rows of the schedule choose: one or two loops of i1; for an instruction
        on groups, one loop of r1, or all where that one leaves groups partly filled.
        """
        rows, vector, every = self.mapping.sets
        near = [axis for axis in every if axis in self.contiguous_sums] if self.group > 1 else []
        sums: list[tuple[Axis, ...]] = [(axis,) for axis in near] or [every]
        if any(axis.size % self.group for axis in near) and len(every) > 1:
            sums.append(every)
        for count in (2, 1):
            for i1 in combinations(rows, min(count, len(rows))) if count <= max(len(rows), 1) else ():
                for r1 in sums:
                    yield replace(self, mapping=Mapping(self.mapping.match, (i1, vector, r1)), fixed=True)

    def running(self, rows: Collection[Axis], sums: Collection[Axis], tile: tuple[int, int]) -> MappedProduct:
        """The mapping of a schedule whose register tile, of so many rows and vectors, has several rows along the loops
        `rows`, in groups along `sums`; onto the least outer product of registers that holds the tile.

        A tile of one row walks i1 one row at a time: any loop of rows will do, and the last is taken.
        """
        own, vector, summed = self.mapping.sets
        i1 = tuple(axis for axis in own if axis in rows) or own[-1:]
        r1 = tuple(axis for axis in summed if axis in sums) or summed
        holding = [each for each in self.records if each.grid[0] >= tile[0] and each.grid[1] >= tile[1]]
        record = min(holding, key=lambda each: each.grid[0] * each.grid[1])
        return self._proven_on(record, (i1, vector, r1))

    def on(self, record: Intrinsic) -> MappedProduct:
        """The same loops on another record of the form: on that which computes the tile of a block."""
        return replace(self._proven_on(record, self.mapping.sets), records=(record,))

    def _proven_on(self, record: Intrinsic, sets: tuple[tuple[Axis, ...], ...]) -> MappedProduct:
        """The mapping that is compiled. It has passed every check, the execution of a small instance too."""
        mapping = Mapping(replace(self.mapping.match, record=record), sets)
        exact = [operand.dtype for operand in record.sources] == [read.dtype for read in mapping.match.reads]
        validate(mapping, "signature", exact=exact)
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
        """The key in what a plan notes about a product, `MappedProduct.to_json`."""
        return cls.from_json({name: product[name] for name in ("instruction", "vector", "loops")})


#: Chooses among the fixed mappings of a node; None leaves it to the target's order.
ChooseMapping = Callable[[Compute, Sequence[MappedProduct]], MappedProduct | None]
#: A product, or None, and why.
Found = tuple[MappedProduct | None, Decision | None]
#: The mappings of a compute, preferred first, and what was refused.
Mappings = tuple[tuple[MappedProduct, ...], tuple[Refusal, ...]]


class Target(Protocol):
    """What a machine says about products."""

    @property
    def packs(self) -> bool:
        """Whether operands are packed before the product, by kernels that may compute them as well."""
        ...

    def records(self, factors: tuple[Read, Read], result: str, refused: list[Refusal]) -> list[tuple[Intrinsic, ...]]:
        """For every instruction that takes these types the records that are made of it, preferred first."""
        ...

    def lanes(self, factors: tuple[Read, Read], result: str, refused: list[Refusal]) -> Sequence[Iterable[Intrinsic]]:
        """Kinds of records that multiply lane by lane, each in order of preference; of a kind the first that applies
        is taken.
        """
        ...

    def refuse(self, product: MappedProduct) -> str:
        """The rule by which kernels of this machine cannot run a product; "" where they can."""
        ...

    def ordered(self, found: Sequence[MappedProduct]) -> list[MappedProduct]:
        """The products of a node, preferred first."""
        ...

    def can_pack(self, product: MappedProduct) -> bool:
        """Whether b can be brought into the order in which the kernel reads it."""
        ...

    def reason(self, product: MappedProduct) -> str:
        """Why a product has its place in that order."""
        ...

    def cost(self, product: MappedProduct) -> Cost | None:
        """The numbers behind the order, where there are any."""
        ...

    def price(self, product: MappedProduct) -> tuple[float, int] | None:
        """Cycles per multiply-add, and bytes that are packed for it; None where no instruction does it."""
        ...


def mappings_of(compute: Compute, target: Target) -> Mappings:
    """Every mapping with which a compute may run as a product, preferred first, and what was refused.

    Not all of them can be packed, and not all are proven.
    """
    factors = product_factors(compute)
    if factors is None or any(axis.extent == 0 for axis in compute.loops):
        return (), ()
    refused: list[Refusal] = []
    offered = target.records(factors, compute.output.dtype, refused)
    found = [each for records in offered for each in _candidates(compute, records, target, refused)]
    return tuple(target.ordered(found)), tuple(refused)


def find_product(
    compute: Compute, target: Target, choose: ChooseMapping | None = None, mappings: Mappings | None = None
) -> Found:
    """The mapping with which a compute runs as a product, and the decision: what came second, what was refused.

    No decision for a compute that is no sum of products. `choose` is asked first, for a mapping onto the instruction of
    the best. `mappings` are those of `mappings_of`, where they are known.
    """
    factors = product_factors(compute)
    if factors is None or any(axis.extent == 0 for axis in compute.loops):
        return None, None
    found, reasons = mappings_of(compute, target) if mappings is None else mappings
    refused, subject = [*reasons], f"instruction of {compute.name}"
    ranked = [each for each in found if target.can_pack(each)]
    refused += [Refusal(str(each), f"{each.b.tensor.name} can be packed") for each in found if each not in ranked]
    if choose is not None and found:
        best = (ranked or found)[0]
        same = [variant for each in found if each.records is best.records for variant in each.variants()]
        asked = choose(compute, [variant for variant in same if target.can_pack(variant)])
        if asked is not None:
            cost, other = target.cost(asked), target.cost(best)
            why = target.reason(best)
            return asked, Decision(subject, str(asked), ASKED, str(best), why, cost=cost, runner_up_cost=other)
    for number, chosen in enumerate(ranked):
        verdict = judge(chosen.mapping, "signature", differential=True)
        if verdict.refusal is not None:
            refused.append(Refusal(str(chosen), verdict.refusal.check, verdict.refusal.message))
            continue
        second = ranked[number + 1] if number + 1 < len(ranked) else None
        return chosen, Decision(
            subject,
            str(chosen),
            target.reason(chosen),
            "" if second is None else f"{second} with vectors of {second.b.tensor.name}",
            "" if second is None else target.reason(second),
            tuple(dict.fromkeys(refused)),
            target.cost(chosen),
            None if second is None else target.cost(second),
        )
    why = "no record has a mapping that reads its operands where they are"
    return None, Decision(subject, "none", why, refused=tuple(dict.fromkeys(refused)))


def is_proven(product: MappedProduct) -> bool:
    """Whether a mapping passes every check."""
    return judge(product.mapping, "signature", differential=True).refusal is None


def find_lanes(compute: Compute, target: Target) -> tuple[list[MappedProduct], list[Refusal]]:
    """The mappings of a compute onto records that multiply its factors lane by lane, and what was refused.

    Depthwise convolutions and the like have no loop for the rows of an outer product. Where their channel is innermost
    it is the lane of ``Dst[i] += Src1[i] * Src2[i]``; where their pixels are, these are the lanes of
    ``Dst[i] += Src1[] * Src2[i]``. First those in which both factors are vectors; one for each loop that may be lanes,
    the last loop first.
    """
    factors, refused = product_factors(compute), list[Refusal]()
    if factors is None or any(axis.extent == 0 for axis in compute.loops):
        return [], refused
    found: list[MappedProduct] = []
    for kind in target.lanes(factors, compute.output.dtype, refused):
        for record in kind:
            lanes = list(_candidates(compute, (record,), target, refused))
            if lanes:
                found += (each for each in lanes if each.mapping.match == lanes[0].mapping.match)
                break
    return found, refused


def decide_lanes(
    found: Sequence[MappedProduct], order: Sequence[int], refused: Sequence[Refusal]
) -> tuple[MappedProduct, Decision] | None:
    """The mapping for a result that is stored in `order` (dimensions, innermost last), and why; None if no mapping is
    proven whose lanes are the innermost dimension.
    """
    for each in found:
        axes = [each.compute.axes[dim] for dim in order if each.compute.axes[dim].extent != 1]
        if not axes or axes[-1] != each.columns or judge(each.mapping, "signature", differential=True).refusal:
            continue
        indexed = "both factors" if each.lane_by_lane else "one factor"
        reason = f"the loop indexes {indexed} and is innermost in the result"
        return each, Decision(f"instruction of {each.compute.name}", str(each), reason, refused=tuple(refused))
    return None


# Reading a compute ----------------------------------------------------------------------------------------------------


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
        if not isinstance(inner, Read) or any(affine(index) is None for index in inner.indices):
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


def contiguous_dimension(read: Read, loop: Axis) -> int | None:
    """The dimension where a loop takes neighbours: with coefficient 1, those of others being multiples of its size."""
    for dim, index in enumerate(read.indices):
        form = affine(index)
        if form is None or form.coefficient(loop) != 1:
            continue
        if all(step % loop.size == 0 for axis, step in form.terms.items() if axis != loop):
            return dim
    return None


def is_plain(read: Read) -> bool:
    """Whether every index is one loop over its whole dimension (0 where that has extent 1), each loop used once."""
    loops: list[Axis] = []
    for index, extent in zip(read.indices, static_shape(read.tensor.shape), strict=True):
        form = affine(index)
        if form is None or form.constant:
            return False
        if extent == 1 and not form.terms:
            continue
        if list(form.terms.values()) != [1] or any(axis.extent != extent for axis in form.terms):
            return False
        loops.extend(form.terms)
    return len(set(loops)) == len(loops)


def iterations(axes: Sequence[Axis]) -> int:
    """Iterations of loops together."""
    return prod(axis.size for axis in axes)


def _live(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    return tuple(axis for axis in axes if axis.extent != 1)


# Candidates -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Roles:
    """The loops of a record by what they are for; lanes have columns alone."""

    rows: Loop | None
    columns: Loop
    depth: Loop | None


def _roles(record: Intrinsic) -> _Roles:
    *rows, columns = (loop for loop in record.loops if loop.kind == "S")
    sums = [loop for loop in record.loops if loop.kind == "R"]
    return _Roles(rows[0] if rows else None, columns, sums[0] if sums else None)


def _candidates(
    compute: Compute, records: tuple[Intrinsic, ...], target: Target, refused: list[Refusal]
) -> Iterator[MappedProduct]:
    """The mappings onto the first of `records` that a kernel can run, for both orders of the factors, one for each loop
    that may be columns, the last one first.
    """
    record = records[0]
    roles, matches = _roles(record), _matches(compute, record)
    if not matches:
        refused.append(Refusal(record.name, "its expression is that of the node"))
    for each in matches:
        if each.canonical.before and not each.canonical.units:
            refused.append(Refusal(record.name, "operands are read where they are"))
            continue
        bound = f"{record.name} with b = {_factors(compute, each)[1].tensor.name}"
        sets = {loop: each.candidates(loop) for loop in record.loops}
        wide = [axis for axis in _live(compute.axes) if axis in sets[roles.columns]]
        if not wide:
            refused.append(Refusal(bound, _columns_rule(record)))
            continue
        for loop, axes in sets.items():  # a loop of extent 1 where there are no others
            sets[loop] = _live(axes) or axes[:1]
        for columns in reversed(wide):
            sets[roles.columns] = (columns,)
            product = MappedProduct(Mapping(each, tuple(sets[loop] for loop in record.loops)), records, compute)
            rule = (_refuse_sums(product) if roles.depth is not None else "") or target.refuse(product)
            if rule:
                refused.append(Refusal(bound, rule))
            else:
                yield product


def _refuse_sums(product: MappedProduct) -> str:
    """The rule about sums that a product breaks on every machine; "" where it breaks none."""
    if not product.depth:
        return "there is something to sum"
    indexed = loops_of(product.a) | loops_of(product.b)
    return "" if indexed.issuperset(product.depth) else "every reduction loop indexes an operand"


def _columns_rule(record: Intrinsic) -> str:
    """In words, which loop a record needs for its lanes."""
    loop = _roles(record).columns.name
    indexed = [name for name, operand in zip("ab", record.sources, strict=True) if loop in operand.loops]
    return "a loop indexes both factors and the result" if len(indexed) > 1 else "a loop indexes b and the result alone"


def _factors(compute: Compute, found: Match) -> tuple[Read, Read]:
    """The node's own reads of a and b."""
    factors = product_factors(compute)
    assert factors is not None, "a match of a product has two factors"
    return factors[::-1] if found.swapped else factors


@lru_cache(maxsize=1024)
def _matches(compute: Compute, record: Intrinsic) -> tuple[Match, ...]:
    return match(_with_borders(compute), record, commute=True, complete=True)


def _with_borders(compute: Compute) -> Compute:
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
