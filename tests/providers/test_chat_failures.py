"""How a Chat Completions backend can fail, over a real socket, and what we say then."""

from __future__ import annotations

import json
import socket
import ssl
import traceback
from pathlib import Path
from typing import Any

import pytest

from antwort.errors import (
    BackendCut,
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    NotAuthenticated,
    RateLimited,
)
from antwort.providers.base import (
    Delta,
    TextDelta,
)
from antwort.providers.chat import ChatProvider, Timeouts
from antwort.providers.errors import CONNECT_TIMEOUT, CONNECTION_CLOSED
from antwort.providers.fleet import Retrying
from chat_kit import (
    DONE,
    HI,
    KEY,
    SAID,
    STOP,
    STREAM,
    STREAMED,
    WHOLE,
    failure,
    gone,
    provider_of,
    said,
)
from replay_backend import Answer, serve, sse, whole

TLS = Path(__file__).parent.parent / "net" / "tls"

# ---- failures ----


@pytest.mark.proves("MISTAKE-06", "EN-036")
@pytest.mark.parametrize("pieces", [(), (HI,), (HI, STOP), (HI[:20],)])
async def test_a_connection_that_breaks_off_in_mid_answer_is_a_cut(pieces: tuple[bytes, ...]) -> None:
    async with serve(sse(*pieces, ending="cut")) as backend, provider_of(backend) as provider:
        assert type(await failure(provider)) is BackendCut


