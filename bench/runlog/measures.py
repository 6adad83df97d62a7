"""What is measured of a run log, apart from processes that die."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

from runlog.homes import Place, resident
from runlog.load import ME_AND_I, Running, beginning, delta, deltas, running

from antwort.api.events import OutputTextDelta
from antwort.identity import Identity
from antwort.ids import new_id
from antwort.storage.run_log import RunLog

MIB = 2**20


class Cost:
    """CPU and time between two moments."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._begun = (place.client_cpu(), place.server_cpu(), time.perf_counter())

    def per(self, count: int) -> dict[str, float]:
        """Microseconds for each of so many."""
        now = (self._place.client_cpu(), self._place.server_cpu(), time.perf_counter())
        client, server, took = (after - before for before, after in zip(self._begun, now, strict=True))
        return {
            "client_us": round(client / count * 1e6, 1),
            "server_us": round(server / count * 1e6, 1),
            "per_second": round(count / took),
        }


async def appends(place: Place, runs: int, events: int, at_once: int) -> dict[str, float]:
    """`runs` side by side, each with so many events, `at_once` in each append, each of which is waited for."""
    begun = await running(place.log, [new_id("resp") for _ in range(runs)])
    piece, took = deltas(at_once), list[float]()

    async def speak(run: Running) -> None:
        for _ in range(events // at_once):
            began = time.perf_counter()
            await run.say(piece)
            took.append(time.perf_counter() - began)

    cost = Cost(place)
    await asyncio.gather(*map(speak, begun))
    figures = cost.per(runs * events)
    await asyncio.gather(*(run.end() for run in begun))
    return {**figures, **spread(took)}


async def handing_out(place: Place, runs: int) -> dict[str, float]:
    """Submitted, 64 at a time, and claimed."""
    cost = Cost(place)
    begun = await running(place.log, [new_id("resp") for _ in range(runs)])
    figures = cost.per(runs)
    await asyncio.gather(*(run.end() for run in begun))
    return figures


async def replay(place: Place, events: int) -> dict[str, float]:
    """A log of so many events, read from its beginning: as it was written, and packed."""
    (run,) = await running(place.log, [new_id("resp")])
    await run.say(beginning(run.claimed.response))
    for _ in range(events // 5):
        await run.say(deltas(5))
    await run.end()
    response_id = run.claimed.response.id
    fresh = await _read(place.log, response_id, events)
    await place.log.sweep()
    return {"fresh_ms": fresh, "packed_ms": await _read(place.log, response_id, events)}


async def _read(log: RunLog, response_id: str, events: int) -> float:
    """The fastest of five, in milliseconds."""
    took = []
    for _ in range(5):
        began, count = time.perf_counter(), 0
        async with aclosing(log.read(ME_AND_I, response_id)) as batches:
            async for records in batches:
                count += sum(len(record.events) for record in records)
        took.append(time.perf_counter() - began)
        assert count >= events, count
    return round(min(took) * 1000, 1)


async def kept(place: Place, runs: int, events: int) -> dict[str, float]:
    """Finished runs, each of so many events in pieces of 5: what is left of them in memory and on the disk. Logs are
    packed now and then, as a server does.
    """
    memory, disk = resident(), place.disk()
    for _ in range(0, runs, 100):
        begun = await running(place.log, [new_id("resp") for _ in range(100)])
        await asyncio.gather(*(_whole(run, events) for run in begun))
        await place.log.sweep()
    grown = place.disk() - disk
    return {
        "memory_mib": round((resident() - memory) / MIB, 1),
        "disk_mib": round(grown / MIB, 1),
        "live_mib": round((place.live() - disk) / MIB, 1),
    }


async def _whole(run: Running, events: int) -> None:
    await run.say(beginning(run.claimed.response))
    for _ in range(events // 5):
        await run.say(deltas(5))
    await run.end("so many words" * events)


# ---- from an append to a reader ----


async def speaking(runs: Sequence[Running], per_second: float, seconds: float) -> None:
    """Each event says when it was handed to the log."""
    pause = 1 / per_second

    async def speak(run: Running, first: float) -> None:
        await asyncio.sleep(first)
        for _ in range(int(seconds * per_second)):
            await run.say([delta(repr(time.time()))])
            await asyncio.sleep(pause)
        await run.end()

    await asyncio.gather(*(speak(run, pause * at / len(runs)) for at, run in enumerate(runs)))


async def listening(log: RunLog, ids: Sequence[str], identity: Identity = ME_AND_I) -> list[float]:
    """Seconds that each event took to come here."""
    took: list[float] = []

    async def listen(response_id: str) -> None:
        async for text in _texts(log, identity, response_id):
            took.append(time.time() - float(text))  # noqa: PERF401 - when it comes, and not when all have come

    await asyncio.gather(*map(listen, ids))
    return took


async def _texts(log: RunLog, identity: Identity, response_id: str) -> AsyncIterator[str]:
    async with aclosing(log.read(identity, response_id, follow=True)) as batches:
        async for records in batches:
            for record in records:
                for event in record.events:
                    if isinstance(event, OutputTextDelta):
                        yield event.delta


def spread(took: Sequence[float]) -> dict[str, float]:
    """In milliseconds."""
    ordered = sorted(took)
    return {
        "p50_ms": round(statistics.median(ordered) * 1000, 2),
        "p99_ms": round(ordered[int(len(ordered) * 0.99)] * 1000, 2),
    }
