"""Run an entry of a module on NumPy buffers: arguments placed, blocks executed in chunks."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.emulator import isa
from tilewright.emulator.arguments import Argument, place_arguments
from tilewright.emulator.async_copies import AsyncCopies
from tilewright.emulator.barriers import Barriers
from tilewright.emulator.compiled import compiled
from tilewright.emulator.constants import Constants
from tilewright.emulator.counts import Counts
from tilewright.emulator.decode import Decoder
from tilewright.emulator.dependent_launches import WAIT, DependentLaunch
from tilewright.emulator.diagnostics import Diagnostic, Diagnostics
from tilewright.emulator.errors import refuse
from tilewright.emulator.lanes import Launch, State, Step
from tilewright.emulator.link import Linked, Scope, link
from tilewright.emulator.mbarriers import Mbarriers
from tilewright.emulator.memory import GLOBAL_BASE, GlobalMemory, LocalMemory
from tilewright.emulator.releases import Releases
from tilewright.emulator.scalars import WIDTHS, Array, size
from tilewright.emulator.schedule import Scheduler
from tilewright.emulator.shared import SharedMemory
from tilewright.emulator.special import RESERVED_BYTES
from tilewright.emulator.speculative_reads import speculative_reads
from tilewright.emulator.sums import float_sums
from tilewright.emulator.syntax import Instruction, Module
from tilewright.emulator.thread_exits import ThreadExits
from tilewright.emulator.warpgroups import Warpgroups
from tilewright.errors import InvalidArgument

Extents: TypeAlias = int | Sequence[int]  # along x, y and z; a number is one along x

_MOST_BLOCK_THREADS = 1024
_MOST_BLOCKS = (2**31 - 1, 65_535, 65_535)  # along x, y, z; CUDA programming guide, technical specifications
_MOST_THREADS = (1024, 1024, 64)
_MOST_CLUSTER_BLOCKS = 16  # compute capability 9.0, where a kernel asks for more than the portable 8
_MOST_SHARED_BYTES = 232_448  # 227 KiB, compute capability 9.0
_CHUNK_THREADS = 1 << 15
_CHUNK_SHARED_CELLS = 1 << 22
_CHUNK_THREADS_WAITING = 1 << 17  # where blocks may wait for each other
_CHUNK_SHARED_CELLS_WAITING = 1 << 25
_CHUNK_THREADS_ORDERED = 1 << 12  # where order is followed thread by thread: kernels with mbarriers
_MOST_LAUNCH_THREADS = 1 << 28  # minutes
_WORKSPACE_BYTES = 16  # its size and a barrier, 4 bytes each; what a cooperative launch finds there is zeros
_DEFAULT_LIMIT = 4_000_000


@dataclass
class Result:
    """What a run gives: diagnostics, counters, and the buffers afterwards, by the number of the argument."""

    diagnostics: list[Diagnostic]
    counts: Counts
    buffers: dict[int, Array]

    def to_json(self) -> dict[str, Any]:
        return {"diagnostics": [each.to_json() for each in self.diagnostics], "counts": self.counts.to_json()}


def run(
    kernel: Module | Any,
    entry: str = "",
    grid: Extents = (1, 1, 1),
    block: Extents = (),
    args: Sequence[Argument] = (),
    shared_bytes: int | None = None,
    *,
    cluster: Extents = (),
    limit: int = _DEFAULT_LIMIT,
) -> Result:
    """Execute a kernel launch.

    `kernel` is a parsed module, or a kernel as Triton compiles it (`compiled`): then `grid` counts its programs, and
    what is left out comes from its metadata. Otherwise `entry` is by default the only one, `block` what the kernel
    requires (``.reqntid``), or one thread, and `shared_bytes`, the dynamic shared memory of a block, 0.

    `grid`, `block` and `cluster` are one to three whole numbers, along x, y and z; a number alone is the one along x.

    `args` stand in the order of the parameters: arrays are device buffers and are changed in place, scalars are passed
    by value; missing pointers are null. Tensors of other libraries count as arrays where NumPy can view their memory.
    `limit` is the number of instructions that one chunk of blocks may execute.

    Raises InvalidPtx for what cannot be executed, InvalidArgument for a launch or arguments that do not fit.
    """
    blocks, threads = _extents(grid, "grid"), None if _left_out(block) else _extents(block, "block")
    clusters = None if _left_out(cluster) else _extents(cluster, "cluster")
    if isinstance(kernel, Module):
        module, entry = kernel, entry or only_entry(kernel)
    else:
        known = compiled(kernel, entry)
        module, entry, args = known.module, known.entry, known.arguments(args, blocks)
        blocks, threads = known.grid(blocks), threads or (known.threads, 1, 1)
        shared_bytes = known.shared_bytes if shared_bytes is None else shared_bytes
        clusters = clusters or (known.blocks_per_program, 1, 1)
    linked = link(module, entry)
    linked.sums, linked.speculative_reads = float_sums(linked), speculative_reads(linked)
    limits = linked.entry.limits
    threads = threads or _extents(limits.get("reqntid", (1, 1, 1)), "block")
    clusters = clusters or _extents(limits.get("reqnctapercluster", (1, 1, 1)), "cluster")
    return _launch(linked, module, blocks, threads, clusters, args, shared_bytes or 0, limit)


def only_entry(module: Module) -> str:
    """The entry of a module that has one; raises InvalidArgument where there are others or none."""
    if len(module.entries) != 1:
        names = ", ".join(module.entries) or "none"
        raise InvalidArgument(f"{len(module.entries)} kernels", where="--entry", help=f"name one of {names}")
    return module.entries[0]


def _left_out(extents: Extents) -> bool:
    return isinstance(extents, tuple | list) and len(extents) == 0


def _extents(extents: Extents, where: str) -> tuple[int, int, int]:
    """Extents along x, y and z; missing ones are 1. Raises InvalidArgument for what is no extent."""
    given = extents if isinstance(extents, tuple | list | np.ndarray) else (extents,)
    try:
        found = [operator.index(each) for each in given]
        if any(isinstance(each, bool) for each in given) or any(abs(number) >= 1 << 31 for number in found):
            raise TypeError
    except TypeError:
        fact = f"extents of type {type(extents).__name__}"
        raise InvalidArgument(fact, where=where, help="a whole number, or one to three as (4, 2, 1)") from None
    if not 1 <= len(found) <= 3:
        raise InvalidArgument(f"{len(found)} extents: {tuple(found)}", where=where, help="one to three, as (4, 2, 1)")
    x, y, z = (*found, 1, 1)[:3]
    return x, y, z


def _launch(
    linked: Linked, module: Module, grid: tuple[int, int, int], block: tuple[int, int, int],
    cluster: tuple[int, int, int], args: Sequence[Argument], shared_bytes: int, limit: int,
) -> Result:  # fmt: skip
    _check_launch(linked, grid, block, cluster, shared_bytes)
    memory, context = GlobalMemory(), {}
    placed = place_arguments(memory, linked, args)
    context["$parameters"] = placed.address
    for storage in linked.globals:
        context[storage.variable.name] = memory.add(
            storage.variable.name, np.zeros(storage.bytes, np.uint8), constant=storage.space == "const",
            align=max(16, storage.variable.align),
        )  # fmt: skip
    workspace = (
        memory.add("the workspace of the grid", np.zeros(_WORKSPACE_BYTES, np.uint8)) if linked.whole_grid else 0
    )
    memory.close()
    if any(node.parts[0] == "ld" and "nc" in node.parts for node, _ in linked.instructions):
        memory.constants = Constants(len(memory.bytes.data))
    _initialise(memory, linked, context)
    diagnostics, counts = Diagnostics(module.lines, module.files), Counts()
    launch = Launch(
        grid, block, cluster, linked.static_bytes + shared_bytes, shared_bytes, diagnostics, counts,
        RESERVED_BYTES if linked.reserved else 0, workspace,
    )  # fmt: skip
    with np.errstate(all="ignore"):
        steps = [_step(linked, node, scope, context) for node, scope in linked.instructions]
        steps.append(_end(linked))
        for chunk in _chunks(launch, linked):
            state = _state(launch, linked, chunk, memory, steps)
            Scheduler(state, steps, limit).run()
            if launch.stopped:
                break
    return Result(list(diagnostics.found.values()), counts, placed.write_back(memory))


def _check_launch(
    linked: Linked, grid: tuple[int, int, int], block: tuple[int, int, int], cluster: tuple[int, ...], shared_bytes: int
) -> None:
    threads = int(np.prod(block))
    if min(*grid, *block) < 1 or shared_bytes < 0:
        raise InvalidArgument(
            f"grid {grid}, block {block}, {shared_bytes} bytes", where="launch", help="1 or more each"
        )
    if threads > _MOST_BLOCK_THREADS:
        raise InvalidArgument(f"{threads} threads per block", where="launch", help=f"at most {_MOST_BLOCK_THREADS}")
    for what, extents, limits in (("blocks", grid, _MOST_BLOCKS), ("threads", block, _MOST_THREADS)):
        for axis, extent, limit in zip("xyz", extents, limits, strict=True):
            if extent > limit:
                raise InvalidArgument(f"{extent} {what} along {axis}", where="launch", help=f"at most {limit}")
    every = np.prod([float(each) for each in (*grid, -(-threads // 32) * 32)])
    if every > _MOST_LAUNCH_THREADS:
        raise InvalidArgument(
            f"{every:.0f} threads in whole warps", where="launch", help=f"at most {_MOST_LAUNCH_THREADS} are emulated"
        )
    if min(cluster) < 1 or int(np.prod([float(each) for each in cluster])) > _MOST_CLUSTER_BLOCKS:
        raise InvalidArgument(
            f"clusters of {cluster} blocks", where="launch", help=f"1 or more each, {_MOST_CLUSTER_BLOCKS} together"
        )
    if any(extent % part for extent, part in zip(grid, cluster, strict=True)):
        raise InvalidArgument(f"grid {grid} in clusters of {cluster}", where="launch", help="whole clusters")
    blocks = linked.entry.limits.get("reqnctapercluster")
    if blocks and (*blocks, 1, 1)[:3] != cluster:
        raise InvalidArgument(
            f"clusters of {cluster} blocks", where="launch", help=f"the kernel requires {(*blocks, 1, 1)[:3]}"
        )
    total = linked.static_bytes + shared_bytes
    if total > _MOST_SHARED_BYTES:
        raise InvalidArgument(f"{total} bytes of shared memory", where="launch", help=f"at most {_MOST_SHARED_BYTES}")
    required = linked.entry.limits.get("reqntid")
    if required and (*required, 1, 1)[:3] != block:
        raise InvalidArgument(f"block {block}", where="launch", help=f"the kernel requires {(*required, 1, 1)[:3]}")
    most = linked.entry.limits.get("maxntid")
    if most and threads > int(np.prod(most)):
        raise InvalidArgument(
            f"{threads} threads per block", where="launch", help=f"the kernel allows {int(np.prod(most))}"
        )


def _initialise(memory: GlobalMemory, linked: Linked, context: dict[str, int]) -> None:
    """Initial values of module variables."""
    for storage in linked.globals:
        variable = storage.variable
        at, width = context[variable.name] - GLOBAL_BASE, size(variable.type)
        for number, value in enumerate(variable.values[: variable.count or 0]):
            if isinstance(value, tuple):
                name, offset, _ = value
                known = linked.functions.get(name, context.get(name))
                if known is None:
                    raise refuse(variable.place, f"{name!r} is not a variable with an address")
                value = known + offset
            raw = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
            memory.bytes.data[at + number * width : at + (number + 1) * width] = np.frombuffer(raw, np.uint8)


def _step(linked: Linked, node: Instruction, scope: Any, context: dict[str, int]) -> Step:
    decoder = Decoder(linked, node, scope, context)
    builder = isa.INSTRUCTIONS.get(decoder.name)
    if builder is None:
        raise refuse(
            node.place, f"instruction {node.opcode!r} is not emulated", "docs/reference/emulator.md lists them"
        )
    try:
        built = builder(decoder)
    except KeyError as error:
        raise refuse(node.place, f"{node.opcode}: {error.args[0]!r} is not possible here") from error
    decoder.end()
    guard = None if node.guard is None else _guard(decoder, node)
    reads, writes = tuple(decoder.reads), tuple(decoder.writes)
    return Step(
        node.place, node.opcode, built.group, built.run, reads, writes, guard, node.negated, built.own_taint,
        built.control, built.meeting, frozenset((*reads, *writes)), built.uses_products, built.warps, built.guarded,
        built.taint,
    )  # fmt: skip


def _guard(decoder: Decoder, node: Instruction) -> int:
    assert node.guard is not None, "asked for"
    return decoder.slot(node.guard, 1)


def _end(linked: Linked) -> Step:
    """What follows the last instruction: every thread ends."""
    last = linked.instructions[-1][0].place if linked.instructions else linked.entry.place
    built = isa.INSTRUCTIONS["exit"](Decoder(linked, Instruction("exit", (), last), Scope(), {}))
    return Step(last, "exit", built.group, control=built.control)


def _chunks(launch: Launch, linked: Linked) -> list[Array]:
    """Linear numbers of the blocks that run together, clusters whole."""
    blocks = int(np.prod(launch.grid))
    threads = -(-int(np.prod(launch.block)) // 32) * 32
    cluster = int(np.prod(launch.cluster))
    cells = max(1, launch.all_shared_bytes // _granule(linked)) * (2 + cluster * threads // 32)
    ordered = any(node.parts[0] == "mbarrier" or "cluster" in node.parts for node, _ in linked.instructions)
    most = _CHUNK_THREADS_ORDERED if ordered else _CHUNK_THREADS
    together = max(1, min(most // threads, _CHUNK_SHARED_CELLS // cells))
    if linked.waits and not ordered:
        together = max(together, min(_CHUNK_THREADS_WAITING // threads, _CHUNK_SHARED_CELLS_WAITING // cells))
    numbers = np.arange(blocks)
    if cluster > 1:
        grid, shape = launch.grid, launch.cluster
        x, y, z = numbers % grid[0], numbers // grid[0] % grid[1], numbers // (grid[0] * grid[1])
        across, down = grid[0] // shape[0], grid[1] // shape[1]
        which = x // shape[0] + across * (y // shape[1] + down * (z // shape[2]))
        rank = x % shape[0] + shape[0] * (y % shape[1] + shape[1] * (z % shape[2]))
        numbers = numbers[np.lexsort((rank, which))]
        together = max(cluster, together // cluster * cluster)
    return [numbers[start : start + together] for start in range(0, blocks, together)]


def _granule(linked: Linked) -> int:
    """Bytes of the narrowest access that may go to shared memory."""
    narrowest = 16
    for node, _ in linked.instructions:
        parts = node.parts
        if parts[0] in ("ld", "st", "atom", "red") and not {"global", "const", "param", "local"} & set(parts):
            widths = [size(part) for part in parts if part in WIDTHS]
            narrowest = min([narrowest, *widths])
        elif parts[0] in ("ldmatrix", "stmatrix"):
            narrowest = min(narrowest, 16)
        elif parts[0] in ("mbarrier", "tensormap"):
            narrowest = min(narrowest, 4)
        elif parts[0] in ("cp", "wmma", "st.bulk"):
            narrowest = min(narrowest, 4 if parts[0] == "cp" else 2)
    return narrowest


def _state(launch: Launch, linked: Linked, blocks: Array, memory: GlobalMemory, steps: list[Step]) -> State:
    state = State(launch, blocks, linked.widths)
    state.memory = memory
    dynamic = f"; the launch gives {launch.dynamic_bytes} to {linked.dynamic} (shared_bytes, --shared)"
    state.shared = SharedMemory(
        len(blocks), launch.all_shared_bytes, _granule(linked), state.clocks, dynamic if linked.dynamic else ""
    )
    state.shared.fill(launch.reserved_at, launch.reserved_bytes)
    state.local = LocalMemory(state.size, linked.local_bytes)
    cluster = int(np.prod(launch.cluster))
    state.barriers = Barriers(state, np.arange(len(blocks)) // cluster)
    state.copies = AsyncCopies(state)
    state.dependent = DependentLaunch(state.size) if any(step.name == WAIT for step in steps) else None
    state.releases = Releases(state) if linked.signals and launch.all_shared_bytes else None
    state.mbarriers = Mbarriers(state)
    state.warpgroups = Warpgroups(state)
    state.exits = ThreadExits(state)
    state.written_at = {slot: np.zeros(state.size, np.int64) for step in steps for slot in step.guarded}
    first = np.arange(len(blocks)) // cluster * cluster
    state.shared.peers = first[:, None] + np.arange(cluster)
    return state
