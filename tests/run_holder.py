"""A process that holds a run, to be killed or stopped: `python run_holder.py <path or dsn> <seconds of a lease>`.

It joins, claims one run, says three things, and tells so. Then it waits for a line, says one thing more, and tells what
came of that.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from antwort.storage.run_log import Fenced, WorkerInfo
from antwort.storage.sql_run_log import SqlRunLog
from runs_cases import said
from runs_home import SqlHome, postgres_home, sqlite_home


async def main(place: str, lease: float) -> None:
    home: SqlHome = await (postgres_home(place) if "://" in place else sqlite_home(Path(place)))
    log = SqlRunLog(home.database, lease=lease)
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
    await home.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
