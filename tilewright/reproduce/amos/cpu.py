"""Claims E9 to E13 on this CPU: what the joint choice of mapping and tiling is worth, on ResNet-18's layers C0 to C11.

E9: the joint search against the same search with the mapping fixed, against a materialised matrix product, and against
code without any intrinsic. E10: the same layers with channels innermost. E11: how many kinds of mapping are chosen
where the search begins nowhere, which is that of E10. E12: u8 x s8 layers against a template that is fixed to filters
as vector and groups of channels. E13: dot products of Arm processors, by emulation and the model, without a device.

One thread, one core, batch 1 unless asked otherwise. The outer loops come from a plain space of register tiles, orders
and blocks. The joint search begins at the point that the search with a fixed mapping found. What is compared is timed
again in turns at the end, and medians are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from math import exp, inf, log
from statistics import median
from typing import Any

import numpy as np

from tilewright.compiler.compile import build
from tilewright.compiler.joint import candidates, default_choice, replay
from tilewright.compiler.plan import ChooseProduct
from tilewright.dataclass import dataclass
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import conv, shape
from tilewright.instruction.mapping import Mapping, mapping_of, mappings
from tilewright.instruction.matching import match
from tilewright.instruction.model import Hierarchy, hierarchy
from tilewright.instruction.physical import physical
from tilewright.instruction.products import MappedProduct
from tilewright.instruction.relayout import apply_mappings, call, fold_constants
from tilewright.instruction.search import Choice, Found, search
from tilewright.instruction.validation import judge
from tilewright.intrinsics.composite import outer
from tilewright.intrinsics.registry import Registry, standard
from tilewright.machine import Cpu, host
from tilewright.options import Options
from tilewright.reproduce.amos.layers import named_layers
from tilewright.reproduce.amos.operators import CONFIGURATIONS, Configuration
from tilewright.reproduce.claim import NOT_STATED, Claim, Comparison
from tilewright.reproduce.experiment import Table, pinned, positive
from tilewright.reproduce.pictures import Bars, Picture
from tilewright.runtime.calibrate import calibrated
from tilewright.runtime.module import Module
from tilewright.search.rounds import LEAST_GAIN

TRIALS = 416  # points drawn per search
GROUP, RATIO = 32, 1 / 32  # drawn at a time, and the part of it that is measured: the one that is predicted to be best
SEED = 0
REPEATS = 5  # runs of a module, whose medians per kernel make one timing
TIMINGS = 2  # of each point of a search: the least counts
TURNS = 15  # of the comparison at the end: the median counts
NOISE = 0.03  # differences below this are not told apart
VECTORS = 4  # registers of a row in the materialised product: its panels are as wide as those of the best outer product
KINDS = 4  # of mappings, at least, over the layers
ALIKE = 1.3  # times, at most, between layouts
MEAN_GAIN = 1.2  # over the template, at least, as geometric mean of the layers
GAIN = 1.1  # over it, at least, on the layer with three channels
RESULT = "y"  # name of the convolution
SPACE = "Outer loops: a plain space of register tiles, orders and blocks of the sum, until tile trees supply them."


@dataclass(frozen=True)
class Contender:
    """One way to run a layer: its median seconds, its mapping (empty without one), and the search that found it."""

    name: str
    seconds: float
    mapping: str = ""
    found: Found | None = None

    def to_json(self) -> dict[str, Any]:
        search = None if self.found is None else self.found.to_json()
        return {"name": self.name, "seconds": self.seconds, "mapping": self.mapping, "search": search}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Contender:
        found = None if value["search"] is None else Found.from_json(value["search"])
        return cls(str(value["name"]), positive(value["seconds"]), str(value["mapping"]), found)


@dataclass(frozen=True)
class Layer:
    """The contenders of one layer by name."""

    name: str
    contenders: dict[str, Contender]

    def gain(self, one: str, other: str) -> float:
        """How many times faster the first is."""
        return self.contenders[other].seconds / self.contenders[one].seconds

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "contenders": [each.to_json() for each in self.contenders.values()]}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Layer:
        contenders = map(Contender.from_json, value["contenders"])
        return cls(str(value["name"]), {each.name: each for each in contenders})


@dataclass(frozen=True)
class Dot:
    """A layer on a dot product, without a device: mappings, how many were right in emulation, and the model's ratio."""

    operator: str
    layer: str
    record: str
    mappings: int
    right: int
    best: str
    ratio: float

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Dot:
        ratio = inf if value["ratio"] is None else positive(value["ratio"])  # null: no mapping was right
        return cls(
            str(value["operator"]), str(value["layer"]), str(value["record"]), int(value["mappings"]),
            int(value["right"]), str(value["best"]), ratio,
        )  # fmt: skip


