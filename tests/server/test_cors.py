"""Which web pages may use the API: the decisions by table, and the headers over a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import pytest

from antwort.engine.engine import Engine
from antwort.server.auth import Keyring
from antwort.server.cors import EXPOSED, Cors
from antwort.server.http import Transport
from antwort.storage.memory import MemoryStore
from antwort.testing import demo_provider
from key_kit import SECRET, a_key, bearing
from raw_http import Reply
from serving import HELLO, RESPONSES, STREAMED, Serving, serving

PAGE = "https://app.example.com"
SDK = (
    "authorization,content-type,idempotency-key,openai-organization,openai-project,user-agent,x-stainless-arch,"
    "x-stainless-custom-poll-interval,x-stainless-helper-method,x-stainless-lang,x-stainless-os,"
    "x-stainless-package-version,x-stainless-retry-count,x-stainless-runtime,x-stainless-runtime-version,"
    "x-stainless-timeout"
)
"""What a browser says OpenAI's JavaScript client wants to send."""


# ---- decisions ----


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        ([PAGE], PAGE, PAGE),
        (["HTTPS://App.Example.com"], PAGE, PAGE),
        ([PAGE, "http://localhost:3000"], "http://localhost:3000", "http://localhost:3000"),
        (["*"], PAGE, "*"),
        (["*"], "null", "*"),
        ([PAGE], "null", None),
        ([PAGE], "http://app.example.com", None),
        ([PAGE], "https://app.example.com:8443", None),
        ([PAGE], "https://app.example.com.evil.com", None),
        ([PAGE], "https://evil.com/https://app.example.com", None),
        ([PAGE], "https://sub.app.example.com", None),
        ([PAGE], "https://app.example.co", None),
        ([PAGE], f"{PAGE}, {PAGE}", None),
        ([PAGE], "", None),
        ([PAGE], "*", None),
    ],
)
def test_an_origin_is_allowed_when_it_is_one_of_those_named(
    origins: list[str], origin: str, allowed: str | None
) -> None:
    headers = dict(Cors(origins).headers(origin.encode()))
    assert headers.get(b"access-control-allow-origin") == (allowed and allowed.encode())
    greeting = Cors(origins).preflight(origin.encode(), b"POST")
    assert (greeting is None) == (allowed is None)
    assert headers.get(b"vary") == (None if "*" in origins else b"origin")


@pytest.mark.parametrize(
    ("headers", "wanted", "allowed"),
    [
        ([], "authorization,content-type", "authorization, content-type"),
        ([], "Authorization , CONTENT-TYPE", "authorization, content-type"),
        ([], SDK, SDK.replace(",", ", ")),
        ([], "authorization,x-evil", "authorization"),
        ([], "x-evil", None),
        ([], "", None),
        ([], "x-stainless-\r\nset-cookie: a", None),
        ([], "authorization,,x bad", "authorization"),
        (["X-Mine"], "x-mine,x-theirs", "x-mine"),
        (["*"], "x-mine,authorization", "x-mine, authorization"),
        (["*"], "x-mine, not a token", "x-mine"),
    ],
)
def test_headers_are_allowed_by_name(headers: list[str], wanted: str, allowed: str | None) -> None:
    greeting = Cors([PAGE], headers=headers).preflight(PAGE.encode(), b"POST", wanted.encode())
    assert greeting is not None
    assert dict(greeting).get(b"access-control-allow-headers") == (allowed and allowed.encode())


def test_credentials_are_allowed_only_where_that_is_said() -> None:
    name = b"access-control-allow-credentials"
    for credentials, value in ((False, None), (True, b"true")):
        cors = Cors([PAGE], credentials=credentials)
        assert dict(cors.headers(PAGE.encode())).get(name) == value
        assert dict(cors.preflight(PAGE.encode(), b"GET") or []).get(name) == value
        assert name not in dict(cors.headers(b"https://evil.com"))
    with pytest.raises(ValueError, match="from everywhere"):
        Cors(["*", PAGE], credentials=True)


# ---- as a browser sees it ----


def may_read(reply: Reply, origin: str) -> bool:
    """The CORS check of the Fetch standard, for a request without credentials."""
    return reply.headers.get("access-control-allow-origin") in ("*", origin)


def names(reply: Reply, header: str) -> set[str]:
    return {name.strip().lower() for name in reply.headers.get(header, "").split(",")} - {""}


SIMPLE_METHODS = {"GET", "HEAD", "POST"}


