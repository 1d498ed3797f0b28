"""The registry, and that each kind of problem says the same in ONNX, in PyTorch and in its numbers."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from bench.arrays import BF16
from bench.cases import (
    CASES,
    attention,
    chains,
    convolutions,
    gemm,
    irregular,
    memory_bound,
    overhead,
    resnet18,
    select,
)
from bench.problem import Problem


def test_families_are_complete() -> None:
    families = Counter(case.family for case in CASES.values())
    assert families["yolo"] == 15
    assert families["gemm-f32-skinny"] == 12
    assert families["gemm-chain"] == families["gemm-chain-softmax"] == families["gemm-chain-softmax-bf16"] == 12
    assert families["conv-chain"] == families["conv-chain-relu"] == 8
    assert families["attention"] == 14
    assert families["resnet18-f32"] == families["resnet18-bf16"] == families["resnet18-u8s8"] == 12


def test_select_by_name_family_and_pattern() -> None:
    assert [case.name for case in select(["call-overhead"])] == ["call-overhead"]
    assert len(select(["yolo"])) == 15
    assert [case.name for case in select(["yolo-C1?", "yolo-C2"])][:2] == ["yolo-C2", "yolo-C10"]
    assert len(select(["all", "yolo"])) == len(CASES)


def test_pattern_without_a_case_is_refused() -> None:
    with pytest.raises(ValueError, match="no case or family matches 'yolo-C16'"):
        select(["yolo", "yolo-C16"])


def test_listing_imports_no_big_library() -> None:
    program = "import sys, bench.cases, bench.peers; print({'torch', 'onnx', 'openvino'} & set(sys.modules))"
    listed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert listed.stdout.strip() == "set()"


SMALL = {
    "variable": lambda: gemm.variable_f32(5, 7, 9),
    "constant": lambda: gemm.constant_f32(5, 7, 9),
    "bf16": lambda: gemm.constant_bf16(5, 7, 9),
    "u8s8": lambda: gemm.constant_u8s8(5, 7, 9),
    "convolution": lambda: convolutions.convolution(convolutions.Layer(3, 4, 9, 3, 2)),
    "convolution-strided-1x1": lambda: convolutions.convolution(convolutions.Layer(3, 4, 9, 1, 2)),
    "convolution-dilated": lambda: convolutions.convolution(convolutions.Layer(3, 4, 9, 3, 1, 4)),
    "convolution-bf16": lambda: convolutions.convolution(convolutions.Layer(3, 4, 9, 3, 2), BF16),
    "convolution-u8s8": lambda: resnet18.integer_convolution(convolutions.Layer(3, 4, 9, 3, 2)),
    "gemm-chain": lambda: chains.gemm_chain(chains.GemmChain(2, 5, 6, 7, 8), softmax=False),
    "gemm-chain-softmax": lambda: chains.gemm_chain(chains.GemmChain(2, 5, 6, 7, 8), softmax=True),
    "conv-chain": lambda: chains.conv_chain(chains.ConvChain(3, 8, 8, 4, 5, 2, 1, 3, 1)),
    "conv-chain-cropped": lambda: chains.conv_chain(chains.ConvChain(3, 9, 9, 4, 5, 2, 1, 3, 1)),  # as C2
    "conv-chain-sliced": lambda: chains.conv_chain(chains.ConvChain(3, 11, 11, 4, 5, 4, 1, 3, 1)),  # as C5
    "gemm-chain-softmax-bf16": lambda: chains.gemm_chain(chains.GemmChain(2, 5, 6, 7, 8), softmax=True, dtype=BF16),
    "conv-chain-relu": lambda: chains.conv_chain(chains.ConvChain(3, 9, 9, 4, 5, 2, 1, 3, 1), relu=True),
    "attention": lambda: attention.attention(2, 5, 3, causal=False),
    "attention-causal": lambda: attention.attention(2, 5, 3, causal=True),
    "softmax": lambda: memory_bound.softmax(3, 5),
    "layer-norm": lambda: memory_bound.layer_norm(3, 5),
    "gelu": lambda: memory_bound.gelu_residual(3, 5),
    "add": overhead.add,
    "transposed": lambda: irregular.transposed(irregular.Upsampling(3, 5, 4, 3, 2, 1, 1)),
    "detector-heads": lambda: irregular.detector_heads(((3, 2), (2, 3), (1, 1)), 3),
    "topk": lambda: irregular.top_k(3, 17, 5),
    "cumsum": lambda: irregular.cumulative_sum(3, 7),
    "scatter-nd": lambda: irregular.scatter_rows(5, 17, 3),
    "scatter-chain": lambda: irregular.scatter_chain(7, 5, 2, 3),
    "scatter-elements": lambda: irregular.scatter_elements(7, 3),
    "graph-layer": lambda: irregular.graph_layer(5, 17, 3),
    "lstm": lambda: irregular.recurrent("lstm", 3, 2, 5),
    "gru": lambda: irregular.recurrent("gru", 3, 2, 5),
}


FORMS = [(name, "") for name in SMALL] + [
    ("convolution-u8s8", resnet18.F32_SUMS),
    ("convolution-u8s8", resnet18.REQUANTISED),
    ("attention", attention.PRODUCTS),
    ("attention-causal", attention.PRODUCTS),
]


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_model_modules_and_reference_agree(name: str, form: str) -> None:
    onnx = pytest.importorskip("onnx")
    reference = pytest.importorskip("onnx.reference")
    torch = pytest.importorskip("torch")
    from bench.arrays import from_torch, to_torch
    from bench.prepare import exact
    from bench.runner import error_of

    problem: Problem = SMALL[name]()
    problem = problem.variants[form] if form else problem
    onnx.checker.check_model(problem.model, full_check=True)
    (expected,) = reference.ReferenceEvaluator(problem.model).run(None, dict(problem.inputs))
    (wide,) = exact(problem)
    assert error_of(np.asarray(expected, np.float64), wide) <= problem.tolerance
    tensors = [to_torch(array) for array in problem.inputs.values()]
    for module in problem.modules.values():
        with torch.no_grad():
            actual = from_torch(module(*tensors).contiguous())
        assert error_of(actual, wide) <= problem.tolerance


def test_modules_of_a_network_alone_are_those_of_its_problem() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    case = CASES["mi-lstm"]
    (alone,) = case.modules()[""].values()
    (built,) = case.build().modules.values()
    assert alone.state_dict().keys() == built.state_dict().keys()
    assert all(torch.equal(alone.state_dict()[key], value) for key, value in built.state_dict().items())


def test_requantised_sums_use_the_range_of_u8() -> None:
    """Also that one unit passes and two do not, in the units of the error."""
    pytest.importorskip("onnx")
    pytest.importorskip("torch")
    from bench.prepare import exact
    from bench.runner import error_of

    problem = resnet18.integer_convolution(convolutions.Layer(16, 32, 12, 3, 1)).variants[resnet18.REQUANTISED]
    (result,) = exact(problem)
    assert result.min() < 32
    assert result.max() > 224
    assert len(np.unique(result)) > 100
    assert error_of(result - 1, result) <= problem.tolerance < error_of(result - 2, result)


def test_layers_are_those_of_the_table() -> None:
    """Extents of the results in table order, and the multiplications that follow from them."""
    assert [layer.output_shape[2] for layer in resnet18.LAYERS] == [112, 56, 56, 28, 28, 28, 14, 14, 14, 7, 7, 7]
    assert resnet18.LAYERS[0].flops == 2 * 64 * 112**2 * 147
    assert resnet18.LAYERS[11].flops == 2 * 512 * 7**2 * 4608


def test_flops_of_the_yolo_layers_are_the_thesis_counts() -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("torch")
    assert CASES["yolo-C1"].build().flops == 2 * 472_055_808
    assert CASES["yolo-C14"].build().flops == 2 * 462_422_016


def test_flops_of_the_chains_are_those_of_the_tables() -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("torch")
    assert CASES["gemm-chain-G9"].build().flops == pytest.approx(221.5e6, rel=1e-3)
    assert CASES["conv-chain-C2"].build().flops == pytest.approx((196.4 + 54.6) * 1e6, rel=1e-3)
    assert CASES["conv-chain-C5"].build().flops == pytest.approx((57.8 + 6.4) * 1e6, rel=1e-3)
