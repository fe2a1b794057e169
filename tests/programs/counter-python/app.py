"""A sink in Python, straight from the WIT: it reads every value it is granted, and counts.

Holds: the six calls of a sink, on nothing but what componentize-py makes of `wit/v0.1`. Refuses to know commit order,
because counts need none. Read next: `wit/v0.1/change.wit`, which says what every type becomes.

    componentize-py -d ../../../wit/v0.1 -w sink-plugin componentize app -o counter-python.wasm
"""

import struct
from collections.abc import Iterable, Iterator
from itertools import repeat

from componentize_py_types import Err
from wit_world import exports
from wit_world.exports.sink import Context, Description, TableRequest, Verdict
from wit_world.imports import metrics, output, settings, state
from wit_world.imports.change import (
    Batch,
    Column,
    Position,
    Relation,
    Values,
    Values_Boolean,
    Values_Bytes,
    Values_Float32,
    Values_Text,
    Values_Uuid,
)
from wit_world.imports.outcome import Disposition, Failure, Receipt

# The code of `presence` for a slot that holds a value. The others are NULL, unchanged and not sent.
VALUE = 0


class Sink(exports.Sink):
    """One object for the life of the instance."""

    def describe(self) -> Description:
        everything = TableRequest("*", "*", columns=["*"], optional_columns=[], operations=[])
        return Description("counter-python", "0.0.0", [everything], ["metrics", "state"], settings_schema="")

    def open(self, context: Context) -> Position | None:
        if settings.get("overreach"):
            overreach()
        return None  # the host keeps the position

    def relation_changed(self, current: Relation, previous: Relation | None) -> Verdict:
        return Verdict.ACCEPT

    def deliver(self, batch: Batch) -> Receipt:
        rows = values = fingerprint = 0
        for group in batch.groups:
            rows += len(group.ordinals)
            for column in group.after + group.before:
                for bits in weights(column):
                    values += 1
                    fingerprint += bits
        try:
            add("rows", rows)
            add("fingerprint", fingerprint)
        except Err as error:
            # A denial is an answer like any other: what can be counted without a state is counted.
            if error.value.code != "not-granted":
                disposition = Disposition.RETRY if error.value.retryable else Disposition.HALT
                raise Err(Failure(disposition, error.value.code, "the state was not kept", None))
            metrics.count("state_get_denied", 1)
        metrics.count("rows", rows)
        metrics.count("values", values)
        return Receipt(durable=True, rejected=[])

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def add(key: str, more: int) -> None:
    """Adds to a number in the state, which wraps at 64 bits. What a failed delivery has set, the host drops."""
    known = int(state.get(key) or b"0")
    state.set(key, str((known + more) % 2**64).encode())


def overreach() -> None:
    """Calls what no grant allows: every import is there to be called, and an ungranted one answers its fault."""
    try:
        output.append("changes", b"a line")
        metrics.count("output_allowed", 1)
    except Err as error:
        metrics.count("output_denied" if error.value.code == "not-granted" else "output_failed", 1)


def weights(column: Column) -> Iterator[int]:
    """One number for each value of a column: integers as they are, floats by their bits, all else byte by byte."""
    single = isinstance(column.values, Values_Float32)
    for value, code in zip(read(column.values), column.presence or repeat(VALUE)):
        if code == VALUE:
            yield weight(value, single)


def weight(value: bool | int | float | bytes | str, single: bool) -> int:
    match value:
        case float():
            return int.from_bytes(struct.pack("<f" if single else "<d", value), "little")
        case bytes():
            return sum(value)
        case str():
            return sum(value.encode())
        case _:
            return int(value)


def read(values: Values) -> Iterable[bool | int | float | bytes | str]:
    """The slots of a column, one a row, as Python has them. Dates and times are numbers, counted from 2000-01-01."""
    match values:
        case Values_Boolean(flags):
            return map(bool, flags)
        case Values_Uuid(data):
            return cut(data, range(16, len(data) + 1, 16))
        case Values_Bytes(parts):
            return cut(parts.data, parts.ends)
        case Values_Text(parts):
            # `ends` counts bytes, and a Python string counts characters: cut first, then decode.
            return (text.decode() for text in cut(parts.data.encode(), parts.ends))
        case _:
            return values.value


def cut(data: bytes, ends: Iterable[int]) -> Iterator[bytes]:
    """The pieces of `data` that end at `ends`."""
    start = 0
    for end in ends:
        yield data[start:end]
        start = end
