"""A client on a WebSocket that holds every stream against the grammar."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from antwort import Response
from antwort.testing import StreamChecker
from antwort.testing.frames import read_event

PATIENCE = 20.0
UPGRADE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}
"""The headers by which a request asks for a WebSocket."""
CREATE: dict[str, Any] = {"type": "response.create", "model": "scripted", "input": "Hello"}


class Socket:
    """One connection, from the side of the client. With `strict`, streams must be in the standard's words."""

    def __init__(self, wire: ClientConnection, *, strict: bool = False) -> None:
        self.wire, self._strict = wire, strict
        self.heard: list[dict[str, Any]] = []
        """All that came, in its order."""

    async def say(self, message: Mapping[str, Any] | str | bytes) -> None:
        await self.wire.send(json.dumps(message) if isinstance(message, Mapping) else message)

    async def create(self, **fields: Any) -> None:
        await self.say({**CREATE, **fields})

    async def hear(self) -> dict[str, Any]:
        """The next message."""
        text = await self.wire.recv()
        assert isinstance(text, str), "events are text"
        self.heard.append(message := json.loads(text))
        return dict(message)

    async def until(self, kind: str) -> dict[str, Any]:
        """The next message of a type; those before it are passed over."""
        while (message := await self.hear())["type"] != kind:
            pass
        return message

    async def turn(self, *, keepalive: bool = False) -> Response:
        """The response at the end of the stream that comes now, which must be whole."""
        checker, last = StreamChecker(keepalive=keepalive), ""
        while last not in TERMINAL:
            plain = await self.hear()
            last = plain["type"]
            checker.feed(*read_event(plain, name=last, strict=self._strict))
        return checker.finish()

    async def ask(self, **fields: Any) -> Response:
        await self.create(**fields)
        return await self.turn()

    async def error(self) -> dict[str, Any]:
        """The error that comes now: its status, and what it says."""
        message = await self.hear()
        assert message["type"] == "error", message
        assert {*message} <= {"type", "status", "error", "headers", "stream_id"}
        assert {"code", "message"} <= {*message["error"]}
        return {"status": message["status"], **message["error"]}


TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed", "response.requires_action"})


@asynccontextmanager
async def connected(
    port: int,
    path: str = "/v1/responses",
    headers: Mapping[str, str] | None = None,
    *,
    strict: bool = False,
    name: str = "127.0.0.1",
    **options: Any,
) -> AsyncIterator[Socket]:
    """`name` is what the server is called by; where that is not its address, `host` has to say what is."""
    options = {"open_timeout": PATIENCE, "close_timeout": PATIENCE, "max_size": None, "proxy": None, **options}
    async with connect(f"ws://{name}:{port}{path}", additional_headers=headers, **options) as wire:
        yield Socket(wire, strict=strict)
