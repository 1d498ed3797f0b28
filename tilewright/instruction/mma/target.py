"""What the deduction sees of a GPU: limits, and its matrix intrinsics in order of preference."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Final

from tilewright.dataclass import dataclass
from tilewright.errors import ScheduleError
from tilewright.instruction.mma.problem import ElementType, element_type
from tilewright.intrinsics.intrinsic import Fragment, Intrinsic
from tilewright.intrinsics.registry import Registry, standard
from tilewright.machine import Gpu, Machine, resolve

_LANES: Final = {"warp32": 32, "wave32": 32, "wave64": 64, "warpgroup128": 128}  # by the group of a record


@dataclass(frozen=True)
class MmaIntrinsic:
    """The view of a matrix record that a schedule needs: shape, types, and the lanes that execute it together.

    The name is the record's alias, with the accumulator type first and the input types last. `distributable` is False
    where the record leaves open which lane holds what; `virtual_of` names the instruction of which several make up this
    one, with a wider read along K.
    """

    name: str
    m: int
    n: int
    k: int
    a: ElementType
    b: ElementType
    c: ElementType
    subgroup: int
    distributable: bool = True
    virtual_of: str | None = None

    def __hash__(self) -> int:
        return hash(self.name)

    @functools.cached_property
    def shape(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @functools.cached_property
    def types(self) -> str:
        return f"{self.a},{self.b}->{self.c}"


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
            if each.name == name:
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
        facts.vector_distribution, facts.reduction_rows, facts.tensor_core_table, "cp_async" in machine.features,
        {str(operation): {str(found): seeds for found, seeds in table.items()}
         for operation, table in facts.size_class_seeds.items()},
    )  # fmt: skip


def view(record: Intrinsic, parent: Intrinsic | None = None) -> MmaIntrinsic | None:
    """The view of a record that multiplies two matrices by a group of lanes; None for any other record.

    >>> view(standard().find("mma_m16n8k16_f16_f32")).name
    'MMA_SYNC_F32_16x8x16_F16'
    """
    spatial = [loop for loop in record.loops if loop.kind == "S"]
    reductions = [loop for loop in record.loops if loop.kind == "R"]
    if record.group not in _LANES or (len(spatial), len(reductions), len(record.sources)) != (2, 1, 2):
        return None
    a, b, c = (element_type(operand.dtype) for operand in record.operands)
    known = all(isinstance(operand.layout, Fragment) for operand in record.operands)
    return MmaIntrinsic(
        schedule_name(record), spatial[0].extent, spatial[1].extent, reductions[0].extent, a, b, c,
        _LANES[record.group], known, None if parent is None else schedule_name(parent),
    )  # fmt: skip


def _listed(machine: Gpu, registry: Registry) -> Iterator[MmaIntrinsic]:
    """The views of a machine's intrinsics in its order, each followed by those of records made of it."""
    for name in machine.intrinsics:
        record = standard().find(name) if name not in registry else registry.find(name)
        if record.name not in registry:
            continue
        made_of_it = [each for each in registry if each.realised_by == record.name]
        for found in (view(record), *(view(each, record) for each in made_of_it)):
            if found is not None:
                yield found


def schedule_name(record: Intrinsic) -> str:
    """What schedules call a record: its first alias, if it has one."""
    return record.aliases[0] if record.aliases else record.name


@functools.cache
def _named_target(name: str) -> MmaTarget:
    return mma_target(resolve(name))
