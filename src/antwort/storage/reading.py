"""Reading responses, inside a transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from operator import itemgetter

from antwort.api.events import Span
from antwort.api.items import InputItem
from antwort.api.responses import Response
from antwort.db import Connection
from antwort.identity import Identity
from antwort.storage import statements as sql
from antwort.storage.base import ItemPage, Link, Page
from antwort.storage.conversation_statements import NEWEST as NEWEST_ENTRIES
from antwort.storage.rows import Values, to_item, to_response, to_shown, to_span
from antwort.storage.rules import cycle, select

_IDS_AT_ONCE = 500


def get(connection: Connection, values: Values) -> Response | None:
    row = connection.execute(sql.BODY, values).fetchone()
    if row is None:
        return None
    key, body = row
    return to_response(body, [raw for (raw,) in connection.execute(sql.OUTPUT, (key,))])


def chain(connection: Connection, values: Values) -> tuple[Link, ...]:
    """Three queries, however many links and threads. Sorted here: the database would copy what it sorts."""
    links = sorted(connection.execute(sql.CHAIN_LINKS, values), key=itemgetter(0))
    if links and links[0][2] is not None:  # only a chain that comes back to itself has no beginning
        raise cycle()
    inputs, outputs = _chain_items(connection, values)
    ends, abandoned = _chain_turns(connection, values)
    return tuple(
        Link(
            response=to_response(body, outputs[key]),
            request=request,
            input=tuple(inputs[key]),
            turn_ends=tuple(ends[key]),
            abandoned=tuple(abandoned[key]),
        )
        for _, key, _, request, body in links
    )


def _chain_items(
    connection: Connection, values: Values
) -> tuple[Mapping[int, list[InputItem]], Mapping[int, list[bytes]]]:
    """By the key of their response: the input items, and the JSON of the output items."""
    inputs: defaultdict[int, list[InputItem]] = defaultdict(list)
    outputs: defaultdict[int, list[bytes]] = defaultdict(list)
    for _, key, direction, item_id, raw in sorted(connection.execute(sql.CHAIN_ITEMS, values), key=itemgetter(0)):
        if direction == "output":
            outputs[key].append(raw)
        else:
            inputs[key].append(to_item(item_id, direction, raw))
    return inputs, outputs


def _chain_turns(connection: Connection, values: Values) -> tuple[Mapping[int, list[int]], Mapping[int, list[Span]]]:
    """By the key of their response: where turns end, and what was abandoned."""
    ends: defaultdict[int, list[int]] = defaultdict(list)
    abandoned: defaultdict[int, list[Span]] = defaultdict(list)
    for _, key, kind, mark, end in sorted(connection.execute(sql.CHAIN_TURNS, values), key=itemgetter(0)):
        if kind == "turn":
            ends[key].append(end)
        else:
            abandoned[key].append(to_span(mark, end))
    return ends, abandoned


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


def items(connection: Connection, identity: Identity, ids: Sequence[str]) -> dict[str, InputItem]:
    found: dict[str, InputItem] = {}
    for query in (sql.NEWEST, NEWEST_ENTRIES):
        missing = [item_id for item_id in ids if item_id not in found]
        for start in range(0, len(missing), _IDS_AT_ONCE):
            some = missing[start : start + _IDS_AT_ONCE]
            values = identity.tenant, identity.owner, *some
            for item_id, direction, raw in connection.execute(query.format(", ".join("?" * len(some))), values):
                found[item_id] = to_item(item_id, direction, raw)
    return found


def read_something(connection: Connection) -> None:
    connection.execute(sql.LOOK).fetchone()
