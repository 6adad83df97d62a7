"""Runs from their submission to their end: operations on a database.

What usually happens is returned, not raised: an operation that raises is run again, with all of its transaction.
"""

from __future__ import annotations

from typing import NamedTuple

from antwort.api.responses import Response
from antwort.api.status import IllegalTransition
from antwort.api.wire import UNSET
from antwort.errors import ResponseNotFound, StoreFault
from antwort.identity import Identity
from antwort.runs import notices
from antwort.runs import statements as sql
from antwort.runs.codec import from_events, from_identity, to_events, without_output
from antwort.runs.dialects import holding, marking, notify, now
from antwort.runs.packing import unpacked
from antwort.storage import sql_responses as storage
from antwort.storage.database import Connection, Value, Values
from antwort.storage.rows import ItemRow, name_of, to_body, to_response
from antwort.storage.rows import RowValues as StoredValues
from antwort.storage.rules import failed
from antwort.storage.run_log import Lease, Record
from antwort.storage.sql_responses import NewRows as Beginning
from antwort.storage.sql_responses import UpdateRows as Finishing
from antwort.storage.sql_responses import begin_response as begin_in
from antwort.storage.sql_responses import finish_response as finish_in
from antwort.storage.sql_responses import has_begun, has_output


def named(lease: Lease) -> dict[str, Value]:
    """What a run is held by."""
    return {"key": lease.key, "id": lease.run_id, "fence": lease.fence}


class Row(NamedTuple):
    """A record, ready to be written."""

    at: int
    first: int
    next: int
    events: bytes


def to_row(record: Record) -> Row:
    return Row(record.at, record.first, record.next, from_events(record.events))


def to_last_row(record: Record) -> Row:
    """The record that ends a run. Its response is stored without output, which stands beside it, item by item."""
    return Row(record.at, record.first, record.next, from_events([*map(without_output, record.events)]))


def conversation_of(response: Response) -> str | None:
    return None if response.conversation is UNSET else response.conversation.id


class Submission(NamedTuple):
    identity: Identity
    response: Response
    beginning: Beginning
    first: Row


def waiting(connection: Connection) -> int:
    """How many runs wait for a worker."""
    return int(connection.execute(sql.WAITING).fetchone()[0])


def submit(connection: Connection, new: Submission, queue: int, sender: str) -> int | None:
    """How many wait already, when there is no room for one more."""
    name = name_of(new.identity, new.response.id)
    known = has_begun(connection, name) if new.beginning.is_staged else connection.execute(sql.KNOWN, name).fetchone()
    if known:
        return None
    if (number := waiting(connection)) >= queue:
        return number
    key = begin_in(connection, new.beginning)
    values: Values = {
        **name,
        "identity": from_identity(new.identity),
        "now": now(connection),
        "conversation_id": conversation_of(new.response),
    }
    connection.execute(sql.INSERT_QUEUED, values)
    connection.execute(sql.INSERT_RECORD, (key, *new.first))
    notify(connection, notices.work(sender))
    return None


def stage_output(connection: Connection, lease: Lease, values: StoredValues, items: list[ItemRow]) -> None:
    """Some of the output of a run that is about to end, unless another has it: that one says what the output is."""
    if connection.execute(sql.HOLD, named(lease)).fetchone() is not None:
        storage.stage_output(connection, values, items)


def drop_output(connection: Connection, lease: Lease) -> None:
    connection.execute(sql.DROP_OUTPUT, named(lease))


class End(NamedTuple):
    lease: Lease
    finishing: Finishing
    last: Row


