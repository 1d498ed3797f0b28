"""The wished-for schedule: seeds handed out to the loops, before anything is checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd

from tilewright.instruction.mma.policy import Policy, ScheduleSeeds
from tilewright.instruction.mma.problem import MmaProblem, Sizes
from tilewright.instruction.mma.schedule import MmaSchedule
from tilewright.instruction.mma.target import MmaIntrinsic
from tilewright.instruction.mma.trace import Trace

PADDED_MULTIPLES = (16, 8, 4, 2, 1)  # to which `pad_to_seed` rounds a tile count


def div_up(value: int, divisor: int) -> int:
    return -(-value // divisor)


def tile_counts(sizes: Sizes, step: int, policy: Policy) -> list[int]:
    """How many tiles each loop has: the innermost in intrinsics of `step`, the others in elements."""
    counts = [size for size in sizes if size is not None]
    assert len(counts) == len(sizes), "a problem that is scheduled has known sizes"
    counts[-1] = div_up(counts[-1], step)
    if policy.pad_to_seed and not policy.aligned_only:
        counts[-1] = _padded(counts[-1])
    return counts


def halves(seeds_subgroups: int, seeds_tiles: int) -> tuple[int, int]:
    """About the square root of each, as powers of two: of the subgroups rounded up, of the tiles rounded down."""
    return 1 << div_up(seeds_subgroups.bit_length() - 1, 2), 1 << ((seeds_tiles.bit_length() - 1) // 2)


def initial_schedule(
    problem: MmaProblem,
    intrinsic: MmaIntrinsic,
    seeds: ScheduleSeeds,
    policy: Policy | None = None,
    trace: Trace | None = None,
) -> MmaSchedule:
    """The schedule that the seeds ask for, loop pair by loop pair from the innermost.

    Where m has more tiles than half of the subgroups times half of the tiles, and a multiple of them, m gets these
    halves and n what is left and divides it (branch "even"). Otherwise n takes all that divides it, then m ("gcd").
    """
    policy = policy or Policy()
    add = (Trace() if trace is None else trace).add
    m_counts = tile_counts(problem.m, intrinsic.m, policy)
    n_counts = tile_counts(problem.n, intrinsic.n, policy)
    k_counts = tile_counts(problem.k, intrinsic.k, policy)
    shape = (intrinsic.m, intrinsic.n, intrinsic.k)
    add("initial.tiles", problem.m, problem.n, problem.k, shape, tuple(m_counts), tuple(n_counts), tuple(k_counts))
    subgroups, tiles = seeds.subgroups, seeds.mn_tiles
    m_subgroups, m_tiles = [1] * len(m_counts), [1] * len(m_counts)
    n_subgroups, n_tiles = [1] * len(n_counts), [1] * len(n_counts)
    i, j = len(m_counts) - 1, len(n_counts) - 1
    while i >= 0 or j >= 0:
        half_subgroups, half_tiles = halves(subgroups, tiles)
        step = half_subgroups * half_tiles
        pair = i >= 0 and j >= 0
        even = pair and m_counts[i] > step and m_counts[i] % step == 0
        add("initial.split", i if i >= 0 else None, j if j >= 0 else None, half_subgroups, half_tiles,
            m_counts[i] if pair else None, "even" if even else "gcd")  # fmt: skip
        if even:
            m_subgroups[i], m_tiles[i] = half_subgroups, half_tiles
            subgroups, tiles = subgroups // half_subgroups, tiles // half_tiles
            add("initial.m", i, half_subgroups, half_tiles, None, subgroups, tiles)
        if j >= 0:
            n_subgroups[j], n_tiles[j], subgroups, tiles = _share("initial.n", j, n_counts[j], subgroups, tiles, add)
        if i >= 0 and not even:
            m_subgroups[i], m_tiles[i], subgroups, tiles = _share("initial.m", i, m_counts[i], subgroups, tiles, add)
        i, j = i - 1, j - 1
    k_tiles = initial_k(k_counts, intrinsic, seeds, trace)
    counts = (tuple(m_subgroups), tuple(n_subgroups), tuple(m_tiles), tuple(n_tiles), k_tiles)
    add("initial.done", intrinsic.shape, *counts)
    return MmaSchedule(intrinsic, *counts)


def initial_k(
    counts: Sequence[int], intrinsic: MmaIntrinsic, seeds: ScheduleSeeds, trace: Trace | None = None
) -> tuple[int, ...]:
    """Intrinsics of each k loop per staged slice: what divides both the loop and the wanted depth, innermost first."""
    wanted = want = div_up(seeds.k_elements, intrinsic.k) if seeds.k_elements else seeds.k_tiles
    tiles = [1] * len(counts)
    steps = []
    for dim in reversed(range(len(counts))):
        tiles[dim] = gcd(counts[dim], want)
        steps.append((counts[dim], want, tiles[dim]))
        want //= tiles[dim]
    if trace is not None:
        trace.add("initial.k", wanted, tuple(steps))
    return tuple(tiles)


def _share(
    kind: str, dim: int, count: int, subgroups: int, tiles: int, add: Callable[..., None]
) -> tuple[int, int, int, int]:
    """What one loop takes of the subgroups, then of the tiles, and what it leaves of both."""
    own_subgroups = gcd(count, subgroups)
    rest = count // own_subgroups
    own_tiles = gcd(rest, tiles)
    left_subgroups, left_tiles = subgroups // own_subgroups, tiles // own_tiles
    gcd_of = (count, subgroups, rest, tiles)
    add(kind, dim, own_subgroups, own_tiles, gcd_of, left_subgroups, left_tiles)
    return own_subgroups, own_tiles, left_subgroups, left_tiles


def _padded(count: int) -> int:
    """The count rounded up to the largest of `PADDED_MULTIPLES` that adds at most an eighth.

    >>> [_padded(count) for count in (63, 125, 7, 3)]
    [64, 128, 7, 3]
    """
    for multiple in PADDED_MULTIPLES:
        rounded = div_up(count, multiple) * multiple
        if 8 * rounded <= 9 * count:
            return rounded
    raise AssertionError("every count is a multiple of 1")
