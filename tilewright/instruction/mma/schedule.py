"""The schedule of one product: an intrinsic, and how many of it along each loop for a subgroup and a workgroup."""

from __future__ import annotations

from math import prod

from tilewright.dataclass import dataclass
from tilewright.errors import ScheduleError
from tilewright.instruction.mma.problem import MmaProblem, bits
from tilewright.instruction.mma.target import MmaIntrinsic

Counts = tuple[int, ...]  # one per loop, outermost first

#: The lists of a schedule in the order in which fitting takes from them.
LISTS = ("m_tiles", "n_tiles", "k_tiles", "m_subgroups", "n_subgroups")
_LISTS = ("m_subgroups", "n_subgroups", "m_tiles", "n_tiles", "k_tiles")  # as the fields below


@dataclass(frozen=True, slots=True)
class MmaSchedule:
    """Subgroups per workgroup and intrinsic tiles per subgroup, for every m, n and k loop of the problem."""

    intrinsic: MmaIntrinsic
    m_subgroups: Counts
    n_subgroups: Counts
    m_tiles: Counts
    n_tiles: Counts
    k_tiles: Counts

    def with_count(self, name: str, dim: int, count: int) -> MmaSchedule:
        """This schedule with another count at loop `dim` of the list `name`."""
        lists = [self.m_subgroups, self.n_subgroups, self.m_tiles, self.n_tiles, self.k_tiles]
        place = _LISTS.index(name)
        counts = lists[place]
        lists[place] = (*counts[:dim], count, *counts[dim + 1 :])
        return MmaSchedule(self.intrinsic, *lists)

    @property
    def subgroups(self) -> int:
        return prod(self.m_subgroups) * prod(self.n_subgroups)

    @property
    def threads(self) -> int:
        return self.subgroups * self.intrinsic.subgroup

    @property
    def tile(self) -> tuple[int, int, int]:
        """Elements of m and n that a workgroup computes, and of k that one staged slice holds."""
        x = self.intrinsic
        return (
            x.m * prod(self.m_tiles) * prod(self.m_subgroups), x.n * prod(self.n_tiles) * prod(self.n_subgroups),
            x.k * prod(self.k_tiles),
        )  # fmt: skip

    @property
    def wg_m(self) -> int:
        return self.tile[0]

    @property
    def wg_n(self) -> int:
        return self.tile[1]

    @property
    def wg_k(self) -> int:
        return self.tile[2]

    @property
    def bytes_a(self) -> int:
        return self.wg_m * self.wg_k * bits(self.intrinsic.a) // 8

    @property
    def bytes_b(self) -> int:
        return self.wg_n * self.wg_k * bits(self.intrinsic.b) // 8

    @property
    def bytes_ab(self) -> int:
        """Bytes of one staged slice of both operands."""
        return self.bytes_a + self.bytes_b

    @property
    def bytes_c(self) -> int:
        """Bytes of the accumulators, in the intrinsic's type."""
        return self.wg_m * self.wg_n * bits(self.intrinsic.c) // 8

    @property
    def intrinsics_per_slice(self) -> int:
        """Matrix instructions that one subgroup executes for one staged slice."""
        return prod(self.m_tiles) * prod(self.n_tiles) * prod(self.k_tiles)

    def __str__(self) -> str:
        """
        >>> from tilewright.intrinsics.registry import standard
        >>> x = MmaIntrinsic(standard().find("mma_m16n8k16_f16_f32"))
        >>> print(MmaSchedule(x, (2,), (2,), (4,), (4,), (2,)))
        MMA_SYNC_F32_16x8x16_F16 2,2;4,4,2
        """
        subgroups = ",".join(counts_text(each) for each in (self.m_subgroups, self.n_subgroups))
        tiles = ",".join(counts_text(each) for each in (self.m_tiles, self.n_tiles, self.k_tiles))
        return f"{self.intrinsic.name} {subgroups};{tiles}"


def counts_text(counts: Counts) -> str:
    """A single count as a number, several as a list.

    >>> counts_text((4,)), counts_text((1, 4))
    ('4', '[1, 4]')
    """
    return str(counts[0]) if len(counts) == 1 else str(list(counts))


def require_ranks(problem: MmaProblem, schedule: MmaSchedule) -> None:
    """Raise ScheduleError unless every list has one positive count per loop of the problem."""
    for name in LISTS:
        counts, loops = getattr(schedule, name), getattr(problem, name[0])
        if len(counts) != len(loops):
            raise ScheduleError(f"{name} has {len(counts)} counts and the problem {len(loops)} loops of {name[0]}",
                                where=name, help="give one count per loop, outermost first")  # fmt: skip
        if any(isinstance(count, bool) or not isinstance(count, int) or count < 1 for count in counts):
            raise ScheduleError(f"{name} is {list(counts)}", where=name, help="every count is 1 or more")
