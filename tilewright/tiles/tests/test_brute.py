"""The walk of tile trees: the worked numbers of spec 1, sections 5.3, 5.4 and 5.12, and trees to count by hand."""

from __future__ import annotations

import pytest

from tilewright.expr.text import parse_graph
from tilewright.tiles.analysis import analyse
from tilewright.tiles.brute import walk
from tilewright.tiles.footprints import footprints
from tilewright.tiles.legality import violations
from tilewright.tiles.levels import Unanalysable
from tilewright.tiles.movement import Boundaries, movement
from tilewright.tiles.notation import parse_tree
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Level, Resources
from tilewright.tiles.timeline import steps
from tilewright.tiles.topology import Topology
from tilewright.tiles.traffic import Moved


def problem(text: str) -> Problem:
    return Problem.of(parse_graph(text).nodes)


def chain(m: int = 8, l: int = 6, k: int = 4, n: int = 5) -> Problem:
    return problem(f"""
        input A: f32[{m}, {k}]
        input B: f32[{k}, {l}]
        input D: f32[{l}, {n}]
        C: f32[m:{m}, l:{l}] += A[m, k] * B[k, l] over k:{k}
        E: f32[m:{m}, n:{n}] += C[m, l] * D[l, n] over l:{l}
        output E
    """)


WINDOW = """
    input A: f32[12, 14]
    input B: f32[12, 3]
    R: f32[i:12, j:12, k:3] = A[i, j + k] * B[j, k]
    output R
"""


def moved(tree: str, subject: Problem, level: str = "DRAM", **options: object) -> dict[str, tuple[int, int]]:
    """(loads, stores) at a level by tensor."""
    traffic = walk(parse_tree(tree), subject, **options)  # type: ignore[arg-type]
    return {name: (one.loads, one.stores) for name, one in traffic.at(level).items()}


def test_spec1_g23_figure_3_5() -> None:
    subject = problem(
        WINDOW.replace("B[j, k]", "B[j, k] * C[i, k]").replace("    R:", "    input C: f32[12, 3]\n    R:")
    )
    found = moved("@DRAM for i:3, j:3 { @L1 for i:4, j:4, k:3 { op R } }", subject)
    assert found["A"] == (168, 0)
    assert found["B"] == (108, 0)
    assert found["C"] == (36, 0)


ROWS = [
    ("shar", "m:2, l:3", 32, 48, 60, 0, 40),
    ("seq", "m:2, l:3", 96, 48, 60, 80, 120),
    ("shar", "l:3, m:2", 96, 24, 30, 80, 120),
    ("seq", "l:3, m:2", 96, 48, 60, 80, 120),
]


@pytest.mark.parametrize(("kind", "loops", "a", "b", "d", "loads", "stores"), ROWS)
def test_spec1_g25_several_tiles(kind: str, loops: str, a: int, b: int, d: int, loads: int, stores: int) -> None:
    tree = f"@DRAM for {loops} {{ {kind}[@L1 for m:4, l:2, k:4 {{ op C }}, @L1 for m:4, l:2, n:5 {{ op E }}] }}"
    assert moved(tree, chain()) == {"A": (a, 0), "B": (b, 0), "D": (d, 0), "E": (loads, stores)}


def two_products(m: int, l: int, depth: int) -> tuple[Problem, str]:
    """The case 2mm of the artifact with `m` and `l` steps at DRAM; 64, 32 and depths of 64 are its own."""
    subject = problem(f"""
        input A: f32[{8 * m}, {depth}]
        input B: f32[{depth}, {16 * l}]
        input D: f32[{16 * l}, {depth}]
        C: f32[m:{8 * m}, l:{16 * l}] += A[m, k] * B[k, l] over k:{depth}
        X: f32[m:{8 * m}, l:{16 * l}] = exp(C[m, l])
        E: f32[m:{8 * m}, n:{depth}] += X[m, l] * D[l, n] over l:{16 * l}
        output E
    """)
    return (
        subject,
        f"""@DRAM for l:{l}, m:{m} {{ pipe[
        par m:2, l:4 {{ @RF for m:4, l:4, k:{depth} {{ op C }} }},
        seq[par m:2, l:4 {{ @RF for m:4, l:4 {{ op X }} }},
            par m:2, l:4 {{ @RF for m:4, l:4, n:{depth} {{ op E }} }}]] }}""",
    )


