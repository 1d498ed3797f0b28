"""PyTorch module → ONNX file, through the exporter that is built on torch.export."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes
import torch
from onnxscript.optimizer import fold_constants
from onnxscript.rewriter import rewrite
from onnxscript.rewriter.rules.common import remove_optional_bias_from_conv_rule, transpose_transpose_rule


def export_module(module: torch.nn.Module, inputs: dict[str, torch.Tensor], path: str | Path, opset: int = 18) -> None:
    """Write `module`, in evaluation mode, to `path` with the static shapes of `inputs` and one output called `output`.

    The oldest opset this exporter writes is 18.
    """
    with _quiet():
        program = torch.onnx.export(
            module,
            tuple(inputs.values()),
            input_names=list(inputs),
            output_names=["output"],
            opset_version=opset,
            dynamo=True,
            optimize=False,
            verbose=False,
        )
        assert program is not None
        _fold_constants(program.model)
    model = program.model_proto
    _strip_metadata(model)
    onnx.save(model, path)


def _fold_constants(model: ir.Model) -> None:
    """Fold what follows from static shapes, merge transposes, drop zero biases that the exporter gives convolutions.

    The exporter's own optimiser does more: it merges batch norms into convolutions, which is the reader's work here.
    """
    fold_constants(model)
    rewrite(model, [remove_optional_bias_from_conv_rule, transpose_transpose_rule])
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    passes.DeduplicateInitializersPass()(model)
    passes.RemoveUnusedNodesPass()(model)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the exporter's remarks on packages that these networks don't need."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _strip_metadata(model: onnx.ModelProto) -> None:
    """Drop the stack traces and source paths that the exporter attaches to nodes and values."""
    graph = model.graph
    owners: list[Any] = [model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer]
    for owner in owners:
        owner.ClearField("metadata_props")
        if hasattr(owner, "doc_string"):
            owner.ClearField("doc_string")
