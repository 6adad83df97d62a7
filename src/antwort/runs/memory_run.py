"""One run in the memory of this process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from antwort.api.responses import Response
from antwort.api.wire import UNSET
from antwort.identity import Identity
from antwort.runs.choosing import Whose
from antwort.storage.run_log import Claimed, Lease, Record

Key: TypeAlias = tuple[str, str, str]
"""Tenant, owner and id."""


@dataclass(slots=True, eq=False)
class MemoryRun:
    key: int
    identity: Identity
    response: Response
    request: bytes
    queued_at: float
    log: list[Record] = field(default_factory=list)
    worker: str | None = None
    fence: int = 0
    attempt: int = 0
    begun_at: float | None = None
    is_cancelled: bool = False
    ended_at: float | None = None
    """From then on only its log is there."""

    @property
    def name(self) -> Key:
        return self.identity.tenant, self.identity.owner, self.response.id

    @property
    def whose(self) -> Whose:
        return self.identity.tenant, self.identity.owner

    @property
    def conversation_id(self) -> str | None:
        return None if self.response.conversation is UNSET else self.response.conversation.id

    @property
    def place(self) -> tuple[float, int]:
        return self.queued_at, self.key

    def add(self, record: Record) -> bool:
        """Whether it is new."""
        if record.at < len(self.log):
            return False
        assert record.at == len(self.log), "a record is missing before this one"
        self.log.append(record)
        return True

    @property
    def lease(self) -> Lease:
        return Lease(run_id=self.response.id, fence=self.fence, worker=self.worker or "", key=self.key)

    def take(self, worker: str, now: float) -> Claimed:
        """By another holder than before."""
        self.begun_at = now if self.begun_at is None else self.begun_at
        if self.attempt == 0 or self.worker is not None:
            self.attempt += 1
        self.fence += 1
        self.worker = worker
        return Claimed(
            lease=self.lease,
            identity=self.identity,
            request=self.request,
            response=self.response,
            attempt=self.attempt,
            is_cancelled=self.is_cancelled,
            begun_at=self.begun_at,
            waited=max(self.begun_at - self.queued_at, 0.0) if self.fence == 1 else None,
        )