async def test_a_whole_answer_that_breaks_off_is_a_cut() -> None:
    torn = Answer((b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",), framing="raw", ending="cut")
    async with serve(torn) as backend, provider_of(backend) as provider:
        assert type(await failure(provider, WHOLE)) is BackendCut


@pytest.mark.parametrize("framing", ["chunked", "eof"])
async def test_a_stream_that_ends_without_a_reason_is_a_cut(framing: Any) -> None:
    async with serve(Answer((HI,), framing=framing)) as backend, provider_of(backend) as provider:
        assert type(await failure(provider)) is BackendCut


async def test_a_head_that_breaks_off_is_a_cut() -> None:
    torn = Answer((b"HTTP/1.1 200 OK\r\n",), framing="raw", ending="cut")
    async with serve(torn) as backend, provider_of(backend) as provider:
        assert type(await failure(provider)) is BackendCut


async def test_a_connection_closed_without_an_answer_is_an_unavailable_backend() -> None:
    async with serve(Answer(framing="raw", ending="cut")) as backend, provider_of(backend) as provider:
        error = await failure(provider)
        assert (type(error), error.code) == (BackendUnavailable, CONNECTION_CLOSED)


async def test_a_request_that_was_sent_whole_is_sent_again_only_for_a_stale_connection() -> None:
    async with serve(STREAM, Answer(framing="raw", ending="cut")) as backend, provider_of(backend) as provider:
        retrying = Retrying(provider)
        assert await said(retrying) == SAID
        assert (await failure(retrying)).code == CONNECTION_CLOSED
    assert (backend.connections, len(backend.requests)) == (2, 3)


async def test_an_error_in_mid_stream_comes_after_what_was_said() -> None:
    broken = sse(HI + b'data: {"error": {"message": "boom", "code": 500}}\n\n' + DONE)
    async with serve(broken) as backend, provider_of(backend) as provider:
        seen: list[Delta] = []

        async def follow() -> None:
            async for batch in provider.infer(STREAMED):
                seen.extend(batch)

        with pytest.raises(BackendError):
            await follow()
        assert seen == [TextDelta("Hi")]


@pytest.mark.parametrize("body", [b"<html>oops</html>", b"", b'{"choices": []}'])
async def test_a_good_status_over_a_bad_body_is_a_backend_error(body: bytes) -> None:
    async with serve(whole(body)) as backend, provider_of(backend) as provider:
        assert type(await failure(provider, WHOLE)) is BackendError


async def test_junk_on_the_wire_is_a_backend_error() -> None:
    async with serve(b"nonsense\r\n\r\n") as backend, provider_of(backend) as provider:
        error = await failure(provider)
        assert type(error) is BackendError
        assert error.__cause__ is not None


async def test_an_error_whose_body_breaks_off_is_known_by_its_status() -> None:
    torn = Answer((b"HTTP/1.1 429 Slow\r\nRetry-After: 2\r\nContent-Length: 9\r\n\r\n{",), framing="raw", ending="cut")
    async with serve(torn) as backend, provider_of(backend) as provider:
        error = await failure(provider)
        assert (type(error), error.retry_after) == (RateLimited, 2.0)


@pytest.mark.parametrize(
    ("answer", "timeouts"),
    [
        (Answer(ending="silence"), Timeouts(first_byte=0.05)),
        (sse(HI, ending="hold"), Timeouts(idle=0.05)),
        (Answer(headers={"content-type": "application/json"}, ending="hold"), Timeouts(idle=0.05)),
    ],
)
async def test_a_backend_that_is_silent_for_too_long_is_a_timeout(answer: Answer, timeouts: Timeouts) -> None:
    async with serve(answer) as backend, provider_of(backend, timeouts=timeouts) as provider:
        error = await failure(provider)
        assert type(error) is BackendTimeout
        assert error.code != CONNECT_TIMEOUT
        await gone(backend)


async def test_a_connection_that_takes_too_long_is_a_timeout_of_its_own_code() -> None:
    async with serve(Answer(ending="silence")) as backend:
        provider = ChatProvider(backend.url.replace("http:", "https:"), timeouts=Timeouts(connect=0.05))
        error = await failure(provider)
        assert (type(error), error.code) == (BackendTimeout, CONNECT_TIMEOUT)


def root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


async def test_the_reason_of_a_failed_connection_stands_at_the_root_of_the_error() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    error = await failure(Retrying(ChatProvider(f"http://127.0.0.1:{port}/v1"), attempts=1))
    assert isinstance(root(error), ConnectionRefusedError)


async def test_the_reason_of_a_failed_handshake_stands_at_the_root_of_the_error() -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
    async with serve(STREAM, tls=server) as backend:
        assert isinstance(root(await failure(ChatProvider(backend.url))), ssl.SSLCertVerificationError)


async def test_the_reason_of_a_name_that_is_not_found_stands_at_the_root_of_the_error() -> None:
    """Refused by the system's own rules for names: nobody has to be asked."""
    error = await failure(ChatProvider("http://" + "x" * 70 + ".invalid/v1"))
    assert isinstance(root(error), socket.gaierror | UnicodeError)


def leaks(error: BaseException, *secrets: str) -> list[str]:
    """Secrets that the error itself tells; causes are for the log of whoever runs the server."""
    told = "".join(traceback.format_exception_only(error)) + repr(vars(error))
    return [secret for secret in secrets if secret in told]


REPEATED = json.dumps({"error": {"message": f"{KEY} is wrong for 127.0.0.1 at http://127.0.0.1/v1 port PORT"}})


@pytest.mark.proves("EN-034", "RULING-12")
@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 422, 429, 500, 502, 503, 504])
async def test_neither_key_nor_address_is_told_whatever_the_backend_answers(status: int) -> None:
    async with serve(whole(REPEATED.encode(), status)) as backend, provider_of(backend, api_key=KEY) as provider:
        error = await failure(provider)
    assert not isinstance(error, NotAuthenticated)
    assert leaks(error, KEY, "127.0.0.1", backend.url.split(":")[2]) == []


@pytest.mark.parametrize("said", ["p@ssword", "p%40ssword", "bare-token"])
async def test_what_stands_in_the_query_of_the_address_is_not_told(said: str) -> None:
    body = json.dumps({"error": {"message": f"the word {said} is wrong"}}).encode()
    async with serve(whole(body, 400)) as backend:
        provider = ChatProvider(f"{backend.url}?v=p%40ssword&bare-token")
        error = await failure(provider)
        await provider.close()
    assert error.message == "the word [removed] is wrong"


async def test_neither_key_nor_address_is_told_when_the_backend_is_not_there() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    provider = ChatProvider(f"http://127.0.0.1:{port}/v1", api_key=KEY)
    error = await failure(provider)
    assert type(error) is BackendUnavailable
    assert error.__cause__ is not None
    assert leaks(error, KEY, "127.0.0.1", str(port)) == []
    assert leaks(error.__cause__, KEY, "127.0.0.1", str(port)) == []
