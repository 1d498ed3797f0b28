"""Kernels in Triton, and the command that compiles them into the files that the tests run: no GPU is needed.

pip install 'triton==3.*' && python -m tilewright.emulator.tests.triton_kernels
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

FOLDER = Path(__file__).parent / "triton"
#: What of the metadata is stored.
KEPT = ("name", "num_warps", "num_ctas", "shared", "warp_size", "global_scratch_size", "profile_scratch_size",
        "triton_version")  # fmt: skip


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
    power = tl.exp(value - tl.max(value, axis=0))
    tl.store(out + row * columns + at, power / tl.sum(power, axis=0), mask=at < columns)


@triton.jit
def matmul(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):  # type: ignore[no-untyped-def]
    rows, columns = tl.program_id(0) * M + tl.arange(0, M), tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, k, K):
        ks = start + tl.arange(0, K)
        left = tl.load(a + rows[:, None] * k + ks[None, :], mask=(rows < m)[:, None] & (ks < k)[None, :], other=0.0)
        right = tl.load(
            b + ks[:, None] * n + columns[None, :], mask=(ks < k)[:, None] & (columns < n)[None, :], other=0.0
        )
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * n + columns[None, :], total, mask=(rows < m)[:, None] & (columns < n)[None, :])


PRODUCT = {"a": "*fp16", "b": "*fp16", "c": "*fp32", "m": "i32", "n": "i32", "k": "i32"}
#: Kernel, types of its arguments, constants, compute capability, options.
KERNELS: dict[str, tuple[Any, dict[str, str], dict[str, int], int, dict[str, int]]] = {
    "add_sm80": (add, {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32"}, {"BLOCK": 256}, 80, {}),
    "softmax_sm80": (softmax, {"x": "*fp32", "out": "*fp32", "columns": "i32"}, {"BLOCK": 512}, 80, {}),
    "matmul_sm80": (matmul, PRODUCT, {"M": 64, "N": 32, "K": 32}, 80, {"num_stages": 3}),
    "matmul_sm90": (matmul, PRODUCT, {"M": 64, "N": 64, "K": 64}, 90, {"num_stages": 3}),
}


def compiled(name: str) -> Any:
    """A kernel of `KERNELS` as Triton gives it. Arguments count as divisible by 16, as the tests have them."""
    kernel, types, constants, capability, options = KERNELS[name]
    divisible = {(number,): [["tt.divisibility", 16]] for number in range(len(types))}
    signature = types | dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=divisible)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in KERNELS:
        kernel = compiled(name)
        lines = kernel.asm["ptx"].rstrip("\0").split("\n")
        first = next((number for number, line in enumerate(lines) if ".section" in line), len(lines))
        kept = [line for line in lines[:first] if not line.lstrip().startswith((".loc", ".file", "//", "$L__tmp"))]
        (FOLDER / f"{name}.ptx").write_text("\n".join(kept).rstrip() + "\n")
        metadata = {each: getattr(kernel.metadata, each) for each in KEPT}
        (FOLDER / f"{name}.json").write_text(json.dumps(metadata, indent=2) + "\n")


if __name__ == "__main__":
    main()
