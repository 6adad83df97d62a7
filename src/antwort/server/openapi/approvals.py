"""The operations on approvals, in words."""

from __future__ import annotations

from antwort.server.openapi.operation import LISTED, READ, Operation, as_json

OF_APPROVALS: dict[tuple[str, str], Operation] = {
    ("GET", "/v1/approvals"): Operation(
        name="listApprovals",
        tag="Approvals",
        summary="List the calls that wait for approval",
        description="Those of stored responses, and those that were decided or have expired. A page of large arguments"
        " may end early: `has_more` tells.",
        parameters=(*LISTED, "approval_status"),
        answers=as_json("A part of them.", "ApprovalList"),
        errors=(403, *READ),
    ),
    ("GET", "/v1/approvals/{id}"): Operation(
        name="getApproval",
        tag="Approvals",
        summary="Look at a call that waits for approval",
        description="It is decided by the request that goes on: with an item of type `mcp_approval_response` in its"
        " input, behind the response that asks.",
        parameters=("approval",),
        answers=as_json("How it stands.", "Approval"),
        errors=(403, 404, *READ),
    ),
}
