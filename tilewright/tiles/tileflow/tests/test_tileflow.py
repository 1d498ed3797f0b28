"""Runs in the YAML of TileFlow's artifact: worked numbers, convolutions, errors with their places, damaged files."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from tilewright.errors import CompileError
from tilewright.tiles.analysis import Analysis, analyse
from tilewright.tiles.file import parse_tile_file, print_tile_file
from tilewright.tiles.legality import check
from tilewright.tiles.machines import resources
from tilewright.tiles.notation import print_tree
from tilewright.tiles.tileflow.read import Run, read_run

ARCHITECTURE = """
architecture:
  version: 0.2
  subtree:
    - name: chip
      local:
        - {name: DRAM, class: DRAM, attributes: {sizeKB: 1048576, word-bits: 8}}
      subtree:
        - name: array
          local:
            - name: RF[0..15]
              class: regfile
              attributes: {meshX: 4, meshY: 4, depth: 64, block_size: 1024, word-bits: 8,
                           read_bandwidth: 2, write_bandwidth: 2}
            - {name: "unit[0..15]", class: intmac, attributes: {word-bits: 16, meshX: 4, meshY: 4}}
"""
PROBLEM = """
problem:
  io: {ins: "A, B, D", outs: E}
  dimensions: [M, N, K, L]
  instance: {M: 512, N: depth, K: depth, L: 512}
  ops:
    - name: first
      dimensions: [M, L, K]
      data-spaces:
        - {name: C, projection: [[[M]], [[L]]], read-write: True}
        - {name: A, projection: [[[M]], [[K]]]}
        - {name: B, projection: [[[K]], [[L]]]}
      ins: A, B
      out: C
    - name: between
      type: exp
      dimensions: [M, L]
      data-spaces:
        - {name: C, projection: [[[M]], [[L]]]}
        - {name: exp, projection: [[[M]], [[L]]]}
      ins: C
      out: exp
    - name: second
      dimensions: [M, L, N]
      data-spaces:
        - {name: E, projection: [[[M]], [[N]]], read-write: True}
        - {name: exp, projection: [[[M]], [[L]]]}
        - {name: D, projection: [[[L]], [[N]]]}
      ins: [exp, D]
      out: E
macro: {depth: 64, rows: 64}
"""
MAPPING = """
mapping:
  node-type: Tile
  type: temporal
  factors: M=rows L=32
  permutation: ML
  target: DRAM
  subtree:
    - node-type: Scope
      type: Pipeline
      subtree:
        - node-type: Tile
          type: Spatial
          factors: M=2 L=4
          permutation: ML
          split: 1
          target: DRAM
          subtree:
            - node-type: Tile
              factors: M=4 L=4 K=64
              permutation: MLK
              target: RF
              subtree: [{node-type: Op, name: first, binding: M:M L:L K:K}]
        - node-type: Scope
          type: Sequential
          subtree:
            - node-type: Tile
              type: Spatial
              factors: M=2 L=4
              permutation: ML
              target: DRAM
              subtree: {node-type: Tile, factors: M=4 L=4, permutation: ML, target: 0,
                        subtree: [{node-type: Op, name: between}]}
            - node-type: Tile
              type: Spatial
              factors: M=2 L=4
              permutation: ML
              target: DRAM
              subtree: {node-type: Tile, factors: M=4 L=4 N=64, permutation: M L N, target: RF,
                        subtree: [{node-type: Op, name: second}]}
check: {mem: False}
verbose: 1
"""
TREE = """@DRAM for L:32, M:64 {
  pipe[
    par L:4, M:2 with along_x(1) {
      @RF for K:64, L:4, M:4 { op C }
    },
    seq[
      par L:4, M:2 {
        @RF for L:4, M:4 { op exp }
      },
      par L:4, M:2 {
        @RF for N:64, L:4, M:4 { op E }
      }
    ]
  ]
}
"""
CONVOLUTIONS = """
problem:
  io: {ins: I X Y, outs: O}
  dimensions: [H, C, L, R, U]
  instance: {H: 12, C: 2, L: 3, R: 3, U: 3}
  ops:
    - name: first
      dimensions: [L, C, R, H, U]
      coefficients: [{name: stride, default: 2}]
      data-spaces:
        - {name: T, projection: [[[L]], [[H], [U]]], read-write: true}
        - {name: I, projection: [[[C]], [[H, stride], [R]]]}
        - {name: X, projection: [[[L]], [[C]], [[R]]]}
      ins: I X
      out: T
    - name: second
      dimensions: [L, H, U]
      data-spaces:
        - {name: O, projection: [[[H]]], read-write: true}
        - {name: T, projection: [[[L]], [[H], [U]]]}
        - {name: Y, projection: [[[L]], [[U]]]}
      ins: T Y
      out: O
