"""Samples of a call over inputs that rotate, so that none is in the cache when its turn comes."""

from __future__ import annotations

from collections.abc import Callable

from bench.gpu.clock import Clock
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


def sample(call: Callable[[int], object], sets: int, clock: Clock, seconds: float, recorded: bool = True) -> Timing:
    """Time `call(number of a set)`: every sample goes through all sets, for about `seconds` in total at most.

    Calls that are compiled when first used are warm after the first round, which is not counted. A sample is
    `recorded` where that is possible, or every call is made by the host.
    """

    def work() -> None:
        for number in range(sets):
            call(number)

    work()
    start, seconds = clock.now(), min(seconds, MOST_SECONDS)
    once = clock.recorded(work) if recorded else work
    clock.seconds(once)
    found: list[float] = []
    while len(found) < FEWEST_SAMPLES or (clock.now() - start < seconds and len(found) < MOST_SAMPLES):
        found.append(clock.seconds(once) / sets)
        if clock.now() - start > 4 * seconds:
            break
    return Timing.of(found)
