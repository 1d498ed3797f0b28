"""Legality and resources of tile trees: the worked example of the specification, and one tree per broken rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tilewright.errors import InvalidExpression
from tilewright.expr.core import Apply, Axis, Read, Tensor, apply
from tilewright.expr.ordered import Ordered, PrefixScan, Scatter, Sort
from tilewright.expr.text import parse_graph
from tilewright.machine.registry import resolve_cpu
from tilewright.tiles import legality
from tilewright.tiles import problem as problem_module
from tilewright.tiles.capacity import Capacities
from tilewright.tiles.footprints import footprints, working_set
from tilewright.tiles.kernel import Kernel, Statement
from tilewright.tiles.legality import check, violations
from tilewright.tiles.machines import program_resources
from tilewright.tiles.notation import parse_tree
from tilewright.tiles.problem import NEW, OLD, Access, Problem, Rescaling, Side, problem_of
from tilewright.tiles.resources import Level, Resources, processing_elements
from tilewright.tiles.tree import Tile, TileTree, walk


def problem(text: str) -> Problem:
    return Problem.of(parse_graph(text).nodes)


def attention(i: int = 64, l: int = 64, j: int = 32, k: int = 16) -> Problem:
    """Operators A (i, l, k), B (i, l) and C (i, j, l) of section 2.5."""
    return problem(f"""
        input Q: f32[{i}, {k}]
        input K: f32[{k}, {l}]
        input V: f32[{l}, {j}]
        X: f32[i:{i}, l:{l}] += Q[i, k] * K[k, l] over k:{k}
        Y: f32[i:{i}, l:{l}] = tanh(X[i, l])
        O: f32[i:{i}, j:{j}] += Y[i, l] * V[l, j] over l:{l}
        output O
    """)


def worked_example(j2: int = 1) -> Tile:
    """Eq. 3.2 and 3.3 with the factors of the numeric instance, i:2*4*8, l:2*4*8, j:j2*2*8, k:16."""
    tree = parse_tree(f"""
        @2 par i:2 {{ @2 for j:{j2}, l:2 {{ shar[
            @1 par i:4 {{ @1 for l:4 {{ pipe[
                @0 par i:8 {{ @0 for l:8, k:16 {{ op X }} }},
                @0 par i:8 {{ @0 for l:8 {{ op Y }} }}] }} }},
            @1 par i:4 {{ @1 for j:2, l:4 {{ @0 par i:8 {{ @0 for j:8, l:8 {{ op O }} }} }} }}] }} }}
    """)
    assert isinstance(tree, Tile)
    return tree


# Worked example -------------------------------------------------------------------------------------------------------


def test_spec1_g26_processing_elements() -> None:
    tree = worked_example(j2=2)
    of = {path: processing_elements(node) for path, node in walk(tree)}
    assert of[()] == 128
    assert of[0, 0, 0] == 64  # T1_AB
    assert of[0, 0, 1] == 32  # T1_C
    assert of[0, 0, 0, 0, 0, 0] == of[0, 0, 0, 0, 0, 1] == of[0, 0, 1, 0, 0] == 8


def test_spec1_g26_footprints() -> None:
    subject, tree = attention(), worked_example(j2=2)
    assert working_set(tree, subject, (0, 0, 0, 0, 0, 0)) == {"Q": 128, "K": 128, "X": 64}
    assert working_set(tree, subject, (0, 0, 0)) == {"Q": 512, "K": 512, "Y": 1024}
    assert working_set(tree, subject, (0, 0, 1)) == {"Y": 1024, "V": 512, "O": 512}
    held, once = footprints(tree, subject), footprints(tree, subject, dedupe=True)
    assert held[0, 0, 0, 0] == once[0, 0, 0, 0] == 448  # level 1, under Pipe
    assert held[0,] == 4096  # level 2, under Shar
    assert once[0,] == 3072


def test_the_worked_example_is_legal_without_j2() -> None:
    check(worked_example(j2=1), attention(j=16))


def test_j2_recomputes_both_producers() -> None:
    found = list(violations(worked_example(j2=2), attention()))
    assert {type(error) for error in found} == {legality.Recomputation}
    assert [error.message.split(" and ")[0] for error in found] == [
        "L4 foreign loop: j:2 at 2 is no loop of X",
        "L4 foreign loop: j:2 at 2 is no loop of Y",
    ]
    check(worked_example(j2=2), attention(), recompute=True)


@pytest.mark.parametrize(("kind", "held", "units"), [("shar", 70, 2), ("seq", 38, 2), ("pipe", 70, 3), ("para", 70, 3)])
def test_spec1_g27_scopes_combine(kind: str, held: int, units: int) -> None:
    """Sections 5.4 and 5.7: M=8, L=6, K=4, N=5 with tiles of 4 and 2."""
    subject = chain(8, 6, 4, 5)
    tree = parse_tree(f"""@DRAM for m:2, l:3 {{ {kind}[
        @L1 for m:4 {{ par l:2 {{ @L1 for k:4 {{ op C }} }} }}, @L1 for m:4, l:2, n:5 {{ op E }}] }}""")
    assert footprints(tree, subject)[()] == held
    assert processing_elements(tree) == units


# Which loops are one --------------------------------------------------------------------------------------------------


def chain(m: int = 8, l: int = 6, k: int = 4, n: int = 5) -> Problem:
    return problem(f"""
        input A: f32[{m}, {k}]
        input B: f32[{k}, {l}]
        input D: f32[{l}, {n}]
        C: f32[m:{m}, l:{l}] += A[m, k] * B[k, l] over k:{k}
        E: f32[m:{m}, n:{n}] += C[m, l] * D[l, n] over l:{l}
        output E
    """)


def test_tied_loops_have_the_consumers_name() -> None:
    subject = problem("""
        input A: f32[8, 4]
        input B: f32[4, 6]
        input D: f32[6, 5]
        C: f32[i:8, j:6] += A[i, k] * B[k, j] over k:4
        E: f32[m:8, n:5] += C[m, k] * D[k, n] over k:6
        output E
    """)
    assert subject.names["C", "i"] == subject.names["E", "m"] == "m"
    assert subject.names["C", "j"] == subject.names["E", "k"] == "k"  # the sum of E walks the columns of C
    assert subject.names["C", "k"] == "C.k"  # k is taken inside C
    assert subject.loops("C") == {"m", "k", "C.k"}
    assert subject.reductions("E") == {"k"}


CONVOLUTIONS = """
    input I: f32[3, 10, 10]
    input W1: f32[4, 3, 3, 3]
    input W2: f32[5, 4, 3, 3]
    F: f32[c:4, y:8, x:8] += I[ic, y + r, x + s] * W1[c, ic, r, s] over ic:3, r:3, s:3
    G: f32[o:5, h:6, w:6] += F[c, h + r, w + s] * W2[o, c, r, s] over c:4, r:3, s:3
    output G
