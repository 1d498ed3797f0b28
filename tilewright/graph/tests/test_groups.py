"""Which computes share a kernel, and why others do not."""

from dataclasses import replace
from textwrap import dedent

from tilewright.expr.core import Compute
from tilewright.expr.text import parse_graph
from tilewright.graph.groups import Group, form_groups, kernel_name
from tilewright.instruction.products import product_factors


def groups(text: str) -> list[Group]:
    return form_groups(parse_graph(dedent(text)), is_product)


def is_product(node: Compute) -> bool:
    """Products with a vector: what a machine would map."""
    return product_factors(node) is not None and node.name.startswith("p")


def names(found: list[Group]) -> list[tuple[str, ...]]:
    return [tuple(node.name for node in group.nodes) for group in found]


PRODUCT = """
    graph g
    input x: f32[8, 6]
    input w: f32[6, 8]
    input r: f32[8, 8]
    p: f32[i:8, j:8] += x[i, k] * w[k, j] over k:6
    """


SOFTMAX = """graph g
input x: f32[8, 6]
s.max: f32[i:8] max= x[i, j] over j:6
s.exp: f32[i:8, j:6] = exp(x[i, j] - s.max[i])
s.sum: f32[i:8] += s.exp[i, j] over j:6
s: f32[i:8, j:6] = s.exp[i, j] / s.sum[i]
output s
"""


def explained(group: Group) -> str:
    assert group.decision is not None
    return group.decision.explain()


def test_a_product_takes_its_epilogue() -> None:
    (group,) = groups(PRODUCT + "y: f32[a:8, b:8] = max(p[a, b] + r[a, b], 0.0)\n    output y")
    assert [node.name for node in group.nodes] == ["p", "y"]
    assert group.stored == ("y",)
    assert explained(group) == "fusion of p: with y, because its only consumer reads it point by point"


def test_a_kernel_is_named_after_its_heavy_node_and_what_is_fused_with_it() -> None:
    (group,) = groups(PRODUCT + "y: f32[a:8, b:8] = max(p[a, b] + r[a, b], 0.0)\n    output y")
    assert group.kernel == "p+y"
    product, epilogue = group.nodes
    assert kernel_name((product, replace(epilogue, source="add+y"))) == "p+add+y", "the addition of r was inlined"
    assert kernel_name((replace(product, source="scale+p"), epilogue)) == "p+y", "the heavy node stands first"
    assert kernel_name((product, replace(epilogue, source="add+mul+sub+y"))) == "p+..+y"


def test_nodes_inside_an_operator_are_named_after_its_result() -> None:
    rows = [parse_graph(SOFTMAX).nodes[n] for n in range(4)]
    assert kernel_name(rows) == "s"
    assert kernel_name(rows[:2]) == "s.max+s.exp", "its result is written by another kernel"


def test_an_epilogue_may_have_other_dimensions_of_extent_1() -> None:
    (group,) = groups(PRODUCT + "y: f32[o:1, a:8, b:8] = max(p[a, b] + r[a, b], 0.0)\n    output y")
    product, epilogue = group.nodes
    assert product.output.shape == epilogue.output.shape == (1, 8, 8)
    assert {read.tensor for read in epilogue.reads()} >= {product.output}


def test_an_epilogue_at_other_points_is_refused() -> None:
    found = groups(PRODUCT + "y: f32[a:8, b:8] = max(p[b, a], 0.0)\n    output y")
    assert names(found) == [("p",), ("y",)]
    assert explained(found[0]) == (
        "fusion of p: alone, because its consumer cannot be an epilogue\n"
        "  refused: with y by it reads the product at other points than it writes"
    )


def test_a_product_with_two_consumers_stays_alone() -> None:
    found = groups(
        PRODUCT + "y: f32[a:8, b:8] = p[a, b] + 1.0\n    z: f32[a:8, b:8] = p[a, b] + 2.0\n    output y\n    output z"
    )
    assert names(found)[0] == ("p",)
    assert explained(found[0]) == "fusion of p: alone, because 2 consumers read it"


def test_softmax_is_one_group() -> None:
    (group,) = groups(
        """
        graph g
        input x: f32[4, 9]
        m: f32[i:4] max= x[i, j] over j:9
        e: f32[i:4, j:9] = exp(x[i, j] - m[i])
        s: f32[i:4] += e[i, j] over j:9
        y: f32[i:4, j:9] = e[i, j] / s[i]
        output y
        """
    )
    assert [node.name for node in group.nodes] == ["m", "e", "s", "y"]
    assert group.stored == ("y",)
    assert explained(group) == "fusion of m: m + e + s + y, because all are computed from the same rows"


def test_a_layer_norm_takes_its_affine_map() -> None:
    (group,) = groups(
        """
        graph g
        input x: f32[2, 4, 9]
        input a: f32[9]
        t: f32[b:2, i:4, o:1] += x[b, i, j] over j:9
        c: f32[b:2, i:4, j:9] = x[b, i, j] - t[b, i, 0] / 9.0
        q: f32[b:2, i:4, o:1] += c[b, i, j] * c[b, i, j] over j:9
        y: f32[b:2, i:4, j:9] = c[b, i, j] / sqrt(q[b, i, 0]) * a[j]
        output y
        """
    )
    assert [node.name for node in group.nodes] == ["t", "c", "q", "y"]


def test_a_reduction_over_windows_takes_what_follows_point_by_point_only() -> None:
    found = groups(
        """
        graph g
        input x: f32[4, 9]
        input w: f32[3, 4]
        input v: f32[4, 7]
        d: f32[c:4, i:7] += x[c, i + u] * w[u, c] over u:3
        y: f32[c:4, i:7] = max(d[c, i] * v[c, i], 0.0)
        z: f32[c:4, i:7, u:3] = x[c, i + u] * y[c, i]
        output z
        """
    )
    assert names(found) == [("d", "y"), ("z",)]
    assert found[0].stored == ("y",)


def test_a_node_that_waits_for_another_group_stays_outside() -> None:
    """`y` reads `s`, but also `q`, a reduction along the columns that needs all of `s`: `y` joins the later one."""
    found = groups(
        """
        graph g
        input x: f32[4, 4]
        s: f32[i:4] += x[i, j] over j:4
        q: f32[j:4] += x[i, j] * s[i] over i:4
        y: f32[i:4, j:4] = x[i, j] * s[i] * q[i]
        output y
        """
    )
    assert names(found) == [("s",), ("q", "y")]
