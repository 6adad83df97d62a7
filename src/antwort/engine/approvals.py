"""What is on record of the approvals that a request decides: nothing that was approved is run twice, and nothing that
was decided is decided otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from antwort.api.approvals import Approval
from antwort.api.items import InputItem, McpApprovalRequest, McpApprovalResponse, McpCall
from antwort.api.requests import CreateRequest
from antwort.api.responses import Response
from antwort.api.status import FINAL, ResponseStatus
from antwort.api.wire import UNSET
from antwort.engine.decisions import LOST, NO_APPROVAL, contradiction, decided
from antwort.engine.plan import History, Leftover, Plan
from antwort.errors import ApprovalInUse, InvalidField
from antwort.identity import Identity
from antwort.storage.base import Decision, Link, ResponseStore, as_of


class OnRecord(msgspec.Struct, frozen=True):
    """The approvals that are decided in a conversation, as far as a store has them."""

    approvals: Mapping[str, Approval] = {}
    ends: Mapping[str, ResponseStatus] = {}
    """How the responses stand that were told the decisions; those that are kept nowhere are not there."""
    askers: tuple[Link, ...] = ()
    """The responses that asked, as far as they are not in the chain."""


async def look_up(
    items: Iterable[InputItem],
    chain: Sequence[Link],
    store: ResponseStore,
    identity: Identity,
    is_live: Callable[[str], bool],
) -> OnRecord:
    """Asked before anything is read of what the approved calls came to: what runs now may have ended by then, and what
    has ended by now is on record.
    """
    said = (*items, *(item for link in chain for item in link.input))
    ids = [*decided(said)]
    found = await store.find_approvals(identity, ids) if ids else {}
    tellers = {by for approval in found.values() if (by := approval.decided_by) is not None}
    ends: dict[str, ResponseStatus] = {link.response.id: link.response.status for link in chain}
    for by in tellers - ends.keys():
        if is_live(by):
            ends[by] = "in_progress"
        elif (response := await store.get(identity, by)) is not None:
            ends[by] = response.status
    return OnRecord(found, ends, await _askers(found.values(), chain, store, identity))


async def _askers(
    approvals: Iterable[Approval], chain: Sequence[Link], store: ResponseStore, identity: Identity
) -> tuple[Link, ...]:
    """Those of a conversation, or of a client that sends all again: their tools are those that were meant."""
    known = {link.response.id for link in chain}
    wanted = dict.fromkeys(each.response_id for each in approvals if each.response_id not in known)
    chains = [await store.chain(identity, response_id) for response_id in wanted]
    return tuple(links[-1] for links in chains if links)


def weighed(
    history: History, request: CreateRequest, record: OnRecord, now: int
) -> tuple[History, tuple[Decision, ...]]:
    """The history with what is still to be run of it, and the decisions that are to be put on record with that.

    Raises `InvalidField` when the request approves what has expired, and `Conflict` when the decision was another one
    before, or another response acts on it right now.
    """
    if not record.approvals:
        return history, ()
    judge = _Judge(record, request, now)
    leftovers = tuple(judge.answer(left) for left in history.leftovers)
    for decision in decided(request.input).values():
        judge.note(decision)
    return msgspec.structs.replace(history, leftovers=leftovers), tuple(judge.decisions.values())


class _Judge:
    def __init__(self, record: OnRecord, request: CreateRequest, now: int) -> None:
        self._record, self._now = record, now
        self._places = {
            item.approval_request_id: f"input[{i}].approval_request_id"
            for i, item in enumerate(request.input)
            if isinstance(item, McpApprovalResponse)
        }
        self.decisions: dict[str, Decision] = {}

    def answer(self, left: Leftover) -> Leftover:
        """The call as it is to be answered. What was decided before this request was made raises nothing."""
        asked = left.call.item.approval_request_id if isinstance(left.call.item, McpCall) else UNSET
        approval = None if asked is UNSET else self._record.approvals.get(asked)
        if approval is None or left.refusal is not None:
            return left
        place = self._places.get(approval.id)
        approval = as_of(approval, self._now)
        if approval.status in ("denied", "expired"):
            if place is not None:
                raise _late(place) if approval.status == "expired" else contradiction(place, is_approved=False)
            return msgspec.structs.replace(left, refusal=NO_APPROVAL)
        if approval.status == "approved" and self._is_lost(approval):
            return msgspec.structs.replace(left, refusal=LOST)
        self.decisions[approval.id] = Decision(id=approval.id, status="approved", after=approval.decided_by)
        return left

    def _is_lost(self, approval: Approval) -> bool:
        """Whether it may have been begun where nobody has written down what came of it. Raises `Conflict` where it is
        under way.
        """
        end = self._record.ends.get(approval.decided_by or "")
        if end is not None and end not in FINAL:
            raise ApprovalInUse
        return end in (None, "failed")

    def note(self, decision: McpApprovalResponse) -> None:
        """A decision of the request, whatever there is to be done about it."""
        approval = self._record.approvals.get(decision.approval_request_id)
        if approval is None or approval.id in self.decisions:
            return
        if approval.status != "pending":
            if (approval.status == "approved") is not decision.approve:
                raise contradiction(self._places[approval.id], is_approved=approval.status == "approved")
            return
        if decision.approve and as_of(approval, self._now).status == "expired":
            raise _late(self._places[approval.id])
        self.decisions[approval.id] = Decision(id=approval.id, status="approved" if decision.approve else "denied")


def _late(place: str) -> InvalidField:
    problem = "the time to approve the call is over. It can only be denied, or asked for anew."
    return InvalidField(place, problem, code="approval_expired")


def asked_for(plan: Plan, response: Response) -> list[Approval]:
    """What the response as it ended asks the client to approve."""
    now = int(plan.clock())
    return [
        Approval(
            id=item.id,
            created_at=now,
            expires_at=now + max(1, int(plan.settings.approval_time)),
            response_id=response.id,
            server_label=item.server_label,
            name=item.name,
            arguments=item.arguments,
        )
        for item in response.output
        if isinstance(item, McpApprovalRequest) and item.status == "completed"
    ]
