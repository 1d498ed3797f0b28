"""`tilewright fuse`: how a chain of products would run as one kernel, and whether that pays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import completion
from tilewright.cli.arguments import AsJson, Shapes, Sizes, Threads, machine_option, refuse, shapes_of, sizes_of
from tilewright.cli.completion import among
from tilewright.cli.console import NEGATIVE, show_json
from tilewright.cli.printing import say, table, terminal_columns
from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.files import require_writable, write_file

if TYPE_CHECKING:
    from tilewright.decision import Decision, Refusal
    from tilewright.expr.core import Compute
    from tilewright.expr.graph import Graph
    from tilewright.graph.chain.solve import ChainPlan, Solution
    from tilewright.graph.chains import Costed
    from tilewright.machine import Machine
    from tilewright.report.tree_shapes import TreePicture

EPILOG = """\
\b
example: tilewright fuse --workload gemm-chain-G2 --machine edge --svg a.svg
         tilewright fuse --workload gemm-chain-G2 --threads 1
         tilewright fuse --machine nvidia-a100-sxm4-40gb --dtype f16 \\
             --expr "C[m,l] += A[m,k]*B[k,l]; E[m,n] += C[m,l]*D[l,n]" \\
             --size m=512,n=64,k=64,l=512
exit status: 0 costed, 1 there is no chain, 2 bad usage or input
"""

Model = Annotated[
    Path | None, typer.Argument(metavar="[MODEL]", help="a model.onnx: every chain in it", show_default=False)
]
Statements = Annotated[
    str | None, typer.Option("--expr", metavar="TEXT", help="statements with ; between them", show_default=False)
]
Workload = Annotated[
    str | None,
    typer.Option(
        "--workload",
        metavar="NAME",
        help="gemm-chain-G1, -softmax, conv-chain-C1, …",
        show_default=False,
        autocompletion=among(completion.workloads),
    ),
]
MachineName = Annotated[str, machine_option("whose memory and rates")]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype", metavar="T", help="element type of --expr and --workload", autocompletion=among(completion.dtypes)
    ),
]
KeepHalo = Annotated[
    bool, typer.Option("--keep-halo", help="rows of a first convolution that two blocks need may stay on chip")
]
Svg = Annotated[
    Path | None, typer.Option("--svg", metavar="FILE", help="draw the best plan's tree there, of several chains each")
]
Draw = Annotated[bool, typer.Option("--draw", help="draw the best plan's tree in the terminal, of several chains each")]
Best = Annotated[int, typer.Option("--plans", metavar="N", min=1, max=64, help="how many plans to show")]


def fuse(
    model: Model = None, expression: Statements = None, workload: Workload = None, size: Sizes = None,
    shape: Shapes = None, machine: MachineName = "host", threads: Threads = None, dtype: Dtype = "f32",
    keep_halo: KeepHalo = False, plans: Best = 8, svg: Svg = None, draw: Draw = False, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Plan a chain of products as one kernel: order, policy, tiles, movement and time, against kernels apart.

    Times are predicted. A model's chains are found first; no code is made. For a CPU or a GPU the decision of `compile`
    follows, which has a simpler prediction and fewer kinds of kernels.
    """
    from tilewright.machine.description import Cpu, Gpu

    if sum(each is not None for each in (model, expression, workload)) != 1:
        raise InvalidArgument("give one chain", where="fuse", help="MODEL, --expr TEXT or --workload NAME")
    if expression is None and size:
        raise InvalidArgument("sizes are those of loops of --expr", where="--size", help="leave it out")
    if model is None and shape:
        raise InvalidArgument("shapes are those of inputs of MODEL", where="--shape", help="leave it out")
    require_writable(svg, "--svg")
    refuse({"--draw": draw and as_json}, "JSON has no picture", "leave it out")
    target = _machine(machine)
    idle = threads is not None and not isinstance(target, Cpu)
    refuse({"--threads": idle}, f"{target.name} is no CPU, whose threads are counted", "leave it out")
    if model is not None:
        from tilewright.cli.models import import_graph

        if dtype != "f32":
            raise InvalidArgument("a model has its own types", where="--dtype", help="leave it out")
        graph = import_graph(model, shapes_of(shape))
        costed, refused = _of_model(graph, target, keep_halo)
    else:
        from tilewright.expr.graph import Graph

        computes = _computes(expression, workload, size, dtype)
        costed, refused = [_of_computes(computes, target, keep_halo, plans)], []
        graph = Graph.of(computes)
    compiled = _compiled(graph, machine, threads) if isinstance(target, Cpu | Gpu) else None
    pictures = _pictures(costed, target.name) if draw or svg is not None else []
    if svg is not None and pictures:
        from tilewright.report import tile_trees

        write_file(svg, tile_trees.svg(pictures).encode(), where="--svg")
    if as_json:
        show_json(_as_value(costed, refused, target.name, plans) | {"compiled": compiled and compiled.to_json()})
    else:
        _print(costed, refused, target.name, plans)
        if draw:
            _draw(pictures)
        if compiled is not None and (costed or compiled.decisions):
            say(f"\n{compiled.text(target.name)}")
    if not costed:
        raise typer.Exit(NEGATIVE)


