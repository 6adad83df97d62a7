"""Ctrl-C while something hangs: it ends the waiting, and the chat goes on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from chat_backend import ChatBackend, Says
from serving import until
from terminal import CTRL_C, CTRL_D, ENTER, Terminal, terminal


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTWORT_CONFIG", os.devnull)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("ANTWORT_URL", "ANTWORT_API_KEY"):
        monkeypatch.delenv(name, raising=False)


class Hanging:
    """A server of the Responses API that never ends an answer, and says nothing at the paths that hang."""

    def __init__(self) -> None:
        self.hangs: set[str] = set()
        self.asked: list[str] = []
        self._changed = asyncio.Event()

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
            await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def until_asked(self, place: str, times: int = 1) -> None:
        async with asyncio.timeout(30):
            while self.asked.count(place) < times:
                self._changed.clear()
                await self._changed.wait()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        place = head.split(b" ")[1].decode().rpartition("/")[2]
        self.asked.append(place)
        self._changed.set()
        if place in self.hangs:
            return
        created = {"type": "response.created", "response": {"id": "resp_1"}}
        said = {"type": "response.output_text.delta", "output_index": 0, "delta": "Never"}
        bodies = {
            "models": b'{"data": [{"id": "m"}]}',
            "toolsets": b'{"data": []}',
            "responses": b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in (created, said)),
        }
        body = bodies.get(place, b"{}")
        length = b"" if place == "responses" else b"content-length: %d\r\n" % len(body)
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n%b\r\n%b" % (length, body))
        await writer.drain()


@asynccontextmanager
async def chatting() -> AsyncIterator[tuple[Hanging, Terminal]]:
    hanging = Hanging()
    async with await asyncio.start_server(hanging.talk, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with terminal("chat", "--url", url, "--no-history") as seen:
            await seen.prompted(1)
            yield hanging, seen


async def test_a_second_ctrl_c_gives_up_telling_the_server_and_not_the_chat() -> None:
    async with chatting() as (hanging, seen):
        hanging.hangs.add("cancel")
        seen.type("Hello", ENTER)
        await seen.until("Never")
        seen.type(CTRL_C)
        await hanging.until_asked("cancel")
        seen.type(CTRL_C)
        assert "cancelled" in await seen.prompted(2)
        seen.type(CTRL_D)
        assert await seen.ended() == 0


@pytest.mark.parametrize(("typed", "place"), [("/model", "models"), ("/tools", "toolsets"), ("/model x", "models")])
async def test_ctrl_c_ends_the_waiting_for_a_list(typed: str, place: str) -> None:
    async with chatting() as (hanging, seen):
        hanging.hangs.add(place)
        seen.type(typed, ENTER)
        await hanging.until_asked(place, 2)
        seen.type(CTRL_C)
        assert "cancelled" in await seen.prompted(2)
        hanging.hangs.clear()
        seen.type("/model", ENTER)
        await seen.until("✓ m")


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def killed(backend: ChatBackend, seen: Terminal) -> None:
    """Its server is gone, and it has noticed."""
    [child] = children(seen.pid)
    os.kill(child, signal.SIGKILL)
    await until(lambda: not children(seen.pid))
    await backend.until(lambda: backend.connections == 0)


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="who the children are is read from /proc")


@linux
async def test_ctrl_c_ends_the_waiting_for_a_server_that_is_started_again() -> None:
    async with ChatBackend(Says(("Yes.",))) as backend, terminal("chat", "--backend", backend.url) as seen:
        await seen.prompted(1)
        await killed(backend, seen)
        seen.type("Hello", ENTER)
        await until(lambda: bool(children(seen.pid)))
        seen.type(CTRL_C)
        assert "cancelled" in await seen.prompted(2)
        assert children(seen.pid) == []
        seen.type("Hello again", ENTER)
        assert "Yes." in await seen.prompted(3)


@linux
async def test_a_list_is_asked_of_a_server_that_is_started_again() -> None:
    async with ChatBackend() as backend, terminal("chat", "--backend", backend.url) as seen:
        await seen.prompted(1)
        await killed(backend, seen)
        seen.type("/model", ENTER)
        assert "✓ test-model" in await seen.prompted(2)
