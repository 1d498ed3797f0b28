"""A product of two flat operands: its statements, and the roles that its mapping gives their loops."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field, replace
from functools import cached_property
from math import prod

from tilewright.dataclass import dataclass
from tilewright.expr.core import Apply, Axis, Cast, Compute, Const, Expr, Read, Tensor, select, walk
from tilewright.expr.dtypes import INDEX, DType
from tilewright.expr.rewrite import substitute
from tilewright.expr.text import print_statement
from tilewright.intrinsics.mapping import ProductMapping
from tilewright.tiles.kernel import Kernel, Statement, with_names
from tilewright.tiles.tree import InvalidTree, Loop, MicroKernelRef, leaves
from tilewright.tiles.tree import Operand as Argument


@dataclass(frozen=True)
class Operand:
    """One factor of the product: a flat tensor read at one linear, affine index, 0 where `guard` does not hold.

    A tensor without dimensions is the value of another statement of the kernel at the same point; of one that is read
    through windows (`tiles.windows`), which has no address before it has a buffer, the index is 0. A guard is a
    conjunction of bounds of affine forms of loops.
    """

    tensor: Tensor
    index: Expr
    guard: Expr | None = None


@dataclass(frozen=True)
class Product:
    """The statement of the product, perhaps one of the epilogue, and which of their loops are rows, columns and depth.

    `shapes` lists what a register tile may have at most, each as rows and registers per row. `fused` has the loops that
    a row or depth loop stands for, by its name. Loops that the mapping does not name are not tiled (batch, groups).
    """

    statements: tuple[Statement, ...]
    mapping: ProductMapping
    shapes: tuple[tuple[int, int], ...] = ()
    fused: Mapping[str, tuple[Axis, ...]] = field(default_factory=dict)

    @cached_property
    def _axes(self) -> dict[str, Axis]:
        product = self.statements[0]
        return {axis.name: axis for axis in (*product.axes, *product.reduce)}

    @cached_property
    def outer(self) -> tuple[Axis, ...]:
        """Loops of the result that are neither rows nor columns."""
        tiled = (*self.mapping.rows, self.mapping.columns)
        return tuple(axis for axis in self.statements[0].axes if axis.name not in tiled)

    @cached_property
    def rows(self) -> tuple[Axis, ...]:
        """The loops of the rows of a tile, outermost first."""
        return tuple(self._axes[name] for name in self.mapping.rows)

    @cached_property
    def columns(self) -> Axis:
        """The loop of the columns of a tile: on a CPU, the one that vectors run along."""
        return self._axes[self.mapping.columns]

    @cached_property
    def depth(self) -> tuple[Axis, ...]:
        """The loops that are summed, outermost first."""
        return tuple(self._axes[name] for name in self.mapping.depth)

    @cached_property
    def spatial(self) -> tuple[Axis, ...]:
        """The loops of the result: those that are not tiled, rows, columns."""
        return (*self.outer, *self.rows, self.columns)

    @cached_property
    def a(self) -> Operand:
        """The factor that rows index."""
        return self._factor(0)

    @cached_property
    def b(self) -> Operand:
        """The factor that columns index."""
        return self._factor(1)

    def _factor(self, number: int) -> Operand:
        body = self.statements[0].body
        assert isinstance(body, Apply), "a product multiplies two factors"
        factor = body.args[number]
        read = factor.arg if isinstance(factor, Cast) else factor
        guard = None
        if isinstance(read, Apply) and read.function == "select":
            guard, read, _ = read.args
        assert isinstance(read, Read), "factors of a product are reads"
        return Operand(read.tensor, read.indices[0] if len(read.indices) == 1 else Const(0, INDEX), guard)

    @cached_property
    def total(self) -> Tensor:
        """The sum of one point, as the epilogue reads it."""
        product = self.statements[0]
        return Tensor(product.name, (), product.tensor.dtype)

    @property
    def has_epilogue(self) -> bool:
        """Whether more is computed from a sum before it is stored."""
        return len(self.statements) > 1

    @cached_property
    def epilogue(self) -> Expr:
        """What is stored, from the sum."""
        return self.statements[1].body if self.has_epilogue else Read(self.total, ())

    @property
    def output(self) -> Tensor:
        """The flat tensor that is written, at `index`."""
        return self.statements[-1].tensor

    @cached_property
    def index(self) -> Expr:
        """The linear address at which the result is stored."""
        address = self.statements[-1].address
        assert address is not None, "the last statement of a kernel is stored"
        return address

    @property
    def lanes(self) -> int:
        """Columns in a register of the intrinsic."""
        return self.mapping.lanes

    @property
    def group(self) -> int:
        """Neighbours of the innermost depth loop that one instruction takes."""
        return self.mapping.group

    @property
    def whole_panels(self) -> bool:
        """Whether the last tile of columns may be read beyond the last column."""
        return self.mapping.columns in self.mapping.padded

    @property
    def whole_groups(self) -> bool:
        """Whether the last group along the depth may be read beyond the last point."""
        return self.mapping.depth[-1] in self.mapping.padded

    def stands_for(self, loop: Axis) -> tuple[Axis, ...]:
        """The loops that were fused into a loop, or the loop itself."""
        return self.fused.get(loop.name, (loop,))

    def without_support_along(self, loops: Collection[Axis]) -> Product:
        """The same product without those indices of its support that one of these loops moves."""
        statements = []
        for each in self.statements:
            support = tuple(pair for pair in each.support if not any(node in loops for node in walk(pair[0])))
            statements.append(replace(each, support=support))
        return replace(self, statements=tuple(statements))

    def renamed(self, loops: Mapping[Axis, Axis]) -> Product:
        """The same product with other loops in the place of some of its own."""
        names = {old.name: new.name for old, new in loops.items()}
        product = self.with_substituted_loops(dict(loops))
        statements = tuple(
            replace(
                each,
                axes=tuple(loops.get(axis, axis) for axis in each.axes),
                reduce=tuple(loops.get(axis, axis) for axis in each.reduce),
            )
            for each in product.statements
        )
        how = self.mapping
        mapping = replace(
            how,
            rows=tuple(names.get(name, name) for name in how.rows),
            columns=names.get(how.columns, how.columns),
            depth=tuple(names.get(name, name) for name in how.depth),
            padded=tuple(names.get(name, name) for name in how.padded),
        )
        return replace(product, statements=statements, mapping=mapping)

    def with_substituted_loops(self, loops: Mapping[Axis, Expr]) -> Product:
        """The same product with loops replaced by expressions of other loops in all bodies and addresses."""
        statements = []
        for each in self.statements:
            address = None if each.address is None else substitute(each.address, loops)
            support = tuple((substitute(index, loops), extent) for index, extent in each.support)
            statements.append(replace(each, body=substitute(each.body, loops), address=address, support=support))
        return replace(self, statements=tuple(statements))


def product_of(kernel: Kernel) -> Product | None:
    """The product that a scheduled kernel runs; None where it runs none. Raises InvalidTree where it runs several."""
    found = products_of(kernel)
    if len(found) > 1:
        wanted = f"one micro-kernel with its mapping, at op {kernel.statements[0].name}"
        raise InvalidTree(f"{len(found)} leaves have micro-kernels", where="tile tree", help=wanted)
    return found[0] if found else None


def products_of(kernel: Kernel) -> tuple[Product, ...]:
    """The products that a scheduled kernel runs, in the order of its statements.

    Behind the statement of a product there may be one of its epilogue. Before the first product, and between two, there
    may be those of rows (`rows_of`). Factors may be values of the kernel, which have no address.
    """
    found = {leaf.op: leaf.kernel for _, leaf in leaves(kernel.tree) if leaf.kernel is not None}
    segments = _segments(kernel)
    products: list[Product] = []
    for product, epilogue, rows in segments:
        micro_kernel = found[product.name]
        if micro_kernel.mapping is None:
            fact = f"the micro-kernel of {product.name} has no mapping"
            wanted = f"one micro-kernel with its mapping, at op {kernel.statements[0].name}"
            raise InvalidTree(fact, where="tile tree", help=wanted)
        _require_loops(product, micro_kernel.mapping)
        own = (product, *epilogue, *rows) if len(segments) == 1 else (product, *epilogue)
        products.append(Product(own, micro_kernel.mapping))
    return tuple(products)


def _require_loops(product: Statement, mapping: ProductMapping) -> None:
    """Raises InvalidTree for a mapping of loops that a product has not."""
    known = [axis.name for axis in (*product.axes, *product.reduce)]
    unknown = [name for name in (*mapping.rows, mapping.columns, *mapping.depth) if name not in known]
    if unknown:
        fact = f"the mapping of {product.name} has {', '.join(unknown)}, no loop of it"
        raise InvalidTree(fact, where="tile tree", help=f"one of {', '.join(known)}")


def rows_of(kernel: Kernel) -> dict[int, tuple[Statement, ...]]:
    """The statements before a product that are the epilogue of none, by the number of the product before them.

    Those before the first product have the number -1.
    """
    *before, last = _segments(kernel)
    first = kernel.statements[: kernel.statements.index((before[0] if before else last)[0])]
    found = {number: rows for number, (_, _, rows) in enumerate(before) if rows}
    return {-1: first, **found} if first else found


Segment = tuple[Statement, tuple[Statement, ...], tuple[Statement, ...]]


def _segments(kernel: Kernel) -> list[Segment]:
    """The statements of each product: its own, its epilogue, and those of rows behind it."""
    names = {leaf.op for _, leaf in leaves(kernel.tree) if leaf.kernel is not None}
    statements = kernel.statements
    starts = [place for place, statement in enumerate(statements) if statement.name in names]
    found: list[Segment] = []
    for start, end in zip(starts, [*starts, len(statements)][1:], strict=False):
        own = start + 1
        rows = own + (1 if own < end and statements[own].accum is None else 0)
        found.append((statements[start], statements[own:rows], statements[rows:end]))
    return found


def flat_product(
    outer: tuple[Axis, ...],
    rows: tuple[Axis, ...],
    columns: Axis,
    depth: tuple[Axis, ...],
    a: Operand,
    b: Operand,
    total: Tensor,
    epilogue: Expr,
    output: Tensor,
    index: Expr,
    *,
    intrinsic: str = "",
    lanes: int = 1,
    group: int = 1,
    padded: tuple[str, ...] = (),
    shapes: tuple[tuple[int, int], ...] = (),
    support: tuple[tuple[Expr, int], ...] = (),
) -> Product:
    """The product of `a` and `b`, summed over `depth`, with its epilogue.

    `epilogue` reads the sum as `total`, a tensor of rank 0; where it does nothing else, there is one statement.
    `output` is written at the linear address `index`. What follows is as in `ProductMapping`; `support` is as in
    `Statement`.
    """
    axes, dtype = (*outer, *rows, columns), total.dtype
    body = Apply("mul", (_factor(a, dtype), _factor(b, dtype)), dtype)
    if isinstance(epilogue, Read) and epilogue.tensor.name == total.name:
        statements: tuple[Statement, ...] = (Statement(output, axes, body, depth, "sum", index, support=support),)
    else:
        if total.name == output.name:
            renamed = Tensor(f"{total.name}.sum", (), dtype)
            epilogue, total = with_names(epilogue, {total.name: renamed.name}), renamed
        product = Statement(total, axes, body, depth, "sum", support=support)
        statements = product, Statement(output, axes, epilogue, address=index)
    names = tuple(axis.name for axis in rows), columns.name, tuple(axis.name for axis in depth)
    return Product(statements, ProductMapping(intrinsic, *names, lanes, group, padded), shapes)


def _factor(operand: Operand, dtype: DType) -> Expr:
    factor: Expr = Read(operand.tensor, (operand.index,) if operand.tensor.shape else ())
    if operand.guard is not None:
        factor = select(operand.guard, factor, Const(0, factor.dtype))
    return factor if factor.dtype == dtype else Cast(factor, dtype)


def micro_kernel(
    work: Product, tile: Mapping[str, int], steps: Mapping[str, int], mapping: ProductMapping | None = None
) -> MicroKernelRef:
    """One product of a tile: ``rows x columns x depth``, over so many steps of the depth loops.

    `tile` has the points of rows and columns where there are several; `mapping` is that of the product if not given.
    """
    mapping = mapping or work.mapping
    quantum = [(axis.name, tile.get(axis.name, 1)) for axis in (*work.rows, work.columns)]
    rows, columns, depth = prod(extent for _, extent in quantum[:-1]), quantum[-1][1], prod(steps.values())
    dtype = "f32" if work.total.dtype in ("f16", "bf16") else work.total.dtype  # narrow sums are kept wide
    m, n, k = Axis("m", rows), Axis("n", columns), Axis("k", depth)
    a, b = Tensor("A", (rows, depth), work.a.tensor.dtype), Tensor("B", (depth, columns), work.b.tensor.dtype)
    c = Tensor("C", (rows, columns), dtype)
    semantics = Compute(c, (m, n), a[m, k].cast(dtype) * b[k, n].cast(dtype), (k,), "sum")
    return MicroKernelRef(
        f"{mapping.intrinsic}_{rows}x{columns}x{depth}",
        print_statement(semantics),
        (
            Argument("A", (rows, depth), a.dtype, "read"),
            Argument("B", (depth, columns), b.dtype, "read"),
            Argument("C", (rows, columns), dtype, "accumulate"),
        ),
        tuple(Loop(name, extent) for name, extent in (*quantum, *steps.items())),
        mapping,
    )
