"""Logging in to a server: what each request carries, and what is done when that is not taken."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

import pytest

from antwort.net.ssrf import AddressPolicy
from antwort.tools.mcp.auth import Login, Token, make_login, read_token
from antwort.tools.mcp.base import ClientCredentials, NotReached, ServerSpec, ServerUnavailable, Unauthorized
from antwort.tools.mcp.endpoint import HttpClients, McpEndpoint
from replay_backend import Answer, Backend, whole

SECRET = "s3 cret/"


class Office(Backend):
    """A server that wants a token, and beside it where tokens are given out: each time another one."""

    def __init__(self) -> None:
        super().__init__(())
        self.given = 0
        self.announces = True
        self.wants_token = True
        self.takes_basic = True
        self.challenge = "Bearer"
        self.resource: dict[str, Any] = {}
        self.metadata_status = 200
        self.refuses = False
        self.answer: dict[str, Any] = {}
        self.written: bytes | None = None
        """The body of the answer, instead of a token."""
        """What the answer of the token endpoint says beside the token."""
        self._answers = (Answer(),)

    @property
    def origin(self) -> str:
        return self.url.removesuffix("/v1")

    @property
    def paths(self) -> list[str]:
        return [f"{seen.method} {seen.path}" for seen in self.requests]

    def chosen(self) -> Answer:
        seen = self.requests[-1]
        match seen.path:
            case "/mcp":
                return self._door(seen.headers)
            case "/.well-known/oauth-protected-resource/mcp" | "/meta" if self.announces:
                there = {"resource": f"{self.origin}/mcp", "authorization_servers": [f"{self.origin}/auth"]}
                return _json({**there, **self.resource}, self.metadata_status)
            case "/.well-known/oauth-authorization-server/auth" if self.announces:
                return _json(self._metadata())
            case "/auth/token" | "/token":
                return self._desk(seen.headers, parse_qs(seen.body.decode()))
            case _:
                return _json({}, 404)

    def _door(self, headers: Mapping[str, str]) -> Answer:
        if not self.wants_token or headers.get("authorization") == f"Bearer token-{self.given}":
            return _json({"jsonrpc": "2.0", "id": 0, "result": {}})
        return whole(b"", 401, {"www-authenticate": self.challenge})

    def _desk(self, headers: Mapping[str, str], form: Mapping[str, list[str]]) -> Answer:
        basic = "Basic " + base64.b64encode(b"depot%3A1:s3%20cret%2F").decode()
        knows = (self.takes_basic and headers.get("authorization") == basic) or form.get("client_secret") == [SECRET]
        if self.refuses or not knows or form["grant_type"] != ["client_credentials"]:
            return _json({"error": "invalid_client", "error_description": SECRET}, 401)
        if self.written is not None:
            return whole(self.written)
        self.given += 1
        return _json({"access_token": f"token-{self.given}", "token_type": "Bearer", **self.answer})

    def _metadata(self) -> dict[str, Any]:
        there = f"{self.origin}/auth"
        return {
            "issuer": there,
            "authorization_endpoint": f"{there}/authorize",
            "token_endpoint": f"{there}/token",
            "response_types_supported": ["code"],
            "grant_types_supported": ["client_credentials"],
        }


def _json(body: object, status: int = 200) -> Answer:
    return whole(json.dumps(body).encode(), status)


@asynccontextmanager
async def office() -> AsyncGenerator[Office, None]:
    there = Office()
    server = await asyncio.start_server(there.accept, "127.0.0.1", 0)
    there.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield there
    finally:
        server.close()
        await there.close()


@asynccontextmanager
async def login_at(there: Office, *, direct: bool = False, issuer: str | None = None) -> AsyncGenerator[Login, None]:
    credentials = ClientCredentials(
        client_id="depot:1",
        client_secret=SECRET,
        scopes=("read", "write"),
        token_url=f"{there.origin}/auth/token" if direct else None,
        issuer=issuer,
    )
    spec = ServerSpec(label="depot", url=f"{there.origin}/mcp", headers={"X-Team": "a"}, oauth=credentials)
    clients = HttpClients(spec)
    try:
        yield make_login(spec, clients)
    finally:
        await clients.close()


def both() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("direct", [False, True], ids=["announced", "told"])


async def test_headers_that_stay_the_same_have_no_second_try() -> None:
    spec = ServerSpec(label="depot", url="http://127.0.0.1:81/mcp", headers={"Authorization": "Bearer sesame"})
    login = make_login(spec, HttpClients(spec))
    assert await login.headers() is await login.headers()
    assert await login.headers() == {"Authorization": "Bearer sesame"}
    assert not await login.renew(await login.headers())


async def test_nobody_logs_in_by_oauth_to_a_strangers_server() -> None:
    credentials = ClientCredentials(client_id="a", client_secret="b", token_url="http://127.0.0.1:81/token")
    spec = ServerSpec(label="depot", url="http://127.0.0.1:81/mcp", oauth=credentials, is_untrusted=True)
    login = make_login(spec, HttpClients(spec, AddressPolicy(loopback=True)))
    assert await login.headers() == {}
    assert not await login.renew({})


@both()
async def test_a_token_is_fetched_once_and_used_until_it_is_refused(direct: bool) -> None:
    async with office() as there, login_at(there, direct=direct) as login:
        first = await login.headers()
        assert first == {"X-Team": "a", "Authorization": "Bearer token-1"}
        assert await login.headers() is first
        assert await login.renew(first)
        assert await login.headers() == {"X-Team": "a", "Authorization": "Bearer token-2"}
    assert there.given == 2


@both()
async def test_those_who_come_at_the_same_time_wait_for_one_renewal(direct: bool) -> None:
    async with office() as there, login_at(there, direct=direct) as login:
        several = await asyncio.gather(*[login.headers() for _ in range(5)])
        assert there.given == 1
        assert all(await asyncio.gather(*[login.renew(several[0]) for _ in range(5)]))
        assert there.given == 2


@both()
async def test_requests_carry_the_token_and_are_sent_again_when_it_is_refused(direct: bool) -> None:
    async with office() as there, login_at(there, direct=direct) as login:
        clients = HttpClients(ServerSpec(label="depot", url=f"{there.origin}/mcp"))
        endpoint = McpEndpoint(clients, login)
        for expected in (1, 8):
            async with await endpoint.send("POST", {"X-Own": "1"}, b"{}") as reply:
                assert reply.status == 200
                await reply.read(1000)
            assert (await login.headers())["Authorization"] == f"Bearer token-{expected}"
            there.given = 7  # it knows no token of before any more
        await clients.close()


@both()
async def test_a_token_is_renewed_before_it_ends(direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with office() as there, login_at(there, direct=direct) as login:
        there.answer = {"expires_in": 100}
        clock = asyncio.get_running_loop().time
        first = await login.headers()
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock() + 60)
        assert await login.headers() is first
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock() + 75)
        assert await login.headers() != first


@both()
async def test_a_login_that_is_refused_is_told_without_a_secret(direct: bool, caplog: pytest.LogCaptureFixture) -> None:
    async with office() as there, login_at(there, direct=direct) as login:
        there.refuses = True
        with pytest.raises(Unauthorized) as caught:
            await login.headers()
        assert SECRET not in f"{caught.value} {caplog.text}"
        assert "127.0.0.1" not in str(caught.value)


@both()
async def test_an_office_that_is_not_there_is_not_reached(direct: bool) -> None:
    async with office() as there:
        pass
    async with login_at(there, direct=direct) as login:
        with pytest.raises(NotReached):
            await login.headers()


async def test_credentials_go_in_the_form_where_they_are_not_taken_otherwise() -> None:
    async with office() as there, login_at(there, direct=True) as login:
        there.takes_basic = False
        assert (await login.headers())["Authorization"] == "Bearer token-1"
    first, second = (parse_qs(seen.body.decode()) for seen in there.requests)
    assert first["scope"] == second["scope"] == ["read write"]
    assert "client_secret" not in first


async def test_a_server_that_wants_no_token_is_asked_once_whether_it_does() -> None:
    async with office() as there, login_at(there) as login:
        there.wants_token = False
        assert await login.headers() is await login.headers()
        assert await login.headers() == {"X-Team": "a"}
        assert there.paths == ["POST /mcp"]
        there.wants_token = True
        assert await login.renew(await login.headers())
        assert (await login.headers())["Authorization"] == "Bearer token-1"


async def test_tokens_come_only_from_the_issuer_that_the_operator_names() -> None:
    async with office() as there, login_at(there, issuer=f"{there.origin}/auth") as login:
        assert (await login.headers())["Authorization"] == "Bearer token-1"
    async with office() as there, login_at(there, issuer="https://other.example") as login:
        with pytest.raises(Unauthorized):
            await login.headers()
    assert there.given == 0


@pytest.mark.parametrize(
    "answer",
    [{"token_type": "mac"}, {"access_token": "two\r\nlines"}, {"access_token": None}, {"access_token": "with space"}],
)
async def test_what_cannot_be_sent_as_a_token_is_none(answer: dict[str, Any]) -> None:
    async with office() as there, login_at(there, direct=True) as login:
        there.answer = answer
        with pytest.raises(Unauthorized):
            await login.headers()


async def test_an_answer_that_is_not_json_is_no_token() -> None:
    async with office() as there, login_at(there, direct=True) as login:
        there.written = b"<html>"
        with pytest.raises(Unauthorized):
            await login.headers()


@pytest.mark.parametrize(("said", "used"), [(3600, 3570.0), ("3600", 3570.0), (20, 10.0), (None, None), ("soon", None)])
def test_how_long_a_token_is_used(said: object, used: float | None) -> None:
    assert read_token({"access_token": "a", "expires_in": said}).seconds == used


async def test_one_refusal_that_lasts_is_one_more_try_and_no_more() -> None:
    given = [Token("a"), Token("a"), Token("b")]

    async def fetch() -> Token:
        return given.pop(0)

    login = Login({}, fetch)
    used = await login.headers()
    assert not await login.renew(used), "the same token again is not worth a try"
    assert await login.renew(used)


@pytest.mark.parametrize("direct", [False, True])
async def test_scopes_are_those_of_the_operator(direct: bool) -> None:
    async with office() as there, login_at(there, direct=direct) as login:
        await login.headers()
    assert parse_qs(there.requests[-1].body.decode())["scope"] == ["read write"]


async def test_scopes_are_those_that_the_server_wants_where_the_operator_names_none() -> None:
    async with office() as there:
        there.resource = {"scopes_supported": ["use", "see"]}
        credentials = ClientCredentials(client_id="depot:1", client_secret=SECRET)
        spec = ServerSpec(label="depot", url=f"{there.origin}/mcp", oauth=credentials)
        clients = HttpClients(spec)
        await make_login(spec, clients).headers()
        await clients.close()
        form = parse_qs(there.requests[-1].body.decode())
        assert (form["scope"], form["resource"]) == (["use see"], [f"{there.origin}/mcp"])


@pytest.mark.parametrize(
    "resource",
    [
        {"resource": "https://other.example/mcp"},
        {"resource": "{origin}/mcp-other"},
        {"authorization_servers": ["http://[x/"]},
        {"authorization_servers": ["{origin}/elsewhere"]},
        {"authorization_servers": []},
    ],
    ids=["another server", "another path", "no address", "another issuer", "no issuer"],
)
async def test_metadata_that_are_of_something_else_lead_to_no_token(resource: dict[str, Any]) -> None:
    async with office() as there, login_at(there, issuer="https://issuer.example") as login:
        there.resource = json.loads(json.dumps(resource).replace("{origin}", there.origin))
        with pytest.raises(ServerUnavailable):
            await login.headers()
    assert there.given == 0


async def test_metadata_that_cannot_be_had_now_lead_to_no_token() -> None:
    async with office() as there, login_at(there) as login:
        there.metadata_status = 503
        with pytest.raises(Unauthorized):
            await login.headers()
    assert there.given == 0


async def test_a_server_says_itself_where_its_metadata_are() -> None:
    async with office() as there, login_at(there) as login:
        there.challenge = f'Bearer realm="x", resource_metadata="{there.origin}/meta"'
        assert (await login.headers())["Authorization"] == "Bearer token-1"
    assert there.paths[:2] == ["POST /mcp", "GET /meta"]


async def test_a_server_without_metadata_gives_out_tokens_itself() -> None:
    async with office() as there, login_at(there) as login:
        there.announces = False
        assert (await login.headers())["Authorization"] == "Bearer token-1"
    assert there.paths[-1] == "POST /token"


def test_nothing_shows_a_secret() -> None:
    credentials = ClientCredentials(client_id="a", client_secret="sesame")
    spec = ServerSpec(label="depot", headers={"Authorization": "sesame"}, oauth=credentials)
    assert "sesame" not in f"{credentials} {spec} {Token('sesame')} {Login(spec.headers)}"
