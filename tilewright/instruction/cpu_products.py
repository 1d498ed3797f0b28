"""Products on a CPU: outer products of registers, a broadcast operand read where it is, a vector operand in panels.

Of all mappings of a compute onto ``Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]`` a kernel runs those in which one loop
is i2, the vector. Their relayouts need no kernels of their own: that of Src1 is folded into addresses, that of Src2 is
its packing into panels, which constants have had at compile time. Other loops stay outside. The mapping with the least
predicted time wins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from math import gcd, prod

from tilewright.dataclass import dataclass
from tilewright.decision import Cost, Refusal
from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import Axis, Read, static_shape
from tilewright.instruction.products import MappedProduct, is_plain, iterations, loops_of
from tilewright.intrinsics.intrinsic import Intrinsic
from tilewright.intrinsics.registry import Registry, targets_of
from tilewright.machine.description import Cpu

COPIED_LINE = 30  # cycles for each line of a copy that transposes, from L3: 20 on a Zen 3, 40 on a Zen 1


@dataclass(frozen=True, eq=False)
class CpuProducts:
    """What a CPU says about products; see `products.Target`.

    `constants` are packed when a graph is compiled; `given` are tensors that are stored as their dimensions say, and so
    are `results`.
    """

    registry: Registry
    machine: Cpu
    constants: Collection[str] = ()
    given: Collection[str] = ()
    results: Collection[str] = ()
    packs: bool = True

    def records(self, factors: tuple[Read, Read], result: str, refused: list[Refusal]) -> list[tuple[Intrinsic, ...]]:
        """The outer products of each instruction with these element types; what the machine lacks is refused."""
        inputs = factors[0].dtype, factors[1].dtype
        found: dict[str, list[Intrinsic]] = {}
        for record in self._records(result):
            if not record.realised_by or record.realised_by not in self.registry:
                continue
            if tuple(operand.dtype for operand in record.sources) in (inputs, inputs[::-1]):
                found.setdefault(record.realised_by, []).append(record)
        if not found:
            refused.append(Refusal(f"{inputs[0]} x {inputs[1]} -> {result}", "some record has these dtypes"))
        return [tuple(records) for name, records in found.items() if self._has(name, records[0], refused)]

    def lanes(self, factors: tuple[Read, Read], result: str, refused: list[Refusal]) -> Sequence[Iterable[Intrinsic]]:
        """Multiply-adds of two vectors, then of one value and a vector."""
        inputs = sorted(read.dtype for read in factors)

        def kind(vectors: bool) -> Iterator[Intrinsic]:
            for record in self._records(result):
                if record.realised_by or len(record.loops) != 1 or len(record.sources) != 2:
                    continue
                if all(operand.loops for operand in record.sources) != vectors:
                    continue
                types = sorted(operand.dtype for operand in record.sources)
                if types == inputs and self._has(record.name, record, refused):
                    yield record

        return kind(vectors=True), kind(vectors=False)

    def _records(self, result: str) -> Iterator[Intrinsic]:
        """Records for processors of this architecture, which code generation emits, with this result."""
        targets = targets_of(self.machine.architecture)
        return (record for record in self.registry.emitted(result) if record.target in targets)

    def _has(self, name: str, record: Intrinsic, refused: list[Refusal]) -> bool:
        missing = [feature for feature in record.features if feature not in self.machine.features]
        if missing:
            refused.append(Refusal(name, "the machine has its features", f"lacks {', '.join(missing)}"))
        return not missing

    def refuse(self, product: MappedProduct) -> str:
        """An instruction on groups takes neighbours of a."""
        grouped = product.group > 1 and not product.contiguous_sums
        return "a reduction loop indexes b and takes neighbours of a" if grouped else ""

    def can_pack(self, product: MappedProduct) -> bool:
        """Whether b can be packed into panels: as it is, or by a copy that gathers it and does not make it larger.

        It may become larger where the mapping was asked for.
        """
        if is_plain(product.b):
            return True
        if product.b.tensor.name in self.constants:
            return False
        return product.fixed or iterations(tuple(loops_of(product.b))) <= product.b.tensor.size

    # Order ----------------------------------------------------------------------------------------------------------

    def ordered(self, found: Sequence[MappedProduct]) -> list[MappedProduct]:
        """The least predicted time first; among equals the registry's order, then a packed constant, then the longer
        vector.
        """
        instructions = list(dict.fromkeys(each.instruction for each in found))

        def key(each: MappedProduct) -> tuple[float, int, bool, int]:
            return (
                self.cost(each).cycles or 0.0,
                instructions.index(each.instruction),
                each.b.tensor.name not in self.constants,
                -each.columns.size,
            )

        return sorted(found, key=key)

    def cost(self, product: MappedProduct) -> Cost:
        """Calls at full rate, partly filled vectors and groups included, what rows wait for that are read across lines,
        and packing and copying out at the rate at which one core has main memory, or as long as a copy that transposes.

        A variable vector operand is packed once: read and written. So is a result whose last dimension is not the
        vector, where it is stored as its dimensions say, or all but that one are dimensions of the rows (others may be
        stored as the kernel likes), and any result whose vector is not the last loop that could be.
        """
        compute, record, last = product.compute, product.records[0], product.depth[-1]
        calls = iterations([axis for axis in compute.loops if axis not in (product.columns, last)])
        calls *= -(-product.columns.size // product.lanes) * -(-last.size // product.group)
        cycles = calls * self._cycles_of_call(record)
        packed = copied = 0
        if product.b.tensor.name not in self.constants:
            in_b = loops_of(product.b)
            packed = iterations([axis for axis in compute.loops if axis in in_b]) * dtypes.size_bytes(product.b.dtype)
        if self._transposed(product) or product.columns != _last_vector(product):
            copied = compute.output.size_bytes
        cycles += min(self._across_lines(product), self._transposing(product.a.tensor.size_bytes))
        cycles += self._moving(packed) + max(self._moving(copied), self._transposing(copied))
        return Cost(cycles, bytes=2 * (packed + copied))

    def _moving(self, size_bytes: int) -> float:
        """Cycles in which one core reads and writes so many bytes of main memory."""
        return 2 * size_bytes * self.machine.nominal_clock_hz / self.machine.dram.core_bytes_per_second

    def _transposing(self, size_bytes: int) -> float:
        """Cycles of a copy of so many bytes that transposes."""
        return COPIED_LINE * size_bytes / self.machine.caches[0].line_bytes

    def _across_lines(self, product: MappedProduct) -> float:
        """Cycles in which lines of a come from the last cache, where each step of a sum reads other ones.

        Rows that walk neighbours share lines. None where L1 holds those of a tile for the next one: of a result that is
        stored as its dimensions say, in the sets that the steps of the longest sum lie in. Readers of other results
        may want their columns innermost, whatever that makes this product wait for.
        """
        last = affine(product.a.indices[-1]) if product.a.indices else None
        near = last is None or any(abs(last.coefficient(axis)) == 1 for axis in product.depth)
        if last is None or near or product.a.tensor.name not in self.given:
            return 0.0
        height, vectors = min(product.shapes, key=lambda shape: (sum(shape) / prod(shape), -shape[0]))
        lines = 1 if any(last.coefficient(axis) == 1 for axis in product.rows) else height
        first, *_, cache = self.machine.caches
        step = _bytes_apart(product.a, max(product.depth, key=lambda axis: axis.size))
        in_few_sets = product.compute.name in self.results and step and step % first.line_bytes == 0
        shared = gcd(step // first.line_bytes, first.sets) if in_few_sets else 1
        if lines * iterations(product.depth) <= first.lines_per_set * first.sets // shared:
            return 0.0
        others = iterations([axis for axis in product.compute.loops if axis != product.columns])
        tiles = -(-product.columns.size // (product.lanes * vectors))
        line_cycles = cache.line_bytes / (cache.bytes_per_cycle or self.machine.vector_bits / 8)
        return line_cycles * lines / height * others * tiles / product.group

    def _transposed(self, product: MappedProduct) -> bool:
        """Whether the result is copied because its last dimension is no vector."""
        compute = product.compute
        return product.columns != compute.axes[-1] and (len(product.rows) <= 1 or compute.name in self.results)

    def reason(self, product: MappedProduct) -> str:
        """The cost in words."""
        cost = self.cost(product)
        packed = "constant" if product.b.tensor.name in self.constants else "variable"
        moved = f", {cost.bytes:,} bytes of packing among them" if cost.bytes else ""
        calls = f"{cost.cycles:.0f} cycles of {product.instruction} at full rate{moved}"
        return f"{calls}, vectors of {product.b.tensor.name}, {packed}"

    def price(self, product: MappedProduct) -> tuple[float, int]:
        """Cycles per multiply-add, and bytes that are packed or copied out."""
        packed = 0 if product.b.tensor.name in self.constants else 2 * product.b.tensor.size_bytes
        record = product.records[0]
        copied = 2 * product.compute.output.size_bytes * self._transposed(product)
        return self._cycles_of_call(record) * prod(record.grid) / record.macs, packed + copied

    def _cycles_of_call(self, record: Intrinsic) -> float:
        """Cycles between two calls of the instruction that a micro-kernel is made of."""
        return self.machine.cycles_of(record.realised_by, record.cost.issue_cycles / prod(record.grid))


def _bytes_apart(read: Read, loop: Axis) -> int:
    """Bytes between what two steps of a loop read of a tensor that is stored as its dimensions say."""
    step, size = 0, dtypes.size_bytes(read.dtype)
    for index, extent in zip(reversed(read.indices), reversed(static_shape(read.tensor.shape)), strict=True):
        form = affine(index)
        step += 0 if form is None else form.coefficient(loop) * size
        size *= extent
    return step


def _last_vector(product: MappedProduct) -> Axis | None:
    """The last loop that could be the vector."""
    possible = loops_of(product.b).intersection((*product.outer, product.columns)) - loops_of(product.a)
    return next((axis for axis in reversed(product.compute.axes) if axis in possible), None)
