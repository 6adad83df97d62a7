"""The record of calls that a later response settles, in a database."""

from __future__ import annotations

from functools import partial

import msgspec

from antwort.db import Connection, Database
from antwort.errors import ConversationNotFound, Damaged, ResponseNotFound
from antwort.identity import Identity
from antwort.storage.base import CallClaim, CallRecord, CallResult
from antwort.storage.once import write_once
from antwort.storage.rows import Values

_decode_result = msgspec.json.Decoder(CallResult)

_ANCHOR = """
    SELECT (SELECT key FROM responses WHERE tenant = :tenant AND owner = :owner AND id = :response_id),
           (SELECT key FROM conversations WHERE tenant = :tenant AND owner = :owner AND id = :conversation_id)
"""
_CLAIM = """
    INSERT INTO calls (tenant, owner, call_id, settled_by, result, response_key, conversation_key)
    VALUES (:tenant, :owner, :call_id, :settled_by, :result, :response_key, :conversation_key)
    ON CONFLICT DO NOTHING
"""
_TAKE_OVER = """
    UPDATE calls SET settled_by = :settled_by, result = :result
    WHERE tenant = :tenant AND owner = :owner AND call_id = :call_id AND settled_by = :instead_of AND result IS NULL
"""
_FINISH = """
    UPDATE calls SET result = :result
    WHERE tenant = :tenant AND owner = :owner AND call_id = :call_id AND settled_by = :settled_by AND result IS NULL
"""
_RELEASE = """
    DELETE FROM calls
    WHERE tenant = :tenant AND owner = :owner AND call_id = :call_id AND settled_by = :settled_by AND result IS NULL
"""
_FOUND = "SELECT settled_by, result FROM calls WHERE tenant = :tenant AND owner = :owner AND call_id = :call_id"


class SqlCalls:
    """The part of the store that keeps claimed calls."""

    _database: Database

    async def claim_call(self, identity: Identity, claim: CallClaim) -> CallRecord | None:
        values: Values = _name(identity, claim.call_id) | {
            "settled_by": claim.settled_by,
            "result": None if claim.result is None else msgspec.json.encode(claim.result),
            "response_id": claim.response_id,
            "conversation_id": claim.conversation_id,
            "instead_of": claim.instead_of,
        }
        found = await write_once(
            self._database,
            partial(_claim, values=values),
            lambda connection, found: found is None and _is_held(connection, values),
        )
        return None if found is None else _record(found)

    async def finish_call(self, identity: Identity, call_id: str, settled_by: str, result: CallResult) -> None:
        values: Values = _name(identity, call_id) | {"settled_by": settled_by, "result": msgspec.json.encode(result)}
        await write_once(self._database, partial(_finish, values=values), lambda _connection, _: False)

    async def release_call(self, identity: Identity, call_id: str, settled_by: str) -> None:
        values: Values = _name(identity, call_id) | {"settled_by": settled_by}
        await self._database.write(partial(_release, values=values))

    async def call_record(self, identity: Identity, call_id: str) -> CallRecord | None:
        found = await self._database.read(partial(_find, values=_name(identity, call_id)))
        return None if found is None else _record(found)


_Row = tuple[str, bytes | None]


def _name(identity: Identity, call_id: str) -> Values:
    return {"tenant": identity.tenant, "owner": identity.owner, "call_id": call_id}


def _claim(connection: Connection, values: Values) -> _Row | None:
    response_key, conversation_key = connection.execute(_ANCHOR, values).fetchone()
    if response_key is None and conversation_key is None:
        if values["response_id"] is not None:
            raise ResponseNotFound(str(values["response_id"]))
        raise ConversationNotFound(str(values["conversation_id"]))
    keys: Values = {"response_key": response_key, "conversation_key": conversation_key}
    if connection.execute(_CLAIM, values | keys).rowcount:
        return None
    if values["instead_of"] is not None and connection.execute(_TAKE_OVER, values).rowcount:
        return None
    return _find(connection, values)


def _is_held(connection: Connection, values: Values) -> bool:
    row = _find(connection, values)
    return row is not None and row[0] == values["settled_by"]


def _finish(connection: Connection, values: Values) -> None:
    connection.execute(_FINISH, values)


def _release(connection: Connection, values: Values) -> None:
    connection.execute(_RELEASE, values)


def _find(connection: Connection, values: Values) -> _Row | None:
    row = connection.execute(_FOUND, values).fetchone()
    return None if row is None else (str(row[0]), row[1])


def _record(row: _Row) -> CallRecord:
    settled_by, result = row
    try:
        return CallRecord(settled_by, None if result is None else _decode_result.decode(result))
    except msgspec.MsgspecError as exc:
        raise Damaged from exc
