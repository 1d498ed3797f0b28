"""Independent loops of a chain of operators (spec 1, section 3.1), and the tensors that blocks of them touch.

Loops tied together by a connecting tensor are one loop; a composite index derives the producer's loop, which is
replaced by the consumer's loops everywhere. `tiles.problem` finds both; this file turns computes into operators (a
compute-intensive expression with the memory-intensive ones beside it), refuses what is no linear chain, and says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import factorial, prod

from tilewright.dataclass import dataclass
from tilewright.errors import CompileError
from tilewright.expr import dtypes
from tilewright.expr.affine import Affine, affine
from tilewright.expr.core import Axis, Compute, Read, Tensor
from tilewright.expr.intensity import is_compute_intensive
from tilewright.expr.rewrite import inline, substitute
from tilewright.graph.chain.index import Index, Size
from tilewright.graph.passes.inline_maps import reads_own_points
from tilewright.tiles.problem import LoopOf, Problem


class NotAChain(CompileError):
    """Computes that are no linear chain of compute-intensive operators."""

    code = "not-a-chain"


@dataclass(frozen=True)
class Access:
    """One tensor that an operator reads or writes, one index per dimension; `bytes` are of an element."""

    tensor: str
    dims: tuple[Index, ...]
    bytes: int = 1

    @cached_property
    def loops(self) -> frozenset[str]:
        """The independent loops that index the tensor."""
        return frozenset(loop for index in self.dims for loop in index.loops)

    @property
    def size(self) -> int:
        """Elements of the tensor."""
        return prod(index.extent for index in self.dims)

    def footprint(self, tile: Mapping[str, Size]) -> Size:
        """Elements of one block (DF): the product of the widths."""
        size: Size = 1
        for index in self.dims:
            size = size * index.width(tile)
        return size


@dataclass(frozen=True)
class Operator:
    """One compute-intensive expression with the memory-intensive ones that run on its blocks.

    `loops` are the independent loops that index a tensor of it. `reductions` are those it sums over. `scratch` are
    results of the memory-intensive expressions that never leave the chip: a row's maximum, its sum. `work` has one
    index per loop of the compute: together the points at which it multiplies.
    """

    name: str
    accesses: tuple[Access, ...]
    scratch: tuple[Access, ...]
    output: str
    loops: frozenset[str]
    reductions: frozenset[str]
    work: tuple[Index, ...]
    computes: tuple[str, ...]

    def access(self, tensor: str) -> Access:
        """Where it touches a tensor."""
        return next(access for access in self.accesses if access.tensor == tensor)


@dataclass(frozen=True)
class Rescaled:
    """Elements that are multiplied at every step of some loops but the first, as sums are when a maximum changes."""

    elements: int
    loops: frozenset[str]


@dataclass(frozen=True)
class Chain:
    """Operators in order, and their independent loops with extents.

    `links` are the tensors between operators. `windows` are loops that share an index with another one, those of
    pooling too: they stay whole and innermost. `whole` are loops that a reduction between two products needs whole.
    `problem` has the expressions, in which loops have the same names; `derived` has its derived loops over independent
    ones. `rescaled` are the sums of an online softmax.
    """

    operators: tuple[Operator, ...]
    extents: Mapping[str, int]
    links: frozenset[str]
    windows: frozenset[str]
    problem: Problem
    derived: Mapping[LoopOf, Index]
    whole: frozenset[str] = frozenset()
    rescaled: tuple[Rescaled, ...] = ()

    @cached_property
    def batches(self) -> tuple[str, ...]:
        """Loops that index every tensor: they only repeat the rest, and stay outermost."""
        accesses = [access for operator in self.operators for access in operator.accesses]
        return tuple(loop for loop in self.extents if all(loop in access.loops for access in accesses))

    @property
    def orders(self) -> int:
        """Orders of all independent loops, before any is refused."""
        return factorial(len(self.extents))

    @cached_property
    def io(self) -> tuple[tuple[int, Access], ...]:
        """Every access to a tensor that is no link, with the number of its operator."""
        return tuple(
            (number, access)
            for number, operator in enumerate(self.operators)
            for access in operator.accesses
            if access.tensor not in self.links
        )

    @property
    def outputs(self) -> frozenset[str]:
        """The tensors that the chain writes and does not read itself."""
        return frozenset(operator.output for operator in self.operators) - self.links

    @property
    def compulsory(self) -> int:
        """Elements that a fused chain moves at least: each tensor that is no link once."""
        return sum({access.tensor: access.size for _, access in self.io}.values())

    @property
    def apart(self) -> int:
        """Elements that its operators move at least as kernels of their own: what is read of links is written too."""
        read = [a for o in self.operators for a in o.accesses if a.tensor in self.links and a.tensor != o.output]
        reached = {a.tensor: prod(index.distinct(self.extents) for index in a.dims) for a in read}
        return self.compulsory + 2 * sum(reached.values())

    def access(self, tensor: str) -> Access:
        """The first access to a tensor."""
        return next(a for operator in self.operators for a in operator.accesses if a.tensor == tensor)

    def flops(self, number: int) -> int:
        """Operations of one operator without recomputation: a multiplication and an addition per point."""
        return self._flops[number]

    def rescaling(self, steps: Mapping[str, Size]) -> Size:
        """Operations that rescale sums, for steps of every loop; one that adds nothing takes the place of two."""
        total: Size = 0
        for each in self.rescaled:
            total = total + 2 * each.elements * (prod((steps[loop] for loop in each.loops), start=1) - 1)
        return total

    @cached_property
    def _flops(self) -> list[int]:
        return [2 * prod(index.distinct(self.extents) for index in operator.work) for operator in self.operators]


def layerwise(computes: Sequence[Compute]) -> int:
    """Elements that expressions move with a kernel each: everything they read and write, once (spec 1, section 6.2)."""
    return sum(tensor.size for compute in computes for tensor in (*compute.inputs(), compute.output))


def chain_of(computes: Sequence[Compute]) -> Chain:
    """The chain of computes in topological order; maps before a product, and padding, are part of what reads them.

    Raises NotAChain where there is no linear chain of at least one compute-intensive expression.
    """
    computes = with_own_names(_flattened(computes))
    problem = Problem.of(computes)
    groups = _groups(computes)
    resolver = _Resolver(problem)
    operators = [_operator(group, computes, resolver) for group in groups]
    used = frozenset(loop for operator in operators for loop in operator.loops)
    extents = {loop: extent for loop, extent in resolver.extents.items() if loop in used}
    written = {operator.output for operator in operators}
    links = frozenset(a.tensor for operator in operators for a in operator.accesses if a.tensor in written)
    links &= {a.tensor for operator in operators for a in operator.accesses if a.tensor != operator.output}
    windows = frozenset(loop for operator in operators for access in operator.accesses
                        for loop in _windows(access, operator))  # fmt: skip
    whole = frozenset(
        problem.names[compute.name, axis.name]
        for group in groups[:-1]
        for compute in group[1:]
        for axis in compute.reduce
    )
    direct = {problem.names[group[0].name, axis.name] for group in groups for axis in group[0].loops}
    windows |= (whole & used) - direct
    derived = {}
    for compute in computes:
        for axis in compute.loops:
            variable = resolver.variable(compute.name, axis)
            if isinstance(variable, Index):
                derived[compute.name, axis.name] = variable
    return Chain(tuple(operators), extents, links, windows, problem, derived, whole & used)


# From computes to groups ----------------------------------------------------------------------------------------------


def _flattened(computes: Sequence[Compute]) -> list[Compute]:
    """The expressions with some maps computed where they are read: what needs no product, and what moves elements.

    The first are padding and casts of operands, the second padding, crops and transposes of links; a crop before a
    padding stays, since the padding begins where it ends. Raises NotAChain for a reduction that needs no product.
    """
    found: list[Compute] = []
    inlined: dict[str, Compute] = {}
    after: set[str] = set()  # expressions that need a product
    last = computes[-1].name if computes else ""
    for compute in computes:
        for tensor in compute.inputs():
            if tensor.name in inlined:
                compute = inline(compute, inlined[tensor.name])
        needs = [tensor for tensor in compute.inputs() if tensor.name in after]
        if not needs and not is_compute_intensive(compute):
            if compute.accum is not None:
                raise NotAChain(
                    f"{compute.name} reduces before the first product",
                    where=compute.name,
                    help="compute it apart: start the chain behind it",
                )
            inlined[compute.name] = compute
            continue
        readers = [other for other in computes if compute.output in other.inputs()]
        clipped = any(other.accum is None and _moves_elements(other, [compute.output]) for other in readers)
        if needs and compute.name != last and _moves_elements(compute, needs) and not clipped:
            inlined[compute.name] = compute
        else:
            found.append(compute)
        after.add(compute.name)
    if not found:
        names = ", ".join(compute.name for compute in computes) or "none"
        raise NotAChain(
            f"no expression is compute-intensive: {names}", where=last, help="a chain has at least one product"
        )
    return found


def _moves_elements(compute: Compute, tensors: Sequence[Tensor]) -> bool:
    """Whether an expression is a map that reads a result at other points than it writes, by affine indices."""
    moved = compute.accum is None and len(tensors) == 1 and not reads_own_points(compute, tensors[0])
    return moved and all(affine(index) is not None for read in compute.reads() for index in read.indices)


def with_own_names(computes: Sequence[Compute]) -> list[Compute]:
    """The computes with another name for each loop that has the name of one that no tensor ties it to.

    `Problem` lets two loops share a name where no expression has both; the loops of a chain surround all of it.
    """
    problem = Problem.of(computes)
    root: dict[LoopOf, LoopOf] = {place: place for place in problem.names}

    def find(place: LoopOf) -> LoopOf:
        while root[place] != place:
            place = root[place]
        return place

    for producer, consumer in problem.edges():
        for read in consumer.reads():
            if read.tensor == producer.output:
                for axis, index in zip(producer.axes, read.indices, strict=True):
                    place = (producer.name, axis.name)
                    if isinstance(index, Axis) and problem.names[place] == problem.names[consumer.name, index.name]:
                        root[find(place)] = find((consumer.name, index.name))
    owner: dict[str, LoopOf] = {}
    for place in problem.names:  # those of the last expression first
        owner.setdefault(problem.names[place], find(place))
    found = []
    for compute in computes:
        renamed: dict[Axis, Axis] = {}
        for axis in compute.loops:
            place = (compute.name, axis.name)
            name = problem.names[place]
            if place not in problem.derived and find(place) != owner[name]:
                name = f"{find(place)[0]}.{name}"
            if name != axis.name:
                renamed[axis] = Axis(name, axis.extent)
        found.append(_renamed(compute, renamed) if renamed else compute)
    return found


def _renamed(compute: Compute, names: Mapping[Axis, Axis]) -> Compute:
    axes, reduce = (tuple(names.get(axis, axis) for axis in loops) for loops in (compute.axes, compute.reduce))
    return replace(compute, axes=axes, reduce=reduce, body=substitute(compute.body, dict(names)))


def _groups(computes: Sequence[Compute]) -> list[list[Compute]]:
    """Each product with the memory-intensive expressions behind it. Raises NotAChain where they are no line."""
    groups: list[list[Compute]] = []
    group_of: dict[str, int] = {}
    for compute in computes:
        sources = {group_of[tensor.name] for tensor in compute.inputs() if tensor.name in group_of}
        if is_compute_intensive(compute):
            if groups and sources != {len(groups) - 1}:
                _refuse_product(compute, groups, sources)
            groups.append([])
        elif not sources or min(sources) < len(groups) - 2 or (len(groups) == 1 and sources != {0}):
            raise NotAChain(
                f"{compute.name} reads {_of(compute, group_of)} after {groups[-1][0].name} was computed",
                where=compute.name,
                help=f"put it before {groups[-1][0].name}, or end the chain there",
            )
        if compute.ordered is not None:
            raise NotAChain(
                f"{compute.name} is an ordered accumulation", where=compute.name, help="end the chain there"
            )
        groups[-1].append(compute)
        group_of[compute.name] = len(groups) - 1
    for number, group in enumerate(groups[:-1]):
        after = [compute for later in groups[number + 1 :] for compute in later]
        crossing = {t.name for compute in after for t in compute.inputs() if group_of.get(t.name) == number}
        if len(crossing) > 1:
            raise NotAChain(
                f"{len(crossing)} results of {group[0].name} are read later: {', '.join(sorted(crossing))}",
                where=groups[number + 1][0].name,
                help="one tensor connects two operators of a chain",
            )
    return groups


def _of(compute: Compute, group_of: Mapping[str, int]) -> str:
    return (
        " and ".join(tensor.name for tensor in compute.inputs() if tensor.name in group_of) or "no result of a product"
    )


def _refuse_product(compute: Compute, groups: list[list[Compute]], sources: set[int]) -> None:
    last = groups[-1][0].name
    if not sources:
        fact = f"{compute.name} reads no result of {last}"
    else:
        fact = f"{compute.name} reads results of {', '.join(groups[number][0].name for number in sorted(sources))}"
    help = f"each product reads the result of the one before it, here {last}, and of no other"
    raise NotAChain(fact, where=compute.name, help=help)


# From groups to operators ---------------------------------------------------------------------------------------------


class _Resolver:
    """Indices of expressions as indices over independent loops."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.extents: dict[str, int] = {}
        for compute in problem.computes:
            for axis in compute.loops:
                if (compute.name, axis.name) not in problem.derived:
                    self.extents[problem.names[compute.name, axis.name]] = axis.size

    def variable(self, op: str, axis: Axis) -> str | Index:
        """The loop of an axis: its name, or what it is derived from."""
        place = (op, axis.name)
        forms = self.problem.derived.get(place)
        if forms is None:
            return self.problem.names[place]
        found = {self.index(consumer, form, axis.size) for consumer, form in forms}
        if len(found) != 1:
            raise NotAChain(
                f"{op} is read at different places along {axis.name}: by {', '.join(name for name, _ in forms)}",
                where=op,
                help="a chain has one reader of each result, with one index",
            )
        return found.pop()

    def index(self, op: str, form: Affine, extent: int) -> Index:
        """An affine form over the axes of `op`."""
        terms: list[tuple[str | Index, int]] = []
        for axis, coefficient in form.terms.items():
            if axis.size != 1:
                terms.append((self.variable(op, axis), coefficient))
        return Index(tuple(terms), extent, form.constant)

    def access(self, op: str, read: Read) -> Access:
        """What a read touches. Raises NotAChain for an index that is not affine, or a loop in two dimensions."""
        dims: list[Index] = []
        for index, extent in zip(read.indices, read.tensor.shape, strict=True):
            form = affine(index)
            if form is None:
                raise NotAChain(
                    f"{op} reads {read.tensor.name} at an index that is not affine",
                    where=op,
                    help="end the chain there",
                )
            dims.append(self.index(op, form, int(extent)))  # type: ignore[arg-type]
        seen: set[str] = set()
        for dim in dims:
            if seen & dim.loops:
                raise NotAChain(
                    f"{op} walks two dimensions of {read.tensor.name} by {', '.join(sorted(seen & dim.loops))}",
                    where=op,
                    help="a chain reads each dimension by loops of its own",
                )
            seen |= dim.loops
        return Access(read.tensor.name, tuple(dims), dtypes.size_bytes(read.tensor.dtype))


