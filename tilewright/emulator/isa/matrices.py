"""Matrix products of a warp (`mma`, `wmma`) and the loads and stores of their fragments (`ldmatrix`, `stmatrix`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from tilewright.emulator import spaces
from tilewright.emulator.decode import Decoder, Get, Put
from tilewright.emulator.fragments import Fragment, matrix_8x8, mma_a, mma_b, mma_c, wmma, wmma_passes
from tilewright.emulator.isa.load_store import space_of
from tilewright.emulator.isa.table import Built, instruction, whole_warps
from tilewright.emulator.lanes import Lanes
from tilewright.emulator.products import Unit, elements, multiply, multiply_unpacked, registers, unit_of
from tilewright.emulator.scalars import CONTAINERS, WIDTHS, Array
from tilewright.emulator.syntax import Operand

GROUP = "matrix product"
_BITS = {**WIDTHS, "s4": 4, "u4": 4, "b1": 1, "tf32": 32}
_KINDS = ("f16", "bf16", "tf32", "f32", "f64", "s32", "s8", "u8", "s4", "u4", "b1", "e4m3", "e5m2")


def shape_of(decoder: Decoder) -> tuple[int, int, int]:
    """Takes the modifier ``mMnNkK``."""
    for name in decoder.modifiers:
        found = re.fullmatch(r"m(\d+)n(\d+)k(\d+)", name)
        if found:
            decoder.modifiers.remove(name)
            m, n, k = (int(number) for number in found.groups())
            return m, n, k
    raise decoder.error("needs a shape")


def kinds_of(decoder: Decoder) -> tuple[str, ...]:
    """Takes the types of matrices, in order."""
    found = tuple(name for name in decoder.modifiers if name in _KINDS)
    decoder.modifiers = [name for name in decoder.modifiers if name not in _KINDS]
    return found


class Registers:
    """The registers of a fragment operand: fetched and stored as (warps, 32, registers)."""

    def __init__(self, decoder: Decoder, items: Sequence[Operand], width: int, *, target: bool = False) -> None:
        self.width = width
        reads, writes = len(decoder.reads), len(decoder.writes)
        self.gets: list[Get] = [] if target else [decoder.value(item, f"b{width}") for item in items]
        self.puts: list[Put] = [decoder.target(item, f"b{width}") for item in items] if target else []
        self.reads, self.writes = tuple(decoder.reads[reads:]), tuple(decoder.writes[writes:])

    def fetch(self, lanes: Lanes, group: int = 32) -> Array:
        found = np.empty((lanes.count, len(self.gets)), CONTAINERS[self.width])
        for number, get in enumerate(self.gets):
            found[:, number] = get(lanes)
        return found.reshape(-1, group, len(self.gets))

    def put(self, lanes: Lanes, values: Array) -> None:
        flat = values.reshape(lanes.count, -1)
        for number, put in enumerate(self.puts):
            put(lanes, np.ascontiguousarray(flat[:, number]))

    def undefined(self, lanes: Lanes, elements_: int, group: int = 32) -> Array:
        """Which elements (n, group, elements) nothing defined."""
        found = np.zeros((lanes.count, len(self.gets)), np.bool_)
        for number, slot in enumerate(self.reads):
            mask = lanes.undefined((slot,))
            if mask is not None:
                found[:, number] = mask
        return np.repeat(found, elements_ // len(self.gets), axis=1).reshape(-1, group, elements_)


def complete(lanes: Lanes) -> bool:
    """Whether the threads are whole warps; reports it otherwise."""
    ok = lanes.count % 32 == 0 and bool((lanes.state.lane_of[lanes.index].reshape(-1, 32) == np.arange(32)).all())
    if not ok:
        lanes.report("barrier-divergence", f"{lanes.count} threads execute it, which are no whole warps")
    return ok


def product(
    fragments: tuple[Fragment, Fragment, Fragment], operands: tuple[Registers, Registers, Registers, Registers],
    kinds: tuple[str, str, str, str], unit: Unit, *, saturate: bool, bits: str,
) -> Callable[[Lanes], None]:  # fmt: skip
    """The step of a product: gathers a, b and c, multiplies, scatters d."""
    (fa, fb, fc), (d, a, b, c) = fragments, operands
    kind_d, kind_a, kind_b, kind_c = kinds

    def run(lanes: Lanes) -> None:
        if not complete(lanes):
            return
        left, right, addend = (
            fragment.gather(elements(operand.fetch(lanes), kind))
            for fragment, operand, kind in ((fa, a, kind_a), (fb, b, kind_b), (fc, c, kind_c))
        )
        if unit.unpacks8 and kind_a in ("e4m3", "e5m2"):
            found = multiply_unpacked(left, right, addend, kind_d, unit)
        else:
            found = multiply(left, right, addend, (kind_a, kind_b), kind_d, unit, saturate=saturate, bits=bits)
        d.put(lanes, registers(fc.scatter(found), kind_d))
        known = lanes.state.undefined
        if known and not known.keys().isdisjoint((*a.reads, *b.reads, *c.reads, *d.writes)):
            rows: Array = np.asarray(fa.gather(a.undefined(lanes, fa.elements)).any(axis=2))
            columns: Array = np.asarray(fb.gather(b.undefined(lanes, fb.elements)).any(axis=1))
            lost = fc.gather(c.undefined(lanes, fc.elements)) | rows[:, :, None] | columns[:, None, :]
            spread: Array = np.asarray(fc.scatter(lost).reshape(lanes.count, len(d.writes), -1).any(axis=2))
            for number, slot in enumerate(d.writes):
                lanes.define((slot,), spread[:, number] if spread[:, number].any() else None)

    return run


@instruction("mma")
def mma(decoder: Decoder) -> Built:
    decoder.flag("sync", "aligned")
    if decoder.flag("sp") or any(name.startswith(("sp::", "kind::", "block_scale")) for name in decoder.modifiers):
        raise decoder.error("sparse and block-scaled products are not emulated")
    m, n, k = shape_of(decoder)
    decoder.flag("row", "col")
    saturate = decoder.flag("satfinite")
    bits = decoder.one_of("xor", "and", default="")
    decoder.flag("popc", "rn")
    kinds = kinds_of(decoder)
    if len(kinds) != 4 or n != 8 or m not in (8, 16) or (m == 8 and k == 4 and kinds[1] == "f16"):
        raise decoder.error(f"m{m}n{n}k{k} with types {', '.join(kinds)} is not emulated")
    decoder.count(4)
    width = _BITS[kinds[1]]
    fragments = (mma_a(m, k, width), mma_b(k, n, _BITS[kinds[2]]), mma_c(m, n))
    operands = _operands(decoder, fragments, (kinds[0], *kinds[1:]))
    run = product(
        fragments, operands, (kinds[0], kinds[1], kinds[2], kinds[3]), unit_of(decoder.target_name), saturate=saturate,
        bits=bits,
    )  # fmt: skip
    return Built(run, GROUP, meeting=whole_warps, own_taint=True)


def _operands(
    decoder: Decoder, fragments: tuple[Fragment, Fragment, Fragment], kinds: tuple[str, ...], packed: bool = True
) -> tuple[Registers, Registers, Registers, Registers]:
    """The operands d, a, b, c, with as many registers as their fragments need."""
    found = []
    for number, (kind, fragment) in enumerate(
        zip(kinds, (fragments[2], fragments[0], fragments[1], fragments[2]), strict=True)
    ):
        width = 64 if _BITS[kind] == 64 else 32
        items = decoder.items(number)
        needed = max(1, fragment.elements * _BITS[kind] // width)
        if len(items) != needed:
            raise decoder.error(f"operand {number} has {len(items)} registers, needs {needed}")
        found.append(Registers(decoder, items, width, target=number == 0))
    d, a, b, c = found
    return d, a, b, c


# wmma


@instruction("wmma")
def wmma_family(decoder: Decoder) -> Built:
    what = decoder.one_of("load", "store", "mma")
    decoder.flag("sync", "aligned")
    if what == "mma":
        return _wmma_product(decoder)
    operand = decoder.one_of("a", "b", "c", "d")
    column_major = decoder.one_of("row", "col") == "col"
    m, n, k = shape_of(decoder)
    space = space_of(decoder)
    (kind,) = kinds_of(decoder)
    rows, columns = {"a": (m, k), "b": (k, n), "c": (m, n), "d": (m, n)}[operand]
    given = decoder.count(2, 3)
    memory, registers_ = (0, 1) if what == "store" else (1, 0)
    items = decoder.items(registers_)
    width = 64 if kind == "f64" else 32
    per_lane = len(items) * width // _BITS[kind]
    if per_lane * 32 % (rows * columns):
        raise decoder.error(f"{len(items)} registers do not hold {rows}x{columns} elements of {kind}")
    fragment = wmma(rows, columns, per_lane)
    held = Registers(decoder, items, width, target=what == "load")
    address, _, found = decoder.address(memory)
    space = found if space == "generic" and found else space
    stride = decoder.get(2, "u32") if given == 3 else None
    bits = _BITS[kind]
    if bits < 8:
        raise decoder.error("elements of less than a byte are not emulated")
    element = CONTAINERS[bits]

    passes = wmma_passes(rows, columns, bits // 8, column_major)

    def addresses(lanes: Lanes, each: Fragment) -> Array:
        """Where the piece of every lane begins."""
        leading = columns if not column_major else rows
        step = (
            leading if stride is None else np.broadcast_to(np.asarray(stride(lanes)).astype(np.int64), (lanes.count,))
        )
        lane = lanes.state.lane_of[lanes.index]
        row, column = each.rows[lane, 0], each.columns[lane, 0]
        major, minor = (column, row) if column_major else (row, column)
        return np.asarray(np.asarray(address(lanes)) + (major * step + minor) * (bits // 8))

    def load(lanes: Lanes) -> None:
        if not complete(lanes):
            return
        matrices = np.empty((lanes.count // 32, rows, columns), element)
        missing = np.zeros(matrices.shape, np.bool_)
        for each in passes:
            found, undefined = spaces.load(lanes, space, addresses(lanes, each), bits // 8, each.elements)
            matrices[:, each.rows, each.columns] = found.reshape(-1, 32, each.elements)
            if undefined is not None:
                missing[:, each.rows, each.columns] = undefined.reshape(lanes.count // 32, 32, -1) != 0
        values = np.ascontiguousarray(fragment.scatter(matrices)).reshape(lanes.count, -1)
        held.put(lanes, values.view(CONTAINERS[width]))
        lost = fragment.scatter(missing).any(axis=2).reshape(-1)
        lanes.define(held.writes, lost if lost.any() else None)

    def store(lanes: Lanes) -> None:
        if not complete(lanes):
            return
        undefined = lanes.undefined(held.reads)
        values = held.fetch(lanes).reshape(lanes.count, -1).view(element)
        matrices = fragment.gather(values.reshape(-1, 32, per_lane))
        missing = None
        if undefined is not None:
            missing = fragment.gather(np.repeat(undefined.reshape(-1, 32, 1), per_lane, axis=2))
        for each in passes:
            own = each.scatter(matrices).reshape(lanes.count, -1)
            lost = None if missing is None else each.scatter(missing).reshape(lanes.count, -1) * np.uint8(0xFF)
            words = np.ascontiguousarray(own if each.elements > 1 else own[:, 0])
            spaces.store(lanes, space, addresses(lanes, each), bits // 8, words, lost)

    return Built(load if what == "load" else store, f"{what} {space}", meeting=whole_warps, own_taint=True)


def _wmma_product(decoder: Decoder) -> Built:
    decoder.flag("row", "col")
    m, n, k = shape_of(decoder)
    saturate = decoder.flag("satfinite")
    bits = decoder.one_of("xor", "and", default="")
    decoder.flag("popc", "rn")
    kinds = kinds_of(decoder)
    if len(kinds) == 2:
        kinds = (kinds[0], "f16", "f16", kinds[1])
    if len(kinds) != 4:
        raise decoder.error(f"types {', '.join(kinds)} are not emulated")
    decoder.count(4)
    made: list[tuple[Registers, Fragment]] = []
    for number, (kind, (rows, columns)) in enumerate(zip(kinds, ((m, n), (m, k), (k, n), (m, n)), strict=True)):
        width = 64 if kind == "f64" else 32
        items = decoder.items(number)
        per_lane = len(items) * width // _BITS[kind]
        if not per_lane or per_lane * 32 % (rows * columns):
            raise decoder.error(f"operand {number} has {len(items)} registers")
        made.append((Registers(decoder, items, width, target=number == 0), wmma(rows, columns, per_lane)))
    (d, _), (a, fa), (b, fb), (c, fc) = made
    run = product(
        (fa, fb, fc), (d, a, b, c), (kinds[0], kinds[1], kinds[2], kinds[3]), unit_of(decoder.target_name),
        saturate=saturate, bits=bits,
    )  # fmt: skip
    return Built(run, GROUP, meeting=whole_warps, own_taint=True)


# ldmatrix and its relatives


@instruction("ldmatrix", "stmatrix")
def move_matrices(decoder: Decoder) -> Built:
    """8 x 8 matrices of 16 bits: lanes 8i to 8i + 7 give the addresses of the rows of matrix i."""
    decoder.flag("sync", "aligned")
    if not decoder.flag("m8n8"):
        raise decoder.error("only .m8n8 is emulated")
    count = int(decoder.one_of("x1", "x2", "x4")[1:])
    transposed = decoder.flag("trans")
    space_of(decoder)
    decoder.type()
    decoder.count(2)
    loads = decoder.name == "ldmatrix"
    items = decoder.items(0 if loads else 1)
    if len(items) != count:
        raise decoder.error(f"{len(items)} registers for {count} matrices")
    held = Registers(decoder, items, 32, target=loads)
    sums = decoder.sums(held.reads)
    address, _, _ = decoder.address(1 if loads else 0)
    rows, columns = matrix_8x8(transposed)

    def givers(lanes: Lanes) -> tuple[Lanes, Array]:
        """The lanes whose addresses count, and those addresses."""
        where = np.asarray(address(lanes))
        if count == 4:
            return lanes, where
        chosen = lanes.state.lane_of[lanes.index] < 8 * count
        return lanes.only(chosen), where[chosen]

    def load(lanes: Lanes) -> None:
        if not complete(lanes):
            return
        part, where = givers(lanes)
        words, undefined = lanes.state.shared.load(part, where, 8, 2)
        matrices = np.ascontiguousarray(words).view(np.uint16).reshape(-1, count, 8, 8)
        parts = np.ascontiguousarray(matrices[:, :, rows, columns].transpose(0, 2, 1, 3))
        held.put(lanes, parts.view(np.uint32)[..., 0])
        if undefined is None:
            lanes.define(held.writes)
            return
        spread = np.repeat(undefined.reshape(-1, count, 8, 1), 8, axis=3)[:, :, rows, columns]
        lost: Array = np.asarray(spread.any(axis=3))
        for number, slot in enumerate(held.writes):
            mask = lost[:, number].reshape(-1)
            lanes.define((slot,), mask if mask.any() else None)

    def store(lanes: Lanes) -> None:
        if not complete(lanes):
            return
        part, where = givers(lanes)
        values = held.fetch(lanes)  # (warps, 32, count)
        halves = np.ascontiguousarray(values[..., None]).view(np.uint16)  # (warps, 32, count, 2)
        matrices = np.empty((len(values), count, 8, 8), np.uint16)
        matrices[:, :, rows, columns] = halves.transpose(0, 2, 1, 3)
        words = matrices.reshape(-1, 8).view(np.uint64)
        lost = lanes.undefined(held.reads)
        undefined = None if lost is None else np.repeat(lost.reshape(-1, 32).any(axis=1), 8 * count)
        lanes.state.shared.store(part, where, 8, words, undefined, sums=sums)

    return Built(load if loads else store, f"{decoder.name}", meeting=whole_warps, own_taint=True)


@instruction("movmatrix")
def transpose_matrix(decoder: Decoder) -> Built:
    """An 8 x 8 matrix of 16 bits, held as by ``ldmatrix``, transposed."""
    decoder.flag("sync", "aligned", "m8n8", "trans")
    decoder.type()
    decoder.count(2)
    put, get = decoder.put(0, "b32"), decoder.get(1, "b32")
    rows, columns = matrix_8x8(False)

    def run(lanes: Lanes) -> None:
        if not complete(lanes):
            return
        values = np.broadcast_to(np.asarray(get(lanes)), (lanes.count,))
        halves = np.ascontiguousarray(values).view(np.uint16).reshape(-1, 32, 2)
        matrix = np.empty((len(halves), 8, 8), np.uint16)
        matrix[:, rows, columns] = halves
        found = np.ascontiguousarray(matrix.transpose(0, 2, 1)[:, rows, columns])
        put(lanes, found.view(np.uint32).reshape(-1))

    return Built(run, GROUP, meeting=whole_warps)
