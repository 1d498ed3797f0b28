"""A model in, a module out: import, plan, lower, generate, load; with a cache in front of the slow half."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

from tilewright.collection import imports, paused_collection
from tilewright.compiler.recall import code_key, keep_code, keep_model, model_key, recalled_code, recalled_model
from tilewright.compiler.source import GraphSource, Shapes, Source, nesting, source_of
from tilewright.compiler.stored import StoredConstant, StoredGraph, stored_graph
from tilewright.compiler.targets import target_of
from tilewright.errors import InvalidArgument, InvalidMachine
from tilewright.expr import dtypes, serialize
from tilewright.expr.core import static_shape
from tilewright.expr.graph import Graph
from tilewright.machine import targets
from tilewright.machine.description import Cpu, Gpu
from tilewright.machine.units import CLUSTERS, WARPGROUP_UNITS
from tilewright.options import OPAQUE_MMA, Options
from tilewright.runtime.artifact import Artifact, StoredPlan
from tilewright.runtime.cache import Cache
from tilewright.runtime.host_units import host_with_units
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.module import Module
from tilewright.runtime.pool import default_threads

if TYPE_CHECKING:
    from tilewright.compiler.plan import ChooseProduct, Plan
    from tilewright.compiler.program import Placement
    from tilewright.compiler.search import Searched


def compile(
    model_or_path: Any,
    inputs: Any = None,
    *,
    shapes: Shapes | None = None,
    machine: str | os.PathLike[str] = "host",
    threads: int | None = None,
    options: Options | None = None,
    device: str | None = None,
) -> Module:
    """Compile a model for a machine and load it.

    `model_or_path`: the path of an ONNX file, its bytes, an `onnx.ModelProto`, a `torch.nn.Module` (then `inputs` are
    example inputs), or an `expr.Graph`. `shapes` fixes what an ONNX file leaves open: shapes by names of inputs,
    or extents by their own names (`{"batch": 4}`). `machine`
    is "host", a name that `tilewright machines` lists, or a machine file. `threads`: by default OMP_NUM_THREADS or the
    cores that the process may use. `device` is where code for a GPU runs: "cuda", "emulator", or what `options.device`
    says. Raises CompileError, which says where and what, and the nearest legal change.
    """
    return _compiled(source_of(model_or_path, inputs, shapes), machine, threads, options, device)


def import_any(model: Any, inputs: Any = None, shapes: Shapes | None = None) -> Graph:
    """The expression graph of anything that `compile` takes."""
    return source_of(model, inputs, shapes).graph()


def compile_graph(
    graph: Graph,
    machine: str | os.PathLike[str] = "host",
    threads: int | None = None,
    options: Options | None = None,
    device: str | None = None,
) -> Module:
    """Compile an expression graph and load it."""
    return _compiled(GraphSource(graph), machine, threads, options, device)


def _compiled(
    source: Source, machine: str | os.PathLike[str], threads: int | None, options: Options | None, device: str | None
) -> Module:
    from tilewright.runtime.container import opened
    from tilewright.runtime.ready import shared_code_ahead

    options = checked_options(options)
    described = resolve_target(machine, options)
    count, on_host = thread_count(threads), target_of(described).on_host
    if device is not None and on_host:
        fact = f"device {device!r} for {described.name}: code for a CPU runs on the CPU"
        raise InvalidArgument(fact, where="device", help="leave it out, or compile for a GPU")
    with nesting(), shared_code_ahead(count) if on_host else nullcontext():
        artifact = build(source, described, count, options)
    return opened(artifact, count, options, device)


def checked_options(options: Options | None) -> Options:
    """The options, or their defaults; raises InvalidArgument for a value of another type."""
    if options is None:
        return Options()
    if not isinstance(options, Options):
        raise InvalidArgument(f"options are a {type(options).__name__}", where="options", help="tilewright.Options(…)")
    if options.intrinsics is not None:
        from tilewright.intrinsics.registry import Registry

        if not isinstance(options.intrinsics, Registry):
            fact = f"intrinsics are a {type(options.intrinsics).__name__}"
            raise InvalidArgument(fact, where="intrinsics", help="an intrinsics.registry.Registry, or None")
    return options


def load(
    path: str | os.PathLike[str],
    threads: int | None = None,
    options: Options | None = None,
    device: str | None = None,
) -> Module:
    """Load a `.twm`; it is compiled again from its stored program where this machine cannot run its code.

    Code for a GPU runs on `device`, as in `compile`.
    """
    from tilewright.runtime import container

    count, options = thread_count(threads), checked_options(options)
    return container.load(path, count, options, lambda a: rebuilt(a, "host", count, options), device)


def rebuilt(
    artifact: Artifact,
    machine: str | os.PathLike[str] = "host",
    threads: int | None = None,
    options: Options | None = None,
) -> Artifact:
    """The artifact compiled again from its stored graph and constants."""
    names = [spec.name for spec in artifact.manifest.outputs]
    options = options or Options()
    target, count = resolve_target(machine, options), thread_count(threads)
    found = None if options.search == "joint" else _searched_before(artifact, target, count)
    return build(stored_graph(artifact), target, count, options, names, searched=found)


def _searched_before(artifact: Artifact, machine: Cpu | Gpu, threads: int) -> Searched | None:
    """What a search on this machine chose for an artifact."""
    products = artifact.stored_plan().products
    if not any("search" in each for each in products.values()):
        return None
    from tilewright.compiler.search import searched_before

    return searched_before(products, machine, threads, artifact.manifest.name)


def build(
    model: Graph | Source,
    machine: Cpu | Gpu,
    threads: int,
    options: Options,
    names_of_outputs: Sequence[str] | None = None,
    choose: ChooseProduct | None = None,
    searched: Searched | None = None,
) -> Artifact:
    """Everything but loading; what the cache holds is not made again (`recall.py`).

    `choose` is asked how each product runs, before the rules are; `searched` is what an earlier search found.
    """
    with paused_collection():
        return _built(model, machine, threads, options, names_of_outputs, choose, searched)


def _built(
    model: Graph | Source,
    machine: Cpu | Gpu,
    threads: int,
    options: Options,
    names_of_outputs: Sequence[str] | None,
    choose: ChooseProduct | None,
    searched: Searched | None,
) -> Artifact:
    source = GraphSource(model) if isinstance(model, Graph) else model
    target = target_of(machine)
    threads = target.threads(threads)
    cache = Cache.from_options(options)
    chosen = choose is not None or searched is not None  # not by what the key of a model says
    key = "" if chosen or not cache.enabled else model_key(source, machine, threads, options, names_of_outputs)
    found = recalled_model(cache, key, source, names_of_outputs) if key else None
    if found is not None:
        return found
    with imports():
        from tilewright.compiler.interface import interface_of  # what only a plan needs
        from tilewright.compiler.program import Placement

    graph = source.graph()
    if not graph.outputs:
        raise InvalidArgument("the graph has no outputs", where=graph.name, help="give at least one to `finish`")
    _check_size(graph)
    _, own_names = source.interface() or GraphSource(graph).interface()
    names = tuple(names_of_outputs or own_names)  # a tensor in the graph may have the name of an output
    plan = plan_graph(graph, machine, threads, options, choose, searched)
    placement = Placement(plan)
    if not cache.enabled:
        return _generate(plan, placement, machine, options, names)
    code = code_key(plan, machine, threads, options, names)
    launches = [kernel.name for kernel in plan.kernels] if target.on_host else None
    interface = interface_of(plan, machine, names)
    artifact = recalled_code(cache, code, lambda: placement.packed(plan), interface, launches)
    if artifact is None:
        artifact = _generate(plan, placement, machine, options, names)
        keep_code(cache, code, artifact)
    if key and model_key(source, machine, threads, options, names_of_outputs) == key:  # no file has changed meanwhile
        keep_model(cache, key, code, artifact)
    return artifact


def plan_graph(
    graph: Graph,
    machine: Cpu | Gpu,
    threads: int,
    options: Options,
    choose: ChooseProduct | None = None,
    searched: Searched | None = None,
) -> Plan:
    """All decisions about a graph; with the option `search` "joint" its products are searched first."""
    from tilewright.compiler.make_plan import make_plan

    _check_route(machine, options)
    _check_cluster(machine, options.cluster)
    if options.search == "joint" and choose is None:
        searched = _searched(graph, machine, threads, options)
    if searched is not None:
        choose = searched.choose
    plan = make_plan(graph, machine, threads, options, choose)
    if searched is not None:
        searched.note(plan)
    return plan


def _searched(graph: Graph, machine: Cpu | Gpu, threads: int, options: Options) -> Searched:
    """How every product of a graph runs, by measurements, which take this process."""
    if not target_of(machine).on_host:
        raise InvalidArgument(f"products of {machine.name} are not searched", where="search", help='a CPU, or "rules"')
    from tilewright.compiler.search import search_products  # what the rules alone do without

    return search_products(graph, cast(Cpu, machine), threads, options)


def _check_route(machine: Cpu | Gpu, options: Options) -> None:
    """Raises InvalidArgument for a family of matrix instructions that the machine does not have.

    Records of "mma.sync" say which lane holds which element, those of "wmma" do not.
    """
    if options.mma == "auto":
        return
    from tilewright.intrinsics.registry import standard
    from tilewright.kernel.records import is_opaque

    registry = standard() if options.intrinsics is None else options.intrinsics
    records = [registry.find(name) for name in machine.intrinsics if name in registry]
    if not any(each.group == "warp32" and is_opaque(each) is (options.mma == OPAQUE_MMA) for each in records):
        fact = f"{machine.name} has no matrix instructions of {options.mma!r}"
        raise InvalidArgument(fact, where="mma", help='"auto", which every machine has; others are of NVIDIA GPUs')


def _check_cluster(machine: Cpu | Gpu, cluster: int | None) -> None:
    """Raises InvalidArgument for clusters on a machine without multicast copies."""
    missing = {CLUSTERS, *WARPGROUP_UNITS} - set(machine.features)
    if cluster not in (None, 1) and missing:
        fact = f"{machine.name} has no multicast copies within a cluster: it lacks {', '.join(sorted(missing))}"
        raise InvalidArgument(fact, where="cluster", help="1, which every machine has")


def _generate(
    plan: Plan, placement: Placement, machine: Cpu | Gpu, options: Options, names_of_outputs: Sequence[str]
) -> Artifact:
    from tilewright.compiler.interface import interface_of
    from tilewright.expr.text import print_graph

    made = target_of(machine).codegen.generate(plan, placement, machine, options)
    manifest = Manifest(**interface_of(plan, machine, names_of_outputs), **made.host_program.parts())
    originals = plan.graph.all_constants()
    held = {
        name: StoredConstant(plan.sources.get(name, name), offset, plan.stored[name].layout)
        for name, offset in placement.offsets.items()
    }
    parts = plan.computed.parts.items()
    held |= {
        f"{each.of}, {name}": each.part(name, part.widths)
        for each in list(held.values()) for name, part in parts if part.whole == each.of
    }  # fmt: skip
    constants_of = {  # not what was computed from them for this machine
        name: each for name, each in held.items() if each.of in originals
    }
    graph = StoredGraph(serialize.to_json(plan.graph), constants_of)
    stored = StoredPlan(
        tuple(plan.decisions), plan.products, print_graph(plan.mapped_graph()), made.tiles, plan.trees()
    )
    return Artifact(
        manifest=manifest,
        code=made.code,
        constants=made.constants,
        program=made.program,
        graph=json.dumps(graph.to_json()),
        plan=json.dumps(stored.to_json()),
    )


def resolve_target(machine: str | os.PathLike[str], options: Options | None = None) -> Cpu | Gpu:
    """The machine of that name or file, if code is generated for it; raises InvalidMachine for any other.

    "host" has measured units where no machine file names its processor (`host_with_units`).
    """
    from tilewright.machine.registry import resolve

    if machine == "host":
        return host_with_units(options)
    found = resolve(machine)
    if not isinstance(found, Cpu | Gpu):
        fact = f"{found.name} is of kind {found.kind}, for which no code is generated"
        raise InvalidMachine(fact, where=os.fspath(machine), help="a CPU or a GPU; `tilewright machines` lists them")
    missing = targets.without_code(found.llvm.triple, found.llvm.cpu)
    if missing:
        fact = f"no code is made for {found.name}, whose llvm.cpu is {found.llvm.cpu!r}"
        raise InvalidMachine(fact, where=found.name, help=missing)
    return found


def thread_count(threads: int | None) -> int:
    if threads is None:
        return default_threads()
    if not isinstance(threads, int) or isinstance(threads, bool) or not 1 <= threads <= 1024:
        raise InvalidArgument(f"threads is {threads!r}", help="a number from 1 to 1024, or None for all cores")
    return threads


def _check_size(graph: Graph) -> None:
    """Refuse tensors that no memory holds before anything is allocated for them."""
    for tensor in graph.tensors().values():
        size = 1
        for extent in static_shape(tensor.shape):
            size *= extent
        if size * dtypes.size_bytes(tensor.dtype) > 1 << 40:
            raise InvalidArgument(
                f"{tensor} takes {size * dtypes.size_bytes(tensor.dtype)} bytes", help="at most 1 TiB"
            )
