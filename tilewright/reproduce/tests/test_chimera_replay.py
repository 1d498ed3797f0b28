"""Traces of blocked nests: beside those of a C program, some steps beside all, movement beside the prediction."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.under_valgrind import accesses, needs_valgrind
from tilewright.machine.description import Cache
from tilewright.reproduce.chimera.replay import LINE_BYTES, NESTS, Nest, runs, whole, windows

EXTENTS = {"m": 40, "n": 36, "k": 20, "l": 35}
TILINGS = ({"m": 24, "n": 33, "k": 13, "l": 17}, {"m": 16, "n": 16, "k": 20, "l": 32})

PROGRAM = """
#include <stdio.h>
#include <stdlib.h>

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define CEIL(a, b) (((a) + (b) - 1) / (b))
#define SIZE(v, i) MIN(T##v, X##v - (i) * T##v)
#define BLOCK(r, c) (CEIL((r) * (c), 16) * 16L)
#define TENSOR(blocks, r, c) (CEIL((blocks) * BLOCK(r, c), 1024) * 1024L)
enum { NM = CEIL(Xm, Tm), NN = CEIL(Xn, Tn), NK = CEIL(Xk, Tk), NL = CEIL(Xl, Tl) };
enum {
  A = 0, B = A + TENSOR(NM * NK, Tm, Tk), C = B + TENSOR(NK * NL, Tk, Tl),
  D = C + TENSOR(NEST == 2 ? NM * NL : 1, Tm, Tl), E = D + TENSOR(NL * NN, Tl, Tn)
};

static inline __attribute__((always_inline)) void
product(volatile float *left, volatile float *right, volatile float *result, long rows, long sums, long columns) {
  for (long i = 0; i < rows; i += 16)
    for (long j = 0; j < columns; j += 16) {
      long height = MIN(16, rows - i), width = MIN(16, columns - j);
      volatile float *sum = result + i * columns + j * height;
      for (long e = 0; e < height * width; e++) (void)sum[e];
      for (long x = 0; x < sums; x++) {
        for (long e = 0; e < height; e++) (void)left[i * sums + x * height + e];
        for (long e = 0; e < width; e++) (void)right[j * sums + x * width + e];
      }
      for (long e = 0; e < height * width; e++) sum[e] = 0;
    }
}

static inline __attribute__((always_inline)) void first(volatile float *data, long m, long l) {
  for (long k = 0; k < NK; k++)
    product(data + A + (m * NK + k) * BLOCK(Tm, Tk), data + B + (k * NL + l) * BLOCK(Tk, Tl),
            data + C + (NEST == 2 ? (m * NL + l) * BLOCK(Tm, Tl) : 0), SIZE(m, m), SIZE(k, k), SIZE(l, l));
}

static inline __attribute__((always_inline)) void second(volatile float *data, long m, long l, long n) {
  product(data + C + (NEST == 2 ? (m * NL + l) * BLOCK(Tm, Tl) : 0), data + D + (l * NN + n) * BLOCK(Tl, Tn),
          data + E + (m * NN + n) * BLOCK(Tm, Tn), SIZE(m, m), SIZE(l, l), SIZE(n, n));
}

__attribute__((noinline)) void counted(volatile float *data) {
  for (long m = 0; m < NM; m++)
    for (long l = 0; l < NL; l++) {
      if (NEST != 1) first(data, m, l);
      if (NEST != 2)
        for (long n = 0; n < NN; n++) {
          if (NEST == 1) first(data, m, l);
          second(data, m, l, n);
        }
    }
  if (NEST == 2)
    for (long m = 0; m < NM; m++)
      for (long l = 0; l < NL; l++)
        for (long n = 0; n < NN; n++) second(data, m, l, n);
}

int main(void) {
  char *data = aligned_alloc(1 << 20, 1 << 20);
  printf("%p %p\\n", data, data + (1 << 20));
  counted((volatile float *)data);
}
"""


@needs_valgrind
@pytest.mark.parametrize("nest", NESTS)
@pytest.mark.parametrize("tile", TILINGS, ids=lambda tile: "-".join(map(str, tile.values())))
def test_a_trace_is_that_of_a_program(nest: Nest, tile: dict[str, int], tmp_path: Path) -> None:
    """The program reads and writes element by element; those of one line that follow each other count once."""
    macros = {"NEST": list(NESTS).index(nest), **{f"X{loop}": extent for loop, extent in EXTENTS.items()},
              **{f"T{loop}": size for loop, size in tile.items()}}  # fmt: skip
    found = []
    for pattern, bases in runs(nest, EXTENTS, tile):
        for row in bases:
            for access in zip((row[pattern.arrays] + pattern.offsets).tolist(), pattern.writes.tolist(), strict=True):
                if found[-1:] != [access]:
                    found.append(access)
    assert found == accesses(PROGRAM, macros, LINE_BYTES, tmp_path)
    assert len(found) > 1500


@pytest.mark.parametrize("nest", NESTS)
def test_some_steps_stand_for_all(nest: Nest) -> None:
    """A nest of few steps, where the first and the last one weigh most."""
    extents = dict.fromkeys("mnkl", 256)
    first = Cache(name="L1", bytes=32_768, ways=8, line_bytes=64, shared_by=1)
    for sizes in ((48, 33, 20, 40), (70, 20, 20, 30), (30, 100, 64, 16), (256, 16, 16, 16)):
        tile = dict(zip("mnkl", sizes, strict=True))
        (some,), (every,) = (count(nest, extents, tile, (first,)) for count in (windows, whole))
        assert some.fills == pytest.approx(every.fills, rel=0.02)


def test_a_tile_that_is_longer_than_its_loop_is_the_loop() -> None:
    first = Cache(name="L1", bytes=4096, ways=8, line_bytes=64, shared_by=1)
    small, large = (whole("mlkn", EXTENTS, dict.fromkeys("mnkl", size), (first,)) for size in (40, 400))
    assert small == large


def test_one_block_moves_every_tensor_once() -> None:
    """All blocks are whole tensors and fit: compulsory fills, and the result and C are written back."""
    extents = {"m": 16, "n": 32, "k": 48, "l": 64}
    first = Cache(name="L1", bytes=65_536, ways=8, line_bytes=64, shared_by=1)
    sizes = {name: extents[a] * extents[b] // 16 for name, (a, b) in
             {"A": "mk", "B": "kl", "C": "ml", "D": "ln", "E": "mn"}.items()}  # fmt: skip
    for nest in NESTS:
        (found,) = whole(nest, extents, extents, (first,))
        assert found.fills == sum(sizes.values())
        assert found.write_backs == sizes["C"] + sizes["E"]