def test_spec1_g29_evictions_of_the_artifact() -> None:
    """The formulas of section 5.12 with 3 and 4 steps: A, B, D and E move again in each of them."""
    m, l = 3, 4
    subject, tree = two_products(m, l, 2)
    M, L, K = 8 * m, 16 * l, 2
    artifact = moved(tree, subject, compat_evict=True)
    assert artifact == {"A": (M * K * l, 0), "B": (K * L * m, 0), "D": (L * K * m, 0), "E": (M * K * l, M * K * l)}
    ours = moved(tree, subject)
    assert ours == {"A": (M * K * l, 0), "B": (K * L, 0), "D": (L * K, 0), "E": (M * K * (l - 1), M * K * l)}


def test_spatial_instances_read_together_or_each_for_itself() -> None:
    tree, subject = (
        "@DRAM for m:2 { par l:3 { @L1 for m:4, l:2, k:4 { op C } } }",
        problem("""
        input A: f32[8, 4]
        input B: f32[4, 6]
        C: f32[m:8, l:6] += A[m, k] * B[k, l] over k:4
        output C"""),
    )
    together = walk(parse_tree(tree), subject).at("DRAM")
    assert together == {"A": Moved(32, 96, 0), "B": Moved(24, 24, 0), "C": Moved(0, 0, 48)}
    apart = Resources((Level("DRAM", multicast=False), Level("L1")))
    assert walk(parse_tree(tree), subject, resources=apart).at("DRAM")["A"] == Moved(96, 96, 0)


def test_spatial_sums_are_one_store() -> None:
    subject = problem("""
        input A: f32[8, 4]
        C: f32[m:8] += A[m, k] over k:4
        output C""")
    tree = "@DRAM for k:2 { par k:2 { @L1 for m:8 { op C } } }"
    assert walk(parse_tree(tree), subject).at("DRAM") == {"A": Moved(32, 32, 0), "C": Moved(0, 0, 8)}
    # An inner loop that moves the slice makes each step of k bring it back.
    tree = "@DRAM for k:2, m:2 { par k:2 { @L1 for m:4 { op C } } }"
    assert walk(parse_tree(tree), subject).at("DRAM") == {"A": Moved(32, 32, 0), "C": Moved(8, 16, 16)}


def test_clipped_steps_do_not_run() -> None:
    subject = problem("""
        input A: f32[7, 5]
        B: f32[i:7, j:5] = exp(A[i, j])
        output B""")
    tree = "@DRAM for i:3, j:4 { @L1 for i:3, j:2 { op B } }"
    assert moved(tree, subject) == {"A": (35, 0), "B": (0, 35)}


CONVOLUTIONS = """
    input X: f32[12]
    input V: f32[3]
    input W: f32[3]
    Y: f32[p:10] += X[p + r] * V[r] over r:3
    Z: f32[h:8] += Y[h + s] * W[s] over s:3
    output Z
"""


def test_halos_are_shared_from_step_to_step() -> None:
    subject = problem(CONVOLUTIONS)
    tree = "@DRAM for h:4 { shar[@L1 for r:3 { op Y }, @L1 for h:2, s:3 { op Z }] }"
    # Steps of two rows read six elements of X, four of them again.
    assert moved(tree, subject)["X"] == (12, 0)
    # Unfused, Y goes out and comes back.
    apart = "seq[@DRAM for p:5 { @L1 for p:2, r:3 { op Y } }, @DRAM for h:4 { @L1 for h:2, s:3 { op Z } }]"
    assert moved(apart, subject) == {"X": (12, 0), "V": (3, 0), "W": (3, 0), "Y": (10, 10), "Z": (0, 8)}


def test_a_skipped_level_is_passed() -> None:
    machine = Resources((Level("DRAM"), Level("L2"), Level("L1")))
    traffic = walk(
        parse_tree("@DRAM for m:2, l:3 { @L1 for m:4, l:2, k:4 { op C } }"),
        problem("""
        input A: f32[8, 4]
        input B: f32[4, 6]
        C: f32[m:8, l:6] += A[m, k] * B[k, l] over k:4
        output C"""),
        resources=machine,
    )
    assert traffic.at("L2") == traffic.at("DRAM")


