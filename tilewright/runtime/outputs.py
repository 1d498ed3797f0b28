"""Arrays for the outputs of calls, in memory that earlier outputs were in.

The system gives memory in pages that cost a fault each when they are first written, which takes longer than many a
kernel. So the process keeps the buffers of large outputs. The owner of a buffer is an array that owns its memory
(`.base` is None), and is the base of every output in it: results, views of them, and objects of other libraries that
hold one all refer to the owner. A buffer is free if the pool holds the only reference to its owner, and there is no
weak one. Nothing runs when an output is dropped.

A thread takes a buffer out of its queue before it tests it, which is atomic, and puts it back when the new output
holds it. So there is no lock: threads, handlers of signals and forked children use the pool at any point of each other.
What is in the hands of a thread is not counted. Therefore each thread evicts after it has put a buffer into a queue.
"""

from __future__ import annotations

import sys
import sysconfig
import weakref
from collections import deque
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from tilewright.runtime.memory import ALIGNMENT

SMALLEST = 1 << 20  # bytes: kernels below take microseconds, and the C library keeps memory of such sizes itself
_MAX_PROBES = 4  # of buffers in use, which go to the end of their queue; then memory is allocated

Array = np.ndarray[Any, Any]


class _Buffer(NamedTuple):
    """The owner of the memory, and at which of its bytes outputs begin."""

    owner: Array
    start: int


def pooled(size: int, limit_bytes: int) -> bool:
    """Whether outputs of `size` bytes come from the pool."""
    return SMALLEST <= size <= limit_bytes and _COUNTS


class OutputPool:
    """Buffers by their size in bytes; those in front of a queue were used longest ago."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[_Buffer]] = {}

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], limit_bytes: int) -> Array:
        """A new array, not initialised, in a buffer that is free, or in one that is kept for later if it is large.

        Afterwards the pool keeps at most `limit_bytes`. What it keeps no longer is freed with the last array in it.
        """
        size = dtype.itemsize
        for extent in shape:
            size *= extent
        if not pooled(size, limit_bytes):
            return np.empty(shape, dtype)
        queue = self._queues.get(size, _NONE)
        for _ in range(min(_MAX_PROBES, len(queue))):
            try:
                buffer = queue.popleft()
            except IndexError:  # other threads took them
                break
            # In this order: a weak reference may become a strong one in between.
            free = not weakref.getweakrefcount(buffer.owner) and sys.getrefcount(buffer.owner) == _ALONE
            array = np.ndarray(shape, dtype, buffer.owner, buffer.start) if free else None
            queue.append(buffer)
            if array is not None:
                self._evict(limit_bytes)
                return array
        try:
            buffer = _allocate(size)
        except MemoryError:
            self.clear()
            buffer = _allocate(size)
        array = np.ndarray(shape, dtype, buffer.owner, buffer.start)
        self._queues.setdefault(size, deque()).append(buffer)
        self._evict(limit_bytes)
        return array

    @property
    def bytes(self) -> int:
        """What is kept, in use or not. No running total, since threads would need a lock to update one."""
        return sum([size * len(queue) for size, queue in list(self._queues.items())])

    def clear(self) -> None:
        """Keep nothing."""
        self._evict(0)

    def _evict(self, limit_bytes: int) -> None:
        """Keep the oldest buffers of the oldest sizes no longer, until the limit holds."""
        excess = self.bytes - limit_bytes
        if excess <= 0:
            return
        for size, queue in list(self._queues.items()):
            while queue and excess > 0:
                with suppress(IndexError):  # another thread took the last
                    queue.popleft()
                    excess -= size
            if not queue:
                self._queues.pop(size, None)


def _allocate(size: int) -> _Buffer:
    """NumPy's memory: of huge pages where these are full, and mappings are no more than those of ordinary arrays."""
    owner = np.empty(size + ALIGNMENT, np.uint8)
    return _Buffer(owner, -owner.ctypes.data % ALIGNMENT)


_NONE: deque[_Buffer] = deque()
_SAMPLE = _Buffer(np.empty(1), 0)
_ALONE = sys.getrefcount(_SAMPLE.owner)  # what this expression gives where nothing else refers to the array
_COUNTS = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
OUTPUTS = OutputPool()
