"""Programs that run a chain of two products on one thread: this compiler's kernels, PyTorch, and onnxruntime.

PyTorch and onnxruntime take part where they are installed. What all of them compute is compared with float64 first.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from tilewright.compiler.compile import build
from tilewright.dataclass import dataclass
from tilewright.expr.core import static_shape
from tilewright.expr.dtypes import numpy_dtype
from tilewright.expr.graph import Graph
from tilewright.machine.description import Cpu
from tilewright.options import Options
from tilewright.runtime.module import Module

ONE, APART = "one kernel", "a kernel each"
TORCH, ATTENTION, ONNX = "PyTorch", "PyTorch attention", "onnxruntime"
NAMES: Final = (ONE, APART, TORCH, ATTENTION, ONNX)
TOLERANCE = 1e-4  # of the largest value of a result, which sums of some hundred rounded products stay below

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Contender:
    """A program: `call` runs it on `inputs`, whose memory it may have bound, and gives its result."""

    name: str
    inputs: Sequence[Array]
    call: Callable[[], Any]


def contenders(graph: Graph, softmax: bool, machine: Cpu, fused: bool) -> tuple[Contender, ...]:
    """All programs for a chain whose inputs are its three factors; as one kernel only where that is `fused`."""
    inputs = random_factors(graph)
    ways = {ONE: "always", APART: "never"} if fused else {APART: "never"}
    calls = {name: _compiled(graph, machine, fuse, inputs) for name, fuse in ways.items()}
    if importlib.util.find_spec("torch"):
        calls[TORCH] = _products_of_torch(softmax, inputs)
        if softmax:
            calls[ATTENTION] = _attention_of_torch(inputs)
    if importlib.util.find_spec("onnxruntime") and importlib.util.find_spec("onnx"):
        calls[ONNX] = _session(softmax, inputs)
    exact = exact_chain(softmax, inputs)
    for name, call in calls.items():
        error = np.abs(np.asarray(call()) - exact).max() / np.abs(exact).max()
        assert error <= TOLERANCE, f"bug: {name} computes another chain: it is off by {error:.2g} of the largest value"
    return tuple(Contender(name, inputs, call) for name, call in calls.items())


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch runs on the calling thread alone meanwhile."""
    if not importlib.util.find_spec("torch"):
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def random_factors(graph: Graph) -> list[Array]:
    """Random factors, such that both sums have variance 1."""
    numbers = np.random.default_rng(0)
    shapes = [static_shape(tensor.shape) for tensor in graph.inputs]
    scales = (1.0, shapes[1][-2] ** -0.5, shapes[2][-2] ** -0.5)
    dtypes = [numpy_dtype(tensor.dtype) for tensor in graph.inputs]
    drawn = zip(shapes, scales, dtypes, strict=True)
    return [(scale * numbers.standard_normal(shape)).astype(dtype) for shape, scale, dtype in drawn]


def exact_chain(softmax: bool, inputs: Sequence[Array]) -> Array:
    """The result of a chain in float64."""
    a, b, d = (each.astype(np.float64) for each in inputs)
    c = a @ b
    if softmax:
        c = np.exp(c - c.max(-1, keepdims=True))
        c /= c.sum(-1, keepdims=True)
    return np.asarray(c @ d)


def _result(inputs: Sequence[Array]) -> Array:
    """Memory for a result, touched."""
    a, _, d = inputs
    return np.zeros((*a.shape[:-1], d.shape[-1]), a.dtype)


def _compiled(graph: Graph, machine: Cpu, fuse: str, inputs: Sequence[Array]) -> Callable[[], Any]:
    module = Module(build(graph, machine, 1, Options(cache=False, fuse=fuse)), threads=1)
    out = _result(inputs)
    return lambda: module(*inputs, out=out)


def _products_of_torch(softmax: bool, inputs: Sequence[Array]) -> Callable[[], Any]:
    import torch

    a, b, d = map(torch.from_numpy, inputs)

    def call() -> Any:
        with torch.inference_mode():
            c = torch.matmul(a, b)
            return torch.matmul(c.softmax(-1) if softmax else c, d)

    return call


def _attention_of_torch(inputs: Sequence[Array]) -> Callable[[], Any]:
    import torch

    query, key, value = (each[None] for each in map(torch.from_numpy, inputs))
    if query.ndim == 3:
        query, key, value = query[None], key[None], value[None]
    key = key.transpose(-1, -2)
    attention = torch.nn.functional.scaled_dot_product_attention

    def call() -> Any:
        with torch.inference_mode():
            return attention(query, key, value, scale=1.0)

    return call


def _session(softmax: bool, inputs: Sequence[Array]) -> Callable[[], Any]:
    """A session on one thread whose inputs and output are bound to arrays."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    model, out = _model(inputs, softmax), _result(inputs)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in zip("abd", inputs, strict=True):
        binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    binding.bind_output("e", "cpu", 0, out.dtype, out.shape, out.ctypes.data)

    def call() -> Array:
        session.run_with_iobinding(binding)
        return out

    return call


def _model(inputs: Sequence[Array], softmax: bool) -> bytes:
    """The chain in ONNX."""
    from onnx import helper

    middle = [helper.make_node("Softmax", ["c"], ["p"], axis=-1)] if softmax else []
    last = helper.make_node("MatMul", ["p" if softmax else "c", "d"], ["e"])
    nodes = [helper.make_node("MatMul", ["a", "b"], ["c"]), *middle, last]
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip("abde", (*inputs, _result(inputs)), strict=True)
    ]
    graph = helper.make_graph(nodes, "chain", values[:3], values[3:])
    opset = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString())