"""


def test_windows_derive_the_producers_loops() -> None:
    subject = problem(CONVOLUTIONS)
    assert set(subject.derived) == {("F", "y"), ("F", "x")}
    assert subject.names["F", "r"] == "F.r"
    assert subject.loops_of("F", "y") == {"y", "h", "r"}


def test_a_derived_range_has_a_halo_and_is_exempt_from_coverage() -> None:
    subject = problem(CONVOLUTIONS)
    tree = parse_tree("""@DRAM for h:3, w:2 { shar[
        @L1 for c:4, ic:3, F.r:3, F.s:3 { op F }, @L1 for o:5, h:2, w:3, c:4, r:3, s:3 { op G }] }""")
    check(tree, subject)
    # 2 rows of G need 4 rows of F and these 6 of I; 3 columns need 5, and 7.
    assert working_set(tree, subject, (0, 0)) == {"I": 3 * 6 * 7, "W1": 108, "F": 4 * 4 * 5}
    assert working_set(tree, subject, (0, 1)) == {"F": 4 * 4 * 5, "W2": 180, "G": 5 * 2 * 3}
    assert working_set(tree, subject) == {"I": 300, "W1": 108, "W2": 180, "G": 180}


def test_a_transposed_read_needs_the_whole_producer() -> None:
    subject = problem("""
        input A: f32[4, 4]
        P: f32[i:4, j:4] = exp(A[i, j])
        S: f32[i:4, j:4] = P[i, j] + P[j, i]
        output S
    """)
    leaves = "@L1 for i:{0}, j:4 {{ op P }}, @L1 for i:{0}, j:4 {{ op S }}"
    check(parse_tree(f"@DRAM for i:1 {{ seq[{leaves.format(4)}] }}"), subject)
    with pytest.raises(legality.IncompleteProducer, match="reads other elements of P along i"):
        check(parse_tree(f"@DRAM for i:4 {{ seq[{leaves.format(1)}] }}"), subject)


def test_expressions_come_in_topological_order() -> None:
    nodes = parse_graph("input A: f32[4]\nB: f32[i:4] = A[i]\nC: f32[i:4] = B[i]\noutput C\n").nodes
    with pytest.raises(InvalidExpression, match="C reads B, which is not written before it"):
        Problem.of(nodes[::-1])
    with pytest.raises(InvalidExpression, match="B is written twice"):
        Problem.of([nodes[0], nodes[0]])


# One broken rule each -------------------------------------------------------------------------------------------------

SOFTMAX = """
    input S: f32[8, 16]
    M: f32[i:8] max= S[i, l] over l:16
    E: f32[i:8, l:16] = exp(S[i, l] - M[i])
    T: f32[i:8] += E[i, l] over l:16
    P: f32[i:8, l:16] = E[i, l] / T[i]
    output P
