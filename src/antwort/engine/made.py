"""Responses that are there already: as they stand, as they ended, and what they wait for."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from weakref import WeakSet, WeakValueDictionary

from antwort.api.approvals import Approval, ApprovalStatus
from antwort.api.events import UNSENT, StreamEvent
from antwort.api.items import CustomToolCall, FunctionCall, McpApprovalRequest
from antwort.api.responses import Response
from antwort.api.status import FINAL, ResponseStatus
from antwort.api.wire import replace
from antwort.engine.following import (
    Follower,
    along,
    as_logged,
    last_word,
    logged,
    no_numbers,
    unfolded,
    unknown_number,
)
from antwort.engine.live import LiveRun
from antwort.engine.pairs import asked_in, call_id_of
from antwort.engine.settings import EngineSettings
from antwort.engine.steps import results_in
from antwort.errors import (
    AntwortError,
    ApprovalInUse,
    ApprovalNotFound,
    Cancelled,
    Damaged,
    MakerAway,
    ResponseNotFound,
)
from antwort.identity import Identity
from antwort.runs.base import Gone, Record, RunLog, Unavailable
from antwort.storage.base import (
    ApprovalPage,
    CallClaim,
    CallResult,
    Decision,
    ItemPage,
    Page,
    ResponsePage,
    ResponseStore,
    Wanted,
    as_of,
)

_CANCELLING = 10.0
"""Seconds that a cancelled run is waited for. It is told at once, and what it has under way gets `tool_grace`."""
_LAST_WORDS = 0.5
_A_MOMENT = 0.25
"""Seconds, at most, until it is looked whether a run that another makes has ended."""


class Made:
    """Those that a store keeps, and those of the runs under way, here or elsewhere. What is not there, or not the
    identity's, is not found.
    """

    def __init__(
        self,
        store: ResponseStore,
        runs: RunLog | None,
        live: Mapping[str, LiveRun],
        unwritten: dict[str, LiveRun],
        settings: EngineSettings,
        *,
        clock: Callable[[], float],
        end_unheld: Callable[[Identity, str], Awaitable[None]],
    ) -> None:
        """`live` and `unwritten` are the engine's, by the id of the response. What gets written is taken out of the
        latter. `end_unheld` ends a run that was cancelled, if nobody makes it.
        """
        self._store, self._runs, self._live, self._unwritten = store, runs, live, unwritten
        self._settings, self._clock, self._end_unheld = settings, clock, end_unheld
        self._followers: WeakSet[Follower] = WeakSet()
        self._read_now: WeakValueDictionary[tuple[str, str, str], Response] = WeakValueDictionary()
        """Responses that somebody reads right now, by tenant, owner and id."""
        self._loading = asyncio.Lock()

    async def retrieve(self, identity: Identity, response_id: str) -> Response:
        run = self._live_run(identity, response_id)
        if run is not None and run.response.store and not run.is_held:
            return run.response if run.response.status not in FINAL else await _result(run)
        return await self._so_far(identity, await self._kept(identity, response_id))

    async def _kept(self, identity: Identity, response_id: str) -> Response:
        await self.catch_up(identity, response_id)
        found = await self._store.get(identity, response_id)
        if found is None:
            raise ResponseNotFound(response_id)
        return found

    async def _so_far(self, identity: Identity, kept: Response) -> Response:
        """Of a run that has not ended, whoever makes it, what its log says: no more than is on record. What somebody
        else makes in the foreground has none.
        """
        if kept.status in FINAL:
            return kept
        return as_logged(await self._records(identity, kept.id) or ()) or kept

    async def _records(self, identity: Identity, response_id: str) -> Sequence[Record] | None:
        """All that its log holds; None where there is none, or none that can be read."""
        if self._runs is None or not await self._runs.has_log(identity, response_id):
            return None
        records: list[Record] = []
        try:
            async with aclosing(self._runs.read(identity, response_id)) as reading:
                async for some in reading:
                    records += some
        except (Gone, Damaged):
            return None
        return records

    async def list(self, identity: Identity, page: Page, wanted: Wanted) -> ResponsePage:
        """Stored responses, each as it stands: of one that runs, what there is so far."""
        for response_id in [*self._unwritten]:
            await self.catch_up(identity, response_id)
        found = await self._store.responses(identity, page, wanted)
        return replace(found, responses=tuple([await self._as_it_stands(identity, kept) for kept in found.responses]))

    async def _as_it_stands(self, identity: Identity, kept: Response) -> Response:
        """The record counts where the run has come to its end: nobody has been told of that before it is written."""
        run = self._live_run(identity, kept.id)
        if run is None or run.is_held:
            return await self._so_far(identity, kept)
        return kept if run.response.status in FINAL else run.response

    async def delete(self, identity: Identity, response_id: str) -> None:
        """A running response is cancelled first, so that its record is true until it goes."""
        if await self._is_running(identity, response_id):
            await self.cancel(identity, response_id)
        if not await self._store.delete(identity, response_id):
            raise ResponseNotFound(response_id)
        self._unwritten.pop(response_id, None)

    async def _is_running(self, identity: Identity, response_id: str) -> bool:
        """One whose end waits to be written has ended: to be deleted, it need not be written first."""
        run = self._live_run(identity, response_id)
        if run is not None:
            return run.response.store
        ended = self._unwritten.get(response_id)
        if ended is not None and ended.identity.is_same(identity):
            return False
        return (await self._kept(identity, response_id)).status not in FINAL

    async def cancel(self, identity: Identity, response_id: str) -> Response:
        """The response as it ended; one that had ended before is unchanged, and of a paused one the open calls are
        settled. Whoever makes it is told, and waited for; what does not end in time is given as it stands.
        """
        run = self._live_run(identity, response_id)
        if run is not None and not run.is_held:
            run.stop(Cancelled())
            return await _result(run)
        found = await self._kept(identity, response_id)
        if found.status == "requires_action":
            await self._settle(identity, found)
        if found.status in FINAL or self._runs is None:
            return found
        if run is not None:
            run.stop(Cancelled())
        if await self._runs.cancel(identity, response_id):
            if run is None:
                await self._end_unheld(identity, response_id)
            await self._ended(identity, response_id, _CANCELLING)
        return await self.retrieve(identity, response_id)

    async def _settle(self, identity: Identity, paused: Response) -> None:
        """Decline the open calls and approvals of a paused response, so that no follow-up runs them."""
        result = CallResult("The call was not run: the response was cancelled.", is_error=True)
        for call_id in _open_calls(paused):
            claim = CallClaim(call_id=call_id, settled_by=paused.id, response_id=paused.id, result=result)
            await self._store.claim_call(identity, claim)
        requests = [item.id for item in paused.output if isinstance(item, McpApprovalRequest)]
        found = await self._store.find_approvals(identity, requests) if requests else {}
        for approval in found.values():
            if approval.status == "pending":
                with suppress(ApprovalInUse):  # decided meanwhile
                    await self._store.decide(identity, paused.id, [Decision(id=approval.id, status="denied")])

    async def follow(self, identity: Identity, response_id: str, after: int) -> Follower:
        """One who reads the events behind that number. Raises `InvalidField` naming `starting_after` where there is no
        such event so far, or nobody knows any more which one it was.
        """
        if (following := self._along(identity, response_id, after)) is not None:
            return following
        await self.catch_up(identity, response_id)
        if self._runs is not None:
            outline = await self._runs.outline(identity, response_id)
            if outline is not None and outline.has_log:
                if after >= 0 and after >= await self._runs.sent(identity, response_id):
                    raise unknown_number(after)
                return self.reading(identity, outline.response, after)
        response = await self._shared(identity, response_id)
        ended, over = (partial(each, identity, response_id) for each in (self._ended, self._is_over))
        if response.status not in FINAL and self._is_made_elsewhere(response_id):
            raise MakerAway
        if after >= 0 and response.status in ("failed", "cancelled"):
            return self._following(Follower(response, last_word(response, after, self._settings), ended, over=over))
        if after >= 0:
            raise no_numbers()
        later = partial(self._ended, identity, response_id, self._settings.keepalive_interval)
        return self._following(Follower(response, unfolded(later, self._settings), ended, over=over))

    async def _shared(self, identity: Identity, response_id: str) -> Response:
        """As `retrieve`. One that has ended is in memory once, however many read it."""
        if self._live_run(identity, response_id) is not None:
            return await self.retrieve(identity, response_id)
        async with self._loading:
            found = self._read_now.get((identity.tenant, identity.owner, response_id))
            if found is None:
                found = await self.retrieve(identity, response_id)
            elif await self._status(identity, response_id) is None:
                raise ResponseNotFound(response_id)
            if found.status in FINAL:
                self._read_now[identity.tenant, identity.owner, response_id] = found
        return found

    async def _status(self, identity: Identity, response_id: str) -> ResponseStatus | None:
        """How a stored response stands, without what it said; None: there is none."""
        if self._runs is not None:
            outline = await self._runs.outline(identity, response_id)
            return None if outline is None else outline.response.status
        found = await self._store.get(identity, response_id)
        return None if found is None else found.status

    def _is_made_elsewhere(self, response_id: str) -> bool:
        """Of one that has not ended and has no log: only who makes it can tell what it says, until it has ended."""
        return self._runs is not None and self._runs.traits.many and response_id not in self._live

    async def sent(self, identity: Identity, response_id: str) -> Sequence[StreamEvent] | None:
        """All events so far, from number 0 on; None where they are not kept by their numbers."""
        records = await self._records(identity, response_id)
        if records is None:
            return None
        return [event for record in records for event in record.events if not isinstance(event, UNSENT)]

    def _along(self, identity: Identity, response_id: str, after: int) -> Follower | None:
        """One who reads along with a run in the foreground here, where all is there that it has said."""
        run = self._live_run(identity, response_id)
        if run is None or run.is_held or run.said is None or not run.said.is_whole:
            return None
        if after >= run.said.sent:
            raise unknown_number(after)
        every = self._settings.keepalive_interval
        batches = along(run.said.read(after, every), self._runs, response_id, identity, after, every)
        return self._following(Follower(run.response, batches, run.wait))

    def reading(self, identity: Identity, response: Response, after: int = -1) -> Follower:
        """One who reads the log of a response that has one."""
        assert self._runs is not None, "there is a log"
        every = self._settings.keepalive_interval
        batches = logged(self._runs, response.id, identity, after, every)
        ended, over = (partial(each, identity, response.id) for each in (self._ended, self._is_over))
        return self._following(Follower(response, batches, ended, over=over))

    def _following(self, follower: Follower) -> Follower:
        self._followers.add(follower)
        return follower

    def let_go(self) -> None:
        """Nothing is made here any more: who still reads what goes on elsewhere is to ask for it there. The end of what
        has ended here is read within a moment.
        """
        loop = asyncio.get_running_loop()
        for follower in [each for each in self._followers if each.response.status not in FINAL]:
            loop.call_later(_LAST_WORDS, follower.leave)
            self._followers.discard(follower)

    async def until_ended(self, identity: Identity, response_id: str) -> None:
        with suppress(AntwortError):
            await self._is_over(identity, response_id)

    async def _ended(self, identity: Identity, response_id: str, seconds: float = math.inf) -> Response | None:
        """The response as it ended, wherever it is made; None when that takes longer."""
        return (
            await self._shared(identity, response_id) if await self._is_over(identity, response_id, seconds) else None
        )

    async def _is_over(self, identity: Identity, response_id: str, seconds: float = math.inf) -> bool:
        """Whether it has ended, wherever it is made, within that time."""
        clock = asyncio.get_running_loop().time
        until, pause = clock() + seconds, _A_MOMENT / 8
        while True:
            await self.catch_up(identity, response_id)
            if (status := await self._status(identity, response_id)) is None:
                raise ResponseNotFound(response_id)
            if status in FINAL:
                return True
            if (left := until - clock()) <= 0:
                return False
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, _A_MOMENT)

    async def input_items(self, identity: Identity, response_id: str, page: Page) -> ItemPage:
        found = await self._store.input_items(identity, response_id, page)
        if found is None:
            raise ResponseNotFound(response_id)
        return found

    async def approvals(self, identity: Identity, page: Page, status: ApprovalStatus | None) -> ApprovalPage:
        """Calls of stored responses that wait, or waited, for approval, each as it stands now."""
        for response_id in [*self._unwritten]:
            await self.catch_up(identity, response_id)
        now = int(self._clock())
        found = await self._store.approvals(identity, page, status, now)
        return replace(found, approvals=tuple(as_of(approval, now) for approval in found.approvals))

    async def approval(self, approval_id: str, identity: Identity) -> Approval:
        found = await self._store.find_approvals(identity, [approval_id])
        if approval_id not in found:
            raise ApprovalNotFound(approval_id)
        return as_of(found[approval_id], int(self._clock()))

    def _live_run(self, identity: Identity, response_id: str) -> LiveRun | None:
        run = self._live.get(response_id)
        return run if run is not None and run.identity.is_same(identity) else None

    async def catch_up(self, identity: Identity, response_id: str) -> None:
        """Put the end of a run on record that could not be recorded when it came. Nobody else learns of it, even by
        an error.
        """
        run = self._unwritten.get(response_id)
        if run is not None and run.identity.is_same(identity):
            await run.record_again(self._store)
            self._unwritten.pop(response_id, None)


def _open_calls(paused: Response) -> set[str]:
    """The ids of the calls without a result, whoever is to run them."""
    asked = {item.call_id for item in paused.output if isinstance(item, FunctionCall | CustomToolCall)}
    asked |= {call_id_of(call) for item in paused.output if (call := asked_in(item)) is not None}
    return asked - results_in(paused.output)


async def _result(run: LiveRun) -> Response:
    """The response as it ended, or, where that takes long, as it stands. Raises `Unavailable` when its end cannot be
    put on record: then nobody knows yet whether it is its end.
    """
    try:
        async with asyncio.timeout(_CANCELLING):
            return await run.result()
    except TimeoutError:
        if run.response.status in FINAL:
            raise Unavailable from None
        return run.response
