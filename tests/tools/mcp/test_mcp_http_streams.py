"""The stream of a call: events of other kinds, streams that go on elsewhere, and servers that ask back without end."""

from __future__ import annotations

import asyncio
import json

import pytest
from msgspec.structs import replace

from antwort.tools.mcp.base import ClientCredentials, ServerUnavailable
from antwort.tools.mcp.throttle import MAX_UNANSWERED
from jumping_time import jumping_time
from session_kit import STREAM, TEXT, Asked, KitPool, Send, event, hangs, puppet, sends, session_with, whole

ENDED = ConnectionAbortedError


def answer(number: object) -> bytes:
    return event({"jsonrpc": "2.0", "id": number, "result": TEXT})


async def primed(asked: Asked, send: Send) -> None:
    await send(STREAM + b"id: 1\nretry: 0\ndata: \n\n")
    raise ENDED


async def test_events_of_other_kinds_are_passed_over() -> None:
    async def pinged(asked: Asked, send: Send) -> None:
        await send(STREAM + b"event: ping\ndata: still here\n\n" + answer(asked.number))
        raise ENDED

    async with puppet(tools_call=pinged) as server, session_with(server.spec) as session:
        assert not (await session.call("do", "{}", key="k")).is_error


async def test_a_stream_that_the_server_ends_goes_on_where_it_ended() -> None:
    seen: list[str | None] = []

    async def go_on(asked: Asked, send: Send) -> None:
        last = asked.headers.get("last-event-id")
        if last is None:  # the stream of what the server says by itself
            await send(whole(405))
            return
        seen.append(last)
        call = server.seen("tools/call")[0]
        await send(STREAM + (b"id: 2\ndata: \n\n" if last == "1" else answer(call.number)))
        raise ENDED

    async with puppet(tools_call=primed, GET=go_on) as server, session_with(server.spec) as session:
        assert not (await session.call("do", "{}", key="k")).is_error
        assert seen == ["1", "2"]
        assert len(server.seen("tools/call")) == 1
        assert server.seen("GET")[-1].headers["mcp-session-id"] == "s1"


@pytest.mark.parametrize("refusal", [whole(405), whole(200, b"{}")], ids=["refused", "no stream"])
async def test_a_stream_that_cannot_be_gone_on_with_has_ended_without_an_answer(refusal: bytes) -> None:
    async def refuse(asked: Asked, send: Send) -> None:
        await send(refusal)

    async with puppet(tools_call=primed, GET=refuse) as server, session_with(server.spec) as session:
        with pytest.raises(ServerUnavailable, match="ended before the answer"):
            await session.call("do", "{}", key="k")


async def test_going_on_is_not_tried_for_ever() -> None:
    async def cut(asked: Asked, send: Send) -> None:
        raise ENDED

    async with puppet(tools_call=primed, GET=cut) as server, session_with(server.spec) as session:
        with pytest.raises(ServerUnavailable, match="ended before the answer"):
            await session.call("do", "{}", key="k")
        resumed = [asked for asked in server.seen("GET") if "last-event-id" in asked.headers]
        assert len(resumed) <= 4  # two attempts, each over a fresh connection where a kept one was closed


@pytest.mark.parametrize("status", [429, 502, 503])
async def test_a_server_that_is_too_busy_to_go_on_is_asked_again(status: int) -> None:
    async def go_on(asked: Asked, send: Send) -> None:
        asked_before = sum("last-event-id" in one.headers for one in server.seen("GET"))
        if "last-event-id" not in asked.headers or asked_before <= 3:
            await send(whole(status))
            return
        await send(STREAM + answer(server.seen("tools/call")[0].number))
        raise ENDED

    async with puppet(tools_call=primed, GET=go_on) as server, session_with(server.spec) as session:
        assert not (await session.call("do", "{}", key="k")).is_error
        assert len(server.seen("tools/call")) == 1


