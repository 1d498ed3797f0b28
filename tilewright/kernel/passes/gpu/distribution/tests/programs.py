"""Kernels in tile form, as text: what the tests of layouts and code generation share."""

from __future__ import annotations

from math import e, log2


def add(elements: int, tile: int) -> str:
    """``y[i] = exp(x[i] + 1)``, the last tile perhaps ragged."""
    return f"""\
tile.func @k(%x: memref<{elements}xf32>, %y: memref<{elements}xf32>) grid [{-(-elements // tile)}] {{
  %p = tile.program_id 0
  %c = arith.constant {tile} : index
  %n = arith.constant {elements} : index
  %o = arith.muli %p, %c : index
  %left = arith.subi %n, %o : index
  %a = tile.load %x[%o] bounds(%left) strides [1] align 16 : memref<{elements}xf32> -> tensor<{tile}xf32>
  %one = arith.constant dense<1.0> : tensor<{tile}xf32>
  %s = arith.addf %a, %one : tensor<{tile}xf32>
  %e = math.exp %s : tensor<{tile}xf32>
  tile.store %e, %y[%o] bounds(%left) strides [1] align 16 : tensor<{tile}xf32>, memref<{elements}xf32>
  tile.return
}}
"""


def softmax(programs: int, rows: int, columns: int) -> str:
    """Softmax of the rows of a matrix; a program has `rows` of them."""
    size = rows * columns
    memory, t, r = f"memref<{programs * size}xf32>", f"tensor<{rows}x{columns}xf32>", f"tensor<{rows}x1xf32>"
    return f"""\
tile.func @k(%x: {memory}, %y: {memory}) grid [{programs}] {{
  %p = tile.program_id 0
  %c = arith.constant {size} : index
  %o = arith.muli %p, %c : index
  %a = tile.load %x[%o] strides [{columns}, 1] : {memory} -> {t}
  %m = tile.reduce "max" %a, 1 : {t} -> {r}
  %mb = tile.broadcast %m : {r} -> {t}
  %d = arith.subf %a, %mb : {t}
  %e = math.exp %d : {t}
  %s = tile.reduce "sum" %e, 1 : {t} -> {r}
  %sb = tile.broadcast %s : {r} -> {t}
  %q = arith.divf %e, %sb : {t}
  tile.store %q, %y[%o] strides [{columns}, 1] : {t}, {memory}
  tile.return
}}
"""


def reduction(kind: str, rows: int, columns: int, axis: int, dtype: str) -> str:
    """One dimension of a matrix reduced."""
    result = (1, columns) if axis == 0 else (rows, 1)
    memory, t, r = f"memref<{rows * columns}x{dtype}>", f"tensor<{rows}x{columns}x{dtype}>", f"x{dtype}>"
    r = f"tensor<{result[0]}x{result[1]}x{dtype}>"
    return f"""\
tile.func @k(%x: {memory}, %y: {memory}) grid [1] {{
  %o = arith.constant 0 : index
  %a = tile.load %x[%o] strides [{columns}, 1] : {memory} -> {t}
  %m = tile.reduce "{kind}" %a, {axis} : {t} -> {r}
  tile.store %m, %y[%o] strides [{result[1]}, 1] : {r}, {memory}
  tile.return
}}
"""


def transposition(rows: int, columns: int, dtype: str) -> str:
    """A matrix read by columns and written by rows."""
    memory, t = f"memref<{rows * columns}x{dtype}>", f"tensor<{rows}x{columns}x{dtype}>"
    return f"""\
tile.func @k(%x: {memory}, %y: {memory}) grid [1] {{
  %o = arith.constant 0 : index
  %a = tile.load %x[%o] strides [1, {rows}] align 16 : {memory} -> {t}
  tile.store %a, %y[%o] strides [{columns}, 1] align 16 : {t}, {memory}
  tile.return
}}
"""


