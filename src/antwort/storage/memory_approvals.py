"""Approvals in the memory of this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antwort.api.approvals import Approval, ApprovalStatus
from antwort.api.wire import replace
from antwort.errors import ApprovalInUse
from antwort.identity import Identity
from antwort.storage.base import ApprovalPage, Decision, Page, as_of
from antwort.storage.memory_conversations import Key
from antwort.storage.rules import select_approvals


class MemoryApprovals:
    """The part of the store that keeps approvals. Each goes with its response."""

    def __init__(self) -> None:
        self._approvals: dict[Key, Approval] = {}
        """By tenant, owner and id, the oldest first."""

    async def find_approvals(self, identity: Identity, ids: Sequence[str]) -> Mapping[str, Approval]:
        found = {each: self._approvals.get((identity.tenant, identity.owner, each)) for each in ids}
        return {each: approval for each, approval in found.items() if approval is not None}

    async def approvals(self, identity: Identity, page: Page, status: ApprovalStatus | None, now: int) -> ApprovalPage:
        """Goes through all there are, which is bounded as the responses are."""
        whose = identity.tenant, identity.owner
        own = [approval for key, approval in self._approvals.items() if key[:2] == whose]
        return select_approvals(own, page, lambda approval: status in (None, as_of(approval, now).status))

    async def decide(self, identity: Identity, response_id: str, decisions: Sequence[Decision]) -> None:
        self._check(identity, decisions)
        self._decide(identity, response_id, decisions)

    def _check(self, identity: Identity, decisions: Sequence[Decision]) -> None:
        """Before anything is written."""
        for each in decisions:
            known = self._approvals.get((identity.tenant, identity.owner, each.id))
            if known is None:
                continue
            becomes_outdated = each.status == "outdated" and known.status == "approved"
            may_be = known.status in ("pending", each.status) or becomes_outdated
            if known.decided_by != each.after or not may_be:
                raise ApprovalInUse

    def _decide(self, identity: Identity, response_id: str, decisions: Sequence[Decision]) -> None:
        for each in decisions:
            key = identity.tenant, identity.owner, each.id
            if (known := self._approvals.get(key)) is not None:
                self._approvals[key] = replace(known, status=each.status, decided_by=response_id)

    def _keep(self, identity: Identity, approvals: Sequence[Approval]) -> None:
        for approval in approvals:
            self._approvals.setdefault((identity.tenant, identity.owner, approval.id), approval)
            replaced = identity.tenant, identity.owner, approval.replaces or ""
            if (known := self._approvals.get(replaced)) is not None and known.status == "approved":
                self._approvals[replaced] = replace(known, status="outdated")

    def _drop_approvals(self, tenant: str, owner: str, ids: Sequence[str]) -> None:
        for each in ids:
            self._approvals.pop((tenant, owner, each), None)
