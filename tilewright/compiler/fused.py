"""Products in one kernel: which groups become one, their blocks, and whether that is predicted to pay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from tilewright.compiler.chains import (
    TIMED,
    expected_layout,
    fusion_of,
    given_trees,
    has_windows,
    is_chain,
    join,
    keep_rows,
    kernel_loops,
    loop_along,
    over_shared_loops,
    products,
    proven_mappings,
    refusal,
    row_statements,
    shared_loops,
)
from tilewright.compiler.cpu_products import ProductPlan
from tilewright.compiler.planning import Planning, points
from tilewright.compiler.products import unit_loops
from tilewright.compiler.rows import lanes_of, place_constants
from tilewright.dataclass import dataclass
from tilewright.decision import APART, ASKED, FUSED, Cost, Decision, Refusal, keep
from tilewright.expr.core import Axis, Const, Expr, Read, Tensor
from tilewright.expr.dtypes import INDEX
from tilewright.expr.graph import Loop
from tilewright.expr.rewrite import substitute, transform
from tilewright.graph.groups import Group
from tilewright.instruction.products import MappedProduct
from tilewright.machine.description import Cpu
from tilewright.operator.flatten import address
from tilewright.operator.product_loops import merge_shared_loops
from tilewright.operator.products_tree import products_tree
from tilewright.operator.registers import epilogue_vectors
from tilewright.operator.rewrites.deferred_normalisation import Deferred, deferred_normalisation
from tilewright.operator.rules.cpu_fused import (
    LEAST_GAIN,
    FusedPoint,
    choose_fused,
    cycles_apart,
    cycles_fused,
    fused_kernel,
    fused_points,
    in_order,
    kernel_cycles,
    point_of,
    rows_alike,
    seen_part,
)
from tilewright.operator.statements import Statements
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.legality import check
from tilewright.tiles.machines import program_resources
from tilewright.tiles.problem import problem_of
from tilewright.tiles.product import Operand, Product, flat_product
from tilewright.tiles.tree import about

MOST_PRODUCTS = 3  # in one kernel: of each the best register tiles are tried with those of all others


def join_products(planning: Planning, steps: Sequence[Group | Loop], machine: Cpu) -> list[Group | Loop]:
    """The steps of a plan, in which products that are one kernel are one group."""
    known: dict[str, _Ways | Refusal] = {}
    return join(planning, steps, lambda parts: _judged(planning, parts, machine, known), MOST_PRODUCTS)


# Whether --------------------------------------------------------------------------------------------------------------


def _judged(
    planning: Planning, parts: tuple[Group, ...], machine: Cpu, known: dict[str, _Ways | Refusal]
) -> tuple[tuple[MappedProduct, ...], Decision]:  # fmt: skip
    """The mappings with which groups run as one kernel, with the decision; none where they stay apart.

    They are one where blocks fit, and that is asked for or predicted to pay. What is `known` of the ways to run groups
    is kept by the subject of their decision.
    """
    subject, options = fusion_of(parts), planning.options
    given = given_trees(planning, parts)
    if given is False:
        return (), Decision(subject, APART, ASKED)
    ways = _compared(planning, parts, machine, known)
    if isinstance(ways, Refusal):
        return (), Decision(subject, APART, "they cannot be one", refused=(ways,))
    one, several, split = ways.one, ways.several, ways.of_split
    fused, asked = f"{FUSED}, {ways.point}", given or options.fuse == "always"
    timed = subject in planning.choose.chains
    if asked or timed or one * LEAST_GAIN <= several:
        others = f"{several:.0f}{split or f' as {APART}'}"
        reason = ASKED if asked else TIMED if timed else f"{one:.0f} predicted cycles, {others}"
        return ways.mappings, Decision(
            subject, fused, reason, APART, f"{several:.0f} cycles", cost=Cost(cycles=one),
            runner_up_cost=Cost(cycles=several),
        )  # fmt: skip
    found = keep(subject, APART, several, fused, one, LEAST_GAIN)
    return (), replace(found, reason=f"{found.reason}{split}")


@dataclass(frozen=True)
class _Ways:
    """Groups as one kernel, with these mappings of products at this point, and as several: predicted cycles.

    `several` are those of the better way of a kernel each (`apart`) and of one kernel for some of them, `split`.
    """

    mappings: tuple[MappedProduct, ...]
    point: FusedPoint
    one: float
    several: float
    apart: float
    split: str = ""

    @property
    def of_split(self) -> str:
        """Which of the groups are one kernel of the several, beside the cycles where none are."""
        return f" with one for {self.split}, {self.apart:.0f} as {APART}" if self.split else ""


def _compared(
    planning: Planning, parts: tuple[Group, ...], machine: Cpu, known: dict[str, _Ways | Refusal]
) -> _Ways | Refusal:  # fmt: skip
    """Both ways of running groups, or why they cannot be one kernel."""
    subject = fusion_of(parts)
    if subject not in known:
        known[subject] = _both_ways(planning, parts, machine, known)
    return known[subject]


def _both_ways(
    planning: Planning, parts: tuple[Group, ...], machine: Cpu, known: dict[str, _Ways | Refusal]
) -> _Ways | Refusal:  # fmt: skip
    reason = refusal(planning, parts, through_windows=True)
    if reason:
        return Refusal(FUSED, reason)
    mappings = _mappings(planning, parts)
    if mappings is None:
        return Refusal(FUSED, f"rows of {parts[0].name} are stored as {parts[1].main.name} reads them")
    works, threads = _together(planning, _sketches(planning, parts, mappings), parts), planning.threads
    rows = row_statements(planning, parts, anywhere=True, order=works[0].spatial)
    works, _ = _deferred(works, rows, _softmax(rows))
    point = choose_fused(works, machine, threads, rows)
    if point is None:
        return Refusal(FUSED, "a block fits L2")
    alone = [planning.product_of(group.main) for group in products(parts)]
    alike = rows_alike(works, rows, machine)
    one = alike + cycles_fused(works, point, machine, threads, rows)
    # Copies at the ends, for which a product alone may have another mapping, count in neither way.
    ways = (_sketches(planning, parts, each) for each in (alone, mappings))
    apart = alike + min(cycles_apart(each, machine, threads, rows) for each in ways)
    gain, split = _best_split(planning, parts, machine, known)
    return _Ways(mappings, point, one, apart - gain, apart, split)


def _best_split(
    planning: Planning, parts: tuple[Group, ...], machine: Cpu, known: dict[str, _Ways | Refusal]
) -> tuple[float, str]:  # fmt: skip
    """The cycles that one kernel for all groups but the first, or but the last one, saves, and the names of these."""
    gain, names = 0.0, ""
    for some in (parts[:-1], parts[1:]):
        ways = _compared(planning, some, machine, known) if is_chain(some) else None
        if isinstance(ways, _Ways) and ways.several - ways.one > gain:
            gain, names = ways.several - ways.one, " + ".join(part.name for part in some)
    return gain, names


@dataclass(frozen=True)
class _Link:
    """What one product gives the next, which reads it as `name`, over loops of the kernel that `before` and `behind`
    are.

    There may be `rows` between, and one of these, or the second product, may read it through `windows`.
    """

    name: str
    before: Mapping[Axis, Axis]
    behind: Mapping[Axis, Axis]
    rows: bool
    windows: bool

    def fits(self, first: MappedProduct, last: MappedProduct) -> bool:
        """Whether the second product reads rows of the first one along its vectors, or along its sum."""
        columns = self.before.get(first.columns)
        along = [self.behind.get(axis) for axis in last.depth]
        is_a, summed_rows = last.a.tensor.name == self.name, columns is not None and columns in along
        if self.windows:
            return is_a and summed_rows and (self.rows or last.group == 1)
        if (self.rows or last.group > 1) and not summed_rows:
            return False
        in_vectors = columns is not None and self.behind.get(last.columns) == columns
        return is_a or (last.group == 1 and in_vectors)


def _links(parts: Sequence[Group]) -> list[_Link]:
    """What every product but the first one reads of the product before it, or of rows between."""
    loops, windows = shared_loops(parts), has_windows(parts)
    places = [place for place, part in enumerate(parts) if part.kind == "product"]
    return [
        _Link(parts[last - 1].nodes[-1].name, loops[first], loops[last], last > first + 1, windows)
        for first, last in pairwise(places)
    ]


def _mappings(planning: Planning, parts: tuple[Group, ...]) -> tuple[MappedProduct, ...] | None:
    """The best mappings of products of which each reads what is before it, in rows along its vectors or its sum."""
    target, before, links = planning.target, parts[0].nodes[-1].name, _links(parts)

    def fits(*mapped: MappedProduct) -> bool:
        if parts[0].kind == "rows":
            return mapped[0].a.tensor.name == before
        return all(link.fits(*pair) for link, pair in zip(links, pairwise(mapped), strict=True))

    return proven_mappings(planning, parts, fits, lambda each: _cycles(target.cost(each)))


def _cycles(cost: Cost | None) -> float:
    return cost.cycles or 0.0 if cost is not None else 0.0


def _sketches(
    planning: Planning, parts: Sequence[Group], mapped: Sequence[MappedProduct | None]
) -> list[Product]:  # fmt: skip
    """Products over their own loops, before their operands are placed."""
    pairs = zip(products(parts), mapped, strict=True)
    return [_sketch(planning, group, each) for group, each in pairs if each is not None]


def _together(planning: Planning, works: Sequence[Product], parts: Sequence[Group]) -> list[Product]:
    """Products over the loops of their kernel, those that may run as one fused, where no rows have them too, and no
    windows move along them.
    """
    border = planning.borders.get(parts[0].nodes[-1].name)
    shared = over_shared_loops(works, parts, None if border is None else border.value)
    return merge_shared_loops(shared) if products(parts) == [*parts] and not has_windows(parts) else shared


def _sketch(planning: Planning, group: Group, mapped: MappedProduct) -> Product:
    """A product whose operands are not placed yet: of the addresses only those of rows matter for its cycles."""
    total = Tensor(group.main.name, (), group.main.output.dtype)
    epilogue: Expr = Read(total, ())
    if len(group.nodes) > 1:
        renamed: dict[Axis, Expr] = dict(zip(group.nodes[-1].axes, group.main.axes, strict=True))
        epilogue = transform(substitute(group.nodes[-1].body, renamed), lambda node: _nowhere(node, total))
    a, b = _expected(planning, group, mapped), Operand(replace(mapped.b.tensor, shape=(1,)), Const(0, INDEX))
    loops = mapped.outer, mapped.rows, mapped.columns, mapped.depth
    output = group.nodes[-1].output
    work = flat_product(*loops, a, b, total, epilogue, output, Const(0, INDEX), lanes=mapped.lanes, group=mapped.group)
    return replace(work, shapes=mapped.shapes)


def _expected(planning: Planning, group: Group, mapped: MappedProduct) -> Operand:
    """The factor that rows index where it is expected to be stored: dimensions that are summed innermost."""
    read, tensor = substitute(mapped.a, unit_loops(group.main)), mapped.a.tensor
    assert isinstance(read, Read), "a factor is a read"
    layout = expected_layout(planning, tensor, [dim for dim, i in enumerate(read.indices) if i in mapped.depth])
    return Operand(replace(tensor, shape=(layout.size,)), address(layout, read.indices))


def _nowhere(node: Expr, total: Tensor) -> Expr | None:
    """Reads of tensors at one place, those of the sums of a product as its `total`."""
    if not isinstance(node, Read) or not node.indices:
        return None
    if node.tensor.name == total.name:
        return Read(total, ())
    return Read(replace(node.tensor, shape=(1,)), (Const(0, INDEX),))


# How ------------------------------------------------------------------------------------------------------------------


def plan_fused(planning: Planning, group: Group, machine: Cpu) -> None:
    """Add the kernel of products that run in turn on blocks of what they share, with rows between them if there are."""
    plan, threads, parts = planning.plan, planning.threads, group.parts
    plans = [ProductPlan(planning, part, machine, joins=True) for part in products(parts)]
    for each in plans[:-1]:
        each.keep_in_kernel()
    for part, reader in pairwise(parts):
        if part.kind == "rows":
            keep_rows(planning, part, reader)
            place_constants(planning, part, loop_along(part, reader))
    computing = [part for part in parts if part.kind == "product" or part == parts[0] or has_windows(parts)]
    lanes = sum(lanes_of(planning, part) for part in computing if part.kind == "rows")
    prepared = [each.prepare() for each in plans]
    unpacked = _together(planning, prepared, parts)
    rows: Mapping[int, Statements] = row_statements(planning, parts, order=unpacked[0].spatial)
    softmax = _softmax(rows)
    unpacked, rows = _deferred(unpacked, rows, softmax)
    point, decision = _blocks(unpacked, machine, threads, rows, f"blocks of {group.kernel}")
    name = planning.name_kernel(group.kernel)
    with about(name):
        given = planning.trees.of_products(name, unpacked)
        if given is not None:
            kernel = Kernel(in_order(unpacked, rows), given)
            check(given, problem_of(kernel), imperfect=True, resources=program_resources(machine))
            tree = products_tree(kernel)
            point = point_of(tree)
            decision = Decision(decision.subject, str(point), ASKED)
    plan.decisions.append(decision)
    tiles_of = [tiles.tile(work) for work, tiles in zip(unpacked, point.points, strict=True)]
    widths = [tile[work.columns.name] for work, tile in zip(unpacked, tiles_of, strict=True)]
    own = [each.operands.finished(width) for each, width in zip(plans, widths, strict=True)]
    works, _ = _deferred(_together(planning, own, parts), rows, softmax)
    at_a_time = []
    for work, tiles, each in zip(works, point.points, plans, strict=True):
        vectors, placed = epilogue_vectors(work, tiles, machine, each.group.kernel)
        at_a_time.append(vectors)
        if work.has_epilogue:
            plan.decisions.append(placed)
    scheduled = fused_kernel(works, point, at_a_time, rows, machine, lanes)
    names = [{loop: axis for axis, loop in loops_of.items()} for loops_of in kernel_loops(prepared, parts)]
    running = [
        each.proven(work, tile, own_names)
        for each, work, tile, own_names in zip(plans, unpacked, tiles_of, names, strict=True)
    ]
    plan.decisions += [replace(each.decision, chosen=str(on)) for each, on in zip(plans, running, strict=True)]
    of_all = sum(2 * points(each.main) for each in computing)  # of a softmax, none is counted
    flops = round(of_all * seen_part(works, point))  # about those that run, where a mask ends loops early
    planning.add_scheduled(
        name, scheduled, decision, (plans[-1].target.name,), flops,
        cycles=lambda kernel: kernel_cycles(kernel, machine),
        instruction=running[-1].instruction,
    )  # fmt: skip
    for each, work, tiles, on, vectors in zip(plans, works, point.points, running, at_a_time, strict=True):
        each.note(name, work, tiles, on, vectors)
    for part in parts[:-1]:
        del plan.stored[part.nodes[-1].name]
        planning.buffers.discard(part.nodes[-1].name)


def _blocks(
    works: Sequence[Product], machine: Cpu, threads: int, rows: Mapping[int, Statements], subject: str
) -> tuple[FusedPoint, Decision]:  # fmt: skip
    """Register tiles and blocks with the fewest predicted cycles, and the decision."""
    found = fused_points(works, machine, threads, rows)
    assert found, "blocks were found before the groups became one"
    costs = {str(each): cycles_fused(works, each, machine, threads, rows) for each in found}
    (point, *others) = sorted(found, key=lambda each: costs[str(each)])
    decision = Decision(subject, str(point), "register tiles with the fewest cycles whose blocks stay in L2")
    if not others:
        return point, decision
    best, second = costs[str(point)], costs[str(others[0])]
    decision = replace(
        decision, reason=f"{decision.reason}, {best:.0f} predicted cycles", runner_up=str(others[0]),
        runner_up_reason=f"{second:.0f} cycles", cost=Cost(cycles=best), runner_up_cost=Cost(cycles=second),
    )  # fmt: skip
    return point, decision


def _softmax(rows: Mapping[int, Statements]) -> Deferred | None:
    """The rows between two products as a softmax that may divide behind the second one; None where they are none."""
    return deferred_normalisation(rows[0]) if 0 in rows else None


def _deferred(
    works: list[Product], rows: Mapping[int, Statements], softmax: Deferred | None
) -> tuple[list[Product], Mapping[int, Statements]]:
    """Two products and the rows between them, with the division of a softmax behind the sums of the second one."""
    if softmax is None:
        return works, rows
    first, second = works
    second = replace(second, statements=softmax.product(second.statements))
    return [first, second], {0: softmax.with_weights_once()}
