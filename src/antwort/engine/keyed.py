"""Requests that come with a key: the first one starts a run, and the same request once more gets its response."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from antwort.api.events import StreamEvent
from antwort.api.requests import CreateRequest
from antwort.api.responses import Response
from antwort.api.status import FINAL
from antwort.api.wire import encode
from antwort.engine.fingerprint import checked_key, fingerprint_steps
from antwort.engine.kept import Kept, Name
from antwort.engine.live import LiveRun
from antwort.engine.plan import Plan
from antwort.engine.settings import EngineSettings, OnDisconnect
from antwort.engine.shared import Reader, SharedRun
from antwort.errors import AntwortError, KeyInUse, KeyReused, ResponseNotFound, ServerFault, ShuttingDown
from antwort.event_loop import in_turns
from antwort.identity import Identity
from antwort.notes import note
from antwort.storage.base import Claim, ResponseStore

_log = logging.getLogger("antwort.engine")

_AN_EVENT = 300
"""Bytes, about, besides its text."""


class Maker(Protocol):
    """What of an engine it takes to make a response, and to find one."""

    async def plan(self, request: CreateRequest, identity: Identity) -> Plan: ...

    async def launch(
        self, plan: Plan, claim: Claim | None = None, on_disconnect: OnDisconnect | None = None
    ) -> LiveRun: ...

    async def submit(self, plan: Plan, claim: Claim | None = None) -> Response: ...

    async def retrieve(self, identity: Identity, response_id: str) -> Response: ...

    async def has_log(self, identity: Identity, response_id: str) -> bool: ...

    @property
    def is_shared(self) -> bool:
        """Whether other processes have the same records."""
        ...

    async def sent(self, identity: Identity, response_id: str) -> Sequence[StreamEvent] | None: ...


class Asked(NamedTuple):
    """The first request with its key."""

    request: CreateRequest
    identity: Identity
    on_disconnect: OnDisconnect | None = None


class KeyedRuns:
    """Those under way here, and those that have ended a while ago."""

    def __init__(
        self, maker: Maker, store: ResponseStore, settings: EngineSettings, clock: Callable[[], float]
    ) -> None:
        self._maker, self._store, self._settings, self._clock = maker, store, settings, clock
        self._runs: dict[Name, SharedRun] = {}
        self._kept = Kept()
        """Those of them that have ended."""
        self._names: dict[str, Name] = {}
        """By the id of the response."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def attach(
        self, request: CreateRequest, identity: Identity, key: str, on_disconnect: OnDisconnect | None = None
    ) -> Reader:
        """A reader of the response that the key stands for: one that ended, one under way, or a new one.

        Raises `KeyReused` when that is the response to another request, `KeyInUse` when it is being made elsewhere, and
        what is wrong with the request.
        """
        name, digest = (identity.tenant, identity.owner, checked_key(key)), await in_turns(fingerprint_steps(request))
        asked = Asked(request, identity, on_disconnect)
        while (reader := await self._join(name, digest, asked)) is None:
            pass
        try:
            await reader.started()
        except BaseException:
            reader.leave()
            raise
        return reader

    async def submit(self, request: CreateRequest, identity: Identity, key: str) -> tuple[Response, bool]:
        """The background response that the key stands for, as it stands, or a new one; and whether it was there. All
        that is known of it is in the store: any process may be asked.

        Raises as `attach` does, but never `KeyInUse`.
        """
        name, digest = (identity.tenant, identity.owner, checked_key(key)), await in_turns(fingerprint_steps(request))
        while True:
            await self._pass_by(name, identity)
            claim = self._claim(name, digest)
            if (found := await self._recall(identity, claim, is_waited_for=False)) is not None:
                return found, True
            plan = await self._maker.plan(request, identity)
            try:
                return await self._maker.submit(plan, claim), False
            except KeyInUse:  # another was faster: what it has begun is there now
                continue

    async def _pass_by(self, name: Name, identity: Identity) -> None:
        """Where a request in the foreground has the key, it is another request."""
        while (shared := self._find(name)) is not None:
            if not await self._is_current(name, shared, identity):
                continue
            await (shared.settled if shared.is_void else shared.is_owner).wait()
            if self._runs.get(name) is shared and not shared.is_void:
                raise KeyReused

    async def _join(self, name: Name, digest: bytes, asked: Asked) -> Reader | None:
        """None: what stood in the way is gone by now."""
        shared = self._find(name)
        if shared is None:
            return self._share(name, digest, asked).join(is_first=True)
        if not await self._is_current(name, shared, asked.identity):
            return None
        if shared.is_void:
            await shared.settled.wait()
            return None
        if shared.request_hash == digest:
            return shared.join(is_first=False)
        await shared.is_owner.wait()
        if self._runs.get(name) is shared and not shared.is_void:
            raise KeyReused
        return None

    async def _is_current(self, name: Name, shared: SharedRun, identity: Identity) -> bool:
        """Whether what has ended here still stands for its key: another process may have deleted it, if there is one.
        What does not is forgotten.
        """
        response = shared.response
        if response is None or not response.store or name not in self._kept or not self._maker.is_shared:
            return True
        claimed = await self._store.claimed(identity, name[2], int(self._clock()))
        if self._runs.get(name) is shared and (claimed is None or claimed.response_id != response.id):
            self._forget(name)
        return self._runs.get(name) is shared

    def _find(self, name: Name) -> SharedRun | None:
        shared = self._runs.get(name)
        if shared is None:
            return None
        is_expired = name in self._kept and shared.expires_at <= self._clock()
        if is_expired or (shared.is_void and shared.settled.is_set):  # nobody waits for what is decided
            self._forget(name)
            return None
        return shared

    def _share(self, name: Name, digest: bytes, asked: Asked) -> SharedRun:
        claim = self._claim(name, digest)
        shared = self._runs[name] = SharedRun(digest, claim.expires_at, self._settings)
        task = asyncio.create_task(self._live(name, shared, asked, claim))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return shared

    def _claim(self, name: Name, digest: bytes) -> Claim:
        now, seconds = int(self._clock()), math.ceil(self._settings.idempotency)
        return Claim(key=name[2], request_hash=digest, now=now, expires_at=now + seconds)

    # ---- the life of one ----

    async def _live(self, name: Name, shared: SharedRun, asked: Asked, claim: Claim) -> None:
        """A task of its own: the request that comes first may leave, and another still wait for the response."""
        try:
            await self._start(shared, asked, claim)
            if shared.live is not None:
                self._names[shared.live.response_id] = name
                await shared.follow(shared.live)
                if shared.accountant is None:
                    _note_unread(shared.live)
                await self._settle(name, shared, shared.live, asked.identity)
        except Exception as error:
            if shared.started.is_set:
                _log.error("the end of %s could not be put away", shared.response_id, exc_info=error)
            shared.started.fail(error)
        finally:
            self._close(name, shared)

    async def _start(self, shared: SharedRun, asked: Asked, claim: Claim) -> None:
        request, identity = asked.request, asked.identity
        found = await self._recall(identity, claim)
        shared.is_owner.set(None)
        if found is not None:
            shared.found(found, await self._maker.sent(identity, found.id) if request.stream else None)
            return
        plan = await shared.signal.race(lambda: self._maker.plan(request, identity))
        live = await self._maker.launch(plan, claim if request.is_stored else None, asked.on_disconnect)
        shared.begin(live, is_streamed=bool(request.stream))

    async def _recall(self, identity: Identity, claim: Claim, *, is_waited_for: bool = True) -> Response | None:
        """The response that stands in the store for the key. Its run, if it is not over, is another process's: who has
        to wait for it can only follow its log, if it has one.
        """
        claimed = await self._store.claimed(identity, claim.key, claim.now)
        if claimed is None:
            return None
        if claimed.request_hash != claim.request_hash:
            raise KeyReused
        try:
            response = await self._maker.retrieve(identity, claimed.response_id)
        except ResponseNotFound:  # it was deleted just now
            return None
        if is_waited_for and response.status not in FINAL:
            raise KeyInUse(response.id if await self._maker.has_log(identity, response.id) else None)
        return response

    async def _settle(self, name: Name, shared: SharedRun, live: LiveRun, identity: Identity) -> None:
        """What has come to an end of its own keeps its key, whoever has seen it; otherwise the next request is a new
        try, unless that would do anything twice.
        """
        if live.is_left:  # whoever goes on with it puts its end on record, for the key as well
            return
        response = live.response
        is_broken = await _failed_early(live) or (shared.is_void and response.status in ("cancelled", "failed"))
        shared.is_void = (is_broken or live.is_worth_another_try) and not live.has_acted
        if shared.is_void:
            await self._release(identity, name[2], response)
        elif self._runs.get(name) is shared:  # it may have been deleted meanwhile
            shared.end(response)
            self._keep(name, shared)

    async def _release(self, identity: Identity, key: str, response: Response) -> None:
        if not response.store:
            return
        try:
            await self._store.release(identity, key, response.id)
        except AntwortError as error:
            _log.warning("the key of the response %s could not be released: %s", response.id, error.message)

    def _close(self, name: Name, shared: SharedRun) -> None:
        """However it ended, nobody waits for it any longer."""
        if name not in self._kept and self._runs.get(name) is shared:
            self._forget(name)
        shared.started.fail(ServerFault("The run was broken off."))
        shared.is_owner.set(None)
        shared.settled.set(None)

    # ---- those that have ended ----

    def _keep(self, name: Name, shared: SharedRun) -> None:
        assert shared.response is not None
        self._kept.add(name, 2 * len(encode(shared.response)) + _AN_EVENT * len(shared.tape or ()))
        while (surplus := self._kept.surplus()) is not None:
            self._forget(surplus)

    def _forget(self, name: Name) -> None:
        shared = self._runs.pop(name, None)
        self._kept.remove(name)
        if shared is not None and shared.response_id is not None:
            self._names.pop(shared.response_id, None)

    def delete(self, response_id: str) -> None:
        """The response is gone, and its key free."""
        if (name := self._names.get(response_id)) is not None:
            self._forget(name)

    async def close(self) -> None:
        """What is not under way yet does not begin any more."""
        for shared in self._runs.values():
            shared.signal.set(ShuttingDown())
        await asyncio.gather(*self._tasks)


def _note_unread(live: LiveRun) -> None:
    """Those who asked for it have left, and their lines cannot say what it took."""
    ended = live.account()
    usage, details = ended.response.usage, ended.response.incomplete_details
    note(
        _log,
        logging.INFO,
        "a run has ended that nobody reads any more; its key stands for it",
        response_id=live.response_id,
        key=live.identity.key or None,
        model=ended.response.model[:100],
        response_status=ended.response.status,
        reason=None if details is None else details.reason,
        turns=ended.turns,
        input_tokens=None if usage is None else usage.input_tokens,
        output_tokens=None if usage is None else usage.output_tokens,
    )


async def _failed_early(live: LiveRun) -> bool:
    """Whether those who waited were told so by an error, instead of a response that has failed."""
    try:
        await live.answered()
    except AntwortError:
        return True
    return False