def counted_sum(rows: int, columns: int, step: int) -> str:
    """Column sums in a loop over blocks of rows, plus the number of the column."""
    memory, part, total = f"memref<{rows * columns}xf32>", f"tensor<{step}x{columns}xf32>", f"tensor<1x{columns}xf32>"
    return f"""\
tile.func @k(%x: {memory}, %y: memref<{columns}xf32>) grid [1] {{
  %z = arith.constant dense<0.0> : {total}
  %low = arith.constant 0 : index
  %high = arith.constant {rows} : index
  %step = arith.constant {step} : index
  %w = arith.constant {columns} : index
  %r = scf.for %i = %low to %high step %step iter_args(%acc = %z) -> ({total}) {{
    %o = arith.muli %i, %w : index
    %a = tile.load %x[%o] strides [{columns}, 1] : {memory} -> {part}
    %m = tile.reduce "sum" %a, 0 : {part} -> {total}
    %n = arith.addf %acc, %m : {total}
    scf.yield %n : {total}
  }}
  %f = tile.reshape %r : {total} -> tensor<{columns}xf32>
  %t = tile.iota 0 : tensor<{columns}xi64>
  %c = tile.cast %t : tensor<{columns}xi64> -> tensor<{columns}xf32>
  %g = arith.addf %f, %c : tensor<{columns}xf32>
  tile.store %g, %y[%low] strides [1] : tensor<{columns}xf32>, memref<{columns}xf32>
  tile.return
}}
"""


def matmul(
    sizes: tuple[int, int, int],
    block: tuple[int, int, int],
    intrinsic: str = "mma_m16n8k16_f16_f32",
    dtype: str = "f16",
    result: str = "f32",
) -> str:
    """``c = a b`` with a program per block of c and a loop over slices of k."""
    (m, n, k), (bm, bn, bk) = sizes, block
    a, b, c = f"memref<{m * k}x{dtype}>", f"memref<{k * n}x{dtype}>", f"memref<{m * n}x{result}>"
    x, y, z = f"tensor<{bm}x{bk}x{dtype}>", f"tensor<{bk}x{bn}x{dtype}>", f"tensor<{bm}x{bn}x{result}>"
    zero = "0.0" if result.startswith("f") else "0"
    return f"""\
tile.func @k(%a: {a}, %b: {b}, %c: {c}) grid [{m // bm}, {n // bn}] {{
  %p = tile.program_id 0
  %q = tile.program_id 1
  %bm = arith.constant {bm} : index
  %bn = arith.constant {bn} : index
  %bk = arith.constant {bk} : index
  %depth = arith.constant {k} : index
  %width = arith.constant {n} : index
  %low = arith.constant 0 : index
  %i = arith.muli %p, %bm : index
  %j = arith.muli %q, %bn : index
  %rows = arith.muli %i, %depth : index
  %z = arith.constant dense<{zero}> : {z}
  %r = scf.for %k = %low to %depth step %bk iter_args(%acc = %z) -> ({z}) {{
    %ao = arith.addi %rows, %k : index
    %kn = arith.muli %k, %width : index
    %bo = arith.addi %kn, %j : index
    %x = tile.load %a[%ao] strides [{k}, 1] align 16 : {a} -> {x}
    %y = tile.load %b[%bo] strides [{n}, 1] align 16 : {b} -> {y}
    %d = tile.dot "{intrinsic}" %x, %y, %acc unsigned "" : {x}, {y}, {z}
    scf.yield %d : {z}
  }}
  %in = arith.muli %i, %width : index
  %co = arith.addi %in, %j : index
  tile.store %r, %c[%co] strides [{n}, 1] align 16 : {z}, {c}
  tile.return
}}
"""


