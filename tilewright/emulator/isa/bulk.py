"""Bulk copies: flat pieces and boxes of tensors, moved by a copy engine for one thread.

Loads are counted by an mbarrier; stores and reductions belong to bulk groups of the thread. A store reads shared memory
as late as its group allows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.emulator import spaces, tensor_maps
from tilewright.emulator.decode import Decoder
from tilewright.emulator.isa.atomics import apply
from tilewright.emulator.isa.load_store import hints
from tilewright.emulator.isa.mbarrier import places
from tilewright.emulator.isa.table import Built, instruction
from tilewright.emulator.lanes import Lanes
from tilewright.emulator.mbarriers import BulkLoad
from tilewright.emulator.memory import GLOBAL_BASE
from tilewright.emulator.scalars import WIDTHS, Array
from tilewright.emulator.shared import RANK_SHIFT
from tilewright.emulator.syntax import Address

GROUP = "bulk copy"
_REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
_KINDS_OF_CODES = {0: "u8", 1: "u16", 2: "u32", 3: "s32", 4: "u64", 5: "s64", 6: "f16x2", 7: "f32", 8: "f32", 9: "f64",
                   10: "bf16x2"}  # fmt: skip


@dataclass
class BulkStore:
    """A pending copy from shared to global memory."""

    number: int
    position: int
    group: int
    cells: Array
    perform: Callable[[], None]


def bulk_copy(decoder: Decoder, *, reduces: bool) -> Built:
    decoder.flag("async", "bulk")
    if decoder.flag("commit_group"):
        decoder.count(0)
        return Built(lambda lanes: _groups(lanes).__setitem__(lanes.index, _groups(lanes)[lanes.index] + 1), GROUP)
    if decoder.flag("wait_group"):
        decoder.flag("read")
        decoder.count(1)
        left = decoder.integer(0)
        return Built(lambda lanes: _wait(lanes, left), GROUP)
    prefetches = decoder.flag("prefetch")
    if prefetches:
        decoder.modifiers.clear()
        return Built(lambda lanes: None, "prefetch")
    operation = decoder.one_of(*_REDUCTIONS) if reduces else ""
    tensor = decoder.flag("tensor")
    rank = int(decoder.one_of("1d", "2d", "3d", "4d", "5d")[0]) if tensor else 0
    directions = [name for name in decoder.modifiers if name in spaces.NAMES]
    decoder.modifiers = [name for name in decoder.modifiers if name not in directions]
    if len(directions) != 2:
        raise decoder.error("needs the spaces it copies to and from")
    multicast = decoder.flag("multicast::cluster")
    decoder.flag("tile", "mbarrier::complete_tx::bytes", "bulk_group", "noftz")
    decoder.starting("cta_group::")
    hints(decoder)
    if directions[0] == "global":
        return _tensor_store(decoder, rank, operation) if tensor else _flat_store(decoder, operation)
    if directions[1] != "global":
        if tensor or operation or multicast:
            raise decoder.error("only plain copies between shared memories are emulated")
        return _copy_between_blocks(decoder)
    return _tensor_load(decoder, rank, multicast) if tensor else _flat_load(decoder, multicast)


# Loads


def _flat_load(decoder: Decoder, multicast: bool) -> Built:
    target, _, _ = decoder.address(0)
    source, _, _ = decoder.address(1)
    length, barrier = decoder.get(2, "u32"), decoder.address(3)[0]
    mask = decoder.get(4, "u16") if multicast else None

    def run(lanes: Lanes) -> None:
        addresses = np.asarray(source(lanes))
        lengths = np.broadcast_to(np.asarray(length(lanes)).astype(np.int64), (lanes.count,))

        def contents(number: int) -> Array | None:
            if lengths[number] % 16 or not lengths[number] or addresses[number] % 16:
                lanes.report("bad-operand", f"a bulk copy of {int(lengths[number])} bytes", number)
                return None
            one = lanes.only(np.arange(lanes.count) == number)
            return _read(one, addresses[number] + np.arange(0, lengths[number], 16), 16)

        _issue_loads(lanes, np.asarray(target(lanes)), np.asarray(barrier(lanes)), mask, contents)

    return Built(run, GROUP)


def _tensor_load(decoder: Decoder, rank: int, multicast: bool) -> Built:
    target, _, _ = decoder.address(0)
    maps, coordinates = _map(decoder, 1, rank)
    barrier = decoder.address(2)[0]
    mask = decoder.get(3, "u16") if multicast else None

    def run(lanes: Lanes) -> None:
        targets = np.asarray(target(lanes))
        where, at = np.asarray(maps(lanes)), coordinates(lanes)

        def contents(number: int) -> Array | None:
            box = _box(lanes, number, where, at)
            if box is None:
                return None
            offsets, inside = tensor_maps.elements_of(box, tuple(at[number].tolist()))
            values = np.zeros((len(offsets), box.element_bytes), np.uint8)
            if box.nan_fill:
                values[:] = 0xFF
            one = lanes.only(np.arange(lanes.count) == number)
            found = _read(one, box.address + offsets[inside], box.element_bytes) if inside.any() else None
            if inside.any():
                if found is None:
                    return None
                values[inside] = found.reshape(-1, box.element_bytes)
            return _swizzle(values.reshape(-1), int(targets[number]), box.swizzle)

        _issue_loads(lanes, targets, np.asarray(barrier(lanes)), mask, contents)

    return Built(run, GROUP)


def _issue_loads(
    lanes: Lanes, targets: Array, barriers: Array, mask: Any, contents: Callable[[int], Array | None]
) -> None:
    """Every thread's copy, to its own block or to those of a multicast: pending until the mbarrier is waited for."""
    peers = lanes.state.shared.peers
    masks = None if mask is None else np.broadcast_to(np.asarray(mask(lanes)).astype(np.int64), (lanes.count,))
    for number in range(lanes.count):
        values = contents(number)
        if values is None:
            continue
        ranks = [None] if masks is None else [rank for rank in range(16) if masks[number] >> rank & 1]
        for rank in ranks:
            own, signal = targets[number : number + 1], barriers[number : number + 1]
            if rank is not None:
                if peers is None or rank >= peers.shape[1]:
                    lanes.report("bad-operand", f"a copy to rank {rank} of the cluster", number)
                    continue
                low = (1 << RANK_SHIFT) - 1
                own, signal = (own & low) | ((rank + 1) << RANK_SHIFT), (signal & low) | ((rank + 1) << RANK_SHIFT)
            one = lanes.only(np.arange(lanes.count) == number)
            if int(own[0]) % 16:
                lanes.report("misaligned", f"copies to byte {int(own[0])} of shared memory", number, space="shared")
                continue
            _expect(one, own, signal, values, len(values))