JOINT, NHWC, UNIT, MATRIX, NONE = "joint", "NHWC", "(pq|k|c)", "(npq|k|crs)", "no intrinsic"
TEMPLATE = "template"


@dataclass(frozen=True)
class Report:
    """All layers on one machine: f32, u8 x s8, and dot products in emulation."""

    machine: str
    batch: int
    floats: tuple[Layer, ...]
    integers: tuple[Layer, ...]
    dots: tuple[Dot, ...]

    @property
    def tables(self) -> tuple[Table, ...]:
        found = f"{self.machine}, one thread, batch {self.batch}"
        fixed = (UNIT, MATRIX, NONE)
        rows = [
            (layer.name, layer.contenders[JOINT].mapping, _us(layer, JOINT), *(_us(layer, name) for name in fixed),
             *(f"{layer.gain(JOINT, name):.2f}" for name in fixed))
            for layer in self.floats
        ]  # fmt: skip
        layouts = [
            (layer.name, layer.contenders[NHWC].mapping, _us(layer, NHWC), _us(layer, JOINT),
             f"{layer.gain(JOINT, NHWC):.2f}")
            for layer in self.floats
        ]  # fmt: skip
        integers = [
            (layer.name, layer.contenders[JOINT].mapping, _us(layer, JOINT), _us(layer, TEMPLATE),
             f"{layer.gain(JOINT, TEMPLATE):.3f}")
            for layer in self.integers
        ]  # fmt: skip
        dots = [
            (each.operator, each.layer, each.record, f"{each.right} of {each.mappings}", each.best, f"{each.ratio:.2f}")
            for each in self.dots
        ]
        return (
            Table(f"E9: microseconds of f32 layers on {found}",
                  {"layer": "left", "chosen": "left", "joint": "right", **dict.fromkeys(fixed, "right"),
                   **{f"/ {name}": "right" for name in ("pq", "npq", "none")}}, tuple(rows),
                  f"{SPACE} All kernels of a layer count, copies included. (pq|k|c): windows are loops around r1, sums "
                  "stay in registers, same search. (npq|k|crs): the image is expanded by a generated relayout, "
                  "same search. no intrinsic: the registry without products, by the rules."),
            Table("E10: channels innermost in input and output",
                  {"layer": "left", "chosen": "left", "NHWC": "right", "NCHW": "right", "ratio": "right"},
                  tuple(layouts)),
            Table("E12: microseconds of u8 x s8 layers",
                  {"layer": "left", "chosen": "left", "joint": "right", "template": "right", "gain": "right"},
                  tuple(integers),
                  "The template has filters as vector and groups of channels, packed; same tiling search. Without an "
                  "instruction for groups it has every sum in loops."),
            Table("E13: dot products of Arm processors, no device: emulated, and predicted at full rate",
                  {"operator": "left", "layer": "left", "record": "left", "right": "right", "best": "left",
                   "scalar / dot": "right"}, tuple(dots),
                  "A scalar multiply-add is taken to issue once per cycle; operands are where they are wanted."),
        )  # fmt: skip

    @property
    def pictures(self) -> tuple[Picture, ...]:
        return tuple(
            Bars(title, f"time over {y}", tuple(layer.name for layer in layers),
                 {name: tuple(layer.gain(JOINT, name) for layer in layers) for name in names}, levels, ratios=True)
            for title, y, layers, names, levels in (
                (f"E9: fixed mappings against the joint choice on {self.machine}, one thread, batch {self.batch}",
                 "that of the joint choice", self.floats, (UNIT, MATRIX, NONE), {}),
                ("E10: channels innermost against channels first", "that of channels first", self.floats, (NHWC,),
                 {f"≤ {ALIKE}": ALIKE}),
                ("E12: the template against the joint choice, u8 x s8", "that of the joint choice", self.integers,
                 (TEMPLATE,), {f"≥ {1 - NOISE}": 1 - NOISE, f"C0 ≥ {GAIN}": GAIN}),
            )
        )  # fmt: skip

    @property
    def claims(self) -> tuple[Claim, ...]:
        return (*self._float_claims(), *self._integer_claims(), *self._dot_claims())

    def _float_claims(self) -> Iterator[Claim]:
        if not self.floats:
            return
        device = "the publication ran it on an A100, which is not here"
        for other, gain in (("Ansor", 1.79), ("AutoTVM-Expert", 1.30), ("UNIT", 4.96)):
            yield _times("spec3-E9", f"gain over {other}", f"{gain:.2f}x", None, gain, ">=", device)
        for name in (UNIT, MATRIX, NONE):
            gains = [layer.gain(JOINT, name) for layer in self.floats]
            reason = (f"stands in for other compilers, same search on {self.machine}; geometric mean "
                      f"{_mean(gains):.2f}x, least on {_least(self.floats, gains)}; {NOISE:.0%} are noise")  # fmt: skip
            yield _times("spec3-E9", f"least gain over {name}", NOT_STATED, min(gains), 1 - NOISE, ">=", reason)
        yield _times("spec3-E10", "gain over AutoTVM in NHWC", "2.83x", None, 2.83, ">=", device)
        ratios = [layer.gain(JOINT, NHWC) for layer in self.floats]
        reason = f"time of NHWC over NCHW on {self.machine}, at least {min(ratios):.2f}x"
        yield _times("spec3-E10", "most that NHWC takes of NCHW", NOT_STATED, max(ratios), ALIKE, "<=", reason)
        kinds, stayed = (sorted({layer.contenders[name].mapping for layer in self.floats}) for name in (NHWC, JOINT))
        reason = (
            f"published of an A100; {', '.join(kinds)} by the search that begins nowhere (NHWC); {', '.join(stayed)} "
            f"where it begins at a fixed mapping and leaves that for {LEAST_GAIN:.0%}"
        )
        count, every = len(self.floats), len(named_layers())
        subject = f"kinds of mapping chosen{'' if count == every else f', {count} of {every} layers run'}"
        yield Claim(
            "spec3-E11", subject, f"8 of {every}", len(kinds), min(KINDS, count), ">=", reason, unit=f" of {count}"
        )

    def _integer_claims(self) -> Iterator[Claim]:
        if not self.integers:
            return
        gains = [layer.gain(JOINT, TEMPLATE) for layer in self.integers]
        stays = sum(x.contenders[JOINT].mapping == x.contenders[TEMPLATE].mapping for x in self.integers)
        reason = (
            "the template here is ours, with the same search of tiles, not TVM's; the joint choice begins at it and "
            f"stays with its mapping on {stays} of {len(self.integers)} layers"
        )
        yield _times("spec3-E12", "mean gain over the template", "1.37x", _mean(gains), MEAN_GAIN, ">=", reason)
        reason = f"published slower on C2; least on {_least(self.integers, gains)}; {NOISE:.0%} are noise"
        yield _times("spec3-E12", "least gain over it", NOT_STATED, min(gains), 1 - NOISE, ">=", reason)
        for layer in self.integers:
            if layer.name == "C0":
                reason = "three channels: groups of four leave a quarter of the template's products empty"
                yield _times("spec3-E12", "gain over it on C0", NOT_STATED, layer.gain(JOINT, TEMPLATE), GAIN, ">=",
                             reason)  # fmt: skip

    def _dot_claims(self) -> Iterator[Claim]:
        if not self.dots:
            return
        kinds = dict.fromkeys((each.record, each.operator) for each in self.dots)
        predicted = ", ".join(
            f"{operator} on {record} "
            f"{_mean([each.ratio for each in self.dots if (each.record, each.operator) == (record, operator)]):.2f}x"
            for record, operator in kinds
        )
        yield _times("spec3-E13", "gain over AutoTVM on Mali G76", "up to 25.04x", None, 25.04, ">=",
                     f"there is no such device here; the model predicts {predicted} over scalar code")  # fmt: skip
        wrong = sum(each.mappings - each.right for each in self.dots)
        yield Claim("spec3-E13", "wrong mappings in emulation", NOT_STATED, wrong, 0, "=",
                    f"of {sum(each.mappings for each in self.dots)}, by records of Arm's dot products")  # fmt: skip

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Report:
        floats, integers = (tuple(map(Layer.from_json, value[key])) for key in ("f32", "u8s8"))
        if not floats or not integers:
            raise ValueError("no layers")
        found = tuple(map(Dot.from_json, value["dots"]))
        return cls(str(value["machine"]), int(value["batch"]), floats, integers, found)

    def to_json(self) -> dict[str, Any]:
        return {
            "machine": self.machine, "batch": self.batch, "threads": 1, "space": SPACE,
            "f32": [layer.to_json() for layer in self.floats], "u8s8": [layer.to_json() for layer in self.integers],
            "dots": [asdict(each) for each in self.dots],
            "claims": [claim.to_json() for claim in self.claims],
        }  # fmt: skip


