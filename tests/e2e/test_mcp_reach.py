"""A whole server, and requests that name servers where they may not, or bring credentials that nobody else may see."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from antwort.config.settings import McpSettings, ReachSettings
from antwort.testing.mcp import Faults, TryServer, served
from evil_urls import EVIL
from mcp_house import House, called, house, listed, nothing_left_behind, request
from replay_backend import serve, whole
from serving import RESPONSES
from settings_kit import in_front_of

ECHO = ("echo", {"text": "hello"})
FAR = McpSettings(reach=ReachSettings(loopback="never"))
CLOCK = {"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture(autouse=True)
async def counted() -> AsyncIterator[None]:
    async with nothing_left_behind():
        yield


def theirs(url: str, **more: Any) -> dict[str, Any]:
    return {"server_label": "theirs", "server_url": url, "require_approval": "never", **more}


# ---- where ----


@pytest.mark.proves("CP-030", "CP-036")
async def test_every_evil_address_is_refused_before_anything_is_asked() -> None:
    async with house(mcp=FAR) as ours:
        for url in EVIL:
            reply = await ours.reply(theirs(url))
            assert (reply.status, reply.error["param"]) == (400, "tools[0].server_url"), url
        assert ours.backend.requests == []


async def test_a_server_on_this_machine_may_be_named_where_antwort_is_there_for_this_machine_alone() -> None:
    async with served() as server:
        async with house() as near:
            assert called(await near.ask(theirs(server.url), ECHO))[0]["output"] == "hello"
        async with house(mcp=FAR) as far:
            assert (await far.reply(theirs(server.url))).status == 400


class Names:
    """What names stand for: each time something else, if it is to be so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: str) -> None:
        self._answers, self._real = list(answers), socket.getaddrinfo
        self.asked: list[str] = []
        monkeypatch.setattr(socket, "getaddrinfo", self)

    def __call__(self, host: Any, port: Any, *rest: Any, **named: Any) -> Any:
        if not str(host).endswith(".example.com"):
            return self._real(host, port, *rest, **named)
        self.asked.append(host)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return self._real(answer, port, *rest, **named)


@pytest.mark.parametrize("answers", [("127.0.0.1",), ("127.0.0.1", "93.184.216.34"), ("10.0.0.1",)])
async def test_a_name_that_stands_for_somebodys_own_network_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[str, ...]
) -> None:
    names = Names(monkeypatch, *answers)
    async with served() as server, house(mcp=McpSettings(reach=ReachSettings(http=True))) as ours:
        url = server.url.replace("127.0.0.1", "rebound.example.com")
        response = await ours.ask(theirs(url))
        assert response["status"] == "completed"
        assert listed(response)["tools"] == []
        assert "may not be named" in listed(response)["error"]
        assert not [answer for answer in answers if answer in json.dumps(response)]
        assert server.server.record.count("opened") == 0
    assert names.asked


@pytest.mark.parametrize("location", ["http://127.0.0.1:{port}/mcp", "http://169.254.169.254/", "file:///etc/passwd"])
async def test_a_server_leads_nobody_elsewhere(location: str) -> None:
    async with served() as inner:
        port = inner.url.rpartition(":")[2].partition("/")[0]
        redirect = whole(b"", 307, {"location": location.format(port=port)})
        async with serve(redirect) as outer:
            there = outer.url.removesuffix("/v1").removeprefix("http://")
            allowed = McpSettings(reach=ReachSettings(loopback="never", allow=(there,)))
            async with house(mcp=allowed) as ours:
                response = await ours.ask(theirs(f"http://{there}/mcp"))
        assert listed(response)["error"]
        assert inner.server.record.count("opened") == 0
        assert outer.requests, "that one was asked"


