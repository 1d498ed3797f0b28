"""The graph of tensor expressions: computes in topological order, loops, inputs, outputs and constants by name.

A loop runs the nodes of a graph of its own, its body, a fixed number of times. Names of tensors are unique in a graph
and all of its loops; only a tensor that a body reads from the graph around it, and a constant of both, have one name.
Names of loops are unique too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.errors import ExtentMismatch, InvalidExpression
from tilewright.expr import dtypes
from tilewright.expr.core import Compute, Extent, Tensor
from tilewright.expr.names import claim
from tilewright.expr.rewrite import copy_of


@dataclass(frozen=True)
class Graph:
    """``G = <E, T>``: every tensor is written by one node, or is an input or constant; node order is topological.

    `constants` maps the name of a tensor to its contents (C-contiguous, dtype and shape of the tensor). An output may
    be a node's output, a result of a loop, an input or a constant. Nodes may read results of `loops`; `steps` is the
    order of both.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    nodes: tuple[Compute, ...]
    constants: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    name: str = "main"
    loops: tuple[Loop, ...] = ()

    @classmethod
    def of(cls, computes: Sequence[Compute], results: Collection[str] = ()) -> Graph:
        """Expressions in topological order as a graph, whose inputs are what they read and none of them writes.

        `results` names its outputs; by default the last expression writes the only one.
        """
        written = {compute.name for compute in computes}
        inputs = dict.fromkeys(t for compute in computes for t in compute.inputs() if t.name not in written)
        outputs = tuple(compute.output for compute in computes if compute.name in (results or {computes[-1].name}))
        return cls(tuple(inputs), outputs, tuple(computes))

    def __post_init__(self) -> None:
        known: dict[str, Tensor] = {}

        def define(tensor: Tensor) -> None:
            if tensor.name in known or tensor.name in self.constants:
                raise InvalidExpression(f"graph {self.name}: tensor {tensor.name} is defined twice")
            known[tensor.name] = tensor

        for tensor in self.inputs:
            define(tensor)
        for step in self.steps():
            for tensor in step.inputs():
                self._check_known(tensor, known, f"{step.name} reads")
            for tensor in (step.output,) if isinstance(step, Compute) else step.outputs():
                define(tensor)
        for tensor in self.outputs:
            self._check_known(tensor, known, "output")
        for loop in self.loops:
            for tensor in loop.inner_tensors():
                define(tensor)
        names: set[str] = set()
        for loop in self.all_loops():
            if loop.name in names:
                fact = f"graph {self.name}: two loops are called {loop.name}"
                raise InvalidExpression(fact, help="give each loop a name of its own")
            names.add(loop.name)

    def _check_known(self, tensor: Tensor, known: Mapping[str, Tensor], what: str) -> None:
        if tensor.name in self.constants:
            array = self.constants[tensor.name]
            if array.shape != tensor.shape or dtypes.from_numpy(array.dtype) != tensor.dtype:
                raise InvalidExpression(
                    f"graph {self.name}: {what} {tensor}, a constant of {array.dtype}{list(array.shape)}"
                )
        elif known.get(tensor.name) != tensor:
            raise InvalidExpression(
                f"graph {self.name}: {what} {tensor}, which no earlier node writes",
                help="order nodes topologically",
            )

    def steps(self) -> Sequence[Compute | Loop]:
        """Nodes and loops in an order in which they can run: nodes in theirs, except what a loop needs earlier."""
        if not self.loops:
            return self.nodes
        writers: dict[str, Compute | Loop] = {node.name: node for node in self.nodes}
        writers |= {tensor.name: loop for loop in self.loops for tensor in loop.outputs()}
        done: dict[int, bool] = {}  # by identity: False while what it needs is visited
        order: list[Compute | Loop] = []
        roots: list[Compute | Loop] = [*self.nodes, *self.loops]
        for root in roots:
            stack = [root]
            while stack:
                step = stack[-1]
                if id(step) in done:
                    stack.pop()
                    if not done[id(step)]:
                        done[id(step)] = True
                        order.append(step)
                    continue
                done[id(step)] = False
                for tensor in step.inputs():
                    writer = writers.get(tensor.name)
                    if writer is not None and done.get(id(writer)) is False:
                        fact = f"graph {self.name}: {step.name} and {writer.name} need each other's results"
                        raise InvalidExpression(fact, help="order nodes topologically")
                    if writer is not None and id(writer) not in done:
                        stack.append(writer)
        return order

    def all_constants(self) -> dict[str, np.ndarray[Any, Any]]:
        """The constants of the graph and of the bodies of its loops."""
        found = dict(self.constants)
        for loop in self.loops:
            found.update(loop.body.all_constants())
        return found

    def all_loops(self) -> Iterator[Loop]:
        """The loops of the graph and those in them, outer ones first."""
        for loop in self.loops:
            yield loop
            yield from loop.body.all_loops()

    def opened(self) -> Graph:
        """The nodes alone: results of loops become inputs; what nodes compute for loops, outputs behind the others."""
        if not self.loops:
            return self
        written = {node.name for node in self.nodes} - {tensor.name for tensor in self.outputs}
        read = dict.fromkeys(t for loop in self.loops for t in loop.inputs() if t.name in written)
        results = tuple(tensor for loop in self.loops for tensor in loop.outputs())
        return replace(self, inputs=(*self.inputs, *results), outputs=(*self.outputs, *read), loops=())

    def closed(self, opened: Graph, loops: Sequence[Loop]) -> Graph:
        """This graph with the nodes, constants and outputs of what became of its `opened` form, and these loops.

        Each body takes what it reads of the constants; what it reads of an operand stays as it is.
        """
        taken = tuple(loop.taking(opened.constants) for loop in loops)
        read = {t.name: self.constants[t.name] for e in taken for t in e.inputs() if t.name in self.constants}
        outputs, constants = opened.outputs[: len(self.outputs)], {**read, **opened.constants}
        return replace(self, outputs=outputs, nodes=opened.nodes, constants=constants, loops=taken)

    def parts(self) -> Iterator[Graph]:
        """The nodes of this graph and of the body of each loop, as graphs without loops (`opened`)."""
        yield self.opened()
        for loop in self.loops:
            yield from loop.body.parts()

    def map_graphs(self, rule: Callable[[Graph], Graph]) -> Graph:
        """`rule` applied to the nodes of this graph (`opened`) and of every body; it keeps names and outputs."""
        if not self.loops:
            return rule(self)
        return self.closed(rule(self.opened()), [loop.with_body(loop.body.map_graphs(rule)) for loop in self.loops])

    def producers(self) -> dict[str, Compute]:
        """Node by the name of the tensor it writes."""
        return {node.name: node for node in self.nodes}

    def consumers(self) -> dict[str, list[Compute]]:
        """Nodes that read each tensor, by its name, in order."""
        users: dict[str, list[Compute]] = {}
        for node in self.nodes:
            for tensor in node.inputs():
                users.setdefault(tensor.name, []).append(node)
        return users

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the graph by name, those of its loops too."""
        found = {tensor.name: tensor for tensor in self.inputs}
        for node in self.nodes:
            found.update((tensor.name, tensor) for tensor in node.inputs())
            found[node.name] = node.output
        for loop in self.loops:
            found.update((tensor.name, tensor) for tensor in (*loop.inputs(), *loop.outputs()))
            found.update(loop.body.tensors())
        found.update((tensor.name, tensor) for tensor in self.outputs)
        return found


@dataclass(frozen=True)
class Sliced:
    """In trip t the body reads ``part[...] = whole[t, ...]``; with `backwards` ``whole[trips - 1 - t, ...]``."""

    part: Tensor
    whole: Tensor
    backwards: bool = False


@dataclass(frozen=True)
class Carried:
    """`state` is `initial` in the first trip, then what the trip before computed as `following`; `final` at the end."""

    state: Tensor
    initial: Tensor
    following: Tensor
    final: Tensor


@dataclass(frozen=True)
class Stacked:
    """``whole[t, ...]`` is `part` of trip t, with `backwards` ``whole[trips - 1 - t, ...]``."""

    part: Tensor
    whole: Tensor
    backwards: bool = False


@dataclass(frozen=True)
class Loop:
    """`trips` runs of `body`, one after the other.

    The inputs of the body are the parts of `sliced`, the states of `carried`, and tensors of the graph around it, under
    their names there. Its outputs are what `carried` and `stacked` take from it, each once.
    """

    name: str
    trips: int
    body: Graph
    sliced: tuple[Sliced, ...] = ()
    carried: tuple[Carried, ...] = ()
    stacked: tuple[Stacked, ...] = ()

    def __post_init__(self) -> None:
        name = self.name
        if self.trips < 0:
            raise InvalidExpression(f"loop {name}: {self.trips} trips", help="0 or more")
        rows = [(each.part, each.whole) for each in self.sliced] + [(each.part, each.whole) for each in self.stacked]
        for part, whole in rows:
            shape, dtype = (self.trips, *part.shape), part.dtype
            if whole.shape != shape or whole.dtype != dtype:
                fact = f"loop {name}: {whole} holds {part} of {self.trips} trips"
                raise ExtentMismatch(fact, help=f"{dtype}[{', '.join(map(str, shape))}]")
        for state in self.carried:
            for other in (state.initial, state.following, state.final):
                if (other.shape, other.dtype) != (state.state.shape, state.state.dtype):
                    raise ExtentMismatch(f"loop {name}: {other} is carried as {state.state}", help="one shape and type")
        own = self.parameters()
        if self.body.inputs[: len(own)] != own:
            raise InvalidExpression(f"loop {name}: the inputs of its body are not its slices, then its states")
        if self.body.outputs != results_of(self.carried, self.stacked):
            raise InvalidExpression(f"loop {name}: the outputs of its body are not what it carries and stacks")
        if len({each.part for each in self.stacked}) != len(self.stacked):
            raise InvalidExpression(f"loop {name}: stacks a tensor twice", help="stack it once")

    def parameters(self) -> tuple[Tensor, ...]:
        """The inputs of the body that every trip has its own of."""
        return (*(each.part for each in self.sliced), *(each.state for each in self.carried))

    def captured(self) -> tuple[Tensor, ...]:
        """The tensors around the loop that every trip reads whole."""
        return self.body.inputs[len(self.sliced) + len(self.carried) :]

    def inputs(self) -> tuple[Tensor, ...]:
        """The distinct tensors of the graph around that the loop reads."""
        own = (*(each.whole for each in self.sliced), *(each.initial for each in self.carried))
        return tuple(dict.fromkeys((*own, *self.captured())))

    def outputs(self) -> tuple[Tensor, ...]:
        return (*(each.final for each in self.carried), *(each.whole for each in self.stacked))

    def inner_tensors(self) -> Iterator[Tensor]:
        """What the body and the loops in it define, constants aside."""
        yield from self.parameters()
        yield from (node.output for node in self.body.nodes)
        for loop in self.body.loops:
            yield from loop.outputs()
            yield from loop.inner_tensors()

    def with_body(self, body: Graph) -> Loop:
        """The loop with what became of its body: outputs correspond by their place; unread captures are dropped."""
        renamed = dict(zip(self.body.outputs, body.outputs, strict=True))
        carried = tuple(replace(each, following=renamed[each.following]) for each in self.carried)
        stacked = tuple(replace(each, part=renamed[each.part]) for each in self.stacked)
        return loop_of(self.name, self.trips, body.nodes, body.loops, body.constants, self.sliced, carried, stacked)

    def taking(self, constants: Mapping[str, np.ndarray[Any, Any]]) -> Loop:
        """The loop with those of these constants that its body reads as constants of the body."""
        taken = {tensor.name: constants[tensor.name] for tensor in self.captured() if tensor.name in constants}
        if not taken:
            return self
        body = replace(
            self.body,
            inputs=tuple(tensor for tensor in self.body.inputs if tensor.name not in taken),
            constants={**self.body.constants, **taken},
        )
        loops = tuple(loop.taking(body.constants) for loop in body.loops)
        return replace(self, body=replace(body, loops=loops))


def results_of(carried: Sequence[Carried], stacked: Sequence[Stacked]) -> tuple[Tensor, ...]:
    """The outputs of the body of a loop."""
    return tuple(dict.fromkeys((*(each.following for each in carried), *(each.part for each in stacked))))


def loop_of(
    name: str,
    trips: int,
    nodes: Sequence[Compute],
    loops: Sequence[Loop],
    constants: Mapping[str, np.ndarray[Any, Any]],
    sliced: Sequence[Sliced],
    carried: Sequence[Carried],
    stacked: Sequence[Stacked],
) -> Loop:
    """The loop over these nodes and loops; what they read and nothing inside defines is captured."""
    own = (*(each.part for each in sliced), *(each.state for each in carried))
    inside = {tensor.name for tensor in own} | {node.name for node in nodes} | set(constants)
    inside |= {tensor.name for loop in loops for tensor in loop.outputs()}
    outputs = results_of(carried, stacked)
    steps: tuple[Compute | Loop, ...] = (*nodes, *loops)
    read = dict.fromkeys((*(tensor for step in steps for tensor in step.inputs()), *outputs))
    captured = [tensor for tensor in read if tensor.name not in inside]
    body = Graph((*own, *captured), outputs, tuple(nodes), constants, name, tuple(loops))
    return Loop(name, trips, body, tuple(sliced), tuple(carried), tuple(stacked))


class GraphBuilder:
    """Collects nodes with unique names; what frontends and the operator library build graphs with.

    Its tensors know it while it exists (`Tensor.builder`), so that operators and builders need not be told. After
    `finish` nothing can be added.
    """

    def __init__(self, name: str = "main") -> None:
        self.name = name
        self.finished = False
        self.inputs: list[Tensor] = []
        self.nodes: list[Compute] = []
        self.loops: list[Loop] = []
        self.constants: dict[str, np.ndarray[Any, Any]] = {}
        self._taken: set[str] = set()
        self._loop_names: set[str] = set()

    def unique(self, hint: str) -> str:
        """`hint`, or `hint.1`, `hint.2`, … if it is taken."""
        return claim(hint, self._taken)

    def input(self, name: str, shape: tuple[int, ...], dtype: dtypes.DTypeLike) -> Tensor:
        """A new input. Raises InvalidExpression for a name that is taken: callers give inputs by name."""
        self.check_open(name)
        tensor = Tensor(name, shape, dtype)
        if name in self._taken:
            raise InvalidExpression(f"a tensor is called {name!r} already", where=self.name, help="another name")
        self._taken.add(name)
        self.inputs.append(tensor)
        return tensor.bind(self)

    def constant(self, array: np.ndarray[Any, Any], hint: str = "const") -> Tensor:
        self.check_open(hint)
        if not isinstance(array, np.ndarray | np.generic):
            fact = f"constant {hint!r} is a {type(array).__name__}"
            raise InvalidExpression(fact, where=self.name, help="a NumPy array")
        contiguous = np.ascontiguousarray(array).reshape(array.shape)
        tensor = Tensor(self.unique(hint), array.shape, dtypes.from_numpy(array.dtype))
        self.constants[tensor.name] = contiguous
        return tensor.bind(self)

    def add(self, compute: Compute) -> Tensor:
        """Append a compute whose output name is already unique (see `unique`); returns its output."""
        self.check_open(compute.name)
        self.nodes.append(compute)
        return compute.output.bind(self)

    def check_open(self, where: str) -> None:
        """Raise InvalidExpression, at the operator `where`, if the graph is finished."""
        if self.finished:
            help = "add every operator before `finish`, or build another graph"
            raise InvalidExpression(f"graph {self.name!r} is finished", where=where, help=help)

    def loop(
        self,
        name: str,
        trips: int,
        sliced: Sequence[tuple[Tensor, bool]],
        initial: Sequence[Tensor],
        body: Callable[[Sequence[Tensor], Sequence[Tensor]], tuple[Sequence[Tensor], Sequence[tuple[Tensor, bool]]]],
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Append a loop; returns the final states and the stacked results.

        `sliced` are tensors of which trip t reads row t, and whether backwards; `initial` the first states. `body`
        gets the slices and the states, adds the nodes of one trip, and returns the states that follow, and what to
        stack, each with whether backwards. What it raises leaves the builder as it was.
        """
        self.check_open(name)
        name = claim(name, self._loop_names)  # a tensor may have it too
        parts = [
            Sliced(self._new(f"{name}.slice", whole.shape[1:], whole.dtype), whole, backwards)
            for whole, backwards in sliced
        ]
        states = [self._new(f"{name}.state", first.shape, first.dtype) for first in initial]
        nodes, loops = self.nodes, self.loops
        self.nodes, self.loops = [], []
        try:
            following, rows = body([each.part for each in parts], states)
            carried = [
                Carried(state, first, after, self._new(f"{name}.final", state.shape, state.dtype))
                for state, first, after in zip(states, initial, following, strict=True)
            ]
            stacked: list[Stacked] = []
            for row, backwards in rows:
                part = self._copied(row) if any(row == each.part for each in stacked) else row
                whole = self._new(f"{name}.stacked", (trips, *row.shape), row.dtype)
                stacked.append(Stacked(part, whole, backwards))
            made = loop_of(name, trips, self.nodes, self.loops, {}, parts, carried, stacked)
        finally:
            self.nodes, self.loops = nodes, loops
        self.loops.append(made)
        return [each.final for each in carried], [each.whole for each in stacked]

    def _copied(self, tensor: Tensor) -> Tensor:
        copied = self._new(f"{tensor.name}.copy", tensor.shape, tensor.dtype)
        return self.add(copy_of(tensor, copied))

    def _new(self, hint: str, shape: Sequence[Extent], dtype: dtypes.DType) -> Tensor:
        return Tensor(self.unique(hint), tuple(shape), dtype).bind(self)

    def finish(self, outputs: Sequence[Tensor]) -> Graph:
        """The graph with these outputs. Raises InvalidExpression for none, and for what no node here writes.

        Nothing can be added afterwards; the same nodes can be finished again, with other outputs.
        """
        if isinstance(outputs, Tensor) or not isinstance(outputs, Sequence):
            fact = f"outputs are a {type(outputs).__name__}"
            raise InvalidExpression(fact, where=self.name, help="a list of tensors: [y]")
        for output in outputs:
            if not isinstance(output, Tensor):
                raise InvalidExpression(f"an output is {output!r}", where=self.name, help="tensors of this builder")
        graph = Graph(
            tuple(self.inputs), tuple(outputs), tuple(self.nodes), dict(self.constants), self.name, tuple(self.loops)
        )
        self.finished = True
        return graph.closed(graph.opened(), graph.loops) if graph.loops else graph
