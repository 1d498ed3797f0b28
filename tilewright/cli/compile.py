"""`tilewright compile`: from a model to a `.twm`, or to one of the forms on the way."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.arguments import (
    AsJson,
    Cluster,
    Disable,
    Fuse,
    InputPrecision,
    InputPrecisionName,
    Machine,
    Mma,
    MmaOption,
    ModelFile,
    NoCache,
    Rebuild,
    Search,
    SearchName,
    Shapes,
    Threads,
    Trials,
    given_decisions,
    is_stored,
    options_of,
    refuse,
    refuse_for_stored,
    shapes_of,
)
from tilewright.cli.console import log_progress, progress, show_json
from tilewright.cli.models import build_artifact, import_graph, plan_model, read_artifact
from tilewright.cli.printing import say
from tilewright.decision import Decision
from tilewright.errors import InvalidArgument, InvalidProgram
from tilewright.files import read_input, read_text, require_writable, write_file
from tilewright.options import Options

if TYPE_CHECKING:
    from tilewright.runtime.artifact import Artifact

EPILOG = """\
\b
example: tilewright compile model.onnx -o model.twm
         tilewright compile model.onnx --search joint --trials 32
         tilewright compile model.onnx --emit tile | tilewright opt -p dce -
         tilewright compile model.onnx --emit plan -o model.plan
         tilewright compile model.onnx --machine nvidia-h200-sxm --emit ptx
exit status: 0 compiled, 2 bad usage or a model that cannot be compiled,
             3 a missing package
