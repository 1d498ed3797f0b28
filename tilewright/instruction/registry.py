"""All records, in order of preference: the first whose dtypes fit and whose features the machine has is used."""

from tilewright.instruction import portable
from tilewright.instruction.intrinsic import Intrinsic
from tilewright.instruction.x86 import dot_products

RECORDS: tuple[Intrinsic, ...] = (*dot_products.RECORDS, *portable.RECORDS)
