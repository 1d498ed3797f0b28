"""Monte Carlo tree search over decisions that are taken one after the other (spec 1, section 5.11).

The space says which variables of a state are undecided, with the candidates of each, and what follows from a decision.
A path from the root of the search tree decides one variable per step; a random completion of it gives a point, whose
reward falls with the logarithm of its value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import inf, log, log10, sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from tilewright.dataclass import dataclass
from tilewright.search.cost import Evaluation
from tilewright.search.method import Asking, Batch
from tilewright.search.space import Space

if TYPE_CHECKING:
    from numpy.random import Generator

P = TypeVar("P")
S = TypeVar("S")  # a state: an immutable value in which some variables are decided

INFEASIBLE = -20.0  # reward of what is no legal point, unless legal points are nearly as bad
BELOW_WORST = 2.0  # it is so far below the worst of these
_LEAST = 1e-300  # in place of a value of 0, whose logarithm is asked for


class Decisions(Space[P], Protocol[P, S]):
    """A space whose points are reached by deciding one variable after the other."""

    def start(self) -> S | None:
        """The state before any decision; None where no point is legal."""
        ...

    def candidates(self, state: S) -> Mapping[Any, Sequence[Any]]:
        """The undecided variables of a state, each with at least one value; none where the state is a point."""
        ...

    def decide(self, state: S, variable: Any, value: Any) -> S | None:
        """The state after a decision and all that follows from it; None where no legal point has these decisions."""
        ...

    def point(self, state: S) -> P:
        """The point of a state without undecided variables."""
        ...

    def completions(self, state: S, count: int, numbers: Generator) -> Sequence[P]:
        """`count` random legal points with the decisions of a state; fewer where it has few, or none is found."""
        ...


@dataclass(frozen=True)
class TreeSearch(Generic[P, S]):
    """Each iteration expands one node of the search tree and completes it `rollouts` times; the best of them counts.

    `exploration` is the factor c of `upper_bound`. Ends after `iterations`, or when the whole tree has been walked.
    """

    space: Decisions[P, S]
    iterations: int = 10_000
    rollouts: int = 100
    exploration: float = 1.0
    name: ClassVar[str] = "tree_search"

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"iterations": self.iterations, "rollouts": self.rollouts, "exploration": self.exploration}

    def ask(self, seed: int) -> Asking[P]:
        import numpy as np

        numbers = np.random.default_rng(seed)
        root, worst = _Node(self.space.start()), 0.0
        for _ in range(self.iterations):
            if root.exhausted:
                return
            path = self._path(root, numbers)
            points = self._completions(path[-1], numbers)
            answers: Sequence[Evaluation] = (yield Batch(points)) if points else ()
            rewards = [reward(each) for each in answers if each.valid]
            worst = min([worst, *rewards])
            best = max(rewards, default=infeasible(worst))
            for node in reversed(path):
                node.visits, node.total = node.visits + 1, node.total + best
                node.close()

    def _path(self, root: _Node[S], numbers: Generator) -> list[_Node[S]]:
        """From the root to a node that was not visited before, by the children with the largest upper bounds."""
        path = [root]
        while path[-1].visits and not path[-1].exhausted:
            node = path[-1]
            if node.untried:
                assert node.state is not None
                value = node.untried.pop()
                node.children.append(_Node(self.space.decide(node.state, node.variable, value)))
                path.append(node.children[-1])
                continue
            bounds = [
                upper_bound(child.total / child.visits, node.visits, child.visits, self.exploration)
                if not child.exhausted
                else -inf
                for child in node.children
            ]
            path.append(node.children[bounds.index(max(bounds))])
        if not path[-1].visits:
            self._open(path[-1], numbers)
        return path

    def _open(self, node: _Node[S], numbers: Generator) -> None:
        """Choose the variable that a node decides: the one with the fewest candidates, which are tried in any order."""
        undecided = {} if node.state is None else self.space.candidates(node.state)
        if not undecided:
            node.exhausted = True
            return
        node.variable = min(undecided, key=lambda variable: len(undecided[variable]))
        values = undecided[node.variable]
        node.untried = [values[place] for place in numbers.permutation(len(values))]

    def _completions(self, node: _Node[S], numbers: Generator) -> list[P]:
        """Points with the decisions of a node: the only one, or random ones; fewer where completions are not legal."""
        if node.state is None:
            return []
        if not node.untried:
            return [self.space.point(node.state)]
        return list(self.space.completions(node.state, self.rollouts, numbers))


def one_by_one(space: Decisions[P, S], state: S, count: int, numbers: Generator) -> list[P]:
    """`Decisions.completions` of any space: `count` times, random decisions until none is left."""
    found = (completed(space, state, numbers) for _ in range(count))
    return [point for point in found if point is not None]


def completed(space: Decisions[P, S], state: S, numbers: Generator, most: int | None = None) -> P | None:
    """A random legal point with the decisions of a state, None where there is none; tries every choice if need be.

    With `most`, it gives up after so many decisions.
    """
    return _completed(space, state, numbers, [most])


def _completed(space: Decisions[P, S], state: S, numbers: Generator, left: list[int | None]) -> P | None:
    """As `completed`; `left` has the number of decisions that may still be taken."""
    undecided = space.candidates(state)
    if not undecided:
        return space.point(state)
    variable = min(undecided, key=lambda each: len(undecided[each]))
    values = undecided[variable]
    for place in numbers.permutation(len(values)):
        if left[0] is not None:
            if left[0] == 0:
                return None
            left[0] -= 1
        following = space.decide(state, variable, values[place])
        found = None if following is None else _completed(space, following, numbers, left)
        if found is not None:
            return found
    return None


def upper_bound(mean: float, parent_visits: int, visits: int, exploration: float) -> float:
    """How good a child may be (UCB1): its mean reward, and more the less it was visited.

    >>> round(upper_bound(-5.5, 100, 10, 1.0), 6)
    -4.821386
    """
    return mean + exploration * sqrt(log(parent_visits) / visits)


def reward(evaluation: Evaluation) -> float:
    """The reward of a valid point: -log10 of its value."""
    return -log10(max(evaluation.value, _LEAST))


def infeasible(worst: float) -> float:
    """The reward of what is no legal point, where `worst` is the least reward of one so far."""
    return min(INFEASIBLE, worst - BELOW_WORST)


@dataclass
class _Node(Generic[S]):
    """A state in the search tree, None where a decision led to no legal point."""

    state: S | None
    variable: Any = None
    untried: list[Any] = field(default_factory=list)
    children: list[_Node[S]] = field(default_factory=list)
    visits: int = 0
    total: float = 0.0  # of rewards
    exhausted: bool = False  # everything below it was visited

    def close(self) -> None:
        """Note whether everything below was visited."""
        self.exhausted = self.exhausted or (not self.untried and all(child.exhausted for child in self.children))
