"""What a copy engine can do that moves boxes of tensors to and from shared memory, and products of four warps there.

Facts of such units, whichever machine has them: CUDA driver API, cuTensorMapEncodeTiled; PTX ISA, "wgmma".
"""

from __future__ import annotations

TENSOR_RANK = 5  # dimensions of a tensor, at most
BOX_EXTENT = 256  # the longest side of a box
# Bytes of which distances in a tensor, rows of a box and its place in a row are multiples. PTX does not name the last
# one: an H200 takes other places for an illegal instruction.
ROW_MULTIPLE = 16
SPANS = (128, 64, 32)  # bytes of rows whose groups of 16 bytes change places, the widest first
TRANSPOSED_BYTES = 2  # of elements that products also read from memory along m and n; others only along k
FRAGMENT_BYTES = 4  # of elements that threads read as fragments of one operand, which lies along m or n


def is_distance(distance_bytes: int) -> bool:
    """Whether rows of a tensor may be so far apart.

    >>> [is_distance(each) for each in (48, 40, 0, -16)]
    [True, False, False, False]
    """
    return distance_bytes > 0 and distance_bytes % ROW_MULTIPLE == 0


def widest_span(row_bytes: int) -> int | None:
    """The widest span that rows fill; None where they are shorter than all.

    >>> [widest_span(each) for each in (256, 96, 16)]
    [128, 64, None]
    """
    return next((span for span in SPANS if row_bytes >= span), None)