# What to plan


def _machine(name: str) -> Machine:
    from tilewright.machine import resolve
    from tilewright.runtime.calibration_file import host_with_rates

    return host_with_rates() if name == "host" else resolve(name)


def _computes(text: str | None, workload: str | None, size: list[str] | None, dtype: str) -> tuple[Compute, ...]:
    from tilewright.expr.dtypes import DTYPES, SPELLINGS

    named = SPELLINGS.get(dtype.lower())
    if named is None:
        raise InvalidArgument(f"unknown dtype {dtype!r}", where="--dtype", help=f"one of {', '.join(DTYPES)}")
    if workload is not None:
        from tilewright.graph.chain.workloads import workload as named_workload

        return named_workload(workload, named)
    from tilewright.expr.text import parse_computes

    assert text is not None, "one of both is given"
    sizes = sizes_of(size)
    computes = parse_computes(text, sizes, named, where="--expr")
    loops = {axis.name for compute in computes for axis in compute.loops}
    for name in sizes:
        if name not in loops:
            raise InvalidArgument(f"{name!r} is not a loop", where="--size", help=f"loops: {', '.join(sorted(loops))}")
    for compute in computes:
        for axis in compute.loops:
            if not isinstance(axis.extent, int):
                raise InvalidArgument(f"loop {axis.name} has no size", where="--size", help=f"--size {axis.name}=16")
            if axis.extent == 0:
                raise InvalidArgument(f"loop {axis.name} has extent 0", where="--size", help="1 or more")
    return computes


def _of_computes(computes: tuple[Compute, ...], target: Machine, keep_halo: bool, plans: int) -> Costed:
    from tilewright.graph.chain.halo import ANY, RECOMPUTE
    from tilewright.graph.chain.hierarchy import hierarchy_of
    from tilewright.graph.chain.solve import solve
    from tilewright.graph.chains import Costed, FoundChain
    from tilewright.instruction.quanta import MachineQuanta

    hierarchy = hierarchy_of(target, computes[0].inputs()[0].dtype if computes[0].inputs() else "f32")
    found = solve(computes, hierarchy, MachineQuanta(target), best=plans, halo=ANY if keep_halo else RECOMPUTE)
    return Costed(FoundChain(computes), found.decision, found)


def _of_model(graph: Graph, target: Machine, keep_halo: bool) -> tuple[list[Costed], list[Refusal]]:
    from tilewright.graph.chain.halo import ANY, RECOMPUTE
    from tilewright.graph.chain.hierarchy import hierarchy_of
    from tilewright.graph.chains import cost_chains
    from tilewright.instruction.quanta import MachineQuanta

    halo = ANY if keep_halo else RECOMPUTE
    costed, refused = cost_chains(graph, hierarchy_of(target), MachineQuanta(target), halo=halo)
    return list(costed), list(refused)


@dataclass(frozen=True)
class _Compiled:
    """What `compile` decides for so many threads about products of which one reads the other; None of a GPU."""

    threads: int | None
    decisions: Sequence[Decision]

    def text(self, machine: str) -> str:
        threads = "" if self.threads is None else f", {self.threads} thread{'s' * (self.threads > 1)}"
        head = f"what `tilewright compile` decides for {machine}{threads}:"
        said = [each.explain() for each in self.decisions]
        return "\n".join([head, *(said or ["a kernel for each product: it found no two that could be one"])])

    def to_json(self) -> dict[str, Any]:
        return {"threads": self.threads, "decisions": [each.to_json() for each in self.decisions]}


def _compiled(graph: Graph, machine: str, threads: int | None) -> _Compiled:
    from tilewright.compiler.chains import fusions
    from tilewright.compiler.compile import plan_graph, resolve_target, thread_count
    from tilewright.machine.description import Cpu
    from tilewright.options import Options

    target, count = resolve_target(machine), thread_count(threads)
    plan = plan_graph(graph, target, count, Options())
    return _Compiled(count if isinstance(target, Cpu) else None, fusions(plan.decisions))


