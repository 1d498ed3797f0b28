"""PTX text to tokens with places; comments disappear, everything else is kept in order."""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import NamedTuple

from tilewright.emulator.errors import Place, refuse


class Token(NamedTuple):
    """One token: its kind (`word`, `directive`, `number`, `string`, `mark`, `end`), its text and where it starts."""

    kind: str
    text: str
    offset: int


_TOKEN = re.compile(
    r"""
    (?P<skip>\s+|//[^\n]*|/\*.*?\*/|\#[^\n]*)
  | (?P<number>0[fF][0-9a-fA-F]{8}(?![\w.])|0[dD][0-9a-fA-F]{16}(?![\w.])|0[xX][0-9a-fA-F]+U?(?!\w)|0[bB][01]+U?(?!\w)
      |\d+\.\d*(?:[eE][+-]?\d+)?(?!\w)|\d+[eE][+-]?\d+(?!\w)|\d+U?(?!\w))
  | (?P<word>[%$_A-Za-z][\w$]*(?:(?:\.|::)\w[\w$]*)*)
  | (?P<directive>\.[A-Za-z_]\w*(?:::\w+)*)
  | (?P<string>"[^"\n]*")
  | (?P<mark><<|>>|[-+*~!@|,;:(){}\[\]<>=?&^/%])
    """,
    re.VERBOSE | re.DOTALL,
)


class Text:
    """The text that tokens come from; turns offsets into lines and columns."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts = [0, *(found.end() for found in re.finditer("\n", text))]

    def place(self, offset: int) -> Place:
        line = bisect_right(self._starts, offset)
        return Place(line, offset - self._starts[line - 1] + 1)


def tokens(text: Text) -> list[Token]:
    """All tokens, then one of kind `end`; raises InvalidPtx at a character that starts none."""
    found: list[Token] = []
    at = 0
    while at < len(text.text):
        match = _TOKEN.match(text.text, at)
        if match is None:
            raise refuse(text.place(at), f"unexpected character {text.text[at]!r}")
        kind = match.lastgroup
        assert kind is not None, "one of the alternatives matched"
        if kind != "skip":
            found.append(Token(kind, match.group(), at))
        at = match.end()
    found.append(Token("end", "end of text", len(text.text)))
    return found
