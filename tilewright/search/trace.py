"""The record of a search: what it was, and every evaluation in the order in which it was made. A file of JSON lines.

The first line is a `Header`, every other one a `Step`. A line is written whole after its evaluation, so that a killed
search loses at most the line that it was writing; whoever opens the file again drops that line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, NoReturn, Self, TypeVar

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument, InvalidFile
from tilewright.fields import Fault, Place, Readable, anything, finite, integer, optional, required, size, string
from tilewright.files import TEXT_BYTES, open_locked, read_bytes, reason
from tilewright.search.cost import Evaluation
from tilewright.search.space import canonical_json

VERSION = 1  # of the file

R = TypeVar("R", bound=Readable)


@dataclass(frozen=True)
class Header(Readable):
    """What a search is a function of, beside the answers: a trace is continued by an equal search only.

    `space` and `parameters` (of the method) are values of JSON; so are the caller's `notes`, such as the digest of the
    machine and the version of the compiler.
    """

    space: Any = required(anything)
    method: str = required(string)
    parameters: Any = required(anything)
    seed: int = required(integer)
    notes: Any = required(anything)
    version: int = optional(integer, VERSION)

    def difference(self, other: Header) -> str:
        """Where another header first differs, in words; "" where it does not."""
        return _difference(self.to_json(), other.to_json(), ())


def _evaluation(value: Any, place: Place, faults: list[Fault]) -> Any:
    """The value of a valid point, or why it was refused."""
    if isinstance(value, dict) and set(value) == {"value"}:
        return Evaluation(finite(value["value"], (*place, "value"), faults))
    if isinstance(value, dict) and set(value) == {"refused"}:
        return Evaluation.refused(string(value["refused"], (*place, "refused"), faults))
    faults.append(Fault(place, f"is {str(value)[:60]}", 'legal are {"value": …} and {"refused": …}'))
    return None


@dataclass(frozen=True)
class Step(Readable):
    """One evaluation: seconds since the search began, the number of its batch, point and answer, the best so far.

    `point` is a value of JSON. `best` is the least value, None while no point was valid.
    """

    time: float = required(finite)
    iteration: int = required(size)
    point: Any = required(anything)
    evaluation: Evaluation = required(_evaluation)
    best: float | None = optional(finite)

    def to_json(self) -> dict[str, Any]:
        answer = self.evaluation
        written = {"value": answer.value} if answer.valid else {"refused": answer.reason}
        return {"time": self.time, "iteration": self.iteration, "point": self.point, "evaluation": written,
                "best": self.best}  # fmt: skip


@dataclass(frozen=True)
class Trace:
    """A whole record."""

    header: Header
    steps: tuple[Step, ...]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Trace:
        """The trace in a file, without a last line that is half written. Raises InvalidFile where it is damaged."""
        content = read_bytes(path, help="a file that a search wrote", limit=TEXT_BYTES)
        trace, _ = parse_trace(content, os.fspath(path))
        if trace is None:
            raise InvalidFile(
                "the file has no header of a search", where=os.fspath(path), help="a file that a search wrote"
            )
        return trace

    def curve(self) -> tuple[tuple[int, float, float], ...]:
        """How the search converged: (evaluations, seconds since it began, best value), from the first valid point."""
        return tuple(
            (number, step.time, step.best) for number, step in enumerate(self.steps, 1) if step.best is not None
        )

    @property
    def best(self) -> Step | None:
        """The first of the steps with the best evaluation."""
        valid = [step for step in self.steps if step.evaluation.valid]
        return min(valid, key=lambda step: step.evaluation.value, default=None)

    def lines(self) -> Iterator[str]:
        """The lines of the file, each with its end."""
        for each in (self.header, *self.steps):
            yield canonical_json(each.to_json()) + "\n"


def parse_trace(content: bytes, where: str) -> tuple[Trace | None, int]:
    """The trace in a file's content, None where not even its header is whole, and the bytes that its lines take.

    Raises InvalidFile with the line that is damaged, or whose `best` is not the least of the lines up to it.
    """
    whole = content.rfind(b"\n") + 1
    values = [_line(line, f"{where}:{number}") for number, line in enumerate(content[:whole].split(b"\n")[:-1], 1)]
    if not values:
        return None, 0
    header = _parsed(Header, values[0], f"{where}:1")
    if header.version != VERSION:
        raise InvalidFile(f"the trace has version {header.version}, this is version {VERSION}", where=where,
                          help="search again into another file")  # fmt: skip
    steps = [_parsed(Step, value, f"{where}:{number}") for number, value in enumerate(values[1:], 2)]
    best: float | None = None
    for number, step in enumerate(steps, 2):
        best = better(best, step.evaluation)
        if step.best != best:
            message = f"best is {step.best}, but the least value so far is {best}"
            raise InvalidFile(message, where=f"{where}:{number}", help="search again into another file")
    return Trace(header, tuple(steps)), whole


def better(best: float | None, evaluation: Evaluation) -> float | None:
    """The least value after one more evaluation."""
    if not evaluation.valid or (best is not None and best <= evaluation.value):
        return best
    return evaluation.value


class TraceFile:
    """A trace that is being written: what was there before is `stored`, and `append` adds a line.

    No two processes write to one file. Raises InvalidFile where the file is damaged or of another search, which it
    leaves as it is, and InvalidArgument where it cannot be written or another process writes to it.
    """

    def __init__(self, path: str | os.PathLike[str], header: Header) -> None:
        self.path = os.fspath(path)
        self._file = open_locked(path, "trace", TEXT_BYTES)
        try:
            self.stored = self._opened(header)
        except BaseException:
            self.close()
            raise

    def append(self, step: Step) -> None:
        self._write(canonical_json(step.to_json()) + "\n")

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self, header: Header) -> tuple[Step, ...]:
        content = self._file.read()
        trace, whole = parse_trace(content, self.path)
        first = next(Trace(header, ()).lines())
        if trace is None:
            if not first.encode().startswith(content):
                raise InvalidFile("the file is no trace of a search", where=self.path, help="name another file")
        elif difference := trace.header.difference(header):
            raise InvalidFile(f"the trace is of another search: {difference}", where=self.path,
                              help="continue that search, or name another file")  # fmt: skip
        self._file.truncate(whole)
        self._file.seek(whole)
        if trace is None:
            self._write(first)
        return () if trace is None else trace.steps

    def _write(self, line: str) -> None:
        content = line.encode()
        try:
            while content:
                content = content[self._file.write(content) or 0 :]
        except OSError as error:
            raise InvalidArgument(f"cannot write {self.path!r}: {reason(error)}", where="trace",
                                  help="what is written stays; continue where there is room") from error  # fmt: skip


def _parsed(kind: type[R], value: Any, where: str) -> R:
    try:
        return kind.from_json(value, where)
    except InvalidFile as error:
        error.help = error.help or "search again into another file"
        raise


def _line(line: bytes, where: str) -> Any:
    try:
        return json.loads(line.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidFile(f"the line is no JSON: {reason(error)}", where=where,
                          help="search again into another file") from None  # fmt: skip


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _difference(stored: Any, wanted: Any, place: Place) -> str:
    if isinstance(stored, dict) and isinstance(wanted, dict) and list(stored) == list(wanted):
        pairs = [(name, stored[name], wanted[name]) for name in stored]
    elif isinstance(stored, dict) and isinstance(wanted, dict) and (names := wanted.keys() ^ stored.keys()):
        name = min(names)
        path = ".".join(map(str, (*place, name)))
        if name in stored:
            return f"{path} is {_shown(stored[name])} in the file, and missing here"
        return f"{path} is missing in the file, {_shown(wanted[name])} here"
    elif isinstance(stored, list) and isinstance(wanted, list) and len(stored) == len(wanted):
        pairs = [(number, *both) for number, both in enumerate(zip(stored, wanted, strict=True))]
    else:
        if type(stored) is type(wanted) and stored == wanted:
            return ""
        return f"{'.'.join(map(str, place))} is {_shown(stored)} in the file, {_shown(wanted)} here"
    return next((found for name, a, b in pairs if (found := _difference(a, b, (*place, name)))), "")


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
