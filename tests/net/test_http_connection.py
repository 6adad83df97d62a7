"""However an exchange ends, it ends at once and leaves nothing behind."""

from __future__ import annotations

import asyncio

import pytest

from antwort.net.client import HttpClient
from antwort.net.connection import HIGH_WATER_BYTES, Timeouts
from antwort.net.response import ConnectionLost, ConnectTimeout, ResponseTimeout
from http_kit import OK, client_of, fetched, gone, others, until
from jumping_time import jumping_time
from replay_backend import Answer, serve, sse

# ---- ends ----


@pytest.mark.parametrize("framing", ["chunked", "length"])
async def test_a_body_that_breaks_off_is_cut_after_what_came(framing: str) -> None:
    pieces = (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nonly",)
    answer = sse(b"only", ending="cut") if framing == "chunked" else Answer(pieces, framing="raw", ending="cut")
    async with serve(answer) as backend, client_of(backend) as client:
        async with await client.request("GET", "/") as reply:
            reads = reply
            assert await anext(reads) == b"only"
            with pytest.raises(ConnectionLost) as caught:
                await anext(reads)
            assert caught.value.response_started
        assert client.open_connections == 0


@pytest.mark.proves("MISTAKE-17")
async def test_closing_early_is_felt_by_the_backend_at_once() -> None:
    async with serve(sse(b"a", ending="hold")) as backend, client_of(backend) as client:
        async with await client.request("GET", "/") as reply:
            await anext(reply)
            assert backend.open_connections == 1
        assert client.open_connections == 0
        await gone(backend)
        assert others() == 0


async def test_a_reply_may_be_closed_again_and_after_its_end() -> None:
    async with serve(OK) as backend, client_of(backend) as client:
        reply = await client.request("GET", "/")
        await reply.read(100)
        reply.close()
        reply.release()
        reply.close()
        assert client.idle_connections == 1


async def test_the_rest_of_a_released_answer_runs_out_and_frees_its_connection() -> None:
    gate = asyncio.Event()
    async with serve(Answer((b"all that matters",), gate=gate), OK) as backend, client_of(backend) as client:
        async with await client.request("GET", "/") as reply:
            await anext(reply)
            reply.release()
        assert (client.open_connections, client.idle_connections) == (1, 0)
        gate.set()
        await until(lambda: client.idle_connections == 1)
        assert await fetched(client) == b'{"ok": true}'
    assert backend.connections == 1


@jumping_time
async def test_a_released_answer_that_does_not_end_is_cut_off() -> None:
    async with serve(sse(b"a", ending="hold")) as backend, client_of(backend) as client:
        async with await client.request("GET", "/") as reply:
            await anext(reply)
            reply.release()
        await gone(backend)
        assert client.open_connections == 0


async def test_a_released_answer_that_goes_on_and_on_is_cut_off() -> None:
    async with serve(sse(b"a", *[b"x" * 10_000] * 50, ending="hold")) as backend, client_of(backend) as client:
        (await client.request("GET", "/")).release()
        await gone(backend)
        assert client.open_connections == 0


async def test_closing_the_client_ends_what_is_under_way() -> None:
    async with serve(sse(b"a", ending="hold")) as backend, client_of(backend) as client:
        async with await client.request("GET", "/") as reply:
            reads = reply
            await anext(reads)
            await client.close()
            with pytest.raises(ConnectionLost):
                await anext(reads)
        await gone(backend)
        with pytest.raises(ConnectionLost):
            await fetched(client)


# ---- a slow reader ----


async def test_a_reader_that_lags_holds_the_backend_back_and_loses_nothing() -> None:
    pieces = tuple(bytes([n]) * 65_536 for n in range(200))
    async with serve(sse(*pieces)) as backend, client_of(backend) as client:
        async with await client.request("GET", "/") as reply:
            await until(lambda: reply.is_paused)
            assert HIGH_WATER_BYTES < reply.buffered_bytes < 8 * HIGH_WATER_BYTES
            assert await reply.read(10**8) == b"".join(pieces)
        assert client.idle_connections == 1


async def test_a_reader_that_lags_is_no_timeout() -> None:
    quick = Timeouts(idle=0.1, first_byte=0.4)
    silent = Answer(ending="silence")
    async with (
        serve(Answer((b"a",), gate=(gate := asyncio.Event())), silent) as backend,
        client_of(backend, timeouts=quick) as client,
        await client.request("GET", "/") as reply,
    ):
        await until(lambda: reply.buffered_bytes > 0)
        with pytest.raises(ResponseTimeout):
            await fetched(client)  # takes four times as long as the first answer may be idle
        assert await anext(reply) == b"a"
        gate.set()
        assert await reply.read(10) == b""


# ---- timeouts ----


async def test_a_connection_that_cannot_be_made_in_time_times_out() -> None:
    """A handshake that never comes, which is as good as a host that drops packets."""
    async with serve(Answer(ending="silence")) as backend:
        client = HttpClient(backend.url.replace("http:", "https:"), timeouts=Timeouts(connect=0.05))
        with pytest.raises(ConnectTimeout):
            await fetched(client)
        assert client.open_connections == 0
        await gone(backend)


async def test_a_first_byte_that_does_not_come_times_out() -> None:
    async with (
        serve(Answer(ending="silence")) as backend,
        client_of(backend, timeouts=Timeouts(first_byte=0.05)) as client,
    ):
        with pytest.raises(ResponseTimeout):
            await fetched(client)
        assert client.open_connections == 0
        await gone(backend)


async def test_half_a_head_is_no_first_byte() -> None:
    half = Answer((b"HTTP/1.1 200 OK\r\n",), framing="raw", ending="hold")
    async with serve(half) as backend, client_of(backend, timeouts=Timeouts(first_byte=0.05)) as client:
        with pytest.raises(ResponseTimeout):
            await fetched(client)


async def test_a_next_byte_that_does_not_come_times_out() -> None:
    async with serve(sse(b"a", ending="hold")) as backend, client_of(backend, timeouts=Timeouts(idle=0.05)) as client:
        async with await client.request("GET", "/") as reply:
            reads = reply
            assert await anext(reads) == b"a"
            with pytest.raises(ResponseTimeout):
                await anext(reads)
        assert client.open_connections == 0
        await gone(backend)


# ---- cancellation ----


async def test_cancelling_while_waiting_for_the_head_closes_the_connection() -> None:
    async with serve(Answer(ending="silence")) as backend, client_of(backend) as client:
        task = asyncio.create_task(fetched(client))
        await backend.asked.wait()
        task.cancel()
        await asyncio.wait([task])
        assert client.open_connections == 0
        await gone(backend)
        assert others() == 0


async def test_cancelling_in_mid_body_closes_the_connection() -> None:
    async with serve(sse(b"a", ending="hold")) as backend, client_of(backend) as client:
        task = asyncio.create_task(fetched(client))
        await backend.asked.wait()
        await until(lambda: client.open_connections == 1)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert client.open_connections == 0
        await gone(backend)


@pytest.mark.parametrize("turns", range(8))
async def test_cancelling_while_connecting_leaves_no_connection(turns: int) -> None:
    async with serve(Answer(ending="silence")) as backend, client_of(backend) as client:
        task = asyncio.create_task(fetched(client))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert client.open_connections == 0
        await until(lambda: backend.open_connections == 0)
        assert others() == 0


async def test_cancelling_when_the_answer_is_complete_does_not_touch_the_connection_s_next_exchange() -> None:
    async with serve(OK) as backend, client_of(backend) as client:
        late = asyncio.create_task(client.request("GET", "/"))
        await until(lambda: client.idle_connections == 1)
        late.cancel()
        assert await fetched(client) == b'{"ok": true}'
        await asyncio.wait([late])
        assert client.open_connections == client.idle_connections == 1
    assert (backend.connections, len(backend.requests)) == (1, 2)


async def test_two_hundred_readers_that_leave_at_any_point_leave_nothing_behind() -> None:
    async with serve(sse(b"a", b"b", ending="hold")) as backend, client_of(backend) as client:
        tasks = [asyncio.create_task(fetched(client)) for _ in range(200)]
        for at, task in enumerate(tasks):
            task.cancel()
            if at % 5 == 0:
                await asyncio.sleep(0)
        await asyncio.wait(tasks)
        assert client.open_connections == 0
        await until(lambda: backend.open_connections == 0)
        assert others() == 0
