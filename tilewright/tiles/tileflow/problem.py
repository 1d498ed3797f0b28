"""A problem of TileFlow's artifact as tensor expressions.

The format says which elements operators touch, not what they compute. So an operator is the sum of the product of its
inputs, over the dimensions that its result lacks; one of type ``exp`` is the exponential of its input.

A result whose index is a sum, as the rows ``H + U`` that a later convolution reads, is written by one loop with the
name of the first term, and the others are no loops of the operator: how many rows there are, halo included, follows
from the consumer. Inputs are read by that loop, also where the file leaves the other terms out, as the artifact's do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import gt
from typing import Final, NoReturn, TypeAlias

from tilewright.dataclass import dataclass
from tilewright.errors import CompileError, InvalidFile
from tilewright.expr.core import Axis, Compute, Const, Expr, Read, Tensor, apply, static_shape
from tilewright.expr.dtypes import INDEX, DType, is_float
from tilewright.expr.graph import Graph
from tilewright.fields import Place
from tilewright.tiles.tileflow import schema

Where: TypeAlias = Callable[[Place], str]  #: the file and line of a place
Form: TypeAlias = dict[str, int]  #: the coefficients of an index by dimension

TYPES: Final = ("exp",)
_PROBLEM: Final = ("problem",)


@dataclass(frozen=True)
class Operators:
    """A graph, the tensor that each operator writes, and its loop for each of its dimensions, or None."""

    graph: Graph
    output: Mapping[str, str]
    axes: Mapping[str, Mapping[str, str | None]]


def graph_of(given: schema.Problem, macros: Mapping[str, int], dtype: DType, where: Where) -> Operators:
    """The expressions of a problem on elements of one type. Raises CompileError with the place of what is wrong."""
    sizes = _sizes(given, macros, where)
    operators: list[_Operator] = []
    for number, given_op in enumerate(given.ops):
        op = _Operator.of(given_op, sizes, (*_PROBLEM, "ops", number), where)
        for field, value, others in (
            ("name", op.name, [other.name for other in operators]),
            ("out", op.output, [other.output for other in operators]),
        ):
            if value in others:
                op.refuse((field,), f"is {value}, as of another operator", "another name")
        operators.append(op)
    tensors = _tensors(operators, dtype)
    computes = []
    for number, op in enumerate(operators):
        later = [other.output for other in operators[number:]]
        for name in op.inputs:
            if name in later:
                op.refuse(("ins",), f"have {name}, which is not written before", f"an operator with out: {name} first")
        computes.append(op.compute(tensors))
    written = [op.output for op in operators]
    inputs = [tensor for name, tensor in tensors.items() if name not in written]
    _require_names(given.io.ins, [tensor.name for tensor in inputs], "ins", where)
    for name in given.io.outs:
        if name not in written:
            raise InvalidFile(f"io.outs has {name}, which no operator writes",
                              where=where((*_PROBLEM, "io", "outs")), help=f"some of {', '.join(written)}")  # fmt: skip
    try:
        graph = Graph(tuple(inputs), tuple(tensors[name] for name in given.io.outs), tuple(computes))
    except CompileError as error:
        error.where = error.where or where(_PROBLEM)
        raise
    axes = {op.name: {dim: None if dim in op.derived else dim for dim in op.dimensions} for op in operators}
    return Operators(graph, {op.name: op.output for op in operators}, axes)


def _sizes(given: schema.Problem, macros: Mapping[str, int], where: Where) -> dict[str, int]:
    """The extents of all dimensions, and other numbers of the instance."""
    found = {}
    for name, size in given.instance.items():
        if isinstance(size, str) and size not in macros:
            raise InvalidFile(
                f"{name} is {size!r}, no number and no macro", where=where((*_PROBLEM, "instance", name)),
                help=f"a number, or one of {', '.join(macros) or 'the names of a part `macro:`'}",
            )  # fmt: skip
        found[name] = macros[size] if isinstance(size, str) else size
    for name in given.dimensions:
        if name not in found:
            raise InvalidFile(f"dimension {name} has no extent", where=where((*_PROBLEM, "instance")),
                              help=f"a line {name}: NUMBER")  # fmt: skip
    return found


@dataclass(frozen=True)
class _Operator:
    """An operator with the indices of its tensors; `derived` are dimensions that its consumers have instead of it."""

    given: schema.Operator
    sizes: Mapping[str, int]
    place: Place
    where: Where
    forms: Mapping[str, tuple[Form, ...]]
    axes: Mapping[str, int]  # of the result, with their extents
    derived: frozenset[str]

    @classmethod
    def of(cls, given: schema.Operator, sizes: Mapping[str, int], place: Place, where: Where) -> _Operator:
        found = cls(given, sizes, place, where, {}, {}, frozenset())
        forms = {space.name: found._form(number) for number, space in enumerate(given.data_spaces)}
        if len(forms) < len(given.data_spaces):
            found.refuse(("data_spaces",), "have one name twice", "each tensor once")
        for field, names in (("ins", given.ins), ("out", (given.out,))):
            for name in names:
                if name not in forms:
                    found.refuse((field,), f"names {name}, which is no data-space", f"some of {', '.join(forms)}")
        unused = [name for name in forms if name not in (*given.ins, given.out)]
        if unused or not given.ins or given.out in given.ins:
            others = ", ".join(name for name in forms if name != given.out)
            found.refuse(("ins",), f"are {', '.join(given.ins) or 'none'}", f"all data-spaces but the result: {others}")
        axes, derived = found._written(forms.pop(given.out))
        read = {name: tuple(found._over_axes(form, axes) for form in each) for name, each in forms.items()}
        return cls(given, sizes, place, where, read, {axis: size for axis, (size, _) in axes.items()}, derived)

    @property
    def name(self) -> str:
        return self.given.name

    @property
    def output(self) -> str:
        return self.given.out

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.given.ins

    @property
    def dimensions(self) -> tuple[str, ...]:
        return self.given.dimensions

    def compute(self, tensors: Mapping[str, Tensor]) -> Compute:
        """The expression; raises InvalidFile where it reads a tensor in another form than that was written."""
        used = {dim for forms in self.forms.values() for form in forms for dim in form}
        sums = [dim for dim in self.dimensions if dim not in self.axes and dim not in self.derived]
        for dim in sums:
            if dim not in used:
                self.refuse(("dimensions",), f"have {dim}, which no data-space has", f"without {dim}")
        loops = {dim: Axis(dim, self.axes.get(dim, self.sizes[dim])) for dim in (*self.axes, *sums)}
        reads = [self._read(tensors[name], self.forms[name], loops) for name in self.inputs]
        output = tensors[self.output]
        if self.given.type is None:
            body = reads[0]
            for read in reads[1:]:
                body = body * read
        elif self.given.type not in TYPES or len(reads) > 1:
            self.refuse(("type",), f"is {self.given.type!r} of {len(reads)} inputs", "exp of one input, or no type")
        else:
            dtype = output.dtype
            body = apply("exp", reads[0] if is_float(dtype) else reads[0].cast("f32")).cast(dtype)
        reduce = tuple(loops[dim] for dim in sums)
        return Compute(output, tuple(loops[dim] for dim in self.axes), body, reduce, "sum" if reduce else None)

    def refuse(self, place: Place, message: str, help: str) -> NoReturn:
        name = ".".join(map(str, place))
        raise InvalidFile(f"{name} of {self.name} {message}", where=self.where((*self.place, *place)), help=help)

    def _form(self, number: int) -> tuple[Form, ...]:
        """The index of every dimension of a tensor."""
        space = self.given.data_spaces[number]
        place = ("data_spaces", number, "projection")
        known = {each.name: self.sizes.get(each.name, each.default) for each in self.given.coefficients}
        forms = []
        for terms in space.projection:
            form: Form = {}
            for dim, coefficient in terms:
                if dim not in self.dimensions or dim not in self.sizes or dim in form:
                    legal = [name for name in self.dimensions if name in self.sizes and name not in form]
                    self.refuse(place, f"has {dim}", f"dimensions of the operator, each once: {', '.join(legal)}")
                if coefficient is not None and coefficient not in known:
                    names = ", ".join(known) or "those of a list `coefficients`"
                    self.refuse(place, f"has the coefficient {coefficient}", f"one of {names}")
                form[dim] = 1 if coefficient is None else known[coefficient]
            forms.append(form)
        return tuple(forms)

    def _written(self, forms: tuple[Form, ...]) -> tuple[dict[str, tuple[int, Form]], frozenset[str]]:
        """The loops that write the result, with their extents and what they stand for; and the dimensions left out."""
        axes: dict[str, tuple[int, Form]] = {}
        for form in forms:
            first = next(iter(form))
            if first in axes or form[first] != 1:
                self.refuse(("out",), f"has {first} twice or with a coefficient", "each dimension once, and alone")
            axes[first] = (_extent(form, self.sizes), form)
        derived = frozenset(dim for _, form in axes.values() for dim in list(form)[1:])
        for dim in sorted(derived & axes.keys()):
            self.refuse(("out",), f"has {dim} twice", "each dimension once")
        return axes, derived

    def _over_axes(self, form: Form, axes: Mapping[str, tuple[int, Form]]) -> Form:
        """An index of an input, by the loops of the operator."""
        found = dict(form)
        for first, (_, written) in axes.items():
            for dim in list(written)[1:]:
                coefficient = found.pop(dim, None)
                if coefficient not in (None, found.get(first, 0) * written[dim]):
                    self.refuse(("data_spaces",), f"read {dim} otherwise than the result is written",
                                f"{' + '.join(written)} together, or {first} alone")  # fmt: skip
        return found

    def _read(self, tensor: Tensor, forms: tuple[Form, ...], loops: Mapping[str, Axis]) -> Expr:
        sizes = {dim: axis.size for dim, axis in loops.items()}
        extents = tuple(_extent(form, sizes) for form in forms)
        if len(extents) != tensor.rank or any(map(gt, extents, static_shape(tensor.shape))):
            self.refuse(("data_spaces",), f"read {tensor.name} with extents {extents}", f"those it has: {tensor.shape}")
        return Read(tensor, tuple(_index(form, loops) for form in forms))


def _tensors(operators: list[_Operator], dtype: DType) -> dict[str, Tensor]:
    """All tensors: results have the extents of their loops, inputs the largest that an operator reads."""
    written = {op.output: tuple(op.axes.values()) for op in operators}
    shapes: dict[str, tuple[int, ...]] = {}
    for op in operators:
        for name, forms in op.forms.items():
            sizes = {**op.sizes, **op.axes}
            shape = tuple(_extent(form, sizes) for form in forms)
            known = shapes.get(name, shape)
            if len(known) != len(shape):
                op.refuse(("data_spaces",), f"read {name} in {len(shape)} dimensions", f"{len(known)} as others do")
            shapes[name] = tuple(map(max, known, shape))
    return {name: Tensor(name, shape, dtype) for name, shape in (shapes | written).items()}


def _extent(form: Form, sizes: Mapping[str, int]) -> int:
    return 1 + sum(coefficient * (sizes[dim] - 1) for dim, coefficient in form.items())


def _index(form: Form, loops: Mapping[str, Axis]) -> Expr:
    terms: list[Expr] = [
        loops[dim] if coefficient == 1 else loops[dim] * Const(coefficient, INDEX) for dim, coefficient in form.items()
    ]
    index = terms[0]
    for term in terms[1:]:
        index = index + term
    return index


def _require_names(given: tuple[str, ...], wanted: list[str], field: str, where: Where) -> None:
    if sorted(given) != sorted(wanted):
        raise InvalidFile(f"io.{field} has {', '.join(given)}", where=where((*_PROBLEM, "io", field)),
                          help=f"what operators read and none writes: {', '.join(wanted)}")  # fmt: skip