@pytest.mark.parametrize(("tree", "message"), [
    ("@L3 for m:8, l:6 { shar[@L1 for k:4 { op C }, @L1 for n:5 { op E }] }", "level L3 does not exist"),
    ("@DRAM for m:8, l:6 { shar[@L1 for k:4 { @DRAM for k:1 { op C } }, @L1 for n:5 { op E }] }",
     "a tile at DRAM stands inside one at L1"),
    ("@DRAM for m:8, l { shar[@L1 for k:4 { op C }, @L1 for n:5 { op E }] }", "the factor of l at DRAM is open"),
    ("@DRAM for m:8 { @L1 for k:4 { op F } }", "op F is no expression here"),
    ("@DRAM for m:2, l:6 { shar[@L1 for m:4, k:4 { op C }, @L1 for m:5, n:5 { op E }] }",
     "one step of m at DRAM is 4 values for C and 5 for E"),
])  # fmt: skip
def test_trees_without_a_defined_movement(tree: str, message: str) -> None:
    with pytest.raises(Unanalysable, match=message) as raised:
        walk(parse_tree(tree), chain(), resources=Resources((Level("DRAM"), Level("L1"))))
    assert raised.value.help
    assert raised.value.where == "tile tree"


# Tensors that tiles keep and bypass -----------------------------------------------------------------------------------


def test_kept_tensors_outlive_the_other_children_of_seq() -> None:
    tree = """@DRAM for m:2, l:3 keep A, E { seq[
        @L1 for m:4, l:2, k:4 { op C }, @L1 for m:4, l:2, n:5 { op E }] }"""
    assert moved(tree, chain()) == {"A": (32, 0), "B": (48, 0), "D": (60, 0), "E": (0, 40)}
    # A of 16 and E of 20 stay beside the other child's B, C or C, D.
    assert footprints(parse_tree(tree), chain(), dedupe=True)[()] == 16 + 20 + max(8 + 8, 8 + 10)


BLOCKS = "@L1 for m:4, l:2, k:4 { op C }", "@L1 for m:4, l:2, n:5 { op E }"


@pytest.mark.parametrize(("tree", "loads", "stores"), [
    ("@DRAM for m:2 {{ @DRAM for l:3 {{ seq[{}, {}] }} }}", 80, 120),
    ("@DRAM for m:2 {{ stage E in L1 {{ @DRAM for l:3 {{ seq[{}, {}] }} }} }}", 0, 40),
    ("@DRAM for m:2 {{ @DRAM for l:3 {{ stage E in L1 {{ seq[{}, {}] }} }} }}", 0, 40),
    ("@DRAM for m:2 {{ @DRAM for l:3 {{ seq[{}, stage E in L1 {{ {} }}] }} }}", 80, 120),  # ends with its child
    ("@DRAM for m:2 {{ stage E in DRAM {{ @DRAM for l:3 {{ seq[{}, {}] }} }} }}", 80, 120),
])  # fmt: skip
def test_a_stage_keeps_a_result_beside_the_other_children_of_seq(tree: str, loads: int, stores: int) -> None:
    text = tree.format(*BLOCKS)
    found = moved(text, chain())
    assert found["E"] == (loads, stores)
    assert moved(text.replace("stage E", "stage A"), chain())["D"] == found["D"]
    fast = movement(parse_tree(text), chain()).at("DRAM")
    assert {name: (one.loads, one.stores) for name, one in fast.items()} == found


def test_a_stage_is_around_a_skipped_level() -> None:
    tree = "@DRAM for m:2 {{ stage E in L1 {{ @L2 for l:3 {{ seq[{}, {}] }} }} }}".format(*BLOCKS)
    machine = Resources((Level("DRAM"), Level("L3"), Level("L2"), Level("L1")))
    assert moved(tree, chain(), "L2", resources=machine)["E"] == (0, 40)


def test_a_kept_halo_is_computed_once() -> None:
    tree = "@DRAM for h:4{} {{ shar[@L1 for p:4, r:3 {{ op Y }}, @L1 for h:2, s:3 {{ op Z }}] }}"
    again, once = (walk(parse_tree(tree.format(said)), problem(CONVOLUTIONS)) for said in ("", " keep Y"))
    # Each step needs four rows of Y. Two of them are those of the step before.
    assert again.at("L1")["Y"].stores == 4 * 4
    assert once.at("L1")["Y"].stores == 4 + 3 * 2
    assert again.at("DRAM") == once.at("DRAM")


