"""Random ONNX graphs against onnxruntime and a reference: `python -m tests.random_onnx --cases 5000 --seed 0`.

Each case is a graph of a few nodes (`onnx_recipes`) over values that later nodes share. Ten cases are compiled as one
module. A result is right where it is the imported graph in float64, within the bound of a running error analysis, and
agrees loosely with onnxruntime or else with the reference evaluator of the onnx package; what both have otherwise must
be explained in `EXPLAINED`. All else is a finding: its graph is printed with the seed, cut down to what it needs.

    python -m tests.random_onnx --case 4711     one case, by its seed

Exit status: 0 nothing found, 1 findings, 2 bad usage.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
from onnx import helper

from tests.onnx_recipes import RECIPES
from tests.onnx_recipes.draft import OPSET, Draft, code_of, tensor_of
from tilewright.compiler.compile import compile_graph
from tilewright.compiler.tests.bounded import Bounded, evaluate_bounded, violations
from tilewright.errors import CompileError
from tilewright.expr.graph import Graph
from tilewright.frontend.onnx import import_model
from tilewright.options import Options

Array = np.ndarray[Any, Any]
Results = dict[str, Array]

TOGETHER = 10  # cases in one module
LOOSE = 40.0  # bounds that onnxruntime may be off: its functions are less exact, its sums in another order
CANCELLED = 17.0  # units of f32, or of a narrower type, of the largest element: what ``1 + erf(x)`` loses elsewhere

#: Operators whose results in onnxruntime differ from the definition, and in what.
EXPLAINED: dict[str, str] = {
    "Resize": "positions in f32, which miss whole coordinates",
    "Round": "f16 and f64 by another rounding of halves",
}


@dataclass
class Case:
    """A graph: its seed, the draft of it, and the outputs that are compared."""

    seed: int
    draft: Draft
    outputs: list[str]


@dataclass
class Tally:
    """What came of the cases."""

    cases: int = 0
    nodes: Counter[str] = field(default_factory=Counter)
    elsewhere: Counter[str] = field(default_factory=Counter)  # onnxruntime differs, by operator
    skipped: Counter[str] = field(default_factory=Counter)  # what no reference runs, or the importer refuses
    findings: list[str] = field(default_factory=list)


def random_case(seed: int, prefix: str = "") -> Case:
    """A graph of one to six nodes of operators chosen at random."""
    rng = np.random.default_rng(seed)
    draft = Draft(rng, prefix)
    count = int(rng.integers(1, 7))
    names = list(RECIPES)
    while len(draft.nodes) < count:
        operator = draft.one(names)
        before = (len(draft.nodes), dict(draft.constants), dict(draft.inputs), dict(draft.types), list(draft.made))
        try:
            RECIPES[operator](draft, operator)
        except Exception as error:  # ONNX refuses the types, or infers no shape: another node instead
            if not isinstance(error, LookupError) and type(error).__name__ not in ("InferenceError", "ValidationError"):
                raise
            _, draft.constants, draft.inputs, draft.types, draft.made = before
            del draft.nodes[before[0] :]
    return Case(seed, draft, list(draft.made))


def model_of(cases: Sequence[Case], outputs: Sequence[str] = ()) -> Any:
    """One model of all the cases; with `outputs`, only of the nodes that those need."""
    wanted = list(outputs) or [name for case in cases for name in case.outputs]
    nodes, needed = [], set(wanted)
    for case in cases:
        for node in reversed(case.draft.nodes):
            if needed & set(node.output):
                needed |= set(node.input)
                nodes.insert(0, node)
    drafts = [case.draft for case in cases]
    types = {name: type_ for draft in drafts for name, type_ in draft.types.items()}
    inputs = [_info(n, types) for draft in drafts for n in draft.inputs if n in needed]
    held = [tensor_of(array, n) for draft in drafts for n, array in draft.constants.items() if n in needed]
    graph = helper.make_graph(nodes, "random", inputs, [_info(n, types) for n in wanted], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)


def _info(name: str, types: dict[str, Any]) -> Any:
    dtype, shape = types[name]
    return helper.make_tensor_value_info(name, code_of(dtype), shape)


def feeds_of(cases: Sequence[Case], model: Any) -> Results:
    arrays = {name: array for case in cases for name, array in case.draft.inputs.items()}
    return {value.name: arrays[value.name] for value in model.graph.input}


# The ways to run a model ----------------------------------------------------------------------------------------------


def ours(graph: Graph, feeds: Results) -> Results:
    module = compile_graph(graph, "host", 1, replace(Options(), cache=False))
    found = module(*(feeds[tensor.name] for tensor in graph.inputs))
    found = found if isinstance(found, (tuple, list)) else [found]
    return {tensor.name: np.asarray(array) for tensor, array in zip(graph.outputs, found, strict=True)}


def onnxruntime(model: Any, feeds: Results) -> Results:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in model.graph.output]
    return dict(zip(names, session.run(names, feeds), strict=True))


def reference(model: Any, feeds: Results) -> Results:
    from onnx.reference import ReferenceEvaluator

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = ReferenceEvaluator(model).run(None, feeds)
    return {value.name: np.asarray(a) for value, a in zip(model.graph.output, found, strict=True)}


# Comparison -----------------------------------------------------------------------------------------------------------


def examine(cases: Sequence[Case], tally: Tally, run: Callable[[Graph, Results], Results] = ours) -> None:
    """Compile and compare the cases together; those that cannot be imported are left out and counted."""
    able: list[tuple[Case, Graph]] = []
    for case in cases:
        tally.cases += 1
        tally.nodes.update(node.op_type for node in case.draft.nodes)
        model = model_of([case])
        try:
            able.append((case, import_model(model, {n: a.shape for n, a in case.draft.inputs.items()})))
        except CompileError as error:
            tally.skipped[f"importer: {str(error).splitlines()[-1].strip()[:100]}"] += 1
    if not able:
        return
    together = import_model(model_of([case for case, _ in able]), {})
    found = run(together, feeds_of([case for case, _ in able], model_of([case for case, _ in able])))
    for case, graph in able:
        _compare(case, graph, {name: found[name] for name in case.outputs}, tally)


def _compare(case: Case, graph: Graph, found: Results, tally: Tally) -> None:
    bounds = _bounds(graph, case.draft.inputs)
    others = _bounds(*_unfolded(case, graph))
    for name in case.outputs:
        value, bound = bounds[name]
        others_bound = others[name][1]
        model = model_of([case], [name])
        feeds = feeds_of([case], model)
        node = next(n for n in case.draft.nodes if name in n.output)
        internal = violations(found[name], (value, bound)).any() or found[name].shape != value.shape
        truths: list[tuple[str, Array]] = []
        for runner in (onnxruntime, reference):
            try:
                truths.append((runner.__name__, runner(model, feeds)[name]))
            except Exception as error:
                tally.skipped[f"{runner.__name__}: {node.op_type} ({type(error).__name__})"] += 1
                continue
            if _agree(found[name], truths[-1][1], others_bound):
                break
        right = bool(truths) and _agree(found[name], truths[-1][1], others_bound)
        if right and truths[-1][0] == "reference" and len(truths) == 2:
            tally.elsewhere[node.op_type] += 1
        if internal or (truths and not right):
            if not internal and node.op_type in EXPLAINED:
                tally.elsewhere[node.op_type] += 1
                continue
            tally.findings.append(_finding(case, name, model, feeds, found[name], value, truths))
            return


def _bounds(graph: Graph, inputs: Results) -> dict[str, Bounded]:
    return dict(zip([tensor.name for tensor in graph.outputs], evaluate_bounded(graph, inputs), strict=True))


def _unfolded(case: Case, folded: Graph) -> tuple[Graph, Results]:
    """The graph with its constants as inputs, and their values: what others round who do not fold.

    Where the importer needs constants it is the folded one.
    """
    draft = case.draft
    model = model_of([case])
    floats = {tensor.name for tensor in model.graph.initializer if draft.types[tensor.name][0].kind not in "iub"}
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in floats]
    model.graph.ClearField("initializer")
    model.graph.initializer.extend(kept)
    model.graph.input.extend(_info(name, draft.types) for name in sorted(floats))
    try:
        graph = import_model(model, {name: draft.types[name][1] for name in (*draft.inputs, *floats)})
    except CompileError:
        return folded, draft.inputs
    return graph, {**draft.inputs, **{name: draft.constants[name] for name in floats}}


def _agree(found: Array, truth: Array, bound: Array) -> bool:
    """Whether two results are one within a bound. What another implementation rounds is at least half a unit."""
    if found.shape != truth.shape or found.dtype != truth.dtype:
        return False
    if found.dtype.kind in "iub":
        differs = found != truth
        return not (differs & ~bound).any() if not differs.all() or bound.all() else not differs.any()
    wide = truth.astype(np.float64)
    finite = np.abs(wide[np.isfinite(wide)])
    unit = float(ml_dtypes.finfo(found.dtype).eps)
    slack = CANCELLED * max(unit, float(np.finfo(np.float32).eps)) * max(1.0, float(finite.max(initial=0)))
    rounding = np.abs(wide) * unit / 2
    return not violations(found, (wide, np.maximum(LOOSE * np.maximum(bound, rounding), slack))).any()


def _finding(
    case: Case, name: str, model: Any, feeds: Results, found: Array, value: Array, truths: Sequence[tuple[str, Array]]
) -> str:
    import onnx.printer

    lines = [f"seed {case.seed}: {name}", onnx.printer.to_text(model)[:1500]]
    for what, array in (("compiled", found), ("float64", value), *truths):
        lines.append(f"{what} {array.dtype}{list(array.shape)}: {np.asarray(array).reshape(-1)[:12]}")
    lines += [f"{input_} = {array.reshape(-1)[:12]}" for input_, array in feeds.items()]
    return "\n".join(lines)


def run(seeds: Sequence[int], progress: Callable[[str], Any] = lambda _: None) -> Tally:
    tally = Tally()
    for first in range(0, len(seeds), TOGETHER):
        group = [random_case(seed, f"g{seed}_") for seed in seeds[first : first + TOGETHER]]
        examine(group, tally)
        progress(f"{tally.cases} cases, {len(tally.findings)} findings")
    return tally


def report(tally: Tally) -> str:
    lines = [f"{tally.cases} cases of {sum(tally.nodes.values())} nodes, {len(tally.nodes)} operators"]
    lines += [f"  {n:5} x onnxruntime differs: {name}" for name, n in tally.elsewhere.most_common()]
    lines += [f"  {n:5} x skipped: {what}" for what, n in tally.skipped.most_common()]
    return "\n".join([*lines, *tally.findings, f"{len(tally.findings)} findings"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.random_onnx", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="only the case of this seed")
    options = parser.parse_args(arguments)
    began = time.process_time()
    one = options.case is not None
    seeds = [options.case] if one else range(options.seed, options.seed + options.cases)
    tally = run(seeds)
    sys.stdout.write(f"{report(tally)}\n{time.process_time() - began:.0f} s of processor time\n")
    return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
