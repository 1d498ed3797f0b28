"""Chains of two products on a GPU, one kernel beside two, and beside PyTorch (claims E4, E6, E7, E9 and E13).

The batch GEMM chains G1 to G12, plain and around a softmax, in f16. Ours is what `compile` chooses by itself. Whole
calls between two events of the device, recorded as graphs; what is compared takes turns, once with its data in the
last cache, many calls at a time, and once after other memory was written; medians are reported. Without a device there
are predictions, and claims are open.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Protocol

import numpy as np

from tilewright.compiler.compile import build, plan_graph, resolve_target
from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import norm
from tilewright.fields import optional, string
from tilewright.graph.chain.workloads import GEMM_CHAINS
from tilewright.machine.description import Gpu
from tilewright.options import Options
from tilewright.reproduce.chimera.contenders import APART, ATTENTION, ONE, TORCH, exact_chain, random_factors
from tilewright.reproduce.chimera.timed import CHAINS, Chain, Group, TimedChains, Timing, choice_of, known_chains
from tilewright.reproduce.claim import Claim
from tilewright.reproduce.device import opened
from tilewright.runtime.cuda.driver import Driver
from tilewright.runtime.cuda.module import DeviceModule

SIZES = dict(zip(CHAINS, GEMM_CHAINS, strict=True))
MACHINE = "nvidia-a100-sxm4-40gb"  # on which the publication measured
TURNS, CALLS = 10, 5
CALLS_OF_A_GRAPH = 20  # where the data may be in the cache
TOLERANCE = 1e-2  # of the largest value of a result, for weights and results in f16
NETWORKS = {"Relay with TensorRT": 1.42, "Relay with CuDNN": 1.31, "Relay with Ansor": 1.22}  # E13

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Report(TimedChains):
    """All chains on one GPU; `unmeasured` says why no device was timed."""

    GROUPS = (
        Group("spec1-E4", False, "batch GEMM chains",
              {TORCH: 2.77, "TASO": 3.30, "Relay": 1.69, "Ansor": 1.33, "TensorRT": 2.29, "TVM with CUTLASS": 1.51}),
        Group("spec1-E6", True, "batch GEMM chains, softmax", {TORCH: 2.74, "Relay": 1.74, "Ansor": 1.64}),
    )  # fmt: skip
    CONVOLUTIONS = (
        "spec1-E7",
        {
            "convolution chains": {TORCH: 5.79, "TensorRT": 2.01},
            "convolution chains, ReLU": {"Relay": 4.32, "Ansor": 1.30},
        },
    )
    HEADLINE = {"TensorRT": 2.29, "Ansor": 1.64}  # noqa: RUF012 - of the libraries and of the compilers
    NOTE = "whole calls by events, f16"
    PUBLISHED_ON = "an A100"

    unmeasured: str = optional(string, "")

    @property
    def claims(self) -> tuple[Claim, ...]:
        return (*super().claims, *self._claims_of_networks())

    def _claims_of_networks(self) -> Iterator[Claim]:
        for name, published in NETWORKS.items():
            subject, reason = f"whole networks: gain over {name}", f"{name} is not run here"
            yield Claim("spec1-E13", subject, f"{published:.2f}x", None, published, ">=", reason, "x", ".2f")

    def missing(self, name: str) -> str:
        if self.unmeasured and name in (TORCH, ATTENTION):
            return f"no device: {self.unmeasured}"
        return super().missing(name)


def report(layers: Sequence[str] = CHAINS, machine: str = MACHINE, device: str | None = None) -> Report:
    """Time chains on a device, or only predict them; `layers` are names of chains, G1 to G12.

    `device`: "cuda" or "cuda:1", "emulator" to time nothing, "auto" for a GPU if there is one, or None, which is that
    of the options. Raises InvalidArgument for another name or a machine that is no GPU, DeviceError and MissingExtra
    where a GPU is asked for that cannot be used.
    """
    known_chains(layers)
    found = resolve_target(machine)
    if not isinstance(found, Gpu):
        raise InvalidArgument(f"{found.name} is no GPU", where="--machine", help="tilewright machines lists GPUs")
    driver, reason = opened(device or Options().device)
    chains = [_timed(name, group.softmax, found, driver) for group in Report.GROUPS for name in layers]
    name = found.name if driver is None else f"{driver.name}, code for {found.name}"
    return Report(machine=name, versions=_version(), chains=tuple(chains), unmeasured=reason)


def _timed(name: str, softmax: bool, machine: Gpu, driver: Driver | None) -> Chain:
    graph = chain_of(SIZES[name], softmax)
    fused, predicted, possible = choice_of(plan_graph(graph, machine, 1, Options()).decisions)
    timings = () if driver is None else _in_turns(contenders(graph, softmax, machine, driver, possible))
    return Chain(name=name, softmax=softmax, fused=fused, predicted=predicted, timings=timings)


def chain_of(sizes: tuple[int, int, int, int, int], softmax: bool) -> Graph:
    """Two products of f16 of batch, m, n, k and l, with a softmax between them that is computed in f32."""
    batch, m, n, k, l = sizes
    builder = GraphBuilder()
    a, b, d = (builder.input(name, shape, "f16") for name, shape in
               (("a", (batch, m, k)), ("b", (batch, k, l)), ("d", (batch, l, n))))  # fmt: skip
    c = a @ b
    return builder.finish([(norm.softmax(c) if softmax else c) @ d])


def _in_turns(found: Mapping[str, Contender]) -> tuple[Timing, ...]:
    """Median times of contenders that take turns."""
    warm: dict[str, list[float]] = {name: [] for name in found}
    cold: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(TURNS):
        for name, each in found.items():
            warm[name] += each.samples(CALLS, flush=False)
            cold[name] += each.samples(CALLS, flush=True)
    return tuple(Timing(name=name, seconds=median(warm[name]), cold_seconds=median(cold[name])) for name in found)


# Contenders -----------------------------------------------------------------------------------------------------------


class Contender(Protocol):
    """A program on the device."""

    def result(self) -> Array:
        """What it computes."""

    def samples(self, count: int, flush: bool) -> list[float]:
        """Seconds of so many calls; `flush`: other memory is written before each."""


def contenders(graph: Graph, softmax: bool, machine: Gpu, driver: Driver, possible: bool) -> dict[str, Contender]:
    """All programs for a chain, each of which has given the right result; one kernel only where that is `possible`."""
    inputs = random_factors(graph)
    ways = {ONE: "always", APART: "never"} if possible else {APART: "never"}
    found: dict[str, Contender] = {name: _Ours(graph, machine, driver, fuse, inputs) for name, fuse in ways.items()}
    if importlib.util.find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            found[TORCH] = _Torch(torch, driver, inputs, softmax, attention=False)
            if softmax:
                found[ATTENTION] = _Torch(torch, driver, inputs, softmax, attention=True)
    exact = exact_chain(softmax, inputs)
    for name, each in found.items():
        error = np.abs(each.result() - exact).max() / np.abs(exact).max()
        assert error <= TOLERANCE, f"bug: {name} computes another chain: it is off by {error:.2g} of the largest value"
    return found


class _Ours:
    def __init__(self, graph: Graph, machine: Gpu, driver: Driver, fuse: str, inputs: Sequence[Array]) -> None:
        self._module = DeviceModule(build(graph, machine, 1, Options(cache=False, fuse=fuse)), driver)
        self._inputs = inputs

    def result(self) -> Array:
        return np.asarray(self._module(*self._inputs))

    def samples(self, count: int, flush: bool) -> list[float]:
        calls = 1 if flush else CALLS_OF_A_GRAPH
        return self._module.samples(*self._inputs, repeats=count, flush=flush, calls=calls)


class _Torch:
    """Two products of torch, or its attention, recorded as one graph."""

    def __init__(self, torch: Any, driver: Driver, inputs: Sequence[Array], softmax: bool, attention: bool) -> None:
        self._torch, self._softmax, self._attention = torch, softmax, attention
        self._device = torch.device("cuda", int(getattr(driver, "ordinal", 0)))
        self._inputs = [torch.from_numpy(each).to(self._device) for each in inputs]
        self._rubbish = torch.empty(2 * driver.cache_bytes, dtype=torch.uint8, device=self._device)
        with torch.cuda.device(self._device), torch.inference_mode():
            aside = torch.cuda.Stream()
            with torch.cuda.stream(aside):
                self._run()  # what the library sets up at first cannot be recorded
            aside.synchronize()
            self._one, self._many = self._recorded(1), self._recorded(CALLS_OF_A_GRAPH)

    def _recorded(self, calls: int) -> Any:
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph):
            for _ in range(calls):
                self._out = self._run()
        return graph

    def _run(self) -> Any:
        torch, (a, b, d) = self._torch, self._inputs
        if self._attention:
            heads = [each.reshape(1, -1, *each.shape[-2:]) for each in (a, b.transpose(-1, -2), d)]
            return torch.nn.functional.scaled_dot_product_attention(*heads, scale=1.0).reshape(*a.shape[:-1], -1)
        c = torch.matmul(a, b)
        return torch.matmul(c.softmax(-1) if self._softmax else c, d)

    def result(self) -> Array:
        self._many.replay()
        return np.asarray(self._out.float().cpu().numpy())

    def samples(self, count: int, flush: bool) -> list[float]:
        torch, marks = self._torch, []
        graph, calls = (self._one, 1) if flush else (self._many, CALLS_OF_A_GRAPH)
        with torch.cuda.device(self._device):
            for _ in range(count):
                if flush:
                    self._rubbish.zero_()
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                graph.replay()
                end.record()
                marks.append((start, end))
            torch.cuda.synchronize(self._device)
        return [start.elapsed_time(end) / 1e3 / calls for start, end in marks]


def _version() -> str:
    from importlib import metadata

    try:
        return f"torch {metadata.version('torch')}"
    except metadata.PackageNotFoundError:
        return "no torch"
