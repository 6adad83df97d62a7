"""Responses are acknowledged at once (TCP_QUICKACK) until a server has shown that it sends head and body together."""

from __future__ import annotations

import asyncio
import socket
from asyncio.trsock import TransportSocket
from typing import Any

import pytest

from antwort.net import connection
from antwort.net.client import QUICK_ACK_TRIAL, HttpClient
from http_kit import OK, fetched
from jumping_time import jumping_time
from replay_backend import serve

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"


class Link:
    def __init__(self) -> None:
        self.told: list[tuple[int, ...]] = []

    def setsockopt(self, *option: int) -> None:
        self.told.append(option)
        if len(self.told) > 1:
            raise OSError


class Wire:
    def __init__(self, link: Link | None) -> None:
        self._link = link

    def get_extra_info(self, name: str) -> Link | None:
        return self._link if name == "socket" else None


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="only Linux has it")
def test_the_system_is_told_to_acknowledge_and_a_closed_socket_is_no_matter() -> None:
    wire: Any = Wire(link := Link())
    connection._set_quick_ack(wire)
    connection._set_quick_ack(wire)
    assert link.told == [(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)] * 2
    nowhere: Any = Wire(None)
    connection._set_quick_ack(nowhere)


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="only Linux has it")
@pytest.mark.parametrize("quick_ack", [True, False])
async def test_only_a_prompt_client_acknowledges_each_answer(quick_ack: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    set_option = TransportSocket.setsockopt

    def noted(self: TransportSocket, level: int, name: int, value: int) -> None:
        set_option(self, level, name, value)
        if name == socket.TCP_QUICKACK:
            told.append(value)

    monkeypatch.setattr(TransportSocket, "setsockopt", noted)
    async with serve(OK, OK) as backend:
        client = HttpClient(backend.url.removesuffix("/v1"), quick_ack=quick_ack)
        for _ in range(2):
            await fetched(client)
        await client.close()
    assert told == ([1, 1] if quick_ack else [])


def answers(client: HttpClient, *reads: int) -> bool:
    for each in reads:
        client.record_reads(each)
    return client.quick_ack


def test_a_server_that_sends_answers_whole_is_acknowledged_at_once_no_more() -> None:
    client = HttpClient("http://127.0.0.1:1", quick_ack=True)
    assert answers(client, *[1] * (QUICK_ACK_TRIAL - 1))
    assert not answers(client, 1)


def test_a_server_that_was_seen_to_send_head_and_body_apart_always_is() -> None:
    client = HttpClient("http://127.0.0.1:1", quick_ack=True)
    assert not answers(client, *[1] * QUICK_ACK_TRIAL)
    assert answers(client, 2)
    assert answers(client, *[1] * 3 * QUICK_ACK_TRIAL)


def test_a_client_that_is_not_prompt_is_not_made_so() -> None:
    assert not answers(HttpClient("http://127.0.0.1:1"), 2, 3)


@pytest.mark.parametrize("pieces", [[HEAD + b"ok"], [HEAD, b"o", b"k"]], ids=["whole", "in three"])
@jumping_time
async def test_a_connection_tells_in_how_many_pieces_an_answer_came(pieces: list[bytes]) -> None:
    told: list[int] = []

    class Noting(HttpClient):
        def record_reads(self, count: int) -> None:
            told.append(count)

    left = asyncio.Event()

    async def serve_pieces(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(1)  # the client reads it
        writer.close()
        await writer.wait_closed()
        left.set()

    async with await asyncio.start_server(serve_pieces, "127.0.0.1", 0) as server:
        client = Noting(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", quick_ack=True)
        assert await fetched(client) == b"ok"
        await client.close()
        await left.wait()
    assert told == [len(pieces)]
