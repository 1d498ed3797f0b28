"""Time on a device: recorded work between two events; on the CPU, for trying the script out, a wall clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

Work = Callable[[], None]


class Clock(Protocol):
    cache_bytes: int  # of the last level
    memory_bytes: int  # that inputs may take

    def recorded(self, work: Work) -> Work:
        """The same work, as cheap to start as it can be made."""

    def seconds(self, work: Work) -> float: ...
    def now(self) -> float: ...


class CudaClock:
    """Events of torch; work is recorded as a graph, or enqueued call by call where it cannot be."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        properties = torch.cuda.get_device_properties(0)
        self.cache_bytes = int(getattr(properties, "L2_cache_size", 64 << 20))
        self.memory_bytes = int(properties.total_memory // 4)

    def recorded(self, work: Work) -> Work:
        torch = self._torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                work()
        except RuntimeError:  # it waits for the device, or allocates in its own way
            torch.cuda.synchronize()
            return work
        return graph.replay

    def seconds(self, work: Work) -> float:
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    def now(self) -> float:
        self._torch.cuda.synchronize()
        return time.perf_counter()


class WallClock:
    """For a run without a GPU, whose times mean nothing."""

    cache_bytes, memory_bytes = 1 << 16, 1 << 30

    def recorded(self, work: Work) -> Work:
        return work

    def seconds(self, work: Work) -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    def now(self) -> float:
        return time.perf_counter()