def _expect(one: Lanes, target: Array, barrier: Array, values: Array | Callable[[], Array], length: int) -> int | None:
    """A copy of one thread to shared memory is pending until the mbarrier that counts it is waited for: its number."""
    state = one.state
    shared, piece = state.shared, min(length, 16)
    starts, good = shared.place(one, target, piece, "copies", stays=False)
    _, good_end = shared.place(one, target + length - piece, piece, "copies", stays=False)
    offsets, good_barriers = places(one, barrier, "counts at", stays=False)
    if good is not None or good_end is not None or not len(good_barriers):
        return None
    found = state.mbarriers.find(one, np.array([0]), int(offsets[0]))
    if found is None:
        return None
    cells = shared.cells(starts, length)
    shared.check_write(one, np.array([0]), one.positions(), starts, cells, None)
    serial = state.copies.next_number()
    shared.expect_write(cells, serial)
    state.counts.bytes["shared_bulk_copy"] += length
    found.loads.append(BulkLoad(serial, int(starts[0]), values, cells))
    return serial


def _copy_between_blocks(decoder: Decoder) -> Built:
    """Own shared memory to that of a block of the cluster; the source is read as late as the mbarrier allows."""
    target, _, _ = decoder.address(0)
    source, _, _ = decoder.address(1)
    length, barrier = decoder.get(2, "u32"), decoder.address(3)[0]

    def run(lanes: Lanes) -> None:
        shared = lanes.state.shared
        targets, barriers = np.asarray(target(lanes)), np.asarray(barrier(lanes))
        sources = np.asarray(source(lanes))
        lengths = np.broadcast_to(np.asarray(length(lanes)).astype(np.int64), (lanes.count,))
        for number in range(lanes.count):
            count = int(lengths[number])
            if count % 16 or not count or sources[number] % 16 or targets[number] % 16:
                lanes.report("bad-operand", f"a bulk copy of {count} bytes", number)
                continue
            one = lanes.only(np.arange(lanes.count) == number)
            starts, good = shared.place(one, sources[number : number + 1], 16, "copies from", stays=False)
            _, good_end = shared.place(one, sources[number : number + 1] + count - 16, 16, "copies from", stays=False)
            if good is not None or good_end is not None:
                continue
            cells, start = shared.cells(starts, count)[0], int(starts[0])
            shared.check_async_read(one, 0, int(one.positions()[0]), cells, "the copy")
            serial = lanes.state.copies.next_number()

            def read(start: int = start, count: int = count, cells: Array = cells, serial: int = serial) -> Array:
                shared.end_read(cells, serial)
                return shared.bytes.data[start : start + count].copy()

            if _expect(one, targets[number : number + 1], barriers[number : number + 1], read, count) is not None:
                shared.expect_read(cells, serial)

    return Built(run, GROUP)


