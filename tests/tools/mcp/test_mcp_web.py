"""The SDK's HTTP over our own client: what is sent, what comes back, and what is never sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress

import httpx2
import pytest

from antwort.net.ssrf import AddressNotAllowed, AddressPolicy
from antwort.tools.mcp.base import ServerSpec
from antwort.tools.mcp.watching import Watch, Watched
from antwort.tools.mcp.web import Web, refusal
from http_kit import CLOSED_UNANSWERED, OK, gone
from replay_backend import Answer, Backend, serve, sse, whole

HERE = AddressPolicy(loopback=True)


def origin_of(backend: Backend) -> str:
    return backend.url.removesuffix("/v1")


@asynccontextmanager
async def web_of(backend: Backend, reach: AddressPolicy | None = None, **fields: object) -> AsyncGenerator[Web, None]:
    spec = ServerSpec(label="depot", url=f"{origin_of(backend)}/mcp", is_strangers=reach is not None, **fields)  # type: ignore[arg-type]  # single fields of a spec
    web = Web(spec, reach)
    try:
        yield web
    finally:
        await web.close()
        assert web.open_connections == 0


async def test_a_request_of_the_sdk_goes_over_our_client() -> None:
    async with serve(OK) as backend, web_of(backend, HERE) as web, web.http_client({"X-Key": "1"}) as client:
        answer = await client.post(f"{origin_of(backend)}/mcp?a=b", content=b"{}", headers={"Mcp-Session-Id": "s"})
        assert (answer.status_code, answer.json()) == (200, {"ok": True})
    [seen] = backend.requests
    assert (seen.method, seen.path, seen.body) == ("POST", "/mcp?a=b", b"{}")
    assert (seen.headers["x-key"], seen.headers["mcp-session-id"]) == ("1", "s")
    assert seen.headers["user-agent"].startswith("antwort/")
    assert seen.headers["accept-encoding"] == "identity"
    assert "python" not in str(seen.headers)


async def test_a_post_without_a_body_says_so_and_a_get_has_none() -> None:
    async with serve(OK, OK, OK) as backend, web_of(backend) as web, web.http_client() as client:
        for method in ("POST", "GET", "DELETE"):
            await client.request(method, f"{origin_of(backend)}/mcp")
    assert [seen.headers.get("content-length") for seen in backend.requests] == ["0", None, None]


async def test_our_own_requests_use_the_same_connections() -> None:
    async with serve(OK, OK) as backend, web_of(backend, HERE) as web, web.http_client() as client:
        await client.post(f"{origin_of(backend)}/mcp")
        async with await web.client().request("POST", web.home.target, b"{}") as reply:
            assert await reply.read(100) == b'{"ok": true}'
    assert backend.connections == 1
    assert backend.requests[1].path == "/mcp"


async def test_a_stream_is_read_as_it_comes_and_leaving_it_closes_the_connection() -> None:
    async with (
        serve(sse(b"data: 1\n\n", ending="hold")) as backend,
        web_of(backend) as web,
        web.http_client() as client,
    ):
        async with client.stream("GET", f"{origin_of(backend)}/mcp") as answer:
            assert await anext(answer.aiter_bytes()) == b"data: 1\n\n"
        await gone(backend)


async def test_no_cookie_is_kept() -> None:
    cookie = whole(b"{}", headers={"set-cookie": "session=1; Path=/"})
    async with serve(cookie, OK) as backend, web_of(backend) as web, web.http_client() as client:
        first = await client.get(f"{origin_of(backend)}/mcp")
        await client.get(f"{origin_of(backend)}/mcp")
    assert "set-cookie" not in first.headers
    assert "cookie" not in backend.requests[1].headers


async def test_proxies_and_netrc_of_the_environment_do_not_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    netrc = tmp_path_factory.mktemp("home") / "netrc"
    netrc.write_text("machine 127.0.0.1 login a password b\n", encoding="ascii")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NETRC", str(netrc))
    async with serve(OK) as backend, web_of(backend, HERE) as web, web.http_client() as client:
        assert (await client.get(f"{origin_of(backend)}/mcp")).status_code == 200
    assert "authorization" not in backend.requests[0].headers


# ---- what goes wrong ----


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (CLOSED_UNANSWERED, httpx2.ReadError),
        (Answer((b"nonsense\r\n\r\n",), framing="raw"), httpx2.RemoteProtocolError),
        (Answer(ending="silence"), httpx2.ReadTimeout),
        (whole(b"x" * 2000), httpx2.RemoteProtocolError),
        (whole(b"x", headers={"content-encoding": "gzip"}), httpx2.RemoteProtocolError),
    ],
    ids=["cut", "not HTTP", "silent", "too long", "packed"],
)
async def test_what_goes_wrong_is_told_in_the_words_of_the_sdk(answer: Answer, error: type[Exception]) -> None:
    async with serve(answer) as backend, web_of(backend, largest=1000) as web:
        async with web.http_client(timeout=httpx2.Timeout(5.0, read=0.01)) as client:
            with pytest.raises(error) as caught:
                await client.post(f"{origin_of(backend)}/mcp")
        assert "127.0.0.1" not in str(caught.value)
        assert refusal(caught.value) is None


async def test_a_stream_of_events_may_be_longer_than_a_message() -> None:
    async with serve(sse(*[b"data: " + b"x" * 100 + b"\n\n"] * 30)) as backend, web_of(backend, largest=1000) as web:
        async with web.http_client() as client:
            answer = await client.get(f"{origin_of(backend)}/mcp")
        assert len(answer.content) == 30 * 108


async def test_nobody_there_is_no_connection() -> None:
    async with serve(OK) as backend:
        pass
    async with web_of(backend) as web, web.http_client() as client:
        with pytest.raises(httpx2.ConnectError):
            await client.get(f"{origin_of(backend)}/mcp")


async def test_a_header_that_cannot_be_sent_is_told_before_anything_is() -> None:
    async with serve(OK) as backend, web_of(backend) as web, web.http_client() as client:
        with pytest.raises(httpx2.LocalProtocolError):
            await client.get(f"{origin_of(backend)}/mcp", headers={"X": "a\x01b"})
    assert backend.connections == 0


async def test_a_timeout_that_is_none_is_no_limit() -> None:
    gate = asyncio.Event()
    async with (
        serve(Answer((b"a",), gate=gate)) as backend,
        web_of(backend) as web,
        web.http_client(timeout=httpx2.Timeout(None)) as client,
    ):
        asking = asyncio.create_task(client.get(f"{origin_of(backend)}/mcp"))
        gate.set()
        assert (await asking).content == b"a"


# ---- where nothing is sent ----


class Names:
    def __init__(self, *found: str) -> None:
        self._found = found

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        return self._found


async def test_a_strangers_server_is_asked_within_its_reach() -> None:
    """Without a policy, the strictest holds."""
    spec = ServerSpec(label="depot", url="http://127.0.0.1:81/mcp", is_strangers=True)
    with pytest.raises(AddressNotAllowed):
        Web(spec)


async def test_a_name_is_judged_by_what_it_stands_for_when_it_is_connected_to() -> None:
    async with serve(OK) as backend:
        port = origin_of(backend).rpartition(":")[2]
        spec = ServerSpec(label="depot", url=f"http://tools.example.com:{port}/mcp", is_strangers=True)
        web = Web(spec, AddressPolicy(http=True, lookup=Names("93.184.216.34", "127.0.0.1")))
        async with web.http_client() as client:
            with pytest.raises(httpx2.ConnectError) as caught:
                await client.post(spec.url)
        found = refusal(ExceptionGroup("of the SDK's tasks", [caught.value]))
        assert isinstance(found, AddressNotAllowed)
        assert "127" not in str(found)
        await web.close()
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
    ],
)
async def test_no_redirect_leads_a_strangers_server_elsewhere(location: str) -> None:
    """Not even where whoever asks follows all of them: each hop comes to the same judge."""
    async with serve(OK) as backend:
        port = origin_of(backend).rpartition(":")[2]
    there = location.format(port=port)
    redirect = whole(b"", 307, {"location": there})
    async with (
        serve(redirect, redirect) as first,
        web_of(first, HERE, headers={"X-Key": "sesame"}) as web,
        web.http_client({"X-Key": "sesame"}) as client,
    ):
        with suppress(httpx2.RequestError):
            assert (await client.post(f"{origin_of(first)}/mcp")).status_code == 307
        with pytest.raises(httpx2.RequestError):
            await client.post(f"{origin_of(first)}/mcp", follow_redirects=True)
    assert len(first.requests) == 2


@pytest.mark.parametrize("location", ["/other", "/mcp/more", "/go/../other?x=/mcp"])
async def test_no_redirect_leads_a_strangers_server_to_another_path(location: str) -> None:
    """An operator's rules go by the address: they hold for the server that is reached."""
    redirect = whole(b"", 307, {"location": location})
    async with (
        serve(redirect) as first,
        web_of(first, HERE) as web,
        web.http_client() as client,
    ):
        with pytest.raises(httpx2.RequestError) as caught:
            await client.post(f"{origin_of(first)}/mcp", follow_redirects=True)
    assert "another address" in str(refusal(caught.value))
    assert len(first.requests) == 1


