"""Those who ask for runs: they follow them, poll or cancel, and come back to another server whenever one breaks off."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from antwort.api.events import RunEvent
from chaos.model import MODEL
from chaos.story import LABEL, opening
from raw_http import Reply, Wire, connected

T = TypeVar("T")
Manner: TypeAlias = Literal["stream", "follow", "poll", "cancel"]
"""`stream` begins with the stream of its request, `follow` with that of a GET; `cancel` follows, and has enough."""

RESPONSES = "/v1/responses"
SILENCE = 10.0
"""Seconds without a word after which a client tries another server."""
_POLLS = 0.5
BROKEN = (OSError, EOFError, TimeoutError)
ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.requires_action"})
UNDER_WAY = frozenset({"queued", "in_progress"})


class Seen(msgspec.Struct, frozen=True):
    """An event as it came over the wire."""

    number: int
    type: str
    data: bytes
    at: float
    """Seconds since 1970."""


class Told(msgspec.Struct, kw_only=True):
    """What a client knows of its run."""

    story: int
    manner: Manner
    response_id: str | None = None
    seen: list[Seen] = []
    has_asked: bool = False
    """Whether it has asked for the end."""
    has_cancelled: bool = False
    """Whether a server has said that it heard that."""
    final: bytes | None = None
    """The response as it is stored."""
    replay: list[Seen] = []
    """All of its events, read again when all was over."""
    rest: tuple[int, list[Seen]] | None = None
    """The events behind one of them, likewise."""
    log: list[RunEvent] = []
    """What is on record of it, marks included."""
    breaks: Counter[str] = msgspec.field(default_factory=Counter)
    """What came between, by its name."""
    troubles: list[str] = []
    """What no client should see."""


class Refused(Exception):
    """A server has answered, with something else than what was asked for."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(f"{reply.status}: {reply.body[:300]!r}")
        self.status = reply.status


class Client:
    """One run after the other, each as `told`."""

    def __init__(self, ports: Sequence[int], seed: int) -> None:
        self._ports, self._seed = ports, seed

    async def tell(self, told: Told) -> None:
        """Until the run has ended, however long that takes. It is filled in as it goes on."""
        fate = random.Random(f"{self._seed}.{told.story}")
        enough = fate.randint(2, 30) if told.manner == "cancel" else None
        try:
            await _Telling(told, self._ports, fate, f"{self._seed}-{told.story}").run(enough)
        except Refused as refused:
            told.troubles.append(str(refused))

    async def look_again(self, told: Told) -> None:
        """At the end: the response, all its events, and those behind one of them."""
        fate = random.Random(f"{self._seed}.{told.story}.again")
        telling = _Telling(told, self._ports, fate, "")
        try:
            told.final = await telling.retrieve()
            told.replay = await telling.events(-1)
            after = fate.randrange(max(len(told.replay) - 1, 1))
            told.rest = after, await telling.events(after)
        except Refused as refused:
            told.troubles.append(str(refused))


class Caller:
    """Asks one server after the other, each chosen by `fate`, and counts what comes between in `breaks`."""

    passing: frozenset[int] = frozenset({429})
    """Statuses below 500 after which the same request is sent again."""

    def __init__(self, ports: Sequence[int], fate: random.Random, breaks: Counter[str]) -> None:
        self._ports, self._fate, self._breaks = ports, fate, breaks

    async def _attempt(self, doing: Awaitable[T]) -> T | None:
        """What it came to; None where it broke off."""
        try:
            return await doing
        except Refused as refused:
            if refused.status < 500 and refused.status not in self.passing:
                raise
            self._breaks[str(refused.status)] += 1
        except BROKEN as broken:
            self._breaks[type(broken).__name__] += 1
        await asyncio.sleep(self._fate.uniform(0.1, 0.6))
        return None

    async def _ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        patience: float = SILENCE,
    ) -> Reply:
        async with connected(self._port()) as wire, asyncio.timeout(patience):
            wire.send(method, path, body, headers)
            reply = await wire.reply()
        if reply.status != 200:
            raise Refused(reply)
        return reply

    def _port(self) -> int:
        return self._fate.choice(self._ports)