def store_later(decoder: Decoder) -> Built:
    """``st.async``: words to shared memory of the cluster, counted by an mbarrier there."""
    decoder.flag("weak")
    if not decoder.flag("shared::cluster") or not decoder.flag("mbarrier::complete_tx::bytes"):
        raise decoder.error("only .shared::cluster with .mbarrier::complete_tx::bytes is emulated")
    vector = int(decoder.one_of("v2", "v4", default="v1")[1:])
    kind = decoder.type()
    decoder.count(3)
    target, barrier = decoder.address(0)[0], decoder.address(2)[0]
    before = len(decoder.reads)
    gets = [decoder.value(item, f"b{WIDTHS[kind]}") for item in decoder.items(1)]
    read = tuple(decoder.reads[before:])
    if len(gets) != vector or WIDTHS[kind] < 32:
        raise decoder.error(f"{len(gets)} values of .{kind} for {vector} elements")

    def run(lanes: Lanes) -> None:
        lanes.require(read, "an asynchronous store")
        words = np.stack([np.broadcast_to(np.asarray(get(lanes)), (lanes.count,)) for get in gets], axis=1)
        values = np.ascontiguousarray(words).view(np.uint8)
        targets, barriers = np.asarray(target(lanes)), np.asarray(barrier(lanes))
        for number in range(lanes.count):
            one = lanes.only(np.arange(lanes.count) == number)
            own, signal = targets[number : number + 1], barriers[number : number + 1]
            _expect(one, own, signal, values[number].copy(), values.shape[1])

    return Built(run, GROUP)


