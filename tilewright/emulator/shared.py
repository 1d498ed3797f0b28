"""Shared memory of the blocks of a chunk, with a shadow that finds races, unwritten reads and early async reads.

The shadow has one entry per *cell*, as many bytes as the narrowest access of the kernel: who wrote it and when, when
each warp last read it, and which asynchronous operation will still write or read it.
"""

from __future__ import annotations

import numpy as np

from tilewright.emulator.clocks import Clocks
from tilewright.emulator.lanes import Lanes
from tilewright.emulator.memory import Bytes
from tilewright.emulator.rounding import alike
from tilewright.emulator.scalars import Array

RANK_SHIFT = 24  # an address in the shared memory of a cluster: rank + 1 above, offset below
GUESS = "guess"  # the order of a read that a compare-and-swap confirms
# A read on record: when, and which lanes of the warp, or a product of the warpgroup that starts with it.
_WHEN, _PRODUCT, _LANES = 33, 1 << 32, (1 << 32) - 1
_ASYNC, _ATOMIC = 1, 2  # how a cell was written; stores with an order count as atomic


class SharedMemory:
    """`length` bytes for each block, and their shadow; `origin` says in messages where a part of them comes from."""

    def __init__(self, blocks: int, length: int, granule: int, clocks: Clocks, origin: str = "") -> None:
        self.length, self.origin = length, origin
        self.stride = -(-max(length, 16) // 16) * 16
        self.bytes = Bytes(blocks * self.stride)
        self.granule = granule
        self.clocks = clocks
        cells = blocks * self.stride // granule
        self.write_time = np.zeros(cells, np.int64)
        self.writer = np.zeros(cells, np.int32)  # a column of the clocks
        self.how = np.zeros(cells, np.uint8)
        self.last_read = np.zeros(cells, np.int64)
        self.reads = np.zeros((cells, clocks.members // 32), np.int64)  # of each warp of the cluster
        self.undefined = np.zeros(cells, np.bool_)
        self.will_write: Array | None = None  # numbers of pending operations, 0 for none
        self.will_read: Array | None = None
        self.peers: Array | None = None  # [block of the chunk, rank] -> block of the chunk

    def fill(self, start: int, length: int) -> None:
        """Bytes of each block that the system has set to zero."""
        self.write_time.reshape(-1, self.stride // self.granule)[:, start // self.granule :][
            :, : length // self.granule
        ] = 1

    # Addresses

    def place(
        self, lanes: Lanes, addresses: Array, size: int, verb: str, *, stays: bool = True
    ) -> tuple[Array, Array | None]:
        """Offsets into all shared memory of the chunk, and which accesses are fine (None: all); for `stays` see
        `ThreadExits`.
        """
        at = addresses.astype(np.int64)
        block = lanes.state.block_of[lanes.index]
        rank = at >> RANK_SHIFT
        good: Array | None = None
        if rank.any():
            at = at & ((1 << RANK_SHIFT) - 1)
            ranks = 1 if self.peers is None else self.peers.shape[1]
            good = (rank >= 0) & (rank <= ranks)
            if self.peers is not None:
                block = np.where(rank > 0, self.peers[block, np.clip(rank - 1, 0, ranks - 1)], block)
                lanes.state.exits.use(lanes, block, stays=stays)
        inside = (at >= 0) & (at + size <= self.length)
        if good is not None:
            inside &= good
        good = None
        if not inside.all():
            wrong = np.flatnonzero(~inside)
            address = int(addresses[wrong[0]])
            lanes.report(
                "out-of-bounds",
                f"{verb} {size} bytes at byte {address} of shared memory, which has {self.length}{self.origin}",
                wrong, address=address, space="shared",
            )  # fmt: skip
            good = inside
        if size > 1 and (at % size).any():
            aligned = at % size == 0
            wrong = np.flatnonzero(~aligned)
            address = int(addresses[wrong[0]])
            lanes.report("misaligned", f"{verb} {size} bytes at byte {address} of shared memory", wrong,
                         address=address, space="shared")  # fmt: skip
            good = aligned if good is None else good & aligned
        return block * self.stride + at, good

    def cells(self, offsets: Array, size: int) -> Array:
        """The cells (n, k) of accesses of `size` bytes."""
        first = offsets // self.granule
        count = max(1, size // self.granule)
        return np.asarray(first[:, None] + np.arange(count))

    # What threads do

    def load(
        self, lanes: Lanes, addresses: Array, width: int, count: int, *, order: str = ""
    ) -> tuple[Array, Array | None]:
        """Values, and which lanes read undefined ones."""
        size = width * count
        offsets, good = self.place(lanes, addresses, size, "reads")
        who = lanes.positions()
        if good is not None:
            values = np.zeros((len(offsets), count) if count > 1 else len(offsets), self.bytes._views[width].dtype)
            kept = np.flatnonzero(good)
            if len(kept):
                values[kept] = self.bytes.load(offsets[kept], width, count)
                self.read(lanes, kept, who[kept], offsets[kept], size, order=order)
            return values, ~good
        undefined = self.read(lanes, np.arange(len(offsets)), who, offsets, size, order=order)
        return self.bytes.load(offsets, width, count), undefined

    def read(
        self, lanes: Lanes, numbers: Array, who: Array, offsets: Array, size: int, *, order: str = ""
    ) -> Array | None:
        """Check and note reads by threads `who` (lanes `numbers`); returns which of them see undefined bytes."""
        self._count(lanes, "load", who, offsets, size)
        state, clocks = lanes.state, self.clocks
        cells = self.cells(offsets, size)
        written = self.write_time[cells]
        undefined = None
        if not written.all():
            missing = (written == 0) & self._not_awaited(cells)
            self._report_cells(lanes, "uninitialised", "reads byte {at} of shared memory, which nothing wrote", missing,
                               numbers, cells)  # fmt: skip
            undefined = missing.any(axis=1)
        if self.will_write is not None:
            self._report_cells(
                lanes, "early-read", "reads byte {at} of shared memory before the wait for the copy into it",
                self.will_write[cells] != 0, numbers, cells,
            )  # fmt: skip
        block, thread = state.block_of[who][:, None], state.thread_of[who][:, None]
        home = offsets[:, None] // self.stride
        late = written > clocks.cluster_floor[home]
        if order == GUESS:  # what confirms it comes after the write, or is found
            late[:] = False
        elif order:
            late &= self.how[cells] != _ATOMIC
        if late.any():
            block, thread = (np.broadcast_to(each, cells.shape) for each in (block, thread))
            unordered = np.zeros(cells.shape, np.bool_)
            other = self.writer[cells[late]]
            unordered[late] = ~clocks.ordered(block[late], thread[late], other, written[late])
            self._report_cells(
                lanes, "race", "reads byte {at} of shared memory, which {writer} wrote, in no order with it",
                unordered, numbers, cells,
            )  # fmt: skip
        if not order:
            self._note_reads(who, cells)
        elif state.releases is not None and order != GUESS:
            state.releases.read(who, offsets, order)
        if self.undefined[cells].any():
            mask = self.undefined[cells].any(axis=1)
            undefined = mask if undefined is None else undefined | mask
        if undefined is None or not undefined.any():
            return None
        found = np.zeros(lanes.count, np.bool_)
        found[numbers] = undefined
        return found

    def _not_awaited(self, cells: Array) -> Array:
        return np.ones(cells.shape, np.bool_) if self.will_write is None else self.will_write[cells] == 0

    def _note_reads(self, who: Array, cells: Array) -> None:
        clocks = self.clocks
        warp, block, thread, column = who // 32, who // clocks.threads, who % clocks.threads, clocks.column(who)
        own, lane = (column // 32)[:, None], (1 << thread % 32)[:, None]
        before = self.reads[cells, own]
        floor = np.maximum(clocks.warp_floor[warp], clocks.block_floor[block])[:, None]
        time, readers = before >> _WHEN, np.where(before & _PRODUCT != 0, _LANES, before & _LANES)
        others = (time > floor) & (readers != lane)
        if clocks.matrix is not None and others.any():  # reads that this thread knows of need no record any more
            row, _ = np.nonzero(others)
            others[others] = ~clocks.ordered_warp(
                block[row], thread[row], column[row] // 32, readers[others], time[others]
            )
        entry = (clocks.now << _WHEN) | lane | np.where(others, readers, 0)
        self.reads[cells, own] = entry
        mixed = self.reads[cells, own] != entry  # several lanes of this instruction
        if mixed.any():
            where = (cells * self.reads.shape[1] + own)[mixed]
            np.bitwise_or.at(self.reads.reshape(-1), where, entry[mixed])
        self.last_read[cells] = clocks.now

    def store(
        self, lanes: Lanes, addresses: Array, width: int, values: Array, undefined: Array | None = None,
        *, order: str = "", sums: str = "",
    ) -> None:  # fmt: skip
        """Write, after the checks; `undefined` marks lanes whose value is not defined.

        Where the words are `sums` of floats of a type, those that differ in their last bits count as one value.
        """
        size = width * (1 if values.ndim == 1 else values.shape[1])
        offsets, good = self.place(lanes, addresses, size, "writes")
        who, numbers = lanes.positions(), np.arange(lanes.count)
        if good is not None:
            numbers = np.flatnonzero(good)
            if not len(numbers):
                return
            offsets, values, who = offsets[good], values[good], who[good]
            undefined = None if undefined is None else undefined[good]
        self._count(lanes, "store", who, offsets, size)
        cells = self.cells(offsets, size)
        old = self.bytes.load(offsets, width, 1 if values.ndim == 1 else values.shape[1])
        floor = self.clocks.cluster_floor[offsets[:, None] // self.stride]
        recent = (np.maximum(self.write_time[cells], self.last_read[cells]) > floor).any()
        same = (alike(old, values, sums) if recent else old == values).reshape(len(offsets), -1)
        same = np.repeat(same, max(1, width // self.granule), axis=1)
        same &= self.write_time[cells] != 0
        if order and lanes.state.releases is not None:
            lanes.state.releases.write(who, offsets, order)
        self.check_write(lanes, numbers, who, offsets, cells, same | self._atomic(cells) if order else same)
        self.bytes.store(offsets, width, values)
        self.note_write(self.clocks.column(who), cells, _ATOMIC if order else 0, keep=same)
        self._check_clashes(lanes, numbers, offsets, width, values, cells, sums)
        if undefined is not None or self.undefined[cells].any():
            self.undefined[cells] = False if undefined is None else undefined[:, None]

    def check_write(
        self, lanes: Lanes, numbers: Array, who: Array, offsets: Array, cells: Array, same: Array | None,
        *, ignore: int = 0,
    ) -> None:  # fmt: skip
        """Report what a write by threads `who` conflicts with; cells where `same` holds keep their value."""
        state, clocks = lanes.state, self.clocks
        floor = clocks.cluster_floor[offsets[:, None] // self.stride]
        changes = np.ones(cells.shape, np.bool_) if same is None else ~same
        for pending, kind, text in (
            (self.will_write, "overwritten", "writes byte {at} of shared memory while an asynchronous copy writes it"),
            (
                self.will_read,
                "overwritten",
                "writes byte {at} of shared memory while an asynchronous operation reads it",
            ),
        ):
            if pending is not None:
                busy = pending[cells]
                self._report_cells(lanes, kind, text, (busy != 0) & (busy != ignore), numbers, cells)
        block = np.broadcast_to(state.block_of[who][:, None], cells.shape)
        thread = np.broadcast_to(state.thread_of[who][:, None], cells.shape)
        written = self.write_time[cells]
        late = (written > floor) & changes
        if late.any():
            unordered = np.zeros(cells.shape, np.bool_)
            unordered[late] = ~clocks.ordered(block[late], thread[late], self.writer[cells[late]], written[late])
            self._report_cells(
                lanes, "race", "writes byte {at} of shared memory, which {writer} wrote, in no order with it",
                unordered, numbers, cells,
            )  # fmt: skip
        late = (self.last_read[cells] > floor) & changes
        if late.any():
            self._check_readers(lanes, numbers, cells, late, block, thread)

    def _check_readers(
        self, lanes: Lanes, numbers: Array, cells: Array, late: Array, block: Array, thread: Array
    ) -> None:
        clocks = self.clocks
        reads = self.reads[cells[late]]  # (m, warps)
        time, readers, product = reads >> _WHEN, reads & _LANES, reads & _PRODUCT != 0
        own_block = np.broadcast_to(block[late][:, None], reads.shape)
        own = np.broadcast_to(thread[late][:, None], reads.shape)
        warps = np.broadcast_to(np.arange(reads.shape[1]), reads.shape)
        wrong = time > clocks.cluster_floor[own_block]
        lanes_read, together = wrong & ~product, wrong & product
        if lanes_read.any():
            wrong[lanes_read] = ~clocks.ordered_warp(
                own_block[lanes_read], own[lanes_read], warps[lanes_read], readers[lanes_read], time[lanes_read]
            )
        if together.any():
            wrong[together] = ~clocks.ordered_group(
                own_block[together], own[together], warps[together], time[together]
            )  # fmt: skip
        if not wrong.any():
            return
        unordered = np.zeros(cells.shape, np.bool_)
        unordered[late] = wrong.any(axis=1)
        row, warp = (int(each[0]) for each in np.nonzero(wrong))
        mask = int(readers[row, warp])
        lane_text = "several lanes" if mask.bit_count() > 1 else f"lane {mask.bit_length() - 1}"
        if product[row, warp]:
            lane_text = "a product"
        rank, warp = divmod(warp, clocks.threads // 32)
        where = f"warp {warp}" if rank == int(own_block[row, 0]) % clocks.cluster else f"warp {warp} of rank {rank}"
        text = f"writes byte {{at}} of shared memory, which {lane_text} of {where} read, in no order with it"
        self._report_cells(lanes, "race", text, unordered, numbers, cells)

    def note_write(self, threads: Array | int, cells: Array, how: int, keep: Array | None = None) -> None:
        """Remember who wrote; where `keep` holds the value did not change, and the first writer stays on record."""
        writers = threads[:, None] if isinstance(threads, np.ndarray) else np.asarray(threads)
        if keep is not None and keep.any():
            chosen = ~keep
            self.writer[cells[chosen]] = np.broadcast_to(writers, cells.shape)[chosen]
            self.write_time[cells[chosen]] = self.clocks.now
            self.how[cells[chosen]] = how
            return
        self.writer[cells] = writers
        self.write_time[cells] = self.clocks.now
        self.how[cells] = how

    def _check_clashes(
        self, lanes: Lanes, numbers: Array, offsets: Array, width: int, values: Array, cells: Array, sums: str
    ) -> None:
        """Several threads of one instruction that write different values to the same place."""
        stored = self.bytes.load(offsets, width, 1 if values.ndim == 1 else values.shape[1])
        lost = (stored != values).reshape(len(offsets), -1)
        if lost.any():
            lost &= ~alike(stored, values, sums).reshape(len(offsets), -1)
        if lost.any():
            lost = np.repeat(lost, max(1, width // self.granule), axis=1)
            self._report_cells(
                lanes, "race", "writes byte {at} of shared memory, to which {writer} writes another value",
                lost, numbers, cells,
            )  # fmt: skip

    def atomic(self, lanes: Lanes, addresses: Array, width: int) -> tuple[Array, Array]:
        """Offsets for an atomic operation and the lanes that take part; atomics do not race with each other."""
        offsets, good = self.place(lanes, addresses, width, "changes")
        numbers = np.arange(lanes.count) if good is None else np.flatnonzero(good)
        offsets, who = offsets[numbers], lanes.positions()[numbers]
        if not len(numbers):
            return offsets, numbers
        self._count(lanes, "atomic", who, offsets, width)
        cells = self.cells(offsets, width)
        missing = self.write_time[cells] == 0
        if missing.any():
            text = "changes byte {at} of shared memory, which nothing wrote"
            self._report_cells(lanes, "uninitialised", text, missing, numbers, cells)
        self.check_write(lanes, numbers, who, offsets, cells, self._atomic(cells))
        self.note_write(self.clocks.column(who), cells, _ATOMIC)
        return offsets, numbers

    def _atomic(self, cells: Array) -> Array:
        """Cells that an atomic or ordered access wrote and no plain one read since: others may change them so."""
        return np.asarray((self.how[cells] == _ATOMIC) & (self.last_read[cells] < self.write_time[cells]))

    # What asynchronous operations do

    def expect_write(self, cells: Array, operation: int) -> None:
        if self.will_write is None:
            self.will_write = np.zeros(len(self.writer), np.int32)
        self.will_write[cells] = operation

    def expect_read(self, cells: Array, operation: int) -> None:
        if self.will_read is None:
            self.will_read = np.zeros(len(self.writer), np.int32)
        self.will_read[cells] = operation

    def end_write(self, cells: Array, threads: Array | int, *, engine: bool) -> None:
        """The bytes of a finished copy are there, written by `threads`, or for them by the copy engine."""
        if self.will_write is not None:
            self.will_write[cells] = 0
        self.note_write(threads, cells, _ASYNC if engine else 0)
        self.undefined[cells] = False

    def end_read(self, cells: Array, operation: int) -> None:
        assert self.will_read is not None, "a read that ends has begun"
        mine = self.will_read[cells] == operation
        self.will_read[cells[mine]] = 0

    def note_group_read(self, cells: Array, warp: int) -> None:
        """A product of the four warps from `warp` on (of the cluster) has read cells; any of them may vouch for it."""
        self.reads[cells, warp] = (self.clocks.now << _WHEN) | _PRODUCT
        self.last_read[cells] = self.clocks.now

    def note_copy_read(self, position: int, cells: Array) -> None:
        """A copy of a thread has read cells, as that thread now knows: who writes them has to come after it."""
        self._note_reads(np.array([position]), cells.reshape(1, -1))

    def check_async_read(self, lanes: Lanes, number: int, position: int, cells: Array, what: str) -> None:
        """A copy engine or matrix unit reads cells for a thread: they must be written, ordered and fenced."""
        state, clocks = lanes.state, self.clocks
        flat = cells.reshape(1, -1)
        numbers = np.array([number])
        written = self.write_time[flat]
        if self.will_write is not None:
            self._report_cells(
                lanes, "early-read", f"{what} reads byte {{at}} of shared memory before the wait for the copy into it",
                self.will_write[flat] != 0, numbers, flat,
            )  # fmt: skip
            written = np.where(self.will_write[flat] != 0, 1, written)
        self._report_cells(lanes, "uninitialised", f"{what} reads byte {{at}} of shared memory, which nothing wrote",
                           written == 0, numbers, flat)  # fmt: skip
        block = np.broadcast_to(state.block_of[position], flat.shape)
        thread = np.broadcast_to(state.thread_of[position], flat.shape)
        writer = self.writer[flat]
        unordered = (written > 0) & ~clocks.ordered(block, thread, writer, written)
        self._report_cells(
            lanes, "race", f"{what} reads byte {{at}} of shared memory, which {{writer}} wrote, in no order with it",
            unordered, numbers, flat,
        )  # fmt: skip
        writers = clocks.position(block, np.minimum(writer, clocks.members - 1))
        fenced = np.maximum(state.fenced_at[writers], state.fenced_at[position])
        unseen = (written > 1) & (self.how[flat] != _ASYNC) & (fenced < written) & (writer < clocks.members)
        self._report_cells(
            lanes, "missing-fence",
            f"{what} reads byte {{at}} of shared memory, which {{writer}} wrote without fence.proxy.async after it",
            unseen, numbers, flat,
        )  # fmt: skip

    # Reports and counts

    def _report_cells(self, lanes: Lanes, kind: str, text: str, wrong: Array, numbers: Array, cells: Array) -> None:
        if not wrong.any():
            return
        rows = np.flatnonzero(wrong.any(axis=1))
        cell = int(cells[rows[0]][wrong[rows[0]]][0])
        address = cell * self.granule % self.stride
        writer = int(self.writer[cell])
        name = "the copy engine" if writer >= self.clocks.members else self._name(lanes, cell, writer)
        value = self.bytes.data[cell * self.granule : (cell + 1) * self.granule][::-1].tobytes().hex()
        message = text.format(at=address, writer=name) + f" (now 0x{value})"
        lanes.report(kind, message, numbers[rows], address=address, space="shared")

    def _name(self, lanes: Lanes, cell: int, writer: int) -> str:
        home = cell * self.granule // self.stride
        position = int(self.clocks.position(home, writer))
        block, thread = lanes.state.place_of(position)
        return f"thread {thread}" if position // self.clocks.threads == home else f"thread {thread} of block {block}"

    def _count(self, lanes: Lanes, kind: str, who: Array, offsets: Array, size: int) -> None:
        state = lanes.state
        state.counts.shared_access(
            lanes.step.place.line, kind, state.warp_of[who], state.lane_of[who], offsets % self.stride, size
        )  # fmt: skip
