"""PTX text to a `Module`: directives, declarations, statements and operands; errors name line and column."""

from __future__ import annotations

import operator
import re
import struct
from collections.abc import Callable

from tilewright.emulator.errors import InvalidPtx, Place, refuse
from tilewright.emulator.lexer import Text, Token, tokens
from tilewright.emulator.scalars import WIDTHS
from tilewright.emulator.syntax import (
    Address,
    Block,
    Function,
    Group,
    Instruction,
    Label,
    Module,
    Name,
    Negated,
    Number,
    Operand,
    Pair,
    Registers,
    Statement,
    Targets,
    Variable,
    Vector,
)

_SPACES = ("reg", "shared", "global", "const", "local", "param")
_LINKAGE = (".visible", ".extern", ".weak", ".common")
_LIMITS = {  # of kernels, and how many numbers each may have
    ".maxnreg": 1, ".minnctapersm": 1, ".maxnctapersm": 1, ".maxclusterrank": 1,
    ".maxntid": 3, ".reqntid": 3, ".reqnctapercluster": 3,
}  # fmt: skip
_MOST_ELEMENTS = 1 << 28
_DEEPEST = 64  # nested scopes, calls and brackets of a constant
_BINDING = {  # of operators in constants
    "|": 1, "^": 2, "&": 3, "<<": 4, ">>": 4, "+": 5, "-": 5, "*": 6, "/": 6, "%": 6,
}  # fmt: skip


def parse(text: str) -> Module:
    """The module that PTX text describes; raises InvalidPtx with line and column where it is malformed."""
    return _Parser(Text(text.rstrip("\0"))).module()  # some tools end PTX as C strings


