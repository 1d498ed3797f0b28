"""Static shapes of the inputs of a model, from the model and from the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.errors import InvalidArgument, InvalidModel


def input_shapes(inputs: Sequence[Any], given: Mapping[str, Sequence[int]], where: str) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor input (other kinds are left out); raises InvalidArgument where an extent is unknown.

    A symbolic extent that one given shape determines is known in all inputs.
    """
    tensors = [value for value in inputs if value.type.WhichOneof("value") == "tensor_type"]
    unknown = sorted(set(given) - {value.name for value in inputs})
    if unknown:
        names = ", ".join(value.name for value in tensors)
        raise InvalidArgument(
            f"a shape for {', '.join(unknown)}, which is no input", where=where, help=f"inputs: {names}"
        )
    symbols: dict[str, int] = {}
    for value in tensors:
        if value.name in given:
            _match(value, given[value.name], symbols, where)
    found: dict[str, tuple[int, ...]] = {}
    missing: list[Any] = []
    for value in tensors:
        if value.name in given:
            found[value.name] = tuple(int(extent) for extent in given[value.name])
            continue
        extents = [_extent(dim, symbols, value.name, where) for dim in value.type.tensor_type.shape.dim]
        if value.type.tensor_type.HasField("shape") and None not in extents:
            found[value.name] = tuple(extent for extent in extents if extent is not None)
        else:
            missing.append(value)
    if missing:
        raise _unknown_extents(missing, symbols, where)
    return found


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
    return InvalidArgument(
        "extents of inputs are not known: " + "; ".join(lines),
        where=where,
        help=f"add {' '.join(options)} (with your sizes for the 1s)",
    )
