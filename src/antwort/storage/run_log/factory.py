"""Choose the run log that goes with a store."""

from __future__ import annotations

from typing import Protocol

from antwort.storage.base import ResponseStore
from antwort.storage.run_log.base import RunLog


class RunLogLimits(Protocol):
    """The settings of a run log: a part of `BackgroundSettings`."""

    @property
    def lease(self) -> float: ...

    @property
    def queue(self) -> int: ...

    @property
    def per_owner(self) -> int | None: ...

    @property
    def keep_log(self) -> float: ...


def run_log_for(store: ResponseStore, limits: RunLogLimits) -> RunLog | None:
    """Return a run log over the records of the store; None for a store that is not one of ours."""
    from antwort.storage.memory import MemoryStore

    queue, per_owner, keep_log = limits.queue, limits.per_owner, limits.keep_log
    if isinstance(store, MemoryStore):
        from antwort.storage.run_log.memory import MemoryRunLog

        return MemoryRunLog(store, queue=queue, per_owner=per_owner, keep_log=keep_log)
    from antwort.storage.sql_store import SqlStore

    if isinstance(store, SqlStore):
        from antwort.storage.run_log.sql import SqlRunLog

        return SqlRunLog(store.database, lease=limits.lease, queue=queue, per_owner=per_owner, keep_log=keep_log)
    return None