class _Parser:
    def __init__(self, text: Text) -> None:
        self.text = text
        self.tokens = tokens(text)
        self.at = 0
        self.source: tuple[int, int, int] | None = None
        self.functions: dict[str, Function] = {}
        self.variables: dict[str, Variable] = {}
        self.files: dict[int, str] = {}
        self.version = self.target = ""

    # Modules

    def module(self) -> Module:
        while self.peek().kind != "end":
            self._top_level()
        if not self.version:
            raise InvalidPtx("no .version directive", where="PTX:1:1", help="PTX starts with .version and .target")
        lines = tuple(self.text.text.split("\n"))
        return Module(self.version, self.target, self.functions, self.variables, self.files, lines)

    def _top_level(self) -> None:
        token = self.peek()
        simple: dict[str, Callable[[], None]] = {
            ".version": self._version, ".target": self._target, ".address_size": self._address_size,
            ".file": self._file, ".section": self._section, ".loc": self._loc, ".pragma": self._skip_statement,
            ".alias": self._skip_statement,
        }  # fmt: skip
        if token.text in simple:
            self.next()
            simple[token.text]()
            return
        if token.text == ";":
            self.next()
            return
        linkage = []
        while self.peek().text in _LINKAGE:
            linkage.append(self.next().text)
        token = self.peek()
        if token.text in (".entry", ".func"):
            self.next()
            self._function(entry=token.text == ".entry")
        elif token.text in (".global", ".const", ".shared", ".local"):
            self.next()
            for variable in self._variables(token.text[1:], extern=".extern" in linkage):
                if self.variables.get(variable.name, variable).extern is False and variable.name in self.variables:
                    raise refuse(variable.place, f"{variable.name!r} is declared twice")
                self.variables[variable.name] = variable
        else:
            raise self.error(f"unexpected {token.text!r} outside of functions")

    def _version(self) -> None:
        self.version = self.expect("number").text

    def _target(self) -> None:
        token = self.expect("word")
        if not re.fullmatch(r"sm_\d+[af]?", token.text):
            raise refuse(self.place(token), f"unknown target {token.text!r}")
        self.target = token.text
        while self.accept(","):
            self.expect("word")

    def _address_size(self) -> None:
        token = self.expect("number")
        if token.text != "64":
            raise refuse(self.place(token), f"addresses of {token.text} bits are not emulated")

    def _skip_statement(self) -> None:
        while self.next().text != ";":
            if self.peek().kind == "end":
                raise self.error("no ';' at the end of a directive")

    def _file(self) -> None:
        number = self._integer()
        self.files[number] = self.expect("string").text.strip('"')
        while self.accept(","):
            self.expect("number")

    def _section(self) -> None:
        """Debugging information: skipped up to its closing brace."""
        self.next()
        self.expect("{")
        while self.next().text != "}":
            if self.peek().kind == "end":
                raise self.error("a .section without '}'")

    def _loc(self) -> None:
        self.source = (self._integer(), self._integer(), self._integer())
        while self.accept(","):
            word = self.expect("word").text
            if word == "function_name":
                self.expect("word")
                if self.accept("+"):
                    self._integer()
            elif word == "inlined_at":
                for _ in range(3):
                    self._integer()
            else:
                raise self.error(f"unexpected {word!r} in .loc")

    # Functions

    def _function(self, *, entry: bool) -> None:
        results = self._parameters() if self.peek().text == "(" else ()
        name = self.expect("word")
        parameters = self._parameters() if self.peek().text == "(" else ()
        limits: dict[str, tuple[int, ...]] = {}
        while self.peek().kind == "directive":
            directive = self.next().text
            if directive == ".pragma":
                self._skip_statement()
                continue
            numbers = []
            while self.peek().kind == "number":
                numbers.append(self._integer())
                if not self.accept(","):
                    break
            self._check_limit(directive, numbers)
            limits[directive[1:]] = tuple(numbers)
        self.source = None
        body = None if self.accept(";") else self._block(0)
        old = self.functions.get(name.text)
        if old is not None and old.body is not None and body is not None:
            raise refuse(self.place(name), f"{name.text!r} is defined twice")
        if old is None or body is not None:
            self.functions[name.text] = Function(
                name.text, entry, results, parameters, body, self.place(name), limits
            )  # fmt: skip

    def _check_limit(self, directive: str, numbers: list[int]) -> None:
        """How many numbers a limit has; that a cluster has blocks is said at the launch, which may name another."""
        most = _LIMITS.get(directive)
        if most is not None and not 1 <= len(numbers) <= most:
            wanted = "one number" if most == 1 else f"1 to {most} numbers"
            raise self.error(f"{directive} has {wanted}, not {len(numbers)}")
        if most is not None and directive != ".reqnctapercluster" and min(numbers) < 1:
            raise self.error(f"{directive} {min(numbers)}; 1 or more")

    def _parameters(self) -> tuple[Variable | Registers, ...]:
        self.expect("(")
        found: list[Variable | Registers] = []
        while not self.accept(")"):
            directive = self.next()
            if directive.text == ".param":
                found += self._variables("param", closing=True)
            elif directive.text == ".reg":
                found += self._registers(closing=True)
            else:
                raise refuse(self.place(directive), f"expected .param or .reg, not {directive.text!r}")
            if self.peek().text != ")":
                self.expect(",")
        return tuple(found)

    def _block(self, depth: int) -> Block:
        opening = self.expect("{")
        if depth > _DEEPEST:
            raise refuse(self.place(opening), f"more than {_DEEPEST} nested scopes")
        body: list[Statement] = []
        while self.peek().text != "}":
            if self.peek().kind == "end":
                raise refuse(self.place(opening), "a '{' without '}'")
            body += self._statement(depth)
        self.next()
        return Block(tuple(body), self.place(opening))

    def _statement(self, depth: int) -> list[Statement]:
        token = self.peek()
        if token.text == "{":
            return [self._block(depth + 1)]
        if token.text == ";":
            self.next()
            return []
        if token.kind == "directive":
            return self._declaration()
        if token.kind == "word" and self.tokens[self.at + 1].text == ":":
            self.at += 2
            if self.peek().text == ".branchtargets":
                self.next()
                return [Targets(token.text, self._names(), self.place(token))]
            if self.peek().text == ".callprototype":
                self._skip_statement()
                return []
            return [Label(token.text, self.place(token))]
        return [self._instruction()]

    def _declaration(self) -> list[Statement]:
        directive = self.next()
        if directive.text == ".loc":
            self._loc()
            return []
        if directive.text == ".pragma":
            self._skip_statement()
            return []
        extern = directive.text == ".extern"
        if directive.text in _LINKAGE:
            directive = self.next()
        if directive.text == ".reg":
            return list(self._registers())
        if directive.text[1:] in _SPACES:
            return list(self._variables(directive.text[1:], extern=extern))
        raise refuse(self.place(directive), f"unexpected directive {directive.text!r}")

    def _names(self) -> tuple[Name, ...]:
        found = []
        while True:
            token = self.expect("word")
            found.append(Name(token.text, self.place(token)))
            if not self.accept(","):
                self.expect(";")
                return tuple(found)

    # Declarations

    def _registers(self, *, closing: bool = False) -> list[Registers]:
        vector = 1
        if self.peek().text in (".v2", ".v4"):
            vector = int(self.next().text[2:])
        kind = self._type()
        found = []
        while True:
            name = self.expect("word")
            count = None
            if self.accept("<"):
                count = self._integer()
                if count > 1 << 20:
                    raise refuse(self.place(name), f"{count} registers {name.text}", "at most 1048576")
                self.expect(">")
            found.append(Registers(kind, name.text, count, self.place(name), vector))
            if closing:
                return found
            if not self.accept(","):
                self.expect(";")
                return found

    def _variables(self, space: str, *, extern: bool = False, closing: bool = False) -> list[Variable]:
        align, kind, vector, pointee = 0, "", 1, False
        while self.peek().kind == "directive":
            word = self.next().text
            pointee |= word == ".ptr"
            if word == ".align":
                number = self._integer()
                align = align if pointee else number  # after .ptr it is that of what the pointer points at
            elif word in (".v2", ".v4"):
                vector = int(word[2:])
            elif word[1:] in WIDTHS:
                kind = word[1:]
            elif word not in (".ptr", ".global", ".shared", ".const", ".local", ".attribute", ".unified", ".param"):
                raise self.error(f"unexpected {word!r} in the declaration of a variable")
            if word == ".attribute":
                while self.next().text != ")":
                    pass
        if not kind:
            raise self.error("a variable without a type")
        found = []
        while True:
            name = self.expect("word")
            count: int | None = vector
            if self.accept("<"):  # a range of parameters, %p<3>
                raise refuse(self.place(name), "ranges of variables are not supported")
            while self.accept("["):
                if self.accept("]"):
                    count = None
                    continue
                count = (count or 1) * self._integer()
                self.expect("]")
                if count > _MOST_ELEMENTS:
                    raise refuse(self.place(name), f"{count} elements", f"at most {_MOST_ELEMENTS}")
            values = self._initialiser(kind) if self.accept("=") else ()
            if count is None and values:
                count = len(values)
            natural = WIDTHS[kind] // 8 * vector
            if align and align & (align - 1):
                raise refuse(self.place(name), f".align {align} is not a power of two")
            found.append(
                Variable(space, kind, name.text, count, align or max(1, natural), values, self.place(name), extern)
            )
            if closing:
                return found
            if not self.accept(","):
                self.expect(";")
                return found

    def _initialiser(self, kind: str) -> tuple[int | tuple[str, int, bool], ...]:
        found: list[int | tuple[str, int, bool]] = []
        depth = 0
        while True:
            if self.accept("{"):
                depth += 1
                continue
            if self.accept("}"):
                depth -= 1
            elif self.peek().kind == "word":
                word = self.next().text
                generic = word == "generic" and self.accept("(")
                if generic:
                    word = self.expect("word").text
                    self.expect(")")
                offset = self._integer() if self.accept("+") else 0
                found.append((word, offset, generic))
            else:
                number = self._number()
                found.append(_bits_of(number, kind) if number.kind != "int" or kind[0] == "f" else number.value)
            self.accept(",")
            if depth <= 0:
                return tuple(found)
            if self.peek().kind == "end":
                raise self.error("an initialiser without '}'")

    def _type(self) -> str:
        token = self.next()
        if token.kind != "directive" or token.text[1:] not in WIDTHS:
            raise refuse(self.place(token), f"expected a type, not {token.text!r}")
        return token.text[1:]

    # Instructions

    def _instruction(self) -> Instruction:
        guard, negated = None, False
        if self.accept("@"):
            negated = self.accept("!")
            token = self.expect("word")
            guard = Name(token.text, self.place(token))
        opcode = self.expect("word")
        operands = []
        if self.peek().text != ";":
            groups = opcode.text.startswith("call")
            operands.append(self._operand(groups=groups))
            while self.accept(","):
                operands.append(self._operand(groups=groups))
        self.expect(";")
        place = self.place(opcode)._replace(source=self.source)
        return Instruction(opcode.text, tuple(operands), place, guard, negated)

    def _operand(self, *, groups: bool = False) -> Operand:
        token = self.peek()
        place = self.place(token)
        if token.text == "{":
            return self._vector()
        if token.text == "[":
            return self._address()
        if token.text == "(" and groups:
            self.next()
            items: list[Operand] = []
            while not self.accept(")"):
                items.append(self._operand())
                if self.peek().text != ")":
                    self.expect(",")
            return Group(tuple(items), place)
        if token.text == "!":
            self.next()
            name = self.expect("word")
            return Negated(Name(name.text, self.place(name)), place)
        first: Operand
        if token.kind == "word":
            self.next()
            first = Name(token.text, place)
            if self.accept("+"):
                return Address(first, self._integer(), None, place)
        else:
            first = self._number()
        if self.accept("|"):
            return Pair(first, self._operand(), place)
        return first

    def _vector(self) -> Vector:
        opening = self.expect("{")
        items: list[Operand] = []
        while not self.accept("}"):
            if self.peek().text in ("{", "["):
                raise self.error("a vector in a vector")
            items.append(self._operand())
            if self.peek().text != "}":
                self.expect(",")
        return Vector(tuple(items), self.place(opening))

    def _address(self) -> Address:
        opening = self.expect("[")
        token = self.peek()
        base: Name | Number
        if token.kind == "word":
            self.next()
            base = Name(token.text, self.place(token))
        else:
            base = self._number()
        offset, coordinates = 0, None
        while self.peek().text in ("+", "-"):
            sign = -1 if self.next().text == "-" else 1
            offset += sign * self._integer(_BINDING["+"])
        if self.accept(","):
            coordinates = self._vector()
            if self.accept(","):
                raise self.error("im2col offsets are not supported")
        self.expect("]")
        return Address(base, offset, coordinates, self.place(opening))

    def _number(self, binding: int = 0, depth: int = 0) -> Number:
        """A constant, or constants and operators that bind closer than `binding`."""
        found = self._single_number(depth)
        while (mark := self.peek().text) in _BINDING and _BINDING[mark] > binding:
            self.next()
            right = self._number(_BINDING[mark], depth)
            if (found.kind, right.kind) != ("int", "int"):
                raise refuse(found.place, f"{mark!r} between constants that are no integers")
            if (mark in ("<<", ">>") and not 0 <= right.value < 64) or (mark in ("/", "%") and right.value == 0):
                raise refuse(right.place, f"{right.value} on the right of {mark!r}")
            value = _CALCULATE[mark](found.value, right.value)
            found = Number(value if -1 << 63 <= value < 1 << 64 else value & ((1 << 64) - 1), "int", found.place)
        return found

    def _single_number(self, depth: int) -> Number:
        token = self.peek()
        place = self.place(token)
        if depth > _DEEPEST:
            raise refuse(place, f"a constant of more than {_DEEPEST} levels")
        if token.text in ("-", "~", "+"):
            self.next()
            inner = self._single_number(depth + 1)
            if inner.kind != "int":
                sign = 1 << (31 if inner.kind == "f32" else 63)
                return Number(inner.value ^ sign if token.text == "-" else inner.value, inner.kind, place)
            return Number({"-": -inner.value, "~": ~inner.value, "+": inner.value}[token.text], "int", place)
        if token.text == "(":
            self.next()
            inner = self._number(0, depth + 1)
            self.expect(")")
            return inner
        text = self.expect("number").text
        if text[:2] in ("0f", "0F"):
            return Number(int(text[2:], 16), "f32", place)
        if text[:2] in ("0d", "0D"):
            return Number(int(text[2:], 16), "f64", place)
        if text[:2].lower() not in ("0x", "0b") and any(mark in text for mark in ".eE"):
            try:
                bits = struct.unpack("<Q", struct.pack("<d", float(text)))[0]
            except OverflowError:
                raise refuse(place, f"the constant {text} is too large") from None
            return Number(bits, "f64", place)
        text = text.rstrip("U") if text[:2].lower() != "0x" else text.removesuffix("U")
        if len(text) > 80:
            raise refuse(place, "the constant has more than 64 bits")
        octal = len(text) > 1 and text[0] == "0" and text.isdigit()
        try:
            value = int(text, 8 if octal else 0)
        except ValueError:
            raise refuse(place, f"{text!r} is no number") from None
        if value >= 1 << 64:
            raise refuse(place, f"the constant {text} has more than 64 bits")
        return Number(value, "int", place)

    def _integer(self, binding: int = 0) -> int:
        number = self._number(binding)
        if number.kind != "int":
            raise refuse(number.place, "expected an integer")
        return number.value

    # Tokens

    def peek(self) -> Token:
        return self.tokens[self.at]

    def next(self) -> Token:
        token = self.tokens[self.at]
        if token.kind != "end":
            self.at += 1
        return token

    def accept(self, text: str) -> bool:
        if self.tokens[self.at].text != text:
            return False
        self.at += 1
        return True

    def expect(self, what: str) -> Token:
        token = self.tokens[self.at]
        if what not in (token.kind, token.text):
            kinds = {"word": "a name", "number": "a number", "string": "a text"}
            raise self.error(f"expected {kinds.get(what, repr(what))}, not {token.text!r}")
        return self.next()

    def place(self, token: Token) -> Place:
        return self.text.place(token.offset)

    def error(self, message: str) -> InvalidPtx:
        return refuse(self.place(self.peek()), message)


_CALCULATE: dict[str, Callable[[int, int], int]] = {
    "|": operator.or_, "^": operator.xor, "&": operator.and_, "<<": operator.lshift, ">>": operator.rshift,
    "+": operator.add, "-": operator.sub, "*": operator.mul,
    "/": lambda left, right: abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1),
    "%": lambda left, right: left % 2**64 % (right % 2**64),  # unsigned in 64 bits, as ptxas 13.0 computes it
}  # fmt: skip


def _bits_of(number: Number, kind: str) -> int:
    """An initial value as the bits of its type; floating constants are converted."""
    if number.kind == "int":
        value = float(number.value)
    elif number.kind == kind:
        return number.value
    else:
        form, raw = ("<f", struct.pack("<I", number.value)) if number.kind == "f32" else (
            "<d", struct.pack("<Q", number.value))  # fmt: skip
        value = struct.unpack(form, raw)[0]
    if kind in ("f32", "f64"):
        forms = {"f32": ("<f", "<I"), "f64": ("<d", "<Q")}[kind]
        try:
            found: int = struct.unpack(forms[1], struct.pack(forms[0], value))[0]
        except OverflowError:
            raise refuse(number.place, f"{value} does not fit {kind}") from None
        return found
    return number.value
