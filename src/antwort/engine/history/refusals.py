"""Results of calls that are not run, as the model reads them."""

from __future__ import annotations

from antwort.api.items import McpApprovalResponse
from antwort.api.wire import UNSET

NO_MORE = "No tool can be called any more in this response."
OVER_LIMIT = "The limit of tool calls for this response is used up. Answer with what you have."
NOT_BEGUN = "The call was not run: the response was stopped before it began."

# ---- calls of earlier responses ----

DECLINED = "The call was not run: the client did not continue the turn."
NOT_YET = "The call has not been run yet: the client has not continued the turn."
DELETED = "The call was not run: the response or conversation that asked for it was deleted."

# ---- calls that were begun before ----

OUTCOME_UNKNOWN = "The call was begun before, and its outcome is not known. It is not run again."
PROCESS_LOST = (
    "The call was begun, and the process that made it was lost before it had ended: what came of it is not known. It "
    "is not run a second time."
)

# ---- approvals ----

NO_APPROVAL = "The call was not run: it needs the user's approval, and none was given."
NOT_RUN = "The call was approved, and it has not been run."
DENIED = "The user denied this call."
CHANGED = "The call was not run: the tool has changed since the user was asked about it. The user is asked again."


def denial(decision: McpApprovalResponse) -> str:
    """Return the result of a call that was denied, as the model reads it."""
    reason = "" if decision.reason is UNSET else decision.reason.strip()
    return f"{DENIED} The reason: {reason}" if reason else DENIED


def unrun_result(decision: McpApprovalResponse | None) -> str | None:
    """Return the result of a call that was not run, as the model reads it. None for an approved call: nothing is known
    about it.
    """
    if decision is None:
        return NO_APPROVAL
    return None if decision.approve else denial(decision)
