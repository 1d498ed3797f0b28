"""The smallest tile of each loop that an instruction runs: what level 1 asks for (`graph.chain.solve.Quanta`).

It is read from the record that executes a product on the machine: its rows, its columns, its sums. Spec 1, section
3.12: 6 rows and 64 columns for vectors of 16 floats, 16 of everything for matrix instructions of that shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilewright.dataclass import dataclass
from tilewright.expr.core import Axis, Compute
from tilewright.instruction.cpu_products import CpuProducts
from tilewright.instruction.gpu_products import GpuProducts
from tilewright.instruction.products import MappedProduct, find_product
from tilewright.intrinsics.intrinsic import Intrinsic
from tilewright.intrinsics.registry import Registry, standard
from tilewright.machine.description import Cpu, Gpu, Machine


@dataclass(frozen=True, eq=False)
class MachineQuanta:
    """Quanta of products on a machine; `registry` has the records (default: the standard ones)."""

    machine: Machine
    registry: Registry | None = None

    def quanta(self, compute: Compute) -> Mapping[str, int]:
        """The tile of the best record for a compute, by axis; empty for what no instruction of the machine runs.

        Of several loops that may be rows, or sums, the innermost one has the tile.
        """
        registry = standard() if self.registry is None else self.registry
        if isinstance(self.machine, Cpu):
            product, _ = find_product(compute, CpuProducts(registry, self.machine))
            record = None if product is None else product.records[0]
        elif isinstance(self.machine, Gpu):
            product, _ = find_product(compute, GpuProducts(self.machine, self.registry))
            record = None if product is None else self._matrix_record(product, registry)
        else:
            return {}
        return {} if product is None or record is None else dict(_tile(product, record))

    def _matrix_record(self, product: MappedProduct, registry: Registry) -> Intrinsic | None:
        """The first instruction that the machine lists for the types of a product, of rows, columns and sums."""
        types = {read.dtype for read in (product.a, product.b)}
        for name in self.machine.intrinsics:
            record = registry.find(name)
            if {operand.dtype for operand in record.sources} == types and len(record.loops) == 3:
                return record
        return None


def _tile(product: MappedProduct, record: Intrinsic) -> Iterator[tuple[str, int]]:
    """Axes with their extents in one call."""
    rows, columns = (loop.extent for loop in record.loops if loop.kind == "S")
    sums = next(loop.extent for loop in record.loops if loop.kind == "R")
    roles: tuple[tuple[tuple[Axis, ...], int], ...] = (
        (product.rows, rows), ((product.columns,), columns), (product.depth, sums),
    )  # fmt: skip
    for axes, extent in roles:
        if axes:
            yield axes[-1].name, extent
