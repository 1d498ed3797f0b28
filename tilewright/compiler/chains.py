"""Chains of products of which each reads the one before it, with rows between them: which groups may be one kernel.

What is here holds for every machine: loops that the groups share, and their statements over these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

from tilewright.compiler.plan import ChooseProduct
from tilewright.compiler.planning import Planning
from tilewright.compiler.products import unit_loops
from tilewright.compiler.rows import group_statements
from tilewright.decision import APART, FUSED, Decision
from tilewright.expr.affine import affine, simplify
from tilewright.expr.core import Axis, Compute, Const, Expr, Read, Tensor, select, static_shape, walk
from tilewright.expr.graph import Loop
from tilewright.expr.names import claim
from tilewright.expr.rewrite import substitute, transform
from tilewright.expr.text import print_expr
from tilewright.graph.groups import Group, joined, kernel_name
from tilewright.instruction.products import MappedProduct, is_proven
from tilewright.layouts import Packed, permuted
from tilewright.operator.statements import Statements, drop_unit_loops, inner_loops, outer_loops, over
from tilewright.tiles.parts import has_several_parts
from tilewright.tiles.product import Product
from tilewright.tiles.tree import InvalidTree, TileTree, about
from tilewright.tiles.windows import inside

Judge = Callable[[tuple[Group, ...]], tuple[tuple[MappedProduct, ...], Decision]]

TIMED = "it was timed as the faster one"


def fusions(decisions: Iterable[Decision]) -> list[Decision]:
    """The decisions of a plan that are about products in one kernel."""
    chosen = APART, FUSED
    return [each for each in decisions if each.subject.startswith("fusion of") and each.chosen.startswith(chosen)]


def fusion_of(parts: Sequence[Group]) -> str:
    """The subject of the decision about groups in one kernel."""
    return f"fusion of {' + '.join(part.name for part in parts)}"


def join(planning: Planning, steps: Sequence[Group | Loop], judged: Judge, most: int = 2) -> list[Group | Loop]:
    """The steps of a plan, in which products that are one kernel are one group, where the last of them was.

    `judged` gives the mappings with which the products of some groups, `most` at most, run as one kernel, none where
    they stay apart. Chains with a given tree come first, then those of more than two products, then the others in the
    order of the steps.
    """
    options, choose = planning.options, planning.choose
    chosen = options.fuse == "auto" and (options.search != "rules" or choose != ChooseProduct())
    if options.fuse == "never":
        return list(steps)
    groups = {name: step for step in steps if isinstance(step, Group) for name in step.stored}
    consumers = [step for step in steps if isinstance(step, Group) and step.kind == "product"]
    chains = [parts for consumer in consumers for parts in chains_to(consumer, groups, most)]
    chains.sort(key=lambda parts: (_tree_of_all(planning, parts) is None, -max(2, len(products(parts)))))
    left: dict[str, Group] = {}
    taken: set[str] = set()
    for parts in chains:
        if any(part.name in taken for part in parts):
            continue
        if chosen and fusion_of(parts) not in choose.chains and given_trees(planning, parts) is None:
            continue
        found, decision = judged(parts)
        if not found:
            _require_not_given(planning, parts, decision)
            planning.plan.decisions.append(replace(decision, kernel=parts[-1].kernel))
            continue
        for part, mapped in zip(products(parts), found, strict=True):
            settle(planning, part.main, mapped, decision)
        left[parts[-1].name] = joined(parts, decision)
        taken |= {part.name for part in parts}
    return [left.get(step.name, step) for step in steps if step.name in left or step.name not in taken]


def given_trees(planning: Planning, parts: Sequence[Group]) -> bool | None:
    """Whether trees were given for these groups as one kernel, or apart; None where none was given.

    One kernel may have the name of a part: a tree of several products is that of all.
    """
    if _tree_of_all(planning, parts) is not None:
        return True
    elsewhere = isinstance(planning.options.fuse, Path)
    return False if elsewhere or any(planning.trees.tree(part.kernel) is not None for part in parts) else None


def _tree_of_all(planning: Planning, parts: Sequence[Group]) -> TileTree | None:
    """The tree that was given for these groups as one kernel."""
    found = planning.trees.tree(kernel_name([node for part in parts for node in part.nodes]))
    return found if found is not None and has_several_parts(found) else None


def _require_not_given(planning: Planning, parts: Sequence[Group], decision: Decision) -> None:
    """Raises InvalidTree for the tree of a kernel that cannot be."""
    if decision.refused and _tree_of_all(planning, parts) is not None:
        with about(kernel_name([node for part in parts for node in part.nodes])):
            raise InvalidTree(f"there is no such kernel: {decision.refused[0].rule}", help=APART)


def chains_to(consumer: Group, groups: Mapping[str, Group], most: int = 2) -> Iterator[tuple[Group, ...]]:
    """A product that a product reads, with products before it in turn if there may be more, or one that it reads
    through one kernel of rows, with what is between.

    Or rows without a product before them whose reductions are not over what the product sums, such as windows.
    """
    for name in dict.fromkeys(tensor.name for tensor in consumer.main.inputs()):
        producer = groups.get(name)
        if producer is not None and producer.kind == "product":
            longer = chains_to(producer, groups, most - 1) if most > 2 else ()
            yield from ((*parts, consumer) for parts in longer if products(parts) == [*parts])
            yield producer, consumer
        elif producer is not None and producer.kind == "rows" and producer.inner:
            for tensor in dict.fromkeys(tensor.name for node in producer.nodes for tensor in node.inputs()):
                first = groups.get(tensor)
                if first is not None and first.kind == "product":
                    yield first, producer, consumer
            if is_chain((producer, consumer)):
                yield producer, consumer


def is_chain(parts: Sequence[Group]) -> bool:
    """Whether some groups of a chain are one too: several, from a product or rows with one value for what they reduce
    to a product.
    """
    first, last = parts[0], parts[-1]
    if len(parts) < 2 or last.kind != "product":
        return False
    return first.kind == "product" or not set(first.inner) & set(first.nodes[-1].axes)


def refusal(planning: Planning, parts: tuple[Group, ...], through_windows: bool = False) -> str:
    """Why groups cannot be one kernel, whatever the mappings of products are; empty where they can.

    `through_windows` allows that one of them reads the result of the first product through windows.
    """
    for producer, consumer in pairwise(parts):
        link = producer.nodes[-1].output
        reads = reads_between(producer, consumer)
        users = {user.name for user in planning.users[link.name]}
        readers = {node.name for node in (consumer.nodes if consumer.kind == "rows" else consumer.nodes[:1])}
        if link.name in planning.outputs or not users <= readers or producer.stored != (link.name,):
            return f"{link.name} is read elsewhere too"
        places = [_live_indices(read) for read in reads]
        if len(set(places)) > 1 or (len(reads) > 1 and consumer.kind != "rows"):
            return f"{link.name} is read at several points"
        if link.name in planning.views:
            return f"{link.name} has a border or is seen as another tensor"
        refused = _not_through_windows if through_windows and reads_windows(producer, consumer) else _not_alike
        reason = refused(planning, producer, consumer, parts)
        if reason:
            return reason
    return _why_no_link(parts)


def _why_no_link(parts: Sequence[Group]) -> str:
    """Why a product does not sum over one loop of what the one before it gives; empty where all do."""
    loops, ends = shared_loops(parts), set[Axis]()
    for part, before, here in zip(parts[1:], loops, loops[1:], strict=False):
        if part.kind == "product" or not has_windows(parts):
            linked = (axis for axis in summed(part) if axis.extent != 1 and here.get(axis) in before.values())
            ends |= {here[axis] for axis in linked}
        if part.kind == "product" and len(ends) != 1:
            if has_windows(parts) and products(parts) == [*parts]:
                return f"{part.main.name} sums over other loops than one of {parts[0].name}"
            return f"{part.main.name} sums over another loop than {parts[1].name} runs along"
        if part.kind == "product":
            ends = set()
    return ""


def _not_alike(planning: Planning, producer: Group, consumer: Group, parts: Sequence[Group]) -> str:
    """Why a group cannot read each value of another at the point where it is, whole rows of them where it reduces."""
    link, loops = producer.nodes[-1].output, _live_indices(reads_between(producer, consumer)[0])
    if not all(isinstance(index, Axis) for index in loops) or len(set(loops)) != len(loops):
        return f"{link.name} is read at other points than one block has"
    read, sizes = [axis.extent for axis in loops if isinstance(axis, Axis)], [n for n in link.shape if n != 1]
    if (products(parts) != [*parts] or has_windows(parts)) and read != sizes:
        return f"only a part of {link.name} is read"
    if link.name in planning.borders:
        return f"{link.name} has a border or is seen as another tensor"
    along = [axis for axis in summed(consumer) if axis.extent != 1]
    if len(along) != 1 or along[0] not in loops:
        return f"{consumer.main.name} sums over other loops than one of {link.name}"
    if consumer.kind == "rows" and not set(along) <= set(consumer.nodes[-1].axes):
        return f"{consumer.name} has no value for every element of {link.name}"
    return ""


def _not_through_windows(planning: Planning, producer: Group, consumer: Group, parts: Sequence[Group]) -> str:
    """Why a group cannot read the result of a product through windows of a buffer of one block."""
    link, read = producer.nodes[-1].output, reads_between(producer, consumer)[0]
    if producer is not parts[0] or producer.kind != "product":
        return f"{link.name} is read through windows, and no first product gives it"
    if len(products(parts)) > 2:
        return f"{link.name} is read through windows, and several products follow"
    for index, size in zip(read.indices, static_shape(link.shape), strict=True):
        form = affine(index)
        if form is None or any(factor < 0 for factor in form.terms.values()):
            return f"{link.name} is read at {print_expr(index)}, which is no window"
        if not form.terms and size != 1:
            return f"only a part of {link.name} is read"
        if size == 1 and form.bounds() != (0, 0):
            return f"{link.name} is read through windows that are wider than it"
        if form.bounds()[0] >= size or form.bounds()[1] < 0:
            return f"{link.name} is read outside of its border only"
    if inside(read) is not None and link.name not in planning.borders:
        return f"{link.name} has no border"
    if consumer.kind == "rows" and set(consumer.inner) & set(consumer.nodes[-1].axes):
        return f"{consumer.name} has several values for one window"
    return ""


def _live_indices(read: Read) -> tuple[Expr, ...]:
    """The indices of a read along dimensions with more than one element."""
    return tuple(index for index, size in zip(read.indices, read.tensor.shape, strict=True) if size != 1)


def reads_windows(producer: Group, consumer: Group) -> bool:
    """Whether a group reads the result of another at other points than its own, all loops of which are whole."""
    link, read = producer.nodes[-1].output, reads_between(producer, consumer)[0]
    pairs = zip(read.indices, static_shape(link.shape), strict=True)
    return any(not isinstance(index, Axis) for index, size in pairs if size != 1) or inside(read) is not None


def has_windows(parts: Sequence[Group]) -> bool:
    """Whether the first of some groups is a product whose result the next one reads through windows."""
    return parts[0].kind == "product" and reads_windows(parts[0], parts[1])


def settle(planning: Planning, node: Compute, mapped: MappedProduct, fusion: Decision) -> None:
    """Let a product run with the mapping that goes with the other one."""
    own, why = planning.find_product(node)
    assert why is not None
    if mapped != own:
        why = Decision(why.subject, str(mapped), fusion.subject, why.chosen, why.reason, runner_up_cost=why.cost)
    planning.settle(node, mapped, why)


def proven_mappings(
    planning: Planning, parts: tuple[Group, ...], fits: Callable[..., bool], cost: Callable[[MappedProduct], float]
) -> tuple[MappedProduct, ...] | None:  # fmt: skip
    """The mappings of products that go together (`fits`, of one for each) at the least cost and pass every check; None
    where none do.
    """
    ranked = [[(cost(each), each) for each in planning.all_products(group.main)] for group in products(parts)]
    fitting = [each for each in product(*ranked) if fits(*(mapped for _, mapped in each))]
    fitting.sort(key=lambda each: sum(cycles for cycles, _ in each))
    mappings = (tuple(mapped for _, mapped in each) for each in fitting)
    return next((each for each in mappings if all(map(is_proven, each))), None)


# Loops and statements -------------------------------------------------------------------------------------------------


def products(parts: Sequence[Group]) -> list[Group]:
    """Those of some groups that are products."""
    return [part for part in parts if part.kind == "product"]


def loop_along(producer: Group, consumer: Group) -> Axis:
    """The loop of a group that the product which reads its result sums over."""
    (read, *_), node = reads_between(producer, consumer), producer.nodes[-1]
    (found,) = (axis for index, axis in zip(read.indices, node.axes, strict=True) if index in summed(consumer))
    return found


def summed(group: Group) -> tuple[Axis, ...]:
    """The loops that a product sums over, or that rows run along."""
    return group.inner if group.kind == "rows" else group.main.reduce


def reads_between(producer: Group, consumer: Group) -> list[Read]:
    """What a group reads of the result of another, its loops of extent 1 at 0."""
    nodes = consumer.nodes if consumer.kind == "rows" else consumer.nodes[:1]
    link = producer.nodes[-1].name
    bodies = [
        substitute(node.body, unit_loops(node)) for node in nodes if link in {each.name for each in node.inputs()}
    ]
    return [each for body in bodies for each in walk(body) if isinstance(each, Read) and each.tensor.name == link]


def shared_loops(parts: Sequence[Group]) -> list[dict[Axis, Axis]]:
    """The loops of one kernel that the loops of each group are, through what each reads of the one before it.

    Loops of the first product have their own names. Of the last group only those are there that it shares. A loop that
    runs on beyond a link, where windows have its border only, is no loop of the link.
    """
    found: list[dict[Axis, Axis]] = [{axis: axis for axis in parts[0].main.loops}]
    taken = {axis.name for axis in parts[0].main.loops}
    for number, (producer, consumer) in enumerate(pairwise(parts), 1):
        read, written = (
            reads_between(producer, consumer)[0],
            producer.nodes[-1] if producer.kind == "rows" else producer.main,
        )
        pairs = zip(read.indices, written.axes, strict=True)
        shared = {
            index: found[-1][axis]
            for index, axis in pairs
            if isinstance(index, Axis) and axis in found[-1] and index.size <= axis.size
        }
        if number + 1 < len(parts):
            loops = (*consumer.outer, *consumer.inner) if consumer.kind == "rows" else consumer.main.loops
            own = (axis for axis in loops if axis.extent != 1 and axis not in shared)
            shared |= {axis: Axis(claim(axis.name, taken), axis.extent) for axis in own}
        found.append(shared)
    return found


def kernel_loops(works: Sequence[Product], parts: Sequence[Group]) -> list[dict[Axis, Axis]]:
    """Which loops of one kernel the loops of its products are: those that they share have one name."""
    shared_by, read = shared_loops(parts), _loops_read(parts)
    is_first = parts[0].kind == "product"
    first = (*works[0].spatial, *works[0].depth) if is_first else parts[0].main.loops
    taken = {axis.name for axis in (*first, *(axis for shared in shared_by[1:-1] for axis in shared.values()))}
    found = [{axis: read.get(axis, axis) for axis in first}] if is_first else []
    followed = zip(works[len(found) :], _places_of_products(parts)[len(found) :], strict=True)
    for work, place in followed:
        shared, loops = shared_by[place], dict[Axis, Axis]()
        for axis in (*work.spatial, *work.depth):
            loops[axis] = read[shared[axis]] if axis in shared else Axis(claim(axis.name, taken), axis.extent)
        found.append(loops)
    return found


def _loops_read(parts: Sequence[Group]) -> dict[Axis, Axis]:
    """The loops that groups share, with the points of a link that are read behind it: others are not computed."""
    found = {axis: Axis(axis.name, own.extent) for shared in shared_loops(parts)[1:] for own, axis in shared.items()}
    return found | {axis: Axis(axis.name, high - low) for axis, (low, high) in _touched(parts).items()}


def over_shared_loops(works: Sequence[Product], parts: Sequence[Group], border: Const | None = None) -> list[Product]:
    """Products over the loops of one kernel (`kernel_loops`), links between them values.

    One that is read through windows has the value of its `border` outside.
    """
    loops_of = kernel_loops(works, parts)
    found: list[Product] = []
    for work, loops, place in zip(works, loops_of, _places_of_products(parts), strict=True):
        each = work.renamed(loops)
        if not place:
            begins = {loops[axis]: loops[axis] + low for axis, (low, _) in _touched(parts).items() if low}
            each = each.with_substituted_loops(begins)
        if place:
            link = parts[place - 1].nodes[-1]
            here: Expr = Read(_value_of(parts[place - 1]), ())
            if found and products(parts) == [*parts] and has_windows(parts):
                here = window_of(parts[0], parts[1], loops, found[0].spatial, border)
            each = _reading(each, link.name, here)
        found.append(each if place == len(parts) - 1 else _as_value(each, parts[place]))
    return found


def _touched(parts: Sequence[Group]) -> dict[Axis, tuple[int, int]]:
    """The first point that windows touch, and the one behind the last, of each loop of a first product that is read
    through windows.
    """
    if not has_windows(parts):
        return {}
    found = {}
    for axis, index in zip(parts[0].main.axes, reads_between(parts[0], parts[1])[0].indices, strict=True):
        form = affine(index)
        assert form is not None, f"{index} is no window"
        if form.terms:
            low, high = form.bounds()
            found[axis] = max(0, int(low)), min(axis.size, int(high) + 1)
    return found


def _places_of_products(parts: Sequence[Group]) -> list[int]:
    return [place for place, part in enumerate(parts) if part.kind == "product"]


def _value_of(group: Group) -> Tensor:
    """The result of a group at one point of the loops of a kernel."""
    output = group.nodes[-1].output
    return Tensor(output.name, (), output.dtype)


def _as_value(work: Product, group: Group) -> Product:
    """The product of a group, whose result has no address."""
    *others, result = work.statements
    return replace(work, statements=(*others, replace(result, tensor=_value_of(group), address=None)))


def _reading(work: Product, tensor: str, here: Expr) -> Product:
    """The product with an expression where it reads a tensor."""

    def rule(node: Expr) -> Expr | None:
        return here if isinstance(node, Read) and node.tensor.name == tensor else None

    return replace(work, statements=tuple(replace(each, body=transform(each.body, rule)) for each in work.statements))


def window_of(
    producer: Group, consumer: Group, loops: Mapping[Axis, Axis], order: Sequence[Axis], border: Const | None
) -> Expr:  # fmt: skip
    """The read of a product's result through windows, over the loops of the kernel, by an index for each of `order`."""
    (read, *_), axes = reads_between(producer, consumer), producer.main.axes
    indices = {axis.name: substitute(index, dict(loops)) for axis, index in zip(axes, read.indices, strict=True)}
    for axis, (low, _) in _touched((producer, consumer)).items():
        indices[axis.name] = simplify(indices[axis.name] - low)
    value = Tensor(producer.name, tuple(axis.size for axis in order), read.dtype)
    found = Read(value, tuple(indices[axis.name] for axis in order))
    outside = inside(found)
    if outside is None:
        return found
    assert border is not None, f"{producer.name} is read outside, and has no border"
    return select(outside, found, border)


