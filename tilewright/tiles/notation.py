"""Tile trees as text, exact both ways::

    tree   ::= tile | scope | stage
    tile   ::= "@" LEVEL ("for" | "par" | "unroll") loop ("," loop)* [keep] [bypass] [hints] "{" (tree | leaf) "}"
    keep   ::= "keep" NAME ("," NAME)*        tensors that stay in the next level from step to step
    bypass ::= "bypass" NAME ("," NAME)*      tensors that this level does not hold
    leaf   ::= "op" NAME ["as" KERNEL] [hints]
    hints  ::= "with" hint ("," hint)*
    hint   ::= NAME ["(" (INT | STRING) ("," (INT | STRING))* ")"]
    loop   ::= NAME [":" (INT | "?")]         outermost first; "?" or nothing: a search chooses the factor
               "@" LEVEL may be left out before par: the level of the tile around it
    scope  ::= ("seq" | "shar" | "para" | "pipe") "[" tree ("," tree)* "]"
    stage  ::= "stage" NAME "in" LEVEL ["slots" INT] "{" tree "}"

`for` and `unroll` are temporal, `par` is spatial. A NAME that is not ``letters.digits`` is written as a JSON string.
A # begins a comment, up to the end of the line.
``as KERNEL`` shows that a micro-kernel computes the leaf; its contents are not in the text, so `parse_tree` takes them
beside it.

>>> tree = parse_tree("@DRAM par m:4 { @L1 for k:8, m:2 { op C } }")
>>> print_tree(tree)
'@DRAM par m:4 { @L1 for k:8, m:2 { op C } }'
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import NoReturn, TypeVar

from tilewright.dataclass import dataclass
from tilewright.tiles.tree import (
    DEEPEST,
    RETENTION,
    Binding,
    Hint,
    InvalidTree,
    Kind,
    Leaf,
    Loop,
    MicroKernelRef,
    Node,
    Path,
    Scope,
    Stage,
    Tile,
    TileTree,
)

_WORD = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*"
_TOKEN = re.compile(
    rf"""(?P<word>{_WORD}|[0-9][A-Za-z0-9_]*)|(?P<string>"(?:[^"\\\n]|\\.)*")|(?P<sign>[@:?,{{}}\[\]()])"""
)
_BINDINGS = {binding.value: binding for binding in Binding}
_KINDS = {kind.value: kind for kind in Kind}
_BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")  # comments too
_LONGEST_NUMBER = 18  # digits; extents fit i64
_T = TypeVar("_T")


# Printing


def print_tree(tree: Node, *, indented: bool = False, notes: Mapping[Path, str] | None = None) -> str:
    """The text of a tree on one line, or with a line per node, as people read it. `parse_tree` reads both.

    In the latter form, nodes have these `notes` as comments on lines of their own.
    """
    if indented:
        return "\n".join(_lines(tree, None, "", (), notes or {})) + "\n"
    return _print(tree, None)


def comment(text: str) -> str:
    """A text as a comment on one line."""
    return f"# {' '.join(text.split())}"


def _print(node: Node, level: str | None) -> str:
    if isinstance(node, Leaf):
        return _leaf(node)
    if isinstance(node, Scope):
        return f"{node.kind.value}[{', '.join(_print(child, level) for child in node.children)}]"
    if isinstance(node, Stage):
        return f"{_stage(node)} {{ {_print(node.child, level)} }}"
    return f"{_head(node, level)} {{ {_print(node.child, node.level)} }}"


def _lines(node: Node, level: str | None, margin: str, path: Path, notes: Mapping[Path, str]) -> list[str]:
    said = [margin + comment(notes[path])] if path in notes else []
    if isinstance(node, Leaf):
        return [*said, margin + _leaf(node)]
    if isinstance(node, Scope):
        lines = [*said, f"{margin}{node.kind.value}["]
        for number, child in enumerate(node.children):
            inner = _lines(child, level, margin + "  ", (*path, number), notes)
            lines += [*inner[:-1], inner[-1] + ("," if number < len(node.children) - 1 else "")]
        return [*lines, margin + "]"]
    if isinstance(node, Tile) and isinstance(node.child, Leaf):
        return [*said, margin + _print(node, level)]
    head, inside = (_stage(node), level) if isinstance(node, Stage) else (_head(node, level), node.level)
    return [*said, f"{margin}{head} {{", *_lines(node.child, inside, margin + "  ", (*path, 0), notes), margin + "}"]


