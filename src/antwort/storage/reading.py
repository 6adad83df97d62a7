"""Reading responses, inside a transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain as chained
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple

from antwort.api.events import Span
from antwort.api.items import InputItem, OutputItem
from antwort.api.responses import Response
from antwort.api.wire import replace
from antwort.db import Connection, Cursor
from antwort.identity import Identity
from antwort.storage import statements as sql
from antwort.storage.base import (
    DECLARED_BYTES,
    ITEM_BYTES,
    Bound,
    Excess,
    ItemPage,
    Link,
    Page,
    first_within,
    newest_within,
)
from antwort.storage.conversation_statements import NEWEST as NEWEST_ENTRIES
from antwort.storage.rows import Values, to_item, to_output, to_response, to_shown, to_span, without_input
from antwort.storage.rules import cycle, in_pieces, select

PIECE_BYTES = 2**22
"""What is read in one operation, about: who waits for the reader behind it does not wait for all of a large history."""
_IDS_AT_ONCE = 500
_KEYS_AT_ONCE = 1024
_SMALL_REQUEST = 2**16
"""Bytes up to which a request is left as it is: to leave out its input costs more than that takes."""


def get(connection: Connection, values: Values) -> Response | None:
    row = connection.execute(sql.BODY, values).fetchone()
    if row is None:
        return None
    key, body = row
    return to_response(body, [raw for (raw,) in connection.execute(sql.OUTPUT, (key,))])


# ---- chains ----


class Chain(NamedTuple):
    """A chain, as far as the first operation reads it."""

    links: tuple[Link, ...] = ()
    """Where the rest is read in pieces, those before it that only declare tools."""
    pieces: Sequence[Sequence[int]] = ()
    """The keys of its links, where they are too large to be read at once: in pieces, each for an operation."""
    excess: Excess | None = None


def chain(connection: Connection, values: Values, bound: Bound | None) -> Chain:
    """A small one is read at once, whatever the number of its links and threads."""
    rows = sorted(connection.execute(sql.CHAIN_SIZES, values | {"item_bytes": ITEM_BYTES}), key=itemgetter(0))
    if rows and rows[0][2] is not None:  # only a chain that comes back to itself has no beginning
        raise cycle()
    keys, sizes = [row[1] for row in rows], [row[3] for row in rows]
    left_out: list[int] = []
    if bound is not None and sum(sizes) > bound.most:
        compacted = {key for (key,) in _of_keys(connection, sql.COMPACTED, keys)}
        first = first_within([(size, key in compacted) for key, size in zip(keys, sizes, strict=True)], bound)
        if isinstance(first, Excess):  # raised by who waits: it is no fault of the transaction
            return Chain(excess=first)
        left_out, keys, sizes = keys[:first], keys[first:], sizes[first:]
    declaring = _declaring(connection, left_out) if bound is not None and bound.cut == "oldest" else ()
    pieces = [[keys[place] for place in places] for places in in_pieces(sizes, PIECE_BYTES)]
    return Chain(declaring, pieces) if len(pieces) > 1 else Chain((*declaring, *links(connection, keys)))


def _declaring(connection: Connection, keys: Sequence[int]) -> tuple[Link, ...]:
    """Of these responses, those that declare tools in items, with nothing but those items."""
    sizes = dict(_of_keys(connection, sql.DECLARED_SIZES, keys))
    found = [key for key in keys if key in sizes]
    newest = found[newest_within([sizes[key] for key in found], DECLARED_BYTES) :]
    links = _links(connection, newest, sql.LINK_DECLARED, 0)
    return tuple(replace(link, turn_ends=(), abandoned=()) for link in links)


def links(connection: Connection, keys: Sequence[int]) -> tuple[Link, ...]:
    """Those of them that are there, in this order. Of a large request, what its input says is left out."""
    return _links(connection, keys, sql.LINK_ITEMS, _SMALL_REQUEST)


def link(connection: Connection, values: Values, *, with_input: bool) -> Link | None:
    row = connection.execute(sql.BODY, values).fetchone()
    if row is None:
        return None
    found = _links(connection, row[:1], *((sql.LINK_ITEMS, None) if with_input else (sql.LINK_OUTPUT, 0)))
    return found[0]


def _links(connection: Connection, keys: Sequence[int], items: str, largest: int | None) -> tuple[Link, ...]:
    """Rows become values one by one, so that no more than one is held twice."""
    inputs: defaultdict[int, list[InputItem]] = defaultdict(list)
    outputs: defaultdict[int, list[OutputItem]] = defaultdict(list)
    for key, direction, item_id, raw in _of_keys(connection, items, keys):
        if direction == "output":
            outputs[key].append(to_output(raw))
        else:
            inputs[key].append(to_item(item_id, direction, raw))
    ends: defaultdict[int, list[int]] = defaultdict(list)
    abandoned: defaultdict[int, list[Span]] = defaultdict(list)
    for key, kind, mark, end in _of_keys(connection, sql.LINK_TURNS, keys):
        if kind == "turn":
            ends[key].append(end)
        else:
            abandoned[key].append(to_span(mark, end))
    found: dict[int, Link] = {}
    for key, request, body in _of_keys(connection, sql.LINKS, keys):
        found[key] = Link(
            response=replace(to_response(body), output=tuple(outputs[key])),
            request=request if largest is None or len(request) <= largest else without_input(request),
            input=tuple(inputs[key]),
            turn_ends=tuple(ends[key]),
            abandoned=tuple(abandoned[key]),
        )
    return tuple(found[key] for key in keys if key in found)


def _of_keys(connection: Connection, statement: str, keys: Sequence[int]) -> Iterator[tuple[Any, ...]]:
    """What is found under the keys, each row when it is asked for."""
    if len(keys) <= _KEYS_AT_ONCE:
        return iter(_of_some(connection, statement, keys)) if keys else iter(())
    parts = (keys[start : start + _KEYS_AT_ONCE] for start in range(0, len(keys), _KEYS_AT_ONCE))
    return chained.from_iterable(_of_some(connection, statement, part) for part in parts)


def _of_some(connection: Connection, statement: str, keys: Sequence[int]) -> Cursor:
    """The last key is named more than once, so that there are few statements, and they stay prepared."""
    count = 1 << (len(keys) - 1).bit_length()
    return connection.execute(statement.format(", ".join("?" * count)), [*keys, *repeat(keys[-1], count - len(keys))])


# ---- items ----


def input_items(connection: Connection, values: Values, page: Page) -> ItemPage | None:
    row = connection.execute(sql.BODY, values).fetchone()
    if row is None:
        return None
    key, _ = row
    places, has_more = select([item_id for (item_id,) in connection.execute(sql.INPUT_IDS, (key,))], page)
    if not places:
        return ItemPage(items=(), has_more=has_more)
    low, high = sorted((places[0], places[-1]))
    items = [to_shown(*found) for found in connection.execute(sql.INPUT_SPAN, (key, low, high))]
    return ItemPage(items=tuple(items[place - low] for place in places), has_more=has_more)


def items(
    connection: Connection, identity: Identity, ids: Sequence[str], bound: Bound | None
) -> dict[str, InputItem] | Excess:
    """Those that are beyond the bound are not read."""
    if bound is not None:
        size = sum(size for _, size in _newest(connection, identity, ids, f"id, length(raw) + {ITEM_BYTES}"))
        if size > bound.most:
            return Excess(size, size)
    return {row[0]: to_item(*row) for row in _newest(connection, identity, ids, "id, direction, raw")}


def _newest(connection: Connection, identity: Identity, ids: Sequence[str], columns: str) -> Iterator[tuple[Any, ...]]:
    """Of each id, which is the first of the columns."""
    found: set[str] = set()
    for query in (sql.NEWEST, NEWEST_ENTRIES):
        missing = [item_id for item_id in ids if item_id not in found]
        for start in range(0, len(missing), _IDS_AT_ONCE):
            some = missing[start : start + _IDS_AT_ONCE]
            values = identity.tenant, identity.owner, *some
            for row in connection.execute(query.format(columns, ", ".join("?" * len(some))), values):
                found.add(row[0])
                yield row


def read_something(connection: Connection) -> None:
    connection.execute(sql.LOOK).fetchone()
