"""Tokens of the text form, and a cursor over them that reports errors with line and column."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from tilewright.dataclass import dataclass
from tilewright.errors import CompileError, InvalidExpression
from tilewright.expr import dtypes
from tilewright.expr.text.grammar import KEYWORDS, NAME

_TOKEN = re.compile(
    rf"""(?P<blank>[ \t\r]+|\#[^\n]*)|(?P<newline>\n)
    |(?P<number>(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|(?:inf|nan)(?![A-Za-z0-9.]|_(?!(?:{"|".join(dtypes.DTYPES)})\b)))
       (?:_(?:{"|".join(dtypes.DTYPES)})\b)?)
    |(?P<name>{NAME})|(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<symbol>\+=|\*=|//|<<|>>|<=|>=|==|!=|[-+*/%<>=~&|^?:,()\[\]])""",
    re.VERBOSE,
)
_LONGEST_NUMBER = 40  # characters


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    start: int


class Cursor:
    """Reads the tokens of `text` one after the other."""

    def __init__(self, text: str, where: str) -> None:
        self.text, self.where = text, where
        self.tokens = self._lex()
        self.place = 0

    def _lex(self) -> list[Token]:
        tokens: list[Token] = []
        place = 0
        while place < len(self.text):
            match = _TOKEN.match(self.text, place)
            if match is None:
                self.fail(Token("symbol", self.text[place], place), "this character starts nothing")
            kind = match.lastgroup
            assert kind is not None, "every branch of the token pattern is named"
            if kind == "number" and len(match.group()) > _LONGEST_NUMBER:
                self.fail(Token(kind, match.group(), place), "this number is too long")
            if kind != "blank":
                tokens.append(Token(kind, match.group(), place))
            place = match.end()
        return [*tokens, Token("newline", "", len(self.text))]

    def fail(
        self, token: Token, message: str, *, help: str = "", kind: type[CompileError] = InvalidExpression
    ) -> NoReturn:
        line = self.text.count("\n", 0, token.start) + 1
        begin = self.text.rfind("\n", 0, token.start) + 1
        end = self.text.find("\n", begin)
        shown = self.text[begin : end if end >= 0 else len(self.text)].rstrip("\r")
        column = token.start - begin + 1
        gutter = " " * len(str(line))
        raise kind(
            f"{message}\n  {line} | {shown}\n  {gutter} | {' ' * (column - 1)}{'^' * max(1, len(token.text.strip()))}",
            where=f"{self.where}:{line}:{column}",
            help=help,
        )

    @property
    def last(self) -> Token:
        return self.tokens[-1]

    def peek(self, ahead: int = 0) -> Token:
        return self.tokens[min(self.place + ahead, len(self.tokens) - 1)]

    def next(self) -> Token:
        token = self.peek()
        self.place += 1
        return token

    def accept(self, *texts: str) -> Token | None:
        token = self.peek()
        if token.kind in ("symbol", "name") and token.text in texts:
            return self.next()
        return None

    def expect(self, *texts: str) -> Token:
        token = self.accept(*texts)
        if token is None:
            self.unexpected(" or ".join(repr(text) for text in texts))
        return token

    def unexpected(self, wanted: str) -> NoReturn:
        token = self.peek()
        found = repr(token.text) if token.text.strip() else "the end of the line"
        self.fail(token, f"found {found}, expected {wanted}", help=f"write {wanted} here")

    def identifier(self, wanted: str) -> tuple[Token, str]:
        token = self.peek()
        if token.kind == "string":
            try:
                name = json.loads(token.text)
            except ValueError:
                self.fail(token, "this string has an invalid escape", help='JSON strings: \\" \\\\ \\n \\u0041')
            self.next()
            return token, str(name)
        if token.kind != "name" or token.text in KEYWORDS:
            self.unexpected(wanted)
        return self.next(), token.text

    def integer(self, wanted: str) -> tuple[Token, int]:
        token = self.peek()
        if token.kind != "number" or not token.text.isdigit() or int(token.text) > 1 << 62:
            self.unexpected(f"{wanted}, an integer of at most 2**62")
        return self.next(), int(token.text)

    @contextmanager
    def at(self, token: Token) -> Iterator[None]:
        """Errors raised inside that name no place yet get the place of `token`."""
        try:
            yield
        except CompileError as error:
            if error.where:
                raise
            self.fail(token, error.message, help=error.help, kind=type(error))
