"""`wgmma`: products of four warps whose operands lie in shared memory, described by matrix descriptors."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tilewright.emulator.counts import distinct
from tilewright.emulator.decode import Decoder
from tilewright.emulator.fragments import wgmma_a, wgmma_d
from tilewright.emulator.isa.matrices import Registers, kinds_of, shape_of
from tilewright.emulator.isa.table import Built, instruction, whole_warps
from tilewright.emulator.lanes import Lanes
from tilewright.emulator.products import elements, multiply, registers, unit_of
from tilewright.emulator.scalars import WIDTHS, Array
from tilewright.emulator.syntax import Vector
from tilewright.emulator.tensor_maps import swizzled
from tilewright.emulator.warpgroups import WARPGROUP, PendingProduct

GROUP = "matrix product"
_SPANS = (0, 128, 64, 32)  # bits 62-63 of a descriptor


@instruction("wgmma")
def wgmma(decoder: Decoder) -> Built:
    what = decoder.one_of("mma_async", "fence", "commit_group", "wait_group")
    decoder.flag("sync", "aligned")
    if what == "mma_async":
        return _product(decoder)
    if what == "wait_group":
        decoder.count(1)
        left = decoder.integer(0)
        return Built(lambda lanes: lanes.state.warpgroups.wait(lanes, left), GROUP, meeting=whole_warps)
    decoder.count(0)
    if what == "commit_group":

        def commit(lanes: Lanes) -> None:
            lanes.state.warpgroups.open_group[lanes.index] += 1

        return Built(commit, GROUP, meeting=whole_warps)

    def fence(lanes: Lanes) -> None:
        lanes.state.warpgroups.fenced[lanes.index] = lanes.state.clocks.now

    return Built(fence, GROUP, meeting=whole_warps)


def _product(decoder: Decoder) -> Built:
    if decoder.flag("sp"):
        raise decoder.error("sparse products are not emulated")
    m, n, k = shape_of(decoder)
    saturate = decoder.flag("satfinite")
    kinds = kinds_of(decoder)
    if len(kinds) != 3 or m != 64 or n % 8 or not 8 <= n <= 256:
        raise decoder.error(f"m{m}n{n}k{k} with types {', '.join(kinds)} is not emulated")
    kind_d, kind_a, kind_b = kinds
    bits = WIDTHS[kind_a]
    if k * bits != 256:
        raise decoder.error(f"K is {256 // bits} for {kind_a}")
    a_in_registers = isinstance(decoder.operand(1), Vector)
    whole = decoder.operands
    fragment, result = wgmma_a(k, bits), wgmma_d(n)
    per_thread = n // 2 * WIDTHS[kind_d] // 32
    items = decoder.items(0)
    if len(items) != per_thread:
        raise decoder.error(f"{len(items)} registers for D, needs {per_thread}")
    held_in = Registers(decoder, items, 32)
    held = Registers(decoder, items, 32, target=True)
    held_a = Registers(decoder, decoder.items(1), 32) if a_in_registers else None
    get_a = None if a_in_registers else decoder.get(1, "b64")
    get_b = decoder.get(2, "b64")
    keeps = decoder.get(3, "pred") if decoder.is_predicate(3) else None
    keeps_always = True if keeps is not None else bool(decoder.integer(3))
    constants = [decoder.integer(number) for number in range(4, len(whole))]
    floats = kind_d != "s32"
    sign_a, sign_b = (constants[0], constants[1]) if floats and len(constants) > 1 else (1, 1)
    transposes = constants[2:] if floats else []
    transpose_b = bool(transposes[-1]) if transposes else False
    transpose_a = bool(transposes[0]) if len(transposes) == 2 else False
    unit = unit_of(decoder.target_name)

    def run(lanes: Lanes) -> None:
        state = lanes.state
        groups = lanes.positions().reshape(-1, WARPGROUP)
        _check_fence(lanes, (*held.writes, *(held_a.reads if held_a else ())))
        described_b = np.broadcast_to(np.asarray(get_b(lanes)), (lanes.count,)).reshape(-1, WARPGROUP)[:, 0]
        read_b = [_places(lanes, number * WARPGROUP, int(each), n, k, WIDTHS[kind_b], transpose_b, "B of the product")
                  for number, each in enumerate(described_b)]  # fmt: skip
        read_a: list[tuple[Array, Array]] = []
        values_a = None
        if held_a is not None:
            values_a = held_a.fetch(lanes, WARPGROUP)
        elif get_a is not None:
            described_a = np.broadcast_to(np.asarray(get_a(lanes)), (lanes.count,)).reshape(-1, WARPGROUP)[:, 0]
            read_a = [_places(lanes, number * WARPGROUP, int(each), m, k, bits, transpose_a, "A of the product")
                      for number, each in enumerate(described_a)]  # fmt: skip
        kept = np.full(len(groups), keeps_always)
        if keeps is not None:
            kept = np.broadcast_to(np.asarray(keeps(lanes)), (lanes.count,)).reshape(-1, WARPGROUP)[:, 0].copy()
        cells = [
            distinct(np.concatenate([cells for _, cells in (*read_a[number : number + 1], b)]))
            for number, b in enumerate(read_b)
        ]
        step = lanes.step

        def perform(chosen: Array) -> None:
            every = state.warpgroups.lanes_of(product, chosen)
            accumulators = result.gather(elements(held_in.fetch(every, WARPGROUP), kind_d))
            accumulators = np.where(kept[chosen][:, None, None], accumulators, 0)
            if values_a is not None:
                left = fragment.gather(elements(values_a[chosen], kind_a))
            else:
                left = _matrix(every, [read_a[number][0] for number in chosen.tolist()], kind_a)
            right = _matrix(every, [read_b[number][0] for number in chosen.tolist()], kind_b).transpose(0, 2, 1)
            if sign_a * sign_b < 0:
                left = -left
            found = multiply(left, right, accumulators, (kind_a, kind_b), kind_d, unit, saturate=saturate)
            held.put(every, registers(result.scatter(found), kind_d))
            if state.undefined:
                for slot in held.writes:
                    mask = every.undefined((slot,))
                    every.define((slot,), None if mask is None else mask & np.repeat(kept[chosen], WARPGROUP))

        product = PendingProduct(
            state.copies.next_number(), step, groups, state.warpgroups.open_group[groups[:, 0]].copy(), held.writes,
            held_a.reads if held_a else (), cells, perform,
        )  # fmt: skip
        state.warpgroups.issue(product)

    return Built(run, GROUP, meeting=whole_warps, own_taint=True, uses_products=True, warps=4, guarded=held.writes + (
        held_a.reads if held_a else ()))  # fmt: skip


def _check_fence(lanes: Lanes, slots: tuple[int, ...]) -> None:
    """Registers that a product uses and that other instructions wrote need a ``wgmma.fence`` after that."""
    written = lanes.state.written_at
    fenced = lanes.state.warpgroups.fenced[lanes.index]
    for slot in slots:
        late = written[slot][lanes.index] > fenced if slot in written else None
        if late is not None and late.any():
            lanes.report("missing-fence", "a register of the product was written after the last wgmma.fence",
                         np.flatnonzero(late))  # fmt: skip
            return


def _places(
    lanes: Lanes, number: int, descriptor: int, rows: int, k: int, bits: int, transposed: bool, what: str
) -> tuple[Array, Array]:
    """Offsets (rows, K) in the chunk's shared memory of an operand's elements, and the cells that have them.

    Checked as a read by the warpgroup.
    """
    state = lanes.state
    start, leading, stride = ((descriptor >> shift & 0x3FFF) << 4 for shift in (0, 16, 32))
    span = _SPANS[descriptor >> 62 & 3]
    if descriptor >> 49 & 7:
        lanes.report("bad-operand", f"{what}: a base offset in the descriptor is not emulated", number)
    shared = state.shared
    addresses, cells = _addresses(start, leading, stride, span, rows, k, bits, transposed, shared.granule)
    position = int(lanes.positions()[number])
    block = position // state.threads
    size = bits // 8
    if int(addresses.min()) < 0 or int(addresses.max()) + size > shared.length:
        lanes.report("out-of-bounds", f"{what} reaches byte {int(addresses.max())} of shared memory, which has "
                     f"{shared.length}", number, address=int(addresses.max()), space="shared")  # fmt: skip
        addresses = addresses % max(16, shared.length // 16 * 16)
        cells = distinct(addresses // shared.granule)
    cells = cells + block * (shared.stride // shared.granule)
    shared.check_async_read(lanes, number, position, cells, what)
    state.counts.bytes["shared_product_operands"] += rows * k * size
    return block * shared.stride + addresses, cells


@lru_cache(maxsize=256)
def _addresses(
    start: int, leading: int, stride: int, span: int, rows: int, k: int, bits: int, transposed: bool, granule: int
) -> tuple[Array, Array]:
    """Addresses (rows, K) of an operand's elements in the memory of a block, and the cells there that have them."""
    addresses = swizzled(operand_addresses(start, leading, stride, span, rows, k, bits, transposed), span)
    return addresses, distinct(addresses // granule)


def operand_addresses(
    start: int, leading: int, stride: int, span: int, rows: int, k: int, bits: int, transposed: bool
) -> Array:
    """Byte addresses (rows, K) before swizzling; `rows` are M of A or N of B; `transposed`: K is not contiguous.

    PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout" and "Strides".
    """
    size = bits // 8
    row, along = np.arange(rows)[:, None], np.arange(k)[None, :]
    if not transposed:
        byte = along * size
        if span:
            return np.asarray(start + row // 8 * stride + row % 8 * span + byte)
        return np.asarray(start + row // 8 * stride + byte // 16 * leading + row % 8 * 16 + byte % 16)
    if span:
        wide = span // size
        return np.asarray(start + row // wide * leading + row % wide * size + along // 8 * stride + along % 8 * span)
    wide = 16 // size
    return np.asarray(start + row // wide * stride + row % wide * size + along // 8 * leading + along % 8 * 16)


def _matrix(lanes: Lanes, places: list[Array], kind: str) -> Array:
    """Operands (n, rows, K) from shared memory, as `elements` gives them."""
    data = lanes.state.shared.bytes.data
    size = WIDTHS[kind] // 8
    raw = np.stack([data[each[..., None] + np.arange(size)] for each in places])
    flat = np.ascontiguousarray(raw).reshape(len(places), raw.shape[1], -1)
    return elements(flat.view(np.uint32), kind).reshape(len(places), raw.shape[1], raw.shape[2])