"""


class Form(StrEnum):
    """The forms that a model takes on its way down, and `plan`, the decisions on that way.

    `mapped` is the graph that kernels compute: simplified, borders and relayouts of operands as nodes. For a GPU,
    `distributed` is what each thread does, and `ptx` stands for asm and object.
    """

    EXPR = "expr"
    PLAN = "plan"
    MAPPED = "mapped"
    TILE = "tile"
    DISTRIBUTED = "distributed"
    LLVM = "llvm"
    ASM = "asm"
    OBJECT = "object"
    PTX = "ptx"


Output = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="where to write (default: MODEL as .twm)")
]
SavedPlan = Annotated[
    Path | None,
    typer.Option("--plan", metavar="FILE", help="tile trees of some kernels, as `--emit plan` writes them"),
]
Emit = Annotated[Form | None, typer.Option("--emit", help="write this form instead of a .twm (default: to stdout)")]


def compile_model(
    model: ModelFile,
    output: Output = None,
    emit: Emit = None,
    machine: Machine = "host",
    threads: Threads = None,
    shape: Shapes = None,
    disable: Disable = None,
    rebuild: Rebuild = False,
    no_cache: NoCache = False,
    search: SearchName = Search.RULES,
    trials: Trials = None,
    plan: SavedPlan = None,
    mma: MmaOption = Mma.AUTO,
    input_precision: InputPrecisionName = InputPrecision.IEEE,
    cluster: Cluster = Options.cluster,
    fuse: Fuse = "auto",
    as_json: AsJson = False,
) -> None:
    """Compile a model (.onnx), the program in a .twm, or a tile program (.tile).

    A .twm holds machine code: whoever loads it runs it. A tile program can only be emitted in a later form. `--search
    joint` takes seconds to minutes per product, once: what it finds is kept in the compile cache and in the .twm. What
    is decided already in MODEL, or only after the form that is asked for, has no options.
    """
    from tilewright.compiler.tree_files import saved_trees

    require_writable(output, "-o")
    shapes = shapes_of(shape)
    joint = search is Search.JOINT
    decisions = given_decisions(machine, threads, disable, mma, input_precision, cluster, fuse)
    decisions |= {"--search": joint, "--trials": trials is not None, "--plan": plan is not None}
    _check_options(model, emit, {"--rebuild": rebuild, "--shape": bool(shapes)}, decisions, no_cache)
    refuse(
        {"--trials": trials is not None and not joint}, f"{trials}, but rules time no schedules", "add --search joint"
    )
    options = options_of(
        disable, no_cache, search=search.value, trials=trials or Options.trials, mma=mma.value,
        input_precision=input_precision.value, cluster=cluster, fuse=fuse,
        trees={} if plan is None else saved_trees(plan),
    )  # fmt: skip
    if joint:
        log_progress("tilewright.compiler.search", "tilewright.runtime.calibrate")
    if emit is None and model.suffix != ".tile":
        place = output or model.with_suffix(".twm")
        require_writable(place, "-o")
        start = time.perf_counter()
        artifact = build_artifact(model, shapes, machine, threads, options, rebuild=rebuild)
        _store(artifact, place, time.perf_counter() - start, as_json)
        return
    if emit is None:
        raise InvalidArgument("a tile program is compiled to one form", where=str(model), help="add --emit object")
    if emit is Form.OBJECT and (output is None or as_json):
        raise InvalidArgument("an object is not text", where="--emit", help="name a file with -o, leave out --json")
    if model.suffix == ".tile":
        content = _tile_form(_read_program(model), emit, str(model), options)
    elif is_stored(model):
        content = _stored_form(model, emit)
    else:
        content = _model_form(model, emit, shapes, machine, threads, options)
    _write(content, output, emit, as_json)


def _check_options(
    model: Path, emit: Form | None, of_files: dict[str, bool], decisions: dict[str, bool], no_cache: bool
) -> None:
    """Raise InvalidArgument for an option that the file, or the form of it that is asked for, leaves nothing to."""
    if model.suffix == ".tile":
        fixed = of_files | decisions | {"--disable": False}  # that is for passes, which may be to come
        refuse(fixed, f"{model} says itself what it is for: its decisions are made", "give the model file")
    elif is_stored(model) and emit is not None:
        help = "rebuild first, then emit from the result"
        refuse({"--emit": of_files["--rebuild"]}, f"--rebuild makes a .twm, not {emit}", help)
        fixed = of_files | decisions | {"--no-cache": no_cache}
        refuse_for_stored(model, fixed, "--rebuild and no --emit")
    elif is_stored(model) and not of_files["--rebuild"]:
        refuse_for_stored(model, of_files | decisions, "--rebuild")
    elif not is_stored(model) and emit is not None:
        refuse({"--rebuild": of_files["--rebuild"]}, f"only a .twm can be rebuilt, not {model}", "leave out --rebuild")
        if emit is Form.EXPR:
            refuse(decisions, "an expression graph is as it was imported", "--emit plan or a form that follows it")
    if emit is not None:
        searched = decisions["--search"]  # which keeps what it finds
        help = "leave it out; a .twm is kept in the cache, and what --search joint finds"
        refuse({"--no-cache": no_cache and not searched}, f"{emit} is made anew each time", help)


def _store(artifact: Artifact, place: Path, seconds: float, as_json: bool) -> None:
    artifact.save(place)
    manifest = artifact.manifest
    if as_json:
        size = place.stat().st_size
        show_json({"output": str(place), "seconds": seconds, "bytes": size, "manifest": manifest.to_json()})
        return
    kernels = len({launch.kernel for launch in manifest.launches})
    say(
        f"{place}: {kernels} kernels, {len(manifest.launches)} launches, {manifest.constants_bytes:,} bytes of "
        f"constants, {manifest.arena_bytes:,} of arena; {seconds:.2f} s"
    )


def _model_form(
    model: Path, emit: Form, shapes: dict[str, tuple[int, ...]], machine: str, threads: int | None, options: Options
) -> str | bytes:
    """A form of a model file, for any machine that code is generated for; nothing after that form is made."""
    from tilewright.compiler.program import Placement
    from tilewright.compiler.targets import target_of
    from tilewright.expr.text import print_graph
    from tilewright.kernel.text import print_module

    if emit is Form.EXPR:
        return print_graph(import_graph(model, shapes))
    plan, target = plan_model(model, shapes, machine, threads, options)
    if emit is Form.PLAN:
        return _plan_text(plan.decisions, plan.trees())
    if emit is Form.MAPPED:
        return print_graph(plan.mapped_graph())
    with progress(f"compiling {model}"):
        program = target_of(target).codegen.tile_program(plan, Placement(plan), target, options)
        return _program_form(print_module(program), emit, str(model), options)


def _stored_form(path: Path, emit: Form) -> str | bytes:
    """A form of a compiled model, as it was saved."""
    artifact = read_artifact(path)
    if emit is Form.EXPR:
        from tilewright.compiler.stored import stored_graph
        from tilewright.expr.text import print_graph

        return print_graph(stored_graph(artifact))
    if emit is Form.PLAN:
        stored = artifact.stored_plan()
        return _plan_text(stored.decisions, stored.trees)
    if emit is Form.MAPPED:
        return artifact.stored_plan().mapped
    if artifact.manifest.code == "object":
        return artifact.code if emit is Form.OBJECT else _program_form(artifact.program, emit, f"{path}: program.tile")
    if emit is Form.TILE:
        return artifact.stored_plan().tile
    return artifact.code if emit is Form.PTX else _program_form(artifact.program, emit, f"{path}: program.tile")


def _plan_text(decisions: Iterable[Decision], trees: Mapping[str, Any]) -> str:
    plan = {"decisions": [decision.to_json() for decision in decisions], "trees": trees}
    return json.dumps(plan, indent=1) + "\n"


def _read_program(path: Path) -> str:
    return read_input("<stdin>", sys.stdin, InvalidProgram) if str(path) == "-" else read_text(path, InvalidProgram)


def _tile_form(text: str, emit: Form, name: str, options: Options) -> str | bytes:
    """A form of a tile program in a file; passes that are to be left out have to be among those that run on it."""
    from tilewright.compiler.gpu import is_distributed
    from tilewright.compiler.targets import target_of_program
    from tilewright.graph.passes import table
    from tilewright.kernel.text import parse_module

    if options.disable:
        program = parse_module(text, name)
        later = not target_of_program(program).on_host and not is_distributed(program)
        passes = later and emit is not Form.TILE
        help = "they run on whole tiles for a GPU, on the way to a later form"
        refuse({"--disable": not passes}, "no passes run on this program", help)
        graph = ", ".join(each for each in options.disable if each in table.NAMES)
        refuse({"--disable": bool(graph)}, f"{graph}: of graphs, not of tile programs", "give the model file")
    return _program_form(text, emit, name, options)


def _program_form(text: str, emit: Form, name: str, options: Options | None = None) -> str | bytes:
    """A form of a tile program; nothing but its text is looked at, and for a GPU the passes that are switched off."""
    from tilewright.compiler.targets import target_of_program
    from tilewright.kernel.text import parse_module, print_module

    if emit in (Form.EXPR, Form.PLAN, Form.MAPPED):
        raise InvalidArgument(f"a tile program has no {emit}", where=name, help="a form that follows it")
    program = parse_module(text, name)
    if emit is Form.TILE:
        return print_module(program)
    return target_of_program(program).codegen.form(program, emit.value, options or Options(), name)


def _write(content: str | bytes, output: Path | None, emit: Form, as_json: bool) -> None:
    encoded = content.encode() if isinstance(content, str) else content
    if output is not None:
        write_file(output, encoded)
        if as_json:
            show_json({"output": str(output), "form": str(emit), "bytes": len(encoded)})
    elif as_json:
        show_json({"form": str(emit), "text": content})
    else:
        sys.stdout.write(encoded.decode())
