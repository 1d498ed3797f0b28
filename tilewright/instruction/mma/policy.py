"""How a deduction goes about it: the switches of a policy, the options of a call, the flags and seeds of an attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Final, Literal, Protocol

from tilewright.dataclass import dataclass
from tilewright.errors import ScheduleError, nearest
from tilewright.instruction.mma.problem import MmaProblem, Sizes, bits
from tilewright.instruction.mma.schedule import MmaSchedule
from tilewright.instruction.mma.target import MmaTarget
from tilewright.options import DOCUMENTED_MMA, OPAQUE_MMA, MmaFamily

CACHE_LINE_BITS = 1024  # 128 bytes, which a staged slice of a row should fill


class CostModel(Protocol):
    """A prediction of the time of one scheduled product; what is below level 3 passes it in."""

    def seconds(self, problem: MmaProblem, schedule: MmaSchedule, target: MmaTarget) -> float:
        """Predicted time of the whole product."""
        ...


@dataclass(frozen=True, slots=True)
class Switches:
    """What a deduction policy does differently from "iree-3.6"; each can be set alone with `dataclasses.replace`.

    `observed_transposes` (D1): the first vector-distribution attempt sees the transpositions. `next_intrinsic` (D2): if
    a schedule cannot be made to fit, the next eligible intrinsic is tried. `own_width` (D3): loads of the lhs are
    counted in its own type. `tf_upcast` (D4): tile-and-fuse may accumulate in a wider type. `pad_to_seed` (D5): an
    unaligned problem is padded to whole seeds where that costs at most an eighth. D6 is `Options.stages`, D7 is
    `Options.cost`. `own_rows`: the table of tensor-core tiles has rows beyond IREE's. `size_classes`: seeds and
    distribution by arithmetic intensity.
    """

    name: str = "iree-3.6"
    observed_transposes: bool = False
    next_intrinsic: bool = False
    own_width: bool = False
    tf_upcast: bool = False
    pad_to_seed: bool = False
    own_rows: bool = False
    size_classes: bool = False


POLICIES: Final[Mapping[str, Switches]] = {
    "tilewright": Switches(
        "tilewright", observed_transposes=True, next_intrinsic=True, own_width=True, tf_upcast=True, own_rows=True
    ),
    "iree-3.6": Switches("iree-3.6"),
    "size-classes": Switches("size-classes", size_classes=True),
}


def switches_of(policy: str | Switches) -> Switches:
    """The switches of a policy by name; raises ScheduleError for another name."""
    if isinstance(policy, Switches):
        return policy
    found = POLICIES.get(policy)
    if found is None:
        raise ScheduleError(f"there is no policy {policy!r}", where="policy", help=f"one of {', '.join(POLICIES)}")
    return found


@dataclass(frozen=True, slots=True)
class ScheduleSeeds:
    """What a workgroup should have: subgroups, intrinsic tiles of M times N per subgroup, depth of a staged slice.

    The depth is `k_elements` if that is not zero, else `k_tiles` intrinsics.
    """

    subgroups: int
    mn_tiles: int
    k_tiles: int
    k_elements: int = 0


@dataclass(frozen=True, slots=True)
class Policy:
    """The flags of one attempt.

    `aligned_only`: the innermost sizes must be multiples of the intrinsic's. `upcast_acc`: the hardware may accumulate
    wider than the result. `stage_c`: accumulators live in shared memory too. The transpositions are those *passed*.
    `stages` buffers are kept in shared memory, C in each of them if `c_per_stage`. `check_alignment` is off for the
    unaligned attempts of the policy "size-classes". `own_width` and `pad_to_seed` are switches of the policy.
    """

    aligned_only: bool = True
    upcast_acc: bool = False
    stage_c: bool = False
    lhs_transposed: bool = False
    rhs_transposed: bool = False
    own_width: bool = False
    pad_to_seed: bool = False
    stages: int = 1
    c_per_stage: bool = True
    check_alignment: bool = True


Path = Literal["VD", "VD+upcast", "TF", "TF+pad", "TC", "SIMT", "WR", "GTF"]
PATHS: Final[tuple[Path, ...]] = ("VD", "VD+upcast", "TF", "TF+pad", "TC", "SIMT", "WR", "GTF")
Route = MmaFamily
TABLES: Final[Mapping[str, tuple[Route, ...]]] = {
    "auto": (DOCUMENTED_MMA, OPAQUE_MMA),
    OPAQUE_MMA: (OPAQUE_MMA,),
}
Table = Literal["auto", "wmma"]  # keys of `TABLES`


@dataclass(frozen=True)
class Options:
    """What a caller may override.

    `c_threshold`: elements of C up to which a product is small. `shared_limit`: bytes, instead of the target's.
    `subgroup_size`: one of the target's choices. `stages`: buffers in shared memory (default 1; 4 for warpgroups).
    `force_intrinsic`: the only one tried. `forbid`: names of intrinsics or paths. `prefetch`: copies go through
    registers one slice ahead, on the vector-distribution path. `tensor_core_table`: fixed tiles are tried before
    anything is deduced, "auto" with mma.sync where the machine has it, "wmma" with WMMA only. `cost`: compares the
    result with up to 8 neighbours. `compute_units` and `cutoffs` are for the policy "size-classes": units of the
    machine, and the three intensities between its classes.
    """

    vector_distribution: bool = True
    c_threshold: int = 512 * 512
    shared_limit: int | None = None
    subgroup_size: int | None = None
    seeds: ScheduleSeeds | None = None
    warpgroup: bool = False
    stages: int | None = None
    force_intrinsic: str | None = None
    forbid: frozenset[str] = frozenset()
    prefetch: bool = False
    tensor_core_table: Table | None = None
    cost: CostModel | None = None
    compute_units: int | None = None
    cutoffs: tuple[float, float, float] | None = None

    def __post_init__(self) -> None:
        for name in ("c_threshold", "shared_limit", "stages", "compute_units"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ScheduleError(f"{value!r} is not a positive integer", where=f"options.{name}")
        if self.tensor_core_table not in (None, *TABLES):
            raise ScheduleError(f"there is no table {self.tensor_core_table!r}", where="options.tensor_core_table",
                                help=f"one of {', '.join(TABLES)}")  # fmt: skip
        if self.cutoffs is not None and not (len(self.cutoffs) == 3 and tuple(sorted(self.cutoffs)) == self.cutoffs):
            raise ScheduleError(f"{self.cutoffs!r} are not three growing intensities", where="options.cutoffs")
        object.__setattr__(self, "forbid", frozenset(self.forbid))

    def on(self, target: MmaTarget) -> MmaTarget:
        """The target under these options; raises ScheduleError for one that the target cannot follow."""
        size = self.subgroup_size
        if size is not None:
            if size not in target.subgroup_choices:
                choices = ", ".join(str(choice) for choice in target.subgroup_choices)
                raise ScheduleError(f"{target.name} has no subgroups of {size}", where="options.subgroup_size",
                                    help=f"one of {choices}")  # fmt: skip
            others = tuple(choice for choice in target.subgroup_choices if choice != size)
            target = replace(target, subgroup_choices=(size, *others))
        if self.shared_limit is not None:
            target = replace(target, shared_limit=self.shared_limit)
        if self.seeds is not None:
            _check_seeds(self.seeds, target)
        if self.force_intrinsic is not None:
            target.intrinsic(self.force_intrinsic)
        if self.forbid:
            self._check_forbidden(target)
        return target

    def _check_forbidden(self, target: MmaTarget) -> None:
        if "GTF" in self.forbid:
            raise ScheduleError("GTF is the last resort and cannot be forbidden", where="options.forbid")
        listed = (*target.intrinsics, *target.warpgroup_intrinsics)
        known = (*PATHS, *(each.name for each in listed))
        for name in sorted(self.forbid.difference(PATHS, *(each.names for each in listed))):
            close = nearest(name, known, 3)
            raise ScheduleError(
                f"{name!r} is neither a path nor an intrinsic of {target.name}", where="options.forbid",
                help=f"did you mean {', '.join(close)}?" if close else f"the paths are {', '.join(PATHS[:-1])}",
            )  # fmt: skip


def vector_distribution_seeds(problem: MmaProblem, options: Options) -> ScheduleSeeds:
    """Seeds of the vector-distribution strategy; contractions that share the lhs share the tiles."""
    if problem.operation == "convolution":
        subgroups, mn_tiles, k_tiles = 4, 8, 2
    elif elements_of_c(problem.m, problem.n) <= options.c_threshold:
        subgroups, mn_tiles, k_tiles = 4, 4, 8
    else:
        subgroups, mn_tiles, k_tiles = 4, 8, 4
    return ScheduleSeeds(subgroups, max(1, mn_tiles // problem.products), k_tiles)


def tile_and_fuse_seeds(problem: MmaProblem, options: Options) -> ScheduleSeeds:
    """Seeds of the tile-and-fuse strategy: a staged slice is one cache line deep, or half of one for a large C."""
    if elements_of_c(problem.m, problem.n) <= options.c_threshold:
        return ScheduleSeeds(4, 4, 8, CACHE_LINE_BITS // bits(problem.a))
    return ScheduleSeeds(4, 16, 4, CACHE_LINE_BITS // 2 // bits(problem.a))


def elements_of_c(m: Sizes, n: Sizes) -> int:
    """Product of the known sizes."""
    return prod(size for size in (*m, *n) if size is not None)


def _check_seeds(seeds: ScheduleSeeds, target: MmaTarget) -> None:
    for name, least in (("subgroups", 1), ("mn_tiles", 1), ("k_tiles", 1), ("k_elements", 0)):
        value = getattr(seeds, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ScheduleError(f"{value!r} is not an integer of {least} or more", where=f"options.seeds.{name}")
    if seeds.subgroups * target.subgroup_size > target.max_threads:
        raise ScheduleError(
            f"{seeds.subgroups} subgroups of {target.subgroup_size} lanes are more than {target.max_threads} threads",
            where="options.seeds.subgroups", help=f"at most {target.max_threads // target.subgroup_size}",
        )  # fmt: skip
