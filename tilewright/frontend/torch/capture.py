"""A torch module as an exported program of functional ATen operators.

Operators that have an importer stay as they are (a linear layer, attention, a norm); all others are decomposed where
torch knows how, so that an importer is needed only for what is left.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tilewright.errors import CompileError, InvalidArgument, MissingExtra, Unsupported
from tilewright.frontend.torch.registry import COMPLEX, load_all


def require_torch() -> Any:
    """The package torch; raises MissingExtra where it is not installed."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("torch", "torch") from error
    return torch


def capture(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The `torch.export.ExportedProgram` of a call, for inference with the shapes of the example.

    Raises Unsupported where torch.export cannot follow the Python code, with torch's reason.
    """
    torch = require_torch()
    with torch.no_grad(), _quiet():
        try:
            args, kwargs = _distinct(module, args, kwargs)
            program = torch.export.export(module, args, dict(kwargs), strict=False)
            return program.run_decompositions(_decompositions(torch))
        except CompileError:
            raise
        except Exception as error:  # torch.export documents no set of errors; the module's own code can raise any
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            raise Unsupported(
                f"torch.export cannot capture this module: {type(error).__name__}: {reason}",
                where=type(module).__name__,
                help="torch.export.export(module, args, strict=False) must succeed",
            ) from error


def _distinct(
    module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The example with a view in place of each tensor that stands in it again, or is a weight of the module.

    torch.export tells inputs apart by their tensors: of one tensor at two places it would make one input.
    """
    torch = require_torch()
    seen = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}

    def other(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in seen:
            return value.detach()
        seen.add(id(value))
        return value

    distinct: tuple[tuple[Any, ...], Mapping[str, Any]] = torch.utils._pytree.tree_map(other, (args, dict(kwargs)))
    return distinct


def split_example(module: Any, example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of a call: from a tuple, or from a mapping by parameter name."""
    torch = require_torch()
    if not isinstance(module, torch.nn.Module):
        raise InvalidArgument(f"got a {type(module).__name__}", where="module", help="a torch.nn.Module")
    if isinstance(example_inputs, torch.Tensor):
        return (example_inputs,), {}
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, (tuple, list)):
        return tuple(example_inputs), {}
    raise InvalidArgument(
        f"got a {type(example_inputs).__name__}", where="example_inputs", help="a tuple of tensors, or them by name"
    )


def _decompositions(torch: Any) -> Any:
    """torch's decompositions, of operators without an importer only."""
    table = torch.export.default_decompositions()
    importers = load_all().keys() | COMPLEX.keys()
    for overload in [overload for overload in table.keys() if str(overload) in importers]:  # noqa: SIM118
        del table[overload]
    return table


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide torch's remarks about its own deprecated functions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