mapping:
  node-type: Tile
  factors: H=4
  target: DRAM
  subtree:
    - node-type: Scope
      type: Sharing
      subtree:
        - {node-type: Tile, factors: L=3 C=2 H=5 R=3 U=1, target: L1, subtree: {node-type: Op, name: first}}
        - {node-type: Tile, factors: H=3 L=3 U=3, target: L1, subtree: {node-type: Op, name: second}}
"""


def run(folder: Path, *texts: str) -> Run:
    paths = []
    for number, text in enumerate(texts):
        paths.append(folder / f"{number}.yaml")
        paths[-1].write_text(text)
    return read_run(paths)


def analysed(found: Run, *, compat_evict: bool) -> Analysis:
    assert found.machine is not None
    return analyse(found.file.tree, found.file.problem, resources(found.machine), compat_evict=compat_evict)


def test_spec1_g28_g29_the_case_2mm_in_the_words_of_the_artifact(tmp_path: Path) -> None:
    found = run(tmp_path, ARCHITECTURE, PROBLEM, MAPPING)
    assert print_tree(found.file.tree, indented=True).split() == TREE.split()
    check(found.file.tree, found.file.problem)
    counted = analysed(found, compat_evict=True)
    assert counted.cycles == 3_178_496
    assert counted.levels[0].read == {"A": 1_048_576, "B": 2_097_152, "D": 2_097_152, "E": 1_048_576}
    assert counted.levels[0].update["E"] == 1_048_576
    assert counted.levels[0].energy == 734_003_200
    assert counted.operations == 33_816_576 == counted.operation_energy  # one for each of 16 bits
    assert analysed(found, compat_evict=False).levels[0].read["B"] == 32_768  # the rule of the thesis


def test_a_run_comes_back_as_a_tile_file(tmp_path: Path) -> None:
    file = run(tmp_path, ARCHITECTURE, PROBLEM, MAPPING).file
    assert parse_tile_file(print_tile_file(file)) == file


def test_the_order_of_files_and_the_spelling_of_names_are_free(tmp_path: Path) -> None:
    found = run(tmp_path, ARCHITECTURE, PROBLEM, MAPPING)
    one = PROBLEM.replace("data-spaces", "data_spaces") + MAPPING.replace("Pipeline", "pipeline")
    assert run(tmp_path, one, ARCHITECTURE.replace("architecture", "arch")) == found


def test_elements_are_f16_without_an_architecture(tmp_path: Path) -> None:
    found = run(tmp_path, PROBLEM, MAPPING.replace("target: 0", "target: RF"))
    assert found.machine is None
    assert {tensor.dtype for tensor in found.file.problem.tensors().values()} == {"f16"}


def test_instances_count_in_the_whole_machine(tmp_path: Path) -> None:
    """As Timeloop: names of components inside single containers count all, those of containers multiply."""
    inside = ARCHITECTURE.replace("name: array", "name: array[0..3]").replace("meshX: 4", "meshX: 8")
    for text, units in ((ARCHITECTURE, 16), (inside, 64)):
        machine = run(tmp_path, text, PROBLEM, MAPPING).machine
        assert machine is not None
        assert (machine.instances("RF"), machine.units) == (units, units)
        assert machine.levels[1].capacity_bytes == 65_536


def test_the_first_convolution_follows_from_the_second(tmp_path: Path) -> None:
    """Loops around both are those of the second; rows that are read include the halo."""
    found = run(tmp_path, CONVOLUTIONS)
    tensors = found.file.problem.tensors()
    assert tensors["T"].shape == (3, 14)
    assert tensors["I"].shape == (2, 2 * 13 + 3)
    expected = "@DRAM for H:4 { shar[@L1 for L:3, C:2, T.H:5, R:3 { op T }, @L1 for H:3, L:3, U:3 { op O }] }"
    assert print_tree(found.file.tree) == expected
    check(found.file.tree, found.file.problem)


@pytest.mark.parametrize(
    ("old", "new", "line", "message", "help"),
    [
        ("node-type: Scope", "node-type: Scoop", 9, "node_type is 'Scoop', not 'tile', 'scope' or 'op'", ""),
        ("type: Pipeline", "type: Pipe", 10, "type is 'Pipe'", "Sequential, Sharing, Parallel, Pipeline"),
        ("M=rows L=32", "M=rows L", 5, "factors is 'M=rows L'", "as M=4 N=?"),
        ("M=rows L=32", "M=rows M=32", 5, "not a factor for each dimension", "each dimension once"),
        ("M=rows L=32", "M=rows,3 L=32", 5, "has the remainder 'M=rows,3'", "edges are clipped"),
        ("M=rows L=32", "M=rows L=0", 5, "the factor of L is 0", "1 or more"),
        ("permutation: ML\n  target", "permutation: MK\n  target", 6, "permutation is 'MK'", "each of M, L, innermost"),
        ("M=rows L=32\n  permutation: ML", "M=rows Q=32\n  permutation: MQ", 5,
         "Q is no loop of first, between, second", "Q=1, or some of K, L, M, N"),
        ("target: DRAM", "target: DRM", 7, "target is 'DRM'", "one of DRAM, RF"),
        ("target: 0", "target: 2", 32, "target is 2", "one of DRAM, RF"),
        ("name: first,", "name: frist,", 23, "there is no operator frist", "one of first, between, second"),
        ("split: 1", "spilt: 1", 16, "spilt is not a field", "did you mean split?"),
        ("split: 1", "split: one", 16, "split is 'one'", ""),
        ("split: 1", "split: 3", 16, "split is 3, of 2 dimensions", "at most 2"),
        ("split: 1", "multicast: False", 27, "multicast is true, that of another tile at DRAM", "one for all tiles"),
        ("type: Spatial", "type: spaced", 13, "type is 'spaced'", "Temporal, Spatial"),
    ],
)  # fmt: skip
def test_errors_of_mappings(tmp_path: Path, old: str, new: str, line: int, message: str, help: str) -> None:
    refused(tmp_path, (MAPPING, old, new), (ARCHITECTURE, PROBLEM), line, message, help)


@pytest.mark.parametrize(
    ("old", "new", "line", "message", "help"),
    [
        ('"A, B, D"', "A B", 3, "io.ins has A, B", "none writes: A, B, D"),
        ("outs: E", "outs: D", 3, "io.outs has D, which no operator writes", "some of C, exp, E"),
        ("N: depth", "N: deep", 5, "N is 'deep', no number and no macro", "one of depth, rows"),
        ("N: depth, ", "", 5, "dimension N has no extent", "a line N: NUMBER"),
        ("N: depth", "N: -1", 5, "instance.N is -1", ""),
        ("[M, L, K]", "[M, L]", 11, "has K", "dimensions of the operator, each once: M, L"),
        ("[M, L, K]", "[M, L, K, N]", 8, "have N, which no data-space has", "without N"),
        ("ins: A, B\n", "ins: A\n", 13, "ins of first are A", "all data-spaces but the result: A, B"),
        ("ins: A, B\n", "ins: A, Q\n", 13, "names Q, which is no data-space", "some of C, A, B"),
        ("out: C", "out: A", 13, "ins of first are A, B", "all data-spaces but the result: C, B"),
        ("type: exp", "type: tanh", 16, "type of between is 'tanh'", "exp of one input, or no type"),
        ("name: between", "name: first", 15, "name of first is first, as of another operator", "another name"),
        ("[[[L]], [[N]]]", "[[[L]], [[N, two]]]", 28, "has the coefficient two", "those of a list `coefficients`"),
        ("[[[M]], [[N]]], read", "[[[M], [L]], [[N]]], read", 26, "read L otherwise than the result", "M + L together"),
        ("{name: B, projection: [[[K]], [[L]]]}", "{name: B, projection: [[K], [L]]}", 12, "projection.0.0 is 'K'", ""),
        ("macro:", "macros:", 31, "there is no part 'macros'", "did you mean macro?"),
        ("rows: 64", "rows: x", 31, "rows is 'x', not a whole number from 1", ""),
    ],
)  # fmt: skip
def test_errors_of_problems(tmp_path: Path, old: str, new: str, line: int, message: str, help: str) -> None:
    refused(tmp_path, (PROBLEM, old, new), (ARCHITECTURE, MAPPING), line, message, help)


@pytest.mark.parametrize(
    ("old", "new", "line", "message", "help"),
    [
        ("class: DRAM", "class: HBM", 7, "local.0.class is 'HBM', not 'dram', 'sram'", ""),
        ("class: DRAM", "class: SRAM", 3, "the levels are sram, regfile", "a DRAM, then levels of other classes"),
        ("class: intmac", "class: SRAM", 3, "there are 0 arithmetic components", "one of class mac"),
        ("depth: 64, ", "", 13, "attributes of RF have no size", "sizeKB, entries, or depth"),
        ("depth: 64,", "depth: 64, sizeKB: 1,", 13, "stands beside sizeKB", "one size"),
        ("RF[0..15]", "RF[9..3]", 11, "is 'RF[9..3]', not a name with its instances", "as L1 or L1[0..3]"),
        ("unit[0..15]", "unit[0..16]", 15, "stands for 17 in the machine", "a multiple of 16"),
        ("meshX: 4, meshY: 4, depth", "meshX: 3, depth", 13, "have meshX 3 of 16", "a multiple of 1 along X"),
        ("read_bandwidth: 2", "read_bandwidth: 0", 14, "read_bandwidth is 0", ""),
        ("word-bits: 8}", "word-bits: 12}", 3, "words have 12 bits", "8, 16, 32, 64"),
        ("subtree:\n    - name: chip", "subtree:\n    - name: a\n    - name: chip", 5, "is not one container", "one"),
        ("word-bits: 8}", "word-bits: 8, word_bits: 9}", 7, "word_bits stands twice", "one spelling"),
    ],
)
def test_errors_of_architectures(tmp_path: Path, old: str, new: str, line: int, message: str, help: str) -> None:
    refused(tmp_path, (ARCHITECTURE, old, new), (PROBLEM, MAPPING), line, message, help)


def refused(
    folder: Path, change: tuple[str, str, str], others: tuple[str, str], line: int, message: str, help: str
) -> None:
    text, old, new = change
    assert old in text
    with pytest.raises(CompileError) as raised:
        run(folder, text.replace(old, new, 1), *others)
    assert message in raised.value.message
    assert raised.value.where == f"{folder}/0.yaml:{line}"
    assert help in raised.value.help


def test_a_part_is_missing_or_stands_twice(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="there is no mapping"):
        run(tmp_path, PROBLEM)
    with pytest.raises(CompileError, match=r"problem stands in .*0\.yaml:3 too"):
        run(tmp_path, PROBLEM, PROBLEM)
    with pytest.raises(CompileError, match="is not a mapping"):
        run(tmp_path, MAPPING, "")


def test_a_mapping_is_no_deeper_than_people_write(tmp_path: Path) -> None:
    node = "{node-type: Op, name: first}"
    for _ in range(70):
        node = f"{{node-type: Tile, factors: M=1, target: RF, subtree: {node}}}"
    with pytest.raises(CompileError, match=r"stands below 50 others|nested too deeply"):
        run(tmp_path, PROBLEM, f"mapping: {node}")


@pytest.mark.parametrize("seed", range(40))
def test_damaged_files_are_refused_or_right(tmp_path: Path, seed: int) -> None:
    roll = random.Random(seed)
    read = 0
    for _ in range(15):
        texts = [ARCHITECTURE + PROBLEM + MAPPING] if roll.random() < 0.7 else [CONVOLUTIONS]
        text = damaged(roll, texts[0])
        try:
            found = run(tmp_path, text)
        except CompileError as error:
            if not error.where.startswith(str(tmp_path)):
                raise
            continue
        read += 1
        assert parse_tile_file(print_tile_file(found.file)) == found.file, text
    assert read < 15


def damaged(roll: random.Random, text: str) -> str:
    """A text in which some words are others, are gone or stand twice, or which lost a part."""
    for _ in range(roll.choice((1, 1, 2, 3))):
        words = [match.span() for match in re.finditer(r"[\w.-]+|[^\w\s]", text)]
        start, end = words[roll.randrange(len(words))]
        other = words[roll.randrange(len(words))]
        pieces = (text[slice(*other)], "", "-1", "0", "9" * 30, "null", "[]", "{}", "é", "True", "M", "[[M]]", "1.5")
        piece = str(roll.choice((1, 2, 4, 64))) if text[start:end].isdigit() else roll.choice(pieces)
        text = text[:start] + piece + text[roll.choice((end, end, end, start, min(len(text), end + 200))) :]
    return text
