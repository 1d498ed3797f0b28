"""What came of one architecture in one way, as a value that goes to JSON and comes back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Way = Literal["onnx", "compile"]
WAYS: tuple[Way, ...] = ("onnx", "compile")
State = Literal["right", "wrong", "failed", "skipped"]


@dataclass(frozen=True)
class Outcome:
    """Times are there if `state` is "right" or "wrong".

    stage          where it failed: build, export (torch.onnx.export), compile, run, limit (of time or memory)
    reason         why it is not right
    error          largest error, relative to the largest magnitude of the result in float64
    eager_error    the same of torch in float32
    cpu_seconds    processor time of the compilation, without the export
    wall_seconds   elapsed time of the compilation
    peak_bytes     how far resident memory rose during the compilation
    seconds        median time of a call on one thread
    peer_seconds   the same of onnxruntime (way "onnx") or of torch in eager mode (way "compile")
    slowest        the kernels that take most of a call, with their share
    notes          what else was seen: breaks of the graph
    """

    name: str
    family: str
    way: Way
    state: State
    stage: str = ""
    reason: str = ""
    error: float | None = None
    eager_error: float | None = None
    cpu_seconds: float | None = None
    wall_seconds: float | None = None
    peak_bytes: int | None = None
    seconds: float | None = None
    peer_seconds: float | None = None
    slowest: tuple[tuple[str, float], ...] = ()
    notes: str = ""

    @property
    def ratio(self) -> float | None:
        """Time of the peer by ours: above 1 where ours is faster."""
        if not self.seconds or self.peer_seconds is None:
            return None
        return self.peer_seconds / self.seconds


def newest(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """The last outcome of each architecture and way, in the order in which they first came."""
    return list({(outcome.name, outcome.way): outcome for outcome in outcomes}.values())