def _read(lanes: Lanes, addresses: Array, size: int) -> Array | None:
    """Bytes of global memory for one thread; None if they cannot be read. What is read too early can be."""
    memory = lanes.state.memory
    many = Lanes(lanes.state, np.repeat(lanes.positions()[:1], len(addresses)), len(addresses), lanes.step)
    width = min(size, 8)
    before = _times_unreadable(lanes)
    values, _ = memory.load(many, addresses, width, size // width)
    if _times_unreadable(lanes) != before:
        return None
    return np.ascontiguousarray(values).view(np.uint8).reshape(-1)


def _times_unreadable(lanes: Lanes) -> int:
    """How often diagnostics were reported after which there is nothing to copy."""
    return sum(each.times for each in lanes.state.diagnostics.found.values() if each.kind != "too-early")


def _swizzle(values: Array, target: int, span: int) -> Array:
    """Box bytes in the order in which they lie in shared memory from `target` on."""
    if not span:
        return values
    target &= (1 << RANK_SHIFT) - 1
    found = np.empty_like(values)
    found[tensor_maps.swizzled(target + np.arange(len(values)), span) - target] = values
    return found


# Stores


def _flat_store(decoder: Decoder, operation: str) -> Built:
    kind = decoder.type() if operation else ""
    target, _, _ = decoder.address(0)
    source, _, _ = decoder.address(1)
    length = decoder.get(2, "u32")

    def run(lanes: Lanes) -> None:
        targets, sources = np.asarray(target(lanes)), np.asarray(source(lanes))
        lengths = np.broadcast_to(np.asarray(length(lanes)).astype(np.int64), (lanes.count,))
        for number in range(lanes.count):
            count = int(lengths[number])
            if count % 16 or not count or targets[number] % 16:
                lanes.report("bad-operand", f"a bulk copy of {count} bytes", number)
                continue
            where = targets[number] + np.arange(0, count, 16)
            inside = np.ones(count // 16, np.bool_)
            _issue_store(lanes, number, int(sources[number]), count, 0, inside, where, 16, operation, kind)

    return Built(run, GROUP)


def _tensor_store(decoder: Decoder, rank: int, operation: str) -> Built:
    maps, coordinates = _map(decoder, 0, rank)
    source, _, _ = decoder.address(1)

    def run(lanes: Lanes) -> None:
        sources, where, at = np.asarray(source(lanes)), np.asarray(maps(lanes)), coordinates(lanes)
        for number in range(lanes.count):
            box = _box(lanes, number, where, at)
            if box is None:
                continue
            offsets, inside = tensor_maps.elements_of(box, tuple(at[number].tolist()))
            raw = _raw_map(lanes, number, where)
            kind = _KINDS_OF_CODES.get(tensor_maps.get(raw, "elemtype"), "") if operation and raw is not None else ""
            _issue_store(lanes, number, int(sources[number]), box.bytes, box.swizzle, inside, box.address + offsets,
                         box.element_bytes, operation, kind)  # fmt: skip

    return Built(run, GROUP)


def _issue_store(
    lanes: Lanes, number: int, source: int, length: int, span: int, inside: Array, addresses: Array, size: int,
    operation: str, kind: str,
) -> None:  # fmt: skip
    """Shared memory from `source` goes to `addresses` (pieces of `size` bytes, those inside) when its group is done."""
    state = lanes.state
    shared = state.shared
    one = lanes.only(np.arange(lanes.count) == number)
    place = np.array([source])
    starts, good = shared.place(one, place, 16, "copies from", stays=False)
    _, good_end = shared.place(one, place + length - 16, 16, "copies from", stays=False)
    if good is not None or good_end is not None:
        return
    if inside.any():
        state.memory.check_waited(one, addresses[inside][:1], "writes")
    start, position = int(starts[0]), int(lanes.positions()[number])
    cells = shared.cells(starts, length)
    shared.check_async_read(one, 0, position, cells[0], "the copy")
    serial = state.copies.next_number()
    shared.expect_read(cells, serial)

    def perform() -> None:
        within = np.arange(length)
        if span:
            within = tensor_maps.swizzled(source + within, span) - source
        values = shared.bytes.data[start + within].reshape(-1, size)[inside]
        shared.end_read(cells, serial)
        shared.note_copy_read(position, cells)
        if not len(values):
            return
        where = addresses[inside]
        many = Lanes(state, np.full(len(where), position), len(where), lanes.step)
        width = min(size, 8)
        words = np.ascontiguousarray(values).view(f"<u{width}")
        if not operation:
            state.memory.store(many, where, width, words[:, 0] if words.shape[1] == 1 else words)
            return
        _reduce(many, where, values, operation, kind)

    pending: list[BulkStore] = state.extra.setdefault("bulk stores", [])
    pending.append(BulkStore(serial, position, int(_groups(lanes)[position]), cells, perform))


def _reduce(lanes: Lanes, addresses: Array, values: Array, operation: str, kind: str) -> None:
    """Elements combined with what is in global memory."""
    memory = lanes.state.memory
    flat = np.ascontiguousarray(values).reshape(-1)
    width = {"f16": 2, "bf16": 2, "f16x2": 2, "bf16x2": 2}.get(kind) or int(kind[1:]) // 8
    each = np.repeat(addresses, values.shape[1] // width) + np.tile(
        np.arange(0, values.shape[1], width), len(addresses)
    )
    many = Lanes(lanes.state, np.repeat(lanes.positions(), len(each) // len(addresses)), len(each), lanes.step)
    offsets, kept = memory.atomic(many, each, width)
    element = kind.removesuffix("x2")
    operands = flat.view({"f16": np.float16, "f32": np.float32, "f64": np.float64}.get(element, f"<u{width}"))
    if element[0] == "s":
        operands = operands.view(f"<i{width}")
    apply(memory.bytes, offsets, width, operation, element, [operands[kept]], gives=False)


def _groups(lanes: Lanes) -> Array:
    state = lanes.state
    found: Array = state.extra.setdefault("bulk groups", np.zeros(state.size, np.int64))
    return found


def _wait(lanes: Lanes, left: int) -> None:
    """All but the last `left` bulk groups of these threads have read their sources."""
    pending: list[BulkStore] = lanes.state.extra.get("bulk stores", [])
    if not pending:
        return
    mine = set(lanes.positions().tolist())
    groups = _groups(lanes)
    kept = []
    for store in pending:
        if store.position in mine and store.group < groups[store.position] - left:
            store.perform()
        else:
            kept.append(store)
    lanes.state.extra["bulk stores"] = kept


def abandon_stores(lanes: Lanes) -> None:
    """Threads end with stores that still read shared memory: a diagnostic, and the stores are done."""
    pending: list[BulkStore] = lanes.state.extra.get("bulk stores", [])
    if not pending:
        return
    positions = lanes.positions()
    for store in [store for store in pending if store.position in positions]:
        number = int(np.flatnonzero(positions == store.position)[0])
        lanes.report("overwritten", "the thread ends while a bulk copy may still read shared memory", number)
        store.perform()
        pending.remove(store)


# Tensor maps


def _map(decoder: Decoder, number: int, rank: int) -> tuple[Callable[[Lanes], Any], Callable[[Lanes], Array]]:
    """The address of the map, and the coordinates (lanes, rank), innermost first."""
    operand = decoder.operand(number)
    if not isinstance(operand, Address) or operand.coordinates is None or len(operand.coordinates.items) != rank:
        raise decoder.error(f"needs [map, {{{rank} coordinates}}]")
    address, _, space = decoder.location(operand)
    base = decoder.context["$parameters"] if space == "param" else 0
    gets = [decoder.value(item, "s32") for item in operand.coordinates.items]

    def coordinates(lanes: Lanes) -> Array:
        found = np.empty((lanes.count, rank), np.int64)
        for axis, get in enumerate(gets):
            found[:, axis] = get(lanes)
        return found

    return (lambda lanes: address(lanes) + base), coordinates


def _raw_map(lanes: Lanes, number: int, addresses: Array) -> Array | None:
    address = int(addresses[number])
    memory = lanes.state.memory.bytes.data
    start = address - GLOBAL_BASE
    if not 0 <= start <= len(memory) - tensor_maps.BYTES or start % 64:
        lanes.report("bad-operand", f"no tensor map at address {address:#x}", number, address=address)
        return None
    return memory[start : start + tensor_maps.BYTES]


def _box(lanes: Lanes, number: int, addresses: Array, coordinates: Array) -> tensor_maps.Box | None:
    """The map of one of the lanes, whose box begins at its coordinates; None, and a diagnostic, where it cannot."""
    raw = _raw_map(lanes, number, addresses)
    if raw is None:
        return None
    found = tensor_maps.decode(raw)
    if isinstance(found, str):
        lanes.report("bad-operand", found, number)
        return None
    at = tuple(coordinates[number].tolist())
    if len(found.box) != len(at):
        lanes.report("bad-operand", f"a map of {len(found.box)} axes for {len(at)} coordinates", number)
        return None
    wrong = tensor_maps.misplaced(found, at)
    if wrong:
        lanes.report("bad-operand", wrong, number)
        return None
    return found


@instruction("tensormap")
def change_map(decoder: Decoder) -> Built:
    """``tensormap.replace`` changes one field; ``cp_fenceproxy`` copies a map from shared to global memory."""
    if decoder.flag("cp_fenceproxy"):
        decoder.modifiers.clear()
        target, source = decoder.address(0)[0], decoder.address(1)[0]

        def publish(lanes: Lanes) -> None:
            one = lanes.only(np.arange(lanes.count) == 0) if lanes.count > 1 else lanes
            pieces = np.arange(0, tensor_maps.BYTES, 8)
            for warp in np.unique(lanes.state.warp_of[lanes.index]).tolist():
                first = int(np.flatnonzero(lanes.state.warp_of[lanes.index] == warp)[0])
                one = lanes.only(np.arange(lanes.count) == first)
                many = Lanes(lanes.state, np.repeat(one.positions(), len(pieces)), len(pieces), lanes.step)
                values, _ = spaces.load(many, "shared", np.asarray(source(one))[0] + pieces, 8, 1)
                spaces.store(many, "global", np.asarray(target(one))[0] + pieces, 8, values, None)

        return Built(publish, GROUP)
    decoder.flag("replace")
    decoder.flag("tile")
    field = decoder.one_of(*tensor_maps.FIELDS)
    shared = [name for name in decoder.modifiers if name in spaces.NAMES]
    decoder.modifiers = [name for name in decoder.modifiers if name not in (*shared, "b1024")]
    kind = decoder.type()
    address, _, _ = decoder.address(0)
    indexed = decoder.count(2, 3) == 3
    ordinal = decoder.integer(1) if indexed else 0
    value = decoder.get(2 if indexed else 1, kind)
    offset, width = tensor_maps.FIELDS[field]
    space = spaces.NAMES[shared[0]] if shared else "generic"

    def replace(lanes: Lanes) -> None:
        where = np.asarray(address(lanes)) + offset + width * ordinal
        values = np.broadcast_to(np.asarray(value(lanes)), (lanes.count,)).astype(f"<u{width}")
        spaces.store(lanes, space, where, width, values, None)

    return Built(replace, GROUP)


def arrive_when_copied(decoder: Decoder) -> Built:
    """``cp.async.mbarrier.arrive``: an arrival once the thread's copies so far are done; `noinc` counts as expected."""
    decoder.flag("async", "arrive")
    counted = decoder.flag("noinc")
    for name in [name for name in decoder.modifiers if name in spaces.NAMES]:
        decoder.modifiers.remove(name)
    decoder.type()
    address, _, _ = decoder.address(0)
    decoder.count(1)

    def control(lanes: Lanes, scheduler: Any, at: int) -> int | None:
        offsets, good = places(lanes, np.asarray(address(lanes)))
        positions = lanes.positions()
        for number in good.tolist():
            offset, position = int(offsets[number]), int(positions[number])
            if lanes.state.mbarriers.find(lanes, np.array([number]), offset) is not None:
                lanes.state.mbarriers.when_copied(offset, position, counts=counted)
        return at + 1

    return Built(group=GROUP, control=control)
