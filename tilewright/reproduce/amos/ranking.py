"""Claims E5 and E6 on this CPU: does the model order schedules as measurements do?

For every layer C0 to C11 of ResNet-18, f32, batch 1, one thread: points drawn uniformly from the space of schedules,
seed 0, none left out, the spaces of all mappings taken together; each is compiled and its kernels timed, and predicted
from the calibrated machine. The outer loops come from a plain space of register tiles, orders and blocks.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any

import numpy as np

from tilewright.compiler.compile import build
from tilewright.compiler.joint import candidates, replay
from tilewright.dataclass import dataclass
from tilewright.expr.graph import Graph
from tilewright.instruction.model import Hierarchy, hierarchy
from tilewright.instruction.ranking import accuracy_compat, accuracy_strict, noise_of, recall, recall_of
from tilewright.instruction.search import Candidate, Choice
from tilewright.machine import Cpu, host, resolve_cpu
from tilewright.machine.detect import host_limited_to
from tilewright.operator.product_point import ProductPoint
from tilewright.options import Options
from tilewright.reproduce.amos.cpu import RESULT, layer_graph
from tilewright.reproduce.amos.layers import named_layers
from tilewright.reproduce.amos.operators import Configuration
from tilewright.reproduce.claim import NOT_STATED, Claim
from tilewright.reproduce.experiment import Table, pinned, positive
from tilewright.reproduce.pictures import Bars, Curves, Picture, Points, Scatter
from tilewright.runtime.calibrate import calibrated
from tilewright.runtime.module import Module

POINTS = 100  # per layer
SEED = 0
REPEATS = 5  # runs of a kernel, whose median is one timing
TIMINGS = 12  # of each point, in as many rounds over all points, so that a slow minute of the machine hits none of them
# alone: the least counts, their spread is the noise
RECALLS = (0.3, 0.4)
PUBLISHED = ((0.3, 0.80), (0.4, 0.914))  # recalls
COMPAT, STRICT, RECALL = 0.80, 0.75, 0.80  # at least, of the means


@dataclass(frozen=True)
class Point:
    """One schedule: seconds of each timing of its kernel, and the prediction."""

    text: str
    timings: tuple[float, ...]
    predicted: float

    @property
    def measured(self) -> float:
        return min(self.timings)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Point:
        return cls(str(value["text"]), tuple(map(positive, value["timings"])), positive(value["predicted"]))


@dataclass(frozen=True)
class Layer:
    """One layer: its points, and how well the prediction orders them."""

    name: str
    space: int
    points: tuple[Point, ...]

    @property
    def compat(self) -> float:
        return accuracy_compat(self._measured, self._predicted)

    @property
    def strict(self) -> float:
        noise = noise_of([point.timings for point in self.points])
        return accuracy_strict(self._measured, self._predicted, noise)

    def recall(self, fraction: float) -> float:
        return recall(self._measured, self._predicted, fraction)

    @property
    def recalls(self) -> Points:
        """Recall of every fraction of the points that there is."""
        count = len(self.points)
        return tuple((k / count, recall_of(self._measured, self._predicted, k)) for k in range(1, count + 1))

    @property
    def error(self) -> float:
        """Median of the relative errors of the predictions."""
        return float(np.median(np.abs(np.array(self._predicted) / np.array(self._measured) - 1)))

    @property
    def loss(self) -> float:
        """What is lost by taking the point that is predicted to be best, over the best."""
        return self._measured[int(np.argmin(self._predicted))] / min(self._measured) - 1

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Layer:
        return cls(str(value["name"]), int(value["space"]), tuple(map(Point.from_json, value["points"])))

    @property
    def _measured(self) -> list[float]:
        return [point.measured for point in self.points]

    @property
    def _predicted(self) -> list[float]:
        return [point.predicted for point in self.points]


@dataclass(frozen=True)
class Report:
    """All layers on one machine."""

    machine: str
    layers: tuple[Layer, ...]

    @property
    def tables(self) -> tuple[Table, ...]:
        columns = ("points", "of", "compat", "strict", *(f"recall {x:.0%}" for x in RECALLS), "error", "loss of first")
        rows = tuple(
            (layer.name, str(len(layer.points)), str(layer.space), f"{layer.compat:.3f}", f"{layer.strict:.3f}",
             *(f"{layer.recall(x):.2f}" for x in RECALLS), f"{layer.error:.1%}", f"{layer.loss:.1%}")
            for layer in self.layers
        )  # fmt: skip
        return (Table(f"Predicted and measured order of schedules on {self.machine}",
                      {"layer": "left", **dict.fromkeys(columns, "right")}, rows),)  # fmt: skip

    @property
    def pictures(self) -> tuple[Picture, ...]:
        points = {
            layer.name: tuple((point.measured * 1e6, point.predicted * 1e6) for point in layer.points)
            for layer in self.layers
        }
        accuracies = {name: tuple(getattr(layer, name) for layer in self.layers) for name in ("compat", "strict")}
        return (
            Scatter(f"Schedules on {self.machine}", "measured, microseconds", "predicted, microseconds", points),
            Bars("E5: pairs of schedules that the model orders as measurements do", "part of all pairs",
                 tuple(points), accuracies, {f"compat ≥ {COMPAT}": COMPAT, f"strict ≥ {STRICT}": STRICT}),
            Curves("E6: the best by measurement among as many that are best by prediction", "best part of all",
                   "part of them found", {layer.name: layer.recalls for layer in self.layers},
                   {"published": PUBLISHED}, "random"),
        )  # fmt: skip

    @property
    def claims(self) -> tuple[Claim, ...]:
        compat, strict = (
            float(np.mean([getattr(layer, name) for layer in self.layers])) for name in ("compat", "strict")
        )
        best = float(np.mean([layer.recall(RECALLS[1]) for layer in self.layers]))
        reason = f"published of GPUs; the mean of layers on {self.machine}, whose bar is lower"
        percent: dict[str, Any] = {"unit": " %", "form": ".1f"}
        return (
            Claim("spec3-E5", "pairs of schedules in order", "85.69 %", 100 * compat, 100 * COMPAT, ">=", reason,
                  **percent),
            Claim("spec3-E5", "pairs further apart than noise", NOT_STATED, 100 * strict, 100 * STRICT, ">=", reason,
                  **percent),
            Claim("spec3-E6", "recall of the best 40 %", "91.4 %", 100 * best, 100 * RECALL, ">=", reason, **percent),
        )  # fmt: skip

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Report:
        layers = tuple(map(Layer.from_json, value["layers"]))
        if not layers:
            raise ValueError("no layers")
        return cls(str(value["machine"]), layers)

    def to_json(self) -> dict[str, Any]:
        return {
            "machine": self.machine,
            "layers": [
                {
                    "name": layer.name, "space": layer.space, "compat": layer.compat, "strict": layer.strict,
                    "recall": {str(x): layer.recall(x) for x in RECALLS}, "error": layer.error, "loss": layer.loss,
                    "points": [asdict(point) for point in layer.points],
                }
                for layer in self.layers
            ],
            "claims": [claim.to_json() for claim in self.claims],
        }  # fmt: skip


def report(points: int = POINTS, layers: Sequence[str] = (), machine: str | None = None) -> Report:
    """Measure `points` schedules of the named layers (default: all); about a quarter of a second each.

    With `machine` the host is limited to the features of that machine file.
    """
    chosen = named_layers(layers)
    target = host() if machine is None else host_limited_to(resolve_cpu(machine))
    with pinned():
        calibration = calibrated(machine=target)
        rates = hierarchy(calibration, cores=1)
        found = [measure(name, each, rates, points, target) for name, each in chosen.items()]
    limits = "" if machine is None else f" limited to {machine}"
    return Report(f"{calibration.llvm.cpu}{limits}, one thread", tuple(found))


def measure(
    name: str, configuration: Configuration, machine: Hierarchy, points: int, target: Cpu | None = None
) -> Layer:
    """Compile, time and predict schedules of one layer, drawn from those of all its mappings."""
    graph, image = layer_graph(configuration, "f32", "f32")
    target = target or host()
    among = candidates(graph, RESULT, target, machine, keep=lambda each: each.b.tensor.name in graph.constants)
    drawn = draw(among, points)
    modules = [_module(graph, Choice(candidate.mapping, point), target) for candidate, point in drawn]
    rounds = [[_seconds(module, image) for module in modules] for _ in range(TIMINGS)]
    found = tuple(
        Point(str(Choice(candidate.mapping, point)), tuple(timings), candidate.predict(point))
        for (candidate, point), *timings in zip(drawn, *rounds, strict=True)
    )
    return Layer(name, sum(len(each.points) for each in among), found)


def draw(among: Sequence[Candidate], count: int) -> list[tuple[Candidate, ProductPoint]]:
    """Points of the spaces of all mappings, drawn uniformly, each at most once."""
    ends = list(accumulate(len(each.points) for each in among))
    numbers = random.Random(SEED).sample(range(ends[-1]), min(count, ends[-1]))
    places = [(number, bisect_right(ends, number)) for number in numbers]
    return [(among[place], among[place].points[number - ends[place]]) for number, place in places]


def _module(graph: Graph, choice: Choice, target: Cpu) -> Module:
    return Module(build(graph, target, 1, Options(cache=False), choose=replay({RESULT: choice})), threads=1)


def _seconds(module: Module, image: np.ndarray[Any, Any]) -> float:
    return sum(each.seconds for each in module.profile(image, repeats=REPEATS))
