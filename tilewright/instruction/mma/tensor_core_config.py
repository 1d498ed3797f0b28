"""The configuration of a tensor-core kernel: what follows from it, and every rule that it must obey.

Plain values in, violations out, all of them at once. Threads are (x, y, 1): groups of 32 along x are warps that split
the columns of a block's tile, y counts rows of warps. The rules of too many threads and too much memory hold of every
kernel: code generation asks `too_many_threads` and `too_much_memory`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import prod
from typing import Final, Literal, get_args

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.instruction.mma.policy import Route
from tilewright.instruction.mma.problem import TYPES, ElementType, bits
from tilewright.instruction.mma.target import MmaIntrinsic, view
from tilewright.intrinsics.elements import bits as bits_of_dtype
from tilewright.intrinsics.registry import standard
from tilewright.machine.targets import capability as capability_of
from tilewright.options import DOCUMENTED_MMA, OPAQUE_MMA

Schedule = Literal["registers", "load-first", "tensor-core"]
Extents = tuple[int, int, int]  # along m, n and k

WARP = 32  # lanes
MAX_THREADS = 1024
ROW_ALIGNMENT = 16  # bytes: of the rows of a tile in shared memory
NARROWEST_COPY = 4  # bytes
SPARE_REGISTERS = 32  # per thread, for addresses and counters

DOCUMENTED: Final[Mapping[Route, bool]] = {DOCUMENTED_MMA: True, OPAQUE_MMA: False}  # whether fragment layouts are
FEWEST_STAGES: Final[Mapping[Schedule, int]] = {"registers": 1, "load-first": 2, "tensor-core": 3}


@dataclass(frozen=True, slots=True)
class MatmulConfig:
    """Tiles and threads of one kernel; None where a value was not given.

    `block` is C's tile and the depth of a staged slice of k. `warp` is a warp's tile, by default the block's over the
    warps. `stages` counts buffers in shared memory, `store_stage` is the pipeline stage that writes them. `schedule` is
    how copies and products overlap. `pad` elements follow every row in shared memory. `batch_tile` is None without a
    batch loop. Raises InvalidArgument for numbers that mean nothing: of those, no rule could say anything.
    """

    block: Extents
    threads: tuple[int, int, int] | None
    stages: int | None = 1
    store_stage: int | None = 1
    route: Route = DOCUMENTED_MMA
    pad: int = 0
    vector_bits: int = 128
    max_regs: int = 255
    warp: Extents | None = None
    stage_c: bool = False
    batch_tile: int | None = None
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        for name in ("block", "threads", "warp"):
            _three(name, getattr(self, name))
        for name, least in (("stages", 0), ("store_stage", 0), ("pad", 0), ("max_regs", 1), ("batch_tile", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InvalidArgument(f"{name}={value} of a tensor-core configuration", help=f"{least} or more")
        _one_of("vector_bits", self.vector_bits, (16, 32, 64, 128))
        _one_of("route", self.route, get_args(Route))
        if self.schedule is not None:
            _one_of("schedule", self.schedule, get_args(Schedule))


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that does not hold: its code, the fact with its numbers, and what to try. Warnings refuse nothing."""

    code: str
    message: str
    help: str
    warning: bool = False

    def __str__(self) -> str:
        return f"{self.code} {self.message}"


# -- what follows from a configuration --------------------------------------------------------------------------------


def warps(config: MatmulConfig) -> Extents:
    """Warps along m, n and k; those of a given warp tile, else those of the threads."""
    if config.warp is not None:
        return _div_up(config.block[0], config.warp[0]), _div_up(config.block[1], config.warp[1]), 1
    x, y, z = _threads(config)
    return y, x // WARP, z


