"""Size of the table of a .parquet file, parsed from its footer.

pyarrow's metadata of a column can abort the process for a damaged file, because its C++ exceptions do not reach Python.
The footer is Thrift's compact protocol: numbers of seven bits a byte, and fields by their difference in number.
"""

from __future__ import annotations

from typing import Any, NamedTuple

ROW_GROUPS, COLUMNS, META, NUM_ROWS, NUM_VALUES, WRITTEN = 4, 1, 3, 3, 5, 6  # numbers of fields in parquet.thrift


class Size(NamedTuple):
    values: int  # of all columns
    written: int  # bytes before compression


def table_size(footer: bytes) -> Size:
    """The sums over all columns of all groups of rows."""
    values = written = 0
    for group in _Compact(footer).struct().get(ROW_GROUPS, []):
        for column in group[COLUMNS]:
            facts = column[META]
            values += max(facts[NUM_VALUES], group[NUM_ROWS])
            written += facts[WRITTEN]
    return Size(values, written)


class _Compact:
    """A reader of structs, as dicts from the number of a field to its value."""

    def __init__(self, content: bytes) -> None:
        self.content, self.position = content, 0

    def byte(self) -> int:
        self.position += 1
        return self.content[self.position - 1]

    def skip(self, count: int) -> None:
        self.position += count

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def number(self) -> int:
        """A signed number of variable length, whose last bit is the sign."""
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def struct(self) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        field = 0
        while head := self.byte():
            field = field + (head >> 4) if head >> 4 else self.number()
            fields[field] = self.value(head & 0xF)
        return fields

    def value(self, kind: int) -> Any:
        if kind in (1, 2):
            return kind == 1
        if kind in (4, 5, 6):
            return self.number()
        if kind in (9, 10):
            return self.list()
        if kind == 12:
            return self.struct()
        if kind == 8:
            self.skip(self.varint())
        elif kind in (3, 7):
            self.skip(1 if kind == 3 else 8)
        else:
            raise ValueError("no field of parquet is of this kind")
        return None

    def list(self) -> list[Any]:
        head = self.byte()
        count = head >> 4 if head >> 4 < 15 else self.varint()
        if count > len(self.content):
            raise ValueError("a list is longer than the footer")
        return [self.value(head & 0xF) if head & 0xF > 2 else self.byte() == 1 for _ in range(count)]
