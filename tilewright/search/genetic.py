"""A genetic algorithm over columns of cells (spec 1, section 5.11)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from tilewright.dataclass import dataclass
from tilewright.search.cost import Evaluation
from tilewright.search.method import Asking, Batch
from tilewright.search.space import Space, canonical

if TYPE_CHECKING:
    from numpy.random import Generator

P = TypeVar("P")
Columns: TypeAlias = tuple[tuple[Any, ...], ...]  #: the cells of a point, column by column

_TRIES = 20  # children that are bred for one that is legal and new, before a point is drawn instead


class Genomes(Space[P], Protocol[P]):
    """A space whose points are made of columns of cells: one column per operator, or per loop."""

    def columns(self, point: P) -> Columns:
        """The cells of a point; all points have equally many columns, and each column equally many cells in all."""
        ...

    def mutated(self, column: int, row: int, value: Any, numbers: Generator) -> Any:
        """What a mutation writes into a cell that holds `value`."""
        ...

    def family(self, point: P) -> Hashable:
        """What points have in common that differ in little; of a family one is a parent, where there are enough."""
        ...

    def repaired(self, columns: Columns) -> P | None:
        """The legal point with these cells, or nearly these; None where none is near."""
        ...


@dataclass(frozen=True)
class Genetic(Generic[P]):
    """Each round breeds a population from the `keep` best points of all rounds, which survive.

    These are of different families as far as there are enough, so that not all of them differ in details only.
    A child takes each column from one of two parents, at equal odds; with probability `mutation` one of its cells is
    drawn anew. In place of a child that the space rejects, or that was bred before, one with a mutation is bred. A
    point is as fit as its cost says, which may run a search itself, as the factors of a tree are searched by
    `tree_search`. Ends after `rounds`, or after one that bred nothing new.
    """

    space: Genomes[P]
    population: int = 20
    keep: int = 5
    mutation: float = 0.2
    rounds: int = 50
    name: ClassVar[str] = "genetic"

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"population": self.population, "keep": self.keep, "mutation": self.mutation, "rounds": self.rounds}

    def ask(self, seed: int) -> Asking[P]:
        import numpy as np

        numbers = np.random.default_rng(seed)
        bred: set[str] = set()
        parents: list[tuple[float, P]] = []
        for number in range(self.rounds):
            size = self.population if number == 0 else max(1, self.population - self.keep)
            before = len(bred)
            children = [self._new(parents, numbers, bred) for _ in range(size)]
            if len(bred) == before:
                return
            answers: Sequence[Evaluation] = yield Batch(children)
            valid = [(each.value, point) for each, point in zip(answers, children, strict=True) if each.valid]
            parents = best([*parents, *valid], self.space, self.keep)

    def _new(self, parents: Sequence[tuple[float, P]], numbers: Generator, bred: set[str]) -> P:
        """A child that was not bred before, as far as trying goes; a point of the space where there are no parents."""
        for number in range(_TRIES):
            mutation = self.mutation if number == 0 else 1.0
            point = self._child(parents, mutation, numbers) if parents else self.space.sample(numbers)
            if point is not None and (key := canonical(self.space, point)) not in bred:
                bred.add(key)
                return point
        point = self.space.sample(numbers)
        bred.add(canonical(self.space, point))
        return point

    def _child(self, parents: Sequence[tuple[float, P]], mutation: float, numbers: Generator) -> P | None:
        both = [self.space.columns(parents[int(numbers.integers(len(parents)))][1]) for _ in range(2)]
        columns = [list(both[int(numbers.integers(2))][number]) for number in range(len(both[0]))]
        if numbers.random() < mutation:
            cells = [(column, row) for column, each in enumerate(columns) for row in range(len(each))]
            column, row = cells[int(numbers.integers(len(cells)))]
            columns[column][row] = self.space.mutated(column, row, columns[column][row], numbers)
        return self.space.repaired(tuple(map(tuple, columns)))


def best(found: Sequence[tuple[float, P]], space: Genomes[P], count: int) -> list[tuple[float, P]]:
    """The fittest point of each of the fittest families; where there are fewer, the fittest others follow."""
    different = {canonical(space, point): (fitness, point) for fitness, point in found}
    order = [different[key] for key in sorted(different, key=lambda key: (different[key][0], key))]
    first = {space.family(point): point for _, point in reversed(order)}
    chosen = [each for each in order if first[space.family(each[1])] == each[1]]
    return [*chosen, *(each for each in order if each not in chosen)][:count]
