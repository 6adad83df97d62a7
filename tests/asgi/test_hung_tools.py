"""Functions that hang, in a server of its own process: nobody waits for them, and nothing is held up by them."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from live_server import launched
from raw_http import Reply, ask
from serving import HELLO, RESPONSES

PROGRAM = """
import asyncio, threading, time
from antwort import Engine, EngineSettings, Toolset
from antwort.testing import DemoProvider
from antwort.tools.limits import ToolLimits
from antwort.server.http import Transport
from antwort.server.server import Server, listen

stuck = Toolset("stuck")

@stuck.tool
def hang() -> None:
    while True:
        threading.Event().wait()

async def main() -> None:
    settings = EngineSettings(tool_limits=ToolLimits(timeout=0.5))
    async with Engine(DemoProvider(), executors=[stuck], settings=settings) as engine:
        sock = listen("127.0.0.1", 0)
        server = Server(Transport(engine), drain=engine.drain, drain_seconds=0.5)
        print(sock.getsockname()[1], flush=True)
        await server.serve(sockets=[sock])
    print(sum(each.name.startswith("antwort-tool-hang") for each in threading.enumerate()), "threads hang", flush=True)

asyncio.run(main())
"""
HANGING = {**HELLO, "tools": [{"type": "mcp", "server_label": "stuck"}]}
PLACES, CALLS = 16, 24
PROMPT = 5.0


@asynccontextmanager
async def program(text: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-c", text),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@pytest.mark.proves("MISTAKE-21")
async def test_requests_are_answered_while_functions_hang_and_the_process_ends_although_they_still_do() -> None:
    async with program(PROGRAM) as process, asyncio.timeout(60):
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        hung = [asyncio.create_task(ask(port, "POST", RESPONSES, HANGING)) for _ in range(CALLS)]
        async with asyncio.timeout(PROMPT):
            others = [await ask(port, "POST", RESPONSES, HELLO) for _ in range(CALLS)]
        assert [said(reply) for reply in others] == ["You said: Hello"] * CALLS
        replies = await asyncio.gather(*hung)
        late = "The tool answered: The tool 'hang' did not answer within 0.5 s."
        assert [said(reply) for reply in replies].count(late) == PLACES
        refused = [text for reply in replies if (text := said(reply)) != late]
        assert all("16 earlier calls still run" in text for text in refused), "hung threads do not pile up"
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PROMPT):
            output, _ = await process.communicate()
        assert (process.returncode, output.decode()) == (0, f"{PLACES} threads hang\n")


IN_A_THREAD = "await asyncio.to_thread(threading.Event().wait)"
DEAF = """
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
"""
IN_ITS_OWN = """
    pool = concurrent.futures.ThreadPoolExecutor()
    await asyncio.wrap_future(pool.submit(threading.Event().wait))
"""
TOOLS = """
import asyncio, concurrent.futures, threading
from antwort import Toolset

stuck = Toolset("stuck")

@stuck.tool(timeout=0.2)
async def hang() -> None:
    BODY
"""


@pytest.mark.proves("MISTAKE-21")
@pytest.mark.parametrize(
    "body",
    [IN_A_THREAD, IN_ITS_OWN, DEAF],
    ids=["in a thread of asyncio's", "in a thread of its own", "deaf to being cancelled"],
)
async def test_the_server_ends_when_told_to_although_an_async_tool_never_does(body: str, tmp_path: Path) -> None:
    module = tmp_path / "stuck_tools.py"
    module.write_text(TOOLS.replace("BODY", body.strip()), encoding="utf-8")
    async with launched("--scripted", "--memory", "--tools", str(module)) as server, asyncio.timeout(30):
        told = said(await ask(server.port, "POST", RESPONSES, HANGING))
        assert told == "The tool answered: The tool 'hang' did not answer within 0.2 s."
        async with asyncio.timeout(PROMPT):
            status, log = await server.stop()
    assert status == 0
    assert "leaving without it" in log
    assert "Traceback" not in log


def said(reply: Reply) -> str:
    text: str = reply.json()["output"][-1]["content"][0]["text"]
    return text
