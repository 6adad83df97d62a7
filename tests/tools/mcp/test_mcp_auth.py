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
from msgspec.structs import replace

from antwort.net.ssrf import AddressPolicy
from antwort.tools.mcp.auth import Token, TokenSource, read_token
from antwort.tools.mcp.base import ClientCredentials, NotReached, ServerSpec, ServerUnavailable, Unauthorized
from antwort.tools.mcp.endpoint import McpEndpoint
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


def spec_of(there: Office, *, direct: bool = False, issuer: str | None = None) -> ServerSpec:
    credentials = ClientCredentials(
        client_id="depot:1",
        client_secret=SECRET,
        scopes=("read", "write"),
        token_url=f"{there.origin}/auth/token" if direct else None,
        issuer=issuer,
    )
    return ServerSpec(label="depot", url=f"{there.origin}/mcp", headers={"X-Team": "a"}, oauth=credentials)


@asynccontextmanager
async def endpoint_of(spec: ServerSpec, policy: AddressPolicy | None = None) -> AsyncGenerator[McpEndpoint, None]:
    endpoint = McpEndpoint(spec, policy)
    try:
        yield endpoint
    finally:
        await endpoint.close()


@asynccontextmanager
async def tokens_at(
    there: Office, *, direct: bool = False, issuer: str | None = None
) -> AsyncGenerator[TokenSource, None]:
    async with endpoint_of(spec := spec_of(there, direct=direct, issuer=issuer)) as endpoint:
        assert spec.oauth is not None
        yield TokenSource(spec.url, spec.oauth, endpoint)


async def sent(endpoint: McpEndpoint) -> int:
    async with await endpoint.send("POST", {"X-Own": "1"}, b"{}") as reply:
        await reply.read(1000)
        return reply.status


def both() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("direct", [False, True], ids=["announced", "told"])


async def test_headers_that_stay_the_same_have_no_second_try() -> None:
    async with office() as there:
        spec = ServerSpec(label="depot", url=f"{there.origin}/mcp", headers={"Authorization": "Bearer sesame"})
        async with endpoint_of(spec) as endpoint:
            with pytest.raises(Unauthorized):
                await sent(endpoint)
    (seen,) = there.requests
    assert seen.headers["authorization"] == "Bearer sesame"


async def test_nobody_logs_in_by_oauth_to_a_strangers_server() -> None:
    async with office() as there:
        spec = replace(spec_of(there, direct=True), is_untrusted=True)
        async with endpoint_of(spec, AddressPolicy(loopback=True)) as endpoint:
            with pytest.raises(Unauthorized):
                await sent(endpoint)
    assert there.paths == ["POST /mcp"]
    assert "authorization" not in there.requests[0].headers


@both()
async def test_a_token_is_fetched_once_and_used_until_it_is_refused(direct: bool) -> None:
    async with office() as there, tokens_at(there, direct=direct) as tokens:
        first = await tokens.get()
        assert first == Token("token-1")
        assert await tokens.get() is first
        second = await tokens.renew(first)
        assert second == await tokens.get() == Token("token-2")
        assert await tokens.renew(first) is second, "another caller has renewed it"
    assert there.given == 2


@both()
async def test_those_who_come_at_the_same_time_wait_for_one_renewal(direct: bool) -> None:
    async with office() as there, tokens_at(there, direct=direct) as tokens:
        several = await asyncio.gather(*[tokens.get() for _ in range(5)])
        assert there.given == 1
        assert set(await asyncio.gather(*[tokens.renew(several[0]) for _ in range(5)])) == {Token("token-2")}
        assert there.given == 2


@both()
async def test_requests_carry_the_token_and_are_sent_again_when_it_is_refused(direct: bool) -> None:
    async with office() as there, endpoint_of(spec_of(there, direct=direct)) as endpoint:
        for expected in (1, 8):
            assert await sent(endpoint) == 200
            seen = there.requests[-1].headers
            assert (seen["authorization"], seen["x-team"]) == (f"Bearer token-{expected}", "a")
            there.given = 7  # it knows no token of before any more


@both()
async def test_a_token_is_renewed_before_it_ends(direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with office() as there, tokens_at(there, direct=direct) as tokens:
        there.answer = {"expires_in": 100}
        clock = asyncio.get_running_loop().time
        first = await tokens.get()
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock() + 60)
        assert await tokens.get() is first
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock() + 75)
        assert await tokens.get() != first


@both()
async def test_a_login_that_is_refused_is_told_without_a_secret(direct: bool, caplog: pytest.LogCaptureFixture) -> None:
    async with office() as there, tokens_at(there, direct=direct) as tokens:
        there.refuses = True
        with pytest.raises(Unauthorized) as caught:
            await tokens.get()
        assert SECRET not in f"{caught.value} {caplog.text}"
        assert "127.0.0.1" not in str(caught.value)


@both()
async def test_an_office_that_is_not_there_is_not_reached(direct: bool) -> None:
    async with office() as there:
        pass
    async with tokens_at(there, direct=direct) as tokens:
        with pytest.raises(NotReached):
            await tokens.get()


