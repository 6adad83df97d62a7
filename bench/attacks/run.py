"""What one tenant's requests take while another tenant attacks the server.

PYTHONPATH=bench:tests python -m attacks.run --seconds 60

Every attack is made alone, and then all of them together for so many seconds. Meanwhile the other tenant asks for a
short stored answer every 20 ms, whether or not the one before has been answered, so a server that stands still shows as
a row of late answers. The server has the first core to itself where there is more than one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from attacks.attacker import ATTACKS, KEY
from raw_http import Wire, connected

_VICTIM = "sk-antwort-bob-bob-bob-bob-bob-bob-bob-bob-bob1"
_INTERVAL = 0.02
_ALONE_SECONDS = 8.0
_DRAIN_SECONDS = 10


class Figures(NamedTuple):
    attack: str
    requests: int
    failed: int
    """Of the other tenant's requests."""
    p50: float
    p99: float
    longest: float
    """Milliseconds."""
    peak: float
    """The server's resident memory at most, in MB."""
    after: float
    """And seven seconds after the attack."""


class Server(NamedTuple):
    process: asyncio.subprocess.Process
    port: int

    @property
    def rss(self) -> float:
        with suppress(OSError, AttributeError):
            found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
            return int(found[1]) / 1000 if found else 0.0
        return 0.0


@asynccontextmanager
async def _started(
    *command: str, core: int, pattern: str, errors: IO[bytes] | None = None
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stdin=quiet, stderr=errors)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(process.pid, {cores[min(core, len(cores) - 1)]})
    try:
        assert process.stdout is not None
        found = None
        while not found:
            line = (await process.stdout.readline()).decode()
            assert line, f"{command} did not start"
            found = re.search(pattern, line)
        draining = asyncio.create_task(process.stdout.read())
        yield process, found[1]
        draining.cancel()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def _serving(program: str, folder: Path) -> AsyncIterator[tuple[Server, str]]:
    """A server with two tenants and two backends: one that both use, one that is loud."""
    async with AsyncExitStack() as stack:
        hostile = (sys.executable, "-m", "attacks.hostile")
        _, shared = await stack.enter_async_context(_started(*hostile, core=1, pattern=r"(http://\S+)"))
        process, loud = await stack.enter_async_context(_started(*hostile, core=1, pattern=r"(http://\S+)"))
        os.setpriority(os.PRIO_PROCESS, process.pid, 15)  # the other tenant's client is on the same core
        settings = {
            "backends": [
                {"name": "shared", "url": f"{shared}/v1", "models": ["good", "broken", "cut", "silent"]},
                {
                    "name": "loud",
                    "url": f"{loud}/v1",
                    "models": ["flood", "arguments", "trailer", "wide", "page", "book"],
                },
            ],
            "log": {"level": "error"},
            "mcp": {"reach": {"allow": ["127.0.0.0/16"]}},
            "auth": {
                "keys": [{"name": "ada", "key": KEY, "tenant": "a"}, {"name": "bob", "key": _VICTIM, "tenant": "b"}]
            },
        }
        config = folder / "antwort.yaml"
        config.write_text(json.dumps(settings))
        command = (
            program,
            "serve",
            "--port",
            "0",
            "--data",
            str(folder / "data"),
            "--config",
            str(config),
            "--drain",
            str(_DRAIN_SECONDS),
        )
        log = stack.enter_context((folder / "log").open("wb"))
        listening = r"listens on http://\S+?:(\d+)$"
        process, port = await stack.enter_async_context(_started(*command, core=0, pattern=listening, errors=log))
        yield Server(process, int(port)), loud
        if lines := (folder / "log").read_text().splitlines():
            print(f"  {len(lines)} errors logged, the first: {lines[0][:2000]}", file=sys.stderr)