def ragged_matmul(
    sizes: tuple[int, int, int],
    block: tuple[int, int, int],
    intrinsic: str = "mma_m16n8k16_f16_f32",
    dtype: str = "f16",
    transposed: str = "",
    result: str = "f32",
    precision: str = "",
) -> str:
    """``c = a b`` in `result` of matrices whose sizes are no multiples of a program's: accesses have bounds.

    Those of a and b that are `transposed` are stored by columns. `precision` is that of `tile.dot`.
    """
    (m, n, k), (bm, bn, bk) = sizes, block
    a, b, c = f"memref<{m * k}x{dtype}>", f"memref<{k * n}x{dtype}>", f"memref<{m * n}x{result}>"
    x, y, z = f"tensor<{bm}x{bk}x{dtype}>", f"tensor<{bk}x{bn}x{dtype}>", f"tensor<{bm}x{bn}x{result}>"
    asked = f' precision "{precision}"' if precision else ""
    return f"""\
tile.func @k(%a: {a}, %b: {b}, %c: {c}) grid [{-(-m // bm)}, {-(-n // bn)}] {{
  %p = tile.program_id 0
  %q = tile.program_id 1
  %bm = arith.constant {bm} : index
  %bn = arith.constant {bn} : index
  %bk = arith.constant {bk} : index
  %height = arith.constant {m} : index
  %depth = arith.constant {k} : index
  %width = arith.constant {n} : index
  %low = arith.constant 0 : index
  %i = arith.muli %p, %bm : index
  %j = arith.muli %q, %bn : index
  %down = arith.subi %height, %i : index
  %right = arith.subi %width, %j : index
  %z = arith.constant dense<{"0" if result == "i32" else "0.0"}> : {z}
  %r = scf.for %k = %low to %depth step %bk iter_args(%acc = %z) -> ({z}) {{
    %am = arith.muli %{"k" if "a" in transposed else "i"}, %{"height" if "a" in transposed else "depth"} : index
    %ao = arith.addi %am, %{"i" if "a" in transposed else "k"} : index
    %bm1 = arith.muli %{"j" if "b" in transposed else "k"}, %{"depth" if "b" in transposed else "width"} : index
    %bo = arith.addi %bm1, %{"k" if "b" in transposed else "j"} : index
    %left = arith.subi %depth, %k : index
    %x = tile.load %a[%ao] bounds(%down, %left) strides {[1, m] if "a" in transposed else [k, 1]} align 16 : {a} -> {x}
    %y = tile.load %b[%bo] bounds(%left, %right) strides {[1, k] if "b" in transposed else [n, 1]} align 16 : {b} -> {y}
    %d = tile.dot "{intrinsic}" %x, %y, %acc unsigned ""{asked} : {x}, {y}, {z}
    scf.yield %d : {z}
  }}
  %in = arith.muli %i, %width : index
  %co = arith.addi %in, %j : index
  tile.store %r, %c[%co] bounds(%down, %right) strides [{n}, 1] align 16 : {z}, {c}
  tile.return
}}
"""


def _attention_start(
    sizes: tuple[int, int, int], block: tuple[int, int], warps: tuple[int, int], dtype: str, result: str
) -> str:
    """What both programs of attention do before their loop: the block of rows of q, and what the loop starts from."""
    (heads, rows, width), (own, step) = sizes, block
    memory, out = f"memref<{heads * rows * width}x{dtype}>", f"memref<{heads * rows * width}x{result}>"
    q, s = f"tensor<{own}x{width}x{dtype}>", f"tensor<{own}x{step}xf32>"
    o, r = f"tensor<{own}x{width}xf32>", f"tensor<{own}x1xf32>"
    return f"""\
tile.func @k(%q: {memory}, %k: {memory}, %v: {memory}, %o: {out}) grid [{heads}, {-(-rows // own)}]
    attributes {{warps = array<i64: {warps[0]}, {warps[1]}>}} {{
  %head = tile.program_id 0
  %p = tile.program_id 1
  %own = arith.constant {own} : index
  %step = arith.constant {step} : index
  %rows = arith.constant {rows} : index
  %width = arith.constant {width} : index
  %size = arith.constant {rows * width} : index
  %low = arith.constant 0 : index
  %start = arith.muli %head, %size : index
  %i = arith.muli %p, %own : index
  %left = arith.subi %rows, %i : index
  %ahead = arith.muli %i, %width : index
  %place = arith.addi %start, %ahead : index
  %qs = tile.load %q[%place] bounds(%left, %width) strides [{width}, 1] align 16 : {memory} -> {q}
  %none = arith.constant dense<0.0> : {s}
  %zero = arith.constant dense<0.0> : {o}
  %nothing = arith.constant dense<0.0> : {r}
  %least = arith.constant dense<-1.0e30> : {r}
"""


def _scores(sizes: tuple[int, int, int], block: tuple[int, int], dtype: str, intrinsic: str) -> str:
    """The start of a trip of both: a block of k and of v, and the products of rows of q and k."""
    (heads, rows, width), (own, step) = sizes, block
    memory = f"memref<{heads * rows * width}x{dtype}>"
    q, kt, v = f"tensor<{own}x{width}x{dtype}>", f"tensor<{width}x{step}x{dtype}>", f"tensor<{step}x{width}x{dtype}>"
    return f"""\
    %jw = arith.muli %j, %width : index
    %there = arith.addi %start, %jw : index
    %right = arith.subi %rows, %j : index
    %ks = tile.load %k[%there] bounds(%width, %right) strides [1, {width}] align 16 : {memory} -> {kt}
    %vs = tile.load %v[%there] bounds(%right, %width) strides [{width}, 1] align 16 : {memory} -> {v}
    %dots = tile.dot "{intrinsic}" %qs, %ks, %none unsigned "" : {q}, {kt}, tensor<{own}x{step}xf32>
"""


