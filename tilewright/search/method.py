"""What a search method is: it asks for batches of points and is told what they cost, until it has asked enough."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from tilewright.dataclass import dataclass
from tilewright.search.cost import Evaluation
from tilewright.search.space import Space

P = TypeVar("P")


@dataclass(frozen=True)
class Batch(Generic[P]):
    """Points to evaluate, in this order. Those that were evaluated before are looked up, unless asked for `again`."""

    points: Sequence[P]
    again: bool = False


Asking: TypeAlias = Generator[Batch[P], Sequence[Evaluation], None]  #: yields batches, is sent an evaluation per point


class Method(Protocol[P]):
    """A way to search one space.

    What a method asks for is a function of its fields, the seed and the answers: never of time, of the number of
    workers, or of the order in which these finish. So a search can be run again from its trace.
    """

    name: ClassVar[str]

    @property
    def space(self) -> Space[P]: ...

    @property
    def parameters(self) -> Mapping[str, Any]:
        """What a trace is compared by beside the name, the space and the seed: values of JSON."""
        ...

    def ask(self, seed: int) -> Asking[P]:
        """Start a search. All random numbers come from `seed`."""
        ...
