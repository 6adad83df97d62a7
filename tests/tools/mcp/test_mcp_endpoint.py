"""HTTP to a server: what is sent, what is never sent, and where nothing is sent to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest

from antwort.net.response import ConnectFailed, ConnectionLost, HttpError, InvalidResponse
from antwort.net.ssrf import AddressNotAllowed, AddressPolicy
from antwort.tools.mcp.base import NotReached, ServerSpec, ServerUnavailable
from antwort.tools.mcp.endpoint import McpEndpoint
from http_kit import CLOSED_UNANSWERED, OK, gone
from replay_backend import Answer, Backend, serve, sse, whole

HERE = AddressPolicy(loopback=True)
NONE: dict[str, str] = {}


def origin_of(backend: Backend) -> str:
    return backend.url.removesuffix("/v1")


@asynccontextmanager
async def endpoint_of(
    backend: Backend, policy: AddressPolicy | None = None, **fields: object
) -> AsyncGenerator[McpEndpoint, None]:
    spec = ServerSpec(label="depot", url=f"{origin_of(backend)}/mcp", is_untrusted=policy is not None, **fields)  # type: ignore[arg-type]  # single fields of a spec
    endpoint = McpEndpoint(spec, policy)
    try:
        yield endpoint
    finally:
        await endpoint.close()


async def test_a_message_carries_the_headers_of_the_server_and_of_the_protocol() -> None:
    theirs = {"X-Key": "1", "Host": "elsewhere", "mcp-session-id": "mine"}
    async with (
        serve(OK) as backend,
        endpoint_of(backend, HERE, headers=theirs) as endpoint,
        await endpoint.send("POST", {"Mcp-Session-Id": "s"}, b"{}") as reply,
    ):
        assert await reply.read(100) == b'{"ok": true}'
    [seen] = backend.requests
    assert (seen.method, seen.path, seen.body) == ("POST", "/mcp", b"{}")
    assert (seen.headers["x-key"], seen.headers["mcp-session-id"]) == ("1", "s")
    assert seen.headers["host"] != "elsewhere"
    assert seen.headers["user-agent"].startswith("antwort/")
    assert seen.headers["accept-encoding"] == "identity"


async def test_messages_go_over_the_same_connection() -> None:
    async with serve(OK, OK) as backend, endpoint_of(backend, HERE) as endpoint:
        async with await endpoint.send("POST", NONE, b"{}") as reply:
            await reply.read(100)
        await endpoint.fetch("POST", f"{origin_of(backend)}/token", b"a=b")
    assert backend.connections == 1
    assert backend.requests[1].path == "/token"


async def test_a_stream_is_read_as_it_comes_and_leaving_it_closes_the_connection() -> None:
    async with serve(sse(b"data: 1\n\n", ending="hold")) as backend, endpoint_of(backend) as endpoint:
        async with await endpoint.send("GET", NONE) as reply:
            assert await anext(reply) == b"data: 1\n\n"
        await gone(backend)


async def test_no_cookie_is_kept() -> None:
    cookie = whole(b"{}", headers={"set-cookie": "session=1; Path=/"})
    async with serve(cookie, OK) as backend, endpoint_of(backend) as endpoint:
        for _ in range(2):
            async with await endpoint.send("GET", NONE) as reply:
                await reply.read(100)
    assert "cookie" not in backend.requests[1].headers


async def test_proxies_and_netrc_of_the_environment_do_not_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    netrc = tmp_path_factory.mktemp("home") / "netrc"
    netrc.write_text("machine 127.0.0.1 login a password b\n", encoding="ascii")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NETRC", str(netrc))
    async with serve(OK) as backend, endpoint_of(backend, HERE) as endpoint:
        assert (await endpoint.fetch("GET", f"{origin_of(backend)}/mcp")).status == 200
    assert "authorization" not in backend.requests[0].headers


# ---- what goes wrong ----


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (CLOSED_UNANSWERED, ConnectionLost),
        (Answer((b"nonsense\r\n\r\n",), framing="raw"), InvalidResponse),
        (whole(b"x" * 2_000_000), InvalidResponse),
        (whole(b"x", headers={"content-encoding": "gzip"}), InvalidResponse),
        (whole(b"", 307, {"location": "/mcp"}), InvalidResponse),
    ],
    ids=["cut", "not HTTP", "too long", "packed", "redirected without end"],
)
async def test_what_is_fetched_whole_may_go_wrong(answer: Answer, error: type[HttpError]) -> None:
    async with serve(*[answer] * 5) as backend, endpoint_of(backend) as endpoint:
        with pytest.raises(error) as caught:
            await endpoint.fetch("POST", f"{origin_of(backend)}/mcp", b"{}")
        assert "127.0.0.1" not in str(caught.value)


async def test_nobody_there_is_no_connection() -> None:
    async with serve(OK) as backend:
        pass
    async with endpoint_of(backend) as endpoint:
        with pytest.raises(ConnectFailed):
            await endpoint.send("POST", NONE, b"{}")


async def test_a_header_that_cannot_be_sent_is_told_before_anything_is() -> None:
    async with serve(OK) as backend, endpoint_of(backend) as endpoint:
        with pytest.raises(ValueError, match="cannot be sent"):
            await endpoint.send("POST", {"X": "a\x01b"}, b"{}")
    assert backend.connections == 0


# ---- where nothing is sent ----


class Names:
    def __init__(self, *found: str) -> None:
        self._found = found

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        return self._found


async def test_a_server_of_a_request_is_asked_within_the_strictest_policy_if_there_is_no_other() -> None:
    with pytest.raises(AddressNotAllowed):
        McpEndpoint(ServerSpec(label="depot", url="http://127.0.0.1:81/mcp", is_untrusted=True))


async def test_a_name_is_judged_by_what_it_stands_for_when_it_is_connected_to() -> None:
    async with serve(OK) as backend:
        port = origin_of(backend).rpartition(":")[2]
        spec = ServerSpec(label="depot", url=f"http://tools.example.com:{port}/mcp", is_untrusted=True)
        endpoint = McpEndpoint(spec, AddressPolicy(http=True, lookup=Names("93.184.216.34", "127.0.0.1")))
        with pytest.raises(AddressNotAllowed) as caught:
            await endpoint.send("POST", NONE, b"{}")
        assert "127" not in str(caught.value)
        await endpoint.close()
    assert backend.connections == 0


@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://10.0.0.1/mcp",
        "http://[::1]:{port}/mcp",
        "http://localhost:{port}/mcp",
        "http://2130706433:{port}0/mcp",
        "http://user:secret@127.0.0.1:{port}/mcp",
        "file:///etc/passwd",
        "https://example.com/mcp",
        "//example.com/mcp",
        "http://[x/",
        "/other",
        "/mcp/more",
        "/go/../other?x=/mcp",
    ],
)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_leads_a_server_of_a_request_to_another_address(location: str, status: int) -> None:
    """An operator's rules go by the address: they hold for the server that is reached."""
    async with serve(OK) as backend:
        port = origin_of(backend).rpartition(":")[2]
    redirect = whole(b"", status, {"location": location.format(port=port)})
    async with (
        serve(redirect, redirect) as first,
        endpoint_of(first, HERE, headers={"X-Key": "sesame"}) as endpoint,
    ):
        with pytest.raises(NotReached, match="leads to another address"):
            await endpoint.send("POST", NONE, b"{}")
        with pytest.raises(AddressNotAllowed, match="another address"):
            await endpoint.fetch("GET", f"{origin_of(first)}/mcp")
    assert len(first.requests) == 2


