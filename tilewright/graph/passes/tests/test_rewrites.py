"""Every pass on graphs in text form: before and after, and what it must leave alone."""

from collections.abc import Mapping
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from tilewright.errors import InvalidArgument
from tilewright.expr.core import Compute
from tilewright.expr.evaluate import evaluate
from tilewright.expr.text import parse_graph, print_graph
from tilewright.graph.passes.rewritten import Rewritten
from tilewright.graph.passes.table import NAMES, REQUIRED, fitting, run_pass, run_passes, simplifying, storing
from tilewright.instruction.products import product_factors

Constants = Mapping[str, np.ndarray[Any, Any]]


def is_product(node: Compute) -> bool:
    return product_factors(node) is not None


def run(name: str, text: str, constants: Constants | None = None) -> Rewritten:
    return run_pass(parse_graph(dedent(text), constants), name, is_product)


def lines(state: Rewritten) -> list[str]:
    """The nodes of a graph."""
    kinds = ("graph", "input", "const", "output")
    return [line for line in print_graph(state.graph).splitlines() if line and not line.startswith(kinds)]


def unchanged(name: str, text: str, constants: Constants | None = None) -> bool:
    before = parse_graph(dedent(text), constants)
    after = run_pass(before, name, is_product)
    return after.graph.nodes == before.nodes and not after.borders