def _operator(group: Sequence[Compute], computes: Sequence[Compute], resolver: _Resolver) -> Operator:
    """One operator: its link is what the next group, or nobody here, reads."""
    inside = {compute.name for compute in group}
    read_later = [
        compute.name for compute in group
        if any(compute.output in other.inputs() for other in computes if other.name not in inside)
    ]  # fmt: skip
    output = read_later[-1] if read_later else group[-1].name
    main = group[0]
    accesses: dict[tuple[str, tuple[Index, ...]], Access] = {}

    def touch(op: str, read: Read) -> None:
        access = resolver.access(op, read)
        accesses.setdefault((access.tensor, access.dims), access)

    for compute in group:
        for read in compute.reads():
            if read.tensor.name not in inside:
                touch(compute.name, read)
        if compute.name == output:
            touch(compute.name, Read(compute.output, compute.axes))
    scratch = tuple(
        resolver.access(compute.name, Read(compute.output, compute.axes))
        for compute in group[1:]
        if compute.reduce and compute.name != output
    )
    for compute in group:
        for producer in resolver.problem.computes:
            for read in compute.reads():
                if read.tensor == producer.output:
                    _check_link(producer, compute, read, resolver.problem)
    work = tuple(
        Index(((variable, 1),), axis.size) if isinstance(variable, str) else variable
        for axis in main.loops
        for variable in (resolver.variable(main.name, axis),)
    )
    reductions = frozenset(resolver.problem.names[main.name, axis.name] for axis in main.reduce if axis.size != 1)
    loops = frozenset(loop for access in accesses.values() for loop in access.loops) | reductions
    loops |= frozenset(loop for index in work for loop in index.loops)
    loops = frozenset(loop for loop in loops if resolver.extents[loop] != 1)
    work = tuple(index for index in work if index.extent != 1)
    names = tuple(compute.name for compute in group)
    return Operator(main.name, tuple(accesses.values()), scratch, output, loops, reductions, work, names)


def _check_link(producer: Compute, consumer: Compute, read: Read, problem: Problem) -> None:
    """Raise NotAChain where a consumer needs a dimension of its producer whole."""
    for dim, axis in enumerate(producer.axes):
        if axis.extent != 1 and not problem.follows(read, consumer, dim):
            raise NotAChain(
                f"{consumer.name} needs all of {producer.name} along {axis.name}",
                where=consumer.name,
                help=f"end the chain with {producer.name}",
            )


def _windows(access: Access, operator: Operator) -> set[str]:
    """Reduction loops of composite indices."""
    found: set[str] = set()
    indices = list(access.dims)
    for index in indices:  # grows by the indices inside of these
        for variable, _ in index.terms:
            if isinstance(variable, Index):
                indices.append(variable)
            elif len(index.terms) > 1 and variable in operator.reductions:
                found.add(variable)
    return found
