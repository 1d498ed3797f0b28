"""The text form of computes and graphs: printing and parsing, exact both ways.

One statement, with sizes and dtypes beside it (`parse_compute(text, sizes, dtypes)`)::

    C[i, j] += A[i, k] * B[k, j]

The same, complete, as `print_compute` writes it::

    input A: f32[64, 32]
    input B: f32[32, 64]
    C: f32[i:64, j:64] += A[i, k] * B[k, j] over k:32

A graph adds `graph NAME`, `dim N in [LOW, HIGH] % DIVISOR`, `const W: f32[3, 3]` (its values are kept elsewhere), and
`output C`; every node is one line, `#` starts a comment. Operators, loosest first (all but `?:` group to the left)::

    c ? a : b      or      and      not      < <= > >= == != (they chain)      |  ^  &  << >>      + -
    * / // %      - ~      name[indices]  function(arguments)  dtype(cast)  (expression)  number

Ordered accumulations (`expr.ordered`) name the dimension that they give, after the reduction loops::

    S: f32[i:8, j:16] += x[i, k] over k:16 scanned j exclusive reverse
    P: i64[i:8, j:5] = x[i, k] over k:16 sorted j descending
    U: f32[i:20, f:7] += scatter(x[i, f], v[k, f], at[k]) over k:30 scattered i

A number takes its dtype from what it is combined with; `0.5_f16`, `inf_f32` say it. `true` and `false` are bool. Names
that are not ``letters.digits`` are written as JSON strings: ``"conv1/weight:0"[k, c]``.

A loop of 8 trips walks the rows of `x`, here the last one first, with a state that is `h0` at first; its states are
stacked into `rows`, in the order of the trips, and the last one is `last`::

    loop steps times 8
    slice x.t of x backwards
    state h of h0
    h.next: f32[i:4] = h[i] * 0.5 + x.t[i]
    carry h to h.next as last
    stack h.next as rows
    end
"""

from __future__ import annotations

from tilewright.expr.text.graphs import parse_compute, parse_computes, parse_graph
from tilewright.expr.text.printing import print_compute, print_expr, print_graph, print_statement

__all__ = [
    "parse_compute", "parse_computes", "parse_graph", "print_compute", "print_expr", "print_graph", "print_statement",
]  # fmt: skip
