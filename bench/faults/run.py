"""What requests without tools take on a server whose other requests are in trouble with MCP servers.

PYTHONPATH=bench:tests python -m faults.run --requests 400

The backend is a stand-in that calls the first tool it is offered; requests that offer none are answered at once. Each
of those is timed from its first byte out to its last byte in, on a connection that is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from live_server import LiveServer, launched
from mcp_kit import McpProcess, mcp_process, nobody_there
from raw_http import Wire, ask, connected

RESPONSES = "/v1/responses"
PLAIN: dict[str, Any] = {"model": "scripted", "input": "Hello", "stream": True, "store": False}


_PAUSE = 0.05
"""Seconds between two requests of a client in trouble: what is looked for is delay, and not a busy processor."""


class Figures(NamedTuple):
    """Milliseconds."""

    trouble: str
    beside: int
    """Requests in trouble that were under way or done meanwhile."""
    p50: float
    p99: float
    longest: float


class Ground(NamedTuple):
    server: LiveServer
    mcp: McpProcess
    mortal: McpProcess


Trouble = Callable[[Ground], Coroutine[None, None, int]]
"""Makes trouble until it is cancelled or has enough; how many requests were in it."""


# ---- who is there ----


@asynccontextmanager
async def backend() -> AsyncIterator[str]:
    command = (sys.executable, "-m", "antwort.testing.backend", "--port", "0")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    found = re.search(r"http://\S+", (await process.stdout.readline()).decode())
    assert found, "the backend did not start"
    try:
        yield found[0]
    finally:
        process.kill()
        await process.communicate()


@asynccontextmanager
async def ground(folder: Path) -> AsyncIterator[Ground]:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(backend())
        places = folder / "steady", folder / "mortal"
        for place in places:
            place.mkdir()
        mcp, mortal = [await stack.enter_async_context(mcp_process(place)) for place in places]
        config = folder / "antwort.yaml"
        config.write_text(_settings(url, mcp, mortal))
        yield Ground(await stack.enter_async_context(launched("--config", str(config))), mcp, mortal)


def _settings(backend_url: str, mcp: McpProcess, mortal: McpProcess) -> str:
    addresses = {"try": mcp.url, "mortal": mortal.url, "dead": f"http://127.0.0.1:{nobody_there()}/mcp"}
    servers = [{"label": label, "url": url, "concurrency": 256} for label, url in addresses.items()]
    limits = {"concurrency": 256, "total": 256}
    told = {
        "memory": True,
        "backends": [{"name": "b", "url": backend_url}],
        "log": {"level": "error"},
        "tools": {"limits": limits},
        "mcp_servers": servers,
    }
    return json.dumps(told)  # which is YAML


# ---- trouble ----


def calling(label: str, tool: str) -> dict[str, Any]:
    """A request whose model calls that tool."""
    declared = {"type": "mcp", "server_label": label, "allowed_tools": [tool]}
    return {"model": "scripted", "input": "Hello", "tools": [declared], "store": False}


async def _nothing(_: Ground) -> int:
    return 0


async def _again(port: int, body: dict[str, Any], count: list[int]) -> None:
    while True:
        await ask(port, "POST", RESPONSES, body)
        count.append(1)
        await asyncio.sleep(_PAUSE)


async def _crowd(port: int, body: dict[str, Any], number: int) -> int:
    """So many clients, each of which asks again and again."""
    count: list[int] = []
    try:
        await asyncio.gather(*(_again(port, body, count) for _ in range(number)))
    except asyncio.CancelledError:
        return len(count) + number
    raise AssertionError("it never ends by itself")


async def _hung(place: Ground) -> int:
    return await _crowd(place.server.port, calling("try", "wait"), 64)


async def _dead(place: Ground) -> int:
    return await _crowd(place.server.port, calling("dead", "echo"), 8)


async def _huge(place: Ground) -> int:
    return await _crowd(place.server.port, calling("try", "big"), 2)


async def _dying(place: Ground) -> int:
    count: list[int] = []
    asking = asyncio.create_task(_again(place.server.port, calling("mortal", "echo"), count))
    try:
        while True:
            await asyncio.sleep(0.2)
            await place.mortal.kill()
            await place.mortal.start()
    except asyncio.CancelledError:
        asking.cancel()
        return len(count)


TROUBLES: dict[str, Trouble] = {
    "none": _nothing,
    "64 calls that hang": _hung,
    "8 clients of a server that is down": _dead,
    "2 clients of a tool that answers 50 MB": _huge,
    "a server that is killed and restarted": _dying,
}


# ---- measuring ----


async def timed(port: int, number: int) -> list[float]:
    async with connected(port) as wire:
        return [await _one(wire) for _ in range(number)]


async def _one(wire: Wire) -> float:
    began = time.perf_counter()
    wire.send("POST", RESPONSES, PLAIN)
    reply = await wire.reply()
    assert reply.status == 200, reply.body
    return (time.perf_counter() - began) * 1000


async def measure(name: str, trouble: Trouble, place: Ground, number: int) -> Figures:
    await timed(place.server.port, 50)
    making = asyncio.create_task(trouble(place))
    await asyncio.sleep(1)  # so that it is under way
    took = sorted(await timed(place.server.port, number))
    making.cancel()
    beside = await making
    return Figures(name, beside, statistics.median(took), took[int(len(took) * 0.99)], took[-1])


async def left(place: Ground, times: int) -> list[float]:
    """Milliseconds from a client's leaving in mid-call to the server's record of the cancellation."""
    took = []
    for at in range(place.mcp.count("cancelled") + 1, place.mcp.count("cancelled") + 1 + times):
        async with connected(place.server.port) as wire:
            wire.send("POST", RESPONSES, {**calling("try", "wait"), "stream": True})
            await place.mcp.until_seen("called", "wait", place.mcp.count("cancelled") + 1)
            began = time.perf_counter()
            wire.vanish()
            await place.mcp.until_seen("cancelled", "wait", at)
            took.append((time.perf_counter() - began) * 1000)
    return took


async def run(number: int) -> tuple[list[Figures], list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        async with ground(Path(folder)) as place:
            cancelled = await left(place, 20)
            return [await measure(name, trouble, place, number) for name, trouble in TROUBLES.items()], cancelled


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m faults.run", description=__doc__)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--out", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    figures, cancelled = asyncio.run(run(chosen.requests))
    print("| trouble elsewhere | requests in it | p50 ms | p99 ms | longest ms |\n|---|---|---|---|---|")
    for each in figures:
        print(f"| {each.trouble} | {each.beside} | {each.p50:.1f} | {each.p99:.1f} | {each.longest:.1f} |")
    longest = max(cancelled)
    print(
        f"\nA client that leaves is a cancellation for the server after {statistics.median(cancelled):.0f} ms", end=""
    )
    print(f" (median of {len(cancelled)}; {longest:.0f} ms at most).")
    if chosen.out:
        chosen.out.write_text(json.dumps([each._asdict() for each in figures], indent=2))


if __name__ == "__main__":
    main()
