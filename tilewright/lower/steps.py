"""What `lower` is asked for: the launches of a program and its loops, and where the tensors that they touch live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.dataclass import dataclass
from tilewright.expr.core import Const, Expr, Tensor
from tilewright.expr.dtypes import DType
from tilewright.tiles.kernel import Kernel


@dataclass(frozen=True, slots=True)
class Parameter(Expr):
    """A number that a launch gives its kernel, in expressions of that kernel."""

    name: str
    dtype: DType


@dataclass(frozen=True)
class Step:
    """One launch: a scheduled kernel, and the tensors it works on, by name, with the elements of their storage."""

    name: str
    kernel: Kernel
    arguments: tuple[tuple[Tensor, int], ...]
    flops: int = 0
    bytes: int = 0
    numbers: tuple[tuple[Parameter, Const], ...] = ()

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return tuple(parameter for parameter, _ in self.numbers)

    @property
    def key(self) -> str:
        """All that the code follows from, as text: steps with the same text, without names, have one kernel."""
        return repr((self.kernel, self.arguments, self.parameters, self.flops, self.bytes))


def anonymous(step: Step) -> Step:
    """The step with its tensors called by their position, so that equal layers become one kernel."""
    names = {tensor.name: f"t{number}" for number, (tensor, _) in enumerate(step.arguments)}
    for number, statement in enumerate(step.kernel.statements):
        names.setdefault(statement.name, f"v{number}")
    arguments = tuple((replace(tensor, name=names[tensor.name]), size) for tensor, size in step.arguments)
    return replace(step, kernel=step.kernel.renamed(names), arguments=arguments)


@dataclass(frozen=True)
class Moving:
    """A tensor that is another part of `whole`, a name, in every trip: from element ``start + stride * trip``.

    With a `period` that is ``trip % period``; in the first trip it is the tensor `first`, where that is a name.
    """

    whole: str
    start: int
    stride: int
    period: int = 0
    first: str = ""


@dataclass(frozen=True)
class Repeated:
    """Launches and loops that run `trips` times; `moving` are tensors by name whose place depends on the trip."""

    trips: int
    steps: Sequence[Step | Repeated]
    moving: Mapping[str, Moving]


@dataclass(frozen=True)
class Sections:
    """Bytes of the two memories that a program has besides inputs and outputs.

    The first `zeroed_bytes` of the arena are zeros before the first call. A call finds there what the call before left.
    """

    arena_bytes: int
    constants_bytes: int
    zeroed_bytes: int = 0


@dataclass(frozen=True)
class Place:
    """Where a tensor lives: ("input" | "output", its number), ("constant" | "arena", its offset in bytes)."""

    space: str
    index: int
