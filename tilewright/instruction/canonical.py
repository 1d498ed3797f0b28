"""The node as the matcher wants it: a sum of products of plain reads, everything else in nodes before and after it.

In: one `Compute` that reduces. Out: a `Canonical`, nodes that together write the same tensor. What moves out:

* factors, divisors, signs and casts that no reduction loop changes: ``sum(a * b / s) -> sum(a * b) / s``;
* factors that are not plain reads, guarded padding above all: they become tensors of their own, indexed by the
  affine expressions that they depend on (``p + r`` stays one dimension);
* on request, reversed windows (``K - 1 - r``): a node that flips the tensor.

`with_units` and `widened` adapt the result to a record: loops of extent 1, a wider accumulator. Floating factors are
hoisted although this rounds at another place; integers wrap alike either way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce as fold
from math import gcd, prod

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidExpression
from tilewright.expr import dtypes
from tilewright.expr.affine import Affine, affine, simplify
from tilewright.expr.core import Apply, Axis, Cast, Compute, Const, Expr, Read, Tensor, walk
from tilewright.expr.dtypes import INDEX, DType
from tilewright.expr.infer import check
from tilewright.expr.names import claim, unique
from tilewright.expr.rewrite import transform


@dataclass(frozen=True)
class Canonical:
    """`before`, `core` and `after` in this order write what the original node wrote; `units` are loops of extent 1
    that were added to the core.
    """

    before: tuple[Compute, ...]
    core: Compute
    after: tuple[Compute, ...] = ()
    units: tuple[Axis, ...] = ()

    @property
    def nodes(self) -> tuple[Compute, ...]:
        return (*self.before, self.core, *self.after)


@dataclass(frozen=True)
class Unit:
    """A loop of extent 1 to be added: its kind (`S` or `R`), and whether it indexes each distinct read of the core."""

    kind: str
    indexes: tuple[bool, ...]


def canonicalise(compute: Compute, *, flip: bool = False, taken: Collection[str] = ()) -> Canonical:
    """The nodes that replace `compute`; itself alone where nothing is to be done. `taken` are names in use."""
    if compute.accum is None or not all(isinstance(axis.extent, int) and axis.extent > 0 for axis in compute.loops):
        return Canonical((), compute)
    work = _Work(compute, {*taken, compute.name, *(tensor.name for tensor in compute.inputs())})
    product = _hoisted(compute) if compute.accum == "sum" else _Product((compute.body,), (), (), False)
    factors = tuple(work.leaf(factor, flip) for factor in product.factors)
    body = fold(lambda left, right: left * right, factors)
    plain = not (product.invariant or product.divisors or product.negative) and body.dtype == compute.output.dtype
    if plain:
        core = compute if not work.before and body == compute.body else replace(compute, body=body)
        return Canonical(tuple(work.before), core)
    inner = Tensor(claim(f"{compute.name}.core", work.taken), compute.output.shape, body.dtype)
    core = replace(compute, output=inner, body=body)
    return Canonical(tuple(work.before), core, (_epilogue(compute, inner, product),))


def is_leaf(factor: Expr) -> bool:
    """Whether a factor is a read with affine indices, perhaps under casts that keep its value, or a number."""
    while isinstance(factor, Cast) and keeps_value(factor.arg.dtype, factor.dtype):
        factor = factor.arg
    if isinstance(factor, Read):
        return all(affine(index) is not None for index in factor.indices)
    return isinstance(factor, Const)


def keeps_value(source: DType, target: DType) -> bool:
    """Whether every value of `source` is one of `target`."""
    if source == target:
        return True
    if "bool" in (source, target):
        return source == "bool"
    if dtypes.is_float(source):
        return dtypes.is_float(target) and dtypes.bits(target) > dtypes.bits(source)
    if dtypes.is_float(target):
        digits = {"bf16": 8, "f16": 11, "f32": 24, "f64": 53}[target]
        return dtypes.bits(source) - (source in dtypes.SIGNED) <= digits
    inner, outer = np.iinfo(dtypes.numpy_dtype(source)), np.iinfo(dtypes.numpy_dtype(target))
    return bool(outer.min <= inner.min and inner.max <= outer.max)


def with_units(canonical: Canonical, units: Sequence[Unit]) -> Canonical:
    """The core with loops of extent 1 added; nodes before and after give tensors the extra dimensions and take them
    away again.
    """
    if not units:
        return canonical
    core = canonical.core
    names = {axis.name for axis in core.loops}
    work = _Work(core, {node.name for node in canonical.nodes} | {tensor.name for tensor in core.inputs()})
    axes = []
    for _ in units:
        axes.append(Axis(claim("u", names), 1))
    reads = list(dict.fromkeys(core.reads()))
    widened: dict[Expr, Expr] = {}
    for number, read in enumerate(reads):
        extra = tuple(axis for axis, unit in zip(axes, units, strict=True) if unit.indexes[number])
        if extra:
            shape = (*read.tensor.shape, *(1 for _ in extra))
            wide = Tensor(claim(f"{read.tensor.name}.unit", work.taken), shape, read.dtype)
            dims = tuple(Axis(f"i{number}", extent) for number, extent in enumerate(shape))
            work.before.append(Compute(wide, dims, read.tensor[dims[: read.tensor.rank]]))
            widened[read] = wide[(*read.indices, *extra)]
    body = transform(core.body, lambda node: widened.get(node) if isinstance(node, Read) else None)
    spatial = tuple(axis for axis, unit in zip(axes, units, strict=True) if unit.kind == "S")
    summed = tuple(axis for axis, unit in zip(axes, units, strict=True) if unit.kind == "R")
    output, after = core.output, canonical.after
    if spatial:
        shape = (*core.output.shape, *(1 for _ in spatial))
        output = Tensor(claim(f"{core.name}.unit", work.taken), shape, output.dtype)
        narrow = output[(*core.axes, *(Const(0, INDEX) for _ in spatial))]
        after = (Compute(core.output, core.axes, narrow, source=core.source), *after)
    new = Compute(output, (*core.axes, *spatial), body, (*core.reduce, *summed), core.accum, core.source)
    return Canonical((*canonical.before, *work.before), new, after, (*canonical.units, *axes))


def with_splits(canonical: Canonical, splits: Mapping[Axis, int]) -> Canonical | None:
    """The core with each of these loops as two, the inner one of the given extent, which divides the loop's.

    Tensors are read through nodes that cut the dimension in two as well. None where a loop shares a dimension.
    """
    core = canonical.core
    names = {axis.name for axis in core.loops}
    pairs: dict[Axis, tuple[Axis, Axis]] = {}
    for axis, inner in splits.items():
        pair = [Axis(unique(f"{axis.name}.{part}", names), extent)
                for part, extent in (("o", axis.size // inner), ("i", inner))]  # fmt: skip
        names.update(each.name for each in pair)
        pairs[axis] = (pair[0], pair[1])
    work = _Work(core, {node.name for node in canonical.nodes} | {tensor.name for tensor in core.inputs()})
    cut: dict[Expr, Expr] = {}
    for read in dict.fromkeys(core.reads()):
        if any(_uses(index, pairs) and not (index in pairs and index.extent == extent)
               for index, extent in zip(read.indices, read.tensor.shape, strict=True)):  # fmt: skip
            return None
        if any(index in pairs for index in read.indices):
            cut[read] = _cut(work, read, pairs)
    body = transform(core.body, lambda node: cut.get(node) if isinstance(node, Read) else None)
    axes, summed = (
        tuple(part for axis in loops for part in pairs.get(axis, (axis,))) for loops in (core.axes, core.reduce)
    )
    output, after = core.output, canonical.after
    if axes != core.axes:
        output = Tensor(claim(f"{core.name}.cut", work.taken), tuple(axis.extent for axis in axes), output.dtype)
        places = [
            place
            for axis in core.axes
            for place in ((axis // splits[axis], axis % splits[axis]) if axis in pairs else (axis,))
        ]
        after = (Compute(core.output, core.axes, simplify(output[tuple(places)]), source=core.source), *after)
    new = Compute(output, axes, body, summed, core.accum, core.source)
    return Canonical((*canonical.before, *work.before), new, after, canonical.units)


def _cut(work: _Work, read: Read, pairs: Mapping[Axis, tuple[Axis, Axis]]) -> Expr:
    """A read of a node that holds the tensor with the dimensions of split loops cut in two."""
    shape: list[int] = []
    whole: list[Expr] = []
    indices: list[Expr] = []
    axes: list[Axis] = []
    for index, extent in zip(read.indices, read.tensor.shape, strict=True):
        parts = pairs[index] if isinstance(index, Axis) and index in pairs else (index,)
        sizes = [part.size for part in pairs[index]] if isinstance(index, Axis) and index in pairs else [extent]
        own = [Axis(f"i{len(axes) + number}", size) for number, size in enumerate(sizes)]
        axes += own
        shape += sizes  # type: ignore[arg-type]
        indices += parts
        whole.append(own[0] if len(own) == 1 else own[0] * sizes[1] + own[1])  # type: ignore[operator]
    tensor = Tensor(claim(f"{read.tensor.name}.cut", work.taken), tuple(shape), read.dtype)
    work.before.append(Compute(tensor, tuple(axes), read.tensor[tuple(whole)]))
    return tensor[tuple(indices)]


def widened(canonical: Canonical, dtype: DType) -> Canonical:
    """The core accumulating in `dtype`, a wider float, and a node after it that rounds."""
    core = canonical.core
    names = {node.name for node in canonical.nodes} | {tensor.name for tensor in core.inputs()}
    wide = Tensor(unique(f"{core.name}.wide", names), core.output.shape, dtype)
    product = fold(lambda left, right: left * right, [factor.cast(dtype) for factor in _factors(core.body)])
    rounded = Compute(core.output, core.axes, wide[core.axes].cast(core.output.dtype), source=core.source)
    return replace(canonical, core=replace(core, output=wide, body=product), after=(rounded, *canonical.after))


# Hoisting


@dataclass(frozen=True)
class _Product:
    """A body ``± prod(factors) * prod(invariant) / prod(divisors)``; only `factors` use reduction loops."""

    factors: tuple[Expr, ...]
    invariant: tuple[Expr, ...]
    divisors: tuple[Expr, ...]
    negative: bool


def _hoisted(compute: Compute) -> _Product:
    body = compute.body
    narrows = isinstance(body, Cast) and all(map(dtypes.is_float, (body.dtype, body.arg.dtype)))
    if narrows and isinstance(body, Cast) and dtypes.bits(body.dtype) < dtypes.bits(body.arg.dtype):
        body = body.arg
    summed = set(compute.reduce)
    found = _flatten(body, summed)
    inner = tuple(factor for factor in found.factors if _uses(factor, summed))
    if not inner:
        return _Product((compute.body,), (), (), False)
    return replace(found, factors=inner, invariant=tuple(f for f in found.factors if not _uses(f, summed)))


def _flatten(expr: Expr, summed: set[Axis]) -> _Product:
    """Take apart products, quotients by what does not vary, signs, and casts that may be applied factor by factor."""
    if isinstance(expr, Apply) and expr.function == "mul":
        left, right = (_flatten(arg, summed) for arg in expr.args)
        return _Product(
            (*left.factors, *right.factors), (), (*left.divisors, *right.divisors), left.negative != right.negative
        )
    if isinstance(expr, Apply) and expr.function == "neg":
        inner = _flatten(expr.args[0], summed)
        return replace(inner, negative=not inner.negative)
    divides = isinstance(expr, Apply) and expr.function == "div" and dtypes.is_float(expr.dtype)
    if divides and isinstance(expr, Apply) and not _uses(expr.args[1], summed):
        inner = _flatten(expr.args[0], summed)
        return replace(inner, divisors=(*inner.divisors, expr.args[1]))
    if isinstance(expr, Cast) and isinstance(expr.arg, Apply) and _distributes(expr.arg.dtype, expr.dtype):
        inner = _flatten(expr.arg, summed)
        if len(inner.factors) > 1 or inner.divisors or inner.negative:
            factors, divisors = (
                tuple(part.cast(expr.dtype) for part in parts) for parts in (inner.factors, inner.divisors)
            )
            return replace(inner, factors=factors, divisors=divisors)
    return _Product((expr,), (), (), False)


def _distributes(source: DType, target: DType) -> bool:
    """Whether a cast of a product may become a product of casts: more exact for floats, equal for wrapping integers."""
    if dtypes.is_float(source) and dtypes.is_float(target):
        return dtypes.bits(target) > dtypes.bits(source)
    if dtypes.is_integer(source) and dtypes.is_integer(target):
        return dtypes.bits(target) <= dtypes.bits(source)
    return False


def _uses(expr: Expr, axes: Collection[Axis]) -> bool:
    return any(isinstance(node, Axis) and node in axes for node in walk(expr))


def _factors(body: Expr) -> tuple[Expr, ...]:
    if isinstance(body, Apply) and body.function == "mul":
        return (*_factors(body.args[0]), *_factors(body.args[1]))
    return (body,)


def _epilogue(compute: Compute, inner: Tensor, product: _Product) -> Compute:
    """What was hoisted, applied to the sums."""
    value: Expr = inner[compute.axes]
    for factor in product.invariant:
        value = value * factor.cast(inner.dtype)
    for divisor in product.divisors:
        value = value / divisor.cast(inner.dtype)
    if product.negative:
        value = -value
    return Compute(compute.output, compute.axes, value.cast(compute.output.dtype), source=compute.source)


# Factors of their own


class _Work:
    """Collects the nodes before the core, with unique names."""

    def __init__(self, compute: Compute, taken: set[str]) -> None:
        self.compute = compute
        self.taken = taken
        self.before: list[Compute] = []
        self.position = {axis: number for number, axis in enumerate(compute.loops)}

    def leaf(self, factor: Expr, flip: bool) -> Expr:
        """`factor`, or a read of a new tensor that holds its values."""
        casts: list[DType] = []
        inner = factor
        while isinstance(inner, Cast) and keeps_value(inner.arg.dtype, inner.dtype):
            casts.append(inner.dtype)
            inner = inner.arg
        if not is_leaf(inner):
            inner = self._isolated(inner)
        if flip and isinstance(inner, Read):
            inner = self._flipped(inner)
        for dtype in reversed(casts):
            inner = inner.cast(dtype)
        return inner

    def _isolated(self, factor: Expr) -> Expr:
        """A node for a factor; its dimensions are the affine forms of loops that index what the factor reads.

        Where these do not tell all of the factor, or vary together in a way that a tile of them does not show (a read
        would leave its tensor, or the tensor would be larger than the loops), the loops are the dimensions.
        """
        loops = [axis for axis in self.compute.loops if _uses(factor, {axis})]
        reads = [node for node in walk(factor) if isinstance(node, Read)]
        forms = list(dict.fromkeys(form for read in reads for form in self._forms(read)))
        told = all(form in forms or all(((axis, 1),) in forms for axis, _ in form) for form in self._forms(factor))
        if told and prod(map(_size, forms)) <= prod(loop.size for loop in loops):
            compute, read = self._node(factor, forms)
            try:
                check(compute)
            except InvalidExpression:
                pass
            else:
                return self._add(compute, read)
        return self._add(*self._node(factor, [((axis, 1),) for axis in loops]))

    def _add(self, compute: Compute, read: Expr) -> Expr:
        self.taken.add(compute.name)
        self.before.append(compute)
        return read

    def _node(self, factor: Expr, forms: Sequence[_Form]) -> tuple[Compute, Expr]:
        names: set[str] = set()
        axes: dict[_Form, Axis] = {}
        for form in forms:
            axes[form] = Axis(claim(form[0][0].name, names), _size(form))
        body = simplify(_in_terms_of(factor, axes, self.position))
        name = unique(f"{self.compute.name}.in", self.taken)
        tensor = Tensor(name, tuple(axis.extent for axis in axes.values()), factor.dtype)
        indices = tuple((_affine(form) + Affine(-_low(form))).expression() for form in forms)
        return Compute(tensor, tuple(axes.values()), body, source=self.compute.source), tensor[indices]

    def _forms(self, expr: Expr) -> Iterable[_Form]:
        """The normal forms of the maximal affine index expressions in `expr`."""
        form = affine(expr) if expr.dtype == INDEX else None
        if form is not None:
            if form.terms:
                yield _normal(form, self.position)[0]
            return
        difference = _difference(expr)
        for child in (difference,) if difference is not None else expr.children():
            yield from self._forms(child)

    def _flipped(self, read: Read) -> Expr:
        """A read of a node that holds the tensor reversed along dimensions that all loops walk downwards."""
        forms = [affine(index) for index in read.indices]
        assert all(form is not None for form in forms), "leaves have affine indices"
        down = [form is not None and bool(form.terms) and max(form.terms.values()) < 0 for form in forms]
        if not any(down):
            return read
        axes = tuple(Axis(f"i{number}", extent) for number, extent in enumerate(read.tensor.shape))
        last = [axis.extent - 1 for axis in axes]  # type: ignore[operator]
        indices = tuple(end - axis if turn else axis for axis, end, turn in zip(axes, last, down, strict=True))
        name = claim(f"{self.compute.name}.flip", self.taken)
        tensor = Tensor(name, read.tensor.shape, read.dtype)
        self.before.append(Compute(tensor, axes, simplify(read.tensor[indices]), source=self.compute.source))
        turned = tuple(
            simplify(end - index) if turn else index for index, end, turn in zip(read.indices, last, down, strict=True)
        )
        return tensor[turned]


#: An affine form without constant and common factor, first coefficient positive, loops in their order.
_Form = tuple[tuple[Axis, int], ...]


def _normal(form: Affine, position: Mapping[Axis, int]) -> tuple[_Form, int]:
    """The normal form of an affine expression, and the factor that gives the expression back (less its constant)."""
    terms = sorted(form.terms.items(), key=lambda term: position[term[0]])
    factor = gcd(*(coefficient for _, coefficient in terms)) * (1 if terms[0][1] > 0 else -1)
    return tuple((axis, coefficient // factor) for axis, coefficient in terms), factor


def _affine(form: _Form) -> Affine:
    return Affine(0, dict(form))


def _low(form: _Form) -> int:
    return sum(min(0, coefficient * (axis.size - 1)) for axis, coefficient in form)


def _size(form: _Form) -> int:
    return 1 + sum(abs(coefficient) * (axis.size - 1) for axis, coefficient in form)


def _difference(expr: Expr) -> Expr | None:
    """``left - right`` of a comparison of affine indices."""
    if not isinstance(expr, Apply) or expr.function not in ("lt", "le", "gt", "ge", "eq", "ne"):
        return None
    left, right = expr.args
    if left.dtype != INDEX or affine(left) is None or affine(right) is None:
        return None
    return left - right


def _in_terms_of(expr: Expr, axes: Mapping[_Form, Axis], position: Mapping[Axis, int]) -> Expr:
    """`expr` with every affine index expression written over the new axes; over plain loops where a form has none."""
    form = affine(expr) if expr.dtype == INDEX else None
    if form is not None:
        if not form.terms:
            return Const(form.constant, INDEX)
        normal, factor = _normal(form, position)
        if normal in axes:
            return Affine(form.constant + factor * _low(normal), {axes[normal]: factor}).expression()
        terms = {axes[((axis, 1),)]: coefficient for axis, coefficient in form.terms.items()}
        return Affine(form.constant, terms).expression()
    difference = _difference(expr)
    if difference is not None and isinstance(expr, Apply):
        moved = _in_terms_of(difference, axes, position)
        return Apply(expr.function, (moved, Const(0, INDEX)), "bool")
    children = tuple(_in_terms_of(child, axes, position) for child in expr.children())
    if isinstance(expr, Read):
        return Read(expr.tensor, children)
    if isinstance(expr, Cast):
        return Cast(children[0], expr.dtype)
    return Apply(expr.function, children, expr.dtype) if isinstance(expr, Apply) else expr
