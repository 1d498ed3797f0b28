"""What the deduction sees of a GPU: limits, and its matrix intrinsics in order of preference."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import field, replace

from tilewright.dataclass import dataclass
from tilewright.errors import ScheduleError
from tilewright.instruction.mma.problem import ElementType, element_type
from tilewright.intrinsics.intrinsic import GROUP_LANES, Fragment, Intrinsic, Loop, LoopKind
from tilewright.intrinsics.registry import Registry, standard
from tilewright.machine import Gpu, Machine, resolve
from tilewright.machine.units import COPIES


@dataclass(frozen=True)
class MmaIntrinsic:
    """A record of a matrix product as a schedule sees it: shape, types, and the lanes that execute it together.

    The name is the record's first alias, with the accumulator type first and the input types last.

    >>> MmaIntrinsic(standard().find("mma_m16n8k16_f16_f32")).name
    'MMA_SYNC_F32_16x8x16_F16'
    """

    record: Intrinsic

    def __hash__(self) -> int:
        return hash(self.record)

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The names by which options may call it; schedules print the first."""
        return (*self.record.aliases, self.record.name)

    @property
    def name(self) -> str:
        return self.names[0]

    @functools.cached_property
    def m(self) -> int:
        return self._loop("S", 0).extent

    @functools.cached_property
    def n(self) -> int:
        return self._loop("S", 1).extent

    @functools.cached_property
    def k(self) -> int:
        return self._loop("R", 0).extent

    @functools.cached_property
    def a(self) -> ElementType:
        return element_type(self.record.sources[0].dtype)

    @functools.cached_property
    def b(self) -> ElementType:
        return element_type(self.record.sources[1].dtype)

    @functools.cached_property
    def c(self) -> ElementType:
        return element_type(self.record.destination.dtype)

    @functools.cached_property
    def subgroup(self) -> int:
        return GROUP_LANES[self.record.group]

    @functools.cached_property
    def distributable(self) -> bool:
        """Whether the record states which lane holds what."""
        return all(isinstance(operand.layout, Fragment) for operand in self.record.operands)

    @property
    def virtual(self) -> bool:
        """Whether it is several of another instruction, with a wider read along K."""
        return bool(self.record.realised_by)

    @functools.cached_property
    def shape(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @functools.cached_property
    def types(self) -> str:
        return f"{self.a},{self.b}->{self.c}"

    def with_n(self, n: int) -> MmaIntrinsic:
        """One of `n` columns, which no machine has, for what a schedule says of its operands."""
        return MmaIntrinsic(replace(self.record, extents={**self.record.extents, self._loop("S", 1).name: n}))

    def _loop(self, kind: LoopKind, place: int) -> Loop:
        return [loop for loop in self.record.loops if loop.kind == kind][place]


Seeds = tuple[int, int, int, int]


@dataclass(frozen=True)
class MmaTarget:
    """Limits of one GPU and its intrinsics, in order, each followed by its virtual ones.

    `warpgroup_intrinsics` are those that four subgroups execute together. `size_class_seeds` replaces the built-in
    seeds of the policy "size-classes". `tensor_core_table`: fixed tiles are known for its matrix units. `async_copies`:
    copies to shared memory take no registers, so that several buffers may be in flight.
    """

    name: str
    architecture: str
    subgroup_choices: tuple[int, ...]  # preferred first
    max_threads: int
    shared_limit: int  # bytes one workgroup may have
    load_bits: int  # widest load of one lane
    intrinsics: tuple[MmaIntrinsic, ...]
    warpgroup_intrinsics: tuple[MmaIntrinsic, ...] = ()
    vector_distribution: bool = False
    reduction_rows: bool = False
    tensor_core_table: bool = False
    async_copies: bool = False
    size_class_seeds: Mapping[str, Mapping[str, Seeds]] = field(default_factory=dict, hash=False)

    @property
    def subgroup_size(self) -> int:
        return self.subgroup_choices[0]

    @functools.cached_property
    def own_intrinsics(self) -> tuple[MmaIntrinsic, ...]:
        """Those that subgroups of the preferred size execute."""
        return tuple(each for each in self.intrinsics if each.subgroup == self.subgroup_size)

    def intrinsic(self, name: str) -> MmaIntrinsic:
        """The intrinsic of that name; raises ScheduleError if the target has none."""
        listed = (*self.intrinsics, *self.warpgroup_intrinsics)
        for each in listed:
            if name in each.names:
                return each
        legal = ", ".join(each.name for each in listed) or "none"
        raise ScheduleError(f"{self.name} has no intrinsic {name!r}", where="intrinsic", help=f"it has {legal}")


def mma_target(machine: Machine | str, registry: Registry | None = None) -> MmaTarget:
    """The target that a machine is, with those of its matrix intrinsics that are in `registry` (default: all).

    Raises ScheduleError for a machine that is no GPU, InvalidMachine for an unknown name, InvalidIntrinsic if the
    machine names an intrinsic that nobody knows.
    """
    if isinstance(machine, str):
        return _named_target(machine) if registry is None else mma_target(resolve(machine), registry)
    if not isinstance(machine, Gpu):
        raise ScheduleError(f"{machine.name} is of kind {machine.kind}, and matrix schedules are for GPUs",
                            where="machine", help="name a GPU; `tilewright machines` lists them")  # fmt: skip
    listed = list(_listed(machine, standard() if registry is None else registry))
    facts = machine.matrix_schedules
    return MmaTarget(
        machine.name, machine.architecture, machine.warp_sizes, machine.max_threads_per_block,
        machine.shared_bytes_per_block, machine.load_bits,
        tuple(each for each in listed if each.subgroup in machine.warp_sizes),
        tuple(each for each in listed if each.subgroup not in machine.warp_sizes),
        facts.vector_distribution, facts.reduction_rows, facts.tensor_core_table, COPIES in machine.features,
        {str(operation): {str(found): seeds for found, seeds in table.items()}
         for operation, table in facts.size_class_seeds.items()},
    )  # fmt: skip


def view(record: Intrinsic) -> MmaIntrinsic | None:
    """The view of a record that multiplies two matrices by a group of lanes; None for any other record."""
    kinds = sorted(loop.kind for loop in record.loops)
    if GROUP_LANES[record.group] == 1 or kinds != ["R", "S", "S"] or len(record.sources) != 2:
        return None
    return MmaIntrinsic(record)


def _listed(machine: Gpu, registry: Registry) -> Iterator[MmaIntrinsic]:
    """The views of a machine's intrinsics in its order, each followed by those of records made of it."""
    for name in machine.intrinsics:
        record = standard().find(name) if name not in registry else registry.find(name)
        if record.name not in registry:
            continue
        for each in (record, *registry.made_of(record.name)):
            if (found := view(each)) is not None:
                yield found


@functools.cache
def _named_target(name: str) -> MmaTarget:
    return mma_target(resolve(name))
