"""One attack on a server, over and over, until its time is up or it is killed.

PYTHONPATH=bench:tests python -m attacks.attacker NAME --port N --loud URL --seconds S
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple

from raw_http import Body, Wire, connected

RESPONSES = "/v1/responses"
KEY = "sk-antwort-ada-ada-ada-ada-ada-ada-ada-ada-ada1"
_HEAD = b"POST /healthz HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"


class Target(NamedTuple):
    port: int
    loud: str
    """Where the hostile backend and its MCP servers are."""
    is_over: Callable[[], bool]

    async def ask(self, body: Body, path: str = RESPONSES, method: str = "POST", patience: float = 60.0) -> Any:
        """Send one request; the answer's JSON, or None where there is none."""
        with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            async with asyncio.timeout(patience), connected(self.port) as wire:
                wire.send(method, path, body, {"authorization": f"Bearer {KEY}"})
                reply = await wire.reply()
                with suppress(ValueError):
                    return reply.json()
        return None


# ---- fields behind the body ----


async def _trailers(target: Target, endless: bytes, first: bytes = b"") -> None:
    while not target.is_over():
        with suppress(OSError):
            async with connected(target.port) as wire:
                wire.writer.write(_HEAD + first)
                while not target.is_over() and not wire.reader.at_eof():
                    wire.writer.write(endless)
                    await wire.writer.drain()
        await asyncio.sleep(0.02)


async def many_trailers(target: Target) -> None:
    await _trailers(target, b"A: b\r\n" * 10_000)


async def endless_trailer(target: Target) -> None:
    await _trailers(target, b"a" * 65_536, b"X: ")


async def chunk_extension(target: Target) -> None:
    await _trailers(
        target, b"a" * 65_536, b"\r\nPOST /healthz HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n1;"
    )


# ---- bodies ----


