"""Row reductions and pointwise kernels on a GPU: the tile of a block, its distribution to threads, and the tree.

A tile has a dimension for some of the outer and inner loops. Where all inner loops lie in it whole, a row is read once
and stays in registers for all passes; else every pass walks the inner loops in chunks, and sums a chunk at a time into
as many registers. Neighbouring threads hold neighbours in the memory that most bytes come from or go to.

Candidates differ in warps, in how many of a block's threads share a row, and in elements per thread;
`gpu_rows_time.Model` predicts the time of each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import gcd, inf, prod

from tilewright.decision import Cost, Decision, Refusal
from tilewright.errors import InvalidMachine
from tilewright.expr.core import Axis
from tilewright.layouts.bits import log2, power_from
from tilewright.layouts.blocked import Blocked
from tilewright.machine.description import Gpu
from tilewright.operator.block_rows import BlockRows
from tilewright.operator.passes import follows, values_read
from tilewright.operator.rewrites.following import with_following
from tilewright.operator.rules.gpu_rows_time import Model, RowsTile, Time
from tilewright.operator.statements import Statements, covering, outer_loops
from tilewright.tiles.kernel import Kernel, Statement

# Chosen: what is tried.
UNROLLED = 32  # most trips that are written out, so that their loads are under way at once
ELEMENTS = (1, 2, 4, 8, 16, 32, 64)  # of a thread
MOST_ACCESSES = 8  # of a thread in a pointwise kernel, however narrow: what it computes comes between more of them


def schedule_on_blocks(statements: Statements, machine: Gpu, subject: str) -> tuple[Kernel, Decision]:
    """The tile of a block with the shortest predicted time, and which sums follow another in its pass."""
    statements = with_following(statements)
    model = Model(statements, machine)
    ranked = _ranked(model)
    refused: dict[str, Refusal] = {}  # by every rule the best one, as far as it is better than what is chosen
    for _, _, candidate, found in ranked:
        if found.refused is None:
            break
        rule, values = found.refused
        refused.setdefault(rule, Refusal(_text(candidate, statements), rule, values))
    ranked = [each for each in ranked if each[3].refused is None]
    if not ranked:
        raise _nothing_fits(machine, subject, refused.values())
    seconds, _, chosen, time = ranked[0]
    own = (chosen.points, chosen.joined)
    second = next((each for each in ranked[1:] if (each[2].points, each[2].joined) != own), None)
    cycles = seconds * machine.clock_hz
    reason = (
        f"{cycles:.0f} predicted cycles, fewest of {len(ranked)}: {time.blocks} blocks, {time.resident} at once on "
        f"each of {machine.multiprocessors} multiprocessors, {time.under_way / 1024:.0f} KiB under way there where "
        f"latency asks for {model.wanted / 1024:.0f}, {time.registers} registers"
    )
    decision = Decision(
        f"tile of {subject}",
        _text(chosen, statements),
        reason,
        _text(second[2], statements) if second else "",
        f"{second[0] * machine.clock_hz:.0f} cycles" if second else "",
        tuple(refused.values()),
        Cost(cycles=cycles),
        Cost(cycles=second[0] * machine.clock_hz) if second else None,
    )
    return kernel_on_blocks(statements, chosen), decision


def predicted(statements: Statements, machine: Gpu) -> float:
    """Cycles of a kernel with the tile that is best for it; infinitely many where none fits."""
    ranked = _ranked(Model(statements, machine))
    return next((seconds * machine.clock_hz for seconds, _, _, time in ranked if time.refused is None), inf)


def _nothing_fits(machine: Gpu, subject: str, refused: Iterable[Refusal]) -> InvalidMachine:
    reasons = "; ".join(f"{each.rule}: {each.values}" for each in refused)
    fact = f"no tile of {subject} fits a block: {reasons}"
    return InvalidMachine(fact, where=machine.name, help="a machine with more registers per thread or shared memory")


def _ranked(model: Model) -> list[tuple[float, int, RowsTile, Time]]:
    """All candidates with their times, the shortest first; those that a rule forbids among them."""
    ranked = []
    for number, candidate in enumerate({repr(each): each for each in _Candidates(model).all()}.values()):
        found = model.time(candidate)
        ranked.append((found.seconds, number, candidate, found))
    return sorted(ranked, key=lambda each: each[:2])


def _text(candidate: RowsTile, statements: Statements) -> str:
    dims = " x ".join(f"{points} of {name}" for name, points in candidate.points.items()) or "1 point"
    warps = f"{candidate.warps} warp{'s' if candidate.warps > 1 else ''}"
    threads = "" if candidate.threads is None else f" ({candidate.threads})"
    passes = (
        ", rows in registers" if candidate.holds_rows(statements) and any(each.accum for each in statements) else ""
    )
    unrolled = f", {' and '.join(candidate.unrolled)} unrolled" if candidate.unrolled else ""
    joined = f", {' and '.join(candidate.joined)} in the pass that it follows" if candidate.joined else ""
    return f"{dims} on {warps}{threads}{passes}{unrolled}{joined}"


# The tree -------------------------------------------------------------------------------------------------------------


def kernel_on_blocks(statements: Statements, candidate: RowsTile) -> Kernel:
    """The scheduled kernel: blocks of the grid around passes; each walks the chunks of the inner loops.

    What a pass computes per element and nothing stores has no leaf: it is computed where it is read.
    """
    passes = _passes(statements, candidate.joined)
    chunked = [axis.name for axis, _, count in candidate.chunks(statements) if count > 1]
    rows = BlockRows(
        statements=statements,
        order=tuple(axis.name for axis in outer_loops(statements)),
        points=candidate.points,
        passes=tuple(tuple(each.name for each in names) for names in passes),
        warps=candidate.warps,
        threads=candidate.threads,
        looped=tuple(name for name in chunked if name not in candidate.unrolled),
        unrolled=tuple(name for name in chunked if name in candidate.unrolled),
    )
    return Kernel(statements, rows.tree())


def _passes(statements: Statements, joined: Collection[str]) -> list[list[Statement]]:
    """The passes in order: sums that do not need each other are in one, every other value is in one of its own.

    Sums that are `joined` are in that of the reduction that they follow.
    """
    passes: list[list[Statement]] = []
    waiting: list[Statement] = []  # sums that one pass may take
    inlined = covering(statements)
    for each in statements:
        if (each.name in inlined and each.address is None) or each.name in joined:
            continue
        following = [sum_ for sum_ in statements if sum_.name in joined and follows(sum_, each)]
        needed = values_read(each.body, inlined)
        if waiting and (following or each.accum is None or any(sum_.name in needed for sum_ in waiting)):
            passes.append(waiting)
            waiting = []
        if each.accum is not None and not following:
            waiting.append(each)
        else:
            passes.append([each, *following])
    return [*passes, waiting] if waiting else passes


# Candidates -----------------------------------------------------------------------------------------------------------


class _Candidates:
    """Tiles that are worth a prediction."""

    def __init__(self, model: Model) -> None:
        self.outer, self.inner, self.machine = model.outer, model.inner, model.machine
        self.statements, self.followers = model.statements, tuple(model.followers)
        self.lanes = model.machine.warp_sizes[0]
        self.heavy = model.heavy()
        self.fast = self._fast()
        self.order = self._by_stride()
        self.vector = self._vector()
        self.most = self.vector * min(MOST_ACCESSES, model.together(self.vector))
        self.crossed = self._crossed()

    def all(self) -> Iterator[RowsTile]:
        """All tiles; those that do not hold rows also with sums that follow another in its pass."""
        for tile in self._tiles():
            if self.followers and not tile.holds_rows(self.statements):
                yield replace(tile, joined=self.followers)
            yield tile

    def _tiles(self) -> Iterator[RowsTile]:
        """Tiles with the fast loop inside or outside, and the tile of one element where there is no loop."""
        if self.fast is None:
            yield RowsTile(unrolled=self._unrolled({}))
            return
        for warps in (1, 2, 4, 8, 16, 32):
            if warps * self.lanes > self.machine.max_threads_per_block:
                continue
            for each in ELEMENTS:
                if each >= self.vector and (self.inner or each <= self.most):
                    yield from self._of(warps, each)

    def _of(self, warps: int, each: int) -> Iterator[RowsTile]:
        """The tiles that give every thread of so many warps so many elements."""
        points = warps * self.lanes * each
        small = prod(power_from(axis.size) for axis in self.order) < self.lanes * self.vector  # threads are left over
        if self.fast not in self.inner:
            tile = self._tile_of(self.order_of(self.outer), points)
            if prod(tile.values()) == points or small:
                yield from self._made(tile, warps)
        if not self.inner:
            return
        inner = self.order_of(self.inner)
        outer = self.order_of(self.outer)
        share = 2
        while share <= points:  # of the tile, along inner loops
            tile = {**self._tile_of(inner, share), **self._tile_of(outer, points // share)}
            if prod(tile.values()) == points or small:
                yield from self._made(tile, warps)
            share *= 2

    def order_of(self, axes: Sequence[Axis]) -> list[Axis]:
        return [axis for axis in self.order if axis in axes]

    def _tile_of(self, axes: Sequence[Axis], points: int) -> dict[str, int]:
        """Points along each loop: the fastest first; a loop that stores along another one in memory gets its share."""
        if not axes:
            return {}
        tile = dict.fromkeys((axis.name for axis in axes), 1)
        crossing = self.crossed if self.crossed in axes and axes[0] == self.fast else None
        if crossing is not None:
            assert self.crossed is not None
            others = prod(power_from(axis.size) for axis in axes if axis != crossing)
            side = max(1 << log2(points) // 2, points // others)
            tile[crossing.name] = min(power_from(crossing.size), side)
            points //= tile[crossing.name]
        for axis in axes:
            if axis != crossing:
                tile[axis.name] = min(power_from(axis.size), points)
                points //= tile[axis.name]
        return {name: extent for name, extent in tile.items() if extent > 1}

    def _made(self, tile: Mapping[str, int], warps: int) -> Iterator[RowsTile]:
        """A tile with its threads: lanes along the fast loop first, warps along outer loops first."""
        names = [axis.name for axis in (*self.outer, *self.inner) if axis.name in tile]
        if not names:
            return
        extents = [tile[name] for name in names]
        order = [names.index(axis.name) for axis in self.order if axis.name in tile]
        sizes, lanes, distributed = ([1] * len(names) for _ in range(3))
        assert self.fast is not None
        if self.fast.name in tile:
            sizes[order[0]] = min(self.vector, extents[order[0]])
        left = self.lanes
        for dim in order:
            lanes[dim] = min(left, max(1, extents[dim] // sizes[dim]))
            left //= lanes[dim]
        lanes[order[-1]] *= left
        left = warps
        inside = [axis.name for axis in self.inner]
        for dim in sorted(order, key=lambda dim: names[dim] in inside):
            distributed[dim] = min(left, max(1, extents[dim] // (sizes[dim] * lanes[dim])))
            left //= distributed[dim]
        if left > 1:
            return  # warps that would all do the same
        threads = Blocked(tuple(sizes), tuple(lanes), tuple(distributed), tuple(order))
        yield RowsTile(dict(zip(names, extents, strict=True)), threads, warps, self._unrolled(tile))

    def _unrolled(self, tile: Mapping[str, int]) -> tuple[str, ...]:
        """Inner loops beside the tile that are short: the last ones, as long as few trips are written out."""
        found: list[str] = []
        trips = 1
        for axis in reversed([axis for axis in self.inner if axis.name not in tile]):
            trips *= axis.size
            if trips > UNROLLED:
                break
            found.insert(0, axis.name)
        return tuple(found)

    # What memory wants

    def _fast(self) -> Axis | None:
        """The loop along which most bytes follow each other, runs shorter than a line counting less."""
        loops = (*self.inner, *self.outer)
        score = dict.fromkeys(loops, 0.0)
        for access in self.heavy:
            line = max(1, self.machine.caches[0].line_bytes // access.element)
            for axis in loops:
                if access.form.coefficient(axis) == 1:
                    score[axis] += access.bytes * min(1.0, axis.size / line)
        return max(loops, key=lambda axis: (score[axis], axis in self.outer, axis.size), default=None)

    def _by_stride(self) -> list[Axis]:
        """All loops, those first that take small steps in the heaviest access along the fast loop."""
        along = [a for a in self.heavy if self.fast is not None and a.form.coefficient(self.fast) == 1] or self.heavy
        leading = max(along, key=lambda access: access.bytes, default=None)

        def stride(axis: Axis) -> int:
            step = abs(leading.form.coefficient(axis)) if leading is not None else 0
            return 0 if axis == self.fast else step or 1 << 62

        return sorted((*self.inner[::-1], *self.outer[::-1]), key=stride)

    def _vector(self) -> int:
        """Elements of the widest access along the fast loop that all heavy accesses can make."""
        if self.fast is None:
            return 1
        along = [access for access in self.heavy if access.form.coefficient(self.fast) == 1]
        widest = self.machine.load_bits // 8 // max((access.element for access in along), default=16)
        found = max(1, min(widest, power_from(self.fast.size)))
        for access in along:
            steps = [step for axis, step in access.form.terms.items() if axis != self.fast]
            found = gcd(found, access.form.constant, *steps)
        return found

    def _crossed(self) -> Axis | None:
        """Another loop of the same kind along which a heavy access steps from neighbour to neighbour."""
        for axes in (self.outer, self.inner):
            for access in self.heavy:
                step = 0 if self.fast is None else access.form.coefficient(self.fast)
                for axis in axes:
                    if self.fast in axes and axis != self.fast and access.form.coefficient(axis) == 1 and step > 1:
                        return axis
        return None
