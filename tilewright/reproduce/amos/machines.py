"""The device that AMOS's code calls V100, as levels of our model: its numbers differ from the device of that name.

Source: AMOS code; spec 3, section 4.2, last column. It counts in units per cycle, which the model takes as bytes.
"""

from __future__ import annotations

from math import inf

from tilewright.instruction.model import Hierarchy, Memory

WMMA_CYCLES = 64.0  # per 16x16x16 on one sub-core
MULTIPROCESSORS, SUBCORES = 84, 4

#: The clock is that of the real device: the code counts cycles.
V100 = Hierarchy(
    "V100 in AMOS code", 1.53e9,
    (
        Memory("registers", 64 << 10, 16, 16),
        Memory("shared", 128 << 10, 10, 10, SUBCORES),
        Memory("device", 16 << 30, inf, inf, MULTIPROCESSORS),
    ),
    core_cycles=dict.fromkeys(("wmma_16x16x16_f16_f32", "wmma_16x16x16_f16_f16"), WMMA_CYCLES / SUBCORES),
)  # fmt: skip
