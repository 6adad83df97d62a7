"""A process that holds a run, to be killed or stopped: `python run_holder.py <path or dsn> <seconds of a lease>`.

It joins, claims one run, says three things, and tells so. Then it waits for a line, says one thing more, and tells what
came of that.
"""

from __future__ import annotations

import asyncio
import sys

from antwort import SqliteStore
from antwort.engine.settings import BackgroundSettings
from antwort.storage.postgres import PostgresStore
from antwort.storage.run_log import Fenced, WorkerInfo, run_log_for
from runs_cases import said


async def main(place: str, lease: float) -> None:
    store = await (PostgresStore.open(place) if "://" in place else SqliteStore.open(place))
    log = run_log_for(store, BackgroundSettings(lease=lease))
    assert log is not None
    await log.join(WorkerInfo("worker_far"))
    (claimed,) = await log.claim("worker_far", 1)
    for at in range(1, 4):
        await log.append(claimed.lease, said(at, at + 1, str(at)))
    print(claimed.lease.fence, flush=True)  # noqa: T201
    await asyncio.to_thread(sys.stdin.readline)
    try:
        await log.append(claimed.lease, said(4, 5, "of a zombie"))
    except Fenced:
        print("fenced", flush=True)  # noqa: T201
    else:
        print("written", flush=True)  # noqa: T201
    await log.close()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
