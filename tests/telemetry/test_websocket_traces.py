"""What a WebSocket leaves in the log and in the metrics: a line and a count for each turn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from antwort.providers.base import ChatRequest, Delta
from antwort.server.exchange import REQUEST_ID
from antwort.testing import ScriptedProvider, answer, say
from serving import serving, until
from socket_kit import connected
from telemetry_kit import Wired, of, value


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    """The fields of the lines of an event."""
    noted = [record for record in caplog.records if hasattr(record, "said")]
    found: list[dict[str, Any]] = [{**vars(record)["said"], **vars(record)["fields"]} for record in noted]
    return [fields for fields in found if fields.get("event") == event]


async def test_each_turn_is_one_line_and_the_connection_another(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "antwort.transport")
    wired = Wired(ScriptedProvider(answer(say("Hello"))))
    async with serving(wired.engine, wired.app) as server:
        async with connected(server.port, headers={"x-request-id": "mine"}) as socket:
            response = await socket.ask()
            await socket.create(temperature=9)
            await socket.error()
            await socket.say("{")
            await socket.error()
            await socket.say({"type": "response.processed"})
        await until(lambda: wired.app.sockets == 0)
    first, second, third = lines(caplog, "request")
    assert (first["method"], first["path"], first["status"]) == ("WS", "/v1/responses", 200)
    assert (first["request_id"], first["response_id"]) == ("mine.1", response.id)
    assert (first["response_status"], first["turns"]) == ("completed", 1)
    assert (second["status"], second["error"], second["request_id"]) == (400, "invalid_value", "mine.2")
    assert (third["status"], third["error"]) == (400, "invalid_json")
    [connection] = lines(caplog, "websocket")
    assert (connection["turns"], connection["request_id"]) == (3, "mine")
    assert not any(record.levelno > logging.INFO for record in caplog.records)


async def test_the_line_says_why_a_response_is_incomplete(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "antwort.transport")
    wired = Wired(ScriptedProvider(answer(say("Hel"), finish="length"), answer(say("Hello"))))
    async with serving(wired.engine, wired.app) as server, connected(server.port) as socket:
        await socket.ask()
        await socket.ask()
    cut, whole = lines(caplog, "request")
    assert (cut["response_status"], cut["reason"]) == ("incomplete", "max_output_tokens")
    assert "reason" not in whole


async def test_who_is_refused_leaves_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "antwort.transport")
    wired = Wired(ScriptedProvider())
    async with serving(wired.engine, wired.app) as server:
        with pytest.raises(InvalidStatus):
            async with connected(server.port, "/v1/secrets"):
                pass
    [line] = lines(caplog, "request")
    assert (line["method"], line["status"], line["error"]) == ("GET", 404, "unknown_url")
    assert lines(caplog, "websocket") == []
    assert not any(record.levelno > logging.INFO for record in caplog.records)


async def test_a_client_that_goes_is_a_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "antwort.transport")
    wired = Wired(ScriptedProvider(answer(say("Hello"), asyncio.Event())))
    async with serving(wired.engine, wired.app) as server:
        async with connected(server.port) as socket:
            await socket.create()
            await socket.until("response.output_text.delta")
        await until(lambda: wired.app.sockets == 0)
    [line] = lines(caplog, "request")
    assert (line["status"], line["response_status"]) == (499, "cancelled")


async def test_turns_and_connections_are_counted() -> None:
    go = asyncio.Event()
    wired = Wired(ScriptedProvider(answer(say("Hello"), go), answer(say("Hello"))))
    async with serving(wired.engine, wired.app) as server:
        async with connected(server.port) as socket, connected(server.port):
            await socket.create()
            await socket.until("response.output_text.delta")
            found = wired.samples()
            assert value(found, "antwort_websockets_open") == 2
            assert value(found, "antwort_streams_open") == 1
            go.set()
            await socket.until("response.completed")
            await socket.ask()
            await socket.say("{")
            await socket.error()
            assert value(wired.samples(), "antwort_streams_open") == 0
        await until(lambda: wired.app.sockets == 0)
    found = wired.samples()
    assert value(found, "antwort_websockets_open") == 0
    counted = of(found, "http_server_request_duration_seconds_count")
    assert {key: count for key, count in counted.items() if "WS" in key} == {
        ("WS", "200", "/v1/responses"): 2,
        ("WS", "400", "/v1/responses"): 1,
    }
    assert of(found, "antwort_request_errors_total") == {("invalid_json",): 1}


async def test_what_works_for_a_turn_knows_which() -> None:
    seen: list[str] = []

    class Noting(ScriptedProvider):
        def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
            seen.append(REQUEST_ID.get())
            return super().infer(request)

    wired = Wired(Noting(answer(say("one")), answer(say("two"))))
    mine = {"x-request-id": "mine"}
    async with serving(wired.engine, wired.app) as server, connected(server.port, headers=mine) as socket:
        await socket.ask()
        await socket.ask()
    assert seen == ["mine.1", "mine.2"]