"""
GEMM = "input A: f32[8, 4]\ninput B: f32[4, 6]\nC: f32[m:8, n:6] += A[m, k] * B[k, n] over k:4\noutput C\n"
PAIR = "input A: f32[8]\nB: f32[i:8] = exp(A[i])\nC: f32[i:8] = exp(B[i])\noutput C\n"
MACHINE = Resources(
    (Level("DRAM", instances=1), Level("L1", 256, instances=4), Level("REG", 64, reduce=True)), units=16
)


@pytest.mark.parametrize(
    ("expressions", "tree", "error", "message", "help"),
    [
        (GEMM, "@DRAM for m:2, n:6 { @L1 for m:3, k:4 { op C } }", legality.WrongCoverage,
         "loop m of C has extent 8, but factors 2@DRAM*3@L1 = 6", "make m at L1 4 instead of 3"),
        (GEMM, "@DRAM for m:3, n:6 { @L1 for m:3, k:4 { op C } }", legality.WrongCoverage,
         "factors 3@DRAM*3@L1 = 9", "use factors of m whose product is 8 or allow imperfect factors"),
        (GEMM, "@DRAM for m:8, n:6 { op C }", legality.WrongCoverage,
         "loop k of C has extent 4, but factors none", "add k:4 to a tile around it"),
        (GEMM, "@DRAM for m:3, n:?, k:? { op C }", legality.WrongCoverage,
         "loop m of C has extent 8, but factors 3@DRAM", "make m at DRAM 8 instead of 3"),
        (GEMM, "@DRAM for m:8, n:6, k:4 { op D }", legality.WrongCoverage,
         "op D is no expression here", "one of C"),
        (PAIR, "@DRAM for i:8 { op C }", legality.WrongCoverage, "no leaf computes B", "op B before its consumers"),
        (PAIR, "seq[@L1 for i:8 { op B }, @L1 for i:8 { op C }, @L1 for i:8 { op C }]", legality.WrongCoverage,
         "op C is computed by 2 leaves", "keep one"),
        (PAIR, "@DRAM for i:2 { seq[@L1 for i:4 { op C }, @L1 for i:4 { op B }] }", legality.WrongOrder,
         "C stands before B, whose result it reads", "put the child with B before the child with C"),
        (PAIR, "@DRAM for i:2 { para[@L1 for i:4 { op B }, @L1 for i:4 { op C }] }", legality.DependentPara,
         "children 0 and 1 of para depend on each other: C needs B", "use pipe"),
        (PAIR, "@DRAM par i:2 { pipe[@L1 for i:4 { op B }, @L1 for i:4 { op C }] }", legality.MisplacedPipe,
         "pipe stands directly inside par i:2 at DRAM", "put par i:2 into each of its 2 children"),
        (SOFTMAX, """@DRAM for i:8, l:4 { shar[@L1 for l:4 { op M }, @L1 for l:4 { op E },
         @L1 for l:4 { op T }, @L1 for l:4 { op P }] }""", legality.SplitSoftmax,
         "l:4 at DRAM surrounds M and E, which needs the max over all of l", "running maximum and sum"),
        (PAIR, "@DRAM for i:2 { @L3 for i:2 { seq[@REG for i:2 { op B }, @REG for i:2 { op C }] } }",
         legality.TooLarge, "level L3 does not exist", "from the outside in: DRAM, L1, REG"),
        (GEMM, "@DRAM par m:8 { @L1 for n:6, k:4 { op C } }", legality.TooLarge,
         "one instance of DRAM feeds 8 instances of L1, the machine has 4 there", "are 2 times smaller"),
        (GEMM, "@DRAM for m:8 { @L1 par n:6 { @REG for k:4 { op C } } }", legality.TooLarge,
         "one instance of L1 feeds 6 units, the machine has 4 there", "at L1 as for until their factors are 2 times"),
        (GEMM, "@L1 for m:8 { @DRAM for n:6, k:4 { op C } }", legality.TooLarge, "level DRAM lies outside L1", "DRAM"),
        (GEMM, "@DRAM par m:8 { par n:6 { @L1 for k:4 { op C } } }", legality.TooLarge,
         "keeps 48 units busy, the machine has 16", "3 times smaller"),
        (GEMM, "@DRAM for n:1 { @L1 for m:8, n:6, k:4 { op C } }", legality.TooLarge,
         "one step of n:1 at DRAM keeps 416 bytes in L1, which holds 256", "2 times smaller"),
        (GEMM, "@DRAM for m:8 { stage A in L1 slots 64 { @L1 for n:6, k:4 { op C } } }", legality.TooLarge,
         "one step of m:8 at DRAM keeps 1144 bytes in L1, which holds 256", "5 times smaller"),
        (GEMM, "@DRAM for n:1 { @REG for m:8, n:6, k:4 { op C } }", legality.TooLarge,
         "one step of n:1 at DRAM keeps 416 bytes in L1, which holds 256", "2 times smaller"),
        (GEMM, "@DRAM for n:6 { stage Z in L1 { @L1 for m:8, k:4 { op C } } }", legality.WrongRetention,
         "stage Z in L1 keeps what nothing in it uses", "one of A, B, C"),
        (GEMM, "@DRAM for n:6 { stage A in L7 { @L1 for m:8, k:4 { op C } } }", legality.TooLarge,
         "level L7 does not exist", "from the outside in: DRAM, L1, REG"),
        (GEMM, "@DRAM for m:8, n:6 { @L1 par k:4 { op C } }", legality.SpatialReduction,
         "par k:4 at L1 reduces C across units, which L1 cannot", "bind k as for, or put it at REG"),
    ],
)  # fmt: skip
def test_a_broken_rule(expressions: str, tree: str, error: type, message: str, help: str) -> None:
    with pytest.raises(error) as raised:
        check(parse_tree(tree), problem(expressions), resources=MACHINE)
    assert raised.value.message.startswith(f"{raised.value.rule}: ")
    assert message in raised.value.message
    assert help in raised.value.help


# Ordered accumulations ------------------------------------------------------------------------------------------------

I, J, U, V = (Axis(name, extent) for name, extent in (("i", 4), ("j", 8), ("u", 6), ("v", 3)))


def ordered(accum: Ordered) -> Problem:
    """A scan or sort of 8 rows of 6 elements, or a scatter of 6 x 3 rows of 4 x 8 elements into 10 places."""
    source, result = Tensor("A", (1000,), "f32"), Tensor("S", (), "i64" if isinstance(accum, Sort) else "f32")
    if isinstance(accum, Scatter):
        places = Read(Tensor("P", (18,), "i64"), (U * 3 + V,))
        value = Read(source, (U * 96 + V * 32 + I * 8 + J,))
        update = Apply("scatter", (value, places), "f32")
        statement = Statement(result, (I, J), update, (U, V), accum, I * 80 + J, ((10, 8),))
    else:
        statement = Statement(result, (J,), Read(source, (U * 8 + J,)), (U,), accum, J, ((6, 8),))
    tree = parse_tree("@L1 for i:4 { op S }")
    return problem_of(Kernel((statement,), tree))


@pytest.mark.parametrize(
    ("accum", "tree"),
    [
        (PrefixScan(0, "sum"), "@DRAM par j:2 { @L2 for j:1 { @L1 for u:6 { @REG par j:4 { op S } } } }"),
        (PrefixScan(0, "sum"), "@DRAM for u:2 { @L1 for u:3 { @REG par j:8 { op S } } }"),
        (Sort(0), "@DRAM par j:8 { @L1 for u:6 { op S } }"),
        (Scatter((0,), "sum"), "@DRAM par i:4 { @L1 for u:6, v:3 { @L1 for j:2 { @REG par j:4 { op S } } } }"),
    ],
)
def test_ordered_accumulations_whose_steps_run_in_order(accum: Ordered, tree: str) -> None:
    check(
        parse_tree(tree), ordered(accum), resources=Resources((Level("DRAM"), Level("L2"), Level("L1"), Level("REG")))
    )


@pytest.mark.parametrize(
    ("accum", "tree", "error", "message", "help"),
    [
        (PrefixScan(0, "sum"), "@DRAM par u:2 { @L1 for j:8, u:3 { op S } }", legality.Reordered,
         "par u:2 at DRAM distributes the steps of S", "bind u as for"),
        (Sort(0), "@L1 for j:8 { @REG par u:6 { op S } }", legality.Reordered,
         "par u:6 at REG distributes the steps of S", "bind u as for"),
        (Scatter((0,)), "@L1 for v:3, u:6 { @REG par i:4, j:8 { op S } }", legality.Reordered,
         "the steps of S run in the order of v, u", "in the order of u, v"),
        (Scatter((0,)), "@L1 for u:2, v:3, i:4, j:8 { @REG for u:3 { op S } }", legality.Reordered,
         "the steps of S run in the order of u, v, u", "in the order of u, v"),
        (PrefixScan(0, "max"), "@L1 for j:8, u:5 { op S }", legality.WrongCoverage,
         "loop u of S has extent 6, but factors 5@L1", "make u at L1 6"),
        (PrefixScan(0, "max"), "@L1 for place0:6, j:8, u:6 { op S }", legality.Recomputation,
         "place0:6 at L1 is no loop of S", "give it factor 1"),
    ],
)  # fmt: skip
def test_ordered_accumulations_whose_steps_do_not(
    accum: Ordered, tree: str, error: type, message: str, help: str
) -> None:
    with pytest.raises(error) as raised:
        check(parse_tree(tree), ordered(accum))
    assert message in raised.value.message
    assert help in raised.value.help


def test_an_ordered_accumulation_keeps_all_of_the_dimension_that_it_gives() -> None:
    scan, scatter = ordered(PrefixScan(0, "sum")), ordered(Scatter((0,)))
    assert working_set(parse_tree("@L1 for j:8 { @L1 for u:6 { op S } }"), scan, (0,)) == {"A": 6 * 8 - 7, "S": 6}
    rows = parse_tree("@L1 for i:4 { @L1 for u:6, v:3, j:8 { op S } }")
    assert working_set(rows, scatter, (0,)) == {"A": 5 * 96 + 2 * 32 + 8, "P": 18, "S": 80}


def test_spec1_g40_two_products_and_a_softmax() -> None:
    subject = chain()
    good = "@DRAM for m:2, l:3 { shar[@L1 for m:4, l:2, k:4 { op C }, @L1 for m:4, l:2, n:5 { op E }] }"
    check(parse_tree(good), subject)
    split = "@DRAM for m:2, k:2 { shar[@L1 for m:4, l:6, k:2 { op C }, @L1 for m:4, l:6, n:5 { op E }] }"
    with pytest.raises(legality.IncompleteProducer, match="k:2 at DRAM surrounds C and E, which would read C before"):
        check(parse_tree(split), subject)
    again = "@DRAM for m:2, n:5 { shar[@L1 for m:4, l:6, k:4 { op C }, @L1 for m:4, l:6 { op E }] }"
    with pytest.raises(legality.Recomputation, match="n:5 at DRAM is no loop of C and would compute it 5 times"):
        check(parse_tree(again), subject)
    check(parse_tree(again), subject, recompute=True)


def running_softmax(*rescaled: tuple[str, str]) -> Problem:
    """Attention whose sums are rescaled when a running value changes: by name of the sum and of the running value."""
    nodes = parse_graph("""
        input S: f32[8, 16]
        input V: f32[16, 4]
        M: f32[i:8] max= S[i, l] over l:16
        E: f32[i:8, l:16] = exp(S[i, l] - M[i])
        T: f32[i:8] += E[i, l] over l:16
        P: f32[i:8, l:16] = E[i, l] / T[i]
        O: f32[i:8, j:4] += P[i, l] * V[l, j] over l:16
        output O""").nodes
    old, new = (Tensor(name, (), "f32")[()] for name in (OLD, NEW))
    factors = {"M": apply("exp", old - new), "T": old / new}
    return Problem.of(nodes, [Rescaling(total, running, factors[running]) for total, running in rescaled])


FUSED_SOFTMAX = "@DRAM for l:4 {{ shar[{}] }}".format(
    ", ".join(f"@L1 for i:8, l:4{', j:4' * (op == 'O')} {{ op {op} }}" for op in "METPO")
)


def test_rescaled_sums_let_their_loop_be_shared() -> None:
    tree = parse_tree(FUSED_SOFTMAX)
    check(tree, running_softmax(("T", "M"), ("O", "M"), ("O", "T")))
    for missing in (("T", "M"), ("O", "M"), ("O", "T")):
        rest = [pair for pair in (("T", "M"), ("O", "M"), ("O", "T")) if pair != missing]
        found = list(violations(tree, running_softmax(*rest)))
        assert {type(error) for error in found} == {legality.SplitSoftmax}
        assert {error.message.split(" and ")[0].split()[-1] for error in found} == {missing[1]}


@pytest.mark.parametrize(
    ("total", "running", "message", "help"),
    [
        ("Q", "M", "Q is rescaled but no expression", "one of M, E, T, P, O"),
        ("M", "T", "M is rescaled but no sum", "one of T, O"),
        ("T", "P", "T is rescaled when P changes, but does not sum over its loop what uses it", "one of (none)"),
        ("T", "T", "T is rescaled when T changes", "one of O"),
    ],
)
def test_a_rescaling_that_no_step_could_carry_out(total: str, running: str, message: str, help: str) -> None:
    nodes = running_softmax().computes
    with pytest.raises(InvalidExpression, match=message) as raised:
        Problem.of(nodes, [Rescaling(total, running, Tensor(NEW, (), "f32")[()])])
    assert raised.value.help == help


def test_a_rescaling_is_by_old_and_new_values() -> None:
    nodes = running_softmax().computes
    with pytest.raises(InvalidExpression, match="T is rescaled by an expression of") as raised:
        Problem.of(nodes, [Rescaling("T", "M", Read(Tensor("S", (), "f32"), ()))])
    assert raised.value.help == "only of old and new M"


def test_a_tile_keeps_and_bypasses_its_own_tensors() -> None:
    tree = "@DRAM for m:2, l:3 {} {{ shar[@L1 for m:4, l:2, k:4 {{ op C }}, @L1 for m:4, l:2, n:5 {{ op E }}] }}"
    check(parse_tree(tree.format("keep A, C bypass D")), chain())
    with pytest.raises(legality.WrongRetention, match="the tile at DRAM has keep X, which nothing") as raised:
        check(parse_tree(tree.format("keep X")), chain())
    assert raised.value.help == "one of A, B, C, D, E"


def test_rows_of_a_softmax_may_be_tiled() -> None:
    passes = ", ".join(f"@L1 for l:16 {{ op {op} }}" for op in "METP")
    check(parse_tree(f"@DRAM par i:8 {{ seq[{passes}] }}"), problem(SOFTMAX))


def test_what_machines_allow_is_legal() -> None:
    tree = "@DRAM par m:4 { @DRAM for m:2, n:6 { @L1 for k:1 { @REG par k:4 { op C } } } }"
    check(parse_tree(tree), problem(GEMM), resources=MACHINE)


def test_imperfect_factors_cover_with_clipped_edges() -> None:
    tree = parse_tree("@DRAM for m:3, n:6 { @L1 for m:3, k:4 { op C } }")
    check(tree, problem(GEMM), imperfect=True)
    short = parse_tree("@DRAM for m:2, n:6 { @L1 for m:3, k:4 { op C } }")
    with pytest.raises(legality.WrongCoverage, match="= 6") as raised:
        check(short, problem(GEMM), imperfect=True)
    assert raised.value.help == "make m at L1 4 instead of 3"
    # Slices end where tensors end.
    assert working_set(parse_tree("@DRAM for m:3, n:2, k:1 { op C }"), problem(GEMM)) == {"A": 3, "B": 2, "C": 6}
    assert working_set(tree, problem(GEMM)) == {"A": 32, "B": 24, "C": 48}


def test_open_factors_break_nothing() -> None:
    check(parse_tree("@DRAM for m:?, n:3 { @L1 for m, k, n:2 { op C } }"), problem(GEMM))


ARRAY = Resources(
    (Level("DRAM", instances=1), Level("L1", instances=1, array=(1, 1)), Level("RF", instances=32, array=(8, 4))), 32
)


def on_array(factors: Mapping[str, int], along: int | None) -> TileTree:
    """A product whose loops with these factors run on the units of `ARRAY`, so many of them along X."""
    loops = ", ".join(f"{name}:{factor}" for name, factor in factors.items())
    rest = ", ".join(f"{name}:{-(-size // factors.get(name, 1))}" for name, size in {"m": 8, "n": 6, "k": 4}.items())
    hint = "" if along is None else f"with along_x({along})"
    return parse_tree(f"@DRAM for once:1 {{ @L1 par {loops} {hint} {{ @RF for {rest} {{ op C }} }} }}")


@pytest.mark.parametrize(
    ("factors", "along", "refused"),
    [
        ({"m": 8, "n": 2}, None, ""),
        ({"m": 8, "n": 2}, 1, "one instance of L1 feeds 8 along Y, the machine has 4 there"),
        ({"m": 4, "n": 2}, 1, ""),
        ({"n": 3, "m": 8}, 1, ""),
        ({"m": 8, "n": 2}, 2, "one instance of L1 feeds 16 along X, the machine has 8 there"),
        ({"m": 2, "n": 2}, 0, ""),
        ({"m": 4, "n": 2}, 0, "one instance of L1 feeds 8 along Y, the machine has 4 there"),
    ],
)
def test_loops_along_an_array_are_no_more_than_it_is_wide_and_high(
    factors: dict[str, int], along: int | None, refused: str
) -> None:
    """Where a tile says nothing, only the number of units counts."""
    broken = list(violations(on_array(factors, along), problem(GEMM), resources=ARRAY))
    assert [each.message for each in broken] == ([f"L8 resources: {refused}"] if refused else [])
    assert all("along_x" in each.help for each in broken)


def test_children_at_the_same_time_lie_beside_each_other_along_one_side() -> None:
    """Two arrays of 4 x 3 fit beside each other along X, two of 8 x 3 along neither, one after the other they do."""
    subject = problem("""
        input A: f32[8, 6]
        B: f32[m:8, n:6] = exp(A[m, n])
        C: f32[m:8, n:6] = tanh(A[m, n])
        output B
        output C""")

    def broken(kind: str, m: int) -> list[str]:
        child = f"@L1 par n:3, m:{m} with along_x(1) {{ @RF for m:{8 // m}, n:2 {{ op %s }} }}"
        tree = parse_tree(f"@DRAM for once:1 {{ {kind}[{child % 'B'}, {child % 'C'}] }}")
        array = replace(ARRAY, units=64, levels=(*ARRAY.levels[:2], replace(ARRAY.levels[2], instances=64)))
        return [each.message for each in violations(tree, subject, resources=array)]

    assert broken("para", 4) == broken("seq", 8) == broken("shar", 8) == []
    assert broken("para", 8) == ["L8 resources: one instance of L1 feeds 6 along Y, the machine has 4 there"]


@pytest.mark.parametrize("along", range(4))
def test_a_batch_of_trees_is_checked_along_both_sides(along: int) -> None:
    tree = parse_tree(f"@DRAM for once:1 {{ @L1 par m, n, k with along_x({along}) {{ @RF for m, n, k {{ op C }} }} }}")
    rows = [(8, 1, 1), (4, 2, 1), (2, 2, 4), (1, 6, 4), (8, 2, 2), (1, 1, 1), (2, 3, 2)]
    array = replace(ARRAY, levels=tuple(replace(level, reduce=True) for level in ARRAY.levels))
    table = np.array(rows)
    factors = {((0,), place): table[:, place] for place in range(3)}
    factors |= {((0, 0), place): size // table[:, place] for place, size in enumerate((8, 6, 4))}
    fits = Capacities(tree, problem(GEMM), array).fit(factors)
    trees = [on_array(dict(zip("mnk", row, strict=True)), along) for row in rows]
    assert fits.tolist() == [not list(violations(each, problem(GEMM), resources=array)) for each in trees]
    assert 0 < fits.sum() < len(rows)


def test_para_of_independent_children() -> None:
    subject = problem("input A: f32[8]\nB: f32[i:8] = exp(A[i])\nC: f32[i:8] = tanh(A[i])\noutput B\noutput C\n")
    check(parse_tree("@DRAM for i:2 { para[@L1 for i:4 { op B }, @L1 for i:4 { op C }] }"), subject)


# Memory ---------------------------------------------------------------------------------------------------------------


def test_a_level_that_a_tree_skips_has_to_hold_what_passes() -> None:
    """A step of DRAM lies in REG, which its tile walks, as well as in L1."""
    narrow = replace(MACHINE, levels=(*MACHINE.levels[:-1], replace(MACHINE.levels[-1], capacity_bytes=200)))
    skips = "@DRAM for m:2, n:6 { @REG for m:4, k:4 { op C } }"
    passes = "@DRAM for m:2, n:6 { @L1 for m:4 { @REG for k:4 { op C } } }"
    tight = replace(narrow, levels=(*narrow.levels[:-1], replace(narrow.levels[-1], capacity_bytes=90)))
    check(parse_tree(skips), problem(GEMM), resources=narrow)
    check(parse_tree(passes), problem(GEMM), resources=tight)
    with pytest.raises(legality.TooLarge, match="one step of m:2, n:6 at DRAM keeps 96 bytes in REG, which holds 90"):
        check(parse_tree(skips), problem(GEMM), resources=tight)


@pytest.mark.parametrize("slots", [1, 2, 9])
def test_slots_of_a_stage_count_at_its_level(slots: int) -> None:
    """A row of A, which a step keeps in L1 beside B and a row of C, is there once for each slot."""
    tree = parse_tree(f"@DRAM for m:8 {{ stage A in L1 slots {slots} {{ @L1 for n:6, k:4 {{ op C }} }} }}")
    kept = 4 * (24 + 4 * slots + 6)

    def legal(room: int) -> bool:
        levels = tuple(replace(each, capacity_bytes=room if each.name == "L1" else None) for each in MACHINE.levels)
        return not list(violations(tree, problem(GEMM), resources=replace(MACHINE, levels=levels)))

    assert legal(kept)
    assert not legal(kept - 1)


def test_one_look_at_each_expression_for_all_that_a_scope_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """What L8 looks at grows with the tree, not with its square: twice the statements, twice the boxes of reads."""

    def looked_at(count: int) -> int:
        lines = [f"V{n + 1}: f32[i:8, j:64] = V{n}[i, j] + 1.0" for n in range(count)]
        text = "\n".join(["input V0: f32[8, 64]", *lines, f"output V{count}"])
        steps = ", ".join(f"@L1 for j:64 {{ op V{n + 1} }}" for n in range(count))
        seen = 0
        original = problem_module._side

        def counted(accesses: Sequence[Access], dim: int) -> Side:
            nonlocal seen
            seen += len(accesses)
            return original(accesses, dim)

        with monkeypatch.context() as patch:
            patch.setattr(problem_module, "_side", counted)
            tree = parse_tree(f"@L2 for i:8 {{ stage V1 in L1 {{ seq[{steps}] }} }}")
            room = program_resources(resolve_cpu("x86-64-v3"))
            assert not list(violations(tree, Problem.of(parse_graph(text).nodes), resources=room))
        return seen

    few, more, most = map(looked_at, (10, 20, 40))
    assert 0 < most - more <= 2 * (more - few)
