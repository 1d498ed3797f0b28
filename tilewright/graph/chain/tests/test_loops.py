"""Independent loops of a chain, its sizes, and what is refused with the reason."""

from __future__ import annotations

import pytest

from tilewright.expr.text import parse_graph
from tilewright.graph.chain.loops import NotAChain, chain_of, layerwise
from tilewright.graph.chain.orders import all_orders, incomplete, legal_orders, nest_of
from tilewright.graph.chain.tests.chains import (
    TABLE_3_5,
    TABLE_3_6,
    attention,
    conv_chain,
    gemm_chain,
    three_products,
    two_convolutions,
    two_products,
)


def test_spec1_g03_counts_of_orders() -> None:
    assert gemm_chain(8, 8, 8, 8).orders == 24
    assert gemm_chain(8, 8, 8, 8, batch=2).orders == 120
    assert chain_of(three_products(8, 8, 8, 8, 8)).orders == 120
    assert chain_of(two_convolutions(4, 8, 4, 4, (1, 1), (3, 3), batch=2)).orders == 3_628_800
    assert len(list(all_orders(gemm_chain(8, 8, 8, 8)))) == 24


def test_spec1_g06_legal_orders() -> None:
    chain = gemm_chain(8, 8, 8, 8)
    legal = {"".join(order) for order in all_orders(chain) if not incomplete(chain, order)}
    assert legal == {"mlkn", "lmkn", "mlnk", "lmnk", "mnlk", "nmlk", "lnmk", "nlmk"}
    same = {"".join(order) for order in legal_orders(chain)[0]}
    assert same == {"mlkn", "lmkn", "mnlk", "nmlk", "lnmk", "nlmk"}  # mlnk keeps the block of C: it is mlkn


def test_a_reduction_of_one_trip_may_lie_outside() -> None:
    chain = gemm_chain(8, 8, 8, 8)
    assert "k of C lies outside l" in incomplete(chain, tuple("mkln"))
    assert incomplete(chain, tuple("mkln"), ones={"k"}) == ""


def test_batches_stay_outermost() -> None:
    chain = gemm_chain(8, 8, 8, 8, batch=3)
    assert chain.batches == ("b",)
    assert all(order[0] == "b" for order in legal_orders(chain)[0])


def test_loops_of_a_convolution_are_replaced_by_those_of_its_reader() -> None:
    """The input rows are ((h * st2 + r2 - p2) * st1 + r1 - p1)."""
    chain = chain_of(two_convolutions(4, 16, 4, 4, (2, 2), (3, 3)))
    image = chain.access("x").dims[2]
    assert image.loops == {"i2", "rx", "conv1.acc.rx"}
    assert image.width({"i2": 3, "rx": 3, "conv1.acc.rx": 3}) == 15  # (3-1)*4 + (3-1)*2 + 3
    assert chain.windows == {"rx", "ry", "conv1.acc.rx", "conv1.acc.ry"}
    assert image.box({"i2": (0, 1), "rx": (0, 3), "conv1.acc.rx": (0, 3)}) == (0, 4)  # rows -1..1 of it: row 0 and 1


def test_loops_of_one_name_that_no_tensor_ties_together_are_two() -> None:
    """`Problem` would call both k: no expression has both."""
    nodes = parse_graph("""
        input A: f32[8, 4]
        input B: f32[4, 6]
        input D: f32[6, 4]
        C: f32[m:8, l:6] += A[m, k] * B[k, l] over k:4
        E: f32[m:8, k:4] += C[m, l] * D[l, k] over l:6
        output E""").nodes
    chain = chain_of(nodes)
    assert sorted(chain.extents) == ["C.k", "k", "l", "m"]
    assert chain.operators[0].reductions == {"C.k"}


