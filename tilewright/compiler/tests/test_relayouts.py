"""The compiled graph: relayouts of operands are nodes of it, named by content, and it computes what the model does."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.compiler.compile import compile_graph
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.plan import ChooseProduct, Plan
from tilewright.compiler.program import Placement
from tilewright.compiler.tests.test_products_by_mapping import BUILD, OPERATORS
from tilewright.compiler.tests.test_review import agrees, machine_with_small_caches
from tilewright.expr import dtypes
from tilewright.expr.core import Axis, Compute, Tensor, static_shape
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import conv, elementwise, linalg
from tilewright.expr.ops.shape import reshape, transpose
from tilewright.instruction.relayout import PREFIX, fold_constants
from tilewright.machine.registry import resolve_cpu
from tilewright.options import Options
from tilewright.tiles.notation import print_tree

RNG = np.random.default_rng(0)


def arrays(graph: Graph) -> list[np.ndarray]:
    """Small whole numbers, so that every sum is exact in any order."""
    return [RNG.integers(-3, 4, static_shape(t.shape)).astype(dtypes.numpy_dtype(t.dtype)) for t in graph.inputs]


def is_exact(graph: Graph, machine: str, threads: int, options: Options | None = None) -> None:
    """Whole numbers come out as the evaluator has them."""
    inputs = arrays(graph)
    found = compile_graph(graph, machine, threads, options or Options(cache=False))(*inputs)
    np.testing.assert_array_equal(found, evaluate(graph, inputs)[0])


def relayouts(graph: Graph) -> list[Compute]:
    return [node for node in graph.nodes if node.name.startswith(PREFIX)]


def same(graph: Graph, machine: str = "x86-64-v4") -> Plan:
    plan = make_plan(graph, resolve_cpu(machine), 1)
    inputs = arrays(graph)
    for found, wanted in zip(evaluate(plan.mapped_graph(), inputs), evaluate(graph, inputs), strict=True):
        np.testing.assert_array_equal(found, wanted)
    return plan


def convolution(constant: bool, types: tuple[str, str, str] = ("f32", "f32", "f32")) -> Graph:
    b = GraphBuilder()
    image = b.input("image", (1, 5, 9, 7), types[0])
    shape = (19, 5, 3, 3)
    values = RNG.integers(-3, 4, shape).astype(dtypes.numpy_dtype(types[1]))
    filters = b.constant(values, "filters") if constant else b.input("filters", shape, types[1])
    to = types[2]
    return b.finish([conv.conv(image, filters, pads=1, strides=2, accumulate=to, out_dtype=to, name="y")])


# What is in the graph ---------------------------------------------------------------------------------------------


def test_a_convolution_becomes_relayout_product_and_inverse_relayout() -> None:
    plan = same(convolution(constant=False))
    (into,) = relayouts(plan.mapped_graph())
    assert [tensor.name for tensor in into.inputs()] == ["filters"]
    product = next(node for node in plan.mapped_graph().nodes if node.accum == "sum")
    assert into.name in {tensor.name for tensor in product.inputs()}
    back = plan.mapped_graph().producers()["y"]
    assert [tensor.name for tensor in back.inputs()] == [product.name] == ["y.packed"]
    assert any(into.name in kernel.writes for kernel in plan.kernels)


@pytest.mark.parametrize("types", [("f32", "f32", "f32"), ("u8", "i8", "i32"), ("bf16", "bf16", "f32")], ids="-".join)
def test_relayouts_of_constants_are_folded_to_what_the_module_holds(types: tuple[str, str, str]) -> None:
    plan = same(convolution(True, types), "znver5")
    (into,) = relayouts(plan.mapped_graph())
    assert not any(into.name in kernel.writes for kernel in plan.kernels)
    folded = fold_constants(plan.mapped_graph())
    assert not relayouts(folded)
    placement = Placement(plan)
    start, values = placement.offsets[into.name], folded.constants[into.name]
    held = placement.packed(plan)[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    np.testing.assert_array_equal(held, values)


def test_equal_relayouts_of_one_tensor_are_one_node() -> None:
    b = GraphBuilder()
    w = b.input("w", (33, 40), "f32")
    y = linalg.matmul(b.input("x", (70, 33), "f32"), w)
    z = linalg.matmul(b.input("u", (70, 33), "f32"), w)
    plan = same(b.finish([y, z]))
    assert len(relayouts(plan.mapped_graph())) == 1


def test_names_say_what_is_computed_not_for_whom() -> None:
    names = []
    for node in ("first", "second"):
        b = GraphBuilder()
        x, w = b.input("x", (70, 33), "f32"), b.input("w", (33, 40), "f32")
        plan = same(b.finish([linalg.matmul(x, w, name=node)]))
        names.append([each.name for each in relayouts(plan.mapped_graph())])
    assert names[0] == names[1] != []


# What is computed while packing -----------------------------------------------------------------------------------


def scaled(rows: int, used_twice: bool = False) -> Graph:
    b = GraphBuilder()
    x, w = b.input("x", (rows, 33), "f32"), b.input("w", (33, 40), "f32")
    doubled = elementwise.relu(elementwise.unary(w, "neg"), name="doubled")
    y = linalg.matmul(x, doubled, name="y")
    return b.finish([y, elementwise.unary(doubled, "neg")] if used_twice else [y])


def check(graph: Graph) -> None:
    inputs = arrays(graph)
    found = compile_graph(graph, threads=2, options=Options(cache=False))(*inputs)
    for result, wanted in zip(found if isinstance(found, tuple) else (found,), evaluate(graph, inputs), strict=True):
        np.testing.assert_array_equal(result, wanted)


def test_a_map_before_the_vector_operand_is_computed_while_that_is_packed() -> None:
    plan = same(scaled(70))
    *packing, product = (kernel.name for kernel in plan.kernels)
    assert {name.partition(".part")[0] for name in packing} == {"doubled.packed"}
    assert product == "y"
    (into,) = relayouts(plan.mapped_graph())
    assert [tensor.name for tensor in into.inputs()] == ["w"]
    assert "computed with doubled" in " ".join(each.reason for each in plan.decisions)
    check(scaled(70))


@pytest.mark.parametrize("graph", [scaled(70, used_twice=True), scaled(7)], ids=["another reader", "few rows"])
def test_it_is_not_where_others_read_it_or_nothing_is_packed(graph: Graph) -> None:
    plan = same(graph)
    assert any(kernel.name == "doubled" for kernel in plan.kernels)
    check(graph)


def test_few_rows_read_a_map_along_its_columns_as_panels_that_compute_it() -> None:
    """Few rows: the operand is packed only because it is stored the other way round. That then computes the map too."""
    b = GraphBuilder()
    x, w = b.input("x", (17, 33), "f32"), b.input("w", (48, 33), "f32")
    graph = b.finish([linalg.linear(x, elementwise.relu(w, name="positive"), name="y")])
    plan = same(graph)
    assert "positive" not in {kernel.name for kernel in plan.kernels}
    check(graph)


def columns(types: tuple[str, str, str], last: bool = False, used_twice: bool = False, output: bool = False) -> Graph:
    """A map of x, x[k, m] or x[m, k], times w[k, n]."""
    b = GraphBuilder()
    x, w = b.input("x", (70, 33) if last else (33, 70), "f32"), b.constant(np.ones((33, 40), np.int8), "w")
    rounded = elementwise.cast(elementwise.relu(x), types[0], name="rounded")
    weights = elementwise.cast(w, types[1]) if types[1] != "i8" else w
    equation = "mk,kn->mn" if last else "km,kn->mn"
    y = linalg.einsum(equation, [rounded, weights], accumulate=types[2], out_dtype=types[2], name="y")
    twice = [elementwise.unary(rounded, "abs")] if used_twice else []
    return b.finish([y, *twice, *([rounded] if output else [])])


def reasons(plan: Plan, subject: str) -> str:
    return " ".join(each.reason for each in plan.decisions if each.subject == f"layout of {subject}")


GROUPS = [("u8", "i8", "i32"), ("bf16", "bf16", "f32")]


@pytest.mark.parametrize("types", GROUPS, ids="-".join)
def test_a_map_before_the_broadcast_operand_is_computed_while_neighbours_are_brought_together(
    types: tuple[str, str, str],
) -> None:
    plan = same(columns(types), "znver5")
    into, *_ = relayouts(plan.mapped_graph())
    assert [tensor.name for tensor in into.inputs()] == ["x"]
    assert [kernel.name for kernel in plan.kernels] == ["rounded.packed", "y"]
    assert "neighbours of dimension 0 at once; computed with rounded" in reasons(plan, "rounded")
    check(columns(types))


@pytest.mark.parametrize("types", GROUPS, ids="-".join)
def test_neighbours_that_lie_together_are_not_moved(types: tuple[str, str, str]) -> None:
    plan = same(columns(types, last=True), "znver5")
    assert [kernel.name for kernel in plan.kernels] == ["rounded", "y"]
    check(columns(types, last=True))


def test_single_elements_are_broadcast_from_where_they_are() -> None:
    plan = same(columns(("f32", "f32", "f32")), "znver5")
    assert not reasons(plan, "rounded")


@pytest.mark.parametrize(("shape", "copied"), [((32, 288), False), ((288, 32), True)])
def test_a_reshape_that_is_no_view_is_done_while_it_is_packed(shape: tuple[int, int], copied: bool) -> None:
    """The image is stored with channels innermost: (32 | 9 * 32) is a view of that, (32 * 9 | 32) is not."""
    b = GraphBuilder()
    image, filters = b.input("image", (1, 4, 9, 32), "f32"), b.constant(np.ones((32, 4, 1, 1), np.float32), "filters")
    rows = b.input("rows", (70, shape[0]), "f32")
    flat = reshape(conv.conv(image, filters, name="features"), shape, name="flat")
    graph = b.finish([linalg.matmul(rows, flat, name="y")])
    plan = same(graph)
    assert "flat" not in {kernel.name for kernel in plan.kernels}
    assert ("computed with flat" if copied else "after flat: it is a view of features") in reasons(plan, "flat")
    check(graph)


def test_explain_says_why_a_map_is_not_computed_while_it_is_packed() -> None:
    types = GROUPS[0]
    assert "; one copy, read many times, after rounded: it is an output" in reasons(
        same(columns(types, output=True), "znver5"), "rounded"
    )
    assert "after doubled: 2 nodes read it" in reasons(same(scaled(70, used_twice=True)), "doubled")
    b = GraphBuilder()
    x, u, w = b.input("x", (70, 33), "f32"), b.input("u", (33, 20), "f32"), b.input("w", (20, 40), "f32")
    y = linalg.matmul(x, linalg.matmul(u, w, name="inner"), name="y")
    assert "after inner: it sums" in reasons(same(b.finish([y])), "inner")


def test_a_map_is_not_computed_again_for_every_window_that_an_element_is_in() -> None:
    """An image as vectors, which is asked for here: packing takes an element for each of the windows that hold it."""
    b = GraphBuilder()
    image, filters = b.input("image", (1, 4, 9, 32), "f32"), b.input("filters", (5, 4, 3, 3), "f32")
    graph = b.finish([conv.conv(elementwise.relu(image, name="positive"), filters, name="y")])
    vectors = ChooseProduct(lambda _, found: next(each for each in found if each.b.tensor.name == "positive"))
    plan = make_plan(graph, resolve_cpu("x86-64-v4"), 1, choose=vectors)
    assert "after positive: packing takes elements of it several times" in reasons(plan, "positive")
    inputs = arrays(graph)
    found, wanted = (evaluate(each, inputs)[0] for each in (plan.mapped_graph(), graph))
    np.testing.assert_array_equal(found, wanted)


# Any operator -----------------------------------------------------------------------------------------------------


@pytest.mark.covering(1)
@pytest.mark.parametrize(("name", "sizes"), OPERATORS, ids=[name for name, _ in OPERATORS])
@pytest.mark.parametrize("machine", ["x86-64-v3", "znver5"])
def test_the_compiled_graph_of_every_operator_computes_the_same(name: str, sizes: dict[str, int], machine: str) -> None:
    same(BUILD(name, **sizes), machine)


@settings(max_examples=tries(3, full=30), deadline=None)
@given(data=st.data())
def test_the_compiled_graph_of_random_products_computes_the_same(data: st.DataObject) -> None:
    """Batched or not, both operands either way round, constant or not, after maps or not, of ragged sizes."""
    types = data.draw(st.sampled_from([("f32", "f32", "f32"), ("u8", "i8", "i32"), ("bf16", "bf16", "f32")]))
    sizes = {letter: data.draw(st.sampled_from([1, 2, 7, 17, 31, 70])) for letter in "mnk"}
    sizes["b"] = data.draw(st.sampled_from([1, 3]))
    batched = data.draw(st.booleans())
    b = GraphBuilder()
    operands, subscripts = [], []
    for letters, dtype, name in (("mk", types[0], "x"), ("kn", types[1], "w")):
        order = ("b" if batched else "") + data.draw(st.sampled_from([letters, letters[::-1]]))
        shape = tuple(sizes[letter] for letter in order)
        if data.draw(st.booleans()):
            operand = b.constant(RNG.integers(-3, 4, shape).astype(dtypes.numpy_dtype(dtype)), name)
        else:
            operand = b.input(name, shape, dtype)
        if data.draw(st.booleans()):
            one = b.constant(np.ones((1,), dtypes.numpy_dtype(dtype)), f"{name}.one")
            operand = elementwise.binary(operand, one, "max")
        operands.append(operand)
        subscripts.append(order)
    to = "bmn" if batched else "mn"
    equation = f"{','.join(subscripts)}->{to}"
    y = linalg.einsum(equation, operands, accumulate=types[2], out_dtype=types[2])
    same(b.finish([y]), data.draw(st.sampled_from(["znver5", "x86-64-v2"])))


@settings(max_examples=tries(3, full=20), deadline=None)
@given(data=st.data())
def test_the_compiled_graph_of_random_convolutions_computes_the_same(data: st.DataObject) -> None:
    types = data.draw(st.sampled_from([("f32", "f32", "f32"), ("u8", "i8", "i32"), ("bf16", "bf16", "f32")]))
    groups, channels, filters = (data.draw(st.sampled_from(each)) for each in ((1, 1, 2, 4), (1, 3, 4, 7), (1, 5, 17)))
    kernel, stride, pads = (data.draw(st.integers(*each)) for each in ((1, 3), (1, 2), (0, 1)))
    b = GraphBuilder()
    image = b.input("image", (2, groups * channels, 7, 9), types[0])
    shape = (groups * filters, channels, kernel, kernel)
    if data.draw(st.booleans()):
        weights = b.constant(RNG.integers(-3, 4, shape).astype(dtypes.numpy_dtype(types[1])), "weights")
    else:
        weights = b.input("weights", shape, types[1])
    to = types[2]
    y = conv.conv(image, weights, strides=stride, pads=pads, groups=groups, accumulate=to, out_dtype=to)
    same(b.finish([y]), data.draw(st.sampled_from(["znver5", "x86-64-v2"])))


def test_kernels_are_named_after_products_and_no_two_alike() -> None:
    """The copy of a result that is stored otherwise had the name of its product."""
    b = GraphBuilder()
    x, r = b.input("x", (1, 16, 9, 9), "f32"), b.input("r", (1, 32, 9, 9), "f32")
    w = b.constant(np.ones((32, 16, 3, 3), np.float32), "w")
    added = elementwise.binary(conv.conv(x, w, pads=1, name="conv"), r, "add", name="added")
    plan = same(b.finish([elementwise.relu(added, name="y")]))
    names = [kernel.name for kernel in plan.kernels]
    assert len(set(names)) == len(names)
    assert {"conv+added+y", "y.unpacked"} <= set(names)
    assert plan.products["conv"]["kernel"] == "conv+added+y"


@pytest.mark.parametrize(("depth", "spread"), [(2048, True), (2064, False), (512, False)])
def test_rows_whose_slices_share_few_sets_of_l2_are_copied_to_longer_ones(depth: int, spread: bool) -> None:
    """Of 96 rows of a program that are 8192 bytes apart, 12 lie in one of 8 sets; rows of 2048 bytes are read whole."""
    b = GraphBuilder()
    x, w = b.input("X", (384, depth), "f32"), b.input("W", (depth, 256), "f32")
    plan = make_plan(b.finish([linalg.matmul(x, w)]), resolve_cpu("znver3"), 1)
    chosen = [decision for decision in plan.decisions if decision.subject == "layout of X"]
    assert len(chosen) == spread
    if spread:
        assert chosen[0].chosen.startswith("[i0:384 i1:2064] as ")
        assert "rows lie in few sets of L1 and L2" in chosen[0].reason


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("m", "n", "k"), [(97, 517, 256), (61, 401, 512), (193, 263, 512)])
def test_a_product_of_spread_rows_is_right(tmp_path: Path, m: int, n: int, k: int, threads: int) -> None:
    """With caches of 8, 32 and 64 KiB slices of the rows of small products share few sets of L2."""
    b = GraphBuilder()
    x, w, bias = b.input("X", (m, k), "f32"), b.input("W", (k, n), "f32"), b.input("B", (n,), "f32")
    graph = b.finish([elementwise.relu(linalg.matmul(x, w) + bias)])
    machine = machine_with_small_caches(tmp_path, (8, 32, 64), "x86-64-v3")
    plan = make_plan(graph, resolve_cpu(machine), threads)
    assert any(decision.subject == "layout of X" for decision in plan.decisions)
    is_exact(graph, machine, threads)


def pointwise(size: int, filters: int, channels: int = 128, stride: int = 1, dtype: str = "f32") -> Graph:
    """A convolution of 1 x 1 whose image is an input, channels outermost; those of the result are innermost."""
    b = GraphBuilder()
    image = b.input("X", (1, channels, size, size), dtype)
    values = RNG.integers(-3, 4, (filters, channels, 1, 1)).astype(dtypes.numpy_dtype(dtype))
    result = elementwise.relu(conv.conv(image, b.constant(values, "W"), strides=stride))
    return b.finish([transpose(result, (0, 2, 3, 1))])


@pytest.mark.parametrize(("innermost", "mapping"), [("pixels", "(k|j|rc)"), ("channels", "(i j|k|rc)")])
def test_vectors_run_as_the_output_of_a_map_is_stored(innermost: str, mapping: str) -> None:
    b = GraphBuilder()
    weights = b.constant(RNG.standard_normal((128, 192, 1, 1)).astype("f4"), "W")
    result = elementwise.relu(conv.conv(b.input("X", (1, 192, 56, 56), "f32"), weights, name="y"))
    output = transpose(result, (0, 2, 3, 1)) if innermost == "channels" else result
    plan = make_plan(b.finish([output]), resolve_cpu("znver1"), 1)
    assert next(each.chosen for each in plan.decisions if each.subject == "instruction of y").startswith(mapping)


def copies_of_image(plan: Plan) -> list[str]:
    return [each.reason for each in plan.decisions if each.subject == "layout of X"]


@pytest.mark.parametrize(
    ("size", "stride", "filters", "copied"),
    [
        (64, 2, 256, True),  # channels are 16 KiB apart: 128 lines of a row in one set of L1, and few of L2
        (64, 2, 16, False),  # the copy takes longer
        (65, 2, 256, False),  # lines come from L2: the copy takes longer
    ],
)
def test_an_image_whose_channels_share_few_sets_is_copied(size: int, stride: int, filters: int, copied: bool) -> None:
    plan = make_plan(pointwise(size, filters, stride=stride), resolve_cpu("znver3"), 1)
    reasons = copies_of_image(plan)
    assert len(reasons) == copied
    assert all("each step of a sum is in another line" in reason for reason in reasons)


def test_a_copy_that_another_product_made_costs_nothing() -> None:
    """16 filters alone would read the image in place."""
    b = GraphBuilder()
    image = b.input("X", (1, 128, 64, 64), "f32")
    weights = [b.constant(RNG.integers(-3, 4, (n, 128, 1, 1)).astype(np.float32), f"W{n}") for n in (256, 16)]
    results = [transpose(conv.conv(image, each, strides=2), (0, 2, 3, 1)) for each in weights]
    plan = make_plan(b.finish(results), resolve_cpu("znver3"), 1)
    (copy,) = [kernel.writes[0] for kernel in plan.kernels if kernel.reads == ("X",)]
    assert sum(copy in kernel.reads for kernel in plan.kernels) == 2


@pytest.mark.parametrize(("products", "copied"), [(1, False), (2, True)])
def test_products_that_read_one_copy_share_its_cycles(products: int, copied: bool) -> None:
    b = GraphBuilder()
    image = b.input("X", (1, 128, 64, 64), "f32")
    weights = [b.constant(RNG.standard_normal((96, 128, 1, 1)).astype("f4"), f"W{n}") for n in range(products)]
    results = [transpose(conv.conv(image, each, strides=2), (0, 2, 3, 1)) for each in weights]
    plan = make_plan(b.finish(results), resolve_cpu("znver3"), 1)
    assert bool(copies_of_image(plan)) == copied


@pytest.mark.parametrize(("size", "copied"), [(14, (True, False)), (64, (True, True))])
def test_threads_wait_for_a_small_copy_that_one_of_them_makes(size: int, copied: tuple[bool, bool]) -> None:
    graph = pointwise(size, 512, channels=256)
    found = [bool(copies_of_image(make_plan(graph, resolve_cpu("znver3"), threads))) for threads in (1, 2)]
    assert tuple(found) == copied


@pytest.mark.parametrize(
    ("size", "channels", "stride", "dtype", "threads"),
    [(7, 97, 1, "f32", 1), (32, 67, 1, "f32", 2), (7, 31, 1, "f64", 2), (13, 53, 1, "bf16", 1), (32, 31, 2, "bf16", 2)],
)
def test_a_product_of_a_copied_image_is_right(
    tmp_path: Path, size: int, channels: int, stride: int, dtype: str, threads: int
) -> None:
    """With caches of 2, 8 and 64 KiB no cache keeps the lines of small images. Conversions would copy them anyway."""
    machine = machine_with_small_caches(tmp_path, (2, 8, 64), "x86-64-v3")
    graph, options = pointwise(size, 517, channels, stride, dtype), Options(cache=False, disable=("widen-factors",))
    assert copies_of_image(make_plan(graph, resolve_cpu(machine), threads, options))
    is_exact(graph, machine, threads, options)


def test_rows_over_several_sums_are_not_spread(tmp_path: Path) -> None:
    """Sums over two dimensions that lie behind each other are one loop; longer rows would part them."""
    b = GraphBuilder()
    x, w = b.input("X", (97, 8, 32), "f32"), b.input("W", (8, 32, 517), "f32")
    i, j, h, k = Axis("i", 97), Axis("j", 517), Axis("h", 8), Axis("k", 32)
    b.add(Compute(Tensor("Y", (97, 517), "f32"), (i, j), x[i, h, k] * w[h, k, j], (h, k), "sum"))
    graph = b.finish([b.nodes[-1].output])
    machine = machine_with_small_caches(tmp_path, (8, 32, 64), "x86-64-v3")
    plan = make_plan(graph, resolve_cpu(machine), 1)
    assert not any(decision.subject == "layout of X" for decision in plan.decisions)
    agrees(graph, machine, 1)


@pytest.mark.parametrize(("rows", "panels"), [(4, False), (16, False), (64, True), (128, True)])
def test_a_product_of_more_than_a_few_rows_packs_its_second_input(rows: int, panels: bool) -> None:
    """As the broadcast operand W would be read across its lines, 8192 bytes apart."""
    b = GraphBuilder()
    x, w = b.input("X", (rows, 2048), "f32"), b.input("W", (2048, 2048), "f32")
    plan = make_plan(b.finish([linalg.matmul(x, w)]), resolve_cpu("znver3"), 1)
    assert any(decision.subject == "layout of W" for decision in plan.decisions) == panels


def test_blocks_of_few_rows_ask_for_the_next_block_of_b() -> None:
    """A step of 4 rows, in tiles of 2 by 5 vectors, asks for 5 lines of the next block beside the rows of a."""
    b = GraphBuilder()
    w = b.constant(np.ones((2048, 2048), np.float32), "W")
    graph = b.finish([linalg.matmul(b.input("X", (4, 2048), "f32"), w)])
    program = compile_graph(graph, "x86-64-v3", threads=1, options=Options(cache=False)).artifact.program
    assert "_2x40x4" in print_tree(make_plan(graph, resolve_cpu("x86-64-v3"), 1).kernels[-1].scheduled.tree)
    assert re.search(r"tile\.prefetch %1\[\S+\] 320", program)
