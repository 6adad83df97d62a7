"""The record of calls that a later response settles, in the memory of this process."""

from __future__ import annotations

from collections import defaultdict

from antwort.identity import Identity
from antwort.storage.base import CallClaim, CallRecord, CallResult
from antwort.storage.memory_conversations import Key


class MemoryCalls:
    """The part of the store that keeps claimed calls. Each goes with its response, or with its conversation."""

    def __init__(self) -> None:
        self._calls: dict[Key, CallRecord] = {}
        """By tenant, owner and call id."""
        self._calls_of: defaultdict[Key, list[Key]] = defaultdict(list)
        """By the key of the response or conversation that holds them."""

    def _claim_call(self, identity: Identity, claim: CallClaim) -> CallRecord | None:
        key = identity.tenant, identity.owner, claim.call_id
        known = self._calls.get(key)
        if known is not None and not (known.result is None and known.settled_by == claim.instead_of):
            return known
        self._calls[key] = CallRecord(claim.settled_by, claim.result)
        if known is None:
            for anchor in filter(None, (claim.response_id, claim.conversation_id)):
                self._calls_of[identity.tenant, identity.owner, anchor].append(key)
        return None

    async def finish_call(self, identity: Identity, call_id: str, settled_by: str, result: CallResult) -> None:
        key = identity.tenant, identity.owner, call_id
        known = self._calls.get(key)
        if known is not None and known.settled_by == settled_by and known.result is None:
            self._calls[key] = CallRecord(settled_by, result)

    async def release_call(self, identity: Identity, call_id: str, settled_by: str) -> None:
        key = identity.tenant, identity.owner, call_id
        if self._calls.get(key) == CallRecord(settled_by, None):
            del self._calls[key]

    async def call_record(self, identity: Identity, call_id: str) -> CallRecord | None:
        return self._calls.get((identity.tenant, identity.owner, call_id))

    def _drop_calls(self, anchor: Key) -> None:
        for key in self._calls_of.pop(anchor, ()):
            self._calls.pop(key, None)
