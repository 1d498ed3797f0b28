"""Notation and JSON of tile trees: exact both ways, and clear about what is wrong."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.tiles.notation import parse_tree, print_tree
from tilewright.tiles.tree import (
    Binding,
    InvalidTree,
    Kind,
    Leaf,
    Loop,
    MicroKernelRef,
    Operand,
    Scope,
    Tile,
    TileTree,
    from_json,
    kernels,
    to_json,
)

KERNEL = MicroKernelRef(
    "fma_6x64x4",
    "C: f32[m:6, n:64] += A[m, k] * B[k, n] over k:4",
    (
        Operand("A", (6, 4), "f32", "read"),
        Operand("B", (4, 64), "f32", "read"),
        Operand("C", (6, 64), "f32", "accumulate"),
    ),
    (Loop("m", 6), Loop("n", 64), Loop("k", 4)),
)

names = st.one_of(
    st.sampled_from(["i", "j", "k0", "i.1", "op", "for", "par", "seq", "as", "conv1/weight:0", '"', "\\", "ä b", "7"]),
    st.text(min_size=1, max_size=8),
)
levels = st.sampled_from(["DRAM", "L2", "L1", "0", "2", "REG", "for"])
factors = st.one_of(st.none(), st.integers(1, 1 << 40))
leaves = st.builds(Leaf, names, st.sampled_from([None, None, KERNEL]))


def tiles(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Tile]:
    nests = st.lists(st.builds(Loop, names, factors), min_size=1, max_size=3, unique_by=lambda loop: loop.name)
    return st.builds(Tile, levels, nests.map(tuple), children, st.sampled_from(Binding))


trees = st.recursive(
    tiles(leaves),
    lambda inner: st.one_of(
        tiles(inner),
        st.builds(Scope, st.sampled_from(Kind), st.lists(inner, min_size=1, max_size=3).map(tuple)),
    ),
    max_leaves=6,
)


@given(trees, st.booleans())
@settings(max_examples=tries(60, full=300), deadline=None)
def test_text_is_exact_both_ways(tree: TileTree, indented: bool) -> None:
    text = print_tree(tree, indented=indented)
    again = parse_tree(text, kernels(tree))
    assert again == tree
    assert print_tree(again, indented=indented) == text


@given(trees)
@settings(max_examples=tries(40, full=200), deadline=None)
def test_json_is_exact_both_ways(tree: TileTree) -> None:
    assert from_json(json.loads(json.dumps(to_json(tree)))) == tree
    assert hash(tree) == hash(from_json(to_json(tree)))


def test_what_the_text_looks_like() -> None:
    inner = Tile("DRAM", (Loop("n", 2),), Tile("L1", (Loop("k", 8),), Leaf("C", KERNEL)), Binding.SP)
    tree = Tile("DRAM", (Loop("m", 4), Loop("b")), Scope(Kind.SHAR, (inner, Tile("L1", (Loop("m", 1),), Leaf("D/x")))))
    assert print_tree(tree) == (
        '@DRAM for m:4, b:? { shar[par n:2 { @L1 for k:8 { op C as fma_6x64x4 } }, @L1 for m:1 { op "D/x" }] }'
    )
    assert print_tree(tree, indented=True).splitlines() == [
        "@DRAM for m:4, b:? {",
        "  shar[",
        "    par n:2 {",
        "      @L1 for k:8 { op C as fma_6x64x4 }",
        "    },",
        '    @L1 for m:1 { op "D/x" }',
        "  ]",
        "}",
    ]


def test_short_forms_are_read() -> None:
    tree = parse_tree("@2 for m,n:?{pipe[par m:2{op A},@1 par m:2{op B}]}")
    assert print_tree(tree) == "@2 for m:?, n:? { pipe[par m:2 { op A }, @1 par m:2 { op B }] }"


@pytest.mark.parametrize(
    ("text", "where", "message", "help"),
    [
        ("", "1:1", "found the end of the text", "'@'"),
        ("for m:2 { op A }", "1:1", "this tile has no level", "@LEVEL for"),
        ("par m:2 { op A }", "1:1", "no tile around it", "@LEVEL par"),
        ("@L1 for m:0 { op A }", "1:9", "loop m has factor 0", "1 or more"),
        ("@L1 for m:x { op A }", "1:11", "found 'x'", "a number"),
        ("@L1 for m:9999999999999999999 { op A }", "1:11", "expected a number", "18 digits"),
        ("@L1 for m:2, m:3 { op A }", "1:1", "two loops of one name: m, m", "split the tile"),
        ("@L1 for { op A }", "1:9", "found '{', expected the name of a loop", "loop"),
        ("@L1 for m:2 {\n  op }", "2:6", "found '}', expected the name of an expression", "expression"),
        ("@L1 for m:2 { op A } x", "1:22", "found 'x', expected the end", "end"),
        ("@L1 for m:2 { seq[] }", "1:19", "found ']'", "'@'"),
        ("@L1 for m:2 { seq[@L1 for m:1 { op A } }", "1:40", "found '}', expected ',' or ']'", "','"),
        ("@L1 for m:2 { seq[op A] }", "1:19", "found 'op'", "'@'"),
        ("@L1 for m:2 { op A as fast }", "1:23", "there is no micro-kernel fast", "none is given"),
        ("@L1 for m:2 ; op A", "1:13", "this character starts nothing", ""),
        ('@L1 for "\\x":2 { op A }', "1:9", "invalid escape", "JSON"),
        ('@L1 for "":2 { op A }', "1:9", "found '\"\"'", "loop"),
        ("@L-1 for m { op A }", "1:3", "this character starts nothing", ""),
    ],
)  # fmt: skip
def test_errors_say_where_and_what_is_legal(text: str, where: str, message: str, help: str) -> None:
    with pytest.raises(InvalidTree) as raised:
        parse_tree(text)
    assert raised.value.where == f"<text>:{where}"
    assert message in raised.value.message
    assert help in raised.value.help


def test_deep_trees_are_refused() -> None:
    text = "@L1 for m:1 {" * 10_000
    with pytest.raises(InvalidTree, match="more than 100 levels deep"):
        parse_tree(text)
    value: Any = {"op": "A"}
    for _ in range(500):
        value = {"level": "L1", "for": [["m", 1]], "child": value}
    with pytest.raises(InvalidTree, match="more than 100 levels deep"):
        from_json(value)


def test_damaged_text_gives_a_tree_or_an_error() -> None:
    generator = random.Random(0)
    base = '@DRAM for m:4, b:? { shar[par n:2 { @L1 for k:8 { op C as fma_6x64x4 } }, @L1 for "m x":1 { op D }] }'
    pieces = ["@", "for", "par", "{", "}", "[", "]", ",", ":", "?", "op", "as", '"', "seq", "\\", "\n", "0", "é", "\0"]
    accepted = 0
    for _ in range(3000):
        text = base
        for _ in range(generator.randint(1, 4)):
            start = generator.randrange(len(text) + 1)
            text = text[:start] + generator.choice([*pieces, ""]) + text[start + generator.randint(0, 3) :]
        try:
            tree = parse_tree(text, {"fma_6x64x4": KERNEL})
        except InvalidTree:
            pass
        else:
            accepted += 1
            assert parse_tree(print_tree(tree), kernels(tree)) == tree
    assert 0 < accepted < 3000


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(["op", "L1", "m", ""])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["op", "kernel", "level", "for", "par", "child", "seq", "name"]), inner),
    ),
    max_leaves=12,
)


@given(JSON)
@settings(max_examples=tries(60, full=300), deadline=None)
def test_any_json_gives_a_tree_or_an_error(value: Any) -> None:
    with suppress(InvalidTree):
        assert from_json(to_json(from_json(value))) == from_json(value)


def test_damaged_json_names_the_place() -> None:
    value = to_json(Tile("L1", (Loop("m", 2),), Tile("L1", (Loop("k", 8),), Leaf("C", KERNEL))))
    value["child"]["child"]["kernel"]["quantum"][1][1] = "64"
    with pytest.raises(InvalidTree, match=r"an extent is '64'") as raised:
        from_json(value, where="tree")
    assert raised.value.where == "tree.child.child.kernel.quantum[1]"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Loop("", 2), "no name"),
        (lambda: Loop("m", 0), "factor 0"),
        (lambda: Leaf(""), "no name"),
        (lambda: Tile("L1", (), Leaf("A")), "no loops"),
        (lambda: Tile("L 1", (Loop("m", 2),), Leaf("A")), "level 'L 1'"),
        (lambda: Scope(Kind.SEQ, ()), "no children"),
        (lambda: Scope(Kind.SEQ, (Leaf("A"),)), "op A itself"),  # type: ignore[arg-type]
        (lambda: MicroKernelRef("k", "", (), (Loop("m"),)), "extent of m is open"),
    ],
)
def test_malformed_values_are_refused(build: Any, message: str) -> None:
    with pytest.raises(InvalidTree, match=message):
        build()


def test_comments_are_read_over_and_written_where_they_are_asked_for() -> None:
    tree = parse_tree("# head\n@L1 for m:2 # two\n{ seq[ @L0 for k:1 { op A }, # next\n @L0 for n:1 { op B } ] } # end")
    text = print_tree(tree, indented=True, notes={(): "all of\nit", (0, 0): "first", (0,): "both"})
    assert text.splitlines() == [
        "# all of it",
        "@L1 for m:2 {",
        "  # both",
        "  seq[",
        "    # first",
        "    @L0 for k:1 { op A },",
        "    @L0 for n:1 { op B }",
        "  ]",
        "}",
    ]
    assert parse_tree(text) == tree
    with pytest.raises(InvalidTree, match="found the end of the text"):
        parse_tree("@L1 for m:2 { op A # }")
    with pytest.raises(InvalidTree, match="found 'x'") as raised:
        parse_tree("@L1 for m:2 # x\n x")
    assert raised.value.where == "<text>:2:2"
