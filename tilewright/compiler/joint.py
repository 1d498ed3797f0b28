"""The joint choice for a product of a graph: its candidates, with what the model predicts, and the choice replayed.

`candidates` asks the planner which mappings a node offers and which space of schedules each leaves,
`instruction.search` chooses among them with measurements of the caller, and `replay` makes the planner take the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.plan import ChooseProduct, Kernel, Plan
from tilewright.dataclass import dataclass
from tilewright.decision import Refusal
from tilewright.errors import InvalidArgument
from tilewright.expr.core import Compute
from tilewright.expr.graph import Graph
from tilewright.instruction.model import Hierarchy
from tilewright.instruction.product_cost import ProductCost
from tilewright.instruction.products import MappedProduct, ProductKey
from tilewright.instruction.search import Candidate, Choice
from tilewright.instruction.validation import MappingRefused
from tilewright.intrinsics.intrinsic import Intrinsic
from tilewright.intrinsics.registry import standard
from tilewright.machine.description import Cpu
from tilewright.operator.product_point import ProductPoint
from tilewright.operator.product_space import ProductSpace
from tilewright.operator.rules.cpu_product import blocks_of
from tilewright.options import Options
from tilewright.tiles.product import product_of


def candidates(
    graph: Graph,
    node: str,
    machine: Cpu,
    model: Hierarchy,
    options: Options | None = None,
    keep: Callable[[MappedProduct], bool] = lambda _: True,
    threads: int = 1,
    refused: list[Refusal] | None = None,
) -> list[Candidate]:
    """The mappings of the product `node` that `keep` accepts; empty where it offers none.

    A mapping that does not pass every check is left out, and why is added to `refused`.
    """
    offered: list[MappedProduct] = []

    def note(compute: Compute, found: Sequence[MappedProduct]) -> None:
        if compute.name == node and not offered:
            offered.extend(each for each in found if keep(each))

    options = options or Options()
    make_plan(graph, machine, threads, options, ChooseProduct(mapping=note))
    registry = standard() if options.intrinsics is None else options.intrinsics
    found = []
    for each in offered:
        record = registry.find(each.instruction)
        try:
            predictor = _Predictor(graph, node, each.key, machine, model, options, record, threads)
        except MappingRefused as error:
            if refused is not None:
                refused.append(Refusal(str(each), error.check, error.message))
            continue
        found.append(Candidate(each.key, predictor.space.points, predictor))
    return found


def default_choice(
    graph: Graph, node: str, machine: Cpu, among: Sequence[Candidate], options: Options | None = None, threads: int = 1
) -> Choice | None:  # fmt: skip
    """What the rules choose, if it is a point of one of the candidates."""
    plan = make_plan(graph, machine, threads, options)
    product = plan.products.get(node)
    kernel = next((each for each in plan.kernels if product and each.name == product["kernel"]), None)
    work = None if kernel is None else product_of(kernel.scheduled)
    if product is None or work is None:
        return None
    key, tile = ProductKey.of(product), product["schedule"]["tile"]
    rows = tuple(tile.get(axis.name, 1) for axis in work.rows)
    outer = {axis.name for axis in work.outer}
    order = tuple(name for name in product["schedule"]["order"] if name not in outer)
    vectors = -(-tile[work.columns.name] // work.lanes)
    for candidate in among:
        point = ProductPoint(rows, vectors, order)
        if candidate.mapping == key and point in candidate.points:
            return Choice(key, point)
    return None


def replay(choices: Mapping[str, Choice]) -> ChooseProduct:
    """Products run as was chosen, by the names of their nodes; others by the rules."""

    def mapping(node: Compute, found: Sequence[MappedProduct]) -> MappedProduct | None:
        choice = choices.get(node.name)
        if choice is None:
            return None
        for each in found:
            if each.key == choice.mapping:
                return each
        raise InvalidArgument(f"{node.name} has no mapping {choice.mapping} with vectors of {choice.mapping.vector}",
                              where="choice", help="one of " + ", ".join(str(each) for each in found))  # fmt: skip

    def point(space: ProductSpace, node: str) -> ProductPoint | None:
        return choices[node].point if node in choices else None

    return ChooseProduct(mapping, point)


@dataclass
class _Predictor:
    """Predicted seconds of the points of one mapping: its kernel, and the copies that the mapping makes necessary.

    How the vector operand is packed depends on the width of the register tile alone, so one plan per width is made.
    """

    graph: Graph
    node: str
    mapping: ProductKey
    machine: Cpu
    model: Hierarchy
    options: Options
    record: Intrinsic
    threads: int = 1
    plans: dict[int, tuple[ProductCost, float, int]] = field(default_factory=dict)
    blocks: dict[tuple[tuple[int, ...], int], Mapping[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        spaces: list[ProductSpace] = []

        def note(space: ProductSpace, node: str) -> ProductPoint | None:
            if node == self.node:
                spaces.append(space)
            return None

        self._plan(note)
        (self.space,) = spaces

    def __call__(self, point: ProductPoint) -> float:
        if point.vectors not in self.plans:
            self.plans[point.vectors] = self._planned(point)
        cost, copies, a_bytes = self.plans[point.vectors]
        tile = point.rows, point.vectors
        if tile not in self.blocks:
            self.blocks[tile] = blocks_of(point, self.space.work, self.machine, self.threads, a_bytes)
        return cost.predict(point, self.blocks[tile]).seconds + copies

    def _planned(self, point: ProductPoint) -> tuple[ProductCost, float, int]:
        plan = self._plan(lambda space, node: point if node == self.node else None)
        name = plan.products[self.node]["kernel"]
        works = {each.name: product_of(each.scheduled) for each in plan.kernels}
        copies = sum(self.model.copy_seconds(_bytes(plan, each)) for each in plan.kernels if works[each.name] is None)
        work = works[name]
        assert work is not None, "the kernel of a product has one"
        return ProductCost(work, self.record, self.model), copies, plan.stored[work.a.tensor.name].bytes

    def _plan(self, point: Callable[[ProductSpace, str], ProductPoint | None]) -> Plan:
        def mapping(node: Compute, found: Sequence[MappedProduct]) -> MappedProduct | None:
            return next((each for each in found if node.name == self.node and each.key == self.mapping), None)

        return make_plan(self.graph, self.machine, self.threads, self.options, ChooseProduct(mapping, point))


def _bytes(plan: Plan, kernel: Kernel) -> int:
    return sum(plan.stored[name].bytes for name in kernel.arguments)
