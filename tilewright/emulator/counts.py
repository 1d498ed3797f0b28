"""What a run counts: instructions by class, memory requests and their transactions, bank conflicts, bytes by level.

A *request* is one memory instruction of one warp. Global requests cost one transaction per 32-byte sector they touch.
Shared requests cost one wavefront per distinct word of the fullest of 32 banks of 4 bytes; requests of 8 bytes per
thread are served for half a warp at a time, those of 16 bytes for a quarter. A *conflict* is a wavefront beyond the
fewest that the bytes need. A request of ``cp.async`` costs one wavefront per line of 128 bytes of global memory that it
touches: an H200 counts 16 for 16 pieces of 32 bytes in 16 lines, and 4 for 4 whole lines (Nsight Compute, excessive
wavefronts). What banks cost its writes is not known.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from tilewright.emulator.scalars import Array

SECTOR_BYTES, LINE_BYTES = 32, 128
BANKS = 32


class Counts:
    """Counters of one run; `to_json` gives them all."""

    def __init__(self) -> None:
        self.warp_instructions: Counter[str] = Counter()
        self.thread_instructions: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.sites: dict[tuple[int, str], Counter[str]] = {}

    def instruction(self, group: str, warps: int, threads: int) -> None:
        self.warp_instructions[group] += warps
        self.thread_instructions[group] += threads

    def global_access(self, line: int, kind: str, warps: Array, addresses: Array, size: int) -> None:
        """One memory instruction: `addresses` of threads of `warps` (sorted), `size` bytes each."""
        first, last = addresses // SECTOR_BYTES, (addresses + (size - 1)) // SECTOR_BYTES
        sectors = _distinct(warps, first)
        if (first != last).any():
            keys = np.concatenate([warps * (1 << 44) + first, warps * (1 << 44) + last])
            sectors = len(distinct(keys))
        site = self._site(line, f"global {kind}")
        requests = _runs(warps)
        site["requests"] += requests
        site["transactions"] += sectors
        full = -(-np.bincount(warps - warps[0]) * size // SECTOR_BYTES)
        site["fewest"] += min(sectors, int(full.sum()))
        self.bytes[f"global_{kind}"] += size * len(addresses)
        self.bytes[f"global_{kind}_sectors"] += SECTOR_BYTES * sectors

    def shared_access(self, line: int, kind: str, warps: Array, lanes: Array, addresses: Array, size: int) -> None:
        """As `global_access`, for byte addresses in shared memory; `lanes` say which part of a warp is served."""
        phases = max(1, size // 4)
        phase = warps * phases + lanes * phases // 32
        wavefronts, fewest = wavefronts_of(phase, addresses, size)
        site = self._site(line, f"shared {kind}")
        site["requests"] += _runs(warps)
        site["wavefronts"] += wavefronts
        site["conflicts"] += wavefronts - fewest
        self.bytes[f"shared_{kind}"] += size * len(addresses)

    def shared_copy(self, line: int, warps: Array, sources: Array, size: int) -> None:
        """One instruction of ``cp.async``: threads of `warps` copy `size` bytes each, from global addresses."""
        site = self._site(line, "shared copy")
        lines = _distinct(warps, sources // LINE_BYTES)
        site["requests"] += _runs(warps)
        site["wavefronts"] += lines
        site["lines"] += lines
        site["fewest_lines"] += int((-(-np.bincount(warps - warps[0]) * size // LINE_BYTES)).sum())

    def _site(self, line: int, kind: str) -> Counter[str]:
        found = self.sites.get((line, kind))
        if found is None:
            found = self.sites[line, kind] = Counter()
        return found

    def total(self, space: str, what: str) -> int:
        """A counter summed over all instructions of a memory space: ``total("shared", "conflicts")``."""
        return sum(site[what] for (_, kind), site in self.sites.items() if kind.startswith(space))

    def to_json(self) -> dict[str, Any]:
        return {
            "warp_instructions": dict(sorted(self.warp_instructions.items())),
            "thread_instructions": dict(sorted(self.thread_instructions.items())),
            "bytes": dict(sorted(self.bytes.items())),
            "global_requests": self.total("global", "requests"),
            "global_transactions": self.total("global", "transactions"),
            "global_transactions_fewest": self.total("global", "fewest"),
            "shared_requests": self.total("shared", "requests"),
            "shared_wavefronts": self.total("shared", "wavefronts"),
            "bank_conflicts": self.total("shared", "conflicts"),
            "copied_lines": self.total("shared", "lines"),
            "copied_lines_fewest": self.total("shared", "fewest_lines"),
            "accesses": [
                {"line": line, "access": kind, **site} for (line, kind), site in sorted(self.sites.items())
            ],
        }  # fmt: skip


def wavefronts_of(phase: Array, addresses: Array, size: int) -> tuple[int, int]:
    """Wavefronts of accesses that are served together where `phase` is equal (sorted), and the fewest possible.

    >>> wavefronts_of(np.zeros(32, int), 8 * np.arange(32), 4)
    (2, 1)
    """
    words = addresses // 4
    if size > 4:
        words = words[:, None] + np.arange(size // 4)
        phase = np.broadcast_to(phase[:, None], words.shape)
    keys = distinct((phase.astype(np.int64) << 32) + words) if size > 4 else _unique_keys(phase, words)
    rank = np.concatenate([[0], np.cumsum(np.diff(keys >> 32) != 0)])
    load = np.bincount(rank * BANKS + (keys & 0xFFFFFFFF) % BANKS, minlength=(int(rank[-1]) + 1) * BANKS)
    load = load.reshape(-1, BANKS)
    return int(load.max(axis=1).sum()), int((-(-load.sum(axis=1) // BANKS)).sum())


def distinct(numbers: Array) -> Array:
    """The different ones of some whole numbers, in order.

    By a sort: `np.unique` of NumPy 2.3 puts them into a hash table, which takes up to 20 times as long for as many as
    the threads of a block have.
    """
    ordered = np.sort(numbers, axis=None)
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def _unique_keys(phase: Array, words: Array) -> Array:
    keys = (phase.astype(np.int64) << 32) + words
    steps = np.diff(keys)
    if (steps > 0).all():
        return keys
    return distinct(keys)


def _distinct(groups: Array, values: Array) -> int:
    """Distinct pairs; fast where values rise within a group."""
    steps = np.diff(values)
    border = np.diff(groups) != 0
    if ((steps >= 0) | border).all():
        return int(((steps != 0) | border).sum()) + 1
    return len(distinct(groups * (1 << 44) + values))


def _runs(groups: Array) -> int:
    return int((np.diff(groups) != 0).sum()) + 1
