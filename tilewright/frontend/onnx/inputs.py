"""Static shapes of the inputs of a model, from the model and from the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

from tilewright.errors import InvalidArgument, InvalidModel


def input_shapes(
    inputs: Sequence[Any], given: Mapping[str, int | Sequence[int]], where: str
) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor input (other kinds are left out); raises InvalidArgument where an extent is unknown.

    `given` has shapes by the names of inputs, and extents by the names of symbols. A symbolic extent that one given
    shape determines is known in all inputs.
    """
    tensors = [value for value in inputs if value.type.WhichOneof("value") == "tensor_type"]
    names = {value.name for value in inputs}
    symbols = {name: _given_extent(name, given[name], where) for name in _symbols(tensors) if name in given}
    symbols = {name: extent for name, extent in symbols.items() if name not in names}
    unknown = sorted(set(given) - names - set(symbols))
    if unknown:
        known = f"inputs: {', '.join(value.name for value in tensors)}"
        open_ = _symbols(tensors)
        raise InvalidArgument(
            f"a shape for {', '.join(unknown)}, which is no input and no extent of one", where=where,
            help=known + (f"; extents: {', '.join(open_)}" if open_ else ""),
        )  # fmt: skip
    shapes = {name: _given_shape(name, shape, where) for name, shape in given.items() if name in names}
    for value in tensors:
        if value.name in shapes:
            _match(value, shapes[value.name], symbols, where)
    found: dict[str, tuple[int, ...]] = {}
    missing: list[Any] = []
    for value in tensors:
        if value.name in shapes:
            found[value.name] = shapes[value.name]
            continue
        extents = [_extent(dim, symbols, value.name, where) for dim in value.type.tensor_type.shape.dim]
        if value.type.tensor_type.HasField("shape") and None not in extents:
            found[value.name] = tuple(extent for extent in extents if extent is not None)
        else:
            missing.append(value)
    if missing:
        raise _unknown_extents(missing, symbols, where)
    return found


def _symbols(tensors: Sequence[Any]) -> list[str]:
    """The names of extents that the inputs leave open, in order."""
    dims = (dim for value in tensors for dim in value.type.tensor_type.shape.dim)
    return list(dict.fromkeys(dim.dim_param for dim in dims if dim.dim_param))


def _given_extent(name: str, value: Any, where: str) -> int:
    """The extent given for a symbol: a number, or a shape of one dimension."""
    numbers = _given_shape(name, value if isinstance(value, Sequence) else (value,), where)
    if len(numbers) != 1 or numbers[0] < 0:
        raise InvalidArgument(f"{name} is {value!r}", where=where, help=f"one extent of 0 or more: {name}=4")
    return numbers[0]


def _given_shape(name: str, shape: Any, where: str) -> tuple[int, ...]:
    try:
        return tuple(index(extent) for extent in shape)
    except TypeError as error:
        raise InvalidArgument(f"shape {shape!r} for {name}", where=where, help="a tuple of integers") from error


def _match(value: Any, shape: Sequence[int], symbols: dict[str, int], where: str) -> None:
    """Check a given shape against the declared one and learn its symbols."""
    if any(extent < 0 for extent in shape):
        raise InvalidArgument(f"shape {list(shape)} for {value.name}", where=where, help="extents of 0 or more")
    if not value.type.tensor_type.HasField("shape"):
        return
    dims = value.type.tensor_type.shape.dim
    fits = len(dims) == len(shape)
    for dim, extent in zip(dims, shape, strict=False):
        if dim.WhichOneof("value") == "dim_value":
            fits = fits and dim.dim_value == extent
        elif dim.dim_param and symbols.setdefault(dim.dim_param, int(extent)) != extent:
            raise InvalidArgument(
                f"{dim.dim_param} is {symbols[dim.dim_param]} in one shape and {extent} in that of {value.name}",
                where=where,
                help="the same number for the same name",
            )
    if not fits:
        raise InvalidArgument(
            f"shape {list(shape)} for {value.name}, declared as {_declared(value)}",
            where=where,
            help="keep its numbers",
        )


def _extent(dim: Any, symbols: Mapping[str, int], name: str, where: str) -> int | None:
    if dim.WhichOneof("value") == "dim_value":
        if dim.dim_value < 0:
            raise InvalidModel(f"input {name} has an extent of {dim.dim_value}", where=where)
        return int(dim.dim_value)
    return symbols.get(dim.dim_param) if dim.dim_param else None


def _declared(value: Any) -> str:
    if not value.type.tensor_type.HasField("shape"):
        return "[…]"
    dims = value.type.tensor_type.shape.dim
    return "[" + ", ".join(str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in dims) + "]"


def _unknown_extents(values: Sequence[Any], symbols: Mapping[str, int], where: str) -> InvalidArgument:
    """Lists the open extents of every input, and the options that would settle them with 1 for each."""
    lines: list[str] = []
    options: list[str] = []
    for value in values:
        lines.append(f"{value.name}: {_declared(value)}")
        if value.type.tensor_type.HasField("shape"):
            extents = [_extent(dim, symbols, value.name, where) for dim in value.type.tensor_type.shape.dim]
            options.append(f"--shape {value.name}=" + ",".join("1" if e is None else str(e) for e in extents))
        else:
            options.append(f"--shape {value.name}=…")
    dims = [dim for value in values for dim in value.type.tensor_type.shape.dim]
    named = all(dim.dim_param or dim.WhichOneof("value") == "dim_value" for dim in dims)
    if named and all(value.type.tensor_type.HasField("shape") for value in values):
        options = [f"--shape {name}=1" for name in _symbols(values) if name not in symbols]
    return InvalidArgument(
        "extents of inputs are not known: " + "; ".join(lines),
        where=where,
        help=f"add {' '.join(options)} (with your sizes for the 1s)",
    )
