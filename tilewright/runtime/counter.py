"""The counter that compiled code stamps launches with: how fast it ticks.

x86-64: the time stamp counter, `llvm.readcyclecounter`; aarch64: CNTVCT_EL0, `llvm.readsteadycounter`. Both tick at a
constant rate on every processor that we compile for, whatever the clock of the cores.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import time
from collections.abc import Callable

from tilewright.runtime.loader import load_ir

_MEASURED_SECONDS = 0.01  # reading both clocks takes below 1 µs, so that the rate is right to 0.01 %
_INTRINSIC = {"aarch64": "readsteadycounter"}


@functools.cache
def ticks_per_second() -> float:
    """The rate of the counter, measured once per process, which takes 10 ms."""
    intrinsic = _INTRINSIC.get(platform.machine(), "readcyclecounter")
    code = load_ir(
        f"""
        declare i64 @llvm.{intrinsic}()
        define i64 @counter() {{
          %ticks = call i64 @llvm.{intrinsic}()
          ret i64 %ticks
        }}
    """,
        ["counter"],
    )
    read = ctypes.CFUNCTYPE(ctypes.c_int64)(code.address("counter"))
    first_ticks, first_ns = _read_both(read)
    time.sleep(_MEASURED_SECONDS)
    last_ticks, last_ns = _read_both(read)
    return (last_ticks - first_ticks) / (last_ns - first_ns) * 1e9


def _read_both(read: Callable[[], int]) -> tuple[int, float]:
    """The counter and the clock at nearly one moment: of three readings the least disturbed."""
    readings = []
    for _ in range(3):
        before = time.perf_counter_ns()
        ticks = read()
        after = time.perf_counter_ns()
        readings.append((after - before, ticks, (before + after) / 2))
    _, ticks, moment = min(readings)
    return ticks, moment
