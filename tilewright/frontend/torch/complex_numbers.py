"""Complex tensors of a program as two real ones, and the operators that take them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilewright.dataclass import dataclass
from tilewright.errors import Unsupported
from tilewright.expr import dtypes
from tilewright.expr.core import Tensor
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops.elementwise import fill
from tilewright.frontend.torch.call import Call
from tilewright.frontend.torch.element_types import array_of
from tilewright.frontend.torch.registry import COMPLEX, Importer, load_all


@dataclass(frozen=True)
class Complex:
    """Real and imaginary parts, of one shape and dtype."""

    re: Tensor
    im: Tensor


_ARITHMETIC = "neg sum mean cumsum flip roll tril triu diagonal constant_pad_nd where index_put"
_VIEWS = (
    "view reshape _unsafe_view _reshape_copy view_copy unsqueeze squeeze flatten unflatten permute transpose t expand"
    " repeat slice select unbind cat stack split split_with_sizes chunk unfold alias detach contiguous clone"
    " lift_fresh_copy index index_select gather select_scatter slice_scatter copy"
)

#: Operators that do the same with both parts. Real tensors of floats among their arguments have an imaginary part of 0.
_BY_PARTS = frozenset((_ARITHMETIC + " " + _VIEWS).split())


def constant(b: GraphBuilder, tensor: Any, name: str) -> Tensor | Complex:
    """A tensor with its elements, of real or complex numbers, in the graph."""
    if not tensor.is_complex():
        return b.constant(array_of(tensor), name)
    dense = tensor.resolve_conj()
    return Complex(b.constant(array_of(dense.real), f"{name}.re"), b.constant(array_of(dense.imag), f"{name}.im"))


def is_complex(node: Any, args: Any) -> bool:
    """Whether a call takes complex numbers or gives them."""
    promised = node.meta.get("val")
    results = promised if isinstance(promised, (tuple, list)) else [promised]
    gives = any(hasattr(value, "is_complex") and value.is_complex() for value in results)
    return gives or any(isinstance(value, Complex) for value in _leaves(args))


def importer_of(name: str) -> Importer | None:
    """The importer of an operator for complex numbers."""
    real = load_all().get(name)
    if name in COMPLEX:
        return COMPLEX[name]
    if real is None or name.split(".")[1] not in _BY_PARTS:
        return None
    by_parts = real

    def both(call: Call, *args: Any, **kwargs: Any) -> Any:
        parts = [
            by_parts(call.part(label), *_part(call, args, label), **_part(call, kwargs, label))
            for label in ("re", "im")
        ]
        if isinstance(parts[0], (tuple, list)):
            return [Complex(*pair) for pair in zip(*parts, strict=True)]
        return Complex(*parts)

    return both


def refused(name: str) -> Unsupported:
    """The error for an operator that takes no complex numbers."""
    return Unsupported(f"{name} of complex numbers", help="torch.view_as_real, and real arithmetic")


def _part(call: Call, value: Any, label: str) -> Any:
    """`value` with complex tensors replaced by one of their parts."""
    if isinstance(value, Complex):
        return getattr(value, label)
    if isinstance(value, Tensor) and label == "im" and dtypes.is_float(value.dtype):
        return fill(call.b, tuple(value.shape), 0, value.dtype, name=f"{call.name}.zero")  # type: ignore[arg-type]
    if isinstance(value, dict):
        return {key: _part(call, item, label) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_part(call, item, label) for item in value)
    return value


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value
