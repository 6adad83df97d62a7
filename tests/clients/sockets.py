"""Turns over the WebSocket of openai-python, each held against the grammar of streams."""

from __future__ import annotations

import json
from typing import Any

from openai.resources.responses.responses import AsyncResponsesConnection
from openai.types.responses import Response

from antwort.testing import check_frames
from clients.ground import MODEL
from clients.strict import Json

_TERMINAL = ("response.completed", "response.failed", "response.incomplete")


class Refused(Exception):
    """The server answered a turn with an error event."""

    def __init__(self, event: Json) -> None:
        super().__init__(json.dumps(event))
        self.status, self.error = event["status"], event["error"]


async def turn(connection: AsyncResponsesConnection, said: Any, **more: Any) -> Response:
    """The response that one `response.create` came to. Raises `Refused`."""
    await connection.response.create(**{"model": MODEL, "input": said, **more})
    frames: list[str] = []
    while True:
        data = await connection.recv_bytes()
        event: Any = connection.parse_event(data)
        plain: Json = json.loads(data)
        if plain["type"] == "error":
            raise Refused(plain)
        frames.append(f"event: {plain['type']}\ndata: {data.decode()}\n\n")
        if plain["type"] in _TERMINAL:
            check_frames("".join([*frames, "data: [DONE]\n\n"]))
            assert isinstance(event.response, Response)
            return event.response