def row_statements(
    planning: Planning, parts: Sequence[Group], anywhere: bool = False, order: Sequence[Axis] = ()
) -> dict[int, Statements]:
    """The statements of the rows between two products over the loops of the kernel, by number 0, or of those before the
    only product, by number -1; what parts give to each other are values.

    With `anywhere`, what they read may have no place yet, and is expected where what is summed is innermost. `order`
    has the loops of the first product's result, which they may read through windows.
    """
    number = next((place for place, part in enumerate(parts) if part.kind == "rows"), None)
    if number is None:
        return {}
    group, read = parts[number], _loops_read(parts)
    loops = {own: read.get(axis, axis) for own, axis in shared_loops(parts)[number].items()}
    links = [part.nodes[-1].name for part in parts[: number + 1]]

    windows = number > 0 and has_windows(parts)
    through = None
    if windows:
        border = planning.borders.get(links[0])
        through = window_of(parts[0], group, loops, order, None if border is None else border.value)

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Read) and node.tensor.name in links:
            same_point = Read(Tensor(node.tensor.name, (), node.dtype), ())
            return same_point if through is None or node.tensor.name != links[0] else through
        return None

    found = []
    inner = loop_along(*parts[number:]) if number == 0 or windows else None

    def expected(tensor: Tensor) -> Packed:
        reads = [read for node in group.nodes for read in node.reads() if read.tensor == tensor]
        return expected_layout(planning, tensor, [dim for dim, index in enumerate(reads[0].indices) if index == inner])

    for each in drop_unit_loops(group_statements(planning, group, links, expected if anywhere else None)):
        axes, reduce = (tuple(loops[axis] for axis in own) for own in (each.axes, each.reduce))
        tensor = Tensor(each.name, (), each.tensor.dtype) if each.name in links else each.tensor
        body = transform(substitute(each.body, dict(loops)), rule)
        found.append(replace(each, tensor=tensor, axes=axes, body=body, reduce=reduce))
    if inner is not None:
        outer = (*(axis for axis in outer_loops(found) if axis != loops[inner]), loops[inner])
        found = [*over(outer, inner_loops(found), found)]
    return {number - 1: tuple(found)}


def expected_layout(planning: Planning, tensor: Tensor, inner: Collection[int]) -> Packed:
    """How a tensor is expected to be stored that has no place yet: with its border, dimensions `inner` innermost."""
    order = [*(dim for dim in range(len(tensor.shape)) if dim not in inner), *inner]
    border = planning.borders.get(tensor.name)
    return permuted(static_shape(tensor.shape), order, border.widths if border is not None else None)


def keep_rows(planning: Planning, group: Group, consumer: Group) -> None:
    """Let the result of rows be a buffer of the kernel, each row one behind the other."""
    node = group.nodes[-1]
    inner = node.axes.index(loop_along(group, consumer))
    order = [*(dim for dim in range(len(node.axes)) if dim != inner), inner]
    planning.place(node.output, permuted(static_shape(node.output.shape), order), "buffer")
    planning.buffers.add(node.name)
