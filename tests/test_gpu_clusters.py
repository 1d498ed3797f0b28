"""Blocks in clusters that bring the boxes together which all of them read: from tile form to PTX that runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import IntegerAttr, ModuleOp

import tilewright
from tests.covering import some
from tests.test_gpu_tensor_copies import (
    RNG,
    Plant,
    Sizes,
    at,
    check,
    check_planted,
    emulate,
    halves,
    operands,
    program,
    stored_as,
)
from tilewright import Options
from tilewright.codegen.nvptx import ptxas
from tilewright.codegen.nvptx.pipeline import generate
from tilewright.compiler.compile import build
from tilewright.compiler.plan import ChooseProduct
from tilewright.errors import InvalidArgument
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops import elementwise, linalg
from tilewright.instruction.block_tiles import Candidate, Ranking
from tilewright.kernel.dialect import FuncOp
from tilewright.kernel.hopper.simt_async import FenceOp, MbarrierArriveOp, MbarrierInitOp, MbarrierWaitOp, TensorLoadOp
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.passes.gpu.distribution.tests.programs import ragged_matmul
from tilewright.kernel.passes.table import run_pass, run_pipeline
from tilewright.kernel.rewrite import erase
from tilewright.kernel.simt import ClusterBarrierOp
from tilewright.kernel.text import parse_module, print_module
from tilewright.machine.registry import resolve


def clustered(sizes: Sizes, block: Sizes, dtype: str = "f16", blocks: int = 2) -> ModuleOp:
    """The product in clusters of so many blocks, for a machine of four multiprocessors."""
    module = program(sizes, block, dtype, 4)
    run_pipeline(module, "gpu", verify_each=True, options={"multicast": {"cluster": blocks}})
    return module


def kernel_of(module: ModuleOp) -> FuncOp:
    return next(op for op in module.body.ops if isinstance(op, FuncOp))


SIZES = [
    ((200, 72, 72), (64, 64, 64)),  # ragged; four tiles along m, two along n
    ((136, 72, 72), (64, 64, 64)),  # three: one of the blocks has no tile
    ((256, 128, 128), (64, 64, 64)),  # whole
    ((64, 136, 136), (64, 32, 64)),  # one along m: neighbours along n share a
    ((328, 72, 136), (64, 64, 32)),  # six and two
]


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("blocks", [2, 4])
@pytest.mark.parametrize(("sizes", "block"), some(SIZES, 3), ids=str)
def test_products(sizes: Sizes, block: Sizes, blocks: int, dtype: str) -> None:
    module = clustered(sizes, block, dtype, blocks)
    code = generate(module)
    resources = ptxas.check(code.ptx, "sm_90a")
    assert resources is None or (resources["k"].spills, resources["k"].warnings) == (0, ())
    kernel, (x, y, z) = kernel_of(module), code.kernel("k").grid
    tiles = -(-sizes[0] // block[0])
    assert kernel.blocks == (1 if 1 < tiles < blocks else blocks)  # of so few rows, more would be repeated than shared
    assert (x % kernel.blocks, y, z) == (0, 1, 1)
    assert (f".reqnctapercluster {blocks}, 1, 1" in code.ptx) == (kernel.blocks > 1)
    assert check(code, sizes, dtype).total("shared", "conflicts") == 0
    arguments, wanted = operands(sizes, dtype)
    run_kernel(module, "k", arguments, order="random", seed=1, races=True)
    np.testing.assert_array_equal(arguments[2], wanted)


@pytest.mark.covering(1)
@pytest.mark.parametrize("blocks", [2, 4])
@pytest.mark.parametrize("transposed", ["a", "b", "ab"])
def test_operands_stored_by_columns(transposed: str, blocks: int) -> None:
    sizes, block = (200, 72, 72), (64, 64, 64)
    module = parse_module(ragged_matmul(sizes, block, transposed=transposed))
    module.attributes["tile.target"] = program(sizes, block, blocks=4).attributes["tile.target"]
    run_pipeline(module, "gpu", verify_each=True, options={"multicast": {"cluster": blocks}})
    assert kernel_of(module).blocks == blocks
    (a, b, c), wanted = operands(sizes)
    stored = stored_as(transposed, (a, b), sizes)
    run_kernel(module, "k", [*stored, c])
    np.testing.assert_array_equal(c, wanted)
    c[:] = 0
    assert emulate(generate(module), [*stored, c]).diagnostics == []
    np.testing.assert_array_equal(c, wanted)


def test_every_form_on_the_way_gives_the_product() -> None:
    """Of three tiles along m, in tile form."""
    sizes = (168, 200, 72)
    module = program(sizes, (64, 128, 32), blocks=4)
    for name in ("tensor-copies", "multicast{cluster=2}", "swizzle-blocks", "persistent", "pipeline-tensor-copies"):
        run_pass(module, name)
        arguments, wanted = operands(sizes)
        run_kernel(parse_module(print_module(module)), "k", arguments, races=True)
        np.testing.assert_array_equal(arguments[2], wanted)
    assert kernel_of(module).blocks == 2


STEPS = (
    "tensor-stores", "swizzle-blocks", "persistent", "pipeline-tensor-copies", "pipeline-wgmma", "warp-specialize"
)  # fmt: skip


@pytest.mark.parametrize("without", some([(), *((step,) for step in STEPS), STEPS], 4), ids=",".join)
def test_every_other_step_can_be_switched_off(without: Sequence[str]) -> None:
    """Of results that leave by boxes; of three tiles along m the last pair has one."""
    sizes, block = (168, 72, 72), (64, 128, 32)
    module = halves(sizes, block, without, cluster=2)
    assert kernel_of(module).blocks == 2
    (a, b, wide), wanted = operands(sizes)
    run_kernel(module, "k", [a, b, found := wide.astype(np.float16)], order="random", seed=1, races=True)
    np.testing.assert_array_equal(found, wanted)
    run = emulate(generate(module), [a, b, again := np.zeros_like(found)])
    assert run.diagnostics == []
    np.testing.assert_array_equal(again, wanted)


def test_switched_off_nothing_is_shared() -> None:
    texts = []
    for asked, disable in (("", ()), (" attributes {cluster = 2 : i64}", ("multicast",))):
        module = program((256, 256, 64), (64, 64, 32))
        text = print_module(module).replace(" grid [4, 4]", f" grid [4, 4]{asked}")
        module = parse_module(text)
        run_pipeline(module, "gpu", disable)
        texts.append(generate(module).ptx)
    assert texts[0] == texts[1]


def test_blocks_that_share_bring_less() -> None:
    """Of the operands' bytes: all of a, and of b, which is as large, what one of the blocks would."""
    sizes, block = (256, 64, 32), (64, 64, 32)
    brought = {
        blocks: check(generate(clustered(sizes, block, blocks=blocks)), sizes).bytes["global_load"]
        for blocks in (1, 2, 4)
    }
    assert [brought[blocks] / brought[1] for blocks in (2, 4)] == [3 / 4, 5 / 8]