@pytest.mark.proves("CP-030", "CP-036")
async def test_a_header_that_may_not_be_sent_is_told_by_its_name() -> None:
    async with house() as ours:
        for headers, field in (
            ({"Host": "x"}, "headers.Host"),
            ({"X-Key": "a\r\nb"}, "headers.X-Key"),
            ({f"X-{i}": "x" for i in range(100)}, "headers"),
        ):
            reply = await ours.reply(theirs("https://tools.example.com/mcp", headers=headers))
            assert (reply.status, reply.error["param"]) == (400, f"tools[0].{field}")


# ---- credentials ----


def secrets(url: str) -> dict[str, Any]:
    return theirs(f"{url}?k=sesame1", authorization="sesame2", headers={"X-Key": "sesame3"})


async def paused(ours: House, declared: dict[str, Any]) -> dict[str, Any]:
    """A turn in which the server's call waits for a result of the client's."""
    body = request(declared, ECHO, ("clock", {}))
    reply = await ours.server.ask("POST", RESPONSES, {**body, "tools": [*body["tools"], CLOCK]})
    response: dict[str, Any] = reply.json()
    assert response["status"] == "requires_action", response
    return response


async def gone_on(ours: House, first: dict[str, Any]) -> dict[str, Any]:
    (asked,) = [item for item in first["output"] if item["type"] == "function_call"]
    noon = {"type": "function_call_output", "call_id": asked["call_id"], "output": "noon"}
    body = {"model": "test-model", "input": [noon], "previous_response_id": first["id"]}
    response: dict[str, Any] = (await ours.server.ask("POST", RESPONSES, body)).json()
    return response


async def test_a_call_that_waited_is_run_with_what_the_request_brought_and_nobody_sees_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    settings = in_front_of(data=tmp_path)
    async with served(TryServer(faults=Faults(token="sesame2"))) as server:
        async with house(settings=settings) as ours:
            first = await paused(ours, secrets(server.url))
            seen = [first, *[await answer(ours, first["id"], path) for path in ("", "/input_items")]]
            assert "sesame" not in json.dumps(seen)
        assert "sesame" not in written_in(tmp_path)
        async with house(settings=settings) as later:  # another process, for all that it knows
            second = await gone_on(later, first)
        assert called(second)[0]["output"] == "hello"
        assert "sesame" not in json.dumps(second)
    assert "sesame" not in caplog.text
    assert "sesame" not in written_in(tmp_path)


async def test_a_call_that_is_approved_later_is_run_with_what_the_request_brought(tmp_path: Path) -> None:
    settings = in_front_of(data=tmp_path)
    async with served(TryServer(faults=Faults(token="sesame2"))) as server:
        async with house(settings=settings) as ours:
            first = await ours.ask({**secrets(server.url), "require_approval": "always"}, ECHO)
        (asked,) = [item for item in first["output"] if item["type"] == "mcp_approval_request"]
        assert "sesame" not in json.dumps(first)
        async with house(settings=settings) as later:
            approval = {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": True}
            body = {"model": "test-model", "input": [approval], "previous_response_id": first["id"]}
            second = (await later.server.ask("POST", RESPONSES, body)).json()
        assert called(second)[0]["output"] == "hello"


async def test_a_key_that_is_gone_answers_the_call_with_an_error_that_says_so(tmp_path: Path) -> None:
    async with served(TryServer(faults=Faults(token="sesame2"))) as server:
        async with house(settings=in_front_of(data=tmp_path)) as ours:
            first = await paused(ours, secrets(server.url))
        other = in_front_of(data=tmp_path)
        (tmp_path / "seal.key").unlink()
        calls = server.server.record.count("called")
        async with house(settings=other) as later:
            second = await gone_on(later, first)
        assert "lost" in json.dumps(called(second)[0]["error"])
        assert server.server.record.count("called") == calls


async def answer(ours: House, response_id: str, path: str) -> Any:
    reply = await ours.server.ask("GET", f"{RESPONSES}/{response_id}{path}")
    assert reply.status == 200
    return reply.json()


def written_in(folder: Path) -> str:
    return b"".join(each.read_bytes() for each in folder.rglob("*") if each.is_file()).decode("latin-1")
