"""What is computed: per case the shapes, an expression graph, and the same in torch.

`CASES` are timed, `CHECKS` are of awkward sizes and only checked; `tiny` makes cases that the emulator manages.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.expr.core import Tensor
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import attention, conv, elementwise, linalg, norm, reduce, shape
from tilewright.graph.chain.workloads import GEMM_CHAINS

Shape = tuple[int, ...]
SIZES = {"f64": 8, "f32": 4, "s32": 4, "f16": 2, "bf16": 2, "s8": 1}
FLOATS = ("f64", "f32", "f16", "bf16")
# Largest ‖out − ref‖ / ‖ref‖: inputs and outputs rounded once, sums in f32 or wider; integers are exact.
BOUNDS = {"f64": 1e-12, "f32": 1e-5, "f16": 2e-3, "bf16": 1.5e-2, "s8": 0.0}
TF32_BOUND = 1e-3
# Rows, columns and sums of linear layers: of BERT-base for 128 and 2048 tokens, of Llama 2 7B for 16 to 512.
LINEAR = (
    (128, 768, 768), (128, 3072, 768), (128, 768, 3072), (2048, 768, 768), (2048, 3072, 768),
    (16, 4096, 4096), (64, 4096, 4096), (200, 4096, 4096), (512, 4096, 4096), (512, 11008, 4096), (512, 4096, 11008),
)  # fmt: skip
WEIGHTS = {
    "check": 2.0,
    "gemm": 4.0,
    "convolution": 1.5,
    "rows": 1.5,
    "elementwise": 1.0,
    "attention": 1.5,
    "chain": 1.0,
    "copy": 0.3,
}


@dataclass(frozen=True)
class Case:
    """One kernel: `build` makes it of our inputs, `torch` of torch's; `family` is also its section of the budget."""

    family: str
    name: str
    dtype: str
    shapes: tuple[Shape, ...]
    build: Callable[..., Tensor] | None
    torch: Callable[..., Any]
    flops: int
    output: Shape
    triton: str = ""  # the name of a kernel in `triton_kernels`
    sdpa: bool = False
    causal: bool = False
    one_call: bool = False  # of a library, which torch.compile would make too
    tuned: bool = False  # other tiles are timed too
    input_precision: str = "ieee"  # of products of f32: that of `tilewright.Options`
    result: str = ""  # the type of the output, if it is not that of the inputs
    reference: Callable[..., Any] | None = None  # in torch, where `torch` does not take f64

    @property
    def bound(self) -> float:
        return TF32_BOUND if self.input_precision == "tf32" else BOUNDS[self.dtype]

    @property
    def bytes(self) -> int:
        """The fewest that have to move: inputs read, the output written."""
        read = SIZES[self.dtype] * sum(map(math.prod, self.shapes))
        return read + SIZES[self.result or self.dtype] * math.prod(self.output)

    @property
    def file_name(self) -> str:
        """Of its code, compiled ahead."""
        return re.sub(r"[^A-Za-z0-9]+", "-", f"{self.family} {self.name} {self.dtype}") + ".twm"

    def graph(self) -> Graph:
        assert self.build is not None
        b = GraphBuilder(self.name)
        dtype = {"s8": "i8"}.get(self.dtype, self.dtype)
        tensors = [b.input(f"x{number}", extents, dtype) for number, extents in enumerate(self.shapes)]
        return b.finish([self.build(*tensors)])