def report(layers: Sequence[str] = (), trials: int = TRIALS, batch: int = 1) -> Report:
    """Run the claims on the named layers (default: all); `trials` points are drawn per search."""
    chosen = named_layers(layers, batch)
    with pinned():
        bench = _Bench(host(), hierarchy(calibrated(), cores=1), trials)
        floats = tuple(bench.floats(name, each) for name, each in chosen.items())
        integers = tuple(bench.integers(name, each) for name, each in chosen.items())
    return Report(f"{host().llvm.cpu}", batch, floats, integers, dots(chosen))


def _us(layer: Layer, name: str) -> str:
    return f"{layer.contenders[name].seconds * 1e6:.1f}"


def _times(
    name: str, subject: str, published: str, ours: float | None, bar: float, comparison: Comparison, reason: str
) -> Claim:
    """A claim about a ratio of times."""
    return Claim(name, subject, published, ours, bar, comparison, reason, unit="x", form=".2f")


def _least(layers: Sequence[Layer], gains: Sequence[float]) -> str:
    """The layer with the least gain."""
    return min(zip(gains, (layer.name for layer in layers), strict=True))[1]


def _mean(values: Sequence[float]) -> float:
    return exp(sum(log(value) for value in values) / len(values))


# E9 to E12: measured ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Entry:
    """What will run in the comparison."""

    name: str
    module: Module
    inputs: np.ndarray[Any, Any]
    mapping: str = ""
    found: Found | None = None