async def test_a_server_that_stays_too_busy_to_go_on_is_given_up() -> None:
    async with puppet(tools_call=primed, GET=sends(whole(503))) as server, session_with(server.spec) as session:
        with pytest.raises(ServerUnavailable, match="ended before the answer"):
            await session.call("do", "{}", key="k")
        assert sum("last-event-id" in one.headers for one in server.seen("GET")) == 5


async def test_a_call_whose_stream_may_not_be_gone_on_with_is_not_made_again() -> None:
    async with puppet(tools_call=primed, GET=sends(whole(401))) as server, session_with(server.spec) as session:
        with pytest.raises(ServerUnavailable, match="ended before the answer"):
            await session.call("do", "{}", key="k")
        assert len(server.seen("tools/call")) == 1


async def test_a_call_whose_server_is_gone_when_its_stream_is_to_go_on_is_not_made_again() -> None:
    async def begins(asked: Asked, send: Send) -> None:
        server.refuse()
        await primed(asked, send)

    async with puppet(tools_call=begins) as server, session_with(server.spec) as session:
        with pytest.raises(ServerUnavailable, match="ended before the answer"):
            await session.call("do", "{}", key="k")
        assert len(server.seen("tools/call")) == 1


async def test_a_stream_is_gone_on_with_by_new_credentials_where_the_old_ones_have_ended() -> None:
    given = iter(("old", "new"))

    async def give(asked: Asked, send: Send) -> None:
        await send(whole(200, json.dumps({"access_token": next(given), "token_type": "Bearer"}).encode()))

    async def go_on(asked: Asked, send: Send) -> None:
        if asked.headers.get("authorization") != "Bearer new":
            await send(whole(401))
            return
        await send(STREAM + answer(server.seen("tools/call")[0].number))
        raise ENDED

    async with puppet(tools_call=primed, form=give, GET=go_on) as server:
        oauth = ClientCredentials(client_id="a", client_secret="b", token_url=server.spec.url)
        async with session_with(replace(server.spec, oauth=oauth)) as session:
            assert not (await session.call("do", "{}", key="k")).is_error
            assert len(server.seen("tools/call")) == 1


async def test_half_an_event_is_nothing_where_it_can_be_had_whole() -> None:
    async def cut(asked: Asked, send: Send) -> None:
        await send(STREAM + b'id: 1\nretry: 0\ndata: \n\nid: 2\ndata: {"jsonrpc": "2.0",')
        raise ENDED

    async def go_on(asked: Asked, send: Send) -> None:
        seen.append(asked.headers.get("last-event-id"))
        if seen[-1] is None:
            await send(whole(405))
            return
        await send(STREAM + answer(server.seen("tools/call")[0].number))
        raise ENDED

    seen: list[str | None] = []
    async with puppet(tools_call=cut, GET=go_on) as server, session_with(server.spec) as session:
        assert not (await session.call("do", "{}", key="k")).is_error
        assert [last for last in seen if last is not None] == ["1"]


async def test_half_an_event_that_cannot_be_had_whole_is_a_stream_that_ended_early() -> None:
    async def cut(asked: Asked, send: Send) -> None:
        await send(STREAM + b'id: 2\ndata: {"jsonrpc": "2.0",')
        raise ENDED

    async with puppet(tools_call=cut) as server, session_with(server.spec) as session:
        with pytest.raises(ServerUnavailable, match="ended before the answer"):
            await session.call("do", "{}", key="k")


async def test_an_answer_that_lacks_only_its_last_line_is_one() -> None:
    async def cut(asked: Asked, send: Send) -> None:
        await send(STREAM + answer(asked.number).rstrip())
        raise ENDED

    async with puppet(tools_call=cut) as server, session_with(server.spec) as session:
        assert not (await session.call("do", "{}", key="k")).is_error