def _head(tile: Tile, level: str | None) -> str:
    loops = ", ".join(f"{_name(loop.name)}:{'?' if loop.factor is None else loop.factor}" for loop in tile.loops)
    same = tile.binding is Binding.SP and tile.level == level
    retained = [(field, getattr(tile, field)) for field in RETENTION]
    said = "".join(f" {field} {', '.join(map(_name, tensors))}" for field, tensors in retained if tensors)
    return f"{'' if same else f'@{tile.level} '}{tile.binding.value} {loops}{said}{_hints(tile)}"


def _stage(stage: Stage) -> str:
    slots = f" slots {stage.slots}" if stage.slots > 1 else ""
    return f"stage {_name(stage.tensor)} in {stage.level}{slots}"


def _leaf(leaf: Leaf) -> str:
    kernel = f" as {_name(leaf.kernel.name)}" if leaf.kernel is not None else ""
    return f"op {_name(leaf.op)}{kernel}{_hints(leaf)}"


def _hints(node: Tile | Leaf) -> str:
    return f" with {', '.join(map(str, node.hints))}" if node.hints else ""


def _name(name: str) -> str:
    return name if re.fullmatch(_WORD, name) else json.dumps(name)


# Parsing


def parse_tree(text: str, kernels: Mapping[str, MicroKernelRef] | None = None, *, where: str = "<text>") -> TileTree:
    """The tree that a text describes; `kernels` are the micro-kernels it names (`tree.kernels` collects them).

    Raises InvalidTree with line, column and what is legal there.
    """
    return _Parser(text, kernels or {}, where).parse()


@dataclass(frozen=True)
class _Token:
    text: str
    start: int
    kind: str