def gemm(m: int, n: int, k: int, dtype: str, layout: str = "nn", epilogue: bool = False, batch: int = 0) -> Case:
    """``layout``: n or t for each operand; t is stored transposed."""
    lead: Shape = (batch,) if batch else ()
    a = (*lead, *((m, k) if layout[0] == "n" else (k, m)))
    w = (*lead, *((k, n) if layout[1] == "n" else (n, k)))
    flags = {"transpose_a": layout[0] == "t", "transpose_b": layout[1] == "t"}

    def build(x: Tensor, y: Tensor, *bias: Tensor) -> Tensor:
        product = linalg.matmul(x, y, **flags)
        return elementwise.relu(elementwise.binary(product, bias[0], "add")) if bias else product

    def torch(x: Any, y: Any, *bias: Any) -> Any:
        product = (x.mT if flags["transpose_a"] else x) @ (y.mT if flags["transpose_b"] else y)
        return (product + bias[0]).relu() if bias else product

    size = f"{batch}x{m}x{n}x{k}" if batch else f"{m}x{n}x{k}"
    name = f"{size} {layout}" + (" + bias, relu" if epilogue else "")
    shapes = (a, w, (n,)) if epilogue else (a, w)
    flops = 2 * m * n * k * max(1, batch)
    single = layout == "nn" and not epilogue and not batch
    plain = single and dtype in ("f16", "bf16")
    return Case(
        "gemm",
        name,
        dtype,
        shapes,
        build,
        torch,
        flops,
        (*lead, m, n),
        "matmul" if plain else "",
        one_call=not epilogue,
        tuned=single,
    )


def linear(m: int, n: int, k: int) -> Case:
    """A linear layer of f16 without a bias, whose weights are n x k; other tiles are timed too."""
    return replace(gemm(m, n, k, "f16", "nt"), tuned=True)


def gemm_bytes(m: int, n: int, k: int) -> Case:
    """A product of signed bytes, summed and stored in 32 bits; b is stored transposed."""

    def torch(x: Any, y: Any) -> Any:
        import torch

        return torch._int_mm(x, y.mT)

    def build(x: Tensor, y: Tensor) -> Tensor:
        return linalg.matmul(x, y, transpose_b=True, accumulate="i32", out_dtype="i32")

    return Case("gemm", f"{m}x{n}x{k} nt", "s8", ((m, k), (n, k)), build, torch, 2 * m * n * k, (m, n), one_call=True,
                tuned=True, result="s32", reference=lambda x, y: x @ y.mT)  # fmt: skip


def reading(input_precision: str, case: Case) -> Case:
    """The case with products that read f32 so."""
    return replace(case, name=f"{case.name} {input_precision}", input_precision=input_precision)