ROWS_OF_WINDOWS = """
    input X: f32[5]
    input V: f32[2]
    input U: f32[{taps}]
    Y: f32[p:4] += X[p + r] * V[r] over r:2
    Z: f32[h:{windows}] += select(({at} >= 0) & ({at} < 4), Y[{at}], 0.0) * U[s] over s:{taps}
    output Z"""


@pytest.mark.parametrize(
    ("tree", "windows", "taps", "at", "x", "v"),
    [
        # Steps compute 2, 1, 1 and 0 rows of Y; the last one needs no operands of it.
        ("@DRAM for h:4 keep Y { seq[@L1 for p:3, r:2 { op Y }, @L1 for s:3 { op Z }] }", 4, 3, "h + s - 1", 7, 6),
        # The window of the first step lies outside of Y.
        ("@DRAM for h:2 { seq[@L1 for p:1, r:2 { op Y }, @L1 for s:1 { op Z }] }", 2, 1, "3*h + s - 1", 2, 2),
        # All steps together need all rows of Y, of which each computes three.
        (
            "@DRAM for s:1 { @L2 for h:4 { seq[@L1 for p:3, r:2 { op Y }, @L1 for s:3 { op Z }] } }",
            4,
            3,
            "h + s - 1",
            5,
            2,
        ),
    ],
    ids=["nothing new", "outside", "all steps"],
)
def test_a_step_needs_what_its_windows_do(tree: str, windows: int, taps: int, at: str, x: int, v: int) -> None:
    subject = problem(ROWS_OF_WINDOWS.format(windows=windows, taps=taps, at=at))
    found = moved(tree, subject)
    assert (found["X"], found["V"]) == ((x, 0), (v, 0))
    boundaries = Boundaries(Topology(parse_tree(tree), subject))
    fast = boundaries.traffic().at("DRAM")
    assert {name: (one.loads, one.stores) for name, one in fast.items()} == found
    loads = steps(boundaries, boundaries.point()).loads
    assert (sum(loads["X"]), sum(loads["V"])) == (x, v)


def test_a_bypassed_level_is_not_filled() -> None:
    text = "@DRAM for m:2 {{ @L2 for l:3 {} {{ @L1 for m:4, l:2, k:4 {{ op C }} }} }}"
    subject = problem("""
        input A: f32[8, 4]
        input B: f32[4, 6]
        C: f32[m:8, l:6] += A[m, k] * B[k, l] over k:4
        output C""")
    through, past = (walk(parse_tree(text.format(said)), subject) for said in ("", "bypass B"))
    assert through.at("DRAM")["B"] == Moved(24, 24, 0)  # all of B stays in L2
    assert through.at("L2")["B"] == Moved(48, 48, 0)
    assert past.at("DRAM")["B"] == Moved(48, 48, 0)
    assert "B" not in past.at("L2")
    assert "B" not in past.into("L2")
    assert past.into("L1") == through.into("L1")
    held = footprints(parse_tree(text.format("bypass B")), subject)
    assert held[()] == footprints(parse_tree(text.format("")), subject)[()] - 24


