"""What clients have decided about the calls that need their approval. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from antwort.api.items import InputItem, McpApprovalRequest, McpApprovalResponse
from antwort.api.wire import UNSET
from antwort.errors import Conflict, InvalidField

NO_APPROVAL = "The call was not run: it needs the user's approval, and none was given."
LOST = "The call was begun before, and its outcome is not known. It is not run again."
NOT_RUN = "The call was approved, and it has not been run."
DENIED = "The user denied this call."
CHANGED = "The call was not run: the tool has changed since the user was asked about it. The user is asked again."


def denial(response: McpApprovalResponse) -> str:
    """What the model is told of a call that was denied."""
    reason = "" if response.reason is UNSET else response.reason.strip()
    return f"{DENIED} The reason: {reason}" if reason else DENIED


def told_of(response: McpApprovalResponse | None) -> str | None:
    """What the model is told of a call that nobody ran. Of one that was approved there is no more to say than of any
    other without a result.
    """
    if response is None:
        return NO_APPROVAL
    return None if response.approve else denial(response)


def decided(items: Iterable[InputItem]) -> Mapping[str, McpApprovalResponse]:
    """The decisions among the items, by the ids of the requests. Of several the first counts."""
    found: dict[str, McpApprovalResponse] = {}
    for item in items:
        if isinstance(item, McpApprovalResponse):
            found.setdefault(item.approval_request_id, item)
    return found


def repeated_decisions(items: Sequence[InputItem], earlier: Iterable[InputItem], first: int = 0) -> frozenset[int]:
    """Return the places of the decisions that stand in this input already. Of the items, those from the `first` on
    count.

    Raises `InvalidField` for a decision about a request that the conversation does not know, and for two of one input
    that differ; `Conflict` for one that contradicts an earlier one.
    """
    given = [(i, item) for i, item in enumerate(items) if i >= first and isinstance(item, McpApprovalResponse)]
    if not given:
        return frozenset()
    earlier = [*earlier]
    known = {item.id for item in (*earlier, *items[first:]) if isinstance(item, McpApprovalRequest)}
    before = decided(earlier)
    seen: dict[str, bool] = {}
    repeated: set[int] = set()
    for i, item in given:
        place, meant = f"input[{i}].approval_request_id", item.approval_request_id
        if meant not in known:
            problem = f"no call waits for approval under the id {meant[:_LONGEST]!r} in this conversation."
            raise InvalidField(place, problem, code="unknown_approval")
        if meant in seen:
            if seen[meant] is not item.approve:
                raise InvalidField(place, "it is decided otherwise in this input.", code="duplicate_approval")
            repeated.add(i)
        if meant in before and before[meant].approve is not item.approve:
            raise contradiction(place, is_approved=before[meant].approve)
        seen[meant] = item.approve
    return frozenset(repeated)


_LONGEST = 100


def contradiction(place: str, *, is_approved: bool) -> Conflict:
    verdict = "approved" if is_approved else "denied"
    return Conflict(f"The call was {verdict} before, and that cannot be taken back.", param=place, code=CODE_DECIDED)


def superseded(place: str, response_id: str | None) -> Conflict:
    """What is said to an approval of what was asked about again."""
    where = "" if response_id is None else f" in the response {response_id!r}"
    problem = f"The tool has changed since this call was asked about. It was not run, and is asked about again{where}."
    return Conflict(problem, param=place, code="tool_changed")


CODE_DECIDED = "approval_decided"
