"""Approvals: calls that wait, or waited, for the client to say that they may be run. An extension of ours."""

from __future__ import annotations

from typing import Literal, TypeAlias

from antwort.api.wire import Wire

ApprovalStatus: TypeAlias = Literal["pending", "approved", "denied", "expired", "outdated"]
"""`outdated`: it was approved, and not run, because the tool had changed since the question."""


class Approval(Wire, kw_only=True):
    """A call of a response, or of a conversation, on record that is run only when the client approves it."""

    id: str
    """That of the `mcp_approval_request`, and what an `mcp_approval_response` names."""
    object: Literal["approval"] = "approval"
    status: ApprovalStatus = "pending"
    created_at: int
    expires_at: int
    """From then on it can only be denied. In seconds since 1970, as all times are."""
    response_id: str
    """The response that asks for it."""
    server_label: str
    name: str
    arguments: str
    decided_by: str | None = None
    """The response that was told the decision, and acts on it."""
    tool_digest: str = ""
    """Fingerprint of the tool as it was when the question was asked; empty where it was not recorded."""
    replaces: str | None = None
    """The outdated approval that this one asks for again."""
