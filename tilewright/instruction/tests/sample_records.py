"""Small records for tests of mappings: any body and extents, plain tiles, exact arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.expr.core import Compute
from tilewright.expr.text import parse_compute
from tilewright.instruction.mapping import Mapping as LoopMapping
from tilewright.instruction.mapping import Mode, mappings
from tilewright.intrinsics.intrinsic import Cost, Intrinsic, Movement, Operand

MATRIX = "Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]"


def record(
    compute: str = MATRIX,
    extents: Mapping[str, int] | None = None,
    dtypes: tuple[str, ...] = ("f32", "f32", "f32"),
    *,
    layouts: Mapping[str, str] | None = None,
    memory: tuple[Movement, ...] = (),
    name: str = "sample",
    **more: object,
) -> Intrinsic:
    """A record whose operands are read off `compute`, destination first."""
    head, _, body = compute.partition("+=")
    parts = [*body.split("*"), head]
    operands = []
    for part, dtype in zip(parts, dtypes, strict=True):
        role, _, indices = part.strip().rstrip("]").partition("[")
        loops = tuple(index.strip() for index in indices.split(",") if index.strip())
        operands.append(Operand(role, dtype, loops, layout=(layouts or {}).get(role, "row_major")))
    sizes = extents or dict.fromkeys(("i1", "i2", "r1"), 2)
    found = Intrinsic(name, "sample", compute, sizes, tuple(operands), Cost(1.0), "made for a test", memory=memory)
    return replace(found, **more)  # type: ignore[arg-type]


def matrix(m: int = 2, n: int | None = None, k: int | None = None, dtypes: tuple[str, ...] = ("f32",) * 3) -> Intrinsic:
    return record(extents={"i1": m, "i2": n or m, "r1": k or m}, dtypes=dtypes, name=f"matrix_{m}_{n or m}_{k or m}")


def texts(node: Compute, of: Intrinsic, mode: Mode = "points", **options: bool) -> list[str]:
    return [str(found) for found in listed(node, of, mode, **options)]


def listed(node: Compute, of: Intrinsic, mode: Mode = "points", **options: bool) -> list[LoopMapping]:
    return list(mappings(node, of, mode, **options))


#: The 15 operators of Table 5.3, as spec 3, section 2.2 defines them, with small sizes.
OPERATORS: dict[str, tuple[str, dict[str, int]]] = {
    "GMV": ("C[i,j] += A[i,x] * B[x,j]", {"i": 3, "j": 1, "x": 5}),
    "GMM": ("C[i,j] += A[i,x] * B[x,j]", {"i": 3, "j": 5, "x": 3}),
    "C1D": ("Y[n,k,q] += X[n,c,q+s] * W[k,c,s]", {"n": 2, "k": 3, "q": 3, "c": 2, "s": 3}),
    "C2D": ("Y[n,k,p,q] += X[n,c,p+r,q+s] * W[k,c,r,s]", {"n": 2, "k": 3, "p": 2, "q": 3, "c": 2, "r": 3, "s": 2}),
    "C3D": (
        "Y[n,k,d,p,q] += X[n,c,d+t,p+r,q+s] * W[k,c,t,r,s]",
        {"n": 2, "k": 3, "d": 2, "p": 2, "q": 3, "c": 2, "t": 2, "r": 3, "s": 2},
    ),
    "T2D": ("Y[n,k,p,q] += X[n,c,p+r,q+s] * W[c,k,2-r,1-s]", {"n": 2, "k": 3, "p": 2, "q": 3, "c": 2, "r": 3, "s": 2}),
    "GRP": (
        "Y[n,g,k,p,q] += X[n,g,c,p+r,q+s] * W[g,k,c,r,s]",
        {"n": 2, "g": 2, "k": 3, "p": 2, "q": 3, "c": 2, "r": 3, "s": 2},
    ),
    "DIL": ("Y[n,k,p,q] += X[n,c,p+2*r,q+2*s] * W[k,c,r,s]", {"n": 2, "k": 3, "p": 2, "q": 3, "c": 2, "r": 3, "s": 2}),
    "DEP": ("Y[n,c,m,p,q] += X[n,c,p+r,q+s] * W[c,m,r,s]", {"n": 2, "c": 3, "m": 2, "p": 2, "q": 3, "r": 3, "s": 2}),
    "CAP": (
        "Y[n,k,p,q,u] += X[n,c,p+r,q+s] * W[k,c,r,s,u]",
        {"n": 2, "k": 3, "p": 2, "q": 3, "u": 2, "c": 2, "r": 3, "s": 2},
    ),
    "BCV": ("Y[n,k,p,q] += X[n,c,p+r,q+s] * W[n,k,c,r,s]", {"n": 2, "k": 3, "p": 2, "q": 3, "c": 2, "r": 3, "s": 2}),
    "GFC": ("Y[n,g,k] += X[n,g,c] * W[g,k,c]", {"n": 2, "g": 3, "k": 2, "c": 5}),
    "MEN": ("M[i,j] += A[i,x] * U[x,j]", {"i": 3, "j": 1, "x": 7}),
    "VAR": ("M[i,j] += A[i,x] * U[x,j]", {"i": 5, "j": 1, "x": 4}),
    "SCN": ("C[i,j] += A[i,x] * T[x,j]", {"i": 3, "j": 4, "x": 4}),
}  # fmt: skip


def operator(name: str, **sizes: int) -> Compute:
    text, small = OPERATORS[name]
    return parse_compute(text, {**small, **sizes})
