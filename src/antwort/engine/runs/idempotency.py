"""Idempotency keys: a key stands for one response, and every request that brings it subscribes to that response."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from itertools import chain
from typing import TypeAlias

import msgspec

from antwort.api.decoding import Steps, at_once
from antwort.api.items import InputItem, ItemReference, OpaqueItem
from antwort.api.requests import CreateRequest
from antwort.api.responses import Response
from antwort.api.wire import Plain, encode, replace
from antwort.caching import Cache
from antwort.concurrency import Once, Signal
from antwort.engine.runs.event_log import NO_RECORD, EventLog
from antwort.engine.runs.launcher import Launcher
from antwort.engine.runs.live import LiveRun
from antwort.engine.runs.responses import Responses
from antwort.engine.runs.subscription import LiveSubscription, Subscription
from antwort.engine.settings import OnDisconnect
from antwort.errors import (
    AntwortError,
    ClientLeft,
    KeyInUse,
    KeyReused,
    RequestError,
    ResponseNotFound,
    ServerFault,
    ShuttingDown,
)
from antwort.event_loop import in_turns
from antwort.identity import Identity
from antwort.notes import note
from antwort.storage.base import KeyClaim, ResponseStore

_log = logging.getLogger("antwort.engine")

KeyName: TypeAlias = tuple[str, str, str]
"""Tenant, owner, key."""

MAX_KEY_CHARS = 255
MAX_ENDED_RUNS = 1000
"""Ended runs in memory whose responses are not stored."""
MAX_ENDED_BYTES = 64 * 2**20


class KeyedRun:
    """A run that is started for a key in this process, until it is decided whether the key stands for its response."""

    task: asyncio.Task[None]
    """Starts the run, waits for its end, and settles what the key stands for."""

    def __init__(self, request: CreateRequest, request_hash: bytes, log: EventLog) -> None:
        self.request_hash = request_hash
        self.log = log
        """Its readers may be there before the run: none of them misses an event."""
        self.is_streamed = bool(request.stream)
        self.run: LiveRun | None = None
        self.started: Once[LiveRun] = Once()
        self.planning = Signal()
        """Set when they have all left before it starts: then its planning stops."""

    @property
    def is_settling(self) -> bool:
        """Whether it is decided next what the key stands for: the run has ended, or is given up before its start."""
        return self.planning.reason is not None or (self.run is not None and self.run.ended.is_set)


class EndedRun(msgspec.Struct, frozen=True):
    """A response that has ended and is not stored."""

    request_hash: bytes
    expires_at: int
    response: Response
    log: EventLog


class IdempotencyKeys:
    """The keys of an engine. Those of stored responses are on record, in a table of their own; those of responses that
    are not stored, and of runs that start here, are in memory.

    A run with a key outlives its client, in its process, and no reader holds it back.
    """

    def __init__(
        self,
        store: ResponseStore,
        launcher: Launcher,
        responses: Responses,
        clock: Callable[[], float],
        seconds: float,
    ) -> None:
        """A key is remembered for so many `seconds`."""
        self._store, self._launcher, self._responses = store, launcher, responses
        self._clock, self._seconds = clock, seconds
        self._runs: dict[KeyName, KeyedRun] = {}
        self._ended = EndedRunCache()

    def __len__(self) -> int:
        """How many keys stand for a response in this process."""
        return len(self._runs) + len(self._ended)

    @property
    def unsettled(self) -> int:
        """How many runs with a key are in progress, or are about to be settled."""
        return len(self._runs)

    async def subscribe(
        self, request: CreateRequest, identity: Identity, key: str, on_disconnect: OnDisconnect | None = None
    ) -> Subscription:
        """Subscribe to the response that the key stands for: one that has ended, one in progress, or a new one.

        Raises `KeyReused` when that is the response to another request, `KeyInUse` when another process runs it and has
        no log of it, and the errors of an invalid request.
        """
        name, digest = (identity.tenant, identity.owner, checked_key(key)), await in_turns(fingerprint_steps(request))
        beaten: KeyInUse | None = None
        while True:
            ended, keyed = self._ended.find(name, self._clock()), self._runs.get(name)
            if keyed is not None and keyed.is_settling:
                await asyncio.wait([keyed.task])
                continue
            known = ended or keyed
            if known is not None and known.request_hash != digest:
                raise KeyReused
            if ended is not None:
                return _replay(self._responses.follow_ended(ended.response, ended.log))
            claim = self._claim(key, digest)
            if keyed is None:
                if (stored := await self._find_stored(identity, claim)) is not None:
                    return _replay(await self._responses.follow_known(identity, stored))
                if beaten is not None:
                    raise beaten
                if name in self._runs or name in self._ended:
                    continue
            try:
                if keyed is not None:
                    return _replay(await self._join(keyed, request))
                if request.background:
                    queued = await self._launcher.submit(await self._launcher.plan(request, identity), claim)
                    return self._responses.follow_log(identity, queued)
                log = self._launcher.new_log(is_replayable=bool(request.stream))
                keyed = self._runs[name] = KeyedRun(request, digest, log)
                keyed.task = asyncio.create_task(self._run(name, keyed, request, identity, claim, on_disconnect))
                return await self._join(keyed, request)
            except KeyInUse as error:  # the key was taken elsewhere: there is a response by now
                beaten = error

    async def _join(self, keyed: KeyedRun, request: CreateRequest) -> Subscription:
        """Subscribe as a client of the run; to its end, where events are wanted and the first ones are not there."""
        has_events = keyed.is_streamed and keyed.log.can_replay(-1)
        reader = keyed.log.read() if request.stream and has_events else None
        client = object()
        keyed.log.clients.append(client)
        try:
            run = await keyed.started.wait()
        except BaseException:
            if keyed.run is not None:  # it has started at the same moment
                LiveSubscription(keyed.run, reader, client).leave()
                raise
            keyed.log.clients.remove(client)
            if reader is not None:
                reader.close()
            if not keyed.log.clients:
                keyed.planning.set(ClientLeft())
            raise
        subscription = LiveSubscription(run, reader, client)
        if not request.stream or reader is not None:
            return subscription
        subscription.leave()
        return self._responses.follow_end(run)

    # ---- responses on record ----

    def _claim(self, key: str, digest: bytes) -> KeyClaim:
        now = int(self._clock())
        return KeyClaim(key=key, request_hash=digest, now=now, expires_at=now + math.ceil(self._seconds))

    async def _find_stored(self, identity: Identity, claim: KeyClaim) -> Response | None:
        """The response that the store has for the key. Raises `KeyReused` if it is that of another request."""
        claimed = await self._store.claimed(identity, claim.key, claim.now)
        if claimed is None:
            return None
        if claimed.request_hash != claim.request_hash:
            raise KeyReused
        try:
            return await self._responses.retrieve(identity, claimed.response_id)
        except ResponseNotFound:  # it was deleted just now
            return None

    # ---- the life of a keyed run ----

    async def _run(
        self,
        name: KeyName,
        keyed: KeyedRun,
        request: CreateRequest,
        identity: Identity,
        claim: KeyClaim,
        on_disconnect: OnDisconnect | None,
    ) -> None:
        """Run in a task of its own: the first request may leave while others wait for the response."""
        try:
            plan = await keyed.planning.race(partial(self._launcher.plan, request, identity))
            keyed.run = run = await self._launcher.launch(plan, claim, on_disconnect, keyed.log)
            keyed.started.set(run)
            if not keyed.log.clients:
                run.stop(ClientLeft())
            await run.wait()
            if not run.is_detached:  # else the process that continues it records its end, for the key as well
                await self._settle(name, run, claim)
        except Exception as error:
            if keyed.run is not None:
                _log.error("the end of a run with a key could not be recorded", exc_info=error)
            keyed.started.fail(error)
        finally:
            keyed.started.fail(ServerFault("The run was broken off."))
            del self._runs[name]

    async def _settle(self, name: KeyName, run: LiveRun, claim: KeyClaim) -> None:
        """A run that failed before anything was sent, or for a reason that may pass, frees its key: the next request is
        a new attempt, unless a tool was started. Every other outcome keeps the key.
        """
        if not run.clients and not run.is_durable:
            _note_unread(run)
        has_failed = run.answered.error is not None or isinstance(run.signal.reason, ClientLeft) or _may_be_retried(run)
        if not has_failed or run.tools.has_acted:
            if not run.response.store:
                run.log.recorder = NO_RECORD  # the one of the run holds the plan
                ended = EndedRun(claim.request_hash, claim.expires_at, run.response, run.log)
                self._ended.add(name, ended, run.log.buffered_bytes + 2 * len(encode(run.response)))
        elif run.response.store:
            try:
                await self._store.release(run.identity, claim.key, run.response_id)
            except AntwortError as error:
                _log.warning("the key of the response %s could not be released: %s", run.response_id, error.message)

    async def close(self) -> None:
        """Stop what is still planned, and wait until all keys are settled."""
        runs = [*self._runs.values()]
        for keyed in runs:
            keyed.planning.set(ShuttingDown())
        await asyncio.gather(*[keyed.task for keyed in runs])


def _may_be_retried(run: LiveRun) -> bool:
    """Whether it failed for a reason that may pass."""
    is_permanent = isinstance(run.error, AntwortError) and run.error.may_pass is False
    return run.response.status == "failed" and not is_permanent


class EndedRunCache:
    """A cache of ended runs whose responses are not stored.

    When they are too many or too large, the identity that has most loses its oldest, so that one that sends much does
    not evict those of others.
    """

    def __init__(self, max_count: int = MAX_ENDED_RUNS, max_bytes: int = MAX_ENDED_BYTES) -> None:
        self._max_count, self._max_bytes = max_count, max_bytes
        self._by_owner: dict[tuple[str, str], Cache[KeyName, EndedRun]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_owner.values()))

    def __contains__(self, name: KeyName) -> bool:
        return name in self._by_owner.get(name[:2], ())

    def find(self, name: KeyName, now: float) -> EndedRun | None:
        """Return the run of the key. One that has expired is removed."""
        found = self._by_owner[name[:2]].get(name) if name in self else None
        if found is not None and found.expires_at <= now:
            self.remove(name)
            return None
        return found

    def add(self, name: KeyName, run: EndedRun, size: int) -> None:
        """Add a run, unless it is larger than all may be together."""
        if size > self._max_bytes:
            return
        self._by_owner.setdefault(name[:2], Cache(max_size=self._max_bytes)).put(name, run, size)
        while (is_large := self._size() > self._max_bytes) or len(self) > self._max_count:
            most = max(self._by_owner.values(), key=lambda runs: runs.size if is_large else len(runs))
            self.remove(next(iter(most)))

    def remove(self, name: KeyName) -> None:
        if name in self:
            runs = self._by_owner[name[:2]]
            runs.discard(name)
            if not runs:
                del self._by_owner[name[:2]]

    def _size(self) -> int:
        return sum(runs.size for runs in self._by_owner.values())


def _replay(found: Subscription) -> Subscription:
    found.is_replay = True
    return found


def _note_unread(run: LiveRun) -> None:
    """Report a run that no request reports: those that asked for it have left."""
    summary = run.summary()
    usage, details = summary.response.usage, summary.response.incomplete_details
    note(
        _log,
        logging.INFO,
        "a run has ended that nobody reads any more; its key stands for it",
        response_id=run.response_id,
        key=run.identity.key or None,
        model=summary.response.model[:100],
        response_status=summary.response.status,
        reason=None if details is None else details.reason,
        turns=summary.turns,
        input_tokens=None if usage is None else usage.input_tokens,
        output_tokens=None if usage is None else usage.output_tokens,
    )


# ---- when two requests are the same ----

_KEY = re.compile(rf"[\x21-\x7e]{{1,{MAX_KEY_CHARS}}}")
_IGNORED_FIELDS = frozenset({"raw", "raw_input", "additional", "stream", "unknown_fields"})
_STEP_BYTES = 256 * 1024
"""Bytes after which other tasks get their turn."""


def checked_key(key: str) -> str:
    """Return the key. Raises `RequestError` if it cannot be one."""
    if _KEY.fullmatch(key) is None:
        problem = f"The Idempotency-Key must be 1 to {MAX_KEY_CHARS} visible ASCII characters, without spaces."
        raise RequestError(problem, code="invalid_idempotency_key")
    return key


def fingerprint(request: CreateRequest) -> bytes:
    """Return the same bytes for every way to write the same JSON: the order of keys, white space and the form of
    numbers and texts do not count. They reveal nothing of the request.

    The body as it came is one half of it. The other is the request as it was read: a program may have changed it since,
    or put it together without a body. Whether events are read does not count there: the caller of `create` and
    `respond` says that by the method.
    """
    return at_once(fingerprint_steps(request))


def fingerprint_steps(request: CreateRequest) -> Steps[bytes]:
    """As `fingerprint`, in pieces."""
    digest = sha256()
    came: Plain = _decoder.decode(request.raw)
    came.pop("input", None)
    yield
    text = encode(replace(request, raw=b"", raw_input=(), input=()))
    yield
    read: Plain = _decoder.decode(text)
    given = {name: value for name, value in read.items() if value is not None and name not in _IGNORED_FIELDS}
    yield
    digest.update(_encoder.encode((came, given, len(request.raw_input), len(request.input))))
    since = 0
    for raw in chain(request.raw_input, map(_without_id, request.input)):
        if (since := since + len(raw)) > _STEP_BYTES:
            since = 0
            yield
        value = _decoder.decode(raw)
        if len(raw) > _STEP_BYTES:
            yield
        digest.update(_encoder.encode(value))
    return digest.digest()


def _without_id(item: InputItem) -> bytes:
    """Encode the item without its id, which may be generated; the id that a reference names counts."""
    if isinstance(item, OpaqueItem):
        return encode({name: value for name, value in item.fields.items() if name != "id"})
    return encode(item if isinstance(item, ItemReference) else replace(item, id=""))


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


_decoder = msgspec.json.Decoder(float_hook=_number)
_encoder = msgspec.json.Encoder(order="sorted")