class _Telling(Caller):
    def __init__(self, told: Told, ports: Sequence[int], fate: random.Random, key: str) -> None:
        super().__init__(ports, fate, told.breaks)
        self._told, self._key = told, key

    async def run(self, enough: int | None) -> None:
        told = self._told
        while told.response_id is None:
            await self._attempt(self._stream_in() if told.manner == "stream" else self._submit())
        if told.manner == "poll":
            while not await self._attempt(self._has_ended()):  # noqa: ASYNC110 - to poll is the point
                await asyncio.sleep(_POLLS)
        while told.manner != "poll" and not has_ended(told.seen):
            if enough is not None and not told.has_cancelled and len(told.seen) >= enough:
                await self._attempt(self._cancel())
            await self._attempt(self._follow(enough))

    async def retrieve(self) -> bytes:
        while (found := await self._attempt(self._get())) is None:
            pass
        return found

    async def events(self, after: int) -> list[Seen]:
        """All that come behind one."""
        found: list[Seen] = []
        while not has_ended(found):
            found = await self._attempt(self._all(after)) or []
        return found

    # ---- one try, at one server ----

    async def _submit(self) -> None:
        reply = await self._ask("POST", RESPONSES, self._body(), self._headers())
        self._told.response_id = msgspec.json.decode(reply.body)["id"]

    async def _stream_in(self) -> None:
        """A request that broke off before it said who it is, is made again under its key."""
        self._told.seen.clear()
        async with connected(self._port()) as wire:
            wire.send("POST", RESPONSES, self._body(), self._headers())
            await self._take(wire, None)

    async def _follow(self, enough: int | None) -> None:
        after = f"&starting_after={self._told.seen[-1].number}" if self._told.seen else ""
        async with connected(self._port()) as wire:
            wire.send("GET", f"{RESPONSES}/{self._told.response_id}?stream=true{after}")
            await self._take(wire, enough)

    async def _take(self, wire: Wire, enough: int | None) -> None:
        seen = self._told.seen
        async with aclosing(events_of(wire)) as events:
            async for event in events:
                seen.append(event)
                if self._told.response_id is None:
                    self._told.response_id = msgspec.json.decode(event.data)["response"]["id"]
                if enough is not None and not self._told.has_cancelled and len(seen) >= enough:
                    return

    async def _all(self, after: int) -> list[Seen]:
        behind = "" if after < 0 else f"&starting_after={after}"
        async with connected(self._port()) as wire:
            wire.send("GET", f"{RESPONSES}/{self._told.response_id}?stream=true{behind}")
            async with aclosing(events_of(wire)) as events:
                return [event async for event in events]

    async def _cancel(self) -> None:
        self._told.has_asked = True
        await self._ask("POST", f"{RESPONSES}/{self._told.response_id}/cancel")
        self._told.has_cancelled = True

    async def _get(self) -> bytes:
        return (await self._ask("GET", f"{RESPONSES}/{self._told.response_id}")).body

    async def _has_ended(self) -> bool:
        return msgspec.json.decode(await self._get())["status"] not in UNDER_WAY

    def _body(self) -> dict[str, Any]:
        return {
            "model": MODEL,
            "input": opening(self._told.story),
            "background": True,
            "stream": self._told.manner == "stream",
            "tools": [{"type": "mcp", "server_label": LABEL}],
        }

    def _headers(self) -> dict[str, str]:
        return {"idempotency-key": self._key}


def has_ended(seen: Sequence[Seen]) -> bool:
    return bool(seen) and seen[-1].type in ENDS


class _Head(msgspec.Struct):
    sequence_number: int
    type: str


_read_head = msgspec.json.Decoder(_Head)


async def events_of(wire: Wire) -> AsyncGenerator[Seen, None]:
    """The events of a streamed answer; half of one does not count. Raises `Refused`."""
    async with asyncio.timeout(SILENCE):
        reply = await wire.head()
    if reply.status != 200:
        async with asyncio.timeout(SILENCE):
            with contextlib.suppress(KeyError):
                reply.chunks.append(await wire.reader.readexactly(int(reply.headers["content-length"])))
        raise Refused(reply)
    left = b""
    while True:
        async with asyncio.timeout(SILENCE):
            chunk = await wire.chunk()
        *frames, left = (left + chunk).split(b"\n\n")
        for frame in frames:
            if event := _event(frame):
                yield event
        if not chunk:
            return


def _event(frame: bytes) -> Seen | None:
    """None: a comment, or the last frame."""
    for line in frame.split(b"\n"):
        if line.startswith(b"data: {"):
            data = line.removeprefix(b"data: ")
            head = _read_head.decode(data)
            return Seen(head.sequence_number, head.type, data, time.time())
    return None