@dataclass(frozen=True)
class _Bench:
    """Searches and times layers on one machine."""

    machine: Cpu
    model: Hierarchy
    trials: int

    def floats(self, name: str, configuration: Configuration) -> Layer:
        graph, image = layer_graph(configuration, "f32", "f32")
        last, image_last = layer_graph(configuration, "f32", "f32", channels_last=True)
        pixels = {axis.name for axis in graph.producers()[RESULT].axes[2:]}
        fixed = self._searched(UNIT, graph, image, keep=lambda each: _rows(each) == pixels and _constant(graph, each))
        entries = [
            self._searched(JOINT, graph, image, start=fixed.found),
            fixed,
            self._materialised(graph, image),
            self._plain(graph, image),
            self._searched(NHWC, last, image_last),
        ]
        return Layer(name, _in_turns(entries))

    def integers(self, name: str, configuration: Configuration) -> Layer:
        graph, image = layer_graph(configuration, "u8", "i8")

        def template(each: MappedProduct) -> bool:
            grouped = any(loop.kind == "R" for loop in standard().find(each.instruction).loops)
            sums = [axis for axis in each.mapping.sets[2] if axis.extent != 1]
            return _constant(graph, each) and (not grouped or len(sums) <= 1)

        fixed = self._searched(TEMPLATE, graph, image, keep=template)
        entries = [self._searched(JOINT, graph, image, start=fixed.found), fixed]
        return Layer(name, _in_turns(entries))

    def _searched(
        self, name: str, graph: Graph, image: np.ndarray[Any, Any], node: str = RESULT,
        keep: Callable[[MappedProduct], bool] = lambda _: True, mapping: str = "", start: Found | None = None,
    ) -> _Entry:  # fmt: skip
        """The best point of all mappings that `keep` accepts, from what `start` found or the rules' choice on."""
        among = candidates(graph, node, self.machine, self.model, keep=keep)
        compiled: dict[Choice, Module] = {}

        def measure(choice: Choice) -> float:
            if choice not in compiled:
                compiled[choice] = self._module(graph, replay({node: choice}))
            return min(_seconds(compiled[choice], image) for _ in range(TIMINGS))

        found = search(
            among, measure, subject=f"product {node}", trials=self.trials, group=GROUP, ratio=RATIO, seed=SEED,
            first=start.best.choice if start is not None else default_choice(graph, node, self.machine, among),
        )  # fmt: skip
        best = found.best.choice
        return _Entry(name, compiled[best], image, mapping or _letters(graph, node, compiled[best]), found)

    def _materialised(self, graph: Graph, image: np.ndarray[Any, Any]) -> _Entry:
        """The product of matrices that one mapping makes of a convolution: its relayouts expand the image."""
        node = graph.producers()[RESULT]
        best = candidates(graph, RESULT, self.machine, self.model, keep=lambda each: _constant(graph, each))[0]
        record = outer(standard().find(best.mapping.instruction), 1, VECTORS)
        (found,) = match(node, record)
        batch, filters, *pixels = (axis.name for axis in node.axes)
        whole = physical(mapping_of(found, [[batch, *pixels], [filters], [axis.name for axis in node.reduce]]))
        mapped = fold_constants(apply_mappings(graph, {RESULT: whole}))
        packed = call(whole).name
        return self._searched(MATRIX, mapped, image, packed, keep=lambda each: _constant(mapped, each), mapping=MATRIX)

    def _plain(self, graph: Graph, image: np.ndarray[Any, Any]) -> _Entry:
        """Without the records of products: vector code, by the rules."""
        registry = standard().without(*(each.name for each in standard() if each.realised_by))
        return _Entry(NONE, self._module(graph, None, registry), image)

    def _module(self, graph: Graph, choose: ChooseProduct | None, intrinsics: Registry | None = None) -> Module:
        options = Options(cache=False) if intrinsics is None else Options(cache=False, intrinsics=intrinsics)
        return Module(build(graph, self.machine, 1, options, choose=choose), threads=1)


