"""A whole server that logs in to its MCP servers by OAuth, over the SDK's requests and our own."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator

import pytest

from antwort.config import Secret
from antwort.config.settings import McpServerSettings, OAuthSettings
from antwort.testing.mcp import Faults, TryServer, served
from mcp_house import called, house, listed, nothing_left_behind
from replay_backend import Answer, serve, whole

ECHO = ("echo", {"text": "hello"})


@pytest.fixture(autouse=True)
async def counted() -> AsyncIterator[None]:
    async with nothing_left_behind():
        yield


def token(value: str) -> Answer:
    return whole(json.dumps({"access_token": value, "token_type": "Bearer", "expires_in": 3600}).encode())


def logged_in(url: str, office: str) -> McpServerSettings:
    oauth = OAuthSettings(client_id="depot", client_secret=Secret("sesame"), token_url=f"{office}/token")
    return McpServerSettings(label="try", url=url, oauth=oauth)


async def test_a_token_is_fetched_once_for_all_requests_and_again_when_it_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with (
        serve(token("one"), token("two")) as office,
        served(TryServer(faults=Faults(token="one"))) as server,
        house(logged_in(server.url, office.url)) as ours,
    ):
        for _ in range(3):
            assert called(await ours.ask("try", ECHO, ECHO))[0]["output"] == "hello"
        assert len(office.requests) == 1
        server.server.faults = Faults(token="two")
        assert [item["output"] for item in called(await ours.ask("try", ECHO, ECHO))] == ["hello"] * 2
        assert len(office.requests) == 2
    assert "sesame" not in caplog.text


async def test_a_login_that_is_refused_shows_as_a_list_that_cannot_be_had() -> None:
    async with serve(whole(b'{"error": "invalid_client"}', 401)) as office, served() as server:
        server.server.faults = Faults(token="one")
        async with house(logged_in(server.url, office.url)) as ours:
            response = await ours.ask("try")
    assert response["status"] == "completed"
    assert listed(response)["tools"] == []
    assert listed(response)["error"]
