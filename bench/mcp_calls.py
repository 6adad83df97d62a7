"""CPU time of one call at an MCP server: antwort's client beside the MCP SDK's, over streamable HTTP.

python bench/mcp_calls.py --calls 500 --rounds 5
python bench/mcp_calls.py --idle 100

The server is `antwort.testing.mcp` in a process of its own, once with the newest version of the protocol and once with
an older one, which has sessions. Both clients make their calls one after the other over one session, in alternating
rounds; what counts is the CPU time of this process, and the median of the rounds.

With `--idle`, memory is measured instead: that many sessions of antwort's client, each of another owner, list the tools
of the server and make one call. What counts is what `tracemalloc` finds while they are idle. The kernel's buffers are
not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import re
import statistics
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from mcp.client.client import Client

from antwort.tools.mcp.base import ServerSpec
from antwort.tools.mcp.pool import SessionPool

COMMAND = (sys.executable, "-m", "antwort.testing.mcp", "--port", "0")
ARGUMENTS = {"text": "hello"}


@asynccontextmanager
async def server(*arguments: str) -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(*COMMAND, *arguments, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    greeting = (await process.stdout.readline()).decode()
    found = re.search(r"http://\S+", greeting)
    assert found, greeting
    try:
        yield found[0]
    finally:
        process.kill()
        await process.communicate()


async def milliseconds(call: Callable[[], Awaitable[object]], calls: int) -> float:
    """Return the CPU time of one call."""
    began = time.process_time()
    for _ in range(calls):
        await call()
    return (time.process_time() - began) * 1000 / calls


async def measure(url: str, calls: int, rounds: int) -> tuple[float, float]:
    """Return the CPU time of a call with antwort's client and with the SDK's."""
    pool = SessionPool()
    spec = ServerSpec(label="try", url=url)
    await pool.session(spec).tools()
    async with Client(url) as client:
        await client.list_tools()

        async def ours() -> object:
            return await pool.session(spec).call("echo", '{"text": "hello"}', key="k")

        async def theirs() -> object:
            return await client.call_tool("echo", ARGUMENTS)

        await milliseconds(ours, 20), await milliseconds(theirs, 20)
        pairs = [(await milliseconds(ours, calls), await milliseconds(theirs, calls)) for _ in range(rounds)]
    await pool.close()
    return statistics.median(each[0] for each in pairs), statistics.median(each[1] for each in pairs)


async def kibibytes(url: str, sessions: int) -> float:
    """Return the memory of one idle session. The first session loads what all share, and is not counted."""
    pool = SessionPool(limit=sessions + 1)

    async def use(number: int) -> None:
        session = pool.session(ServerSpec(label="try", url=url, owner=("tenant", f"user {number}")))
        await session.tools()
        await session.call("echo", '{"text": "hello"}', key="k")

    await use(0)
    gc.collect()
    tracemalloc.start()
    for number in range(1, sessions + 1):
        await use(number)
    await asyncio.sleep(1.0)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert pool.open_sessions == sessions + 1
    await pool.close()
    return held / sessions / 1024


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=500, help="of each client in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idle", type=int, metavar="N", help="measure the memory of N idle sessions instead")
    chosen = parser.parse_args()
    for version in ("2026-07-28", "2025-06-18"):
        older = () if version.startswith("2026") else ("--oldest", version)
        async with server(*older) as url:
            if chosen.idle:
                print(f"{version}: {await kibibytes(url, chosen.idle):.0f} KiB for each idle session")
                continue
            ours, theirs = await measure(url, chosen.calls, chosen.rounds)
        print(f"{version}: antwort {ours:.2f} ms, SDK {theirs:.2f} ms, {theirs / ours:.1f} times as much")


if __name__ == "__main__":
    asyncio.run(main())