@pytest.mark.parametrize(("said", "waited"), [(0, 0.1), (5_000, 5.0), (999_999_999, 30.0)])
def test_how_long_to_wait_is_the_servers_to_say_within_bounds(said: int, waited: float) -> None:
    asked_at = list[float]()

    @jumping_time
    async def waits() -> None:
        async def begins(asked: Asked, send: Send) -> None:
            await send(STREAM + f"id: 1\nretry: {said}\ndata: \n\n".encode())
            asked_at.append(asyncio.get_running_loop().time())
            raise ENDED

        async def go_on(asked: Asked, send: Send) -> None:
            if "last-event-id" not in asked.headers:
                await send(whole(405))
                return
            asked_at.append(asyncio.get_running_loop().time())
            await send(STREAM + answer(server.seen("tools/call")[0].number))
            raise ENDED

        async with puppet(tools_call=begins, GET=go_on) as server:
            pool = KitPool()
            await pool.get(server.spec).call("do", "{}", key="k")
            await pool.close()

    waits()
    assert waited <= asked_at[1] - asked_at[0] < waited + 2


@jumping_time
async def test_a_server_that_asks_back_without_end_is_answered_one_by_one_and_then_no_more() -> None:
    asked_back = b"".join(event({"jsonrpc": "2.0", "id": i, "method": "ping"}) for i in range(3000))

    async def ask_back(asked: Asked, send: Send) -> None:
        await send(STREAM + asked_back)
        await asyncio.Event().wait()

    async with puppet(tools_call=ask_back, answer=hangs) as server, session_with(server.spec) as session:
        with pytest.raises(ServerUnavailable, match="asks for too much"):
            await session.call("do", "{}", key="k")
        assert len(server.seen("answer")) <= 1


@pytest.mark.parametrize("many", [MAX_UNANSWERED, 4 * MAX_UNANSWERED])
async def test_as_many_requests_as_come_at_once_are_all_answered(many: int) -> None:
    done = asyncio.Event()

    async def ask_back(asked: Asked, send: Send) -> None:
        requests = [event({"jsonrpc": "2.0", "id": i, "method": "ping"}) for i in range(many)]
        await send(STREAM + b"".join(requests))
        await done.wait()
        await send(answer(asked.number))

    async def hear(asked: Asked, send: Send) -> None:
        await send(whole(202))
        if len(server.seen("answer")) == many:
            done.set()

    async with puppet(tools_call=ask_back, answer=hear) as server, session_with(server.spec) as session:
        assert not (await session.call("do", "{}", key="k")).is_error
        assert [asked.number for asked in server.seen("answer")] == list(range(many))


async def test_requests_that_cannot_be_answered_are_passed_over() -> None:
    """What they are told apart by would be held until the answer goes out, however long it is."""
    done = asyncio.Event()

    async def ask_back(asked: Asked, send: Send) -> None:
        odd: list[object] = ["x" * 100_000, {"a": "x" * 100_000}, ["x"], None, True]
        await send(
            STREAM + b"".join(event({"jsonrpc": "2.0", "id": each, "method": "ping"}) for each in [*odd, "last"])
        )
        await done.wait()
        await send(answer(asked.number))

    async def hear(asked: Asked, send: Send) -> None:
        await send(whole(202))
        done.set()

    async with puppet(tools_call=ask_back, answer=hear) as server, session_with(server.spec) as session:
        assert not (await session.call("do", "{}", key="k")).is_error
        assert [asked.number for asked in server.seen("answer")] == ["last"]


async def test_half_a_character_is_read_as_one_that_is_missing() -> None:
    async def half(asked: Asked, send: Send) -> None:
        said = {"jsonrpc": "2.0", "id": asked.number, "result": {"content": [{"type": "text", "text": "\ud83d"}]}}
        await send(whole(200, json.dumps(said).encode()))

    async with puppet(tools_call=half) as server, session_with(server.spec) as session:
        assert (await session.call("do", "{}", key="k")).content[0]["text"] == "\ufffd"
