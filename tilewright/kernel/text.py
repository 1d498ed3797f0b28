"""Text form of tile programs: read, verify, print. `print(parse(print(m))) == print(m)` for every valid program."""

from __future__ import annotations

import re
from math import prod
from typing import Any

from xdsl.context import Context
from xdsl.dialects import arith, builtin, math, scf
from xdsl.dialects.builtin import AnyFloat, DenseIntOrFPElementsAttr, ModuleOp
from xdsl.ir import AttributeInvT, Operation, SSAValue, TypeAttribute
from xdsl.parser import AttrParser, Parser, UnresolvedOperand
from xdsl.parser.generic_parser import ParserState
from xdsl.utils.exceptions import ParseError, VerifyException
from xdsl.utils.lexer import Input
from xdsl.utils.mlir_lexer import MLIRLexer, MLIRTokenKind

from tilewright.errors import InvalidProgram
from tilewright.kernel.printing import print_module as print_module
from tilewright.kernel.simt_dialect import Simt
from tilewright.kernel.tile_dialect import Tile
from tilewright.kernel.verify import verify

MAX_WIDTH = 64
MAX_CONSTANT_ELEMENTS = 1 << 20
HELP = "the text form is that of `print_module`; `tilewright compile --emit tile` shows examples"


def context() -> Context:
    """A context that knows the operations of a tile program and no others."""
    result = Context()
    for dialect in (builtin.Builtin, arith.Arith, math.Math, scf.Scf, Tile, Simt):
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
        if parser is not None and parser.at_end and parser.forward_ssa_references:
            undefined, place = parser.undefined()
            raise InvalidProgram(f"value %{undefined} is used but not defined", where=place, help=HELP) from None
        raise InvalidProgram(error.msg, where=place, help=HELP) from None
    except (VerifyException, ValueError, TypeError, IndexError, KeyError, OverflowError, AttributeError) as error:
        # xDSL reports some malformed attributes and operand lists with these, at the token that it had reached.
        place = parser.place() if parser is not None else f"{name}:1:1"
        raise InvalidProgram(_first_line(error), where=place, help=HELP) from None
    except RecursionError:
        raise InvalidProgram("regions or attributes are nested too deeply", where=f"{name}:1:1", help=HELP) from None
    verify(module, lambda op: parser.place_of(op))
    return module


class _Lexer(MLIRLexer):
    # That of xDSL 0.74 takes exponential time for a string that is not closed.
    _unescaped_characters_regex = re.compile(r'"(?:[^"\\\n\v\f]|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*"')


class _Parser(Parser):
    """Remembers where operations began, reads constants exactly, and refuses what would not fit in memory."""

    def __init__(self, ctx: Context, text: str, name: str) -> None:
        self.starts: dict[Operation, int] = {}
        self.first_uses: dict[str, int] = {}
        self.start = 0
        super().__init__(ctx, "", name)
        self._parser_state = ParserState(_Lexer(Input(text, name)))

    @property
    def at_end(self) -> bool:
        return self._current_token.kind == MLIRTokenKind.EOF

    def undefined(self) -> tuple[str, str]:
        """Name and place of the first value that is used and never defined."""
        name = min(self.forward_ssa_references, key=lambda name: self.first_uses[name])
        return name, self._place(self.first_uses[name])

    def resolve_operand(self, operand: UnresolvedOperand, type: AttributeInvT) -> SSAValue[AttributeInvT]:
        self.first_uses.setdefault(operand.operand_name, operand.span.start)
        return super().resolve_operand(operand, type)

    def _get_op_by_name(self, name: str) -> type[Operation]:
        if self.ctx.get_optional_op(name) is None:
            self.raise_error(f"{name} is not an operation of tile programs", self.start, self.start + 1)
        return super()._get_op_by_name(name)

    def parse_operation(self) -> Operation:
        start = self.start = self._current_token.span.start
        op = super().parse_operation()
        self.starts[op] = start
        return op

    def _parse_optional_integer_or_float_type(self) -> TypeAttribute | None:
        found = re.fullmatch(r"[su]?i([0-9]+)", self._current_token.text)
        if found and (len(found[1]) > 3 or int(found[1]) > MAX_WIDTH):
            self.raise_error(f"integers have at most {MAX_WIDTH} bits")
        return super()._parse_optional_integer_or_float_type()

    def _parse_dense_literal_type(self) -> Any:
        type_ = super()._parse_dense_literal_type()
        if prod(type_.get_shape()) > MAX_CONSTANT_ELEMENTS:
            self.raise_error(f"constants in the text have at most {MAX_CONSTANT_ELEMENTS} elements; use tile.buffer")
        return type_

    def parse_dense_int_or_fp_elements_attr(self, type: Any) -> DenseIntOrFPElementsAttr[Any]:
        """Hexadecimal elements of float tensors are bit patterns, as they are for float scalars."""
        self.elements: list[_Element] = []
        attribute = super().parse_dense_int_or_fp_elements_attr(type)
        float_type = attribute.get_element_type()
        if isinstance(float_type, AnyFloat) and any(element.is_hexadecimal for element in self.elements):
            values = [element.to_bits(self, float_type) for element in self.elements]
            return DenseIntOrFPElementsAttr.from_list(attribute.type, values)
        return attribute

    def _parse_tensor_literal_element(self) -> AttrParser._TensorLiteralElement:
        plain = super()._parse_tensor_literal_element()
        element = _Element(plain.is_negative, plain.value, plain.span)
        self.elements.append(element)
        return element

    def place_of(self, op: Operation) -> str:
        return self._place(self.starts.get(op, 0))

    def place(self) -> str:
        return self._place(self._current_token.span.start)

    def _place(self, start: int) -> str:
        source = self._parser_state.lexer.input
        line_start = source.content.rfind("\n", 0, start) + 1
        return f"{source.name}:{source.content.count(chr(10), 0, start) + 1}:{start - line_start + 1}"


class _Element(AttrParser._TensorLiteralElement):
    @property
    def is_hexadecimal(self) -> bool:
        return self.span.text.lower().startswith("0x")

    def to_float(self, parser: AttrParser) -> float:
        return 0.0 if self.is_hexadecimal else super().to_float(parser)

    def to_bits(self, parser: AttrParser, type_: AnyFloat) -> float:
        """The value of the element, whose hexadecimal digits are the bits of a float of `type_`."""
        if not self.is_hexadecimal:
            return super().to_float(parser)
        size = type_.compile_time_size
        assert isinstance(self.value, int)
        if self.value >= 1 << 8 * size:
            parser.raise_error(f"more digits than {type_} has bits", self.span.start, self.span.end)
        return float(type_.unpack(self.value.to_bytes(size, "little"), 1)[0])


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