def _pictures(costed: list[Costed], machine: str) -> list[TreePicture]:
    """The best plan of every chain that has one."""
    from tilewright.report.tree_shapes import TreePicture
    from tilewright.tiles.tree import Tile, walk

    pictures = []
    for each in costed:
        if each.solution is not None:
            best = each.solution.best
            levels = dict.fromkeys((node.level for _, node in walk(best.tree) if isinstance(node, Tile)), "")
            for level in best.tiles:
                moved = ", ".join(f"{tensor} {count:,}" for tensor, count in best.dv[level].items())
                levels[level] = f"holds {best.mu[level]:,} elements; moved {moved}"
            title = f"{each.chain.name} on {machine}: {best.name}, {best.time * 1e6:.1f} us"
            pictures.append(TreePicture(title, best.tree, best.chain.problem, levels))
    return pictures


def _draw(pictures: Sequence[TreePicture]) -> None:
    from tilewright.report.tree_boxes import drawn

    for picture in pictures:
        print(f"\n{drawn(picture, terminal_columns())}", end="")


# Text


def _print(costed: list[Costed], refused: list[Refusal], machine: str, plans: int) -> None:
    if not costed:
        say("no chain of products")
    for number, each in enumerate(costed):
        if number:
            print()
        if each.solution is not None:
            _print_solution(each.solution, each.chain.name, machine, plans)
        say(each.decision.explain())
    if refused:
        say("\nnot continued:")
        for refusal in refused:
            say(f"  {refusal.candidate}: {refusal.values}")


def _print_solution(found: Solution, name: str, machine: str, plans: int) -> None:
    from tilewright.tiles.notation import print_tree

    best = found.best
    say(f"{name} on {machine}: {len(best.chain.extents)} loops, {best.chain.orders} orders")
    rows = [
        [" ".join(plan.order), plan.policy, plan.fused_in, plan.rewrite or "", f"{plan.time * 1e6:.1f}", plan.bound]
        for plan in found.plans[:plans]
    ]
    columns = {"order": "left", "policy": "left", "links in": "left", "softmax": "left", "us": "right", "bound": "left"}
    table(columns, rows)
    say(f"\nbest: {best.name}")
    cells = [
        [level, " ".join(f"{loop}:{size}" for loop, size in best.tiles[level].items()), str(best.mu[level]),
         " ".join(f"{tensor}:{moved}" for tensor, moved in best.dv[level].items()), f"{best.seconds[level] * 1e6:.1f}"]
        for level in best.tiles
    ]  # fmt: skip
    table({"level": "left", "tile": "left", "elements": "right", "moved": "left", "us": "right"}, cells)
    say(f"compute {best.seconds['compute'] * 1e6:.1f} us, {best.flops / 1e6:.1f} MFLOP\n")
    say(print_tree(best.tree, indented=True))
    kernels = ", ".join(f"{kernel} {seconds * 1e6:.1f} us" for kernel, seconds in found.apart.kernels)
    say(f"apart: {found.apart.time * 1e6:.1f} us: {kernels}\n")


# JSON


def _as_value(costed: list[Costed], refused: list[Refusal], machine: str, plans: int) -> dict[str, Any]:
    chains = []
    for each in costed:
        value: dict[str, Any] = {"chain": each.chain.name, "decision": each.decision.to_json()}
        if each.solution is not None:
            apart = each.solution.apart
            value["plans"] = [_plan_value(plan) for plan in each.solution.plans[:plans]]
            value["apart"] = {"seconds": apart.time, "kernels": dict(apart.kernels), "moved": dict(apart.dv)}
        chains.append(value)
    return {"machine": machine, "chains": chains, "refused": [refusal.to_json() for refusal in refused]}


def _plan_value(plan: ChainPlan) -> dict[str, Any]:
    from tilewright.tiles.tree import to_json

    return {
        "order": list(plan.order), "policy": plan.policy, "fused_in": plan.fused_in, "softmax": plan.rewrite,
        "tiles": plan.tiles, "moved_elements": plan.dv, "held_elements": plan.mu, "level_seconds": plan.seconds,
        "seconds": plan.time, "flops": plan.flops, "recomputes": plan.recomputes, "fuse": plan.fuse,
        "reason": plan.reason, "nodes": list(plan.nodes), "tree": to_json(plan.tree),
    }  # fmt: skip