@pytest.mark.parametrize("paths", [(), (("DRAM", "RF"), ("L2", "RF")), (("L1", "DRAM"),), None])
def test_words_pass_a_bypassed_level_where_no_direct_path_leads_past_it(paths: tuple[tuple[str, str], ...]) -> None:
    """B and C bypass L2: their words go through it once for every time that L1 asks for them, and none stays."""
    tree = parse_tree("@DRAM for m:2 { @L2 for l:3, k:2 bypass B, C { @L1 for m:4, l:2, k:2 { op C } } }")
    subject = problem("""
        input A: f32[8, 4]
        input B: f32[4, 6]
        C: f32[m:8, l:6] += A[m, k] * B[k, l] over k:4
        output C""")
    levels = tuple(Level(name, read_words_per_cycle=1, write_words_per_cycle=1) for name in ("DRAM", "L2", "L1", "RF"))
    machine = Resources(levels, direct_paths=paths)
    found = walk(tree, subject, resources=machine)
    assert found.at("DRAM")["B"] == Moved(48, 48, 0)
    assert found.at("DRAM")["C"] == Moved(0, 0, 48)
    assert found.into("L1")["B"] == Moved(48, 48, 0)
    passes = paths is not None and ("L1", "DRAM") not in paths
    expected = {"B": Moved(48, 48, 0), "C": Moved(0, 0, 48)} if passes else {}
    assert {name: moved for name, moved in found.at("L2").items() if name != "A"} == expected
    assert {name: moved for name, moved in found.into("L2").items() if name != "A"} == expected
    use = analyse(tree, subject, machine).levels[1]
    assert sum(use.read.values()) == found.total("L2").loads == 2 * 4 * 4 * 3 + 48 * passes
    assert sum(use.update.values()) == found.total("L2").stores == 48 * passes
    assert sum(use.fill.values()) == 8 * 4 + 48 * passes
    assert use.footprint_bytes == 4 * 4 * 4


def test_levels_on_the_way_limit_what_passes_them() -> None:
    """A word of B a cycle goes through L2, unless DRAM has a path to L1."""
    tree = parse_tree("@DRAM for m:2 { @L2 for l:3 bypass B { @L1 for m:4, l:2, k:4 { op C } } }")
    subject = problem("""
        input A: f32[8, 4]
        input B: f32[4, 6]
        C: f32[m:8, l:6] += A[m, k] * B[k, l] over k:4
        output C""")
    levels = (Level("DRAM"), Level("L2", word_bits=32, read_words_per_cycle=0.125), Level("L1"), Level("RF"))
    direct, through = (
        analyse(tree, subject, Resources(levels, direct_paths=paths)) for paths in ((("DRAM", "L1"),), ())
    )
    assert direct.cycles == 32 / 0.125  # A alone
    assert through.cycles == (32 + 48) / 0.125
    assert (direct.bottleneck, through.bottleneck) == ("L2 read", "L2 read")
    assert direct.energy < through.energy


def test_a_tensor_cannot_bypass_the_level_that_it_lies_in() -> None:
    tree = "@DRAM for m:8 { @L1 for l:6 { @RF for k:4 { op C } } }"
    subject = problem("""
        input A: f32[8, 4]
        input B: f32[4, 6]
        C: f32[m:8, l:6] += A[m, k] * B[k, l] over k:4
        output C""")
    with pytest.raises(Unanalysable, match="A lies in DRAM and cannot bypass it") as raised:
        walk(parse_tree(tree.replace("m:8 ", "m:8 bypass A ")), subject)
    assert raised.value.help == "let A bypass a level between DRAM and the units"
    with pytest.raises(Unanalysable, match="no tensor F to bypass L1"):
        walk(parse_tree(tree.replace("l:6 ", "l:6 bypass F ")), subject)


def test_a_producer_follows_a_consumer_that_reads_a_part_of_it() -> None:
    """Of 40 rows of C only 39 are read: a fused tree walks these, and computes no other ones."""
    subject = problem("""
        input A: f32[40, 16]
        input B: f32[16, 32]
        input D: f32[32, 24]
        C: f32[m:40, l:32] += A[m, k] * B[k, l] over k:16
        E: f32[m:39, n:24] += C[m, l] * D[l, n] over l:32
        output E""")
    text = "@DRAM for m:13 { shar[@L1 for l:32, k:16 { op C }, @L1 for m:3, n:24, l:32 { op E }] }"
    assert list(violations(parse_tree(text), subject)) == []
    assert moved(text, subject) == {"A": (39 * 16, 0), "B": (512, 0), "D": (768, 0), "E": (0, 39 * 24)}
    levels = (Level("DRAM"), Level("L1", 1 << 20), Level("REG", 64))
    assert analyse(parse_tree(text), subject, Resources(levels, units=16)).operations == 39 * 32 * (16 + 24)
    whole = "@DRAM for m:40 { shar[@L1 for l:32, k:16 { op C }, @L1 for n:24, l:32 { op E }] }"
    (broken,) = violations(parse_tree(whole), subject)
    assert "loop m of E has extent 39" in broken.message
