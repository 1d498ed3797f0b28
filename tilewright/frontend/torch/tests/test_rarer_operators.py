"""Operators beyond those that networks are mostly made of, against torch: special values, odd sizes, empty, scalars."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tilewright.errors import Unsupported
from tilewright.frontend.onnx.problems import UnsupportedModel
from tilewright.frontend.torch import import_module
from tilewright.frontend.torch.tests.against_torch import Many, check, ints, rand

torch = pytest.importorskip("torch")
F = torch.nn.functional

SPECIAL = [0.0, -0.0, 1.5, -1.5, 7.0, -7.0, math.inf, -math.inf, math.nan]


def test_functions_of_one_and_two_numbers() -> None:
    values = torch.tensor(SPECIAL)
    x, y = (each.reshape(-1) for each in torch.meshgrid(values, values, indexing="ij"))
    number = torch.where(y.isnan(), 1.0, y)  # the sign of a NaN is not seen
    check(
        {
            "copysign": lambda x, y, n: [1 / torch.copysign(x, n), torch.copysign(x, -2), torch.copysign(n, 3)],
            "signbit": lambda x, y, n: [torch.signbit(n), torch.signbit(n.clamp(-9, 9).int())],
            "hypot": lambda x, y, n: [torch.hypot(x, y), torch.hypot(x * 1e30, n * 1e30)],
            "extremes": lambda x, y, n: [torch.fmax(x, y), torch.fmin(x, y)],
            "erfc": lambda x, y, n: torch.erfc(x),
            "angle": lambda x, y, n: x.angle(),
            "ldexp": lambda x, y, n: torch.ldexp(x, torch.tensor(3)),
            "decomposed": lambda x, y, n: [torch.logaddexp2(x, y), torch.sinc(x), torch.heaviside(x, y)],
            "addcmul": lambda x, y, n: [torch.addcmul(x, x, y, value=0.5), torch.lerp(x, y, 0.25)],
        },
        x, y, number,
    )  # fmt: skip
    check({"small": lambda x: torch.erfc(x) * 1e9}, torch.linspace(4, 6, 7, dtype=torch.float64), ulps=1e4)


def test_functions_of_integers_and_scalars() -> None:
    check(
        {
            "copysign": lambda i, s, u: [torch.copysign(i, i - 2), torch.copysign(i, -1)],
            "signbit": lambda i, s, u: [torch.signbit(i), torch.signbit(s), torch.signbit(i > 0), torch.signbit(u)],
            "extremes": lambda i, s, u: [torch.fmax(i, i * -1), torch.fmin(i, s), torch.fmax(s, s)],
            "erfc": lambda i, s, u: [torch.erfc(i), torch.erfc(s), torch.erfc(i[:0])],
            "angle": lambda i, s, u: [i.angle(), u.angle()],
        },
        ints(3, 5), torch.tensor(-0.5), ints(7, low=0, dtype=torch.uint8),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.int32, torch.uint8])
def test_running_extremes(dtype: Any) -> None:
    x = (rand(3, 7, 2) * 3).abs().round().to(dtype)
    if dtype.is_floating_point:
        x[1, 2:4, 0] = math.nan
        x[2, 1:3, 1] = -math.inf
    check(
        {
            "max": lambda x: [*x.cummax(1), *x.cummax(-1), *x[0, 0, 0].cummax(0), *x[:, :0].cummax(1)],
            "min": lambda x: [*x.cummin(1), *x.cummin(0), *x[:0].cummin(1)],
        },
        x,
    )


@pytest.mark.parametrize("extent", [0, 1, 2, 13, 64])
def test_running_sum_of_exponentials(extent: int) -> None:
    x = rand(2, extent, dtype=torch.float64) * 300
    if extent > 3:
        x[0, 2], x[1, :2], x[1, 3] = math.inf, -math.inf, math.nan
    check({"rows": lambda x: [x.logcumsumexp(1), x.logcumsumexp(0), x.sum().logcumsumexp(0)]}, x, ulps=256)
    check({"half": lambda x: x.logcumsumexp(1)}, rand(2, extent, dtype=torch.float16), ulps=2)


def ties(*shape: int) -> Any:
    return (rand(*shape) * 2).round()


def test_elements_by_their_rank() -> None:
    x, odd = rand(3, 7, 2), rand(5, 1, seed=3)
    x[0, 3, 0] = x[2, 1, 1] = x[2, 4, 1] = math.nan
    x[1, :, 1] = math.nan
    check(
        {
            "kth": lambda x, o, i: [*x[::2].kthvalue(3, 1), *o.kthvalue(5, 0, True), *o[0, 0].kthvalue(1)],
            "median": lambda x, o, i: [*x.median(1), *o.median(0, True), x.median(), o.median(), *o[0, 0].median(0)],
            "nanmedian": lambda x, o, i: [*x.nanmedian(1)[:1], x.nanmedian(), *o.nanmedian(0)],
            "integers": lambda x, o, i: [i.median(), i.median(1).values, i.kthvalue(2, 0).values, i.nanmedian()],
            "empty": lambda x, o, i: [x[:0].median(), x[:0].median(1).values],
            "even": lambda x, o, i: [*o[:4].median(0), *o[:4].nanmedian(0)],
        },
        x, odd, ints(4, 5),
    )  # fmt: skip


def test_the_most_frequent_element() -> None:
    check(
        {
            "values": lambda x, i: [x.mode(1).values, x.mode(0, True).values, i.mode().values, x[0, 0].mode().values],
            "places": lambda x, i: [x.gather(1, x.mode(1, True).indices), i.gather(1, i.mode(1, True).indices)],
        },
        ties(4, 9), ints(3, 8, low=0, high=3),
    )  # fmt: skip


def test_histograms() -> None:
    x = rand(7, 13)
    x[0, 0], x[1, 1], x[2, 2], x[3, 3], x[4, 4] = -1, 1, math.nan, math.inf, 1e30
    check(
        {
            "given": lambda x, y: [x.histc(5, -1, 1), x.double().histc(1, -3, 2), x.histc(100, 0, 1), y.histc(7, 3, 9)],
            "found": lambda x, y: [y.histc(9), y[0].histc(3), y[0, :1].histc(4), y[:0].histc(3), y.histc(6, 1, 1)],
        },
        x, rand(5, 11, seed=2),
    )  # fmt: skip


def test_places_in_boundaries() -> None:
    edges, rows = torch.tensor([-1.0, 0.0, 0.0, 0.5]), rand(3, 5, seed=1).sort(1).values
    x = rand(3, 7)
    x[0, 0], x[1, 1], x[2, 2], x[0, 3] = 0, 0.5, math.nan, math.inf
    check(
        {
            "buckets": lambda x, e, r: [torch.bucketize(x, e), torch.bucketize(x, e, right=True, out_int32=True)],
            "scalars": lambda x, e, r: [torch.bucketize(0.5, e), torch.searchsorted(e, 0.2), torch.bucketize(x, e[:0])],
            "rows": lambda x, e, r: [torch.searchsorted(r, x), torch.searchsorted(r, x, side="right")],
            "sorter": lambda x, e, r: torch.searchsorted(r.flip(1), x, sorter=r.flip(1).argsort(1)),
        },
        x, edges, rows,
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings(mode: str) -> None:
    table, indices = rand(9, 5), ints(11, low=0, high=9)
    offsets = torch.tensor([0, 3, 3, 7, 11])
    bag = F.embedding_bag
    check(
        {
            "offsets": lambda i, t, o: bag(i, t, o, mode=mode),
            "closed": lambda i, t, o: bag(i, t, o, mode=mode, include_last_offset=True),
            "rows": lambda i, t, o: [bag(i[:8].view(4, 2), t, mode=mode), bag(i[:0], t, o[:1], mode=mode)],
            "padding": lambda i, t, o: bag(i.clone().fill_(4).where(i < 5, i), t, o, mode=mode, padding_idx=4),
        },
        indices, table, offsets,
    )  # fmt: skip
    if mode == "sum":
        weights = rand(11, seed=4)
        check({"weights": lambda i, t, o, w: bag(i, t, o, mode=mode, per_sample_weights=w)},
              indices, table, offsets, weights)  # fmt: skip


def test_tables_that_torch_computes() -> None:
    check(
        {
            "indices": lambda x: [torch.tril_indices(4, 3), torch.triu_indices(3, 5, 1), torch.tril_indices(0, 3)],
            "windows": lambda x: [
                torch.hann_window(7), torch.hamming_window(5), torch.blackman_window(6), torch.bartlett_window(4),
                torch.kaiser_window(5), torch.fft.fftfreq(5), torch.fft.rfftfreq(6),
            ],
            "use": lambda x: x[torch.tril_indices(3, 3).unbind()],
        },
        rand(3, 4),
    )  # fmt: skip


def test_windows_views_and_masks() -> None:
    check(
        {
            "unfold": lambda x, m: [x.unfold(1, 3, 2), x.unfold(0, 2, 1).unfold(1, 4, 3), x.sum().unfold(0, 1, 1)],
            "strided": lambda x, m: [x.as_strided((2, 3), (5, 2), 1), x.as_strided((4,), (1,)), x.as_strided((), ())],
            "strided views": lambda x, m: [
                x.t().as_strided((2, 3), (5, 2), 1), x.view(3, 7, 1).permute(1, 2, 0).as_strided((4, 2), (2, 3)),
            ],
            "masked": lambda x, m: [x.masked_scatter(m, x.flip(0)), x.masked_scatter(m[0], x)],
            "nothing": lambda x, m: [x.masked_scatter(x > 9, x[:0]), x[:0].masked_scatter(m[:0], x)],
            "repeat": lambda x, m: torch.repeat_interleave(x, torch.tensor([2, 0, 3]), 0, output_size=5),
            "put": lambda x, m: x.put(torch.tensor([[1, -1]]), x[:1, :2]),
            "put and add": lambda x, m: x.put(torch.tensor([3, 3]), x[0, :2], True),
            "add": lambda x, m: x.scatter(1, m.long(), x, reduce="add"),
            "multiply": lambda x, m: x.scatter(0, m.long(), 2.0, reduce="multiply"),
            "range": lambda x, m: torch.range(1, 4),
        },
        rand(3, 7), rand(3, 7, seed=1) > 0,
    )  # fmt: skip


def test_distances_and_rarer_products() -> None:
    check(
        {
            "cdist": lambda x, y: [torch.cdist(x, y, p) for p in (1.0, 2.0, 3.5, math.inf, 0.0)],
            "pdist": lambda x, y: [F.pdist(x[0], 2), F.pdist(x[0], 1), F.pdist(x[0, :1])],
            "dist": lambda x, y: [torch.dist(x[0], y[0, :1]), torch.dist(x, x, 1)],
            "addmv": lambda x, y: torch.addmv(x[0, :, 0], x[0], x[1, 0]),
            "no addend": lambda x, y: torch.addmv(x[0, :, 0], x[0], x[1, 0], beta=0, alpha=3),
            "addbmm": lambda x, y: torch.addbmm(x[0, :, :3], x, y.mT[:, :, :3], beta=0.5, alpha=2),
            "integers": lambda x, y: torch._int_mm((x * 9).char().view(3, 8).repeat(6, 1), torch.ones(8, 8).char()),
        },
        rand(2, 3, 4), rand(2, 5, 4, seed=1),
        ulps=400,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (lambda x: torch.bincount(x.long(), minlength=5), "shape of the result depends on data.*scatter_add"),
        (lambda x: x.lgamma(), "special function"),
        (lambda x: torch.nextafter(x, x), "reads the bits"),
        (lambda x: torch.linalg.cholesky(x), "factorises a matrix"),
        (lambda x: x + torch.rand(3), "random numbers"),
        (lambda x: torch.repeat_interleave(x.long()), "give output_size"),
        (lambda x: x[:, :2].as_strided((2,), (1,)), "as_strided of a view with strides"),
    ],
)
def test_refusals_say_why(case: Any, reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        import_module(Many({"case": case}), (torch.eye(3),))


def test_operators_behind_a_failed_one_are_checked() -> None:
    def case(x: Any) -> Any:
        y = x.lgamma()
        z = F.adaptive_max_pool2d(y.view(1, 1, 3, 3), 2, return_indices=True)
        return z[0] + y.sum(), z[1], torch.nextafter(y, y)

    with pytest.raises(Unsupported) as caught:
        import_module(Many({"case": case}), (torch.eye(3),))
    assert [problem.reason.split(" (")[0] for problem in caught.value.problems] == [  # type: ignore[attr-defined]
        "a special function that kernels do not have", "positions of maxima", "reads the bits of numbers",
    ]  # fmt: skip