class _Parser:
    """Recursive descent, one token ahead."""

    def __init__(self, text: str, kernels: Mapping[str, MicroKernelRef], where: str) -> None:
        self.text, self.kernels, self.where = text, kernels, where
        self.depth = 0
        self.token = self._read(0)

    def parse(self) -> TileTree:
        tree = self.tree(None)
        if self.token.kind != "end":
            self.unexpected("the end")
        return tree

    def tree(self, level: str | None) -> TileTree:
        self.depth += 1
        if self.depth > DEEPEST:
            self.fail(self.token, f"the tree is more than {DEEPEST} levels deep")
        if self.token.text in _KINDS:
            found: TileTree = self.scope(level)
        else:
            found = self.stage(level) if self.token.text == "stage" else self.tile(level)
        self.depth -= 1
        return found

    def scope(self, level: str | None) -> Scope:
        kind = _KINDS[self.next().text]
        self.expect("[")
        children = [self.tree(level)]
        while self.expect(",", "]").text == ",":
            children.append(self.tree(level))
        return Scope(kind, tuple(children))

    def stage(self, level: str | None) -> Stage:
        start = self.expect("stage")
        tensor = self.name("the name of a tensor")
        self.expect("in")
        if self.token.kind != "word":
            self.unexpected("a memory level, as L1 or SHARED")
        place = self.next().text
        slots = self.number() if self.accept("slots") else 1
        self.expect("{")
        child = self.tree(level)
        self.expect("}")
        return self.made(start, lambda: Stage(tensor, place, child, slots))

    def tile(self, level: str | None) -> Tile:
        start = self.token
        if self.accept("@"):
            if self.token.kind != "word":
                self.unexpected("a memory level, as DRAM or L2")
            level = self.next().text
        elif self.token.text == "for":
            self.fail(start, "this tile has no level", help="write @LEVEL for; only par may leave it out")
        elif self.token.text != "par":
            self.unexpected("'@', 'par', 'stage', 'seq', 'shar', 'para' or 'pipe'")
        elif level is None:
            self.fail(start, "this par has no tile around it whose level it could have", help="write @LEVEL par")
        binding = _BINDINGS[self.expect("for", "par", "unroll").text]
        loops = [self.loop()]
        while self.accept(","):
            loops.append(self.loop())
        keep, bypass = (self.tensors() if self.accept(field) else () for field in RETENTION)
        hints = self.hints()
        self.expect("{")
        child = self.leaf() if self.token.text == "op" else self.tree(level)
        self.expect("}")
        return self.made(start, lambda: Tile(level, tuple(loops), child, binding, hints, keep, bypass))

    def tensors(self) -> tuple[str, ...]:
        found = [self.name("the name of a tensor")]
        while self.accept(","):
            found.append(self.name("the name of a tensor"))
        return tuple(found)

    def loop(self) -> Loop:
        start = self.token
        name = self.name("the name of a loop")
        factor = None
        if self.accept(":") and not self.accept("?"):
            factor = self.number(", or '?'")
        return self.made(start, lambda: Loop(name, factor))

    def number(self, others: str = "") -> int:
        if not self.token.text.isdigit() or len(self.token.text) > _LONGEST_NUMBER:
            self.unexpected(f"a number of at most {_LONGEST_NUMBER} digits{others}")
        return int(self.next().text)

    def made(self, start: _Token, make: Callable[[], _T]) -> _T:
        """What `make` returns; where that is illegal, the error says where it is written."""
        try:
            return make()
        except InvalidTree as error:
            self.fail(start, error.message, help=error.help)

    def leaf(self) -> Leaf:
        self.expect("op")
        op = self.name("the name of an expression")
        if not self.accept("as"):
            return Leaf(op, None, self.hints())
        start = self.token
        kernel = self.name("the name of a micro-kernel")
        if kernel not in self.kernels:
            known = ", ".join(sorted(self.kernels)) or "none is given"
            self.fail(start, f"there is no micro-kernel {kernel}", help=f"known micro-kernels: {known}")
        return Leaf(op, self.kernels[kernel], self.hints())

    def hints(self) -> tuple[Hint, ...]:
        if not self.accept("with"):
            return ()
        found = [self.hint()]
        while self.accept(","):
            found.append(self.hint())
        return tuple(found)

    def hint(self) -> Hint:
        start = self.token
        name = self.name("the name of a hint")
        arguments: list[str | int] = []
        if self.accept("("):
            arguments.append(self.argument())
            while self.expect(",", ")").text == ",":
                arguments.append(self.argument())
        return self.made(start, lambda: Hint(name, tuple(arguments)))

    def argument(self) -> str | int:
        return self.string() if self.token.kind == "string" else self.number(", or a string")

    def name(self, wanted: str) -> str:
        if self.token.kind == "string":
            if self.token.text == '""':
                self.unexpected(wanted)
            return self.string()
        if self.token.kind != "word" or not re.fullmatch(_WORD, self.token.text):
            self.unexpected(wanted)
        return self.next().text

    def string(self) -> str:
        try:
            text = json.loads(self.token.text)
        except ValueError:
            self.fail(self.token, "this string has an invalid escape", help='JSON strings: \\" \\\\ \\n \\u0041')
        self.next()
        return str(text)

    # Tokens

    def _read(self, place: int) -> _Token:
        blank = _BLANK.match(self.text, place)
        assert blank is not None, "no blanks at all match too"
        place = blank.end()
        if place == len(self.text):
            return _Token("", place, "end")
        match = _TOKEN.match(self.text, place)
        if match is None:
            self.fail(_Token(self.text[place], place, "sign"), "this character starts nothing")
        return _Token(match.group(), place, str(match.lastgroup))

    def next(self) -> _Token:
        token = self.token
        self.token = self._read(token.start + len(token.text))
        return token

    def accept(self, text: str) -> bool:
        found = self.token.kind != "string" and self.token.text == text
        if found:
            self.next()
        return found

    def expect(self, *texts: str) -> _Token:
        if self.token.kind == "string" or self.token.text not in texts:
            self.unexpected(" or ".join(repr(text) for text in texts))
        return self.next()

    def unexpected(self, wanted: str) -> NoReturn:
        found = repr(self.token.text[:40]) if self.token.kind != "end" else "the end of the text"
        self.fail(self.token, f"found {found}, expected {wanted}", help=f"write {wanted} here")

    def fail(self, token: _Token, message: str, *, help: str = "") -> NoReturn:
        line = self.text.count("\n", 0, token.start) + 1
        column = token.start - self.text.rfind("\n", 0, token.start)
        raise InvalidTree(message, where=f"{self.where}:{line}:{column}", help=help) from None
