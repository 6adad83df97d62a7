"""How long an event takes from its append to a reader: in another process, where the home allows that.

`python -m runlog.tail DSN ID …` is that process: it reads to the end of these runs, and prints what each event took.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from runlog.homes import Place, opened
from runlog.load import running
from runlog.measures import listening, speaking, spread

from antwort.ids import new_id

RUNS, PER_SECOND, SECONDS = 50, 20.0, 10.0


async def tail(place: Place) -> dict[str, float]:
    begun = await running(place.log, [new_id("resp") for _ in range(RUNS)])
    ids = [run.claimed.response.id for run in begun]
    reading = asyncio.create_task(_elsewhere(place.dsn, ids) if place.dsn else listening(place.log, ids))
    await asyncio.sleep(3.0)  # so that it follows
    await speaking(begun, PER_SECOND, SECONDS)
    return spread(await reading)


async def _elsewhere(dsn: str, ids: Sequence[str]) -> list[float]:
    command = (sys.executable, "-m", "runlog.tail", dsn, *ids)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    took: list[float] = json.loads(output)
    return took


async def _listen(dsn: str, ids: Sequence[str]) -> list[float]:
    async with opened("postgres", Path(), dsn) as log:
        return await listening(log, ids)


def main() -> None:
    _, dsn, *ids = sys.argv
    print(json.dumps(asyncio.run(_listen(dsn, ids))))


if __name__ == "__main__":
    main()