async def test_credentials_go_in_the_form_where_they_are_not_taken_otherwise() -> None:
    async with office() as there, tokens_at(there, direct=True) as tokens:
        there.takes_basic = False
        assert await tokens.get() == Token("token-1")
    first, second = (parse_qs(seen.body.decode()) for seen in there.requests)
    assert first["scope"] == second["scope"] == ["read write"]
    assert "client_secret" not in first


async def test_a_server_that_wants_no_token_is_asked_once_whether_it_does() -> None:
    async with office() as there, tokens_at(there) as tokens:
        there.wants_token = False
        assert [await tokens.get() for _ in range(2)] == [None, None]
        assert there.paths == ["POST /mcp"]
        there.wants_token = True
        assert await tokens.renew(None)
        assert await tokens.get() == Token("token-1")


async def test_tokens_come_only_from_the_issuer_that_the_operator_names() -> None:
    async with office() as there, tokens_at(there, issuer=f"{there.origin}/auth") as tokens:
        assert await tokens.get() == Token("token-1")
    async with office() as there, tokens_at(there, issuer="https://other.example") as tokens:
        with pytest.raises(Unauthorized):
            await tokens.get()
    assert there.given == 0


@pytest.mark.parametrize(
    "answer",
    [{"token_type": "mac"}, {"access_token": "two\r\nlines"}, {"access_token": None}, {"access_token": "with space"}],
)
async def test_what_cannot_be_sent_as_a_token_is_none(answer: dict[str, Any]) -> None:
    async with office() as there, tokens_at(there, direct=True) as tokens:
        there.answer = answer
        with pytest.raises(Unauthorized):
            await tokens.get()


async def test_an_answer_that_is_not_json_is_no_token() -> None:
    async with office() as there, tokens_at(there, direct=True) as tokens:
        there.written = b"<html>"
        with pytest.raises(Unauthorized):
            await tokens.get()


@pytest.mark.parametrize(("said", "used"), [(3600, 3570.0), ("3600", 3570.0), (20, 10.0), (None, None), ("soon", None)])
def test_how_long_a_token_is_used(said: object, used: float | None) -> None:
    assert read_token({"access_token": "a", "expires_in": said}).seconds == used


async def test_the_same_token_again_is_not_worth_another_try() -> None:
    async with office() as there, endpoint_of(spec_of(there, direct=True)) as endpoint:
        assert await sent(endpoint) == 200
        there.answer = {"access_token": "token-1"}
        there.given = 7
        with pytest.raises(Unauthorized):
            await sent(endpoint)
        assert there.paths.count("POST /mcp") == 2
        there.answer = {}
        assert await sent(endpoint) == 200


@pytest.mark.parametrize("direct", [False, True])
async def test_scopes_are_those_of_the_operator(direct: bool) -> None:
    async with office() as there, tokens_at(there, direct=direct) as tokens:
        await tokens.get()
    assert parse_qs(there.requests[-1].body.decode())["scope"] == ["read write"]


async def test_scopes_are_those_that_the_server_wants_where_the_operator_names_none() -> None:
    async with office() as there:
        there.resource = {"scopes_supported": ["use", "see"]}
        credentials = ClientCredentials(client_id="depot:1", client_secret=SECRET)
        spec = ServerSpec(label="depot", url=f"{there.origin}/mcp", oauth=credentials)
        async with endpoint_of(spec) as endpoint:
            await sent(endpoint)
        form = parse_qs(there.requests[-2].body.decode())
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
    async with office() as there, tokens_at(there, issuer="https://issuer.example") as tokens:
        there.resource = json.loads(json.dumps(resource).replace("{origin}", there.origin))
        with pytest.raises(ServerUnavailable):
            await tokens.get()
    assert there.given == 0


async def test_metadata_that_cannot_be_had_now_lead_to_no_token() -> None:
    async with office() as there, tokens_at(there) as tokens:
        there.metadata_status = 503
        with pytest.raises(Unauthorized):
            await tokens.get()
    assert there.given == 0


async def test_a_server_says_itself_where_its_metadata_are() -> None:
    async with office() as there, tokens_at(there) as tokens:
        there.challenge = f'Bearer realm="x", resource_metadata="{there.origin}/meta"'
        assert await tokens.get() == Token("token-1")
    assert there.paths[:2] == ["POST /mcp", "GET /meta"]


async def test_a_server_without_metadata_gives_out_tokens_itself() -> None:
    async with office() as there, tokens_at(there) as tokens:
        there.announces = False
        assert await tokens.get() == Token("token-1")
    assert there.paths[-1] == "POST /token"


def test_nothing_shows_a_secret() -> None:
    credentials = ClientCredentials(client_id="a", client_secret="sesame")
    spec = ServerSpec(label="depot", headers={"Authorization": "sesame"}, oauth=credentials)
    assert "sesame" not in f"{credentials} {spec} {Token('sesame')}"
