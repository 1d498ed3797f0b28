"""The policy "size-classes": seeds by arithmetic intensity, tiles shared out over the collapsed loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import gcd, prod
from typing import Final, Literal

from tilewright.instruction.mma.initial import div_up, halves, initial_k, tile_counts
from tilewright.instruction.mma.policy import Options, Policy, ScheduleSeeds
from tilewright.instruction.mma.problem import MmaProblem, bits
from tilewright.instruction.mma.schedule import MmaSchedule
from tilewright.instruction.mma.target import MmaIntrinsic, MmaTarget, Seeds
from tilewright.instruction.mma.trace import Trace

SizeClass = Literal["small", "medium", "large", "very-large"]

CUTOFFS: Final = (1.0, 1000.0, 7000.0)  # multiply-adds per element moved, between the four classes

SEEDS: Final[Mapping[str, Mapping[str, Seeds]]] = {  # subgroups, tiles of m times n, tiles of k, bits of k
    "matmul": {"small": (2, 2, 4, 2048), "medium": (4, 8, 4, 2048), "large": (4, 16, 2, 512)},
    "convolution": {"small": (2, 2, 4, 1024), "medium": (8, 4, 4, 2048), "large": (8, 8, 2, 512)},
    "block-scaled": {"small": (2, 2, 4, 2048), "medium": (8, 32, 4, 512), "large": (8, 32, 2, 512)},
}

UNBALANCED = 4  # one side has so many times the tiles of the other
FEW_TILES = 8  # below which sides are not called unbalanced


def cutoffs(peak_tflops: float, terabytes_per_second: float) -> tuple[float, float, float]:
    """The intensities between the classes on a machine whose peak and bandwidth are known."""
    balance = peak_tflops / terabytes_per_second
    return 0.05 * balance, 5 * balance, 22 * balance


def size_class(problem: MmaProblem, limits: tuple[float, float, float] = CUTOFFS) -> tuple[SizeClass, int]:
    """The class of a problem, and its intensity ``2MNK // (MN + NK + MK)``."""
    m, n, k = (prod(size for size in sizes if size is not None) for sizes in (problem.m, problem.n, problem.k))
    intensity = 2 * m * n * k // (m * n + n * k + m * k)
    if intensity <= limits[0]:
        return "small", intensity
    if intensity >= limits[2]:
        return "very-large", intensity
    return ("large" if intensity >= limits[1] else "medium"), intensity


def class_seeds(problem: MmaProblem, target: MmaTarget, found: SizeClass) -> ScheduleSeeds:
    """The seeds of a class: the target's own, or the built-in ones."""
    tables = {**SEEDS, **target.size_class_seeds}
    subgroups, mn_tiles, k_tiles, k_bits = tables[problem.operation]["large" if found == "very-large" else found]
    return ScheduleSeeds(subgroups, mn_tiles, k_tiles, k_bits // bits(problem.a))


def seeds_for_units(
    problem: MmaProblem, x: MmaIntrinsic, seeds: ScheduleSeeds, found: SizeClass, options: Options, trace: Trace
) -> ScheduleSeeds:
    """Fewer tiles per subgroup until there is a workgroup for every compute unit, where their number is known."""
    units = options.compute_units
    if units is None or found == "small":
        return seeds
    elements = prod(size for size in (*problem.m, *problem.n) if size is not None)
    tiles = seeds.mn_tiles
    while elements // (tiles * x.m * x.n * seeds.subgroups) < units and tiles > 1:
        tiles //= 2
    trace.add("size.units", elements // (tiles * x.m * x.n * seeds.subgroups), units, tiles)
    return replace(seeds, mn_tiles=tiles)


def collapsed_schedule(
    problem: MmaProblem, x: MmaIntrinsic, seeds: ScheduleSeeds, policy: Policy, trace: Trace
) -> MmaSchedule:
    """The wished-for schedule: distribution over all tiles of m and all tiles of n, then over their loops."""
    m_counts, n_counts, k_counts = (
        tile_counts(sizes, extent, policy) for sizes, extent in ((problem.m, x.m), (problem.n, x.n), (problem.k, x.k))
    )
    trace.add("initial.tiles", problem.m, problem.n, problem.k, (x.m, x.n, x.k),
              tuple(m_counts), tuple(n_counts), tuple(k_counts))  # fmt: skip
    m, n = prod(m_counts), prod(n_counts)
    half_subgroups, half_tiles = halves(seeds.subgroups, seeds.mn_tiles)
    step = half_subgroups * half_tiles
    side = "m" if m > step and m % step == 0 else "n" if n > step and n % step == 0 else ""
    trace.add("initial.split", 0, 0, half_subgroups, half_tiles, n if side == "n" else m, "even" if side else "gcd")
    left = {"m": m, "n": n}
    shares = {"m": (1, 1), "n": (1, 1)}
    subgroups, tiles = seeds.subgroups, seeds.mn_tiles
    for letter in ("n", "m") if side in ("n", "") else ("m", "n"):
        if letter == side:
            own, gcd_of = (half_subgroups, half_tiles), None
        else:
            own_subgroups = gcd(left[letter], subgroups)
            gcd_of = (left[letter], subgroups, left[letter] // own_subgroups, tiles)
            own = (own_subgroups, gcd(left[letter] // own_subgroups, tiles))
        left[letter] //= own[0] * own[1]
        subgroups, tiles = subgroups // own[0], tiles // own[1]
        shares[letter] = own
        trace.add(f"initial.{letter}", 0, *own, gcd_of, subgroups, tiles)
    dominant = _dominant(m, n)
    if dominant and tiles > 1:
        own_subgroups, own_tiles = shares[dominant]
        raised = max(own_tiles, min(tiles, left[dominant]))
        if raised > own_tiles:
            shares[dominant] = (own_subgroups, raised)
            tiles //= raised // own_tiles
            trace.add(f"initial.{dominant}", 0, own_subgroups, raised, None, subgroups, tiles)
    m_subgroups, m_tiles = _to_loops(m_counts, *shares["m"], use_min=dominant == "m")
    n_subgroups, n_tiles = _to_loops(n_counts, *shares["n"], use_min=dominant == "n")
    k_tiles = initial_k(k_counts, x, seeds, trace)
    trace.add("initial.done", x.shape, m_subgroups, n_subgroups, m_tiles, n_tiles, k_tiles)
    return MmaSchedule(x, m_subgroups, n_subgroups, m_tiles, n_tiles, k_tiles)


def _dominant(m: int, n: int) -> str:
    """The side with far more tiles than the other, if neither has few."""
    if min(m, n) < FEW_TILES:
        return ""
    return "m" if m >= UNBALANCED * n else "n" if n >= UNBALANCED * m else ""


def _to_loops(
    counts: list[int], subgroups: int, tiles: int, *, use_min: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Subgroups and tiles of each loop, innermost served first."""
    own_subgroups, own_tiles = [1] * len(counts), [1] * len(counts)
    for dim in reversed(range(len(counts))):
        count = counts[dim]
        own_subgroups[dim] = min(count, subgroups) if use_min else gcd(count, subgroups)
        count = div_up(count, own_subgroups[dim])
        own_tiles[dim] = min(count, tiles) if use_min else gcd(count, tiles)
        subgroups, tiles = subgroups // own_subgroups[dim], tiles // own_tiles[dim]
    return tuple(own_subgroups), tuple(own_tiles)
