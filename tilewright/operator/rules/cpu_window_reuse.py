"""Rules for windows on CPUs: what neighbours in a register tile share, and blocks of channels that stay in L1.

Vectors run along an outer loop, as the channels of an image where these lie innermost. `shared_taps` says which loop of
the window a step has all points of, `near_blocks` into how many blocks the vectors' loop is cut, outside of all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilewright.expr import dtypes
from tilewright.expr.affine import Affine, affine
from tilewright.expr.core import Axis, Read, Tensor, walk
from tilewright.machine.description import Cpu
from tilewright.operator.cycles import accumulation_instructions, body_counts, slowest_port
from tilewright.operator.rules.cpu_product import l2_bytes
from tilewright.operator.statements import Statements, addresses, inner_loops, outer_loops, places

MOST_TAPS = 8  # points of a window's loop that are unrolled
KEPT_IN_L1 = 0.625  # of L1: with vectors of AVX2 on a Zen 3, 3 x 3 windows of 7 x 7 and 14 x 14 were fastest so
RUN_BYTES = 256  # of an image: shorter runs come slowly from L3 (Zen 3). Neither was measured on AVX-512
BEYOND_L2 = 4  # times L2, from which on lines are far: what is nearer arrives in time (Zen 3)


def shared_taps(statements: Statements, neighbours: Axis, count: int) -> tuple[Axis, ...]:
    """The loop of a window along which `count` neighbours share points: a step loads these once where it has all of it.

    Another inner loop has to be left, and the points of the window are few, so that the code stays short.
    """
    inner = inner_loops(statements)
    for axis in reversed(inner if len(inner) > 1 else ()):
        if 1 < axis.size <= MOST_TAPS:
            forms = [affine(index) for each in statements for index in addresses(each.body)]
            steps = [(form.coefficient(neighbours), form.coefficient(axis)) for form in forms if form is not None]
            if any(step and tap and _overlap((step, count), (tap, axis.size)) for step, tap in steps):
                return (axis,)
    return ()


def near_blocks(statements: Statements, vector: Axis, tiled: Mapping[str, int], machine: Cpu) -> dict[str, int]:
    """Blocks of the vector's loop around all others, so that L1 keeps what neighbours read again through windows.

    Without blocks a register tile reads its windows and weights along all of that loop before its neighbour does. Where
    L1 does not hold these, and L2 gives them more slowly than they are computed on, a block has as many register tiles
    as L1 keeps with the windows of a whole row of neighbours, which the next row reads again, but no shorter runs than
    `RUN_BYTES`, which at least one register tile shares with its neighbour. Images far larger than L2 have no blocks:
    their lines come from L3, in long runs sooner than in short ones.
    """
    neighbours = {axis: axis.size for axis in outer_loops(statements) if axis != vector and axis.name in tiled}
    tile_bytes = _window_bytes(statements, vector, {axis: tiled[axis.name] for axis in neighbours})
    l1_bytes, quantum, read = machine.caches[0].bytes, tiled[vector.name], _read_along(statements, vector)
    within = any(0 < abs(form.coefficient(axis)) < vector.size for _, form in read for axis in inner_loops(statements))
    large = max((tensor.size_bytes for tensor, _ in read), default=0) > BEYOND_L2 * l2_bytes(machine)
    whole = vector.size * tile_bytes <= l1_bytes
    if within or large or whole or _is_hidden(statements, vector, tiled, tile_bytes, machine):
        return {}
    channel_bytes = _window_bytes(statements, vector, neighbours)
    least = -(-RUN_BYTES // (quantum * dtypes.size_bytes(statements[-1].tensor.dtype)))
    most = max(least, int(KEPT_IN_L1 * l1_bytes) // (channel_bytes * quantum))
    blocks = _even_blocks(-(-vector.size // quantum), most, least)
    return {vector.name: blocks} if blocks > 1 and least * quantum * tile_bytes <= l1_bytes else {}


def _is_hidden(
    statements: Statements, vector: Axis, tiled: Mapping[str, int], tile_bytes: int, machine: Cpu
) -> bool:  # fmt: skip
    """Whether L2 gives the windows of a register tile, `tile_bytes` at a point of its vector, while it is computed."""
    computed = 0.0
    for each in statements:
        if each.accum is not None:
            arithmetic, _ = body_counts(each.body, machine, vector, 1)
            arithmetic += accumulation_instructions(each, vector)
            computed += prod(axis.size for axis in each.reduce) * slowest_port(arithmetic, 0.0, 0.0, machine)
    l2 = machine.caches[min(1, len(machine.caches) - 1)]
    vector_bytes = machine.vector_bits / 8
    neighbours = prod(points for name, points in tiled.items() if name != vector.name)
    lanes = machine.vector_bits // 32
    return tile_bytes * lanes / (l2.bytes_per_cycle or vector_bytes) <= neighbours * computed


def _even_blocks(tiles: int, most: int, least: int) -> int:
    """How many blocks of a power of two tiles there are, of `most` at most; 1 where they would have fewer than `least`.

    Blocks that do not begin where a pair of lines does took longer on a Zen 3.
    """
    while most >= least:
        most = 1 << (most.bit_length() - 1)
        blocks = -(-tiles // most)
        if most >= least and -(-tiles // blocks) == most:
            return blocks
        most -= 1
    return 1


def _window_bytes(statements: Statements, vector: Axis, points: Mapping[Axis, int]) -> int:
    """Bytes that so many points of outer loops read through their windows, at one point of the vector's loop."""
    extents = {**points, **{axis: axis.size for axis in inner_loops(statements)}}
    return sum(
        len(places((form.coefficient(axis), size) for axis, size in extents.items())) * dtypes.size_bytes(tensor.dtype)
        for tensor, form in _read_along(statements, vector)
    )


def _read_along(statements: Statements, vector: Axis) -> list[tuple[Tensor, Affine]]:
    """What is read along a loop: tensors with the addresses that they are read at, each once."""
    found: list[tuple[Tensor, Affine]] = []
    for each in statements:
        for read in walk(each.body):
            if not isinstance(read, Read) or not read.indices:
                continue
            form = affine(read.indices[0])
            if form is not None and form.coefficient(vector) and (read.tensor, form) not in found:
                found.append((read.tensor, form))
    return found


def _overlap(*loops: tuple[int, int]) -> bool:
    """Whether loops, each with its step and its points, come to some address several times."""
    return len(places(loops)) < prod(points for _, points in loops)
