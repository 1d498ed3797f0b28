"""Text form of tile programs: read, verify, print. `print(parse(print(m))) == print(m)` for every valid program."""

from __future__ import annotations

import re
from io import StringIO

from xdsl.context import Context
from xdsl.dialects import arith, builtin, math, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import ParseError, VerifyException

from tilewright.errors import InvalidProgram
from tilewright.kernel.dialect import Tile
from tilewright.kernel.verify import verify

HELP = "the text form is that of `print_module`; `tilewright compile --emit tile` shows examples"


def context() -> Context:
    """A context that knows the operations of a tile program and no others."""
    result = Context()
    for dialect in (builtin.Builtin, arith.Arith, math.Math, scf.Scf, Tile):
        result.load_dialect(dialect)
    return result


def parse_module(text: str, name: str = "<string>") -> ModuleOp:
    """Read and verify a program. InvalidProgram says at which line and column of file `name` it is wrong, and why."""
    parser: _Parser | None = None
    try:
        parser = _Parser(context(), text, name)
        module = parser.parse_module()
    except ParseError as error:
        place = str(error.span.get_location())
        raise InvalidProgram(error.msg, where=place, help=HELP) from None
    except (VerifyException, ValueError, TypeError, IndexError, KeyError, OverflowError, AttributeError) as error:
        # xDSL reports some malformed attributes and operand lists with these, at the token that it had reached.
        place = parser.place() if parser is not None else f"{name}:1:1"
        raise InvalidProgram(_first_line(error), where=place, help=HELP) from None
    except RecursionError:
        raise InvalidProgram("regions or attributes are nested too deeply", where=f"{name}:1:1", help=HELP) from None
    verify(module, lambda op: parser.place_of(op))
    return module


def print_module(module: ModuleOp, locations: bool = False) -> str:
    """The text of a program, ending in a newline; with `locations`, each operation names its source line."""
    stream = StringIO()
    _Printer(stream=stream, print_debuginfo=locations).print_op(module)
    return stream.getvalue() + "\n"


class _Parser(Parser):
    """Remembers where each operation began."""

    def __init__(self, ctx: Context, text: str, name: str) -> None:
        self.starts: dict[Operation, int] = {}
        super().__init__(ctx, text, name)

    def parse_operation(self) -> Operation:
        start = self._current_token.span.start
        op = super().parse_operation()
        self.starts[op] = start
        return op

    def place_of(self, op: Operation) -> str:
        return self._place(self.starts.get(op, 0))

    def place(self) -> str:
        return self._place(self._current_token.span.start)

    def _place(self, start: int) -> str:
        source = self._parser_state.lexer.input
        line_start = source.content.rfind("\n", 0, start) + 1
        return f"{source.name}:{source.content.count(chr(10), 0, start) + 1}:{start - line_start + 1}"


class _Printer(Printer):
    """Gives every value a name that parses back to the same hint, also where hints end in numbers."""

    def print_ssa_value(self, value: SSAValue) -> str:
        if value not in self._ssa_values and value.name_hint:
            value.name_hint = re.sub(r"(_\d+)+$", "", value.name_hint) or None
        return super().print_ssa_value(value)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
