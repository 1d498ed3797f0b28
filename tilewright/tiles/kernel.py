"""The scheduled kernel: flat tensor expressions, and one tile tree that has every decision about them.

It is what `lower` takes, and it is the same for CPUs and GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.dataclass import dataclass
from tilewright.expr.core import Apply, Axis, Compute, Const, Expr, Read, Tensor, scatter_body
from tilewright.expr.names import unique
from tilewright.expr.ordered import Ordered, Scatter
from tilewright.expr.rewrite import substitute, transform
from tilewright.tiles.tree import Hint, InvalidTree, Leaf, Scope, Stage, Tile, TileTree, leaves, walk


@dataclass(frozen=True)
class Follows:
    """How a sum follows a value that its body reads, where one pass computes both: what it is while that value changes.

    The *running value* is that of `reduction` so far: an extreme itself, of a sum the mean of its elements so far. With
    new elements it goes from `before` to `after`, and the sum goes on as

        sum * factor(before, after) + sum over new elements of term(element, before, after)

    which is the sum of the statement's body over all elements so far at the running value so far. A part of a row, of
    `count` elements with a running value `before` of its own, adds ``sum * factor + count * offset`` to the sum at
    another running value `after`. Without `factor` it is 1, without `offset` 0. All three are expressions of `ELEMENT`,
    the body of `reduction`, `BEFORE` and `AFTER`. The sum of a whole row is at least `least`, if that is known.
    """

    reduction: str
    term: Expr
    factor: Expr | None = None
    offset: Expr | None = None
    least: float | None = None

    def renamed(self, names: Mapping[str, str]) -> Follows:
        """The same over tensors with other names; names that are not given stay."""
        term, factor, offset = (
            None if part is None else with_names(part, names) for part in (self.term, self.factor, self.offset)
        )
        assert term is not None
        return Follows(names.get(self.reduction, self.reduction), term, factor, offset, self.least)


ELEMENT, BEFORE, AFTER = "running element", "running value before", "running value after"


def placeholder(name: str, dtype: str) -> Read:
    """What stands for `ELEMENT`, `BEFORE` or `AFTER` in the expressions of `Follows`."""
    return Read(Tensor(name, (), dtype), ())


@dataclass(frozen=True)
class Statement:
    """One flat tensor expression: ``tensor = accum over reduce of body`` at each point of `axes`.

    In `body`, reads of stored tensors have one index, a linear address; reads of values of the same kernel have none
    and mean the value at the same point, or one for each loop of the value, which is then read at another point
    (`tiles.windows`). `address` is where the value is stored, None where it stays in the kernel.
    With an `Ordered` accumulation the statement gives whole dimensions of the result, of so many elements and strides
    as `dims` says: the element at places p of these lies at ``address + sum p * stride``. A sum that `follows` another
    reduction may be computed in one pass with it. An extreme that `ignores_nan` may pass over elements that are NaN:
    these reach every result that depends on it in another way. `body` is zero where one of the indices in `support` is
    not at least 0 and less than the number beside it: what it reads there is a border of zeros, whose products with an
    infinity or NaN count as zero too.
    """

    tensor: Tensor
    axes: tuple[Axis, ...]
    body: Expr
    reduce: tuple[Axis, ...] = ()
    accum: str | Ordered | None = None
    address: Expr | None = None
    dims: tuple[tuple[int, int], ...] = ()
    follows: Follows | None = None
    ignores_nan: bool = False
    support: tuple[tuple[Expr, int], ...] = ()

    @property
    def name(self) -> str:
        """The name of the value, which the leaf of the tree has too."""
        return self.tensor.name

    def renamed(self, names: Mapping[str, str]) -> Statement:
        """The same statement over tensors with other names; names that are not given stay."""
        tensor = replace(self.tensor, name=names.get(self.name, self.name))
        follows = None if self.follows is None else self.follows.renamed(names)
        return replace(self, tensor=tensor, body=with_names(self.body, names), follows=follows)


@dataclass(frozen=True)
class Kernel:
    """What one launch computes, in order, and how."""

    statements: tuple[Statement, ...]
    tree: TileTree

    def renamed(self, names: Mapping[str, str]) -> Kernel:
        """The same kernel over tensors with other names; names that are not given stay."""
        statements = tuple(statement.renamed(names) for statement in self.statements)
        return Kernel(statements, _tree_renamed(self.tree, names))


def expressions(kernel: Kernel) -> tuple[Compute, ...]:
    """What the leaves of a kernel's tree compute, in their order, over flat tensors: for `problem.Problem`.

    A statement without a leaf is computed where it is read; each value of the kernel is a tensor over its own loops.
    A sum that follows another reduction in its pass reads the elements of that one, and not its value. Raises
    InvalidTree for a leaf that computes no statement.
    """
    here, followed = [leaf.op for _, leaf in leaves(kernel.tree)], joined(kernel)
    bodies = {each.name: each.body for each in kernel.statements}
    axes = {each.name: each.axes for each in kernel.statements if each.address is None}
    for name in here:
        if name not in bodies:
            raise InvalidTree(f"op {name} is no value of this kernel", help=f"one of {', '.join(bodies)}")
    values: dict[str, Expr] = {}
    found: dict[str, Compute] = {}
    for each in kernel.statements:
        if isinstance(each.accum, Ordered):
            found[each.name] = _ordered(each, each.accum)
            continue
        body = _with_values(bodies[followed.get(each.name, each.name)], values, axes)
        output = Tensor(each.name, tuple(axis.extent for axis in each.axes), body.dtype)
        found[each.name] = Compute(output, each.axes, body, each.reduce, each.accum if each.reduce else None)
        values[each.name] = output[each.axes] if each.name in here else body
    return tuple(found[name] for name in here)


def joined(kernel: Kernel) -> dict[str, str]:
    """The sums that follow a reduction in its pass, with the name of that: leaves of one loop at L1 are one pass."""
    reductions = {each.name: each.follows.reduction for each in kernel.statements if each.follows is not None}
    if not reductions:
        return {}
    passes = [
        {leaf.op for _, leaf in leaves(node)}
        for _, node in walk(kernel.tree)
        if isinstance(node, Tile) and node.level == "L1"
    ]
    return {name: other for name, other in reductions.items() if any({name, other} <= names for names in passes)}


def _ordered(statement: Statement, accum: Ordered) -> Compute:
    """An ordered accumulation with the dimensions that it gives as a whole behind the others.

    The tree has no loops along these. What a scatter finds in its result comes from another kernel: 0 stands for it.
    """
    names, first = {axis.name for axis in (*statement.axes, *statement.reduce)}, len(statement.axes)
    whole = [Axis(unique(f"place{number}", names), extent) for number, (extent, _) in enumerate(statement.dims)]
    axes, body = (*statement.axes, *whole), statement.body
    if isinstance(accum, Scatter):
        assert isinstance(body, Apply), "the body of a scatter is a value with its places"
        value, *places = body.args
        body = scatter_body(Const(0, value.dtype), value, places)
        accum = replace(accum, dims=tuple(range(first, len(axes))))
    else:
        accum = replace(accum, dim=first)
    output = Tensor(statement.name, tuple(axis.extent for axis in axes), statement.tensor.dtype)
    return Compute(output, axes, body, statement.reduce, accum)


def _with_values(body: Expr, values: Mapping[str, Expr], axes: Mapping[str, tuple[Axis, ...]]) -> Expr:
    """A body whose reads of the kernel's own values are replaced by what they stand for.

    `axes` has the loops of those that are not stored, which may be read at other points.
    """

    def rule(node: Expr) -> Expr | None:
        if not isinstance(node, Read) or not node.indices:
            return values.get(node.tensor.name) if isinstance(node, Read) else None
        name = node.tensor.name
        if name not in values or name not in axes:
            return None
        return substitute(values[name], dict(zip(axes[name], node.indices, strict=True)))

    return transform(body, rule)


def with_names(body: Expr, names: Mapping[str, str]) -> Expr:
    """A body that reads tensors by other names; names that are not given stay."""

    def rule(node: Expr) -> Expr | None:
        if not isinstance(node, Read) or node.tensor.name not in names:
            return None
        return Read(replace(node.tensor, name=names[node.tensor.name]), node.indices)

    return transform(body, rule)


def _tree_renamed(tree: TileTree, names: Mapping[str, str]) -> TileTree:
    """The tree with other names at leaves, stages, and tiles and hints that name tensors."""
    if isinstance(tree, Scope):
        return replace(tree, children=tuple(_tree_renamed(child, names) for child in tree.children))
    if isinstance(tree, Stage):
        return replace(tree, tensor=names.get(tree.tensor, tree.tensor), child=_tree_renamed(tree.child, names))
    child = tree.child
    if isinstance(child, Leaf):
        renamed: Tile | Scope | Stage | Leaf = replace(
            child, op=names.get(child.op, child.op), hints=_hints_renamed(child.hints, names)
        )
    else:
        renamed = _tree_renamed(child, names)
    keep, bypass = (tuple(names.get(name, name) for name in tensors) for tensors in (tree.keep, tree.bypass))
    return replace(tree, child=renamed, hints=_hints_renamed(tree.hints, names), keep=keep, bypass=bypass)


def _hints_renamed(hints: tuple[Hint, ...], names: Mapping[str, str]) -> tuple[Hint, ...]:
    """Hints about tensors: their first argument is a name."""
    changed = []
    for hint in hints:
        if hint.name == "prefetch":
            tensor, *others = hint.arguments
            hint = Hint(hint.name, (names.get(str(tensor), str(tensor)), *others))
        changed.append(hint)
    return tuple(changed)