def layer_graph(
    configuration: Configuration, image_type: str, weight_type: str, *, channels_last: bool = False
) -> tuple[Graph, np.ndarray[Any, Any]]:
    """A convolution with constant weights, and an image for it; channels are innermost where asked."""
    sizes = configuration.sizes
    c, k, size, kernel = (sizes[name] for name in ("c", "k", "size", "kernel"))
    generator = np.random.default_rng(SEED)

    def values(dtype: str, *extents: int) -> np.ndarray[Any, Any]:
        if dtype == "f32":
            return generator.standard_normal(extents, np.float32)
        kind = np.dtype({"u8": "uint8", "i8": "int8"}[dtype])
        limits = np.iinfo(kind)
        return generator.integers(limits.min, limits.max + 1, extents, kind)

    b = GraphBuilder(configuration.operator)
    image = values(image_type, sizes["batch"], c, size, size)
    x = b.input("x", image.transpose(0, 2, 3, 1).shape if channels_last else image.shape, image_type)
    inside = shape.transpose(x, (0, 3, 1, 2), name="x.nchw") if channels_last else x
    w = b.constant(values(weight_type, k, c, kernel, kernel), "w")
    integer = None if image_type == "f32" else "i32"
    y = conv.conv(inside, w, strides=sizes["stride"], pads=sizes["pad"], accumulate=integer, out_dtype=integer,
                  name=RESULT)  # fmt: skip
    if not channels_last:
        return b.finish([y]), image
    return b.finish([shape.transpose(y, (0, 2, 3, 1), name="y.nhwc")]), np.ascontiguousarray(
        image.transpose(0, 2, 3, 1)
    )


