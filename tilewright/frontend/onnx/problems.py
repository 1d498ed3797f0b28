"""What is wrong with a model, node by node, and the errors that list it."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidModel, Unsupported


@dataclass(frozen=True)
class Problem:
    """One node that was not imported. `needs` names the graph inputs whose values would have to be known."""

    node: str
    operator: str
    reason: str
    invalid: bool = False
    needs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.node} ({self.operator}): {self.reason}"


class UnsupportedModel(Unsupported):
    """A legal model with nodes that are not supported; `problems` has every one of them."""

    def __init__(self, problems: Sequence[Problem], *, where: str) -> None:
        self.problems = tuple(problems)
        inputs = sorted({name for problem in problems for name in problem.needs})
        help_ = f"fix the values of {', '.join(inputs)} when importing" if inputs else ""
        super().__init__(_listed(problems), where=where, help=help_)


class NeedsValue(Unsupported):
    """An operator needs the value of an input while it is imported."""

    def __init__(self, value: str, what: str) -> None:
        self.value = value
        super().__init__(f"{what} must be known when compiling, but {value!r} is computed or given at run time")


class NeedsInputs(Unsupported):
    """A function body needs the values of these graph inputs."""

    def __init__(self, message: str, inputs: tuple[str, ...]) -> None:
        self.inputs = inputs
        super().__init__(message)


class DependsOnFailed(Unsupported):
    """A subgraph uses a value that an earlier node, already reported, failed to give."""


def raise_problems(problems: Sequence[Problem], where: str) -> None:
    """InvalidModel if any node is malformed, else UnsupportedModel if there is any problem."""
    invalid = [problem for problem in problems if problem.invalid]
    if invalid:
        raise InvalidModel(_listed(invalid), where=where)
    if problems:
        raise UnsupportedModel(problems, where=where)


def _listed(problems: Sequence[Problem]) -> str:
    if len(problems) == 1:
        return str(problems[0])
    return f"{len(problems)} nodes:" + "".join(f"\n  {problem}" for problem in problems)