async def fetch(
    server: Serving, method: str, path: str, headers: Mapping[str, str], body: Mapping[str, object] | None = None
) -> Reply | None:
    """As the Fetch standard has it: ask first, look at the answer, then ask; None for a network error."""
    sent = {**headers, **({"content-type": "application/json"} if body is not None else {})}
    ask_first = {
        "origin": PAGE,
        "access-control-request-method": method,
        "access-control-request-headers": ",".join(sorted(name.lower() for name in sent)),
    }
    greeting = await server.ask("OPTIONS", path, None, ask_first)
    is_fine = may_read(greeting, PAGE) and 200 <= greeting.status <= 299
    allowed = names(greeting, "access-control-allow-headers")
    if not is_fine or not {name.lower() for name in sent} <= allowed:
        return None
    if method not in SIMPLE_METHODS and method.lower() not in names(greeting, "access-control-allow-methods"):
        return None
    reply = await server.ask(method, path, body, {**sent, "origin": PAGE})
    return reply if may_read(reply, PAGE) else None


@pytest.fixture(params=[PAGE, "*"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Serving]:
    ring = Keyring([a_key()])
    engine = Engine(demo_provider(), store=MemoryStore())
    app = Transport(engine, identify=ring.identify, quotas=ring.quotas, cors=Cors([request.param], max_age=7))
    async with serving(engine, app) as running:
        yield running


HEADERS = {name: "x" for name in SDK.split(",") if name != "content-type"} | bearing(SECRET)


async def test_a_page_can_use_every_route_with_its_key(server: Serving) -> None:
    whole = await fetch(server, "POST", RESPONSES, HEADERS, HELLO)
    assert whole is not None
    place = f"{RESPONSES}/{whole.json()['id']}"
    for method, path in (("GET", place), ("GET", f"{place}/input_items"), ("GET", RESPONSES), ("DELETE", place)):
        reply = await fetch(server, method, path, HEADERS)
        assert reply is not None
        assert reply.status == 200


async def test_a_page_can_read_a_stream_and_the_headers_beside_it(server: Serving) -> None:
    stream = await fetch(server, "POST", RESPONSES, HEADERS, STREAMED)
    assert stream is not None
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert {"x-request-id", "retry-after", "x-ratelimit-remaining-requests"} <= names(
        stream, "access-control-expose-headers"
    )
    assert stream.headers["access-control-expose-headers"].encode() == EXPOSED


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", RESPONSES, {}, 401),
        ("GET", RESPONSES, {"authorization": "Bearer sk-wrong"}, 401),
        ("GET", "/nowhere", HEADERS, 404),
        ("GET", f"{RESPONSES}/resp_unknown", HEADERS, 404),
        ("DELETE", "/v1/models", HEADERS, 405),
    ],
)
async def test_a_page_can_read_errors(
    server: Serving, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    reply = await fetch(server, method, path, headers)
    assert reply is not None
    assert (reply.status, bool(reply.error["message"])) == (status, True)


async def test_a_method_or_header_that_is_not_offered_never_gets_past_the_browser(server: Serving) -> None:
    assert await fetch(server, "PUT", RESPONSES, HEADERS, HELLO) is None
    assert await fetch(server, "POST", RESPONSES, {**HEADERS, "x-evil": "1"}, HELLO) is None


async def test_a_browser_is_answered_without_a_key_and_without_a_body(server: Serving) -> None:
    asking = {"origin": PAGE, "access-control-request-method": "POST"}
    reply = await server.ask("OPTIONS", RESPONSES, None, asking)
    assert (reply.status, reply.body) == (204, b"")
    assert reply.headers["access-control-max-age"] == "7"
    assert "content-length" not in reply.headers
    assert "transfer-encoding" not in reply.headers


@pytest.mark.parametrize("server", [PAGE], indirect=True)
async def test_a_page_that_is_not_named_is_told_nothing(server: Serving) -> None:
    evil = {"origin": "https://evil.com", "access-control-request-method": "POST"}
    replies = [
        await server.ask("OPTIONS", RESPONSES, None, evil),
        await server.ask("OPTIONS", RESPONSES, None, {**evil, **HEADERS}),
        await server.ask("GET", "/v1/models", None, {**evil, **HEADERS}),
        await server.ask("GET", "/healthz"),
    ]
    assert [reply.status for reply in replies] == [401, 405, 200, 200]
    for reply in replies:
        assert not [name for name in reply.headers if name.startswith("access-control")]
        assert reply.headers["vary"] == "origin"


async def test_a_server_that_was_told_of_no_pages_knows_no_such_questions() -> None:
    async with serving(Engine(demo_provider(), store=MemoryStore())) as server:
        asking = {"origin": PAGE, "access-control-request-method": "POST"}
        reply = await server.ask("OPTIONS", RESPONSES, None, asking)
        assert (reply.status, reply.headers["allow"]) == (405, "POST, GET, HEAD")
        assert not {name for name in reply.headers if name.startswith("access-control")} | ({"vary"} & {*reply.headers})
