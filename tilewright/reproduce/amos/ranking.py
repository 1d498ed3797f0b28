"""Claims E5 and E6 on this CPU: does the model order schedules as measurements do?

For every layer C0 to C11 of ResNet-18, f32, batch 1, one thread: points drawn uniformly from the space of schedules,
seed 0, none left out; each is compiled and its kernel timed, and predicted from the calibrated machine. The outer loops
come from a plain space of register tiles, orders and blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tilewright.compiler.compile import build
from tilewright.compiler.plan import make_plan
from tilewright.compiler.planning import ChooseProduct
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import conv
from tilewright.instruction.intrinsic import Intrinsic
from tilewright.instruction.model import Hierarchy, hierarchy
from tilewright.instruction.product_cost import ProductCost
from tilewright.instruction.ranking import accuracy_compat, accuracy_strict, noise_of, recall, recall_of
from tilewright.machine import Cpu, host
from tilewright.operator.contraction import Contraction, ContractionSchedule
from tilewright.operator.product_space import ProductPoint, ProductSpace
from tilewright.options import Options
from tilewright.reproduce.amos.layers import named_layers
from tilewright.reproduce.amos.operators import Configuration
from tilewright.reproduce.experiment import Claim, Table, pinned, positive
from tilewright.reproduce.pictures import Bars, Curves, Picture, Points, Scatter
from tilewright.runtime.calibrate import calibrated, measurable
from tilewright.runtime.module import Module

POINTS = 100  # per layer
SEED = 0
REPEATS = 7  # runs of a kernel, whose median is one timing
TIMINGS = 5  # of each point: the least counts, their spread is the noise
RECALLS = (0.3, 0.4)
PUBLISHED = ((0.3, 0.80), (0.4, 0.914))  # recalls
COMPAT, STRICT, RECALL = 0.80, 0.75, 0.80  # at least, of the means
_RESULT = "y"  # name of the product, hence of its kernel


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
        recalls = [float(np.mean([layer.recall(x) for layer in self.layers])) for x in RECALLS]
        return (
            Claim("spec3-E5", "ranking accuracy of the model", "85.69 %",
                  f"compat {compat:.3f}, strict {strict:.3f} (means of layers)", compat >= COMPAT and strict >= STRICT),
            Claim("spec3-E6", "recall of the best 40 % (30 %)", "91.4 % (above 80 %)",
                  f"{recalls[1]:.3f} ({recalls[0]:.3f})", recalls[1] >= RECALL),
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
            "claims": [asdict(claim) for claim in self.claims],
        }  # fmt: skip


def report(points: int = POINTS, layers: Sequence[str] = ()) -> Report:
    """Measure `points` schedules of the named layers (default: all); about a quarter of a second each."""
    chosen = named_layers(layers)
    with pinned():
        calibration = calibrated()
        machine = hierarchy(calibration, cores=1)
        found = [measure(name, each, machine, points) for name, each in chosen.items()]
    return Report(f"{calibration.llvm.cpu}, one thread", tuple(found))


def measure(name: str, configuration: Configuration, machine: Hierarchy, points: int, seed: int = SEED) -> Layer:
    """Compile, time and predict schedules of one layer."""
    graph, image = _layer(configuration)
    target = host()
    spaces: list[ProductSpace] = []
    make_plan(graph, target, 1, choose=ChooseProduct(point=lambda space, _: spaces.append(space)))
    (space,) = spaces
    found = tuple(_point(graph, image, point, target, machine) for point in space.sample(points, seed))
    return Layer(name, len(space), found)


def _layer(configuration: Configuration) -> tuple[Graph, np.ndarray[Any, Any]]:
    """A convolution with constant weights, and an image for it."""
    sizes = configuration.sizes
    c, k, size, kernel = (sizes[name] for name in ("c", "k", "size", "kernel"))
    generator = np.random.default_rng(SEED)
    b = GraphBuilder(configuration.operator)
    image = generator.standard_normal((sizes["batch"], c, size, size), np.float32)
    x = b.input("x", image.shape, "f32")
    w = b.constant(generator.standard_normal((k, c, kernel, kernel), np.float32), "w")
    y = conv.conv(b, x, w, strides=sizes["stride"], pads=sizes["pad"], name=_RESULT)
    return b.finish([y]), image


def _point(graph: Graph, image: np.ndarray[Any, Any], point: ProductPoint, target: Cpu, machine: Hierarchy) -> Point:
    choice = ChooseProduct(point=lambda space, name: point)
    kernels = make_plan(graph, target, 1, choose=choice).kernels
    ((name, work),) = [(each.name, each.work) for each in kernels if isinstance(each.work, Contraction)]
    (schedule,) = [each.schedule for each in kernels if isinstance(each.schedule, ContractionSchedule)]
    predicted = ProductCost(work, _record(target), machine).predict(schedule).seconds
    module = Module(build(graph, target, 1, Options(cache=False), choose=choice), threads=1)
    return Point(str(point), tuple(_timings(module, image, name)), predicted)


def _timings(module: Module, image: np.ndarray[Any, Any], kernel: str) -> Iterator[float]:
    for _ in range(TIMINGS):
        yield next(each.seconds for each in module.profile(image, repeats=REPEATS) if each.kernel == kernel)


def _record(target: Cpu) -> Intrinsic:
    """The multiply-add of f32 vectors that this machine was measured with."""
    return next(record for record in measurable(target) if {each.dtype for each in record.operands} == {"f32"})