def array(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_every_pass_is_in_the_table_once_by_name() -> None:
    names = [each.name for each in (*simplifying(is_product), *fitting(lambda _: None, lambda _: None), *storing())]
    assert set(names) == set(NAMES) | REQUIRED
    assert [name for name in names if names.count(name) > 1] == ["remove-dead"] * 2


def test_an_unknown_pass_is_an_error() -> None:
    with pytest.raises(InvalidArgument, match="no graph pass 'fold-everything'"):
        run("fold-everything", "graph g\ninput x: f32[2]\noutput x\n")


# remove-dead, fold-constants, fold-constant-parts, merge-equal, separate-outputs
# ---------------------------------------


def test_remove_dead() -> None:
    state = run(
        "remove-dead",
        """
        graph g
        input x: f32[4]
        const c: f32[4]
        a: f32[i:4] = x[i] + c[i]
        b: f32[i:4] = x[i] * 2.0
        output b
        """,
        {"c": array(4)},
    )
    assert lines(state) == ["b: f32[i:4] = x[i] * 2.0"]
    assert not state.graph.constants


def test_fold_constants() -> None:
    w, m = array(3), abs(array(3, seed=1))
    state = run(
        "fold-constants",
        """
        graph g
        input x: f32[2, 3]
        const w: f32[3]
        const m: f32[3]
        s: f32[k:3] = w[k] / sqrt(m[k] + 0.5)
        y: f32[i:2, k:3] = x[i, k] * s[k]
        output y
        """,
        {"w": w, "m": m},
    )
    assert lines(state) == ["y: f32[i:2, k:3] = x[i, k] * s[k]"]
    np.testing.assert_array_equal(state.graph.constants["s"], w / np.sqrt(m + np.float32(0.5)))


def test_fold_constants_leaves_what_would_cost_memory() -> None:
    assert unchanged(
        "fold-constants",
        """
        graph g
        const w: f32[1]
        y: f32[i:300, k:300] = w[0]
        output y
        """,
        {"w": array(1)},
    )


def test_fold_constant_parts() -> None:
    w = array(3)
    state = run(
        "fold-constant-parts",
        """
        graph g
        input x: f32[2, 3]
        const w: f32[3]
        y: f32[i:2, k:3] = x[i, k] * (w[k] * 3.0)
        output y
        """,
        {"w": w},
    )
    assert lines(state) == ["y: f32[i:2, k:3] = x[i, k] * y.folded0[k]"]
    np.testing.assert_array_equal(state.graph.constants["y.folded0"], w * np.float32(3))


@pytest.mark.parametrize(
    "body",
    [
        "i >= 1 and x[i] > 0.0 ? w[i - 1] * 3.0 : 0.0",  # i = 0 would read out of range
        "x[i] * f32(b[i])",  # an instruction may widen
    ],
)
def test_fold_constant_parts_leaves(body: str) -> None:
    constants = {"w": array(4), "b": np.arange(4, dtype=np.int8)}
    text = f"graph g\ninput x: f32[4]\nconst w: f32[4]\nconst b: i8[4]\ny: f32[i:4] = {body}\noutput y\n"
    assert unchanged("fold-constant-parts", text, constants)


def test_merge_equal_looks_through_names_of_loops_and_constants() -> None:
    state = run(
        "merge-equal",
        """
        graph g
        input x: f32[4]
        const c: f32[4]
        const d: f32[4]
        a: f32[i:4] = x[i] + c[i]
        b: f32[j:4] = x[j] + d[j]
        y: f32[i:4] = a[i] * b[i]
        output y
        """,
        {"c": array(4), "d": array(4)},
    )
    assert lines(state) == ["a: f32[i:4] = x[i] + c[i]", "y: f32[i:4] = a[i] * a[i]"]


@pytest.mark.parametrize("second", ["x[j] + d[j]", "x[3 - j] + c[j]", "c[j] + x[j]"])
def test_merge_equal_leaves_what_differs(second: str) -> None:
    text = f"""
        graph g
        input x: f32[4]
        const c: f32[4]
        const d: f32[4]
        a: f32[i:4] = x[i] + c[i]
        b: f32[j:4] = {second}
        y: f32[i:4] = a[i] * b[i]
        output y
        """
    assert unchanged("merge-equal", text, {"c": array(4), "d": array(4, seed=1)})


def test_merge_equal_keeps_outputs_apart() -> None:
    text = "graph g\ninput x: f32[4]\na: f32[i:4] = x[i] + 1.0\nb: f32[i:4] = x[i] + 1.0\noutput a\noutput b\n"
    assert unchanged("merge-equal", text)


def test_separate_outputs() -> None:
    state = run(
        "separate-outputs", "graph g\ninput x: f32[4]\na: f32[i:4] = x[i] + 1.0\noutput x\noutput a\noutput a\n"
    )
    assert [tensor.name for tensor in state.graph.outputs] == ["x.output0", "a", "a.output2"]
    assert lines(state)[1:] == ["x.output0: f32[i0:4] = x[i0]", "a.output2: f32[i0:4] = a[i0]"]


# inline-maps
# -----------------------------------------------------------------------------------------------------------


def test_an_inlined_map_that_joins_two_tensors_keeps_its_name() -> None:
    text = """
        graph g
        input x: f32[4]
        input r: f32[4]
        shift: f32[i:4] = x[i] + 1.0
        add: f32[i:4] = shift[i] + r[i]
        y: f32[i:4] = max(add[i], 0.0)
        output y
        """
    (node,) = run("inline-maps", text).graph.nodes
    assert node.source == "add+y"


def test_inline_maps() -> None:
    state = run(
        "inline-maps",
        """
        graph g
        input x: f32[3, 4]
        t: f32[i:4, j:3] = x[j, i]
        a: f32[i:4, j:3] = t[i, j] * 2.0
        y: f32[i:4, j:3] = max(a[i, j], 0.0)
        output y
        """,
    )
    assert lines(state) == ["y: f32[i:4, j:3] = max(x[j, i] * 2.0, 0.0)"]


PERMUTED = """
graph g
input x: f32[8, 5]
const w: f32[3, 8]
s: f32[c:8, i:5] = x[c % 2 * 4 + c // 2, i]
a: f32[k:3, i:5] += s[c, i] * w[k, c] over c:8
output a
"""


def test_inline_maps_lets_a_product_read_permuted_channels() -> None:
    state = run("inline-maps", PERMUTED, {"w": array(3, 8)})
    assert lines(state) == ["a: f32[k:3, i:5] += x[c % 2 * 4 + c // 2, i] * w[k, c] over c:8"]


def test_inline_maps_leaves_permuted_channels_that_others_need_in_memory() -> None:
    state = run("inline-maps", PERMUTED + "output s\n", {"w": array(3, 8)})
    assert "a: f32[k:3, i:5] += s[c, i] * w[k, c] over c:8" in lines(state)


def test_inline_maps_forgets_readers_whose_condition_never_holds() -> None:
    text = """
        graph g
        input x: f32[4]
        e: f32[i:4] = exp(x[i])
        padded: f32[i:8] = i < 4 ? e[i] : 0.0
        behind: f32[i:2] = padded[i + 5]
        y: f32[i:2] = behind[i] + x[i]
        z: f32[i:2] = y[i] * 2.0
        output e
        output z
        """
    assert lines(run("inline-maps", text)) == ["e: f32[i:4] = exp(x[i])", "z: f32[i:2] = (0.0 + x[i]) * 2.0"]


def test_a_product_reads_through_a_transpose_and_keeps_its_epilogue() -> None:
    state = run(
        "inline-maps",
        """
        graph g
        input x: f32[8, 6]
        input w: f32[6, 8]
        input v: f32[8, 4]
        p: f32[i:8, j:8] += x[i, k] * w[k, j] over k:6
        b: f32[i:8, j:8] = p[i, j] + 1.0
        t: f32[i:8, j:8] = b[j, i]
        q: f32[i:8, j:4] += t[i, k] * v[k, j] over k:8
        output q
        """,
    )
    assert lines(state) == [
        "p: f32[i:8, j:8] += x[i, k] * w[k, j] over k:6",
        "b: f32[i:8, j:8] = p[i, j] + 1.0",
        "q: f32[i:8, j:4] += b[k, i] * v[k, j] over k:8",
    ]


def test_what_merges_dimensions_of_a_product_stays() -> None:
    nodes = [
        "p: f32[i:8, g:2, j:3] += x[i, k] * w[g, j, k] over k:6",
        "e: f32[i:8, g:2, j:3] = max(p[i, g, j], 0.0)",
        "m: f32[i:8, k:6] = e[i, k // 3, k % 3]",
        "y: f32[i:8, k:6] = m[i, k] + x[i, k]",
    ]
    head = "graph g\ninput x: f32[8, 6]\ninput w: f32[2, 3, {}]\n"
    assert unchanged("inline-maps", head.format(6) + "\n".join(nodes) + "\noutput y\n")
    of_no_product = [nodes[1].replace("p[i, g, j]", "w[g, j, i]"), *nodes[2:]]
    state = run("inline-maps", head.format(8) + "\n".join(of_no_product) + "\noutput y\n")
    assert lines(state) == ["y: f32[i:8, k:6] = max(w[k // 3, k % 3, i], 0.0) + x[i, k]"]


@pytest.mark.parametrize(
    ("why", "nodes"),
    [
        ("costly work would be done again", "e: f32[i:4] = exp(x[i])\ny: f32[i:4, j:9] = e[i] + z[j]"),
        ("a product would lose its form", "a: f32[i:4] = x[i] + 1.0\ny: f32[i:4, j:9] += a[k] * w[i, k, j] over k:4"),
        (
            "two nodes read it",
            "a: f32[i:4] = x[i] + 1.0\nb: f32[i:4] max= a[i] + z[u] over u:9\ny: f32[i:4] = a[i] + b[i]",
        ),
        ("padding would lose its form", "a: f32[i:4] = x[i] + 1.0\ny: f32[i:6] = i >= 1 and i < 5 ? a[i - 1] : 0.0"),
    ],
)
def test_inline_maps_leaves(why: str, nodes: str) -> None:
    text = f"graph g\ninput x: f32[4]\ninput z: f32[9]\ninput w: f32[4, 4, 9]\n{nodes}\noutput y\n"
    assert unchanged("inline-maps", text), why


def test_the_epilogue_of_a_product_does_not_move_on() -> None:
    assert unchanged(
        "inline-maps",
        """
        graph g
        input x: f32[8, 6]
        input w: f32[6, 8]
        p: f32[i:8, j:8] += x[i, k] * w[k, j] over k:6
        b: f32[i:8, j:8] = max(p[i, j], 0.0)
        y: f32[i:8] += b[i, j] over j:8
        output y
        """,
    )


def test_a_concatenation_is_no_epilogue() -> None:
    """Its first part reads the product at equal indices, but writes more points."""
    nodes = lines(
        run(
            "inline-maps",
            """
            graph g
            input x: f32[8, 6]
            input w: f32[6, 8]
            p: f32[i:8, j:8] += x[i, k] * w[k, j] over k:6
            b: f32[i:8, j:8] = max(p[i, j], 0.0)
            y: f32[i:8, j:14] = j < 8 ? b[i, j] : x[i, j - 8]
            output y
            """,
        )
    )
    assert "b: f32[i:8, j:8] = max(p[i, j], 0.0)" in nodes


NARROWED = """
    graph g
    input x: f16[8, 6]
    input w: f16[6, 8]
    input v: f16[8, 8]
    p: f32[i:8, j:8] += f32(x[i, k]) * f32(w[k, j]) over k:6
    a: f16[i:8, j:8] = f16(p[i, j])
    """


def test_a_sum_that_is_rounded_is_stored_rounded_and_read_through_a_transpose() -> None:
    state = run(
        "inline-maps",
        NARROWED
        + """t: f16[i:8, j:8] = a[j, i]
    q: f32[i:8, j:8] += f32(t[i, k]) * f32(v[k, j]) over k:8
    output q
    """,
    )
    assert lines(state)[1:] == [
        "a: f16[i:8, j:8] = f16(p[i, j])",
        "q: f32[i:8, j:8] += f32(a[k, i]) * f32(v[k, j]) over k:8",
    ]


def test_of_two_products_that_are_added_one_is_stored_rounded() -> None:
    second = """q: f32[i:8, j:8] += f32(x[i, k]) * f32(v[k, j]) over k:6
    b: f16[i:8, j:8] = f16(q[i, j])
    s: f16[i:8, j:8] = f16(f32(b[i, j]) * 2.0)
    y: f16[i:8, j:8] = f16(f32(a[i, j]) + f32(s[i, j]))
    output y
    """
    assert lines(run("inline-maps", NARROWED + second))[2:] == [
        "s: f16[i:8, j:8] = f16(f32(f16(q[i, j])) * 2.0)",
        "y: f16[i:8, j:8] = f16(f32(f16(p[i, j])) + f32(s[i, j]))",
    ]
    wide = (NARROWED + second).replace("f16", "f32")
    assert len(lines(run("inline-maps", wide))) == 3  # no bytes are saved: one map reads both


def test_a_bias_before_the_rounding_does_not_hide_it() -> None:
    state = run(
        "inline-maps",
        NARROWED.replace("a: f16[i:8, j:8] = f16(p[i, j])", "e: f32[i:8, j:8] = p[i, j] + 1.0")
        + """a: f16[i:8, j:8] = f16(e[i, j])
    t: f16[i:8, j:8] = a[j, i]
    output t
    """,
    )
    assert lines(state)[1:] == ["a: f16[i:8, j:8] = f16(p[i, j] + 1.0)", "t: f16[i:8, j:8] = a[j, i]"]


# fold-scale
# ------------------------------------------------------------------------------------------------------------

CONVOLUTION = """
    graph g
    input x: {dtype}[2, 5, 6]
    input r: {dtype}[2, 4, 4]
    const w: {dtype}[4, 5, 3]
    const m: {dtype}[4]
    const s: {dtype}[4]
    const b: {dtype}[4]
    const t: {dtype}[2, 4]
    p: {dtype}[n:2, k:4, i:4] += x[n, c, i + u] * w[k, c, u] over c:5, u:3
    y: {dtype}[n:2, k:4, i:4] = {body}
    output y
    """
CONVOLUTION_CONSTANTS = {
    "w": array(4, 5, 3, seed=1),
    "m": array(4, seed=2),
    "s": array(4, seed=3),
    "b": array(4, seed=4),
    "t": array(2, 4, seed=5),
}


def convolution(body: str, dtype: str = "f32") -> str:
    return CONVOLUTION.format(body=body, dtype=dtype)


@pytest.mark.parametrize(
    ("body", "after", "alpha", "shift"),
    [
        ("max(p[n, k, i] * s[k] + b[k], 0.0)", "max({}, 0.0)", lambda m, s, b: s, lambda m, s, b: b),
        (
            "max((p[n, k, i] - m[k]) * s[k] + b[k], 0.0) + r[n, k, i]",
            "max({}, 0.0) + r[n, k, i]",
            lambda m, s, b: s,
            lambda m, s, b: b - m * s,
        ),
        (
            "b[k] - p[n, k, i] / s[k] + r[n, k, i]",
            "{} + r[n, k, i]",
            lambda m, s, b: -1 / s,
            lambda m, s, b: b,
        ),
        (
            "(p[n, k, i] * s[k] + b[k]) * sigmoid(p[n, k, i] * s[k] + b[k])",
            "({}) * sigmoid({})",
            lambda m, s, b: s,
            lambda m, s, b: b,
        ),
        ("tanh(-(2.0 * p[n, k, i] + 1.0))", "tanh({})", lambda m, s, b: -2 + 0 * s, lambda m, s, b: -1.0),
    ],
)
def test_fold_scale(body: str, after: str, alpha: Any, shift: Any) -> None:
    state = run("fold-scale", convolution(body), CONVOLUTION_CONSTANTS)
    constants = state.graph.constants
    index = "" if constants["p.shift"].ndim == 0 else "[k]"
    shifted = "p[n, k, i] + p.shift" + (index or "[]")
    assert lines(state) == [
        "p: f32[n:2, k:4, i:4] += x[n, c, i + u] * w.y[k, c, u] over c:5, u:3",
        f"y: f32[n:2, k:4, i:4] = {after.replace('{}', shifted)}",
    ]
    m, s, b, w = (CONVOLUTION_CONSTANTS[name].astype(np.float64) for name in "msbw")
    expected = (w * alpha(m, s, b)[:, None, None]).astype(np.float32)
    np.testing.assert_array_equal(constants["w.y"], expected)
    np.testing.assert_array_equal(constants["p.shift"], np.asarray(shift(m, s, b), np.float32))
    (decision,) = state.decisions
    assert decision.explain().startswith("scale of p: folded into w, because its factors are constants per ")


def test_fold_scale_keeps_the_results() -> None:
    text = dedent(convolution("max((p[n, k, i] - m[k]) * s[k] + b[k], 0.0) * sigmoid(r[n, k, i])"))
    before = parse_graph(text, CONVOLUTION_CONSTANTS)
    after = run_pass(before, "fold-scale", is_product).graph
    inputs = [array(2, 5, 6, seed=6), array(2, 4, 4, seed=7)]
    (expected,) = evaluate(before, inputs, precise=True, wide=True)
    (found,) = evaluate(after, inputs, precise=True, wide=True)
    # one rounding of w, one of the shift; 15 products of numbers below 4 with factors below 4
    assert abs(found - expected).max() <= 2.0**-24 * (15 * 64 + 16)


@pytest.mark.parametrize(
    ("rule", "body"),
    [
        ("", "max(p[n, k, i] + b[k], 0.0)"),  # no factor
        ("", "max(p[n, k, i], 0.0) * s[k]"),  # not affine
        ("", "p[n, k, i] * r[n, k, i]"),  # not a constant
        ("", "p[n, k, 3 - i] * s[k]"),  # not at its own points
        ("", "p[n, k, i] * s[k] + sigmoid(p[n, k, i])"),  # two different factors
        ("its loops index whole dimensions of the constant", "p[n, k, i] * t[n, k]"),
        ("its loops index whole dimensions of the constant", "p[n, k, i] * s[i]"),
        ("the folded constants are finite", "p[n, k, i] / (s[k] * 0.0)"),
    ],
)
def test_fold_scale_leaves(rule: str, body: str) -> None:
    state = run("fold-scale", convolution(body), CONVOLUTION_CONSTANTS)
    assert unchanged("fold-scale", convolution(body), CONVOLUTION_CONSTANTS)
    assert [refusal.rule for decision in state.decisions for refusal in decision.refused] == ([rule] if rule else [])


def test_fold_scale_leaves_f16() -> None:
    constants = {name: value.astype(np.float16) for name, value in CONVOLUTION_CONSTANTS.items()}
    assert unchanged("fold-scale", convolution("p[n, k, i] * s[k]", "f16"), constants)


def test_fold_scale_leaves_a_constant_that_others_read() -> None:
    text = dedent(convolution("p[n, k, i] * s[k]")).replace(
        "output y", "z: f32[k:4] += w[k, c, 0] over c:5\noutput z\noutput y"
    )
    state = run("fold-scale", text, CONVOLUTION_CONSTANTS)
    assert unchanged("fold-scale", text, CONVOLUTION_CONSTANTS)
    (decision,) = state.decisions
    assert decision.explain() == (
        "scale of p: left in place, because it cannot be folded\n"
        "  refused: the factor in y by no other node reads the constant: w"
    )


def test_fold_scale_leaves_a_product_that_is_an_output() -> None:
    text = dedent(convolution("p[n, k, i] * s[k]")).replace("output y", "output y\noutput p")
    assert unchanged("fold-scale", text, CONVOLUTION_CONSTANTS)


# split-channels
# ----------------------------------------------------------------------------------------------------------

GROUPED = """
graph g
input x: f32[12, 5]
input r: f32[8, 5]
const w: f32[8, 3]
const b: f32[8]
a: f32[k:8, i:5] += x[k // 2 * 3 + c, i] * w[k, c] over c:3
"""


def test_split_channels() -> None:
    w, b = array(8, 3), array(8)
    epilogue = "y: f32[k:8, i:5] = max(a[k, i] + b[k], r[k, i])\noutput y\n"
    state = run("split-channels", dedent(GROUPED) + epilogue, {"w": w, "b": b})
    assert lines(state) == [
        "a.split: f32[k_0:4, k_1:2, i:5] += x[k_0 * 3 + c, i] * w.4x2x3[k_0, k_1, c] over c:3",
        "y.split: f32[k_0:4, k_1:2, i:5] = max(a.split[k_0, k_1, i] + b.4x2[k_0, k_1], r[k_0 * 2 + k_1, i])",
        "y: f32[k:8, i:5] = y.split[k // 2, k % 2, i]",
    ]
    np.testing.assert_array_equal(state.graph.constants["w.4x2x3"], w.reshape(4, 2, 3))
    assert [decision.chosen for decision in state.decisions] == ["cut k at 2"]


@pytest.mark.parametrize(
    "readers",
    [
        "y: f32[k:8] = a[k, 0]\noutput y",  # not the points that it writes
        "y: f32[k:8, i:5] = a[k, i] * 2.0\nz: f32[k:8, i:5] = a[k, i] + 1.0\noutput y\noutput z",
        "y: f32[k:8] += a[k, i] over i:5\noutput y",
        "output a",
    ],
)
def test_split_channels_alone_where_no_map_follows(readers: str) -> None:
    state = run("split-channels", dedent(GROUPED) + readers + "\n", {"w": array(8, 3), "b": array(8)})
    assert lines(state)[1] == "a: f32[k:8, i:5] = a.split[k // 2, k % 2, i]"
    assert lines(state)[2:] == [line for line in readers.splitlines() if not line.startswith("output")]


def test_split_channels_keeps_the_results_and_lets_scales_fold() -> None:
    constants = {"w": array(8, 3), "b": array(8)}
    text = dedent(GROUPED) + "y: f32[k:8, i:5] = a[k, i] * b[k] + r[k, i]\noutput y\n"
    before = parse_graph(text, constants)
    state = run_passes(before, simplifying(is_product))
    assert "scale of a.split" in [d.subject for d in state.decisions if d.chosen.startswith("folded into")]
    inputs = [array(12, 5, seed=1), array(8, 5, seed=2)]
    for one, other in zip(evaluate(before, inputs), evaluate(state.graph, inputs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_split_channels_leaves_what_is_affine_or_no_sum() -> None:
    head = "graph g\ninput x: f32[12, 5]\n"
    assert unchanged("split-channels", head + "y: f32[i:5] += x[c, i] over c:12\noutput y\n")
    assert unchanged("split-channels", head + "y: f32[k:24, i:5] = x[k // 2, i]\noutput y\n")
    assert unchanged("split-channels", head + "y: f32[k:7] += x[k // 3, i] over i:5\noutput y\n")


def test_split_channels_splits_sums_over_permuted_channels() -> None:
    head = "graph g\ninput x: f32[8, 5]\nconst w: f32[3, 8]\n"
    body = "a: f32[k:3, i:5] += x[c % 2 * 4 + c // 2, i] * w[k, c] over c:8\noutput a\n"
    before = parse_graph(head + body, {"w": array(3, 8)})
    state = run("split-channels", head + body, {"w": array(3, 8)})
    split = "a: f32[k:3, i:5] += x[c_1 * 4 + c_0, i] * w.3x4x2[k, c_0, c_1] over c_1:2, c_0:4"
    assert lines(state) == [split]  # neighbours in the sum are neighbours in x
    x = array(8, 5, seed=1)
    np.testing.assert_allclose(evaluate(state.graph, [x])[0], evaluate(before, [x])[0], rtol=1e-5)


@pytest.mark.parametrize(
    "index",
    ["c // 3", "c * c", "c % 2 * i"],  # no divisor of the extent, not affine, not affine when it is split
)
def test_split_channels_leaves_sums_that_splitting_does_not_make_affine(index: str) -> None:
    head = "graph g\ninput x: f32[64, 5]\nconst w: f32[3, 8]\n"
    body = f"a: f32[k:3, i:5] += x[{index}, i] * w[k, c] over c:8\noutput a\n"
    assert unchanged("split-channels", head + body, {"w": array(3, 8)})


# fold-padding
# ----------------------------------------------------------------------------------------------------------


def padded(pad: str, rest: str = "", outputs: str = "output y") -> str:
    return f"""
        graph g
        input x: f32[3, 8]
        const w: f32[3]
        a: f32[c:3, i:8] = x[c, i] * x[c, i]
        p: f32[c:3, i:10] = {pad}
        {rest}
        y: f32[c:3, i:8] += p[c, i + u] * w[u] over u:3
        {outputs}
        """


def test_fold_padding() -> None:
    state = run("fold-padding", padded("i - 1 >= 0 and i - 1 < 8 ? a[c, i - 1] : 0.0"), {"w": array(3)})
    assert lines(state)[1:] == ["y: f32[c:3, i:8] += a[c, i + u + -1] * w[u] over u:3"]
    assert state.borders["a"].widths == ((0, 0), (1, 1))
    assert state.borders["a"].value.value == 0.0
    assert state.decisions[0].explain() == (
        "padding p: a border of a, 1+1 elements of 0.0, because all its readers find the border in memory"
    )


def test_two_paddings_of_one_value_share_the_wider_border() -> None:
    rest = """q: f32[c:3, i:12] = i >= 2 and i < 10 ? a[c, i - 2] : 0.0
        z: f32[c:3, i:8] max= q[c, i + u] over u:5"""
    state = run(
        "fold-padding",
        padded("i >= 1 and i < 9 ? a[c, i - 1] : 0.0", rest, "output y\noutput z"),
        {"w": array(3)},
    )
    assert state.borders["a"].widths == ((0, 0), (2, 2))
    assert len(lines(state)) == 3


def test_two_values_need_two_borders() -> None:
    rest = """q: f32[c:3, i:10] = i >= 1 and i < 9 ? a[c, i - 1] : -inf
        z: f32[c:3, i:8] max= q[c, i + u] over u:3"""
    state = run(
        "fold-padding",
        padded("i >= 1 and i < 9 ? a[c, i - 1] : 0.0", rest, "output y\noutput z"),
        {"w": array(3)},
    )
    assert state.borders["a"].value.value == 0.0
    assert any(line.startswith("q: ") for line in lines(state))
    assert "  refused: a border of a by one value per border: 0.0 and -inf" in state.decisions[1].explain()


def test_a_padded_transpose_is_padding() -> None:
    state = run(
        "fold-padding",
        """
        graph g
        input x: f32[3, 8]
        a: f32[c:3, i:8] = x[c, i] * x[c, i]
        p: f32[i:10, c:3] = i >= 1 and i < 9 ? a[c, i - 1] : 0.0
        y: f32[i:8, c:3] max= p[i + u, c] over u:3
        output y
        """,
    )
    assert lines(state)[1:] == ["y: f32[i:8, c:3] max= a[c, i + u + -1] over u:3"]
    assert state.borders["a"].widths == ((0, 0), (1, 1))


@pytest.mark.parametrize(
    "pad",
    [
        "i >= 1 and i < 8 ? a[c, i - 1] : 0.0",  # hides an element
        "i >= 1 and i < 9 ? a[c, 8 - i] : 0.0",  # backwards
        "i >= 1 and i < 9 and x[0, 0] > 0.0 ? a[c, i - 1] : 0.0",
        "i >= 1 and i < 9 ? a[c, i - 1] : x[c, 0]",
    ],
)
def test_fold_padding_leaves(pad: str) -> None:
    assert unchanged("fold-padding", padded(pad), {"w": array(3)})


@pytest.mark.parametrize("outputs", ["output y\noutput a", "output y\noutput p"])
def test_fold_padding_leaves_outputs(outputs: str) -> None:
    text = dedent(padded("i >= 1 and i < 9 ? a[c, i - 1] : 0.0", outputs="OUT")).replace("OUT", outputs)
    state = run("fold-padding", text, {"w": array(3)})
    assert not state.borders
    assert state.decisions[0].chosen == "a copy"
