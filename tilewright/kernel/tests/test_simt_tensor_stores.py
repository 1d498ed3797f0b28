"""The interpreter of stores by the copy engine: each step between two writes of a buffer is needed."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.errors import InvalidProgram
from tilewright.kernel.elements import Array
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.text import parse_module

PROGRAM = """
tile.func @k(%y: memref<384xf32>) grid [1] threads [128, 1, 1] warp 32 {
  %t = simt.thread_id 0
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %three = arith.constant 3 : index
  %first = tile.compare "eq" %t, %zero : index -> i1
  %v = arith.constant 2.0 : f32
  %s = simt.shared align 1024 : memref<128xf32, "shared">
  scf.for %i = %zero to %three step %one {
    tile.store %v, %s[%t] strides [] : f32, memref<128xf32, "shared">
    simt.fence "async"
    simt.barrier
    scf.if %first {
      simt.tensor_store %s[%zero] to %y[%i, %zero] extents [3, 128] strides [128, 1] box [1, 128] swizzle 0 : \
memref<128xf32, "shared">, memref<384xf32>
      simt.tensor_commit
      simt.tensor_wait 0
    }
    simt.barrier number 1 of 128
  }
  tile.return
}
"""


def _run(text: str) -> Array:
    y = np.zeros(384, np.float32)
    run_kernel(parse_module(text), "k", [y], races=True)
    return y


def test_a_buffer_is_stored_from_three_times() -> None:
    assert (_run(PROGRAM) == 2).all()


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ('simt.fence "async"', "missing fence"),
        ("simt.barrier\n", "race"),
        ("simt.tensor_wait 0", "which an operation that is under way reads"),
        ("simt.barrier number 1 of 128", "race"),
    ],
)
def test_each_step_is_needed(missing: str, message: str) -> None:
    assert PROGRAM.count(missing) == 1
    with pytest.raises(InvalidProgram, match=message):
        _run(PROGRAM.replace(missing, ""))