def _seen(block: tuple[int, int], causal: bool) -> str:
    """`%seen`: which columns of a block there are, and with `causal` each row sees; row i those up to i."""
    own, step = block
    count, seen = f"tensor<{own}x{step}xi64>", f"tensor<{own}x{step}xi1>"
    below = f"""\
    %down = tile.iota 0 : {count}
    %first = tile.cast %i : index -> i64
    %firsts = tile.broadcast %first : i64 -> {count}
    %row = arith.addi %down, %firsts : {count}
    %past = tile.compare "le" %column, %row : {count} -> {seen}
    %seen = arith.andi %inside, %past : {seen}
"""
    return f"""\
    %across = tile.iota 1 : {count}
    %jn = tile.cast %j : index -> i64
    %js = tile.broadcast %jn : i64 -> {count}
    %column = arith.addi %across, %js : {count}
    %bound = tile.cast %rows : index -> i64
    %bounds = tile.broadcast %bound : i64 -> {count}
    %{"inside" if causal else "seen"} = tile.compare "lt" %column, %bounds : {count} -> {seen}
{below if causal else ""}"""


def _sums(sizes: tuple[int, int, int], block: tuple[int, int], dtype: str, intrinsic: str) -> str:
    """The end of a trip of both: sums so far are scaled by `%shrink`, those of the weights `%e` and of v are added."""
    (_, _, width), (own, step) = sizes, block
    s, o, r = f"tensor<{own}x{step}xf32>", f"tensor<{own}x{width}xf32>", f"tensor<{own}x1xf32>"
    weights, v = f"tensor<{own}x{step}x{dtype}>", f"tensor<{step}x{width}x{dtype}>"
    return f"""\
    %part = tile.reduce "sum" %e, 1 : {s} -> {r}
    %kept = arith.mulf %shrink, %l : {r}
    %total = arith.addf %part, %kept : {r}
    %shrinks = tile.broadcast %shrink : {r} -> {o}
    %rescaled = arith.mulf %acc, %shrinks : {o}
    %es = tile.cast %e : {s} -> {weights}
    %sum = tile.dot "{intrinsic}" %es, %vs, %rescaled unsigned "" : {weights}, {v}, {o}
    scf.yield %sum, %max, %total : {o}, {r}, {r}
"""


def _end_of_rows(causal: bool) -> str:
    """`%end`: behind the last column that a row of the block sees; with `causal` only, else that is `%rows`."""
    if not causal:
        return ""
    return """\
  %next = arith.addi %i, %own : index
  %end = arith.minsi %next, %rows : index
"""


def attention(
    sizes: tuple[int, int, int],
    block: tuple[int, int],
    warps: tuple[int, int] = (4, 1),
    causal: bool = False,
    intrinsic: str = "mma_m16n8k16_{dtype}_f32",
    dtype: str = "f16",
) -> str:
    """``o = softmax(q k^T / sqrt(d)) v`` per head: heads, rows of each, and d; a program has a block of rows of q.

    A loop over blocks of rows of k and v carries the sums, and the largest value and the sum of every row; what is
    summed before a larger value is seen is scaled down. With `causal`, row i sees the rows up to i. `intrinsic` may
    speak of `{dtype}`, and of `{n}`, the columns of a product.
    """
    (heads, rows, width), (own, step) = sizes, block
    first, second = (intrinsic.format(n=n, dtype=dtype) for n in (step, width))
    result = f"memref<{heads * rows * width}xf32>"
    s, o, r = f"tensor<{own}x{step}xf32>", f"tensor<{own}x{width}xf32>", f"tensor<{own}x1xf32>"
    return f"""\
{_attention_start(sizes, block, warps, dtype, "f32")}\
  %scale = arith.constant dense<{width**-0.5!r}> : {s}
  %hidden = arith.constant dense<-1.0e30> : {s}
{_end_of_rows(causal)}\
  %sums, %largest, %totals = scf.for %j = %low to {"%end" if causal else "%rows"} step %step
      iter_args(%acc = %zero, %m = %least, %l = %nothing) -> ({o}, {r}, {r}) {{
{_scores(sizes, block, dtype, first)}\
    %scaled = arith.mulf %dots, %scale : {s}
{_seen(block, causal)}\
    %x = tile.select %seen, %scaled, %hidden : tensor<{own}x{step}xi1>, {s}
    %top = tile.reduce "max" %x, 1 : {s} -> {r}
    %max = arith.maximumf %top, %m : {r}
    %maxs = tile.broadcast %max : {r} -> {s}
    %d = arith.subf %x, %maxs : {s}
    %e = math.exp %d : {s}
    %gone = arith.subf %m, %max : {r}
    %shrink = math.exp %gone : {r}
{_sums(sizes, block, dtype, second)}\
  }}
  %divisors = tile.broadcast %totals : {r} -> {o}
  %mean = arith.divf %sums, %divisors : {o}
  tile.store %mean, %o[%place] bounds(%left, %width) strides [{width}, 1] align 16 : {o}, {result}
  tile.return
}}
"""