def _bodies(values: int) -> list[bytes]:
    """Bodies of so many small values, in every place that takes them."""
    many = b"[" + b",".join([b"[]"] * values) + b"]"
    parts = b"[" + b",".join([b'{"type":"input_text","text":""}'] * (values // 3)) + b"]"
    function = b'{"model":"good","input":"x","tools":[{"type":"function","name":"f","parameters":{"x":%b}}]}'
    return [
        function % many,
        b'{"model":"good","input":[{"role":"user","content":%b}]}' % many,
        b'{"model":"good","input":[{"role":"user","content":%b}]}' % parts,
        b'{"model":"good","input":"x","reasoning":{"summary":%b}}' % many,
        b'{"model":"good","input":"x","text":{"format":{"type":"json_schema","name":"n","schema":{"x":%b}}}}' % many,
        b'{"model":"good","input":"x","nobody_knows":%b}' % many,
        b'{"model":"good","input":"x","nobody_knows":%b}' % many.replace(b"[]", b"{}"),
    ]


async def _send_all(target: Target, bodies: list[bytes], pause: float) -> None:
    while not target.is_over():
        for body in bodies:
            if not target.is_over():
                await target.ask(body)
                await asyncio.sleep(pause)


async def bodies_of_5_mb(target: Target) -> None:
    await _send_all(target, _bodies(1_700_000), 0.5)


async def bodies_of_30_mb(target: Target) -> None:
    await _send_all(target, _bodies(10_000_000), 0.5)


async def bodies_of_60_mb(target: Target) -> None:
    await _send_all(target, _bodies(20_000_000), 0.5)


async def allowed_bodies(target: Target) -> None:
    """The most values that are allowed, or long texts, or as many items or tools as there may be."""
    schema = {"type": "object", "properties": {f"p{at}": {"type": "string", "description": "d"} for at in range(700)}}
    tools = [{"type": "function", "name": f"f{at}", "parameters": schema} for at in range(128)]
    items = [{"role": "user", "content": "Hello"}] * 10_000
    texts = [{"role": "user", "content": "a" * 9_000_000}] * 6
    fits: list[dict[str, Any]] = [{"input": "x", "tools": tools}, {"input": items}, {"input": texts}]
    bodies = [json.dumps({"model": "good", **fields}).encode() for fields in fits]
    await _send_all(target, _bodies(299_000) + bodies, 0.5)


def _calls(kind: str, first: int, number: int) -> list[dict[str, Any]]:
    """So many calls, each with its result."""
    numbers = range(first, first + number)
    if kind == "mcp_call":
        call = {"type": kind, "server_label": "s", "name": "f", "arguments": "{}", "output": "x"}
        return [{**call, "id": f"mcp_{n}"} for n in numbers]
    calls = [{"type": kind, "call_id": f"call_{n}", "name": "f", "arguments": "{}"} for n in numbers]
    results = [{"type": f"{kind}_output", "call_id": f"call_{n}", "output": "x"} for n in numbers]
    return [item for pair in zip(calls, results, strict=True) for item in pair]


async def bodies_of_calls(target: Target) -> None:
    """As many small items as are allowed: servers' calls, and pairs of calls and results of known and unknown types."""
    kinds = [("mcp_call", 9999), ("function_call", 4999), ("shell_call", 4999)]
    items = [[*_calls(kind, 0, number), {"role": "user", "content": "x"}] for kind, number in kinds]
    await _send_all(target, [json.dumps({"model": "good", "input": each}).encode() for each in items], 0.1)


# ---- followers and slow readers ----


async def _made(target: Target, model: str, *, background: bool = False) -> str:
    """The id of a response of 40 MB, or of 2 MB; of one under way, where it is made in the background."""
    server = {"type": "mcp", "server_label": "s", "server_url": f"{target.loud}/mcp/book", "require_approval": "never"}
    tools = [server] if model == "book" else []
    asked = {"model": model, "input": "x", "tools": tools, "background": background, "max_tool_calls": 1000}
    made = await target.ask(asked, patience=300)
    assert made is not None, "the server gave no answer"
    if "id" not in made:
        raise AssertionError(made)
    return str(made["id"])


async def _follow(target: Target, name: str, number: int) -> None:
    """Ask for the whole stream, so many times at once, and read none of it."""

    async def one() -> None:
        while not target.is_over():
            with suppress(OSError):
                async with connected(target.port, buffer=4096) as wire:
                    wire.send("GET", f"{RESPONSES}/{name}?stream=true", headers={"authorization": f"Bearer {KEY}"})
                    await _hold(wire, target)
            await asyncio.sleep(0.2)

    await asyncio.gather(*(one() for _ in range(number)))


async def _hold(wire: Wire, target: Target) -> None:
    """Keep the connection, unread, until it breaks or the time is up."""
    for _ in range(100):
        if target.is_over() or wire.reader.at_eof():
            return
        await asyncio.sleep(0.1)


async def ten_followers(target: Target) -> None:
    await _follow(target, await _made(target, "book"), 10)


async def ten_followers_of_a_run_under_way(target: Target) -> None:
    await _follow(target, await _made(target, "book", background=True), 10)


async def fifty_followers_of_2_mb(target: Target) -> None:
    await _follow(target, await _made(target, "page"), 50)


async def hundred_followers(target: Target) -> None:
    await _follow(target, await _made(target, "book"), 100)


async def hundred_followers_of_a_run_under_way(target: Target) -> None:
    await _follow(target, await _made(target, "book", background=True), 100)


async def _read_slowly(target: Target, model: str, number: int) -> None:
    body = {"model": model, "input": "x", "stream": True, "store": False}

    async def one() -> None:
        while not target.is_over():
            with suppress(OSError):
                async with connected(target.port, buffer=4096) as wire:
                    wire.send("POST", RESPONSES, body, {"authorization": f"Bearer {KEY}"})
                    await _hold(wire, target)
            await asyncio.sleep(0.5)

    await asyncio.gather(*(one() for _ in range(number)))


async def slow_readers_of_40_mb(target: Target) -> None:
    await _read_slowly(target, "wide", 20)


async def slow_readers_of_2_mb(target: Target) -> None:
    await _read_slowly(target, "page", 500)


# ---- history ----


async def long_history(target: Target) -> None:
    """24 turns of 10 MB, then 8 short requests at once that go on from there."""
    last: str | None = None
    for _ in range(24):
        asked = {"model": "good", "input": "h" * 9_900_000, "previous_response_id": last, "truncation": "auto"}
        made = await target.ask(asked, patience=120)
        last = made["id"] if made and "id" in made else last
    say("history is there")

    async def one(truncation: str) -> None:
        while not target.is_over():
            await target.ask({"model": "good", "input": "x", "previous_response_id": last, "truncation": truncation})
            await asyncio.sleep(0.05)

    await asyncio.gather(*(one("auto" if at % 2 else "disabled") for at in range(8)))


async def long_history_of_calls(target: Target) -> None:
    """6 turns of 10,000 calls, then 2 clients whose short requests go on from there."""
    last: str | None = None
    for at in range(6):
        items = [*_calls("mcp_call", at * 9999, 9999), {"role": "user", "content": "x"}]
        made = await target.ask({"model": "good", "input": items, "previous_response_id": last}, patience=120)
        last = made["id"] if made and "id" in made else last
    say("history is there")
    await _repeat(target, {"model": "good", "input": "x", "previous_response_id": last}, 2, 60, 0.05)


async def repeated_ids(target: Target) -> None:
    """A turn of 10,000 different items under one id, then requests with as many others that go on from there."""

    def body(first: int, last: str | None) -> dict[str, Any]:
        call = {"type": "mcp_call", "id": "mcp_1", "server_label": "s", "name": "f", "output": "x"}
        items = [{**call, "arguments": f'{{"n":{n}}}'} for n in range(first, first + 9999)]
        return {"model": "good", "input": [*items, {"role": "user", "content": "x"}], "previous_response_id": last}

    made = await target.ask(body(0, None), patience=120)
    assert made is not None, "the server gave no answer"
    await _repeat(target, body(9999, made["id"]), 1, 120)


# ---- by way of backends and MCP servers ----


async def _repeat(target: Target, body: dict[str, Any], number: int, patience: float, pause: float = 0.2) -> None:
    async def one() -> None:
        while not target.is_over():
            await target.ask(body, patience=patience)
            await asyncio.sleep(pause)

    await asyncio.gather(*(one() for _ in range(number)))


async def backend_trailer(target: Target) -> None:
    await _repeat(target, {"model": "trailer", "input": "x", "stream": True}, 1, 30)


async def mcp_trailer(target: Target) -> None:
    server = {"type": "mcp", "server_label": "s", "server_url": f"{target.loud}/mcp/trailer"}
    await _repeat(target, {"model": "good", "input": "x", "tools": [server]}, 1, 30)


async def backend_flood(target: Target) -> None:
    await _repeat(target, {"model": "flood", "input": "x", "stream": True}, 1, 60)


async def endless_arguments(target: Target) -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    await _repeat(target, {"model": "arguments", "input": "x", "stream": True, "tools": [tool]}, 1, 60)


async def _chatty(target: Target, number: int) -> None:
    for at in range(number):
        url = f"{target.loud.replace('127.0.0.1', f'127.0.1.{at + 1}')}/mcp/chatty"
        server = {"type": "mcp", "server_label": "s", "server_url": url}
        await target.ask({"model": "good", "input": "x", "tools": [server]})
    while not target.is_over():
        await asyncio.sleep(0.1)


async def one_chatty_mcp_server(target: Target) -> None:
    await _chatty(target, 1)


async def sixteen_chatty_mcp_servers(target: Target) -> None:
    await _chatty(target, 16)


async def broken_answers(target: Target) -> None:
    await _repeat(target, {"model": "broken", "input": "x"}, 5, 10, 0.1)


async def broken_streams(target: Target) -> None:
    await _repeat(target, {"model": "cut", "input": "x", "stream": True}, 5, 10, 0.1)


async def streams_given_up(target: Target) -> None:
    await _repeat(target, {"model": "silent", "input": "x", "stream": True}, 6, 31)


async def runs_without_client(target: Target) -> None:
    """Runs that go on when their client leaves, 20 at a time."""
    body = {"model": "silent", "input": "x", "stream": True}

    async def one() -> None:
        while not target.is_over():
            with suppress(OSError):
                async with connected(target.port) as wire:
                    wire.send(
                        "POST", RESPONSES, body, {"authorization": f"Bearer {KEY}", "antwort-on-disconnect": "continue"}
                    )
                    await asyncio.sleep(0.3)
            await asyncio.sleep(1)

    await asyncio.gather(*(one() for _ in range(20)))


Attack = Callable[[Target], Awaitable[None]]
ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (
        many_trailers,
        endless_trailer,
        chunk_extension,
        bodies_of_5_mb,
        bodies_of_30_mb,
        bodies_of_60_mb,
        allowed_bodies,
        bodies_of_calls,
        ten_followers,
        ten_followers_of_a_run_under_way,
        fifty_followers_of_2_mb,
        hundred_followers,
        hundred_followers_of_a_run_under_way,
        slow_readers_of_40_mb,
        slow_readers_of_2_mb,
        long_history,
        long_history_of_calls,
        repeated_ids,
        backend_trailer,
        mcp_trailer,
        backend_flood,
        endless_arguments,
        one_chatty_mcp_server,
        sixteen_chatty_mcp_servers,
        broken_answers,
        broken_streams,
        streams_given_up,
        runs_without_client,
    )
}


def say(words: str) -> None:
    print(words, flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m attacks.attacker", description=__doc__)
    parser.add_argument("names", nargs="+", choices=[*ATTACKS])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--loud", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    chosen = parser.parse_args()
    os.nice(15)  # the other tenant's client is on the same core
    until = time.monotonic() + chosen.seconds
    target = Target(chosen.port, chosen.loud, lambda: time.monotonic() >= until)
    say("begun")
    results = await asyncio.gather(*(ATTACKS[name](target) for name in chosen.names), return_exceptions=True)
    for name, result in zip(chosen.names, results, strict=True):
        if result is not None:
            print(f"{name}: {result!r}", file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(main())
