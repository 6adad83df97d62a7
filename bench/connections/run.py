"""Many connections held open at once, each with a turn under way: WebSockets, and the same as SSE.

python -m connections.run --mock .bench/bin/mock --connections 1000

Each turn is `--tokens` tokens, `--pace` milliseconds apart, so that all turns are under way at the same time. The
second turn of a connection continues its first by `previous_response_id` with `store: false`, which only the connection
remembers; over SSE, where nobody does, it is sent with all that was said. A server of its own is started for each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from connections.machine import Server, State, mock, raise_limit, serving
from connections.report import table
from connections.talk import Crowd, Ended, Line, Trouble, socket_to, stream_to

_OPENING = 100
"""So many connections are opened at the same time."""
_SETTLING = 10.0
Open: TypeAlias = Callable[[int, Crowd], Awaitable[Line]]


class Load(NamedTuple):
    connections: int
    tokens: int
    pace: int

    @property
    def body(self) -> dict[str, Any]:
        return {"model": f"text-{self.tokens}-{self.pace}", "store": False, "input": "Say something."}

    @property
    def text(self) -> str:
        """What the backend says."""
        return "".join(f"tok{at} " for at in range(self.tokens))


class Taken(NamedTuple):
    """A round of turns, all begun at once."""

    ended: list[Ended]
    seconds: float
    peak: int
    troubles: list[str]

    def told(self) -> dict[str, Any]:
        deltas = sum(each.deltas for each in self.ended)
        return {
            "completed": len(self.ended),
            "failed": len(self.troubles),
            "seconds": round(self.seconds, 3),
            "turns_per_second": round(len(self.ended) / self.seconds, 1),
            "deltas_per_second": round(deltas / self.seconds),
            "under_way_at_once": self.peak,
            "troubles": sorted(set(self.troubles))[:3],
        }


async def measured(server: Server, kind: str, load: Load) -> dict[str, Any]:
    """What became of the connections, and of the server while it had them."""
    opens: Open = socket_to if kind == "websocket" else stream_to
    crowd = Crowd()
    await _once(opens, server, load)
    states = {"before": server.state()}
    began = time.perf_counter()
    lines = await _opened(opens, server, crowd, load.connections)
    opening = time.perf_counter() - began
    states["idle"] = await _settled(server)
    first = await _round(lines, [load.body] * len(lines), load, crowd)
    states["after_first"] = server.state()
    second = await _round(lines, [_next(kind, load, each) for each in first.ended], load, crowd)
    states["after_second"] = server.state()
    for line in lines:
        line.close()
    states["closed"] = await _settled(server, clients=0)
    rounds = {"first": first.told(), "second": second.told()}
    opened = {"connections": load.connections, "open_seconds": round(opening, 3)}
    return {**opened, **rounds, **_memory(states, load.connections), "gauges_left": server.gauges()}


async def _once(opens: Open, server: Server, load: Load) -> None:
    """A turn on a connection of its own, so that what is made once is made."""
    line = await opens(server.port, Crowd())
    await line.turn(load._replace(tokens=2).body)
    line.close()
    await _settled(server)


async def _opened(opens: Open, server: Server, crowd: Crowd, number: int) -> list[Line]:
    lines: list[Line] = []
    while len(lines) < number:
        some = min(_OPENING, number - len(lines))
        lines += await asyncio.gather(*(opens(server.port, crowd) for _ in range(some)))
    return lines


async def _round(lines: Sequence[Line], bodies: Sequence[dict[str, Any]], load: Load, crowd: Crowd) -> Taken:
    crowd.peak = 0
    began = time.perf_counter()
    turns = [line.turn(body) for line, body in zip(lines, bodies, strict=False)]
    ends = await asyncio.gather(*turns, return_exceptions=True)
    seconds = time.perf_counter() - began
    ended = [each for each in ends if isinstance(each, Ended) and each.text == load.text]
    troubles = [_trouble(each) for each in ends if not (isinstance(each, Ended) and each.text == load.text)]
    return Taken(ended, seconds, crowd.peak, troubles)


def _trouble(end: Ended | BaseException) -> str:
    if isinstance(end, Ended):
        return f"not all of the text: {len(end.text)} characters"
    if not isinstance(end, Trouble):
        raise end
    return str(end)


def _next(kind: str, load: Load, first: Ended) -> dict[str, Any]:
    if kind == "websocket":
        return {**load.body, "previous_response_id": first.id}
    said = [("user", load.body["input"]), ("assistant", first.text), ("user", load.body["input"])]
    return {**load.body, "input": [{"role": role, "content": content} for role, content in said]}


async def _settled(server: Server, clients: int | None = None) -> State:
    """The state once it stays the same, with so many clients where that is said; waited for only so long."""
    end = time.monotonic() + _SETTLING
    last = server.state()
    while time.monotonic() < end:
        await asyncio.sleep(0.25)
        now = server.state()
        if now._replace(cpu=0) == last._replace(cpu=0) and clients in (None, now.clients):
            return now
        last = now
    return last


def _memory(states: dict[str, State], connections: int) -> dict[str, Any]:
    before = states["before"].pss
    kinds = {name: each._asdict() for name, each in states.items()}
    each_kib = {
        name: round((states[name].pss - before) / connections / 1024, 1)
        for name in ("idle", "after_first", "after_second")
    }
    spent = states["after_second"].cpu - states["idle"].cpu
    cost = {"cpu_ms_per_turn": round(spent / (2 * connections) * 1000, 3)}
    return {"states": kinds, "kib_per_connection": each_kib, **cost, "connections_left": states["closed"].clients}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m connections.run", description=__doc__)
    parser.add_argument("--mock", type=Path, required=True, metavar="FILE", help="the mock backend's program")
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=32, help="of each answer")
    parser.add_argument("--pace", type=int, default=100, help="milliseconds between tokens")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the figures go, as JSON")
    asked = parser.parse_args()
    load = Load(asked.connections, asked.tokens, asked.pace)
    raise_limit(3 * load.connections + 500)
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {1})
    figures = {kind: _measured(asked.mock, kind, load) for kind in ("websocket", "sse")}
    if asked.out:
        asked.out.write_text(json.dumps({**load._asdict(), **figures}, indent=1) + "\n", encoding="utf-8")
    print(table(load.connections, figures))
    return 0 if all(_is_whole(each, load) for each in figures.values()) else 1


def _measured(program: Path, kind: str, load: Load) -> dict[str, Any]:
    with mock(program) as backend, serving(backend) as server:
        return asyncio.run(measured(server, kind, load))


def _is_whole(figures: dict[str, Any], load: Load) -> bool:
    turns = [figures[name]["completed"] for name in ("first", "second")]
    under_way = [figures["gauges_left"].get(name, 0) for name in ("antwort_runs_live", "antwort_websockets_open")]
    return turns == [load.connections] * 2 and figures["connections_left"] == 0 and not any(under_way)


if __name__ == "__main__":
    sys.exit(main())
