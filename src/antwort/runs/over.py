"""Which log of runs goes with a store: one over the same records."""

from __future__ import annotations

from typing import Protocol

from antwort.storage.base import ResponseStore
from antwort.storage.run_log import RunLog


class LogLimits(Protocol):
    """What a log is to keep to: that part of `BackgroundSettings`."""

    @property
    def lease(self) -> float: ...

    @property
    def queue(self) -> int: ...

    @property
    def per_owner(self) -> int | None: ...

    @property
    def keep_log(self) -> float: ...


def log_over(store: ResponseStore, limits: LogLimits) -> RunLog | None:
    """None for a store of somebody else's making, which may have no place for them."""
    from antwort.storage.memory import MemoryStore

    queue, per_owner, keep_log = limits.queue, limits.per_owner, limits.keep_log
    if isinstance(store, MemoryStore):
        from antwort.runs.memory import MemoryRunLog

        return MemoryRunLog(store, queue=queue, per_owner=per_owner, keep_log=keep_log)
    from antwort.storage.sql_store import SqlStore  # whoever has one has imported it

    if isinstance(store, SqlStore):
        from antwort.runs.sql import SqlRunLog

        return SqlRunLog(store.database, lease=limits.lease, queue=queue, per_owner=per_owner, keep_log=keep_log)
    return None