def convolution(n: int, c: int, size: int, k: int, kernel: int, stride: int, dtype: str) -> Case:
    out = (size + 2 * (kernel // 2) - kernel) // stride + 1

    def torch(x: Any, w: Any) -> Any:
        from torch.nn.functional import conv2d

        return conv2d(x, w, stride=stride, padding=kernel // 2)

    return Case(
        "convolution", f"{n}x{c}x{size}² to {k}, {kernel}x{kernel} / {stride}", dtype,
        ((n, c, size, size), (k, c, kernel, kernel)),
        lambda x, w: conv.conv(x, w, pads=kernel // 2, strides=stride), torch,
        2 * n * k * out * out * c * kernel * kernel, (n, k, out, out), one_call=True,
    )  # fmt: skip


def softmax(rows: int, columns: int, dtype: str) -> Case:
    return Case("rows", f"softmax {rows}x{columns}", dtype, ((rows, columns),), norm.softmax,
                lambda x: x.softmax(-1), 0, (rows, columns), "softmax")  # fmt: skip


def layer_norm(rows: int, columns: int, dtype: str) -> Case:
    def torch(x: Any, scale: Any, bias: Any) -> Any:
        from torch.nn.functional import layer_norm

        return layer_norm(x, (columns,), scale, bias)

    shapes = ((rows, columns), (columns,), (columns,))
    return Case("rows", f"layer norm {rows}x{columns}", dtype, shapes, norm.layer_norm, torch, 0, (rows, columns),
                "layer_norm")  # fmt: skip


def row_sum(rows: int, columns: int, dtype: str) -> Case:
    return Case("rows", f"sum {rows}x{columns}", dtype, ((rows, columns),),
                lambda x: reduce.reduce_sum(x, axes=[1]), lambda x: x.sum(1), 0, (rows, 1), "row_sum")  # fmt: skip


def column_sum(rows: int, columns: int, dtype: str) -> Case:
    return Case("rows", f"sum of columns {rows}x{columns}", dtype, ((rows, columns),),
                lambda x: reduce.reduce_sum(x, axes=[0]), lambda x: x.sum(0), 0, (1, columns))  # fmt: skip


def transposition(rows: int, columns: int, dtype: str) -> Case:
    return Case("elementwise", f"transposition {rows}x{columns}", dtype, ((rows, columns),),
                lambda x: shape.transpose(x), lambda x: x.mT.contiguous(), 0, (columns, rows),
                "transposition")  # fmt: skip


def relu(elements: int, dtype: str) -> Case:
    return Case("elementwise", f"relu(x), {elements}", dtype, ((elements,),), elementwise.relu, lambda x: x.relu(), 0,
                (elements,), one_call=True)  # fmt: skip


def gelu_gate(elements: int, dtype: str) -> Case:
    def torch(x: Any, y: Any) -> Any:
        from torch.nn.functional import gelu

        return gelu(x) * y

    return Case("elementwise", f"gelu(x) * y, {elements}", dtype, ((elements,), (elements,)),
                lambda x, y: elementwise.binary(elementwise.gelu(x), y, "mul"), torch, 0,
                (elements,), "gelu_gate")  # fmt: skip


def attend(batch: int, heads: int, length: int, width: int, dtype: str, causal: bool = False) -> Case:
    """Attention forward; of a causal mask the multiply-adds that it leaves count."""
    sizes, scale = (batch, heads, length, width), width**-0.5

    def torch(q: Any, k: Any, v: Any) -> Any:
        import torch

        if not causal:
            return (q @ k.mT * scale).softmax(-1) @ v
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def reference(q: Any, k: Any, v: Any) -> Any:
        """In f32, head by head: longer rows fill no memory."""
        import torch

        hidden = torch.full((length, length), -math.inf, device=q.device).triu(1) if causal else None
        found = torch.empty_like(q)
        for b, h in itertools.product(range(batch), range(heads)):
            scores = (q[b, h].float() @ k[b, h].float().mT) * scale
            weights = (scores if hidden is None else scores + hidden).softmax(-1)
            found[b, h] = weights @ v[b, h].float()
        return found

    name = f"{batch}x{heads}x{length}x{width}" + (" causal" if causal else "")
    seen = (length + 1) / (2 * length) if causal else 1.0
    return Case("attention", name, dtype, (sizes, sizes, sizes),
                lambda q, k, v: attention.attention(q, k, v, scale=scale, causal=causal), torch,
                round(4 * batch * heads * length * length * width * seen), sizes, sdpa=True, causal=causal,
                reference=reference)  # fmt: skip


def chain(number: int) -> Case:
    """Two products in f16 without anything between them; the sums of the first one are scaled to variance 1."""
    batch, m, n, k, l = GEMM_CHAINS[number - 1]

    def build(a: Tensor, b: Tensor, d: Tensor) -> Tensor:
        return linalg.matmul(linalg.matmul(a, b), d)

    return Case("chain", f"G{number} {batch}x{m}x{n}x{k}x{l}", "f16", ((batch, m, k), (batch, k, l), (batch, l, n)),
                build, lambda a, b, d: (a @ b) @ d, 2 * batch * m * l * (k + n), (batch, m, n),
                one_call=True)  # fmt: skip


def copy(elements: int) -> Case:
    """A copy by a kernel of torch's into memory that is there: the ceiling of everything that moves bytes.

    The driver's own copy is slower where it is recorded in a graph.
    """
    targets: list[Any] = []

    def torch(x: Any) -> Any:
        import torch

        if not targets or targets[0].dtype != x.dtype:
            targets[:] = [x.clone()]
        return torch.mul(x, 1.0, out=targets[0])

    return Case("copy", f"copy {elements}", "f32", ((elements,),), None, torch, 0, (elements,))


CASES: tuple[Case, ...] = (
    *(copy(1 << power) for power in (28, 26, 25, 24, 23)),
    *(gemm(size, size, size, dtype) for dtype in ("bf16", "f16") for size in (1024, 2048, 4096, 8192, 16384)),
    *(gemm(8192, 8192, k, "bf16") for k in (256, 1024)),
    *(gemm(4096, 4096, 4096, "bf16", layout) for layout in ("nt", "tn", "tt")),
    gemm(4096, 4096, 4096, "bf16", "nt", epilogue=True),
    gemm(512, 512, 512, "bf16", batch=64),
    gemm(1000, 1000, 1000, "f16"), gemm(4100, 4100, 4100, "f16"), gemm(3000, 3000, 3000, "bf16"),
    *(linear(*sizes) for sizes in LINEAR),
    gemm_bytes(4096, 4096, 4096),
    gemm(4096, 4096, 4096, "f32"),
    reading("tf32", gemm(4096, 4096, 4096, "f32")), reading("tf32x3", gemm(4096, 4096, 4096, "f32")),
    gemm(2048, 2048, 2048, "f64"),
    convolution(32, 64, 56, 64, 3, 1, "f16"),
    convolution(32, 256, 56, 128, 1, 2, "f16"),
    convolution(32, 512, 7, 512, 3, 1, "f16"),
    softmax(16384, 1024, "f16"), softmax(16384, 1024, "f32"), softmax(4096, 8192, "f32"),
    layer_norm(16384, 1024, "f16"), layer_norm(16384, 1024, "f32"), row_sum(16384, 4096, "f32"),
    column_sum(16384, 4096, "f32"),
    relu(1 << 26, "f32"), transposition(8192, 8192, "f32"), transposition(8192, 8192, "f16"),
    gelu_gate(1 << 26, "f32"), gelu_gate(1 << 26, "f16"),
    attend(4, 16, 2048, 64, "f16"), attend(2, 16, 2048, 128, "bf16"),
    *(attend(16384 // length, 2048 // width, length, width, "bf16", causal)
      for width in (64, 128) for length in (1024, 4096, 16384) for causal in (False, True)),
    *(chain(number) for number in range(1, len(GEMM_CHAINS) + 1)),
)  # fmt: skip

CHECKS: tuple[Case, ...] = tuple(
    replace(case, family="check", name=f"{case.family} {case.name}", triton="", sdpa=False, tuned=False)
    for case in (
        *(gemm(257, 129, 100, dtype) for dtype in FLOATS), gemm_bytes(130, 70, 68), gemm_bytes(256, 128, 128),
        *(gemm(256, 128, 192, "f16", layout) for layout in ("nn", "nt", "tn", "tt")),
        gemm(128, 256, 64, "bf16", "nt", epilogue=True),
        *(gemm(130, 70, 65, "f16", layout) for layout in ("nt", "tn", "tt")),
        gemm(130, 70, 65, "bf16", "nt", epilogue=True), gemm(33, 65, 17, "f16", batch=3),
        reading("tf32", gemm(130, 70, 65, "f32")), reading("tf32x3", gemm(130, 70, 65, "f32")), gemm(1, 1, 1, "f32"),
        convolution(2, 3, 17, 5, 3, 2, "f16"), convolution(1, 16, 9, 24, 3, 1, "f32"),
        *(make(13, columns, dtype) for make in (softmax, layer_norm, row_sum) for columns in (1, 100, 1300)
          for dtype in ("f32", "f16")),
        column_sum(100, 37, "f32"), transposition(37, 100, "f16"), relu(1001, "bf16"),
        gelu_gate(1001, "f32"), gelu_gate(1001, "bf16"), attend(2, 3, 65, 40, "f16"),
        attend(2, 3, 300, 64, "f16", causal=True), attend(1, 2, 257, 128, "bf16", causal=True),
    )
)  # fmt: skip


def tiny() -> tuple[Case, ...]:
    """One case of every family, small enough for the emulator."""
    return (
        copy(256), gemm(33, 17, 20, "f16"), convolution(1, 3, 5, 4, 3, 1, "f32"), softmax(3, 40, "f32"),
        gelu_gate(100, "f32"), attend(1, 1, 9, 8, "f32"),
        replace(row_sum(3, 40, "f32"), family="check"),
    )  # fmt: skip


def sections(cases: Sequence[Case]) -> list[str]:
    return list(dict.fromkeys(case.family for case in cases))
