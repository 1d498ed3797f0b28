"""Special registers: where a thread is, and how large the launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.emulator.lanes import Lanes
from tilewright.emulator.scalars import Array

_WARP = 32
RESERVED_BYTES = 1024  # of shared memory per block, compute capability 8.0 and newer


def _thread(axis: int) -> Callable[[Lanes], Array]:
    def get(lanes: Lanes) -> Array:
        block = lanes.state.launch.block
        thread = lanes.state.thread_of[lanes.index]
        below = int(np.prod(block[:axis], initial=1))
        return np.asarray(thread // below % block[axis])

    return get


def _block(axis: int) -> Callable[[Lanes], Array]:
    def get(lanes: Lanes) -> Array:
        grid = lanes.state.launch.grid
        number = lanes.state.blocks[lanes.state.block_of[lanes.index]]
        below = int(np.prod(grid[:axis], initial=1))
        return np.asarray(number // below % grid[axis])

    return get


def _in_cluster(axis: int) -> Callable[[Lanes], Array]:
    block = _block(axis)
    return lambda lanes: block(lanes) % lanes.state.launch.cluster[axis]


def _cluster(axis: int) -> Callable[[Lanes], Array]:
    block = _block(axis)
    return lambda lanes: block(lanes) // lanes.state.launch.cluster[axis]


def _rank(lanes: Lanes) -> Array:
    x, y, z = (_in_cluster(axis)(lanes) for axis in range(3))
    width, height, _ = lanes.state.launch.cluster
    return np.asarray(x + width * (y + height * z))


def _mask(which: str) -> Callable[[Lanes], Array]:
    def get(lanes: Lanes) -> Array:
        bit = np.uint64(1) << lanes.state.lane_of[lanes.index].astype(np.uint64)
        one = np.uint64(1)
        below = bit - one
        found = {"eq": bit, "lt": below, "le": below | bit, "gt": ~(below | bit), "ge": ~below}[which]
        return (found & np.uint64(0xFFFFFFFF)).astype(np.uint32)

    return get


def _clock(lanes: Lanes) -> int:
    return lanes.state.clocks.now


SPECIAL: dict[str, Callable[[Lanes], Any]] = {
    "%laneid": lambda lanes: lanes.state.lane_of[lanes.index],
    "%warpid": lambda lanes: lanes.state.thread_of[lanes.index] // _WARP,
    "%nwarpid": lambda lanes: lanes.state.threads // _WARP,
    "%smid": lambda lanes: lanes.state.block_of[lanes.index],
    "%nsmid": lambda lanes: len(lanes.state.blocks),
    "%gridid": lambda lanes: 1,
    "%clock": _clock, "%clock_hi": lambda lanes: 0, "%clock64": _clock,
    "%globaltimer": _clock, "%globaltimer_lo": _clock, "%globaltimer_hi": lambda lanes: 0,
    "%dynamic_smem_size": lambda lanes: lanes.state.launch.dynamic_bytes,
    "%total_smem_size": lambda lanes: lanes.state.launch.shared_bytes,
    "%aggr_smem_size": lambda lanes: lanes.state.launch.shared_bytes,
    "%reserved_smem_offset_begin": lambda lanes: lanes.state.launch.reserved_at,
    "%reserved_smem_offset_end": lambda lanes: lanes.state.launch.all_shared_bytes,
    "%reserved_smem_offset_cap": lambda lanes: lanes.state.launch.all_shared_bytes,
    "%reserved_smem_offset_0": lambda lanes: lanes.state.launch.reserved_at,
    "%reserved_smem_offset_1": lambda lanes: lanes.state.launch.reserved_at + RESERVED_BYTES // 2,
    "%cluster_ctarank": _rank,
    "%cluster_nctarank": lambda lanes: int(np.prod(lanes.state.launch.cluster)),
    "%is_explicit_cluster": lambda lanes: np.bool_(np.prod(lanes.state.launch.cluster) > 1),
    **dict.fromkeys((f"%envreg{number}" for number in range(32)), lambda lanes: 0),
    "%envreg1": lambda lanes: lanes.state.launch.workspace >> 32,
    "%envreg2": lambda lanes: lanes.state.launch.workspace & 0xFFFFFFFF,
    "WARP_SZ": lambda lanes: _WARP,
    **{f"%lanemask_{which}": _mask(which) for which in ("eq", "lt", "le", "gt", "ge")},
}  # fmt: skip


def _extent(which: str, axis: int) -> Callable[[Lanes], int]:
    return lambda lanes: int(getattr(lanes.state.launch, which)[axis])


def _clusters(axis: int) -> Callable[[Lanes], int]:
    return lambda lanes: lanes.state.launch.grid[axis] // lanes.state.launch.cluster[axis]


for _axis, _letter in enumerate("xyz"):
    SPECIAL[f"%tid.{_letter}"] = _thread(_axis)
    SPECIAL[f"%ntid.{_letter}"] = _extent("block", _axis)
    SPECIAL[f"%ctaid.{_letter}"] = _block(_axis)
    SPECIAL[f"%nctaid.{_letter}"] = _extent("grid", _axis)
    SPECIAL[f"%cluster_ctaid.{_letter}"] = _in_cluster(_axis)
    SPECIAL[f"%cluster_nctaid.{_letter}"] = _extent("cluster", _axis)
    SPECIAL[f"%clusterid.{_letter}"] = _cluster(_axis)
    SPECIAL[f"%nclusterid.{_letter}"] = _clusters(_axis)