def test_a_graph_gets_clusters_if_it_is_asked_for() -> None:
    """A large product keeps its tile and spills nothing; a smaller one runs in the emulator."""

    def graph(m: int, n: int, k: int) -> Any:
        b = GraphBuilder()
        return b.finish([linalg.matmul(b.input("x", (m, k), "f16"), b.input("w", (k, n), "f16"))])

    options = Options(cache=False, cluster=2)
    large = tilewright.compile(graph(4096, 4096, 4096), machine="sm_90a", options=options, device="emulator")
    assert "128x256x64 on 8x1 warps with wgmma_m64n256k16_f16_f32, 4 stages, clusters of 2 blocks" in large.explain(
        all=True
    )
    assert "where that is less, as asked" in large.explain(all=True)
    text = large.artifact.code.decode()
    trip = text[text.index("wgmma.fence") : text.index("wgmma.commit_group")]
    assert ".reqnctapercluster 2" in text
    copies = text.count(".multicast::cluster")
    assert (copies > 0, copies % 4, trip.count("wgmma.mma_async")) == (True, 0, 4)  # b is 4 boxes, a is one
    resources = ptxas.check(text, "sm_90a")
    assert resources is None or not any(each.spills or each.warnings for each in resources.values())
    (kernel,) = large.manifest.kernels
    assert kernel.grid == (132, 1, 1)
    small = tilewright.compile(graph(512, 512, 64), machine="sm_90a", options=options, device="emulator")
    assert b".multicast::cluster" in small.artifact.code
    x, w = (RNG.integers(-3, 4, shape).astype(np.float16) for shape in ((512, 64), (64, 512)))
    np.testing.assert_array_equal(small(x, w), (x.astype(np.float32) @ w.astype(np.float32)).astype(np.float16))


@pytest.mark.parametrize(
    ("dtype", "sizes", "why"),
    [
        ("f16", (64, 16, 64), "without the copy engine"), ("f32", (512, 512, 64), "for multiply-adds"),
        ("f16", (512, 500, 63), "without the copy engine"),
    ],
)  # fmt: skip
def test_decisions_say_why_there_are_no_clusters(dtype: str, sizes: Sizes, why: str) -> None:
    b, (m, n, k) = GraphBuilder(), sizes
    graph = b.finish([linalg.matmul(b.input("x", (m, k), dtype), b.input("w", (k, n), dtype))])
    module = tilewright.compile(graph, machine="sm_90a", options=Options(cache=False, cluster=2), device="emulator")
    said = " ".join(module.explain(all=True).split()).split("no clusters of 2 blocks")[1:]  # lines are wrapped
    assert said
    assert all(why in text[:100] for text in said)
    assert b".reqnctapercluster" not in module.artifact.code


