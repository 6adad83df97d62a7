"""Settle calls that an earlier response left open at most once: run, decline or answer them from the record."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

from msgspec.structs import replace

from antwort.api.status import FINAL
from antwort.concurrency import backoff
from antwort.engine.history.refusals import DELETED, OUTCOME_UNKNOWN
from antwort.errors import ConversationNotFound, ResponseNotFound
from antwort.identity import Identity
from antwort.storage.base import CallClaim, CallRecord, CallResult, ResponseStore
from antwort.tools.base import ToolResult

FIRST_POLL_SECONDS, MAX_POLL_SECONDS = 0.01, 0.25
"""Between two checks of a call that another response runs."""


class CallRecords:
    """The record of the calls that one response settles for earlier ones.

    A claim is recorded before a call begins, and the result before the model reads it. Every other follow-up of the
    same response reads that record, and waits for it while the call runs.
    """

    def __init__(
        self,
        store: ResponseStore,
        identity: Identity,
        response_id: str,
        claims: Mapping[str, CallClaim],
        *,
        is_live: Callable[[str], bool],
        catch_up: Callable[[Identity, str], Awaitable[None]],
    ) -> None:
        """`claims` are made later, by call id; one with a result is of a call that the client has answered itself.
        `is_live` returns whether this process runs a response now, `catch_up` records an end that could not be recorded
        in time.
        """
        self._store, self._identity, self._response_id = store, identity, response_id
        self._claims, self._is_live, self._catch_up = claims, is_live, catch_up

    async def claim(self, call_id: str, may_be_repeated: bool) -> ToolResult | None:
        """Return the result if the call is settled already. None: this response runs the call, and `finish` follows."""
        if (claim := self._claims.get(call_id)) is None:
            return None
        while (found := await self._claim(claim)) is not None:
            if found.result is None and found.settled_by == self._response_id:
                return None  # claimed before this run was resumed
            found = await self._settled(call_id, found)
            if found.result is not None:
                return _tool_result(call_id, found.result)
            if not may_be_repeated:
                return ToolResult(call_id, OUTCOME_UNKNOWN, is_error=True)
            claim = replace(claim, instead_of=found.settled_by)
        return None

    async def _claim(self, claim: CallClaim) -> CallRecord | None:
        try:
            return await self._store.claim_call(self._identity, claim)
        except (ResponseNotFound, ConversationNotFound):
            return CallRecord(self._response_id, CallResult(DELETED, is_error=True))

    async def release(self, call_id: str) -> None:
        """Give up the claim on a call that has not begun, even if the caller is cancelled meanwhile."""
        if call_id in self._claims:
            work = self._store.release_call(self._identity, call_id, self._response_id)
            await asyncio.shield(asyncio.ensure_future(work))

    async def record_answers(self) -> None:
        """Record the results that the client itself sent, so that no other follow-up runs those calls."""
        for claim in self._claims.values():
            if claim.result is not None:
                await self._claim(claim)

    async def finish(self, result: ToolResult) -> None:
        """Record the result of a call that `claim` gave to this response, even if the caller is cancelled meanwhile."""
        if result.call_id in self._claims:
            outcome = CallResult(result.output, result.is_error)
            work = self._store.finish_call(self._identity, result.call_id, self._response_id, outcome)
            await asyncio.shield(asyncio.ensure_future(work))

    async def refuse(self, call_id: str, message: str, *, for_good: bool) -> ToolResult:
        """Return the result of a call that is not run here: the recorded one if there is one, else an error with
        `message`. A refusal `for_good` is recorded, so that no other follow-up runs the call.
        """
        refusal = ToolResult(call_id, message, is_error=True)
        if (claim := self._claims.get(call_id)) is None:
            return refusal
        if for_good:
            declined = replace(claim, result=CallResult(message, is_error=True))
            found = await self._claim(declined)
        else:
            found = await self._store.call_record(self._identity, call_id)
        if found is None or (found.result is None and found.settled_by == self._response_id):
            return refusal
        found = await self._settled(call_id, found)
        return _tool_result(call_id, found.result or CallResult(OUTCOME_UNKNOWN, is_error=True))

    async def decline(self, call_ids: Iterable[str], message: str) -> None:
        """Record that these calls are not run, except for those that another response settles."""
        for call_id in call_ids:
            if (claim := self._claims.get(call_id)) is not None:
                declined = replace(claim, result=CallResult(message, is_error=True))
                await self._claim(declined)

    async def _settled(self, call_id: str, found: CallRecord) -> CallRecord:
        """Wait until the response that claims the call has recorded its result, or has ended without one."""
        pauses = backoff(FIRST_POLL_SECONDS, MAX_POLL_SECONDS)
        while found.result is None:
            claimed_by = found.settled_by
            is_running = await self._is_running(claimed_by)
            found = await self._store.call_record(self._identity, call_id) or found
            if found.settled_by != claimed_by:  # a third response has taken the call over meanwhile
                continue
            if not is_running:
                break
            if found.result is None:
                await asyncio.sleep(next(pauses))
        return found

    async def _is_running(self, response_id: str) -> bool:
        if self._is_live(response_id):
            return True
        await self._catch_up(self._identity, response_id)
        response = await self._store.get(self._identity, response_id)
        return response is not None and response.status not in FINAL


def _tool_result(call_id: str, result: CallResult) -> ToolResult:
    return ToolResult(call_id, result.output, is_error=result.is_error)
