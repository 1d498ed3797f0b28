"""The expressions that a tile tree runs, and which of their loops are one loop (spec 1, section 3.1).

Loops tied together by a tensor that one expression writes and another reads are one loop with one name. A consumer
that reads a dimension through a sum (``h*2 + r``), or a part of it by a loop of another extent, *derives* the
producer's loop: its range follows from the consumer's tile, halo included. Loops that no tensor ties may have one
name, where their extents agree and no expression is moved by both. A dimension read any other way (a constant, a
gathered index, the same tensor transposed as well) must be whole before the consumer runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidExpression
from tilewright.expr.affine import Affine, affine
from tilewright.expr.core import Axis, Compute, Expr, Read, Tensor, walk
from tilewright.expr.rewrite import transform
from tilewright.tiles.kernel import AFTER, BEFORE, Kernel, expressions, joined

LoopOf = tuple[str, str]  #: a loop of an expression: the name of what it writes, the name of the axis


@dataclass(frozen=True)
class Rescaling:
    """A sum that stays right while a value that its terms use is still running over the same loop.

    Whenever the reduction `running` changes, what `total` has summed up so far is multiplied by `factor`: an
    expression over the scalars `OLD` and `NEW`, the running value before and after. This is how a softmax runs through
    its row in parts (spec 1, section 2.6, rule L5 b).
    """

    total: str
    running: str
    factor: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """How an expression indexes a tensor of this shape: an affine form per dimension, None for any other index.

    `plain` has the axis of the expression whose values are the indices of a dimension, None where they are those of no
    axis; `axes` has the name of its loop, None also where consumers decide about the axis. `moving` are the loops that
    move the slice.
    """

    op: str
    tensor: str
    forms: tuple[Affine | None, ...]
    shape: tuple[int, ...]
    plain: tuple[str | None, ...]
    axes: tuple[str | None, ...]
    moving: frozenset[str]


class AxisOf(NamedTuple):
    """An axis of an expression: the name of its loop, its extent, and what decides its values.

    `given`: an ordered accumulation gives all of them. `forms`: consumers ask for these, by affine forms over their
    axes.
    """

    name: str
    extent: int
    given: bool
    forms: tuple[tuple[str, Affine], ...]


class Side(NamedTuple):
    """One dimension of a tensor: its extent, and how expressions index it.

    `axes` are the (expression, axis) whose values are the indices, where each access has one; else None, and `forms`
    are the indices by expression, None for one that may be anywhere.
    """

    extent: int
    axes: tuple[LoopOf, ...] | None
    forms: tuple[tuple[str, Affine | None], ...]


OLD, NEW = "old", "new"  #: the tensors without dimensions that a `Rescaling.factor` reads


@dataclass(frozen=True)
class Problem:
    """`computes` in topological order; `names` calls every loop; `derived` has those that follow from consumers' loops.

    Of a derived loop it holds the indices by which consumers read it: (consumer, affine form over the consumer's axes).
    Its own name is for tiles of the producer alone. `rescaled` lists the sums that need not wait for a running value.
    """

    computes: tuple[Compute, ...]
    names: Mapping[LoopOf, str]
    derived: Mapping[LoopOf, tuple[tuple[str, Affine], ...]]
    rescaled: tuple[Rescaling, ...] = ()

    @classmethod
    def of(cls, computes: Sequence[Compute], rescaled: Sequence[Rescaling] = ()) -> Problem:
        """Find out which loops are one.

        Raises InvalidExpression if the order is not topological, an extent open, or a rescaling impossible: one whose
        total is no sum over a loop of its running reduction, or whose terms do not use it.
        """
        producers: dict[str, Compute] = {}
        for compute in computes:
            for axis in compute.loops:
                if not isinstance(axis.extent, int):
                    message = f"{compute.name}: the extent of {axis.name} is not known"
                    raise InvalidExpression(message, help="give a size")
            later = [c.name for c in computes[len(producers) + 1 :]]
            for tensor in compute.inputs():
                if tensor.name in later or tensor.name == compute.name:
                    raise InvalidExpression(
                        f"{compute.name} reads {tensor.name}, which is not written before it",
                        help=f"{tensor.name} before {compute.name}",
                    )
            if compute.name in producers:
                raise InvalidExpression(f"{compute.name} is written twice", help="one of them")
            producers[compute.name] = compute
        problem = _Loops(computes, producers).problem()
        for one in rescaled:
            _check_rescaling(one, problem)
        return replace(problem, rescaled=tuple(rescaled))

    def runs(self, running: str, loop: str) -> bool:
        """Whether all that uses a running reduction may do so before the steps of a loop are over.

        Every way from it to a result must end in a sum over the loop that is rescaled when it changes.
        """
        totals = {one.total for one in self.rescaled if one.running == running}

        def ends(op: str) -> bool:
            if op in totals and loop in self.reductions(op):
                return True
            users = [consumer.name for producer, consumer in self.edges() if producer.name == op]
            return bool(users) and loop not in self.reductions(op) and all(map(ends, users))

        users = [consumer.name for producer, consumer in self.edges() if producer.name == running]
        return bool(users) and all(map(ends, users))

    def compute(self, op: str) -> Compute:
        """The expression that writes `op`."""
        return self._by_name[op]

    @cached_property
    def _by_name(self) -> Mapping[str, Compute]:
        return {compute.name: compute for compute in self.computes}

    def edges(self) -> Iterator[tuple[Compute, Compute]]:
        """Every (producer, consumer), in the order of producers."""
        for producer in self.computes:
            for consumer in self.computes:
                if producer.output in consumer.inputs():
                    yield producer, consumer

    def loops(self, op: str) -> frozenset[str]:
        """The names of all loops that move an expression to other data, through derived loops too."""
        return frozenset(name for axis in self.compute(op).body_loops for name in self.loops_of(op, axis.name))

    def loops_of(self, op: str, axis: str) -> frozenset[str]:
        """The names that advance one axis: its own, and those of the consumers' loops it is derived from."""
        forms = self.derived.get((op, axis), ())
        sources = {name for consumer, form in forms for a in form.terms for name in self.loops_of(consumer, a.name)}
        return frozenset((self.names[op, axis], *sources))

    def reductions(self, op: str) -> frozenset[str]:
        """The names of an expression's reduction loops."""
        return frozenset(self.names[op, axis.name] for axis in self.compute(op).reduce)

    def follows(self, read: Read, consumer: Compute, dim: int) -> bool:
        """Whether a consumer's tile needs only the matching tile of dimension `dim` of a producer's tensor."""
        producer = self.compute(read.tensor.name)
        place = (producer.name, producer.axes[dim].name)
        if place in self.derived:
            return True
        axis = _plain(read.indices[dim])
        return axis is not None and self.names[consumer.name, axis.name] == self.names[place]

    def tensors(self) -> Mapping[str, Tensor]:
        """Every tensor read or written, by name."""
        return self._tensors

    @cached_property
    def _tensors(self) -> Mapping[str, Tensor]:
        return {tensor.name: tensor for compute in self.computes for tensor in (*compute.inputs(), compute.output)}

    @cached_property
    def free_extents(self) -> Mapping[str, Mapping[str, int]]:
        """Of each expression the extents of the axes that no consumer decides about, by the name of their loop."""
        return {
            compute.name: {
                self.names[compute.name, axis.name]: axis.size
                for axis in compute.body_loops
                if (compute.name, axis.name) not in self.derived
            }
            for compute in self.computes
        }

    @cached_property
    def users(self) -> Mapping[str, frozenset[str]]:
        """The expressions that read each tensor."""
        return {
            name: frozenset(compute.name for compute in self.computes if tensor in compute.inputs())
            for name, tensor in self._tensors.items()
        }

    def accesses(self, op: str) -> tuple[Access, ...]:
        """How an expression indexes the tensors that it reads, and last the one that it writes."""
        return self._accesses[op]

    @cached_property
    def _accesses(self) -> Mapping[str, tuple[Access, ...]]:
        found = {}
        for compute in self.computes:
            reads = (*compute.reads(), Read(compute.output, compute.axes))
            accesses = [self.access(compute.name, read.tensor, tuple(map(affine, read.indices))) for read in reads]
            found[compute.name] = tuple(accesses)
        return found

    def sides(self, ops: tuple[str, ...]) -> Mapping[str, tuple[Side, ...]]:
        """How these expressions index each tensor that they read or write."""
        if ops not in self._sides:
            accesses: dict[str, list[Access]] = {}
            for op in ops:
                for access in self.accesses(op):
                    accesses.setdefault(access.tensor, []).append(access)
            self._sides[ops] = {
                name: tuple(_side(own, dim) for dim in range(len(own[0].shape))) for name, own in accesses.items()
            }
        return self._sides[ops]

    @cached_property
    def _sides(self) -> dict[tuple[str, ...], Mapping[str, tuple[Side, ...]]]:
        return {}

    def axis(self, op: str, axis: str) -> AxisOf:
        """What decides the values of an axis of an expression."""
        return self._axes[op, axis]

    @cached_property
    def _axes(self) -> Mapping[LoopOf, AxisOf]:
        return {
            (compute.name, axis.name): AxisOf(
                self.names[compute.name, axis.name],
                axis.size,
                axis not in compute.body_loops,
                self.derived.get((compute.name, axis.name), ()),
            )
            for compute in self.computes
            for axis in compute.loops
        }

    def points(self, op: str) -> Access:
        """An access to one element for every point at which an expression is evaluated."""
        return self._points[op]

    @cached_property
    def _points(self) -> Mapping[str, Access]:
        found = {}
        for compute in self.computes:
            axes = compute.body_loops
            tensor = replace(compute.output, name=f"points of {compute.name}", shape=tuple(axis.size for axis in axes))
            forms = tuple(Affine(0, {axis: 1}) for axis in axes)
            found[compute.name] = self.access(compute.name, tensor, forms)
        return found

    def access(self, op: str, tensor: Tensor, forms: tuple[Affine | None, ...]) -> Access:
        """What an expression reaches of a tensor by these indices."""
        terms = {axis.name for form in forms if form is not None for axis in form.terms}
        moving = frozenset(name for term in terms for name in self.loops_of(op, term))
        shape = tuple(int(extent) for extent in tensor.shape)  # type: ignore[arg-type]
        plain = tuple(map(_plain_axis, forms))
        return Access(op, tensor.name, forms, shape, plain, tuple(self._loop(op, axis) for axis in plain), moving)

    def _loop(self, op: str, axis: str | None) -> str | None:
        """The name of the loop of an axis, unless it has none or consumers decide about it."""
        given = all(axis != own.name for own in self.compute(op).body_loops)
        return None if axis is None or given or (op, axis) in self.derived else self.names[op, axis]


def problem_of(kernel: Kernel) -> Problem:
    """The expressions of a kernel. Sums that follow a running value in another pass are rescaled when it changes."""
    here = joined(kernel)
    rescaled = [
        Rescaling(each.name, each.follows.reduction, transform(each.follows.factor, _old_and_new))
        for each in kernel.statements
        if each.follows is not None and each.follows.factor is not None and each.name not in here
    ]
    return Problem.of(expressions(kernel), rescaled)


def _old_and_new(node: Expr) -> Expr | None:
    """The running value as `Rescaling` names it."""
    if not isinstance(node, Read) or node.tensor.name not in (BEFORE, AFTER):
        return None
    return Read(replace(node.tensor, name=OLD if node.tensor.name == BEFORE else NEW), ())


def _check_rescaling(one: Rescaling, problem: Problem) -> None:
    """Raise InvalidExpression for a rescaling that no step could carry out."""
    known = [compute.name for compute in problem.computes]
    for name in (one.total, one.running):
        if name not in known:
            raise InvalidExpression(f"{name} is rescaled but no expression", help=f"one of {', '.join(known)}")
    if problem.compute(one.total).accum != "sum":
        sums = [compute.name for compute in problem.computes if compute.accum == "sum"]
        raise InvalidExpression(f"{one.total} is rescaled but no sum", help=f"one of {', '.join(sums) or '(none)'}")
    shared = problem.reductions(one.total) & problem.reductions(one.running)
    uses = {one.running}
    for producer, consumer in problem.edges():
        if producer.name in uses:
            uses.add(consumer.name)
    if not shared or one.total not in uses or one.total == one.running:
        users = [
            c.name for c in problem.computes
            if c.name in uses - {one.running} and problem.reductions(c.name) & problem.reductions(one.running)
        ]  # fmt: skip
        raise InvalidExpression(
            f"{one.total} is rescaled when {one.running} changes, but does not sum over its loop what uses it",
            help=f"one of {', '.join(users) or '(none)'}",
        )
    for node in walk(one.factor):
        if isinstance(node, Axis) or (isinstance(node, Read) and (node.tensor.name not in (OLD, NEW) or node.indices)):
            raise InvalidExpression(
                f"{one.total} is rescaled by an expression of {node}", help=f"only of {OLD} and {NEW} {one.running}"
            )


def _plain(index: Expr) -> Axis | None:
    return index if isinstance(index, Axis) else None


def _plain_axis(form: Affine | None) -> str | None:
    """The name of the axis that a form is, if it is one."""
    if form is None or form.constant or list(form.terms.values()) != [1]:
        return None
    return next(iter(form.terms)).name


def _side(accesses: Sequence[Access], dim: int) -> Side:
    """What these accesses of one tensor reach along a dimension."""
    extent = accesses[0].shape[dim]
    axes = tuple(dict.fromkeys([(each.op, each.plain[dim]) for each in accesses]))
    if all(axis is not None for _, axis in axes):
        return Side(extent, axes, ())  # type: ignore[arg-type]
    return Side(extent, None, tuple([(each.op, each.forms[dim]) for each in accesses]))


class _Loops:
    """Merges loops from the last consumer to the first producer."""

    def __init__(self, computes: Sequence[Compute], producers: Mapping[str, Compute]) -> None:
        self.computes, self.producers = computes, producers
        self.groups: dict[LoopOf, list[LoopOf]] = {}
        for compute in computes:
            for axis in compute.loops:
                self.groups[compute.name, axis.name] = [(compute.name, axis.name)]
        self.derived: dict[LoopOf, tuple[tuple[str, Affine], ...]] = {}

    def problem(self) -> Problem:
        for producer in reversed(self.computes):
            for dim, axis in enumerate(producer.axes):
                self._connect(producer, dim, axis)
        return Problem(tuple(self.computes), self._named(), self.derived)

    def _connect(self, producer: Compute, dim: int, axis: Axis) -> None:
        """Tie one dimension of a producer's tensor to the loops that read it."""
        reads = [
            (compute.name, read.indices[dim])
            for compute in self.computes
            for read in compute.reads()
            if read.tensor == producer.output
        ]
        loops = [(name, _plain(index)) for name, index in reads]
        plain = [(name, loop.name) for name, loop in loops if loop is not None and loop.extent == axis.extent]
        if len(plain) == len(reads) and not any(consumer in self.derived for consumer in plain):
            for consumer in dict.fromkeys(plain):
                self._merge((producer.name, axis.name), consumer)
            return
        forms = [(name, affine(index)) for name, index in reads]
        sums = tuple((name, form) for name, form in forms if form is not None and form.terms)
        if len(sums) == len(reads):
            self.derived[producer.name, axis.name] = sums

    def _merge(self, producer: LoopOf, consumer: LoopOf) -> None:
        """One loop from now on, unless an expression would then walk two of its axes by it."""
        a, b = self.groups[producer], self.groups[consumer]
        if a is b or {op for op, _ in a} & {op for op, _ in b}:
            return
        joined = [*a, *b]
        for loop in joined:
            self.groups[loop] = joined

    def _named(self) -> dict[LoopOf, str]:
        """Each group has the name that its last expression uses, or ``expression.axis`` where that is ambiguous."""
        names: dict[LoopOf, str] = {}
        holders: dict[str, list[list[LoopOf]]] = {}
        for compute in reversed(self.computes):
            for axis in compute.loops:
                group = self.groups[compute.name, axis.name]
                if (compute.name, axis.name) in names:
                    continue
                name = axis.name
                while not self._free(group, holders.get(name, [])):
                    name = f"{compute.name}.{name}"
                holders.setdefault(name, []).append(group)
                names.update(dict.fromkeys(group, name))
        return names

    def _free(self, group: list[LoopOf], holders: list[list[LoopOf]]) -> bool:
        """Whether a group may share a name with others: no expression is moved by both, and the extents agree."""
        movers = self._moved(group)
        return all(
            not movers & self._moved(other) and self._extent(group[0]) == self._extent(other[0]) for other in holders
        )

    def _moved(self, group: list[LoopOf]) -> set[str]:
        """The expressions that a loop advances: those that have it, and producers that derive a loop from it."""
        found = {op for op, _ in group}
        for (producer, axis), forms in self.derived.items():
            if any((consumer, a.name) in group for consumer, form in forms for a in form.terms):
                found |= self._moved(self.groups[producer, axis])
        return found

    def _extent(self, loop: LoopOf) -> object:
        return next(axis.extent for axis in self.producers[loop[0]].loops if axis.name == loop[1])