def test_a_tile_alone_has_no_cluster() -> None:
    b = GraphBuilder()
    graph = b.finish([linalg.matmul(b.input("x", (64, 64), "f16"), b.input("w", (64, 16), "f16"))])

    def four_warps(ranking: Ranking, node: str) -> Candidate | None:
        return next(each for each in ranking.candidates if each.warpgroup and each.shape.n == 16)

    options = Options(cache=False, cluster=2)
    made = build(graph, resolve("sm_90a"), 1, options, choose=ChooseProduct(tile=four_warps))
    assert "no clusters of 2 blocks: there are 1 x 1 tiles" in made.plan
    assert b".reqnctapercluster" not in made.code


GRAPHS: dict[str, tuple[tuple[tuple[int, ...], ...], Callable[..., Any], Callable[..., Any]]] = {
    "residual": (
        ((392, 72), (72, 264), (392, 264)),
        lambda x, w, c: elementwise.binary(linalg.matmul(x, w), c, "add"), lambda x, w, c: x @ w + c,
    ),
    "batches": (((3, 136, 264), (3, 264, 72)), linalg.matmul, np.matmul),
    "batches, one b": (((3, 136, 136), (136, 72)), linalg.matmul, np.matmul),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_of_ragged_sizes(name: str, tmp_path: Path) -> None:
    """What an epilogue reads is there for a block without a tile, too."""
    few = tmp_path / "few.yaml"  # of so few multiprocessors that blocks are large
    few.write_text("name: few\nextends: sm_90a\nmultiprocessors: 2\n")
    (shapes, build, wanted), b = GRAPHS[name], GraphBuilder()
    graph = b.finish([build(*(b.input(f"x{number}", shape, "f16") for number, shape in enumerate(shapes)))])
    module = tilewright.compile(graph, machine=few, options=Options(cache=False, cluster=2), device="emulator")
    assert b".multicast::cluster" in module.artifact.code
    arrays = [RNG.integers(-2, 3, shape).astype(np.float16) for shape in shapes]
    np.testing.assert_array_equal(module(*arrays), wanted(*(x.astype(np.float32) for x in arrays)).astype(np.float16))


def test_clusters_that_there_are_not_are_refused() -> None:
    for cluster in (3, 0, 2.0, True, "2"):
        with pytest.raises(InvalidArgument, match=f"cluster is {cluster!r}"):
            Options(cluster=cluster)  # type: ignore[arg-type]
    b = GraphBuilder()
    graph = b.finish([linalg.matmul(b.input("x", (32, 32), "f16"), b.input("w", (32, 32), "f16"))])
    for machine in ("host", "sm_80"):
        with pytest.raises(InvalidArgument, match="no multicast copies within a cluster: it lacks cluster"):
            tilewright.compile(graph, machine=machine, options=Options(cache=False, cluster=2))


# Planted errors -------------------------------------------------------------------------------------------------------


def _own(op: MbarrierArriveOp) -> None:
    op.operands = list(op.operands)[:2]


def _half(op: MbarrierInitOp) -> None:
    op.arrivals = IntegerAttr(op.arrivals.value.data // 2, 64)


def _alone(op: TensorLoadOp) -> None:
    op.everywhere = None


STUCK = "deadlock|divergence"
OVERRUN = f"race|all arrivals|under way|mbarrier|overwritten|early|{STUCK}"
# What is planted, and what the interpreter and the emulator say.
PLANTED: dict[str, tuple[Plant, str, str]] = {
    "no release in the other block": (at(MbarrierArriveOp, 0, _own), OVERRUN, OVERRUN),
    "no wait for the other block's release": (at(MbarrierInitOp, -1, _half), OVERRUN, OVERRUN),
    "no wait for a free slot": (at(MbarrierWaitOp, -1, erase), OVERRUN, OVERRUN),
    "a box for one block": (at(TensorLoadOp, -1, _alone), "everybody waits", STUCK),
    "no barrier of the cluster at the start": (at(ClusterBarrierOp, 0, erase), "race|no mbarrier", "race|mbarrier"),
    "no barrier of the cluster at the end": (at(ClusterBarrierOp, -1, erase), "may still use|may have ended", "race"),
    "no fence behind the making": (at(FenceOp, 0, erase), "missing fence", ""),  # the barrier releases as well
}  # fmt: skip


@cache
def right() -> ModuleOp:
    """The program in which errors are planted."""
    return clustered((128, 64, 320), (64, 64, 32))


@pytest.mark.emulator_only
@pytest.mark.parametrize("name", PLANTED)
def test_planted_errors_are_found(name: str) -> None:
    sizes = (128, 64, 320)
    module = right().clone()
    assert kernel_of(module).blocks == 2
    check_planted(module, sizes, PLANTED[name])