async def test_a_redirect_to_the_same_address_may_be_followed() -> None:
    async with (
        serve(whole(b"", 307, {"location": "/mcp/"}), OK) as first,
        web_of(first, HERE) as web,
        web.http_client() as client,
    ):
        assert (await client.post(f"{origin_of(first)}/mcp", follow_redirects=True)).status_code == 200


async def test_a_redirect_to_tls_on_the_same_host_stays_with_the_server() -> None:
    spec = ServerSpec(label="depot", url="http://tools.example.com/mcp", is_strangers=True)
    web = Web(spec, AddressPolicy(http=True, lookup=Names("10.0.0.1")))
    async with web.http_client() as client:
        with pytest.raises(httpx2.ConnectError) as caught:
            await client.post("https://tools.example.com/mcp")
    assert "not known" in str(refusal(caught.value)), "it was looked up, and judged again"
    await web.close()


async def test_what_the_operators_server_is_sent_goes_to_no_other() -> None:
    own = {"X-Key": "sesame", "Authorization": "Bearer sesame"}
    async with (
        serve(OK) as first,
        serve(OK) as second,
        web_of(first, headers=own) as web,
        web.http_client(own) as client,
    ):
        await client.post(f"{origin_of(first)}/mcp")
        await client.get(f"{origin_of(second)}/.well-known/oauth-authorization-server")
    assert first.requests[0].headers["x-key"] == "sesame"
    assert "sesame" not in str(second.requests[0].headers)


async def test_it_is_seen_when_the_server_has_taken_the_last_message_of_the_handshake() -> None:
    """What is asked on another connection must not come before it."""
    watch = Watch()
    taken: list[bool] = []

    class Inner(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            taken.append(watch.greeted.is_set())
            return httpx2.Response(307 if request.url.path == "/moved" else 202)

    async with httpx2.AsyncClient(transport=Watched(Inner(), watch)) as client:
        await client.post("http://server/mcp", json={"method": "initialize"})
        await client.post("http://server/moved", json={"method": "notifications/initialized"})
        assert not watch.greeted.is_set()
        await client.post("http://server/mcp", json={"method": "notifications/initialized"})
    assert watch.greeted.is_set()
    assert taken == [False, False, False]
