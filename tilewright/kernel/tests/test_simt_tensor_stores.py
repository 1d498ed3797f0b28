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


GLOBAL = """
tile.func @k(%y: memref<256xf32>) grid [1] threads [256, 1, 1] warp 32 {
  %t = simt.thread_id 0
  %mask = arith.constant 127 : index
  %half = arith.constant 128 : index
  %low = tile.compare "lt" %t, %half : index -> i1
  %from = arith.constant FROM : index
  %i = arith.subi %mask, %t : index
  scf.if %low {
    %v = tile.load %y[%t] strides [] : memref<256xf32> -> f32
    simt.barrier number 1 of 128
    tile.store %v, %y[%i] strides [] : f32, memref<256xf32>
  } else {
    %j = arith.subi %t, %from : index
    %v = tile.load %y[%j] strides [] : memref<256xf32> -> f32
  }
  tile.return
}
"""


def test_barriers_of_some_warps_order_their_global_memory() -> None:
    """The other warps read their own half; or that of the first, which nothing orders."""
    y = np.arange(256, dtype=np.float32)
    run_kernel(parse_module(GLOBAL.replace("FROM", "0")), "k", [y], races=True)
    np.testing.assert_array_equal(y[:128], np.arange(128)[::-1])
    for text in (
        GLOBAL.replace("FROM", "128"),
        GLOBAL.replace("FROM", "0").replace("simt.barrier number 1 of 128", ""),
    ):
        with pytest.raises(InvalidProgram, match="race"):
            run_kernel(parse_module(text), "k", [np.zeros(256, np.float32)], races=True)
