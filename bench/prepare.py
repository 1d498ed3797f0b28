"""Build a case's problem and write what peers need: the model, its inputs, exact outputs, empty outputs, facts."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from bench.arrays import Array, from_torch, save_arrays, to_torch
from bench.problem import FACTS, Case, Facts, Problem


def prepare(case: Case, directory: Path) -> Facts:
    """Write `case` into the existing `directory`, in the files that `Task` reads; each variant into a folder."""
    problem = case.build()
    for name, variant in problem.variants.items():
        (directory / name).mkdir()
        _write(variant, directory / name)
    return _write(problem, directory)


def _write(problem: Problem, directory: Path) -> Facts:
    import onnx

    onnx.checker.check_model(problem.model, full_check=True)
    onnx.save(problem.model, directory / "model.onnx")
    save_arrays(directory / "inputs.npz", problem.inputs)
    graph = problem.model.graph
    expected = dict(zip((value.name for value in graph.output), exact(problem), strict=True))
    save_arrays(directory / "reference.npz", expected)
    outputs = {}
    for value in graph.output:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        outputs[value.name] = np.zeros(expected[value.name].shape, dtype)
    save_arrays(directory / "outputs.npz", outputs)
    constants = sum(onnx.numpy_helper.to_array(constant).nbytes for constant in graph.initializer)
    facts = Facts(
        flops=problem.flops,
        exponentials=problem.exponentials,
        bytes=constants + sum(array.nbytes for array in (*problem.inputs.values(), *outputs.values())),
        tolerance=problem.tolerance,
        output_names=tuple(outputs),
    )
    known = asdict(facts)
    later = {"exponentials": known.pop("exponentials")}
    for name, values in zip(FACTS, (known, later), strict=True):
        (directory / name).write_text(json.dumps(values))
    return facts


def exact(problem: Problem) -> list[Array]:
    """The problem's outputs in float64: every input and constant is a float64 too."""
    import torch

    module = problem.reference or next(iter(problem.modules.values()))
    wide = copy.deepcopy(module).double().eval()
    tensors = [to_torch(np.ascontiguousarray(array)) for array in problem.inputs.values()]
    with torch.inference_mode():
        outputs = wide(*(tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors))
    outputs = outputs if isinstance(outputs, tuple | list) else [outputs]
    return [from_torch(output.contiguous()) for output in outputs]