async def test_a_redirect_to_the_same_address_is_followed_and_remembered() -> None:
    async with (
        serve(whole(b"", 307, {"location": "/mcp/"}), OK, OK) as first,
        endpoint_of(first, HERE, headers={"X-Key": "1"}) as endpoint,
    ):
        for _ in range(2):
            async with await endpoint.send("POST", NONE, b"{}") as reply:
                assert reply.status == 200
                await reply.read(100)
    assert [seen.path for seen in first.requests] == ["/mcp", "/mcp/", "/mcp/"]
    assert all(seen.headers["x-key"] == "1" for seen in first.requests)


async def test_a_redirect_that_would_change_the_method_is_not_followed() -> None:
    async with serve(whole(b"", 302, {"location": "/mcp/"})) as first, endpoint_of(first) as endpoint:
        with pytest.raises(ServerUnavailable, match="did not answer as one"):
            await endpoint.send("POST", NONE, b"{}")
    assert len(first.requests) == 1


async def test_a_redirect_to_tls_on_the_same_host_is_judged_again_and_gets_no_credentials() -> None:
    looked_up: list[int] = []

    class Here(Names):
        async def __call__(self, host: str, port: int) -> Sequence[str]:
            looked_up.append(port)
            return ("10.0.0.1",)

    spec = ServerSpec(label="depot", url="http://tools.example.com/mcp", is_untrusted=True)
    endpoint = McpEndpoint(spec, AddressPolicy(http=True, lookup=Here()))
    with pytest.raises(AddressNotAllowed, match="not known"):
        await endpoint.fetch("POST", "https://tools.example.com/mcp")
    assert looked_up == [443]
    await endpoint.close()


async def test_what_the_operators_server_is_sent_goes_to_no_other() -> None:
    own = {"X-Key": "sesame", "Authorization": "Bearer sesame"}
    async with serve(OK) as first, serve(OK) as second, endpoint_of(first, headers=own) as endpoint:
        async with await endpoint.send("POST", NONE, b"{}") as reply:
            await reply.read(100)
        await endpoint.fetch("GET", f"{origin_of(second)}/.well-known/oauth-authorization-server")
    assert first.requests[0].headers["x-key"] == "sesame"
    assert "sesame" not in str(second.requests[0].headers)


async def test_an_answer_may_take_as_long_as_whoever_asks_waits() -> None:
    gate = asyncio.Event()
    async with serve(Answer((b"a",), gate=gate)) as backend, endpoint_of(backend) as endpoint:
        asking = asyncio.create_task(endpoint.send("POST", NONE, b"{}"))
        gate.set()
        async with await asking as reply:
            assert await reply.read(10) == b"a"