def finish(connection: Connection, end: End, sender: str) -> bool:
    """Whether it is written, now or before."""
    key = end.lease.key
    values = named(end.lease)
    if connection.execute(holding(connection, sql.HOLD), values).fetchone() is None:
        return _has_ended_with(connection, key, end.last) and has_output(connection, key, end.finishing)
    try:
        finish_in(connection, end.finishing)
    except (ResponseNotFound, IllegalTransition):  # before anything was written
        drop(connection, key)
        return False
    connection.execute(sql.INSERT_RECORD, (key, *end.last))
    connection.execute(sql.INSERT_LOG, {"key": key, "ended_at": int(now(connection))})
    connection.execute(sql.END, values)
    # Others may have waited for it, in its conversation or for its owner's places.
    notify(connection, *notices.events(sender, [end.lease.run_id]), notices.work(sender))
    return True


def _has_ended_with(connection: Connection, key: int, last: Row) -> bool:
    """Whether these were the last words: then the end was written, and only the news of it got lost."""
    if (row := connection.execute(sql.PACKED, {"key": key}).fetchone()) is not None:
        place, first, raw = connection.execute(sql.LAST_RECORD, {"key": key}).fetchone() or row
        return _ends_with(Record(place, first, unpacked(raw, lambda: opening_of(connection, key))), last)
    row = connection.execute(sql.RECORD_AT, {"key": key, "at": last.at}).fetchone()
    if row is None:
        return False
    is_open = connection.execute("SELECT 1 FROM runs WHERE response_key = ?", (key,)).fetchone() is not None
    return bytes(row[0]) == last.events and not is_open


def opening_of(connection: Connection, key: int) -> bytes:
    """The first piece of a packed log."""
    return bytes(connection.execute(sql.PACKED, {"key": key}).fetchone()[2])


def _ends_with(piece: Record, last: Row) -> bool:
    """A packed log has other records: the last event and its number tell."""
    return piece.next == last.next and without_output(piece.events[-1]) == to_events(last.events)[-1]


def drop(connection: Connection, key: int) -> None:
    """Nobody goes on with the run, and what it has said has no end. How its response ended is all that is left."""
    connection.execute(sql.DROP_RECORDS, (key,))
    connection.execute(sql.END, {"key": key})


def fail(connection: Connection, key: int, body: bytes, message: str) -> None:
    """Of a response whose record cannot be read, its columns alone."""
    try:
        response = failed(to_response(body), message)
    except (StoreFault, IllegalTransition):
        connection.execute(sql.FAIL_RESPONSE, (key,))
    else:
        connection.execute(sql.UPDATE_RESPONSE, (response.status, response.completed_at, to_body(response), key))


def give_up(connection: Connection, lease: Lease, finishing: Finishing, sender: str) -> bool:
    """Whether it was held, and is written."""
    if connection.execute(holding(connection, sql.HOLD), named(lease)).fetchone() is None:
        return False
    try:
        finish_in(connection, finishing)
        is_written = True
    except (ResponseNotFound, IllegalTransition):  # before anything was written
        is_written = False
    drop(connection, lease.key)
    notify(connection, *notices.events(sender, [lease.run_id]), notices.work(sender))
    return is_written


def release(connection: Connection, lease: Lease, is_lost: bool, sender: str) -> None:
    connection.execute(sql.RELEASE, {**named(lease), "lost": int(is_lost)})
    notify(connection, notices.work(sender))


def cancel(connection: Connection, identity: Identity, response_id: str, sender: str) -> bool | None:
    """Whether there was anything to stop. None: somebody is about to change it, and this is to be tried again."""
    values = name_of(identity, response_id)
    found = _cancel(connection, sql.RUN_TO_CANCEL, sql.CANCEL_RUN, values)
    if found is False:
        found = _cancel(connection, sql.RESPONSE_TO_CANCEL, sql.CANCEL_RESPONSE, values)
    if found:
        notify(connection, notices.cancels(sender), notices.work(sender))
    return found


def _cancel(connection: Connection, look: str, cancel: str, values: Values) -> bool | None:
    row = connection.execute(marking(connection, look), values).fetchone()
    if row is None:
        return None if connection.execute(look, values).fetchone() else False
    connection.execute(cancel, {"key": row[0], "at": int(now(connection))})
    return True