def _rows(product: MappedProduct) -> set[str]:
    return {axis.name for axis in product.mapping.sets[0]}


def _constant(graph: Graph, product: MappedProduct) -> bool:
    """Whether vectors are those of a constant, or of what a constant is converted to (`widen-factors`)."""
    return any(f"{product.b.tensor.name}.".startswith(f"{name}.") for name in graph.constants)


def _letters(graph: Graph, node: str, module: Module) -> str:
    """The mapping that a module runs a convolution with, in the letters n, k, p, q, c, r, s."""
    loops = module.artifact.stored_plan().products[node]["loops"]
    names = dict(zip((axis.name for axis in graph.producers()[node].loops), "nkpqcrs", strict=True))
    return f"({'|'.join(''.join(sorted(names[name] for name in part)) for part in loops)})"


def _seconds(module: Module, image: np.ndarray[Any, Any]) -> float:
    return sum(each.seconds for each in module.profile(image, repeats=REPEATS))


def _in_turns(entries: Sequence[_Entry]) -> dict[str, Contender]:
    """Median seconds of each, timed one after the other in several turns."""
    timings: dict[str, list[float]] = {entry.name: [] for entry in entries}
    for _ in range(TURNS):
        for entry in entries:
            timings[entry.name].append(_seconds(entry.module, entry.inputs))
    return {
        entry.name: Contender(entry.name, median(timings[entry.name]), entry.mapping, entry.found) for entry in entries
    }


# E13: no device -----------------------------------------------------------------------------------------------------

DOTS = ("arm_dot_4_s8_s32", "sdot_4x4_s8_s32")


def dots(layers: dict[str, Configuration]) -> tuple[Dot, ...]:
    """Every mapping of the convolutions and depthwise convolutions onto dot products, run in emulation."""
    shapes = [("C2D", name, each) for name, each in layers.items()]
    shapes += [("DEP", f"D{number}", each) for number, each in enumerate(CONFIGURATIONS["DEP"])]
    return tuple(
        found
        for operator, name, each in shapes
        for record in DOTS
        if (found := _dot(operator, name, each, record)) is not None
    )


def _dot(operator: str, name: str, configuration: Configuration, record_name: str) -> Dot | None:
    """None where the record has no mapping."""
    record = standard().find(record_name)
    graph = configuration.graph("i8")
    node = [each for each in graph.nodes if each.accum == "sum"][-1]
    offered: list[Mapping] = list(mappings(node, record))
    right = [each for each in offered if judge(each, differential=True).refusal is None]
    if not offered:
        return None
    macs = 1
    for axis in node.loops:
        macs *= int(axis.extent)  # type: ignore[arg-type]
    cycles = {each: physical(each).calls * record.cost.issue_cycles for each in right}
    best = min(cycles, key=lambda each: cycles[each], default=None)
    ratio = macs / cycles[best] if best is not None else inf
    return Dot(operator, name, record.name, len(offered), len(right), "" if best is None else str(best), ratio)
