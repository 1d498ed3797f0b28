"""Loads, stores, and what is about addresses: conversions between spaces, prefetches, cache policies."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.emulator import spaces
from tilewright.emulator.decode import Decoder
from tilewright.emulator.isa.table import Built, elementwise, instruction
from tilewright.emulator.lanes import Lanes
from tilewright.emulator.memory import GLOBAL_BASE, SHARED_BASE, WINDOW
from tilewright.emulator.scalars import CONTAINERS, SIGNED, WIDTHS, numpy_type, size
from tilewright.emulator.shared import GUESS, RANK_SHIFT

_ORDERS = ("weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "mmio")
_SCOPES = ("cta", "cluster", "gpu", "sys")
_CACHES = ("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "coherent")


def space_of(decoder: Decoder) -> str:
    """The space that the opcode names, `generic` without one."""
    named = [name for name in decoder.modifiers if name in spaces.NAMES]
    for name in named:
        decoder.modifiers.remove(name)
    return spaces.NAMES[named[0]] if named else "generic"


def hints(decoder: Decoder) -> None:
    """Takes cache operators and hints, which change no result."""
    decoder.flag(*_CACHES)
    decoder.starting("L1::", "L2::")


def ordering(decoder: Decoder) -> str:
    """Takes ordering and scope: "" where nothing orders the access, else `relaxed`, `acquire`, `release` or `acq_rel`.

    A volatile access counts as relaxed in kernels with fences, which make it a signal; elsewhere nothing is lost by
    asking for barriers.
    """
    order = decoder.one_of(*_ORDERS, default="weak")
    decoder.flag(*_SCOPES)
    if order == "weak" or (order == "volatile" and not decoder.linked.signals):
        return ""
    return "relaxed" if order in ("volatile", "mmio") else order


def effective(decoder: Decoder, space: str, found: str) -> str:
    """The space an access goes to: parameters of calls live in local memory, those of the kernel are constant."""
    if space == "param":
        return "local" if found == "local" else "param"
    if space == "generic" and found in ("shared", "local", "global", "const"):
        return "global" if found == "const" else found
    return space


@instruction("ld", "ldu")
def load(decoder: Decoder) -> Built:
    space = space_of(decoder)
    constant_cache = decoder.flag("nc")
    if constant_cache and space != "global":
        raise decoder.error(".nc is for global memory")
    hints(decoder)
    order = ordering(decoder)
    decoder.flag("unified")
    vector = int(decoder.one_of("v2", "v4", "v8", default="v1")[1:])
    kind = decoder.type()
    decoder.count(2, 3)
    targets = decoder.items(0)
    if len(targets) != vector:
        raise decoder.error(f"{len(targets)} registers for {vector} elements")
    raw = kind if kind in SIGNED else f"b{WIDTHS[kind]}"
    puts, slots = [], []
    for target in targets:
        before = len(decoder.writes)
        puts.append(decoder.target(target, raw))
        slots.append(decoder.writes[before:])
    writes = tuple(decoder.writes)
    if not order and writes and decoder.linked.speculative_reads.issuperset(writes):
        order = GUESS
    extends = kind in SIGNED
    address, constant, found = decoder.address(1)
    space = effective(decoder, space, found)
    width = size(kind)
    dtype = numpy_type(raw)
    if space == "param":
        if constant is None:
            base = decoder.context["$parameters"]
            inner = address
            address = lambda lanes: inner(lanes) + base  # noqa: E731
        else:
            return _load_parameter(decoder, constant, width, vector, puts, dtype)
        space = "global"

    def run(lanes: Lanes) -> None:
        if constant_cache:
            values, undefined = lanes.state.memory.load(lanes, address(lanes), width, vector, constant=True)
        else:
            values, undefined = spaces.load(lanes, space, address(lanes), width, vector, order=order)
        if vector == 1:
            puts[0](lanes, values.view(dtype))
        else:
            for number, put in enumerate(puts):
                put(lanes, np.ascontiguousarray(values[:, number]).view(dtype))
        if undefined is not None and undefined.ndim == 2:
            for bits, written in zip(undefined.T, slots, strict=True):
                for slot in written:
                    lanes.define_bytes(slot, np.where(bits != 0, np.uint8(0xFF), bits) if extends else bits)
        elif lanes.state.undefined or undefined is not None:
            lanes.define(writes, undefined)

    return Built(run, f"load {space}", own_taint=True)


def _load_parameter(decoder: Decoder, offset: int, width: int, vector: int, puts: Any, dtype: Any) -> Built:
    """A kernel parameter at a constant offset: the same for all threads."""
    end = decoder.linked.parameter_bytes
    if offset < 0 or offset + width * vector > end:
        raise decoder.error(f"bytes {offset} to {offset + width * vector} of parameters, which have {end}")
    start = decoder.context["$parameters"] - GLOBAL_BASE + offset
    if start % width:
        raise decoder.error(f"{width} bytes at offset {offset}, which is not aligned")

    def run(lanes: Lanes) -> None:
        raw = lanes.state.memory.bytes.data[start : start + width * vector].view(dtype)
        for number, put in enumerate(puts):
            put(lanes, raw[number])

    return Built(run, "load param")


@instruction("st")
def store(decoder: Decoder) -> Built:
    if decoder.flag("async"):
        from tilewright.emulator.isa.bulk import store_later

        return store_later(decoder)
    space = space_of(decoder)
    hints(decoder)
    order = ordering(decoder)
    vector = int(decoder.one_of("v2", "v4", "v8", default="v1")[1:])
    kind = decoder.type()
    decoder.count(2, 3)
    address, _, found = decoder.address(0)
    space = effective(decoder, space, found)
    if space == "param":
        raise decoder.error("kernel parameters are constant")
    sources = decoder.items(1)
    if len(sources) != vector:
        raise decoder.error(f"{len(sources)} values for {vector} elements")
    gets, slots = [], []
    for source in sources:
        before = len(decoder.reads)
        gets.append(decoder.value(source, f"b{WIDTHS[kind]}"))
        slots.append(decoder.reads[before:])
    values_read = tuple(slot for read in slots for slot in read)
    sums = decoder.sums(values_read)
    width = size(kind)
    stored = np.uint8((1 << width) - 1)
    container = CONTAINERS[WIDTHS[kind]]

    def run(lanes: Lanes) -> None:
        if vector == 1:
            values = np.broadcast_to(np.asarray(gets[0](lanes)), (lanes.count,))
        else:
            values = np.empty((lanes.count, vector), container)
            for number, get in enumerate(gets):
                values[:, number] = get(lanes)
        undefined = lanes.undefined(values_read) if lanes.state.undefined else None
        if undefined is not None:  # of wider registers only the bytes that are stored matter
            undefined = np.zeros((lanes.count, vector), np.uint8)
            for number, read in enumerate(slots):
                for slot in read:
                    undefined[:, number] |= lanes.undefined_bytes(slot) & stored
            undefined = undefined if undefined.any() else None
        spaces.store(lanes, space, address(lanes), width, values, undefined, order=order, sums=sums)

    return Built(run, f"store {space}", own_taint=True)


@instruction("cvta")
def convert_address(decoder: Decoder) -> Built:
    back = decoder.flag("to")
    space = space_of(decoder)
    kind = decoder.type()
    bases = {"global": 0, "shared": SHARED_BASE, "local": spaces.window("local")[0],
             "param": decoder.context["$parameters"]}  # fmt: skip
    base = np.array(bases[space], np.uint64).astype(numpy_type(kind))
    if not back:
        return elementwise(decoder, "move", lambda a: a + base, kind, (kind,))
    return elementwise(decoder, "move", lambda a: a - base, kind, (kind,))


@instruction("isspacep")
def is_space(decoder: Decoder) -> Built:
    space = space_of(decoder)
    decoder.count(2)
    put, get = decoder.put(0, "pred"), decoder.get(1, "u64")

    def run(lanes: Lanes) -> None:
        addresses = np.asarray(get(lanes)).astype(np.int64)
        if space == "param":
            put(lanes, np.zeros(lanes.count, np.bool_))
            return
        base, length = spaces.window(space)
        put(lanes, (addresses >= base) & (addresses < base + length))

    return Built(run, "move")


@instruction("mapa")
def map_address(decoder: Decoder) -> Built:
    """The address of a shared variable in another block of the cluster."""
    shared = decoder.flag("shared::cluster")
    kind = decoder.type()
    base = 0 if shared else SHARED_BASE
    decoder.count(3)
    put, rank = decoder.put(0, kind), decoder.get(2, "u32")
    get = decoder.get(1, kind)

    def run(lanes: Lanes) -> None:
        within = (np.asarray(get(lanes)).astype(np.int64) - base) & ((1 << RANK_SHIFT) - 1)
        put(
            lanes,
            (within + base + ((np.asarray(rank(lanes)).astype(np.int64) + 1) << RANK_SHIFT)).astype(numpy_type(kind)),
        )

    return Built(run, "move")


@instruction("getctarank")
def rank_of_address(decoder: Decoder) -> Built:
    decoder.flag("shared::cluster")
    kind = decoder.type()
    decoder.count(2)
    put, get = decoder.put(0, "u32"), decoder.get(1, kind)

    def run(lanes: Lanes) -> None:
        from tilewright.emulator.special import SPECIAL

        rank = ((np.asarray(get(lanes)).astype(np.int64) % WINDOW) >> RANK_SHIFT) & 0xFF
        put(lanes, np.where(rank == 0, SPECIAL["%cluster_ctarank"](lanes), rank - 1).astype(np.uint32))

    return Built(run, "move")


@instruction("prefetch", "prefetchu", "discard", "applypriority")
def prefetch(decoder: Decoder) -> Built:
    """Nothing that results depend on."""
    decoder.modifiers.clear()
    return Built(lambda lanes: None, "prefetch")


@instruction("createpolicy")
def create_policy(decoder: Decoder) -> Built:
    decoder.modifiers.clear()
    put = decoder.put(0, "b64")
    return Built(lambda lanes: put(lanes, np.uint64(0)), "move")
