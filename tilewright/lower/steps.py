"""What `lower` is asked for: the launches of a program and its loops, and where the tensors that they touch live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.dataclass import dataclass
from tilewright.expr.core import Const, Expr, Tensor
from tilewright.expr.dtypes import DType
from tilewright.operator.blocks import BlockSchedule
from tilewright.operator.contraction import Contraction, ContractionSchedule
from tilewright.operator.nest import Nest, NestSchedule
from tilewright.operator.nest_blocks import NestBlocks
from tilewright.operator.ordered import OrderedSchedule, OrderedWork


@dataclass(frozen=True, slots=True)
class Parameter(Expr):
    """A number that a launch gives its kernel, in expressions of that kernel."""

    name: str
    dtype: DType


@dataclass(frozen=True)
class Step:
    """One launch: what to lower, under which decisions, on which tensors (name to its place in `places`)."""

    name: str
    work: Nest | Contraction | OrderedWork
    schedule: NestSchedule | NestBlocks | ContractionSchedule | BlockSchedule | OrderedSchedule
    arguments: tuple[tuple[Tensor, int], ...]  # tensors with the size of their storage in elements
    flops: int = 0
    bytes: int = 0
    numbers: tuple[tuple[Parameter, Const], ...] = ()

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return tuple(parameter for parameter, _ in self.numbers)

    @property
    def kernel(self) -> str:
        """All that the kernel follows from, as text: steps with the same text, without names, have one kernel."""
        return repr((self.work, self.schedule, self.arguments, self.parameters, self.flops, self.bytes))


def anonymous(step: Step) -> Step:
    """The step with its tensors called by their position, so that equal layers become one kernel."""
    names = {tensor.name: f"t{number}" for number, (tensor, _) in enumerate(step.arguments)}
    if isinstance(step.work, Nest):
        names.update(
            (node.tensor.name, f"v{number}") for number, node in enumerate(step.work.nodes) if node.index is None
        )
    elif isinstance(step.work, Contraction):
        names.setdefault(step.work.accumulator.name, "accumulator")
    schedule = step.schedule
    if isinstance(schedule, NestSchedule):
        schedule = replace(
            schedule,
            nontemporal=tuple(names[name] for name in schedule.nontemporal),
            prefetch=tuple(replace(ahead, tensor=names[ahead.tensor]) for ahead in schedule.prefetch),
            moments=None if schedule.moments is None else (names[schedule.moments[0]], names[schedule.moments[1]]),
        )
    arguments = tuple((replace(tensor, name=names[tensor.name]), size) for tensor, size in step.arguments)
    return replace(step, work=step.work.renamed(names), schedule=schedule, arguments=arguments)


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
class Place:
    """Where a tensor lives: ("input" | "output", its number), ("constant" | "arena", its offset in bytes)."""

    space: str
    index: int