def test_three_products_nest_in_pairs() -> None:
    chain = chain_of(three_products(8, 8, 8, 8, 8))
    nest = nest_of(chain, tuple("mnlkp"))
    assert nest.loops == ("m", "n")
    assert [each.operators for each in nest.walk()] == [(0, 1, 2), (0, 1), (0,), (2,)]
    assert incomplete(chain, tuple("mlnkp"))  # E would be read before its sum over l


REFUSED = {
    "is no linear chain": (
        """
        input A: f32[8, 8]
        C: f32[m:8, l:8] += A[m, k] * A[k, l] over k:8
        F: f32[m:8, l:8] += A[m, k] * A[k, l] over k:8
        E: f32[m:8, n:8] += C[m, l] * F[l, n] over l:8
        output E""",
        "F reads no result of C",
    ),
    "reads two": (
        """
        input A: f32[8, 8]
        C: f32[m:8, l:8] += A[m, k] * A[k, l] over k:8
        F: f32[m:8, l:8] += C[m, k] * A[k, l] over k:8
        E: f32[m:8, n:8] += C[m, l] * F[l, n] over l:8
        output E""",
        "E reads results of C, F",
    ),
    "needs all rows": (
        """
        input A: f32[8, 8]
        C: f32[m:8, l:8] += A[m, k] * A[k, l] over k:8
        E: f32[m:8, n:8] += C[m, l] * C[l, n] over l:8
        output E""",
        "E needs all of C along",
    ),
    "a map that needs all rows": (
        """
        input A: f32[8, 8]
        C: f32[m:8, l:8] += A[m, k] * A[k, l] over k:8
        R: f32[m:8, l:8] = C[m, l] + C[l, m]
        E: f32[m:8, n:8] += R[m, l] * A[l, n] over l:8
        output E""",
        "needs all of C along",
    ),
    "no product": (
        """
        input A: f32[8, 8]
        C: f32[m:8] += A[m, k] over k:8
        output C""",
        "C reduces before the first product",
    ),
    "other index": (
        """
        input A: f32[8, 8]
        C: f32[m:8, l:8] += A[m, k] * A[k, l] over k:8
        E: f32[i:64, n:8] += C[i // 8, l] * A[l, n] over l:8
        output E""",
        "not affine",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_chain_is_refused_with_the_reason(case: str) -> None:
    text, reason = REFUSED[case]
    with pytest.raises(NotAChain, match=r".") as error:
        chain_of(parse_graph(text).nodes)
    assert reason in error.value.message
    assert error.value.help
    assert error.value.where


def test_more_loops_than_orders_can_be_looked_at_are_refused() -> None:
    lines = ["input A: f32[4, 4]", "C0: f32[m:4, n:4] += A[m, k] * A[k, n] over k:4"]
    lines += [f"C{number}: f32[m:4, n:4] += C{number - 1}[m, k] * A[k, n] over k:4" for number in range(1, 8)]
    chain = chain_of(parse_graph("\n".join([*lines, "output C7"])).nodes)
    assert len(chain.operators) == 8
    with pytest.raises(NotAChain, match="10 block loops have 3,628,800 orders") as error:
        legal_orders(chain)
    assert "8 loops or fewer" in error.value.help


# Sizes of the tables --------------------------------------------------------------------------------------------------

# Table 3.5: MFLOP, IO elements, elements of two kernels, flop/byte apart and fused
DERIVED_3_5 = {
    "G1": (536.9, 1_048_576, 5_242_880, 51.2, 256),
    "G2": (805.3, 1_572_864, 7_864_320, 51.2, 256),
    "G3": (1073.7, 2_097_152, 10_485_760, 51.2, 256),
    "G4": (201.3, 786_432, 2_359_296, 42.7, 128),
    "G5": (268.4, 1_048_576, 3_145_728, 42.7, 128),
    "G6": (335.5, 1_310_720, 3_407_872, 49.2, 128),
    "G7": (132.9, 638_976, 1_677_312, 39.6, 104),
    "G8": (177.2, 851_968, 2_236_416, 39.6, 104),
    "G9": (221.5, 1_064_960, 2_449_408, 45.2, 104),
    "G10": (33.6, 98_304, 360_448, 46.5, 170.7),
    "G11": (75.5, 147_456, 737_280, 51.2, 256),
    "G12": (134.2, 196_608, 1_245_184, 53.9, 341.3),
}


@pytest.mark.parametrize("name", TABLE_3_5)
def test_spec1_g33_sizes_of_gemm_chains(name: str) -> None:
    g = TABLE_3_5[name]
    chain = gemm_chain(g.m, g.n, g.k, g.l, g.batch)
    flops = chain.flops(0) + chain.flops(1)
    mflop, io, apart, before, after = DERIVED_3_5[name]
    assert flops / 1e6 == pytest.approx(mflop, abs=0.05)
    assert (chain.compulsory, chain.apart) == (io, apart)
    assert flops / 2 / apart == pytest.approx(before, abs=0.05)
    assert flops / 2 / io == pytest.approx(after, abs=0.05)


def test_spec1_g34_layerwise_traffic_of_attention() -> None:
    g = TABLE_3_5["G2"]
    moved = layerwise(attention(g.m, g.l, g.k, g.n, g.batch))
    assert moved == 33_054_720
    assert 1 - chain_of(attention(g.m, g.l, g.k, g.n, g.batch)).compulsory / moved == pytest.approx(0.9524, abs=5e-5)


@pytest.mark.parametrize(("passes", "rows", "mean"), [(2, 0, 68.36), (4, 0, 80.89), (9, 0, 90.37), (10, 4, 91.25)])
def test_spec1_g35_mean_reduction(passes: int, rows: int, mean: float) -> None:
    shares = []
    for name in list(TABLE_3_5)[:9]:
        g = TABLE_3_5[name]
        io = gemm_chain(g.m, g.n, g.k, g.l, g.batch).compulsory
        shares.append(1 - io / (io + g.batch * (passes * g.m * g.l + rows * g.m)))
        if rows:
            assert layerwise(attention(g.m, g.l, g.k, g.n, g.batch)) == io + g.batch * (passes * g.m * g.l + rows * g.m)
    assert 100 * sum(shares) / len(shares) == pytest.approx(mean, abs=0.005)


# Table 3.6: flop/byte of the second convolution, compulsory elements apart and fused
DERIVED_3_6 = {
    "C1": (75.0, 2_543_616, 1_339_392),
    "C2": (35.3, 1_823_472, 1_141_360),
    "C3": (42.1, 1_286_144, 483_328),
    "C4": (77.0, 929_792, 528_384),
    "C5": (12.7, 1_286_288, 884_880),
    "C6": (263.8, 843_776, 442_368),
    "C7": (31.7, 811_008, 409_600),
    "C8": (50.4, 2_691_072, 1_085_440),
}


@pytest.mark.parametrize("name", TABLE_3_6)
def test_spec1_g36_sizes_of_convolution_chains(name: str) -> None:
    chain = chain_of(conv_chain(name))
    intensity, apart, fused = DERIVED_3_6[name]
    assert (chain.apart, chain.compulsory) == (apart, fused)
    second = chain.operators[1]
    link = (apart - fused) // 2
    moved = link + sum(access.size for access in second.accesses if access.tensor not in chain.links)
    assert chain.flops(1) / 2 / moved == pytest.approx(intensity, abs=0.05)
    assert (intensity > 200) is (name == "C6")


def test_links_of_padded_convolutions_have_no_padding() -> None:
    chain = chain_of(conv_chain("C6"))
    assert chain.links == {"conv1"}
    assert chain.access("conv1").size == 64 * 56 * 56


def test_two_products_are_what_they_say() -> None:
    chain = chain_of(two_products(8, 4, 6, 10, batch=2))
    assert [operator.name for operator in chain.operators] == ["C", "E"]
    assert chain.links == {"C"}
    assert chain.outputs == {"E"}
