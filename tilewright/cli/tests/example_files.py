"""The files that the examples in the help of commands name."""

from __future__ import annotations

import json
import shutil
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import numpy as np

from tilewright.cli.console import show_json
from tilewright.cli.sample import perceptron
from tilewright.cli.tests.test_model import RUN
from tilewright.cli.tests.test_schedule_mma import DATA
from tilewright.compiler.compile import build
from tilewright.emulator.tests.harness import STORED
from tilewright.intrinsics.files import to_json
from tilewright.intrinsics.registry import standard
from tilewright.machine import host
from tilewright.options import Options
from tilewright.reproduce.tests.test_stored import compared, ranked
from tilewright.reproduce.tileflow.rtl import FUSED_ROWS, GEMM_ROWS
from tilewright.runtime.artifact import Artifact

_ROWS = 8  # of a table that has hundreds, its head among them

PRODUCT = """
input A: f16[32, 16]
input B: f16[16, 32]
C: f16[m:32, n:32] += A[m, k] * B[k, n] over k:16
output C
tree
@DRAM for m:2, n:2 { @L1 for m:16, n:16, k:16 { @RF for once:1 { op C } } }
"""

CHIP = """
architecture:
  subtree:
    - name: chip
      local:
        - {name: DRAM, class: DRAM}
        - {name: RF, class: regfile, attributes: {depth: 512}}
        - {name: mac, class: intmac}
"""


def example_files(of_kernel: bool = False) -> None:
    """Write the files into the current folder. `of_kernel`: `in.npz` has the arguments of a kernel, not of a model."""
    import onnx
    from onnx import helper

    node = helper.make_node("Relu", ["x"], ["y"])
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 3, 224, 224]) for name in "xy")
    graph = helper.make_graph([node], "layer", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), "model.onnx")
    shapes = {"a": [2, 9, 8], "b": [2, 8, 20], "d": [2, 20, 7], "e": [2, 9, 7]}
    a, b, d, e = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items())
    nodes = [helper.make_node("MatMul", ["a", "b"], ["c"]), helper.make_node("MatMul", ["c", "d"], ["e"])]
    graph = helper.make_graph(nodes, "chain", [a, b, d], [e])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), "chain.onnx")
    _module().save(Path("model.twm"))
    if of_kernel:
        shutil.copy(STORED / "add.npz", "in.npz")
    else:
        np.savez("in.npz", x=np.ones((4, 6), np.float32))
    Path("other.yaml").write_text("extends: x86-64-v3\nname: other\n")
    Path("mine.yaml").write_text(_record())
    Path("chain.tile").write_text(PRODUCT)
    Path("run.yaml").write_text(RUN)
    Path("chip.yaml").write_text(CHIP)
    for name, report in (("cpu.json", compared()), ("model.json", ranked())):
        with Path(name).open("w") as file, redirect_stdout(file):
            show_json(report.to_json())
    shutil.copy(STORED / "add.ptx", "add.ptx")
    shutil.copy(DATA, "configs.csv")
    for name, rows in (("gemm.csv", GEMM_ROWS), ("fused.csv", FUSED_ROWS)):
        Path(name).write_text("".join(rows.read_text().splitlines(keepends=True)[:_ROWS]))


@cache
def _module() -> Artifact:
    return build(perceptron(4, (6, 5, 3)), host(), 1, Options(cache=False))


def _record() -> str:
    """A file with a record called `my_unit`."""
    record = to_json(standard().find("wmma_16x16x16_f16_f32"))
    return json.dumps({"intrinsics": [record | {"name": "my_unit", "aliases": []}]})
