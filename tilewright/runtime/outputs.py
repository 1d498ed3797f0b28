"""Arrays for the outputs of calls, in memory that earlier outputs were in.

The system gives memory in pages that cost a fault each when they are first written, which takes longer than many a
kernel. So the process keeps the buffers of large outputs, and uses one again when no array refers to it any more: no
result, no view of one, and nothing of another library that holds one of them. All of these hold a reference to the
array that owns the buffer; what only this file refers to is free. Nothing runs when an output is dropped.

A thread takes a buffer out of its queue before it looks at it, which is atomic, and puts it back when the new output
holds it. So there is no lock: threads, handlers of signals and forked children use the pool at any point of each other.
"""

from __future__ import annotations

import sys
import sysconfig
import weakref
from collections import deque
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from tilewright.runtime.memory import allocate

SMALLEST = 1 << 20  # bytes: kernels below take microseconds, and the C library keeps memory of such sizes itself
_LOOKS = 4  # at buffers that are in use, before memory is allocated: they go to the end of their queue

Array = np.ndarray[Any, Any]


class _Buffer(NamedTuple):
    """The array that all outputs in a buffer refer to, and at which of its bytes they begin."""

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
        for _ in range(min(_LOOKS, len(queue))):
            try:
                buffer = queue.popleft()
            except IndexError:  # other threads took them
                break
            free = sys.getrefcount(buffer.owner) == _ALONE and not weakref.getweakrefcount(buffer.owner)
            array = np.ndarray(shape, dtype, buffer.owner, buffer.start) if free else None
            queue.append(buffer)
            if array is not None:
                return array
        memory = allocate(size)
        owner = memory.base if isinstance(memory.base, np.ndarray) else memory  # what views of it will refer to
        buffer = _Buffer(owner, memory.ctypes.data - owner.ctypes.data)
        array = np.ndarray(shape, dtype, owner, buffer.start)
        self._keep(size, buffer, limit_bytes)
        return array

    @property
    def bytes(self) -> int:
        """What is kept, in use or not."""
        return sum(buffer.owner.nbytes for queue in list(self._queues.values()) for buffer in list(queue))

    def clear(self) -> None:
        """Keep nothing."""
        self._queues.clear()

    def _keep(self, size: int, buffer: _Buffer, limit_bytes: int) -> None:
        """Keep a buffer that is in use, and no longer the oldest ones of the oldest sizes, until the limit holds."""
        self._queues.setdefault(size, deque()).append(buffer)
        excess = self.bytes - limit_bytes
        for other, queue in list(self._queues.items()):
            while queue and excess > 0:
                with suppress(IndexError):  # another thread took the last
                    excess -= queue.popleft().owner.nbytes
            if not queue:
                self._queues.pop(other, None)


_NONE: deque[_Buffer] = deque()
_SAMPLE = _Buffer(np.empty(1), 0)
_ALONE = sys.getrefcount(_SAMPLE.owner)  # what this expression gives where nothing else refers to the array
_COUNTS = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
OUTPUTS = OutputPool()