def attention_by_powers_of_two(
    sizes: tuple[int, int, int],
    block: tuple[int, int],
    warps: tuple[int, int],
    causal: bool,
    intrinsic: str,
    dtype: str = "f16",
    result: str = "f32",
) -> str:
    """As `attention`, with less work for each weight: ``2^(x s - max s)`` is a multiply-add and a power of two.

    Only blocks where a row does not see all columns are masked. The result is in `result`.
    """
    (heads, rows, width), (own, step) = sizes, block
    scale = width**-0.5 * log2(e)
    first, second = (intrinsic.format(n=n, dtype=dtype) for n in (step, width))
    out = f"memref<{heads * rows * width}x{result}>"
    s, o, r = f"tensor<{own}x{step}xf32>", f"tensor<{own}x{width}xf32>", f"tensor<{own}x1xf32>"
    narrow = "" if result == "f32" else f"%narrow = tile.cast %mean : {o} -> tensor<{own}x{width}x{result}>"
    made, kind = ("%narrow", f"tensor<{own}x{width}x{result}>") if narrow else ("%mean", o)
    return f"""\
{_attention_start(sizes, block, warps, dtype, result)}\
  %scale = arith.constant dense<{scale!r}> : {s}
  %less = arith.constant dense<{-scale!r}> : {r}
  %hidden = arith.constant dense<-1.0e30> : {s}
{_end_of_rows(causal)}\
  %sums, %largest, %totals = scf.for %j = %low to {"%end" if causal else "%rows"} step %step
      iter_args(%acc = %zero, %m = %least, %l = %nothing) -> ({o}, {r}, {r}) {{
{_scores(sizes, block, dtype, first)}\
    %last = arith.addi %j, %step : index
    %partly = tile.compare "gt" %last, {"%i" if causal else "%rows"} : index -> i1
    %x = scf.if %partly -> ({s}) {{
{_seen(block, causal)}\
      %masked = tile.select %seen, %dots, %hidden : tensor<{own}x{step}xi1>, {s}
      scf.yield %masked : {s}
    }} else {{
      scf.yield %dots : {s}
    }}
    %top = tile.reduce "max" %x, 1 : {s} -> {r}
    %max = arith.maximumf %top, %m : {r}
    %lowered = arith.mulf %max, %less : {r}
    %lows = tile.broadcast %lowered : {r} -> {s}
    %d = math.fma %x, %scale, %lows : {s}
    %e = math.exp2 %d : {s}
    %gone = arith.subf %max, %m : {r}
    %fewer = arith.mulf %gone, %less : {r}
    %shrink = math.exp2 %fewer : {r}
{_sums(sizes, block, dtype, second)}\
  }}
  %one = arith.constant dense<1.0> : {r}
  %inverse = arith.divf %one, %totals : {r}
  %inverses = tile.broadcast %inverse : {r} -> {o}
  %mean = arith.mulf %sums, %inverses : {o}
  {narrow}
  tile.store {made}, %o[%place] bounds(%left, %width) strides [{width}, 1] align 16 : {kind}, {out}
  tile.return
}}
"""