def warp_tile(config: MatmulConfig) -> Extents:
    """Elements of C that a warp computes, and the depth of its slice; rounded down where warps do not divide it."""
    if config.warp is not None:
        return config.warp
    m, n, k = (size // count for size, count in zip(config.block, warps(config), strict=True))
    return m, n, k


def grid(config: MatmulConfig, shape: Extents) -> tuple[int, int]:
    """Blocks along x, which walks the columns of C, and along y, which walks its rows."""
    return shape[1] // config.block[1], shape[0] // config.block[0]


def shared_bytes(config: MatmulConfig, a: ElementType, c: ElementType) -> int:
    """Bytes of the padded tiles of both operands in every stage, and of C if it is staged."""
    m, n, k = config.block
    staged = (config.stages or 1) * (m * (k + config.pad) + k * (n + config.pad)) * bits(a) // 8
    return staged + (m * (n + config.pad) * bits(c) // 8 if config.stage_c else 0)


def copies(config: MatmulConfig, a: ElementType) -> tuple[int, int]:
    """Vectors of A and of B that a thread copies for one slice."""
    m, n, k = config.block
    x, y, z = _threads(config)
    per_round = config.vector_bits * x * y * z
    return _div_up(m * k * bits(a), per_round), _div_up(k * n * bits(a), per_round)


def accumulator_registers(config: MatmulConfig, c: ElementType) -> int:
    """Registers of 32 bits per lane that hold a warp's tile of C."""
    m, n, _ = warp_tile(config)
    return m * n * bits(c) // 32 // WARP


def staging_registers(config: MatmulConfig, a: ElementType) -> int:
    """Registers per thread that hold the next slice on its way; none where copies are asynchronous."""
    return sum(copies(config, a)) * config.vector_bits // 32 if config.stages == 1 else 0


def registers(config: MatmulConfig, instruction: Extents, a: ElementType, c: ElementType) -> int:
    """About the registers per thread: C, the fragments of one step of k, the next slice, and spare ones."""
    m, n, _ = warp_tile(config)
    fragments = (m + n) * instruction[2] * bits(a) // 32 // WARP
    return accumulator_registers(config, c) + fragments + staging_registers(config, a) + SPARE_REGISTERS


# -- the rules --------------------------------------------------------------------------------------------------------


def verify(
    config: MatmulConfig,
    shape: tuple[int | None, int | None, int | None],
    a: ElementType,
    b: ElementType,
    c: ElementType,
    *,
    shared_limit: int,
    capability: int | None = None,
    divisors: tuple[int | None, int | None, int | None] = (None, None, None),
    row_elements: tuple[int, int] | None = None,
    batch_distributed: bool = False,
    intrinsics: Sequence[MmaIntrinsic] | None = None,
) -> tuple[Violation, ...]:
    """All rules that `config` breaks for C[m, n] += A[m, k] * B[k, n], in the order of their codes.

    A size is None where it is known only at run time; `divisors` has what it is then known to be a multiple of.
    `row_elements` are the distances of neighbouring rows of A and of B (default: k and n). `capability` is ten times
    the compute capability of the GPU, None to leave that rule out. The first of `intrinsics` (default: of the
    catalogue) with the types of A and B is the one that the route stands for; f32 is read as tf32.
    Raises InvalidArgument for a shape that is none and for types that have no width.
    """
    for each in (a, b, c):
        _one_of("an element type", each, TYPES)
    for names in (shape, divisors):
        _three("the shape", tuple(1 if size is None else size for size in names))
    a, b = (("f32" if each == "tf32" else each) for each in (a, b))
    read_as = "tf32" if a == "f32" else a
    found = [x for x in _of_route(config.route, intrinsics) if x.a == x.b == read_as]
    instruction = (found[0].m, found[0].n, found[0].k) if found else None
    known = tuple(size if size is not None else divisor for size, divisor in zip(shape, divisors, strict=True))
    threads_and_types = [*_given(config), *_types(config, a, b), *_threads_rules(config)]
    if instruction is None:
        threads_and_types.append(
            Violation("TC09", f"no {config.route} instruction for element type {a}", "another type, or other units")
        )
    whole = not any(each.code in ("TC01", "TC06", "TC07", "TC08", "TC09") for each in threads_and_types)
    violations = [*threads_and_types, *_batch(config, batch_distributed), *_divided(config, known)]
    if instruction is not None and whole:
        violations += _warp_tiles(config, instruction)
    violations += too_much_memory(shared_bytes(config, a, c), shared_limit)
    violations += _depth(config)
    if instruction is not None and whole:
        violations += _registers(config, instruction, a, c)
    violations += _rows(a, row_elements or (known[2] or 0, known[1] or 0))
    violations += _known(known)
    violations += _accumulator(config, a, c, tuple(dict.fromkeys(x.c for x in found)))
    needed = _capability(found[0]) if found else 0
    if capability is not None and capability < needed:
        name = f"{config.route} {found[0].shape} {a}"
        violations.append(
            Violation("TC20", f"{name} needs sm_{needed}, target is sm_{capability}",
                      "the other route, or another type")
        )  # fmt: skip
    return tuple(sorted(violations, key=lambda each: each.code))


def too_many_threads(threads: Extents, limit: int = MAX_THREADS) -> Iterator[Violation]:
    """The rule about the threads of a block along x, y and z."""
    x, y, z = threads
    if x * y * z > limit:
        yield Violation("TC06", f"{x}*{y}*{z} = {x * y * z} threads exceed {limit}", "fewer warps")


def too_much_memory(needed: int, limit: int) -> Iterator[Violation]:
    """The rule about the bytes of shared memory of a block."""
    if needed > limit:
        yield Violation("TC13", f"{needed} bytes of shared memory needed, {limit} available",
                        "try fewer stages or a smaller BK")  # fmt: skip


def _given(config: MatmulConfig) -> Iterator[Violation]:
    if config.threads is None:
        yield Violation("TC01", "no workgroup size: a tensor-core kernel needs threads=(x, y, 1)", "x a multiple of 32")
    if config.stages is None or config.store_stage is None:
        yield Violation("TC02", "pipeline depth or store stage is missing", "stages=1, store_stage=1")
    elif config.store_stage != 1:
        yield Violation("TC03", f"store stage {config.store_stage} is not supported, only 1", "store_stage=1")


def _types(config: MatmulConfig, a: ElementType, b: ElementType) -> Iterator[Violation]:
    if a != b:
        yield Violation("TC04", f"operands have different element types {a} and {b}", "convert one of them first")


def _threads_rules(config: MatmulConfig) -> Iterator[Violation]:
    if config.threads is None:
        return
    x, y, z = config.threads
    yield from too_many_threads(config.threads)
    if z != 1:
        yield Violation("TC07", f"z = {z}: tensor-core tiles are two-dimensional, z must be 1", f"({x}, {y}, 1)")
    if x % WARP:
        yield Violation("TC08", f"x = {x} is not a multiple of the warp size {WARP}", f"x = {_div_up(x, WARP) * WARP}")


def _batch(config: MatmulConfig, distributed: bool) -> Iterator[Violation]:
    tile = config.batch_tile
    if tile is None or tile == (wanted := int(distributed)):
        return
    yield Violation("TC05", f"batch tile {tile} must be " + ("at most 1" if tile > 1 else str(wanted)),
                    f"{wanted}: the batch loop is {'' if distributed else 'not '}distributed")  # fmt: skip


def _divided(config: MatmulConfig, shape: tuple[int | None, ...]) -> Iterator[Violation]:
    for name, size, tile in zip("MNK", shape, config.block, strict=True):
        if size is not None and size % tile:
            yield Violation("TC10", f"{name} = {size} is not a multiple of the block tile {tile}",
                            f"a tile that divides {size}, or pad to {_div_up(size, tile) * tile}")  # fmt: skip


def _warp_tiles(config: MatmulConfig, instruction: Extents) -> Iterator[Violation]:
    tile = warp_tile(config)
    if 0 in tile or any(own % step for own, step in zip(tile, instruction, strict=True)):
        names = ("x".join(map(str, each)) for each in (tile, instruction))
        yield Violation("TC11", "warp tile {} is not a multiple of {}".format(*names), "fewer warps or a larger block")
    counts, unsplit = warps(config), False
    for size, count, own in zip(config.block[:2], counts[:2], tile[:2], strict=True):
        if size != own * count:
            unsplit = True
            yield Violation("TC12", f"block tile {size} cannot be split over {count} warps", "a number that divides it")
    if config.warp is None:
        return
    if config.block[2] % tile[2]:
        yield Violation("TC12", f"block tile {config.block[2]} cannot be split into slices of {tile[2]}",
                        "a number that divides it")  # fmt: skip
    x, y, z = _threads(config)
    if not unsplit and prod(counts) * WARP != x * y * z:
        yield Violation("TC12", f"block tile {config.block[0]}x{config.block[1]} cannot be split over "
                        f"{x * y * z // WARP} warps of {tile[0]}x{tile[1]}", f"{prod(counts)} warps")  # fmt: skip


def _depth(config: MatmulConfig) -> Iterator[Violation]:
    least = 1 if config.schedule is None else FEWEST_STAGES[config.schedule]
    if config.stages is not None and config.stages < least:
        yield Violation("TC14", f"pipeline depth {config.stages} too small for {config.schedule or 'any schedule'}",
                        f"{least} or more")  # fmt: skip


def _registers(config: MatmulConfig, instruction: Extents, a: ElementType, c: ElementType) -> Iterator[Violation]:
    needed = registers(config, instruction, a, c)
    if needed > config.max_regs:
        yield Violation("TC15", f"about {needed} registers per thread, {config.max_regs} allowed: spills likely",
                        "a smaller warp tile", warning=True)  # fmt: skip


def _rows(a: ElementType, row_elements: tuple[int, int]) -> Iterator[Violation]:
    for operand, elements in zip("AB", row_elements, strict=True):
        row_bytes = elements * bits(a) // 8
        if row_bytes % NARROWEST_COPY:
            step = 1 if row_bytes % 2 else 2
            yield Violation("TC16", f"operand {operand}: rows start at odd multiples of {step} bytes",
                            f"rows of a multiple of {NARROWEST_COPY} bytes")  # fmt: skip


def _known(shape: tuple[int | None, ...]) -> Iterator[Violation]:
    for name, size in zip("MNK", shape, strict=True):
        if size is None:
            yield Violation("TC17", f"dimension {name} is dynamic and no divisor is known", "state a divisor")


def _accumulator(
    config: MatmulConfig, a: ElementType, c: ElementType, legal: tuple[ElementType, ...]
) -> Iterator[Violation]:
    if legal and c not in legal:
        yield Violation("TC18", f"accumulator {c} not available for {a}", f"one of {', '.join(legal)}")
    pad_bytes = config.pad * bits(a) // 8
    if pad_bytes % ROW_ALIGNMENT:
        yield Violation("TC19", f"padding {config.pad} breaks the {ROW_ALIGNMENT}-byte row alignment",
                        f"a multiple of {ROW_ALIGNMENT * 8 // bits(a)}")  # fmt: skip


def _of_route(route: Route, intrinsics: Sequence[MmaIntrinsic] | None) -> list[MmaIntrinsic]:
    listed = _of_the_catalogue() if intrinsics is None else intrinsics
    return [x for x in listed if x.distributable is DOCUMENTED[route]]


@cache
def _of_the_catalogue() -> tuple[MmaIntrinsic, ...]:
    """Matrix intrinsics of one warp on operands of whole bytes."""
    found = (view(record) for record in standard() if record.group == "warp32")
    return tuple(x for x in found if x and all(bits_of_dtype(each.dtype) >= 8 for each in x.record.operands))


def _capability(x: MmaIntrinsic) -> int:
    """Ten times the compute capability that an intrinsic needs."""
    return max((capability_of(feature) for feature in x.record.features), default=0)


def _three(name: str, value: tuple[int, ...] | None) -> None:
    if value is not None and (len(value) != 3 or min(value) < 1):
        raise InvalidArgument(f"{name}={value} of a tensor-core configuration", help="three numbers from 1 on")


def _one_of(name: str, value: object, legal: tuple[object, ...]) -> None:
    if value not in legal:
        one = ", ".join(map(str, legal))
        raise InvalidArgument(f"{name}={value!r} of a tensor-core configuration", help=f"one of {one}")


def _threads(config: MatmulConfig) -> tuple[int, int, int]:
    assert config.threads is not None, "what follows from threads needs them"
    return config.threads


def _div_up(value: int, divisor: int) -> int:
    return -(-value // divisor)
