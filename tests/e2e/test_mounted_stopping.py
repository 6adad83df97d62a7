"""A mounted application when the server of the program stops, as a process of its own."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antwort.testing import check_frames
from raw_http import Wire, connected

PROGRAM = """
import asyncio, uvicorn
from fastapi import FastAPI
from antwort import Engine
from antwort.asgi import create_app
from antwort.testing import ScriptedProvider, answer, say
from antwort.server.server import listen

ai = create_app(Engine(ScriptedProvider(*[answer(say("one two three"), asyncio.Event())] * 9)))
app = FastAPI(lifespan=ai.lifespan)
app.mount("/ai", ai)
sock = listen("127.0.0.1", 0)
print(sock.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app, loop=LOOP, timeout_graceful_shutdown=1)).run(sockets=[sock])
"""
PATH = "/ai/v1/responses"
HELLO = {"model": "scripted", "input": "Hello"}
PROMPT = 15.0


@asynccontextmanager
async def hosted(loop: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM.replace("LOOP", repr(loop))),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        yield process, int(await process.stdout.readline())
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def begin(wire: Wire) -> list[bytes]:
    wire.send("POST", PATH, {**HELLO, "stream": True})
    assert (await wire.head()).status == 200
    chunks = [await wire.chunk()]
    while b"output_text.delta" not in chunks[-1]:
        chunks.append(await wire.chunk())
    return chunks


@pytest.mark.proves("TR-022", "TR-JSON")
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_what_the_programs_server_breaks_off_is_ended_properly(loop: str) -> None:
    async with asyncio.timeout(60), hosted(loop) as (process, port), connected(port) as wire, connected(port) as other:
        other.send("POST", PATH, HELLO)
        chunks = await begin(wire)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PROMPT):
            while chunk := await wire.chunk():
                chunks.append(chunk)
            reply = await other.reply()
            _, log = await process.communicate()
    response = check_frames(b"".join(chunks))
    assert (response.status, response.error and response.error.code) == ("failed", "request_cancelled")
    assert (reply.status, reply.error["code"]) == (503, "request_cancelled")
    assert b"timeout graceful shutdown exceeded" in log
    assert b"Traceback" not in log
