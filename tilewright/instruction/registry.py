"""All records, in order of preference: the first whose dtypes fit and whose features the machine has is used."""

from tilewright.instruction import portable
from tilewright.instruction.multiply import Multiply
from tilewright.instruction.x86 import dot_products

RECORDS: tuple[Multiply, ...] = (*dot_products.RECORDS, *portable.RECORDS)