class Victim:
    """The other tenant: a request every so often, late or not."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[Wire] = []
        self._stack = AsyncExitStack()
        self._asking: set[asyncio.Task[None]] = set()
        self.took: list[float] = []
        self.failures: list[str] = []

    async def ask_for(self, seconds: float) -> None:
        first = time.perf_counter()
        for at in range(int(seconds / _INTERVAL)):
            due = first + at * _INTERVAL
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            task = asyncio.create_task(self._one(due))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def end(self) -> None:
        if self._asking:
            await asyncio.wait(set(self._asking), timeout=60)
        for task in self._asking:
            task.cancel()
            self.took.append(60_000)
            self.failures.append("no answer within a minute")
        await self._stack.aclose()

    async def _one(self, due: float) -> None:
        try:
            wire = self._free.pop() if self._free else await self._stack.enter_async_context(connected(self._port))
            wire.send(
                "POST", "/v1/responses", {"model": "good", "input": "Hello"}, {"authorization": f"Bearer {_VICTIM}"}
            )
            reply = await wire.reply()
        except (OSError, asyncio.IncompleteReadError) as error:
            self.failures.append(repr(error))
            return
        self._free.append(wire)
        self.took.append((time.perf_counter() - due) * 1000)
        if reply.status != 200:
            self.failures.append(reply.body.decode()[:200])


async def _measure(server: Server, loud: str, names: list[str], seconds: float, title: str) -> Figures:
    peak = server.rss
    victim = Victim(server.port)

    async def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, server.rss)
            await asyncio.sleep(0.05)

    watching = asyncio.create_task(watch())
    async with AsyncExitStack() as stack:
        for name in names:
            command = (sys.executable, "-m", "attacks.attacker", name)
            place = ("--port", str(server.port), "--loud", loud, "--seconds", str(seconds))
            attacker, _ = await stack.enter_async_context(_started(*command, *place, core=1, pattern=r"(begun)"))
            os.setpriority(os.PRIO_PROCESS, attacker.pid, 15)
        await victim.ask_for(seconds)
        await victim.end()
    await asyncio.sleep(7)
    watching.cancel()
    for failure in sorted(set(victim.failures))[:3]:
        print(f"  {title}: {failure}", file=sys.stderr)
    took = sorted(victim.took)
    middle, late = took[len(took) // 2], took[int(len(took) * 0.99)]
    return Figures(title, len(took), len(victim.failures), middle, late, took[-1], peak, server.rss)


async def _stopped(server: Server, loud: str) -> float:
    """Seconds from SIGTERM to the end of the process, while 100 readers hold the stream of a long response."""
    name = "hundred_followers_of_a_run_under_way"
    command = (
        sys.executable,
        "-m",
        "attacks.attacker",
        name,
        "--port",
        str(server.port),
        "--loud",
        loud,
        "--seconds",
        "60",
    )
    async with _started(*command, core=1, pattern=r"(begun)"):
        await asyncio.sleep(4)
        began = time.perf_counter()
        server.process.send_signal(signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(60):
                await server.process.wait()
        return time.perf_counter() - began


async def run(program: str, names: list[str], seconds: float) -> tuple[list[Figures], float]:
    shown: list[Figures] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, title in enumerate(["nothing", *names, "all of them together"]):
            place = Path(folder) / str(number)
            place.mkdir()
            chosen = {"nothing": [], "all of them together": names}.get(title, [title])
            lasts = (
                seconds if title == "all of them together" else 33 if title == "streams_given_up" else _ALONE_SECONDS
            )
            async with _serving(program, place) as (server, loud):
                figures = await _measure(server, loud, chosen, lasts, title.replace("_", " "))
                shown.append(figures)
                print(_row(figures), flush=True)
                if title == "all of them together":
                    stopped = await _stopped(server, loud)
    return shown, stopped


def _row(each: Figures) -> str:
    times = f"{each.p50:.1f} | {each.p99:.0f} | {each.longest:.0f}"
    return f"| {each.attack} | {each.requests:,} | {each.failed:,} | {times} | {each.peak:.0f} | {each.after:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m attacks.run", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long all attacks together last")
    parser.add_argument(
        "--attack", action="append", choices=[*ATTACKS], help="only this one; may be given several times"
    )
    parser.add_argument(
        "--antwort", default=str(Path(sys.executable).with_name("antwort")), help="the program to attack"
    )
    parser.add_argument("--out", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    print("| attack of one tenant | requests | failed | p50 ms | p99 ms | longest ms | RSS peak MB | RSS after MB |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    figures, stopped = asyncio.run(run(chosen.antwort, chosen.attack or [*ATTACKS], chosen.seconds))
    readers = "SIGTERM with 100 readers of a long response"
    print(f"\n{readers}: the server ended after {stopped:.1f} s (drain: {_DRAIN_SECONDS} s).")
    if chosen.out:
        chosen.out.write_text(json.dumps([each._asdict() for each in figures], indent=2))


if __name__ == "__main__":
    main()
