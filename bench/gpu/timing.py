"""Samples of a call over inputs that rotate, so that none is in the cache when its turn comes."""

from __future__ import annotations

from collections.abc import Callable

from bench.gpu.clock import Clock, Work
from tilewright.dataclass import dataclass
from tilewright.runtime.cuda.measure import Timing

MOST_SETS, FEWEST_SAMPLES, MOST_SAMPLES = 64, 5, 200
MOST_SECONDS = 1.5  # for one contender: a median of more would be no better


def input_sets(bytes_of_a_set: int, clock: Clock) -> int:
    """How many sets of inputs together exceed the cache twice, as far as memory allows; at least 2.

    >>> from types import SimpleNamespace
    >>> clock = SimpleNamespace(cache_bytes=50, memory_bytes=1000)
    >>> [input_sets(size, clock) for size in (1, 10, 100, 600)]
    [64, 11, 2, 2]
    """
    size = max(1, bytes_of_a_set)
    wanted = 2 * clock.cache_bytes // size + 1
    return max(2, min(wanted, MOST_SETS, clock.memory_bytes // size))


@dataclass(frozen=True)
class Recorded:
    """Calls over all sets of inputs in a row, ready to be started; `keep` is what they use."""

    work: Work
    sets: int
    keep: object = None


def record(call: Callable[[int], object], sets: int, clock: Clock, keep: object = None, graph: bool = True) -> Recorded:
    """`call(number of a set)` for every set, called once before, so that what is compiled when first used is warm.

    Calls are recorded as a `graph` where that is possible, or made by the host every time.
    """

    def work() -> None:
        for number in range(sets):
            call(number)

    work()
    return Recorded(clock.recorded(work) if graph else work, sets, keep)


def sample(recorded: Recorded, clock: Clock, seconds: float, beside: Recorded | None = None) -> list[Timing]:
    """Time calls for about `seconds` in total at most, in turns with those of `beside`, if that is given.

    Turns make both meet the same clocks and temperatures. The first round is not counted.
    """
    jobs = [recorded, *([] if beside is None else [beside])]
    start, seconds = clock.now(), min(seconds, MOST_SECONDS)
    found: list[list[float]] = [[] for _ in jobs]
    for job in jobs:
        clock.seconds(job.work)
    while len(found[0]) < FEWEST_SAMPLES or (clock.now() - start < seconds and len(found[0]) < MOST_SAMPLES):
        for job, times in zip(jobs, found, strict=True):
            times.append(clock.seconds(job.work) / job.sets)
        if clock.now() - start > 4 * seconds:
            break
    return [Timing.of(times) for times in found]
