"""Who runs a network: Tilewright, torch as it is, torch.compile; each prepares first and is timed when its turn comes.

Preparing is what many processes may do at once; what `measure` does has the GPU to itself.
"""

from __future__ import annotations

import copy
import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from bench.gpu.clock import Clock
from bench.gpu.contenders import machine_of
from bench.gpu.networks.cases import Network
from bench.gpu.networks.results import COMPILED, EAGER, EAGER_GRAPH, OURS, OURS_GRAPH, Row
from bench.gpu.timing import record, sample

SAMPLE_SECONDS = 2e-3  # a sample is at least so long: a timestamp of the device has a resolution of about a microsecond
WORST = 4.0  # a result may have this many times the error of torch in f16 …
LEAST_BOUND = 2e-3  # … or this one, if that is more
ENQUEUED = 3  # calls: a stream holds about a thousand launches before the host waits
MOST_ROUNDS, ROUNDS_SECONDS = 20, 0.3  # of such calls, whose median is taken
PROFILED = 5  # calls

Report = Callable[[str], None]
Call = Callable[[], Any]


class Contender(ABC):
    """One network with one input on one device; `report` is called with the name of each step before it begins."""

    def __init__(self, network: Network, batch: int, device: str, torch: Any, clock: Clock, report: Report) -> None:
        self.network, self.batch, self.device, self.torch, self.clock = network, batch, device, torch, clock
        self.report = report
        self.rows: list[Row] = []

    @abstractmethod
    def prepare(self) -> None: ...

    @abstractmethod
    def measure(self, seconds: float) -> None: ...

    def _row(self, name: str) -> Row:
        row = Row(self.network.name, self.batch, name)
        self.rows.append(row)
        return row

    def _step(self, row: Row, name: str, work: Call) -> Any:
        """Do a step of the preparation, and note its time."""
        self.report(name)
        start = self.clock.now()
        found = work()
        row.steps[name] = self.clock.now() - start
        return found

    def _on_device(self, module: Any) -> Any:
        """The module as torch runs it fastest. The one that is given stays where it is."""
        form = {"memory_format": self.torch.channels_last} if self.network.channels_last else {}
        return copy.deepcopy(module).to(self.device, **form)

    def _input(self) -> Any:
        x = self.network.input(self.batch).to(self.device)
        return x.to(memory_format=self.torch.channels_last) if self.network.channels_last else x

    def _check(self, row: Row, module: Any, found: Any) -> bool:
        """Compare a result with that of torch in f64 with the same weights; whether it is right."""
        self.report("the reference in f64")
        x = self._input()
        with self.torch.no_grad():
            eager = module(x)
            wanted = copy.deepcopy(module).double()(x.double())
        scale = float(wanted.norm())
        row.error, usual = (float((each.double() - wanted).norm()) / scale for each in (found, eager))
        bound = max(WORST * usual, LEAST_BOUND)
        right = math.isfinite(row.error) and row.error <= bound
        row.status, row.note = ("ok", "") if right else ("wrong", f"error {row.error:.2g}, torch has {usual:.2g}")
        if not right:
            row.error = row.error if math.isfinite(row.error) else None
        return right

    def _time(self, row: Row, call: Call, seconds: float) -> None:
        """Times of calls that the host makes one after another, and of the host alone."""
        self.report(f"times of {row.contender}")
        call()
        once = max(self.clock.seconds(call), 1e-7)
        calls = max(1, math.ceil(SAMPLE_SECONDS / once))
        recorded = record(lambda number: call(), calls, self.clock, graph=False)
        (timing,) = sample(recorded, self.clock, max(0.05, seconds))
        row.seconds, row.low, row.high, row.samples = timing.seconds, timing.low, timing.high, timing.samples
        found = []
        for _ in range(min(MOST_ROUNDS, max(1, int(ROUNDS_SECONDS / timing.seconds)))):
            start = self.clock.now()
            for _ in range(ENQUEUED):
                call()
            found.append((time.perf_counter() - start) / ENQUEUED)
        row.host_seconds = sorted(found)[len(found) // 2]

    def _graph(self, row: Row, call: Call) -> Call:
        """The replay of a call that torch records as a CUDA graph."""
        self.report(f"recording of {row.contender}")
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        replay: Call = graph.replay
        return replay

    def _time_graph(self, of: Row, call: Call, name: str, seconds: float) -> None:
        """A second row: the same call, recorded."""
        if self.device != "cuda":
            return
        row = self._row(name)
        row.error, row.flops = of.error, of.flops
        try:
            replay = self._graph(row, call)
            self._time(row, replay, seconds)
            row.status = "ok"
        except Exception as error:  # whatever a contender does is a fact about it
            row.note = f"{type(error).__name__}: {str(error).strip()[:300]}"


class Ours(Contender):
    """Export, compile, load, run; then times with and without a graph of torch's, and every kernel by itself."""

    def __init__(self, *given: Any, machine: str | None = None) -> None:
        super().__init__(*given)
        self.machine = machine or (machine_of(self.torch) if self.device == "cuda" else "sm_90a")

    def prepare(self) -> None:
        import tilewright
        from tilewright.compiler.compile import build, import_any, resolve_target
        from tilewright.runtime.cuda.module import DeviceModule

        row = self._row(OURS)
        options = tilewright.Options(cache=False)
        machine = resolve_target(self.machine, options)
        self.plain = self._step(row, "weights", self.network.module)
        example = (self.network.input(self.batch),)
        graph = self._step(row, "export", lambda: import_any(self.plain, example))
        artifact = self._step(row, "compile", lambda: build(graph, machine, 1, options))
        row.kernels, row.launches = len(artifact.manifest.kernels), len(artifact.manifest.launches)
        row.flops = sum(launch.flops for launch in artifact.manifest.launches)
        where = "cuda" if self.device == "cuda" else "emulator"
        self.module = self._step(row, "load", lambda: DeviceModule(artifact, where))
        self.x = self.network.input(self.batch).to(self.device)
        found = self._step(row, "first call", lambda: self.module(self.x))
        if self._check(row, self._on_device(self.plain), found):
            row.note = _spills(self.module)

    def measure(self, seconds: float) -> None:
        (row,) = self.rows
        if row.status != "ok":
            return
        self._time(row, lambda: self.module(self.x), seconds / 2)
        self._time_graph(row, lambda: self.module(self.x), OURS_GRAPH, seconds / 2)
        self.report("profile")
        found = self.module.profile(self.x, repeats=PROFILED if self.device == "cuda" else 1)
        row.profile = _profile(self.module, found)


class Eager(Contender):
    """torch as it is; cuDNN chooses by time, which needs the GPU alone."""

    def prepare(self) -> None:
        row = self._row(EAGER)
        self.module = self._on_device(self._step(row, "weights", self.network.module))

    def measure(self, seconds: float) -> None:
        (row,) = self.rows
        self.torch.backends.cudnn.benchmark = True
        x = self._input()
        with self.torch.no_grad():
            found = self._step(row, "first call", lambda: self.module(x))
            if not self._check(row, self.module, found):
                return
            self._time(row, lambda: self.module(x), seconds / 2)
            self._time_graph(row, lambda: self.module(x), EAGER_GRAPH, seconds / 2)
            if self.device == "cuda":
                row.profile = self._kernels(lambda: self.module(x))

    def _kernels(self, call: Call) -> list[dict[str, Any]]:
        """The kernels of torch by torch's profiler, where it works."""
        self.report("profile")
        profiler = self.torch.profiler
        with profiler.profile(activities=[profiler.ProfilerActivity.CUDA, profiler.ProfilerActivity.CPU]) as found:
            for _ in range(PROFILED):
                call()
            self.torch.cuda.synchronize()
        events = [each for each in found.key_averages() if str(each.device_type).endswith("CUDA")]
        rows = [(each.key, each.count / PROFILED, each.self_device_time_total * 1e-6 / PROFILED) for each in events]
        total = sum(seconds for _, _, seconds in rows) or 1.0
        return [
            {"name": name[:100], "count": round(count), "seconds": seconds, "share": seconds / total}
            for name, count, seconds in sorted(rows, key=lambda each: -each[2])
        ]


class Compiled(Contender):
    """torch.compile in a mode; its first call compiles."""

    def __init__(self, *given: Any, mode: str) -> None:
        super().__init__(*given)
        self.mode = mode

    def prepare(self) -> None:
        row = self._row(COMPILED)
        self.module = self._on_device(self._step(row, "weights", self.network.module))
        self.x = self._input()
        self.call = self.torch.compile(self.module, mode=self.mode, dynamic=False)
        with self.torch.no_grad():
            found = self._step(row, "first call", lambda: self.call(self.x).clone())
            self._step(row, "second call", lambda: self.call(self.x))  # records its graphs
            self._check(row, self.module, found)

    def measure(self, seconds: float) -> None:
        (row,) = self.rows
        row.note = " ".join(filter(None, [f"mode {self.mode}", row.note]))
        if row.status == "ok":
            with self.torch.no_grad():
                self._time(row, lambda: self.call(self.x), seconds)


def _spills(module: Any) -> str:
    """Kernels that take local memory, if the device says so."""
    return "; ".join(
        f"{name} takes {taken.local_bytes} bytes of local memory"
        for name, taken in module.resources().items()
        if taken is not None and taken.local_bytes
    )


def _profile(module: Any, profile: Any) -> list[dict[str, Any]]:
    """Launches of one kernel as one entry, with the grid, what the kernel takes, and how its products run."""
    manifest, taken = module.manifest, module.resources()
    products: dict[str, list[dict[str, Any]]] = {}
    for each in module.artifact.stored_plan().products.values():
        products.setdefault(_plain(each["kernel"]), []).append(each)
    kernel_of = {launch.name: launch.kernel for launch in manifest.launches}
    found = []
    for row in profile.rows():
        kernel = manifest.kernel(kernel_of[row.name])
        own = products.get(_plain(row.name)) or products.get(_plain(row.name.removesuffix("_parts"))) or []
        grid = "x".join(map(str, kernel.grid))
        says = [f"grid {grid} of {kernel.block[0]} threads", f"{kernel.shared_bytes} B shared"]
        resources = taken[kernel.name]
        if resources is not None:
            says.append(f"{resources.registers} registers")
            says += [f"{resources.local_bytes} B local"] if resources.local_bytes else []
        for product in own:
            tile = "x".join(map(str, product["block"]))
            says.append(f"{product['instruction']} {tile}, {product['stages']} stages, {product['splits']} splits")
        found.append({
            "name": row.name, "count": row.count, "seconds": row.seconds, "share": row.share,
            "gflops_per_second": row.gflops_per_second, "gbytes_per_second": row.gbytes_per_second,
            "what": ", ".join(says),
        })  # fmt: skip
    return found


def _plain(name: str) -> str:
    """A name of a kernel in the plan or of a launch, whose punctuation differs."""
    return re.sub(r"\W", "_", name)
